"""Second derivatives together with threads, load logs, rollouts, searches for NaN, replays, forward mode."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.second_order_recorder import SecondOrderRecorder
from tests.support.gradients import field, numbers

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


def check(run, x, loss, **how):
    """Compare a product with differences of the gradient, and two products with each other."""
    start = x.to_numpy()
    v, w = (np.random.default_rng(k).uniform(-1, 1, start.shape) for k in (1, 2))
    products, ends = [], []
    for vector in (v, w):
        products.append(ds.ad.hvp(run, x, vector, loss=loss))
        x.from_numpy(start)
    both = ds.ad.hvp(run, x, np.stack([v, w]), loss=loss)
    for step in (1e-5, -1e-5):
        x.from_numpy(start + step * v)
        with ds.Tape(loss, **how) as tape:
            run()
        ends.append(tape.gradients[x].to_numpy())
    x.from_numpy(start)
    slope = (ends[0] - ends[1]) / 2e-5
    size = np.abs(slope).max()
    assert size > 1e-3
    np.testing.assert_allclose(products[0], slope, rtol=1e-6, atol=1e-6 * size)
    np.testing.assert_allclose(np.sum(w * products[0]), np.sum(v * products[1]), rtol=1e-10)
    np.testing.assert_allclose(both, products, rtol=1e-10, atol=1e-12 * size)


def test_two_threads():
    """Lanes of both threads add to the same elements, and to their tangents."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=2)
    n = 20_000
    x, bins, loss = field(n), field(16), field(())
    x.from_numpy(numbers(n))

    @ds.kernel
    def clear():
        for k in bins:
            bins[k] = 0.0

    @ds.kernel
    def scatter():
        for i in x:
            bins[i % 16] += ds.sin(x[i]) * x[(i * 7) % n]

    @ds.kernel
    def total():
        for k in bins:
            loss[None] += bins[k] ** 2

    def run():
        clear()
        scatter()
        total()

    check(run, x, loss)


def test_load_logs_have_tangents(monkeypatch):
    """A sweep that changes what it has read: its adjoint runs it again on a copy, and logs what it loads."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules="lifted")
    n = 6
    x, y, loss = field(n), ds.field(ds.f64, n), ds.field(ds.f64, ())
    x.from_numpy(np.linspace(0.3, 1.1, n))
    logs = []
    launching = SecondOrderRecorder.launching

    def watched(self, special, args):
        found = launching(self, special, args)
        logs.append(bool(found.derivative.version_bytes))
        return found

    monkeypatch.setattr(SecondOrderRecorder, "launching", watched)

    @ds.kernel
    def begin():
        for i in x:
            y[i] = x[i] + 0.5

    @ds.kernel
    def sweep():
        for _ in range(1):
            for _ in range(3):
                for i in range(1, n - 1):
                    y[i] = y[i] * y[i - 1] * 0.3 + y[i + 1] * x[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i] ** 2

    def run():
        begin()
        sweep()
        total()

    for _ in range(2):  # private copies are used again
        check(run, x, loss)
    assert any(logs)


def test_rollouts_of_unknown_length_in_place():
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, y, loss = field(3), field(3), field(())
    x.from_numpy(numbers(3))

    @ds.kernel
    def step(t: ds.i32):
        for i in x:
            y[i] = y[i] * x[i] + 0.1 * t * ds.sin(y[i])

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i] ** 2 * x[i]

    def run():
        y.fill(1.0)
        ds.ad.checkpoint(step, 9, state=[y], snapshots=2, while_=lambda t: t < 7)
        total()

    check(run, x, loss, in_place="save")


@pytest.mark.parametrize("option", ["check_nan", "debug"])
def test_nan_is_found(option):
    ds.init(arch=ds.cpu, default_fp=ds.f64, **{option: True})
    x, y, loss = field(3), field(3), field(())
    x.from_numpy(np.array([0.5, 2.0, 3.0]))

    @ds.kernel
    def first():
        for i in x:
            y[i] = ds.log(x[i] - 1.0)

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i] * x[i]

    def run():
        first()
        total()

    with pytest.raises(ds.AccessError) as caught:
        ds.ad.hvp(run, x, np.ones(3), loss=loss)
    assert "y[0] became NaN" in caught.value.message
    assert "y[i] = ds.log(x[i] - 1.0)" in str(caught.value)
    x.from_numpy(np.array([1.5, 2.0, 3.0]))
    check(run, x, loss)


def test_what_has_derivatives_of_its_own_is_refused():
    """Tapes, replays and gradients inside of the function would be without tangents."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, loss = field(3), field(())
    x.from_numpy(numbers(3))

    @ds.kernel
    def energy():
        for i in x:
            loss[None] += x[i] ** 3

    with ds.Tape(loss) as tape:
        energy()

    def nested():
        with ds.Tape(loss):
            energy()

    for inside, says in (
        (tape.replay, "a tape can not be replayed"),
        (tape.backward, "the backward pass can not run"),
        (nested, "tapes can not be nested"),
        (energy.grad, "energy.grad can not run"),
        (energy.jvp, "energy.jvp can not run"),
        (lambda: ds.ad.hvp(energy, x, x.to_numpy(), loss=loss), "second derivatives can not be"),
    ):
        with pytest.raises(ds.AutodiffError) as caught:
            ds.ad.hvp(inside, x, np.ones(3), loss=loss)
        assert says in caught.value.message
        assert "second derivatives are computed" in caught.value.message
    np.testing.assert_allclose(
        ds.ad.hvp(energy, x, np.ones(3), loss=loss), 6 * x.to_numpy(), rtol=1e-12
    )


def test_forward_mode_after_a_product():
    """A product leaves anything in the duals of a state in place; the next block starts from its seeds."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x = ds.field(ds.f64, 3, needs_grad=True, needs_dual=True)
    loss = field(())
    x.from_numpy(numbers(3))

    @ds.kernel
    def square():
        for i in x:
            x[i] = x[i] * x[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i] ** 2

    def run():
        square()
        square()
        total()

    def forward():
        with ds.ad.FwdMode(loss=loss, param=x, seed=np.ones(3)):
            total()
        return loss.dual[None]

    expected = forward()
    start = x.to_numpy()
    product = ds.ad.hvp(run, x, np.ones(3), loss=loss)
    np.testing.assert_allclose(product, 56 * start**6, rtol=1e-12)
    x.from_numpy(start)
    assert forward() == expected == pytest.approx(2 * start.sum(), rel=1e-12)
