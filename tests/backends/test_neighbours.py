"""Lanes that access neighbours in memory together: the same as NumPy, whatever the indices are."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes import pipeline
from diffsim.passes.vectors import vectorize
from diffsim.passes.vectors.neighbours import find_neighbours
from tests.fuzz import gathers
from tests.support.lowered import lower

SIZES = [1, 16, 37]
ROWS = 9


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Everything runs as vectors that may."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)


def groups_of(kernel, *args):
    """Return the numbers of accesses in the groups of each task."""
    tasks = lower(kernel._only(args).ir).tasks
    return [sorted(len(g.accesses) for g in t.neighbours) for t in tasks]


def numbers(shape, seed, dtype="f8"):
    # Small whole numbers: sums are exact in any order.
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(dtype)


def indices(n, seed, most=ROWS):
    return np.random.default_rng(seed).integers(0, most, n).astype("i4")


@pytest.mark.parametrize(("t", "width"), [(ds.f32, w) for w in (1, 2, 3, 5)] + [(ds.f64, 3)])
def test_components_of_elements_anywhere(t, width):
    """Vectors of several lengths, loaded and added to by indices that meet."""
    ds.init(arch=ds.cpu)
    x, y = (ds.Vector.field(width, t, shape=ROWS) for _ in range(2))
    at = ds.field(ds.i32, shape=max(SIZES))

    @ds.kernel
    def add(n: ds.i32):
        for i in range(n):
            y[at[i]] += 2 * x[at[n - 1 - i]]

    h, k = numbers((ROWS, width), width), indices(max(SIZES), width)
    x.from_numpy(h.astype(x.to_numpy().dtype))
    at.from_numpy(k)
    for n in SIZES:
        y.fill(0)
        add(n)
        want = np.zeros((ROWS, width))
        np.add.at(want, k[:n], 2 * h[k[:n][::-1]])
        np.testing.assert_array_equal(y.to_numpy().reshape(ROWS, width), want)
    assert groups_of(add, 1) == [[1, width, width]]


@pytest.mark.parametrize("bits", ["512", "256"])
@pytest.mark.parametrize("width", [1, 3])
def test_lanes_that_all_add_to_one_element(bits, width, monkeypatch):
    """Runs of equal indices, longer and shorter than a block of lanes, and two ends alone that are equal."""
    monkeypatch.setenv("DIFFSIM_VECTOR_BITS", bits)
    ds.init(arch=ds.cpu)
    n = 200
    x = ds.Vector.field(width, ds.f32, shape=n)
    y = ds.Vector.field(width, ds.f32, shape=ROWS)
    at = ds.field(ds.i32, shape=n)

    @ds.kernel
    def add():
        for i in x:
            y[at[i]] += 2 * x[i]

    h = numbers((n, width), 3, "f4")
    x.from_numpy(h.reshape(x.to_numpy().shape))
    ends = np.full(n, 4)
    ends[1::2] = 5
    ends[15::16] = ends[7::8] = 4
    for k in (np.arange(n) // 50, np.arange(n) // 6 % ROWS, np.full(n, 8), ends):
        at.from_numpy(k.astype("i4"))
        y.fill(0)
        add()
        want = np.zeros((ROWS, width))
        np.add.at(want, k, 2 * h)
        np.testing.assert_array_equal(y.to_numpy().reshape(ROWS, width), want)
    # A sum of the lanes, for each component.
    assert add.llvm().count("reduce.fadd") >= width


@pytest.mark.parametrize("kind", ["field", "array"])
def test_indices_that_lanes_change_before_they_add(kind):
    """Elements are those of the indices that were loaded."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1)
    n = 100
    y = ds.Vector.field(3, ds.f32, shape=ROWS)
    of = ds.field(ds.i32, shape=n)

    @ds.kernel
    def add_by_array(at: ds.types.ndarray(ds.i32, 1), same: ds.types.ndarray(ds.i32, 1)):
        for i in range(n):
            k = at[i]
            same[i] = 0
            y[k] += ds.Vector([1.0, 2.0, 3.0])

    @ds.kernel
    def add_by_field():
        for i in range(n):
            k = of[i]
            of[i] = 0
            y[k] += ds.Vector([1.0, 2.0, 3.0])

    k = indices(n, 1)
    given = k.copy()
    of.from_numpy(k)
    if kind == "array":
        add_by_array(given, given)
    else:
        add_by_field()
    want = np.bincount(k, minlength=ROWS)[:, None] * np.array([1, 2, 3])
    np.testing.assert_array_equal(y.to_numpy(), want)
    np.testing.assert_array_equal(given if kind == "array" else of.to_numpy(), 0)


