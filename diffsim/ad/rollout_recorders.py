"""Recorders of the steps of a checkpointed rollout: for its forward run, and for steps run again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.checks.step_chains import StepChains
from diffsim.ad.enclosing_recorder import EnclosingRecorder, RolloutSummary
from diffsim.ad.record.elements import Box, Index, read_elements
from diffsim.ad.record.entry import Entry
from diffsim.ad.record.record import Record
from diffsim.ad.record.step_trace import StepTrace
from diffsim.ad.recorder import TapeRecorder
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.adjoints import lend_adjoint
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.recorder import ForwardingRecorder, NullRecorder

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class RepeatRecorder(ForwardingRecorder, EnclosingRecorder):
    """Records steps that are run again on a tape of their own, and the trace of the last one.

    Attributes:
        gives_gradients: whether there was a function with a gradient of its own, which may read anything.
        rollout_bytes: what rollouts inside the steps hold.
    """

    trace: Any  # a `StepTrace`, or what passes its events on to one

    def __init__(self, body: TapeRecorder) -> None:
        super().__init__(body)
        self.gives_gradients = False
        self.rollout_bytes = 0
        self.body = body
        self.validator, self.nan = body.validator, body.nan
        self.lifting = body.lifting
        self.trace = StepTrace()

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        self.trace.launched(special, args, now, seed)
        self.body.launched(special, args, now, seed)

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.trace.wrote(field, index, value)
        self.body.wrote(field, index, value)

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        self.trace.stored(field, index, value)
        self.body.stored(field, index, value)

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        self.trace.copied(target, source, to, at)
        self.body.copied(target, source, to, at)

    def stopped(self, field: Field) -> None:
        self.trace.stopped(field)
        self.body.stopped(field)

    def lend(self, special: Specialization, args: tuple[Any, ...]) -> None:
        self.body.lend(special, args)

    def save_before(self, special: Specialization, args: tuple[Any, ...]) -> None:
        self.body.save_before(special, args)

    def will_need(self, boxes: Iterable[Box]) -> None:
        self.body.will_need(boxes)

    def append(self, entry: Entry) -> None:
        self.body.append(entry)

    def replaced(self, name: str, backward: Callable[[], Any], inside: Record) -> None:
        self.gives_gradients = True
        self.body.replaced(name, backward, inside)

    def rolled_out(self, rollout: RolloutSummary) -> None:
        self.rollout_bytes += rollout.held_bytes
        self.body.rolled_out(rollout)


class CarryRecorder(NullRecorder):
    """Notes what a step reads and writes, to find fields that are missing from the state.

    It makes no entries: the rollout as a whole becomes one of the recorder around it (`outer`). A rollout
    inside a step of another one leaves its trace there too.

    Attributes:
        written: fields that are not in the state and that steps write.
        inputs: what steps read and neither the state nor the steps provide, with the first to read it.
        chains: what they do to float fields without gradient.
        set_grads: the gradients that they write, and where; `seeded_grads`: those set to other than 0.
    """

    follows_values = True

    def __init__(self, outer: EnclosingRecorder, state: set[Field]) -> None:
        self.outer = outer
        self.lifting = outer.lifting
        self.alive: dict[Specialization, list[Any]] = {}
        self.state = state
        self.written: dict[Field, None] = {}
        self.inputs: dict[Box, Span | None] = {}
        self._input_rows: dict[Field, set[int | None]] = {}
        self.fresh: set[Box] = set()
        self.set_grads: dict[Field, Span | None] = {}
        self.seeded_grads: dict[Field, Span | None] = {}
        self.chains = StepChains()
        self.intercepts = outer.intercepts

    def missing(self, f: Field, span: Span | None) -> AutodiffError:
        """Return the error for a field that may carry something from one step to the next."""
        return _missing(f, span)

    def next_step(self) -> None:
        """Begin a new step, in which nothing was overwritten yet."""
        # Fields that are written again in every step carry nothing over, but only if all that is read
        # was written before in the same step: `fresh` begins empty each time.
        self.fresh = set()
        self.chains.next_step()
        self.trace = StepTrace()
        self.record = self.trace.record  # values that are returned in it belong to this step alone
        self.traces = [t for t in (self.trace, self.outer.trace) if t is not None]

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> None:
        if self.outer.lifting and special not in self.alive:
            self.outer.lend(special, args)
        # The tape around the rollout saves what its earlier adjoints need, also before launches in
        # here.
        if self.outer.intercepts:
            self.outer.save_before(special, args)

    def cut_short(self, what: str, span: Span | None) -> None:
        self.outer.cut_short(what, span)

    def writing(self, field: Field, row: int | None) -> None:
        if self.outer.intercepts:
            self.outer.writing(field, row)

    def returned(self, result: Any) -> Recorded:
        return Recorded(result, self)

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        if field.kind != "argument":
            self.wrote(field, index, value.array)

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        for trace in self.traces:
            trace.launched(special, args, now, seed)
        self.chains.launched(special, args, now, seed)
        # Reads before writes: a launch that reads and writes a field reads what was there before it.
        for a in special.accesses.exposed_reads:
            self._read(special.box(a, args), a.stmt.span)
        self.alive.setdefault(special, special.dependencies.alive())
        covered = self._covered(special, args)
        for a in special.accesses.extremes:
            box = special.box(a, args)
            # An atomic minimum keeps the old value if that is less, so it reads it, in effect.
            kept = box is None or box[0] in self.state or _holds(self.fresh | covered, box)
            if box is not None and not kept:
                raise self.missing(box[0], a.stmt.span)
        for a in special.accesses.writes:
            box = special.box(a, args)
            if box is not None and box[0].is_grad:
                self._writes_gradient(
                    box[0], a.stmt.span, seeds=bool(special.accesses.gradient_writes)
                )
            if box is None or box[0] in self.state:
                continue
            self.note_write(box, a.stmt.span)
        # Only elements that the launch certainly stores; a store in a branch leaves old values behind.
        self.fresh |= covered

    @staticmethod
    def _covered(special: Specialization, args: tuple[Any, ...]) -> set[Box]:
        """Return the boxes that a launch stores every element of."""
        found: set[Box] = set()
        for a in special.accesses.must_write:
            box = special.box(a, args)
            if box is not None:
                f = box[0]
                rows = {r.axis for r in a.region if f.shape[r.axis] > 1}
                # Freshness is tracked by rows of the time axis, as versions are; other fixed indices
                # leave gaps.
                if not rows or (rows == {f.versions.axis} and f.versions.block == 1):
                    found.add(box if rows else (f, None))
        return found

    def _read(self, box: Box | None, span: Span | None) -> None:
        """Note a read: of an input, or of a value that an earlier step may have left."""
        if box is None:
            return
        if box[0] in self.written:
            # Read before it was written in this step: the value is one that an earlier step left.
            if not _holds(self.fresh, box):
                raise self.missing(box[0], span)
        # Never written by a step: an input of the rollout, which must stay as it is until the backward
        # pass.
        elif box[0] not in self.state:
            self.inputs.setdefault(box, span)
            self._input_rows.setdefault(box[0], set()).add(box[1])

    def note_write(self, box: Box, span: Span | None) -> None:
        """Note a write to a field that is not in the state."""
        field, row = box
        # What a step has read from before the rollout would be something else when it is run again.
        if (rows := self._input_rows.get(field)) and (row is None or None in rows or row in rows):
            raise self.missing(field, span)
        self.written[field] = None

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        for trace in self.traces:
            trace.wrote(field, index, value)
        self.chains.wrote(field, index, value)
        if isinstance(value, Field):
            self._read((value, None), Span.of_caller())
        if field.is_grad:
            self._writes_gradient(
                field, Span.of_caller(), seeds=bool(read_elements(field, index).any())
            )
        self._written_whole(field, index)

    def _writes_gradient(self, gradient: Field, span: Span | None, *, seeds: bool) -> None:
        self.set_grads.setdefault(gradient, span)
        if seeds:
            self.seeded_grads.setdefault(gradient, span)

    def _written_whole(self, field: Field, index: Index) -> None:
        if field not in self.state:
            rows = len(field.shape) == 1 and index is not None and len(index) == 1
            self.note_write((field, index[0] if rows and index else None), Span.of_caller())
            # A single element that Python sets does not make the rest of the field fresh.
            if index is None or math.prod(field.shape) == 1:
                self.fresh.add((field, None))
            elif len(index) == len(field.shape) == 1:
                # A row of the only axis that may become the time axis; which it is, kernels tell later.
                self.fresh.add((field, index[0]))

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        if self.outer.lifting and source.adjoint is not None:
            lend_adjoint(target)
        self._read((source, None), Span.of_caller())
        for trace in self.traces:
            trace.copied(target, source, to, at)
        self.chains.copied(target, source, to, at)
        if target.is_grad:
            self._writes_gradient(target, Span.of_caller(), seeds=True)
        self._written_whole(target, to)

    def stopped(self, field: Field) -> None:
        for trace in self.traces:
            trace.stopped(field)


def _holds(fresh: set[Box], box: Box) -> bool:
    return box in fresh or (box[0], None) in fresh


def _missing(f: Field, span: Span | None) -> AutodiffError:
    return AutodiffError(
        f"{f.name} may carry something from one step to the next, and is not in the state of the "
        "checkpointed rollout",
        span,
        hint=f"add {f.name} to state=[...], or set all of it at the start of each step "
        f"({f.name}.fill(0), or a loop that stores every element)",
    )


class FirstRunRecorder(RepeatRecorder):
    """Records a step on a tape of its own in the forward run, where `CarryRecorder` watches it too."""

    def __init__(self, body: TapeRecorder, carry: CarryRecorder) -> None:
        super().__init__(body)
        self.carry = carry
        # What functions and rollouts inside the step report to the trace is watched as well.
        self.trace = carry

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> Any:
        # A kernel that is launched task by task was announced as a whole.
        if special.part_of is None:
            self.carry.launching(special, args)
        return self.body.launching(special, args)

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        whole, number = special.part_of or (special, 0)
        if not number:
            self.carry.launched(whole, args, now, seed)
        self.body.launched(special, args, now, seed)

    def writing(self, field: Field, row: int | None) -> None:
        self.carry.writing(field, row)
        self.body.writing(field, row)

    def lend(self, special: Specialization, args: tuple[Any, ...]) -> None:
        self.carry.outer.lend(special, args)
        self.body.lend(special, args)

    def save_before(self, special: Specialization, args: tuple[Any, ...]) -> None:
        if self.carry.intercepts:
            self.carry.outer.save_before(special, args)
        self.body.save_before(special, args)

    def cut_short(self, what: str, span: Span | None) -> None:
        self.carry.cut_short(what, span)
        self.body.cut_short(what, span)


class ConditionRecorder(NullRecorder):
    """Watches the condition of a rollout, which is not run again: it may not change what steps depend on."""

    def __init__(self, carry: CarryRecorder) -> None:
        self.carry = carry
        self.intercepts = carry.intercepts
        self.trace = carry.outer.trace

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> None:
        self.carry.launching(special, args)

    def writing(self, field: Field, row: int | None) -> None:
        self.carry.writing(field, row)

    def cut_short(self, what: str, span: Span | None) -> None:
        self.carry.cut_short(what, span)

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        if self.trace is not None:
            self.trace.launched(special, args, now, seed)
        for a in special.accesses.writes:
            box = special.box(a, args)
            if box is not None:
                self._changed(box, a.stmt.span)

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        if self.trace is not None:
            self.trace.wrote(field, index, value)
        self._changed((field, None), Span.of_caller())

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        if self.trace is not None:
            self.trace.copied(target, source, to, at)
        self._changed((target, None), Span.of_caller())

    def _changed(self, box: Box, span: Span | None) -> None:
        field = box[0]
        if field in self.carry.state or field.is_grad or field.adjoint is not None:
            raise AutodiffError(
                f"the condition of the checkpointed rollout changes {field.name}, and it is not run again in "
                "the backward pass",
                span,
                hint="let the step change it; a condition may read fields, and write to fields without "
                "gradients that no step reads",
            )
        self.carry.note_write(box, span)
