"""Sparse matrices that kernels fill, and solvers for them, under Taichi's names; they compute with SciPy."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

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
    def __init__(self, matvec_kernel: Callable[[Any, Any], object]) -> None: ...
    def __call__(self, x: Any, y: Any) -> None: ...
def MatrixFreeBICGSTAB(A: Any, b: Field, x: Field, tol: float = ..., maxiter: int = ..., quiet: bool = ...) -> bool:
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
def MatrixFreeCG(A: Any, b: Field, x: Field, tol: float = ..., maxiter: int = ..., quiet: bool = ...) -> bool:
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
    def __init__(self, A: Any, b: Any, x0: Any = ..., max_iter: int = ..., atol: float = ...) -> None: ...
    def solve(self) -> tuple[Any, bool]:
        """Return x and whether the residual is as small as asked for."""
class SparseMatrix:
    """A sparse matrix; made by `SparseMatrixBuilder.build`, or empty by `SparseMatrix(n, m)`.

    Args:
        n: number of rows.
        m: number of columns; as many as rows if left out.
        sm: a matrix of SciPy instead.
        dtype: ds.f32 or ds.f64.

    Example:
        import scipy.sparse

        A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
        print(A @ np.array([1.0, 1.0]), (A + A)[1, 1])  # prints: [2. 4.] 8.0
    """
    def __init__(self, n: int | None = ..., m: int | None = ..., sm: Any = ..., dtype: DType | None = ..., storage_format: str = ...) -> None: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __getitem__(self, index: Any) -> float: ...
    def __matmul__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: float) -> None: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def build_from_ndarray(self, ndarray: Any) -> None:
        """Set the matrix to the sums of triplets (row, column, number), one after the other in an array.

        Example:
            A = ds.linalg.SparseMatrix(2, 2)
            triplets = [0, 0, 1.5, 1, 1, 2.0, 1, 1, 2.0]
            A.build_from_ndarray(np.array(triplets))
            print(A[0, 0], A[1, 1])  # prints: 1.5 4.0
        """
    @property
    def dtype(self) -> Any:
        """The type of the numbers.

        Example:
            print(ds.linalg.SparseMatrix(2, 3, dtype=ds.f64).dtype)  # prints: f64
        """
    @property
    def m(self) -> int:
        """The number of columns.

        Example:
            print(ds.linalg.SparseMatrix(2, 3).m)  # prints: 3
        """
    def mmwrite(self, filename: Any) -> None:
        """Write the matrix to a file in the format Matrix Market.

        Example:
            import scipy.io
            import scipy.sparse

            A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
            A.mmwrite("matrix.mtx")
            print(scipy.io.mminfo("matrix.mtx")[:3])  # prints: (2, 2, 2)
        """
    @property
    def n(self) -> int:
        """The number of rows.

        Example:
            print(ds.linalg.SparseMatrix(2, 3).n)  # prints: 2
        """
    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns.

        Example:
            print(ds.linalg.SparseMatrix(2, 3).shape)  # prints: (2, 3)
        """
    def to_scipy(self) -> Any:
        """Return a copy as a matrix of SciPy.

        Example:
            import scipy.sparse

            A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
            print(A.to_scipy().diagonal())  # prints: [2. 4.]
        """
    def transpose(self) -> Any:
        """Return the matrix with rows and columns exchanged.

        Example:
            print(ds.linalg.SparseMatrix(2, 3).transpose().shape)  # prints: (3, 2)
        """
class SparseMatrixBuilder:
    """A matrix under construction: kernels add to its elements, and `build` sums what is at one place.

    Args:
        num_rows: number of rows.
        num_cols: number of columns; as many as rows if left out.
        max_num_triplets: how many additions there is room for.
        dtype: ds.f32 or ds.f64.
        storage_format: "col_major" or "row_major"; the numbers are the same.

    Example:
        builder = ds.linalg.SparseMatrixBuilder(2, 2, max_num_triplets=4)

        @ds.kernel
        def fill(A: ds.types.sparse_matrix_builder()):
            for i in range(2):
                A[i, i] += 2.0 * (i + 1)

        fill(builder)
        A = builder.build()
        print(A.shape, A[1, 1])  # prints: (2, 2) 4.0
    """
    def __init__(self, num_rows: int | None = ..., num_cols: int | None = ..., max_num_triplets: int = ..., dtype: DType | None = ..., storage_format: str = ...) -> None: ...
    def build(self, dtype: DType | None = ..., _format: str = ...) -> Any:
        """Return the matrix, and forget the triplets.

        Example:
            builder = ds.linalg.SparseMatrixBuilder(2, 2, max_num_triplets=4)

            @ds.kernel
            def fill(A: ds.types.sparse_matrix_builder()):
                for i in range(2):
                    A[i, i] += 2.0 * (i + 1)

            fill(builder)
            A = builder.build()
            print(A[0, 0], A[0, 1])  # prints: 2.0 0.0
        """
    @property
    def num_cols(self) -> int:
        """The number of columns.

        Example:
            print(ds.linalg.SparseMatrixBuilder(2, 3, max_num_triplets=4).num_cols)  # prints: 3
        """
    @property
    def num_rows(self) -> int:
        """The number of rows.

        Example:
            print(ds.linalg.SparseMatrixBuilder(2, 3, max_num_triplets=4).num_rows)  # prints: 2
        """
    def print_triplets(self) -> None:
        """Print what was added so far.

        Example:
            builder = ds.linalg.SparseMatrixBuilder(2, 2, max_num_triplets=4)

            @ds.kernel
            def fill(A: ds.types.sparse_matrix_builder()):
                for i in range(2):
                    A[i, i] += 2.0 * (i + 1)

            fill(builder)
            builder.print_triplets()
            # prints: ...
        """
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
    def __init__(self, dtype: DType | None = ..., solver_type: str = ..., ordering: str = ...) -> None: ...
    def analyze_pattern(self, sparse_matrix: Any) -> None:
        """Take notice of the places of a matrix; the factorisation does it again.

        Example:
            import scipy.sparse

            A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
            solver = ds.linalg.SparseSolver(dtype=ds.f64)
            solver.analyze_pattern(A)  # once for all matrices of this pattern
            solver.factorize(A)
            print(solver.info())  # prints: True
        """
    def compute(self, sparse_matrix: Any) -> None:
        """Analyse and factorise a matrix."""
    def factorize(self, sparse_matrix: Any) -> None:
        """Factorise a matrix; `info` says whether that went well.

        Example:
            import scipy.sparse

            A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
            solver = ds.linalg.SparseSolver(dtype=ds.f64)
            solver.analyze_pattern(A)
            solver.factorize(A)
            print(solver.info())  # prints: True
        """
    def info(self) -> bool:
        """Return whether the factorisation went well."""
    def solve(self, b: Any) -> Any:
        """Return x with A x = b, as an array of NumPy or of diffsim, as b is one."""

__all__ = [
    "LinearOperator",
    "MatrixFreeBICGSTAB",
    "MatrixFreeCG",
    "SparseCG",
    "SparseMatrix",
    "SparseMatrixBuilder",
    "SparseSolver",
]
