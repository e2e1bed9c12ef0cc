"""The op table: one row per op, and nothing about an op anywhere else.

How to read a row: `ir/op.py`. How to add one: docs/add-an-op.md. A rule gets the incoming adjoint `g`, the
arguments and the result `y`, and returns the contribution to that argument's adjoint, written as a
formula. Where a derivative does not exist (a kink, a pole) the rule picks a value, says so in the row's
documentation, and never returns NaN where the op's result is finite. Where the incoming adjoint is 0 (the
branch of a `select` not taken) so is theirs, whatever the arguments are: rules with a factor that may be
infinite or undefined are written with `unless_zero`, those of products with `times` and the like.
"""

from __future__ import annotations

import numpy as np

import diffsim.ir.op as op_rows
from diffsim.ir.nodes import no_derivative
from diffsim.ir.op import (
    ANALYTIC,
    BY_REAL_PART,
    CUSTOM_LOWERING,
    UNKNOWN,
    ZERO,
    Expand,
    Instr,
    LLVMIntrinsic,
    Math,
    NotDifferentiable,
    Op,
    op,
)
from diffsim.ir.ops import continuation, gamma, shapes
from diffsim.ir.ops.formulas import (
    broadcast_to,
    by_base,
    by_denominator,
    by_numerator,
    cast_to,
    floor_divide,
    integer_power,
    integer_power_reference,
    mask_zero_adjoint,
    mask_zero_adjoints,
    power_reference,
    python_modulo,
    random_bits,
    random_bits_reference,
    shift_left,
    shift_right,
    sign_of,
    times,
    truncated_quotient,
    truncated_quotient_reference,
    truncated_remainder,
    unless_zero,
)
from diffsim.ir.types import derivative_type

_LN_2 = float(np.log(2.0))
_2_BY_ROOT_PI = 2 / float(np.sqrt(np.pi))

# fmt: off
# ---- arithmetic

add: Op = op("add", "N N -> N", "Sum.",
             ref=np.add, lowering=Instr(f="fadd", i="add"),
             vjp=(lambda g, a, b, y: g, lambda g, a, b, y: g),
             continuation=ANALYTIC, sample=[(-4, 4), (-4, 4)], public=False)

# Atomic additions come in any order, so a sum that replaces them may be reassociated (and
# vectorized) too; `add` of the user's own may not.
accumulate: Op = op("accumulate", "N N -> N", "Sum whose order the compiler may choose (of atomic adds).",
                    ref=np.add, lowering=Instr(f="fadd reassoc nsz", i="add"),
                    vjp=(lambda g, a, b, y: g, lambda g, a, b, y: g),
                    continuation=ANALYTIC, sample=[(-4, 4), (-4, 4)],
                    public=False)

sub: Op = op("sub", "N N -> N", "Difference.",
             ref=np.subtract, lowering=Instr(f="fsub", i="sub"),
             vjp=(lambda g, a, b, y: g, lambda g, a, b, y: -g),
             continuation=ANALYTIC, sample=[(-4, 4), (-4, 4)], public=False)

mul: Op = op("mul", "N N -> N", "Product, element by element.",
             ref=np.multiply, lowering=Instr(f="fmul", i="mul"),
             vjp=(lambda g, a, b, y: times(g, b), lambda g, a, b, y: times(g, a)),
             continuation=ANALYTIC, sample=[(-4, 4), (-4, 4)], public=False)

div: Op = op("div", "F F -> F", "Quotient of floats; integers are converted to the default float first.",
             ref=np.divide, lowering=Instr(f="fdiv"),
             vjp=(by_numerator,
                    lambda g, a, b, y: unless_zero(g, by_denominator(g, a, b, y))),
             continuation=ANALYTIC, sample=[(-4, 4), (0.5, 4)], public=False)

floordiv: Op = op("floordiv", "N N -> N", "Quotient rounded down, as Python's `//`.",
                  ref=np.floor_divide, lowering=Expand(floor_divide),
                  vjp=ZERO, continuation=BY_REAL_PART, sample=[(-9, 9), (1.5, 4)], public=False)

# a - b * floor(a / b): the quotient is locally constant, so da = 1 and db is minus the quotient. (a
# - y) / b is the quotient but for rounding, hence rint.
mod: Op = op("mod", "N N -> N", "Remainder with the sign of the divisor, as Python's `%`.",
             ref=np.mod, lowering=Expand(python_modulo),
             vjp=(lambda g, a, b, y: g, lambda g, a, b, y: unless_zero(g, -g * rint((a - y) / b))),
             continuation=continuation.remainder(np.mod), sample=[(-9, 9), (1.5, 4)], public=False)

