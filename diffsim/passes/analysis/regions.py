"""Regions of memory: which part of each memory a kernel reads and writes, as far as is known at launch.

A *row* is one index of one axis that depends on the launch alone: a constant, or an integer argument plus
a constant (`x[t + 1, i]` with the argument t). Such rows can be told apart before any launch. More is known
in a launch (`slices.py`): the runtime keeps versions of rows, so `x[t + 1] = f(x[t])` in a time loop is known
not to change earlier times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from diffsim.ir.nodes import Arg, Atomic, Const, Kernel, Load, Mem, Store, Value
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.affine import Definitions, definitions, offset_of
from diffsim.passes.analysis.once import once
from diffsim.passes.analysis.slices import Diagonal, Slice, diagonals_of, single, slices_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """Index `argument + shift` along `axis` (`argument` None: the constant `shift`)."""

    axis: int
    argument: Arg | None
    shift: int


Region = frozenset[Row]
"""The rows that an access certainly stays within; empty: the whole memory."""


@dataclass(frozen=True, slots=True)
class RegionAccess:
    """One statement of a kernel that reads or writes a memory.

    Attributes:
        mem: the memory.
        region: the rows that it certainly stays within.
        stmt: the statement.
        task: the number of its task.
        slices: what is known of its indices at a launch, axis by axis.
        diagonals: and of their sums.
    """

    mem: Mem
    region: Region
    stmt: Load | Store | Atomic
    task: int
    slices: tuple[Slice, ...]
    diagonals: tuple[Diagonal, ...] = ()

    @property
    def time_slice(self) -> Slice | None:
        """The slice along the first axis that the arguments move it along."""
        return next((s for s in self.slices if s.stride is not None), None)


def region_of(s: Load | Store | Atomic, defs: Definitions) -> Region:
    """Return the region that an access stays within."""
    return region_of_index(s.index[: s.mem.rank], defs)


def region_of_index(index: Iterable[Value], defs: Definitions) -> Region:
    """Return the region that an index tuple stays within."""
    # A row must be known before the launch starts: a loop variable, or a loaded index, bounds nothing.
    rows = []
    for axis, i in enumerate(index):
        base, shift = offset_of(i, defs)
        if base is None:
            rows.append(Row(axis, None, shift))
        elif isinstance(base, Arg) and not base.type.shape:
            rows.append(Row(axis, base, shift))
    return frozenset(rows)


def disjoint(a: Region, b: Region) -> bool:
    """Whether two regions certainly have no element in common, whatever the arguments."""
    return any(
        # Two different arguments may be equal at the launch, so only shifts of the same one tell rows
        # apart.
        x.axis == y.axis and x.argument is y.argument and x.shift != y.shift
        for x in a
        for y in b
    )


@once
def reads(kernel: Kernel) -> list[RegionAccess]:
    """Return every load of a field or array, those of custom derivatives included, in program order."""
    return _accesses(kernel, (Load,), given=True)


@once
def writes(kernel: Kernel) -> list[RegionAccess]:
    """Return every store to, and atomic update of, a field or array; reductions come last."""
    return _accesses(kernel, (Store, Atomic)) + [
        # Reductions write after all lanes have run; an atomic on the total stands for them.
        _access(kernel, Atomic(None, op, mem, index, v, t.span), region_of_index(index, {}), k)
        for k, t in enumerate(kernel.tasks)
        for (op, mem, index), v in zip(t.reductions, t.body.yields, strict=True)
        if mem.kind in ("field", "array")
    ]


def _accesses(
    kernel: Kernel, kinds: tuple[type, ...], *, given: bool = False
) -> list[RegionAccess]:
    """Return accesses of these kinds to fields and arrays, in program order."""
    defs = definitions(kernel)
    found = []
    for k, task in enumerate(kernel.tasks):
        for s in task_statements(task, given=given):
            if not isinstance(s, (Load, Store, Atomic)) or not isinstance(s, kinds):
                continue
            if s.mem.kind in ("field", "array"):
                found.append(_access(kernel, s, region_of(s, defs), k))
    return found


def _access(kernel: Kernel, s: Load | Store | Atomic, region: Region, number: int) -> RegionAccess:
    """Return an access of the task with this number."""
    index, task = s.index[: s.mem.rank], kernel.tasks[number]
    known = {s.axis: s for s in slices_of(s.mem, index, task)}
    # A row is found through components of vectors as well.
    known |= {r.axis: single(r.axis, r.argument, r.shift) for r in region}
    slices = tuple(known[axis] for axis in sorted(known))
    diagonals = diagonals_of(index, task) if s.mem.rank > 1 else ()
    return RegionAccess(s.mem, region, s, number, slices, diagonals)


@once
def must_write(kernel: Kernel) -> list[RegionAccess]:
    """Return the stores that certainly write every element of their region.

    `for i, j in x: x[i, j] = ...`, and `for i in range(n): y[t, i] = ...` where y has n columns.
    """
    defs = definitions(kernel)
    found: list[RegionAccess] = []
    for k, t in enumerate(kernel.tasks):
        bounds = iter(t.bounds.yields)
        ranges = dict(zip(t.axes, zip(bounds, bounds, strict=True), strict=True))
        # Only statements at the top of the body: those in branches or loops may not run at all.
        for s in t.body.stmts:
            if not isinstance(s, Store) or s.mem.shape is None or len(s.index) != s.mem.rank:
                continue
            # What is left of the index besides the rows must run over the rest of the shape, axis by
            # axis.
            region = region_of(s, defs)
            rows = {r.axis for r in region}
            loops = [i for axis, i in enumerate(s.index) if axis not in rows]
            sizes = [n for axis, n in enumerate(s.mem.shape) if axis not in rows]
            # One loop in two places, x[i, i], covers only the diagonal.
            if len(set(loops)) == len(loops) and all(
                _covers(ranges.get(i), n) for i, n in zip(loops, sizes, strict=True)
            ):
                found.append(_access(kernel, s, region, k))
    return found


def _covers(limits: tuple[Value, Value] | None, n: int) -> bool:
    """Whether a loop with these limits runs over 0 .. n - 1."""
    if limits is None:
        return False
    lo, hi = limits
    return isinstance(lo, Const) and isinstance(hi, Const) and lo.value <= 0 and hi.value >= n


class RegionMap(Generic[T]):
    """A map from regions of one memory to things, queried by overlap.

    Two regions are disjoint only by rows along the same axis with the same argument. So there is one hash
    table of rows for each combination of axes and arguments that the regions have rows of: a kernel with
    thousands of accesses has few combinations.
    """

    def __init__(self, things: Iterable[tuple[Region, T]]) -> None:
        self._of: dict[frozenset[object], list[tuple[Region, T]]] = {}
        for region, thing in things:
            self._of.setdefault(_directions(region), []).append((region, thing))
        self._views: dict[tuple[object, object], dict[Region, set[T]]] = {}

    def overlapping(self, region: Region) -> set[T]:
        """Return the things whose regions are not `disjoint` from this one."""
        mine = _directions(region)
        found: set[T] = set()
        # Regions with the same directions are compared by hash: two of them overlap exactly if they
        # agree on the directions they share, so a view along these is built once and then asked in
        # constant time.
        for theirs, things in self._of.items():
            shared = mine & theirs
            view = self._views.get((theirs, shared))
            if view is None:
                view = self._views[theirs, shared] = {}
                for other, thing in things:
                    view.setdefault(_along(other, shared), set()).add(thing)
            found |= view.get(_along(region, shared), set())
        return found


def _directions(region: Region) -> frozenset[object]:
    """Return the axes and arguments that a region has rows of."""
    return frozenset([(r.axis, r.argument) for r in region])


def _along(region: Region, directions: frozenset[object]) -> Region:
    """Return the rows of a region in these directions."""
    return frozenset([r for r in region if (r.axis, r.argument) in directions])
