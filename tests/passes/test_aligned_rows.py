"""Short rows of lanes: whole in chunks, and with idle lanes at their ends so that vectors are aligned."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu import chunks
from diffsim.backends.native.jit import Jit
from diffsim.runtime.session import session
from tests.support.lowered import lower


@pytest.fixture
def masks(cpu):
    if session.jit.vector_bits < 512:
        pytest.skip("stores of some lanes take longer than of all")


def fields_of(dtype, h, w):
    x, y, weight = (ds.field(dtype, shape=s, needs_grad=True) for s in ((h, w), (2, h, w), ()))
    weight[None] = 0.75
    x.from_numpy(np.random.default_rng(h + w).uniform(-1, 1, (h, w)))
    return x, y, weight


def make(x, y, weight, box, out):
    (i0, i1), (j0, j1) = box

    @ds.kernel
    def step(k: ds.i32):
        for i, j in ds.ndrange((i0, i1), (j0, j1)):
            around = x[i - 1, j] + x[i + 1, j] + x[i, j - 1]
            y[k, i, j + out] = weight[None] * around + x[i, j + 1] * x[i, j]

    return step


def expected_of(x, weight, box, out):
    """What the kernel stores, by NumPy."""
    (i0, i1), (j0, j1) = box
    here = (slice(i0, i1), slice(j0, j1))
    up, down = x[i0 - 1 : i1 - 1, j0:j1], x[i0 + 1 : i1 + 1, j0:j1]
    left, right = x[i0:i1, j0 - 1 : j1 - 1], x[i0:i1, j0 + 1 : j1 + 1]
    found = np.zeros_like(x)
    found[i0:i1, j0 + out : j1 + out] = weight * (up + down + left) + right * x[here]
    return found


def gradient_of(x, weight, seed, box, out):
    """The gradient of a sum of what is stored times `seed`, with respect to x and the weight."""
    (i0, i1), (j0, j1) = box
    g = seed[i0:i1, j0 + out : j1 + out]
    found = np.zeros_like(x)
    for di, dj in ((-1, 0), (1, 0), (0, -1)):
        found[i0 + di : i1 + di, j0 + dj : j1 + dj] += weight * g
    found[i0:i1, j0 + 1 : j1 + 1] += g * x[i0:i1, j0:j1]
    found[i0:i1, j0:j1] += g * x[i0:i1, j0 + 1 : j1 + 1]
    up, down = x[i0 - 1 : i1 - 1, j0:j1], x[i0 + 1 : i1 + 1, j0:j1]
    return found, (g * (up + down + x[i0:i1, j0 - 1 : j1 - 1])).sum()


BOXES = [  # height and width, lanes, where they store
    ((64, 64), ((1, 63), (1, 63)), 0),
    ((20, 64), ((1, 19), (1, 63)), 0),
    ((20, 48), ((2, 17), (5, 27)), 3),
    ((20, 80), ((1, 19), (17, 79)), -2),
    ((9, 70), ((1, 8), (1, 69)), 0),
    ((9, 37), ((3, 5), (1, 36)), 0),
    ((6, 160), ((1, 5), (1, 159)), 0),
    ((40, 20), ((1, 39), (9, 19)), 0),
]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("dtype", [ds.f32, ds.f64])
@pytest.mark.parametrize(("shape", "box", "out"), BOXES)
def test_values_and_gradients(monkeypatch, threads, dtype, shape, box, out):
    monkeypatch.setattr(chunks, "_CHUNK_WORK", 300)
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    x, y, weight = fields_of(dtype, *shape)
    step = make(x, y, weight, box, out)
    step(1)
    values = x.to_numpy().astype(float)
    near = dict(rtol=1e-5, atol=1e-5) if dtype is ds.f32 else dict(rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(y.to_numpy()[1], expected_of(values, 0.75, box, out), **near)
    assert not y.to_numpy()[0].any()
    seed = np.random.default_rng(1).uniform(-1, 1, (2, *shape))
    y.grad.from_numpy(seed)
    seed = y.grad.to_numpy().astype(float)
    step.grad(1)
    expected, of_weight = gradient_of(values, 0.75, seed[1], box, out)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, **near)
    np.testing.assert_allclose(weight.grad[None], of_weight, rtol=1e-4)
    # What was stored there before has no effect any more; nothing else is touched.
    (i0, i1), (j0, j1) = box
    seed[1, i0:i1, j0 + out : j1 + out] = 0
    np.testing.assert_array_equal(y.grad.to_numpy(), seed.astype(y.grad.to_numpy().dtype))


def aligned_of(kernel):
    return [t.aligned and t.aligned[:2] for t in lower(kernel._only(()).ir).tasks]


def test_rows_begin_where_vectors_are_aligned(masks):
    x, y, weight = fields_of(ds.f32, 64, 64)
    assert aligned_of(make(x, y, weight, ((1, 63), (1, 63)), 0)) == [(1, 64)]
    assert aligned_of(make(x, y, weight, ((1, 63), (18, 50)), 0)) == [(2, 48)]
    assert aligned_of(make(x, y, weight, ((1, 63), (16, 48)), 0)) == [None]  # as they are
    assert aligned_of(make(x, y, weight, ((1, 63), (1, 9)), 0)) == [None]  # too few
    assert aligned_of(make(*fields_of(ds.f64, 64, 64), ((1, 63), (1, 63)), 0)) == [(1, 64)]
    # Rows of 70 numbers begin anywhere.
    assert aligned_of(make(*fields_of(ds.f32, 64, 70), ((1, 63), (1, 63)), 0)) == [None]


def kernels_of(x, y, weight, box):
    """Kernels with functions and branches in their lanes, and what each stores by NumPy."""
    (i0, i1), (j0, j1) = box

    @ds.kernel
    def function():
        for i, j in ds.ndrange((i0, i1), (j0, j1)):
            y[0, i, j] = ds.exp(x[i, j - 1])

    @ds.kernel
    def function_in_branch():
        for i, j in ds.ndrange((i0, i1), (j0, j1)):
            damp = x[i, j]
            if i < 4 or j < 4:
                damp = ds.tanh(0.25 * ds.min(i, j) + damp)
            y[0, i, j] = damp * (x[i, j - 1] + x[i, j + 1])

    @ds.kernel
    def store_in_branch():
        for i, j in ds.ndrange((i0, i1), (j0, j1)):
            factor = weight[None]
            if x[i, j] > 0.1:
                y[0, i, j] = x[i - 1, j] * factor
            else:
                y[1, i, j] = x[i, j + 1]

    @ds.kernel
    def guards():
        for i, j in ds.ndrange((i0, i1), (j0, j1)):
            value = x[i, j]
            if i + 1 < i1 and j - 1 >= j0:
                value = x[i + 1, j - 1]
            if value > 0.2:
                value = ds.sqrt(value)
            y[0, i, j] = value

    def at(di, dj):
        return x.to_numpy().astype(float)[i0 + di : i1 + di, j0 + dj : j1 + dj]

    i, j = np.mgrid[i0:i1, j0:j1]
    damp = np.where((i < 4) | (j < 4), np.tanh(0.25 * np.minimum(i, j) + at(0, 0)), at(0, 0))
    there = np.where((i + 1 < i1) & (j - 1 >= j0), at(1, -1), at(0, 0))
    more = at(0, 0) > 0.1
    return {
        function: (np.exp(at(0, -1)), 0.0),
        function_in_branch: (damp * (at(0, -1) + at(0, 1)), 0.0),
        store_in_branch: (np.where(more, at(-1, 0) * 0.75, 0.0), np.where(more, 0.0, at(0, 1))),
        guards: (np.where(there > 0.2, np.sqrt(np.maximum(there, 0.0)), there), 0.0),
    }


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("dtype", [ds.f32, ds.f64])
@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((20, 48), ((1, 19), (1, 47))),
        ((9, 64), ((1, 8), (16, 48))),
        ((9, 37), ((1, 8), (1, 36))),
        ((7, 130), ((2, 6), (3, 129))),
    ],
)
def test_functions_and_branches(monkeypatch, threads, dtype, shape, box):
    monkeypatch.setattr(chunks, "_CHUNK_WORK", 300)
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    x, y, weight = fields_of(dtype, *shape)
    here = (slice(*box[0]), slice(*box[1]))
    near = dict(rtol=1e-6, atol=1e-6) if dtype is ds.f32 else dict(rtol=1e-12, atol=1e-13)
    for kernel, expected in kernels_of(x, y, weight, box).items():
        y.fill(0.0)
        kernel()
        found = y.to_numpy()
        for k in range(2):
            np.testing.assert_allclose(found[k][here], expected[k], **near)
        found[:, *here] = 0
        assert not found.any()  # nothing else is touched


def test_rows_of_functions_and_branches_are_vectors(masks):
    box = ((1, 19), (1, 47))
    found = [*map(aligned_of, kernels_of(*fields_of(ds.f32, 20, 48), box))]
    assert found == [[(0, 48)], *[[(1, 48)]] * 3]
    # As they are, but written out after they have become vectors.
    found = [*map(aligned_of, kernels_of(*fields_of(ds.f32, 20, 64), ((1, 19), (16, 48))))]
    assert found == [[(15, 48)], [(0, 32)], [(0, 32)], [(0, 32)]]
    # Rows that begin anywhere: the last numbers of functions alone take long.
    found = [*map(aligned_of, kernels_of(*fields_of(ds.f32, 20, 50), ((1, 19), (1, 47))))]
    assert found == [[(0, 48)], [(0, 48)], [None], [None]]


def test_no_function_is_called_for_a_number_alone(masks):
    x, y, weight = fields_of(ds.f32, 20, 48)
    for kernel in kernels_of(x, y, weight, ((1, 19), (1, 47))):
        text = Jit().optimized(kernel.llvm())
        assert "call contract float" not in text
        assert text.count("<16 x float>") > 3


def test_rows_of_elements_apart_or_with_one_condition_stay(masks):
    x, y, weight = fields_of(ds.f32, 64, 64)

    @ds.kernel
    def apart():
        for i, j in ds.ndrange((1, 63), (1, 31)):
            y[0, i, j] = x[i, 2 * j]

    @ds.kernel
    def in_branch():
        for i, j in ds.ndrange((1, 63), (1, 31)):
            if x[i, j] > 0:
                y[0, i, j] = x[i, 2 * j]

    @ds.kernel
    def of_a_row():
        for i, j in ds.ndrange((1, 63), (1, 31)):
            value = x[i, j]
            if i > 8 and weight[None] > 0:
                value = value / x[i - 1, j]
            y[0, i, j] = value

    for kernel in (apart, in_branch, of_a_row):
        assert aligned_of(kernel) == [None]


def test_boxes_with_short_rows_are_cut_for_branches(masks):
    x, y, _ = fields_of(ds.f64, 64, 64)

    @ds.kernel
    def shifted():
        for i, j in ds.ndrange(64, 64):
            value = x[i, j]
            if j > 0:
                value += 2.0 * x[i, j - 1]
            y[0, i, j] = value

    assert aligned_of(shifted) == [(1, 64), None]
    shifted()
    values = x.to_numpy()
    values[:, 1:] += 2.0 * x.to_numpy()[:, :-1]
    np.testing.assert_allclose(y.to_numpy()[0], values, rtol=1e-12)
    seed = np.random.default_rng(2).uniform(-1, 1, (2, 64, 64))
    y.grad.from_numpy(seed)
    shifted.grad()
    expected = seed[0].copy()
    expected[:, :-1] += 2.0 * seed[0][:, 1:]
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-12)


def test_chunks_have_whole_rows(cpu):
    x, y, weight = fields_of(ds.f32, 64, 70)
    text = make(x, y, weight, ((1, 63), (1, 69)), 0).llvm()
    assert "urem" not in text
    assert "icmp slt i64 %v" in text


def test_rows_with_branches_stay_as_they_were(cpu):
    x, y, _ = fields_of(ds.f32, 64, 70)

    @ds.kernel
    def guarded():
        for i, j in ds.ndrange(64, 70):
            value = x[i, j]
            if j > 0:
                value += x[i, j - 1]
            if value > 0.5:
                value = ds.sqrt(value)
            y[0, i, j] = value

    # An interior that keeps a branch would not pay for its rims; rows written out have one a lane.
    text = guarded.llvm()
    assert text.count("define internal void @task") == 1
    assert "urem" in text


def test_rows_of_sums_are_not_written_out(cpu):
    x, _, weight = fields_of(ds.f32, 64, 32)

    @ds.kernel
    def total():
        for i, j in x:
            weight[None] += (x[i, j] - i) ** 2

    assert "urem" in total.llvm()
