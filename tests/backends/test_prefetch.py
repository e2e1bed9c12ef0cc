"""Prefetches of elements that indices tell: the numbers stay, and no index is read outside of its memory."""

import ctypes
import mmap

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.simd import prefetch
from diffsim.passes.vectors import vectorize
from tests.fuzz import gathers

POINTS = 60_000  # three floats each: more than a core keeps in its cache
LANES = [1, 16, 300, 1029]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Everything runs as vectors that may."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)


@pytest.fixture
def no_lines(monkeypatch):
    """Lanes prefetch single elements alone."""
    monkeypatch.setattr(prefetch, "_streams", lambda task: frozenset())


def adding(points=POINTS, **options):
    """Return a kernel that adds to points that an array tells, and the fields of its operands."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, **options)
    x, y = (ds.Vector.field(3, ds.f32, shape=points) for _ in range(2))

    @ds.kernel
    def add(at: ds.types.ndarray(ds.i32, 1), begin: ds.i32, end: ds.i32):
        for i in range(begin, end):
            y[at[i]] += 2 * x[at[i]]

    return add, x, y


def prefetches(kernel, *args):
    return kernel.llvm(args).count("call void @llvm.prefetch")


def before_forbidden_page(count):
    """Return integers at whose end memory begins that must not be read."""
    page = mmap.PAGESIZE
    size = -(-4 * count // page) * page
    memory = mmap.mmap(-1, size + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address + size), ctypes.c_size_t(page), 0):
        pytest.skip("pages cannot be protected")
    return np.frombuffer(memory, np.int32, count, size - 4 * count)


@pytest.mark.parametrize("n", LANES)
def test_no_index_is_read_outside(n):
    """The indices end where a page begins that faults."""
    add, x, y = adding()
    values = np.random.default_rng(n).integers(-8, 8, (POINTS, 3)).astype("f4")
    x.from_numpy(values)
    at = before_forbidden_page(n)
    at[:] = np.random.default_rng(n).integers(0, POINTS, n)
    for begin in (0, 1, n // 2):
        y.fill(0)
        add(at, begin, n)
        want = np.zeros_like(values)
        np.add.at(want, at[begin:], 2 * values[at[begin:]])
        np.testing.assert_array_equal(y.to_numpy(), want)


def test_large_fields_are_prefetched():
    """Loads and additions, once for each lane; a debug build stops at a check before it reads on."""
    at = np.zeros(4, np.int32)
    add, _, _ = adding()
    lanes = prefetches(add, at, 0, 4) - 1  # the line of their indices
    assert lanes >= 8
    assert lanes % 2 == 0
    add, _, _ = adding(points=1000)
    assert prefetches(add, at, 0, 4) == 0
    add, _, _ = adding(debug=True)
    assert prefetches(add, at, 0, 4) == 0


@pytest.mark.parametrize("points", [1 << 18, 1 << 8])
def test_lines_that_lanes_share_are_prefetched_beside_large_fields(points):
    """Once for each block: what it reads, and what it stores; not beside lookups in small fields."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1)
    x, at = ds.field(ds.f32, shape=points), ds.field(ds.i32, shape=1024)
    y, z = ds.Vector.field(2, ds.f32, shape=1024), ds.field(ds.f32, shape=1024)

    @ds.kernel
    def look():
        for i in z:
            z[i] = y[i][0] * x[at[i]] + y[i][1]

    every = prefetches(look)
    stores = look.llvm().count(", i32 1, i32 3, i32 1)")
    if points < 1 << 18:
        assert (every, stores) == (0, 0)
        return
    assert stores == 1
    # Four numbers for each lane, in lines of 64 bytes, and the lane's own lookup.
    assert every in [
        lanes + max(lanes // 16, 1) * 2 + max(lanes // 8, 1) for lanes in (4, 8, 16, 32)
    ]


def test_indices_that_lanes_write_are_not_read_ahead(no_lines):
    ds.init(arch=ds.cpu, cpu_max_num_threads=1)
    x, at, y = ds.field(ds.f32, shape=1 << 18), ds.field(ds.i32, shape=64), ds.field(ds.f32, 64)

    @ds.kernel
    def follow():
        for i in at:
            y[i] = x[at[i]]
            at[i] = 0

    assert prefetches(follow) == 0


def test_indices_of_indices_are_not_read_ahead(no_lines):
    ds.init(arch=ds.cpu, cpu_max_num_threads=1)
    x, y = ds.field(ds.f32, shape=1 << 18), ds.field(ds.f32, 64)
    at, of = ds.field(ds.i32, shape=64), ds.field(ds.i32, shape=64)

    @ds.kernel
    def follow():
        for i in y:
            y[i] = x[at[of[i]]]

    assert prefetches(follow) == 0


def test_one_step_of_many_is_small():
    """All lanes share the first index, which chooses a small part of a large field."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1)
    x, y = ds.field(ds.f32, shape=(1 << 12, 64)), ds.field(ds.f32, 64)
    at = ds.field(ds.i32, shape=64)

    @ds.kernel
    def look(t: ds.i32):
        for i in y:
            y[i] = x[t, at[i]]

    assert prefetches(look, 0) == 0


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed, monkeypatch):
    """All groups are prefetched, from rows and boxes of any length, against the interpreter."""
    monkeypatch.setattr(prefetch, "_FEWEST_BYTES", 0)
    monkeypatch.setattr(prefetch, "_NEAR", 0)
    ds.init(arch=ds.cpu)
    assert gathers.verdict(gathers.make(seed), seed) == "right"
