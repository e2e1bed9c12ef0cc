"""The trace of a step of a rollout: whether a step that is run again does the same."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Index, read_elements
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.recorder import NullRecorder

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class _Identity:
    """The identity of a recording without entries; weak references can be made to it."""


class StepTrace(NullRecorder):
    """The actions of a step, as one number: launches with their arguments, and writes from Python.

    Run again, a step must do the same. It may not if its Python code looks at something that is not in
    the state, such as a sum so far or a counter of its own.
    """

    follows_values = True

    def __init__(self) -> None:
        self.number = 0
        self.record = _Identity()

    def returned(self, result: Any) -> Recorded:
        return Recorded(result, self)

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        if field.kind != "argument":
            self.wrote(field, index, value.array)

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        # A tape may launch the tasks of a kernel one by one; they stand for one launch of it.
        if special.part_of is not None:
            special, number = special.part_of
            if number:
                return
        # A rolling hash: 8 bytes for a step of any length.
        self.number = hash((self.number, special.identity, *map(_mark, args)))

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.number = hash((self.number, field.number, index, _mark(read_elements(field, index))))

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        self.number = hash((self.number, target.number, source.number, to, at))

    def stopped(self, field: Field) -> None:
        self.number = hash((self.number, field.number))


def _mark(a: Any) -> Any:
    """Return a hashable value that represents the contents of an argument."""
    if isinstance(a, Field) and a.kind == "argument":
        a = a.storage.to_numpy()
    if isinstance(a, DeviceArray):
        a = a.to_numpy()
    # By contents, since the step may make the array anew each time.
    if isinstance(a, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(a).tobytes())
    return a.number if isinstance(a, Field) else repr(a)  # hash(-1) is hash(-2), and NaN has none
