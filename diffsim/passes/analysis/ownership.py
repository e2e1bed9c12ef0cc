"""Ownership: which elements only one lane of a parallel task accesses.

Lanes that exchange elements in pairs own them, too, if one lane of each pair is at work alone:

    for i in x:
        if i ^ j > i:               or: if i & j == 0:
            ... x[i], x[i ^ j]

Elements that no lane changes are steady (`SteadyElements`). A program that keeps a row for each step of time
loads one and stores another:

    x[t + 1, i] = x[t, i] + ...      no store reaches row t: x[t, i] is the same from start to end
    v.grad[t, i] += ...              so row t and element i of v exist, which has the same shape
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from diffsim.ir.nodes import (
    LEAVES,
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    For,
    Load,
    Mem,
    RngKey,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.affine import ANY, Offset, affine_forms, element_of, task_definitions
from diffsim.passes.analysis.counted_loops import implied
from diffsim.passes.analysis.dependence import Access, accesses_of, distances
from diffsim.passes.analysis.divergence import is_steady
from diffsim.passes.analysis.once import once
from diffsim.passes.analysis.path_conditions import NO_PATH, paths
from diffsim.passes.analysis.regions import Region, RegionMap, region_of_index

AxisPositions = tuple[frozenset[tuple[int, int]], ...]
"""For each axis of a task: where in an index it is, and which constant is added to it there."""
Index = frozenset[tuple[Value | None, int]] | Offset
"""An index along one axis: an affine form, or a value plus a constant. Equal ones are the same number."""
Element = tuple[Index, ...]
_MOST_PAIRS = 64
"""Loaded and written elements of one memory that the dependence test is asked about."""


class Ownership:
    """Whether lanes of a task share an element, given the accesses that count as sharing.

    An element belongs to one lane if each axis of the task has one position in the indices of all accesses
    that may reach the element, as in x[i, 0] and x[i, j] in `for i in x`: two lanes then differ in an index.
    One of them may have a position for pairs of lanes instead (`Pairs`).
    """

    def __init__(self, task: Task, accesses: Iterable[Access], *, pairs: bool = True) -> None:
        self._axes = task.axes
        self._pairs = pairs_of(task) if pairs else None
        self._definitions = task_definitions(task)
        accesses = list(accesses)
        found: dict[Mem, list[tuple[Region, AxisPositions]]] = {}
        for s in accesses:
            found.setdefault(s.mem, []).append((self._region(s), self._positions(s)))
        self._rivals = {mem: RegionMap(positions) for mem, positions in found.items()}
        self._common: dict[tuple[Mem, Region], AxisPositions | None] = {}
        self._accesses: dict[Mem, list[Access]] = {}
        for s in accesses:
            self._accesses.setdefault(s.mem, []).append(s)
        self._common_pairs: dict[Mem, frozenset[Pair]] = {}

    def is_own(self, s: Access) -> bool:
        """Whether none of the accesses reaches from another lane what this one touches."""
        # A serial task has one lane, and scratch belongs to a lane by construction.
        if not self._axes or s.mem.kind == "scratch" or s.mem not in self._rivals:
            return True
        common = self._common_positions(s.mem, self._region(s))
        if common is None:
            return True
        own = list(map(frozenset.intersection, self._positions(s), common))
        left = [axis for axis, places in zip(self._axes, own, strict=True) if not places]
        return not left or (len(left) == 1 and self._is_paired(s, left[0]))

    def _is_paired(self, s: Access, axis: Value) -> bool:
        """Whether an axis has the same position for pairs in an access and all that count."""
        pairs, mem = self._pairs, s.mem
        if pairs is None:
            return False
        mine = frozenset(p for p in pairs.of(s) if p[1] is axis)
        if mine and mem not in self._common_pairs:
            found = map(pairs.of, self._accesses[mem])
            self._common_pairs[mem] = frozenset.intersection(*found)
        return bool(mine and mine & self._common_pairs[mem])

    def _region(self, s: Access) -> Region:
        """Return where an access stays, components included: f[i - 1][0] and f[i + 1][1] never meet."""
        return region_of_index(s.index, self._definitions)

    def _common_positions(self, mem: Mem, region: Region) -> AxisPositions | None:
        """Return the positions shared by all accesses that may touch this region; None: there are none."""
        # Unrolled loops make thousands of accesses to few regions, hence the table.
        key = mem, region
        if key not in self._common:
            rivals = self._rivals[mem].overlapping(region)
            common = tuple([frozenset.intersection(*axis) for axis in zip(*rivals, strict=True)])
            self._common[key] = common if rivals else None
        return self._common[key]

    def _positions(self, s: Access) -> AxisPositions:
        # The shift is part of the position: x[i] and x[i + 1] both contain the axis, but lane i's
        # second element is lane i + 1's first.
        element = element_of(s.index, self._definitions)
        return tuple(
            [
                frozenset([(k, shift) for k, (base, shift) in enumerate(element) if base is axis])
                for axis in self._axes
            ]
        )


@once
def written_by_others(task: Task) -> Ownership:
    """Return the ownership of what a task writes: what is own here, no other lane changes."""
    return Ownership(task, _writes(task))


@once
def own_without_pairs(task: Task) -> Ownership:
    """Return the same without pairs: neighbouring lanes' elements are next to each other in no order."""
    return Ownership(task, _writes(task), pairs=False)


