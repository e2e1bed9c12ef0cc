"""Versions and copies of slices: steps of time one after the other along an axis, and rows like 1 - p."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from tests.fuzz import slices
from tests.fuzz.__main__ import trial
from tests.support import source
from tests.support.gradients import central, field, numbers
from tests.support.rules import refused
from tests.support.source import line_of

N, STEPS = 5, 4

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture(autouse=True)
def _f64(quick_code):
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


def captured(u):
    n = N

    @ds.kernel
    def step(t: ds.i32):
        for i in range(n):
            u[(t + 1) * n + i] = u[t * n + i] ** 2

    return step


def given(u):
    @ds.kernel
    def step(t: ds.i32, n: ds.i32):
        for i in range(n):
            u[(t + 1) * n + i] = u[t * n + i] ** 2

    return lambda t: step(t, N)


def an_array(u):
    @ds.kernel
    def step(a: ds.types.ndarray(), t: ds.i32, n: ds.i32):
        for i in range(n):
            a[(t + 1) * n + i] = a[t * n + i] ** 2

    return lambda t: step(u, t, N)


def two_axes(u):
    """A step of 5 numbers as 5 rows of one."""

    @ds.kernel
    def step(t: ds.i32, h: ds.i32, w: ds.i32):
        for i, j in ds.ndrange(h, w):
            u[((t + 1) * h + i) * w + j] = u[(t * h + i) * w + j] ** 2

    return lambda t: step(t, N, 1)


def bounds_that_move(u):
    @ds.kernel
    def step(t: ds.i32, n: ds.i32):
        for q in range(t * n, (t + 1) * n):
            u[q + n] = u[q] ** 2

    return lambda t: step(t, N)


class Squares:
    """The loss of x -> x^2 in STEPS steps along one axis; the gradient is 2^STEPS x^(2^STEPS - 1)."""

    def __init__(self, make):
        self.x, self.u, self.loss = field(N), field((STEPS + 1) * N), field()
        u, x, loss = self.u, self.x, self.loss
        self.step = make(u)

        @ds.kernel
        def start():
            for i in range(N):
                u[i] = x[i]

        @ds.kernel
        def finish():
            for i in range(N):
                loss[None] += u[STEPS * N + i]

        self.start, self.finish = start, finish

    def __call__(self):
        self.start()
        for t in range(STEPS):
            self.step(t)
        self.finish()

    def set(self, seed):
        self.x.from_numpy(numbers(N, seed=seed, lo=0.7, hi=1.1))

    def is_right(self):
        x, power = self.x.to_numpy(), 2**STEPS
        return np.allclose(self.x.grad.to_numpy(), power * x ** (power - 1), rtol=1e-12)


@pytest.mark.parametrize("make", [captured, given, an_array, two_axes, bounds_that_move])
def test_a_flattened_time_axis_is_one(make):
    """It is accepted without copies, recorded again, replayed, and has versions of its steps."""
    program = Squares(make)
    for in_place in ("refuse", "save"):
        for turn in range(3):
            program.set(turn)
            with ds.Tape(program.loss, in_place=in_place) as tape:
                program()
            assert program.is_right()
            assert tape.stats().saved == 0
    if make is not an_array:
        program.set(7)
        tape.replay()
        tape.backward()
        assert program.is_right()
    assert (program.u.versions.axis, program.u.versions.block) == (0, N)


def test_kernel_grad_sees_the_steps():
    program = Squares(captured)
    program.set(1)
    program()
    program.loss.grad.fill(1.0)
    program.finish.grad()
    for t in reversed(range(STEPS)):
        program.step.grad(t)
    program.start.grad()
    assert program.is_right()
    program.u[2 * N + 1] = 3.0  # step 2
    program.step.grad(1)
    with pytest.raises(GlobalDataAccessError):
        program.step.grad(2)


def ping_pong(x, row, other):
    """One field of two rows, whose indices are texts."""
    space = {"ds": ds, "x": x, "n": N}
    text = f"""
@ds.kernel
def step(t: ds.i32, p: ds.i32):
    for i in range(n):
        x[{other}, i] = ds.sin(x[{row}, i]) + x[{row}, i] ** 2
