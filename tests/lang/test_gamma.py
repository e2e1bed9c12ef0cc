"""`ds.erf`, `ds.erfc`, `ds.lgamma` and its derivatives: to a few units in the last place, and where they end.

What is exact is worked out here with 50 digits, by other formulas: Taylor's series of erf, and the asymptotic
series of the gamma function far from 0, from where the recurrence leads back.
"""

import decimal
import functools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AutodiffError
from tests.support.gradients import central, field

decimal.getcontext().prec = 60
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
EULER = 0.57721566490153286061
FAR = 60


def bernoulli(count):
    """The numbers B(2), B(4), ..."""
    b = [Fraction(1)]
    for m in range(1, 2 * count + 1):
        b.append(-sum(math.comb(m + 1, k) * b[k] for k in range(m)) / (m + 1))
    return [Decimal(x.numerator) / Decimal(x.denominator) for x in b[2::2]]


B = bernoulli(20)


def far(x):
    """x + n beyond FAR, and the terms x, x + 1, ..., x + n - 1."""
    x = Decimal(x)
    steps = [x + k for k in range(max(0, math.ceil(FAR - x)))]
    return x + len(steps), steps


def exact_lgamma(x):
    z, steps = far(x)
    series = sum(b / (2 * k * (2 * k - 1) * z ** (2 * k - 1)) for k, b in enumerate(B, 1))
    found = (z - Decimal("0.5")) * z.ln() - z + (2 * PI).ln() / 2 + series
    return found - functools.reduce(lambda a, b: a * b, map(abs, steps), Decimal(1)).ln()


def exact_digamma(x):
    z, steps = far(x)
    series = sum(b / (2 * k * z ** (2 * k)) for k, b in enumerate(B, 1))
    return z.ln() - 1 / (2 * z) - series - sum(1 / s for s in steps)


def exact_trigamma(x):
    z, steps = far(x)
    series = sum(b / z ** (2 * k + 1) for k, b in enumerate(B, 1))
    return 1 / z + 1 / (2 * z * z) + series + sum(1 / (s * s) for s in steps)


def exact_erf(x):
    x = Decimal(x)
    with decimal.localcontext(prec=60 + int(x * x)):
        total = term = x
        k = 0
        while abs(term) > Decimal(10) ** -(50 + int(x * x)):
            k += 1
            term = -term * x * x / k
            total += term / (2 * k + 1)
        return 2 * total / PI.sqrt()


def exact_erfc(x):
    x = Decimal(x)
    if x < 3:
        return 1 - exact_erf(x)
    tail = x  # of Laplace's continued fraction
    for k in range(400, 0, -1):
        tail = x + Decimal(k) / 2 / tail
    return (-x * x).exp() / PI.sqrt() / tail


EXACT = {
    "erf": exact_erf,
    "erfc": exact_erfc,
    "lgamma": exact_lgamma,
    "digamma": exact_digamma,
    "trigamma": exact_trigamma,
}
ZERO_OF_DIGAMMA = 1.4616321449683622


def points(name):
    rng = np.random.default_rng(3)
    if name.startswith("erf"):
        return np.concatenate([rng.uniform(-4, 6, 100), 10.0 ** rng.uniform(-12, 0, 20)])
    near = ZERO_OF_DIGAMMA + rng.uniform(-1e-6, 1e-6, 10)
    parts = [(0, 1, 40), (1, 2, 40), (2, 10, 40), (10, 60, 20), (60, 1e4, 10)]
    x = [rng.uniform(low, high, n) for low, high, n in parts]
    x = [*x, near, 1 + rng.uniform(-1e-4, 1e-4, 10), 2 + rng.uniform(-1e-4, 1e-4, 10)]
    return np.concatenate([*x, 10.0 ** rng.uniform(-15, -1, 20)])


def in_kernels(name, x):
    """In Python, in a parallel loop (vectors), and in a loop inside one lane."""
    function = getattr(ds, name)
    t = ds.f32 if x.dtype == np.float32 else ds.f64
    given, side, alone = (ds.field(t, shape=len(x)) for _ in range(3))
    given.from_numpy(x)

    @ds.kernel
    def run():
        for i in side:
            side[i] = function(given[i])

    @ds.kernel
    def one(k: ds.i32):
        alone[k] = function(given[k])

    run()
    for k in range(len(x)):
        one(k)
    return function(x), side.to_numpy(), alone.to_numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT)
def test_all_digits(cpu, name, dtype):
    x = points(name).astype(dtype)
    exact = [EXACT[name](v) for v in x.tolist()]
    unit = np.spacing(np.abs(np.array(exact, np.float64)).astype(dtype)).tolist()
    for found in in_kernels(name, x):
        assert found.dtype == dtype
        for a, b, e, u in zip(x.tolist(), found.tolist(), exact, unit, strict=True):
            assert abs(Decimal(b) - e) <= 8 * Decimal(u), (a, b, float(e))


