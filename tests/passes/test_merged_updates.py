"""What a lane adds to one element of a gradient is one addition; what a branch computes is computed once."""

from functools import partial

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Atomic, Let
from diffsim.ir.traversal import statements
from diffsim.passes import pipeline
from tests.support.source import make

N = 6
INITIAL = np.linspace(0.5, 2.0, N)
WEIGHTS = np.linspace(-1.0, 2.0, N)


def kernel_of(lines):
    """A kernel of these lines for each `i`, and its fields."""
    field = partial(ds.field, ds.f64, shape=N, needs_grad=True)
    names = dict(ds=ds, x=field(), y=field(), at=ds.field(ds.i32, shape=N))
    body = "\n".join(f"        {line}" for line in lines)
    make(f"@ds.kernel\ndef run():\n    for i in range({N}):\n{body}\n", names)
    names["x"].from_numpy(INITIAL)
    names["at"].from_numpy(np.array([0, 3, 1, 1, 2, 0]))
    return names


def adjoint_of(names, upto):
    """The statements of the adjoint's lanes after a stage."""
    made = pipeline.run(names["run"]._only(()).derivative.ir, pipeline.LOWER, upto)
    return [s for task in made.tasks for s in statements(task.body)]


def check_gradient(names):
    """Against central differences along a random direction."""
    way, step = np.random.default_rng(0).normal(size=N), 1e-6

    def loss(x):
        names["x"].from_numpy(x)
        names["y"].fill(0.0)
        names["run"]()
        return names["y"].to_numpy() @ WEIGHTS

    slope = (loss(INITIAL + step * way) - loss(INITIAL - step * way)) / (2 * step)
    loss(INITIAL)
    names["x"].grad.fill(0.0)
    names["y"].grad.from_numpy(WEIGHTS)
    names["run"].grad()
    np.testing.assert_allclose(names["x"].grad.to_numpy() @ way, slope, rtol=1e-7)


@pytest.mark.parametrize(
    ("lines", "additions"),
    [
        # Its own element, and one of two neighbours that a table tells: three before, and five.
        (
            [
                "k = at[i]",
                "a = x[i] * x[i]",
                "if k > 1:",
                "    a += x[i] * x[k]",
                "y[i] += a * x[i]",
            ],
            2,
        ),
        (
            [
                *("k = at[i]", "a = x[i] * x[i]", "if k > 1:", "    if k > 2:"),
                *("        a += x[i] * x[k]", "    else:", "        a -= x[i] * x[i]"),
                *("else:", "    a += x[k] * x[i]", "y[i] += a"),
            ],
            3,
        ),
        # Without an addition that always runs, the element may not exist.
        (["k = at[i]", "if k > 1:", "    y[i] += x[k] * x[k]", "if k < 1:", "    y[i] += x[k]"], 3),
    ],
)
def test_additions_to_one_element(cpu, quick_code, lines, additions):
    names = kernel_of(lines)
    every = adjoint_of(names, "reductions")
    assert sum(isinstance(s, Atomic) and s.mem.name == "x.grad" for s in every) == additions
    check_gradient(names)


def test_additions_stay_on_their_sides_of_a_load(cpu, quick_code):
    """The adjoint of the store reads and clears what was added before it."""
    names = kernel_of(
        [
            "a = x[i] * x[i]",
            "if at[i] > 1:",
            "    a += x[i]",
            "y[i] = a * x[i]",
            "y[i] += x[i] * x[i]",
        ]
    )
    check_gradient(names)


@pytest.mark.parametrize(
    ("again", "roots"),
    [
        (["if k > 1:", "    b += ds.sqrt(x[i] + x[k])"], 1),
        (["if at[i] > 1:", "    b += ds.sqrt(x[i] + x[k])"], 1),
        (["if k > 1:", "    if i > 2:", "        b += ds.sqrt(x[i] + x[k])"], 1),
        (["if k > 2:", "    b += ds.sqrt(x[i] + x[k])"], 2),
        (["if k > 1:", "    b += ds.sqrt(x[i] - 0.5 * x[k] + 3.0)"], 2),
        (["if k > 1:", "    b += 1.0", "else:", "    b += ds.sqrt(x[i] + x[k])"], 2),
    ],
)
def test_a_later_branch_on_the_same_condition(cpu, quick_code, again, roots):
    """A root that one branch has computed is not computed in the other; of both, the forward code alone."""
    first = ["if k > 1:", "    a = ds.sqrt(x[i] + x[k])"]
    names = kernel_of(
        [
            "k = at[i]",
            "a = ds.cast(0.0, ds.f64)",
            "b = a",
            *first,
            *again,
            "y[i] += a * a * b + x[i]",
        ]
    )
    made = pipeline.run(names["run"]._only(()).ir, pipeline.LOWER, "dce")
    every = [s for task in made.tasks for s in statements(task.body)]
    assert sum(isinstance(s, Let) and s.op.name == "sqrt" for s in every) == roots
    found = [s for s in adjoint_of(names, "dce") if isinstance(s, Let) and s.op.name == "sqrt"]
    assert len(found) == roots
    check_gradient(names)


def test_what_a_task_writes_is_not_the_same(cpu, quick_code):
    """Two branches read an element that the lane changes in between."""
    names = kernel_of(
        [
            *(
                "k = at[i]",
                "a = ds.cast(0.0, ds.f64)",
                "if k > 1:",
                "    a = ds.sqrt(x[i])",
                "x[i] = 2.0 * x[i]",
            ),
            *("if k > 1:", "    a += ds.sqrt(x[i])", "y[i] = a"),
        ]
    )
    names["run"]()
    taken = names["at"].to_numpy() > 1
    expected = np.where(taken, np.sqrt(INITIAL) + np.sqrt(2 * INITIAL), 0.0)
    np.testing.assert_allclose(names["y"].to_numpy(), expected, rtol=1e-15)
