"""Lanes that look up numbers in small tables, and round floats to indices: the same as NumPy."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.ir.types import converted
from diffsim.passes.vectors import vectorize
from diffsim.runtime.session import session
from tests.fuzz import lookups as random_lookups

MANY = 1100  # not a multiple of the lanes that run together
INSTRUCTIONS = ("vpermi2var.qi", "permvar.qi")


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Everything runs as vectors that may."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)


def is_in_registers(kernel):
    return any(name in kernel.llvm() for name in INSTRUCTIONS)


def has_instruction():
    return session.jit.looks_up_bytes


@pytest.mark.parametrize("bits", [256, 512])
@pytest.mark.parametrize("have", [ds.f32, ds.f64])
def test_floats_become_integers(have, bits, monkeypatch):
    """Also those that do not fit, and NaN: at all lanes of a register, and of a part of one."""
    monkeypatch.setattr(session, "_jit", Jit(vector_bits=bits))
    ds.init(arch=ds.cpu, offline_cache=False)
    ends = [2.0**31, -(2.0**31), 2.0**31 - 1, -(2.0**31) - 1, 2.0**32, 2.0**63, 0.5, -1.5, 254.0]
    ends = np.array([*ends, np.inf, -np.inf, np.nan, -np.nan, 0.0, 1e30], have.numpy)
    near = [np.nextafter(ends, have.numpy.type(side)) for side in (-np.inf, np.inf)]
    given = np.concatenate([ends, *near, [np.nan]])
    at = np.arange(len(given), dtype="i4")[::-1].copy()
    x, y, k = (
        ds.field(have, shape=at.size),
        ds.field(ds.i32, shape=at.size),
        ds.field(ds.i32, shape=at.size),
    )
    x.from_numpy(given)
    k.from_numpy(at)

    @ds.kernel
    def convert():
        for i in y:
            y[i] = ds.cast(x[k[i]], ds.i32)

    convert()
    np.testing.assert_array_equal(y.to_numpy(), converted(given[::-1], ds.i32))
    assert ("llvm.x86" in convert.llvm()) == (session.jit.vector_bits >= 256)


@pytest.mark.parametrize("size", [8, 63, 64, 65, 128, 129, 200, 256, 257])
def test_every_element_of_a_table(size):
    """Its first and its last one, and neighbours on both sides, by indices of all kinds."""
    ds.init(arch=ds.cpu, offline_cache=False)
    whole, table = ds.field(ds.i32, shape=size), ds.field(ds.f32, shape=size)
    at, y = ds.field(ds.i32, shape=MANY), ds.Vector.field(3, ds.f32, shape=MANY)
    found = ds.field(ds.i32, shape=MANY)

    @ds.kernel
    def look(away: ds.i32):
        for i in at:
            k = at[i]
            a = table[k]
            b = table[k + 1] - table[k - away]
            found[i] = whole[size - 1 - k]
            y[i] = ds.Vector([a, b, 2.0 * a])

    random = np.random.default_rng(size)
    h, w = random.standard_normal(size).astype("f4"), random.integers(-(2**31), 2**31, size)
    k = np.concatenate([[1, size - 2], random.integers(1, size - 1, MANY - 2)]).astype("i4")
    table.from_numpy(h)
    whole.from_numpy(w.astype("i4"))
    at.from_numpy(k)
    look(1)
    np.testing.assert_array_equal(found.to_numpy(), w[size - 1 - k])
    np.testing.assert_array_equal(y.to_numpy(), np.stack([h[k], h[k + 1] - h[k - 1], 2 * h[k]], 1))
    assert is_in_registers(look) == (size <= 256 and has_instruction())


def test_tables_of_vectors_and_of_two_axes():
    ds.init(arch=ds.cpu, offline_cache=False)
    colours, grid = ds.Vector.field(3, ds.f32, shape=85), ds.field(ds.u32, shape=(12, 20))
    at, y = ds.Vector.field(2, ds.i32, shape=MANY), ds.Vector.field(3, ds.f32, shape=MANY)
    cells = ds.field(ds.u32, shape=MANY)

    @ds.kernel
    def look():
        for i in at:
            a, b = at[i][0], at[i][1]
            y[i] = colours[a] + colours[84 - a]
            cells[i] = grid[a % 12, b] + grid[a % 11 + 1, b - 1]

    random = np.random.default_rng(0)
    c = random.integers(-9, 9, (85, 3)).astype("f4")
    g = random.integers(0, 2**31, (12, 20)).astype("u4")
    k = np.stack([random.integers(0, 85, MANY), random.integers(1, 20, MANY)], 1).astype("i4")
    for field, values in ((colours, c), (grid, g), (at, k)):
        field.from_numpy(values)
    look()
    a, b = k.T
    np.testing.assert_array_equal(y.to_numpy(), c[a] + c[84 - a])
    np.testing.assert_array_equal(cells.to_numpy(), g[a % 12, b] + g[a % 11 + 1, b - 1])
    assert is_in_registers(look) == has_instruction()


@pytest.mark.parametrize("who", ["a task before", "the lanes themselves"])
def test_tables_that_a_kernel_writes(who):
    """Before the lanes run, which look up what is there then; or while they run: no table is kept."""
    ds.init(arch=ds.cpu, offline_cache=False, cpu_max_num_threads=1)
    table, y = ds.field(ds.f32, shape=64), ds.field(ds.f32, shape=2048)
    at = ds.field(ds.i32, shape=2048)

    @ds.kernel
    def before():
        for k in table:
            table[k] = 3.0 * k
        for i in at:
            y[i] = table[at[i]]

    @ds.kernel
    def while_they_run():
        for i in at:
            table[at[i]] += 1.0
            y[i] = table[at[i] ^ 1]

    kernel = before if who == "a task before" else while_they_run
    k = (np.arange(2048) // 2 % 64).astype("i4")
    at.from_numpy(k)
    kernel()
    if kernel is before:
        np.testing.assert_array_equal(y.to_numpy(), np.float32(3) * k)
    else:
        np.testing.assert_array_equal(table.to_numpy(), np.bincount(k, minlength=64))
    assert is_in_registers(kernel) == (kernel is before and has_instruction())


def test_the_gradient_of_a_soft_histogram():
    """Two neighbours in the gradient of the bins, for each number; against the formula in f64."""
    ds.init(arch=ds.cpu, offline_cache=False)
    x, bins = (
        ds.field(ds.f32, shape=MANY, needs_grad=True),
        ds.field(ds.f32, shape=100, needs_grad=True),
    )

    @ds.kernel
    def count():
        for i in x:
            at = x[i] * 99
            b = ds.min(int(at), 98)
            w = at - b
            bins[b] += 1 - w
            bins[b + 1] += w

    random = np.random.default_rng(1)
    h, g = random.uniform(0, 1, MANY).astype("f4"), random.integers(-50, 50, 100).astype("f4")
    x.from_numpy(h)
    bins.grad.from_numpy(g)
    count.grad()
    k = np.minimum((h * np.float32(99)).astype(int), 98)
    np.testing.assert_array_equal(x.grad.to_numpy(), 99 * (g[k + 1] - g[k]))
    assert is_in_registers(count.grad) == has_instruction()


def test_rounded_floats_as_they_are_loaded():
    """As an index of neighbours: the float is no integer that is loaded for each lane."""
    ds.init(arch=ds.cpu, offline_cache=False)
    x, y, table = (ds.field(ds.f32, shape=n) for n in (MANY, MANY, 300))

    @ds.kernel
    def look():
        for i in x:
            k = ds.cast(x[i], ds.i32)
            y[i] = table[k] + table[k + 1] + table[k + 3]

    k = np.random.default_rng(2).integers(0, 297, MANY)
    x.from_numpy(k + np.float32(0.25))
    table.from_numpy(np.arange(300, dtype="f4"))
    look()
    np.testing.assert_array_equal(y.to_numpy(), 3 * k + 4)


@pytest.mark.parametrize("seed", [1, 5])
def test_random_kernels(seed):
    assert random_lookups.verdict(random_lookups.make(seed), seed) == "right"


def test_an_index_outside_whose_element_nobody_takes():
    """Its neighbour inside is found all the same."""
    ds.init(arch=ds.cpu, offline_cache=False)
    table, at = ds.field(ds.f32, shape=8), ds.field(ds.i32, shape=MANY)
    y = ds.field(ds.f32, shape=MANY)

    @ds.kernel
    def look():
        for i in at:
            k = at[i]
            before, here, after = table[k - 1], table[k], table[k + 1]
            y[i] = ds.select(k > 0, before, here) + 2.0 * ds.select(k < 7, after, here)

    h, k = np.arange(3.0, 11.0, dtype="f4"), (np.arange(MANY) % 8).astype("i4")
    table.from_numpy(h)
    at.from_numpy(k)
    look()
    np.testing.assert_array_equal(
        y.to_numpy(), h[np.maximum(k - 1, 0)] + 2 * h[np.minimum(k + 1, 7)]
    )
    assert is_in_registers(look) == has_instruction()
