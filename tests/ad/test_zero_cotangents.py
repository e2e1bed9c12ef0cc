"""Adjoints of launches whose results have a gradient of 0 are left out: they would add zeros (docs/adr/0156).

That one was left out shows in the gradient: the monitors here multiply by infinity, and 0 times that is NaN.
"""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.repeat import variant
from diffsim.ad.replay.program import Replay
from diffsim.ad.replay.repeated_pass import RepeatedPass
from tests.fuzz import idle
from tests.fuzz.__main__ import trial

INF = float("inf")
N = 3


class Model:
    """x -> y, whose last row is the loss, and x -> log, which only `read` uses."""

    def __init__(self, steps=2):
        self.steps = steps
        self.x = x = ds.field(ds.f64, shape=N, needs_grad=True)
        self.y = y = ds.field(ds.f64, shape=(steps + 1, N), needs_grad=True)
        self.log = log = ds.field(ds.f64, shape=(steps + 1, N), needs_grad=True)
        self.scale = scale = ds.field(ds.f64, shape=())
        self.loss = loss = ds.field(ds.f64, shape=(), needs_grad=True)
        x.from_numpy(np.linspace(0.5, 1.5, N))
        scale[None] = INF

        @ds.kernel
        def step(t: ds.i32, a: ds.f64):
            for i in x:
                y[t + 1, i] = a * x[i] ** 2 + y[t, i]

        @ds.kernel
        def monitor(t: ds.i32, a: ds.f64):
            for i in x:
                log[t, i] = scale[None] * a * x[i] ** 2

        @ds.kernel
        def measure():
            for i in x:
                loss[None] += y[steps, i]

        @ds.kernel
        def read(t: ds.i32):
            for i in x:
                loss[None] += log[t, i]

        self.step, self.monitor, self.measure, self.read = step, monitor, measure, read

    def run(self, a=1.0):
        for t in range(self.steps):
            self.step(t, a)
            self.monitor(t, a)
        self.measure()

    def live(self, a=1.0):
        return pytest.approx(2 * a * self.steps * self.x.to_numpy())

    def of_log(self, seeds):
        """The gradient by a seed for each row of `log`."""
        return pytest.approx(2 * self.scale[None] * self.x.to_numpy() * sum(seeds))

    def gradient(self):
        """The gradient of x, which is set to 0."""
        found = self.x.grad.to_numpy()
        self.x.grad.fill(0)
        return found


@pytest.fixture
def native(cpu, quick_code, monkeypatch):
    """Whether each pass that has a program was a native one; three launches are enough for one."""
    monkeypatch.setattr(variant, "FEW", 3)
    found, run = [], RepeatedPass.run
    monkeypatch.setattr(RepeatedPass, "run", lambda *given: found.append(run(*given)) or found[-1])
    return found


def test_what_nothing_reads(cpu, quick_code):
    m = Model()
    with ds.Tape(m.loss):
        m.run()
    assert m.gradient() == m.live()
    assert not m.log.grad.versions.dirty


@pytest.mark.host
def test_a_native_pass_lacks_it(native):
    """Numbers that are written into the program go to the launches that it has."""
    m = Model()
    for a in (1.0, 1.0, 1.0, 0.5, 2.0, 2.0):
        with ds.Tape(m.loss):
            m.run(a)
        assert m.gradient() == m.live(a)
    assert native == [True] * 3


@pytest.mark.host
def test_a_native_pass_of_nothing(native):
    """No gradient reaches any launch but the last."""
    m = Model()
    for _ in range(5):
        with ds.Tape(m.loss):
            m.monitor(0, 1.0)
            m.monitor(1, 1.0)
            for t in range(4):
                m.monitor(t % 2, 1.0)
            m.measure()
        assert not m.gradient().any()
    assert True in native


@pytest.mark.host
def test_arrays_as_arguments(native):
    """Which gradients are 0 is asked of the arrays of each launch."""
    x, y, z, loss = (ds.ndarray(ds.f64, N, needs_grad=True) for _ in range(4))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def square(a: ds.types.ndarray(), b: ds.types.ndarray(), scale: ds.f64):
        for i in a:
            b[i] = scale * a[i] ** 2

    @ds.kernel
    def add_up(a: ds.types.ndarray()):
        for i in a:
            loss[None] += a[i]

    x.fill(1.5)
    for k in range(8):
        used, unused = (y, z) if k % 4 < 2 else (z, y)
        with ds.Tape(loss):
            square(x, used, 1.0)
            square(x, unused, INF)
            add_up(used)
        assert x.grad.to_numpy() == pytest.approx(3.0)
    assert True in native


