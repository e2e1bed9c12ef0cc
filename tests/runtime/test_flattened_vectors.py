"""Vectors of floats as arguments: what is flattened at once is what each number would have become."""

import math

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.types import f16, f32, f64, i32, tensor
from diffsim.runtime.binding.arguments import Parameter, flatten
from diffsim.runtime.binding.vector_arguments import numbers_of

GIVEN = [
    ds.Vector([0.1, -0.0, 3.0]),
    ds.Vector([1.0, 2.0, 3.0], ds.f32),
    ds.Vector([1, 2, 3]),
    [0.1, 0.2, 0.3],
    (0.1, -0.0, math.inf),
    [1, 2.0, 3.0],
    [True, 1.0, 2.0],
    [1e39, 0.0, 0.0],
    [3.4028235677973366e38, 1e-46, math.nan],  # rounds to infinity, and to 0
    [np.float32(0.1), 0.2, 0.3],
    np.array([0.1, 0.2, 0.3]),
    np.array([0.1, 0.2, 0.3], np.float32)[::-1],
    np.array([0.1, 0.2, 1e300]),
    np.array([1, 2, 3]),
]


@pytest.mark.parametrize("t", [f32, f64])
@pytest.mark.parametrize("k", range(len(GIVEN)))
def test_the_same_numbers(t, k):
    p = Parameter("a", "value", tensor(t, (3,)))
    found, exact = numbers_of([p])(GIVEN[k]), flatten(p, GIVEN[k], "run")
    assert found is None or [*map(repr, found)] == [*map(repr, exact)]
    # The usual ones are not left to the other way.
    assert (found is None) <= (k in (2, 5, 6, 7, 8, 9, 12, 13))


def test_matrices_and_numbers_beside():
    parts = tensor(f32, (2, 2)), i32, f32
    numbers = numbers_of([Parameter(n, "value", t) for n, t in zip("abc", parts, strict=True)])
    m = ds.Matrix([[1.0, 2.0], [3.0, 0.1]])
    assert numbers(m, 5, 0.1) == [1.0, 2.0, 3.0, float(np.float32(0.1)), 5, float(np.float32(0.1))]
    for others in [(m, 2**31, 0.1), (m, True, 0.1), (m, 5, 1), (m, 5, 1e39), ([1.0] * 4, 5, 0.1)]:
        assert numbers(*others) is None
    assert numbers(np.ones(4), 5, 0.1) is None
    assert numbers_of([Parameter("a", "value", f32)]) is None
    assert numbers_of([Parameter("a", "value", tensor(f16, (2,)))]) is None
    assert numbers_of([Parameter("a", "value", tensor(i32, (2,)))]) is None


def test_launches_and_gradients_by_hand(cpu):
    x = ds.field(ds.f32, shape=(), needs_grad=True)
    y = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def run(a: ds.types.vector(2, ds.f32), k: ds.i32):
        y[None] = (a[0] + k * a[1]) * x[None]

    x[None], y.grad[None] = 2.0, 1.0
    for given in ([0.5, 0.25], ds.Vector([0.5, 0.25]), np.array([0.5, 0.25]), [0.5, 0.1], [1, 2]):
        run(given, 3)
        slope = float(np.float32(given[0]) + 3 * np.float32(given[1]))
        assert y[None] == pytest.approx(2 * slope, rel=1e-6)
        x.grad[None], y.grad[None] = 0.0, 1.0
        run.grad(given, 3)
        assert x.grad[None] == pytest.approx(slope, rel=1e-6)
    with pytest.raises(ds.errors.KernelTypeError, match="a of run is a vector"):
        run([0.5, 0.25, 0.0], 3)
