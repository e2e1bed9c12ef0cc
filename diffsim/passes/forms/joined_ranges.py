"""Joined ranges: neighbouring cells whose lists follow one another are gone through as one list.

    for %j in %a..%b carry (%s) {               %j.0 = select %sorted, %b - 1, %a
      %k = add %row, %j                         for %j in %j.0..%b carry (%s) {
      %from = load first[%k]                      %from = load first[%row + select %sorted, %a, %j]
      %to = load first[%k + 1]           ->       %to = load first[%row + %j + 1]
      for %m in %from..%to carry (...) {          for %m in %from..%to carry (...) {
        ... order[%m] ...                           ... order[%m] ...

Particles sorted by cells are stored so. The lists of two or three particles end where the processor cannot
guess, and lanes that run as vectors wait for the longest of each cell; one list for a row of cells ends once.

Assumes scalar IR. Promises: the same iterations in the same order. A task before looks whether the ranges of
all cells follow one another and none is less than empty (`%sorted`); where they do not, the nest stays as it
was. It reads the list of cells once, so lanes must be as many. Of lists that are kept for each step of time,
`first[t, k]`, it reads the launch's own.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Arg, Block, Const, For, Kernel, Let, Load, Mem, Stmt, Task, Value
from diffsim.ir.simple_tasks import box_sizes
from diffsim.ir.traversal import Rewriter, blocks, free_values, outs, statements, uses
from diffsim.ir.types import i32, i64
from diffsim.passes.analysis.affine import Element, Offset, element_of, task_definitions
from diffsim.passes.analysis.divergence import is_steady

_CELLS_OF_A_LANE = 2  # that are read before, and cost little beside the lane's own loops
_FEW_CELLS = 1 << 13  # that are read in some microseconds, where the number of lanes is not known

_STARTS = {"accumulate": (0,), "or": (False,)}
"""Numbers that partial results start from, by the op that combines them in any order."""


class _Ranges(NamedTuple):
    """Ranges of cells in memory: from `first[k]` to `first[k + 1]`, or to `first[k] + lengths[k]`.

    Attributes:
        first: where the cells' ranges begin.
        lengths: how long they are; None: each ends where the next one begins.
        axis: that of these memories along which neighbours are joined.
        rows: the index along each axis, where it is a number or an argument and a number; None: any.
    """

    first: Mem
    lengths: Mem | None
    axis: int
    rows: tuple[Offset | None, ...]

    def tested(self) -> tuple[int, ...]:
        """Return the axes along which lanes may read any list."""
        return tuple([k for k, row in enumerate(self.rows) if row is None])


def join_ranges(kernel: Kernel) -> Kernel:
    """Return the kernel with loops over neighbouring cells' ranges as loops over one range."""
    tasks: list[Task] = []
    temps: list[Mem] = []
    for task in kernel.tasks:
        # A task that trails another one stays right behind it.
        work = _Joiner(task)
        body = work.block(task.body) if task.axes and task.lag is None else task.body
        if not work.tests:
            tasks.append(task)
            continue
        for ranges, known in work.tests.items():
            tasks += _test(ranges, known, task)
        temps += work.tests.values()
        tasks.append(task.replace(body=Block([*work.before, *body.stmts], body.yields)))
    return kernel.replace(tasks=tuple(tasks), mems=(*kernel.mems, *temps)) if temps else kernel


# ---- the loops