# Exact in IEEE 754 (as C's fmod), unlike a - b * trunc(a / b).
float_rem: Op = op("float_rem", "F F -> F", "Remainder of floats with the sign of a, as C's fmod.",
                   ref=np.fmod, lowering=Math("fmod"),
                   vjp=(lambda g, a, b, y: g, lambda g, a, b, y: unless_zero(g, -g * rint((a - y) / b))),
                   continuation=continuation.remainder(np.fmod), sample=[(-9, 9), (1.5, 4)], public=False)

truncdiv: Op = op("truncdiv", "I I -> I", "Integer quotient rounded towards zero, as in C; 0 if b is 0.",
                  ref=truncated_quotient_reference, lowering=Expand(truncated_quotient),
                  vjp=ZERO, continuation=BY_REAL_PART, sample=[(-9, 9), (1, 4)], public=False)

raw_mod: Op = op("raw_mod", "I I -> I", "Integer remainder with the sign of x1, as in C; 0 if x2 is 0.",
                 example=("ds.raw_mod(-7, 2)", "-1"),
                 ref=lambda a, b: np.where(np.equal(b, 0), 0, np.fmod(a, np.where(np.equal(b, 0), 1, b))),
                 lowering=Expand(truncated_remainder), vjp=ZERO,
                 continuation=BY_REAL_PART, sample=[(-9, 9), (1, 4)])

# The bare instructions, whose operands `truncdiv` and `raw_mod` have made safe.
int_div: Op = op("int_div", "I I -> I", "Integer quotient where it is known to exist.",
                 ref=truncated_quotient_reference, lowering=Instr(i="sdiv", u="udiv"),
                 vjp=ZERO, continuation=BY_REAL_PART, sample=[(-9, 9), (1, 4)], public=False)

int_rem: Op = op("int_rem", "I I -> I", "Integer remainder where it is known to exist.",
                 ref=np.fmod, lowering=Instr(i="srem", u="urem"),
                 vjp=ZERO, continuation=BY_REAL_PART, sample=[(-9, 9), (1, 4)], public=False)

neg: Op = op("neg", "N -> N", "Negative.",
             ref=np.negative, lowering=CUSTOM_LOWERING,
             vjp=(lambda g, x, y: -g,), continuation=ANALYTIC, sample=[(-4, 4)], public=False)

# abs of floats is one instruction that clears the sign bit, also of -0.0 and NaN; a select would
# keep them.
absolute: Op = op("abs", "N -> N", "Absolute value; derivative 0 at 0.",
                  example=("ds.abs(-2.5)", "2.5"),
                  ref=np.abs, lowering=Expand(lambda x: select(x < 0, -x, x) if x.type.is_int else fabs(x)),
                  vjp=(lambda g, x, y: times(g, sign(x)),),
                  continuation=continuation.absolute, sample=[(-4, 4)])

fabs: Op = op("fabs", "F -> F", "Absolute value of a float; derivative 0 at 0.",
              ref=np.fabs, lowering=LLVMIntrinsic(f="fabs"),
              vjp=(lambda g, x, y: times(g, sign(x)),),
              continuation=continuation.absolute, sample=[(-4, 4)], public=False)

sign: Op = op("sign", "N -> N", "-1, 0 or 1; NaN of NaN.",
              example=("ds.sign(-3.0)", "-1.0"),
              ref=np.sign, lowering=Expand(sign_of), vjp=ZERO, continuation=BY_REAL_PART, sample=[(0.5, 4)])

# NaN counts as missing (IEEE 754-2008 minNum), as in NumPy's fmin. The two rules share one
# condition, so that at a tie the whole derivative goes to one side and none is lost or doubled.
minimum: Op = op("min", "N N -> N", "Smaller of two; at a tie the derivative goes to the first.",
                 example=("ds.min(3, 1, 2)", "1"),
                 ref=np.fmin, lowering=LLVMIntrinsic(f="minnum", i="smin", u="umin"),
                 vjp=(lambda g, a, b, y: select(a <= b, g, 0.0),
                        lambda g, a, b, y: select(a <= b, 0.0, g)),
                 continuation=continuation.minimum, sample=[(-4, 4), (-4, 4)])

