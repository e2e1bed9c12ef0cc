"""The protocol of compiled code, whichever backend made it.

`Executable` is the protocol; `cpu/executable.py` and `cuda/executable.py` implement it. The functions below
fill parameter blocks (`backends/llvm/parameter_block.py`) and put failed checks into words for both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from diffsim.backends.llvm.parameter_block import SEED, ParameterBlock
from diffsim.backends.native.calls import Calls, Signature
from diffsim.errors import (
    DiffsimError,
    KernelStateError,
    OutOfMemoryError,
    Span,
    memory_size,
)
from diffsim.ir.nodes import Alloca, Check, Mem, Print
from diffsim.ir.types import ScalarType
from diffsim.runtime import print_buffer

BoundArray = tuple[Mem, int, tuple[int, ...]]
"""A memory that is an argument: its address and shape."""

# All slots have eight bytes in native order; narrower scalars are padded to that.
_slot = struct.Struct("=Q")
_PADDING = {1: "7x", 2: "6x", 4: "4x", 8: ""}
ERROR_SLOTS = 24  # the number of the check, up to 8 indices and 8 sizes


class CallText(NamedTuple):
    """The part of a launch function that calls an executable and reports its errors.

    Attributes:
        lines: Python statements. A name that begins with `$` is one of `names`, or `$now`, the clock's
            reading at this launch.
        names: what these names stand for.
        later: returns what names stand for after the first launches, or nothing yet; None: they stay.
    """

    lines: tuple[str, ...]
    names: dict[str, Any]
    later: Callable[[], dict[str, Any]] | None = None


class PlainCall(NamedTuple):
    """A call that packs arguments itself, as far as they are plain (`binding/plain_arguments.py`).

    Attributes:
        signature: packs them, and launches.
        arguments: their texts, separated by commas.
        test: the text of what tells whether they are plain.
        at_once: whether packing and launching is one step, which needs no lock.
        bound: the text of the launch where `$bound` is true (`binding/bound_fields.py`); empty: it never is.
    """

    signature: Signature
    arguments: str
    test: str
    at_once: bool
    bound: str = ""


class Executable(Protocol):
    """Machine code of one kernel with the parameter block of its launches.

    Attributes:
        params: the parameter block; `layout` says what its slots hold.
        lock: held from packing the arguments until the result is read: threads share the block.
        struct: the format of the arguments, flattened to scalars, which begin `args_at` bytes into the block.
        pack: writes them: pack(buffer, offset, *args).
        result: the temporary memory that holds what the kernel returns.
        checks: the checks in the code, in the order of their numbers; `prints` the same for statements that
            print.
        explain: turns the error of a failed check, the check and its values into the error that is raised.
        calls: what makes native functions that pack arguments and launch; None: there are none.
        packs_in_call: whether a launch may be one call that packs the arguments, too. The functions for that
            are made after the first launches (`CallText.later`).
        takes_numpy: whether the code takes arrays of NumPy where they are.
        reports_at_once: whether each launch is followed by a look for failed checks, where that would
            otherwise wait until Python reads something.
    """

    params: Any
    lock: Any
    struct: struct.Struct
    args_at: int
    pack: Callable[..., None]
    result: Mem | None
    explain: Callable[[DiffsimError, Check | Alloca, list[int]], DiffsimError]
    calls: Calls | None
    packs_in_call: bool
    takes_numpy: bool
    reports_at_once: bool

    @property
    def layout(self) -> ParameterBlock: ...

    @property
    def checks(self) -> Sequence[Check | Alloca]: ...

    @property
    def prints(self) -> Sequence[Print]: ...

    def call_text(self, *, has_arrays: bool, plain: PlainCall | None = None) -> CallText:
        """Return the lines of a launch function that call the code.

        Args:
            has_arrays: whether it has array arguments.
            plain: how it is called if its arguments are not in the block yet.
        """

    def set_seed(self, seed: int) -> None:
        """Set the key of the next launch's random numbers."""

    def bind_array(self, mem: Mem, address: int, shape: tuple[int, ...]) -> None:
        """Point an argument's memory to an array where the code runs."""

    def bind_numpy(self, mem: Mem, array: np.ndarray) -> None:
        """Point an argument's memory to a NumPy array, or to a copy of it where the code runs."""

    def returned(self) -> Any:
        """Return what the last launch returned: a number, or a list of numbers for a vector or matrix."""

    def show(self) -> None:
        """Print what the last launch printed."""


def slot_code(t: ScalarType) -> str:
    """Return the struct code of a scalar in an 8-byte slot."""
    return t.code + _PADDING[t.bytes]


def same_error(error: DiffsimError, check: Check | Alloca, values: list[int]) -> DiffsimError:
    """Return the error as it is: the `explain` of an executable that is not instrumented."""
    return error


def array_slots(
    layout: ParameterBlock, mem: Mem, address: int, shape: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Return the slots of a parameter block that describe an array, with their values.

    Raises:
        KernelStateError: the code is for arrays of another shape.
    """
    # A launch that is made again, or differentiated: NumPy's arrays can be given another shape in place.
    if mem.kind == "array" and mem.shape is not None and mem.shape != shape:
        raise KernelStateError(
            f"{mem.name} had shape {mem.shape} when the kernel was launched, and has shape {shape} now",
            Span.of_caller(),
            hint="pass array.reshape(...), which is another array, in place of changing array.shape",
        )
    # Only memories that the code accesses have a slot: unused arguments are dropped.
    slot = layout.pointers.get(mem)
    if slot is not None:
        yield slot, address
        # The shape of a field is in the code.
        if shape:
            yield from enumerate(shape, layout.dims[mem])


def make_block(
    executable: Executable,
    args: Iterable[bool | int | float],
    seed: int,
    arrays: Iterable[BoundArray],
) -> bytearray:
    """Make a parameter block for one launch, apart from the executable's own.

    Args:
        executable: compiled for any backend.
        args: the arguments, flattened to scalars.
        seed: the key of its random numbers.
        arrays: the memories that are arguments.
    """
    # A copy, so that the executable's own block is not changed between packing and launch of another thread.
    block = bytearray(executable.params)
    executable.pack(block, executable.args_at, *args)
    # Seeds are keys of 64 bits without sign; Python's integers are not bounded.
    _slot.pack_into(block, 8 * SEED, seed & (2**64 - 1))
    for bound in arrays:
        for slot, value in array_slots(executable.layout, *bound):
            _slot.pack_into(block, 8 * slot, value)
    return block


def failed_check(check: Check | Alloca, values: list[int], *, device: bool = False) -> DiffsimError:
    """Return the error for a check that failed with these values.

    Args:
        check: a statement of the kernel.
        values: what it compared, as left in the error buffer.
        device: whether it ran on a GPU, whose memory for saved values is an option.
    """
    # An allocation of saved loop values failed: no check in the program's sense, but reported in the same
    # way.
    if isinstance(check, Alloca):
        hint = "give the loop fewer iterations, or divide the time steps over several launches"
        if device:
            hint += ", or give kernels more memory: ds.init(device_scratch_size=bytes)"
        return OutOfMemoryError(
            f"no memory to save the values of this loop: {memory_size(values[0])} for one iteration",
            check.span,
            hint=hint,
        )
    if check.pieces:
        text = print_buffer.text(check.pieces, values[: len(check.values)])
        return check.kind.error(text, check.span)
    message = check.message
    for value in values[: len(check.values)]:
        # One value for each pair of braces, in order.
        message = message.replace("{}", str(value), 1)
    return check.kind.error(message, check.span)
