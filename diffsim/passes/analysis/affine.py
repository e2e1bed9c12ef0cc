"""Index arithmetic: an index as a base value plus a constant, or as an affine form of loop variables.

`offset_of` is fast, and distinguishes elements whose indices differ by a constant. `AffineForms` is precise;
the dependence test is built on it. `range_of` and `truth` say what a base plus a constant is in all lanes:
an end of a range is a number, or a launch-wide number plus a constant. `range(1, n - 1)` has the lanes from 1
to n - 2, so `i + 1 < n` is true in all of them, whatever n is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from diffsim.ir.layout import strides_of
from diffsim.ir.nodes import (
    Arg,
    Atomic,
    Const,
    Dim,
    For,
    Kernel,
    Let,
    Load,
    Mem,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import statements, task_statements
from diffsim.ir.types import ScalarType, size_of
from diffsim.passes.analysis.once import once

Definitions = dict[Value, Let]
"""The op that computes each value."""
Offset = tuple[Value | None, int]
"""A value (None: 0) plus a constant."""
Element = tuple[Offset, ...]
"""The canonical index of an element: equal tuples are certainly the same element."""
Range = tuple[Offset, Offset]
"""The first and the last value."""
Ranges = dict[Value, Range]
"""The ranges of axes."""
_FARTHEST = 1 << 16
"""How far from a launch-wide value an end may be: nothing wraps around there."""
_FEWEST = 8
"""Iterations of a loop that are a vector."""
AffineForm = dict[Value | None, int]
"""Coefficients of loop variables and of launch-wide values (None: the constant term)."""
Interval = tuple[float, float]
"""The least and the greatest number; both may be infinite."""

ANY: Interval = (-math.inf, math.inf)
ZERO: Interval = (0, 0)


@once
def definitions(kernel: Kernel) -> Definitions:
    """Return the op that computes each value of a kernel, custom derivatives included."""
    found = [task_definitions(t) for t in kernel.tasks]
    return found[0] if len(found) == 1 else {v: let for defs in found for v, let in defs.items()}


@once
def task_definitions(task: Task) -> Definitions:
    """Return the op that computes each value of a task."""
    return {s.out: s for s in task_statements(task, given=True) if isinstance(s, Let)}


def offset_of(v: Value, defs: Definitions) -> Offset:
    """Return a value as base + constant, through additions of constants, widening casts and components.

    Unsigned numbers wrap around (`a - 1` may be `a + 255`), so a constant added to one is part of the base.
    """
    # Each step of the walk is exact over the integers, so base + shift is the same number as v at run
    # time.
    found: Offset = (v, 0)
    component: tuple[int, ...] = ()
    shift = 0
    while True:
        if isinstance(v, Const):
            return None, shift + int(v.value)
        if not component:
            found = (v, shift)
        let = defs.get(v)
        if let is None:
            return found
        # Only additions of constants are looked through: a sum of two variables has no single base.
        name, args = let.op.name, let.args
        if name in ("add", "sub"):
            added = None if v.type.scalar.kind == "u" else _added_constant(let, component, defs)
            if added is None:
                return found
            v, more = added
            shift += more
        elif name == "cast" and v.type.scalar.keeps_index(args[0].type.scalar):
            v = args[0]
        elif name == "extract" and all(isinstance(k, Const) for k in args[1:]):
            v, component = args[0], tuple([int(k.value) for k in args[1:]])  # type: ignore[attr-defined]
        elif name == "build" and component:
            v, component = args[_in_row_order(component, v.type.shape)], ()
        elif name == "broadcast" and component:
            v, component = args[0], ()
        else:
            return found


def _added_constant(
    let: Let, component: tuple[int, ...], defs: Definitions
) -> tuple[Value, int] | None:
    """Return the variable and the constant of a sum or difference (of one of its components)."""
    left, right = let.args
    constant = _constant(right, component, defs)
    if constant is not None:
        return left, constant if let.op.name == "add" else -constant
    constant = _constant(left, component, defs) if let.op.name == "add" else None
    return None if constant is None else (right, constant)


def _constant(v: Value, component: tuple[int, ...], defs: Definitions) -> int | None:
    """Return a constant, or a component of a vector of constants; None: it is no constant."""
    let = defs.get(v)
    if component and let is not None and let.op.name == "build":
        v = let.args[_in_row_order(component, v.type.shape)]
    return int(v.value) if isinstance(v, Const) else None


def _in_row_order(component: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Return the number of a component among all of them, by Horner's rule."""
    at = 0
    for k, n in zip(component, shape, strict=True):
        at = at * n + k
    return at


