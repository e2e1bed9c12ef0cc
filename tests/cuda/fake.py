"""A GPU that is not there: the driver's interface on memory of the host.

Memory is NumPy arrays, and every address that is handed in is checked to lie in one of them. Launches are
noted, and done by the CPU backend: the block of a launch is read as the layout of the CUDA code says, and
handed to the same kernel compiled for the CPU. So everything around the GPU's own code is really run.
"""

import bisect
import ctypes
import functools
import gc
import re
from dataclasses import dataclass, field

import numpy as np

from diffsim.backends import cpu, cuda
from diffsim.backends.driver import DriverError, OutOfMemory
from diffsim.backends.layout import ERROR, POOL, THREADS, Layout
from diffsim.ir.types import size_of
from diffsim.runtime import context, device

KERNELS = {}
"""LLVM text of CUDA code -> (kernel, CudaCode), noted when it is made."""


DEFAULT_ARCH = context._default_arch
LOWER_FOR_CPU = cpu.lower  # tests that count compilations see CUDA's


def install(replace=setattr, *, by_default=False):
    """Have diffsim use a fake GPU, let LLVM text pass for PTX, and note what `cuda.lower` makes."""
    lower = cuda.lower
    devices = {}

    def opened(number, jit):
        if number > 0:
            raise DriverError(f"there is no GPU number {number}: there is GPU 0 only")
        if number not in devices:
            driver = FakeDriver(number, keeps_launches=not by_default)
            devices[number] = device.Device(driver, jit())
        return devices[number]

    def noting(kernel, **options):
        code = lower(kernel, **options)
        KERNELS[code.text] = kernel, code
        return code

    replace(cuda, "lower", noting)
    replace(device, "to_ptx", lambda text, sm: text)
    replace(context, "open_device", opened)
    if by_default:
        replace(context, "_default_arch", lambda: context.cuda)


def live(ds):
    """Bytes of fields and buffers: what is allocated and not kept to be used again."""
    gc.collect()
    device = context.session.device
    return ds.driver.used - device._spare_bytes


@dataclass
class Launch:
    """One call of `launch`: what it was given, and the bytes behind its arguments."""

    name: str
    grid: int
    block_dim: int
    block: bytes


