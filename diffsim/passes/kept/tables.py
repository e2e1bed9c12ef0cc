"""Keeps what lanes compute from their own numbers alone in tables, which the first launch fills.

A layer at the rim of a grid damps waves by a number that depends on the cell's place; each launch computes
the same exponentials again:

                                                     parallel %i, %j in box {   ; once
    parallel %i, %j in box {                           %far = ...
      %far = ...                                       %damp = exp ...
      %damp = exp ...                      ->          store damp.table[%i, %j], %damp
      %v = load v[$t, %i, %j]                        }
      ...                                            parallel %i, %j in box {
                                                       %damp = load damp.table[%i, %j]
                                                       ...

Legal where nothing but constants and the lane's numbers goes into a value: no argument, no shape that differs
from launch to launch, no memory, no random number. The box is one of constants, so all launches of this code
have the same lanes. Values in branches, too: they are computed for all lanes then, which must not stop one.

A load takes as long as a few operations on a vector of lanes, or twenty where memory is the limit. So there
must be functions, or several roots and divisions, for each table. Lanes of equal boxes that compute the same
share one, as sweeps that a kernel repeats do.

Assumes scalar IR. Leaves dead code. Runs before the passes that name statements and values of tasks.
"""

from __future__ import annotations

import math

from diffsim.ir.nodes import (
    Block,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.op import Instr, Math
from diffsim.ir.traversal import Rewriter, blocks, outs, statements, uses
from diffsim.passes.forms.equal_values import ValueNumbering
from diffsim.passes.transforms.dce import eliminate_dead_code

_MOST_BYTES = 1 << 23  # of all tables of a kernel
_FEWEST_LANES = 64
_MOST_TABLES = 4  # of a task
_LEAST_COST = 20  # of what a table replaces, in operations
_FUNCTION, _SLOW = 20, 8
_SLOW_OPS = ("div", "sqrt", "rsqrt")
_ALIGNED = 16  # scalars: rows of a table begin where lines of memory do


def keep_in_tables(kernel: Kernel) -> Kernel:
    """Return the kernel whose lanes load what depends on their numbers alone, where that pays."""
    tables = _Tables()
    tasks = tuple([tables.task(t) for t in kernel.tasks])
    if not tables.fills:
        return kernel
    # In front of all: tasks that trail others stay behind these.
    mems = dict.fromkeys(tables.known.values())
    changed = kernel.replace(tasks=(*tables.fills, *tasks), mems=(*kernel.mems, *mems))
    return eliminate_dead_code(changed)


class _Tables:
    """The tables of a kernel.

    Attributes:
        known: each by what it holds: a box, and the number of a value of its lanes.
        fills: the tasks that fill them.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], Mem] = {}
        self.fills: list[Task] = []
        self._left = _MOST_BYTES
        self._numbers = ValueNumbering()

    def task(self, task: Task) -> Task:
        """Return a task that loads what its lanes would compute, if that pays and there is room."""
        positions = _Positions(task) if _may_have_tables(task) else None
        roots = positions.roots() if positions is not None else ()
        if positions is None or not roots:
            return task
        numbers = self._number(positions, roots)
        new: dict[tuple[object, ...], Value] = {}
        for v, number in numbers.items():
            if number not in self.known:
                new.setdefault(number, v)
        made = {number: _table(task, v) for number, v in new.items()}
        size = sum(math.prod(m.shape or ()) * m.dtype.scalar.bytes for m in made.values())
        if size > self._left:
            return task
        self._left -= size
        self.known |= made
        if new:
            self.fills.append(_fill(task, {v: made[number] for number, v in new.items()}))
        found = {v: self.known[number] for v, number in numbers.items()}
        return task.replace(body=_Loading(task, found).block(task.body))

    def _number(
        self, positions: _Positions, roots: tuple[Value, ...]
    ) -> dict[Value, tuple[object, ...]]:
        """Return the numbers of values, together with the box: equal ones are equal in each lane."""
        task = positions.task
        for a, axis in enumerate(task.axes):
            self._numbers.equal(axis, ("lane", a, axis.type))
        for s in positions.slice(list(roots)):
            self._stmt(s)
        box = tuple([v.value for v in task.bounds.yields if isinstance(v, Const)])
        return {v: (box, self._numbers.number(v)) for v in roots}

    def _stmt(self, s: Stmt) -> None:
        numbers = self._numbers
        if isinstance(s, Let):
            numbers.let(s)
        elif isinstance(s, If):
            for x in (*s.then.stmts, *s.orelse.stmts):
                self._stmt(x)
            for v, *ways in zip(s.outs, s.then.yields, s.orelse.yields, strict=True):
                numbers.computed(v, If, *map(numbers.number, (s.cond, *ways)))


def _may_have_tables(task: Task) -> bool:
    """Whether all launches have the same lanes, and these do more than to compute numbers."""
    ends = task.bounds.yields
    if not task.axes or task.active is not None or not all(isinstance(v, Const) for v in ends):
        return False
    los, his = ([int(v.value) for v in side] for side in (ends[::2], ends[1::2]))  # type: ignore[attr-defined]
    lanes = math.prod(max(0, hi - lo) for lo, hi in zip(los, his, strict=True))
    if min(los) < 0 or lanes < _FEWEST_LANES or math.prod(his) > 2 * lanes:
        return False
    return any(isinstance(s, (Load, For, While)) for s in statements(task.body))


class _Positions:
    """The values that lanes of a task compute from their numbers alone.

    Attributes:
        made_by: for each such value, the statement that computes it.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.made_by: dict[Value, Let | If] = {}
        self._wanted: dict[Value, None] = {}
        self._known: set[Value] = set(task.axes)
        self._block(task.body, branch=False)

    def roots(self) -> tuple[Value, ...]:
        """Return the values that other statements use, if computing all of them takes long enough."""
        found = [v for v in self._wanted if v.type.is_float and v.type.scalar.bits >= 32]
        found = [v for v in found if self._cost([v]) >= _LEAST_COST]
        worth = self._cost(found) >= _LEAST_COST * len(found)
        return tuple(found) if worth and len(found) <= _MOST_TABLES else ()

    def slice(self, roots: list[Value]) -> dict[Stmt, None]:
        """Return the statements that compute some values, each after those that it needs."""
        found: dict[Stmt, None] = {}

        def visit(v: Value) -> None:
            s = self.made_by.get(v)
            if s is None or s in found:
                return
            for u in _read(s):
                visit(u)
            found[s] = None

        for v in roots:
            visit(v)
        return found

    def _block(self, block: Block, *, branch: bool) -> None:
        """Note the values of a block; `branch`: whether some lanes do not run it."""
        for s in block.stmts:
            if isinstance(s, (Let, If)) and self._is_known(s, branch=branch):
                self._known.update(outs(s))
                self.made_by.update(dict.fromkeys(outs(s), s))
                continue
            # What a loop computes anew in each iteration would need a table for each.
            self._use_all(uses(s) if isinstance(s, If) else _read(s))
            for inner in blocks(s) if isinstance(s, If) else ():
                self._block(inner, branch=True)
        self._use_all(block.yields)

    def _use_all(self, values: tuple[Value, ...]) -> None:
        self._wanted.update(dict.fromkeys(v for v in values if v in self.made_by))

    def _is_known(self, s: Stmt, *, branch: bool, within: frozenset[Value] = frozenset()) -> bool:
        """Whether a statement computes values from lanes' numbers alone, and all lanes may run it."""
        if isinstance(s, Let):
            known = all(isinstance(v, Const) or v in self._known or v in within for v in s.args)
            return known and not (branch and _may_stop(s))
        if not isinstance(s, If):
            return False
        known = isinstance(s.cond, Const) or s.cond in self._known or s.cond in within
        for block in (s.then, s.orelse):
            inside = set(within)
            for x in block.stmts:
                known = known and self._is_known(x, branch=branch, within=frozenset(inside))
                inside.update(outs(x))
            known = known and all(
                isinstance(v, Const) or v in self._known or v in inside for v in block.yields
            )
        return known

    def _cost(self, roots: list[Value]) -> int:
        return sum(map(_cost, self.slice(roots)))


def _read(s: Stmt) -> tuple[Value, ...]:
    """Return what a statement and the blocks inside it read."""
    found = list(uses(s))
    for b in blocks(s):
        found += b.yields
        for x in statements(b):
            found += uses(x)
            for c in blocks(x):
                found += c.yields
    return tuple(found)


def _may_stop(s: Let) -> bool:
    """Whether an operation stops the process for some operands: an integer's division by 0."""
    how = s.op.lowering
    word = how.of(s.args[-1].type.scalar.kind) if isinstance(how, Instr) else None
    if word not in ("sdiv", "udiv", "srem", "urem"):
        return False
    return not (isinstance(s.args[1], Const) and int(s.args[1].value) > 0)


def _cost(s: Stmt) -> int:
    """Return what a statement takes, in operations on vectors of lanes."""
    if isinstance(s, If):
        return sum(_cost(x) for b in blocks(s) for x in b.stmts)
    assert isinstance(s, Let)
    if isinstance(s.op.lowering, Math):
        return _FUNCTION
    return _SLOW if s.op.name in _SLOW_OPS and s.out.type.is_float else 1


def _table(task: Task, v: Value) -> Mem:
    """Return the memory of a table, whose indices are the lane's numbers."""
    los, his = ([int(x.value) for x in task.bounds.yields[k::2]] for k in (0, 1))  # type: ignore[attr-defined]
    # Rows as long as those of most fields: with a rim around the box, or without one.
    last = his[-1] if los[-1] == 0 else -(-his[-1] // _ALIGNED) * _ALIGNED
    shape = (*his[:-1], last)
    return Mem(f"{v.hint or 'value'}.table", v.type, len(shape), shape, "table")


def _fill(task: Task, tables: dict[Value, Mem]) -> Task:
    """Return the task that fills the tables of another one."""
    found = _Positions(task)
    copy = Rewriter()
    axes = copy.fresh_all(task.axes)
    body = [x for s in found.slice(list(tables)) for x in copy.stmt(s)]
    body += [Store(mem, axes, copy.value(v), task.span) for v, mem in tables.items()]
    bounds = Rewriter().block(task.bounds)
    return Task(axes, bounds, Block(body), task.span)


class _Loading(Rewriter):
    """Copies a body in which the values of tables are loaded."""

    def __init__(self, task: Task, tables: dict[Value, Mem]) -> None:
        super().__init__()
        self._task, self._tables = task, tables

    def stmt(self, s: Stmt) -> list[Stmt]:
        found = super().stmt(s)
        for v in outs(s):
            if v in self._tables:
                out = Value(v.type, v.hint)
                self.env[v] = out
                found.append(Load(out, self._tables[v], self._task.axes, s.span))
        return found
