"""What is assigned to a narrower type is warned about where it may lose something, and only there."""

import warnings

import pytest

import diffsim as ds


@pytest.fixture(autouse=True)
def _start():
    ds.init(arch=ds.cpu)


class Fields:
    """A field of each type, under its name."""

    def __init__(self):
        for name in ("i8", "u8", "i16", "i32", "u32", "i64", "u64", "f32", "f64"):
            setattr(self, name, ds.field(getattr(ds, name), 8, name=f"x_{name}"))
        self.b = ds.field(ds.u1, 8)


def warned(kernel, *args):
    """The warnings of a kernel's first launch: their texts, and their lines counted from its def."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kernel(*args)
    assert {w.category for w in seen} <= {ds.PrecisionLoss}
    first = kernel.__wrapped__.__code__.co_firstlineno + 1
    return [(str(w.message), w.lineno - first) for w in seen]


def test_constants_that_do_not_fit():
    f = Fields()

    @ds.kernel
    def store():
        f.i8[0] = 300
        f.i32[1] = 3000000000
        f.u8[2] = -1

    found = warned(store)
    assert [line for _, line in found] == [1, 2, 3]
    assert found[0][0] == (
        "x_i8 holds i8: 300 does not fit and becomes 44; if that is meant: ds.cast(300, ds.i8)"
    )
    assert "3000000000 does not fit and becomes -1294967296" in found[1][0]
    assert "becomes 255" in found[2][0]
    assert (f.i8[0], f.i32[1], f.u8[2]) == (44, -1294967296, 255)


def test_run_time_values():
    f = Fields()

    @ds.kernel
    def store(a: ds.i64):
        for i in range(8):
            f.i8[i] = f.i32[i]
            f.i32[i] = f.u32[i]
            f.f32[i] = f.f64[i]
            f.i16[i] += f.i32[i]
            ds.atomic_max(f.u8[i], f.i32[i])
        c = 0
        c = a
        s = ds.f32(0)
        s += f.f64[0]
        d: ds.i8 = a
        f.f32[0] = s + c + d

    found = warned(store, 1)
    assert [line for _, line in found] == [2, 3, 4, 5, 6, 8, 10, 11]
    assert found[0][0] == (
        "x_i8 holds i8: an i32 that does not fit wraps around; if that is meant: ds.cast(value, ds.i8)"
    )
    assert found[2][0] == "x_f32 holds f32: storing f64 loses precision"
    assert found[5][0].startswith("c holds i32: an i64")
    assert found[6][0] == "s holds f32: storing f64 loses precision"
    assert found[7][0].startswith("d holds i8: an i64")


def test_results_arguments_of_funcs_and_members():
    @ds.dataclass
    class P:
        k: ds.i8

    @ds.func
    def half(n: ds.i8):
        return n // 2

    @ds.kernel
    def whole() -> ds.i32:
        return 2**31

    @ds.kernel
    def parts(a: ds.i32) -> ds.i32:
        p = P(k=a)
        p.k = a
        return half(a) + p.k

    assert [(t.split(";")[0], line) for t, line in warned(whole)] == [
        ("the result holds i32: 2147483648 does not fit and becomes -2147483648", 1)
    ]
    assert [line for _, line in warned(parts, 3)] == [1, 2, 3]


def test_what_can_not_lose_anything_is_silent():
    f = Fields()

    @ds.kernel
    def store(a: ds.i64, n: ds.i32):
        for i in range(8):
            f.i8[i] = i
            f.u8[i] = f.i32[i] & 255
            f.u8[i] = f.i32[i] % 256
            f.u8[i] = 255 - f.u8[i]
            f.u8[i] = f.u32[i] >> 24
            f.i16[i] = f.u8[i] * 2 + 1
            f.i8[i] = ds.max(ds.min(f.i32[i], 127), -128)
            f.i8[i] = 1 if f.i32[i] > 3 else -1
            f.i8[i] = f.b[i]
            f.b[i] = f.i32[i]
            f.i64[i] = f.i32[i]
            f.u32[i] = f.i32[i]
            f.f32[i] = f.i64[i]
            f.f64[i] = f.f32[i]
            f.f32[i] = 0.1
            f.f32[i] += 1e-3
            f.i8[i] = ds.cast(f.i32[i], ds.i8)
            f.i8[i] = ds.i8(a)
        c = ds.i64(0)
        c += n
        s = 0.0
        for k in range(100):
            s += k
            f.i8[0] = k
        f.f32[0] = s + c

    assert warned(store, 1, 2) == []


def test_a_line_is_told_once():
    f = Fields()

    @ds.func
    def put(i: ds.i32):
        f.i8[i] = f.i32[i]

    @ds.kernel
    def twice():
        for i in range(8):
            for _ in ds.static(range(3)):
                put(i)
                k = 0
                while k < 3:
                    f.i8[i] = f.i32[k]
                    k += 1

    assert len(warned(twice)) == 2


def test_a_number_that_does_not_fit_is_an_error_with_debug():
    ds.init(arch=ds.cpu, debug=True)
    f = Fields()

    @ds.kernel
    def store(a: ds.i64):
        for i in range(8):
            f.i8[i] = a + i

    @ds.kernel
    def sign(a: ds.u32):
        for i in range(8):
            f.i32[i] = a

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ds.PrecisionLoss)
        store(-128)
        assert f.i8.to_numpy().tolist() == list(range(-128, -120))
        with pytest.raises(
            ds.KernelOverflowError, match="x_i8 holds i8, and 128 does not fit"
        ) as caught:
            store(121)
        sign(5)
        with pytest.raises(ds.KernelOverflowError, match="does not fit"):
            sign(2**31)
    assert "f.i8[i] = a + i" in str(caught.value)
    assert "convert it with ds.cast" in str(caught.value)


def test_a_float_for_an_integer_loses_its_fraction_with_a_warning():
    f = Fields()

    @ds.func
    def half(n: ds.i32):
        return n / 2

    @ds.kernel
    def store(a: ds.f32) -> ds.i32:
        f.i32[0] = 1.5
        f.i32[1] = a
        f.i32[2] += a
        s = 0
        for k in range(4):
            s += 0.75
        f.i32[3] = s
        f.f32[0] = half(a)
        f.i32[4] = 2.0
        return a

    found = warned(store, -2.75)
    assert [line for _, line in found] == [1, 2, 3, 6, 8, 10]
    assert found[0][0] == "x_i32 holds i32: 1.5 becomes 1; if that is meant: ds.cast(1.5, ds.i32)"
    assert "the fraction of an f32 is dropped, and its derivative is 0" in found[1][0]
    assert "n of half holds i32" in found[4][0]
    assert "the result holds i32" in found[5][0]
    assert f.i32.to_numpy()[:5].tolist() == [1, -2, -2, 0, 2]
    assert f.f32[0] == -1.0


@pytest.mark.filterwarnings("ignore::diffsim.PrecisionLoss")
def test_the_derivative_of_a_dropped_fraction_is_0():
    n = ds.field(ds.i32, ())
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))

    @ds.kernel
    def whole():
        n[None] = 10.0 * x[None]

    @ds.kernel
    def use():
        loss[None] = n[None] * x[None]

    x[None] = 0.37
    with ds.Tape(loss):
        whole()
        use()
    assert loss[None] == pytest.approx(3 * 0.37)
    assert x.grad[None] == 3.0


def test_strict_refuses_it():
    ds.init(arch=ds.cpu, strict=True)
    f = Fields()

    @ds.kernel
    def store(a: ds.f32):
        f.i32[0] = a

    with pytest.raises(ds.KernelTypeError, match="would lose its fraction"):
        store(1.5)


@pytest.mark.filterwarnings("ignore::diffsim.PrecisionLoss")
@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_what_is_added_to_an_integer_becomes_one_first_wherever_it_is(arch):
    """As in Taichi: a local of an iteration, one of the kernel's and an element of a field agree."""
    ds.init(arch=getattr(ds, arch))
    f = ds.field(ds.i32, 8)

    @ds.kernel
    def change(v: ds.f32):
        a, b, c, d = 1, ds.Vector([1, 1]), 1, 1
        for _ in range(1):
            e = 1
            e -= v
            e += 0.75
            w = ds.Vector([1, 1])
            w -= v
            w[1] += v
            f[0], f[1], f[2] = e, w[0], w[1]
            c -= v
        for _ in ds.static(range(2)):
            a -= v
            b -= v
        d *= 1.5 + v
        f[3], f[4], f[5], f[6] = a, b[0], c, d
        f[7] += 1.0 + v

    change(0.5)
    assert f.to_numpy().tolist() == [1, 1, 1, 1, 1, 1, 2, 1]
