"""Traversal of IR: what a statement uses and binds, free values, copying with substitution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Atomic,
    Block,
    Check,
    Const,
    CustomCall,
    For,
    Gradient,
    If,
    InlineLLVM,
    Let,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.op import Math
from diffsim.ir.types import size_of

_FUNCTION = 4
"""Divisions that take as long as a function such as exp."""
_UNKNOWN_TRIP_COUNT = 16
"""Iterations that estimates assume of a loop whose bounds are not constants."""
_HOLD_BLOCKS = frozenset((For, While, If, CustomCall, Gradient))
"""Asked by type first: nearly all statements are none of these."""


def blocks(stmt: Stmt) -> tuple[Block, ...]:
    """Return the blocks that run when the statement does (not a custom adjoint or replay)."""
    if type(stmt) not in _HOLD_BLOCKS:
        return ()
    if isinstance(stmt, For):
        return (stmt.body,)
    if isinstance(stmt, While):
        return (stmt.cond, stmt.body)
    if isinstance(stmt, If):
        return (stmt.then, stmt.orelse)
    assert isinstance(stmt, (CustomCall, Gradient))
    return (stmt.body,)


def uses(stmt: Stmt) -> tuple[Value, ...]:
    """Return the values a statement reads itself (not those its blocks read)."""
    if isinstance(stmt, (Let, InlineLLVM)):
        return stmt.args
    if isinstance(stmt, Load):
        return stmt.index
    if isinstance(stmt, (Store, Atomic)):
        return (*stmt.index, stmt.value)
    if isinstance(stmt, For):
        return (stmt.lo, stmt.hi, *stmt.inits)
    if isinstance(stmt, While):
        return stmt.inits
    if isinstance(stmt, If):
        return (stmt.cond,)
    if isinstance(stmt, Alloca):
        return (stmt.count,)
    if isinstance(stmt, Gradient):
        return (*stmt.args, *stmt.seeds)
    if isinstance(stmt, CustomCall):
        # The rule's blocks run in the adjoint and do not count as `blocks`, but what they read must
        # stay alive until then: it is used by the call. Seeds and results the call binds itself.
        inside = {*stmt.seeds, *stmt.outs}
        later = (b for b in (stmt.adjoint, stmt.replay) if b is not None)
        return (*stmt.args, *(v for b in later for v in free_values(b) if v not in inside))
    if isinstance(stmt, Print):
        return (*stmt.order, *stmt.values)
    # A check, the only kind left.
    return (stmt.cond, *stmt.values)


def outs(stmt: Stmt) -> tuple[Value, ...]:
    """Return the values a statement binds in the block that contains it."""
    if isinstance(stmt, (Let, Load)):
        return (stmt.out,)
    if isinstance(stmt, (For, While, If, CustomCall, Gradient, InlineLLVM)):
        return stmt.outs
    if isinstance(stmt, Atomic):
        return () if stmt.out is None else (stmt.out,)
    return ()


def custom_rule_blocks(stmt: Stmt) -> tuple[Block, ...]:
    """Return the blocks that an adjoint runs in place of a call's own: its replay, its custom adjoint."""
    if isinstance(stmt, CustomCall):
        # Apart from `blocks`, since a forward run does not execute them: effects and costs in them do
        # not count there.
        return tuple(b for b in (stmt.replay, stmt.adjoint) if b is not None)
    return ()


def entered(stmt: Stmt) -> tuple[Value, ...]:
    """Return the values that a statement binds for the blocks inside it."""
    if isinstance(stmt, For):
        return (*stmt.params, stmt.index)
    return stmt.params if isinstance(stmt, (While, Gradient)) else ()


def statements(block: Block, *, given: bool = False) -> Iterator[Stmt]:
    """Yield all statements of a block and of the blocks inside it, outermost first, in order.

    `given`: also those of the blocks that only an adjoint runs.
    """
    # A stack of its own: of generators within each other each would hand on all that is in the innermost one,
    # and a chain of `elif` is as deep as it is long.
    open_ = [iter(block.stmts)]
    while open_:
        for stmt in open_[-1]:
            yield stmt
            if type(stmt) in _HOLD_BLOCKS:
                inner = (*blocks(stmt), *custom_rule_blocks(stmt)) if given else blocks(stmt)
                open_ += [iter(b.stmts) for b in reversed(inner)]
                break
        else:
            open_.pop()


