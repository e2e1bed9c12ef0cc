"""Marks atomics on elements that only one lane reaches, which need not be atomic.

An element belongs to one lane if its index contains every axis of the parallel loop at the same place in all
accesses to that memory, as x[i] does in `for i in x`.

    parallel %i in 0..n {                    parallel %i in 0..n {
      atomic_add x[%i], %t           ->        exclusive_add x[%i], %t

Assumes scalar IR with reductions hoisted. Promises: the same updates in every lane, in the same order.
"""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Block, For, If, Kernel, Stmt, Task, While
from diffsim.passes.analysis.dependence import accesses_of
from diffsim.passes.analysis.ownership import Ownership


def demote_atomics(kernel: Kernel, *, in_blocks: bool = False) -> Kernel:
    """Return the kernel with atomics that no other lane can interfere with as plain updates.

    Args:
        kernel: scalar IR, reductions hoisted.
        in_blocks: whether reductions update memory while other lanes are still running, as blocks of a
            GPU do; on the CPU they do at the end of a launch.
    """
    return kernel.replace(tasks=tuple([_task(t, in_blocks=in_blocks) for t in kernel.tasks]))


def _task(task: Task, *, in_blocks: bool) -> Task:
    """Return a task whose lanes update their own elements without atomics."""
    accesses = list(accesses_of(task))
    atomics = [s for s in accesses if isinstance(s, Atomic)]
    if not atomics:
        return task
    # A block of a GPU adds its partial result while other blocks are running, so the update of a total
    # is one more access that a plain one could interfere with. On the CPU totals are added after all
    # lanes.
    totals = zip(task.reductions, task.body.yields, strict=True)
    sums = [Atomic(None, op, mem, index, v, task.span) for (op, mem, index), v in totals]
    ownership = Ownership(task, [*accesses, *sums] if in_blocks else accesses)
    # Any access of another lane rules a plain update out: another update would be lost between its load
    # and its store.
    own = {s for s in atomics if ownership.is_own(s)}
    return task.replace(body=_block(task.body, own)) if own else task


def _block(block: Block, own: set[Atomic]) -> Block:
    return Block([_stmt(s, own) for s in block.stmts], block.yields)


def _stmt(s: Stmt, own: set[Atomic]) -> Stmt:
    if isinstance(s, Atomic) and s in own:
        return s.replace(exclusive=True)
    if isinstance(s, (For, While)):
        return s.replace(body=_block(s.body, own))
    if isinstance(s, If):
        return s.replace(then=_block(s.then, own), orelse=_block(s.orelse, own))
    return s
