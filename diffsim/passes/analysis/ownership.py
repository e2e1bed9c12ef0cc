"""Which lanes of a parallel task reach an element."""

from __future__ import annotations

from collections.abc import Iterable

from diffsim.ir.nodes import Let, Mem, Task
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.affine import offset_of
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.analysis.regions import ByPart, Part, region_of

Places = tuple[frozenset[tuple[int, int]], ...]
"""For each axis of a task: where in an index it stands, and what constant is added to it there."""


class Ownership:
    """What these accesses of a task's lanes reach.

    Accesses belong to one lane if each axis stands at the same place in all their indices, as in x[i, 0]
    and x[i, j] in `for i in x`.
    """

    def __init__(self, task: Task, accesses: Iterable[Access]) -> None:
        self.task = task
        self.made_by = {s.out: s for s in task_statements(task) if isinstance(s, Let)}
        found: dict[Mem, list[tuple[Part, Places]]] = {}
        for s in accesses:
            found.setdefault(s.mem, []).append((region_of(s, self.made_by), self._places(s)))
        self._reached = {mem: ByPart(places) for mem, places in found.items()}
        self._shared: dict[tuple[Mem, Part], Places | None] = {}

    def is_own(self, s: Access) -> bool:
        """Whether none of the accesses reaches from another lane what this one touches."""
        if not self.task.axes or s.mem.kind == "scratch" or s.mem not in self._reached:
            return True
        shared = self._shared_by(s.mem, region_of(s, self.made_by))
        return shared is None or all(map(frozenset.intersection, self._places(s), shared))

    def _shared_by(self, mem: Mem, part: Part) -> Places | None:
        """The places that all accesses which may touch this part have in common; None: there are none."""
        key = mem, part
        if key not in self._shared:
            rivals = self._reached[mem].meeting(part)
            shared = tuple([frozenset.intersection(*axis) for axis in zip(*rivals, strict=True)])
            self._shared[key] = shared if rivals else None
        return self._shared[key]

    def _places(self, s: Access) -> Places:
        offsets = [offset_of(i, self.made_by) for i in s.index]
        return tuple(
            [
                frozenset([(k, shift) for k, (base, shift) in enumerate(offsets) if base is axis])
                for axis in self.task.axes
            ]
        )
