"""Loops whose own iterations become vectors in tasks whose lanes do, against NumPy in f64."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.vectors import vectorize
from tests.support.lowered import lower


def by_lane(kernel, *args, usual=False):
    """How many loops of a kernel's adjoint (or the one that loads what was stored) lanes run one by one."""
    adjoint = kernel._only(args).derivative
    tasks = lower((adjoint.usual if usual else adjoint).ir).tasks
    assert all(t.simd is not None for t in tasks if t.by_lane)
    return sum(len(t.by_lane) for t in tasks)


def random(shape, seed):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (37, 19)])
@pytest.mark.parametrize("t", [ds.f32, ds.f64])
def test_the_gradient_of_a_dense_layer(outputs, inputs, t):
    ds.init(arch=ds.cpu, default_fp=t)
    n = 5
    w = ds.field(t, shape=(outputs, inputs), needs_grad=True)
    x = ds.field(t, shape=(n, inputs), needs_grad=True)
    y = ds.field(t, shape=(n, outputs), needs_grad=True)

    @ds.kernel
    def layer():
        for i, j in y:
            total = 0.0
            for k in range(inputs):
                total += w[j, k] * x[i, k]
            y[i, j] = ds.tanh(total)

    for f, seed in ((w, 1), (x, 2), (y.grad, 3)):
        f.from_numpy(random(f.shape, seed).astype(w.to_numpy().dtype))
    a, b, c = (f.to_numpy().astype(float) for f in (w, x, y.grad))
    layer()
    found = np.tanh(b @ a.T)
    wide = 1e-5 if t is ds.f32 else 1e-12
    np.testing.assert_allclose(y.to_numpy(), found, rtol=wide, atol=wide)
    assert by_lane(layer)
    if outputs == 64:  # without the sums again, too
        assert by_lane(layer, usual=True)
    slope = c * (1 - found**2)
    for _ in range(2):
        layer.grad()
        np.testing.assert_allclose(w.grad.to_numpy(), slope.T @ b, rtol=10 * wide, atol=10 * wide)
        np.testing.assert_allclose(x.grad.to_numpy(), slope @ a, rtol=10 * wide, atol=10 * wide)
        w.grad.fill(0.0)
        x.grad.fill(0.0)
        y.grad.from_numpy(c.astype(w.to_numpy().dtype))
        y.fill(0.0)  # the next one computes y again


def test_lanes_have_integers_booleans_and_ends_of_their_own(monkeypatch):
    """Under a branch that only some lanes take, in an incomplete block, with loops of different length."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n, columns = 37, 50
    table = ds.field(ds.f64, shape=(n, columns), needs_grad=True)
    row = ds.field(ds.i32, shape=n)
    x, y = (ds.field(ds.f64, shape=n, needs_grad=True) for _ in range(2))

    @ds.kernel
    def sums():
        for i in x:
            total = x[i]
            for _ in range(3):
                total = ds.sin(total)
            if x[i] > -0.5:
                there, big = row[i] * 2 - i, x[i] > 0.3
                part = 0.0
                for k in range(i % 7, columns - i):
                    part += ds.select(big, 2.0, 1.0) * table[there + i - row[i], k]
                y[i] = part * total + there

    a, b = random((n, columns), 4), random(n, 5)
    rows = np.random.default_rng(6).permutation(n).astype(np.int32)
    table.from_numpy(a)
    x.from_numpy(b)
    row.from_numpy(rows)
    sums()
    y.grad.fill(1.0)
    sums.grad()
    assert by_lane(sums)
    t = np.sin(np.sin(np.sin(b)))
    slope = np.cos(b) * np.cos(np.sin(b)) * np.cos(np.sin(np.sin(b)))
    expected, at_table, at_x = np.zeros(n), np.zeros_like(a), np.zeros(n)
    for i in np.flatnonzero(b > -0.5):
        weight = 2.0 if b[i] > 0.3 else 1.0
        span = slice(i % 7, max(columns - i, i % 7))
        expected[i] = weight * t[i] * a[rows[i], span].sum() + 2 * rows[i] - i
        at_table[rows[i], span] += weight * t[i]
        at_x[i] = weight * slope[i] * a[rows[i], span].sum()
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(table.grad.to_numpy(), at_table, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(x.grad.to_numpy(), at_x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("count", "is_long"), [(60, True), (2, False)])
def test_blocks_with_many_accesses_are_spared_a_slow_pass(count, is_long, monkeypatch):
    """LLVM compares none of them with another, and unrolls loops with few as before."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, y = ds.field(ds.f64, shape=(37, count)), ds.field(ds.f64, shape=37)

    @ds.kernel
    def sums():
        for i in y:
            for k in ds.static(range(count)):
                y[i] += (k + 1) * x[i, k]

    a = random(x.shape, 7)
    x.from_numpy(a)
    sums()
    np.testing.assert_allclose(y.to_numpy(), a @ np.arange(1, count + 1), rtol=1e-12)
    assert ("asm sideeffect" in sums.llvm()) is is_long


