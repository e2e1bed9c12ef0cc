"""Vectorization: finds parallel tasks whose lanes should run together, as vectors.

LLVM vectorizes loops that have no loops inside. A lane that holds a loop of its own (64 iterations of a map,
a sum over all other bodies, a reversed loop) runs alone there, at a tenth of the speed. `Task.simd` asks the
backend to lower such a task for several lanes at once (the CPU: `backends/simd/simd.py`). Nor does LLVM
vectorize lanes that add to elements which they may share, as many adjoints do.

It is asked for where it is right:

- what a lane loads or stores, no other lane of its row changes: vectors interleave the lanes statement by
  statement, where a chunk ran them one after the other;
- no lane waits for another: the old value of an atomic is not used;
- nothing in it knows lanes alone: no text written by hand, no checks;

and where LLVM would take too long (the time of its vectorizer grows as the square of a lane's length:
seconds for some thousand statements), or where it pays: a rough count of operations, in which a vector
operation costs as much as a scalar one, and a gather, a scatter or an update of several elements as much as
one for each lane.

Assumes scalar IR with exclusive atomics marked. Runs last: what it says is about the task as it is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable

from diffsim.ir.layout import packed_strides, strides_of
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
from diffsim.ir.op import Math
from diffsim.ir.schedules import Access, Neighbours, Packed, Privatized
from diffsim.ir.traversal import blocks, iterations, outs, statements, task_statements, uses
from diffsim.ir.types import size_of
from diffsim.passes.analysis.affine import Definitions, affine_forms, task_definitions
from diffsim.passes.analysis.dependence import distances
from diffsim.passes.analysis.divergence import divergent_values
from diffsim.passes.analysis.ownership import own_without_pairs
from diffsim.passes.vectors.aligned_rows import with_aligned_rows
from diffsim.passes.vectors.appends import with_appends
from diffsim.passes.vectors.colored_lanes import with_lanes_of_one_color
from diffsim.passes.vectors.lanes_together import MOST_PAIRS, may_run_together
from diffsim.passes.vectors.loads_first import with_loads_first
from diffsim.passes.vectors.neighbours import adds_beside, find_neighbours
from diffsim.passes.vectors.packing import extent_of, find_packed, reordered

_LANES = 16  # lanes that the estimate counts on
_FEWEST_LANES = 8  # along the last axis
_FEW = 8
"""How many times more lanes another task has, where the lanes of one are few: the rims of a box."""
_UNKNOWN_TRIP_COUNT = 16
_FUNCTION = 20  # what a function such as sin costs, in additions
_ATOMIC = 20
_SLOT_ADD_COST = 3  # an addition of all lanes to slots of a private copy
_NEAR = 4  # scalars between neighbours that LLVM still loads as one vector and shuffles
_FAR = 1 << 20  # scalars between neighbours along an axis of an array, where nothing is known
_INNER_SPEEDUP = 8  # of an innermost loop that LLVM vectorizes by itself
_WAIT = 1.5  # how much longer the longest loop of the lanes is
_ENTER_LANE = 4  # of a loop that lanes run one after the other
_UPDATES_A_CALL = 4
"""Updates, one lane after the other, that a function for all lanes at once makes up for."""
_OPS_AN_ACCESS = 16  # operations, the same for an access in a list
_BITS = ("mod", "bit_and")
_SLOW = ("div", "sqrt", "rsqrt")
_LONGEST = 500
"""Statements of a lane without loops that LLVM's vectorizer is asked for."""
_MOST_NESTED = 2_000
"""The same, those in branches included: LLVM takes longer for them than our vectors, in parts, to compile."""
_LONG = 100
"""Statements of the longest lane whose accesses at constant distances are left to LLVM."""
_FARTHEST, _MANY_STORES = 8, 14
"""Scalars between stores of two lanes that LLVM still makes one vector of; how many others are too many."""
_ACCESSES = (Load, Store, Atomic)
_ALWAYS = False
"""For tests: whether all tasks are vectorized that may be."""


