"""The memory of fields: its layout (`StorageLayout`) and the operations on it (`Storage`).

There are two kinds of storage, with the same methods: `HostStorage` here and `DeviceStorage` on a GPU
(`runtime/cuda/device.py`). Fields, tapes and checkpoints use the protocol, and do not ask which one it is.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from diffsim import locks
from diffsim.backends.native.pool import closed, wait
from diffsim.ir.layout import block_stride, packed_strides
from diffsim.ir.types import ScalarType, f32, f64
from diffsim.runtime.memory.scalars import scalars_of
from diffsim.runtime.memory.transposed import copy_elements


@dataclass(frozen=True, slots=True)
class StridedSpan:
    """`count` runs of `bytes` bytes in memory, whose beginnings are `step` bytes apart."""

    address: int
    bytes: int
    count: int = 1
    step: int = 0

    @property
    def is_contiguous(self) -> bool:
        """Whether the runs follow each other without gaps."""
        return self.count == 1 or self.step == self.bytes

    @property
    def nbytes(self) -> int:
        return self.count * self.bytes

    def packed(self, address: int) -> StridedSpan:
        """Return the same number of runs of the same length, without gaps."""
        return StridedSpan(address, self.bytes, self.count, self.bytes)


_MOST_MARGIN = 1 << 16
_LINE, _PAGE = 64, 4096  # [B]
_LARGE = 1 << 17  # [B]; memory for more is mostly a mapping of its own, which begins at a page
# Large fields that begin at the same place of a page compete for the same lines of the first-level cache
# (docs/adr/0103). 39 lines from one to the next, modulo a page, spread any number of them.
_APART = 39 * _LINE
_large_storages = itertools.count()


@dataclass(frozen=True)
class StorageLayout:
    """The shape of a storage, and the order of its scalars in memory.

    The only gaps are between blocks: the scalars are those of a packed array whose axes are permuted
    (`order`) and whose components come last, or first (`soa`).

    Attributes:
        dtype: scalar type.
        components: scalars of one element.
        shape: number of elements along each axis.
        order: the axes from slowest to fastest.
        soa: whether each component has a block of its own.
        in_blocks: whether the last axis, which is the slowest one then, counts blocks that are some bytes
            apart.
        sparse: whether memory shall be taken for what is written alone.
    """

    dtype: ScalarType
    components: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    soa: bool
    in_blocks: bool = False
    sparse: bool = False

    @locks.cached
    def count(self) -> int:
        """Number of scalars, and of those in gaps."""
        # Python's integers, as NumPy's product would wrap around for a shape that is too large, and pass for
        # a small one.
        count = self.components
        for n in self.shape:
            count *= n
        if not self.in_blocks:
            return count
        blocks = self.shape[-1]
        return blocks * self.strides[-1] * (self.components if self.soa else 1)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.bytes

    @locks.cached
    def strides(self) -> tuple[int, ...]:
        """The stride of each axis [scalars]."""
        found = packed_strides(self.shape, 1 if self.soa else self.components, self.order)
        if not self.in_blocks:
            return found
        return (*found[:-1], block_stride(found[-1], self.dtype.bytes))

    @property
    def component_stride(self) -> int:
        """The stride of the components of an element [scalars]."""
        return self.count // self.components if self.soa and self.components > 1 else 1

    @locks.cached
    def margin(self) -> int:
        """Bytes at each end, beside the elements: room for a slowest index that is off by one."""
        slowest = self.shape[self.order[0]] if self.shape else 1
        step = self.nbytes // (slowest * self.components if self.soa else slowest)
        return min(-(-step // 64) * 64, _MOST_MARGIN)

    def view(self, flat: np.ndarray) -> np.ndarray:
        """View scalars in memory order as an array of shape `shape` + (components,)."""
        # `ndarray` with explicit strides makes a view of any permutation without a copy.
        width = self.dtype.bytes
        strides = [width * s for s in (*self.strides, self.component_stride)]
        return np.ndarray((*self.shape, self.components), self.dtype.numpy, flat, 0, strides)

    def part(
        self, address: int, axis: int | None = None, first: int = 0, count: int = 1
    ) -> StridedSpan:
        """Return the span of some indices of an axis (None: of everything) in memory from an address on.

        A snapshot of them holds its runs without gaps.
        """
        # All axes that are slower than this one repeat the pattern: there is a run for each of their
        # combinations.
        if axis is None:
            return StridedSpan(address, self.nbytes)
        if self.in_blocks and axis != len(self.shape) - 1:
            return self._part_of_blocks(address, axis, first, count)
        step = self.strides[axis] * self.dtype.bytes
        # Distance of the runs: one step along the next slower axis. Each run holds all faster axes.
        pitch = step * self.shape[axis]
        return StridedSpan(address + first * step, count * step, self.nbytes // pitch, pitch)

    def _part_of_blocks(self, address: int, axis: int, first: int, count: int) -> StridedSpan:
        """Return the span of some indices of an axis within each block."""
        # Gaps are between blocks alone: slower axes within them would need a span of spans.
        assert self.order[1] == axis
        assert not self.soa or self.components == 1
        width = self.dtype.bytes
        step, pitch = self.strides[axis] * width, self.strides[-1] * width
        return StridedSpan(address + first * step, count * step, self.shape[-1], pitch)

    def element(self, address: int, at: int) -> StridedSpan:
        """Return the span of an element's components, of which scalar number `at` is the first."""
        width, step = self.dtype.bytes, self.component_stride
        first = address + at * width
        # AOS: the components are neighbours; SOA: each is in a block of its own.
        if step == 1:
            return StridedSpan(first, width * self.components)
        return StridedSpan(first, width, self.components, width * step)


