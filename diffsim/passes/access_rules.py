"""The global data access rules inside of one kernel.

The adjoint runs after the kernel and loads fields again. What it loads must be what the forward code saw:
no statement of the kernel may write an element after a load that the adjoint repeats. The check looks at
exactly the loads that are left in the finished adjoint, and lets pass what it can prove:

- writes and loads of different rows (x[t + 1, i] and x[t, i] with the argument t, or constants);
- writes by an earlier task, or by an earlier statement or turn of the same lane on an element that no
  other lane reaches (`meet.py`);
- anything whose value the adjoint does not load (sums, linear updates).

The adjoint of an atomic minimum or maximum asks for its element as the kernel left it. So after it nothing
may change the element but updates of the same kind, and no derivative may flow through what it was between
two of them: that value had another winner.

In a parallel loop, an element that one lane writes and another may read or write is a race in the forward
program already; its gradient is refused too, unless all that meet are additions.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffsim.errors import GlobalDataAccessError
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    For,
    Kernel,
    Let,
    Load,
    Mem,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.walk import blocks, given_blocks, task_statements
from diffsim.passes.access import apart, definitions, part_of
from diffsim.passes.activity import Activity
from diffsim.passes.meet import Sums

Loops = tuple[For | While, ...]
Write = Store | Atomic


class _Place:
    """A load or write: where it stands in program order, and in which loops."""

    __slots__ = ("count", "loops", "stmt")

    def __init__(self, stmt: Load | Write, count: int, loops: Loops) -> None:
        self.stmt = stmt
        self.count = count
        self.loops = loops


class _Section:
    """A task's bounds, or its body: what it loads and writes, by memory."""

    def __init__(self, task: Task, block: Block, axes: tuple[Value, ...]) -> None:
        self.task = task
        self.axes = axes
        self.loads: dict[Mem, list[_Place]] = {}
        self.writes: dict[Mem, list[_Place]] = {}
        for place in _places(block):
            if place.stmt.mem.kind == "scratch":
                continue
            group = self.loads if isinstance(place.stmt, Load) else self.writes
            group.setdefault(place.stmt.mem, []).append(place)

    def loads_of(self, mems: set[Mem]) -> Iterator[Load]:
        """The loads of these memories."""
        for mem in mems:
            for place in self.loads.get(mem, []):
                assert isinstance(place.stmt, Load)
                yield place.stmt


def check_access(
    primal: Kernel, adjoint: Kernel, activity: Activity, *, in_place: bool = False
) -> frozenset[Mem]:
    """Refuse a kernel whose adjoint would load elements that the kernel changed after reading them.

    Args:
        primal: the kernel.
        adjoint: its finished adjoint.
        activity: what derivatives flow through.
        in_place: whether memories can be put back to what they were before the launch.

    Returns:
        The memories that the adjoint must find as they were before the launch (with `in_place`);
        all others it must find as they were after it.

    Raises:
        GlobalDataAccessError: with the line that reads and the line that writes.
    """
    repeated = {
        s.origin
        for t in adjoint.tasks
        for s in task_statements(t)
        if isinstance(s, Load) and s.origin is not s
    }
    _check_gradients_read(adjoint)
    work = _Checker(primal, repeated, activity, in_place=in_place)
    sections = [
        _Section(t, block, axes)
        for t in primal.tasks
        for block, axes in ((t.bounds, ()), (t.body, t.axes))
    ]
    for number, section in enumerate(sections):
        for mem, loads in section.loads.items():
            for later in sections[number + 1 :]:
                work.later(loads, later.writes.get(mem, []))
            if mem in section.writes:
                work.within(section, loads, section.writes[mem])
        for mem, writes in section.writes.items():
            if mem.grad is not None and section.axes:
                work.stores(section, writes)
    for number, section in enumerate(sections):
        for mem in [m for m in section.loads if m in work.before]:
            for earlier in sections[:number]:
                work.later(section.loads[mem], earlier.writes.get(mem, []), final=True)
            work.unwritten(section, section.loads[mem], section.writes.get(mem, []))
    work.extremes(sections)
    return frozenset(work.before)


