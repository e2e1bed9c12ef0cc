"""A kernel compiled for the CPU: native code with a filled parameter block."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim import locks
from diffsim.backends.cpu.codegen import CpuCode
from diffsim.backends.llvm.diagnostics import HEAD
from diffsim.backends.llvm.parameter_block import (
    ERROR,
    POOL,
    PRINTED,
    RUN,
    SEED,
    THREADS,
    ParameterBlock,
)
from diffsim.backends.native.calls import Calls
from diffsim.backends.native.jit import Library
from diffsim.errors import DiffsimError
from diffsim.ir.nodes import Alloca, Check, Kernel, Mem
from diffsim.ir.types import size_of
from diffsim.runtime import print_buffer
from diffsim.runtime.executable import (
    ERROR_SLOTS,
    CallText,
    PlainCall,
    array_slots,
    failed_check,
    same_error,
    slot_code,
)
from diffsim.runtime.session import session

ENTRY = "launch"
"""The function of each library that runs a kernel, given its parameter block."""


class HostExecutable:
    """The parameter block of a kernel that runs in the host's memory; see `Executable`."""

    calls: Calls | None = None
    packs_in_call = takes_numpy = True

    def __init__(self, lowered: Kernel, layout: ParameterBlock) -> None:
        self.layout = layout
        self.name = lowered.name
        # Reentrant: a signal handler may launch the same kernel in the middle of a launch (docs/adr/0022).
        self.lock = locks.rlock()
        self.params = (ctypes.c_int64 * max(layout.size, 1))()
        self.explain: Callable[[DiffsimError, Check | Alloca, list[int]], DiffsimError] = same_error
        # A kernel returns when it is done, so its errors are known at once.
        self.reports_at_once = True
        args = lowered.args
        codes = "".join(slot_code(a.type.scalar) * size_of(a.type) for a in args)
        self.struct = struct.Struct("=" + codes)
        # Bound once: an attribute look-up for each launch is saved.
        self.pack = self.struct.pack_into
        # The slots of the arguments follow each other, so that one `pack_into` writes all.
        self.args_at = 8 * (layout.args[args[0]] if args else 0)
        # Addresses of fields are fixed while this backend is in use; a change of backend makes the
        # specialization stale (`Specialization.is_elsewhere`).
        for mem, slot in layout.pointers.items():
            if mem.kind == "field":
                self.params[slot] = mem.handle().address
        self.result = lowered.result

    def set_seed(self, seed: int) -> None:
        # ctypes refuses numbers beyond the signed range: reinterpreted in two's complement.
        self.params[SEED] = ctypes.c_int64(seed & (2**64 - 1)).value

    def bind_array(self, mem: Mem, address: int, shape: tuple[int, ...]) -> None:
        """Point an argument's memory to an array."""
        for slot, value in array_slots(self.layout, mem, address, shape):
            self.params[slot] = value

    def bind_numpy(self, mem: Mem, array: np.ndarray) -> None:
        """Point an argument's memory to an array of NumPy."""
        self.bind_array(mem, array.ctypes.data, array.shape[: mem.rank])


class CpuExecutable(HostExecutable):
    """Native code of one kernel, its parameter block and the memories bound to it; see `Executable`.

    Attributes:
        launch: launches it with what is in its block; `address` is that of the native function.
    """

    def __init__(self, lowered: Kernel, code: CpuCode, library: Library) -> None:
        super().__init__(lowered, code.layout)
        self.checks = code.checks
        self.prints = code.prints
        # Zeroed pages cost no memory until a kernel prints.
        self.printed = np.zeros(print_buffer.WORDS if code.prints else 0, np.int64)
        self.errors = (ctypes.c_int64 * ERROR_SLOTS)()
        self.params[ERROR] = ctypes.addressof(self.errors)
        self.params[PRINTED] = self.printed.ctypes.data
        # Without a pool: the code is serial.
        self.params[THREADS] = 1
        if code.needs_pool:
            self.pool = session.pool  # a reference: its threads live as long as code that uses them
            self.params[POOL] = self.pool.handle
            self.params[THREADS] = self.pool.threads
        self.library = library
        self.address = library.address(ENTRY)
        self.params[RUN] = self.address
        self.calls = session.calls
        if self.result is not None:
            # The result is in the block, in the slots of its temporary.
            t, first = self.result.dtype, code.layout.temps[self.result]
            result = struct.Struct("=" + slot_code(t.scalar) * size_of(t))
            self._read = functools.partial(result.unpack_from, self.params, 8 * first)
            self._is_number = not t.shape
        block = ctypes.addressof(self.params)
        # Made once: making the pointer for each call would take as long as a short launch.
        self.launch: Callable[[], None] = functools.partial(
            session.launcher, ctypes.c_void_p(block)
        )

    def call_text(self, *, has_arrays: bool, plain: PlainCall | None = None) -> CallText:
        names: dict[str, Any] = {"$call": self.launch}
        call = "$call()"
        if plain is not None:  # `$call_with` has a meaning where arguments are found plain
            call = f"$call_with({plain.arguments}) if {plain.test} else $call()"
            if plain.bound:
                call = f"{plain.bound} if $bound else {call}"
        lines: tuple[str, ...] = (call,)
        if self.prints:  # Ctrl-C may end it: what was printed before is shown
            names["$show"] = self.show
            lines = ("try:", f"    {call}", "finally:", "    $show()")
        if self.checks:
            names |= {"$errors": self.errors, "$raise_errors": self.raise_errors}
            # One test of a word in Python, in place of a return value that each launch would convert.
            lines = (*lines, "if $errors[0]:", "    $raise_errors()")
        return CallText(lines, names, functools.partial(self._native, plain))

    def _native(self, plain: PlainCall | None) -> dict[str, Any]:
        """Return native functions in place of those of Python's; nothing: there are none, or not yet."""
        if self.calls is None or not self.calls.is_loaded():
            return {}
        names: dict[str, Any] = {"$call": self.calls.launcher(ctypes.addressof(self.params))}
        if plain is not None:
            names |= {"$call_with": plain.signature.launch, "$fits": plain.signature.fits}
        return names

    def returned(self) -> Any:
        """Return what the kernel returned: a number, or a list of numbers for a vector or matrix."""
        values = self._read()
        return values[0] if self._is_number else list(values)

    def show(self) -> None:
        """Show what the last launch printed."""
        head, lines = np.split(self.printed, [HEAD])
        there = lines[: print_buffer.used(head)]
        # Copied before it is cleared: `print` may run code of the user's (a replaced sys.stdout), which may
        # launch the kernel again.
        found, lost = there.copy(), int(head[1])
        there[:] = head[:] = 0
        if not session.own.quiet:
            print_buffer.show(self.name, self.prints, lost, found)

    def raise_errors(self) -> None:
        """Raise the error of the check that failed in the last launch."""
        check, values = self.checks[self.errors[0] - 1], self.errors[1:]
        # Cleared before the error is raised: the next launch must begin without one.
        self.errors[0] = 0
        raise self.explain(failed_check(check, values), check, values)
