"""Mirrored windows: rewrites loops that add to elements around a lane to collect for an element's own lane.

The adjoint of a convolution adds to what the window of a lane covers, for each of its channels. All lanes
along %o add to the same elements, as do those of overlapping windows. With the variables changed, from lanes
(%i, %o) and iterations (%a, %c) to elements (%k, %c) and iterations (%a, %o), each lane adds to one element,
in a register, and what was a sum over neighbouring lanes is an addition of vectors:

    parallel %i in 0..n, %o in 0..8 {             parallel %k in 0..n, %c in 0..8 {
      %g: f32 = load y.grad[%i, %o]                 %t = for %a in 0..3 carry (%sum = 0.0) {
      store y.grad[%i, %o], 0.0                       %i = sub %k, %a
      for %c in 0..8 {                                if 0 <= %i and %i < n {
        for %a in 0..3 {                    ->          for %o in 0..8 { ... accumulate y.grad[%i, %o] * w }
          %k = add %i, %a                             }
          if %k < n {                               }
            atomic_add x.grad[%k, %c], %g * w       atomic_add x.grad[%k, %c], %t
          }                                       }
        }                                         parallel %i, %o { store y.grad[%i, %o], 0.0 }
      }
    }

Assumes any kernel. Promises: the same sums, in another order. An addition is rewritten if

- each component of its index is an axis times a constant, plus loops around it times constants; or one of
  these loops, which then is an axis; or the same in the whole launch. No axis or loop is in two of them so;
- all bounds are constants, and some axis, a short one, is in no component: it becomes a loop;
- its value, and the branches around it, are made of loads and arithmetic alone. Loads find what was there
  before the task.

What a lane computes at length before its loops (a rectifier's input, a derivative of tanh) cannot be computed
again for each element. Where the lane clears an element of its own behind it, such as y.grad[%i, %o], the
value is stored there for the sums, and the element is cleared by a task that runs after them. Sums of such
values run after the task, the others before it, where elements still hold what lanes load: one element may
need both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    CustomCall,
    For,
    If,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import (
    Rewriter,
    blocks,
    outs,
    slow_parts,
    statements,
)
from diffsim.passes.analysis.affine import (
    affine_forms,
    element_of,
    offset_of,
    runs_along_memory,
    task_definitions,
)
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.analysis.guarded_updates import reads
from diffsim.passes.analysis.regions import Region, disjoint, region_of_index
from diffsim.passes.vectors.invariant_carries import without_invariant_carries
from diffsim.passes.vectors.mirrored_sums import Place, Plan, Site, Source, Sum

_FEWEST_LANES = 8  # along an element's last axis: one vector
_MOST_SUMMED = 64  # lanes that become iterations
_MOST_OPS = 4  # of a lane that each element computes again rather than loads
_MOST_INNER_OPS = 12  # of an iteration
_MORE_WORK = 2  # iterations of the sums, times those of the loops


def mirror_windows(kernel: Kernel) -> Kernel:
    """Return the kernel with sums over windows and channels made by the element."""
    tasks = [t for task in kernel.tasks for t in _mirrored(kernel, task)]
    same = len(tasks) == len(kernel.tasks)
    return kernel if same else kernel.replace(tasks=tuple(tasks))


def _mirrored(kernel: Kernel, task: Task) -> list[Task]:
    """Return the tasks that replace one, or the task as it is: of loops that carry less, others are made."""
    plain = without_invariant_carries(task)
    made = _Mirror(kernel, plain).tasks()
    return [task] if made == [plain] else made


def _sites(block: Block, path: tuple[tuple[For | If, Block], ...] = ()) -> Iterator[Site]:
    """Yield the additions of a block that no `while` is around."""
    for s in block.stmts:
        if isinstance(s, Atomic) and s.op == "add" and s.out is None:
            yield Site(s, path)
        elif isinstance(s, (For, If)):
            for b in blocks(s):
                yield from _sites(b, (*path, (s, b)))


class _Mirror:
    """Rewrites one task."""

    def __init__(self, kernel: Kernel, task: Task) -> None:
        self.builder = Builder(kernel.span)
        self.task = task

    def tasks(self) -> list[Task]:
        """Return the task itself, or those that replace it."""
        task = self.task
        if not task.axes or task.reductions or task.active is not None:
            return [task]
        inside = list(statements(task.body, given=True))
        if not any(isinstance(s, For) for s in inside):
            return [task]
        if any(isinstance(s, (Check, Print, InlineLLVM, CustomCall)) for s in inside):
            return [task]
        self.forms, self.defs = affine_forms(task), task_definitions(task)
        self.axes = dict(zip(task.axes, _pairs(task.bounds.yields), strict=True))
        self.accesses: dict[Mem, list[tuple[Access, Region]]] = {}
        for s in inside:
            if isinstance(s, (Load, Store, Atomic)):
                self.accesses.setdefault(s.mem, []).append((s, self.region(s)))
        found: dict[tuple[Mem, Region], list[Site]] = {}
        for site in _sites(task.body):
            found.setdefault((site.stmt.mem, self.region(site.stmt)), []).append(site)
        self.keeps: dict[Value, Store] = {}
        self.source = Source(self.builder, self.defs, self.forms, self.axes, self.keeps)
        before: list[Task] = []
        after: list[Task] = []
        gone: set[Atomic] = set()
        for sites in found.values():
            plans = self.plans(sites)
            # A kept value is known only after the task; what a lane loads and then clears, only before.
            kept = [p for p in plans if p.kept is not None]
            plain = [p for p in plans if p.kept is None]
            after += [self.collect(kept)] if kept else []
            before += [self.collect(plain)] if plain else []
            gone |= {site.stmt for site in sites} if plans else set()
        if not gone:
            return [task]
        return [
            *before,
            task.replace(body=_Left(gone, self.keeps).block(task.body)),
            *after,
            *self.clears(),
        ]

    def region(self, s: Access) -> Region:
        """Return where an access stays, components included: x[i][0] and x[i][1] are two sums."""
        return region_of_index(s.index, self.defs)

    def meeting(self, s: Access) -> list[Access]:
        """Return the accesses of the task, this one included, that may be of elements like those of one."""
        region = self.region(s)
        return [x for x, other in self.accesses[s.mem] if not disjoint(region, other)]

    def plans(self, sites: list[Site]) -> list[Plan]:
        """Return how the additions to a memory are collected; empty: they stay."""
        mem, others = sites[0].stmt.mem, self.meeting(sites[0].stmt)
        if (
            not mem.is_shaped
            or mem.shape is None
            or mem.place is not None
            or len(others) > len(sites)
        ):
            return []
        before = dict(self.keeps)
        found: list[Plan] = []
        for site in sites:
            plan = self.plan(site)
            if plan is None or [p.at for p in plan.places] != [
                p.at for p in (found or [plan])[0].places
            ]:
                self.restore(before)
                return []
            found.append(plan)
        if self.pays(found):
            return found
        self.restore(before)
        return []

    def restore(self, keeps: dict[Value, Store]) -> None:
        self.keeps.clear()
        self.keeps.update(keeps)

    def pays(self, plans: list[Plan]) -> bool:
        """Whether neighbours are a vector, and there are about as many iterations as before."""
        box = self.box(plans)
        if box[-1][1] - box[-1][0] < _FEWEST_LANES or not any(p.summed for p in plans):
            return False
        elements = math.prod(hi - lo for lo, hi in box)
        lanes = math.prod(map(_extent, self.axes.values()))
        now = then = 0
        for p in plans:
            loops = [_extent((s.lo, s.hi)) for s, _ in p.site.path if isinstance(s, For)]
            then += lanes * math.prod(loops)
            summed = math.prod(_extent(self.axes[a]) for a in p.summed)
            if summed > _MOST_SUMMED:
                return False
            # Of a window in steps most distances meet no lane: left out, or tested before inner loops.
            steps = math.prod(place.factor for place in p.places)
            now += elements * math.prod(_extent((s.lo, s.hi)) for s in p.inner) * summed // steps
        return now <= _MORE_WORK * then

    # ---- one addition

    def plan(self, site: Site) -> Plan | None:
        """Return how one addition is collected, or None."""
        s = site.stmt
        loops = {x.index: x for x, _ in site.path if isinstance(x, For)}
        bounds = [*self.axes.values(), *((x.lo, x.hi) for x in loops.values())]
        if not all(isinstance(end, Const) for pair in bounds for end in pair):
            return None
        if s.value.type.scalar is not s.mem.dtype.scalar or s.value.type.scalar.for_storage:
            return None
        places = self.places(s, loops)
        if not places or any(runs_along_memory(x, self.forms) for x in loops.values()):
            return None
        variables = {p.variable for p in places}
        inner = tuple([x for v, x in loops.items() if v not in variables])
        summed = tuple([a for a in self.axes if a not in variables])
        found = self.levels(site, {s.index[p.at] for p in places})
        if found is None:
            return None
        return Plan(site, tuple(places), inner, summed, *found)

    def places(self, s: Atomic, loops: dict[Value, For]) -> list[Place] | None:
        """Return the components of an index that become axes; None: it is not such an index."""
        found: list[Place] = []
        for k, i in enumerate(s.index):
            form = {v: n for v, n in (self.forms.form(i) or {i: 1}).items() if n}
            inside = [v for v in form if v is not None and not isinstance(v, LEAVES)]
            if not inside:
                # What tells regions apart: all additions that are collected together have it in common.
                base, _ = offset_of(i, self.defs)
                if base is not None and not isinstance(base, Arg):
                    return None
                continue
            if k >= s.mem.rank or any(v is not None and v not in inside for v in form):
                return None
            own = [v for v in inside if v in self.axes] or inside
            if len(own) != 1 or any(v not in self.axes and v not in loops for v in inside):
                return None
            v = own[0]
            rest = {x: n for x, n in form.items() if x is not v}
            if form[v] < 1 or (v in loops and form[v] != 1) or v in {p.variable for p in found}:
                return None
            found.append(Place(k, v, form[v], rest))
        return found

    def levels(
        self, site: Site, given: set[Value]
    ) -> tuple[tuple[tuple[Stmt, ...], ...], Value | None] | None:
        """Return what is computed again in each block on the way, and the value of the lane that is not."""
        needed: set[Value] = {site.stmt.value}
        ends = [site.stmt, *(s for s, _ in reversed(site.path))]
        way = [*(b for _, b in reversed(site.path)), self.task.body]
        found: list[tuple[Stmt, ...]] = []
        kept: Value | None = None
        for end, block in zip(ends, way, strict=True):
            if isinstance(end, If):
                needed.add(end.cond)
            if isinstance(end, For) and not needed.isdisjoint(end.params):
                return None
            stmts = block.stmts[: block.stmts.index(end)]
            again = self.again(stmts, needed, given)
            if block is self.task.body and not self.is_cheap(again, _MOST_OPS):
                kept = self.keep(stmts, again, needed)
                if kept is None:
                    return None
                again = self.again(stmts, needed, {*given, kept})
            if not self.is_cheap(again, _MOST_INNER_OPS):
                return None
            needed.update(v for s in again for v in reads(s))
            found.append(tuple(again))
        return tuple(reversed(found)), kept

    def again(self, stmts: Sequence[Stmt], needed: set[Value], given: set[Value]) -> list[Stmt]:
        """Return the statements that these values need."""
        work, chosen = needed - given, []
        for s in reversed(stmts):
            if not work.isdisjoint(outs(s)):
                chosen.append(s)
                work |= {v for v in reads(s) if v not in given}
        return chosen[::-1]

    def is_cheap(self, stmts: Sequence[Stmt], most: int) -> bool:
        """Whether statements are few operations and loads of what was there before the task."""
        left: float = most
        for s in stmts:
            left -= self.operations(s)
            if left < 0:
                return False
        return True

    def operations(self, s: Stmt) -> float:
        """Return how many operations a statement is; infinity: it is not of these and such loads alone."""
        inside = [s, *(x for b in blocks(s) for x in statements(b))]
        if not all(isinstance(x, (Let, Load, If)) and not slow_parts(x) for x in inside):
            return math.inf
        if not all(self.is_from_before(x) for x in inside if isinstance(x, Load)):
            return math.inf
        return sum(isinstance(x, Let) and not x.out.type.is_int for x in inside)

    def is_from_before(self, s: Load) -> bool:
        """Whether a load finds what was in the memory before the task."""
        return all(
            isinstance(x, Load) or (isinstance(x, Store) and self.is_own(x, s))
            for x in self.meeting(s)
        )

    def is_own(self, store: Store, load: Load) -> bool:
        """Whether a store is of the element that a lane has loaded before, which no other lane touches."""
        top = self.task.body.stmts
        if store not in top or load not in top or top.index(store) < top.index(load):
            return False
        if element_of(store.index, self.defs) != element_of(load.index, self.defs):
            return False
        return self.is_lanes_own(store)

    def is_lanes_own(self, store: Store) -> bool:
        """Whether each axis alone is a component of an index."""
        own = [offset_of(i, self.defs)[0] for i in store.index[: store.mem.rank]]
        return all(a in own for a in self.axes)

    def keep(self, stmts: Sequence[Stmt], again: list[Stmt], needed: set[Value]) -> Value | None:
        """Return a value of the lane that the sums load instead of computing it; None: none will do."""
        # The last one that leaves only cheap statements behind it.
        behind = 0.0
        for s in reversed(again):
            # They are computed again whichever value before them is kept, so that few are tried.
            if behind > _MOST_OPS:
                return None
            behind += self.operations(s)
            if not isinstance(s, (Let, Load)) or s.out.type.is_int:
                continue
            v = s.out
            left = self.again(stmts, needed, {v})
            loads = [x for x in left if isinstance(x, Load)]
            written = any(not isinstance(x, Load) for load in loads for x in self.meeting(load))
            if not written and self.is_cheap(left, _MOST_OPS):
                return v if self.place_for(v) is not None else None
        return None

    def place_for(self, v: Value) -> Store | None:
        """Return the store that clears the element in which a value is kept."""
        if v in self.keeps:
            return self.keeps[v]
        for s in self.task.body.stmts:
            if not isinstance(s, Store) or s in self.keeps.values() or s.mem.dtype is not v.type:
                continue
            others = [x for x in self.meeting(s) if x is not s]
            clears = isinstance(s.value, Const) and s.value.value == 0
            known = s.mem.is_shaped and s.mem.place is None and s.mem.kind == "field"
            bases = [offset_of(x, self.defs)[0] for x in s.index]
            plain = all(x is None or x in self.axes or isinstance(x, LEAVES) for x in bases)
            loads = all(isinstance(x, Load) and self.is_own(s, x) for x in others)
            if clears and known and plain and loads and self.is_lanes_own(s):
                self.keeps[v] = s
                return s
        return None

    # ---- rewriting

    def box(self, plans: list[Plan]) -> list[tuple[int, int]]:
        """Return the bounds of the elements that lanes add to, along each axis."""
        ends = []
        for k, place in enumerate(plans[0].places):
            shape = plans[0].site.stmt.mem.shape
            assert shape is not None
            found = [
                self.forms.interval({p.places[k].variable: p.places[k].factor, **p.places[k].rest})
                for p in plans
            ]
            lo = max(0, int(min(a for a, _ in found)))
            hi = min(shape[place.at], int(max(b for _, b in found)) + 1)
            ends.append((lo, max(lo, hi)))
        return ends

    def collect(self, plans: list[Plan]) -> Task:
        """Return the task that makes the sums of one memory."""
        b, first = self.builder, plans[0].site.stmt
        b.span = first.span
        box = self.box(plans)
        kind = self.task.axes[0].type
        axes = tuple([Value(kind, p.variable.hint) for p in plans[0].places])
        ends = tuple([Const(kind, n) for pair in box for n in pair])
        with b, b.block() as made:
            total = self.total(plans, axes, box)
            b.span = first.span
            given = dict(zip((p.at for p in plans[0].places), axes, strict=True))
            index = [
                b.cast(given[k], i.type.scalar) if k in given else self.source.placed(i, {})
                for k, i in enumerate(first.index)
            ]
            b.atomic("add", first.mem, tuple(index), total)
        return self.task.replace(axes=axes, bounds=Block([], ends), body=Block(made), written=())

    def total(
        self, plans: list[Plan], axes: tuple[Value, ...], box: list[tuple[int, int]]
    ) -> Value:
        """Emit the sum of what all additions add to an element."""
        b = self.builder
        zero: Value = b.const(0, plans[0].site.stmt.value.type)
        total, plain = zero, True
        for p in plans:
            sum_ = Sum(self.source, p, axes, box, branches=False)
            total = sum_.emit(total)
            plain = plain and not sum_.without
        if plain:
            return total
        # 0 times something infinite: nothing would have been added.
        with b.block() as again:
            exact = zero
            for p in plans:
                exact = Sum(self.source, p, axes, box, branches=True).emit(exact)
        out = Value(total.type)
        b.add(
            If(
                b.named("ne", total, total),
                Block(again, (exact,)),
                Block([], (total,)),
                (out,),
                b.span,
            )
        )
        return out

    def clears(self) -> list[Task]:
        """Return the tasks that clear what values were kept in."""
        made = []
        for s in self.keeps.values():
            axes = tuple([Value(a.type, a.hint) for a in self.axes])
            env = dict(zip(self.task.axes, axes, strict=True))
            with self.builder as b, b.at(s.span), b.block() as stmts:
                index = tuple([self.source.placed(i, env) for i in s.index])
                stmts.append(Store(s.mem, index, s.value, s.span))
            made.append(self.task.replace(axes=axes, body=Block(stmts)))
        return made


class _Left(Rewriter):
    """Copies a body without these additions; some stores keep values in place of clearing."""

    def __init__(self, gone: set[Atomic], keeps: dict[Value, Store]) -> None:
        super().__init__()
        self.gone = gone
        self.keeps = keeps
        self.values_of = {s: v for v, s in keeps.items()}
        self.passed: set[Store | Value] = set()

    def stmt(self, s: Stmt) -> list[Stmt]:
        if s in self.gone:
            return []
        if isinstance(s, Store) and s in self.values_of:
            self.passed.add(s)
            return self.kept(self.values_of[s])
        made = [self.copy(s)]
        for v in outs(s):
            if v in self.keeps:
                self.passed.add(v)
                made += self.kept(v)
        return made

    def kept(self, v: Value) -> list[Stmt]:
        """Return the store of a value, once it is known and the element has been loaded."""
        s = self.keeps[v]
        return [self.copy(s.replace(value=v))] if {s, v} <= self.passed else []


def _pairs(ends: tuple[Value, ...]) -> list[tuple[Value, Value]]:
    return list(zip(ends[::2], ends[1::2], strict=True))


def _extent(ends: tuple[Value, Value]) -> int:
    lo, hi = ends
    assert isinstance(lo, Const)
    assert isinstance(hi, Const)
    return max(0, int(hi.value) - int(lo.value))