def _writes(task: Task) -> list[Access]:
    return [s for s in accesses_of(task) if isinstance(s, (Store, Atomic))]


Pair = tuple[int, Value, object, str]
"""The position in an index, the axis, what its partner's number is made with, and which of the two works."""

_ABOVE = {"gt": True, "ge": True, "lt": False, "le": False}
_DEEPEST = 4  # ops of what all lanes have in common


class Pairs:
    """Where accesses of a task have an axis i or its partner i ^ u, and only one lane of each pair works.

    Say that lanes i and k both work, with the same u, and access a common element. If k is not i, it is
    i ^ u, and i is k ^ u. Then one is above the other, so not both are where the partner is above (or both
    where it is below). If `i & u` is 0, `k & u` is u, which is 0 only if k is i; and `i + u` and `i | u`
    are `i ^ u`.
    """

    def __init__(self, task: Task) -> None:
        self._axes = task.axes
        self._definitions = task_definitions(task)
        self._paths = paths(task)
        self._known: dict[object, frozenset[tuple[Value, object, str]]] = {}

    def of(self, s: Access) -> frozenset[Pair]:
        """Return the positions for pairs in the index of an access."""
        path = self._paths.get(s, NO_PATH)
        if path not in self._known:
            self._known[path] = frozenset(
                found for cond, holds in path.truths for found in self._told(cond, holds=holds)
            )
        return frozenset(
            (k, axis, u, side)
            for axis, u, side in self._known[path]
            for k, v in enumerate(s.index)
            if v is axis or (axis, u) in self._partners(v, can_add=side == "clear")
        )

    def _told(self, cond: Value, *, holds: bool) -> Iterator[tuple[Value, object, str]]:
        """Yield the axes of which a condition says which lane of a pair is at work."""
        for c, truth in implied(cond, self._definitions, {}, holds=holds):
            let = self._definitions.get(c)
            if let is None or len(let.args) != 2:
                continue
            name, (a, b) = let.op.name, let.args
            for x, y, turned in ((a, b, False), (b, a, True)):
                if name in _ABOVE:
                    above = _ABOVE[name] is truth
                    for axis, u in self._partners(x):
                        if y is axis:
                            yield axis, u, "above" if above is not turned else "below"
                is_zero = isinstance(y, Const) and not y.type.shape and y.value == 0
                if is_zero and name == ("eq" if truth else "ne"):
                    yield from ((axis, u, "clear") for axis, u in self._with(x, "bit_and"))

    def _partners(self, v: Value, *, can_add: bool = False) -> list[tuple[Value, object]]:
        """Return the axis and u of which a value is the partner's number."""
        return self._with(v, *(("bit_xor", "bit_or", "add") if can_add else ("bit_xor",)))

    def _with(self, v: Value, *names: str) -> list[tuple[Value, object]]:
        """Return the axis, and what stands for the other operand, of such an op."""
        let = self._definitions.get(v)
        if let is None or let.op.name not in names:
            return []
        a, b = let.args
        operands = ((x, self._common(y, _DEEPEST)) for x, y in ((a, b), (b, a)) if x in self._axes)
        return [(x, u) for x, u in operands if u is not None and x.type is v.type]

    def _common(self, v: Value, depth: int) -> object:
        """Return what stands for a value that is the same in all lanes; None: it may differ."""
        if isinstance(v, Const):
            return v.type, v.value
        if isinstance(v, LEAVES):
            return None if isinstance(v, RngKey) else v
        let = self._definitions.get(v)
        if let is None or not depth:
            return None
        parts = [self._common(a, depth - 1) for a in let.args]
        return None if None in parts else (let.op.name, v.type, *parts)


