"""Gathers on a torus: lanes whose neighbours wrap around collect for their own elements; then boxes are cut.

The adjoint of a periodic stencil adds to neighbours modulo the length of an axis. Each lane of 0..n adds to
an element of 0..n, and each element is added to by one lane for each neighbour. So no element has to ask
whether a neighbour exists:

    parallel %i in 0..n {                     parallel %i in 0..n {
      %k: i32 = mod %i + 1, n                   %l: i32 = mod %i - 1, n
      %g: f32 = load y.grad[%i]                 %g: f32 = load y.grad[%l]
      store y.grad[%i], 0.0            ->       %h: f32 = load y.grad[%i]
      atomic_add x.grad[%k], %g                 atomic_add x.grad[%i], %g + %h     (exclusive)
      atomic_add x.grad[%i], %g               }
    }                                         parallel %i in 0..n { store y.grad[%i], 0.0 }

The new task is split at once (`interiors`). Split before, the rims would scatter, and gather twice as wide.

Assumes any kernel. Promises: the same sums, in another order. The conditions are those of
`scatter_to_gather`, whose analysis this is, and: axes run over the whole period of their remainders, and
nothing else in the task accesses what the sums go to. All groups of a task are gathered together, as they
load the same; so are additions to other elements, as to a parameter's gradient, if only clears of the lane's
own elements are left then.
"""

from __future__ import annotations

from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Const,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import blocks, has_effects
from diffsim.passes.analysis.affine import (
    Definitions,
    Offset,
    distance,
    faces_of,
    number,
    offset_of,
)
from diffsim.passes.analysis.guarded_updates import (
    Group,
    KnownBranches,
    Update,
    additions,
    without,
)
from diffsim.passes.neighbours.interiors import parts_of, up_to_periods
from diffsim.passes.neighbours.scatter_to_gather import Member, TaskGather, Term

_FARTHEST = 1 << 16
"""Elements between neighbours."""
_Turn = tuple[Value, int]
"""An axis and a constant c: (axis + c) modulo the length of the axis."""


def gather_on_torus(
    kernel: Kernel, *, spare: bool, has_masks: bool
) -> tuple[Kernel, frozenset[Task]]:
    """Return the kernel with periodic neighbours' additions gathered, and the tasks that do so.

    Args:
        kernel: any kernel.
        spare: see `scatter_to_gather`.
        has_masks: see `split_interiors`.
    """
    tasks: list[Task] = []
    made: set[Task] = set()
    for task in kernel.tasks:
        *gathers, left = _Torus(kernel, task, spare=spare).parts(guards=not has_masks)
        made.update(gathers)
        tasks += [*gathers, left]
    return (kernel.replace(tasks=tuple(tasks)) if made else kernel), frozenset(made)


