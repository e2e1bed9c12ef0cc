"""Unrolled loops: a short loop inside a loop is written out.

    for %c in 0..n carry (...) {             for %c in 0..n carry (...) {
      %s.1 = for %j in 0..2 carry (%s) {       %t1: f32 = load x[%i, 0]
        %t1: f32 = load x[%i, %j]              %s.1: f32 = add %s, %t1
        %s.2: f32 = add %s, %t1      ->        %t2: f32 = load x[%i, 1]
        yield %s.2                             %s.2: f32 = add %s.1, %t2
      }                                        ...
    }                                        }

Then what is the same in each turn of the outer loop, as x[%i, 0] here, is loaded once and kept in a register,
and sums of all its turns are carried by it. So only loops are unrolled that access such an element, or that
carry a number along a row which an index tells, p[%user, %d]: the neighbours are loaded at once then
(`vectors/neighbours.py`). Of a long row, up to 16 iterations at a time are written out, in a loop.

Assumes scalar IR. Promises: the same operations in the same order. Only innermost loops are unrolled whose
bounds are constants, with few iterations of few statements. Those that carry nothing stay if they are long
enough for LLVM's vectors.
"""

from __future__ import annotations

from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Const,
    For,
    Kernel,
    Let,
    Load,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.ops.table import add, mul
from diffsim.ir.traversal import Rewriter, outs, statements, uses
from diffsim.passes.analysis.affine import affine_forms
from diffsim.passes.analysis.divergence import divergent_values

_MOST_ITERATIONS = 16
_VECTORS = 8  # iterations of a loop that carries nothing
_MOST_STATEMENTS = 192  # of one unrolled loop
_MOST_OF_TASK = 800  # of all of them


def unroll_short_loops(kernel: Kernel) -> Kernel:
    """Return the kernel with short loops inside loops written out."""
    return kernel.replace(tasks=tuple([_task(t) for t in kernel.tasks]))


def _task(task: Task) -> Task:
    if not any(isinstance(s, For) for s in statements(task.body)):
        return task
    return task.replace(body=_Unroller(task).block(task.body))


class _Unroller(Rewriter):
    """Copies the body of a task; `outer` is the loop around."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.outer: For | While | None = None
        self.left = _MOST_OF_TASK

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, (For, While)):
            return super().stmt(s)
        if isinstance(s, For) and not any(
            isinstance(x, (For, While, Alloca)) for x in statements(s.body)
        ):
            count = _iterations(s)
            if self.pays(s) and self.has_room(s, count):
                return self.unrolled(s, self.numbers(s), self.values(s.inits))
            width = _strip(count)
            if width and self.has_rows(s) and self.has_room(s, width):
                return [self.in_strips(s, width)]
        around, self.outer = self.outer, s
        copy = super().stmt(s)
        self.outer = around
        return copy

    def pays(self, s: For) -> bool:
        """Whether a short loop has elements that are the same in all turns of the loop around, or rows."""
        count = _iterations(s)
        if not 0 < count <= _MOST_ITERATIONS:
            return False
        if self.has_rows(s):
            return True
        few = count < _VECTORS or bool(s.params)
        return few and self.outer is not None and _has_common_elements(s, self.outer)

    def has_rows(self, s: For) -> bool:
        # One that carries nothing may be vectors of its own iterations, which are neighbours in memory.
        carries = any(y is not p for y, p in zip(s.body.yields, s.params, strict=True))
        return carries and bool(self.task.axes) and _has_rows(s, self.task)

    def has_room(self, s: For, count: int) -> bool:
        """Whether so many iterations are few statements; takes them from what is left."""
        size = count * sum(1 for _ in statements(s.body))
        if size > min(self.left, _MOST_STATEMENTS):
            return False
        self.left -= size
        return True

    def numbers(self, s: For) -> list[Value]:
        """Return the indices of a loop's iterations."""
        found = range(int(s.lo.value), int(s.hi.value))  # type: ignore[attr-defined]
        return [Const(s.index.type, k) for k in (reversed(found) if s.reverse else found)]

    def unrolled(self, s: For, numbers: list[Value], carried: tuple[Value, ...]) -> list[Stmt]:
        """Return iterations of a loop, one after the other."""
        made: list[Stmt] = []
        for k in numbers:
            self.env[s.index] = k
            self.env.update(zip(s.params, carried, strict=True))
            body = self.block(s.body)
            made += body.stmts
            carried = body.yields
        self.env.update(zip(s.outs, carried, strict=True))
        return made

    def in_strips(self, s: For, width: int) -> For:
        """Return a loop over so many iterations at a time, which are written out."""
        t = s.index.type
        strip, first, begin = Value(t), Value(t), Value(t, s.index.hint)
        made: list[Stmt] = [
            Let(first, mul, (strip, Const(t, width)), s.span),
            Let(begin, add, (first, s.lo), s.span),
        ]
        numbers: list[Value] = []
        for k in reversed(range(width)) if s.reverse else range(width):
            numbers.append(Value(t))
            made.append(Let(numbers[-1], add, (begin, Const(t, k)), s.span))
        inits = self.values(s.inits)
        params = self.fresh_all(s.params)
        made += self.unrolled(s, numbers, params)
        carried = self.values(s.outs)
        lo, hi = Const(t, 0), Const(t, _iterations(s) // width)
        body = Block(made, carried)
        return For(strip, lo, hi, params, inits, body, self.fresh_all(s.outs), s.span, s.reverse)


def _strip(count: int) -> int:
    """Return how many iterations of a long loop are written out at a time; 0: none."""
    widths = range(_MOST_ITERATIONS, _VECTORS - 1, -1)
    return next((w for w in widths if count > w and count % w == 0), 0)


def _has_rows(s: For, task: Task) -> bool:
    """Whether a loop goes along a row that an index of the lane tells: `x[index[i], k]`.

    A row that neighbouring lanes share is none: each of its numbers is loaded once for all of them.
    """
    forms, divergent = affine_forms(task), divergent_values(task)
    inner = list(statements(s.body))
    written = {x.mem for x in inner if isinstance(x, (Store, Atomic))}
    varies = {s.index, *s.params}
    for x in inner:
        fixed = isinstance(x, Let) or (isinstance(x, Load) and x.mem not in written)
        if not fixed or not varies.isdisjoint(uses(x)):
            varies.update(outs(x))
    return any(
        isinstance(x, (Load, Store, Atomic))
        and x.index[-1:] == (s.index,)
        and varies.isdisjoint(x.index[:-1])
        and any(forms.form(i) is None and i in divergent for i in x.index[:-1])
        for x in inner
    )


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
