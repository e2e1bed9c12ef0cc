"""Loops in loops save for all iterations of those around them, as far as there is memory."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.autodiff import loop_checkpoints
from tests.fuzz import nested

LANES = 37


def march():
    """Fields, and a kernel that marches along rays and searches the nearest of five things each time."""
    x, y = (ds.field(ds.f64, LANES, needs_grad=True) for _ in range(2))
    far = ds.field(ds.f64, 5, needs_grad=True)

    @ds.kernel(simplicity="relaxed")
    def run():
        for i in x:
            t = x[i]
            for _ in range(20):
                near = 3.0
                for b in range(5):
                    near = ds.min(near, ds.sqrt((t - far[b]) ** 2 + 0.01))
                if near < 0.15:
                    break
                if t > 0.3:
                    for k in range(3):
                        near *= ds.cos(near + k)
                t += 0.5 * near
            y[i] = t

    return x, y, far, run


def gradients():
    x, y, far, run = march()
    x.from_numpy(np.linspace(-1.0, 1.0, LANES))
    far.from_numpy(np.linspace(0.2, 4.0, 5))
    run()
    y.grad.fill(1.0)
    run.grad()
    return (x.grad.to_numpy(), far.grad.to_numpy()), run.grad.ir()


def test_inner_loops_do_not_run_again(monkeypatch):
    ds.init(arch=ds.cpu, default_fp=ds.f64, offline_cache=False)
    saved, ir = gradients()
    # In the forward sweep, and backwards.
    assert ir.count("sqrt") == 2
    assert ir.count("cos") == 2
    # With room for what one iteration saves: in each of them anew, too.
    monkeypatch.setattr(loop_checkpoints, "_MOST_BYTES", 400)
    again, ir = gradients()
    assert ir.count("sqrt") == 3
    assert ir.count("cos") == 3
    for a, b in zip(saved, again, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("seed", [368])
def test_random_loops_in_loops(seed):
    assert nested.verdict(nested.make(seed), seed, "save") == "right"
