"""Nests of loops become boxes where iterations are independent, and only there."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.source import make

H, W = 18, 20
HEAD = "@ds.kernel\ndef kernel(n: ds.i32):\n"


@pytest.fixture
def fields(cpu):
    names = {
        k: ds.field(ds.f64, shape=s, needs_grad=True)
        for k, s in {"x": (H, W), "y": (H, W), "z": (3, H, W), "r": H, "q": W, "s": ()}.items()
    }
    names |= {"at": ds.field(ds.i32, shape=W), "near": ds.Vector.field(2, ds.i32, shape=W)}
    return {"ds": ds, "H": H, "W": W, **names}


def axes(text, fields):
    """The names of the axes of a kernel's only task with lanes."""
    make(HEAD + text, fields)
    (task,) = [t for t in fields["kernel"]._only(()).ir.tasks if t.axes]
    return "".join(a.hint for a in task.axes)


NEST = " for i in range(1, H - 1):\n  for j in range(1, W - 1):\n   "
OUTER = " for i in range(H):\n  "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NEST + "y[i, j] = x[i - 1, j] + x[i, j + 1] * s[None]", "ij"),
        (NEST + "x[i, j] = 2 * x[i, j]", "ij"),
        (NEST + "if x[i, j] > 0:\n    y[i, j] = x[i, j]", "ij"),
        (NEST + "y[i, j] = x[(i + 1) % H, j]\n   y[i, j] += 1", "ij"),
        (NEST + "y[i, j] = x[i, at[j]]", "ij"),
        # Neighbours in memory are neighbours of the last axis.
        (" for j in range(W):\n  for i in range(H):\n   y[i, j] = x[i, j]", "ij"),
        (" for k in range(3):\n  for i in range(H):\n   for j in range(W):\n    z[k, i, j] += 1", "kij"),
        (OUTER + "a = i * 0.5\n  for j in range(W):\n   y[i, j] = a * x[i, j]", "ij"),
        (OUTER + "for j in range(n, W):\n   y[i, j] = x[i, j]", "ij"),
        (OUTER + "m = n + 1\n  for j in range(m):\n   y[i, j] = x[i, j]", "ij"),
        # Iterations in order: what one writes, another one reads or writes.
        (NEST + "x[i, j] = x[i, j - 1]", "i"),
        (NEST + "y[i, j] = x[i, j]\n   y[i, j + 1] = 0.5", "i"),
        (NEST + "y[i, at[j]] = x[i, j]", "i"),
        # Components of vectors, also of some that have no affine form, and of a product of matrices.
        (NEST + "y[ds.Vector([at[i], 0]) + ds.Vector([0, j])] = 1.5", "ij"),
        (NEST + "y[near[i] + ds.Vector([0, j])] = 1.5", "i"),
        (NEST + "y[ds.Matrix([[1, 0], [0, 1]]) @ ds.Vector([i, j])] = 1.5", "i"),
        # Sums keep their order.
        (NEST + "s[None] += x[i, j]", "i"),
        (NEST + "r[i] += x[i, j]", "i"),
        (NEST + "y[i, j - 1] += x[i, j]\n   y[i, j] += 1", "i"),
        # A lane sums the gradient of what all of its iterations read.
        (OUTER + "for j in range(W):\n   y[i, j] = r[i] * x[i, j]", "i"),
        (OUTER + "a = r[i]\n  for j in range(W):\n   y[i, j] = a * x[i, j]", "i"),
        (OUTER + "for j in range(W):\n   y[i, j] = r[i] * q[j]", "i"),
        # Other shapes.
        (OUTER + "for j in range(i):\n   y[i, j] = x[i, j]", "i"),
        (OUTER + "y[i, 0] = 1\n  for j in range(1, W):\n   y[i, j] = x[i, j]", "i"),
        (OUTER + "a = x[i, 0]\n  for j in range(W):\n   a += x[i, j]\n   y[i, j] = a", "i"),
        (OUTER + "for j in range(3):\n   y[i, j] = x[i, j]", "i"),
        (OUTER + "a = ds.sin(0.1 * i)\n  for j in range(W):\n   y[i, j] = a", "i"),
        (OUTER + "for j in range(W):\n   if x[i, j] > 1:\n    break\n   y[i, j] = 2", "i"),
        (OUTER + "for j in range(W):\n   y[i, j] = x[i, j]\n   print(i)", "i"),
        (OUTER + "y[i, 0] = 2\n  for j in range(at[0], W):\n   y[i, j] = x[i, j]", "i"),
    ],
)  # fmt: skip
def test_which_nests_are_boxes(fields, text, expected):
    assert axes(text, fields) == expected


def test_an_empty_inner_loop_of_some_launches(cpu):
    x, y = (ds.field(ds.f64, shape=(4, 40), needs_grad=True) for _ in range(2))

    @ds.kernel
    def square(first: ds.i32, last: ds.i32):
        for i in range(4):
            for j in range(first, last):
                y[i, j] = x[i, j] ** 2

    start = np.random.default_rng(0).random((4, 40))
    x.from_numpy(start)
    for first, last in ((3, 3), (9, 2), (5, 31)):
        square(first, last)
        y.grad.fill(1)
        x.grad.fill(0)
        square.grad(first, last)
        inside = np.zeros((4, 40))
        inside[:, first : max(first, last)] = 1
        np.testing.assert_allclose(y.to_numpy(), start**2 * inside, rtol=1e-15)
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * start * inside, rtol=1e-15)
