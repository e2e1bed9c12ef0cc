"""Short recordings that are written over the last one: what is compared, what is known, what it costs."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.repeat import past
from diffsim.ad.repeat import steady as past_of_steady
from diffsim.ad.repeat.rewriting import Rewriting
from diffsim.ad.repeat.variant import Variant
from diffsim.ad.replay import repeated_pass
from diffsim.ad.replay.program import Replay
from diffsim.ad.replay.repeated_pass import RepeatedPass
from diffsim.runtime.session import session
from tests.fuzz import recordings


class Kernels:
    """The loss is a sum over t of h[t, 0] or x ** 2, times numbers."""

    def __init__(self):
        x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))
        h = ds.field(ds.f64, (4, 1), needs_grad=True)
        self.x, self.loss, self.h = x, loss, h

        @ds.kernel
        def square(a: ds.f64):
            loss[None] += a * x[None] ** 2

        @ds.kernel
        def add(t: ds.i32):
            for i in range(1):
                loss[None] += h[t, i] ** 2

        @ds.kernel
        def move(s: ds.i32, t: ds.i32):
            for i in range(1):
                h[s, i] = h[t, i] ** 2

        @ds.kernel
        def weigh(t: ds.i32):
            for i in range(1):
                loss[None] += 3.0 * h[t, i]

        self.square, self.add, self.move, self.weigh = square, add, move, weigh

    def record(self, *launches):
        """Always the same line."""
        with ds.Tape(self.loss) as tape:
            for launch in launches:
                launch()
        return tape


@pytest.fixture
def k(cpu, quick_code):
    return Kernels()


def test_arguments_may_differ(k):
    """Also in their types; lists are copied, so that such a launch is recorded anew."""
    k.x[None] = 3.0
    repeated = []
    for a in (1.0, 2.0, -0.5, 4, True, np.float32(0.5), 0.0, -0.0, float("nan"), 1.0):
        tape = k.record(lambda a=a: k.square(a))
        assert k.x.grad[None] == pytest.approx(6.0 * a, nan_ok=True)
        (entry,) = tape.entries
        assert entry.args[0] is a
        repeated.append(isinstance(tape.recorder.repeated, Rewriting))
    # The second line finds nothing yet: the first tape goes when it has begun.
    assert repeated == [False, False] + [True] * 8


def test_arguments_decide_which_writes_are_inputs(k):
    """h[1] is an input if nothing has used it before Python sets it."""
    for t in (0, 0, 0, 1, 0, 1, 1, 2):

        def assign():
            k.h[1, 0] = 3.0

        k.record(lambda t=t: k.weigh(t), assign, lambda: k.weigh(1))
        expected = np.zeros((4, 1))
        expected[t] = expected[1] = 3.0  # with t = 1: by the value before alone
        assert k.h.grad.to_numpy().tolist() == expected.tolist()


def test_arguments_decide_what_is_refused(k):
    for s, t in ((1, 0), (2, 0), (2, 1), (1, 1), (3, 1), (1, 1), (1, 0)):
        k.h.from_numpy(np.array([[2.0], [3.0], [4.0], [5.0]]))

        def record(s=s, t=t):
            k.record(lambda: k.move(s, t), lambda: k.add(s))

        if s == t:
            with pytest.raises(ds.GlobalDataAccessError, match="read and written in one launch"):
                record()
            continue
        record()
        assert k.h.grad[t, 0] == 4.0 * (2.0 + t) ** 3


def test_what_is_known_ends_with_other_gradients(k):
    """A field that gets its gradient after the launch, in a record that is known."""
    late = ds.field(ds.f64, ())
    x, loss = k.x, k.loss

    @ds.kernel
    def product():
        loss[None] += x[None] * late[None]

    x[None], late[None] = 2.0, 3.0
    for _ in range(4):
        tape = k.record(product)
    assert tape.recorder.repeated is not None
    late.add_grad()
    with pytest.raises(ds.MissingGradientError, match="got its gradient after product"):
        tape.backward(loss)
    k.record(product)
    assert (x.grad[None], late.grad[None]) == (3.0, 2.0)


def test_another_write_in_between(k):
    k.x[None] = 3.0
    for _ in range(3):
        tape = k.record(lambda: k.square(2.0))
    k.x[None] = 4.0
    with pytest.raises(ds.GlobalDataAccessError, match="has changed it since"):
        tape.backward(k.loss)
    assert np.isnan(k.x.grad[None])
    k.record(lambda: k.square(2.0))
    assert k.x.grad[None] == 16.0


def test_arrays_as_arguments_are_not_kept_alive(cpu, quick_code):
    loss = ds.field(ds.f64, (), needs_grad=True)

    def define():
        @ds.kernel
        def total(a: ds.types.ndarray(), b: ds.f64):
            for i in range(2):
                loss[None] += b * a[i] ** 2

        return total

    total, given = define(), ds.ndarray(ds.f64, 2, needs_grad=True)
    given.fill(3.0)
    for b in (1.0, 2.0, 3.0, 4.0):
        with ds.Tape(loss):
            total(given, b)
        assert given.grad.to_numpy().tolist() == [6.0 * b] * 2
    assert past_of_steady._waiting
    gone = weakref.ref(given)
    del given
    gc.collect()
    assert gone() is None
    assert not past_of_steady._waiting
    gone = weakref.ref(total)
    del total
    gc.collect()
    assert gone() is None


def test_lines_that_never_repeat_are_not_kept(k):
    """Kernels that take turns, at one line."""
    k.x[None] = 3.0
    k.h.fill(1.0)
    for turn in range(12):
        k.record(*(lambda: k.add(0), lambda: k.square(1.0))[: 1 + turn % 2])
    assert not past._waiting


@pytest.mark.host
def test_the_calls_of_a_turn(k):
    """How many functions Python calls to record and differentiate a launch; it were 370 once, then 70."""
    k.x[None] = 3.0
    calls = []

    def turn():
        with ds.Tape(k.loss):
            k.square(2.0)

    for _ in range(3):
        turn()
    sys.setprofile(lambda frame, event, _: event == "call" and calls.append(frame.f_code.co_name))
    try:
        turn()
    finally:
        sys.setprofile(None)
    assert len(calls) < 30, calls
    assert k.x.grad[None] == 12.0


# ---- steady tapes: what is not the last recording again


def steady(k):
    """The next tape of a line whose recordings were alike, before its block."""

    def line():
        return ds.Tape(k.loss)

    for _ in range(3):
        with line():
            k.square(2.0)
    tape = line()
    assert tape._steady is not None
    return tape


def fails():
    raise KeyError("missing")


@pytest.mark.parametrize(
    ("inside", "slope"),
    [
        (lambda k, tape: k.square(2.0), 4.0),
        (lambda k, tape: [k.square(2.0), k.square(3.0)], 10.0),
        (lambda k, tape: [k.square(2.0), tape.entries, k.square(2.0)], 8.0),
        (lambda k, tape: [tape.entries, k.square(3.0)], 6.0),
        (lambda k, tape: [k.square(2.0), k.h.fill(1.0), k.weigh(1)], 4.0),
        (lambda k, tape: [k.x.fill(3.0), k.square(2.0)], 4.0),
        (lambda k, tape: [k.weigh(0), k.square(2.0)], 4.0),
        (lambda k, tape: [elsewhere(lambda: k.h.fill(0.0)), k.square(2.0)], 4.0),
        (lambda k, tape: [tape.on_backward(lambda step, grads: None), k.square(2.0)], 4.0),
    ],
)
def test_what_a_steady_tape_becomes(k, inside, slope):
    k.x[None] = 3.0
    tape = steady(k)
    with tape:
        inside(k, tape)
    assert k.x.grad[None] == slope * 3.0
    tape.backward()  # adds
    assert k.x.grad[None] == slope * 6.0
    launches = len(tape.entries)
    tape.zero()
    tape.replay()
    tape.backward()
    assert k.x.grad[None] == slope * 3.0
    with tape:
        k.square(5.0)
    assert (k.x.grad[None], len(tape.entries)) == (30.0, 1)
    assert launches >= 1


def elsewhere(act):
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("inside", "error", "text"),
    [
        (lambda k: fails(), KeyError, "missing"),
        (lambda k: ds.Tape(k.loss).__enter__(), ds.AutodiffError, "cannot be nested"),
        (lambda k: None, ds.AutodiffError, "depends on nothing that has a gradient"),
        (lambda k: k.square.grad(2.0), ds.AutodiffError, "cannot run while a tape is recording"),
        (lambda k: elsewhere(lambda: k.x.fill(4.0)), ds.AutodiffError, "in another thread while"),
        (lambda k: ds.reset(), ds.AutodiffError, "was called while this tape was recording"),
    ],
)
def test_errors_in_a_steady_tape(k, inside, error, text):
    k.x[None] = 3.0
    tape = steady(k)
    with pytest.raises(error, match=text), tape:
        inside(k)
        k.square(2.0) if text != "depends on nothing that has a gradient" else None
    assert not session.recorders
    with ds.Tape(k.loss):
        k.square(7.0)
    assert k.x.grad[None] == 42.0 if "thread" not in text else 56.0


def test_a_steady_tape_between_others(k):
    """The gradient of its loss may not be 1 already, and those of other tapes stay."""
    k.x[None] = 3.0
    tape = steady(k)
    held = steady(k)
    with tape:
        k.square(2.0)
    with held:
        k.square(4.0)
    assert k.x.grad[None] == 24.0
    with pytest.raises(ds.GlobalDataAccessError):
        k.x[None] = 5.0
        tape.backward()
    with held:
        k.square(1.0)
    assert (k.x.grad[None], k.loss[None], k.loss.grad[None]) == (10.0, 25.0, 1.0)


NUMBERS = [1.0] * 4 + [2.0, 2.0, 0.0, -0.0, 0.25, float("nan"), 3, True, np.float32(0.5), 4.0]


@pytest.mark.host
def test_long_recordings_with_other_numbers(k, monkeypatch):
    """The native program of the pass gets the numbers; whole numbers decide which elements it is about."""
    native, run = [], RepeatedPass.run
    monkeypatch.setattr(
        RepeatedPass, "run", lambda *given: native.append(run(*given)) or native[-1]
    )
    k.x[None] = 3.0
    for turn, a in enumerate(NUMBERS):
        t = 1 if turn in (8, 10) else 0
        with ds.Tape(k.loss):
            for s in range(24):
                k.square(a * s if turn < 10 else a)
            k.weigh(t)
        slope = 24.0 * a if turn >= 10 else 276.0 * a
        assert k.x.grad[None] == pytest.approx(6.0 * slope, nan_ok=True)
        expected = np.zeros((4, 1))
        expected[t] = 3.0
        assert k.h.grad.to_numpy().tolist() == expected.tolist()
    assert native == [True] * 5 + [False, True, False, True, True, True]


def test_programs_whose_numbers_stay(k, monkeypatch):
    """As graphs of GPUs: the same numbers as at the first pass, or none of it is native."""
    native, run = [], RepeatedPass.run
    monkeypatch.setattr(
        RepeatedPass, "run", lambda *given: native.append(run(*given)) or native[-1]
    )
    monkeypatch.setattr(Replay, "argument_places", lambda replay: None)
    k.x[None] = 3.0
    for a in [1.0] * 5 + [2.0, 1.0, 1]:
        with ds.Tape(k.loss):
            for _ in range(24):
                k.square(a)
        assert k.x.grad[None] == 144.0 * a
    assert native == [True, True, False, True, False]


def test_zeros_have_signs(cpu, quick_code):
    """0.0 equals -0.0, and its inverse does not."""
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))

    @ds.kernel
    def divide(a: ds.f64):
        loss[None] += x[None] / a

    for a in [0.0] * 5 + [-0.0, 0.0, -0.0, math.inf, math.inf, math.inf, 0.0, -0.0]:
        with ds.Tape(loss):
            for _ in range(24):
                divide(a)
        assert x.grad[None] == (math.copysign(math.inf, a) if a == 0 else 0)


def test_the_same_arguments_are_compared_at_once(k, monkeypatch):
    """Zeros among whole numbers are the same in each turn (floats: `test_zeros_have_signs`)."""
    loss, h, rows, write = k.loss, k.h, [], repeated_pass._Row.write

    @ds.kernel
    def both(s: ds.i32, t: ds.i32):
        for i in range(1):
            loss[None] += h[s, i] + 2.0 * h[t, i]

    monkeypatch.setattr(repeated_pass._Row, "write", lambda row, a: rows.append(a) or write(row, a))
    for turn, a in enumerate([2.0] * 8):
        rows.clear()
        k.x[None] = 3.0
        with ds.Tape(k.loss):
            for _ in range(30):
                k.square(a)
            both(1, 0)
        assert k.x.grad[None] == 180.0 * a
        assert turn < 5 or rows == []


@pytest.mark.parametrize("launches", [1, 30])
def test_what_a_steady_tape_used_may_go(cpu, quick_code, launches):
    k = Kernels()
    for _ in range(5):
        with ds.Tape(k.loss):
            for _ in range(launches):
                k.square(2.0)
    gone = weakref.ref(k.x)
    gc.collect()  # what other tests left
    waiting = len(past_of_steady._waiting)
    del k
    gc.collect()
    assert gone() is None
    assert len(past_of_steady._waiting) == waiting - 1


# ---- steady tapes with more than plain launches, and lines whose programs take turns


def known_as_steady(turns, turn, slope):
    """How many of these turns end as steady tapes; all have these gradients, and again in another pass."""
    count = 0
    for k in range(turns):
        tape, expected = turn(k), slope(k)
        count += tape._steady is not None
        assert tape.loss is not None
        np.testing.assert_allclose(expected[0].grad.to_numpy(), expected[1], rtol=1e-6)
        if k % 5 == 4:
            tape.zero()
            tape.backward()
            np.testing.assert_allclose(expected[0].grad.to_numpy(), expected[1], rtol=1e-6)
        del tape
    return count


def test_writes_in_steady_tapes(k):
    """Inputs, fields of all sizes, zeros; the write decides what the gradient is at."""
    b = ds.field(ds.f64, 3, needs_grad=True)
    loss = k.loss

    @ds.kernel
    def total(a: ds.f64):
        for i in b:
            loss[None] += a * b[i] ** 2

    def turn(n):
        with ds.Tape(loss) as tape:
            loss[None] = 0.0
            b.fill(n + 1.0)
            b[1] = 0.5 * n + 1.0
            total(0.5)
        return tape

    at = lambda n: np.array([n + 1.0, 0.5 * n + 1.0, n + 1.0])  # noqa: E731 - of two lines
    assert known_as_steady(20, turn, lambda n: (b, at(n))) == 18
    with pytest.raises(ds.GlobalDataAccessError, match="has changed it since"), ds.Tape(loss):
        total(0.5)
        b[1] = 3.0


def test_an_input_of_a_steady_tape_is_a_cut(k):
    """The gradient of what Python has set there belongs to no tape before it (docs/adr/0027)."""
    x, loss, before = k.x, k.loss, ds.field(ds.f64, (), needs_grad=True)
    before[None] = 2.0

    @ds.kernel
    def make():
        x[None] = before[None] ** 2

    def turn(n):
        made = ds.Tape()
        with made:
            make()
        with ds.Tape(loss):
            x[None] = 3.0
            k.square(float(n))
        return made

    for n in range(6):
        made = turn(n + 1)
        assert x.grad[None] == 6.0 * (n + 1)
        with pytest.raises(ds.AutodiffError, match="belongs to the value that Python set"):
            made.backward(grads={x: x.grad})


def test_arrays_and_vectors_in_steady_tapes(cpu, quick_code):
    x, loss = ds.field(ds.f64, 3, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def weighted(a: ds.types.ndarray(), c: ds.types.vector(3, ds.f64), f: ds.f64):
        for i in range(3):
            loss[None] += (a[i] + c[0] * c[1] * c[2] + f) * x[i]

    given = np.zeros(3)

    def turn(n):
        given[:] = n, n + 1, n + 2
        c = [ds.Vector([1.0, 2.0, n]), [1.0, 2.0, float(n)], np.array([1.0, 2.0, n])][n % 3]
        with ds.Tape(loss) as tape:
            weighted(given, c, 0.5)
        given[:] = 77.0  # the tape has a copy
        return tape

    slope = lambda n: (x, np.arange(n, n + 3) + 2.0 * n + 0.5)  # noqa: E731
    assert known_as_steady(20, turn, slope) == 18


@pytest.mark.parametrize("least", [1, 28])
def test_lengths_that_differ(k, least):
    """Each length is a variant of the line once it was recorded; the same for native passes."""
    k.x[None] = 3.0

    def turn(n):
        with ds.Tape(k.loss) as tape:
            for s in range(least + n * n % 5):
                k.square(float(s))
            k.weigh(n % 2)
        return tape

    def slope(n):
        assert k.h.grad.to_numpy()[n % 2] == 3.0
        assert k.h.grad.to_numpy().sum() == 3.0
        count = least + n * n % 5
        return k.x, 3.0 * count * (count - 1)

    # Three lengths; the second recording finds nothing, and each is recorded once.
    assert known_as_steady(30, turn, slope) == 26


def test_a_program_that_is_not_gone_on_with_keeps_nothing_alive(k, monkeypatch):
    def turn(times):
        with ds.Tape(k.loss):
            k.square(2.0)
            for _ in range(times):
                k.weigh(0)

    for _ in range(6):
        turn(0)
        turn(1)
    turn(0)
    # Arguments decide: the block begins as the second program did, and is a third one.
    monkeypatch.setattr(Variant, "take_over", lambda *_: False)
    turn(2)
    assert k.x.grad[None] == 4 * k.x[None]
    (line,) = past_of_steady._waiting.values()
    assert len(line.variants) == 3
    assert not any(variant.is_held for variant in line.variants)


def test_steady_tapes_without_a_loss(k):
    """The pass comes later, from any loss, and adds up; a second block goes on with the record."""
    x, loss, other = k.x, k.loss, ds.field(ds.f64, (), needs_grad=True)
    x[None] = 3.0

    @ds.kernel
    def twice():
        other[None] += 2.0 * x[None]

    def line():
        return ds.Tape()

    def turn(a):
        with line() as tape:
            k.square(a)
            twice()
        return tape

    for n in range(8):
        tape = turn(float(n))
        assert (tape._steady is not None) == (n > 1)
        tape.zero()
        tape.backward(loss)
        assert (tape._steady is not None) == (n > 1)
        assert x.grad[None] == 6.0 * n
        tape.backward(loss)  # adds
        assert x.grad[None] == 12.0 * n
        tape.backward(other)  # no loss that was asked for before; then it is known as well
        assert x.grad[None] == 12.0 * n + 2.0
        del tape
        if n % 2:  # what is left of the pass before is no seed, and stays
            turn(2.0).backward(loss)
            assert x.grad[None] == 12.0 * n + 14.0
    tape = turn(1.0)
    tape.replay()
    tape = turn(1.0)
    with tape:
        k.square(4.0)
    tape.zero()
    tape.backward(loss)
    assert x.grad[None] == 30.0
    tape = turn(1.0)
    x[None] = 4.0
    with pytest.raises(ds.GlobalDataAccessError, match="has changed it since"):
        tape.backward(loss)
    assert np.isnan(x.grad[None])
    tape = turn(1.0)
    with pytest.raises(ds.AutodiffError, match="depends on nothing that has a gradient"):
        tape.backward(ds.field(ds.f64, (), needs_grad=True))


def test_lifted_rules_and_lengths_that_differ(cpu, quick_code):
    """What one program overwrites is saved, whatever the other ones of its line do."""
    ds.init(arch=ds.cpu, rules="lifted", cpu_max_num_threads=1)
    x, y, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(3))

    @ds.kernel
    def square():
        y[None] = y[None] ** 2

    @ds.kernel
    def start():
        y[None] = x[None]

    @ds.kernel
    def end():
        loss[None] += 3.0 * y[None]

    x[None] = 1.25
    for n in [0, 0, 0, 0, 2, 0, 2, 1, 0, 2, 1]:
        with ds.Tape(loss):
            start()
            for _ in range(n):
                square()
            end()
        assert x.grad[None] == pytest.approx(3.0 * 2**n * 1.25 ** (2**n - 1), rel=1e-14)


def test_a_line_of_ever_other_programs(k, monkeypatch):
    """Such a line is given up; and one whose programs take turns is not."""
    monkeypatch.setattr(past_of_steady, "MOST_VARIANTS", 16)
    k.x[None] = 3.0
    k.h.fill(1.0)

    def turn(n):
        with ds.Tape(k.loss) as tape:
            for bit in range(8):
                k.square(1.0) if n >> bit & 1 else k.add(bit % 4)
            k.square(1.0)
        return tape._steady is not None

    assert not any(map(turn, range(40)))
    assert not any(map(turn, range(40)))
    assert not past_of_steady._waiting
    assert not past._waiting


@pytest.mark.parametrize("times", [1, 5])
def test_a_tape_that_was_in_a_cycle(k, times):
    """The garbage collector has cleared its weak references before it drops the tape."""
    k.x[None] = 3.0

    def turn():
        with ds.Tape(k.loss) as tape:
            k.square(2.0)
        return tape

    for _ in range(times):
        turn()
    cycle = [turn()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    for _ in range(3):
        tape = turn()
        assert k.x.grad[None] == 12.0
        assert len(tape.entries) == 1
        tape.backward(k.loss)
        with tape:
            k.square(1.0)
        assert k.x.grad[None] == 6.0
        assert None not in tape.recorder.record.alive


@pytest.fixture
def arrays(cpu, quick_code):
    """Four arrays in a row, each the square of the one before, plus a number."""
    made = [ds.ndarray(ds.f64, 2, needs_grad=True) for _ in range(4)]
    loss = ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def square(a: ds.types.ndarray(), b: ds.types.ndarray(), c: ds.f64):
        for i in range(2):
            b[i] = a[i] ** 2 + c

    @ds.kernel
    def total(a: ds.types.ndarray()):
        for i in range(2):
            loss[None] += a[i]

    def turn(order=(0, 1, 2, 3), c=0.5, inside=lambda k: None):
        with ds.Tape(loss) as tape:
            for k in range(3):
                inside(k)
                square(made[order[k]], made[order[k + 1]], c)
            total(made[order[3]])
        return tape

    def slope(c=0.5, first=0):
        """Of the loss by the first array."""
        x, slope = made[first].to_numpy(), 1.0
        for _ in range(3):
            x, slope = x * x + c, slope * 2 * x
        return slope

    made[0].from_numpy(np.array([0.5, -0.75]))
    return made, turn, slope


def test_steady_tapes_of_arrays(arrays):
    """Each combination of arrays is a kernel of its own; another one unfolds the tape."""
    made, turn, slope = arrays
    for k in range(6):
        tape = turn(c=0.25 * k)
        assert (tape._steady is not None) == (k > 1)
        np.testing.assert_allclose(made[0].grad.to_numpy(), slope(0.25 * k), rtol=1e-14)
        del tape
    tape = turn((0, 2, 1, 3))
    assert tape._steady is None
    np.testing.assert_allclose(made[0].grad.to_numpy(), slope(), rtol=1e-14)
    launches = [(e.given[0], e.given[1]) for e in tape.entries[:3]]
    assert launches == [(made[0], made[2]), (made[2], made[1]), (made[1], made[3])]
    tape.zero()
    tape.replay()
    tape.backward()
    np.testing.assert_allclose(made[0].grad.to_numpy(), slope(), rtol=1e-14)


def test_a_steady_tape_of_arrays_refuses_what_changed(arrays):
    made, turn, slope = arrays

    def overwrite(k):
        if k == 2:
            made[1].fill(1.0)

    for k in range(9):
        if k in (4, 7):
            with pytest.raises(ds.GlobalDataAccessError):
                turn(inside=overwrite)
            continue
        turn()
        np.testing.assert_allclose(made[0].grad.to_numpy(), slope(), rtol=1e-14)
    tape = turn()
    made[2][0] = 3.0
    with pytest.raises(ds.GlobalDataAccessError):
        tape.backward()
    with pytest.raises(ds.GlobalDataAccessError):  # the last one writes what the first one read
        turn((0, 1, 2, 0))


def test_entries_of_arrays_after_a_tape_that_ended_early(arrays):
    """The rest of the record that it is compared with has no arguments any more."""
    made, turn, slope = arrays
    for _ in range(4):
        turn()

    def fail(k):
        if k == 1:
            raise KeyError("early")

    with pytest.raises(KeyError):
        turn(inside=fail)
    tape = turn(inside=lambda k: None)
    assert [e.given[1] for e in tape.entries[:3]] == made[1:]
    assert len(tape.gradients) == 5
    np.testing.assert_allclose(made[0].grad.to_numpy(), slope(), rtol=1e-14)


@pytest.mark.parametrize("launches", [1, 30])
def test_arrays_that_a_tape_used_may_go(cpu, quick_code, launches):
    loss = ds.field(ds.f64, (), needs_grad=True)
    a, b = (ds.ndarray(ds.f64, 2, needs_grad=True) for _ in range(2))

    @ds.kernel
    def total(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in range(2):
            loss[None] += a[i] * b[i]

    for k in range(6):
        a.fill(k)
        with ds.Tape(loss):
            for _ in range(launches):
                total(a, b)
        assert b.grad[0] == k * launches
    gone = weakref.ref(b)
    b = ds.ndarray(ds.f64, 2, needs_grad=True)
    assert gone() is None
    with ds.Tape(loss):
        total(a, b)
    assert b.grad[0] == 5


@pytest.mark.parametrize("seed", [3, 4, 201, 1003])
def test_random_sequences(seed):
    """Recordings with changes between them, against the same made anew each time."""
    assert recordings.verdict(recordings.make(seed), seed) == "right"


def test_arguments_that_no_pass_has_looked_at(k):
    """The recording before had them already, and was not differentiated."""

    def record(t):
        tape = ds.Tape()
        with tape:
            k.weigh(t)
            k.h[1, 0] = 3.0
            k.weigh(1)
        return tape

    for t in (0, 0, 0):
        record(t).backward(k.loss)
    record(1)
    k.h.grad.fill(0.0)
    record(1).backward(k.loss)
    assert k.h.grad.to_numpy().ravel().tolist() == [0.0, 3.0, 0.0, 0.0]
