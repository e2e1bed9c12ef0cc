"""Short loops in loops are written out, where they access what the outer one's turns have in common."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import For, While
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