def vectorize(kernel: Kernel, *, vector_bits: int = 512) -> Kernel:
    """Return the kernel with `Task.simd`, and what belongs to it, filled in.

    Args:
        kernel: scalar IR.
        vector_bits: of the CPU's registers. With 512 a store of some lanes costs no more than one of all.
    """
    has_masks = vector_bits >= 512
    most = max(map(_lanes, kernel.tasks), default=0)
    tasks = [_task(t, has_masks, few=_lanes(t) * _FEW < most) for t in kernel.tasks]
    if vector_bits >= 256:
        tasks = [with_appends(t) if t.simd is None else t for t in tasks]
    others = with_aligned_rows if has_masks else with_lanes_of_one_color
    tasks = [others(with_loads_first(t)) if t.simd is None else t for t in tasks]
    return kernel.replace(tasks=tuple(tasks))


def _lanes(task: Task) -> int:
    """Estimate the lanes of a task."""
    ends = task.bounds.yields
    return math.prod(extent_of(lo, hi) for lo, hi in zip(ends[::2], ends[1::2], strict=True))


def _task(task: Task, has_masks: bool, *, few: bool) -> Task:
    if not task.axes or (not _ALWAYS and _has_few_lanes(task)):
        return task
    estimate = _Estimate(task, divergent_values(task))
    if not (_ALWAYS or _could_pay(task, estimate, has_masks, few=few)):
        return task
    if not may_run_together(task, has_masks=has_masks):
        return task
    scalar, simd = estimate.block(task.body)
    # The estimate is rough, so a gain must be clear; loops by lane count on both sides.
    least = 1.0 if estimate.by_lane else 1.25
    if not _ALWAYS and scalar < least * simd:
        return task
    by_lane = frozenset(estimate.by_lane)
    alone = {s for loop in by_lane for s in loop.body.stmts}
    packed = (Packed(p.mem, p.prefix, p.axis, p.loads - alone) for p in estimate.packed)
    return task.replace(
        simd=estimate.divergent,
        by_lane=by_lane,
        privatized=tuple([_meeting_less(p, task, by_lane) for p in estimate.privatized]),
        packed=tuple([p for p in packed if p.loads]),
        neighbours=(*estimate.neighbours, *estimate.beside),
    )


def _meeting_less(p: Privatized, task: Task, by_lane: Iterable[For]) -> Privatized:
    """Return private copies of a task in which some loops run lane by lane: their additions do not meet."""
    alone = p.atomics.intersection(s for loop in by_lane for s in loop.body.stmts)
    if not alone:
        return p
    counts, divergent = iterations(task.body), divergent_values(task)
    meeting = sum(counts[s] for s in p.atomics - alone if divergent.isdisjoint(s.index))
    return Privatized(p.mem, p.prefix, p.atomics, p.count, meeting, p.axis)


def _has_few_lanes(task: Task) -> bool:
    """Whether there are known to be too few lanes for vectors."""
    lo, hi = task.bounds.yields[-2:]
    both = isinstance(lo, Const) and isinstance(hi, Const)
    return both and bool(hi.value - lo.value < _FEWEST_LANES)  # type: ignore[attr-defined]


def _could_pay(task: Task, estimate: _Estimate, has_masks: bool, *, few: bool) -> bool:
    """Whether LLVM's own vectorizer fails, does badly or takes too long.

    `few`: whether another task of the kernel has far more, so that its time to compile is all that counts.
    """
    if any(isinstance(s, (For, While)) for s in statements(task.body)):
        return not _has_cheap_lists(task, estimate)
    return (
        _is_min_or_max(task, estimate)
        or _is_long(task, estimate)
        or _has_many_stores(task, estimate)
        or (not few and (_scatters(task, estimate) or _reads_apart(task, estimate)))
        or (not few and _adds_together(task, estimate))
        or (not few and _branches_apart(task, estimate))
        or (has_masks and _reads_what_it_writes(task))
        or (not has_masks and not few and _stores_in_branches(task, estimate))
    )


def _has_cheap_lists(task: Task, estimate: _Estimate) -> bool:
    """Whether lanes go through lists, of different lengths, with little to compute for what they access.

    Vectors access elements anywhere one lane after the other, too, and wait for the longest list. Functions,
    divisions and roots, or much arithmetic, must make up for that.
    """
    divergent = estimate.divergent
    places = {s for g in estimate.neighbours if g.step is None for s in g.accesses[:1]}
    for loop in statements(task.body):
        if isinstance(loop, For) and not divergent.isdisjoint((loop.lo, loop.hi)):
            inside = list(statements(loop.body))
            anywhere = sum(s in places for s in inside)
            if anywhere > _spared(inside) and not any(isinstance(s, (For, While)) for s in inside):
                return True
    return False


