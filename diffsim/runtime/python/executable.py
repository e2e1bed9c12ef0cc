"""A kernel that Python runs on the memory of the host: a filled parameter block, read by the interpreter."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from diffsim.backends.llvm.parameter_block import SEED, ParameterBlock
from diffsim.backends.stepping import Program, Stepper
from diffsim.errors import DiffsimError
from diffsim.ir.layout import block_stride, packed_strides, strides_of
from diffsim.ir.nodes import Check, Kernel, Mem, Print
from diffsim.ir.types import size_of
from diffsim.runtime.cpu.executable import HostExecutable
from diffsim.runtime.executable import CallText, PlainCall, failed_check
from diffsim.runtime.session import session


class PythonExecutable(HostExecutable):
    """A kernel as a Python function, its parameter block and the memories bound to it; see `Executable`."""

    # Both are reported while the kernel runs.
    checks: tuple[Check, ...] = ()
    prints: tuple[Print, ...] = ()

    def __init__(self, lowered: Kernel, program: Program) -> None:
        super().__init__(lowered, ParameterBlock(lowered))
        self.program = program
        self.answer: Any = None

    def call_text(self, *, has_arrays: bool, plain: PlainCall | None = None) -> CallText:
        return CallText(("$run($block)",), {"$run": self.run, "$block": self.params})

    def run(self, block: Any) -> None:
        """Run the kernel with a parameter block, the executable's own or a copy."""
        kernel, slots = self.program.kernel, np.frombuffer(block, np.int64)
        memory = {mem: self._array(mem, slots) for mem in self.layout.pointers}
        args = self.struct.unpack_from(block, self.args_at)
        with np.errstate(all="ignore"):  # infinities and NaN silently, as compiled code
            step = _Launch(self.program.things, kernel, memory, args, int(slots[SEED]))
            step.of = self
            self.program.function(step)
        if self.result is not None:
            self.answer = step.memory[self.result].copy()

    def _array(self, mem: Mem, slots: np.ndarray) -> np.ndarray:
        """Return a memory as an array: the elements' axes, then those of the components."""
        shape = mem.shape
        if shape is None:
            first = self.layout.dims[mem]
            shape = tuple(slots[first : first + mem.rank].tolist())
        return view(int(slots[self.layout.pointers[mem]]), mem, shape)

    def returned(self) -> Any:
        """Return what the kernel returned: a number, or a list of numbers for a vector or matrix."""
        assert self.result is not None
        return self.answer.ravel().tolist() if self.result.dtype.shape else self.answer.item()

    def show(self) -> None:
        """Do nothing: lines were printed as the kernel came to them."""


class _Launch(Stepper):
    """One launch: its checks fail with the errors of compiled code."""

    of: PythonExecutable

    def report(self, s: Check | Print) -> None:
        if isinstance(s, Print):
            if not session.own.quiet:
                super().report(s)
        elif not self.value(s.cond) and s.pieces:
            super().report(s)
        elif not self.value(s.cond):
            values = [int(v) for v in self.values(s.values)]
            error: DiffsimError = failed_check(s, values)
            raise self.of.explain(error, s, values)


def view(address: int, mem: Mem, shape: tuple[int, ...]) -> np.ndarray:
    """Return the elements of a memory that begins at an address, without a copy."""
    scalar = mem.dtype.scalar.numpy
    whole = shape + mem.dtype.shape
    if 0 in whole:
        return np.zeros(whole, scalar)
    components = packed_strides(mem.dtype.shape, mem.component_stride)
    strides = [n * scalar.itemsize for n in (*_strides(mem, shape), *components)]
    nbytes = sum((n - 1) * s for n, s in zip(whole, strides, strict=True)) + scalar.itemsize
    memory = (ctypes.c_char * nbytes).from_address(address)
    return np.ndarray(whole, scalar, memory, strides=strides)


def _strides(mem: Mem, shape: tuple[int, ...]) -> tuple[int, ...]:
    if mem.shape is not None:
        return strides_of(mem)
    element = size_of(mem.dtype)
    if not mem.in_blocks:
        return packed_strides(shape, element)
    inner = packed_strides(shape[:-1], element)
    scalars = shape[0] * inner[0] if inner else element
    return (*inner, block_stride(scalars, mem.dtype.scalar.bytes))
