"""Lanes with short loops over lists, and lanes that add to what others add to: the same as NumPy."""

import itertools

import numpy as np
import pytest

import diffsim as ds
from tests.support.lowered import lower


def found_wide(ir):
    """Whether the lanes of all loops run as vectors."""
    return all(t.simd is not None for t in lower(ir).tasks if t.axes)


@pytest.mark.parametrize("threads", [1, 2])
def test_rays_that_add_to_a_field_too_large_for_copies(threads):
    """Additions under a branch are made by the lanes at work alone, so that vectors pay."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    n, size, steps = 300, 1100, 24
    cells = ds.field(ds.f32, shape=(size, size), needs_grad=True)
    seen = ds.field(ds.f32, shape=n, needs_grad=True)

    @ds.kernel
    def march():
        for i in range(n):
            for k in range(steps):
                a, b = 1.7 * ds.cast(i, ds.f32), 40.0 * ds.cast(k, ds.f32) - 100.0
                if 0.0 <= a and a < 500.0 and 0.0 <= b and b < 600.0:
                    seen[i] += cells[ds.cast(a, ds.i32), ds.cast(b, ds.i32)]

    given = np.arange(1, n + 1, dtype=np.float32)
    seen.grad.from_numpy(given)
    march.grad()
    # What is rounded to integers is computed as the kernel does.
    a = np.float32(1.7) * np.arange(n, dtype=np.float32)
    b = (np.float32(40.0) * np.arange(steps, dtype=np.float32) - np.float32(100.0)).astype(int)
    expected = np.zeros((size, size), np.float32)
    for i, at in enumerate(a):
        if at < 500.0:
            expected[int(at), b[(b >= 0) & (b < 600)]] += given[i]
    np.testing.assert_array_equal(cells.grad.to_numpy(), expected)
    assert found_wide(march._only(()).derivative.ir)


CELLS, ITEMS, LANES = 11, 24, 40
SORTED = [0, 2, 2, 5, 6, 9, 9, 12, 15, 15, 18, 24]
LISTS = {
    "sorted": SORTED,
    "one step back": [0, 2, 2, 5, 4, 9, 9, 12, 15, 15, 18, 24],
    "descending": SORTED[::-1],
    "all empty": [7] * 12,
    "the last one back": [*SORTED[:-1], 3],
}
LENGTHS = {
    "as they follow": 0,
    "one shorter": -1,
    "one overlaps": 1,
    "the last one less than empty": -9,
}


def order_matters(values, before):
    for v in values:
        before = 0.5 * before + v
    return before


@pytest.fixture(scope="module", params=[1, 2])
def lists(request):
    """Two kernels over cells' lists, the fields that they read, and the result."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=request.param)
    first, length = ds.field(ds.i32, shape=CELLS + 1), ds.field(ds.i32, shape=CELLS + 1)
    items = ds.field(ds.i32, shape=ITEMS)
    x = ds.field(ds.f64, shape=ITEMS, needs_grad=True)
    y = ds.field(ds.f64, shape=LANES, needs_grad=True)
    items.from_numpy(np.random.default_rng(1).permutation(ITEMS).astype("i4"))
    x.from_numpy(np.arange(1.0, ITEMS + 1))

    @ds.kernel
    def to_next(n: ds.i32):
        for i in range(n):
            s = 0.0
            for c in range(i % 9, min(i % 9 + i % 6, CELLS)):
                k = c + 1
                for e in range(first[k - 1], first[k]):
                    s = 0.5 * s + x[items[e]]
            y[i] = s

    @ds.kernel
    def by_length(n: ds.i32):
        for i in range(n):
            s = 0.0
            for c in range(i % 9, min(i % 9 + i % 6, CELLS + 1)):
                for e in range(first[c], length[c] + first[c]):
                    s = 0.5 * s + x[items[e]]
            y[i] = s

    yield to_next, by_length, first, length, items, x, y
    ds.reset()


