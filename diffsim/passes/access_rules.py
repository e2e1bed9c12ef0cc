"""The global data access rules inside of one kernel.

The adjoint runs after the kernel and loads fields again. What it loads must be what the forward code saw:
no statement of the kernel may write an element after a load that the adjoint repeats. The check looks at
exactly the loads that are left in the finished adjoint, and lets pass what it can prove:

- writes and loads of different rows (x[t + 1, i] and x[t, i] with the argument t, or constants);
- writes by an earlier task, or earlier in the same lane on an element that no other lane reaches;
- anything whose value the adjoint does not load (sums, linear updates).

In a parallel loop, an element that one lane writes and another may read is a race in the forward program
already; its gradient is refused too.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffsim.errors import GlobalDataAccessError
from diffsim.ir.nodes import Atomic, Block, Const, For, Kernel, Let, Load, Store, Task, Value, While
from diffsim.ir.walk import blocks, task_statements
from diffsim.passes.access import apart, definitions, part_of
from diffsim.passes.activity import Activity
from diffsim.passes.affine import offset_of

Place = tuple[int, tuple[For | While, ...]]
"""Where a statement stands: its number in program order, and the loops around it."""


def check_access(primal: Kernel, adjoint: Kernel, activity: Activity) -> None:
    """Refuse a kernel whose adjoint would load elements that the kernel changed after reading them.

    Raises:
        GlobalDataAccessError: with the line that reads and the line that writes.
    """
    needed = {
        s.origin
        for t in adjoint.tasks
        for s in task_statements(t)
        if isinstance(s, Load) and s.mem.kind in ("field", "array") and not s.mem.is_grad
    }
    made_by = definitions(primal)
    for number, task in enumerate(primal.tasks):
        places = dict(_places(task.body))
        for later, other in enumerate(primal.tasks[number:], number):
            other_places = places if later == number else dict(_places(other.body))
            for load in [s for s in places if isinstance(s, Load) and s.mem.kind != "scratch"]:
                for write in [s for s in other_places if isinstance(s, (Store, Atomic))]:
                    if write.mem is not load.mem or load.mem.kind == "temp":
                        continue
                    if _disjoint(load, write, made_by):
                        continue
                    pair = _Pair(load, write, task, made_by)
                    if later > number:
                        if load in needed:
                            raise pair.stale()
                    elif load in needed or load.out in activity.values:
                        pair.check(places[load], places[write], needed=load in needed)
        for s in places:
            if isinstance(s, Store):
                _check_store(s, task, activity, made_by)


def _places(block: Block) -> Iterator[tuple[Load | Store | Atomic, Place]]:
    count = 0

    def visit(b: Block, loops: tuple[For | While, ...]) -> Iterator[tuple[Load | Store | Atomic, Place]]:
        nonlocal count
        for s in b.stmts:
            count += 1
            if isinstance(s, (Load, Store, Atomic)):
                yield s, (count, loops)
            inside = (*loops, s) if isinstance(s, (For, While)) else loops
            for inner in blocks(s):
                yield from visit(inner, inside)

    yield from visit(block, ())


def _disjoint(a: Load, b: Store | Atomic, made_by: dict[Value, Let]) -> bool:
    rank = a.mem.rank
    if apart(part_of(a.index[:rank], made_by), part_of(b.index[:rank], made_by)):
        return True
    return any(
        isinstance(x, Const) and isinstance(y, Const) and x.value != y.value
        for x, y in zip(a.index[rank:], b.index[rank:], strict=False)
    )


class _Pair:
    """A load and a write that may reach the same element."""

    def __init__(
        self, load: Load, write: Store | Atomic, task: Task, made_by: dict[Value, Let]
    ) -> None:
        self.load = load
        self.write = write
        self.task = task
        self.made_by = made_by

    def check(self, load: Place, write: Place, *, needed: bool) -> None:
        """Within one task."""
        if self.task.axes and not self.bound_to(self.task.axes):
            raise self.racing()
        if not needed:
            return
        common = [s for s, t in zip(load[1], write[1], strict=False) if s is t]
        indices = [s.index for s in common if isinstance(s, For)]
        in_step = len(indices) == len(common) and self.bound_to(tuple(indices))
        if common and not in_step:
            raise self.stale()
        if write[0] > load[0]:
            raise self.stale()

    def bound_to(self, axes: tuple[Value, ...]) -> bool:
        """Whether both index tuples hold each axis at the same place with the same shift."""
        for axis in axes:
            places = [
                {
                    (k, shift)
                    for k, i in enumerate(s.index[: s.mem.rank])
                    for base, shift in [offset_of(i, self.made_by)]
                    if base is axis
                }
                for s in (self.load, self.write)
            ]
            if not places[0] & places[1]:
                return False
        return True

    def stale(self) -> GlobalDataAccessError:
        name = self.load.mem.name
        return GlobalDataAccessError(
            f"the gradient needs {name} as it was read, and the kernel changes it later: global data "
            f"access rule 1\n  changed here:\n{self.write.span.text()}\n  read here:",
            self.load.span,
            hint=f"write into another field (or another row: {name}[t + 1, ...]), or do it in another "
            "kernel",
        )

    def racing(self) -> GlobalDataAccessError:
        name = self.load.mem.name
        return GlobalDataAccessError(
            f"a turn of this parallel loop may read an element of {name} that another one writes, so "
            f"there is no defined gradient\n  written here:\n{self.write.span.text()}\n  read here:",
            self.load.span,
            hint="read and write different fields, or split the loop in two",
        )


def _check_store(
    s: Store, task: Task, activity: Activity, made_by: dict[Value, Let]
) -> None:
    if not task.axes or s.mem.grad is None:
        return
    varying = {v for v in task.axes}
    if all(_invariant(i, varying, made_by) for i in s.index):
        raise GlobalDataAccessError(
            f"all turns of this parallel loop store into the same element of {s.mem.name}, so there is "
            "no defined gradient",
            s.span,
            hint=f"add instead: {s.mem.name}[...] += value",
        )


def _invariant(v: Value, varying: set[Value], made_by: dict[Value, Let]) -> bool:
    """Whether an index is made of constants and arguments alone."""
    base, _ = offset_of(v, made_by)
    if base is None:
        return True
    let = made_by.get(base)
    if let is not None:
        return all(_invariant(a, varying, made_by) for a in let.args)
    return base.__class__ is not Value
