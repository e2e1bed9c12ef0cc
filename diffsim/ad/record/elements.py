"""Addresses of field elements on a tape, and access to their values that is not recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import HOST

Box = tuple[Field, int | None]
"""A field and one row of its time axis (None: the whole field)."""


class Run(NamedTuple):
    """The elements `start` to `start + size` of a field, in row-major order of its indices."""

    start: int
    size: int


Index = tuple[int, ...] | Run | None
"""Elements of a field: a single one, a contiguous run, or (None) all."""
Elements = Index | np.ndarray
"""The same; an array of booleans of the field's shape: those that are True."""


def numpy_index(field: Field, index: Elements) -> Any:
    """Return the NumPy index of these elements in the array of `values_of`."""
    if isinstance(index, np.ndarray):
        return index
    if index is None or not field.shape:
        return ...
    if isinstance(index, Run):
        return np.unravel_index(np.arange(index.start, index.start + index.size), field.shape)
    return index


def values_of(field: Field) -> np.ndarray:
    """Return the values of a field for reading: an array of shape `shape` + (components,).

    On the host it is a view of the field's memory, on a GPU a copy.
    """
    storage = field.storage
    return field._array if storage.device is HOST else storage.to_numpy()


@contextlib.contextmanager
def editing(field: Field) -> Iterator[np.ndarray]:
    """Give the same array for writing; changes are copied back to a GPU at the end of the block."""
    array = values_of(field)
    yield array
    # After the block only: an exception inside of it leaves the GPU's memory as it was.
    if field.storage.device is not HOST:
        field.storage.from_numpy(array)


def read_elements(field: Field, index: Elements) -> np.ndarray:
    """Return a copy of these elements."""
    # A single element without going through an array: on a GPU that would transfer the whole field.
    if isinstance(index, tuple) and not isinstance(index, Run):
        return np.array(field.storage.element(field._place(index)))
    return np.array(values_of(field)[numpy_index(field, index)])


def write_elements(field: Field, index: Elements, values: Any) -> None:
    """Set these elements; neither tapes nor versions take note."""
    if isinstance(index, tuple) and not isinstance(index, Run):
        field.storage.set_element(field._place(index), np.asarray(values))
        return
    with editing(field) as array:
        array[numpy_index(field, index)] = values


def add_elements(field: Field, index: Index, values: Any) -> None:
    """Add to these elements; neither tapes nor versions take note."""
    with editing(field) as array:
        array[numpy_index(field, index)] += values
