"""Gradients with respect to arguments: a 0-D field in place of a number, a vector or a matrix."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AutodiffError, GlobalDataAccessError, KernelTypeError
from tests.support.gradients import check, field, numbers

vec3 = ds.types.vector(3, ds.f64)
mat2 = ds.types.matrix(2, 2, ds.f64)


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)


def test_numbers_vectors_and_matrices():
    x, dt, g, a, loss = field(4), field(), field(n=3), field(n=(2, 2)), field()
    x.from_numpy(numbers(4))
    dt[None] = 0.3
    g.from_numpy(numbers(3))
    a.from_numpy(numbers(2, 2))

    @ds.kernel
    def step(h: ds.f64, n: ds.i32, w: vec3, m: mat2, c: ds.f64):
        for i in range(n):
            v = m @ ds.Vector([x[i], h])
            loss[None] += ds.sin(h * x[i]) * w.norm() + c * h + v.dot(v) * w[1]

    check(lambda: step(dt, 4, g, a, 1.5), loss, x, dt, g, a)
    check(lambda: step(dt, 3, [1.0, 2.0, 3.0], a, c=dt), loss, x, dt, a)
    check(lambda: step(0.3, 4, g, [[1.0, 2.0], [3.0, 4.0]], 0.1), loss, x, g)


def test_a_number_is_a_constant():
    x, dt, loss = field(4), field(), field()
    x.fill(2)
    dt[None] = 0.5

    @ds.kernel
    def step(h: ds.f64):
        for i in x:
            loss[None] += h * x[i]

    with ds.Tape(loss):
        step(ds.stop_grad(dt[None]))
        step(0.5)
        step(np.float64(0.5))
        step(dt)
    assert loss[None] == 16
    assert dt.grad[None] == 8
    assert x.grad.to_numpy().tolist() == [2, 2, 2, 2]
    step.grad(0.5)
    assert dt.grad[None] == 8


def test_kernel_grad():
    x, dt, loss = field(4), field(), field()
    x.fill(2)
    dt[None] = 0.5

    @ds.kernel
    def step(h: ds.f64):
        for i in x:
            loss[None] += h * h * x[i]

    with pytest.raises(AutodiffError, match="not launched with these arguments"):
        step(0.5)
        step(dt)
        step.grad(0.6)
    loss.grad[None] = 1
    step.grad(dt)
    step.grad(h=dt)
    assert dt.grad[None] == 16
    dt[None] = 0.7
    with pytest.raises(GlobalDataAccessError, match="needs dt as it was"):
        step.grad(dt)


def test_time_steps_with_a_changing_argument():
    q, dt, loss = field(), field(), field()
    q[None], dt[None] = 0.4, 0.1

    @ds.kernel
    def step(h: ds.f64):
        q[None] += h * ds.cos(q[None])

    @ds.kernel
    def longer():
        dt[None] *= 1.1

    @ds.kernel
    def end():
        loss[None] += q[None] ** 2

    def value(a, b):
        for _ in range(8):
            a += b * np.cos(a)
            b *= 1.1
        return a**2

    for run in ("tape", "checkpoint"):
        q[None], dt[None] = 0.4, 0.1
        with ds.Tape(loss, in_place="save"):
            if run == "tape":
                for _ in range(8):
                    step(dt)
                    longer()
            else:
                ds.ad.checkpoint(lambda t: (step(dt), longer()), 8, state=[q, dt], snapshots=2)
            end()
        h = 1e-6
        assert loss[None] == pytest.approx(value(0.4, 0.1))
        want = (value(0.4, 0.1 + h) - value(0.4, 0.1 - h)) / (2 * h)
        assert dt.grad[None] == pytest.approx(want, rel=1e-6)
        want = (value(0.4 + h, 0.1) - value(0.4 - h, 0.1)) / (2 * h)
        assert q.grad[None] == pytest.approx(want, rel=1e-6)
    with pytest.raises(AutodiffError, match="dt may carry something"), ds.Tape(loss):
        ds.ad.checkpoint(lambda t: (step(dt), longer()), 8, state=[q], snapshots=2)


def test_loops_and_methods_and_templates():
    rate, loss = field(), field()
    rate[None] = 0.3

    @ds.data_oriented
    class Model:
        def __init__(self):
            self.x = field(3)

        @ds.kernel
        def step(self, out: ds.template(), a: ds.types.ndarray(), r: ds.f64):
            for i in self.x:
                twice = 2 * r
                for j in range(4):
                    out[None] += ds.exp(-r * j) * self.x[i] * twice * a[j]

    model = Model()
    model.x.from_numpy(numbers(3))
    a = numbers(4)
    check(lambda: model.step(loss, a, rate), loss, rate, model.x)


def test_the_same_field_twice():
    s, x, loss = field(), field(3), field()
    s[None] = 0.8
    x.fill(1)

    @ds.kernel
    def step(a: ds.f64, b: ds.f64):
        for i in x:
            loss[None] += a * a * b * x[i]

    @ds.kernel
    def captured(a: ds.f64):
        loss[None] += a * s[None]

    check(lambda: step(s, s), loss, s)
    with pytest.raises(KernelTypeError, match="the same memory"):
        captured(s)


def test_a_broken_chain():
    x, y, loss = field(3), field(grad=False), field()

    @ds.kernel
    def f():
        y[None] = x[0] * 2

    @ds.kernel
    def g(a: ds.f64):
        loss[None] += a

    with pytest.raises(AutodiffError, match="y is given a value that depends"), ds.Tape(loss):
        f()
        g(y)


def test_no_grad_and_stop_grad():
    s, loss = field(), field()
    s[None] = 3

    @ds.kernel
    def add(a: ds.f64):
        loss[None] += a * ds.stop_grad(a)

    with ds.Tape(loss):
        add(s)
        with ds.ad.no_grad():
            add(s)
    assert s.grad[None] == 3


def test_f32():
    s = ds.field(ds.f32, (), needs_grad=True)
    loss = ds.field(ds.f32, (), needs_grad=True)
    s[None] = 3

    @ds.kernel
    def add(a: ds.f32):
        loss[None] += a * a

    with ds.Tape(loss):
        add(s)
    assert s.grad[None] == 6
