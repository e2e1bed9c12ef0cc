"""Tapes and threads: a tape records its own thread, and gives no gradient where another one interfered."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import field, numbers

N = 5


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(default_fp=ds.f64)


def elsewhere(act):
    """Run it in another thread to its end; returns what it returned, or raises what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(timeout=60)


class Program:
    def __init__(self):
        self.x, self.y, self.loss = field(N, name="x"), field(N, name="y"), field(name="loss")
        self.shown = ds.field(ds.f64, shape=N)
        self.x.from_numpy(numbers(N))

    @ds.kernel
    def square(self, by: ds.f64):
        for i in self.x:
            self.y[i] = by * self.x[i] ** 2

    @ds.kernel
    def double(self):
        for i in self.y:
            self.y[i] *= 2.0

    @ds.kernel
    def add(self):
        for i in self.y:
            self.loss[None] += self.y[i]

    @ds.kernel
    def show(self):
        for i in self.y:
            self.shown[i] = self.y[i]

    @ds.kernel
    def noisy(self):
        for i in self.y:
            self.y[i] = ds.random() * self.y[i] + self.x[i]

    def expected(self, by=3.0):
        return 2 * by * self.x.to_numpy()


def test_what_another_thread_looks_at_is_not_recorded():
    p = Program()
    tape = ds.Tape(p.loss)
    with tape:
        p.square(3.0)
        elsewhere(p.show)
        assert elsewhere(lambda: type(p.x[0])) is float
        p.add()
    np.testing.assert_allclose(p.x.grad.to_numpy(), p.expected())
    assert tape.stats().entries == 2
    np.testing.assert_allclose(p.shown.to_numpy(), p.y.to_numpy())


WRITES = {
    "a launch": lambda p: p.double(),
    "a launch that only stores": lambda p: p.square(3.0),
    "the loss": lambda p: p.add(),
    "an element": lambda p: p.y.__setitem__(0, 1.0),
    "fill": lambda p: p.y.fill(1.0),
    "from_numpy": lambda p: p.y.from_numpy(np.ones(N)),
    "copy_from": lambda p: p.y.copy_from(p.x),
    "a part": lambda p: ds.copy(p.y, p.x, count=2),
    "mark_written": lambda p: p.y.mark_written(),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("own_tape", [False, True])
def test_what_another_thread_writes_is_refused(how, own_tape):
    p = Program()

    def act():
        if own_tape:
            with ds.Tape():
                WRITES[how](p)
        else:
            WRITES[how](p)

    with pytest.raises(ds.AutodiffError, match="in another thread while this tape recorded"):
        with ds.Tape(p.loss):
            p.square(3.0)
            elsewhere(act)
            p.add()
    with ds.Tape(p.loss):
        p.square(3.0)
        p.add()
    np.testing.assert_allclose(p.x.grad.to_numpy(), p.expected())


def test_launches_in_a_pool_are_refused():
    """Nothing but the loss is known to the tape."""
    p = Program()

    def step(by):
        p.square(by)
        p.add()

    with pytest.raises(
        ds.AutodiffError, match=r"another thread[\s\S]*do it in the thread of the tape"
    ):
        with ds.Tape(p.loss), ThreadPoolExecutor(1) as pool:
            list(pool.map(step, [1.0, 2.0]))


def test_what_another_thread_wrote_before_and_after_does_not_matter():
    p = Program()
    tape = ds.Tape()
    elsewhere(lambda: p.square(1.0))
    with tape:
        p.square(3.0)
        p.add()
    elsewhere(lambda: p.y.fill(0.0))
    elsewhere(lambda: tape.backward(p.loss))  # a pass may run in any thread
    np.testing.assert_allclose(p.x.grad.to_numpy(), p.expected())
    elsewhere(lambda: p.x.fill(0.0))
    tape.zero()
    with pytest.raises(ds.GlobalDataAccessError):
        tape.backward(p.loss)


def train(p, barrier, by, count=10):
    found = []
    for _ in range(count):
        barrier.wait(60)
        tape = ds.Tape()
        with tape:
            p.square(by)
            barrier.wait(60)
            p.loss[None] = 0.0
            p.add()
            barrier.wait(60)
        tape.backward(p.loss)
        found.append(p.x.grad.to_numpy())
        tape.zero()
    return found


def test_each_thread_has_its_own_tape():
    programs, barrier = [Program() for _ in range(3)], threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(train, p, barrier, k + 1.0) for k, p in enumerate(programs)]
        results = [m.result(timeout=120) for m in made]
    for k, (p, found) in enumerate(zip(programs, results, strict=True)):
        for gradient in found:
            np.testing.assert_allclose(gradient, p.expected(k + 1.0))


