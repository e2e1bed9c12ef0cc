"""Updates in branches, as values that are computed at the top of a body: what is added, and whether.

The adjoint of a load in a branch adds in that branch:

    if %c {                              %v.1, %made = if %c {
      %v: f32 = mul %g, 2.0                %v: f32 = mul %g, 2.0
      atomic_add x.grad[%i + 1], %v        yield %v, true
    }                                    } else {
                                           yield 0.0, false
                                         }

The form on the right is for passes that move an update to another lane (`scatter_to_gather`): it does nothing
by itself, and nobody may add %v.1 where %made is false, as the element need not exist.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Const,
    If,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import Rewriter, blocks, has_effects, outs, statements, uses
from diffsim.ir.types import bool_, i64
from diffsim.passes.analysis.affine import (
    AffineForms,
    Definitions,
    Offset,
    Ranges,
    offset_of,
    truth,
)


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """An addition of a body, in a branch of it or not.

    Attributes:
        stmt: the addition itself.
        top: the statement at the top of the body that it is, or is in.
        value: what it adds, where it is made.
        made: whether it is made; None for one that always is.
        computes: what binds `value` and `made`, in the place of `top`; None for one that is always made.
    """

    stmt: Atomic
    top: Stmt
    value: Value
    made: Value | None = None
    computes: If | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Additions to one memory that differ only by constant shifts along the axes."""

    mem: Mem
    places: tuple[int, ...]
    """Which component of the index each axis is in."""
    rest: tuple[tuple[int, object], ...]
    """The other components: (place, value), the same in the whole group."""


def place_of(s: Atomic, task: Task, defs: Definitions) -> tuple[Group, tuple[int, ...]] | None:
    """Return the group of an addition and its shift along the axes; None: it is in no group."""
    axes = task.axes
    shifts: dict[Value, int] = {}
    places: dict[Value, int] = {}
    rest: list[tuple[int, object]] = []
    for k, i in enumerate(s.index):
        base, shift = offset_of(i, defs)
        # Each axis at exactly one place: x[i, i] visits only a diagonal, and is not (axis + constant) alone.
        if base is not None and base in axes and base not in places:
            shifts[base], places[base] = shift, k
        # Constants count by value and type, since the group's index is emitted from its first member.
        elif isinstance(i, Const):
            rest.append((k, (i.type, i.value)))
        elif base is None or isinstance(base, LEAVES):
            rest.append((k, (base, shift)))
        else:
            return None
    # Every axis must occur, else several lanes add to the element of one shift: a sum, no stencil.
    if len(places) < len(axes):
        return None
    group = Group(s.mem, tuple(places[a] for a in axes), tuple(rest))
    return group, tuple(shifts[a] for a in axes)


def additions(body: Block) -> Iterator[Atomic]:
    """Yield the additions in a body and in its branches."""
    for s in body.stmts:
        if isinstance(s, Atomic) and s.op == "add" and s.out is None:
            yield s
        elif isinstance(s, If):
            yield from additions(s.then)
            yield from additions(s.orelse)


def updates_of(body: Block, wanted: Container[Atomic]) -> list[Update]:
    """Return the wanted additions whose values can be computed at the top of a body.

    Each is made once more for each branch that it is in, so those that nobody wants are left out.
    """
    found: list[Update] = []
    for s in body.stmts:
        if isinstance(s, Atomic) and s in wanted:
            found.append(Update(s, s, s.value))
        elif isinstance(s, If):
            for side in (s.then, s.orelse):
                for inner in updates_of(side, wanted):
                    found += _guarded(s, side, inner, first=side is s.then)
    return found


def _guarded(top: If, side: Block, inner: Update, *, first: bool) -> list[Update]:
    """Return the update of one side of a branch as one of the body around the branch, if it can be."""
    needed = _slice(side, inner)
    if needed is None:
        return []
    true, false = Const(bool_, True), Const(bool_, False)
    value, made = Value(inner.value.type, inner.value.hint), Value(bool_)
    does = Block(needed, (inner.value, inner.made or true))
    does_not = Block([], (_zero(inner.value), false))
    sides = (does, does_not) if first else (does_not, does)
    computes = If(top.cond, *sides, (value, made), inner.stmt.span)
    return [Update(inner.stmt, top, value, made, computes)]


def _zero(v: Value) -> Const:
    kind = v.type.scalar
    return Const(v.type, 0.0 if kind.is_float else False if kind.is_bool else 0)


def _slice(side: Block, update: Update) -> list[Stmt] | None:
    """Return the statements of a block that an update's value needs; None if they are not mere values."""
    work = [update.value]
    chosen: list[Stmt] = []
    if update.computes is not None:
        chosen.append(update.computes)
        work = list(reads(update.computes))
    stmts = [values_alone(s) for s in side.stmts]
    bound = {v: s for s in stmts for v in outs(s)}
    taken: set[Stmt] = set()
    while work:
        s = bound.get(work.pop())
        if s is None or s in taken:
            continue
        if not isinstance(s, (Let, Load, If)) or any(has_effects(b) for b in blocks(s)):
            return None
        taken.add(s)
        work += reads(s)
    return [s for s in stmts if s in taken] + chosen


