"""What a program computes twice is differentiated once, as if it were written down once."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Let
from diffsim.ir.traversal import statements
from tests.support.source import make

N = 5
INITIAL = np.linspace(0.5, 2.0, N)
WEIGHTS = np.linspace(-1.0, 2.0, N)


def adjoint(lines):
    """The gradient of x for these lines for each `i`, and the quotients and roots of the adjoint."""
    names = dict(ds=ds)
    for name in "xy":
        names[name] = ds.field(ds.f64, shape=N, needs_grad=True)
    body = "\n".join(f"        {line}" for line in lines)
    make(f"@ds.kernel\ndef run():\n    for i in range({N}):\n        a = x[i]\n{body}\n", names)
    names["x"].from_numpy(INITIAL)
    names["run"]()
    names["y"].grad.from_numpy(WEIGHTS)
    names["run"].grad()
    made = names["run"]._only(()).derivative.ir
    every = [s for task in made.tasks for s in statements(task.body) if isinstance(s, Let)]
    slow = sum(s.op.name in ("div", "sqrt") for s in every)
    return names["x"].grad.to_numpy(), slow


@pytest.mark.parametrize(
    ("twice", "once"),
    [
        (["y[i] = ds.sqrt(a * a + 1.0) * (ds.sqrt(a * a + 1.0) - a)"],
         ["b = ds.sqrt(a * a + 1.0)", "y[i] = b * (b - a)"]),
        (["b = a * 1.0", "if i > 2:", "    b = a / (a + 1.0)", "y[i] = b + a / (a + 1.0) * a"],
         None),
        (["b = a / (a + 1.0)", "if i > 2:", "    b += a / (a + 1.0) * a", "y[i] = b"],
         ["c = a / (a + 1.0)", "b = c", "if i > 2:", "    b += c * a", "y[i] = b"]),
        (["b = a * 1.0", "for k in range(3):", "    b += ds.sqrt(a) * b", "y[i] = b * ds.sqrt(a)"],
         None),
        (["b = ds.sqrt(a + 1.0)", "c = b", "for k in range(3):", "    c += ds.sqrt(a + 1.0) * c", "y[i] = c"],
         ["b = ds.sqrt(a + 1.0)", "c = b", "for k in range(3):", "    c += b * c", "y[i] = c"]),
    ],
)  # fmt: skip
def test_twice_is_once(cpu, quick_code, twice, once):
    """The same gradient, by as many quotients and roots; None: the two are in no block together."""
    found, slow = adjoint(twice)
    if once is not None:
        expected, count = adjoint(once)
        np.testing.assert_array_equal(found, expected)
        assert slow == count
    # By complex steps of the same lines, which Python runs (all comparisons are of `i`).
    names = dict(x=INITIAL + 1e-30j, y=np.zeros(N, complex), ds=np)
    body = "\n".join(f"    {line}" for line in twice)
    exec(f"for i in range({N}):\n    a = x[i]\n{body}", names)
    np.testing.assert_allclose(found, names["y"].imag / 1e-30 * WEIGHTS, rtol=1e-13)


def test_both_sides_of_a_quotient_take_one_division(cpu):
    """y = a / b: the contribution to b is that to a times -y."""
    a, b, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(3))
    a.from_numpy(WEIGHTS)
    b.from_numpy(INITIAL)

    @ds.kernel
    def run():
        for i in range(N):
            y[i] = a[i] / b[i]

    y.grad.fill(3.0)
    run.grad()
    np.testing.assert_allclose(a.grad.to_numpy(), 3 / INITIAL, rtol=1e-15)
    np.testing.assert_allclose(b.grad.to_numpy(), -3 * WEIGHTS / INITIAL**2, rtol=1e-15)
    made = run._only(()).derivative.ir
    every = [s for task in made.tasks for s in statements(task.body) if isinstance(s, Let)]
    assert len({s.args for s in every if s.op.name == "div"}) == 2  # y, and one for both


def test_a_numerator_without_gradient_leaves_no_overflow(cpu):
    """-g y / b is 0 where a is, be b as small as it may: g / b alone is infinite."""
    a, b, y = (ds.field(ds.f32, shape=2, needs_grad=k > 0) for k in range(3))
    a.from_numpy(np.array([0, 1e-37], np.float32))
    b.fill(1e-36)

    @ds.kernel
    def run():
        for i in range(2):
            y[i] = a[i] / b[i]

    run()
    y.grad.fill(1e3)
    run.grad()
    np.testing.assert_allclose(b.grad.to_numpy(), [0, -1e38], rtol=1e-5)
