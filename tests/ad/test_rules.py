"""What has no right gradient is refused with the line; what looks alike and has one is right."""

import inspect

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import (
    AutodiffError,
    GlobalDataAccessError,
    KernelStateError,
    MissingGradientError,
)
from tests.support.gradients import central, check, field, numbers
from tests.support.source import line_of


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


def refused(program, loss, kind=AutodiffError):
    """The error of a program under a tape."""
    with pytest.raises(kind) as caught:
        with ds.Tape(loss):
            program()
    assert caught.value.span is not None
    return caught.value


def summed(y, loss):
    """A kernel that adds up a field."""

    @ds.kernel
    def total():
        for I in ds.grouped(y):
            loss[None] += y[I]

    return total


# ---- the probes of the issue trackers (USERS.md, section 0): right or refused, with default settings


@pytest.mark.parametrize("turns", [8, 33])
def test_probe_loop_carried_local(turns):
    x, loss = field(), field()
    x[None] = 0.7

    @ds.kernel
    def strict():
        for i in range(1):
            v = x[None]
            for k in range(turns):
                v = v * v * 0.9 + 0.1
            loss[None] += v

    @ds.kernel(simplicity="relaxed")
    def relaxed():
        for i in range(1):
            v = x[None]
            for k in range(turns):
                v = v * v * 0.9 + 0.1
            loss[None] += v

    error = refused(strict, loss, ds.KernelSimplicityError)
    assert error.span.line == line_of(strict, "for k")
    assert "relaxed" in error.hint
    with ds.Tape(loss):
        relaxed()
    value, slope = 0.7, 1.0
    for _ in range(turns):
        slope *= 1.8 * value
        value = value * value * 0.9 + 0.1
    assert x.grad[None] == pytest.approx(slope, rel=1e-12)


def test_probe_reads_what_it_wrote_one_turn_before():
    f, loss = field(5), field()
    f.from_numpy(numbers(5, lo=0.1))

    @ds.kernel
    def parallel():
        for i in range(4):
            f[i + 1] = ds.sin(f[i])

    @ds.kernel(simplicity="relaxed")
    def serial():
        ds.loop_config(serialize=True)
        for i in range(4):
            f[i + 1] = ds.sin(f[i]) + f[i + 1] ** 2
        loss[None] += f[4] ** 2

    @ds.kernel(simplicity="relaxed")
    def chain():
        ds.loop_config(serialize=True)
        for i in range(4):
            f[i + 1] = ds.sin(f[i])
        loss[None] += f[4] ** 2

    error = refused(parallel, loss, GlobalDataAccessError)
    assert error.span.line == line_of(parallel, "f[i + 1]")
    # The turn before wrote f[i], and nobody writes it after it was read: no value is lost.
    f[0] = 0.4
    with ds.Tape(loss):
        chain()
    value, slope = 0.4, 1.0
    for _ in range(4):
        slope *= np.cos(value)
        value = np.sin(value)
    assert f.grad[0] == pytest.approx(2 * value * slope, rel=1e-12)
    refused(serial, loss, GlobalDataAccessError)  # there f[i + 1] is read and then written


def test_probe_in_place_update():
    x, th, loss = field(), field(), field()
    x[None], th[None] = 2, 0.3

    @ds.kernel
    def rotate():
        x[None] = ds.cos(th[None]) * x[None]

    @ds.kernel
    def end():
        loss[None] += x[None]

    error = refused(lambda: (rotate(), end()), loss, GlobalDataAccessError)
    assert error.span.line == line_of(rotate, "ds.cos")


