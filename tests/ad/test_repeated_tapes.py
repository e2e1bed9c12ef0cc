"""Tapes that record the same as the last one: what they repeat, and where they must record anew."""

from __future__ import annotations

import gc
import math
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.record import overwrite_saves
from diffsim.ad.repeat import past

pytestmark = pytest.mark.usefixtures("quick_code")


class Chain:
    """x = sin(a x) for one number after the other, in place; the loss is x at the end."""

    def __init__(self, n=3):
        self.n = n
        self.start = ds.field(ds.f64, n, needs_grad=True)
        self.x = ds.field(ds.f64, n, needs_grad=True)
        self.loss = ds.field(ds.f64, (), needs_grad=True)
        x, start, loss = self.x, self.start, self.loss

        @ds.kernel
        def begin():
            for i in range(n):
                x[i] = start[i]

        @ds.kernel
        def step(a: ds.f64):
            for i in range(n):
                x[i] = ds.sin(a * x[i])

        @ds.kernel
        def end():
            for i in range(n):
                loss[None] += x[i]

        self.begin, self.step, self.end = begin, step, end

    def run(self, factors):
        self.begin()
        for a in factors:
            self.step(a)
        self.end()

    def expected(self, factors):
        """The loss, and its gradient."""
        value, slope = self.start.to_numpy(), np.ones(self.n)
        for a in factors:
            value, slope = np.sin(a * value), slope * a * np.cos(a * value)
        return value.sum(), slope

    def check(self, factors):
        value, slope = self.expected(factors)
        assert self.loss[None] == pytest.approx(value, rel=1e-13)
        np.testing.assert_allclose(self.start.grad.to_numpy(), slope, rtol=1e-12)

    def record(self, factors, tape=None):
        """Always the same line."""
        with tape or ds.Tape(self.loss, in_place="save") as made:
            self.run(factors)
        return made


@pytest.fixture
def copies(monkeypatch):
    """The boxes that memory was taken for, of copies of what is overwritten."""
    made, copied = [], overwrite_saves.copied

    def counted(box, *args, into=None, **options):
        if into is None:
            made.append((box[0].name, box[1]))
        return copied(box, *args, into=into, **options)

    monkeypatch.setattr(overwrite_saves, "copied", counted)
    return made


def test_the_same_again_takes_no_memory(cpu, copies):
    """From the third recording on nothing is allocated, and each gradient is that of its own inputs."""
    s = Chain()
    factors = [1.5, 0.7, 1.1]
    taken = []
    for k in range(5):
        s.start.from_numpy(np.array([0.1, 0.5, 0.9]) + 0.1 * k)
        copies.clear()
        tape = s.record(factors)
        taken.append(len(copies))
        s.check(factors)
        assert tape.stats().saved == 3
        assert tape.stats().saved_bytes == 3 * 24
        before = s.x.to_numpy()
        assert before.sum() == pytest.approx(s.loss[None])  # put back
        del before, tape  # a tape that lives keeps its memory
    # The first pass puts the final values aside; the native one loads the copies where they are.
    assert taken == [3 + 1, 0, 0, 0, 0]


def test_one_tape_entered_again(cpu, copies):
    s, factors = Chain(), [1.5, 0.7]
    tape = ds.Tape(s.loss, in_place="save")
    for k in range(4):
        s.start.from_numpy(np.array([0.1, 0.5, 0.9]) + 0.1 * k)
        copies.clear()
        s.record(factors, tape)
        s.check(factors)
        tape.backward(s.loss)  # gradients of inputs add up
        np.testing.assert_allclose(s.start.grad.to_numpy(), 2 * s.expected(factors)[1], rtol=1e-12)
    assert copies == []


