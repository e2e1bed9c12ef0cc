"""Adjoints that load what their launch has stored: only where the elements hold it still."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.kernels.derivative import LoadingDerivative
from tests.fuzz import stored
from tests.fuzz.__main__ import trial
from tests.support.gradients import field, numbers

N, STEPS = 6, 4


@pytest.fixture(autouse=True)
def _f64(quick_code):
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


@pytest.fixture
def computed(monkeypatch):
    """The number of launches in which a value was not there any more."""
    found = []
    launch = LoadingDerivative.compute

    def compute(self, *given):
        found.append(self.specialization.name)
        launch(self, *given)

    monkeypatch.setattr(LoadingDerivative, "compute", compute)
    return found


class Layer:
    """y = tanh(3 x), and a loss that is linear in y: its adjoint does not ask for y."""

    def __init__(self):
        self.x, self.y, self.loss = x, y, loss = field(N), field(N), field()
        self.start = numbers(N)
        x.from_numpy(self.start)

        @ds.kernel
        def layer():
            for i in x:
                y[i] = ds.tanh(3.0 * x[i])

        @ds.kernel
        def total():
            for i in y:
                loss[None] += (i + 1.0) * y[i]

        @ds.kernel
        def spoil():
            for i in y:
                y[i] = 0.5

        @ds.kernel
        def spoil_one(k: ds.i32):
            y[k] = 0.5

        @ds.kernel
        def spoil_array(a: ds.types.ndarray()):
            for i in range(N):
                a[i] = 0.5

        self.layer, self.total = layer, total
        self.spoil, self.spoil_one, self.spoil_array = spoil, spoil_one, spoil_array

    def expected(self):
        return 3.0 * np.arange(1, N + 1) * (1.0 - np.tanh(3.0 * self.start) ** 2)

    def check(self):
        np.testing.assert_allclose(self.x.grad.to_numpy(), self.expected(), rtol=1e-12)


def test_loads_on_a_tape(computed):
    p = Layer()
    for _ in range(4):  # from the third on the tape is steady
        with ds.Tape(p.loss):
            p.layer()
            p.total()
        p.check()
    assert not computed
    adjoint = p.layer._only(()).derivative
    assert "executable" not in vars(adjoint)  # it is not compiled where nobody needs it


SPOILS = {
    "a launch": lambda p: p.spoil(),
    "a launch that writes one element": lambda p: p.spoil_one(2),
    "a launch with the field as an array": lambda p: p.spoil_array(p.y),
    "one element": lambda p: p.y.__setitem__(3, 0.25),
    "fill": lambda p: p.y.fill(0.0),
    "from_numpy": lambda p: p.y.from_numpy(np.zeros(N)),
    "a copy": lambda p: p.y.copy_from(p.x),
}


@pytest.mark.parametrize("what", SPOILS)
@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_overwritten_in_the_block(what, in_place, computed):
    p = Layer()
    for _ in range(3):
        with ds.Tape(p.loss, in_place=in_place) as tape:
            p.layer()
            p.total()
            SPOILS[what](p)
        p.check()
    assert computed == ["layer"] * 3
    p.loss[None] = 0.0
    p.x.grad.fill(0.0)
    tape.replay()
    tape.backward()
    p.check()


@pytest.mark.parametrize("what", SPOILS)
def test_overwritten_after_the_block(what, computed):
    p = Layer()
    tape = ds.Tape()
    with tape:
        p.layer()
        p.total()
    SPOILS[what](p)
    tape.backward(grads={p.loss: 1.0})
    p.check()
    assert computed == ["layer"]


@pytest.mark.parametrize("what", SPOILS)
def test_overwritten_after_a_replay(what):
    p = Layer()
    with ds.Tape(p.loss) as tape:
        p.layer()
        p.total()
    for spoils in (False, True, False):
        p.start = p.start[::-1].copy()
        p.x.from_numpy(p.start)
        tape.replay()
        if spoils:
            SPOILS[what](p)
        tape.backward()
        p.check()


@pytest.mark.parametrize("what", SPOILS)
def test_by_hand(what, computed):
    p = Layer()
    for spoils in (False, True, False):
        p.layer()
        if spoils:
            SPOILS[what](p)
        p.x.grad.fill(0.0)
        p.y.grad.from_numpy(np.arange(1.0, N + 1))
        p.layer.grad()
        p.check()
    assert computed == ["layer"]


def test_an_earlier_launch_by_hand(computed):
    p = Layer()
    p.layer()
    p.spoil()
    p.layer()
    for _ in range(2):  # the second call may mean the first launch
        p.x.grad.fill(0.0)
        p.y.grad.from_numpy(np.arange(1.0, N + 1))
        p.layer.grad()
        p.check()
    assert computed == ["layer"]


@pytest.mark.parametrize("when", ["before", "between"])
def test_memory_that_other_libraries_see(when, computed):
    p = Layer()
    if when == "before":
        seen = np.from_dlpack(p.y)
    with ds.Tape(p.loss) as tape:
        p.layer()
        p.total()
        if when == "between":
            seen = np.from_dlpack(p.y)
        seen[:] = 0.5  # no version tells
    p.check()
    assert computed == ["layer"]
    tape.replay()
    seen[:] = 0.5
    tape.backward()
    p.check()


def test_memory_seen_between_a_replay_and_its_pass():
    p = Layer()
    with ds.Tape(p.loss) as tape:
        p.layer()
        p.total()
    tape.replay()
    tape.backward()
    tape.replay()
    np.from_dlpack(p.y)[:] = 0.5
    tape.backward()
    p.check()


def test_rows_in_steps_of_time(computed):
    """Each step loads the row that it has stored; one row is overwritten in the end."""
    u, loss = field((STEPS + 1, N)), field()
    u.from_numpy(numbers(STEPS + 1, N))
    start = u.to_numpy()[0]

    @ds.kernel
    def step(t: ds.i32):
        for i in range(N):
            u[t + 1, i] = ds.tanh(2.0 * u[t, i])

    @ds.kernel
    def total():
        for i in range(N):
            loss[None] += u[STEPS, i]

    @ds.kernel
    def spoil():
        for i in range(N):
            u[STEPS, i] = 0.1

    for spoils in (False, True):
        with ds.Tape(loss):
            for t in range(STEPS):
                step(t)
            total()
            if spoils:
                spoil()
        expected, v = np.ones(N), start
        for _ in range(STEPS):
            v = np.tanh(2.0 * v)
            expected = expected * 2.0 * (1.0 - v * v)
        np.testing.assert_allclose(u.grad.to_numpy()[0], expected, rtol=1e-12)
        assert computed == ["step"] * spoils


@pytest.mark.parametrize("snapshots", [1, 2])
def test_steps_that_run_again(snapshots):
    x, y, w = field(N), field(N), field(N)
    loss = field()
    start, weight = numbers(N), numbers(N, seed=1)

    @ds.kernel
    def ahead():
        for i in x:
            y[i] = ds.tanh(w[i] * x[i])

    @ds.kernel
    def back():
        for i in x:
            x[i] += 0.5 * y[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    def step(t):
        ahead()
        back()

    x.from_numpy(start)
    w.from_numpy(weight)
    with ds.Tape(loss):
        ds.ad.checkpoint(step, STEPS, state=[x, y], snapshots=snapshots)
        total()

    def final(w):
        v = start.astype(complex)
        for _ in range(STEPS):
            v = v + 0.5 * np.tanh(w * v)
        return v.sum()

    for i in range(N):
        moved = weight.astype(complex)
        moved[i] += 1e-30j
        assert w.grad[i] == pytest.approx(final(moved).imag / 1e-30, rel=1e-10)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    for how in ("save", "refuse"):
        assert trial(stored.make(seed), lambda t: stored.verdict(t, seed, how)) is None  # noqa: B023
