"""Where a NaN or an infinity came from: `ds.Tape(check_nan=True)`.

After each launch and each adjoint the parts of fields that it wrote are searched. Elements that were NaN or
infinite before are left out, so that the launch which made the first one is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Index, numpy_index, values_of
from diffsim.ad.record.entries import Launched
from diffsim.errors import AutodiffError, Span
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.variable_names import name_in_launch

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

_MOST_LINES = 4


_INFINITE, _NAN = 1, 2
_MADE = {_INFINITE: "infinite", _NAN: "NaN"}
_SET = {_INFINITE: "infinity", _NAN: "NaN"}
_CAUSES = {
    _INFINITE: "look for a division by 0, the logarithm of 0, a number beyond the type's range",
    _NAN: "look for 0 / 0, inf - inf, the root or logarithm of a negative number",
}
_OF_ADJOINTS = {
    _INFINITE: ", and for infinite derivatives, as of 1 / x at 0",
    _NAN: ", and for infinite derivatives times 0",
}
_OTHERWISE = {
    _INFINITE: '; where infinities are meant, check_nan="nan" looks for NaN alone',
    _NAN: "",
}


class NanSearch:
    """Finds the first launch or adjoint that writes a NaN or an infinity.

    Args:
        nan_alone: whether infinities are left out.
    """

    def __init__(self, *, nan_alone: bool = False) -> None:
        self.nan_alone = nan_alone
        self.old: dict[tuple[Field, int | None], np.ndarray] = {}

    def before(
        self, accesses: list[RegionAccess], special: Specialization, args: tuple[Any, ...]
    ) -> None:
        """Note which elements of what will be written are NaN or infinite already."""
        self.old = {}
        for a in accesses:
            box = special.box(a, args)
            if box is not None and box[0].dtype.is_float and box not in self.old:
                # Once for each box, though several accesses may write it.
                self.old[box] = self._faults(_rows(*box))

    def _faults(self, values: np.ndarray) -> np.ndarray:
        """Return for each number 0, `_NAN`, or `_INFINITE`."""
        found = np.where(np.isnan(values), np.int8(_NAN), np.int8(0))
        if not self.nan_alone:
            found[np.isinf(values)] = _INFINITE
        return found

    def after(
        self, accesses: list[RegionAccess], entry: Launched, *, adjoint: bool = False
    ) -> None:
        """Search what was written, and report the first new NaN or infinity."""
        for (f, row), old in self.old.items():
            faults = self._faults(_rows(f, row))
            # What was there before has been reported, or is the user's own mark for missing data.
            made = (faults != 0) & (faults != old)
            if made.any():
                here = [a for a in accesses if entry.special.box(a, entry.args) == (f, row)]
                where = f"{name_in_launch(here[0].mem, f)}[{_place(f, row, made)}]"
                lines = [a.stmt.span for a in here]
                raise _error(where, int(faults[made][0]), entry, lines, adjoint=adjoint)
        self.old = {}

    def wrote(self, field: Field, index: Index) -> None:
        """Search what Python wrote."""
        if not field.dtype.is_float:
            return
        # Only the written elements: what is elsewhere was there before.
        array, there = values_of(field), numpy_index(field, index)
        faults = np.zeros(array.shape, np.int8)
        faults[there] = self._faults(array[there])
        made = faults != 0
        if made.any():
            fault = int(faults[made][0])
            raise AutodiffError(
                f"{field.name}[{_place(field, None, made)}] is set to {_SET[fault]}",
                Span.of_caller(),
                hint="look at where this value comes from" + _OTHERWISE[fault],
            )


def _error(
    where: str, fault: int, entry: Launched, lines: list[Span], *, adjoint: bool
) -> AutodiffError:
    what = entry.text()
    # Several stores may write the box, and which of them made it is not known: the first ones are shown.
    lines = list(dict.fromkeys(lines))
    others = "".join(f"\n{span.text()}" for span in lines[1:_MOST_LINES])
    also = f"\n  it is also written here:{others}\n  and here:" if others else ""
    maker = f"the adjoint of {what}" if adjoint else what
    return AutodiffError(
        f"{where} became {_MADE[fault]} in {maker}{also}",
        lines[0],
        hint=_CAUSES[fault] + (_OF_ADJOINTS[fault] if adjoint else "") + _OTHERWISE[fault],
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
    """Return the index of the first number found, as text."""
    at = [int(k) for k in np.argwhere(made)[0][: len(f.shape)]]
    axis = f.versions.axis
    if row is not None and axis is not None and made.shape[axis] != f.shape[axis]:
        at[axis] = row
    return ", ".join(map(str, at)) or "None"
