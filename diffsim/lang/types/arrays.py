"""The correspondence between operators of vectors and functions of NumPy; indices and shapes that fit."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.errors import AccessError, ArgumentError, KernelTypeError, Span, shown

# Some of these have reflected operators (`"%d" % x`, complex), but nothing to do with vectors.
_NO_NUMBERS = (type(None), str, bytes, complex, dict, set, type, np.dtype)
OPERATORS: dict[Any, Any] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul,
    np.true_divide: operator.truediv, np.floor_divide: operator.floordiv, np.remainder: operator.mod,
    np.power: operator.pow, np.matmul: operator.matmul, np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_, np.bitwise_xor: operator.xor, np.left_shift: operator.lshift,
    np.right_shift: operator.rshift, np.less: operator.lt, np.less_equal: operator.le,
    np.greater: operator.gt, np.greater_equal: operator.ge, np.equal: operator.eq,
    np.not_equal: operator.ne,
}  # fmt: skip


def checked_index(index: object) -> Any:
    """Return an index of a vector or matrix; raise TypeError for one that makes new axes."""
    # NumPy takes None and `...` for new axes, and a bool for a mask: the result would be no element.
    for k in index if isinstance(index, tuple) else (index,):
        if k is None or k is ... or isinstance(k, (bool, float, str)):
            raise TypeError
    return index


def answers(thing: object) -> bool:
    """Return whether an object has operators of its own, which Python asks next."""
    kind = type(thing)
    return not isinstance(thing, _NO_NUMBERS) and any(
        hasattr(kind, name) for name in ("__radd__", "__rmul__", "__rmatmul__")
    )


def no_element(vector: Any, index: object) -> ArgumentError | AccessError:
    """Return the error for an index at which a vector or matrix has no element."""
    kind: type[ArgumentError | AccessError] = AccessError
    try:
        checked_index(index)
        problem = f"index {shown(index)} is outside {vector}, which has shape {vector.shape}"
    except TypeError:
        kind = ArgumentError
        problem = f"an index of {vector} is a whole number or a slice, not {shown(index)}"
    rows = "" if vector.entries.ndim == 1 else f", those of a column at {vector.m - 1}"
    hint = f"indices start at 0 and end at {len(vector.entries) - 1}{rows}"
    return kind(problem, Span.of_caller(), hint)


def same_shape(name: str, args: Sequence[object]) -> None:
    """Refuse vectors and matrices of different shapes, which NumPy might broadcast."""
    shapes = {np.shape(a): None for a in args if isinstance(a, np.ndarray) and a.ndim}
    if len(shapes) > 1:
        raise KernelTypeError(
            f"{name} cannot combine the shapes {' and '.join(map(str, shapes))}",
            Span.of_caller(),
            hint="it works element by element: all need the same shape",
        )
