"""Short loops in loops are written out, where they access what the outer one's turns have in common."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Const, For, While
from diffsim.ir.traversal import task_statements
from diffsim.passes.forms.unrolled_loops import unroll_short_loops
from tests.support.gradients import central
from tests.support.source import make

N, K, D = 5, 18, 3
HEAD = """@ds.kernel
def kernel(n: ds.i32):
    for i in range(N):
        total = 0.0 * p[i, 0]
        for c in range({outer}):
            a = 0.1 * p[i, 1]
            for d in range({inner}):
                {line}
            total = ds.min(total + 0.1, a)
        y[i] = total
"""


@pytest.fixture
def fields(cpu):
    shapes = {"p": (N, K), "m": (K, K), "y": N}
    made = {k: ds.field(ds.f64, shape=s, needs_grad=True) for k, s in shapes.items()}
    return {"ds": ds, "N": N, "K": K, **made}


def loops(fields, line, inner="3", outer="K"):
    """How many loops inside lanes are left."""
    make(HEAD.format(inner=inner, outer=outer, line=line), fields)
    (task,) = unroll_short_loops(fields["kernel"]._only(()).ir).tasks
    return sum(isinstance(s, (For, While)) for s in task_statements(task))


NEAR = "a += (p[i, d] - m[c, d]) ** 2"


@pytest.mark.parametrize(
    ("line", "bounds", "left"),
    [
        (NEAR, {}, 1),
        (NEAR, {"inner": "1, 3"}, 1),
        (NEAR, {"inner": "0, 9, 4"}, 1),
        (NEAR, {"outer": "n"}, 1),
        ("a = ds.sin(a) * p[i, d]", {}, 1),
        ("a += p[c, d]", {}, 2),  # nothing that the turns have in common
        (NEAR, {"outer": "3"}, 1),
        (NEAR, {"inner": "n"}, 2),
        (NEAR, {"inner": "K"}, 2),
        (NEAR, {"inner": "3, 3"}, 2),
        ("a += p[i, d] if a < 2 else 0.1", {}, 1),
    ],
)
def test_which_loops_are_unrolled(fields, line, bounds, left):
    assert loops(fields, line, **bounds) == left


def test_the_same_is_computed(fields):
    """Nearest points, with sums of both sides in the inner loops; against NumPy, and differences."""
    p, m, y = (fields[k] for k in "pmy")
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def nearest():
        for i in range(N):
            least = ds.cast(9.0, ds.f64)
            for c in range(K):
                a = ds.cast(0.0, ds.f64)
                for d in range(D):
                    a = 1.1 * a + (p[i, d] - m[c, d]) ** 2
                least = ds.min(least, a)
                for d in range(D):
                    y[i] += a * p[i, d]
            loss[None] += least * y[i]

    start = np.random.default_rng(0).random((N + K, D))

    def set_all(v):
        p.from_numpy(np.pad(v[:N], ((0, 0), (0, K - D))))
        m.from_numpy(np.pad(v[N:], ((0, 0), (0, K - D))))
        y.fill(0)

    def in_numpy(v):
        squares = (v[:N, None] - v[N:]) ** 2
        a = squares @ 1.1 ** np.arange(D)[::-1]
        return (a.min(1) * (a.sum(1) * v[:N].sum(1))).sum()

    set_all(start)
    with ds.Tape(loss):
        nearest()
    assert loss[None] == pytest.approx(in_numpy(start), rel=1e-12)
    found = np.concatenate([p.grad.to_numpy()[:, :D], m.grad.to_numpy()[:, :D]])
    np.testing.assert_allclose(found, central(in_numpy, start), rtol=1e-6, atol=1e-8)


ROWS = """@ds.kernel
def kernel(n: ds.i32):
    for i in range(N):
        at = row[i]
        total = y[i]
        for d in range({inner}):
            {line}
        y[i] = total
"""
ROW = "total = total * 0.9 + p[at, d] * m[row[i], d]"


@pytest.mark.parametrize(
    ("line", "inner", "left"),
    [
        (ROW, "16", []),
        (ROW, "2, 13", []),
        (ROW, "32", [(0, 2)]),
        (ROW, "6, 24", [(0, 2)]),  # nine at a time
        (ROW, "100", [(0, 10)]),
        (ROW, "17", [(0, 17)]),  # a prime number
        (ROW, "n", [None]),
        ("total += p[at, d] * m[d, at]", "16", []),
        ("total += p[i, d]", "16", [(0, 16)]),  # the lane's own row
        ("total += m[d, at]", "16", [(0, 16)]),  # a column
        ("m[at, d] += total", "16", [(0, 16)]),  # carries nothing
    ],
)
def test_which_loops_along_rows_are_written_out(cpu, line, inner, left):
    ds = cpu
    fields = {k: ds.field(ds.f64, shape=(100, 100), needs_grad=True) for k in ("p", "m")}
    names = {"ds": ds, "N": N, "y": ds.field(ds.f64, shape=N), "row": ds.field(ds.i32, shape=N)}
    names |= fields
    make(ROWS.format(inner=inner, line=line), names)
    (task,) = unroll_short_loops(names["kernel"]._only((3,)).ir).tasks
    loops = [s for s in task_statements(task) if isinstance(s, For)]
    assert all(isinstance(s.lo, Const) for s in loops)
    found = [(s.lo.value, s.hi.value) if isinstance(s.hi, Const) else None for s in loops]
    assert found == left


@pytest.mark.parametrize("bounds", ["16", "32", "6, 24", "100", "17"])
def test_rows_in_strips_have_the_same_values(cpu, bounds):
    """In the order of the program, forwards and backwards; lanes of an incomplete block."""
    ds = cpu
    random, n = np.random.default_rng(0), 37
    p, m = (ds.field(ds.f64, shape=(50, 100), needs_grad=True) for _ in range(2))
    y = ds.field(ds.f64, shape=n, needs_grad=True)
    row = ds.field(ds.i32, shape=n)
    names = {"ds": ds, "N": n, "p": p, "m": m, "y": y, "row": row}
    make(ROWS.format(inner=bounds, line=ROW), names)
    a, b = (random.uniform(-1, 1, (50, 100)) for _ in range(2))
    at = random.integers(0, 50, n)
    for f, values in ((p, a), (m, b), (row, at.astype(np.int32))):
        f.from_numpy(values)
    first, last = (0, int(bounds)) if "," not in bounds else map(int, bounds.split(","))
    names["kernel"](3)
    total, weights = np.zeros(n), random.uniform(-1, 1, n)
    slopes = np.zeros((2, 50, 100))
    for d in range(first, last):
        total = total * 0.9 + a[at, d] * b[at, d]
        share = weights * 0.9 ** (last - 1 - d)
        np.add.at(slopes[0], (at, d), share * b[at, d])
        np.add.at(slopes[1], (at, d), share * a[at, d])
    np.testing.assert_allclose(y.to_numpy(), total, rtol=1e-12, atol=1e-13)
    y.grad.from_numpy(weights)
    names["kernel"].grad(3)
    for f, slope in zip((p, m), slopes, strict=True):
        np.testing.assert_allclose(f.grad.to_numpy(), slope, rtol=1e-12, atol=1e-13)
