"""The record of a tape: its entries in order, stored compactly.

A program may have a million launches, most of which differ from others of the same kernel in their arguments
and clock readings alone. Such plain launches are rows of a columnar table (three columns: kernel number,
arguments, clock), and an entry object is made when one is read. All other entries are stored as they are,
with `_NO_ROW` in the column of kernels.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from diffsim.ad.record.entries import Launched
from diffsim.ad.record.entry import Entry

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

_NO_ROW = -1


class Record(Sequence[Entry]):
    """Entries in order.

    Appended entries are stored as such. The entry of a plain launch (`launch`) is made anew at every access,
    so changes to it are lost; `newest` turns it into a stored one first.

    Attributes:
        alive: the kernels that were launched, each with what its adjoint needs to stay alive.
        read_out: whether Python read a field with a gradient.
        seeded: whether Python wrote something other than 0 to a gradient.
        declares_constants: whether the program called `ds.stop_grad`.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.alive: dict[Specialization, list[Any]] = {}
        self.read_out = self.seeded = self.declares_constants = False
        self._kernels = array("i")
        # an entry, or the arguments of a plain launch: a single one without its tuple, to save 48 bytes
        self._things: list[Any] = []
        self._times = array("q")
        self._numbers: dict[Specialization, int] = {}
        # kernels whose first plain launch is among `_firsts`; `newest` may take that row away again
        self._rows: dict[Specialization, int] = {}
        self._specials: list[tuple[Specialization, bool]] = []
        self._firsts = array("q")
        self.extend(entries)

    # ---- recording

    def append(self, entry: Entry) -> None:
        self._firsts.append(len(self._things))
        self._kernels.append(_NO_ROW)
        self._things.append(entry)
        self._times.append(0)

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def launch(self, special: Specialization, args: tuple[Any, ...], now: int) -> None:
        """Append a plain launch: no array arguments, and all arguments of immutable types."""
        number = self._rows.get(special)
        if number is None:
            number = self._first(special)
        self._kernels.append(number)
        # The argument tuple itself is kept: an entry object for each launch would take several times the
        # memory.
        self._things.append(args[0] if len(args) == 1 else args)
        self._times.append(now)

    def _first(self, special: Specialization) -> int:
        """Number a kernel whose next launch is its first plain one."""
        number = self._rows[special] = self._numbers.setdefault(special, len(self._specials))
        if number == len(self._specials):
            self._specials.append((special, len(special.arguments.parameters) == 1))
        self._firsts.append(len(self._things))
        return number

    def newest(self) -> Launched:
        """Return the last launch, as a stored entry: changes to it are kept."""
        # From the end: the last launch is at most a few saves or writes back.
        behind = zip(range(len(self) - 1, -1, -1), reversed(self), strict=True)
        k, entry = next((k, e) for k, e in behind if isinstance(e, Launched))
        if self._kernels[k] != _NO_ROW:
            self._kernels[k], self._things[k] = _NO_ROW, entry
            # The kernel's first plain launch may have been this row: the next one is registered as
            # first again.
            del self._rows[entry.special]
            place = bisect.bisect_left(self._firsts, k)
            if k not in self._firsts[place : place + 1]:
                self._firsts.insert(place, k)
        return entry

    def date(self, base: int) -> None:
        """Set the clock readings of all launches to those of a replay that began at `base`."""
        # A replay runs the same launches and writes, so its readings follow from the entries' order
        # alone.
        for k, (kernel, thing) in enumerate(zip(self._kernels, self._things, strict=True)):
            if kernel != _NO_ROW or thing.ticks:
                base += 1
            if kernel != _NO_ROW:
                self._times[k] = base
            elif isinstance(thing, Launched):
                thing.now = base

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
        number = self._numbers.get(special, _NO_ROW)
        # Of plain launches the arguments themselves are kept: no entry is made.
        places: list[int] = []
        rows: list[tuple[Any, ...]] = []
        if number != _NO_ROW:
            places = np.flatnonzero(np.asarray(self._kernels) == number).tolist()
            rows = [self._things[k] for k in places]
            if self._specials[number][1]:
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
        return (self[k] for k in self._firsts)
