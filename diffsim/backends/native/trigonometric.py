"""sin and cos of vectors, in LLVM text: written where they are called, with libmvec's for large arguments.

    sin |x| = (-1)^k sin r,   k, r = whole number and rest:   |x| = k pi + r,          |r| <= pi / 2
    cos  x  = (-1)^k sin r,                                   |x| = (k - 1/2) pi + r
    sin r   = r + r^3 q(r^2),   q a polynomial through it at Chebyshev's points

- k is found by adding 3 * 2^(bits of the mantissa - 1), as the sum's last bits. NaN stays NaN, infinities
  become it.
- pi is subtracted in three parts, by products that are rounded only with their sums. The first difference is
  exact, as its last bit is none before that of pi's first part; so r is accurate where it is near 0, too.
- The sign of x goes to the result of sin at the end, so that -0 stays -0.
- What the polynomial exceeds 1 by is cut off, so that programs may take the root of 1 - sin^2.
- Above `largest` k has too many bits. Then a branch that is hardly ever taken calls libmvec, which computes
  such numbers one by one. Each lane takes what its own argument asks for, whatever is beside it.

The errors are below 2.1 units in the last place.
"""

from __future__ import annotations

from typing import NamedTuple

from diffsim.backends.native.vector_code import MANTISSA, VectorCode, pattern


class _Format(NamedTuple):
    """The constants of a type: pi in three parts, q, and the largest argument."""

    pi: tuple[float, float, float]
    q: tuple[float, ...]
    largest: float


_FORMATS = {
    "float": _Format(
        (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15),
        (
            -0.1666666567325592,
            0.008333235047757626,
            -0.00019821792375296354,
            2.6317247829865664e-06,
        ),
        2.0**17,
    ),
    "double": _Format(
        (3.141592653589793, 1.2246467991473532e-16, -2.9947698097183397e-33),
        (
            *(-0.16666666666666666, 0.008333333333333312, -0.00019841269841252546),
            *(2.7557319218515982e-06, -2.5052107535623844e-08, 1.6058972103958002e-10),
            *(-7.643806115860615e-13, 2.7294235124755112e-15),
        ),
        2.0**24,
    ),
}
FUNCTIONS = ("sin", "cos")
_1_PI = 0.3183098861837907


def definition(symbol: str, function: str, scalar: str, lanes: int, large: str) -> str:
    """Return the text of `function`, sin or cos; `large` is the function for large arguments."""
    f, code = _FORMATS[scalar], VectorCode(scalar, lanes)
    v, whole, let = code.type, code.whole, code.let
    magic = code.all_of(1.5 * 2.0 ** MANTISSA[scalar])
    xi = let("xi", f"bitcast {v} %x to {whole}")
    ai = let("ai", f"and {whole} {xi}, {code.integers((1 << (code.bits - 1)) - 1)}")
    a = let("a", f"bitcast {whole} {ai} to {v}")
    if function == "sin":
        n = code.fma("n", a, code.all_of(_1_PI), magic)
        k = let("k", f"fsub {v} {n}, {magic}")
    else:
        t = code.fma("t", a, code.all_of(_1_PI), code.all_of(0.5))
        n = let("n", f"fadd {v} {t}, {magic}")
        whole_k = let("wholek", f"fsub {v} {n}, {magic}")
        k = let("k", f"fsub {v} {whole_k}, {code.all_of(0.5)}")
    r = a
    for i, part in enumerate(f.pi):
        r = code.fma(f"r{i}", k, code.all_of(-part), r)
    z = let("z", f"fmul {v} {r}, {r}")
    q = code.all_of(f.q[-1])
    for i in reversed(range(len(f.q) - 1)):
        q = code.fma(f"q{i}", q, z, code.all_of(f.q[i]))
    cube = let("cube", f"fmul {v} {r}, {z}")
    y = code.fma("y", cube, q, r)
    for name, test, bound in (("top", "ogt", 1.0), ("bottom", "olt", -1.0)):
        outside = let(f"{name}mask", f"fcmp {test} {v} {y}, {code.all_of(bound)}")
        y = let(name, f"select {code.mask} {outside}, {v} {code.all_of(bound)}, {v} {y}")
    ni = let("ni", f"bitcast {v} {n} to {whole}")
    sign = let("odd", f"shl {whole} {ni}, {code.integers(code.bits - 1)}")
    if function == "sin":
        own = let("own", f"and {whole} {xi}, {code.integers(1 << (code.bits - 1))}")
        sign = let("sign", f"xor {whole} {sign}, {own}")
    yi = let("yi", f"bitcast {v} {y} to {whole}")
    signed = let("signed", f"xor {whole} {yi}, {sign}")
    near = let("near", f"bitcast {whole} {signed} to {v}")
    _take_large(code, f.largest, large, near)
    return code.definition(symbol)


def _take_large(code: VectorCode, largest: float, large: str, near: str) -> None:
    """Return `near`, or what `large` returns in lanes whose |x| (%ai) is finite and above `largest`."""
    v, whole, let = code.type, code.whole, code.let
    bound, infinity = (pattern(x, code.scalar) for x in (largest, float("inf")))
    # One comparison of integers: those of numbers from the bound on are below the difference.
    over = let("over", f"sub {whole} %ai, {code.integers(bound)}")
    big = let("big", f"icmp ult {whole} {over}, {code.integers(infinity - bound)}")
    bits = let("bits", f"bitcast {code.mask} {big} to i{code.lanes}")
    rare = let("any", f"icmp ne i{code.lanes} {bits}, 0")
    weights = '!prof !{!"branch_weights", i32 1, i32 100000}'
    code.lines += [f"br i1 {rare}, label %far, label %done, {weights}", "far:"]
    other = let("other", f"call {v} @{large}({v} %x) nounwind willreturn memory(none)")
    mixed = let("mixed", f"select {code.mask} {big}, {v} {other}, {v} {near}")
    code.lines += ["br label %done", "done:"]
    result = let("result", f"phi {v} [ {mixed}, %far ], [ {near}, %entry ]")
    code.lines += [f"ret {v} {result}"]