class TouchedMemories:
    """The memories that statements access, those inside them included; each statement is looked at once.

    Args:
        is_kind: a question about accesses.
    """

    def __init__(self, is_kind: Callable[[Load | Store | Atomic], bool]) -> None:
        self._is_kind = is_kind
        self._known: dict[Stmt, dict[Mem, bool]] = {}

    def of(self, s: Stmt) -> dict[Mem, bool]:
        """Return the memories that a statement accesses, with whether all accesses are of the kind."""
        if isinstance(s, (Load, Store, Atomic)):
            return {s.mem: self._is_kind(s)}
        if type(s) not in _HOLD_BLOCKS:
            return {}
        found = self._known.get(s)
        if found is None:
            found = {}
            for x in (x for b in blocks(s) for x in b.stmts):
                for mem, is_kind in self.of(x).items():
                    found[mem] = found.get(mem, True) and is_kind
            self._known[s] = found
        return found


def bound_in(block: Block) -> set[Value]:
    """Return the values that the statements of a block bind, for it and for the blocks inside."""
    return {v for s in statements(block) for v in (*entered(s), *outs(s))}


def has_effects(block: Block) -> bool:
    """Whether a block does more than to compute its values: whether it writes something, or prints."""
    return any(isinstance(s, (Store, Atomic, Print)) for s in statements(block, given=True))


def task_statements(task: Task, *, given: bool = False) -> Iterator[Stmt]:
    """Yield all statements of a task: those of its bounds, then those of its body."""
    return chain(statements(task.bounds, given=given), statements(task.body, given=given))


def free_values(block: Block) -> dict[Value, None]:
    """Return the values that a block reads and does not bind, in order of first use (leaves left out)."""
    found: dict[Value, None] = {}
    bound: set[Value] = set()

    def visit(b: Block) -> None:
        for stmt in b.stmts:
            for v in uses(stmt):
                # In order of first use, a dict instead of a set: the adjoint carries one sum for each
                # free value, and the printed IR must be the same in every run.
                if v not in bound and not isinstance(v, LEAVES):
                    found[v] = None
            # SSA: a name is bound once in the whole program, so one set serves all scopes.
            bound.update(entered(stmt))
            for inner in blocks(stmt):
                visit(inner)
            bound.update(outs(stmt))
        for v in b.yields:
            if v not in bound and not isinstance(v, LEAVES):
                found[v] = None

    visit(block)
    return found


def free_leaves(block: Block) -> dict[Value, None]:
    """Return the constants, arguments and dimensions that a block reads, in order of first use."""
    found: dict[Value, None] = {}

    def visit(b: Block) -> None:
        for stmt in b.stmts:
            # Custom rules count here: the adjoint is passed the same arguments as the kernel.
            found.update(dict.fromkeys(v for v in uses(stmt) if isinstance(v, LEAVES)))
            for inner in (*blocks(stmt), *custom_rule_blocks(stmt)):
                visit(inner)
        found.update(dict.fromkeys(v for v in b.yields if isinstance(v, LEAVES)))

    visit(block)
    return found


