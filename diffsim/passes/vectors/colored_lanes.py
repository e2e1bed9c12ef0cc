"""Lanes of one colour: a task that works on every other cell of a row goes through these cells alone.

    parallel %i in 1..n, %j in 1..n {             parallel %i in 1..n, %k in 0..(n / 2) {
      if (%i + %j) % 2 == $c {             ->       %j = 1 + ($c - %i - 1) % 2 + 2 * %k
        store x[%i, %j], ...                        if %j < n {
                                                      store x[%i, %j], ...

Sweeps of Gauss and Seidel in colours are such tasks, and so are their adjoints. Vectors of neighbours would
need a store of some lanes, which takes AMD's processors twelve cycles before AVX-512
(`backends/simd/masked_accesses.py`): without vectors, and without asking each lane, they take half the time.

For lanes that do nothing unless an affine form of their indices has a remainder modulo a power of two, which
is known before the row starts. Not where a lane writes other elements than its own along the row: the next
lane would wait for them.

Runs after `vectorize`, on tasks that are no vectors: what it makes of indices has no affine form.
"""

from __future__ import annotations

from typing import NamedTuple

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import LEAVES, Atomic, Block, Const, If, Let, Load, Stmt, Store, Task, Value
from diffsim.ir.op import TABLE
from diffsim.ir.traversal import outs, statements, uses
from diffsim.ir.types import ScalarType
from diffsim.passes.analysis.affine import (
    AffineForm,
    Definitions,
    affine_forms,
    faces_of,
    offset_of,
    task_definitions,
)
from diffsim.passes.analysis.guarded_updates import emit_faces

_MOST_COLORS = 8


class _Color(NamedTuple):
    """The lanes at work: `step * lane + sum(rest)` is `color` modulo `period`, `step` being 1 or -1."""

    step: int
    rest: AffineForm
    color: Value
    period: int


def with_lanes_of_one_color(task: Task) -> Task:
    """Return the task with one lane for each cell of its colour, if it has one."""
    if not _may_change(task):
        return task
    branch = task.body.stmts[-1]
    if not isinstance(branch, If) or branch.outs or branch.orelse.stmts:
        return task
    color = _color_of(branch.cond, task)
    if color is None or not _writes_its_own(branch, task):
        return task
    return _Colored(task, branch, color).task()


def _may_change(task: Task) -> bool:
    """Whether the lanes of a task may be others, all but the last statement being for that alone."""
    has_schedule = (
        task.simd is not None
        or task.reductions
        or task.privatized
        or task.order
        or task.appends
        or task.active is not None
    )
    # Chunks of two tasks may be counted in rows of the first axis, whose lanes stay.
    in_rows = len(task.axes) > 1 or (task.lag is None and task.reach is None)
    return bool(
        task.axes
        and task.body.stmts
        and not has_schedule
        and in_rows
        and faces_of(task) is not None
        and all(isinstance(s, (Let, Load)) for s in task.body.stmts[:-1])
    )


def _color_of(cond: Value, task: Task) -> _Color | None:
    """Return which lanes a condition is about."""
    defs, lane = task_definitions(task), task.axes[-1]
    let = defs.get(cond)
    if let is None or let.op.name not in ("eq", "ne"):
        return None
    of, color = let.args
    made = defs.get(of)
    if made is None or made.op.name not in ("mod", "bit_and"):
        return None
    v, n = made.args
    if not isinstance(n, Const) or v.type.shape or v.type.scalar.kind != "i":
        return None
    period = int(n.value) + (made.op.name == "bit_and")
    form = affine_forms(task).form(v)
    if not 2 <= period <= _MOST_COLORS or period & (period - 1) or form is None:
        return None
    if let.op.name == "ne":
        # One of two remainders, and not the other.
        if period != 2 or not isinstance(color, Const) or color.value not in (0, 1):
            return None
        color = Const(color.type, 1 - int(color.value))
    step = form.get(lane, 0)
    rest = {x: k for x, k in form.items() if x is not lane}
    # Numbers that wrap around keep their remainder; those of a narrower type would have lost bits before.
    if step not in (1, -1) or not _is_known(color, task.axes[:-1], defs):
        return None
    return _Color(step, rest, color, period)


