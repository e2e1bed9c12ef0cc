"""The CPU as a target of the lowering that it shares with GPUs: functions, and memory for saved values."""

from __future__ import annotations

from diffsim.backends.cpu import outline
from diffsim.backends.llvm import diagnostics
from diffsim.backends.llvm.conversions import saturate_by_tests
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.backends.llvm.parameter_block import POOL
from diffsim.backends.llvm.target import LibraryFunction
from diffsim.backends.native.jit import Jit
from diffsim.backends.simd import libm, registers
from diffsim.backends.simd.simd_values import SimdValues
from diffsim.ir.nodes import Alloca, Block, Value
from diffsim.ir.types import ScalarType, size_of

ARENA = {
    "@ds_arena_alloc": "declare noalias ptr @ds_arena_alloc(ptr, i64, i64)",
    "@ds_arena_mark": "declare i64 @ds_arena_mark(ptr, i64)",
    "@ds_arena_release": "declare void @ds_arena_release(ptr, i64, i64)",
}


class CpuTarget:
    """The CPU as the shared lowering sees it.

    Scratch comes from the arena of the worker that runs the chunk (`%worker`), so arenas need no locks; it is
    released in the reverse order of its allocation, as blocks nest.

    Args:
        jit: the compiler.
        threads: how many the code will run on, as far as is known (0: unknown). It is right on any number.
    """

    name = "cpu"
    functions = libm.FUNCTIONS

    def __init__(self, jit: Jit, threads: int = 0) -> None:
        self.jit = jit
        self.threads = threads

    def call_function(
        self, module: Module, function: LibraryFunction, t: ScalarType, args: str
    ) -> str:
        return libm.call(self.jit, module, function, t, args)

    def to_integer(self, body: FunctionLowering, x: Value, to: ScalarType) -> str:
        own = ""
        if isinstance(body, SimdValues) and body.emits_vectors:
            own = registers.saturate(body, x, to)
        return own or saturate_by_tests(body, x, to)

    def in_parts(self, body: FunctionLowering, block: Block) -> bool:
        return outline.lower(body, block)

    def scratch(self, body: FunctionLowering, s: Alloca) -> str:
        for name, text in ARENA.items():
            body.module.declare(name, text)
        count = body.scratch_count(s)
        width = s.mem.dtype.scalar.bytes * size_of(s.mem.dtype)
        bytes_ = body.assign(f"mul i64 {count}, {width}")
        pool = body.load_slot(POOL, "ptr")
        # The mark is taken before the allocation; releasing to it also frees what nested code has
        # left.
        mark = body.assign(f"call i64 @ds_arena_mark(ptr {pool}, i64 %worker)")
        pointer = body.assign(f"call ptr @ds_arena_alloc(ptr {pool}, i64 %worker, i64 {bytes_})")
        body.pointers[s.mem] = pointer
        # A null pointer is reported as a failed check with the source line, and ends the function:
        # code after it would write through the pointer.
        missing = body.assign(f"icmp eq ptr {pointer}, null")
        diagnostics.lower_check(
            body, s, body.assign(f"xor i1 {missing}, true"), [bytes_], exits=True
        )
        return f"{pool} {mark}"

    def release(self, body: FunctionLowering, ticket: str) -> None:
        pool, mark = ticket.split()
        body.emit(f"call void @ds_arena_release(ptr {pool}, i64 %worker, i64 {mark})")
