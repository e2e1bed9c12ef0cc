"""Iterations whose adjoint is left out, because nothing flows back into them.

    best = min(best, far)       the adjoint of `far` is 0 where another one was smaller,
                                so what computed it runs backwards only where it was the smallest

A `select`, `min`, `max` or branch sets the adjoint of what it did not take to exactly 0. All that the adjoint
of the statements before it would add is then 0, since it is linear.

- A loop that computes such a value is left out where its adjoint is 0 (`skip_where_zero`).
- A loop that replaces a carried value again and again, as the one above does with `best`, hands a derivative
  back to the last iteration that replaced it, and to no other. So the forward code notes which one that was
  and what it started from, instead of saving what all of them start from, and the adjoint is that of one
  iteration (`replaced_values`, `Noting`; docs/adr/0071).
- A statement before a branch whose value only one side of it uses has its adjoint on that side
  (`followers`; docs/adr/0110):

    d = x[j] - x[i]                          if near {
    near = norm(d) < reach                     ... adjoint of the force
    if near { force(d) }               ->      d.adj; x.grad[j] += d.adj; x.grad[i] -= d.adj
                                             }

  An addition to a gradient changes places with others, but not with the adjoint of a store to the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from diffsim.ir import ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Check,
    Const,
    CustomCall,
    For,
    If,
    InlineLLVM,
    Let,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Value,
    While,
    zero,
)
from diffsim.ir.op import Math, Zero
from diffsim.ir.traversal import blocks, free_values, outs, statements, uses
from diffsim.ir.types import bool_
from diffsim.passes.analysis.counted_loops import most_iterations

CUTTING = (ops.select, ops.minimum, ops.maximum)
"""Ops that ignore one of their arguments, whose adjoint is 0 even times inf (IEEE 754: NaN)."""
_PURE = (Alloca, For, If, Let, Load, While)
"""Statements that write nothing: their adjoint is 0 where the adjoints of what they compute are."""


def skip_where_zero(
    b: Builder,
    loop: For | While,
    flowing: Sequence[Value],
    cut: set[Value],
    back: Callable[[], tuple[Value, ...]],
) -> tuple[Value, ...]:
    """Emit what `back` emits, the adjoint of a loop; if it may be left out, under a test of what flows in.

    `cut`: adjoints that are 0 where their value was not taken; the results become such.
    """
    met = [g for g in flowing if not isinstance(g, Const)]
    # Where the adjoint will be differentiated itself, the derivative of that 0 may not be 0.
    if b.is_inner or not _may_skip(loop, met, cut):
        return back()
    b.span = loop.span
    wanted = b.named("ne", met[0], zero(met[0].type))
    for g in met[1:]:
        wanted = b.named("or", wanted, b.named("ne", g, zero(g.type)))
    with b.block() as stmts:
        found = back()
    outs = tuple(Value(v.type, v.hint) for v in found)
    b.add(
        If(
            wanted,
            Block(stmts, found),
            Block([], tuple(zero(v.type) for v in found)),
            outs,
            loop.span,
        )
    )
    cut.update(outs)
    return outs


def _may_skip(loop: For | While, met: Sequence[Value], cut: Container[Value]) -> bool:
    """Whether the adjoint of a loop does nothing where those that flow into it are 0, as they may be."""
    return (
        bool(met)
        and all(g in cut and not g.type.shape for g in met)
        and all(isinstance(s, _PURE) for s in statements(loop.body))
    )


# ---- carried values that iterations replace

_SHORT = 8
"""Iterations that are unrolled, so that their sums stay in registers; fewer additions to memory cost more."""
_MOST_GROUPS = 2
"""Of values that are replaced together; each has an adjoint of the body of its own."""


class _Plain(Enum):
    """The values that an iteration passes to the next one."""

    KEPT = "the carried value"
    REPLACED = "a value that no derivative flows into from a carried one"


class _Chosen(NamedTuple):
    """An iteration hands on one of two, of which each is kept, replaced, or chosen again.

    `by` is the op or branch that chooses, or a loop within the body: its start, or what its iterations yield.
    """

    by: Let | If | For
    first: _Step
    second: _Step


_Step = _Plain | _Chosen


class Replacing(NamedTuple):
    """Carried values, by their positions, that the same iterations of a loop replace, and how."""

    positions: tuple[int, ...]
    step: _Chosen
    yielded: Value


class LastReplaced(NamedTuple):
    """Notes on the last iteration that replaced the values at these positions.

    Attributes:
        positions: among the carried values.
        happened: whether there was such an iteration.
        iteration: its index.
        starts: the carried values that it started from.
    """

    positions: tuple[int, ...]
    happened: Value
    iteration: Value
    starts: tuple[Value, ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """The numbers that the loop carries of it."""
        return (self.happened, self.iteration, *self.starts)

    @staticmethod
    def several(groups: Sequence[Replacing], outs: tuple[Value, ...]) -> list[LastReplaced]:
        """Return what was noted of each group, from the results of a loop that `Noting` has added."""
        found, size = [], len(outs) // max(len(groups), 1)
        for k, g in enumerate(groups):
            happened, iteration, *starts = outs[k * size : (k + 1) * size]
            found.append(LastReplaced(g.positions, happened, iteration, (*starts,)))
        return found


def replaced_values(loop: For, active: set[Value]) -> list[Replacing]:
    """Return the active carried values that iterations replace or keep, in groups.

    No derivative flows from a carried value into one that replaces it, nor from these values into other
    carried ones, nor out of the loop but through what it carries. (Then the adjoint of an iteration is linear
    in what flows in, and may be taken for each group by itself.)
    """
    inside = list(statements(loop.body))
    if not all(map(_leaves_no_trace, inside)) or _is_cheap(loop, inside, active):
        return []
    carried = [k for k, p in enumerate(loop.params) if p in active]
    flows = _Flows(loop, {loop.params[k] for k in carried}, active)
    groups: dict[_Chosen, list[int]] = {}
    for k in carried:
        step = flows.step(loop.body.yields[k], loop.params[k])
        if isinstance(step, _Chosen):
            groups.setdefault(step, []).append(k)
    found = [Replacing((*at,), step, loop.body.yields[at[0]]) for step, at in groups.items()]
    taken = {k for g in found for k in g.positions}
    onward = _reached(loop, {loop.params[k] for k in taken}, active)
    stray = any(loop.body.yields[k] in onward for k in carried if k not in taken)
    return [] if stray or len(found) > _MOST_GROUPS else found


def _is_cheap(loop: For, inside: list[Stmt], active: set[Value]) -> bool:
    """Whether the adjoints of all iterations cost less than that of one whose index is not known before."""
    scatters = any(isinstance(s, Load) and s.out in active for s in inside)
    most = most_iterations(loop)
    return scatters and most is not None and most <= _SHORT


def _leaves_no_trace(s: Stmt) -> bool:
    """Whether the adjoint of a statement in a loop changes nothing but adjoints of what it computes with."""
    if isinstance(s, Load):
        return s.mem.kind != "scratch"
    return isinstance(s, (For, If, Let, While, Check, Print)) or (
        isinstance(s, (Store, Atomic))
        and s.mem.kind in ("field", "array")
        and s.mem.grad is None
        and getattr(s, "out", None) is None
    )


class _Flows:
    """How the carried values of a loop come from those before."""

    def __init__(self, loop: For, carried: set[Value], active: set[Value]) -> None:
        self.reached = _reached(loop, carried, active)
        self.made: dict[Value, Let | If | For] = {}
        for s in statements(loop.body):
            if isinstance(s, Let):
                self.made[s.out] = s
            elif isinstance(s, (If, For)):
                self.made.update((out, s) for out in s.outs)

    def step(self, v: Value, carried: Value) -> _Step | None:
        """Return how a value comes from a carried one; None if in another way."""
        if v is carried:
            return _Plain.KEPT
        if v not in self.reached:
            return _Plain.REPLACED
        s = self.made.get(v)
        if isinstance(s, Let):
            if s.op is ops.select and not s.args[0].type.shape:
                return self._chosen(s, s.args[1:], carried)
            if s.op in (ops.minimum, ops.maximum) and not v.type.shape:
                return self._chosen(s, s.args, carried)
        elif isinstance(s, If):
            k = s.outs.index(v)
            return self._chosen(s, (s.then.yields[k], s.orelse.yields[k]), carried)
        elif isinstance(s, For):
            k = s.outs.index(v)
            first = self.step(s.inits[k], carried)
            then = self.step(s.body.yields[k], s.params[k])
            return None if first is None or then is None else _Chosen(s, first, then)
        return None

    def _chosen(self, s: Let | If, ways: tuple[Value, ...], carried: Value) -> _Step | None:
        first, second = (self.step(v, carried) for v in ways)
        return None if first is None or second is None else _Chosen(s, first, second)


def _reached(loop: For, sources: set[Value], active: set[Value]) -> set[Value]:
    """Return the values of a loop's body that derivatives flow into from some of its carried values."""
    found, before = set(sources), -1
    while len(found) != before:
        before = len(found)
        for s in statements(loop.body):
            for out, *ways in _ways(s):
                if out in active and not found.isdisjoint(ways):
                    found.add(out)
    return found


