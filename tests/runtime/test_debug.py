"""Debug mode: bounds, assertions, division by zero."""

import re

import llvmlite.binding as llvm
import numpy as np
import pytest

# ---- debug mode


def test_out_of_bounds_names_field_index_shape_and_line(cpu):
    ds = cpu
    ds.init(debug=True)
    x, guard = ds.field(ds.i32, shape=(3, 4)), ds.field(ds.i32, shape=(3, 4))
    v = ds.Vector.field(3, ds.f32, shape=4)

    @ds.kernel
    def write(i: ds.i32, j: ds.i32):
        x[i, j] = 7

    @ds.kernel
    def read(i: ds.i32, j: ds.i32) -> ds.i32:
        return x[i, j]

    @ds.kernel
    def add(i: ds.i32, j: ds.i32):
        for _ in range(10):
            x[i, j] += 1

    @ds.kernel
    def component(i: ds.i32, k: ds.i32):
        v[i][k] = 1.0

    line = write.source.first + 2
    for i, j in [(3, 0), (-1, 0), (0, 4), (0, -1), (2**31 - 1, 0), (-(2**31), 3)]:
        for kernel in (write, read, add):
            with pytest.raises(ds.AccessError) as caught:
                kernel(i, j)
            assert f"index ({i}, {j}) is outside x, which has shape (3, 4)" in str(caught.value)
            assert "x[i, j]" in str(caught.value)
        with pytest.raises(ds.AccessError, match=rf"line {line}\b"):
            write(i, j)
    for i, k in [(0, 3), (0, -1), (4, 0)]:
        with pytest.raises(ds.AccessError):
            component(i, k)
    # Where an index is wrong, element 0 may be written in its place, and nothing else.
    assert not x.to_numpy()[1:, 1:].any()
    assert not v.to_numpy()[1:, 1:].any()
    assert not guard.to_numpy().any()
    write(2, 3)
    component(3, 2)
    assert (read(2, 3), v[3][2]) == (7, 1.0)


def test_out_of_bounds_in_arrays_and_in_other_memory(cpu):
    ds = cpu
    ds.init(debug=True)
    frame = np.zeros(30, np.float32)
    a = frame[10:20]

    @ds.kernel
    def write(x: ds.types.ndarray(), first: ds.i32, end: ds.i32):
        for i in range(first, end):
            x[i] = 1.0

    write(a, 0, 10)
    for first, end in [(-3, 5), (5, 13), (-10, 0)]:
        with pytest.raises(ds.AccessError, match=r"outside x, which has shape"):
            write(a, first, end)
    assert frame.tolist() == [0.0] * 10 + [1.0] * 10 + [0.0] * 10


def test_local_vectors_are_checked_too(cpu):
    ds = cpu
    ds.init(debug=True)

    @ds.kernel
    def pick(k: ds.i32) -> ds.f32:
        v = ds.Vector([1.0, 2.0, 3.0])
        return v[k]

    assert pick(2) == 3.0
    for k in (3, -1):
        with pytest.raises(ds.DiffsimError):
            pick(k)


def test_ptx_is_what_would_run(cpu):
    """With the options of the session."""
    ds = cpu
    x = ds.field(ds.f32, shape=100)
    total = ds.field(ds.f32, shape=())

    @ds.kernel
    def add_up(k: ds.i32):
        for i in x:
            total[None] += x[i] / x[k]

    plain = add_up.ptx()
    assert "_combine" not in plain
    assert ".cas." not in plain
    ds.init(deterministic=True)
    assert "add_up_combine0" in add_up.ptx()
    ds.init(fast_math=True)
    # LLVM divides with less precision from version 21 on.
    assert "div.approx" in add_up.ptx() or llvm.llvm_version_info < (21,)
    ds.init(debug=True)
    assert re.search(r"\.cas\.b64", add_up.ptx())  # of the error buffer


@pytest.mark.parametrize("debug", [False, True])
def test_division_of_integers_by_zero(cpu, debug):
    """An error in debug mode: of scalars, of one component, in bounds, and nowhere where it is not made."""
    ds = cpu
    ds.init(debug=debug)
    x = ds.field(ds.i32, shape=4)

    @ds.kernel
    def divide(how: ds.template(), b: ds.i32):
        for i in x:
            if ds.static(how == "//"):
                x[i] = 7 // b
            elif ds.static(how == "%"):
                x[i] = 7 % b
            elif ds.static(how == "in place"):
                x[i] = 7
                x[i] //= b
            elif ds.static(how == "vector"):
                x[i] = (ds.Vector([7, 8]) // ds.Vector([1, b]))[1]
            elif ds.static(how == "guarded"):
                if b != 0 and 7 // b > 0:
                    x[i] = 1
                x[i] += 7 // b if b != 0 else 2
                if 0 < b < 7 // b:
                    x[i] += 10
            elif ds.static(how == "constant"):
                x[i] = b // 7
            elif ds.static(how == "constant 0"):
                x[i] = (b + 7) // 0

    @ds.kernel
    def count(b: ds.i32):
        for i in range(8 // b):
            x[0] += 1

    ways = {"//": (3, 0), "%": (1, 0), "in place": (3, 0), "vector": (4, 0)}
    for how, (by_2, by_0) in ways.items():
        divide(how, 2)
        assert x[3] == by_2
        if debug:
            with pytest.raises(
                ds.KernelZeroDivisionError, match="an integer is divided by 0"
            ) as caught:
                divide(how, 0)
            assert "//" in str(caught.value) or "%" in str(caught.value)
            assert "^" in str(caught.value)
        else:
            divide(how, 0)
            assert x[3] == by_0
    for b, guarded in ((0, 2), (2, 14)):
        x.fill(0)
        divide("guarded", b)
        assert x[1] == guarded
        divide("constant", b)
        assert x[1] == 0
    x.fill(0)
    count(2)
    assert x[0] == 4
    if debug:
        with pytest.raises(
            ds.KernelZeroDivisionError, match=r"an integer is divided by 0(?s:.)*range\(8 // b\)"
        ):
            count(0)
        with pytest.raises(ds.KernelZeroDivisionError, match="an integer is divided by 0"):
            divide("constant 0", 2)


def test_assertions(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=10)

    @ds.kernel
    def check(limit: ds.i32):
        for i in x:
            assert i < limit, "i is too large"
            x[i] = 1

    @ds.kernel
    def plain(a: ds.f32):
        assert a > 0
        assert a < 10 and a != 5, "a is odd"  # noqa: PT018

    check(3)  # without debug they are comments
    plain(-1.0)
    ds.init(debug=True)
    x.fill(0)
    with pytest.raises(ds.DiffsimError, match="i is too large") as caught:
        check(3)
    assert "assert i < limit" in str(caught.value)
    check(10)
    assert x.to_numpy().tolist() == [1] * 10
    plain(1.0)
    with pytest.raises(ds.DiffsimError, match="assertion failed"):
        plain(-1.0)
    with pytest.raises(ds.DiffsimError, match="a is odd"):
        plain(5.0)
