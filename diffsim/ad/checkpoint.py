"""Long rollouts in bounded memory: `ds.ad.checkpoint`.

A simulator that overwrites its state in every step cannot be differentiated afterwards: the backward pass
needs the state of each step, and only the last one is left. `checkpoint` takes snapshots of the state in the
forward run, and recomputes steps from them in the backward pass, each stretch on a tape of its own.

Two schedules decide where snapshots are taken:

    binomial      One step at a time on a tape; snapshots that became free are used again. With s of them
                  and up to r runs of any step it reaches (s + r)! / (s! r!) steps, and no schedule reaches
                  more (A. Griewank, A. Walther, "Algorithm 799: revolve", ACM Transactions on Mathematical
                  Software 26(1), 2000, section 2).
    equidistant   Snapshots at equal distances, and all steps from one to the next on a tape: every step is
                  run just twice, and memory grows with the root of the number of steps.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal

from diffsim.ad.checks.integrity import RecordIntegrity, session_reset
from diffsim.ad.checks.lost_gradients import check_rollout
from diffsim.ad.record.overwrite_saves import Saved, copied
from diffsim.ad.record.step_trace import StepTrace
from diffsim.ad.recorder import (
    EnclosingRecorder,
    RolloutSummary,
    TapeRecorder,
    enclosing_recorder,
)
from diffsim.ad.reverse.backward import sweep
from diffsim.ad.rollout_recorders import CarryRecorder, RepeatRecorder
from diffsim.errors import KEEP, AutodiffError, FieldError, GlobalDataAccessError, Span, shown
from diffsim.lang.host.signatures import checked
from diffsim.lang.host.source import check_runs
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import StorageSnapshot
from diffsim.runtime.session import session


class CheckpointStats:
    """Cost of a checkpointed rollout; the counts go on during the backward pass.

    Attributes:
        snapshots: most snapshots that were held at once.
        snapshot_bytes: bytes of one snapshot.
        peak_bytes: most bytes held at once: snapshots, what tapes saved of steps that were run again, the
            final values, which return after the backward pass, and 16 bytes of notes for each step.
        steps_run: how often a step was run, forward and backward together.
    """

    def __init__(self, snapshot_bytes: int) -> None:
        self.snapshots = 0
        self.snapshot_bytes = snapshot_bytes
        self.peak_bytes = 0
        self.steps_run = 0

    def __repr__(self) -> str:
        return (
            f"<checkpoint: {self.snapshots} snapshots of {self.snapshot_bytes} bytes, at most "
            f"{self.peak_bytes} bytes, {self.steps_run} steps run>"
        )


@checked
def checkpoint(
    step: Callable[[int], Any],
    n_steps: int,
    state: Sequence[Field],
    *,
    schedule: Literal["binomial", "equidistant"] = "binomial",
    snapshots: int | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> CheckpointStats:
    """Run `step(t)` for t = 0 .. n_steps - 1; on a tape, differentiate it within a memory budget.

    Args:
        step: launches the kernels of one step. It may overwrite its state in place, call functions with
            gradients of their own, and checkpoint a rollout of substeps itself. It is run several times
            for each t, and must depend on t and the state alone.
        n_steps: number of steps.
        state: the fields that carry information from one step to the next.
        schedule: "binomial" (least memory for so many runs), or "equidistant" (each step is run twice).
        snapshots: how many copies of the state may be held; about sqrt(n_steps) if left out.
        memory: or how many bytes all copies together may take (`stats.peak_bytes`).
        progress: whether the backward pass shows a bar on stderr.

    Returns:
        What it took.

    Raises:
        AutodiffError: on a tape, a field that is not in `state` carries something from step to step;
            in the backward pass, a step does something else when it is run again, or takes more memory
            than is there.
        FieldError: arguments that make no sense; a budget too small for one step.
    """
    rollout = _Rollout(step, n_steps, state, schedule, snapshots, memory, progress)
    outer = enclosing_recorder()
    # Nobody will differentiate it: then it is a plain loop.
    if outer is None:
        for t in range(n_steps):
            rollout.run(t)
        return rollout.stats
    rollout.forward(outer)
    return rollout.stats


Snapshot = list[StorageSnapshot]


class _Rollout:
    """One checkpointed rollout: its snapshots, and its backward pass.

    Attributes:
        launches, traces: for each step the random number count at its start, and its trace.
        stored: the snapshots of the forward run, by the step that they precede.
        held: how many snapshots there are at present.
        written, inputs: fields besides the state that steps write, and boxes that they read.
    """

    def __init__(
        self,
        step: Callable[[int], Any],
        n_steps: int,
        state: Sequence[Field],
        schedule: str,
        snapshots: int | None,
        memory: int | None,
        progress: bool,
    ) -> None:
        where = Span.of_caller()
        _check_step(step, n_steps, schedule, where)
        fields: list[Any] = list(state) if isinstance(state, (list, tuple)) else [state]
        if not fields or any(not isinstance(f, Field) for f in fields):
            raise FieldError(
                "state is a list of fields", where, hint="ds.ad.checkpoint(step, n, state=[x, v])"
            )
        _check_budget(snapshots, memory, where)
        self.step = step
        self.n = n_steps
        self.state: list[Field] = list(dict.fromkeys(fields))
        self.schedule = schedule
        self.size = sum(f.storage.layout.nbytes for f in self.state)
        # With s >= sqrt(n) snapshots the binomial schedule runs a step at most r = 3 times, since
        # (s + 3) (s + 2) (s + 1) / 6 >= n.
        self.snapshots = snapshots or math.isqrt(max(n_steps, 1)) + 1
        self.memory = memory
        self.progress = progress
        self.stats = CheckpointStats(self.size)
        self.live = 0
        # Two numbers for each step, 16 bytes together: the random number count at its start, and its
        # trace.
        self.launches = array("q", bytes(8 * n_steps))
        self.traces = array("q", bytes(8 * n_steps))
        self.own_bytes = 16 * n_steps
        self.other_bytes = self.own_bytes
        self.stored: dict[int, Snapshot] = {}
        self.written: list[Field] = []
        self.integrity = RecordIntegrity()

    # ---- forward

    def run(self, t: int) -> None:
        """Run a step, with the random numbers that follow `session.launches`."""
        self.stats.steps_run += 1
        self.step(t)

    def run_again(self, t: int) -> None:
        """Run a step again, without the output of its prints: that was shown the first time."""
        own = session.own
        # Prints only: checks still report when a step is run again.
        outer, own.quiet = own.quiet, True
        try:
            self.run(t)
        finally:
            own.quiet = outer

    def forward(self, outer: EnclosingRecorder) -> None:
        """Run all steps, taking the snapshots that the backward pass starts from."""
        # Where the others are is known after the first step, whose probe measures what a tape of it
        # saves.
        positions = {0}
        recorder = CarryRecorder(outer, set(self.state))
        before, session.tape = session.tape, recorder
        try:
            for t in range(self.n):
                if t in positions:
                    self.stored[t] = self.take_snapshot()
                # The number of launches so far is the key of random numbers: restored before a step is
                # run again, it makes that step draw the same numbers.
                self.launches[t] = session.launches
                recorder.next_step(measure=t == 0 and self.memory is not None)
                self.run(t)
                # A tape that the step left open would record the rest of the rollout.
                if session.tape is not recorder:
                    raise AutodiffError(
                        "the step changed the tape",
                        Span.of_caller(),
                        hint="let every tape that the step begins end in the same step",
                    )
                self.traces[t] = recorder.trace.number
                if t == 0:
                    self.budget(recorder)
                    positions = self.plan()
            # Gradients set in a step would be set again whenever the backward pass runs it again.
            check_rollout(
                recorder.set_grads, recorder.seeded_grads, set(recorder.written) - set(self.state)
            )
        except BaseException:
            # Some steps have written to fields, and no entry stands for them.
            outer.cut_short("the checkpointed rollout", Span.of_caller())
            raise
        finally:
            if session.tape is recorder:
                session.tape = before
        self.written = list(recorder.written)
        self.inputs = recorder.inputs
        self.now = session.clock
        # The backward pass reads the inputs again, so the tape around it saves them before they are
        # overwritten.
        outer.will_need(self.inputs)
        read = dict.fromkeys(field for field, _ in self.inputs)
        written = [*self.state, *self.written]
        outer.rolled_out(
            RolloutSummary(self.backward, self.run_all_again, read, written, recorder.alive)
        )

    def run_all_again(self) -> None:
        """Run all steps again."""
        for t in range(self.n):
            session.launches = self.launches[t]
            self.step(t)

    def budget(self, recorder: CarryRecorder) -> None:
        """Compute from the first step how many snapshots fit into the memory."""
        self.final_bytes = self.size + sum(f.storage.layout.nbytes for f in recorder.written)
        if self.memory is None:
            return
        assert recorder.probe is not None
        saves = recorder.probe.bytes
        # The final values are held during the backward pass, since fields return to them at its end.
        free = self.memory - self.final_bytes - self.own_bytes
        if self.schedule == "binomial":
            # One step at a time is on a tape, and what it saves stays aside; the rest is for snapshots.
            self.snapshots = (free - saves) // self.size
            least = self.size + saves
        else:
            # k snapshots and a tape of n / k steps: k * size + n / k * saves is least for equal terms
            self.snapshots = max(1, round(math.sqrt(self.n * saves / self.size)))
            least = self.snapshots * self.size + -(-self.n // self.snapshots) * saves
        # Found after the first step, not after hours of forward run.
        if free < least:
            rather = "" if self.schedule == "binomial" else ', or take schedule="binomial"'
            raise FieldError(
                f"memory={self.memory} is too little: a snapshot of the state takes {self.size} bytes, the "
                f"final values {self.final_bytes}, notes of all steps {self.own_bytes}, and a tape of one "
                f"step saves {saves}",
                Span.of_caller(),
                hint=f"give at least {self.memory - free + least}{rather}",
            )

    def plan(self) -> set[int]:
        """Return the steps before which the forward run takes snapshots."""
        # Rounded up, so that there are at most as many snapshots as the budget allows.
        if self.schedule == "equidistant":
            return set(range(0, self.n, -(-self.n // self.snapshots)))
        return set(binomial_plan(0, self.n, self.snapshots))

    def take_snapshot(self) -> Snapshot:
        self.live += 1
        self.stats.snapshots = max(self.stats.snapshots, self.live)
        self.update_peak(0)
        return [
            copied((f, None), "hold fewer: snapshots=, or memory= in bytes") for f in self.state
        ]

    def update_peak(self, saves: int) -> None:
        """Update the peak of bytes held."""
        used = self.live * self.size + self.other_bytes + saves
        self.stats.peak_bytes = max(self.stats.peak_bytes, used)

    def restore(self, snapshot: Snapshot) -> None:
        for f, values in zip(self.state, snapshot, strict=True):
            f.storage.restore(values)
            f._touch()

    # ---- backward

    def backward(self) -> None:
        """Run the adjoint of the rollout: from gradients of the final state to those of the first."""
        # 1. Refuse a rollout whose values were lost in a failed pass, or whose inputs have changed: its steps
        # would not repeat themselves.
        self.integrity.check([])
        for (field, row), span in self.inputs.items():
            if field.versions.changed(row, self.now):
                raise _changed(field, row, span)
        # 2. The present values are put aside: running steps again overwrites them, and code between the
        # end of the rollout and its backward pass may have changed them.
        fields = [*self.state, *self.written]
        final = [Saved((f, None)) for f in fields]
        launches = session.launches
        self.live = len(self.stored)
        self.other_bytes = self.own_bytes + sum(s.data.nbytes for s in final)
        hi = self.n
        try:
            # 3. The stretches between snapshots of the forward run, last one first. Gradients of the
            # state flow from each to the one before it in the fields' own gradients.
            for lo in sorted(self.stored, reverse=True):
                if self.schedule == "equidistant":
                    self.segment(lo, hi, self.stored[lo])
                else:
                    self.sweep(lo, hi, self.stored[lo], self.snapshots - self.live)
                if lo > 0:  # the first is kept for a second backward pass
                    del self.stored[lo]
                    self.live -= 1
                hi = lo
        finally:
            # The random numbers of the program after the pass must not depend on the pass.
            session.launches = launches
            self.integrity.restore_final(final)
        self.other_bytes = self.own_bytes
        if self.progress:
            sys.stderr.write("\n")

    def sweep(self, lo: int, hi: int, start: Snapshot, free: int) -> None:
        """Run the adjoints of steps lo..hi from the state at lo, with `free` more snapshots (binomial)."""
        # Revolve as a loop over the upper end: the steps from `middle` on are reversed recursively with
        # one snapshot less, then the shorter stretch before it is, from the same start. Depth of the
        # recursion is the number of free snapshots, not the number of steps.
        while hi - lo > 1:
            # Without free snapshots each step is reached from the start anew, which takes time
            # quadratic in the stretch's length; `binomial_split` keeps such stretches short.
            middle = binomial_split(lo, hi, free) if free else hi - 1
            self.restore(start)
            for t in range(lo, middle):
                self.rerun(t)
            if free:
                here = self.take_snapshot()
                self.sweep(middle, hi, here, free - 1)
                self.live -= 1
            else:
                self.adjoint(middle, hi)
            hi = middle
        self.restore(start)
        self.adjoint(lo, hi)

    def segment(self, lo: int, hi: int, start: Snapshot) -> None:
        """Run the adjoints of steps lo..hi on one tape, or on several if it saves too much (equidistant)."""
        # Halved whenever the saves of a tape do not fit; the steps before it are then run from the
        # snapshot again.
        length = hi - lo
        while hi > lo:
            first = max(lo, hi - length)
            self.restore(start)
            for t in range(lo, first):
                self.rerun(t)
            if self.adjoint(first, hi):
                hi = first
            else:
                length = max(1, (hi - first) // 2)

    def rerun(self, t: int) -> None:
        """Run a step again, only for the state after it."""
        session.launches = self.launches[t]
        # No tape: only the trace, to compare. Other threads are watched too, since what they write to
        # the state would change the step.
        session.tape = trace = StepTrace()
        integrity = RecordIntegrity()
        entry = session.add_witness(integrity)
        try:
            self.run_again(t)
        finally:
            session.remove_witness(entry)
            session.tape = None
        integrity.check([], (*self.state, *self.written))
        self.compare(t, trace)

    def compare(self, t: int, trace: StepTrace) -> None:
        # A step that did something else has another adjoint than the one that ran forward: the gradient
        # would be that of a program that never ran.
        if trace.number != self.traces[t]:
            raise AutodiffError(
                f"step {t} of the checkpointed rollout did something else when it was run again",
                Span.of_caller(),
                hint="let it depend on t and on the fields in state alone: Python code in it must not look "
                "at sums so far, counters of its own or other fields",
            )

    def adjoint(self, lo: int, hi: int) -> bool:
        """Run the adjoints of steps from the present state; returns False if their saves do not fit."""
        # In-place saving: within a tape of several steps, each overwrites the state that the one before
        # left.
        recorder = TapeRecorder(saving=True, lifting=session.lifts_rules)
        saver = recorder.saver
        if not self.record_again(recorder, lo, hi):
            return False
        self.update_peak(saver.bytes)
        # A single step is run even if it saves more than the first did, and refused only afterwards,
        # since the number for the message is not known before.
        if saver.bytes > (left := self.bytes_left()):
            raise AutodiffError(
                f"step {lo} of the checkpointed rollout needs {saver.bytes} bytes for values that it "
                f"overwrites, more than the first step did, and {left} are left of memory={self.memory}",
                Span.of_caller(),
                hint="give it more memory, or fewer snapshots",
            )
        # The values of before the stretch are left: the next one restores a snapshot anyway.
        sweep(recorder.record, recorder.integrity)
        if self.progress:
            done = self.n - lo
            bar = "#" * (30 * done // self.n)
            sys.stderr.write(f"\rbackward [{bar:<30}] {done}/{self.n}")
        return True

    def record_again(self, recorder: TapeRecorder, lo: int, hi: int) -> bool:
        """Run steps again and record them; returns False as soon as their saves do not fit."""
        repeat = RepeatRecorder(recorder)
        recorder.begin(repeat)
        fits = True
        try:
            for t in range(lo, hi):
                session.launches = self.launches[t]
                repeat.trace = StepTrace()
                self.run_again(t)
                self.compare(t, repeat.trace)
                # Asked after each step, before a tape that is too long uses up the memory.
                fits = hi - lo == 1 or recorder.saver.bytes <= self.bytes_left()
                if not fits:
                    break
        finally:
            undisturbed = recorder.end()
        if not undisturbed:
            raise session_reset()
        return fits

    def bytes_left(self) -> float:
        """Return how many bytes are left for what a tape saves."""
        if self.memory is None:
            return math.inf
        return self.memory - self.live * self.size - self.other_bytes


def _check_step(step: Any, n_steps: Any, schedule: Any, where: Span | None) -> None:
    """Raise FieldError for a step, a number of steps or a schedule that makes no sense."""
    if not callable(step):
        raise FieldError(
            f"the step is a function of t, not {shown(step)}",
            where,
            hint="give a plain function that launches the kernels of one step: def step(t): ...",
        )
    check_runs(step, "the step")
    # `bool` is an `int` in Python, and True a likely slip for a missing argument.
    if isinstance(n_steps, bool) or not isinstance(n_steps, int) or not 0 <= n_steps < 2**62:
        raise FieldError(
            f"n_steps is a whole number from 0 on, not {shown(n_steps)}",
            where,
            hint="write int(...) around what may be a float: ds.ad.checkpoint(step, int(n), state=[x])",
        )
    if schedule not in ("binomial", "equidistant"):
        raise FieldError(
            f"{shown(schedule)} is not a schedule",
            where,
            hint='it is "binomial" or "equidistant"',
        )


def _check_budget(snapshots: Any, memory: Any, where: Span | None) -> None:
    """Raise FieldError for limits that make no sense."""
    if snapshots is not None and memory is not None:
        raise FieldError(
            "snapshots and memory are both given, and each says how many snapshots there are",
            where,
            hint="leave one of them out",
        )
    for name, number in (("snapshots", snapshots), ("memory", memory)):
        whole = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (whole and number >= 1):
            what = "bytes, such as 10**9" if name == "memory" else "copies of the state"
            raise FieldError(
                f"{name} is a whole number from 1 on, not {shown(number)}",
                where,
                hint=f"give a number of {what}; or leave it out",
            )


def _changed(field: Field, row: int | None, span: Span | None) -> AutodiffError:
    who, place = field.versions.written_by(row)
    shown = "" if place is None else "\n" + place.text()
    return GlobalDataAccessError(
        f"the steps of the checkpointed rollout read {field.name}, and {who} has changed it since{shown}\n"
        "  read here:",
        span,
        hint=f"change {field.name} in the steps",
        narrower=KEEP,
    ).advising(switch=not session.options.lifts_rules)


def binomial_plan(lo: int, hi: int, free: int) -> list[int]:
    """Return the steps before which a first forward run through lo..hi takes snapshots."""
    made = []
    # A snapshot at the start of each right part of the recursion: the forward run passes all of these.
    while free > 0 and hi > lo:
        made.append(lo)
        free -= 1
        if free == 0:
            break
        lo = binomial_split(lo, hi, free)
    return made


def binomial_split(lo: int, hi: int, free: int) -> int:
    """Return the step between lo and hi for the next snapshot, with `free` of them left."""
    n = hi - lo
    # Enough snapshots for one before every step.
    if n <= free + 1:
        return lo + 1
    runs = 1
    # The least number of runs r with binom(s + r, r) >= n: the reach of s snapshots, one of them the
    # start.
    while math.comb(free + 1 + runs, runs) < n:
        runs += 1
    # The rest is as long as one snapshot less can reverse in `runs` runs: optimal (Griewank, Walther).
    rest = math.comb(free + runs, runs)
    return max(lo + 1, hi - rest)
