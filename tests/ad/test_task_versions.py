"""Kernels that need one field in several states: gradients of tapes that save what is overwritten."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import central, field, numbers

pytestmark = pytest.mark.usefixtures("quick_code")

N = 6


@pytest.fixture(autouse=True)
def f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64)


class Program:
    """A state x and a work field g, both overwritten by each step; the loss is a sum over x."""

    def __init__(self, step, steps=3, element=()):
        self.given, self.x, self.loss = field(N), field(N), field()
        self.step, self.steps = step, steps
        given, x, loss = self.given, self.x, self.loss

        @ds.kernel
        def start():
            for i in x:
                x[i] = given[i]

        @ds.kernel
        def end():
            for i in x:
                loss[None] += (i + 1) * ds.sin(x[i])

        self.start, self.end = start, end

    def run(self):
        self.start()
        for t in range(self.steps):
            self.step(t)
        self.end()

    def value(self, given):
        self.given.from_numpy(given)
        self.loss[None] = 0.0
        self.run()
        return self.loss[None]

    def gradient(self, given, **options):
        self.given.from_numpy(given)
        with ds.Tape(self.loss, in_place="save", **options):
            self.run()
        return self.given.grad.to_numpy()


def check(program, tol=1e-7):
    given = numbers(N)
    found = program.gradient(given)
    state = program.x.to_numpy()
    np.testing.assert_allclose(found, central(program.value, given), rtol=tol, atol=tol)
    program.value(given)
    np.testing.assert_array_equal(program.x.to_numpy(), state)  # what the program left is there
    again = program.gradient(given)
    np.testing.assert_array_equal(again, found)  # and the versions start anew in each pass


def scatter(x):
    """The shape of particle-in-cell codes: clear, scatter, update the grid in place, gather."""
    g = field(N)

    @ds.kernel
    def step(t: ds.i32):
        for i in g:
            g[i] = 0.0
        for i in x:
            g[(2 * i + t) % N] += ds.sin(x[i]) * x[i]
        for i in g:
            g[i] = g[i] * g[i] + 1.0
        for i in x:
            x[i] = x[i] * ds.cos(g[i])

    return step


def vectors(x):
    g = ds.Matrix.field(2, 2, ds.f64, N, needs_grad=True, layout=ds.Layout.SOA)

    @ds.kernel
    def step(t: ds.i32):
        for i in x:
            g[i] = ds.Matrix([[x[i], 1.0], [0.5, x[(i + 1) % N]]])
        for i in x:
            g[i] = g[i] @ g[i]
        for i in x:
            g[i][0, 1] = ds.exp(-(g[i][1, 1] ** 2))
        for i in x:
            x[i] = g[i][0, 0] + g[i][0, 1] * g[i][1, 0]

    return step


def counts(x):
    """Integers have no gradient, and are needed in several states all the same."""
    c = ds.field(ds.i32, N)
    w = field(N)

    @ds.kernel
    def step(t: ds.i32):
        for i in c:
            c[i] = t + 1
        for i in x:
            c[(i * i) % N] += 1
        for i in x:
            w[i] = x[i] * x[i] / c[i]
        for i in c:
            c[i] = i + 1
        for i in x:
            x[i] = w[i] * c[i]

    return step


def single(x):
    """A field of one element, between serial statements."""
    s = field()

    @ds.kernel
    def step(t: ds.i32):
        s[None] = 0.0
        for i in x:
            s[None] += x[i] ** 2
        for i in x:
            x[i] = x[i] / s[None]
        s[None] = ds.sqrt(s[None])
        for i in x:
            x[i] = x[i] * s[None] + 0.1 * x[i] ** 2

    return step


def part(x):
    """Only some elements are overwritten, under a condition."""

    @ds.kernel
    def step(t: ds.i32):
        for i in range(t, N):
            if x[i] > 0:
                x[i] = x[i] ** 2 + 0.1
        for i in range(N - 1):
            if i % 2 == t % 2:
                x[i] = ds.sin(x[i])
        for i in x:
            x[i] = x[i] * x[i]

    return step


def local(x):
    """A temporary is computed between the states."""
    g = field(N)

    @ds.kernel
    def step(t: ds.i32):
        total = 0.0
        for i in x:
            g[i] = x[i] ** 2
        for i in x:
            total += g[i]
        for i in g:
            g[i] = ds.sqrt(g[i] + total)
        for i in x:
            x[i] = g[i] + total * x[i] * 0.1

    return step


def highest(x):
    """The winner of a maximum cannot be found again in a version: the loops are launched one by one."""
    g = field()

    @ds.kernel
    def step(t: ds.i32):
        g[None] = -10.0
        for i in x:
            ds.atomic_max(g[None], x[i] * x[i])
        for i in x:
            x[i] = x[i] * g[None]
        g[None] = g[None] * g[None]
        for i in x:
            x[i] = x[i] * g[None]

    return step


def given(x, *, in_one_loop=False):
    """A func with a gradient of its own reads the field, and adds to its gradient by name."""
    g = field(N)

    @ds.func
    def square(i: ds.i32):
        return g[i] * g[i]

    @ds.func_grad(square)
    def square_grad(i: ds.i32, r):
        ds.adjoint[g][i] += 2.0 * g[i] * r

    @ds.kernel
    def step(t: ds.i32):
        for i in g:
            g[i] = ds.sin(x[i]) + 0.5
        for i in g:
            if ds.static(in_one_loop):
                g[i] = g[i] * g[i]
            x[i] = square(i)
        for i in g:
            g[i] = ds.cos(g[i])
        for i in g:
            x[i] += square(i)

    return step


def stored_last(x):
    """A loop that stores every element, but after an update that needs the state before."""

    @ds.kernel
    def step(t: ds.i32):
        for i in x:
            x[i] -= 0.5
        for i in x:
            x[i] += ds.sin(x[i])
            x[i] = x[i]

    return step


def stored_before(x):
    """The same after a store in some of the lanes."""

    @ds.kernel
    def step(t: ds.i32):
        for i in x:
            x[i] -= 0.5
        for i in x:
            if i % 2 == 0:
                x[i] = ds.cos(x[i])
            x[i] = ds.tanh(x[i] * x[i])

    return step


MAKERS = [scatter, vectors, counts, single, part, local, highest, given, stored_last, stored_before]


@pytest.mark.parametrize("make", MAKERS)
def test_the_gradient(make):
    program = Program(None)
    program.step = make(program.x)
    check(program)


@pytest.mark.parametrize("make", [scatter, counts])
def test_checkpoints_and_replays(make):
    program = Program(None)
    program.step = make(program.x)
    given = numbers(N)
    expected = program.gradient(given)

    def rollout():
        program.start()
        ds.ad.checkpoint(program.step, 3, state=[program.x])
        program.end()

    program.given.grad.fill(0)
    with ds.Tape(program.loss):
        rollout()
    np.testing.assert_allclose(program.given.grad.to_numpy(), expected, rtol=1e-12)

    with ds.Tape(program.loss, in_place="save") as tape:
        program.run()
    other = 0.9 * numbers(N)
    program.given.from_numpy(other)
    tape.replay()
    tape.backward()
    np.testing.assert_allclose(
        program.given.grad.to_numpy(), central(program.value, other), rtol=1e-6, atol=1e-7
    )


def refusal(step):
    program = Program(None)
    program.step = step(program.x)
    with pytest.raises(ds.AutodiffError) as caught:
        program.gradient(numbers(N))
    return str(caught.value)


def test_a_race_is_no_other_state():
    """What one iteration reads and another writes stays refused, though versions would hide it."""

    def race(x):
        @ds.kernel
        def step(t: ds.i32):
            for i in x:
                x[i] = ds.sin(x[i])
            for i in range(N - 1):
                x[i] = x[i + 1] * x[i]

        return step

    assert "iteration 0 of this parallel loop reads x[1], and iteration 1 writes it" in refusal(
        race
    )


def test_what_atomics_returned_is_not_computed_again():
    def compact(x):
        g, n = field(N), ds.field(ds.i32, ())

        @ds.kernel
        def step(t: ds.i32):
            n[None] = 0
            for i in x:
                g[ds.atomic_add(n[None], 1)] = x[i]
            for i in g:
                g[i] = g[i] * g[i]
            n[None] = 3
            for i in x:
                x[i] = g[i]

        return step

    ds.init(
        arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=1
    )  # places in the order of the loop
    program = Program(None)
    program.step = compact(program.x)
    given = numbers(N)
    expected = central(program.value, given)
    np.testing.assert_allclose(program.gradient(given), expected, rtol=1e-6, atol=1e-7)


def test_without_saving_it_is_refused():
    program = Program(None)
    program.step = scatter(program.x)
    program.given.from_numpy(numbers(N))
    with pytest.raises(ds.GlobalDataAccessError, match='in_place="save"'), ds.Tape(program.loss):
        program.run()


def test_the_tape_counts_the_versions():
    """`scatter` needs g between its loops, which are three: two versions of it, and one of each gradient."""
    program = Program(None)
    program.step = scatter(program.x)
    program.given.from_numpy(numbers(N))
    tape = ds.Tape(program.loss, in_place="save")
    with tape:
        program.run()
    assert tape.stats().adjoint_bytes > 0
    assert tape.stats().adjoint_bytes % (2 * 8 * N) == 0  # whole fields with their gradients
    with ds.Tape(program.loss, in_place="save") as tape:
        program.start()
        program.end()
    assert tape.stats().adjoint_bytes == 0


def test_no_gradient_of_a_field_with_versions_is_kept():
    """What the last loop adds for the value of g goes to a version's gradient; that of g would be 0."""
    x, g, loss = field(N), field(N), field()

    @ds.kernel
    def step():
        for i in g:
            g[i] = ds.sin(x[i])
        for i in g:
            loss[None] += g[i] * g[i]
        for i in g:
            g[i] = ds.cos(g[i])
        for i in g:
            loss[None] += 3.0 * g[i] * g[i]

    for wanted in ([g], True):
        with pytest.raises(ds.AutodiffError, match="gradient of g cannot be kept: step needs g"):
            with ds.Tape(loss, in_place="save", retain_grad=wanted):
                step()
    x.from_numpy(numbers(N))
    with ds.Tape(loss, in_place="save", retain_grad=[loss]):
        step()
    sine = np.sin(numbers(N))
    expected = (2 * sine - 6 * np.cos(sine) * np.sin(sine)) * np.cos(numbers(N))
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-12)
