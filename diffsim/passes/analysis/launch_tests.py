"""Tests of a launch's arguments which show that two accesses never touch the same element.

An index is a sum of loop variables, each times a polynomial in launch-wide values: `base + i * m + c` in
loops over `i` and `c`, with the arguments `base` and `m`. Over all iterations it lies between bounds that are
polynomials as well. Two accesses are apart if, along some axis, the one's least index is above the other's
greatest:

    y[u, i] and y[t, i]:                        u - t > 0, or t - u > 0
    a[i] and a[b + i], i in range(n):           b - n + 1 > 0, or -b - n + 1 > 0

The dependence test (`dependence.py`) decides what does not depend on the arguments. Its interval arithmetic
is repeated here with polynomials in place of numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diffsim.ir.nodes import Arg, Const, Dim, For, Task, Value
from diffsim.ir.traversal import statements
from diffsim.passes.analysis.affine import task_definitions, wraps
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.analysis.once import once

Polynomial = dict[tuple[Value, ...], int]
"""Coefficients of products of launch-wide values (of the empty product: the constant term)."""
Linear = dict[Value | None, Polynomial]
"""Coefficients of loop variables (None: what no loop changes)."""

_MOST_BOUNDS = 4
"""Candidates for a least or greatest index: more come from coefficients whose signs are unknown."""
_MOST_FACTORS = 3


@dataclass(frozen=True, slots=True)
class LaunchTest:
    """Holds if all polynomials of some clause are positive.

    Where it holds, the two accesses that it was made for never touch the same element. Where it does not,
    they may.
    """

    clauses: tuple[tuple[Polynomial, ...], ...]

    def leaves(self) -> dict[Value, None]:
        """Return the launch-wide values that it depends on."""
        products = (p for clause in self.clauses for form in clause for p in form)
        return dict.fromkeys(itertools.chain.from_iterable(products))

    def holds(self, values: Mapping[Value, int]) -> bool:
        """Whether it holds for these values."""
        return any(all(_value(f, values) > 0 for f in clause) for clause in self.clauses)


def apart_test(a: Access, one: Task, b: Access, other: Task) -> LaunchTest | None:
    """Return a test for accesses of two tasks to one memory; None if no argument can show them apart."""
    clauses: list[tuple[Polynomial, ...]] = []
    rank = a.mem.rank
    for i, j in zip(a.index[:rank], b.index[:rank], strict=True):
        x, y = index_bounds(one).of(i), index_bounds(other).of(j)
        if x is None or y is None:
            continue
        for above, below in ((x, y), (y, x)):
            clause = _all_positive(
                added(low, high, -1) for low in above.least for high in below.greatest
            )
            if clause is not None:
                clauses.append(clause)
    return LaunchTest(tuple(clauses)) if clauses else None


def _all_positive(forms: Iterable[Polynomial]) -> tuple[Polynomial, ...] | None:
    """Return the forms whose sign the arguments decide; None if one of them is never positive."""
    open_: list[Polynomial] = []
    for form in forms:
        if any(form):
            open_.append(form)
        elif form.get((), 0) <= 0:
            return None
    return tuple(open_)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least number is the least of the one, the greatest that of the other."""

    least: tuple[Polynomial, ...]
    greatest: tuple[Polynomial, ...]


@once
def index_bounds(task: Task) -> IndexBounds:
    """Return the bounds of a task's integer values."""
    return IndexBounds(task)


