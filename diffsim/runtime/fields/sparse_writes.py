"""Writes from Python to fields in sparse trees: elements activate their cells, all others reach active cells.

What is written to a gradient activates nothing: a gradient is there wherever it is read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import FieldError, GlobalDataAccessError, Span
from diffsim.runtime.fields.conversions import index_of
from diffsim.runtime.memory.storage import HostStorage
from diffsim.runtime.session import session
from diffsim.tracebacks import IS_OWN

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field


def caller() -> tuple[Any, int]:
    """Return the user's statement, as versions name who wrote."""
    frame: Any = sys._getframe(1)
    while IS_OWN[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def active_set(f: Field) -> tuple[int, ...] | None:
    """Return what is another tuple after the active cells around a field's elements have changed."""
    return None if f.tree is None else tuple(cells.changes for cells in f.tree[0].chain())


def refuse_sparse_field(f: Field, what: str) -> None:
    """Refuse what reaches all elements of a field, and says nothing of which cells are active."""
    if f.tree is not None:
        raise FieldError(
            f"{f.name} is in a sparse tree, and {what}",
            Span.of_caller(),
            hint="take the values with x.to_numpy(), and write them back in a kernel, which activates cells",
        )


def check_active(f: Field, known: tuple[int, ...] | None) -> None:
    """Refuse to go on with values of a sparse field that were saved when other cells were active.

    Raises:
        GlobalDataAccessError: with the line that has changed them.
    """
    if f.tree is None or known == active_set(f):
        return
    latest = max(f.tree[0].chain(), key=lambda cells: cells.mask.versions.latest)
    who, place = latest.mask.versions.written_by(None)
    shown = "" if place is None else "\n" + place.text()
    raise GlobalDataAccessError(
        f"the gradient needs the cells that were active when {f.name} was saved as they were, and {who} has "
        f"changed them since{shown}",
        None,
        hint="activate all cells before the block of the tape: run the steps once without it",
    )


def activate_written(f: Field, key: object) -> int | None:
    """Activate the cell of an element that Python has written; return the row of the field it is in."""
    index = index_of(f, key)
    if f.tree is not None and not f.is_grad:
        cells, place = f.tree
        cells.activate(place, index, caller())
    return f.versions.row_at(index)


def set_active(f: Field, values: Any) -> None:
    """Set all active elements: to a number, to one for each component, or to those of an array of all."""
    if f.tree is None:
        return
    if not np.any(values):
        f.storage.fill(0)
        return
    cells, place = f.tree
    storage = f.storage
    array = storage.array if isinstance(storage, HostStorage) else storage.to_numpy()
    given = values if isinstance(values, np.ndarray) and values.ndim == array.ndim else None
    for block in cells.blocks(place):
        array[block] = values if given is None else given[block]
    if not isinstance(storage, HostStorage):
        storage.from_numpy(array)


def copy_active(f: Field, other: Field) -> None:
    """Set all active elements to those of another field."""
    assert f.tree is not None
    if other.tree is not None and other.tree[0] is f.tree[0]:
        f.storage.copy_from(other.storage)
        return
    if session.recorders and session.listener:
        raise FieldError(
            f"{f.name} is in a sparse tree that {other.name} is not in, so a tape cannot follow the copy",
            Span.of_caller(),
            hint="copy in a kernel: for I in ds.grouped(x): x[I] = y[I]",
        )
    set_active(f, other.storage.to_numpy())
