"""Divergence: which values differ between lanes that run together, and which are uniform.

One analysis serves both kinds of machine. The lanes of a CPU's vector are neighbours along the last axis of a
task. The threads of a GPU's warp are any lanes, and between two loads of one thread another lane may have
stored: only memories that the task does not write are uniform there.

The analysis is optimistic: it starts from the axes and marks what depends on them until nothing changes, so
a carried value of a loop with uniform bounds is uniform if what it starts from and what it becomes are.

Backends may not import passes, so passes write the results onto the task (`Task.simd`, `Task.uniform`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Atomic,
    Block,
    Const,
    For,
    If,
    InlineLLVM,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import blocks, statements, task_statements
from diffsim.passes.analysis.once import once


@once
def divergent_values(task: Task) -> frozenset[Value]:
    """Return the values of the body that may differ between lanes along the last axis.

    A load of an element that other lanes write counts as uniform if its index is: it is for the caller
    to know that there are no such loads (`ownership.written_by_others`).
    """
    return _divergent(task.body, task.axes[-1:], lambda mem: mem.kind == "scratch")


@once
def divergent_anywhere(task: Task) -> frozenset[Value]:
    """Return the values of the body that may differ between any two lanes, at one point of the program."""
    return _divergent(task.body, task.axes, lambda mem: not is_steady(task, mem))


@once
def written_memories(task: Task) -> frozenset[Mem]:
    """Return the memories that a task writes, those of its reductions included."""
    # Reductions write after the lanes on a CPU, but during the task on a GPU.
    stores = (s.mem for s in task_statements(task) if isinstance(s, (Store, Atomic)))
    return frozenset([*stores, *(mem for _, mem, _ in task.reductions)])


def is_steady(task: Task, mem: Mem) -> bool:
    """Whether no lane of the task can change a memory."""
    return mem.kind != "scratch" and mem not in written_memories(task)


def uniform_atomics(task: Task) -> frozenset[Atomic]:
    """Return the atomics that every lane runs the same number of times, each time on one element.

    They are in for-loops with uniform bounds and in branches with uniform conditions, if in any, and
    their indices are uniform.
    """
    divergent = divergent_anywhere(task)

    def visit(block: Block) -> Iterator[Atomic]:
        for s in block.stmts:
            # While loops are left out: their number of iterations depends on data that lanes may
            # change.
            if isinstance(s, Atomic) and divergent.isdisjoint(s.index):
                yield s
            elif (isinstance(s, For) and divergent.isdisjoint((s.lo, s.hi))) or (
                isinstance(s, If) and s.cond not in divergent
            ):
                for inner in blocks(s):
                    yield from visit(inner)

    return frozenset(visit(task.body))


def hoistable_counts(task: Task) -> frozenset[Value]:
    """Return the sizes of scratch that are uniform and can be computed before the first lane starts.

    They are made of launch-wide values, of ops on them, and of loads that are safe at any time: at constant
    indices, which exist whatever branch the load is in, of memories that the task does not write.
    """
    computed = {s.out: s for s in statements(task.body) if isinstance(s, (Let, Load))}
    written = written_memories(task)

    # Memoized, since shared operands make the number of paths through the definitions exponential.
    known: dict[Value, bool] = {}

    def hoistable(v: Value) -> bool:
        if v not in known:
            known[v] = isinstance(v, LEAVES) or is_safe(computed.get(v))
        return known[v]

    def is_safe(s: Let | Load | None) -> bool:
        if isinstance(s, Let):
            return all(map(hoistable, s.args))
        return (
            s is not None
            and s.mem.kind in ("field", "temp")
            and s.mem not in written
            # Constant indices were checked when the kernel was compiled; an argument as index may be
            # out of bounds, and hoisting would load it even if no lane would.
            and all(isinstance(i, Const) for i in s.index)
        )

    counts = (s.count for s in statements(task.body) if isinstance(s, Alloca))
    return frozenset([v for v in counts if hoistable(v)])


def _divergent(
    body: Block, axes: Iterable[Value], varies: Callable[[Mem], bool]
) -> frozenset[Value]:
    """Return what depends on the axes, or is loaded from a memory that varies."""
    found: set[Value] = set(axes)
    before = -1
    while (
        len(found) != before
    ):  # a carried value may become divergent by what a later statement yields
        before = len(found)
        _mark(body, found, varies)
    return frozenset(found)


def _mark(block: Block, found: set[Value], varies: Callable[[Mem], bool]) -> None:
    """Mark what diverges in a block, given what is known so far."""
    for s in block.stmts:
        if isinstance(s, Let):
            # Data dependence: an op on uniform values is uniform.
            if any(v in found for v in s.args):
                found.add(s.out)
        elif isinstance(s, Load):
            if any(v in found for v in s.index) or varies(s.mem):
                found.add(s.out)
        elif isinstance(s, Atomic):
            if (
                s.out is not None
            ):  # lanes update one after the other, so each finds another old value
                found.add(s.out)
        elif isinstance(s, InlineLLVM):
            found.update(s.outs)  # may ask the machine which lane it is
        elif isinstance(s, (For, While, If)):
            _mark_region(s, found, varies)


def _mark_region(s: For | While | If, found: set[Value], varies: Callable[[Mem], bool]) -> None:
    """Mark what diverges in a loop or branch, and which of its results do."""
    for b in blocks(s):
        _mark(b, found, varies)
    # Control dependence: where lanes take different ways, what leaves the region differs even if it is
    # computed from uniform values alone, as it counts which way was taken.
    apart = _lanes_part(s, found)
    if isinstance(s, If):
        for out, *ways in zip(s.outs, s.then.yields, s.orelse.yields, strict=True):
            if apart or any(v in found for v in ways):
                found.add(out)
        return
    if apart and isinstance(s, For):
        found.add(s.index)
    for out, *ways in zip(s.outs, s.params, s.inits, s.body.yields, strict=True):
        if apart or any(v in found for v in ways):
            found.update((out, ways[0]))


def _lanes_part(s: Stmt, found: set[Value]) -> bool:
    """Whether lanes may take different branches, or different numbers of iterations."""
    if isinstance(s, If):
        return s.cond in found
    if isinstance(s, While):
        return s.cond.yields[0] in found
    return isinstance(s, For) and (s.lo in found or s.hi in found)
