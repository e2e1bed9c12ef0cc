"""Inputs that Python sets inside a tape's block keep their gradients (docs/adr/0027).

A constant that Python writes to an element which nothing on the tape may have used before is an input, as if
it had been written before the block. The adjoint of a write normally clears the element's gradient; here no
earlier adjoint reads it, so it is left for the user.

In a backward pass over several tapes this gradient belongs to the value that was set, and not to what an
earlier tape left there. So the element is noted (`Cut`), and a pass that starts from its gradient is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from diffsim.ad.record.elements import Index, Run, numpy_index
from diffsim.ad.record.entries import Copied, Launched, Wrote, all_written
from diffsim.ad.record.entry import Entry
from diffsim.ad.record.extents import Extent, Rows
from diffsim.runtime.fields.conversions import array_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.cut_gradients import Cut, refuse_cut

if TYPE_CHECKING:
    from diffsim.ad.checks.integrity import RecordIntegrity
    from diffsim.ad.record.record import Record
    from diffsim.runtime.kernels.specialization import Specialization


class Used:
    """The elements of one field that a program may have used so far."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, ...], set[tuple[int, ...]]] = {}

    def add(self, rows: Rows) -> None:
        """Add elements."""
        # By axes first: asking about an element then takes one look-up for each pattern of fixed axes,
        # however many launches there were.
        axes, at = tuple(zip(*rows, strict=True)) or ((), ())
        self._rows.setdefault(axes, set()).add(at)

    def overlaps(self, index: Index) -> bool:
        """Whether some of these elements may have been used."""
        # A whole field, or a run, overlaps anything that was used of it.
        if index is None or isinstance(index, Run):
            return bool(self._rows)
        return any(tuple(index[a] for a in axes) in at for axes, at in self._rows.items())


def mark_inputs(entries: Record, wanted: bool) -> None:
    """Mark the writes from Python that set inputs, if those are to keep their gradients."""
    # Only fields that Python writes constants to can have inputs; others are not followed.
    used = {place[0]: Used() for e in entries.firsts() if (place := e.input_place()) is not None}
    if not used or not wanted:
        return
    extents: dict[Specialization, list[Extent]] = {}
    # In program order: a write is an input if nothing before it may have used the element.
    for entry in entries:
        place = entry.input_place()
        if place is None:
            # A constant from Python does not count as a use: the last of several writes is the input.
            for f, rows in _uses(entry, used, extents):
                used[f].add(rows)
        else:
            assert isinstance(entry, (Wrote, Copied))
            entry.is_input = not used[place[0]].overlaps(place[1])


def _uses(
    entry: Entry, wanted: Mapping[Field, Used], extents: dict[Specialization, list[Extent]]
) -> Iterator[tuple[Field, Rows]]:
    """Yield what an entry may read or write of these fields."""
    if isinstance(entry, Launched):
        special = entry.special
        found = extents.get(special)
        if found is None:
            both = (*special.accesses.reads, *special.accesses.writes)
            found = extents[special] = [
                Extent(special, a)
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
            yield f, () if index is None or isinstance(index, Run) else tuple(enumerate(index))


# ---- gradients of inputs on the way back over several tapes


def note_inputs(entries: Record, record: object, now: int) -> None:
    """Note the elements whose gradients the pass that has just ended left to inputs.

    Args:
        entries: the record.
        record: the object that identifies it.
        now: the clock's reading.
    """
    for entry in entries.firsts():
        if isinstance(entry, (Wrote, Copied)) and entry.is_input:
            place = entry.input_place()
            assert place is not None
            f, index = place
            assert f.adjoint is not None
            cut = Cut(now, record, numpy_index(f, index), entry.writer)
            f.adjoint.versions.add_cut((type(index), index), cut)


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
