"""Iterations that solve an equation: Newton's method, fixed points, a solver of the user's.

Each leaves all fields as they were, and returns the solution.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.implicit.equation import Equation, Linearized
from diffsim.ad.implicit.one_entry import components, set_components
from diffsim.ad.implicit.solvers import Options
from diffsim.ad.record.snapshot import StartSnapshot
from diffsim.errors import AutodiffError, SolveError
from diffsim.runtime.fields.field import Field
from diffsim.runtime.poison import written_since
from diffsim.runtime.recorder import NullRecorder
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diffsim.runtime.kernels.specialization import Specialization

_HALVINGS = 40
"""How often a step of Newton's method is halved until the residual falls."""


def newton(equation: Equation, options: Options, most: int) -> np.ndarray:
    """Solve F(x) = 0 by Newton's method from the present x, with steps that let the residual fall."""
    x: np.ndarray = components(equation.x)
    largest = 0.0
    tolerance = _tolerance(equation, options)
    with _as_before(equation.x):
        for _ in range(most):
            with equation.linearized() as at:
                value = _finite(at.value(), options)
                if not value.any():
                    return x
                step = at.solver(options.of_linear_solves()).solve(-value)
                length = float(np.linalg.norm(step))
                largest = max(largest, length)
                scale = max(float(np.linalg.norm(x)), largest)
                # Close to the solution a step squares the error, and rounding may hide that.
                is_last = length <= tolerance * scale
                x = x + (step if length <= 1e-3 * scale else _shortened(at, value, step))
            set_components(equation.x, x)
            if is_last:
                return x
    raise _not_converged(options, "the last step", length / scale, most, tolerance)


def _shortened(at: Linearized, value: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the step or a part of it, so that the residual falls; the step itself if none does."""
    norm = float(np.linalg.norm(value))
    part = 1.0
    for _ in range(_HALVINGS):
        found = float(np.linalg.norm(at.value_at(part * step)))
        if found < (1 - 1e-4 * part) * norm:
            return part * step
        part /= 2
    return step


def iterate(equation: Equation, options: Options, most: int) -> np.ndarray:
    """Solve x = y(x) by computing x anew until it stays."""
    x, tolerance = components(equation.x), _tolerance(equation, options)
    with _private({equation.x}), _as_before(equation.x):
        for _ in range(most):
            set_components(equation.x, x)
            equation.run()
            made = _finite(components(equation.y), options)
            length, scale = float(np.linalg.norm(made - x)), float(np.linalg.norm(made))
            x = made
            if length <= tolerance * scale:
                return x
    raise _not_converged(options, "the last change", length / scale, most, tolerance)


def one_step(equation: Equation, options: Options) -> np.ndarray:
    """Solve A x = b for a function that computes A x, and test that it does."""
    x = equation.x
    with _as_before(x):
        set_components(x, np.zeros(equation.size))
        with equation.linearized() as at:
            start = _finite(at.value(), options)
            found = at.solver(options).solve(-start) if start.any() else 0 * start
            rest = float(np.linalg.norm(at.value_at(found)))
    size = float(np.linalg.norm(start))
    if not rest <= (1e-3 if equation.single else 1e-6) * size:
        raise SolveError(
            f"the function given to {options.name} is not linear in {x.name}: the residual of the solution "
            f"is {rest:.3g}, with a right-hand side of {size:.3g}",
            options.where,
            hint="take ds.ad.implicit_root for equations that are not linear",
        )
    return found


def by_hand(equation: Equation, options: Options, solver: Callable[[], Any]) -> np.ndarray:
    """Let the user's function solve, and test what it found by the step that Newton's method would make."""
    clock = session.clock
    with _as_before(equation.x):
        with _private({equation.x}):
            solver()
            x = components(equation.x)
        changed = next(iter(written_since(clock)), None)
        if changed is not None:
            raise AutodiffError(
                f"the solver given to {options.name} changes a gradient, {changed.name}, that belongs to the "
                "tape",
                options.where,
                hint="let it compute in fields of its own",
            )
        with equation.linearized() as at:
            value = _finite(at.value(), options)
            step = at.solver(options.of_linear_solves()).solve(-value) if value.any() else value
    length, scale = float(np.linalg.norm(step)), float(np.linalg.norm(x))
    tolerance = (
        (1e-3 if equation.single else 1e-6) if options.tolerance is None else options.tolerance
    )
    if not length <= tolerance * max(scale, float(np.finfo(float).tiny)):
        raise SolveError(
            f"the result of the solver given to {options.name} is not a solution: the residual has the norm "
            f"{np.linalg.norm(value):.3g}, and Newton's next step would move {equation.x.name} by "
            f"{length:.3g}, relative to its norm {length / scale if scale else np.inf:.3g}",
            options.where,
            hint="let it iterate longer, or give the tolerance= that is meant, relative to the norm of the "
            "unknown: the gradient has an error of that order",
        )
    return x


def _tolerance(equation: Equation, options: Options) -> float:
    """Return when an unknown stays, relative to its norm."""
    default = 1e-5 if equation.single else 1e-10
    return default if options.tolerance is None else options.tolerance


def _finite(values: np.ndarray, options: Options) -> np.ndarray:
    if not np.isfinite(values).all():
        raise SolveError(
            f"the function given to {options.name} makes NaN or infinity",
            options.where,
            hint="begin closer to the solution; ds.Tape(check_nan=True) finds the line",
        )
    return values


def _not_converged(
    options: Options, what: str, length: float, most: int, tolerance: float
) -> SolveError:
    return SolveError(
        f"{options.name} did not converge: {what} was {length:.3g} of the unknown after {most} iterations, "
        f"and {tolerance:.3g} is wanted",
        options.where,
        hint="begin closer to the solution, or give more iterations (max_iterations=) or a larger tolerance=",
    )


# ---- what leaves no trace


@contextmanager
def _as_before(x: Field) -> Iterator[None]:
    """Put the unknown back at the end."""
    start = StartSnapshot()
    start.note(x)
    try:
        yield
    finally:
        start.saved[x].restore()


class _PrivateRecorder(NullRecorder):
    """Keeps what fields hold before a solver writes to them."""

    intercepts = True

    def __init__(self) -> None:
        self.start = StartSnapshot()

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> None:
        self.start.launching(special, args)

    def writing(self, field: Field, row: int | None) -> None:
        self.start.note(field)


@contextmanager
def _private(results: set[Field]) -> Iterator[None]:
    """Put back at the end whatever the block writes to, the results excepted."""
    recorder, launches = _PrivateRecorder(), session.launches
    before, session.tape = session.tape, recorder
    try:
        yield
    finally:
        if session.tape is recorder:
            session.tape = before
        session.launches = launches
        for f, saved in recorder.start.saved.items():
            if f not in results:
                saved.restore()