def _ways(s: Stmt) -> Iterator[tuple[Value, ...]]:
    """Yield the values that a statement makes, each with those that it may come from."""
    if isinstance(s, Let):
        yield s.out, *s.args
    elif isinstance(s, If):
        yield from zip(s.outs, s.then.yields, s.orelse.yields, strict=True)
    elif isinstance(s, (For, While)):
        yield from zip(s.outs, s.inits, s.body.yields, strict=True)
        yield from zip(s.params, s.inits, s.body.yields, strict=True)


class Noting:
    """Values that a run of a loop also carries, to tell which iteration replaced values last.

    Args:
        b: where the loop is emitted.
        group: the values.
        index: the loop's index in that run.
        params: the carried values in it.
        inits: what they start from, after the first index.
    """

    def __init__(
        self,
        b: Builder,
        group: Replacing,
        index: Value,
        params: tuple[Value, ...],
        inits: tuple[Value, ...],
    ) -> None:
        self.b = b
        self.group = group
        self.index = index
        self.starts = params
        self.params = (
            Value(bool_, "replaced"),
            *(Value(v.type, f"{v.hint}.last") for v in (index, *params)),
        )
        self.inits = (Const(bool_, False), *inits)

    def yields(self, env: dict[Value, Value], stmts: list[Stmt]) -> tuple[Value, ...]:
        """Emit what the additional values become.

        Args:
            env: for each value of the body its copy.
            stmts: the copy of the body, which may be changed.
        """
        b = self.b
        won = self._won(self.group.step, self.group.yielded, env, stmts)
        happened, *last = self.params
        now = (self.index, *self.starts)
        return (
            b.named("or", happened, won),
            *(b.named("select", won, new, old) for new, old in zip(now, last, strict=True)),
        )

    def _won(self, step: _Step, v: Value, env: dict[Value, Value], stmts: list[Stmt]) -> Value:
        """Emit whether a value was replaced, into a copy of the statements that made it."""
        if not isinstance(step, _Chosen):
            return Const(bool_, step is _Plain.REPLACED)
        s, b = step.by, self.b
        if isinstance(s, Let):
            ways = s.args[-2:]
            first, second = (
                self._won(w, a, env, stmts)
                for w, a in zip((step.first, step.second), ways, strict=True)
            )
            return b.named("select", self._takes_first(s, env), first, second)
        place, copy = next((i, x) for i, x in enumerate(stmts) if env[v] in getattr(x, "outs", ()))
        k = s.outs.index(v)
        if isinstance(s, If):
            assert isinstance(copy, If)
            then = self._noted(copy.then, step.first, s.then.yields[k], env)
            orelse = self._noted(copy.orelse, step.second, s.orelse.yields[k], env)
            out = Value(bool_, "replaced")
            stmts[place] = If(copy.cond, then, orelse, (*copy.outs, out), copy.span)
            return out
        assert isinstance(copy, For)
        return self._won_in_loop(step, v, env, stmts, place)

    def _noted(self, copy: Block, step: _Step, v: Value, env: dict[Value, Value]) -> Block:
        """Return the copy of a block that yields besides whether a value was replaced."""
        inner = list(copy.stmts)
        with self.b.block() as more:
            won = self._won(step, v, env, inner)
        return Block([*inner, *more], (*copy.yields, won))

    def _won_in_loop(
        self,
        step: _Chosen,
        v: Value,
        env: dict[Value, Value],
        stmts: list[Stmt],
        place: int,
    ) -> Value:
        """Make a copied loop carry whether its start or one of its iterations has replaced a value."""
        s, copy = step.by, stmts[place]
        assert isinstance(s, For)
        assert isinstance(copy, For)
        k, so_far, out = s.outs.index(v), Value(bool_, "replaced"), Value(bool_, "replaced")
        with self.b.block() as before:
            first = self._won(step.first, s.inits[k], env, stmts[:place])
        noted = self._noted(copy.body, step.second, s.body.yields[k], env)
        with self.b.block() as more:
            won = self.b.named("or", so_far, noted.yields[-1])
        stmts[place : place + 1] = [
            *before,
            copy.replace(
                params=(*copy.params, so_far),
                inits=(*copy.inits, first),
                body=Block([*noted.stmts, *more], (*noted.yields[:-1], won)),
                outs=(*copy.outs, out),
            ),
        ]
        return out

    def _takes_first(self, s: Let, env: dict[Value, Value]) -> Value:
        """Emit whether an op takes the first of two, by the test that its derivative makes."""
        args = [env.get(a, a) for a in s.args]
        if s.op is ops.select:
            return args[0]
        return self.b.named("le" if s.op is ops.minimum else "ge", *args)