"""
    source.make(text, space)
    return space["step"]


@pytest.mark.parametrize(
    ("row", "other"),
    [("p", "1 - p"), ("t % 2", "(t + 1) % 2"), ("2*p", "2 - 2*p"), ("1 - p", "p")],
)
def test_rows_of_a_ping_pong_are_saved_alone(row, other):
    x, loss = field((3, N)), field()
    step = ping_pong(x, row, other)

    @ds.kernel
    def finish():
        for k, i in x:
            loss[None] += x[k, i] * (k + 1)

    def run():
        for t in range(6):
            step(t, t % 2)
        finish()

    def value(at):
        x.from_numpy(at)
        loss.fill(0.0)
        run()
        return loss[None]

    for turn in range(3):
        start = numbers(3, N, seed=turn, hi=0.2)
        x.from_numpy(start)
        with ds.Tape(loss, in_place="save") as tape:
            run()
        found = x.grad.to_numpy()
        assert np.allclose(found, central(value, start), rtol=1e-6, atol=1e-7)
        # Each step but the first overwrites what the one before it has read.
        assert tape.stats().saved_bytes == 5 * N * 8


def test_steps_that_overlap():
    """n is less, or more, than in the launch that made the rows: refused, or saved and right."""
    u, loss = field(24), field()

    @ds.kernel
    def step(t: ds.i32, n: ds.i32):
        for i in range(n):
            u[(t + 1) * n + i] = u[t * n + i] ** 2

    @ds.kernel
    def finish():
        for i in u:
            loss[None] += u[i] * (i + 1)

    launches = [
        [(0, 4), (1, 4), (0, 3)],
        [(0, 4), (0, 6), (1, 4)],
        [(1, 4), (0, 4), (0, 8)],
        [(0, 4), (0, 0), (5, -1), (0, 3)],
    ]
    for steps in launches:

        def run(steps=steps):
            for t, n in steps:
                step(t, n)
            finish()

        def value(at):
            u.from_numpy(at)
            loss.fill(0.0)
            run()
            return loss[None]

        start = numbers(24, seed=2)
        u.from_numpy(start)
        if steps != launches[1]:  # there the record tells that nothing is overwritten that was read
            error = refused(run, loss, GlobalDataAccessError)
            assert error.span.line == line_of(step, "u[t * n + i]")
        u.from_numpy(start)
        with ds.Tape(loss, in_place="save") as tape:
            run()
        found, saved = u.grad.to_numpy(), tape.stats().saved
        assert saved
        assert np.allclose(found, central(value, start), rtol=1e-6, atol=1e-8)


def test_a_last_row_that_is_shorter():
    """11 numbers in rows of 4: the last one has 3."""
    u, loss = field(11), field()
    n = 4

    @ds.kernel
    def square(t: ds.i32):
        for i in range(n):
            if t * n + i < 11:
                u[t * n + i] = u[t * n + i] ** 2

    @ds.kernel
    def finish():
        for i in u:
            loss[None] += u[i]

    start = numbers(11, lo=0.5)
    for _ in range(2):
        u.from_numpy(start)
        with ds.Tape(loss, in_place="save") as tape:
            for t in (0, 1, 2, 3, 2):
                square(t)
            finish()
        power = np.array([2] * 8 + [4] * 3)
        assert np.allclose(u.grad.to_numpy(), power * start ** (power - 1), rtol=1e-12)
    assert tape.stats().saved_bytes == 8 * (4 + 4 + 3 + 3)


def test_writes_from_python_count_for_their_step():
    program = Squares(captured)
    program.set(0)
    with ds.Tape(program.loss):
        program.start()
        for t in range(STEPS):
            program.step(t)
            program.u[(t + 2) * N - 1] = 0.5  # what the step has just written, and none has read
        program.finish()
    x, power = program.x.to_numpy(), 2**STEPS
    expected = power * x ** (power - 1) * (np.arange(N) < N - 1)
    assert np.allclose(program.x.grad.to_numpy(), expected, rtol=1e-12)

    def before():
        program.start()
        program.step(0)
        program.u[N - 1] = 0.5  # what step(0) has read
        program.finish()

    refused(before, program.loss, GlobalDataAccessError)


def test_indices_that_no_arithmetic_of_32_bits_holds():
    """65,536 * 65,536 is 0 in 32 bits; the row that a launch names is none, as its loop is empty."""
    u, loss = field(12), field()

    @ds.kernel
    def step(t: ds.i32, n: ds.i32, m: ds.i32):
        for i in range(m):
            u[t * n + i] = u[i] ** 2

    @ds.kernel
    def finish():
        for i in u:
            loss[None] += u[i]

    start = numbers(12, seed=3)
    u.from_numpy(start)
    with ds.Tape(loss, in_place="save"):
        step(1, 4, 4)
        step(65536, 65536, 0)
        step(-65536, 65536, -1)
        finish()
    expected = np.ones(12)
    expected[:4] += 2 * start[:4]
    expected[4:8] = 0.0
    assert np.allclose(u.grad.to_numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    text = slices.make(seed)
    for how in ("save", "refuse"):
        assert trial(text, lambda text, how=how: slices.verdict(text, seed, how)) is None
