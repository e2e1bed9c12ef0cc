"""Inputs that Python sets inside a tape's block keep their gradients (docs/adr/0027).

A constant that Python writes to an element which nothing on the tape may have used before is an input, as if
it had been written before the block. The adjoint of a write normally clears the element's gradient; here no
earlier adjoint reads it, so it is left for the user. Of a write to many elements each is judged by itself.

In a backward pass over several tapes this gradient belongs to the value that was set, and not to what an
earlier tape left there. So the element is noted (`Cut`), and a pass that starts from its gradient is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Index, Run, numpy_index
from diffsim.ad.record.entries import Cleared, Copied, Launched, Wrote, all_written
from diffsim.ad.record.entry import Entry
from diffsim.runtime.fields.conversions import array_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import Extent, Rows
from diffsim.runtime.memory.cut_gradients import Cut, refuse_cut

if TYPE_CHECKING:
    from diffsim.ad.checks.integrity import RecordIntegrity
    from diffsim.ad.record.record import Record
    from diffsim.runtime.kernels.specialization import Specialization
    from diffsim.runtime.memory.versions import Versions


class Uses:
    """The elements of one field that a program may have used so far, and the constants declared there."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._rows: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        # The same elements as an array of booleans, brought up to date when somebody asks for it.
        self._mask: np.ndarray | None = None
        self._pending: list[Rows | Run] = []
        self._has_runs = False
        # Constants that the user declared: of single elements, by index, and of more than one.
        self._single: dict[Index, list[Wrote]] = {}
        self._large: list[Wrote] = []

    def add(self, part: Rows | Run) -> None:
        """Add elements that are used."""
        if isinstance(part, Run):
            self._has_runs = True
            self._pending.append(part)
            return
        # By axes first: asking about an element then takes one look-up for each pattern of fixed axes,
        # however many launches there were.
        axes, at = tuple(zip(*part, strict=True)) or ((), ())
        known = self._rows.setdefault(axes, set())
        if at not in known:
            known.add(at)
            self._pending.append(part)

    def wrote(self, entry: Wrote | Copied, index: Index) -> None:
        """Note a constant that Python set: an input at all elements that were not used before."""
        entry.cleared = self.used_of(index)
        if entry.cleared is not True:
            self._spare(index, entry.cleared)

    def declared(self, entry: Wrote) -> None:
        """Note a constant that the user declared as one: its gradient is 0."""
        entry.cleared = True
        if _is_single(entry.index):
            self._single.setdefault(entry.index, []).append(entry)
        else:
            self._large.append(entry)

    def used_of(self, index: Index) -> Cleared:
        """Return which of these elements were used."""
        if _is_single(index):
            assert index is not None
            if any(tuple(index[a] for a in axes) in at for axes, at in self._rows.items()):
                return True
            return self._has_runs and bool(self._used()[index])
        if () in self._rows or not (self._rows or self._has_runs):
            return () in self._rows
        elements = _mask_of(self._field, index)
        return _simplest(elements & self._used(), elements)

    def _used(self) -> np.ndarray:
        shape = self._field.shape
        if self._mask is None:
            self._mask = np.zeros(shape, bool)
        for part in self._pending:
            if isinstance(part, Run):
                self._mask[numpy_index(self._field, part)] = True
            # Kernels skip rows that there are none of; NumPy would count negative ones from the end.
            elif all(0 <= at < shape[axis] for axis, at in part):
                fixed = dict(part)
                self._mask[tuple(fixed.get(axis, slice(None)) for axis in range(len(shape)))] = True
        self._pending.clear()
        return self._mask

    def _spare(self, index: Index, used: Cleared) -> None:
        """Let the constants declared before leave the gradients of these elements, but for those `used`."""
        if _is_single(index):
            replaced = self._single.pop(index, [])
        else:
            kept = _mask_of(self._field, index) & ~np.asarray(used)
            replaced = [d for at, ds in self._single.items() if kept[at] for d in ds]
        for entry in replaced:
            entry.cleared = False
        for entry in self._large:
            elements = _mask_of(self._field, entry.index)
            left = np.array(elements & entry.cleared)  # without axes it is a number otherwise
            left[numpy_index(self._field, index) if _is_single(index) else kept] = False
            entry.cleared = _simplest(left, elements)
        self._large = [entry for entry in self._large if entry.cleared is not False]


def _is_single(index: Index) -> bool:
    return isinstance(index, tuple) and not isinstance(index, Run)


def _mask_of(field: Field, index: Index) -> np.ndarray:
    """Return for each element of a field whether it is one of these."""
    mask = np.zeros(field.shape, bool)
    mask[numpy_index(field, index)] = True
    return mask


