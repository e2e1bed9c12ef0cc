"""Ops of complex numbers, where NumPy's function is none of them: for the complex step.

An analytic function moved by a tiny step along the imaginary axis has its derivative times the step as
imaginary part: imag(f(x + ih)) = h f'(x) + O(h^3). No difference is taken, so nothing cancels. These
functions continue an op from the real axis into its neighbourhood, and the imaginary parts of their results
count. Where an op is made of pieces, as abs and min are, the real part says which piece it is. No derivative
rule of the op table is used: what the complex step says of a gradient is independent of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.ir.ops.gamma import digamma_reference, trigamma_reference

_2_BY_ROOT_PI = 2 / float(np.sqrt(np.pi))


def absolute(z: Any) -> Any:
    """Continue |x| from its two sides; 0 between them."""
    return np.sign(z.real) * z


def minimum(a: Any, b: Any) -> Any:
    """Choose by the real parts; the other one where one is NaN."""
    return np.where((a.real <= b.real) | np.isnan(b.real), a, b)


def maximum(a: Any, b: Any) -> Any:
    """Choose by the real parts; the other one where one is NaN."""
    return np.where((a.real >= b.real) | np.isnan(b.real), a, b)


def remainder(real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Continue a remainder of floats: its quotient is locally constant."""

    def continued(a: Any, b: Any) -> Any:
        quotient = np.rint((a.real - real(a.real, b.real)) / b.real)
        return a - b * quotient

    return continued


def power(z: Any, p: Any) -> Any:
    """z**p = a**p (z / a)**p with a the real part of z: no logarithm of a negative number is needed."""
    a = np.asarray(z.real)
    turned = np.where(p.imag == 0, 1, np.exp(1j * p.imag * np.log(a)))
    by_ratio = np.power(a, p.real) * turned * np.exp(p * np.log(z / a))
    return np.where(a == 0, np.power(z, p), by_ratio)


def atan2(v: Any, u: Any) -> Any:
    """The angle of (u, v), by the small angle between it and the point of the real parts."""
    sine, cosine = v * u.real - u * v.real, u * u.real + v * v.real
    angle = np.arctan2(v.real, u.real) + np.arctan(sine / cosine)
    return np.where(np.hypot(u.real, v.real) > 0, angle, 0)


def _along(slope: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Continue a function by its integrand, of which no more than the first term matters."""
    return lambda z: 1j * slope(z.real) * z.imag


def _gauss(x: Any) -> Any:
    return _2_BY_ROOT_PI * np.exp(-x * x)


erf = _along(_gauss)
erfc = _along(lambda x: -_gauss(x))
lgamma = _along(digamma_reference)
digamma = _along(trigamma_reference)
