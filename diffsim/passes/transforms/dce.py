"""Eliminates dead code.

Promises: every statement left either changes memory that is visible outside the launch, or computes a
value that such a statement needs. Carried values, branch results, scratch and temporaries that are never
read go with the code that computes them; this is how an adjoint loses the part of the forward program that
it does not need, and how a loop's reversal saves only what the adjoint of its body reads.

Marks from the visible effects over the whole kernel, once, in time linear in its size.
"""

from __future__ import annotations

from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Check,
    CustomCall,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Value,
    While,
)
from diffsim.ir.traversal import blocks, outs, uses

_HIDDEN = ("temp", "scratch")


class _Marks:
    """The live statements, found by following uses back to definitions."""

    def __init__(self, kernel: Kernel, internal: frozenset[Mem]) -> None:
        self.internal = internal
        self.result = kernel.result
        self.defined_by: dict[Value, tuple[Stmt, int]] = {}
        self.parent: dict[Stmt, Stmt | None] = {}
        self.writers: dict[Mem, list[Stmt]] = {}
        self.live: set[Stmt] = set()
        self.positions: set[tuple[Stmt, int]] = set()
        self.read: set[Mem] = set()
        self.work: list[Value] = []
        roots: list[Stmt] = []
        for task in kernel.tasks:
            for block in (task.bounds, task.body):
                self._collect(block, None, roots)
                self.work.extend(block.yields)
        # Mark: from effects and from what tasks yield, through uses to definitions (Cytron et al. 1991,
        # section 7.1). A worklist instead of recursion along uses, since chains of thousands of
        # statements are common.
        for stmt in roots:
            self._keep(stmt)
        while self.work:
            self._need(self.work.pop())

    def _collect(self, block: Block, parent: Stmt | None, roots: list[Stmt]) -> None:
        """Collect definitions, writers of hidden memories, and the statements that are live in any case."""
        for stmt in block.stmts:
            self.parent[stmt] = parent
            if isinstance(stmt, (Let, Load)):  # most statements
                self.defined_by[stmt.out] = (stmt, 0)
                continue
            for k, v in enumerate(outs(stmt)):
                self.defined_by[v] = (stmt, k)
            if isinstance(stmt, (For, While)):
                # A parameter and the result at the same position are one carried value: needed
                # together, or not at all.
                for k, v in enumerate(stmt.params):
                    self.defined_by[v] = (stmt, k)
                if isinstance(stmt, For):
                    # -1: the index is no carried value; needing it only keeps the loop.
                    self.defined_by[stmt.index] = (stmt, -1)
            elif isinstance(stmt, (Store, Atomic)):
                # Writes to memory that ends with the launch count only if something reads that memory.
                if self._is_hidden(stmt.mem) and stmt.mem is not self.result:
                    self.writers.setdefault(stmt.mem, []).append(stmt)
                else:
                    roots.append(stmt)
            elif isinstance(stmt, Alloca):
                self.writers.setdefault(stmt.mem, []).append(stmt)
            elif isinstance(stmt, (Check, Print)):
                # Effects that the user sees, though they compute nothing.
                roots.append(stmt)
            for inner in blocks(stmt):
                self._collect(inner, stmt, roots)

    def _is_hidden(self, mem: Mem) -> bool:
        """Return whether nobody sees the memory when the launch has ended."""
        return mem.kind in _HIDDEN or mem in self.internal

    def _keep(self, stmt: Stmt) -> None:
        """Mark a statement and the control flow that leads to it."""
        if stmt in self.live:
            return
        self.live.add(stmt)
        if isinstance(stmt, (For, While)):
            # Carried values are not marked here: a loop may live for its effects while some of them are
            # dead.
            if isinstance(stmt, For):
                self.work.extend((stmt.lo, stmt.hi))
            else:
                self.work.extend(stmt.cond.yields)
        else:
            self.work.extend(uses(stmt))
        if isinstance(stmt, CustomCall):
            self.work.extend(stmt.body.yields)
        if isinstance(stmt, (Load, Atomic)):
            self._read(stmt.mem)
        # A live statement keeps the control flow around it, and with it conditions and bounds.
        parent = self.parent[stmt]
        if parent is not None:
            self._keep(parent)

    def _read(self, mem: Mem) -> None:
        """Mark the writers of a temporary or scratch that a live statement reads."""
        # Flow-insensitive: a load keeps all writers of the memory. Temporaries have few, and an exact
        # answer would take reaching definitions across tasks.
        if self._is_hidden(mem) and mem not in self.read:
            self.read.add(mem)
            for writer in self.writers.get(mem, ()):
                self._keep(writer)

    def _need(self, v: Value) -> None:
        """Mark the definition of a value, and what flows into it across iterations and branches."""
        found = self.defined_by.get(v)
        if found is None:
            return
        stmt, k = found
        self._keep(stmt)
        if isinstance(stmt, (Let, Load)):
            return
        # Positions (statement, k) make liveness exact for each carried value and result: a loop's
        # reversal thus saves only those values that the adjoint of its body loads.
        if k < 0 or (stmt, k) in self.positions:
            return
        if isinstance(stmt, (For, While)):
            self.positions.add((stmt, k))
            self.work.extend((stmt.inits[k], stmt.body.yields[k]))
        elif isinstance(stmt, Atomic):
            self.positions.add((stmt, k))
        elif isinstance(stmt, If):
            self.positions.add((stmt, k))
            self.work.extend((stmt.then.yields[k], stmt.orelse.yields[k]))


def eliminate_dead_code(kernel: Kernel, internal: frozenset[Mem] = frozenset()) -> Kernel:
    """Return the kernel without statements, carried values and temporaries that nothing depends on.

    Args:
        kernel: the kernel.
        internal: further memories that nobody sees when the launch has ended.
    """
    marks = _Marks(kernel, internal)

    def kept(stmt: Stmt, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(v for k, v in enumerate(values) if (stmt, k) in marks.positions)

    def carried(s: For | While) -> dict[str, tuple[Value, ...]]:
        return {"params": kept(s, s.params), "inits": kept(s, s.inits), "outs": kept(s, s.outs)}

    def sweep(block: Block, stmt: Stmt | None = None) -> Block:
        yields = block.yields if stmt is None else kept(stmt, block.yields)
        live = [s for s in block.stmts if s in marks.live]
        return Block([s if isinstance(s, (Let, Load)) else prune(s) for s in live], yields)

    def prune(s: Stmt) -> Stmt:
        if isinstance(s, For):
            return s.replace(body=sweep(s.body, s), **carried(s))
        if isinstance(s, While):
            return s.replace(cond=sweep(s.cond), body=sweep(s.body, s), **carried(s))
        if isinstance(s, If):
            then, orelse = sweep(s.then, s), sweep(s.orelse, s)
            return s.replace(then=then, orelse=orelse, outs=kept(s, s.outs))
        if isinstance(s, CustomCall):
            return s.replace(body=sweep(s.body))
        if isinstance(s, Atomic) and s.out is not None and (s, 0) not in marks.positions:
            return s.replace(out=None)
        return s

    tasks = []
    for task in kernel.tasks:
        body = sweep(task.body)
        # A task without effects goes as a whole, launch cost included.
        if body.stmts or body.yields:
            tasks.append(task.replace(bounds=sweep(task.bounds), body=body))
    return kernel.replace(tasks=tuple(tasks))
