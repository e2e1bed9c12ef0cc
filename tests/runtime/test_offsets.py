"""Fields whose indices do not begin at 0 (`offset=`), and the order of axes."""

import numpy as np
import pytest

import diffsim as ds

H, W = 4, 5
I0, J0 = -2, 3


@pytest.fixture
def pair(backend):
    """A field with an offset and the sum of a stencil over it; backends: CPU, Python, interpreter."""
    x = ds.field(ds.f64, shape=(H, W), offset=(I0, J0), needs_grad=True, needs_dual=True, name="x")
    loss = ds.field(ds.f64, shape=(), needs_grad=True, needs_dual=True, name="loss")

    @ds.kernel
    def f():
        for i, j in x:
            left = x[i - 1, j] if i > I0 else 0.0
            loss[None] += i * x[i, j] ** 2 + j * left * x[i, j]

    return x, loss, f


@pytest.fixture(params=["cpu", "python"])
def backend(request, cpu):
    ds.init(arch=ds.cpu if request.param == "cpu" else ds.python)
    yield
    ds.init(arch=ds.cpu)


def expected(a):
    i, j = (k + first for k, first in zip(np.indices(a.shape), (I0, J0), strict=True))
    left = np.vstack([np.zeros((1, W)), a[:-1]])
    below = np.vstack([(j * a)[1:], np.zeros((1, W))])
    return (i * a**2 + j * left * a).sum(), 2 * i * a + j * left + below


def test_values_and_derivatives(pair):
    x, loss, f = pair
    a = np.linspace(-1.0, 2.0, H * W).reshape(H, W)
    x.from_numpy(a)
    value, grad = expected(a)
    with ds.Tape(loss) as tape:
        f()
    assert loss[None] == pytest.approx(value)
    assert np.allclose(x.grad.to_numpy(), grad)
    assert x.grad[I0, J0] == x.grad.to_numpy()[0, 0]
    tape.replay()
    assert loss[None] == pytest.approx(value)
    x.dual.fill(0.0)
    loss[None] = 0.0
    with ds.ad.FwdMode(loss=loss, param=x, seed=np.eye(1, H * W, 7).ravel().tolist()):
        f()
    assert loss.dual[None] == pytest.approx(grad.ravel()[7])


def test_elements_from_python(cpu):
    x = ds.Vector.field(2, ds.f32, shape=3, offset=-1)
    x[-1] = [1.0, 2.0]
    x[1][0] = 5.0
    x[-1].y -= 1.0
    assert x.to_numpy().tolist() == [[1, 1], [0, 0], [5, 0]]
    y = ds.field(ds.i32, shape=(2, 2), offset=(1, -1))
    y[1] = [3, 4]
    assert (y[1, -1], y[1, 0]) == (3, 4)
    z = ds.clone(y)
    assert z[1, 0] == 4
    s = ds.Struct.field({"a": ds.i32}, shape=2, offset=5)
    s[6].a = 7
    assert s.a.to_numpy().tolist() == [0, 7]
    with pytest.raises(ds.AccessError, match=r"(?s)index 2 is outside x.*first index is \(-1,\)"):
        x[2] = 1.0
    with pytest.raises(ds.FieldError, match="an offset is a whole number for each axis"):
        ds.field(ds.f32, shape=(2, 2), offset=1.5)
    with pytest.raises(ds.FieldError, match="offset is for fields with a shape"):
        ds.field(ds.f32, offset=1)


def test_elements_on_a_tape(cpu):
    """x[1] = 4 is an input of the tape, which has its derivative; a replay writes it again."""
    x = ds.field(ds.f64, shape=3, offset=-1, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def f():
        loss[None] += x[-1] * x[1]

    x[-1] = 3.0
    with ds.Tape(loss) as tape:
        x[1] = 4.0
        f()
    assert loss[None] == 12.0
    assert x.grad.to_numpy().tolist() == [4, 0, 3]
    x[-1] = 5.0
    x[1] = 0.0
    tape.replay()
    assert (loss[None], x[1]) == (20.0, 4.0)


def test_optimizer(cpu):
    """Its kernels loop over parameters beside moments of their own: x goes to 0 with x^2."""
    x = ds.field(ds.f64, shape=(2, 2), offset=(-5, 9), needs_grad=True)
    x.fill(1.0)
    adam = ds.optim.Adam([x], lr=0.5)
    x.grad.from_numpy(np.array([[1.0, -1.0], [0.0, 2.0]]))
    adam.step()
    assert np.allclose(x.to_numpy(), [[0.5, 1.5], [1.0, 0.5]])


def test_debug_and_constant_indices(cpu):
    ds.init(arch=ds.cpu, debug=True)
    x = ds.field(ds.f32, shape=4, offset=-2, name="x")

    @ds.kernel
    def put(i: ds.i32):
        x[i] = 1.0

    put(-2)
    with pytest.raises(ds.AccessError, match=r"index -3 is outside x, .* first index \(-2,\)"):
        put(-3)
    assert x.to_numpy().tolist() == [1, 0, 0, 0]

    @ds.kernel
    def wrong():
        x[2] = 1.0

    with pytest.raises(ds.KernelTypeError, match=r"(?s)index 2 is outside x.*from -2 to 1"):
        wrong()


def test_order_of_axes(cpu):
    x = ds.field(ds.i32, shape=(2, 3), order="ji")
    x.from_numpy(np.arange(6).reshape(2, 3))
    assert x.storage.layout.strides == (1, 2)
    assert x[1, 2] == 5
    with pytest.raises(ds.FieldError, match="names each axis once"):
        ds.field(ds.i32, shape=(2, 3), order="jk")
