"""Checkpointed rollouts: the same gradient as a run that stores everything, in bounded memory."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("quick_code")

DT = 0.05


class Pendulums:
    """Pendulums with friction and random kicks; in place, or with all times stored."""

    def __init__(self, n, steps, dtype=ds.f64):
        self.n, self.steps = n, steps
        self.q, self.p = (ds.field(dtype, shape=n, needs_grad=True) for _ in range(2))
        self.push = ds.field(dtype, shape=n, needs_grad=True)
        self.friction = ds.field(dtype, shape=(), needs_grad=True)
        self.loss = ds.field(dtype, shape=(), needs_grad=True)
        self.all_q, self.all_p = (
            ds.field(dtype, shape=(steps + 1, n), needs_grad=True) for _ in range(2)
        )

        @ds.kernel
        def force():
            for i in self.q:
                self.push[i] = -ds.sin(self.q[i]) + 0.1 * ds.random(dtype)

        @ds.kernel
        def kick():
            for i in self.q:
                self.p[i] = (self.p[i] + DT * self.push[i]) * (1.0 - DT * self.friction[None])

        @ds.kernel
        def drift():
            for i in self.q:
                self.q[i] += DT * self.p[i]

        @ds.kernel
        def cost():
            for i in self.q:
                self.loss[None] += self.q[i] ** 2 * DT

        @ds.kernel
        def stored(t: ds.i32):
            for i in self.q:
                push = -ds.sin(self.all_q[t, i])
                p = (self.all_p[t, i] + DT * push) * (1.0 - DT * self.friction[None])
                self.all_p[t + 1, i] = p
                self.all_q[t + 1, i] = self.all_q[t, i] + DT * p

        @ds.kernel
        def stored_cost(t: ds.i32):
            for i in self.q:
                self.loss[None] += self.all_q[t, i] ** 2 * DT

        self.kernels = force, kick, drift, cost, stored, stored_cost

    def start(self):
        self.q.from_numpy(np.linspace(0.5, 2.0, self.n))
        self.p.from_numpy(np.linspace(-1.0, 1.0, self.n))
        self.friction[None] = 0.3


def without_noise(model):
    """The step of `stored`, in place: no random numbers."""

    @ds.kernel
    def force():
        for i in model.q:
            model.push[i] = -ds.sin(model.q[i])

    _, kick, drift, cost, _, _ = model.kernels

    def step(t):
        force()
        kick()
        drift()
        cost()

    return step


@pytest.mark.parametrize("snapshots", [1, 2, 3, 7, 40, None])
def test_equal_to_storing_everything(cpu, snapshots):
    """Bit for bit: the same arithmetic in the same order, once in place and once by time."""
    model = Pendulums(5, 40)
    model.start()
    model.all_q.from_numpy(np.vstack([model.q.to_numpy(), np.zeros((40, 5))]))
    model.all_p.from_numpy(np.vstack([model.p.to_numpy(), np.zeros((40, 5))]))
    with ds.Tape(model.loss):
        for t in range(40):
            model.kernels[4](t)
            model.kernels[5](t + 1)
    want = [f.grad.to_numpy() for f in (model.all_q, model.all_p)]
    loss, slope = model.loss[None], model.friction.grad[None]
    end = model.all_q.to_numpy()[-1]

    with ds.Tape(model.loss):
        stats = ds.ad.checkpoint(without_noise(model), 40, [model.q, model.p], snapshots=snapshots)
    assert (model.q.grad.to_numpy() == want[0][0]).all()
    assert (model.p.grad.to_numpy() == want[1][0]).all()
    assert model.friction.grad[None] == pytest.approx(slope, rel=1e-14)
    assert model.loss[None] == pytest.approx(loss, rel=1e-15)
    assert (model.q.to_numpy() == end).all()
    assert stats.snapshots <= (snapshots or 7)
    assert stats.snapshot_bytes == 2 * 5 * 8


def test_random_numbers_are_the_same_again(cpu):
    """Against central differences of the whole rollout, with its random kicks."""
    model = Pendulums(3, 30)
    force, kick, drift, cost, _, _ = model.kernels

    def step(t):
        force()
        kick()
        drift()
        cost()

    def rollout(friction):
        ds.init(default_fp=ds.f64, random_seed=4)
        model.start()
        model.friction[None] = friction
        model.loss[None] = 0.0
        for t in range(30):
            step(t)
        return model.loss[None]

    want = (rollout(0.3 + 1e-5) - rollout(0.3 - 1e-5)) / 2e-5
    ds.init(default_fp=ds.f64, random_seed=4)
    model.start()
    with ds.Tape(model.loss):
        ds.ad.checkpoint(step, 30, [model.q, model.p], snapshots=3)
    assert model.friction.grad[None] == pytest.approx(want, rel=1e-7)


def test_launches_before_and_after_it(cpu):
    model = Pendulums(4, 10)
    scale = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def begin():
        for i in model.q:
            model.q[i] = scale[None] * ds.cast(i + 1, ds.f64)
            model.p[i] = 0.0

    @ds.kernel
    def finish():
        for i in model.q:
            model.loss[None] += model.p[i] ** 2

    step = without_noise(model)

    def run():
        model.start()
        begin()
        ds.ad.checkpoint(step, 10, [model.q, model.p], snapshots=2)
        finish()

    losses = []
    for value in (0.4 + 1e-6, 0.4 - 1e-6):
        scale[None] = value
        model.loss[None] = 0.0
        run()
        losses.append(model.loss[None])
    scale[None] = 0.4
    with ds.Tape(model.loss):
        run()
    assert scale.grad[None] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-7)
    tape = ds.Tape()
    with tape:
        run()
    scale.grad.fill(0)
    for _ in range(2):  # the state is as it was: once more
        tape.backward(model.loss)
    assert scale.grad[None] == pytest.approx((losses[0] - losses[1]) / 1e-6, rel=1e-7)


@pytest.mark.parametrize(("steps", "snapshots"), [(1, 1), (9, 1), (100, 5), (1000, 8), (4000, 64)])
def test_how_often_steps_are_run(cpu, steps, snapshots):
    """With s snapshots, r runs of each step suffice where (s + r)! / (s! r!) reaches the steps."""
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        x[None] = x[None] * 0.999 + 0.001 * ds.sin(x[None])

    @ds.kernel
    def end():
        loss[None] = x[None]

    x[None] = 1.0
    value, slope = 1.0, 1.0
    for _ in range(steps):
        slope *= 0.999 + 0.001 * math.cos(value)
        value = value * 0.999 + 0.001 * math.sin(value)
    with ds.Tape(loss):
        stats = ds.ad.checkpoint(step, steps, [x], snapshots=snapshots)
        end()
    assert x.grad[None] == pytest.approx(slope, rel=1e-12)
    assert x[None] == pytest.approx(value, rel=1e-12)
    runs = 0
    while math.comb(snapshots + runs, runs) < steps:
        runs += 1
    assert stats.snapshots <= snapshots
    assert stats.steps_run <= (runs + 2) * steps
    # the final x and loss, what one step saves, notes of the steps
    assert stats.peak_bytes <= (snapshots + 3) * 8 + 16 * steps


@pytest.mark.parametrize("schedule", ["binomial", "equidistant"])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_schedules_give_the_same_bits(cpu, schedule, steps):
    model = Pendulums(5, steps)
    found = []
    for options in (
        {"snapshots": steps},
        {"schedule": schedule},
        {"schedule": schedule, "snapshots": 3},
    ):
        model.start()
        with ds.Tape(model.loss):
            stats = ds.ad.checkpoint(without_noise(model), steps, [model.q, model.p], **options)
        found.append([f.grad.to_numpy() for f in (model.q, model.p, model.friction)])
        if schedule == "equidistant" and "schedule" in options:
            assert stats.steps_run <= 2 * steps
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert (a == b).all()


@pytest.mark.parametrize("schedule", ["binomial", "equidistant"])
def test_memory_stays_within_the_budget(cpu, schedule, request):
    """Counted by Python itself, which knows of NumPy's memory."""
    if request.config.getoption("--emulated-gpu"):
        pytest.skip("the memory of an emulated GPU is Python's")
    n, steps, budget = 2000, 300, 900_000
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    work = ds.field(ds.f64, shape=n, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def bend():
        for i in x:
            work[i] = ds.sin(x[i])

    @ds.kernel
    def move():
        for i in x:
            x[i] += 0.01 * work[i] * work[i]

    @ds.kernel
    def end():
        for i in x:
            loss[None] += x[i] ** 2

    def step(t):
        bend()
        move()

    start = np.linspace(0, 1, n)
    for k in range(2):  # compile first
        x.from_numpy(start)
        tracemalloc.start()
        with ds.Tape(loss):
            stats = ds.ad.checkpoint(step, steps, [x], schedule=schedule, memory=budget)
            end()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert budget / 2 < stats.peak_bytes <= budget
    assert peak < stats.peak_bytes + 100_000  # launches on a tape, and what is made in between
    y, slope = start.copy(), np.ones(n)
    for _ in range(steps):
        slope *= 1 + 0.02 * np.sin(y) * np.cos(y)
        y += 0.01 * np.sin(y) ** 2
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * y * slope, rtol=1e-12)


