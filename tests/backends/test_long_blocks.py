"""Long blocks that are cut for LLVM compute what they compute in one piece."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.llvm import long_blocks
from diffsim.passes.vectors import vectorize

N = 37  # whole blocks of lanes, and one of fewer


@pytest.fixture
def in_vectors(monkeypatch):
    monkeypatch.setattr(vectorize, "_ALWAYS", True)


def polynomial():
    """One with 24 unrolled terms, a branch among them."""
    x = ds.field(ds.f32, shape=N, needs_grad=True)
    y = ds.field(ds.f32, shape=N, needs_grad=True)

    @ds.kernel
    def run():
        for i in range(N):
            t, total = x[i], 0.0
            for k in ds.static(range(24)):
                if ds.static(k == 12):
                    if t > 0.5:
                        total += 1.0
                total = total * t + (k - 11.5) * ds.sin(t)
            y[i] = total

    return x, y, run


def results(values):
    x, y, run = polynomial()
    x.from_numpy(values)
    run()
    y.grad.fill(1.0)
    run.grad()
    return y.to_numpy(), x.grad.to_numpy(), run.llvm() + run.grad.llvm()


def test_the_same_values_and_gradients(cpu, in_vectors, monkeypatch):
    values = np.linspace(0, 1, N, dtype=np.float32)
    whole = results(values)
    monkeypatch.setattr(long_blocks, "_LONG", 12)
    monkeypatch.setattr(long_blocks, "_STRETCH", 5)
    cut = results(values)
    assert "callbr" not in whole[2]
    assert cut[2].count("callbr") > 8
    t, y, dy = values.astype(np.float64), 0.0, 0.0
    for k in range(24):
        y = y + (t > 0.5) * (k == 12)
        y, dy = y * t + (k - 11.5) * np.sin(t), dy * t + y + (k - 11.5) * np.cos(t)
    for found in (whole, cut):
        np.testing.assert_allclose(found[0], y, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[1], dy, rtol=1e-4, atol=1e-4)


def test_all_lanes_go_through_the_same_cuts(cpu, in_vectors, monkeypatch):
    """No bit of a result depends on where a lane is."""
    monkeypatch.setattr(long_blocks, "_LONG", 12)
    monkeypatch.setattr(long_blocks, "_STRETCH", 5)
    for value in (0.3, 0.7):
        y, gradient, text = results(np.full(N, value, np.float32))
        assert "callbr" in text
        assert len(set(y.tolist())) == len(set(gradient.tolist())) == 1
