"""Removes clear-then-accumulate pairs on one gradient element.

The adjoint of `y[i] = y[i] + f(x[i])` loads the gradient of y[i], clears it, and adds it to the gradient of
what y[i] was before, which is the same element:

    %g = load y.grad[%i]                   %g = load y.grad[%i]
    store y.grad[%i], 0.0            ->    ...
    exclusive_add y.grad[%i], %g

Where another value is added, it is stored instead: the element is 0. What is added after a branch is added in
it, if it is 0 on the other side and the branch has a clear, so that the two meet:

    %v = if %c {                           if %c {
      store y.grad[%i], 0.0                  store y.grad[%i], 0.0
      yield %g                       ->      exclusive_add y.grad[%i], %g
    } else { yield 0.0 }                   }
    exclusive_add y.grad[%i], %v

Assumes that exclusive atomics are marked. Promises: the same gradients (a zero may have the other sign).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TypeGuard

from diffsim.ir.nodes import (
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
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import bound_in, statements
from diffsim.passes.analysis.access_order import LaneAccesses
from diffsim.passes.analysis.affine import Definitions, definitions
from diffsim.passes.analysis.counted_loops import implied

_Differing = frozenset[frozenset[Value | None]]
_UNEQUAL = {"gt": True, "lt": True, "ne": True, "ge": False, "le": False, "eq": False}
"""Comparisons of numbers that differ where the result is that."""
_ACCESSES = (Load, Store, Atomic)
_FAR = 64  # statements behind a branch among which its additions are looked for


def forward_clears(kernel: Kernel) -> Kernel:
    """Return the kernel without clears of gradients that the same lane accumulates into next."""
    defs = definitions(kernel)
    tasks = tuple(_task(t, defs) for t in kernel.tasks)
    if all(a is b for a, b in zip(tasks, kernel.tasks, strict=True)):
        return kernel
    return kernel.replace(tasks=tasks)


def _task(task: Task, defs: Definitions) -> Task:
    """Return a task without pairs of a clear and an addition to the same element."""
    if not any(map(_is_clear, statements(task.body))):
        return task
    body = _block(task.body, defs, frozenset())
    return task if body is task.body else task.replace(body=body)


def _block(block: Block, defs: Definitions, differing: _Differing) -> Block:
    """Return a block, with those inside it, without such pairs.

    Args:
        block: the block.
        defs: the op that computes each value.
        differing: pairs of integers that differ where it runs.
    """
    stmts = _with_additions(list(block.stmts))
    stmts = _forwarded([_inside(s, defs, differing) for s in stmts], defs, differing)
    same = len(stmts) == len(block.stmts) and all(map(operator.is_, stmts, block.stmts))
    return block if same else Block(stmts, block.yields)


def _inside(s: Stmt, defs: Definitions, differing: _Differing) -> Stmt:
    """Return a statement whose blocks are without such pairs."""
    if isinstance(s, If):
        sides = [
            _block(b, defs, differing.union(_told(s.cond, defs, holds=holds)))
            for b, holds in ((s.then, True), (s.orelse, False))
        ]
        same = sides[0] is s.then and sides[1] is s.orelse
        return s if same else s.replace(then=sides[0], orelse=sides[1])
    if isinstance(s, (For, While)):
        body = _block(s.body, defs, differing)
        return s if body is s.body else s.replace(body=body)
    return s


def _told(cond: Value, defs: Definitions, *, holds: bool) -> Iterator[frozenset[Value | None]]:
    """Yield the pairs of integers that differ where a condition holds (or does not)."""
    for c, truth in implied(cond, defs, {}, holds=holds):
        let = defs.get(c)
        if let is not None and _UNEQUAL.get(let.op.name) is truth and let.args[0].type.is_int:
            yield frozenset(let.args)


def _with_additions(stmts: list[Stmt]) -> list[Stmt]:
    """Return statements with additions in the branches before them that compute what is added, or nothing."""
    if not any(isinstance(s, If) and s.outs and any(_clears(s)) for s in stmts):
        return stmts
    made: list[Stmt] = []
    gone: set[Stmt] = set()
    for at, s in enumerate(stmts):
        if s in gone:
            continue
        if isinstance(s, If) and s.outs:
            moved = _moved(s, stmts[at + 1 : at + 1 + _FAR])
            gone |= moved.keys()
            s = _extended(s, list(moved.values())) if moved else s
        made.append(s)
    return made


def _moved(s: If, after: list[Stmt]) -> dict[Stmt, tuple[Atomic, bool]]:
    """Return the additions after a branch that can be made in it, and on which side."""
    cleared = set(_clears(s))
    found: dict[Stmt, tuple[Atomic, bool]] = {}
    late: set[Value] = set(s.outs)  # values that the branch does not have
    touched: set[Mem] = set()  # what comes later has to stay behind these accesses
    for x in after:
        side = _side(s, x)
        if (
            is_plain_sum(x)
            and side is not None
            and x.mem in cleared
            and x.mem not in touched
            and late.isdisjoint(x.index)
        ):
            found[x] = x, side
            continue
        late |= bound_in(Block([x]))
        if not isinstance(x, Let):
            touched |= {y.mem for y in statements(Block([x])) if isinstance(y, _ACCESSES)}
        if cleared <= touched:
            break
    return found


def _side(s: If, x: Stmt) -> bool | None:
    """Return the side of a branch on which the number that is added is not 0; None: that is not known."""
    if not isinstance(x, Atomic) or x.value not in s.outs:
        return None
    k = s.outs.index(x.value)
    if _is_zero(s.orelse.yields[k]):
        return True
    return False if _is_zero(s.then.yields[k]) else None


def _extended(s: If, moved: list[tuple[Atomic, bool]]) -> If:
    """Return a branch with additions at the ends of its sides."""
    sides = []
    for block, holds in ((s.then, True), (s.orelse, False)):
        more = [
            x.replace(value=block.yields[s.outs.index(x.value)])
            for x, side in moved
            if side is holds
        ]
        sides.append(Block([*block.stmts, *more], block.yields))
    return s.replace(then=sides[0], orelse=sides[1])


def _clears(s: Stmt) -> Iterator[Mem]:
    """Yield the gradients of which a branch clears elements."""
    yield from (x.mem for x in statements(Block([s])) if _is_clear(x))


def _forwarded(stmts: list[Stmt], defs: Definitions, differing: _Differing) -> list[Stmt]:
    """Return the statements of a block without pairs of a clear and an addition among them."""
    clears = [(k, s) for k, s in enumerate(stmts) if _is_clear(s)]
    if not clears:
        return stmts
    loads = {s.out: k for k, s in enumerate(stmts) if isinstance(s, Load)}
    lane = LaneAccesses(stmts, defs, differing)
    changed: dict[int, Stmt | None] = {}
    for k, clear in clears:
        # The very next access to the element must be the addition; anything between them would see the
        # clear.
        at = lane.next_access(clear, k + 1)
        add = clear if at is None else stmts[at]
        if at is None or not (is_plain_sum(add) and lane.same_element(add, clear)):
            continue
        changed[k] = None
        # 0 + v = v (but for the sign of a zero), so the addition becomes the store, and the clear goes.
        changed[at] = Store(add.mem, add.index, add.value, add.span)
        loaded = loads.get(add.value, k)
        load = stmts[loaded]
        if isinstance(load, Load) and loaded < k and lane.same_element(load, clear):
            write = lane.next_access(clear, loaded, writing=True)
            if write == k:  # what is added back is what was there: the element keeps it
                changed[at] = None
    if not changed:
        return stmts
    left = (changed.get(k, s) for k, s in enumerate(stmts))
    return [s for s in left if s is not None]


def _is_clear(s: Stmt) -> TypeGuard[Store]:
    return isinstance(s, Store) and s.mem.is_grad and _is_zero(s.value)


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.value == 0


def is_plain_sum(s: Stmt) -> TypeGuard[Atomic]:
    """Whether a lane adds to an element that is its own."""
    return isinstance(s, Atomic) and s.exclusive and s.op == "add" and s.out is None
