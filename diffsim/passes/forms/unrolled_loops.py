"""Unrolled loops: a short loop inside a loop is written out.

    for %c in 0..n carry (...) {             for %c in 0..n carry (...) {
      %s.1 = for %j in 0..2 carry (%s) {       %t1: f32 = load x[%i, 0]
        %t1: f32 = load x[%i, %j]              %s.1: f32 = add %s, %t1
        %s.2: f32 = add %s, %t1      ->        %t2: f32 = load x[%i, 1]
        yield %s.2                             %s.2: f32 = add %s.1, %t2
      }                                        ...
    }                                        }

Then what is the same in each turn of the outer loop, as x[%i, 0] here, is loaded once and kept in a register,
and sums of all its turns are carried by it. So only loops are unrolled that access such an element.

Assumes scalar IR. Promises: the same operations in the same order. Only innermost loops are unrolled whose
bounds are constants, with few iterations of few statements. Those that carry nothing stay if they are long
enough for LLVM's vectors.
"""

from __future__ import annotations

from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Const,
    For,
    Kernel,
    Let,
    Load,
    Stmt,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import Rewriter, outs, statements

_MOST_ITERATIONS = 16
_VECTORS = 8  # iterations of a loop that carries nothing
_MOST_STATEMENTS = 192  # of one unrolled loop
_MOST_OF_TASK = 800  # of all of them


def unroll_short_loops(kernel: Kernel) -> Kernel:
    """Return the kernel with short loops inside loops written out."""
    return kernel.replace(tasks=tuple([_task(t) for t in kernel.tasks]))


def _task(task: Task) -> Task:
    loops = [s for s in statements(task.body) if isinstance(s, (For, While))]
    if not any(isinstance(x, For) for s in loops for x in statements(s.body)):
        return task
    return task.replace(body=_Unroller().block(task.body))


class _Unroller(Rewriter):
    """Copies the body of a task; `outer` is the loop around."""

    def __init__(self) -> None:
        super().__init__()
        self.outer: For | While | None = None
        self.left = _MOST_OF_TASK

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, (For, While)):
            return super().stmt(s)
        if isinstance(s, For) and self.outer is not None and _pays(s, self.outer):
            size = _iterations(s) * sum(1 for _ in statements(s.body))
            if size <= min(self.left, _MOST_STATEMENTS):
                self.left -= size
                return self.unrolled(s)
        around, self.outer = self.outer, s
        copy = super().stmt(s)
        self.outer = around
        return copy

    def unrolled(self, s: For) -> list[Stmt]:
        """Return the iterations of a loop, one after the other."""
        made: list[Stmt] = []
        carried: tuple[Value, ...] = self.values(s.inits)
        numbers = range(int(s.lo.value), int(s.hi.value))  # type: ignore[attr-defined]
        for k in reversed(numbers) if s.reverse else numbers:
            self.env[s.index] = Const(s.index.type, k)
            self.env.update(zip(s.params, carried, strict=True))
            body = self.block(s.body)
            made += body.stmts
            carried = body.yields
        self.env.update(zip(s.outs, carried, strict=True))
        return made


def _pays(s: For, outer: For | While) -> bool:
    """Whether an innermost loop is short, and accesses what all turns of the loop around it do."""
    if any(isinstance(x, (For, While, Alloca)) for x in statements(s.body)):
        return False
    count = _iterations(s)
    if not 0 < count <= (_MOST_ITERATIONS if s.params else _VECTORS - 1):
        return False
    return _has_common_elements(s, outer)


def _has_common_elements(s: For, outer: For | While) -> bool:
    """Whether an inner loop accesses an element of its own iterations that is the same in all turns."""
    own = {v for x in statements(s.body) for v in outs(x)}
    varies = {*outer.params, *s.params, *(v for x in statements(outer.body) for v in outs(x))} - own
    if isinstance(outer, For):
        varies.add(outer.index)
    moves = {s.index}
    for x in statements(s.body):
        if not isinstance(x, Let):
            varies.update(outs(x))  # what is loaded, or a branch yields, may be anything
        elif not varies.isdisjoint(x.args):
            varies.add(x.out)
        elif not moves.isdisjoint(x.args):
            moves.add(x.out)
    accesses = (x for x in statements(s.body) if isinstance(x, (Load, Atomic)))
    return any(varies.isdisjoint(x.index) and not moves.isdisjoint(x.index) for x in accesses)


def _iterations(s: For) -> int:
    """Return how many iterations a loop has; -1: it is not known."""
    if not isinstance(s.lo, Const) or not isinstance(s.hi, Const):
        return -1
    return max(0, int(s.hi.value) - int(s.lo.value))
