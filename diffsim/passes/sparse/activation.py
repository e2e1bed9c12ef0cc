"""Activation: stores to elements of sparse trees activate the cells around them.

`activate_stores` runs first of all passes, and says of each store and atomic update of a kernel which cell
it activates, as an atomic update of the level's mask. So all passes see that the kernel writes the mask:

    store x[%i], %v              ->   store x[%i], %v
                                      atomic_or x.active[%i >> 3], 1

`expand_activations` runs on the way to a backend. Nearly all cells are active already, so memory is only
written where one is not; the levels above are activated with it, and each mask counts its changes:

    %t: u8 = load x.active[%c]
    if %t == 0 { store x.active[%c], 1; x.state[0] += 1 }

Two lanes that activate one cell at once write the same. The count may miss one of two changes that happen at
once, and never both: what matters is whether it is another number than before the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from diffsim.errors import Span
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    If,
    Kernel,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.sparse import CHANGES, Level
from diffsim.ir.traversal import Rewriter, statements, task_statements
from diffsim.ir.types import i32, i64, u8
from diffsim.passes.analysis.once import once

Cell = tuple[Level, tuple[object, ...]]
"""A cell by its level and the values of its index; numbers compare by value."""


def is_sparse(kernel: Kernel) -> bool:
    """Return whether a kernel uses memory of a sparse tree."""
    return any(m.place is not None or m.level is not None for m in kernel.mems)


def levels_of(kernel: Kernel) -> dict[Level, None]:
    """Return the sparse levels that a kernel's memories are in."""
    found: dict[Level, None] = {}
    for m in kernel.mems:
        level = m.level if m.place is None else m.place.level
        if level is not None:
            found.update(dict.fromkeys(level.chain()))
    return found


@once
def changed_levels(kernel: Kernel) -> dict[Level, Span]:
    """Return the levels whose masks a kernel may change, and the first statement that does."""
    found: dict[Level, Span] = {}
    for t in kernel.tasks:
        for s in task_statements(t):
            if isinstance(s, (Store, Atomic)) and s.mem.level is not None:
                # Activation includes the levels above.
                for level in s.mem.level.chain() if isinstance(s, Atomic) else (s.mem.level,):
                    found.setdefault(level, s.span)
    return found


# ---- saying what is activated


def activate_stores(kernel: Kernel) -> Kernel:
    """Return the kernel whose stores to sparse trees say which cells they activate."""
    if not any(m.place is not None for m in kernel.mems):
        return kernel
    # What the kernel deactivates may be inactive wherever it stores.
    cleared: set[Level | None] = {
        s.mem.level for t in kernel.tasks for s in task_statements(t) if isinstance(s, Store)
    }
    tasks = tuple([_Activator(t, cleared).task() for t in kernel.tasks])
    masks = (level.mask for level in levels_of(kernel.replace(tasks=tasks)))
    return kernel.replace(tasks=tasks, mems=tuple(dict.fromkeys((*kernel.mems, *masks))))


class _Activator:
    """Adds activations to one task."""

    def __init__(self, task: Task, cleared: set[Level | None]) -> None:
        self.of = task
        self.cleared = cleared
        self.builder = Builder(task.span)

    def task(self) -> Task:
        task = self.of
        if not any(_is_data(s) for s in statements(task.body)):
            return task
        return task.replace(body=self.block(task.body, set()))

    def block(self, block: Block, done: set[Cell]) -> Block:
        """Return a block with activations. `done`: what is activated whenever the block runs."""
        done = set(done)
        out: list[Stmt] = []
        for s in block.stmts:
            s = _within(s, lambda inner: self.block(inner, done))
            out.append(s)
            if _is_data(s):
                out += self.activation(s, done)
        return Block(out, block.yields)

    def activation(self, s: Store | Atomic, done: set[Cell]) -> list[Stmt]:
        """Return what activates the cell of the element that a statement writes."""
        place = s.mem.place
        assert place is not None
        level, index = place.level, s.index[: s.mem.rank]
        if self.is_own(level, dict(zip(place.axes, index, strict=True))):
            return []
        key = _key(level, index)
        if key in done and self.is_kept(level):
            return []
        done.add(key)
        self.builder.span = s.span
        with self.builder, self.builder.block() as made:
            activate(self.builder, level, place.cell(self.builder, level, index))
        return made

    def is_kept(self, level: Level) -> bool:
        """Whether the kernel deactivates no cell of the level, and none that such a cell is in."""
        return self.cleared.isdisjoint(level.chain())

    def is_own(self, level: Level, index: dict[int, Value]) -> bool:
        """Whether the lanes are those of active cells, and the element is in the lane's own cell."""
        active = self.of.active
        if active is None or level not in active.level.chain():
            return False
        lanes = dict(zip(active.axes, self.of.axes, strict=True))
        same = all(index.get(a) is lanes.get(a) for a in level.axes)
        return same and self.is_kept(level)


