"""What must be so where an access is made: the loops around it, and the conditions of the branches it is in.

for i, j in ndrange(8, 8):
if (i + j) % 2 == c:            0 <= i <= 7, 0 <= j <= 7, (i + j) % 2 = c
x[i, j] = ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diffsim.ir.nodes import Atomic, Block, Const, For, If, Load, Store, Task, Value, While
from diffsim.ir.traversal import blocks, custom_rule_blocks, statements
from diffsim.passes.analysis.affine import AffineForm, task_definitions
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
        else:
            inner = Path((*path.loops, s), path.truths) if isinstance(s, (For, While)) else path
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
        for c, truth in self._parts(cond, holds=holds):
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

    def _parts(self, cond: Value, *, holds: bool) -> Iterator[Truth]:
        """Yield the conditions that one is made of, as far as all of them must be as they are."""
        let = self._definitions.get(cond)
        if cond in self._chosen:
            yield from self._of_branch(*self._chosen[cond], holds=holds)
        elif let is None:
            return
        elif let.op.name == "not":
            yield from self._parts(let.args[0], holds=not holds)
        elif let.op.name == ("and" if holds else "or"):
            for a in let.args:
                yield from self._parts(a, holds=holds)
        else:
            yield cond, holds

    def _of_branch(self, s: If, k: int, *, holds: bool) -> Iterator[Truth]:
        """Yield what follows from a result of a branch: `a and b` is b if a, else False."""
        then, orelse = s.then.yields[k], s.orelse.yields[k]
        for taken, other, side in ((then, orelse, True), (orelse, then, False)):
            if isinstance(other, Const) and bool(other.value) != holds:
                yield from self._parts(s.cond, holds=side)
                yield from self._parts(taken, holds=holds)


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
