"""Rollouts on the mixed schedule, with `while_`, on disk: gradients of plain tapes, runs as planned."""

from __future__ import annotations

import errno
import gc
import math
import os
from pathlib import Path

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.memory.storage import WHOLE, HostStorage

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


class Oscillator:
    """Two fields of state, one of work, a parameter, a loss that adds up; Python counts the steps."""

    def __init__(self, n=3):
        self.q, self.p, self.push = (ds.field(ds.f64, n, needs_grad=True) for _ in range(3))
        self.k, self.loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))
        self.calls = []
        self.start()

    def start(self):
        self.q.from_numpy(np.linspace(0.5, 1.5, self.q.shape[0]))
        self.p.fill(0.1)
        self.k[None] = 1.3
        self.loss[None] = 0.0
        self.calls.clear()

    @ds.kernel
    def force(self, t: ds.i32):
        for i in self.q:
            self.push[i] = -self.k[None] * ds.sin(self.q[i]) * (1.0 + 0.01 * t)

    @ds.kernel
    def move(self):
        for i in self.q:
            self.p[i] += 0.05 * self.push[i] * ds.cos(self.p[i])
            self.q[i] = self.q[i] + 0.05 * self.p[i] * self.p[i]

    @ds.kernel
    def measure(self):
        for i in self.q:
            self.loss[None] += self.q[i] * self.q[i]

    def step(self, t):
        self.calls.append(t)
        self.force(t)
        self.move()
        self.measure()

    @property
    def gradients(self):
        return [f.grad.to_numpy() for f in (self.q, self.p, self.k)]


def plain(steps):
    """The gradients by a tape that keeps everything."""
    m = Oscillator()
    with ds.Tape(m.loss, in_place="save"):
        for t in range(steps):
            m.step(t)
    return m.gradients, m.loss[None], m.q.to_numpy()


def assert_equal(m, want):
    gradients, loss, end = want
    for a, b in zip(m.gradients, gradients, strict=True):
        np.testing.assert_array_equal(a, b)
    assert m.loss[None] == loss
    np.testing.assert_array_equal(m.q.to_numpy(), end)


WAYS = [
    {"snapshots": 1},
    {"snapshots": 2},
    {"snapshots": 3},
    {"snapshots": 9},
    {"snapshots": 100},
    {"memory": 1500},
    {"memory": 2000},
    {"memory": 5000},
    {"schedule": "binomial", "snapshots": 3},
    {"disk": True, "snapshots": 1},
    {"disk": True, "memory": 1500},
]


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 31])
def test_bits_of_a_plain_tape_and_runs_as_planned(steps):
    want = plain(steps)
    m = Oscillator()
    for way in WAYS:
        for condition in ({}, {"while_": lambda t: t < steps}):
            m.start()
            tape = ds.Tape(m.loss)
            with tape:
                stats = ds.ad.checkpoint(
                    m.step, None if condition else steps, [m.q, m.p], **way, **condition
                )
            assert_equal(m, want)
            assert m.calls[:steps] == list(range(steps))
            assert stats.steps_run == len(m.calls) == stats.planned_steps
            if "memory" in way:
                assert stats.peak_bytes <= way["memory"]
            if way == {"snapshots": 100} and not condition:
                assert len(m.calls) == steps
            if "disk" in way:
                assert len(m.calls) <= 2 * steps
                assert stats.disk_bytes > 0


def test_no_more_runs_than_the_best_known_schedule():
    """Tapes that save as much as a state: each call of the step is counted."""
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))
    calls = []

    @ds.kernel
    def bend():
        x[None] = ds.sin(x[None])

    @ds.kernel
    def end():
        loss[None] = x[None]

    def step(t):
        calls.append(t)
        bend()

    value, slope = 1.0, 1.0
    for _ in range(1000):
        slope *= math.cos(value)
        value = math.sin(value)
    for options, runs in (({}, 2823), ({"schedule": "binomial"}, 3747), ({"disk": True}, 1987)):
        x[None] = 1.0
        calls.clear()
        with ds.Tape(loss):
            stats = ds.ad.checkpoint(step, 1000, [x], snapshots=20, **options)
            end()
        assert x.grad[None] == pytest.approx(slope, rel=1e-12)
        assert len(calls) == runs == stats.planned_steps
        # the final x and loss, the tape at work, notes
        assert stats.peak_bytes <= (20 + 3) * 8 + 16 * 1000