class Rewriter:
    """Copies statements with values replaced; subclasses override `stmt` to rewrite as they go.

    `env` maps old values to new ones; values not in it are kept.
    """

    def __init__(self, env: dict[Value, Value] | None = None) -> None:
        self.env: dict[Value, Value] = {} if env is None else env
        self.scratch: dict[Mem, Mem] = {}  # a copied block allocates its own

    def value(self, v: Value) -> Value:
        return self.env.get(v, v)

    def values(self, vs: tuple[Value, ...]) -> tuple[Value, ...]:
        env = self.env
        # From a list, since building a tuple from a generator is slower, and this runs for each statement.
        return tuple([env.get(v, v) for v in vs])

    def fresh(self, v: Value) -> Value:
        new = Value(v.type, v.hint)
        self.env[v] = new
        return new

    def fresh_all(self, vs: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([self.fresh(v) for v in vs])

    def mem(self, m: Mem) -> Mem:
        return self.scratch.get(m, m)

    def block(self, b: Block) -> Block:
        out: list[Stmt] = []
        for stmt in b.stmts:
            out.extend(self.stmt(stmt))
        return Block(out, self.values(b.yields))

    def stmt(self, s: Stmt) -> list[Stmt]:
        """Return the copy of one statement (as a list: none, one or several)."""
        return [self.copy(s)]

    def copy(self, s: Stmt) -> Stmt:
        """Return a copy of a statement, with its operands replaced and its results fresh."""
        if isinstance(s, Let):
            args = self.values(s.args)
            return Let(self.fresh(s.out), s.op, args, s.span)
        if isinstance(s, Load):
            index = self.values(s.index)
            return Load(self.fresh(s.out), self.mem(s.mem), index, s.span, s.origin)
        if isinstance(s, Store):
            return Store(self.mem(s.mem), self.values(s.index), self.value(s.value), s.span)
        if isinstance(s, Atomic):
            index, value = self.values(s.index), self.value(s.value)
            out = None if s.out is None else self.fresh(s.out)
            return Atomic(out, s.op, self.mem(s.mem), index, value, s.span, s.exclusive, s.origin)
        if isinstance(s, For):
            lo, hi, inits = self.value(s.lo), self.value(s.hi), self.values(s.inits)
            # Bound before the body is copied, since the body reads them; results after it, as it
            # cannot.
            counter, params = self.fresh(s.index), self.fresh_all(s.params)
            body = self.block(s.body)
            last = self.fresh_all(s.outs)
            return For(counter, lo, hi, params, inits, body, last, s.span, s.reverse)
        if isinstance(s, While):
            inits = self.values(s.inits)
            params = self.fresh_all(s.params)
            test, body = self.block(s.cond), self.block(s.body)
            return While(params, inits, test, body, self.fresh_all(s.outs), s.span)
        if isinstance(s, If):
            cond = self.value(s.cond)
            then, orelse = self.block(s.then), self.block(s.orelse)
            return If(cond, then, orelse, self.fresh_all(s.outs), s.span)
        if isinstance(s, Alloca):
            # Two copies of a block in one scope need different memory, as they do different values.
            self.scratch[s.mem] = Mem(s.mem.name, s.mem.dtype, 1, None, s.mem.kind)
            return Alloca(self.scratch[s.mem], self.value(s.count), s.span)
        if isinstance(s, CustomCall):
            return self.custom(s)
        if isinstance(s, InlineLLVM):
            args = self.values(s.args)
            return InlineLLVM(self.fresh_all(s.outs), s.name, s.names, args, s.text, s.span)
        if isinstance(s, Gradient):
            args, seeds = self.values(s.args), self.values(s.seeds)
            params, body = self.fresh_all(s.params), self.block(s.body)
            return Gradient(self.fresh_all(s.outs), params, args, body, seeds, s.span, s.name)
        if isinstance(s, Print):
            return Print(self.values(s.order), s.pieces, self.values(s.values), s.span)
        values = self.values(s.values)
        return Check(self.value(s.cond), s.message, values, s.span, s.pieces, s.kind)

    def custom(self, s: CustomCall) -> CustomCall:
        """Return a copy of a call, with all of its blocks."""
        args, body = self.values(s.args), self.block(s.body)
        replay = None if s.replay is None else self.block(s.replay)
        # The adjoint block reads results and seeds, so it is copied after they are bound.
        outs, seeds = self.fresh_all(s.outs), self.fresh_all(s.seeds)
        return CustomCall(
            outs,
            args,
            body,
            s.span,
            name=s.name,
            seeds=seeds,
            adjoint=None if s.adjoint is None else self.block(s.adjoint),
            targets=tuple(map(self.mem, s.targets)),
            replay=replay,
            refusal=s.refusal,
            is_linear=s.is_linear,
        )


def iterations(block: Block, times: int = 1) -> dict[Stmt, int]:
    """Estimate how often each access of a block is made, if the block is run so many times."""
    found: dict[Stmt, int] = {}
    for s in block.stmts:
        if isinstance(s, (Atomic, Load, Store)):
            found[s] = times
        inner = times
        if isinstance(s, While):
            inner = times * _UNKNOWN_TRIP_COUNT
        elif isinstance(s, For):
            known = isinstance(s.lo, Const) and isinstance(s.hi, Const)
            trips = max(0, int(s.hi.value) - int(s.lo.value)) if known else _UNKNOWN_TRIP_COUNT  # type: ignore[attr-defined]
            inner = times * trips
        for b in blocks(s):
            found.update(iterations(b, inner))
    return found


def slow_parts(s: Stmt) -> int:
    """Return how many divisions and roots of floats a statement takes; a function counts as several."""
    if not isinstance(s, Let):
        return 0
    if isinstance(s.op.lowering, Math):
        return _FUNCTION * size_of(s.out.type)
    return size_of(s.out.type) if s.op.name in ("div", "sqrt", "rsqrt") else 0
