"""Refuses launches whose arguments alias memory that the kernel was compiled to take as separate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diffsim.errors import KernelTypeError, Span
from diffsim.ir.nodes import Mem
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import HostStorage

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


def check_separate(
    special: Specialization, mems: tuple[Mem, ...], args: tuple[object, ...]
) -> None:
    """Refuse a launch in which two memories of the kernel alias; it was compiled for separate ones.

    An array passed twice is one memory for the kernel too and comes here once.
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
    written = {a.mem for a in special.accesses.writes}
    for k, (array, mem) in enumerate(arrays):
        # Each pair once; a launch has few arrays.
        for thing, other in (*arrays[:k], *fields):
            if (mem in written or other in written) and shares(array, thing):
                raise _overlap(name, other, mem)


def shares(array: np.ndarray | DeviceArray, other: np.ndarray | DeviceArray | Field) -> bool:
    """Return whether an argument shares bytes with another memory."""
    storage = other.storage if isinstance(other, Field) else None
    if isinstance(array, DeviceArray):
        # Host and device share one virtual address space (CUDA's unified addressing), so ranges can be
        # compared without asking on which side they are.
        if storage is not None:
            return array.overlaps(storage.address, storage.layout.nbytes)
        return isinstance(other, DeviceArray) and array.overlaps(other.address, other.nbytes)
    if isinstance(storage, HostStorage):
        # Compares bounds only. That is exact for contiguous memory, which arguments have; for strided views
        # the exact question takes exponential time in the worst case (`numpy.shares_memory`).
        return np.may_share_memory(array, storage.array)
    return isinstance(other, np.ndarray) and np.may_share_memory(array, other)


def _overlap(name: str, one: Mem, two: Mem) -> KernelTypeError:
    return KernelTypeError(
        f"the arrays {one.name} and {two.name} of {name} overlap, and the kernel writes to them",
        Span.of_caller(),
        hint="pass a copy of one of them",
    )
