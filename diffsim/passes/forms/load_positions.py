"""Positions of a task's loads in a log of what they found, as values of the task.

    for k in range(m):                         for k in range(m):
        for i in range(1, n):                      for i in range(1, n):
            x[i] = sin(x[i - 1])        ->             position = k * (n - 1) + (i - 1)
                                                       x[i] = sin(x[i - 1])

Loads of one type share a log. A position is a number of loads made before: where each iteration makes as many
as the last one it follows from the index, else the loop carries it. Branches count as the longer one, so that
gaps in the log take the place of a carried number. The adjoint treats positions as any other value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    CustomCall,
    For,
    If,
    Load,
    Stmt,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import Rewriter
from diffsim.ir.types import Type, bool_, i64

Access = Load | Atomic
Counts = dict[Type, int | None]
"""How many loads of each type a run of a block makes; None: as many as it turns out."""


class Numbered:
    """A task with the positions of some of its loads.

    Attributes:
        task: computes the same, and the positions.
        positions: for each of these accesses, as it is in the task, the position of what it finds.
        totals: the size of the log of each type.
    """

    __slots__ = ("positions", "task", "totals")

    def __init__(
        self, task: Task, positions: dict[Access, Value], totals: dict[Type, Value]
    ) -> None:
        self.task = task
        self.positions = positions
        self.totals = totals


def number_loads(task: Task, loads: Iterable[Access]) -> Numbered:
    """Return a task with the positions of these loads (and atomics with a result) of its body."""
    work = _Numberer(task, set(loads))
    with work.builder:
        body = work.block(task.body)
    return Numbered(task.replace(body=body), work.positions, work.at)


class _Numberer(Rewriter):
    """Copies the body of a task; `at` has the number of loads of each type so far."""

    def __init__(self, task: Task, loads: set[Access]) -> None:
        super().__init__()
        self.loads = loads
        self.builder = Builder(task.span)
        self.positions: dict[Access, Value] = {}
        # In program order, so that the adjoint's text is the same in every run.
        self.counts: dict[Block, Counts] = {}
        self.at: dict[Type, Value] = {t: Const(i64, 0) for t in self._count(task.body)}

    # ---- how many loads a block makes

    def _count(self, block: Block) -> Counts:
        found = self.counts.get(block)
        if found is None:
            found = self.counts[block] = {}
            for s in block.stmts:
                for t, k in self._count_of(s).items():
                    before = found.get(t, 0)
                    found[t] = None if k is None or before is None else before + k
        return found

    def _count_of(self, s: Stmt) -> Counts:
        if isinstance(s, (Load, Atomic)):
            return {s.out.type: 1} if s in self.loads and s.out is not None else {}
        if isinstance(s, If):
            then, orelse = self._count(s.then), self._count(s.orelse)
            return {t: _larger(then.get(t, 0), orelse.get(t, 0)) for t in {**then, **orelse}}
        if isinstance(s, For):
            each = self._count(s.body)
            known = isinstance(s.lo, Const) and isinstance(s.hi, Const)
            trips = max(0, int(s.hi.value) - int(s.lo.value)) if known else None  # type: ignore[attr-defined]
            return {t: None if k is None or trips is None else k * trips for t, k in each.items()}
        if isinstance(s, While):
            return dict.fromkeys([*self._count(s.cond), *self._count(s.body)])
        return {}

    # ---- the copy

    def block(self, b: Block, *, ends: Callable[[], tuple[Value, ...]] = tuple) -> Block:
        """Copy a block; `ends` gives what it yields besides."""
        with self.builder.block() as stmts:
            for s in b.stmts:
                self.visit(s)
            more = ends()
        return Block(stmts, (*self.values(b.yields), *more))

    def visit(self, s: Stmt) -> None:
        """Emit the copy of a statement."""
        b = self.builder
        b.span = s.span
        if isinstance(s, (Load, Atomic)) and s in self.loads:
            made = self.copy(s)
            assert isinstance(made, (Load, Atomic))
            b.add(made)
            for t, one in self._count_of(s).items():
                self.positions[made] = self.at[t]
                self._advance({t: one})
        elif isinstance(s, If):
            self._if(s)
        elif isinstance(s, For):
            self._for(s)
        elif isinstance(s, While):
            self._while(s)
        else:
            b.add(self.copy(s))

    def custom(self, s: CustomCall) -> CustomCall:
        """Copy a call with a rule of its own; loads in its blocks have no position."""
        loads, self.loads = self.loads, set()
        made = super().custom(s)
        self.loads = loads
        return made

    def _advance(self, counts: Counts) -> None:
        for t, k in counts.items():
            assert k is not None
            self.at[t] = self.builder.named("add", self.at[t], Const(i64, k))

    def _if(self, s: If) -> None:
        cond, before = self.value(s.cond), dict(self.at)
        counts = self._count_of(s)
        open_ = [t for t, k in counts.items() if k is None]
        sides = []
        for side in (s.then, s.orelse):
            self.at = dict(before)
            sides.append(self.block(side, ends=lambda: tuple(self.at[t] for t in open_)))
        self.at = before
        self._advance({t: k for t, k in counts.items() if k is not None})
        outs, more = self.fresh_all(s.outs), _numbers(open_)
        then, orelse = sides
        self.builder.add(If(cond, then, orelse, (*outs, *more.values()), s.span))
        self.at.update(more)

    def _for(self, s: For) -> None:
        b = self.builder
        lo, hi, inits = self.value(s.lo), self.value(s.hi), self.values(s.inits)
        each = self._count(s.body)
        open_ = [t for t, k in each.items() if k is None]
        before = dict(self.at)
        first, end = b.cast(lo, i64), b.cast(hi, i64)
        index, params, carried = self.fresh(s.index), self.fresh_all(s.params), _numbers(open_)

        def moved(trips: Value, k: int) -> Value:
            return b.named("mul", trips, Const(i64, k))

        with b.block() as start:
            k = b.cast(index, i64)
            done = end - Const(i64, 1) - k if s.reverse else k - first
            self.at.update(carried)
            for t, n in each.items():
                if n is not None:
                    self.at[t] = b.named("add", before[t], moved(done, n))
        body = self.block(s.body, ends=lambda: tuple(self.at[t] for t in open_))
        body = Block([*start, *body.stmts], body.yields)
        self.at = before
        b.span = s.span
        trips = b.named("max", end - first, Const(i64, 0))
        for t, n in each.items():
            if n is not None:
                self.at[t] = b.named("add", before[t], moved(trips, n))
        inits = (*inits, *(before[t] for t in open_))
        outs, more = self.fresh_all(s.outs), _numbers(open_)
        params, outs = (*params, *carried.values()), (*outs, *more.values())
        b.add(For(index, lo, hi, params, inits, body, outs, s.span, s.reverse))
        self.at.update(more)

    def _while(self, s: While) -> None:
        """Emit a while loop, which carries positions."""
        # What is loaded in the condition is logged there, and a condition must not write.
        if self._count(s.cond):
            self._while_rotated(s)
            return
        b, types = self.builder, list(self._count_of(s))
        inits = (*self.values(s.inits), *(self.at[t] for t in types))
        params, carried = self.fresh_all(s.params), _numbers(types)
        self.at.update(carried)
        cond = self.block(s.cond)
        body = self.block(s.body, ends=lambda: tuple(self.at[t] for t in types))
        outs, more = self.fresh_all(s.outs), _numbers(types)
        params, outs = (*params, *carried.values()), (*outs, *more.values())
        b.add(While(params, inits, cond, body, outs, s.span))
        self.at.update(more)

    def _while_rotated(self, s: While) -> None:
        """Emit a loop that carries its condition, which is evaluated at the end of the body."""
        b, types = self.builder, list(self._count_of(s))

        def tested() -> Value:
            for x in s.cond.stmts:
                self.visit(x)
            return self.value(s.cond.yields[0])

        inits = self.values(s.inits)
        self.env.update(zip(s.params, inits, strict=True))
        begins = (*inits, tested(), *(self.at[t] for t in types))
        params, goes, carried = self.fresh_all(s.params), Value(bool_, "goes"), _numbers(types)
        self.at.update(carried)
        with b.block() as stmts:
            for x in s.body.stmts:
                self.visit(x)
            nexts = self.values(s.body.yields)
            self.env.update(zip(s.params, nexts, strict=True))
            ends = (*nexts, tested(), *(self.at[t] for t in types))
        outs, more = self.fresh_all(s.outs), _numbers(types)
        params, outs = (*params, goes, *carried.values()), (*outs, Value(bool_), *more.values())
        b.add(While(params, begins, Block([], (goes,)), Block(stmts, ends), outs, s.span))
        self.at.update(more)


def _numbers(types: Iterable[Type]) -> dict[Type, Value]:
    return {t: Value(i64, "logged") for t in types}


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