def element_of(index: Iterable[Value], defs: Definitions) -> Element:
    """Return the canonical form of an index."""
    return tuple([offset_of(i, defs) for i in index])


def updated_element(s: Atomic, defs: Definitions) -> tuple[Mem, Element]:
    """Return the memory and the canonical index of an update, equal for updates of the same element."""
    return s.mem, element_of(s.index, defs)


@once
def affine_forms(task: Task) -> AffineForms:
    """Return the affine forms of a task's values."""
    return AffineForms(task)


class AffineForms:
    """The integer values of a task as sums of loop variables times constants, x[3 * i + k + 1].

    Attributes:
        ranges: the iterations (first, last) of each loop, the task's axes included; `ANY` where the
            bounds are not constants. A loop without iterations has a range whose end is below its start.
    """

    def __init__(self, task: Task) -> None:
        self.ranges: dict[Value, Interval] = {}
        self._definitions = task_definitions(task)
        self._forms: dict[tuple[Value, tuple[int, ...]], AffineForm | None] = {}
        # Bounds come as lower, upper, lower, upper, ... along the axes.
        bounds = task.bounds.yields
        for k, axis in enumerate(task.axes):
            self.ranges[axis] = _range(bounds[2 * k], bounds[2 * k + 1])
        for block in (task.bounds, task.body):
            for s in statements(block, given=True):
                if isinstance(s, For):
                    self.ranges[s.index] = _range(s.lo, s.hi)

    def form(self, v: Value, component: tuple[int, ...] = ()) -> AffineForm | None:
        """Return the affine form of a value (or of a component of one); None if it has none."""
        # Shared subexpressions (thousands of unrolled iterations have them) are analysed once.
        key = (v, component)
        if key not in self._forms:
            self._forms[key] = self._compute(v, component)
        return self._forms[key]

    def interval(self, form: AffineForm) -> Interval:
        """Return the numbers that a form takes over all iterations."""
        # Interval arithmetic: exact for each variable alone, an over-approximation where a variable's
        # values exclude each other; so "outside the interval" is a proof, "inside" is none.
        total = ZERO
        for v, n in form.items():
            total = plus(total, (n, n) if v is None else times(n, self.ranges.get(v, ANY)))
        return total

    def _compute(self, v: Value, component: tuple[int, ...]) -> AffineForm | None:
        """Return the affine form by the op that computes the value."""
        if isinstance(v, Const):
            return {None: int(v.value)}
        # Arguments and extents are launch-wide unknowns: equal in all lanes, which lets them cancel.
        if v in self.ranges or (isinstance(v, (Arg, Dim)) and not v.type.shape):
            return {v: 1}
        let = self._definitions.get(v)
        if let is None or not v.type.is_int:
            return None
        name, args = let.op.name, let.args
        # Where arithmetic wraps around, a form would hold modulo 2^n only.
        if wraps(name, v.type.scalar):
            return None
        if name in ("add", "sub", "mul", "shl"):
            a, b = (self.form(x, component if x.type.shape else ()) for x in args)
            if name == "mul":
                return _product(a, b)
            if name == "shl":
                return self._shifted(a, b, v.type.scalar)
            return _combine(a, b, 1 if name == "add" else -1)
        if name == "neg":
            return _combine({}, self.form(args[0], component), -1)
        if name == "cast":
            # A narrowing cast may change the number.
            kept = v.type.scalar.keeps_index(args[0].type.scalar)
            return self.form(args[0], component) if kept else None
        if name == "broadcast":
            return self.form(args[0])
        if name == "build":
            return self.form(args[_in_row_order(component, v.type.shape)])
        if name == "extract" and all(isinstance(k, Const) for k in args[1:]):
            return self.form(args[0], tuple(int(k.value) for k in args[1:]))  # type: ignore[attr-defined]
        return None

    def _shifted(
        self, a: AffineForm | None, b: AffineForm | None, t: ScalarType
    ) -> AffineForm | None:
        """Return a form shifted to the left by a constant, if no bit of it can be lost."""
        # Shifting by the width or more is poison in LLVM (LangRef, `shl`), and a shift that drops bits
        # is no multiplication: nothing may be concluded from either.
        if a is None or b is None or set(b) != {None} or not 0 <= b[None] < t.bits:
            return None
        shifted = {v: n << b[None] for v, n in a.items()}
        least, most = self.interval(shifted)
        return shifted if t.holds(least) and t.holds(most) else None


