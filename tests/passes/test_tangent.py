"""Forward mode on IR: tangents against central differences in f64, in the interpreter and as machine code."""

import numpy as np
import pytest

from diffsim.backends import interpreter
from tests.support.tangents import (
    BODIES,
    WithTangents,
    differences,
    directions_of,
    kernel_of,
    random_memory,
)

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


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
