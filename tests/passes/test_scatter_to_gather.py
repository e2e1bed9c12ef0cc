"""The gather pass keeps sums equal, and takes the atomics out of stencil adjoints."""

from __future__ import annotations

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Atomic
from diffsim.ir.traversal import task_statements
from diffsim.passes import pipeline
from tests.support.gradients import central
from tests.support.source import make


def atomics(kernel):
    """The atomic updates left in the lowered adjoint that are not exclusive."""
    lowered = pipeline.run(kernel._only(()).derivative.ir, pipeline.LOWER, check=True)
    return [
        s
        for t in lowered.tasks
        for s in task_statements(t)
        if isinstance(s, Atomic) and not s.exclusive
    ]


def numpy_adjoint(seed, shape, lo, hi, taps, factor):
    """What y[p] = sum_k factor_k(p) * x[p + tap_k] over the box lo..hi sends back to x."""
    out = np.zeros(shape)
    for p in np.ndindex(*shape):
        if all(a <= k < b for k, a, b in zip(p, lo, hi, strict=True)):
            for k, tap in enumerate(taps):
                out[tuple(np.add(p, tap))] += seed[p] * factor(k, p)
    return out


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 40])
def test_one_axis(cpu, n):
    x, y, w = (ds.field(ds.f64, shape=n + 4, needs_grad=k < 2) for k in range(3))

    @ds.kernel
    def blur(first: ds.i32, last: ds.i32):
        for i in range(first, last):
            y[i] = x[i - 2] * w[i] + 3.0 * x[i + 1] + x[i] * w[i + 1]

    rng = np.random.default_rng(n)
    weights, seed = rng.random(n + 4), rng.random(n + 4)
    w.from_numpy(weights)
    x.from_numpy(rng.random(n + 4))
    for first, last in ((2, n + 2), (2, 2), (3, n + 3), (n + 1, n + 3), (4, 3)):
        x.grad.fill(0)
        y.grad.from_numpy(seed)
        blur(first, last)
        blur.grad(first, last)
        factors = (lambda p: weights[p], lambda p: 3.0, lambda p: weights[p + 1])
        want = numpy_adjoint(
            seed,
            (n + 4,),
            (first,),
            (last,),
            [(-2,), (1,), (0,)],
            lambda k, p, f=factors: f[k](p[0]),
        )
        np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-13, atol=1e-15)
    assert not atomics(blur)


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 7), (5, 5), (6, 33)])
def test_two_axes_with_a_branch_and_vectors(cpu, shape):
    n, m = shape
    x = ds.Vector.field(2, ds.f64, shape=shape, needs_grad=True)
    y = ds.Vector.field(2, ds.f64, shape=shape, needs_grad=True)

    @ds.kernel
    def step():
        for i, j in ds.ndrange((1, n - 1), (1, m - 1)):
            v = x[i - 1, j] + 2.0 * x[i, j + 1]
            if i > j:
                v *= 0.5
            y[i, j] = v + x[i, j - 1]

    seed = np.random.default_rng(0).random((*shape, 2))
    y.grad.from_numpy(seed)
    step()
    step.grad()

    def factor(k, p):
        return (1.0, 2.0, 1.0)[k] * (0.5 if p[0] > p[1] and k < 2 else 1.0)

    taps = [(-1, 0), (0, 1), (0, -1)]
    for c in range(2):
        want = numpy_adjoint(seed[..., c], shape, (1, 1), (n - 1, m - 1), taps, factor)
        np.testing.assert_allclose(x.grad.to_numpy()[..., c], want, rtol=1e-13, atol=1e-15)
    assert not atomics(step)


