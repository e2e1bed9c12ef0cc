"""A recording that repeats the last one: its events are compared with that record instead of recorded.

Loops of an optimisation record the same launches again and again. As long as each event of the block is the
one that stands at its place of the last record, no entry is made: copies of what is overwritten go into the
memory of the last ones, and the backward pass is the native program of that record (`ad/replay`). At the
first event that differs the record is cut there, and goes on entry by entry.

What is provably the same (docs/adr/0032): the same specializations, which stand for all compiled-in values
and captured fields; arguments equal to the last bit; writes from Python to the same elements; and a clock
that ticked for nothing else, so that no write is missing. Everything that a record holds besides (followed
values, copies, random numbers, gradients by hand) is not repeated, but recorded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Index
from diffsim.ad.record.entries import Launched, Wrote
from diffsim.ad.record.entry import Entry
from diffsim.ad.record.overwrite_saves import OverwriteSaver, Saved
from diffsim.ad.record.record import Record
from diffsim.ad.repeat.past import NUMBERS, Past, Plan
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class Repetition:
    """Compares the events of a block with the record of the last one.

    Attributes:
        past: the last recording.
        at: how many entries of its record were repeated.
        start, clock: the clock's reading at the start of the block, and at the last event.
    """

    __slots__ = (
        "_after",
        "_announced",
        "_behind",
        "_entries",
        "_kernels",
        "_launch",
        "_own",
        "_plan",
        "_specials",
        "at",
        "clock",
        "past",
        "start",
    )

    differs = False  # its arguments are those of the last recording

    def __init__(self, past: Past, clock: int) -> None:
        assert past.record is not None
        self.past = past
        # The columns of the record: comparing an event must take less time than recording it.
        self._kernels, self._entries, _, self._specials = past.record.columns()
        self.start = self.clock = clock
        self.at = 0
        # Between the announcement of an event and the event: its entry, and the first one of the next.
        self._announced: int | None = None
        self._after = 0
        self._launch: tuple[Any, tuple[Any, ...]] = None, ()
        self._own: list[Saved] = []
        self._behind: list[Callable[[], None]] = []
        self._plan = past.plan

    # ---- events; False: it differs, and is to be recorded

    def launching(self, special: Specialization, args: tuple[Any, ...], clock: int) -> bool:
        """Compare a launch that is about to begin, and make its copies."""
        self._announced = None  # one that was announced and failed has changed nothing
        k, after, copies, behind = self._plan.get(self.at) or self._planned()
        if clock != self.clock or not self._is_launch(k, special, args):
            return False
        for copy in copies:
            copy()
        self._behind = behind
        self._announced, self._after = k, after
        self._launch = special, args
        return True

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> bool:
        """Compare a launch; that of a kernel which writes nothing was not announced."""
        announced = self._announced
        k = self.at if announced is None else announced
        # What was announced has been compared: only whether it is that launch is left to ask.
        known = announced is not None and self._launch[0] is special and self._launch[1] == args
        if not known and not self._is_launch(k, special, args):
            return False
        if announced is not None:
            for copy in self._behind:
                copy()
        if now == self.clock + 1 and not seed:
            self.at = k + 1 if announced is None else self._after
            self.clock, self._announced = now, None
            return True
        # It ran, and its copies were made: only the clock is another, as another thread wrote meanwhile.
        if announced is not None:
            self.at = k
            self._own = self._entries[k + 1 : self._after]
        return False

    def writing(self, field: Field, row: int | None, clock: int) -> bool:
        """Compare a write from Python that is about to begin, and make its copies."""
        self._announced = None
        k, after, copies, _ = self._plan.get(self.at) or self._planned()
        entry = self._write(k)
        if clock != self.clock or entry is None or entry.field is not field or entry.row != row:
            return False
        for copy in copies:
            copy()
        self._announced, self._after = k, after
        return True

    def wrote(self, field: Field, index: Index, value: Any, now: int) -> bool:
        """Compare a write from Python, and note its value."""
        if self._announced is not None:
            self.at = self._announced  # whatever it is: its copies were made
            self._announced = None
        entry = self._write(self.at)
        if entry is None or entry.field is not field or entry.index != index:
            return False
        # Whether a value is 0 decides whether it may be what Python computed from a field.
        plain = isinstance(value, np.ndarray) and bool(value.any()) == bool(entry.value.any())
        if now != self.clock + 1 or not plain:
            return False
        entry.value = value
        entry.writer = field.versions.writer_of(entry.row)
        self.at, self.clock = self.at + 1, now
        return True

    def _is_launch(self, k: int, special: Specialization, args: tuple[Any, ...]) -> bool:
        kernels = self._kernels
        if k >= len(kernels):
            return False
        number, known = kernels[k], self._entries[k]
        if number >= 0:
            found, single = self._specials[number]
            if found is not special or known is None:  # `Record.blank`
                return False
            if single:
                a = args[0]
                return a is known or is_same(a, known)
        elif isinstance(known, Launched) and known.special is special:
            known = known.args
        else:
            return False
        return all(a is b or is_same(a, b) for a, b in zip(args, known, strict=True))

    def _write(self, k: int) -> Wrote | None:
        found = self._entries[k] if k < len(self._kernels) and self._kernels[k] < 0 else None
        return found if isinstance(found, Wrote) else None

    def _planned(self) -> Plan:
        """Return the next event, and the copies that stand before it, or behind it as its own ones."""
        entries, k = self._entries, self.at
        # No argument of a launch is a copy, so that the column of kernels need not be asked.
        while k < len(entries) and entries[k].__class__ is Saved:
            k += 1
        after = k + 1
        while after < len(entries) and entries[after].__class__ is Saved and entries[after].own:
            after += 1
        own = entries[k + 1 : after]
        copies = [*entries[self.at : k], *(copy for copy in own if not copy.behind)]
        behind = [copy.renewal() for copy in own if copy.behind]
        found = self._plan[self.at] = k, after, [copy.renewal() for copy in copies], behind
        return found

    # ---- the end

    @property
    def is_whole(self) -> bool:
        """Whether all events of the record were repeated, and some there are."""
        return 0 < self.at == len(self._entries)

    def hand_over(self, saver: OverwriteSaver | None) -> Record:
        """Return the record of this block: the last one, with the readings that it had."""
        past = self.past
        assert past.record is not None
        if saver is not None:
            saver.bytes, saver.spare = past.copied, past.spare
        past.record.reads = ()
        return past.record

    def leave(self, record: Record, saver: OverwriteSaver | None) -> list[Saved]:
        """Let a record become what was repeated, and the saver, if the tape has one, go on from there.

        Returns:
            The own copies of a launch that is still to be recorded.
        """
        past = self.past
        assert past.record is not None
        past.record.date(self.start)
        removed = past.record.cut(self.at)
        record.take_over(past.record)
        if saver is not None:
            saver.bytes, saver.spare = 0, past.spare
            saver.spare.add(copy for copy in removed if copy not in self._own)
            _resume(saver, record)
        return self._own


def is_same(a: Any, b: Any) -> bool:
    """Whether two arguments are equal to the last bit."""
    # Types as well: they decide how a number is converted. NaN differs from itself, and is recorded anew.
    if a.__class__ is not b.__class__ or a.__class__ not in NUMBERS or a != b:
        return False
    # 0.0 == -0.0, and 1/x tells them apart.
    return bool(a) or str(a) == str(b)


def _resume(saver: OverwriteSaver, entries: Iterable[Entry]) -> None:
    """Note what a record's copies hold, and what its adjoints will load."""
    launch: Launched | None = None
    for entry in entries:
        # A launch's own copies stand after it, and were made before what its adjoint loads was noted.
        if launch is not None and not (isinstance(entry, Saved) and entry.own):
            saver.after_launch(launch.special, launch.args)
            launch = None
        if isinstance(entry, Saved):
            saver.note(entry)
        elif isinstance(entry, Launched):
            launch = entry
    if launch is not None:
        saver.after_launch(launch.special, launch.args)