maximum: Op = op("max", "N N -> N", "Larger of two; at a tie the derivative goes to the first.",
                 example=("ds.max(3.0, 1.5)", "3.0"),
                 ref=np.fmax, lowering=LLVMIntrinsic(f="maxnum", i="smax", u="umax"),
                 vjp=(lambda g, a, b, y: select(a >= b, g, 0.0),
                        lambda g, a, b, y: select(a >= b, 0.0, g)),
                 continuation=continuation.maximum, sample=[(-4, 4), (-4, 4)])

# ---- rounding

floor: Op = op("floor", "F -> F", "Largest whole number not above.",
               example=("ds.floor(-1.5), ds.floor(-1.5, ds.i32)", "-2.0 -2"),
               ref=np.floor, lowering=LLVMIntrinsic(f="floor"), vjp=ZERO,
               continuation=BY_REAL_PART, sample=[(-4, 4)])

ceil: Op = op("ceil", "F -> F", "Smallest whole number not below.",
              example=("ds.ceil(1.25), ds.ceil(1.25, ds.i32)", "2.0 2"),
              ref=np.ceil, lowering=LLVMIntrinsic(f="ceil"), vjp=ZERO,
              continuation=BY_REAL_PART, sample=[(-4, 4)])

# roundeven, not rint: the same in every rounding mode, and without floating-point exceptions.
rint: Op = op("round", "F -> F", "Nearest whole number, halves to even.",
              example=("ds.round(2.5), ds.round(3.5, ds.i32)", "2.0 4"),
              ref=np.rint, lowering=LLVMIntrinsic(f="roundeven"), vjp=ZERO,
              continuation=BY_REAL_PART, sample=[(-4, 4)])

trunc: Op = op("trunc", "F -> F", "Whole part, rounded towards zero.",
               example=("ds.trunc(-1.5)", "-1.0"),
               ref=np.trunc, lowering=LLVMIntrinsic(f="trunc"), vjp=ZERO,
               continuation=BY_REAL_PART, sample=[(-4, 4)])

# ---- powers, exponentials, logarithms

# The inner select keeps the division from 0 / 0: a select evaluates both sides, and a second
# derivative would multiply the untaken one's infinity by 0.
sqrt: Op = op("sqrt", "F -> F", "Square root, NaN below 0; derivative 0 at 0.",
              example=("ds.sqrt(9.0)", "3.0"),
              ref=np.sqrt, lowering=LLVMIntrinsic(f="sqrt"),
              vjp=(lambda g, x, y: select(y > 0, 0.5 * g / select(y > 0, y, 1.0), 0.0),),
              continuation=ANALYTIC, sample=[(0.1, 9)])

rsqrt: Op = op("rsqrt", "F -> F", "1 / sqrt(x).",
               example=("ds.rsqrt(4.0)", "0.5"),
               ref=lambda x: 1 / np.sqrt(x), lowering=Math("rsqrt", lambda x: 1.0 / sqrt(x)),
               vjp=(lambda g, x, y: unless_zero(g, -0.5 * g * y * y * y),),
               continuation=ANALYTIC, sample=[(0.1, 9)])

power: Op = op("pow", "F F -> F", "base to the power exponent. Where a derivative has no finite value "
               "(base = 0 with exponent < 1, the logarithm at base <= 0) it is 0.",
               example=("ds.pow(2.0, -1.0)", "0.5"),
               ref=power_reference, lowering=Math("pow"),
               vjp=(by_base,
                      lambda g, x, p, y: unless_zero(g, select(
                          x > 0, g * y * log(select(x > 0, x, 1.0)), 0.0))),
               continuation=continuation.power, sample=[(0.2, 4), (-2, 3)])

int_pow: Op = op("int_pow", "I I -> I", "Integer to the power of an integer; to a negative one the quotient "
                 "1 / a**-n rounded towards zero: 0 unless a is 1 or -1.",
                 ref=integer_power_reference, lowering=Expand(integer_power),
                 vjp=ZERO, continuation=BY_REAL_PART, sample=[(-4, 4), (0, 9)], public=False)

exp: Op = op("exp", "F -> F", "Exponential function e^x.",
             example=("ds.exp(1.0)", "2.71828..."),
             ref=np.exp, lowering=Math("exp"),
             vjp=(lambda g, x, y: unless_zero(g, g * y),), continuation=ANALYTIC, sample=[(-3, 3)])

