"""Scatter to gather: rewrites lanes that add to their neighbours' elements to collect for their own.

The adjoint of a stencil adds to x.grad[i - 1], x.grad[i] and x.grad[i + 1] in lane i. Lanes overlap, so these
would be atomic additions, which are slow and keep the loop from being vectorized. But lane i - s adds to
element i what lane i would add to element i + s, so the same sums can be made by the element:

    parallel %i in a..b {                     parallel %i in a + 1..b - 1 {      (all neighbours exist)
      %g: f32 = load y.grad[%i]                 %g.1: f32 = load y.grad[%i + 1]
      store y.grad[%i], 0.0            ->       %g.2: f32 = load y.grad[%i - 1]
      atomic_add x.grad[%i - 1], %g             atomic_add x.grad[%i], %g.1 + %g.2   (exclusive)
      atomic_add x.grad[%i + 1], %g           }
    }                                         ... the same at both ends, each term under its condition
                                              parallel %i in a..b { store y.grad[%i], 0.0 }

Assumes any kernel. Promises: the same sums, in another order. A group of additions is rewritten if their
index is (axis + constant) along every axis of the loop and the same otherwise, their values are made of
loads and arithmetic alone, no load reads what the loop writes, and the loop's bounds are constants, or
arguments and extents plus constants; the cost of computing each value once for each neighbour must stay
small. Everything else in the task stays as it is, in a task that runs after. If it only clears what the
additions were made of, it need not wait for all of them (`Task.lag`).

Additions in branches are gathered too, as values with a flag that says whether they are made: `if i > 0`
around x[i - 1]. Where the bounds of the loop tell that all neighbours are inside, the conditions go;
elsewhere an element is only touched if some lane adds to it.

Sweeps in colours, `if (i + j) % 2 == c`, read and clear in one colour what they add to in the other. The
dependence test shows that these never meet. All neighbours that add to an element have one condition, so it
is one branch for their sum, which is a load, an addition and a store: no other lane touches the element.
"""

from __future__ import annotations

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Atomic,
    Block,
    Check,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import outs, slow_parts, statements
from diffsim.ir.types import bool_, i64, size_of
from diffsim.passes.analysis.affine import (
    Definitions,
    Element,
    Offset,
    Ranges,
    affine_forms,
    distance,
    element_of,
    faces_of,
    offset_of,
    shifted,
)
from diffsim.passes.analysis.dependence import Access, distances
from diffsim.passes.analysis.guarded_updates import (
    Group,
    KnownBranches,
    Update,
    additions,
    color_of,
    emit_faces,
    place_of,
    reads,
    updates_of,
    values_alone,
    without,
)
from diffsim.passes.analysis.regions import Region, RegionMap, disjoint, region_of

_MOST_PAIRS = 64
"""Accesses of a sweep in colours that the dependence test is asked about."""

Member = tuple[tuple[int, ...], Update]
Term = tuple[Value, Value | None]
"""The value a lane adds, and whether it does; None: it certainly does, or the element exists anyway."""
_MOST_WORK = 600  # scalar statements of one rewritten loop body


def scatter_to_gather(
    kernel: Kernel,
    *,
    allow_lag: bool = False,
    colors: bool = False,
    rims: frozenset[Task] = frozenset(),
    spare: bool = False,
) -> Kernel:
    """Return the kernel with neighbour additions gathered by the element instead of scattered by the lane.

    Args:
        kernel: any kernel.
        allow_lag: whether the backend makes use of `Task.lag`.
        colors: whether sweeps in colours gather, too.
        rims: tasks so thin that no element has all its neighbours in them, which stay as they are.
        spare: whether values with more divisions, roots and functions than additions are better scattered
            than computed again by each neighbour.
    """
    tasks: list[Task] = []
    for task in kernel.tasks:
        one = TaskGather(kernel, task, colors=colors, spare=spare)
        tasks += [task] if task in rims else one.tasks(allow_lag=allow_lag)
    return kernel.replace(tasks=tuple(tasks))


