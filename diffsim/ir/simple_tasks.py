"""Kinds of simple tasks that passes and backends must recognise alike.

A GPU thread runs several short lanes without branches and loops side by side:
`passes/transforms/sink_stores.py` moves their loads to the front and their stores to the end,
`backends/simt/distribution.py` lowers them. Tasks over boxes of constant size, whose lanes write only
elements of their own, may share a launch (`passes/transforms/fuse_tasks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.nodes import Alloca, Atomic, Const, Let, Load, Stmt, Store, Task
from diffsim.ir.traversal import statements

_SHORT_ROW = 128  # lanes
MOST_LOADS = 12  # of a lane; more of them at a time take too many registers
# Several lanes of a thread are lowered side by side, so a long lane would multiply the code and its
# registers.
MOST_STATEMENTS = 64
MOST_PARTS = 96
"""Statements once each update, of which there are MOST_LOADS at most, is a load, a sum and a store."""


def is_straight(stmts: Sequence[Stmt]) -> bool:
    """Whether there is nothing but arithmetic, loads, stores and updates of elements of a lane's own."""
    return all(
        isinstance(s, (Let, Load, Store)) or (isinstance(s, Atomic) and s.exclusive) for s in stmts
    )


def count_loads(stmts: Sequence[Stmt]) -> int:
    """Count the statements that load something; updates do."""
    return sum(isinstance(s, (Load, Atomic)) for s in stmts)


def box_sizes(task: Task) -> list[int] | None:
    """Return the number of lanes along each axis, if all bounds are constants."""
    sizes = []
    for lo, hi in zip(task.bounds.yields[::2], task.bounds.yields[1::2], strict=True):
        if not (isinstance(lo, Const) and isinstance(hi, Const)):
            return None
        sizes.append(max(0, int(hi.value) - int(lo.value)))
    return sizes


def short_row(task: Task) -> int:
    """Return the number of lanes along the last of several axes, if it is constant and small; 0: it is not.

    The ends of such rows take as long as the rest.
    """
    if len(task.axes) < 2:
        return 0
    lo, hi = task.bounds.yields[-2:]
    if not (isinstance(lo, Const) and isinstance(hi, Const)):
        return 0
    length = int(hi.value) - int(lo.value)
    return length if 0 < length <= _SHORT_ROW else 0


def is_plain(task: Task) -> bool:
    """Whether a task runs over a box of constant size, and needs nothing but its lanes.

    That is: no reductions, no scratch, no atomics that lanes share, and no stores but to fields.
    """
    inside = list(statements(task.body))
    return (
        bool(task.axes)
        and box_sizes(task) is not None
        and not task.bounds.stmts
        and not task.reductions
        and not any(isinstance(s, Alloca) for s in inside)
        and not any(isinstance(s, Atomic) and not s.exclusive for s in inside)
        and not any(isinstance(s, (Store, Atomic)) and s.mem.kind != "field" for s in inside)
    )
