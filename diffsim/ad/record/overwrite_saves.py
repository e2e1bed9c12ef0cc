"""Copies of what a program overwrites: `ds.Tape(loss, in_place="save")`.

A saver knows which parts of which fields the adjoints recorded so far will load. Just before a launch or a
Python statement writes to such a part, it copies it; the backward pass puts the copies back on its way, so
each adjoint finds the values that its forward launch saw, and the final values return at the end. What no
adjoint loads (sums, linear updates) is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Box
from diffsim.ad.record.entry import BackwardRun, Entry, ForwardProgram, ReverseProgram
from diffsim.errors import AutodiffError, Span, memory_size
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import StridedSpan, snapshot_address

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

_FEWER = "record fewer steps, or let ds.ad.checkpoint save a few and compute the others again"


class Saved(Entry):
    """A copy of a box, and the versions it had.

    It is of what the launch before it on the tape found (`own`), or of what the next one will find.
    """

    __slots__ = ("box", "data", "own", "versions")
    ticks = False

    def __init__(self, box: Box) -> None:
        self.box = box
        self.own = False
        self.data: Any = copied(box)
        self.versions = box[0].versions.snapshot(box[1])

    @property
    def places(self) -> tuple[StridedSpan, StridedSpan]:
        """Where the elements of the box are, and where their copies."""
        storage = self.box[0].storage
        there = storage.layout.row(storage.address, *_part(self.box))
        return there, there.packed(snapshot_address(self.data))

    def array(self) -> np.ndarray:
        """What was copied of a whole field, as an array on the host."""
        if isinstance(self.data, np.ndarray):
            return self.data
        storage = self.box[0].storage
        now = storage.snapshot()
        storage.restore(self.data)
        found: np.ndarray = storage.to_numpy()
        storage.restore(now)
        return found

    def restore(self) -> None:
        """Copy the values back to where they were."""
        self.box[0].storage.restore(self.data, *_part(self.box))
        field, row = self.box
        field.versions.restore(row, self.versions)

    def boxes(self) -> Iterator[Box]:
        return iter(())

    def backward(self, run: BackwardRun) -> None:
        run.restore(self)

    def record(self, program: ForwardProgram) -> None:
        if not self.own:  # the launch before it on the record makes these
            program.save(self)

    def reverse(self, program: ReverseProgram) -> None:
        program.exchange(self)


def _part(box: Box) -> tuple[int | None, int]:
    """The axis and the row of a box, as storages take them."""
    field, row = box
    return (None, 0) if row is None else (field.versions.axis, row)


def copied(box: Box, hint: str = _FEWER) -> Any:
    """What a box holds now.

    Raises:
        AutodiffError: there is no memory for it.
    """
    field, row = box
    storage = field.storage
    try:
        return storage.snapshot(*_part(box))
    except MemoryError as problem:
        size = storage.layout.row(storage.address, *_part(box)).nbytes
        left = storage.device.free_memory_text()
        what = field.name if row is None else f"row {row} of {field.name}"
        raise AutodiffError(
            f"there is no memory to save {what}: it takes {memory_size(size)}{left and ', and ' + left}",
            Span.of_caller(),
            hint=hint,
        ) from problem


def _own(special: Specialization, args: tuple[Any, ...]) -> dict[Box, None]:
    """The boxes that the launch overwrites and its own adjoint needs as they were before."""
    own: dict[Box, None] = {}
    if not special.differentiable or not special.derivative.restored:
        return own
    written = [special.box(a, args) for a in special.accesses.writes]
    for a in special.derivative.accesses.reads:
        box = special.box(a, args) if a.mem in special.derivative.restored else None
        if box is not None and any(w is not None and _meet(w, box) for w in written):
            own[box] = None
    return own


def _meet(a: Box, b: Box) -> bool:
    return a[0] is b[0] and (a[1] is None or b[1] is None or a[1] == b[1])


@dataclass(frozen=True, slots=True)
class TapeStats:
    """What a tape holds: recorded entries, and copies of overwritten values with their bytes."""

    entries: int
    saved: int
    saved_bytes: int


class OverwriteSaver:
    """Decides what to copy, and when.

    Attributes:
        needs: the boxes that recorded adjoints load and that were not copied since.
        bytes: how much was copied.
    """

    def __init__(self) -> None:
        self.needs: dict[Field, dict[int | None, None]] = {}
        self.bytes = 0

    def before_launch(
        self, special: Specialization, args: tuple[Any, ...]
    ) -> tuple[list[Saved], list[Saved]]:
        """Copies to make before a launch: those for earlier adjoints, those for its own."""
        own = _own(special, args)
        wanted: dict[Box, None] = {}
        for a in special.accesses.writes:
            box = special.box(a, args)
            if box is not None and not box[0].is_grad and box not in own and self.needed(box):
                wanted[box] = None
        return [self.save(b) for b in wanted], [self.save(b) for b in own]

    def after_launch(self, special: Specialization, args: tuple[Any, ...]) -> None:
        """Note what the adjoint of a launch will load."""
        own = _own(special, args)
        for a in special.derivative.accesses.reads if special.differentiable else ():
            box = special.box(a, args)
            if box is not None and box not in own:
                self.needs.setdefault(box[0], {})[box[1]] = None

    def will_need(self, boxes: Iterable[Box]) -> None:
        """Note what a backward function of a rollout will read."""
        for field, row in boxes:
            self.needs.setdefault(field, {})[row] = None

    def before_write(self, field: Field, row: int | None) -> list[Saved]:
        """Copies to make before Python writes."""
        return [self.save((field, row))] if self.needed((field, row)) else []

    def needed(self, box: Box) -> bool:
        """Whether a recorded adjoint loads something of the box that was not copied yet."""
        field, row = box
        rows = self.needs.get(field)
        if not rows:
            return False
        return row is None or row in rows or None in rows

    def save(self, box: Box) -> Saved:
        field, row = box
        rows = self.needs.get(field, {})
        if row is None:
            rows.clear()
        else:
            rows.pop(row, None)
        saved = Saved(box)
        self.bytes += saved.data.nbytes
        return saved
