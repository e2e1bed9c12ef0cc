"""Matrices of a linear solve: constants, or entries from fields.

They are an array or a matrix of SciPy (constants); a field of n * n numbers, row by row; entries in places,
`(values, (rows, columns))`, as SciPy's `coo_array` takes them, which add up where places repeat; or row by
row, `(values, columns, starts)`, as SciPy's `csr_array` takes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.ad.implicit.one_entry import add_gradient, components
from diffsim.ad.implicit.solvers import (
    DenseLU,
    Krylov,
    Options,
    Solver,
    SparseLU,
    check_symmetry,
    need_sparse,
)
from diffsim.errors import ArgumentError, DtypeError, Span, shown
from diffsim.lang.host.provenance import source_of
from diffsim.runtime.fields.conversions import array_of
from diffsim.runtime.fields.field import Field

_WAYS = (
    "it is a square array or matrix of SciPy (constants), a field of n * n numbers, "
    "(values, (rows, columns)) or (values, columns, starts) with a field of values, or a function"
)


class Matrix:
    """The numbers of a matrix, as they were when the solve ran.

    Attributes:
        values: the field that they are from; None: they are constants.
        numbers: one for each place; `rows`, `columns`: the places; None: all of them, row by row.
    """

    def __init__(
        self,
        size: int,
        values: Field | None,
        numbers: np.ndarray,
        places: tuple[np.ndarray, np.ndarray] | None,
    ) -> None:
        self.size = size
        self.values = values
        self.numbers = numbers
        self.places = places

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes + sum(p.nbytes for p in self.places or ())

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return A x."""
        if self.places is None:
            return np.asarray(self._dense() @ x)
        rows, columns = self.places
        return np.bincount(rows, self.numbers * x[columns], self.size)

    def apply_transposed(self, x: np.ndarray) -> np.ndarray:
        """Return A^T x."""
        if self.places is None:
            return np.asarray(self._dense().T @ x)
        rows, columns = self.places
        return np.bincount(columns, self.numbers * x[rows], self.size)

    def add_gradient(self, adjoint: np.ndarray, x: np.ndarray) -> None:
        """Add -adjoint x^T, in the places, to the gradient of the values."""
        if self.values is None:
            return
        if self.places is None:
            add_gradient(self.values, -np.outer(adjoint, x).reshape(-1))
        else:
            rows, columns = self.places
            add_gradient(self.values, -adjoint[rows] * x[columns])

    def solver(self, options: Options, single: bool) -> Solver:
        """Return what solves with it."""
        if options.symmetric or options.method == "cg":
            check_symmetry(self, options, single)
        if options.method not in (None, "lu"):
            return Krylov(self, options, single=single, diagonal=self._diagonal)
        if self.places is None:
            return DenseLU(self._dense(), options)
        sparse = need_sparse(options)
        return SparseLU(
            sparse.coo_array((self.numbers, self.places), (self.size, self.size)), options
        )

    def _dense(self) -> np.ndarray:
        return self.numbers.reshape(self.size, self.size)

    def _diagonal(self) -> np.ndarray:
        if self.places is None:
            return np.diag(self._dense())
        rows, columns = self.places
        return np.bincount(rows, np.where(rows == columns, self.numbers, 0), self.size)


def matrix_of(a: Any, size: int, what: str) -> Matrix:
    """Return a matrix from what the user gave.

    Raises:
        ArgumentError: it is none, or not of this size.
    """
    if isinstance(a, tuple) and len(a) == 2 and isinstance(a[1], (tuple, list)) and len(a[1]) == 2:
        return _entries(a[0], _whole(a[1][0], "rows"), _whole(a[1][1], "columns"), size)
    if isinstance(a, tuple) and len(a) == 3:
        return _by_rows(a[0], _whole(a[1], "columns"), _whole(a[2], "starts"), size)
    if isinstance(a, Field):
        return Matrix(size, *_numbers(a, size * size, f"a matrix for {what} of {size}"), None)
    if hasattr(a, "tocoo") and hasattr(a, "shape"):
        _need_shape(tuple(a.shape), size, what)
        found = a.tocoo()
        places = np.asarray(found.row, np.int64), np.asarray(found.col, np.int64)
        return Matrix(size, None, np.array(found.data, np.float64), places)
    array = array_of(a)
    if array.dtype.kind not in "biuf":
        raise ArgumentError(f"a matrix is not {shown(a)}", Span.of_caller(), hint=_WAYS)
    _need_shape(array.shape, size, what)
    return Matrix(size, None, np.array(array, np.float64).reshape(-1), None)


