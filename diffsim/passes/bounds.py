"""With `debug=True`: every access checks its index first.

Assumes any kernel. Promises: an index outside of its memory is reported with the user's line and never
reaches memory (the access goes to element 0 instead, and the launch raises afterwards).
"""

from __future__ import annotations

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Check,
    Const,
    Dim,
    Kernel,
    Load,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.types import i64
from diffsim.ir.walk import Copier


def check_bounds(kernel: Kernel) -> Kernel:
    """The kernel with a Check before each access to a field or array."""
    work = _Checker(kernel)
    tasks = []
    for t in kernel.tasks:
        bounds = work.block(t.bounds)
        body = work.block(t.body)
        tasks.append(Task(t.axes, bounds, body, t.span, t.reductions))
    return Kernel(kernel.name, kernel.args, kernel.mems, tuple(tasks), kernel.span, kernel.result)


class _Checker(Copier):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.builder = Builder(kernel.span)

    def fresh(self, v: Value) -> Value:
        return v

    def block(self, b: Block) -> Block:
        out: list[Stmt] = []
        for s in b.stmts:
            if isinstance(s, (Load, Store, Atomic)) and s.mem.kind in ("field", "array"):
                out += self.checked(s)
            else:
                out.append(self.copy(s))
        return Block(out, b.yields)

    def checked(self, s: Load | Store | Atomic) -> list[Stmt]:
        b = self.builder
        b.span = s.span
        with b.block() as made:
            inside: Value | None = None
            index = list(s.index)
            for k in range(s.mem.rank):
                i = s.index[k]
                n: Value = Dim(i64, s.mem, k) if s.mem.shape is None else Const(i64, s.mem.shape[k])
                if isinstance(i, Const) and isinstance(n, Const):
                    continue
                wide = b.cast(i, i64)
                ok = b.named("and", b.named("ge", wide, Const(i64, 0)), b.named("lt", wide, n))
                inside = ok if inside is None else b.named("and", inside, ok)
                index[k] = b.named("select", ok, i, b.const(0, i.type))
            if inside is not None:
                message = f"index {{}} is outside of {s.mem.name}"
                shape = s.mem.shape
                if shape is not None:
                    message += f", which has shape {shape}"
                b.add(Check(inside, message, s.index[: s.mem.rank], s.span))
        place = tuple(index)
        if isinstance(s, Load):
            return [*made, Load(s.out, s.mem, place, s.span, s.origin)]
        if isinstance(s, Store):
            return [*made, Store(s.mem, place, s.value, s.span)]
        return [
            *made,
            Atomic(s.out, s.op, s.mem, place, s.value, s.span, s.exclusive, s.origin),
        ]
