"""Copies of fields whose axes are in another order in memory: the numbers of NumPy, of any type and size."""

import itertools

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.memory import transposed

SIZES = (1, 7, 64, 65, 200)
"""Below, at and above a tile's side, of which most copies have more than one."""


@pytest.fixture(autouse=True)
def native(cpu, monkeypatch):
    """Small arrays go through native code too; returns what it was called with."""
    monkeypatch.setattr(transposed, "_SMALL", 0)
    walks = []

    def noted(target, source, walk, run=transposed._transpose):
        walks.append(walk)
        run(target, source, walk)

    monkeypatch.setattr(transposed, "_transpose", noted)
    return walks


def numbers(shape, dtype):
    """Different numbers, as far as the type has so many."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize(
    "t", [ds.u1, ds.i8, ds.u16, ds.f16, ds.i32, ds.f32, ds.i64, ds.f64], ids=str
)
def test_types_and_sizes(t, native):
    for n, m in itertools.product(SIZES, SIZES):
        x = ds.field(t, (n, m), order="ji")
        given = numbers((n, m), t.numpy)
        x.from_numpy(given)
        assert x[n - 1, m // 2] == given[n - 1, m // 2]
        np.testing.assert_array_equal(x.to_numpy(), given, strict=True)
    assert len(native) >= 2 * 9  # all but those of few rows or columns


@pytest.mark.parametrize("components", [2, 3, 4, 5, 17])
@pytest.mark.parametrize("layout", [ds.Layout.AOS, ds.Layout.SOA])
def test_vectors(components, layout, native):
    x = ds.Vector.field(components, ds.f32, (70, 90), order="ji", layout=layout, offset=(-3, 5))
    given = numbers((70, 90, components), np.float32)
    x.from_numpy(given)
    assert x[-3, 6].to_list() == given[0, 1].tolist()
    np.testing.assert_array_equal(x.to_numpy(), given, strict=True)
    # An element of 17 floats is a run that NumPy copies as fast.
    assert native or components == 17


@pytest.mark.parametrize("order", ["".join(p) for p in itertools.permutations("ijk")])
def test_orders_of_three_axes(order):
    x = ds.field(ds.i32, (9, 66, 70), order=order)
    given = numbers((9, 66, 70), np.int32)
    x.from_numpy(given)
    np.testing.assert_array_equal(x.to_numpy(), given, strict=True)
    y = ds.field(ds.i32, (9, 66, 70), order="kij")
    y.copy_from(x)
    np.testing.assert_array_equal(y.to_numpy(), given, strict=True)


def test_types_and_strides_of_the_array(native):
    x = ds.field(ds.f32, (70, 90), order="ji")
    given = numbers((70, 90), np.float64)
    for array in (given, given.astype(">f4"), given.T.copy().T, np.repeat(given, 2, 1)[:, ::2]):
        x.fill(0)
        x.from_numpy(array)
        for dtype in (None, np.float64, np.int32):
            np.testing.assert_array_equal(x.to_numpy(dtype), given)
    x.from_numpy(given[::-1, ::-1])
    np.testing.assert_array_equal(x.to_numpy(), given[::-1, ::-1])
    x.from_numpy(np.broadcast_to(given[0], (70, 90)))
    np.testing.assert_array_equal(x.to_numpy(), np.broadcast_to(given[0], (70, 90)))
    assert native


def test_an_array_in_the_fields_own_memory():
    x = ds.field(ds.f32, (70, 70))
    given = numbers((70, 70), np.float32)
    x.from_numpy(given)
    x.from_numpy(np.from_dlpack(x).T)
    np.testing.assert_array_equal(x.to_numpy(), given.T)


def test_numpy_copies_what_is_in_sequence(native):
    x = ds.Vector.field(3, ds.f32, (70, 90))
    x.from_numpy(numbers((70, 90, 3), np.float32))
    x.to_numpy()
    assert native == []
