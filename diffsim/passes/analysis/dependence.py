"""Whether different turns of loops can meet in one element of a memory.

An index is read as a sum of loop variables times constants, x[3 * i + k]. Two accesses touch the same
element only if the sums are equal along every axis, so each axis gives an equation for the distances
between the turns (of the one access and of the other) of each loop:

    x[3 * i + k] and x[3 * i' + k' + 1]:     3 (i - i') + (k - k') = 1

A loop of n turns keeps its distance within 1 - n .. n - 1, and an equation narrows one distance by what is
known of the others: with k from 0 to 2 the distance of i can only be 0. Some equations have no solution in
whole numbers at all. What is not such a sum may be anything and says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from diffsim.ir.nodes import Arg, Atomic, Const, Dim, For, Let, Load, Store, Task, Value
from diffsim.ir.traversal import task_statements
from diffsim.ir.types import ScalarType

Sum = dict[Value | None, int]
"""Factors of loop variables and of values that are the same in all turns (None: the constant)."""
Interval = tuple[float, float]
_ANY: Interval = (-math.inf, math.inf)
_SAME: Interval = (0, 0)
_ROUNDS = 4

Access = Load | Store | Atomic


class DistanceVector:
    """How far apart the turns are in which two accesses touch the same element.

    Attributes:
        never: whether they can be told never to touch the same element.
    """

    def __init__(
        self, known: dict[Value, Interval], ranges: dict[Value, Interval], *, never: bool
    ) -> None:
        self._known = known
        self._ranges = ranges
        self.never = never

    def of(self, loop: Value) -> Interval:
        """Turn of the first access minus turn of the second one, as (least, most)."""
        found = self._known.get(loop)
        return _between(self._ranges.get(loop, _ANY)) if found is None else found

    def same(self, loops: Iterable[Value]) -> bool:
        """Whether both are in the same turn of each of these loops."""
        return self.never or all(self.of(v) == _SAME for v in loops)


class LinearForms:
    """The index sums of a task."""

    def __init__(self, task: Task) -> None:
        self.made_by: dict[Value, Let] = {}
        self.ranges: dict[Value, Interval] = {}
        bounds = task.bounds.yields
        for k, axis in enumerate(task.axes):
            self._loop(axis, bounds[2 * k], bounds[2 * k + 1])
        for s in task_statements(task, given=True):
            if isinstance(s, Let):
                self.made_by[s.out] = s
            elif isinstance(s, For):
                self._loop(s.index, s.lo, s.hi)
        self.cache: dict[tuple[Value, tuple[int, ...]], Sum | None] = {}

    def _loop(self, index: Value, lo: Value, hi: Value) -> None:
        known = isinstance(lo, Const) and isinstance(hi, Const)
        self.ranges[index] = (lo.value, hi.value - 1) if known else _ANY  # type: ignore[attr-defined]

    def distances(self, a: Access, b: Access, same: Iterable[Value] = ()) -> DistanceVector:
        """What is known if both touch the same element; `same`: loops in whose turns they agree."""
        rank = a.mem.rank
        equations = [
            (x, y)
            for i, j in zip(a.index[:rank], b.index[:rank], strict=True)
            for x, y in [(self.sum(i), self.sum(j))]
            if x is not None and y is not None
        ]
        known = {
            v: _between(self.ranges[v])
            for pair in equations
            for total in pair
            for v in total
            if v is not None and v in self.ranges
        }
        known.update(dict.fromkeys(same, _SAME))
        for _ in range(_ROUNDS):
            before = dict(known)
            for x, y in equations:
                if not self._narrow(x, y, known):
                    return DistanceVector(known, self.ranges, never=True)
            if known == before:
                break
        return DistanceVector(known, self.ranges, never=False)

    def _narrow(self, x: Sum, y: Sum, known: dict[Value, Interval]) -> bool:
        """Use one equation; False if it can not hold."""
        if not self._has_solution(x, y, known):
            return False
        terms: dict[Value | None, Interval] = {}
        for v in {**x, **y}:
            m, n = x.get(v, 0), y.get(v, 0)
            if v is None:
                terms[v] = (m - n, m - n)
            elif v in self.ranges:
                if m == n:
                    terms[v] = _times(m, known[v])
                else:
                    terms[v] = _plus(_times(m, self.ranges[v]), _times(-n, self.ranges[v]))
            elif m != n:
                return True  # an unknown number of times: no equation
        whole = _SAME
        for t in terms.values():
            whole = _plus(whole, t)
        if whole[0] > 0 or whole[1] < 0:
            return False
        for v in terms:
            m = x.get(v, 0)
            if v is None or v not in self.ranges or m != y.get(v, 0) or m == 0:
                continue
            rest = _SAME
            for w, t in terms.items():
                if w is not v:
                    rest = _plus(rest, t)
            ends = sorted((-rest[0] / m, -rest[1] / m))
            lo = max(known[v][0], ends[0] if math.isinf(ends[0]) else math.ceil(ends[0]))
            hi = min(known[v][1], ends[1] if math.isinf(ends[1]) else math.floor(ends[1]))
            if lo > hi:
                return False
            known[v] = (lo, hi)
        return True

    def _has_solution(self, x: Sum, y: Sum, known: dict[Value, Interval]) -> bool:
        """Whether whole numbers can make the sums equal: 2 i and 2 j + 1 never are, nor are p and 1 - p."""
        factors = []
        for v in {**x, **y}.keys() - {None}:
            m, n = x.get(v, 0), y.get(v, 0)
            one_number = v not in self.ranges or known[v] == _SAME
            factors += [m - n] if one_number else [m, n]
        divisor = math.gcd(*factors)
        apart = y.get(None, 0) - x.get(None, 0)
        return apart % divisor == 0 if divisor else apart == 0

    def sum(self, v: Value, component: tuple[int, ...] = ()) -> Sum | None:
        """The sum that a value, or a component of one, is, if it is one."""
        key = (v, component)
        if key not in self.cache:
            self.cache[key] = self._sum(v, component)
        return self.cache[key]

    def _sum(self, v: Value, component: tuple[int, ...]) -> Sum | None:
        if isinstance(v, Const):
            return {None: int(v.value)}
        if v in self.ranges or (isinstance(v, (Arg, Dim)) and not v.type.shape):
            return {v: 1}
        let = self.made_by.get(v)
        if let is None or not v.type.is_int:
            return None
        name, args = let.op.name, let.args
        if _wraps(name, v.type.scalar):
            return None
        if name in ("add", "sub"):
            a, b = (self.sum(x, component if x.type.shape else ()) for x in args)
            return _combine(a, b, 1 if name == "add" else -1)
        if name == "neg":
            return _combine({}, self.sum(args[0], component), -1)
        if name in ("mul", "shl"):
            a, b = (self.sum(x, component if x.type.shape else ()) for x in args)
            if name == "shl":
                return self._shifted(a, b, v.type.scalar)
            return _product(a, b)
        if name == "cast":
            kept = v.type.scalar.keeps_index(args[0].type.scalar)
            return self.sum(args[0], component) if kept else None
        if name == "broadcast":
            return self.sum(args[0])
        if name == "build":
            at = 0
            for k, n in zip(component, v.type.shape, strict=True):
                at = at * n + k
            return self.sum(args[at])
        if name == "extract" and all(isinstance(k, Const) for k in args[1:]):
            return self.sum(args[0], tuple(int(k.value) for k in args[1:]))  # type: ignore[attr-defined]
        return None

    def _shifted(self, a: Sum | None, b: Sum | None, t: ScalarType) -> Sum | None:
        """A sum shifted to the left by a constant, if no bit of it can be lost."""
        if a is None or b is None or set(b) != {None} or not 0 <= b[None] < t.bits:
            return None
        made = {v: n << b[None] for v, n in a.items()}
        lo, hi = _SAME
        for v, n in made.items():
            lo, hi = _plus((lo, hi), (n, n) if v is None else _times(n, self.ranges.get(v, _ANY)))
        return made if t.holds(lo) and t.holds(hi) else None


def _wraps(name: str, t: ScalarType) -> bool:
    """Whether an index may be off by a power of two; signed sums are carried out in 64 bits."""
    if name == "neg" and t.bits < 32:
        return True
    return t.kind == "u" and name in ("add", "sub", "neg", "mul")


def _product(a: Sum | None, b: Sum | None) -> Sum | None:
    """a * b, if one of them is a constant."""
    if a is not None and set(a) == {None}:
        a, b = b, a
    return None if b is None or set(b) != {None} else _combine({}, a, b[None])


def _combine(a: Sum | None, b: Sum | None, factor: int) -> Sum | None:
    """a + factor * b."""
    if a is None or b is None:
        return None
    made = dict(a)
    for v, n in b.items():
        made[v] = made.get(v, 0) + factor * n
    return made


def _between(turns: Interval) -> Interval:
    """How far apart two turns of a loop over these can be."""
    most = max(turns[1] - turns[0], 0)
    return -most, most


def _plus(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _times(m: int, a: Interval) -> Interval:
    if m == 0:
        return _SAME
    ends = m * a[0], m * a[1]
    return (ends[0], ends[1]) if m > 0 else (ends[1], ends[0])