def values_alone(s: Stmt) -> Stmt:
    """Return a branch that computes the same values and writes nothing; other statements as they are."""
    if not isinstance(s, If) or not any(has_effects(b) for b in blocks(s)):
        return s
    sides = [
        Block([values_alone(x) for x in b.stmts if not _only_writes(x)], b.yields)
        for b in blocks(s)
    ]
    return If(s.cond, sides[0], sides[1], s.outs, s.span)


def _only_writes(s: Stmt) -> bool:
    return isinstance(s, Store) or (isinstance(s, Atomic) and s.out is None)


def reads(s: Stmt) -> list[Value]:
    """Return what a statement reads, with all that its branches read."""
    found = list(uses(s))
    for b in blocks(s):
        found += b.yields
        for x in statements(b):
            found += uses(x)
            for c in blocks(x):
                found += c.yields
    return found


def color_of(
    update: Update, shifts: dict[Value, int], forms: AffineForms, defs: Definitions
) -> tuple[object, ...] | None:
    """Return the condition of an update in the lane at (axis - shift), in a form that equal ones share.

    Sweeps in colours add where `(i + j) % 2 == color`: lanes that are two apart agree. None: it is another
    condition, or none, or more than one.
    """
    branch = update.computes
    let = None if branch is None else defs.get(branch.cond)
    if branch is None or let is None or let.op.name not in ("eq", "ne"):
        return None
    made = branch.then.yields[1]
    if not isinstance(made, Const) or not made.value:
        return None
    of, color = let.args
    mod, same = defs.get(of), _launch_wide(color, defs)
    # What is compared with must be the same in all lanes.
    if mod is None or mod.op.name != "mod" or same is None:
        return None
    v, n = mod.args
    # Modulo a power of two, numbers are the same if a sum in the lane has wrapped around.
    period = int(n.value) if isinstance(n, Const) and not n.type.shape else 0
    form = forms.form(v)
    if period < 2 or period & (period - 1) or form is None or v.type.scalar.kind != "i":
        return None
    least = form.get(None, 0) - sum(form.get(axis, 0) * shift for axis, shift in shifts.items())
    terms = frozenset((x, k) for x, k in form.items() if x is not None)
    return let.op.name, terms, least % period, period, same


def _launch_wide(v: Value, defs: Definitions) -> tuple[object, ...] | None:
    """Return what a number is made of, if all of that is known before the lanes start."""
    if isinstance(v, LEAVES):
        return (v.value,) if isinstance(v, Const) else (v,)
    let = defs.get(v)
    if let is None:
        return None
    parts = [_launch_wide(a, defs) for a in let.args]
    return None if None in parts else (let.op.name, *parts)


def without(body: Block, gone: set[Stmt]) -> Block:
    """Return a body without these updates, and without branches that nothing is left of."""
    left: list[Stmt] = []
    for s in body.stmts:
        if s in gone:
            continue
        if isinstance(s, If) and not gone.isdisjoint(x for b in blocks(s) for x in statements(b)):
            s = If(s.cond, without(s.then, gone), without(s.orelse, gone), s.outs, s.span)
            if not s.outs and not has_effects(s.then) and not has_effects(s.orelse):
                continue
        left.append(s)
    return Block(left, body.yields)


def emit_faces(b: Builder, axis: Value, first: Offset, behind: Offset) -> tuple[Value, Value]:
    """Emit bounds that are known before the lanes start, in 64 bits: sums do not wrap around."""
    t = axis.type.scalar if first[0] is behind[0] is None else i64

    def one(end: Offset) -> Value:
        base, shift = end
        if base is None:
            return Const(t, shift)
        return b.cast(base, t) + shift if shift else b.cast(base, t)

    return one(first), one(behind)


class KnownBranches(Rewriter):
    """Copies statements; a branch whose condition is known from the ranges of the axes loses the other side.

    Args:
        env: see `Rewriter`.
        defs: what binds the values of the body.
        ranges: of the axes; those that are not in it can be anything.
    """

    def __init__(self, env: dict[Value, Value], defs: Definitions, ranges: Ranges) -> None:
        super().__init__(env)
        self.defs, self.ranges = defs, ranges

    def condition(self, v: Value) -> bool | None:
        """Return what a condition is in all lanes, if it is the same in all."""
        return truth(v, self.defs, self.ranges)

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, If) or (known := self.condition(s.cond)) is None:
            return super().stmt(s)
        side = s.then if known else s.orelse
        made = [x for inner in side.stmts for x in self.stmt(inner)]
        for out, v in zip(s.outs, side.yields, strict=True):
            self.env[out] = self.value(v)
        return made
