"""Loop interchange: the axes of a box in an order in which neighbouring lanes are neighbours in memory.

    parallel %i in 0..n, %j in 0..m {          parallel %j in 0..m, %i in 0..n {
      ... y[%i, %j] = x[%i + 1, %j] ...   ->      ... y[%i, %j] = x[%i + 1, %j] ...
    }                                           }

where x and y are stored column by column. Loops over a field follow its memory anyway
(`iteration_spaces.py`); this is for `ds.ndrange`, and for nests that have become boxes.

Assumes any kernel. Promises: the same lanes, each of which does the same, and the same results to the last
bit but for sums over all lanes, whose order is free. Tasks stay as they are if something would show the order
of lanes: if they print, use what an update returned, store or add to one element in several lanes, or access
an element that another lane may write.
"""

from __future__ import annotations

from diffsim.ir.layout import strides_of
from diffsim.ir.nodes import (
    Arg,
    Atomic,
    Const,
    Dim,
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
from diffsim.ir.traversal import iterations, statements
from diffsim.ir.types import size_of
from diffsim.passes.analysis.affine import AffineForms, affine_forms, element_of, task_definitions
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.vectors.packing import find_packed

_FAR = 16  # scalars, the length of a line of the cache: farther apart is no worse
_FREE = ("add", "min", "max")  # updates that commute
_FEWEST_LANES = 8  # of the last axis, or they are no vectors
_CACHE = 1 << 19  # bytes of the second level's cache that a pass along the last axis may fill


def order_loops(kernel: Kernel) -> Kernel:
    """Return the kernel with the axes of boxes in the order of what their lanes access."""
    tasks = tuple([_ordered(t) for t in kernel.tasks])
    same = all(a is b for a, b in zip(tasks, kernel.tasks, strict=True))
    return kernel if same else kernel.replace(tasks=tasks)


def _ordered(task: Task) -> Task:
    """Return a task with the best of its axes as the last one."""
    if len(task.axes) < 2 or task.active is not None or task.written or task.reductions:
        return task
    found = list(statements(task.body, given=True))
    if any(isinstance(s, (Print, InlineLLVM)) for s in found):
        return task
    costs = _Costs(task, found)
    last = task.axes[-1]
    best = min(reversed(task.axes), key=costs.of)
    if best is last or costs.of(best) >= costs.of(last) or _extent(task, best) < _FEWEST_LANES:
        return task
    if _is_packed_better(task, costs, best):
        return task
    return _with_last(task, best) if costs.fits(best) and not costs.show_order() else task


def _is_packed_better(task: Task, costs: _Costs, best: Value) -> bool:
    """Whether a copy of a small table mends what is far apart along the last axis.

    A convolution's weights are far apart along its channels, `w[o, c, a, b]`, and the elements of its picture
    along its pixels, `x[i, j, c]`. Either is accessed as often as the other, but the weights are packed.
    """
    last = task.axes[-1]
    if _extent(task, last) < _FEWEST_LANES:
        return False
    packed = {s for p in find_packed(task) for s in p.loads}
    counts = [(s, n) for s, n in iterations(task.body).items() if isinstance(s, Access)]
    here, there = (
        {s: n for s, n in counts if costs.step(s, axis) not in (0, 1)} for axis in (last, best)
    )
    left = sum(n for s, n in here.items() if s not in packed)
    return left < sum(here.values()) <= sum(there.values())


def _axes_of_loaded(task: Task, found: list[Stmt]) -> dict[Value, frozenset[Value]]:
    """Return along which axes values may vary that loads decide: what `row = pick[b]` is does along b alone.

    Values that are not in the result may along all: those that a branch or an iteration yields. So may those
    that arithmetic alone makes: `j % 8` is near its neighbour along j, if at no constant distance.
    """
    everywhere = frozenset(task.axes)
    axes = {a: frozenset([a]) for a in task.axes}
    loaded: dict[Value, frozenset[Value]] = {}
    for s in found:
        if isinstance(s, Let):
            out, sources = s.out, s.args
        elif isinstance(s, Load):
            out, sources = s.out, s.index
        elif isinstance(s, For):
            out, sources = s.index, (s.lo, s.hi)
        else:
            continue
        varying = [v for v in sources if not isinstance(v, (Arg, Const, Dim))]
        axes[out] = frozenset[Value]().union(*(axes.get(v, everywhere) for v in varying))
        if isinstance(s, Load) or not loaded.keys().isdisjoint(varying):
            loaded[out] = axes[out]
    return loaded


def _with_last(task: Task, axis: Value) -> Task:
    """Return a task with its axes in another order; the program's indices keep theirs."""
    axes = (*(a for a in task.axes if a is not axis), axis)
    places = [task.axes.index(a) for a in axes]
    ends = tuple(v for k in places for v in task.bounds.yields[2 * k : 2 * k + 2])
    bounds = type(task.bounds)(task.bounds.stmts, ends)
    written = tuple(axes.index(a) for a in task.axes)
    return task.replace(axes=axes, bounds=bounds, written=written)


def _extent(task: Task, axis: Value) -> int:
    """Return the number of lanes along an axis, or enough where it is not known."""
    k = task.axes.index(axis)
    lo, hi = task.bounds.yields[2 * k : 2 * k + 2]
    known = isinstance(lo, Const) and isinstance(hi, Const)
    return int(hi.value) - int(lo.value) if known else _FEWEST_LANES  # type: ignore[attr-defined]


class _Costs:
    """How far apart in memory the accesses of neighbouring lanes are, by the axis along which they are."""

    def __init__(self, task: Task, found: list[Stmt]) -> None:
        self.task = task
        self.found = found
        self.accesses = [s for s in found if isinstance(s, (Load, Store, Atomic))]
        self.loaded: dict[Value, frozenset[Value]] | None = None
        self.forms: AffineForms = affine_forms(task)
        self.known: dict[Value, int] = {}

    def of(self, axis: Value) -> int:
        """Return the sum of the distances, each as far as it matters."""
        if axis not in self.known:
            self.known[axis] = sum(self.distance(s, axis) for s in self.accesses)
        return self.known[axis]

    def distance(self, s: Access, axis: Value) -> int:
        """Return how far apart two neighbours' accesses are, as far as it matters."""
        step = self.step(s, axis)
        return _FAR if step is None else min(abs(step), _FAR)

    def step(self, s: Access, axis: Value) -> int | None:
        """Return the distance between two neighbours' accesses in scalars; None: it is no constant."""
        total = 0
        for i, stride in zip(s.index, _strides(s.mem), strict=False):
            form = self.forms.form(i)
            if form is None and self.varies(i, axis):
                return None
            total += (form or {}).get(axis, 0) * stride
        return total

    def varies(self, v: Value, axis: Value) -> bool:
        """Whether a value may be another one for a neighbour along an axis."""
        if self.loaded is None:
            self.loaded = _axes_of_loaded(self.task, self.found)
        return v not in self.loaded or axis in self.loaded[v]

    def fits(self, axis: Value) -> bool:
        """Whether what a pass along an axis accesses is in the cache when the next pass accesses it again.

        A next pass does so where it is less than a line of the cache away. An extent that is not known is
        taken for a small one.
        """
        others = [a for a in self.task.axes if a is not axis]
        kept: dict[Mem, int] = {}
        for s in self.accesses:
            if any(self.distance(s, a) < _FAR for a in others):
                bytes_ = self.distance(s, axis) * s.mem.dtype.scalar.bytes
                kept[s.mem] = max(kept.get(s.mem, 0), bytes_)
        return _extent(self.task, axis) * sum(kept.values()) <= _CACHE

    def show_order(self) -> bool:
        """Whether results may depend on which of the lanes runs first."""
        defs = task_definitions(self.task)
        elements: dict[Mem, set[object]] = {}
        for s in self.accesses:
            elements.setdefault(s.mem, set()).add(element_of(s.index[: s.mem.rank], defs))
        writes = [s for s in self.accesses if not isinstance(s, Load)]
        return any(isinstance(s, Atomic) and s.out is not None for s in writes) or not all(
            len(elements[s.mem]) == 1 and (self.is_own(s) or self.is_sum_of_all(s)) for s in writes
        )

    def is_sum_of_all(self, s: Access) -> bool:
        """Whether all lanes add to one 0-D element (or take its minimum), which none of them loads."""
        updates = [a for a in self.accesses if a.mem is s.mem]
        return not s.mem.rank and all(isinstance(a, Atomic) and a.op in _FREE for a in updates)

    def is_own(self, s: Access) -> bool:
        """Whether no two lanes access the same element: each axis is alone in a component of the index."""
        loops = self.forms.ranges.keys()
        alone: set[Value] = set()
        for i in s.index[: s.mem.rank]:
            form = self.forms.form(i) or {}
            found = [v for v, n in form.items() if v in loops and n]
            alone.update(v for v in found if v is not None and len(found) == 1)
        return alone.issuperset(self.task.axes)


def _strides(mem: Mem) -> tuple[int, ...]:
    """Return the distances in scalars between neighbours along each axis, as far as they are known."""
    if mem.shape is None:
        return (*[_FAR] * (mem.rank - 1), size_of(mem.dtype))
    return strides_of(mem)
