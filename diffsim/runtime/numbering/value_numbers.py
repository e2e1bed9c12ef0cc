"""Value numbers of the parts of fields, at each launch and write from Python (docs/adr/0078).

A number stands for what a part held. It is made of what wrote it: of the launch (its kernel, its arguments,
the numbers of what it has read), of a constant from Python, or of nothing that is known: a new number. So
equal numbers are equal values, and no value is looked at. They are worked out when they are first asked for,
from the histories of launches and the notes of Python's writes; a reading of the clock that is found in
neither may have written to all that was written since.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim import locks
from diffsim.runtime.memory.written_values import Contents, CopyOf
from diffsim.runtime.numbering.effects import Effect, Place, Rule, effect_of
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field

    Specialization = Any  # of a room above this one: runtime/kernels/specialization.Specialization
    Entries = list[tuple[int, int]]

_MOST_READINGS = 1 << 16
"""Readings of the clock that are gone through at once; what was written before them is unknown."""
_MOST_NUMBERS = 1 << 17
"""Numbers, and changes of parts, that are kept; then all begins anew with the last readings."""
_FEWER_READINGS = 1 << 14
_MOST_LAYERS = 256
"""Launches whose stores lie on top of one another in a part."""
_ALWAYS = 1 << 62
_CONSTANTS = (int, float, np.number, np.bool_)


class _Past:
    """The numbers of one field: (reading, number) of each change of the whole, and of single rows."""

    __slots__ = ("rows", "whole")

    def __init__(self, start: int, number: int) -> None:
        self.whole: Entries = [(start, number)]
        self.rows: dict[int, Entries] = {}


class ValueNumbers:
    """The numbers of all parts of fields since some reading of the clock.

    Attributes:
        start: the reading before which nothing is known.
        now: the last reading that was gone through.
        changed: the last one that changed a value, as far as these numbers tell.
    """

    def __init__(self) -> None:
        self._lock = locks.rlock()
        self._exported: set[int] = set()
        self._fields: dict[int, Field] = {}
        self._begin(0)

    def _begin(self, start: int) -> None:
        """Forget all; what fields hold at this reading gets new numbers."""
        self.start = self.now = self.changed = start
        self._past: dict[int, _Past] = {}
        self._numbers: dict[Any, int] = {}
        self._nodes: list[Any] = []
        # Who made constants, launches and new numbers last, and when.
        self._makers: dict[int, tuple[int, Any]] = {}
        # Elements that Python has written since the last launch: of each part the last reading, and the
        # numbers of their values.
        self._elements: dict[Place, tuple[int, dict[Any, int]]] = {}
        self._changes = 0

    def _number(self, node: Any) -> int:
        """Return the number of what was made so."""
        found = self._numbers.get(node)
        if found is None:
            found = self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
        return found

    def _new(self, reading: int, place: Place, writer: Any = None) -> int:
        """Return the number of a value that is not known to be any other."""
        # One for each reading and place: nothing writes the same part twice at one reading.
        return self._by(writer, reading, self._number(("new", place, reading)))

    def _by(self, writer: Any, reading: int, number: int) -> int:
        """Note who has made what a number stands for last."""
        self._makers[number] = reading, writer
        return number

    # ---- asking

    def at(self, place: Place, reading: int = _ALWAYS) -> int | None:
        """Return the number of what a part held after a reading of the clock; None: it is unknown."""
        if reading < self.start:
            return None
        number, row = place
        past = self._past.get(number)
        if past is None:
            past = self._past[number] = _Past(self.start, self._new(self.start, (number, None)))
        since, whole = _last(past.whole, reading)
        if row is None:
            rows = ((r, _last(entries, reading)) for r, entries in past.rows.items())
            changed = frozenset((r, n) for r, (t, n) in rows if t > since)
            return self._number(("rows", number, whole, changed)) if changed else whole
        entries = past.rows.get(row)
        if entries is not None:
            then, found = _last(entries, reading)
            if then > since:
                return found
        return self._number(("row", number, whole, row))

    def last_change(self, place: Place) -> int:
        """Return the last reading at which a part was written, as far as these numbers go back."""
        number, row = place
        past = self._past.get(number)
        if past is None:
            return -1
        rows = past.rows.values() if row is None else [past.rows[row]] if row in past.rows else []
        return max(past.whole[-1][0], *(entries[-1][0] for entries in rows), -1)

    def first_difference(self, then: int, now: int) -> Any:
        """Return who made the first thing that the second of two numbers is made of, and the first is not.

        A writer, as versions have it; None: it is unknown.
        """
        only = self._made_of(now) - self._made_of(then)
        found = [self._makers[n] for n in only if n in self._makers]
        return min(found, key=lambda maker: maker[0])[1] if found else None

    def _made_of(self, number: int) -> set[int]:
        """Return all numbers that a number is made of, itself included."""
        found = {number}
        left = [number]
        while left:
            new = {n for n in _parts(self._nodes[left.pop()]) if n not in found}
            found |= new
            left += new
        return found

    # ---- going on

    def catch_up(self, gradients: Sequence[Sequence[int]]) -> None:
        """Go through all that was launched and written since the last time.

        Args:
            gradients: the first and last readings of derivatives that wrote gradients alone, in order.
        """
        with self._lock:
            self._skip()
            clock = session.clock
            # The usual case on the way back: gradients alone.
            if self.now < clock and gradients:
                first, last = gradients[-1]
                if first <= self.now + 1 and last == clock:
                    self.now = clock
            if self.now == clock:
                return
            placed = (f for f in members(session.placed) if not f.is_grad and not f.is_dual)
            self._fields = {f.number: f for f in placed}
            self._exported = {f.number for f in members(session.exported)}
            expected = self.now + 1
            for first, last, event in self._events(clock, gradients):
                if first > expected:
                    self._unknown(expected)
                if event is None:
                    self._end_elements()
                else:
                    (self._launched if len(event) == 2 else self._wrote)(first, *event)
                expected = max(expected, last + 1)
            self._end_elements()
            if expected <= clock:
                self._unknown(expected)
            self.now = clock
            self._fields = {}  # it keeps none alive

    def _skip(self) -> None:
        """Begin anew where too much has happened to go through all, or something that no notes tell."""
        clock = session.clock
        if session.unknown_until > self.start:
            self._begin(session.unknown_until)
        if clock - self.now > _MOST_READINGS:
            self._begin(clock - _MOST_READINGS)
        if len(self._nodes) > _MOST_NUMBERS or self._changes > _MOST_NUMBERS:
            self._begin(max(self.start, clock - _FEWER_READINGS))

    def _events(self, clock: int, gradients: Sequence[Sequence[int]]) -> list[tuple[int, int, Any]]:
        """Return what is known of the readings up to this one, in order: first, last, event."""
        found: dict[int, Any] = {}
        for wrote in reversed(list(session.written)):
            if wrote[0] <= self.now:
                break
            _note(found, wrote[0], wrote[1:])
        for special in members(session.specializations):
            last = special.launches.last
            if last is None or last[0] <= self.now:
                continue
            for key, times in list(special.launches.times.items()):
                for reading in times[bisect.bisect_right(times, self.now) :]:
                    _note(found, reading, (special, key))
        # Two threads may get the same reading: then neither is known.
        events = [(r, r, e) for r, e in found.items() if e is not _TWICE and r <= clock]
        for first, last in reversed(list(gradients)):
            if last <= self.now:
                break
            events.append((first, last, None))
        return sorted(events, key=lambda event: event[0])

    # ---- events

    def _set(self, place: Place, reading: int, number: int) -> None:
        """Note what a part holds from a reading of the clock on."""
        past = self._past.get(place[0])
        if past is None:
            self.at(place)
            past = self._past[place[0]]
        entries = past.whole if place[1] is None else past.rows.setdefault(place[1], [])
        entries.append((reading, number))
        self._changes += 1
        self.changed = reading

    def _unknown(self, reading: int) -> None:
        """Something happened then: all that was written since may have been written by it."""
        self._end_elements()
        for f in self._fields.values():
            if f.versions.latest < reading:
                continue
            places = [None] if f.versions.whole >= reading else f.versions.rows_since(reading)
            for row in places:
                place = f.number, row
                self._set(place, reading, self._new(reading, place))

    def _wrote(
        self, reading: int, number: int, row: int | None, index: Any, value: Any, writer: Any
    ) -> None:
        """Go through a write from Python (`Session.written`)."""
        f = self._fields.get(number)
        if f is None:  # a gradient, or a field that is gone
            return
        # Before the first kernel that moves along an axis, a field has no rows.
        place = number, _row(f, index) if row is None else row
        at = _indices(index)
        made = None if f.tree is not None or at is None else self._value(place, at, value, reading)
        if made is None or at is None:
            self._end_elements(number)
            self._set(place, reading, self._new(reading, place, writer))
            return
        self._by(writer, reading, made)
        if len(at) == len(f.shape) > 0 and at[-1] is not ...:
            _, elements = self._elements.pop(place, (0, {}))
            elements[at] = made
            self._elements[place] = reading, elements
            return
        self._end_elements(number)
        whole = _is_whole(f, place[1], at)
        self._set(place, reading, made if whole else self._over(place, ("part", at), made))

    def _value(self, place: Place, at: Any, value: Any, reading: int) -> int | None:
        """Return the number of what Python has written to elements of a part; None: it is unknown."""
        if isinstance(value, CopyOf):
            if value.field not in self._fields:
                return None
            self._end_elements()
            return self._number(("copy", (place, at), self._input((value.field, None), reading)))
        if isinstance(value, _CONSTANTS):
            # 0.0 equals -0.0 and 0 for Python.
            value = repr(np.asarray(value).item())
        elif not isinstance(value, Contents):
            return None
        return self._number(("constant", place, at, value))

    def _end_elements(self, number: int | None = None) -> None:
        """Number the parts of this field (None: of all), elements of which Python has written."""
        for place in [p for p in self._elements if number is None or p[0] == number]:
            reading, elements = self._elements.pop(place)
            made = self._number(("elements", place, frozenset(elements.items())))
            f = self._fields[place[0]]
            if len(elements) != _count(f, place[1]):
                made = self._over(place, ("part", frozenset(elements)), made)
            self._set(place, reading, made)

    def _launched(self, reading: int, special: Specialization, key: Any) -> None:
        """Go through a launch."""
        self._end_elements()
        effects = special.launches.effects
        if key not in effects:
            effects[key] = effect_of(special, key)
        effect: Effect | None = effects[key]
        if effect is None:
            self._unknown(reading)
            return
        inputs = tuple([self._input(place, reading) for place in effect.inputs])
        launch = self._number(("launch", effect.number, *inputs))
        self._by(special.kernel.source.head(), reading, launch)
        made = [
            (place, self._stored(place, rule, effect, launch, reading))
            for place, rule in effect.outputs
        ]
        for place, number in made:
            self._set(place, reading, number)

    def _input(self, place: Place, reading: int) -> int | None:
        # Memory that other libraries see may be another one at any time.
        return self._new(reading, place) if place[0] in self._exported else self.at(place)

    def _stored(self, place: Place, rule: Rule, effect: Effect, launch: int, reading: int) -> int:
        """Return the number of what a launch leaves in a part."""
        if rule is Rule.ALL:
            return self._number(("made", place, launch))
        if rule is Rule.UPDATED:
            return self._number(("made", place, launch, self.at(place)))
        if rule is Rule.UNKNOWN:
            return self._new(reading, place)
        # Stores of the same elements hide those of before: of launches with the same arguments where these
        # tell which, otherwise of launches that have read the same.
        key = ("launch", effect.number) if rule is Rule.FIXED else ("same", launch)
        return self._over(place, key, launch)

    def _over(self, place: Place, key: Any, stored: int) -> int:
        """Return the number of a part some elements of which were stored; the same ones for equal keys."""
        below = self.at(place)
        assert below is not None
        node = self._nodes[below]
        layers: tuple[Any, ...] = ()
        if node[0] == "over" and len(node[3]) < _MOST_LAYERS:
            below, layers = node[2], node[3]
        left = tuple([layer for layer in layers if layer[0] != key])
        return self._number(("over", place, below, (*left, (key, stored))))

    def last_stores(self, one: int, other: int) -> bool:
        """Return whether the last stores to a part of two numbers were of the same elements and values."""
        a, b = self._nodes[one], self._nodes[other]
        return bool(a[0] == b[0] == "over" and a[:2] == b[:2] and a[3][-1] == b[3][-1])


def _indices(key: Any) -> tuple[Any, ...] | None:
    """Return the key of one element, of a row (i, ...) or of all (...,); None: of what is unknown."""
    at = () if key is None else key if type(key) is tuple else (key,)
    return at if all(type(k) is int or k is ... for k in at) else None


def _is_whole(f: Field, row: int | None, at: tuple[Any, ...]) -> bool:
    """Return whether the elements at these first indices are all of a row (None: of the field)."""
    fixed = [axis for axis, k in enumerate(at) if k is not ... and f.shape[axis] != 1]
    return not fixed or (row is not None and fixed == [f.versions.axis] and f.versions.block == 1)


def _count(f: Field, row: int | None) -> int:
    """Return how many elements a row has (None: all), all rows being as long as the first."""
    v = f.versions
    if row is not None and v.axis is not None:
        return math.prod(f.shape) // f.shape[v.axis] * v.block
    return math.prod(f.shape)


def _row(f: Field, index: Any) -> int | None:
    """Return the row of an element that Python has written; None: all rows, or it is unknown."""
    at = (index,) if type(index) is int else index
    if type(at) is not tuple or len(at) != len(f.shape) or any(f._mem.origin):
        return None
    inside = all(type(k) is int and 0 <= k < n for k, n in zip(at, f.shape, strict=True))
    return f.versions.row_at(at) if inside else None


_TWICE = object()


def _note(found: dict[int, Any], reading: int, event: Any) -> None:
    found[reading] = _TWICE if reading in found else event


def _last(entries: Entries, reading: int) -> tuple[int, int]:
    """Return the last change up to a reading; (-1, -1) if there is none."""
    if entries[-1][0] <= reading:
        return entries[-1]
    k = bisect.bisect_right(entries, (reading, _ALWAYS))
    return entries[k - 1] if k else (-1, -1)


def _parts(node: Any) -> Iterator[int]:
    """Yield the numbers that a node is made of."""
    kind = node[0]
    if kind == "over":
        yield from itertools.chain((n for _, n in node[3]), (node[2],))
    elif kind == "rows":
        yield from (n for _, n in sorted(node[3]))
        yield node[2]
    elif kind == "row":
        yield node[2]
    elif kind == "elements":
        yield from (n for _, n in sorted(node[2]))
    elif kind in ("made", "launch", "copy"):
        yield from node[2:]


value_numbers = ValueNumbers()
