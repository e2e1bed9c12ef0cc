"""The parameter block of a kernel on a GPU, and the work area in device memory beside it."""

from __future__ import annotations

from diffsim.backends.llvm.parameter_block import POOL, THREADS, ParameterBlock
from diffsim.ir.nodes import Alloca, Kernel
from diffsim.ir.traversal import statements

# GPUs have no thread pool: its slots on the CPU hold addresses of device memory.
WORK = POOL
"""Slot of the address of the work area."""
ARENA = THREADS
"""Slot of the address of the memory that threads save values of loops in."""
ALIGNMENT = 16
"""The alignment of the addresses of fields [bytes]; those of arrays need not."""


class SimtParameterBlock(ParameterBlock):
    """The parameter block of `fixed` slots, and the work area of `work` words of 8 bytes.

    Slot WORK holds the address of the work area, slot ERROR that of the error buffer, and slot ARENA that
    of the arena if there is one, all in device memory. `temps`, `bounds`, `lanes`, `partials` and `blocks`
    are words of the work area.

    Attributes:
        lanes: word of the number of lanes of a parallel task whose bounds an earlier entry computes.
        blocks: word of the number of blocks that left partial results; `partials`: the first of them.
        arena: slot of the address of the arena.
        arena_bytes: slot of the arena's size [bytes]; None: the kernel needs no arena.
        work: number of words.
        by_value: whether the block is the entry points' parameter. Otherwise it is too large for that,
            and the parameter is its address in device memory.
    """

    def __init__(self, kernel: Kernel, parameter_bytes: int) -> None:
        super().__init__(kernel, apart=True)
        # Pointers that the CPU's launch stores in these slots: here partial results are words of
        # the work area, and copies lie in shared memory.
        self.partials.clear()
        self.copies.clear()
        self.lanes: dict[int, int] = {}
        self.blocks: dict[int, int] = {}
        self.arena = ARENA
        self.arena_bytes: int | None = None
        if any(isinstance(s, Alloca) for t in kernel.tasks for s in statements(t.body)):
            self.arena_bytes = self.fixed
            self.fixed += 1
        self.by_value = 8 * self.fixed <= parameter_bytes
        self.work = self.size

    def reserve(self, words: int) -> int:
        """Reserve words of the work area; return the first."""
        first = self.work
        self.work += words
        return first
