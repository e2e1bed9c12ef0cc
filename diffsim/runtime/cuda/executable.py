"""A kernel compiled for a GPU: machine code, and one driver call for each of its tasks at a launch.

A launch passes the parameter block by value and does not wait. Tasks exchange values through a work area on
the device. Failed checks are written there, too, and read when Python next waits for the device
(`Device.check_pending`), or after each launch in debug mode.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from diffsim import locks
from diffsim.backends.cuda.codegen import WORK, EntryPoint, SimtCode
from diffsim.backends.cuda.driver import Launch
from diffsim.backends.cuda.libcuda import DriverError
from diffsim.backends.llvm.diagnostics import HEAD
from diffsim.backends.llvm.parameter_block import ERROR, PRINTED, SEED
from diffsim.errors import BackendError, DiffsimError, Span
from diffsim.ir.nodes import Alloca, Check, Kernel, Mem
from diffsim.ir.types import size_of
from diffsim.passes.analysis import regions
from diffsim.runtime import print_buffer
from diffsim.runtime.cuda.device import Buffer, Device
from diffsim.runtime.executable import (
    ERROR_SLOTS,
    BoundArray,
    CallText,
    PlainCall,
    array_slots,
    failed_check,
    make_block,
    same_error,
    slot_code,
)
from diffsim.runtime.memory.storage import Storage
from diffsim.runtime.session import session

# The limit of a grid's first axis (CUDA C++ programming guide, compute capabilities).
_MOST_BLOCKS = 2**31 - 1
_TIMES_AT_ONCE = 2  # blocks that run at once, for loops whose length only the device knows


class CudaModule:
    """Loaded machine code, unloaded with this object."""

    def __init__(self, device: Device, image: bytes) -> None:
        self.device = device
        # Set before the call that may fail, as `__del__` runs for an object that was made by half.
        self.handle = 0
        self.handle = device.driver.load(image)

    def __del__(self) -> None:
        if self.handle:
            self.device.unload(self.handle)
            self.handle = 0


class CudaExecutable:
    """Machine code of one kernel, its parameter block and the memories bound to it.

    See `Executable` for the methods.

    Attributes:
        call: launches it, given `block`; returns the number of an error for `failed`, or 0.
        written: the memories that the kernel writes.
    """

    explain: Callable[[DiffsimError, Check | Alloca, list[int]], DiffsimError]
    packs_in_call = takes_numpy = False  # arrays of NumPy are copied

    def __init__(self, lowered: Kernel, code: SimtCode, module: CudaModule, device: Device) -> None:
        self.device = device
        self.name = lowered.name
        options = session.options
        # Checks are read in debug mode after each launch, so that the error is raised in the line of the
        # launch.
        self.reports_at_once = options.debug
        self.layout = layout = code.layout
        self.checks = code.checks
        self.prints = code.prints
        self.explain = same_error
        self.lock = locks.rlock()
        # Slots that tasks write are in the work area; the block itself is read-only for a kernel.
        self.params = (ctypes.c_int64 * layout.fixed)()
        self.work = Buffer(device, 8 * max(layout.work, 1), f"the work of {self.name}")
        self.errors = Buffer(device, 8 * ERROR_SLOTS, f"errors of {self.name}")
        # 0 means that no check has failed, and no line was printed.
        device.fill(self.errors.address, b"\0", self.errors.nbytes)
        self.params[WORK] = self.work.address
        self.params[ERROR] = self.errors.address
        self.printed: Buffer | None = None
        if self.prints:
            self.printed = Buffer(device, 8 * print_buffer.WORDS, f"what {self.name} prints")
            device.fill(self.printed.address, b"\0", self.printed.nbytes)
            self.params[PRINTED] = self.printed.address
        # Memory of which lanes take parts for values saved in loops; one for all kernels of the device.
        if layout.arena_bytes is not None:
            self.arena = device.scratch(options.device_scratch_size)
            self.params[layout.arena] = self.arena.address
            self.params[layout.arena_bytes] = self.arena.nbytes
        # Calls of malloc in device code, whose heap has to be sized before the first launch.
        if code.heap:
            device.reserve_heap(options.device_scratch_size)
        self.module = module
        self._tasks = [self._task(entry) for entry in code.entries]
        # The plan of all launches holds the block's address: a launch is one native call without conversions.
        launches, self._first = self._launches(self.params)
        self._start, self.block = device.driver.prepare(launches, device.jit)
        self.calls = session.calls
        self.call = self._start if layout.by_value else self._call_large
        args = lowered.args
        self.struct = struct.Struct("=" + "".join(slot_code(a.type.scalar) for a in args))
        self.pack = self.struct.pack_into
        self.args_at = 8 * (layout.args[args[0]] if args else 0)
        self.bound: list[Storage] = []  # what the block points to stays
        for mem, slot in layout.pointers.items():
            if mem.kind == "field":
                storage = mem.handle().storage
                self.bound.append(storage)
                self.params[slot] = storage.address
        self.result = lowered.result
        # Only these copies of NumPy arrays have to be copied back.
        self.written = {a.mem for a in regions.writes(lowered) if a.mem.kind == "array"}
        self._copies: dict[Mem, tuple[np.ndarray, Buffer]] = {}

    def _task(self, entry: EntryPoint) -> tuple[int, int, int]:
        """Return an entry point's function, number of blocks, and threads in a block."""
        function = self.device.driver.function(self.module.handle, entry.name)
        return function, self._grid(entry, function), entry.block_dim

    def _launches(self, block: Any) -> tuple[list[Launch], Any]:
        """Return the driver's launches with a parameter block, in order, and what has to live as long."""
        # The driver reads a parameter through its address at the launch, so the memory has to live until
        # then.
        first: Any = block
        kept = None
        # Larger than the parameters of a kernel may be: the block is in device memory, and its address is the
        # parameter.
        if not self.layout.by_value:
            kept = Buffer(self.device, ctypes.sizeof(block), f"the arguments of {self.name}")
            self.device.write(kept.address, np.frombuffer(block, np.int64))
            first = ctypes.c_uint64(kept.address)
        made = []
        for function, grid, block_dim in self._tasks:
            # An array of addresses, one for each parameter of the function; there is one parameter.
            params = (ctypes.c_void_p * 1)(ctypes.addressof(first))
            made.append(Launch(function, grid, block_dim, params))
        return made, (first, kept)

    def launches(
        self,
        args: Iterable[bool | int | float],
        seed: int,
        arrays: Iterable[BoundArray],
    ) -> tuple[list[Launch], Any]:
        """Prepare launches with a parameter block of their own (`make_block`), and what has to live as long.

        They share the work area with all launches of the kernel: on one stream none runs beside another.
        """
        return self._launches(type(self.params).from_buffer(make_block(self, args, seed, arrays)))

    def _call_large(self, block: Any) -> int:
        """Launch with a block that is too large to be handed over by value."""
        # On the same stream as the launch, and copied by the time this returns, so the block may change
        # afterwards.
        self.device.write(self._first[1].address, np.asarray(self.params))
        return self._start(block)

    def _grid(self, entry: EntryPoint, function: int) -> int:
        """Return the number of blocks of an entry point."""
        # Serial parts and reductions' last steps are one block.
        if entry.kind != "parallel":
            return 1
        most = _MOST_BLOCKS if entry.blocks is None else entry.blocks
        # Each block has memory of its own, or leaves a partial result: no more blocks than run at the same
        # time. Where only the device knows the number of iterations, threads loop until there is no more.
        if entry.fills or entry.lanes is None:
            at_once = self.device.driver.blocks_at_once(function, entry.block_dim)
            most = min(most, at_once if entry.fills else _TIMES_AT_ONCE * at_once)
        if entry.lanes is not None:
            # Rounded up: a block for each `block_dim * per_thread` lanes.
            most = min(most, -(-entry.lanes // (entry.block_dim * entry.per_thread)))
        return max(1, most)

    def call_text(self, *, has_arrays: bool, plain: PlainCall | None = None) -> CallText:
        names: dict[str, Any] = {"$call": self.call, "$block": self.block, "$failed": self.failed}
        lines = ["$code = $call($block)", "if $code:", "    $failed($code)"]
        if self.prints:
            names["$show"] = self.show
            lines.append("$show()")
        if self.checks:
            # Registered in each launch: reading the error buffer now would wait for the GPU.
            names["$pending"] = functools.partial(
                self.device.add_pending, self, self.reports_at_once
            )
            lines.append("$pending($now - 1)")
        # The results are in copies on the device; arrays of NumPy must have them when the launch returns.
        if has_arrays:
            names["$copy_back"] = self.copy_back
            lines.append("$copy_back()")
        return CallText(tuple(lines), names)

    def failed(self, code: int) -> None:
        """Raise the error for a code that the driver returned at a launch."""
        # Arrays that were to be copied back: the launch did not happen.
        self._copies = {}
        try:
            self.device.driver.failed(code)
        except DriverError as problem:
            raise BackendError(
                f"{self.name} cannot be launched on {self.device}: {problem.reason}",
                Span.of_caller(),
                hint="if an earlier launch failed: run the program with ds.init(debug=True) to find it",
            ) from None

    def copy_back(self) -> None:
        """Copy what a launch wrote to copies of NumPy arrays back into the arrays."""
        # Emptied first: `read` may raise, and a later launch must not write to arrays of an earlier one.
        copies, self._copies = self._copies, {}
        for mem, (array, copy) in copies.items():
            # Reading waits for the launch.
            if mem in self.written:
                self.device.read(copy.address, array)

    def set_seed(self, seed: int) -> None:
        self.params[SEED] = ctypes.c_int64(seed & (2**64 - 1)).value

    def bind_array(self, mem: Mem, address: int, shape: tuple[int, ...]) -> None:
        """Point an argument's memory to an array on the device."""
        # This launch was given an array on the device in place of one of NumPy.
        self._copies.pop(mem, None)
        for slot, value in array_slots(self.layout, mem, address, shape):
            self.params[slot] = value

    def bind_numpy(self, mem: Mem, array: np.ndarray) -> None:
        """Point an argument's memory to a copy of an array, copied back after the launch if written."""
        # Only what the code accesses is copied.
        if mem in self.layout.pointers:
            copy = Buffer(self.device, array.nbytes, f"the array {mem.name} of {self.name}")
            self.device.write(copy.address, array)
            self.bind_array(mem, copy.address, array.shape[: mem.rank])
            self._copies[mem] = array, copy

    def returned(self) -> Any:
        """Return what the kernel returned: a number, or a list of numbers for a vector or matrix."""
        assert self.result is not None
        t = self.result.dtype
        n = size_of(t)
        words = np.empty(n, np.int64)
        # Results are words of the work area, since the block is read-only on a GPU.
        self.device.read(self.work.address + 8 * self.layout.temps[self.result], words)
        values = struct.unpack("=" + slot_code(t.scalar) * n, words.tobytes())
        return values[0] if not t.shape else list(values)

    def show(self) -> None:
        """Wait, and show what the last launch printed."""
        buffer = self.printed
        assert buffer is not None
        head = np.empty(HEAD, np.int64)
        self.device.read(buffer.address, head)
        # Nothing was printed: one read of the head is all.
        if not head[0]:
            return
        # Only the words in use are fetched, of up to 8 MiB.
        lines = np.empty(print_buffer.used(head), np.int64)
        self.device.read(buffer.address + head.nbytes, lines)
        self.device.fill(buffer.address, b"\0", head.nbytes + lines.nbytes)
        if not session.own.quiet:
            print_buffer.show(self.name, self.prints, int(head[1]), lines)

    def report(self) -> None:
        """Wait, and raise the error of a check that has failed since the last call."""
        found = np.empty(ERROR_SLOTS, np.int64)
        # Not `read`, which reports errors and would come back here.
        self.device.read_raw(self.errors.address, found)
        if found[0]:
            # Before the error is raised: the next launch begins without one.
            self.device.fill(self.errors.address, b"\0", self.errors.nbytes)
            check, values = self.checks[int(found[0]) - 1], found[1:].tolist()
            raise self.explain(failed_check(check, values, device=True), check, values)
