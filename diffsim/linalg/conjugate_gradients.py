"""Iterative solvers: conjugate gradients of a sparse matrix, or of an operator that kernels apply.

M. R. Hestenes and E. Stiefel, 1952; BiCGStab: H. A. van der Vorst, 1992.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, FieldError, Span, shown
from diffsim.lang.host.signatures import (
    checked,
    checked_methods,
    need_bool,
    need_count,
    need_function,
    need_number,
)
from diffsim.linalg.matrix import SparseMatrix
from diffsim.linalg.vectors import alike, numbers, refuse_tape
from diffsim.runtime.fields.constructors import field
from diffsim.runtime.fields.field import Field

Apply = Callable[[np.ndarray], np.ndarray]


@checked_methods()
class LinearOperator:
    """A matrix that a kernel applies: `matvec(x, y)` sets the field y to A x.

    Args:
        matvec_kernel: the kernel.

    Example:
        x, b = ds.field(ds.f64, shape=2), ds.field(ds.f64, shape=2)
        b.from_numpy(np.array([2.0, 8.0]))

        @ds.kernel
        def apply(v: ds.template(), Av: ds.template()):
            for i in v:
                Av[i] = 2.0 * (i + 1) * v[i]

        A = ds.linalg.LinearOperator(apply)
        print(ds.linalg.MatrixFreeCG(A, b, x), x.to_numpy().round(6))  # prints: True [1. 2.]
    """

    def __init__(self, matvec_kernel: Callable[[Any, Any], object]) -> None:
        need_function(
            matvec_kernel, "matvec_kernel", "give a kernel that takes x and y and sets y to A x"
        )
        self.matvec = matvec_kernel

    def __call__(self, x: Any, y: Any) -> None:
        """Apply it."""
        self.matvec(x, y)


@checked_methods()
class SparseCG:
    """Conjugate gradients for a symmetric positive definite sparse matrix.

    Args:
        A: the matrix.
        b: the right-hand side.
        x0: where to start; zeros if left out.
        max_iter: the most iterations.
        atol: the length of the residual at which to stop.

    Example:
        import scipy.sparse

        A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
        x, converged = ds.linalg.SparseCG(A, np.array([2.0, 8.0])).solve()
        print(x.round(6), converged)  # prints: [1. 2.] True
    """

    def __init__(
        self,
        A: SparseMatrix,  # noqa: N803 - Taichi's name
        b: Any,
        x0: Any = None,
        max_iter: int = 50,
        atol: float = 1e-6,
    ) -> None:
        if not isinstance(A, SparseMatrix) or A.n != A.m:
            raise ArgumentError(
                f"the matrix is a square sparse matrix, not {shown(A)}",
                Span.of_caller(),
                hint="make one by ds.linalg.SparseMatrixBuilder",
            )
        _need_limits(max_iter, "max_iter", atol, "atol")
        self.matrix, self.b = A, b
        self.start = x0
        self.max_iter, self.atol = max_iter, atol

    def solve(self) -> tuple[Any, bool]:
        """Return x and whether the residual is as small as asked for."""
        refuse_tape("a solution")
        a = self.matrix.matrix.astype(np.float64)
        n = self.matrix.n
        b = numbers(self.b, n, "the right-hand side").astype(np.float64)
        start = self.start
        x = np.zeros(n) if start is None else numbers(start, n, "the start").astype(np.float64)
        x, good, _ = _cg(lambda v: a @ v, b, x, self.atol, self.max_iter, lambda *_: None)
        return alike(x.astype(self.matrix.matrix.dtype), self.b), good


@checked
def MatrixFreeCG(  # noqa: N802 - Taichi's name
    A: LinearOperator,  # noqa: N803
    b: Field,
    x: Field,
    tol: float = 1e-6,
    maxiter: int = 5000,
    quiet: bool = True,
) -> bool:
    """Solve A x = b by conjugate gradients, A symmetric positive definite; x is where to start.

    Args:
        A: the operator.
        b: the right-hand side, a field of floats.
        x: the solution, a field of the same shape.
        tol: the length of the residual at which to stop.
        maxiter: the most iterations.
        quiet: whether to print nothing.

    Returns:
        Whether the residual is as small as asked for.

    Example:
        x, b = ds.field(ds.f64, shape=2), ds.field(ds.f64, shape=2)
        b.from_numpy(np.array([2.0, 8.0]))

        @ds.kernel
        def apply(v: ds.template(), Av: ds.template()):
            for i in v:
                Av[i] = 2.0 * (i + 1) * v[i]

        A = ds.linalg.LinearOperator(apply)
        print(ds.linalg.MatrixFreeCG(A, b, x), x.to_numpy().round(6))  # prints: True [1. 2.]
    """
    return _matrix_free(_cg, A, b, x, tol, maxiter, quiet)


@checked
def MatrixFreeBICGSTAB(  # noqa: N802 - Taichi's name
    A: LinearOperator,  # noqa: N803
    b: Field,
    x: Field,
    tol: float = 1e-6,
    maxiter: int = 5000,
    quiet: bool = True,
) -> bool:
    """Solve A x = b by BiCGStab, for any regular A; the arguments are those of `MatrixFreeCG`.

    Example:
        x, b = ds.field(ds.f64, shape=2), ds.field(ds.f64, shape=2)
        b.from_numpy(np.array([2.0, 8.0]))

        @ds.kernel
        def apply(v: ds.template(), Av: ds.template()):
            for i in v:
                Av[i] = 2.0 * (i + 1) * v[i]

        A = ds.linalg.LinearOperator(apply)
        print(ds.linalg.MatrixFreeBICGSTAB(A, b, x), x.to_numpy().round(6))  # prints: True [1. 2.]
    """
    return _matrix_free(_bicgstab, A, b, x, tol, maxiter, quiet)


def _matrix_free(
    method: Callable[..., tuple[np.ndarray, bool, int]],
    A: LinearOperator,  # noqa: N803
    b: Field,
    x: Field,
    tol: float,
    maxiter: int,
    quiet: bool,
) -> bool:
    refuse_tape("a solution")
    if (
        not isinstance(b, Field)
        or not isinstance(x, Field)
        or b.shape != x.shape
        or b.dtype != x.dtype
        or b.element
        or x.element
        or not b.dtype.is_float
    ):
        raise FieldError(
            "b and x are fields of floats, of one shape and type",
            Span.of_caller(),
            hint="write b = ds.field(ds.f32, shape=n), and x like it",
        )
    if not isinstance(A, LinearOperator):
        raise ArgumentError(
            f"A is a linear operator, not {shown(A)}",
            Span.of_caller(),
            hint="write A = ds.linalg.LinearOperator(kernel)",
        )
    _need_limits(maxiter, "maxiter", tol, "tol")
    need_bool(quiet, "quiet")
    v, out = (field(b.dtype, shape=b.shape) for _ in range(2))

    def apply(vector: np.ndarray) -> np.ndarray:
        v.from_numpy(vector.reshape(b.shape).astype(b.dtype.numpy))
        A.matvec(v, out)
        made: np.ndarray = out.to_numpy().ravel().astype(np.float64)
        return made

    def show(k: int, length: float) -> None:
        if not quiet:
            print(f"iteration {k}: residual {length:.3e}")

    start, right = (f.to_numpy().ravel().astype(np.float64) for f in (x, b))
    found, good, _ = method(apply, right, start, tol, maxiter, show)
    x.from_numpy(found.reshape(x.shape).astype(x.dtype.numpy))
    return good


def _need_limits(most: int, most_name: str, least: float, least_name: str) -> None:
    """Refuse limits of iterations that are no numbers."""
    need_count(most, most_name, 0)
    if least is None:  # which `need_number` takes for a default
        raise ArgumentError(
            f"{least_name} is a number, not None", Span.of_caller(), "leave it out, or give 1e-6"
        )
    need_number(least, least_name)


def _cg(
    apply: Apply,
    b: np.ndarray,
    x: np.ndarray,
    tol: float,
    most: int,
    show: Callable[[int, float], None],
) -> tuple[np.ndarray, bool, int]:
    r = b - apply(x)
    p, square = r.copy(), float(r @ r)
    for k in range(most):
        show(k, np.sqrt(square))
        if np.sqrt(square) <= tol:
            return x, True, k
        q = apply(p)
        curvature = float(p @ q)
        if not curvature > 0:  # not positive definite, or NaN
            return x, False, k
        alpha = square / curvature
        x = x + alpha * p
        r = r - alpha * q
        square, before = float(r @ r), square
        p = r + square / before * p
    return x, bool(np.sqrt(square) <= tol), most


def _bicgstab(
    apply: Apply,
    b: np.ndarray,
    x: np.ndarray,
    tol: float,
    most: int,
    show: Callable[[int, float], None],
) -> tuple[np.ndarray, bool, int]:
    r = b - apply(x)
    shadow, p = r.copy(), r.copy()
    rho = float(shadow @ r)
    for k in range(most):
        length = float(np.linalg.norm(r))
        show(k, length)
        if length <= tol:
            return x, True, k
        v = apply(p)
        alpha = rho / float(shadow @ v) if float(shadow @ v) else np.nan
        s = r - alpha * v
        t = apply(s)
        omega = float(t @ s) / float(t @ t) if float(t @ t) else 0.0
        x = x + alpha * p + omega * s
        r = s - omega * t
        after = float(shadow @ r)
        if not np.isfinite(after) or not omega or not rho:
            return x, bool(np.linalg.norm(r) <= tol), k + 1
        p = r + after / rho * alpha / omega * (p - omega * v)
        rho = after
    return x, bool(np.linalg.norm(r) <= tol), most