@pytest.mark.parametrize("trips", ["the same", "of each lane", "while"])
@pytest.mark.parametrize(("count", "is_long"), [(60, True), (2, False)])
def test_loops_in_blocks_with_many_accesses_are_spared_it_too(count, is_long, trips, monkeypatch):
    """The call that says so has no code, and each loop computes what it did."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    m = 3
    # Lanes side by side have one access for each element, others as many as there are lanes.
    order = "ijk" if is_long else "kji"
    x, y = (ds.field(ds.f64, shape=(37, m, count), order=order) for _ in range(2))
    ends = ds.field(ds.i32, shape=37)

    @ds.kernel
    def sums():
        for i in ends:
            if ds.static(trips == "while"):
                j = 0
                while j < ends[i]:
                    for k in ds.static(range(count)):
                        y[i, j, k] += (k + 1) * x[i, j, k]
                    j += 1
            else:
                for j in range(m if ds.static(trips == "the same") else ends[i]):
                    for k in ds.static(range(count)):
                        y[i, j, k] += (k + 1) * x[i, j, k]

    a, last = random(x.shape, 7), np.arange(37) % (m + 1)
    x.from_numpy(a)
    ends.from_numpy(last.astype(np.int32))
    sums()
    inside = np.arange(m) < np.where(trips == "the same", m, last)[:, None]
    expected = a * np.arange(1, count + 1) * inside[:, :, None]
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-12)
    assert ("call void @llvm.var.annotation" in sums.llvm()) is is_long


@pytest.mark.parametrize("backwards", [False, True])
def test_lanes_fill_a_table_together(backwards):
    """Loops that find what their last iteration has stored are none for LLVM's vectors: lanes are."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n, m = 40, 9
    x = ds.field(ds.f64, shape=(n, m), needs_grad=True)
    table = ds.field(ds.f64, shape=(n, m + 1, m + 1), needs_grad=True)
    last = m if backwards else 0

    @ds.kernel
    def fill():
        for p in range(n):
            for a in range(1, m + 1):
                for b in range(1, m + 1):
                    i = last - a if ds.static(backwards) else a
                    j = last - b if ds.static(backwards) else b
                    s = ds.static(1 if backwards else -1)
                    up, left, both = table[p, i + s, j], table[p, i, j + s], table[p, i + s, j + s]
                    table[p, i, j] = x[p, a - 1] * ds.sin(up) + 0.5 * left * x[p, b - 1] + both

    def filled(a):
        found = np.zeros((n, m + 1, m + 1))
        found[:, 0], found[:, :, 0] = 0.3, 0.2
        for i in range(1, m + 1):
            for j in range(1, m + 1):
                left = 0.5 * found[:, i, j - 1] * a[:, j - 1]
                found[:, i, j] = (
                    a[:, i - 1] * np.sin(found[:, i - 1, j]) + left + found[:, i - 1, j - 1]
                )
        return found

    given, weights, step = random((n, m), 1), random(n, 2), 1e-6
    start = filled(given)
    start[:, 1:, 1:] = 0
    turned = (lambda a: a[:, ::-1, ::-1].copy()) if backwards else (lambda a: a)
    x.from_numpy(given)
    table.from_numpy(turned(start))
    fill()
    np.testing.assert_allclose(turned(table.to_numpy()), filled(given), rtol=1e-13, atol=1e-14)
    seed = np.zeros((n, m + 1, m + 1))
    seed[:, m, m] = weights
    table.grad.from_numpy(turned(seed))
    fill.grad()
    for k in range(m):
        way = np.zeros((n, m))
        way[:, k] = step
        both = [filled(given + sign * way)[:, m, m] for sign in (1, -1)]
        slope = weights * (both[0] - both[1]) / (2 * step)
        np.testing.assert_allclose(x.grad.to_numpy()[:, k], slope, rtol=1e-7, atol=1e-8)
    made = fill._only(())
    for ir in (made.ir, made.derivative.ir):
        assert [t.simd is not None for t in lower(ir).tasks] == [True]
