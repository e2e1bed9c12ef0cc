"""The sections that the launches of a record wrote to, by all indices that their arguments tell.

Versions have rows along one axis of a field (docs/adr/0004). In `p[t, k + 1, i] = f(p[t, k, i])`, with steps
of time `t` and iterations `k` in each, every iteration writes to the row that the one before has read. Where
versions say that a value was overwritten, and only there, the record is asked: it knows the arguments of each
launch (docs/adr/0095).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from diffsim.ad.record.entries import Launched, Wrote
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.record import Record
from diffsim.errors import GlobalDataAccessError
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import Side
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from typing import Any

    from diffsim.ad.record.entry import Entry
    from diffsim.runtime.kernels.access_summary import Extent
    from diffsim.runtime.kernels.derivative import Derivative

Axes = tuple[Side, ...]
Indices = tuple[int, ...]


class RecordedWrites:
    """When each section of each field was written last.

    A reading is the number of ticks since the record began. A section is a field and the indices along some
    axes; which axes these are depends on the access.

    Args:
        entries: the record; nothing else may have ticked in between (`Record.is_gapless`).

    Attributes:
        end: the last reading.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._last: dict[Field, dict[Axes, dict[Indices, int]]] = {}
        # By field, the axes of writes, and those of them that are compared.
        self._projected: dict[tuple[Field, Axes, Axes], dict[Indices, int]] = {}
        # By field, the launches that wrote to it, in their order, and its last write from Python.
        self._launches: dict[Field, list[tuple[int, Extent, tuple[Any, ...]]]] = {}
        self._boxes: dict[Field, _Boxes] = {}
        self._whole: dict[Field, int] = {}
        self._unknown = 0  # the last reading at which anything may have been written
        self.end = 0
        for entry in entries:
            self.end += entry.ticks
            if isinstance(entry, Launched):
                self._note_launch(entry)
            elif type(entry) is Wrote:
                self._note(entry.field, (), ())
                self._whole[entry.field] = self.end
            elif entry.ticks or isinstance(entry, Saved):
                # A value that is restored is one of another time.
                self._unknown = self.end

    def _note_launch(self, entry: Launched) -> None:
        args = entry.args
        for extent in entry.special.accesses.written_sections:
            f = extent.object_of(args)
            if isinstance(f, Field):
                self._note(f, extent.axes, extent.indices(args))
                self._launches.setdefault(f, []).append((self.end, extent, args))
            elif f is not None:
                # Memory of another library may be that of any field.
                self._unknown = self.end

    def _note(self, f: Field, axes: Axes, indices: Indices) -> None:
        self._last.setdefault(f, {}).setdefault(axes, {})[indices] = self.end

    def keep(self, of: Derivative, args: tuple[Any, ...], since: int) -> bool:
        """Return whether nothing after a launch wrote to what its adjoint loads.

        Args:
            of: the adjoint.
            args: of the launch.
            since: the reading of the launch.
        """
        return not any(self._overwrite(e, args, since) for e in of.accesses.read_sections)

    def _overwrite(self, extent: Extent, args: tuple[Any, ...], since: int) -> bool:
        """Return whether something after this reading may have written to what an access reaches."""
        f = extent.object_of(args)
        if f is None:  # memory of the kernel's own
            return False
        # Of gradients and duals the adjoints write too; cells of trees, and memory that others see, may
        # change without a launch.
        if not isinstance(f, Field) or f.is_grad or f.is_dual or f.tree is not None:
            return True
        if extent.access.mem.level is not None or f in session.exported or self._unknown > since:
            return True
        section = dict(zip(extent.axes, extent.indices(args), strict=True))
        for axes in self._last.get(f, ()):
            both = tuple(axis for axis in axes if axis in section)
            last = self._by(f, axes, both).get(tuple(section[axis] for axis in both), 0)
            if last > since:
                return not extent.sides or self._meets(f, extent, args, since)
        return False

    def _meets(self, f: Field, extent: Extent, args: tuple[Any, ...], since: int) -> bool:
        """Return the same, by the first and the last index of each access."""
        boxes = self._boxes.get(f)
        if boxes is None:
            boxes = self._boxes[f] = _Boxes(self._launches.get(f, ()))
        # Python's writes have no ends.
        return self._whole.get(f, 0) > since or boxes.meet(extent, args, since)

    def _by(self, f: Field, axes: Axes, both: Axes) -> dict[Indices, int]:
        """Return the last writes to sections along some axes, by their indices along fewer of them."""
        found = self._last[f][axes]
        if both == axes:
            return found
        made = self._projected.get((f, axes, both))
        if made is None:
            made = self._projected[f, axes, both] = {}
            kept = [axes.index(axis) for axis in both]
            for indices, last in found.items():
                where = tuple(indices[k] for k in kept)
                made[where] = max(last, made.get(where, 0))
        return made


_FAR = 1 << 62


class _Boxes:
    """The writes of launches to one field: from where to where, on each side that the arguments tell.

    Args:
        writes: readings, in their order, with accesses and the arguments of their launches.
    """

    def __init__(self, writes: Sequence[tuple[int, Extent, tuple[Any, ...]]]) -> None:
        self._readings = np.array([reading for reading, _, _ in writes], np.int64)
        self._ends: dict[Side, np.ndarray] = {}
        for k, (_, extent, args) in enumerate(writes):
            found = extent.ends(args)
            if any(first > last for first, last in found):  # of a loop without iterations
                self._readings[k] = 0
            for side, ends in zip(extent.sides, found, strict=True):
                if side not in self._ends:
                    # Where nothing is known it may be any index.
                    self._ends[side] = np.array([[-_FAR], [_FAR]]).repeat(len(writes), 1)
                self._ends[side][:, k] = np.clip(ends, -_FAR, _FAR)

    def meet(self, extent: Extent, args: tuple[Any, ...], since: int) -> bool:
        """Return whether a write after a reading may reach what an access does."""
        found = self._readings > since
        for side, (first, last) in zip(extent.sides, extent.ends(args), strict=True):
            if first > last:
                return False
            ends = self._ends.get(side)
            if ends is not None:
                low, high = ends
                found &= (low <= min(last, _FAR)) & (high >= max(first, -_FAR))
        return bool(found.any())


class RefusedLaunches:
    """The adjoints of a backward pass that versions have refused, and the record may allow."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        # Of a part of a record it is not known whether something else ticked in between.
        self._record = entries if isinstance(entries, Record) and entries.is_gapless else None

    @functools.cached_property
    def _writes(self) -> RecordedWrites | None:
        return None if self._record is None else RecordedWrites(self._record)

    @property
    def were_some(self) -> bool:
        """Whether an adjoint was refused before, so that the record was asked."""
        return "_writes" in vars(self)

    def reading(self, of: Derivative, args: tuple[Any, ...], now: int) -> int:
        """Return the end of the record, if nothing wrote to what an adjoint loads from `now` up to it.

        An adjoint that is launched with this reading refuses what was written after the record.
        """
        writes = self._writes
        if writes is None or self._record is None:
            return now
        base = self._record.base
        if not writes.keep(of, args, now - base):
            return now
        self._record.has_allowed = True
        return base + writes.end

    def launch(
        self,
        error: GlobalDataAccessError,
        of: Derivative,
        args: tuple[Any, ...],
        now: int,
        *more: Any,
    ) -> None:
        """Launch an adjoint that was refused at a reading of the clock, and has changed nothing.

        Raises:
            GlobalDataAccessError: what it loads was overwritten.
        """
        latest = self.reading(of, args, now) if error.is_stale else now
        if latest == now:
            raise error
        of.launch(args, latest, *more)
