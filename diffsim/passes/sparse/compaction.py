"""Compaction: loops over the active elements of sparse trees visit no others.

A loop over a sparse field is, up to here, one over all of its elements whose body asks whether the element
is active (`Task.active`), so that all passes before see a dense loop. Here it becomes one over a list of the
active cells and the elements within a cell; a serial task before it lists the cells, level by level, where
the masks have changed since:

    parallel %i in 0..4096 {                    if state[0] != state[1] { list the active cells }
      %t: u8 = load x.active[%i >> 3]           parallel %b in 0..state[2], %c in 0..8 {
      if %t != 0 { ... }                  ->      %i = listed[%b, 0] * 8 + %c
    }                                             ...
                                                }

Assumes that lanes of inactive elements have no effect, and checks it. What the lanes activate themselves is
in the list of a later loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Block,
    Check,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Stmt,
    Task,
    Value,
)
from diffsim.ir.sparse import CHANGES, COUNT, LISTED, Level, Place
from diffsim.ir.traversal import Rewriter, has_effects
from diffsim.ir.types import i32, i64, u8

_FEWEST = 4  # elements that a cell has, where cells are listed and not what is around them
_MOST = 1 << 12  # elements of a block whose lanes ask one by one whether they are active


def compact_loops(kernel: Kernel) -> Kernel:
    """Return the kernel whose loops over sparse trees visit active cells alone."""
    if not any(t.active for t in kernel.tasks):
        return kernel
    tasks: list[Task] = []
    levels: dict[Level, None] = {}
    for t in kernel.tasks:
        if t.active is None or not _is_guarded(t):
            tasks.append(t.replace(active=None))
            continue
        level = _listed_level(t.active)
        tasks += [_listing(t, level), _over_cells(t, level)]
        levels.update(dict.fromkeys(level.chain()))
    more = (m for level in levels for m in (level.mask, level.state, level.listed))
    return kernel.replace(tasks=tuple(tasks), mems=tuple(dict.fromkeys((*kernel.mems, *more))))


def _is_guarded(task: Task) -> bool:
    """Whether the lanes are those of all elements, and lanes of inactive ones have no effect."""
    place, bounds = task.active, task.bounds.yields
    assert place is not None
    whole = len(bounds) == 2 * len(place.shape) and all(
        isinstance(lo, Const) and isinstance(hi, Const) and lo.value == 0 and hi.value == n
        for lo, hi, n in zip(bounds[::2], bounds[1::2], place.shape, strict=True)
    )
    return whole and all(_is_harmless(s) for s in task.body.stmts)


def _is_harmless(s: Stmt) -> bool:
    """Whether a statement beside the condition around a body may be left out in a lane."""
    if isinstance(s, If):
        return not has_effects(s.orelse)
    return isinstance(s, (Let, Load, Check))


def _listed_level(place: Place) -> Level:
    """Return the level whose cells are listed: the innermost, or the one above where its cells are small."""
    level = place.level
    parent = level.parent
    if level.list_axis is not None or math.prod(place.factors(level)) >= _FEWEST:
        return level
    if parent is not None and math.prod(place.factors(parent)) <= _MOST:
        return parent
    return level


# ---- the loop


def _over_cells(task: Task, level: Level) -> Task:
    """Return the task with a lane for each element of the listed cells."""
    place = task.active
    assert place is not None
    b = Builder(task.span, i32, i32)
    cell = Value(i32, "cell")
    with b, b.block() as bounds:
        count = b.cast(b.load(level.state, (Const(i32, COUNT),)), i32)
    lanes: list[Value] = [cell]
    ends: list[Value] = [Const(i32, 0), count]
    env: dict[Value, Value] = {}
    with b, b.block() as start:
        for a, axis, n in zip(place.axes, task.axes, _extents(place, level), strict=True):
            t = axis.type.scalar
            index: Value | None = None
            if n > 1:
                index = Value(t, axis.hint)
                lanes.append(index)
                ends += [Const(t, 0), Const(t, n)]
            if a in level.axes:
                at = Const(i32, level.axes.index(a))
                first = b.cast(b.load(level.listed, (cell, at)), t) * n
                index = first if index is None else first + index
            env[axis] = Const(t, 0) if index is None else index
    work = _Guarded(env, level if level is place.level else None)
    body = work.block(task.body)
    return task.replace(
        axes=tuple(lanes),
        bounds=Block(bounds, tuple(ends)),
        body=Block([*start, *body.stmts], body.yields),
        active=None,
    )


def _extents(place: Place, level: Level) -> tuple[int, ...]:
    """Return how many elements a listed cell has along each axis."""
    found = list(place.factors(level))
    if level.list_axis is not None:
        k = place.axes.index(level.axes[level.list_axis])
        found[k] *= level.chunk
    return tuple(found)


class _Guarded(Rewriter):
    """Copies a body; where the lanes are those of active cells alone, without the condition around it."""

    def __init__(self, env: dict[Value, Value], known: Level | None) -> None:
        super().__init__(env)
        self.known = None if known is None or known.list_axis is not None else known.mask
        self.masks: set[Value] = set()
        self.true: set[Value] = set()
        self.depth = 0

    def block(self, b: Block) -> Block:
        self.depth += 1
        made = super().block(b)
        self.depth -= 1
        return made

    def stmt(self, s: Stmt) -> list[Stmt]:
        # Only the condition around the body loads the mask outside all branches.
        if self.depth == 1:
            if isinstance(s, Load) and s.mem is self.known:
                self.masks.add(s.out)
            elif isinstance(s, Let) and s.op.name == "ne" and s.args[0] in self.masks:
                self.true.add(s.out)
            elif isinstance(s, If) and s.cond in self.true:
                self.depth -= 1
                inner = self.block(s.then)
                self.depth += 1
                self.env.update(zip(s.outs, inner.yields, strict=True))
                return list(inner.stmts)
        return super().stmt(s)


# ---- the list


def _listing(task: Task, level: Level) -> Task:
    """Return a serial task that lists the active cells of a level, and of those above it."""
    b = Builder(task.span, i32, i32)
    with b, b.block() as stmts:
        for one in reversed(list(level.chain())):
            changes = b.load(one.state, (Const(i32, CHANGES),))
            stale = b.named("ne", changes, b.load(one.state, (Const(i32, LISTED),)))
            with b.block() as made:
                count = _list_cells(b, one)
                b.store(one.state, (Const(i32, COUNT),), b.cast(count, i64))
                b.store(one.state, (Const(i32, LISTED),), changes)
            b.add(If(stale, Block(made), Block([]), (), b.span))
    return Task((), Block([]), Block(stmts), task.span)


def _list_cells(b: Builder, level: Level) -> Value:
    """Emit the list of a level's active cells; return how many there are."""
    parent = level.parent
    if parent is None:
        return _list_within(b, level, [Const(i32, 0)] * len(level.axes), Const(i32, 0))
    of = parent

    def in_cell(k: Value, count: Value) -> Value:
        starts: list[Value] = []
        for a, n in zip(level.axes, level.shape, strict=True):
            if a not in of.axes:
                starts.append(Const(i32, 0))
                continue
            m = of.axes.index(a)
            starts.append(b.load(of.listed, (k, Const(i32, m))) * (n // of.shape[m]))
        return _list_within(b, level, starts, count)

    cells = b.cast(b.load(of.state, (Const(i32, COUNT),)), i32)
    return _count_loop(b, cells, Const(i32, 0), in_cell)


def _list_within(b: Builder, level: Level, starts: Sequence[Value], count: Value) -> Value:
    """Emit the list of the active cells within one cell of the level above, which begins at `starts`."""
    parent = level.parent
    above = {} if parent is None else dict(zip(parent.axes, parent.shape, strict=True))
    extents = [n // above.get(a, 1) for a, n in zip(level.axes, level.shape, strict=True)]

    def along(k: int, cell: tuple[Value, ...], count: Value) -> Value:
        if k == len(extents):
            return _list_cell(b, level, cell, count)
        if k == level.list_axis or extents[k] == 1:
            return along(k + 1, (*cell, starts[k]), count)
        return _count_loop(
            b,
            Const(i32, extents[k]),
            count,
            lambda c, count: along(k + 1, (*cell, starts[k] + c), count),
        )

    return along(0, (), count)


def _list_cell(b: Builder, level: Level, cell: tuple[Value, ...], count: Value) -> Value:
    """Emit the entry of a cell, if it is active; of a list one for each of its chunks."""
    found = b.load(level.mask, level.slot(cell))

    def add(place: Sequence[Value], count: Value) -> Value:
        for k, v in enumerate(place):
            b.store(level.listed, (count, Const(i32, k)), v)
        return count + 1

    at = level.list_axis
    if at is not None:
        most = Const(i32, level.shape[at])
        chunks = b.named(
            "int_div", b.named("min", found, most) + (level.chunk - 1), Const(i32, level.chunk)
        )
        return _count_loop(b, chunks, count, lambda c, n: add([*cell[:at], c, *cell[at + 1 :]], n))
    with b.block() as made:
        longer = add(cell, count)
    out = Value(i32, "count")
    is_active = b.named("ne", found, Const(u8, 0))
    b.add(If(is_active, Block(made, (longer,)), Block([], (count,)), (out,), b.span))
    return out


def _count_loop(
    b: Builder, end: Value, count: Value, body: Callable[[Value, Value], Value]
) -> Value:
    """Emit a loop over 0..end that carries a count."""
    index, carried, out = Value(i32), Value(i32, "count"), Value(i32, "count")
    with b.block() as stmts:
        after = body(index, carried)
    loop = Block(stmts, (after,))
    b.add(For(index, Const(i32, 0), end, (carried,), (count,), loop, (out,), b.span))
    return out
