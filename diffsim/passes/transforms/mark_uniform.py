"""Writes onto each task what its lanes agree on, for backends whose lanes run in lockstep.

Two things follow from it on a GPU: a warp folds what its threads add to one element before one of them adds
it to memory, and the scratch of all threads can be laid out before the first lane starts.

Runs last: it names statements and values of the task as it is.
"""

from __future__ import annotations

from diffsim.ir.nodes import Alloca, Atomic, Kernel, Task
from diffsim.ir.schedules import Uniform
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.divergence import hoistable_counts, uniform_atomics


def mark_uniform(kernel: Kernel) -> Kernel:
    """Return the kernel with `Task.uniform` filled in."""
    return kernel.replace(tasks=tuple(map(_task, kernel.tasks)))


def _task(task: Task) -> Task:
    # Most tasks have neither shared updates nor scratch, and the analysis looks at every value.
    kinds = {
        type(s)
        for s in task_statements(task)
        if isinstance(s, Alloca) or (isinstance(s, Atomic) and not s.exclusive)
    }
    if not kinds:
        return task
    # A warp folds an update only if all of its threads reach it together, at one element.
    atomics = uniform_atomics(task) if task.axes and Atomic in kinds else frozenset()
    counts = hoistable_counts(task) if Alloca in kinds else frozenset()
    return task.replace(uniform=Uniform(atomics, counts))
