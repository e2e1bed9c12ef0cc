"""exp for vectors, in LLVM text: as fast where it underflows or overflows as anywhere else.

libmvec computes a vector with such a lane one lane after the other, at a tenth of the speed, and
e^(-r^2 / h) of far neighbours or a masked softmax are 0 in most lanes.

    k, r = whole number and rest:   x = k ln 2 + r,   |r| <= ln(2) / 2
    e^x = 2^k (1 + r + r^2 q(r)),   q a polynomial through e^r at Chebyshev's points

- k is found by adding 3 * 2^(bits of the mantissa - 1), as the sum's last bits: NaN stays NaN, and becomes
  no integer.
- ln 2 is subtracted in two parts, the product of k and the first of which is exact.
- 2^k is multiplied in two steps, as it is no normal number where e^x is subnormal or infinite. Each is
  exact, but for a subnormal result, which is rounded there. x is held within a range where both exist.
- The last product is not contracted: it would be taken unrounded into a sum that the program makes with it.

The error is below 1.1 units in the last place.
"""

from __future__ import annotations

from typing import NamedTuple

from diffsim.backends.native.vector_code import MANTISSA, VectorCode


class _Format(NamedTuple):
    """The constants of a type: bounds of x, ln 2 in two parts, q."""

    low: float
    high: float
    ln2: tuple[float, float]
    q: tuple[float, ...]


_FORMATS = {
    "float": _Format(
        -105.0,
        89.0,
        (0.693359375, -2.121944417012855e-4),
        (
            0.5,
            0.16666576266288757,
            0.041666556149721146,
            0.008363203145563602,
            0.0013926213141530752,
        ),
    ),
    "double": _Format(
        -746.0,
        710.0,
        (0.6931471803691238, 1.9082149292705877e-10),
        (
            *(0.5000000000000001, 0.16666666666666669, 0.04166666666662399, 0.008333333333330051),
            *(0.0013888888917281794, 0.00019841269863105968, 2.480152119021773e-05),
            *(2.7557268378684192e-06, 2.7620138719733994e-07, 2.5100424157005067e-08),
        ),
    ),
}
_LOG2_E = 1.4426950408889634


def definition(symbol: str, scalar: str, lanes: int) -> str:
    """Return the function's text: vectors of `lanes` numbers of LLVM's type `scalar`."""
    f, code = _FORMATS[scalar], VectorCode(scalar, lanes)
    v, whole, mask, all_of, integers = code.type, code.whole, code.mask, code.all_of, code.integers
    mantissa = MANTISSA[scalar]
    magic = 1.5 * 2.0**mantissa
    bias = (1 << (code.bits - mantissa - 2)) - 1
    code.lines += [
        f"%below = fcmp olt {v} %x, {all_of(f.low)}",
        f"%a = select {mask} %below, {v} {all_of(f.low)}, {v} %x",
        f"%above = fcmp ogt {v} %a, {all_of(f.high)}",
        f"%b = select {mask} %above, {v} {all_of(f.high)}, {v} %a",
        f"%c = fmul contract {v} %b, {all_of(_LOG2_E)}",
        f"%n = fadd contract {v} %c, {all_of(magic)}",
        f"%kf = fsub {v} %n, {all_of(magic)}",
        f"%d = fmul contract {v} %kf, {all_of(f.ln2[0])}",
        f"%e = fsub contract {v} %b, %d",
        f"%f = fmul contract {v} %kf, {all_of(f.ln2[1])}",
        f"%r = fsub contract {v} %e, %f",
    ]
    q = all_of(f.q[-1])
    for k in reversed(range(len(f.q) - 1)):
        code.lines += [
            f"%p{k} = fmul contract {v} {q}, %r",
            f"%q{k} = fadd contract {v} %p{k}, {all_of(f.q[k])}",
        ]
        q = f"%q{k}"
    code.lines += [
        f"%rr = fmul contract {v} %r, %r",
        f"%s = fmul contract {v} %rr, {q}",
        f"%t = fadd contract {v} %s, %r",
        f"%u = fadd contract {v} %t, {all_of(1.0)}",
        f"%ni = bitcast {v} %n to {whole}",
        f"%mi = bitcast {v} {all_of(magic)} to {whole}",
        f"%k = sub {whole} %ni, %mi",
        f"%half = ashr {whole} %k, {integers(1)}",
        f"%rest = sub {whole} %k, %half",
    ]
    for name, of in (("one", "%half"), ("two", "%rest")):
        code.lines += [
            f"%{name}a = add {whole} {of}, {integers(bias)}",
            f"%{name}b = shl {whole} %{name}a, {integers(mantissa)}",
            f"%{name} = bitcast {whole} %{name}b to {v}",
        ]
    code.lines += [f"%w = fmul {v} %u, %one", f"%y = fmul {v} %w, %two", f"ret {v} %y"]
    return code.definition(symbol)