class _Joiner(Rewriter):
    """Copies the body of a task, with nests joined.

    Attributes:
        tests: for each list of cells the memory that says whether its ranges follow one another.
        before: statements at the start of each lane.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.tests: dict[_Ranges, Mem] = {}
        self.before: list[Stmt] = []
        self.sorted: dict[_Ranges, Value] = {}

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, For) and _is_nest(s):
            ranges = _Nest(s, self.task).ranges()
            if ranges is not None and self.may_test(ranges):
                return self.joined(s, ranges)
        return super().stmt(s)

    def may_test(self, ranges: _Ranges) -> bool:
        """Whether the task changes no range, and reading all of them costs little."""
        mems = [m for m in (ranges.first, ranges.lengths) if m is not None]
        lanes, shape = box_sizes(self.task), ranges.first.shape
        assert shape is not None
        most = _FEW_CELLS if lanes is None else _CELLS_OF_A_LANE * math.prod(lanes)
        size = math.prod([shape[k] for k in ranges.tested()])
        return all(is_steady(self.task, m) for m in mems) and size <= most

    def is_sorted(self, ranges: _Ranges) -> Value:
        """Return whether the ranges follow one another: a value of the lane's start."""
        if ranges not in self.sorted:
            known = self.tests[ranges] = Mem(f"{ranges.first.name}.sorted", i32, 0, (), "temp")
            b = Builder(self.task.span, i32, i32)
            with b, b.block() as stmts:
                self.sorted[ranges] = b.named("ne", b.load(known, ()), 0)
            self.before += stmts
        return self.sorted[ranges]

    def joined(self, s: For, ranges: _Ranges) -> list[Stmt]:
        """Return a loop that runs once, with the first cell's begin and the last one's end."""
        b = Builder(s.span, i32, i32)
        lo, hi, inits = self.value(s.lo), self.value(s.hi), self.values(s.inits)
        with b, b.block() as before:
            # Without cells it runs never, as it did.
            once = b.named("and", self.is_sorted(ranges), b.named("lt", lo, hi))
            start = b.named("select", once, b.named("sub", hi, b.const(1, hi.type)), lo)
        prefix, inner, sums = _parts(s)
        index, params = self.fresh(s.index), self.fresh_all(s.params)
        with b, b.block() as body:
            cell = b.named("select", once, lo, index)
        first = Rewriter({**self.env, s.index: cell})
        body += [first.copy(x) for x in _needed(inner.lo, prefix)]
        body += [self.copy(x) for x in prefix]
        self.env[inner.lo] = first.value(inner.lo)
        body += self.stmt(inner)
        body += [self.copy(x) for x in sums]
        yields = self.values(s.body.yields)
        last = self.fresh_all(s.outs)
        made = For(index, start, hi, params, inits, Block(body, yields), last, s.span, s.reverse)
        return [*before, made]


def _needed(v: Value, stmts: list[Stmt]) -> list[Stmt]:
    """Return the statements that a value is computed by, in order."""
    wanted, found = {v}, []
    for s in reversed(stmts):
        if not wanted.isdisjoint(outs(s)):
            wanted.update(uses(s))
            found.append(s)
    return found[::-1]


# ---- which nests


