"""Where a kernel loads and writes: in what order, and which of it may be the same element.

Writes to one element are looked at as groups, and by the parts of memory that they stay within, so that
asking about each load takes time in proportion to the writes that it may have to do with.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffsim.ir.nodes import Atomic, Block, For, Kernel, Let, Load, Mem, Store, Task, Value, While
from diffsim.ir.traversal import blocks, custom_rule_blocks
from diffsim.passes.analysis.affine import offset_of
from diffsim.passes.analysis.dependence import Access, DistanceVector, LinearForms
from diffsim.passes.analysis.regions import ByPart, definitions, rows_of

Loops = tuple[For | While, ...]


class AccessSite:
    """A load or write: where it stands in program order, and in which loops.

    Attributes:
        element: what the element is known by: each index as a value plus a constant.
        part: the rows, and components, that it stays within.
        kind: "load", "store", or the op of an atomic update.
    """

    __slots__ = ("count", "element", "kind", "loops", "part", "stmt")

    def __init__(self, stmt: Access, count: int, loops: Loops, made_by: dict[Value, Let]) -> None:
        self.stmt = stmt
        self.count = count
        self.loops = loops
        self.kind = stmt.op if isinstance(stmt, Atomic) else type(stmt).__name__.lower()
        self.element = tuple([offset_of(i, made_by) for i in stmt.index])
        self.part = rows_of(stmt.index, made_by)


class Group:
    """Writes of one kind to one element in the same loops, in program order."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places: list[AccessSite] = []

    @property
    def first(self) -> AccessSite:
        return self.places[0]

    @property
    def last(self) -> AccessSite:
        return self.places[-1]


class Section:
    """A task's bounds, or its body: what it loads and writes, by memory.

    Attributes:
        groups: the writes, those to one element together.
    """

    def __init__(
        self, task: Task, block: Block, axes: tuple[Value, ...], made_by: dict[Value, Let]
    ) -> None:
        self.task = task
        self.axes = axes
        self.loads: dict[Mem, list[AccessSite]] = {}
        self.writes: dict[Mem, list[AccessSite]] = {}
        for place in _places(block, made_by):
            if place.stmt.mem.kind == "scratch":
                continue
            found = self.loads if place.kind == "load" else self.writes
            found.setdefault(place.stmt.mem, []).append(place)
        self.groups = {mem: _grouped(writes) for mem, writes in self.writes.items()}
        self._by_part: dict[Mem, ByPart[Group]] = {}
        self._sums: LinearForms | None = None

    def loads_of(self, mems: set[Mem]) -> Iterator[AccessSite]:
        """The loads of these memories."""
        for mem in mems:
            yield from self.loads.get(mem, [])

    def meeting(self, place: AccessSite) -> list[Group]:
        """The writes that may touch what this place does, whatever lane or turn it is in."""
        mem = place.stmt.mem
        if mem not in self._by_part:
            self._by_part[mem] = ByPart((g.first.part, g) for g in self.groups.get(mem, ()))
        return sorted(self._by_part[mem].meeting(place.part), key=lambda g: g.first.count)

    def distances(
        self, one: AccessSite, other: AccessSite, same: tuple[Value, ...] = ()
    ) -> DistanceVector:
        """How far apart the turns are in which the two touch the same element."""
        if self._sums is None:
            self._sums = LinearForms(self.task)
        return self._sums.distances(one.stmt, other.stmt, same)

    def same_lane(self, one: AccessSite, other: AccessSite) -> bool:
        """Whether they touch the same element in the same lane only, if at all."""
        return self.distances(one, other).same(self.axes)

    def before(self, one: AccessSite, other: AccessSite) -> bool:
        """Whether, in each lane, the one is done with an element when the other touches it."""
        found = self.distances(one, other, self.axes)
        if found.never:
            return True
        for a, b in zip(one.loops, other.loops, strict=False):
            if a is not b:
                break
            most = found.of(a.index)[1] if isinstance(a, For) else 1
            if most < 0:  # the one is in an earlier turn
                return True
            if most > 0:
                return False
        return one.count < other.count


def _grouped(writes: list[AccessSite]) -> list[Group]:
    """Writes to one memory as groups, in the order of their first ones."""
    found: dict[object, Group] = {}
    for p in writes:
        found.setdefault((p.element, p.loops, p.kind), Group()).places.append(p)
    return list(found.values())


def sections_of(kernel: Kernel) -> list[Section]:
    """The bounds and the body of each task, in order."""
    made_by = definitions(kernel)
    return [
        Section(t, block, axes, made_by)
        for t in kernel.tasks
        for block, axes in ((t.bounds, ()), (t.body, t.axes))
    ]


def _places(block: Block, made_by: dict[Value, Let]) -> Iterator[AccessSite]:
    count = 0

    def visit(b: Block, loops: Loops) -> Iterator[AccessSite]:
        nonlocal count
        for s in b.stmts:
            count += 1
            if isinstance(s, (Load, Store, Atomic)):
                yield AccessSite(s, count, loops, made_by)
            inside = (*loops, s) if isinstance(s, (For, While)) else loops
            for inner in blocks(s):
                yield from visit(inner, inside)
            for inner in custom_rule_blocks(
                s
            ):  # what only the adjoint reads must be there as it is here
                yield from (p for p in visit(inner, inside) if p.kind == "load")

    yield from visit(block, ())
