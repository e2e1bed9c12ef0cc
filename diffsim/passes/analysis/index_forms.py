"""Affine forms with variables for quotients: `q // 8`, `q % 8`, `max(i - 1, 0)`.

A quotient by a positive constant is a variable of its own, bound to its dividend by two inequalities:

    Q = q // 8:     0 <= q - 8 Q <= 7          q % 8 = q - 8 Q

So an index that takes a flattened loop apart is affine, and adds up to the loop's variable again. The
greatest or least of two numbers is such a variable too, with a bound from each of them.

The bits that a number shares with a mask, N = i & m, are a difference of quotients if the mask is a constant,
and a variable if it is another number that is the same in all lanes. The other two operations follow from it:

    i | m = i + m - N          i ^ m = i + m - 2 N
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diffsim.ir.nodes import Arg, Const, Dim, Task, Value, While
from diffsim.ir.traversal import statements
from diffsim.ir.types import i64
from diffsim.passes.analysis.affine import ANY, AffineForm, AffineForms, Interval, plus, times
from diffsim.passes.analysis.counted_loops import Counter, counter_of
from diffsim.passes.analysis.integer_system import combined
from diffsim.passes.analysis.once import once

_LEAST_WRAPPING = 128  # narrower sums than of 8 bits there are none
_MOST_RUNS = 4  # of ones in a constant mask; each has two quotients


@dataclass(frozen=True, slots=True)
class MaskedNumber:
    """A number and a mask that is the same in all lanes: `shared` are the bits of both, number & mask."""

    number: AffineForm
    mask: AffineForm
    shared: AffineForm

    @property
    def either(self) -> AffineForm:
        """Number | mask."""
        return combined(combined(self.number, self.mask, 1), self.shared, -1)

    @property
    def exclusive(self) -> AffineForm:
        """Number ^ mask."""
        return combined(self.either, self.shared, -1)


@once
def index_forms(task: Task) -> IndexForms:
    """Return the affine forms of a task's values, those with quotients included."""
    return IndexForms(task)


class IndexForms(AffineForms):
    """The integer values of a task as affine forms of loop variables, quotients and launch-wide values.

    Attributes:
        limits: for each variable that is no loop's, the forms that are 0 or more because of what it is.
        counters: the counters of while loops, which are variables of loops too.
        masked: the numbers that a mask is applied to.
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
        self.masked: list[MaskedNumber] = []
        self._shared: dict[Value, AffineForm] = {}
        self._launch_wide_ops: dict[Value, Value | None] = {}
        self._same_ops: dict[object, Value] = {}

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
            if v in self._shared:
                found |= self.loops_of(self._shared[v])
            elif v in self.limits:
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
        # Only ops that work on each component by itself go on: a product of matrices does not, nor what
        # takes one component out of a vector that has no form.
        if any(x.type.shape not in ((), v.type.shape) for x in let.args):
            return None
        name, parts = let.op.name, [(x, component if x.type.shape else ()) for x in let.args]
        if name in ("bit_and", "bit_or", "bit_xor"):
            found = self._masked(name, parts)
            if found is not None:
                return found
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
        return None

    def _masked(self, name: str, parts: list[tuple[Value, tuple[int, ...]]]) -> AffineForm | None:
        """Return a number & mask, | mask or ^ mask."""
        for k in (1, 0):
            mask, number = self._launch_wide(*parts[k]), self.exact(*parts[1 - k])
            if mask is not None and number is not None:
                m = self._with_mask(number, mask)
                return {"bit_and": m.shared, "bit_or": m.either, "bit_xor": m.exclusive}[name]
        return None

    def _with_mask(self, number: AffineForm, mask: AffineForm) -> MaskedNumber:
        for m in self.masked:
            if m.number == number and m.mask == mask:
                return m
        shared = None if set(mask) - {None} else self._shared_bits(number, mask.get(None, 0))
        if shared is None:
            shared = {self._shared_variable(number, mask): 1}
        self.masked.append(MaskedNumber(number, mask, shared))
        return self.masked[-1]

    def _shared_variable(self, number: AffineForm, mask: AffineForm) -> Value:
        """Return the variable of number & mask."""
        v = Value(i64, "shared")
        self.ranges[v], self._shared[v] = ANY, number
        limits: list[AffineForm] = []
        for form in (number, mask):
            # Bits of a number that is not negative are from 0 to that number.
            if self.interval(form)[0] >= 0:
                limits += [{v: 1}, combined(form, {v: 1}, -1)]
        self.limits[v] = tuple(limits)
        return v

    def _shared_bits(self, form: AffineForm, mask: int) -> AffineForm | None:
        """Return form & mask for a constant mask, of few runs of ones."""
        if mask < 0:
            rest = self._shared_bits(form, ~mask)
            return None if rest is None else combined(form, rest, -1)
        runs = list(_runs(mask))
        total: AffineForm = {}
        # In two's complement the bits from b on are the quotient by 2^b, of negative numbers too.
        for first, end in runs if len(runs) <= _MOST_RUNS else ():
            above: AffineForm = {self._quotient(form, 1 << first): 1} if first else form
            beyond: AffineForm = {self._quotient(form, 1 << end): 1}
            total = combined(combined(total, above, 1 << first), beyond, -(1 << end))
        return total if len(runs) <= _MOST_RUNS else None

    def _launch_wide(self, v: Value, component: tuple[int, ...]) -> AffineForm | None:
        """Return a number that is the same in all lanes, as an operand of an op; None if it is not."""
        form = self.exact(v, component)
        if form is not None:
            return None if self.loops_of(form) else form
        op = None if v.type.shape else self._launch_wide_op(v)
        return None if op is None else {op: 1}

    def _launch_wide_op(self, v: Value) -> Value | None:
        """Return one value for all that are computed of arguments and constants in the same way."""
        if v not in self._launch_wide_ops:
            self._launch_wide_ops[v] = self._compute_launch_wide(v)
        return self._launch_wide_ops[v]

    def _compute_launch_wide(self, v: Value) -> Value | None:
        if isinstance(v, (Arg, Dim)):
            return v
        let = self._definitions.get(v)
        if isinstance(v, Const):
            key: object = v.type, v.value
        elif let is None:
            return None
        else:
            args = [self._launch_wide_op(a) for a in let.args]
            if None in args:
                return None
            key = let.op, v.type, tuple(args)
        return self._same_ops.setdefault(key, v)

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


def _trailing_zeros(n: int) -> int:
    return (n & -n).bit_length() - 1


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of ones in a number: their first bit, and the one after the last."""
    at = 0
    while mask >> at:
        first = at = at + _trailing_zeros(mask >> at)
        while mask >> at & 1:
            at += 1
        yield first, at


def _counted(counter: Counter) -> Interval:
    """Return the numbers that a counter takes; the condition is evaluated with the end as well."""
    first, end = counter.first, counter.end
    least = first.value if isinstance(first, Const) else -math.inf
    if not (isinstance(first, Const) and isinstance(end, Const)):
        return least, math.inf
    return least, max(first.value, end.value)


def _floored(end: float, n: int) -> float:
    return end if math.isinf(end) else end // n
