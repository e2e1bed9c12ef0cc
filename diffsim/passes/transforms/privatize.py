"""Privatization: finds memories that the threads of a parallel task can add up in private copies.

Atomic additions from many lanes to a small field (the gradient of weights that all lanes read, the grid of a
particle method) cost twenty times as much as plain ones and keep loops from being vectorized. Where the part
of the field that a task adds to is small beside the number of additions, each thread adds to a copy, and
the copies are added up in a fixed order. This pass only marks such memories in `Task.privatized`; the backend
decides at the launch, when it knows the number of lanes.

Assumes scalar IR with exclusive atomics marked; runs after all passes that rewrite statements, since it names
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.nodes import LEAVES, Atomic, Kernel, Load, Mem, Store, Task, Value
from diffsim.ir.schedules import Privatized, scalars_within
from diffsim.ir.traversal import iterations, task_statements
from diffsim.passes.analysis.affine import Definitions, offset_of, task_definitions
from diffsim.passes.analysis.divergence import divergent_values
from diffsim.passes.analysis.regions import RegionMap, region_of

_MOST_SCALARS = 1 << 24  # of one copy; each thread has one, and clears and adds up all of it

IndexPrefix = tuple[tuple[Value | None, int], ...]


def privatize(kernel: Kernel) -> Kernel:
    """Return the kernel with `Task.privatized` filled in."""
    tasks = tuple(t.replace(privatized=_of_task(t)) for t in kernel.tasks)
    return kernel.replace(tasks=tasks)


def _of_task(task: Task) -> tuple[Privatized, ...]:
    """Return the memories of a task that threads may add up in copies."""
    if not task.axes:
        return ()
    found = list(task_statements(task))
    defs = task_definitions(task)
    groups: dict[Mem, list[Atomic]] = {}
    for s in found:
        if isinstance(s, Atomic) and not s.exclusive:
            groups.setdefault(s.mem, []).append(s)
    if not groups:
        return ()
    counts, divergent = iterations(task.body), divergent_values(task)
    made = []
    for mem, atomics in groups.items():
        # A copy starts from 0 and is added at the end, which is the neutral element of sums alone; and
        # an old value that is used would be that of the copy.
        if not _plain(mem) or any(s.op != "add" or s.out is not None for s in atomics):
            continue
        prefix = common_prefix(atomics, defs)
        if scalars_within(mem, len(prefix)) > _MOST_SCALARS:
            continue
        added = frozenset(atomics)
        others = RegionMap(
            (region_of(s, defs), s)
            for s in found
            if isinstance(s, (Load, Store, Atomic)) and s.mem is mem and s not in added
        )
        # Any other access in the same region would miss what still is in the copies.
        if not any(others.overlapping(region_of(s, defs)) for s in atomics):
            count = sum(counts[s] for s in atomics)
            # With a uniform index the lanes of a vector all add to one element: the backend then keeps
            # a slot for each lane (docs/adr/0008).
            meeting = sum(counts[s] for s in atomics if not divergent.intersection(s.index))
            made.append(Privatized(mem, prefix, added, count, meeting))
    return tuple(made)


def _plain(mem: Mem) -> bool:
    """Whether the memory is a field or array of numbers whose shape is known."""
    return mem.is_shaped and not mem.dtype.is_bool


def common_prefix(atomics: Sequence[Atomic | Load], defs: Definitions) -> IndexPrefix:
    """Return the first indices, as far as they are the same launch-wide value in all of the accesses."""
    prefix: list[tuple[Value | None, int]] = []
    for k in range(atomics[0].mem.rank):
        first = offset_of(atomics[0].index[k], defs)
        # Leading indices that the launch fixes select the part of the field that is copied: `w.grad[t,
        # j, k]` needs a copy of one layer only.
        if first[0] is not None and not isinstance(first[0], LEAVES):
            break
        if any(offset_of(s.index[k], defs) != first for s in atomics[1:]):
            break
        prefix.append(first)
    return tuple(prefix)
