"""Memories as the IR names them, and how their elements lie: the one place where strides are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diffsim.ir.types import size_of

if TYPE_CHECKING:
    from diffsim.ir.sparse import Level, Place
    from diffsim.ir.types import Type


class Mem:
    """Memory: what can be loaded from and stored to.

    Attributes:
        name: the user's name for it.
        dtype: type of one element.
        shape: its dimensions; None where they are known only at launch (`rank` is always known). Those of an
            array are set after its kernel was translated, if they are known.
        kind: "field", "array" (an argument), "temp" (crosses tasks of one launch; 0-D), "table" (of numbers
            that are the same in all launches) or "scratch" (a loop's saved values; 1-D, of a length known
            when it is allocated).
        grad: the memory of its gradient, if it has one.
        dual: the memory of its tangents, if it has one: alike; several have one more axis, the last one.
        strides: distance in scalars between neighbours along each axis; None: C order of `shape`.
        component_stride: distance in scalars between the components of one element.
        handle: the runtime's object behind it, opaque to the IR.
        is_grad: whether it is itself the gradient of something.
        in_blocks: of an array: whether its last axis counts blocks (`block_stride`).
        place: where its elements are in a sparse tree; None: all of them exist at all times.
        origin: the program's index of the first element along each axis; indices of the IR count from 0.
        like: of an array: an earlier one that has the same shape in each launch; None: not known of any.
        level: of the memory that says which cells of a sparse tree are active: the level that these are of.
    """

    __slots__ = (
        "component_stride",
        "dtype",
        "dual",
        "grad",
        "handle",
        "in_blocks",
        "is_grad",
        "kind",
        "level",
        "like",
        "name",
        "origin",
        "place",
        "rank",
        "shape",
        "strides",
    )

    def __init__(
        self,
        name: str,
        dtype: Type,
        rank: int,
        shape: tuple[int, ...] | None,
        # Arrays alone may overlap each other, since the caller may pass views.
        kind: str = "field",
        grad: Mem | None = None,
        strides: tuple[int, ...] | None = None,
        component_stride: int = 1,
        handle: Any = None,
        is_grad: bool = False,
        dual: Mem | None = None,
        in_blocks: bool = False,
        place: Place | None = None,
        origin: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.rank = rank
        self.shape = shape
        self.kind = kind
        self.grad = grad
        self.strides = strides
        self.component_stride = component_stride
        self.handle = handle
        self.is_grad = is_grad
        self.dual = dual
        self.in_blocks = in_blocks
        self.place = place
        self.origin = origin or (0,) * rank
        self.level: Level | None = None
        self.like: Mem | None = None

    @property
    def is_shaped(self) -> bool:
        """Whether it is a field, an array or a table, whose shape the code may rely on."""
        return self.shape is not None and self.kind in ("field", "array", "table")


def shown_index(origin: Sequence[int], at: Sequence[Any]) -> str:
    """Return the index of an element, counted from 0 along each axis, as the program writes it."""
    return ", ".join(str(int(k) + o) for k, o in zip(at, origin, strict=True)) or "None"


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
