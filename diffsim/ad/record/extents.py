"""What the accesses of a kernel reach in a launch, as functions of the launch's arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from diffsim.ad.record.elements import Box
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

Rows = tuple[tuple[int, int], ...]
"""Axes with a fixed index along each; empty: any element."""


class Extent:
    """What one access reaches, as a function of the arguments: a quicker `AccessSummary.box`."""

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
        # For each axis with a fixed index: the argument's number (None: there is none), and what is added.
        self.rows: dict[int, tuple[int | None, int]] = {
            r.axis: (None if r.argument is None else names.index(r.argument.hint), r.shift)
            for r in sorted(access.region, key=lambda r: r.axis)
        }

    def object_of(self, args: tuple[Any, ...]) -> Any:
        """Return the field or array that the access reaches in a launch; None for no field."""
        if self.field is not None:
            return self.field
        found = args[self.number]
        return found.adjoint if self.derived else found

    def box(self, args: tuple[Any, ...]) -> Box | None:
        """Return the field and the only row (None: any) that the access reaches in a launch."""
        f = self.object_of(args)
        if f is None:
            return None
        row = self.rows.get(f.versions.axis)
        if row is None:
            return f, None
        number, shift = row
        return f, shift if number is None else int(args[number]) + shift

    def rows_of(self, args: tuple[Any, ...]) -> Rows:
        """Return the fixed indices along all axes in a launch."""
        return tuple(
            (axis, shift if number is None else int(args[number]) + shift)
            for axis, (number, shift) in self.rows.items()
        )


def extents(special: Specialization, accesses: Iterable[RegionAccess]) -> list[Extent]:
    """Return extents with the boxes of several accesses, without duplicates."""
    found = {}
    for a in accesses:
        extent = Extent(special, a)
        f = extent.field
        if f is not None:
            # A field has versions along one axis only; rows along others give no exacter box.
            extent.rows = {k: row for k, row in extent.rows.items() if k == f.versions.axis}
        # A kernel has many accesses to few boxes: x[t, i] and x[t, i + 1] share a row.
        key = id(f), extent.number, extent.derived, tuple(extent.rows.items())
        found[key] = extent
    return list(found.values())
