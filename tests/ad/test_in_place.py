"""Programs that overwrite their state: refused, or saved and exact with in_place="save"."""

from __future__ import annotations

import math

import numpy as np
import pytest

import diffsim as ds


def difference(run, x, h=1e-6):
    """Central difference of run() by the single number in field x."""
    middle, ends = x[None], []
    for value in (middle + h, middle - h):
        x[None] = value
        ends.append(run())
    x[None] = middle
    return (ends[0] - ends[1]) / (2 * h)


def test_one_kernel_that_overwrites_what_it_read(cpu):
    """x = cos(theta) * x, ten times: d loss / d theta needs every x."""
    x, theta, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))

    @ds.kernel
    def turn():
        x[None] = ds.cos(theta[None]) * x[None]

    @ds.kernel
    def end():
        loss[None] = x[None] ** 2

    def run():
        x[None] = 1.5
        for _ in range(10):
            turn()
        end()
        return loss[None]

    theta[None] = 0.4
    with pytest.raises(ds.GlobalDataAccessError, match="rule 1"):
        with ds.Tape(loss):
            run()
    tape = ds.Tape(loss, in_place="save")
    with tape:
        run()
    final = 1.5 * math.cos(0.4) ** 10
    assert theta.grad[None] == pytest.approx(2 * final**2 * 10 * -math.tan(0.4), rel=1e-12)
    assert x[None] == pytest.approx(final, rel=1e-14)  # put back
    stats = tape.stats()
    assert stats.saved == 10
    assert stats.saved_bytes == 80
    tape.backward(loss)  # and again
    assert theta.grad[None] == pytest.approx(4 * final**2 * 10 * -math.tan(0.4), rel=1e-12)


def test_rows_that_a_field_gets_later(cpu):
    """A kernel that was launched when the field had no rows stamps those that it writes from then on."""
    x, y, loss = (ds.field(ds.f64, s, needs_grad=True) for s in ((4, 3), 3, ()))

    @ds.kernel
    def square():
        for i in range(3):
            x[2, i] = x[1, i] ** 2

    @ds.kernel
    def square_in_place():
        for i in range(3):
            y[i] = y[i] ** 2

    @ds.kernel
    def total(t: ds.i32):
        for i in range(3):
            loss[None] += x[t, i] + y[i]

    def run():
        square()
        square_in_place()
        square()
        total(2)

    start, expected = np.arange(12.0).reshape(4, 3), np.zeros((4, 3))
    expected[1] = 2.0 * start[1]
    x.from_numpy(start)
    with ds.Tape(loss, in_place="save") as tape:
        run()
    assert tape.stats().saved == 2
    np.testing.assert_array_equal(x.grad.to_numpy(), expected)
    with ds.Tape(loss, in_place="save") as tape:
        run()
    assert tape.stats().saved == 1  # rows 1 and 2 of x are told apart
    np.testing.assert_array_equal(x.grad.to_numpy(), expected)


def test_read_here_overwritten_there(cpu):
    """Several kernels, vectors, a Python write, and an integer field used as index."""
    n = 6
    x, v = (ds.Vector.field(2, ds.f64, shape=n, needs_grad=True) for _ in range(2))
    k, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(2))
    which = ds.field(ds.i32, shape=n)

    @ds.kernel
    def push():
        for i in x:
            d = x[i] - x[which[i]]
            v[i] += -0.1 * k[None] * d * d.norm(1e-2)

    @ds.kernel
    def move():
        for i in x:
            x[i] += 0.1 * v[i]

    @ds.kernel
    def bounce():
        for i in x:
            if x[i][1] < 0.0:
                x[i][1] = -0.5 * x[i][1] ** 3
                v[i] = [v[i][0] * v[i][1], -v[i][1]]

    @ds.kernel
    def rewire(t: ds.i32):
        for i in which:
            which[i] = (i * 5 + t) % n

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i].dot(v[i])

    start = np.random.default_rng(1).normal(size=(2, n, 2))

    def run():
        x.from_numpy(start[0])
        v.from_numpy(start[1])
        loss[None] = 0.0
        for t in range(12):
            rewire(t)
            push()
            move()
            bounce()
            if t == 6:
                v[2] = [0.3, -0.2]
        measure()
        return loss[None]

    k[None] = 1.3
    want = difference(run, k)
    tape = ds.Tape(loss, in_place="save")
    with tape:
        run()
    assert k.grad[None] == pytest.approx(want, rel=1e-7)
    assert tape.stats().saved_bytes > 0


def test_nothing_is_saved_that_no_adjoint_loads(cpu):
    x, a, loss = (ds.field(ds.f64, shape=s, needs_grad=True) for s in (100, (), ()))

    @ds.kernel
    def decay():
        for i in x:
            x[i] = 0.5 * x[i] + a[None]

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i]

    tape = ds.Tape(loss, in_place="save")
    with tape:
        for _ in range(8):
            decay()
        measure()
    assert tape.stats().saved == 0
    assert a.grad[None] == pytest.approx(100 * sum(0.5**k for k in range(8)))