def test_a_tape_that_would_clear_the_gradients_of_another_is_refused():
    p, q = Program(), Program()

    def other(**options):
        with ds.Tape(q.loss, **options):
            q.square(1.0)
            q.add()

    with ds.Tape(p.loss):
        p.square(3.0)
        with pytest.raises(ds.AutodiffError, match="clear_gradients=False"):
            elsewhere(other)
        elsewhere(lambda: other(clear_gradients=False))
        p.add()
    np.testing.assert_allclose(p.x.grad.to_numpy(), p.expected())
    np.testing.assert_allclose(q.x.grad.to_numpy(), q.expected(1.0))

    tape = ds.Tape()
    with tape:
        p.square(3.0)
        p.add()

    @tape.on_backward
    def hook(step, grads):
        with pytest.raises(ds.AutodiffError, match="clear_gradients=False"):
            elsewhere(other)

    tape.backward(p.loss)
    elsewhere(other)  # nobody is there any more
    assert not p.x.grad.to_numpy().any()


def test_a_hook_and_a_rollout_run_in_the_thread_of_the_pass():
    p = Program()
    tape = ds.Tape()
    p.y.fill(1.0)
    with tape:
        ds.ad.checkpoint(lambda t: p.noisy(), 6, state=[p.y], snapshots=2)
        p.add()
    seen = []
    tape.on_backward(lambda step, grads: seen.append(threading.current_thread()))
    tape.backward(p.loss)
    expected = p.x.grad.to_numpy()
    tape.zero()

    def other():
        tape.backward(p.loss)
        return threading.current_thread()

    thread = elsewhere(other)
    np.testing.assert_array_equal(p.x.grad.to_numpy(), expected)
    assert seen[-1] is thread is not seen[0]


def test_random_numbers_of_other_threads_do_not_disturb_a_rollout():
    """Each thread draws its own ones, so the steps draw theirs again."""

    def gradient(disturb):
        ds.init(default_fp=ds.f64, random_seed=3)
        p, q = Program(), Program()
        q.noisy()
        p.noisy()
        p.y.fill(1.0)

        def step(t):
            disturb(q.noisy)
            p.noisy()

        with ds.Tape(p.loss):
            ds.ad.checkpoint(step, 6, state=[p.y], snapshots=2)
            p.add()
        return p.x.grad.to_numpy(), q.y.to_numpy(), p.y.to_numpy()

    alone = gradient(lambda act: None)
    disturbed = gradient(elsewhere)
    np.testing.assert_array_equal(disturbed[0], alone[0])
    np.testing.assert_array_equal(disturbed[2], alone[2])
    assert not (disturbed[1] == alone[1]).any()


@pytest.mark.parametrize("when", ["again", "adjoint"])
def test_a_thread_that_writes_to_the_state_while_a_rollout_runs_again(when):
    p, runs = Program(), []

    def step(t):
        runs.append(t)
        if len(runs) == {"again": 7, "adjoint": 12}[when]:
            elsewhere(lambda: p.y.fill(5.0))
        p.noisy()

    tape = ds.Tape()
    p.y.fill(1.0)
    with tape:
        ds.ad.checkpoint(step, 6, state=[p.y], snapshots=1)
        p.add()
    with pytest.raises(ds.AutodiffError, match="in another thread"):
        tape.backward(p.loss)
    assert np.isnan(p.x.grad.to_numpy()).all()


def test_a_thread_draws_other_random_numbers():
    p = Program()
    p.y.fill(1.0)
    p.noisy()
    mine = p.y.to_numpy()
    p.y.fill(1.0)
    elsewhere(p.noisy)
    assert not (p.y.to_numpy() == mine).any()


def test_a_tape_that_is_dropped_goes_at_once():
    """With all that it saved: it is part of no circle of references."""
    x, loss = field(N), field()

    @ds.kernel
    def f():
        for i in x:
            loss[None] += x[i] ** 2

    gc.disable()
    try:
        tape = ds.Tape(loss, in_place="save")
        with tape:
            f()
        gone = weakref.ref(tape)
        del tape
        assert gone() is None
    finally:
        gc.enable()
