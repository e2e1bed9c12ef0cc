"""Duals of fields: what has one, where it lies, how it is read and cleared; without forward mode itself."""

import numpy as np
import pytest

import diffsim as ds

MAKE = {
    "scalars": lambda **o: ds.field(ds.f64, shape=3, **o),
    "vectors": lambda **o: ds.Vector.field(2, ds.f32, shape=3, **o),
    "soa": lambda **o: ds.Vector.field(2, ds.f32, shape=3, layout=ds.Layout.SOA, **o),
    "matrices": lambda **o: ds.Matrix.field(2, 2, ds.f64, shape=(), **o),
    "type": lambda **o: ds.types.vector(2, ds.f64).field(shape=3, **o),
    "array": lambda **o: ds.ndarray(ds.f64, (2, 3), **o),
    "vector array": lambda **o: ds.Vector.ndarray(2, ds.f64, 3, **o),
    "matrix array": lambda **o: ds.Matrix.ndarray(2, 3, ds.f64, 3, **o),
    "type's array": lambda **o: ds.types.vector(2, ds.f64).ndarray(3, **o),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_dual_is_a_field_like_its_own(cpu, make):
    x = make(needs_dual=True)
    assert x.needs_dual
    assert x.grad is None
    dual = x.dual
    assert (dual.shape, dual.element, dual.dtype, dual.soa) == (
        x.shape,
        x.element,
        x.dtype,
        x.soa,
    )
    numbers = np.arange(1.0, 1 + np.prod(x.shape + x.element)).reshape(x.shape + x.element)
    dual.from_numpy(numbers.astype(x.dtype.numpy))
    np.testing.assert_array_equal(x.dual.to_numpy(), numbers)
    assert not x.to_numpy().any()
    dual.fill(2.0)
    assert np.all(dual.to_numpy() == 2)
    assert x.dual is dual


def test_without_one_reading_it_is_refused(cpu):
    x, whole = ds.field(ds.f64, shape=2), ds.field(ds.i32, shape=2)
    assert not x.needs_dual
    with pytest.raises(ds.FieldError, match=r"(?s)x has no dual.*x\.dual.*needs_dual=True"):
        x.dual
    with pytest.raises(ds.FieldError, match=r"(?s)whole has no dual.*only floats"):
        whole.dual
    with pytest.raises(ds.DtypeError, match=r"i32 cannot have a dual"):
        ds.field(ds.i32, shape=2, needs_dual=True)
    with pytest.raises(ds.ArgumentError, match="needs_dual"):
        ds.field(ds.f64, shape=2, needs_dual="yes")


def test_it_is_no_attribute_to_assign(cpu):
    x = ds.field(ds.f64, shape=2, needs_dual=True)
    with pytest.raises(ds.FieldError, match=r"(?s)dual of x .*x\.dual\.fill\(0\)"):
        x.dual = 3
    with pytest.raises(AttributeError, match="needs_dual=True"):
        x.needs_dual = False


def test_names_and_shown(cpu):
    x = ds.field(ds.f64, shape=2, needs_dual=True, name="speed")
    unnamed = ds.field(ds.f64, shape=2, needs_dual=True)
    assert repr(x) == "<field speed: f64, shape (2,), needs_dual=True>"
    assert x.dual.name == "speed.dual"
    assert unnamed.dual.name == "unnamed.dual"


def test_structs_have_duals_of_their_floats(cpu):
    particle = ds.types.struct(pos=ds.types.vector(2, ds.f32), kind=ds.i32)
    p = particle.field(shape=3, needs_dual=True)
    p.dual.pos.fill(1.0)
    assert p.needs_dual
    assert list(p.dual.to_numpy()) == ["pos"]
    assert p.pos.dual[2].y == 1
    with pytest.raises(ds.FieldError, match="no dual"):
        particle.field(shape=3).dual
    with pytest.raises(ds.FieldError, match="can have a dual"):
        ds.types.struct(n=ds.i32).field(shape=3, needs_dual=True)
    made = ds.Struct.field({"a": ds.f32}, shape=2, needs_dual=True)
    assert made.a.needs_dual


def test_layout_trees(cpu):
    """As programs from Taichi have it: placed beside the field, or made for all at the end."""
    x, y, count = ds.field(float), ds.field(float), ds.field(int)
    ds.root.dense(ds.ij, (2, 3)).place(x, x.dual)
    node = ds.root.dense(ds.i, 4)
    node.place(y, count)
    assert x.dual.shape == (2, 3)
    assert not y.needs_dual
    node.lazy_dual()
    assert y.dual.shape == (4,)
    assert not count.needs_dual
    with pytest.raises(
        ds.FieldError, match=r"placed with shape \(2,\), and its field has shape \(2, 3\)"
    ):
        ds.root.dense(ds.i, 2).place(x.dual)


def test_order_of_axes_in_memory(cpu):
    x = ds.field(ds.f64, needs_dual=True)
    ds.root.dense(ds.j, 3).dense(ds.i, 2).place(x)
    numbers = np.arange(6.0).reshape(2, 3)
    x.dual.from_numpy(numbers)
    assert x.dual._order == x._order == (1, 0)
    assert x.dual[1, 2] == 5


def test_clearing_all(cpu):
    x = ds.field(ds.f64, shape=3, needs_dual=True, needs_grad=True)
    y = ds.Vector.field(2, ds.f64, shape=(), needs_dual=True)
    for f in (x, y, x.grad, x.dual, y.dual):
        f.fill(3.0)
    ds.clear_all_dual()
    assert not x.dual.to_numpy().any()
    assert not y.dual.to_numpy().any()
    assert x.to_numpy().all()
    assert x.grad.to_numpy().all()


def test_in_kernels_a_dual_is_a_field(cpu):
    x = ds.field(ds.f64, shape=3, needs_dual=True)
    y = ds.field(ds.f64, shape=3)

    @ds.kernel
    def seed():
        for i in range(3):
            x.dual[i] = i + 1.0

    @ds.kernel
    def wrong():
        for i in range(3):
            x[i] = y.dual[i]

    seed()
    assert list(x.dual.to_numpy()) == [1, 2, 3]
    with pytest.raises(
        ds.KernelNameError, match=r"(?s)y has no dual.*y\.dual\[i\].*needs_dual=True"
    ):
        wrong()


def test_clones_have_duals_too(cpu):
    x = ds.field(ds.f64, shape=3, needs_dual=True)
    assert ds.clone(x).needs_dual
    assert not ds.clone(ds.field(ds.f64, shape=3)).needs_dual


def test_kernels_are_not_compiled_anew_for_a_dual(cpu):
    x = ds.field(ds.f64, shape=3)

    @ds.kernel
    def step():
        for i in range(3):
            x[i] += 1.0

    step()
    (before,) = step.specializations.values()
    x.add_dual()
    step()
    assert list(step.specializations.values()) == [before]
    assert x.dual.shape == (3,)


def test_a_dual_outlives_ds_init(cpu):
    x = ds.field(ds.f64, shape=3, needs_dual=True)
    x.dual.fill(2.0)
    ds.init(arch=ds.cpu)
    assert x.dual[1] == 2
