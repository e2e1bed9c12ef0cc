"""Finds consecutive tasks without dependences between them, so that one GPU launch can run them all.

A launch costs several microseconds, and the rims of a stencil's adjoint have few lanes each. This pass only
marks tasks (`Task.concurrent`); the backend decides how many of them share a launch.

Assumes scalar IR with exclusive atomics marked. Runs after all passes that change
which elements a task accesses.
"""

from __future__ import annotations

from diffsim.ir.nodes import Kernel, Task
from diffsim.ir.simple_tasks import is_plain
from diffsim.passes.analysis.dependence import independent


def fuse_tasks(kernel: Kernel) -> Kernel:
    """Return the kernel with `Task.concurrent` set where a task may run with those before it."""
    tasks: list[Task] = []
    running: list[Task] = []
    for task in kernel.tasks:
        plain = is_plain(task)
        # Tasks that share a launch run in any order, so each must be independent of all others in its
        # group, not only of the one before it.
        concurrent = plain and bool(running) and all(independent(task, r) for r in running)
        if not concurrent:
            running = []
        if plain:
            running.append(task)
        tasks.append(task.replace(concurrent=True) if concurrent else task)
    return kernel.replace(tasks=tuple(tasks))
