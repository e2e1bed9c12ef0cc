"""Serializes parallel loops: the lanes of a task run one after the other, on one thread.

Assumes any kernel without reductions. Promises: the same statements for the same indices.
"""

from __future__ import annotations

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Block, For, Kernel, Task


def serialize(kernel: Kernel) -> Kernel:
    """Return the kernel with serial tasks only."""
    tasks = tuple(serialize_task(t) if t.axes else t for t in kernel.tasks)
    return kernel.replace(tasks=tasks)


def serialize_task(task: Task, *, reverse: bool = False) -> Task:
    """Return a parallel task as a loop nest in a serial one; `reverse`: the last lane first."""
    assert not task.reductions
    b = Builder(task.span)
    with b, b.block() as stmts:
        for s in task.bounds.stmts:
            b.add(s)
        yields = task.bounds.yields
        # The bounds of a task may have another integer type than its axes; a For loop has one type.
        ends = [b.cast(v, task.axes[k // 2].type.scalar) for k, v in enumerate(yields)]
        body = task.body
        # Inside out, so that the last axis varies fastest, as it does in the order of lanes.
        for axis, lo, hi in reversed(list(zip(task.axes, ends[::2], ends[1::2], strict=True))):
            body = Block([For(axis, lo, hi, (), (), body, (), task.span, reverse)])
        for s in body.stmts:
            b.add(s)
    return Task((), Block([]), Block(stmts), task.span)