def _range(lo: Value, hi: Value) -> Interval:
    return (lo.value, hi.value - 1) if isinstance(lo, Const) and isinstance(hi, Const) else ANY


def wraps(name: str, t: ScalarType) -> bool:
    """Whether an index may be off by a power of two; signed sums are carried out in 64 bits."""
    if name == "neg" and t.bits < 32:
        return True
    return t.kind == "u" and name in ("add", "sub", "neg", "mul")


def _product(a: AffineForm | None, b: AffineForm | None) -> AffineForm | None:
    """Return a * b, if one of them is a constant."""
    # A product of two variables is not affine.
    if a is not None and set(a) == {None}:
        a, b = b, a
    return None if b is None or set(b) != {None} else _combine({}, a, b[None])


def _combine(a: AffineForm | None, b: AffineForm | None, factor: int) -> AffineForm | None:
    """Return a + factor * b."""
    if a is None or b is None:
        return None
    total = dict(a)
    for v, n in b.items():
        total[v] = total.get(v, 0) + factor * n
    return total


def runs_along_memory(loop: For, forms: AffineForms) -> bool:
    """Whether an innermost loop goes along what it accesses: each element is the next one, or the same.

    for %k in 0..48 { h.grad[%i, %k] += %g * w[%j, %k] }
    """
    lo, hi = loop.lo, loop.hi
    if not isinstance(lo, Const) or not isinstance(hi, Const) or hi.value - lo.value < _FEWEST:
        return False
    return all(
        isinstance(s, Let)
        or (
            isinstance(s, (Load, Store, Atomic))
            and _step(s, loop, forms) in (0, size_of(s.mem.dtype))
        )
        for s in loop.body.stmts
    )


def _step(s: Load | Store | Atomic, loop: For, forms: AffineForms) -> int | None:
    """Return how many scalars apart the accesses of two iterations are; None: it is no constant."""
    if s.mem.shape is None:
        return None
    total = 0
    for i, stride in zip(s.index, strides_of(s.mem), strict=False):
        form = forms.form(i)
        if form is None:
            return None
        total += form.get(loop.index, 0) * stride
    return total


def plus(a: Interval, b: Interval) -> Interval:
    """Return the interval of sums."""
    return a[0] + b[0], a[1] + b[1]


def times(m: int, a: Interval) -> Interval:
    """Return the interval of multiples; 0 times an infinite end is 0."""
    if m == 0:
        return ZERO
    ends = m * a[0], m * a[1]
    return (ends[0], ends[1]) if m > 0 else (ends[1], ends[0])


def number(n: int) -> Offset:
    """Return an end that is a constant."""
    return None, n


def shifted(end: Offset, n: int) -> Offset:
    """Return an end plus a constant."""
    return end[0], end[1] + n


