"""Recordings that are over, kept for the next one of the same tape, or of the same line of the program.

A tape in a loop, `with ds.Tape(loss): ...`, is made anew in each turn. What is left of it when it is dropped
waits here for the next tape of that line and loss: its record, the memory of its copies, the native program
of its backward pass. Meanwhile it keeps no kernel and no field alive; when one of its kernels goes, it goes.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import call
from typing import Any, Protocol

import numpy as np

from diffsim.ad.record.elements import Run
from diffsim.ad.record.entries import Launched, Wrote
from diffsim.ad.record.entry import Entry, fields_of
from diffsim.ad.record.overwrite_saves import Saved, SpareCopies
from diffsim.ad.record.record import Record
from diffsim.lang.host.signatures import CALL
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

MOST = 256 << 20
"""Bytes of copies and records that wait for a next recording, all together; the oldest ones go first."""

NUMBERS = frozenset((int, float, bool, np.float32, np.float64, np.int32, np.int64))
"""Types of arguments that can be compared."""

COPIED = frozenset((np.ndarray, Matrix, list, tuple))
"""Types of arguments that a record has copies of, which are not compared."""

SHORT = 24
"""Entries from which on a record without copies has a native backward pass when it is repeated."""

_MOST_MISSES = 4
"""Recordings of a line in a row, each of other kernels than the last one, after which none is kept."""

MOST_VARIANTS = 128
"""Recordings of a line that a steady tape knows; as many in a row, all different, end its line."""

SMALL = 1 << 12  # bytes

_ENTRY = 100  # bytes of an entry and its commands, about

Key = tuple[int, int, int]
"""A line of the program, its code and instruction; and the number of the loss, or -1.

