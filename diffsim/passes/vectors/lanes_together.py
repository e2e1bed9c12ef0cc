"""Whether lanes may run together as vectors, interleaved statement by statement.

The lanes of a vector are neighbours along the last axis: they have all other indices in common.

    for %i, %k in box {
      store h[%row, %k], ...          any %row, also one loaded from a list: lane %k's are in column %k

So only lanes of one row must not see what each other stores. Rows run one after the other in a chunk, as
without vectors, and a row that another chunk writes as well is the program's race in either case.
"""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Check, InlineLLVM, Load, Print, Stmt, Store, Task
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.dependence import distances
from diffsim.passes.analysis.ownership import own_without_pairs

MOST_PAIRS = 64
"""Accesses to one memory that the dependence test is asked about."""


def may_run_together(task: Task, *, has_masks: bool) -> bool:
    """Whether lanes may be interleaved statement by statement.

    Args:
        task: scalar IR.
        has_masks: whether the processor stores some lanes of a vector as fast as all of them.
    """
    found = list(task_statements(task))
    for s in found:
        if isinstance(s, (Check, Print, InlineLLVM)):
            return False
        if isinstance(s, Atomic) and (s.out is not None or s.mem.dtype.is_bool):
            return False
        # A temporary is one element for all lanes, and what it holds in between is visible to each.
        if isinstance(s, (Store, Atomic)) and s.mem.kind == "temp":
            return False
    return _lanes_are_apart(task, found, whole=not has_masks and _stores_some_lanes(task, found))


def _stores_some_lanes(task: Task, found: list[Stmt]) -> bool:
    """Whether lanes that are idle may write back what they have loaded (`simd/masked_accesses.py`).

    Another thread may have stored that element meanwhile, if a lane of another row does.
    """
    always = set(task.body.stmts)
    return any(isinstance(s, (Store, Atomic)) and s not in always for s in found)


def _lanes_are_apart(task: Task, found: list[Stmt], *, whole: bool) -> bool:
    """Whether what a lane loads or stores, no other lane of its row, or of the whole task, changes."""
    ownership = own_without_pairs(task)
    row, lanes = ((), task.axes) if whole else (task.axes[:-1], task.axes[-1:])
    open_ = [s for s in found if isinstance(s, (Load, Store)) and not ownership.is_own(s)]
    writes = [s for s in found if isinstance(s, (Store, Atomic))]
    pairs = [(s, w) for s in open_ for w in writes if w.mem is s.mem]
    return len(pairs) <= MOST_PAIRS and all(
        distances(task, s, w, row).same(lanes) for s, w in pairs
    )
