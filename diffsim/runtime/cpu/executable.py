"""From Python source to something that can be called. The reader's entry to the whole of diffsim.

    source ── lang.translate ──▶ IR ── passes ──▶ scalar IR ── backends.cpu ──▶ LLVM text ── jit ──▶ code

`CpuExecutable` is the end of that way: native code with a filled parameter block. Object code is kept in the
disk cache under a key made of the LLVM text (which holds no address) and everything the compiler depends
on.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim import locks
from diffsim.backends.cpu import codegen as cpu
from diffsim.backends.llvm.diagnostics import HEAD
from diffsim.backends.llvm.parameter_block import (
    ERROR,
    POOL,
    PRINTED,
    RUN,
    SEED,
    THREADS,
)
from diffsim.backends.native.jit import Jit, Library, LLVMError
from diffsim.errors import BackendError, DiffsimError
from diffsim.ir.nodes import Alloca, Check, Kernel, Mem
from diffsim.ir.types import size_of
from diffsim.passes import pipeline
from diffsim.runtime import disk_cache, print_buffer
from diffsim.runtime.executable import (
    ERROR_SLOTS,
    CallText,
    array_slots,
    failed_check,
    same_error,
    slot_code,
)
from diffsim.runtime.session import session


def lower(kernel: Kernel) -> Kernel:
    """The kernel as the CPU backend takes it."""
    options = session.options
    stages = pipeline.lower(debug=options.debug, deterministic=options.deterministic)
    return pipeline.run(kernel, stages, check=options.debug)


def _code(lowered: Kernel, jit: Jit) -> cpu.CpuCode:
    options = session.options
    return cpu.lower(lowered, jit, fast_math=options.fast_math, deterministic=options.deterministic)


class CpuExecutable:
    """Native code of one kernel, its parameter block and the memories bound to it; see `Executable`.

    Attributes:
        call: launches it, given `block`; `address` is that of the native function.
    """

    explain: Callable[[DiffsimError, Check | Alloca, list[int]], DiffsimError]

    def __init__(self, kernel: Kernel) -> None:
        lowered = lower(kernel)
        jit = session.jit
        code = _code(lowered, jit)
        self.layout = code.layout
        self.checks = code.checks
        self.lock = locks.rlock()
        self.params = (ctypes.c_int64 * max(code.layout.size, 1))()
        self.block = ctypes.c_void_p(ctypes.addressof(self.params))
        self.name = kernel.name
        self.prints = code.prints
        self.printed = np.zeros(print_buffer.WORDS if code.prints else 0, np.int64)
        self.errors = (ctypes.c_int64 * ERROR_SLOTS)()
        self.explain = same_error
        self.reports_at_once = True
        self.params[ERROR] = ctypes.addressof(self.errors)
        self.params[PRINTED] = self.printed.ctypes.data
        self.params[THREADS] = 1
        if code.needs_pool:
            self.pool = session.pool  # a reference: its threads live as long as code that uses them
            self.params[POOL] = self.pool.handle
            self.params[THREADS] = self.pool.threads
        try:
            self.library = _loaded(code.text, jit)
            self.address = self.library.address("launch")
        except LLVMError as problem:
            raise BackendError(
                f"LLVM makes no machine code of {kernel.name}: {problem}",
                kernel.span,
                hint="please report this with the kernel; until then divide the kernel into smaller ones"
                ", or leave fast_math=True out",
            ) from None
        self.params[RUN] = self.address
        self.call = session.launcher
        args = lowered.args
        codes = "".join(slot_code(a.type.scalar) for a in args)
        self.struct = struct.Struct("=" + codes)
        self.pack = self.struct.pack_into
        self.args_at = 8 * (code.layout.args[args[0]] if args else 0)
        for mem, slot in code.layout.pointers.items():
            if mem.kind == "field":
                self.params[slot] = mem.handle().address
        self.result = lowered.result

    def call_text(self, *, has_arrays: bool) -> CallText:
        names = {"$call": self.call, "$block": self.block}
        lines: tuple[str, ...] = ("$call($block)",)
        if self.prints:  # Ctrl-C may end it: what was printed before is shown
            names["$show"] = self.show
            lines = ("try:", "    $call($block)", "finally:", "    $show()")
        if self.checks:
            names |= {"$errors": self.errors, "$raise_errors": self.raise_errors}
            lines = (*lines, "if $errors[0]:", "    $raise_errors()")
        return CallText(lines, names)

    def set_seed(self, seed: int) -> None:
        self.params[SEED] = ctypes.c_int64(seed & (2**64 - 1)).value

    def bind_array(self, mem: Mem, address: int, shape: tuple[int, ...]) -> None:
        """Point an argument's memory to an array."""
        for slot, value in array_slots(self.layout, mem, address, shape):
            self.params[slot] = value

    def bind_numpy(self, mem: Mem, array: np.ndarray) -> None:
        """Point an argument's memory to an array of NumPy."""
        self.bind_array(mem, array.ctypes.data, array.shape[: mem.rank])

    def returned(self) -> Any:
        """What the kernel returned: a number, or a list of numbers for a vector or matrix."""
        assert self.result is not None
        first = self.layout.temps[self.result]
        t = self.result.dtype
        code = slot_code(t.scalar) * size_of(t)
        values = struct.unpack_from("=" + code, self.params, 8 * first)
        return values[0] if not t.shape else list(values)

    def show(self) -> None:
        """Show what the last launch printed."""
        head, lines = np.split(self.printed, [HEAD])
        there = lines[: print_buffer.used(head)]
        found, lost = there.copy(), int(head[1])
        there[:] = head[:] = 0
        if not session.own.quiet:
            print_buffer.show(self.name, self.prints, lost, found)

    def raise_errors(self) -> None:
        """Raise what a check of the last launch found."""
        check, values = self.checks[self.errors[0] - 1], self.errors[1:]
        self.errors[0] = 0
        raise self.explain(failed_check(check, values), check, values)


_libraries: dict[tuple[str, str], Library] = {}
"""Code loaded lately: LLVM keeps some kilobytes of each library for ever, and loading takes time."""
_MOST_LIBRARIES = 256


def _loaded(text: str, jit: Jit) -> Library:
    """The code of a module: loaded already, kept on disk, or compiled now."""
    store = session.cache
    key = disk_cache.key(text, jit.fingerprint)
    known = key, "" if store is None else str(store.folder)
    library = _libraries.pop(known, None)
    if library is None:
        kept = store.get(key) if store is not None else None
        if kept is not None:
            with contextlib.suppress(LLVMError):  # an entry that somebody has made up
                library = jit.load(kept)
        if library is None:
            made = jit.compile(text)
            library = jit.load(made)
            if store is not None:
                store.put(key, made)
    _libraries[known] = library  # the last one is the latest
    if len(_libraries) > _MOST_LIBRARIES:
        _libraries.pop(next(iter(_libraries)), None)
    return library


def llvm_text(kernel: Kernel) -> str:
    """LLVM text of a kernel for the CPU."""
    return _code(lower(kernel), session.jit).text