# ---- statements whose adjoint follows a branch

_SLOW = ("div", "sqrt", "rsqrt")
_FARTHEST = 256
"""Statements before a branch that may follow it, so that time grows with the program."""


class Before(NamedTuple):
    """The statements of a block before a branch.

    Attributes:
        block: the block; `end`: the place of the branch in it.
        done: its statements whose adjoint has been emitted.
        others: what holds values that get an adjoint elsewhere than on the side that is looked at.
        around: the same of the branch that this block is a side of.
        known: whether values are in `others`, here or around, as far as that was asked. (They do not change
            while the side's adjoint is emitted.)
    """

    block: Block
    end: int
    done: set[Stmt]
    others: tuple[Container[Value], ...]
    around: Before | None
    known: dict[Value, bool]

    def side(self, *others: Container[Value]) -> Before:
        """Return what is before the statements of a side of the branch."""
        return self._replace(others=others, known={})

    def gets_elsewhere(self, v: Value) -> bool:
        """Whether a value gets an adjoint elsewhere than on the sides that are looked at."""
        # Branches within one another ask for the same values again.
        asked, found = [], False
        for b in self.nested():
            if v in b.known:
                found = b.known[v]
                break
            asked.append(b)
            if any(v in values for values in b.others):
                found = True
                break
        for b in asked:
            b.known[v] = found
        return found

    def nested(self) -> Iterator[Before]:
        """Yield it and those around it."""
        now: Before | None = self
        while now is not None:
            yield now
            now = now.around

    def backwards(self) -> Iterator[tuple[Stmt, set[Stmt]]]:
        """Yield the statements whose adjoints are to come, next first, each with where to note it is done."""
        for b in self.nested():
            first = max(b.end - _FARTHEST, 0)
            for s in reversed(b.block.stmts[first : b.end]):
                if s not in b.done:
                    yield s, b.done
            if first:
                return


