"""Loops over windows around a lane go over distances from it: neighbouring lanes access neighbours."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Const, For, If
from diffsim.ir.traversal import statements
from diffsim.passes import pipeline
from tests.support.gradients import central
from tests.support.source import make

H, W = 9, 37
NUMBERS = np.random.default_rng(0).standard_normal((H, W))
SUM = "for k in range({rows}):\n   for l in range({columns}):\n    s += x[k, l] * (j - l + 2)"
ROWS, COLUMNS = "ds.max(0, i - 2), ds.min(H, i + 3)", "ds.max(0, j - 3), ds.min(W, j + 4)"


@pytest.fixture
def fields(cpu):
    made = {k: ds.field(ds.f64, shape=(H, W), needs_grad=True) for k in "xy"}
    made |= {"loss": ds.field(ds.f64, shape=(), needs_grad=True), "at": ds.field(ds.i32, shape=W)}
    made["x"].from_numpy(NUMBERS)
    return {"ds": ds, "H": H, "W": W, **made}


def kernel_of(fields, rows=ROWS, columns=COLUMNS, n="H"):
    head = f"@ds.kernel\ndef kernel(n: ds.i32):\n for i, j in ds.ndrange({n}, W):\n  s = 0.0 * x[i, j]\n"
    text = f"{head}  {SUM.format(rows=rows, columns=columns)}\n  y[i, j] = s\n"
    make(text, fields)
    return fields["kernel"]


def of_constants(kernel):
    """How many loops of the lanes have constants for bounds, and how many branches there are."""
    made = pipeline.run(kernel._only((H,)).ir, pipeline.LOWER)
    found = [s for task in made.tasks for s in statements(task.body)]
    loops = [s for s in found if isinstance(s, For)]
    known = sum(isinstance(s.lo, Const) and isinstance(s.hi, Const) for s in loops)
    return known, sum(isinstance(s, If) for s in found)


def summed(rows, columns):
    """What the kernel computes, in NumPy."""
    found = np.zeros((H, W))
    for i in range(H):
        for j in range(W):
            for k in rows(i):
                for l in columns(j):
                    found[i, j] += NUMBERS[k, l] * (j - l + 2)
    return found


def near(n, low, high):
    return lambda i: range(max(0, i - low), min(n, i + high + 1))


def from_table(j):
    return range(max(j % 5, j - 3), j + 1)


@pytest.mark.parametrize(
    ("rows", "columns", "found", "exact"),
    [
        (ROWS, COLUMNS, (2, 2), (near(H, 2, 2), near(W, 3, 3))),
        ("i, i + 1", COLUMNS, (2, 1), (near(H, 0, 0), near(W, 3, 3))),
        (ROWS, "ds.max(j - 8, 0), j + 1", (2, 2), (near(H, 2, 2), near(W, 8, 0))),
        (
            "i, ds.min(i + 50, H, n - 1)",
            COLUMNS,
            (2, 2),
            (lambda i: range(i, H - 1), near(W, 3, 3)),
        ),
        # A bound of the lane's own.
        (ROWS, "ds.max(at[j], j - 3), j + 1", (2, 2), (near(H, 2, 2), from_table)),
        # One end follows the lane, the other does not, or in another way.
        (ROWS, "0, j + 1", (1, 1), (near(H, 2, 2), lambda j: range(j + 1))),
        (ROWS, "ds.max(0, j - 3), W", (1, 1), (near(H, 2, 2), lambda j: range(max(0, j - 3), W))),
        (
            "i, ds.min(H, 2 * i)",
            COLUMNS,
            (1, 1),
            (lambda i: range(i, min(H, 2 * i)), near(W, 3, 3)),
        ),
        (ROWS, "ds.max(0, j - 3, j - 2), ds.min(W, j + 4)", (1, 1), (near(H, 2, 2), near(W, 2, 3))),
    ],
)
def test_which_loops_are_windows(fields, rows, columns, found, exact):
    fields["at"].from_numpy(np.arange(W) % 5)
    kernel = kernel_of(fields, rows, columns)
    assert of_constants(kernel) == found
    kernel(H)
    np.testing.assert_allclose(fields["y"].to_numpy(), summed(*exact), rtol=1e-12)


def test_lanes_up_to_an_argument_stay(fields):
    """A sum of such an index and a constant may wrap around."""
    assert of_constants(kernel_of(fields, n="n"))[0] == 1
    fields["kernel"](H)
    exact = summed(near(H, 2, 2), near(W, 3, 3))
    np.testing.assert_allclose(fields["y"].to_numpy(), exact, rtol=1e-12)


def test_gradients(fields):
    """A bilateral filter: its adjoint adds to the cells of the window, side by side in neighbouring lanes."""
    x, y, loss = (fields[k] for k in ("x", "y", "loss"))

    @ds.kernel
    def smooth():
        for i, j in x:
            total, weights = ds.cast(0.0, ds.f64), ds.cast(0.0, ds.f64)
            for k in range(ds.max(0, i - 2), ds.min(H, i + 3)):
                for l in range(ds.max(0, j - 3), ds.min(W, j + 4)):
                    w = ds.exp(-0.1 * ((k - i) ** 2 + (l - j) ** 2) - (x[k, l] - x[i, j]) ** 2)
                    total += w * x[k, l]
                    weights += w
            y[i, j] = total / weights
            loss[None] += (1 + 0.1 * (i - j)) * y[i, j] ** 2

    def run(values):
        x.from_numpy(values)
        loss[None] = 0
        smooth()
        return loss[None]

    x.from_numpy(NUMBERS)
    with ds.Tape(loss):
        smooth()
    found = x.grad.to_numpy()
    np.testing.assert_allclose(found, central(run, NUMBERS), rtol=1e-6, atol=1e-7)
    (task,) = [
        t for t in pipeline.run(smooth._only(()).derivative.ir, pipeline.LOWER).tasks if t.reach
    ]
    # Rows up to 4 apart add to the same cells, so chunks need no atomics.
    assert task.reach == 4
    assert task.simd is not None


def test_windows_of_arrays(cpu):
    @ds.kernel
    def means(x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in range(x.shape[0]):
            s, n = 0.0 * x[i], 0
            for k in range(ds.max(0, i - 20), ds.min(x.shape[0], i + 21)):
                s += x[k]
                n += 1
            y[i] = s / n

    x = np.arange(50.0) ** 2
    y = np.zeros(50)
    means(x, y)
    np.testing.assert_allclose(
        y, [x[max(0, i - 20) : i + 21].mean() for i in range(50)], rtol=1e-12
    )