log: Op = op("log", "F -> F", "Natural logarithm; -inf at 0, NaN below.",
             example=("ds.log(ds.math.e)", "1.0"),
             ref=np.log, lowering=Math("log"),
             vjp=(lambda g, x, y: unless_zero(g, g / x),), continuation=ANALYTIC, sample=[(0.1, 9)])

exp2: Op = op("exp2", "F -> F", "2 to the power x.",
              example=("ds.exp2(3.0)", "8.0"),
              ref=np.exp2, lowering=Math("exp2"),
              vjp=(lambda g, x, y: unless_zero(g, g * y * _LN_2),), continuation=ANALYTIC, sample=[(-3, 3)])

log2: Op = op("log2", "F -> F", "Logarithm to the base 2; -inf at 0, NaN below.",
              example=("ds.log2(8.0)", "3.0"),
              ref=np.log2, lowering=Math("log2"),
              vjp=(lambda g, x, y: unless_zero(g, g / (x * _LN_2)),),
              continuation=ANALYTIC, sample=[(0.1, 9)])

# ---- angles [rad]

sin: Op = op("sin", "F -> F", "Sine of x [rad].",
             example=("ds.sin(ds.math.pi / 2)", "1.0"),
             ref=np.sin, lowering=Math("sin"),
             vjp=(lambda g, x, y: unless_zero(g, g * cos(x)),), continuation=ANALYTIC, sample=[(-6, 6)])

cos: Op = op("cos", "F -> F", "Cosine of x [rad].",
             example=("ds.cos(ds.math.pi)", "-1.0"),
             ref=np.cos, lowering=Math("cos"),
             vjp=(lambda g, x, y: unless_zero(g, -g * sin(x)),), continuation=ANALYTIC, sample=[(-6, 6)])

# By y rather than x: no second call of a trigonometric function.
tan: Op = op("tan", "F -> F", "Tangent of x [rad].",
             example=("ds.tan(ds.math.pi / 3) ** 2", "2.9999..."),
             ref=np.tan, lowering=Math("tan"),
             vjp=(lambda g, x, y: unless_zero(g, g * (1.0 + y * y)),),
             continuation=ANALYTIC, sample=[(-1.2, 1.2)])

asin: Op = op("asin", "F -> F", "Arc sine [rad], NaN outside [-1, 1]; derivative 0 at -1 and 1.",
              example=("ds.asin(1.0) / ds.math.pi", "0.5"),
              ref=np.arcsin, lowering=Math("asin"),
              vjp=(lambda g, x, y: select(fabs(x) < 1, g / sqrt(select(fabs(x) < 1, 1.0 - x * x, 1.0)),
                                            0.0),), continuation=ANALYTIC, sample=[(-0.9, 0.9)])

acos: Op = op("acos", "F -> F", "Arc cosine [rad], NaN outside [-1, 1]; derivative 0 at -1 and 1.",
              example=("ds.acos(-1.0) / ds.math.pi", "1.0"),
              ref=np.arccos, lowering=Math("acos"),
              vjp=(lambda g, x, y: select(fabs(x) < 1, -g / sqrt(select(fabs(x) < 1, 1.0 - x * x, 1.0)),
                                            0.0),), continuation=ANALYTIC, sample=[(-0.9, 0.9)])

atan: Op = op("atan", "F -> F", "Arc tangent [rad], between -pi/2 and pi/2.",
              example=("ds.atan(1.0) / ds.math.pi", "0.25"),
              ref=np.arctan, lowering=Math("atan"),
              vjp=(lambda g, x, y: mask_zero_adjoint(g, g / (1.0 + x * x)),),
              continuation=ANALYTIC, sample=[(-4, 4)])

atan2: Op = op("atan2", "F F -> F", "Angle [rad] of the point (x2, x1), as in atan2(y, x); derivative 0 "
               "at the origin.",
               example=("ds.atan2(1.0, -1.0) / ds.math.pi", "0.75"),
               ref=np.arctan2, lowering=Math("atan2"),
               vjp=(lambda g, v, u, y: unless_zero(g, select(
                          u * u + v * v > 0, g * u / select(u * u + v * v > 0, u * u + v * v, 1.0), 0.0)),
                      lambda g, v, u, y: unless_zero(g, select(
                          u * u + v * v > 0, -g * v / select(u * u + v * v > 0, u * u + v * v, 1.0), 0.0))),
               continuation=continuation.atan2, sample=[(0.5, 4), (0.5, 4)])

