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

    with pytest.raises(ds.KernelArithmeticError) as caught:
        ds.ad.hvp(run, x, np.ones(3), loss=loss)
    assert "y[0] became NaN" in caught.value.message
    assert "y[i] = ds.log(x[i] - 1.0)" in str(caught.value)
    x.from_numpy(np.array([1.5, 2.0, 3.0]))
    check(run, x, loss)


def test_what_has_derivatives_of_its_own_is_refused():
    """Tapes, replays and gradients inside the function would be without tangents."""
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
        (tape.replay, "a tape cannot be replayed"),
        (tape.backward, "the backward pass cannot run"),
        (nested, "tapes cannot be nested"),
        (energy.grad, "energy.grad cannot run"),
        (energy.jvp, "energy.jvp cannot run"),
        (lambda: ds.ad.hvp(energy, x, x.to_numpy(), loss=loss), "second derivatives cannot be"),
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


# ---- roots of 0


def squares():
    """Energies that are quadratic in |v| (or x), written with roots, and their Hessians at 0."""
    v, loss = field(2, n=2), field(())
    rest = ds.field(ds.f64, shape=2)  # 0

    @ds.kernel
    def powers():
        for i in v:
            loss[None] += v[i].norm() ** 2 + v[i].norm() * v[i].norm() + ds.pow(v[i].norm(), 2.0)

    @ds.kernel
    def springs():
        for i in v:
            stretch = v[i].norm() - rest[i]
            loss[None] += 0.5 * 3.0 * stretch**2 + 0.5 * 5.0 * stretch * stretch

    @ds.kernel
    def spline():
        for i in v:
            q = 2.0 - v[i].norm() / 4.0
            loss[None] += (1.0 + q) * (q - 3.0) + q

    @ds.kernel
    def absolute():
        for i in v:
            a, b = ds.abs(v[i].x), ds.abs(v[i].y)
            for _ in range(3):
                loss[None] += (-a) * (2.0 * a) + b * b

    # (1 + q)(q - 3) + q = q**2 - q - 3 with q = 2 - r / 4 is r**2 / 16 - 3 r / 4 - 1: a kink besides.
    return v, loss, [(powers, 6.0), (springs, 8.0), (spline, 1 / 8), (absolute, [-12.0, 6.0])]


def test_squares_of_roots_at_0():
    v, loss, cases = squares()
    for kernel, curvature in cases:
        matrix = ds.ad.hessian(kernel, v, loss=loss)
        assert np.array_equal(matrix, np.diag(np.resize(curvature, 4)))


def test_squares_of_roots_elsewhere():
    v, loss, cases = squares()
    v.from_numpy(np.array([[0.3, -0.4], [1.2, 0.5]]))
    for kernel, _ in cases:
        check(kernel, v, loss)


def test_pairs_with_a_guard_and_without():
    """Points at rest at one place: a pair of a point with itself adds nothing."""
    n = 3
    x, loss = field(n, n=2), field(())

    @ds.kernel
    def guarded():
        for i in range(n):
            for j in range(n):
                if i != j:
                    loss[None] += 0.5 * ((x[i] - x[j]).norm() - 1.0) ** 2

    @ds.kernel
    def every():
        for i in range(n):
            for j in range(n):
                loss[None] += 0.5 * ((x[i] - x[j]).norm() - 1.0) ** 2

    x.from_numpy(np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 2.0]]))
    assert np.array_equal(*(ds.ad.hessian(k, x, loss=loss) for k in (guarded, every)))


def test_products_of_roots_of_different_numbers_stay():
    """A store between two loads, and another index, make other roots."""
    x, loss = field(2), field(())

    @ds.kernel
    def changed():
        for i in range(1):
            a = ds.abs(x[i])
            x[i] = x[i] * x[i] + 1.0
            loss[None] += a * ds.abs(x[i]) + ds.abs(x[i]) * ds.abs(x[i + 1])

    x.from_numpy(np.array([-0.5, 0.7]))
    # a (a**2 + 1) + (a**2 + 1) b with a = -x[0], b = x[1]: curvatures 6 a + 2 b, and -2 a between them
    want = [[6 * 0.5 + 2 * 0.7, -2 * 0.5], [-2 * 0.5, 0.0]]
    np.testing.assert_allclose(ds.ad.hessian(changed, x, loss=loss), want, rtol=1e-14, atol=1e-15)
