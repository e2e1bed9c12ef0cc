"""Functions of bits, against Python's integers."""

import numpy as np
import pytest

import diffsim as ds


@pytest.mark.parametrize("name", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
def test_bits(name):
    ds.init(arch=ds.cpu)
    t = getattr(ds, name)
    limits = np.iinfo(t.numpy)
    width, mask = limits.bits, 2**limits.bits - 1
    numbers = np.random.default_rng(0).integers(limits.min, limits.max, 100, t.numpy, endpoint=True)
    numbers[:4] = [0, 1, limits.max, limits.min]
    x, ones, zeros, shifted = (ds.field(t, 100) for _ in range(4))
    x.from_numpy(numbers)

    @ds.kernel
    def compute():
        for i in x:
            ones[i] = ds.math.popcnt(x[i])
            zeros[i] = ds.math.clz(x[i])
            shifted[i] = ds.bit_shr(x[i], ds.cast(i % (width + 2), t))

    compute()
    bits = [int(v) & mask for v in numbers]
    assert ones.to_numpy().tolist() == [b.bit_count() for b in bits]
    assert zeros.to_numpy().tolist() == [width - b.bit_length() for b in bits]
    assert [int(v) & mask for v in shifted.to_numpy()] == [
        b >> i % (width + 2) for i, b in enumerate(bits)
    ]
    # In Python an array's elements have its type.
    assert (ds.math.popcnt(numbers) == ones.to_numpy()).all()
    assert (ds.math.clz(numbers) == zeros.to_numpy()).all()


@pytest.mark.parametrize("name", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 14, 15, 16, 30, 31])
def test_operators_with_constants(name, n):
    """Masks and shifts to the right are computed as arithmetic, in the type that bits have."""
    ds.init(arch=ds.cpu)
    t = getattr(ds, name)
    limits = np.iinfo(t.numpy)
    numbers = np.random.default_rng(n).integers(limits.min, limits.max, 70, t.numpy, endpoint=True)
    numbers[:3] = [0, limits.max, limits.min]
    x = ds.field(t, 70)
    low, also_low, left, right = found = [ds.field(ds.i64, 70) for _ in range(4)]
    x.from_numpy(numbers)
    mask = (1 << n) - 1

    @ds.kernel
    def compute():
        for i in x:
            low[i] = ds.i64((x[i] & mask) * 100)
            also_low[i] = ds.i64((mask & x[i]) * 100)
            left[i] = ds.i64(x[i] << n)
            right[i] = ds.i64(x[i] >> n)

    compute()
    # Small types meet a constant in 32 bits.
    bits = max(limits.bits, 32)
    is_signed = limits.min < 0 or limits.bits < 32

    def kept(v, bits, is_signed):
        v &= (1 << bits) - 1
        return v - (1 << bits) if is_signed and v >> (bits - 1) else v

    expected = [
        [kept(kept(f(int(v)), bits, is_signed), 64, True) for v in numbers]
        for f in (
            lambda v: (v & mask) * 100,
            lambda v: (mask & v) * 100,
            lambda v: v << n,
            lambda v: v >> n,
        )
    ]
    assert [f.to_numpy().tolist() for f in found] == expected


def test_operators_with_constants_are_arithmetic():
    """So that an index is found where it is written with bits."""
    ds.init(arch=ds.cpu)
    x = ds.field(ds.i32, 70)

    @ds.kernel
    def bits():
        for i in x:
            x[i] = (i & 7) + (3 & i) + (i >> 2) + (i & 6)

    @ds.kernel
    def numbers():
        for i in x:
            x[i] = i % 8 + i % 4 + i // 4 + (i & 6)

    def body(kernel):
        return [line.split(";")[0] for line in kernel.ir().splitlines()[1:]]

    assert body(bits) == body(numbers)


PAIRS = [("f32", "i32"), ("f32", "u32"), ("f64", "i64"), ("f64", "u64"), ("i32", "u32")]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_bit_cast(pair):
    ds.init(arch=ds.cpu)
    one, other = (getattr(ds, name) for name in pair)
    numbers = np.array([0.0, -0.0, 1.0, -2.5, 2e9, 1e-30]).astype(one.numpy)
    x, back, y = ds.field(one, 6), ds.field(one, 6), ds.field(other, 6)
    x.from_numpy(numbers)

    @ds.kernel
    def compute():
        for i in x:
            y[i] = ds.bit_cast(x[i], other)
            back[i] = ds.bit_cast(y[i], one)

    compute()
    want = numbers.view(other.numpy)
    assert y.to_numpy().tobytes() == back.to_numpy().tobytes() == numbers.tobytes()
    assert (ds.bit_cast(numbers, other) == want).all()
    assert ds.bit_cast(want, one).tobytes() == numbers.tobytes()
    assert ds.bit_cast(numbers[::-2], other).tolist() == want[::-2].tolist()


