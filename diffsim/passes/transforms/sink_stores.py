"""Sinks stores to the end of a lane, for GPUs: loads come first and stores last.

A GPU thread has many loads in flight at a time, but none is moved above a store to another field, since the
assembler cannot know that the two never overlap. And a store into a line of memory that is still on its way
waits for the line: clearing a gradient right after it was loaded makes the adjoint of a store four times as
slow. So in short lanes without branches and loops, every store is moved to the end of the lane, unless
a later statement may access the same element; a plain update (`exclusive_add`) becomes a load, a sum and a
store. In other lanes only the clearing of what was loaded moves.

Assumes scalar IR whose atomics are marked. Promises: the same values.
"""

from __future__ import annotations

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Atomic, Block, Const, Kernel, Stmt, Store, Task
from diffsim.ir.simple_tasks import MOST_LOADS, MOST_STATEMENTS, count_loads, is_straight
from diffsim.passes.analysis.access_order import LaneAccesses
from diffsim.passes.analysis.affine import Definitions, definitions
from diffsim.passes.transforms.forward_clears import is_plain_sum


def sink_stores(kernel: Kernel) -> Kernel:
    """Return the kernel with stores at the ends of the lanes of its parallel tasks."""
    defs = definitions(kernel)
    tasks = tuple(_task(t, defs) if t.axes else t for t in kernel.tasks)
    if all(a is b for a, b in zip(tasks, kernel.tasks, strict=True)):
        return kernel
    return kernel.replace(tasks=tasks)


def _task(task: Task, defs: Definitions) -> Task:
    """Return a task whose stores come last, as far as that is legal."""
    stmts, straight = task.body.stmts, _is_straight(task)
    # Plain updates are split first, so that their loads stay in place and only their stores sink.
    if straight:
        stmts = [part for s in stmts for part in _parts(s)]
    lane = LaneAccesses(stmts, defs)
    sunk = {
        k: s
        for k, s in enumerate(stmts)
        if isinstance(s, Store)
        and s.mem.kind == "field"
        and (straight or (isinstance(s.value, Const) and lane.loaded_before(s, k)))
        # Legal if nothing after it in the lane may access the element. Other lanes do not matter: what
        # they access of it has no defined order already.
        and lane.next_access(s, k + 1) is None
    }
    if not sunk:
        return task
    first = [s for k, s in enumerate(stmts) if k not in sunk]
    body = Block([*first, *sunk.values()], task.body.yields)
    # `simd` names values of the body as it was.
    return task.replace(body=body, simd=None)


def _is_straight(task: Task) -> bool:
    stmts = task.body.stmts
    return (
        is_straight(stmts)
        and all(is_plain_sum(s) for s in stmts if isinstance(s, Atomic))
        and count_loads(stmts) <= MOST_LOADS
        and len(stmts) <= MOST_STATEMENTS
    )


def _parts(s: Stmt) -> list[Stmt]:
    """Return a plain update as a load, a sum and a store."""
    if not (isinstance(s, Atomic) and s.mem.dtype.scalar.is_float):
        return [s]
    b = Builder(s.span)
    with b.block() as made:
        b.store(s.mem, s.index, b.named("add", b.load(s.mem, s.index), s.value))
    return made
