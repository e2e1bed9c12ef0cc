"""Loads behind a branch join those of their neighbours before it, where nothing else can be in between."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import If, Load
from diffsim.runtime.session import session
from tests.support.lowered import lower
from tests.support.source import make
from tests.support.vectors import narrow

N = 40


@pytest.fixture(autouse=True)
def without_masks(monkeypatch):
    monkeypatch.setattr(session, "_jit", narrow())
    ds.init(arch=ds.cpu, offline_cache=False)


def kernel_of(*lines, box="ds.ndrange((1, N - 1), (1, N - 1))"):
    space = dict(ds=ds, N=N)
    for name in "xyz":
        space[name] = ds.field(ds.f32, shape=(N, N))
        space[name].from_numpy(np.random.default_rng(ord(name)).standard_normal((N, N), "f4"))
    body = "\n".join("        " + line for line in lines)
    make(f"@ds.kernel\ndef run():\n    for i, j in {box}:\n{body}\n", space)
    return space


def loads_behind(space):
    """How many loads the lanes of the largest task make behind their first branch."""
    stmts = lower(space["run"]._only(()).ir).tasks[0].body.stmts
    first = next(k for k, s in enumerate(stmts) if isinstance(s, If))
    return sum(isinstance(s, Load) for s in stmts[first:])


ROOT = ("a = x[i, j - 1] - y[i, j]", "b = ds.sqrt(a) if a > 0 else 2 * a")


def test_loads_of_neighbours_along_the_row():
    space = kernel_of(*ROOT, "z[i, j] = b + x[i, j] * x[i, 2 + j - 1]")
    assert loads_behind(space) == 0
    space["run"]()
    x, y, z = (space[name].to_numpy() for name in "xyz")
    a = np.roll(x, 1, 1) - y
    b = np.where(a > 0, np.sqrt(np.maximum(a, 0)), 2 * a)
    want = (b + x * np.roll(x, -1, 1))[1:-1, 1:-1]
    np.testing.assert_allclose(z[1:-1, 1:-1], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "lines",
    [
        ("z[i, j] = b + x[i - 1, j]",),  # of another row
        ("z[i, j] = b + y[i, j]",),  # of another memory
        ("y[i, j] = b", "z[i, j] = y[i, j + 1] if i < 0 else b"),  # in a branch
    ],
)
def test_others_stay(lines):
    space = kernel_of(*ROOT, *lines)
    assert loads_behind(space) == ("y[i, j] = b" not in lines and "y[i, j]" not in lines[0])


def test_what_a_lane_has_stored():
    """A lane reads what it has stored, not what was there before."""
    space = kernel_of(
        "a = x[i, j] + x[i, j + N // 2]",
        "if a > 0:",
        "    x[i, j] = 3.0",
        "x[i, j + N // 2] = 2.0",
        "z[i, j] = x[i, j] - x[i, j + N // 2]",
        box="ds.ndrange(N, N // 2)",
    )
    x = space["x"].to_numpy()
    space["run"]()
    left, right = x[:, : N // 2], x[:, N // 2 :]
    want = np.where(left + right > 0, 3, left) - 2
    np.testing.assert_array_equal(space["z"].to_numpy()[:, : N // 2], want)


def test_an_index_that_a_branch_chooses():
    space = kernel_of(
        "a = x[i, j - 1] + x[i, j + 1]", "k = j if a > 0 else 0 * j", "z[i, j] = x[i, k]"
    )
    x = space["x"].to_numpy()
    space["run"]()
    a = np.roll(x, 1, 1) + np.roll(x, -1, 1)
    want = np.where(a > 0, x, x[:, :1])[1:-1, 1:-1]
    np.testing.assert_array_equal(space["z"].to_numpy()[1:-1, 1:-1], want)
