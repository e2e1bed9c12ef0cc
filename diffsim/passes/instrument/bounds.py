"""Bounds checks, for `debug=True`: every access checks its index first.

Assumes any kernel. Promises: an index outside its memory is reported with the user's line and never
reaches memory (the access goes to element 0 instead, and the launch raises afterwards).
"""

from __future__ import annotations

from diffsim.errors import Span
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Check,
    Const,
    Dim,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Value,
)
from diffsim.ir.traversal import Rewriter
from diffsim.ir.types import an, i64


def check_bounds(kernel: Kernel) -> Kernel:
    """Return the kernel with a Check before each access to a field or array."""
    work = _Checker(kernel)
    tasks = []
    for t in kernel.tasks:
        bounds = work.block(t.bounds)
        body = work.block(t.body)
        tasks.append(t.replace(bounds=bounds, body=body))
    return kernel.replace(tasks=tuple(tasks))


class _Checker(Rewriter):
    """Puts a Check before each access, and clamps its index."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.builder = Builder(kernel.span)

    # Statements are kept, not copied, so values keep their identity.
    def fresh(self, v: Value) -> Value:
        return v

    def block(self, b: Block) -> Block:
        out: list[Stmt] = []
        for s in b.stmts:
            if isinstance(s, (Load, Store, Atomic)) and s.mem.kind in ("field", "array"):
                out += self.checked(s)
            else:
                # Local tensors are scalarized to chains of selects later, where an index outside would
                # pick some component.
                if isinstance(s, Let) and s.op.name in ("extract", "insert"):
                    out += self.element(s)
                out.append(self.copy(s))
        return Block(out, b.yields)

    def checked(self, s: Load | Store | Atomic) -> list[Stmt]:
        with self.builder.block() as made:
            # Indices beyond the rank select a component, whose bounds are those of the element's shape.
            sizes = [*self.shape(s.mem), *(Const(i64, n) for n in s.mem.dtype.shape)]
            what = f"{s.mem.name}, which has shape {_tuple(s.mem.rank)}"
            if any(s.mem.origin):
                what += f" and first index {s.mem.origin}"
            if len(s.index) > s.mem.rank:
                what += f" and elements of shape {s.mem.dtype.shape}"
            place = self.check(s.index, sizes, what, s.mem.rank, s.span, s.mem.origin)
        return [*made, s.replace(index=place)]

    def element(self, s: Let) -> list[Stmt]:
        """Emit the check of a run-time index into a local vector or matrix."""
        t = s.args[0].type
        index = s.args[1:] if s.op.name == "extract" else s.args[2:]
        with self.builder.block() as made:
            self.check(index, [Const(i64, n) for n in t.shape], an(t), 0, s.span)
        return made

    def shape(self, mem: Mem) -> list[Value]:
        if mem.shape is None:
            return [Dim(i64, mem, k) for k in range(mem.rank)]
        return [Const(i64, n) for n in mem.shape]

    def check(
        self,
        index: tuple[Value, ...],
        sizes: list[Value],
        what: str,
        shown: int,
        span: Span,
        origin: tuple[int, ...] = (),
    ) -> tuple[Value, ...]:
        """Emit a Check of the indices, and return them with those outside set to 0.

        Args:
            index: the indices.
            sizes: for each of them the number it must stay below.
            what: what is indexed, with a place for each of the sizes that the message shows.
            shown: how many sizes these are.
            span: the line to report.
            origin: the program's first index along each axis, if it is not 0.
        """
        b = self.builder
        b.span = span
        inside: Value | None = None
        place = list(index)
        for k, (i, n) in enumerate(zip(index, sizes, strict=False)):
            # The frontend has refused constants outside a known shape.
            if isinstance(i, Const) and isinstance(n, Const):
                continue
            # Compared in 64 bits: sizes may exceed the index's own type.
            wide = b.cast(i, i64)
            ok = b.named("and", b.named("ge", wide, Const(i64, 0)), b.named("lt", wide, n))
            inside = ok if inside is None else b.named("and", inside, ok)
            # The launch runs on after a failed check, so the access must be harmless.
            place[k] = b.named("select", ok, i, b.const(0, i.type))
        if inside is not None:
            message = f"index {_tuple(len(index)) if len(index) > 1 else '{}'} is outside {what}"
            firsts = (*origin, *(0,) * (len(index) - len(origin)))
            written = [b.named("add", i, o) if o else i for i, o in zip(index, firsts, strict=True)]
            b.add(Check(inside, message, (*written, *sizes[:shown]), span))
        return tuple(place)


def _tuple(n: int) -> str:
    return "({},)" if n == 1 else f"({', '.join(['{}'] * n)})"
