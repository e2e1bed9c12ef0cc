"""Structs and tuples as rows of numbers: arguments and results of kernels that consist of several values.

A launch passes scalars, and a kernel returns one tensor. So a struct parameter becomes one parameter for each
of its members, and several results become a vector of f64, which holds every number of 32 bits exactly. An
integer of 64 bits takes two places: the upper and the lower half of its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from diffsim.ir.types import ScalarType, TensorType, Type, f64, size_of, tensor
from diffsim.lang.host.annotations import scalar_type
from diffsim.lang.types.matrix import Matrix
from diffsim.lang.types.structs import Struct, StructType, types_of_tuple


def leaves(t: Any) -> Iterator[Type]:
    """Yield the types of the numbers, vectors and matrices that a type consists of, in order."""
    if isinstance(t, StructType):
        for member in t.members.values():
            yield from leaves(member)
    elif isinstance(t, tuple):
        for part in t:
            yield from leaves(part)
    else:
        yield t


def parts(t: Any, thing: Any) -> Iterator[Any]:
    """Yield the numbers, vectors and matrices of a struct or tuple of Python, in order."""
    if isinstance(t, StructType):
        for name, member in t.members.items():
            yield from parts(member, thing._values[name] if isinstance(thing, Struct) else thing)
    elif isinstance(t, tuple):
        for one, part in zip(thing, t, strict=True):
            yield from parts(part, one)
    else:
        yield thing


def rebuilt(t: Any, take: Callable[[Type], Any], make: Callable[[StructType, Any], Any]) -> Any:
    """Build a thing of a type; `take` gives the next leaf, and `make` a struct of its members."""
    if isinstance(t, StructType):
        return make(t, {name: rebuilt(m, take, make) for name, m in t.members.items()})
    if isinstance(t, tuple):
        return tuple(rebuilt(part, take, make) for part in t)
    return take(t)


def of_leaves(t: Any, things: Iterable[Any], make: Callable[[StructType, Any], Any]) -> Any:
    """Build a thing of a type from its leaves, in order."""
    left = iter(things)
    return rebuilt(t, lambda _: next(left), make)


def is_wide(t: Type) -> bool:
    """Return whether numbers of this type are integers that f64 does not hold."""
    return t.is_int and t.scalar.bits == 64


class ResultForm:
    """The form of a kernel's result that is a struct or several values.

    Attributes:
        type: a struct type, or a tuple of types.
        carrier: the type of the vector that carries it.
    """

    def __init__(self, type_: Any) -> None:
        self.type = type_
        self.sizes = [size_of(t) * (1 + is_wide(t)) for t in leaves(type_)]
        carrier = tensor(f64, (sum(self.sizes),))
        assert isinstance(carrier, TensorType)
        self.carrier = carrier

    def read(self, row: Any, *, followed: bool) -> Any:
        """Return the result, given the carrier; `followed`: floats are taken from it by index, on a tape."""
        numbers = np.asarray(row.array if followed else row.entries, np.float64)
        start = 0

        def take(t: Type) -> Any:
            nonlocal start
            n = size_of(t) * (1 + is_wide(t))
            at = np.arange(start, start + n)
            start += n
            if followed and t.is_float:
                return row[at.reshape(t.shape)] if t.shape else row[int(at[0])]
            return _converted(numbers[at], t)

        return rebuilt(self.type, take, lambda t, members: t(**members))


def _converted(numbers: np.ndarray, t: Type) -> Any:
    """Return a leaf of the carrier's numbers."""
    made: list[Any] = numbers.tolist()
    if not t.is_float:
        made = list(map(int, made))
    if is_wide(t):
        made = [(high << 32) | low for high, low in zip(made[::2], made[1::2], strict=True)]
    if t.scalar.is_bool:
        made = list(map(bool, made))
    return Matrix(np.array(made, t.scalar.numpy).reshape(t.shape), t.scalar) if t.shape else made[0]


def result_form(annotation: Any) -> ResultForm | None:
    """Return the form of a result of several values; None for one number, vector or matrix."""
    types = types_of_tuple(annotation)
    if types is not None:
        return ResultForm(tuple(map(_resolved, types)))
    return ResultForm(annotation) if isinstance(annotation, StructType) else None


def _resolved(t: Any) -> Any:
    types = types_of_tuple(t)
    if types is not None:
        return tuple(map(_resolved, types))
    return t if isinstance(t, (TensorType, StructType, ScalarType)) else scalar_type(t)
