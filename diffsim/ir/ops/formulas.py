"""Formulas of rows: ops expressed through other rows, guards of derivatives, random bits.

Guards come first. A derivative rule multiplies the incoming adjoint g by a local derivative, which may be
infinite or NaN where g is 0, as in the untaken branch of a `select`. By IEEE 754 that product is NaN, and the
gradient should be 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.ir import builder_stack
from diffsim.ir.builder_stack import emit
from diffsim.ir.nodes import Const, Let, Value
from diffsim.ir.types import ScalarType, Type

_NEAR = 8
"""Statements among which the contribution to the other operand is, emitted just before."""


def cast_to(x: Value, scalar: ScalarType) -> Value:
    """Emit the value in another scalar type."""
    made: Value = builder_stack.builder().cast(x, scalar)
    return made


def broadcast_to(x: Value, t: Type) -> Value:
    """Emit a tensor with a scalar in every element."""
    made: Value = builder_stack.builder().broadcast(x, t)
    return made


def unless_zero(g: Value, contribution: Value) -> Value:
    """Emit the contribution, but 0 where the incoming adjoint is 0: 0 times infinity is not a gradient.

    Where this adjoint will be differentiated again, only an undefined contribution is dropped: at an adjoint
    that happens to be 0, as that of a spring at rest, its own derivative is not 0.
    """
    wanted = emit("ne", g, 0.0)
    if builder_stack.builder().is_inner:
        # x == x is false for NaN only.
        wanted = emit("or", wanted, emit("eq", contribution, contribution))
    return emit("select", wanted, contribution, 0.0)


def times(g: Value, factor: Value) -> Value:
    """Emit the incoming adjoint times a factor, which may be infinite.

    Products are the most frequent operation of adjoints, so only those whose adjoint a `select` or a branch
    may have set to 0 pay for the test.
    """
    product = g * factor
    return mask_zero_adjoint(g, product) if not isinstance(factor, Const) else product


def mask_zero_adjoint(g: Value, contribution: Value) -> Value:
    """Emit the contribution, but 0 where a `select` or a branch has set the incoming adjoint to 0."""
    return unless_zero(g, contribution) if g in builder_stack.builder().cut else contribution


def mask_zero_adjoints(g: Value, contribution: Value) -> Value:
    """Emit the same for a contribution whose elements combine several elements of the incoming adjoint."""
    if g not in builder_stack.builder().cut:
        return contribution
    return unless_zero(emit("sum", emit("abs", g)), contribution)


def by_numerator(g: Value, a: Value, b: Value, y: Value) -> Value:
    """Emit the contribution of y = a / b to the adjoint of a: g / b; no division where b is a constant.

    The bounds on b keep 1 / b, and the numbers that it is multiplied by, within the range of the type.
    """
    if isinstance(b, Const):
        most = 2**12 if b.type.scalar.bits == 16 else 2**100
        if 1 / most < abs(b.value) < most:
            return g * _like(1 / b.value, b)
        if abs(b.value) > 2**-100:
            return g / b
    return unless_zero(g, g / b)


def by_denominator(g: Value, a: Value, b: Value, y: Value) -> Value:
    """Emit the contribution of y = a / b to the adjoint of b: -g y / b; no division where a is a constant.

    Then 1 / b = y / a. The bounds on a keep 1 / a, and its product with y, within the range of f32.
    If a has got its g / b, that is used. Alone it may be infinite where g y / b is not.
    """
    if isinstance(a, Const) and 2**-12 <= abs(a.value) <= 2**12:
        return -(g * y) * (y * _like(1 / a.value, y))
    for s in reversed(builder_stack.builder().stmts[-_NEAR:]):
        if isinstance(s, Let) and s.op.name == "div" and s.args[0] is g and s.args[1] is b:
            return -(s.out * y)
    return -(g * y) / b


def by_base(g: Value, x: Value, p: Value, y: Value) -> Value:
    """Emit the contribution of y = x^p to the adjoint of x: g p x^(p - 1), or 0 where that is infinite at 0.

    x^(p - 1) is y / x, which takes far less time than a power, but not where y is smaller than normal numbers
    while the derivative is not. That cannot be with these constants.
    """
    if isinstance(p, Const) and (p.value < 0 or 0 < p.value <= 0.5):
        elsewhere = emit("ne", x, 0.0)
        slope = y / emit("select", elsewhere, x, 1.0)
        if p.value > 0:
            # Of infinity, where it is infinity / infinity.
            slope = emit("select", emit("eq", y, float("inf")), 0.0, slope)
        return unless_zero(g, emit("select", elsewhere, g * p * slope, 0.0))
    is_finite = emit("or", emit("ne", x, 0.0), emit("ge", p, 1.0))
    slope = emit("pow", emit("select", is_finite, x, 1.0), p - _like(1.0, p))
    return unless_zero(g, emit("select", is_finite, g * p * slope, 0.0))


def truncated_quotient(a: Value, b: Value) -> Value:
    """Emit a / b rounded towards zero; 0 where b is 0.

    A processor traps where b is 0 or the quotient does not fit (the least integer by -1), and LLVM calls both
    undefined behaviour; a select evaluates both sides, so the divisor itself is replaced.
    """
    one, nothing = _like(1, b), _like(0, b)
    if b.type.scalar.kind == "u":
        quotient = emit("int_div", a, emit("select", emit("eq", b, nothing), one, b))
        return emit("select", emit("eq", b, nothing), nothing, quotient)
    minus = emit("eq", b, _like(-1, b))
    special = emit("or", minus, emit("eq", b, nothing))
    quotient = emit("int_div", a, emit("select", special, one, b))
    # a / -1 = -a, which wraps around for the least integer, as in C with -fwrapv.
    rest = emit("select", minus, emit("neg", a), nothing)
    return emit("select", special, rest, quotient)


def truncated_remainder(a: Value, b: Value) -> Value:
    """Return a - b * truncated_quotient(a, b), the sign of a; 0 where b is 0."""
    one, nothing = _like(1, b), _like(0, b)
    special = emit("eq", b, nothing)
    if b.type.scalar.kind != "u":
        special = emit("or", special, emit("eq", b, _like(-1, b)))
    remainder = emit("int_rem", a, emit("select", special, one, b))
    return emit("select", special, nothing, remainder)


def _like(number: float, x: Value) -> Value:
    made: Value = builder_stack.builder().const(number, x.type)
    return made


def truncated_quotient_reference(a: Any, b: Any) -> Any:
    """Evaluate `truncated_quotient` in NumPy."""
    with np.errstate(all="ignore"):
        q = np.floor_divide(a, b)
        inexact = np.not_equal(q * b, a) & np.not_equal(b, 0)
        return q + (inexact & (np.less(a, 0) != np.less(b, 0))).astype(q.dtype)


def power_reference(x: Any, p: Any) -> Any:
    """Evaluate C's pow in NumPy, which takes the square root for p = 0.5: NaN at -inf, where pow is inf."""
    return np.where(np.isneginf(x) & np.equal(p, 0.5), np.negative(x), np.power(x, p))[()]