sinh: Op = op("sinh", "F -> F", "Hyperbolic sine, (e^x - e^-x) / 2.",
              example=("ds.sinh(0.0), ds.sinh(1.0)", "0.0 1.17520..."),
              ref=np.sinh, lowering=Math("sinh"),
              vjp=(lambda g, x, y: unless_zero(g, g * cosh(x)),), continuation=ANALYTIC, sample=[(-3, 3)])

cosh: Op = op("cosh", "F -> F", "Hyperbolic cosine, (e^x + e^-x) / 2.",
              example=("ds.cosh(0.0), ds.cosh(1.0)", "1.0 1.54308..."),
              ref=np.cosh, lowering=Math("cosh"),
              vjp=(lambda g, x, y: unless_zero(g, g * sinh(x)),), continuation=ANALYTIC, sample=[(-3, 3)])

tanh: Op = op("tanh", "F -> F", "Hyperbolic tangent, sinh(x) / cosh(x).",
              example=("ds.tanh(0.0), ds.tanh(20.0)", "0.0 1.0"),
              ref=np.tanh, lowering=Math("tanh"),
              vjp=(lambda g, x, y: times(g, 1.0 - y * y),), continuation=ANALYTIC, sample=[(-3, 3)])

# ---- the error function and the gamma function

erf: Op = op("erf", "F -> F", "Error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.",
             example=("ds.erf(0.0), ds.erf(1.0)", "0.0 0.84270..."),
             ref=gamma.erf_reference, lowering=Math("erf"),
             vjp=(lambda g, x, y: times(g, _2_BY_ROOT_PI * exp(-x * x)),),
             continuation=continuation.erf, sample=[(-3, 3)])

erfc: Op = op("erfc", "F -> F", "1 - erf(x), exact where erf(x) is nearly 1.",
              example=("ds.erfc(0.0), ds.erfc(1.0)", "1.0 0.15729..."),
              ref=gamma.erfc_reference, lowering=Math("erfc"),
              vjp=(lambda g, x, y: times(g, -_2_BY_ROOT_PI * exp(-x * x)),),
              continuation=continuation.erfc, sample=[(-3, 3)])

lgamma: Op = op("lgamma", "F -> F", "Logarithm of the absolute value of the gamma function; infinite at "
                "0, -1, -2, ...",
                example=("ds.lgamma(5.0), ds.log(24.0)", "3.17805... 3.17805..."),
                ref=gamma.lgamma_reference, lowering=Math("lgamma"),
                vjp=(lambda g, x, y: unless_zero(g, g * digamma(x)),),
                continuation=continuation.lgamma, sample=[(0.1, 9)])

digamma: Op = op("digamma", "F -> F", "Derivative of lgamma; infinite at 0, NaN at -1, -2, ...",
                 example=("ds.digamma(1.0)", "-0.57721..."),
                 ref=gamma.digamma_reference, lowering=Expand(gamma.digamma),
                 vjp=(lambda g, x, y: unless_zero(g, g * trigamma(x)),),
                 continuation=continuation.digamma, sample=[(0.1, 20)])

# The polygamma functions go on for ever; a refusal that names the reason ends the chain here.
trigamma: Op = op("trigamma", "F -> F", "Derivative of digamma; infinite at 0, -1, -2, ...",
                  example=("ds.trigamma(1.0), ds.math.pi**2 / 6", "1.64493... 1.64493..."),
                  ref=gamma.trigamma_reference, lowering=Expand(gamma.trigamma),
                  vjp=NotDifferentiable("ds.trigamma has no derivative here",
                               "a third derivative of ds.lgamma is out of reach; ds.stop_grad(...) around "
                               "ds.trigamma leaves it out"), continuation=UNKNOWN, sample=[(0.1, 20)])

# ---- comparisons and logic

lt: Op = op("lt", "N N -> b", "a < b.", ref=np.less, vjp=ZERO, public=False,
            lowering=Instr(f="fcmp olt", i="icmp slt", u="icmp ult"),
             continuation=BY_REAL_PART, sample=[(-4, 4), (-4, 4)])
