"""Effects of launches on the values of fields: which parts one reads, and what becomes of those it writes.

An effect is worked out once for each kernel and its arguments (docs/adr/0078). A part of a field is told by
the field's number and a row (None: all of it), so that effects keep no field alive.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from diffsim.ir.nodes import Atomic, Block, If, InlineLLVM, Load, Mem, Store, Task
from diffsim.ir.traversal import blocks, task_statements
from diffsim.passes.analysis import regions
from diffsim.passes.analysis.affine import Definitions, definitions, element_of
from diffsim.passes.analysis.once import once
from diffsim.passes.analysis.ownership import written_by_others
from diffsim.passes.autodiff.custom_calls import notes_of
from diffsim.passes.autodiff.index_trace import index_trace
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    from diffsim.ir.nodes import Kernel, Stmt
    from diffsim.passes.analysis.regions import RegionAccess

    Box = tuple[Field, int | None]
    Specialization = Any  # of a room above this one: runtime/kernels/specialization.Specialization

Place = tuple[int, int | None]
"""The number of a field, and a row of it (None: all of it)."""


class Rule(enum.Enum):
    """How what a launch leaves in a part of a field depends on what was there."""

    ALL = "each element is stored"
    FIXED = "stored elements, which the arguments tell; the others stay"
    CHOSEN = "stored elements, which what is read tells; the others stay"
    UPDATED = "depends on what was there"
    UNKNOWN = "may be another one each time"


class Effect(NamedTuple):
    """The effect of a launch; `number` tells it from those of other kernels or arguments."""

    number: int
    inputs: tuple[Place, ...]
    outputs: tuple[tuple[Place, Rule], ...]


_numbers = itertools.count()


def effect_of(special: Specialization, key: Any) -> Effect | None:
    """Return the effect of launches with this key in their history; None: it is unknown what they write."""
    args = arguments_of(special, key)
    if args is None:
        return None
    written: dict[Place, Box] = {}
    for w in special.accesses.writes:
        box = special.box(w, args)
        if box is not None:
            written[_place(box)] = box
    whole = {number for number, row in written if row is None}
    kept = {p: b for p, b in written.items() if p[1] is None or p[0] not in whole}
    inputs = _inputs(special, args) if _is_repeatable(special, args) else None
    if inputs is None:
        return Effect(next(_numbers), (), tuple((p, Rule.UNKNOWN) for p in kept))
    outputs = ((p, _rule(special, args, box)) for p, box in kept.items())
    return Effect(next(_numbers), inputs, tuple(outputs))


def _place(box: Box) -> Place:
    return box[0].number, box[1]


def arguments_of(special: Specialization, key: Any) -> tuple[Any, ...] | None:
    """Return the arguments that a key of a launch history stands for (vectors as tuples); None: unknown."""
    found: list[Any] = []
    rest = iter(key)
    for p in special.arguments.parameters:
        if p.kind not in ("value", "array") or (p.kind == "value" and p.type is None):
            return None
        if p.kind == "array":
            known = next(rest)
            # Of arrays of other libraries the key does not tell which memory it was.
            f = _field(known[1]) if isinstance(known, tuple) and known[0] == "field" else None
            if f is None:
                return None
            found.append(f)
        else:
            found.append(next(rest))
    return tuple(found)


def _field(number: int) -> Field | None:
    return next((f for f in members(session.placed) if f.number == number), None)


# ---- whether a launch does the same each time that it reads the same


def _is_repeatable(special: Specialization, args: tuple[Any, ...]) -> bool:
    """Return whether launches with these arguments store the same where they read the same."""
    # 0.0 and -0.0 are one key, and two arguments.
    values = zip(special.arguments.parameters, args, strict=True)
    if special.launches.signed_zeros and any(
        p.type is not None and p.type.scalar.is_float and _has_zero(a) for p, a in values
    ):
        return False
    return (
        not special.translation.uses_random
        and not any(_is_sparse(m, special, args) for m in special.ir.mems)
        and all(_repeats(t) for t in special.ir.tasks)
    )


def _has_zero(a: Any) -> bool:
    return 0 in a if isinstance(a, tuple) else a == 0


def _is_sparse(mem: Mem, special: Specialization, args: tuple[Any, ...]) -> bool:
    f = special.object_of(mem, args)
    return mem.level is not None or (isinstance(f, Field) and f.tree is not None)


@once
def _repeats(task: Task) -> bool:
    """Return whether the lanes of a task do the same in any order, up to the rounding of sums."""
    found = list(task_statements(task))
    # Code of other compilers may have a state of its own.
    if any(isinstance(s, InlineLLVM) for s in found):
        return False
    own = written_by_others(task)
    kinds: dict[Any, set[str]] = {}
    for op, mem, _ in task.reductions:
        kinds.setdefault(mem, set()).add(op)
    totals = set(kinds)
    for s in found:
        if isinstance(s, (Load, Store)) and (s.mem in totals or not own.is_own(s)):
            return False
        if isinstance(s, Atomic):
            # The old value tells which lanes came before.
            if s.out is not None:
                return False
            kinds.setdefault(s.mem, set()).add(s.op)
    return all(len(ops) == 1 and "xchg" not in ops for ops in kinds.values())


# ---- what it reads


def _inputs(special: Specialization, args: tuple[Any, ...]) -> tuple[Place, ...] | None:
    """Return what a launch reads of what was there before it; None: it reads what nobody keeps track of."""
    found: dict[Place, None] = {}
    for a in _exposed_reads(special.ir):
        if special.object_of(a.mem, args) is None:
            continue  # memory of the launch's own
        box = special.box(a, args)
        if box is None or box[0].is_grad or box[0].is_dual:
            return None
        found[_place(box)] = None
    return tuple(found)


@once
def _exposed_reads(ir: Kernel) -> list[RegionAccess]:
    """Return the loads that may see what was there before the launch (upward-exposed uses)."""
    own = {s for t in ir.tasks for s in _loads_of_own(t, definitions(ir))}
    called = (notes_of(s) for t in ir.tasks for s in task_statements(t))
    notes = {noted[1] for noted in called if noted is not None}
    stores = regions.must_write(ir)

    def is_covered(a: RegionAccess) -> bool:
        # Tasks run one after the other. A store to more rows than the load stays within covers it.
        return any(w.mem is a.mem and w.task < a.task and w.region <= a.region for w in stores)

    return [
        a
        for a in regions.reads(ir)
        if a.stmt not in own and a.mem not in notes and not is_covered(a)
    ]


def _loads_of_own(task: Task, defs: Definitions) -> Iterator[Stmt]:
    """Yield the loads of what the same lane has certainly stored before, in this iteration of its loops."""
    yield from _loads_of_stored(task.body, set(), defs)


def _loads_of_stored(block: Block, stored: set[Any], defs: Definitions) -> Iterator[Stmt]:
    """Yield the loads of a block that find what was stored; adds to `stored` what it certainly stores."""
    for s in block.stmts:
        if isinstance(s, Load):
            element = element_of(s.index, defs)
            # What was stored as a whole has all of its components.
            if {(s.mem, element), (s.mem, element[: s.mem.rank])} & stored:
                yield s
        elif isinstance(s, Store):
            stored.add((s.mem, element_of(s.index, defs)))
        elif inner := blocks(s):
            after = []
            for b in inner:
                after.append(set(stored))
                yield from _loads_of_stored(b, after[-1], defs)
            # One of two branches runs; of a loop perhaps none of its iterations.
            if isinstance(s, If) and len(after) == 2:
                stored |= after[0] & after[1]


# ---- what it writes


def _rule(special: Specialization, args: tuple[Any, ...], box: Box) -> Rule:
    if any(_covers(special, w, args, box) for w in special.accesses.must_write):
        return Rule.ALL
    mems = {m for m in special.ir.mems if special.object_of(m, args) is box[0]}
    # An addition keeps what was there.
    if any(mem in mems for t in special.ir.tasks for _, mem, _ in t.reductions) or any(
        isinstance(s, Atomic) and s.mem in mems
        for t in special.ir.tasks
        for s in task_statements(t)
    ):
        return Rule.UPDATED
    return Rule.FIXED if _stores_by_arguments(special.ir, mems) else Rule.CHOSEN


def _covers(special: Specialization, w: RegionAccess, args: tuple[Any, ...], box: Box) -> bool:
    """Return whether a store certainly reaches each element of this part of a field."""
    f = box[0]
    if special.object_of(w.mem, args) is not f:
        return False
    axes = {r.axis for r in w.region}
    # Confined to rows of another axis, or to one index of a row of several, it leaves elements out.
    whole_row = axes == {f.versions.axis} and f.versions.block == 1
    return not axes or (whole_row and box[1] is not None and special.box(w, args) == box)


def _stores_by_arguments(ir: Kernel, mems: Iterable[Mem]) -> bool:
    """Return whether nothing but the arguments tells which elements of these memories are stored."""
    for number, task in enumerate(ir.tasks):
        stores = [s for s in task_statements(task) if isinstance(s, Store) and s.mem in mems]
        if not stores:
            continue
        trace = index_trace(ir, number, stores)
        if trace is None:
            return False
        loads = (a for k in (trace.ir, trace.bounds_ir) for a in regions.reads(k))
        if any(a.mem not in trace.own for a in loads):
            return False
    return True