def integer_power(a: Value, n: Value) -> Value:
    """Emit a to the power n by repeated squaring, which wraps around as products do.

    Branch-free over all bits of n: it vectorizes, and no lane waits for another. A negative power is the
    quotient 1 / a ** -n without its fraction: 0 but for a = 1 and a = -1.
    """
    signed = a.type.scalar.kind != "u"
    one, nothing = _like(1, a), _like(0, a)

    def bit(k: int) -> Value:
        there: Value = emit("ne", emit("bit_and", emit("int_shr", n, _like(k, n)), one), nothing)
        return there

    power, square = one, a
    # A signed exponent that is not negative has a sign bit of 0.
    last = a.type.scalar.bits - (2 if signed else 1)
    for k in range(last + 1):
        power = emit("select", bit(k), power * square, power)
        square = square * square if k < last else square
    if not signed:
        return power
    minus = _like(-1, a)
    unit = emit("select", emit("eq", a, minus), emit("select", bit(0), minus, one), nothing)
    unit = emit("select", emit("eq", a, one), one, unit)
    return emit("select", n < nothing, unit, power)


def integer_power_reference(a: Any, n: Any) -> Any:
    """Evaluate `integer_power` in NumPy."""
    a, n = np.broadcast_arrays(a, n)
    unit = np.where(a == 1, 1, np.where(a == -1, np.where(n % 2 == 0, 1, -1), 0)).astype(a.dtype)
    with np.errstate(all="ignore"):
        return np.where(n < 0, unit, np.power(a, np.maximum(n, 0)))


def floor_divide(a: Value, b: Value) -> Value:
    """Return the quotient rounded down, as Python's `//`."""
    if not a.type.is_float:
        bits = _bits_of_power(b)
        if bits is not None:
            return emit("int_shr", a, _like(bits, b)) if bits else a
        quotient = emit("truncdiv", a, b)
        if a.type.kind == "u":
            return quotient
        return emit("select", _signs_differ(emit("raw_mod", a, b), b), quotient - 1, quotient)
    # From the exact remainder, as Python and NumPy do it: 1.0 // 0.1 is 9.0, where floor(1.0 / 0.1) is 10.
    # A quotient by 0 is infinite.
    remainder = emit("float_rem", a, b)
    quotient = (a - remainder) / b
    quotient = emit("select", _signs_differ(remainder, b), quotient - 1, quotient)
    down, plain = emit("floor", quotient), a / b
    # (a - remainder) / b is a whole number but for rounding: take the nearest one.
    down = emit("select", quotient - down > 0.5, down + 1, down)
    down = emit("select", emit("eq", quotient, 0), plain * 0, down)  # a 0 has the sign of a / b
    return emit("select", emit("eq", b, 0), plain, down)


