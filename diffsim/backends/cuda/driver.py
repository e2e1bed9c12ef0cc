"""NVIDIA's driver API: the few calls needed to run kernels on a GPU, independent of the rest of diffsim.

The calls go to the driver's own library, libcuda, which comes with the GPU's driver: no toolkit, no
compiler and no other package is needed. The context is the device's primary one, which PyTorch, CuPy and
all else that is built on CUDA's runtime use too, or the one that the program has made with pycuda. It is
made current around each call where it is not, and the previous one is restored, so threads and other
libraries are not affected. All work goes to one stream of our own, a blocking one: it synchronizes with
CUDA's legacy default stream, to which other libraries submit, in both directions.

Calls that may take long release the GIL. `wait` polls, so Ctrl-C works.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from typing import Any, NamedTuple

from diffsim.backends.cuda import pycuda_context
from diffsim.backends.cuda.libcuda import DriverError, OutOfMemory, c_ptr, load
from diffsim.backends.native.jit import Jit
from diffsim.backends.native.pool import load_native

_STARTS_WITH = ("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLaunchKernel")
_INVALID_VALUE, _OUT_OF_MEMORY, _NOT_READY = 1, 2, 600
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_HEAP_SIZE = 2  # CU_LIMIT_MALLOC_HEAP_SIZE
_PROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute
_INFO_LOG, _INFO_LOG_SIZE, _ERROR_LOG, _ERROR_LOG_SIZE = 3, 4, 5, 6  # CUjit_option
_PTX = 1  # CU_JIT_INPUT_PTX
_DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE
_CONTEXT = 1  # CU_POINTER_ATTRIBUTE_CONTEXT
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_LARGEST_PITCH = 2**31 - 1  # bytes
_LEAST_VERSION, _LEAST_SM = 11080, 50  # of PTX 7.8, and of what LLVM writes
_SPIN_S = 2e-4
_LONGEST_SLEEP_S = 1e-3


class Launch(NamedTuple):
    """A GPU function to start.

    Attributes:
        function: its handle.
        grid: number of blocks.
        block_dim: threads in a block.
        params: array of the addresses of its arguments, which a launch copies.
    """

    function: int
    grid: int
    block_dim: int
    params: Any


def _in_words(version: int) -> str:
    """Return a version of CUDA as text: 12.4 for 12040."""
    return f"{version // 1000}.{version % 1000 // 10}"


class _Plan(c_void_p):
    """The address of words, which keeps alive what they point to: ctypes would free it with the list."""

    def __init__(self, words: Sequence[int], kept: Any) -> None:
        self.words = (ctypes.c_uint64 * len(words))(*words)
        self.kept = kept
        super().__init__(ctypes.addressof(self.words))


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D of the driver API: the fields in its order, for source, target and extent."""

    _END = (
        ("x", c_size_t),
        ("y", c_size_t),
        ("type", c_int),
        ("host", c_void_p),
        ("device", c_ptr),
        ("array", c_void_p),
        ("pitch", c_size_t),
    )
    _fields_ = (
        *((f"src_{name}", kind) for name, kind in _END),
        *((f"dst_{name}", kind) for name, kind in _END),
        ("width", c_size_t),
        ("height", c_size_t),
    )


