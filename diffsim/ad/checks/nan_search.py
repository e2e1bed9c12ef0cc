"""Where a NaN or an infinity came from: `ds.Tape(check_nan=True)`.

After each launch and each adjoint the parts of fields that it wrote are searched. Elements that were NaN or
infinite before are left out, so that the launch which made the first one is reported. It is then run once
more from what was there before, to find the operation (`runtime/observe/nonfinite.py`). An infinity that no
operation made was meant: it was loaded, or written as a constant.
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
from diffsim.runtime.kernels.launch_function import run_again
from diffsim.runtime.observe.nonfinite import (
    INFINITE,
    NAN,
    WORD,
    Found,
    KeptMemory,
    OriginSearch,
    faults,
    general_hint,
)

if TYPE_CHECKING:
    from diffsim.runtime.kernels.derivative import Derivative
    from diffsim.runtime.kernels.specialization import Specialization

_MOST_LINES = 4
_SET = {INFINITE: "infinity", NAN: "NaN"}
_OTHERWISE = {
    INFINITE: '; where infinities are meant, check_nan="nan" looks for NaN alone',
    NAN: "",
}


class NanSearch:
    """Finds the first launch or adjoint that writes a NaN or an infinity.

    Args:
        nan_alone: whether infinities are left out.
    """

    def __init__(self, *, nan_alone: bool = False) -> None:
        self.nan_alone = nan_alone
        self._old: dict[tuple[Field, int | None], np.ndarray | None] = {}
        self._kept = KeptMemory(())

    def before(self, of: Specialization | Derivative, args: tuple[Any, ...]) -> None:
        """Note what a launch is about to write, and which elements of it are NaN or infinite already."""
        self._old = {}
        self._kept = KeptMemory(part for _, part in of.written_parts(args))
        for f, row in self._kept.parts:
            if isinstance(f, Field) and f.dtype.is_float:
                self._old[f, row] = self._faults(_rows(f, row))

    def _faults(self, values: np.ndarray) -> np.ndarray | None:
        """Return what is wrong with each number; None, which nearly all launches give: nothing is."""
        # One quick pass; a NaN is not finite either.
        return None if np.isfinite(values).all() else faults(values, nan_alone=self.nan_alone)

    def after(self, entry: Launched, derivative: Derivative | None = None) -> None:
        """Search what a launch (or its adjoint) wrote, and report the first new NaN or infinity."""
        news = {}
        for (f, row), old in self._old.items():
            now = self._faults(_rows(f, row))
            if now is None:
                continue
            # What was there before has been reported, or is the user's own mark for missing data.
            made = now if old is None else np.where(now != old, now, np.int8(0))
            if made.any():
                news[f, row] = made
        kept, self._kept, self._old = self._kept, KeptMemory(()), {}
        if news:
            self._report(news, kept, entry, derivative)

    def _report(
        self,
        news: dict[tuple[Field, int | None], np.ndarray],
        kept: KeptMemory,
        entry: Launched,
        derivative: Derivative | None,
    ) -> None:
        maker = entry.text() if derivative is None else f"the adjoint of {entry.text()}"
        # The cotangent of what a kernel returned is gone, so such an adjoint can not be run once more.
        may_run = kept.is_whole and (derivative is None or not derivative.returns_active)
        found = self._origin(kept, entry, derivative) if may_run else None
        if found is not None:
            thing = entry.special.object_of(found.store.mem, entry.args)
            message, line = found.message(maker, thing)
            hint = found.hint(adjoint=derivative is not None) + _OTHERWISE[found.fault]
            raise AutodiffError(message, line, hint=hint)
        accesses = (entry.special if derivative is None else derivative).accesses.writes
        for (f, row), made in news.items():
            if may_run and not (made == NAN).any():
                continue  # an infinity that no operation made
            here = [a for a in accesses if entry.special.box(a, entry.args) == (f, row)]
            where = f"{name_in_launch(here[0].mem, f)}[{_place(f, row, made)}]"
            fault = int(made[made != 0].max())
            raise _unexplained(where, fault, maker, here, adjoint=derivative is not None)

    def _origin(
        self, kept: KeptMemory, entry: Launched, derivative: Derivative | None
    ) -> Found | None:
        """Return what a launch made first, of which operands."""
        of = derivative or entry.special
        key = "origins", self.nan_alone
        search: OriginSearch | None = of.variants.get(key)
        if search is None:
            search = of.variants[key] = OriginSearch(
                of.ir, entry.special.backend, nan_alone=self.nan_alone, loads=True
            )
        return search.find(
            lambda code: run_again(entry.special, code, entry.args, entry.seed), kept
        )

    def wrote(self, field: Field, index: Index) -> None:
        """Search what Python wrote."""
        if not field.dtype.is_float:
            return
        # Only the written elements: what is elsewhere was there before.
        array, there = values_of(field), numpy_index(field, index)
        made = np.zeros(array.shape, np.int8)
        made[there] = faults(array[there], nan_alone=self.nan_alone)
        if made.any():
            fault = int(made[made != 0][0])
            raise AutodiffError(
                f"{field.name}[{_place(field, None, made)}] is set to {_SET[fault]}",
                Span.of_caller(),
                hint="look at where this value comes from" + _OTHERWISE[fault],
            )


def _unexplained(
    where: str, fault: int, maker: str, here: list[RegionAccess], *, adjoint: bool
) -> AutodiffError:
    """Return the error for a number that no operation of the launch has made, as far as could be seen."""
    # Several stores may write the box, and which of them made it is not known: the first ones are shown.
    lines = list(dict.fromkeys(a.stmt.span for a in here))
    others = "".join(f"\n{span.text()}" for span in lines[1:_MOST_LINES])
    also = f"\n  it is also written here:{others}\n  and here:" if others else ""
    hint = general_hint(fault, adjoint=adjoint) + _OTHERWISE[fault]
    return AutodiffError(f"{where} became {WORD[fault]} in {maker}{also}", lines[0], hint=hint)


def _rows(f: Field, row: int | None) -> np.ndarray:
    """Return the values of a row of the time axis (None: of the whole field)."""
    axis, first, count = f.versions.indices(row, f.shape)
    # A row outside of the field: the access is an error of its own, and the whole field is searched.
    if axis is None:
        return values_of(f)
    # A slice of length 1 keeps the axis, so `_place` gets an index of full rank.
    found: np.ndarray = values_of(f)[(slice(None),) * axis + (slice(first, first + count),)]
    return found


def _place(f: Field, row: int | None, made: np.ndarray) -> str:
    """Return the index of the first number found, as text."""
    at = [int(k) for k in np.argwhere(made)[0][: len(f.shape)]]
    axis = f.versions.axis
    if row is not None and axis is not None and made.shape[axis] != f.shape[axis]:
        at[axis] += row * f.versions.block
    return ", ".join(map(str, at)) or "None"
