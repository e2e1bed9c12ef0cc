"""Checks and converts what Python gives to a field: indices, elements, arrays; writes parts of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import (
    AccessError,
    ArgumentError,
    DtypeError,
    FieldError,
    OutOfMemoryError,
    Span,
    memory_size,
    shown,
)
from diffsim.ir.layout import shown_index
from diffsim.ir.op import Tracked
from diffsim.ir.types import an, tensor
from diffsim.lang.host.field_like import is_any_field, is_component, is_field
from diffsim.lang.host.provenance import holds_field, source_of
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.memory.storage import HostStorage
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field


def refuse_mask(array: object, where: str) -> None:
    """Raise ArgumentError for an array of NumPy some of whose elements do not count."""
    # Masked arrays would be copied with what is under the mask, silently.
    if isinstance(array, np.ndarray) and hasattr(array, "mask"):  # np.ma would be imported for it
        raise FieldError(
            f"{where}: this array has a mask, which would be ignored",
            Span.of_caller(),
            hint="pass array.filled(value), or array.data to use all elements",
        )


_NOT_AN_ARRAY = np.array(None)


def array_of(value: object) -> np.ndarray:
    """Return a value as an array; of dtype object if it cannot be one, as it is if it holds fields."""
    if value.__class__ is Matrix and value.entries.dtype != object:
        numbers: np.ndarray = value.entries
        return numbers
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
    """Return the index of an element, as one number for each axis that counts from 0."""
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
    return _numbers(field, key)


def _numbers(field: Field, key: tuple[Any, ...] | list[Any]) -> tuple[int, ...]:
    """Return indices along the first axes as numbers that count from 0."""
    index = []
    for k, n, first in zip(key, field.shape, field.origin, strict=False):
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
        if not 0 <= k - first < n:
            raise AccessError(
                f"index {shown(tuple(key) if len(key) > 1 else k)} is outside {field.name}, "
                f"which has shape {field.shape}",
                Span.of_caller(),
                hint=f"its first index is {shown(field.origin)}, its offset"
                if any(field.origin)
                else "indices start at 0, and none counts from the end",
            )
        index.append(k - first)
    return tuple(index)


def number_of(field: Field, index: tuple[int, ...]) -> int:
    """Return the number of an element's first component among the scalars in memory.

    Args:
        field: where it is.
        index: of the element, counted from 0.
    """
    return sum(map(operator.mul, index, field._strides))


def row_of(field: Field, key: object) -> tuple[int, ...]:
    """Return the first indices of a row, as in `x[t] = array` or `x[t, :] = array`; empty if it is none."""
    if isinstance(key, tuple):
        if key and key[-1].__class__ is int and len(key) == len(field.shape):
            return ()  # the usual case
        while key and (key[-1] is ... or (isinstance(key[-1], slice) and key[-1] == slice(None))):
            key = key[:-1]
    else:
        key = (key,)
    # Whatever else is wrong with an index, `index_of` says.
    if not 0 < len(key) < len(field.shape) or not all(hasattr(k, "__index__") for k in key):
        return ()
    return _numbers(field, key)


def checked_array(
    field: Field, value: object, shape: tuple[int, ...], name: Callable[[], str]
) -> np.ndarray:
    """Return the elements for a part of a field of this shape as an array.

    `name`: of the part, for messages; it may have to be searched for among the program's variables.

    Raises:
        ArgumentError: of another shape or type, with a mask, or with numbers that do not fit.
    """
    if hasattr(value, "mask"):
        refuse_mask(value, name())
    given = array_of(value)
    want = shape + field.element
    # A vector is a matrix of one column: (n,) and (n, 1) are arrays of the same elements.
    if given.shape != want and field.element and given.shape in _of_columns(field, shape):
        given = given.reshape(want)
    if given.shape != want:
        raise FieldError(
            f"{name()} needs an array of shape {want}, this one has {given.shape}",
            Span.of_caller(),
            hint=_of_shape(field, value, shape),
        )
    if not np.can_cast(given.dtype, field.dtype.numpy, "same_kind"):  # never floats to integers
        raise DtypeError(
            f"an element of {field.name} is {an(field.dtype)}, "
            f"an array of {given.dtype} cannot be copied into it",
            Span.of_caller(),
            hint=f"convert it: array.astype(np.{field.dtype.numpy})",
        )
    check_range(field, given)
    return given


def _of_columns(field: Field, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes of arrays of vectors, or of matrices of one column; of others there are none."""
    return [(*shape, field.n), (*shape, field.n, 1)] if field.m == 1 else []


def _of_shape(field: Field, value: object, shape: tuple[int, ...]) -> str:
    """Advise what to give for a part of a field of this shape."""
    if is_any_field(value):
        return "of a field take a copy, to_numpy(), or copy the elements in a kernel"
    if isinstance(value, (int, float)):
        return f"for one number everywhere: np.full({shape + field.element}, {shown(value)})"
    if field.element:
        return "its axes are those of the field, then those of an element"
    if len(shape) < len(field.shape):
        return "give a number for each element of the row"
    return f"reshape the array, or declare {field.name} with its shape"


