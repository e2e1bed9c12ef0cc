"""Stores of some lanes with vectors of 256 bits: all, some or no lanes of a block take a branch; NumPy."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.runtime.session import session

SIZES = [7, 8, 64, 100]
TYPES = [ds.f32, ds.f64, ds.i32, ds.i8, ds.f16]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(session, "_jit", Jit(vector_bits=256))
    ds.init(arch=ds.cpu, offline_cache=False)


def masks(n):
    """Masks of n lanes: blocks of which all, some and no lanes take a branch."""
    random = np.random.default_rng(n).integers(0, 2, n)
    runs = np.arange(n) // 24 % 2
    return [np.zeros(n), np.ones(n), np.arange(n) % 2, random, runs, 1 - runs]


def fields(n, t, names):
    random = np.random.default_rng(n)
    for _ in range(names):
        f, given = ds.field(t, shape=n), random.integers(-9, 10, n).astype(t.numpy)
        f.from_numpy(given)
        yield f, given


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("n", SIZES)
def test_stores_in_branches(n, t):
    """Elements that were not loaded before, on one side and on both; what is between them stays."""
    (m, _), (x, a), (y, b), (z, c) = fields(n, t, 4)

    @ds.kernel
    def run():
        for i in m:
            if m[i] > 0:
                x[i] = ds.cast(3 * y[i], t)
                z[i] += y[i]
            else:
                z[i] = 1

    for mask in masks(n):
        m.from_numpy(mask.astype(t.numpy))
        run()
        taken = mask > 0
        a = np.where(taken, 3 * b, a)
        c = np.where(taken, c + b, 1).astype(t.numpy)
        np.testing.assert_array_equal(x.to_numpy(), a)
        np.testing.assert_array_equal(z.to_numpy(), c)


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("n", SIZES)
def test_stores_of_what_was_loaded_before(n, t):
    """They write idle lanes back, but not those that have loaded nothing: others write their elements."""
    (m, _), (x, a), (y, b) = fields(n, t, 3)

    @ds.kernel
    def run(least: t, half: ds.i32):
        for i in m:
            old = x[i]
            if m[i] > 0:
                x[i] = old + y[i]
                if old > least:
                    x[i] = least
            if i < half:
                low, high = y[i], y[i + half]
                if low > high:
                    y[i] = high
                    y[i + half] = low

    half = n // 2
    for mask in masks(n):
        m.from_numpy(mask.astype(t.numpy))
        taken, old = mask > 0, a.copy()
        a = np.where(taken, a + y.to_numpy(), a).astype(t.numpy)
        a[taken & (old > 2)] = 2
        run(2, 0)
        np.testing.assert_array_equal(x.to_numpy(), a)
    run(2, half)
    ends = b[:half], b[half : 2 * half]
    b[: 2 * half] = np.concatenate([np.minimum(*ends), np.maximum(*ends)])
    np.testing.assert_array_equal(y.to_numpy(), b)


def test_lanes_of_other_threads_keep_what_they_store():
    """Each lane changes one of two elements, which ones lie side by side is known at run time alone."""
    ds.init(arch=ds.cpu, offline_cache=False, cpu_max_num_threads=4)
    n = 1 << 15
    y = ds.field(ds.f32, shape=n)

    @ds.kernel
    def stage(k: ds.i32, j: ds.i32):
        for i in y:
            other = i ^ j
            if other > i:
                a, b = y[i], y[other]
                if (a > b) == ((i & k) == 0):
                    y[i] = b
                    y[other] = a

    given = np.random.default_rng(1).standard_normal(n).astype("f4")
    y.from_numpy(given)
    k = 2
    while k <= n:
        j = k // 2
        while j:
            stage(k, j)
            j //= 2
        k *= 2
    np.testing.assert_array_equal(y.to_numpy(), np.sort(given))


@pytest.mark.skipif(Jit().vector_bits < 256, reason="no vectors of 256 bits")
def test_what_becomes_of_a_store():
    """A plain store where all lanes take the branch; one with what is there where the element was loaded."""
    x, m = ds.field(ds.f32, shape=64), ds.field(ds.f32, shape=64)

    @ds.kernel
    def unknown():
        for i in x:
            if m[i] > 0:
                x[i] = 1.0

    @ds.kernel
    def known():
        for i in x:
            if x[i] > 0:
                x[i] = 1.0

    @ds.kernel
    def every_other():
        for i in x:
            if i % 2 == 0:
                x[i] = 1.0

    assert "masked.store" in unknown.llvm()
    assert "load volatile" not in unknown.llvm()
    assert "masked.store" not in known.llvm()
    assert "load volatile <" in known.llvm()
    assert "masked.store" not in every_other.llvm()  # LLVM's own vectors
    for k in (unknown, known):
        k()
    np.testing.assert_array_equal(x.to_numpy(), 0)
