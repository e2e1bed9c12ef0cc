"""Vectors and matrices among the arguments of a launch, flattened without asking twice.

`flatten` (`binding/arguments.py`) takes whatever stands for a vector, and says what is wrong with it. Nearly
all launches are given a `ds.Vector`, an array or a list of floats: these are rounded and flattened here,
together with floats and whole numbers beside them, in a fifth of the time. For anything else the answer is
None.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ir.types import ScalarType, f32, f64, size_of
from diffsim.lang.types.matrix import Matrix

if TYPE_CHECKING:
    Parameter = Any  # of a room above this one: runtime/kernels/arguments.Parameter

Numbers = Callable[[Any], Sequence[Any] | None]
_FLOATS = frozenset("fd")  # NumPy's characters for f32 and f64


def numbers_of(parameters: Sequence[Parameter]) -> Callable[..., list[Any] | None] | None:
    """Return what flattens arguments passed by value, or gives None; None: no vectors of floats."""
    ways = [_way(p) for p in parameters]
    shaped = [p.type is not None and bool(p.type.shape) for p in parameters]
    if None in ways or not any(shaped):
        return None

    def numbers(*args: Any) -> list[Any] | None:
        flat: list[Any] = []
        for way, a in zip(ways, args, strict=True):
            found = way(a)  # type: ignore[misc]
            if found is None:
                return None
            flat += found
        return flat

    return numbers


def _way(p: Parameter) -> Numbers | None:
    t = p.type
    if t is None or t.is_bool:
        return None
    if not t.shape:
        return _whole(t.scalar) if t.is_int else _float(t.scalar)
    return _floats(size_of(t), t.shape, t.scalar)


def _rounding(count: int, t: ScalarType) -> Callable[..., Sequence[float]] | None:
    """Return what rounds so many floats; it raises OverflowError for what becomes infinite."""
    if t is f64:
        return lambda *given: given
    if t is not f32:
        return None
    form = struct.Struct(f"={count}f")
    return lambda *given: form.unpack(form.pack(*given))


def _whole(t: ScalarType) -> Numbers:
    return lambda a: (a,) if a.__class__ is int and t.holds(a) else None


def _float(t: ScalarType) -> Numbers | None:
    rounded = _rounding(1, t)
    if rounded is None:
        return None

    def numbers(a: Any) -> Sequence[float] | None:
        try:
            return rounded(a) if a.__class__ is float else None
        except OverflowError:
            return None

    return numbers


def _floats(count: int, shape: tuple[int, ...], t: ScalarType) -> Numbers | None:
    rounded = _rounding(count, t)
    if rounded is None:
        return None

    def numbers(a: Any) -> Sequence[float] | None:
        given = a.entries if a.__class__ is Matrix else a
        if given.__class__ is np.ndarray:
            if given.shape != shape or given.dtype.char not in _FLOATS:
                return None
            given = given.tolist() if len(shape) == 1 else given.ravel().tolist()
        elif given.__class__ not in (list, tuple) or shape != (len(given),):
            return None
        else:
            for one in given:
                if one.__class__ is not float:
                    return None
        try:
            return rounded(*given)
        except OverflowError:  # infinite: NumPy knows
            return None

    return numbers