def test_backward_twice_and_changes_in_between():
    """Held tapes of the forward run do not depend on what the fields hold later."""
    gradients, _, _ = plain(12)
    m = Oscillator()
    for way in WAYS:
        m.start()
        for f in (m.q, m.p, m.k, m.push):
            f.grad.fill(0)
        tape = ds.Tape()
        with tape:
            ds.ad.checkpoint(m.step, 12, [m.q, m.p], **way)
        for f in (m.q, m.p, m.push):
            f.fill(9.0)
        for times in (1, 2):
            tape.backward(m.loss)
            for a, b in zip(m.gradients, gradients, strict=True):
                np.testing.assert_allclose(a, times * b, rtol=1e-14)
            assert (m.q.to_numpy() == 9.0).all()
            assert (m.push.to_numpy() == 9.0).all()


@pytest.mark.parametrize("snapshots", [1, 2, 5, 40])
def test_rollouts_of_rollouts_and_given_gradients(snapshots):
    """A gradient written by hand reads what the step left, also where its tape was held meanwhile."""
    x, y, loss = (ds.field(ds.f64, 3, needs_grad=True) for _ in range(3))
    seen = []

    @ds.kernel
    def bend():
        for i in x:
            x[i] = ds.sin(x[i]) + 0.1 * y[i]

    @ds.kernel
    def set_y(t: ds.f64):
        for i in y:
            y[i] = t * x[i]

    @ds.kernel
    def add():
        for i in x:
            loss[0] += x[i] * y[i]

    @ds.ad.grad_replaced
    def given(t):
        set_y(t)

    @ds.ad.grad_for(given)
    def given_grad(t):
        seen.append((t, *y.to_numpy()))
        x.grad.from_numpy(x.grad.to_numpy() + t * y.grad.to_numpy())
        y.grad.fill(0.0)

    def step(t):
        given(0.5 + 0.1 * t)
        ds.ad.checkpoint(lambda s: bend(), 4, [x], snapshots=2)
        add()

    def run(rollout):
        seen.clear()
        x.from_numpy(np.array([0.3, 0.6, 0.9]))
        loss.fill(0.0)
        tape = ds.Tape()
        with tape:
            rollout()
        x.grad.fill(0)
        tape.backward(grads={loss: np.array([1.0, 0.0, 0.0])})
        return x.grad.to_numpy(), [*seen]

    def value(start):
        total = 0.0
        for t in range(8):
            y = (0.5 + 0.1 * t) * start
            for _ in range(4):
                start = np.sin(start) + 0.1 * y
            total += (start * y).sum()
        return total

    got, order = run(lambda: ds.ad.checkpoint(step, 8, [x], snapshots=snapshots))
    start = np.array([0.3, 0.6, 0.9])
    slopes = [(value(start + d) - value(start - d)) / 2e-6 for d in 1e-6 * np.eye(3)]
    np.testing.assert_allclose(got, slopes, rtol=1e-7)
    # what the function saw: y of its own step
    for t, *numbers in order:
        x0 = start
        for s in range(round((t - 0.5) / 0.1) + 1):
            y0 = (0.5 + 0.1 * s) * x0
            for _ in range(4):
                x0 = np.sin(x0) + 0.1 * y0
        np.testing.assert_allclose(numbers, y0, rtol=1e-12)