le: Op = op("le", "N N -> b", "a <= b.", ref=np.less_equal, vjp=ZERO, public=False,
            lowering=Instr(f="fcmp ole", i="icmp sle", u="icmp ule"),
             continuation=BY_REAL_PART, sample=[(-4, 4), (-4, 4)])
gt: Op = op("gt", "N N -> b", "a > b.", ref=np.greater, vjp=ZERO, public=False,
            lowering=Instr(f="fcmp ogt", i="icmp sgt", u="icmp ugt"),
             continuation=BY_REAL_PART, sample=[(-4, 4), (-4, 4)])
ge: Op = op("ge", "N N -> b", "a >= b.", ref=np.greater_equal, vjp=ZERO, public=False,
            lowering=Instr(f="fcmp oge", i="icmp sge", u="icmp uge"),
             continuation=BY_REAL_PART, sample=[(-4, 4), (-4, 4)])
eq: Op = op("eq", "T T -> b", "a == b.", ref=np.equal, vjp=ZERO, public=False,
            lowering=Instr(f="fcmp oeq", i="icmp eq", b="icmp eq"),
             continuation=BY_REAL_PART, sample=[(-4, 4), (-4, 4)])
# une, unlike the ordered comparisons above: NaN differs from everything, as in Python.
ne: Op = op("ne", "T T -> b", "a != b.", ref=np.not_equal, vjp=ZERO, public=False,
            lowering=Instr(f="fcmp une", i="icmp ne", b="icmp ne"),
             continuation=BY_REAL_PART, sample=[(-4, 4), (-4, 4)])

logical_and: Op = op("and", "B B -> B", "Both.", ref=np.logical_and, lowering=Instr(b="and"),
                     vjp=ZERO, continuation=BY_REAL_PART, sample=[(0, 1), (0, 1)], public=False)
logical_or: Op = op("or", "B B -> B", "Either.", ref=np.logical_or, lowering=Instr(b="or"),
                    vjp=ZERO, continuation=BY_REAL_PART, sample=[(0, 1), (0, 1)], public=False)
logical_not: Op = op("not", "B -> B", "Negation of a boolean.", ref=np.logical_not,
                     lowering=Expand(lambda x: ne(x, True)), vjp=ZERO,
             continuation=BY_REAL_PART, sample=[(0, 1)],
                     public=False)

bit_and: Op = op("bit_and", "J J -> J", "Bitwise and.", ref=np.bitwise_and, lowering=Instr(i="and", b="and"),
                 vjp=ZERO, continuation=BY_REAL_PART, sample=[(0, 99), (0, 99)], public=False)
bit_or: Op = op("bit_or", "J J -> J", "Bitwise or.", ref=np.bitwise_or, lowering=Instr(i="or", b="or"),
                vjp=ZERO, continuation=BY_REAL_PART, sample=[(0, 99), (0, 99)], public=False)
bit_xor: Op = op("bit_xor", "J J -> J", "Bitwise exclusive or.", ref=np.bitwise_xor,
                 lowering=Instr(i="xor", b="xor"), vjp=ZERO,
             continuation=BY_REAL_PART, sample=[(0, 99), (0, 99)],
                 public=False)
bit_not: Op = op("bit_not", "I -> I", "Bitwise complement.", ref=np.bitwise_not,
                 lowering=Expand(lambda x: bit_xor(x, -1)), vjp=ZERO,
             continuation=BY_REAL_PART, sample=[(0, 99)],
                 public=False)
shl: Op = op("shl", "I I -> I", "Shift left; 0 where all bits are shifted out.", ref=np.left_shift,
             lowering=Expand(shift_left), vjp=ZERO,
             continuation=BY_REAL_PART, sample=[(0, 99), (0, 7)], public=False)
shr: Op = op("shr", "I I -> I", "Shift right; keeps the sign of signed integers.", ref=np.right_shift,
             lowering=Expand(shift_right), vjp=ZERO,
             continuation=BY_REAL_PART, sample=[(0, 99), (0, 7)], public=False)
int_shl: Op = op("int_shl", "I I -> I", "Shift left by less than the width.", ref=np.left_shift,
                 lowering=Instr(i="shl"), vjp=ZERO,
             continuation=BY_REAL_PART, sample=[(0, 99), (0, 7)], public=False)
int_shr: Op = op("int_shr", "I I -> I", "Shift right by less than the width.", ref=np.right_shift,
                 lowering=Instr(i="ashr", u="lshr"), vjp=ZERO,
             continuation=BY_REAL_PART, sample=[(0, 99), (0, 7)],
                 public=False)