def test_probe_overwritten_by_the_next_kernel():
    x, y, loss = field(3), field(3), field()
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def read():
        for i in x:
            y[i] = x[i] * x[i]

    @ds.kernel
    def overwrite():
        for i in x:
            x[i] = 10.0

    @ds.kernel
    def linear():
        for i in x:
            y[i] = 3 * x[i]

    total = summed(y, loss)
    error = refused(lambda: (read(), overwrite(), total()), loss, GlobalDataAccessError)
    assert error.span.line == line_of(read, "x[i] * x[i]")
    assert "x" in error.message
    assert "kernel overwrite" in error.message
    assert f"line {line_of(overwrite, 'def overwrite')}" in error.message
    # Nothing of x is needed for the gradient of 3 * x, so overwriting it is fine.
    with ds.Tape(loss):
        linear()
        overwrite()
        total()
    assert x.grad.to_numpy().tolist() == [3, 3, 3]
    assert loss[None] == 3 * 10 * 3


@pytest.mark.parametrize("how", ["element", "fill", "from_numpy", "copy_from"])
def test_probe_python_writes_between_forward_and_backward(how):
    x, other, loss = field(3), field(3), field()
    x.fill(3)

    @ds.kernel
    def f():
        for i in x:
            loss[None] += x[i] ** 2

    def write():
        if how == "element":
            x[0] = 5.0
        elif how == "fill":
            x.fill(5.0)
        elif how == "from_numpy":
            x.from_numpy(np.zeros(3))
        else:
            x.copy_from(other)

    tape = ds.Tape()
    with tape:
        f()
    write()
    with pytest.raises(GlobalDataAccessError, match="a Python statement has changed it") as caught:
        tape.backward(loss)
    assert caught.value.span.line == line_of(f, "x[i] ** 2")
    source = inspect.getsource(write)
    wrote = [n for n, text in enumerate(source.splitlines()) if how in text or "x[0] =" in text][-1]
    assert "test_rules.py" in caught.value.message
    if how != "element":
        assert source.splitlines()[wrote].strip() in caught.value.message

    f()
    write()
    loss.grad[None] = 1
    with pytest.raises(GlobalDataAccessError):
        f.grad()


@pytest.mark.parametrize("carrier", ["field", "ndarray", "numpy", "numpy view"])
def test_probe_chain_without_gradient(carrier):
    x, loss = field(3), field()
    mid = {
        "field": lambda: field(3, grad=False),
        "ndarray": lambda: ds.ndarray(ds.f64, 3),
        "numpy": lambda: np.zeros(3),
        "numpy view": lambda: np.zeros(3),
    }[carrier]()
    again = mid[:] if carrier == "numpy view" else mid

    @ds.kernel
    def write(a: ds.types.ndarray()):
        for i in x:
            a[i] = 2 * x[i]

    @ds.kernel
    def read(a: ds.types.ndarray()):
        for i in x:
            loss[None] += a[i] ** 2

    def program():
        write(mid)
        read(again)

    error = refused(program, loss, MissingGradientError)
    assert error.span.line == line_of(write, "a[i] = 2")
    assert "read reads it" in error.message
    assert "stop_grad" in error.hint


def test_chain_without_gradient_inside_of_a_kernel():
    x, mid, loss = field(3), field(3, grad=False), field()

    @ds.kernel
    def f():
        for i in x:
            mid[i] = 2 * x[i]
        for i in x:
            loss[None] += mid[i] * x[i]

    @ds.kernel
    def read_before():  # a trace for looking at, from the launch before
        for i in x:
            loss[None] += mid[i] + 5 * x[i]
        for i in x:
            mid[i] = 2 * x[i]

    @ds.kernel
    def cut():
        for i in x:
            mid[i] = ds.stop_grad(2 * x[i])
        for i in x:
            loss[None] += mid[i] * x[i]

    x.fill(1)
    assert refused(f, loss, MissingGradientError).span.line == line_of(f, "mid[i] = 2")
    mid.fill(5)
    with ds.Tape(loss):
        read_before()
    assert x.grad.to_numpy().tolist() == [5, 5, 5]
    mid.fill(5)
    refused(lambda: (read_before(), read_before()), loss, MissingGradientError)
    with ds.Tape(loss):
        cut()
    assert x.grad.to_numpy().tolist() == [2, 2, 2]


