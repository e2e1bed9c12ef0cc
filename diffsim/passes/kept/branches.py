"""Keeps what a branch computes for a later branch on the same condition.

An adjoint runs a branch again before it goes through it backwards. Where something after the branch needs its
results, the forward code has run it before; what takes long is handed out then, and not computed twice:

    %f = if %c {                              %f, %r.1 = if %c {
      %r = sqrt %x                              %r = sqrt %x
      ... yield ...                             ... yield ..., %r
    } ...                            ->       } else { yield ..., 0.0 }
    if %c {                                   if %c {
      %s = sqrt %x                              ... %r.1 ...
      ...

LLVM does so where one block dominates the other; here none does. Additions and products are computed again
unless their operands are loaded in the branch: to keep a result takes a register, or a store and a load.

Legal as values with one number are equal (`equal_values.py`), and so is an element of memory that the task
only reads. The second branch runs only where the first has, as the condition is the same.

Assumes scalar IR. Promises: the same numbers in all effects. Leaves dead code in the second branch.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    If,
    Kernel,
    Let,
    Load,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.op import Math
from diffsim.ir.traversal import Rewriter, blocks, statements, task_statements
from diffsim.passes.forms.equal_values import ValueNumbering

_SLOW = frozenset(("div", "sqrt", "int_div", "int_rem"))
_Side = tuple[object, bool]
"""A condition's number, and whether it holds."""


def keep_for_later_branches(kernel: Kernel) -> Kernel:
    """Return the kernel whose branches hand out what later ones on their conditions would compute again."""
    return kernel.replace(tasks=tuple([_task(t) for t in kernel.tasks]))


def _task(task: Task) -> Task:
    conditions = [s.cond for s in statements(task.body) if isinstance(s, If)]
    if len(conditions) < 2:
        return task
    found = _Search(task)
    found.block(task.body)
    if not found.kept:
        return task
    return task.replace(body=_Keeping(found).block(task.body))


class _Search:
    """Finds what branches compute that an earlier one on the same condition has computed.

    Attributes:
        kept: for each such computation, the value of the earlier one.
        branch: for values that are handed out, the branch, and on which of its sides they are.
    """

    def __init__(self, task: Task) -> None:
        self.kept: dict[Let, Value] = {}
        self.branch: dict[If, dict[Value, bool]] = {}
        self._written = {s.mem for s in task_statements(task) if isinstance(s, (Store, Atomic))}
        self._values = ValueNumbering()
        self._loaded: set[Value] = set()
        self._inside: list[_Side] = []
        self._available: dict[tuple[_Side, object], tuple[If, Value]] = {}

    def block(self, block: Block) -> None:
        """Search a block; what it makes available ends with it."""
        before = len(self._available)
        for s in block.stmts:
            if isinstance(s, Let):
                self._let(s)
            elif isinstance(s, Load):
                self._load(s)
            elif isinstance(s, If):
                self._if(s)
            else:
                for inner in blocks(s):
                    self.block(inner)
        while len(self._available) > before:
            self._available.popitem()

    def _if(self, s: If) -> None:
        cond = self._values.number(s.cond)
        for side, holds in ((s.then, True), (s.orelse, False)):
            self._inside.append((cond, holds))
            self.block(side)
            self._inside.pop()
        for side, holds in ((s.then, True), (s.orelse, False)):
            for x in side.stmts:
                if isinstance(x, Let) and self._is_slow(x) and x not in self.kept:
                    self._available.setdefault(
                        ((cond, holds), self._values.number(x.out)), (s, x.out)
                    )

    def _let(self, s: Let) -> None:
        number = self._values.let(s)
        if not self._is_slow(s):
            return
        for side in self._inside:
            if (found := self._available.get((side, number))) is not None:
                branch, value = found
                self.kept[s] = value
                self.branch.setdefault(branch, {})[value] = side[1]
                return

    def _load(self, s: Load) -> None:
        self._loaded.add(s.out)
        if s.mem.kind != "scratch" and s.mem not in self._written:
            self._values.computed(s.out, s.mem, *map(self._values.number, s.index))

    def _is_slow(self, s: Let) -> bool:
        """Whether an operation, with its loads, takes longer than to keep its result."""
        if s.op.name in _SLOW or isinstance(s.op.lowering, Math):
            return True
        return s.out.type.is_float and any(a in self._loaded for a in s.args)


class _Keeping(Rewriter):
    """Copies a body whose branches hand out more."""

    def __init__(self, found: _Search) -> None:
        super().__init__()
        self._found = found
        self._handed: dict[Value, Value] = {}

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Let) and s in self._found.kept:
            self.env[s.out] = self._handed[self._found.kept[s]]
            return []
        copy = self.copy(s)
        if isinstance(s, If) and s in self._found.branch:
            assert isinstance(copy, If)
            copy = self._handing_out(copy, self._found.branch[s])
        return [copy]

    def _handing_out(self, s: If, values: dict[Value, bool]) -> If:
        made = [Value(v.type, v.hint) for v in values]
        self._handed.update(zip(values, made, strict=True))
        then, orelse = (
            [self.value(v) if on is side else _nothing(v) for v, on in values.items()]
            for side in (True, False)
        )
        return s.replace(
            then=_yielding(s.then, then),
            orelse=_yielding(s.orelse, orelse),
            outs=(*s.outs, *made),
        )


def _nothing(v: Value) -> Const:
    """Return what stands for a value on the side that does not compute it; nobody reads it."""
    return Const(v.type, 0.0 if v.type.scalar.is_float else 0)


def _yielding(block: Block, more: Sequence[Value]) -> Block:
    return Block(block.stmts, (*block.yields, *more))
