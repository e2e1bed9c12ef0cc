"""The active cells of one sparse level of a layout tree, as Python sees them.

`Cells` holds the memories of a level (`ir/sparse.py`) and changes them from Python. Whether a launch has
changed a mask is known after it, by the level's count of changes: only then do the mask's versions tell a
tape that the active set is another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from diffsim.ir.sparse import CHANGES, COUNT, LISTED, STATES, Level, Place
from diffsim.ir.types import i32, i64, u8
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.nonzeros import Nonzeros, put
from diffsim.runtime.session import session


class Cells:
    """The active cells of a level.

    Attributes:
        level: it, as kernels know it.
        parent: the cells of the sparse level above; None: there is none.
    """

    def __init__(
        self,
        kind: str,
        axes: tuple[int, ...],
        shape: tuple[int, ...],
        parent: Cells | None,
        list_axis: int | None = None,
        chunk: int = 0,
    ) -> None:
        slots, listed = shape, list(shape)
        if list_axis is not None:
            slots = (*shape[:list_axis], 1, *shape[list_axis + 1 :])
            listed[list_axis] = -(-shape[list_axis] // chunk)
        name = "lengths" if list_axis is not None else "active cells"
        self.mask = _memory(u8 if list_axis is None else i32, name, slots)
        self.state = _memory(i64, "state", (STATES,))
        self.listed = _memory(i32, "listed", (math.prod(listed), len(shape)))
        self.parent = parent
        above: Level | None = None if parent is None else parent.level
        memories = self.mask._mem, self.state._mem, self.listed._mem
        self.level: Level = Level(kind, axes, shape, above, chunk, list_axis, *memories)
        self.mask._mem.level = self.level
        self.mask.node = self
        self.seen = 0

    def chain(self) -> Iterator[Cells]:
        """Yield the level's cells and those of the levels above, innermost first."""
        cells: Cells | None = self
        while cells is not None:
            yield cells
            cells = cells.parent

    # ---- changes

    @property
    def changes(self) -> int:
        """How often the mask has changed."""
        return int(self.state.storage.flat[CHANGES])

    def note_changes(self, writer: Any) -> None:
        """Note that the active set is another one, if the last launch has changed it."""
        count = self.changes
        if count != self.seen:
            self.seen = count
            # Later than the launch itself: its own adjoint would find another set, too.
            session.clock = now = session.clock + 1
            self.mask.versions.written(None, now, writer)

    def _changed(self) -> None:
        """Count a change made by Python."""
        flat = self.state.storage.flat
        flat[CHANGES] = flat[CHANGES] + 1

    def activate(self, place: Place, index: tuple[int, ...], writer: Any) -> None:
        """Activate the cell of an element, and those above it."""
        for cells in self.chain():
            if cells._activate(place, index):
                cells._changed()
                cells.note_changes(writer)

    def _activate(self, place: Place, index: tuple[int, ...]) -> bool:
        """Activate the cell of an element at this level; return whether it was not active."""
        level = self.level
        at, factors = dict(zip(place.axes, index, strict=True)), place.factors(level)
        by_axis = dict(zip(place.axes, factors, strict=True))
        cell = [at[a] // by_axis[a] for a in level.axes]
        wanted = 1
        if level.list_axis is not None:
            wanted, cell[level.list_axis] = cell[level.list_axis] + 1, 0
        storage = self.mask.storage
        where = int(np.dot(cell, storage.layout.strides))
        if storage.flat[where] >= wanted:
            return False
        storage.flat[where] = wanted
        return True

    def clear(self, writer: Any) -> None:
        """Make all cells of the level inactive; whoever calls it clears what is below, too."""
        self.mask.storage.fill(0)
        flat = self.state.storage.flat
        flat[CHANGES] = flat[LISTED] = flat[CHANGES] + 1
        flat[COUNT] = 0
        self.note_changes(writer)

    def replace(self, found: Nonzeros, writer: Any) -> None:
        """Make other cells active (of a list: other lengths); whoever calls it sets elements."""
        put(self.mask.storage, found)
        self._changed()
        self.note_changes(writer)

    # ---- the active elements

    def blocks(self, place: Place) -> Iterator[tuple[slice, ...]]:
        """Yield the active cells as slices of a field, those of a list from its first element on."""
        level = self.level
        factors = dict(zip(place.axes, place.factors(level), strict=True))
        for cell in self._active():
            found = dict(zip(level.axes, cell, strict=True))
            yield tuple(
                slice(found[a].start * factors[a], found[a].stop * factors[a])
                if a in found
                else slice(0, n)
                for a, n in zip(place.axes, place.shape, strict=True)
            )

    def _active(self) -> Iterator[tuple[slice, ...]]:
        """Yield the active cells of the level, as slices of its cells."""
        level, mask = self.level, self._array()
        for block in self._containers():
            at = level.list_axis
            if at is not None:
                block = (*block[:at], slice(0, 1), *block[at + 1 :])
            there = mask[block]
            starts = [s.start for s in block]
            for offset in zip(*np.nonzero(there), strict=True):
                index = [int(s + o) for s, o in zip(starts, offset, strict=True)]
                cell = [slice(k, k + 1) for k in index]
                if at is not None:
                    cell[at] = slice(0, min(int(there[offset]), level.shape[at]))
                yield tuple(cell)

    def _containers(self) -> Iterator[tuple[slice, ...]]:
        """Yield the active cells of the level above as slices of cells of this one."""
        level = self.level
        if self.parent is None:
            yield tuple(slice(0, n) for n in level.shape)
            return
        yield from self.parent.blocks(Place(level.axes, level.shape, level))

    def _array(self) -> np.ndarray:
        storage = self.mask.storage
        found = getattr(storage, "array", None)
        array: np.ndarray = storage.to_numpy() if found is None else found
        return array[..., 0]

    def is_active(self, cell: tuple[int, ...]) -> bool:
        """Return whether a cell of the level is active."""
        level = self.level
        slot, least = list(cell), 1
        if level.list_axis is not None:
            least, slot[level.list_axis] = cell[level.list_axis] + 1, 0
        where = int(np.dot(slot, self.mask.storage.layout.strides))
        return bool(self.mask.storage.flat[where] >= least)


def _memory(dtype: Any, name: str, shape: tuple[int, ...]) -> Field:
    made = Field(dtype, name=name)
    made.place(shape, sparse=True)
    return made