def check_lists(kernel, ranges, items, x, y):
    """A kernel and its gradient, against the loops of Python; all numbers are exact."""
    n, given, order = LANES - 3, x.to_numpy(), items.to_numpy()
    expected, slopes = np.zeros(LANES), np.zeros(ITEMS)
    for i in range(n):
        cells = range(i % 9, min(i % 9 + i % 6, len(ranges)))
        gone = [order[e] for c in cells for e in range(*ranges[c])]
        expected[i] = order_matters(given[gone], 0.0)
        for away, q in enumerate(reversed(gone)):
            slopes[q] += (i + 1) * 0.5**away
    y.fill(0)
    kernel(n)
    np.testing.assert_array_equal(y.to_numpy(), expected)
    x.grad.fill(0)
    y.grad.from_numpy(np.arange(1.0, LANES + 1))
    kernel.grad(n)
    np.testing.assert_array_equal(x.grad.to_numpy(), slopes)


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_neighbouring_cells(lists, name):
    """Joined where each ends where the next one begins; the launch looks at the lists anew."""
    to_next, _, first, _, items, x, y = lists
    ends = LISTS[name]
    first.from_numpy(np.array(ends, "i4"))
    check_lists(to_next, list(itertools.pairwise(ends)), items, x, y)
    assert ".sorted" in to_next.ir(after="join_ranges")
    assert ".sorted" in to_next.grad.ir(after="join_ranges")


@pytest.mark.parametrize("name", LENGTHS)
def test_lists_with_lengths(lists, name):
    """A range that ends before it begins is empty, but would take others away from a joined one."""
    _, by_length, first, length, items, x, y = lists
    lengths = np.diff([*SORTED, ITEMS])
    lengths[CELLS if "last" in name else 4] += LENGTHS[name]
    first.from_numpy(np.array(SORTED, "i4"))
    length.from_numpy(lengths.astype("i4"))
    ranges = [(a, a + m) for a, m in zip(SORTED, lengths, strict=True)]
    check_lists(by_length, ranges, items, x, y)
    assert ".sorted" in by_length.ir(after="join_ranges")


ROWS = [SORTED, LISTS["one step back"], SORTED[::-1], SORTED, [0] * (CELLS + 1)]


