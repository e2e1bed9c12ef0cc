"""Ownership: which elements only one lane of a parallel task accesses."""

from __future__ import annotations

from collections.abc import Iterable

from diffsim.ir.nodes import Atomic, Mem, Store, Task
from diffsim.passes.analysis.affine import element_of, task_definitions
from diffsim.passes.analysis.dependence import Access, accesses_of
from diffsim.passes.analysis.once import once
from diffsim.passes.analysis.regions import Region, RegionMap, region_of_index

AxisPositions = tuple[frozenset[tuple[int, int]], ...]
"""For each axis of a task: where in an index it is, and which constant is added to it there."""


class Ownership:
    """Whether lanes of a task share an element, given the accesses that count as sharing.

    An element belongs to one lane if each axis of the task has one position in the indices of all accesses
    that may reach the element, as in x[i, 0] and x[i, j] in `for i in x`: two lanes then differ in an index.
    """

    def __init__(self, task: Task, accesses: Iterable[Access]) -> None:
        self._axes = task.axes
        self._definitions = task_definitions(task)
        found: dict[Mem, list[tuple[Region, AxisPositions]]] = {}
        for s in accesses:
            found.setdefault(s.mem, []).append((self._region(s), self._positions(s)))
        self._rivals = {mem: RegionMap(positions) for mem, positions in found.items()}
        self._common: dict[tuple[Mem, Region], AxisPositions | None] = {}

    def is_own(self, s: Access) -> bool:
        """Whether none of the accesses reaches from another lane what this one touches."""
        # A serial task has one lane, and scratch belongs to a lane by construction.
        if not self._axes or s.mem.kind == "scratch" or s.mem not in self._rivals:
            return True
        common = self._common_positions(s.mem, self._region(s))
        return common is None or all(map(frozenset.intersection, self._positions(s), common))

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
    return Ownership(task, [s for s in accesses_of(task) if isinstance(s, (Store, Atomic))])
