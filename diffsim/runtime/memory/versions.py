"""Versions of fields: when each row was last written, and by whom.

A version is a reading of the session's clock, which ticks at every launch and every write from Python. One
axis of a field (its time axis, the first one that a kernel indexes with an argument) has a version for
each row; other writes count for the whole field. A row is one index of that axis, or, where steps of time lie
one after the other along it (`u[t * n + i]`), a block of `n` (docs/adr/0035). The versions of rows are arrays
of numbers: programs have a row for each of a million time steps, and the system backs with memory only the
pages that are written.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim import locks
from diffsim.errors import Span
from diffsim.runtime.memory.storage import WHOLE
from diffsim.tracebacks import IS_OWN

if TYPE_CHECKING:
    from diffsim.runtime.memory.cut_gradients import Cut, Cuts

# Shared by all fields without rows. Nobody writes to it: there is no valid row number.
_NO_ROWS = np.zeros(0, np.int64).data
_dividing = locks.rlock()  # two threads may launch the first kernels that write to a field

Part = tuple[int, int, Any]
"""The versions of a part: the latest, that of the whole, and that of its row or those of all rows."""


class Versions:
    """The versions of one field.

    Its methods are the only ones that change it, but for `Field._touch` and launch functions: these store to
    `latest`, `whole`, `writer`, `dirty`, `rows` and `writers` themselves
    (`runtime/kernels/version_text.py`, write_stamps), as a call would be a tenth of a launch.

    Attributes:
        latest: of the last write to any part.
        whole: of the last write that was not bound to one row.
        rows: of the last write to single rows; empty until `track_rows`, and never another object after it.
        axis: which axis the rows are of; None until a kernel tells.
        block: how many indices of that axis make a row.
        writer: who wrote to the whole last: a kernel's span, or (code, instruction) of a Python
            statement.
        writers: the same for rows, as numbers of `names`; 0 is nobody.
        dirty: for a gradient: whether it may hold anything but zeros.
        cuts: for a gradient: its elements that belong to values which Python set in a tape's block.
        restored: the latest reading that was set back with values of another time.
        is_complete: whether there is no write that they do not know of: other libraries see no memory of it.
        waiting: what to call when there are rows, where some code counts on there being none.
        tracked: counts the calls of `track_rows`, for all fields.
    """

    tracked = 0

    __slots__ = (
        "axis",
        "block",
        "cuts",
        "dirty",
        "is_complete",
        "latest",
        "names",
        "restored",
        "rows",
        "waiting",
        "whole",
        "writer",
        "writers",
    )

    def __init__(self) -> None:
        self.latest = 0
        self.whole = self.restored = 0
        self.rows = self.writers = _NO_ROWS
        self.axis: int | None = None
        self.block = 1
        self.writer: Any = None
        # Numbers in place of spans: a row needs four bytes for its writer. 0 is taken by "nobody".
        self.names: dict[Any, tuple[int, Any]] = {None: (0, None)}
        self.dirty = False
        self.is_complete = True
        self.cuts: Cuts = None
        self.waiting: list[weakref.WeakMethod[Callable[[], None]]] = []

    def track_rows(self, axis: int | None, size: int, block: int = 1) -> None:
        """Give each `block` of the `size` indices along this axis a version of its own."""
        size = -(-size // block)
        # `.data` is a memoryview, whose elements are read and written much faster than a NumPy array's.
        # Zeroed pages are not backed with memory until they are written.
        self.rows = np.zeros(size, np.int64).data
        self.writers = np.zeros(size, np.int32).data
        # Last, as other threads ask for the axis first.
        self.block, self.axis = block, axis
        Versions.tracked += 1
        waiting, self.waiting = self.waiting, []
        for ref in waiting:
            if (told := ref()) is not None:
                told()

    def tell_of_rows(self, told: Callable[[], None]) -> None:
        """Call a method, weakly referenced, once there are rows."""
        self.waiting.append(weakref.WeakMethod(told))

    def separate(self) -> Versions:
        """Make versions of the same rows that count on another clock, from 0."""
        made = Versions()
        made.track_rows(self.axis, len(self.rows))
        made.block = self.block
        # Shared, so that the numbers of writers mean the same in both.
        made.names = self.names
        return made

    def name(self, writer: Any) -> int:
        """Return the number that stands for a writer in `writers`."""
        # By the `id` of a code object, which `names` keeps alive: code objects compare by their bytecode,
        # which is slow.
        key = (id(writer[0]), writer[1]) if isinstance(writer, tuple) else writer
        found = self.names.get(key)
        if found is None:
            found = self.names[key] = len(self.names), writer
        return int(found[0])

    def row_at(self, index: tuple[int, ...]) -> int | None:
        """Return the row of an element; None: there are no rows."""
        return None if self.axis is None else index[self.axis] // self.block

    def has_row(self, row: int | None) -> bool:
        """Return whether there is such a row (None: any); a launch whose loops are empty may name another."""
        return row is None or 0 <= row < len(self.rows)

    def indices(self, row: int | None, shape: tuple[int, ...]) -> tuple[int | None, int, int]:
        """Return the axis, the first index and the number of indices of a row, as storages take them.

        All of the field, if there is no such row.
        """
        if row is None or self.axis is None or not self.has_row(row):
            return WHOLE
        first = row * self.block
        # The last row may be shorter than the others.
        return self.axis, first, min(self.block, shape[self.axis] - first)

    def row_within(self, first: int, last: int) -> int | None:
        """Return the row that holds all indices from `first` to `last` of the axis; None: none does."""
        row = first // self.block
        return row if row == last // self.block else None

    def written(self, row: int | None, now: int, writer: Any) -> None:
        """Note a write within a row (None: anywhere) at this reading of the clock."""
        # A kernel may be asked for rows that there are none of, which it skips.
        if not self.has_row(row):
            return
        # `latest` bounds all others from above, so that one comparison answers most questions.
        self.latest = now
        self.dirty = True
        if row is None:
            self.whole, self.writer = now, writer
        else:
            self._set_row(row, now, self.name(writer))

    def divide(self, place: tuple[int, int, int], stride: int, size: int) -> None:
        """Make rows, if there are none and a write within some indices of an axis tells how long they are.

        Args:
            place: the axis, the first index, and the last one.
            stride: how many indices a row should have; 0: the launch does not tell.
            size: the length of the axis.
        """
        axis, first, last = place
        if self.axis is None and 0 <= last - first < stride < size:
            with _dividing:
                if self.axis is None:
                    self.track_rows(axis, size, stride)

    def written_slice(
        self, place: tuple[int, int, int], stride: int, size: int, now: int, writer: Any
    ) -> None:
        """Note a write within some indices of an axis, and make rows as `divide` does."""
        axis, first, last = place
        if first > last:  # of a launch whose loop is empty
            return
        self.divide(place, stride, size)
        known = self.axis == axis
        self.written(self.row_within(first, last) if known else None, now, writer)

    def filled(self, now: int, writer: Any, *, dirty: bool) -> None:
        """Note that all elements were set at this reading of the clock, to 0 unless `dirty`."""
        self.latest = self.whole = now
        self.writer, self.cuts, self.dirty = writer, None, dirty

    def overwritten(self, *, dirty: bool) -> None:
        """Note that the write noted last has set all elements, to 0 unless `dirty`."""
        # What was cut is overwritten.
        self.dirty = dirty
        self.cuts = None

    def cleared(self, now: int, *, dirty: bool) -> None:
        """Note that the runtime has set all elements to 0; `dirty`: others may write to them unseen."""
        self.latest = self.whole = now
        self.writer = self.cuts = None
        self.dirty = dirty

    def disowned(self, cuts: Cuts) -> None:
        """Note that the write noted last was no statement of the user's, and what cuts there are after it."""
        # An error must not show a line of the user's for what the backward pass wrote.
        self.writer = None
        self.cuts = cuts

    def may_be_nonzero(self) -> None:
        """Note that the elements may be anything from now on, though no write was seen."""
        self.dirty = True

    def share(self) -> None:
        """Note that other libraries may write to the elements at any time from now on."""
        self.dirty, self.is_complete = True, False

    def are_of(self, row: int | None, reading: int) -> bool:
        """Return whether the last write to the row (None: to any part) was the one at this reading.

        Then its elements hold what was written then: unlike `changed`, also if older ones were restored.
        """
        return self.is_complete and self.last(row) == reading

    def add_cut(self, elements: Any, cut: Cut) -> None:
        """Note that these elements belong to a value which Python set in a tape's block."""
        if self.cuts is None:
            self.cuts = {}
        self.cuts[elements] = cut

    def _set_row(self, row: int, now: int, writer: int) -> None:
        if 0 <= row < len(self.rows):
            self.rows[row], self.writers[row] = now, writer

    def row(self, row: int) -> int:
        """Return the version of a row."""
        # Rows out of bounds are skipped by kernels as well: never written.
        return self.rows[row] if 0 <= row < len(self.rows) else 0

    def writer_of(self, row: int | None) -> Any:
        """Return the last writer of the row (None: of the whole)."""
        if row is None:
            return self.writer
        number = self.writers[row] if 0 <= row < len(self.writers) else 0
        return next(w for k, w in self.names.values() if k == number)

    def snapshot(self, row: int | None) -> Part:
        """Copy the versions of a row (None: of all rows), for `restore`."""
        if row is not None:
            return self.latest, self.whole, self.row(row)
        # Sparse: of a million rows few are written in a step.
        rows = np.asarray(self.rows)
        written = np.flatnonzero(rows)
        return self.latest, self.whole, (written, rows[written])

    def restore(self, row: int | None, part: Part) -> None:
        """Set the versions to those that `snapshot` returned."""
        if row is not None:
            version = max(part[1], part[2])
            if self.whole > version:
                self._write_rows(part[1])
            self.restored = max(self.restored, version)
            self._set_row(row, version, self.writers[row] if row < len(self.writers) else 0)
            return
        self.latest, self.whole, (written, versions) = part
        self.restored = max(self.restored, self.latest)
        rows = np.asarray(self.rows)
        rows[:] = 0
        rows[written] = versions

    def _write_rows(self, whole: int) -> None:
        """Note the last write of the whole for each row, and `whole` for the one before it."""
        rows = np.asarray(self.rows)
        before = rows < self.whole
        rows[before] = self.whole
        np.asarray(self.writers)[before] = self.name(self.writer)
        self.whole = whole

    def changed(self, row: int | None, since: int) -> bool:
        """Return whether the row (None: any of them) was written after that reading of the clock."""
        if row is None:
            # Rows that were written since may have got their earlier values back, one by one, which `latest`
            # does not know.
            return self.latest > since and (self.whole > since or self._any_row_since(since))
        # The row was written itself, or by a write of the whole.
        return self.whole > since or self.row(row) > since

    def _any_row_since(self, since: int) -> bool:
        return bool((np.asarray(self.rows) > since).any())

    def rewritten(self, row: int | None, since: int, start: int) -> bool:
        """Return whether everything written after `since` was rewritten after `start`."""
        # Part by part: what was written after `since` must have been written once more after `start`, else it
        # holds a value of neither time.
        if row is None:
            rows = np.asarray(self.rows)
            again = self.whole <= since or self.whole > start
            return again and bool(((rows <= since) | (rows > start)).all())
        return max(self.whole, self.row(row)) > start

    def rows_since(self, reading: int) -> list[int]:
        """Return the rows that were written by themselves at this reading of the clock, or later."""
        found: list[int] = np.flatnonzero(np.asarray(self.rows) >= reading).tolist()
        return found

    def by_caller(self, row: int | None = None) -> None:
        """Note the statement that called the caller of this method as the last writer (of a row)."""
        # Frame 0 is this method, 1 the public method that calls it, 2 the user's statement.
        frame: Any = sys._getframe(2)
        # Public methods are wrapped, and diffsim calls some of them itself: the statement is further out.
        while IS_OWN[frame.f_code.co_filename] and frame.f_back is not None:
            frame = frame.f_back
        if row is None:
            self.writer = (frame.f_code, frame.f_lasti)
        else:
            self._set_row(row, self.row(row), self.name((frame.f_code, frame.f_lasti)))

    def last(self, row: int | None) -> int:
        """Return when the row (None: any part) was written last."""
        return self.latest if row is None else max(self.whole, self.row(row))

    def written_by(self, row: int | None) -> tuple[str, Span | None]:
        """Return the last writer of the row (None: of any part) in words, and its place."""
        who = self.writer
        if row is None and len(self.rows):
            row = int(np.asarray(self.rows).argmax())
        # The latest write decides: of the row, or of the whole.
        if row is not None and self.row(row) > self.whole:
            who = self.writer_of(row)
        if isinstance(who, Span):
            return f"the {who.where}", who
        return "a Python statement", span_of(who)