def followers(
    before: Before, mine: Iterable[Value], others: tuple[Container[Value], ...], active: set[Value]
) -> list[tuple[Let | Load, set[Stmt]]]:
    """Return the statements before a branch whose adjoints come from one side of it alone, last one first.

    Args:
        before: what comes before the branch, and before those that it is in.
        mine: the values that this side gives an adjoint to.
        others: what holds those that get one from elsewhere in its block.
        active: the values that derivatives flow through.
    """

    def gets_elsewhere(v: Value) -> bool:
        return any(v in values for values in others) or before.gets_elsewhere(v)

    inside, outside = set(mine), set[Value]()
    bound_before = set(inside)  # those of this side whose statement is still to come
    written: set[Mem] = set()
    found: list[tuple[Let | Load, set[Stmt]]] = []
    for s, done in before.backwards():
        # The statements before the last one that counts are not looked at for each branch.
        if not bound_before or isinstance(s, (CustomCall, InlineLLVM)):
            break  # what the latter do to gradients is the user's
        bound_before.difference_update(outs(s))
        if isinstance(s, (Let, Load)):
            if s.out not in inside and s.out not in outside:
                if gets_elsewhere(s.out):
                    outside.update(_differentiated(s, active))
                continue
            follows = s.out not in outside and not gets_elsewhere(s.out)
            if follows and (isinstance(s, Let) or (s.mem not in written and _is_shared(s.mem))):
                found.append((s, done))
                inputs = _differentiated(s, active)
                inside.update(inputs)
                bound_before.update(inputs)
            else:
                outside.update(_differentiated(s, active))
            continue
        # Whatever flows into other statements, flows out of them anywhere.
        outside.update(v for v in uses(s) if v in active)
        for b in blocks(s):
            outside.update(v for v in free_values(b) if v in active)
        written.update(x.mem for x in statements(Block([s])) if isinstance(x, (Store, Atomic)))
    return found


def pay(
    found: Sequence[Let | Load], *, in_loop: bool, is_anywhere: Callable[[Value], bool]
) -> bool:
    """Whether adjoints should follow the branch: many iterations do without them.

    Out of loops an addition to an element beside those of other lanes is one of a whole vector.
    """
    loads = [s for s in found if isinstance(s, Load)]
    if in_loop:
        return bool(loads) or any(_is_slow(s) for s in found)
    return any(is_anywhere(i) for s in loads for i in s.index)


def _is_shared(mem: Mem) -> bool:
    return mem.kind in ("field", "array")


def _differentiated(s: Let | Load, active: set[Value]) -> list[Value]:
    """Return the values that the adjoint of a statement adds to."""
    if isinstance(s, Load):
        return []
    return [a for k, a in enumerate(s.args) if a in active and not isinstance(s.op.rule(k), Zero)]


def _is_slow(s: Let | Load) -> bool:
    return isinstance(s, Let) and (s.op.name in _SLOW or isinstance(s.op.lowering, Math))
