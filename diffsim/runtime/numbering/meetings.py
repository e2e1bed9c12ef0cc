"""Whether two sets of accesses of a launch touch the same element, by the notes of index traces.

Native code (`backends/native/meetings.ll`) says quickly that they do not. What it does not say that of is
looked at here with NumPy, which finds the first two accesses that meet, for the error.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from diffsim.backends.native.pool import load_native
from diffsim.ir.types import i64, size_of
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.autodiff.index_trace import bits_of_site
from diffsim.passes.autodiff.launch_conditions import Sites
from diffsim.runtime.memory.storage import HOST, HostStorage, Storage, StorageLayout
from diffsim.runtime.session import session

_SPARSE = 8
"""Elements that lie further apart are sorted; a table of all between them would take too much memory."""
_SMALL = 1 << 13
"""A table of so many elements is made in any case."""
_KEPT = 1 << 20
"""The longest table that is kept [elements]."""
Places = tuple[tuple[int, Access], tuple[int, Access]]
"""Two accesses, with their numbers among those of their tasks' lanes."""

_MOST_LANES = (1 << 32) - 2
_MOST_SITES = 63  # a bit for each
_OUTSIDE = 2


class Memory:
    """Where a trace writes: the cursors of lanes, how many notes there is room for, and the notes.

    On the host it is written to again, with room for what was asked for before; on a device it is made anew.
    """

    def __init__(self) -> None:
        self._on_host = session.device is HOST
        self._storages: list[Storage] = [_storage(1) for _ in range(3)] if self._on_host else []

    @property
    def size(self) -> int:
        """How many numbers it has room for."""
        return sum(storage.layout.shape[0] for storage in self._storages)

    def write(self, starts: np.ndarray, room: int) -> list[tuple[int, tuple[int, ...]]]:
        """Let the notes of lanes begin there, with room for so many; returns address and shape of each part.

        One note more has its place: code may store what it does not have room for.
        """
        lanes = len(starts)
        if not self._on_host:
            self._storages = [_storage(n) for n in (max(lanes, 1), 1, room + 1)]
            for storage, values in zip(self._storages, (starts, np.array([room])), strict=False):
                storage.from_numpy(values.reshape(-1, 1))
        else:
            for k, n in ((0, lanes), (2, room + 1)):
                if self._storages[k].layout.shape[0] < n:
                    self._storages[k] = _storage(n)
            cursor, limit, _ = map(_numbers, self._storages)
            cursor[:lanes] = starts
            limit[0] = room
        shapes = [storage.layout.shape for storage in self._storages]
        shapes[1] = ()
        return [(s.address, shape) for s, shape in zip(self._storages, shapes, strict=True)]

    def read(self, lanes: int, room: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the cursors and the notes, which the next `write` may overwrite."""
        cursor, _, notes = map(_numbers, self._storages)
        return cursor[:lanes], notes[:room]


def _numbers(storage: Storage) -> np.ndarray:
    """Return the numbers of a storage: on the host they are its memory."""
    return (storage.array if isinstance(storage, HostStorage) else storage.to_numpy())[:, 0]


def _storage(count: int) -> Storage:
    return session.backend.new_storage(StorageLayout(i64, 1, (count,), (0,), soa=False))


@dataclass
class Notes:
    """The accesses of the lanes of one task.

    Attributes:
        sites: the traced accesses.
        starts: for each lane, the place of its first note.
        ends: that after its last one.
        notes: as `IndexTrace` says; between those of two lanes there may be anything.
        first: the first iteration of each axis.
        size: how many there are.
        written: as that of the task.
        memory: where they are.
    """

    sites: tuple[Access, ...]
    starts: np.ndarray
    ends: np.ndarray
    notes: np.ndarray
    first: tuple[int, ...]
    size: tuple[int, ...]
    written: tuple[int, ...]
    memory: Memory

    # Arrays with an entry for each access, lanes in order.

    @functools.cached_property
    def _codes(self) -> np.ndarray:
        """The notes without what is between them."""
        counts = self.ends - self.starts
        before = np.cumsum(counts) - counts
        places = np.repeat(self.starts - before, counts)
        found: np.ndarray = self.notes[places + np.arange(len(places))]
        return found

    @functools.cached_property
    def site(self) -> np.ndarray:
        """The number of the traced access."""
        return self._codes & ((1 << bits_of_site(self.sites)) - 1)

    @functools.cached_property
    def elements(self) -> np.ndarray:
        """The number of the element (and component)."""
        return self._codes >> bits_of_site(self.sites)

    @functools.cached_property
    def lane(self) -> np.ndarray:
        """The number of the lane."""
        return np.repeat(np.arange(len(self.starts)), self.ends - self.starts)

    def of(self, sites: Sites) -> np.ndarray:
        """Return the places of these accesses in the arrays."""
        numbers = [self.sites.index(a) for a in sites.accesses]
        if len(numbers) == len(self.sites):
            return np.arange(len(self.site))
        wanted = np.zeros(1 << bits_of_site(self.sites), bool)
        wanted[numbers] = True
        return np.flatnonzero(wanted[self.site])

    def lane_text(self, k: int) -> str:
        """Return the iteration of an entry as text."""
        at = np.unravel_index(int(self.lane[k]), self.size) if self.size else ()
        numbers = [str(int(i) + lo) for i, lo in zip(at, self.first, strict=True)]
        if len(self.written) == len(numbers):
            numbers = [numbers[k] for k in self.written]
        return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"

    @functools.cached_property
    def _places(self) -> tuple[int, ...]:
        """The first slots of `row`."""
        arrays = (self.notes, self.starts, self.ends)
        return (*(a.ctypes.data for a in arrays), len(self.starts))

    def row(self, asked: int) -> Any:
        """Return what native code is told about the notes of some accesses (a bit for each)."""
        return _Row(*self._places, asked, bits_of_site(self.sites))


_Row = ctypes.c_int64 * 6


# ---- by native code


class _Functions(NamedTuple):
    range: Callable[..., None]
    lanes: Callable[..., int]
    meet: Callable[..., int]


@functools.cache
def _functions() -> _Functions:
    library = load_native(session.jit, session.cache, "meetings.ll")
    i64, ptr = ctypes.c_int64, ctypes.c_void_p
    return _Functions(
        ctypes.CFUNCTYPE(None, ptr, i64, ptr)(library.address("ds_note_range")),
        ctypes.CFUNCTYPE(i64, ptr, i64, ptr, i64, i64, i64)(library.address("ds_note_lanes")),
        ctypes.CFUNCTYPE(i64, ptr, i64, ptr, i64, i64, i64, i64)(library.address("ds_notes_meet")),
    )


class _Table:
    """A table of lanes by element: what earlier uses have left in it is less than `base`, and is nothing."""

    def __init__(self, size: int) -> None:
        self._lanes = np.zeros(size, np.int64)
        self.address = self._lanes.ctypes.data
        self.size, self._uses = size, 0

    def base(self) -> int:
        """Begin another use."""
        self._uses += 1
        return self._uses << 32

    def is_used_up(self) -> bool:
        """Whether there is no further base."""
        return self._uses >= 1 << 30

    def give_back(self) -> None:
        """End the use: the table is for the next one."""
        if self.size <= _KEPT:
            _tables[:] = [self]


_tables: list[_Table] = []
"""One that is not in use: who takes it is alone with it, in whatever thread or signal handler."""


def _table(size: int) -> _Table:
    try:
        found = _tables.pop()
    except IndexError:
        return _Table(size)
    return _Table(size) if found.size < size or found.is_used_up() else found


class Question:
    """Whether two sets of accesses meet, asked again and again.

    Args:
        mine: accesses of a task.
        ours: all that are traced of that task.
        theirs: accesses of the same task or of another one.
        others: all that are traced of that.
        same_lane: whether they may meet in the same lane.
    """

    def __init__(
        self,
        mine: Sites,
        ours: tuple[Access, ...],
        theirs: Sites,
        others: tuple[Access, ...],
        *,
        same_lane: bool,
    ) -> None:
        self.mine, self.theirs, self.same_lane = mine, theirs, same_lane
        self._is_same = mine == theirs
        # A whole element meets all of its components.
        mem = mine.accesses[0].mem
        whole = any(len(s.index) == mem.rank for s in (*mine.accesses, *theirs.accesses))
        self._parts = size_of(mem.dtype) if whole else 1
        count = -1 if mem.shape is None else math.prod(mem.shape) * size_of(mem.dtype)
        self._count = count if count < 0 else count // self._parts
        self._is_for_native = max(len(ours), len(others)) <= _MOST_SITES and (
            same_lane or not self._is_same
        )
        self._bits = sum(1 << ours.index(a) for a in mine.accesses)
        self._other_bits = sum(1 << others.index(a) for a in theirs.accesses)

    def surely_not(self, one: Notes, other: Notes) -> bool:
        """Whether it is certain that no access of the one meets one of the other, by native code."""
        if not self._is_for_native or max(len(one.starts), len(other.starts)) > _MOST_LANES:
            return False
        native, parts = _functions(), self._parts
        row = other.row(self._other_bits)
        most = max(_SPARSE * (len(one.notes) + len(other.notes)), _SMALL)
        least, size = 0, self._count
        if not 0 <= size <= most:
            found = (ctypes.c_int64 * 2)()
            native.range(row, parts, found)
            least, size = found[0], found[1] - found[0] + 1
            if size <= 0:  # there are none
                return True
            if size > most:
                return False
        table = _table(size)
        base = table.base()
        met = native.lanes(row, parts, table.address, least, base, size)
        if not self._is_same and met != _OUTSIDE:
            row = one.row(self._bits)
            met = native.meet(row, parts, table.address, least, base, size, self.same_lane)
        table.give_back()
        return not met

    def first_meeting(self, one: Notes, other: Notes) -> Places | None:
        """Return the first access of the one that meets one of the other, and that."""
        a, b = one.of(self.mine), other.of(self.theirs)
        x, y = one.elements[a], other.elements[b]
        if self._parts > 1:
            x, y = x // self._parts, y // self._parts
        if not len(x) or not len(y) or (self._is_same and _all_different(y)):
            return None
        first, last = _places(x, y)
        met = first >= 0
        if self.same_lane:
            here = one.lane[a]
            met &= (other.lane[b[first]] != here) | (other.lane[b[last]] != here)
        if not met.any():
            return None
        # The first access that meets another one, and the first one that it meets.
        k = int(np.flatnonzero(met)[0])
        i = int(a[k])
        same = y == x[k]
        if self.same_lane:
            same &= other.lane[b] != one.lane[i]
        j = int(b[np.flatnonzero(same)[0]])
        return (i, one.sites[one.site[i]]), (j, other.sites[other.site[j]])


def _all_different(y: np.ndarray) -> bool:
    """Whether no number is there twice, where that is quick to tell."""
    least = int(y.min())
    size = int(y.max()) - least + 1
    if size > 2 * _SPARSE * len(y):
        return False
    places = np.arange(len(y))
    table = np.empty(size, np.int64)
    # Of two places assigned to one number only one is found there again.
    at = y - least
    table[at] = places
    return bool((table[at] == places).all())


def _places(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each number of x the first and the last place in y where it is, or -1."""
    least, most = int(y.min()), int(y.max())
    if most - least > _SPARSE * (len(x) + len(y)):
        order = np.argsort(y, kind="stable")
        found = y[order]
        low, high = np.searchsorted(found, x, "left"), np.searchsorted(found, x, "right")
        there = low < high
        first, last = order[np.minimum(low, len(y) - 1)], order[np.maximum(high, 1) - 1]
        return np.where(there, first, -1), np.where(there, last, -1)
    # A table by number: of places assigned to one number the last one stays.
    places = np.arange(len(y))
    table = np.full(most - least + 2, -1)
    inside = np.where((x >= least) & (x <= most), x - least, most - least + 1)
    table[(y - least)[::-1]] = places[::-1]
    first = table[inside]
    table[y - least] = places
    return first, table[inside]
