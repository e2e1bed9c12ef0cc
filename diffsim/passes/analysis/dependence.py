"""The dependence test: whether two accesses can touch the same element, and in which iterations.

Two accesses touch the same element only if their indices are equal along every axis. Where both indices are
affine forms of loop variables, each axis gives an equation for the distances between the iterations (of the
one access and of the other) of each loop:

    x[3 * i + k] and x[3 * i' + k' + 1]:     3 (i - i') + (k - k') = 1

A loop of n iterations keeps its distance within 1 - n .. n - 1, and an equation narrows one distance by what
is known of the others: with k from 0 to 2 the distance of i can only be 0. Some equations have no solution in
whole numbers at all (the GCD test). An index without an affine form gives no equation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from diffsim.ir.nodes import Atomic, Load, Mem, Store, Task, Value
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.affine import (
    ANY,
    ZERO,
    AffineForm,
    AffineForms,
    Interval,
    affine_forms,
    plus,
    times,
)

_ROUNDS = 4  # of narrowing; each passes what one equation has shown on to the others

Access = Load | Store | Atomic


class DistanceVector:
    """How far apart the iterations are in which two accesses touch the same element.

    Attributes:
        never: whether they certainly never touch the same element.
    """

    def __init__(
        self, known: dict[Value, Interval], ranges: dict[Value, Interval], *, never: bool
    ) -> None:
        self._known = known
        self._ranges = ranges
        self.never = never

    def of(self, loop: Value) -> Interval:
        """Return the iteration of the first access minus that of the second one, as (least, most)."""
        found = self._known.get(loop)
        return _distance(self._ranges.get(loop, ANY)) if found is None else found

    def same(self, loops: Iterable[Value]) -> bool:
        """Whether both are in the same iteration of each of these loops."""
        return self.never or all(self.of(v) == ZERO for v in loops)


def distances(task: Task, a: Access, b: Access, same: Iterable[Value] = ()) -> DistanceVector:
    """Return what is known of two accesses of a task to one memory if they touch the same element.

    Args:
        task: the task; its axes are loops like any other.
        a: one access.
        b: the other.
        same: loops in whose iterations the two agree.
    """
    forms = affine_forms(task)
    # The distances start from what the ranges of the loops allow, and each equation only narrows them.
    # So stopping early is sound: the intervals are then wider than necessary.
    equations = list(_equations(a, forms, b, forms))
    known = {
        v: _distance(forms.ranges[v])
        for pair in equations
        for form in pair
        for v in form
        if v is not None and v in forms.ranges
    }
    known.update(dict.fromkeys(same, ZERO))
    for _ in range(_ROUNDS):
        before = dict(known)
        for x, y in equations:
            if not _narrow(forms, x, y, known):
                return DistanceVector(known, forms.ranges, never=True)
        if known == before:
            break
    return DistanceVector(known, forms.ranges, never=False)


def independent(one: Task, other: Task) -> bool:
    """Whether no element that one of two tasks writes is touched by the other."""
    accesses = _by_memory(other)
    return all(
        never_same(a, one, b, other)
        for mem, mine in _by_memory(one).items()
        for a in mine
        for b in accesses.get(mem, ())
        if not (isinstance(a, Load) and isinstance(b, Load))
    )


def never_same(a: Access, one: Task, b: Access, other: Task) -> bool:
    """Whether accesses of two different tasks to one memory certainly touch different elements."""
    forms, others = affine_forms(one), affine_forms(other)
    return any(_differ(x, forms, y, others) for x, y in _equations(a, forms, b, others))


def _differ(x: AffineForm, forms: AffineForms, y: AffineForm, others: AffineForms) -> bool:
    """Whether two indices are never equal: their loops are different, launch-wide values are the same."""
    # x - y as (launch-wide part) + (loops of the one) - (loops of the other) + constant. The loops are
    # independent variables even if they have the same bounds, since the tasks' iterations are not
    # paired.
    launch_wide = {v for v in {**x, **y} if v not in forms.ranges and v not in others.ranges}
    common = {v: x.get(v, 0) - y.get(v, 0) for v in launch_wide}
    mine = {v: n for v, n in x.items() if v not in launch_wide}
    theirs = {v: -n for v, n in y.items() if v not in launch_wide}
    constant = common.pop(None, 0)
    whole = plus(forms.interval(mine), others.interval(theirs))
    if any(common.values()):
        whole = ANY  # an unknown number
    # Banerjee's test: 0 lies outside of the interval of the difference.
    if whole[0] + constant > 0 or whole[1] + constant < 0:
        return True
    # The GCD test: integer combinations of the coefficients are the multiples of their greatest common
    # divisor.
    return not _is_multiple(constant, [*common.values(), *mine.values(), *theirs.values()])


def _by_memory(task: Task) -> dict[Mem, list[Access]]:
    found: dict[Mem, list[Access]] = {}
    for s in accesses_of(task):
        found.setdefault(s.mem, []).append(s)
    return found


def accesses_of(task: Task) -> Iterator[Access]:
    """Yield all loads, stores and atomic updates of a task, in program order."""
    return (s for s in task_statements(task) if isinstance(s, (Load, Store, Atomic)))


def _equations(
    a: Access, forms: AffineForms, b: Access, others: AffineForms
) -> Iterator[tuple[AffineForm, AffineForm]]:
    """Yield the pairs of indices that are equal if both accesses touch the same element."""
    rank = a.mem.rank
    for i, j in zip(a.index[:rank], b.index[:rank], strict=True):
        x, y = forms.form(i), others.form(j)
        # Components of a tensor element come after the rank, and do not say which element it is; an
        # axis without affine forms gives no equation, which is the conservative answer.
        if x is not None and y is not None:
            yield x, y


def _narrow(forms: AffineForms, x: AffineForm, y: AffineForm, known: dict[Value, Interval]) -> bool:
    """Narrow the known distances by one equation; False if it cannot hold."""
    if not _has_solution(forms, x, y, known):
        return False
    terms = _terms(forms, x, y, known)
    if terms is None:
        return True
    whole = _total(terms.values())
    # The equation is sum(terms) = 0, so 0 must lie in the interval of the sum.
    if whole[0] > 0 or whole[1] < 0:
        return False
    for v in terms:
        m = x.get(v, 0)
        # A distance i - i' appears only where both coefficients agree: m * i - m * i' = m * (i - i').
        if v is None or v not in forms.ranges or m != y.get(v, 0) or m == 0:
            continue
        # m * d = -rest, solved for d; distances are integers, so the ends round inwards.
        rest = _total(t for w, t in terms.items() if w is not v)
        ends = sorted((-rest[0] / m, -rest[1] / m))
        least = max(known[v][0], ends[0] if math.isinf(ends[0]) else math.ceil(ends[0]))
        most = min(known[v][1], ends[1] if math.isinf(ends[1]) else math.floor(ends[1]))
        if least > most:
            return False
        known[v] = (least, most)
    return True


def _terms(
    forms: AffineForms, x: AffineForm, y: AffineForm, known: dict[Value, Interval]
) -> dict[Value | None, Interval] | None:
    """Return what each variable adds to x - y; None if one of them adds an unknown number."""
    terms: dict[Value | None, Interval] = {}
    for v in {**x, **y}:
        m, n = x.get(v, 0), y.get(v, 0)
        if v is None:
            terms[v] = (m - n, m - n)
        elif v in forms.ranges:
            # Correlated through the distance; with unequal coefficients the two iterations vary
            # independently.
            if m == n:
                terms[v] = times(m, known[v])
            else:
                terms[v] = plus(times(m, forms.ranges[v]), times(-n, forms.ranges[v]))
        # A launch-wide value cancels only if both indices have it equally often.
        elif m != n:
            return None
    return terms


def _has_solution(
    forms: AffineForms, x: AffineForm, y: AffineForm, known: dict[Value, Interval]
) -> bool:
    """Whether whole numbers can make the forms equal: 2 i and 2 j + 1 never are, nor are p and 1 - p."""
    factors = []
    for v in {**x, **y}.keys() - {None}:
        m, n = x.get(v, 0), y.get(v, 0)
        # Where both are in the same iteration (or the value is launch-wide), v is one unknown with
        # coefficient m - n. Otherwise there are two unknowns, and both coefficients count.
        one_number = v not in forms.ranges or known[v] == ZERO
        factors += [m - n] if one_number else [m, n]
    return _is_multiple(y.get(None, 0) - x.get(None, 0), factors)


def _is_multiple(n: int, factors: Iterable[int]) -> bool:
    """Whether a number is a sum of whole multiples of these."""
    divisor = math.gcd(*factors)
    # No factors, or all of them 0: the only sum is 0.
    return n % divisor == 0 if divisor else n == 0


def _total(terms: Iterable[Interval]) -> Interval:
    total = ZERO
    for t in terms:
        total = plus(total, t)
    return total


def _distance(iterations: Interval) -> Interval:
    """Return how far apart two iterations of a loop over these can be."""
    # An empty loop has a range with its ends exchanged; no two of its iterations exist.
    most = max(iterations[1] - iterations[0], 0)
    return -most, most
