"""Systems of linear equations and inequalities in whole numbers: whether one certainly has no solution.

Equations are solved exactly, and removed (the equality elimination of W. Pugh, The Omega test, 1991), so that
2 a = 2 b + 1 is known to have no solution, nor have several equations that imply it. What is left are
inequalities, whose variables are eliminated one by one (Fourier-Motzkin); each is rounded to whole numbers.
An inequality and its opposite are an equation again.

"Has no solution" is a proof. The opposite is not: rounding is not complete, and large systems are given up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

V = TypeVar("V", bound=Hashable)
Variable = Hashable
"""None stands for the constant term."""
Linear = dict[Variable, int]

_MOST = 120  # inequalities; each elimination may square their number
_MOST_CASES = 16


class IntegerSystem:
    """Conditions on whole numbers.

    Attributes:
        zero: forms that are 0.
        least: forms that are 0 or more.
        nonzero: forms that are not 0.
    """

    def __init__(
        self,
        zero: Iterable[Linear] = (),
        least: Iterable[Linear] = (),
        nonzero: Iterable[Linear] = (),
    ) -> None:
        self.zero = list(zero)
        self.least = list(least)
        self.nonzero = list(nonzero)

    def with_least(self, form: Linear) -> IntegerSystem:
        """Return the system with one more form that is 0 or more."""
        return IntegerSystem(self.zero, [*self.least, form], self.nonzero)

    def add_consequences(self, rules: list[tuple[Linear, Linear]]) -> None:
        """Add the second form of each rule as 0 if the first one is, because of the equations."""
        while rules:
            # Whatever is 0 in all solutions has no variable left when the equations are solved.
            solved = _solve(self.zero, [given for given, _ in rules])
            if solved is None:
                return
            found = [not any(form.values()) for form in solved]
            self.zero += [then for (_, then), is_zero in zip(rules, found, strict=True) if is_zero]
            if not any(found):
                return
            rules = [r for r, is_zero in zip(rules, found, strict=True) if not is_zero]

    def is_empty(self) -> bool:
        """Whether the system certainly has no solution."""
        # A number that is not 0 is above or below it; too many cases are left out, which is sound.
        apart = self.nonzero[: int(math.log2(_MOST_CASES))]
        for signs in itertools.product((1, -1), repeat=len(apart)):
            sides = [
                combined({None: -1}, form, sign) for form, sign in zip(apart, signs, strict=True)
            ]
            if not _has_no_solution(self.zero, [*self.least, *sides]):
                return False
        return True


def combined(a: Mapping[V, int], b: Mapping[V, int], factor: int) -> dict[V, int]:
    """Return a + factor * b, without terms that cancel."""
    total = dict(a)
    for v, n in b.items():
        total[v] = total.get(v, 0) + factor * n
    return {v: n for v, n in total.items() if n}


def _has_no_solution(zero: list[Linear], least: list[Linear]) -> bool:
    """Whether no whole numbers make these forms 0, and those not negative."""
    while zero:
        solved = _solve(zero, least)
        if solved is None:
            return True
        tight = _tightest(solved)
        if tight is None:
            return True
        # f >= 0 and -f >= 0 is one more equation; solving it leaves fewer variables.
        zero = [
            {**dict(terms), None: n} for terms, n in tight.items() if _is_forced(terms, n, tight)
        ]
        least = [{**dict(terms), None: n} for terms, n in tight.items()]
    tight = _tightest(least)
    return tight is None or _eliminate_all(tight)


def _solve(zero: list[Linear], least: list[Linear]) -> list[Linear] | None:
    """Return the inequalities with all equations solved; None if those have no solution."""
    zero = list(zero)
    while zero:
        form = {v: n for v, n in zero.pop().items() if n}
        factors = [n for v, n in form.items() if v is not None]
        divisor = math.gcd(*factors)
        if form.get(None, 0) % divisor if divisor else form:
            return None
        if not divisor:
            continue
        form = {v: n // divisor for v, n in form.items()}
        v = min((x for x in form if x is not None), key=lambda x: abs(form[x]))
        if form[v] < 0:
            form = {x: -n for x, n in form.items()}
        m = form[v]
        # v = s - (the rest divided by m), with the new number s: what is left of the equation has
        # coefficients below m. For m = 1 nothing is left, and s is 0.
        value = {x: -(n // m) for x, n in form.items() if x != v}
        if m > 1:
            value[object()] = 1
            zero.append(_replaced(form, v, value))
        zero = [_replaced(f, v, value) for f in zero]
        least = [_replaced(f, v, value) for f in least]
    return least


def _replaced(form: Linear, v: Variable, value: Linear) -> Linear:
    """Return a form with a variable replaced."""
    if v not in form:
        return form
    rest = {x: n for x, n in form.items() if x != v}
    return combined(rest, value, form[v])


Terms = frozenset[tuple[Variable, int]]


def _tightest(least: Iterable[Linear]) -> dict[Terms, int] | None:
    """Return for each sum of variables the least constant; None if a form is negative."""
    found: dict[Terms, int] = {}
    for form in least:
        constant = form.get(None, 0)
        terms = {v: n for v, n in form.items() if v is not None and n}
        if not terms:
            if constant < 0:
                return None
            continue
        divisor = math.gcd(*terms.values())
        # Divided by what divides all coefficients, the constant is rounded down: the sum is whole.
        key = frozenset((v, n // divisor) for v, n in terms.items())
        found[key] = min(found.get(key, constant // divisor), constant // divisor)
    return found


def _is_forced(terms: Terms, constant: int, tight: dict[Terms, int]) -> bool:
    """Whether the opposite inequality holds as well, so that the form is 0."""
    other = tight.get(frozenset((v, -n) for v, n in terms))
    return other is not None and other + constant == 0


def _eliminate_all(tight: dict[Terms, int]) -> bool:
    """Whether elimination of all variables, one by one, ends in a contradiction."""
    while tight:
        lower: dict[Variable, list[Linear]] = {}
        upper: dict[Variable, list[Linear]] = {}
        for terms, n in tight.items():
            form = {**dict(terms), None: n}
            for v, k in terms:
                (lower if k > 0 else upper).setdefault(v, []).append(form)
        variables = {v: len(lower.get(v, ())) * len(upper.get(v, ())) for v in {**lower, **upper}}
        v = min(variables, key=variables.__getitem__)
        if len(tight) + variables[v] > _MOST:
            return False
        kept = [{**dict(t), None: n} for t, n in tight.items() if not any(x == v for x, _ in t)]
        for below, above in itertools.product(lower.get(v, ()), upper.get(v, ())):
            scaled = {x: n * -above[v] for x, n in below.items()}
            kept.append(combined(scaled, above, below[v]))
        found = _tightest(kept)
        if found is None:
            return True
        tight = found
    return False
