"""Tapes of a loop that has come to rest: each turn the same few kernels at the same line, from the same loss.

What such a turn needs is there when its tape is made: the record to write over, and the knowledge that no
check of it is left to make. So while the block runs nothing is done but to compare each launch with the one
at its place, and to write its arguments and the clock's reading down; at the end the adjoints run. At
anything else, in the block or after it, the steady tape is *unfolded* into a recorder as any other tape has
one, with the record up to there (docs/adr/0070).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import call
from typing import TYPE_CHECKING, Any

from diffsim.ad.checks.integrity import RecordIntegrity
from diffsim.ad.record.record import Record
from diffsim.ad.repeat.known import Known
from diffsim.ad.repeat.past import MOST, NUMBERS, SMALL, Key, Past, at_drop
from diffsim.ad.repeat.rewriting import Rewriting, is_combination
from diffsim.ad.reverse.backward import run_rows
from diffsim.ad.reverse.seeds import set_number
from diffsim.backends.native.pool import closed
from diffsim.runtime.fields.adjoints import clear_gradients, is_plain_number
from diffsim.runtime.fields.field import Field
from diffsim.runtime.recorder import NO_REPLACEMENTS, Folded
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.errors import Span
    from diffsim.runtime.kernels.specialization import Specialization
    from diffsim.runtime.memory.versions import Versions

WAITING, BEGUN, ENDED = range(3)


class Steady(Folded):
    """The recorder of a steady tape, to launch functions; all others meet what it unfolds into.

    Attributes:
        key: the line and the loss.
        past: the last recording.
        known: what was found out about it: that a pass over it needs no check.
        record: the last recording's, written over.
        integrity: of the record.
        at: how many launches were written over.
        base: the clock's reading at the start of the block.
        writer: the statement that began the block.
        generation: the session's.
        is_long: whether its pass should have a native program.
        passes: how many there were.
        stage: whether the block has begun, and ended.
        entry: with which the session knows it while the block runs.
    """

    __slots__ = (
        "_count",
        "_fields",
        "_held",
        "_is_disturbed",
        "_kernels",
        "_numbers",
        "_refs",
        "_single",
        "_specials",
        "_things",
        "_times",
        "_unfolded",
        "at",
        "base",
        "entry",
        "generation",
        "integrity",
        "is_long",
        "key",
        "known",
        "passes",
        "past",
        "record",
        "stage",
        "writer",
    )

    # As launch functions ask for them (`runtime/recorder.py`).
    intercepts = False
    tangents = 0
    replacements = NO_REPLACEMENTS

    def __init__(self, key: Key, past: Past, record: Record, known: Known) -> None:
        self.key = key
        self.past = past
        self.record = record
        self.known = known
        self.integrity = RecordIntegrity()
        self.at = self.base = 0
        self.stage = WAITING
        self.generation = session.generation
        self.entry: Any = None
        self._unfolded: Any = None
        self.writer: Any = None
        self._is_disturbed = False
        # versions and memory of the loss and of its gradient, if each is a number: they keep no field alive
        self._numbers: tuple[Versions, Any, Versions, Any] | None = None
        self._held: Sequence[Any] = ()
        self._count = len(record)
        self.is_long = past.is_native
        self.passes = 0
        self._refs = [weakref.ref(special) for special, _ in record.columns()[3]]
        self._single = [single for _, single in record.columns()[3]]
        self._kernels, self._things, self._times, self._specials = record.columns()
        self._fields = record.fields_by_number()

    # ---- from one tape of the line to the next one

    @classmethod
    def of(cls, key: Key, past: Past, loss: Field) -> Steady | None:
        """Return what makes the next tape of a line steady; None: its recordings want more than that."""
        record, known = past.record, past.known
        if record is None or past.bytes > _MOST_BYTES or not isinstance(known, Known):
            return None
        if not record.is_plain or known.by_arguments or not known.suffices(record, loss):
            return None
        if past.is_native and not past.is_plain:
            return None
        made = cls(key, past, record, known)
        if is_plain_number(loss) and loss.adjoint is not None and is_plain_number(loss.adjoint):
            g = loss.adjoint
            made._numbers = loss.versions, loss.storage.flat, g.versions, g.storage.flat
        return made

    def wait(self) -> None:
        """Wait for the next tape; no kernel and no field is kept alive by it."""
        if self.stage != WAITING:
            self.stage, self._held = WAITING, ()
            if self.past.native is None:
                self._specials.clear()
                self.record.blank()
            else:
                self.past.native.weaken()
                self.record.weaken()
        if len(_waiting) >= (_MOST if self.past.bytes <= SMALL else _MOST_LARGE):
            _waiting.clear()
        _waiting[self.key] = self

    def _hold(self) -> bool:
        """Keep kernels and fields alive from here on; returns whether all of them are still there."""
        past = self.past
        held = [*map(call, past.used)]
        if past.gone:  # asked when what is left is held
            return False
        self._held = held
        kernels: map[Any] = map(call, self._refs)
        self._specials[:] = zip(kernels, self._single, strict=True)
        if past.native is not None:
            past.native.strengthen(self.record)
        return True

    # ---- the block

    def begin(self, loss: Field, writer: Any) -> bool:
        """Set gradients and loss to 0, and receive the events of this thread from now on.

        Args:
            loss: the one of its line.
            writer: the user's statement.

        Returns:
            Whether it did; if not, something is gone, or another thread at work.
        """
        if self.known.changes != session.with_grad.changes:
            return False
        if session.recorders or session.witnesses or session.passes or closed[0]:
            return False
        if self.stage == WAITING and not self._hold():
            return False
        clear_gradients()
        if self._numbers is None:
            set_number(loss, 0, writer)
        else:
            v, flat, _, _ = self._numbers
            flat[0] = 0
            session.clock = v.latest = v.whole = session.clock + 1
            v.writer, v.cuts, v.dirty = writer, None, False
        self.at, self.stage = 0, BEGUN
        self.writer, self.base = writer, session.clock
        self.entry = session.begin_recording(self, self)  # type: ignore[arg-type]
        return True

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        """Write a launch over the one at its place, if it is one of the same kernel."""
        k = self.at
        if k < self._count and not seed and self._unfolded is None:
            number = self._kernels[k]
            (found, single), fields = self._specials[number], self._fields[number]
            if found is special and (not fields or is_combination(args, fields)):
                for a in () if fields else args:
                    if a.__class__ not in NUMBERS:
                        break
                else:
                    self._things[k] = args[0] if single else args
                    self._times[k] = now
                    self.at = k + 1
                    return
        self.unfolded.launched(special, args, now, seed)

    def returned(self, result: Any) -> Any:
        """As in `Recorder`: of a launch that has just been found to be another one."""
        return self.unfolded.returned(result)

    def written_elsewhere(self, f: Any, who: str, span: Span | None) -> None:
        """As in `Witness`; told by another thread, so that nothing is unfolded here."""
        self._is_disturbed = True
        self.integrity.written_elsewhere(f, who, span)

    def cut_short(self, what: str, span: Span | None) -> None:
        """As in `Witness`."""
        self._is_disturbed = True
        self.integrity.cut_short(what, span)

    def end(self) -> bool:
        """End the block, if it was the last recording again; False: it goes on, for a recorder to end it."""
        known, record = self.known, self.record
        if self.at != self._count or self._unfolded is not None or self._is_disturbed:
            return False
        # `ds.init` in the block puts an end to all that is known.
        if known.changes != session.with_grad.changes:
            return False
        for versions in known.gradients:
            if versions.dirty:
                return False
        session.end_recording(self.entry)
        self.entry, self.stage = None, ENDED  # no cycle
        record.base = base = self.base
        self.integrity.ended_at = now = session.clock
        record.is_gapless = now - base == self._count
        return True

    def run_adjoints(self, loss: Field) -> None:
        """Run the pass from this loss."""
        self.seed(loss)
        self.run_rows()

    def seed(self, loss: Field) -> None:
        """Set the gradient of the loss to 1."""
        if self._numbers is None or session.recorders or closed[0]:
            assert loss.adjoint is not None
            set_number(loss.adjoint, 1, self.writer)
        else:
            _, _, v, flat = self._numbers
            flat[0] = 1
            session.clock = v.latest = v.whole = session.clock + 1
            v.writer, v.cuts, v.dirty = self.writer, None, True

    def run_rows(self) -> None:
        """Run the adjoints, last first."""
        run_rows(self.record)

    # ---- anything else

    @property
    def unfolded(self) -> Any:
        """The recorder that it has become."""
        if self._unfolded is None:
            if self.stage != WAITING or (
                self.known.changes == session.with_grad.changes and self._hold()
            ):
                self.past.hold(self._held)
            self._unfolded = unfold[0](self)
        return self._unfolded

    def rewriting(self) -> Rewriting:
        """Return what compares further events with the last recording."""
        return Rewriting(self.past, self.base, self.at)


unfold: list[Callable[[Steady], Any]] = []
"""Makes the recorder that a steady tape unfolds into (`ad/recorder.py`)."""

_MOST = 1 << 12
_MOST_LARGE = 1 << 5
_MOST_BYTES = MOST >> 5

_waiting: dict[Key, Steady] = {}


def take_steady(key: Key) -> Steady | None:
    """Return what waits for the next tape of a line; it belongs to the caller now."""
    found = _waiting.pop(key, None)
    same = found is not None and found.known.changes == session.with_grad.changes
    return found if same else None


at_drop.append(lambda key: _waiting.pop(key, None))
session.at_reset.append(_waiting.clear)
