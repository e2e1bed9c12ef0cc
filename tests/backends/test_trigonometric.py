"""sin and cos of vectors: accurate near their zeros, never above 1, the same for large arguments."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit

own = pytest.mark.skipif(
    not (Jit().has_fma and Jit().vector_forms("sinf")),
    reason="no libmvec, or no products that are rounded with their sums",
)
LARGEST = {ds.f32: 2.0**17, ds.f64: 2.0**24}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-30, 1e6, -3e9, 1e30, -1e37]


def numbers(t):
    """Angles of all sizes, those next to multiples of pi / 2, and the ends of the range."""
    random, real = np.random.default_rng(0), np.dtype(t.numpy).type
    turns = np.concatenate([np.arange(300), random.integers(0, int(LARGEST[t] / 1.58), 2000)])
    near = (turns * (np.pi / np.longdouble(2))).astype(real)
    edges = [np.nextafter(real(LARGEST[t]), real(s)) for s in (0, np.inf)]
    parts = [
        SPECIAL,
        near,
        np.nextafter(near, real(np.inf)),
        -np.nextafter(near, real(0)),
        edges,
        random.uniform(-10, 10, 4000),
        random.uniform(-LARGEST[t], LARGEST[t], 4000),
        # Large ones alone, too: of whole vectors, and in vectors with others.
        np.repeat(SPECIAL, 64),
        random.permutation(SPECIAL * 20),
    ]
    return np.concatenate([np.asarray(p, real) for p in parts])


def check(found, x, function, bound):
    """Within some units in the last place."""
    finite = np.isfinite(x)
    assert np.isnan(found[~finite]).all()
    exact = function(x[finite].astype(np.longdouble))
    unit = np.spacing(np.abs(exact).astype(x.dtype)).astype(np.longdouble)
    assert (np.abs(found[finite] - exact) <= bound * unit).all()


@own
@pytest.mark.filterwarnings("ignore:invalid")
@pytest.mark.parametrize("t", [ds.f32, ds.f64])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("fast", [True, False])
def test_sines_and_cosines(t, inner, fast):
    """In lanes that run together because of a loop, and in loops that LLVM vectorizes."""
    ds.init(arch=ds.cpu, default_fp=t, fast_math=fast)
    values = numbers(t)
    x, s, c = (ds.field(t, shape=len(values)) for _ in range(3))

    @ds.kernel
    def turns():
        for i in x:
            a, b = x[i], x[i]
            for k in range(2):
                if k == 1:
                    a, b = ds.sin(x[i]), ds.cos(x[i])
            s[i], c[i] = a, b

    @ds.kernel
    def straight():
        for i in x:
            s[i], c[i] = ds.sin(x[i]), ds.cos(x[i])

    x.from_numpy(values)
    run = turns if inner else straight
    run()
    bound = 2.1 if inner else 4  # ours and libmvec's
    check(s.to_numpy(), values, np.sin, bound)
    check(c.to_numpy(), values, np.cos, bound)
    if inner:
        assert np.nanmax(np.abs([s.to_numpy(), c.to_numpy()])) == 1
    zeros = values == 0
    assert (np.signbit(s.to_numpy()[zeros]) == np.signbit(values[zeros])).all()
    assert (c.to_numpy()[zeros] == 1).all()
    code = Jit().optimized(run.llvm())
    # The vectorizer of loops has libmvec's, and lanes have it for large arguments alone.
    assert "@vector_" not in code
    assert bool(re.search(r"%n\S* = .*call .*@llvm.fma", code)) is inner


@own
def test_what_is_beside_a_large_argument_does_not_depend_on_it(cpu):
    """The same bits, whether the vector takes the way of large arguments or not."""
    n = 64
    x, y = ds.field(ds.f32, shape=n), ds.field(ds.f32, shape=n)

    @ds.kernel
    def turns():
        for i in range(n):
            a = 0.0
            for k in range(3):
                a += ds.sin(x[i] + k) * ds.cos(x[i] - k)
            y[i] = a

    values = np.random.default_rng(2).uniform(-9, 9, n).astype(np.float32)
    x.from_numpy(values)
    turns()
    alone, others = y.to_numpy(), np.arange(n) % 5 != 0
    x.from_numpy(np.where(others, values, np.float32(1e9)))
    turns()
    np.testing.assert_array_equal(y.to_numpy()[others], alone[others])
    assert not np.isnan(y.to_numpy()).any()


@own
def test_many_of_them_are_called(cpu):
    """LLVM would take seconds for the branches of each; the numbers are the same bits."""
    x, y = (ds.field(ds.f32, shape=(2, 64)) for _ in range(2))
    x.from_numpy(np.linspace(-9, 3e5, 128, dtype="f4").reshape(2, 64))

    @ds.kernel
    def run():
        for i in range(64):
            for k in range(2):
                if x[k, i] > -8.0:
                    a, b = x[k, i], 0.0
                    for _ in ds.static(range(30)):
                        a = ds.sin(a)
                    for _ in range(30):
                        b = ds.sin(x[k, i] if b == 0.0 else b)
                    y[k, i] = a - b

    run()
    text = run.llvm()
    inlined = re.findall(r"call .* @vector_sin_f32_\d+\(", text)
    assert len(inlined) <= 24 * 4  # up to four registers each
    assert re.search(r"define .* @vector_sin_f32_\d+_called\(.* noinline ", text)
    assert not y.to_numpy().any()