def distance(a: Offset, b: Offset) -> int | None:
    """Return a - b, if it is the same in all launches."""
    return a[1] - b[1] if a[0] is b[0] else None


def faces_of(task: Task) -> list[Offset] | None:
    """Return the bounds of a task, if all of them are launch-wide values plus constants."""
    if not all(isinstance(s, Let) for s in task.bounds.stmts):
        return None
    found = [offset_of(v, task_definitions(task)) for v in task.bounds.yields]
    return found if all(is_face(end) for end in found) else None


def is_face(end: Offset) -> bool:
    """Whether an end of a range is known before the lanes start."""
    return end[0] is None or isinstance(end[0], (Arg, Dim))


def truth(v: Value, defs: Definitions, ranges: Ranges) -> bool | None:
    """Return what a condition is for all indices in these ranges, if it is the same for all."""
    if isinstance(v, Const):
        return bool(v.value) if not v.type.shape else None
    let = defs.get(v)
    if let is None or v.type.shape:
        return None
    name = let.op.name
    if name in ("and", "or") and v.type.scalar.is_bool:
        sides = [truth(a, defs, ranges) for a in let.args]
        deciding = name == "or"
        if deciding in sides:
            return deciding
        return None if None in sides else not deciding
    if name == "not":
        inner = truth(let.args[0], defs, ranges)
        return None if inner is None else not inner
    if name in ("gt", "ge", "lt", "le"):
        a, b = (range_of(x, defs, ranges) for x in let.args)
        if name in ("gt", "ge"):
            a, b, name = b, a, {"gt": "lt", "ge": "le"}[name]
        return less(a, b, equal=name == "le")
    if name in ("eq", "ne"):
        same = _equal(*(range_of(x, defs, ranges) for x in let.args))
        return None if same is None else same is (name == "eq")
    return None


def less(a: Range | None, b: Range | None, *, equal: bool) -> bool | None:
    """Return whether all of a is less than (or `equal` to) all of b, or none of it is."""
    if a is None or b is None:
        return None
    most, least = distance(a[1], b[0]), distance(a[0], b[1])
    if most is not None and most < equal:
        return True
    if least is not None and least >= equal:
        return False
    return None


def _equal(a: Range | None, b: Range | None) -> bool | None:
    if a is None or b is None:
        return None
    if less(a, b, equal=False) or less(b, a, equal=False):
        return False
    return True if a == b and a[0] == a[1] else None


def range_of(v: Value, defs: Definitions, ranges: Ranges) -> Range | None:
    """Return the range of an axis plus a constant, a launch-wide value minus a constant, or a constant."""
    if v.type.shape or v.type.scalar.kind != "i":
        return None
    base, shift = offset_of(v, defs)
    if base is None:
        return number(shift), number(shift)
    # A narrower sum may have wrapped around before it was widened.
    if base.type.scalar is not v.type.scalar:
        return None
    found = ranges.get(base)
    if found is None:
        end = base, shift
        return (end, end) if _is_near(end, ranges) else None
    found = shifted(found[0], shift), shifted(found[1], shift)
    return found if _fits(found, v.type.scalar) else None


def _is_near(end: Offset, ranges: Ranges) -> bool:
    """Whether a launch-wide value minus a constant certainly does not wrap around."""
    base, shift = end
    if not isinstance(base, (Arg, Dim)) or not -_FARTHEST <= shift <= 0:
        return False
    if shift == 0:
        return True
    # There are lanes from 0 or more up to it, so it is not negative itself; nor is an extent.
    return isinstance(base, Dim) or any(
        last[0] is base and last[1] <= 0 and first[0] is None and first[1] >= 0
        for first, last in ranges.values()
    )


def _fits(found: Range, t: ScalarType) -> bool:
    """Whether a range has not wrapped around."""
    # Indices that wrap around are outside every field, but a comparison sees them as they are.
    most = 1 << (t.bits - 1)
    (low, first), (high, last) = found
    return (-most <= first if low is None else first >= 0) and (
        last < most if high is None else last <= 0
    )
