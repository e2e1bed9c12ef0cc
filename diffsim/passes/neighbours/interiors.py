"""Index-set splitting: a box whose neighbours wrap around, or stop, at faces becomes an interior and rims.

    parallel %i in 0..n {                     parallel %i in 0..n - 1 { ... x[%i + 1] ... }     (interior)
      %t: i32 = add %i, 1              ->     parallel %i in n - 1..n { ... x[0] ... }          (rim)
      %k: i32 = mod %t, n
      ... x[%k] ...
    }

In the interior `(i + 1) % n`, `min(i + 1, n - 1)` and `i + 1 if i < n - 1 else 0` are `i + 1`. So loads of
neighbours are next to each other in memory, and additions to them can be gathered (`scatter_to_gather`).

Assumes any kernel. Promises: each lane does the same; lanes have no order. A box is split at most a few lanes
from its faces, where an index becomes (axis + constant) by that. Its faces are numbers, or arguments and
extents of arrays plus numbers: `n` may be known at the launch alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Arg,
    Atomic,
    Block,
    Check,
    Dim,
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
from diffsim.ir.simple_tasks import short_row
from diffsim.ir.traversal import statements
from diffsim.passes.analysis.affine import (
    Definitions,
    Element,
    Offset,
    Range,
    Ranges,
    distance,
    element_of,
    faces_of,
    is_face,
    less,
    number,
    offset_of,
    range_of,
    shifted,
    task_definitions,
    truth,
)
from diffsim.passes.analysis.guarded_updates import KnownBranches, emit_faces
from diffsim.passes.forms.equal_values import ValueNumbering

_WIDEST_RIM = 4  # lanes; beyond, the two parts are no interior and rim
_LEAST_INTERIOR = 16  # lanes along an axis that is cut
_MOST_CODE = 600
"""Statements of a body, which each of the parts has; values that are computed twice count once."""
_MOST_GUARDED = 150
"""Statements of a body that is split for the sake of loads in branches alone."""
_ROUNDS = 3
_COMPARED = frozenset(("mod", "min", "max", "lt", "le", "gt", "ge", "eq", "ne"))
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def split_interiors(
    kernel: Kernel,
    *,
    only_updates: bool = False,
    has_masks: bool = True,
    done: frozenset[Task] = frozenset(),
) -> tuple[Kernel, frozenset[Task]]:
    """Return the kernel with interiors and rims where neighbours at faces are elsewhere, and these rims.

    Args:
        kernel: any kernel.
        only_updates: whether to split only where indices of atomic updates become simpler.
        has_masks: whether loads of some lanes cost no more than those of all, if they are side by side.
        done: tasks that stay as they are.
    """
    parts = [
        [task]
        if task in done
        else parts_of(task, only_updates=only_updates, guards=not has_masks and not only_updates)
        for task in kernel.tasks
    ]
    rims = frozenset(t for _, *others in parts for t in others)
    tasks = tuple(t for found in parts for t in found)
    return kernel.replace(tasks=tasks) if rims else kernel, rims


def split_guarded_updates(kernel: Kernel) -> Kernel:
    """Return the kernel with a box of its own for lanes that all pass a branch which updates neighbours.

    Lanes side by side update rows at once, but in branches each update is made for itself. For tasks whose
    updates were not gathered. Only where no lane at a face updates neighbours: that is hardly more code.
    """
    tasks: list[Task] = []
    for k, task in enumerate(kernel.tasks):
        # Lanes that trail others (`Task.lag`) do so by their places in one box.
        trails = any(t.lag is not None for t in kernel.tasks[k : k + 2])
        tasks += [task] if trails else _inside_of_branches(task)
    return kernel.replace(tasks=tuple(tasks)) if len(tasks) > len(kernel.tasks) else kernel


def _inside_of_branches(task: Task) -> list[Task]:
    """Return the task itself, or the box whose lanes update neighbours, and its rims."""
    whole = _box(task) if _updates_in_branches(task) else None
    if whole is None or not _may_be_split(task):
        return [task]
    inside, first = _interior(task, whole)
    if inside == whole or _updates_in_branches(first):
        return [task]
    rims = list(_rims(task, whole, inside))
    return [task] if any(map(_updates_neighbours, rims)) else [first, *rims]


def parts_of(task: Task, *, only_updates: bool = False, guards: bool) -> list[Task]:
    """Return the task itself, or its interior and rims; `guards`: also to free scalars' loads of branches."""
    whole = _box(task)
    if whole is None or not _may_be_split(task):
        return [task]
    inside, first = _interior(task, whole)
    if inside == whole:
        return [task]
    kinds = (Atomic,) if only_updates else (Load, Store, Atomic)
    gains = _plain_accesses(first, kinds) > _plain_accesses(task, kinds)
    # Short rows without branches are aligned (`passes/vectors/aligned_rows.py`).
    gains = gains or (
        not only_updates and short_row(task) > 0 and _tests(first) == 0 < _tests(task)
    )
    # Components of vectors are not side by side: no processor loads some lanes of these as fast as all.
    gains = gains or (
        not only_updates
        and _guarded_loads(first, every=guards) < _guarded_loads(task, every=guards)
    )
    if not gains:
        return [task]
    return [first, *_rims(task, whole, inside)]


