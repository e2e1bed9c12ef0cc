"""Removes clear-then-accumulate pairs on one gradient element.

The adjoint of `y[i] = y[i] + f(x[i])` loads the gradient of y[i], clears it, and adds it to the gradient of
what y[i] was before, which is the same element:

    %g = load y.grad[%i]                   %g = load y.grad[%i]
    store y.grad[%i], 0.0            ->    ...
    exclusive_add y.grad[%i], %g

Where another value is added, it is stored instead: the element is 0. Assumes that exclusive atomics are
marked. Promises: the same gradients (a zero may have the other sign).
"""

from __future__ import annotations

from typing import TypeGuard

from diffsim.ir.nodes import Atomic, Block, Const, Kernel, Load, Stmt, Store, Task
from diffsim.passes.analysis.access_order import LaneAccesses
from diffsim.passes.analysis.affine import Definitions, definitions


def forward_clears(kernel: Kernel) -> Kernel:
    """Return the kernel without clears of gradients that the same lane accumulates into next."""
    defs = definitions(kernel)
    tasks = tuple(_task(t, defs) for t in kernel.tasks)
    if all(a is b for a, b in zip(tasks, kernel.tasks, strict=True)):
        return kernel
    return kernel.replace(tasks=tasks)


def _task(task: Task, defs: Definitions) -> Task:
    """Return a task without pairs of a clear and an addition to the same element."""
    stmts = task.body.stmts
    # Only statements at the top of the body: a clear in a branch has its own statements after it.
    clears = [
        (k, s)
        for k, s in enumerate(stmts)
        if isinstance(s, Store) and s.mem.is_grad and _is_zero(s)
    ]
    if not clears:
        return task
    loads = {s.out: k for k, s in enumerate(stmts) if isinstance(s, Load)}
    lane = LaneAccesses(stmts, defs)
    changed: dict[int, Stmt | None] = {}
    for k, clear in clears:
        # The very next access to the element must be the addition; anything between them would see the
        # clear.
        at = lane.next_access(clear, k + 1)
        add = clear if at is None else stmts[at]
        if at is None or not (is_plain_sum(add) and lane.same_element(add, clear)):
            continue
        changed[k] = None
        # 0 + v = v (but for the sign of a zero), so the addition becomes the store, and the clear goes.
        changed[at] = Store(add.mem, add.index, add.value, add.span)
        loaded = loads.get(add.value, k)
        load = stmts[loaded]
        if isinstance(load, Load) and loaded < k and lane.same_element(load, clear):
            write = lane.next_access(clear, loaded, writing=True)
            if write == k:  # what is added back is what was there: the element keeps it
                changed[at] = None
    if not changed:
        return task
    left = (changed.get(k, s) for k, s in enumerate(stmts))
    body = Block([s for s in left if s is not None], task.body.yields)
    return task.replace(body=body)


def _is_zero(store: Store) -> bool:
    return isinstance(store.value, Const) and store.value.value == 0


def is_plain_sum(s: Stmt) -> TypeGuard[Atomic]:
    """Whether a lane adds to an element that is its own."""
    return isinstance(s, Atomic) and s.exclusive and s.op == "add" and s.out is None
