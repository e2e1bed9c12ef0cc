"""Gradients of kernels that write an element several times and read it in between."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from tests.fuzz import programs, rewrites
from tests.support.gradients import check, field, numbers
from tests.support.rules import refused, summed
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")

RIGHT = {
    "again": "y[i] = x[i] ** 2\ny[i] = ds.max(y[i], 0.1)",
    "read, and then changed": "y[i] = x[i] ** 2\nw[i] = ds.sin(y[i])\ny[i] = 0.0",
    "products": "y[i] = x[i]\ny[i] *= x[i]\ny[i] *= y[i]\ny[i] += x[i]",
    "in a branch": "y[i] = x[i] ** 2\nif x[i] > 0.2:\n    y[i] = y[i] ** 2 + 1.0",
    "in both": "if x[i] > 0.2:\n    y[i] = x[i]\nelse:\n    y[i] = ds.sin(x[i])\ny[i] *= y[i]",
    "left in a branch": "y[i] = x[i]\nif x[i] < 0.2:\n    y[i] = 0.0\ny[i] *= y[i]",
    "in a loop": "y[i] = x[i]\nfor k in range(3):\n    y[i] = ds.sin(y[i]) * x[i]",
    "a loop of no turns": "y[i] = x[i]\nfor k in range(n):\n    y[i] = y[i] ** 2\ny[i] *= y[i]",
    "in a while loop": "y[i] = x[i]\nwhile y[i] < 2.0:\n    y[i] += y[i] ** 2 + 0.5\ny[i] *= y[i]",
    "left early": "y[i] = x[i]\nfor k in range(9):\n    if y[i] > 1.0:\n        break\n    y[i] += y[i] ** 2",
    "index of a loop": "for j in range(4):\n    z[i, j] = x[j] * x[i]\n    z[i, j] = z[i, j] ** 2",
    "a sum": "y[i] = 0.0\nfor k in range(4):\n    y[i] += x[k] * x[i]\ny[i] = y[i] ** 2",
    "a component": "w = v[i] * v[i].norm()\np[i] = w\nif w.x > 0.1:\n    p[i].y = 0.0\np[i] *= p[i].x",
    "components": "p[i].x = x[i]\np[i].y = p[i].x ** 2\np[i] = p[i] * p[i].y\np[i][0] *= p[i].x",
    "rows apart": "z[n, i] = x[i]\nz[n + 1, i] = 2.0\nz[n, i] *= z[n, i]",
    "an index vector": "at = ds.Vector([n, i])\nz[at] = x[i]\nif x[i] > 0.2:\n    z[at] -= z[at] * x[i]\n"
    "    z[at + ds.Vector([1, 0])] = 2.0",
    "another field": "y[i] = x[i]\nw[i] = 3.0\ny[i] *= y[i]",
    "whole numbers": "k[i] = i\nk[i] = (k[i] + 1) % 4\ny[i] = x[k[i]] ** 2\nk[i] = 9",
}


def kernel_of(body, space, **options):
    text = "".join(f"        {line}\n" for line in body.splitlines())
    space = {"ds": ds, **space}
    make(
        f"@ds.kernel\ndef f(n: ds.i32):\n    for i in range(4):\n{text}",
        space,
    )
    return space["f"]


def fields():
    found = {k: field(6) for k in "xyw"}
    found |= {"z": field((6, 6)), "v": field(6, n=2), "p": field(6, n=2)}
    found["x"].from_numpy(numbers(6, lo=-0.5, hi=1.0))
    found["v"].from_numpy(numbers(6, 2, lo=0.3))
    return found | {"k": ds.field(ds.i32, 6)}


@ds.func
def weigh(a, k):
    return a * (1.0 + 0.3 * k)


@pytest.mark.parametrize("name", RIGHT)
def test_gradients(name):
    space, loss = fields(), field()
    f = kernel_of(RIGHT[name], space)
    y, w, z, p = (space[k] for k in "ywzp")

    @ds.kernel
    def total():
        for i in range(4):
            loss[None] += weigh(y[i], i) + weigh(w[i], 2 * i) + p[i].dot(ds.Vector([0.3, i]))
        for i, j in z:
            loss[None] += weigh(z[i, j], i * j)

    def program():
        f(0)
        total()

    check(program, loss, space["x"], space["v"])


@pytest.mark.parametrize(
    ("body", "match"),
    [
        # What it read at first is from before the launch.
        ("y[i] = ds.sin(y[i])\ny[i] = ds.cos(y[i])", "rule 1"),
        # Indices that may be equal.
        ("z[i, n] = x[i]\nz[i, k[0]] = 2.0\nz[i, n] *= z[i, n]", "rule 1"),
        (
            "for j in range(4):\n    z[i, j] = x[j]\n    z[i, j // 2] = 1.0\n    z[i, j] *= z[i, j]",
            "rule 1",
        ),
        # Other lanes.
        ("y[i] = x[i]\ny[i + 1] = 2.0\ny[i] *= y[i]", "rule 1"),
        ("y[0] = x[i]\ny[0] *= y[0]", "rule 1"),
        ("y[i] = x[i]\ny[i] *= y[i + 1]", "no defined gradient"),
    ],
)
def test_what_is_still_refused(body, match):
    space, loss = fields(), field()
    f, total = kernel_of(body, space), summed(space["y"], loss)

    def program():
        f(0)
        total()

    assert match in str(refused(program, loss, GlobalDataAccessError))


def test_a_first_value_from_before_the_launch_is_kept():
    """As a tape that saves does, also where lanes read it in branches and loops only."""
    y, n, loss = field(4), ds.field(ds.i32, 4), field()
    y.from_numpy(numbers(4))
    n.from_numpy(np.arange(4, dtype=np.int32))

    @ds.kernel
    def f():
        for i in y:
            for _ in range(n[i]):
                y[i] = ds.sin(y[i])
                if y[i] > 0.1:
                    y[i] *= y[i]

    start = y.to_numpy()
    with ds.Tape(loss, in_place="save"):
        f()
        summed(y, loss)()
    slope = np.ones(4)
    for i in range(4):
        a = start[i]
        for _ in range(i):
            slope[i] *= np.cos(a)
            a = np.sin(a)
            slope[i] *= 2 * a if a > 0.1 else 1.0
            a = a * a if a > 0.1 else a
    np.testing.assert_allclose(y.grad.to_numpy(), slope, rtol=1e-12)


def test_nothing_is_loaded_that_the_program_does_not():
    """The elements of the branch not taken, and of a loop of no turns, do not exist."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, debug=True)
    x, y, w, loss = field(4), field(2), field(2), field()
    x.from_numpy(numbers(4, lo=0.2))

    @ds.kernel
    def f():
        for i in range(4):
            for _ in range(2 * (i < 2)):
                y[i] += x[i]
                y[i] *= y[i]
            if i < 2:
                w[i] += x[i]
                w[i] *= w[i]

    with ds.Tape(loss, in_place="save"):
        f()
        summed(y, loss)()
        summed(w, loss)()
    a = x.to_numpy()[:2]
    slope = 2 * a + 2 * (a * a + a) * (2 * a + 1)
    np.testing.assert_allclose(x.grad.to_numpy(), [*slope, 0.0, 0.0], rtol=1e-12)


