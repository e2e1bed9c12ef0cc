"""With one thread a task is one call: no pool, no chunks, but the sums and functions of several threads."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu.chunks import chunks_of

ROWS, MANY = 1000, 1 << 22


def sweep(threads, columns=48):
    """Some sweeps over a box, sums, and lanes that add to others': (texts, what they compute)."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    x, y = (ds.field(ds.f32, shape=(ROWS, columns), needs_grad=True) for _ in range(2))
    total = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def smooth():
        for i, j in y:
            west = x[i, j - 1] if j > 0 else 1.0
            north = x[i - 1, j] if i > 0 else 2.0
            y[i, j] = ds.sqrt(west * north) + ds.exp(-west) + 0.5 * ds.min(west, north)

    @ds.kernel
    def add():
        for i, j in y:
            total[None] += 0.1 * y[i, j] ** 2

    values = np.random.default_rng(7).uniform(1, 2, (ROWS, columns)).astype("f4")
    x.from_numpy(values)
    with ds.ad.Tape(total):
        smooth()
        add()
    texts = [k.llvm() for k in (smooth, add, smooth.grad)]
    return texts, [f.to_numpy() for f in (y, total, x.grad)], values


def runs_on_pool(text):
    return "@ds_parallel_for" in text or "@ds_serial_for" in text


@pytest.fixture(autouse=True)
def _reset():
    yield
    ds.reset()


def test_one_thread_has_no_chunks_but_for_sums():
    texts, _, _ = sweep(1)
    assert list(map(runs_on_pool, texts)) == [False, True, False]
    texts, _, _ = sweep(2)
    assert runs_on_pool(texts[0])


def test_the_same_sums_and_functions_as_with_several_threads():
    (_, one, values), (_, two, _) = sweep(1), sweep(2)
    for a, b in zip(one[:2], two[:2], strict=True):
        assert a.tobytes() == b.tobytes()
    np.testing.assert_allclose(one[2], two[2], rtol=2e-6)
    x = values.astype("f8")
    west, north = np.ones_like(x), np.full_like(x, 2.0)
    west[:, 1:], north[1:] = x[:, :-1], x[:-1]
    want = np.sqrt(west * north) + np.exp(-west) + 0.5 * np.minimum(west, north)
    np.testing.assert_allclose(one[0], want, rtol=1e-5)
    to_west = np.sqrt(north / west) / 2 - np.exp(-west) + 0.5 * (west <= north)
    to_north = np.sqrt(west / north) / 2 + 0.5 * (west > north)
    seeds = 0.2 * want
    slopes = np.zeros_like(x)
    slopes[:, :-1] += (seeds * to_west)[:, 1:]
    slopes[:-1] += (seeds * to_north)[1:]
    np.testing.assert_allclose(one[2], slopes, rtol=1e-4, atol=1e-5)


def test_rows_that_are_cut_keep_their_chunks():
    """Functions at the ends of a chunk are scalars where LLVM makes vectors of a row of any length."""
    texts, one, _ = sweep(1, columns=300)
    assert runs_on_pool(texts[0])
    _, two, _ = sweep(2, columns=300)
    assert one[0].tobytes() == two[0].tobytes()


def test_long_loops_are_cut_for_ctrl_c():
    assert chunks_of(1000, 10, 1, shared=False) == 1
    assert chunks_of(MANY, 10, 1, shared=False) == 4
    assert chunks_of(MANY, 100, 1, shared=False) == MANY // 200_000
    assert chunks_of(MANY, 100, 1) == 128
