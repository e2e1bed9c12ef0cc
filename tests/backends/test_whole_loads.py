"""Flags and halves in branches, vectors of 256 bits: all lanes load, or those at work alone; NumPy."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.session import session
from tests.support.vectors import narrow

TYPES = [ds.i8, ds.u8, ds.i16, ds.f16, ds.f32]


@pytest.fixture(autouse=True)
def short_vectors(monkeypatch):
    monkeypatch.setattr(session, "_jit", narrow())
    ds.init(arch=ds.cpu, offline_cache=False, default_fp=ds.f32)


def kernels(n, shift, f, x):
    """Lanes all of whose elements exist, and lanes of which only those at work have one."""

    @ds.kernel
    def inside():
        for i in range(n - shift):
            if x[i] > 0:
                if f[i + shift] > 0:
                    x[i] = 3.0 * f[i + shift]

    @ds.kernel
    def at_end():
        for i in range(n):
            if i < n - shift and x[i] > 0:
                if f[i + shift] > 0:
                    x[i] = 3.0 * f[i + shift]

    return inside, at_end


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("n", [7, 64, 100])
@pytest.mark.parametrize("shift", [0, 5])
def test_flags_in_branches(n, t, shift):
    random = np.random.default_rng(n)
    f, x = ds.field(t, shape=n), ds.field(ds.f32, shape=n)
    flags, start = random.integers(0, 3, n), random.standard_normal(n).astype("f4")
    f.from_numpy(flags.astype(t.numpy))
    moved = flags[np.minimum(np.arange(n) + shift, n - 1)]
    works = (start > 0) & (moved > 0) & (np.arange(n) < n - shift)
    for run in kernels(n, shift, f, x):
        x.from_numpy(start)
        run()
        np.testing.assert_array_equal(x.to_numpy(), np.where(works, 3 * moved, start))


def loads(kernel, type_):
    lines = kernel.llvm().splitlines()
    plain = sum(re.search(rf"= load <\d+ x {type_}>, ptr", line) is not None for line in lines)
    masked = rf"call <\d+ x {type_}> @llvm.masked.load"
    return plain, sum(re.search(masked, line) is not None for line in lines)


def test_which_are_loaded_for_all_lanes():
    x, f, g = ds.field(ds.f32, shape=64), ds.field(ds.u8, shape=64), ds.field(ds.i32, shape=64)
    inside, at_end = kernels(64, 32, f, x)
    plain, masked = loads(inside, "i8")
    assert plain
    assert not masked
    plain, masked = loads(at_end, "i8")
    assert masked
    assert not plain
    inside, _ = kernels(64, 32, g, x)
    assert not loads(inside, "i32")[0]  # there is an instruction for these


def test_last_blocks_have_lanes_without_an_element():
    x, f = ds.field(ds.f32, shape=61), ds.field(ds.u8, shape=61)
    more = ds.field(ds.u8, shape=64)
    assert loads(kernels(61, 0, f, x)[0], "i8")[1]
    assert loads(kernels(61, 0, more, x)[0], "i8")[0]


def test_rows_and_cells_of_trees():
    x, f = ds.field(ds.f32, shape=(3, 64)), ds.field(ds.u8)
    ds.root.pointer(ds.ij, (3, 8)).dense(ds.ij, (1, 8)).place(f)

    @ds.kernel
    def run():
        for i, j in ds.ndrange(3, 64):
            if x[i, j] > 0:
                if f[i, j] > 0:
                    x[i, j] = 2.0

    f[1, 20] = 1
    x.fill(1.0)
    run()
    expected = np.ones((3, 64))
    expected[1, 20] = 2
    np.testing.assert_array_equal(x.to_numpy(), expected)
    assert not loads(run, "i8")[0]


def test_loops_that_append_in_a_serial_task():
    f, found, count = (
        ds.field(ds.u8, shape=64),
        ds.field(ds.i32, shape=64),
        ds.field(ds.i32, shape=()),
    )

    @ds.kernel
    def pick():
        n = 0
        ds.loop_config(serialize=True)
        for i in range(64):
            if f[i] > 0:
                found[n] = f[i]
                n += 1
        count[None] = n

    flags = np.arange(64) % 3
    f.from_numpy(flags.astype("u1"))
    pick()
    assert count[None] == np.count_nonzero(flags)
    np.testing.assert_array_equal(found.to_numpy()[: count[None]], flags[flags > 0])
