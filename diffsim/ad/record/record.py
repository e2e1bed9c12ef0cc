"""The record of a tape: what it holds, in order, in few bytes.

A program may have a million launches. Most differ from others of the same kernel in their arguments and the
clock's reading alone: these are rows of columns, from which an entry is made when somebody asks for it.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from diffsim.ad.record.entries import Launched
from diffsim.ad.record.entry import Entry

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

_NO_ROW = -1


class Record(Sequence[Entry]):
    """Entries in order.

    Those that were appended are themselves in the record. What is found at the place of a plain launch
    (`launch`) is made anew each time, and what is done to it is lost; `newest` is not.

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
        self._things: list[
            Any
        ] = []  # an entry; the arguments of a plain launch, a single one without tuple
        self._times = array("q")
        self._numbers: dict[Specialization, int] = {}
        self._rows: dict[
            Specialization, int
        ] = {}  # the numbers of those with a row among the firsts
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
        """Append a launch of a kernel without arrays, with arguments that stay what they are."""
        number = self._rows.get(special)
        if number is None:
            number = self._first(special)
        self._kernels.append(number)
        self._things.append(args[0] if len(args) == 1 else args)
        self._times.append(now)

    def _first(self, special: Specialization) -> int:
        """The number of a kernel whose next launch is one of the `firsts`."""
        number = self._rows[special] = self._numbers.setdefault(special, len(self._specials))
        if number == len(self._specials):
            self._specials.append((special, len(special.arguments.parameters) == 1))
        self._firsts.append(len(self._things))
        return number

    def newest(self) -> Launched:
        """The last launch, from now on as an entry that may be changed."""
        behind = zip(range(len(self) - 1, -1, -1), reversed(self), strict=True)
        k, entry = next((k, e) for k, e in behind if isinstance(e, Launched))
        if self._kernels[k] != _NO_ROW:
            self._kernels[k], self._things[k] = _NO_ROW, entry
            del self._rows[entry.special]
            place = bisect.bisect_left(self._firsts, k)
            if k not in self._firsts[place : place + 1]:
                self._firsts.insert(place, k)
        return entry

    def date(self, base: int) -> None:
        """Give launches the readings of the clock that they have in a run that began at `base`."""
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

    def firsts(self) -> Iterator[Entry]:
        """All entries, but of the plain launches of each kernel the first alone."""
        return (self[k] for k in self._firsts)
