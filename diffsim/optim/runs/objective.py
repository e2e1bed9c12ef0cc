"""A program that computes a loss, as a function from its parameters to a number and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from diffsim.ad.reverse.seeds import check_loss
from diffsim.ad.tape import Tape
from diffsim.errors import ArgumentError, AutodiffError, FieldError, KernelStateError, Span
from diffsim.lang.host.signatures import need_bool, need_function
from diffsim.lang.host.source import check_runs
from diffsim.optim.runs.repeatable import Repeatable
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.session import session
from diffsim.runtime.threads import members


class Objective:
    """A program with its loss and its parameters.

    Args:
        program: launches kernels; called without arguments.
        loss: a field of a single element, set to 0 before each call. If left out, what the program returns:
            such a field, which is set to 0 too, or the number that a kernel returned.
        fields: the parameters, by name.
        replay: run the launches of the first call again in place of calling the program each time; None:
            where the program is proved to launch the same each time.
    """

    def __init__(
        self,
        program: Callable[[], Any],
        loss: Field | None,
        fields: Mapping[str, Field],
        *,
        replay: bool | None = None,
    ) -> None:
        need_function(program, "program", "give one that launches kernels and returns the loss")
        check_runs(program, "the program", ())
        if replay is not None:
            need_bool(replay, "replay")
        self.program = program
        self.fields = fields
        self._loss = loss
        self._returns = loss is None
        self._replays = replay
        self._proof: Repeatable | None = None
        self._tape: Tape | None = None
        if loss is not None:
            check_loss(loss)
            self._tape = Tape(loss, in_place="save")
        self._recorded = False

    def evaluate(self) -> float:
        """Run the program; return the loss, and leave the gradients in the fields.

        Raises:
            AutodiffError: and its kind: a gradient cannot be given.
            ArgumentError: there is no loss, or the program writes to a parameter.
        """
        if session.tape is not None:
            raise AutodiffError(
                f"{session.tape.work.words}, and the program is recorded on a tape of its own",
                Span.of_caller(),
                hint=f"train {session.tape.work.outside}",
            )
        clock = session.clock
        found = self._again() if self._recorded and self._may_replay() else None
        if found is None:
            found = self._record()
        self._check_parameters(clock)
        return found

    def _may_replay(self) -> bool:
        """Whether the last recording is what the program would do now."""
        if self._replays is None:
            self._proof = self._prove()
            self._replays = self._proof is not None
        if self._proof is not None and not self._proof.holds():
            # Something that it reads is another object now: it is recorded, and proved anew.
            self._replays, self._proof, self._recorded = None, None, False
            return False
        return self._replays

    def _prove(self) -> Repeatable | None:
        """Return the proof that the program launches the same each time; None: there is none."""
        options = session.options
        assert self._tape is not None
        specials = [getattr(e, "special", None) for e in self._tape.entries.firsts()]
        # A replay draws the same random numbers again, and looks at launches less closely.
        draws = any(s is not None and s.translation.uses_random for s in specials)
        if draws or options.debug or options.check_nan or options.kernel_profiler:
            return None
        try:
            return Repeatable(self.program)
        except ValueError:
            return None

    def _again(self) -> float | None:
        """Replay the last recording, with its gradients; None: it cannot be replayed."""
        assert self._tape is not None
        try:
            self._tape.replay()
        except (AutodiffError, KernelStateError):
            self._replays = False
            return None
        self._tape.backward()
        return self._value(self._tape.loss)

    def _record(self) -> float:
        if self._tape is None:
            return self._find_loss()
        with self._tape:
            returned = self.program()
        if self._returns and returned is not self._tape.loss:
            self._tape = None  # another loss each time
            raise FieldError(
                "the program returned another field than before, and a loss is always the same one",
                Span.of_caller(),
                hint="make the field of the loss once, outside the program",
            )
        self._recorded = True
        return self._value(self._tape.loss)

    def _find_loss(self) -> float:
        """Run a program that returns its loss, and which field that is is not known yet."""
        # Programs add to their loss, so that it should be 0 before; for this run it is too late to know.
        held = {f: f for f in members(session.with_grad) if _is_number(f) and self._value(f) != 0}
        launches = session.launches
        tape = Tape(in_place="save")
        for f in members(session.with_grad):
            f.adjoint.clear()
        with tape:
            loss = self.program()
        if isinstance(loss, Recorded):
            tape.backward(loss)
            return float(loss.value)
        if loss is None:
            raise ArgumentError(
                "the program returns nothing, and no loss is named",
                Span.of_caller(),
                hint="return the field of the loss, or name it: loss=loss",
            )
        check_loss(loss)
        if loss in held:
            session.launches = launches
            self._tape = Tape(loss, in_place="save")
            return self._record()
        tape.backward(loss)
        self._tape = Tape(loss, in_place="save")
        return self._value(loss)

    @property
    def loss(self) -> Field | None:
        """The field of the loss; None: it is not known yet, or none."""
        return None if self._tape is None else self._tape.loss

    @staticmethod
    def _value(loss: Field | None) -> float:
        assert loss is not None
        return float(loss.to_numpy().item())

    def _check_parameters(self, clock: int) -> None:
        """Refuse a program that writes to a parameter: its gradient is by the value of before."""
        for key, f in self.fields.items():
            if f.versions.latest > clock:
                raise FieldError(
                    f"the program writes to {f.name} (parameter {key}), which would lose the value that its "
                    "gradient is of",
                    Span.of_caller(),
                    hint="let the program copy it into another field first, and go on with that",
                )

    def explain(self, launches: int) -> None:
        """Run the program once more, to find what made a loss or a gradient that is not finite.

        Args:
            launches: the session's count before the run, from which random numbers are drawn again.

        Raises:
            AutodiffError: it names the operation.
        """
        session.launches = launches
        tape = Tape(in_place="save", check_nan=True)
        for f in members(session.with_grad):
            f.adjoint.clear()
        if not self._returns and self._loss is not None:
            self._loss.fill(0)
        elif self._tape is not None and self._tape.loss is not None:
            self._tape.loss.fill(0)
        with tape:
            returned = self.program()
        tape.backward(returned if self._loss is None else self._loss)


def _is_number(f: Field) -> bool:
    return not f.element and math.prod(f.shape) == 1