@pytest.mark.parametrize("memory", [80_000, 110_000, 150_000, 250_000])
@pytest.mark.parametrize("condition", [False, True])
def test_tapes_that_grow(memory, condition):
    """Later steps save more than the first: less is held, and the budget is kept."""
    x, loss = ds.field(ds.f64, 1000, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def bend():
        for i in x:
            x[i] = ds.sin(x[i])

    @ds.kernel
    def end():
        for i in x:
            loss[None] += x[i]

    def step(t):
        for _ in range(1 + t // 8):
            bend()

    x.fill(1.0)
    with ds.Tape(loss):
        stats = ds.ad.checkpoint(
            step,
            None if condition else 30,
            [x],
            memory=memory,
            while_=(lambda t: t < 30) if condition else None,
        )
        end()
    value, slope = 1.0, 1.0
    for t in range(30):
        for _ in range(1 + t // 8):
            slope *= math.cos(value)
            value = math.sin(value)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-12)
    assert stats.peak_bytes <= memory


def test_notes_that_use_up_the_memory():
    m = Oscillator()
    with pytest.raises(ds.ArgumentError, match="memory=900 is too little"), ds.Tape(m.loss):
        ds.ad.checkpoint(m.step, while_=lambda t: True, state=[m.q, m.p], memory=900)


def test_an_unknown_number_of_steps():
    """Newton's method until it has converged, against the derivative of the root."""
    a, x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(3))
    size = ds.field(ds.f64, ())

    @ds.kernel
    def improve():
        x[None] = x[None] - 0.3 * (x[None] - a[None] / x[None])

    @ds.kernel
    def miss():
        size[None] = abs(x[None] * x[None] - a[None])

    @ds.kernel
    def end():
        loss[None] = x[None]

    def far(t):
        miss()
        return size[None] > 1e-13

    def run():
        ds.ad.checkpoint(lambda t: improve(), while_=far, state=[x], snapshots=4)
        end()

    a[None], x[None] = 5.0, 4.0
    run()
    assert loss[None] == pytest.approx(math.sqrt(5.0), rel=1e-12)
    x[None] = 4.0
    with ds.Tape(loss):
        run()
    assert a.grad[None] == pytest.approx(0.5 / math.sqrt(5.0), rel=1e-9)
    a[None], x[None] = 4.0, 2.0
    with ds.Tape(loss):  # no step at all
        run()
    assert (loss[None], x.grad[None], a.grad[None]) == (2.0, 1.0, 0.0)
    calls = []
    x[None] = 4.0
    with ds.Tape(loss):
        ds.ad.checkpoint(
            lambda t: (improve(), calls.append(t)), 7, [x], while_=lambda t: True, snapshots=2
        )
        end()
    assert max(calls) == 6


@pytest.mark.parametrize("way", ["kernel", "python", "copy", "sum"])
def test_a_condition_that_changes_something(way):
    """It is asked once, so what it changes would be missing when steps are run again."""
    m = Oscillator()

    @ds.kernel
    def damp():
        for i in m.p:
            m.p[i] *= 0.9

    def condition(t):
        {
            "kernel": damp,
            "python": lambda: m.p.fill(0.0),
            "copy": lambda: m.p.copy_from(m.q),
            "sum": m.measure,
        }[way]()
        return t < 5

    with pytest.raises(ds.AutodiffError, match="the condition of the checkpointed rollout changes"):
        with ds.Tape(m.loss):
            ds.ad.checkpoint(m.step, while_=condition, state=[m.q, m.p])


def test_a_number_that_the_condition_leaves_to_a_step_is_state():
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))
    c = ds.field(ds.f64, ())

    @ds.kernel
    def grow():
        x[None] = ds.sin(x[None]) * c[None]

    def condition(t):
        c[None] = 1.0 + t
        return t < 4

    with pytest.raises(ds.AutodiffError, match="c may carry something"), ds.Tape(loss):
        ds.ad.checkpoint(lambda t: grow(), while_=condition, state=[x])


# ---- disk


def test_files_are_removed(tmp_path):
    m = Oscillator()
    tape = ds.Tape(m.loss)
    with tape:
        ds.ad.checkpoint(m.step, 20, [m.q, m.p], snapshots=2, disk=tmp_path / "states")
        files = sorted(p.suffix for p in (tmp_path / "states").rglob("*.*"))
    assert files == [".state"] * 9
    # The first state stays for another backward pass.
    assert [p.name for p in tmp_path.rglob("*.state")] == ["0.state"]
    del tape
    gc.collect()
    assert list((tmp_path / "states").iterdir()) == []


def test_files_are_removed_after_an_error(tmp_path):
    m = Oscillator()

    def step(t):
        m.step(t)
        if t == 15:
            raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"), ds.Tape(m.loss):
        ds.ad.checkpoint(step, 20, [m.q, m.p], snapshots=2, disk=tmp_path)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path, monkeypatch):
    m = Oscillator()
    save = np.save

    def full(file, array, **options):
        if "8.part" in file.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(file, array, **options)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(ds.AutodiffError) as caught, ds.Tape(m.loss):
        ds.ad.checkpoint(m.step, 20, [m.q, m.p], snapshots=2, disk=tmp_path)
    text = str(caught.value)
    assert "the state before step 8 cannot be written to" in text
    assert "No space left on device (a state takes 48 bytes, and 192 bytes are there)" in text
    assert "ds.ad.checkpoint(" in text
    assert [p.name for p in tmp_path.rglob("*.part")] == []


