"""exp of vectors: the same accuracy and special values as libm's, and nothing of libmvec."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit

BORDERS = {
    ds.f32: [88.72283, 88.72284, -87.3365, -87.33655, -103.97208, -103.97209, 1e30, -1e30],
    ds.f64: [709.782712893384, 709.7827128933841, -708.3964185322641, -745.1332191019411]
    + [-745.1332191019412, 1e300, -1e300],
}
vectors = pytest.mark.skipif(not Jit().vector_math, reason="no libmvec, no vector forms")


def numbers(t):
    random, low = np.random.default_rng(0), -760 if t == ds.f64 else -110
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, *BORDERS[t]]
    parts = [special, random.uniform(low, -0.85 * low, 4000), random.uniform(-1, 1, 4000)]
    # Special numbers alone, too: of whole vectors, and in vectors with others.
    return np.concatenate([*parts, np.repeat(special, 64), random.permutation(special * 20)])


def check(found, x):
    """Within 1.1 units in the last place, subnormal results and infinities included."""
    exact = np.exp(x.astype(np.longdouble))
    rounded = exact.astype(x.dtype)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    unit = np.spacing(rounded[finite]).astype(np.longdouble)
    assert (np.abs(found[finite] - exact[finite]) <= 1.1 * unit).all()


@vectors
@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("t", [ds.f32, ds.f64])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("fast", [True, False])
def test_exponentials(t, inner, fast):
    """In lanes that run together because of a loop, and in loops that LLVM vectorizes."""
    ds.init(arch=ds.cpu, default_fp=t, fast_math=fast)
    values = numbers(t)
    x, y = ds.field(t, shape=len(values)), ds.field(t, shape=len(values))

    @ds.kernel
    def turns():
        for i in x:
            a = x[i]
            for _ in range(3):
                a = ds.exp(a) if a == x[i] else a
            y[i] = a

    @ds.kernel
    def straight():
        for i in x:
            y[i] = ds.exp(x[i])

    x.from_numpy(values.astype(t.numpy))
    run = turns if inner else straight
    run()
    given, found = x.to_numpy(), y.to_numpy()
    if inner:  # NaN is not itself, and a number that is its own exponential is none of them
        given, found = given[~np.isnan(given)], found[~np.isnan(given)]
    check(found, given)
    code = Jit().optimized(run.llvm())
    assert not re.search(r"call .*@_ZGV\w+_exp", code)
    assert bool(re.search(r"call .*@vector_exp", code)) is not inner


@vectors
def test_the_gradient_of_a_sum_of_gaussians(cpu):
    """Most of them are 0: far neighbours."""
    n = 70
    x = ds.field(ds.f32, shape=n, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def overlap():
        for i in range(n):
            for j in range(n):
                loss[None] += ds.exp(-((x[i] - x[j]) ** 2) / 0.01)

    start = np.random.default_rng(1).uniform(0, 5, n).astype(np.float32)
    x.from_numpy(start)
    with ds.Tape(loss):
        overlap()
    d = start[:, None].astype(np.float64) - start
    near = np.exp(-d * d / 0.01)
    assert loss[None] == pytest.approx(near.sum(), rel=1e-5)
    np.testing.assert_allclose(x.grad.to_numpy(), (-400 * d * near).sum(1), rtol=1e-3, atol=1e-3)
