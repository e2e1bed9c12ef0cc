"""A tape whose record lacks something gives no gradient; one that lacks nothing, the right one."""

import signal

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.session import session
from tests.support.gradients import central, field, numbers

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64)


class Squares:
    """loss = sum(y), y = x**2, and other ways to write y."""

    def __init__(self):
        self.x, self.y, self.loss = field(3), field(3), field()
        self.x.from_numpy(numbers(3, lo=1.0, hi=2.0))

    @ds.kernel
    def square(self, n: ds.i32):
        for i in range(n):
            self.y[i] = self.x[i] ** 2

    @ds.kernel
    def linear(self):
        for i in self.x:
            self.y[i] = 5.0 * self.x[i]

    @ds.kernel
    def measure(self):
        for i in self.y:
            self.loss[None] += self.y[i]

    @ds.kernel
    def endless(self):
        for i in range(2**40):
            self.y[i % 3] = self.x[0]


# ---- what did not run to its end


def test_a_launch_that_failed_is_missed():
    ds.init(default_fp=ds.f64, debug=True)
    s = Squares()
    with pytest.raises(ds.AutodiffError, match="square did not run to its end"):
        with ds.Tape(s.loss):
            with pytest.raises(ds.AccessError):
                s.square(4)  # has written three elements
            s.measure()
    with ds.Tape(s.loss):  # and the next record lacks nothing
        s.square(3)
        s.measure()
    np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * s.x.to_numpy())


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers for signals")
def test_a_launch_that_was_interrupted_is_missed():
    s = Squares()
    tape = ds.Tape()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            with tape:
                s.endless()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with tape:
        s.measure()
    with pytest.raises(ds.AutodiffError, match="endless did not run to its end"):
        tape.backward(s.loss)
    tape.reset()
    with tape:
        s.square(3)
        s.measure()
    tape.backward(s.loss)
    np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * s.x.to_numpy())


def test_a_launch_that_the_tape_refused_is_missed():
    """The kernel has run when the tape sees that its argument was made of a gradient's field."""
    s = Squares()

    @ds.kernel
    def scale(by: ds.f64):
        for i in s.y:
            s.y[i] = by * s.x[i]

    with pytest.raises(ds.AutodiffError, match="scale did not run to its end"):
        with ds.Tape(s.loss):
            with pytest.raises(ds.AutodiffError, match="Python took from"):
                scale(s.x[0] * 2)
            s.measure()


def test_arguments_that_do_not_fit_leave_no_gap():
    s = Squares()
    with ds.Tape(s.loss):
        with pytest.raises(ds.KernelTypeError):
            s.square("three")
        s.square(3)
        s.measure()
    np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * s.x.to_numpy())


@pytest.mark.parametrize("place", ["function", "rollout"])
def test_a_function_that_failed_is_missed(place):
    s = Squares()

    @ds.ad.grad_replaced
    def function():
        s.square(3)
        raise ZeroDivisionError

    @ds.ad.grad_for(function)
    def gradient():
        s.square.grad(3)

    def step(t):
        s.square(3)
        if t == 2:
            raise ZeroDivisionError

    with pytest.raises(ds.AutodiffError, match="did not run to its end"):
        with ds.Tape(s.loss):
            with pytest.raises(ZeroDivisionError):
                if place == "function":
                    function()
                else:
                    ds.ad.checkpoint(step, 5, state=[s.y])
            s.measure()


def test_a_function_that_failed_before_it_did_anything_leaves_no_gap():
    s = Squares()

    @ds.ad.grad_replaced
    def function(n):
        if n < 0:
            raise ValueError(n)
        s.square(n)

    @ds.ad.grad_for(function)
    def gradient(n):
        s.square.grad(n)

    with ds.Tape(s.loss):
        with pytest.raises(ValueError, match="-1"):
            function(-1)
        function(3)
        s.measure()
    np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * s.x.to_numpy())


# ---- several blocks of one tape


def test_blocks_of_one_tape_are_one_record():
    s = Squares()
    tape = ds.Tape()
    with tape:
        s.square(3)
    with tape:
        s.measure()
    tape.backward(s.loss)

    def loss(x):
        return float((x**2).sum())

    np.testing.assert_allclose(s.x.grad.to_numpy(), central(loss, s.x.to_numpy()), rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.linear(),
        lambda s: s.y.fill(0.0),
        lambda s: s.y.__setitem__(1, 3.0),
        lambda s: s.x.from_numpy(np.ones(3)),
        lambda s: s.y.copy_from(s.x),
    ],
)
def test_a_change_between_two_blocks_is_refused(change):
    s = Squares()
    tape = ds.Tape()
    with tape:
        s.square(3)
    change(s)
    with pytest.raises(ds.AutodiffError, match="has changed it after the end of the block"):
        with tape:
            s.measure()
    assert session.tape is None
    tape.reset()
    s.x.fill(3.0)
    with tape:
        s.square(3)
        s.measure()
    tape.backward(s.loss)
    np.testing.assert_allclose(s.x.grad.to_numpy(), 6.0)


