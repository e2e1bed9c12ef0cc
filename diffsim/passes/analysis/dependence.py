"""The dependence test: whether two accesses can touch the same element, and in which iterations.

Two accesses touch the same element only if their indices are equal along every axis. Where both indices are
affine forms of loop variables, each axis gives an equation for the distances between the iterations (of the
one access and of the other) of each loop:

    x[3 * i + k] and x[3 * i' + k' + 1]:     3 (i - i') + (k - k') = 1

A loop of n iterations keeps its distance within 1 - n .. n - 1, and an equation narrows one distance by what
is known of the others: with k from 0 to 2 the distance of i can only be 0. Some equations have no solution in
whole numbers at all (the GCD test). An index without an affine form gives no equation.

Where this does not decide, a system of all that is known is asked (`integer_system.py`): the equations, the
bounds of the loops, what quotients, remainders and masks are (`index_forms.py`), and the conditions of the
branches around the accesses (`path_conditions.py`).
"""

from __future__ import annotations

import functools
import itertools
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
from diffsim.passes.analysis.index_forms import MaskedNumber, index_forms
from diffsim.passes.analysis.integer_system import IntegerSystem, Linear, combined
from diffsim.passes.analysis.path_conditions import path_conditions

_ROUNDS = 4  # of narrowing; each passes what one equation has shown on to the others
_MOST_MASKED = 3  # numbers under masks whose consequences are drawn

Access = Load | Store | Atomic


class DistanceVector:
    """How far apart the iterations are in which two accesses touch the same element.

    Args:
        known: distances of loops.
        ranges: the iterations of all loops.
        never: whether they certainly never touch the same element.
        pair: all that is known of the two accesses; None: no more than that.
    """

    def __init__(
        self,
        known: dict[Value, Interval],
        ranges: dict[Value, Interval],
        pair: AccessPair | None,
        *,
        never: bool,
    ) -> None:
        self._known = known
        self._ranges = ranges
        self._pair = pair
        self._never = never

    @property
    def never(self) -> bool:
        """Whether they certainly never touch the same element."""
        return self._never or (self._pair is not None and self._pair.is_empty)

    def of(self, loop: Value) -> Interval:
        """Return the iteration of the first access minus that of the second one, as (least, most)."""
        found = self._known.get(loop)
        if found is None:
            found = _distance(self._ranges.get(loop, ANY))
        if found != ZERO and self._pair is not None:
            found = self._known[loop] = self._pair.narrowed(loop, found)
        return found

    def same(self, loops: Iterable[Value]) -> bool:
        """Whether both are in the same iteration of each of these loops."""
        return self._never or all(self.of(v) == ZERO for v in loops) or self.never


def distances(
    task: Task, a: Access, b: Access, same: Iterable[Value] = (), *, guarded: bool = True
) -> DistanceVector:
    """Return what is known of two accesses of a task to one memory if they touch the same element.

    Args:
        task: the task; its axes are loops like any other.
        a: one access.
        b: the other.
        same: loops in whose iterations the two agree.
        guarded: whether each is made only under the conditions of the branches around it.
    """
    forms = index_forms(task)
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
    same = tuple(same)
    known.update(dict.fromkeys(same, ZERO))
    for _ in range(_ROUNDS):
        before = dict(known)
        for x, y in equations:
            if not _narrow(forms, x, y, known):
                return DistanceVector(known, forms.ranges, None, never=True)
        if known == before:
            break
    pair = AccessPair(task, a, b, equations, frozenset(same)) if guarded else None
    return DistanceVector(known, forms.ranges, pair, never=False)


