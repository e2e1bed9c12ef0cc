"""A gradient that is taken and given back stays where it is.

The adjoint of `y[i] = y[i] + f(x[i])` takes the gradient of y[i], clears it, and adds it to the gradient of
what y[i] was before, which is the same element:

    %g = load y.grad[%i]                   %g = load y.grad[%i]
    store y.grad[%i], 0.0            ->    ...
    exclusive_add y.grad[%i], %g

Where something else is added, it is stored instead. Assumes that atomics are marked `exclusive` where they
are. Promises: the same gradients (a zero may have the other sign).
"""

from __future__ import annotations

from collections.abc import Iterable

from diffsim.ir.nodes import Atomic, Block, Const, Kernel, Let, Load, Stmt, Store, Task, Value
from diffsim.ir.walk import statements
from diffsim.passes.access import definitions
from diffsim.passes.affine import offset_of

Access = Load | Store | Atomic


def leave_in_place(kernel: Kernel) -> Kernel:
    """The kernel without clearings of gradients that the same lane adds to next."""
    made_by = definitions(kernel)
    tasks = tuple(_task(t, made_by) for t in kernel.tasks)
    if all(a is b for a, b in zip(tasks, kernel.tasks, strict=True)):
        return kernel
    return Kernel(kernel.name, kernel.args, kernel.mems, tasks, kernel.span, kernel.result)


def _task(task: Task, made_by: dict[Value, Let]) -> Task:
    stmts = task.body.stmts
    loads = {s.out: k for k, s in enumerate(stmts) if isinstance(s, Load)}
    changed: dict[int, Stmt | None] = {}
    for k, clear in enumerate(stmts):
        if not (isinstance(clear, Store) and clear.mem.is_grad and _is_zero(clear.value)):
            continue
        at, add = next(
            ((j, s) for j, s in enumerate(stmts) if j > k and touch([s], clear, made_by)),
            (k, clear),
        )
        if not (isinstance(add, Atomic) and add.exclusive and add.op == "add" and add.out is None):
            continue
        if not same_place(add, clear, made_by):
            continue
        changed[k] = None
        changed[at] = Store(add.mem, add.index, add.value, add.span)
        took = loads.get(add.value, k)
        load = stmts[took]
        if isinstance(load, Load) and took < k and same_place(load, clear, made_by):
            writes = (s for s in stmts[took:k] if not isinstance(s, Load))
            if not touch(writes, clear, made_by):
                changed[at] = None
    if not changed:
        return task
    left = (changed.get(k, s) for k, s in enumerate(stmts))
    body = Block([s for s in left if s is not None], task.body.yields)
    return task.replace(body=body)


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.value == 0


def same_place(a: Access, b: Access, made_by: dict[Value, Let]) -> bool:
    """Whether two statements of a lane certainly mean the same element."""
    return a.mem is b.mem and all(
        offset_of(i, made_by) == offset_of(j, made_by)
        for i, j in zip(a.index, b.index, strict=True)
    )


def touch(stmts: Iterable[Stmt], one: Access, made_by: dict[Value, Let]) -> bool:
    """Whether statements of a lane may touch the element that another one means.

    Not if some index is the same value plus another constant.
    """
    mine = [offset_of(i, made_by) for i in one.index]
    for s in statements(Block(list(stmts))):
        if isinstance(s, (Load, Store, Atomic)) and s.mem is one.mem:
            theirs = (offset_of(i, made_by) for i in s.index)
            if not any(a is b and n != m for (a, n), (b, m) in zip(mine, theirs, strict=False)):
                return True
    return False
