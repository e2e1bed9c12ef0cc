"""When each part of a field was last written, and by whom.

A version is a reading of the session's clock, which ticks at every launch and every write from Python. One
axis of a field (its time axis, the first one that a kernel indexes with an argument) has a version for
each row; writes that are not bound to a row count for the whole field.
"""

from __future__ import annotations

import sys
from typing import Any

from diffsim.errors import Span
from diffsim.lang.signatures import CALL


class Versions:
    """The versions of one field.

    Attributes:
        latest: of the last write to any part.
        whole: of the last write that was not bound to one row.
        rows: of the last write to single rows.
        axis: which axis the rows are of; None until a kernel tells.
        writer: who wrote to the whole last: a kernel's span, or (code, instruction) of a Python
            statement.
        writers: the same for rows.
        dirty: for a gradient: whether it may hold anything but zeros.
    """

    __slots__ = ("axis", "dirty", "latest", "rows", "whole", "writer", "writers")

    def __init__(self) -> None:
        self.latest = 0
        self.whole = 0
        self.rows: dict[int, int] = {}
        self.axis: int | None = None
        self.writer: Any = None
        self.writers: dict[int, Any] = {}
        self.dirty = False

    def changed(self, row: int | None, since: int) -> bool:
        """Whether the row (None: any of them) was written after that reading of the clock."""
        if row is None:
            return self.latest > since
        return self.whole > since or self.rows.get(row, 0) > since

    def made_again(self, row: int | None, since: int, start: int) -> bool:
        """Whether all that was written after `since` was written again after `start`."""
        if row is None:
            return all(v <= since or v > start for v in (self.whole, *self.rows.values()))
        return max(self.whole, self.rows.get(row, 0)) > start

    def by_caller(self, row: int | None = None) -> None:
        """Note the line that called our caller as the last writer (to a row)."""
        frame: Any = sys._getframe(2)
        if frame.f_code is CALL:
            frame = frame.f_back
        if row is None:
            self.writer = (frame.f_code, frame.f_lasti)
        else:
            self.writers[row] = (frame.f_code, frame.f_lasti)

    def written_by(self, row: int | None) -> tuple[str, Span | None]:
        """The last writer of the row (None: of any part) in words, and its place."""
        who = self.writer
        rows = self.rows if row is None else {row: self.rows.get(row, 0)}
        last = max(rows, key=rows.__getitem__, default=None)
        if last is not None and rows[last] > self.whole:
            who = self.writers.get(last)
        if isinstance(who, Span):
            return f"the {who.where}", who
        return "a Python statement", span_of(who)


def span_of(writer: Any) -> Span | None:
    """The place of a writer."""
    if isinstance(writer, tuple):
        code, instruction = writer
        return Span(code.co_filename, _line_of(code, instruction))
    return writer if isinstance(writer, Span) else None


def _line_of(code: Any, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return int(line)
    return int(code.co_firstlineno)
