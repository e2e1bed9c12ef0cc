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

Before AVX-512 a store of some lanes takes long if nobody has loaded the elements
(`backends/simd/masked_accesses.py`). The lane added to these on either side, so it may load them on either:

    if %c {                                %g = load y.grad[%i]
      %g = load y.grad[%i]                 if %c {
      store y.grad[%i], %v         ->        store y.grad[%i], %v
    }                                      }

Assumes that exclusive atomics are marked. Promises: the same gradients (a zero may have the other sign).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
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


def forward_clears(kernel: Kernel, *, has_masks: bool = True) -> Kernel:
    """Return the kernel without clears of gradients that the same lane accumulates into next.

    Args:
        kernel: the kernel.
        has_masks: whether a store of some lanes takes no longer than one of all.
    """
    defs = definitions(kernel)
    tasks = tuple(map(_Clears(defs, has_masks).task, kernel.tasks))
    if all(a is b for a, b in zip(tasks, kernel.tasks, strict=True)):
        return kernel
    return kernel.replace(tasks=tasks)


class _Clears:
    """Removes clears in the tasks of a kernel.

    Args:
        defs: the op that computes each value.
        has_masks: see `forward_clears`.
    """

    def __init__(self, defs: Definitions, has_masks: bool) -> None:
        self._definitions = defs
        self._has_masks = has_masks

    def task(self, task: Task) -> Task:
        """Return a task without pairs of a clear and an addition to the same element."""
        if not any(map(_is_clear, statements(task.body))):
            return task
        body = self._block(task.body, frozenset())
        return task if body is task.body else task.replace(body=body)

    def _block(self, block: Block, differing: _Differing) -> Block:
        """Return a block, with those inside it, without such pairs.

        Args:
            block: the block.
            differing: pairs of integers that differ where it runs.
        """
        extended = _with_additions(block.stmts)
        inside = [self._inside(s, differing) for s in extended]
        stmts = _forwarded(inside, self._definitions, differing)
        if not self._has_masks:
            accessed = {s: more for s, more in zip(inside, extended.values(), strict=True) if more}
            stmts = [x for s in stmts for x in self._behind_loads(s, accessed.get(s), differing)]
        same = len(stmts) == len(block.stmts) and all(map(operator.is_, stmts, block.stmts))
        return block if same else Block(stmts, block.yields)

    def _inside(self, s: Stmt, differing: _Differing) -> Stmt:
        """Return a statement whose blocks are without such pairs."""
        if isinstance(s, If):
            then, orelse = (
                self._block(b, d)
                for b, d in zip((s.then, s.orelse), self._sides(s, differing), strict=True)
            )
            same = then is s.then and orelse is s.orelse
            return s if same else s.replace(then=then, orelse=orelse)
        if isinstance(s, (For, While)):
            body = self._block(s.body, differing)
            return s if body is s.body else s.replace(body=body)
        return s

    def _sides(self, s: If, differing: _Differing) -> list[_Differing]:
        """Return the pairs that differ on each side of a branch."""
        defs = self._definitions
        return [differing.union(_told(s.cond, defs, holds=holds)) for holds in (True, False)]

    def _behind_loads(
        self, s: Stmt, accessed: list[Atomic] | None, differing: _Differing
    ) -> list[Stmt]:
        """Return a branch behind what it loads of elements that additions behind it have accessed."""
        if not accessed or not isinstance(s, If):
            return [s]
        return _load_before(s, accessed, self._definitions, self._sides(s, differing))


def _told(cond: Value, defs: Definitions, *, holds: bool) -> Iterator[frozenset[Value | None]]:
    """Yield the pairs of integers that differ where a condition holds (or does not)."""
    for c, truth in implied(cond, defs, {}, holds=holds):
        let = defs.get(c)
        if let is not None and _UNEQUAL.get(let.op.name) is truth and let.args[0].type.is_int:
            yield frozenset(let.args)


def _with_additions(stmts: Sequence[Stmt]) -> dict[Stmt, list[Atomic]]:
    """Return statements with additions in the branches before them that compute what is added, or nothing.

    Each comes with the additions that were behind it.
    """
    made: dict[Stmt, list[Atomic]] = {}
    gone: set[Stmt] = set()
    for at, s in enumerate(stmts):
        if s in gone:
            continue
        moved: dict[Stmt, tuple[Atomic, bool]] = {}
        if isinstance(s, If) and s.outs and any(_clears(s)):
            moved = _moved(s, stmts[at + 1 : at + 1 + _FAR])
            gone |= moved.keys()
            s = _extended(s, list(moved.values())) if moved else s
        made[s] = [x for x, _ in moved.values()]
    return made


def _moved(s: If, after: Sequence[Stmt]) -> dict[Stmt, tuple[Atomic, bool]]:
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


def _load_before(
    s: If,
    accessed: Sequence[Atomic],
    defs: Definitions,
    differing: Sequence[_Differing],
) -> list[Stmt]:
    """Return a branch behind those loads of its sides that may be made on both.

    Args:
        s: the branch.
        accessed: updates that were made behind it, at indices that are known before it.
        defs: the op that computes each value.
        differing: pairs of integers that differ on each side.
    """
    moved: list[Stmt] = []
    sides = []
    for block, apart in zip((s.then, s.orelse), differing, strict=True):
        loads = _movable(block, accessed, defs, apart)
        moved += loads.values()
        sides.append(Block([x for x in block.stmts if x not in loads], block.yields))
    return [*moved, s.replace(then=sides[0], orelse=sides[1])] if moved else [s]


def _movable(
    block: Block,
    accessed: Sequence[Atomic],
    defs: Definitions,
    apart: _Differing,
) -> dict[Stmt, Load]:
    """Return the loads of a side that may be made before the branch, as they are there."""
    lane = LaneAccesses(block.stmts, defs, apart)
    stores = [x for x in block.stmts if isinstance(x, Store)]
    found: dict[Stmt, Load] = {}
    for k, x in enumerate(block.stmts):
        if not isinstance(x, Load) or not any(lane.same_element(x, y) for y in stores):
            continue
        write = lane.next_access(x, 0, writing=True)
        # The index of the update, as that of the load may be computed in the branch.
        same = next((y for y in accessed if lane.same_element(x, y)), None)
        if same is not None and (write is None or write > k):
            found[x] = x.replace(index=same.index)
    return found


def _is_clear(s: Stmt) -> TypeGuard[Store]:
    return isinstance(s, Store) and s.mem.is_grad and _is_zero(s.value)


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.value == 0


def is_plain_sum(s: Stmt) -> TypeGuard[Atomic]:
    """Whether a lane adds to an element that is its own."""
    return isinstance(s, Atomic) and s.exclusive and s.op == "add" and s.out is None
