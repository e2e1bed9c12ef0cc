"""Rollouts whose steps store active values to a field without gradient, and what reads them later."""

import numpy as np
import pytest

import diffsim as ds

N = 3


class Program:
    def __init__(self):
        self.x, self.y = (ds.field(ds.f64, N, needs_grad=True) for _ in range(2))
        self.z, self.w = (ds.field(ds.f64, N) for _ in range(2))
        self.loss = ds.field(ds.f64, (), needs_grad=True)
        self.x.from_numpy(np.array([0.5, 1.0, 2.0]))
        self.y.from_numpy(np.array([1.0, -2.0, 3.0]))
        self.z.fill(2.0)

    @ds.kernel
    def lose(self):
        for i in self.y:
            self.z[i] = self.y[i]

    @ds.kernel
    def pass_on(self):
        for i in self.y:
            self.w[i] = self.z[i]

    @ds.kernel
    def use(self, f: ds.template()):
        for i in self.y:
            self.x[i] += f[i] * self.y[i]

    @ds.kernel
    def add_up(self, f: ds.template()):
        for i in self.y:
            self.loss[None] += f[i]

    def rollout(self, step, n=3, **options):
        ds.ad.checkpoint(step, n, [self.x, self.y, self.z, self.w], **options)

    def gradient(self, program):
        with ds.Tape(self.loss):
            program(self)
        return self.y.grad.to_numpy()


@pytest.fixture
def p(cpu, quick_code):
    ds.init(default_fp=ds.f64)
    return Program()


def after(p):
    p.rollout(lambda t: p.lose())
    p.add_up(p.z)


def in_the_next_step(p):
    def step(t):
        p.use(p.z)
        p.lose()

    p.rollout(step)
    p.add_up(p.x)


def two_steps_on(p):
    def step(t):
        p.use(p.w)
        p.pass_on()
        p.lose()

    p.rollout(step)
    p.add_up(p.x)


def in_some_steps(p):
    p.rollout(lambda t: p.lose() if t == 1 else p.use(p.z))
    p.add_up(p.x)


def before(p):
    p.lose()
    p.rollout(lambda t: p.use(p.z))
    p.add_up(p.x)


def in_another_rollout(p):
    p.rollout(lambda t: p.lose())
    p.rollout(lambda t: p.use(p.z))
    p.add_up(p.x)


def by_a_copy(p):
    def step(t):
        p.use(p.z)
        p.z.copy_from(p.y)

    p.rollout(step)
    p.add_up(p.x)


def inside_of_a_step(p):
    def step(t):
        p.use(p.z)
        p.rollout(lambda t: p.lose(), 2)

    p.rollout(step)
    p.add_up(p.x)


LOST = [
    after,
    in_the_next_step,
    two_steps_on,
    in_some_steps,
    before,
    in_another_rollout,
    by_a_copy,
    inside_of_a_step,
]


@pytest.mark.parametrize("snapshots", [1, 8])
@pytest.mark.parametrize("program", LOST)
def test_a_value_that_is_read_later(p, program, snapshots, monkeypatch):
    rollout = p.rollout
    monkeypatch.setattr(p, "rollout", lambda *given: rollout(*given, snapshots=snapshots))
    with pytest.raises(ds.MissingGradientError, match="needs_grad=True") as refused:
        p.gradient(program)
    assert "test_rollout_chains.py" in str(refused.value)


def stored_for_output(p):
    p.rollout(lambda t: (p.lose(), p.pass_on()))
    p.add_up(p.y)
    return np.ones(N)


def overwritten_at_the_end(p):
    p.rollout(lambda t: p.lose())
    p.z.fill(2.0)
    p.use(p.z)
    p.add_up(p.x)
    return np.full(N, 2.0)


def set_in_each_step(p):
    def step(t):
        p.z.fill(3.0)
        p.use(p.z)
        p.lose()

    p.rollout(step)
    p.add_up(p.x)
    return np.full(N, 9.0)


def in_the_last_step(p):
    """The step that reads is not run after the one that stores."""
    p.rollout(lambda t: p.use(p.z) if t < 2 else p.lose())
    p.add_up(p.x)
    return np.full(N, 4.0)


def in_the_only_step(p):
    def step(t):
        p.use(p.z)
        p.lose()

    p.rollout(step, 1)
    p.add_up(p.x)
    return np.full(N, 2.0)


KEPT = [stored_for_output, overwritten_at_the_end, set_in_each_step, in_the_last_step]


@pytest.mark.parametrize("program", [*KEPT, in_the_only_step])
def test_a_value_that_is_not(p, program):
    expected = []
    found = p.gradient(lambda p: expected.append(program(p)))
    np.testing.assert_allclose(found, expected[0])


@pytest.mark.parametrize("program", LOST)
def test_with_the_switch(p, program):
    """Fields are lent a gradient, so that nothing is lost; compared with differences."""
    ds.init(default_fp=ds.f64, rules="lifted")
    found = Program().gradient(program)
    for i in range(N):
        losses = []
        for h in (1e-5, -1e-5):
            q = Program()
            q.y[i] += h
            program(q)
            losses.append(q.loss[None])
        assert found[i] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6)
