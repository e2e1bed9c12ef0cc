"""Type rules of the ops that work on tensors as wholes, and their references.

A type rule gets the builder's operands and the type asked for (None where the operands decide), and
returns the result's type or raises ValueError with what does not fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import TensorType, Type, an, tensor


def given(args: tuple[Value, ...], wanted: Type | None) -> Type:
    """Return the type that the caller asks for."""
    assert wanted is not None
    return wanted


def build(args: tuple[Value, ...], wanted: Type | None) -> Type:
    """Return the tensor type asked for; it holds as many scalars as there are arguments."""
    assert isinstance(wanted, TensorType)
    assert wanted.size == len(args)
    return wanted


def scalar_of(args: tuple[Value, ...], wanted: Type | None) -> Type:
    """Return the scalar type of the first argument."""
    return args[0].type.scalar


def extract(args: tuple[Value, ...], wanted: Type | None) -> Type:
    """Return the type of one element of a tensor."""
    t, *index = args
    if len(index) != len(t.type.shape):
        raise ValueError(f"{an(t.type)} needs {len(t.type.shape)} indices, {len(index)} given")
    for k, n in zip(index, t.type.shape, strict=True):
        # An index known only at run time cannot be refused here.
        if isinstance(k, Const) and not 0 <= k.value < n:
            raise ValueError(f"index {k.value} is outside {an(t.type)}")
    return t.type.scalar


def insert(args: tuple[Value, ...], wanted: Type | None) -> Type:
    """Return the type of a tensor with one element replaced: its own."""
    extract((args[0], *args[2:]), None)
    return args[0].type


def transpose(args: tuple[Value, ...], wanted: Type | None) -> Type:
    """Return the type of the transpose of a matrix."""
    shape = args[0].type.shape
    if len(shape) != 2:
        raise ValueError(f"only a matrix can be transposed, this is {an(args[0].type)}")
    return tensor(args[0].type.scalar, shape[::-1])


def matmul(args: tuple[Value, ...], wanted: Type | None) -> Type:
    """Return the type of the product of a matrix with a matrix or vector."""
    a, b = (x.type.shape for x in args)
    if len(a) != 2 or len(b) not in (1, 2) or a[1] != b[0]:
        raise ValueError(
            f"{an(args[0].type)} cannot be multiplied (@) by {an(args[1].type)}: as many rows are "
            "needed on the right as there are columns on the left"
        )
    return tensor(args[0].type.scalar, (a[0], *b[1:]))


def outer(args: tuple[Value, ...], wanted: Type | None) -> Type:
    """Return the type of the outer product of two vectors."""
    a, b = (x.type.shape for x in args)
    if len(a) != 1 or len(b) != 1:
        raise ValueError(
            f"an outer product needs two vectors, not {an(args[0].type)} and {an(args[1].type)}"
        )
    return tensor(args[0].type.scalar, (a[0], b[0]))


def position(t: Type, k: int) -> tuple[int, ...]:
    """Return the index of the k-th element in row-major order."""
    return tuple(int(i) for i in np.unravel_index(k, t.shape))


def build_reference(*xs: Any) -> Any:
    """Evaluate `build` in NumPy."""
    return np.array(xs)


def insert_reference(t: Any, x: Any, *index: Any) -> Any:
    """Evaluate `insert` in NumPy."""
    out = np.array(t)
    out[tuple(int(i) for i in index)] = x
    return out
