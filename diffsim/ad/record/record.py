"""The record of a tape: its entries in order, stored compactly.

A program may have a million launches, most of which differ from others of the same kernel in their arguments
and clock readings alone. Such plain launches are rows of a columnar table (three columns: kernel number,
arguments, clock), and an entry object is made when one is read. A kernel that is given fields has a
number for each combination of them. All other entries are stored as they are, with `_NO_ROW` in the column
of kernels.
"""

from __future__ import annotations

import bisect
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from operator import call
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from diffsim.ad.record.entries import Launched
from diffsim.ad.record.entry import Entry
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.replaced import Replaced
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.fields.read_values import Provenance
    from diffsim.runtime.kernels.specialization import Specialization

_NO_ROW = -1  # in the column of kernels: the entry itself is stored
_FEW = 64
"""Entries that Python looks through as quickly as NumPy."""


class Record(Sequence[Entry]):
    """Entries in order.

    Appended entries are stored as such. The entry of a plain launch (`launch`) is made anew at every access,
    so changes to it are lost; `newest` turns it into a stored one first.

    Attributes:
        alive: the kernels that were launched, each with what its adjoint needs to stay alive.
        reads: the origins of what Python has read of fields with a gradient, the first one first.
        seeded: whether Python wrote something other than 0 to a gradient.
        declares_constants: whether the program called `ds.stop_grad`.
        base: the clock's reading when it began.
        is_plain: whether all of it are plain launches.
        takes_fields: whether some of these are given fields.
        is_gapless: whether nothing but its entries made the clock tick since, as far as was looked (`close`).
        has_allowed: whether it has allowed an adjoint that versions refuse (`recorded_writes.py`).
    """

    # As they are in nearly all records; a tape makes one in each turn of a loop.
    seeded = declares_constants = is_gapless = has_allowed = False
    reads: Sequence[Provenance] = ()
    is_plain = True
    takes_fields = False
    _silent = 0  # entries during which the clock did not tick
    # those of `_firsts`, once they were asked for
    _first_entries: list[Entry] | None = None
    _weak: tuple[list[Any], list[bool]] | None = None  # `weaken`

    def __init__(self) -> None:
        self.alive: dict[Specialization, list[Any]] = {}
        self.base = session.clock
        self._kernels = array("i")
        # an entry, or the arguments of a plain launch: a single one without its tuple, to save 48 bytes
        self._things: list[Any] = []
        self._times = array("q")
        self._numbers: dict[Any, int] = {}
        # kernels (with the numbers of fields) whose first plain launch is among `_firsts`; `newest` may take
        # that row away again
        self._rows: dict[Any, int] = {}
        self._specials: list[tuple[Specialization, bool]] = []
        self._fields: list[tuple[int, ...]] = []
        self._firsts = array("q")

    # ---- recording

    def append(self, entry: Entry) -> None:
        self._first_entries = None
        self.is_plain = False
        self._firsts.append(len(self._things))
        self._kernels.append(_NO_ROW)
        self._things.append(entry)
        self._times.append(0)
        if not entry.ticks:
            self._silent += 1

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def launch(self, special: Specialization, args: tuple[Any, ...], now: int) -> None:
        """Append a plain launch: all arguments are of immutable types, fields among them."""
        number = self._rows.get(_row_key(special, args) if special.arguments.arrays else special)
        if number is None:
            number = self._first(special, args)
        self._kernels.append(number)
        # The argument tuple itself is kept: an entry object for each launch would take several times the
        # memory.
        self._things.append(args[0] if len(args) == 1 else args)
        self._times.append(now)

    def _first(self, special: Specialization, args: tuple[Any, ...]) -> int:
        """Number a kernel whose next launch is its first plain one, with the fields among its arguments."""
        self._first_entries = None
        key = _row_key(special, args)
        number = self._rows[key] = self._numbers.setdefault(key, len(self._specials))
        if number == len(self._specials):
            self._specials.append((special, len(special.arguments.parameters) == 1))
            self._fields.append(fields_among(args))
            self.takes_fields = self.takes_fields or bool(self._fields[-1])
        self._firsts.append(len(self._things))
        return number

    def newest(self) -> Launched:
        """Return the last launch, as a stored entry: changes to it are kept."""
        # From the end: the last launch is at most a few saves or writes back.
        behind = zip(range(len(self) - 1, -1, -1), reversed(self), strict=True)
        k, entry = next((k, e) for k, e in behind if isinstance(e, Launched))
        if self._kernels[k] != _NO_ROW:
            self._kernels[k], self._things[k] = _NO_ROW, entry
            self.is_plain = False
            self._first_entries = None
            # The kernel's first plain launch may have been this row: the next one is registered as
            # first again.
            del self._rows[_row_key(entry.special, entry.args)]
            place = bisect.bisect_left(self._firsts, k)
            if k not in self._firsts[place : place + 1]:
                self._firsts.insert(place, k)
        return entry

    def date(self, base: int) -> None:
        """Set the clock readings of launches and copies to those of a replay that began at `base`."""
        start, shift, self.base = self.base, base - self.base, base
        self._first_entries = None
        # A replay runs the same launches and writes, so its readings follow from the entries' order
        # alone.
        for k, (kernel, thing) in enumerate(zip(self._kernels, self._things, strict=True)):
            if kernel != _NO_ROW or thing.ticks:
                base += 1
            if kernel != _NO_ROW:
                self._times[k] = base
            elif isinstance(thing, Launched):
                thing.now = base
            elif isinstance(thing, Replaced):
                if thing.rerun is not None:
                    thing.rerun.date(base)
            elif isinstance(thing, Saved) and self.is_gapless:
                thing.shift(start, shift)

    # ---- what Python has read

    @property
    def may_use_reads(self) -> bool:
        """Whether something that Python made of what it has read may be on the record: not in launches."""
        if not self.reads or self.is_plain:
            return False
        start = self.reads[0].entry
        return any(
            number == _NO_ROW and not isinstance(thing, Launched)
            for number, thing in zip(self._kernels[start:], self._things[start:], strict=True)
        )

    # ---- a recording that repeats the last one (`following.py`)

    def close(self) -> None:
        """Note that a block has ended."""
        self.is_gapless = session.clock - self.base == len(self._things) - self._silent

    def columns(
        self,
    ) -> tuple[array[int], list[Any], array[int], list[tuple[Specialization, bool]]]:
        """Return numbers of kernels (-1: an entry), arguments or entries, readings, kernels by number."""
        return self._kernels, self._things, self._times, self._specials

    def fields_by_number(self) -> list[tuple[int, ...]]:
        """Return the numbers of the fields among the arguments, by the numbers of kernels."""
        return self._fields

    def forget_firsts(self) -> None:
        """Make the entries of `firsts` anew when they are asked for: they keep kernels alive."""
        self._first_entries = None

    def take_over(self, other: Record) -> None:
        """Become another record, which is of no use afterwards."""
        if other is not self:
            vars(self).clear()
            vars(self).update(vars(other))

    def cut(self, count: int) -> list[Saved]:
        """Keep the first entries only; returns the copies among the others."""
        removed = [t for t in self._things[count:] if isinstance(t, Saved)]
        self.take_over(self.beginning(count, lambda entry: entry))
        return removed

    def beginning(self, count: int, of: Callable[[Any], Any] = copy) -> Record:
        """Return a record of the first entries; `of` gives what stands for one that is stored as such."""
        kept = Record()
        for kernel, thing, now in zip(
            self._kernels[:count], self._things[:count], self._times[:count], strict=True
        ):
            if kernel == _NO_ROW:
                kept.append(of(thing))
                continue
            special, single = self._specials[kernel]
            kept.launch(special, (thing,) if single else thing, now)
        launched = (e.special for e in kept.firsts() if isinstance(e, Launched))
        kept.alive = {special: special.dependencies.alive() for special in launched}
        kept.base, kept.is_gapless = self.base, self.is_gapless
        return kept

    def with_kernels(self, replaced: Callable[[Specialization], Specialization]) -> Record:
        """Return a record of the same launches, of other kernels."""
        made = Record()
        for kernel, thing, now in zip(self._kernels, self._things, self._times, strict=True):
            if kernel != _NO_ROW:
                special, single = self._specials[kernel]
                made.launch(replaced(special), (thing,) if single else thing, now)
            elif isinstance(thing, Launched):
                made.append(_of_kernel(thing, replaced(thing.special)))
            else:
                made.append(thing)
        made.alive = self.alive | {
            s: s.dependencies.alive()
            for s in dict.fromkeys(e.special for e in made.firsts() if isinstance(e, Launched))
        }
        made.reads, made.seeded = self.reads, self.seeded
        made.declares_constants = self.declares_constants
        made.base, made.is_gapless = self.base, self.is_gapless
        return made

    def weaken(self) -> None:
        """Keep no kernels alive; the record is of no use until `strengthen`."""
        if self._weak is None or len(self._weak[0]) < len(self._specials):
            refs = [weakref.ref(special) for special, _ in self._specials]
            self._weak = refs, [single for _, single in self._specials]
        if self._numbers:
            self._numbers, self._rows = {}, {}
        self._hold_fields(_weakly)
        # In place: who writes over the rows has this list.
        self._specials.clear()
        self.alive = {}
        self._first_entries = None

    def strengthen(self, alive: dict[Specialization, list[Any]]) -> None:
        """Undo `weaken`, with the kernels, which are all still there."""
        assert self._weak is not None
        self.alive = alive
        refs, single = self._weak
        self._specials[:] = zip(map(call, refs), single, strict=True)
        self._hold_fields(_strongly)

    def _hold_fields(self, how: Callable[[Any], Any]) -> None:
        """Refer to the fields among arguments in another way."""
        fields, things = self._fields, self._things
        for k, number in enumerate(self._kernels) if self.takes_fields else ():
            thing = things[k]
            if number != _NO_ROW and fields[number] and thing is not None:
                single = thing.__class__ is not tuple
                things[k] = how(thing) if single else tuple(map(how, thing))

    def copies(self) -> list[Saved]:
        """Return the copies of overwritten values."""
        # A copy makes no tick of the clock: most records are answered by a number.
        if not self._silent:
            return []
        return [entry for entry in self.stored() if isinstance(entry, Saved)]

    def stored(self) -> Iterator[Any]:
        """Yield the entries that are stored as such."""
        return (self._things[k] for k in self._firsts if self._kernels[k] == _NO_ROW)

    # ---- reading

    def __len__(self) -> int:
        return len(self._things)

    @overload
    def __getitem__(self, k: int) -> Entry: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Entry]: ...
    def __getitem__(self, k: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        return self._entry(self._kernels[k], self._things[k], self._times[k])

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entry, self._kernels, self._things, self._times)

    def __reversed__(self) -> Iterator[Entry]:
        columns = self._kernels, self._things, self._times
        return map(self._entry, *map(reversed, columns))

    def _entry(self, kernel: int, thing: Any, now: int) -> Entry:
        if kernel == _NO_ROW:
            entry: Entry = thing
            return entry
        special, single = self._specials[kernel]
        args = (thing,) if single else thing
        return Launched(special, args, args, now, 0)

    def launches_of(self, special: Specialization) -> tuple[list[int], list[tuple[Any, ...]]]:
        """Return the places of a kernel's launches, and their arguments."""
        # Not by `_numbers`, which a record that has waited for the next one lacks.
        numbers = [k for k, (known, _) in enumerate(self._specials) if known is special]
        # Of plain launches the arguments themselves are kept: no entry is made.
        places: list[int] = []
        rows: list[tuple[Any, ...]] = []
        if numbers:
            places = _places_of(numbers, self._kernels)
            rows = [self._things[k] for k in places]
            if self._specials[numbers[0]][1]:
                rows = [(a,) for a in rows]
        for k in self._firsts:
            entry = self._things[k]
            if isinstance(entry, Launched) and entry.special is special:
                places.append(k)
                rows.append(entry.args)
        return places, rows

    def firsts(self) -> Iterator[Entry]:
        """Yield all entries, but of the plain launches of a kernel only the first.

        Enough for every question that does not depend on arguments or order.
        """
        # Each check of a backward pass asks: the entries are made once for all of them.
        made = self._first_entries
        if made is None:
            made = self._first_entries = [self[k] for k in self._firsts]
        return iter(made)


def _places_of(numbers: list[int], kernels: Sequence[int]) -> list[int]:
    """Return where one of some numbers is."""
    if len(kernels) < _FEW:
        return [k for k, number in enumerate(kernels) if number in numbers]
    found: list[int] = np.flatnonzero(np.isin(np.asarray(kernels), numbers)).tolist()
    return found


def fields_among(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the numbers of the fields among the arguments of a launch."""
    return tuple([a.number for a in args if a.__class__ is Field])


def _row_key(special: Specialization, args: tuple[Any, ...]) -> Any:
    """Return what has a number of its own in the column of kernels."""
    return (special, fields_among(args)) if special.arguments.arrays else special


def _weakly(a: Any) -> Any:
    return weakref.ref(a) if a.__class__ is Field else a


def _strongly(a: Any) -> Any:
    return a() if a.__class__ is weakref.ref else a


def _of_kernel(entry: Launched, special: Specialization) -> Launched:
    """Return the same launch of another kernel, which takes the same arguments."""
    made = Launched(special, entry.given, entry.args, entry.now, entry.seed)
    made.undetached, made.returned = entry.undetached, entry.returned
    return made