def _spared(found: list[Stmt]) -> int:
    """Return how many accesses, one lane after the other, operations on all lanes at once make up for."""
    ops = [s.op for s in found if isinstance(s, Let)]
    functions = sum(isinstance(op.lowering, Math) for op in ops)
    slow = sum(op.name in _SLOW for op in ops)
    return _UPDATES_A_CALL * functions + slow + len(ops) // _OPS_AN_ACCESS


def _scatters(task: Task, estimate: _Estimate) -> bool:
    """Whether updates of elements that lanes may share keep LLVM from vectorizing what takes long.

    Lanes that update any elements do so one after the other, which functions, divisions and roots must make
    up for. Updates side by side are vectors.
    """
    found = list(task_statements(task))
    updates = [s for s in found if isinstance(s, Atomic) and not s.exclusive]
    if not updates:
        return False
    ops = [s.op for s in found if isinstance(s, Let)]
    spared = _UPDATES_A_CALL * sum(isinstance(op.lowering, Math) for op in ops)
    spared += sum(op.name in _SLOW for op in ops) // 2
    anywhere = sum(estimate.step(s.mem, s.index, task.axes[-1]) is None for s in updates)
    return spared >= anywhere


def _adds_together(task: Task, estimate: _Estimate) -> bool:
    """Whether neighbouring lanes add to one element, as in the adjoint of a convolution to weights.

    LLVM adds up one lane after the other, as no sum of floats may change its order.
    """
    return any(
        isinstance(s, Atomic)
        and s in estimate.private
        and estimate.step(s.mem, s.index, task.axes[-1]) == 0
        for s in task_statements(task)
    )


def _reads_what_it_writes(task: Task) -> bool:
    """Whether lanes read a memory beside what they write there: a sweep in colours, `if (i + j) % 2 == c`.

    LLVM would have to know that no lane finds what another one has written.
    """
    ownership = own_without_pairs(task)
    return any(isinstance(s, Load) and not ownership.is_own(s) for s in task_statements(task))


def _stores_in_branches(task: Task, estimate: _Estimate) -> bool:
    """Whether lanes side by side store in branches, for which LLVM takes an instruction that is slow.

    Ours ask which lanes take a branch: mostly all of a block do, or none. Not those of every other number.
    """
    defs = task_definitions(task)
    for s in task_statements(task):
        if isinstance(s, If) and not _tells_neighbours_apart(s.cond, defs, estimate):
            for x in (*s.then.stmts, *s.orelse.stmts):
                if not isinstance(x, Store) and not (isinstance(x, Atomic) and x.exclusive):
                    continue
                if estimate.step(x.mem, x.index, task.axes[-1]) == 1:
                    return True
    return False


def _tells_neighbours_apart(cond: Value, defs: Definitions, estimate: _Estimate) -> bool:
    """Whether a condition is a remainder of the lane's number, or is about some of its bits."""
    compared = defs.get(cond)
    made = [] if compared is None else [defs.get(v) for v in compared.args]
    return any(
        let is not None
        and let.op.name in _BITS
        and any(estimate.lane in (estimate.forms.form(v) or ()) for v in let.args)
        for let in made
    )


def _reads_apart(task: Task, estimate: _Estimate) -> bool:
    """Whether lanes load elements that are no vector in memory, and LLVM would do badly at it.

    Loads at a constant distance, of vectors' components, it vectorizes well in short lanes.
    """
    long = sum(1 for _ in task_statements(task)) > _LONG
    return any(
        isinstance(g.accesses[0], Load) and (g.step is None or long) for g in estimate.neighbours
    )


def _branches_apart(task: Task, estimate: _Estimate) -> bool:
    """Whether what lanes have loaded picks those that access components of vectors.

    LLVM shuffles what all lanes load or store as one vector. Where a mask picks lanes, its cost model has an
    access for each, and finds the whole task not worth it. Of conditions on indices nearly all lanes are on
    one side: in order, they are predicted.
    """
    loaded = _loaded(task.body) & estimate.divergent
    found = [s for s in statements(task.body) if isinstance(s, If) and s.cond in loaded]
    inside = {s for branch in found for b in blocks(branch) for s in b.stmts}
    groups = [g for g in estimate.neighbours if g.step is not None and len(g.accesses) > 1]
    return any(not inside.isdisjoint(g.accesses) for g in groups)


