"""How the elements of a memory lie."""

from __future__ import annotations

from diffsim.ir.nodes import Mem
from diffsim.ir.types import size_of


def strides_of(mem: Mem) -> tuple[int, ...]:
    """Distance in scalars between neighbours along each axis; the shape must be known."""
    if mem.strides is not None:
        return mem.strides
    assert mem.shape is not None
    strides, n = [], size_of(mem.dtype)
    for d in reversed(mem.shape):
        strides.append(n)
        n *= d
    return tuple(reversed(strides))
