"""Forward mode on IR: tangents against central differences in f64, in the interpreter and as machine code."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from tests.support.tangents import WithTangents, differences, random_memory
from tests.support.trace import ir_of

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")

BODIES = {
    "elementwise": """
    for i in x:
        y[i] = ds.sin(x[i]) * y[i] / x[i] ** 1.5 + ds.atan2(x[i], 2.0) - abs(y[i])
""",
    "vectors": """
    for i in x:
        w = v[i] * x[i] + ds.Vector([y[i], 1.0])
        v[i] = w.normalized() + 0.5 * v[i].yx
        y[i] = w.dot(v[i])
        v[i].x = x[i] * y[i]
""",
    "matrices": """
    for i in x:
        a = ds.Matrix([[x[i], y[i]], [0.3, v[i].x]])
        b = a @ a.transpose() + v[i].outer_product(v[i])
        v[i] = b.inverse() @ v[i]
        y[i] = b.determinant() + a.trace() + b[n % 2, 0]
""",
    "sums": """
    total = ds.f64(0.0)
    for i in x:
        total += x[i] * x[i]
        s[None] += y[i] * x[i]
    for i in x:
        y[i] = x[i] / total
""",
    "scatter": """
    for i in x:
        y[at[i]] += x[i] ** 2
""",
    "stencil": """
    for i in range(1, 4):
        y[i] = x[i - 1] * x[i] - x[i + 1] / x[i]
""",
    "in place": """
    for i in x:
        x[i] = x[i] * x[i] + y[i]
        x[i] *= y[i]
        y[i] = x[i] + 1.0
""",
    "a branch": """
    for i in x:
        a = x[i]
        if y[i] > 0.7:
            a = a * y[i]
            y[i] = a
        elif i > 1:
            a = 0.5
        x[i] = a + y[i]
""",
    "loops": """
    for i in x:
        a = x[i]
        b = ds.f64(1.0)
        k = 0
        for j in range(n):
            a, b = a * y[i] + 0.1, b * a
            k += j
        while b > 0.05 and k < 9:
            b *= a * 0.3
            k += 1
        x[i] = a + b * k
""",
    "no iterations": """
    for i in x:
        a = x[i]
        for j in range(n, 1):
            a = a * y[i]
        for j in range(-n):
            a += 1.0
        y[i] = a
""",
    "constants": """
    for i in x:
        y[i] = 2.0
        c[i] = ds.floor(x[i]) + y[i]
        x[i] = c[i] * x[i]
""",
    "an own extreme": """
    for i in x:
        ds.atomic_max(y[i], x[i] * 1.5)
        ds.atomic_min(v[i].x, x[i])
""",
    "a serial task": """
    s[None] = x[0]
    old = ds.atomic_add(s[None], x[1] * x[2])
    k = n - n
    if k == 0:
        for i in range(1, 5):
            s[None] = s[None] * 0.5 + x[i] * old
            y[i] = s[None]
""",
    "other precision": """
    for i in x:
        y[i] = ds.cast(ds.cast(x[i], ds.i32) + 1, ds.f64) * x[i]
""",
}


def kernel_of(body):
    x, y, c = (ds.field(ds.f64, shape=5) for _ in range(3))
    v = ds.Vector.field(2, ds.f64, shape=5)
    s, at = ds.field(ds.f64, shape=()), ds.field(ds.i32, shape=5)
    space = {"x": x, "y": y, "c": c, "v": v, "s": s, "at": at}
    return ir_of(body, **space), space


def directions_of(kernel, count):
    return [
        {m: a for m, a in random_memory(kernel, 100 + k, -1, 1).items() if m.dtype.is_float}
        for k in range(count)
    ]


def check(body, width=1, args=(3,), rel=1e-7):
    """The tangents of a kernel equal differences, and its own results those of the primal, bit by bit."""
    primal, fields = kernel_of(body)
    start, directions = random_memory(primal, 1), directions_of(primal, width)
    made = WithTangents(primal, width)
    memory, found, _ = made.run(start, directions, args)
    alone = {m: a.copy() for m, a in start.items()}
    interpreter.run(primal, alone, args)
    for m in start:
        np.testing.assert_array_equal(memory[m], alone[m])
    for k, direction in enumerate(directions):
        slope, _ = differences(primal, start, direction, args)
        for m in made.active:
            np.testing.assert_allclose(found[m][k], slope[m], rtol=rel, atol=rel)
    compiled, tangents = made.run_compiled(start, directions, args)
    for m in made.active:
        np.testing.assert_allclose(compiled[m], memory[m], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(tangents[m], found[m], rtol=1e-11, atol=1e-11)
    return made, fields


@pytest.mark.parametrize("name", BODIES)
def test_tangents_are_directional_derivatives(name):
    check(BODIES[name])


@pytest.mark.parametrize("name", ["vectors", "matrices", "sums", "loops", "a serial task"])
def test_four_at_once(name):
    check(BODIES[name], width=4)


def test_a_stopped_gradient_is_a_constant():
    primal, space = kernel_of("    for i in x:\n        y[i] = x[i] * ds.stop_grad(x[i])\n")
    start, (direction,) = random_memory(primal, 1), directions_of(primal, 1)
    made = WithTangents(primal)
    _, found, _ = made.run(start, [direction], (3,))
    x, y = space["x"]._mem, space["y"]._mem
    np.testing.assert_array_equal(found[y][0], direction[x] * start[x])