def test_a_file_that_is_gone(tmp_path):
    m = Oscillator()
    tape = ds.Tape()
    with tape:
        ds.ad.checkpoint(m.step, 20, [m.q, m.p], snapshots=2, disk=tmp_path)
    end = m.q.to_numpy()
    next(tmp_path.rglob("6.state")).unlink()
    with pytest.raises(ds.AutodiffError, match="the state before step 6 cannot be read back"):
        tape.backward(m.loss)
    np.testing.assert_array_equal(m.q.to_numpy(), end)


def test_arguments_that_do_not_go_together(tmp_path):
    m = Oscillator()
    (tmp_path / "file").write_text("")
    for options, words in (
        ({"n_steps": None}, "n_steps is a whole number"),
        ({"while_": 3}, "while_ is a function of t"),
        ({"while_": lambda t: False, "schedule": "equidistant"}, "while_ leaves it open"),
        ({"disk": True, "schedule": "binomial"}, "go with the mixed schedule"),
        ({"disk": Path(tmp_path / "file")}, "states cannot be written to"),
    ):
        with pytest.raises(ds.ArgumentError, match=words), ds.Tape(m.loss):
            ds.ad.checkpoint(m.step, **{"n_steps": 3, "state": [m.q], **options})


@pytest.mark.parametrize("known", [True, False])
def test_many_steps_in_little_memory_are_run_twice(known):
    """The notes of all steps would take more than the budget: they are on the disk, too."""
    n, memory = 150, 1500
    want = plain(n)
    m = Oscillator()
    with ds.Tape(m.loss):
        condition = None if known else lambda t: t < n
        stats = ds.ad.checkpoint(
            m.step, n if known else None, [m.q, m.p], while_=condition, memory=memory, disk=True
        )
    assert_equal(m, want)
    # Stretches between states are as long as tapes fit beside the final values; of the last one they are
    # those of the forward run, if it is known to be the last.
    final = 8 * sum(math.prod(f.shape) for f in (m.q, m.p, m.push, m.loss))
    stretch = (memory - final) // stats.tape_bytes
    last = (n - 1) % stretch + 1 if known else 0
    assert len(m.calls) == stats.steps_run == 2 * n - last
    assert stats.peak_bytes <= memory < 16 * n


def test_notes_that_are_gone(tmp_path):
    m = Oscillator()
    tape = ds.Tape()
    with tape:
        ds.ad.checkpoint(m.step, 20, [m.q, m.p], snapshots=2, disk=tmp_path)
    os.truncate(next(tmp_path.rglob("notes")), 100)
    with pytest.raises(ds.AutodiffError, match=r"the note of step \d+ cannot be read back"):
        tape.backward(m.loss)


def test_memory_of_tapes_is_used_again(monkeypatch):
    """By the next rollout of the same line, and never by two at once."""
    fields = [ds.field(ds.f64, shape=4, needs_grad=True) for _ in range(2)]

    @ds.kernel
    def square(x: ds.template()):
        for i in x:
            x[i] = x[i] * x[i]

    def roll(x):
        with ds.Tape(in_place="save") as tape:
            stats = ds.ad.checkpoint(lambda t: square(x), 3, [x], memory=10**6)
        assert stats.tapes == 3
        return tape

    fresh = []
    snapshot = HostStorage.snapshot

    def counting(self, part=WHOLE, into=None):
        fresh.append(into is None)
        return snapshot(self, part, into)

    monkeypatch.setattr(HostStorage, "snapshot", counting)
    made = []
    for turn in range(3):
        starts = [np.arange(1, 5) * 0.3 + turn + k for k in range(2)]
        fresh.clear()
        tapes = []
        for x, start in zip(fields, starts, strict=True):
            x.from_numpy(start)
            tapes.append(roll(x))
        for x, start, tape in zip(fields, starts, tapes, strict=True):
            x.grad.fill(0)
            tape.backward(grads={x: 1})
            np.testing.assert_allclose(x.to_numpy(), start**8, rtol=1e-14)
            np.testing.assert_allclose(x.grad.to_numpy(), 8 * start**7, rtol=1e-14)
        made.append(sum(fresh))
    assert made[1] < made[0]
