"""Types: interned, promoted by one table, known to NumPy."""

import copy
import pickle

import numpy as np
import pytest

from diffsim.ir import types
from diffsim.ir.types import (
    SCALARS,
    bool_,
    f32,
    f64,
    from_numpy,
    i8,
    i16,
    i32,
    i64,
    promote,
    size_of,
    tensor,
    u8,
    u16,
    u32,
    u64,
)


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        (f32, f64, f64),
        (f32, i64, f32),  # floats beat integers, however wide
        (f64, u8, f64),
        (f32, bool_, f32),
        (i32, i64, i64),
        (i8, i16, i16),
        (i32, u8, i32),  # wide beats narrow
        (i64, u32, i64),
        (u64, i32, u64),
        (i32, u32, u32),  # unsigned beats signed of the same width
        (i64, u64, u64),
        (i8, u8, u8),
        (i32, bool_, i32),
        (u8, bool_, u8),
        (bool_, bool_, bool_),
    ],
)
def test_promotion(a, b, common):
    assert promote(a, b) is common
    assert promote(b, a) is common


def test_promotion_is_a_lattice():
    every = list(SCALARS.values())
    for a in every:
        assert promote(a, a) is a
        for b in every:
            assert promote(a, b) is promote(b, a)
            assert promote(promote(a, b), b) is promote(a, b)
            for c in every:
                assert promote(promote(a, b), c) is promote(a, promote(b, c))


def test_tensors_are_interned():
    vec3 = tensor(f32, (3,))
    assert tensor(f32, [3]) is vec3
    assert tensor(f64, (3,)) is not vec3
    assert tensor(f32, (3, 1)) is not vec3
    assert tensor(f32, ()) is f32
    assert (vec3.scalar, vec3.shape, vec3.size, size_of(vec3)) == (f32, (3,), 3, 3)
    assert (f32.scalar, f32.shape, size_of(f32)) == (f32, (), 1)
    assert size_of(tensor(i32, (2, 3))) == 6


@pytest.mark.parametrize("t", [*SCALARS.values(), tensor(f32, (2,)), tensor(u8, (3, 4))], ids=str)
def test_copies_are_the_same_object(t):
    # The cache on disk pickles types, and types compare by identity.
    assert pickle.loads(pickle.dumps(t)) is t
    assert copy.deepcopy(t) is t


def test_names():
    assert [str(t) for t in (f32, bool_, tensor(f64, (2,)), tensor(i32, (2, 3)))] == [
        "f32",
        "bool",
        "vec2 f64",
        "mat2x3 i32",
    ]
    assert all(types.scalar(name) is t for name, t in SCALARS.items())


def test_kinds():
    for t in SCALARS.values():
        assert [t.is_float, t.is_int, t.is_bool] == [t.kind == "f", t.kind in "iu", t.kind == "b"]
        wide = tensor(t, (2,))
        assert [wide.is_float, wide.is_int, wide.is_bool] == [t.is_float, t.is_int, t.is_bool]
        assert wide.kind == t.kind
        assert t.bytes == max(1, t.bits // 8) == t.numpy.itemsize


@pytest.mark.parametrize("t", SCALARS.values(), ids=str)
def test_numpy_knows_them(t):
    assert from_numpy(t.numpy) is t
    assert np.zeros(1, t.numpy).dtype == t.numpy


def test_numpy_types_we_have_not():
    assert from_numpy(np.dtype(np.complex128)) is None
    assert from_numpy(np.dtype(np.longdouble)) is None


@pytest.mark.parametrize(
    ("t", "number", "fits"),
    [
        (i32, 2**31 - 1, True),
        (i32, 2**31, False),
        (i32, -(2**31), True),
        (i32, -(2**31) - 1, False),
        (u8, 255, True),
        (u8, 256, False),
        (u32, -1, False),
        (u64, 2**64 - 1, True),
        (u64, 2**64, False),
        (f32, 2**200, True),
        (bool_, 1, True),
        (bool_, 2, False),
        (u16, 65535, True),
    ],
)
def test_holds(t, number, fits):
    assert t.holds(number) is fits


def test_calling_a_type_converts():
    assert f32(0.1) == float(np.float32(0.1)) != 0.1
    assert f64(0.1) == 0.1
    assert i32(2.9) == 2
    assert type(i32(2.9)) is int
    assert bool_(3) is True