def _loaded(block: Block, found: set[Value] | None = None) -> set[Value]:
    """Return the values that what a block without loops loads decides."""
    found = set() if found is None else found
    for s in block.stmts:
        for inner in blocks(s):
            _loaded(inner, found)
        read = [*uses(s), *(v for b in blocks(s) for v in b.yields)]
        if isinstance(s, Load) or not found.isdisjoint(read):
            found.update(outs(s))
    return found


def _is_long(task: Task, estimate: _Estimate) -> bool:
    """Whether LLVM would vectorize the lanes, but take too long."""
    # Below this length the vectorizer's quadratic time is small.
    if len(task.body.stmts) <= _LONGEST and sum(1 for _ in statements(task.body)) <= _MOST_NESTED:
        return False
    return all(
        estimate.is_near(s, task.axes[-1])
        for s in statements(task.body)
        if isinstance(s, (Load, Store, Atomic))
    )


def _has_many_stores(task: Task, estimate: _Estimate) -> bool:
    """Whether LLVM would make many scalar stores of those of vectors, and look for vectors among them again.

    It takes them for neighbours up to a distance, and makes a scalar store for each lane of others. The time
    of its SLP vectorizer grows as the square of these: seconds for 50 components of an element.
    """
    apart = (
        estimate.step(s.mem, s.index, task.axes[-1])
        for s in statements(task.body)
        if isinstance(s, Store)
    )
    return sum(step is None or step > _FARTHEST for step in apart) >= _MANY_STORES


def _is_min_or_max(task: Task, estimate: _Estimate) -> bool:
    """Whether a task is only a minimum or maximum over floats that are adjacent in memory.

    LLVM vectorizes that too, but has to test for NaN in every step.
    """
    # Sums and integers LLVM vectorizes well by itself.
    if not any(op != "add" and mem.dtype.scalar.is_float for op, mem, _ in task.reductions):
        return False
    return all(
        (isinstance(s, Let) and not isinstance(s.op.lowering, Math))
        or (isinstance(s, Load) and estimate.step(s.mem, s.index, task.axes[-1]) in (0, 1))
        for s in task.body.stmts
    )


