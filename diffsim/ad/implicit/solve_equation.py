"""An equation that is solved as one entry of a program, and its adjoint.

Along F(x, p) = 0 the solution moves with p so that J dx = -F_p dp. With the gradient g of x: J^T y = g, and p
receives -F_p^T y, which is a backward pass of the function with -y as the gradient of what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from diffsim.ad.enclosing_recorder import EnclosingRecorder, enclosing_recorder
from diffsim.ad.implicit.equation import Equation
from diffsim.ad.implicit.one_entry import (
    Solve,
    add_gradient,
    need_gradient,
    set_components,
    set_result,
    take_gradient,
)
from diffsim.ad.implicit.solvers import Options
from diffsim.ad.implicit.tangents import forward_recorder, solve_with_tangents
from diffsim.ad.record.elements import Box
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.step_trace import StepTrace
from diffsim.ad.rollout_recorders import CarryRecorder
from diffsim.errors import KEEP, AutodiffError, FieldError, GlobalDataAccessError, Span
from diffsim.runtime.fields.adjoints import lend_adjoint
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

Find = Callable[[], np.ndarray]
"""Returns the solution; the fields are as before when it has returned."""


class _FunctionRecorder(CarryRecorder):
    """Notes what one run of the function reads and writes; it must begin anew each time."""

    def missing(self, f: Field, span: Span | None) -> AutodiffError:
        return AutodiffError(
            f"the function of a solve reads {f.name} before it writes to it: what an earlier run has left "
            "there would count",
            span,
            hint=f"set all of {f.name} at its start ({f.name}.fill(0), or a loop that stores every element)",
        )


class EquationSolve(Solve):
    """One call that solves an equation.

    Attributes:
        find: computes the solution.
        inputs: what the function read besides the unknown, with the first to read it.
        written: what it writes, the unknown excepted.
        trace: what its run at the solution did, as a number (`StepTrace`).
    """

    def __init__(self, equation: Equation, find: Find, options: Options) -> None:
        self.name = options.name
        self.out = equation.x
        self.equation = equation
        self.find = find
        self.options = options
        self.inputs: dict[Box, Span | None] = {}
        self.reads = []
        self.written = []
        self.solution = np.zeros(0)
        self.now = self.launches = self.trace = 0

    # ---- forward

    def run(self, params: Sequence[Field] | None) -> None:
        """Solve, and append an entry to the tape, if there is one."""
        forward = forward_recorder(self.options.name)
        if forward is not None:
            solve_with_tangents(self, forward)
            self._check_params(params)
            return
        outer, x = enclosing_recorder(), self.equation.x
        with without_tape():
            self.solution = self.find()
        set_result(x, self.solution, ())
        self.launches = session.launches
        if outer is None:
            self.run_function()
        else:
            self.run_on(outer)
        if outer is None:
            return
        self._check_params(params)
        self.reads = list(dict.fromkeys(f for f, _ in self.inputs))
        need_gradient(outer, self.name, self.reads, x)
        if self.equation.minus not in (None, x):
            assert self.equation.minus is not None
            need_gradient(outer, self.name, [self.equation.minus], x)
        outer.will_need(self.inputs)
        self.append_to(outer)

    @property
    def needed(self) -> Iterable[Box]:
        return self.inputs

    @property
    def held_bytes(self) -> int:
        return self.solution.nbytes

    def run_on(self, outer: EnclosingRecorder) -> None:
        """Run the function at the solution, and note what it reads and writes."""
        x, minus = self.equation.x, self.equation.minus
        recorder = _FunctionRecorder(outer, {x})
        recorder.next_step()
        before, session.tape = session.tape, recorder
        try:
            self.run_function()
        except BaseException:
            outer.cut_short(self.options.name, Span.of_caller())
            raise
        finally:
            if session.tape is recorder:
                session.tape = before
        self.inputs, self.alive = recorder.inputs, recorder.alive
        self.trace = recorder.trace.number
        if minus is not None and minus is not x:
            self.inputs.setdefault((minus, None), self.options.where)
        self.written = [f for f in recorder.written if f is not x]
        self.now = session.clock

    def run_function(self) -> None:
        """Run the function for what the program sees of it."""
        x, y = self.equation.x, self.equation.y
        latest = x.versions.latest
        self.equation.run()
        if x is y:
            # It has made the next iterate, which is the same but for the last digits.
            set_components(x, self.solution)
        elif x.versions.latest != latest:
            raise AutodiffError(
                f"the function given to {self.options.name} changes {x.name}, which it is solved for",
                self.options.where,
                hint=f"let it compute {y.name} from {x.name}, and change nothing else that it reads",
            )

    def again(self) -> None:
        with without_tape():
            found = self.find()
        set_components(self.equation.x, found)
        self.run_function()

    def rerun(self) -> None:
        # The same random numbers as in the recorded run.
        launches, session.launches = session.launches, self.launches
        try:
            with without_tape():
                self.solution = self.find()
            set_result(self.equation.x, self.solution, ())
            self._check_function("a replay would solve")
        finally:
            session.launches = launches

    def date(self, now: int) -> None:
        self.now = now

    def _check_params(self, params: Sequence[Field] | None) -> None:
        read = {f for f, _ in self.inputs}
        for f in params or ():
            if f not in read:
                raise AutodiffError(
                    f"{f.name} is given as a parameter of {self.options.name}, and the function does not "
                    "read it",
                    self.options.where,
                    hint=f"leave {f.name} out of params, or read it in the function's kernels",
                )

    # ---- backward

    def backward(self) -> None:
        self._run_adjoint(checked=False)

    def reverse(self) -> None:
        self._run_adjoint(checked=True)

    def _run_adjoint(self, *, checked: bool) -> None:
        """Take the gradients of what was written, add to those of what was read.

        Args:
            checked: whether it is known that what was read has not changed.
        """
        x = self.equation.x
        gradient = take_gradient(x)
        others = {f: g for f in self.written if (g := take_gradient(f)) is not None}
        if gradient is None and not others:
            return
        if not checked:
            self._check_inputs()
        final = [Saved((f, None)) for f in (x, *self.written)]
        launches = session.launches
        try:
            set_components(x, self.solution)
            session.launches = self.launches
            self._check_function("its gradient would be that of")
            found = self._gradients(gradient, others)
        finally:
            session.launches = launches
            for saved in final:
                saved.restore()
        for f, g in found.items():
            add_gradient(f, g)

    def _gradients(
        self, gradient: np.ndarray | None, others: dict[Field, np.ndarray]
    ) -> dict[Field, np.ndarray]:
        """Return what to add to the gradients of what was read."""
        equation, x = self.equation, self.equation.x
        params = [f for f in dict.fromkeys(f for f, _ in self.inputs) if f.adjoint is not None]
        total = {f: np.zeros(f.storage.layout.count) for f in params}
        sought = np.zeros(equation.size) if gradient is None else gradient
        # 1. What the program has made of the function's own results, which are those of its last run.
        if others:
            found = equation.pulled_back(others, params)
            sought = sought + found[x]
            for f in params:
                total[f] += found[f]
        if not sought.any():
            return total
        # 2. The transposed solve.
        with equation.linearized() as at:
            adjoint = at.solver(self.options).solve(sought, transposed=True)
        # 3. Into what the function read.
        found = equation.pulled_back({equation.y: -adjoint}, params)
        for f in params:
            total[f] += found[f]
        if equation.minus in total and equation.minus is not x:
            assert equation.minus is not None
            total[equation.minus] += adjoint
        return total

    def _check_function(self, consequence: str) -> None:
        """Run the function at the solution, and refuse what it computes if it is not what was solved.

        Python variables that it looks at (the counter of a loop) may have moved on since.
        """
        launches, before = session.launches, session.tape
        trace = session.tape = StepTrace()
        try:
            self.run_function()
        finally:
            session.tape, session.launches = before, launches
        if trace.number != self.trace:
            name = self.options.name
            raise AutodiffError(
                f"the function given to {name} launches other kernels, or with other arguments, than when "
                f"{name} was called: {consequence} another equation",
                self.options.where,
                hint="Python looks up variables of a function when it runs: bind those that change, such as "
                "the counter of a loop: def residual(t=t): ...",
            )

    def _check_inputs(self) -> None:
        """Refuse the gradient if what the function read has changed since."""
        for (f, row), span in self.inputs.items():
            if f.versions.changed(row, self.now):
                who, place = f.versions.written_by(row)
                shown = "" if place is None else "\n" + place.text()
                raise GlobalDataAccessError(
                    f"the gradient of {self.options.name} needs {f.name} as it was, and {who} has changed it "
                    f"since{shown}\n  read here:",
                    span,
                    hint=f"keep {f.name}, give it an axis for time, or save it: "
                    'ds.Tape(loss, in_place="save")',
                    narrower=KEEP,
                ).advising(switch=not session.options.lifts_rules)


@contextmanager
def without_tape() -> Iterator[None]:
    """Run what no tape is to know of: it leaves all fields as they were."""
    tape, session.tape = session.tape, None
    try:
        yield
    finally:
        session.tape = tape


def check_unknown(name: str, role: str, f: object, hint: str) -> Field:
    """Return a field of floats with a gradient, which derivatives by it, or of it, go through."""
    where = Span.of_caller()
    if not isinstance(f, Field):
        raise FieldError(f"{role} of {name} is a field", where, hint)
    if not f.dtype.is_float or f.dtype.for_storage or f.is_grad:
        what = "a gradient" if f.is_grad else f"of {f.dtype}"
        raise FieldError(
            f"{role} of {name} is a field of f32 or f64, and {f.name} is {what}",
            where,
            hint="use a field of ds.f64 or ds.f32",
        )
    if f.adjoint is None and not (session.lifts_rules and lend_adjoint(f)):
        raise FieldError(
            f"{role} of {name} is a field with a gradient, and {f.name} has none",
            where,
            hint="declare it with needs_grad=True",
        )
    return f


def check_sizes(fields: Iterable[Field], what: str) -> None:
    """Refuse fields that do not have the same number of components."""
    first, *others = fields
    for f in others:
        sizes = [int(g.storage.layout.count) for g in (first, f)]
        if sizes[0] != sizes[1]:
            raise FieldError(
                f"{first.name} has {sizes[0]} numbers, and {f.name} {sizes[1]}",
                Span.of_caller(),
                hint=what,
            )
