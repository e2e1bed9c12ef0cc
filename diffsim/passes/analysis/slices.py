"""Slices: the indices along each axis that an access stays within, known once a launch has its arguments.

The bounds of an index over all iterations (`launch_tests.py`) are polynomials in the arguments:

    x[1 - p, i]                          along axis 0 the index 1 - p alone
    u[(t + 1) * n + i], i in range(n)    along axis 0 the indices (t + 1) * n .. (t + 2) * n - 1

The runtime keeps versions of rows of one axis, which are single indices, or blocks of as many as a step of
time moves a slice by (its `stride`). Which row holds a slice is computed at the launch; one that lies in
several rows counts as the whole memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from diffsim.ir.nodes import Arg, Const, Dim, Mem, Task, Value
from diffsim.passes.analysis.launch_tests import IndexBounds, Linear, Polynomial, added
from diffsim.passes.analysis.once import once

Form = tuple[tuple[tuple[Value, ...], int], ...]
"""A polynomial that can be compared and hashed: products of launch-wide values, with their coefficients."""


class Divided(Value):
    """A launch-wide number divided by a positive constant: `t // 2`, or its remainder `t % 2`.

    Attributes:
        op: `//` or `%`.
        dividend, divisor: the numbers.
        bits: the width of the dividend, where computing it may wrap around; 0: it does not.
    """

    def __init__(self, value: Value, op: str, dividend: Form, divisor: int, bits: int) -> None:
        super().__init__(value.type, "divided")
        self.op = op
        self.dividend = dividend
        self.divisor = divisor
        self.bits = bits


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
    bounds = _bounds(task)
    found = []
    for axis, i in enumerate(index):
        known = bounds.of(i)
        if known is None or len(known.least) > 1 or len(known.greatest) > 1:
            continue
        made = Slice(axis, _form(known.least[0]), _form(known.greatest[0]))
        if all(map(_is_known, made.leaves)) and not _is_everything(made, mem):
            found.append(made)
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
    if not isinstance(v, Divided):
        return name_of(v)
    text = form_text(v.dividend, name_of)
    if v.bits:  # two's complement
        half = 1 << (v.bits - 1)
        text = f"({text} + {half}) % {2 * half} - {half}"
    return f"(({text}) {v.op} {v.divisor})"


@once
def _bounds(task: Task) -> _SliceBounds:
    return _SliceBounds(task)


class _SliceBounds(IndexBounds):
    """Bounds in which quotients of launch-wide numbers are numbers, too: x[t % 2, i]."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        # One object for equal quotients, as values are compared by identity.
        self._quotients: dict[tuple[str, Form, int, int], Divided] = {}

    def _linear(self, v: Value) -> Linear | None:
        found = super()._linear(v)
        let = self._definitions.get(v)
        if found is not None or let is None or let.op.name not in _QUOTIENTS:
            return found
        a, b = let.args
        bits = self._wrapping_bits(a)
        if not isinstance(b, Const) or v.type.shape or v.type.scalar.kind != "i" or bits is None:
            return None
        dividend, n = self._linear(a), int(b.value)
        if dividend is None or n <= 0 or set(dividend) - {None}:
            return None
        key = _QUOTIENTS[let.op.name], _form(dividend.get(None, {})), n, bits
        if key not in self._quotients:
            self._quotients[key] = Divided(v, *key)
        return {None: {(self._quotients[key],): 1}}

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


_QUOTIENTS = {"floordiv": "//", "mod": "%"}


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


def _leaves(form: Form) -> Iterator[Value]:
    for product, _ in form:
        for v in product:
            if isinstance(v, Divided):
                yield from _leaves(v.dividend)
            else:
                yield v


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


def _form(p: Polynomial) -> Form:
    # The order of a dict is that in which it was made: equal polynomials are equal forms in any order.
    return tuple(sorted(((k, n) for k, n in p.items() if n), key=_order))


def _order(term: tuple[tuple[Value, ...], int]) -> tuple[int, tuple[int, ...]]:
    return len(term[0]), tuple(map(id, term[0]))
