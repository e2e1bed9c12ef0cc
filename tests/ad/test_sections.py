"""Launches that step along two axes: versions have rows along one, and the record knows all indices."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from tests.fuzz import sections
from tests.fuzz.__main__ import trial

STEPS, TURNS, SIZE = 3, 2, 5


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


class Program:
    """Iterations in steps of time, each of which squares the state."""

    def __init__(self):
        self.p = p = ds.field(ds.f64, (STEPS, TURNS + 1, SIZE), needs_grad=True)
        self.loss = loss = ds.field(ds.f64, (), needs_grad=True)

        @ds.kernel
        def iterate(t: ds.i32, k: ds.i32):
            for i in range(SIZE):
                p[t, k + 1, i] = p[t, k, i] ** 2

        @ds.kernel
        def step(t: ds.i32):
            for i in range(SIZE):
                p[t + 1, 0, i] = p[t, TURNS, i] ** 2

        @ds.kernel
        def finish():
            for i in range(SIZE):
                loss[None] += p[STEPS - 1, TURNS, i]

        self.iterate, self.step, self.finish = iterate, step, finish
        self.start = np.linspace(0.7, 1.2, SIZE)

    def set(self):
        self.p.fill(0.0)
        for i, x in enumerate(self.start):
            self.p[0, 0, i] = x
        self.loss[None] = 0.0

    def run(self, between=lambda t, k: None):
        for t in range(STEPS):
            for k in range(TURNS):
                self.iterate(t, k)
                between(t, k)
            if t + 1 < STEPS:
                self.step(t)
        self.finish()

    def check(self):
        power = 2 ** (STEPS * TURNS + STEPS - 1)
        expected = power * self.start ** (power - 1)
        assert np.allclose(self.p.grad.to_numpy()[0, 0], expected, rtol=1e-12)


def test_iterations_in_steps():
    program = Program()
    for _ in range(6):  # the recording repeats
        program.set()
        with ds.Tape(program.loss) as tape:
            program.run()
        program.check()
    for _ in range(3):
        program.start = program.start * 0.99
        program.set()
        tape.replay()
        tape.backward()
        program.check()


def test_observed_passes():
    program = Program()
    program.set()
    seen = []
    with ds.Tape(program.loss, retain_grad=True, check_nan=True) as tape:
        tape.on_backward(lambda step, grads: seen.append(step))
        program.run()
    program.check()
    assert len(seen) == STEPS * TURNS + STEPS


def refused(between):
    program = Program()
    program.set()
    with pytest.raises(GlobalDataAccessError) as caught, ds.Tape(program.loss):
        program.run(lambda t, k: between(program, t, k))
    return caught.value.parts


def test_what_a_launch_does_overwrite_is_refused():
    # The first turn of the second step runs again, and overwrites what the second one has read.
    errors = refused(lambda it, t, k: (t, k) == (1, 1) and it.iterate(1, 0))
    # Only that launch is named: what the others have read is as it was.
    assert len(errors) == 1
    assert "p[t, k, i] ** 2" in str(errors[0])


@pytest.mark.parametrize(
    "write",
    [
        lambda p: p.fill(1.0),
        lambda p: p.__setitem__((0, 1, 2), 1.0),
        lambda p: p.copy_from(p),
        lambda p: p.from_numpy(np.ones(p.shape)),
    ],
)
def test_writes_from_python_are_of_any_place(write):
    assert refused(lambda it, t, k: (t, k) == (1, 1) and write(it.p))


def test_writes_after_the_block():
    program = Program()
    program.set()
    tape = ds.Tape()
    with tape:
        program.run()
    program.iterate(0, 0)  # the same values, but who knows
    with pytest.raises(GlobalDataAccessError):
        tape.backward(program.loss)


def test_writes_that_the_record_does_not_have():
    program = Program()

    def unseen(it, t, k):
        with ds.ad.no_grad():
            it.iterate(t, 0)

    parts = refused(lambda it, t, k: (t, k) == (1, 1) and unseen(it, t, k))
    assert parts


@pytest.mark.parametrize("count", [2, 3])
def test_a_read_of_several_iterations(count):
    program = Program()
    p, loss = program.p, program.loss

    @ds.kernel
    def sum_of(t: ds.i32):
        for k, i in ds.ndrange(count, SIZE):
            loss[None] += p[t, k, i] ** 2

    def run(t):
        program.set()
        program.iterate(0, 0)
        sum_of(0)
        program.iterate(t, 1 - t)

    if count == 3:  # what it has read last is overwritten
        with pytest.raises(GlobalDataAccessError), ds.Tape(loss):
            run(0)
    for t in (1,) if count == 3 else (0, 1):
        with ds.Tape(loss):
            run(t)
        assert np.allclose(p.grad.to_numpy()[0, 0], 2 * program.start + 4 * program.start**3)


def test_notes_of_atomics_are_those_of_the_last_launch():
    x, out, weight = (ds.field(ds.f64, s, needs_grad=True) for s in (4, (2, 4), 4))
    count, loss = ds.field(ds.i32, 2), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def put(t: ds.i32):
        for i in range(4):
            k = ds.atomic_add(count[t], 1)
            out[t, k] = x[i] ** 2 * (k + 1.0)

    @ds.kernel
    def total():
        for t, k in out:
            loss[None] += out[t, k] * weight[k]

    # Each launch has sections of its own, but what its atomics returned is noted in the same field.
    with pytest.raises(GlobalDataAccessError, match="atomic_add"), ds.Tape(loss):
        put(0)
        put(1)
        total()


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    text = sections.make(seed)
    for how in ("save", "refuse"):
        assert trial(text, lambda text, how=how: sections.verdict(text, seed, how)) is None