def _check_gradients_read(adjoint: Kernel) -> None:
    """A gradient that the kernel reads (as a constant) and that its own adjoint adds to."""
    written = {
        s.mem for t in adjoint.tasks for s in task_statements(t) if isinstance(s, (Store, Atomic))
    }
    for t in adjoint.tasks:
        for s in task_statements(t):
            if isinstance(s, Load) and s.origin is not s and s.mem.is_grad and s.mem in written:
                raise GlobalDataAccessError(
                    f"the gradient needs {s.mem.name} as it was read here, and changes it itself",
                    s.origin.span,
                    hint=f"copy {s.mem.name} into another field before, and read that one",
                )


def _places(block: Block) -> Iterator[_Place]:
    count = 0

    def visit(b: Block, loops: Loops) -> Iterator[_Place]:
        nonlocal count
        for s in b.stmts:
            count += 1
            if isinstance(s, (Load, Store, Atomic)):
                yield _Place(s, count, loops)
            inside = (*loops, s) if isinstance(s, (For, While)) else loops
            for inner in blocks(s):
                yield from visit(inner, inside)
            for inner in given_blocks(s):  # what only the adjoint reads must be there as it is here
                yield from (p for p in visit(inner, inside) if isinstance(p.stmt, Load))

    yield from visit(block, ())