@pytest.mark.parametrize(("row", "shift"), [(0, 0), (1, 0), (2, -1), (3, -1), (3, 1), (4, 0)])
@pytest.mark.parametrize("threads", [1, 2])
def test_lists_of_each_step_of_time(row, shift, threads):
    """The launch looks at its own row alone: lanes need not be as many as cells of all rows."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads)
    many = 1000  # rows that lanes have no use for
    first = ds.field(ds.i32, shape=(many, CELLS + 1))
    items = ds.field(ds.i32, shape=ITEMS)
    x = ds.field(ds.f64, shape=ITEMS, needs_grad=True)
    y = ds.field(ds.f64, shape=(many, LANES), needs_grad=True)
    items.from_numpy(np.random.default_rng(1).permutation(ITEMS).astype("i4"))
    x.from_numpy(np.arange(1.0, ITEMS + 1))
    first.from_numpy(np.array([*ROWS, *[SORTED[::-1]] * (many - len(ROWS))], "i4"))

    @ds.kernel
    def gather(t: ds.i32):
        for i in range(LANES):
            s = 0.0
            for c in range(i % 9, min(i % 9 + i % 6, CELLS)):
                for e in range(first[t + shift, c], first[t + shift, c + 1]):
                    s = 0.5 * s + x[items[e]]
            y[t, i] = s

    t, order, given = row - shift, items.to_numpy(), x.to_numpy()
    gather(t)
    for i in range(LANES):
        cells = range(i % 9, min(i % 9 + i % 6, CELLS))
        gone = [given[order[e]] for c in cells for e in range(ROWS[row][c], ROWS[row][c + 1])]
        assert y[t, i] == order_matters(gone, 0.0)
    y.grad.fill(1)
    gather.grad(t)
    assert x.grad.to_numpy() @ given == y.to_numpy()[t].sum()  # it is linear
    assert ".sorted" in gather.ir(after="join_ranges")
    assert ".sorted" in gather.grad.ir(after="join_ranges")


def test_nests_that_are_no_lists_stay(cpu):
    """What differs from cell to cell, in the loop over cells or in a memory, must not be lost."""
    n = 3
    first, x = ds.field(ds.i32, shape=n + 1), ds.field(ds.f32, shape=n)
    y = ds.field(ds.f32, shape=n)
    ends, values = [0, 1, 1, 3], [1.0, 2.0, 4.0]

    @ds.kernel
    def use_the_cell():
        for i in range(n):
            for c in range(n):
                for e in range(first[c], first[c + 1]):
                    y[i] += x[e] * c

    @ds.kernel
    def look_at_what_changes():
        for i in range(n):
            for c in range(n):
                before = y[i]
                for e in range(first[c], first[c + 1]):
                    y[i] += before + x[e]

    @ds.kernel
    def use_the_sum_so_far():
        for i in range(n):
            total = 1.0
            for c in range(n):
                before = total
                for e in range(first[c], first[c + 1]):
                    total += before + x[e]
            y[i] = total - 1.0

    @ds.kernel
    def skip_a_cell():
        for i in range(n):
            for c in range(n - 1):
                for e in range(first[c], first[c + 2]):
                    y[i] += x[e]

    @ds.kernel
    def change_the_lists():
        for i in range(n):
            for c in range(n):
                for e in range(first[c], first[c + 1]):
                    y[i] += x[e]
                    first[3] = 2

    def expected(change):
        total = 0.0
        for c in range(n):
            total = change(total, c)
        return total

    grown = expected(lambda t, c: t + sum(t + values[e] for e in range(ends[c], ends[c + 1])))
    from_one = expected(
        lambda t, c: t + sum(t + 1 + values[e] for e in range(ends[c], ends[c + 1]))
    )
    pairs = sum(values[e] for c in range(n - 1) for e in range(ends[c], ends[c + 2]))
    for kernel, result in (
        (use_the_cell, sum(v * c for v, c in zip(values, [0, 2, 2], strict=True))),
        (look_at_what_changes, grown),
        (use_the_sum_so_far, from_one),
        (skip_a_cell, pairs),
        (change_the_lists, None),
    ):
        first.from_numpy(np.array(ends, "i4"))
        x.from_numpy(np.array(values, "f4"))
        y.fill(0)
        if result is not None:
            kernel()
            np.testing.assert_array_equal(y.to_numpy(), result)
        assert ".sorted" not in kernel.ir(after="join_ranges")


@pytest.mark.parametrize("name", LISTS)
def test_pairs_but_for_a_particle_itself(cpu, name):
    """The adjoint adds to both of a pair; what it adds to its own particle it carries through all lists."""
    ends, n = LISTS[name], ITEMS
    first, items = ds.field(ds.i32, shape=CELLS + 1), ds.field(ds.i32, shape=n)
    x = ds.field(ds.f32, shape=n, needs_grad=True)
    y = ds.field(ds.f32, shape=n, needs_grad=True)

    @ds.kernel(simplicity="relaxed")
    def interact():
        for p in range(n):
            s = 0.0
            for c in range(p % 9, p % 9 + 2):
                for e in range(first[c], first[c + 1]):
                    q = items[e]
                    if q != p:
                        s += x[p] * x[q]
            y[p] = s

    first.from_numpy(np.array(ends, "i4"))
    order = np.random.default_rng(2).permutation(n)
    items.from_numpy(order.astype("i4"))
    given, seeds = np.arange(1.0, n + 1), np.arange(n) % 3 - 1.0
    x.from_numpy(given.astype("f4"))
    interact()
    y.grad.from_numpy(seeds.astype("f4"))
    interact.grad()
    pairs = [
        (p, order[e])
        for p in range(n)
        for c in range(p % 9, p % 9 + 2)
        for e in range(ends[c], ends[c + 1])
        if order[e] != p
    ]
    slopes, expected = np.zeros(n), np.zeros(n)
    for p, q in pairs:
        expected[p] += given[p] * given[q]
        slopes[p] += seeds[p] * given[q]
        slopes[q] += seeds[p] * given[p]
    np.testing.assert_array_equal(y.to_numpy(), expected)
    np.testing.assert_array_equal(x.grad.to_numpy(), slopes)
    loops = interact.grad.ir(after="join_ranges")
    assert ".sorted" in loops
    assert "%any" in loops


def test_lists_with_little_to_compute_stay_scalar(cpu):
    """A sparse matrix times a vector is twice as fast so; roots and quotients are faster as vectors."""
    n = 64
    first, column = ds.field(ds.i32, shape=n + 1), ds.field(ds.i32, shape=n)
    x, y = ds.field(ds.f32, shape=n), ds.field(ds.f32, shape=n)

    @ds.kernel
    def multiply():
        for i in range(n):
            s = 0.0
            for k in range(first[i], first[i + 1]):
                s += x[column[k]]
            y[i] = s

    @ds.kernel
    def weigh():
        for i in range(n):
            s = 0.0
            for k in range(first[i], first[i + 1]):
                s += 1.0 / (1.0 + ds.sqrt(x[column[k]]))
            y[i] = s

    assert not found_wide(multiply._only(()).ir)
    assert found_wide(weigh._only(()).ir)
