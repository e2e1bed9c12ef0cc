"""The CUDA backend: `backends/simt` with NVIDIA's target, compiled to PTX.

Read `backends/simt/launches.py` first. Arithmetic is IEEE's, divisions and square roots too; a multiplication
and an addition may become one instruction. With `fast_math` f32 divisions and roots are approximations and
subnormal f32 numbers are 0. Nothing here needs a GPU or a driver.
"""

from __future__ import annotations

from diffsim.backends.cuda.ptx import to_ptx
from diffsim.backends.cuda.target import CudaTarget
from diffsim.backends.simt.entry_point import BLOCK_DIM, EntryPoint
from diffsim.backends.simt.launches import SimtCode, lower_simt
from diffsim.backends.simt.parameter_block import ALIGNMENT, ARENA, WORK
from diffsim.ir.nodes import Kernel

__all__ = [
    "ALIGNMENT",
    "ARENA",
    "BLOCK_DIM",
    "WORK",
    "EntryPoint",
    "SimtCode",
    "emit_ptx",
    "lower",
]


def emit_ptx(
    kernel: Kernel,
    sm: int = 80,
    *,
    fast_math: bool = False,
    deterministic: bool = False,
    block_dim: int = BLOCK_DIM,
) -> str:
    """Compile a scalar kernel to PTX for one GPU generation.

    Args:
        kernel: on scalars, its formulas written out but for `pipeline.GPU_FUNCTIONS`.
        sm: compute capability, ten times the version: 80 for 8.0.
        fast_math: let LLVM approximate and reorder.
        deterministic: give equal bits in every run.
        block_dim: threads in a block of the tasks that do not say.

    Raises:
        BackendError: something in the kernel has no NVIDIA code.
        PtxError: a part of the CUDA toolkit is missing.
    """
    code = lower(
        kernel, sm=sm, fast_math=fast_math, deterministic=deterministic, block_dim=block_dim
    )
    return to_ptx(code.text, sm)


def lower(
    kernel: Kernel,
    *,
    fast_math: bool,
    deterministic: bool = False,
    sm: int = 0,
    block_dim: int = BLOCK_DIM,
) -> SimtCode:
    """Lower a scalar kernel to an LLVM module for NVIDIA GPUs (see `lower_simt`).

    `sm` is the least compute capability that the code is for, ten times the version; 0: any. From 90 on,
    additions to f32 vectors are made with one instruction for two or four components.
    """
    return lower_simt(
        kernel,
        CudaTarget(sm),
        fast_math=fast_math,
        deterministic=deterministic,
        block_dim=block_dim,
    )
