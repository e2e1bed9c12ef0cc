"""Where the elements of a field lie: in the host's memory, or on a GPU (`runtime/cuda/device.py`).

Both kinds of storage have the same methods, so fields, tapes and checkpoints do not ask where they are:

    flat            scalars by their place in memory: flat[k], flat[k] = number
    element         the components of one element; set_element
    fill            all elements: one number, or one for each component
    to_numpy        a copy as an array of shape `shape` + (components,); from_numpy
    copy_from       another storage of the same shape
    add             add another storage of the same shape, or a copy made by `take`
    may_be_nonzero  whether anything but zeros may be there
    take            a copy of everything, or of one row of an axis; `put` puts it back
    hold            the components of an element, where kernels run
    address         of the first scalar; nbytes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from diffsim import locks
from diffsim.backends.native.pool import closed, wait
from diffsim.ir.layout import packed_strides
from diffsim.ir.types import ScalarType


@dataclass(frozen=True, slots=True)
class StridedSpan:
    """`count` stretches of memory of `bytes` each; the next one begins `step` bytes further on."""

    address: int
    bytes: int
    count: int = 1
    step: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether there are no gaps."""
        return self.count == 1 or self.step == self.bytes

    @property
    def nbytes(self) -> int:
        return self.count * self.bytes

    def packed(self, address: int) -> StridedSpan:
        """As many stretches as long, one right after the other."""
        return StridedSpan(address, self.bytes, self.count, self.bytes)


