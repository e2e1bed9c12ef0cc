"""Types of numbers: promotion, literals, casts, integer arithmetic."""

import math

import numpy as np
import pytest

from tests.support.numbers import (
    FLOATS,
    NUMBERS,
    SIGNED,
    UNSIGNED,
    Spy,
    compute,
    interesting,
    numpy_of,
    pairs,
)

# ---- promotion


def expected_promotion(a, b):
    """Floats win over integers, then wide over narrow, then unsigned over signed."""
    return max(a, b, key=lambda t: (t[0] == "f", int(t[1:]), t[0] == "u"))


@pytest.mark.parametrize("a", NUMBERS)
def test_promotion(cpu, a):
    ds, spy = cpu, Spy()
    x = ds.field(getattr(ds, a), shape=())
    fields = [ds.field(getattr(ds, b), shape=()) for b in NUMBERS]
    sink = ds.field(ds.i32, shape=())

    @ds.kernel
    def add():
        for y in ds.static(fields):
            sink[None] = spy[x[None] + y[None]]
            sink[None] = spy[y[None] * x[None]]
            sink[None] = spy[ds.min(x[None], y[None])]

    add()
    assert spy.types == [t for b in NUMBERS for t in [expected_promotion(a, b)] * 3]


def test_division_always_gives_a_float(cpu):
    ds, spy = cpu, Spy()
    sink = ds.field(ds.i32, shape=())
    fields = [ds.field(getattr(ds, a), shape=()) for a in ["i8", "u64", "f32", "f64"]]

    @ds.kernel
    def divide():
        for x in ds.static(fields):
            sink[None] = spy[x[None] / 2]
            sink[None] = spy[x[None] // 2]

    divide()
    assert spy.types == "f32 i32 f32 u64 f32 f32 f64 f64".split()


def test_literals_take_the_type_of_what_they_meet(cpu):
    ds, spy = cpu, Spy()
    sink = ds.field(ds.i32, shape=())
    names = ["f32", "f64", "i8", "i32", "i64", "u8", "u32", "u64"]
    fields = [ds.field(getattr(ds, a), shape=()) for a in names]

    @ds.kernel
    def meet():
        for x in ds.static(fields):
            sink[None] = spy[x[None] + 1]
        for x in ds.static(fields):
            sink[None] = spy[0.5 * x[None]]

    meet()
    integers = [expected_promotion(a, "i32") for a in names[2:]]
    assert spy.types[:8] == ["f32", "f64", *integers]
    assert spy.types[8:] == ["f32", "f64"] + ["f32"] * 6


def test_large_literals(cpu):
    ds = cpu

    @ds.kernel
    def large(a: ds.i32) -> ds.types.vector(3, ds.i64):
        return [a + 2**40, 3_000_000_000, ds.i64(2) ** 62 + a]

    assert large(5).to_list() == [5 + 2**40, 3 * 10**9, 2**62 + 5]


def test_tenth_is_f64s_tenth_where_it_meets_f64(cpu):
    ds = cpu
    y = ds.field(ds.f64, shape=12)
    v = ds.Vector.field(2, ds.f64, shape=3)
    captured = 0.1

    @ds.func
    def passed_on(a, factor):
        return factor * a

    @ds.kernel
    def tenths(one: ds.f64):
        y[0] = 0.1 * one
        y[1] = one * captured
        y[2] = 0.1
        y[3] += 0.1
        y[4] = (1 / 10) * one
        y[5] = passed_on(one, 0.1)
        y[6] = 0.1 if one > 0 else one
        y[7] = ds.max(0.1, one * 0)
        y[8] = ds.select(one > 0, 0.1, one)
        local = one
        local = 0.1
        y[9] = local
        y[10] = ds.cast(0.1, ds.f64)
        y[11] = ds.f64(0.1)
        v[0] = [0.1, one * 0.1]
        v[1] = 0.1 * ds.Vector([one, one])
        v[2].x = 0.1
        v[2][1] += 0.1

    tenths(1.0)
    assert y.to_numpy().tolist() == [0.1] * 12
    assert v.to_numpy().tolist() == [[0.1, 0.1]] * 3


def test_a_local_given_a_bare_literal_has_the_default_type(cpu):
    ds = cpu
    for fp, expected in [(ds.f32, float(np.float32(0.1))), (ds.f64, 0.1)]:
        ds.init(default_fp=fp)

        @ds.kernel
        def local() -> ds.f64:
            tenth = 0.1
            return tenth

        assert local() == expected


def test_default_ip(cpu):
    ds = cpu
    results = []
    for ip in (ds.i32, ds.i64):
        ds.init(default_ip=ip)

        @ds.kernel
        def local(big: int) -> ds.i64:
            a = 2**30
            a += big
            return a * 4

        results.append(local(2**20))
    exact = 4 * (2**30 + 2**20)
    assert results == [(exact + 2**31) % 2**32 - 2**31, exact]


def test_float_and_int_annotations_follow_the_defaults(cpu):
    ds = cpu
    ds.init(default_fp=ds.f64, default_ip=ds.i64)

    @ds.kernel
    def keep(a: float, b: int) -> float:
        return a + b

    assert keep(0.1, 2**50) == 0.1 + 2**50


def test_numpy_scalars_are_numbers(cpu):
    ds, spy = cpu, Spy()
    x = ds.field(ds.i64, shape=8)
    three, yes, tenth, sizes = np.int64(3), np.bool_(True), np.float32(0.1), np.array([4, 5])

    @ds.func
    def count_down(n):
        turns = 0
        while n > 0:
            n -= 1
            turns += 1
        return turns

    @ds.kernel
    def use(a: ds.i32, c: ds.f64):
        x[0] = spy[a + three]
        x[0] = spy[a * yes]
        x[0] = spy[c * tenth]
        x[0] = spy[a * sizes[0]]
        n = three
        for i in range(5):
            n += 1
        x[three] = n + sizes[1]
        x[1] = count_down(three)
        for i in range(sizes[0]):
            x[4 + i] = 7

    use(2, 0.0)
    assert spy.types == ["i32", "i32", "f64", "i32"]
    assert x.to_numpy().tolist() == [0, 3, 0, 13, 7, 7, 7, 7]


# ---- casts


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", SIGNED)
def test_float_to_signed_cuts_the_fraction_off(cpu, source, target):
    ds = cpu
    t = getattr(ds, target)
    a = np.array([0, -0.0, 0.4, 0.6, -0.4, -0.6, 1.5, -1.5, 2.5, -100.99, 99.99], numpy_of(source))
    found = compute(ds, lambda_cast(t), a, a, numpy_of(target))
    assert found.tolist() == [math.trunc(x) for x in a.tolist()]


_NAMESPACE = {}


def lambda_cast(t):
    _NAMESPACE["t"] = t

    def convert(x, y):
        return t(x)

    return convert


@pytest.mark.parametrize("target", SIGNED + UNSIGNED)
def test_integers_wrap_around_in_casts(cpu, target):
    for source in ("i64", "u64", "i32"):
        a = interesting(numpy_of(source))
        found = compute(cpu, lambda_cast(getattr(cpu, target)), a, a, numpy_of(target))
        assert (found == a.astype(numpy_of(target))).all()


@pytest.mark.parametrize("target", FLOATS)
def test_integers_to_floats_round_to_nearest(cpu, target):
    for source in ("i64", "u64", "i32", "u32", "u8"):
        a = interesting(numpy_of(source))
        found = compute(cpu, lambda_cast(getattr(cpu, target)), a, a, numpy_of(target))
        with np.errstate(over="ignore"):  # f16 ends at 65504
            assert (found == a.astype(numpy_of(target))).all()


def test_casts_to_and_from_booleans(cpu):
    ds = cpu

    @ds.kernel
    def count(x: ds.f32, n: ds.i32) -> ds.types.vector(6, ds.i32):
        return [
            ds.cast(bool(x), ds.i32),
            ds.i32(ds.u1(n)),
            ds.i32(n > 3) * 10,
            ds.cast(x > 0.25, ds.i32),
            int(not n),
            ds.cast(ds.f32(n > 3) * 2.5, ds.i32),
        ]

    assert count(0.25, 4).to_list() == [1, 1, 10, 0, 0, 2]
    assert count(0.0, 0).to_list() == [0, 0, 0, 0, 1, 0]
    assert count(-3.0, 256).to_list() == [1, 1, 10, 0, 0, 2]
    assert count(float("nan"), -1).to_list() == [1, 1, 0, 0, 0, 0]


def test_boolean_fields_and_arguments(cpu):
    ds = cpu
    flags = ds.field(ds.u1, shape=10)

    @ds.kernel
    def mark(parity: bool) -> ds.i32:
        count = 0
        for i in flags:
            flags[i] = (i % 2 == 1) == parity
            if flags[i]:
                count += 1
        return count

    assert mark(True) == 5
    assert flags.to_numpy().tolist() == [i % 2 == 1 for i in range(10)]
    mark(False)
    assert flags[0] is True
    flags[0] = False
    assert flags.to_numpy().sum() == 4


def test_casts_in_python(cpu):
    ds = cpu
    assert ds.cast(2.9, ds.i32) == 2
    assert ds.f32(0.1) == float(np.float32(0.1))
    assert ds.i64(-1.5) == -1
    assert ds.cast(ds.Vector([1.5, -2.5]), ds.i32).to_list() == [1, -2]


def test_float_of_text_is_known_while_compiling(cpu):
    ds = cpu
    a = ds.field(ds.f64, shape=2)

    @ds.kernel
    def run():
        a[0] = float("inf")
        a[1] = -float("inf")

    run()
    assert a.to_numpy().tolist() == [np.inf, -np.inf]


# ---- integers


def python_floor(a, b, dtype):
    """a // b of arrays with Python's numbers, wrapped around; 0 where b is 0."""
    out = [x // y if y else 0 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return wrapped(out, dtype)


def wrapped(numbers, dtype):
    bits = np.dtype(dtype).itemsize * 8
    low = [n % 2**bits for n in numbers]
    if np.dtype(dtype).kind == "i":
        low = [n - 2**bits if n >= 2 ** (bits - 1) else n for n in low]
    return np.array(low, dtype)


@pytest.mark.parametrize("name", SIGNED + UNSIGNED)
def test_integer_arithmetic_wraps_around(cpu, name):
    dtype = numpy_of(name)
    a, b = pairs(dtype)

    def formula(x, y):
        return x * y + x - (y << 1) * 3 + (-x)

    exact = [x * y + x - 6 * y - x for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    cast = getattr(cpu, name)

    def narrowed(x, y):
        return cast(formula_func(x, y))

    formula_func = cpu.func(formula)
    assert (compute(cpu, narrowed, a, b) == wrapped(exact, dtype)).all()


@pytest.mark.parametrize("name", SIGNED + UNSIGNED)
def test_floor_division_and_remainder(cpu, name):
    ds, dtype = cpu, numpy_of(name)
    a, b = pairs(dtype, 3)

    def quotient(x, y):
        return x // y

    def remainder(x, y):
        return x % y

    def c_remainder(x, y):
        return ds.raw_mod(x, y)

    both = list(zip(a.tolist(), b.tolist(), strict=True))
    assert (compute(ds, quotient, a, b) == python_floor(a, b, dtype)).all()
    expected = [x % y if y else 0 for x, y in both]
    assert (compute(ds, remainder, a, b) == np.array(expected, dtype)).all()
    expected = [
        int(math.copysign(abs(x) % abs(y), x))
        if abs(y) < 2**53 > abs(x) and y
        else (0 if y == 0 else abs(x) % abs(y) * (1 if x >= 0 else -1))
        for x, y in both
    ]
    assert (compute(ds, c_remainder, a, b) == np.array(expected, dtype)).all()


def test_division_by_a_constant_and_by_zero(cpu):
    ds = cpu

    @ds.kernel
    def divide(a: ds.i32, zero: ds.i32) -> ds.types.vector(6, ds.i32):
        return [a // 7, a % 7, a // -3, a % -3, a // zero, a % zero]

    for a in (-(2**31), -15, -1, 0, 1, 20, 2**31 - 1):
        assert divide(a, 0).to_list() == [a // 7, a % 7, a // -3, a % -3, 0, 0]


def test_float_division_by_zero_is_infinite(cpu):
    ds = cpu

    @ds.kernel
    def divide(a: ds.f64, b: ds.f64) -> ds.f64:
        return a / b

    assert divide(1.0, 0.0) == np.inf
    assert divide(-1.0, 0.0) == -np.inf
    assert math.isnan(divide(0.0, 0.0))


def test_integers_divide_as_floats(cpu):
    ds = cpu

    @ds.kernel
    def divide(a: ds.i32, b: ds.i32) -> ds.f32:
        return a / b

    assert divide(1, 3) == np.float32(1) / np.float32(3)
    assert divide(-7, 0) == -np.inf


@pytest.mark.parametrize("name", ["i32", "i64", "u8", "u32"])
def test_bitwise_operators(cpu, name):
    dtype = numpy_of(name)
    a, b = pairs(dtype, 5)
    assert (compute(cpu, _and, a, b) == (a & b)).all()
    assert (compute(cpu, _or, a, b) == (a | b)).all()
    assert (compute(cpu, _xor, a, b) == (a ^ b)).all()
    complement = [~x for x in a.tolist()]
    cast = getattr(cpu, name)

    def invert(x, y):
        return cast(~x)

    assert (compute(cpu, invert, a, b) == wrapped(complement, dtype)).all()


def _and(x, y):
    return x & y


def _or(x, y):
    return x | y


def _xor(x, y):
    return x ^ y


def _left(x, y):
    return x << y


def _right(x, y):
    return x >> y


@pytest.mark.parametrize("name", ["i32", "i64", "u8", "u32", "u64"])
def test_shifts(cpu, name):
    dtype = numpy_of(name)
    a = interesting(dtype)
    b = np.random.default_rng(0).integers(0, dtype.itemsize * 8, len(a)).astype(dtype)
    both = list(zip(a.tolist(), b.tolist(), strict=True))
    assert (compute(cpu, _left, a, b) == wrapped([x << n for x, n in both], dtype)).all()
    assert (compute(cpu, _right, a, b) == wrapped([x >> n for x, n in both], dtype)).all()


def test_comparisons_of_unsigned_numbers(cpu):
    ds = cpu

    @ds.kernel
    def compare(a: ds.u32, b: ds.u64, c: ds.u8) -> ds.types.vector(4, ds.i32):
        return [a > 2**31, b > 2**63, c > 127, ds.max(a, ds.u32(5)) == a]

    assert compare(2**32 - 1, 2**64 - 1, 255).to_list() == [1, 1, 1, 1]
    assert compare(1, 1, 1).to_list() == [0, 0, 0, 0]


def test_unsigned_wrap_around_of_u8_fields(cpu):
    ds = cpu
    x = ds.field(ds.u8, shape=256)

    @ds.kernel
    def run():
        for i in x:
            x[i] = ds.cast(i, ds.u8)
            x[i] += ds.cast(200, ds.u8)

    run()
    assert x.to_numpy().tolist() == [(i + 200) % 256 for i in range(256)]
