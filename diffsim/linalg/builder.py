"""`SparseMatrixBuilder`: triplets (row, column, number) that kernels add, `A[i, j] += v`."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, Span, shown
from diffsim.ir.types import f32, i32
from diffsim.lang.builtins.intrinsics import atomic_add
from diffsim.lang.host.func import func
from diffsim.lang.host.signatures import checked_methods
from diffsim.linalg.matrix import SparseMatrix
from diffsim.linalg.vectors import need_dtype, need_scipy, refuse_tape
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.constructors import field


@func
def _append(builder: Any, i: Any, j: Any, v: Any) -> None:
    k = atomic_add(builder.count[None], 1)
    if k < builder.capacity:
        builder.rows[k] = i
        builder.columns[k] = j
        builder.numbers[k] = v


@checked_methods("__init__ build print_triplets")
class SparseMatrixBuilder(metaclass=PublicNames):
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

    _public = "build num_cols num_rows print_triplets"

    _diffsim_append = _append

    def __init__(
        self,
        num_rows: int | None = None,
        num_cols: int | None = None,
        max_num_triplets: int = 0,
        dtype: Any = f32,
        storage_format: str = "col_major",
    ) -> None:
        num_cols = num_rows if num_cols is None else num_cols
        for n in (num_rows, num_cols, max_num_triplets):
            if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
                raise ArgumentError(
                    f"a sparse matrix has at least one row, column and triplet, not {shown(n)}",
                    Span.of_caller(),
                    hint="write ds.linalg.SparseMatrixBuilder(n, n, max_num_triplets=5 * n)",
                )
        assert num_rows is not None
        assert num_cols is not None
        self.shape = int(num_rows), int(num_cols)
        self.capacity = int(max_num_triplets)
        self.dtype = need_dtype(dtype)
        self.count = field(i32, shape=())
        self.rows = field(i32, shape=self.capacity)
        self.columns = field(i32, shape=self.capacity)
        self.numbers = field(self.dtype, shape=self.capacity)

    @property
    def num_rows(self) -> int:
        """The number of rows.

        Example:
            print(ds.linalg.SparseMatrixBuilder(2, 3, max_num_triplets=4).num_rows)  # prints: 2
        """
        return self.shape[0]

    @property
    def num_cols(self) -> int:
        """The number of columns.

        Example:
            print(ds.linalg.SparseMatrixBuilder(2, 3, max_num_triplets=4).num_cols)  # prints: 3
        """
        return self.shape[1]

    def in_words(self) -> str:
        return "a sparse matrix under construction"

    def triplets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, columns and numbers, sorted: the order in which lanes came does not matter."""
        n = self.count[None]
        if n > self.capacity:
            raise ArgumentError(
                f"{n} triplets were added, and there is room for {self.capacity}",
                Span.of_caller(),
                hint=f"write max_num_triplets={n}",
            )
        rows, columns, numbers = (f.to_numpy()[:n] for f in (self.rows, self.columns, self.numbers))
        for name, index, end in (("row", rows, self.shape[0]), ("column", columns, self.shape[1])):
            if n and not 0 <= index.min() <= index.max() < end:
                wrong = index[(index < 0) | (index >= end)][0]
                raise ArgumentError(
                    f"{name} {wrong} is outside a matrix of shape {self.shape}",
                    Span.of_caller(),
                    hint=f"{name}s go from 0 to {end - 1}",
                )
        order = np.lexsort((numbers, columns, rows))
        return rows[order], columns[order], numbers[order]

    def build(self, dtype: Any = None, _format: str = "CSR") -> SparseMatrix:
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
        refuse_tape("a sparse matrix")
        rows, columns, numbers = self.triplets()
        t = self.dtype if dtype is None else need_dtype(dtype)
        coo = need_scipy().coo_matrix((numbers.astype(t.numpy), (rows, columns)), self.shape)
        self.count[None] = 0
        return SparseMatrix(sm=coo.tocsr())

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
        print(f"n={self.shape[0]}, m={self.shape[1]}, num_triplets={self.count[None]}")
        for i, j, v in zip(*self.triplets(), strict=True):
            print(f"({i}, {j}) val={v}")
