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

import bisect
import itertools
from collections.abc import Sequence
from operator import itemgetter
from typing import TypeGuard

from diffsim.ir.nodes import Atomic, Block, Const, Kernel, Let, Load, Mem, Stmt, Store, Task, Value
from diffsim.ir.traversal import statements
from diffsim.passes.analysis.affine import offset_of
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.analysis.regions import definitions

Bases = tuple[Value | None, ...]
Shifts = tuple[int, ...]


def forward_clears(kernel: Kernel) -> Kernel:
    """The kernel without clearings of gradients that the same lane adds to next."""
    made_by = definitions(kernel)
    tasks = tuple(_task(t, made_by) for t in kernel.tasks)
    if all(a is b for a, b in zip(tasks, kernel.tasks, strict=True)):
        return kernel
    return kernel.replace(tasks=tasks)


def _task(task: Task, made_by: dict[Value, Let]) -> Task:
    stmts = task.body.stmts
    clears = [
        (k, s)
        for k, s in enumerate(stmts)
        if isinstance(s, Store) and s.mem.is_grad and _is_zero(s)
    ]
    if not clears:
        return task
    loads = {s.out: k for k, s in enumerate(stmts) if isinstance(s, Load)}
    lane = Lane(stmts, made_by)
    changed: dict[int, Stmt | None] = {}
    for k, clear in clears:
        at = lane.next_touch(clear, k + 1)
        add = clear if at is None else stmts[at]
        if at is None or not (is_plain_sum(add) and lane.same_place(add, clear)):
            continue
        changed[k] = None
        changed[at] = Store(add.mem, add.index, add.value, add.span)
        took = loads.get(add.value, k)
        load = stmts[took]
        if isinstance(load, Load) and took < k and lane.same_place(load, clear):
            write = lane.next_touch(clear, took, writing=True)
            if write == k:
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


class Lane:
    """Where the statements of a lane touch which elements.

    An element is told by the bases of its indices, and by what constants are added to them.
    """

    def __init__(self, stmts: Sequence[Stmt], made_by: dict[Value, Let]) -> None:
        self._made_by = made_by
        self._touched: dict[Mem, dict[Bases, dict[Shifts, list[tuple[int, Access]]]]] = {}
        for k, s in enumerate(stmts):
            for x in statements(Block([s])):
                if isinstance(x, (Load, Store, Atomic)):
                    bases, shifts = self._place(x)
                    places = self._touched.setdefault(x.mem, {}).setdefault(bases, {})
                    places.setdefault(shifts, []).append((k, x))

    def _place(self, one: Access) -> tuple[Bases, Shifts]:
        places = [offset_of(i, self._made_by) for i in one.index]
        return tuple([base for base, _ in places]), tuple([shift for _, shift in places])

    def same_place(self, one: Access, other: Access) -> bool:
        """Whether two statements certainly mean the same element."""
        return one.mem is other.mem and self._place(one) == self._place(other)

    def next_touch(self, one: Access, since: int, *, writing: bool = False) -> int | None:
        """The first statement from `since` on that may touch (or only write) the element that one means.

        It does not if some index is the same value plus another constant.
        """
        bases, shifts = self._place(one)
        found: list[int] = []
        for theirs, places in self._touched.get(one.mem, {}).items():
            if theirs == bases:
                close = [places.get(shifts, [])]
            else:
                same = [k for k, (a, b) in enumerate(zip(bases, theirs, strict=False)) if a is b]
                close = [p for at, p in places.items() if all(at[k] == shifts[k] for k in same)]
            for p in close:
                after = itertools.islice(p, bisect.bisect_left(p, since, key=itemgetter(0)), None)
                at = next((k for k, x in after if not (writing and isinstance(x, Load))), None)
                if at is not None:
                    found.append(at)
        return min(found, default=None)

    def loaded_before(self, one: Access, k: int) -> bool:
        """Whether a statement before the one numbered k loads the element."""
        bases, shifts = self._place(one)
        places = self._touched.get(one.mem, {}).get(bases, {})
        return any(j < k and isinstance(x, Load) for j, x in places.get(shifts, ()))