def _need_shape(shape: tuple[int, ...], size: int, what: str) -> None:
    if shape != (size, size):
        raise ArgumentError(
            f"the matrix has the shape {shape}, and {what} has {size} numbers",
            Span.of_caller(),
            hint=f"give a matrix of shape ({size}, {size}): vectors count with all their components",
        )


def _entries(values: Any, rows: np.ndarray, columns: np.ndarray, size: int) -> Matrix:
    if rows.shape != columns.shape:
        raise ArgumentError(
            f"there are {rows.size} rows and {columns.size} columns of entries",
            Span.of_caller(),
            hint="give a row and a column for each entry: (values, (rows, columns))",
        )
    for name, places in (("row", rows), ("column", columns)):
        wrong = places[(places < 0) | (places >= size)]
        if wrong.size:
            raise ArgumentError(
                f"an entry of the matrix is in {name} {wrong[0]}, and there are {size}",
                Span.of_caller(),
                hint="they are counted from 0; vectors count with all their components",
            )
    return Matrix(size, *_numbers(values, rows.size, "these places"), (rows, columns))


def _by_rows(values: Any, columns: np.ndarray, starts: np.ndarray, size: int) -> Matrix:
    counts = np.diff(starts)
    right = len(starts) == size + 1 and starts[0] == 0 and (counts >= 0).all()
    if not right or starts[-1] != columns.size:
        raise ArgumentError(
            f"starts of rows are {size + 1} numbers that do not fall, from 0 to the number of entries, "
            f"{columns.size}",
            Span.of_caller(),
            hint="they are those of scipy.sparse.csr_array: (values, a.indices, a.indptr)",
        )
    return _entries(values, np.repeat(np.arange(size), counts), columns, size)


def _numbers(values: Any, count: int, what: str) -> tuple[Field | None, np.ndarray]:
    """Return the field of the entries, if it is one, and its numbers."""
    if isinstance(values, Field):
        if not values.dtype.is_float:
            raise DtypeError(
                f"the entries of a matrix are floats, and {values.name} is of {values.dtype}",
                Span.of_caller(),
                hint="give a field of ds.f64, or an array of constants",
            )
        field, numbers = values, components(values)
    else:
        source = source_of(values)
        if source is not None:
            source.refuse("the matrix", "give the field itself")
        array = array_of(values)
        if array.dtype.kind not in "biuf":
            raise ArgumentError(
                f"entries of a matrix are not {shown(values)}", Span.of_caller(), hint=_WAYS
            )
        field, numbers = None, np.array(array, np.float64).reshape(-1)
    if numbers.size != count:
        raise ArgumentError(
            f"there are {numbers.size} numbers, and {what} need {count}",
            Span.of_caller(),
            hint="give a number for each entry",
        )
    return field, numbers


def _whole(given: Any, what: str) -> np.ndarray:
    """Return a copy of whole numbers, from an array or a field."""
    array = given.to_numpy() if isinstance(given, Field) else array_of(given)
    if array.dtype.kind not in "iu":
        raise ArgumentError(
            f"the {what} of a matrix are whole numbers, not {shown(given)}",
            Span.of_caller(),
            hint="give an array of integers: np.array([0, 1])",
        )
    return np.array(array, np.int64).reshape(-1)
