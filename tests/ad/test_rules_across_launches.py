"""Across launches and Python statements: what a gradient needs has changed, and is refused, or has not."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import (
    AutodiffError,
    GlobalDataAccessError,
    KernelStateError,
    MissingGradientError,
)
from tests.support.gradients import central, field, numbers
from tests.support.rules import refused, summed
from tests.support.source import line_of


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


# ---- across launches


def test_integer_fields_and_arguments_that_change_later():
    x, loss = field(4), field()
    pick, count = (field(4, grad=False, dtype=ds.i32) for _ in range(2))
    x.from_numpy(np.arange(4.0))
    pick.fill(2)
    count.fill(2)

    @ds.kernel
    def gather():
        for i in x:
            for k in range(count[i]):
                loss[None] += x[pick[i]]

    @ds.kernel
    def advance(f: ds.template()):
        for i in f:
            f[i] += 1

    for f in (pick, count):
        error = refused(lambda f=f: (gather(), advance(f)), loss, GlobalDataAccessError)
        assert "advance" in error.message
        f.fill(2)
        tape = ds.Tape()
        with tape:
            gather()
        f[1] = 0
        with pytest.raises(GlobalDataAccessError):
            tape.backward(loss)
        f.fill(2)
    with ds.Tape(loss):
        gather()
    assert x.grad.to_numpy().tolist() == [0, 0, 8, 0]


def test_arrays_that_change_later():
    x, loss = field(4), field()
    weights, own = np.ones(4), ds.ndarray(ds.f64, 4)
    own.fill(2)
    x.fill(1)

    @ds.kernel
    def weigh(w: ds.types.ndarray()):
        for i in x:
            loss[None] += w[i] * x[i]

    tape = ds.Tape()
    with tape:
        weigh(weights)
    weights[:] = 99  # the tape has a copy
    tape.backward(loss)
    assert x.grad.to_numpy().tolist() == [1] * 4

    tape = ds.Tape()
    with tape:
        weigh(own)
    own[2] = 99
    with pytest.raises(GlobalDataAccessError, match="own as it was"):
        tape.backward(loss)


def test_manual_gradients_belong_to_launches():
    x, y = field(8), field(8)
    x.from_numpy(np.arange(8.0))

    @ds.kernel
    def f(t: ds.i32):
        y[t] = x[t] ** 2

    y.grad.fill(1)
    f.grad(2)  # never launched: as if it were now
    assert x.grad[2] == 4
    for t in range(3):
        f(t)
    with pytest.raises(AutodiffError, match="was not launched with these arguments"):
        f.grad(5)
    for t in reversed(range(3)):
        x.grad.fill(0)
        y.grad.fill(1)
        f.grad(t)
        assert x.grad[t] == 2 * t
    x[1] = 100.0
    f.grad(0)  # its own row was not touched
    f.grad(2)
    with pytest.raises(GlobalDataAccessError):
        f.grad(1)
    with ds.Tape():
        with pytest.raises(AutodiffError, match="while a tape is recording"):
            f.grad(0)


def test_manual_gradients_of_arrays():
    a, b, c, d = (ds.ndarray(ds.f64, 3, needs_grad=True) for _ in range(4))
    a.fill(2)
    c.fill(3)

    @ds.kernel
    def f(x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in x:
            y[i] = x[i] ** 2

    f(a, b)
    a.fill(5)
    f(c, d)
    d.grad.fill(1)
    b.grad.fill(1)
    f.grad(c, d)
    assert c.grad.to_numpy().tolist() == [6, 6, 6]
    with pytest.raises(GlobalDataAccessError):
        f.grad(a, b)
    with pytest.raises(AutodiffError, match="was not launched"):
        f.grad(a, d)


def test_time_loops_by_hand():
    n, steps = 3, 6
    x, v = field((steps + 1, n)), field((steps + 1, n))
    x.from_numpy(np.vstack([numbers(n), np.zeros((steps, n))]))

    @ds.kernel
    def force(t: ds.i32):
        for i in range(n):
            v[t + 1, i] = v[t, i] - 0.1 * ds.sin(x[t, i])

    @ds.kernel
    def move(t: ds.i32):
        for i in range(n):
            x[t + 1, i] = x[t, i] + 0.1 * v[t + 1, i]

    for t in range(steps):
        force(t)
        move(t)
    for i in range(n):
        x.grad[steps, i] = 1.0
    for t in reversed(range(steps)):
        move.grad(t)
        force.grad(t)
    a, da, b, db = x.to_numpy()[0], np.ones(n), np.zeros(n), np.zeros(n)
    for _ in range(steps):
        b, db = b - 0.1 * np.sin(a), db - 0.1 * np.cos(a) * da
        a, da = a + 0.1 * b, da + 0.1 * db
    np.testing.assert_allclose(x.grad.to_numpy()[0], da, rtol=1e-13)

    force(2)  # v[3] changes nothing that force.grad(2) needs; x[3] is needed by force(3)
    move(2)
    force.grad(2)
    with pytest.raises(GlobalDataAccessError):
        force.grad(3)


def test_rows_written_again():
    x, loss = field((4, 2)), field()

    @ds.kernel
    def step(t: ds.i32):
        for i in range(2):
            x[t + 1, i] = ds.sin(x[t, i])

    @ds.kernel
    def ring(t: ds.i32):
        for i in range(2):
            x[(t + 1) % 3, i] = ds.sin(x[t % 3, 1 - i])

    @ds.kernel
    def end():
        for i in range(2):
            loss[None] += x[3, i]

    def again():
        step(0)
        step(1)
        step(0)
        step(2)
        end()

    # Row 1 is written again after step(1) read it: with the same numbers, but the tape cannot know.
    error = refused(again, loss, GlobalDataAccessError)
    assert error.span.line == line_of(step, "ds.sin")
    # Row 0 is written again after ring(0) read it.
    refused(lambda: (ring(0), ring(1), ring(2), end()), loss, GlobalDataAccessError)

    def python_between():
        step(0)
        x[0, 1] = 7.0
        step(1)
        end()

    error = refused(python_between, loss, GlobalDataAccessError)
    assert "x[0, 1] = 7.0" in error.message

    def python_elsewhere():
        step(0)
        x[3, 1] = 7.0
        end()

    with ds.Tape(loss):
        python_elsewhere()


def test_fields_made_anew():
    class Box:
        pass

    box = Box()
    box.x, loss = field(3), field()
    box.x.fill(2)

    @ds.kernel
    def f():
        for i in box.x:
            loss[None] += box.x[i] ** 2

    tape = ds.Tape()
    with tape:
        f()
    old, box.x = box.x, field(3)
    box.x.fill(7)
    tape.backward(loss)  # of what was launched
    assert old.grad.to_numpy().tolist() == [4, 4, 4]
    assert not box.x.grad.to_numpy().any()
    with pytest.raises(AutodiffError, match="made anew"):
        f.grad()
    f()
    loss.grad[None] = 1
    f.grad()
    assert box.x.grad.to_numpy().tolist() == [14, 14, 14]

    tape = ds.Tape()
    with tape:
        f()
    box.x = field(3)  # nobody but the tape has the old one now
    tape.backward(loss)
    with pytest.raises(AutodiffError, match="made anew"):
        f.grad()


def test_constants_that_change():
    class Box:
        pass

    box, x, loss = Box(), field(3), field()
    box.k = 2.0
    x.fill(1)

    @ds.kernel
    def f():
        for i in x:
            loss[None] += box.k * x[i]

    tape = ds.Tape()
    with tape:
        f()
    box.k = 5.0
    tape.backward(loss)
    assert x.grad.to_numpy().tolist() == [2, 2, 2]
    with pytest.raises(KernelStateError, match=r"box\.k was 2\.0"):
        f.grad()


def test_init_between_forward_and_backward():
    x, loss = field(3), field()
    x.fill(2)

    @ds.kernel
    def f():
        for i in x:
            loss[None] += x[i] ** 2

    tape = ds.Tape()
    with tape:
        f()
    ds.init(default_fp=ds.f32)
    tape.backward(loss)
    assert x.grad.to_numpy().tolist() == [4, 4, 4]
    with pytest.raises(AutodiffError, match=r"since ds\.init\(\)"):
        f.grad()
    f()
    f.grad()
    with pytest.raises(AutodiffError, match="while this tape was recording"):
        with ds.Tape(loss):
            f()
            ds.init()
            f()
    with ds.Tape(loss):
        f()
    assert x.grad.to_numpy().tolist() == [4, 4, 4]


# ---- Python statements inside the tape


def test_python_writes_inside_of_the_tape():
    x, y, loss = field(3), field(3), field()

    @ds.kernel
    def linear():
        for i in x:
            y[i] += 2 * x[i]

    total = summed(y, loss)
    tape = ds.Tape()
    x.fill(1)
    with tape:
        linear()
        x[1] = 5.0
        linear()
        y[2] = 0.0
        total()
    tape.backward(loss)
    # x[0] twice; x[1] only before it was written; x[2] not at all
    assert x.grad.to_numpy().tolist() == [4, 2, 0]
    tape.backward(loss)
    assert x.grad.to_numpy().tolist() == [8, 4, 0]

    tape = ds.Tape()
    with tape:
        linear()
        y.fill(1)
        linear()
        x.from_numpy(np.ones(3))
        linear()
        total()
    x.grad.fill(0)
    tape.backward(loss)
    assert x.grad.to_numpy().tolist() == [2, 2, 2]


def test_copies_are_differentiated():
    x, y, z, loss = field(3), field(3), field(3), field()
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    @ds.kernel
    def weigh():
        for i in z:
            loss[None] += z[i] * (i + 1)

    with ds.Tape(loss):
        square()
        z.copy_from(y)
        z.copy_from(z)
        y.fill(0)
        weigh()
        y.copy_from(z)
    assert x.grad.to_numpy().tolist() == [2, 8, 18]

    def twice():
        square()
        x.copy_from(y)
        z.copy_from(x)
        weigh()

    refused(twice, loss, GlobalDataAccessError)  # the copy overwrites what square read

    single = ds.field(ds.f32, shape=3, needs_grad=True)
    bare = field(3, grad=False)
    bare.fill(9)
    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    with ds.Tape(loss):
        square()
        single.copy_from(y)
        z.copy_from(single)
        weigh()
        z.copy_from(bare)
    assert x.grad.to_numpy().tolist() == [2, 8, 18]


# ---- second order


def test_gradients_as_values():
    x, y, loss = field(3), field(3), field()
    bare = field(3, grad=False)

    @ds.kernel
    def taken():
        for i in x:
            loss[None] += x.grad[i] * y[i]

    @ds.kernel
    def as_constant():
        for i in x:
            loss[None] += ds.stop_grad(x.grad[i]) * y[i]

    @ds.kernel
    def by_the_way():
        for i in x:
            bare[i] = x.grad[i] * 2
        for i in x:
            loss[None] += bare[i] * y[i]

    @ds.kernel
    def both():
        for i in x:
            loss[None] += ds.stop_grad(x.grad[i]) * x[i]

    @ds.kernel
    def by_a_local():
        s = 0.0
        for i in x:
            s += x.grad[i]
        for i in y:
            y[i] = s

    @ds.kernel
    def of_arrays(g: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in g:
            loss[None] += g[i] * y[i]

    x.fill(1)
    y.fill(2)
    for kernel, text in (
        (taken, "loss[None] +="),
        (by_the_way, "bare[i] = x.grad"),
        (by_a_local, "y[i] = s"),
    ):
        error = refused(kernel, loss)
        assert "differentiates once" in error.message
        assert error.span.line == line_of(kernel, text)
    assert "differentiates once" in refused(lambda: of_arrays(x.grad, y), loss).message
    refused(both, loss, GlobalDataAccessError)  # x.grad[i] changes while it is needed

    def copied():
        y.copy_from(x.grad)
        as_constant()

    error = refused(copied, loss)
    assert error.span.line == line_of(copied, "copy_from")

    tape = ds.Tape()
    x.grad.from_numpy(np.array([1.0, 2.0, 3.0]))
    with tape:
        as_constant()
    tape.backward(loss)
    assert y.grad.to_numpy().tolist() == [1, 2, 3]
    x.grad.fill(0)
    with pytest.raises(GlobalDataAccessError, match=r"x\.grad"):
        tape.backward(loss)


def test_an_optimizer_may_read_gradients():
    """Outside a tape gradients are numbers like others, as array arguments too."""
    x, loss = ds.ndarray(ds.f64, 3, needs_grad=True), field()
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def f(x: ds.types.ndarray()):
        for i in x:
            loss[None] += x[i] ** 2

    @ds.kernel
    def descend(x: ds.types.ndarray(), g: ds.types.ndarray(), rate: ds.f64):
        for i in x:
            x[i] -= rate * g[i]

    for _ in range(3):
        with ds.Tape(loss):
            f(x)
        descend(x, x.grad, 0.25)
    np.testing.assert_allclose(x.to_numpy(), np.array([1, 2, 3]) / 8)
    with pytest.raises(AutodiffError):
        descend.grad(x, x.grad, 0.25)


# ---- after an error


def test_a_program_goes_on_after_an_error():
    x, loss = field(3), field()
    x.fill(3)

    @ds.kernel
    def bad():
        for i in x:
            loss[None] += x[i] ** 2
            x[i] = 1.0

    @ds.kernel
    def good():
        for i in x:
            loss[None] += x[i] ** 2

    for _ in range(2):
        refused(bad, loss, GlobalDataAccessError)
        x.fill(3)
        with pytest.raises(ZeroDivisionError):
            with ds.Tape(loss):
                good()
                1 / 0
        with ds.Tape(loss):
            good()
        assert x.grad.to_numpy().tolist() == [6, 6, 6]


def test_gradients_that_come_late():
    x, loss = ds.field(ds.f64), ds.field(ds.f64)
    ds.root.dense(ds.i, 3).place(x)
    ds.root.place(loss)

    @ds.kernel
    def f():
        for i in x:
            loss[None] += x[i] ** 2

    x.fill(2)
    f()
    tape = ds.Tape()
    with tape:
        f()
    ds.root.lazy_grad()
    with pytest.raises(MissingGradientError, match="got its gradient after f was launched"):
        tape.backward(loss)
    with ds.Tape(loss):
        f()
    assert x.grad.to_numpy().tolist() == [4, 4, 4]


def test_too_many_launches_to_note(monkeypatch):
    monkeypatch.setattr("diffsim.runtime.kernels.launch_function._MOST_STAMPS", 4)
    x, y = field(8), field(8)
    x.fill(3)

    @ds.kernel
    def f(t: ds.i32):
        y[t] = x[t] ** 2

    for t in range(8):
        f(t)
    y.grad.fill(1)
    f.grad(7)
    with pytest.raises(AutodiffError, match="was not launched lately"):
        f.grad(0)
    assert x.grad.to_numpy().tolist() == [0] * 7 + [6]


def test_threads_that_change():
    """Compiled code keeps the pool of threads it was compiled for."""
    x, loss = field(50_000), field()
    x.fill(1)

    @ds.kernel
    def f():
        for i in x:
            loss[None] += x[i] ** 2

    ds.init(default_fp=ds.f64, cpu_max_num_threads=2)
    tape = ds.Tape()
    with tape:
        f()
    tape.backward(loss)
    ds.init(default_fp=ds.f64, cpu_max_num_threads=1)
    with ds.Tape():
        f()
    tape.backward(loss)
    assert x.grad.to_numpy().tolist() == [4] * 50_000


def test_a_written_gradient_may_compute_again():
    """The grid of a particle method: one copy for all steps, made again on the way back."""
    steps, n = 4, 3
    x, g, k, loss = field((steps + 1, n)), field(n), field(), field()
    k[None] = 0.8
    x.from_numpy(numbers(steps + 1, n, lo=0.5, hi=1.0))

    @ds.kernel
    def clear():
        for i in g:
            g[i] = 0.0
            g.grad[i] = 0.0

    @ds.kernel
    def p2g(t: ds.i32):
        for i in range(n):
            g[(i + 1) % n] += x[t, i] ** 2

    @ds.kernel
    def g2p(t: ds.i32):
        for i in range(n):
            x[t + 1, i] = k[None] * ds.cos(g[i]) + x[t, i]

    @ds.kernel
    def end():
        for i in range(n):
            loss[None] += x[steps, i] ** 2

    @ds.ad.grad_replaced
    def advance(t):
        clear()
        p2g(t)
        g2p(t)

    @ds.ad.grad_for(advance)
    def advance_grad(t):
        clear()
        p2g(t)
        g2p.grad(t)
        p2g.grad(t)

    def program():
        for t in range(steps):
            advance(t)
        end()

    def bare():
        for t in range(steps):
            clear()
            p2g(t)
            g2p(t)
        end()

    refused(bare, loss, GlobalDataAccessError)
    start = x.to_numpy()[0]
    with ds.Tape(loss):
        program()

    def reference(a):
        for _ in range(steps):
            a = 0.8 * np.cos(np.roll(a**2, 1)) + a
        return (a**2).sum()

    np.testing.assert_allclose(x.grad.to_numpy()[0], central(reference, start), rtol=1e-6)
    advance.grad(0)  # by hand
    k[None] = 2.0  # not computed again by the gradient
    with pytest.raises(GlobalDataAccessError, match=r"k\[None\] = 2\.0"):
        advance.grad(0)


@pytest.mark.parametrize("number", [np.uint8, np.array, int])
def test_rows_are_counted_in_plain_numbers(number):
    """np.uint8(255) + 1 is 0 in NumPy, and row 256 in a kernel."""
    x, seed = field(300), np.zeros(300)
    x.fill(1.1)
    seed[257] = 1.0

    @ds.kernel
    def step(t: ds.i32):
        x[t + 1] = x[t] ** 2

    tape = ds.Tape()
    with tape:
        step(256)
    step(number(254))
    tape.backward(grads={x: seed})
    np.testing.assert_allclose(x.grad[256], 2.2)
    step(number(255))
    with pytest.raises(ds.GlobalDataAccessError, match="the kernel step has changed it"):
        tape.backward(grads={x: seed})
