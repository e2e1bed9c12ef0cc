"""Types of numbers: promotion, literals, casts, integer arithmetic, elementary functions."""

import math

import numpy as np
import pytest

FLOATS = ["f32", "f64"]
SIGNED = ["i8", "i16", "i32", "i64"]
UNSIGNED = ["u8", "u16", "u32", "u64"]
NUMBERS = FLOATS + SIGNED + UNSIGNED


def numpy_of(name):
    letters = {"f": "float", "i": "int", "u": "uint"}
    return np.dtype(letters[name[0]] + name[1:])


class Spy:
    """`spy[value]` in a kernel notes the type of the value."""

    def __init__(self):
        self.types = []

    def __getitem__(self, value):
        self.types.append(repr(value.type))
        return 0


def compute(ds, formula, a, b, result=None):
    """formula(a[i], b[i]) of two arrays, computed in a kernel."""
    types = {numpy_of(n): getattr(ds, n) for n in NUMBERS} | {np.dtype(bool): ds.u1}
    compiled = ds.func(formula)
    x, y = ds.field(types[a.dtype], shape=a.shape), ds.field(types[b.dtype], shape=b.shape)
    z = ds.field(types[np.dtype(result)] if result else types[a.dtype], shape=a.shape)
    x.from_numpy(a)
    y.from_numpy(b)

    @ds.kernel
    def run():
        for i in z:
            z[i] = compiled(x[i], y[i])

    run()
    return z.to_numpy()


def interesting(dtype, count=300, seed=0):
    """Numbers of an integer type: its ends, small ones, random ones."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    ends = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 10]
    if info.min < 0:
        ends += [-1, -2, -3, -7]
    small = rng.integers(max(info.min, -20), 20, 60)
    every = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    return np.concatenate([np.array(ends, dtype), small.astype(dtype), every])


def pairs(dtype, seed=0):
    a, b = interesting(dtype, 300, seed), interesting(dtype, 300, seed + 1)
    edge_a, edge_b = np.meshgrid(a[:14], b[:14])
    rng = np.random.default_rng(seed)
    a = np.concatenate([edge_a.ravel(), rng.permutation(a)])
    b = np.concatenate([edge_b.ravel(), rng.permutation(b)])
    return a, b


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