def _simplest(some: np.ndarray, elements: np.ndarray) -> Cleared:
    """Return a part of these elements as `Wrote.cleared` has it."""
    if not some.any():
        return False
    return True if (some == elements).all() else some


def mark_inputs(entries: Record, wanted: bool) -> None:
    """Mark the writes from Python that set inputs, if those are to keep their gradients."""
    # Only fields that Python writes constants to can have inputs; others are not followed.
    places = (e.constant_place() for e in entries.firsts() if e.may_be_input)
    uses = {place[0]: Uses(place[0]) for place in places if place is not None}
    if not uses or not wanted:
        return
    extents: dict[Specialization, list[Extent]] = {}
    # In program order: a write is an input if nothing before it may have used the element.
    for entry in entries:
        place = entry.constant_place()
        if place is None:
            for f, part in _uses(entry, uses, extents):
                uses[f].add(part)
        # A constant does not count as a use: the last of several writes is the input.
        elif place[0] in uses:
            assert isinstance(entry, (Wrote, Copied))
            if isinstance(entry, Wrote) and not entry.may_be_input:
                uses[place[0]].declared(entry)
            else:
                uses[place[0]].wrote(entry, place[1])


def _uses(
    entry: Entry, wanted: Mapping[Field, Uses], extents: dict[Specialization, list[Extent]]
) -> Iterator[tuple[Field, Rows | Run]]:
    """Yield what an entry may read or write of these fields."""
    if isinstance(entry, Launched):
        special = entry.special
        found = extents.get(special)
        if found is None:
            both = (*special.accesses.reads, *special.accesses.writes)
            found = extents[special] = [
                Extent(special.arguments, a)
                for a in both
                if a.mem.kind == "array" or special.object_of(a.mem, entry.args) in wanted
            ]
        for extent in found:
            f = extent.object_of(entry.args)
            if isinstance(f, Field) and f in wanted:
                yield f, extent.rows_of(entry.args)
        return
    for f, index in entry.elements():
        if f in wanted:
            yield f, index if isinstance(index, Run) else tuple(enumerate(index or ()))


# ---- gradients of inputs on the way back over several tapes


Input = tuple["Wrote | Copied", "Versions", Any, Any]
"""A write that set an input; the versions of the gradient; the elements, as a cut's key and as an index."""


def inputs_of(entries: Record) -> list[Input]:
    """Return what the record's writes set as inputs; no field is kept alive by it but by the entries."""
    found: list[Input] = []
    for entry in entries.firsts():
        if not isinstance(entry, (Wrote, Copied)) or not entry.may_be_input:
            continue
        place = entry.constant_place()
        if place is None or entry.cleared is True:
            continue
        f, index = place
        assert f.adjoint is not None
        part: Any = numpy_index(f, index)
        key: Any = type(index), index
        if isinstance(entry.cleared, np.ndarray):
            part = _mask_of(f, index) & ~entry.cleared
            key = np.ndarray, part.tobytes()
        found.append((entry, f.adjoint.versions, key, part))
    return found


def note_inputs(inputs: list[Input], record: object, now: int) -> None:
    """Note the elements whose gradients the pass that has just ended left to inputs.

    Args:
        inputs: what the writes of the record set.
        record: the object that identifies it.
        now: the clock's reading.
    """
    for entry, versions, key, part in inputs:
        versions.add_cut(key, Cut(now, record, part, entry.writer))


def check_cuts(entries: Record, seeds: Mapping[Field, Any], integrity: RecordIntegrity) -> None:
    """Refuse to start from the gradient of what was set, after this record, in another tape's block.

    Args:
        entries: the record.
        seeds: the gradients that the user gave.
        integrity: of the record; it holds the clock's reading at the record's end.

    Raises:
        AutodiffError: with the statement that set it.
    """
    for f, seed in seeds.items():
        grad = f.adjoint if isinstance(f, Field) else None
        cuts = [] if grad is None else list((grad.versions.cuts or {}).values())
        cuts = [c for c in cuts if c.record is not integrity and c.now > integrity.ended_at]
        if grad is None or not cuts or f not in all_written(entries.firsts()):
            continue
        # One number for many elements was not read from a gradient.
        if isinstance(seed, (int, float)) and f.shape + f.element:
            continue
        array = seed.to_numpy() if isinstance(seed, Field) else array_of(seed)
        if array.shape != f.shape + f.element:
            continue  # refused elsewhere
        given = array.reshape((*f.shape, -1))
        there = grad.storage.to_numpy().reshape(given.shape)
        for c in cuts:
            # The chain over two tapes is broken by the write, and would continue with the gradient of another
            # value. The numbers are not compared: the seed may have been scaled or clipped on its way.
            if ((given[c.part] != 0) & (there[c.part] != 0)).any():
                raise refuse_cut(f, c, "this tape")
