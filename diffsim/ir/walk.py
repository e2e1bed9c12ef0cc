"""Going over IR: what a statement uses and binds, copying with substitution, dead code."""

from __future__ import annotations

from collections.abc import Iterator

from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Check,
    For,
    If,
    Let,
    Load,
    Mem,
    Scratch,
    Stmt,
    Store,
    Task,
    Value,
    While,
)


def blocks(stmt: Stmt) -> tuple[Block, ...]:
    """The blocks a statement holds."""
    if isinstance(stmt, For):
        return (stmt.body,)
    if isinstance(stmt, While):
        return (stmt.cond, stmt.body)
    if isinstance(stmt, If):
        return (stmt.then, stmt.orelse)
    return ()


def uses(stmt: Stmt) -> tuple[Value, ...]:
    """The values a statement reads itself (not those its blocks read)."""
    if isinstance(stmt, Let):
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
    if isinstance(stmt, Scratch):
        return (stmt.count,)
    return (stmt.cond, *stmt.values)


def outs(stmt: Stmt) -> tuple[Value, ...]:
    """The values a statement binds in the block it stands in."""
    if isinstance(stmt, (Let, Load)):
        return (stmt.out,)
    if isinstance(stmt, (For, While, If)):
        return stmt.outs
    if isinstance(stmt, Atomic):
        return () if stmt.out is None else (stmt.out,)
    return ()


def statements(block: Block) -> Iterator[Stmt]:
    """All statements of a block and of the blocks inside of it, outermost first, in order."""
    for stmt in block.stmts:
        yield stmt
        for inner in blocks(stmt):
            yield from statements(inner)


def task_statements(task: Task) -> Iterator[Stmt]:
    """All statements of a task: those of its bounds, then those of its body."""
    yield from statements(task.bounds)
    yield from statements(task.body)


def free_values(block: Block) -> dict[Value, None]:
    """Values that a block reads and does not bind, in order of first use (leaves left out)."""
    found: dict[Value, None] = {}
    bound: set[Value] = set()

    def visit(b: Block) -> None:
        for stmt in b.stmts:
            for v in uses(stmt):
                if v not in bound and not isinstance(v, LEAVES):
                    found[v] = None
            if isinstance(stmt, (For, While)):
                bound.update(stmt.params)
                if isinstance(stmt, For):
                    bound.add(stmt.index)
            for inner in blocks(stmt):
                visit(inner)
            bound.update(outs(stmt))
        for v in b.yields:
            if v not in bound and not isinstance(v, LEAVES):
                found[v] = None

    visit(block)
    return found


def free_leaves(block: Block) -> dict[Value, None]:
    """The constants, arguments and dimensions that a block reads, in order of first use."""
    found: dict[Value, None] = {}

    def visit(b: Block) -> None:
        for stmt in b.stmts:
            found.update(dict.fromkeys(v for v in uses(stmt) if isinstance(v, LEAVES)))
            for inner in blocks(stmt):
                visit(inner)
        found.update(dict.fromkeys(v for v in b.yields if isinstance(v, LEAVES)))

    visit(block)
    return found


class Copier:
    """Copies statements with values replaced; subclasses override `stmt` to rewrite as they go.

    `env` maps old values to new ones; values not in it stand for themselves.
    """

    def __init__(self, env: dict[Value, Value] | None = None) -> None:
        self.env: dict[Value, Value] = {} if env is None else env

    def value(self, v: Value) -> Value:
        return self.env.get(v, v)

    def values(self, vs: tuple[Value, ...]) -> tuple[Value, ...]:
        env = self.env
        return tuple([env.get(v, v) for v in vs])

    def fresh(self, v: Value) -> Value:
        new = Value(v.type, v.hint)
        self.env[v] = new
        return new

    def fresh_all(self, vs: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([self.fresh(v) for v in vs])

    def mem(self, m: Mem) -> Mem:
        return m

    def block(self, b: Block) -> Block:
        out: list[Stmt] = []
        for stmt in b.stmts:
            out.extend(self.stmt(stmt))
        return Block(out, self.values(b.yields))

    def stmt(self, s: Stmt) -> list[Stmt]:
        """The copy of one statement (as a list: none, one or several)."""
        return [self.copy(s)]

    def copy(self, s: Stmt) -> Stmt:
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
            turn, params = self.fresh(s.index), self.fresh_all(s.params)
            body = self.block(s.body)
            last = self.fresh_all(s.outs)
            return For(turn, lo, hi, params, inits, body, last, s.span, s.reverse)
        if isinstance(s, While):
            inits = self.values(s.inits)
            params = self.fresh_all(s.params)
            test, body = self.block(s.cond), self.block(s.body)
            return While(params, inits, test, body, self.fresh_all(s.outs), s.span)
        if isinstance(s, If):
            cond = self.value(s.cond)
            then, orelse = self.block(s.then), self.block(s.orelse)
            return If(cond, then, orelse, self.fresh_all(s.outs), s.span)
        if isinstance(s, Scratch):
            return Scratch(self.mem(s.mem), self.value(s.count), s.span)
        return Check(self.value(s.cond), s.message, self.values(s.values), s.span)