def test_rows_of_a_ring(cpu):
    """A ring of three rows: only the row that is overwritten is copied."""
    x = ds.field(ds.f64, shape=(3, 50), needs_grad=True)
    c, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(2))

    @ds.kernel
    def step(now: ds.i32, following: ds.i32):
        for i in range(50):
            x[following, i] = ds.sin(c[None] * x[now, i])

    @ds.kernel
    def measure(now: ds.i32):
        for i in range(50):
            loss[None] += x[now, i]

    def run():
        x.from_numpy(np.linspace(0.1, 2.0, 150).reshape(3, 50))
        loss[None] = 0.0
        for t in range(9):
            step(t % 3, (t + 1) % 3)
        measure(0)
        return loss[None]

    c[None] = 1.1
    want = difference(run, c)
    tape = ds.Tape(loss, in_place="save")
    with tape:
        run()
    assert c.grad[None] == pytest.approx(want, rel=1e-8)
    assert tape.stats().saved_bytes == 7 * 50 * 8  # rows 0..2 are first overwritten from step 3 on


def test_several_rows_that_are_read_before_one_is_written(cpu):
    """The row's copy brings back what the reader of all rows has found."""
    x, loss = ds.field(ds.f64, (3, 2), needs_grad=True), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def move(t: ds.i32):
        for i in range(2):
            x[t + 1, i] = 2.0 * x[t, i]

    @ds.kernel
    def energy():
        for i in ds.grouped(x):
            loss[None] += x[i] ** 2

    for _ in range(3):  # as the tape knows the program better and better
        x.from_numpy(np.arange(6.0).reshape(3, 2))
        loss[None] = 0.0
        tape = ds.Tape(loss, in_place="save")
        with tape:
            energy()
            move(1)
            energy()
            move(0)
            energy()
        assert loss[None] == 55 + 66 + 57
        # The rows are a, b, c at first, then a, b, 2 b, then a, 2 a, 2 b: 7 a^2 + 10 b^2 + c^2 in all.
        np.testing.assert_allclose(x.grad.to_numpy(), [[0.0, 14.0], [40.0, 60.0], [8.0, 10.0]])
    assert x.to_numpy().tolist() == [[0.0, 1.0], [0.0, 2.0], [4.0, 6.0]]
    tape.replay()
    tape.backward()
    np.testing.assert_allclose(x.grad.to_numpy(), [[0.0, 14.0], [0.0, 40.0], [8.0, 12.0]])


def test_a_launch_that_has_no_lanes(cpu):
    """Its bounds name rows that there are none of: it writes nothing, and nothing is saved for it."""
    x, loss = ds.field(ds.f64, 64, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32, n: ds.i32, p: ds.i32):
        for i in range(n):
            x[(1 - p) * n + i] = x[t] * x[t - i + 3]

    @ds.kernel
    def pair(p: ds.i32):
        for i in range(4 * p, 4 * p + 2):
            x[i] = x[2 * i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    for p in (0, 1, 0):
        with ds.Tape(loss, in_place="save"):
            step(2, -2, p)
            pair(p)
            total()
        want = np.ones(64)
        want[4 * p : 4 * p + 2] -= 1.0
        want[[8 * p, 8 * p + 2]] += 1.0
        assert x.grad.to_numpy().tolist() == want.tolist()


@pytest.mark.parametrize("whole", ["fill", "launch"])
def test_a_row_that_is_written_and_then_the_whole(cpu, whole):
    """The row is saved before its own write; the write of all elements after that does not make it stale."""
    x, loss = ds.field(ds.f64, shape=3, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def use(t: ds.i32, w: ds.f64):
        loss[None] += w * x[t] ** 2

    @ds.kernel
    def clear():
        for i in x:
            x[i] = 5.0

    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    tape = ds.Tape(loss, in_place="save")
    with tape:
        use(0, 1.0)
        use(1, 1.0)
        x[0] = 4.0
        use(0, 10.0)
        x[0] = 6.0
        x.fill(5.0) if whole == "fill" else clear()
        use(0, 100.0)
        use(2, 100.0)
    assert loss[None] == 1 + 4 + 160 + 5000
    assert x.grad.to_numpy().tolist() == [2.0, 4.0, 1000.0 if whole == "fill" else 0.0]
    assert x.to_numpy().tolist() == [5.0] * 3
    x.from_numpy(np.array([7.0, 2.0, 3.0]))
    tape.replay()
    tape.backward()
    assert x.grad.to_numpy().tolist() == [14.0, 4.0, 1000.0 if whole == "fill" else 0.0]
    x.fill(5.0)
    with pytest.raises(
        ds.GlobalDataAccessError
    ):  # it is checked as ever what the last launches read
        tape.backward()


@pytest.mark.parametrize("sets", [False, True])
def test_advice_in_a_gradient_written_by_hand(cpu, sets):
    """No tape saves what the function reads; to follow the advice gives the right gradient."""
    x, y, loss = (ds.field(ds.f64, shape=n, needs_grad=True) for n in (3, 3, ()))

    @ds.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    @ds.kernel
    def sum_up():
        for i in y:
            loss[None] += y[i]

    @ds.ad.grad_replaced
    def both(start):
        x.fill(start)
        square()
        sum_up()

    @ds.ad.grad_for(both)
    def both_backward(start):
        sum_up.grad()
        if sets:
            x.fill(start)
        square.grad()

    def run():
        with ds.Tape(loss, in_place="save"):
            both(3.0)
            x.fill(1.0)

    if sets:
        run()
        assert x.grad.to_numpy().tolist() == [6.0] * 3
        return
    with pytest.raises(ds.GlobalDataAccessError, match="let the gradient set x again") as caught:
        run()
    assert "in_place" not in caught.value.hint


def test_two_states(cpu):
    """A kernel that needs a value as it was both before and after its own store."""
    x, y, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))

    @ds.kernel
    def both():
        y[None] = x[None] ** 2
        x[None] = ds.sin(x[None])
        loss[None] += x[None] ** 3 + y[None]

    x[None] = 0.7
    with ds.Tape(loss, in_place="save"):
        both()
    expected = 2 * 0.7 + 3 * math.sin(0.7) ** 2 * math.cos(0.7)
    assert x.grad[None] == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ds.OptionError, match="in_place='keep'"):
        ds.Tape(loss, in_place="keep")


