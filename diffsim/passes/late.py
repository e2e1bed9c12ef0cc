"""Clearing what was just loaded comes last, for GPUs.

The adjoint of a store loads a gradient and clears it. A GPU that has to store into a line of memory which is
still on its way waits for the line: four times as long in all as when the store comes after the loaded value
was used. A store of a constant to a place that its lane has loaded is moved to the end of the lane, unless
something after it may touch that place.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.nodes import Atomic, Block, Const, Kernel, Let, Load, Mem, Stmt, Store, Task, Value
from diffsim.ir.walk import statements
from diffsim.passes.access import apart, definitions, part_of


def clear_last(kernel: Kernel) -> Kernel:
    """The kernel with such stores at the ends of its parallel tasks."""
    made_by = definitions(kernel)
    tasks = tuple(_task(t, made_by) if t.axes else t for t in kernel.tasks)
    if all(a is b for a, b in zip(tasks, kernel.tasks, strict=True)):
        return kernel
    return Kernel(kernel.name, kernel.args, kernel.mems, tasks, kernel.span, kernel.result)


def _task(task: Task, made_by: dict[Value, Let]) -> Task:
    loaded: set[tuple[Mem, tuple[Value, ...]]] = set()
    late: list[Stmt] = []
    for k, s in enumerate(task.body.stmts):
        if isinstance(s, Load):
            loaded.add((s.mem, s.index))
        elif (
            isinstance(s, Store)
            and isinstance(s.value, Const)
            and s.mem.kind == "field"
            and (s.mem, s.index) in loaded
            and not _touched(s, task.body.stmts[k + 1 :], made_by)
        ):
            late.append(s)
    if not late:
        return task
    body = Block([*(s for s in task.body.stmts if s not in late), *late], task.body.yields)
    return Task(task.axes, task.bounds, body, task.span, task.reductions, task.private)


def _touched(store: Store, stmts: Sequence[Stmt], made_by: dict[Value, Let]) -> bool:
    """Whether statements may touch what the store wrote."""
    mine = part_of(store.index[: store.mem.rank], made_by)
    return any(
        isinstance(s, (Load, Store, Atomic))
        and s.mem is store.mem
        and not apart(mine, part_of(s.index[: s.mem.rank], made_by))
        for s in statements(Block(stmts))
    )
