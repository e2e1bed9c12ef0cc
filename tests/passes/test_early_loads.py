"""Loads of neighbours leave short branches where the element exists and nobody writes it, and only there."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import If, Load
from diffsim.ir.traversal import statements
from diffsim.passes import pipeline
from tests.support.source import make

N = 12
NUMBERS = np.random.default_rng(0).standard_normal((3, N, N, 2))


def kernel_of(lines, bounds="(1, N - 1), (1, N - 1)"):
    """A kernel of these lines for a box of cells, and its fields."""
    field = ds.Vector.field(2, ds.f64, shape=(3, N, N), needs_grad=True)
    names = dict(ds=ds, N=N, w=field, at=ds.field(ds.i32, shape=N))
    names["out"] = ds.Vector.field(2, ds.f64, shape=(N, N), needs_grad=True)
    body = "\n".join(f"        {line}" for line in lines)
    make(f"@ds.kernel\ndef run(t: ds.i32):\n    for i, j in ds.ndrange({bounds}):\n{body}\n", names)
    field.from_numpy(NUMBERS)
    return names


def in_branches(names):
    """How many loads the lanes make in branches, after the passes."""
    made = pipeline.run(names["run"]._only((0,)).ir, pipeline.LOWER)
    return sum(
        isinstance(x, Load)
        for task in made.tasks
        for s in statements(task.body)
        if isinstance(s, If)
        for side in (s.then, s.orelse)
        for x in side.stmts
    )


UPWIND = [
    "c = w[t, i, j]",
    "d = w[t, i + 1, j] - c",
    "if c[0] > 0:",
    "    d = c - w[t, i - 1, j]",
    "out[i, j] = c[0] * d",
]


def test_a_neighbour_of_what_is_loaded_anyway_is_loaded_early(cpu):
    names = kernel_of(UPWIND)
    assert in_branches(names) == 0
    names["run"](1)
    c, before, after = NUMBERS[1, 1:-1], NUMBERS[1, :-2], NUMBERS[1, 2:]
    exact = c[..., :1] * np.where(c[..., :1] > 0, c - before, after - c)
    np.testing.assert_array_equal(names["out"].to_numpy()[1:-1, 1:-1], exact[:, 1:-1])


def test_of_components_the_lanes_are_vectors(cpu):
    names = kernel_of(UPWIND)
    names["run"](1)
    assert "fcmp" in names["run"].llvm()
    made = pipeline.run(names["run"]._only((0,)).ir, pipeline.LOWER)
    (branch,) = [s for task in made.tasks for s in statements(task.body) if isinstance(s, If)]
    assert len(branch.then.stmts) == 2
    assert not branch.orelse.stmts


@pytest.mark.parametrize(
    ("lines", "bounds"),
    [
        # The first row has no neighbour above it.
        (
            ["c = w[t, i, j]", "if i * j > c[0]:", "    c = w[t, i - 1, j]", "out[i, j] = c"],
            "(0, N - 1), (1, N - 1)",
        ),
        # Nothing says that the slice before exists.
        (
            ["c = w[t, i, j]", "if c[0] > 0:", "    c = w[t - 1, i, j]", "out[i, j] = c"],
            "(1, N - 1), (1, N - 1)",
        ),
        # Nor that a table's row does.
        (
            ["c = w[t, i, j]", "if c[0] > 0:", "    c = w[t, at[i], j]", "out[i, j] = c"],
            "(1, N - 1), (1, N - 1)",
        ),
        # Nothing beside it is accessed by all lanes.
        (
            ["c = out[i, j]", "if c[0] > 0:", "    c = w[t, i - 1, j]", "out[i, j] = c"],
            "(1, N - 1), (1, N - 1)",
        ),
        # Too far to be in the cache.
        (
            ["c = w[t, i, j]", "if c[0] > 0:", "    c = w[t, i + 5, j]", "out[i, j] = c"],
            "(1, N - 6), (1, N - 1)",
        ),
        # A cell of the other colour is written by another lane.
        (
            [
                "c = w[t, i, j]",
                "if (i + j) % 2 == 0:",
                "    c = w[t, i - 1, j]",
                "if (i + j) % 2 == 0:",
                "    w[t, i, j] = 2.0 * c",
                "else:",
                "    out[i, j] = c",
            ],
            "(1, N - 1), (1, N - 1)",
        ),
        # A function takes longer than a branch that is guessed wrong.
        (
            ["c = w[t, i, j]", "if c[0] > 0:", "    c = ds.sin(w[t, i - 1, j])", "out[i, j] = c"],
            "(1, N - 1), (1, N - 1)",
        ),
    ],
)
def test_what_stays_in_its_branch(cpu, lines, bounds):
    assert in_branches(kernel_of(lines, bounds)) > 0


def test_written_in_another_slice_is_no_hindrance(cpu):
    names = kernel_of([*UPWIND, "w[t + 1, i, j] = d"])
    assert in_branches(names) == 0


def test_a_neighbour_of_an_element_that_branches_of_branches_load(cpu):
    names = kernel_of(
        [
            "c = w[t, i, j]",
            "if c[0] > 0:",
            "    if c[1] > 0:",
            "        c = w[t, i - 1, j - 1]",
            "    else:",
            "        c = w[t, i - 1, j + 1]",
            "out[i, j] = c",
        ]
    )
    assert in_branches(names) == 0
    names["run"](2)
    c = NUMBERS[2, 1:-1, 1:-1]
    inner = np.where(c[..., 1:] > 0, NUMBERS[2, :-2, :-2], NUMBERS[2, :-2, 2:])
    exact = np.where(c[..., :1] > 0, inner, c)
    np.testing.assert_array_equal(names["out"].to_numpy()[1:-1, 1:-1], exact)
