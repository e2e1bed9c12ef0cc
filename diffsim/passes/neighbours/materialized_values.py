"""Loop fission: what a lane gives to all neighbours is stored once, in the gradient that is cleared anyway.

The adjoint of a stencil computes in each lane one number, at some cost, and adds multiples of it to all
neighbours' elements. Where elements collect (`scatter_to_gather`), each would compute that number again for
each neighbour. It is stored where the lane has just read a gradient that it clears:

    parallel %i in a..b {                     parallel %i in a..b {
      %g: f32 = load y.grad[%i]                 %g: f32 = load y.grad[%i]
      store y.grad[%i], 0.0                     %v: f32 = ...costly %g...
      %v: f32 = ...costly %g...        ->       store y.grad[%i], %v
      %v.1: f32 = mul %v, 0.25                }
      atomic_add x.grad[%i - 1], %v.1         parallel %i in a..b {
      atomic_add x.grad[%i + 1], %v.1           %v: f32 = load y.grad[%i]
    }                                           store y.grad[%i], 0.0
                                                %v.1: f32 = mul %v, 0.25
                                                atomic_add x.grad[%i - 1], %v.1
                                                atomic_add x.grad[%i + 1], %v.1
                                              }

Assumes any kernel. Promises: each lane does the same, its additions to neighbours after all lanes' other
work. So nothing in the task may depend on these additions, and they on nothing that the task writes but the
numbers handed over; each cleared element belongs to one lane, which clears it last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

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
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import Rewriter, blocks, outs, slow_parts, statements
from diffsim.ir.types import size_of
from diffsim.passes.analysis.affine import Definitions, Element, element_of, faces_of, offset_of
from diffsim.passes.analysis.guarded_updates import reads, values_alone
from diffsim.passes.analysis.regions import disjoint, region_of

_LEAST_NEIGHBOURS = 3
_LEAST_AGAIN = 8
"""Scalar operations that elements would compute again, for each number that is stored and loaded again."""
_SLOW = 8  # operations that a division takes as long as
_LOOP = 8  # iterations of a loop, of which nothing is known
_MOST_LEFT = 8  # operations of what an addition still computes of the numbers that it is handed
_MOST_STATEMENTS = 64  # with those for its indices
_MOST_CLEARS = 16  # that are compared with all accesses to their memory
_SIMPLE = (Let, Load, Store, Atomic, If, For, While)
_NEAR = frozenset(("add", "sub", "min", "max", "mod", "cast"))


def materialize_values(kernel: Kernel) -> Kernel:
    """Return the kernel with values that many neighbours are given in memory, each computed once."""
    tasks: list[Task] = []
    for task in kernel.tasks:
        tasks += _Fission(task).parts()
    same = len(tasks) == len(kernel.tasks)
    return kernel if same else kernel.replace(tasks=tuple(tasks))


@dataclass(frozen=True, slots=True)
class _Plan:
    """The additions to one memory that are moved, what they are handed, and what they still need."""

    moved: frozenset[Stmt]
    handed: tuple[Value, ...]
    needed: frozenset[Stmt]


class _Fission:
    """Splits one task.

    Attributes:
        defs: the op that binds a value.
        bound: the statement at the top of the body that binds a value, without what that writes.
        order: the position of each of these.
        inside: all statements.
        accesses: what the task does to each memory, its branches and loops included.
        written: the memories that the task writes.
        last: the last access at the top of the body to each element of a memory.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.inside: list[Stmt] = []
        self.defs: Definitions = {}
        self.bound: dict[Value, Stmt] = {}
        self.order: dict[Stmt, int] = {}
        self.accesses: dict[Mem, list[Load | Store | Atomic]] = {}
        self.written: set[Mem] = set()
        self.last: dict[tuple[Mem, Element], Load | Store | Atomic] = {}

    def parts(self) -> list[Task]:
        """Return the task itself, or the two that replace it."""
        task = self.task
        if not task.axes or task.reductions or task.active is not None or not self.adds():
            return [task]
        self.inside = list(statements(task.body))
        if not all(isinstance(s, _SIMPLE) for s in self.inside) or faces_of(task) is None:
            return [task]
        self.look()
        # Elements of a sparse tree may not be there, in any of the lanes.
        clears = [] if any(_is_sparse(mem) for mem in self.accesses) else self.clears()
        plans: list[_Plan] = []
        places: dict[Value, Store] = {}
        for mem in self.accesses:
            plan = self.plan(mem, len(clears)) if clears else None
            found = None if plan is None else self.placed(plan, places, clears)
            if plan is not None and found is not None:
                plans.append(plan)
                places = found
        if not plans:
            return [task]
        moved = {s for p in plans for s in p.moved}
        needed = {s for p in plans for s in p.needed}
        return [self.first(moved, places), self.second(moved, needed, places)]

    def adds(self) -> bool:
        """Whether enough additions stand at the top of the body."""
        return sum(map(_is_addition, self.task.body.stmts)) >= _LEAST_NEIGHBOURS

    def look(self) -> None:
        self.defs = {s.out: s for s in self.inside if isinstance(s, Let)}
        for n, s in enumerate(self.task.body.stmts):
            self.order[s] = n
            self.bound.update(dict.fromkeys(outs(s), s))
        for s in self.inside:
            if isinstance(s, (Load, Store, Atomic)):
                self.accesses.setdefault(s.mem, []).append(s)
                if not isinstance(s, Load):
                    self.written.add(s.mem)

    # ---- what can be handed over

    def clears(self) -> list[Store]:
        """Return the clears of elements which nothing but their own lanes accesses, before that."""
        found: list[Store] = []
        asked = 0
        for s in self.task.body.stmts:
            if not isinstance(s, Store) or not isinstance(s.value, Const):
                continue
            bases = [base for base, _ in element_of(s.index, self.defs)]
            if (
                s.mem.kind in ("field", "array")
                and set(bases).issuperset(self.task.axes)
                and self.is_last(s)
                and asked < _MOST_CLEARS
            ):
                asked += 1
                if self.is_steady(self.needs(s.index)) and all(
                    self.is_before(x, s) for x in self.accesses[s.mem] if x is not s
                ):
                    found.append(s)
        return found

    def is_last(self, clear: Store) -> bool:
        """Whether no later statement at the top of the body accesses the element of a clear."""
        if not self.last:
            for s in self.task.body.stmts:
                if isinstance(s, (Load, Store, Atomic)):
                    self.last[s.mem, element_of(s.index, self.defs)] = s
        return self.last[clear.mem, element_of(clear.index, self.defs)] is clear

    def is_before(self, x: Load | Store | Atomic, clear: Store) -> bool:
        """Whether an access is to no cleared element, or to the lane's own, before that."""
        if disjoint(region_of(x, self.defs), region_of(clear, self.defs)):
            return True
        # What is in a branch or a loop has no position.
        return (
            x in self.order
            and self.order[x] < self.order[clear]
            and element_of(x.index, self.defs) == element_of(clear.index, self.defs)
        )

    def placed(
        self, plan: _Plan, places: dict[Value, Store], clears: list[Store]
    ) -> dict[Value, Store] | None:
        """Return which cleared element each number takes the place in; None: there are not enough."""
        found = dict(places)
        for v in plan.handed:
            if v in found:
                continue
            taken = set(found.values())
            free = [c for c in clears if c not in taken and c.value.type is v.type]
            if not free:
                return None
            found[v] = free[0]
        return found

    # ---- what additions need

    def plan(self, mem: Mem, most: int) -> _Plan | None:
        """Return how the additions to a memory are split from the rest; None: they are not.

        Args:
            mem: the memory.
            most: how many numbers there is a place for.
        """
        members = [s for s in self.accesses[mem] if s in self.order and _is_addition(s)]
        far = [s for s in members if self.is_near(s)]
        # The additions move behind all else, which so must not see them.
        if len(far) < _LEAST_NEIGHBOURS or not all(map(_is_addition, self.accesses[mem])):
            return None
        shared, others = self.shared(far)
        handed = self.frontier(shared, others, far)
        again = (len(far) - 1) * self.work(shared)
        if (
            not 0 < len(handed) <= most
            or again < sum(size_of(v.type) for v in handed) * _LEAST_AGAIN
        ):
            return None
        moved: set[Stmt] = set()
        needed: set[Stmt] = set()
        for s in members:
            left = self.little([*s.index, s.value], set(handed))
            if left is not None:
                moved.add(s)
                needed |= left
            elif s in far:
                return None
        return _Plan(frozenset(moved), tuple(handed), frozenset(needed))

    def is_near(self, s: Atomic) -> bool:
        """Whether the lane adds to the element of another one: each axis at one place, with a shift."""
        axes: list[Value] = []
        shifts = False
        for i in s.index:
            base, shift = offset_of(i, self.defs)
            shifts = shifts or (base is not None and (shift != 0 or base not in self.task.axes))
            found = set(self.axes_of(i))
            if len(found) > 1 or None in found:
                return False
            axes += [a for a in found if a is not None]
        return shifts and len(axes) == len(set(axes)) == len(self.task.axes)

    def axes_of(self, v: Value) -> Iterator[Value | None]:
        """Yield the axes that an index of a neighbour is made of; None for what is no such index."""
        base, _ = offset_of(v, self.defs)
        let = None if base is None else self.defs.get(base)
        if base in self.task.axes:
            yield base
        elif let is not None and let.op.name in _NEAR:
            for a in let.args:
                yield from self.axes_of(a)
        elif base is not None and not isinstance(base, LEAVES):
            yield None

    def needs(self, values: Iterable[Value], given: Iterable[Value] = ()) -> Iterator[Stmt]:
        """Yield the statements at the top of the body that values need, if some are given."""
        needed: set[Stmt] = set()
        known = set(given)
        work = list(values)
        while work:
            v = work.pop()
            s = self.bound.get(v)
            if v not in known and s is not None and s not in needed:
                needed.add(s)
                work += reads(values_alone(s))
                yield s

    def shared(self, far: list[Atomic]) -> tuple[set[Stmt], set[Stmt]]:
        """Return the statements that the values of all additions need, and those that some of them do."""
        needed = sorted(self.needs(s.value for s in far), key=self.order.__getitem__)
        # A bit for each addition. Backwards, a statement is met after all that use it.
        users = dict.fromkeys(needed, 0)
        for k, one in enumerate(far):
            if (s := self.bound.get(one.value)) is not None:
                users[s] |= 1 << k
        for s in reversed(needed):
            for v in reads(values_alone(s)):
                if v in self.bound:
                    users[self.bound[v]] |= users[s]
        everyone = (1 << len(far)) - 1
        return (
            {s for s, who in users.items() if who == everyone},
            {s for s, who in users.items() if who != everyone},
        )

    def frontier(self, shared: set[Stmt], others: set[Stmt], far: list[Atomic]) -> list[Value]:
        """Return what all additions share and is computed at some cost, and is used by what they do not."""
        used = {s.value for s in far}
        for s in others:
            used.update(reads(values_alone(s)))
        found = [v for s in self.in_order(shared) for v in outs(s) if v in used]
        # A neighbour may well compute again what is loaded, or made of little that is.
        return [v for v in found if self.little([v]) is None]

    def little(self, values: Iterable[Value], given: Iterable[Value] = ()) -> set[Stmt] | None:
        """Return what values need, if that is a few operations of what the task does not change."""
        found: set[Stmt] = set()
        work = 0
        for s in self.needs(values, given):
            work += self.work([s])
            if work > _MOST_LEFT or len(found) == _MOST_STATEMENTS or not self.is_steady([s]):
                return None
            found.add(s)
        return found

    def is_steady(self, needed: Iterable[Stmt]) -> bool:
        """Whether statements give the same behind the task; cleared memories are among what it writes."""
        return all(
            isinstance(s, Let) or (isinstance(s, Load) and s.mem not in self.written)
            for s in needed
        )

    def work(self, needed: Iterable[Stmt]) -> int:
        """Return the scalar operations that statements take; loads and sums of indices are free."""
        total = 0
        for s in needed:
            if isinstance(s, Let) and s.out.type.scalar.is_float:
                total += size_of(s.out.type) + _SLOW * slow_parts(s)
            for b in blocks(s):
                total += (_LOOP if isinstance(s, (For, While)) else 1) * self.work(b.stmts)
        return total

    # ---- rewriting

    def first(self, moved: set[Stmt], places: dict[Value, Store]) -> Task:
        """Return the task without these additions, which stores what they are handed."""
        cleared = set(places.values())
        body: list[Stmt] = [s for s in self.task.body.stmts if s not in moved and s not in cleared]
        body += [Store(s.mem, s.index, v, s.span) for v, s in places.items()]
        return self.task.replace(body=Block(body))

    def second(self, moved: set[Stmt], needed: set[Stmt], places: dict[Value, Store]) -> Task:
        """Return the task of the additions, and of the clears that they make of what they are handed."""
        cleared = set(places.values())
        indices = set(self.needs(i for s in cleared for i in s.index))
        copy = Rewriter()
        bounds, axes = copy.block(self.task.bounds), copy.fresh_all(self.task.axes)
        stmts = list(copy.block(Block(self.in_order(indices))).stmts)
        for v, s in places.items():
            stmts.append(Load(copy.fresh(v), s.mem, copy.values(s.index), s.span))
            stmts.append(copy.copy(s))
        stmts += copy.block(Block(self.in_order((needed - indices) | moved))).stmts
        return self.task.replace(axes=axes, bounds=bounds, body=Block(stmts))

    def in_order(self, chosen: set[Stmt]) -> list[Stmt]:
        return sorted(chosen, key=lambda s: self.order[s])


def _is_sparse(mem: Mem) -> bool:
    return mem.place is not None or mem.level is not None


def _is_addition(s: Stmt) -> TypeGuard[Atomic]:
    return isinstance(s, Atomic) and s.op == "add" and s.out is None
