"""Replayed tapes: what is refused; resources, threads, interrupts."""

from __future__ import annotations

import gc
import signal
import threading
import tracemalloc

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.session import session
from tests.support.gradients import field
from tests.support.pendulums import Pendulums

# ---- refused


def recorded(kernel, loss, *args):
    tape = ds.Tape(loss)
    with tape:
        kernel(*args)
    return tape


def test_refused(cpu):
    x, loss = field(3), field()
    factor = 2.0

    @ds.kernel
    def weigh(w: ds.types.ndarray()):
        for i in x:
            loss[None] += w[i] * x[i]

    @ds.kernel
    def squares():
        for i in x:
            loss[None] += factor * x[i] ** 2

    for tape in (ds.Tape(loss), ds.Tape()):
        with pytest.raises(ds.AutodiffError, match="nothing to replay"):
            tape.replay()
    with pytest.raises(ZeroDivisionError), tape:
        squares()
        1 / 0
    with pytest.raises(ds.AutodiffError, match="nothing to replay"):
        tape.replay()
    with pytest.raises(ds.AutodiffError, match="w of weigh was a NumPy array"):
        recorded(weigh, loss, np.ones(3)).replay()
    tape = ds.Tape()
    with tape:
        squares()
        tape.record_func(lambda: None, [x])
    with pytest.raises(ds.AutodiffError, match="gradient of its own") as caught:
        tape.replay()
    assert "tape.record_func(lambda: None, [x])" in str(caught.value)
    tape = ds.Tape(loss)
    with tape:
        ds.ad.checkpoint(lambda t: squares(), 3, state=[loss])
    with pytest.raises(ds.AutodiffError, match="checkpointed rollout"):
        tape.replay()
    tape = recorded(squares, loss)
    with ds.Tape(), pytest.raises(ds.AutodiffError, match="while a tape is recording"):
        tape.replay()
    factor = 3.0
    with pytest.raises(ds.KernelStateError, match="factor was 2"):
        tape.replay()
    factor = 2.0
    tape.replay()
    tape.backward()
    x = field(3)
    with pytest.raises(ds.AutodiffError, match="squares uses another field"):
        tape.replay()
    tape = recorded(squares, loss)
    ds.init(default_fp=ds.f64)
    with pytest.raises(ds.AutodiffError, match=r"ds\.init\(\) or ds\.reset\(\) was called"):
        tape.replay()
    with tape:
        squares()
    tape.replay()
    tape.reset()
    with pytest.raises(ds.AutodiffError, match="nothing to replay"):
        tape.replay()


def test_a_gradient_that_came_late(cpu):
    x, y, loss = field(), field(grad=False), field()

    @ds.kernel
    def product():
        loss[None] += x[None] * y[None]

    tape = recorded(product, loss)
    y.add_grad()
    with pytest.raises(ds.MissingGradientError, match="got its gradient after product"):
        tape.replay()


def test_an_object_that_is_gone(cpu):
    p = Pendulums()
    tape = p.record()
    del p
    gc.collect()
    with pytest.raises(ds.AutodiffError, match="the object that step is a method of is gone"):
        tape.replay()


# ---- resources


def test_many_replays_leak_nothing(cpu):
    p = Pendulums()
    tape = p.record(in_place="save")

    def once():
        p.length[0] += 1e-9
        tape.replay()
        tape.backward()

    for _ in range(20):
        once()
    for _ in range(
        session.written.maxlen
    ):  # notes of writes from Python, of which so many are kept
        p.length[0] += 1e-9
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(300):
        once()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 60_000, (
        grown
    )  # numbers in dictionaries; a single copy of a step each time is more


def test_a_tape_frees_what_it_held(cpu):
    import weakref

    p = Pendulums()
    tape = p.record()
    tape.replay()
    tape.backward()
    program = weakref.ref(tape._replay)
    angle = weakref.ref(p.angle)
    del tape
    assert program() is None
    del p
    gc.collect()
    assert angle() is None


def test_threads_of_python(cpu):
    """Each thread replays a tape of its own while another one launches the same kernels."""
    rollouts = [Pendulums(steps=20 + k) for k in range(3)]
    tapes = [p.record() for p in rollouts]
    expected = [p.results() for p in rollouts]
    wrong = []

    def work(k):
        for _ in range(30):
            tapes[k].replay()
            tapes[k]._replay.backward()  # from zero gradients, whatever the others clear
        if not np.array_equal(rollouts[k].angle.to_numpy(), expected[k][1]):
            wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    free = Pendulums()
    for _ in range(10):
        free.run()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers for signals")