def _box(task: Task) -> Ranges | None:
    """Return the first and last lane along each axis, if these are launch-wide values plus constants."""
    ends = faces_of(task)
    if not task.axes or task.reductions or ends is None:
        return None
    return {a: (ends[2 * k], shifted(ends[2 * k + 1], -1)) for k, a in enumerate(task.axes)}


def _may_be_split(task: Task) -> bool:
    """Whether lanes of other parts may run before or after."""
    # Of a sparse tree active elements alone have lanes.
    if task.active is not None:
        return False
    values, found = ValueNumbering(), set[object]()
    for s in statements(task.body, given=True):
        found.add(_what(s, values))
        # What shows the order of lanes, and what would be allocated by each part.
        if isinstance(s, (Check, Print, Alloca, InlineLLVM)):
            return False
        if isinstance(s, Atomic) and s.out is not None:
            return False
    return len(found) <= _MOST_CODE


def _what(s: Stmt, values: ValueNumbering) -> object:
    """Return what a statement computes or loads, the same for those that compilers merge; else itself."""
    if isinstance(s, Let):
        return values.let(s)
    if isinstance(s, Load):
        # What is written between two loads is rarely what they load: a gather writes at its end.
        return values.computed(s.out, s.mem, *map(values.number, s.index))
    return s


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
        inside, part = closer, _part(task, whole, closer, closer)
    return inside, part


def _cuts(task: Task, axis: Value, lanes: Range, defs: Definitions) -> Iterator[Offset]:
    """Yield the lanes along an axis from which on a comparison, remainder or extreme is another."""
    for s in statements(task.body):
        if not isinstance(s, Let) or s.op.name not in _COMPARED:
            continue
        if s.args[0].type.shape or s.args[0].type.scalar.kind != "i":
            continue
        name, (a, b) = s.op.name, s.args
        if name == "mod":
            base, shift = up_to_periods(a, b, defs)
        else:
            if is_face(offset_of(a, defs)):
                name, a, b = _MIRRORED.get(name, name), b, a
            base, shift = offset_of(a, defs)
        face = offset_of(b, defs)
        if base is axis and is_face(face):
            yield from _changes(name, face, shift, lanes)


def up_to_periods(v: Value, n: Value, defs: Definitions) -> Offset:
    """Return a value as base + constant, up to multiples of a launch-wide value n: `i - 1 + n` is i - 1."""
    base, shift = offset_of(v, defs)
    while isinstance(n, (Arg, Dim)) and base is not None and (let := defs.get(base)) is not None:
        if let.op.name not in ("add", "sub") or n not in let.args:
            break
        a, b = let.args
        if b is not n and let.op.name == "sub":
            break
        base, more = offset_of(a if b is n else b, defs)
        shift += more
    return base, shift


