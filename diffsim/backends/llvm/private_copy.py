"""The layout of private copies: copies of a part of a memory that lanes add to instead of using atomics.

`Task.privatized` says which part of which memory. On the CPU each chunk has copies (`cpu/private_copies.py`),
on a GPU each block has them in shared memory (`simt/block_reduce.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diffsim.ir.layout import packed_strides, strides_of
from diffsim.ir.nodes import Value
from diffsim.ir.schedules import Privatized
from diffsim.ir.types import size_of

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering


class PrivateCopy:
    """A private copy of a part of a memory: its address, the number of leading indices dropped, its strides.

    `strides` are those of the indices after `prefix_length`; `component`: that of an element's components.
    `slots`: how many partial sums each scalar has, to be added up later.
    """

    __slots__ = ("base", "component", "prefix_length", "slots", "strides")

    def __init__(
        self, base: str, prefix_length: int, strides: Sequence[int], component: int, slots: int = 1
    ) -> None:
        self.base = base
        self.prefix_length = prefix_length
        self.strides = [str(s) for s in strides]
        self.component = component
        self.slots = slots


def contiguous(p: Privatized) -> bool:
    """Return whether the copied part is contiguous in memory."""
    nest = loops(p)
    return len(nest) == 1 and nest[0][1] == nest[0][2] == 1


def copy_at(p: Privatized, place: str, slots: int = 1) -> PrivateCopy:
    """Describe a copy at an address; with slots every stride grows by their number."""
    *strides, component = (s * slots for s in _strides(p))
    return PrivateCopy(place, len(p.prefix), strides, component, slots)


def loops(p: Privatized) -> list[tuple[int, int, int]]:
    """Return the fewest loops over a copy, outermost first: extent, stride in it and in the memory."""
    axes, strides = _axes(p), _strides(p)
    nest: list[tuple[int, int, int]] = []
    for k in _order(p):
        extent, there = axes[k]
        # Two axes collapse into one where the outer stride is the inner extent times the inner
        # stride. A contiguous part becomes a single loop, which LLVM vectorizes.
        if nest and nest[-1][2] == extent * there:
            extent *= nest.pop()[0]
        nest.append((extent, strides[k], there))
    return nest


def part_address(body: FunctionLowering, p: Privatized) -> str:
    """Emit the address of the first scalar of the copied part."""
    first = body.pointers[p.mem]
    for (base, shift), stride in zip(p.prefix, body.element_strides(p.mem), strict=False):
        index = prefix_index(body, base, shift)
        offset = body.assign(f"mul nsw i64 {index}, {stride}")
        first = body.element(first, p.mem.dtype.scalar.llvm, offset)
    return first


def prefix_index(body: FunctionLowering, base: Value | None, shift: int) -> str:
    """Emit one of the leading indices: a value plus a constant."""
    if base is None:
        return str(shift)
    wide = body.index64(base)
    return body.assign(f"add nsw i64 {wide}, {shift}") if shift else wide


def _axes(p: Privatized) -> list[tuple[int, int]]:
    """Return extent and stride in memory of each axis of the copied part, the components' last."""
    mem = p.mem
    # Only fields are privatized: an array of unknown shape has no size to compare with.
    assert mem.shape is not None
    axes = list(zip(mem.shape, strides_of(mem), strict=True))[len(p.prefix) :]
    return [*axes, (size_of(mem.dtype), mem.component_stride)]


def _order(p: Privatized) -> list[int]:
    """Return the axes in memory order, the one with the largest stride first; but that of the lanes last."""
    axes = _axes(p)
    last = None if p.axis is None else p.axis - len(p.prefix)
    return sorted(range(len(axes)), key=lambda k: (k == last, -axes[k][1]))


def _strides(p: Privatized) -> list[int]:
    """Return the strides of a copy: its order of axes, without gaps."""
    # Mostly the memory's own order, so that adding up runs through both in the order of addresses.
    return list(packed_strides([extent for extent, _ in _axes(p)], order=_order(p)))
