"""Gradients by hand where `forward()` was called several times, and then `backward()` several times.

A second backward pass may mean an earlier rollout. It is run where that one had the same values, and refused
where anything was different.
"""

import numpy as np
import pytest

import diffsim as ds
from tests.fuzz import numbering
from tests.support.gradients import field
from tests.support.source import make

STEPS, CELLS = 3, 6
START = np.array([0.3, 1.1, -0.4, 0.8, 0.5, -0.9])

KERNELS = """
@ds.kernel
def clear():
    for i in grid:
        grid[i] = 0.0
@ds.kernel
def scatter(t: ds.i32):
    for i in range(1, CELLS - 1):
        grid[i - 1] += x[t, i] ** 2
        grid[i + 1] += w[None] * x[t, i]
@ds.kernel
def move(t: ds.i32):
    for i in range(1, CELLS - 1):
        v[t + 1, i] = 0.5 * v[t, i] + grid[i] * x[t, i]
        x[t + 1, i] = x[t, i] + 0.1 * v[t + 1, i]
@ds.kernel
def push(f: ds.f64):
    for i in range(2, CELLS):
        shared[i] *= f
@ds.kernel
def measure():
    for i in range(CELLS):
        loss[None] += x[STEPS, i] ** 2 + w[None] * shared[i]
@ds.kernel
def choose():
    for i in grid:
        if shared[i] > w[None]:
            grid[i] = shared[i]
@ds.kernel
def use():
    for i in order:
        loss[None] += grid[order[i]] ** 3
@ds.kernel
def swap():
    for i in order:
        order[i] = 5 - order[i]
@ds.kernel
def paint():
    for i in picture:
        picture[i] = x[STEPS, i]
@ds.kernel
def halve():
    for i in range(1, 3):
        x[0, i] *= 0.5
"""
NAMES = "clear scatter move push measure choose use swap paint halve".split()


class Program:
    """Particles on a grid that all steps share; rims that no launch stores; a buffer that launches update."""

    def __init__(self):
        self.x, self.v = field((STEPS + 1, CELLS)), field((STEPS + 1, CELLS))
        self.grid, self.shared = field(CELLS), field(CELLS)
        self.w, self.loss = field(), field()
        self.picture, self.order = field(CELLS, grad=False), ds.field(ds.i32, 2)
        space = {**vars(self), "ds": ds, "STEPS": STEPS, "CELLS": CELLS}
        make(KERNELS, space)
        self.__dict__.update({name: space[name] for name in NAMES})
        self.x.from_numpy(np.vstack([START, np.full((STEPS, CELLS), 0.2)]))
        self.w[None] = 0.7

    def grid_again(self, t):
        self.clear()
        self.scatter(t)

    def forward(self):
        self.loss[None] = 0.0
        self.shared.fill(0.4)
        for t in range(STEPS):
            self.grid_again(t)
            self.move(t)
        self.measure()

    def backward(self):
        for f in (self.x, self.v, self.grid, self.shared, self.w):
            f.grad.fill(0.0)
        self.loss.grad[None] = 1.0
        self.measure.grad()
        for t in reversed(range(STEPS)):
            self.grid_again(t)
            self.move.grad(t)
            self.scatter.grad(t)
            self.clear.grad()
        return self.x.grad.to_numpy(), self.w.grad[None]

    def right(self):
        """The same, by differences of the loss in w: the others agree with the first backward pass."""
        losses = []
        for h in (1e-6, -1e-6):
            self.w[None] = 0.7 + h
            self.forward()
            losses.append(self.loss[None])
        self.w[None] = 0.7
        return (losses[0] - losses[1]) / 2e-6


@pytest.fixture(scope="module")
def program():
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    made = Program()
    made.slope = made.right()
    return made


@pytest.fixture(autouse=True)
def _at_start(program):
    program.x.from_numpy(np.vstack([START, np.full((STEPS, CELLS), 0.2)]))
    program.w[None] = 0.7


def check(program, *found):
    for x, w in found:
        np.testing.assert_allclose(w, program.slope, rtol=1e-8)
        np.testing.assert_array_equal(x, found[0][0])


def test_rollouts_and_backward_passes_several_times(program):
    for _ in range(3):
        program.forward()
    first, second = program.backward(), program.backward()
    program.forward()
    check(program, first, second, program.backward(), program.backward())


def test_other_work_between(program):
    """A plot, a kernel without gradients, and writes of what no gradient loads."""
    program.forward()
    program.forward()
    first = program.backward()
    program.paint()
    program.picture.fill(1.0)
    program.loss[None] = 5.0
    check(program, first, program.backward())


def test_a_state_that_is_set_back(program):
    """Another parameter in between: equal constants are equal values."""
    for w in (0.7, 0.2, 0.7):
        program.w[None] = w
        program.forward()
    check(program, program.backward())


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ("program.w[None] = 0.2", "a Python statement"),
        ("program.x[0, 2] = 0.1", "a Python statement"),
        ("program.halve()", "the kernel halve"),
        ("program.x.from_numpy(program.x.to_numpy())", "a Python statement"),
        ("program.x[STEPS, 0] = 3.0", "a Python statement"),  # a rim, which no launch stores
    ],
)
def test_a_rollout_that_was_another_one(program, change, by):
    program.forward()
    exec(change, {"program": program, "STEPS": STEPS})
    program.forward()
    program.backward()
    with pytest.raises(ds.GlobalDataAccessError, match=r"was called 2 times since") as caught:
        program.backward()
    assert f"the first difference was made by {by}\n  File" in str(caught.value)
    program.forward()
    program.forward()  # the second pass may mean the first of these
    program.backward()
    program.backward()