def matching_spans(one: Storage, other: Storage) -> tuple[StridedSpan, StridedSpan] | None:
    """Return spans of all of two storages of one shape, in which the same elements are at the same places.

    Returns:
        Spans with runs equal in number and length; None if the scalar types differ, or if two layouts
        differ so much that a single step does not lead from run to run.
    """
    a, b = one.layout, other.layout
    if a.dtype is not b.dtype:
        # The native copy moves bytes and converts nothing.
        return None
    if a == b:
        return a.part(one.address), b.part(other.address)
    shape, size = (*a.shape, a.components), a.dtype.bytes
    strides = [[size * s for s in (*f.strides, f.component_stride)] for f in (a, b)]
    # Axes of length 1 have no neighbours, so that their strides do not matter.
    axes = [k for k, n in enumerate(shape) if n > 1]
    # Merges neighbouring axes, as one walk over both layouts: two axes become one where in both layouts the
    # outer stride is the inner stride times the inner length (the usual coalescing of loop nests).
    levels: list[tuple[int, tuple[int, ...]]] = []  # (count, steps) of merged axes, innermost first
    for k in sorted(axes, key=lambda k: strides[0][k]):
        steps = tuple(each[k] for each in strides)
        if levels and steps == tuple(levels[-1][0] * s for s in levels[-1][1]):
            levels[-1] = (levels[-1][0] * shape[k], levels[-1][1])
        else:
            levels.append((shape[k], steps))
    # The innermost level is a contiguous run if its step is one scalar in both.
    if levels and set(levels[0][1]) == {size}:
        size *= levels.pop(0)[0]
    # A span has a single step; more levels would be nested loops, which the caller does by NumPy.
    if len(levels) > 1:
        return None
    count, steps = levels[0] if levels else (1, (0, 0))
    return (
        StridedSpan(one.address, size, count, steps[0]),
        StridedSpan(other.address, size, count, steps[1]),
    )


