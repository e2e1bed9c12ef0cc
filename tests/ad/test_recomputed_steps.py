"""Gradients by hand with states that are computed again: a step is run once more before its gradients.

Particles scatter to a grid that all steps share, as in the material point method; only their own state has a
time axis.
"""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import central, field
from tests.support.source import make

STEPS, COUNT, CELLS = 3, 4, 8
PLACES = np.array([1.3, 2.6, 2.2, 4.4])
SPEEDS = np.array([1.0, -0.5, 0.3, 0.7])


@pytest.fixture(autouse=True, params=["enforced", "lifted"])
def _f64(cpu, quick_code, request):
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules=request.param)


class Particles:
    """The program: its kernels, and its gradient by hand."""

    def __init__(self):
        x, v = field((STEPS + 1, COUNT)), field((STEPS + 1, COUNT))
        m, p, q = field(CELLS), field(CELLS), field(CELLS)
        loss = field()
        self.x, self.v, self.grid, self.loss = x, v, (m, p, q), loss

        @ds.kernel
        def clear():
            for i in m:
                m[i] = 0.0
                p[i] = 0.0
                m.grad[i] = 0.0
                p.grad[i] = 0.0
                q.grad[i] = 0.0

        @ds.kernel
        def scatter(s: ds.i32):
            for i in range(COUNT):
                base = ds.cast(x[s, i], ds.i32)
                near = x[s, i] - base
                m[base] += 1.0 - near
                m[base + 1] += near
                p[base] += (1.0 - near) * v[s, i]
                p[base + 1] += near * v[s, i]

        @ds.kernel
        def on_grid(s: ds.i32):
            for i in p:
                q[i] = 0.0
                if m[i] > 1e-10:
                    q[i] = p[i] / m[i] + 0.1 * ds.sin(p[i])

        @ds.kernel
        def gather(s: ds.i32):
            for i in range(COUNT):
                base = ds.cast(x[s, i], ds.i32)
                near = x[s, i] - base
                speed = (1.0 - near) * q[base] + near * q[base + 1]
                v[s + 1, i] = speed
                x[s + 1, i] = x[s, i] + 0.05 * speed

        @ds.kernel
        def measure():
            for i in range(COUNT):
                loss[None] += x[STEPS, i] ** 2 + v[STEPS, i] ** 3

        self.clear, self.scatter, self.on_grid, self.gather = clear, scatter, on_grid, gather
        self.measure = measure

    def step(self, s):
        self.clear()
        self.scatter(s)
        self.on_grid(s)
        self.gather(s)

    def grid_again(self, s):
        self.clear()
        self.scatter(s)
        self.on_grid(s)

    def run(self, places=PLACES, speeds=SPEEDS):
        rest = np.zeros((STEPS, COUNT))
        self.x.from_numpy(np.vstack([places, rest]))
        self.v.from_numpy(np.vstack([speeds, rest]))
        self.loss[None] = 0.0
        for s in range(STEPS):
            self.step(s)
        self.measure()
        return self.loss[None]

    def start_back(self):
        for f in (self.x, self.v, *self.grid):
            f.grad.fill(0.0)
        self.loss.grad[None] = 1.0
        self.measure.grad()

    def back(self, s):
        self.gather.grad(s)
        self.on_grid.grad(s)
        self.scatter.grad(s)

    def differences(self):
        """Central differences of the loss by the places and speeds at the start."""
        h = 1e-5
        moves = [np.eye(2 * COUNT)[k].reshape(2, COUNT) * h for k in range(2 * COUNT)]
        up = [self.run(PLACES + d[0], SPEEDS + d[1]) for d in moves]
        down = [self.run(PLACES - d[0], SPEEDS - d[1]) for d in moves]
        return (np.array(up) - np.array(down)).reshape(2, COUNT) / (2 * h)


def test_each_step_is_run_again_before_its_gradients():
    program = Particles()
    for _ in range(2):  # a training loop
        program.run()
        program.start_back()
        for s in reversed(range(STEPS)):
            program.step(s)
            program.back(s)
        got = [program.x.grad.to_numpy()[0], program.v.grad.to_numpy()[0]]
        np.testing.assert_allclose(got, program.differences(), rtol=1e-7)