# ---- it only looks so


def test_what_is_stored_beside_it(cpu, quick_code):
    """Any gradient that is not 0 is enough, whichever store comes first."""
    x, loss = (ds.field(ds.f64, shape=shape, needs_grad=True) for shape in (N, ()))
    some = [ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(3)]
    one, two, three = some

    @ds.kernel
    def store():
        for i in x:
            one[i] = 2.0 * x[i]
            two[i] = 3.0 * x[i]
            three[i] = 5.0 * x[i]

    for y, slope in zip(some, (2.0, 3.0, 5.0), strict=True):

        @ds.kernel
        def add_up():
            for i in x:
                loss[None] += y[i]  # noqa: B023 - compiled in this turn

        with ds.Tape(loss):
            store()
            add_up()
        assert x.grad.to_numpy() == pytest.approx(slope)


def test_a_later_reader_of_one_row(cpu, quick_code):
    m = Model()
    m.scale[None] = 3.0
    with ds.Tape(m.loss):
        m.run()
        m.read(1)
    assert m.gradient() == pytest.approx(2 * (m.steps + 3.0) * m.x.to_numpy())


def test_seeds_of_the_user(cpu, quick_code):
    """One pass from the loss, then one from what no launch reads, and back."""
    m = Model()
    seed = np.outer([0.5, -2.0, 0.0], np.ones(N))
    for scale in (INF, 3.0, INF, 3.0):
        m.scale[None] = scale
        with ds.Tape() as tape:
            m.run()
        tape.backward(m.loss)
        assert m.gradient() == m.live()
        tape.backward(grads={m.log: seed})
        found = m.gradient()
        assert np.isnan(found).all() if scale == INF else found == m.of_log([0.5, -2.0])


def test_seeds_of_a_replay(cpu, quick_code):
    """Its program takes gradients for 0 that a later pass starts from."""
    m = Model()
    with ds.Tape() as tape:
        m.run()
    seed = np.outer([0.5, -2.0, 0.0], np.ones(N))
    for k in range(4):
        m.scale[None] = INF
        m.x.fill(1.0 + k)
        tape.replay()
        tape.backward(m.loss)
        first = m.gradient()
        # Once it was not 0, the launch has a place in the program: that one is for all passes.
        assert first == m.live() if k == 0 else np.isnan(first).all()
        m.scale[None] = 3.0
        tape.replay()
        tape.backward(grads={m.log: seed})
        assert m.gradient() == m.of_log([0.5, -2.0])
        tape.backward(grads={m.log: seed, m.loss: 1.0})
        assert m.gradient() == pytest.approx((2 * m.steps + 2 * 3.0 * (0.5 - 2.0)) * m.x.to_numpy())


def test_passes_from_two_fields_in_turns(cpu, quick_code, monkeypatch):
    """The program of a replay is made anew until it is right for all passes."""
    made, make = [], Replay._adjoints
    monkeypatch.setattr(Replay, "_adjoints", lambda replay: made.append(make(replay)) or made[-1])
    m = Model()
    m.scale[None] = 3.0
    with ds.Tape() as tape:
        m.run()
    for k in range(4):
        m.x.fill(1.0 + k)
        tape.replay()
        tape.backward(m.loss)
        assert m.gradient() == m.live()
        tape.backward(grads={m.log: np.ones((m.steps + 1, N))})
        assert m.gradient() == m.of_log([1.0, 1.0])
    # From the loss, from the log, and from either: no more.
    assert len(made) == 3


def test_seeds_of_a_tape_in_a_file(cpu, quick_code, tmp_path):
    """Who runs it may start from any gradient."""
    m = Model()
    m.scale[None] = 3.0
    with ds.Tape(m.loss) as tape:
        m.run()
    tape.save(tmp_path / "model.tape")
    loaded = ds.load_tape(tmp_path / "model.tape")
    loaded.replay()
    fields = loaded.fields
    loaded.backward(grads={fields["log"]: np.ones((m.steps + 1, N))})
    assert fields["x"].grad.to_numpy() == m.of_log([1.0, 1.0])