class MemorySpace(Protocol):
    """Where storages lie: the host's memory, or a GPU's. There is one object of each.

    Attributes:
        dlpack: its kind and number, as DLPack has them.
    """

    @property
    def dlpack(self) -> tuple[int, int]: ...

    def free_memory_text(self) -> str:
        """Return how much memory is free, in words; empty if that is not known."""

    def mark_time(self) -> Any:
        """Mark the time when all that was launched so far is done."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Return the time between two marks, which are of no use afterwards; waits for them."""


class _Host:
    """The memory of the process."""

    dlpack = (1, 0)
    mark_time = staticmethod(time.perf_counter)

    def __repr__(self) -> str:
        return "the CPU"

    def free_memory_text(self) -> str:
        return ""

    def seconds_between(self, start: float, end: float) -> float:
        return end - start


HOST = _Host()


class StorageSnapshot(Protocol):
    """A copy of a storage or of one row, on the same device: an array, or a buffer of a GPU."""

    @property
    def nbytes(self) -> int: ...


def snapshot_address(snapshot: Any) -> int:
    """Return the address of a snapshot's first byte."""
    found: int = snapshot.ctypes.data if isinstance(snapshot, np.ndarray) else snapshot.address
    return found


Part = tuple[int | None, int, int]
"""Some indices along an axis: the axis (None: everything), the first index, and how many there are."""
WHOLE: Part = (None, 0, 1)


class Storage(Protocol):
    """The elements of one field, wherever they are.

    Arrays have the shape `layout.shape` + (components,).

    Attributes:
        flat: scalars by their place in memory: flat[k], flat[k] = number.
        address: of the first scalar.
    """

    layout: StorageLayout
    flat: Any

    @property
    def device(self) -> MemorySpace: ...

    @property
    def address(self) -> int: ...

    def element(self, at: int) -> np.ndarray:
        """Return the components of the element whose first scalar is number `at`; may be a view."""

    def set_element(self, at: int, values: np.ndarray) -> None:
        """Set the components of the element whose first scalar is number `at`."""

    def fill(self, value: Any) -> None:
        """Set all elements to one number, or to one for each component."""

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        """Copy all elements to an array."""

    def from_numpy(self, array: np.ndarray) -> None:
        """Set all elements."""

    def copy_from(self, other: Storage) -> None:
        """Set all elements to those of a storage of the same shape, on any device."""

    def add(self, other: Any) -> None:
        """Add the elements of a storage of the same shape, or of a snapshot of one."""

    def may_be_nonzero(self) -> bool:
        """Return whether there may be anything but zeros."""

    def snapshot(self, part: Part = WHOLE, into: Any = None) -> Any:
        """Copy a part without leaving the device.

        Args:
            part: which.
            into: an earlier snapshot of the same size, whose memory is used again.
        """

    def copier(self, into: Any, part: Part = WHOLE) -> Callable[[], None]:
        """Return what copies a part into the memory of a snapshot of it, again and again."""

    def restore(self, snapshot: Any, part: Part = WHOLE) -> None:
        """Set what `snapshot` copied to the copied values."""

    def upload(self, values: np.ndarray) -> Any:
        """Copy the components of an element to where kernels run, as a snapshot."""


_in_use: list[np.ndarray] = []
"""Memory of storages that were collected during a launch, which may still work on it."""


