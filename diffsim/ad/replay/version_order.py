"""The order of reads and writes in a recorded program, simulated without running it.

`VersionOrder` plays the program through on versions of its own, whose clock starts at 0. It says whether an
adjoint would find what its launch saw, and what the real versions are once the program has run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from diffsim.ad.record.elements import Box
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.versions import Part, Stamp, Versions
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class Extent:
    """The box that an access reaches, as a function of the arguments: a quicker `AccessSummary.box`."""

    __slots__ = ("derived", "field", "number", "rows")

    def __init__(self, special: Specialization, access: RegionAccess) -> None:
        names = [p.name for p in special.arguments.parameters]
        mem = access.mem
        self.field: Field | None = None
        self.number, self.derived = 0, False
        if mem.kind == "field":
            self.field = mem.handle()
        else:
            name = special.arguments.array_name(mem)
            self.number = names.index(name)
            # An array and its gradient are one argument; `derived` means the latter.
            self.derived = special.arguments.arrays[name]._mem is not mem
        self.rows = {
            r.axis: (None if r.argument is None else names.index(r.argument.hint), r.shift)
            for r in access.region
            # A field has versions along one axis only; rows along others give no exacter box.
            if self.field is None or r.axis == self.field.versions.axis
        }

    def box(self, args: tuple[Any, ...]) -> Box | None:
        """Return the field and the only row (None: any) that the access reaches in a launch."""
        f = self.field
        if f is None:
            f = args[self.number]
            if self.derived:
                f = f.grad
            if f is None:
                return None
        axis = f.versions.axis
        row = None if axis is None else self.rows.get(axis)
        if row is None:
            return f, None
        number, shift = row
        return f, shift if number is None else int(args[number]) + shift


def extents(special: Specialization, accesses: Iterable[RegionAccess]) -> list[Extent]:
    """Return the extents of several accesses without duplicates."""
    found = {}
    for a in accesses:
        reach = Extent(special, a)
        rows = tuple(sorted(reach.rows.items()))
        # A kernel has many accesses to few boxes: x[t, i] and x[t, i + 1] share a row.
        found[id(reach.field), reach.number, reach.derived, rows] = reach
    return list(found.values())


class VersionOrder:
    """Versions of fields on a simulated clock.

    Attributes:
        clock: how many launches and writes there were.
        versions: of each field that was written.
    """

    def __init__(self) -> None:
        self.clock = 0
        self.versions: dict[Field, Versions] = {}

    def tick(self) -> None:
        """Advance the clock to the next launch or write."""
        self.clock += 1

    def write(self, box: Box, writer: Any) -> None:
        """Note that the present launch or write writes to a box."""
        # The real versions are not touched: a simulation must leave no trace in the session.
        field, row = box
        v = self.versions.get(field)
        if v is None:
            # A copy without stamps, with the same axis: simulated readings start from 0 and never reach
            # the real ones.
            v = self.versions[field] = field.versions.separate()
        v.written(row, self.clock, writer)

    def changed(self, box: Box, since: int) -> bool:
        """Whether the box was written to after a clock reading."""
        v = self.versions.get(box[0])
        # `latest` first: most fields have not changed at all, and rows take a look-up.
        return v is not None and v.latest > since and v.changed(box[1], since)

    def part(self, box: Box) -> Part:
        """Return the versions of a box, for `restore`."""
        v = self.versions.get(box[0])
        return (v or box[0].versions.separate()).snapshot(box[1])

    def restore(self, box: Box, part: Part) -> None:
        """Set the versions of a box back to what `part` returned."""
        v = self.versions.get(box[0])
        if v is not None:
            v.restore(box[1], part)

    def stamps(self, since: int = 0) -> list[Stamp]:
        """Return stamps for the real versions of all that was written after a reading."""
        return [Stamp(f.versions, v, since) for f, v in self.versions.items() if v.latest > since]


def apply_stamps(stamps: list[Stamp], readings: int) -> int:
    """Stamp what a program of so many launches and writes wrote; returns the clock before it."""
    # The clock moves on by as many readings as single launches would have taken, so later comparisons
    # hold.
    base = session.clock
    session.clock = base + readings
    for stamp in stamps:
        stamp.apply(base)
    return base
