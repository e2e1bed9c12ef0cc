"""Vectors of lanes that add to elements which an index tells, in one loop over those at work; and NumPy."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.vectors import vectorize

LANES, POINTS = 45, 19


@pytest.fixture(autouse=True)
def _vectors(monkeypatch):
    monkeypatch.setattr(vectorize, "_ALWAYS", True)


def loops(kernel):
    """How many loops over lanes the function of a task has, at most."""
    functions = kernel.llvm().split("\ndefine ")[1:]
    return max(len(re.findall(r"call i\d+ @llvm\.cttz", text)) for text in functions)


def numbers(seed, *shape):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype("f4")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_additions_of_a_branch(share, threads):
    """Components of two fields and a number, to one point; what all lanes do, some, and none."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, offline_cache=False)
    f = ds.Vector.field(2, ds.f32, shape=POINTS)
    g = ds.Vector.field(3, ds.f32, shape=(2, POINTS))
    h, a = ds.field(ds.f32, shape=POINTS), ds.field(ds.f32, shape=LANES)
    at, chosen = (ds.field(ds.i32, shape=LANES) for _ in range(2))

    @ds.kernel
    def add(t: ds.i32):
        for i in range(LANES):
            j = at[i]
            if chosen[i] > 0:
                f[j] += ds.Vector([a[i], 2 * a[i]])
                g[t, j] += ds.Vector([a[i] * a[i], 1.0, -a[i]])
                h[j] += 3.0
                h[POINTS - 1 - j] += a[i]

    random = np.random.default_rng(1)
    where, taken = random.integers(0, POINTS, LANES), random.random(LANES) < share
    x = numbers(2, LANES)
    at.from_numpy(where.astype("i4"))
    chosen.from_numpy(taken.astype("i4"))
    a.from_numpy(x)
    add(1)
    F, G, H = np.zeros((POINTS, 2)), np.zeros((2, POINTS, 3)), np.zeros(POINTS)
    for j, v in zip(where[taken], x[taken], strict=True):
        F[j] += v, 2 * v
        G[1, j] += v * v, 1, -v
        H[j] += 3
        H[POINTS - 1 - j] += v
    for field, want in ((f, F), (g, G), (h, H)):
        np.testing.assert_array_equal(field.to_numpy(), want)
    assert loops(add) == 2  # of whole blocks, and of the last one


@pytest.fixture
def own(monkeypatch):
    """A field, and a table that gives each lane an element of its own, so that lanes may be vectors."""
    monkeypatch.setattr(vectorize, "may_run_together", lambda task, **_: True)
    ds.init(arch=ds.cpu, offline_cache=False)
    p, at, out = ds.field(ds.f32, LANES), ds.field(ds.i32, LANES), ds.field(ds.f32, LANES)
    where = np.random.default_rng(4).permutation(LANES)
    x = numbers(5, LANES)
    at.from_numpy(where.astype("i4"))
    p.from_numpy(x)
    return p, at, out, where, x[where]


def test_what_reads_or_changes_an_element_finds_what_was_added(own):
    p, at, out, where, x = own

    @ds.kernel
    def run():
        for i in range(LANES):
            if i % 3 > 0:
                p[at[i]] += 2.0
                p[at[i]] += ds.cast(i, ds.f32)
                out[i] = p[at[i]]
                p[at[i]] += 1.0
                ds.atomic_max(p[at[i]], 9.0)
                p[at[i]] += 1.0
                out[i] += 100 * p[at[i]]
                p[at[i]] += 8.0
                p[at[i]] = 2 * p[at[i]]

    run()
    i = np.arange(LANES)
    first = x + 2 + i
    second = np.maximum(first + 1, 9) + 1
    works = i % 3 > 0
    want = np.where(works, first + 100 * second, 0)
    np.testing.assert_array_equal(out.to_numpy(), want)
    np.testing.assert_array_equal(p.to_numpy()[where], np.where(works, 2 * (second + 8), x))


def test_loops_and_branches_find_what_was_added(own):
    p, at, out, where, x = own

    @ds.kernel
    def run():
        for i in range(LANES):
            if i % 3 > 0:
                p[at[i]] += 2.0
                if i % 2 == 0:
                    out[i] = p[at[i]]
                p[at[i]] += 1.0
                for k in range(i % 4):
                    out[i] += p[at[i]]
                    p[at[i]] += 1.0
                p[at[i]] += 1.0

    run()
    want, left = np.zeros(LANES), x.copy()
    for i in range(LANES):
        if i % 3 > 0:
            left[i] += 2
            want[i] = left[i] if i % 2 == 0 else 0
            left[i] += 1
            for _ in range(i % 4):
                want[i] += left[i]
                left[i] += 1
            left[i] += 1
    np.testing.assert_array_equal(out.to_numpy(), want)
    np.testing.assert_array_equal(p.to_numpy()[where], left)


def test_arrays_of_arguments(own):
    _, at, out, where, x = own

    @ds.kernel
    def run(b: ds.types.ndarray(ds.f32, 1)):
        for i in range(LANES):
            if i % 3 > 0:
                b[at[i]] += 2.0
                out[i] = b[at[i]]
                b[at[i]] += 3.0

    given = np.zeros(LANES, "f4")
    given[where] = x
    run(given)
    works = np.arange(LANES) % 3 > 0
    np.testing.assert_array_equal(out.to_numpy(), np.where(works, x + 2, 0))
    np.testing.assert_array_equal(given[where], np.where(works, x + 5, x))


@pytest.mark.parametrize("width", [2, 4, 5])
def test_two_additions_where_all_lanes_meet(width):
    """To one element, in one block: their sum is added once, in the adjoint of two loads too."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=1, offline_cache=False)
    h, v = (ds.Vector.field(width, ds.f64, shape=POINTS, needs_grad=True) for _ in range(2))
    at = ds.field(ds.i32, shape=(LANES, 2))

    @ds.kernel
    def run():
        for i in range(LANES):
            j, k = at[i, 0], at[i, 1]
            h[j] += 1.0 * v[k]
            h[j] += 2.0 * v[6 - j]

    where = np.stack([np.arange(LANES) // 30, np.arange(LANES) % 3], axis=1)
    x = numbers(7, POINTS, width)
    at.from_numpy(where.astype("i4"))
    v.from_numpy(x.astype("f8"))
    run()
    want = np.zeros((POINTS, width))
    for j, k in where:
        want[j] += x[k] + 2 * x[6 - j]
    np.testing.assert_array_equal(h.to_numpy(), want)
    seeds = numbers(8, POINTS, width).astype("f8")
    h.grad.from_numpy(seeds)
    run.grad()
    gradient = np.zeros((POINTS, width))
    for j, k in where:
        gradient[k] += seeds[j]
        gradient[6 - j] += 2 * seeds[j]
    np.testing.assert_array_equal(v.grad.to_numpy(), gradient)
