"""Kinds of simple tasks that passes and backends must recognise alike.

A GPU thread runs several short lanes without branches and loops side by side:
`passes/transforms/sink_stores.py` moves their loads to the front and their stores to the end,
`backends/simt/distribution.py` lowers them. Tasks over boxes of constant size, whose lanes write only
elements of their own, may share a launch (`passes/transforms/fuse_tasks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.layout import strides_of
from diffsim.ir.nodes import Alloca, Atomic, Const, Let, Load, Stmt, Store, Task, Value
from diffsim.ir.traversal import blocks, statements, uses

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


def fills_tables(task: Task) -> bool:
    """Whether a task stores what is the same in all launches, so that the first one alone runs it."""
    return any(isinstance(s, Store) and s.mem.kind == "table" for s in task.body.stmts)


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


def is_one_row(task: Task) -> bool:
    """Whether the rows of a box follow one another in all memories that its lanes access.

    So it is where lanes (i, k) use their numbers for nothing but elements [i, k], of rows as long as the
    memory's. Not where something else depends on rows: private copies, seams, idle lanes.
    """
    sizes = box_sizes(task)
    if not short_row(task) or sizes is None or task.privatized or task.reach or task.order:
        return False
    if task.simd or task.appends or task.aligned or task.lag is not None or task.active is not None:
        return False
    if any(lo.value for lo in task.bounds.yields[2::2] if isinstance(lo, Const)):
        return False
    own = set(task.axes)
    if own.intersection(v for _, _, index in task.reductions for v in index):
        return False
    return own.isdisjoint(task.body.yields) and all(
        _follows_rows(s, task.axes, sizes, own) for s in statements(task.body)
    )


def _follows_rows(s: Stmt, axes: Sequence[Value], sizes: Sequence[int], own: set[Value]) -> bool:
    """Whether a statement uses the numbers of a lane as one: its place in a memory, or not at all."""
    inside = [v for block in blocks(s) for v in block.yields]
    used = [v for v in (*uses(s), *inside) if v in own]
    if not used:
        return True
    if (
        not isinstance(s, (Load, Store, Atomic))
        or s.mem.kind not in ("field", "table")
        or s.mem.shape is None
    ):
        return False
    index = s.index[: s.mem.rank]
    if sorted(map(id, used)) != sorted(map(id, axes)) or not own.issubset(index):
        return False
    strides = [strides_of(s.mem)[index.index(axis)] for axis in axes]
    return all(
        far == near * n for far, near, n in zip(strides, strides[1:], sizes[1:], strict=False)
    )


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