@pytest.mark.parametrize("how", ["save", "refuse"])
def test_programs_that_differ(cpu, how):
    """Launches left out, added, with other arguments, one more or one less: each as if it were the first."""
    rng = np.random.default_rng(3)
    n, most = 2, 7
    start = ds.field(ds.f64, n, needs_grad=True)
    x = ds.field(ds.f64, (most + 1, n), needs_grad=True)
    loss = ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def begin():
        for i in range(n):
            x[0, i] = start[i]

    @ds.kernel
    def step(t: ds.i32, a: ds.f64):
        for i in range(n):
            x[t + 1, i] = ds.sin(a * x[t, i])

    @ds.kernel
    def double(t: ds.i32):
        for i in range(n):
            x[t + 1, i] = 2.0 * x[t, i]

    @ds.kernel
    def end(t: ds.i32):
        for i in range(n):
            loss[None] += x[t, i]

    program = [(0, 1.5)] * 5
    for _ in range(60):
        if rng.random() < 0.5:
            k = rng.integers(0, len(program) + 1)
            change = rng.integers(0, 3)
            new = (int(rng.integers(0, 2)), float(rng.choice([1.5, 0.7, -0.7])))
            if change == 0 and len(program) > 1:
                program = program[:k] + program[k + 1 :]
            elif change == 1 and len(program) < most:
                program = [*program[:k], new, *program[k:]]
            else:
                program = [*program[:k], new, *program[k + 1 :]][:most]
        at = rng.random(n)
        start.from_numpy(at)
        with ds.Tape(loss, in_place=how):
            begin()
            for t, (kind, a) in enumerate(program):
                if kind:
                    double(t)
                else:
                    step(t, a)
            end(len(program))
        value, slope = at, np.ones(n)
        for kind, a in program:
            slope = slope * (2.0 if kind else a * np.cos(a * value))
            value = 2.0 * value if kind else np.sin(a * value)
        assert loss[None] == pytest.approx(value.sum(), rel=1e-13)
        np.testing.assert_allclose(start.grad.to_numpy(), slope, rtol=1e-12)


@pytest.mark.parametrize(
    ("first", "then", "slope"),
    [
        (0.0, -0.0, -math.inf),
        (-0.0, 0.0, math.inf),
        (1.0, 1, 1.0),
        (2.0, np.float64(2.0), 0.5),
        (math.nan, 0.5, 2.0),
        (0.5, math.nan, math.nan),
    ],
)
def test_arguments_are_compared_to_the_last_bit(cpu, first, then, slope):
    x, y = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))

    @ds.kernel
    def divide(a: ds.f64):
        y[None] = x[None] / a

    x[None] = 3.0
    for a in (first, first, first, then):
        with ds.Tape(y):
            divide(a)
    assert x.grad[None] == pytest.approx(slope, nan_ok=True)


def test_other_writes_between_the_launches(cpu):
    """What other libraries write, and kernels that no gradient flows through."""
    s, other = Chain(), ds.field(ds.f64, ())
    s.start.from_numpy(np.array([0.1, 0.5, 0.9]))

    @ds.kernel
    def look() -> ds.f64:
        return other[None]

    def record(change):
        with ds.Tape(s.loss):
            s.begin()
            s.end()
            change()

    @ds.kernel
    def needs():
        s.loss[None] += s.start[0] ** 2

    def written():
        needs()
        s.start.mark_written()

    for change in (int, int, int, look, int, look, look):
        record(change)
        assert s.start.grad.to_numpy().tolist() == [1, 1, 1]
    for _ in range(3):
        with pytest.raises(ds.GlobalDataAccessError, match="has changed it since"):
            record(written)
    record(int)
    assert s.start.grad.to_numpy().tolist() == [1, 1, 1]


def test_a_program_goes_on_whose_arguments_were_others(cpu, quick_code):
    """What decides that h[1] is an input may be launches of a program without writes, which asks for none."""
    h = ds.field(ds.f64, (3, 1), needs_grad=True)
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))

    @ds.kernel
    def weigh(t: ds.i32):
        for i in range(1):
            loss[None] += 3.0 * h[t, i]

    @ds.kernel
    def square():
        loss[None] += x[None] ** 2

    def turn(t, *, writes):
        with ds.Tape(loss):
            if t is None:
                square()
            else:
                weigh(t)
                if writes:
                    h[1, 0] = 3.0
                weigh(1)
        return h.grad.to_numpy()[:, 0].tolist()

    for t, writes in [(2, False)] * 3 + [(None, False)] * 3:
        turn(t, writes=writes)
    for _ in range(3):
        assert turn(1, writes=True) == [0.0, 3.0, 0.0]
    for _ in range(2):
        turn(None, writes=False)
        assert turn(2, writes=False) == [0.0, 3.0, 3.0]
        assert turn(2, writes=True) == [0.0, 3.0, 3.0]