@dataclass
class FakeDriver:
    """What `backends.driver.Driver` does, without a GPU."""

    device: int = 0
    name: str = "a fake GPU"
    sm: int = 90
    processors: int = 2
    memory: int = 1 << 34
    version: int = 13000
    stream: int = 7
    launches: list = field(default_factory=list)
    waits: int = 0
    linked: int = 0
    heap: int | None = None
    keeps_launches: bool = True
    run_kernels: bool = True
    failure: DriverError | None = None
    no_graphs: DriverError | None = None
    graph_launches: int = 0

    def __post_init__(self):
        self.memories = {}
        self.starts = []
        self.used = self.peak = 0
        self.modules = {}
        self.functions = {}
        self.graphs = {}
        self.recording = False
        self.handles = 100

    # ---- memory

    def alloc(self, nbytes):
        assert not self.recording, "all is allocated before a graph is made"
        nbytes = max(nbytes, 1)
        if self.used + nbytes > self.memory:
            raise OutOfMemory("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY, out of memory", 2)
        room = np.full(nbytes + 256, 0xCD, np.uint8)
        start = -room.ctypes.data % 256
        memory = room[start : start + nbytes]
        address = memory.ctypes.data
        self.memories[address] = memory
        bisect.insort(self.starts, address)
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        return address

    def free(self, address):
        self.used -= len(self.memories.pop(address))
        self.starts.remove(address)

    def free_memory(self):
        return self.memory - self.used

    def at(self, address, nbytes):
        """The address, if the bytes there belong to one allocation."""
        k = bisect.bisect_right(self.starts, address) - 1
        assert k >= 0, f"{address:#x} is not on the device"
        start = self.starts[k]
        assert address + nbytes <= start + len(self.memories[start]), "beyond an allocation's end"
        return address

    def copy_in(self, to, host, nbytes):
        ctypes.memmove(self.at(to, nbytes), host, nbytes)

    def copy_out(self, host, of, nbytes):
        self.wait()
        ctypes.memmove(host, self.at(of, nbytes), nbytes)

    def copy(self, to, of, nbytes):
        ctypes.memmove(self.at(to, nbytes), self.at(of, nbytes), nbytes)

    def copy_rows(self, to, to_pitch, of, of_pitch, width, height):
        assert width <= min(to_pitch, of_pitch)
        for k in range(height):
            self.copy(to + k * to_pitch, of + k * of_pitch, width)

    def set_words(self, to, word, width, count):
        assert width in (1, 2, 4)
        self.at(to, width * count)
        ctypes.memmove(to, word.to_bytes(width, "little") * count, width * count)

    def wait_for(self, stream):
        self.waited_for = stream

    def where(self, address):
        k = bisect.bisect_right(self.starts, address) - 1
        inside = k >= 0 and address < self.starts[k] + len(self.memories[self.starts[k]])
        return self.device if inside else None

    # ---- code

    def link(self, ptx):
        self.linked += 1
        return ptx.encode()

    def load(self, image):
        assert not self.recording, "all is compiled before a graph is made"
        self.handles += 1
        self.modules[self.handles] = image.decode()
        return self.handles

    def unload(self, module):
        del self.modules[module]

    def function(self, module, name):
        text = self.modules[module]
        assert f"@{name}(" in text
        self.handles += 1
        self.functions[self.handles] = text, name
        return self.handles

    def blocks_at_once(self, function, block_dim):
        return self.processors * (2048 // max(block_dim, 32))

    def set_heap(self, nbytes):
        self.heap = nbytes

    # ---- launches

    def prepare(self, launches, jit):
        def start(launches):
            if self.failure is not None:
                return self.failure.code
            for one in launches:
                self.launch(one.function, one.grid, one.block_dim, one.params)
            return 0

        return start, launches

    def failed(self, code):
        raise self.failure

    def launch(self, function, grid, block_dim, params):
        self.launch_with(function, grid, block_dim, self.arguments(function, params))

    def arguments(self, function, params):
        """What the driver copies of a launch's arguments."""
        text, _ = self.functions[function]
        if text not in KERNELS:
            return [ctypes.c_int64.from_address(p).value for p in params]
        layout = KERNELS[text][1].layout
        if layout.by_value:
            return ctypes.string_at(params[0], 8 * layout.fixed)
        return ctypes.c_uint64.from_address(params[0]).value

    def launch_with(self, function, grid, block_dim, given):
        text, name = self.functions[function]
        if text not in KERNELS:
            self.pairs(text, *given)
            return
        kernel, code = KERNELS[text]
        block, size = given, 8 * code.layout.fixed
        if not code.layout.by_value:
            block = ctypes.string_at(self.at(given, size), size)
        if self.keeps_launches:
            self.launches.append(Launch(name, grid, block_dim, block))
        if self.run_kernels and name == code.entries[0].name:
            self.run(kernel, code, block)

    def pairs(self, text, to, of, count, width, to_step, of_step):
        """The device's own kernels: sums and exchanges of scalars that may lie in rows."""
        name = {"float": "f4", "double": "f8", "i8": "u1", "i16": "u2", "i32": "u4", "i64": "u8"}
        dtype = np.dtype(name[re.search(r"%va = load (\w+),", text)[1]])
        if "%row" not in text:
            width, to_step, of_step = count, 0, 0
        size, rows = dtype.itemsize, count // width
        assert rows * width == count
        both = []
        for address, step in ((to, to_step), (of, of_step)):
            nbytes = ((rows - 1) * step + width) * size
            memory = (ctypes.c_uint8 * nbytes).from_address(self.at(address, nbytes))
            both.append(np.ndarray((rows, width), dtype, memory, 0, (step * size, size)))
        a, b = both
        if "@add(" in text:
            a += b
        else:
            a[...], b[...] = b.copy(), a.copy()

    def run(self, kernel, code, block):
        """The whole kernel on the CPU, its temporaries put where CUDA code leaves them."""
        found = getattr(code, "on_cpu", None)
        if found is None:
            found = code.on_cpu = OnCpu(kernel)
        params = np.zeros(found.layout.size, np.int64)
        n = found.layout.fixed  # the block on the device goes on with what the CPU has no use for
        params[:n] = np.frombuffer(block, np.int64)[:n]
        work = int(params[POOL])
        params[POOL], params[THREADS] = found.pool.handle, found.pool.threads
        error = ctypes.c_int64.from_address(self.at(int(params[ERROR]), 8))
        before = error.value
        found.launch(params.ctypes.data)
        if error.value != before:  # the CPU counts checks of all variants of a task
            error.value = 1 + code.checks.index(found.checks[error.value - 1])
        for mem, slot in code.layout.temps.items():
            n = size_of(mem.dtype)
            made = params[found.layout.temps[mem] :][:n]
            ctypes.memmove(self.at(work + 8 * slot, 8 * n), made.ctypes.data, 8 * n)

    # ---- graphs

    def record(self, enqueue):
        recorder = Recorder(self)
        self.recording = True
        try:
            enqueue(recorder)
        finally:
            self.recording = False
        if self.no_graphs is not None:
            raise self.no_graphs
        self.handles += 1
        self.graphs[self.handles] = recorder.work
        return self.handles

    def run_graph(self, graph):
        if self.failure is not None:
            raise self.failure
        self.graph_launches += 1
        for one in self.graphs[graph]:
            one()

    def drop_graph(self, graph):
        del self.graphs[graph]

    def wait(self):
        self.waits += 1
        if self.failure is not None:
            raise self.failure


class Recorder:
    """What may be asked for while a graph is made: it is noted, with the arguments as they are now."""

    def __init__(self, driver):
        self.driver = driver
        self.work = []

    def copy(self, to, of, nbytes):
        self.note(self.driver.copy, to, of, nbytes)

    def copy_rows(self, *args):
        self.note(self.driver.copy_rows, *args)

    def set_words(self, *args):
        self.note(self.driver.set_words, *args)

    def prepare(self, launches, jit):
        def start(launches):
            for function, grid, block_dim, params in launches:
                given = self.driver.arguments(function, params)
                self.note(self.driver.launch_with, function, grid, block_dim, given)
            return 0

        return start, launches

    def note(self, what, *args):
        self.work.append(functools.partial(what, *args))


class OnCpu:
    """A kernel compiled by the CPU backend."""

    def __init__(self, kernel):
        session = context.session
        code = LOWER_FOR_CPU(kernel, session.jit, fast_math=False)
        self.layout: Layout = code.layout
        self.checks = code.checks
        self.pool = session.pool
        self.library = session.jit.load(session.jit.compile(code.text))
        self.launch = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self.library.address("launch"))