def test_bit_cast_of_constants_and_vectors():
    ds.init(arch=ds.cpu)
    assert (ds.bit_cast(1.0, ds.i32), ds.bit_cast(0x40000000, ds.f32)) == (0x3F800000, 2.0)
    assert list(ds.bit_cast(ds.Vector([1.0, 2.0]), ds.u32)) == [0x3F800000, 0x40000000]

    @ds.kernel
    def inverse_root(x: ds.f32) -> ds.f32:
        bits = ds.bit_cast(ds.Vector([x, 2.0]), ds.i32)
        half = ds.bit_cast(obj=bits[1], dtype=ds.f32) / 4  # 2 / 4
        y = ds.bit_cast(0x5F3759DF - (bits[0] >> 1), ds.f32)
        return y * (1.5 - half * x * y * y)

    assert abs(inverse_root(4.0) - 0.5) < 1e-3  # Lomont (2003): 1.75e-3 at most, relatively
    for wrong in (lambda: ds.bit_cast(1.0, ds.i64), lambda: ds.bit_cast(True, ds.i8)):
        with pytest.raises(ds.KernelTypeError, match="keeps all bits"):
            wrong()

    @ds.kernel
    def too_wide(x: ds.f32) -> ds.i64:
        return ds.bit_cast(x, ds.i64)

    with pytest.raises(ds.KernelTypeError, match="an f32 has 32, an i64 64"):
        too_wide(1.0)


@pytest.fixture
def bits():
    """A kernel y = (bits of x as an integer, and back) + x, and its fields."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x = ds.field(ds.f64, shape=2, needs_grad=True, needs_dual=True)
    kept = ds.field(ds.i64, shape=2)
    y = ds.field(ds.f64, shape=(), needs_grad=True, needs_dual=True)
    x.from_numpy(np.array([1.5, 2.0]))
    return x, kept, y


def test_gradients_through_bits_are_refused(bits):
    x, kept, y = bits

    @ds.kernel
    def store():
        for i in x:
            kept[i] = ds.bit_cast(x[i], ds.i64)

    @ds.kernel
    def add():
        for i in x:
            y[None] += ds.bit_cast(kept[i], ds.f64)

    with pytest.raises(ds.AutodiffError, match="the bits of a float") as caught:
        with ds.Tape(y):
            store()
            add()
    assert "kept[i] = ds.bit_cast(x[i], ds.i64)" in str(caught.value)
    with pytest.raises(ds.AutodiffError, match="the bits of a float"):
        with ds.ad.FwdMode(y, x, seed=[1.0, 1.0]):
            store()
            add()
    with pytest.raises(ds.AutodiffError, match="bits of a float"):
        with ds.Tape(y):
            add()
            ds.bit_cast(x[0], ds.i64)

    @ds.func
    def through(a):
        return ds.bit_cast(ds.bit_cast(a, ds.i64), ds.f64)

    @ds.kernel
    def inner():
        y[None] += ds.grad(through)(2.0)

    with pytest.raises(ds.AutodiffError, match="bits of a float"):
        inner()


def test_gradients_beside_bits(bits):
    """Of constants, and of what is said to be one."""
    x, kept, y = bits

    @ds.kernel
    def mixed():
        for i in x:
            exponent = (ds.bit_cast(ds.stop_grad(x[i]), ds.i64) >> 52) - 1023
            unit = ds.bit_cast((kept[i] & 0xFFFF) | 0x3FF0000000000000, ds.f64)  # in [1, 2)
            y[None] += x[i] * unit * exponent

    with ds.Tape(y):
        mixed()
    assert x.grad.to_numpy().tolist() == [0.0, 1.0]
    y[None] = 0.0
    with ds.ad.FwdMode(y, x, seed=[1.0, 1.0]):
        mixed()
    assert y.dual[None] == 1.0


def test_of_constants_and_vectors():
    ds.init(arch=ds.cpu)

    @ds.kernel
    def compute(a: ds.i32) -> ds.i32:
        v = ds.math.popcnt(ds.Vector([a, 1]))
        return v[0] + 10 * v[1] + 100 * ds.math.clz(1) + ds.bit_shr(-1, x2=28) * 10000

    assert compute(7) == 3 + 10 + 3100 + 150000
    assert (ds.math.clz(1), ds.bit_shr(-1, 28), ds.math.popcnt(-1)) == (31, 15, 32)
    assert list(ds.math.popcnt(ds.Vector([7, 1]))) == [3, 1]
    with pytest.raises(ds.KernelTypeError, match="takes whole numbers"):
        ds.math.popcnt(0.5)

    @ds.kernel
    def wrong():
        x = ds.math.clz(0.5)

    with pytest.raises(ds.KernelTypeError, match="takes whole numbers"):
        wrong()
