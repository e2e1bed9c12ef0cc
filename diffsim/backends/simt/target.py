"""The interface of a kind of GPU to the SIMT backend: address spaces, registers, shuffles, functions.

A GPU backend is a `SimtTarget` and the way from LLVM text to the driver's machine code; all else
(threads, scratch, reductions of blocks, which lane runs where) is shared. `backends/cuda/target.py` is the
one for NVIDIA.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from diffsim.backends.llvm.conversions import saturate
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.backends.llvm.target import LibraryFunction, MathMap
from diffsim.ir.nodes import Alloca, Block, Value
from diffsim.ir.types import ScalarType

if TYPE_CHECKING:
    from diffsim.backends.simt.thread import Thread


class SimtTarget(ABC):
    """A kind of GPU as the SIMT backend sees it.

    Attributes:
        name: what the user calls it.
        functions: what it calls for the mathematical functions of the op table.
        intrinsics: the LLVM intrinsics that it has code for.
        warp_size: threads in a warp: a power of two, at most 32, as masks of threads are i32.
        parameter_bytes: the most that an entry point may take by value.
        global_space: number of the address space of device memory.
        shared_space: that of the memory that a block's threads share.
        device_scope: synchronization scope of atomics for all threads of the GPU.
        block_scope: that for the threads of a block.
        thread_index: function that returns a thread's number in its block (i32).
        block_index: function that returns a block's number (i32).
        block_count: function that returns the number of blocks (i32).
        heap_alloc: function that takes so many bytes (i64) from the device's heap; null if there is no room.
        heap_free: function that gives them back.
        vector_adds: whether neighbouring f32 are added to with one instruction (`add_vector`).
    """

    name: str
    functions: MathMap
    intrinsics: frozenset[str]
    warp_size: int
    parameter_bytes: int
    global_space: int
    shared_space: int
    device_scope: str
    block_scope: str
    thread_index: str
    block_index: str
    block_count: str
    heap_alloc: str
    heap_free: str
    vector_adds: bool

    @abstractmethod
    def function_head(self, name: str, parameter: str, block_dim: int, *, flush: bool) -> str:
        """Return the first line of an entry point, its `{` included.

        Args:
            name: of the function.
            parameter: type of what the parameter block's slots are; "": it takes the block's address.
            block_dim: threads in a block, exactly.
            flush: whether subnormal f32 are 0.
        """

    @abstractmethod
    def module_flags(self, first: int) -> list[str]:
        """Return the metadata of a module whose subnormal f32 are 0, its nodes numbered from `first`."""

    @abstractmethod
    def barrier(self, thread: Thread) -> None:
        """Emit a wait for all threads of the block."""

    @abstractmethod
    def shuffle_down(self, thread: Thread, word: str, distance: int, mask: str) -> str:
        """Emit a shuffle of an i32: the value of the thread `distance` places higher in the warp.

        All threads whose bit is set in `mask` take part, and no others.
        """

    @abstractmethod
    def add_vector(self, thread: Thread, at: str, values: Sequence[str]) -> None:
        """Emit one atomic addition of typed f32 to neighbours in memory, from an address on."""

    def call_function(
        self, module: Module, function: LibraryFunction, t: ScalarType, args: str
    ) -> str:
        """Return the call of a library function."""
        symbol = f"@{function.symbol(t)}"
        # All operands are scalars of type t, so commas count them.
        types = ", ".join([t.llvm] * (args.count(",") + 1))
        module.declare(symbol, f"declare {t.llvm} {symbol}({types})")
        return f"call {module.flags} {t.llvm} {symbol}({args})"

    # ---- what the shared lowering asks; all GPUs answer alike

    def to_integer(self, body: FunctionLowering, x: Value, to: ScalarType) -> str:
        return saturate(body, x, to)

    def in_parts(self, body: FunctionLowering, block: Block) -> bool:
        """Blocks are never outlined: a thread would keep its values in memory for the calls."""
        return False

    def scratch(self, body: FunctionLowering, s: Alloca) -> str:
        return cast("Thread", body).allocate_scratch(s)

    def release(self, body: FunctionLowering, ticket: str) -> None:
        cast("Thread", body).free_scratch(ticket)
