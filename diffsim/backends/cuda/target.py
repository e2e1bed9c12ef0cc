"""NVIDIA GPUs as a SIMT target: intrinsics and attributes of NVVM, libdevice, PTX that LLVM lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diffsim.backends.llvm.target import LibraryFunction, MathMap
from diffsim.backends.simt.target import SimtTarget

if TYPE_CHECKING:
    from diffsim.backends.simt.thread import Thread

FUNCTIONS: MathMap = {
    name: LibraryFunction(f"__nv_{name}")
    for name in (
        "pow exp exp2 log log2 sin cos tan asin acos atan atan2 sinh cosh tanh erf erfc lgamma fmod rsqrt"
    ).split()
}
"""libdevice's function for each mathematical function of the op table."""

_SM_OF_VECTOR_ADDS = 90


class CudaTarget(SimtTarget):
    """NVIDIA GPUs from a compute capability `sm` on, ten times the version; 0: any."""

    name = "cuda"
    functions = FUNCTIONS
    # LLVM has NVIDIA code for these and few others; most others would end the process (`ptx.py`).
    intrinsics = frozenset(
        "sqrt fabs floor ceil trunc rint round roundeven nearbyint minnum maxnum minimum maximum "
        "copysign fma smin smax umin umax".split()
    )
    warp_size = 32
    parameter_bytes = 4096  # what every driver takes
    global_space = 1
    shared_space = 3
    device_scope = "device"
    block_scope = "block"
    thread_index = "@llvm.nvvm.read.ptx.sreg.tid.x"
    block_index = "@llvm.nvvm.read.ptx.sreg.ctaid.x"
    block_count = "@llvm.nvvm.read.ptx.sreg.nctaid.x"
    heap_alloc = "@malloc"
    heap_free = "@free"

    def __init__(self, sm: int) -> None:
        self.vector_adds = sm >= _SM_OF_VECTOR_ADDS

    def function_head(self, name: str, parameter: str, block_dim: int, *, flush: bool) -> str:
        # `byval` makes the block the entry point's parameter, which lies in constant memory.
        how = f"byval({parameter})" if parameter else "noalias"
        attributes = f'nounwind "nvvm.maxntid"="{block_dim}"'
        if flush:
            attributes += ' "denormal-fp-math-f32"="preserve-sign,preserve-sign"'
        return f"define ptx_kernel void @{name}(ptr {how} align 8 %params) {attributes} {{"

    def module_flags(self, first: int) -> list[str]:
        # libdevice's functions ask for this flag.
        return [
            f"!llvm.module.flags = !{{!{first}}}",
            f'!{first} = !{{i32 4, !"nvvm-reflect-ftz", i32 1}}',
        ]

    def barrier(self, thread: Thread) -> None:
        symbol = "@llvm.nvvm.barrier.cta.sync.aligned.all"
        thread.module.declare(symbol, f"declare void {symbol}(i32)")
        thread.emit(f"call void {symbol}(i32 0)")

    def shuffle_down(self, thread: Thread, word: str, distance: int, mask: str) -> str:
        symbol = "@llvm.nvvm.shfl.sync.down.i32"
        thread.module.declare(symbol, f"declare i32 {symbol}(i32, i32, i32, i32)")
        # The operand c of shfl: the highest lane of the segment, here the whole warp (PTX ISA,
        # shfl.sync).
        last = self.warp_size - 1
        return thread.assign(
            f"call i32 {symbol}(i32 {mask}, i32 {word}, i32 {distance}, i32 {last})"
        )

    def add_vector(self, thread: Thread, at: str, values: Sequence[str]) -> None:
        # Inline PTX: LLVM has no vector form of atomicrmw fadd for this target. `red` returns
        # nothing and so need not wait for the old value. The memory clobber keeps loads and stores
        # from moving across it.
        n = len(values)
        places = ", ".join(f"${k}" for k in range(1, n + 1))
        text = f"red.relaxed.gpu.global.add.v{n}.f32 [$0], {{{places}}};"
        kinds = ",".join(["l", *"f" * n])
        operands = ", ".join(values)
        thread.emit(
            f'call void asm sideeffect "{text}", "{kinds},~{{memory}}"(ptr {at}, {operands})'
        )