def test_gradients_that_are_left_of_another_pass(cpu, quick_code):
    """They are set aside: the second pass adds what the first one did."""
    m = Model()
    m.scale[None] = 3.0
    with ds.Tape() as tape:
        m.run()
    seed = np.outer([0.5, -2.0, 0.0], np.ones(N))
    tape.backward(grads={m.log: seed})
    m.log.grad.fill(7.0)
    tape.backward(m.loss)
    tape.backward(m.loss)
    assert m.gradient() == pytest.approx((4 * m.steps - 9.0) * m.x.to_numpy())
    assert (m.log.grad.to_numpy() == 7.0).all()


def test_gradients_set_by_hand(cpu, quick_code):
    m = Model()
    m.scale[None] = 3.0
    m.monitor(0, 1.0)
    m.log.grad[0, 1] = 2.0
    m.monitor.grad(0, 1.0)
    assert m.gradient() == pytest.approx([0.0, 2 * 3.0 * 2.0, 0.0])


def test_gradients_that_a_kernel_sets(cpu, quick_code):
    m = Model()
    m.scale[None] = 3.0
    log = m.log

    @ds.kernel
    def seed():
        log.grad[0, 1] += 2.0

    m.monitor(0, 1.0)
    seed()
    m.monitor.grad(0, 1.0)
    assert m.gradient() == pytest.approx([0.0, 2 * 3.0 * 2.0, 0.0])


@pytest.mark.host
def test_gradients_that_others_may_write_to(cpu, quick_code):
    """No write to memory that another library shares is seen."""
    m = Model()
    m.scale[None] = 3.0
    shared = np.from_dlpack(m.log.grad)
    m.log.grad.fill(0)
    m.monitor(0, 1.0)
    shared[0, 1] = 2.0
    m.monitor.grad(0, 1.0)
    assert m.gradient() == pytest.approx([0.0, 2 * 3.0 * 2.0, 0.0])


def test_hooks_set_gradients(cpu, quick_code):
    m = Model()
    m.scale[None] = 3.0
    with ds.Tape() as tape:
        m.run()

    @tape.on_backward
    def set_seed(step, grads):
        if step == 2 * m.steps:  # after `measure`
            m.log.grad[1, 0] = 2.0

    tape.backward(m.loss)
    assert m.gradient() == pytest.approx(
        2 * m.steps * m.x.to_numpy() + [2 * 3.0 * 2.0 * m.x[0], 0.0, 0.0]
    )


def test_what_a_kernel_returns(cpu, quick_code):
    """It stores what nothing reads, and its result has a gradient."""
    x = ds.field(ds.f64, shape=N, needs_grad=True)
    log = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def total() -> ds.f64:
        s = ds.f64(0.0)
        for i in range(N):
            s += x[i] ** 2
        log[None] = s
        return s

    x.fill(1.5)
    with ds.Tape() as tape:
        loss = 2.0 * total()
    tape.backward(loss)
    assert x.grad.to_numpy() == pytest.approx(6.0)


def test_an_adjoint_of_the_users(cpu, quick_code):
    """It may add something where the gradient of its result is 0."""
    x = ds.field(ds.f64, shape=N, needs_grad=True)
    y = ds.field(ds.f64, shape=N, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.func
    def square(a):
        return a * a

    @ds.func_grad(square)
    def pull_back(a, g):
        ds.adjoint[a] += 2 * a * g + 0.125

    @ds.kernel
    def apply():
        for i in x:
            y[i] = square(x[i])

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i]

    x.fill(1.5)
    with ds.Tape(loss):
        apply()
        measure()
    assert x.grad.to_numpy() == pytest.approx(1.125)


def test_rules_are_kept(cpu, quick_code):
    """What is refused where the gradient counts is refused where it does not."""
    m = Model()
    with pytest.raises(ds.GlobalDataAccessError, match="needs x as it was"), ds.Tape(m.loss):
        m.monitor(0, 1.0)
        m.measure()
        m.x.fill(2.0)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(quick_code, seed):
    text = idle.make(seed)
    for way in idle.WAYS:
        assert trial(text, lambda text, way=way: idle.verdict(text, seed, way)) is None
    ds.reset()


def test_random_programs_reach_it(quick_code):
    before = dict(idle.reached)
    for way in idle.WAYS:
        text = idle.make(1)
        idle.verdict(text, 1, way)
    ds.reset()
    assert sum(idle.reached.values()) > sum(before.values()) + 4
