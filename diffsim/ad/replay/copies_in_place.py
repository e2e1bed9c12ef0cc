"""Copies of overwritten fields that a native backward pass loads from where they are.

Addresses are no part of compiled code, so where a tape has copied a whole field, the adjoints of earlier
launches are given the copy in the field's place. Nothing is copied back, and the final values stay where they
are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.ad.record.entries import Launched
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.record import Record
from diffsim.ad.record.replaced import Replaced
from diffsim.ir.nodes import Mem
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import HOST, StridedSpan

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

_ALIGNMENT = 256
"""Of the memory of fields on a GPU, which code for GPUs counts on."""


class CopiesInPlace:
    """Which copy stands for a field, on the way back through a record."""

    def __init__(self, entries: Record) -> None:
        whole: dict[Field, bool] = {}
        for saved in entries.copies():
            field = saved.box[0]
            whole[field] = whole.get(field, True) and _is_whole(saved)
        # A copy must stay as it is: a field that an adjoint writes to is copied back, and so is one that a
        # solve in Python looks for where it is.
        written = {f for e in entries.firsts() for f in _written(e)} if any(whole.values()) else ()
        self._fields = {f for f, is_whole in whole.items() if is_whole and f not in written}
        self._now: dict[Field, StridedSpan] = {}
        self._mems: dict[Specialization, list[tuple[Mem, Field]]] = {}

    def takes(self, saved: Saved) -> bool:
        """Let a copy stand for its field from here on; False: it has to be copied back."""
        field = saved.box[0]
        if field not in self._fields:
            return False
        self._now[field] = saved.places[1]
        return True

    def bound(self, special: Specialization) -> list[tuple[Field, Mem, StridedSpan]]:
        """Return the memories of an adjoint that are found in copies now."""
        if not self._now:
            return []
        mems = self._mems.get(special)
        if mems is None:
            found = ((m, m.handle()) for m in special.derivative.ir.mems if m.kind == "field")
            mems = self._mems[special] = [(m, f) for m, f in found if f in self._fields]
        return [(f, m, self._now[f]) for m, f in mems if f in self._now]

    def of_arrays(self) -> dict[Field, StridedSpan]:
        """Return the copies by their fields, for those that are arguments of a launch."""
        return self._now


def _is_whole(saved: Saved) -> bool:
    there, copied = saved.places
    storage = saved.box[0].storage
    aligned = storage.device is HOST or copied.address % _ALIGNMENT == 0
    return aligned and there.is_contiguous and there.nbytes == storage.layout.nbytes


def _written(entry: object) -> list[Field]:
    """Return what the adjoint of a launch writes besides gradients; what that of a solve reads."""
    if isinstance(entry, Replaced) and entry.rerun is not None:
        return [f for f, _ in entry.rerun.needed]
    if not isinstance(entry, Launched) or not entry.special.differentiable:
        return []
    accesses = entry.special.derivative.accesses.writes
    found = (entry.special.object_of(a.mem, entry.args) for a in accesses)
    return [f for f in found if isinstance(f, Field) and not f.is_grad]
