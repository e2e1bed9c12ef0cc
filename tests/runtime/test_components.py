"""`x.get_scalar_field(0)`: components of fields as fields of numbers, in the same memory."""

import copy
import pickle

import numpy as np
import pytest

import diffsim as ds
from tests.fuzz import components

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture
def fields():
    x = ds.Vector.field(3, ds.f64, shape=4, needs_grad=True)
    F = ds.Matrix.field(2, 2, ds.f64, shape=(2, 3), needs_grad=True, layout=ds.Layout.SOA)
    x.from_numpy(np.arange(12.0).reshape(4, 3))
    F.from_numpy(np.arange(24.0).reshape(2, 3, 2, 2))
    return x, F


def test_python_reads_and_writes_the_same_memory(fields):
    x, F = fields
    v, w = x.get_scalar_field(1), F.get_scalar_field(1, 0)
    assert v is x.get_scalar_field(1)
    assert F.get_scalar_field(1) is w  # the first column
    assert (v.shape, v.dtype, v.needs_grad, w.shape) == ((4,), ds.f64, True, (2, 3))
    assert repr(w) == "<component 1, 0 of the field F: f64, shape (2, 3)>"
    v[2] = 50
    v[2] += 1
    assert x[2].to_list() == [6, 51, 8]
    w.fill(-1)
    assert (F.to_numpy()[..., 1, 0] == -1).all()
    assert (F.to_numpy()[..., 0, 0] == np.arange(0, 24, 4).reshape(2, 3)).all()
    v.from_numpy(np.array([1, 2, 3, 4], np.int32))
    assert v.to_numpy().tolist() == [1, 2, 3, 4]
    assert v.to_numpy(np.float32).dtype == np.float32
    v.copy_from(x.get_scalar_field(2))
    assert x.to_numpy()[:, 1].tolist() == [2, 5, 8, 11]
    v.grad[1] = 7.0
    assert x.grad[1].to_list() == [0, 7, 0]
    assert np.sum(v) == 26


def test_kinds(fields):
    x, _ = fields
    v, s = x.get_scalar_field(0), ds.types.struct(a=ds.f32).field(shape=2)
    for f in (x, v, s, s.a):
        assert isinstance(f, ds.Field)
    assert issubclass(ds.StructField, ds.Field)
    assert not isinstance(np.zeros(2), ds.Field)
    assert isinstance(v, ds.ScalarField)
    assert not isinstance(v, (ds.MatrixField, ds.Ndarray))
    mine = type("Mine", (ds.Field,), {})
    assert isinstance(mine(ds.f32), mine)
    assert not isinstance(x, mine)
    assert copy.copy(v) is v
    assert pickle.loads(pickle.dumps(v)).to_numpy().tolist() == v.to_numpy().tolist()


@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_gradients_are_those_of_the_field(fields, in_place):
    """Against the same kernel with elements of the field, and the closed form."""
    x, F = fields
    v, w = x.get_scalar_field(1), F.get_scalar_field(0, 1)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def total():
        for i in v:
            loss[None] += v[i] ** 2 * x[i][0]
        for i, j in w:
            loss[None] += w[i, j] * F[i, j][0, 0] * x[j].y

    X, M = x.to_numpy(), F.to_numpy()
    with ds.Tape(loss, in_place=in_place, grad_check=[x, F]):
        total()
    by_v = 2 * X[:, 1] * X[:, 0] + np.r_[(M[..., 0, 1] * M[..., 0, 0]).sum(axis=0), 0]
    np.testing.assert_allclose(v.grad.to_numpy(), by_v)
    np.testing.assert_allclose(w.grad.to_numpy(), M[..., 0, 0] * X[:3, 1])
    assert (x.grad.to_numpy()[:, 2] == 0).all()


