"""Index-set splitting: a box whose neighbours wrap around, or stop, at faces becomes an interior and rims.

    parallel %i in 0..n {                     parallel %i in 0..n - 1 { ... x[%i + 1] ... }     (interior)
      %t: i32 = add %i, 1              ->     parallel %i in n - 1..n { ... x[0] ... }          (rim)
      %k: i32 = mod %t, n
      ... x[%k] ...
    }

In the interior `(i + 1) % n`, `min(i + 1, n - 1)` and `i + 1 if i < n - 1 else 0` are `i + 1`. So loads of
neighbours are next to each other in memory, and additions to them can be gathered (`scatter_to_gather`).

Assumes any kernel. Promises: each lane does the same; lanes have no order. A box is split where constants
alone tell the interior, at most a few lanes from its faces, and an index becomes (axis + constant) by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Atomic,
    Block,
    Check,
    Const,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Print,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import statements
from diffsim.passes.analysis.affine import Definitions, offset_of, task_definitions
from diffsim.passes.analysis.guarded_updates import KnownBranches, Ranges, range_of, truth

_WIDEST_RIM = 4  # lanes; beyond, the two parts are no interior and rim
_LEAST_INTERIOR = 16  # lanes along an axis that is cut
_MOST_CODE = 600  # statements of a body, which each of the parts has
_ROUNDS = 3
_COMPARED = frozenset(("mod", "min", "max", "lt", "le", "gt", "ge", "eq", "ne"))
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def split_interiors(
    kernel: Kernel, *, only_updates: bool = False
) -> tuple[Kernel, frozenset[Task]]:
    """Return the kernel with interiors and rims where neighbours at faces are elsewhere, and these rims.

    Args:
        kernel: any kernel.
        only_updates: whether to split only where indices of atomic updates become simpler.
    """
    parts = [_parts(task, only_updates=only_updates) for task in kernel.tasks]
    rims = frozenset(t for _, *others in parts for t in others)
    tasks = tuple(t for found in parts for t in found)
    return kernel.replace(tasks=tasks) if rims else kernel, rims


def _parts(task: Task, *, only_updates: bool) -> list[Task]:
    """Return the task itself, or its interior and rims."""
    whole = _constant_box(task)
    if whole is None or not _may_be_split(task):
        return [task]
    inside, first = _interior(task, whole)
    if inside == whole:
        return [task]
    kinds = (Atomic,) if only_updates else (Load, Store, Atomic)
    if _plain_accesses(first, kinds) <= _plain_accesses(task, kinds):
        return [task]
    return [first, *_rims(task, whole, inside)]


def _constant_box(task: Task) -> Ranges | None:
    """Return the first and last lane along each axis, if these are constants."""
    ends = task.bounds.yields
    if not task.axes or task.reductions or not all(isinstance(v, Const) for v in ends):
        return None
    numbers = [int(v.value) for v in ends]  # type: ignore[attr-defined]
    return {a: (numbers[2 * k], numbers[2 * k + 1] - 1) for k, a in enumerate(task.axes)}


def _may_be_split(task: Task) -> bool:
    """Whether lanes of other parts may run before or after."""
    # Of a sparse tree active elements alone have lanes.
    if task.active is not None:
        return False
    count = 0
    for s in statements(task.body, given=True):
        count += 1
        # What shows the order of lanes, and what would be allocated by each part.
        if isinstance(s, (Check, Print, Alloca, InlineLLVM)):
            return False
        if isinstance(s, Atomic) and s.out is not None:
            return False
    return count <= _MOST_CODE


def _interior(task: Task, whole: Ranges) -> tuple[Ranges, Task]:
    """Return the lanes between all faces, and the task for these."""
    inside, part = whole, task
    # What an outer remainder is of may only be known once the inner one is gone.
    for _ in range(_ROUNDS):
        defs = task_definitions(part)
        cuts = {
            a: _cuts(part, new, inside[a], defs)
            for a, new in zip(task.axes, part.axes, strict=True)
        }
        closer = {a: _between(inside[a], cuts[a]) for a in task.axes}
        if closer == inside:
            break
        inside, part = closer, _part(task, closer)
    return inside, part


def _cuts(task: Task, axis: Value, lanes: tuple[int, int], defs: Definitions) -> Iterator[int]:
    """Yield the lanes along an axis from which on a comparison, remainder or extreme is another."""
    for s in statements(task.body):
        if not isinstance(s, Let) or s.op.name not in _COMPARED:
            continue
        if s.args[0].type.shape or s.args[0].type.scalar.kind != "i":
            continue
        name, (a, b) = s.op.name, s.args
        if name != "mod" and isinstance(a, Const):
            name, a, b = _MIRRORED.get(name, name), b, a
        bound, at = offset_of(b, defs)
        base, shift = offset_of(a, defs)
        if base is axis and bound is None and range_of(a, defs, {axis: lanes}) is not None:
            yield from _changes(name, at, shift, lanes)


def _changes(name: str, at: int, shift: int, lanes: tuple[int, int]) -> Iterator[int]:
    """Yield the lanes near the ends from which on `name(lane + shift, at)` is of another form."""
    if name == "mod":
        # A loop over 2**31 lanes has too many periods to look at each.
        near = (lanes[0], lanes[0] + _WIDEST_RIM), (max(lanes[0], lanes[1] - _WIDEST_RIM), lanes[1])
        for low, high in near if at > 0 else ():
            yield from range(-((low + shift) // -at) * at - shift, min(high, lanes[1]) + 1, at)
        return
    if name in ("lt", "ge", "max", "eq", "ne"):
        yield at - shift
    if name in ("le", "gt", "min", "eq", "ne"):
        yield at - shift + 1


def _between(lanes: tuple[int, int], cuts: Iterable[int]) -> tuple[int, int]:
    """Return the lanes between the cuts that are close to either end."""
    first, last = lanes
    for cut in cuts:
        if lanes[0] < cut <= lanes[0] + _WIDEST_RIM:
            first = max(first, cut)
        elif lanes[1] - _WIDEST_RIM < cut <= lanes[1]:
            last = min(last, cut - 1)
    return (first, last) if last - first + 1 >= _LEAST_INTERIOR else lanes


def _rims(task: Task, whole: Ranges, inside: Ranges) -> Iterator[Task]:
    """Yield the slabs around the interior: earlier axes inside, later ones whole."""
    slab = dict(whole)
    for a in task.axes:
        (lo, hi), (first, last) = whole[a], inside[a]
        for part in ((lo, first - 1), (last + 1, hi)):
            if part[0] <= part[1]:
                yield _part(task, slab | {a: part})
        slab[a] = inside[a]


def _part(task: Task, lanes: Ranges) -> Task:
    """Return the task for these lanes alone, with what they tell of its values."""
    fold = _Fold(task, lanes)
    ends = (
        Const(v.type, n)
        for a, v in zip(task.axes, task.bounds.yields[::2], strict=True)
        for n in (lanes[a][0], lanes[a][1] + 1)
    )
    body = fold.block(task.body)
    return task.replace(axes=fold.axes, bounds=Block([], tuple(ends)), body=body)


def _plain_accesses(task: Task, kinds: tuple[type, ...]) -> int:
    """Return how many accesses have indices that are (axis + constant), or the same for all lanes."""
    defs = task_definitions(task)
    known = (None, *task.axes)
    return sum(
        all(
            base in known or isinstance(base, LEAVES)
            for base, _ in (offset_of(i, defs) for i in s.index[: s.mem.rank])
        )
        for s in statements(task.body)
        if isinstance(s, (Load, Store, Atomic)) and isinstance(s, kinds)
    )


class _Fold(KnownBranches):
    """Copies the body for some lanes: what is the same in all of them is not computed."""

    def __init__(self, task: Task, lanes: Ranges) -> None:
        super().__init__({}, {}, {})
        self.axes = self.fresh_all(task.axes)
        self.ranges = {new: lanes[old] for new, old in zip(self.axes, task.axes, strict=True)}
        self.builder = Builder(task.span)

    def condition(self, v: Value) -> bool | None:
        # Of the copy, whose definitions are known: what was folded is an axis plus a constant there.
        return truth(self.value(v), self.defs, self.ranges)

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, Let):
            return super().stmt(s)
        self.builder.span = s.span
        with self.builder, self.builder.block() as made:
            known = None if s.out.type.shape else self.folded(s)
        if known is not None:
            self.env[s.out] = known
        else:
            made = [self.copy(s)]
        self.defs.update({x.out: x for x in made if isinstance(x, Let)})
        return made

    def folded(self, s: Let) -> Value | None:
        """Return what an op gives in all lanes: one of its operands, plus a constant."""
        name, args = s.op.name, self.values(s.args)
        if name == "select":
            known = truth(args[0], self.defs, self.ranges)
            return None if known is None else args[1] if known else args[2]
        if name not in ("mod", "min", "max"):
            return None
        one, other = (range_of(v, self.defs, self.ranges) for v in args)
        if one is None or other is None:
            return None
        if name == "mod":
            n = other[0]
            if n <= 0 or n != other[1] or one[0] // n != one[1] // n:
                return None
            turns = one[0] // n
            return args[0] - turns * n if turns else args[0]
        if one[0] >= other[1]:
            return args[0] if name == "max" else args[1]
        if one[1] <= other[0]:
            return args[1] if name == "max" else args[0]
        return None