class Stamp:
    """The versions that a replayed program leaves in one field, counted from the start of the program."""

    __slots__ = (
        "_columns",
        "is_of_rows",
        "latest",
        "readings",
        "rows",
        "versions",
        "whole",
        "writer",
        "writers",
    )

    def __init__(self, real: Versions, order: Versions, since: int) -> None:
        self.versions = real
        self.latest = order.latest - since
        self.whole = order.whole - since
        self.writer = order.writer
        # Sparse, as in `Versions.snapshot`.
        rows = np.asarray(order.rows)
        self.rows = np.flatnonzero(rows > since)
        self.readings = rows[self.rows] - since
        self.writers = np.asarray(order.writers)[self.rows]
        self.is_of_rows = bool(len(self.rows))
        # Of the real versions, whose rows are never other objects once there are some.
        self._columns = np.asarray(real.rows), np.asarray(real.writers)

    def apply(self, base: int) -> None:
        """Set the real versions, for a program that started at the clock reading `base`."""
        v = self.versions
        v.latest = base + self.latest
        if self.whole > 0:
            v.whole, v.writer = base + self.whole, self.writer
        # Index arrays in place of a Python loop over all rows that the program writes.
        if self.is_of_rows:
            rows, writers = self._columns
            rows[self.rows] = base + self.readings
            writers[self.rows] = self.writers
        # The replay does not tell whether it wrote zeros.
        v.dirty = True


def span_of(writer: Any) -> Span | None:
    """Return the source line of a writer."""
    if isinstance(writer, tuple):
        code, instruction = writer
        return Span(code.co_filename, _line_of(code, instruction))
    return writer if isinstance(writer, Span) else None


def _line_of(code: Any, instruction: int) -> int:
    # Instructions of a line need not be contiguous; `co_lines` has the ranges (PEP 626).
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return int(line)
    return int(code.co_firstlineno)
