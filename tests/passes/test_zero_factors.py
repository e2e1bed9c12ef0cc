"""Incoming adjoints times the constant 0 are nothing: no instructions, and 0 where they are infinite."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Const, Let
from diffsim.ir.traversal import statements
from diffsim.passes.pipeline import lower

N = 5
START = np.linspace(-1.0, 2.0, N)


def products_with_zero(kernel):
    """How many products of an adjoint have a factor that is the constant 0."""
    found = kernel._only(()).derivative.ir
    for _, run in lower(debug=False, deterministic=False):
        found = run(found)
    lets = [s for t in found.tasks for s in statements(t.body) if isinstance(s, Let)]
    return sum(
        s.op.name == "mul" and any(isinstance(a, Const) and a.value == 0 for a in s.args)
        for s in lets
    )


@pytest.fixture
def fields():
    x = ds.Vector.field(3, ds.f64, shape=N, needs_grad=True)
    y = ds.Vector.field(3, ds.f64, shape=N, needs_grad=True)
    x.from_numpy(np.stack([START, START**2, 1.0 - START], axis=1))
    return x, y


def test_an_axis_in_a_cross_product(cpu, fields):
    x, y = fields

    @ds.kernel
    def run():
        for i in x:
            y[i] = x[i].cross(ds.Vector([0.0, 0.0, 2.0]))

    weights = np.arange(3.0 * N).reshape(N, 3)
    run()
    y.grad.from_numpy(weights)
    run.grad()
    # y = (2 x1, -2 x0, 0)
    expected = np.stack([-2 * weights[:, 1], 2 * weights[:, 0], 0 * weights[:, 0]], axis=1)
    np.testing.assert_array_equal(x.grad.to_numpy(), expected)
    assert products_with_zero(run) == 0


def test_a_loop_carries_adjoints(cpu, fields):
    x, y = fields

    @ds.kernel
    def run():
        for i in x:
            turned = x[i]
            for _ in range(3):
                step = ds.Matrix([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
                turned = step @ turned * turned[2]
            y[i] = turned

    run()
    y.grad.from_numpy(np.ones((N, 3)))
    run.grad()

    def sums(v):
        step = np.array([[0, 1, 0], [2, 0, 0], [0, 0, 3]])
        for _ in range(3):
            v = np.einsum("jk,ik->ij", step, v) * v[:, 2:]
        return v.sum(axis=1)

    at = x.to_numpy().astype(complex)
    steps = [sums(at + 1e-30j * np.eye(3)[k]).imag / 1e-30 for k in range(3)]
    np.testing.assert_allclose(x.grad.to_numpy(), np.stack(steps, axis=1), rtol=1e-13)


def test_an_infinite_adjoint(cpu, fields):
    x, y = fields

    @ds.kernel
    def run():
        for i in x:
            y[i] = x[i] * ds.Vector([0.0, 1.0, -0.0])

    run()
    y.grad.fill(np.inf)
    run.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), [[0.0, np.inf, 0.0]] * N)


def test_values_keep_their_products(cpu):
    """0 times infinity is no number: forward, and where the adjoint asks again which way a lane went."""
    x = ds.field(ds.f64, shape=N, needs_grad=True)
    y = ds.field(ds.f64, shape=N, needs_grad=True)

    @ds.kernel
    def run():
        for i in x:
            sum_ = ds.f64(0.0)
            for _ in range(2):
                sum_ = sum_ * 0.0 + 0.0 * ds.exp(x[i])
            if sum_ == 0.0:
                y[i] = 2.0 * x[i]
            else:
                y[i] = 3.0 * x[i]

    x.from_numpy(np.array([1.0, 1000.0, 2.0, 1000.0, 3.0]))
    run()
    np.testing.assert_array_equal(y.to_numpy(), [2.0, 3000.0, 4.0, 3000.0, 6.0])
    y.grad.fill(1.0)
    run.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), [2.0, 3.0, 2.0, 3.0, 2.0])


def test_gradients_that_the_program_reads(cpu):
    """They are values of the program, also in its adjoint."""
    x, y, z = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(3))

    @ds.kernel
    def run():
        for i in x:
            if 0.0 * z.grad[i] == 0.0:
                y[i] = 2.0 * x[i] * ds.stop_grad(z[i])
            else:
                y[i] = 3.0 * x[i]

    x.fill(1.0)
    z.fill(1.0)
    z.grad.from_numpy(np.array([1.0, np.inf, 0.0, -np.inf, 3.0]))
    run()
    np.testing.assert_array_equal(y.to_numpy(), [2, 3, 2, 3, 2])
    y.grad.fill(1.0)
    run.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), [2, 3, 2, 3, 2])