class HostStorage:
    """Elements in the host's memory.

    The methods wait for a launch that another thread is in: `closed` tells of one, `wait` waits for it.

    Attributes:
        array: them as an array of shape `shape` + (components,).
        is_number: whether it is a single f32 or f64, that `flat[0]` reads and sets.
    """

    device: MemorySpace = HOST
    is_number = False

    def __init__(self, layout: StorageLayout) -> None:
        """Allocate, all zeros.

        Raises:
            MemoryError, ValueError: there is not so much.
        """
        self.layout = layout
        # Cache lines have 64 bytes, and so have the widest vectors (AVX-512): aligned ones never straddle two
        # lines. Without margins an index that is off by one would overwrite what the allocator keeps there,
        # and end the process much later, where nobody finds out why.
        margin = layout.margin
        if layout.nbytes < _LARGE:
            unit, place = _LINE, 0
        else:
            unit, place = _PAGE, next(_large_storages) * _APART
        raw = np.zeros(layout.nbytes + 2 * margin + unit, np.uint8)
        start = margin + (place - margin - raw.ctypes.data) % unit
        flat = raw[start : start + layout.nbytes].view(layout.dtype.numpy)
        self.scalars = flat
        self.flat: Any = scalars_of(flat)
        self.array = layout.view(flat)
        self.address = int(flat.ctypes.data)
        self.is_number = layout.count == 1 and layout.dtype in (f32, f64)

    # The defaults bind the globals: they are still there when modules are torn down at the end of the
    # process.
    def __del__(self, running: Any = closed, kept: list[Any] = _in_use) -> None:
        # A launch of another thread (`closed`) holds no reference to its fields, only their addresses: their
        # memory is kept until a later collection outside a launch.
        if running[0]:
            kept.append(self.scalars)
        elif kept:
            kept.clear()

    def element(self, at: int) -> np.ndarray:
        # Inlined, as reading one element from Python takes a fraction of a microsecond.
        if closed[0]:
            wait()
        step = self.layout.component_stride
        return self.scalars[at : at + self.layout.components * step : step]

    def set_element(self, at: int, values: np.ndarray) -> None:
        if closed[0]:
            wait()
        step = self.layout.component_stride
        self.scalars[at : at + self.layout.components * step : step] = values

    def fill(self, value: Any) -> None:
        if closed[0]:
            wait()
        if self.is_number and value.__class__ in (int, float):
            self.flat[0] = value  # a quarter of what NumPy takes
        else:
            self.array[...] = value

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        wait()
        made = np.empty(self.array.shape, self.array.dtype if dtype is None else dtype)
        copy_elements(made, self.array, "unsafe")
        return made

    def from_numpy(self, array: np.ndarray) -> None:
        # "same_kind" lets floats be rounded, and never turns floats into integers.
        wait()
        copy_elements(self.array, array, "same_kind")

    def copy_from(self, other: Storage) -> None:
        wait()
        # Through the host where the other one is on a GPU.
        array = other.array if isinstance(other, HostStorage) else other.to_numpy()
        copy_elements(self.array, array, "same_kind")

    def add(self, other: Any) -> None:
        wait()
        if isinstance(other, HostStorage):
            other = other.array
        self.array += other if isinstance(other, np.ndarray) else other.to_numpy()

    def may_be_nonzero(self) -> bool:
        wait()
        return bool(self.array.any())

    def _part(self, part: Part) -> np.ndarray:
        axis, first, count = part
        if axis is None:
            return self.array
        return self.array[(slice(None),) * axis + (slice(first, first + count),)]

    def snapshot(self, part: Part = WHOLE, into: np.ndarray | None = None) -> np.ndarray:
        if closed[0]:
            wait()
        # "K" keeps the order of axes in memory, so that both copies go through memory in sequence.
        if into is None:
            return self._part(part).copy("K")
        into[...] = self._part(part)
        return into

    def copier(self, into: np.ndarray, part: Part = WHOLE) -> Callable[[], None]:
        target, source = into, self._part(part)
        # NumPy copies one long run much faster than many short ones.
        if target.flags.c_contiguous and source.flags.c_contiguous:
            target, source = target.reshape(-1), source.reshape(-1)

        def copy() -> None:
            if closed[0]:
                wait()
            target[...] = source

        return copy

    def restore(self, snapshot: np.ndarray, part: Part = WHOLE) -> None:
        wait()
        self._part(part)[...] = snapshot

    def upload(self, values: np.ndarray) -> np.ndarray:
        # Kernels run on the host, so the values are there already.
        return values
