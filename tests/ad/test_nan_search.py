"""The first NaN or infinity: on a tape with `check_nan`, and in every launch with `debug=True`."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.source import line_of

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")


def nan_error(run, L, match, **options):
    with pytest.raises(ds.AutodiffError, match=match) as caught:
        with ds.Tape(L, check_nan=True, **options):
            run()
    return caught.value


@pytest.mark.parametrize("in_place", ["refuse", "save"])
@pytest.mark.parametrize("dtype", [ds.f32, ds.f64])
def test_a_nan_in_step_137_of_200(dtype, in_place):
    n, m = 200, 5
    x = ds.Vector.field(2, dtype, shape=(n + 1, m), needs_grad=True)
    L = ds.field(dtype, shape=(), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32, bad: ds.i32):
        for i in range(m):
            x[t + 1, i] = x[t, i]
            if t == bad and i == 3:
                x[t + 1, i].y = ds.sqrt(x[t, i].x - 2.0)

    @ds.kernel
    def end():
        for i in range(m):
            L[None] += x[n, i].norm_sqr()

    def run(bad):
        for t in range(n):
            step(t, bad)
        end()

    x.fill(1.0)
    error = nan_error(lambda: run(137), L, r"x\[138, 3\].y became NaN in step\(137, 137\)")
    assert error.span.line == line_of(step, "ds.sqrt")
    assert "ds.sqrt(-1.0) is NaN, in the iteration i = 3" in error.message
    x.fill(1.0)
    with ds.Tape(L, check_nan=True, in_place=in_place):
        run(-1)
    assert x.grad[0, 0].x == 2


def test_a_nan_in_an_adjoint(cpu):
    """The derivatives of 1 / x and -1 / x are infinite at 0, and their sum is no number."""
    x, y, z = (ds.field(ds.f64, shape=3, needs_grad=True) for _ in range(3))

    @ds.kernel
    def inverse():
        for i in x:
            y[i] = 1.0 / x[i]

    @ds.kernel
    def minus():
        for i in x:
            z[i] = -1.0 / x[i]

    x.from_numpy(np.array([1.0, 0.0, 2.0]))
    tape = ds.Tape(check_nan="nan")
    with tape:
        inverse()
        minus()
    with pytest.raises(ds.AutodiffError) as caught:
        tape.backward(grads={y: 1.0, z: 1.0})
    assert "x.grad[1] became NaN in the adjoint of inverse()" in str(caught.value)
    assert caught.value.span.line == line_of(inverse, "y[i] =")
    tape.zero()
    tape.backward(grads={y: 1.0})
    assert x.grad[1] == -np.inf


def test_old_nan_is_no_news(cpu):
    x = ds.field(ds.f64, shape=4, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.from_numpy(np.array([1.0, np.nan, 1.0, 1.0]))

    @ds.kernel
    def change():
        for i in range(2, 4):
            x[i] = 2.0

    @ds.kernel
    def use(k: ds.i32):
        loss[None] += x[k]

    with ds.Tape(loss, check_nan=True):
        change()
        use(0)
    error = nan_error(lambda: [change(), use(1)], loss, r"loss\[None\] became NaN in use\(1\)")
    assert "x[1] was NaN before" in error.message
    assert "loss[None] += x[k]" in str(error)


def test_python_writes_and_copies(cpu):
    x, y = (ds.field(ds.f64, shape=4, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.call_it("x")
    bad = np.array([0.0, 0.0, np.nan, 0.0])
    y.from_numpy(bad)
    for write in (
        lambda: x.from_numpy(bad),
        lambda: x.__setitem__(2, np.nan),
        lambda: ds.copy(x, y),
        lambda: ds.copy(x, y, count=1, src_offset=2, dest_offset=2),
    ):
        error = nan_error(write, loss, r"x\[2\] is set to NaN")
        assert error.span.file == __file__
    with ds.Tape(check_nan="nan"):
        ds.copy(x, y, count=1)
        x[0] = np.inf
    error = nan_error(lambda: x.__setitem__(1, -np.inf), loss, r"x\[1\] is set to infinity")
    assert 'check_nan="nan" looks for NaN alone' in error.hint


def test_an_infinity_in_a_launch_and_in_an_adjoint(cpu):
    """exp(800) is beyond f64; 1 / x and its derivative are infinite at 0."""
    x, y = (ds.field(ds.f64, shape=3, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def grow():
        for i in x:
            y[i] = ds.exp(x[i])

    @ds.kernel
    def inverse():
        for i in x:
            y[i] = 1.0 / x[i]

    x.from_numpy(np.array([1.0, 2.0, 800.0]))
    error = nan_error(grow, loss, r"y\[2\] became infinite in grow\(\)")
    assert error.span.line == line_of(grow, "y[i] =")
    assert "ds.exp(800.0) is inf, in the iteration i = 2" in error.message
    assert "beyond the type's range" in error.hint
    with ds.Tape(check_nan="nan"):
        grow()
    assert y[2] == np.inf
    with ds.Tape(check_nan=True):
        grow()  # y[2] was infinite before: no news
    x.from_numpy(np.array([0.5, 0.0, 1.0]))
    y.fill(np.inf)  # so that it is no news
    tape = ds.Tape(check_nan=True)
    with tape:
        inverse()
    with pytest.raises(
        ds.AutodiffError, match=r"x.grad\[1\] became infinite in the adjoint of inverse"
    ) as found:
        tape.backward(grads={y: 1.0})
    assert "1.0 / 0.0 is inf, in the iteration i = 1" in str(found.value)
    assert "the derivative of this line has no finite value here" in found.value.hint


def test_an_infinity_that_becomes_nan_is_news(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x[None] = np.inf

    @ds.kernel
    def less():
        x[None] = x[None] - x[None]

    nan_error(less, loss, r"x\[None\] became NaN in less\(\)")


def test_arrays_and_other_functions(cpu):
    a = ds.ndarray(ds.f64, 3, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def root(a: ds.types.ndarray(), k: ds.f64):
        for i in a:
            a[i] = ds.sqrt(k)

    @ds.ad.grad_replaced
    def forward(k):
        root(a, k)

    @ds.ad.grad_for(forward)
    def backward(k):
        pass

    nan_error(lambda: root(a, -1.0), loss, r"a\[0\] became NaN in root\(a, -1\.0\)")
    a.fill(0)
    nan_error(lambda: forward(-2.0), loss, r"\[0\] became NaN in root\(a, -2\.0\)")
    a.fill(0)
    with ds.Tape(loss, check_nan=True):
        forward(2.0)
        with ds.ad.no_grad():
            root(a, 1.0)
