"""Branches whose results no other statement of their block reads.

    if a {                       if a {
      ...                          ...
    } else {                     } else {
      if b { ... }       ->        if b { its forward code, its adjoint }
    }                            }

The adjoint of a branch runs its sides forwards again before it runs them backwards. The forward code of a
branch within a side would come twice: with the statements before it, and on the sides of its own adjoint.
Where nothing but the adjoint reads what it computes, the second time is enough. A chain of k `elif` is k
branches within one another, whose forward code would be k * k statements.
"""

from __future__ import annotations

from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Check,
    If,
    Let,
    Load,
    Print,
    Stmt,
    Store,
    Value,
)
from diffsim.ir.traversal import blocks, entered, outs, uses


class BranchReads:
    """The values that blocks of a region read. Each block is looked at once, however deep in others it is."""

    def __init__(self) -> None:
        self._free: dict[Block, frozenset[Value]] = {}
        self._repeatable: dict[If, bool] = {}

    def free(self, block: Block) -> frozenset[Value]:
        """Return the values that a block reads and does not bind (leaves left out)."""
        known = self._free.get(block)
        if known is None:
            found = {v for v in block.yields if not isinstance(v, LEAVES)}
            for s in reversed(block.stmts):
                found.difference_update(outs(s))
                found.update(self._read(s))
            known = self._free[block] = frozenset(found)
        return known

    def without_unread(self, block: Block) -> Block:
        """Return a block without the branches that compute nothing which its statements read."""
        found = self._unread(block)
        return Block([s for s in block.stmts if s not in found]) if found else block

    def _unread(self, block: Block) -> set[Stmt]:
        # What the block yields does not count: an adjoint is not asked for it.
        found, read = set[Stmt](), set[Value]()
        first = next((k for k, s in enumerate(block.stmts) if isinstance(s, If)), None)
        for s in () if first is None else reversed(block.stmts[first:]):
            if isinstance(s, If) and read.isdisjoint(s.outs) and self._may_come_once(s):
                found.add(s)
            # Also of those found: their adjoints need what is before them.
            read.update(self._read(s))
        return found

    def _read(self, s: Stmt) -> set[Value]:
        """Return the values that a statement and the blocks in it read, of those bound before it."""
        found = {v for v in uses(s) if not isinstance(v, LEAVES)}
        for inner in blocks(s):
            found.update(self.free(inner))
        return found.difference(entered(s))

    def _may_come_once(self, branch: If) -> bool:
        """Whether the forward code of a branch changes nothing: neither scratch, nor what loops save.

        Without loops it also has no result besides `outs` that is read without being an operand: where logged
        loads are (`load_positions.py`).
        """
        known = self._repeatable.get(branch)
        if known is None:
            known = self._repeatable[branch] = all(
                isinstance(s, (Let, Load, Atomic, Check, Print))
                or (isinstance(s, If) and self._may_come_once(s))
                # In an adjoint stores are not repeated but on scratch, and atomics nowhere.
                or (isinstance(s, Store) and s.mem.kind != "scratch")
                for side in blocks(branch)
                for s in side.stmts
            )
        return known
