"""Merges what a lane adds to one element of a gradient, in its branches too, into one addition.

The adjoint of a program that loads an element in each of its branches adds to the gradient in each of them,
and between these additions may come others, to elements of neighbours. Each is a load and a store, which
waits for the stores before it that overlap.

    atomic_add g[%i], %a                      %d, ... = if %c {
    ... = if %c {                               ...
      ...                                       yield %b, ...
      atomic_add g[%i], %b         ->         } else { yield 0.0, ... }
    }                                         %s = accumulate %a, %d
    atomic_add g[%k], %e                      atomic_add g[%k], %e
                                              atomic_add g[%i], %s

Legal between two accesses of other kinds to the memory: nothing sees the element before the last addition
is made. One of the additions must always run, since the element may exist only where a branch adds to it.
Gradients alone: their sums have no order that a program tells, while those of a program keep theirs. Not
where no branch adds: `scalar_replacement.py` goes on with such sums in their order.

Assumes scalar IR. Promises: the same sums but for their order; no element is touched that was not.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffsim.ir.nodes import Atomic, Block, For, If, Kernel, Let, Load, Mem, Stmt, Store, While
from diffsim.ir.traversal import bound_in, statements
from diffsim.passes.transforms.reductions import Extraction, Key, element_key


def merge_updates(kernel: Kernel) -> Kernel:
    """Return the kernel whose lanes add to an element of a gradient once, where nothing is in between."""
    gradients = {m.grad for m in kernel.mems if m.grad is not None}
    work = _Merging(kernel, gradients)
    return kernel.replace(tasks=tuple([t.replace(body=work.block(t.body)) for t in kernel.tasks]))


class _Run:
    """Statements of a block, from the first addition to a memory to the last, with no other access of it."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.always: dict[Key, Atomic] = {}
        self.in_branches: set[Key] = set()

    def found(self, s: Atomic, at: int, *, always: bool) -> None:
        if always:
            self.always.setdefault(element_key(s), s)
        else:
            self.in_branches.add(element_key(s))
        self.last = at

    def merged(self) -> dict[Key, Atomic]:
        """Return the elements that branches add to, with an addition that always runs."""
        return {k: s for k, s in self.always.items() if k in self.in_branches}


class _Merging:
    """Merges in the blocks of one kernel, innermost first."""

    def __init__(self, kernel: Kernel, gradients: set[Mem]) -> None:
        self.extraction = Extraction(kernel)
        self.gradients = gradients

    def block(self, block: Block) -> Block:
        stmts = [self.inside(s) for s in block.stmts]
        accesses = [list(_accesses(s)) for s in stmts]
        mems = dict.fromkeys(
            s.mem for s in stmts if isinstance(s, Atomic) and s.mem in self.gradients
        )
        for mem in mems:
            # From the last run on, so that those before it stay where they are.
            for run in reversed(_runs(stmts, accesses, mem)):
                if found := run.merged():
                    made = self.extraction.merged(stmts[run.first : run.last + 1], found)
                    stmts[run.first : run.last + 1] = made
                    accesses[run.first : run.last + 1] = [list(_accesses(s)) for s in made]
        return Block(stmts, block.yields)

    def inside(self, s: Stmt) -> Stmt:
        if isinstance(s, If):
            return s.replace(then=self.block(s.then), orelse=self.block(s.orelse))
        if isinstance(s, (For, While)):
            return s.replace(body=self.block(s.body))
        return s


def _accesses(s: Stmt) -> Iterator[Load | Store | Atomic]:
    if not isinstance(s, Let):
        for x in statements(Block([s])):
            if isinstance(x, (Load, Store, Atomic)):
                yield x


def _is_sum(s: Load | Store | Atomic) -> bool:
    return isinstance(s, Atomic) and s.op == "add" and s.out is None


def _runs(stmts: list[Stmt], accesses: list[list[Load | Store | Atomic]], mem: Mem) -> list[_Run]:
    """Return the runs of statements of a block between which other accesses of a memory are."""
    runs: list[_Run] = []
    now: _Run | None = None
    for at, s in enumerate(stmts):
        touching = [x for x in accesses[at] if x.mem is mem]
        if not touching:
            continue
        if not all(_is_sum(x) for x in touching):
            now = None
            continue
        if now is None:
            now = _Run(at)
            runs.append(now)
        if isinstance(s, Atomic):
            now.found(s, at, always=True)
        elif isinstance(s, If):
            inside = bound_in(Block([s]))
            for x in _outside_loops(s):
                if x.mem is mem and inside.isdisjoint(x.index):
                    now.found(x, at, always=False)
    return runs


def _outside_loops(s: If) -> Iterator[Atomic]:
    """Yield the additions in a branch that run at most once."""
    for side in (s.then, s.orelse):
        for x in side.stmts:
            if isinstance(x, Atomic):
                yield x
            elif isinstance(x, If):
                yield from _outside_loops(x)