class _Checker:
    def __init__(
        self, primal: Kernel, repeated: set[Load | Atomic], activity: Activity, *, in_place: bool
    ) -> None:
        self.in_place = in_place
        self.before: set[Mem] = set()
        self.repeated = repeated
        self.extreme = {s.mem for s in repeated if isinstance(s, Atomic)}
        self.activity = activity
        self.made_by: dict[Value, Let] = definitions(primal)
        self.sums: dict[Task, Sums] = {}

    def disjoint(self, a: Load | Write, b: Load | Write) -> bool:
        """Whether other rows or other components keep the two apart."""
        rank = a.mem.rank
        if apart(part_of(a.index[:rank], self.made_by), part_of(b.index[:rank], self.made_by)):
            return True
        return any(
            isinstance(x, Const) and isinstance(y, Const) and x.value != y.value
            for x, y in zip(a.index[rank:], b.index[rank:], strict=False)
        )

    def needed(self, load: Load) -> bool:
        return load.origin in self.repeated

    def sums_of(self, task: Task) -> Sums:
        found = self.sums.get(task)
        if found is None:
            found = self.sums[task] = Sums(task)
        return found

    def stale(self, load: Load, write: Load | Write, *, final: bool = False) -> None:
        """A value that is not there any more after the launch: to be found as it was before, or refused."""
        kept = self.in_place and load.mem.kind in ("field", "array")
        if final or not kept or load.mem in self.extreme:
            raise _stale(load, write, kept)
        self.before.add(load.mem)

    def later(self, loads: list[_Place], writes: list[_Place], *, final: bool = False) -> None:
        """Loads, and writes that come after all of them (`final`: or before them)."""
        for load in (p.stmt for p in loads):
            assert isinstance(load, Load)
            if self.needed(load):
                for write in writes:
                    if not self.disjoint(load, write.stmt):
                        self.stale(load, write.stmt, final=final)

    def within(self, section: _Section, loads: list[_Place], writes: list[_Place]) -> None:
        """Loads and writes of the same lanes."""
        sums = self.sums_of(section.task)
        for load in loads:
            stmt = load.stmt
            assert isinstance(stmt, Load)
            needed = self.needed(stmt)
            if not needed and stmt.out not in self.activity.values:
                continue
            for write in writes:
                if self.disjoint(stmt, write.stmt):
                    continue
                if not sums.distances(stmt, write.stmt).same(section.axes):
                    raise _racing(stmt, write.stmt)
                if needed and not self.written_before(section, load, write):
                    self.stale(stmt, write.stmt)

    def unwritten(self, section: _Section, loads: list[_Place], writes: list[_Place]) -> None:
        """Loads of a memory that will be as it was before: no write may come before them."""
        for load in loads:
            assert isinstance(load.stmt, Load)
            if self.needed(load.stmt):
                for write in writes:
                    if not self.disjoint(load.stmt, write.stmt) and not self.read_before(
                        section, load, write
                    ):
                        raise _stale(load.stmt, write.stmt, True)

    def read_before(self, section: _Section, load: _Place, write: _Place) -> bool:
        """Whether, in each lane, the load is done with an element when the write changes it."""
        found = self.sums_of(section.task).distances(load.stmt, write.stmt, section.axes)
        if found.never:
            return True
        for one, other in zip(load.loops, write.loops, strict=False):
            if one is not other:
                break
            most = found.of(one.index)[1] if isinstance(one, For) else 1
            if most < 0:  # the load is in an earlier turn
                return True
            if most > 0:
                return False
        return load.count < write.count

    def written_before(self, section: _Section, load: _Place, write: _Place) -> bool:
        """Whether, in each lane, the write is done with an element when the load reads it."""
        found = self.sums_of(section.task).distances(load.stmt, write.stmt, section.axes)
        if found.never:
            return True
        for one, other in zip(load.loops, write.loops, strict=False):
            if one is not other:
                break
            least = found.of(one.index)[0] if isinstance(one, For) else -1
            if least > 0:  # the load is in a later turn
                return True
            if least < 0:
                return False
        return write.count < load.count

    # ---- minima and maxima

    def extremes(self, sections: list[_Section]) -> None:
        """Atomic minima and maxima: what else may happen to their elements."""
        found = [
            (number, place)
            for number, section in enumerate(sections)
            for writes in section.writes.values()
            for place in writes
            if isinstance(place.stmt, Atomic) and place.stmt.origin in self.repeated
        ]
        if found:
            summed = _summed(sections)
            for number, place in found:
                for load in sections[number].loads_of(summed):
                    raise _summed_up(place.stmt, load)
        for number, place in found:
            mem = place.stmt.mem
            for other, section in enumerate(sections):
                for write in section.writes.get(mem, []):
                    if _kind(write) != _kind(place):
                        self._extreme_kept(section, number - other, place, write)
                for read in section.loads.get(mem, []):
                    self._extreme_read(sections, other, read, number, place, found)

    def _extreme_kept(self, section: _Section, ahead: int, place: _Place, write: _Place) -> None:
        """An update and another kind of write, whose section lies so many before it."""
        if ahead > 0 or self.disjoint(place.stmt, write.stmt):
            return
        if ahead == 0:
            found = self.sums_of(section.task).distances(place.stmt, write.stmt)
            if not found.same(section.axes):
                raise _unordered(place.stmt, write.stmt)
            if self.written_before(section, place, write):
                return
        raise _changed(place.stmt, write.stmt)

    def _extreme_read(
        self,
        sections: list[_Section],
        at: int,
        load: _Place,
        number: int,
        place: _Place,
        found: list[tuple[int, _Place]],
    ) -> None:
        """A load that may see what an update made: no other update may come after the load."""
        stmt = load.stmt
        assert isinstance(stmt, Load)
        if not self.needed(stmt) and stmt.out not in self.activity.values:
            return
        if at < number or self.disjoint(stmt, place.stmt):
            return
        if at == number and self.read_before(sections[at], load, place):
            return
        for later, other in found:
            if other.stmt.mem is not stmt.mem or later < at or self.disjoint(stmt, other.stmt):
                continue
            if later > at or not self.written_before(sections[at], load, other):
                raise _between(stmt, other.stmt)

    def stores(self, section: _Section, writes: list[_Place]) -> None:
        """Writes of different lanes to one element, which are in no order if one of them stores."""
        sums = self.sums_of(section.task)
        for k, one in enumerate(writes):
            for two in writes[k:]:
                pair = (one.stmt, two.stmt)
                active = any(s.value in self.activity.values for s in pair)  # type: ignore[union-attr]
                if not active or not any(isinstance(s, Store) for s in pair):
                    continue
                if self.disjoint(*pair) or sums.distances(*pair).same(section.axes):
                    continue
                raise _colliding(*(pair if isinstance(one.stmt, Store) else pair[::-1]))


