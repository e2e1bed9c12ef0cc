"""What the CPU answers to the lowering that it shares with GPUs: functions, and memory for saved values."""

from __future__ import annotations

from diffsim.backends.cpu import outline
from diffsim.backends.llvm import diagnostics
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.backends.llvm.parameter_block import POOL
from diffsim.backends.native.jit import VECTOR_MATH, Jit
from diffsim.ir.nodes import Alloca, Block
from diffsim.ir.op import Libdevice, Libm
from diffsim.ir.types import ScalarType, size_of

ARENA = {
    "@ds_arena_alloc": "declare noalias ptr @ds_arena_alloc(ptr, i64, i64)",
    "@ds_arena_mark": "declare i64 @ds_arena_mark(ptr, i64)",
    "@ds_arena_release": "declare void @ds_arena_release(ptr, i64, i64)",
}


class CpuTarget:
    """The CPU's answers to what the shared lowering asks."""

    column = "llvm"
    name = "cpu"

    def __init__(self, jit: Jit) -> None:
        self.jit = jit

    def math(self, module: Module, how: Libm | Libdevice, t: ScalarType, args: str) -> str:
        name = how.name + ("f" if t.bits == 32 else "")
        module.math[name] = None
        if module.exact or not self.jit.vector_forms(name):
            module.scalar_calls += 1
        return f"call {module.flags} {t.llvm} @{name}({args})"

    def vector_math(
        self, module: Module, how: Libm | Libdevice, t: ScalarType, lanes: int
    ) -> tuple[str, int]:
        """The widest form of a function for at most `lanes` lanes, as (symbol, lanes); "": none.

        Nor is there one where other code must get the same bits: it may run lanes alone.
        """
        name = how.name + ("f" if t.bits == 32 else "")
        module.math[name] = None
        if module.exact or how.name not in VECTOR_MATH:
            return "", 1
        forms = [("", 1), *(f for f in self.jit.vector_forms(name) if f[1] <= lanes)]
        return forms[-1]

    def in_parts(self, body: FunctionLowering, block: Block) -> bool:
        return outline.lower(body, block)

    def scratch(self, body: FunctionLowering, s: Alloca) -> str:
        for name, text in ARENA.items():
            body.module.declare(name, text)
        count = body.scratch_count(s)
        width = s.mem.dtype.scalar.bytes * size_of(s.mem.dtype)
        bytes_ = body.let(f"mul i64 {count}, {width}")
        pool = body.slot_load(POOL, "ptr")
        mark = body.let(f"call i64 @ds_arena_mark(ptr {pool}, i64 %worker)")
        pointer = body.let(f"call ptr @ds_arena_alloc(ptr {pool}, i64 %worker, i64 {bytes_})")
        body.pointers[s.mem] = pointer
        missing = body.let(f"icmp eq ptr {pointer}, null")
        diagnostics.check(body, s, body.let(f"xor i1 {missing}, true"), [bytes_], leave=True)
        return f"{pool} {mark}"

    def release(self, body: FunctionLowering, ticket: str) -> None:
        pool, mark = ticket.split()
        body.put(f"call void @ds_arena_release(ptr {pool}, i64 %worker, i64 {mark})")
