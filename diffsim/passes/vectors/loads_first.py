"""Loads first: what a lane loads behind a branch, whatever it does, moves before it, to others'.

    %a = load x[%i, %j - 1]                       %a = load x[%i, %j - 1]
    %new = if %c { ... }                          %b = load x[%i, %j]
    %b = load x[%i, %j]                    ->     %new = if %c { ... }

LLVM sees that the next lane's `x[%i, %j - 1]` is this one's `x[%i, %j]`, and keeps it in a register from lane
to lane. Where that is known only behind a branch that depends on the other, no vector can be made of the
lanes any more: they took four times as long. Loaded in one place, both are vectors.

For lanes without loops, which are no vectors of ours, and fields of scalars: components are shuffled. No
statement changes but its place: a load moves before none that may write its memory, and with what its index
is computed of alone.
"""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Block, For, If, Let, Load, Mem, Stmt, Store, Task, Value, While
from diffsim.ir.traversal import outs, statements, uses
from diffsim.passes.analysis.affine import Element, element_of, task_definitions


def with_loads_first(task: Task) -> Task:
    """Return the task whose loads of neighbours along the row are in one place."""
    stmts = list(task.body.stmts)
    first = next((k for k, s in enumerate(stmts) if isinstance(s, If)), len(stmts))
    if not task.axes or not any(isinstance(s, Load) for s in stmts[first:]):
        return task
    if any(isinstance(s, (For, While)) for s in statements(task.body)):
        return task
    moving = _moving(task, stmts, first)
    if not moving:
        return task
    early = [s for s in stmts[first:] if s in moving]
    late = [s for s in stmts[first:] if s not in moving]
    return task.replace(body=Block([*stmts[:first], *early, *late], task.body.yields))


def _moving(task: Task, stmts: list[Stmt], first: int) -> set[Stmt]:
    """Return the statements behind the first branch that move before it."""
    rows = _rows(task)
    made = {v: s for s in stmts[first:] for v in outs(s)}
    written: set[Mem] = set()
    found: set[Stmt] = set()
    for s in stmts[first:]:
        if (
            isinstance(s, Load)
            and not s.mem.dtype.shape
            and s.mem not in written
            and len(rows[_row_of(s, task)]) > 1
        ):
            needed = _needed(s, made, found)
            if needed is not None:
                found |= needed
        for x in statements(Block([s])):
            if isinstance(x, (Store, Atomic)):
                written.add(x.mem)
    return found


def _needed(s: Load, made: dict[Value, Stmt], found: set[Stmt]) -> set[Stmt] | None:
    """Return a load and what its index is computed of behind the branch; None: of more than arithmetic."""
    needed: set[Stmt] = {s}
    work: list[Stmt] = [s]
    while work:
        for v in uses(work.pop()):
            x = made.get(v)
            if x is None or x in needed or x in found:
                continue
            if not isinstance(x, Let):
                return None
            needed.add(x)
            work.append(x)
    return needed


def _rows(task: Task) -> dict[tuple[Mem, object], set[int]]:
    """Return where along a row a lane loads, whatever it does, by memory and row."""
    found: dict[tuple[Mem, object], set[int]] = {}
    for s in task.body.stmts:
        if isinstance(s, Load):
            shift = dict(_element(s, task)).get(task.axes[-1], 0)
            found.setdefault(_row_of(s, task), set()).add(shift)
    return found


def _row_of(s: Load, task: Task) -> tuple[Mem, object]:
    lane = task.axes[-1]
    return s.mem, tuple((base, 0 if base is lane else n) for base, n in _element(s, task))


def _element(s: Load, task: Task) -> Element:
    return element_of(s.index, task_definitions(task))
