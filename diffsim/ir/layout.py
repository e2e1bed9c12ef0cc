"""How the elements of a memory lie: the one place where strides are computed."""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.nodes import Mem
from diffsim.ir.types import size_of


def packed_strides(
    shape: Sequence[int], step: int = 1, order: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the distance between neighbours along each axis of an array without gaps.

    Args:
        shape: the extent of each axis.
        step: the distance between neighbours along the fastest axis, in any unit.
        order: the axes from slowest to fastest; None: as they are numbered (C order).
    """
    strides = [step] * len(shape)
    # From the fastest axis to the slowest; each stride is the product of the faster extents.
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


_PAGE = (
    4096  # [B], as far as a processor compares addresses to see whether two accesses may overlap
)
_APART = 576  # [B], nine cache lines: those of eight blocks are spread over a page


def block_stride(scalars: int, size: int) -> int:
    """Return the distance in scalars between blocks that are swept side by side.

    Blocks whose distance is a multiple of a page compete for the same lines of the cache, and a store to one
    delays loads of the others.

    Args:
        scalars: those of one block.
        size: bytes of a scalar.
    """
    page, apart = block_spacing(size)
    return scalars if scalars < page else -(-scalars // page) * page + apart


def block_spacing(size: int) -> tuple[int, int]:
    """Return the scalars of a page, and those between whole pages and the next block."""
    return _PAGE // size, _APART // size


def strides_of(mem: Mem) -> tuple[int, ...]:
    """Return the distance in scalars between neighbours along each axis of a memory.

    The shape must be known, but for scratch, whose only axis needs none.
    """
    if mem.strides is not None:
        return mem.strides
    element = size_of(mem.dtype)
    # One axis of elements without gaps, whose number is known only at run time.
    if mem.kind == "scratch":
        return (element,)
    assert mem.shape is not None
    return packed_strides(mem.shape, element)
