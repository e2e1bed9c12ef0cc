"""Kernels of several loops that overwrite what they need, on tapes that save.

Their adjoints have versions of the fields, and where these cannot be had, the loops are launched one by one.
"""

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.autodiff import reverse
from tests.support.gradients import central, check, field, numbers

pytestmark = pytest.mark.usefixtures("quick_code")

N = 5


@pytest.fixture(params=["versions", "split"])
def cpu(cpu, request, monkeypatch):
    if request.param == "split":
        monkeypatch.setattr(reverse, "can_have_versions", lambda mem: False)
    cpu.init(default_fp=ds.f64, rules="lifted")
    yield cpu
    cpu.init()


class Step:
    """x = sin(p x); s = sum(x); x = x**2 + s p: the sum is a temporary that the loops share."""

    def __init__(self):
        x, p, loss = field(N), field(), field()
        self.x, self.p, self.loss = x, p, loss

        @ds.kernel
        def step():
            s = 0.0
            for i in x:
                x[i] = ds.sin(p[None] * x[i])
            for i in x:
                s += x[i] ** 2
            for i in x:
                x[i] = x[i] ** 2 + s * p[None]

        @ds.kernel
        def measure():
            for i in x:
                loss[None] += (i + 1) * x[i]

        self.step, self.measure = step, measure
        p[None] = 0.7

    def run(self):
        self.x.from_numpy(numbers(N))
        for _ in range(3):
            self.step()
        self.measure()


def numpy_step(x, p):
    x = np.sin(p * x)
    return x**2 + (x**2).sum() * p


def test_the_gradient(cpu):
    p = Step()
    check(p.run, p.loss, p.p)

    def closed(parameter):
        x = numbers(N)
        for _ in range(3):
            x = numpy_step(x, parameter[()])
        return ((np.arange(N) + 1) * x).sum()

    with ds.Tape(p.loss):
        p.run()
    np.testing.assert_allclose(p.p.grad[None], central(closed, np.array(0.7)), rtol=1e-8)


def test_one_tape_that_saves_is_enough(cpu):
    ds.init(default_fp=ds.f64)
    p = Step()
    with ds.Tape(p.loss, in_place="save"):
        p.run()
    saved = p.p.grad[None]
    with pytest.raises(ds.GlobalDataAccessError):
        with ds.Tape(p.loss):
            p.run()
    ds.init(default_fp=ds.f64, rules="lifted")
    with ds.Tape(p.loss):
        p.run()
    assert p.p.grad[None] == saved


def test_the_values_are_those_of_the_whole_kernel(cpu):
    p = Step()
    p.run()
    whole = p.x.to_numpy()
    with ds.Tape(p.loss):
        p.run()
    # The order in which a sum over a loop is made is another one.
    np.testing.assert_allclose(p.x.to_numpy(), whole, rtol=1e-14)


def test_replayed(cpu):
    p = Step()
    tape = ds.Tape(p.loss)
    with tape:
        p.run()
    p.p[None] = 0.4
    tape.replay()
    tape.backward()
    replayed = p.p.grad[None]
    with ds.Tape(p.loss):
        p.run()
    assert replayed == p.p.grad[None]


def test_in_a_checkpointed_rollout(cpu):
    p = Step()

    def rollout():
        p.x.from_numpy(numbers(N))
        ds.ad.checkpoint(lambda t: p.step(), 3, state=[p.x], snapshots=2)
        p.measure()

    with ds.Tape(p.loss):
        p.run()
    plain = p.p.grad[None]
    with ds.Tape(p.loss):
        rollout()
    np.testing.assert_allclose(p.p.grad[None], plain, rtol=1e-13)


def test_arguments_and_templates(cpu):
    x, y, p, loss = field(N), field(N), field(), field()
    order = ds.ndarray(ds.i32, N)
    order.from_numpy(np.array([3, 0, 4, 1, 2], np.int32))

    @ds.kernel
    def step(a: ds.template(), t: ds.i32, dt: ds.f64, o: ds.types.ndarray()):
        for i in a:
            a[i] += dt * ds.sin(a[i]) * p[None]
        for i in a:
            loss[None] += a[o[i]] ** 2 * (t + i)
        for i in a:
            a[i] *= a[i]

    def run():
        for f in (x, y):
            f.from_numpy(numbers(N))
        for t in range(3):
            step(x, t, 0.1, order)
            step(y, t, 0.2, order)

    p[None] = 0.3
    check(run, loss, p)


def test_random_numbers(cpu, request):
    """Versions are computed again with the numbers of the launch; a loop launched by itself draws others."""
    x, p, loss = field(N), field(), field()

    @ds.kernel
    def noisy():
        for i in x:
            x[i] = p[None] * ds.sin(x[i]) + ds.random()
        for i in x:
            x[i] = x[i] ** 2 * ds.random()
        for i in x:
            loss[None] += x[i]

    def run():
        x.from_numpy(numbers(N))
        noisy()

    def value(at):
        ds.init(default_fp=ds.f64, rules="lifted", random_seed=5)
        loss[None], p[None] = 0.0, at[()]
        run()
        return loss[None]

    p[None] = 0.6
    if "split" in request.node.name:
        with pytest.raises(ds.GlobalDataAccessError), ds.Tape(loss):
            run()
        return
    expected = central(value, np.array(0.6))
    ds.init(default_fp=ds.f64, rules="lifted", random_seed=5)
    p[None] = 0.6
    with ds.Tape(loss):
        run()
    np.testing.assert_allclose(p.grad[None], expected, rtol=1e-8)


def test_results(cpu, request):
    x, loss = field(N), field()

    @ds.kernel
    def total() -> ds.f64:
        s = 0.0
        for i in x:
            x[i] = ds.sin(x[i])
        for i in x:
            s += x[i] ** 2
        for i in x:
            x[i] = x[i] ** 2
        return s

    x.from_numpy(numbers(N))
    if "split" in request.node.name:
        with pytest.raises(ds.GlobalDataAccessError), ds.Tape(loss):
            loss[None] = total()
        return
    with ds.Tape(loss):
        loss[None] = total() ** 2
    sine, cosine = np.sin(numbers(N)), np.cos(numbers(N))
    expected = 2 * (sine**2).sum() * 2 * sine * cosine
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-13)


def test_a_failed_check_in_a_later_loop(cpu):
    ds.init(default_fp=ds.f64, rules="lifted", debug=True)
    x, loss = field(N), field()

    @ds.kernel
    def step(shift: ds.i32):
        for i in x:
            x[i] = ds.sin(x[i])
        for i in x:
            x[i] = x[i] ** 2
        for i in x:
            loss[None] += x[i + shift] ** 2

    tape = ds.Tape()
    with pytest.raises(ds.AccessError):
        with tape:
            step(1)
    with pytest.raises(ds.AutodiffError, match="step"):
        tape.backward(loss)
    x.from_numpy(numbers(N))
    with ds.Tape(loss):
        step(0)
    start = numbers(N)
    np.testing.assert_allclose(
        x.grad.to_numpy(), 4 * np.sin(start) ** 3 * np.cos(start), rtol=1e-13
    )


def test_hooks_and_kept_gradients(cpu):
    p = Step()
    seen = []
    tape = ds.Tape(retain_grad=[p.loss])
    tape.on_backward(lambda step, grads: seen.append(step))
    with tape:
        p.run()
    tape.backward(p.loss)
    assert seen == sorted(seen, reverse=True)
    with ds.Tape(p.loss):
        p.run()
    gradient = p.p.grad[None]
    with ds.Tape(p.loss, check_nan=True):
        p.run()
    assert p.p.grad[None] == gradient
