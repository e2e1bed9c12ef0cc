"""`ds.ad.implicit_root` and `ds.ad.fixed_point`: solutions of equations that kernels compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from diffsim.ad.implicit.equation import Equation
from diffsim.ad.implicit.iterations import by_hand, iterate, newton
from diffsim.ad.implicit.solve_equation import EquationSolve, check_sizes, check_unknown
from diffsim.ad.implicit.solvers import checked_options
from diffsim.ad.implicit.tangents import forward_recorder
from diffsim.errors import ArgumentError, FieldError
from diffsim.lang.host.signatures import checked, is_one_of, need_function
from diffsim.lang.host.source import check_runs
from diffsim.runtime.fields.field import Field


@checked
def implicit_root(
    residual: Callable[[], Any],
    unknown: Field,
    output: Field,
    *,
    params: Sequence[Field] | None = None,
    solver: Callable[[], Any] | None = None,
    method: str | None = None,
    symmetric: bool = False,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    preconditioner: Any = None,
) -> None:
    """Solve F(x, p) = 0 for x; on a tape one entry, whose adjoint is a solve with the transposed Jacobian.

    Args:
        residual: a function without parameters that launches kernels: it computes `output`, which is set to
            0 before, from `unknown` and from any other fields. These get their gradients.
        unknown: the field x; Newton's method begins at what it holds.
        output: the field of F, with as many components.
        params: fields that the residual reads, if that is to be tested.
        solver: a function that sets `unknown` to a solution, in place of Newton's method. Its
            result is tested by the residual; whatever else it writes is put back.
        method: how systems with the Jacobian are solved: "lu" (coloured passes and a factorisation; if
            left out), or "cg", "bicgstab" and "gmres", which need no Jacobian but products with it.
        symmetric: whether the Jacobian is symmetric, as that of a gradient is.
        tolerance: how far Newton's last step may go, relative to x (1e-10; 1e-5 in f32); of a `solver`
            how far the next one would go (1e-6, 1e-3).
        max_iterations: steps of Newton's method (50).
        preconditioner: of Krylov methods: a function that returns an approximate solution of J z = r.

    Raises:
        SolveError: no convergence, a singular Jacobian.
        ArgumentError: fields that do not fit.
        AutodiffError: and its kind, in lines of the residual that have no gradient; later, what it read has
            changed.

    Example:
        c, x, F = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
        c[None], x[None] = 9.0, 1.0

        @ds.kernel
        def residual():
            F[None] = x[None] ** 2 - c[None]

        with ds.Tape() as tape:
            ds.ad.implicit_root(residual, x, F)
        tape.backward(grads={x: 1.0})
        print(round(x[None], 6), round(c.grad[None], 6))  # prints: 3.0 0.166667
    """
    name = "implicit_root"
    options = checked_options(name, method, symmetric, tolerance, max_iterations, preconditioner)
    _check_function(residual, "the residual", name)
    hint = "write ds.ad.implicit_root(residual, unknown=x, output=r)"
    check_unknown(name, "unknown", unknown, hint)
    check_unknown(name, "output", output, hint)
    if unknown is output:
        raise FieldError(
            f"unknown and output of {name} are the same field, {unknown.name}", options.where, hint
        )
    check_sizes((unknown, output), "a residual has one number for each unknown")
    equation = Equation(residual, unknown, output)
    most = options.most or 50
    if solver is None:
        EquationSolve(
            equation, lambda: newton(equation, options, most), options.of_linear_solves()
        ).run(params)
        return
    _check_function(solver, "the solver", name)
    given = solver
    EquationSolve(
        equation, lambda: by_hand(equation, options, given), options.of_linear_solves()
    ).run(params)


@checked
def fixed_point(
    step: Callable[[], Any],
    unknown: Field,
    output: Field | None = None,
    *,
    params: Sequence[Field] | None = None,
    iteration: str = "repeat",
    method: str | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    preconditioner: Any = None,
) -> None:
    """Find x = g(x, p); on a tape one entry, whose adjoint solves (1 - dg/dx)^T y = x.grad.

    Args:
        step: a function without parameters that launches kernels: it computes `output` from `unknown`
            and from any other fields. These get their gradients.
        unknown: the field x; the iteration begins at what it holds.
        output: the field of g(x), set to 0 before each step; if left out the step changes `unknown`
            itself.
        params: fields that the step reads, if that is to be tested.
        iteration: "repeat": x = g(x) until it stays; "newton": Newton's method on g(x) - x.
        method: how the adjoint (and Newton's method) solves: "gmres" (if left out), "bicgstab", "cg" or
            "lu".
        tolerance: how far the last iteration may go, relative to x (1e-12; 1e-6 in f32).
        max_iterations: (10000; 50 for Newton's method).
        preconditioner: as in `implicit_root`.

    Raises:
        SolveError: no convergence; the fixed point is not isolated.
        ArgumentError: fields that do not fit.
        AutodiffError: and its kind, as in `implicit_root`.

    Example:
        c, x, g = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
        c[None], x[None] = 9.0, 1.0

        @ds.kernel
        def newton():  # for the root of c
            g[None] = 0.5 * (x[None] + c[None] / x[None])

        with ds.Tape() as tape:
            ds.ad.fixed_point(newton, x, g)
        tape.backward(grads={x: 1.0})
        print(round(x[None], 6), round(c.grad[None], 6))  # prints: 3.0 0.166667
    """
    name = "fixed_point"
    options = checked_options(name, method, False, tolerance, max_iterations, preconditioner)
    _check_function(step, "the step", name)
    if not is_one_of(iteration, "repeat", "newton"):
        raise ArgumentError(
            "iteration of fixed_point is another one",
            options.where,
            hint='it is "repeat" or "newton"',
        )
    hint = "write ds.ad.fixed_point(step, unknown=x, output=y)"
    out = unknown if output is None else output
    check_unknown(name, "unknown", unknown, hint)
    check_unknown(name, "output", out, hint)
    check_sizes((unknown, out), "a step makes one number for each unknown")
    equation = Equation(step, unknown, out, minus=unknown)
    inner = options.of_linear_solves()
    if inner.method is None:
        inner = replace(inner, method="gmres")
    if iteration == "newton":
        most = options.most or 50
        EquationSolve(
            equation, lambda: newton(equation, replace(options, method=inner.method), most), inner
        ).run(params)
        return
    most = options.most or 10000
    if tolerance is None:
        options = replace(options, tolerance=1e-6 if equation.single else 1e-12)
    EquationSolve(equation, lambda: iterate(equation, options, most), inner).run(params)


def _check_function(function: Any, what: str, name: str) -> None:
    need_function(
        function, f"{what} of {name}", "give a function that launches kernels, or a kernel"
    )
    check_runs(function, what, ())
    forward_recorder(name)  # refused for second derivatives
