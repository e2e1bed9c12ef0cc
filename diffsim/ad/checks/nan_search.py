"""Where a NaN came from: `ds.Tape(check_nan=True)`.

After each launch and each adjoint the parts of fields that it wrote are searched. Elements that were NaN
before are left out, so that the launch which made the first one is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Index, numpy_index, values_of
from diffsim.ad.record.entries import Launched
from diffsim.errors import AutodiffError, Span
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

_MOST_LINES = 4


class NanSearch:
    """Finds the first launch or adjoint that writes a NaN."""

    def __init__(self) -> None:
        self.old: dict[tuple[Field, int | None], np.ndarray] = {}

    def before(
        self, accesses: list[RegionAccess], special: Specialization, args: tuple[Any, ...]
    ) -> None:
        """Note which elements of what will be written are NaN already."""
        self.old = {}
        for a in accesses:
            box = special.box(a, args)
            if box is not None and box[0].dtype.is_float and box not in self.old:
                # Once for each box, though several accesses may write it.
                self.old[box] = np.isnan(_rows(*box))

    def after(
        self, accesses: list[RegionAccess], entry: Launched, *, adjoint: bool = False
    ) -> None:
        """Search what was written, and report the first new NaN."""
        for (f, row), old in self.old.items():
            made = np.isnan(_rows(f, row))
            # A NaN that was there before has been reported, or is the user's own mark for missing data.
            made &= ~old
            if made.any():
                here = [a for a in accesses if entry.special.box(a, entry.args) == (f, row)]
                where = f"{here[0].mem.name}[{_place(f, row, made)}]"
                raise _error(where, entry, [a.stmt.span for a in here], adjoint=adjoint)
        self.old = {}

    def wrote(self, field: Field, index: Index) -> None:
        """Search what Python wrote."""
        if not field.dtype.is_float:
            return
        # Only the written elements: NaN elsewhere was there before.
        array, there = values_of(field), numpy_index(field, index)
        made = np.zeros(array.shape, bool)
        made[there] = np.isnan(array[there])
        if made.any():
            raise AutodiffError(
                f"{field.name}[{_place(field, None, made)}] is set to NaN",
                Span.of_caller(),
                hint="look at where this value comes from",
            )


def _error(where: str, entry: Launched, lines: list[Span], *, adjoint: bool) -> AutodiffError:
    what = entry.text()
    # Several stores may write the box, and which of them made the NaN is not known: the first ones are
    # shown.
    lines = list(dict.fromkeys(lines))
    others = "".join(f"\n{span.text()}" for span in lines[1:_MOST_LINES])
    also = f"\n  it is also written here:{others}\n  and here:" if others else ""
    maker = f"the adjoint of {what}" if adjoint else what
    return AutodiffError(
        f"{where} became NaN in {maker}{also}",
        lines[0],
        hint="look for 0 / 0, inf - inf, the root or logarithm of a negative number"
        + (", and for infinite derivatives times 0" if adjoint else ""),
    )


def _rows(f: Field, row: int | None) -> np.ndarray:
    """Return the values of a row of the time axis (None: of the whole field)."""
    axis = f.versions.axis
    # A row outside of the field: the access is an error of its own, and the whole field is searched.
    if row is None or axis is None or not 0 <= row < f.shape[axis]:
        return values_of(f)
    # A slice of length 1 keeps the axis, so `_place` gets an index of full rank.
    found: np.ndarray = values_of(f)[(slice(None),) * axis + (slice(row, row + 1),)]
    return found


def _place(f: Field, row: int | None, made: np.ndarray) -> str:
    """Return the index of the first new NaN, as text."""
    at = [int(k) for k in np.argwhere(made)[0][: len(f.shape)]]
    axis = f.versions.axis
    if row is not None and axis is not None and made.shape[axis] != f.shape[axis]:
        at[axis] = row
    return ", ".join(map(str, at)) or "None"