def test_chain_without_gradient_through_copies():
    x, y, loss = field(3), field(3), field()
    bare, bare2 = field(3, grad=False), field(3, grad=False)
    x.fill(2)
    total = summed(y, loss)

    def through():
        bare.copy_from(x)
        bare2.copy_from(bare)
        y.copy_from(bare2)
        total()

    error = refused(through, loss, MissingGradientError)
    assert error.span.line == line_of(through, "bare.copy_from(x)")

    def overwritten():
        bare.copy_from(x)
        bare.fill(7)  # what came from x is gone
        y.copy_from(bare)
        total()

    with ds.Tape(loss):
        overwritten()
    assert not x.grad.to_numpy().any()


def test_a_leak_that_nobody_reads_is_fine():
    x, shown, loss = field(3), field(3, grad=False), field()
    x.fill(2)

    @ds.kernel
    def f():
        for i in x:
            shown[i] = x[i] * 2
            loss[None] += x[i]

    with ds.Tape(loss):
        f()
    assert x.grad.to_numpy().tolist() == [1, 1, 1]


def test_probe_atomic_max():
    x, top, loss = field(4), field(), field()
    x.from_numpy(np.array([-0.5, -0.1, -0.9, -0.3]))

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[None], x[i])

    @ds.kernel
    def smallest():
        for i in x:
            ds.atomic_min(top[None], x[i])

    @ds.kernel(simplicity="relaxed")
    def local():
        m = -9.0
        for i in x:
            ds.atomic_max(m, x[i])
        loss[None] += m

    @ds.kernel
    def end():
        loss[None] += top[None]

    for kernel, start, winner in ((largest, -9.0, 1), (smallest, 9.0, 2)):
        with ds.Tape(loss):
            top[None] = start
            kernel()
            end()
        assert x.grad.to_numpy().tolist() == [float(i == winner) for i in range(4)]
    with ds.Tape(loss):
        local()
    assert x.grad.to_numpy().tolist() == [0, 1, 0, 0]


def test_probe_multiplied_after_a_write():
    x, y, loss = field(2), field(), field()
    x.fill(3)

    @ds.kernel
    def write():
        y[None] = x[0]

    @ds.kernel
    def multiply():
        y[None] *= x[1]

    @ds.kernel
    def end():
        loss[None] += y[None]

    error = refused(lambda: (write(), multiply(), end()), loss, GlobalDataAccessError)
    assert error.span.line == line_of(multiply, "*=")


@pytest.mark.parametrize("shape", ["scalar", "vector"])
def test_probe_returned_value(shape):
    x, y, loss = field(3), field(), field()
    x.fill(2)

    @ds.kernel(simplicity="relaxed")
    def scalar() -> ds.f64:
        s = 0.0
        for i in x:
            s += x[i] ** 2
        return s

    @ds.kernel
    def vector() -> ds.types.vector(2, ds.f64):
        return ds.Vector([x[0] ** 2, 1.0])

    @ds.kernel
    def end():
        loss[None] += y[None]

    kernel = {"scalar": scalar, "vector": vector}[shape]

    def program():
        found = kernel()
        y[None] = found if shape == "scalar" else found[0]
        end()

    with ds.Tape(loss):
        program()
    assert x.grad.to_numpy().tolist() == ([4, 4, 4] if shape == "scalar" else [4, 0, 0])
    assert kernel() is not None  # without a tape it is just a number


def test_probe_f64_seed():
    x, y = field(), field()
    x[None] = 1

    @ds.kernel
    def f():
        y[None] = x[None] * 3

    tape = ds.Tape()
    with tape:
        f()
    seed = 1 / 3
    tape.backward(grads={y: seed})
    assert x.grad[None] == 3 * seed


# ---- inside of one kernel


