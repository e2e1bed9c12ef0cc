"""Windows with clamped bounds: a loop around a lane's index becomes one over distances from it.

    for %l in max(0, %j - 3)..min(n, %j + 4) {        for %d in -3..4 {
      ... x[%k, %l] ...                                 %l = add %j, %d
    }                                          ->       if 0 <= %l and %l < n {
                                                          ... x[%k, %l] ...
                                                        }
                                                      }

Neighbouring lanes along the last axis are at different %l in one iteration of either loop. In the first one
lanes at a face have begun elsewhere, so what the others access need not be side by side; in the second one it
is (j + d), and no two lanes add to one element at a time.

Assumes any kernel. Promises: each lane runs the same iterations in the same order, with the same values.
"""

from __future__ import annotations

from typing import NamedTuple

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Const,
    Dim,
    For,
    If,
    Kernel,
    Let,
    Load,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import Rewriter, statements
from diffsim.passes.analysis.affine import Offset, faces_of, offset_of, task_definitions

_WIDEST = 256
"""Iterations of a window: most of a wider one may be cut off in every lane."""
_FARTHEST = 1 << 30
"""Lanes and distances from 0."""


class Window(NamedTuple):
    """A loop's distances from a lane's index, first..end, and what cuts its indices off, least..behind."""

    axis: Value
    first: int
    end: int
    least: tuple[Value, ...]
    behind: tuple[Value, ...]


def relative_windows(kernel: Kernel) -> Kernel:
    """Return the kernel with windows around its lanes' indices as loops over distances."""
    tasks = tuple([_task(t) for t in kernel.tasks])
    same = all(a is b for a, b in zip(tasks, kernel.tasks, strict=True))
    return kernel if same else kernel.replace(tasks=tasks)


def _task(task: Task) -> Task:
    # Of a sparse tree active elements alone have lanes, which are no neighbours.
    if not task.axes or task.active is not None:
        return task
    finder = _Finder(task)
    found = {s: w for s in statements(task.body) if isinstance(s, For) and (w := finder.window(s))}
    return task.replace(body=_Relative(task, found).block(task.body)) if found else task


class _Finder:
    """Finds the windows of a task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.defs = task_definitions(task)
        self.faces = faces_of(task) or []

    def window(self, s: For) -> Window | None:
        """Return the window that a loop goes over; None: it is another loop."""
        least, behind = self.parts("max", s.lo), self.parts("min", s.hi)
        for axis, first, last in zip(
            self.task.axes, self.faces[::2], self.faces[1::2], strict=False
        ):
            begin, end = self.distance(axis, least), self.distance(axis, behind)
            if begin is not None and end is not None and s.index.type.scalar is axis.type.scalar:
                limits = self.others(axis, least), self.others(axis, behind)
                window = Window(axis, begin, end, *limits)
                return window if _is_short(window, first, last) and not _keeps(s) else None
        return None

    def parts(self, name: str, v: Value) -> list[Value]:
        """Return what a bound is the greatest or the least of."""
        let = self.defs.get(v)
        if let is None or let.op.name != name:
            return [v]
        return [x for a in let.args for x in self.parts(name, a)]

    def distance(self, axis: Value, parts: list[Value]) -> int | None:
        """Return how far from a lane's index its loop begins or ends; None: it may be elsewhere."""
        found = [offset_of(v, self.defs) for v in parts]
        own = [shift for base, shift in found if base is axis]
        return own[0] if len(own) == 1 else None

    def others(self, axis: Value, parts: list[Value]) -> tuple[Value, ...]:
        """Return what cuts a window off."""
        return tuple([v for v in parts if offset_of(v, self.defs)[0] is not axis])


def _is_short(w: Window, first: Offset, behind: Offset) -> bool:
    """Whether a window is short, and no sum of a lane's index and a distance wraps around."""
    # No array is as long as numbers of 32 bits are many, less this; an argument may be any number.
    return (
        0 < w.end - w.first <= _WIDEST
        and first[0] is None
        and (behind[0] is None or isinstance(behind[0], Dim))
        and max(abs(n) for n in (first[1], behind[1], w.first, w.end)) <= _FARTHEST
    )


def _keeps(s: For) -> bool:
    """Whether a loop saves values for its adjoint, in places that follow from the number of the iteration."""
    return any(
        isinstance(x, Alloca) or (isinstance(x, (Load, Store, Atomic)) and x.mem.kind == "scratch")
        for x in statements(s.body)
    )


class _Relative(Rewriter):
    """Copies the body of a task, with these windows as loops over distances."""

    def __init__(self, task: Task, found: dict[For, Window]) -> None:
        super().__init__()
        self.found = found
        self.builder = Builder(task.span)
        self.distances: dict[tuple[Value, Value], Value] = {}
        """How far from an axis each index of a window is."""

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, For) and s in self.found:
            return [self.relative(s, self.found[s])]
        if isinstance(s, Let) and s.op.name == "sub":
            # The same in all lanes.
            place, axis = self.values(s.args)
            distance = self.distances.get((place, axis))
            if distance is not None:
                self.env[s.out] = distance
                return []
        return [self.copy(s)]

    def relative(self, s: For, w: Window) -> For:
        """Return the loop over distances."""
        b, t = self.builder, s.index.type
        b.span = s.span
        inits, params = self.values(s.inits), self.fresh_all(s.params)
        distance = Value(t, "d")
        with b, b.block() as made:
            self.env[s.index] = place = b.named("add", w.axis, distance)
            self.distances[place, w.axis] = distance
            tests = [place >= self.value(v) for v in w.least]
            tests += [place < self.value(v) for v in w.behind]
            inside: Value | None = None
            for test in tests:
                inside = test if inside is None else b.named("and", inside, test)
        body = self.block(s.body)
        if inside is None:
            body = Block([*made, *body.stmts], body.yields)
        else:
            # A lane whose window has ended goes on with what it carries.
            nexts = tuple([Value(v.type, v.hint) for v in s.params])
            branch = If(inside, body, Block([], params), nexts, s.span)
            body = Block([*made, branch], nexts)
        first, end = Const(t, w.first), Const(t, w.end)
        return For(
            distance, first, end, params, inits, body, self.fresh_all(s.outs), s.span, s.reverse
        )
