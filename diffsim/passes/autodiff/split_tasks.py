"""Kernels of single tasks: what a tape differentiates one by one where the whole kernel can not be.

    for i in x: x[i] = sin(x[i])              kernel 0: for i in x: x[i] = sin(x[i])
    for i in x: x[i] = cos(x[i])       ->     kernel 1: for i in x: x[i] = cos(x[i])

The adjoint of the whole needs x as it was between the tasks, which no copy from before the launch is.
Launched one after the other the kernels do the same, and a tape can save x before each.
"""

from __future__ import annotations

from collections.abc import Mapping

from diffsim.ir.nodes import Atomic, CustomCall, Kernel, Load, Mem, Store, Task
from diffsim.ir.traversal import Rewriter, task_statements


def temporaries(kernel: Kernel) -> list[Mem]:
    """Return the memories that live during one launch, which tasks hand values on in."""
    return [m for m in kernel.mems if m.kind == "temp"]


def split_tasks(kernel: Kernel, fields: Mapping[Mem, Mem]) -> list[Kernel]:
    """Return a kernel for each task.

    Args:
        kernel: a prepared kernel that returns nothing.
        fields: for each temporary the memory that takes its place, and lives on between the launches.
    """
    made = []
    for task in kernel.tasks:
        copier = _Renamer(fields)
        own = copier.task(task) if fields else task
        used = _memories(own)
        mems = [m for m in (*kernel.mems, *fields.values()) if m in used]
        made.append(kernel.replace(mems=tuple(mems), tasks=(own,)))
    return made


def _memories(task: Task) -> set[Mem]:
    """Return what a task accesses, or an adjoint that the program gives for a part of it."""
    used: set[Mem] = set()
    for s in task_statements(task, given=True):
        if isinstance(s, (Load, Store, Atomic)):
            used.add(s.mem)
        elif isinstance(s, CustomCall):
            used.update(s.targets)
    return used


class _Renamer(Rewriter):
    """Copies a task with other memories."""

    def __init__(self, mems: Mapping[Mem, Mem]) -> None:
        super().__init__()
        self._mems = mems

    def mem(self, m: Mem) -> Mem:
        return self._mems.get(m) or super().mem(m)

    def task(self, t: Task) -> Task:
        bounds, axes = self.block(t.bounds), self.fresh_all(t.axes)
        return t.replace(axes=axes, bounds=bounds, body=self.block(t.body))
