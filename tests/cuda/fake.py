"""A GPU that is not there: the driver's interface on memory of the host.

Memory is NumPy arrays, and every address that is handed in is checked to lie in one of them. Launches are
noted, and done by the CPU backend: the block of a launch is read as the layout of the CUDA code says, and
handed to the same kernel compiled for the CPU. So everything around the GPU's own code is really run.

What is asked of the device is done late: in order, but only when somebody waits for it, or a little of it
at random. Memory of the host that is handed in is read at once where the driver promises that, and else
when the copy is done; memory that a copy is going to fill holds junk until then.
"""

import bisect
import contextlib
import ctypes
import functools
import gc
import random
import re
import threading
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from diffsim.backends.cpu import codegen as cpu
from diffsim.backends.cuda import codegen as cuda
from diffsim.backends.cuda.libcuda import DriverError, OutOfMemory
from diffsim.backends.llvm.parameter_block import (
    ERROR,
    FIRST,
    FIRST_OF_CPU,
    POOL,
    RUN,
    THREADS,
    ParameterBlock,
)
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Let
from diffsim.ir.traversal import blocks
from diffsim.ir.types import size_of
from diffsim.runtime import session as context
from diffsim.runtime.cuda import backend, device, staging

KERNELS = {}
"""LLVM text of CUDA code -> (kernel, SimtCode), noted when it is made."""


DEFAULT_ARCH = context.default_arch
LOWER_FOR_CPU = cpu.lower  # tests that count compilations see CUDA's
LOWER_FOR_CUDA = cuda.lower


def install(replace=setattr, *, by_default=False, driver=None, options=dict):
    """Have diffsim use a fake GPU, let LLVM text pass for PTX, and note what `cuda.lower` makes.

    Args:
        replace: sets an attribute of a module.
        by_default: whether programs that do not say otherwise run on it.
        driver: its class, if not `FakeDriver`.
        options: makes more options of `cuda.lower`.
    """
    make = driver or FakeDriver
    devices = {}

    def opened(number, jit, pool):
        if number > 0:
            raise DriverError(f"there is no GPU number {number}: there is GPU 0 only")
        if number not in devices:
            few = not by_default  # tests of the fake GPU itself
            driver = make(number, keeps_launches=few, late_launches=few)
            devices[number] = device.Device(driver, jit(), pool)
        return devices[number]

    def noting(kernel, **given):
        code = LOWER_FOR_CUDA(kernel, **{**given, **options()})
        KERNELS[code.text] = kernel, code
        return code

    replace(cuda, "lower", noting)
    replace(device.ptx, "to_ptx", lambda text, sm: text)
    replace(backend, "open_device", opened)
    if by_default:  # all of the tests copy by way of slots
        replace(staging, "AT_ONCE", 64)
        replace(staging, "SLOT_BYTES", 4096)
        replace(context, "default_arch", lambda: context.cuda)


def live(ds):
    """Bytes of fields and buffers: what is allocated and not kept to be used again."""
    gc.collect()
    device = context.session.device
    return ds.driver.used - device._spare_bytes


