"""The sections that the launches of a record wrote to, by all indices that their arguments tell.

Versions have rows along one axis of a field (docs/adr/0004). In `p[t, k + 1, i] = f(p[t, k, i])`, with steps
of time `t` and iterations `k` in each, every iteration writes to the row that the one before has read. Where
versions say that a value was overwritten, and only there, the record is asked: it knows the arguments of each
launch (docs/adr/0095).

In `f[parent[b]] += ...` no argument says which elements a launch writes. Where it matters the task is run
once more, without its effects, to note them (`passes/autodiff/index_trace.py`, docs/adr/0160).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from diffsim.ad.record.elements import Box
from diffsim.ad.record.entries import Launched, Wrote
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.record import Record
from diffsim.errors import GlobalDataAccessError
from diffsim.passes.analysis import regions
from diffsim.passes.analysis.dependence import Access
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import Side
from diffsim.runtime.kernels.launch_checks import element_traces
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from typing import Any

    from diffsim.ad.record.entry import Entry
    from diffsim.ir.nodes import Mem
    from diffsim.runtime.kernels.access_summary import Extent
    from diffsim.runtime.kernels.derivative import Derivative
    from diffsim.runtime.kernels.specialization import Specialization

Axes = tuple[Side, ...]
Indices = tuple[int, ...]


_MOST = 1 << 26
"""Elements of a field of which it is known when each was written."""


class KnownIndices:
    """Tells the elements that launches access, as long as what these follow from is as it was.

    Args:
        changed: whether a part of a field was written after a reading of the record.

    Attributes:
        fields: which index fields that was asked of.
    """

    def __init__(self, changed: Callable[[Box, int], bool]) -> None:
        self._changed = changed
        self.fields: dict[Field, None] = {}

    def elements(
        self, special: Specialization, sites: Iterable[Access], args: tuple[Any, ...], since: int
    ) -> np.ndarray | None:
        """Return the elements that statements, all of one memory, access in a launch; None: unknown."""
        runs = element_traces(special, sites)
        if runs is None:
            return None
        for run in runs:
            for a in run.reads:
                box = special.box(a, args)
                # Memory of other libraries, and what they see of ours, may change unseen.
                if box is None or not box[0].versions.is_complete or box[0] in session.exported:
                    return None
                if box[0].tree is not None or self._changed(box, since):
                    return None
                self.fields[box[0]] = None
        return np.concatenate([np.zeros(0, np.int64), *(run.elements(args) for run in runs)])


class WrittenElements:
    """When each element of a field was written last, of the launches that were asked for.

    Args:
        field: the field.
        launches: those that write to it, by their readings.
        indices: tells which elements.
    """

    def __init__(self, field: Field, launches: dict[int, Launched], indices: KnownIndices) -> None:
        self._field = field
        self._launches = launches
        self._indices = indices
        self._last = np.zeros(int(np.prod(field.shape)), np.int64)
        self._noted: dict[int, bool] = {}

    @staticmethod
    def of(
        field: Field, launches: dict[int, Launched], indices: KnownIndices
    ) -> WrittenElements | None:
        """Return it for a field; None: there are too many elements."""
        small = int(np.prod(field.shape)) <= _MOST
        return WrittenElements(field, launches, indices) if small else None

    def meet(
        self, writes: Sequence[int], of: Derivative, args: tuple[Any, ...], since: int
    ) -> bool:
        """Return whether launches after a reading may have written to what an adjoint loads of the field.

        Args:
            writes: the readings of the launches.
            of: the adjoint.
            args: of its launch.
            since: the reading of that.
        """
        special = of.specialization
        if not all(map(self._note, writes)):
            return True
        for mem, loads in of.accesses.loads.items():
            if special.object_of(mem, args) is not self._field:
                continue
            origins = dict.fromkeys(load.origin for load in loads)
            found = self._indices.elements(special, origins, args, since)
            if found is None or (self._last[self._inside(found)] > since).any():
                return True
        return False

    def _note(self, reading: int) -> bool:
        """Note what a launch has written; returns whether that is known."""
        if reading not in self._noted:
            self._noted[reading] = self._is_noted(reading)
        return self._noted[reading]

    def _is_noted(self, reading: int) -> bool:
        entry = self._launches[reading]
        special = entry.special
        sites: dict[Mem, dict[Access, None]] = {}
        for a in regions.writes(special.ir):
            if special.object_of(a.mem, entry.args) is self._field:
                sites.setdefault(a.mem, {})[a.stmt] = None
        for here in sites.values():
            found = self._indices.elements(special, here, entry.args, reading)
            if found is None:
                return False
            inside = self._inside(found)
            self._last[inside] = np.maximum(self._last[inside], reading)
        return True

    def _inside(self, elements: np.ndarray) -> np.ndarray:
        """Return the elements without those out of bounds, which kernels skip."""
        return elements[(elements >= 0) & (elements < len(self._last))]


class RecordedWrites:
    """When each section of each field was written last.

    A reading is the number of ticks since the record began. A section is a field and the indices along some
    axes; which axes these are depends on the access.

    Args:
        entries: the record; nothing else may have ticked in between (`Record.is_gapless`).
        changed: whether a part of a field was written after a reading.

    Attributes:
        indices: tells elements that index fields decide.
        end: the last reading.
    """

    def __init__(self, entries: Sequence[Entry], changed: Callable[[Box, int], bool]) -> None:
        self.indices = KnownIndices(changed)
        self._last: dict[Field, dict[Axes, dict[Indices, int]]] = {}
        # By field, the axes of writes, and those of them that are compared.
        self._projected: dict[tuple[Field, Axes, Axes], dict[Indices, int]] = {}
        # By field, the launches that wrote to it, in their order, and its last write from Python.
        self._launches: dict[Field, list[tuple[int, Extent, Launched]]] = {}
        self._boxes: dict[Field, _Boxes] = {}
        self._elements: dict[Field, WrittenElements | None] = {}
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
                self._launches.setdefault(f, []).append((self.end, extent, entry))
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
        return not any(self._overwrite(e, of, args, since) for e in of.accesses.read_sections)

    def _overwrite(self, extent: Extent, of: Derivative, args: tuple[Any, ...], since: int) -> bool:
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
                return self._meets(f, extent, of, args, since)
        return False

    def _meets(
        self, f: Field, extent: Extent, of: Derivative, args: tuple[Any, ...], since: int
    ) -> bool:
        """Return the same, by the first and the last index of each access, and then element by element."""
        if self._whole.get(f, 0) > since:  # Python's writes have no ends
            return True
        launches = self._launches.get(f, ())
        if f not in self._boxes:
            self._boxes[f] = _Boxes(launches)
        found = self._boxes[f].meeting(extent, args, since)
        if not found:
            return False
        if f not in self._elements:
            by_reading = {reading: entry for reading, _, entry in launches}
            self._elements[f] = WrittenElements.of(f, by_reading, self.indices)
        elements = self._elements[f]
        return elements is None or elements.meet(found, of, args, since)

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
        writes: readings, in their order, with accesses and their launches.
    """

    def __init__(self, writes: Sequence[tuple[int, Extent, Launched]]) -> None:
        self._readings = np.array([reading for reading, _, _ in writes], np.int64)
        self._ends: dict[Side, np.ndarray] = {}
        for k, (_, extent, entry) in enumerate(writes):
            found = extent.ends(entry.args)
            if any(first > last for first, last in found):  # of a loop without iterations
                self._readings[k] = 0
            for side, ends in zip(extent.sides, found, strict=True):
                if side not in self._ends:
                    # Where nothing is known it may be any index.
                    self._ends[side] = np.array([[-_FAR], [_FAR]]).repeat(len(writes), 1)
                self._ends[side][:, k] = np.clip(ends, -_FAR, _FAR)

    def meeting(self, extent: Extent, args: tuple[Any, ...], since: int) -> list[int]:
        """Return the writes after a reading that may reach what an access does, by their readings."""
        found = self._readings > since
        for side, (first, last) in zip(extent.sides, extent.ends(args), strict=True):
            if first > last:
                return []
            ends = self._ends.get(side)
            if ends is not None:
                low, high = ends
                found &= (low <= min(last, _FAR)) & (high >= max(first, -_FAR))
        readings: list[int] = self._readings[found].tolist()
        return readings


class RefusedLaunches:
    """The adjoints of a backward pass that versions have refused, and the record may allow."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        # Of a part of a record it is not known whether something else ticked in between.
        self._record = entries if isinstance(entries, Record) and entries.is_gapless else None

    @functools.cached_property
    def _writes(self) -> RecordedWrites | None:
        record = self._record
        if record is None:
            return None
        base = record.base
        return RecordedWrites(
            record, lambda box, since: box[0].versions.changed(box[1], base + since)
        )

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
