"""Axes of boxes change places where lanes are then neighbours in memory, and nothing shows their order."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("quick_code")

H, W = 18, 20
HEAD = "@ds.kernel\ndef kernel():\n"
BOX = " for i, j in ds.ndrange(H, W):\n  "
INSIDE = " for i, j in ds.ndrange((1, H - 1), (1, W - 1)):\n  "


@pytest.fixture
def fields(cpu):
    names = {k: ds.field(ds.f64, (H, W), order="ji", needs_grad=True) for k in "xy"}
    names["a"] = ds.field(ds.f64, (H, W), needs_grad=True)
    names["z"] = ds.field(ds.f64, (H, W, 3), order="jki", needs_grad=True)
    shapes = {"r": H, "q": W, "s": (), "m": (W, W)}
    names |= {k: ds.field(ds.f64, shape=s, needs_grad=True) for k, s in shapes.items()}
    return {"ds": ds, "H": H, "W": W, "at": ds.field(ds.i32, shape=W), **names}


def axes(text, fields):
    """The names of the axes of a kernel's task with lanes."""
    make(HEAD + text, fields)
    (task,) = [t for t in fields["kernel"]._only(()).ir.tasks if t.axes]
    return "".join(a.hint for a in task.axes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (INSIDE + "y[i, j] = x[i - 1, j] + x[i, j + 1] * s[None]", "ji"),
        (INSIDE + "x[i, j] = 2 * x[i, j]", "ji"),
        (INSIDE + "x[i, j] += y[i, j] * y[i, j]", "ji"),
        (" for i in range(H):\n  for j in range(W):\n   y[i, j] = x[i, j]", "ji"),
        (" for k, i, j in ds.ndrange(3, H, W):\n  z[i, j, k] = k * x[i, j]", "kji"),
        (BOX + "for k in range(3):\n   z[i, j, k] = x[i, j]", "ji"),
        # Sums and extremes of all lanes.
        (BOX + "s[None] += x[i, j] * y[i, j]", "ji"),
        (BOX + "ds.atomic_max(s[None], x[i, j])", "ji"),
        # As far apart in one order as in the other, or in rows anyway.
        (BOX + "a[i, j] = x[i, j]", "ij"),
        (BOX + "a[i, j] = a[H - 1 - i, j]", "ij"),
        # What is loaded by one index alone is one number along the other; what a branch yields may vary.
        (
            BOX
            + "row = at[i]\n  t = q[j]\n  for e in range(3):\n   t += m[j, e] * m[row, e]\n  a[i, j] = t",
            "ij",
        ),
        (BOX + "row = at[j]\n  a[i, j] = m[row, i] * m[row, W - 1 - i]", "ji"),
        (
            BOX + "row = at[j] if s[None] > 0 else i\n  a[i, j] = m[row, i] * m[row, W - 1 - i]",
            "ij",
        ),
        (BOX + "a[i, j] = m[j % 8, 0] * m[j // 8, 1] * m[j % 4, 2]", "ij"),
        # Somebody sees who is first.
        (INSIDE + "x[i, j] = x[i - 1, j]", "ij"),
        (BOX + "r[i] += x[i, j]", "ij"),
        (BOX + "q[j] = x[i, j]", "ij"),
        (BOX + "s[None] = x[i, j]", "ij"),
        (BOX + "s[None] += x[i, j] * s[None]", "ij"),
        (BOX + "x[i, at[j]] = y[i, j]", "ij"),
        (BOX + "x[i, j] = ds.atomic_add(s[None], y[i, j])", "ij"),
        (BOX + "x[0, i + j] = y[i, j]", "ij"),
        (BOX + "x[i, 0] = y[i, j]", "ij"),
        (BOX + "for k in range(3):\n   x[i, j + k] += y[i, j]", "ij"),
        (BOX + "print(x[i, j])\n  x[i, j] = 1", "ij"),
        # Too few lanes for vectors.
        (" for i, j in ds.ndrange(3, W):\n  y[i, j] = x[i, j]", "ij"),
    ],
)
def test_order_of_axes(fields, text, expected):
    assert axes(text, fields) == expected


@pytest.mark.parametrize(("n", "expected"), [(1000, "ki"), (8000, "ik")])
def test_a_pass_along_the_last_axis_fits_the_cache(fields, n, expected):
    """Of what each class reads and writes of the points, the next class finds in the cache."""
    fields |= {
        "points": ds.field(ds.f32, (n, 10)),
        "classes": ds.field(ds.f32, (25, 10)),
        "terms": ds.field(ds.f32, (n, 25)),
    }
    text = (
        " for i, k in terms:\n  total = 0.0\n  for a in range(10):\n"
        "   total += (points[i, a] - classes[k, a]) * classes[k, 9 - a] * classes[k, 0]\n"
        "  terms[i, k] = total"
    )
    assert axes(text, fields) == expected


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        (8, "ijo"),
        # Too few lanes for vectors.
        (3, "ioj"),
    ],
)
def test_weights_of_a_convolution_are_packed(fields, channels, expected):
    """They are far apart along the channels, the picture along its pixels; only weights are a small table."""
    fields |= {
        "image": ds.field(ds.f32, (100, 100, 8)),
        "hidden": ds.field(ds.f32, (100, 100, channels)),
        "w": ds.field(ds.f32, (channels, 8, 3, 3)),
    }
    text = (
        " for i, j, o in ds.ndrange((1, 99), (1, 99), hidden.shape[2]):\n  total = 0.0\n"
        "  for c in range(8):\n   for a in range(3):\n    for b in range(3):\n"
        "     total += w[o, c, a, b] * image[i + a - 1, j + b - 1, c]\n  hidden[i, j, o] = total"
    )
    assert axes(text, fields) == expected


def test_a_long_axis_that_nothing_comes_back_to(fields):
    fields["long"] = ds.field(ds.f32, (500_000, 3), order="ji")
    assert axes(" for i, j in ds.ndrange(500_000, 3):\n  long[i, j] = i", fields) == "ji"


def test_values_and_gradients(fields):
    x, y, s = fields["x"], fields["y"], fields["s"]

    @ds.kernel
    def kernel():
        for i, j in ds.ndrange((1, H - 1), (1, W - 1)):
            y[i, j] = x[i - 1, j] * x[i + 1, j] + i * x[i, (j + 1) % W]

    @ds.kernel
    def total():
        for i, j in ds.ndrange(H, W):
            s[None] += (2 * i + j) * y[i, j]

    given = np.random.default_rng(0).standard_normal((H, W))
    x.from_numpy(given)
    with ds.ad.Tape(s):
        kernel()
        total()
    i, j = np.indices((H, W))
    inner = np.s_[1:-1, 1:-1]
    north, south, east = given[:-2, 1:-1], given[2:, 1:-1], given[1:-1, 2:]
    expected = np.zeros((H, W))
    expected[inner] = north * south + i[inner] * east
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-12)
    weight = np.zeros((H, W))
    weight[inner] = (2 * i + j)[inner]
    grad = np.zeros((H, W))
    grad[:-2, 1:-1] += weight[inner] * south
    grad[2:, 1:-1] += weight[inner] * north
    grad[1:-1, 2:] += (weight * i)[inner]
    np.testing.assert_allclose(x.grad.to_numpy(), grad, rtol=1e-12)
    (task,) = kernel._only(()).ir.tasks
    assert task.axes[0].hint == "j"
    assert task.written == (1, 0)  # messages have the indices of the program
