"""Launches and moves of memory in a row that one native call runs, as often as wanted.

A backend provides a `Sequence`: the `add_...` methods note operations in order, `run` does them. On the CPU
each operation is a row of 8-byte slots that a native loop works off (`backends/sequence.ll`), and each
launch has a parameter block of its own, filled when it was added. On a GPU the same operations make up a
graph (`device_sequence.py`).
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from diffsim.backends.pool import load_native, load_pool
from diffsim.ir.nodes import Mem
from diffsim.ir.types import ScalarType, f32
from diffsim.runtime.compile import Compiled, make_block
from diffsim.runtime.context import session
from diffsim.runtime.device_sequence import DeviceSequence
from diffsim.runtime.storage import Stretches

_LAUNCH, _COPY, _CLEAR, _SWAP, _ADD_F32, _ADD_F64 = range(6)
_SLOTS = 8  # of an operation


class Sequence(Protocol):
    """Operations in order.

    Attributes:
        done: how many of them the last `run` got through.
    """

    done: int

    def add_launch(
        self,
        compiled: Any,
        args: Iterable[bool | int | float],
        seed: int,
        arrays: Iterable[tuple[Mem, int, tuple[int, ...]]],
    ) -> None:
        """A launch.

        Args:
            compiled: the kernel, compiled for this backend.
            args: its arguments, flattened to scalars.
            seed: the key of its random numbers.
            arrays: for each memory that is an argument, its address and shape.
        """

    def add_copy(self, target: Stretches, source: Stretches) -> None:
        """A copy. Both memories live as long as the sequence: the caller sees to that."""

    def add_swap(self, one: Stretches, other: Stretches) -> None:
        """An exchange of the contents of two memories that do not overlap."""

    def add_sum(self, target: Stretches, source: Stretches, dtype: ScalarType) -> None:
        """Add the f32 or f64 numbers of one memory to those of another that does not overlap it."""

    def add_clear(self, target: Stretches) -> None:
        """Set memory to 0."""

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Run the operations begin..end (all).

        Where that takes long, other threads of Python run meanwhile, and Ctrl-C ends it.

        Raises:
            AccessError: what a check in a kernel found (as a launch does); `done` tells how far it got.
            KeyboardInterrupt: and whatever else a signal handler raises.
        """

    def __len__(self) -> int:
        """How many operations there are."""


class CpuSequence:
    """Operations on the CPU: rows for the native loop."""

    def __init__(self) -> None:
        self.done = 0
        self._slots = array("Q")
        self._blocks = bytearray()
        self._launched: dict[int, Compiled] = {}
        self._ops: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._slots) // _SLOTS

    def add_launch(
        self,
        compiled: Compiled,
        args: Iterable[bool | int | float],
        seed: int,
        arrays: Iterable[tuple[Mem, int, tuple[int, ...]]],
    ) -> None:
        errors = ctypes.addressof(compiled.errors) if compiled.checks else 0
        self._launched[compiled.address] = compiled  # and keep its code
        self._slots.extend((_LAUNCH, compiled.address, len(self._blocks), errors, 0, 0, 0, 0))
        self._blocks += make_block(compiled, args, seed, arrays)

    def add_copy(self, target: Stretches, source: Stretches) -> None:
        self._move(_COPY, target, source)

    def add_swap(self, one: Stretches, other: Stretches) -> None:
        self._move(_SWAP, one, other)

    def add_sum(self, target: Stretches, source: Stretches, dtype: ScalarType) -> None:
        self._move(_ADD_F32 if dtype is f32 else _ADD_F64, target, source)

    def add_clear(self, target: Stretches) -> None:
        self._move(_CLEAR, target, target)

    def _move(self, kind: int, a: Stretches, b: Stretches) -> None:
        self._slots.extend((kind, a.address, b.address, 0, a.bytes, a.count, a.step, b.step))

    def run(self, begin: int = 0, end: int | None = None) -> None:
        if self._ops is None:
            self._ops = self._pack()
        following = ctypes.c_int64(begin)
        at = ctypes.byref(following)
        ops, stop = self._ops.ctypes.data, len(self) if end is None else end
        try:
            if _runner()(session.pool.handle, ops, begin, stop, at):
                self._launched[int(self._ops[following.value, 1])].raise_errors()
        finally:
            self.done = following.value

    def _pack(self) -> np.ndarray:
        """The rows, where they are; from now on nothing can be added."""
        ops = np.frombuffer(self._slots, np.uint64).reshape(-1, _SLOTS)
        if self._blocks:
            self._memory = np.frombuffer(self._blocks, np.uint8)
            ops[ops[:, 0] == _LAUNCH, 2] += np.uint64(self._memory.ctypes.data)
        return ops


def new_sequence() -> Sequence:
    """An empty sequence of the session's backend."""
    return CpuSequence() if session.device is None else DeviceSequence(session.device)


@functools.cache
def _runner() -> Callable[..., int]:
    """The native loop."""
    load_pool(session.jit, session.cache)  # which it calls
    library = load_native(session.jit, session.cache, "sequence.ll")
    i64, ptr = ctypes.c_int64, ctypes.c_void_p
    return ctypes.PYFUNCTYPE(i64, ptr, ptr, i64, i64, ptr)(library.address("ds_sequence_run"))
