"""Checks and converts what Python gives to a field: indices, elements, arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import FieldError, Span, memory_size, shown
from diffsim.ir.op import Tracked
from diffsim.ir.types import an, tensor
from diffsim.lang.host.provenance import holds_field
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field


def refuse_mask(array: object, where: str) -> None:
    """Raise FieldError for an array of NumPy some of whose elements do not count."""
    # Masked arrays would be copied with what is under the mask, silently.
    if isinstance(array, np.ndarray) and hasattr(array, "mask"):  # np.ma would be imported for it
        raise FieldError(
            f"{where}: this array has a mask, which would be ignored",
            Span.of_caller(),
            hint="pass array.filled(value), or array.data to use all elements",
        )


_NOT_AN_ARRAY = np.array(None)


def array_of(value: object) -> np.ndarray:
    """Return a value as an array; of dtype object if it can not be one, as it is if it holds fields."""
    # What the tape does not follow any more is a plain number.
    if isinstance(value, Tracked) and not value.follows():
        value = value.value
    try:
        # NumPy would ask a field for its elements one by one, or copy it; both are mistakes here.
        if holds_field(value):
            return _NOT_AN_ARRAY
        return np.asarray(value.entries if isinstance(value, Matrix) else value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return _NOT_AN_ARRAY  # rows of different lengths, a list that holds itself


def index_of(field: Field, key: object) -> tuple[int, ...]:
    """Return the index of an element, as one number for each axis."""
    if key is None:
        key = ()
    # Vectors of integers index as in kernels: `x[ds.Vector([i, j])]`.
    if isinstance(key, Matrix):
        key = tuple(key.entries.tolist())
    if not isinstance(key, (tuple, list)):
        key = (key,)
    shape = field.shape
    if len(key) != len(shape):
        axes = f"{len(shape)} ax{'i' if len(shape) == 1 else 'e'}s"
        given = f"{len(key)} ind{'ex is' if len(key) == 1 else 'ices are'} given"
        raise FieldError(
            f"{field.name} has {axes}, {given}",
            Span.of_caller(),
            hint=f"write {field._sample()} for an element; {_of_parts(field)}",
        )
    index = []
    for k, n in zip(key, shape, strict=True):
        try:
            if isinstance(k, (bool, np.ndarray)):  # a mask, for NumPy
                raise TypeError
            k = operator.index(k)
        except TypeError:
            raise FieldError(
                f"an index is a whole number, not {'a slice' if isinstance(k, slice) else shown(k)}",
                Span.of_caller(),
                hint=_of_parts(field)
                if isinstance(k, (slice, bool, np.ndarray)) or k is ...
                else "divide with //, or convert it: int(index)",
            ) from None
        # No negative indices: kernels have none, and the same expression should mean the same in both.
        if not 0 <= k < n:
            raise FieldError(
                f"index {shown(tuple(key) if len(key) > 1 else k)} is outside of {field.name}, "
                f"which has shape {shape}",
                Span.of_caller(),
                hint="indices start at 0, and none counts from the end",
            )
        index.append(k)
    return tuple(index)


def _of_parts(field: Field) -> str:
    """Advise how rows and slices of a field are read and written from Python."""
    name = field._called()
    return (
        f"a part is read from a copy, {name}.to_numpy()[...], and written element by element, "
        f"{field._sample()} = value, or with the whole: {name}.from_numpy(array)"
    )


def scalar_of(field: Field, value: object) -> Any:
    """Return a number for an element of a field of scalars."""
    # `np.array([1.0])` and 0-D arrays are what NumPy's reductions give.
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, Tracked):
        # Asks a recorded value for a float, which raises while its tape records: a constant would lose the
        # gradient.
        value = float(value)  # type: ignore[arg-type]
    t = an(field.dtype)
    if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        raise FieldError(
            f"an element of {field.name} is {t}, not {describe(value)}",
            Span.of_caller(),
            hint="give one number; all elements are set by from_numpy",
        )
    # A fraction is never dropped without the user's word.
    if field.dtype.is_int and isinstance(value, (float, np.floating)):
        raise FieldError(
            f"an element of {field.name} is {t}, {shown(value)} would lose its fraction",
            Span.of_caller(),
            hint="convert it: int(value)",
        )
    # Large integers: NumPy would wrap around, or give infinity.
    if isinstance(value, (int, np.integer)) and not _fits(field, int(value)):
        raise _does_not_fit(field, int(value))
    return value


def element_of(field: Field, value: object) -> Any:
    """Return the components for an element of a field of vectors or matrices."""
    made = array_of(value)
    t = an(tensor(field.dtype, field.element))
    if made.dtype.kind not in "biuf" or made.shape not in ((), field.element):
        # An integer beyond 64 bits becomes an object for NumPy.
        if isinstance(value, int) and made.dtype.kind == "O":
            raise _does_not_fit(field, value)
        raise FieldError(
            f"an element of {field.name} is {t}, not {shown(value)}",
            Span.of_caller(),
            hint="give a list of that shape, or one number for all components",
        )
    if field.dtype.is_int and made.dtype.kind == "f":
        raise FieldError(
            f"an element of {field.name} is {t}, {shown(value)} would lose its fractions",
            Span.of_caller(),
            hint="convert it: int(value)",
        )
    check_range(field, made)
    # One contiguous array, as storages copy components in memory order.
    return np.broadcast_to(made, field.element).reshape(-1)


def check_range(field: Field, given: np.ndarray) -> None:
    """Refuse integers that would be cut to the field's type."""
    # Narrower integers always fit. The extremes decide for all elements.
    if field.dtype.is_int and given.dtype.itemsize >= field.dtype.bytes and given.size:
        for number in (int(given.min()), int(given.max())):
            if not field.dtype.holds(number):
                raise _does_not_fit(field, number)


def _fits(field: Field, number: int) -> bool:
    if field.dtype.is_int:
        return field.dtype.holds(number)
    try:
        # Only integers can overflow a double; floats beyond f32 become infinity, as in IEEE 754.
        return float(number) is not None
    except OverflowError:
        return False


def _does_not_fit(field: Field, number: int) -> FieldError:
    return FieldError(
        f"an element of {field.name} is {an(field.dtype)}, and {shown(number)} does not fit into it",
        Span.of_caller(),
        hint="declare the field with a wider type, such as ds.i64"
        if field.dtype.is_int
        else "give a number below 1e308, or float('inf')",
    )


def kept(field: Any) -> Any:
    """Return a copy of what was written to a field, for a tape."""
    storage = field._storage
    try:
        # The array given may change after the statement; the tape's replay needs it as it was.
        return storage.snapshot()
    except MemoryError:
        raise FieldError(
            f"there is no memory for the tape to keep what was written to {field.name}: it takes "
            f"{memory_size(storage.layout.nbytes)}",
            Span.of_caller(),
            hint="write it before the block of the tape, or less often in it",
        ) from None