Whatever else may come by the same key does no harm: a recording is compared, event by event.
"""


class _Replay(Protocol):
    """The native programs of a record (`ad/replay/program.py`)."""

    def weaken(self) -> bool: ...

    def strengthen(self, record: Record) -> bool: ...


class _Native(Protocol):
    """The native pass of a record of which other arguments are known (`ad/replay/repeated_pass.py`)."""

    def weaken(self) -> None: ...

    def strengthen(self, record: Record) -> None: ...

    def run(self, record: Record, start: int, end: int) -> bool: ...


class _Known(Protocol):
    """The results of checks of a record (`known.py`)."""

    @property
    def by_arguments(self) -> bool: ...


Plan = tuple[int, int, list[Callable[[], None]], list[Callable[[], None]]]
"""An entry that is no copy, the first one behind its own copies, and what makes all copies of it: those
before it, and those behind it."""


class Past:
    """A recording that is over.

    Attributes:
        record: what the next recording is compared with; None: only memory is used again.
        replay: its native programs, if there are any.
        known: what was found out about it.
        is_native: whether the next recording's adjoints run natively, so that it has to be the same exactly.
        native: the native pass of a long record that was written over.
        variant: what a steady tape knows of it (`variant.py`).
        is_plain: whether it is one of plain launches alone.
        spare: memory that its copies took.
        changes: the count of changes of gradients (`Session.with_grad`) as of which it was made.
        used: what it needs, kernels first; weak references after `weaken`.
        gone: not empty when something of that has gone since.
        plan: for the events of a record with copies, by the entry that the last event ended with.
        bytes: about how much memory it takes.
        copied: how much of that are the copies of the record.

    Args:
        record: the recording.
        spare: as the attribute.
        whole: whether it ended as its block did.
        fields: what memory is of that was on records before.
    """

    def __init__(
        self, record: Record, spare: SpareCopies, *, whole: bool, fields: Iterable[Field] = ()
    ) -> None:
        self.record: Record | None = record
        self.replay: _Replay | None = None
        self.known: _Known | None = None
        self.spare = spare
        self.native: _Native | None = None
        self.variant: Any = None
        self.plan: dict[int, Plan] = {}
        self.changes = session.with_grad.changes
        self._waits = False
        self.gone: list[Key] = []
        copies = record.copies()
        self.copied = sum(copy.data.nbytes for copy in copies)
        self.bytes = spare.bytes + self.copied
        # A native pass was judged when it was made; else the record is asked in each pass.
        self.is_native = bool(copies) or record.has_allowed or len(record) >= SHORT
        # Into a native program fields are compiled as the last recording had them.
        self.is_plain = record.is_plain and whole and not (self.is_native and record.takes_fields)
        # What may not go: the kernels first, then what these need, each once.
        needed = [*fields_of(record.firsts()), *fields, *chain(*record.alive.values())]
        self.used: list[Any] = [*record.alive, *{id(thing): thing for thing in needed}.values()]
        self._kernels = len(record.alive)
        self._stored: list[Any] = []
        self._may_wait = True
        if (
            whole
            and _can_all_repeat(record, self.is_native)
            and (record.is_gapless or not self.is_native)
        ):
            self._stored = [e for e in record.stored() if isinstance(e, (Wrote, Launched))]
            self.bytes += _ENTRY * len(record)
            self.bytes += sum(map(_bytes_of, self._stored))
        else:
            self.record = None
            self._may_wait = bool(self.bytes)
        if any(copy.is_orphan for copy in copies):
            self._may_wait = False
        elif self.record is None:
            spare.add(copies)

    def weaken(self, key: Key) -> bool:
        """Keep no kernel and no field alive; when one of them goes, what waits by this key does.

        Returns:
            Whether there is something to keep.
        """
        if not self._may_wait:
            return False
        if not self._waits:
            gone = self.gone

            def drop(_: object) -> None:
                gone.append(key)
                _drop(key)

            self.used = [weakref.ref(thing, drop) for thing in self.used]
            self._waits = True
        if self.record is not None:
            self.record.weaken()
            self.release_stored()
            if self.replay is not None and not self.replay.weaken():
                self.replay = None
            if self.native is not None:
                self.native.weaken()
        return True

    def strengthen(self) -> bool:
        """Undo `weaken`; returns whether all that it used is still there."""
        held = self.found()
        if held is None:
            return False
        if self.record is None:
            return True
        self.hold_stored()
        self.hold(held)
        if self.native is not None:
            self.native.strengthen(self.record)
        return self.replay is None or self.replay.strengthen(self.record)

    def found(self) -> list[Any] | None:
        """Return what it used, after `weaken`; None: something of that is gone."""
        held = [*map(call, self.used)]
        # Asked when what is left is held. The garbage collector clears the references, and calls nobody, of a
        # tape that was in a cycle.
        return None if self.gone or (held and held[0] is None) else held

    def release_stored(self) -> None:
        """Let the entries that are stored as such keep nothing alive."""
        for entry in self._stored:
            _let_go(entry)

    def hold_stored(self) -> None:
        """Undo `release_stored`; all that they use is there."""
        for entry in self._stored:
            _hold(entry)

    def hold(self, held: Sequence[Any]) -> None:
        """Let the record keep alive what it uses, after `weaken`."""
        assert self.record is not None
        alive = list(held)
        self.record.strengthen(dict.fromkeys(held[: self._kernels], alive))


def _let_go(entry: Any) -> None:
    """Reference what an entry holds weakly."""
    if isinstance(entry, Wrote):
        entry.field = weakref.ref(entry.field)  # type: ignore[assignment]
        return
    entry.special = weakref.ref(entry.special)
    if entry.returned is not None:
        entry.returned.move_to(None)
        entry.returned = None  # the next launch returns another one
    entry.args = entry.given = tuple(map(_without, entry.args))


def _without(a: Any) -> Any:
    """Return what is left of an argument: copies will be made anew."""
    if isinstance(a, Field):
        return weakref.ref(a)
    return None if a.__class__ in COPIED else a


def _bytes_of(entry: Any) -> int:
    things = [entry.value] if isinstance(entry, Wrote) else entry.args
    return sum(a.nbytes for a in things if isinstance(a, np.ndarray))


def _hold(entry: Any) -> None:
    """Undo `_let_go`; what it holds is there."""
    if isinstance(entry, Wrote):
        entry.field = entry.field()  # type: ignore[operator]
        return
    entry.special = entry.special()
    args = tuple(a() if isinstance(a, weakref.ref) else a for a in entry.args)
    entry.args = entry.given = args


def line_of_caller(loss: Field | None) -> Key:
    """Return the statement that makes a tape, and its loss, by which recordings are kept."""
    # 0 is this function, 1 `__init__`, 2 the user's statement (or the wrapper that checks signatures).
    frame: Any = sys._getframe(2)
    if frame.f_code is CALL:
        frame = frame.f_back
    return id(frame.f_code), frame.f_lasti, -1 if loss is None else loss.number


_waiting: dict[Key, Past] = {}
at_drop: list[Callable[[Key], Any]] = []
"""The callback for the end of something that a recording of this line has used."""
_misses: dict[Key | None, int] = {}
"""Lines of which a recording was kept before: how many in a row were of no use to the next one."""
MAY_WAIT = _misses.keys()
"""The lines of which a recording may be there when the next one has begun.

