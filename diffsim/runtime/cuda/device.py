"""A GPU as fields and kernels see it: memory that is freed with its owner, copies, errors of kernels.

Only what returns values to Python waits for the GPU. All work is issued to one stream and done in that order,
so memory can be reused as soon as its owner is gone: whatever still uses it comes earlier on the stream.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.backends.cuda import ptx
from diffsim.backends.cuda.driver import Driver
from diffsim.backends.cuda.libcuda import DriverError, OutOfMemory
from diffsim.backends.native.jit import Jit, digest_of
from diffsim.backends.native.pool import Pool
from diffsim.errors import DiffsimError, memory_size, warn
from diffsim.ir.types import ScalarType
from diffsim.runtime.cuda.pair_kernels import Pairs
from diffsim.runtime.cuda.staging import Staging
from diffsim.runtime.memory.scalars import scalars_of
from diffsim.runtime.memory.storage import (
    WHOLE,
    HostStorage,
    Part,
    Storage,
    StorageLayout,
    StridedSpan,
)
from diffsim.runtime.memory.transposed import copy_elements

_MOST_SPARE = 256 << 20  # bytes of freed buffers kept to be used again
# So that one buffer takes a quarter of them at most.
_LARGEST_SPARE = 64 << 20
_PIECE = 1 << 16  # bytes of a pattern that the host writes; the device doubles it
_SCRATCH_PART = 32  # of the device's memory, for values that kernels save
_LEAST_SCRATCH = 1 << 20
_DLPACK_CUDA = 2
# GPUs run the PTX of older ones; that for 9.0 is of version 8.1, which drivers know from CUDA 12.1 on.
_VERSION_OF_SM_90 = 12010


def copy(driver: Any, to: StridedSpan, of: StridedSpan) -> None:
    """Copy between spans whose runs have the same length, on the device."""
    # One copy where there are no gaps; else the driver's copy of rows with a pitch.
    if to.is_contiguous and of.is_contiguous:
        driver.copy(to.address, of.address, to.nbytes)
    else:
        driver.copy_rows(to.address, to.step, of.address, of.step, to.bytes, to.count)


class Buffer:
    """Memory on a device, freed with this object, from any thread; `what` names it in errors."""

    __slots__ = ("address", "device", "nbytes")

    def __init__(self, device: Device, nbytes: int, what: str) -> None:
        self.device = device
        self.nbytes = nbytes
        # Set before `alloc`, which may raise: `__del__` is called all the same.
        self.address = 0
        self.address = device.alloc(nbytes, what)

    def __del__(self) -> None:
        if self.address:
            self.device.free(self.address, self.nbytes)
            self.address = 0


class Device:
    """One GPU.

    Attributes:
        driver: its driver.
        jit: compiler for the host, whose code starts launches.
        sm: compute capability that code is made for, ten times the version.
        pairs: sums and exchanges of memory.
        staging: copies from and to the host.
        pending: executables whose checks are still to be read (`report()` raises their errors), with the
            clock's reading before the first such launch.
        on_failure: what to call with such an error, and that reading, before it is raised.
    """

    def __init__(self, driver: Any, jit: Jit, pool: Callable[[], Pool]) -> None:
        self.driver = driver
        self.jit = jit
        # PTX runs on the target it is made for and on later ones, so that the newest known target that is not
        # newer than the GPU is right.
        most = min(driver.sm, 90 if driver.version >= _VERSION_OF_SM_90 else 89)
        self.sm = max(sm for sm in ptx.TARGETS if sm <= most)
        self.pending: dict[Any, int] = {}
        self._time_events: list[int] = []  # for `mark_time`, not in use now
        self.on_failure: Callable[[BaseException, int], None] = lambda error, clock: None
        self.closed = False
        # Freed buffers by size: programs allocate the same sizes again and again, and cuMemFree waits for all
        # work of the GPU.
        self._spare: dict[int, list[int]] = {}
        self._spare_bytes = 0
        self.pairs = Pairs(self)
        self.staging = Staging(driver, pool)
        self._heap_set = False
        self._warned = False
        self._scratch: Buffer | None = None
        # Finalizers that run at the end of the process must not call a driver that is shutting down.
        atexit.register(self._close)

    def __repr__(self) -> str:
        return f"GPU {self.driver.device} ({self.driver.name})"

    def _close(self) -> None:
        """Make no more calls: at the end of the process the driver frees everything."""
        self.closed = True

    # ---- memory

    @property
    def dlpack(self) -> tuple[int, int]:
        """Its kind and number, as DLPack has them."""
        return _DLPACK_CUDA, int(self.driver.device)

    def free_memory_text(self) -> str:
        """Return how much memory is free, in words."""
        return f"{self} has {memory_size(self.driver.free_memory())} left"

    def alloc(self, nbytes: int, what: str) -> int:
        """Allocate memory, whose contents are undefined.

        Raises:
            OutOfMemory: there is not so much left for `what`.
        """
        # Memory is used again at once, without waiting: the new use is later on the same stream.
        spare = self._spare.get(nbytes)
        if spare:
            try:
                address = spare.pop()
            except IndexError:  # another thread was faster
                pass
            else:
                self._spare_bytes -= nbytes
                return address
        # A buffer larger than the device's memory is not asked for.
        if nbytes <= self.driver.memory:
            # Twice: spare buffers of other sizes may be in the way.
            for _ in range(2):
                try:
                    return int(self.driver.alloc(nbytes))
                except OutOfMemory:
                    self._release_spare()
        raise OutOfMemory(
            f"there is no memory for {what}: it takes {memory_size(nbytes)}, and {self.free_memory_text()}"
        )

    def free(self, address: int, nbytes: int) -> None:
        """Free memory, or keep it for the next allocation of the same size."""
        if self.closed:
            return
        # Kept, up to a bound: other programs on the GPU need memory, too.
        if nbytes <= _LARGEST_SPARE and self._spare_bytes + nbytes <= _MOST_SPARE:
            self._spare_bytes += nbytes
            self._spare.setdefault(nbytes, []).append(address)
            return
        # What a launch did wrong before is reported where Python waits for it.
        with contextlib.suppress(DriverError):
            self.driver.free(address)

    def _release_spare(self) -> None:
        # Emptied first, so that other threads find none that is being freed.
        spare, self._spare, self._spare_bytes = self._spare, {}, 0
        for addresses in spare.values():
            for address in addresses:
                self.driver.free(address)

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Fill memory with `count` copies of a pattern."""
        if count == 0:
            return
        width = len(pattern)
        # All bytes equal (zeros, above all): a memset of bytes.
        if pattern.count(pattern[0]) == width:
            self.driver.set_words(address, pattern[0], 1, width * count)
            return
        # The driver sets words of two and four bytes.
        if width in (2, 4):
            self.driver.set_words(address, int.from_bytes(pattern, "little"), width, count)
            return
        # Longer patterns (f64, vectors): one piece from the host, doubled by copies on the device, so that
        # the number of copies grows with the logarithm of the size.
        total = width * count
        piece = pattern * min(count, max(1, _PIECE // width))
        self.write(address, np.frombuffer(piece, np.uint8))
        done = len(piece)
        while done < total:
            more = min(done, total - done)
            self.driver.copy(address + done, address, more)
            done += more

    def write(self, address: int, array: np.ndarray) -> None:
        """Copy a contiguous array, which may change afterwards, to the device."""
        self.staging.write(address, array)

    def read(self, address: int, array: np.ndarray) -> None:
        """Wait, report errors of kernels, and copy to a contiguous array."""
        # A failed check explains values that are wrong, so it is raised before they are seen.
        if self.pending:
            self.check_pending()
        self.read_raw(address, array)

    def read_raw(self, address: int, array: np.ndarray) -> None:
        """Wait, and copy to a contiguous array."""
        self.staging.read(array, address)

    def add(self, to: StridedSpan, of: StridedSpan, dtype: ScalarType) -> None:
        """Add the scalars of one span to those of another."""
        # The plan is used once; it keeps its parameters alive until the launch has copied them.
        start, block = self.driver.prepare([self.pairs.sum(to, of, dtype)], self.jit)
        code = start(block)
        if code:
            self.driver.failed(code)

    # ---- code

    def machine_code(self, text: str) -> bytes:
        """Compile LLVM text of GPU functions to machine code for this device."""
        return bytes(self.driver.link(ptx.to_ptx(text, self.sm)))

    @property
    def identity(self) -> str:
        """All of the device, its driver and the way to its code that machine code depends on."""
        return f"cuda {self.driver.sm} driver {self.driver.version} {digest_of(ptx.__file__)}"

    def reserve_heap(self, nbytes: int) -> None:
        """Set the size of the heap that kernels allocate from (once: it cannot grow later)."""
        if not self._heap_set:
            # `cuCtxSetLimit` fails once a kernel has used the heap.
            self._heap_set = True
            self.driver.set_heap(nbytes or self.driver.memory // _SCRATCH_PART)

    def scratch(self, nbytes: int) -> Buffer:
        """Return the memory that kernels save values of loops in, in turn (0: of a size chosen here)."""
        found = self._scratch
        # One for all kernels: they run one after the other, and each begins with all of it.
        if found is None or (nbytes and found.nbytes != nbytes):
            self._scratch = None
            asked = nbytes or self.driver.memory // _SCRATCH_PART
            while True:
                # A size chosen here may be too much beside other programs: half of it is tried, down to a
                # MiB. The user's own number is an error instead.
                try:
                    found = self._scratch = Buffer(
                        self, asked, "values that loops save for gradients"
                    )
                    break
                except OutOfMemory:
                    if nbytes or asked < _LEAST_SCRATCH:
                        raise
                    asked //= 2
        return found

    def unload(self, module: int) -> None:
        """Unload code that may still be running."""
        self._drop(self.driver.unload, module)

    def drop_graph(self, graph: int) -> None:
        """Free a graph that may still be running."""
        self._drop(self.driver.drop_graph, graph)

    def _drop(self, drop: Callable[[int], None], handle: int) -> None:
        # A module or graph in use must not be freed; errors of earlier launches are raised where Python
        # waits.
        if not self.closed:
            with contextlib.suppress(DriverError):
                self.driver.wait()
                drop(handle)

    def without_graphs(self, problem: DriverError) -> None:
        """Warn, once, that the driver makes no graphs of replayed tapes."""
        if not self._warned:
            self._warned = True
            warn(
                f"replayed tapes launch their kernels one by one, because {self} makes no graph of them: "
                f"{problem.reason}",
                RuntimeWarning,
            )

    # ---- waiting

    def sync(self) -> None:
        """Wait for all work, and raise what a check of a kernel found."""
        self.driver.wait()
        self.check_pending()

    def mark_time(self) -> int:
        event = self._time_events.pop() if self._time_events else self.driver.event(timed=True)
        self.driver.mark(event)
        return event

    def seconds_between(self, start: int, end: int) -> float:
        self.driver.wait_for_event(end)
        found = self.driver.seconds_between(start, end)
        self._time_events += (start, end)
        return found

    def add_pending(self, launched: Any, now: bool, clock: int) -> None:
        """Register a launch whose checks may fail; they are read when Python next waits.

        Args:
            launched: the executable, or whatever has a `report` method.
            now: whether to wait and read them now.
            clock: the session's clock before the launch.
        """
        # The first launch decides from which reading on gradients may be wrong.
        self.pending.setdefault(launched, clock)
        if now:
            self.sync()

    def check_pending(self) -> None:
        """Raise the error of the first pending launch whose check failed."""
        # Taken off first: a report that raises is not made twice, and launches meanwhile register anew.
        pending, self.pending = self.pending, {}
        try:
            while pending:
                first = next(iter(pending))
                clock = pending.pop(first)
                try:
                    first.report()
                except DiffsimError as error:
                    self.on_failure(error, clock)
                    raise
        finally:
            # What was not reported yet stays pending.
            self.pending = {**pending, **self.pending}


_devices: dict[int, Device] = {}


def open_device(number: int, jit: Callable[[], Jit], pool: Callable[[], Pool]) -> Device:
    """Return the GPU of that number.

    Args:
        number: counted from 0.
        jit: the host's compiler; asked for once.
        pool: the host's threads; asked for when they have something to copy.

    Raises:
        DriverError: it, or the driver, is missing.
    """
    # One for each GPU: allocations, stream and spare buffers are shared by all sessions.
    if number not in _devices:
        driver = Driver(number)
        _devices[number] = Device(driver, jit(), pool)
    return _devices[number]


class _Flat:
    """Single scalars on a device, by their place in memory."""

    def __init__(self, buffer: Buffer, dtype: ScalarType) -> None:
        self.buffer = buffer
        self.width = dtype.bytes
        self.dtype = dtype.numpy

    def __getitem__(self, k: int) -> Any:
        found = np.empty(1, self.dtype)
        # Reads wait for the GPU: an element at a time is slow, and meant for looking at single values.
        self.buffer.device.read(self.buffer.address + k * self.width, found)
        return found.item()

    def __setitem__(self, k: int, value: Any) -> None:
        one = np.empty(1, self.dtype)
        scalars_of(one)[0] = value  # refuses what memory of the host refuses
        self.buffer.device.write(self.buffer.address + k * self.width, one)


class DeviceStorage:
    """Elements on a GPU; see `runtime/memory/storage.py` for the methods."""

    def __init__(self, layout: StorageLayout, device: Device) -> None:
        """Allocate, all zeros.

        Raises:
            OutOfMemory: there is not so much.
        """
        self.layout = layout
        self.device = device
        self.buffer = Buffer(device, layout.nbytes, "a field")
        # Zeroed on the device: no values are transferred.
        device.fill(self.buffer.address, b"\0", layout.nbytes)
        self.flat = _Flat(self.buffer, layout.dtype)

    @property
    def address(self) -> int:
        return self.buffer.address

    def _plain(self) -> bool:
        """Return whether the scalars are in the order of a NumPy array."""
        layout = self.layout
        in_order = layout.order == tuple(range(len(layout.shape)))
        return in_order and not layout.in_blocks and not (layout.soa and layout.components > 1)

    def element(self, at: int) -> np.ndarray:
        layout, step = self.layout, self.layout.component_stride
        if step == 1:
            found = np.empty(layout.components, layout.dtype.numpy)
            self.device.read(self.address + at * layout.dtype.bytes, found)
            return found
        # Components in separate blocks are far apart: one copy for each.
        return np.array(
            [self.flat[at + k * step] for k in range(layout.components)], layout.dtype.numpy
        )

    def set_element(self, at: int, values: np.ndarray) -> None:
        layout, step = self.layout, self.layout.component_stride
        made = np.empty(layout.components, layout.dtype.numpy)
        made[...] = values
        width = layout.dtype.bytes
        if step == 1:
            self.device.write(self.address + at * width, made)
            return
        for k in range(layout.components):
            self.device.write(self.address + (at + k * step) * width, made[k : k + 1])

    def fill(self, value: Any) -> None:
        layout = self.layout
        values = np.empty(layout.components, layout.dtype.numpy)
        values[...] = value
        # Each component has a block of its own, filled with one number.
        if layout.soa:
            each = layout.count // layout.components
            for k, one in enumerate(values):
                at = self.address + k * each * layout.dtype.bytes
                self.device.fill(at, one.tobytes(), each)
        elif (values == values[0]).all():
            self.device.fill(self.address, values[:1].tobytes(), layout.count)
        elif layout.in_blocks:
            self.from_numpy(np.broadcast_to(values, (*layout.shape, layout.components)))
        else:
            self.device.fill(self.address, values.tobytes(), layout.count // layout.components)

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        layout = self.layout
        # The memory's order is kept in the copy and changed on the host: one contiguous transfer in place of
        # many.
        flat = np.empty(layout.count, layout.dtype.numpy)
        self.device.read(self.address, flat)
        view = layout.view(flat)
        # The view has NumPy's order already; a copy would be a second one.
        if self._plain():
            return view if dtype is None else view.astype(dtype, copy=False)
        made = np.empty(view.shape, view.dtype if dtype is None else dtype)
        copy_elements(made, view, "unsafe")
        return made

    def from_numpy(self, array: np.ndarray) -> None:
        # No conversion, no permutation: sent as it is.
        layout = self.layout
        if array.dtype == layout.dtype.numpy and array.flags.c_contiguous and self._plain():
            self.device.write(self.address, array)
            return
        flat = np.empty(layout.count, layout.dtype.numpy)
        copy_elements(layout.view(flat), array, "same_kind")
        self.device.write(self.address, flat)

    def _same(self, other: Any) -> bool:
        """Return whether the other has the same layout on the same device."""
        mine = isinstance(other, DeviceStorage) and other.device is self.device
        return mine and other.layout == self.layout

    def copy_from(self, other: Storage) -> None:
        # On one device nothing goes through the host.
        if self._same(other):
            self.device.driver.copy(self.address, other.address, self.layout.nbytes)
        else:
            self.from_numpy(other.to_numpy())

    def add(self, other: Any) -> None:
        layout = self.layout
        # A snapshot is packed in the order of the memory, so scalars correspond one to one.
        if isinstance(other, Buffer) or self._same(other):
            here = layout.part(self.address)
            self.device.add(here, here.packed(other.address), layout.dtype)
            return
        # Another layout or device: added on the host.
        made = HostStorage(layout)
        made.copy_from(self)
        made.add(other)
        self.from_numpy(made.array)

    def may_be_nonzero(self) -> bool:
        return True  # to find out would take as long as what the caller does then

    def snapshot(self, part: Part = WHOLE, into: Buffer | None = None) -> Buffer:
        # A snapshot stays on the device: tapes that save what is overwritten need no transfers.
        where = self.layout.part(self.address, *part)
        made = into or Buffer(self.device, where.nbytes, "a copy of a field")
        copy(self.device.driver, where.packed(made.address), where)
        return made

    def copier(self, into: Buffer, part: Part = WHOLE) -> Callable[[], None]:
        where = self.layout.part(self.address, *part)
        driver, target = self.device.driver, where.packed(into.address)
        return lambda: copy(driver, target, where)

    def upload(self, values: np.ndarray) -> Buffer:
        made = Buffer(self.device, values.nbytes, "values of a field")
        self.device.write(made.address, values)
        return made

    def restore(self, snapshot: Buffer, part: Part = WHOLE) -> None:
        where = self.layout.part(self.address, *part)
        copy(self.device.driver, where, where.packed(snapshot.address))
