"""Storage of sparse fields: addresses for all elements, memory for what was written (docs/adr/0057).

The system gives an anonymous mapping its pages when they are first written; those that were not read as zeros
and take no memory. So a sparse field has the addresses of a dense one, and what walks over all of it (copies,
sums, `to_numpy`) visits the pages that there are. Setting all to 0 gives back those that were 0 before,
unless they came back after the last time: adjoints leave gradients of 0 behind, and need the pages again.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from diffsim.backends.native.pool import closed, wait
from diffsim.runtime.memory.scalars import scalars_of
from diffsim.runtime.memory.storage import (
    WHOLE,
    HostStorage,
    Part,
    Storage,
    StorageLayout,
)

MOST_RESERVED = 1 << 46
"""Bytes of one storage: a process has 47 bits of addresses."""
_DENSE = 1 << 18  # bytes up to which copies hold all elements, as those of dense fields
_PAGE = mmap.PAGESIZE
_AT_ONCE = 1 << 16  # pages
_TOGETHER = 64  # pages that are looked at together: a small copy of them, which stays in the cache
_MOST_KEPT = 1 << 16  # pages of one storage that may be kept when it is set to 0
_PATIENCE = 16
"""How often a storage is set to 0 until pages that came back are given back all the same."""
_NONE = np.zeros(0, np.int64)
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_NO_HUGE_PAGES = getattr(mmap, "MADV_NOHUGEPAGE", None)
_DISCARD = getattr(mmap, "MADV_DONTNEED", None) if sys.platform == "linux" else None


def reserve(nbytes: int) -> Any:
    """Return zeroed memory of that size, whose pages are backed when they are written.

    Raises:
        MemoryError: there are not so many addresses.
    """
    size = -(-max(nbytes, 1) // _PAGE) * _PAGE
    if size > MOST_RESERVED:
        raise MemoryError
    if _DISCARD is None:
        return np.zeros(size, np.uint8)  # NumPy's zeros are backed lazily on most systems
    try:
        made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except OSError as problem:
        raise MemoryError from problem
    # A huge page would back two megabytes for one active cell.
    if _NO_HUGE_PAGES is not None:
        with contextlib.suppress(OSError):
            made.madvise(_NO_HUGE_PAGES)
    return made


class PageCopy:
    """A copy of the pages of a span that there are; see `StorageSnapshot`.

    Attributes:
        begin, end: the span, in bytes.
        pieces: the first byte of each run of pages, and a copy of it.
    """

    def __init__(self, begin: int, end: int, pieces: list[tuple[int, np.ndarray]]) -> None:
        self.begin, self.end, self.pieces = begin, end, pieces

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for _, piece in self.pieces)


class _Returning:
    """Pages of a storage that were given back, and needed again before all was set to 0 the next time."""

    def __init__(self) -> None:
        self._times = 0
        self._pages = self._given = _NONE

    def stay(self, given: np.ndarray) -> np.ndarray:
        """Return those of the pages about to be given back that are likely to be needed again."""
        self._times += 1
        if self._times % _PATIENCE == 0:
            self._pages = self._given = _NONE
        self._pages = np.union1d(self._pages, np.intersect1d(given, self._given, True))
        stay = np.intersect1d(given, self._pages, True)
        self._given = np.setdiff1d(given, stay, True)
        return stay


class ReservedStorage(HostStorage):
    """Elements in the host's memory, of which only pages that were written take any."""

    def __init__(self, layout: StorageLayout) -> None:
        self.layout = layout
        self._memory = reserve(layout.nbytes)
        self.bytes = np.frombuffer(self._memory, np.uint8, layout.nbytes)
        self.scalars = self.bytes.view(layout.dtype.numpy)
        self.flat = scalars_of(self.scalars)
        self.array = layout.view(self.scalars)
        self.address = int(self.scalars.ctypes.data)
        self._returning = _Returning()

    @property
    def resident(self) -> int:
        """How many bytes have pages."""
        return sum(end - begin for begin, end in self.runs(0, self.layout.nbytes))

    # ---- pages

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of pages within a span that may hold anything but zeros, in bytes."""
        there = None if _DISCARD is None else _backed(self.address + begin, end - begin)
        if there is None:
            yield begin, end
            return
        offset = (self.address + begin) // _PAGE * _PAGE - self.address
        for first, last in _edges(there):
            yield max(begin, offset + first * _PAGE), min(end, offset + last * _PAGE)

    def _clear(self, begin: int, end: int) -> None:
        """Set a span to 0, and give back pages that hold zeros already: nobody has written to them lately."""
        first, last = -(-begin // _PAGE), end // _PAGE
        if end - begin <= _DENSE or _DISCARD is None:
            self.bytes[begin:end] = 0
            return
        self.bytes[begin : first * _PAGE] = 0
        self.bytes[last * _PAGE : end] = 0
        there = _backed(self.address + first * _PAGE, (last - first) * _PAGE)
        if there is None or np.count_nonzero(there) > _MOST_KEPT:
            self._memory.madvise(_DISCARD, first * _PAGE, (last - first) * _PAGE)
            return
        # The system takes several times as long to give a page anew as it takes to set it to 0.
        pages = self.bytes[first * _PAGE : last * _PAGE].view(np.uint64).reshape(-1, _PAGE // 8)
        number = np.flatnonzero(there)
        for k in range(0, len(number), _TOGETHER):
            part = number[k : k + _TOGETHER]
            used = part[np.bitwise_or.reduce(pages[part], axis=1) != 0]
            pages[used] = 0
            there[used] = False
        if end - begin == self.layout.nbytes:
            there[self._returning.stay(np.flatnonzero(there))] = False
        for a, b in _edges(there):
            self._memory.madvise(_DISCARD, (first + a) * _PAGE, (b - a) * _PAGE)

    def _span(self, part: Part) -> tuple[int, int] | None:
        """Return the bytes of a part, if it is one run and a large one."""
        span = self.layout.part(self.address, *part)
        if span.count != 1 or span.bytes <= _DENSE:
            return None
        begin = span.address - self.address
        return begin, begin + span.bytes

    # ---- the methods of storages that walk over all elements

    def fill(self, value: Any) -> None:
        wait()
        if np.any(value):
            self.array[...] = value
        else:
            self._clear(0, self.layout.nbytes)

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        wait()
        kind = np.dtype(dtype or self.layout.dtype.numpy)
        flat = np.zeros(self.layout.nbytes // self.layout.dtype.bytes, kind)
        width = self.layout.dtype.bytes
        for begin, end in self.runs(0, self.layout.nbytes):
            flat[begin // width : end // width] = self.scalars[begin // width : end // width]
        view = np.ndarray(
            self.array.shape,
            kind,
            flat,
            0,
            [s // width * kind.itemsize for s in self.array.strides],
        )
        return np.ascontiguousarray(view)

    def from_numpy(self, array: np.ndarray) -> None:
        if self.layout.nbytes <= _DENSE:
            super().from_numpy(array)
            return
        self.fill(0)
        # Along the slowest axis, so that what is all zeros takes no memory.
        for k in range(len(array)):
            if array[k].any():
                np.copyto(self.array[k], array[k], casting="same_kind")

    def copy_from(self, other: Storage) -> None:
        if isinstance(other, ReservedStorage) and other.layout == self.layout:
            self.restore(other.snapshot())
        else:
            super().copy_from(other)

    def add(self, other: Any) -> None:
        if isinstance(other, ReservedStorage) and other.layout == self.layout:
            other = other.snapshot()
        if not isinstance(other, PageCopy):
            super().add(other)
            return
        wait()
        width = self.layout.dtype.bytes
        for begin, piece in other.pieces:
            values = piece.view(self.layout.dtype.numpy)
            self.scalars[begin // width : begin // width + len(values)] += values

    def may_be_nonzero(self) -> bool:
        wait()
        return any(self.bytes[a:b].any() for a, b in self.runs(0, self.layout.nbytes))

    def snapshot(self, part: Part = WHOLE, into: Any = None) -> Any:
        span = self._span(part)
        if span is None:
            return super().snapshot(part, into)
        wait()
        made = into if isinstance(into, PageCopy) else PageCopy(*span, [])
        made.begin, made.end = span
        made.pieces = [(a, self.bytes[a:b].copy()) for a, b in self.runs(*span)]
        return made

    def copier(self, into: Any, part: Part = WHOLE) -> Callable[[], None]:
        if isinstance(into, PageCopy):
            return functools.partial(self._renew, into, part)
        return super().copier(into, part)

    def _renew(self, copy: PageCopy, part: Part) -> None:
        self.snapshot(part, copy)

    def restore(self, snapshot: Any, part: Part = WHOLE) -> None:
        if not isinstance(snapshot, PageCopy):
            super().restore(snapshot, part)
            return
        if closed[0]:
            wait()
        self._clear(snapshot.begin, snapshot.end)
        for begin, piece in snapshot.pieces:
            self.bytes[begin : begin + len(piece)] = piece


def _edges(chosen: np.ndarray) -> list[list[int]]:
    """Return the first index and the end of each run of true values."""
    # The ends of runs are where neighbours differ.
    changes = np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8))
    found: list[list[int]] = np.flatnonzero(changes).reshape(-1, 2).tolist()
    return found


def _backed(address: int, nbytes: int) -> np.ndarray | None:
    """Return for each page from an address on whether it is backed; None: the system does not tell."""
    first, last = address // _PAGE, -(-(address + nbytes) // _PAGE)
    found = np.zeros(last - first, bool)
    try:
        with open("/proc/self/pagemap", "rb", 0) as file:
            file.seek(8 * first)
            for k in range(0, last - first, _AT_ONCE):
                part = np.frombuffer(file.read(8 * min(_AT_ONCE, last - first - k)), np.uint64)
                # Bit 63: in memory; bit 62: swapped out.
                found[k : k + len(part)] = part >> np.uint64(62) != 0
                if len(part) < min(_AT_ONCE, last - first - k):
                    return None
    except OSError:
        return None
    return found


def new_host_storage(layout: StorageLayout) -> HostStorage:
    """Allocate the elements of a field in the host's memory, all zeros.

    Raises:
        MemoryError, ValueError: there is not so much.
    """
    return ReservedStorage(layout) if layout.sparse else HostStorage(layout)