`with ds.Tape(loss) as tape` drops, and so keeps, the last tape of the line only after the block began. So a
line's first recording is not asked for by its second one; nearly all lines keep none at all.
"""


def keep(key: Key, past: Past, *, hit: bool = False) -> None:
    """Keep a recording for the next one of its line and loss; `hit`: the one before was of use to it."""
    if past.bytes > MOST or not past.weaken(key):
        return
    _misses[key] = 0 if hit else _misses.get(key, -1) + 1
    _waiting.pop(key, None)
    _waiting[key] = past
    # Those of small tapes are counted now and then.
    if past.bytes > SMALL or not len(_waiting) % 64:
        _drop_oldest()


def _drop_oldest() -> None:
    """Keep no more than `MOST` bytes."""
    # Other threads, and callbacks of weak references, take recordings at any time.
    total = sum(past.bytes for past in list(_waiting.values()))
    for oldest in list(_waiting):
        if total <= MOST:
            break
        past = _waiting.pop(oldest, None)
        total -= 0 if past is None else past.bytes


def is_worth_keeping(key: Key | None, record: Record) -> bool:
    """Return whether comparing events with this record may take less time than recording them anew."""
    # Copies gain at once, as their memory need not be found anew.
    if len(record) >= SHORT or record.copies():
        return True
    return len(record) > 0 and (key is None or _misses.get(key, 0) < _MOST_MISSES)


def give_up(key: Key) -> None:
    """Keep no recording of this line any more."""
    _misses[key] = _MOST_MISSES


def take(key: Key) -> Past | None:
    """Return the recording that waits for one of this line and loss; it belongs to the caller now."""
    found = _waiting.pop(key, None)
    return found if found is not None and found.strengthen() else None


def _drop(key: Key) -> None:
    _waiting.pop(key, None)
    for forget in at_drop:
        forget(key)


session.at_reset += [_waiting.clear, _misses.clear]


def _can_all_repeat(record: Record, exactly: bool) -> bool:
    if record.seeded or record.declares_constants or record.may_use_reads:
        return False
    if record.reads and exactly and not record.is_plain:
        return False
    return len(record) > 0 and all(_can_repeat(e, exactly) for e in record.firsts())


def _can_repeat(entry: Entry, exactly: bool) -> bool:
    if isinstance(entry, Launched):
        # A copy of an argument was made where the program may change it, and is not compared.
        plain = all(
            a.__class__ in NUMBERS
            or isinstance(a, Field)
            or (a.__class__ in COPIED and not exactly)
            for a in entry.args
        )
        plain = plain and not (exactly and entry.returned is not None)
        return plain and not entry.seed and entry.undetached is None
    if entry.__class__ is Wrote:
        assert isinstance(entry, Wrote)
        said = entry.declared_constant or entry.array_source or entry.lost_at
        plain = isinstance(entry.value, np.ndarray) and not isinstance(entry.index, Run)
        if exactly and entry.field.tree is not None:  # no replay writes below a sparse node
            return False
        return plain and not said and not entry.field.is_grad
    # Nor does one copy it back: which cells are active may be another set by then.
    return isinstance(entry, Saved) and not entry.is_orphan and entry.box[0].tree is None
