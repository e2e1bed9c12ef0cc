"""Copies of what a program overwrites: `ds.Tape(loss, in_place="save")`.

The saver tracks which parts of which fields the adjoints recorded so far will load. Just before a launch or a
Python statement overwrites such a part, it is copied. The backward pass restores the copies in reverse order,
so each adjoint finds the values of its forward launch; at its end the final values return. What no adjoint
loads (sums, linear updates) is not copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Box
from diffsim.ad.record.entry import BackwardRun, Entry, ForwardProgram, ReverseProgram
from diffsim.errors import AutodiffError, Span, memory_size
from diffsim.runtime.fields.contents import active_set, check_active
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import Extent, extents
from diffsim.runtime.memory.storage import Part, StridedSpan, snapshot_address
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

_FEWER = "record fewer steps, or let ds.ad.checkpoint save a few and compute the others again"


class Saved(Entry):
    """A copy of a box, with the versions that it had.

    Attributes:
        own: whether the launch *before* it on the record overwrote the box and needs it in its own adjoint.
            Otherwise the copy was made for earlier adjoints, before the entry that follows it.
        behind: of an own one, whether that launch stored it, and it was copied afterwards.
    """

    __slots__ = ("_active", "_field", "_row", "behind", "data", "own", "versions")
    ticks = False

    def __init__(self, box: Box, into: Any = None) -> None:
        # Weak, as a record that waits for its repetition keeps no field alive (`past.py`); one that is in use
        # does, by its launches.
        self._field, self._row = weakref.ref(box[0]), box[1]
        self.own = self.behind = False
        self.data: Any = copied(box, into=into)
        self._active = active_set(box[0])
        # Restored values get the versions that they had, so the check of each adjoint finds them
        # unchanged and needs to know nothing about saves.
        self.versions = box[0].versions.snapshot(box[1])

    @property
    def box(self) -> Box:
        """The part of a field that was copied."""
        field = self._field()
        assert field is not None
        return field, self._row

    @property
    def is_orphan(self) -> bool:
        """Whether the field is gone, or is about to be collected together with the tape."""
        return self._field() is None

    @property
    def places(self) -> tuple[StridedSpan, StridedSpan]:
        """The memory of the box, and that of the copy."""
        storage = self.box[0].storage
        there = storage.layout.part(storage.address, *_part(self.box))
        return there, there.packed(snapshot_address(self.data))

    def array(self) -> np.ndarray:
        """Return the copy of a whole field as an array on the host."""
        if isinstance(self.data, np.ndarray):
            return self.data
        storage = self.box[0].storage
        # On a GPU a copy has the storage's own layout; only the storage itself can read it as an array.
        now = storage.snapshot()
        storage.restore(self.data)
        found: np.ndarray = storage.to_numpy()
        storage.restore(now)
        return found

    def renewal(self) -> Callable[[], None]:
        """Return what copies the present values in place of the earlier ones, and leaves the versions."""
        # The memory of a field never moves while the kernels that use it stay the same.
        field = self.box[0]
        return field.storage.copier(self.data, _part(self.box))

    def shift(self, start: int, by: int) -> None:
        """Move the versions to a repetition of the record: those after its start are so much later."""
        latest, whole, rows = self.versions

        def moved(reading: Any) -> Any:
            return reading + by * (reading > start)

        later = (rows[0], moved(rows[1])) if isinstance(rows, tuple) else moved(rows)
        self.versions = moved(latest), moved(whole), later

    def restore(self) -> None:
        """Copy the values back to where they were.

        Raises:
            GlobalDataAccessError: other cells of a sparse tree are active than when they were copied.
        """
        self.box[0].storage.restore(self.data, _part(self.box))
        field, row = self.box
        field.versions.restore(row, self.versions)
        session.unknown_until = session.clock
        check_active(field, self._active)

    def boxes(self) -> Iterator[Box]:
        return iter(())

    def check_replay(self) -> None:
        refuse_sparse(self.box[0], None)

    def backward(self, run: BackwardRun) -> None:
        run.restore(self)

    def record(self, program: ForwardProgram) -> None:
        if not self.own:  # the launch before it on the record makes these
            program.save(self)

    def reverse(self, program: ReverseProgram) -> None:
        program.restore(self)


def refuse_sparse(field: Field, span: Span | None) -> None:
    """Refuse to replay what writes all of a sparse field, or an element of it, without activating a cell."""
    if field.tree is not None:
        raise AutodiffError(
            f"this tape cannot be replayed: Python's writes to {field.name} activate cells of a tree",
            span,
            hint="write in a kernel, or record the tape anew each time",
        )


class PutAside:
    """Which boxes' values a backward pass has put aside, before it restored older ones.

    The first restore of a box overwrites the value that it had when the pass began; later ones overwrite
    values that are saved on the tape anyway.
    """

    def __init__(self) -> None:
        self._rows: dict[Field, set[int | None]] = {}

    def add(self, box: Box) -> bool:
        """Add a box; returns whether its values have to be put aside now."""
        rows = self._rows.setdefault(box[0], set())
        # What has been put aside as a part of the whole field needs no second copy. A whole after some of
        # its rows does: putting back goes in the opposite order, so that these rows come last.
        if None in rows or box[1] in rows:
            return False
        rows.add(box[1])
        return True


def own_saves(entries: Sequence[Entry], k: int, *, behind: bool = False) -> Iterator[Saved]:
    """Return the copies that the launch `entries[k]` made for its own adjoint; they follow it.

    `behind`: those that are made when it has run, not before.
    """
    while (k := k + 1) < len(entries):
        following = entries[k]
        # Copies of a launch follow it without a gap, so the search ends at the first other entry.
        if not isinstance(following, Saved):
            break
        if following.own and following.behind is behind:
            yield following


def _part(box: Box) -> Part:
    """Return the indices of a box, as methods of storages expect them."""
    return box[0].versions.indices(box[1], box[0].shape)


def copied(box: Box, hint: str = _FEWER, into: Any = None) -> Any:
    """Return a copy of the values of a box, in the memory of an earlier one of the same size if it is given.

    Raises:
        AutodiffError: there is no memory for it.
    """
    field, row = box
    storage = field.storage
    try:
        return storage.snapshot(_part(box), into)
    except MemoryError as problem:
        size = nbytes(box)
        left = storage.device.free_memory_text()
        _, first, count = _part(box)
        place = f"row {first}" if count == 1 else f"rows {first} to {first + count - 1}"
        what = field.name if row is None else f"{place} of {field.name}"
        raise AutodiffError(
            f"there is no memory to save {what}: it takes {memory_size(size)}{left and ', and ' + left}",
            Span.of_caller(),
            hint=hint,
        ) from problem


def nbytes(box: Box) -> int:
    """Return the size of a box."""
    storage = box[0].storage
    return storage.layout.part(storage.address, *_part(box)).nbytes


class Reach:
    """The elements that launches of a kernel, and their adjoints, may reach: asked for at each launch.

    Attributes:
        writes: what the kernel writes.
        reads: what its adjoint loads again.
        restored: what of that it needs as it was before the launch.
    """

    __slots__ = ("reads", "restored", "writes")

    def __init__(self, special: Specialization) -> None:
        self.writes = extents(special, special.accesses.writes)
        self.reads: list[Extent] = []
        self.restored: list[Extent] = []
        # What has no adjoint is refused where a gradient is asked for, with all that is refused besides.
        if special.differentiable and special.derivative.refusal is None:
            restored = special.derivative.restored
            # What it keeps is copied behind each launch, whoever overwrites it.
            kept = {f._mem for f in special.kept}
            reads = [a for a in special.derivative.accesses.reads if a.mem not in kept]
            self.reads = extents(special, reads)
            self.restored = extents(special, (a for a in reads if a.mem in restored))

    @classmethod
    def of(cls, special: Specialization) -> Reach:
        """Return it for a kernel."""
        found: Reach | None = special.variants.get(cls)
        if found is None:
            found = special.variants[cls] = cls(special)
        return found

    def own(self, args: tuple[Any, ...]) -> dict[Box, None]:
        """Return the boxes that a launch overwrites although its own adjoint loads their old values."""
        # Dicts as ordered sets, so that copies are made in the same order in every run.
        own: dict[Box, None] = {}
        if self.restored:
            written = _boxes(self.writes, args)
            for box in _boxes(self.restored, args):
                # Only boxes that this launch overwrites; others have their old values after it as well.
                if any(_overlap(w, box) for w in written):
                    own[box] = None
        return own


def _boxes(reached: Iterable[Extent], args: tuple[Any, ...]) -> list[Box]:
    """Return what accesses reach of fields in a launch."""
    boxes = [extent.box(args) for extent in reached]
    return [box for box in boxes if box is not None and box[0].versions.has_row(box[1])]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] is b[0] and (a[1] is None or b[1] is None or a[1] == b[1])


class SpareCopies:
    """Memory of copies that a recording no longer needs, for the next ones of the same size.

    Fresh memory costs as much as the copy itself: the system clears each page when it is first written.
    """

    def __init__(self) -> None:
        # By the number of the field, which stands for it without keeping it alive.
        self._free: dict[tuple[int, int], list[Any]] = {}

    def add(self, copies: Iterable[Saved]) -> None:
        """Take the memory of copies, which are of no use afterwards."""
        for saved in copies:
            self._free.setdefault(self._kind(saved.box), []).append(saved.data)

    def take(self, box: Box) -> Any:
        """Return memory for a copy of a box, or None."""
        free = self._free.get(self._kind(box))
        return free.pop() if free else None

    @staticmethod
    def _kind(box: Box) -> tuple[int, int]:
        # Parts of as many indices have the same size, as the axis of the versions never changes.
        axis, _, count = _part(box)
        return box[0].number, 0 if axis is None else count

    @property
    def bytes(self) -> int:
        return sum(data.nbytes for free in self._free.values() for data in free)


class OverwriteSaver:
    """Decides what to copy, and when.

    Attributes:
        needs: by field, the rows that recorded adjoints load and that were not copied since.
        bytes: size of all copies.
        spare: memory for copies, from an earlier recording.
    """

    def __init__(self) -> None:
        self.needs: dict[Field, dict[int | None, None]] = {}
        self.bytes = 0
        self.spare = SpareCopies()

    def before_launch(
        self, special: Specialization, args: tuple[Any, ...], *, is_inner: bool = False
    ) -> tuple[list[Saved], list[Saved]]:
        """Return the copies made before a launch: for adjoints of earlier entries, and for its own.

        `is_inner`: whether it is one of a rollout, which gets no adjoint of its own here.
        """
        reach = Reach.of(special)
        own = {} if is_inner else reach.own(args)
        wanted: dict[Box, None] = {}
        for box in _boxes(reach.writes, args):
            # Gradients are results of the pass, not inputs of it. What the launch keeps for itself also
            # serves earlier adjoints: going back, it is restored before they run.
            if not box[0].is_grad and box not in own and self.needed(box):
                wanted[box] = None
        return [self.save(b) for b in wanted], [self.save(b) for b in own]

    def after_launch(self, special: Specialization, args: tuple[Any, ...]) -> None:
        """Add what the adjoint of a launch will load to the needs."""
        reach = Reach.of(special)
        own = reach.own(args)
        for box in _boxes(reach.reads, args):
            # Its own copies are made already, and hold the values from before the launch.
            if box not in own:
                self.needs.setdefault(box[0], {})[box[1]] = None

    def behind_launch(self, special: Specialization, own: Sequence[Saved]) -> Sequence[Saved]:
        """Return a launch's own copies together with those of what it has just kept for its adjoint."""
        if not special.kept:
            return own
        made = [] if any(s.behind for s in own) else [self.save((f, None)) for f in special.kept]
        for saved in made:
            saved.own = saved.behind = True
        return [*own, *made]

    def will_need(self, boxes: Iterable[Box]) -> None:
        """Add what the backward function of a rollout will read."""
        for field, row in boxes:
            self.needs.setdefault(field, {})[row] = None

    def before_write(self, field: Field, row: int | None) -> list[Saved]:
        """Return the copies made before a write from Python."""
        return [self.save((field, row))] if self.needed((field, row)) else []

    def needed(self, box: Box) -> bool:
        """Whether a recorded adjoint loads part of the box and no copy was made since."""
        field, row = box
        rows = self.needs.get(field)
        if not rows:
            return False
        # None stands for the whole field on either side, and overlaps every row.
        return row is None or row in rows or None in rows

    def save(self, box: Box) -> Saved:
        """Copy a box, and note that earlier adjoints need no further copy of it."""
        saved = Saved(box, self.spare.take(box))
        self.note(saved)
        return saved

    def note(self, saved: Saved) -> None:
        """Note that a copy is on the record."""
        field, row = saved.box
        rows = self.needs.get(field, {})
        if row is None:
            # Copied now, so no earlier adjoint needs a second copy: the oldest value after its launch
            # is the right one.
            rows.clear()
        else:
            rows.pop(row, None)
        self.bytes += saved.data.nbytes
