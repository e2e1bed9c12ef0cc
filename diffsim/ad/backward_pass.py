"""The backward pass of a tape: what is checked before it, and its steps.

All that can be refused is refused before any gradient changes. If a pass fails, what it was to compute is
NaN then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from diffsim.ad.checks.integrity import check_kernels, no_record
from diffsim.ad.checks.launch_conditions import wrong_launches
from diffsim.ad.checks.lost_gradients import check_reaches, check_seeds
from diffsim.ad.checks.refusals import refuse_program, with_others
from diffsim.ad.record.entries import all_written
from diffsim.ad.record.entry import fields_of
from diffsim.ad.record.record import Record
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.recorder import TapeRecorder
from diffsim.ad.repeat.known import Known
from diffsim.ad.repeat.past import Past, is_worth_keeping
from diffsim.ad.repeat.steady import Steady
from diffsim.ad.replay.inputs import ReplayInputs
from diffsim.ad.replay.program import Replay
from diffsim.ad.replay.repeated_pass import RepeatedPass
from diffsim.ad.reverse.backward import (
    ClearedGradients,
    Hook,
    forget_values,
    run_adjoints,
)
from diffsim.ad.reverse.inputs import check_cuts, inputs_of, mark_inputs, note_inputs
from diffsim.ad.reverse.retain_grad import GradientRetainer
from diffsim.ad.reverse.seeds import set_number, start_from, starting_gradients, statement
from diffsim.errors import ArgumentError, AutodiffError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.poison import poison, written_since
from diffsim.runtime.session import session


class BackwardPass:
    """The task of a tape: the loss and the ways to differentiate it.

    Attributes:
        recorder: it has the record.
        loss: what the passes start from, if nothing else is given.
        retained, hooks: what looks at the adjoint of each launch.
        complete: whether a block has run to its end.
    """

    keeps_inputs = True  # whether constants that Python sets first are inputs (`reverse/inputs.py`)
    # As they are in nearly all tapes; a loop makes one in each turn.
    recorder: TapeRecorder
    loss: Field | None
    retained: bool | frozenset[Field] = False
    hooks: Sequence[Hook] = ()
    complete = False
    _failed = False  # whether a pass did not run to its end
    # the clock around each, and around replays, where kernels are timed
    _passes: Sequence[tuple[int, int]] = ()
    _replay: Replay | None = None
    _known: Known | None = None
    _inputs_of_replays: ReplayInputs | None = None

    # ---- its record

    @property
    def entries(self) -> Record:
        """The recorded entries, in order."""
        return self.recorder.recorded()

    def _past(self) -> Past | None:
        """Return what the next recording may repeat, or whose memory it may use."""
        recorder = self.recorder
        if self.generation != session.generation:
            return None
        # A pass that failed may have lost saved values, and a record with gaps stands for no program.
        whole = self.complete and not self._failed and recorder.integrity.is_clean
        repetition = recorder.repeated
        if whole and repetition is not None:
            # What is known of it, unless other arguments decide and no pass has looked since.
            repetition.past.known = self._known
            return repetition.past
        if not is_worth_keeping(recorder.key, recorder.record):
            return None
        made = Past(recorder.record, recorder.spare(), whole=whole)
        made.known = self._known
        return made

    # A replay is compiled from a record; a new record, or more entries, make it invalid.
    def _forget_replay(self) -> None:
        self.complete = self._failed = False
        self._passes = ()
        self.generation = session.generation
        self._replay = self._known = self._inputs_of_replays = None

    @property
    def _inputs(self) -> ReplayInputs:
        """The arguments that replays are given."""
        if self._inputs_of_replays is None:
            self._inputs_of_replays = ReplayInputs()
        return self._inputs_of_replays

    # ---- the pass

    def _differentiate(
        self, loss: Field | Recorded | None, grads: Mapping[Field, Any] | None
    ) -> None:
        known, recorder = self._known, self.recorder
        if grads is None and known is not None and not session.recorders:
            # Nearly all passes of a loop are over a record of which all is known.
            start = self.loss if loss is None else loss
            whole = recorder.integrity.is_clean and not known.asks
            if whole and isinstance(start, Field) and known.suffices(recorder.record, start):
                self._run_pass(start, {start: 1}, statement(2))
                return
        self._differentiate_anew(loss, grads)

    def _differentiate_anew(
        self, loss: Field | Recorded | None, grads: Mapping[Field, Any] | None
    ) -> None:
        """Check all, then run the pass."""
        if session.recorders and session.tape is not None:
            raise AutodiffError(
                f"the backward pass cannot run while {session.tape.work.words}"
                + (": its gradients would have no tangents" if session.tape.tangents else ""),
                Span.of_caller(),
                hint=f"call backward {session.tape.work.outside}",
            )
        if grads is not None and not isinstance(grads, Mapping):
            raise ArgumentError(
                "grads is a dictionary",
                Span.of_caller(),
                hint="write tape.backward(grads={y: seed})",
            )
        # What can be refused is refused before any gradient changes.
        if grads is None and loss is None:
            loss = self.loss
        seeds = starting_gradients(loss, grads, self.recorder)
        self._check_backward(loss, seeds)
        self._run_pass(loss, seeds, statement(3))

    def _differentiate_steady(self, steady: Steady, loss: Field | Recorded) -> None:
        """Run the pass over a record that has been written over, and of which all is known."""
        self.complete = True
        self._known = steady.known
        clock, this_thread = session.clock, threading.get_ident()
        session.passes.add(this_thread)
        try:
            if not steady.now.is_long:
                steady.run_adjoints(loss)
            else:
                assert isinstance(loss, Field)  # no record with what kernels return is long
                self._run_natively(steady, loss)
        except BaseException as first:
            error = self._spoiled(first, [loss], clock)
            if error is first:
                raise
            raise error from None
        finally:
            session.passes.discard(this_thread)
            session.unknown_until = session.clock
            session.from_tapes = True

    def _run_natively(self, steady: Steady, loss: Field) -> None:
        """Run the pass of a long record that has been written over."""
        end, past, record = session.clock, steady.past, steady.record
        steady.now.passes += 1
        # Made at the second pass: a tape that unfolds after each pass never gets so far.
        if past.native is None and steady.now.passes > 1:
            past.native = RepeatedPass(record)
        steady.seed(loss)
        if past.native is None or not past.native.run(record, steady.base, end):
            steady.run_rows()

    def _run_pass(
        self, loss: Field | Recorded | None, seeds: dict[Field, Any], writer: Any
    ) -> None:
        """Compute the gradients, all checks made, as that statement asks; if it fails they are NaN."""
        # From here on gradients change. `session.passes` tells other threads, whose tapes must not
        # clear them.
        clock, this_thread = session.clock, threading.get_ident()
        session.passes.add(this_thread)
        try:
            self._compute_gradients(loss, seeds, writer)
        except BaseException as first:
            error = self._spoiled(first, seeds, clock)
            if error is first:
                raise
            raise error from None
        finally:
            session.passes.discard(this_thread)
            session.unknown_until = session.clock
            session.from_tapes = True
            if session.options.kernel_profiler:
                self._passes = (*self._passes, (clock, session.clock))

    def _spoiled(self, first: BaseException, seeds: Iterable[Any], clock: int) -> BaseException:
        """Return the error to raise for one that ended a pass, which began at this reading of the clock."""
        recorder = self.recorder
        error = with_others(
            first, recorder.record, saving=recorder.saving, ended_at=recorder.integrity.ended_at
        )
        # Half a backward pass leaves sums that lack terms but look like gradients: they become NaN
        # instead (docs/adr/0016). An unchanged clock means that nothing was written yet.
        self._failed = True
        if session.clock != clock:
            poison(
                error,
                lambda: self._touched(seeds, clock),
                "tape.zero(), or a new run of a tape with a loss, sets them to 0.",
            )
        return error

    def _check_backward(self, loss: Field | Recorded | None, seeds: dict[Field, Any]) -> None:
        """Run all checks, and compile all adjoints, before any gradient is changed."""
        record, integrity, replay = self.recorder.record, self.recorder.integrity, self._replay
        if not integrity.is_clean:
            integrity.check(record.firsts(), seeds)
        if not self.complete and not record:
            raise no_record("differentiate")
        known = self._known
        if known is not None and not known.holds(record):
            known = None
        asks = known is not None and known.asks and (replay is None or replay.asks)
        # Where index fields have become wrong, the other checks say what else is.
        if known is None or (asks and any(wrong_launches(record))):
            check_kernels(record)
            self._check_program()
            known = self._known = Known(record)
        # The loss starts from 1, which was read from no gradient.
        if len(seeds) > 1 or not isinstance(loss, Field):
            check_cuts(record, {f: s for f, s in seeds.items() if f is not loss}, integrity)
        # What Python has read tells more in each recording.
        if not known.leads_to(loss) or (record.reads and replay is None):
            check_reaches(record, loss if isinstance(loss, Field) else None, seeds)
            known.note_loss(loss)

    def _check_program(self) -> None:
        """Refuse what cannot be differentiated, whatever the loss is; compiles all adjoints."""
        record, recorder = self.recorder.record, self.recorder
        check_seeds(record)
        # Before the adjoints: whether a write from Python clears its gradient depends on it.
        mark_inputs(record, self.keeps_inputs)
        refuse_program(record, saving=recorder.saving, ended_at=recorder.integrity.ended_at)

    def _compute_gradients(
        self, loss: Field | Recorded | None, seeds: dict[Field, Any], writer: Any
    ) -> None:
        """Run the pass: clear, seed, run the adjoints, add what was there before."""
        recorder, replay = self.recorder, self._replay
        record = recorder.record
        # 1. Leftovers: adjoints of followed values from a pass that failed, and gradients of what the
        # program wrote. The latter are set aside, since adjoints of stores would propagate them a
        # second time.
        known = self._known
        assert known is not None
        if known.follows:
            forget_values(record.firsts())
        cleared = None
        if known.has_leftovers():
            cleared = ClearedGradients(all_written(record.firsts()))
        # 2. Seeds. The derivative of the loss with respect to itself is 1.
        if isinstance(loss, Recorded):
            loss.receive(np.ones(()))
        for f, seed in seeds.items():
            if f is loss:
                assert f.adjoint is not None
                set_number(f.adjoint, 1, writer)
            else:
                start_from(f, seed)
        # 3. The adjoints: natively after a replay, or entry by entry. Retained gradients and hooks look
        # at each adjoint by itself, which a native program cannot stop for.
        if replay is None or not replay.backward(native=not (self.retained or self.hooks)):
            retainer = GradientRetainer(self.retained) if self.retained else None
            run_adjoints(
                record,
                recorder.integrity,
                retainer=retainer,
                nan=recorder.nan,
                hooks=self.hooks,
                tangents=recorder.tangents,
            )
        # 4. What was set aside is added: gradients accumulate over passes until the user clears them.
        if cleared is not None:
            cleared.restore()
        if known.writes:
            note_inputs(inputs_of(record), recorder.integrity, session.clock)

    def _touched(self, seeds: Iterable[Any], clock: int) -> Iterator[Field]:
        """Return the gradients that a pass which began at a clock reading was to compute."""
        yield from self._adjoints()
        yield from (f.adjoint for f in seeds if isinstance(f, Field) and f.adjoint is not None)
        if self.hooks or any(isinstance(e, Replaced) for e in self.recorder.recorded().firsts()):
            yield from written_since(clock)  # the user's code may have written to any

    # ---- gradients

    def _adjoints(self) -> list[Field]:
        """Return the gradients of all fields on the tape, lent ones too."""
        found = fields_of(self.recorder.recorded().firsts())
        return [f.adjoint for f in found if f.adjoint is not None and f.kind != "argument"]
