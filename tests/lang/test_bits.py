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


def test_of_constants_and_vectors():
    ds.init(arch=ds.cpu)

    @ds.kernel
    def compute(a: ds.i32) -> ds.i32:
        v = ds.math.popcnt(ds.Vector([a, 1]))
        return v[0] + 10 * v[1] + 100 * ds.math.clz(1) + ds.bit_shr(-1, n=28) * 10000

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
