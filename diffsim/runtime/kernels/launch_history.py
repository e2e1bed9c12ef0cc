"""When one compiled kernel was launched: which launch a call of `kernel.grad` belongs to.

The first call of `kernel.grad(...)` after a launch belongs to the last launch with these arguments. A second
one may mean the same launch, with other gradients of its outputs, or the launch before it, on the way back
through a program. The two are indistinguishable, so it is run only where both have the same adjoint: where
nothing that the adjoint loads has changed since the earlier launch (docs/adr/0019).

`read_the_same` tells whether all that a derivative loads was the same after some launches as it is now. It is
asked where a field was written since: programs run a step once more before its gradients, or all steps
several times (docs/adr/0078). Value numbers tell (`runtime/numbering/value_numbers.py`). Where they differ,
the elements that a launch has stored under a condition may be all that the derivative loads: both are traced.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from diffsim.ir.nodes import Atomic, Load, Store
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.regions import reads
from diffsim.runtime.numbering.effects import arguments_of
from diffsim.runtime.numbering.value_numbers import value_numbers
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    from diffsim.passes.analysis.regions import RegionAccess
    from diffsim.runtime.binding.bound_fields import BoundFields
    from diffsim.runtime.fields.field import Field
    from diffsim.runtime.kernels.access_summary import Box
    from diffsim.runtime.kernels.derivative import Derivative
    from diffsim.runtime.kernels.specialization import Specialization
    from diffsim.runtime.numbering.effects import Effect

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
        signed_zeros: whether an argument was -0.0, which has the key of 0.0.
        effects: what launches with given arguments do (`runtime/numbering/effects.py`), where it was asked.
        calls: for each combination the last launch when `kernel.grad` was last called, and how many calls
            there were since that launch.
        bound: the combinations of fields that launch functions know, with rows of `times`.
    """

    def __init__(self) -> None:
        self.last: tuple[int, int] | None = None
        self.times: dict[Any, array[int]] = {}
        self.seeds: dict[Any, int] = {}
        self.forgot = False
        self.signed_zeros = False
        self.effects: dict[Any, Effect | None] = {}
        self.bound: list[BoundFields] = []
        self.calls: dict[Any, tuple[int, int]] = {}

    def note_zeros(self, args: Iterable[Any]) -> None:
        """Look for a -0.0 among the arguments of a launch."""
        for a in args:
            # `in` compares without a call of Python's; nearly no arguments are 0.
            flat = a if isinstance(a, tuple) else (a,)
            if 0 in flat and any(c == 0 and math.copysign(1.0, c) < 0 for c in flat):
                self.signed_zeros = True
                self.effects.clear()
                return

    def note(self, key: tuple[Any, ...], now: int) -> None:
        """Add a launch whose arguments have this key."""
        self.note_zeros(key)
        times = self.times.setdefault(key, new_row())
        times.append(now)
        self.shorten(times)

    def forget(self) -> None:
        """Drop all launches, as there are too many combinations of arguments."""
        for kept in (self.times, self.seeds, self.calls, self.effects):
            kept.clear()
        for bound in self.bound:
            bound.forget()
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
        last, count = self.calls.get(key, (0, 0))
        if not count:
            return times[-1], 1
        # Each earlier call took one launch off the end of the row, as a stack.
        if last != times[-1]:  # launched since: the launches asked for are done with
            self.settle(key, times, last, count)
            return times[-1], 1
        # At the front the row ends: further calls mean the first launch again.
        return times[-count - 1 if count < len(times) else 0], count + 1

    def settle(self, key: object, times: array[int], last: int, count: int) -> None:
        """Drop what so many calls since the launch at `last` stood for: it cannot be asked for again."""
        done = bisect.bisect_right(times, last)
        del times[done - count if count < done else 0 : done], self.calls[key]

    def since(self, key: object, reading: int) -> array[int]:
        """Return the readings of launches with this key from this one on."""
        times = self.times[key]
        return times[bisect.bisect_left(times, reading) :]

    def answered(self, key: object, count: int) -> None:
        """Record that this call, the `count`th since the last launch, was run."""
        self.calls[key] = self.times[key][-1], count


# ---- whether launches have read the same

_gradients: deque[list[int]] = deque(maxlen=1 << 10)
"""The first and last readings of derivatives that ran one after the other, and wrote gradients alone."""


