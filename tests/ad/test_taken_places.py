"""Gradients of kernels whose iterations take places from a counter: stream compaction."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AutodiffError, GlobalDataAccessError
from diffsim.runtime.kernels import launch_checks
from tests.support.gradients import field, numbers
from tests.support.rules import refused

pytestmark = pytest.mark.usefixtures("cpu")
N = 1000


@pytest.fixture(autouse=True)
def threads(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=4)


@pytest.fixture
def untraced(monkeypatch):
    monkeypatch.setattr(launch_checks.TraceRun, "accesses", None)


class Program:
    """Elements above 0 go to the front of a field, in whatever order."""

    def __init__(self):
        x, out, loss = field(N), field(N), field()
        count, source = ds.field(ds.i32, shape=()), ds.field(ds.i32, shape=N)
        x.from_numpy(numbers(N))

        @ds.kernel
        def pack():
            for i in x:
                if x[i] > 0.0:
                    k = ds.atomic_add(count[None], 1)
                    out[k] = x[i] ** 2
                    source[k] = i

        @ds.kernel
        def total():
            for k in out:
                loss[None] += ds.sin(0.01 * k) * out[k]

        self.x, self.out, self.loss, self.count, self.source = x, out, loss, count, source
        self.pack, self.total = pack, total

    def expected(self):
        n, x = self.count[None], self.x.to_numpy()
        gradient, source = np.zeros(N), self.source.to_numpy()[:n]
        gradient[source] = 2 * x[source] * np.sin(0.01 * np.arange(n))
        return gradient

    def check(self):
        np.testing.assert_allclose(self.x.grad.to_numpy(), self.expected(), rtol=1e-13)


def test_the_adjoint_finds_the_same_places(untraced):
    p = Program()
    for _ in range(5):
        p.count[None] = 0
        with ds.Tape(p.loss):
            p.pack()
            p.total()
        assert p.count[None] == (p.x.to_numpy() > 0).sum()
        p.check()


def test_a_gradient_without_a_tape(untraced):
    p = Program()
    p.pack()
    p.out.grad.from_numpy(np.sin(0.01 * np.arange(N)))
    p.x.grad.fill(0.0)
    p.pack.grad()
    p.check()


def test_two_launches_need_a_tape_that_saves(untraced):
    p = Program()

    def program():
        p.count[None] = 0
        p.pack()
        p.count[None] = 0
        p.pack()
        p.total()

    error = refused(program, p.loss, GlobalDataAccessError)
    assert "needs atomic_add(count) as it was" in error.message
    assert 'in_place="save"' in str(error)
    with ds.Tape(p.loss, in_place="save"):
        program()
    p.check()


def test_replayed(untraced):
    p = Program()
    tape = ds.Tape(p.loss)
    with tape:
        p.count[None] = 0
        p.pack()
        p.total()
    for seed in range(3):
        p.x.from_numpy(numbers(N, seed=seed))
        tape.replay()
        tape.backward()
        p.check()


def test_in_a_checkpointed_rollout(untraced):
    x, y, loss, n = field(40), field(40), field(), ds.field(ds.i32, shape=())
    x.from_numpy(numbers(40))

    @ds.kernel
    def step():
        n[None] = 0
        for i in y:
            y[i] = 0.0
        for i in x:
            k = ds.atomic_add(n[None], 1)
            y[k] = ds.sin(x[i])

    @ds.kernel
    def back():
        for i in y:
            x[i] = y[i] * y[i] + 0.5

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i] ** 2

    def run(t):
        step()
        back()

    start = x.to_numpy()
    with ds.Tape(loss, in_place="save"):
        for t in range(4):
            run(t)
        total()
    found = x.grad.to_numpy()
    x.from_numpy(start)
    with ds.Tape(loss):
        ds.ad.checkpoint(run, 4, [x, y], snapshots=2)
        total()
    np.testing.assert_allclose(x.grad.to_numpy(), found, rtol=1e-12)
    # The loss does not depend on the order.
    v, g = start.copy(), np.ones(40)
    for _ in range(4):
        g *= 2 * np.sin(v) * np.cos(v)
        v = np.sin(v) ** 2 + 0.5
    np.testing.assert_allclose(found, 2 * v * g, rtol=1e-12)


def test_places_that_are_computed_further_are_looked_at():
    x, out, loss = field(8), field(40), field()
    count, source = ds.field(ds.i32, shape=2), ds.field(ds.i32, shape=8)
    x.from_numpy(numbers(8))

    @ds.kernel
    def pairs(period: ds.i32):
        for i in x:
            k = ds.atomic_add(count[i % 2], 1)
            source[i] = (2 * k + i % 2) % period
            out[(2 * k + i % 2) % period] = x[i] ** 2

    @ds.kernel
    def total():
        for k in out:
            loss[None] += k * out[k]

    with ds.Tape(loss):
        pairs(40)
        total()
    expected = 2 * x.to_numpy() * source.to_numpy()
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-13)
    count.fill(0)
    error = refused(lambda: (pairs(7), total()), loss, GlobalDataAccessError)
    assert "period = 7: iterations" in error.message
    assert "both store out[0]" in error.message


def test_counters_that_come_to_the_same_number_again():
    x, out, loss = field(8), field(8), field()
    count = ds.field(ds.i32, shape=())

    @ds.kernel
    def reset():
        for i in x:
            k = ds.atomic_add(count[None], 1)
            out[k] = x[i] ** 2
            if k == 3:
                count[None] = 0

    @ds.kernel
    def nothing():
        for i in x:
            k = ds.atomic_add(count[None], 0)
            out[k] = x[i] ** 2

    @ds.kernel
    def total():
        for k in out:
            loss[None] += k * out[k]

    for kernel in (reset, nothing):
        error = refused(lambda kernel=kernel: (kernel(), total()), loss, GlobalDataAccessError)
        assert "both store out[0]" in error.message


def test_what_is_not_noted_is_refused_as_before():
    x, out, loss = field(8), field(80), field()
    count, old = ds.field(ds.i32, shape=()), ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def in_a_loop():
        for i in x:
            for j in range(3):
                k = ds.atomic_add(count[None], 1)
                out[k] = x[i] ** 2

    @ds.kernel
    def a_float():
        for i in x:
            out[i] = ds.atomic_add(old[None], x[i]) ** 2

    @ds.kernel
    def total():
        for k in out:
            loss[None] += k * out[k]

    for kernel in (in_a_loop, a_float):
        error = refused(lambda kernel=kernel: (kernel(), total()), loss, AutodiffError)
        assert "that this atomic return" in error.message
