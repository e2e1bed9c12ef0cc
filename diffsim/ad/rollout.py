"""A checkpointed rollout, which performs the actions of its schedule (`schedules/actions.py`)."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from diffsim.ad.checks.integrity import RecordIntegrity
from diffsim.ad.checks.lost_gradients import check_rollout
from diffsim.ad.checks.refusals import refusals
from diffsim.ad.enclosing_recorder import EnclosingRecorder, RolloutSummary
from diffsim.ad.record.overwrite_saves import Saved, SpareCopies, copied
from diffsim.ad.record.record import Record
from diffsim.ad.repeat.past import Key, Past, keep, take
from diffsim.ad.rollout_recorders import CarryRecorder
from diffsim.ad.rollout_steps import FirstRuns, NotesOnDisk, Reruns, StepNotes, StepTape
from diffsim.ad.schedules.actions import Action, Holdings, backward, forward
from diffsim.ad.schedules.disk_states import DiskState, DiskStates
from diffsim.ad.schedules.online import OnlineStates
from diffsim.errors import KEEP, ArgumentError, AutodiffError, GlobalDataAccessError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import StorageSnapshot
from diffsim.runtime.session import session

_LEAST_TAPE = 1024
"""The cost of a tape without copies, if states are as large: its entries take memory too."""


class CheckpointStats:
    """The cost of a rollout; made by `ds.ad.checkpoint`. The counts go on during the backward pass.

    Attributes:
        snapshots: most states that were held in memory at once.
        snapshot_bytes: bytes of one.
        tapes: most steps that were on tapes at once, the one whose adjoint was run included.
        tape_bytes: bytes of what the tape of one step copied, at most.
        disk_bytes: most bytes of states on the disk at once.
        peak_bytes: most bytes held at once: states, what tapes saved of steps, the final values, which return
            after the backward pass, and 16 bytes of notes for each step (on the disk, if states are there).
        steps_run: how often a step was run, forward and backward together.
        planned_steps: how often they are going to be run in all, by the sizes of the first step; 0: not known
            (no tape, or `while_=` before the end of the forward run).

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 1.0

        @ds.kernel
        def step(t: ds.i32):
            x[None] = 2.0 * x[None]

        stats = ds.ad.checkpoint(step, 10, [x])
        print(x[None], stats.steps_run)  # prints: 1024.0 10
    """

    def __init__(self, snapshot_bytes: int) -> None:
        self.snapshots = 0
        self.snapshot_bytes = snapshot_bytes
        self.tapes = 0
        self.tape_bytes = 0
        self.disk_bytes = 0
        self.peak_bytes = 0
        self.steps_run = 0
        self.planned_steps = 0

    def __repr__(self) -> str:
        disk = f", {self.disk_bytes} bytes on disk" if self.disk_bytes else ""
        return (
            f"<checkpoint: {self.snapshots} snapshots of {self.snapshot_bytes} bytes, {self.tapes} tapes of "
            f"{self.tape_bytes} bytes, at most {self.peak_bytes} bytes{disk}, {self.steps_run} steps run of "
            f"{self.planned_steps} planned>"
        )


@dataclass(frozen=True)
class Budget:
    """The user's limit on memory, and the schedule.

    Attributes:
        schedule: "mixed", "binomial" or "equidistant".
        snapshots: memory of so many states; `memory`: or bytes in all.
        disk: where states are written; None: nowhere.
    """

    schedule: str
    snapshots: int
    memory: int | None
    disk: DiskStates | None


class Rollout:
    """One checkpointed rollout: what it holds, and its backward pass.

    Attributes:
        n: the number of steps; with a `condition` the most, until the forward run has ended.
        held: states and tapes.
        written, inputs: fields besides the state that steps write, and boxes that they read.
        refused: why the first step has no gradient.
        key: of the line of the program: if all steps are on tapes, their memory waits for its next rollout.
    """

    def __init__(
        self,
        step: Callable[[int], Any],
        n_steps: int | None,
        condition: Callable[[int], Any] | None,
        state: list[Field],
        budget: Budget,
        *,
        progress: bool,
        key: Key,
    ) -> None:
        self.key = key
        self._spare = SpareCopies()
        self._holds_all = False
        self.step = step
        self.n = n_steps
        self.condition = condition
        self.state = state
        self.budget = budget
        self.progress = progress
        self.size = sum(f.storage.layout.nbytes for f in self.state)
        self.stats = CheckpointStats(self.size)
        self.notes = StepNotes() if budget.disk is None else NotesOnDisk(budget.disk)
        self.integrity = RecordIntegrity()
        self.held = Holdings(self.size, self.size)
        self.final_bytes = 0
        self.written: Iterable[Field] = ()
        self.refused: Sequence[AutodiffError] = ()
        self._first_tape: StepTape | None = None
        self._is_fresh = True

    def run(self, t: int) -> None:
        """Run a step."""
        self.stats.steps_run += 1
        self.step(t)

    def run_plainly(self) -> None:
        """Run all steps: nobody will differentiate them."""
        for t in itertools.count() if self.n is None else range(self.n):
            if self.condition is not None and not self.condition(t):
                break
            self.run(t)

    def run_all_again(self) -> None:
        """Run all steps again."""
        for t in range(len(self.notes)):
            session.launches = self.notes.of(t)[0]
            self.step(t)

    # ---- forward

    def forward(self, outer: EnclosingRecorder) -> None:
        """Run all steps, holding what the backward pass starts from."""
        recorder = CarryRecorder(outer, set(self.state))
        self.start = session.clock
        past = take(self.key)
        runs = FirstRuns(
            self.run, recorder, self.notes, SpareCopies() if past is None else past.spare
        )
        before, session.tape = session.tape, recorder
        try:
            self._run_first(runs)
            # Gradients set in a step would be set again whenever the backward pass runs it again.
            check_rollout(
                recorder.set_grads, recorder.seeded_grads, set(recorder.written) - set(self.state)
            )
        except BaseException:
            # Some steps have written to fields, and no entry stands for them.
            self.held.restart()
            outer.cut_short("the checkpointed rollout", Span.of_caller())
            raise
        finally:
            if session.tape is recorder:
                session.tape = before
        recorder.chains.next_step()
        # Where tapes come and go, waiting memory would be more than the budget.
        self._holds_all = len(self.held.tapes) == self.n and self.budget.schedule == "mixed"
        self.written = list(recorder.written)
        self.inputs = recorder.inputs
        self.now = session.clock
        # The backward pass reads the inputs again, so the tape around it saves them before they are
        # overwritten.
        outer.will_need(self.inputs)
        read = dict.fromkeys(field for field, _ in self.inputs)
        written = [*self.state, *self.written]
        held = self.held.used + self.notes.bytes
        alive, refused = recorder.alive, self.refused
        outer.rolled_out(
            RolloutSummary(
                self.backward,
                self.run_all_again,
                read,
                written,
                alive,
                held,
                refused,
                steps=recorder.chains.steps,
            )
        )

    def _run_first(self, runs: FirstRuns) -> None:
        """Run all steps for the first time."""
        self.written = runs.carry.written
        if self.n == 0 or not self._goes_on(runs, 0):
            self.n = 0
            return
        # 1. The first step tells the sizes.
        start = self._state(0)
        self._first_tape = runs.tape(0)
        self.refused = refusals(self._first_tape.recorder.record)
        self._close(self._first_tape)
        self.held = self._holdings(self._first_tape.bytes)
        self._hold(0, start)
        # 2. All other steps; step 0 has been run, and its tape is there if it is to be held.
        if self.condition is not None:
            self._run_while(runs)
        elif self.budget.schedule == "equidistant":
            self._run_equidistant(runs)
        else:
            assert self.n is not None
            self._plan(self.n)
            for action in forward(0, self.n, self.held):
                self._perform(action, runs)
        self._first_tape = None

    def _goes_on(self, runs: FirstRuns, t: int) -> bool:
        """Ask whether step t is to be run."""
        return self.condition is None or runs.goes_on(self.condition, t)

    def _plan(self, n: int) -> None:
        self.stats.planned_steps = int(self.held.planned(n))

    def _run_equidistant(self, runs: FirstRuns) -> None:
        assert self.n is not None
        # Rounded up, so that there are at most as many snapshots as the budget allows.
        self.spacing = -(-self.n // self._equidistant_states)
        self.stats.planned_steps = 2 * self.n
        for t in range(1, self.n):
            if t % self.spacing == 0:
                self._hold(t, self._state(t))
            runs.run(t)

    def _run_while(self, runs: FirstRuns) -> None:
        """Run steps until the condition ends them, or n of them."""
        spacing = self.held.spacing
        # Stretches shorter than what fits on tapes need no states between them.
        most = max(1, self.held.room // self.held.state_bytes)
        online = OnlineStates(most, max(1, self.held.lengths(0)[0] // 2))
        for t in itertools.count(1) if self.n is None else range(1, self.n):
            if not self._goes_on(runs, t):
                break
            if spacing and t % spacing == 0:
                self._perform(Action("store", t), runs)
            elif not spacing and online.wants(t):
                dropped = online.replace(t)
                if dropped in self.held.states:
                    self.held.drop_state(dropped)
                self._perform(Action("hold", t), runs)
            self._perform(Action("run", t, t + 1), runs)
            self._fit_notes()
        self.n = len(self.notes)
        self.stats.planned_steps = int(self.held.planned_from_states(self.n))

    def _fit_notes(self) -> None:
        """Make room for the notes of steps, where their number was not known."""
        held, budget = self.held, self.budget
        if held.memory is not None and budget.memory is not None:
            own = self.notes.bytes
            held.memory = budget.memory - self.final_bytes - own
            if held.memory < self._least:
                raise self._too_little(
                    budget.memory - held.memory + self._least, own, held.tape_bytes
                )
            held.make_room(held.room)

    def _holdings(self, saves: int) -> Holdings:
        """Return what may be held, by what the tape of the first step saved."""
        budget, n = self.budget, self.n or 1
        own = 16 * n if budget.disk is None else 0
        self.final_bytes = self.size + sum(f.storage.layout.nbytes for f in self.written)
        least, room = saves, None
        if budget.disk is None:
            least += self.size
        if budget.memory is not None:
            room = budget.memory - self.final_bytes - own
        self._equidistant_states = budget.snapshots
        if budget.schedule == "equidistant" and room is not None:
            # k snapshots and a tape of n / k steps: k * size + n / k * saves is least for equal terms
            self._equidistant_states = k = max(1, round(math.sqrt(n * saves / self.size)))
            least = k * self.size + -(-n // k) * saves
        self._least = least
        # Found after the first step, not after hours of forward run.
        if room is not None and room < least:
            assert budget.memory is not None
            raise self._too_little(budget.memory - room + least, own, saves)
        held = Holdings(
            self.size,
            max(saves, min(self.size, _LEAST_TAPE)),
            states=budget.snapshots,
            memory=room,
            holds_tapes=budget.schedule == "mixed",
        )
        if budget.disk is not None:
            # Each stretch from one state on the disk to the next is on tapes as a whole.
            held.spacing = held.lengths(0)[0]
        return held

    def _too_little(self, least: int, own: int, saves: int) -> ArgumentError:
        rather = ', or take schedule="mixed"' if self.budget.schedule == "equidistant" else ""
        return ArgumentError(
            f"memory={self.budget.memory} is too little: a snapshot of the state takes {self.size} bytes, "
            f"the final values {self.final_bytes}, notes of all steps {own}, and a tape of one step saves "
            f"{saves}",
            Span.of_caller(),
            hint=f"give at least {least}{rather}",
        )

    # ---- actions

    def _perform(self, action: Action, runs: FirstRuns | Reruns) -> None:
        """Perform an action of the schedule."""
        t, held = action.step, self.held
        match action.kind:
            case "run":
                for k in range(t, action.end):
                    # The first step was run on a tape, for the sizes: it is not needed.
                    if k or self._first_tape is None:
                        runs.run(k)
                    self._first_tape = None
            case "hold" | "store":
                self._hold(t, self._state(t))
            case "restore":
                self._restore(held.states[t][0])
            case "drop":
                held.drop_state(t)
            case "tape":
                self._tape(t, action.end, runs)
            case "reverse":
                tape = held.drop_tape(t)
                tape.reverse()
                if self._holds_all:
                    self._spare.add(tape.recorder.record.copies())
                self._show(t)

    def _tape(self, t: int, end: int, runs: FirstRuns | Reruns) -> None:
        """Run a step on a tape, and hold it if there is room."""
        if self._first_tape is not None:
            tape, self._first_tape = self._first_tape, None
        else:
            tape = runs.tape(t)
            # Other code runs before its adjoint.
            if t + 1 < end or isinstance(runs, FirstRuns):
                self._close(tape)
        held, size = self.held, tape.bytes
        held.tape_bytes = max(held.tape_bytes, size)
        self.stats.tape_bytes = max(self.stats.tape_bytes, size)
        if held.memory is not None and held.used + size > held.memory:
            # Not held, it is run again from the last state.
            if t + 1 < end or isinstance(runs, FirstRuns):
                return
            held.make_room(held.memory - size)
            if held.used + size > held.memory:
                raise self._too_large(t, size)
        held.add_tape(t, tape, size)
        self.stats.tapes = max(self.stats.tapes, len(held.tapes))
        self._update_peak(0)

    def _too_large(self, t: int, saves: int) -> AutodiffError:
        assert self.held.memory is not None
        left = self.held.memory - self.held.used
        return AutodiffError(
            f"step {t} of the checkpointed rollout needs {saves} bytes for values that it overwrites, more "
            f"than the first step did, and {left} are left of memory={self.budget.memory}",
            Span.of_caller(),
            hint="give it more memory, or fewer snapshots",
        )

    def _close(self, tape: StepTape) -> None:
        tape.close([*self.state, *self.written])

    def _state(self, t: int) -> list[StorageSnapshot] | DiskState:
        """Copy the state."""
        if self.budget.disk is not None:
            return self.budget.disk.store(t, self.state)
        return [
            copied((f, None), "hold fewer: snapshots=, or memory= in bytes") for f in self.state
        ]

    def _hold(self, t: int, state: list[StorageSnapshot] | DiskState) -> None:
        """Hold a state before a step."""
        held = self.held
        held.add_state(t, state, 0 if isinstance(state, DiskState) else self.size)
        if self.budget.disk is not None:
            self.stats.disk_bytes = self.budget.disk.most
        else:
            self.stats.snapshots = max(self.stats.snapshots, len(held.states))
        self._update_peak(0)

    def _restore(self, state: list[StorageSnapshot] | DiskState) -> None:
        """Set the state to one that is held."""
        if isinstance(state, DiskState):
            state.restore(self.state)
        else:
            for f, values in zip(self.state, state, strict=True):
                f.storage.restore(values)
        for f in self.state:
            f._touch()

    def _update_peak(self, saves: int) -> None:
        """Update the peak of bytes held."""
        used = self.held.used + self.notes.bytes + self.final_bytes * (not self._is_fresh) + saves
        self.stats.peak_bytes = max(self.stats.peak_bytes, used)

    # ---- backward

    def backward(self) -> None:
        """Run the adjoint of the rollout: from gradients of the final state to those of the first."""
        # 1. Refuse a rollout whose values were lost in a failed pass, or whose inputs have changed: its steps
        # would not repeat themselves.
        self.integrity.check([])
        for (field, row), span in self.inputs.items():
            # Steps that run again must find the cells of sparse trees active that were active then.
            since = self.now if field._mem.level is None else self.start
            if field.versions.changed(row, since):
                raise _changed(field, row, span)
        # 2. The present values are put aside: running steps again overwrites them, and code between the
        # end of the rollout and its backward pass may have changed them.
        final = [Saved((f, None)) for f in (*self.state, *self.written)]
        launches = session.launches
        self._prepare(sum(s.data.nbytes for s in final))
        runs = Reruns(self.run, lambda: (*self.state, *self.written), self.notes)
        n = len(self.notes)
        try:
            # 3. Gradients of the state flow from each step to the one before it in the fields' own
            # gradients.
            if self.budget.schedule == "equidistant":
                self._reverse_segments(n, runs)
            else:
                for action in backward(n, self.held):
                    self._perform(action, runs)
        finally:
            # The first state is kept for another backward pass.
            self.held.restart()
            # The random numbers of the program after the pass must not depend on the pass.
            session.launches = launches
            self.integrity.restore_final(final)
        if self._holds_all:
            fields = [*self.state, *self.written]
            keep(self.key, Past(Record(), self._spare, whole=False, fields=fields))
            self._spare, self._holds_all = SpareCopies(), False
        if self.progress:
            sys.stderr.write("\n")

    def _prepare(self, final_bytes: int) -> None:
        """Make ready what is held: all of it in a first backward pass, the first state in others."""
        held = self.held
        self.final_bytes = final_bytes
        if held.memory is not None:
            assert self.budget.memory is not None
            held.memory = self.budget.memory - final_bytes - self.notes.bytes
            held.make_room(held.memory)
        self._is_fresh = False
        self._update_peak(0)

    def _reverse_segments(self, n: int, runs: Reruns) -> None:
        """Run the adjoints of the stretches between the states, last one first (equidistant)."""
        held, hi = self.held, n
        while hi:
            lo = max(held.states)
            self._segment(lo, hi, runs)
            if lo:
                held.drop_state(lo)
            hi = lo

    def _segment(self, lo: int, hi: int, runs: Reruns) -> None:
        """Run the adjoints of steps lo..hi on one tape, or on several if it saves too much."""
        held = self.held
        # Halved whenever the saves of a tape do not fit; the steps before it are then run from the
        # state again.
        length = hi - lo
        while hi > lo:
            first = max(lo, hi - length)
            self._restore(held.states[lo][0])
            for t in range(lo, first):
                runs.run(t)
            tape = runs.tapes(first, hi, self._bytes_left())
            if tape is None:
                length = max(1, (hi - first) // 2)
                continue
            # The number for the message is not known before a single step has run.
            if tape.bytes > self._bytes_left():
                raise self._too_large(first, tape.bytes)
            self.stats.tapes = max(self.stats.tapes, hi - first)
            self._update_peak(tape.bytes)
            tape.reverse()
            hi = first
            self._show(hi)

    def _bytes_left(self) -> float:
        """Return how many bytes are left for what a tape saves."""
        return math.inf if self.held.memory is None else self.held.memory - self.held.used

    def _show(self, t: int) -> None:
        """Show that the adjoints down to step t have run."""
        n = len(self.notes)
        if self.progress:
            bar = "#" * (30 * (n - t) // n)
            sys.stderr.write(f"\rbackward [{bar:<30}] {n - t}/{n}")


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