def test_a_step_that_was_left_out(program):
    program.forward()
    program.forward()
    program.clear()
    program.scatter(1)  # the grid of another step
    with pytest.raises(ds.GlobalDataAccessError, match="move needs grid as it was"):
        program.move.grad(2)
    program.clear()
    program.scatter(2)
    program.move.grad(2)


def test_a_state_that_updates_itself(program):
    """The second update reads what the first one left."""
    for _ in range(2):
        program.push(0.5)
        program.measure()
    program.measure.grad()
    with pytest.raises(ds.GlobalDataAccessError, match=r"measure.grad was called 2 times"):
        program.measure.grad()
    for _ in range(2):
        program.shared.fill(0.4)
        program.push(0.5)
        program.measure()
    for _ in range(2):
        program.w.grad[None], program.loss.grad[None] = 0.0, 1.0
        program.measure.grad()
        np.testing.assert_allclose(program.w.grad[None], 2 * 0.4 + 4 * 0.2)


def test_after_a_tape_nothing_is_known(program):
    """Its backward pass may set fields back, which no reading of the clock tells."""
    program.forward()
    with ds.Tape(program.loss, in_place="save"):
        program.halve()
        program.halve()
        program.measure()
    program.forward()
    program.backward()
    with pytest.raises(ds.GlobalDataAccessError, match="was called 2 times"):
        program.backward()


def test_stores_that_values_choose(program):
    """The same launch stores other elements where the condition reads something else."""
    for others in (True, False):
        program.grid.fill(0.1)
        if others:
            program.shared.fill(0.9)
            program.choose()
        program.shared.fill(0.4)
        program.shared[2] = 0.8
        program.choose()
        program.use()
    program.use.grad()
    with pytest.raises(ds.GlobalDataAccessError, match=r"use.grad was called 2 times"):
        program.use.grad()
    for _ in range(2):  # in another order of what does not matter to one another
        program.grid.fill(0.1)
        program.choose()
        program.use()
    program.use.grad()
    program.use.grad()


def test_indices_that_a_kernel_without_gradients_changes(program):
    """Its launches are in no history."""
    program.grid.fill(0.5)
    program.order.fill(1)
    program.use()
    program.swap()
    program.use()
    program.use.grad()
    with pytest.raises(ds.GlobalDataAccessError, match=r"use.grad was called 2 times"):
        program.use.grad()


def test_a_first_state_from_python_before_the_field_has_rows():
    """The first kernel tells which axis has rows; what was written before is of one row all the same."""
    program = Program()
    found = []
    for again in (program.forward, program.backward):
        for _ in range(2):
            if again == program.forward:
                for i in range(CELLS):
                    program.x[0, i] = START[i]
            found.append(again())
    np.testing.assert_array_equal(found[2][0], found[3][0])
    assert found[2][0][0].any()


def test_rows_of_several_indices_that_python_sets():
    """A row of the versions has two indices: the array for one of them changes the right row."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    u, y = field((8, 2)), field(2)

    @ds.kernel
    def use(t: ds.i32):
        for i, k in ds.ndrange(2, 2):
            y[k] += u[t * 2 + i, k] ** 2

    use(2)
    u[5] = np.array([1.0, 2.0])
    with pytest.raises(ds.GlobalDataAccessError, match="use needs u as it was"):
        use.grad(2)


def test_a_state_that_python_sets_again():
    """Arrays, rows, vectors and elements of the same numbers, copies of fields, and arguments that are 0."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    p = ds.Vector.field(2, ds.f64, shape=3, needs_grad=True)
    u, start, w, loss = field((2, 2)), field((2, 2)), field(), field()
    space = {"ds": ds, "p": p, "u": u, "w": w, "loss": loss}
    make(
        """
@ds.kernel
def energy(gravity: ds.types.vector(2, ds.f64), shift: ds.f64):
    for i in p:
        loss[None] += w[None] * p[i].norm_sqr() + (p[i] - gravity).norm_sqr() * u[i % 2, 1] + shift
@ds.kernel
def move(gravity: ds.types.vector(2, ds.f64), shift: ds.f64):
    for i in p:
        p[i] = 0.5 * p[i] + gravity + shift
    for i, j in u:
        u[i, j] = 0.5 * u[i, j]
""",
        space,
    )
    energy, move = space["energy"], space["move"]
    places = np.array([[0.5, 1.0], [2.0, -1.0], [0.0, 0.25]])
    start.from_numpy(np.array([[1.0, 2.0], [3.0, 4.0]]))

    def set_all(first):
        loss[None], w[None] = 0.0, 0.5
        (p.fill([1.0, first]), p.from_numpy(places * first))
        for k in range(3):
            p[k] = [first, 1.0] if k else places[0]
        (u.copy_from(start), u.from_numpy(start.to_numpy()))
        for k in range(2):
            u[k] = np.array([k, first])

    def rollout(first=1.0):
        set_all(first)
        energy([0.0, -9.8], 0.0)
        move([0.0, -9.8], 0.0)
        set_all(first)

    def gradient():
        w.grad[None], loss.grad[None] = 0.0, 1.0
        energy.grad([0.0, -9.8], 0.0)
        return w.grad[None]

    right = 0.25 + 1.0 + 2 * (1.0 + 1.0)
    for _ in range(3):
        rollout()
    assert [gradient() for _ in range(3)] == [right] * 3
    rollout(first=2.0)
    for _ in range(2):
        rollout()
    assert [gradient() for _ in range(2)] == [right] * 2
    with pytest.raises(ds.GlobalDataAccessError, match="was called 3 times"):
        gradient()


def test_equal_numbers_are_equal_values():
    for seed in range(20):
        assert numbering.verdict(numbering.make(seed)) == "right"
