"""Neighbours: finds accesses of one memory at constant distances, which lanes make together.

    %a = load q[%i, %j]              one load of two numbers for each lane, instead of two gathers
    %b = load q[%i, %j + 1]
    atomic_add g[%p, 0], %s          one load, addition and store of two numbers for each lane
    atomic_add g[%p, 1], %t

Lanes that run as vectors and access elements that indices tell do so one lane after the other, whether by an
instruction for gathers or not. What a lane accesses at once then counts once: the components of a vector,
the cells that an interpolation mixes.

Right where nothing in between sees the difference: loads are made where the first of them stands, if nothing
stores to their memory up to the last one; additions and stores where the last one stands, if nothing else
accesses the memory from the first one on.
"""

from __future__ import annotations

from collections.abc import Iterable

from diffsim.ir.nodes import Atomic, Block, Load, Mem, Stmt, Store, Task, Value
from diffsim.ir.schedules import Access, Neighbours
from diffsim.ir.traversal import blocks, statements
from diffsim.passes.analysis.affine import Definitions, element_of, task_definitions

_LONGEST = 4_000
"""Statements of the longest block that is looked through: longer ones are cut where code is generated."""
_MOST = 16
"""Accesses in one group."""

Key = tuple[type, Mem, tuple[Value | None, ...]]


def find_neighbours(
    task: Task, divergent: frozenset[Value], body: Block | None = None
) -> tuple[Neighbours, ...]:
    """Return the groups of accesses whose indices differ between lanes, single accesses among them.

    `body`: only those of a part of the task.
    """
    defs = task_definitions(task)
    found: list[Neighbours] = []
    waiting = [body or task.body]
    while waiting:
        block = waiting.pop()
        if len(block.stmts) <= _LONGEST:
            found += _Groups(block, divergent, defs).find()
        waiting += [b for s in block.stmts for b in blocks(s)]
    return tuple(found)


def adds_beside(group: Neighbours) -> bool:
    """Whether lanes side by side add to several elements, which may be each other's."""
    several = len(set(group.shifts)) < len(group.shifts) or len({s[-1] for s in group.shifts}) > 1
    return group.step == 1 and isinstance(group.accesses[0], Atomic) and several


class _Groups:
    """The groups of one block."""

    def __init__(self, block: Block, divergent: frozenset[Value], defs: Definitions) -> None:
        self.block = block
        self.divergent = divergent
        self.defs = defs
        self.open: dict[Key, tuple[list[Access], list[tuple[int, ...]]]] = {}
        """Groups that may still grow: their accesses, and the constant parts of the indices."""
        self.found: list[Neighbours] = []

    def find(self) -> list[Neighbours]:
        for s in self.block.stmts:
            if isinstance(s, (Load, Store, Atomic)):
                self.close(s)
                self.add(s)
            else:
                for x in (x for b in blocks(s) for x in statements(b)):
                    self.close(x, nested=True)
        self.close_all(list(self.open))
        return self.found

    def add(self, s: Access) -> None:
        if not self.may_join(s):
            return
        key, element = self.key_of(s), element_of(s.index, self.defs)
        accesses, shifts = self.open.setdefault(key, ([], []))
        accesses.append(s)
        shifts.append(tuple([shift for _, shift in element]))
        if len(accesses) == _MOST:
            self.close_all([key])

    def key_of(self, s: Access) -> Key:
        element = element_of(s.index, self.defs)
        return type(s), s.mem, tuple([base for base, _ in element])

    def may_join(self, s: Access) -> bool:
        """Whether an access may be made together with others, and lanes differ in the element."""
        return (
            s.mem.kind in ("field", "array")
            and s.mem.dtype.scalar.bits in (32, 64)
            and not (isinstance(s, Atomic) and (s.op != "add" or s.out is not None))
            and not self.divergent.isdisjoint(s.index)
        )

    def close(self, s: Stmt, *, nested: bool = False) -> None:
        """Close the groups that an access, which may be one of theirs, must not be moved across."""
        if not isinstance(s, (Load, Store, Atomic)):
            return
        ended = [k for k in self.open if k[1] is s.mem and self.ends(k[0], s, nested)]
        # Stores of one group are made in their order.
        own = self.key_of(s) if isinstance(s, Store) and ended and not nested else None
        self.close_all([k for k in ended if k != own])

    def ends(self, kind: type, s: Access, nested: bool) -> bool:
        """Whether an access of the same memory ends groups of a kind, if it does not join them."""
        if kind is Load:
            return not isinstance(s, Load)
        # Additions commute with each other; those of another element stay where they are.
        return not (kind is Atomic and isinstance(s, Atomic) and s.op == "add" and s.out is None)

    def close_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            accesses, shifts = self.open.pop(key)
            self.found.append(Neighbours(tuple(accesses), tuple(shifts)))
