"""Lanes with short loops over lists, and lanes that add to what others add to: the same as NumPy."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.lowered import lower


@pytest.mark.parametrize("threads", [1, 2])
def test_rays_that_add_to_a_field_too_large_for_copies(threads):
    """Additions under a branch are made by the lanes at work alone, so that vectors pay."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    n, size, steps = 300, 1100, 24
    cells = ds.field(ds.f32, shape=(size, size), needs_grad=True)
    seen = ds.field(ds.f32, shape=n, needs_grad=True)

    @ds.kernel
    def march():
        for i in range(n):
            for k in range(steps):
                a, b = 1.7 * ds.cast(i, ds.f32), 40.0 * ds.cast(k, ds.f32) - 100.0
                if 0.0 <= a and a < 500.0 and 0.0 <= b and b < 600.0:
                    seen[i] += cells[ds.cast(a, ds.i32), ds.cast(b, ds.i32)]

    given = np.arange(1, n + 1, dtype=np.float32)
    seen.grad.from_numpy(given)
    march.grad()
    # What is rounded to integers is computed as the kernel does.
    a = np.float32(1.7) * np.arange(n, dtype=np.float32)
    b = (np.float32(40.0) * np.arange(steps, dtype=np.float32) - np.float32(100.0)).astype(int)
    expected = np.zeros((size, size), np.float32)
    for i, at in enumerate(a):
        if at < 500.0:
            expected[int(at), b[(b >= 0) & (b < 600)]] += given[i]
    np.testing.assert_array_equal(cells.grad.to_numpy(), expected)
    assert all(t.simd for t in lower(march._only(()).derivative.ir).tasks if t.axes)
