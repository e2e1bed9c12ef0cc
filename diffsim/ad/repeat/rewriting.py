"""A recording that is written over the last one: for short records without copies.

Loops of an optimisation record the same few launches in each turn. As long as each event of the block is of
the kernel, or the write from Python, that stands at its place of the last record, the row there gets the
arguments and the clock's reading of the new one. In the end the record is what recording it anew would have
made, and what was found out about the last one may be known of it (`known.py`). At the first event that
differs the record is cut there, and goes on entry by entry (docs/adr/0062).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Index
from diffsim.ad.record.entries import Launched, Wrote
from diffsim.ad.record.overwrite_saves import OverwriteSaver, Saved
from diffsim.ad.record.record import Record
from diffsim.ad.repeat.past import NUMBERS, Past
from diffsim.ad.repeat.repetition import is_same
from diffsim.ad.repeat.variant import copies_of
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class Rewriting:
    """Writes the events of a block over the record of the last one.

    Attributes:
        past: the last recording.
        start: the clock's reading at the start of the block.
        at: how many entries were written over.
        differs: whether an argument is another one than last time, if somebody asks.
    """

    __slots__ = (
        "_entries",
        "_fields",
        "_kernels",
        "_looks",
        "_specials",
        "_times",
        "at",
        "differs",
        "past",
        "start",
    )

    def __init__(self, past: Past, start: int, at: int = 0) -> None:
        assert past.record is not None
        self.past = past
        self.start = start
        self.at = at
        self.differs = False
        self._looks = past.known is not None and past.known.by_arguments
        self._kernels, self._entries, self._times, self._specials = past.record.columns()
        self._fields = past.record.fields_by_number()

    # ---- events; False: it differs, and is to be recorded

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> bool:
        """Write a launch over the one at its place."""
        k, entries = self.at, self._entries
        if seed or k >= len(entries):
            return False
        number = self._kernels[k]
        if number < 0:
            return self._stored(entries[k], special, args, now)
        found, single = self._specials[number]
        if found is not special:
            return False
        if not is_combination(args, self._fields[number]):
            return False
        if self._looks:
            self._compare(args, (entries[k],) if single else entries[k])
        entries[k] = args[0] if single else args
        self._times[k] = now
        self.at = k + 1
        return True

    def _stored(self, entry: Any, special: Specialization, args: tuple[Any, ...], now: int) -> bool:
        """Write a launch with arrays or vectors over the one at its place: of the same fields."""
        if not isinstance(entry, Launched) or entry.special is not special:
            return False
        copied = copies_of(args, entry.args)
        if copied is None:
            return False
        if self._looks:
            self._compare(args, entry.args)
        entry.given, entry.args = args, copied
        entry.now = now
        self.at += 1
        return True

    def _compare(self, args: tuple[Any, ...], known: tuple[Any, ...] | None) -> None:
        if known is None:  # `Record.blank`
            self.differs = True
            return
        self.differs |= not all(a is b or is_same(a, b) for a, b in zip(args, known, strict=True))

    def launching(self, special: Specialization, args: tuple[Any, ...], clock: int) -> bool:
        """Compare the kernel of a launch that is about to begin."""
        k = self.at
        if k >= len(self._entries):
            return False
        number = self._kernels[k]
        if number >= 0:
            return self._specials[number][0] is special
        entry = self._entries[k]
        return isinstance(entry, Launched) and entry.special is special

    def writing(self, field: Field, row: int | None, clock: int) -> bool:
        """Nothing is copied before a write, which is compared when it has been made."""
        return True

    def wrote(self, field: Field, index: Index, value: Any, now: int) -> bool:
        """Write a write from Python over the one at its place."""
        k = self.at
        entry = self._entries[k] if k < len(self._entries) and self._kernels[k] < 0 else None
        if not isinstance(entry, Wrote) or entry.field is not field or entry.index != index:
            return False
        # Whether a value is 0 decides whether it may be what Python computed from a field.
        if not isinstance(value, np.ndarray) or bool(value.any()) != bool(entry.value.any()):
            return False
        entry.value = value
        entry.writer = field.versions.writer_of(entry.row)
        self.at = k + 1
        return True

    # ---- the end

    @property
    def is_whole(self) -> bool:
        """Whether all entries were written over."""
        return self.at == len(self._entries)

    def hand_over(self, saver: OverwriteSaver | None) -> Record:
        """Return the record of this block: the last one, written over."""
        found = self.past.record
        assert found is not None
        found.base, found.reads = self.start, ()
        found.close()
        return found

    def leave(self, record: Record, saver: OverwriteSaver | None) -> list[Saved]:
        """Let a record become what was written over, to go on from there."""
        if self.at:
            assert self.past.record is not None
            self.past.record.cut(self.at)
            self.past.record.base = self.start
            record.take_over(self.past.record)
        return []


def is_combination(args: tuple[Any, ...], fields: tuple[int, ...]) -> bool:
    """Return whether arguments are numbers and these fields, in this order."""
    at = 0
    for a in args:
        if a.__class__ is Field:
            if at == len(fields) or a.number != fields[at]:
                return False
            at += 1
        elif a.__class__ not in NUMBERS:
            return False
    return at == len(fields)
