"""Fields and their gradients as Taichi's programs place them: beside each other, apart, before each other."""

import numpy as np
import pytest

import diffsim as ds


@pytest.mark.parametrize("way", ["beside", "apart", "gradient first", "afterwards", "for all"])
def test_gradients_placed_by_the_program(cpu, way):
    """A field made without a gradient gets one by placing it; d(sum x^2)/dx is 2 x wherever it lies."""
    x, loss = ds.field(ds.f64), ds.field(ds.f64)
    node = ds.root.dense(ds.ij, (2, 3))
    if way == "beside":
        node.place(x, x.grad)
        ds.root.place(loss, loss.grad)
    elif way == "apart":
        assert x.grad is not None  # before anything has a place
        assert loss.grad is not None
        node.place(x)
        ds.root.place(loss)
        ds.root.dense(ds.j, 3).dense(ds.i, 2).place(x.grad)
        ds.root.place(loss.grad)
    elif way == "gradient first":
        ds.root.place(loss.grad)
        node.place(x.grad)
        ds.root.place(loss)
        node.place(x)
    elif way == "afterwards":
        node.place(x)
        node.place(x.grad)
        ds.root.place(loss)
        ds.root.place(loss.grad)
    else:
        node.place(x)
        ds.root.place(loss)
        ds.root.lazy_grad()

    @ds.kernel
    def square():
        for i, j in x:
            loss[None] += x[i, j] ** 2

    x.from_numpy(np.arange(6.0).reshape(2, 3))
    with ds.Tape(loss):
        square()
    assert x.grad.to_numpy().tolist() == [[0, 2, 4], [6, 8, 10]]


def test_what_asks_for_a_gradient_without_meaning_it(cpu):
    """Looking at a field makes no gradient, nor asking after the first write; integers have none."""
    particle = ds.types.struct(pos=ds.math.vec2, kind=ds.i32)
    x, n, p = ds.field(ds.f32), ds.field(ds.i32), particle.field()
    assert "grad" not in repr(x) + repr(p)
    assert not x.needs_grad
    assert not p.needs_grad
    ds.root.dense(ds.i, 3).place(x, n, p)
    assert not x.needs_grad
    x[0] = 1.0
    assert x.grad is None
    with pytest.raises(ds.FieldError, match="has no dual"):
        x.dual
    assert n.grad is None
    assert p.grad is None
    q = particle.field()
    ds.root.dense(ds.i, 3).place(q, q.grad)
    assert q.grad.keys == ["pos"]


def test_a_field_of_structs_made_of_fields(cpu):
    """Taichi's `StructField(fields, methods)`: the members are the fields themselves."""
    pos, kind = ds.Vector.field(2, ds.f64, needs_grad=True), ds.field(ds.i32)
    particles = ds.StructField({"pos": pos, "kind": kind})
    ds.root.dense(ds.i, 3).place(particles)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def weigh():
        for i in particles:
            loss[None] += particles[i].kind * particles[i].pos.norm_sqr()

    particles[1] = ds.Struct({"pos": [1.0, 2.0], "kind": 3})
    with ds.Tape(loss):
        weigh()
    assert (loss[None], kind[1], pos.grad[1].to_list()) == (15.0, 3, [6.0, 12.0])
    for fields, methods in (3, {}), ({"pos": 3}, {}), ({"pos": pos}, 3):
        with pytest.raises(ds.FieldError, match=r"StructField takes|not a field"):
            ds.StructField(fields, methods)
