"""Slices: the indices along each axis that an access stays within, known once a launch has its arguments.

The bounds of an index over all iterations (`launch_tests.py`) are polynomials in the arguments, or quotients:

    x[1 - p, i]                          along axis 0 the index 1 - p alone
    u[(t + 1) * n + i], i in range(n)    along axis 0 the indices (t + 1) * n .. (t + 2) * n - 1
    J[(v - 1) // 2], v in range(a, b)    along axis 0 the indices (a - 1) // 2 .. (b - 2) // 2
    r[i, d - i], i in range(a, b)        besides the indices along the axes, their sum d (a `Diagonal`)

The runtime keeps versions of rows of one axis, which are single indices, or blocks of as many as a step of
time moves a slice by (its `stride`). Which row holds a slice is computed at the launch; one that lies in
several rows counts as the whole memory.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from diffsim.ir.nodes import Arg, Const, Dim, Mem, Task, Value
from diffsim.ir.types import Type, i64
from diffsim.passes.analysis.launch_tests import (
    Bounds,
    IndexBounds,
    Linear,
    Polynomial,
    added,
    combined,
)
from diffsim.passes.analysis.once import once

Form = tuple[tuple[tuple[Value, ...], int], ...]
"""A polynomial that can be compared and hashed: products of launch-wide values, with their coefficients."""


class Computed(Value):
    """A number that a launch computes of others, and that counts as one of the launch-wide numbers.

    Attributes:
        forms: what it is computed of.
    """

    forms: tuple[Form, ...]

    def text(self, *texts: str) -> str:
        """Return it as an expression of Python, given those of `forms`, without any name of its own."""
        raise NotImplementedError


class Divided(Computed):
    """A launch-wide number divided by a positive constant: `t // 2`, or its remainder `t % 2`.

    Attributes:
        op: `//` or `%`.
        divisor: the constant.
        bits: the width of the dividend, where computing it may wrap around; 0: it does not.
    """

    def __init__(self, value: Value, op: str, dividend: Form, divisor: int, bits: int) -> None:
        super().__init__(value.type, "divided")
        self.op = op
        self.forms = (dividend,)
        self.divisor = divisor
        self.bits = bits

    def text(self, *texts: str) -> str:
        (text,) = texts
        if self.bits:  # two's complement
            half = 1 << (self.bits - 1)
            text = f"({text} + {half}) % {2 * half} - {half}"
        return f"(({text}) {self.op} {self.divisor})"


class EndOfQuotient(Computed):
    """The least or greatest quotient of an index of lanes by a positive constant: of `(v - 1) // 2`.

    Where the dividend may wrap around in some lane, it is that of all numbers of its type.

    Attributes:
        is_first: whether it is the least.
        divisor: the constant.
    """

    def __init__(
        self, value: Value, least: Form, greatest: Form, divisor: int, *, is_first: bool
    ) -> None:
        super().__init__(value.type, "end")
        self.forms = (least, greatest)
        self.divisor = divisor
        self.is_first = is_first

    def text(self, *texts: str) -> str:
        least, greatest = texts
        half = 1 << (self.type.scalar.bits - 1)
        end, all_of = (least, -half) if self.is_first else (greatest, half - 1)
        fits = f"-{half} <= {least} and {greatest} < {half}"
        return f"((({end}) if {fits} else {all_of}) // {self.divisor})"


class Extreme(Computed):
    """The smaller or greater one of two numbers, of which the launch knows which it is.

    Attributes:
        is_least: whether it is the smaller one.
    """

    def __init__(self, value: Value, one: Form, other: Form, *, is_least: bool) -> None:
        super().__init__(value.type, "extreme")
        self.forms = (one, other)
        self.is_least = is_least

    def text(self, *texts: str) -> str:
        one, other = texts
        return f"(({one}) if {one} {'<' if self.is_least else '>'} {other} else ({other}))"


@dataclass(frozen=True, slots=True)
class Slice:
    """The indices from `first` to `last` along an axis; none, if `last` is less than `first`."""

    axis: int
    first: Form
    last: Form

    @property
    def is_single(self) -> bool:
        """Whether it is one index in every launch."""
        return self.first == self.last

    @property
    def spread(self) -> Form:
        """How far the last index is from the first one."""
        return _form(added(dict(self.last), dict(self.first), -1))

    @property
    def leaves(self) -> Iterator[Value]:
        """The launch-wide values that it depends on."""
        return _leaves((*self.first, *self.last))

    @property
    def stride(self) -> Form | None:
        """How many indices a row should have along the axis; None: the arguments do not move the slice."""
        if self.is_single:
            return _form({(): 1}) if constant_of(self.first) is None else None
        return next(self._strides(), None)

    @property
    def block(self) -> int | None:
        """The same, if it is a number; None: a launch decides."""
        return None if self.stride is None else constant_of(self.stride)

    def _strides(self) -> Iterator[Form]:
        # u[t * n + i], i in range(n): one step of t moves the slice by n, which is not less than its length.
        # One step of n moves it by t, about which nothing is known.
        first, last = dict(self.first), dict(self.last)
        length = added(dict(self.spread), {(): 1}, 1)
        for leaf in dict.fromkeys(v for product, _ in self.first for v in product):
            step = _factor(first, leaf)
            if step is None or step != _factor(last, leaf):
                continue
            for sign in (1, -1):
                room = added({p: sign * n for p, n in step.items()}, length, -1)
                if all(n >= 0 for n in room.values()):
                    yield _form({p: sign * n for p, n in step.items()})

    def row(self, block: int) -> Form | None:
        """Return the row of so many indices that holds it; None if no form says that for all launches."""
        first, last = dict(self.first), dict(self.last)
        least, most = first.pop((), 0) // block, last.pop((), 0) // block
        # (first + c) // block is first // block + c // block if the block divides all of `first`.
        if first != last or least != most or any(n % block for n in first.values()):
            return None
        return _form(added({p: n // block for p, n in first.items()}, {(): least}, 1))


def slices_of(mem: Mem, index: Iterable[Value], task: Task) -> tuple[Slice, ...]:
    """Return the slices along the axes of an access, but for those that say nothing."""
    bounds = _bounds_of(task)
    found = []
    for axis, i in enumerate(index):
        ends = bounds.ends_of(i)
        if ends is None:
            continue
        made = Slice(axis, *ends)
        if all(map(_is_known, made.leaves)) and not _is_everything(made, mem):
            found.append(made)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Diagonal:
    """The indices whose sum, each with a sign, is from `first` to `last`: r[i, d - i].

    Attributes:
        signs: 1, -1, or 0 for each axis.
    """

    signs: tuple[int, ...]
    first: Form
    last: Form


def diagonals_of(index: tuple[Value, ...], task: Task) -> tuple[Diagonal, ...]:
    """Return the diagonals that an access stays within.

    Those of two axes, and the one of all axes, along which less changes than along one of them.
    """
    bounds = _bounds_of(task)
    forms = [bounds.linear(i) for i in index]
    if sum(bool(form) and bool(set(form or ()) - {None}) for form in forms) < 2:
        return ()
    ways = []
    for a, b in itertools.combinations(range(len(index)), 2):
        ways += [[int(k == a) + sign * (k == b) for k in range(len(index))] for sign in (1, -1)]
    if len(index) > 2:
        ways.append([1] * len(index))
    found = []
    for signs in ways:
        total: Linear | None = {}
        for sign, form in zip(signs, forms, strict=True):
            total = combined(total, form, sign) if sign else total
        if total is None:
            continue
        loops = {v for sign, form in zip(signs, forms, strict=True) if sign and form for v in form}
        ends = bounds.ends_of_form(total) if loops - set(total) - {None} else None
        if ends is not None and all(map(_is_known, _leaves((*ends[0], *ends[1])))):
            found.append(Diagonal(tuple(signs), *ends))
    return tuple(found)


def single(axis: int, argument: Arg | None, shift: int) -> Slice:
    """Return the slice of the index `argument + shift`."""
    at = _form(added({} if argument is None else {(argument,): 1}, {(): shift}, 1))
    return Slice(axis, at, at)


def form_text(form: Form, name_of: Callable[[Value], str]) -> str:
    """Return a form as an expression of Python, with the names of launch-wide values."""
    text = ""
    for product, n in sorted(form, key=lambda term: not term[0]):
        factors = [_leaf_text(v, name_of) for v in product]
        if abs(n) != 1 or not factors:
            factors.append(str(abs(n)))
        sign = ("-" if n < 0 else "") if not text else " - " if n < 0 else " + "
        text += sign + "*".join(factors)
    return text or "0"


def _leaf_text(v: Value, name_of: Callable[[Value], str]) -> str:
    if not isinstance(v, Computed):
        return name_of(v)
    return v.text(*(form_text(f, name_of) for f in v.forms))


def _leaves(form: Form) -> Iterator[Value]:
    """Return the arguments and dimensions that a form depends on."""
    for product, _ in form:
        for v in product:
            if isinstance(v, Computed):
                for inner in v.forms:
                    yield from _leaves(inner)
            else:
                yield v


def _form(p: Polynomial) -> Form:
    """Return a polynomial as a form."""
    # The order of a dict is that in which it was made: equal polynomials are equal forms in any order.
    return tuple(sorted(((k, n) for k, n in p.items() if n), key=_order))


def _order(term: tuple[tuple[Value, ...], int]) -> tuple[int, tuple[int, ...]]:
    return len(term[0]), tuple(map(id, term[0]))


@once
def _bounds_of(task: Task) -> _SliceBounds:
    """Return the bounds of a task's indices."""
    return _SliceBounds(task)