def test_rows_of_one_field(cpu):
    """The state of all times in one field: the adjoint reads row t + 1 and adds to row t."""
    u = ds.field(ds.f64, shape=(4, 12), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i in range(1, 11):
            u[t + 1, i] = u[t, i] + 0.1 * (u[t, i - 1] - 2.0 * u[t, i] + u[t, i + 1])

    seed = np.random.default_rng(1).random((4, 12))
    u.grad.from_numpy(seed)
    for t in range(3):
        step(t)
    for t in reversed(range(3)):
        step.grad(t)
    g = seed.copy()
    for t in reversed(range(3)):
        c = g[t + 1, 1:11]
        g[t, 1:11] += 0.8 * c
        g[t, 0:10] += 0.1 * c
        g[t, 2:12] += 0.1 * c
    np.testing.assert_allclose(u.grad.to_numpy()[0], g[0], rtol=1e-13)
    assert not atomics(step)


@pytest.mark.parametrize(
    ("condition", "gathers"),
    [
        ("(i + j) % 2 == c % 2", True),
        ("(i - j) % 2 != 0", True),
        ("(i + 2 * j) % 8 == c", False),  # what reaches a cell comes from four colours
        ("(i + j) % 3 == c", False),  # of sums that have wrapped around, neighbours' colours differ
        ("(i + j) % 4 == 1 or (i - j) % 4 == 9", False),
    ],
)
def test_sweeps_in_colors(cpu, condition, gathers):
    """Cells of one colour send back to cells of others, which gather where that is proven."""
    n, color = 20, 1
    x = ds.field(ds.f64, shape=(n, n), needs_grad=True)
    names = dict(ds=ds, x=x, n=n)
    text = f"""
@ds.kernel
def sweep(c: ds.i32):
    for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
        if {condition}:
            x[i, j] = 2 * x[i - 1, j] - x[i + 1, j] + 3 * x[i, j - 1] + x[i, j + 1]
"""
    make(text, names)
    sweep = names["sweep"]
    seed = np.random.default_rng(0).integers(-9, 9, (n, n)).astype(float)
    x.grad.from_numpy(seed)
    sweep.grad(color)
    inside = [(i, j) for i in range(1, n - 1) for j in range(1, n - 1)]
    cells = [(i, j) for i, j in inside if eval(condition, dict(i=i, j=j, c=color))]
    want = seed.copy()
    for i, j in cells:
        want[i, j] = 0
    for i, j in cells:
        for a, b, k in ((-1, 0, 2), (1, 0, -1), (0, -1, 3), (0, 1, 1)):
            want[i + a, j + b] += k * seed[i, j]
    np.testing.assert_array_equal(x.grad.to_numpy(), want)
    for bits in (512, 256):
        stages = pipeline.lower(debug=False, deterministic=False, vector_bits=bits)
        lowered = pipeline.run(sweep._only((color,)).derivative.ir, stages, check=True)
        assert (len(lowered.tasks) == 6) == gathers


@pytest.mark.parametrize(
    ("slope", "scatters"),
    [
        ("a * a + b * b", False),
        ("ds.sqrt(1.0 + a * a + b * b)", True),
        ("ds.exp(0.1 * a * b)", True),
        ("a / 3.0 + b * b", False),
    ],
)
def test_what_takes_long_is_not_computed_again_by_each_neighbor(cpu, slope, scatters):
    """Where divisions, roots and functions outnumber the additions, each lane computes them once."""
    n = 7
    x, y = (ds.field(ds.f64, shape=(n, n), needs_grad=True) for _ in range(2))
    names = dict(ds=ds, x=x, y=y, n=n)
    text = f"""
@ds.kernel
def edges():
    for i, j in ds.ndrange(n - 1, n - 1):
        a, b = x[i + 1, j] - x[i, j], x[i, j + 1] - x[i, j]
        y[i, j] = {slope}
"""
    make(text, names)
    edges = names["edges"]
    start, seed = np.random.default_rng(0).standard_normal((2, n, n))

    def total(values):
        x.from_numpy(values)
        edges()
        return (y.to_numpy() * seed)[:-1, :-1].sum()

    want = central(total, start)
    x.from_numpy(start)
    edges()
    x.grad.fill(0)
    y.grad.from_numpy(seed)
    edges.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-7, atol=1e-8)
    assert bool(atomics(edges)) == scatters
    narrow = pipeline.lower(debug=False, deterministic=False, vector_bits=256)
    lowered = pipeline.run(edges._only(()).derivative.ir, narrow, check=True)
    assert (len(lowered.tasks) == 1) == scatters
    # Additions in a fixed order would have to be noted first.
    ordered = pipeline.lower(debug=False, deterministic=True)
    adjoint = edges._only(()).derivative.ir
    assert len(pipeline.run(adjoint, ordered, check=True).tasks) > 1


def test_left_alone(cpu):
    """Gathered indices, and values that come from a loop, stay with the lanes."""
    x, y = (ds.field(ds.f64, shape=8, needs_grad=True) for _ in range(2))
    which = ds.field(ds.i32, shape=8)

    @ds.kernel
    def gathered():
        for i in range(1, 7):
            y[i] = x[which[i]] + x[i + 1]

    @ds.kernel
    def looped():
        for i in range(1, 7):
            s = x[i + 1]
            for _ in range(3):
                s = s * s + x[i - 1]
            y[i] = s

    which.from_numpy(np.array([0, 3, 3, 1, 7, 0, 2, 0], np.int32))
    start = np.linspace(0.1, 0.8, 8)
    for kernel, formula in (
        (gathered, lambda v, i: v[which[i]] + v[i + 1]),
        (looped, lambda v, i: ((v[i + 1] ** 2 + v[i - 1]) ** 2 + v[i - 1]) ** 2 + v[i - 1]),
    ):
        x.from_numpy(start)
        x.grad.fill(0)
        y.grad.fill(1)
        kernel()
        kernel.grad()
        want = np.zeros(8)
        for k in range(8):
            up, down = start.copy(), start.copy()
            up[k] += 1e-6
            down[k] -= 1e-6
            want[k] = sum(formula(up, i) - formula(down, i) for i in range(1, 7)) / 2e-6
        np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-8, atol=1e-9)
        assert atomics(kernel)