def _of_parts(field: Field) -> str:
    """Advise how rows and slices of a field are read and written from Python."""
    name = field._called()
    row = f"a row by {name}[i] = array, " if len(field.shape) > 1 else ""
    return (
        f"a part is read from a copy, {name}.to_numpy()[...]; an element is written by "
        f"{field._sample()} = value, {row}all by {name}.from_numpy(array)"
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
        raise DtypeError(
            f"an element of {field.name} is {t}, not {describe(value)}",
            Span.of_caller(),
            hint="give one number; all elements are set by from_numpy",
        )
    # A fraction is never dropped without the user's word.
    if field.dtype.is_int and isinstance(value, (float, np.floating)):
        raise _no_integer(field, t, value, "its fraction", finite=bool(np.isfinite(value)))
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
        raise DtypeError(
            f"an element of {field.name} is {t}, not {shown(value)}",
            Span.of_caller(),
            hint="give a list of that shape, or one number for all components",
        )
    if field.dtype.is_int and made.dtype.kind == "f":
        raise _no_integer(field, t, value, "its fractions", finite=bool(np.isfinite(made).all()))
    check_range(field, made)
    # One contiguous array, as storages copy components in memory order.
    return np.broadcast_to(made, field.element).reshape(-1)


def _no_integer(field: Field, t: str, value: object, lost: str, *, finite: bool) -> DtypeError:
    """Return the error for floats that are given for integers."""
    why = f"would lose {lost}" if finite else "is no whole number"
    return DtypeError(
        f"an element of {field.name} is {t}, {shown(value)} {why}",
        Span.of_caller(),
        hint="convert it: int(value)" if finite else "find out where it becomes NaN or infinite",
    )


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


def _does_not_fit(field: Field, number: int) -> ArgumentError:
    return DtypeError(
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
        raise OutOfMemoryError(
            f"there is no memory for the tape to keep what was written to {field.name}: it takes "
            f"{memory_size(storage.layout.nbytes)}",
            Span.of_caller(),
            hint="write it before the block of the tape, or less often in it",
        ) from None


def set_row(field: Field, row: tuple[int, ...], value: object) -> None:
    """Set the elements whose first indices are these to those of an array."""
    rest = field.shape[len(row) :]
    array = checked_array(field, value, rest, lambda: f"{field._called()}{[*row]}")
    # A tape notes elements: each is then a constant, an input or a seed by itself.
    if session.recorders and session.listener:
        source = source_of(value)
        for index in np.ndindex(*rest):
            # What Python made of a field with a derivative is refused, or noted, as for elements.
            element = array[index]
            at = tuple(map(operator.add, (*row, *index), field.origin))
            field[at] = element if source is None else source.mark(element)
        return
    storage = field.storage
    here = storage.array if isinstance(storage, HostStorage) else storage.to_numpy()
    here[row] = array.reshape(*rest, -1)
    if not isinstance(storage, HostStorage):
        storage.from_numpy(here)
    axis = field.versions.axis
    known = axis is not None and axis < len(row)
    field._touch(
        field.versions.row_at(row) if known else None, (*row, ...), session.contents_of(array)
    )
    if field.tree is not None and not field.is_grad:
        cells, place = field.tree
        for index in np.ndindex(*rest):
            cells.activate(place, (*row, *index), field.versions.writer)


def set_components(field: Field, at: int, was: np.ndarray, value: Matrix) -> None:
    """Set an element, some components of which have been changed since it was read.

    Args:
        field: a field of vectors or matrices.
        at: the number of the element in memory.
        was: its components as they were read.
        value: what to set it to.
    """
    index = _index_at(field, at)
    name = f"{field._called()}[{shown_index(field.origin, index)}]"
    if session.recorders and session.tape:
        raise FieldError(
            f"components of {name} cannot be set by themselves while "
            + (
                "forward mode is on: it sets tangents of whole elements"
                if session.tape.tangents
                else "a tape records: the tape knows whole elements"
            ),
            Span.of_caller(),
            hint=f"assign the whole element, {name} = [...], or set the component in a kernel, or before "
            "the block of the tape",
        )
    # Byte by byte: -0.0 is another number than 0.0, and a NaN is the same one.
    if field._storage.element(at).tobytes() != was.tobytes():
        raise FieldError(
            f"{name} has changed since this vector was read, so its components cannot be set through it",
            Span.of_caller(),
            hint=f"write {name}[k] = value; or change a vector of its own: copy.copy(v)",
        )
    field[tuple(map(operator.add, index, field.origin))] = value


def _index_at(field: Field, at: int) -> tuple[int, ...]:
    """Return the index of the element with this number in memory."""
    index = [0] * len(field.shape)
    for axis in field._order:
        index[axis], at = divmod(at, field._strides[axis])
    return tuple(index)


def check_copy(field: Field, other: Any) -> None:
    """Refuse to copy what is no field of the same shape, or of a type that would be cut off."""
    known = is_field(other) or (is_component(field) and is_component(other))
    if not known or (other.shape, other.element) != (field.shape, field.element):
        raise FieldError(
            f"{field.name} can only be copied from a field of shape {field.shape} whose elements are "
            f"{'numbers' if not field.element else f'of shape {field.element}'}",
            Span.of_caller(),
            hint="a copy of a component is from_numpy(v.to_numpy())"
            if is_component(other)
            else "arrays are copied by from_numpy",
        )
    if not np.can_cast(other.dtype.numpy, field.dtype.numpy, "same_kind"):
        raise DtypeError(
            f"an element of {field.name} is {an(field.dtype)}, one of {other.name} {an(other.dtype)}",
            Span.of_caller(),
            hint="convert in a kernel with ds.cast",
        )
