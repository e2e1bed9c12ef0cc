"""The sums that elements collect of windows of lanes: what `mirror_windows` emits for each addition.

A sum has loops for the distances of the window (those that reach the element), tests whether the lane is
there, loops over lanes, the branches around the addition, and the value that is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Atomic, Block, Const, For, If, Let, Load, Stmt, Store, Value
from diffsim.passes.analysis.affine import (
    AffineForm,
    AffineForms,
    Definitions,
    Ranges,
    number,
    offset_of,
)
from diffsim.passes.analysis.guarded_updates import KnownBranches

Ends = tuple[Value, Value]
"""The bounds of a loop or an axis."""


class Site(NamedTuple):
    """An addition and the way to it: loops, and branches with the side that is taken, outermost first."""

    stmt: Atomic
    path: tuple[tuple[For | If, Block], ...]


class Place(NamedTuple):
    """A component of an element's index: `factor` times a variable of the task plus other loops' terms."""

    at: int
    variable: Value
    factor: int
    rest: AffineForm


class Plan(NamedTuple):
    """How an addition is collected.

    Attributes:
        places: the components that become axes, in the order of the index.
        inner: the loops that stay loops, outermost first.
        summed: the axes that become loops.
        levels: for each block on the way, the statements that are computed again.
        kept: a lane's value that is loaded instead.
    """

    site: Site
    places: tuple[Place, ...]
    inner: tuple[For, ...]
    summed: tuple[Value, ...]
    levels: tuple[tuple[Stmt, ...], ...]
    kept: Value | None


class Source(NamedTuple):
    """The task whose lanes make additions.

    Attributes:
        builder: what emits.
        defs, forms: of its values.
        axes: the bounds of its axes.
        keeps: the values of lanes that are kept, and the store that puts each into an element.
    """

    builder: Builder
    defs: Definitions
    forms: AffineForms
    axes: dict[Value, Ends]
    keeps: dict[Value, Store]

    def is_product(self, v: Value, factor: Value) -> bool:
        """Whether a value is 0, or not a number, where this factor is 0."""
        if v is factor:
            return True
        let = self.defs.get(v)
        if let is None or v.type.shape:
            return False
        if let.op.name == "mul":
            return any(self.is_product(a, factor) for a in let.args)
        return let.op.name == "neg" and self.is_product(let.args[0], factor)

    def exists(self, s: Load) -> bool:
        """Whether the element that a statement loads exists in all iterations of all lanes."""
        if s.mem.shape is None:
            return False
        for i, extent in zip(s.index, s.mem.shape, strict=False):
            form = self.forms.form(i)
            if form is None:
                return False
            lo, hi = self.forms.interval(form)
            if lo < 0 or hi >= extent:
                return False
        return True

    def placed(self, i: Value, env: dict[Value, Value]) -> Value:
        """Emit an index that is an axis or a launch-wide value, plus a constant."""
        base, shift = offset_of(i, self.defs)
        if base is None:
            return Const(i.type, shift)
        v = self.builder.cast(env.get(base, base), i.type.scalar)
        return v + shift if shift else v


class Sum:
    """Emits the sum of what one addition adds to an element."""

    def __init__(
        self,
        source: Source,
        plan: Plan,
        axes: tuple[Value, ...],
        box: list[tuple[int, int]],
        *,
        branches: bool,
    ) -> None:
        self.branches = branches
        self.without = False
        """Whether a branch was left out in which nothing else than 0 or NaN would have been added."""
        self.source, self.plan, self.axes = source, plan, axes
        self.box = {p.at: ends for p, ends in zip(plan.places, box, strict=True)}
        self.b = source.builder
        ranges: Ranges = {}
        index = plan.site.stmt.index
        self.copy = KnownBranches({}, source.defs, ranges)
        for p, axis, (lo, hi) in zip(plan.places, axes, box, strict=True):
            v = index[p.at]
            self.copy.env[v] = self.b.cast(axis, v.type.scalar)
            base, shift = offset_of(v, source.defs)
            if base is not None:
                ranges[base] = number(lo - shift), number(hi - 1 - shift)
        self.env: dict[Value, Value] = self.copy.env
        self.open_ = list(range(len(plan.places)))
        """The components whose variables are not known yet."""
        self.multiples: set[int] = set()
        """The components of which loops over steps leave nothing over."""

    def emit(self, total: Value) -> Value:
        """Emit the sum, added to a total."""
        return self.guarded(list(self.plan.inner), total)

    def guarded(self, loops: list[For], total: Value) -> Value:
        """Emit the loops that are left, in the branch of the lanes whose variables are known by now."""
        b, tests = self.b, []
        # What one component gives may be what another one waits for: x[i + a, a + 1].
        while ready := [k for k in self.open_ if self.is_ready(self.plan.places[k])]:
            for k in ready:
                self.open_.remove(k)
                tests += self.solve(k)
        if not tests:
            return self.loops(loops, total)
        cond = tests[0]
        for t in tests[1:]:
            cond = b.named("and", cond, t)
        with b.block() as then:
            more = self.loops(loops, total)
        out = Value(total.type)
        b.add(If(cond, Block(then, (more,)), Block([], (total,)), (out,), b.span))
        return out

    def is_ready(self, p: Place) -> bool:
        """Whether all but the variable of a component is known."""
        return all(v is None or v in self.env for v in p.rest)

    def solve(self, k: int) -> list[Value]:
        """Emit the variable that an element and the other loops give, and whether there is such a lane."""
        b, p = self.b, self.plan.places[k]
        v, tests = self.without_loops(k), []
        if p.factor > 1:
            # A lane is there only if nothing is left over, so how it is rounded does not matter.
            if k not in self.multiples:
                tests.append(b.named("eq", b.named("mod", v, p.factor), 0))
            v = b.named("floordiv", v, p.factor)
        lo, hi = self.ends(p.variable)
        first, last = self.box[p.at]
        if p.rest or p.factor > 1 or first < lo or last > hi:
            tests += [v >= lo, v < hi]
        self.env[p.variable] = b.cast(v, p.variable.type.scalar)
        return tests

    def without_loops(self, k: int) -> Value:
        """Emit an element's number less what the loops that are known by now add to it."""
        v: Value = self.axes[k]
        t = v.type.scalar
        for x, n in self.plan.places[k].rest.items():
            if x is None:
                v = v - n
            elif x in self.env:
                v = v - self.b.cast(self.env[x], t) * n
        return v

    def ends(self, v: Value) -> tuple[int, int]:
        first, last = self.source.forms.ranges[v]
        return int(first), int(last) + 1

    def loops(self, loops: list[For], total: Value) -> Value:
        """Emit these loops, or where none is left those over lanes."""
        if loops:
            s = loops[0]
            k = self.step(s)
            if k is not None:
                return self.stepped(loops, k, total)
            return self.loop(
                s.index, (s.lo, s.hi), total, lambda _, sum_: self.guarded(loops[1:], sum_)
            )
        return self.lanes(list(self.plan.summed), total)

    def step(self, s: For) -> int | None:
        """Return the component of lanes some steps apart of which this loop alone is not known yet."""
        for k in self.open_:
            p = self.plan.places[k]
            unknown = [v for v in p.rest if v is not None and v not in self.env]
            if p.factor > 1 and unknown == [s.index] and abs(p.rest[s.index]) == 1:
                return k
        return None

    def stepped(self, loops: list[For], k: int, total: Value) -> Value:
        """Emit a loop over the iterations that may reach the element: of x[4 * i + a], every fourth."""
        b, s, p = self.b, loops[0], self.plan.places[k]
        lo, hi = s.lo, s.hi
        assert isinstance(lo, Const)
        assert isinstance(hi, Const)
        left = b.cast(self.without_loops(k), s.index.type.scalar)
        left = left if p.rest[s.index] == 1 else -left
        first = b.named("mod", left - lo, p.factor) + lo
        self.multiples.add(k)
        turns, over = divmod(int(hi.value) - int(lo.value), p.factor)

        def inside(turn: Value, sum_: Value) -> Value:
            at = self.env[s.index] = first + turn * p.factor
            if not over:
                return self.guarded(loops[1:], sum_)
            with b.block() as then:
                more = self.guarded(loops[1:], sum_)
            out = Value(total.type)
            b.add(If(at < hi, Block(then, (more,)), Block([], (sum_,)), (out,), b.span))
            return out

        ends = Const(s.index.type, 0), Const(s.index.type, turns + (over > 0))
        return self.loop(s.index, ends, total, inside)

    def lanes(self, axes: list[Value], total: Value) -> Value:
        """Emit the loops over lanes, and what they add."""
        if axes:
            ends = self.source.axes[axes[0]]
            return self.loop(axes[0], ends, total, lambda _, sum_: self.lanes(axes[1:], sum_))
        if self.plan.kept is not None:
            store = self.source.keeps[self.plan.kept]
            self.env[self.plan.kept] = self.b.load(
                store.mem, tuple([self.source.placed(i, self.env) for i in store.index])
            )
        return self.value(0, total)

    def loop(
        self, index: Value, ends: Ends, total: Value, inside: Callable[[Value, Value], Value]
    ) -> Value:
        """Emit a loop that carries a sum."""
        b = self.b
        new, carried, out = Value(index.type, index.hint), Value(total.type), Value(total.type)
        self.env[index] = new
        with b.block() as made:
            more = inside(new, carried)
        b.add(
            For(new, ends[0], ends[1], (carried,), (total,), Block(made, (more,)), (out,), b.span)
        )
        return out

    def value(self, level: int, total: Value) -> Value:
        """Emit what is computed from this block on, and the sum with it."""
        b, site = self.b, self.plan.site
        for s in self.plan.levels[level]:
            b.stmts.extend(self.copy.stmt(s))
        if level == len(site.path):
            b.span = site.stmt.span
            return b.named("accumulate", total, self.copy.value(site.stmt.value))
        s, side = site.path[level]
        if isinstance(s, For):
            return self.value(level + 1, total)
        known = self.copy.condition(s.cond)
        if known is not None:
            return self.value(level + 1, total) if known is (side is s.then) else total
        if not self.branches and side is s.then and self.is_spared(level, s.cond):
            self.without = True
            return self.value(level + 1, total)
        cond = self.copy.value(s.cond)
        with b.block() as made:
            more = self.value(level + 1, total)
        then, orelse = Block(made, (more,)), Block([], (total,))
        if side is not s.then:
            then, orelse = orelse, then
        out = Value(total.type)
        b.add(If(cond, then, orelse, (out,), b.span))
        return out

    def is_spared(self, level: int, cond: Value) -> bool:
        """Whether a branch is for speed alone: of a sum that adds a product, `if factor != 0`."""
        let = self.source.defs.get(cond)
        if let is None or let.op.name != "ne":
            return False
        factor, zero = let.args
        is_zero = isinstance(zero, Const) and zero.value == 0 and factor.type.is_float
        inside = [s for stmts in self.plan.levels[level + 1 :] for s in stmts]
        loads = [s for s in inside if isinstance(s, Load)]
        return (
            is_zero
            and all(isinstance(s, (Let, Load)) for s in inside)
            and all(self.source.exists(s) for s in loads)
            and self.source.is_product(self.plan.site.stmt.value, factor)
        )
