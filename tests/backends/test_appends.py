"""Loops that append, whose iterations run as vectors: Python's lists, and nothing else is written."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.passes.vectors import vectorize as vectorizer
from diffsim.passes.vectors.vectorize import vectorize
from diffsim.runtime.session import session
from tests.fuzz import appends
from tests.support.lowered import lower

N, WIDE, ITEMS = 11, 40, 37

pytestmark = pytest.mark.usefixtures("quick_code")


def loops_of(kernel):
    """The loops of a kernel whose iterations run as vectors, on a processor that has masks."""
    found = vectorize(lower(kernel._only(()).ir), vector_bits=256)
    return [s for t in found.tasks if t.appends for s in t.appends.loops]


@pytest.fixture(params=[256, 512])
def vector_bits(request, monkeypatch):
    """Code without AVX-512, and with what the processor has."""
    monkeypatch.setattr(session, "_jit", Jit(vector_bits=request.param))


@pytest.fixture
def points(vector_bits):
    """Places on a line, and the lists that kernels fill; what they do not write stays -1."""
    ds.init(arch=ds.cpu)
    x = ds.field(ds.f32, shape=ITEMS)
    x.from_numpy(np.random.default_rng(3).uniform(0, 10, ITEMS).astype(np.float32))
    near = ds.field(ds.i32, shape=N)
    found = ds.field(ds.i32, shape=(N, WIDE))
    found.fill(-1)
    return x, near, found


def expected(x, most=ITEMS, reach=2.5):
    lists = np.full((N, WIDE), -1)
    for p in range(N):
        kept = [q for q in range(ITEMS) if q > p and abs(x[p] - x[q]) < reach][:most]
        lists[p, : len(kept)] = kept
    return lists


@pytest.mark.parametrize("most", [0, 1, 4, 7, 8, 9, 12, WIDE])
def test_a_list_of_neighbours_up_to_a_bound(points, most):
    x, near, found = points

    @ds.kernel
    def search(most: ds.i32):
        for p in range(N):
            n = 0
            for q in range(p // 2, ITEMS):
                if q > p and abs(x[p] - x[q]) < 2.5 and n < most:
                    found[p, n] = q
                    n += 1
            near[p] = n

    search(most)
    lists = expected(x.to_numpy(), most)
    np.testing.assert_array_equal(found.to_numpy(), lists)
    np.testing.assert_array_equal(near.to_numpy(), (lists >= 0).sum(1))
    assert len(loops_of(search)) == 1


def test_values_vectors_and_two_counters(points):
    """Elements of a vector are apart in memory; a second list is filled in the same loop."""
    x, near, found = points
    far = ds.field(ds.i32, shape=(WIDE, N))
    offsets = ds.Vector.field(3, ds.f32, shape=(N, WIDE))
    far.fill(-1)

    @ds.kernel
    def search():
        for p in range(N):
            n, m = 0, 0
            for q in range(p // 2, ITEMS):
                d = x[q] - x[p]
                if q > p and abs(d) < 2.5:
                    found[p, n] = q
                    offsets[p, n] = ds.Vector([d, 2.0 * d, x[p]])
                    n += 1
                if d > 6.0:
                    far[m, p] = q
                    m += 1
            near[p] = n + m

    search()
    xs = x.to_numpy()
    lists = expected(xs)
    np.testing.assert_array_equal(found.to_numpy(), lists)
    for p in range(N):
        kept = lists[p][lists[p] >= 0]
        d = xs[kept] - xs[p]
        there = offsets.to_numpy()[p]
        np.testing.assert_array_equal(
            there[: len(d)], np.stack([d, 2 * d, np.full_like(d, xs[p])], 1)
        )
        assert not there[len(d) :].any()
        others = [q for q in range(p // 2, ITEMS) if xs[q] - xs[p] > 6]
        np.testing.assert_array_equal(far.to_numpy()[: len(others), p], others)
        assert (far.to_numpy()[len(others) :, p] == -1).all()
    assert len(loops_of(search)) == 1


def test_lists_one_behind_the_other_from_numpy(points):
    """A place that is a sum, in an array of any strides; the list of a lane begins where it is told."""
    x, near, _ = points
    first = ds.field(ds.i32, shape=N)
    first.from_numpy(np.arange(N, dtype="i4") * WIDE)

    @ds.kernel
    def search(pool: ds.types.ndarray(ndim=1)):
        for p in range(N):
            n = 0
            for q in range(p + 1, ITEMS):
                if abs(x[p] - x[q]) < 2.5:
                    pool[first[p] + n] = q
                    n += 1
            near[p] = n

    pool = np.full(2 * N * WIDE, -1, np.int32)
    search(pool[::2])
    np.testing.assert_array_equal(pool[::2].reshape(N, WIDE), expected(x.to_numpy()))
    assert (pool[1::2] == -1).all()
    assert near.to_numpy().sum() == (pool[::2] >= 0).sum()


def test_what_idle_iterations_would_divide_by(points):
    """Divisors are 0, and indices outside of the field, where a branch says so."""
    x, near, found = points
    divisor = ds.field(ds.i32, shape=ITEMS)
    divisor.from_numpy(np.arange(ITEMS, dtype="i4") % 3)
    place = ds.field(ds.i32, shape=ITEMS)
    place.from_numpy(np.where(np.arange(ITEMS) % 3 > 0, 1, 1 << 30).astype("i4"))

    @ds.kernel
    def search():
        for p in range(N):
            n = 0
            for q in range(p // 8, ITEMS):
                if divisor[q] > 0:
                    if q // divisor[q] > 5 and x[place[q]] > 0.0:
                        found[p, n] = q // divisor[q]
                        n += 1
            near[p] = n

    search()
    kept = [q // (q % 3) for q in range(2, ITEMS) if q % 3 and q // (q % 3) > 5]
    np.testing.assert_array_equal(near.to_numpy(), len(kept))
    np.testing.assert_array_equal(found.to_numpy()[:, : len(kept)], np.tile(kept, (N, 1)))
    assert (found.to_numpy()[:, len(kept) :] == -1).all()


def reads_the_list(x, near, found):
    @ds.kernel
    def search():
        for p in range(N):
            n = 0
            for q in range(p, ITEMS):
                if x[q] > 2.0 and found[p, ds.max(n - 1, 0)] < q:
                    found[p, n] = q
                    n += 1
            near[p] = n

    return search


def stores_the_counter(x, near, found):
    @ds.kernel
    def search():
        for p in range(N):
            n = 0
            for q in range(p, ITEMS):
                if x[q] > 2.0:
                    found[p, n] = n + q
                    n += 1
            near[p] = n

    return search


def counts_in_both_branches(x, near, found):
    @ds.kernel
    def search():
        for p in range(N):
            n = 0
            for q in range(p, ITEMS):
                if x[q] > 2.0:
                    found[p, n] = q
                    n += 1
                else:
                    n += 1
            near[p] = n

    return search


def stores_elsewhere_too(x, near, found):
    @ds.kernel
    def search():
        for p in range(N):
            n = 0
            for q in range(p, ITEMS):
                if x[q] > 2.0:
                    found[p, n] = q
                    n += 1
                found[p, q] = 2 * q
            near[p] = n

    return search


def carries_a_sum(x, near, found):
    @ds.kernel
    def search():
        for p in range(N):
            n, s = 0, 0.0
            for q in range(p, ITEMS):
                if x[q] > 2.0 and s < 40.0:
                    found[p, n] = q
                    n += 1
                    s += x[q]
            near[p] = n

    return search


OTHERS = [
    reads_the_list,
    stores_the_counter,
    counts_in_both_branches,
    stores_elsewhere_too,
    carries_a_sum,
]


@pytest.mark.parametrize("make", OTHERS)
def test_loops_that_depend_on_more_than_counters_run_as_they_are(points, make):
    assert not loops_of(make(*points))


def test_what_avx2_keeps_of_every_mask(monkeypatch):
    """All masks of 8 and 4 lanes, of 32 and 64 bits, side by side and apart."""
    monkeypatch.setattr(session, "_jit", Jit(vector_bits=256))
    monkeypatch.setattr(vectorizer, "_task", lambda task, has_masks, few: task)
    for real, whole in ((ds.f32, ds.i32), (ds.f32, ds.i64), (ds.f64, ds.i32), (ds.f64, ds.f64)):
        ds.init(arch=ds.cpu, offline_cache=False)
        masks = ds.field(real, shape=(256, 8))
        kept = ds.field(whole, shape=(256, 8))
        turned = ds.field(whole, shape=(8, 256))
        bits = np.arange(256)[:, None] >> np.arange(8) & 1
        masks.from_numpy(bits.astype(real.numpy))
        kept.fill(-1)
        turned.fill(-1)

        @ds.kernel
        def keep():
            for p in range(256):
                n = 0
                for e in range(8):
                    if masks[p, e] > 0.5:  # noqa: B023
                        kept[p, n] = e + 10  # noqa: B023
                        turned[n, p] = e + 20  # noqa: B023
                        n += 1

        keep()
        want = np.full((256, 8), -1)
        for p in range(256):
            found = np.flatnonzero(bits[p])
            want[p, : len(found)] = found
        np.testing.assert_array_equal(kept.to_numpy(), np.where(want < 0, -1, want + 10))
        np.testing.assert_array_equal(turned.to_numpy().T, np.where(want < 0, -1, want + 20))
        if session.jit.vector_bits >= 256:
            assert "permd" in keep.llvm()


@pytest.mark.parametrize("seed", range(8))
def test_random_loops_that_append(seed, vector_bits):
    assert appends.verdict(appends.make(seed), seed) == "right"