def note_gradients(now: int) -> None:
    """Note that a derivative that writes gradients alone has run at this reading of the clock."""
    if _gradients and _gradients[-1][1] == now - 1:
        _gradients[-1][1] = now
    else:
        _gradients.append([now, now])


def read_the_same(derivative: Derivative, args: tuple[Any, ...], readings: Sequence[int]) -> bool:
    """Return whether all that a derivative loads is now as it was after the launches at these readings."""
    value_numbers.catch_up(_gradients)
    return all(_is_the_same(derivative, a, args, readings) for a in derivative.accesses.read_parts)


class Repeated:
    """The launches of one kernel that have read the same, as far as it was asked."""

    def __init__(self, derivative: Derivative) -> None:
        self._derivative = derivative
        # For each combination of arguments: the reading of the earliest such launch, and the one up to which
        # values did not change since.
        self._known: dict[Any, tuple[int, int]] = {}

    def reaches(self, key: object, args: tuple[Any, ...], since: int) -> bool:
        """Return whether all launches with this key since a reading have read what is there now."""
        value_numbers.catch_up(_gradients)
        known = self._known.get(key)
        if known is not None and known[0] <= since and known[1] == value_numbers.changed:
            return True
        derivative = self._derivative
        times = derivative.specialization.launches.times[key]
        first = bisect.bisect_left(times, since)
        if not read_the_same(derivative, args, times[first:]):
            return False
        # As many again: the next calls may mean these.
        last = max(2 * first - len(times), 0)
        while first > last and read_the_same(derivative, args, times[first - 1 : first]):
            first -= 1
        if len(self._known) > _MOST:
            self._known.clear()
        self._known[key] = times[first], value_numbers.changed
        return True


def _is_the_same(
    derivative: Derivative, a: RegionAccess, args: tuple[Any, ...], readings: Sequence[int]
) -> bool:
    box = derivative.specialization.box(a, args)
    if box is None or a.mem.level is not None:
        return False
    f, row = box
    before = [t for t in readings if f.versions.changed(row, t)]
    if not before:
        return True
    if f.is_grad or f.tree is not None or f in session.exported:
        return False
    place = f.number, row
    # Whatever has set a field back is no event of these numbers.
    if value_numbers.last_change(place) != f.versions.last(row):
        return False
    now = value_numbers.at(place)
    return all(
        then is not None and (then == now or _stored_again(derivative, args, box, then, now))
        for then in (value_numbers.at(place, t) for t in before)
    )


def first_difference(derivative: Derivative, args: tuple[Any, ...], readings: Sequence[int]) -> Any:
    """Return who made what a derivative loads another one than after these launches; None: unknown."""
    for a in derivative.accesses.read_parts:
        box = derivative.specialization.box(a, args)
        if box is None or _is_the_same(derivative, a, args, readings):
            continue
        place = box[0].number, box[1]
        now = value_numbers.at(place)
        for then in (value_numbers.at(place, t) for t in readings):
            if then is not None and now is not None and then != now:
                return value_numbers.first_difference(then, now)
    return None


# ---- stores under a condition


def _stored_again(
    derivative: Derivative, args: tuple[Any, ...], box: Box, then: int, now: int | None
) -> bool:
    """Return whether all that a derivative loads of a part was stored again by its last launch.

    A store under a condition is repeated exactly alike where the launch reads the same.
    """
    f, row = box
    if now is None or not value_numbers.last_stores(then, now):
        return False
    reading = f.versions.last(row)
    event = _launched_at(reading)
    loaded = _loaded(derivative, args, f)
    stored = None if event is None else _stored(event, reading, f)
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


def _launched_at(now: int) -> Event | None:
    """Return the kernel that was launched at this reading of the clock, and its arguments."""
    found: list[Event] = [
        (special, key)
        for special in members(session.specializations)
        if special.launches.last is not None and special.launches.last[0] >= now
        for key, times in list(special.launches.times.items())
        if times and times[-1] >= now and times[bisect.bisect_left(times, now)] == now
    ]
    # Threads that launch at once may get the same reading.
    if len(found) != 1:
        return None
    args = arguments_of(*found[0])
    return None if args is None else (found[0][0], args)
