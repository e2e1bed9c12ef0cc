"""Finds what depends on the order in which lanes run, for `ds.init(deterministic=True)` on the CPU.

A parallel task gives the same bits in every run if its lanes touch elements of their own, or update integers
that no lane reads meanwhile. Otherwise `Task.order` says what the backend must do:

- updates of floats whose old value is not used, and stores to elements that others may store to, are
  logged, and made in the order of the lanes (`backends/llvm/update_log.py`);
- where lanes may see what others have written (the old value of an atomic, a load of what may be
  another lane's), and where they print, all lanes run in order on one thread.

Assumes scalar IR with exclusive atomics marked; runs after `privatize`, since it names statements.
"""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Kernel, Load, Mem, Print, Store, Task
from diffsim.ir.schedules import FixedOrder
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.ownership import written_by_others


def order_updates(kernel: Kernel) -> Kernel:
    """Return the kernel with `Task.order` filled in."""
    return kernel.replace(tasks=tuple(t.replace(order=_of_task(t)) for t in kernel.tasks))


def _of_task(task: Task) -> FixedOrder | None:
    """Return what fixes the order of a task's updates; None if nothing depends on it."""
    if not task.axes:
        return None
    found = list(task_statements(task))
    on_one_thread = FixedOrder(frozenset(), serial=True)
    if any(isinstance(s, Print) for s in found):
        return on_one_thread  # of more lines than there is room for, the first ones are kept
    # What only one lane accesses has that lane's own order, whatever the schedule.
    ownership = written_by_others(task)
    shared: dict[Mem, list[Atomic | Store]] = {}
    for s in found:
        if isinstance(s, Load) and not ownership.is_own(s):
            # A load of what another lane may write sees how far that lane has come.
            return on_one_thread
        if isinstance(s, Atomic) and not s.exclusive:
            # The old value tells which lanes came before, so the order itself is observable.
            if s.out is not None:
                return on_one_thread
            shared.setdefault(s.mem, []).append(s)
        if isinstance(s, Store) and not ownership.is_own(s):
            shared.setdefault(s.mem, []).append(s)
    logged: set[Atomic | Store] = set()
    for mem, updates in shared.items():
        kinds = {s.op if isinstance(s, Atomic) else "store" for s in updates}
        if len(kinds) > 1 or mem.kind == "temp":
            return on_one_thread
        # Integer additions, minima and maxima commute and associate exactly (modulo 2^n), so their
        # result has no order. Floats round after each addition, and the last of several stores wins.
        if mem.dtype.scalar.is_float or "store" in kinds:
            logged.update(updates)
    return FixedOrder(frozenset(logged), serial=False) if logged else None