def test_what_changes_between_two_blocks_and_does_no_harm():
    """Gradients, other fields, other rows of a time axis."""
    x, other, loss = field((4, 2)), field(2), field()
    start = numbers(2, lo=1.0, hi=2.0)

    @ds.kernel
    def step(t: ds.i32):
        for i in range(2):
            x[t + 1, i] = x[t, i] ** 2

    @ds.kernel
    def measure():
        for i in range(2):
            loss[None] += x[2, i]

    for i in range(2):
        x[0, i] = start[i]
    step(0)
    tape = ds.Tape()
    with tape:
        step(0)
    x[3, 0] = 7.0
    other.fill(1.0)
    tape.backward(grads={x: 1.0})
    tape.zero()
    with tape:
        step(1)
        measure()
    tape.backward(loss)
    found = [x.grad[0, i] for i in range(2)]
    np.testing.assert_allclose(found, 4 * start**3)


# ---- memory under another name


def test_two_arrays_on_one_buffer_are_one_memory():
    s = Squares()
    buffer = bytearray(24)
    one, other = np.frombuffer(buffer), np.frombuffer(buffer)
    apart = np.zeros(3)

    @ds.kernel
    def fill(to: ds.types.ndarray()):
        for i in s.x:
            to[i] = s.x[i] ** 2

    @ds.kernel
    def add(of: ds.types.ndarray()):
        for i in s.x:
            s.loss[None] += of[i] * s.x[i]

    with pytest.raises(ds.MissingGradientError, match="to is given a value"):
        with ds.Tape(s.loss):
            fill(one)
            add(other)
    with ds.Tape(s.loss):
        fill(one)
        add(apart)
    np.testing.assert_allclose(s.x.grad.to_numpy(), 0)


@pytest.mark.host
class TestViews:
    """Arrays of NumPy that are the memory of a field."""

    def test_one_that_a_tape_would_take_for_a_constant(self):
        s = Squares()
        view, copy = np.from_dlpack(s.y), np.zeros(3)

        @ds.kernel
        def add(of: ds.types.ndarray()):
            for i in s.x:
                s.loss[None] += of[i]

        with pytest.raises(ds.AutodiffError, match=r"this array is the memory of y"):
            with ds.Tape(s.loss):
                s.square(3)
                add(view)
        with ds.Tape(s.loss):
            s.square(3)
            add(copy)
            s.measure()
        np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * s.x.to_numpy())

    def test_one_that_a_kernel_writes_to(self):
        s = Squares()
        view = np.from_dlpack(s.x)

        @ds.kernel
        def clear(a: ds.types.ndarray()):
            for i in a:
                a[i] = 0.0

        tape = ds.Tape()
        with tape:
            s.square(3)
            s.measure()
        clear(view[1:])
        with pytest.raises(ds.GlobalDataAccessError, match="the kernel clear has changed it"):
            tape.backward(s.loss)

    def test_gradients_that_numpy_writes_to_are_cleared(self):
        s = Squares()
        x, y = np.from_dlpack(s.x.grad), np.from_dlpack(s.y.grad)
        for _ in range(2):
            x[:] = y[:] = 100.0
            with ds.Tape(s.loss):
                s.square(3)
                s.measure()
            np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * s.x.to_numpy())
        s.x.grad.fill(0.0)
        y[:] = 100.0
        tape = ds.Tape()
        with tape:
            s.square(3)
            s.measure()
        tape.backward(s.loss)
        np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * s.x.to_numpy())


# ---- where no gradient flows


def test_numbers_of_the_tape_are_constants_where_no_gradient_flows():
    s = Squares()
    with ds.Tape(s.loss):
        s.square(3)
        number = 2 * s.x[0]
        with ds.ad.no_grad():
            s.y[0] = number
            s.y[1] = 2 * s.x[1] + number
        s.measure()
    np.testing.assert_allclose(s.x.grad.to_numpy(), [0, 0, 2 * s.x[2]])
