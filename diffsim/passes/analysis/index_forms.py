"""Affine forms with variables for quotients: `q // 8`, `q % 8`, `max(i - 1, 0)`.

A quotient by a positive constant is a variable of its own, bound to its dividend by two inequalities:

    Q = q // 8:     0 <= q - 8 Q <= 7          q % 8 = q - 8 Q

So an index that takes a flattened loop apart is affine, and adds up to the loop's variable again. The
greatest or least of two numbers is such a variable too, with a bound from each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from diffsim.ir.nodes import Const, Task, Value, While
from diffsim.ir.traversal import statements
from diffsim.ir.types import i64
from diffsim.passes.analysis.affine import ANY, AffineForm, AffineForms, Interval, plus, times
from diffsim.passes.analysis.counted_loops import Counter, counter_of
from diffsim.passes.analysis.integer_system import combined
from diffsim.passes.analysis.once import once

_LEAST_WRAPPING = 128  # narrower sums than of 8 bits there are none


@once
def index_forms(task: Task) -> IndexForms:
    """Return the affine forms of a task's values, those with quotients included."""
    return IndexForms(task)


class IndexForms(AffineForms):
    """The integer values of a task as affine forms of loop variables, quotients and launch-wide values.

    Attributes:
        limits: for each variable that is no loop's, the forms that are 0 or more because of what it is.
        counters: the counters of while loops, which are variables of loops too.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.limits: dict[Value, tuple[AffineForm, ...]] = {}
        self.counters: dict[While, Counter] = {}
        for s in statements(task.body, given=True):
            counter = counter_of(s) if isinstance(s, While) else None
            if counter is not None:
                assert isinstance(s, While)
                self.counters[s] = counter
                self.ranges[counter.param] = _counted(counter)
        self._fitting: dict[tuple[Value, tuple[int, ...]], bool] = {}
        self._dividends: dict[Value, tuple[AffineForm, int]] = {}
        self._quotients: dict[tuple[frozenset[tuple[Value | None, int]], int], Value] = {}

    def exact(self, v: Value, component: tuple[int, ...] = ()) -> AffineForm | None:
        """Return the affine form of a number as the program computes it, which may wrap around.

        Addresses are computed in 64 bits, whatever the type of an index; what is compared or divided is not.
        """
        form = self.form(v, component)
        return form if form is not None and self._fits(v, component) else None

    def _fits(self, v: Value, component: tuple[int, ...]) -> bool:
        """Whether nothing on the way to the number can wrap around."""
        key = v, component
        if key not in self._fitting:
            let, form = self._definitions.get(v), self.form(v, component)
            # A quotient, or a part of a tensor, was exact when it became a form.
            fits = let is None or let.op.name not in ("add", "sub", "mul", "neg", "shl", "cast")
            if not fits and let is not None and form is not None:
                least, most = self._interval_of_types(form)
                inside = all(self._fits(x, component if x.type.shape else ()) for x in let.args)
                t = v.type.scalar
                fits = inside and t.holds(least) and t.holds(most)
            self._fitting[key] = fits
        return self._fitting[key]

    def _interval_of_types(self, form: AffineForm) -> Interval:
        """Return the numbers that a form takes, where variables of unknown bounds are any of their type."""
        total: Interval = (0, 0)
        for v, n in form.items():
            one: Interval = (n, n)
            if v is not None:
                known = self.ranges.get(v, ANY)
                least, most = v.type.scalar.limits if math.inf in map(abs, known) else known
                one = times(n, (least, most))
            total = plus(total, one)
        return total

    def are_equal(self, one: Iterable[Value], other: Iterable[Value]) -> bool:
        """Whether two indices of one iteration are certainly the same."""
        forms = [(self.form(a), self.form(b)) for a, b in zip(one, other, strict=False)]
        return all(a is not None and b is not None and not combined(a, b, -1) for a, b in forms)

    def loops_of(self, form: AffineForm) -> set[Value]:
        """Return the loops that the number depends on."""
        found: set[Value] = set()
        for v in form:
            if v in self.limits:
                for limit in self.limits[v]:
                    found |= self.loops_of({w: n for w, n in limit.items() if w is not v})
            elif v in self.ranges:
                found.add(v)
        return found

    def _compute(self, v: Value, component: tuple[int, ...]) -> AffineForm | None:
        found = super()._compute(v, component)
        let = self._definitions.get(v)
        if found is not None or let is None or not v.type.is_int or len(let.args) != 2:
            return found
        name, parts = let.op.name, [(x, component if x.type.shape else ()) for x in let.args]
        a, b = (self.exact(*part) for part in parts)
        if a is None and name in ("mod", "bit_and"):
            return self._last_bits(name, *(self.form(*part) for part in parts))
        if a is None or b is None:
            return None
        if name in ("max", "min"):
            return self._extreme(a, b, 1 if name == "max" else -1)
        if not isinstance(let.args[1], Const):
            return None
        n = b.get(None, 0)
        if name == "floordiv" and n > 0:
            return {self._quotient(a, n): 1}
        if name == "mod" and n > 0:
            return combined(a, {self._quotient(a, n): 1}, -n)
        if name in ("shr", "int_shr") and 0 <= n < v.type.scalar.bits:
            return {self._quotient(a, 1 << n): 1}
        # In two's complement the last bits are the remainder, of negative numbers too.
        if name == "bit_and" and n > 0 and not n & (n + 1):
            return combined(a, {self._quotient(a, n + 1): 1}, -n - 1)
        return None

    def _last_bits(
        self, name: str, a: AffineForm | None, b: AffineForm | None
    ) -> AffineForm | None:
        """Return the remainder by a power of two: numbers that wrap around keep their last bits."""
        if a is None or b is None or set(b) - {None}:
            return None
        n = b.get(None, 0) + (name == "bit_and")
        if not 0 < n <= _LEAST_WRAPPING or n & (n - 1):
            return None
        q = Value(i64, "quotient")
        self.ranges[q] = ANY
        self.limits[q] = _remainder_limits(a, q, n)
        return combined(a, {q: 1}, -n)

    def _quotient(self, form: AffineForm, n: int) -> Value:
        """Return the variable of a form divided by a positive number, rounded down."""
        form = {v: k for v, k in form.items() if k}
        inner = [v for v in form if v is not None]
        if len(inner) == 1 and form[inner[0]] == 1 and inner[0] in self._dividends:
            # (q // 4) // 4 is q // 16.
            dividend, divisor = self._dividends[inner[0]]
            return self._quotient(
                combined(dividend, {None: form.get(None, 0)}, divisor), n * divisor
            )
        key = frozenset(form.items()), n
        if key not in self._quotients:
            q = self._quotients[key] = Value(i64, "quotient")
            self._dividends[q] = form, n
            least, most = self.interval(form)
            self.ranges[q] = (_floored(least, n), _floored(most, n))
            self.limits[q] = (*_remainder_limits(form, q, n), *_range_limits(q, self.ranges[q]))
        return self._quotients[key]

    def _extreme(self, a: AffineForm, b: AffineForm, sign: int) -> AffineForm:
        """Return the greater of two forms (`sign` 1), or the smaller one (-1), as a variable."""
        m = Value(i64, "extreme")
        choose = max if sign > 0 else min
        one, other = self.interval(a), self.interval(b)
        self.ranges[m] = (choose(one[0], other[0]), choose(one[1], other[1]))
        itself: AffineForm = {m: sign}
        bounds = (combined(itself, form, -sign) for form in (a, b))
        self.limits[m] = (*bounds, *_range_limits(m, self.ranges[m]))
        return {m: 1}


def _remainder_limits(form: AffineForm, q: Value, n: int) -> tuple[AffineForm, ...]:
    """Return the bounds of form - n * q."""
    divided: AffineForm = {q: 1}
    rest = combined(form, divided, -n)
    return rest, combined({None: n - 1}, rest, -1)


def _range_limits(v: Value, numbers: Interval) -> list[AffineForm]:
    """Return what follows from the numbers that a variable takes: rounded, this says more than the rest."""
    ends = zip((1, -1), numbers, strict=True)
    return [{v: sign, None: int(-sign * end)} for sign, end in ends if not math.isinf(end)]


def _counted(counter: Counter) -> Interval:
    """Return the numbers that a counter takes; the condition is evaluated with the end as well."""
    first, end = counter.first, counter.end
    least = first.value if isinstance(first, Const) else -math.inf
    if not (isinstance(first, Const) and isinstance(end, Const)):
        return least, math.inf
    return least, max(first.value, end.value)


def _floored(end: float, n: int) -> float:
    return end if math.isinf(end) else end // n