def test_a_segment_that_saves_more_than_the_first_step(cpu):
    """Later steps overwrite more: the tape of a segment is divided, or the budget refused."""
    x = ds.field(ds.f64, shape=1000, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def bend():
        for i in x:
            x[i] = ds.sin(x[i])

    @ds.kernel
    def end():
        for i in x:
            loss[None] += x[i]

    def step(t):
        for _ in range(1 + t // 10):
            bend()

    x.fill(1.0)
    with ds.Tape(loss):
        ds.ad.checkpoint(step, 30, [x], snapshots=30)
        end()
    want = x.grad.to_numpy()
    x.fill(1.0)
    with ds.Tape(loss):
        stats = ds.ad.checkpoint(step, 30, [x], schedule="equidistant", memory=140_000)
        end()
    assert stats.peak_bytes <= 140_000
    assert (x.grad.to_numpy() == want).all()
    x.fill(1.0)
    with pytest.raises(ds.AutodiffError, match="more than the first step did"):
        with ds.Tape(loss):
            ds.ad.checkpoint(step, 200, [x], memory=60_000)
            end()


def test_rollouts_inside_of_rollouts(cpu):
    """Ten steps of four substeps each, against the closed recursion; in place, with a parameter."""
    x = ds.field(ds.f64, shape=3, needs_grad=True)
    push = ds.field(ds.f64, shape=3, needs_grad=True)
    k = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def force(t: ds.i32):
        for i in x:
            push[i] = k[None] * ds.cos(x[i]) + 0.01 * ds.cast(t, ds.f64)

    @ds.kernel
    def substep():
        for i in x:
            x[i] += 0.1 * push[i] * ds.sin(x[i])

    def inner(s):
        substep()

    def outer(t):
        force(t)
        ds.ad.checkpoint(inner, 4, [x], snapshots=2)
        loss_now()

    @ds.kernel
    def loss_now():
        for i in x:
            loss[None] += x[i] ** 2

    start = np.array([0.3, 0.8, 1.3])

    def reference(start, k):
        y, total = start.copy(), 0.0
        for t in range(10):
            f = k * np.cos(y) + 0.01 * t
            for _ in range(4):
                y = y + 0.1 * f * np.sin(y)
            total = total + (y**2).sum()
        return total

    k[None] = 0.7
    for options in ({"snapshots": 3}, {"schedule": "equidistant"}, {"memory": 2000}):
        x.from_numpy(start)
        with ds.Tape(loss):
            ds.ad.checkpoint(outer, 10, [x], **options)
        assert loss[None] == pytest.approx(reference(start, 0.7), rel=1e-13)
        h = 1e-6
        slope = (reference(start, 0.7 + h) - reference(start, 0.7 - h)) / (2 * h)
        assert k.grad[None] == pytest.approx(slope, rel=1e-7)
        for i in range(3):
            d = np.eye(3)[i] * h
            slope = (reference(start + d, 0.7) - reference(start - d, 0.7)) / (2 * h)
            assert x.grad[i] == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("way", ["kernel", "python", "copy"])
def test_an_input_that_changes_after_the_rollout(cpu, way):
    """The steps are run again in the backward pass: what they read must be there, or be put back."""
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    gain = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    other = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def grow():
        x[None] = gain[None] * ds.sin(x[None])

    @ds.kernel
    def change():
        gain[None] = 5.0

    @ds.kernel
    def end():
        loss[None] = x[None]

    def run(how):
        x[None], gain[None], other[None] = 0.7, 1.2, 5.0
        with ds.Tape(loss, in_place=how):
            for _ in range(2):
                ds.ad.checkpoint(lambda t: grow(), 4, [x], snapshots=2)
                if way == "kernel":
                    change()
                elif way == "python":
                    gain[None] = 5.0
                else:
                    gain.copy_from(other)
            end()

    with pytest.raises(ds.GlobalDataAccessError, match="rollout read gain") as caught:
        run("refuse")
    assert "x[None] = gain[None] * ds.sin(x[None])" in str(caught.value)
    run("save")
    y, slope = 0.7, 1.0
    for g in (1.2,) * 4 + (5.0,) * 4:
        slope *= g * math.cos(y)
        y = g * math.sin(y)
    assert loss[None] == pytest.approx(y, rel=1e-14)
    assert x.grad[None] == pytest.approx(slope, rel=1e-12)


def test_functions_with_gradients_of_their_own_inside(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    calls = []

    @ds.kernel
    def square():
        x[None] = x[None] * x[None]

    @ds.ad.grad_replaced
    def forward():
        square()

    @ds.ad.grad_for(forward)
    def backward():
        calls.append(1)
        x.grad[None] *= 3.0  # on purpose not the derivative

    @ds.kernel
    def end():
        loss[None] = x[None]

    x[None] = 1.01
    with ds.Tape(loss):
        ds.ad.checkpoint(lambda t: forward(), 6, [x], snapshots=2)
        end()
    assert x.grad[None] == pytest.approx(3.0**6)
    assert len(calls) == 6


def test_no_gradient_flows_through_a_rollout_in_no_grad(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def double():
        x[None] = 2.0 * x[None]

    @ds.kernel
    def end():
        loss[None] = x[None]

    x[None] = 1.0
    with ds.Tape(loss):
        with ds.ad.no_grad():
            ds.ad.checkpoint(lambda t: double(), 3, [x])
        end()
    assert (loss[None], x.grad[None]) == (8.0, 0.0)


def test_bad_arguments(cpu):
    x = ds.field(ds.f64, shape=1000, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    def step(t):
        pass

    with pytest.raises(ds.ArgumentError, match="a snapshot of the state takes 8000 bytes"):
        with ds.Tape(loss):
            ds.ad.checkpoint(step, 10, [x], memory=16_159)
    with ds.Tape():
        ds.ad.checkpoint(step, 10, [x], memory=16_160)
    for arguments, words in (
        ((None, 10, [x]), "the step is a function"),
        ((step, -1, [x]), "n_steps is a whole number"),
        ((step, 10, []), "state is a list of fields"),
        ((step, 10, [3]), "state is a list of fields"),
    ):
        with pytest.raises(ds.ArgumentError, match=words):
            ds.ad.checkpoint(*arguments)
    with pytest.raises(ds.OptionError, match="snapshots and memory are both given"):
        ds.ad.checkpoint(step, 10, [x], memory=10**6, snapshots=3)
    for name in ("memory", "snapshots"):
        for value in (0, -1, 2.5, True):
            with pytest.raises(ds.ArgumentError, match=f"{name} is a whole number"):
                ds.ad.checkpoint(step, 10, [x], **{name: value})
    with pytest.raises(ds.OptionError, match="'best' is not a schedule"):
        ds.ad.checkpoint(step, 10, [x], schedule="best")


def test_a_field_missing_from_the_state(cpu):
    model = Pendulums(4, 10)
    model.start()
    step = without_noise(model)
    with pytest.raises(ds.AutodiffError, match="p may carry something") as caught:
        with ds.Tape(model.loss):
            ds.ad.checkpoint(step, 10, [model.q])
    assert "self.p[i] = (self.p[i]" in str(caught.value)
    with ds.Tape(model.loss):  # no tape was left behind
        ds.ad.checkpoint(step, 10, [model.q, model.p])


@pytest.mark.parametrize("how", ["number", "only element", "row"])
@pytest.mark.parametrize("snapshots", [1, 3, 9])
def test_what_python_sets_in_each_step(cpu, snapshots, how):
    """A number, or a row, that each step sets before it reads it is no state."""
    shape, at = {"number": ((), None), "only element": ((1,), 0), "row": ((9,), ...)}[how]
    x, p, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
    c = ds.field(ds.f64, shape=shape, needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        x[None] = ds.sin(x[None]) * c[t] + p[None]

    @ds.kernel
    def step_number():
        x[None] = ds.sin(x[None]) * c[None] + p[None]

    @ds.kernel
    def measure():
        loss[None] += x[None] ** 2

    def run(t):
        c[t if at is ... else at] = 0.5 + 0.1 * t
        step_number() if at is None else step(0 if at == 0 else t)
        measure()

    def value(x0, p0):
        total = 0.0
        for t in range(9):
            x0 = math.sin(x0) * (0.5 + 0.1 * t) + p0
            total += x0**2
        return total

    x[None], p[None] = 0.7, 0.2
    with ds.Tape(loss):
        ds.ad.checkpoint(run, 9, [x], snapshots=snapshots)
    h = 1e-6
    assert loss[None] == pytest.approx(value(0.7, 0.2), rel=1e-14)
    slope = (value(0.7 + h, 0.2) - value(0.7 - h, 0.2)) / (2 * h)
    assert x.grad[None] == pytest.approx(slope, rel=1e-7)
    slope = (value(0.7, 0.2 + h) - value(0.7, 0.2 - h)) / (2 * h)
    assert p.grad[None] == pytest.approx(slope, rel=1e-7)


def test_a_row_that_another_step_sets_is_state(cpu):
    x, c, loss = (ds.field(ds.f64, shape=n, needs_grad=True) for n in ((), 9, ()))

    @ds.kernel
    def step(t: ds.i32):
        loss[None] += x[None] * c[t]

    def run(t):
        c[t + 1] = 1.0
        step(t)

    with pytest.raises(ds.AutodiffError, match="c may carry something"), ds.Tape(loss):
        ds.ad.checkpoint(run, 5, [x])


@pytest.mark.parametrize(("steps", "last"), [(1, 0), (4, 3), (4, 1)])
@pytest.mark.parametrize("way", ["kernel", "python", "copy"])
def test_an_input_that_a_step_changes_after_it_was_read(cpu, way, steps, last):
    """Run again, the steps before it would read the new value."""
    x, gain, loss, other = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(4))

    @ds.kernel
    def grow():
        x[None] = gain[None] * ds.sin(x[None])

    @ds.kernel
    def change():
        gain[None] = 5.0

    def step(t):
        grow()
        if t == last:
            {
                "kernel": change,
                "python": lambda: gain.fill(5.0),
                "copy": lambda: gain.copy_from(other),
            }[way]()

    with pytest.raises(ds.AutodiffError, match="gain may carry something"), ds.Tape(loss):
        ds.ad.checkpoint(step, steps, [x], snapshots=2)


def test_progress(cpu, capsys):
    model = Pendulums(2, 5)
    model.start()
    with ds.Tape(model.loss):
        ds.ad.checkpoint(without_noise(model), 5, [model.q, model.p], progress=True)
    assert "] 5/5" in capsys.readouterr().err


@pytest.mark.parametrize("snapshots", [1, 2, 8])
@pytest.mark.parametrize("kind", ["sum", "counter", "argument", "write"])
def test_a_step_that_is_another_one_when_run_again(cpu, snapshots, kind):
    """Python code that looks at something outside the state: noticed, not wrong silently."""
    x, c, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
    offset = ds.field(ds.f64, shape=())
    calls = []

    @ds.kernel
    def grow(by: ds.f64):
        x[None] = x[None] * c[None] * by + offset[None]

    @ds.kernel
    def add():
        loss[None] += x[None]

    def step(t):
        calls.append(t)
        offset.fill(0.01 * len(calls) if kind == "write" else 0.0)
        by = 1.0 + 0.1 * len(calls) if kind == "argument" else 0.9
        if (kind == "sum" and loss[None] > 3.0) or (kind == "counter" and len(calls) > 6):
            add()
        grow(by)
        add()

    x[None], c[None] = 1.0, 1.3
    with pytest.raises(ds.AutodiffError, match="did something else when it was run again"):
        with ds.Tape(loss):
            ds.ad.checkpoint(step, 10, [x], snapshots=snapshots)
            end = x[None]
    assert x[None] == end  # nothing of the program's state is lost


# ---- steps that do something else when they are run again


class Cells:
    """One step takes the state from one field into the other, times a weight."""

    def __init__(self):
        self.a, self.b, self.loss = (ds.field(ds.f64, n, needs_grad=True) for n in (3, 3, ()))
        self.w = ds.field(ds.f64, (), needs_grad=True)
        self.here, self.there = self.a, self.b
        self.rule = double
        self.a.fill(1.0)
        self.w[None] = 1.3

    @ds.kernel
    def move(self, to: ds.template(), of: ds.template(), by: ds.template()):
        for i in of:
            to[i] = of[i] * self.w[None] * by

    @ds.kernel
    def swap(self):
        for i in self.here:
            self.there[i] = self.here[i] * self.w[None]

    @ds.kernel
    def ruled(self, k: ds.i32):
        for i in self.a:
            self.a[i] = self.rule(self.a[i]) * self.w[None] * k

    @ds.kernel
    def measure(self):
        for i in self.a:
            self.loss[None] += self.a[i] + 3 * self.b[i]


@ds.func
def double(v):
    return 2 * v


@ds.func
def triple(v):
    return 3 * v


def with_other_fields(s, k):
    s.move(*((s.b, s.a) if k % 2 else (s.a, s.b)), 1.0)


def with_swapped_attributes(s, k):
    s.here, s.there = (s.a, s.b) if k % 2 else (s.b, s.a)
    s.swap()


def with_another_constant(s, k):
    s.move(s.b, s.a, float(1 + k % 2))
    s.move(s.a, s.b, 1.0)


def with_another_func(s, k):
    s.rule = (double, triple)[k % 2]
    s.ruled(1)


def with_numbers_of_one_hash(s, k):
    assert hash(-1) == hash(-2)
    s.ruled(-1 if k % 2 else -2)


STEPS = [
    with_other_fields,
    with_swapped_attributes,
    with_another_constant,
    with_another_func,
    with_numbers_of_one_hash,
]


@pytest.mark.parametrize("step", STEPS)
def test_a_counter_that_python_holds_is_noticed(cpu, step):
    """The launches differ in what they were compiled for, or in an argument, alone."""
    ds.init(default_fp=ds.f64)

    def gradient(checkpointed, count):
        s = Cells()

        def one(t):
            s.count = s.count + 1 if count else t + 1
            step(s, s.count)

        s.count = 0
        with ds.Tape(s.loss, in_place="refuse" if checkpointed else "save"):
            if checkpointed:
                ds.ad.checkpoint(one, 5, state=[s.a, s.b], snapshots=2)
            else:
                for t in range(5):
                    one(t)
            s.measure()
        return s.w.grad[None]

    np.testing.assert_allclose(gradient(True, False), gradient(False, True), rtol=1e-12)
    with pytest.raises(ds.AutodiffError, match="did something else"):
        gradient(True, True)


def test_an_argument_that_is_no_number_is_the_same_again(cpu):
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))

    @ds.kernel
    def step(c: ds.f64):
        x[None] = 1.5 * x[None] + ds.select(c == c, 1.0, 2.0)

    @ds.kernel
    def measure():
        loss[None] += x[None]

    with ds.Tape(loss):
        ds.ad.checkpoint(lambda t: step(math.nan), 5, state=[x], snapshots=2)
        measure()
    np.testing.assert_allclose(x.grad[None], 1.5**5)


def test_numbers_kept_in_python_fields_by_steps(cpu):
    """A step may note in a field without gradient what it read of one that has one."""
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))
    seen = ds.field(ds.f64, ())

    @ds.kernel
    def grow():
        x[None] = 1.5 * x[None]

    @ds.kernel
    def measure():
        loss[None] += x[None]

    def step(t):
        grow()
        seen[None] = x[None]

    x[None] = 1.0
    with ds.Tape(loss):
        ds.ad.checkpoint(step, 5, state=[x], snapshots=2)
        measure()
    np.testing.assert_allclose([x.grad[None], seen[None]], [1.5**5, 1.5**5])
