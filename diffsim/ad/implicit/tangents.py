"""Solves in forward mode: the tangent of a solution is one more solve with the same matrix.

A x = b        A dx = db - dA x
F(x, p) = 0    J dx = -F_p dp, where the function's own kernels compute F_p dp with x held
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diffsim.ad.implicit.matrices import Matrix
from diffsim.ad.implicit.one_entry import no_tangent, put_result
from diffsim.ad.implicit.solvers import Solver
from diffsim.ad.record.elements import values_of
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.snapshot import StartSnapshot
from diffsim.ad.tangent_recorder import TangentRecorder, tangents_are_wanted
from diffsim.ad.tape import Tape
from diffsim.errors import Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.ad.implicit.solve_equation import EquationSolve


def forward_recorder(name: str) -> TangentRecorder | None:
    """Return the recorder of forward mode, if its block is what runs; refuse second derivatives."""
    recorder: object = session.tape
    if isinstance(recorder, TangentRecorder):
        return recorder
    if tangents_are_wanted():
        raise no_tangent(name)
    return None


def tangents_of(f: Field | None, width: int) -> np.ndarray | None:
    """Return the tangents of all components of a field, a row for each, in f64; None: they are 0."""
    dual = None if f is None else f.duals.get(width)
    if f is None or dual is None or not dual.versions.dirty:
        return None
    found = np.array(values_of(dual), np.float64)
    if width > 1:
        found = np.moveaxis(found, len(f.shape), 0)
    found = found.reshape(width, -1)
    return found if found.any() else None


def solved_rows(solver: Solver, right: np.ndarray) -> np.ndarray:
    """Solve for each row."""
    return np.array([solver.solve(r) if r.any() else r for r in right])


# ---- linear systems


def linear_tangents(
    matrix: Matrix, solver: Solver, b: Field, x: np.ndarray, width: int
) -> np.ndarray:
    """Return the tangents of x = A^-1 b."""
    right = np.zeros((width, matrix.size))
    if (db := tangents_of(b, width)) is not None:
        right += db
    entries = tangents_of(matrix.values, width)
    for k, numbers in enumerate([] if entries is None else entries):
        right[k] -= Matrix(matrix.size, None, numbers, matrix.places).apply(x)
    return solved_rows(solver, right)


# ---- equations


def solve_with_tangents(solve: EquationSolve, recorder: TangentRecorder) -> None:
    """Solve an equation, and give the solution and what its function computes there their tangents."""
    x, y = solve.equation.x, solve.equation.y
    before, session.tape = session.tape, None
    try:
        solve.solution = solve.find()
        put_result(x, solve.solution)
        with solve.equation.linearized() as at:
            _check_beginning(solve, at.start)
            # What Python sets in the function is a constant, as on a tape.
            for f in at.start.saved:
                recorder.uses_all_of(f)
            recorder.solved(x, (), None)
            partial = _with_x_held(solve, at.start, recorder)
            moved = partial.any()
            rows = solved_rows(at.solver(solve.options), -partial) if moved else partial
    finally:
        if session.tape is None:
            session.tape = before
    recorder.solved(x, (), rows)
    try:
        solve.run_function()
    except BaseException:
        recorder.cut_short(solve.options.name, Span.of_caller())
        raise
    if x is y:  # of which the function has made the next iterate
        recorder.solved(x, (), rows)


def _check_beginning(solve: EquationSolve, start: StartSnapshot) -> None:
    """Refuse a function that goes on from what an earlier run has left, as a tape does."""
    with start.again():
        solve.run_on(Tape().recorder)


def _with_x_held(
    solve: EquationSolve, start: StartSnapshot, recorder: TangentRecorder
) -> np.ndarray:
    """Return the tangents of F where x has none; all fields are as before."""
    equation, width = solve.equation, recorder.tangents
    with start.again():
        kept = [Saved((f.duals[width], None)) for f in start.saved if width in f.duals]
        session.tape = recorder
        try:
            equation.run()
            found = tangents_of(equation.y, width)
        finally:
            session.tape = None
            for f in start.saved:
                if width in f.duals:
                    f.duals[width].clear()  # one that was lent on the way
            for saved in kept:
                saved.restore()
                saved.box[0].versions.may_be_nonzero()
    right = np.zeros((width, equation.size)) if found is None else found
    known = None if equation.minus is equation.x else tangents_of(equation.minus, width)
    return right if known is None else right - known