def test_only_the_grid_is_computed_again():
    """Its last kernel is not run again: the launches that made the grid are those of before."""
    program = Particles()
    for _ in range(2):
        program.run()
        program.start_back()
        for s in reversed(range(STEPS)):
            program.grid_again(s)
            program.back(s)
        got = [program.x.grad.to_numpy()[0], program.v.grad.to_numpy()[0]]
        np.testing.assert_allclose(got, program.differences(), rtol=1e-7)


def test_a_refused_call_can_be_repeated():
    program = Particles()
    program.run()
    program.start_back()
    program.grid_again(1)
    with pytest.raises(ds.GlobalDataAccessError, match="gather needs") as caught:
        program.gather.grad(2)
    assert "run gather(...) again on the same values before gather.grad(...)" in str(caught.value)
    program.step(2)
    program.back(2)
    for s in (1, 0):
        program.grid_again(s)
        program.back(s)
    got = [program.x.grad.to_numpy()[0], program.v.grad.to_numpy()[0]]
    np.testing.assert_allclose(got, program.differences(), rtol=1e-7)


def another_step(program, s):
    program.step(s - 1)


def another_grid(program, s):
    """The grid is that of another step, and only the last kernel is run with this one."""
    program.clear()
    program.scatter(s - 1)
    program.on_grid(s - 1)
    program.gather(s)


def without_clear(program, s):
    program.scatter(s)
    program.on_grid(s)


def cleared_late(program, s):
    program.scatter(s)
    program.clear()
    program.on_grid(s)


def scattered_twice(program, s):
    program.clear()
    program.scatter(s)
    program.scatter(s)
    program.on_grid(s)


def with_a_write_between(program, s):
    program.clear()
    program.grid[0][3] = 1.0
    program.scatter(s)
    program.on_grid(s)


def with_changed_particles(program, s):
    program.v[s, 1] = 0.4
    program.grid_again(s)


def a_grid_cleared_after(program, s):
    program.step(s)
    program.clear()


def a_changed_grid(program, s):
    program.step(s)
    program.grid[0].fill(1.0)


def changed_particles(program, s):
    program.step(s)
    program.v[s, 0] = 0.5


@pytest.mark.parametrize(
    "again",
    [
        another_step,
        another_grid,
        without_clear,
        cleared_late,
        scattered_twice,
        with_a_write_between,
        with_changed_particles,
        a_grid_cleared_after,
        a_changed_grid,
        changed_particles,
    ],
)
def test_steps_computed_again_wrongly(again):
    program = Particles()
    program.run()
    program.start_back()
    again(program, STEPS - 1)
    with pytest.raises(ds.GlobalDataAccessError, match="as it was when the kernel ran"):
        program.back(STEPS - 1)


def test_gradients_of_the_steps_in_a_wrong_order():
    program = Particles()
    program.run()
    program.start_back()
    program.step(STEPS - 1)
    with pytest.raises(ds.GlobalDataAccessError, match="as it was when the kernel ran"):
        program.back(STEPS - 2)


def test_a_grid_that_depends_on_the_order_of_lanes():
    """A second run may put the particles into other places, so it proves nothing."""
    x, y, out = field(4), field(4), field(4)
    count = field(grad=False, dtype=ds.i32)
    x.from_numpy(PLACES)

    @ds.kernel
    def clear():
        count[None] = 0
        for i in y:
            y[i] = 0.0

    @ds.kernel
    def compact():
        for i in x:
            y[ds.atomic_add(count[None], 1)] = x[i]

    @ds.kernel
    def use():
        for i in y:
            out[i] = y[i] ** 2

    clear()
    compact()
    use()
    clear()
    compact()
    with pytest.raises(ds.GlobalDataAccessError, match="use needs"):
        use.grad()