def test_overwritten_components(fields):
    """A store to a component makes stale what reads it, and not what reads others."""
    x, _ = fields
    v, loss = x.get_scalar_field(0), ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def scale(f: ds.template(), by: ds.f64):
        for I in ds.grouped(f):
            f[I] = f[I] * f[I] * by

    @ds.kernel
    def total():
        for i in v:
            loss[None] += v[i]

    first = x.to_numpy()[:, 0]
    with pytest.raises(ds.GlobalDataAccessError, match="needs x as it was read"), ds.Tape(loss):
        scale(v, 2.0)
        total()
    x.from_numpy(np.arange(12.0).reshape(4, 3))
    with ds.Tape(loss, in_place="save"):
        scale(v, 2.0)
        scale(x.get_scalar_field(0), 0.5)
        total()
    np.testing.assert_allclose(v.to_numpy(), 2 * first**4)
    np.testing.assert_allclose(v.grad.to_numpy(), 8 * first**3)
    scale(x.get_scalar_field(2), 1.0)
    assert x.to_numpy()[:, 2].tolist() == [4, 25, 64, 121]


def test_in_kernels(fields):
    x, _ = fields
    parts = first, _, _ = [x.get_scalar_field(k) for k in range(3)]

    @ds.kernel
    def mix() -> ds.f64:
        first.fill(2.0)
        for k in ds.static(range(3)):
            for i in parts[k]:
                parts[k].grad[i] = parts[k].shape[0] + k
        total = ds.f64(0.0)
        for i in x:
            ds.atomic_max(parts[1][i], 5.0)
            total += parts[1][i]
        return total

    assert mix() == 5 + 5 + 7 + 10
    assert x.to_numpy()[:, 0].tolist() == [2, 2, 2, 2]
    assert x.grad.to_numpy()[0].tolist() == [4, 5, 6]


def test_sparse_components():
    x = ds.Vector.field(2, ds.f32)
    ds.root.pointer(ds.i, 4).dense(ds.i, 2).place(x)
    v = x.get_scalar_field(1)
    v[3] = 2.0

    @ds.kernel
    def count() -> int:
        n = 0
        for i in v:
            v[i] += 1.0
            n += 1
        return n

    assert count() == 2
    assert v.to_numpy().tolist() == [0, 0, 1, 3, 0, 0, 0, 0]


def test_refusals(fields):
    x, _ = fields
    v, loss = x.get_scalar_field(1), ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def deep():
        for i in v:
            loss[None] += v[i][0]

    def on_tape(what):
        with ds.Tape(loss):
            what()

    for wrong, message in [
        (lambda: x.get_scalar_field(3), "an element of x has no component 3"),
        (lambda: x.get_scalar_field(-1), "an element of x has no component -1"),
        (lambda: x.get_scalar_field(0, 1), "an element of x has no component 0, 1"),
        (lambda: loss.get_scalar_field(0), "the elements of loss are numbers"),
        (lambda: setattr(v, "vale", 1), "cannot be assigned"),
        (lambda: v[4], "index 4 is outside x"),
        (lambda: v + 1, "component 1 of the field x is memory"),
        (lambda: v.from_numpy(np.zeros(3)), "needs an array of shape"),
        (lambda: ds.stop_grad(v), "cannot be made a constant by itself"),
        (deep, r"v\[i\] is an f64, which has no elements"),
        (lambda: on_tape(lambda: v.fill(1.0)), "cannot be set by itself while a tape"),
        (lambda: on_tape(lambda: v.__setitem__(0, 1.0)), "components of x"),
        (lambda: on_tape(lambda: loss.__setitem__(None, v[0])), "took from x"),
        (lambda: on_tape(lambda: loss.__setitem__(None, np.sum(v))), "constant for the tape"),
        (lambda: ds.Tape(loss).backward(grads={v: 1.0}), "nothing to differentiate"),
        (lambda: ds.optim.SGD([v]), "component 1 of the field x, and parameters are fields"),
        (lambda: ds.Tape(v), "the loss is a field of one element"),
    ]:
        with pytest.raises(ds.DiffsimError, match=message):
            wrong()


@pytest.mark.parametrize("seed", [1007, 1015])
def test_random_programs(seed):
    assert components.verdict(components.make(seed), seed) == "right"
