"""Kernels as plain data (lists, texts, numbers), for files: `kernel_data`, and back, `kernel_of`.

A kernel is four tables: values, memories, places in the source, and blocks. Whatever refers to one of them
has its number there, so that data are nested no deeper than a statement. Blocks are numbered outside in.
Analyses' results and the origins of copied statements are left out: the kernel is to be compiled, not
differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diffsim.errors import Span
from diffsim.ir import nodes
from diffsim.ir.nodes import Arg, Block, Const, Dim, Kernel, Mem, Node, RngKey, Task, Value
from diffsim.ir.op import TABLE, Op
from diffsim.ir.print_format import CheckKind, Shown
from diffsim.ir.types import Type, scalar, tensor

Data = list[Any]
_STATEMENTS: dict[str, type[Node]] = {
    c.__name__: c
    for c in (
        nodes.Let, nodes.Load, nodes.Store, nodes.Atomic, nodes.For, nodes.While, nodes.If, nodes.Alloca,
        nodes.Check, nodes.Print,
    )
}  # fmt: skip
_LEFT_OUT = {"origin"}
_OF_TASK = ("axes", "bounds", "body", "span", "block_dim", "independent", "written")
"""The attributes of a task in prepared IR; the rest is written by later passes."""


class NotPlain(Exception):
    """A kernel holds something that is no data."""

    def __init__(self, what: str, span: Span | None = None) -> None:
        super().__init__(what, span)
        self.what, self.span = what, span


def kernel_data(kernel: Kernel, memory: Callable[[Mem], Any]) -> dict[str, Any]:
    """Return a kernel as data.

    Args:
        kernel: prepared IR, with the bodies of calls in their places.
        memory: what a file says of a field's memory, in place of its attributes.

    Raises:
        NotPlain: it holds text for LLVM.
    """
    return _Writer(memory).kernel(kernel)


def kernel_of(data: dict[str, Any], memory: Callable[[Any], Mem]) -> Kernel:
    """Return the kernel of these data; `memory` undoes what `kernel_data` was given.

    Raises:
        KeyError, TypeError, ValueError, IndexError, AttributeError: they are not of a kernel.
    """
    return _Reader(data, memory).kernel(data)


class _Writer:
    def __init__(self, memory: Callable[[Mem], Any]) -> None:
        self._memory = memory
        self._values: dict[Value, int] = {}
        self._mems: dict[Mem, int] = {}
        self._spans: dict[int, int] = {}
        self._tables: dict[str, list[Any]] = {"values": [], "mems": [], "spans": [], "blocks": []}
        self._waiting: list[tuple[int, Block]] = []
        self._kept: list[Span] = []  # so that no other one gets the number of one of them

    def kernel(self, kernel: Kernel) -> dict[str, Any]:
        tasks = [[self.data(getattr(t, name)) for name in _OF_TASK] for t in kernel.tasks]
        made = {
            "name": kernel.name,
            "args": self.data(kernel.args),
            "mems": self.data(kernel.mems),
            "span": self.data(kernel.span),
            "result": self.data(kernel.result),
            "incoming": self.data([m for m in kernel.mems if m in kernel.incoming]),
            "tasks": tasks,
        }
        # Blocks wait, so that the depth of the program is not that of the data.
        while self._waiting:
            number, block = self._waiting.pop()
            statements = [self._statement(s) for s in block.stmts]
            self._tables["blocks"][number] = [statements, self.data(block.yields)]
        return made | {"tables": self._tables}

    def _statement(self, s: Any) -> Data:
        cls = type(s)
        if cls.__name__ not in _STATEMENTS:
            raise NotPlain("text for LLVM" if cls is nodes.InlineLLVM else cls.__name__, s.span)
        names = (n for n in cls.__slots__ if n not in _LEFT_OUT)
        return [cls.__name__, {name: self.data(getattr(s, name)) for name in names}]

    def data(self, x: Any) -> Any:
        if x is None or isinstance(x, (str, bool)):
            return x
        if isinstance(x, (int, float, np.generic)):
            return x.item() if isinstance(x, np.generic) else x
        if isinstance(x, (tuple, list)):
            return [self.data(v) for v in x]
        if isinstance(x, Value):
            return self._value(x)
        if isinstance(x, Mem):
            return self._mem(x)
        if isinstance(x, Span):
            return self._span(x)
        if isinstance(x, Block):
            self._tables["blocks"].append(None)
            number = len(self._tables["blocks"]) - 1
            self._waiting.append((number, x))
            return {"block": number}
        if isinstance(x, Op):
            return {"op": x.name}
        if isinstance(x, Shown):
            return {"shown": [_type(x.type), x.spec]}
        if isinstance(x, CheckKind):
            return {"check": x.name}
        raise TypeError(type(x))

    def _value(self, v: Value) -> dict[str, int]:
        number = self._values.get(v)
        if number is None:
            number = self._values[v] = len(self._tables["values"])
            row: Data = [type(v).__name__, _type(v.type), v.hint]
            self._tables["values"].append(row)
            if isinstance(v, Const):
                row.append(self.data(v.value))
            elif isinstance(v, Arg):
                row.append(v.position)
            elif isinstance(v, Dim):
                row += [self.data(v.mem), v.axis]
        return {"value": number}

    def _mem(self, m: Mem) -> dict[str, int]:
        number = self._mems.get(m)
        if number is None:
            number = self._mems[m] = len(self._tables["mems"])
            self._tables["mems"].append(None)
            if m.kind == "field":
                row = self._memory(m)
            else:
                grad = None if m.grad is None else self._mem(m.grad)
                row = [m.name, _type(m.dtype), m.rank, m.shape, m.kind, grad, m.is_grad]
            self._tables["mems"][number] = [m.kind, row]
        return {"mem": number}

    def _span(self, s: Span) -> dict[str, int]:
        number = self._spans.get(id(s))
        if number is None:
            parent = None if s.parent is None else self._span(s.parent)
            number = self._spans[id(s)] = len(self._tables["spans"])
            self._kept.append(s)
            row = [s.file, s.line, s.col, s.end_line, s.end_col, s.where, parent]
            self._tables["spans"].append(row)
        return {"span": number}


class _Reader:
    def __init__(self, data: dict[str, Any], memory: Callable[[Any], Mem]) -> None:
        tables = data["tables"]
        self._memory = memory
        self._spans: list[Span] = []
        for file, line, col, end_line, end_col, where, parent in tables["spans"]:
            of = self.of(parent)
            self._spans.append(Span(file, line, col, end_line, end_col, where, of))
        self._mem_rows, self._mems = tables["mems"], dict[int, Mem]()
        self._values = [self._value(*row) for row in tables["values"]]
        self._blocks = [Block([]) for _ in tables["blocks"]]
        for block, (statements, yields) in zip(self._blocks, tables["blocks"], strict=True):
            block.stmts = [self._statement(*s) for s in statements]
            block.yields = self.of(yields)

    def kernel(self, data: dict[str, Any]) -> Kernel:
        tasks = tuple(
            Task(**dict(zip(_OF_TASK, map(self.of, task), strict=True))) for task in data["tasks"]
        )
        args, mems, span, result = (self.of(data[k]) for k in ("args", "mems", "span", "result"))
        incoming = frozenset(self.of(data["incoming"]))
        return Kernel(_text(data["name"]), args, mems, tasks, span, result, incoming)

    def _statement(self, name: str, attributes: dict[str, Any]) -> Any:
        return _STATEMENTS[name](**{k: self.of(x) for k, x in attributes.items()})

    def of(self, x: Any) -> Any:
        if isinstance(x, list):
            return tuple(self.of(v) for v in x)
        if not isinstance(x, dict):
            return x
        ((kind, what),) = x.items()
        if kind == "value":
            return self._values[what]
        if kind == "mem":
            return self._mem(what)
        if kind == "span":
            return self._spans[what]
        if kind == "block":
            return self._blocks[what]
        if kind == "op":
            return TABLE[what]
        if kind == "shown":
            t, spec = what
            return Shown(_type_of(t), _text(spec))
        if kind == "check":
            return CheckKind[what]
        raise ValueError(kind)

    def _value(self, kind: str, t: Data, hint: str, *more: Any) -> Value:
        type_ = _type_of(t)
        if kind == "Const":
            return Const(type_, *more)
        if kind == "Arg":
            return Arg(type_, _text(hint), *more)
        if kind == "Dim":
            mem, axis = more
            return Dim(type_, self.of(mem), axis)
        return {"Value": Value, "RngKey": RngKey}[kind](type_, _text(hint))

    def _mem(self, number: int) -> Mem:
        made = self._mems.get(number)
        if made is None:
            kind, row = self._mem_rows[number]
            if kind == "field":
                made = self._memory(row)
            else:
                name, t, rank, shape, kind, grad, is_grad = row
                sizes = None if shape is None else tuple(shape)
                made = Mem(_text(name), _type_of(t), rank, sizes, kind, self.of(grad))
                made.is_grad = is_grad
            self._mems[number] = made
        return made


def _text(x: Any) -> str:
    if not isinstance(x, str):
        raise TypeError(x)
    return x


def _type(t: Type) -> Data:
    return [t.scalar.name, list(t.shape)]


def _type_of(data: Sequence[Any]) -> Type:
    name, shape = data
    return tensor(scalar(name), tuple(shape))
