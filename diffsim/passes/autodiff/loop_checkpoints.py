"""Loop checkpoints: what a reversed loop saves of its carried values, for all iterations or for segments.

Where the carried values of all iterations would take more than their share of memory, `reverse` saves those
at the start of each segment of iterations, and all of the last segment; the other segments are run again, one
at a time, when their adjoint needs them. A while loop saves all of the first segment: most have no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Alloca, For, InlineLLVM, Kernel, Let, Mem, Stmt, Store, Value, While
from diffsim.ir.traversal import blocks, entered, statements, task_statements
from diffsim.ir.types import Type, i64, size_of
from diffsim.passes.analysis.counted_loops import counter_of, longest_runs, most_iterations

_MOST_BYTES = 1 << 14  # that a loop saves for each lane at a time
_SHORTEST = 16  # iterations of a segment, however much each of them saves


class Swept(NamedTuple):
    """A loop in another one, as the forward sweep of one that saves has met it.

    Attributes:
        loop: the loop.
        around: the loop it is directly in.
        root: the one that saves, `around` or a loop further out.
    """

    loop: For | While
    around: For | While
    root: For | While


class Checkpoints(NamedTuple):
    """The saves of loops, beside their carried values for all iterations.

    Attributes:
        split: loops that are reversed in segments, and how many iterations one has.
        nested: loops whose values the loop around them saves for all its iterations.
        functions: what loops save besides of what their iterations compute.
    """

    split: dict[Stmt, int]
    nested: dict[Stmt, None]
    functions: dict[For | While, list[Let]]


class Computed(NamedTuple):
    """A function in an iteration of a loop that saves: `is_sweep`: on the way forward, or on the way back."""

    loop: For | While
    let: Let
    is_sweep: bool


def choose_checkpoints(
    kernel: Kernel,
    adjoint: Kernel,
    loop_of: dict[Mem, For | While],
    swept: dict[Value, Swept],
    computed: dict[Value, Computed],
) -> Checkpoints:
    """Return what loops should save, given an adjoint in which each saves its carried values alone.

    Args:
        kernel: what is differentiated.
        adjoint: it, without dead code: what is left of loops and scratch there is needed.
        loop_of: the loop that saves into a scratch.
        swept: loops in others, by the values that forward sweeps bind in them.
        computed: functions in loops, by the values of their copies.
    """
    bytes_: dict[For | While, int] = {}
    live: dict[Swept, None] = {}
    found: dict[Computed, None] = {}
    for s in (s for t in adjoint.tasks for s in task_statements(t)):
        if isinstance(s, Alloca) and s.mem in loop_of:
            loop = loop_of[s.mem]
            bytes_[loop] = bytes_.get(loop, 0) + _bytes_of(s.mem.dtype)
        elif isinstance(s, (For, While)):
            live.update((swept[v], None) for v in entered(s) if v in swept)
        elif isinstance(s, Let) and s.out in computed:
            found[computed[s.out]] = None
    nested: dict[Stmt, None] = {}
    for root in dict.fromkeys(x.root for x in live):
        if root not in nested:
            inside = [x for x in live if x.root is root]
            bytes_[root] = _nest(root, inside, bytes_, _share(root, bytes_.get(root, 0)), nested)
    saving = {x for x, size in bytes_.items() if size and x not in nested}
    functions = _kept_functions(found, saving)
    for loop, kept in functions.items():
        bytes_[loop] += sum(_bytes_of(x.out.type) for x in kept)
    split: dict[Stmt, int] = {}
    for loop, size in bytes_.items():
        length = max(_SHORTEST, _MOST_BYTES // max(size, 1))
        # Splitting runs iterations twice on the way back, which must not be observable. Loops that certainly
        # fit are left whole: segments are about half as much code again, and the last one begins at another
        # iteration in each lane.
        may_split = size and loop not in nested and not has_effect(loop)
        if may_split and longest_runs(kernel).get(loop, math.inf) > length:
            split[loop] = length
    return Checkpoints(split, nested, functions)


def _kept_functions(
    found: dict[Computed, None], saving: set[For | While]
) -> dict[For | While, list[Let]]:
    """Return what loops compute both on the way forward and on the way back, of those that save anyway.

    Short loops with a constant number of iterations have a pass of their own (`kept/sweeps.py`).
    """
    kept: dict[For | While, list[Let]] = {}
    for x in found:
        both = x.is_sweep and x._replace(is_sweep=False) in found
        if (
            both
            and x.loop in saving
            and (isinstance(x.loop, While) or most_iterations(x.loop) is None)
        ):
            kept.setdefault(x.loop, []).append(x.let)
    return kept


def _share(loop: For | While, size: int) -> int:
    """Return how many bytes an iteration of a loop may save, which saves that many already."""
    most = most_iterations(loop)
    if most is not None and most * size <= _MOST_BYTES:
        return _MOST_BYTES // max(most, 1)
    # The loop goes back in segments, if it can.
    return 0 if has_effect(loop) else _MOST_BYTES // _SHORTEST


def _nest(
    loop: For | While,
    inside: Sequence[Swept],
    bytes_: dict[For | While, int],
    share: int,
    nested: dict[Stmt, None],
) -> int:
    """Choose which loops in a loop save with it; return how many bytes an iteration of it then saves."""
    taken = bytes_.get(loop, 0)
    for x in inside:
        most = most_iterations(x.loop)
        if x.around is not loop or x.loop in nested or most is None or has_effect(x.loop):
            continue
        results = sum(_bytes_of(v.type) for v in x.loop.outs)
        if taken + results + most * bytes_.get(x.loop, 0) <= share:
            nested[x.loop] = None
            each = _nest(x.loop, inside, bytes_, (share - taken - results) // max(most, 1), nested)
            taken += results + most * each
    return taken


def _bytes_of(t: Type) -> int:
    return size_of(t) * t.scalar.bytes


def has_effect(loop: For | While) -> bool:
    """Whether an iteration has an effect besides what it carries, so that its number of runs matters."""
    return any(
        isinstance(s, InlineLLVM) or (isinstance(s, Store) and s.mem.kind == "scratch")
        for b in blocks(loop)
        for s in statements(b)
    )


class NestedSaves(NamedTuple):
    """Where a loop in another one saves, for all iterations of the loops around it.

    Attributes:
        arrays: scratch with the carried values at the start of each of its iterations.
        results: scratch with the results of each of its runs, and what else is known of that run.
    """

    arrays: list[Mem]
    results: list[Mem]


class Run(NamedTuple):
    """An iteration of a loop that saves, as loops in it see it.

    Attributes:
        number: their place in what the root saves: how often they have run before.
        nested: where they save, if they do.
        is_sweep: whether this is the forward sweep, in which they save.
        around: the loop.
        root: the loop around it that has the memory for all, or itself.
        functions: where it saves functions that it computes.
    """

    number: Value
    nested: dict[Stmt, NestedSaves]
    is_sweep: bool
    around: For | While
    root: For | While
    functions: Mapping[Let, Mem] = MappingProxyType({})


class SavedLoopValue:
    """The values that a loop saves for its adjoint.

    Attributes:
        bounds: those of the loop.
        arrays: scratch with the carried values at the start of each iteration of a segment.
        nested: where the loops in it save.
        functions: scratch with what iterations have computed.
        marks: scratch with the carried values at the start of each segment, if there are several.
        count: how many segments there are.
        is_long: whether the arrays have none of them, instead of the last one.
        counter: which carried value is the number of the iteration plus a constant, and that constant.
        first: the place in the arrays of the first iteration of this run, if others have saved there, too.
    """

    __slots__ = (
        "arrays",
        "bounds",
        "count",
        "counter",
        "first",
        "functions",
        "is_long",
        "marks",
        "nested",
    )

    def __init__(
        self,
        bounds: tuple[Value, Value],
        arrays: list[Mem],
        nested: dict[Stmt, NestedSaves],
        counter: tuple[int, Value] | None = None,
        first: Value | None = None,
    ) -> None:
        self.bounds = bounds
        self.arrays = arrays
        self.nested = nested
        self.functions: Mapping[Let, Mem] = {}
        self.marks: Sequence[Mem] = ()
        self.count: Value | None = None
        self.is_long: Value | None = None
        self.counter = counter
        self.first = first

    def place(self, b: Builder, index: Value, lo: Value) -> Value:
        """Emit where an iteration saves, of those from `lo` on."""
        if self.first is None:
            return index - lo
        return self.first + b.cast(index - lo, i64)

    def at_start(self, b: Builder, k: int, index: Value, place: Value) -> Value:
        """Emit the k-th carried value at the start of an iteration, which is saved at a place."""
        if self.counter is not None and k == self.counter[0]:
            first = self.counter[1]
            return b.named("add", first, b.cast(index, first.type.scalar))
        return b.load(self.arrays[k], (place,))


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