def _kind(place: _Place) -> str:
    """The op of an atomic update; "" for a store."""
    return place.stmt.op if isinstance(place.stmt, Atomic) else ""


def _summed(sections: list[_Section]) -> set[Mem]:
    """Temporaries that hold a float sum over the turns of a parallel loop, or something made of one.

    The adjoint adds them up again, in another order.
    """
    found: set[Mem] = set()
    while True:
        before = len(found)
        for section in sections:
            carried = next(section.loads_of(found), None) is not None
            for mem, writes in section.writes.items():
                if mem.kind == "temp" and mem.dtype.is_float:
                    adds = any(isinstance(p.stmt, Atomic) and p.stmt.op == "add" for p in writes)
                    if carried or (adds and section.axes):
                        found.add(mem)
        if before == len(found):
            return found


def _summed_up(update: Load | Write, load: Load) -> GlobalDataAccessError:
    name = load.mem.name
    return GlobalDataAccessError(
        f"the gradient of this update needs its value again, to the last bit, and {name} is a sum over the "
        f"turns of a loop, which comes out a little different each time\n  read here:\n{load.span.text()}"
        "\n  updated here:",
        update.span,
        hint=f"sum {name} up in a kernel of its own, into a field",
    )


def _changed(update: Load | Write, write: Load | Write) -> GlobalDataAccessError:
    name = update.mem.name
    return GlobalDataAccessError(
        f"the gradient of this update needs {name} as the update left it, and the kernel changes it in "
        f"another way: global data access rule 1\n  changed here:\n{write.span.text()}\n  updated here:",
        update.span,
        hint="update it in a launch of its own, or into another field",
    )


def _unordered(update: Load | Write, write: Load | Write) -> GlobalDataAccessError:
    return GlobalDataAccessError(
        f"turns of this parallel loop change the same element of {update.mem.name} in two ways, in no order, "
        f"so there is no defined gradient\n  changed here:\n{write.span.text()}\n  updated here:",
        update.span,
        hint="split the loop in two",
    )


def _between(load: Load, update: Load | Write) -> GlobalDataAccessError:
    name = load.mem.name
    return GlobalDataAccessError(
        f"the gradient needs to know which update {name} came from when it was read, and updates come after "
        f"it\n  updated here:\n{update.span.text()}\n  read here:",
        load.span,
        hint="read it in a launch after all updates, or keep the largest so far in a local variable",
    )


def _stale(load: Load, write: Load | Write, kept: bool) -> GlobalDataAccessError:
    """`kept`: whether the tape keeps what was there, which is not enough."""
    name = load.mem.name
    if kept:
        why = "which is neither what it is before the launch nor what it is after it"
        hint = "compute in a local variable and store that once, or split the kernel in two"
    else:
        why = "and the kernel changes it later"
        hint = (
            f"write into another field (or another row: {name}[t + 1, ...]), or let the tape keep what was "
            'there: ds.Tape(loss, in_place="save")'
        )
    return GlobalDataAccessError(
        f"the gradient needs {name} as it was read, {why}: global data access rule 1\n"
        f"  changed here:\n{write.span.text()}\n  read here:",
        load.span,
        hint=hint,
    )


def _racing(load: Load, write: Load | Write) -> GlobalDataAccessError:
    return GlobalDataAccessError(
        f"a turn of this parallel loop may read an element of {load.mem.name} that another one writes, so "
        f"there is no defined gradient\n  written here:\n{write.span.text()}\n  read here:",
        load.span,
        hint="read and write different fields, or split the loop in two",
    )


def _colliding(store: Load | Write, other: Load | Write) -> GlobalDataAccessError:
    name = store.mem.name
    place = (
        "" if other is store else f"\n  and also written here:\n{other.span.text()}\n  stored here:"
    )
    return GlobalDataAccessError(
        f"two turns of this parallel loop may write the same element of {name}, so which value it ends "
        f"with is not defined, and there is no gradient{place}",
        store.span,
        hint=f"let the index tell all turns apart, or add: {name}[...] += value, after setting {name} to 0 "
        "in another loop",
    )