class AccessPair:
    """The conditions under which two accesses touch the same element, as a system in whole numbers.

    Variables of loops and quotients are (variable, 0) in the first access and (variable, 1) in the other.

    Args:
        task: the task of both.
        one: the first access.
        other: the other.
        equations: the indices that are equal then.
        same: loops in whose iterations the two agree.
    """

    def __init__(
        self,
        task: Task,
        one: Access,
        other: Access,
        equations: list[tuple[AffineForm, AffineForm]],
        same: frozenset[Value],
    ) -> None:
        self._task = task
        self._accesses = one, other
        self._equations = equations
        self._same = same
        self._forms = index_forms(task)

    @functools.cached_property
    def is_empty(self) -> bool:
        """Whether they certainly never do."""
        return self._system is not None and self._system.is_empty()

    def narrowed(self, loop: Value, known: Interval) -> Interval:
        """Return the signs that the distance of a loop may have, within what is known of it."""
        least, most = known
        if self._system is None:
            return known
        ahead = combined(self._named({loop: 1}, 0), self._named({loop: 1}, 1), -1)
        behind = combined({}, ahead, -1)
        if most > 0 and self._system.with_least(combined({None: -1}, ahead, 1)).is_empty():
            most = -1 if self._system.with_least(ahead).is_empty() else 0
        if least < 0 and self._system.with_least(combined({None: -1}, behind, 1)).is_empty():
            least = 1 if most > 0 and self._system.with_least(behind).is_empty() else 0
        return (least, most) if least <= most else ZERO

    @functools.cached_property
    def _system(self) -> IntegerSystem | None:
        """All that is known; None if that is nothing but bounds of loops."""
        conditions = path_conditions(self._task)
        sides = [conditions.of(access) for access in self._accesses]
        if not self._equations and not any(s.zero or s.nonzero for s in sides):
            return None
        system, variables = IntegerSystem(), dict[Value, None]()
        for side, found in enumerate(sides):
            indices = [pair[side] for pair in self._equations]
            reached = self._reached([*indices, *found.zero, *found.least, *found.nonzero])
            limits = [limit for v in reached for limit in self._forms.limits.get(v, ())]
            system.zero += [self._named(f, side) for f in found.zero]
            system.least += [self._named(f, side) for f in (*found.least, *limits)]
            system.nonzero += [self._named(f, side) for f in found.nonzero]
            variables.update(reached)
        system.zero += [
            combined(self._named(x, 0), self._named(y, 1), -1) for x, y in self._equations
        ]
        masked = [m for m in self._forms.masked if not variables.keys().isdisjoint(m.shared)]
        if masked:
            system.add_consequences(list(self._of_masks(masked[:_MOST_MASKED])))
        return system

    def _reached(self, forms: Iterable[AffineForm]) -> dict[Value, None]:
        """Return the variables in some forms, and those that quotients among them are made of."""
        open_, seen = list(forms), dict[Value, None]()
        while open_:
            for v in open_.pop():
                if v is not None and v not in seen:
                    seen[v] = None
                    open_ += self._forms.limits.get(v, ())
        return seen

    def _of_masks(self, masked: list[MaskedNumber]) -> Iterator[tuple[Linear, Linear]]:
        """Yield what is 0 if another form is 0, for numbers under the same mask.

        x -> x & m is a function, x -> x ^ m one that is its own inverse: no two numbers have the same x ^ m,
        and if y is x ^ m, then x is y ^ m.
        """

        def difference(a: AffineForm, one: int, b: AffineForm, other: int) -> Linear:
            return combined(self._named(a, one), self._named(b, other), -1)

        both = [(m, side) for m in masked for side in (0, 1)]
        for (a, one), (b, other) in itertools.combinations(both, 2):
            if a.mask == b.mask:
                same = difference(a.number, one, b.number, other)
                yield same, difference(a.shared, one, b.shared, other)
                yield difference(a.exclusive, one, b.exclusive, other), same
                swapped = difference(a.exclusive, one, b.number, other)
                back = difference(b.exclusive, other, a.number, one)
                yield swapped, back
                yield back, swapped

    def _named(self, form: AffineForm, side: int) -> Linear:
        """Return a form with the variables of one access."""
        # A launch-wide value is one number, and so is what depends on loops alone in which the two agree.
        return {
            v if v not in self._forms.ranges or self._is_same(v) else (v, side): n
            for v, n in form.items()
        }

    def _is_same(self, v: Value | None) -> bool:
        assert v is not None
        return v in self._same or (
            v in self._forms.limits and self._forms.loops_of({v: 1}) <= self._same
        )


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
    # Banerjee's test: 0 lies outside the interval of the difference.
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
