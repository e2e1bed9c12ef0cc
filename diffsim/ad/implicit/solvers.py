"""Solvers of A x = b and of the transposed system: by a factorisation, or by a Krylov method."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from diffsim.ad.implicit.krylov import METHODS, Limits, NotConvergedError, Product
from diffsim.errors import (
    ArgumentError,
    MissingPackageError,
    OptionError,
    SolveError,
    Span,
    shown,
)
from diffsim.lang.host.signatures import is_one_of, need_bool, need_number, need_whole


class Operator(Protocol):
    """A square matrix, as far as Krylov methods ask."""

    size: int

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return A x."""

    def apply_transposed(self, x: np.ndarray) -> np.ndarray:
        """Return A^T x."""


class Solver(Protocol):
    """Solves A x = b, and A^T x = b; `nbytes` is what it holds for that."""

    nbytes: int

    def solve(self, b: np.ndarray, *, transposed: bool = False) -> np.ndarray:
        """Return x; SolveError if there is none that is exact enough."""


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options for a solve.

    Attributes:
        name: what was called; `where`: the line.
        method: "lu" or one of `krylov.METHODS`; None: what fits the matrix.
        symmetric: whether A^T = A.
        tolerance: of the residual, relative to b; None: by the type of the numbers.
        most: iterations; None: by the size.
        precondition: an approximate inverse of A, or None.
    """

    name: str
    where: Span | None
    method: str | None
    symmetric: bool
    tolerance: float | None
    most: int | None
    precondition: Any

    def of_linear_solves(self) -> Options:
        """Return those of linear solves in another iteration: their limits are their own."""
        return replace(self, tolerance=None, most=None)

    def limits(self, size: int, single: bool) -> Limits:
        """Return when a Krylov method ends."""
        default = 1e-6 if single else 1e-12
        return Limits(
            default if self.tolerance is None else self.tolerance,
            max(100, 10 * size) if self.most is None else self.most,
            4 * float(np.finfo(np.float32 if single else np.float64).eps),
        )


def checked_options(
    name: str,
    method: Any,
    symmetric: Any,
    tolerance: Any,
    max_iterations: Any,
    preconditioner: Any,
) -> Options:
    """Refuse options that make no sense."""
    where = Span.of_caller()
    if method is not None and not is_one_of(method, "lu", *METHODS):
        raise OptionError(
            f"method={shown(method)} is not possible",
            where,
            hint='it is "lu", "cg" (symmetric and positive definite), "bicgstab" or "gmres"',
        )
    need_bool(symmetric, "symmetric")
    need_number(tolerance, "tolerance", "give a number, such as 1e-10")
    if tolerance is not None and not tolerance > 0:
        raise ArgumentError(
            f"tolerance is larger than 0, not {shown(tolerance)}",
            where,
            hint="the residual relative to the right-hand side: 1e-10",
        )
    need_whole(max_iterations, "max_iterations")
    if max_iterations is not None and max_iterations < 1:
        raise ArgumentError(
            f"max_iterations is a whole number from 1 on, not {shown(max_iterations)}",
            where,
            hint="leave it out, or give 1000",
        )
    known = is_one_of(preconditioner, "jacobi") or callable(getattr(preconditioner, "matvec", None))
    if preconditioner is not None and not known and not callable(preconditioner):
        raise ArgumentError(
            f"a preconditioner is a function of an array, not {shown(preconditioner)}",
            where,
            hint='give "jacobi", or a function that returns an approximate solution of A z = r for an '
            "array r",
        )
    most = None if max_iterations is None else int(max_iterations)
    return Options(name, where, method, bool(symmetric), tolerance, most, preconditioner)


# ---- by a factorisation


class DenseLU:
    """An array, factorised with pivots: R A C, where R and C scale rows and columns."""

    def __init__(self, matrix: np.ndarray, options: Options) -> None:
        self.options = options
        _need_finite(matrix, options)
        # Scaled, so that a small pivot tells of a singular matrix and not of small units.
        self.rows = _scale(matrix, 1)
        self.columns = _scale(self.rows[:, None] * matrix, 0)
        self.matrix = self.rows[:, None] * matrix * self.columns
        self.nbytes = 2 * matrix.nbytes
        self._factors: Any = None
        self._linalg = _scipy("linalg")
        if self._linalg is not None and matrix.size:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a singular matrix, which is refused below
                self._factors = self._linalg.lu_factor(self.matrix)
            _check_pivots(np.diag(self._factors[0]), options)
        elif matrix.size and not np.linalg.cond(self.matrix, 1) < 1 / (4 * np.finfo(float).eps):
            raise _singular(options)

    def solve(self, b: np.ndarray, *, transposed: bool = False) -> np.ndarray:
        """Return x."""
        before, after = (self.columns, self.rows) if transposed else (self.rows, self.columns)
        if self._factors is not None:
            scaled = before * b
            x = self._linalg.lu_solve(
                self._factors, scaled, trans=int(transposed), check_finite=False
            )
        else:
            x = np.linalg.solve(self.matrix.T if transposed else self.matrix, before * b)
        return _finite(after * np.asarray(x), b, self.options)


def _scale(matrix: np.ndarray, axis: int) -> np.ndarray:
    """Return factors for which the largest number along an axis is 1."""
    largest = np.abs(matrix).max(axis=axis, initial=0.0)
    return np.asarray(1 / np.where(largest > 0, largest, 1.0))


class SparseLU:
    """A sparse matrix, factorised by SuperLU."""

    def __init__(self, matrix: Any, options: Options) -> None:
        self.options = options
        linalg = _scipy("sparse.linalg")
        _need_finite(matrix.data, options)
        try:
            self._factors = linalg.splu(matrix.tocsc())
        except RuntimeError:  # "Factor is exactly singular"
            raise _singular(options) from None
        _check_pivots(self._factors.U.diagonal(), options)
        self.nbytes = 12 * int(self._factors.nnz)

    def solve(self, b: np.ndarray, *, transposed: bool = False) -> np.ndarray:
        """Return x."""
        x = self._factors.solve(b, trans="T" if transposed else "N")
        return _finite(np.asarray(x), b, self.options)


def _check_pivots(pivots: np.ndarray, options: Options) -> None:
    """Refuse a matrix that cannot be told from a singular one."""
    sizes = np.abs(pivots)
    if len(sizes) and not sizes.min() > 4 * np.finfo(float).eps * sizes.max():
        raise _singular(options)


def _need_finite(numbers: np.ndarray, options: Options) -> None:
    if not np.isfinite(numbers).all():
        raise SolveError(
            f"the matrix of {options.name} holds NaN or infinity",
            options.where,
            hint="look for where it comes from: ds.Tape(check_nan=True)",
        )


def _finite(x: np.ndarray, b: np.ndarray, options: Options) -> np.ndarray:
    if not np.isfinite(x).all():
        what = "overflows" if np.isfinite(b).all() else "has a right-hand side with NaN or infinity"
        raise SolveError(
            f"{options.name} {what}",
            options.where,
            hint="look for where it comes from: ds.Tape(check_nan=True)",
        )
    return x


def _singular(options: Options) -> SolveError:
    return SolveError(
        f"the matrix of {options.name} is singular, to working precision",
        options.where,
        hint="fix what moves freely: an element for each constant that may be added to the solution",
    )


# ---- by products


class Krylov:
    """An operator with a Krylov method."""

    nbytes = 0

    def __init__(
        self,
        operator: Operator,
        options: Options,
        *,
        single: bool = False,
        diagonal: Callable[[], np.ndarray] | None = None,
    ) -> None:
        self.operator = operator
        self.options = options
        self.limits = options.limits(operator.size, single)
        method = options.method
        self.method = ("cg" if options.symmetric else "gmres") if method is None else method
        self.precondition = _preconditioner(options, diagonal)

    def solve(self, b: np.ndarray, *, transposed: bool = False) -> np.ndarray:
        """Return x."""
        same = self.options.symmetric or self.method == "cg"
        turned = transposed and not same
        apply = self.operator.apply_transposed if turned else self.operator.apply
        try:
            return METHODS[self.method](apply, b, self.limits, self.precondition[turned])
        except NotConvergedError as problem:
            which = "the adjoint of " if transposed else ""
            raise SolveError(
                f"{which}{self.options.name} did not converge: {problem.why}; residual "
                f"{problem.residual:.3g} of the right-hand side after {problem.iterations} iterations of "
                f"{self.method}, and {self.limits.tolerance:.3g} is wanted",
                self.options.where,
                hint='give more iterations (max_iterations=), a preconditioner, another method ("gmres" for '
                'any matrix, "lu" for one that is not too large), or a larger tolerance=',
            ) from None


def _preconditioner(
    options: Options, diagonal: Callable[[], np.ndarray] | None
) -> tuple[Product, Product]:
    """Return the preconditioner, and that of the transposed matrix."""
    given = options.precondition
    if given is None:
        return _identity, _identity
    if isinstance(given, str):
        if diagonal is None:
            raise OptionError(
                'preconditioner="jacobi" needs the diagonal of the matrix, and a function does not tell it',
                options.where,
                hint="give a function that divides an array by the diagonal",
            )
        inverse = 1 / np.where(diagonal() == 0, 1.0, diagonal())
        return (lambda r: inverse * r), (lambda r: inverse * r)
    apply = getattr(given, "matvec", given)
    turned = getattr(given, "rmatvec", None) if hasattr(given, "matvec") else None

    def checked(function: Any) -> Product:
        def call(r: np.ndarray) -> np.ndarray:
            z = np.asarray(function(r.copy()), np.float64).reshape(-1)
            if z.shape != r.shape:
                raise ArgumentError(
                    f"the preconditioner made {len(z)} numbers of {len(r)}",
                    options.where,
                    hint="it returns an array as long as the one that it is given",
                )
            return z

        return call

    # It changes how quickly a solution is found, and not which one.
    return checked(apply), checked(turned or apply)


def _identity(r: np.ndarray) -> np.ndarray:
    return r


def check_symmetry(operator: Operator, options: Options, single: bool) -> None:
    """Refuse an operator that is said to be symmetric and is not: u . A v = v . A u for random u, v."""
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((2, operator.size))
    au, av = operator.apply(u), operator.apply(v)
    left, right = float(u @ av), float(v @ au)
    size = float(np.abs(u) @ np.abs(av) + np.abs(v) @ np.abs(au))
    if abs(left - right) > (1e-4 if single else 1e-10) * size:
        raise SolveError(
            f"the matrix of {options.name} is not symmetric: u . A v = {left:.8g} and v . A u = {right:.8g} "
            "for two random vectors",
            options.where,
            hint='leave symmetric=True out, and take method="gmres" or method="bicgstab"',
        )


# ---- SciPy


def _scipy(module: str) -> Any:
    """Return a module of SciPy, or None."""
    try:
        if module == "linalg":
            import scipy.linalg as found  # type: ignore[import-untyped, import-not-found, unused-ignore]
        elif module == "sparse":
            import scipy.sparse as found  # type: ignore[import-untyped, import-not-found, unused-ignore]
        else:
            import scipy.sparse.linalg as found  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return None
    return found


def sparse_module() -> Any:
    """Return `scipy.sparse`, or None."""
    return _scipy("sparse")


def need_sparse(options: Options) -> Any:
    """Return `scipy.sparse`; MissingPackageError without SciPy."""
    found = sparse_module()
    if found is None:
        raise MissingPackageError(
            f'{options.name} with method="lu" factorises sparse matrices by SciPy, which is not installed',
            options.where,
            hint='pip install "diffsim-lang[sparse]", or take method="gmres", "bicgstab", or "cg" (symmetric '
            "and positive definite)",
        )
    return found