class Driver:
    """One GPU.

    Attributes:
        device: its number.
        name: the device's name as the driver reports it.
        sm: compute capability, ten times the version: 80 for 8.0.
        processors: number of multiprocessors.
        memory: its memory [byte].
        version: the newest CUDA that the driver knows: 12040 for 12.4.
        stream: handle of the stream that all work goes to.
        interface: the library through which the driver is called, in words.
    """

    def __init__(self, device: int = 0) -> None:
        """Open a GPU.

        Raises:
            DriverError: no driver, no such GPU; the message says what is missing.
        """
        self._functions = load()
        # CUDA's current context is a property of each thread, and so is the variable that it is
        # read into.
        self._local = threading.local()
        self._check("cuInit", self._functions["cuInit"](0))
        count = self._number("cuDeviceGetCount")
        if not 0 <= device < count:
            have = "is no NVIDIA GPU" if not count else f"are GPUs 0 to {count - 1}"
            have = "is GPU 0 only" if count == 1 else have
            raise DriverError(f"there is no GPU number {device}: there {have}")
        self.device = device
        self.version = self._number("cuDriverGetVersion")
        handle = c_int()
        self._check("cuDeviceGet", self._functions["cuDeviceGet"](byref(handle), device))
        self._handle = handle.value
        text = ctypes.create_string_buffer(256)
        self._check("cuDeviceGetName", self._functions["cuDeviceGetName"](text, 256, handle))
        self.name = text.value.decode(errors="replace")
        self.sm = 10 * self.attribute(_MAJOR) + self.attribute(_MINOR)
        # Before anything is allocated: later calls would fail with errors that do not say why.
        self._refuse_old()
        self.processors = self.attribute(_PROCESSORS)
        total = c_size_t()
        self._check(
            "cuDeviceTotalMem", self._functions["cuDeviceTotalMem_v2"](byref(total), handle)
        )
        self.memory = total.value
        self._context, self.interface = self._open_context()
        made = c_void_p()
        self._call("cuStreamCreate", byref(made), 0)
        self.stream = made.value or 0
        self._start: Callable[[Any], int] | None = None

    def _open_context(self) -> tuple[int, str]:
        """Return the context for all work, and who made it."""
        if pycuda := pycuda_context.find():
            found = pycuda_context.open_context(pycuda, self.device, self._device_of)
            return found.handle, found.maker
        context = c_void_p()
        self._check(
            "cuDevicePrimaryCtxRetain",
            self._functions["cuDevicePrimaryCtxRetain"](byref(context), self._handle),
        )
        return context.value or 0, "libcuda"

    def _device_of(self, context: int) -> int:
        """Return the number of the GPU that a context belongs to."""
        self._check("cuCtxPushCurrent", self._functions["cuCtxPushCurrent_v2"](context))
        try:
            return self._number("cuCtxGetDevice")
        finally:
            self.leave()

    def _refuse_old(self) -> None:
        if self.version < _LEAST_VERSION:
            raise DriverError(
                f"NVIDIA's driver is too old: it knows CUDA {_in_words(self.version)}, and diffsim needs one "
                f"that knows CUDA {_in_words(_LEAST_VERSION)} (driver 520) or later"
            )
        if self.sm < _LEAST_SM:
            raise DriverError(
                f"GPU {self.device} ({self.name}) is too old: its compute capability is "
                f"{self.sm // 10}.{self.sm % 10}, and diffsim needs {_LEAST_SM // 10}.0 or later"
            )

    # ---- calls

    def _error(self, name: str, code: int) -> DriverError:
        words = []
        for what in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            if self._functions[what](code, byref(text)) == 0 and text.value:
                words.append(text.value.decode(errors="replace"))
        kind = OutOfMemory if code == _OUT_OF_MEMORY else DriverError
        return kind(f"{name.partition('_v')[0]}: {', '.join(words) or code}", code)

    def _check(self, name: str, code: int) -> None:
        if code:
            raise self._error(name, code)

    def _number(self, name: str) -> int:
        found = c_int()
        self._check(name, self._functions[name](byref(found)))
        return found.value

    def attribute(self, which: int) -> int:
        """Return an attribute of the device (CUdevice_attribute)."""
        found = c_int()
        self._check(
            "cuDeviceGetAttribute",
            self._functions["cuDeviceGetAttribute"](byref(found), which, self._handle),
        )
        return found.value

    def enter(self) -> bool:
        """Make the context current on this thread; return whether `leave` must be called afterwards."""
        try:
            current = self._local.current
        except AttributeError:
            current = self._local.current = c_void_p()
        self._functions["cuCtxGetCurrent"](byref(current))
        # The usual case in a program with one GPU: one call instead of three.
        if current.value == self._context:
            return False
        self._check("cuCtxPushCurrent", self._functions["cuCtxPushCurrent_v2"](self._context))
        return True

    def leave(self) -> None:
        """Restore the context that was current before `enter`."""
        self._functions["cuCtxPopCurrent_v2"](byref(c_void_p()))

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Run a block with the context current."""
        pushed = self.enter()
        try:
            yield
        finally:
            if pushed:
                self.leave()

    def _call(self, name: str, *args: Any) -> None:
        pushed = self.enter()
        try:
            code = self._functions[name](*args)
        finally:
            if pushed:
                self.leave()
        if code:
            raise self._error(name, code)

    # ---- memory

    def alloc(self, nbytes: int) -> int:
        """Allocate at least one byte of device memory; return its address.

        Raises:
            OutOfMemory: not enough is left.
        """
        made = c_ptr()
        self._call("cuMemAlloc_v2", byref(made), max(nbytes, 1))
        return made.value

    def free(self, address: int) -> None:
        """Free memory, once all work that may use it is done."""
        self._call("cuMemFree_v2", address)

    def free_memory(self) -> int:
        """Return how much of the device's memory is free [byte]."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def page_locked(self, nbytes: int) -> int:
        """Allocate page-locked host memory for the life of the process; return its address.

        Raises:
            OutOfMemory: the system locks no more.
        """
        made = c_void_p()
        self._call("cuMemHostAlloc", byref(made), nbytes, 0)
        return made.value or 0

    def copy_in(self, to: int, host: int | bytes, nbytes: int) -> None:
        """Copy from pageable host memory, which may change afterwards.

        The driver stages up to 64 KiB and returns; for more it waits for all work of the stream (CUDA driver
        API, "API synchronization behavior").
        """
        self._call("cuMemcpyHtoDAsync_v2", to, host, nbytes, self.stream)

    def send(self, to: int, locked: int, nbytes: int) -> None:
        """Copy from page-locked memory, which must not change until the copy is done."""
        self._call("cuMemcpyHtoDAsync_v2", to, locked, nbytes, self.stream)

    def copy_out(self, host: int, of: int, nbytes: int) -> None:
        """Wait for all work, then copy from the device to the host."""
        # Polled, so that Ctrl-C works while the kernels before it run; the copy itself is short.
        self.wait()
        self._call("cuMemcpyDtoHAsync_v2", host, of, nbytes, self.stream)
        self._call("cuStreamSynchronize", self.stream)

    def fetch(self, locked: int, of: int, nbytes: int) -> None:
        """Copy to page-locked memory, whose contents are valid once the copy is done."""
        self._call("cuMemcpyDtoHAsync_v2", locked, of, nbytes, self.stream)

    def copy(self, to: int, of: int, nbytes: int) -> None:
        """Copy on the device."""
        self._call("cuMemcpyDtoDAsync_v2", to, of, nbytes, self.stream)

    def copy_rows(
        self, to: int, to_pitch: int, of: int, of_pitch: int, width: int, height: int
    ) -> None:
        """Copy `height` rows of `width` bytes on the device, each a pitch after the one before."""
        # CU_DEVICE_ATTRIBUTE_MAX_PITCH: the driver refuses larger ones.
        if max(to_pitch, of_pitch) > _LARGEST_PITCH:
            for k in range(height):
                self.copy(to + k * to_pitch, of + k * of_pitch, width)
            return
        plan = _Copy2D(
            src_type=_DEVICE_MEMORY,
            src_device=of,
            src_pitch=of_pitch,
            dst_type=_DEVICE_MEMORY,
            dst_device=to,
            dst_pitch=to_pitch,
            width=width,
            height=height,
        )
        self._call("cuMemcpy2DAsync_v2", byref(plan), self.stream)

    def set_words(self, to: int, word: int, width: int, count: int) -> None:
        """Set `count` words of `width` (1, 2 or 4) bytes."""
        self._call(f"cuMemsetD{8 * width}Async", to, word, count, self.stream)

    def wait_for(self, stream: int) -> None:
        """Wait until the work of another stream is done."""
        self._wait("cuStreamQuery", stream)

    def where(self, address: int) -> int | None:
        """Return the number of the device that owns an address; None for host memory."""
        kind, device = c_uint(), c_int()
        try:
            self._call("cuPointerGetAttribute", byref(kind), 2, address)
            self._call("cuPointerGetAttribute", byref(device), _DEVICE_ORDINAL, address)
        except DriverError as problem:
            # How the driver answers for an address that it has never seen: ordinary host memory.
            if problem.code != _INVALID_VALUE:
                raise
            return None
        return device.value if kind.value == _DEVICE_MEMORY else None

    def is_reached(self, address: int) -> bool:
        """Return whether kernels can access memory: it is of their context, or of none (a memory pool)."""
        owner = c_void_p()
        try:
            self._call("cuPointerGetAttribute", byref(owner), _CONTEXT, address)
        except DriverError as problem:
            if problem.code != _INVALID_VALUE:
                raise
        return owner.value in (None, self._context)

    # ---- code

    def link(self, ptx: str) -> bytes:
        """Compile PTX to machine code for this GPU.

        Raises:
            DriverError: the driver refused the text; the message has its log.
        """
        size = 8192
        logs = [ctypes.create_string_buffer(size) for _ in range(2)]
        # The logs' addresses and sizes are passed by value in an array of pointers (CUjit_option).
        options = (c_int * 4)(_INFO_LOG, _INFO_LOG_SIZE, _ERROR_LOG, _ERROR_LOG_SIZE)
        addresses = [ctypes.addressof(log) for log in logs]
        values = (c_void_p * 4)(addresses[0], size, addresses[1], size)
        text = ptx.encode() + b"\0"
        state, image, length = c_void_p(), c_void_p(), c_size_t()
        with self.current():
            run = self._functions
            self._check("cuLinkCreate", run["cuLinkCreate_v2"](4, options, values, byref(state)))
            try:
                code = run["cuLinkAddData_v2"](
                    state, _PTX, text, len(text), b"kernel", 0, None, None
                )
                code = code or run["cuLinkComplete"](state, byref(image), byref(length))
                if code:
                    problem = self._error("cuLinkAddData", code)
                    log = logs[1].value.decode(errors="replace").strip()
                    raise DriverError(f"{problem.reason}\n{log}", code)
                # A copy: cuLinkDestroy frees the image.
                return ctypes.string_at(image.value or 0, length.value)
            finally:
                run["cuLinkDestroy"](state)

    def load(self, image: bytes) -> int:
        """Load machine code; return the module's handle."""
        made = c_void_p()
        self._call("cuModuleLoadData", byref(made), image)
        return made.value or 0

    def unload(self, module: int) -> None:
        """Unload a module, once all launches of its functions are done."""
        self._call("cuModuleUnload", module)

    def function(self, module: int, name: str) -> int:
        """Return the handle of a module's function."""
        found = c_void_p()
        self._call("cuModuleGetFunction", byref(found), module, name.encode())
        return found.value or 0

    def blocks_at_once(self, function: int, block_dim: int) -> int:
        """Return how many blocks of a function the whole GPU runs at the same time (its occupancy)."""
        found = c_int()
        self._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(found), function, block_dim, 0
        )
        return max(found.value, 1) * self.processors

    def set_heap(self, nbytes: int) -> None:
        """Set the size of the heap that kernels allocate from.

        An error is ignored: the size cannot change once a kernel of the context has used the heap, and a
        heap that is too small is reported by the kernel's own check.
        """
        with self.current():
            self._functions["cuCtxSetLimit"](_HEAP_SIZE, nbytes)

    # ---- launches

    def prepare(self, launches: Sequence[Launch], jit: Jit) -> tuple[Callable[[Any], int], Any]:
        """Return a native function and its argument that launch some GPU functions in order.

        One call from Python for all of them, since each call by way of ctypes has its own overhead. It
        returns 0, or the number of an error for `failed`.
        """
        if self._start is None:
            library = load_native(jit, None, "start.ll")
            self._start = ctypes.PYFUNCTYPE(c_int, c_void_p)(library.address("start"))
        calls = [ctypes.cast(self._functions[name], c_void_p).value or 0 for name in _STARTS_WITH]
        # The layout of the plan is that of `start.ll`.
        words = [*calls, self._context, self.stream, len(launches)]
        for one in launches:
            words += [one.function, one.grid, one.block_dim, ctypes.addressof(one.params)]
        return self._start, _Plan(words, launches)

    def failed(self, code: int) -> None:
        """Raise the error of a launch."""
        raise self._error("cuLaunchKernel", code)

    # ---- graphs

    def record(self, enqueue: Callable[[Driver], Any]) -> int:
        """Capture as a graph what `enqueue` asks of the driver it is given; return its handle.

        Nothing runs yet. That driver has a stream of its own, so work that other threads launch meanwhile
        is not captured.

        Raises:
            DriverError: the work cannot be captured; the driver is as before.
        """
        stream, graph, made = c_void_p(), c_void_p(), c_void_p()
        # A blocking stream would make work of other libraries on the default stream invalidate the
        # capture.
        self._call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        # The same context and functions: code that enqueues work does not know that it is captured.
        recorder = copy.copy(self)
        recorder.stream = stream.value or 0
        try:
            self._call("cuStreamBeginCapture_v2", stream, _RELAXED)
            try:
                enqueue(recorder)
            # A stream that is left capturing could neither be used nor destroyed.
            except BaseException:
                with contextlib.suppress(DriverError):  # it says that the capture has failed
                    self._call("cuStreamEndCapture", stream, byref(graph))
                raise
            self._call("cuStreamEndCapture", stream, byref(graph))
            self._call("cuGraphInstantiateWithFlags", byref(made), graph, 0)
        finally:
            # The executable graph is a copy of it.
            if graph.value:
                self._call("cuGraphDestroy", graph)
            self._call("cuStreamDestroy_v2", stream)
        return made.value or 0

    def run_graph(self, graph: int) -> None:
        """Launch a graph behind all earlier work of the stream."""
        self._call("cuGraphLaunch", graph, self.stream)

    def drop_graph(self, graph: int) -> None:
        """Free a graph that no longer runs."""
        self._call("cuGraphExecDestroy", graph)

    # ---- waiting

    def wait(self) -> None:
        """Wait until all work is done.

        Raises:
            DriverError: an error on the device since the last synchronization.
        """
        self._wait("cuStreamQuery", self.stream)

    def event(self, *, timed: bool = False) -> int:
        """Create an event, which counts as done until it is marked; return its handle."""
        made = c_void_p()
        self._call("cuEventCreate", byref(made), 0 if timed else _NO_TIMING)
        return made.value or 0

    def seconds_between(self, start: int, end: int) -> float:
        """Return the time between two timed events that are done."""
        found = c_float()
        self._call("cuEventElapsedTime", byref(found), start, end)
        return float(found.value) * 1e-3  # the driver gives milliseconds

    def mark(self, event: int) -> None:
        """Record the event: it is done when all work submitted so far is."""
        self._call("cuEventRecord", event, self.stream)

    def is_done(self, event: int) -> bool:
        """Return whether an event is done; errors as for `wait`."""
        with self.current():
            code = self._functions["cuEventQuery"](event)
            self._check("cuEventQuery", 0 if code == _NOT_READY else code)
            return bool(code == 0)

    def wait_for_event(self, event: int) -> None:
        """Wait until an event is done; errors as for `wait`."""
        self._wait("cuEventQuery", event)

    def _wait(self, call: str, handle: int) -> None:
        with self.current():
            query = self._functions[call]
            code = query(handle)
            # Spin first, as short kernels end sooner than a sleep; then sleep ever longer, so that
            # a long one costs no CPU time. Between two queries Python runs signal handlers.
            start, pause = time.perf_counter(), 2e-5
            while code == _NOT_READY:
                if time.perf_counter() - start > _SPIN_S:
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST_SLEEP_S)
                code = query(handle)
            self._check(call, code)