def activate(b: Builder, level: Level, cell: Sequence[Value]) -> None:
    """Emit what says that a cell, and those above it, are active from now on."""
    slot = level.slot(cell)
    if level.list_axis is None:
        b.atomic("or", level.mask, slot, Const(u8, 1))
    else:
        length = b.cast(cell[level.list_axis] + 1, i32)
        b.atomic("max", level.mask, slot, length)


def _is_data(s: Stmt) -> TypeGuard[Store | Atomic]:
    # A gradient is there wherever it is read: it needs no activation.
    return isinstance(s, (Store, Atomic)) and s.mem.place is not None and not s.mem.is_grad


def _within(s: Stmt, change: Callable[[Block], Block]) -> Stmt:
    """Return a statement whose blocks are changed; values keep their identity."""
    return _Blocks(change).copy(s)


def _key(level: Level, index: Sequence[Value]) -> Cell:
    return level, tuple(v.value if isinstance(v, Const) else v for v in index)


class _Blocks(Rewriter):
    """Replaces the blocks of a statement, and keeps all values."""

    def __init__(self, change: Callable[[Block], Block]) -> None:
        super().__init__()
        self.change = change

    def fresh(self, v: Value) -> Value:
        return v

    def block(self, b: Block) -> Block:
        return self.change(b)


# ---- on the way to a backend


def expand_activations(kernel: Kernel) -> Kernel:
    """Return the kernel that writes masks only where they change, and counts the changes."""
    changed = changed_levels(kernel)
    if not changed:
        return kernel
    work = _Expander(kernel.span)
    tasks = tuple([t.replace(body=work.block(t.body)) for t in kernel.tasks])
    more = (m for level in changed for m in (level.mask, level.state))
    return kernel.replace(tasks=tasks, mems=tuple(dict.fromkeys((*kernel.mems, *more))))


class _Expander(Rewriter):
    """Rewrites the updates of masks."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.builder = Builder(span)

    def fresh(self, v: Value) -> Value:
        return v

    def stmt(self, s: Stmt) -> list[Stmt]:
        level = s.mem.level if isinstance(s, (Store, Atomic)) else None
        if level is None:
            return super().stmt(s)
        self.builder.span = s.span
        with self.builder, self.builder.block() as made:
            self.update(s, level)  # type: ignore[arg-type]
        return made

    def update(self, s: Store | Atomic, level: Level) -> None:
        b = self.builder
        if isinstance(s, Atomic) and s.op == "or":
            self.activate(level, s.index)
        elif isinstance(s, Atomic) and s.op == "max":
            self.lengthen(level, s)
        else:
            b.add(s)
            if isinstance(s, Atomic) and level.parent is not None:
                self.activate(level.parent, level.above(b, s.index))
            count_change(b, level)

    def activate(self, level: Level, slot: Sequence[Value]) -> None:
        """Emit the activation of a cell and of those above it, unless it is active."""
        b = self.builder
        assert level.list_axis is None
        missing = b.named("eq", b.load(level.mask, tuple(slot)), Const(u8, 0))
        with b.block() as made:
            if level.parent is not None:
                self.activate(level.parent, level.above(b, slot))
            b.store(level.mask, tuple(slot), Const(u8, 1))
            count_change(b, level)
        b.add(If(missing, Block(made), Block([]), (), b.span))

    def lengthen(self, level: Level, s: Atomic) -> None:
        """Emit what makes a list at least so long."""
        b = self.builder
        shorter = b.named("lt", b.load(level.mask, s.index), s.value)
        with b.block() as made:
            if level.parent is not None:
                self.activate(level.parent, level.above(b, s.index))
            b.add(s)
            count_change(b, level)
        b.add(If(shorter, Block(made), Block([]), (), b.span))


def count_change(b: Builder, level: Level) -> None:
    """Emit the count of a change of a level's mask."""
    at = (Const(i32, CHANGES),)
    b.store(level.state, at, b.load(level.state, at) + Const(i64, 1))
