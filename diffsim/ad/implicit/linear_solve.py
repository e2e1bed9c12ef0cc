"""`ds.ad.linear_solve`: the solution of A x = b, whose adjoint is the transposed solve.

With x = A^-1 b and the gradient g of x: A^T y = g, then b receives y, and entry (i, j) of A
receives -y_i x_j. Nothing is said of how x was found, so memory and gradient do not depend on the iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from diffsim.ad.enclosing_recorder import enclosing_recorder
from diffsim.ad.implicit.equation import Equation
from diffsim.ad.implicit.iterations import one_step
from diffsim.ad.implicit.matrices import Matrix, matrix_of
from diffsim.ad.implicit.one_entry import (
    Solve,
    add_gradient,
    components,
    need_gradient,
    put_result,
    set_result,
    take_gradient,
)
from diffsim.ad.implicit.solve_equation import EquationSolve, check_sizes, check_unknown
from diffsim.ad.implicit.solvers import Options, Solver, checked_options
from diffsim.ad.implicit.tangents import forward_recorder, linear_tangents
from diffsim.ad.tangent_recorder import TangentRecorder
from diffsim.errors import FieldError, Span
from diffsim.lang.host.provenance import source_of
from diffsim.lang.host.signatures import checked
from diffsim.lang.host.source import check_runs
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.fields.conversions import array_of
from diffsim.runtime.fields.field import Field


@checked
def linear_solve(
    A: Any,  # noqa: N803 - as in every textbook
    b: Field,
    out: Field,
    *,
    method: str | None = None,
    product: Field | None = None,
    symmetric: bool = False,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    preconditioner: Any = None,
) -> None:
    """Set `out` to the solution x of A x = b; on a tape one entry, whose adjoint is the transposed solve.

    Vectors count with all their components, in the order of `to_numpy`.

    Args:
        A: a square array or a matrix of SciPy, which are constants; a field of n * n numbers; or
            entries from a field in the places of a sparse matrix: `(values, (rows, columns))` or
            `(values, columns, starts)`, as SciPy's `coo_array` and `csr_array` take them. The field of
            values gets its gradient. Or a function without parameters that launches kernels, which
            compute `product`, the matrix times `out`, from `out` and any other fields; these get theirs.
        b: a field of floats; it may be `out` itself.
        out: a field of floats with as many components.
        method: "lu" (a factorisation, used again by the adjoint; for sparse matrices by SciPy), "cg"
            (symmetric and positive definite), "bicgstab" or "gmres". If left out "lu"; of a function "cg"
            if it is symmetric, else "gmres".
        product: where a function A computes A x; set to 0 before.
        symmetric: whether A is symmetric; it is tested.
        tolerance: of Krylov methods: the residual relative to b (1e-12; 1e-6 if `out` is f32).
        max_iterations: of Krylov methods.
        preconditioner: of Krylov methods: "jacobi", or a function that returns an approximate solution
            of A z = r for an array r, or an operator of SciPy.

    Raises:
        SolveError: the matrix is singular, or the iteration does not converge.
        ArgumentError: sizes or types that do not fit.
        MissingPackageError: SciPy is needed and not installed.
        MissingGradientError: `out` has no gradient, and b or the entries have one.

    Example:
        b, x = (ds.field(ds.f64, shape=2, needs_grad=True) for _ in range(2))
        b.from_numpy(np.array([2.0, 8.0]))
        with ds.Tape() as tape:
            ds.ad.linear_solve(np.diag([2.0, 4.0]), b, x)
        tape.backward(grads={x: 1.0})
        print(x.to_numpy(), b.grad.to_numpy())  # prints: [1. 2.] [0.5  0.25]
    """
    options = checked_options(
        "linear_solve", method, symmetric, tolerance, max_iterations, preconditioner
    )
    source = source_of((A, b))
    if source is not None:
        source.refuse("linear_solve", "give it the field")
    size = _check_fields(b, out)
    forward = forward_recorder("linear_solve")
    if callable(A) and not hasattr(A, "matvec"):
        _solve_with_function(A, b, out, product, options)
        return
    solve = _LinearSolve(A, b, out, size, options)
    if forward is not None:
        solve.run_with_tangents(forward)
        return
    outer = enclosing_recorder()
    need_gradient(outer, options.name, solve.reads, out)
    solve.rerun()
    if outer is not None:
        solve.append_to(outer)


def _solve_with_function(
    function: Callable[[], Any], b: Field, out: Field, product: Any, options: Options
) -> None:
    """Solve y(x) - b = 0, which is linear in x, with the products that kernels compute."""
    check_runs(function, "the matrix", ())
    hint = "write ds.ad.linear_solve(apply, b, x, product=y), where apply() computes y = A x"
    for role, f in (("out", out), ("product", product)):
        check_unknown(options.name, role, f, hint)
    if len({id(f) for f in (b, out, product)}) < 3:
        raise FieldError(
            "b, out and product of a solve with a function are three fields", options.where, hint
        )
    check_sizes((out, product), "the matrix is square")
    if options.method is None:
        options = replace(options, method="cg" if options.symmetric else "gmres")
    equation = Equation(function, out, product, minus=b)
    EquationSolve(equation, lambda: one_step(equation, options), options).run(None)


class _Solution(NamedTuple):
    """A solution, with what its adjoint needs."""

    matrix: Matrix
    solver: Solver
    x: np.ndarray


class _LinearSolve(Solve):
    """The arguments of one call.

    Attributes:
        last: what the adjoint is of.
    """

    def __init__(self, a: Any, b: Field, out: Field, size: int, options: Options) -> None:
        self.name = options.name
        self.a = a
        self.b = b
        self.out = out
        self.size = size
        self.options = options
        self.reads = [b, *_fields_in(a)]
        self.last: _Solution | None = None

    @property
    def held_bytes(self) -> int:
        last = self.last
        return 0 if last is None else last.matrix.nbytes + last.solver.nbytes + last.x.nbytes

    def _solution(self) -> _Solution:
        matrix, solver = self._prepared()
        return _Solution(matrix, solver, solver.solve(components(self.b)))

    def _prepared(self) -> tuple[Matrix, Solver]:
        """Return the matrix of now, ready to solve with."""
        if self.last is not None and len(self.reads) == 1:
            return self.last.matrix, self.last.solver  # constants
        matrix = matrix_of(self.a, self.size, self.out.name)
        if self.last is None and len(self.reads) > 1:
            # Arrays are constants: what they hold later does not count.
            self.a = _of_its_own(self.a)
        return matrix, matrix.solver(self.options, single=self.out.dtype.bytes < 8)

    def again(self) -> None:
        set_result(self.out, self._solution().x, self.reads)

    def run_with_tangents(self, recorder: TangentRecorder) -> None:
        """Solve in forward mode."""
        matrix, solver, x = self._solution()
        tangents = linear_tangents(matrix, solver, self.b, x, recorder.tangents)
        put_result(self.out, x)
        recorder.solved(self.out, self.reads, tangents)

    def rerun(self) -> None:
        self.last = self._solution()
        set_result(self.out, self.last.x, self.reads)

    def backward(self) -> None:
        # Taken before anything is added: b may be `out`.
        gradient, last = take_gradient(self.out), self.last
        if gradient is None:
            return
        assert last is not None
        adjoint = last.solver.solve(gradient, transposed=True)
        add_gradient(self.b, adjoint)
        last.matrix.add_gradient(adjoint, last.x)


def _of_its_own(a: Any) -> Any:
    """Return the parts of a matrix, with copies of the arrays."""
    if isinstance(a, (tuple, list)):
        return tuple(map(_of_its_own, a))
    return a if isinstance(a, Field) else np.array(array_of(a))


def _check_fields(b: Any, out: Any) -> int:
    """Refuse what are no fields of floats of one size; return that."""
    for name, f in (("b", b), ("out", out)):
        if not isinstance(f, Field):
            raise FieldError(
                f"{name} of linear_solve is a field, not {describe(f)}",
                Span.of_caller(),
                hint="write ds.ad.linear_solve(A, b, x) with fields b and x; a field takes an array by "
                "b.from_numpy(array)",
            )
        if not f.dtype.is_float or f.dtype.for_storage or f.is_grad:
            raise FieldError(
                f"{name} of linear_solve is a field of f32 or f64, and {f.name} is "
                + ("a gradient" if f.is_grad else f"of {f.dtype}"),
                Span.of_caller(),
                hint="use a field of ds.f64 or ds.f32",
            )
    sizes = [int(f.storage.layout.count) for f in (b, out)]
    if sizes[0] != sizes[1]:
        raise FieldError(
            f"{b.name} has {sizes[0]} numbers, and {out.name} {sizes[1]}",
            Span.of_caller(),
            hint="the right-hand side and the solution of a square system have the same size",
        )
    return sizes[0]


def _fields_in(a: Any) -> list[Field]:
    """Return the fields among the parts of a matrix."""
    if isinstance(a, Field):
        return [a]
    parts = a if isinstance(a, (tuple, list)) else ()
    found = [f for part in parts for f in _fields_in(part)]
    return list(dict.fromkeys(found))
