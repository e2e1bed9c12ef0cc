"""Conditions that hold at an access: the loops around it, and the conditions of the branches it is in.

for i, j in ndrange(8, 8):
if (i + j) % 2 == c:            0 <= i <= 7, 0 <= j <= 7, (i + j) % 2 = c
x[i, j] = ...
"""

from __future__ import annotations

from dataclasses import dataclass

from diffsim.ir.nodes import Atomic, Block, For, If, Load, Store, Task, Value, While
from diffsim.ir.traversal import blocks, custom_rule_blocks, statements
from diffsim.passes.analysis.affine import AffineForm, task_definitions
from diffsim.passes.analysis.counted_loops import implied
from diffsim.passes.analysis.index_forms import index_forms
from diffsim.passes.analysis.integer_system import combined
from diffsim.passes.analysis.once import once

Truth = tuple[Value, bool]
"""A condition, and whether it holds."""


@dataclass(frozen=True, slots=True)
class Path:
    """How an access is reached: the loops around it, outermost first, and the conditions of branches."""

    loops: tuple[For | While, ...] = ()
    truths: tuple[Truth, ...] = ()


NO_PATH = Path()


@once
def paths(task: Task) -> dict[object, Path]:
    """Return the path of each access in the body of a task."""
    found: dict[object, Path] = {}
    _visit(task.body, NO_PATH, found)
    return found


def _visit(block: Block, path: Path, found: dict[object, Path]) -> None:
    for s in block.stmts:
        if isinstance(s, (Load, Store, Atomic)):
            found[s] = path
        elif isinstance(s, If):
            _visit(s.then, Path(path.loops, (*path.truths, (s.cond, True))), found)
            _visit(s.orelse, Path(path.loops, (*path.truths, (s.cond, False))), found)
        elif isinstance(s, While):
            loops = (*path.loops, s)
            _visit(s.cond, Path(loops, path.truths), found)
            _visit(s.body, Path(loops, (*path.truths, (s.cond.yields[0], True))), found)
        else:
            inner = Path((*path.loops, s), path.truths) if isinstance(s, For) else path
            for b in (*blocks(s), *custom_rule_blocks(s)):
                _visit(b, inner, found)


@dataclass(slots=True)
class Conditions:
    """Affine forms that are 0, not negative, or not 0, wherever an access is made."""

    zero: list[AffineForm]
    least: list[AffineForm]
    nonzero: list[AffineForm]


@once
def path_conditions(task: Task) -> PathConditions:
    """Return the conditions of a task's accesses."""
    return PathConditions(task)


class PathConditions:
    """The conditions of a task's accesses as affine forms."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._forms = index_forms(task)
        self._paths = paths(task)
        self._definitions = task_definitions(task)
        self._known: dict[Path, Conditions] = {}
        self._chosen = {
            v: (s, k)
            for s in statements(task.body, given=True)
            if isinstance(s, If)
            for k, v in enumerate(s.outs)
        }

    def of(self, access: object) -> Conditions:
        """Return what holds wherever the access is made."""
        path = self._paths.get(access, NO_PATH)
        if path not in self._known:
            self._known[path] = self._of_path(path)
        return self._known[path]

    def _of_path(self, path: Path) -> Conditions:
        found = Conditions([], [], [])
        bounds = self._task.bounds.yields
        for k, axis in enumerate(self._task.axes):
            self._between(axis, bounds[2 * k], bounds[2 * k + 1], found)
        for loop in path.loops:
            if isinstance(loop, For):
                self._between(loop.index, loop.lo, loop.hi, found)
            elif loop in self._forms.counters:
                # That the counter is below the end is one of the conditions.
                counter = self._forms.counters[loop]
                first = self._forms.exact(counter.first)
                if first is not None:
                    found.least.append(combined({counter.param: 1}, first, -1))
        for cond, holds in path.truths:
            self._add(cond, found, holds=holds)
        return found

    def _between(self, index: Value, lo: Value, hi: Value, found: Conditions) -> None:
        """Add that the variable of a loop is between its bounds."""
        first, end = self._forms.exact(lo), self._forms.exact(hi)
        if first is not None:
            found.least.append(combined({index: 1}, first, -1))
        if end is not None:
            found.least.append(combined({index: -1, None: -1}, end, 1))

    def _add(self, cond: Value, found: Conditions, *, holds: bool) -> None:
        """Add what follows from a condition that holds (or does not)."""
        for c, truth in implied(cond, self._definitions, self._chosen, holds=holds):
            let = self._definitions.get(c)
            if let is None or let.op.name not in _COMPARISONS or c.type.shape:
                continue
            a, b = (self._forms.exact(x) if x.type.is_int else None for x in let.args)
            if a is None or b is None:
                continue
            name = let.op.name if truth else _OPPOSITES[let.op.name]
            difference = combined(b, a, -1)  # b - a
            if name == "eq":
                found.zero.append(difference)
            elif name == "ne":
                found.nonzero.append(difference)
            else:
                sign, strict = _COMPARISONS[name]
                found.least.append(combined({None: -strict}, difference, sign))


_COMPARISONS = {
    "lt": (1, 1),
    "le": (1, 0),
    "gt": (-1, 1),
    "ge": (-1, 0),
    "eq": (0, 0),
    "ne": (0, 0),
}
"""For a < b: the sign of b - a, and the least that it is."""
_OPPOSITES = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
