"""Sparse matrices that kernels fill, and solvers for them, under Taichi's names; they compute with SciPy.

On a tape they are refused: `ds.ad.linear_solve` has gradients.
"""

from diffsim.linalg.builder import SparseMatrixBuilder
from diffsim.linalg.conjugate_gradients import (
    LinearOperator,
    MatrixFreeBICGSTAB,
    MatrixFreeCG,
    SparseCG,
)
from diffsim.linalg.matrix import SparseMatrix
from diffsim.linalg.solver import SparseSolver
from diffsim.public_names import names_of_module

__all__ = [
    "LinearOperator",
    "MatrixFreeBICGSTAB",
    "MatrixFreeCG",
    "SparseCG",
    "SparseMatrix",
    "SparseMatrixBuilder",
    "SparseSolver",
]

__dir__ = names_of_module(__all__)
