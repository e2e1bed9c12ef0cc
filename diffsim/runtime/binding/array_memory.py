"""Which memory the arrays of a launch are: refused where they overlap, and bound to the kernel's code.

A kernel is compiled for memories that are separate, so launches are refused whose arguments alias one that it
writes. Arrays of NumPy that are not laid out as kernels need them are packed here
(`memory/packed_arrays.py`), unless the kernel writes to them and they cannot be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import KernelTypeError, Span
from diffsim.ir.nodes import Mem
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.launch_text import Writer
from diffsim.runtime.memory.packed_arrays import (
    PackedArguments,
    PackedArray,
    given_of,
    is_direct,
    may_overlap_itself,
    memory_key,
    packed,
    share_elements,
)
from diffsim.runtime.memory.storage import HostStorage

if TYPE_CHECKING:
    from diffsim.runtime.executable import Executable

    AccessSummary = Any  # of a room above this one: runtime/kernels/access_summary.AccessSummary
    Specialization = Any  # of a room above this one: runtime/kernels/specialization.Specialization


def check_separate(
    special: Specialization,
    mems: tuple[Mem, ...],
    written: frozenset[Mem],
    args: tuple[object, ...],
) -> None:
    """Refuse a launch in which two memories of the kernel alias; it was compiled for separate ones.

    An array passed twice is one memory for the kernel too and comes here once.

    Args:
        special: the kernel.
        mems: the memories of the code that is launched, which may be that of a derivative.
        written: those that it, or the kernel itself, writes.
        args: the arguments.
    """
    found: dict[int, Mem] = {}
    arrays: list[tuple[np.ndarray | DeviceArray, Mem]] = []
    fields: list[tuple[Field, Mem]] = []
    name = special.name
    for mem in mems:
        thing = special.object_of(mem, args)
        # Fields are compared by identity. One memory under two names would defeat the alias analysis: the
        # adjoint of `b[i] = a[i]` is another one where a is b.
        if isinstance(thing, Field):
            other = found.setdefault(id(thing), mem)
            if other is not mem:
                raise KernelTypeError(
                    f"{other.name} and {mem.name} of {name} are the same memory here",
                    Span.of_caller(),
                    hint="pass both as arguments, or none; to differentiate, pass no gradient together "
                    "with what it is the gradient of",
                )
            fields.append((thing, mem))
        elif isinstance(thing, (np.ndarray, DeviceArray)):
            arrays.append((thing, mem))
    # Arrays that are only read may overlap: the order of reads does not matter.
    for k, (array, mem) in enumerate(arrays):
        # Each pair once; a launch has few arrays.
        for thing, other in (*arrays[:k], *fields):
            if (mem in written or other in written) and shares(array, thing):
                raise _overlap(name, other, mem)


def pack_arrays(special: Specialization, args: Sequence[object]) -> PackedArguments:
    """Return the arguments of a launch with packed copies in place of arrays that a kernel cannot take.

    Raises:
        KernelTypeError: the kernel writes to an array that is read-only, or whose elements overlap.
    """
    # One array that is passed twice has one copy, as it is one memory for the kernel.
    copies: dict[Any, PackedArray] = {}
    made: list[Any] = []
    for a in args:
        if isinstance(a, np.ndarray) and not is_direct(a):
            key = memory_key(a)
            if key not in copies:
                copies[key] = packed(a)
            a = copies[key]
        made.append(a)
    found = PackedArguments(made)
    names = [p.name for p in special.arguments.parameters]
    written = {
        special.arguments.array_name(a.mem)
        for a in special.accesses.writes
        if a.mem.kind == "array"
    }
    found.written = []
    for name, a in zip(names, made, strict=True):
        if name in written and isinstance(a, np.ndarray):
            _check_writeable(f"{name} of {special.name}", given_of(a))
            if a.__class__ is PackedArray:
                found.written.append(a)
    return found


def launch_packed(special: Specialization, args: Sequence[object]) -> Any:
    """Launch a kernel, and copy what it wrote to packed copies to where it belongs."""
    try:
        return special.launch(*args)
    finally:
        # Also where it fails half way: other arrays then have what was written before.
        if isinstance(args, PackedArguments):
            args.copy_back()


def _check_writeable(where: str, array: np.ndarray) -> None:
    # NumPy's promise to others (a memory-mapped file, a cached result).
    if not array.flags.writeable:
        raise KernelTypeError(
            f"{where}: the array is read-only, and the kernel writes to it",
            Span.of_caller(),
            hint="pass array.copy()",
        )
    if may_overlap_itself(array):
        raise KernelTypeError(
            f"{where}: elements of the array share memory, and the kernel writes to them",
            Span.of_caller(),
            hint="pass array.copy(), in which each element has a place of its own",
        )


def shares(array: np.ndarray | DeviceArray, other: np.ndarray | DeviceArray | Field) -> bool:
    """Return whether an argument shares bytes with another memory."""
    # A packed copy stands for the array that was given.
    array, other = given_of(array), given_of(other)
    storage = other.storage if isinstance(other, Field) else None
    if isinstance(array, DeviceArray):
        # Host and device share one virtual address space (CUDA's unified addressing), so ranges can be
        # compared without asking on which side they are.
        if storage is not None:
            return array.overlaps(storage.address, storage.layout.nbytes)
        return isinstance(other, DeviceArray) and array.overlaps(other.address, other.nbytes)
    if isinstance(storage, HostStorage):
        return share_elements(array, storage.array)
    return isinstance(other, np.ndarray) and share_elements(array, other)


def _overlap(name: str, one: Mem, two: Mem) -> KernelTypeError:
    return KernelTypeError(
        f"the arrays {one.name} and {two.name} of {name} overlap, and the kernel writes to them",
        Span.of_caller(),
        hint="pass a copy of one of them",
    )


# ---- binding


def write_arrays(
    w: Writer,
    special: Specialization,
    compiled: Executable,
    mems: tuple[Mem, ...],
    accesses: AccessSummary,
) -> None:
    """Store the addresses of array arguments in the parameter block; `accesses`: of the code that runs."""
    arrays = [p for p in special.arguments.parameters if p.kind == "array"]
    if not arrays:
        return
    lines: list[str] = []
    # Captured fields are separate memories by construction; an array may turn out to be one of them, or to
    # overlap another array, which differs from launch to launch.
    if len(arrays) > 1 or any(m.kind == "field" for m in mems):
        w.space["$separate"] = check_separate
        written = frozenset(a.mem for a in (*special.accesses.writes, *accesses.writes))
        values = "".join(p.name + ", " for p in special.arguments.parameters)
        lines.append(
            f"$separate({w.use(special, 'special')}, {w.use(mems, 'mems')}, "
            f"{w.use(written, 'written')}, ({values}))"
        )
    for p in arrays:
        mem: Mem = special.arguments.arrays[p.name]._mem
        w.space["$bind"] = bind_array
        lines.append(f"$bind({w.use(compiled, 'compiled')}, {w.use(mem, 'mem')}, {p.name})")
        for dual in special.arguments.duals_of(mem):
            given = special.arguments.role_text(dual)
            lines.append(f"$bind({w.use(compiled, 'compiled')}, {w.use(dual, 'mem')}, {given})")
    w.emit(*lines)


def bind_array(compiled: Executable, mem: Mem, array: Any) -> None:
    """Bind a memory (and that of its gradient) to the array that this launch was given."""
    if isinstance(array, Field):
        assert mem.in_blocks == array.storage.layout.in_blocks
        compiled.bind_array(mem, array.address, array.shape)
        if mem.grad is not None and array.adjoint is not None:
            compiled.bind_array(mem.grad, array.adjoint.address, array.shape)
    elif isinstance(array, DeviceArray):
        # Trailing axes may be components of vectors or matrices.
        compiled.bind_array(mem, array.address, array.shape[: mem.rank])
    else:
        compiled.bind_numpy(mem, array)
