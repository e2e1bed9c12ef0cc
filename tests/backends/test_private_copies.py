"""Sums into small memories: threads' copies, one thread alone and atomics give the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

import diffsim as ds
from tests.support.lowered import lower


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("lanes", [0, 1, 100, 200_000])
def test_histogram(threads, lanes):
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    n = max(lanes, 1)
    where = ds.field(ds.i32, shape=n)
    weight = ds.field(ds.f64, shape=n)
    count = ds.field(ds.i32, shape=(3, 64))
    total = ds.Vector.field(2, ds.f64, shape=(3, 64))
    most = ds.field(ds.i32, shape=64)

    @ds.kernel
    def histogram(row: ds.i32):
        for i in range(lanes):
            k = where[i]
            count[row + 1, k] += 1
            total[row, k] += [weight[i], -0.5 * weight[i]]
            ds.atomic_max(most[k], i)

    rng = np.random.default_rng(3)
    places, weights = rng.integers(0, 64, n).astype(np.int32), rng.random(n)
    where.from_numpy(places)
    weight.from_numpy(weights)
    total.fill(1.0)
    histogram(1)
    private = lower(histogram._only(()).ir).tasks[0].privatized
    assert sorted(p.mem.name for p in private) == ["count", "total"]
    want = np.bincount(places[:lanes], minlength=64)
    assert (count.to_numpy()[2] == want).all()
    assert not count.to_numpy()[:2].any()
    sums = 1.0 + np.bincount(places[:lanes], weights[:lanes], minlength=64)
    np.testing.assert_allclose(total.to_numpy()[1, :, 0], sums, rtol=1e-11)
    np.testing.assert_allclose(total.to_numpy()[1, :, 1], 1.5 - 0.5 * sums, rtol=1e-10, atol=1e-9)
    assert (total.to_numpy()[[0, 2]] == 1.0).all()
    last = np.zeros(64, int)
    np.maximum.at(last, places[:lanes], np.arange(lanes))
    assert (most.to_numpy() == last).all()


def test_the_same_bits_every_time():
    """The copies are added up in the order of the chunks, whichever thread was faster."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=4)
    n = 300_000
    x, s = ds.field(ds.f32, shape=n), ds.field(ds.f32, shape=16)

    @ds.kernel
    def scatter():
        for i in x:
            s[i % 16] += x[i]

    x.from_numpy(np.random.default_rng(0).random(n).astype(np.float32))
    found = set()
    for _ in range(20):
        s.fill(0)
        scatter()
        found.add(s.to_numpy().tobytes())
    assert len(found) == 1


def test_a_memory_that_is_also_read_has_no_copies():
    ds.init(arch=ds.cpu)
    s, y = ds.field(ds.f32, shape=16), ds.field(ds.f32, shape=64)

    @ds.kernel
    def both():
        for i in y:
            s[i % 16] += 1.0
            y[i] = s[(i + 1) % 16]

    both()
    assert not lower(both._only(()).ir).tasks[0].privatized


