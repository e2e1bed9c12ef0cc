"""Sparse trees as the IR sees them: which elements of a memory are active, and where that is written.

A tree divides the elements of its memories into cells. Some of its levels are sparse: a cell of theirs is
active or not, which a memory of its own says, the *mask*: one byte for each cell, or the length of a list
(`dynamic`). Elements of inactive cells are 0 and have an address all the same (docs/adr/0057), so that only
what activates, deactivates and loops over active elements needs to know of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import i32, i64, u8

if TYPE_CHECKING:
    from diffsim.ir.builder import Builder
    from diffsim.ir.nodes import Mem

CHANGES, LISTED, COUNT, STATES = range(4)
"""The elements of a level's `state`, and how many there are."""


@dataclass(eq=False)
class Level:
    """A sparse level of a tree.

    Attributes:
        kind: "pointer", "bitmasked", "hash" or "dynamic".
        axes: the numbers of the axes that its cells are counted along, in order.
        shape: how many cells there are along them, in all of the tree.
        parent: the sparse level above; None: there is none.
        chunk: of a dynamic level: how many elements of a list are listed together.
        list_axis: of a dynamic level: where the axis of its lists is among its axes.
        mask: which cells are active: not 0. Of a dynamic level: the lengths of its lists, whose own axis
            has one element here.
        state: how often the mask has changed; the same when `listed` was made; and the length of that.
        listed: the indices of the active cells (of a dynamic level: of its chunks), one row each.
    """

    kind: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    parent: Level | None
    chunk: int
    list_axis: int | None
    mask: Mem
    state: Mem
    listed: Mem

    def chain(self) -> Iterator[Level]:
        """Yield the level and those above it, innermost first."""
        level: Level | None = self
        while level is not None:
            yield level
            level = level.parent

    def slot(self, cell: Sequence[Value]) -> tuple[Value, ...]:
        """Return the index into the mask that belongs to a cell."""
        at = self.list_axis
        return tuple(Const(i32, 0) if k == at else v for k, v in enumerate(cell))

    def above(self, b: Builder, cell: Sequence[Value]) -> tuple[Value, ...]:
        """Emit the index of the cell of the level above that a cell is in."""
        assert self.parent is not None
        return Place(self.axes, self.shape, self).cell(b, self.parent, cell)


@dataclass(frozen=True, eq=False)
class Place:
    """Where the elements of a memory are in a tree.

    Attributes:
        axes: the numbers of the memory's axes.
        shape: how many elements there are along them.
        level: the innermost sparse level around an element.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    level: Level

    def factors(self, level: Level) -> tuple[int, ...]:
        """Return how many elements a cell of a level has along each axis."""
        cells = dict(zip(level.axes, level.shape, strict=True))
        return tuple(n // cells.get(a, 1) for a, n in zip(self.axes, self.shape, strict=True))

    def cell(self, b: Builder, level: Level, index: Sequence[Value]) -> tuple[Value, ...]:
        """Emit the index of the cell of a level that an element is in."""
        factors = self.factors(level)
        found = []
        for a in level.axes:
            k = self.axes.index(a)
            found.append(_quotient(b, index[k], factors[k]))
        return tuple(found)

    def is_active(self, b: Builder, index: Sequence[Value]) -> Value:
        """Emit whether an element is active."""
        return is_active(b, self.level, self.cell(b, self.level, index))


def is_active(b: Builder, level: Level, cell: Sequence[Value]) -> Value:
    """Emit whether a cell of a level is active; those above it are then."""
    found = b.load(level.mask, level.slot(cell))
    if level.list_axis is None:
        return b.named("ne", found, Const(u8, 0))
    # A full list has counted what did not fit.
    length = b.named("min", found, Const(i32, level.shape[level.list_axis]))
    return b.named("lt", b.cast(cell[level.list_axis], i64), b.cast(length, i64))


def _quotient(b: Builder, v: Value, n: int) -> Value:
    if n == 1:
        return v
    # Indices are not negative, and a shift takes one instruction.
    if n & (n - 1) == 0:
        return b.named("int_shr", v, b.const(n.bit_length() - 1, v.type))
    return b.named("int_div", v, b.const(n, v.type))
