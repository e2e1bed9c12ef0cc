"""Tapes: record launches, then run their adjoints in reverse order.

A tape holds one entry for each launch (and each write from Python to a field): what was launched, with which
arguments, and the clock's reading, against which the adjoint checks that everything it loads is still what
the launch saw. A tape saves no field values, unless it is asked to (`in_place="save"`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.checks.access_validation import Validator
from diffsim.ad.checks.broken_chains import check_chain
from diffsim.ad.checks.integrity import RecordIntegrity, no_record
from diffsim.ad.checks.lost_gradients import check_reaches, check_seeds
from diffsim.ad.checks.nan_search import NanWatch
from diffsim.ad.record.dot import draw
from diffsim.ad.record.entries import (
    UNCHANGING,
    Computed,
    Copied,
    Index,
    Launched,
    Pull,
    Replaced,
    Scope,
    Seeded,
    Stopped,
    Stored,
    Wrote,
    all_written,
    constant,
    fields_of,
    held,
)
from diffsim.ad.record.overwrite_saves import OverwriteSaver, Saved, TapeStats
from diffsim.ad.record.record import Record
from diffsim.ad.record.snapshot import StartSnapshot
from diffsim.ad.replay.program import Replay
from diffsim.ad.reverse.backward import Hook, Zeroed, forget_values, make_adjoints, run_adjoints
from diffsim.ad.reverse.inputs import check_cuts, mark_inputs, note_inputs
from diffsim.ad.reverse.retain_grad import GradientRetainer, checked_wish
from diffsim.ad.reverse.seeds import check_loss, check_value, of_its_own, start_from
from diffsim.errors import AutodiffError, FieldError, MissingGradientError, Span, shown
from diffsim.lang.host.copying import refuse
from diffsim.lang.host.signatures import (
    checked_methods,
    is_one_of,
    need_bool,
    need_function,
    need_path,
)
from diffsim.lang.host.source import check_runs
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.poison import poison, written_since
from diffsim.runtime.fields.read_values import FieldElement, Provenance
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.files import write_text
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    from diffsim.ad.rollout_recorders import StepTrace
    from diffsim.runtime.kernels.specialization import Specialization


@checked_methods(
    "__init__ backward replay zero reset on_backward visualize record_func record_scope_begin "
    "record_scope_end"
)
class Tape:
    """Records what runs inside of `with`, for gradients.

    With a loss the gradients are computed at the end of the block:

        with ds.Tape(loss):
            simulate()
        x.grad[0]  # d loss / d x[0]

    Without one, afterwards and as often as wanted: `tape.backward(loss)` or
    `tape.backward(grads={y: seed})`; gradients then add up until `tape.zero()`.

    The same launches with other contents of the fields: `tape.replay()`, then `tape.backward()`.

    What Python writes to a field in the block is a constant: an input, with a gradient, if nothing on the
    tape used the element before. Copies (`copy_from`, `ds.copy`, `ds.clone`) are differentiated.

    Args:
        loss: a field of a single element that has a gradient. It is set to 0 on entry.
        clear_gradients: with a loss: whether all gradients are set to 0 on entry.
        in_place: "save" copies values that an adjoint needs before they are overwritten, and puts them
            back on the way, so that programs which overwrite their state have exact gradients;
            "refuse" (default) raises GlobalDataAccessError instead.
        retain_grad: fields (True: all) whose gradients are kept though kernels store into them: the
            gradient with respect to the value stored. Refused where one element is given several
            values that have an effect.
        validation: check the global data access rules to the letter, element by element, while the
            program runs (slow): nothing that was read may be written again.
        check_nan: look for NaN after each launch and each adjoint (slow).

    Raises:
        MissingGradientError: the loss, or a field between it and the inputs, has no gradient.
        AutodiffError: and its kind, at the end of the block (or in `backward`).

    Attributes:
        in_place: whether the tape hears of launches and writes before they happen.
        start: keeps what fields held before they were written to, if somebody wants to go back.
    """

    records = True
    trace: StepTrace | None = None
    """What notes everything that is recorded, on tapes of a step that is run again."""
    exact = True  # all gradients come from the record: no code with a gradient of its own runs
    plain = False
    """Whether the tape only watches: code with a gradient of its own runs as if there were none."""
    keeps_inputs = True  # whether the gradient of what Python sets first in the block is kept
    run = 0
    """Which of the tape's recordings this is; whether in it Python read a field with a gradient (`looked`),
    wrote to a gradient (`seeded`), said that something is a constant (`constants`)."""

    def __init__(
        self,
        loss: Field | None = None,
        clear_gradients: bool = True,
        *,
        in_place: str = "refuse",
        retain_grad: bool | Field | Sequence[Field] = False,
        validation: bool = False,
        check_nan: bool = False,
    ) -> None:
        if not is_one_of(in_place, "refuse", "save"):
            raise FieldError(
                f"in_place={shown(in_place)} is not possible",
                Span.of_caller(),
                hint='it is "refuse" or "save"',
            )
        need_bool(clear_gradients, "clear_gradients")
        need_bool(validation, "validation")
        need_bool(check_nan, "check_nan")
        self.saving = in_place == "save"
        if self.saving and validation:
            raise FieldError(
                'validation=True refuses what in_place="save" allows',
                Span.of_caller(),
                hint="leave one of them out",
            )
        self.retained = checked_wish(retain_grad)
        self.validating = validation
        self.checking_nan = check_nan
        self.in_place = self.saving or validation or check_nan
        self.hooks: list[Hook] = []
        self.loss = loss
        self.clear_gradients = clear_gradients
        self._start()
        if loss is not None:
            check_loss(loss)

    def _start(self) -> None:
        self.saver = OverwriteSaver()
        self.pending: list[Saved] = []
        self.entries = Record()
        self.run += 1
        self.looked = self.seeded = self.constants = False
        self.gaps = RecordIntegrity()
        self.kept: dict[Specialization, list[Any]] = {}
        self.validator = Validator() if self.validating else None
        self.nan = NanWatch() if self.checking_nan else None
        self.start: StartSnapshot | None = None
        self.complete = False
        self.generation = session.generation
        self._again: Replay | None = None

    def __repr__(self) -> str:
        loss = "" if self.loss is None else f" of {self.loss.name}"
        now = "recording, " if session.tape is self else ""
        return f"<tape{loss}: {now}{self.stats().entries} entries>"

    # ---- recording

    def __enter__(self) -> Tape:
        if session.tape is not None:
            raise AutodiffError(
                "a tape is recording already, and tapes can not be nested",
                Span.of_caller(),
                hint="end the block of the other tape before",
            )
        if self.loss is not None:
            self._start()
            self._clear()
        self._again = None
        self.complete = False
        if not self.entries:
            self.generation = session.generation
        self.gaps.look(self.entries)
        session.tape = self
        self._hearing = session.begin_hearing(self)
        return self

    def _clear(self) -> None:
        """What a run with a loss starts with."""
        if self.loss is not None:
            if self.clear_gradients:
                if session.others_use_gradients():
                    raise AutodiffError(
                        "this tape would set all gradients to 0, while another thread records a tape or runs "
                        "its backward pass",
                        Span.of_caller(),
                        hint="give the tapes of threads clear_gradients=False, or no loss (tape.zero(), "
                        "tape.backward(loss))",
                    )
                for f in members(session.with_grad):
                    f.grad.clear()
            self.loss.fill(0)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        interrupted = session.tape is not self
        session.end_hearing(self._hearing)
        del self._hearing  # it refers to the tape, which is to go at once when it is dropped
        session.tape = None
        self.gaps.left = session.clock
        if error is not None:
            return
        if interrupted:
            self.entries = Record()
            raise AutodiffError(
                "ds.init() or ds.reset() was called while this tape was recording, which ended the record",
                Span.of_caller(),
                hint="call ds.init() before the tape",
            )
        self.complete = True
        if self.loss is not None:
            self.backward(self.loss)

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> Specialization | None:
        """A launch is about to start (called by the launch function if `in_place`).

        Returns:
            The kernel to launch in place of it, if it is to be another one.
        """
        if self.start is not None:
            self.start.launching(special, args)
        if self.saving:
            earlier, self.pending = self.saver.before_launch(special.in_place, args)
            for saved in self.pending:
                saved.own = True
            self.entries.extend(earlier)
        if self.nan is not None:
            self.nan.before(special.written, special, args)
        return None if self.validator is None else self.validator.instead(special, args)

    def cut_short(self, what: str, span: Span | None) -> None:
        """Note that a launch, or more, did not run to its end, and that no entry tells of it."""
        self.gaps.cut_short(what, span)

    def written_elsewhere(self, f: Any, who: str, span: Span | None) -> None:
        """Note that another thread has written to a field meanwhile."""
        self.gaps.written_elsewhere(f, who, span)

    def save_before(self, special: Specialization, args: tuple[Any, ...]) -> None:
        """A launch that has no adjoint of its own on this tape is about to start."""
        if self.start is not None:
            self.start.launching(special, args)
        if self.saving:
            self.entries.extend(self.saver.before_launch(special.detached.in_place, args)[0])

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        """Note a launch (called by the launch function)."""
        special = special.plain
        if special not in self.kept:
            self.kept[special] = special.alive()  # the adjoint will need them
        given = args
        for a in args:
            if a.__class__ not in UNCHANGING:
                args = tuple(map(constant, args))
                break
        if self.saving:
            special = special.in_place
            self.saver.after_launch(special, args)
        if seed or special.arrays or given is not args:
            self.entries.append(Launched(special, given, args, now, seed))
        else:
            self.entries.launch(special, args, now)
        if self.pending:
            self.entries.extend(self.pending)
            self.pending = []
        if self.nan is not None:
            self.nan.after(special.written, self.entries.newest())

    def returned(self, result: Any) -> Any:
        """What the launch just noted returns: a value that the tape follows."""
        made = self.entries.newest().returned = Recorded(result, self)
        return made

    def computed(
        self, made: Recorded, parts: Sequence[tuple[Recorded | FieldElement, Pull]]
    ) -> None:
        """Note arithmetic in Python on values that the tape follows."""
        self.entries.append(Computed(made, parts))

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        """Note that Python stored a value that the tape follows."""
        self.entries.append(Stored(field, index, value))
        self._look_at(field, index)

    def writing(self, field: Field, row: int | None) -> None:
        """Python is about to write (called by the field if `in_place`)."""
        if self.start is not None:
            self.start.note(field)
        if self.saving and not field.is_grad:
            self.entries.extend(self.saver.before_write(field, row))

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        """Note a write from Python (called by the field)."""
        seeds = field.is_grad and bool(held(field, index).any())
        self.seeded |= seeds
        self.entries.append((Seeded if seeds else Wrote)(field, index, value))
        self._look_at(field, index)

    def lost(self, source: Provenance) -> None:
        """Note that what was written last was made, in Python, of what has a gradient."""
        entry = self.entries[-1]
        assert isinstance(entry, Wrote)
        if entry.field.grad is None:
            entry.lost = Span.of_caller()
        else:
            entry.taken = source.field, Span.of_caller()

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        """Note a copy (called by the field)."""
        self.seeded |= target.is_grad
        self.entries.append(Copied(target, source, Span.of_caller(), to, at))
        self._look_at(target, to)

    def stopped(self, field: Field) -> None:
        """Note that what a field holds counts as a constant."""
        self.entries.append(Stopped(field, None, field))

    def _look_at(self, field: Field, index: Index) -> None:
        if self.validator is not None:
            self.validator.wrote(field, index)
        if self.nan is not None:
            self.nan.wrote(field, index)

    def replaced(self, backward: Callable[[], Any], inside: Tape) -> None:
        """Note a run of a function with a gradient of its own, and what it did meanwhile."""
        self.kept.update(inside.kept)
        self.entries.append(Replaced(backward, inside.entries))

    def rolled_out(
        self,
        backward: Callable[[], Any],
        read: Iterable[Field],
        written: Iterable[Field],
        kept: dict[Specialization, list[Any]],
        again: Callable[[], Any],
    ) -> None:
        """Note a checkpointed rollout, the fields that it read or wrote, and how to do it again."""
        self.kept.update(kept)
        self.entries.append(Replaced(backward, [], tuple(read), tuple(written), by_user=False))

    def record_func(self, backward: Callable[[], Any], arrays: Sequence[Field]) -> None:
        """Record a function that the backward pass calls at this place.

        Args:
            backward: called without arguments; it reads and adds to gradients.
            arrays: the fields and arrays whose gradients it uses, for `tape.zero()` and
                `tape.gradients`.
        """
        need_function(backward, "backward", "give one that adds to the gradients")
        check_runs(backward, "the function")
        fields: Sequence[Any] = arrays if isinstance(arrays, (list, tuple)) else [arrays]
        if any(not isinstance(f, (Field, np.ndarray)) for f in fields):
            problem = f"arrays is a list of fields and arrays, not {shown(arrays)}"
            raise FieldError(problem, Span.of_caller(), "write tape.record_func(backward, [x, y])")
        self.entries.append(Replaced(backward, [], tuple(fields)))

    def record_scope_begin(self, name: str) -> None:
        """Begin a group of entries, for `visualize`."""
        self.entries.append(Scope(name if isinstance(name, str) else shown(name)))

    def record_scope_end(self) -> None:
        """End the group begun last."""
        self.entries.append(Scope(None))

    def on_backward(self, hook: Hook) -> Hook:
        """Call a function after the adjoint of each launch, last launch first; also a decorator.

        Args:
            hook: `hook(step, grads)`: the number of the launch on the tape, from 0, and a dictionary
                from the fields that it read to their gradients so far. What the hook does to them
                (clip, set to 0) is what the earlier launches see.
        """
        need_function(hook, "the hook", "give one of two parameters: def hook(step, grads): ...")
        check_runs(hook, "the hook")
        self.hooks.append(hook)
        return hook

    # ---- running it again

    def replay(self) -> None:
        """Run everything recorded again, in order, from what the fields hold now.

        Arguments passed by value, random numbers and what Python wrote to fields are as recorded. A tape
        with a loss sets it (and the gradients) to 0 first, as on entry. `tape.backward()` after it gives
        the gradients of this run. Both run as native code, on a GPU as graphs, without Python between the
        launches.

        Raises:
            AutodiffError: nothing was recorded, `ds.init` was called since, a kernel uses other
                fields now; the tape holds what can not run without Python (see docs/autodiff.md).
            KernelStateError: a number that was compiled in has changed.
            AccessError: a check in a kernel (`debug=True`) failed.
        """
        if not self.complete or not self.entries:
            raise no_record("replay")
        if self.validating or self.checking_nan:
            raise AutodiffError(
                "a tape can not be replayed with validation=True or check_nan=True, since a replay looks at "
                "nothing",
                Span.of_caller(),
                hint="record it anew each time: with tape: ...",
            )
        self.gaps.check(self.entries.firsts())
        again = self._again
        if again is None or not again.complete:
            again = Replay(self.entries, self.generation, all_written(self.entries.firsts()))
        again.check()
        self._check_gradients()
        self._clear()
        self._again = again
        again.forward()
        self.gaps.left = session.clock

    # ---- the backward pass

    def backward(
        self, loss: Field | Recorded | None = None, grads: Mapping[Field, Any] | None = None
    ) -> None:
        """Run the adjoints of everything recorded, last first.

        Args:
            loss: a field of a single element, whose gradient is set to 1; the tape's own if nothing
                is given; or a number that the tape followed: what a kernel returned, or made of that.
            grads: for any fields the gradients to start from: numbers, arrays or fields of their shape.

        Raises:
            AutodiffError: and its kind: a value that is needed has changed, a gradient is missing. Whatever
                is raised once the pass has begun, all gradients on the tape are NaN then.
        """
        if session.tape is not None:
            raise AutodiffError(
                "the backward pass can not run while a tape records",
                Span.of_caller(),
                hint="call backward after the end of the with block",
            )
        if not isinstance(grads, Mapping | None):
            raise FieldError(
                "grads is a dictionary",
                Span.of_caller(),
                hint="write tape.backward(grads={y: seed})",
            )
        seeds: dict[Field, Any] = {f: of_its_own(seed) for f, seed in (grads or {}).items()}
        if grads is None and loss is None:
            loss = self.loss
        if loss is None and not seeds:
            raise AutodiffError(
                "a backward pass starts from a loss or from gradients",
                Span.of_caller(),
                hint="write tape.backward(loss) or tape.backward(grads={y: seed})",
            )
        if isinstance(loss, Field):
            check_loss(loss)
            seeds[loss] = 1
        elif loss is not None:
            check_value(loss, self)
        self.gaps.check(self.entries.firsts(), seeds)
        if not self.complete and not self.entries:
            raise no_record("differentiate")
        self._check_gradients()
        again = self._again
        known = again is not None and again.chained
        if not known:
            check_chain(self.entries)
            check_seeds(self)
            mark_inputs(self.entries, self.keeps_inputs)
        check_cuts(self.entries, seeds, self.gaps)
        make_adjoints(self.entries.firsts())
        if not known or loss is not self.loss:
            check_reaches(self, loss if isinstance(loss, Field) else None, seeds)
        if again is not None:
            again.chained = True
        clock, me = session.clock, threading.get_ident()
        session.passes.add(me)
        try:
            self._compute_gradients(loss, seeds)
        except BaseException as error:
            if session.clock != clock:
                poison(
                    error,
                    lambda: self._touched(seeds, clock),
                    "tape.zero(), or a new run of a tape with a loss, sets them to 0.",
                )
            raise
        finally:
            session.passes.discard(me)

    def _compute_gradients(self, loss: Field | Recorded | None, seeds: dict[Field, Any]) -> None:
        forget_values(self.entries.firsts())
        again = self._again
        zeroed = Zeroed(all_written(self.entries.firsts()) if again is None else again.written)
        if isinstance(loss, Recorded):
            loss.receive(np.ones(()))
        for f, seed in seeds.items():
            start_from(f, seed)
        if again is None or not again.backward(native=not (self.retained or self.hooks)):
            keeper = GradientRetainer(self.retained) if self.retained else None
            run_adjoints(self.entries, self.gaps, keeper=keeper, nan=self.nan, hooks=self.hooks)
        zeroed.add_back()
        note_inputs(self.entries, self.gaps, session.clock)

    def _touched(self, seeds: Iterable[Any], clock: int) -> Iterator[Field]:
        """The gradients that a backward pass, which began at that reading of the clock, was to compute."""
        yield from self.gradients.values()
        yield from (f.grad for f in seeds if isinstance(f, Field) and f.grad is not None)
        if self.hooks or any(isinstance(e, Replaced) for e in self.entries.firsts()):
            yield from written_since(clock)  # the user's code may have written to any

    def sweep(self) -> None:
        """Run the adjoints from the gradients as they are: one part of a longer program.

        Values that were overwritten stay as they were at the start of that part.
        """
        self.gaps.check(self.entries.firsts())
        self._check_gradients()
        check_chain(self.entries)
        check_seeds(self)
        run_adjoints(self.entries, self.gaps, put_back=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """`copy`, `deepcopy` and `pickle` come here."""
        raise refuse(
            "a tape",
            "it knows the launches of this process",
            "record what it holds on another tape",
        )

    # ---- gradients

    @property
    def gradients(self) -> dict[Field, Field]:
        """For each field on the tape that has one, its gradient."""
        found = fields_of(self.entries.firsts())
        return {f: f.grad for f in found if f.grad is not None and f.kind != "argument"}

    def zero(self) -> None:
        """Set all gradients on the tape to 0."""
        for grad in self.gradients.values():
            grad.clear()

    def reset(self) -> None:
        """Forget what was recorded, and set the gradients to 0."""
        self.zero()
        self._start()

    def stats(self) -> TapeStats:
        """How much the tape holds."""
        saved = sum(isinstance(e, Saved) for e in self.entries.firsts())
        scopes = sum(isinstance(e, Scope) for e in self.entries.firsts())
        return TapeStats(len(self.entries) - saved - scopes, saved, self.saver.bytes)

    def visualize(
        self, filename: str | None = None, array_labels: Mapping[Field, str] | None = None
    ) -> str:
        """The recorded launches and the fields between them, as a graph in the DOT language.

        Args:
            filename: where to write it; `dot -Tsvg` (GraphViz) makes a picture of it.
            array_labels: names to show for fields and arrays.

        Raises:
            FieldError: the file can not be written; one that was there stays as it was.
        """
        text = draw(self.entries, array_labels or {})
        if filename is not None:
            need_path(filename, "the filename")
            write_text(filename, text)
        return text

    def _check_gradients(self) -> None:
        for special in self.kept:
            name = special.kernel.source.name
            if special.is_elsewhere():
                raise AutodiffError(
                    f"{name} was launched in this tape for another backend than that of now",
                    special.kernel.source.head(),
                    hint="record the tape again after ds.init",
                )
            if special.count_gradients() != special.gradients:
                raise MissingGradientError(
                    f"a field that {name} uses got its gradient after {name} was launched in this tape",
                    special.kernel.source.head(),
                    hint="give fields their gradients (needs_grad=True, ds.root.lazy_grad()) before",
                )
