"""`SparseMatrix`: a matrix of SciPy with Taichi's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import (
    AccessError,
    ArgumentError,
    KernelTypeError,
    OutOfMemoryError,
    Span,
    shown,
)
from diffsim.ir.types import f32, from_numpy
from diffsim.lang.host.signatures import checked_methods, need_count, need_number, need_path
from diffsim.linalg.vectors import alike, need_dtype, need_scipy, numbers, real_array, refuse_tape
from diffsim.runtime.fields.field import Field
from diffsim.tracebacks import entries


@entries()
@checked_methods()
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

    __array_priority__ = 100  # `array * A` asks the matrix
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        n: int | None = None,
        m: int | None = None,
        sm: Any = None,
        dtype: Any = f32,
        storage_format: str = "col_major",
    ) -> None:
        if sm is None:
            shape = n, n if m is None else m
            for size in shape:
                need_count(
                    size, "a number of rows or columns", 1, "write ds.linalg.SparseMatrix(n, m)"
                )
            kind = need_dtype(dtype).numpy
            try:
                sm = need_scipy().csr_matrix(shape, dtype=kind)
            except (MemoryError, OverflowError, ValueError):  # SciPy's ways of saying so
                raise OutOfMemoryError(
                    f"there is no memory for a sparse matrix of {shown(n)} rows",
                    Span.of_caller(),
                    hint="it takes 4 or 8 bytes for each row, also of rows without numbers",
                ) from None
        elif not need_scipy().issparse(sm):
            raise ArgumentError(
                f"sm is a sparse matrix of SciPy, not {shown(sm)}",
                Span.of_caller(),
                hint="write sm=scipy.sparse.csr_matrix(...), or the numbers of rows and columns",
            )
        self.matrix = sm.tocsr()

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns.

        Example:
            print(ds.linalg.SparseMatrix(2, 3).shape)  # prints: (2, 3)
        """
        rows, columns = self.matrix.shape
        return rows, columns

    @property
    def n(self) -> int:
        """The number of rows.

        Example:
            print(ds.linalg.SparseMatrix(2, 3).n)  # prints: 2
        """
        return self.shape[0]

    @property
    def m(self) -> int:
        """The number of columns.

        Example:
            print(ds.linalg.SparseMatrix(2, 3).m)  # prints: 3
        """
        return self.shape[1]

    @property
    def dtype(self) -> Any:
        """The type of the numbers.

        Example:
            print(ds.linalg.SparseMatrix(2, 3, dtype=ds.f64).dtype)  # prints: f64
        """
        return from_numpy(self.matrix.dtype)

    def to_scipy(self) -> Any:
        """Return a copy as a matrix of SciPy.

        Example:
            import scipy.sparse

            A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
            print(A.to_scipy().diagonal())  # prints: [2. 4.]
        """
        return self.matrix.copy()

    def transpose(self) -> SparseMatrix:
        """Return the matrix with rows and columns exchanged.

        Example:
            print(ds.linalg.SparseMatrix(2, 3).transpose().shape)  # prints: (3, 2)
        """
        return SparseMatrix(sm=self.matrix.T)

    def _with(self, other: object, operation: Callable[[Any, Any], Any], sign: str) -> SparseMatrix:
        if isinstance(other, SparseMatrix):
            if other.shape != self.shape:
                raise _misfit(self.shape, sign, other.shape)
            return SparseMatrix(sm=operation(self.matrix, other.matrix))
        raise _no_operand(other, sign)

    def __add__(self, other: object) -> SparseMatrix:
        return self._with(other, lambda a, b: a + b, "+")

    def __sub__(self, other: object) -> SparseMatrix:
        return self._with(other, lambda a, b: a - b, "-")

    def __mul__(self, other: object) -> SparseMatrix:
        """Multiply by a number, or element by element."""
        if isinstance(other, (int, float, np.number)):
            return SparseMatrix(sm=(self.matrix * other).astype(self.matrix.dtype))
        return self._with(other, lambda a, b: a.multiply(b), "*")

    __rmul__ = __mul__

    def __neg__(self) -> SparseMatrix:
        return SparseMatrix(sm=-self.matrix)

    def __matmul__(self, other: Any) -> Any:
        """Multiply by a sparse matrix, or by a vector of NumPy or diffsim."""
        if isinstance(other, SparseMatrix):
            if self.m != other.n:
                raise _misfit(self.shape, "@", other.shape)
            return SparseMatrix(sm=self.matrix @ other.matrix)
        if not isinstance(other, (np.ndarray, list, Field)):
            raise _no_operand(other, "@")
        if isinstance(other, Field):
            refuse_tape("a product with a sparse matrix")
        return alike(self.matrix @ numbers(other, self.m, "the vector"), other)

    def __getitem__(self, index: Any) -> float:
        return float(self.matrix[self._place(index)])

    def __setitem__(self, index: Any, value: float) -> None:
        place = self._place(index)
        need_number(value, "an element of a sparse matrix", "give a number")
        changed = self.matrix.tolil()
        changed[place] = value
        self.matrix = changed.tocsr()

    def _place(self, index: Any) -> Any:
        pair = isinstance(index, tuple) and len(index) == 2
        if not pair or not all(
            isinstance(i, (int, np.integer)) and 0 <= i < n
            for i, n in zip(index, self.shape, strict=True)
        ):
            raise AccessError(
                f"a sparse matrix of shape {self.shape} has no element {shown(index)}",
                Span.of_caller(),
                hint="write A[i, j], counted from 0",
            )
        return index

    def build_from_ndarray(self, ndarray: Any) -> None:
        """Set the matrix to the sums of triplets (row, column, number), one after the other in an array.

        Example:
            A = ds.linalg.SparseMatrix(2, 2)
            triplets = [0, 0, 1.5, 1, 1, 2.0, 1, 1, 2.0]
            A.build_from_ndarray(np.array(triplets))
            print(A[0, 0], A[1, 1])  # prints: 1.5 4.0
        """
        refuse_tape("a sparse matrix")
        flat = real_array(ndarray, "the array of triplets").reshape(-1)
        triplets = flat.reshape(-1, 3) if flat.size % 3 == 0 else np.full((1, 3), -1)
        with np.errstate(invalid="ignore"):  # NaN, which differs from any integer
            rows, columns = triplets[:, :2].T.astype(np.int64)
        whole = np.array_equal(triplets[:, :2], np.stack([rows, columns], 1))
        if not whole or not all(
            index.min(initial=0) >= 0 and index.max(initial=0) < n
            for index, n in zip((rows, columns), self.shape, strict=True)
        ):
            raise ArgumentError(
                f"this array is not made of triplets for a sparse matrix of shape {self.shape}",
                Span.of_caller(),
                hint="a triplet is a row, a column, both counted from 0, and a number",
            )
        made = need_scipy().coo_matrix((triplets[:, 2], (rows, columns)), self.shape)
        self.matrix = made.tocsr().astype(self.matrix.dtype)

    def mmwrite(self, filename: Any) -> None:
        """Write the matrix to a file in the format Matrix Market.

        Example:
            import scipy.io
            import scipy.sparse

            A = ds.linalg.SparseMatrix(sm=scipy.sparse.diags_array([2.0, 4.0]), dtype=ds.f64)
            A.mmwrite("matrix.mtx")
            print(scipy.io.mminfo("matrix.mtx")[:3])  # prints: (2, 2, 2)
        """
        need_path(filename, "filename")
        need_scipy()
        import scipy.io  # type: ignore[import-untyped, import-not-found, unused-ignore]

        scipy.io.mmwrite(filename, self.matrix)

    def __repr__(self) -> str:
        return f"<sparse matrix {self.dtype}, shape {self.shape}, {self.matrix.nnz} numbers>"

    def __str__(self) -> str:
        return str(np.asarray(self.matrix.todense()))


def _misfit(a: tuple[int, int], sign: str, b: tuple[int, int]) -> KernelTypeError:
    return KernelTypeError(
        f"shapes do not fit together: {a} {sign} {b}",
        Span.of_caller(),
        hint="+, - and * work element by element; @ needs as many rows as there are columns on the left",
    )


def _no_operand(thing: object, sign: str) -> KernelTypeError:
    return KernelTypeError(
        f"a sparse matrix {sign} {shown(thing)} cannot be computed",
        Span.of_caller(),
        hint="compute with sparse matrices and numbers; @ takes vectors of NumPy and ds.ndarray as well",
    )