class _Estimate:
    """A rough count of operations: what 16 lanes cost one after the other, and as vectors."""

    def __init__(self, task: Task, divergent: frozenset[Value]) -> None:
        self.task = task
        self.lane = task.axes[-1]
        self.divergent = divergent
        self.forms = affine_forms(task)
        self.private = {a for p in task.privatized for a in p.atomics}
        self.meeting = {a for p in task.privatized if p.slots(_LANES) > 1 for a in p.atomics}
        self.packed = find_packed(task)
        self.privatized = reordered(task)
        near = {a for p in self.privatized if p.axis is not None for a in p.atomics}
        self.side_by_side = near.union(*(p.loads for p in self.packed))
        found = [
            Neighbours(g.accesses, g.shifts, self.step(a.mem, a.index, self.lane))
            for g in find_neighbours(task, divergent)
            for a in g.accesses[:1]
            if near.isdisjoint(g.accesses)
        ]
        # What is a vector in memory needs no group, unless lanes add to elements of each other.
        self.neighbours = tuple([g for g in found if g.step not in (0, 1)])
        self.beside = tuple([g for g in found if adds_beside(g)])
        self.together: dict[Access, float] = {}
        """The cost to a lane of an access that it makes together with others."""
        for g in self.neighbours:
            self.together.update(dict.fromkeys(g.accesses, self.share(g)))
        self.by_lane: list[For] = []
        """Loops whose own iterations make better vectors than the lanes do."""
        self.around: tuple[Value, ...] = ()
        """Indices of the loops around."""
        self.at_work = 1.0
        """The part of the lanes that take the branch."""

    def block(self, block: Block) -> tuple[float, float]:
        costs = [self.stmt(s) for s in block.stmts]
        return sum(a for a, _ in costs), sum(t for _, t in costs)

    def stmt(self, s: Stmt) -> tuple[float, float]:
        if isinstance(s, Let):
            cost = _FUNCTION if isinstance(s.op.lowering, Math) else 1
            # Vector functions take about twice the time of one scalar call, for all lanes.
            return _LANES * cost, cost * (1 if cost == 1 else 2)
        if isinstance(s, (Load, Store)):
            step = self.step(s.mem, s.index, self.lane)
            # Uniform or consecutive: one load. Otherwise a gather, one access for each lane.
            near = step in (0, 1) or s in self.side_by_side
            return _LANES, 1 if near else 1 + _LANES * self.together.get(s, 1)
        if isinstance(s, Atomic):
            return self.atomic(s)
        if isinstance(s, If):
            return self.branch(s)
        if isinstance(s, (For, While)):
            return self.loop(s)
        return 0, 0

    def branch(self, s: If) -> tuple[float, float]:
        """Estimate a branch, both sides of which are taken as equally likely."""
        divergent, before = s.cond in self.divergent, self.at_work
        # A divergent branch runs both sides under masks, but updates of single lanes in those at work alone.
        self.at_work = before / 2 if divergent else before
        sides = [self.block(b) for b in (s.then, s.orelse)]
        self.at_work = before
        simd = sum(t for _, t in sides)
        return sum(a for a, _ in sides) / 2, simd if divergent else simd / 2

    def atomic(self, s: Atomic) -> tuple[float, float]:
        """Estimate an update: plain or atomic, to one element, adjacent ones, or any."""
        step = 1 if s in self.side_by_side else self.step(s.mem, s.index, self.lane)
        cost = 2 if self._plain(s) else _ATOMIC
        # Plain updates of consecutive elements are a vector load, an addition and a store.
        if step == 1 and cost == 2:
            return _LANES * cost, 2
        if step == 1:
            # So they are where the launch has one thread; elsewhere idle lanes cost nothing.
            return _LANES * cost, _LANES * cost // 4
        if step == 0 and s.op == "add":
            return _LANES * cost, _SLOT_ADD_COST if s in self.meeting else 10 + cost
        if s in self.together and cost == 2:
            return _LANES * cost, 1 + _LANES * cost * self.together[s] * self.at_work
        return _LANES * cost, _LANES * (cost if s.exclusive else cost + 3) * self.at_work

    def share(self, group: Neighbours) -> float:
        """Return the part of one access that each of a group costs."""
        mem = group.accesses[0].mem
        inner = packed_strides(mem.dtype.shape, mem.component_stride)
        offsets = group.offsets([*_strides(mem), *inner])
        return len(group.pieces(offsets)) / len(offsets) if offsets else 1.0

    def loop(self, s: For | While) -> tuple[float, float]:
        """Estimate a loop, its invariant statements counted once."""
        # Invariant code counts once, since LLVM's LICM hoists it in either form.
        once = _invariant(s)
        before = self.block(Block(tuple(once)))
        scalar = simd = 0.0
        around = self.around
        self.around = (*around, s.index) if isinstance(s, For) else around
        for b in blocks(s):
            a, t = self.block(Block([x for x in b.stmts if x not in once]))
            scalar, simd = scalar + a, simd + t
        self.around = around
        vectorized = False
        if isinstance(s, While):
            divergent = s.cond.yields[0] in self.divergent
        else:
            divergent = s.lo in self.divergent or s.hi in self.divergent
            # The alternative is not scalar code then, but LLVM's own vectors along the inner loop.
            vectorized = self.vectorized(s)
            if vectorized:
                scalar /= _INNER_SPEEDUP
        trips = _trip_count(s)
        # Divergent trip counts: lanes that are done wait, masked, for the longest one.
        simd *= _WAIT if divergent and self.waits(s) else 1
        scalar, simd = before[0] + trips * scalar, before[1] + trips * simd
        if isinstance(s, For) and vectorized and self.may_run_by_lane(s):
            # Lane after lane, as without vectors, but that each reads its values from memory.
            alone = scalar + _LANES * _ENTER_LANE
            if alone < simd:
                self.by_lane.append(s)
                simd = alone
        return scalar, simd

    def waits(self, s: For | While) -> bool:
        """Whether lanes wait in a loop itself, not only in those inside it.

        Loops around others go over cells, of which nearly all lanes have as many. Those that fill lists gain
        nothing as vectors: an element for each lane is stored anywhere.
        """
        found = list(statements(s.body))
        within = any(isinstance(x, (For, While)) for x in found)
        return not within or any(isinstance(x, Store) for x in found)

    def may_run_by_lane(self, s: For) -> bool:
        """Whether the lanes may run a loop one after the other, and it has iterations for vectors."""
        # Scratch is laid out for vectors of lanes.
        own = all(x.mem.kind != "scratch" for x in s.body.stmts if isinstance(x, _ACCESSES))
        return own and _trip_count(s) >= _INNER_SPEEDUP

    def vectorized(self, s: For) -> bool:
        """Whether LLVM vectorizes a loop itself.

        It carries nothing but sums from iteration to iteration, and finds nothing in memory that another
        iteration has stored.
        """
        sums = {x.out for x in s.body.stmts if isinstance(x, Let) and x.op.name == "accumulate"}
        kept = (y is p or y in sums for p, y in zip(s.params, s.body.yields, strict=True))
        once = _invariant(s)
        inside = {s.index, *s.params}.union(*(outs(x) for x in s.body.stmts if x not in once))
        near = (
            isinstance(x, Let)
            or (isinstance(x, (Load, Store)) and self.is_near(x, s.index, inside))
            or (isinstance(x, Atomic) and self._plain(x) and self.is_near(x, s.index, inside))
            for x in s.body.stmts
        )
        return all(kept) and all(near) and not self.recurs(s)

    def recurs(self, s: For) -> bool:
        """Whether an iteration of a loop may find in memory what another one has stored: `x[i, j - 1]`."""
        found = [x for x in s.body.stmts if isinstance(x, _ACCESSES)]
        writes = [x for x in found if not isinstance(x, Load)]
        pairs = [(x, w) for w in writes for x in found if x.mem is w.mem]
        same = (*self.task.axes, *self.around)
        return len(pairs) > MOST_PAIRS or any(
            not distances(self.task, x, w, same, guarded=False).same((s.index,)) for x, w in pairs
        )

    def is_near(
        self, s: Load | Store | Atomic, along: Value, inside: Container[Value] | None = None
    ) -> bool:
        """Whether neighbours along a loop are close together: LLVM loads them together.

        `inside`: the values that the loop binds, all others being the same in each of its iterations.
        """
        step = self.step(s.mem, s.index, along, inside)
        return step is not None and 0 <= step <= _NEAR

    def _plain(self, s: Atomic) -> bool:
        return s.exclusive or s in self.private

    def step(
        self,
        mem: Mem,
        index: tuple[Value, ...],
        along: Value,
        inside: Container[Value] | None = None,
    ) -> int | None:
        """Return how many scalars apart neighbours along a loop are; None: not a constant."""
        # Scratch is laid out with the lanes side by side.
        if mem.kind == "scratch":
            return 1
        strides = _strides(mem)
        total = 0
        for i, stride in zip(index[: mem.rank], strides, strict=True):
            found = self.forms.form(i)
            if found is None:
                if i not in (self.divergent if along is self.lane else inside or (i,)):
                    continue
                return None
            total += found.get(along, 0) * stride
        if any(i in self.divergent for i in index[mem.rank :]):
            return None
        return total


def _invariant(s: For | While) -> set[Stmt]:
    """Return the loop-invariant statements, which LLVM hoists out of the loop."""
    inner = [x for b in blocks(s) for x in statements(b)]
    written = {x.mem for x in inner if isinstance(x, (Store, Atomic))}
    changing = {*s.params, *(v for x in inner for v in outs(x))}
    if isinstance(s, For):
        changing.add(s.index)
    found: set[Stmt] = set()
    for x in s.body.stmts:
        movable = isinstance(x, Let) or (isinstance(x, Load) and x.mem not in written)
        if movable and changing.isdisjoint(uses(x)):
            changing.difference_update(outs(x))
            found.add(x)
    return found


def _strides(mem: Mem) -> tuple[int, ...]:
    if mem.shape is None and mem.strides is None:
        return (_FAR,) * (mem.rank - 1) + (size_of(mem.dtype),) * (mem.rank > 0)
    return strides_of(mem)


def _trip_count(s: For | While) -> int:
    if isinstance(s, For) and isinstance(s.lo, Const) and isinstance(s.hi, Const):
        return max(0, int(s.hi.value) - int(s.lo.value))
    return _UNKNOWN_TRIP_COUNT
