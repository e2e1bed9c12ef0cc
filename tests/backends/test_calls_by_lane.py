"""Functions that have no form for vectors, where no lane is at work."""

import numpy as np

import diffsim as ds


def test_branches_that_no_lane_takes():
    """Cheap ones run all the same: a function of one lane after the other is called for none."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n, values = 21, np.linspace(-1.0, 1.0, 21)
    x, y = (ds.field(ds.f64, shape=n, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def run(least: ds.f64):
        ds.atomic_min(
            loss[None], 0.5
        )  # compared bit by bit by the adjoint, so no form for vectors fits
        for i in range(n):
            q = 0.75
            for _ in range(2):
                if q < least:
                    break
                q = (x[i] - 0.5) * ds.cos(q)
            y[i] = q

    for least in (0.37, 2.0):
        x.from_numpy(values)
        run(least)
        y.grad.fill(1.0)
        x.grad.fill(0)
        run.grad(least)
        once = (values - 0.5) * np.cos(0.75)
        twice = np.cos(once) - (values - 0.5) * np.sin(once) * np.cos(0.75)
        slopes = np.where(once < least, np.cos(0.75), twice) if least < 0.75 else 0 * values
        np.testing.assert_allclose(x.grad.to_numpy(), slopes, rtol=1e-12)