@once
def pairs_of(task: Task) -> Pairs:
    """Return the positions for pairs of lanes in the accesses of a task."""
    return Pairs(task)


class SteadyElements:
    """Facts about the elements that a task loads.

    Attributes:
        extents: indices that are known to be below a number, and not below 0, in the block that is looked at.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._forms = affine_forms(task)
        self._defs = task_definitions(task)
        found = list(task_statements(task))
        # A check that fails keeps the lane from what comes after it.
        self._has_checks = any(isinstance(s, Check) for s in found)
        self._folded = {mem for _, mem, _ in task.reductions}
        self._writes: dict[Mem, dict[Element, Store | Atomic]] = {}
        for s in found:
            if isinstance(s, (Store, Atomic)):
                self._writes.setdefault(s.mem, {}).setdefault(self._place(s), s)
        self._pairs = Counter[Mem]()
        self._known: dict[tuple[Mem, Element], bool] = {}
        self.extents: dict[Index, int] = {}

    def element(self, s: Access) -> Element:
        """Return the index of an access, along all axes and of its component."""
        forms = [self._forms.form(i) for i in s.index]
        others = element_of(s.index, self._defs)
        return tuple(
            [o if f is None else frozenset(f.items()) for f, o in zip(forms, others, strict=True)]
        )

    def _place(self, s: Access) -> Element:
        """Return the same without the component."""
        return self.element(s)[: s.mem.rank]

    def is_steady(self, s: Load) -> bool:
        """Whether an element is the same from the start of the task to its end."""
        mem = s.mem
        if is_steady(self._task, mem):
            return True
        if mem.kind == "scratch" or mem in self._folded:
            return False
        key = mem, self._place(s)
        if key not in self._known:
            writes = [w for e, w in self._writes[mem].items() if not _are_apart(key[1], e)]
            self._pairs[mem] += len(writes)
            self._known[key] = self._pairs[mem] <= _MOST_PAIRS and all(
                distances(self._task, s, w, guarded=False).never for w in writes
            )
        return self._known[key]

    def enter(self, block: Block) -> dict[Index, int]:
        """Note what the accesses that a block always makes say of indices; return what was known before."""
        before = self.extents
        found = [s for s in _always_made(block) if _has_shape(s.mem)]
        if found and not self._has_checks:
            self.extents = dict(before)
            for s in found:
                assert s.mem.shape is not None
                for i, extent in zip(self.element(s), s.mem.shape, strict=False):
                    self.extents[i] = min(extent, self.extents.get(i, extent))
        return before

    def exists(self, s: Load) -> bool:
        """Whether an element is there in all iterations of all lanes, also where a branch leaves it out."""
        mem = s.mem
        if not _has_shape(mem):
            return False
        assert mem.shape is not None
        extents = (*mem.shape, *mem.dtype.shape)
        for v, i, extent in zip(s.index, self.element(s), extents, strict=True):
            form = self._forms.form(v)
            least, most = ANY if form is None else self._forms.interval(form)
            if not 0 <= least <= most < extent and self.extents.get(i, extent + 1) > extent:
                return False
        return True


def _are_apart(one: Element, other: Element) -> bool:
    """Whether two elements differ along an axis by the same number in every lane, as rows t and t + 1 do."""
    for a, b in zip(one, other, strict=True):
        if isinstance(a, frozenset) and isinstance(b, frozenset):
            left, right = dict(a), dict(b)
            apart = left.pop(None, 0) != right.pop(None, 0)
            if apart and left == right and all(isinstance(v, Arg) for v in left):
                return True
    return False


def _always_made(block: Block) -> Iterator[Access]:
    """Yield the accesses that a block makes whenever it runs, also those of loops that certainly turn."""
    for s in block.stmts:
        if isinstance(s, Access):
            yield s
        elif isinstance(s, For) and _turns(s):
            yield from _always_made(s.body)


def _turns(s: For) -> bool:
    """Whether a loop is known to have an iteration."""
    known = isinstance(s.lo, Const) and isinstance(s.hi, Const)
    return known and bool(s.lo.value < s.hi.value)  # type: ignore[attr-defined]


def _has_shape(mem: Mem) -> bool:
    return mem.shape is not None and mem.place is None and mem.level is None
