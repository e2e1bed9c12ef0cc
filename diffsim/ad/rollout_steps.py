"""Running the steps of a checkpointed rollout: the first time (`FirstRuns`), and again (`Reruns`).

Either runs a step for the state after it alone, or records it on a tape of its own (`StepTape`), from which
its adjoint is run then or later.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from diffsim.ad.checks.integrity import RecordIntegrity, session_reset
from diffsim.ad.record.overwrite_saves import SpareCopies
from diffsim.ad.record.step_trace import StepTrace
from diffsim.ad.recorder import TapeRecorder
from diffsim.ad.reverse.backward import sweep
from diffsim.ad.rollout_recorders import (
    CarryRecorder,
    ConditionRecorder,
    FirstRunRecorder,
    RepeatRecorder,
)
from diffsim.ad.schedules.disk_states import DiskStates
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session


class StepNotes:
    """The notes on each step, 16 bytes: the random number count at its start, and its trace."""

    def __init__(self) -> None:
        self._launches = array("q")
        self._traces = array("q")

    def __len__(self) -> int:
        return len(self._launches)

    @property
    def bytes(self) -> int:
        """The memory of all of them."""
        return 16 * len(self)

    def begin(self, launches: int) -> None:
        """Note the count at which a new step begins."""
        self._launches.append(launches)

    def end(self, trace: int) -> None:
        """Note what it did."""
        self._traces.append(trace)

    def of(self, t: int) -> tuple[int, int]:
        """Return the count and the trace of step t."""
        return self._launches[t], self._traces[t]

    def compare(self, t: int, trace: StepTrace) -> None:
        # A step that did something else has another adjoint than the one that ran forward: the gradient
        # would be that of a program that never ran.
        if trace.number != self.of(t)[1]:
            raise AutodiffError(
                f"step {t} of the checkpointed rollout did something else when it was run again",
                Span.of_caller(),
                hint="let it depend on t and on the fields in state alone: Python code in it must not look "
                "at sums so far, counters of its own or other fields",
            )


class NotesOnDisk(StepNotes):
    """The same in a file, beside the states: memory does not grow with the number of steps."""

    def __init__(self, disk: DiskStates) -> None:
        self._disk = disk
        self._count = self._begun = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        return 0

    def begin(self, launches: int) -> None:
        self._begun = launches
        self._count += 1

    def end(self, trace: int) -> None:
        self._disk.note(self._count - 1, (self._begun, trace))

    def of(self, t: int) -> tuple[int, int]:
        return self._disk.noted(t)


class StepTape:
    """A tape of one step, or of a few that follow each other.

    In-place saving: it keeps what the step overwrites and its adjoint loads. Before other steps are run it is
    closed: it then keeps also what its adjoint loads and they may overwrite.
    """

    def __init__(
        self, front: Callable[[TapeRecorder], RepeatRecorder], spare: SpareCopies | None = None
    ) -> None:
        self.recorder = TapeRecorder(saving=True, lifting=session.lifts_rules)
        self._spare = spare or SpareCopies()
        self.front = front(self.recorder)
        self.is_undisturbed = True

    @property
    def bytes(self) -> int:
        return self.recorder.saver.bytes + self.front.rollout_bytes

    def record(self, run: Callable[[], Any]) -> None:
        """Record what a function runs."""
        self.recorder.saver.spare = self._spare
        self.recorder.begin(self.front)
        try:
            run()
        finally:
            self.is_undisturbed = self.recorder.end()
            self.recorder.saver.spare = self._spare  # for what `close` saves
        if not self.is_undisturbed:
            raise session_reset()

    def close(self, fields: Iterable[Field]) -> None:
        """Save what its adjoints load of fields that other steps may overwrite."""
        saver, record = self.recorder.saver, self.recorder.record
        for f in fields:
            rows: list[int | None] = [*saver.needs.get(f, ())]
            # What a gradient given by the user reads is not known.
            if self.front.gives_gradients or None in rows:
                rows = [None]
            record.extend([saver.save((f, row)) for row in rows])

    def reverse(self) -> None:
        """Run its adjoints, from the values after it or, if it was closed, from any."""
        # The values of before the step are left: the next one restores what it needs anyway.
        sweep(self.recorder.record, self.recorder.integrity)


class FirstRuns:
    """Runs the steps in the forward run, and watches what they do."""

    def __init__(
        self,
        step: Callable[[int], Any],
        carry: CarryRecorder,
        notes: StepNotes,
        spare: SpareCopies,
    ) -> None:
        self._step = step
        self.carry = carry
        self.notes = notes
        self._spare = spare

    def _begin(self, t: int) -> None:
        # The number of launches so far is the key of random numbers: restored before a step is run again, it
        # makes that step draw the same numbers.
        assert t == len(self.notes)
        self.notes.begin(session.launches)
        self.carry.next_step()

    def _call(self, t: int) -> None:
        recorder = session.tape
        self._step(t)
        # A tape that the step left open would record the rest of the rollout.
        if session.tape is not recorder:
            raise AutodiffError(
                "the step changed the tape",
                Span.of_caller(),
                hint="let every tape that the step begins end in the same step",
            )

    def run(self, t: int) -> None:
        """Run a step."""
        self._begin(t)
        self._call(t)
        self.notes.end(self.carry.trace.number)

    def tape(self, t: int) -> StepTape:
        """Run a step on a tape."""
        self._begin(t)
        tape = StepTape(lambda body: FirstRunRecorder(body, self.carry), self._spare)
        try:
            tape.record(lambda: self._call(t))
        finally:
            if tape.is_undisturbed:
                session.tape = self.carry
        self.notes.end(self.carry.trace.number)
        return tape

    def goes_on(self, condition: Callable[[int], Any], t: int) -> bool:
        """Ask the condition before step t."""
        session.tape = recorder = ConditionRecorder(self.carry)
        try:
            return bool(condition(t))
        finally:
            if session.tape is recorder:
                session.tape = self.carry


class Reruns:
    """Runs steps again in the backward pass, and compares them with the first run."""

    def __init__(
        self, step: Callable[[int], Any], owned: Callable[[], Iterable[Field]], notes: StepNotes
    ) -> None:
        self._step = step
        self._owned = owned
        self.notes = notes

    def _call(self, t: int) -> None:
        """Run a step without the output of its prints, which was shown the first time."""
        own = session.own
        session.launches = self.notes.of(t)[0]
        # Prints only: checks still report when a step is run again.
        outer, own.quiet = own.quiet, True
        try:
            self._step(t)
        finally:
            own.quiet = outer

    def run(self, t: int) -> None:
        """Run a step for the state after it."""
        # No tape: only the trace, to compare. Other threads are watched too, since what they write to
        # the state would change the step.
        session.tape = trace = StepTrace()
        integrity = RecordIntegrity()
        entry = session.add_witness(integrity)
        try:
            self._call(t)
        finally:
            session.remove_witness(entry)
            session.tape = None
        integrity.check([], self._owned())
        self.notes.compare(t, trace)

    def tape(self, t: int) -> StepTape:
        """Run a step on a tape."""
        found = self.tapes(t, t + 1, math.inf)
        assert found is not None
        return found

    def tapes(self, lo: int, hi: int, most: float) -> StepTape | None:
        """Run steps on one tape; None as soon as those of several save more than so many bytes."""
        tape = StepTape(RepeatRecorder)
        fitted = True

        def run() -> None:
            nonlocal fitted
            for t in range(lo, hi):
                tape.front.trace = trace = StepTrace()
                self._call(t)
                self.notes.compare(t, trace)
                # Asked after each step, before a tape that is too long uses up the memory.
                fitted = hi - lo == 1 or tape.bytes <= most
                if not fitted:
                    break

        tape.record(run)
        return tape if fitted else None
