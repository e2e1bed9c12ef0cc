"""Access order: what a kernel loads and writes, in which order, and what of it may be the same element.

`sections_of` analyses whole kernels, for the data access rules: writes to one element form a group, and
groups are found by their regions, so that a query for a load takes time proportional to the number of writes
that may alias it. `LaneAccesses` analyses the statements of one lane, for passes that move them.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Container, Iterator, Sequence
from operator import itemgetter

from diffsim.ir.nodes import (
    Atomic,
    Block,
    For,
    Kernel,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import blocks, custom_rule_blocks, statements
from diffsim.passes.analysis.affine import Definitions, definitions, element_of
from diffsim.passes.analysis.dependence import Access, DistanceVector, distances
from diffsim.passes.analysis.index_forms import index_forms
from diffsim.passes.analysis.path_conditions import NO_PATH, Truth, paths
from diffsim.passes.analysis.regions import RegionMap, region_of_index

Loops = tuple[For | While, ...]
Bases = tuple[Value | None, ...]
Shifts = tuple[int, ...]


class AccessSite:
    """A load or write: its number in program order, and the loops around it.

    Attributes:
        element: the canonical index of the element: each index as a value plus a constant.
        region: the rows, and components, that it stays within.
        truths: the conditions of the branches around it.
        kind: "load", "store", or the op of an atomic update.
    """

    __slots__ = ("count", "element", "kind", "loops", "region", "stmt", "truths")

    def __init__(
        self,
        stmt: Access,
        count: int,
        loops: Loops,
        truths: tuple[Truth, ...],
        defs: Definitions,
    ) -> None:
        self.stmt = stmt
        self.count = count
        self.loops = loops
        self.truths = truths
        self.kind = stmt.op if isinstance(stmt, Atomic) else type(stmt).__name__.lower()
        self.element = element_of(stmt.index, defs)
        self.region = region_of_index(stmt.index, defs)


class WriteGroup:
    """Writes of one kind to one element in the same loops and branches, in program order."""

    __slots__ = ("sites",)

    def __init__(self) -> None:
        self.sites: list[AccessSite] = []

    @property
    def first(self) -> AccessSite:
        return self.sites[0]

    @property
    def last(self) -> AccessSite:
        return self.sites[-1]


class Section:
    """A task's bounds, or its body: what it loads and writes, by memory.

    Attributes:
        groups: the writes, those to one element together.
    """

    def __init__(
        self, task: Task, block: Block, axes: tuple[Value, ...], defs: Definitions
    ) -> None:
        self.task = task
        self.axes = axes
        self.loads: dict[Mem, list[AccessSite]] = {}
        self.writes: dict[Mem, list[AccessSite]] = {}
        for site in _sites(task, block, defs):
            # Scratch belongs to one lane, and the adjoint fills its own copy again instead of loading it as
            # the launch left it: no access rule concerns it.
            if site.stmt.mem.kind == "scratch":
                continue
            found = self.loads if site.kind == "load" else self.writes
            found.setdefault(site.stmt.mem, []).append(site)
        self.groups = {mem: _grouped(writes) for mem, writes in self.writes.items()}
        self._groups_by_region: dict[Mem, RegionMap[WriteGroup]] = {}

    def loads_of(self, mems: set[Mem]) -> Iterator[AccessSite]:
        """Yield the loads of these memories."""
        for mem in mems:
            yield from self.loads.get(mem, [])

    def overlapping(self, site: AccessSite) -> list[WriteGroup]:
        """Return the writes that may touch what this access does, in whatever lane or iteration."""
        mem = site.stmt.mem
        if mem not in self._groups_by_region:
            groups = ((g.first.region, g) for g in self.groups.get(mem, ()))
            self._groups_by_region[mem] = RegionMap(groups)
        # A set has no order of its own: sorting by program order makes errors name the same line in
        # each run.
        found = self._groups_by_region[mem].overlapping(site.region)
        return sorted(found, key=lambda g: g.first.count)

    def distances(
        self, one: AccessSite, other: AccessSite, same: tuple[Value, ...] = ()
    ) -> DistanceVector:
        """Return how far apart the iterations are in which the two touch the same element."""
        return distances(self.task, one.stmt, other.stmt, same)

    def same_lane(self, one: AccessSite, other: AccessSite) -> bool:
        """Whether they touch the same element in the same lane only, if at all."""
        return self.distances(one, other).same(self.axes)

    def before(self, one: AccessSite, other: AccessSite) -> bool:
        """Whether, in each lane, the one is done with an element when the other touches it."""
        found = self.distances(one, other, self.axes)
        if found.never:
            return True
        # Lexicographic order on the common loops, outermost first: the first loop whose iterations must
        # differ decides. If they may be equal (distance 0 is possible), the next loop does, and at last
        # the order of the statements in the body.
        for a, b in zip(one.loops, other.loops, strict=False):
            if a is not b:
                break
            # Nothing is known of the distance in a while loop without a counter; 1 means "the one may be
            # later".
            index = self._index(a)
            most = 1 if index is None else found.of(index)[1]
            if most < 0:  # the one is in an earlier iteration
                return True
            if most > 0:
                return False
        # Same iteration of all common loops: program order.
        return one.count < other.count

    def _index(self, loop: For | While) -> Value | None:
        """Return the value that grows from iteration to iteration."""
        if isinstance(loop, For):
            return loop.index
        counter = index_forms(self.task).counters.get(loop)
        return None if counter is None else counter.param


def sections_of(kernel: Kernel) -> list[Section]:
    """Return the bounds and the body of each task, in order."""
    defs = definitions(kernel)
    return [
        Section(t, block, axes, defs)
        for t in kernel.tasks
        for block, axes in ((t.bounds, ()), (t.body, t.axes))
    ]


def _grouped(writes: list[AccessSite]) -> list[WriteGroup]:
    """Return writes to one memory as groups, in the order of their first ones."""
    found: dict[object, WriteGroup] = {}
    for w in writes:
        # Members have the same answer to every question below, so one of them is asked: an unrolled
        # loop that updates one element a thousand times costs as much as one update.
        found.setdefault((w.element, w.loops, w.truths, w.kind), WriteGroup()).sites.append(w)
    return list(found.values())


def _sites(task: Task, block: Block, defs: Definitions) -> Iterator[AccessSite]:
    """Yield the accesses of a block of a task, numbered in program order."""
    count, path_of = 0, paths(task)

    def visit(b: Block, loops: Loops) -> Iterator[AccessSite]:
        nonlocal count
        for s in b.stmts:
            # A statement's number precedes those of its blocks: a pre-order numbering.
            count += 1
            if isinstance(s, (Load, Store, Atomic)):
                yield AccessSite(s, count, loops, path_of.get(s, NO_PATH).truths, defs)
            inside = (*loops, s) if isinstance(s, (For, While)) else loops
            for inner in blocks(s):
                yield from visit(inner, inside)
            # What only the adjoint loads must be then as it is here; it writes nothing here.
            for inner in custom_rule_blocks(s):
                yield from (p for p in visit(inner, inside) if p.kind == "load")

    yield from visit(block, ())


class LaneAccesses:
    """Which elements the statements of a lane access, by the number of the statement.

    A statement with blocks inside it counts as accessing what they do. Elements are looked up by the
    bases of their indices, and by the constants added to them.

    Args:
        stmts: the statements of one block.
        defs: the op that computes each value.
        differing: pairs of integers that differ wherever the block runs.
    """

    def __init__(
        self,
        stmts: Sequence[Stmt],
        defs: Definitions,
        differing: Container[frozenset[Value | None]] = (),
    ) -> None:
        self._definitions = defs
        self._differing = differing
        self._accesses: dict[Mem, dict[Bases, dict[Shifts, list[tuple[int, Access]]]]] = {}
        for k, s in enumerate(stmts):
            for x in statements(Block([s])):
                if isinstance(x, (Load, Store, Atomic)):
                    bases, shifts = self._split(x)
                    of_mem = self._accesses.setdefault(x.mem, {})
                    of_mem.setdefault(bases, {}).setdefault(shifts, []).append((k, x))

    def _split(self, s: Access) -> tuple[Bases, Shifts]:
        element = element_of(s.index, self._definitions)
        return tuple([base for base, _ in element]), tuple([shift for _, shift in element])

    def same_element(self, one: Access, other: Access) -> bool:
        """Whether two accesses certainly touch the same element."""
        return one.mem is other.mem and self._split(one) == self._split(other)

    def next_access(self, one: Access, since: int, *, writing: bool = False) -> int | None:
        """Return the first statement from `since` on that may access (or only write) the element of one.

        Another access certainly touches another element if some index is the same base plus another
        constant, or another base plus the same constant, and the bases are known to differ.
        """
        # Same bases: the elements are equal or different by their shifts alone. Different bases: a
        # common index with another shift still tells them apart, otherwise they may be equal.
        bases, shifts = self._split(one)
        found: list[int] = []
        for theirs, elements in self._accesses.get(one.mem, {}).items():
            if theirs == bases:
                close = [elements.get(shifts, [])]
            else:
                pairs = list(enumerate(zip(bases, theirs, strict=False)))
                same = [k for k, (a, b) in pairs if a is b]
                apart = [k for k, (a, b) in pairs if frozenset((a, b)) in self._differing]
                close = [
                    p
                    for at, p in elements.items()
                    if all(at[k] == shifts[k] for k in same)
                    and all(at[k] != shifts[k] for k in apart)
                ]
            for p in close:
                # The lists are in the order of the statements, so the start is found by bisection.
                after = itertools.islice(p, bisect.bisect_left(p, since, key=itemgetter(0)), None)
                at = next((k for k, x in after if not (writing and isinstance(x, Load))), None)
                if at is not None:
                    found.append(at)
        return min(found, default=None)

    def loaded_before(self, one: Access, k: int) -> bool:
        """Whether a statement before the one numbered k certainly loads the element."""
        bases, shifts = self._split(one)
        accesses = self._accesses.get(one.mem, {}).get(bases, {}).get(shifts, ())
        return any(j < k and isinstance(x, Load) for j, x in accesses)
