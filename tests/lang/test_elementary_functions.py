"""Powers, extrema, rounding, and elementary functions of numbers."""

import math

import numpy as np
import pytest

from tests.support.numbers import (
    Spy,
    compute,
)

# ---- powers, extrema, absolute values


@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 3, 7, 12, 2.0, 0.5, -1.5])
def test_powers_with_constant_exponents(cpu, exponent):
    a = np.array([0.3, 1.0, 2.5, 7.0])

    def power(x, y):
        return x**exponent

    np.testing.assert_allclose(compute(cpu, power, a, a), a**exponent, rtol=1e-14)


def test_powers_of_negative_numbers_and_integers(cpu):
    ds = cpu

    @ds.kernel
    def powers(a: ds.f64, n: ds.i64) -> ds.types.vector(6, ds.f64):
        return [a**2, a**3, pow(a, 4), n**5, ds.pow(a, 2.0), n**2.0]

    assert powers(-2.0, -3).to_list() == [4.0, -8.0, 16.0, -243.0, 4.0, 9.0]


def test_powers_with_run_time_exponents(cpu):
    a = np.array([0.0, 0.5, 1.0, 2.5, 4.0, -2.0, -2.0])
    b = np.array([2.0, -1.5, 100.0, 0.0, 3.25, 3.0, -2.0])

    def power(x, y):
        return x**y

    np.testing.assert_allclose(compute(cpu, power, a, b), a**b, rtol=1e-14)
    np.testing.assert_allclose(compute(cpu, power, a.astype("f4"), b.astype("f4")), a**b, rtol=1e-6)


def test_extrema_take_any_number_of_arguments(cpu):
    ds = cpu

    @ds.kernel
    def extrema(a: ds.f64, b: ds.f64, c: ds.f64) -> ds.types.vector(8, ds.f64):
        v = ds.Vector([a, b, c])
        return [
            min(a, b, c, 10.0),
            max(a, b, c, -10.0),
            ds.min(a, b, c),
            ds.max(c, b, a),
            min([a, b]),
            max(v),
            max(3, 5, 4),
            min(a, 2),
        ]

    for a, b, c in [(1.0, 2.0, 3.0), (3.0, -2.0, 1.0), (-5.0, 7.0, -6.0)]:
        expected = [min(a, b, c, 10), max(a, b, c, -10), min(a, b, c), max(a, b, c)]
        expected += [min(a, b), max(a, b, c), 5, min(a, 2)]
        assert extrema(a, b, c).to_list() == expected


def test_absolute_value_sign_and_select(cpu):
    ds = cpu

    @ds.kernel
    def run(x: ds.f64, n: ds.i32) -> ds.types.vector(7, ds.f64):
        return [
            abs(x),
            ds.abs(n),
            ds.sign(x),
            ds.sign(n),
            ds.select(x > 0, x, -1.0),
            ds.select(n > 3, 1, 2),
            abs(-3) + ds.abs(-2.5),
        ]

    for x, n in [(2.5, 7), (-2.5, -7), (0.0, 0)]:
        sign = [float(np.sign(x)), float(np.sign(n))]
        expected = [abs(x), abs(n), *sign, x if x > 0 else -1.0, 1 if n > 3 else 2, 5.5]
        assert run(x, n).to_list() == expected


def test_select_on_vectors(cpu):
    ds = cpu

    @ds.kernel
    def run(a: ds.f64) -> ds.types.vector(3, ds.f64):
        v = ds.Vector([a, -a, 0.5])
        return ds.select(v > 0.25, v, ds.Vector([10.0, 20.0, 30.0]))

    assert run(2.0).to_list() == [2.0, 20.0, 0.5]
    assert run(-2.0).to_list() == [10.0, 2.0, 0.5]


def test_float_floor_division_and_remainder(cpu):
    rng = np.random.default_rng(7)
    a, b = rng.uniform(-50, 50, 500), rng.uniform(0.5, 5, 500) * rng.choice([-1, 1], 500)

    def quotient(x, y):
        return x // y

    def remainder(x, y):
        return x % y

    assert (compute(cpu, quotient, a, b) == np.floor(a / b)).all()
    np.testing.assert_allclose(compute(cpu, remainder, a, b), np.mod(a, b), atol=1e-13)


def test_rounding(cpu):
    ds = cpu

    @ds.kernel
    def run(x: ds.f64) -> ds.types.vector(6, ds.f64):
        return [ds.floor(x), ds.ceil(x), ds.round(x), ds.trunc(x), round(x), ds.cast(x, ds.i32)]

    for x in (-2.5, -1.5, -0.5, -0.4, 0.0, 0.5, 1.5, 2.5, 2.6, 1e9 + 0.75):
        r = float(np.rint(x))
        expected = [math.floor(x), math.ceil(x), r, math.trunc(x), r, math.trunc(x)]
        assert run(x).to_list() == expected, x


# ---- elementary functions

_DOMAIN = {
    "acos": (-1, 1),
    "asin": (-1, 1),
    "log": (1e-30, 1e30),
    "sqrt": (0, 1e30),
    "rsqrt": (1e-20, 1e20),
    "exp": (-80, 80),
    "sinh": (-80, 80),
    "cosh": (-80, 80),
}
_REFERENCE = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "floor": np.floor,
    "log": np.log,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}


