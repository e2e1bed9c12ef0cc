"""Values that the launch has stored: an adjoint may load them in place of computing them again.

An adjoint computes its forward values again, from what the launch has loaded. Where the launch has stored one
of them, and its element holds it still, a load gives the same number:

    %s = for ... sum of products                    %h = load h[%i, %j]
    %h = tanh %s                          ->
    ... uses of %h (1 - %h * %h)                    ... uses of %h

Whether the element holds it still has two parts. No other store of the launch may reach the element: that is
decided from the kernel (`lasting_stores.py`). Nobody may have written to it since: that is asked before each
launch, of the versions (docs/adr/0107). So there are two adjoints, and the one that computes is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Value,
    While,
)
from diffsim.ir.op import Math
from diffsim.ir.traversal import blocks, entered, outs, statements, task_statements, uses
from diffsim.ir.types import size_of
from diffsim.passes.kept.lasting_stores import lasting_stores
from diffsim.passes.transforms.dce import eliminate_dead_code

_FUNCTION, _DIVISION = 24, 12
"""The costs of a function, and of a division or root, in additions."""
_LEAST_GAIN = 24
"""Fewer operations are not worth a load: in large fields each number loaded takes as long as some twenty."""
_TRIPS = 16


class Recomputed(NamedTuple):
    """A value of an adjoint that the kernel has stored.

    Attributes:
        value: as the adjoint computes it again.
        store: the kernel's statement.
        place: the index of the element, in the adjoint.
    """

    value: Value
    store: Store
    place: tuple[Value, ...]


class Loading(NamedTuple):
    """An adjoint that loads values which its launch has stored.

    Attributes:
        ir: the adjoint.
        stores: the kernel's stores of these values: their elements must be as the launch left them.
    """

    ir: Kernel
    stores: tuple[Store, ...]


def load_stored(
    kernel: Kernel, adjoint: Kernel, found: Iterable[Recomputed], restored: frozenset[Mem]
) -> Loading | None:
    """Return the adjoint with loads in place of what is costly to compute; None: there is nothing to gain.

    Args:
        kernel: the kernel.
        adjoint: its finished adjoint.
        found: what the adjoint computes again that the kernel stores.
        restored: memories that the adjoint finds as they were before the launch.
    """
    wanted = {r.value: r for r in found if _is_loadable(r, restored)}
    if not wanted:
        return None
    definitions = _Definitions(adjoint)
    wanted = {v: r for v, r in wanted.items() if definitions.costs(v, _LEAST_GAIN)}
    if not wanted:
        return None
    lasting = lasting_stores(kernel, {r.store for r in wanted.values()})
    written = {
        s.mem for t in adjoint.tasks for s in task_statements(t) if isinstance(s, (Store, Atomic))
    }
    wanted = {v: r for v, r in wanted.items() if r.store in lasting and r.store.mem not in written}
    while wanted:
        work = _Loader(wanted, definitions)
        made = eliminate_dead_code(work.kernel(adjoint))
        worth = definitions.gains(made, work.loaded)
        if len(worth) == len(work.loaded):
            stores = dict.fromkeys(wanted[v].store for v in worth)
            return Loading(made, tuple(stores)) if worth else None
        # What the others gain with fewer loads is no less.
        wanted = {v: wanted[v] for v in worth}
    return None


def _is_loadable(r: Recomputed, restored: frozenset[Mem]) -> bool:
    """Whether a value is in memory as it was computed, to the last bit, once it is stored."""
    mem, t = r.store.mem, r.value.type
    plain = mem.kind == "field" and mem.level is None and mem.place is None and not mem.is_grad
    # Types of storage (f16) are rounded when they are stored.
    same = t.is_float and t.scalar.arithmetic is t.scalar and t.scalar is mem.dtype.scalar
    whole = same and r.store.value.type is t
    return plain and whole and mem not in restored and not isinstance(r.value, LEAVES)


# ---- what is gained


class _Definitions:
    """The statements of an adjoint by the values that they bind."""

    def __init__(self, adjoint: Kernel) -> None:
        self.of: dict[Value, Stmt] = {
            v: s for t in adjoint.tasks for s in task_statements(t) for v in outs(s)
        }

    def costs(self, v: Value, least: int) -> bool:
        """Whether a value takes at least so many operations to compute, with what only it may need."""
        return self._cost(v, lambda v: True, set(), least) >= least

    def gains(self, made: Kernel, loaded: Iterable[Value]) -> list[Value]:
        """Return the loaded values that have spared an adjoint more than their loads cost."""
        alive = {v for t in made.tasks for s in task_statements(t) for v in (*outs(s), *entered(s))}
        seen: set[Stmt] = set()
        return [
            v
            for v in loaded
            if self._cost(v, lambda w: w not in alive, seen) >= _LEAST_GAIN * size_of(v.type)
        ]

    def _cost(
        self, v: Value, counts: Callable[[Value], bool], seen: set[Stmt], most: float = float("inf")
    ) -> float:
        """Return the operations of what a value is computed from, as far as its values count."""
        total, work = 0.0, [self.of[v]] if v in self.of else []
        while work and total < most:
            s = work.pop()
            if s in seen:
                continue
            seen.add(s)
            total += _operations(s, counts)
            used = [*uses(s)]
            for inner in blocks(s):
                used += inner.yields
                for x in statements(inner):
                    seen.add(x)
                    used += uses(x)
            work += [self.of[u] for u in used if u in self.of and counts(u)]
        return total


def _operations(s: Stmt, counts: Callable[[Value], bool]) -> float:
    """Return the operations of a statement, and of those in it whose values count."""
    if isinstance(s, Let):
        size = size_of(s.out.type)
        if isinstance(s.op.lowering, Math):
            return _FUNCTION * size
        division = s.out.type.is_float and s.op.name in ("div", "sqrt", "rsqrt")
        return _DIVISION * size if division else size
    if isinstance(s, Load):
        return 2 * size_of(s.out.type)
    times = 1.0
    if isinstance(s, (For, While)):
        known = isinstance(s, For) and isinstance(s.lo, Const) and isinstance(s.hi, Const)
        times = max(0.0, float(s.hi.value - s.lo.value)) if known else _TRIPS  # type: ignore[union-attr]
    inside = (x for b in blocks(s) for x in b.stmts)
    return times * sum(
        _operations(x, counts) for x in inside if blocks(x) or any(map(counts, outs(x)))
    )


# ---- the loads


class _Loader:
    """Copies an adjoint, with loads where values are bound that are wanted.

    Attributes:
        loaded: the values that are loaded now.
    """

    def __init__(self, wanted: dict[Value, Recomputed], definitions: _Definitions) -> None:
        self._wanted = wanted
        self._definitions = definitions
        self._seen: set[Value] = set()
        self.loaded: list[Value] = []

    def kernel(self, adjoint: Kernel) -> Kernel:
        tasks = []
        for t in adjoint.tasks:
            for s in t.bounds.stmts:
                self._seen.update(outs(s))
            self._seen.update(t.axes)
            tasks.append(t.replace(body=self._block(t.body)))
        return adjoint.replace(tasks=tuple(tasks))

    def _block(self, block: Block) -> Block:
        made: list[Stmt] = []
        for s in block.stmts:
            made += self._stmt(s)
        return Block(made, block.yields)

    def _stmt(self, s: Stmt) -> list[Stmt]:
        bound = outs(s)
        self._seen.update(entered(s))
        found = [(v, ready) for v in bound if (ready := self._ready(v)) is not None]
        if isinstance(s, For):
            s = s.replace(body=self._block(s.body))
        elif isinstance(s, While):
            s = s.replace(cond=self._block(s.cond), body=self._block(s.body))
        elif isinstance(s, If):
            s = s.replace(then=self._block(s.then), orelse=self._block(s.orelse))
        self._seen.update(bound)
        if not found:
            return [s]
        made: list[Stmt] = []
        if not isinstance(s, (Let, Load)):
            renamed = {v: Value(v.type, v.hint) for v, _ in found}
            made.append(s.replace(outs=tuple(renamed.get(v, v) for v in bound)))
        for v, (before, index) in found:
            mem = self._wanted[v].store.mem
            made += [*before, Load(v, mem, index, s.span)]
            self.loaded.append(v)
        return made

    def _ready(self, v: Value) -> tuple[list[Stmt], tuple[Value, ...]] | None:
        """Return the index of what is to be loaded in place of a value, and what computes it."""
        wanted = self._wanted.get(v)
        if wanted is None or isinstance(self._definitions.of[v], Load):
            return None
        made: list[Stmt] = []
        index = [self._again(i, made) for i in wanted.place]
        return None if None in index else (made, tuple(index))  # type: ignore[arg-type]

    def _again(self, v: Value, made: list[Stmt], depth: int = 4) -> Value | None:
        """Return a value that is bound already, or a copy of one that is bound later on."""
        if isinstance(v, LEAVES) or v in self._seen:
            return v
        s = self._definitions.of.get(v)
        if not isinstance(s, Let) or v.type.is_float or depth == 0:
            return None
        args = [self._again(a, made, depth - 1) for a in s.args]
        if None in args:
            return None
        copy = Value(v.type, v.hint)
        made.append(Let(copy, s.op, tuple(args), s.span))  # type: ignore[arg-type]
        return copy