class IndexBounds:
    """Bounds of the integer values of a task over all of its iterations.

    A loop without iterations has bounds in the wrong order, and so has what depends on it. Nothing is
    accessed in it, so that any answer about its accesses is right.
    """

    def __init__(self, task: Task) -> None:
        self._definitions = task_definitions(task)
        bounds = task.bounds.yields
        self._loops = {axis: bounds[2 * k : 2 * k + 2] for k, axis in enumerate(task.axes)}
        for block in (task.bounds, task.body):
            for s in statements(block, given=True):
                if isinstance(s, For):
                    self._loops[s.index] = (s.lo, s.hi)
        self._known: dict[Value, Bounds | None] = {}

    def of(self, v: Value) -> Bounds | None:
        """Return the bounds of a value, None if they are no polynomials."""
        if v not in self._known:
            self._known[v] = self._compute(v)
        return self._known[v]

    def _compute(self, v: Value) -> Bounds | None:
        form = self._linear(v)
        return None if form is None else self._of_form(form)

    def _of_form(self, form: Linear) -> Bounds | None:
        """Return the bounds of a linear form."""
        found: Bounds | None = Bounds((form.get(None, {}),), (form.get(None, {}),))
        counts = self._counts(form)
        for loop, factor in form.items():
            if loop is not None and found is not None:
                found = self._plus(found, loop, factor, counts)
        return found

    def _counts(self, form: Linear) -> set[Value]:
        """Return the ends of loops that begin at 0: positive wherever the loops' variables have a value."""
        bounds = [self._loops[loop] for loop in form if loop in self._loops]
        return {hi for lo, hi in bounds if isinstance(lo, Const) and lo.value >= 0}

    def _plus(
        self, found: Bounds, loop: Value, factor: Polynomial, counts: set[Value]
    ) -> Bounds | None:
        """Return bounds with a multiple of a loop's variable added; `counts` are positive."""
        ends = self._ends(loop)
        if ends is None:
            return None
        first = [_product(factor, p) for p in ends.least]
        last = [_product(factor, p) for p in ends.greatest]
        # Where the sign of the factor is known, so is the end of the loop at which the product is least.
        signs = {n > 0 for product, n in factor.items() if counts.issuperset(product)}
        known = len(signs) == 1 and all(map(counts.issuperset, factor))
        sign = 0 if not known else 1 if True in signs else -1
        low, high = (first, last) if sign > 0 else (last, first) if sign else (first + last,) * 2
        if None in low or None in high:
            return None
        made = Bounds(_sums(found.least, low), _sums(found.greatest, high))
        return made if max(len(made.least), len(made.greatest)) <= _MOST_BOUNDS else None

    def _ends(self, loop: Value) -> Bounds | None:
        """Return the bounds of a loop's variable."""
        lo, hi = (self.of(b) for b in self._loops[loop])
        if lo is None or hi is None:
            return None
        return Bounds(lo.least, tuple(added(p, {(): 1}, -1) for p in hi.greatest))

    def _linear(self, v: Value) -> Linear | None:
        """Return a value as a linear form of loop variables."""
        if isinstance(v, Const):
            return {None: {(): int(v.value)}} if v.type.is_int and not v.type.shape else None
        if v in self._loops:
            return {v: {(): 1}}
        if isinstance(v, (Arg, Dim)):
            return {None: {(v,): 1}} if v.type.is_int and not v.type.shape else None
        let = self._definitions.get(v)
        if let is None or not v.type.is_int or v.type.shape or wraps(let.op.name, v.type.scalar):
            return None
        name, args = let.op.name, let.args
        if name == "cast":
            kept = v.type.scalar.keeps_index(args[0].type.scalar)
            return self._linear(args[0]) if kept else None
        if name == "neg":
            return combined({}, self._linear(args[0]), -1)
        if name in ("add", "sub"):
            a, b = map(self._linear, args)
            return combined(a, b, 1 if name == "add" else -1)
        return _multiplied(*map(self._linear, args)) if name == "mul" else None


def combined(a: Linear | None, b: Linear | None, factor: int) -> Linear | None:
    """Return a + factor * b."""
    if a is None or b is None:
        return None
    made = {v: added(a.get(v, {}), b.get(v, {}), factor) for v in {**a, **b}}
    return {v: p for v, p in made.items() if p}


def _multiplied(a: Linear | None, b: Linear | None) -> Linear | None:
    """Return a * b, if one of them has no loop variable and the products stay small."""
    if a is None or b is None:
        return None
    if set(a) <= {None}:
        a, b = b, a
    if not set(b) <= {None}:
        return None
    factor = b.get(None, {})
    made = {v: _product(p, factor) for v, p in a.items()}
    return None if None in made.values() else {v: p for v, p in made.items() if p}


def _sums(a: Iterable[Polynomial], b: Iterable[Polynomial | None]) -> tuple[Polynomial, ...]:
    return tuple(added(x, y, 1) for x in a for y in b if y is not None)


def added(a: Polynomial, b: Polynomial, factor: int) -> Polynomial:
    """Return a + factor * b, without terms that cancel."""
    total = dict(a)
    for product, n in b.items():
        total[product] = total.get(product, 0) + factor * n
    return {product: n for product, n in total.items() if n}


def _product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return a * b; None if it has products of too many factors."""
    total: Polynomial = {}
    for (p, m), (q, n) in itertools.product(a.items(), b.items()):
        # One order for each product, so that equal ones meet.
        both = tuple(sorted((*p, *q), key=id))
        if len(both) > _MOST_FACTORS:
            return None
        total[both] = total.get(both, 0) + m * n
    return {product: n for product, n in total.items() if n}


def _value(form: Polynomial, values: Mapping[Value, int]) -> int:
    total = 0
    for product, n in form.items():
        for v in product:
            n *= values[v]
        total += n
    return total