def test_an_interrupted_replay(cpu):
    n = 1000
    x, loss = field(n), field()

    @ds.kernel
    def slow():
        for i in x:
            x[i] = x[i] + 1e-3 * ds.sin(x[i])

    tape = ds.Tape()
    with tape:
        for _ in range(1000):
            slow()
        loss.fill(0.0)

    class Enough(Exception):
        pass

    def handler(*_):
        raise Enough

    tape.replay()
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(Enough):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            for _ in range(10_000):
                tape.replay()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    tape.replay()


def test_values_that_kernels_returned_are_not_replayed(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def square() -> ds.f64:
        return x[None] * x[None]

    x[None] = 3.0
    with ds.Tape(loss) as tape:
        loss[None] = 2.0 * square()
    assert x.grad[None] == 12.0
    with pytest.raises(ds.AutodiffError, match="follows what square returned"):
        tape.replay()


def test_a_field_in_place_of_a_number_is_replayed(cpu):
    x, gain = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def scale(g: ds.f64):
        loss[None] += g * x[None] ** 2

    x[None], gain[None] = 3.0, 2.0
    with ds.Tape(loss) as tape:
        scale(gain)
    assert (x.grad[None], gain.grad[None]) == (12.0, 9.0)
    x[None], gain[None] = 5.0, 4.0
    tape.replay()
    tape.backward()
    assert (loss[None], x.grad[None], gain.grad[None]) == (100.0, 40.0, 25.0)


def test_hooks_and_kept_gradients_after_a_replay(cpu):
    """Somebody looks at each adjoint: the backward pass is the tape's own, with the replay's values."""
    x, y = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def first():
        y[None] = x[None] ** 2

    @ds.kernel
    def second():
        loss[None] += y[None] ** 2

    x[None] = 2.0
    tape = ds.Tape(loss, retain_grad=True)
    with tape:
        tape.record_scope_begin("all")
        first()
        second()
        tape.record_scope_end()
    seen = []
    tape.on_backward(lambda step, grads: seen.append((step, y.grad[None])))
    for value in (3.0, 5.0):
        seen.clear()
        x[None] = value
        tape.replay()
        tape.backward()
        assert x.grad[None] == pytest.approx(4 * value**3)
        assert y.grad[None] == pytest.approx(2 * value**2)
        assert [step for step, _ in seen] == [1, 0]
        assert seen[0][1] == pytest.approx(2 * value**2)


@pytest.mark.parametrize("what", ["part", "stop", "nan"])
def test_what_is_recorded_and_not_replayed(cpu, what):
    x, y = (ds.field(ds.f64, shape=3, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def end():
        for i in x:
            loss[None] += x[i] * y[i]

    with ds.Tape(loss, check_nan=what == "nan") as tape:
        if what == "part":
            ds.copy(x, y, count=2)
        elif what == "stop":
            ds.stop_grad(x)
        end()
    with pytest.raises(ds.AutodiffError, match="replayed"):
        tape.replay()


def test_a_clone_without_gradient_is_made_again(cpu):
    x, loss = field(3), field()

    @ds.kernel
    def weigh(by: ds.template()):
        for i in x:
            loss[None] += by[i] * x[i]

    x.fill(2.0)
    tape = ds.Tape(loss)
    with tape:
        weigh(ds.clone(x, needs_grad=False))
    assert (loss[None], x.grad[0]) == (12, 2)
    x.fill(3.0)
    tape.replay()
    tape.backward()
    assert (loss[None], x.grad[0]) == (27, 3)


def test_a_record_with_a_gap_is_not_replayed(cpu):
    ds.init(default_fp=ds.f64, debug=True)
    x, loss = field(3), field()

    @ds.kernel
    def add(n: ds.i32):
        for i in range(n):
            loss[None] += x[i]

    tape = ds.Tape()
    with tape:
        add(3)
        with pytest.raises(ds.AccessError):
            add(4)
    with pytest.raises(ds.AutodiffError, match="add did not run to its end"):
        tape.replay()


def test_an_object_that_a_kernel_was_compiled_for_is_kept_by_the_tape(cpu):
    x, loss = field(3), field()

    class Rule:
        by = 2.0

    @ds.kernel
    def weigh(rule: ds.template(), f: ds.template()):
        for i in x:
            loss[None] += f(x[i]) * rule.by

    def record(tape):
        @ds.func
        def square(v):
            return v * v

        with tape:
            weigh(Rule(), square)

    tape = ds.Tape(loss)
    record(tape)
    gc.collect()
    x.fill(3.0)
    tape.replay()
    tape.backward()
    assert (loss[None], x.grad[0]) == (54, 12)
    del tape
    gc.collect()
    assert not weigh.specializations
