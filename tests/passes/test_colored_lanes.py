"""Lanes of one colour without AVX-512: the cells of a colour, and no others; NumPy."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.session import session
from tests.support.lowered import lower
from tests.support.source import make
from tests.support.vectors import narrow

SHAPE = 7, 40
COLORED = {
    "(i + j) % 2 == c": lambda i, j, c: (i + j) % 2 == c,
    "(j - i) % 2 != 0": lambda i, j, c: (j - i) % 2 != 0,
    "(i - j - 3) % 4 == c": lambda i, j, c: (i - j - 3) % 4 == c,
    "(3 * i + j + c) % 8 == 5": lambda i, j, c: (3 * i + j + c) % 8 == 5,
    "j % 2 == i % 2": lambda i, j, c: j % 2 == i % 2,
    "(j & 3) == c": lambda i, j, c: (j & 3) == c,
}
OTHERS = {
    "j % 3 == c": lambda i, j, c: j % 3 == c,
    "2 * j % 4 == c": lambda i, j, c: 2 * j % 4 == c,
    "i % 2 == c": lambda i, j, c: i % 2 == c,
    "j % 2 == m[i, j]": lambda i, j, c: j % 2 == 1,
    "j % 4 != c": lambda i, j, c: j % 4 != c,
}
BOUNDS = (1, 39), (2, 39), (5, 6), (7, 7), (9, 3), (1, 32)


@pytest.fixture(autouse=True)
def without_masks(monkeypatch):
    monkeypatch.setattr(session, "_jit", narrow())
    ds.init(arch=ds.cpu, offline_cache=False)


def numbers(seed):
    return np.random.default_rng(seed).integers(-9, 10, SHAPE).astype("f4")


def sweep_of(condition, ends="lo, hi", body="x[i, j] = 2 * y[i, j - 1] + y[i + 1, j] + i"):
    """A kernel whose lanes write where a condition holds, and what it writes and reads."""
    x, y = (ds.field(ds.f32, shape=SHAPE, needs_grad=True) for _ in range(2))
    m = ds.field(ds.i32, shape=SHAPE)
    m.fill(1)
    space = dict(ds=ds, x=x, y=y, m=m)
    text = f"""
@ds.kernel
def sweep(c: ds.i32, lo: ds.i32, hi: ds.i32):
    for i, j in ds.ndrange((1, 6), ({ends})):
        if {condition}:
            {body}
"""
    make(text, space)
    return space["sweep"], x, y


@pytest.mark.parametrize("ends", [None, *BOUNDS])
@pytest.mark.parametrize("condition", [*COLORED, *OTHERS])
def test_cells_of_a_color(condition, ends):
    """What is stored and its gradient; the bounds are arguments, or numbers."""
    i, j = np.indices(SHAPE)
    sweep, x, y = sweep_of(condition, f"{ends[0]}, {ends[1]}" if ends else "lo, hi")
    given, seed = numbers(1), numbers(2)
    for lo, hi in [ends] if ends else BOUNDS:
        for c in (-1, 0, 1, 2, 3, 9):
            work = {**COLORED, **OTHERS}[condition](i, j, c)
            work = work & (i >= 1) & (i < 6) & (j >= lo) & (j < hi)
            x.fill(-1)
            y.from_numpy(given)
            sweep(c, lo, hi)
            value = 2 * np.roll(given, 1, 1) + np.roll(given, -1, 0) + i
            np.testing.assert_array_equal(x.to_numpy(), np.where(work, value, -1))
            x.grad.from_numpy(seed)
            y.grad.fill(0)
            sweep.grad(c, lo, hi)
            given_on = np.where(work, seed, 0)
            want = 2 * np.roll(given_on, -1, 1) + np.roll(given_on, 1, 0)
            np.testing.assert_array_equal(y.grad.to_numpy(), want)
            np.testing.assert_array_equal(x.grad.to_numpy(), np.where(work, 0, seed))


def test_sweep_in_place():
    """Red and black cells in place, on several threads; the gradient is tested by the transpose."""
    ds.init(arch=ds.cpu, offline_cache=False, cpu_max_num_threads=3, default_fp=ds.f64)
    h, w = 60, 61
    x = ds.field(ds.f64, shape=(h, w), needs_grad=True)

    @ds.kernel
    def sweep(c: ds.i32):
        for i, j in ds.ndrange((1, h - 1), (1, w - 1)):
            if (i + j) % 2 == c:
                x[i, j] = x[i - 1, j] + 2 * x[i + 1, j] + x[i, j - 1] - x[i, j + 1] + 3 * x[i, j]

    def stored(a, c):
        i, j = np.indices((h, w))
        work = ((i + j) % 2 == c) & (i > 0) & (i < h - 1) & (j > 0) & (j < w - 1)
        up, down, left, right = (np.roll(a, *how) for how in ((1, 0), (-1, 0), (1, 1), (-1, 1)))
        return np.where(work, up + 2 * down + left - right + 3 * a, a)

    given, seed = (np.random.default_rng(k).integers(-9, 10, (h, w)).astype("f8") for k in (3, 4))
    for c in (0, 1):
        x.from_numpy(given)
        sweep(c)
        np.testing.assert_array_equal(x.to_numpy(), stored(given, c))
        x.grad.from_numpy(seed)
        sweep.grad(c)
        # The map is linear: its transpose applied to the seed, tested by the map itself.
        d = np.random.default_rng(5).integers(-9, 10, (h, w)).astype("f8")
        assert np.sum(x.grad.to_numpy() * d) == np.sum(seed * stored(d, c))


@pytest.mark.parametrize("condition", [*COLORED, *OTHERS])
def test_which_lanes_there_are(condition):
    sweep, _, _ = sweep_of(condition, "3, 27")
    (task,) = lower(sweep._only(()).ir).tasks
    lo, hi = (int(v.value) for v in task.bounds.yields[-2:])
    if condition in COLORED:
        period = 2 if "% 2" in condition else 8 if "% 8" in condition else 4
        assert (lo, hi) == (0, 24 // period)
    else:
        assert (lo, hi) == (3, 27)


@pytest.mark.parametrize(
    "body",
    [
        "x[i, j + 1] += y[i, j]",  # the next lane adds to the same row, behind it
        "x[i, 3] += y[i, j]",
        "ds.atomic_add(m[i, j % 3], 1)",
    ],
)
def test_lanes_that_write_other_elements_stay(body):
    sweep, _, _ = sweep_of("(i + j) % 2 == c", "3, 27", body)
    (task,) = lower(sweep._only(()).ir).tasks
    assert [int(v.value) for v in task.bounds.yields[-2:]] == [3, 27]
