"""Runs IR in NumPy, one statement at a time: the oracle that passes and backends are tested against.

It takes tensor IR and scalar IR alike, runs tasks in order, lanes in the order of the flattened
axes, and every op by its row's `ref`, in the exact type: nothing here is shared with the code
generators, and nothing is fast. What a program must not rely on is made visible: temporaries and
scratch begin as NaN (or the largest integer), an index out of bounds is an `AccessError`.

Read first: `run`, then `Interpreter.stmt`. The state is one dictionary of values, which is enough
because IR is in SSA form: a value has one definition, and each lane or iteration binds it anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from diffsim.errors import AccessError, BackendError, Span
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Check,
    Const,
    CustomCall,
    Dim,
    For,
    If,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Mem,
    Print,
    RngKey,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.print_format import fill
from diffsim.ir.types import Type, converted, size_of

_COMBINE: dict[str, Any] = {
    "add": np.add,
    # fmin and fmax ignore NaN, as minnum and maxnum of LLVM (IEEE 754-2008).
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
}


def run(
    kernel: Kernel,
    memory: Mapping[Mem, np.ndarray],
    args: Sequence[Any] = (),
    seed: int = 0,
    dims: Mapping[tuple[Mem, int], int] | None = None,
) -> Any:
    """Run a kernel.

    Args:
        kernel: well-formed IR, of tensors or of scalars.
        memory: an array for each field and array of the kernel, of the memory's shape followed by
            its dtype's; changed in place. Temporaries may be given too, to be inspected.
        args: the arguments; vectors and matrices may be given whole to scalar IR.
        seed: the launch's key for random numbers.
        dims: what a `Dim` is, where that is not the array's own (memory, axis) dimension.

    Returns:
        What the kernel returns: a NumPy scalar, an array of the result's shape, or None.

    Raises:
        CheckError: an index out of bounds, or a check that failed; with the user's line.
    """
    # Kernels compute infinities and NaN silently, as compiled code does.
    with np.errstate(all="ignore"):
        work = Interpreter(kernel, memory, args, seed, dims or {})
        for task in kernel.tasks:
            work.task(task)
        if kernel.result is None:
            return None
        return as_type(work.memory[kernel.result], kernel.result.dtype)


def as_type(x: Any, t: Type) -> Any:
    """Return the number or array in exactly that type, as a backend's register has it."""
    return converted(x, t.scalar)


def unset(shape: tuple[int, ...], t: Type) -> np.ndarray:
    """Return uninitialized memory, filled with values that are noticed if they are read."""
    scalar = t.scalar
    filler = np.nan if scalar.is_float else True if scalar.is_bool else np.iinfo(scalar.numpy).max
    return np.full(shape + t.shape, filler, scalar.numpy)


