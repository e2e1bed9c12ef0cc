"""From Python source to something that can be called. The reader's entry to the whole of diffsim.

    source ── lang.translate ──▶ IR ── passes ──▶ scalar IR ── backends.cpu ──▶ LLVM text ── jit ──▶ code

`Executable` is the end of that way: native code with a filled parameter block. Object code is kept in the
disk cache under a key made of the LLVM text (which holds no address) and everything the compiler depends
on.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Iterable, Iterator
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
    ParameterBlock,
)
from diffsim.backends.native.jit import Jit, Library, LLVMError
from diffsim.errors import AccessError, BackendError, DiffsimError, memory_size
from diffsim.ir.check_messages import DIVIDED_BY_0, DOES_NOT_FIT, NEGATIVE_POWER, NO_LOG
from diffsim.ir.nodes import (
    Alloca,
    Check,
    Kernel,
    Mem,
)
from diffsim.ir.types import ScalarType, size_of
from diffsim.passes import pipeline
from diffsim.runtime import disk_cache, print_buffer
from diffsim.runtime.session import session

_slot = struct.Struct("=Q")
_PADDING = {1: "7x", 2: "6x", 4: "4x", 8: ""}
_ERROR_SLOTS = 24  # the number of the check, up to 8 indices and 8 sizes
_ADVICE_ON = {
    DIVIDED_BY_0: "without debug=True the result is 0: if that is meant, say so with an if",
    NO_LOG: "divide the loop over several launches, or leave deterministic=True off",
    NEGATIVE_POWER: "make the base a float: ds.cast(a, ds.f32) ** n",
}
_ADVICE = (
    "the condition did not hold in at least one turn: look at the values it compares",
    "indices start at 0 and none counts from the end: look at where this one comes from",
)


def slot_code(t: ScalarType) -> str:
    """The struct code of a scalar in an 8-byte slot."""
    return t.code + _PADDING[t.bytes]


def lower(kernel: Kernel) -> Kernel:
    """The kernel as the CPU backend takes it."""
    options = session.options
    stages = pipeline.lower(debug=options.debug, deterministic=options.deterministic)
    return pipeline.run(kernel, stages, check=options.debug)


def _code(lowered: Kernel, jit: Jit) -> cpu.CpuCode:
    options = session.options
    return cpu.lower(lowered, jit, fast_math=options.fast_math, deterministic=options.deterministic)


class Executable:
    """Native code of one kernel, its parameter block and the memories bound to it.

    Attributes:
        call: launches it, given `block`; `address` is that of the native function.
        lock: held from packing the arguments to taking the result.
        pack: writes the arguments (flattened to scalars) into the block: pack(buffer, offset, *args).
        explain: makes the error that is raised from that of a failed check, the check and its values.
    """

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
        self.errors = (ctypes.c_int64 * _ERROR_SLOTS)()
        self.explain = as_it_is
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


def as_it_is(error: DiffsimError, check: Check | Alloca, values: list[int]) -> DiffsimError:
    """What compiled kernels make of a failed check, unless somebody knows better."""
    return error


def array_slots(
    layout: ParameterBlock, mem: Mem, address: int, shape: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """The slots of a block that tell where an array is, and what stands in them."""
    slot = layout.pointers.get(mem)
    if slot is not None:
        yield slot, address
        yield from enumerate(shape, layout.dims[mem])


def make_block(
    compiled: Any,
    args: Iterable[bool | int | float],
    seed: int,
    arrays: Iterable[tuple[Mem, int, tuple[int, ...]]],
) -> bytearray:
    """A parameter block for one launch, apart from the one that `compiled` launches with.

    Args:
        compiled: a kernel compiled for either backend.
        args: the arguments, flattened to scalars.
        seed: the key of its random numbers.
        arrays: for each memory that is an argument, its address and shape.
    """
    block = bytearray(compiled.params)
    compiled.pack(block, compiled.args_at, *args)
    _slot.pack_into(block, 8 * SEED, seed & (2**64 - 1))
    for bound in arrays:
        for slot, value in array_slots(compiled.layout, *bound):
            _slot.pack_into(block, 8 * slot, value)
    return block


def failed_check(check: Check | Alloca, values: list[int], *, device: bool = False) -> AccessError:
    """The error for a check that failed with these values."""
    if isinstance(check, Alloca):
        hint = "give the loop fewer turns, or divide the time steps over several launches"
        if device:
            hint += ", or give kernels more memory: ds.init(device_scratch_size=bytes)"
        return AccessError(
            f"no memory to save the values of this loop: {memory_size(values[0])} for one lane",
            check.span,
            hint=hint,
        )
    message = check.message
    for value in values[: len(check.values)]:
        message = message.replace("{}", str(value), 1)
    hint = _ADVICE_ON.get(check.message, _ADVICE[bool(check.values)])
    if check.message.endswith(DOES_NOT_FIT):
        hint = (
            "without debug=True it wraps around: if that is meant, convert it with ds.cast; "
            "otherwise give the place a wider type"
        )
    return AccessError(message, check.span, hint=hint)


def llvm_text(kernel: Kernel) -> str:
    """LLVM text of a kernel for the CPU."""
    return _code(lower(kernel), session.jit).text