def test_components_of_one_element():
    """Weights that are the components of one matrix are more than a reduction carries: copies do the rest."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=4)
    n, rows = 100_000, 30
    x = ds.Vector.field(3, ds.f32, shape=n)
    w = ds.Matrix.field(rows, 3, ds.f32, shape=(), needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def forward():
        for i in x:
            loss[None] += (w[None] @ x[i]).sum()

    points = np.random.default_rng(0).random((n, 3)).astype(np.float32)
    x.from_numpy(points)
    found = set()
    for _ in range(20):
        with ds.Tape(loss):
            forward()
        found.add(w.grad.to_numpy().tobytes())
    assert len(found) == 1
    want = np.tile(points.sum(axis=0, dtype=np.float64), (rows, 1))
    np.testing.assert_allclose(w.grad.to_numpy(), want, rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_that_no_lane_reaches(threads):
    """Nothing is added up where a condition keeps the lanes away: there may be no memory."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    x = ds.field(ds.f32, shape=(4, 8))

    @ds.kernel
    def scatter(t: ds.i32):
        for i in range(200_000):
            if 0 <= t < 4:
                x[t, i % 8] += 1.0

    scatter(3)
    scatter(1_000_000_000)
    scatter(-1_000_000_000)
    want = np.zeros((4, 8))
    want[3] = 25_000
    assert (x.to_numpy() == want).all()


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_with_a_sum_and_copies(threads, deterministic):
    """The index of the row is needed where copies are added up, and again after all ways to run the lanes."""
    ds.init(
        arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads, deterministic=deterministic
    )
    n, x = 50_000, ds.field(ds.f64, shape=(4, 4))

    @ds.kernel
    def sums(t: ds.i32):
        for i in range(n):
            if t > 1:
                for k in range(1, 4):
                    x[t, 3] += 2.0 * k + i
            x[t, 1] += 1.0 + i

    sums(1)
    sums(2)
    want = np.zeros((4, 4))
    want[1, 1] = want[2, 1] = n + n * (n - 1) // 2
    want[2, 3] = 12 * n + 3 * (n * (n - 1) // 2)
    assert (x.to_numpy() == want).all()


@pytest.mark.parametrize("alone", [1, 4096])  # added up by all threads, or by the one that launches
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("order", ["ij", "ji"])
@pytest.mark.parametrize("layout", ["AOS", "SOA"])
def test_copies_of_any_dense_layout(layout, order, wide, alone, monkeypatch):
    """A row of a field whose components or axes lie in another order; neighbours stay as they were."""
    monkeypatch.setattr("diffsim.passes.vectors.vectorize._ALWAYS", wide)
    monkeypatch.setattr("diffsim.backends.cpu.private_copies._ALONE", alone)
    ds.init(arch=ds.cpu, cpu_max_num_threads=3)
    lanes = 100_000
    total = ds.Matrix.field(2, 2, ds.f64, layout=getattr(ds.Layout, layout))
    counts = ds.field(ds.i32)
    if order == "ij":
        ds.root.dense(ds.i, 3).dense(ds.j, 40).place(total, counts)
    else:
        ds.root.dense(ds.j, 40).dense(ds.i, 3).place(counts)
        ds.root.dense(ds.j, 40).dense(ds.i, 3).place(total)
    w = ds.field(ds.f64, shape=lanes)

    @ds.kernel
    def scatter(row: ds.i32):
        for i in w:
            total[row, i % 37 + 1] += ds.Matrix([[w[i], 1.0], [2.0, -w[i]]])
            counts[i % 3, i % 37] += 1

    weights = np.random.default_rng(11).random(lanes)
    w.from_numpy(weights)
    total.fill(0.5)
    counts.fill(7)
    scatter(2)
    private = lower(scatter._only((2,)).ir).tasks[0].privatized
    assert sorted(p.mem.name for p in private) == ["counts", "total"]
    place = np.arange(lanes) % 37 + 1
    sums = np.bincount(place, weights, minlength=40)
    many = np.bincount(place, minlength=40)
    want = np.full((3, 40, 2, 2), 0.5)
    want[2] += np.moveaxis(np.array([[sums, many], [2 * many, -sums]]), 2, 0)
    np.testing.assert_allclose(total.to_numpy(), want, rtol=1e-11)
    hits = np.zeros((3, 40), int)
    np.add.at(hits, (np.arange(lanes) % 3, np.arange(lanes) % 37), 1)
    assert (counts.to_numpy() == hits + 7).all()


@pytest.mark.parametrize("near", [1 << 20, 3000, 1500])  # bytes: a register of slots, or fewer
@pytest.mark.parametrize("dtype", [ds.f32, ds.f64, ds.i32])
@pytest.mark.parametrize(("n", "threads"), [(8, 1), (37, 3), (130, 1), (1000, 3)])
def test_lanes_that_meet_add_to_slots(n, dtype, threads, near, monkeypatch):
    """Bare values, products and negated ones, under a branch, and lanes that meet by chance."""
    monkeypatch.setattr("diffsim.ir.schedules._CACHED_BYTES", near)
    monkeypatch.setattr("diffsim.backends.cpu.chunks._CHUNK_WORK", 50)
    monkeypatch.setattr("diffsim.backends.cpu.scheduling._COPY_WORK", 0)
    monkeypatch.setattr("diffsim.passes.vectors.vectorize._ALWAYS", True)
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    m, vec3 = 41, ds.types.vector(3, dtype)
    total = ds.Vector.field(3, dtype, shape=(2, m))
    where, a, b = ds.field(ds.i32, shape=n), ds.field(dtype, shape=n), ds.field(dtype, shape=m)

    @ds.kernel
    def meet(row: ds.i32):
        for i in a:
            for j in range(m):
                p = a[i] * b[j]
                total[row, j] += vec3(a[i], p, -p)
                if a[i] > b[j]:
                    total[row, j] -= vec3(p, 1, b[j])
            total[row, where[i]] += vec3(1, 2, a[i])

    rng = np.random.default_rng(n)
    place = rng.integers(0, 5, n).astype(np.int32)
    x, y = rng.integers(-9, 9, n), rng.integers(-9, 9, m)  # whole: sums are exact in any order
    where.from_numpy(place)
    a.from_numpy(x.astype(a.to_numpy().dtype))
    b.from_numpy(y.astype(b.to_numpy().dtype))
    total.fill(1)
    for _ in range(2):
        meet(1)
    (p,) = lower(meet._only((1,)).ir).tasks[0].privatized
    assert p.meeting == m * 6
    assert p.count == m * 6 + 3
    assert "@copies0" in meet.llvm() or n < 1000 or threads == 1
    product, taken = np.outer(x, y), x[:, None] > y
    want = np.ones((2, m, 3))
    for c, (plain, masked) in enumerate(
        [(x[:, None] + 0 * y, product), (product, 1 + 0 * product), (-product, y + 0 * product)]
    ):
        want[1, :, c] += 2 * (plain - np.where(taken, masked, 0)).sum(0)
        np.add.at(want[1, :, c], place, 2 * (x if c == 2 else c + 1))
    assert (total.to_numpy() == want).all()


def test_how_many_slots():
    """A register of them while the copies stay near, none for lanes that go different ways."""
    ds.init(arch=ds.cpu)

    def slots(n, most, scatters=0):
        s, x = ds.field(ds.f32, shape=n), ds.field(ds.f32, shape=64)

        @ds.kernel
        def meet():
            for i in x:
                for j in range(n):
                    s[j] += x[i]
                for j in range(scatters):
                    s[i + j] += x[i]

        meet()
        return lower(meet._only(()).ir).tasks[0].privatized[0].slots(most)

    assert [slots(n, 16) for n in (100, 1 << 15, 1 << 16, 1 << 17, 1 << 18)] == [16, 16, 8, 4, 1]
    assert slots(100, 2) == 1
    assert slots(100, 16, scatters=10) == 16
    assert slots(100, 16, scatters=50) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_pairs_have_the_same_bits_every_time(threads):
    """The gradient of a sum over pairs, with a number of lanes that no register divides."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    n = 1001
    x = ds.Vector.field(3, ds.f32, shape=n, needs_grad=True)
    energy = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def attract():
        for i in range(n):
            for j in range(n):
                d = x[i] - x[j]
                energy[None] += -1 / ds.sqrt(d.dot(d) + 1e-2)

    h = np.random.default_rng(0).random((n, 3), np.float32)
    x.from_numpy(h)
    attract()
    found = set()
    for _ in range(10):
        x.grad.fill(0)
        energy.grad[None] = 1.0
        attract.grad()
        found.add(x.grad.to_numpy().tobytes())
    assert len(found) == 1
    d = h[:, None].astype(float) - h
    want = 2 * (d / ((d * d).sum(2) + 1e-2)[:, :, None] ** 1.5).sum(1)
    np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-4, atol=2e-5 * abs(want).max())
    assert "@copies0" in attract.grad.llvm()
    assert re.search(r"store <\d+ x float> %\w+, ptr %\w+, align \d+", attract.grad.llvm())


@pytest.mark.parametrize("threads", [2, 16])
def test_zeros_are_not_added_and_nan_is(cpu, threads):
    # Many more elements than lanes are not copied. Two threads with atomics take longer than one without.
    cpu.init(cpu_max_num_threads=threads)
    n, count = 20_000, 1_000_000
    sums = cpu.field(cpu.f64, shape=count)
    place, value = cpu.field(cpu.i32, shape=n), cpu.field(cpu.f64, shape=n)

    @cpu.kernel
    def add():
        for i in place:
            sums[place[i]] += value[i]

    rng = np.random.default_rng(0)
    where, what = rng.integers(0, 50, n), rng.normal(size=n) * (rng.random(n) < 0.3)
    what[:4] = [np.nan, np.inf, -np.inf, -0.0]
    where[:4] = [50, 51, 52, 53]
    place.from_numpy(where.astype(np.int32))
    value.from_numpy(what)
    add()
    expected = np.zeros(60)
    np.add.at(expected, where, what)
    np.testing.assert_allclose(sums.to_numpy()[:60], expected, rtol=1e-10, atol=1e-10)
    assert ("atomicrmw fadd" in add.llvm()) == (threads > 2)


@pytest.mark.parametrize("threads", [1, 2, 40])
def test_only_functions_that_a_launch_may_choose_are_compiled(cpu, threads, monkeypatch):
    """Constant bounds leave one of them, and the row that is added to may be none of the memory's."""
    monkeypatch.setattr("diffsim.backends.cpu.chunks._CHUNK_WORK", 1000)
    cpu.init(arch=cpu.cpu, default_fp=cpu.f64, cpu_max_num_threads=threads)
    n, rows = 50_000, 3
    small, large = ds.field(ds.f64, shape=(rows, 20)), ds.field(ds.f64, shape=n // 4)
    where, ends = ds.field(ds.i32, shape=n), ds.field(ds.i32, shape=2)

    @ds.kernel
    def count(row: ds.i32):
        for i in where:
            if row < rows:
                small[row, where[i] % 20] += ds.sqrt(4.0)
        for i in range(200):
            large[where[i]] += 3.0
        for i in where:
            large[where[i]] += ds.sqrt(9.0)
        for i in range(ends[0], ends[1]):
            large[where[i]] += 1.0

    places = np.random.default_rng(1).integers(0, n // 4, n).astype("i4")
    where.from_numpy(places)
    ends.from_numpy(np.array([5, n - 5], "i4"))
    rounds = 0
    for row in (1, rows, 1 << 30, 2):
        count(row)
        rounds += 1
    exact = np.zeros((rows, 20))
    np.add.at(exact, (slice(1, None), places % 20), 2.0)
    assert (small.to_numpy() == exact).all()
    found = np.bincount(places, minlength=n // 4) * 3.0
    found += np.bincount(places[:200], minlength=n // 4) * 3.0
    found += np.bincount(places[5:-5], minlength=n // 4)
    assert (large.to_numpy() == rounds * found).all()
    compiled = set(re.findall(r"define internal void @(task|alone|copies)(\d)", count.llvm()))
    one = {1: ("alone",) * 4, 2: ("copies", "alone", "copies"), 40: ("copies", "alone", "task")}
    known = {(kind, str(k)) for k, kind in enumerate(one[threads])}
    rest = {1: (), 2: ("copies",), 40: ("task", "alone", "copies")}[threads]
    assert compiled == known | {(kind, "3") for kind in ("alone", *rest)}