@pytest.mark.parametrize("bits", ["512", "256"])
@pytest.mark.parametrize("n", SIZES)
def test_components_side_by_side(n, bits, monkeypatch):
    """Steps of 2 to 5: spans of memory, with components that are not asked for, and more behind them."""
    monkeypatch.setenv("DIFFSIM_VECTOR_BITS", bits)
    ds.init(arch=ds.cpu)
    rows, room = 2, n + 16
    pairs, triples = (ds.Vector.field(w, ds.f32, shape=(rows, room)) for w in (2, 3))
    fives, sums = (ds.Vector.field(5, ds.f32, shape=(rows, room)) for _ in range(2))

    @ds.kernel
    def mix():
        for r, i in ds.ndrange(rows, n):
            a, b = pairs[r, i], triples[r, i]
            triples[r, i][1] = a[0] + b[2]
            pairs[r, i] = ds.Vector([b[0], a[1] - a[0]])
            sums[r, i] += ds.Vector([b[2], a[1], fives[r, i][4], fives[r, i][1], 1.0])

    a, b, c, d = (numbers((rows, room, w), w, "f4") for w in (2, 3, 5, 5))
    for f, h in zip((pairs, triples, fives, sums), (a, b, c, d), strict=True):
        f.from_numpy(h)
    mix()
    lanes = np.s_[:, :n]
    x, y = a.copy()[lanes], b.copy()[lanes]
    a[lanes] = np.stack([y[..., 0], x[..., 1] - x[..., 0]], -1)
    b[lanes] = np.stack([y[..., 0], x[..., 0] + y[..., 2], y[..., 2]], -1)
    z = c[lanes]
    d[lanes] += np.stack([y[..., 2], x[..., 1], z[..., 4], z[..., 1], np.ones((rows, n))], -1)
    for f, want in zip((pairs, triples, fives, sums), (a, b, c, d), strict=True):
        np.testing.assert_array_equal(f.to_numpy(), want)


