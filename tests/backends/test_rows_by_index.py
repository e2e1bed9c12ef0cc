"""Lanes of one row that an index tells run together: `h[rows[i], k]`; NumPy, and the order of Python."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.passes.vectors import vectorize
from diffsim.runtime.session import session
from tests.support.lowered import lower

BATCH, INPUTS, WIDTH = 21, 10, 19


def is_wide(kernel):
    return [t.simd is not None for t in lower(kernel._only(()).ir).tasks if t.axes]


@pytest.fixture(params=[1, 3])
def threads(request):
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=request.param)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def a_layer():
    """A layer of a network for drawn samples, whose results are kept in a table."""
    x, h, g = (
        ds.field(ds.f64, shape=(3 * BATCH, n), needs_grad=True) for n in (INPUTS, WIDTH, WIDTH)
    )
    w = ds.field(ds.f64, shape=(WIDTH, INPUTS), needs_grad=True)
    rows = ds.field(ds.i32, shape=BATCH)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    g.from_numpy(drawn(3 * BATCH, WIDTH, seed=2))

    @ds.kernel
    def layer():
        for i, k in ds.ndrange(BATCH, WIDTH):
            row = rows[i]
            s = 0.0
            for e in range(INPUTS):
                s += w[k, e] * x[row, e]
            h[row, k] = s

    @ds.kernel
    def total():
        for i, k in h:
            loss[None] += g[i, k] * h[i, k]

    def run():
        with ds.Tape(loss):
            layer()
            total()

    return run, layer, x, w, h, g, rows


def test_a_layer_of_drawn_rows(threads):
    run, layer, x, w, h, g, rows = a_layer()
    a, b = drawn(3 * BATCH, INPUTS), drawn(WIDTH, INPUTS, seed=1)
    picks = np.random.default_rng(3).permutation(3 * BATCH)[:BATCH]
    for field, values in ((x, a), (w, b), (rows, picks.astype("i4"))):
        field.from_numpy(values)
    run()
    expected = np.zeros((3 * BATCH, WIDTH))
    expected[picks] = a[picks] @ b.T
    np.testing.assert_allclose(h.to_numpy(), expected, rtol=1e-12, atol=1e-14)
    seeds = g.to_numpy()[picks]
    np.testing.assert_allclose(w.grad.to_numpy(), seeds.T @ a[picks], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(x.grad.to_numpy()[picks], seeds @ b, rtol=1e-12, atol=1e-14)
    assert is_wide(layer) == [True]


def test_a_row_that_is_there_twice_has_no_gradient(threads):
    """As without vectors."""
    run, _, _, _, _, _, rows = a_layer()
    rows.fill(4)
    with pytest.raises(ds.errors.GlobalDataAccessError, match="h\\[4, 0\\]"):
        run()


def test_lanes_that_see_their_row_run_alone(cpu, monkeypatch):
    """Sums along a row in place: each lane needs what the one before it has stored."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)
    x, rows = ds.field(ds.i32, shape=(3, 40)), ds.field(ds.i32, shape=3)

    @ds.kernel
    def sums():
        for i, k in ds.ndrange(3, (1, 40)):
            x[rows[i], k] += x[rows[i], k - 1]

    @ds.kernel
    def last():
        for i, k in x:
            x[rows[i], 39] = k

    given = np.arange(120).reshape(3, 40) % 7
    x.from_numpy(given.astype("i4"))
    rows.from_numpy(np.array([2, 0, 1], "i4"))
    sums()
    np.testing.assert_array_equal(x.to_numpy(), given.cumsum(axis=1))
    last()
    np.testing.assert_array_equal(x.to_numpy()[:, 39], 39)
    assert is_wide(sums) == is_wide(last) == [False]


def test_elements_are_not_written_back(monkeypatch):
    """With 256 bits an idle lane may store what it has loaded; another row's may be the same element."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)
    monkeypatch.setattr(session, "_jit", Jit(vector_bits=256))
    ds.init(arch=ds.cpu, offline_cache=False)
    x, y = ds.field(ds.f32, shape=(3, 40)), ds.field(ds.f32, shape=(3, 40))
    rows = ds.field(ds.i32, shape=3)

    @ds.kernel
    def some():
        for i, k in x:
            old = x[rows[i], k]
            if y[i, k] > 0:
                x[rows[i], k] = 2 * old

    @ds.kernel
    def all_of_them():
        for i, k in x:
            x[rows[i], k] = 2 * x[rows[i], k] + y[i, k]

    assert is_wide(some) == [False]
    assert is_wide(all_of_them) == [True]
