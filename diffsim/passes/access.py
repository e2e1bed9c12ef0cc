"""Which part of each memory a kernel touches, as far as the launch can know.

A *row* is one index of one axis that depends on the launch alone: a constant, or an integer argument plus
a constant (`x[t + 1, i]` with the argument t). The runtime keeps versions of rows, so `x[t + 1] = f(x[t])`
in a time loop is known to leave earlier times alone. An access without such an index counts for the whole
memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diffsim.ir.nodes import Arg, Atomic, Const, Kernel, Let, Load, Mem, Store, Value
from diffsim.ir.walk import task_statements
from diffsim.passes.affine import offset_of


@dataclass(frozen=True, slots=True)
class Row:
    """Index `argument + shift` along `axis` (`argument` None: the constant `shift`)."""

    axis: int
    argument: Arg | None
    shift: int


Part = frozenset[Row]
"""The rows an access is known to stay within; empty: anywhere."""


@dataclass(frozen=True, slots=True)
class Access:
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


def part_of(index: Iterable[Value], made_by: dict[Value, Let]) -> Part:
    """The rows that an index tuple stays within."""
    rows = []
    for axis, i in enumerate(index):
        base, shift = offset_of(i, made_by)
        if base is None:
            rows.append(Row(axis, None, shift))
        elif isinstance(base, Arg) and not base.type.shape:
            rows.append(Row(axis, base, shift))
    return frozenset(rows)


def reads(kernel: Kernel) -> list[Access]:
    """Every load of a field or array, those of given adjoints included, in program order."""
    return _collect(kernel, (Load,), given=True)


def writes(kernel: Kernel) -> list[Access]:
    """Every store to, and atomic update of, a field or array, in program order."""
    return _collect(kernel, (Store, Atomic)) + [
        Access(mem, part_of(index, {}), Atomic(None, op, mem, index, v, t.span), k)
        for k, t in enumerate(kernel.tasks)
        for (op, mem, index), v in zip(t.reductions, t.body.yields, strict=True)
        if mem.kind in ("field", "array")
    ]


def _collect(kernel: Kernel, kinds: tuple[type, ...], *, given: bool = False) -> list[Access]:
    made_by = definitions(kernel)
    found = []
    for k, task in enumerate(kernel.tasks):
        for s in task_statements(task, given=given):
            if not isinstance(s, (Load, Store, Atomic)) or not isinstance(s, kinds):
                continue
            if s.mem.kind in ("field", "array"):
                part = part_of(s.index[: s.mem.rank], made_by)
                found.append(Access(s.mem, part, s, k))
    return found


def apart(a: Part, b: Part) -> bool:
    """Whether two parts can be told to have no element in common, whatever the arguments."""
    return any(
        x.axis == y.axis and x.argument is y.argument and x.shift != y.shift for x in a for y in b
    )


def overwrites(kernel: Kernel) -> list[Access]:
    """Stores that certainly reach every element of the rows they stay within.

    `for i, j in x: x[i, j] = ...`, and `for i in range(n): y[t, i] = ...` where y has n columns.
    """
    made_by = definitions(kernel)
    found: list[Access] = []
    for k, t in enumerate(kernel.tasks):
        bounds = iter(t.bounds.yields)
        ranges = dict(zip(t.axes, zip(bounds, bounds, strict=True), strict=True))
        for s in t.body.stmts:
            if not isinstance(s, Store) or s.mem.shape is None or len(s.index) != s.mem.rank:
                continue
            part = part_of(s.index, made_by)
            rows = {r.axis for r in part}
            loops = [i for axis, i in enumerate(s.index) if axis not in rows]
            sizes = [n for axis, n in enumerate(s.mem.shape) if axis not in rows]
            if len(set(loops)) == len(loops) and all(
                _covers(ranges.get(i), n) for i, n in zip(loops, sizes, strict=True)
            ):
                found.append(Access(s.mem, part, s, k))
    return found


def _covers(limits: tuple[Value, Value] | None, n: int) -> bool:
    """Whether a loop with these limits runs over 0 .. n - 1."""
    if limits is None:
        return False
    lo, hi = limits
    return isinstance(lo, Const) and isinstance(hi, Const) and lo.value <= 0 and hi.value >= n