def test_races_are_refused():
    x, y, z, loss = field((3, 4)), field(5), field(4), field()
    index = field(4, grad=False, dtype=ds.i32)

    @ds.kernel
    def axis_left_out():
        for i, j in x:
            y[i] = x[i, j]

    @ds.kernel
    def all_to_one():
        for i in z:
            loss[None] = z[i]

    @ds.kernel
    def two_stores():
        for i in z:
            y[i] = z[i]
            y[i + 1] = 2 * z[i]

    @ds.kernel
    def store_and_add():
        for i in z:
            y[i] = z[i]
            y[i + 1] += 2 * z[i]

    @ds.kernel
    def through_an_index():
        for i in z:
            y[index[i]] = z[i]

    @ds.kernel
    def halves():
        for i in z:
            y[i // 2] = z[i]

    @ds.kernel
    def sums_of_indices():
        for i, j in ds.ndrange(2, 3):
            y[i + j] = z[i] * j

    @ds.kernel
    def too_wide():
        for i, j in ds.ndrange(2, 3):
            y[i * 2 + j] = z[i] * j

    @ds.kernel
    def neighbours():
        for i in range(3):
            z[i + 1] = z[i] * 2  # linear, and still a race

    for kernel in (
        axis_left_out,
        all_to_one,
        two_stores,
        store_and_add,
        through_an_index,
        halves,
        sums_of_indices,
        too_wide,
        neighbours,
    ):
        error = refused(kernel, loss, GlobalDataAccessError)
        first = line_of(kernel, "for i") + 1
        assert error.span.line in (first, first + 1), kernel


def test_stores_that_only_look_like_races():
    x, y, flat, loss = field((3, 4)), field((4, 3)), field(24), field()
    twos, blocks = field(12), field(12)
    x.from_numpy(numbers(3, 4))

    @ds.kernel
    def swapped():
        for i, j in x:
            y[3 - j, i] = x[i, j] ** 2

    @ds.kernel
    def digits():
        for i, j in x:
            flat[i * 4 + j + 12] = x[i, j] ** 3

    @ds.kernel
    def pairs():
        for i in range(6):
            twos[2 * i] = x[i % 3, 0]
            twos[2 * i + 1] = x[i % 3, 1] * twos[2 * i]

    @ds.kernel(simplicity="relaxed")
    def block():
        for i in range(3):
            for k in range(4):
                blocks[4 * i + k] += x[i, k]
                blocks[4 * i + k] += blocks[4 * i + k] * 2 + x[i, k] * flat[4 * i + k]

    @ds.kernel
    def shifted():
        for I in ds.grouped(ds.ndrange(2, 3)):
            y[I + ds.Vector([1, 0])] = x[I] * x[I + 1]

    @ds.kernel
    def reset():
        for i in flat:
            loss[None] = 0.0  # all store the same constant: no value flows

    @ds.kernel
    def total():
        for i, j in y:
            loss[None] += y[i, j] * (i + 1)
        for i in flat:
            loss[None] += flat[i] * i
        for i in twos:
            loss[None] += twos[i] * blocks[i] * i

    def program():
        digits()
        pairs()
        swapped()
        shifted()
        block()
        reset()
        total()

    check(program, loss, x, reset=[y, flat, blocks])


def test_changed_after_it_was_read():
    x, y, n, loss = field(4), field(4), field(grad=False, dtype=ds.i32), field()
    cells = field(4, grad=False, dtype=ds.i32)
    x.fill(2)
    n[None] = 4

    @ds.kernel
    def same_lane():
        for i in x:
            y[i] = x[i] ** 2
            x[i] = 1.0

    @ds.kernel
    def later_task():
        for i in x:
            y[i] = x[i] ** 2
        for i in x:
            x[3 - i] = 1.0

    @ds.kernel
    def loop_bound():
        for i in range(n[None]):
            loss[None] += x[i]
        for i in range(1):
            n[None] = 0

    @ds.kernel
    def own_bound():
        for i in range(n[None]):
            loss[None] += x[i]
            n[None] = 0

    @ds.kernel(simplicity="relaxed")
    def inner_bound():
        for i in x:
            for k in range(cells[i]):
                y[i] += x[i]
            cells[i] += 1

    @ds.kernel
    def an_index():
        for i in x:
            loss[None] += x[cells[i]]
        for i in cells:
            cells[i] = 0

    @ds.kernel
    def a_condition():
        for i in x:
            if cells[i] == 0:
                loss[None] += x[i]
            cells[i] = 1

    @ds.kernel(simplicity="relaxed")
    def loop_turns():
        for i in x:
            for k in range(3):
                y[i] += x[i] * x[i]
                x[i] += 1.0

    @ds.kernel(simplicity="relaxed")
    def while_turns():
        for i in x:
            k = 0
            while k < 3:
                x[i] += 1.0
                y[i] += x[i] * x[i]
                k += 1

    @ds.kernel(simplicity="relaxed")
    def for_a_local():
        s = 0.0
        for i in x:
            s += x[i] ** 2
        for i in x:
            x[i] = s * y[i]

    for kernel in (
        same_lane,
        later_task,
        loop_bound,
        own_bound,
        inner_bound,
        an_index,
        a_condition,
        loop_turns,
        while_turns,
        for_a_local,
    ):
        error = refused(kernel, loss, GlobalDataAccessError)
        assert "changed here" in error.message or "written here" in error.message, kernel

    @ds.kernel
    def before():
        for i in x:
            y[i] += 1.0
            y[i] += x[i]
            loss[None] += y[i] ** 2

    check(before, loss, x, reset=[y])


def test_components_and_rows_are_told_apart():
    v, m, loss = field(4, n=2), field((3, 4)), field()
    v.from_numpy(numbers(4, 2))
    m.from_numpy(numbers(3, 4))

    @ds.kernel
    def components():
        for i in v:
            v[i][1] = v[i][0] ** 2

    @ds.kernel
    def whole():
        for i in v:
            v[i][1] = v[i].norm()

    @ds.kernel
    def rows(t: ds.i32):
        for i in range(4):
            m[t + 1, i] = ds.sin(m[t, 3 - i])

    @ds.kernel
    def rows_of_two(t: ds.i32, s: ds.i32):
        for i in range(4):
            m[t, i] = ds.sin(m[s, 3 - i])

    @ds.kernel
    def total():
        for i in v:
            loss[None] += v[i].sum() + m[1, i]

    start = v.to_numpy(), m.to_numpy()

    def program():
        components()
        rows(0)
        total()

    with ds.Tape(loss):
        program()
    assert v.grad.to_numpy()[:, 1].tolist() == [0] * 4
    np.testing.assert_allclose(v.grad.to_numpy()[:, 0], 1 + 2 * start[0][:, 0], rtol=1e-14)
    np.testing.assert_allclose(m.grad.to_numpy()[0], np.cos(start[1][0]), rtol=1e-14)
    refused(whole, loss, GlobalDataAccessError)
    refused(lambda: rows_of_two(1, 0), loss, GlobalDataAccessError)


def test_old_values_of_atomics():
    x, y, n, loss = field(4), field(4), field(grad=False, dtype=ds.i32), field()

    @ds.kernel
    def old():
        y[0] = ds.atomic_add(loss[None], x[0])

    @ds.kernel
    def appended():
        for i in x:
            k = ds.atomic_add(n[None], 1)
            y[k % 4] += x[i] ** 2

    @ds.kernel
    def old_float():
        for i in x:
            o = ds.atomic_add(y[i], 1.0)
            loss[None] += x[i] * o

    @ds.kernel
    def counted():  # the old value only goes where no gradient does
        for i in x:
            k = ds.atomic_add(n[None], 1)
            if k >= 0:
                n[None] += 0
            y[i] += x[i] ** 2

    for kernel in (old, appended, old_float):
        assert refused(kernel, loss).span.line == line_of(kernel, "ds.atomic_add")
    x.fill(3)
    total = summed(y, loss)
    y.fill(0)
    with ds.Tape(loss):
        counted()
        total()
    assert x.grad.to_numpy().tolist() == [6] * 4


# ---- across launches


def test_integer_fields_and_arguments_that_change_later():
    x, loss = field(4), field()
    pick, count = (field(4, grad=False, dtype=ds.i32) for _ in range(2))
    x.from_numpy(np.arange(4.0))
    pick.fill(2)
    count.fill(2)

    @ds.kernel(simplicity="relaxed")
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
    with pytest.raises(GlobalDataAccessError, match="w as it was"):
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

    # Row 1 is written again after step(1) read it: with the same numbers, but the tape can not know.
    error = refused(again, loss, GlobalDataAccessError)
    assert error.span.line == line_of(step, "ds.sin")
    refused(lambda: (ring(0), ring(1)), loss, GlobalDataAccessError)

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


# ---- Python statements inside of the tape


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

    @ds.kernel(simplicity="relaxed")
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
    """Outside of a tape gradients are numbers like others, as array arguments too."""
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


# ---- one memory under two names


def test_one_memory_under_two_names():
    a, loss = ds.ndarray(ds.f64, 8, needs_grad=True), field()
    a.fill(1)

    @ds.kernel
    def shift(x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in range(7):
            y[i] = x[i + 1] ** 2

    @ds.kernel
    def with_field(x: ds.types.ndarray()):
        for i in range(7):
            a[i] = x[i + 1] ** 2

    refused(lambda: shift(a, a), loss, GlobalDataAccessError)
    with pytest.raises(ds.KernelTypeError, match="the same memory"):
        with_field(a)
    line = np.arange(8.0)
    with pytest.raises(ds.KernelTypeError, match="overlap"):
        shift(line[:7], line[1:])
    if ds.runtime.session.session.backend.name == "cpu":  # on a GPU arrays of NumPy are copied
        with pytest.raises(ds.KernelTypeError, match="a and x of with_field overlap"):
            with_field(np.from_dlpack(a))
        alone = np.from_dlpack(a)
        alone[:] = 3
        shift(alone, line)
        assert line.tolist() == [9] * 7 + [7]
        line[:] = np.arange(8)
    b = ds.ndarray(ds.f64, 8, needs_grad=True)
    shift(line, b)
    assert b.to_numpy().tolist() == [1, 4, 9, 16, 25, 36, 49, 0]


def test_indices_without_sign_wrap_around():
    """x[a - 1] and x[a + 255] are one element where a has 8 bits."""
    x, loss = field(300), field()
    x.fill(3)

    @ds.kernel
    def step(a: ds.u8):
        loss[None] += x[a - ds.u8(1)] ** 2
        x[a + ds.u8(255)] = 7.0

    @ds.kernel
    def turns(a: ds.u8):
        for i in range(300):
            x[ds.cast(i, ds.u8) - ds.u8(1)] = x[ds.cast(i, ds.u8) + ds.u8(255)] + a

    refused(lambda: step(5), loss, GlobalDataAccessError)
    with ds.Tape(loss, in_place="save"):
        loss[None] = 0
        x[4] = 3
        step(5)
    assert x.grad.to_numpy().nonzero()[0].tolist() == [4]
    assert x.grad[4] == 6  # of the 3 that was set
    loss[None], x[4] = 0, 3
    with ds.Tape(loss, in_place="save"):
        step(5)
    assert loss[None] == 9
    assert x.grad[4] == 6
    refused(lambda: turns(1), loss)


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


def test_casts_of_few_bits_change_the_sign():
    """Of k = 200: -56 + 56 is element 0, as 200 - 200 is."""
    x, loss = field(8), field()

    @ds.kernel
    def step(k: ds.u8):
        loss[None] += x[ds.i32(k) - 200] ** 2
        x[ds.i32(ds.i8(k)) + 56] = 0.0

    with pytest.raises(GlobalDataAccessError):
        step.grad(200)


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
