"""Kernels of single tasks: what a tape differentiates one by one where the whole kernel cannot be.

    for i in x: x[i] = sin(x[i])              kernel 0: for i in x: x[i] = sin(x[i])
    for i in x: x[i] = cos(x[i])       ->     kernel 1: for i in x: x[i] = cos(x[i])

The adjoint of the whole needs x as it was between the tasks, which no copy from before the launch is.
Launched one after the other the kernels do the same, and a tape can save x before each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diffsim.errors import AutodiffError, place_of, together
from diffsim.ir.nodes import Atomic, CustomCall, Kernel, Load, Mem, Store, Task
from diffsim.ir.traversal import Rewriter, task_statements
from diffsim.ir.types import derivative_type
from diffsim.passes.autodiff.reverse import reverse


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


# ---- advice that can be followed: which refusals a tape that saves does not repeat


def with_advice(
    error: AutodiffError, kernel: Kernel, *, may_split: bool, switch: bool
) -> AutodiffError:
    """Return the refusal of a kernel's gradient with the advice to lift rules, where that gives it.

    Args:
        error: the refusal.
        kernel: the kernel.
        may_split: whether a tape may launch the kernel task by task.
        switch: whether the switch for all programs would change anything.
    """
    overwritten = any(p.narrower for p in error.parts)
    # Not all that is overwritten can be kept, and with it a launch may be unable to decide what it decides
    # without.
    left = _refused_when_saved(kernel, may_split=may_split) if overwritten else ()
    places = {place_of(e) for e in left}
    kept = places <= {place_of(p) for p in error.parts}
    return together(
        [
            p.advising(switch=switch) if p.narrower and kept and place_of(p) not in places else p
            for p in error.parts
        ]
    )


def _refused_when_saved(kernel: Kernel, *, may_split: bool) -> Iterator[AutodiffError]:
    whole = list(_refused(kernel))
    if not whole or not may_split:
        yield from whole
        return
    for part in split_tasks(kernel, {m: _stand_in(m) for m in temporaries(kernel)}):
        yield from _refused(part)


def _refused(kernel: Kernel) -> tuple[AutodiffError, ...]:
    try:
        reverse(kernel, in_place=True, new_version=_stand_in)
    except AutodiffError as error:
        return error.parts
    return ()


def _stand_in(mem: Mem, number: int = 0, *, with_grad: bool = True) -> Mem:
    """Return a memory like the field that would take the place of a temporary, or hold a version."""
    grad = None
    if with_grad and mem.dtype.is_float:
        grad = Mem(mem.name, derivative_type(mem.dtype), mem.rank, mem.shape, is_grad=True)
    return Mem(mem.name, mem.dtype, mem.rank, mem.shape, grad=grad)