def in_kernel(ds, name, *arrays):
    """ds.<name> of arrays: in a parallel loop (vector code), and one by one (scalar code)."""
    function = getattr(ds, name)
    t = ds.f32 if arrays[0].dtype == np.float32 else ds.f64
    n = len(arrays[0])
    x = [ds.field(t, shape=n) for _ in arrays]
    y, z = ds.field(t, shape=n), ds.field(t, shape=n)
    for f, a in zip(x, arrays, strict=True):
        f.from_numpy(a)

    if len(arrays) == 1:
        (first,) = x

        @ds.kernel
        def run():
            for i in y:
                y[i] = function(first[i])

        @ds.kernel
        def single(i: ds.i32):
            z[i] = function(first[i])

    else:
        first, second = x

        @ds.kernel
        def run():
            for i in y:
                y[i] = function(first[i], second[i])

        @ds.kernel
        def single(i: ds.i32):
            z[i] = function(first[i], second[i])

    run()
    for i in range(n):
        single(i)
    return y.to_numpy(), z.to_numpy()


def close(found, exact, ulps):
    """Within some units in the last place of the exact value."""
    with np.errstate(invalid="ignore", over="ignore"):
        unit = np.spacing(np.abs(exact).astype(found.dtype)).astype(exact.dtype)
        error = np.abs(found.astype(exact.dtype) - exact) / unit
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    return np.where(same, 0, error).max() <= ulps


@pytest.mark.parametrize("name", sorted(_REFERENCE))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementary_functions(cpu, name, dtype):
    low, high = _DOMAIN.get(name, (-20, 20))
    rng = np.random.default_rng(1)
    if high >= 1e10:
        a = np.exp(rng.uniform(np.log(max(low, 1e-30)), np.log(high), 400))
    else:
        a = np.concatenate([np.linspace(low, high, 200), rng.uniform(low, high, 200)])
    a = a.astype(dtype)
    wide = np.longdouble if dtype == np.float64 else np.float64
    for found in in_kernel(cpu, name, a):
        assert close(found, _REFERENCE[name](a.astype(wide)), 4), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_two_numbers(cpu, dtype):
    rng = np.random.default_rng(2)
    wide = np.longdouble if dtype == np.float64 else np.float64
    a, b = rng.uniform(-3, 3, (2, 300)).astype(dtype)
    for found in in_kernel(cpu, "atan2", a, b):
        assert close(found, np.arctan2(a.astype(wide), b.astype(wide)), 4)
    for found in in_kernel(cpu, "pow", abs(a), b):
        assert close(found, np.power(abs(a).astype(wide), b.astype(wide)), 4)
    for name, reference in (("min", np.fmin), ("max", np.fmax)):
        for found in in_kernel(cpu, name, a, b):
            assert (found == reference(a, b)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(_REFERENCE))
def test_functions_at_special_values(cpu, name, dtype):
    if name == "sign":
        pytest.skip("the sign of NaN is 0")
    tiny, huge = np.finfo(dtype).tiny, np.finfo(dtype).max
    a = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, huge, -huge, 1, -1], dtype)
    wide = np.longdouble if dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        exact = _REFERENCE[name](a.astype(wide))
        exact = np.where(np.abs(exact) > huge, np.copysign(np.inf, exact), exact)
    for found in in_kernel(cpu, name, a):
        assert (np.isnan(found) == np.isnan(exact)).all(), (name, found, exact)
        assert (np.isinf(found) == np.isinf(exact)).all(), (name, found, exact)
        ok = np.isfinite(exact)
        assert close(found[ok], exact[ok], 4), (name, found, exact)


def test_integers_become_the_default_float(cpu):
    ds, spy = cpu, Spy()
    sink = ds.field(ds.i32, shape=())

    @ds.kernel
    def run(n: ds.i32) -> ds.f32:
        sink[None] = spy[ds.sqrt(n)]
        return ds.sqrt(n) + ds.exp(0)

    assert run(16) == 5.0
    assert spy.types == ["f32"]


def test_constants_are_folded_in_double_precision(cpu):
    ds = cpu
    a = ds.field(ds.f64, shape=3)

    @ds.kernel
    def run(one: ds.f64):
        a[0] = ds.sin(0.5) * one
        a[1] = math.pi / 3 * one
        a[2] = math.sqrt(2) * math.e**2 * np.cos(0.25) * one

    run(1.0)
    expected = [math.sin(0.5), math.pi / 3, math.sqrt(2) * math.e**2 * math.cos(0.25)]
    np.testing.assert_allclose(a.to_numpy(), expected, rtol=1e-15)


def test_not_a_number_and_infinity(cpu):
    ds = cpu

    @ds.kernel
    def run(x: ds.f64) -> ds.types.vector(5, ds.i32):
        return [ds.isnan(x), ds.isinf(x), x == x, x != x, x < 1.0]

    assert run(float("nan")).to_list() == [1, 0, 0, 1, 0]
    assert run(float("inf")).to_list() == [0, 1, 1, 0, 0]
    assert run(-float("inf")).to_list() == [0, 1, 1, 0, 1]
    assert run(0.5).to_list() == [0, 0, 1, 0, 1]


def test_fast_math_changes_little(cpu):
    ds = cpu
    ds.init(fast_math=True)
    rng = np.random.default_rng(3)
    a = rng.uniform(0.5, 2, 1000)

    def formula(x, y):
        return (x + y) / (x * y) - ds.sqrt(x)

    np.testing.assert_allclose(
        compute(ds, formula, a, a), 2 / a - np.sqrt(a), rtol=1e-12, atol=1e-14
    )


def test_storing_f64_into_f32_warns(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=())

    @ds.kernel
    def narrow(a: ds.f64):
        x[None] = a

    with pytest.warns(ds.PrecisionLoss, match="x holds f32"):
        narrow(0.1)
    assert x[None] == np.float32(0.1)