def test_with_a_gradient_written_by_hand(cpu):
    """What it overwrites is saved for the launches before it."""
    x, a, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))

    @ds.kernel
    def square():
        loss[None] += a[None] * x[None]

    @ds.kernel
    def double():
        x[None] = 2.0 * x[None]

    @ds.ad.grad_replaced
    def doubled():
        double()

    @ds.ad.grad_for(doubled)
    def doubled_backward():
        x.grad[None] = 2.0 * x.grad[None]

    x[None], a[None] = 3.0, 5.0
    with ds.Tape(loss, in_place="save"):
        square()
        doubled()
        square()
    assert a.grad[None] == 3.0 + 6.0
    assert x.grad[None] == 5.0 + 2.0 * 5.0


def test_a_field_made_anew_is_noticed_after_a_tape_that_saves(cpu):
    """The launch function is written anew when a constant is replaced by an equal one."""
    x, factor = ds.field(ds.f64, shape=(), needs_grad=True), 2.0

    @ds.kernel
    def double():
        x[None] = factor * x[None]

    x[None] = 1.0
    with ds.Tape(in_place="save"):
        double()
    factor = float("2.0")
    double()
    old, x = x, ds.field(ds.f64, shape=(), needs_grad=True)
    x[None] = 5.0
    double()
    assert (old[None], x[None]) == (4.0, 10.0)


@pytest.mark.parametrize("how", ["recorded", "replayed"])
def test_rows_and_the_whole_are_put_back(cpu, how):
    """What the pass restored holds the final values after it, in whichever order boxes overlapped."""
    u, x = (ds.field(ds.f64, shape=(3, 2), needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def start():
        for t, i in x:
            u[t, i] = x[t, i]

    @ds.kernel
    def row(t: ds.i32):
        for i in range(2):
            u[t, i] = ds.sin(u[t, i])

    @ds.kernel
    def whole():
        for t, i in u:
            u[t, i] = u[t, i] * u[t, i]

    @ds.kernel
    def total():
        for t, i in u:
            loss[None] += u[t, i]

    def run():
        start()
        row(1)
        whole()
        row(2)
        row(1)
        whole()
        row(0)
        total()

    values = np.array([[0.3, 0.5], [0.7, 0.9], [1.1, 1.3]])
    x.from_numpy(values)
    tape = ds.Tape(loss, in_place="save")
    with tape:
        run()
    if how == "replayed":
        x.from_numpy(values + 1.0)
        tape.replay()
        x.from_numpy(values)
        tape.replay()
        tape.backward()
    a, b, c = values
    expected = np.array([np.sin(a**4), np.sin(np.sin(b) ** 2) ** 2, np.sin(c**2) ** 2])
    assert np.allclose(u.to_numpy(), expected, rtol=1e-14)
    s, w = np.sin(b), np.sin(np.sin(b) ** 2)
    slope = [
        np.cos(a**4) * 4 * a**3,
        2 * w * np.cos(s**2) * 2 * s * np.cos(b),
        2 * np.sin(c**2) * np.cos(c**2) * 2 * c,
    ]
    for times in (1, 2):  # also a second pass finds what it needs
        assert np.allclose(x.grad.to_numpy(), times * np.array(slope), rtol=1e-12)
        tape.backward(loss)
    assert np.allclose(u.to_numpy(), expected, rtol=1e-14)
