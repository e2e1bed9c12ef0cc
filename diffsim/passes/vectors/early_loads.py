"""Loads neighbours before short branches, where the lane accesses what is beside them anyway.

An upwind difference loads one neighbour or the other. Vectors of lanes take both sides, but a load in a
branch must have a mask; of a vector's components LLVM makes no such vectors, and runs lane after lane, with
a jump that is guessed wrong half of the time:

    %d = if %c {                              %a = load w[%i - 1, 0]
      %a = load w[%i - 1, 0]                  %d = if %c {
      %e = sub %w, %a                 ->        %e = sub %w, %a
      yield %e                                  yield %e
    } else { yield %f }                       } else { yield %f }

What is left is arithmetic, which LLVM makes selects of.

Legal where the element exists, though the branch is not taken: along each axis its index is that of an
access which the lane certainly makes, or differs from it by a constant and is inside the field for all lanes.
No lane writes it. Only where all of a branch is short arithmetic and such loads, so that no work is added but
for loads from the cache.

Assumes scalar IR whose boxes are final. Promises: the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import bound_in, slow_parts, statements, task_statements
from diffsim.passes.analysis.affine import AffineForms, affine_forms, task_definitions
from diffsim.passes.analysis.regions import disjoint, region_of

_FARTHEST = 4
"""How far along an axis the access is that a lane makes anyway."""
_LONGEST = 32
"""Statements of a branch, both sides together."""
_Access = Load | Store | Atomic


def load_early(kernel: Kernel) -> Kernel:
    """Return the kernel with loads of neighbours in front of short branches."""
    return kernel.replace(tasks=tuple([_task(t) for t in kernel.tasks]))


def _task(task: Task) -> Task:
    if not task.axes or not any(_loads_in(s) for s in task_statements(task)):
        return task
    return task.replace(body=_Movement(task).block(task.body, ()))


def _loads_in(s: Stmt) -> bool:
    return isinstance(s, If) and any(isinstance(x, Load) for x in _statements_of(s))


def _statements_of(s: If) -> Iterable[Stmt]:
    """Return the statements of both sides of a branch, inner ones included."""
    return [x for side in (s.then, s.orelse) for x in statements(side)]


class _Movement:
    """Moves loads in one task."""

    def __init__(self, task: Task) -> None:
        self._forms: AffineForms = affine_forms(task)
        self._defs = task_definitions(task)
        self._written: dict[object, list[_Access]] = {}
        for s in task_statements(task):
            if isinstance(s, (Store, Atomic)):
                self._written.setdefault(s.mem, []).append(s)

    def block(self, block: Block, certain: tuple[_Access, ...]) -> Block:
        """Return a block with early loads; `certain`: accesses that are made wherever it is run."""
        if not any(isinstance(s, (If, For, While)) for s in block.stmts):
            return block
        certain += tuple([s for s in block.stmts if isinstance(s, (Load, Store, Atomic))])
        stmts: list[Stmt] = []
        for s in block.stmts:
            stmts += self._stmt(s, certain)
        return Block(stmts, block.yields)

    def _stmt(self, s: Stmt, certain: tuple[_Access, ...]) -> list[Stmt]:
        if isinstance(s, If):
            moved, s = self._branch(s, certain)
            return [*moved, s]
        if isinstance(s, For):
            return [s.replace(body=self.block(s.body, certain))]
        if isinstance(s, While):
            return [s.replace(body=self.block(s.body, certain))]
        return [s]

    def _branch(self, s: If, certain: tuple[_Access, ...]) -> tuple[list[Stmt], If]:
        """Return what moves in front of a branch, and what is left of it."""
        moved = self._movable(s, certain) if _is_short(s) else None
        if moved:
            return moved, _without(s, frozenset(moved))
        return [], s.replace(then=self.block(s.then, certain), orelse=self.block(s.orelse, certain))

    def _movable(self, s: If, certain: tuple[_Access, ...]) -> list[Stmt] | None:
        """Return the loads of a branch, with the arithmetic of their indices; None: not all can move."""
        inside = {v for side in (s.then, s.orelse) for v in bound_in(side)}
        wanted: set[Value] = set()
        found = list(_statements_of(s))
        for x in found:
            if isinstance(x, Load):
                if not self._exists(x, certain) or self._is_written(x):
                    return None
                wanted.update(x.index)
        moved: list[Stmt] = []
        # An operand comes before what uses it, so the arithmetic is found from the last statement on.
        for x in reversed(found):
            if isinstance(x, Load):
                moved.append(x)
            elif isinstance(x, Let) and x.out in wanted:
                if self._forms.form(x.out) is None:
                    return None
                wanted.update(x.args)
                moved.append(x)
        bound = {x.out for x in moved if isinstance(x, Let)}
        return moved[::-1] if wanted & inside <= bound else None

    def _is_written(self, load: Load) -> bool:
        """Whether some lane may write the element."""
        row = region_of(load, self._defs)
        return any(
            not disjoint(row, region_of(w, self._defs)) for w in self._written.get(load.mem, ())
        )

    def _exists(self, load: Load, certain: tuple[_Access, ...]) -> bool:
        """Whether the element exists wherever the branch is met, beside one that is accessed there."""
        mem = load.mem
        if mem.shape is None or not mem.is_shaped or mem.place is not None:
            return False
        if not all(isinstance(i, Const) for i in load.index[mem.rank :]):
            return False
        return any(
            a.mem is mem
            and all(
                self._is_beside(i, j, extent)
                for i, j, extent in zip(load.index, a.index, mem.shape, strict=False)
            )
            for a in certain
        )

    def _is_beside(self, i: Value, j: Value, extent: int) -> bool:
        """Whether an index is that of an access which is made, or near it and inside the field."""
        if i is j:
            return True
        a, b = self._forms.form(i), self._forms.form(j)
        if a is None or b is None:
            return False
        apart = {v for v in {*a, *b} if a.get(v, 0) != b.get(v, 0)}
        if not apart:
            return True
        if apart != {None} or abs(a.get(None, 0) - b.get(None, 0)) > _FARTHEST:
            return False
        first, last = self._forms.interval(a)
        return first >= 0 and last < extent


def _is_short(s: If) -> bool:
    """Whether a branch is loads and a little arithmetic, which takes no longer than a wrong guess."""
    found = list(_statements_of(s))
    return (
        len(found) <= _LONGEST
        and any(isinstance(x, Load) for x in found)
        and all(isinstance(x, (Let, Load, If)) for x in found)
        and not any(map(slow_parts, found))
    )


def _without(s: If, moved: frozenset[Stmt]) -> If:
    """Return a branch without the statements that have moved."""

    def rest(block: Block) -> Block:
        kept = [x for x in block.stmts if x not in moved]
        return Block([_without(x, moved) if isinstance(x, If) else x for x in kept], block.yields)

    return s.replace(then=rest(s.then), orelse=rest(s.orelse))