def python_modulo(a: Value, b: Value) -> Value:
    """Return the remainder with the sign of b, as Python's `%`."""
    if not a.type.is_float:
        bits = _bits_of_power(b)
        if bits is not None:
            return emit("bit_and", a, _like((1 << bits) - 1, b))
        remainder = emit("raw_mod", a, b)
        if a.type.kind == "u":
            return remainder
        return emit("select", _signs_differ(remainder, b), remainder + b, remainder)
    remainder = emit("float_rem", a, b)
    # A zero remainder has the sign of the divisor, as in Python.
    zero = emit("select", b < 0, _like(-0.0, b), _like(0.0, b))
    moved = emit("select", _signs_differ(remainder, b), remainder + b, remainder)
    return emit("select", emit("eq", remainder, 0), zero, moved)


def _bits_of_power(b: Value) -> int | None:
    """Return n where b is the constant 2 ** n.

    The quotient and the remainder are the first and the last bits then, also of negative numbers in two's
    complement: one instruction. And that lanes differ (`if (i + j) % 2 == c`) is seen behind this stage too.
    """
    if not isinstance(b, Const) or b.type.shape or b.value <= 0 or int(b.value) & int(b.value) - 1:
        return None
    return int(b.value).bit_length() - 1


def _signs_differ(remainder: Value, divisor: Value) -> Value:
    opposite = emit("ne", remainder < 0, divisor < 0)
    return emit("and", emit("ne", remainder, 0), opposite)


def shift_left(a: Value, n: Value) -> Value:
    """Emit a << n; 0 where all bits are shifted out, which is poison in LLVM."""
    return emit("select", _in_width(a, n), emit("int_shl", a, _shift(a, n)), _like(0, a))


def shift_right(a: Value, n: Value) -> Value:
    """Emit a >> n; copies of the sign bit (0 for unsigned) where all bits are shifted out."""
    out = emit("select", a < 0, _like(-1, a), _like(0, a))
    return emit("select", _in_width(a, n), emit("int_shr", a, _shift(a, n)), out)


def _in_width(a: Value, n: Value) -> Value:
    ok = n < _like(a.type.scalar.bits, n)
    return ok if n.type.scalar.kind == "u" else emit("and", n >= _like(0, n), ok)


def _shift(a: Value, n: Value) -> Value:
    return emit("select", _in_width(a, n), n, _like(0, n))


def sign_of(x: Value) -> Value:
    """Return -1, 0 or 1."""
    one, nothing = (1.0, 0.0) if x.type.is_float else (1, 0)
    positive = emit("select", x > 0, one, nothing)
    if x.type.is_float:
        # Comparisons with NaN are false, which would make its sign 0.
        positive = emit("select", emit("isnan", x), x, positive)
    if x.type.kind == "u":
        return cast_to(positive, x.type.scalar)
    return cast_to(emit("select", x < 0, -one, positive), x.type.scalar)


# Random numbers are a pure function of (seed of the launch, lane, how many numbers the lane drew), so
# an adjoint that runs the lane again draws the same ones, in any order and on any device. The mixer is
# the finalizer of SplitMix64: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number
# generators", OOPSLA 2014.
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def random_bits(seed: Value, lane: Value, counter: Value) -> Value:
    """Hash seed, lane and counter to 64 bits (the finalizer of SplitMix64)."""

    def mix(z: Value) -> Value:
        z = (emit("bit_xor", z, emit("shr", z, 30))) * _MIX_1
        z = (emit("bit_xor", z, emit("shr", z, 27))) * _MIX_2
        return emit("bit_xor", z, emit("shr", z, 31))

    # Two rounds: seed and lane first, so that the streams of neighbouring lanes are unrelated, then
    # the counter.
    return mix(mix(seed + lane * _GOLDEN) + counter * _GOLDEN)


def random_bits_reference(seed: Any, lane: Any, counter: Any) -> Any:
    """Evaluate `random_bits` in NumPy."""
    # Python integers do not wrap around, as those of kernels do.
    mask = (1 << 64) - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * _MIX_1) & mask
        z = ((z ^ (z >> 27)) * _MIX_2) & mask
        return z ^ (z >> 31)

    bits = mix((mix((int(seed) + int(lane) * _GOLDEN) & mask) + int(counter) * _GOLDEN) & mask)
    return np.uint64(bits)
