"""The recorder of a tape: turns the events of the runtime (`runtime/recorder.py`) into entries.

`Tape` is what a user holds; `TapeRecorder` is `session.tape` while its block runs and owns everything that
the block leaves behind. To code inside with recorders of its own it is an `EnclosingRecorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim import locks
from diffsim.ad.checks.access_validation import Validator
from diffsim.ad.checks.integrity import RecordIntegrity
from diffsim.ad.checks.nan_search import NanSearch
from diffsim.ad.enclosing_recorder import EnclosingRecorder, RolloutSummary
from diffsim.ad.record.arguments import IMMUTABLE, frozen
from diffsim.ad.record.elements import Box, Index, read_elements
from diffsim.ad.record.entries import (
    Computed,
    Copied,
    Launched,
    Pull,
    Seeded,
    Stopped,
    Stored,
    Wrote,
)
from diffsim.ad.record.entry import Entry
from diffsim.ad.record.kept_conditions import keeping, known_keeping
from diffsim.ad.record.lending import fix_activity, lend_adjoints
from diffsim.ad.record.overwrite_saves import OverwriteSaver, Saved, SpareCopies
from diffsim.ad.record.record import Record
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.record.snapshot import StartSnapshot
from diffsim.ad.record.task_launches import TaskLaunches
from diffsim.ad.repeat.known import Known
from diffsim.ad.repeat.past import MAY_WAIT, Key, Past, take
from diffsim.ad.repeat.repetition import Repetition
from diffsim.ad.repeat.rewriting import Rewriting
from diffsim.ad.repeat.steady import ENDED, WAITING, Steady, unfold
from diffsim.errors import Span
from diffsim.runtime.fields.adjoints import lend_adjoint
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import FieldElement, Provenance
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.kernels.launch_function import Outdated
from diffsim.runtime.recorder import TAPE, Recorder, Witness
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class TapeRecorder(EnclosingRecorder):
    """Records a program for its backward pass.

    A tape has one recorder, with one record after another: `restart` begins a new one.

    Attributes:
        record: the entries, and facts about the program that no entry tells.
        integrity: what the record lacks.
        saver: copies what is overwritten, if `saving`.
        snapshot: keeps what fields held before they were written to; None: nothing is run from there again.
        key: where the recording before this one may wait, if a tape of the user's records (`past.py`).
        repetition: compares the block with the recording before this one, as long as they are the same.
        repeated: that of the last block, if they were the same to its end.
        is_fresh: whether nothing was recorded since the last `restart`.
        line: the steady tapes of its line, if it was one of them.
    """

    follows_values = True
    refuses_constants = True
    work = TAPE
    # As they are in nearly all recorders when they begin; each turn of a loop makes one.
    saving = lifting = validating = intercepts = False
    checking_nan: bool | str = False
    key: Key | None = None
    line: Steady | None = None
    is_usual = False  # whether its tape has no options
    may_be_steady = False  # and a loss
    base = 0  # the clock's reading where the record begins
    is_fresh = True
    repetition: Repetition | Rewriting | None = None
    repeated: Repetition | Rewriting | None = None
    validator: Validator | None = None
    nan: NanSearch | None = None
    snapshot: StartSnapshot | None = None
    _past: Past | None = None
    _awaits = False
    _saver: OverwriteSaver | None = None
    _own_saves: Sequence[Saved] = ()

    def __init__(
        self,
        *,
        saving: bool = False,
        lifting: bool = False,
        validating: bool = False,
        checking_nan: bool | str = False,
    ) -> None:
        self.integrity = RecordIntegrity()
        if validating or checking_nan:
            self.validating, self.checking_nan = validating, checking_nan
            self._look_anew()
        self.keep(saving=saving, lifting=lifting)

    def keep(self, *, saving: bool, lifting: bool) -> None:
        """Set whether overwritten values are saved, and whether fields are lent adjoints."""
        self.saving = saving
        self.lifting = lifting
        # The runtime asks this once for each launch: without observers it skips `launching` and
        # `writing`.
        looks = self.validating or self.checking_nan or self.snapshot is not None
        self.intercepts = bool(saving or lifting or looks)

    @locks.cached
    def record(self) -> Record:
        """The entries: made when they are asked for, as a turn that repeats the last one makes none."""
        made = Record()
        made.base = self.base
        return made

    def restart(self, past: Past | None = None) -> None:
        """Begin a new record; `past` is the one before it."""
        self._past = past
        self.is_fresh = True
        self.repetition = self.repeated = None
        self._awaits = False
        vars(self).pop("record", None)
        self.base = session.clock
        self.integrity = RecordIntegrity()
        self._saver = self.snapshot = None
        self._own_saves = ()
        self._look_anew()

    def _look_anew(self) -> None:
        """Make what looks at the launches of a record."""
        self.validator = Validator() if self.validating else None
        self.nan = NanSearch(nan_alone=self.checking_nan == "nan") if self.checking_nan else None

    @property
    def saver(self) -> OverwriteSaver:
        """Copies overwritten values, if there is `saving`."""
        if self._saver is None:
            self._saver = OverwriteSaver()
        return self._saver

    def spare(self) -> SpareCopies:
        """Return the memory of copies that this recording did not need."""
        return SpareCopies() if self._saver is None else self._saver.spare

    # ---- the block of a tape

    def begin(self, front: Recorder | None = None) -> None:
        """Receive the events of this thread from now on.

        Args:
            front: receives them first, and passes them on.
        """
        # A tape may record several blocks. What changed between them is not on the record, and would be
        # missing.
        if not self.is_fresh:
            self.integrity.check_unchanged(self.record)
        if self.repeated is not None:  # another block of the same record
            self._leave(self.repeated)
            self.repeated = None
        if self.is_fresh:
            self.base = session.clock
            if "record" in vars(self):
                self.record.base = self.base
            # Not taken before the first event: `with ds.Tape(loss) as tape` drops the tape of the last turn
            # when its block begins.
            if self._past is not None or self.key in MAY_WAIT:
                looks = self.validating or self.checking_nan or self.snapshot is not None
                # A repetition's adjoints run natively.
                self._awaits = not (looks or session.options.kernel_profiler)
        self._front: Recorder = front or self
        self._witness_entry: tuple[int, Witness] = session.begin_recording(self._front, self)

    @classmethod
    def of_steady(cls, steady: Steady, beginning: Record | None) -> TapeRecorder:
        """Return the recorder that a steady tape unfolds into, and put it in its place.

        Args:
            steady: the tape.
            beginning: its record up to here; None: that of the variant, to be written over.
        """
        made = cls()
        made.line = steady
        made.key, made.base, made.integrity = steady.key, steady.base, steady.integrity
        made.is_usual, made.may_be_steady = True, steady.key[2] >= 0
        if steady.stage == WAITING:
            made._past = steady.past if steady.record.alive else None
            return made
        if steady.stage == ENDED:
            made.record, made.repeated, made.is_fresh = steady.record, steady.rewriting(), False
            return made
        if beginning is None:
            made.repetition = steady.rewriting()
        else:
            made.record = beginning
        made._front, made._witness_entry = made, steady.entry
        front: object = session.recorders.get(steady.entry[0])
        if front is steady:  # else the session was reset
            session.tape = made
        steady.entry = None  # no cycle
        return made

    def end(self, *, failed: bool = False) -> bool:
        """Stop receiving events; `failed`: because of an exception.

        Returns:
            Whether it still was the recorder; else the session was reset.
        """
        # `ds.init` in the block has put another session, or none, in its place.
        entry = self._witness_entry
        whole = session.recorders.get(entry[0]) is self._front
        session.end_recording(entry)
        del self._witness_entry, self._front  # no cycles: a record goes at once when it is dropped
        self.integrity.ended_at = session.clock
        self._close()
        # What this recording did not need is freed, but if it would have gone on.
        if not failed and self._saver is not None:
            self._saver.spare = SpareCopies()
        return whole

    def _close(self) -> None:
        repetition = self.repetition
        if repetition is None or not repetition.is_whole:
            self.recorded()
            self.record.close()
            self.is_fresh = not self.record
        else:
            self.is_fresh = False
            self.repetition, self.repeated = None, repetition
            self.record = repetition.hand_over(self.saver if self.saving else None)

    def _open(self) -> Repetition | Rewriting | None:
        """Return what compares this recording with the one before it, at the first event of the block."""
        self._awaits = False
        past = self._past
        self._past = None
        if past is None and self.key is not None:
            past = take(self.key)
        if past is None:
            return None
        # What a tape copies before launches is decided by their arguments.
        exact = past.is_native or self.saving
        # Where arguments decide nothing but numbers, a tape becomes steady, with a native pass.
        if past.is_plain and self.may_be_steady and not self.saving:
            exact = not isinstance(past.known, Known) or past.known.by_arguments
        if past.record is not None and (past.record.is_gapless or not exact):
            start = self.base
            self.repetition = Repetition(past, start) if exact else Rewriting(past, start)
        elif self.saving:
            self.saver.spare = past.spare
        return self.repetition

    def recorded(self) -> Record:
        """Return the record up to here; what follows is recorded, whether it is the same as before or not."""
        self._awaits = False
        repetition = self.repetition
        if repetition is not None:
            self.repetition = None
            self._own_saves = self._leave(repetition)
        found: Record = self.record
        return found

    def _leave(self, repetition: Repetition | Rewriting) -> list[Saved]:
        return repetition.leave(self.record, self.saver if self.saving else None)

    # ---- launches

    def launching(
        self, special: Specialization, args: tuple[Any, ...]
    ) -> Specialization | TaskLaunches | None:
        if self.saving and (known := known_keeping(special)) is not None:
            return known
        repetition = self._open() if self._awaits else self.repetition
        if repetition is not None:
            known_as = special.in_place if self.saving else special
            if repetition.launching(known_as, args, session.clock):
                return None
            # Tasks that are launched one by one are compared one by one.
            if not (self.saving and TaskLaunches.of(special).parts):
                self.recorded()
        if self.lifting and special not in self.record.alive:
            self.lend(special, args)
        if self.snapshot is not None:
            self.snapshot.launching(special, args)
        if self.saving:
            if special not in self.record.alive:
                special.accesses.divide(args)
            split = TaskLaunches.of(special)
            if split.parts:
                return split
            if (made := keeping(special, args)) is not None:
                return made
            self.save(special.in_place, args)
        if self.nan is not None:
            self.nan.before(special, args)
        # The runtime launches the instrumented variant, if there is one, in place of the kernel.
        return None if self.validator is None else self.validator.instead(special, args)

    def save(self, special: Specialization, args: tuple[Any, ...]) -> None:
        """Copy what a launch is about to overwrite, as far as adjoints need it."""
        earlier, self._own_saves = self.saver.before_launch(special, args)
        # Own copies hold what the launch's own adjoint loads: the values from before the launch.
        # They go onto the record after it (`launched`), all others before it.
        for saved in self._own_saves:
            saved.own = True
        self.record.extend(earlier)

    def lend(self, special: Specialization, args: tuple[Any, ...]) -> None:
        if lend_adjoints(special, args):
            # Nothing was launched yet: the kernel is compiled anew, for fields with gradients.
            raise Outdated

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        repetition = self._open() if self._awaits else self.repetition
        if repetition is not None:
            known_as = special.in_place if self.saving else special
            if repetition.launched(known_as, args, now, seed):
                return
            self.recorded()
        record = self.record
        if special not in record.alive:
            record.alive[special] = special.dependencies.alive()  # the adjoint will need them
            if self.lifting:
                fix_activity(special.in_place if self.saving else special)
        # Arguments that the program may change later are copied; the loop over classes is quicker than
        # a call for each argument, as nearly all arguments are immutable numbers.
        given = args
        for a in args:
            if a.__class__ not in IMMUTABLE:
                args = tuple(map(frozen, args))
                break
        if self.saving:
            special = special.in_place
            self.saver.after_launch(special, args)
            self._own_saves = self.saver.behind_launch(special, self._own_saves)
        # A plain launch is a row of the record's columns; anything else needs an entry of its own.
        if seed or given is not args:
            record.append(Launched(special, given, args, now, seed))
        else:
            record.launch(special, args, now)
        # Behind their launch: on the way back they are restored before its adjoint.
        if self._own_saves:
            record.extend(self._own_saves)
            self._own_saves = []
        if self.nan is not None:
            self.nan.after(record.newest())

    def returned(self, result: Any) -> Any:
        made = self.recorded().newest().returned = Recorded(result, self)
        return made

    # ---- writes from Python

    def writing(self, field: Field, row: int | None) -> None:
        repetition = self._open() if self._awaits else self.repetition
        if repetition is not None:
            if repetition.writing(field, row, session.clock):
                return
            self.recorded()
        if self.snapshot is not None:
            self.snapshot.note(field)
        if self.saving and not field.is_grad:
            self.record.extend(self.saver.before_write(field, row))

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        repetition = self._open() if self._awaits else self.repetition
        if repetition is not None:
            if repetition.wrote(field, index, value, session.clock):
                return
            self.recorded()
        # Setting a gradient to 0 is clearing, which the backward pass allows; other values are seeds.
        seeds = field.is_grad and bool(read_elements(field, index).any())
        self.record.seeded |= seeds
        self.record.append((Seeded if seeds else Wrote)(field, index, value))
        self._check_write(field, index)

    def lost(self, source: Provenance) -> None:
        # The event follows that of the write which it explains.
        entry = self.recorded()[-1]
        assert isinstance(entry, Wrote)
        if entry.field.adjoint is None:
            entry.lost_at = Span.of_caller()
        else:
            entry.array_source = source.field, Span.of_caller()

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        self.recorded().append(Stored(field, index, value))
        self._check_write(field, index)

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        self.recorded().seeded |= target.is_grad
        if self.lifting and source.adjoint is not None:
            lend_adjoint(target)
        self.record.append(Copied(target, source, Span.of_caller(), to, at))
        self._check_write(target, to)

    def stopped(self, field: Field) -> None:
        self.recorded().append(Stopped(field, None, field))

    def computed(
        self, made: Recorded, parts: Sequence[tuple[Recorded | FieldElement, Pull]]
    ) -> None:
        self.recorded().append(Computed(made, parts))

    def _check_write(self, field: Field, index: Index) -> None:
        if self.validator is not None:
            self.validator.wrote(field, index)
        if self.nan is not None:
            self.nan.wrote(field, index)

    # ---- what makes no entry

    def read_out(self, source: Provenance) -> int:
        record = self.recorded()
        record.reads = [*record.reads, source]
        return len(record)

    def declared_constant(self) -> None:
        self.recorded().declares_constants = True

    def cut_short(self, what: str, span: Span | None) -> None:
        self.integrity.cut_short(what, span)

    def written_elsewhere(self, f: Any, who: str, span: Span | None) -> None:
        """Note that another thread has written to a field meanwhile (`Witness`)."""
        self.integrity.written_elsewhere(f, who, span)

    # ---- code inside the block with recorders of its own

    def save_before(self, special: Specialization, args: tuple[Any, ...]) -> None:
        self.recorded()
        if self.snapshot is not None:
            self.snapshot.launching(special, args)
        if self.saving:
            inner = special.detached.in_place
            self.record.extend(self.saver.before_launch(inner, args, is_inner=True)[0])

    def will_need(self, boxes: Iterable[Box]) -> None:
        self.recorded()
        self.saver.will_need(boxes)

    def append(self, entry: Entry) -> None:
        self.recorded().append(entry)

    def replaced(self, name: str, backward: Callable[[], Any], inside: Record) -> None:
        self.recorded().alive.update(inside.alive)
        self.record.append(Replaced(backward, inside, name=name))

    def rolled_out(self, rollout: RolloutSummary) -> None:
        self.recorded().alive.update(rollout.alive)
        self.record.append(
            Replaced(
                rollout.backward,
                [],
                rollout.read,
                rollout.written,
                name=rollout.name,
                by_user=False,
                refused=rollout.refused,
                is_opaque=rollout.is_opaque,
                rerun=rollout.rerun,
                held=rollout.held_bytes,
                steps=rollout.steps,
            )
        )


unfold.append(TapeRecorder.of_steady)