# The untaken side gets an adjoint of exactly 0; the guards of `formulas.py` keep it 0 from there
# on.
select: Op = op("select", "B T T -> T", "x1 where cond holds, else x2; both are evaluated.",
                example=("ds.select(2 > 1, 10.0, 20.0)", "10.0"),
                ref=np.where, lowering=CUSTOM_LOWERING,
                vjp=(ZERO, lambda g, c, a, b, y: select(c, g, 0.0),
                       lambda g, c, a, b, y: select(c, 0.0, g)),
                moves=True, continuation=ANALYTIC, sample=[(0, 1), (-4, 4), (-4, 4)])

isnan: Op = op("isnan", "F -> b", "Whether it is not a number.",
               example=("ds.isnan(ds.math.nan), ds.isnan(1.0)", "True False"),
               ref=np.isnan,
               lowering=Expand(lambda x: ne(x, x)), vjp=ZERO, continuation=BY_REAL_PART, sample=[(-4, 4)])
isinf: Op = op("isinf", "F -> b", "Whether it is infinite.",
               example=("ds.isinf(-ds.math.inf)", "True"),
               ref=np.isinf,
               lowering=Expand(lambda x: eq(fabs(x), float("inf"))), vjp=ZERO,
             continuation=BY_REAL_PART, sample=[(-4, 4)])

# ---- conversion, gradient control, random bits

cast: Op = op("cast", "T -> T", "The value in another scalar type; floats lose their fraction on the way to "
              "integers, and stay within their range.", ref=lambda x: x, lowering=CUSTOM_LOWERING,
              vjp=(lambda g, x, y: cast_to(g, x.type.scalar.arithmetic),),
             moves=True, continuation=ANALYTIC, sample=[(-4, 4)], public=False)

# Two rows, as each direction has another answer to "what is its derivative?". Bits of a float that
# derivatives flow through are refused in every adjoint (`check_bits`), so those that make a float have none.
float_bits: Op = op("float_bits", "F -> i", "The bits of a float as an integer of its width.",
                    ref=lambda x: np.asarray(x).view(f"i{np.asarray(x).itemsize}")[()],
                    lowering=CUSTOM_LOWERING,
                    vjp=NotDifferentiable(
                        "the bits of a float have no derivative, and neither has a value computed from them",
                        "say that the number counts as a constant there: "
                        "ds.bit_cast(ds.stop_grad(x), ds.i32)"),
                    moves=True, continuation=UNKNOWN, sample=[(-4, 4)], public=False)

float_of_bits: Op = op("float_of_bits", "I -> f", "The float whose bits an integer of its width has.",
                       ref=lambda x: np.asarray(x).view(f"f{np.asarray(x).itemsize}")[()],
                       lowering=CUSTOM_LOWERING, vjp=ZERO, moves=True, continuation=BY_REAL_PART,
                       sample=[(1, 2000000000)], public=False)

# A row rather than nothing at all: the op must survive until the reverse pass has read its rule.
stop_grad: Op = op("stop_grad", "T -> T", "The value itself, with derivative 0.", ref=lambda x: x,
                   lowering=Expand(lambda x: x), vjp=ZERO, moves=True, continuation=BY_REAL_PART,
                   sample=[(-4, 4)])

derived_as: Op = op("derived_as", "F F -> F", "x, which is equal to e but for rounding, derived as e is.",
                    ref=lambda x, e: x, lowering=Expand(lambda x, e: x), vjp=(ZERO, lambda g, x, e, y: g),
                    continuation=lambda x, e: e, sample=[(-4, 4), (-4, 4)], public=False)

spectral_gradient: Op = op(
    "spectral_gradient", "F -> F", "The value itself: a gradient made of eigenvectors or singular vectors.",
    ref=lambda x: x, lowering=Expand(lambda x: x),
    vjp=NotDifferentiable(
        "a second derivative of a decomposition is refused: where eigenvalues or singular values "
        "are equal, it does not follow from their vectors",
        "use ds.polar_decompose, which has second derivatives"),
    continuation=ANALYTIC, sample=[(-4, 4)], public=False)

