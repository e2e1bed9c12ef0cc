"""When one compiled kernel was launched: which launch a call of `kernel.grad` belongs to.

The first call of `kernel.grad(...)` after a launch belongs to the last launch with these arguments. A second
one may mean the same launch, with other gradients of its outputs, or the launch before it, on the way back
through a program. The two are indistinguishable, so it is run only where both have the same adjoint: where
nothing that the adjoint loads has changed since the earlier launch (docs/adr/0019).

`were_recomputed` tells whether what a launch has read was made again by the launches that had made it. It is
asked where `kernel.grad` would be refused, as a field was written since the launch (docs/adr/0034).
Two walks go back, launch by launch: from the launch, and from now. They look for what wrote the fields that
the derivative reads. As long as both find the same kernel with the same arguments, these fields are the same
if what that kernel read, and what it left as it was, is the same. (The elements that it stores under a
condition may be all that the derivative reads: both are traced.) The walks end where that was not written in
between. Every reading of the clock on the way must be that of a known launch, or of a write to a
gradient: what is not understood is refused. No value is compared.
"""

from __future__ import annotations

import bisect
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from diffsim.ir.nodes import Atomic, InlineLLVM, Load, Store, Task
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.ownership import written_by_others
from diffsim.passes.analysis.regions import reads
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.passes.analysis.regions import RegionAccess
    from diffsim.runtime.fields.field import Field
    from diffsim.runtime.kernels.access_summary import Box
    from diffsim.runtime.kernels.derivative import Derivative
    from diffsim.runtime.kernels.specialization import Specialization

    Event = tuple[Specialization, tuple[Any, ...]]

A = TypeVar("A", Load, Store, Atomic)

STRETCH = 32
"""A row of readings is checked for its length each time that it has grown by so many (a power of 2)."""
# Launches remembered over all combinations of arguments, but at least `STRETCH` for each: half a MiB of
# readings.
_MOST = 1 << 16


def new_row(*readings: int) -> array[int]:
    """Make a compact row of clock readings."""
    # 8 bytes for each launch; a list would hold a pointer and an integer object.
    return array("q", readings)


