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
from diffsim.ir.layout import shown_index
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.launch_function import run_again
from diffsim.runtime.memory.storage import WHOLE
from diffsim.runtime.memory.storage import Part as Place
from diffsim.runtime.observe.nonfinite import (
    INFINITE,
    NAN,
    WORD,
    Found,
    KeptMemory,
    OriginSearch,
    SpareMemory,
    faults,
    general_hint,
)
from diffsim.runtime.variable_names import name_in_launch

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
        self._spare = SpareMemory()
        self._kept = KeptMemory(())

    def before(self, of: Specialization | Derivative, args: tuple[Any, ...]) -> None:
        """Keep what a launch is about to overwrite."""
        self._kept = KeptMemory((part for _, part in of.written_parts(args)), self._spare)

    def _faults(self, values: np.ndarray) -> np.ndarray | None:
        """Return what is wrong with each number; None, which nearly all launches give: nothing is."""
        # One quick pass; a NaN is not finite either.
        return None if np.isfinite(values).all() else faults(values, nan_alone=self.nan_alone)

    def after(self, entry: Launched, derivative: Derivative | None = None) -> None:
        """Search what a launch (or its adjoint) wrote, and report the first new NaN or infinity."""
        kept, self._kept = self._kept, KeptMemory(())
        found = {}
        for f, place in kept.parts:
            if isinstance(f, Field) and f.dtype.is_float:
                now = self._faults(_values(f, place))
                if now is not None:
                    found[f, place] = now
        news = self._news(found, kept) if found else {}
        if news:
            self._report(news, kept, entry, derivative)
        kept.end(self._spare)

    def _news(
        self, found: dict[tuple[Field, Place], np.ndarray], kept: KeptMemory
    ) -> dict[tuple[Field, Place], np.ndarray]:
        """Return what the launch has made."""
        after = KeptMemory(kept.parts, self._spare)
        kept.put_back()
        old = {(f, place): self._faults(_values(f, place)) for f, place in found}
        after.put_back()
        after.end(self._spare)
        # What was there before has been reported, or is the user's own mark for missing data.
        made = {
            key: now if (was := old[key]) is None else np.where(now != was, now, np.int8(0))
            for key, now in found.items()
        }
        return {key: new for key, new in made.items() if new.any()}

    def _report(
        self,
        news: dict[tuple[Field, Place], np.ndarray],
        kept: KeptMemory,
        entry: Launched,
        derivative: Derivative | None,
    ) -> None:
        maker = entry.text() if derivative is None else f"the adjoint of {entry.text()}"
        # The cotangent of what a kernel returned is gone, so such an adjoint cannot be run once more.
        may_run = kept.is_whole and (derivative is None or not derivative.returns_active)
        found = self._origin(kept, entry, derivative) if may_run else None
        if found is not None:
            thing = entry.special.object_of(found.store.mem, entry.args)
            message, line = found.message(maker, thing)
            hint = found.hint(adjoint=derivative is not None) + _OTHERWISE[found.fault]
            raise AutodiffError(message, line, hint=hint)
        accesses = (entry.special if derivative is None else derivative).accesses
        parts = [part for _, part in accesses.written_parts(entry.args)]
        for (f, place), made in news.items():
            if may_run and not (made == NAN).any():
                continue  # an infinity that no operation made
            both = zip(accesses.writes, parts, strict=True)
            here = [a for a, (thing, at) in both if thing is f and at == place]
            where = f"{name_in_launch(here[0].mem, f)}[{_index(f, place, made)}]"
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
                f"{field.name}[{_index(field, WHOLE, made)}] is set to {_SET[fault]}",
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


def _values(f: Field, place: Place) -> np.ndarray:
    """Return the values of a part of a field."""
    axis, first, count = place
    if axis is None:
        return values_of(f)
    found: np.ndarray = values_of(f)[(slice(None),) * axis + (slice(first, first + count),)]
    return found


def _index(f: Field, place: Place, made: np.ndarray) -> str:
    """Return the index of the first number found, as text."""
    at = [int(k) for k in np.argwhere(made)[0][: len(f.shape)]]
    axis, first, _ = place
    if axis is not None:
        at[axis] += first
    return shown_index(f.origin, at)
