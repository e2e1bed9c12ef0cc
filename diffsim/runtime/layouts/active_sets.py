"""The active set of a sparse tree, taken and set as a whole: for copies of fields, and for files.

A set that is made active deactivates all else: what it leaves out is 0 afterwards in every field of the tree,
and cells of levels below are inactive there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.errors import FieldError, Span
from diffsim.ir.sparse import Level, Place
from diffsim.runtime.fields.field import Field
from diffsim.runtime.layouts.cells import Cells
from diffsim.runtime.layouts.layout_tree import SPARSE
from diffsim.runtime.memory.nonzeros import Nonzeros, nonzeros, put
from diffsim.runtime.session import session
from diffsim.runtime.threads import members


def levels_of(f: Field) -> list[Cells]:
    """Return the cells of the sparse nodes around a field's elements, outermost first."""
    return [] if f.tree is None else [*f.tree[0].chain()][::-1]


def active_set(f: Field) -> list[Nonzeros]:
    """Return the masks of the sparse nodes around a field's elements, outermost first."""
    return [nonzeros(cells.mask.storage) for cells in levels_of(f)]


def set_active_set(f: Field, wanted: Sequence[Nonzeros], writer: Any) -> None:
    """Make these cells active, and no others; what is no longer active is 0.

    Raises:
        FieldError: a tape records, and the set is another one.
    """
    before = active_set(f)
    if all(new.equals(old) for new, old in zip(wanted, before, strict=True)):
        return
    _refuse_on_tape()
    masks = dict(zip(levels_of(f), wanted, strict=True))
    # Masks of levels beside the path first: what is below a cell that is dropped is dropped, too.
    outermost = next(n for n in f.node._path() if n.kind in SPARSE)
    others = [n.cells for n in (outermost, *outermost._within()) if n.kind in SPARSE and n.cells]
    for cells in others:
        if cells in masks or cells.parent is None:
            continue
        there, level = nonzeros(cells.mask.storage), cells.level
        kept = _among(
            there, Place(level.axes, level.mask.shape or (), level), 1, cells.parent, masks
        )
        masks[cells] = there.only(kept)
    for other in sorted(members(outermost.fields), key=lambda f: f.number):
        _clear_outside(other, masks)
    for cells, new in masks.items():
        if not new.equals(nonzeros(cells.mask.storage)):
            cells.replace(new, writer)


def is_inside(f: Field, found: Nonzeros, masks: Sequence[Nonzeros]) -> bool:
    """Return whether elements are 0 outside the cells that these masks name, and masks likewise."""
    cells, place = f.tree  # type: ignore[misc]
    known = dict(zip(levels_of(f), masks, strict=True))
    for one in levels_of(f)[1:]:
        own = Place(one.level.axes, one.level.mask.shape or (), one.level)
        if not _among(known[one], own, 1, one.parent, known).all():
            return False
    return bool(_among(found, place, f.storage.layout.components, cells, known).all())


def _refuse_on_tape() -> None:
    if session.recorders and session.listener:
        raise FieldError(
            "a tape records, and other cells would be active from here on",
            Span.of_caller(),
            hint="load before the block of the tape",
        )


def _clear_outside(f: Field, masks: dict[Cells, Nonzeros]) -> None:
    """Set the elements of a field to 0 that are not in the active cells."""
    if f.tree is None:
        return
    cells, place = f.tree
    there = nonzeros(f.storage)
    kept = _among(there, place, f.storage.layout.components, cells, masks)
    if not kept.all():
        put(f.storage, there.only(kept))
        f._touch()


def _among(
    found: Nonzeros,
    place: Place,
    components: int,
    cells: Cells | None,
    masks: dict[Cells, Nonzeros],
) -> np.ndarray:
    """Return for each place whether the cell that it is in is active."""
    assert cells is not None
    level, mask = cells.level, masks[cells]
    slot, number = _slots(found.places // components, place, level)
    if not len(mask.places):
        return np.zeros(len(slot), bool)
    at = np.minimum(np.searchsorted(mask.places, slot), len(mask.places) - 1)
    is_there: np.ndarray = mask.places[at] == slot
    return is_there & (number < mask.values[at]) if level.list_axis is not None else is_there


def _slots(elements: np.ndarray, place: Place, level: Level) -> tuple[np.ndarray, np.ndarray]:
    """Return where in a level's mask the cells of elements are, and their numbers in a list."""
    index = dict(zip(place.axes, np.unravel_index(elements, place.shape), strict=True))
    factors = dict(zip(place.axes, place.factors(level), strict=True))
    slot = np.zeros(len(elements), np.int64)
    number = np.zeros(len(elements), np.int64)
    for k, (axis, n) in enumerate(zip(level.axes, level.mask.shape or (), strict=True)):
        cell = index[axis] // factors[axis]
        if k == level.list_axis:
            number = cell
        else:
            slot = slot * n + cell
    return slot, number