def _changes(name: str, face: Offset, shift: int, lanes: Range) -> Iterator[Offset]:
    """Yield the lanes near the ends from which on `name(lane + shift, face)` is of another form."""
    if name == "mod":
        yield from _turns(face, shift, lanes)
        return
    if name in ("lt", "ge", "max", "eq", "ne"):
        yield shifted(face, -shift)
    if name in ("le", "gt", "min", "eq", "ne"):
        yield shifted(face, 1 - shift)


def _turns(period: Offset, shift: int, lanes: Range) -> Iterator[Offset]:
    """Yield the lanes near the ends at which `(lane + shift) % period` is 0."""
    unknown, n = period
    if unknown is not None:
        yield from (number(-shift), shifted(period, -shift)) if n == 0 else ()
        return
    # A loop over 2**31 lanes has too many periods to look at each.
    for k, (base, end) in enumerate(lanes):
        if base is None and n > 0:
            low = end - k * _WIDEST_RIM
            yield from map(
                number, range(-((low + shift) // -n) * n - shift, low + _WIDEST_RIM + 1, n)
            )


def _between(lanes: Range, cuts: Iterable[Offset]) -> Range:
    """Return the lanes between the cuts that are close to either end."""
    first, last = lanes
    for cut in cuts:
        above, below = distance(cut, lanes[0]), distance(lanes[1], cut)
        if above is not None and 0 < above <= _WIDEST_RIM:
            first = max(first, cut, key=lambda end: end[1])
        elif below is not None and 0 <= below < _WIDEST_RIM:
            last = min(last, shifted(cut, -1), key=lambda end: end[1])
    length = distance(last, first)
    return lanes if length is not None and length + 1 < _LEAST_INTERIOR else (first, last)


def _rims(task: Task, whole: Ranges, inside: Ranges) -> Iterator[Task]:
    """Yield the slabs around the interior: earlier axes whole, later ones inside.

    A row at a face has neighbours side by side then, and its ends are lanes of the columns.
    """
    slab = dict(whole)
    for a in reversed(task.axes):
        (lo, hi), (first, last) = whole[a], inside[a]
        if first != lo:
            yield _part(task, whole, inside, slab | {a: (lo, shifted(first, -1))})
        if last != hi:
            yield _part(task, whole, inside, slab | {a: (shifted(last, 1), hi)})
        slab[a] = inside[a]


def _part(task: Task, whole: Ranges, inside: Ranges, lanes: Ranges) -> Task:
    """Return the task for these lanes alone, with what they tell of its values."""
    b, ends = Builder(task.span), list[Value]()
    with b, b.block() as stmts:
        for a in task.axes:
            ends += _ends(b, a, whole[a], inside[a], lanes[a])
    fold = _Fold(task, lanes, whole)
    body = fold.block(task.body)
    return task.replace(axes=fold.axes, bounds=Block(stmts, tuple(ends)), body=body)


def _ends(
    b: Builder, axis: Value, whole: Range, inside: Range, lanes: Range
) -> tuple[Value, Value]:
    """Emit the first lane of a part along an axis, and the one behind its last."""
    if lanes in (whole, inside) or whole[0][0] is whole[1][0] is None:
        return emit_faces(b, axis, lanes[0], shifted(lanes[1], 1))
    # The box may be empty, or shorter than its rims: then it has no interior, and no lane is in two rims.
    lo, end = emit_faces(b, axis, whole[0], shifted(whole[1], 1))
    hi = b.named("max", lo, end)
    first = b.named("min", lo + (inside[0][1] - whole[0][1]), hi)
    if lanes[0] == whole[0]:
        return lo, first
    return b.named("max", first, hi - (whole[1][1] - inside[1][1])), hi


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


def _guarded_loads(task: Task, *, every: bool) -> int:
    """Return how many loads of vectors (`every`: of all) are in branches; 0: it updates, and is gathered."""
    found = list(statements(task.body))
    if len(found) > _MOST_GUARDED or any(isinstance(s, Atomic) for s in found):
        return 0
    sides = (b for s in found if isinstance(s, If) for b in (s.then, s.orelse))
    loads = [s for b in sides for s in b.stmts if isinstance(s, Load)]
    return sum(every or bool(s.mem.dtype.shape) for s in loads)


def _updates_in_branches(task: Task) -> bool:
    """Whether lanes update several elements of one memory in branches."""
    sides = (b for s in task.body.stmts if isinstance(s, If) for b in (s.then, s.orelse))
    return any(_several_updates(statements(b), task) for b in sides)


def _updates_neighbours(task: Task) -> bool:
    """Whether lanes update several elements of one memory."""
    return _several_updates(statements(task.body), task)


def _several_updates(inside: Iterable[Stmt], task: Task) -> bool:
    defs, found = task_definitions(task), dict[Mem, Element]()
    for s in inside:
        if isinstance(s, Atomic) and s.out is None:
            element = element_of(s.index, defs)
            if found.setdefault(s.mem, element) != element:
                return True
    return False


def _tests(task: Task) -> int:
    """Return how many branches a lane has; 0: it updates elements, which are gathered as they are."""
    found = list(statements(task.body))
    updates = any(isinstance(s, Atomic) for s in found)
    return 0 if updates else sum(isinstance(s, If) for s in found)


class _Fold(KnownBranches):
    """Copies the body for some lanes: what is the same in all of them is not computed."""

    def __init__(self, task: Task, lanes: Ranges, whole: Ranges) -> None:
        super().__init__({}, {}, {})
        self.axes = self.fresh_all(task.axes)
        self.ranges = {new: lanes[old] for new, old in zip(self.axes, task.axes, strict=True)}
        self.whole = {new: whole[old] for new, old in zip(self.axes, task.axes, strict=True)}
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
        if not s.out.type.is_int:  # a float may be infinite, or NaN
            return None
        if name == "mod":
            return self.remainder(*args)
        if name not in ("min", "max"):
            return None
        one, other = (range_of(v, self.defs, self.ranges) for v in args)
        is_less = less(one, other, equal=True)
        if is_less is None:
            is_more = less(other, one, equal=True)
            is_less = None if is_more is None else not is_more
        return None if is_less is None else args[is_less is (name == "max")]

    def remainder(self, v: Value, n: Value) -> Value | None:
        """Return what `v % n` is in all lanes, as an axis plus a constant."""
        one, period = range_of(v, self.defs, self.ranges), offset_of(n, self.defs)
        if period[0] is None:
            if one is None or one[0][0] is not None or one[1][0] is not None or period[1] <= 0:
                return None
            turns = one[0][1] // period[1]
            if one[1][1] // period[1] != turns:
                return self.one_turn(*offset_of(v, self.defs), n)
            return v - turns * period[1] if turns else v
        base, shift = up_to_periods(v, n, self.defs)
        if base not in self.ranges or base.type.scalar is not v.type.scalar or period[1]:
            return None
        first, last = (shifted(end, shift) for end in self.ranges[base])
        above, below = distance(first, number(0)), distance(period, last)
        if above is None or above < 0 or below is None or below <= 0:
            return self.one_turn(base, shift, n)
        return base + shift if shift else base

    def one_turn(self, base: Value | None, shift: int, n: Value) -> Value | None:
        """Return what `(base + shift) % n` is for a lane's neighbour, where no division is needed."""
        if base not in self.whole or abs(shift) != 1 or base.type.scalar is not n.type.scalar:
            return None
        # 0 <= base < n, so n is not 0, and base + 1 does not wrap around.
        first, last = self.whole[base]
        above, below = distance(first, number(0)), distance(offset_of(n, self.defs), last)
        if above is None or above < 0 or below is None or below <= 0:
            return None
        b, v = self.builder, base + shift
        if shift > 0:
            return b.named("select", v >= n, v - n, v)
        return b.named("select", v < 0, v + n, v)
