"""Tapes of a loop that has come to rest: each turn one of a few programs at one line, from the same loss.

What such a turn needs is there when its tape is made: the record to write over, and the knowledge that no
check of it is left to make. So while the block runs nothing is done but to compare each launch, and each
write from Python, with the one at its place, and to write its arguments and the clock's reading down; at the
end the adjoints run. Where another program of the line goes on as this one does (`variant.py`), its record is
the one to write over. At anything else, in the block or after it, the steady tape is *unfolded* into a
recorder as any other tape has one, with the record up to there (docs/adr/0070).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.checks.integrity import RecordIntegrity
from diffsim.ad.checks.launch_conditions import wrong_launches
from diffsim.ad.record.entries import Launched, all_written
from diffsim.ad.record.record import Record
from diffsim.ad.repeat.past import MOST_VARIANTS, NUMBERS, SMALL, Key, at_drop
from diffsim.ad.repeat.rewriting import Rewriting, is_combination
from diffsim.ad.repeat.variant import (
    MOST_BYTES,
    Form,
    Variant,
    copies_of,
    form_of_launch,
    form_of_write,
    is_current,
    same_arguments,
)
from diffsim.ad.reverse.backward import ClearedGradients, run_unobserved
from diffsim.ad.reverse.inputs import note_inputs
from diffsim.ad.reverse.seeds import set_number
from diffsim.backends.native.pool import closed
from diffsim.runtime.fields.adjoints import clear_gradients, is_plain_number
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import Provenance
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.recorder import NO_REPLACEMENTS, Folded
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.errors import Span
    from diffsim.runtime.kernels.specialization import Specialization
    from diffsim.runtime.memory.versions import Versions

WAITING, BEGUN, ENDED = range(3)


class Steady(Folded):
    """The recorder of a steady tape, to launch functions and writes; all others meet what it unfolds into.

    Attributes:
        key: the line and the loss.
        variants: the programs of the line.
        now: the one that this block is, as far as it has come.
        past, known, record: those of `now`.
        integrity: of the record.
        at: how many entries were written over.
        base: the clock's reading at the start of the block.
        writer: the statement that began the block.
        generation: the session's.
        stage: whether the block has begun, and ended.
        entry: with which the session knows it while the block runs.
    """

    __slots__ = (
        "__weakref__",
        "_by_form",
        "_count",
        "_fields",
        "_is_disturbed",
        "_kernels",
        "_looks",
        "_misses",
        "_numbers",
        "_reads",
        "_returned",
        "_specials",
        "_things",
        "_times",
        "_unfolded",
        "_used",
        "at",
        "base",
        "entry",
        "generation",
        "integrity",
        "key",
        "known",
        "now",
        "past",
        "record",
        "stage",
        "variants",
        "writer",
    )

    # As launch functions ask for them (`runtime/recorder.py`).
    intercepts = False
    tangents = 0
    replacements = NO_REPLACEMENTS
    # As reads do.
    follows_values = refuses_constants = True

    def __init__(self, key: Key, loss: Field | None, first: Variant) -> None:
        self.key = key
        self.variants: list[Variant] = []
        self.integrity = RecordIntegrity()
        self.at = self.base = self._misses = 0
        self.stage = WAITING
        self.generation = session.generation
        self.entry: Any = None
        self._unfolded: Any = None
        self.writer: Any = None
        self._is_disturbed = False
        # what kernels have returned in this turn, and the origins of what Python has read
        self._returned: list[Recorded] = []
        self._reads: list[Provenance] = []
        self._used: list[Variant] = []  # those that may be held, but for `now`
        # those that have a form at a place, by both
        self._by_form: dict[int, dict[Form, list[Variant]]] = {}
        # versions and memory of the loss and of its gradient, if each is a number: they keep no field alive
        self._numbers: tuple[Versions, Any, Versions, Any] | None = None
        g = None if loss is None else loss.adjoint
        if loss is not None and g is not None and is_plain_number(loss) and is_plain_number(g):
            self._numbers = loss.versions, loss.storage.flat, g.versions, g.storage.flat
        self._use(first)

    def _use(self, variant: Variant) -> None:
        """Write over this variant from here on."""
        self.now = variant
        self.past, self.record, self.known = variant.past, variant.record, variant.known
        self._kernels, self._things, self._times = variant.kernels, variant.things, variant.times
        self._specials, self._fields, self._count = variant.specials, variant.fields, variant.count
        self._looks = variant.known.by_arguments

    # ---- from one tape of the line to the next one

    def add(self, variant: Variant, *, hit: bool) -> bool:
        """Take up a recording of the line, which keeps nothing alive; `hit`: it was one of them before.

        Returns:
            Whether the line is worth it: not, and it is empty, if nearly each recording is another one.
        """
        self._misses = 0 if hit else self._misses + 1
        self.variants = [v for v in self.variants if v.forms != variant.forms]
        self.variants.append(variant)
        if sum(v.past.bytes for v in self.variants) > MOST_BYTES:
            self.variants = [variant]
        elif len(self.variants) > MOST_VARIANTS:
            del self.variants[0]
        self._forget_ways()
        self._used.append(self.now)
        self._use(variant)
        if self._misses > MOST_VARIANTS:
            self.variants = []
        return bool(self.variants)

    def remove(self, variant: Variant) -> None:
        """Forget a variant, which belongs to somebody else now, or of which something is gone."""
        self.variants = [v for v in self.variants if v is not variant]
        self._forget_ways()

    def _forget_ways(self) -> None:
        """Forget which variant goes on where, since there are others."""
        self._by_form.clear()
        for v in self.variants:
            v.follows.clear()

    def wait(self, *, for_next: bool = True) -> None:
        """End the turn: keep no kernel and no field alive; and wait for the next tape of the line."""
        self.stage = WAITING
        if self._returned:
            self._let_go()
        if self.now.is_held:
            self.now.release()
        if self._used:
            self._release_used()
        if self._unfolded is not None or self._is_disturbed:
            self._unfolded, self._is_disturbed = None, False
            self.integrity = RecordIntegrity()
        if not self.variants:
            return
        if self.now not in self.variants:
            self._use(self.variants[-1])
        if for_next:
            if len(_waiting) >= (_MOST if self.past.bytes <= SMALL else _MOST_LARGE):
                _waiting.clear()
            _waiting[self.key] = self

    def _release_used(self) -> None:
        for variant in self._used:
            if variant.is_held:
                variant.release()
        self._used.clear()

    def _hold(self, variant: Variant) -> bool:
        """Keep kernels and fields of a variant alive from here on; returns whether all are still there."""
        if variant.is_held:
            return True
        if not variant.hold():
            self.remove(variant)
            return False
        self._used.append(variant)  # also if the block does not go on with it
        return True

    # ---- the block

    def begin(self, loss: Field | None, writer: Any) -> bool:
        """Set gradients and loss to 0, and receive the events of this thread from now on.

        Args:
            loss: the one of its line; None: there is none, and nothing is cleared.
            writer: the user's statement.

        Returns:
            Whether it did; if not, something is gone, or another thread at work.
        """
        if self.known.changes != session.with_grad.changes:
            return False
        if session.recorders or session.witnesses or session.passes or closed[0]:
            return False
        if not self.variants:
            return False
        if not self.now.is_held and not self.now.hold():
            self.remove(self.now)
            return False
        if loss is None:
            pass
        elif self._numbers is None:
            clear_gradients()
            set_number(loss, 0, writer)
        else:
            clear_gradients()
            v, flat, _, _ = self._numbers
            flat[0] = 0
            session.clock = v.latest = v.whole = session.clock + 1
            v.writer, v.cuts, v.dirty = writer, None, False
        if self._returned:
            self._let_go()
        self.at, self.stage = 0, BEGUN
        self.writer, self.base = writer, session.clock
        if self.known.writes:
            self.integrity = RecordIntegrity()  # which tells whose the inputs are (`note_inputs`)
        self.entry = session.begin_recording(self, self)  # type: ignore[arg-type]
        return True

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        """Write a launch over the one at its place, if it is one of the same kernel."""
        k = self.at
        if k < self._count and not seed and self._unfolded is None:
            number = self._kernels[k]
            if number < 0:
                if self._wrote_launch(self._things[k], special, args, now):
                    return
            else:
                (found, single), fields = self._specials[number], self._fields[number]
                if found is special and (not fields or is_combination(args, fields)):
                    for a in () if fields else args:
                        if a.__class__ not in NUMBERS:
                            break
                    else:
                        given = args[0] if single else args
                        if not self._looks or same_arguments(given, self._things[k]):
                            self._things[k] = given
                            self._times[k] = now
                            self.at = k + 1
                            return
        self._launched_otherwise(special, args, now, seed)

    def _launched_otherwise(
        self, special: Specialization, args: tuple[Any, ...], now: int, seed: int
    ) -> None:
        """Receive a launch that is not the one at its place."""
        k = self.at
        if self._unfolded is None and not seed:
            form = form_of_launch(special, args)
            # The same kernel with other arguments is for the recorder, which may write over the record.
            if (k == self._count or form != self.now.forms[k]) and self._goes_on(form):
                self.launched(special, args, now, seed)  # of this form: it does not come here again
                return
        self.unfolded.launched(special, args, now, seed)

    def _wrote_launch(
        self, entry: Any, special: Specialization, args: tuple[Any, ...], now: int
    ) -> bool:
        """Write a launch with arrays or vectors over an entry, if it is one of the same kernel."""
        if not isinstance(entry, Launched) or entry.special is not special:
            return False
        copied = copies_of(args, entry.args)
        # To copy is to ask who has seen the memory of fields, which may unfold the tape.
        if copied is None or self._unfolded is not None:
            return False
        entry.given, entry.args, entry.now = args, copied, now
        self.at += 1
        return True

    def wrote(self, field: Field, index: Any, value: Any) -> None:
        """Write a write from Python over the one at its place, if it is one to the same elements."""
        # After a read the value may have been made of what was read.
        if self._unfolded is None and value.__class__ is np.ndarray and not self._reads:
            k, form = self.at, form_of_write(field, index, value)
            if (k < self._count and form == self.now.forms[k]) or self._goes_on(form):
                entry: Any = self._things[k]
                entry.value = value
                entry.writer = field.versions.writer_of(entry.row)
                self.at = k + 1
                return
        self.unfolded.wrote(field, index, value)

    def _goes_on(self, form: Form) -> bool:
        """Go on with another variant, which began as this block did, and then has this form (None: no more).

        Returns:
            Whether there is one; if not, the tape has unfolded.
        """
        k, now = self.at, self.now
        found = now.follows.get((k, form)) or self._find(form)
        if found is not None and self._may_use(found) and found.take_over(now, k):
            now.follows[k, form] = found
            self._used.append(now)
            self._use(found)
            for source in self._reads:
                source.move_to(self)  # type: ignore[arg-type]
            return True
        beginning = self.record.beginning(k)
        beginning.base = self.base
        self._unfold(beginning)
        return False

    def _may_use(self, variant: Variant) -> bool:
        return is_current(variant) and self._hold(variant)

    def _find(self, form: Form) -> Variant | None:
        """Return the variant that began as this block did, and then has this form."""
        k, now = self.at, self.now
        by_form = self._by_form.get(k)
        if by_form is None:
            by_form = self._by_form[k] = {}
            for v in self.variants:
                if v.count >= k:
                    by_form.setdefault(v.forms[k] if v.count > k else None, []).append(v)
        for other in by_form.get(form, ()):
            if other is not now and other.forms[:k] == now.forms[:k]:
                return other
        return None

    def stored(self, field: Field, index: tuple[int, ...], value: Any) -> None:
        """As in `Recorder`."""
        self.unfolded.stored(field, index, value)

    def lost(self, source: Any) -> None:
        """As in `Recorder`."""
        self.unfolded.lost(source)

    def returned(self, result: Any) -> Any:
        """As in `Recorder`: the number that the tape follows is the one of this turn."""
        if self._unfolded is None:
            entry = self._things[self.at - 1]
            if isinstance(entry, Launched):
                made = entry.returned = Recorded(result, self)  # type: ignore[arg-type]
                self._returned.append(made)
                return made
        return self.unfolded.returned(result)

    def read_out(self, source: Provenance) -> int:
        """As in `Recorder`."""
        self._reads.append(source)
        return self.at

    def written_elsewhere(self, f: Any, who: str, span: Span | None) -> None:
        """As in `Witness`; told by another thread, so that nothing is unfolded here."""
        self._is_disturbed = True
        self.integrity.written_elsewhere(f, who, span)

    def cut_short(self, what: str, span: Span | None) -> None:
        """As in `Witness`."""
        self._is_disturbed = True
        self.integrity.cut_short(what, span)

    def end(self, *, with_loss: bool) -> bool:
        """End the block, if it was one of the line's again; False: it goes on, for a recorder to end it."""
        if self._unfolded is not None or self._is_disturbed:
            return False
        if self.at != self._count and not self._goes_on(None):
            return False
        known, record = self.known, self.record
        # `ds.init` in the block puts an end to all that is known.
        if known.changes != session.with_grad.changes:
            return False
        # Without a loss the pass comes later, if at all (`is_ready`).
        for versions in known.gradients if with_loss else ():
            if versions.dirty:
                return False
        if with_loss and known.asks and any(wrong_launches(record)):
            return False
        session.end_recording(self.entry)
        if self._reads or record.reads:
            self._end_reads()
        self.entry, self.stage, self._misses = None, ENDED, 0  # no cycle
        record.base = base = self.base
        self.integrity.ended_at = now = session.clock
        record.is_gapless = now - base == self._count
        return True

    def _end_reads(self) -> None:
        """End the block for the numbers that Python has read in it: they are plain ones now."""
        for source in self._reads:
            source.move_to(None)
        self.record.reads, self._reads = self._reads, []

    def _let_go(self) -> None:
        """Let the numbers that kernels have returned be of no recording any more."""
        for number in self._returned:
            number.move_to(None)
        self._returned.clear()

    def is_ready(self, loss: Any) -> bool:
        """Return whether a pass from this loss, after the block, needs no check but those of the adjoints."""
        if self.stage != ENDED or self._is_disturbed or session.recorders:
            return False
        if self.known.asks and any(wrong_launches(self.record)):
            return False
        if loss.__class__ is Field:
            return self.known.suffices(self.record, loss)
        found = any(loss is number for number in self._returned) and not loss.array.shape
        return found and self.known.suffices_for_others(self.record)

    def zero(self) -> bool:
        """Set the gradients of the fields on the record to 0; False: they are to be looked for."""
        if self.stage != ENDED or not is_current(self.now):
            return False
        for ref in self.now.adjoints:
            if (adjoint := ref()) is not None:
                adjoint.clear()
        return True

    def run_adjoints(self, loss: Field | Recorded) -> None:
        """Run the pass from this loss; gradients that are left of others are added in the end."""
        cleared = None
        if self.key[2] < 0 and self.known.has_leftovers():  # on a tape without a loss alone
            cleared = ClearedGradients(all_written(self.record.firsts()))
        if isinstance(loss, Recorded):
            loss.receive(np.ones(()))
        else:
            self.seed(loss)
        self.run_rows(cleared)

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

    def run_rows(self, cleared: ClearedGradients | None = None) -> None:
        """Run the adjoints, last first; `cleared`: what is added to the gradients then."""
        run_unobserved(self.record, self.integrity)
        if cleared is not None:
            cleared.restore()
        if self.known.writes:
            note_inputs(self.now.inputs, self.integrity, session.clock)

    # ---- anything else

    @property
    def unfolded(self) -> Any:
        """The recorder that it has become."""
        return self._unfold(None) if self._unfolded is None else self._unfolded

    def _unfold(self, beginning: Record | None) -> Any:
        """Become a recorder, with this record, or with that of the variant, which the line loses then."""
        if beginning is None:
            now = self.now
            if self.stage != WAITING or (is_current(now) and self._hold(now)):
                self.past.hold(now.held)
            self.remove(now)
            now.is_held, now.held = False, ()  # by the line
        made = self._unfolded = unfold[0](self, beginning)
        if self._reads or self._returned:
            self._move_to(made)
        return made

    def _move_to(self, recorder: Any) -> None:
        """Let what the program has of this turn be of the recorder that goes on with it."""
        record = recorder.recorded()
        for number in self._returned:
            number.move_to(recorder)
        for source in self._reads:
            source.move_to(recorder)
        record.reads, self._reads = self._reads or record.reads, []
        self._returned.clear()

    def rewriting(self) -> Rewriting:
        """Return what compares further events with the last recording."""
        return Rewriting(self.past, self.base, self.at)


unfold: list[Callable[[Steady, Record | None], Any]] = []
"""Makes the recorder that a steady tape unfolds into (`ad/recorder.py`)."""

_MOST = 1 << 12
_MOST_LARGE = 1 << 5

_waiting: dict[Key, Steady] = {}


def take_steady(key: Key) -> Steady | None:
    """Return what waits for the next tape of a line; it belongs to the caller now."""
    found = _waiting.pop(key, None)
    same = found is not None and found.known.changes == session.with_grad.changes
    return found if same else None


at_drop.append(lambda key: _waiting.pop(key, None))
session.at_reset.append(_waiting.clear)