class TaskGather:
    """Rewrites one task.

    Attributes:
        defs, defined: the op, and the statement at the top of the body, that binds a value.
        faces: the bounds, if they are launch-wide values plus constants.
        order: the position of each statement at the top of the body.
        number: the same for those in branches, but not in loops, which run again and again.
        met: what `never_meet` has found, by the first addition of a group.
        writes: see `first_writes`.
    """

    def __init__(self, kernel: Kernel, task: Task, *, colors: bool, spare: bool) -> None:
        self.task = task
        self.colors, self.spare = colors, spare
        self.builder = Builder(kernel.span)
        self.defs: Definitions = {}
        self.faces: list[Offset] | None = None
        self.defined: dict[Value, Stmt] = {}
        self.order: dict[Stmt, int] = {}
        self.number: dict[Stmt, int] = {}
        self.met: dict[Stmt, dict[Access, bool]] = {}
        self.writes: dict[Mem, RegionMap[int]] = {}

    def tasks(self, *, allow_lag: bool) -> list[Task]:
        """Return the task itself, or the tasks that replace it."""
        task = self.task
        inside = self.looked_at()
        if inside is None:
            return [task]
        made: list[Task] = []
        gathered: set[Stmt] = set()
        for group, members in self.groups().items():
            shifts = {shift for shift, _ in members}
            # One of the others may be in a loop, or need what is not mere values.
            if len(shifts) < 2 or not self.is_legal_and_cheap(group, members):
                continue
            if any(u.made for _, u in members) and not self.is_added_to_only(
                group, members, inside
            ):
                continue
            # The inside last, directly before what is left: `Task.lag` lets the backend interleave these two.
            last, *ends = self.rewrite(group, members)
            made = [*made, *ends, last]
            gathered.update(u.stmt for _, u in members)
        if not made:
            return [task]
        # What is left runs after the sums, so it may still change what they were computed from.
        left = list(without(task.body, gathered).stmts)
        lag = self.lag(group, members, left) if allow_lag else None
        return [*made, task.replace(body=Block(left), lag=lag)]

    def looked_at(self) -> list[Stmt] | None:
        """Look at the task, and return its statements; None: nothing of it can be gathered."""
        task = self.task
        # The lanes of inactive elements do not run, and so could gather nothing.
        if not task.axes or task.reductions or task.active is not None:
            return None
        inside = list(statements(task.body))
        if not any(isinstance(s, Atomic) for s in inside):
            return None
        # Values are computed once for each neighbour: checks would report and prints would print that
        # often.
        if any(isinstance(s, (Check, Print, Alloca)) for s in inside):
            return None
        self.defs = {s.out: s for s in inside if isinstance(s, Let)}
        self.faces = faces_of(task)
        for n, s in enumerate(task.body.stmts):
            computes = values_alone(s)
            self.order[s] = self.order[computes] = n
            for v in outs(s):
                self.defined[v] = computes
        self.count(task.body)
        self.writes = self.first_writes(inside)
        return inside

    def count(self, block: Block) -> None:
        """Number the statements that run once in a lane, in the order of the text."""
        for s in block.stmts:
            self.number[s] = len(self.number)
            if isinstance(s, If):
                self.count(s.then)
                self.count(s.orelse)

    def lag(self, group: Group, members: list[Member], left: list[Stmt]) -> int | None:
        """Return how far apart along the first axis a gathered sum and a clear of its inputs may be.

        None unless `left` only clears elements of the lane's own: then a lane may clear as soon as the sums
        within that distance are done.
        """
        cleared: dict[Mem, Store] = {}
        # 1. What is left must be nothing but clears of the lane's own elements (and the loads for
        # them).
        for s in left:
            if isinstance(s, Store) and s.mem not in cleared and self.clears(s):
                # A clear of the memory that the sums go to would erase them.
                if s.mem is group.mem and not self.apart(s, members[0][1].stmt):
                    return None
                cleared[s.mem] = s
            elif not isinstance(s, (Let, Load)):
                return None
        # 2. The sums must read of cleared memories only the lane's own element, so that the distance
        # between reader and clear is a shift of the group.
        for _, one in members:
            for s in self.slice(one.value):
                for x in (s, *_inner(s)):
                    if isinstance(x, Load) and x.mem in cleared:
                        own = cleared[x.mem]
                        if self.element(x) != self.element(own) and not self.apart(x, own):
                            return None
        # 3. The group must contain the lane itself along each axis, or chunks would clear rows they do
        # not read.
        shifts = list(zip(*(shift for shift, _ in members), strict=True))
        if not cleared or not all(min(s) <= 0 <= max(s) for s in shifts):
            return None
        first: tuple[int, ...] = shifts[0]
        return max(-min(first), max(first))

    def clears(self, s: Store) -> bool:
        """Whether a store clears an element of the lane's own."""
        bases = {base for base, _ in self.element(s)}
        return (
            isinstance(s.value, Const)
            and s.mem.kind in ("field", "array")
            and bases.issuperset(self.task.axes)
            and all(b is None or isinstance(b, LEAVES) for b in bases.difference(self.task.axes))
        )

    def element(self, s: Load | Store) -> Element:
        return element_of(s.index, self.defs)

    def apart(self, a: Access, b: Access) -> bool:
        """Whether two accesses to one memory certainly touch different elements."""
        return disjoint(region_of(a, self.defs), region_of(b, self.defs))

    def groups(self) -> dict[Group, list[Member]]:
        """Return the additions that may be gathered, by what they have in common."""
        placed = {s: at for s in additions(self.task.body) if (at := self.place(s)) is not None}
        shifts: dict[Group, set[tuple[int, ...]]] = {}
        for group, shift in placed.values():
            shifts.setdefault(group, set()).add(shift)
        # With one shift each element has one adding lane, and the update is exclusive without any rewriting.
        wanted = {s for s, (group, _) in placed.items() if len(shifts[group]) > 1}
        found: dict[Group, list[Member]] = {}
        for update in self.updates(wanted):
            group, shift = placed[update.stmt]
            found.setdefault(group, []).append((shift, update))
        return found

    def place(self, s: Atomic) -> tuple[Group, tuple[int, ...]] | None:
        """Return the group of an addition and its shift along the axes; None: it is in no group."""
        return place_of(s, self.task, self.defs)

    def updates(self, wanted: set[Atomic]) -> list[Update]:
        """Return these additions, with values that can be computed at the top of the body."""
        found = updates_of(self.task.body, wanted)
        for update in found:
            if update.computes is not None:
                # As if it stood in the body where the branch does.
                self.order[update.computes] = self.order[update.top]
                for v in update.computes.outs:
                    self.defined[v] = update.computes
        return found

    def first_writes(self, inside: list[Stmt]) -> dict[Mem, RegionMap[int]]:
        """Return, for each region of each memory, the number of the first statement that may write it."""
        found: dict[Mem, dict[Region, int]] = {}
        for s in inside:
            if isinstance(s, (Store, Atomic)):
                first = found.setdefault(s.mem, {})
                # A write inside a loop has no number; -1 makes it count as before everything.
                region, number = region_of(s, self.defs), self.number.get(s, -1)
                first[region] = min(first.get(region, number), number)
        return {mem: RegionMap(first.items()) for mem, first in found.items()}

    def is_legal_and_cheap(self, group: Group, members: list[Member]) -> bool:
        """Whether the values can be computed by the element, at little cost."""
        # Bounds are evaluated anew for each task made here; those that load from memory might differ.
        if self.faces is None:
            return False
        target = region_of(members[0][1].stmt, self.defs)
        work, slow = 0, []
        for _, s in members:
            slow.append(0)
            for needed in self.slice(s.value):
                if isinstance(needed, (For, While)):
                    return False
                for x in [needed, *_inner(needed)]:
                    work += size_of(x.out.type) if isinstance(x, (Let, Load)) else 1
                    slow[-1] += slow_parts(x)
                    # Effects must not be repeated, and loops would multiply the cost by the number of
                    # neighbours.
                    if isinstance(x, (Store, Atomic, For, While)):
                        return False
                    if isinstance(x, Load) and not self.unwritten(x, target, group, members):
                        return False
            if work > _MOST_WORK:
                return False
        # The lane that scatters computes each value once, but waits for its additions, which overlap.
        again = sum(slow) - max(slow)
        return not self.spare or again <= sum(size_of(s.value.type) for _, s in members)

    def is_added_to_only(self, group: Group, members: list[Member], inside: list[Stmt]) -> bool:
        """Whether the task does nothing but additions to what the group adds to.

        Lanes that add in branches need not meet, so one may read what it adds to.
        """
        one = members[0][1].stmt
        for s in inside:
            if isinstance(s, Atomic) and s.op == "add" and s.out is None:
                continue
            if (
                isinstance(s, (Load, Store, Atomic))
                and s.mem is group.mem
                and not self.apart(s, one)
                and not self.never_meet(s, members)
            ):
                return False
        return True

    def never_meet(self, s: Access, members: list[Member]) -> bool:
        """Whether the lanes of a sweep in colours add to no element that any lane accesses so."""
        if not self.colors or not self.are_of_one_color(members):
            return False
        found = self.met.setdefault(members[0][1].stmt, {})
        if s not in found:
            few = len(found) * len(members) < _MOST_PAIRS
            found[s] = few and all(distances(self.task, s, u.stmt).never for _, u in members)
        return found[s]

    def are_of_one_color(self, members: list[Member]) -> bool:
        """Whether all lanes that add to an element do so under one condition, such as `(i + j) % 2 == c`."""
        forms, axes = affine_forms(self.task), self.task.axes
        found = {
            color_of(u, dict(zip(axes, shift, strict=True)), forms, self.defs)
            for shift, u in members
        }
        return len(found) == 1 and None not in found

    def unwritten(self, load: Load, target: Region, group: Group, members: list[Member]) -> bool:
        """Whether a load finds the same before the task as in its own lane."""
        region = region_of(load, self.defs)
        # The sums are being made there: a neighbour's load would see some of them.
        # All else in the task that accesses the memory is looked at, too (`is_added_to_only`).
        meets = load.mem is group.mem and not disjoint(region, target)
        if meets and not self.never_meet(load, members):
            return False
        # A lane loads before it writes, but other lanes may have written the element in the original
        # order. Where the first write in program order comes after the load, all gathered sums precede
        # all writes of the task that is left, so each finds the value from before.
        # One in a loop has no number, and counts as behind everything.
        writes, number = self.writes.get(load.mem), self.number.get(load, len(self.number))
        return writes is None or min(writes.overlapping(region), default=number) >= number

    def slice(self, v: Value) -> list[Stmt]:
        """Return the backward slice of a value: the statements of the body that it needs, in order."""
        needed: set[Stmt] = set()
        # Weiser's backward slice along data dependences; control is inside If statements that come
        # along whole.
        work = [v]
        while work:
            found = self.defined.get(work.pop())
            if found is not None and found not in needed:
                needed.add(found)
                work.extend(reads(found))
        return sorted(needed, key=lambda s: self.order[s])

    # ---- rewriting

    def rewrite(self, group: Group, members: list[Member]) -> list[Task]:
        """Return a task for the elements with all neighbours, and two for the ends of each axis."""
        # The box of lanes a..b adds to elements a + low .. b + high. Elements in a + high .. b + low
        # have all neighbours and need no conditions, which lets LLVM vectorize that loop. The rest is
        # cut into slabs: one below and one above for each axis, with earlier axes inside and later ones
        # whole, so that the slabs are disjoint and cover each element once.
        n = len(self.task.axes)
        low = [min(shift[a] for shift, _ in members) for a in range(n)]
        high = [max(shift[a] for shift, _ in members) for a in range(n)]
        made = [self.one(group, members, ["inside"] * n, low, high)]
        for a in range(n):
            if low[a] == high[a]:
                continue
            for side in ("below", "above"):
                kinds = ["inside"] * a + [side] + ["all"] * (n - a - 1)
                made.append(self.one(group, members, kinds, low, high))
        return made

    def one(
        self,
        group: Group,
        members: list[Member],
        kinds: list[str],
        low: list[int],
        high: list[int],
    ) -> Task:
        """Return the task that gathers for one part of the box; `kinds` says which part along each axis."""
        b, task = self.builder, self.task
        b.span = members[0][1].stmt.span
        with b, b.block() as bound_stmts:
            yields: list[Value] = []
            some: Value = Const(i64, 1)
            for a, kind in enumerate(kinds):
                lo, hi = self.bounds_of(a)
                # An empty range must stay empty, also after its ends have been shifted apart.
                hi = b.named("max", lo, hi)
                some = b.named("min", some, b.cast(hi, i64) - b.cast(lo, i64))
                first, last = lo + low[a], hi + high[a]
                # A range shorter than the stencil has no inside; clamping keeps the three parts
                # adjacent.
                inner_first = b.named("min", lo + high[a], last)
                inner_last = b.named("max", inner_first, hi + low[a])
                yields += {
                    "all": (first, last),
                    "inside": (inner_first, inner_last),
                    "below": (first, inner_first),
                    "above": (inner_last, last),
                }[kind]
            # Without lanes along one axis no element needs to exist along the others.
            first, last = (b.cast(v, i64) for v in yields[:2])
            yields[:2] = first, first + (last - first) * some
        axes = tuple(Value(x.type, x.hint) for x in task.axes)
        # In the slabs some neighbours are not lanes of the loop and have contributed nothing.
        is_slab = any(kind != "inside" for kind in kinds)
        # An element of a slab that no lane adds to need not exist where some lanes add in branches. Else all
        # elements of the box do, as those at its faces do.
        flagged = any(u.made for _, u in members)
        with b, b.block() as stmts:
            if not is_slab and self.colors and self.are_of_one_color(members):
                self.add_in_one_color(group, members, axes, low, high)
                return task.replace(
                    axes=axes, bounds=Block(bound_stmts, tuple(yields)), body=Block(stmts)
                )
            terms = []
            limits = [v for a in range(len(axes) if is_slab else 0) for v in self.bounds_of(a)]
            for shift, u in members:
                b.span = u.stmt.span
                # Element e got its term from the lane e - shift.
                lanes = tuple(x - k if k else x for x, k in zip(axes, shift, strict=True))
                if is_slab:
                    terms.append(self.guarded(u, lanes, limits, flagged=flagged))
                else:
                    terms.append(self.copy_slice(u, lanes, self.ranges(shift, low, high)))
            b.span = members[0][1].stmt.span
            self.add_up(group.mem, self.own_index(group, members, axes), terms)
        box = Block(bound_stmts, tuple(yields))
        return task.replace(axes=axes, bounds=box, body=Block(stmts))

    def own_index(
        self, group: Group, members: list[Member], axes: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Emit the index of the element that a lane gathers for."""
        index = list(members[0][1].stmt.index)
        for a, place in enumerate(group.places):
            index[place] = self.builder.cast(axes[a], index[place].type.scalar)
        for place, _ in group.rest:
            index[place] = self.leaf(index[place])
        return tuple(index)

    def add_in_one_color(
        self,
        group: Group,
        members: list[Member],
        axes: tuple[Value, ...],
        low: list[int],
        high: list[int],
    ) -> None:
        """Emit the sum of what all neighbours add, under the one condition that they have."""
        b = self.builder
        terms: list[Value] = []
        with b.block() as then:
            for shift, u in members:
                assert u.computes is not None
                b.span = u.stmt.span
                lanes = [x - k if k else x for x, k in zip(axes, shift, strict=True)]
                env = dict(zip(self.task.axes, lanes, strict=True))
                copy = KnownBranches(env, self.defs, self.ranges(shift, low, high))
                for s in self.slice(u.value):
                    # Of the branch itself what is inside: its condition holds here.
                    inside = s.then.stmts if s is u.computes else [s]
                    for x in inside:
                        b.stmts.extend(copy.stmt(x))
                terms.append(copy.value(u.computes.then.yields[0]))
            index = self.own_index(group, members, axes)
            total = b.load(group.mem, index)
            for v in terms:
                total = total + v
            b.store(group.mem, index, total)
        shift, u = members[0]
        assert u.computes is not None
        lanes = [x - k if k else x for x, k in zip(axes, shift, strict=True)]
        copy = KnownBranches(dict(zip(self.task.axes, lanes, strict=True)), self.defs, {})
        for s in self.slice(u.computes.cond):
            b.stmts.extend(copy.stmt(s))
        b.add(If(copy.value(u.computes.cond), Block(then), Block([]), (), b.span))

    def bounds_of(self, a: int) -> tuple[Value, Value]:
        """Emit the bounds of the lanes along an axis."""
        assert self.faces is not None
        return emit_faces(self.builder, self.task.axes[a], *self.faces[2 * a : 2 * a + 2])

    def ranges(self, shift: tuple[int, ...], low: list[int], high: list[int]) -> Ranges:
        """Return the lanes that reach, by this shift, the elements with all neighbours."""
        found: Ranges = {}
        ends = self.faces or []
        for a, axis in enumerate(self.task.axes):
            first = shifted(ends[2 * a], high[a] - shift[a])
            last = shifted(ends[2 * a + 1], low[a] - 1 - shift[a])
            length = distance(last, first)
            if length is None or length >= 0:
                found[axis] = first, last
        return found

    def add_up(self, mem: Mem, index: tuple[Value, ...], terms: list[Term]) -> None:
        """Emit the sum of the terms into an element, if any of them is made."""
        b = self.builder
        total, some = terms[0]
        for v, made in terms[1:]:
            total = total + v
            some = None if some is None or made is None else b.named("or", some, made)
        if some is None:
            b.atomic("add", mem, index, total)
            return
        with b.block() as then:
            b.atomic("add", mem, index, total)
        b.add(If(some, Block(then), Block([]), (), b.span))

    def leaf(self, v: Value) -> Value:
        """Emit an index that is argument + constant, for the new task."""
        base, shift = offset_of(v, self.defs)
        if base is None:
            return Const(v.type, shift)
        return self.builder.cast(base, v.type.scalar) + shift if shift else base

    def copy_slice(self, u: Update, lanes: tuple[Value, ...], ranges: Ranges) -> Term:
        """Emit what the lane with these indices, which are in these ranges, adds."""
        env = dict(zip(self.task.axes, lanes, strict=True))
        copy = KnownBranches(env, self.defs, ranges)
        for s in self.slice(u.value):
            self.builder.stmts.extend(copy.stmt(s))
        made = None if u.made is None else copy.value(u.made)
        return copy.value(u.value), None if isinstance(made, Const) and made.value else made

    def guarded(
        self, u: Update, lanes: tuple[Value, ...], limits: list[Value], *, flagged: bool
    ) -> Term:
        """Emit what that lane adds if it exists, else 0; `flagged`: and whether it does."""
        b = self.builder
        exists: Value | None = None
        for a, lane in enumerate(lanes):
            lo, hi = limits[2 * a : 2 * a + 2]
            lane = b.cast(lane, lo.type.scalar)
            ok = b.named("and", lane >= lo, lane < hi)
            exists = ok if exists is None else b.named("and", exists, ok)
        assert exists is not None
        # In a branch, not a select: loads of a lane that does not exist may be out of bounds.
        with b.block() as then:
            v, made = self.copy_slice(u, lanes, {})
        out = Value(v.type)
        nothing = b.const(0, v.type)
        if not flagged:
            b.add(If(exists, Block(then, (v,)), Block([], (nothing,)), (out,), u.stmt.span))
            return out, None
        some, no = Value(bool_), Const(bool_, False)
        sides = Block(then, (v, made or Const(bool_, True))), Block([], (nothing, no))
        b.add(If(exists, *sides, (out, some), u.stmt.span))
        return out, some


def _inner(s: Stmt) -> list[Stmt]:
    if isinstance(s, If):
        return [*statements(s.then), *statements(s.orelse)]
    return []