drop_rounding: Op = op(
    "drop_rounding", "F F -> F",
    "0 where |x| <= limit: what rounding has left of 0; else, and in derivatives, x.",
    ref=lambda x, limit: np.where(np.abs(x) <= limit, 0, x),
    lowering=Expand(lambda x, limit: select(le(absolute(x), limit), 0.0, x)),
    vjp=(lambda g, x, limit, y: g, ZERO),
    continuation=lambda x, limit: x, sample=[(1, 4), (0, 0.5)], public=False)

random_u64: Op = op("random_u64", "I I I -> I", "64 random bits of (seed, lane, counter).",
                    ref=random_bits_reference, lowering=Expand(random_bits),
                    vjp=ZERO, continuation=BY_REAL_PART, sample=[(0, 9), (0, 9), (0, 9)], public=False)

# ---- tensors as wholes

# Scalarized before lowering (`passes/transforms/scalarize.py`), so no code generator sees these rows.
build: Op = op("build", "S...", "A vector or matrix of scalars, in row order.",
               ref=shapes.build_reference, lowering=CUSTOM_LOWERING, infer_type=shapes.build,
               vjp=lambda k, g, xs, y: extract(g, *shapes.position(y.type, k)),
               linear="together", moves=True, continuation=ANALYTIC, sample=[], public=False)

extract: Op = op("extract", "V I I", "One element of a vector or matrix; indices may be run-time values.",
                 ref=lambda t, *i: t[tuple(int(k) for k in i)], lowering=CUSTOM_LOWERING,
                 infer_type=shapes.extract,
                 vjp=lambda k, g, xs, y: (
                     insert(no_derivative(xs[0].type), g, *xs[1:]) if k == 0 else None),
                 linear="together", moves=True, continuation=ANALYTIC, sample=[], public=False)

insert: Op = op("insert", "V S I I", "A copy with one element replaced.",
                ref=shapes.insert_reference, lowering=CUSTOM_LOWERING, infer_type=shapes.insert,
                vjp=lambda k, g, xs, y: (insert(g, 0.0, *xs[2:]) if k == 0 else
                                           extract(g, *xs[2:]) if k == 1 else None),
                linear="together", moves=True, continuation=ANALYTIC, sample=[], public=False)

broadcast: Op = op("broadcast", "S", "A scalar in every element of a vector or matrix.",
                   ref=lambda x: x, lowering=CUSTOM_LOWERING, infer_type=shapes.given,
                   vjp=lambda k, g, xs, y: reduce_sum(g), linear="together",
                   moves=True, continuation=ANALYTIC, sample=[], public=False)

reduce_sum: Op = op("sum", "V", "Sum of the elements.",
                    ref=np.sum, lowering=CUSTOM_LOWERING, infer_type=shapes.scalar_of,
                    vjp=lambda k, g, xs, y: broadcast_to(g, derivative_type(xs[0].type)),
                    linear="together", continuation=ANALYTIC, sample=[], public=False)

transpose: Op = op("transpose", "V", "Matrix with rows and columns exchanged.",
                   ref=np.transpose, lowering=CUSTOM_LOWERING, infer_type=shapes.transpose,
                   vjp=lambda k, g, xs, y: transpose(g), linear="together",
                   moves=True, continuation=ANALYTIC, sample=[], public=False)

matmul: Op = op("matmul", "V V", "Product of two matrices, or of a matrix and a vector.",
                ref=np.matmul, lowering=CUSTOM_LOWERING, infer_type=shapes.matmul,
                vjp=lambda k, g, xs, y: mask_zero_adjoints(g, (
                    (matmul(g, transpose(xs[1])) if len(xs[1].type.shape) == 2 else outer(g, xs[1]))
                    if k == 0 else matmul(transpose(xs[0]), g))), linear="each",
                continuation=ANALYTIC, sample=[], public=False)

outer: Op = op("outer", "V V", "Matrix of the products of two vectors' elements.",
               ref=np.outer, lowering=CUSTOM_LOWERING, infer_type=shapes.outer,
               vjp=lambda k, g, xs, y: mask_zero_adjoints(
                   g, matmul(g, xs[1]) if k == 0 else matmul(transpose(g), xs[0])),
               linear="each", continuation=ANALYTIC, sample=[], public=False)
# fmt: on

PUBLIC = {row.name: row for row in op_rows.TABLE.values() if row.public}
# These names of `ds` are Python's own, so above their rows have other ones.
abs, max, min, pow, round = absolute, maximum, minimum, power, rint