class LaunchHistory:
    """The launches of one compiled kernel.

    Attributes:
        last: the clock's reading and the random numbers' key of the last one; None if there was none.
        times: for each combination of arguments the clock's readings, oldest first, of launches that no
            gradient was asked for yet, and of those after the last such call.
        seeds: the random numbers' key of the last launch with given arguments, if the kernel draws any.
        forgot: whether combinations of arguments were forgotten.
    """

    def __init__(self) -> None:
        self.last: tuple[int, int] | None = None
        self.times: dict[Any, array[int]] = {}
        self.seeds: dict[Any, int] = {}
        self.forgot = False
        # For each combination: the last launch when `kernel.grad` was last called, and the calls since that
        # launch.
        self._asked: dict[Any, tuple[int, int]] = {}

    def note(self, key: object, now: int) -> None:
        """Add a launch whose arguments have this key."""
        times = self.times.setdefault(key, new_row())
        times.append(now)
        self.shorten(times)

    def forget(self) -> None:
        """Drop all launches, as there are too many combinations of arguments."""
        for kept in (self.times, self.seeds, self._asked):
            kept.clear()
        self.forgot = True

    def shorten(self, times: array[int]) -> None:
        """Drop readings in the middle of a row that has grown too long.

        A launch in the middle then counts as one that was earlier: more may have changed since, never less.
        """
        # Amortized by `STRETCH`: callers test the length once for so many launches.
        most = max(STRETCH, _MOST // len(self.times))
        # The oldest one stays, and the newer half: calls of `kernel.grad` begin at the end. A call that goes
        # back into the gap gets an earlier reading, against which more counts as changed.
        if len(times) > most:
            del times[1 : len(times) - most // 2]

    def asked(self, key: object) -> tuple[int, int]:
        """Find the earliest launch that a call of `kernel.grad` made now may belong to.

        Returns:
            The reading, and how many calls there are since the last launch, this one included.
        """
        times = self.times[key]
        last, count = self._asked.get(key, (0, 0))
        if not count:
            return times[-1], 1
        # Each earlier call took one launch off the end of the row, as a stack.
        if last != times[-1]:  # launched since: the launches asked for are done with
            # All calls up to here are settled: what they stood for cannot be asked for again.
            done = bisect.bisect_right(times, last)
            del times[max(done - count, 0) : done], self._asked[key]
            return times[-1], 1
        # At the front the row ends: further calls mean the first launch again.
        return times[-count - 1 if count < len(times) else 0], count + 1

    def answered(self, key: object, count: int) -> None:
        """Record that this call, the `count`th since the last launch, was run."""
        self._asked[key] = self.times[key][-1], count


# ---- inputs that were computed again

_LONGEST_WALK = 256
"""Launches that a walk looks at."""

gradient_calls: deque[int] = deque(maxlen=1 << 12)
"""When derivatives ran that write gradients alone."""


def were_recomputed(derivative: Derivative, args: tuple[Any, ...], since: int) -> bool:
    """Return whether all that the derivative reads is again as its launch at `since` has read it."""
    special = derivative.specialization
    if not _is_plain(special):
        return False
    needs: set[Box] = set()
    for a in derivative.accesses.reads:
        box = special.accesses.box(a, args)
        if box is None:
            return False
        if box[0].versions.changed(box[1], since):
            needs.add(box)
    # What the launch itself wrote: the walk starts before it.
    if any(f.is_grad for f, _ in needs) or _touches((special, args), needs):
        return False
    return _same_before(needs, since, session.clock + 1, _Reader(derivative, args, set(needs)))


class _Reader(NamedTuple):
    """The derivative that asks, and the parts of fields that it alone needs: of these, what it loads."""

    derivative: Derivative
    args: tuple[Any, ...]
    alone: set[Box]

    def finds_written(self, event: Event, now: int, box: Box) -> bool:
        """Return whether all that it loads of this part was stored by a launch at this reading.

        A store under a condition is repeated exactly alike where the condition reads the same.
        """
        if box not in self.alone:
            return False
        loaded = _loaded(self.derivative, self.args, box[0])
        stored = None if loaded is None else _stored(event, now, box[0])
        return loaded is not None and stored is not None and bool(np.isin(loaded, stored).all())


def _loaded(derivative: Derivative, args: tuple[Any, ...], f: Field) -> np.ndarray | None:
    """Return the elements of a field that a derivative's launch has read; None: it is unknown."""
    special = derivative.specialization
    traced = _accesses(special, args, f, Load)
    again = (
        a.stmt
        for a in reads(derivative.ir)
        if isinstance(a.stmt, Load)
        and a.stmt.origin is not a.stmt
        and special.object_of(a.mem, args) is f
    )
    if not all(any(s.origin is t for t in traced) for s in again):
        return None
    # What the indices are computed from is among what the derivative needs.
    return special.accessed_elements(args, traced, None)


def _stored(event: Event, now: int, f: Field) -> np.ndarray | None:
    """Return the elements of a field that a launch at this reading has stored; None: it is unknown."""
    special, args = event
    # An addition keeps what was there.
    if _accesses(special, args, f, Atomic) or any(
        special.object_of(mem, args) is f for t in special.ir.tasks for _, mem, _ in t.reductions
    ):
        return None
    # A store to a component keeps the others.
    stores = [s for s in _accesses(special, args, f, Store) if len(s.index) == s.mem.rank]
    return special.accessed_elements(args, stores, now)


def _accesses(special: Specialization, args: tuple[Any, ...], f: Field, kind: type[A]) -> list[A]:
    return [
        s
        for t in special.ir.tasks
        for s in task_statements(t)
        if isinstance(s, kind) and special.object_of(s.mem, args) is f
    ]


def _same_before(needs: set[Box], then: int, now: int, reader: _Reader) -> bool:
    """Return whether these parts of fields were the same before two readings of the clock."""
    launched = then
    while True:
        # What was not written since the earlier reading is the same.
        needs = {(f, row) for f, row in needs if f.versions.changed(row, then - 1)}
        if not needs:
            return True
        if any(f in session.exported for f, _ in needs):
            return False
        again = _last_writer(needs, now, launched)
        first = _last_writer(needs, then, 0)
        if again is None or first is None or again[1] != first[1]:
            return False
        # A tape that restored a field undid its writes, and their readings.
        if launched == then and max(f.versions.last(row) for f, row in needs) != again[0]:
            return False
        then, now = first[0], again[0]
        kept = {
            box
            for box in needs
            if not _overwrites(again[1], box) and not reader.finds_written(again[1], now, box)
        }
        before = _read_before(again[1])
        if before is None:
            return False
        reader.alone.difference_update(before)
        needs = kept | before


def _last_writer(needs: set[Box], before: int, after: int) -> tuple[int, Event] | None:
    """Return the last launch between two readings that wrote to these parts; None: it is unknown."""
    for now in range(before - 1, max(after, before - 1 - _LONGEST_WALK), -1):
        event = _launched_at(now)
        if event is None:
            if now in gradient_calls or _sets_gradient(now):
                continue
            return None
        if not _is_plain(event[0]):
            return None
        if _touches(event, needs):
            return now, event
    return None


def _launched_at(now: int) -> Event | None:
    """Return the kernel that was launched at this reading of the clock, and its arguments."""
    found: list[Event] = [
        (special, key)
        for special in list(session.specializations)
        if special.launches.last is not None and special.launches.last[0] >= now
        for key, times in list(special.launches.times.items())
        if times and times[-1] >= now and times[bisect.bisect_left(times, now)] == now
    ]
    # Threads that launch at once may get the same reading.
    return found[0] if len(found) == 1 else None


def _sets_gradient(now: int) -> bool:
    """Return whether a statement of Python wrote to a gradient then, which is all that it did."""
    return any(
        f.adjoint is not None
        and f.adjoint.versions.whole == now
        and isinstance(f.adjoint.versions.writer, tuple)
        for f in list(session.with_grad)
    )


def _is_plain(special: Specialization) -> bool:
    """Return whether a launch is told by its scalars, and does the same each time that it reads the same."""
    return (
        not special.arguments.arrays
        and all(
            p.kind == "value" and p.type is not None and not p.type.shape
            for p in special.arguments.parameters
        )
        and not special.translation.uses_random
        and all(_repeats(t) for t in special.ir.tasks)
    )


def _repeats(task: Task) -> bool:
    """Return whether the lanes of a task do the same in any order, up to the rounding of sums."""
    found = list(task_statements(task))
    # Code of other compilers may have a state of its own.
    if any(isinstance(s, InlineLLVM) for s in found):
        return False
    own = written_by_others(task)
    kinds: dict[Any, set[str]] = {}
    for op, mem, _ in task.reductions:
        kinds.setdefault(mem, set()).add(op)
    totals = set(kinds)
    for s in found:
        if isinstance(s, (Load, Store)) and (s.mem in totals or not own.is_own(s)):
            return False
        if isinstance(s, Atomic):
            # The old value tells which lanes came before.
            if s.out is not None:
                return False
            kinds.setdefault(s.mem, set()).add(s.op)
    return all(len(ops) == 1 and "xchg" not in ops for ops in kinds.values())


def _touches(event: Event, needs: set[Box]) -> bool:
    """Return whether a launch may write to these parts of fields."""
    special, args = event
    boxes = [special.accesses.box(w, args) for w in special.accesses.writes]
    return any(
        box is None or (box[0] is f and (box[1] is None or row is None or box[1] == row))
        for box in boxes
        for f, row in needs
    )


def _read_before(event: Event) -> set[Box] | None:
    """Return what a launch reads, which must be the same for it to write the same; None: it is unknown."""
    special, args = event
    # 0.0 and -0.0 are the same key, and not the same argument.
    values = zip(special.arguments.parameters, args, strict=True)
    if any(p.type is not None and p.type.scalar.is_float and a == 0 for p, a in values):
        return None
    before: set[Box] = set()
    for a in special.accesses.exposed_reads:
        box = special.accesses.box(a, args)
        if box is None or box[0].is_grad:
            return None
        before.add(box)
    return before


def _overwrites(event: Event, box: Box) -> bool:
    """Return whether a launch certainly writes each element of this part of a field."""
    special, args = event
    f = box[0]

    def covers(w: RegionAccess) -> bool:
        if special.object_of(w.mem, args) is not f:
            return False
        axes = {r.axis for r in w.region}
        # Confined to rows of another axis, or to one index of a row of several, it leaves elements out.
        whole_row = axes == {f.versions.axis} and f.versions.block == 1
        return not axes or (whole_row and box[1] is not None and special.box(w, args) == box)

    return any(covers(w) for w in special.accesses.must_write)
