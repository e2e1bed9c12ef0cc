"""Loop checkpoints: what a reversed loop saves of its carried values, for all iterations or for segments.

Where the carried values of all iterations would take more than their share of memory, `reverse` saves those
at the start of each segment of iterations, and all of the last segment; the other segments are run again, one
at a time, when their adjoint needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Alloca, For, InlineLLVM, Kernel, Mem, Stmt, Store, Value, While
from diffsim.ir.traversal import blocks, statements, task_statements
from diffsim.ir.types import size_of
from diffsim.passes.analysis.counted_loops import counter_of, most_iterations

_MOST_BYTES = 1 << 14  # that a loop saves for each lane at a time
_SHORTEST = 16  # iterations of a segment, however much each of them saves


def too_long(adjoint: Kernel, loop_of: dict[Mem, For | While]) -> dict[Stmt, int]:
    """Return loops that may save more than their share of memory, and how many iterations fit into it."""
    # Only scratch that survived dead-code elimination counts: a linear loop saves nothing and is never
    # split.
    found: dict[For | While, int] = {}
    for t in adjoint.tasks:
        for s in task_statements(t):
            if isinstance(s, Alloca) and s.mem in loop_of:
                loop = loop_of[s.mem]
                found[loop] = found.get(loop, 0) + size_of(s.mem.dtype) * s.mem.dtype.scalar.bytes
    split: dict[Stmt, int] = {}
    for loop, bytes_ in found.items():
        length = max(_SHORTEST, _MOST_BYTES // bytes_)
        # Splitting runs iterations twice on the way back, which must not be observable.
        if any(_has_effect(x) for b in blocks(loop) for x in statements(b)):
            continue
        # Loops that certainly fit are left whole: segments are about half as much code again.
        most = most_iterations(loop)
        if most is None or most > length:
            split[loop] = length
    return split


def _has_effect(s: Stmt) -> bool:
    """Whether an iteration has an effect besides what it carries, so that it must not run again."""
    return isinstance(s, InlineLLVM) or (isinstance(s, Store) and s.mem.kind == "scratch")


class SavedLoopValue:
    """A value that a loop saves for its adjoint.

    Attributes:
        bounds: those of the loop.
        arrays: scratch with the carried values at the start of each iteration of a segment.
        marks: scratch with the carried values at the start of each segment, if there are several.
        count: how many segments there are.
        counter: which carried value is the number of the iteration plus a constant, and that constant.
    """

    __slots__ = ("arrays", "bounds", "count", "counter", "marks")

    def __init__(
        self,
        bounds: tuple[Value, Value],
        arrays: list[Mem],
        marks: Sequence[Mem] = (),
        count: Value | None = None,
        counter: tuple[int, Value] | None = None,
    ) -> None:
        self.bounds = bounds
        self.arrays = arrays
        self.marks = marks
        self.count = count
        self.counter = counter

    def at_start(self, b: Builder, k: int, index: Value, lo: Value) -> Value:
        """Emit the k-th carried value at the start of an iteration, of those from `lo` on."""
        if self.counter is not None and k == self.counter[0]:
            first = self.counter[1]
            return b.named("add", first, b.cast(index, first.type.scalar))
        return b.load(self.arrays[k], (index - lo,))


def counted(s: For | While, inits: tuple[Value, ...]) -> tuple[int, Value] | None:
    """Return which value of a while loop counts its iterations, and where it begins."""
    found = counter_of(s) if isinstance(s, While) else None
    return None if found is None else (found.position, inits[found.position])


def downwards(s: For | While) -> bool:
    """Whether a loop's index falls from iteration to iteration."""
    return isinstance(s, For) and s.reverse


def index_hint(s: For | While) -> str:
    """Return the name for the index of a loop that runs iterations of this one."""
    return s.index.hint if isinstance(s, For) else "iteration"
