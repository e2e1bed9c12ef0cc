"""How much a loop that is reversed saves at a time: all its turns, or segments of them.

Where all that a loop carries would take more than its share of memory, `reverse` saves what each segment of
turns begins with, and the turns of the last segment; the others are run again on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.nodes import Alloca, Const, For, InlineLLVM, Kernel, Mem, Stmt, Store, Value, While
from diffsim.ir.traversal import blocks, statements, task_statements
from diffsim.ir.types import size_of

_MOST_BYTES = 1 << 14  # that a loop saves for each lane at a time
_SHORTEST = 16  # turns in a segment of a loop that would save more


def too_long(adjoint: Kernel, loop_of: dict[Mem, For | While]) -> dict[Stmt, int]:
    """Loops that may save more than their share of memory; how many turns fit into it."""
    found: dict[For | While, int] = {}
    for t in adjoint.tasks:
        for s in task_statements(t):
            if isinstance(s, Alloca) and s.mem in loop_of:
                loop = loop_of[s.mem]
                found[loop] = found.get(loop, 0) + size_of(s.mem.dtype) * s.mem.dtype.scalar.bytes
    split: dict[Stmt, int] = {}
    for loop, bytes_ in found.items():
        length = max(_SHORTEST, _MOST_BYTES // bytes_)
        if any(_keeps(x) for b in blocks(loop) for x in statements(b)):
            continue
        known = isinstance(loop, For) and isinstance(loop.lo, Const) and isinstance(loop.hi, Const)
        if not known or loop.hi.value - loop.lo.value > length:  # type: ignore[union-attr]
            split[loop] = length
    return split


def _keeps(s: Stmt) -> bool:
    """Whether a turn leaves something behind besides what it carries: turns are not run again then."""
    return isinstance(s, InlineLLVM) or (isinstance(s, Store) and s.mem.kind == "scratch")


class SavedLoopValue:
    """What a loop saves for its way back: `rooms` hold what each turn of a segment began with.

    `marks` hold what each segment began with, if there are several; `count`: how many there are.
    """

    __slots__ = ("bounds", "count", "marks", "rooms")

    def __init__(
        self,
        bounds: tuple[Value, Value],
        rooms: list[Mem],
        marks: Sequence[Mem] = (),
        count: Value | None = None,
    ) -> None:
        self.bounds = bounds
        self.rooms = rooms
        self.marks = marks
        self.count = count


def downwards(s: For | While) -> bool:
    """Whether a loop's index falls from turn to turn."""
    return isinstance(s, For) and s.reverse


def index_hint(s: For | While) -> str:
    """What to call the index of a loop that runs turns of this one."""
    return s.index.hint if isinstance(s, For) else "turn"
