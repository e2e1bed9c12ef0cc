"""The global data access rules inside of one kernel.

The adjoint runs after the kernel and loads fields again. What it loads must be what the forward code saw:
no statement of the kernel may write an element after a load that the adjoint repeats. The check looks at
exactly the loads that are left in the finished adjoint, and lets pass what it can prove:

- writes and loads of different rows (x[t + 1, i] and x[t, i] with the argument t, or constants);
- writes by an earlier task, or by an earlier statement or turn of the same lane on an element that no
  other lane reaches (`meet.py`);
- anything whose value the adjoint does not load (sums, linear updates).

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
from diffsim.ir.walk import blocks, task_statements
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
            group = self.loads if isinstance(place.stmt, Load) else self.writes
            group.setdefault(place.stmt.mem, []).append(place)


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

    yield from visit(block, ())


class _Checker:
    def __init__(
        self, primal: Kernel, repeated: set[Load], activity: Activity, *, in_place: bool
    ) -> None:
        self.in_place = in_place
        self.before: set[Mem] = set()
        self.repeated = repeated
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
        if final or not self.in_place or load.mem.kind not in ("field", "array"):
            raise _stale(load, write)
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
                        raise _stale(load.stmt, write.stmt)

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


def _stale(load: Load, write: Load | Write) -> GlobalDataAccessError:
    name = load.mem.name
    return GlobalDataAccessError(
        f"the gradient needs {name} as it was read, and the kernel changes it later: global data "
        f"access rule 1\n  changed here:\n{write.span.text()}\n  read here:",
        load.span,
        hint=f"write into another field (or another row: {name}[t + 1, ...]), or let the tape keep what "
        'was there: ds.Tape(loss, in_place="save")',
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
