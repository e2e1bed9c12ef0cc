"""Lanes that access components of vectors where something they have loaded says so."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.lowered import lower


def found_wide(kernel):
    """Whether the tasks of a kernel run as vectors that diffsim makes."""
    return [t.simd is not None for t in lower(kernel._only(()).ir).tasks if t.axes]


@pytest.fixture
def spots():
    """Places in rows, which of them count, and how many do in each row."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    random = np.random.default_rng(0)
    at, alive = random.standard_normal((5, 77, 2)), (random.random((5, 77)) < 0.6).astype(np.int32)
    spot = ds.Vector.field(2, ds.f64, shape=(5, 77), needs_grad=True)
    lives, count = ds.field(ds.i32, shape=(5, 77)), ds.field(ds.i32, shape=5)
    spot.from_numpy(at)
    lives.from_numpy(alive)
    count.from_numpy(alive.sum(1).astype(np.int32))
    return at, alive, spot, lives, count


def test_a_sum_over_those_that_count(spots):
    at, alive, spot, lives, count = spots
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def spread():
        for f, i in spot:
            if lives[f, i] == 1:
                loss[None] += spot[f, i].norm_sqr() / count[f]

    with ds.Tape(loss):
        spread()
    assert found_wide(spread) == [True]
    weights = alive / alive.sum(1, keepdims=True)
    np.testing.assert_allclose(loss[None], (weights * (at**2).sum(-1)).sum(), rtol=1e-12)
    np.testing.assert_allclose(spot.grad.to_numpy(), 2 * weights[..., None] * at, rtol=1e-12)


def test_stores_of_those_that_count(spots):
    at, alive, spot, lives, _ = spots
    out = ds.Vector.field(3, ds.f64, shape=(5, 77), needs_grad=True)

    @ds.kernel
    def lift():
        for f, i in spot:
            if lives[f, i] > 0:
                p = spot[f, i]
                if p[0] > 0.0:
                    out[f, i] = ds.Vector([p[0], ds.sqrt(p[0]), p[1] / p[0]])
                else:
                    out[f, i] = ds.Vector([0.0, p[1], 0.0])

    out.fill(7.0)
    tape = ds.Tape()
    with tape:
        lift()
    tape.backward(grads={out: 1.0})
    x, y = at[..., 0], at[..., 1]
    r = np.sqrt(np.where(x > 0, x, 1.0))
    right = np.stack([x, r, y / (r * r)], -1)
    left = np.stack([0 * x, y, 0 * x], -1)
    want = np.where((x > 0)[..., None], right, left)
    want = np.where(alive[..., None] > 0, want, 7.0)
    np.testing.assert_allclose(out.to_numpy(), want, rtol=1e-12)
    slope_x, slope_y = 1 + 0.5 / r - y / r**4, 1 / (r * r)
    slopes = np.where((x > 0)[..., None], np.stack([slope_x, slope_y], -1), [0.0, 1.0])
    np.testing.assert_allclose(
        spot.grad.to_numpy(), np.where(alive[..., None] > 0, slopes, 0.0), rtol=1e-11, atol=1e-11
    )


def test_conditions_on_indices_are_left_to_llvm(spots):
    _, _, spot, _, _ = spots

    @ds.kernel
    def edge():
        for f, i in spot:
            if f > 0 and i % 7 > 0:
                spot[f, i] = 2.0 * spot[f, i]

    edge()
    assert found_wide(edge) == [False]
