"""Which part of each memory a kernel touches, as far as the launch can know.

A *row* is one index of one axis that depends on the launch alone: a constant, or an integer argument plus
a constant (`x[t + 1, i]` with the argument t). The runtime keeps versions of rows, so `x[t + 1] = f(x[t])`
in a time loop is known to leave earlier times alone. An access without such an index counts for the whole
memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from diffsim.ir.nodes import Arg, Atomic, Const, Kernel, Let, Load, Mem, Store, Value
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.affine import offset_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """Index `argument + shift` along `axis` (`argument` None: the constant `shift`)."""

    axis: int
    argument: Arg | None
    shift: int


Part = frozenset[Row]
"""The rows an access is known to stay within; empty: anywhere."""


@dataclass(frozen=True, slots=True)
class RegionAccess:
    """One place in the kernel that reads or writes a memory."""

    mem: Mem
    part: Part
    stmt: Load | Store | Atomic
    task: int

    @property
    def time_axis(self) -> int | None:
        """The first axis that is indexed with an argument."""
        return min((r.axis for r in self.part if r.argument is not None), default=None)


def definitions(kernel: Kernel) -> dict[Value, Let]:
    """The op that makes each value."""
    return {
        s.out: s for t in kernel.tasks for s in task_statements(t, given=True) if isinstance(s, Let)
    }


def region_of(s: Load | Store | Atomic, made_by: dict[Value, Let]) -> Part:
    """The rows that an access stays within."""
    return rows_of(s.index[: s.mem.rank], made_by)


def rows_of(index: Iterable[Value], made_by: dict[Value, Let]) -> Part:
    """The rows that an index tuple stays within."""
    rows = []
    for axis, i in enumerate(index):
        base, shift = offset_of(i, made_by)
        if base is None:
            rows.append(Row(axis, None, shift))
        elif isinstance(base, Arg) and not base.type.shape:
            rows.append(Row(axis, base, shift))
    return frozenset(rows)


def reads(kernel: Kernel) -> list[RegionAccess]:
    """Every load of a field or array, those of given adjoints included, in program order."""
    return _collect(kernel, (Load,), given=True)


def writes(kernel: Kernel) -> list[RegionAccess]:
    """Every store to, and atomic update of, a field or array, in program order."""
    return _collect(kernel, (Store, Atomic)) + [
        RegionAccess(mem, rows_of(index, {}), Atomic(None, op, mem, index, v, t.span), k)
        for k, t in enumerate(kernel.tasks)
        for (op, mem, index), v in zip(t.reductions, t.body.yields, strict=True)
        if mem.kind in ("field", "array")
    ]


def _collect(kernel: Kernel, kinds: tuple[type, ...], *, given: bool = False) -> list[RegionAccess]:
    made_by = definitions(kernel)
    found = []
    for k, task in enumerate(kernel.tasks):
        for s in task_statements(task, given=given):
            if not isinstance(s, (Load, Store, Atomic)) or not isinstance(s, kinds):
                continue
            if s.mem.kind in ("field", "array"):
                found.append(RegionAccess(s.mem, region_of(s, made_by), s, k))
    return found


def disjoint(a: Part, b: Part) -> bool:
    """Whether two parts can be told to have no element in common, whatever the arguments."""
    return any(
        x.axis == y.axis and x.argument is y.argument and x.shift != y.shift for x in a for y in b
    )


class ByPart(Generic[T]):
    """Things kept by the parts that they stay within, all of one memory.

    Parts are told apart by the rows they have along the same axis with the same argument. So things are
    looked up by those rows, once for each combination of axes and arguments that the parts have rows of.
    """

    def __init__(self, things: Iterable[tuple[Part, T]]) -> None:
        self._of: dict[frozenset[object], list[tuple[Part, T]]] = {}
        for part, thing in things:
            self._of.setdefault(_directions(part), []).append((part, thing))
        self._views: dict[tuple[object, object], dict[Part, set[T]]] = {}

    def meeting(self, part: Part) -> set[T]:
        """The things whose parts are not `disjoint` from this one."""
        mine = _directions(part)
        found: set[T] = set()
        for theirs, things in self._of.items():
            shared = mine & theirs
            view = self._views.get((theirs, shared))
            if view is None:
                view = self._views[theirs, shared] = {}
                for other, thing in things:
                    view.setdefault(_along(other, shared), set()).add(thing)
            found |= view.get(_along(part, shared), set())
        return found


def _directions(part: Part) -> frozenset[object]:
    """What the rows of a part are told by, besides their shifts."""
    return frozenset([(r.axis, r.argument) for r in part])


def _along(part: Part, directions: frozenset[object]) -> Part:
    """The rows of a part in these directions."""
    return frozenset([r for r in part if (r.axis, r.argument) in directions])


def must_write(kernel: Kernel) -> list[RegionAccess]:
    """Stores that certainly reach every element of the rows they stay within.

    `for i, j in x: x[i, j] = ...`, and `for i in range(n): y[t, i] = ...` where y has n columns.
    """
    made_by = definitions(kernel)
    found: list[RegionAccess] = []
    for k, t in enumerate(kernel.tasks):
        bounds = iter(t.bounds.yields)
        ranges = dict(zip(t.axes, zip(bounds, bounds, strict=True), strict=True))
        for s in t.body.stmts:
            if not isinstance(s, Store) or s.mem.shape is None or len(s.index) != s.mem.rank:
                continue
            part = region_of(s, made_by)
            rows = {r.axis for r in part}
            loops = [i for axis, i in enumerate(s.index) if axis not in rows]
            sizes = [n for axis, n in enumerate(s.mem.shape) if axis not in rows]
            if len(set(loops)) == len(loops) and all(
                _covers(ranges.get(i), n) for i, n in zip(loops, sizes, strict=True)
            ):
                found.append(RegionAccess(s.mem, part, s, k))
    return found


def _covers(limits: tuple[Value, Value] | None, n: int) -> bool:
    """Whether a loop with these limits runs over 0 .. n - 1."""
    if limits is None:
        return False
    lo, hi = limits
    return isinstance(lo, Const) and isinstance(hi, Const) and lo.value <= 0 and hi.value >= n
