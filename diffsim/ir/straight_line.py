"""Short lanes without branches and loops: a GPU thread runs several of them side by side.

`passes/transforms/sink_stores.py` puts their loads first and their stores last,
`backends/simt/distribution.py` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.nodes import Atomic, Let, Load, Stmt, Store

MOST_LOADS = 12  # of a lane; more of them at a time take too many registers
MOST_STATEMENTS = 64
MOST_PARTS = 96
"""Statements once each update, of which there are MOST_LOADS at most, is a load, a sum and a store."""


def is_straight(stmts: Sequence[Stmt]) -> bool:
    """Whether there is nothing but arithmetic, loads, stores and updates of elements of a lane's own."""
    return all(
        isinstance(s, (Let, Load, Store)) or (isinstance(s, Atomic) and s.exclusive) for s in stmts
    )


def count_loads(stmts: Sequence[Stmt]) -> int:
    """How many of the statements load something; updates do."""
    return sum(isinstance(s, (Load, Atomic)) for s in stmts)
