"""Arguments and methods of fields and arrays that Taichi's programs use."""

import pytest

import diffsim as ds


def test_shapes_of_copies(cpu):
    """A vector is a column where the axes are kept; a matrix is as it is."""
    v, m, s = ds.Vector.field(3, ds.f32, 2), ds.Matrix.field(1, 3, ds.f32, 2), ds.field(ds.f32, 2)
    v[1] = [1, 2, 3]
    assert v.to_numpy(keep_dims=True)[1].tolist() == [[1], [2], [3]]
    assert v.to_numpy().shape == (2, 3)
    assert m.to_numpy(keep_dims=True).shape == (2, 1, 3)
    assert s.to_numpy(keep_dims=True).shape == (2,)


def test_members_by_name(cpu):
    x = ds.Struct.field({"a": ds.f32, "b": ds.math.vec2}, shape=3)
    assert x.get_member_field("b") is x.b
    with pytest.raises(ds.FieldError, match=r"(?s)no member 'c'.*its members are a, b"):
        x.get_member_field("c")


def test_annotations_of_arrays(cpu):
    @ds.kernel
    def count(a: ds.types.ndarray(element_dim=1, needs_grad=True, boundary="unsafe")):
        for i in a:
            a[i][0] = i

    a = ds.Vector.ndarray(2, ds.f32, 3, needs_grad=True)
    count(a)
    assert a.to_numpy().tolist() == [[0, 0], [1, 0], [2, 0]]
    with pytest.raises(ds.KernelTypeError, match="an element of a of count has 1 axes"):
        count(ds.ndarray(ds.f32, 3, needs_grad=True))
    with pytest.raises(ds.OptionError, match="not 'wrap'"):
        ds.types.ndarray(boundary="wrap")
    with pytest.raises(ds.ArgumentError, match="element_dim is 0, 1 or 2"):
        ds.types.ndarray(element_dim=3)


def test_kinds_of_fields_and_arrays(cpu):
    made = {
        "ScalarField": ds.field(ds.f32, 2),
        "MatrixField": ds.Vector.field(3, ds.f32, 2),
        "StructField": ds.Struct.field({"a": ds.f32}, shape=2),
        "ScalarNdarray": ds.ScalarNdarray(ds.f32, (2,)),
        "VectorNdarray": ds.VectorNdarray(3, ds.f32, 2),
        "MatrixNdarray": ds.MatrixNdarray(2, 3, ds.f32, 2),
    }
    for name in made:
        found = {n for n, x in made.items() if isinstance(x, getattr(ds, name))}
        assert found == {name}
    assert [isinstance(x, ds.Ndarray) for x in made.values()] == [False] * 3 + [True] * 3
    assert not isinstance([1.0], ds.ScalarField)
    assert made["MatrixNdarray"].element_shape == (2, 3)
    with pytest.raises(ds.FieldError, match="ScalarField makes nothing"):
        ds.ScalarField()


def test_nan_is_no_integer(cpu):
    x, v = ds.field(ds.i32, 2), ds.Vector.field(2, ds.i32, 2)
    for write in (
        lambda: x.fill(float("nan")),
        lambda: x.__setitem__(0, float("inf")),
        lambda: v.fill([1.0, float("nan")]),
    ):
        with pytest.raises(ds.DiffsimError, match=r"is no whole number(?s:.*)becomes NaN"):
            write()
    assert not x.to_numpy().any()
    assert not v.to_numpy().any()
