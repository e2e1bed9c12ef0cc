"""Lanes that access elements at `i ^ j`: networks and transforms of any distance, the same as NumPy."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.passes.vectors import vectorize
from diffsim.runtime.session import session
from tests.fuzz import exchanges as random_exchanges

INSTRUCTIONS = ("avx512.permvar", "avx2.perm")


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Everything runs as vectors that may."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)


def permutes(kernel):
    return any(name in kernel.llvm() for name in INSTRUCTIONS)


def start(monkeypatch, bits, t):
    """Begin a session with registers of so many bits; say whether they are permuted."""
    monkeypatch.setattr(session, "_jit", Jit(vector_bits=bits))
    ds.init(arch=ds.cpu, default_fp=t, offline_cache=False)
    have = session.jit.vector_bits
    return have == 512 or (have == 256 and t is ds.f32)


@pytest.mark.parametrize("bits", [256, 512])
@pytest.mark.parametrize("t", [ds.f32, ds.f64])
@pytest.mark.parametrize("n", [8, 64, 256])
def test_a_transform_and_its_gradient(n, t, bits, monkeypatch):
    """Walsh and Hadamard's: sums over all nodes of a hypercube, whose matrix is symmetric."""
    able = start(monkeypatch, bits, t)
    stages = n.bit_length() - 1
    x = ds.field(float, shape=(stages + 1, n), needs_grad=True)

    @ds.kernel
    def stage(s: ds.i32, j: ds.i32):
        for i in range(n):
            sign = 1.0 if (i & j) == 0 else -1.0
            x[s + 1, i] = x[s, i ^ j] + sign * x[s, i]

    given, seed = (np.random.default_rng(k).integers(-9, 9, n) for k in (n, n + 1))
    for field, row, values in ((x, 0, given), (x.grad, stages, seed)):
        whole = np.zeros((stages + 1, n))
        whole[row] = values
        field.from_numpy(whole.astype(t.numpy))
    for s in range(stages):
        stage(s, 1 << s)
    for s in reversed(range(stages)):
        stage.grad(s, 1 << s)
    matrix = np.array([[1]])
    for _ in range(stages):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    np.testing.assert_array_equal(x.to_numpy()[stages], matrix @ given)
    np.testing.assert_array_equal(x.grad.to_numpy()[0], matrix @ seed)
    if n >= 64:
        assert permutes(stage) == able
        assert any(name in stage.grad.llvm() for name in INSTRUCTIONS) == able


@pytest.mark.parametrize("t", [ds.f32, ds.f64, ds.i32, ds.i64, ds.u32])
def test_pairs_in_place_sort(t):
    """Under masks: of each pair one lane moves both numbers."""
    ds.init(arch=ds.cpu, offline_cache=False)
    n = 128
    y = ds.field(t, shape=n)

    @ds.kernel
    def stage(k: ds.i32, j: ds.i32):
        for i in y:
            other = i ^ j
            if other > i:
                a, b = y[i], y[other]
                if (a > b) == ((i & k) == 0):
                    y[i] = b
                    y[other] = a

    given = np.random.default_rng(1).permutation(n).astype(t.numpy)
    y.from_numpy(given)
    for k in (2 << s for s in range(7)):
        for j in (k >> s for s in range(1, k.bit_length())):
            stage(k, j)
    np.testing.assert_array_equal(y.to_numpy(), np.sort(given))
    if t is not ds.i64:  # whose lanes need two registers
        many_bits = t.bits == 32 or session.jit.vector_bits == 512
        assert permutes(stage) == (session.jit.vector_bits >= 256 and many_bits)


@pytest.mark.parametrize(("lo", "hi"), [(0, 100), (16, 128), (3, 90), (32, 37), (5, 5)])
def test_lanes_that_are_no_whole_blocks(lo, hi):
    """Lanes at work alone have elements that are accessed; blocks may begin anywhere."""
    ds.init(arch=ds.cpu, offline_cache=False)
    n = 128
    x, y = ds.field(ds.f32, shape=n), ds.field(ds.f32, shape=n)

    @ds.kernel
    def move(j: ds.i32):
        for i in range(lo, hi):
            y[i ^ j] = 2 * x[i ^ j]

    given = np.arange(1, n + 1, dtype="f4")
    x.from_numpy(given)
    for j in (0, 1, 7, 16, 20, 96, 127):
        y.fill(0)
        move(j)
        wanted = np.zeros(n, "f4")
        at = np.arange(lo, hi) ^ j
        wanted[at] = 2 * given[at]
        np.testing.assert_array_equal(y.to_numpy(), wanted)
    assert permutes(move) == (lo % 16 == 0 and session.jit.vector_bits >= 256)


def test_nothing_outside_is_accessed():
    """Elements behind a field's end, which lanes that are idle would have."""
    ds.init(arch=ds.cpu, offline_cache=False, debug=True)
    x, y = ds.field(ds.f32, shape=37), ds.field(ds.f32, shape=37)

    @ds.kernel
    def move(j: ds.i32):
        for i in x:
            if (i ^ j) < 37:
                y[i] = x[i ^ j]

    given = np.arange(1, 38, dtype="f4")
    x.from_numpy(given)
    move(20)
    at = np.arange(37) ^ 20
    np.testing.assert_array_equal(y.to_numpy(), np.where(at < 37, given[np.minimum(at, 36)], 0))


@pytest.mark.parametrize("seed", [2, 4, 11])
def test_random_kernels(seed):
    assert random_exchanges.verdict(random_exchanges.make(seed), seed) == "right"
