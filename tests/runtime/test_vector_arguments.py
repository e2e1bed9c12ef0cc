"""Vectors and matrices as arguments: what kernels get, to which launch `kernel.grad()` belongs, the cost."""

import sys

import numpy as np
import pytest

import diffsim as ds

N = 4


def scaled(dtype=ds.f32):
    """A kernel that multiplies by a number, a component and an entry, and its fields."""
    x = ds.field(dtype, shape=N, needs_grad=True)
    y = ds.field(dtype, shape=N, needs_grad=True)

    @ds.kernel
    def run(a: dtype, v: ds.types.vector(3, dtype), k: ds.i32, m: ds.types.matrix(2, 2, dtype)):
        for i in range(N):
            y[i] = a * x[i] * v[k] + m[0, 1]

    x.from_numpy(np.arange(1.0, N + 1))
    return x, y, run


@pytest.mark.parametrize("give", [ds.Vector, list, tuple, np.array, np.float32, np.float64])
def test_what_kernels_get(cpu, give):
    _, y, run = scaled()
    numbers = [0.1, 1e-46, 1e39]
    m = ds.Matrix([[1.0, 0.5], [2.0, 3.0]])
    with np.errstate(over="ignore"):
        v = np.array(numbers, give) if give in (np.float32, np.float64) else give(numbers)
        rounded = np.array(numbers, np.float32)
    for k in range(3):
        run(2.0, v, k, m)
        expected = np.float32(2.0) * np.arange(1, N + 1, dtype=np.float32) * rounded[k] + 0.5
        np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("v", [[1, 2, 3], np.array([1, 2, 3], np.uint8), ds.Vector([1, 2, 3])])
def test_whole_numbers_in_place_of_floats(cpu, v):
    _, y, run = scaled(ds.f64)
    run(1.0, v, 2, [[0, 1], [0, 0]])
    np.testing.assert_array_equal(y.to_numpy(), 3.0 * np.arange(1, N + 1) + 1)


@pytest.mark.parametrize("v", [[1.0, 2.0], [1.0, 2.0, "3"], [1.0, 2.0, 3j], [[1.0, 2.0, 3.0]]])
def test_what_is_refused(cpu, v):
    _, _, run = scaled()
    with pytest.raises(ds.KernelTypeError, match="v of run"):
        run(1.0, v, 0, [[0, 1], [0, 0]])


def test_gradients_by_hand_find_their_launch(cpu):
    """Launches with equal numbers have one key, whatever holds them."""
    x, y, run = scaled(ds.f64)
    m = np.eye(2)
    for v in (ds.Vector([1.0, 2.0, 3.0]), [4.0, 5.0, 6.0]):
        run(0.5, v, 1, m)
    y.grad.fill(1.0)
    run.grad(0.5, np.array([4.0, 5.0, 6.0]), 1, m)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 2.5))
    special = run._only((0.5, [4.0, 5.0, 6.0], 1, m))
    keys = set(special.launches.times)
    given = 0.5, [1.0, 2.0, 3.0], 1, m
    assert special.arguments.key(given) in keys
    assert len(keys) == 2


def test_zeros_with_signs(cpu):
    _, _, run = scaled(ds.f64)
    m = np.zeros((2, 2))
    for zero, seen in ((0.0, False), (-0.0, True)):
        run(1.0, [zero, 1.0, 2.0], 1, m)
        special = run._only((1.0, [zero, 1.0, 2.0], 1, m))
        assert special.launches.signed_zeros == seen


def test_numbers_are_converted_together(cpu):
    """A launch with a matrix of 64 numbers calls as many functions as one with 4."""

    def calls(n):
        total = ds.field(ds.f32, shape=())

        @ds.kernel
        def run(m: ds.types.matrix(n, n, ds.f32)):
            total[None] = m[0, 0] + m[n - 1, n - 1]

        m = ds.Matrix(np.full((n, n), 0.5).tolist())
        for _ in range(4):
            run(m)
        count = [0]

        def note(frame, event, _):
            count[0] += event == "call"

        sys.setprofile(note)
        try:
            run(m)
        finally:
            sys.setprofile(None)
        assert total[None] == 1.0
        return count[0]

    assert calls(8) == calls(2)


def test_fields_in_place_of_some(cpu):
    """A field for one of the vectors, and for the number: the others are in the key as ever."""
    x = ds.field(ds.f64, shape=N, needs_grad=True)
    total = ds.field(ds.f64, shape=(), needs_grad=True)
    given = ds.Vector.field(2, ds.f64, shape=(), needs_grad=True)
    factor = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def run(a: ds.f64, v: ds.types.vector(2, ds.f64), w: ds.types.vector(2, ds.f64), k: ds.i32):
        for i in range(N):
            total[None] += a * x[i] * v[k] * w[0]

    x.fill(1.0)
    given[None], factor[None] = [2.0, 3.0], 5.0
    for _ in range(4):
        run(factor, given, [7.0, 0.0], 1)
    total.grad[None] = 1.0
    run.grad(factor, given, ds.Vector([7.0, 0.0]), 1)
    assert total[None] == 4 * N * 5 * 3 * 7
    assert factor.grad[None] == N * 3 * 7
    assert given.grad[None].to_list() == [0.0, N * 5 * 7]
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 5.0 * 3 * 7))