class _SliceBounds(IndexBounds):
    """Bounds in which quotients by constants are numbers, too: x[t % 2, i], J[(v - 1) // 2]."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        # One object for equal numbers, as values are compared by identity.
        self._made: dict[Any, Any] = {}
        # Those that lanes tell count as loop variables, of which only the bounds are known.
        self._quotients: dict[Value, Bounds] = {}

    def linear(self, v: Value) -> Linear | None:
        """Return a value as a linear form of loop variables, and of quotients of them."""
        return self._linear(v)

    def ends_of(self, v: Value) -> tuple[Form, Form] | None:
        """Return the least and the greatest value."""
        form = self._linear(v)
        return None if form is None else self.ends_of_form(form)

    def ends_of_form(self, form: Linear) -> tuple[Form, Form] | None:
        """Return the least and the greatest value of a linear form."""
        bounds = self._of_form(form)
        if bounds is None or max(len(bounds.least), len(bounds.greatest)) > 2:
            return None
        least, greatest = map(_form, bounds.least), map(_form, bounds.greatest)
        return self._extreme(*least, is_least=True), self._extreme(*greatest, is_least=False)

    def _extreme(self, one: Form, other: Form | None = None, *, is_least: bool) -> Form:
        if other is None or one == other:
            return one
        make = functools.partial(Extreme, Const(i64, 0), one, other, is_least=is_least)
        return (((self._once((one, other, is_least), make),), 1),)

    def _once(self, key: Any, make: Callable[[], Value]) -> Value:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def _ends(self, loop: Value) -> Bounds | None:
        return self._quotients.get(loop) or super()._ends(loop)

    def _linear(self, v: Value) -> Linear | None:
        found = super()._linear(v)
        let = self._definitions.get(v)
        if found is not None or let is None or let.op.name not in _QUOTIENTS:
            return found
        a, b = let.args
        if not isinstance(b, Const) or v.type.shape or v.type.scalar.kind != "i":
            return None
        op, n = _QUOTIENTS[let.op.name], int(b.value)
        if op == ">>":
            op, n = "//", 1 << n if 0 <= n < v.type.scalar.bits else 0
        if n <= 0:
            return None
        dividend, bits = self._linear(a), self._wrapping_bits(a)
        if dividend is not None and bits is not None and set(dividend) <= {None}:
            key = op, _form(dividend.get(None, {})), n, bits
            return {None: {(self._once(key, functools.partial(Divided, v, *key)),): 1}}
        return self._of_lanes(v, op, dividend if self._is_modular(a, v.type) else None, n)

    def _of_lanes(self, v: Value, op: str, dividend: Linear | None, n: int) -> Linear | None:
        """Return a quotient or remainder that lanes tell, of a dividend that is exact if it fits."""
        if op == "%":
            made = self._once(v, functools.partial(Value, v.type, "remainder"))
            # Whatever is divided.
            self._quotients[made] = Bounds(({},), ({(): n - 1} if n > 1 else {},))
            return {made: {(): 1}}
        ends = None if dividend is None else self.ends_of_form(dividend)
        if ends is None or dividend is None:
            return None
        places = sorted((id(loop), _form(p)) for loop, p in dividend.items())
        key = v.type.scalar.bits, n, tuple(places)
        made = self._once(key, functools.partial(Value, v.type, "quotient"))
        if made not in self._quotients:
            first, last = (EndOfQuotient(v, *ends, n, is_first=k == 0) for k in range(2))
            self._quotients[made] = Bounds(({(first,): 1},), ({(last,): 1},))
        return {made: {(): 1}}

    def _wrapping_bits(self, v: Value) -> int | None:
        """Return the bits with which the program computes a dividend (0: exactly); None: not followed."""
        # What is divided is no address: it is computed in its own type.
        if isinstance(v, Arg):
            return 0
        let = self._definitions.get(v)
        plain = let is not None and let.op.name in ("add", "sub") and not v.type.shape
        if let is None or not plain or not all(isinstance(a, (Arg, Const)) for a in let.args):
            return None
        return v.type.scalar.bits

    def _is_modular(self, v: Value, of: Type) -> bool:
        """Whether a dividend is computed by sums and products in one type.

        These wrap around, wherever they do, to the exact number, if that fits into the type.
        """
        if v.type != of:
            return False
        let = self._definitions.get(v)
        if let is None or let.op.name in _QUOTIENTS:
            return True  # what it stands for in the linear form
        return let.op.name in _MODULAR and all(self._is_modular(a, of) for a in let.args)


_QUOTIENTS = {"floordiv": "//", "mod": "%", "shr": ">>", "int_shr": ">>"}
_MODULAR = ("add", "sub", "neg", "mul")


def _is_known(v: Value) -> bool:
    """Whether a launch function can compute it from the parameters."""
    return isinstance(v, Arg) or (isinstance(v, Dim) and v.mem.kind == "array")


def _is_everything(s: Slice, mem: Mem) -> bool:
    """Whether it is all of an axis, whatever the arguments."""
    least, most = (constant_of(form) for form in (s.first, s.last))
    if mem.shape is None or least is None or most is None:
        return False
    return least <= 0 and most >= mem.shape[s.axis] - 1


def constant_of(form: Form) -> int | None:
    """Return the number that a form is in every launch, if there is one."""
    if any(product for product, _ in form):
        return None
    return form[0][1] if form else 0


def _factor(form: Polynomial, leaf: Value) -> Polynomial | None:
    """Return what a value is multiplied with; None if it is squared."""
    found: Polynomial = {}
    for product, n in form.items():
        rest = tuple(v for v in product if v is not leaf)
        if len(product) - len(rest) > 1:
            return None
        if len(rest) < len(product):
            found[rest] = n
    return found