@dataclass(frozen=True)
class StorageLayout:
    """The shape of a storage, and how it lies in memory.

    Attributes:
        dtype: scalar type.
        components: scalars of one element.
        shape: number of elements along each axis.
        order: the axes from slowest to fastest.
        soa: whether each component has a block of its own.
    """

    dtype: ScalarType
    components: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    soa: bool

    @locks.cached
    def count(self) -> int:
        """Number of scalars."""
        count = self.components
        for n in self.shape:
            count *= n
        return count

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.bytes

    @locks.cached
    def strides(self) -> tuple[int, ...]:
        """How far apart neighbours along each axis are [scalars]."""
        return packed_strides(self.shape, 1 if self.soa else self.components, self.order)

    @property
    def component_stride(self) -> int:
        """How far apart the components of an element are [scalars]."""
        return self.count // self.components if self.soa and self.components > 1 else 1

    def view(self, flat: np.ndarray) -> np.ndarray:
        """An array of shape `shape` + (components,) on scalars in the order in which they lie."""
        width = self.dtype.bytes
        strides = [width * s for s in (*self.strides, self.component_stride)]
        return np.ndarray((*self.shape, self.components), self.dtype.numpy, flat, 0, strides)

    def row(self, address: int, axis: int | None, row: int = 0) -> StridedSpan:
        """Where a row of an axis lies (None: everything) in memory that begins at an address.

        `take` copies these stretches one right after the other.
        """
        if axis is None:
            return StridedSpan(address, self.nbytes)
        step = self.strides[axis] * self.dtype.bytes
        pitch = step * self.shape[axis]
        return StridedSpan(address + row * step, step, self.nbytes // pitch, pitch)

    def element(self, address: int, at: int) -> StridedSpan:
        """Where an element's components lie, the first of them being the scalar number `at`."""
        width, step = self.dtype.bytes, self.component_stride
        first = address + at * width
        if step == 1:
            return StridedSpan(first, width * self.components)
        return StridedSpan(first, width, self.components, width * step)


def stretches(one: Storage, other: Storage) -> tuple[StridedSpan, StridedSpan] | None:
    """All of two storages of one shape and scalar type, such that the same elements correspond.

    Returns:
        Stretches equal in number and length; None if the scalar types differ, or if the way from stretch
        to stretch takes more than one step.
    """
    a, b = one.form, other.form
    if a.dtype is not b.dtype:
        return None
    if a == b:
        return a.row(one.address, None), b.row(other.address, None)
    shape, size = (*a.shape, a.components), a.dtype.bytes
    ways = [[size * s for s in (*f.strides, f.component_stride)] for f in (a, b)]
    axes = [k for k, n in enumerate(shape) if n > 1]
    levels: list[tuple[int, tuple[int, ...]]] = []  # from the inside: how many, how far apart
    for k in sorted(axes, key=lambda k: ways[0][k]):
        steps = tuple(way[k] for way in ways)
        if levels and steps == tuple(levels[-1][0] * s for s in levels[-1][1]):
            levels[-1] = (levels[-1][0] * shape[k], levels[-1][1])
        else:
            levels.append((shape[k], steps))
    if levels and set(levels[0][1]) == {size}:
        size *= levels.pop(0)[0]
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

    def left(self) -> str:
        """How much memory is free, in words; empty if that is not known."""


class _Host:
    """The memory of the process, of which the system gives as much as it likes."""

    dlpack = (1, 0)

    def __repr__(self) -> str:
        return "the CPU"

    def left(self) -> str:
        return ""


HOST = _Host()


class StorageSnapshot(Protocol):
    """What `take` returns."""

    @property
    def nbytes(self) -> int: ...


def address_of(copy: Any) -> int:
    """Where a copy that `take` made lies."""
    found: int = copy.ctypes.data if isinstance(copy, np.ndarray) else copy.address
    return found


class Storage(Protocol):
    """What both kinds of storage can do; see the head of this file."""

    form: StorageLayout
    flat: Any

    @property
    def device(self) -> MemorySpace: ...

    @property
    def address(self) -> int: ...

    def element(self, at: int) -> np.ndarray: ...

    def set_element(self, at: int, values: np.ndarray) -> None: ...

    def fill(self, value: Any) -> None: ...

    def to_numpy(self, dtype: Any = None) -> np.ndarray: ...

    def from_numpy(self, array: np.ndarray) -> None: ...

    def copy_from(self, other: Storage) -> None: ...

    def add(self, other: Any) -> None: ...

    def may_be_nonzero(self) -> bool: ...

    def take(self, axis: int | None = None, row: int = 0) -> Any: ...

    def put(self, copy: Any, axis: int | None = None, row: int = 0) -> None: ...

    def hold(self, values: np.ndarray) -> Any: ...


_kept: list[np.ndarray] = []
"""Memory of storages that have gone while a launch was running, which may work on it."""


class HostStorage:
    """Elements in the host's memory. Its methods wait for a launch of another thread that is running.

    Attributes:
        array: them as an array of shape `shape` + (components,).
    """

    device: MemorySpace = HOST

    def __init__(self, form: StorageLayout) -> None:
        """Allocate, all zeros.

        Raises:
            MemoryError, ValueError: there is not so much.
        """
        self.form = form
        raw = np.zeros(form.nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        flat = raw[start : start + form.nbytes].view(form.dtype.numpy)
        self.scalars = flat
        self.flat: Any = memoryview(flat)
        self.array = form.view(flat)
        self.address = int(flat.ctypes.data)

    def __del__(self, running: Any = closed, kept: list[Any] = _kept) -> None:
        if running[0]:
            kept.append(self.scalars)
        elif kept:
            kept.clear()

    def element(self, at: int) -> np.ndarray:
        if closed[0]:
            wait()
        step = self.form.component_stride
        return self.scalars[at : at + self.form.components * step : step]

    def set_element(self, at: int, values: np.ndarray) -> None:
        if closed[0]:
            wait()
        step = self.form.component_stride
        self.scalars[at : at + self.form.components * step : step] = values

    def fill(self, value: Any) -> None:
        wait()
        self.array[...] = value

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        wait()
        return np.array(self.array, dtype=dtype, order="C")

    def from_numpy(self, array: np.ndarray) -> None:
        wait()
        np.copyto(self.array, array, casting="same_kind")

    def copy_from(self, other: Storage) -> None:
        wait()
        array = other.array if isinstance(other, HostStorage) else other.to_numpy()
        np.copyto(self.array, array, casting="same_kind")

    def add(self, other: Any) -> None:
        wait()
        if isinstance(other, HostStorage):
            other = other.array
        self.array += other if isinstance(other, np.ndarray) else other.to_numpy()

    def may_be_nonzero(self) -> bool:
        wait()
        return bool(self.array.any())

    def _part(self, axis: int | None, row: int) -> np.ndarray:
        return self.array if axis is None else self.array[(slice(None),) * axis + (row,)]

    def take(self, axis: int | None = None, row: int = 0) -> np.ndarray:
        wait()
        return self._part(axis, row).copy("K")

    def put(self, copy: np.ndarray, axis: int | None = None, row: int = 0) -> None:
        wait()
        self._part(axis, row)[...] = copy

    def hold(self, values: np.ndarray) -> np.ndarray:
        return values