class _Torus(TaskGather):
    """Gathers for the elements of a torus.

    Attributes:
        lengths: of the axes that begin at 0.
        turns: what `turn` has found.
    """

    def __init__(self, kernel: Kernel, task: Task, *, spare: bool) -> None:
        super().__init__(kernel, task, colors=False, spare=spare)
        self.lengths: dict[Value, Offset] = {}
        self.turns: dict[Value, _Turn | None] = {}

    def parts(self, *, guards: bool) -> list[Task]:
        """Return the tasks that gather, and what is left; the task alone if it gathers nothing."""
        task, inside = self.task, self.looked_at()
        if inside is None or not self.find_lengths():
            return [task]
        groups = {
            g: members
            for g, members in self.groups().items()
            if any(self.wraps(u.stmt) for _, u in members) and self.is_legal_and_cheap(g, members)
        }
        taken: set[Stmt] = {u.stmt for members in groups.values() for _, u in members}
        if not groups or not self.are_apart(inside, taken):
            return [task]
        left, more = list(without(task.body, taken).stmts), self.others(taken)
        all_taken = taken.union(u.stmt for u in more or ())
        clears = None if more is None else self.clears_alone(without(task.body, all_taken))
        if more is None or clears is None or not self.are_apart(inside, all_taken):
            more = []
        else:
            left = clears
        gather = self.gather(groups, more)
        first, *rims = parts_of(gather, guards=guards)
        if not rims:
            return [task]
        # The interior last, directly before what is left (`Task.lag`), which only clears what that has read.
        none = (0,) * len(task.axes)
        lags = [self.lag(g, members, left) for g, members in groups.items()]
        lags += [self.lag(Group(u.stmt.mem, (), ()), [(none, u)], left) for u in more]
        lag = None if None in lags else max(k for k in lags if k is not None)
        if lag is not None and self.reads_around(first, groups):
            lag = None
        return [*rims, first, task.replace(body=Block(left), lag=lag)]

    # ---- conditions

    def find_lengths(self) -> bool:
        """Find the axes that begin at 0, and whose length is of their type."""
        for k, axis in enumerate(self.task.axes):
            low, end = self.faces[2 * k : 2 * k + 2] if self.faces else (None, (None, 0))
            base = end[0]
            # Sums of narrower numbers wrap around before the remainder is taken.
            if low != number(0) or axis.type.scalar.kind != "i" or axis.type.scalar.bits < 32:
                continue
            if base is None or (not end[1] and base.type.scalar is axis.type.scalar):
                self.lengths[axis] = end
        return bool(self.lengths)

    def turn(self, v: Value) -> _Turn | None:
        """Return a value as (axis + constant) modulo the length of the axis; None: it is no such value."""
        if v not in self.turns:
            self.turns[v] = self._turn(v)
        return self.turns[v]

    def _turn(self, v: Value) -> _Turn | None:
        base, shift = offset_of(v, self.defs)
        if base is None or shift:
            return None
        if base in self.task.axes:
            return base, 0
        let = self.defs.get(base)
        if let is None or let.op.name != "mod" or base.type.scalar.kind != "i":
            return None
        inner, n = let.args
        base, shift = up_to_periods(inner, n, self.defs)
        found = None if base is None else self.turn(base)
        if found is None or self.lengths.get(found[0]) != offset_of(n, self.defs):
            return None
        axis, shift = self.nearest(found[0], found[1] + shift)
        # Farther, a difference of two shifts might not fit in an index.
        return (axis, shift) if abs(shift) <= _FARTHEST else None

    def nearest(self, axis: Value, shift: int) -> _Turn:
        """Return the same turn with the least constant."""
        unknown, n = self.lengths[axis]
        if unknown is None and n > 0:
            shift = (shift + n // 2) % n - n // 2
        return axis, shift

    def place(self, s: Atomic) -> tuple[Group, tuple[int, ...]] | None:
        turns: dict[Value, tuple[int, int]] = {}
        rest: list[tuple[int, object]] = []
        for k, i in enumerate(s.index):
            found = self.turn(i)
            if found is not None and found[0] not in turns:
                turns[found[0]] = k, found[1]
            elif isinstance(i, Const):
                rest.append((k, (i.type, i.value)))
            elif _is_leaf(base := offset_of(i, self.defs)):
                rest.append((k, base))
            else:
                return None
        if len(turns) < len(self.task.axes):
            return None
        places, shifts = zip(*(turns[a] for a in self.task.axes), strict=True)
        return Group(s.mem, places, tuple(rest)), shifts

    def wraps(self, s: Atomic) -> bool:
        """Whether an index of an addition wraps around."""
        return any(found is not None and found[1] for found in map(self.turn, s.index))

    def are_apart(self, inside: list[Stmt], taken: set[Stmt]) -> bool:
        """Whether nothing else in the task accesses what the sums go to."""
        added: dict[Mem, list[Atomic]] = {}
        for s in taken:
            assert isinstance(s, Atomic)
            added.setdefault(s.mem, []).append(s)
        return all(
            s in taken or all(self.apart(s, x) for x in added.get(s.mem, ()))
            for s in inside
            if isinstance(s, (Load, Store, Atomic))
        )

    def others(self, taken: set[Stmt]) -> list[Update] | None:
        """Return the other additions, if all of them can be made by the lane that gathers."""
        wanted = {s for s in additions(self.task.body) if s not in taken}
        found = self.updates(wanted)
        if len(found) < len(wanted):
            return None
        none = (0,) * len(self.task.axes)
        for u in found:
            offsets = (offset_of(i, self.defs) for i in u.stmt.index)
            if not all(_is_leaf(at) or at[0] in self.task.axes for at in offsets):
                return None
            group = Group(u.stmt.mem, (), ())
            if not self.is_legal_and_cheap(group, [(none, u)]):
                return None
        return found

    def clears_alone(self, body: Block) -> list[Stmt] | None:
        """Return the clears of the lane's own elements, with what they need; None: there is more."""
        needed: set[Stmt] = set()
        for s in body.stmts:
            if isinstance(s, Store) and self.clears(s):
                needed.add(s)
                needed.update(x for i in s.index for x in self.slice(i))
            elif not isinstance(s, (Let, Load, If)) or any(has_effects(b) for b in blocks(s)):
                return None
        return [s for s in body.stmts if s in needed]

    def reads_around(self, inside: Task, groups: dict[Group, list[Member]]) -> bool:
        """Whether an interior still reads at the other end of its first axis.

        Such rows are no `Task.lag` apart. It does where it is cut by fewer lanes than a neighbour is away.
        """
        shifts = [shift[0] for members in groups.values() for shift, _ in members]
        if not any(shifts):
            return False
        ends, (base, n) = faces_of(inside), self.lengths[self.task.axes[0]]
        if ends is None:
            return True
        below, above = distance(ends[0], number(0)), distance((base, n), ends[1])
        return below is None or above is None or below < max(shifts) or above < -min(shifts)

    # ---- rewriting

    def gather(self, groups: dict[Group, list[Member]], more: list[Update]) -> Task:
        """Return the task for all elements."""
        b, axes = self.builder, tuple(Value(x.type, x.hint) for x in self.task.axes)
        with b, b.block() as bounds:
            ends = [v for a in range(len(axes)) for v in self.bounds_of(a)]
        with b, b.block() as stmts:
            lanes = _Lanes(self, axes)
            for group, members in groups.items():
                terms = [lanes.term(u, shift) for shift, u in members]
                b.span = members[0][1].stmt.span
                self.add_up(group.mem, self.own_index(group, members, axes), terms)
            for u in more:
                self.add_up(u.stmt.mem, lanes.index(u.stmt), [lanes.term(u, (0,) * len(axes))])
        return self.task.replace(
            axes=axes, bounds=Block(bounds, tuple(ends)), body=Block(stmts), lag=None
        )


class _Lanes:
    """Emits what lanes add, in the lane of an element."""

    def __init__(self, torus: _Torus, axes: tuple[Value, ...]) -> None:
        self.torus, self.builder = torus, torus.builder
        self.own = dict(zip(torus.task.axes, axes, strict=True))
        self.made: dict[tuple[Value, int], Value] = {}

    def at(self, axis: Value, shift: int) -> Value:
        """Emit (axis + shift) modulo the length of the axis."""
        axis, shift = self.torus.nearest(axis, shift) if shift else (axis, 0)
        if not shift:
            return self.own[axis]
        if (axis, shift) not in self.made:
            base, n = self.torus.lengths[axis]
            length = Const(axis.type, n) if base is None else base
            self.made[axis, shift] = self.builder.named("mod", self.own[axis] + shift, length)
        return self.made[axis, shift]

    def term(self, u: Update, shift: tuple[int, ...]) -> Term:
        """Emit what the lane with these shifts adds: element e got its term from the lane e - shift."""
        shifts = dict(zip(self.torus.task.axes, shift, strict=True))
        self.builder.span = u.stmt.span
        copy = _Copy(self, shifts, self.torus.defs)
        for s in self.torus.slice(u.value):
            self.builder.stmts.extend(copy.stmt(s))
        made = None if u.made is None else copy.value(u.made)
        return copy.value(u.value), None if isinstance(made, Const) and made.value else made

    def index(self, s: Atomic) -> tuple[Value, ...]:
        """Emit the index of an addition that the lane makes for itself."""
        found = []
        for i in s.index:
            base, shift = offset_of(i, self.torus.defs)
            if base in self.own:
                own = self.builder.cast(self.own[base], i.type.scalar)
                found.append(own + shift if shift else own)
            else:
                found.append(self.torus.leaf(i))
        return tuple(found)


class _Copy(KnownBranches):
    """Copies what a neighbour computes; its own neighbours are elements around this lane."""

    def __init__(self, lanes: _Lanes, shifts: dict[Value, int], defs: Definitions) -> None:
        super().__init__({a: lanes.at(a, -k) for a, k in shifts.items()}, defs, {})
        self.lanes, self.shifts = lanes, shifts

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Let) and s.op.name == "mod":
            found = self.lanes.torus.turn(s.out)
            if found is not None:
                axis, shift = found
                v = self.lanes.at(axis, shift - self.shifts[axis])
                self.env[s.out] = self.lanes.builder.cast(v, s.out.type.scalar)
                return []
        return super().stmt(s)


def _is_leaf(at: Offset) -> bool:
    """Whether an index is launch-wide."""
    return at[0] is None or isinstance(at[0], LEAVES)
