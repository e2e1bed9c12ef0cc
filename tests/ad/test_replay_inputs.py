"""`tape.replay(rate=0.1)`: arguments that differ from replay to replay."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AutodiffError, KernelTypeError

STEPS, N = 6, 5


class Decay:
    """x[t+1] = x[t] - dt * x[t]^2 * pull[0] in place of time, and its tape."""

    def __init__(self, **options):
        self.x = ds.field(ds.f64, shape=(STEPS + 1, N), needs_grad=True)
        self.y = ds.field(ds.f64, shape=N, needs_grad=True)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        x, y, loss = self.x, self.y, self.loss

        @ds.kernel
        def step(t: ds.i32, dt: ds.f64):
            for i in range(N):
                x[t + 1, i] = x[t, i] - dt * x[t, i] ** 2

        @ds.kernel
        def measure(pull: ds.types.vector(2, ds.f64), dt: ds.f64):
            for i in range(N):
                y[i] += dt * pull[0] * x[STEPS, i]
            for i in range(N):
                loss[None] += y[i] * pull[1]

        self.step, self.measure = step, measure
        for i in range(N):
            x[0, i] = 0.1 * (i + 1)
        self.tape = ds.Tape(loss, in_place="save", **options)

    def run(self, dt=0.1, pull=(1.0, 2.0)):
        for t in range(STEPS):
            self.step(t, dt)
        self.measure(pull, dt)

    def results(self):
        return [self.loss[None], self.x.grad.to_numpy(), self.y.to_numpy()]

    def anew(self, dt, pull):
        self.y.fill(0)
        with ds.Tape(self.loss, in_place="save"):
            self.run(dt, pull)
        return self.results()


@pytest.fixture
def decay(cpu):
    made = Decay()
    with made.tape:
        made.run()
    return made


def check(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_values_are_those_of_a_new_recording(decay):
    for dt, pull in [(0.3, (1.0, 2.0)), (0.05, (-1.0, 0.5)), (0.3, (2.0, 1.0))]:
        decay.y.fill(0)
        decay.tape.replay(dt=dt, pull=pull)
        decay.tape.backward()
        check(decay.results(), decay.anew(dt, pull))


def test_what_is_not_given_is_as_recorded(decay):
    decay.y.fill(0)
    decay.tape.replay(dt=0.7)
    decay.y.fill(0)
    decay.tape.replay(pull=[3.0, 1.0])
    decay.tape.backward()
    check(decay.results(), decay.anew(0.1, (3.0, 1.0)))


def test_against_differences(decay):
    def loss(dt):
        decay.y.fill(0)
        decay.tape.replay(dt=dt)
        return decay.loss[None]

    start = decay.x.to_numpy()
    loss(0.4)
    decay.tape.backward()
    found, h = decay.x.grad.to_numpy()[0], 1e-6
    for i in range(N):
        moved = []
        for sign in (1, -1):
            decay.x[0, i] = start[0, i] + sign * h
            moved.append(loss(0.4))
        decay.x[0, i] = start[0, i]
        assert found[i] == pytest.approx((moved[0] - moved[1]) / (2 * h), rel=1e-7)


def test_hooks_and_retained_gradients_see_the_new_number(cpu):
    decay = Decay(retain_grad=True)
    seen = []
    decay.tape.on_backward(lambda step, grads: seen.append(step))
    with decay.tape:
        decay.run()
    decay.y.fill(0)
    decay.tape.replay(dt=0.4)
    decay.tape.backward()
    found = decay.x.grad.to_numpy()[0]
    assert len(seen) == 2 * (STEPS + 1)
    decay.y.fill(0)
    with ds.Tape(decay.loss, in_place="save"):
        decay.run(0.4)
    np.testing.assert_allclose(found, decay.x.grad.to_numpy()[0], rtol=1e-13)


def test_a_new_recording_has_its_own_numbers(decay):
    decay.y.fill(0)
    decay.tape.replay(dt=0.7)
    decay.y.fill(0)
    with decay.tape:
        decay.run(0.2)
    check(decay.results(), decay.anew(0.2, (1.0, 2.0)))
    decay.y.fill(0)
    decay.tape.replay()
    decay.tape.backward()
    check(decay.results(), decay.anew(0.2, (1.0, 2.0)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"rate": 0.1},
            "no kernel that this tape launched has an argument rate.*\n(.*\n)*.*dt, pull",
        ),
        ({"t": 3}, "t of step is no float"),
        ({"dt": "fast"}, "dt of tape.replay is an f64"),
        ({"pull": [1.0, 2.0, 3.0]}, "pull of tape.replay"),
    ],
)
def test_refused(decay, arguments, message):
    before = decay.results()
    error = KernelTypeError if "tape.replay" in message else AutodiffError
    with pytest.raises(error, match=message):
        decay.tape.replay(**arguments)
    check(decay.results(), before)


def test_several_values_have_no_common_one(cpu):
    decay = Decay()
    with decay.tape:
        for t in range(STEPS):
            decay.step(t, 0.1 * t)
        decay.measure([1.0, 2.0], 0.1)
    with pytest.raises(
        AutodiffError, match=r"dt has several values on this tape: 0\.0 in step, 0\.1 in"
    ):
        decay.tape.replay(dt=0.3)


def test_a_field_in_place_of_the_number_is_what_it_holds(cpu):
    decay = Decay()
    dt = ds.field(ds.f64, shape=(), needs_grad=True)
    dt[None] = 0.1
    with decay.tape:
        decay.run(dt)
    decay.y.fill(0)
    dt[None] = 0.25
    decay.tape.replay()
    decay.tape.backward()
    check(decay.results(), decay.anew(0.25, (1.0, 2.0)))
    with pytest.raises(AutodiffError, match="dt of step was a field or an array"):
        decay.tape.replay(dt=0.3)
