"""`SparseSolver`: direct solutions of A x = b by SciPy's factorisation (SuperLU)."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, OptionError, Span, shown
from diffsim.ir.types import f32
from diffsim.lang.host.signatures import checked_methods, is_one_of
from diffsim.linalg.matrix import SparseMatrix
from diffsim.linalg.vectors import alike, need_dtype, need_scipy, numbers, refuse_tape

_TYPES = "LLT", "LDLT", "LU"


@checked_methods()
class SparseSolver:
    """A direct solver of A x = b.

    Args:
        dtype: ds.f32 or ds.f64: the type of the solution. Factors have double precision.
        solver_type: "LLT" for symmetric positive definite matrices, "LDLT" for symmetric ones, "LU" for all.
        ordering: Taichi's "AMD" or "COLAMD"; SciPy's own fits the kind of matrix.

    Example:
        import scipy.sparse

        A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
        solver = ds.linalg.SparseSolver(dtype=ds.f64, solver_type="LU")
        solver.compute(A)
        print(solver.solve(np.array([2.0, 8.0])), solver.info())  # prints: [1. 2.] True
    """

    def __init__(self, dtype: Any = f32, solver_type: str = "LLT", ordering: str = "AMD") -> None:
        if not is_one_of(solver_type, *_TYPES):
            raise OptionError(
                f"there is no solver {shown(solver_type)}",
                Span.of_caller(),
                hint="choose one of " + ", ".join(_TYPES),
            )
        self.dtype = need_dtype(dtype)
        self.type = solver_type
        self.factors: Any = None
        self.size = 0

    def analyze_pattern(self, sparse_matrix: SparseMatrix) -> None:
        """Take notice of the places of a matrix; the factorisation does it again.

        Example:
            import scipy.sparse

            A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
            solver = ds.linalg.SparseSolver(dtype=ds.f64)
            solver.analyze_pattern(A)  # once for all matrices of this pattern
            solver.factorize(A)
            print(solver.info())  # prints: True
        """
        self._check(sparse_matrix)

    def factorize(self, sparse_matrix: SparseMatrix) -> None:
        """Factorise a matrix; `info` says whether that went well.

        Example:
            import scipy.sparse

            A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
            solver = ds.linalg.SparseSolver(dtype=ds.f64)
            solver.analyze_pattern(A)
            solver.factorize(A)
            print(solver.info())  # prints: True
        """
        refuse_tape("a factorisation")
        a = self._check(sparse_matrix).matrix.tocsc().astype(np.float64)
        self.factors, self.size = None, sparse_matrix.n
        symmetric = self.type != "LU"
        # A symmetric solver would silently use one half of the matrix.
        if symmetric and abs(a - a.T).max() > 1e-5 * abs(a).max():
            raise ArgumentError(
                f"{self.type} is for symmetric matrices, and this one is not",
                Span.of_caller(),
                hint='write solver_type="LU"',
            )
        options = {"SymmetricMode": True} if symmetric else {}
        try:
            factors = need_scipy().linalg.splu(
                a,
                permc_spec="MMD_AT_PLUS_A" if symmetric else "COLAMD",
                diag_pivot_thresh=0.0 if self.type == "LLT" else 1.0,
                options=options,
            )
        except RuntimeError:  # exactly singular
            return
        # Without pivoting the diagonal of U has the signs of the leading minors.
        if self.type != "LLT" or (
            (factors.U.diagonal() > 0).all() and (factors.perm_r == factors.perm_c).all()
        ):
            self.factors = factors

    def compute(self, sparse_matrix: SparseMatrix) -> None:
        """Analyse and factorise a matrix."""
        self.factorize(sparse_matrix)

    def solve(self, b: Any) -> Any:
        """Return x with A x = b, as an array of NumPy or of diffsim, as b is one."""
        refuse_tape("a solution")
        if self.factors is None:
            raise ArgumentError(
                "there are no factors to solve with",
                Span.of_caller(),
                hint="call factorize(A) first, and see whether info() is True",
            )
        x = self.factors.solve(numbers(b, self.size, "the right-hand side").astype(np.float64))
        return alike(x.astype(self.dtype.numpy), b)

    def info(self) -> bool:
        """Return whether the factorisation went well."""
        return self.factors is not None

    def _check(self, matrix: SparseMatrix) -> SparseMatrix:
        if not isinstance(matrix, SparseMatrix) or matrix.n != matrix.m:
            raise ArgumentError(
                f"a solver takes a square sparse matrix, not {shown(matrix)}",
                Span.of_caller(),
                hint="make one by ds.linalg.SparseMatrixBuilder",
            )
        return matrix
