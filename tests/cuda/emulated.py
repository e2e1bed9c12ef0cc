"""A GPU whose code is run: the fake driver, each launch done on the CPU by `tests/backends/emulator.py`.

Grids, blocks of parameters, the order of launches and all memory are what the host made. Blocks are smaller
than a GPU's, so that few lanes fill several; what the threads do to memory is watched.
"""

import itertools
from dataclasses import dataclass, field
from random import Random

import numpy as np

from diffsim.backends.simt import distribution, parameter_block
from tests.backends.emulator import Machine, Wrong, words_of_all
from tests.cuda import fake


@dataclass
class How:
    """How the GPU's code is made and run.

    Attributes:
        block_dim: threads in a block.
        most_blocks: of a launch.
        at_once: blocks that the GPU says it can run at the same time.
        watch: whether all accesses to memory are looked at.
        races: whether two threads may not write and touch the same memory; users' kernels may.
        small_tiles: whether short rows have tiles, of half the height.
        random: the order of threads and blocks.
    """

    block_dim: int = 32
    most_blocks: int = 6
    at_once: int = 3
    watch: bool = True
    races: bool = False
    small_tiles: bool = False
    random: Random = field(default_factory=lambda: Random(0))


HOW = How()
MACHINES = {}
"""LLVM text -> its machine."""
LONG_ROW, LINE = distribution._LONG_ROW, distribution._LINE
tile_height = distribution.tile_height
LAUNCHES = [0]


def choose(**options):
    """Have what is compiled from now on be made and run in another way (see `How`)."""
    for name, value in options.items():
        assert hasattr(HOW, name), name
        setattr(HOW, name, value)
    distribution._LONG_ROW, distribution._LINE = (9, 4) if HOW.small_tiles else (LONG_ROW, LINE)
    distribution.tile_height = _half_height if HOW.small_tiles else tile_height
    MACHINES.clear()
    fake.KERNELS.clear()


def _half_height(task):
    return tile_height(task) // 2


def install(replace=setattr, *, by_default=False):
    """Have diffsim use an emulated GPU."""
    fake.install(replace, by_default=by_default, driver=EmulatedDriver, options=_options)


def _options():
    return {"block_dim": HOW.block_dim}


@dataclass
class EmulatedDriver(fake.FakeDriver):
    """A GPU of three gigabytes."""

    name: str = "an emulated GPU"
    memory: int = 3 << 30

    def blocks_at_once(self, function, block_dim):
        return HOW.at_once

    def start_kernel(self, name, grid, block_dim, kernel, code, block):
        (entry,) = (e for e in code.entries if e.name == name)
        assert block_dim == entry.block_dim
        assert entry.blocks is None or grid <= entry.blocks
        machine = MACHINES.get(code.text)
        if machine is None:
            machine = MACHINES[code.text] = Machine(code.text, watch=HOW.watch, random=HOW.random)
        LAUNCHES[0] += 1
        params = np.frombuffer(block, np.int64).copy()
        handed = params.copy()
        self.pointers_are_right(code, params)
        starts = np.array(self.starts)
        ends = starts + [len(self.memories[start]) for start in self.starts]
        heap = machine.threads.heap
        k = int(np.searchsorted(starts, heap.ctypes.data))
        starts = np.insert(starts, k, heap.ctypes.data)
        ends = np.insert(ends, k, heap.ctypes.data + len(heap))

        def launch():
            fibers = machine.threads
            with fibers.lock:
                fibers.heap_held[0], fibers.heap_left[0] = 0, min(self.heap or 0, 1 << 24)
                try:
                    machine.run(
                        name,
                        params.ctypes.data,
                        min(grid, HOW.most_blocks) if entry.kind == "parallel" else grid,
                        block_dim,
                        inside=(starts, ends) if HOW.watch else None,
                        same=words_of_all(code, params),
                        races=HOW.races,
                    )
                except Wrong as e:
                    raise Wrong(f"{kernel.name}, {name}: {e}") from None
                held = int(fibers.heap_held[0])
                if held:
                    raise Wrong(f"{kernel.name}: {held} bytes of the heap are not freed")
            assert (params == handed).all()

        self.later(launch)

    def pointers_are_right(self, code, params):
        """What the code is told of memories: fields are aligned, and no two of them overlap."""
        fields = []
        for mem, slot in code.layout.pointers.items():
            at = int(params[slot])
            if mem.kind != "field" or mem.handle() is None:  # another kernel's, of the same text
                continue
            if at % parameter_block.ALIGNMENT:
                raise Wrong(f"{mem.name} is at {at:#x}")
            fields.append((at, at + mem.handle().storage.layout.nbytes, mem))
        fields.sort(key=lambda f: f[:2])
        for (_, end, one), (start, _, other) in itertools.pairwise(fields):
            if start < end:
                raise Wrong(f"{one.name} and {other.name} share memory")
