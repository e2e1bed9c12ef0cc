"""Addresses of field elements on a tape, and access to their values that is not recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from diffsim.runtime.fields.adjoints import make_dual
from diffsim.runtime.fields.conversions import number_of
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


def dual_elements(field: Field, index: Elements, tangents: int) -> Elements:
    """Return where the tangents of these elements are in the field's dual for so many."""
    k = tangents
    if k == 1 or index is None:
        return index
    if isinstance(index, np.ndarray):
        return np.broadcast_to(index[..., None], (*field.shape, k))
    if isinstance(index, Run):
        return Run(index.start * k, index.size * k)
    start = int(np.ravel_multi_index(index, field.shape)) if index else 0
    return Run(start * k, k)


def with_tangents(field: Field, index: Elements, tangents: int) -> Iterator[tuple[Field, Elements]]:
    """Yield these elements, and those of their tangents in the field's dual, if it has one."""
    yield field, index
    dual = field.duals.get(tangents)
    if dual is not None:
        yield dual, dual_elements(field, index, tangents)


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
    # After the block only: an exception inside it leaves the GPU's memory as it was.
    if field.storage.device is not HOST:
        field.storage.from_numpy(array)


def read_elements(field: Field, index: Elements) -> np.ndarray:
    """Return a copy of these elements."""
    # A single element without going through an array: on a GPU that would transfer the whole field.
    if isinstance(index, tuple) and not isinstance(index, Run):
        return np.array(field.storage.element(number_of(field, index)))
    return np.array(values_of(field)[numpy_index(field, index)])


def write_elements(field: Field, index: Elements, values: Any) -> None:
    """Set these elements; neither tapes nor versions take note."""
    if isinstance(index, tuple) and not isinstance(index, Run):
        field.storage.set_element(number_of(field, index), np.asarray(values))
        return
    with editing(field) as array:
        array[numpy_index(field, index)] = values


def add_elements(field: Field, index: Elements, values: Any) -> None:
    """Add to these elements; neither tapes nor versions take note."""
    with editing(field) as array:
        array[numpy_index(field, index)] += values


def clear_gradient(grad: Field, index: Elements, tangents: int) -> None:
    """Set elements of a gradient to 0, and their tangents."""
    for found, at in with_tangents(grad, index, tangents):
        if at is None:
            found.clear()
        else:
            write_elements(found, at, 0)
            found._touch()


def move_gradient(
    source: Field, at: Elements, target: Field | None, to: Index, tangents: int
) -> None:
    """Add elements of a gradient to those of another one (None: to none) and clear them; tangents, too."""
    parts = list(with_tangents(source, at, tangents))
    flowing = [read_elements(*part) for part in parts]
    for part in parts:
        write_elements(*part, 0)
        part[0]._touch()
    if target is None:
        return
    if len(parts) > 1:
        make_dual(target, tangents)
    # Where the source has no tangents, those of the target stay as they are.
    for (found, there), g in zip(with_tangents(target, to, tangents), flowing, strict=False):
        add_elements(found, there, g)
        found._touch()