class _Nest:
    """A loop whose iterations do nothing but to run another one, over a range that the index selects."""

    def __init__(self, s: For, task: Task) -> None:
        self.task = task
        self.defs = task_definitions(task)
        prefix, self.inner, _ = _parts(s)
        self.loads = {x.out: x for x in prefix if isinstance(x, Load)}
        self.lets = {x.out: x for x in prefix if isinstance(x, Let)}
        self.factors: dict[Value, int | None] = {s.index: 1, **dict.fromkeys(s.params)}
        """The values that change from iteration to iteration, and by how much; None: not by a constant."""
        for x in prefix:
            if self.changes(x):
                self.factors.update(dict.fromkeys(outs(x), self.factor(x)))

    def changes(self, s: Stmt) -> bool:
        """Whether a statement may find something else in each iteration."""
        if isinstance(s, Load) and not is_steady(self.task, s.mem):
            return True
        return any(v in self.factors for v in uses(s))

    def factor(self, s: Stmt) -> int | None:
        if not isinstance(s, Let) or not all(v.type.is_int for v in (s.out, *s.args)):
            return None
        found = [self.factors.get(v, 0) for v in s.args]
        if None in found:
            return None
        a, *rest = [n for n in found if n is not None]
        if s.op.name == "cast":
            return a if s.out.type.scalar.keeps_index(s.args[0].type.scalar) else None
        if s.op.name in ("add", "sub"):
            return a + rest[0] if s.op.name == "add" else a - rest[0]
        return None

    def ranges(self) -> _Ranges | None:
        """Return the ranges of neighbouring cells, if it is these that the iterations go through."""
        # What differs from cell to cell, the inner loop must not see.
        if any(v in self.factors for v in free_values(self.inner.body)):
            return None
        begin = self.loads.get(self.inner.lo)
        if begin is None or not _is_list(begin.mem):
            return None
        moving = [k for k, i in enumerate(begin.index) if i in self.factors]
        if len(moving) != 1 or self.factors[begin.index[moving[0]]] != 1:
            return None
        return self.to_next(begin, moving[0]) or self.with_count(begin, moving[0])

    def to_next(self, begin: Load, axis: int) -> _Ranges | None:
        """Return ranges that end where the next one begins."""
        end = self.loads.get(self.inner.hi)
        if end is None or end.mem is not begin.mem:
            return None
        at = element_of(begin.index, self.defs)
        base, shift = at[axis]
        next_ = (*at[:axis], (base, shift + 1), *at[axis + 1 :])
        if element_of(end.index, self.defs) != next_:
            return None
        return _Ranges(begin.mem, None, axis, _rows(at, axis))

    def with_count(self, begin: Load, axis: int) -> _Ranges | None:
        """Return ranges that end after a number of elements, which is another list's."""
        total = self.lets.get(self.inner.hi)
        if total is None or total.op.name != "add":
            return None
        found = [self.loads.get(v) for v in total.args]
        terms = [x for x in found if x is not None and _is_list(x.mem)]
        at = element_of(begin.index, self.defs)
        if len(terms) < 2 or any(element_of(x.index, self.defs) != at for x in terms):
            return None
        one, other = terms if terms[0].mem is begin.mem else terms[::-1]
        alike = other.mem.shape == begin.mem.shape and other.mem.dtype is begin.mem.dtype
        if one.mem is not begin.mem or not alike:
            return None
        return _Ranges(begin.mem, other.mem, axis, _rows(at, axis))


def _rows(at: Element, axis: int) -> tuple[Offset | None, ...]:
    """Return those parts of an index that are the same for all lanes and known before they run."""
    found = []
    for k, (base, shift) in enumerate(at):
        known = base is None or (isinstance(base, Arg) and base.type in (i32, i64))
        found.append((base, shift) if known and k != axis else None)
    return tuple(found)


def _parts(s: For) -> tuple[list[Stmt], For, list[Let]]:
    """Return what stands before the loop inside another one, that loop, and what stands behind it."""
    (at,) = [k for k, x in enumerate(s.body.stmts) if isinstance(x, For)]
    inner, behind = s.body.stmts[at], s.body.stmts[at + 1 :]
    assert isinstance(inner, For)
    return list(s.body.stmts[:at]), inner, [x for x in behind if isinstance(x, Let)]


def _is_nest(s: For) -> bool:
    """Whether a loop does nothing but to run another one in the same direction, with the same sums."""
    loops = [k for k, x in enumerate(s.body.stmts) if isinstance(x, For)]
    if len(loops) != 1:
        return False
    before, behind = s.body.stmts[: loops[0]], s.body.stmts[loops[0] + 1 :]
    inner = s.body.stmts[loops[0]]
    assert isinstance(inner, For)
    return (
        all(isinstance(x, (Let, Load)) for x in before)
        and all(isinstance(x, Let) for x in behind)
        and inner.reverse == s.reverse
        and _carries_the_same(s, inner, [x for x in behind if isinstance(x, Let)])
    )


