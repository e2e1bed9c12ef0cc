"""Adjoints of loops that nothing flows back into are left out, and nothing else is."""

import numpy as np
import pytest

import diffsim as ds

POINTS, CENTRES, D = 37, 5, 3


@pytest.fixture
def f64(cpu, quick_code):
    cpu.init(arch=cpu.cpu, default_fp=cpu.f64, rules="lifted")
    return cpu


def numbers(*shape):
    field = ds.field(ds.f64, shape=shape, needs_grad=True)
    if shape:
        field.from_numpy(np.random.default_rng(len(shape)).standard_normal(shape))
    return field


def test_nearest_centre(f64):
    points, centres, loss = numbers(POINTS, D), numbers(CENTRES, D), numbers()

    @ds.kernel
    def cost():
        for i in range(POINTS):
            best = 1e30
            for c in range(CENTRES):
                far = 0.0
                for d in range(D):
                    far += (points[i, d] - centres[c, d]) ** 2
                best = ds.min(best, far)
            loss[None] += best

    with ds.Tape(loss):
        cost()
    p, q = points.to_numpy(), centres.to_numpy()
    nearest = ((p[:, None] - q) ** 2).sum(-1).argmin(1)
    exact = np.zeros_like(q)
    np.add.at(exact, nearest, 2 * (q[nearest] - p))
    np.testing.assert_allclose(points.grad.to_numpy(), 2 * (p - q[nearest]), rtol=1e-12)
    np.testing.assert_allclose(centres.grad.to_numpy(), exact, rtol=1e-12, atol=1e-12)
    lines = cost.grad.ir().splitlines()
    update = next(k for k, line in enumerate(lines) if "centres.grad" in line and "atomic" in line)
    assert any(line.strip().startswith("if ") for line in lines[:update])


def test_loops_that_write_are_not_left_out(f64):
    """Nothing flows back into the sum, but much into what the loop stores."""
    x, y, loss = numbers(POINTS, D), numbers(POINTS, D), numbers()

    @ds.kernel
    def cost():
        for i in range(POINTS):
            total = 0.0
            for d in range(D):
                y[i, d] = x[i, d] ** 2
                total += y[i, d]
            loss[None] += ds.min(-1.0, total)

    @ds.kernel
    def add_up():
        for i, d in y:
            loss[None] += 3.0 * y[i, d]

    with ds.Tape(loss):
        cost()
        add_up()
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * x.to_numpy(), rtol=1e-12)


def test_second_derivatives_where_the_first_is_zero(f64):
    """The square of a sum that is 0: its adjoint is 0 there, but changes with x."""
    x, loss = numbers(1), numbers()
    x.fill(0.0)

    @ds.kernel
    def square():
        for i in x:
            total = 0.0
            for k in range(4):
                total += (k + 1.0) * ds.sin(x[i])
            taken = ds.max(total, -1.0)
            loss[None] += taken * taken

    matrix = ds.ad.hessian(square, x, loss=loss)
    np.testing.assert_allclose(np.reshape(np.asarray(matrix), -1), [200.0], rtol=1e-12)


@pytest.mark.parametrize("start", [0.0, 2.0])
def test_infinite_derivatives_of_what_is_not_taken(f64, start):
    x, loss = numbers(1), numbers()
    x.fill(start)

    @ds.kernel
    def root():
        for i in x:
            total = 0.0
            for k in range(3):
                total += x[i] ** 0.25 / (x[i] + k)
            loss[None] += ds.select(x[i] > 1.0, total, 5.0 * x[i])

    with ds.Tape(loss):
        root()
    k = np.arange(3)
    exact = (0.25 * 2.0**-0.75 / (2 + k) - 2.0**0.25 / (2 + k) ** 2).sum() if start else 5.0
    np.testing.assert_allclose(x.grad.to_numpy(), [exact], rtol=1e-12)


def test_values_that_an_iteration_replaces_beside_a_sum(f64):
    """`last` is of one iteration, from which nothing flows back into the loop that adds to `total`."""
    x, loss = numbers(POINTS, 9), numbers()

    @ds.kernel
    def chain():
        for i in range(POINTS):
            total, last = 0.0, 0.5
            for k in range(i % 6):
                if k == 1:
                    continue
                last = x[i, 8] ** 2
                for j in range(k):
                    total += x[i, j]
            loss[None] += last - 3.0 * total

    with ds.Tape(loss):
        chain()
    exact = np.zeros((POINTS, 9))
    for i in range(POINTS):
        turns = [k for k in range(i % 6) if k != 1]
        exact[i, 8] = 2 * x.to_numpy()[i, 8] if turns else 0.0
        for k in turns:
            exact[i, :k] -= 3.0
    np.testing.assert_allclose(x.grad.to_numpy(), exact, rtol=1e-12)