def test_tapes_that_live_at_once(cpu):
    """Each has memory of its own, and passes of an older one stay right."""
    s = Chain()
    kept, slopes = [], []
    for k in range(4):
        s.start.from_numpy(np.array([0.1, 0.5, 0.9]) + 0.1 * k)
        kept.append(s.record([1.5, 0.7]))
        slopes.append(s.expected([1.5, 0.7])[1])
    memory = [id(copy.data) for tape in kept for copy in tape.entries.copies()]
    assert len(set(memory)) == 4 * 2
    del kept[1:3]
    s.record([1.5, 0.7])
    for tape, slope in zip(kept, (slopes[0], slopes[3]), strict=True):
        s.start.grad.fill(0.0)
        tape.backward(s.loss)
        np.testing.assert_allclose(s.start.grad.to_numpy(), slope, rtol=1e-12)


def test_an_exception_in_the_block(cpu, copies):
    s, factors = Chain(), [1.5, 0.7, 1.1]
    s.start.from_numpy(np.array([0.1, 0.5, 0.9]))
    for k in range(9):
        copies.clear()
        try:
            with ds.Tape(s.loss, in_place="save"):
                s.begin()
                s.step(1.5)
                if k % 3 == 1:
                    raise KeyError
                s.step(0.7)
                s.step(1.1)
                s.end()
        except KeyError:
            continue
        s.check(factors)
    assert (
        len(copies) == 1
    )  # the final values; the others are in the memory of the last whole recording


def test_memory_stays(cpu):
    """A thousand recordings take no more than ten, and ds.reset frees all of it."""
    s = Chain(20_000)
    factors = [1.5] * 3

    def taken(times):
        """The bytes of arrays after so many recordings."""
        for _ in range(times):
            s.record(factors)
        gc.collect()
        # Not of small objects: ds.reset makes some anew for each kernel of all tests before this one.
        sizes = (trace.size for trace in tracemalloc.take_snapshot().traces)
        return sum(size for size in sizes if size >= 100_000)

    tracemalloc.start()
    try:
        assert taken(10) == 3 * 160_000  # the copies wait for the next recording
        assert taken(990) == 3 * 160_000
        ds.reset()
        assert taken(0) == 0
    finally:
        tracemalloc.stop()


def test_fields_are_not_kept_alive(cpu):
    s = Chain()
    for _ in range(3):
        s.record([1.5])
    gone = [weakref.ref(f) for f in (s.x, s.start, s.loss)]
    assert past._waiting
    del s
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    assert not past._waiting


def test_values_from_python(cpu):
    """Inputs that Python sets in the block; a replay writes those of the last recording."""
    x, p, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(3))

    @ds.kernel
    def cube():
        loss[None] = x[None] ** 3 * p[None]

    for value in (2.0, 3.0, 4.0, 0.0, 5.0, 6.0):
        p[None] = 1.0
        with ds.Tape(loss, in_place="save") as tape:
            x[None] = value
            p[None] = 2.0 * value
            cube()
        assert (loss[None], x.grad[None], p.grad[None]) == (
            2 * value**4,
            6 * value**3,
            value**3,
        )
    x[None] = 1.0
    tape.replay()
    tape.backward()
    assert (loss[None], x.grad[None]) == (2 * 6.0**4, 6 * 6.0**3)


def test_threads(cpu):
    """Threads that record at one line, and one that writes all the time, so that the clock ticks."""
    done, wrong = threading.Event(), []
    other = ds.field(ds.f64, ())

    def disturb():
        while not done.is_set():
            other[None] = 1.0

    def work(s):
        s.start.from_numpy(np.array([0.1, 0.5, 0.9]))
        tape = ds.Tape(s.loss, clear_gradients=False, in_place="save")
        for k in range(40):
            s.start.grad.fill(0.0)
            factors = [1.5, 0.7 if k % 10 else 0.6]
            try:
                s.record(factors, tape)
                s.check(factors)
            except Exception as e:  # shown by the thread that asserts
                wrong.append(e)
                return

    systems = [Chain(), Chain()]
    threads = [threading.Thread(target=work, args=(s,)) for s in systems]
    noise = threading.Thread(target=disturb)
    noise.start()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    done.set()
    noise.join()
    assert wrong == []


