"""The formulas of the methods of vectors and matrices.

Each is a formula over ops of the table, so it works on values inside a kernel and on NumPy arrays outside,
and its derivative follows from those of the ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.ir import builder_stack
from diffsim.ir.nodes import Value
from diffsim.ir.ops import (
    absolute,
    extract,
    logical_and,
    logical_or,
    matmul,
    maximum,
    minimum,
    ne,
    outer,
    reduce_sum,
    select,
    sqrt,
    transpose,
)


def shape(a: Any) -> tuple[int, ...]:
    """Return the shape of a tensor value or array."""
    return a.type.shape if isinstance(a, Value) else tuple(np.shape(a))


def pack(elements: list[Any], dims: tuple[int, ...]) -> Any:
    """Make a tensor of scalars in row order."""
    # Constants alone remain an array, so that formulas of constants are folded.
    if builder_stack.active() and any(isinstance(e, Value) for e in elements):
        return builder_stack.builder().tensor_of(elements, dims)
    return np.array(elements).reshape(dims)


def elements(a: Any) -> list[Any]:
    """Return the scalars of a tensor in row order."""
    return [extract(a, *i) for i in np.ndindex(*shape(a))]


def _need(ok: bool, problem: str) -> None:
    """Raise ValueError unless the condition holds; callers turn it into an error with a line."""
    if not ok:
        raise ValueError(problem)


def dot(a: Any, other: Any) -> Any:
    """Scalar product of two vectors (of two matrices: sum of the products of their elements).

    Raises:
        KernelTypeError: the shapes differ.

    Example:
        print(ds.Vector([1.0, 2.0]).dot(ds.Vector([3.0, 4.0])))  # prints: 11.0
    """
    _need(
        shape(a) == shape(other),
        f"dot needs the same shape twice, not {shape(a)} and {shape(other)}",
    )
    return reduce_sum(a * other)


def norm_sqr(a: Any, eps: Any = 0) -> Any:
    """Sum of the squares of the elements, plus eps.

    Example:
        print(ds.Vector([3.0, 4.0]).norm_sqr())  # prints: 25.0
    """
    return reduce_sum(a * a) + eps


def norm(a: Any, eps: Any = 0) -> Any:
    """sqrt(norm_sqr() + eps); its derivative at 0 is 0.

    Example:
        print(ds.Vector([3.0, 4.0]).norm())  # prints: 5.0
    """
    # The row of sqrt has derivative 0 at 0 instead of infinity, which times 0 would be NaN.
    return sqrt(norm_sqr(a, eps))


def norm_inv(a: Any, eps: Any = 0) -> Any:
    """1 / norm(eps).

    Example:
        print(ds.Vector([3.0, 4.0]).norm_inv())  # prints: 0.2
    """
    return 1.0 / norm(a, eps)


def normalized(a: Any, eps: Any = 0) -> Any:
    """The vector divided by (norm() + eps).

    Example:
        print(ds.Vector([3.0, 4.0]).normalized())  # prints: [0.6, 0.8]
    """
    return a / (norm(a) + eps)


def cross(a: Any, other: Any) -> Any:
    """Vector product of two 3-vectors; of two 2-vectors its (scalar) third component.

    Raises:
        KernelTypeError: these are no two vectors of 2 or of 3 elements.

    Example:
        print(ds.Vector([1.0, 0.0, 0.0]).cross(ds.Vector([0.0, 1.0, 0.0])))  # prints: [0.0, 0.0, 1.0]
    """
    _need(
        shape(a) == shape(other) and shape(a) in ((2,), (3,)),
        "cross needs two vectors of 2 or 3 elements",
    )
    a, other = elements(a), elements(other)
    # The third component of the product of (a, 0) and (other, 0).
    if len(a) == 2:
        return a[0] * other[1] - a[1] * other[0]
    # Negative indices wrap around: k - 2 and k - 1 are the two other axes in cyclic order.
    return pack([a[k - 2] * other[k - 1] - a[k - 1] * other[k - 2] for k in range(3)], (3,))


def outer_product(a: Any, other: Any) -> Any:
    """Matrix of the products a[i] * other[j].

    Example:
        print(ds.Vector([1, 2]).outer_product(ds.Vector([3, 4])))  # prints: [[3, 4], [6, 8]]
    """
    return outer(a, other)


def trace(a: Any) -> Any:
    """Sum of the diagonal.

    Raises:
        KernelTypeError: the matrix is not square.

    Example:
        print(ds.Matrix([[1, 2], [3, 4]]).trace())  # prints: 5
    """
    n = _square(a, "trace")
    # Begins with an element, not with 0: a 0 would have a type of its own, and be one addition more.
    total = extract(a, 0, 0)
    for k in range(1, n):
        total = total + extract(a, k, k)
    return total


def _square(a: Any, what: str, largest: int = 99) -> int:
    """Return the number of rows of a square matrix; refuse others."""
    dims = shape(a)
    _need(len(dims) == 2 and dims[0] == dims[1], f"{what} needs a square matrix, not shape {dims}")
    _need(dims[0] <= largest, f"{what} is there for matrices up to {largest} x {largest}")
    return dims[0]


def _minor(rows: list[list[Any]], i: int, j: int) -> list[list[Any]]:
    """Return the rows without row i and column j."""
    return [row[:j] + row[j + 1 :] for k, row in enumerate(rows) if k != i]


def _expand(rows: list[list[Any]]) -> Any:
    """Return the determinant by expansion along the first row."""
    # Base cases. An n x n determinant has n! products: hence the limit of 4.
    if len(rows) == 1:
        return rows[0][0]
    if len(rows) == 2:
        return rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0]
    total = rows[0][0] * _expand(_minor(rows, 0, 0))
    for j in range(1, len(rows)):
        term = rows[0][j] * _expand(_minor(rows, 0, j))
        total = total + term if j % 2 == 0 else total - term
    return total


def transposed(a: Any) -> Any:
    """Matrix with rows and columns exchanged.

    Example:
        print(ds.Matrix([[1, 2], [3, 4]]).transpose())  # prints: [[1, 3], [2, 4]]
    """
    return transpose(a)


def determinant(a: Any) -> Any:
    """Determinant of a matrix up to 4 x 4 (expansion by minors).

    Raises:
        KernelTypeError: the matrix is not square, or larger than 4 x 4.

    Example:
        print(ds.Matrix([[1, 2], [3, 4]]).determinant())  # prints: -2
    """
    n = _square(a, "determinant", 4)
    flat = elements(a)
    return _expand([flat[i * n : (i + 1) * n] for i in range(n)])


def inverse(a: Any) -> Any:
    """Inverse of a matrix up to 4 x 4 (adjugate over determinant).

    Raises:
        KernelTypeError: the matrix is not square, or larger than 4 x 4.

    Example:
        print(ds.Matrix([[1.0, 2.0], [3.0, 4.0]]).inverse())  # prints: [[-2.0, 1.0], [1.5, -0.5]]
    """
    n = _square(a, "inverse", 4)
    flat = elements(a)
    rows = [flat[i * n : (i + 1) * n] for i in range(n)]
    # The minor of a 1 x 1 matrix has no elements.
    if n == 1:
        return pack([1.0 / flat[0]], (1, 1))
    # Cramer's rule: element (i, j) of the inverse is the cofactor of (j, i) over the determinant. Unlike
    # Gaussian elimination it needs no pivoting, and so no branches between lanes.
    scale = 1.0 / _expand(rows)
    out = []
    for i in range(n):
        for j in range(n):
            minor = _expand(_minor(rows, j, i))
            out.append(scale * minor if (i + j) % 2 == 0 else -scale * minor)
    return pack(out, (n, n))


def solve(A: Any, b: Any) -> Any:
    """The x with A x = b, of a square matrix up to 6 x 6 and a vector or matrix (Gaussian elimination).

    Raises:
        KernelTypeError: the matrix is not square or larger than 6 x 6, or has another number of rows.

    Example:
        A = ds.Matrix([[2.0, 1.0], [1.0, 3.0]])
        print(ds.solve(A, ds.Vector([3.0, 4.0])))  # prints: [1.0, 1.0]
    """
    n = _square(A, "solve", 6)
    dims = shape(b)
    _need(bool(dims) and dims[0] == n, f"solve needs {n} rows on the right, not shape {dims}")
    width = 1 if len(dims) == 1 else dims[1]
    left, right = elements(A), elements(b)
    rows = [left[i * n : (i + 1) * n] + right[i * width : (i + 1) * width] for i in range(n)]
    for k in range(n):
        # The row with the largest number comes up, by selects: lanes have pivots of their own.
        for i in range(k + 1, n):
            swap = absolute(rows[i][k]) > absolute(rows[k][k])
            pairs = list(zip(rows[k], rows[i], strict=True))
            rows[k] = [select(swap, y, x) for x, y in pairs]
            rows[i] = [select(swap, x, y) for x, y in pairs]
        for i in range(k + 1, n):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [y - factor * x for x, y in zip(rows[k], rows[i], strict=True)]
    out: list[Any] = [None] * n
    for i in reversed(range(n)):
        out[i] = rows[i][n:]
        for j in range(i + 1, n):
            out[i] = [x - rows[i][j] * y for x, y in zip(out[i], out[j], strict=True)]
        out[i] = [x / rows[i][i] for x in out[i]]
    return pack([x for row in out for x in row], dims)


def total(a: Any) -> Any:
    """Sum of all elements.

    Example:
        print(ds.Matrix([[1, 2], [3, 4]]).sum())  # prints: 10
    """
    return reduce_sum(a)


def largest(a: Any) -> Any:
    """Largest element.

    Example:
        print(ds.Vector([3, 1, 2]).max())  # prints: 3
    """
    first, *rest = elements(a)
    for e in rest:
        first = maximum(first, e)
    return first


def smallest(a: Any) -> Any:
    """Smallest element.

    Example:
        print(ds.Vector([3, 1, 2]).min())  # prints: 1
    """
    first, *rest = elements(a)
    for e in rest:
        first = minimum(first, e)
    return first


def multiply(a: Any, b: Any) -> Any:
    """Matrix product `a @ b` of matrices, or of a matrix and a vector."""
    return matmul(a, b)


def _truths(a: Any) -> list[Any]:
    """Return the elements as booleans."""
    # As in Python, a number is true if it is not 0.
    return [e if _is_bool(e) else ne(e, 0) for e in elements(a)]


def _is_bool(e: Any) -> bool:
    return e.type.is_bool if isinstance(e, Value) else isinstance(e, (bool, np.bool_))


def every(a: Any) -> Any:
    """Whether all elements are true, or not 0: `(a < b).all()`.

    Example:
        print((ds.Vector([1, 2]) < ds.Vector([2, 2])).all())  # prints: False
    """
    return functools.reduce(logical_and, _truths(a))


def some(a: Any) -> Any:
    """Whether any element is true, or not 0: `(a < b).any()`.

    Example:
        print((ds.Vector([1, 2]) < ds.Vector([2, 2])).any())  # prints: True
    """
    return functools.reduce(logical_or, _truths(a))


# Names as in Taichi. The first line of each function's documentation is shown as advice in errors.
METHODS: dict[str, Callable[..., Any]] = {
    "dot": dot,
    "norm": norm,
    "norm_sqr": norm_sqr,
    "norm_inv": norm_inv,
    "normalized": normalized,
    "cross": cross,
    "outer_product": outer_product,
    "trace": trace,
    "transpose": transposed,
    "determinant": determinant,
    "inverse": inverse,
    "sum": total,
    "max": largest,
    "min": smallest,
    "all": every,
    "any": some,
}

_NAMES = ("xyzw", "rgba", "stpq")
COMPONENTS = {letter: k for names in _NAMES for k, letter in enumerate(names)}
"""Elements of vectors by name, as in GLSL: of positions, colours and textures."""


def swizzle(name: str) -> list[int] | None:
    """Return the elements that `.xy`, `.zyx` or `.rgb` names; None for other names."""
    # One letter is a component, not a vector of one element.
    if len(name) > 1 and any(set(name) <= set(names) for names in _NAMES):
        return [COMPONENTS[letter] for letter in name]
    return None
