"""Sparse matrices that kernels fill, and solvers for them, under Taichi's names; they compute with SciPy."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

class LinearOperator:
    """A matrix that a kernel applies: `matvec(x, y)` sets the field y to A x."""
    def __init__(self, matvec_kernel: Callable[[Any, Any], object]) -> None: ...
    def __call__(self, x: Any, y: Any) -> None: ...
def MatrixFreeBICGSTAB(A: Any, b: Field, x: Field, tol: float = ..., maxiter: int = ..., quiet: bool = ...) -> bool:
    """Solve A x = b by BiCGStab, for any regular A; the arguments are those of `MatrixFreeCG`."""
def MatrixFreeCG(A: Any, b: Field, x: Field, tol: float = ..., maxiter: int = ..., quiet: bool = ...) -> bool:
    """Solve A x = b by conjugate gradients, A symmetric positive definite; x is where to start."""
class SparseCG:
    """Conjugate gradients for a symmetric positive definite sparse matrix."""
    def __init__(self, A: Any, b: Any, x0: Any = ..., max_iter: int = ..., atol: float = ...) -> None: ...
    def solve(self) -> tuple[Any, bool]:
        """Return x and whether the residual is as small as asked for."""
class SparseMatrix:
    """A sparse matrix; made by `SparseMatrixBuilder.build`, or empty by `SparseMatrix(n, m)`."""
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
        """Set the matrix to the sums of triplets (row, column, number), one after the other in an array."""
    @property
    def dtype(self) -> Any:
        """The type of the numbers."""
    @property
    def m(self) -> int:
        """The number of columns."""
    def mmwrite(self, filename: Any) -> None:
        """Write the matrix to a file in the format Matrix Market."""
    @property
    def n(self) -> int:
        """The number of rows."""
    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
    def to_scipy(self) -> Any:
        """Return a copy as a matrix of SciPy."""
    def transpose(self) -> Any:
        """Return the matrix with rows and columns exchanged."""
class SparseMatrixBuilder:
    """A matrix under construction: kernels add to its elements, and `build` sums what is at one place."""
    def __init__(self, num_rows: int | None = ..., num_cols: int | None = ..., max_num_triplets: int = ..., dtype: DType | None = ..., storage_format: str = ...) -> None: ...
    def build(self, dtype: DType | None = ..., _format: str = ...) -> Any:
        """Return the matrix, and forget the triplets."""
    @property
    def num_cols(self) -> int:
        """The number of columns."""
    @property
    def num_rows(self) -> int:
        """The number of rows."""
    def print_triplets(self) -> None:
        """Print what was added so far."""
class SparseSolver:
    """A direct solver of A x = b."""
    def __init__(self, dtype: DType | None = ..., solver_type: str = ..., ordering: str = ...) -> None: ...
    def analyze_pattern(self, sparse_matrix: Any) -> None:
        """Take notice of the places of a matrix; the factorisation does it again."""
    def compute(self, sparse_matrix: Any) -> None:
        """Analyse and factorise a matrix."""
    def factorize(self, sparse_matrix: Any) -> None:
        """Factorise a matrix; `info` says whether that went well."""
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
