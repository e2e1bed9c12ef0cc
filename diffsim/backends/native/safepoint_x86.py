"""A call of `@ds_look` that keeps all registers but rax, on x86-64.

The calling convention lets a function overwrite all vector registers. A loop with a call that is almost
never made would have to spill its values, and LLVM's register allocator pays for that inside of the loop: 5
to 15 % in short loops whose values are saved for a gradient. So generated code makes this call in inline
assembly that clobbers rax alone, and this function saves everything else.

XSAVE would save it in one instruction, but takes microseconds where vectors of 512 bits are in use.
"""

from __future__ import annotations

import functools
import platform
import sys

import llvmlite.binding as llvm

SYMBOL = "ds_look_keeping_registers"
_GENERAL = "rcx rdx rsi rdi r8 r9 r10 r11".split()


@functools.cache
def is_possible() -> bool:
    """Return whether this machine can run the function: x86-64 Linux (other systems mangle names)."""
    return platform.machine().lower() in ("x86_64", "amd64") and sys.platform == "linux"


def source() -> str:
    """Return LLVM text of the function, for a module that defines `@ds_look`."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        move, width, count = "vmovups %zmm", 64, 32
    elif features.get("avx"):
        move, width, count = "vmovups %ymm", 32, 16
    else:
        move, width, count = "movups %xmm", 16, 16
    mnemonic, _, register = move.partition(" ")
    vectors = [(f"{register}{k}", f"{width * k}(%rsp)") for k in range(count)]
    masks = [(f"%k{k}", f"{width * count + 8 * k}(%rsp)") for k in range(8)] if count == 32 else []
    mask = "kmovq" if features.get("avx512bw") else "kmovw"
    # rsp is 8 bytes below a multiple of 16 where the caller's own stack is aligned, which nobody promises.
    lines = [
        "pushq %rbp",
        "movq %rsp, %rbp",
        *(f"pushq %{r}" for r in _GENERAL),
        f"subq $$({width * count + 128}), %rsp",
        # Aligned to a cache line, so that no store of a vector crosses one. rbp keeps the old
        # stack.
        "andq $$-64, %rsp",
        *(f"{mnemonic} {r}, {place}" for r, place in vectors),
        *(f"{mask} {r}, {place}" for r, place in masks),
        # Before a call of code that may use SSE: mixing it with dirty upper halves is slow on many
        # CPUs.
        *(["vzeroupper"] if width > 16 else []),
        "callq ds_look",
        *(f"{mask} {place}, {r}" for r, place in masks),
        *(f"{mnemonic} {place}, {r}" for r, place in vectors),
        f"leaq {-8 * len(_GENERAL)}(%rbp), %rsp",
        *(f"popq %{r}" for r in reversed(_GENERAL)),
        "popq %rbp",
        "retq",
    ]
    body = "\\0A".join(lines)
    return (
        f"define void @{SYMBOL}() naked noinline nounwind {{\n"
        f'  call void asm sideeffect "{body}", ""()\n'
        "  unreachable\n}\n"
    )


def call(arguments: str, effects: str) -> str:
    """Return LLVM text of the call, for a function without a red zone.

    Inline assembly that calls pushes a return address, which would overwrite the 128 bytes below rsp that a
    leaf function may use (System V ABI).
    """
    return (
        'call i64 asm sideeffect "callq *$1", "={ax},r,{di},{si},~{dirflag},~{fpsr},~{flags}"'
        f"(ptr @{SYMBOL}, {arguments}) {effects}"
    )
