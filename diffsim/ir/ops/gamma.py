"""The error function, the logarithm of the gamma function and its derivatives: references and formulas.

NumPy has none of them. The C library has `erf`, `erfc` and `lgamma`, for one number. The derivatives of
`lgamma` are formulas here, written once for values of a kernel and for arrays. digamma is a rational function
from 1 to 2, where it has its zero, and an asymptotic series from 10 on. Between them it follows from
digamma(x + 1) = digamma(x) + 1 / x, and below 0 from digamma(1 - x) - digamma(x) = pi / tan(pi x). The
rational function is that of Boost's `digamma` (J. Maddock, Boost Software License).
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from diffsim.ir.builder_stack import emit
from diffsim.ir.nodes import Value
from diffsim.ir.ops.formulas import cast_to
from diffsim.ir.types import f64

_PI = math.pi
# From here on seven terms of digamma's asymptotic series are exact to f64 (nine of trigamma's).
_SERIES_FROM = 10.0
# The zero of digamma, as a sum of three doubles: near it x minus all three keeps its relative accuracy,
# and so does digamma, which is that difference times a smooth factor.
_ZERO = (1569415565 / 2**30, 381566830 / 2**60, 0.9016312093258695918615325266959189453125e-19)
_SLOPE = 0.99558162689208984375
_ABOVE = (
    0.25479851061131551,
    -0.32555031186804491,
    -0.65031853770896507,
    -0.28919126444774784,
    -0.045251321448739056,
    -0.0020713321167745952,
)
_BELOW = (
    1.0,
    2.0767117023730469,
    1.4606242909763515,
    0.43593529692665969,
    0.054151797245674225,
    0.0021284987017821144,
    -0.55789841213675513e-6,
)
# Bernoulli numbers B2, B4, ..., of the asymptotic series (Abramowitz and Stegun 6.3.18, 6.4.12).
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)


class _Functions(NamedTuple):
    """The functions that the formulas need beside arithmetic and comparisons: NumPy's, or emitted ops."""

    where: Callable[..., Any]
    equal: Callable[[Any, Any], Any]
    round: Callable[[Any], Any]
    log: Callable[[Any], Any]
    tan: Callable[[Any], Any]
    sin: Callable[[Any], Any]


_OF_ARRAYS = _Functions(np.where, np.equal, np.rint, np.log, np.tan, np.sin)
_OF_VALUES = _Functions(
    *(partial(emit, name) for name in ("select", "eq", "round", "log", "tan", "sin"))
)


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """Evaluate a polynomial by Horner's rule, given the coefficients of the powers 0, 1, 2, ... of x."""
    *rest, total = coefficients
    for c in reversed(rest):
        total = x * total + c
    return total


def _digamma(x: Any, f: _Functions) -> Any:
    # 1. Reflect negative x, and shift x below 1 up: t >= 0, u >= 1. All branches are selects, as
    # lanes of a vector take different ones.
    below = x < 0
    t = f.where(below, 1.0 - x, x)
    up = t < 1
    u = f.where(up, t + 1.0, t)
    rest = f.where(up, -1.0 / t, 0.0)
    # 2. Shift u from up to 10 into [1, 2], where the rational function holds: at most eight steps.
    for _ in range(int(_SERIES_FROM) - 2):
        down = u > 2
        rest = rest + f.where(down, 1.0 / (u - 1.0), 0.0)
        u = f.where(down, u - 1.0, u)
    g = ((u - _ZERO[0]) - _ZERO[1]) - _ZERO[2]
    ratio = _polynomial(_ABOVE, u - 1.0) / _polynomial(_BELOW, u - 1.0)
    small = g * _SLOPE + g * ratio + rest
    # 3. The asymptotic series for large t.
    inverse = 1.0 / t
    square = inverse * inverse
    terms = tuple(b / (2 * k) for k, b in enumerate(_BERNOULLI[:7], 1))
    large = f.log(t) - 0.5 * inverse - square * _polynomial(terms, square)
    y = f.where(t < _SERIES_FROM, small, large)
    # 4. Undo the reflection. tan has period pi, so the fractional part gives the same value,
    # without the error of pi * x for large x; at a pole (part = 0) digamma has no value.
    part = x - f.round(x)
    mirrored = f.where(f.equal(part, 0.0), math.nan, y - _PI / f.tan(_PI * part))
    return f.where(below, mirrored, y)


def _trigamma(x: Any, f: _Functions) -> Any:
    below = x < 0
    # trigamma(1 - x) + trigamma(x) = (pi / sin(pi x))^2 (Abramowitz and Stegun 6.4.7), then the
    # recurrence trigamma(x) = trigamma(x + 1) + 1 / x^2 up to where the series holds.
    u = f.where(below, 1.0 - x, x)
    rest = f.where(below, 0.0, 0.0)
    for _ in range(int(_SERIES_FROM)):
        up = u < _SERIES_FROM
        rest = rest + f.where(up, 1.0 / (u * u), 0.0)
        u = f.where(up, u + 1.0, u)
    inverse = 1.0 / u
    square = inverse * inverse
    y = rest + (inverse + (0.5 * square + inverse * square * _polynomial(_BERNOULLI, square)))
    side = _PI / f.sin(_PI * (x - f.round(x)))
    return f.where(below, side * side - y, y)


def digamma(x: Value) -> Value:
    """Return the derivative of lgamma, computed in f64: the zero of digamma is not near enough to any f32."""
    return cast_to(_digamma(cast_to(x, f64), _OF_VALUES), x.type.scalar)


def trigamma(x: Value) -> Value:
    """Return the second derivative of lgamma, computed in f64 as `digamma`."""
    return cast_to(_trigamma(cast_to(x, f64), _OF_VALUES), x.type.scalar)


def _float_type(x: Any) -> Any:
    return x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)


def _by_formula(formula: Callable[[Any, _Functions], Any]) -> Callable[[Any], Any]:
    def reference(x: Any) -> Any:
        x = np.asarray(x)
        with np.errstate(all="ignore"):
            return formula(x.astype(np.float64), _OF_ARRAYS).astype(_float_type(x))[()]

    return reference


def one_by_one(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """Make a reference for arrays of a function of one number."""

    def reference(x: Any) -> Any:
        x = np.asarray(x)
        found = [function(v) for v in x.ravel().astype(np.float64).tolist()]
        with np.errstate(all="ignore"):
            return np.array(found).astype(_float_type(x)).reshape(x.shape)[()]

    return reference


def _lgamma() -> Callable[[float], float]:
    """Return the C library's lgamma; `math.lgamma` is CPython's own and loses digits near its zeros."""
    name = {"win32": "ucrtbase.dll", "darwin": "libSystem.dylib"}.get(sys.platform, "libm.so.6")
    try:
        function = ctypes.CDLL(name).lgamma
    except (OSError, AttributeError):
        return _lgamma_of_python
    function.argtypes, function.restype = [ctypes.c_double], ctypes.c_double
    return function


def _lgamma_of_python(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or larger than any number
        return math.inf


erf_reference = one_by_one(math.erf)
erfc_reference = one_by_one(math.erfc)
lgamma_reference = one_by_one(_lgamma())
digamma_reference = _by_formula(_digamma)
trigamma_reference = _by_formula(_trigamma)
