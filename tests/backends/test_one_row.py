"""Boxes whose rows follow one another in memory: one loop over all lanes, without divisions."""

import numpy as np
import pytest

import diffsim as ds
from tests.fuzz import one_row as random_boxes


def is_one_loop(kernel) -> bool:
    """Whether the code of lanes neither divides by the length of rows nor has one loop in another."""
    text = kernel.llvm().split("define internal")[1]
    return "udiv" not in text and text.count("\nlanes") == 1 and "\nrows" not in text


def filled(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_sum_of_squares(cpu):
    """As a loss is one; the same adjoint."""
    x = ds.field(ds.f32, shape=(300, 7), needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def effort():
        for i, k in x:
            loss[None] += x[i, k] ** 2 / 300

    values = filled((300, 7))
    x.from_numpy(values)
    with ds.Tape(loss):
        effort()
    assert loss[None] == pytest.approx((values.astype(np.float64) ** 2).sum() / 300, rel=1e-6)
    np.testing.assert_allclose(x.grad.to_numpy(), values / 150, rtol=1e-6)
    assert is_one_loop(effort)
    assert is_one_loop(effort.grad)


def test_rows_of_vectors_at_a_time_step(cpu):
    """Three axes, from the second plane on, of one time; components; an element that all lanes load."""
    x = ds.Vector.field(2, ds.f32, shape=(3, 5, 4, 6))
    y = ds.Vector.field(2, ds.f32, shape=(5, 4, 6))
    a = ds.field(ds.f32, shape=9)

    @ds.kernel
    def move(t: ds.i32):
        for i, j, k in ds.ndrange((1, 5), 4, 6):
            if x[t, i, j, k][0] > 0:
                x[t + 1, i, j, k] = x[t, i, j, k] * a[t] + y[i, j, k]

    given, more, scales = filled((3, 5, 4, 6, 2)), filled((5, 4, 6, 2), 1), filled(9, 2)
    for field, values in ((x, given), (y, more), (a, scales)):
        field.from_numpy(values)
    move(1)
    expected = given.copy()
    new = given[1, 1:] * scales[1] + more[1:]
    expected[2, 1:] = np.where(given[1, 1:, ..., :1] > 0, new, given[2, 1:])
    np.testing.assert_allclose(x.to_numpy(), expected, rtol=1e-6)
    assert is_one_loop(move)


def test_axes_in_the_order_of_the_memory(cpu):
    """The last axis of the memory is the last of the box, whatever the program calls them."""
    x = ds.field(ds.f32, shape=(40, 6))
    y = ds.field(ds.f32, shape=(6, 40))

    @ds.kernel
    def mixed():
        for i, k in ds.ndrange(40, 6):
            y[k, i] = x[i, k]

    values = filled((40, 6))
    x.from_numpy(values)
    mixed()
    np.testing.assert_array_equal(y.to_numpy(), values.T)
    assert not is_one_loop(mixed)


@pytest.mark.parametrize("case", ["number", "neighbour", "part", "column", "twice", "condition"])
def test_rows_that_something_depends_on(cpu, case):
    n, m = 50, 6
    x, y = ds.field(ds.f32, shape=(n, m)), ds.field(ds.f32, shape=(n, m))
    w, square = ds.field(ds.f32, shape=m), ds.field(ds.f32, shape=(m, m))
    width = m - 1 if case == "part" else m

    @ds.kernel
    def run():
        for i, k in ds.ndrange(n, width):
            if ds.static(case == "number"):
                y[i, k] = x[i, k] * k
            elif ds.static(case == "neighbour"):
                y[i, k] = x[i, (k + 1) % m]
            elif ds.static(case == "column"):
                y[i, k] = x[i, k] * w[k]
            elif ds.static(case == "twice"):
                y[i, k] = x[i, k] + square[k, k]
            elif ds.static(case == "condition"):
                if i + k > 9:
                    y[i, k] = x[i, k]
            else:
                y[i, k] = x[i, k]

    values, weights, squares = filled((n, m)), filled(m, 1), filled((m, m), 2)
    x.from_numpy(values)
    w.from_numpy(weights)
    square.from_numpy(squares)
    run()
    i, k = np.indices((n, m))
    expected = {
        "number": values * k,
        "neighbour": np.roll(values, -1, axis=1),
        "part": np.where(k < width, values, 0),
        "column": values * weights,
        "twice": values + np.diag(squares),
        "condition": np.where(i + k > 9, values, 0),
    }[case]
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-6)
    assert not is_one_loop(run)


def test_many_chunks_on_threads():
    """Chunks begin and end anywhere in a row."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=2)
    x, y = ds.field(ds.f32, shape=(100_003, 3)), ds.field(ds.f32, shape=(100_003, 3))

    @ds.kernel
    def run():
        for i, k in x:
            y[i, k] += ds.sqrt(x[i, k]) + 1.0

    values = np.abs(filled((100_003, 3)))
    x.from_numpy(values)
    run()
    np.testing.assert_allclose(y.to_numpy(), np.sqrt(values) + 1, rtol=1e-6)
    assert is_one_loop(run)


@pytest.mark.parametrize("seed", [0, 1, 8])
def test_random_kernels(seed):
    assert random_boxes.verdict(random_boxes.make(seed), seed) == "right"