def _carries_the_same(s: For, inner: For, behind: list[Let]) -> bool:
    """Whether each value goes through both loops, or is what the inner one combines in any order."""
    made = {x.out: x for x in behind}
    starts = dict(zip(inner.outs, inner.inits, strict=True))
    combined = _combined(inner)
    used: set[Value] = set()
    for p, y in zip(s.params, s.body.yields, strict=True):
        used.add(y)
        let = made.get(y)
        if let is None:
            if starts.get(y) is not p:
                return False
            continue
        part = let.args[-1]
        used.add(part)
        # Whether there are iterations, in one cell or all of them, or a partial result.
        asks = (
            part in made and made[part].op.name == "lt" and made[part].args == (inner.lo, inner.hi)
        )
        known = combined.get(part) == let.op.name or (asks and let.op.name == "or")
        if not known or let.args[0] is not p:
            return False
    return used == made.keys() | starts.keys()


def _combined(s: For) -> dict[Value, str]:
    """Return the results of a loop that combine what its iterations find, from nothing on, and how."""
    steps = {x.out: x for x in s.body.stmts if isinstance(x, Let)}
    inside = list(statements(s.body))
    counts = Counter(
        v for x in inside for v in (*uses(x), *(y for b in blocks(x) for y in b.yields))
    )
    found = {}
    for out, start, param, y in zip(s.outs, s.inits, s.params, s.body.yields, strict=True):
        step = steps.get(y)
        if (
            step is None
            or step.args[0] is not param
            or counts[param] != 1
            or param in s.body.yields
        ):
            continue
        if isinstance(start, Const) and start.value in _STARTS.get(step.op.name, ()):
            found[out] = step.op.name
    return found


def _is_list(mem: Mem) -> bool:
    """Whether a memory is a field or array of integers whose shape is known."""
    return (
        mem.shape is not None
        and mem.is_shaped
        and mem.dtype in (i32, i64)
        and min(mem.shape, default=0) > 1
        and mem.place is None
        and mem.level is None
    )


# ---- the test


def _test(ranges: _Ranges, known: Mem, task: Task) -> list[Task]:
    """Return tasks that find out whether each cell's range ends where the next one begins, and not before."""
    b = Builder(task.span, i32, i32)
    with b, b.block() as at_first:
        b.store(known, (), Const(i32, 1))
    shape = ranges.first.shape
    assert shape is not None
    # Of a list without lengths the last element is only an end.
    sizes = [n - (k == ranges.axis and ranges.lengths is None) for k, n in enumerate(shape)]
    integer = i64 if max(shape) >= 2**31 else i32
    counters = {k: Value(integer, "k") for k in ranges.tested()}
    with b, b.block() as body:
        axes = tuple(
            [counters.get(k) or _row(b, row, shape[k]) for k, row in enumerate(ranges.rows)]
        )
        cell = axes[ranges.axis]
        last = b.const(shape[ranges.axis] - 1, integer)
        next_ = b.named("min", b.named("add", cell, 1), last)
        begin = b.load(ranges.first, axes)
        behind = b.load(ranges.first, (*axes[: ranges.axis], next_, *axes[ranges.axis + 1 :]))
        if ranges.lengths is None:
            good = b.named("le", begin, behind)
        else:
            end = b.named("add", begin, b.load(ranges.lengths, axes))
            follows = b.named("or", b.named("eq", cell, last), b.named("eq", end, behind))
            good = b.named("and", b.named("le", begin, end), follows)
        found = b.named("select", good, Const(i32, 1), Const(i32, 0))
    ends = tuple([Const(integer, e) for k in counters for e in (0, sizes[k])])
    fold = (("min", known, ()),)
    return [
        Task((), Block([]), Block(at_first), task.span),
        Task(
            tuple(counters.values()),
            Block([], ends),
            Block(body, (found,)),
            task.span,
            reductions=fold,
        ),
    ]


def _row(b: Builder, row: Offset | None, size: int) -> Value:
    """Return the index of a row; one outside is that of another one, as no lane may read it."""
    assert row is not None
    base, shift = row
    if base is None:
        return b.const(min(max(shift, 0), size - 1), i32)
    index = b.named("add", base, b.const(shift, base.type)) if shift else base
    index = b.named("min", index, b.const(size - 1, base.type))
    return b.named("max", index, b.const(0, base.type))
