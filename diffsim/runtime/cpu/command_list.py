"""Command lists on the CPU: one native call runs all operations (`runtime/backend.py` has the protocol).

Each operation is a row of 8-byte slots, which a native loop executes (`backends/native/sequence.ll`).
Consecutive launches are one operation: a stream of what differs between them, the number of the kernel and
its arguments, which the loop copies into the kernel's parameter block. 16 bytes a launch instead of a row
matter for tapes of a million launches.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.backends.llvm.parameter_block import SEED
from diffsim.backends.native.pool import load_native, load_pool
from diffsim.ir.types import ScalarType, f32
from diffsim.runtime.cpu.executable import CpuExecutable
from diffsim.runtime.executable import BoundArray, make_block
from diffsim.runtime.memory.storage import StridedSpan
from diffsim.runtime.session import session

_LAUNCH, _COPY, _CLEAR, _SWAP, _ADD_F32, _ADD_F64 = range(6)
_SLOTS = 8  # of an operation
_COUNT = 5  # the slot with the number of runs of bytes, or of launches


class _Kernel:
    """One row of the table of kernels: what launches of a kernel with the same arrays share."""

    __slots__ = ("at", "block", "compiled", "number", "size")

    def __init__(
        self, number: int, compiled: CpuExecutable, block: bytearray, *, random: bool
    ) -> None:
        self.number = number
        self.compiled = compiled
        self.block = (ctypes.c_char * len(block)).from_buffer(block)
        # The bytes that differ between launches: the arguments; with random numbers everything from the key
        # to the last argument, with the slots between, as they are copied in one piece.
        end = compiled.args_at + compiled.struct.size
        self.at = 8 * SEED if random else compiled.args_at
        # `args_at` 0: no arguments, so nothing is copied, or the key alone.
        self.size = end - self.at if compiled.args_at else 8 * random

    def row(self) -> tuple[int, ...]:
        # Addresses as numbers; the objects behind them are kept by the command list.
        compiled, block = self.compiled, ctypes.addressof(self.block)
        errors = ctypes.addressof(compiled.errors) if compiled.checks else 0
        return compiled.address, block, errors, block + self.at, self.size


class CpuCommandList:
    """A command list of the CPU: rows for the native loop, and the stream of launches."""

    def __init__(self) -> None:
        self.done = 0
        self._slots = array("Q")
        self._stream = bytearray()
        # By what launches share: a kernel with the same arrays has one row, however often it is launched.
        self._kernels: dict[Any, _Kernel] = {}
        # Shortcut for kernels without arrays and random numbers, which nearly all launches of long tapes are:
        # no block has to be made.
        self._alone: dict[CpuExecutable, tuple[bytes, Callable[..., bytes]]] = {}
        self._ops: np.ndarray | None = None
        # Where the native loop notes how far it got; a list, as a signal handler may run the commands again.
        self._reached: list[ctypes.Array[ctypes.c_int64]] = []

    def __len__(self) -> int:
        return len(self._slots) // _SLOTS

    def add_launch(
        self,
        compiled: CpuExecutable,
        args: list[bool | int | float],
        seed: int,
        arrays: list[BoundArray],
    ) -> None:
        slots = self._slots
        if not slots or slots[-_SLOTS] != _LAUNCH:
            slots.extend((_LAUNCH, 0, len(self._stream), 0, 0, 0, 0, 0))
        slots[_COUNT - _SLOTS] += 1
        known = None if seed or arrays else self._alone.get(compiled)
        if known is not None:
            self._stream += known[0]
            self._stream += known[1](*args)
            return
        block = make_block(compiled, args, seed, arrays)
        kernel = self._kernel(compiled, block, tuple(arrays), random=seed != 0)
        self._stream += kernel.number.to_bytes(8, sys.byteorder)
        self._stream += block[kernel.at : kernel.at + kernel.size]
        if not seed and not arrays:
            self._alone[compiled] = kernel.number.to_bytes(8, sys.byteorder), compiled.struct.pack

    def _kernel(
        self,
        compiled: CpuExecutable,
        block: bytearray,
        arrays: tuple[BoundArray, ...],
        *,
        random: bool,
    ) -> _Kernel:
        key = compiled, arrays, random
        found = self._kernels.get(key)
        if found is None:
            # A copy: the native loop writes each launch's arguments into the row's block.
            found = _Kernel(len(self._kernels), compiled, bytearray(block), random=random)
            self._kernels[key] = found
        return found

    def argument_places(self) -> list[tuple[bytearray, int, Any]] | None:
        """Return for each launch the memory and the place of its arguments, and what packs them there.

        None if there are operations other than launches, or launches with more than numbers.
        """
        kernels = list(self._kernels.values())
        alone = len(self) == 1 and len(kernels) == len(self._alone)
        if not alone or self._slots[0] != _LAUNCH:
            return None
        places, at = [], 0
        while at < len(self._stream):
            kernel = kernels[int.from_bytes(self._stream[at : at + 8], sys.byteorder)]
            places.append((self._stream, at + 8, kernel.compiled.struct))
            at += 8 + kernel.size
        return places

    def add_copy(self, target: StridedSpan, source: StridedSpan) -> None:
        self._move(_COPY, target, source)

    def add_swap(self, one: StridedSpan, other: StridedSpan) -> None:
        self._move(_SWAP, one, other)

    def add_sum(self, target: StridedSpan, source: StridedSpan, dtype: ScalarType) -> None:
        # No other types have gradients.
        self._move(_ADD_F32 if dtype is f32 else _ADD_F64, target, source)

    def add_clear(self, target: StridedSpan) -> None:
        self._move(_CLEAR, target, target)

    def _move(self, kind: int, a: StridedSpan, b: StridedSpan) -> None:
        self._slots.extend((kind, a.address, b.address, 0, a.bytes, a.count, a.step, b.step))

    def run(self, begin: int = 0, end: int | None = None) -> None:
        # Packed at the first run, after which nothing can be added.
        if self._ops is None:
            self._ops = self._pack()
            # Asking NumPy, and making the array, take as long as ten launches.
            self._address, self._run = self._ops.ctypes.data, _runner()
        # The native loop notes how far it got, and which kernel failed, so that nothing is lost if it ends
        # early.
        reached = self._reached.pop() if self._reached else (ctypes.c_int64 * 2)()
        reached[0] = begin
        stop = len(self) if end is None else end
        try:
            # Python's lock is released by the loop itself where it takes long (`gate.ll`), so that it is
            # called with it held.
            if self._run(session.pool.handle, self._address, begin, stop, reached):
                self._launched[reached[1]].raise_errors()
        # Also where a signal handler raises.
        finally:
            self.done = reached[0]
            self._reached.append(reached)

    def _pack(self) -> np.ndarray:
        """Fix the addresses of tables and stream in the rows; nothing can be added afterwards."""
        # A view: `array` cannot be resized while it is exported, which is why nothing can be added any more.
        ops = np.frombuffer(self._slots, np.uint64).reshape(-1, _SLOTS)
        if self._kernels:
            kernels = list(self._kernels.values())
            self._launched = [kernel.compiled for kernel in kernels]  # and keep their code
            self._table = np.array([kernel.row() for kernel in kernels], np.uint64)
            self._memory = np.frombuffer(self._stream, np.uint8)
            launches = ops[:, 0] == _LAUNCH
            ops[launches, 1] = self._table.ctypes.data
            # Offsets in the stream become addresses, now that it does not move any more.
            ops[launches, 2] += np.uint64(self._memory.ctypes.data)
        return ops


@functools.cache
def _runner() -> Callable[..., int]:
    """Load the native loop."""
    load_pool(session.jit, session.cache)  # which it calls
    library = load_native(session.jit, session.cache, "sequence.ll")
    i64, ptr = ctypes.c_int64, ctypes.c_void_p
    # PYFUNCTYPE keeps Python's lock: the loop reacquires it for signals, and must find it held.
    return ctypes.PYFUNCTYPE(i64, ptr, ptr, i64, i64, ptr)(library.address("ds_sequence_run"))