class Foreign:
    """An array of another library on the fake GPU."""

    def __init__(self, memory, start=0, shape=None, strides=None, dtype=np.float32, **more):
        self.memory = memory
        dtype = np.dtype(dtype)
        shape = memory.shape if shape is None else shape
        self.more = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.address + start, False),
            "version": 3,
            "strides": strides,
            **more,
        }

    @property
    def __cuda_array_interface__(self):
        return self.more


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
    memory: int = 1 << 31  # a part of it is filled with junk for what loops save
    version: int = 13000
    stream: int = 7
    interface: str = "a fake"
    launches: list = field(default_factory=list)
    waits: int = 0
    linked: int = 0
    heap: int | None = None
    keeps_launches: bool = True
    late_launches: bool = True
    run_kernels: bool = True
    failure: DriverError | None = None
    no_graphs: DriverError | None = None
    graph_launches: int = 0
    most_locked: int = 1 << 30

    def __post_init__(self):
        self.memories = {}
        self.of_other_contexts = set()
        self.starts = []
        self.used = self.peak = 0
        self.modules = {}
        self.functions = {}
        self.graphs = {}
        self.recording = False
        self.handles = 100
        self.locked = {}
        self.events = {}
        self.times = {}
        self.turn = threading.RLock()
        self.queue = deque()
        self.asked = self.done = 0
        self.working = False
        self.random = random.Random(0)

    def current(self):
        return contextlib.nullcontext()

    # ---- the stream

    def later(self, what, *args):
        """The device will do this; it has done some of what was asked for before."""
        with self.turn:
            self.queue.append(functools.partial(what, *args))
            self.asked += 1
            if self.random.random() < 0.1:
                self.work(self.done + self.random.randrange(4))

    def work(self, until=None):
        """Do what was asked for, up to a number of tasks since the beginning."""
        with self.turn:
            if self.working:  # this is a finalizer that runs inside a task
                return
            self.working = True
            try:
                while self.queue and (until is None or self.done < until):
                    self.done += 1
                    self.queue.popleft()()
            finally:
                self.working = False

    def event(self, *, timed=False):
        self.handles += 1
        self.events[self.handles] = 0
        return self.handles

    def mark(self, event):
        self.look()
        assert event in self.events
        self.events[event] = self.asked
        self.times[event] = self.asked

    def seconds_between(self, start, end):
        assert self.done >= self.events[end] >= self.events[start], "events that are not done"
        return 1e-6 * (self.times[end] - self.times[start])  # a microsecond for each piece of work

    def is_done(self, event):
        self.look()
        if self.random.random() < 0.3:
            self.work(self.done + self.random.randrange(4))
        return self.done >= self.events[event]

    def wait_for_event(self, event):
        self.look()
        self.work(self.events[event])

    def wait(self):
        self.waits += 1
        self.look()
        self.work()

    def look(self):
        if self.failure is not None:
            raise self.failure

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
        memory = self.memories.pop(address)
        self.used -= len(memory)
        self.starts.remove(address)
        self.later(len, memory)  # it stays until what was asked for before is done

    def free_memory(self):
        return self.memory - self.used

    def at(self, address, nbytes):
        """The address, if the bytes there belong to one allocation."""
        starts = self.starts.copy()  # other threads allocate and free
        k = bisect.bisect_right(starts, address) - 1
        assert k >= 0, f"{address:#x} is not on the device"
        start = starts[k]
        assert address + nbytes <= start + len(self.memories[start]), "beyond an allocation's end"
        return address

    def page_locked(self, nbytes):
        if sum(map(len, self.locked.values())) + nbytes > self.most_locked:
            raise OutOfMemory("cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY, out of memory", 2)
        memory = np.full(nbytes, 0xCD, np.uint8)
        self.locked[memory.ctypes.data] = memory
        return memory.ctypes.data

    def is_locked(self, address, nbytes):
        memories = list(self.locked.items())
        return any(at <= address and address + nbytes <= at + len(m) for at, m in memories)

    def locked_at(self, address, nbytes):
        """The address, if the bytes there are page-locked."""
        assert self.is_locked(address, nbytes), "beyond the end of page-locked memory"
        return address

    def copy_in(self, to, host, nbytes):
        self.look()
        if isinstance(host, bytes) or not self.is_locked(host, nbytes):
            host = ctypes.string_at(host, nbytes)
        self.later(ctypes.memmove, self.at(to, nbytes), host, nbytes)

    def send(self, to, locked, nbytes):
        self.look()
        self.later(ctypes.memmove, self.at(to, nbytes), self.locked_at(locked, nbytes), nbytes)

    def copy_out(self, host, of, nbytes):
        self.wait()
        ctypes.memmove(host, self.at(of, nbytes), nbytes)

    def fetch(self, locked, of, nbytes):
        self.look()
        ctypes.memset(self.locked_at(locked, nbytes), 0xEE, nbytes)
        self.later(ctypes.memmove, locked, self.at(of, nbytes), nbytes)

    def copy(self, to, of, nbytes):
        self.later(ctypes.memmove, self.at(to, nbytes), self.at(of, nbytes), nbytes)

    def copy_rows(self, to, to_pitch, of, of_pitch, width, height):
        assert width <= min(to_pitch, of_pitch)
        for k in range(height):
            self.copy(to + k * to_pitch, of + k * of_pitch, width)

    def set_words(self, to, word, width, count):
        assert width in (1, 2, 4)
        self.at(to, width * count)
        words = word.to_bytes(width, "little") * count
        self.later(ctypes.memmove, to, words, width * count)

    def wait_for(self, stream):
        self.waited_for = stream

    def where(self, address):
        k = bisect.bisect_right(self.starts, address) - 1
        inside = k >= 0 and address < self.starts[k] + len(self.memories[self.starts[k]])
        return self.device if inside else None

    def is_reached(self, address):
        return address not in self.of_other_contexts

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
            self.work()
            block = ctypes.string_at(self.at(given, size), size)
        if self.keeps_launches:
            self.launches.append(Launch(name, grid, block_dim, block))
        if self.run_kernels:
            self.start_kernel(name, grid, block_dim, kernel, code, block)
            if not self.late_launches:
                self.work()

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
            self.later(np.add, a, b, a)
        else:
            self.later(exchange, a, b)

    def start_kernel(self, name, grid, block_dim, kernel, code, block):
        """Run one entry point: here all of them with the first."""
        if name == code.entries[0].name:
            self.run(kernel, code, block)

    def run(self, kernel, code, block):
        """The whole kernel on the CPU, its temporaries put where CUDA code leaves them."""
        found = getattr(code, "on_cpu", None)
        if found is None:
            found = code.on_cpu = OnCpu(kernel)
        params = np.zeros(found.layout.size, np.int64)
        n = found.layout.fixed  # the block on the device goes on with what the CPU has no use for
        handed = np.frombuffer(block, np.int64)
        params[:FIRST] = handed[:FIRST]
        params[FIRST_OF_CPU:n] = handed[FIRST : n - FIRST_OF_CPU + FIRST]
        params[RUN] = found.address
        work = int(params[POOL])
        params[POOL], params[THREADS] = found.pool.handle, found.pool.threads
        error = ctypes.c_int64.from_address(self.at(int(params[ERROR]), 8))
        temps = []
        for mem, slot in code.layout.temps.items():
            nbytes = 8 * size_of(mem.dtype)
            temps.append((self.at(work + 8 * slot, nbytes), 8 * found.layout.temps[mem], nbytes))

        def launch():
            before = error.value
            found.launch(params.ctypes.data)
            if error.value != before:  # the CPU counts checks of all variants of a task
                error.value = 1 + code.checks.index(found.checks[error.value - 1])
            for to, at, nbytes in temps:
                ctypes.memmove(to, params.ctypes.data + at, nbytes)

        self.later(launch)

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


def exchange(a, b):
    a[...], b[...] = b.copy(), a.copy()


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


def write_out(block):
    """What a GPU has an instruction for may be a formula on the CPU: in place, as all else stays the same."""
    stmts = []
    for s in block.stmts:
        for inner in blocks(s):
            write_out(inner)
        if isinstance(s, Let) and s.op.formula(()):
            b = Builder(s.span)
            b.functions = ()
            with b, b.block() as made:
                b.op(s.op, s.args)
            *first, last = made
            stmts += [*first, Let(s.out, last.op, last.args, s.span)]
        else:
            stmts.append(s)
    block.stmts = stmts


class OnCpu:
    """A kernel compiled by the CPU backend."""

    def __init__(self, kernel):
        session = context.session
        for task in kernel.tasks:
            write_out(task.body)
        code = LOWER_FOR_CPU(kernel, session.jit, fast_math=False)
        self.layout: ParameterBlock = code.layout
        self.checks = code.checks
        self.pool = session.pool
        self.library = session.jit.load(session.jit.compile(code.text))
        self.address = self.library.address("launch")
        self.launch = session.launcher
