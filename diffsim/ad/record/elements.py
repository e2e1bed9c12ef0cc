"""Elements of a field as a tape names them, and access to their values that no tape hears of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import HOST

Box = tuple[Field, int | None]
"""A field, and one row of its time axis (None: all of it)."""


class Run(NamedTuple):
    """The elements `start` to `start + size` of a field, counted in the order of its indices."""

    start: int
    size: int


Index = tuple[int, ...] | Run | None
"""Which elements of a field: one, some, or (None) all."""


def numpy_index(field: Field, index: Index) -> Any:
    """These elements as an index into the field's array."""
    if index is None or not field.shape:
        return ...
    if isinstance(index, Run):
        return np.unravel_index(np.arange(index.start, index.start + index.size), field.shape)
    return index


def values_of(field: Field) -> np.ndarray:
    """What a field holds, to be read: an array of shape `shape` + (components,)."""
    storage = field.storage
    return field._array if storage.device is HOST else storage.to_numpy()


@contextlib.contextmanager
def editing(field: Field) -> Iterator[np.ndarray]:
    """The same to be changed; wherever the field lies, the changes get there at the end."""
    array = values_of(field)
    yield array
    if field.storage.device is not HOST:
        field.storage.from_numpy(array)


def read_elements(field: Field, index: Index) -> np.ndarray:
    """A copy of what stands in these elements."""
    if isinstance(index, tuple) and not isinstance(index, Run):
        return np.array(field.storage.element(field._place(index)))
    return np.array(values_of(field)[numpy_index(field, index)])


def write_elements(field: Field, index: Index, values: Any) -> None:
    """Set these elements, which nobody is told of."""
    if isinstance(index, tuple) and not isinstance(index, Run):
        field.storage.set_element(field._place(index), np.asarray(values))
        return
    with editing(field) as array:
        array[numpy_index(field, index)] = values


def add_elements(field: Field, index: Index, values: Any) -> None:
    """Add to these elements, which nobody is told of."""
    with editing(field) as array:
        array[numpy_index(field, index)] += values
