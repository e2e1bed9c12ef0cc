"""Loops that append: finds serial loops that can run as vectors, but for counters of what they store.

    for %m in %lo..%hi carry (%n) {             load a vector of candidates, find the mask of those to keep,
      ... %near = lt %distance, %reach    ->    move these to the front (stream compaction), store them at %n,
      %n.1 = if %near {                         %n += how many there are
        store list[%p, %n], %q
        yield %n + 1
      ...

Neighbour lists are built so, and lists of what is active. One after the other, candidates wait for branches
that nobody can guess.

Assumes scalar IR. A loop is taken if nothing but where it stores depends on its counters:

- all that it carries are counters, which grow by one where a branch is taken, at one place of the body, and
  are used by nothing else than the index of what is stored there and tests against a bound (`%n < 64`);
- it loads no memory that it stores to, so that no iteration sees what another one does; and no two of its
  stores can meet.

A test against a bound has the same answer in all iterations of a vector as long as the counter is a whole
vector below the bound; from there on the loop runs as it was.
"""

from __future__ import annotations

from diffsim.ir.nodes import Block, Const, For, If, Let, Load, Mem, Store, Task, Value
from diffsim.ir.op import Math
from diffsim.ir.schedules import Appends
from diffsim.ir.traversal import blocks, bound_in, outs, statements, uses
from diffsim.passes.vectors.neighbours import find_neighbours

_LONGEST = 200
"""Statements of a body; longer ones are cut where code is generated."""
_FEWEST = 4
"""Iterations that are worth a vector, where their number is known."""
_OPS_AN_ACCESS = 3
"""Operations that a load of elements anywhere needs beside it: vectors gain nothing for the load itself."""
_BOUNDS = ("lt", "le", "gt", "ge")


def with_appends(task: Task) -> Task:
    """Return a task of scalar lanes with `Task.appends` filled in."""
    found = Appends()
    for s in statements(task.body):
        if isinstance(s, For):
            loop = _Loop(s, task)
            if loop.is_found():
                found = loop.joined(found)
    return task.replace(appends=found) if found.loops else task