def test_what_stays_is_loaded():
    """And not computed again, since that is what the adjoint would need more of."""
    x, y, w = field(4), field(4), field(4)

    @ds.kernel
    def f():
        for i in x:
            y[i] = ds.exp(x[i])
            w[i] = ds.sin(y[i])

    assert "load y[" in str(f.grad.ir())


@pytest.mark.parametrize("seed", range(5))
def test_random_programs(seed):
    text = rewrites.make(seed)
    for how in ("save", "refuse"):
        assert programs.verdict(text, seed, how) in ("right", "refused", "invalid")


def test_a_launch_without_gradients_clears_what_it_stored_to():
    """Or is refused, where the adjoint cannot tell what that was."""
    y, loss, at = field(4), field(), ds.field(ds.i32, 1)
    y.from_numpy(numbers(4, lo=0.2))

    @ds.kernel
    def f():
        for i in y:
            if i == 0:
                for _ in range(2):
                    if y[0] > -0.5:
                        y[0] *= -2.0
                y[0] *= y[0]

    @ds.kernel
    def g(n: ds.i32):
        if n < 9:
            for _ in range(n):
                if y[0] < -0.45:
                    break
                y[0] *= -2.0

    @ds.kernel
    def h():
        for i in range(1):
            for _ in range(at[0]):
                y[0] *= -2.0
        for i in range(2):
            if y[0] < 0.0:
                y[i] = 0.0

    for launch in (f, lambda: g(2)):
        with ds.Tape(loss, in_place="save"):
            with ds.ad.no_grad():
                launch()
            summed(y, loss)()
        assert y.grad.to_numpy().tolist() == [0.0, 1.0, 1.0, 1.0]
    with pytest.raises(GlobalDataAccessError):
        with ds.Tape(loss, in_place="save"):
            with ds.ad.no_grad():
                h()
            summed(y, loss)()