def interpolation(n, kind):
    """Four cells around a point, mixed; and its adjoint, with lanes that take a branch or do not."""
    q = ds.field(ds.f64, shape=(ROWS, ROWS), needs_grad=True)
    p = ds.Vector.field(2, ds.f64, shape=n, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def fields():
        for k in p:
            if p[k][0] + p[k][1] > 6.0:
                i, j = int(p[k][0]), int(p[k][1])
                a, b = p[k][0] - i, p[k][1] - j
                low = (1 - b) * q[i, j] + b * q[i, j + 1]
                high = (1 - b) * q[i + 1, j] + b * q[i + 1, j + 1]
                loss[None] += ((1 - a) * low + a * high) ** 2

    @ds.kernel
    def arrays(q: ds.types.ndarray(), p: ds.types.ndarray(ds.math.vec2)):
        for k in range(p.shape[0]):
            i, j = int(p[k][0]), int(p[k][1])
            q[i, j] += 1.0
            q[i, j + 1] += 2.0
            q[i + 1, j] += 3.0
            q[i + 1, j + 1] += 4.0

    return q, p, loss, fields if kind == "fields" else arrays


@pytest.mark.parametrize("n", SIZES)
def test_the_gradient_of_an_interpolation(n):
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    q, p, loss, kernel = interpolation(n, "fields")
    h, at = (
        np.random.default_rng(0).random((ROWS, ROWS)),
        7.9 * np.random.default_rng(1).random((n, 2)),
    )
    q.from_numpy(h)
    p.from_numpy(at)
    with ds.Tape(loss):
        kernel()
    used = at[at.sum(1) > 6.0]
    i, j = used.astype(int).T
    a, b = (used - np.stack([i, j], 1)).T
    corners = [h[i, j], h[i, j + 1], h[i + 1, j], h[i + 1, j + 1]]
    weights = [(1 - a) * (1 - b), (1 - a) * b, a * (1 - b), a * b]
    value = sum(w * c for w, c in zip(weights, corners, strict=True))
    want = np.zeros_like(h)
    for (di, dj), w in zip([(0, 0), (0, 1), (1, 0), (1, 1)], weights, strict=True):
        np.add.at(want, (i + di, j + dj), 2 * value * w)
    np.testing.assert_allclose(loss[None], (value**2).sum(), rtol=1e-12)
    np.testing.assert_allclose(q.grad.to_numpy(), want, rtol=1e-12, atol=1e-14)
    slope = (1 - b) * (corners[2] - corners[0]) + b * (corners[3] - corners[1])
    np.testing.assert_allclose(
        p.grad.to_numpy()[at.sum(1) > 6.0, 0], 2 * value * slope, rtol=1e-11, atol=1e-13
    )


def test_arrays_whose_rows_are_known_at_the_launch():
    """Only what lies in one row is near for certain; sizes may change from launch to launch."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    *_, kernel = interpolation(1, "arrays")
    for rows, n in ((ROWS, 37), (5, 20)):
        q, at = np.zeros((rows, rows + 1)), (rows - 1.1) * np.random.default_rng(n).random((n, 2))
        kernel(q, at)
        want = np.zeros_like(q)
        i, j = at.astype(int).T
        for k, (di, dj) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
            np.add.at(want, (i + di, j + dj), k + 1.0)
        np.testing.assert_array_equal(q, want)


def test_what_is_written_in_between_is_seen():
    """A load behind a store to its element, and a sum behind a store, are not moved across it."""
    ds.init(arch=ds.cpu)
    n = 37
    x = ds.field(ds.f32, shape=(n, 4))
    at = ds.field(ds.i32, shape=n)

    @ds.kernel
    def shift():
        for i in range(n):
            a = x[i, 0]
            x[i, 1] = a + 1.0
            b = x[i, 1]
            x[i, 1] += 10.0
            x[i, 2] = b + x[i, 1]
            x[i, 2] = x[i, 2] + 100.0

    h = numbers((n, 4), 3, "f4")
    x.from_numpy(h)
    at.from_numpy(np.arange(n, dtype="i4"))
    shift()
    h[:, 2] = 2 * h[:, 0] + 112
    h[:, 1] = h[:, 0] + 11
    np.testing.assert_array_equal(x.to_numpy(), h)


def test_arrays_that_overlap():
    """One buffer under two names: no load of one is moved across a store to the other."""
    ds.init(arch=ds.cpu)

    @ds.kernel
    def copy(x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in range(x.shape[0]):
            a = x[i, 0]
            y[i, 1] = 5.0
            y[i, 2] = a + x[i, 1]

    h = numbers((37, 3), 4, "f4")
    copy(h, h)
    np.testing.assert_array_equal(h[:, 2], h[:, 0] + 5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "fixed"), [(ROWS, False), (20_000, False), (20_000, True)])
def test_threads_and_a_fixed_order(threads, rows, fixed):
    """Few rows: private copies; many: atomics, or with `deterministic` logs; all the same sums."""
    n = 5000
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, deterministic=fixed)
    y = ds.Vector.field(3, ds.f32, shape=rows)
    at = ds.Vector.field(2, ds.i32, shape=n)

    @ds.kernel
    def add():
        for i in at:
            y[at[i][0]] += ds.Vector([1.0, 2.0, 3.0])
            y[at[i][1]] -= ds.Vector([1.0, 4.0, 0.0])

    k = np.stack([indices(n, 5, rows), indices(n, 6, rows)], 1)
    at.from_numpy(k)
    add()
    want = np.zeros((rows, 3))
    np.add.at(want, k[:, 0], [1, 2, 3])
    np.subtract.at(want, k[:, 1], [1, 4, 0])
    np.testing.assert_array_equal(y.to_numpy(), want)


def test_which_accesses_are_grouped():
    """Groups end where something else touches their memory, and hold no index that all lanes share."""
    ds.init(arch=ds.cpu)
    x, y = ds.field(ds.f32, shape=64), ds.field(ds.f32, shape=64)
    at = ds.field(ds.i32, shape=8)

    @ds.kernel
    def run():
        for i in at:
            k = at[i]
            a = x[k] + x[k + 1] + x[3]
            y[k] += a
            if a > 0:
                y[k + 2] += 1.0
            y[k + 1] += a

    task = pipeline.run(run._only(()).ir, pipeline.LOWER).tasks[0]
    found = find_neighbours(task, task.simd)
    assert sorted(len(g.accesses) for g in found) == [1, 1, 2, 2]
    assert {g.step for g in task.neighbours} == {None}


@pytest.mark.parametrize("seed", [3, 18])
def test_random_kernels(seed):
    """Without loops, and with: a lane that loops is written once, and asks if all are active."""
    assert gathers.verdict(gathers.make(seed), seed) == "right"