def _is_known(v: Value, axes: tuple[Value, ...], defs: Definitions) -> bool:
    """Whether a number is made of what is known before a row starts."""
    let = defs.get(v)
    if let is None:
        return isinstance(v, LEAVES) or v in axes
    return all(_is_known(a, axes, defs) for a in let.args)


def _writes_its_own(branch: If, task: Task) -> bool:
    """Whether all that a lane writes lies at its own index, or at none, along the row."""
    defs, lane = task_definitions(task), task.axes[-1]
    for s in statements(branch.then):
        if isinstance(s, (Store, Atomic)):
            bases = [offset_of(i, defs) for i in s.index]
            if (isinstance(s, Atomic) and not s.exclusive) or (lane, 0) not in bases:
                return False
    return True


class _Colored:
    """Makes the task of the lanes of one colour."""

    def __init__(self, task: Task, branch: If, color: _Color) -> None:
        self.old, self.branch, self.color = task, branch, color
        self.lane = task.axes[-1]
        self.builder = Builder(branch.span)
        # What does not depend on the lane comes first: the colour may be made of it.
        later: set[Value] = {self.lane}
        self.first: list[Stmt] = []
        self.inside: list[Stmt] = []
        for s in task.body.stmts[:-1]:
            if isinstance(s, Load) or not later.isdisjoint(uses(s)):
                later.update(outs(s))
                self.inside.append(s)
            else:
                self.first.append(s)

    def task(self) -> Task:
        b, t = self.builder, self.lane.type.scalar
        number = Value(self.lane.type, self.lane.hint)
        with b, b.block() as bounds:
            b.stmts.extend(self.old.bounds.stmts)
            lo, hi = self.ends()
            period = self.color.period
            length = b.named("max", hi, lo) - lo + (period - 1)
            count = b.named("int_shr", length, b.const(period.bit_length() - 1, length.type))
            yields = (*self.old.bounds.yields[:-2], b.const(0, t), b.cast(count, t))
        with b, b.block() as body:
            b.stmts.extend(self.first)
            self.emit_lane(number, t)
            inside = Block([*self.inside, *self.branch.then.stmts])
            b.add(If(self.is_at_work(), inside, Block([]), (), b.span))
        return self.old.replace(
            axes=(*self.old.axes[:-1], number), bounds=Block(bounds, yields), body=Block(body)
        )

    def ends(self) -> tuple[Value, Value]:
        faces = faces_of(self.old)
        assert faces is not None
        return emit_faces(self.builder, self.lane, *faces[-2:])

    def emit_lane(self, number: Value, t: ScalarType) -> None:
        """Emit the index of a lane: the first of its colour in the row, and a period for each before it."""
        b, step, period = self.builder, self.color.step, self.color.period
        lo = b.cast(self.ends()[0], t)
        away = b.cast(self.color.color, t)
        for v, k in self.color.rest.items():
            term = b.const(k, t) if v is None else b.cast(v, t) * b.const(k, t)
            away = away - term
        away = b.named("bit_and", away * b.const(step, t) - lo, b.const(period - 1, t))
        first, others = lo + away, number * b.const(period, t)
        b.add(Let(self.lane, TABLE["add"], (first, others), b.span))

    def is_at_work(self) -> Value:
        """Emit whether a lane exists, and has the colour: a remainder is no larger than the period."""
        b, period, color = self.builder, self.color.period, self.color.color
        lo, hi = self.ends()
        is_one = b.named("eq", b.named("bit_and", color, b.const(period - 1, color.type)), color)
        if isinstance(lo, Const) and isinstance(hi, Const) and not (hi.value - lo.value) % period:
            return is_one
        return b.named("and", b.cast(self.lane, hi.type.scalar) < hi, is_one)
