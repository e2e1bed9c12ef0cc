"""The order of reads and writes in a recorded program, simulated without running it.

`VersionOrder` plays the program through on versions of its own, whose clock starts at 0. It says whether an
adjoint would find what its launch saw, and what the real versions are once the program has run.
"""

from __future__ import annotations

from typing import Any

from diffsim.ad.record.elements import Box
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.versions import Part, Stamp, Versions
from diffsim.runtime.session import session


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

    def is_of(self, box: Box, reading: int) -> bool:
        """Whether the last write to a box was the one at this reading."""
        v = self.versions.get(box[0])
        return v is not None and box[0].versions.is_complete and v.last(box[1]) == reading

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
    session.clock = session.unknown_until = base + readings
    for stamp in stamps:
        if stamp.is_of_rows:
            stamp.apply(base)
            continue
        # As `apply`, without a call: short passes write as many gradients as they have launches.
        v = stamp.versions
        v.latest = base + stamp.latest
        if stamp.whole > 0:
            v.whole, v.writer = base + stamp.whole, stamp.writer
        v.dirty = True
    return base
