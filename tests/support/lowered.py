"""Kernels as the CPU's code generator gets them."""

from diffsim.ir.nodes import Kernel
from diffsim.runtime import compiler
from diffsim.runtime.backend import open_backend


def lower(kernel: Kernel) -> Kernel:
    """A prepared kernel after the CPU's passes, whatever backend is in use."""
    return compiler.lower(kernel, open_backend("cpu", 0))
