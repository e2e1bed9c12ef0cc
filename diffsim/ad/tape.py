"""Tapes: record launches, then run their adjoints in reverse order.

A tape has one entry for each launch and each write from Python to a field: the kernel, its arguments, and the
clock's reading. With that reading the adjoint checks that every value it loads is still the one that the
launch saw. A tape saves no field values, unless it is asked to (`in_place="save"`).

`Tape` is the user's interface. Read `ad/recorder.py` for how entries are made, `ad/record/entry.py` for what
they mean, `ad/reverse/backward.py` for the backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from diffsim.ad.backward_pass import BackwardPass
from diffsim.ad.checks.integrity import (
    check_kernels,
    check_repeatable,
    session_reset,
)
from diffsim.ad.checks.tape_options import check_options, fields_to_compare
from diffsim.ad.pictures.drawn import Drawn
from diffsim.ad.record.entries import all_written
from diffsim.ad.record.entry import Entry, fields_of
from diffsim.ad.record.record import Record
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.record.snapshot import StartSnapshot
from diffsim.ad.recorder import TapeRecorder
from diffsim.ad.repeat.known import Known
from diffsim.ad.repeat.past import MAY_WAIT, Past, give_up, keep, line_of_caller
from diffsim.ad.repeat.repetition import Repetition
from diffsim.ad.repeat.rewriting import Rewriting
from diffsim.ad.repeat.steady import BEGUN, Steady, take_steady
from diffsim.ad.repeat.variant import Variant
from diffsim.ad.replay.program import Replay
from diffsim.ad.replay.saved_tape import save as save_tape
from diffsim.ad.reverse.backward import (
    Hook,
)
from diffsim.ad.reverse.retain_grad import parse_retain_grad
from diffsim.ad.reverse.seeds import (
    check_loss,
    set_number,
    statement,
)
from diffsim.ad.stats import TapeStats, stats_of
from diffsim.errors import ArgumentError, AutodiffError, Span, shown
from diffsim.lang.host import peer_names
from diffsim.lang.host.copying import refuse
from diffsim.lang.host.signatures import (
    checked_methods,
    need_function,
    need_path,
)
from diffsim.lang.host.source import check_runs
from diffsim.lang.host.unsupported import no_attribute
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.adjoints import clear_gradients
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.session import session
from diffsim.tracebacks import UserError, entries


@entries("__reduce_ex__")
@checked_methods("__init__ backward replay save zero reset on_backward record_func stats")
class Tape(BackwardPass, Drawn, metaclass=PublicNames):
    """Records what runs inside `with`, for gradients.

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
            "refuse" raises GlobalDataAccessError instead. If left out, as `ds.init(rules=...)` says.
        retain_grad: fields (True: all) whose gradients are kept though kernels store into them: the
            gradient with respect to the value stored. Refused where one element is given several
            values that have an effect; the first one of an iteration may be treated as a local variable.
        validation: check the global data access rules to the letter, element by element, while the
            program runs (slow): nothing that was read may be written again, and what was written may
            only be added to.
        grad_check: fields whose gradients are compared with differences at the end of the block, which is
            replayed twice for each of their numbers (slow; along random directions from 100 numbers on).
        check_nan: look for NaN and infinities after each launch and each adjoint (slow); "nan": for NaN
            alone.

    Raises:
        MissingGradientError: the loss, or a field between it and the inputs, has no gradient.
        AutodiffError: and its kind, at the end of the block (or in `backward`): a gradient in `grad_check`
            differs, or the block cannot be replayed.

    Example:
        x = ds.field(ds.f32, shape=3, needs_grad=True)
        loss = ds.field(ds.f32, shape=(), needs_grad=True)
        x.fill(2.0)

        @ds.kernel
        def add_squares():
            for i in x:
                loss[None] += x[i] ** 2

        with ds.Tape(loss):
            add_squares()
        print(loss[None], x.grad[0])  # prints: 12.0 4.0
    """

    _public = (
        "backward gradients loss on_backward record_func record_scope_begin record_scope_end "
        "replay reset save stats visualize zero"
    )

    compare: ClassVar[Callable[[Tape], None]]
    """Compares gradients with differences (`ad/jacobians/gradcheck.py`, which needs tapes itself)."""

    # As it is in nearly all tapes; a loop makes one in each turn.
    in_place: str | None = None
    clear_gradients: bool = True
    compared: Sequence[Field] = ()
    _has_begun = False
    _steady: Steady | None = None  # it has the recorder's place until that is asked for

    def __init__(
        self,
        loss: Field | None = None,
        clear_gradients: bool = True,
        validation: bool = False,
        grad_check: Sequence[Field] | Field | None = None,
        *,
        in_place: str | None = None,
        retain_grad: bool | Field | Sequence[Field] = False,
        check_nan: bool | str = False,
    ) -> None:
        if loss is not None and loss.__class__ is not Field:
            check_loss(loss)
        key = line_of_caller(loss)
        usual = clear_gradients is True and validation is check_nan is retain_grad is False
        if usual and in_place is None and grad_check is None:
            steady = take_steady(key)
            if steady is not None:  # whose loss was checked, and nothing has changed since
                self._steady, self.loss = steady, loss
                return
            self.recorder = TapeRecorder()
            self.recorder.is_usual, self.recorder.may_be_steady = True, loss is not None
        else:
            check_options(in_place, clear_gradients, validation=validation, check_nan=check_nan)
            self.retained = parse_retain_grad(retain_grad)
            self.in_place = "refuse" if validation else in_place
            self.clear_gradients = clear_gradients
            self.recorder = TapeRecorder(validating=validation, checking_nan=check_nan)
        if loss is not None:
            check_loss(loss)
        self.loss = loss
        if grad_check is not None:
            self.compared = fields_to_compare(
                grad_check, loss, self.retained, cleared=clear_gradients
            )
        self.generation = session.generation
        self.recorder.key = key

    def _begin_again(self, loss: Field, writer: Any) -> bool:
        """Begin a new record; returns whether as a steady tape: the last one is a variant of its line."""
        past = self._past()
        steady = None if past is None or self.hooks else self._line_with(past)
        if steady is None or not steady.begin(loss, writer):
            # A variant keeps nothing alive any more.
            self._restart(past if steady is None else None)
            return False
        self._forget_replay()
        self._steady = steady
        del self.recorder
        return True

    def _line_with(self, past: Past) -> Steady | None:
        """Return the steady tapes of this line, with this recording among them, if it is one for them."""
        recorder, loss = self.recorder, self.loss
        key, line, repeated = recorder.key, recorder.line, recorder.repeated
        if key is None or not recorder.is_usual or recorder.intercepts:
            return None
        if session.options.kernel_profiler:  # each adjoint is measured
            return None
        # A line's first recording may be its only one.
        if repeated.__class__ is not Rewriting and line is None and key not in MAY_WAIT:
            return None
        variant = Variant.of(past, loss)
        if variant is None or not past.weaken(key):
            return None
        variant.is_held = False
        line = line or Steady(key, loss, variant)
        if not line.add(variant, hit=repeated is not None):
            give_up(key)
        line.wait(for_next=False)
        return line

    def _restart(self, past: Past | None) -> None:
        """Begin a new record, which may repeat this one."""
        self.recorder.restart(past)
        self._forget_replay()

    def __del__(self) -> None:
        # The next tape that this line of the program makes goes on where this one ended.
        steady = self._steady
        if steady is not None:
            if steady.stage != BEGUN and not sys.is_finalizing():
                steady.wait()
            return
        recorder = vars(self).get("recorder")  # without one, if its arguments were refused
        if recorder is None or recorder.key is None or sys.is_finalizing():
            return
        past = self._past()
        steady = self._line_with(past) if past is not None else None
        if steady is None and (steady := recorder.line) is None:
            if past is not None:
                keep(recorder.key, past, hit=recorder.repeated is not None)
        else:
            steady.wait()

    def __repr__(self) -> str:
        loss = "" if self.loss is None else f" of {self.loss.name}"
        now = "recording, " if session.tape is self.recorder else ""
        count = self.stats().entries
        return f"<tape{loss}: {now}{count} {'entry' if count == 1 else 'entries'}>"

    # ---- recording

    def __getattr__(self, name: str) -> Any:
        if name == "recorder" and (steady := self._steady) is not None:
            self._steady, self.generation = None, steady.generation
            self.recorder = steady.unfolded
            return self.recorder
        raise no_attribute("a tape", name, dir(type(self)), peer_names.OF_TAPES.get(name, ""))

    def __enter__(self) -> Tape:
        try:
            self._begin()
        except UserError as error:
            error.leave_package()
            raise
        return self

    def _begin(self) -> None:
        # Only the innermost recorder hears of a launch: the outer record would have a gap.
        if session.recorders and session.tape is not None:
            raise AutodiffError(
                f"{session.tape.work.words} already, and tapes cannot be nested",
                Span.of_caller(),
                hint=f"begin the tape {session.tape.work.outside}",
            )
        loss, steady = self.loss, self._steady
        if loss is not None:
            writer = statement(2)
            if steady is not None and steady.begin(loss, writer):
                if self._has_begun:
                    self._forget_replay()
                self._has_begun = True
                return
            if self._has_begun and self._begin_again(loss, writer):
                return
            self._clear(loss, writer)
        # Another block of a tape without a loss goes on with its record.
        elif steady is not None and not self._has_begun and steady.begin(None, None):
            self._has_begun = True
            return
        recorder = self.recorder
        if self.compared:
            recorder.snapshot = StartSnapshot()
        self._has_begun = True
        self._replay = self._known = None
        self.complete = False
        if recorder.is_fresh:
            self.generation = session.generation
            # Of the session that the block is in: the tape may have been made before.
            lifted = session.lifts_rules
            saving = lifted if self.in_place is None else self.in_place == "save"
            if lifted or saving or recorder.lifting or recorder.saving or self.compared:
                recorder.keep(saving=saving, lifting=lifted)
        recorder.begin()

    def _clear(self, loss: Field, writer: Any) -> None:
        """Clear the loss and the gradients, as at the start of a run with a loss."""
        # A tape with a loss is one run, from cleared gradients; a tape without one goes on with its
        # record.
        if self.clear_gradients:
            # Clearing here would take away gradients that another thread is adding up
            # (docs/adr/0017).
            if (session.passes or session.witnesses) and session.others_use_gradients():
                raise AutodiffError(
                    "this tape would set all gradients to 0, while another thread records a tape or runs "
                    "its backward pass",
                    Span.of_caller(),
                    hint="give the tapes of threads clear_gradients=False, or no loss (tape.zero(), "
                    "tape.backward(loss))",
                )
            clear_gradients()
        set_number(loss, 0, writer)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            steady = self._steady
            loss = self.loss
            if steady is None or error is not None or not steady.end(with_loss=loss is not None):
                self._end(error)
            elif loss is not None:
                self._differentiate_steady(steady, loss)
            else:
                self.complete, self._known = True, steady.known
        except UserError as problem:
            problem.leave_package()
            raise

    def _end(self, error: Any) -> None:
        # Ends first, also after an error: nothing must be recorded outside the block.
        whole = self.recorder.end(failed=error is not None)
        # The user's exception goes on; a record that stops half-way is not differentiated.
        if error is not None:
            return
        # `ds.init` frees the fields' memory, so the entries refer to what is no longer there.
        if not whole:
            self.recorder.record = Record()
            raise session_reset()
        self.complete = True
        repetition = self.recorder.repeated
        if repetition is not None:
            self._repeat(repetition)
        if self.loss is not None:
            self._differentiate(self.loss, None)
            if self.compared:
                self.compare()

    def _repeat(self, repetition: Repetition | Rewriting) -> None:
        """Use for the backward pass what there is of the last recording, which this one has repeated."""
        record, past = self.recorder.record, repetition.past
        if isinstance(past.known, Known) and not (repetition.differs and past.known.by_arguments):
            self._known = past.known
        if isinstance(repetition, Rewriting):
            return
        # Hooks and retained gradients look at each adjoint by itself.
        if self.retained or self.hooks or not past.is_native:
            record.date(repetition.start)
            return
        self._replay = Replay.of_repetition(repetition, record, self.generation)

    def _append(self, entry: Entry) -> None:
        self.recorder.append(entry)

    def record_func(self, backward: Callable[[], Any], arrays: Sequence[Field]) -> None:
        """Record a function that the backward pass calls at this place.

        Args:
            backward: called without arguments; it reads and adds to gradients.
            arrays: the fields and arrays whose gradients it uses, for `tape.zero()` and
                `tape.gradients`.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))

            def backward():  # of y = sin(x), which NumPy computes below
                x.grad.from_numpy(x.grad.to_numpy() + y.grad.to_numpy() * np.cos(x.to_numpy()))

            with ds.Tape() as tape:
                with ds.ad.no_grad():
                    y.from_numpy(np.sin(x.to_numpy()))
                tape.record_func(backward, [x, y])
            tape.backward(grads={y: 1.0})
            print(x.grad[0])  # prints: 1.0
        """
        need_function(backward, "backward", "give one that adds to the gradients")
        check_runs(backward, "the function", ())
        # Which gradients the function changes cannot be found out, and `tape.zero()` must know.
        fields: Sequence[Any] = arrays if isinstance(arrays, (list, tuple)) else [arrays]
        if any(not isinstance(f, (Field, np.ndarray)) for f in fields):
            problem = f"arrays is a list of fields and arrays, not {shown(arrays)}"
            raise ArgumentError(
                problem, Span.of_caller(), "write tape.record_func(backward, [x, y])"
            )
        name = str(getattr(backward, "__name__", "function"))
        self.recorder.append(Replaced(backward, [], tuple(fields), name=name))

    def on_backward(self, hook: Hook) -> Hook:
        """Call a function after the adjoint of each launch, last launch first; also a decorator.

        Args:
            hook: `hook(step, grads)`: the number of the launch on the tape, from 0, and a dictionary
                from the fields that it read to their gradients so far. What the hook does to them
                (clip, set to 0) is what the earlier launches see.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape() as tape:
                square()

            @tape.on_backward
            def clip(step, grads):
                for gradient in grads.values():
                    gradient.from_numpy(np.clip(gradient.to_numpy(), -5.0, 5.0))

            tape.backward(y)
            print(x.grad[None])  # prints: 5.0
        """
        need_function(hook, "the hook", "give one of two parameters: def hook(step, grads): ...")
        check_runs(hook, "the hook", ("step", "grads"))
        _ = self.recorder  # a steady tape looks at no adjoint: it unfolds
        self.hooks = (*self.hooks, hook)
        return hook

    # ---- replays

    def replay(self, **arguments: Any) -> None:
        """Run everything recorded again, in order, from what the fields hold now.

        Random numbers, what Python wrote to fields, and arguments passed by value are as recorded, but for
        those named here: `tape.replay(rate=0.1)`. A tape
        with a loss sets it (and the gradients) to 0 first, as on entry. `tape.backward()` after it gives
        the gradients of this run. Both run as native code, on a GPU as graphs, without Python between the
        launches.

        Args:
            arguments: numbers, vectors or matrices of floats, by the names of the kernels' parameters;
                they count in this replay alone, in all launches of kernels with such a parameter.

        Raises:
            AutodiffError: nothing was recorded, `ds.init` was called since, a kernel uses other
                fields now; the tape holds what cannot run without Python (see docs/replay.md); no
                launch has such an argument, or the launches had different ones.
            KernelStateError: a number that was compiled in has changed.
            CheckError: a check in a kernel (`debug=True`) failed.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape(y) as tape:
                square()
            x[None] = 5.0
            tape.replay()
            tape.backward()
            print(y[None], x.grad[None])  # prints: 25.0 10.0
        """
        replay = self._checked_replay("replay", arguments)
        # After all checks: a refused replay leaves gradients and loss as they were.
        self._inputs.write(arguments)
        if self.loss is not None:
            self._clear(self.loss, statement(1))
        self._replay, clock = replay, session.clock
        replay.forward()
        if session.options.kernel_profiler:
            self._passes = (*self._passes, (clock, session.clock))
        # The fields are now as at the end of the block, of this run.
        self.recorder.integrity.ended_at = session.clock

    def _checked_replay(self, aim: str, arguments: Iterable[str] = ()) -> Replay:
        """Return the record compiled, with these arguments as inputs, if it can be run again now."""
        recorder = self.recorder
        looking = recorder.validating or bool(recorder.checking_nan)
        check_repeatable(
            self.entries, recorder.integrity, aim, whole=self.complete, looking=looking
        )
        if arguments:
            self._add_inputs(arguments)
        replay = self._replay
        # Compiled at the first use, and again only after something was recorded in between.
        if replay is None or not replay.complete:
            replay = Replay(self.entries, self.generation, all_written(self.entries.firsts()))
        replay.check()
        check_kernels(self.entries)
        return replay

    def save(self, filename: str) -> None:
        """Write the tape to a file, for `ds.load_tape` in another process or on another machine.

        The file holds the recorded launches and their adjoints, and what the fields hold now.

        Args:
            filename: where; a file that is there is replaced when all is written.

        Raises:
            AutodiffError: the tape cannot be replayed (see `replay`), or holds text for LLVM.
            ArgumentError: the file cannot be written; one that was there stays as it was.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape(y) as tape:
                square()
            tape.save("square.tape")

            loaded = ds.load_tape("square.tape")
            loaded.fields["x"][None] = 5.0
            loaded.replay()
            print(loaded.loss[None])  # prints: 25.0
        """
        need_path(filename, "the filename")
        replay = self._checked_replay("save")
        # What has no gradient is refused here and not where the file is loaded.
        self._check_program()
        save_tape(filename, replay, self.loss, self._inputs)

    def _add_inputs(self, names: Iterable[str]) -> None:
        """Make arguments of the record inputs of its replays."""
        record = self._inputs.add(names, self.entries)
        if record is not self.entries:
            self.recorder.record, self._replay, self._known = record, None, None

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

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape() as tape:
                square()
            tape.backward(y)
            print(x.grad[None])  # prints: 6.0
            tape.zero()
            tape.backward(grads={y: 0.5})
            print(x.grad[None])  # prints: 3.0
        """
        steady = self._steady
        if steady is not None and self.loss is None and grads is None and steady.is_ready(loss):
            assert loss is not None
            steady.writer = statement(1)
            self._differentiate_steady(steady, loss)
        else:
            self._differentiate(loss, grads)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `copy`, `deepcopy` and `pickle`."""
        raise refuse(
            "a tape",
            "it knows the launches of this process",
            "record what it holds on another tape",
        )

    # ---- gradients

    @property
    def gradients(self) -> dict[Field, Field]:
        """For each field on the tape that has one, its gradient.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            tape.backward(grads={y: 2.0})
            print(tape.gradients[x][0])  # prints: 2.0
        """
        # First launches are enough: all plain launches of a kernel use the same fields.
        found = fields_of(self.entries.firsts())
        return {f: f.grad for f in found if f.grad is not None and f.kind != "argument"}

    def zero(self) -> None:
        """Set all gradients on the tape to 0.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            tape.backward(grads={y: 2.0})
            tape.zero()
            print(x.grad[0])  # prints: 0.0
        """
        steady = self._steady
        if steady is not None and steady.zero():
            return
        for adjoint in self._adjoints():
            adjoint.clear()

    def reset(self) -> None:
        """Forget what was recorded, and set the gradients to 0.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            tape.reset()
            print(tape.stats().entries)  # prints: 0
        """
        self.zero()
        self._restart(self._past())

    def stats(self) -> TapeStats:
        """Count what the tape holds.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            print(tape.stats().entries, tape.stats().saved_bytes)  # prints: 1 0
        """
        return stats_of(self.recorder, self._passes)