@pytest.mark.parametrize("name", ["lgamma", "digamma", "trigamma"])
def test_left_of_0(cpu, name):
    """Between poles; near their zeros the values are what is left of larger ones."""
    x = np.random.default_rng(4).uniform(-20, 0, 60)
    x = x[np.abs(x - np.rint(x)) > 1e-3]
    exact = np.array([float(EXACT[name](v)) for v in x.tolist()])
    for found in in_kernels(name, x):
        np.testing.assert_allclose(found, exact, rtol=2e-14, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_they_end(cpu, dtype):
    inf, nan, huge = np.inf, np.nan, np.finfo(dtype).max
    x = np.array([inf, -inf, nan, 0.0, -0.0, -1, -7, -1e30, huge], dtype)
    expected = {
        "erf": [1, -1, nan, 0, 0, *(math.erf(v) for v in (-1, -7)), -1, 1],
        "erfc": [0, 2, nan, 1, 1, *(math.erfc(v) for v in (-1, -7)), 2, 0],
        "lgamma": [inf, inf, nan, inf, inf, inf, inf, inf, inf],
        "digamma": [inf, nan, nan, -inf, inf, nan, nan, nan, math.log(huge)],
        "trigamma": [0, nan, nan, inf, inf, inf, inf, inf, 0],
    }
    for name, values in expected.items():
        for found in in_kernels(name, x):
            np.testing.assert_allclose(found, values, rtol=1e-6, atol=1e-38, err_msg=name)


def test_closed_forms(cpu):
    """gamma(1/2) = sqrt(pi), digamma(1) = -0.577..., digamma(1/2), trigamma(1) and (1/2)."""
    assert ds.lgamma(0.5) == pytest.approx(math.log(math.pi) / 2, rel=4e-16)
    assert ds.lgamma(1.0) == ds.lgamma(2.0) == 0.0
    assert ds.lgamma(11) == pytest.approx(math.log(math.factorial(10)), rel=4e-16)
    assert ds.digamma(1.0) == pytest.approx(-EULER, rel=4e-16)
    assert ds.digamma(0.5) == pytest.approx(-EULER - 2 * math.log(2), rel=4e-16)
    assert ds.trigamma(1.0) == pytest.approx(math.pi**2 / 6, rel=4e-16)
    assert ds.trigamma(0.5) == pytest.approx(math.pi**2 / 2, rel=4e-16)


def test_gradients(cpu):
    x, loss = field(9), field()
    at = np.array([-2.5, -0.3, 0.2, 0.9, ZERO_OF_DIGAMMA, 1.9, 3.0, 9.5, 30.0])

    @ds.kernel
    def add_up(which: ds.template()):
        for i in x:
            loss[None] += which(x[i])

    derivative = {
        ds.erf: 2 / math.sqrt(math.pi) * np.exp(-at * at),
        ds.erfc: -2 / math.sqrt(math.pi) * np.exp(-at * at),
        ds.lgamma: [float(exact_digamma(v)) for v in at.tolist()],
        ds.digamma: [float(exact_trigamma(v)) for v in at.tolist()],
    }
    for function, expected in derivative.items():
        x.from_numpy(at)
        loss.fill(0)
        with ds.Tape(loss):
            add_up(function)
        np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-13, atol=1e-15)


def test_second_derivatives_in_a_kernel(cpu):
    ds.init(default_fp=ds.f64)
    x, y, loss = field(4), field(4), field()
    at = np.array([0.3, 1.4, 4.0, 15.0])

    @ds.func
    def energy(a):
        return ds.lgamma(a) * ds.erf(a)

    @ds.kernel
    def force():
        for i in x:
            loss[None] += ds.grad(energy)(x[i])

    def value(moved):
        x.from_numpy(moved)
        loss.fill(0)
        force()
        return loss[None]

    expected = central(value, at)
    x.from_numpy(at)
    loss.fill(0)
    with ds.Tape(loss):
        force()
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-7)


def test_a_value_that_was_not_taken_has_no_derivative(cpu):
    """At its poles digamma is infinite: 0 * inf would be NaN."""
    x, loss = field(3), field()

    @ds.kernel
    def add_up():
        for i in x:
            loss[None] += ds.select(x[i] > 0, ds.lgamma(x[i]) + ds.digamma(x[i]), x[i])

    x.from_numpy(np.array([0.0, -3.0, 1.0]))
    with ds.Tape(loss):
        add_up()
    np.testing.assert_allclose(x.grad.to_numpy(), [1, 1, math.pi**2 / 6 - EULER])


def test_a_third_derivative_is_refused(cpu):
    x, loss = field(), field()

    @ds.kernel
    def f():
        loss[None] += ds.trigamma(x[None])

    x[None] = 1
    with pytest.raises(AutodiffError, match="trigamma has no derivative") as caught:
        with ds.Tape(loss):
            f()
    assert "ds.trigamma(x[None])" in str(caught.value)
    assert "ds.stop_grad" in caught.value.hint