def test_two_fields_that_were_computed_again():
    """A product of two fields, both of which each step overwrites."""
    x, a, b, y = field(2), field(2), field(2), field((3, 2))

    @ds.kernel
    def make(s: ds.i32):
        for i in x:
            a[i] = x[i] * s
            b[i] = ds.sin(x[i]) * s

    @ds.kernel
    def use(s: ds.i32):
        for i in x:
            y[s, i] = a[i] * b[i]

    at = np.array([0.3, 1.1])
    x.from_numpy(at)
    for s in (1, 2):
        make(s)
        use(s)
    y.grad.fill(1.0)
    for s in (2, 1):
        make(s)
        use.grad(s)
        make.grad(s)
        a.grad.fill(0.0)
        b.grad.fill(0.0)
    expected = (1 + 4) * (np.sin(at) + at * np.cos(at))
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-14)


class Guarded:
    """A grid whose velocity is only stored where there is mass, and nowhere cleared."""

    def __init__(self, read="m[i] > 0.0"):
        x, m, p, q = field((STEPS + 1, CELLS)), field(CELLS), field(CELLS), field(CELLS)
        self.x, self.m, self.q = x, m, q
        space = {"ds": ds, "x": x, "m": m, "p": p, "q": q}
        make(
            f"""
@ds.kernel
def scatter(s: ds.i32):
    for i in m:
        m[i] = ds.max(x[s, i], 0.0)
        p[i] = x[s, i] ** 2
@ds.kernel
def normalize():
    for i in m:
        if m[i] > 0.0:
            q[i] = p[i] / m[i] + ds.sin(p[i])
@ds.kernel
def gather(s: ds.i32):
    for i in m:
        x[s + 1, i] = 0.8 * x[s, i] - 0.3
        if {read}:
            x[s + 1, i] = 0.9 * x[s, i] - 0.1 - 0.2 * q[i] ** 2
""",
            space,
        )
        self.scatter, self.normalize, self.gather = (
            space[name] for name in ("scatter", "normalize", "gather")
        )

    def step(self, s):
        self.scatter(s)
        self.normalize()
        self.gather(s)

    def run(self, start):
        self.x.from_numpy(np.vstack([start, np.zeros((STEPS, CELLS))]))
        self.q.fill(0.0)
        for s in range(STEPS):
            self.step(s)
        return (self.x.to_numpy()[STEPS] ** 2).sum()

    def back(self):
        for f in (self.x, self.m, self.q):
            f.grad.fill(0.0)
        last = np.zeros((STEPS + 1, CELLS))
        last[STEPS] = 2 * self.x.to_numpy()[STEPS]
        self.x.grad.from_numpy(last)
        for s in reversed(range(STEPS)):
            self.scatter(s)
            self.normalize()
            self.gather.grad(s)
            self.normalize.grad()
            self.scatter.grad(s)


START = np.linspace(-0.5, 1.1, CELLS)


def test_a_store_under_a_condition_is_repeated():
    """Each step leaves other cells as an older step had them; none of these is read."""
    program = Guarded()
    program.run(START)
    masses = [program.x.to_numpy()[s] > 0.0 for s in range(STEPS)]
    assert (masses[0] != masses[-1]).any()
    program.back()
    got = program.x.grad.to_numpy()[0]
    np.testing.assert_allclose(got, central(program.run, START), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("read", ["i < CELLS", "m[i] >= 0.0", "x[s, i] > -0.3"])
def test_what_the_condition_left_out_is_read(read):
    """The cell holds what another step has stored there: no run of this step makes it again."""
    program = Guarded(read.replace("CELLS", str(CELLS)))
    program.run(START)
    with pytest.raises(ds.GlobalDataAccessError, match="gather needs"):
        program.back()


def test_a_condition_that_reads_something_else_by_now():
    """What the condition read has changed since: nobody knows what it had stored."""
    program = Guarded()
    program.run(START)
    program.x.grad.fill(1.0)
    program.scatter(2)
    program.normalize()
    program.m[1] = 0.5
    with pytest.raises(ds.GlobalDataAccessError, match="gather needs"):
        program.gather.grad(2)
    program.scatter(2)
    program.normalize()
    program.scatter(2)  # the mass is the same again
    program.gather.grad(2)
    x, q = program.x.to_numpy()[2], program.q.to_numpy()
    np.testing.assert_allclose(program.q.grad.to_numpy(), np.where(x > 0, -0.4 * q, 0))