class Interpreter:
    """The state of one run; `run` and `backends/stepping.py` say what is executed when."""

    def __init__(
        self,
        kernel: Kernel,
        memory: Mapping[Mem, np.ndarray],
        args: Sequence[Any],
        seed: int,
        dims: Mapping[tuple[Mem, int], int],
    ) -> None:
        self.memory = dict(memory)
        self.dims = dims
        # The key as compiled code has it: a 64-bit word.
        self.seed = np.uint64(seed % 2**64)
        self.env: dict[Value, Any] = {}
        for mem in kernel.mems:
            if mem.kind in ("temp", "table") and mem not in self.memory:
                self.memory[mem] = self.unset(mem.shape or (), mem.dtype)
            elif mem.kind != "scratch":
                self._fits(mem)
        # Flat, as scalar IR has one argument per component where tensor IR has one per vector.
        numbers = [x for a in args for x in np.ravel(a)]
        for arg in kernel.args:
            own, numbers = numbers[: size_of(arg.type)], numbers[size_of(arg.type) :]
            if len(own) < size_of(arg.type):
                raise ValueError(f"there is no value for the argument {arg.hint}")
            self.env[arg] = as_type(np.array(own).reshape(arg.type.shape), arg.type)
        if numbers:
            raise ValueError(f"{len(numbers)} numbers too many in the arguments")

    def _fits(self, mem: Mem) -> None:
        # Checked here, as NumPy would broadcast or index a wrong array without complaint.
        array = self.memory.get(mem)
        if array is None:
            raise ValueError(f"there is no array for {mem.name}")
        cells = len(mem.dtype.shape)
        shape = array.shape[: array.ndim - cells] if mem.shape is None else mem.shape
        if array.shape != shape + mem.dtype.shape or len(shape) != mem.rank:
            raise ValueError(f"the array for {mem.name} has the shape {array.shape}")
        if array.dtype != self.number_type(mem):
            raise ValueError(f"the array for {mem.name} is of {array.dtype}, not {mem.dtype}")

    def number_type(self, mem: Mem) -> np.dtype:
        """Return NumPy's type of the numbers in a memory."""
        return np.dtype(mem.dtype.scalar.numpy)

    # ---- values

    def value(self, v: Value) -> Any:
        found = self.env.get(v)
        if found is None:
            found = self.env[v] = self._leaf(v)
        return found

    def _leaf(self, v: Value) -> Any:
        # A tensor constant has equal elements.
        if isinstance(v, Const):
            return np.full(v.type.shape, v.value, v.type.scalar.numpy)[()]
        if isinstance(v, Dim):
            n = self.dims.get((v.mem, v.axis))
            return as_type(self.memory[v.mem].shape[v.axis] if n is None else n, v.type)
        assert isinstance(v, RngKey), f"{v.hint or v.type} is not bound"
        return as_type(self.seed, v.type)

    def values(self, vs: Sequence[Value]) -> list[Any]:
        return [self.value(v) for v in vs]

    def bind(self, vs: Sequence[Value], numbers: Sequence[Any]) -> None:
        self.env.update(zip(vs, numbers, strict=True))

    # ---- tasks and blocks

    def task(self, task: Task) -> None:
        for _ in self.lanes_of(task):
            self.block(task.body)
            self.combine(task)

    def lanes_of(self, task: Task) -> Iterator[tuple[int, ...]]:
        """Bind the axes of a task to the indices of each lane, one after the other."""
        bounds = [int(b) for b in self.block(task.bounds)]
        # In row-major order, one lane after the other: one of the orders that parallel code may
        # take.
        box = [range(lo, hi) for lo, hi in zip(bounds[::2], bounds[1::2], strict=True)]
        for lane in itertools.product(*box):  # once, with no axes, for a serial task
            for axis, k in zip(task.axes, lane, strict=True):
                self.env[axis] = as_type(k, axis.type)
            yield lane

    def combine(self, task: Task) -> None:
        """Add what a lane yields to the task's reductions."""
        # Lane by lane rather than by partial results: sums may differ from compiled ones in
        # their last bits.
        parts = self.values(task.body.yields)
        for (op, mem, index), part in zip(task.reductions, parts, strict=True):
            self.update(op, mem, index, part, task.span)

    def block(self, block: Block) -> list[Any]:
        """Run a block; return what it yields."""
        for s in block.stmts:
            self.stmt(s)
        return self.values(block.yields)

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Let):
            self.env[s.out] = self.op(s)
        elif isinstance(s, Load):
            self.env[s.out] = self.load(s.mem, s.index, s.span)
        elif isinstance(s, Store):
            at = self.place(s.mem, s.index, s.span)
            self.memory[s.mem][at] = self.value(s.value)
        elif isinstance(s, Atomic):
            old = self.update(s.op, s.mem, s.index, self.value(s.value), s.span)
            if s.out is not None:
                self.env[s.out] = old
        elif isinstance(s, For):
            indices = range(int(self.value(s.lo)), int(self.value(s.hi)))
            carried = self.values(s.inits)
            for k in reversed(indices) if s.reverse else indices:
                self.env[s.index] = as_type(k, s.index.type)
                # All parameters at once: one carried value may be computed from another's old
                # value.
                self.bind(s.params, carried)
                carried = self.block(s.body)
            self.bind(s.outs, carried)
        elif isinstance(s, While):
            carried = self.values(s.inits)
            while self.goes_on(s, carried):
                carried = self.block(s.body)
            self.bind(s.outs, carried)
        elif isinstance(s, If):
            self.bind(s.outs, self.block(s.then if self.value(s.cond) else s.orelse))
        elif isinstance(s, Alloca):
            self.memory[s.mem] = self.unset((max(0, int(self.value(s.count))),), s.mem.dtype)
        elif isinstance(s, InlineLLVM):
            raise BackendError(
                f"{s.name} is LLVM text, which Python cannot run",
                s.span,
                hint="run the program with ds.init(arch=ds.cpu)",
            )
        elif isinstance(s, CustomCall):
            # The primal of a custom gradient; its rule matters to the reverse pass only.
            self.bind(s.outs, self.block(s.body))
        else:
            assert isinstance(s, (Check, Print))
            self.report(s)

    def report(self, s: Check | Print) -> None:
        values = self.values(s.values)
        if isinstance(s, Print):
            print(fill(s.pieces, [x for v in values for x in np.ravel(v)]), end="")
        elif not self.value(s.cond) and s.pieces:
            raise s.kind.error(fill(s.pieces, [x for v in values for x in np.ravel(v)]), s.span)
        elif not self.value(s.cond):
            shown = ", ".join(map(str, values))
            raise s.kind.error(f"{s.message}: {shown}" if shown else s.message, s.span)

    def goes_on(self, s: While, carried: Sequence[Any]) -> bool:
        self.bind(s.params, carried)
        return bool(self.block(s.cond)[0])

    # ---- memory

    def unset(self, shape: tuple[int, ...], t: Type) -> np.ndarray:
        """Return new memory that holds nothing yet."""
        return unset(shape, t)

    def place(self, mem: Mem, index: Sequence[Value], span: Span) -> tuple[int, ...]:
        """Return the index as integers; raise AccessError where the memory has no such element."""
        at = tuple(int(i) for i in self.values(index))
        _inside(mem.name, at, self.memory[mem].shape, span)
        return at

    def load(self, mem: Mem, index: Sequence[Value], span: Span) -> Any:
        # A copy: a tensor would otherwise be a view of memory that is stored to later.
        at = self.place(mem, index, span)
        return np.array(self.memory[mem][at])[()]

    def update(self, op: str, mem: Mem, index: Sequence[Value], value: Any, span: Span) -> Any:
        """Update `mem[index] = op(mem[index], value)`; return the old value."""
        old = self.load(mem, index, span)
        at = self.place(mem, index, span)
        self.memory[mem][at] = as_type(_COMBINE[op](old, value), mem.dtype)
        return old

    # ---- ops

    def op(self, s: Let) -> Any:
        return self.applied(s, self.values(s.args))

    def applied(self, s: Let, args: Sequence[Any]) -> Any:
        """Return the result of an op for these operands."""
        name, t = s.op.name, s.out.type
        if name == "cast":
            return as_type(args[0], t)
        if name == "build":
            return as_type(np.array(args).reshape(t.shape), t)
        # NumPy would take a negative index from the end, where compiled code reads out of bounds.
        if name in ("extract", "insert"):
            at = tuple(int(i) for i in args[1 if name == "extract" else 2 :])
            _inside(s.args[0].hint or str(s.args[0].type), at, s.args[0].type.shape, s.span)
        result = as_type(s.op.ref(*args), t)
        # An elementwise op on scalars alone may represent a tensor of equal elements.
        return result if result.shape == t.shape else np.full(t.shape, result)


def _inside(name: str, at: tuple[int, ...], shape: tuple[int, ...], span: Span) -> None:
    if not all(0 <= i < n for i, n in zip(at, shape, strict=False)):
        whole = shape[: len(at)]
        raise AccessError(
            f"the index {list(at)} is outside {name}, of shape {whole}",
            span,
            hint="indices start at 0 and none counts from the end: look at where this one comes from",
        )
