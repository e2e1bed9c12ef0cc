"""Inside one kernel: what has no right gradient is refused with the line; what looks alike is right."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import (
    GlobalDataAccessError,
)
from tests.support.gradients import check, field, numbers
from tests.support.rules import refused, summed
from tests.support.source import line_of

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


# ---- inside one kernel


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

    @ds.kernel
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

    @ds.kernel
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

    @ds.kernel
    def loop_turns():
        for i in x:
            for k in range(3):
                y[i] += x[i] * x[i]
                x[i] += 1.0

    @ds.kernel
    def while_turns():
        for i in x:
            k = 0
            while k < 3:
                x[i] += 1.0
                y[i] += x[i] * x[i]
                k += 1

    @ds.kernel
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
    m.from_numpy(start[1])
    with ds.Tape(loss):
        rows_of_two(1, 0)
        total()
    np.testing.assert_allclose(m.grad.to_numpy()[0], np.cos(start[1][0]), rtol=1e-14)
    refused(lambda: (rows_of_two(1, 1), total()), loss, GlobalDataAccessError)


def test_old_values_of_atomics():
    x, y, n, loss = field(4), field(4), field(grad=False, dtype=ds.i32), field()

    @ds.kernel
    def old():
        y[0] = ds.atomic_add(loss[None], x[0])

    @ds.kernel
    def appended(m: ds.i32):
        for i in range(m):  # no room is made for the places of a loop of unknown length
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
        args = (4,) if kernel is appended else ()
        error = refused(lambda kernel=kernel, args=args: kernel(*args), loss)
        assert error.span.line == line_of(kernel, "ds.atomic_add")
    x.fill(3)
    total = summed(y, loss)
    y.fill(0)
    with ds.Tape(loss):
        counted()
        total()
    assert x.grad.to_numpy().tolist() == [6] * 4


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


def test_casts_of_few_bits_change_the_sign():
    """Of k = 200: -56 + 56 is element 0, as 200 - 200 is."""
    x, loss = field(8), field()

    @ds.kernel
    def step(k: ds.u8):
        loss[None] += x[ds.i32(k) - 200] ** 2
        x[ds.i32(ds.i8(k)) + 56] = 0.0

    with pytest.raises(GlobalDataAccessError):
        step.grad(200)
