"""One function for tasks that are the same but for their bounds.

The rims of a gathered stencil have one body, and so have the sweeps of a solver that a kernel writes down
again and again. Each would take LLVM as long as the first.

    define internal void @task1(...)        store the bounds of task 1; call @task1
                                            store the bounds of task 2; call @task1

Bounds that differ are loaded from slots that all of them share, since tasks run one after the other. Which
tasks are alike is only guessed here: functions are one if their text is.
"""

from __future__ import annotations

import re
from collections.abc import Hashable

from diffsim.backends.cpu.scheduling import functions_of
from diffsim.backends.llvm.module import Module
from diffsim.ir.nodes import LEAVES, Block, Const, Stmt, Task, Value
from diffsim.ir.simple_tasks import box_sizes
from diffsim.ir.traversal import blocks, outs, uses

SHORTEST_ROW = 4
"""Lanes that LLVM may make vectors of."""
_NODE = re.compile(r"!(\d\d+)")
"""Metadata of a function's own: nodes below 10 are fixed."""


def find_alike(module: Module) -> None:
    """Say which tasks of a kernel may have one function, and where its bounds are."""
    groups: dict[Hashable, list[int]] = {}
    kernel = module.kernel
    candidates = [k for k in range(len(kernel.tasks)) if _is_plain(module, k)]
    if len(candidates) < 2:
        return
    for k in candidates:
        task = kernel.tasks[k]
        groups.setdefault((_row(task), _Shape().of(task)), []).append(k)
    for group in groups.values():
        if len(group) > 1:
            _share(module, tuple(group))


def _is_plain(module: Module, k: int) -> bool:
    """Return whether a task has but one function, which knows nothing else of its task than the bounds."""
    tasks = module.kernel.tasks
    task = tasks[k]
    has_more = task.reductions or task.packed or task.order or task.appends or task.privatized
    trails = task.lag is not None or (k + 1 < len(tasks) and tasks[k + 1].lag is not None)
    return bool(task.axes) and not (has_more or trails) and functions_of(module, task) == ("task",)


def _row(task: Task) -> int:
    """Return the number of lanes in a row that is too short for vectors; 0: it is not.

    Code for rows of any length would take longer for them.
    """
    lo, hi = task.bounds.yields[-2:]
    known = isinstance(lo, Const) and isinstance(hi, Const)
    size = int(hi.value) - int(lo.value) if known else 0  # type: ignore[attr-defined]
    return size if 0 < size <= SHORTEST_ROW else 0


def _share(module: Module, group: tuple[int, ...]) -> None:
    """Give the bounds of some tasks the same slots, where they are not the same constants."""
    tasks, layout = module.kernel.tasks, module.layout
    boxes = [box_sizes(tasks[k]) for k in group]
    for a in range(len(tasks[group[0]].axes)):
        sizes = {-1 if box is None else box[a] for box in boxes}
        if len(sizes) == 1 and -1 not in sizes:
            module.same_sizes.update(dict.fromkeys(((k, a) for k in group), sizes.pop()))
    module.sharing.update(dict.fromkeys(group, group))
    for j, v in enumerate(tasks[group[0]].bounds.yields):
        others = [tasks[k].bounds.yields[j] for k in group]
        if all(isinstance(x, Const) and x.value == v.value for x in others):  # type: ignore[attr-defined]
            continue
        layout.bounds.update(dict.fromkeys(((k, j) for k in group), layout.size))
        layout.size += 1


def unless_written(module: Module, k: int, lines: list[str], written: dict[str, int]) -> list[str]:
    """Return the lines of a task's function; none if it is written already, as another task's."""
    if k not in module.sharing:
        return lines
    # The nodes of alias scopes and loops, in the order in which the text names them.
    nodes: dict[str, str] = {}
    text = "\n".join(lines).replace(f"@task{k}(", "@task(")
    text = _NODE.sub(lambda found: nodes.setdefault(found[1], f"!n{len(nodes)}"), text)
    first = written.setdefault(text, k)
    if first == k:
        return lines
    module.same_as[k] = first
    return []


class _Shape:
    """The statements of a body, with their values numbered."""

    def __init__(self) -> None:
        self.numbers: dict[Value, int] = {}

    def of(self, task: Task) -> Hashable:
        return tuple(map(self.value, task.axes)), self.block(task.body)

    def value(self, v: Value) -> Hashable:
        if isinstance(v, Const):
            return str(v.type), repr(v.value)
        return v if isinstance(v, LEAVES) else self.numbers.setdefault(v, len(self.numbers))

    def block(self, block: Block) -> Hashable:
        return *map(self.stmt, block.stmts), *map(self.value, block.yields)

    def stmt(self, s: Stmt) -> Hashable:
        what = type(s), getattr(s, "op", None), getattr(s, "mem", None)
        values = *map(self.value, uses(s)), *map(self.value, outs(s))
        return what, values, tuple(map(self.block, blocks(s)))