def test_hooks_and_retained_gradients(cpu):
    s, factors = Chain(), [1.5, 0.7]
    s.start.from_numpy(np.array([0.1, 0.5, 0.9]))
    for k in range(6):
        seen = []
        tape = ds.Tape(s.loss, in_place="save", retain_grad=s.start if k % 2 else False)
        if k in (2, 4):
            tape.on_backward(lambda step, grads, seen=seen: seen.append(step))
        s.record(factors, tape)
        s.check(factors)
        assert seen == ([3, 2, 1, 0] if k in (2, 4) else [])


def test_without_a_loss_and_in_two_blocks(cpu):
    s, factors = Chain(), [1.5, 0.7]
    s.start.from_numpy(np.array([0.1, 0.5, 0.9]))
    tape = ds.Tape(in_place="save")
    for _ in range(4):
        s.loss[None] = 0.0
        with tape:
            s.begin()
            s.step(1.5)
        with tape:
            s.step(0.7)
            s.end()
        tape.backward(s.loss)
        s.check(factors)
        tape.reset()
    for _ in range(3):  # the first block is the whole of the last record
        s.loss[None] = 0.0
        with tape:
            s.begin()
            s.step(1.5)
        with tape:
            s.step(0.7)
            s.end()
        tape.backward(s.loss)
        s.check(factors)
        tape.reset()
        s.loss[None] = 0.0
        with tape:
            s.begin()
            s.step(1.5)
        tape.reset()


@pytest.mark.parametrize("steps", [1, 30])
def test_index_fields_are_looked_at_again(cpu, steps):
    """Whether indices differ depends on what the field holds now, also if the pass is native."""
    n = 3
    x = ds.field(ds.f64, n, needs_grad=True)
    y = ds.field(ds.f64, (steps, n), needs_grad=True)
    at, loss = ds.field(ds.i32, n), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def place(t: ds.i32):
        for i in range(n):
            y[t, at[i]] = x[i] * x[i]

    @ds.kernel
    def total():
        for t, i in y:
            loss[None] += (i + 1.0) * y[t, i]

    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    for order in ([0, 1, 2], [0, 1, 2], [2, 1, 0], [1, 1, 0], [2, 0, 1], [2, 0, 1]):
        at.from_numpy(np.array(order, np.int32))

        def record():
            with ds.Tape(loss):
                for t in range(steps):
                    place(t)
                total()

        if len(set(order)) < n:
            with pytest.raises(ds.GlobalDataAccessError):
                record()
            continue
        record()
        expected = 2 * steps * x.to_numpy() * (np.array(order) + 1)
        assert x.grad.to_numpy().tolist() == expected.tolist()


def test_fields_as_arguments(cpu):
    """The same kernel for other fields is another program."""
    a, b, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(3))

    @ds.kernel
    def add(f: ds.template()):
        loss[None] += f[None] ** 2

    @ds.kernel
    def scale(f: ds.types.ndarray(ds.f64, 1)):
        for i in range(1):
            loss[None] += f[i] ** 3

    one, other = (ds.ndarray(ds.f64, 1, needs_grad=True) for _ in range(2))
    a[None], b[None] = 2.0, 3.0
    one[0], other[0] = 2.0, 3.0
    for _ in range(2):
        for f, g in ((a, one), (a, one), (a, one), (b, one), (b, other), (b, other)):
            with ds.Tape(loss):
                add(f)
                scale(g)
            assert f.grad[None] == 2 * f[None]
            assert g.grad[0] == 3 * g[0] ** 2
            assert (b if f is a else a).grad[None] == 0.0


def test_a_native_pass_makes_few_calls(cpu, quick_code):
    """It is entered and left in each turn of a loop: Python's calls, not the launches, are what it costs."""
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))
    x[None] = 3.0

    @ds.kernel
    def square(a: ds.f64):
        loss[None] += a * x[None] ** 2

    for _ in range(12):
        calls = []
        tape = ds.Tape(loss)
        with tape:
            for _ in range(24):
                square(1.0)
            sys.setprofile(lambda _, event, __, found=calls: found.append(event))
        sys.setprofile(None)
        assert x.grad[None] == 144.0
    assert calls.count("call") < 30
