"""Replaces tensors by their scalars, and ops that are formulas by the ops in the formula.

Assumes: any kernel. Promises: every value is a scalar, every memory access reaches one scalar, every op
is an instruction, an intrinsic, a mathematical function or lowered by name.
Autodiff runs before this pass, on tensors, so that programs and adjoints stay short while people read
them; passes after it work on scalars alone.

    %r: vec2 f32 = sub %a, %b     ->     %r.0: f32 = sub %a.0, %b.0
                                         %r.1: f32 = sub %a.1, %b.1
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence

import numpy as np

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    For,
    If,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Print,
    Stmt,
    Store,
    Value,
    While,
)
from diffsim.ir.op import Op
from diffsim.ir.types import TensorType, i32, size_of


class _Scalarizer:
    """Rewrites the statements of one kernel; `env` maps each value to its scalars in row order."""

    def __init__(self, kernel: Kernel, functions: Container[str] | None) -> None:
        self.builder = Builder(kernel.span)
        self.builder.functions = functions
        self.env: dict[Value, list[Value]] = {}
        self.args: list[Arg] = []
        for arg in kernel.args:
            made = []
            for k in range(size_of(arg.type)):
                hint = arg.hint if not arg.type.shape else f"{arg.hint}.{k}"
                made.append(Arg(arg.type.scalar, hint, len(self.args) + k))
            self.args.extend(made)
            self.env[arg] = list(made)

    # ---- values

    def parts(self, v: Value) -> list[Value]:
        """Return the scalars of a value in row order."""
        # A value that is not in `env` is a leaf, its own scalar.
        found = self.env.get(v)
        if found is not None:
            return found
        if isinstance(v, Const):
            n = size_of(v.type)
            # A tensor constant has one number for all components.
            return [v] if not v.type.shape else [Const(v.type.scalar, v.value)] * n
        return [v]  # Dim, Seed

    def one(self, v: Value) -> Value:
        return self.parts(v)[0]

    def flat(self, vs: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(p for v in vs for p in self.parts(v))

    def bind(self, v: Value) -> list[Value]:
        """Bind new scalars to a value."""
        if not v.type.shape:
            made = [Value(v.type, v.hint)]
        else:
            made = [
                Value(v.type.scalar, f"{v.hint}.{k}" if v.hint else "")
                for k in range(size_of(v.type))
            ]
        self.env[v] = made
        return made

    def bind_all(self, vs: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(p for v in vs for p in self.bind(v))

    # ---- statements

    def block(self, block: Block) -> Block:
        with self.builder.block() as stmts:
            for s in block.stmts:
                self.stmt(s)
        return Block(stmts, self.flat(block.yields))

    def stmt(self, s: Stmt) -> None:
        b = self.builder
        b.span = s.span
        if isinstance(s, Let):
            self.env[s.out] = self.let(s)
            for k, part in enumerate(self.env[s.out]):
                if not part.hint and s.out.hint and not isinstance(part, Const):
                    part.hint = s.out.hint if not s.out.type.shape else f"{s.out.hint}.{k}"
        elif isinstance(s, (Load, Store, Atomic)):
            self.access(s)
        elif isinstance(s, For):
            lo, hi, inits = self.one(s.lo), self.one(s.hi), self.flat(s.inits)
            (index,) = self.bind(s.index)
            params = self.bind_all(s.params)
            body = self.block(s.body)
            outs = self.bind_all(s.outs)
            b.add(For(index, lo, hi, params, inits, body, outs, s.span, s.reverse))
        elif isinstance(s, While):
            inits = self.flat(s.inits)
            params = self.bind_all(s.params)
            test, body = self.block(s.cond), self.block(s.body)
            b.add(While(params, inits, test, body, self.bind_all(s.outs), s.span))
        elif isinstance(s, If):
            cond = self.one(s.cond)
            then, orelse = self.block(s.then), self.block(s.orelse)
            b.add(If(cond, then, orelse, self.bind_all(s.outs), s.span))
        elif isinstance(s, InlineLLVM):
            args = self.flat(s.args)
            b.add(InlineLLVM(self.bind_all(s.outs), s.name, s.names, args, s.text, s.span))
        elif isinstance(s, Alloca):
            b.add(Alloca(s.mem, self.one(s.count), s.span))
        elif isinstance(s, Print):
            b.add(Print(self.flat(s.order), s.pieces, self.flat(s.values), s.span))
        else:
            assert isinstance(s, Check)
            values = self.flat(s.values)
            b.add(Check(self.one(s.cond), s.message, values, s.span, s.pieces, s.kind))

    def access(self, s: Load | Store | Atomic) -> None:
        """Emit an access as one for each component."""
        b = self.builder
        index = self.flat(s.index)
        t = s.out.type if isinstance(s, Load) else s.value.type
        places = [index]
        # A tensor access touches its components in row order, each with constant indices after the
        # element's.
        if t.shape:
            places = [
                (*index, *(Const(i32, k) for k in position)) for position in np.ndindex(*t.shape)
            ]
        if isinstance(s, Load):
            outs = self.bind(s.out)
            for out, place in zip(outs, places, strict=True):
                b.add(Load(out, s.mem, place, s.span, s.origin))
            return
        values = self.parts(s.value)
        if isinstance(s, Store):
            for v, place in zip(values, places, strict=True):
                b.add(Store(s.mem, place, v, s.span))
            return
        outs2: Sequence[Value | None] = [None] * len(places) if s.out is None else self.bind(s.out)
        for out2, v, place in zip(outs2, values, places, strict=True):
            b.add(Atomic(out2, s.op, s.mem, place, v, s.span, s.exclusive, s.origin))

    # ---- ops

    def let(self, s: Let) -> list[Value]:
        """Return the scalars of an op's result."""
        op, args = s.op, s.args
        # Ops with a type rule of their own rearrange components; all others act on each component
        # alone.
        if op.infer_type is not None:
            return self.structure(op, s)
        parts = [self.parts(a) for a in args]
        n = size_of(s.out.type)
        made = []
        for k in range(n):
            # A scalar beside tensors is broadcast.
            scalars = [p[k] if len(p) > 1 or n == 1 else p[0] for p in parts]
            made.append(self.scalar_op(op, scalars, s.out))
        return made

    def scalar_op(self, op: Op, args: list[Value], out: Value) -> Value:
        b = self.builder
        if op.name == "cast":
            return b.cast(args[0], out.type.scalar)
        # Operands were promoted when the op was emitted.
        return b.typed_op(op, tuple(args), out.type.scalar)

    def structure(self, op: Op, s: Let) -> list[Value]:
        """Return the scalars of an op that rearranges or combines components."""
        b, args = self.builder, s.args
        first = self.parts(args[0])
        shape = args[0].type.shape
        with b:
            if op.name == "build":
                return [self.one(a) for a in args]
            if op.name == "broadcast":
                return first * size_of(s.out.type)
            # Left to right: float addition is not associative, so the order is part of the result.
            if op.name == "sum":
                total = first[0]
                for x in first[1:]:
                    total = total + x
                return [total]
            if op.name == "transpose":
                n, m = shape
                return [first[i * m + j] for j in range(m) for i in range(n)]
            if op.name == "extract":
                return [self.pick(first, args[0].type, args[1:])]
            if op.name == "insert":
                return self.replace(first, args[0].type, self.one(args[1]), args[2:])
            second = self.parts(args[1])
            if op.name == "outer":
                return [x * y for x, y in itertools.product(first, second)]
            assert op.name == "matmul", op.name
            n, m = shape
            columns = args[1].type.shape[1] if len(args[1].type.shape) == 2 else 1
            made = []
            for i in range(n):
                for j in range(columns):
                    # Starting from the first product, not from 0, saves an addition, and keeps a result
                    # of -0.0.
                    total = first[i * m] * second[j]
                    for k in range(1, m):
                        total = total + first[i * m + k] * second[k * columns + j]
                    made.append(total)
            return made

    def position(self, t: object, index: Sequence[Value]) -> Value | int:
        """Return the position of an element in row order: a number if the indices are, else a value."""
        assert isinstance(t, TensorType)
        scalars = [self.one(i) for i in index]
        # Nearly all indices into tensors are constants, and cost nothing then: components are values by
        # now.
        if all(isinstance(i, Const) for i in scalars):
            return int(np.ravel_multi_index([int(i.value) for i in scalars], t.shape))  # type: ignore[attr-defined]
        flat: Value = scalars[0]
        for i, n in zip(scalars[1:], t.shape[1:], strict=True):
            flat = flat * n + i
        return flat

    def pick(self, parts: list[Value], t: object, index: Sequence[Value]) -> Value:
        at = self.position(t, index)
        if isinstance(at, int):
            return parts[at]
        # A chain of selects: values in registers have no address that could be indexed at run time.
        found = parts[0]
        for k, part in enumerate(parts[1:], 1):
            found = self.builder.named("select", self.builder.named("eq", at, k), part, found)
        return found

    def replace(
        self, parts: list[Value], t: object, new: Value, index: Sequence[Value]
    ) -> list[Value]:
        at = self.position(t, index)
        if isinstance(at, int):
            return [new if k == at else p for k, p in enumerate(parts)]
        b = self.builder
        return [b.named("select", b.named("eq", at, k), new, p) for k, p in enumerate(parts)]


def scalarize(kernel: Kernel, *, functions: Container[str] | None = ()) -> Kernel:
    """Return the kernel on scalars.

    Args:
        kernel: any.
        functions: the mathematical functions that the target has, of those whose rows have a formula too;
            None: ops on scalars stay as they are.
    """
    work = _Scalarizer(kernel, functions)
    tasks = []
    for task in kernel.tasks:
        bounds = work.block(task.bounds)
        axes = work.bind_all(task.axes)
        tasks.append(task.replace(axes=axes, bounds=bounds, body=work.block(task.body)))
    return kernel.replace(args=tuple(work.args), tasks=tuple(tasks))
