"""Seams: finds tasks whose lanes share elements with near lanes alone, as a sweep in place does.

    parallel %i in 1..n, %j in 1..m {        lanes (i, j) and (i', j') meet in an element only if
      atomic_add x.grad[%i - 1, %j], %g      i and i' are at most 2 apart: `Task.reach` is 2
      atomic_add x.grad[%i + 1, %j], %g
    }

The backend may then give each thread whole rows, and needs no atomics but for two rows at each border of
chunks, which wait until the chunks on both sides are done (`backends/cpu/seams.py`).

Assumes scalar IR with exclusive atomics marked. Promises: only marks tasks.
"""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, InlineLLVM, Kernel, Mem, Task
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.affine import Definitions, element_of, task_definitions
from diffsim.passes.analysis.dependence import Access, accesses_of, distances
from diffsim.passes.analysis.regions import disjoint, region_of_index

_MOST_REACH = 16  # rows; the chunks on both sides must be longer
_MOST_ELEMENTS = 64  # of one memory; each pair of them is asked


def find_seams(kernel: Kernel) -> Kernel:
    """Return the kernel with `Task.reach` filled in."""
    return kernel.replace(tasks=tuple(t.replace(reach=_reach(t)) for t in kernel.tasks))


def _reach(task: Task) -> int | None:
    """Return how far apart along the first axis lanes are that share an updated element; None: unknown."""
    # Lanes of a sparse tree are numbered by what is active, and other languages' code accesses anything.
    if not task.axes or task.active is not None:
        return None
    if any(isinstance(s, InlineLLVM) for s in task_statements(task)):
        return None
    touched: dict[Mem, list[Access]] = {}
    for s in accesses_of(task):
        touched.setdefault(s.mem, []).append(s)
    shared = [m for m, found in touched.items() if any(map(_is_shared, found))]
    most = 0
    for mem in shared:
        if mem.kind not in ("field", "array"):
            return None
        found = _distance(task, touched[mem])
        if found is None:
            return None
        most = max(most, found)
    return most if shared else None


def _is_shared(s: Access) -> bool:
    return isinstance(s, Atomic) and not s.exclusive


def _distance(task: Task, accesses: list[Access]) -> int | None:
    """Return how far apart lanes are that meet in one memory, one of them by an atomic update."""
    defs = task_definitions(task)
    updates = _each_element_once([s for s in accesses if _is_shared(s)], defs)
    others = _each_element_once(accesses, defs)
    if len(others) > _MOST_ELEMENTS:
        return None
    most = 0
    for a in updates:
        for b in others:
            if disjoint(region_of_index(a.index, defs), region_of_index(b.index, defs)):
                continue
            apart = distances(task, a, b, guarded=False)
            if apart.never:
                continue
            least, greatest = apart.of(task.axes[0])
            if max(-least, greatest) > _MOST_REACH:
                return None
            most = max(most, int(-least), int(greatest))
    return most


def _each_element_once(accesses: list[Access], defs: Definitions) -> list[Access]:
    """Return one access for each canonical index."""
    return list({element_of(s.index, defs): s for s in accesses}.values())