class _Loop:
    """One loop, as far as it is known.

    Attributes:
        counter_of: the counter, as the loop carries it, that a value holds: the carried value itself, what
            branches yield for it, and what the loop returns.
        sites: for each counter the block that counts.
        places: indices that are a counter plus what is the same for the whole loop.
    """

    def __init__(self, loop: For, task: Task) -> None:
        self.loop = loop
        self.task = task
        self.inside = bound_in(loop.body) | {loop.index, *loop.params}
        self.counter_of: dict[Value, Value] = {}
        self.sites: dict[Value, Block] = {}
        self.places: dict[Value, Value] = {}
        self.steps: dict[Let, Value] = {}
        self.tests: dict[Let, Value] = {}
        self.stores: dict[Store, int] = {}
        self.divergent: set[Value] = set()

    def joined(self, found: Appends) -> Appends:
        """Return what was found in other loops, and here."""
        wide = frozenset(self.divergent)
        return Appends(
            loops=found.loops | {self.loop},
            counter_of={**found.counter_of, **self.counter_of},
            steps={**found.steps, **self.steps},
            tests={**found.tests, **self.tests},
            stores={**found.stores, **self.stores},
            divergent=found.divergent | wide,
            neighbours=(*found.neighbours, *find_neighbours(self.task, wide, self.loop.body)),
        )

    def is_found(self) -> bool:
        return (
            self.is_simple()
            and self.counts()
            and self.uses_counters(self.loop.body, {})
            and self.stores_apart()
            and self.pays()
        )

    def is_simple(self) -> bool:
        """Whether the loop has the statements that are looked for, and not too many."""
        s = self.loop
        if s.reverse or not s.params:
            return False
        if (
            isinstance(s.lo, Const)
            and isinstance(s.hi, Const)
            and s.hi.value - s.lo.value < _FEWEST
        ):
            return False
        body = list(statements(s.body))
        return len(body) <= _LONGEST and all(isinstance(x, (Let, Load, If, Store)) for x in body)

    # ---- counters

    def counts(self) -> bool:
        """Whether all that the loop carries are counters."""
        for p, y, out in zip(self.loop.params, self.loop.body.yields, self.loop.outs, strict=True):
            t = p.type.scalar
            if p.type.shape or t.kind != "i" or t.bits < 32:
                return False
            self.counter_of[p] = self.counter_of[out] = p
            if not self.counts_in(self.loop.body, y, p) or p not in self.sites:
                return False
        return True

    def counts_in(self, block: Block, y: Value, p: Value) -> bool:
        """Whether a block yields the counter, or one more at the one place that counts."""
        if y is p:
            return True
        made = next((s for s in block.stmts if y in outs(s)), None)
        if isinstance(made, If):
            k = made.outs.index(y)
            self.counter_of[y] = p
            return all(self.counts_in(b, b.yields[k], p) for b in (made.then, made.orelse))
        if p in self.sites or not (isinstance(made, Let) and _is_step(made, p)):
            return False
        self.counter_of[y] = p
        self.sites[p] = block
        self.steps[made] = p
        return True

    def uses_counters(self, block: Block, open_: dict[Value, Value]) -> bool:
        """Whether a block uses counters for nothing but what vectors can do.

        `open_`: the counters that this block or one around it counts, and the indices made of them there.
        """
        here = {p: p for p, site in self.sites.items() if site is block}
        open_ = {**open_, **here}
        for s in block.stmts:
            if isinstance(s, Let):
                fits = self.is_use(s, open_)
            elif isinstance(s, Store):
                fits = self.is_append(s, open_)
            elif isinstance(s, If):
                fits = s.cond not in open_ and all(self.uses_counters(b, open_) for b in blocks(s))
            else:
                fits = not any(v in self.counter_of or v in self.places for v in uses(s))
            if not fits:
                return False
        # Whatever else is yielded is no counter.
        return not any(v in self.places for v in block.yields) and self.yields_apart(block)

    def yields_apart(self, block: Block) -> bool:
        """Whether each branch of a block yields counters only as what they are."""
        pairs = [
            (out, y)
            for s in block.stmts
            if isinstance(s, If)
            for b in blocks(s)
            for out, y in zip(s.outs, b.yields, strict=True)
        ]
        return all(self.counter_of.get(out) is self.counter_of.get(y) for out, y in pairs)

    def is_use(self, s: Let, open_: dict[Value, Value]) -> bool:
        """Whether an operation is a count, a test, or makes an index; or has nothing to do with counters."""
        if s in self.steps:
            return True
        known = [v for v in s.args if v in self.counter_of or v in self.places]
        if not known:
            return True
        if len(known) > 1 or len(s.args) != 2:
            return False
        (p,) = known
        other = s.args[1] if s.args[0] is p else s.args[0]
        if other in self.inside or p not in self.loop.params:
            return False
        if s.op.name in _BOUNDS and p.type.scalar.bits == 32:
            self.tests[s] = p
            return True
        if p in open_ and (s.op.name == "add" or (s.op.name == "sub" and s.args[0] is p)):
            self.places[s.out] = p
            open_[s.out] = p
            return True
        return False

    def is_append(self, s: Store, open_: dict[Value, Value]) -> bool:
        """Whether a statement stores at a counter."""
        at = [k for k, v in enumerate(s.index) if v in open_]
        if len(at) != 1 or s.value in self.counter_of or s.value in self.places:
            return False
        # No other counter, nor this one as it is elsewhere.
        if any(v in self.counter_of and v not in open_ for v in s.index) or at[0] >= s.mem.rank:
            return False
        self.stores[s] = at[0]
        return True

    # ---- memory

    def stores_apart(self) -> bool:
        """Whether iterations may store together, and none sees what another one stores."""
        self.mark(self.loop.body)
        mems: dict[Mem, Store] = {}
        conds = self.conditions(self.loop.body, ())
        logged = self.task.order.logged if self.task.order is not None else ()
        for s, k in self.stores.items():
            t = s.mem.dtype.scalar
            others = [v for j, v in enumerate(s.index) if j != k]
            if s.mem.kind not in ("field", "array") or t.bits not in (32, 64) or s in logged:
                return False
            if t is not s.value.type.scalar or not self.divergent.isdisjoint(others):
                return False
            # Within the branch that counts, all or none of a vector's iterations store.
            if not self.divergent.isdisjoint(conds[s]):
                return False
            if not _meets_none(s, mems.setdefault(s.mem, s)):
                return False
        return not any(isinstance(s, Load) and s.mem in mems for s in statements(self.loop.body))

    def conditions(self, block: Block, around: tuple[Value, ...]) -> dict[Store, tuple[Value, ...]]:
        """Return, for each store, the conditions between it and the block that counts."""
        found: dict[Store, tuple[Value, ...]] = {}
        if any(site is block for site in self.sites.values()):
            around = ()
        for s in block.stmts:
            if isinstance(s, Store):
                found[s] = around
            elif isinstance(s, If):
                for b in blocks(s):
                    found |= self.conditions(b, (*around, s.cond))
        return found

    def mark(self, block: Block) -> None:
        """Find what differs between iterations. Tests do not: vectors run only where all have one answer."""
        self.divergent.add(self.loop.index)
        for s in block.stmts:
            if isinstance(s, If):
                for b in blocks(s):
                    self.mark(b)
                for out, *ways in zip(s.outs, s.then.yields, s.orelse.yields, strict=True):
                    if out not in self.counter_of and not self.divergent.isdisjoint(
                        (s.cond, *ways)
                    ):
                        self.divergent.add(out)
            elif not self.divergent.isdisjoint(uses(s)):
                self.divergent.update(outs(s))

    # ---- gain

    def pays(self) -> bool:
        """Whether there is enough to compute for what is loaded from anywhere.

        Vectors load such elements one after the other, too.
        """
        groups = find_neighbours(self.task, frozenset(self.divergent), self.loop.body)
        body, near = list(statements(self.loop.body)), {self.loop.index}
        for s in body:
            if isinstance(s, Let) and s.op.name in ("add", "sub") and not near.isdisjoint(s.args):
                near.add(s.out)
        far = self.divergent - near
        anywhere = sum(not far.isdisjoint(g.accesses[0].index) for g in groups)
        ops = [s.op for s in body if isinstance(s, Let) and s.out in self.divergent]
        count = len(ops) + 20 * sum(isinstance(op.lowering, Math) for op in ops)
        taken = any(isinstance(s, If) and s.cond in self.divergent for s in body)
        return taken and count >= _OPS_AN_ACCESS * anywhere


def _is_step(s: Let, p: Value) -> bool:
    """Whether a statement adds 1 to a counter."""
    if s.op.name != "add" or p not in s.args:
        return False
    one = s.args[1] if s.args[0] is p else s.args[0]
    return isinstance(one, Const) and one.value == 1


def _meets_none(a: Store, b: Store) -> bool:
    """Whether two stores to one memory are of different components of the same elements, or the same."""
    if a is b:
        return True
    rank = a.mem.rank
    if any(x is not y for x, y in zip(a.index[:rank], b.index[:rank], strict=True)):
        return False
    pairs = zip(a.index[rank:], b.index[rank:], strict=True)
    return any(
        isinstance(x, Const) and isinstance(y, Const) and x.value != y.value for x, y in pairs
    )
