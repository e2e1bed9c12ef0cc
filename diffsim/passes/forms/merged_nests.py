"""Merged nests: a loop whose body is one more loop becomes a loop over the box of both.

    parallel %i in 1..n {                    parallel %i in 1..n, %j in 1..m {
      for %j in 1..m {               ->        ... y[%i, %j] = x[%i - 1, %j] ...
        ... y[%i, %j] = x[%i - 1, %j] ...    }
      }
    }

Then the inner iterations are lanes, too: they run in parallel, as vectors, and their adjoint may be gathered.

Assumes any kernel. Promises: each iteration computes the same from the same numbers. A nest is merged if its
inner loop carries nothing, its bounds do not depend on the outer one, and the dependence test proves that no
iteration of a lane touches what another one writes. Sums count as writes, so their order stays. Nests whose
box would be no better stay, too: short inner loops, and those that read an element in many iterations, as
`y[i, j] = a[i] * x[i, j]` does: its adjoint sums a.grad[i] in the lane, and boxes would share the element.
"""

from __future__ import annotations

from collections.abc import Iterable

from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Const,
    For,
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
from diffsim.ir.op import Math
from diffsim.ir.traversal import Rewriter, outs, statements, uses
from diffsim.passes.analysis.affine import offset_of, task_definitions
from diffsim.passes.analysis.dependence import Access, accesses_of, distances
from diffsim.passes.analysis.divergence import is_steady
from diffsim.passes.analysis.index_forms import index_forms

_FEWEST_LANES = 16  # a shorter row is unrolled where it stands
_MOST_AGAIN = 16  # statements before the inner loop, which each of its iterations repeats


def merge_nests(kernel: Kernel) -> Kernel:
    """Return the kernel with perfect nests of independent iterations as loops over boxes."""
    tasks = tuple([_merged(t) for t in kernel.tasks])
    same = all(a is b for a, b in zip(tasks, kernel.tasks, strict=True))
    return kernel if same else kernel.replace(tasks=tasks)


def _merged(task: Task) -> Task:
    """Return a task with as many of its loops merged as can be."""
    while (inner := _only_loop(task)) is not None:
        nest = _Nest(task, inner)
        if not (nest.is_rectangular() and nest.pays() and nest.is_independent()):
            break
        task = nest.merged()
    return task


def _only_loop(task: Task) -> For | None:
    """Return the loop that a task's lanes consist of, but for values computed before it."""
    stmts = task.body.stmts
    if not task.axes or task.reductions or not stmts or task.active is not None:
        return None
    *before, last = stmts
    if not isinstance(last, For) or last.params or last.reverse or len(before) > _MOST_AGAIN:
        return None
    if not all(_is_repeatable(s, task) for s in before):
        return None
    # What is printed is shown in the order of the loops; and nobody knows what foreign code does.
    shown = any(isinstance(s, (Print, InlineLLVM)) for s in statements(last.body, given=True))
    return None if shown else last


def _is_repeatable(s: Stmt, task: Task) -> bool:
    """Whether each inner iteration finds the same by a statement, at little cost."""
    if isinstance(s, Load):
        return is_steady(task, s.mem)
    return isinstance(s, Let) and not isinstance(s.op.lowering, Math)


class _Nest:
    """A task and the one loop in it."""

    def __init__(self, task: Task, inner: For) -> None:
        self.task = task
        self.inner = inner
        self.defs = task_definitions(task)
        self.before = task.body.stmts[:-1]

    # ---- whether it may be merged

    def is_rectangular(self) -> bool:
        """Whether the inner bounds are the same in all lanes, and can be known before the lanes start."""
        return self._for_bounds() is not None

    def _for_bounds(self) -> list[Stmt] | None:
        """Return what computes the inner bounds, in order; None if it is not launch-wide."""
        bound = {v: s for s in self.before for v in outs(s)}
        needed: set[Stmt] = set()
        work = [self.inner.lo, self.inner.hi]
        while work:
            v = work.pop()
            if isinstance(v, LEAVES):
                continue
            if v not in bound:  # an axis
                return None
            needed.add(bound[v])
            work += uses(bound[v])
        return [s for s in self.before if s in needed]

    def is_independent(self) -> bool:
        """Whether no iteration of a lane touches an element that another one of this lane writes."""
        found: dict[Mem, list[Access]] = {}
        for s in accesses_of(self.task):
            found.setdefault(s.mem, []).append(s)
        return all(map(self._apart, found.values()))

    def _apart(self, accesses: list[Access]) -> bool:
        """Whether accesses to one memory are to the same element in one iteration only."""
        return all(
            distances(self.task, a, b, self.task.axes).same([self.inner.index])
            for k, a in enumerate(accesses)
            for b in accesses[k:]
            if not (isinstance(a, Load) and isinstance(b, Load))
        )

    # ---- whether it should be

    def pays(self) -> bool:
        """Whether the box is a better loop than the nest."""
        return (
            self._is_long(self.inner.lo, self.inner.hi)
            and self._order() is not None
            and all(map(self._is_shared_by_all_or_none, self._floats_read()))
        )

    @staticmethod
    def _is_long(lo: Value, hi: Value) -> bool:
        known = isinstance(lo, Const) and isinstance(hi, Const)
        return not known or int(hi.value) - int(lo.value) >= _FEWEST_LANES  # type: ignore[attr-defined]

    def _floats_read(self) -> Iterable[Load]:
        loads = (s for s in statements(self.task.body, given=True) if isinstance(s, Load))
        return (s for s in loads if s.mem.dtype.scalar.is_float and s.mem.kind != "temp")

    def _is_shared_by_all_or_none(self, load: Load) -> bool:
        """Whether an element belongs to one iteration of the box, or to all of them."""
        loops = {*self.task.axes, self.inner.index}
        forms = index_forms(self.task)
        met: set[Value] = set()
        for i in load.index:
            form = forms.form(i)
            # What is looked up may be anybody's element, in the nest as in the box.
            if form is None:
                return True
            met |= forms.loops_of(form)
        return not met & loops or loops <= met

    def _order(self) -> tuple[Value, ...] | None:
        """Return the axes of the box, neighbours in memory along the last one; None: these are too few."""
        loops = (*self.task.axes, self.inner.index)
        for s in statements(self.inner.body):
            if isinstance(s, (Store, Atomic)) and s.mem.rank:
                last = offset_of(s.index[s.mem.rank - 1], self.defs)[0]
                if last is self.inner.index:
                    return loops
                if last in self.task.axes:
                    return self._with_last(last)
        return loops

    def _with_last(self, axis: Value) -> tuple[Value, ...] | None:
        lo, hi = self._limits()[axis]
        others = [v for v in self.task.axes if v is not axis]
        return (*others, self.inner.index, axis) if self._is_long(lo, hi) else None

    # ---- merging

    def _limits(self) -> dict[Value, tuple[Value, Value]]:
        ends = iter(self.task.bounds.yields)
        return dict(zip(self.task.axes, zip(ends, ends, strict=True), strict=True))

    def merged(self) -> Task:
        """Return the loop over the box."""
        needed, axes = self._for_bounds(), self._order()
        assert needed is not None
        assert axes is not None
        copy = Rewriter()
        bounds = [*self.task.bounds.stmts, *(copy.copy(s) for s in needed)]
        limits = self._limits()
        limits[self.inner.index] = copy.value(self.inner.lo), copy.value(self.inner.hi)
        ends = tuple(v for axis in axes for v in limits[axis])
        body = Block([*self.before, *self.inner.body.stmts], self.task.body.yields)
        return self.task.replace(axes=axes, bounds=Block(bounds, ends), body=body)
