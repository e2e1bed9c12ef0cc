"""`and` and `or` are one of their operands, as in Python, and a gradient flows through it."""

import itertools

import numpy as np
import pytest

import diffsim as ds


def first_or_second(a, b):
    return a or b


def first_and_second(a, b):
    return a and b


def three(a, b, c):
    return (a and b) or c


def with_constants(a, b):
    return (2 and a) + 10 * (0 or b) + 100 * (a and 3)


def as_conditions(a, b, c):
    made = 0
    if (a and b) or c:
        made += 1
    if not (a or b) and c:
        made += 10
    if a > 1 and b > 1:
        made += 100
    return made


@pytest.mark.parametrize("t", [ds.i32, ds.f64], ids=str)
@pytest.mark.parametrize(
    "function", [first_or_second, first_and_second, three, with_constants, as_conditions]
)
def test_and_or_are_one_of_the_operands(cpu, function, t):
    body, count = ds.func(function), function.__code__.co_argcount
    values = itertools.product((0, 1, 2), (0, 2, 3), (0, 4))
    if t is ds.f64 and function is with_constants:
        pytest.skip("3 is a whole number, and both operands have one type")

    @ds.kernel
    def two(a: t, b: t) -> t:
        return body(a, b)

    @ds.kernel
    def of_three(a: t, b: t, c: t) -> t:
        return body(a, b, c)

    for given in values:
        args = [t(v) for v in given[:count]]
        assert (two if count == 2 else of_three)(*args) == function(*args), args


def test_the_operand_has_its_gradient(cpu):
    x = ds.field(ds.f64, shape=4, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.from_numpy(np.array([0.0, 0.5, 2.0, 3.0]))

    @ds.kernel
    def squares_beyond_one():
        for i in x:
            loss[None] += (x[i] > 1.0) and x[i] ** 2
            loss[None] += x[i] * x[i] * x[i] or 7.0

    with ds.Tape(loss):
        squares_beyond_one()
    assert loss[None] == 4 + 9 + 7 + 0.125 + 8 + 27
    np.testing.assert_allclose(x.grad.to_numpy(), [0, 0.75, 4 + 12, 6 + 27])


def test_operands_of_two_types_become_their_common_one(cpu):
    n = ds.field(ds.i32, shape=3)
    x = ds.field(ds.f64, shape=3, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    n.from_numpy(np.array([0, 2, 0], np.int32))
    x.from_numpy(np.array([3.0, 4.0, -5.0]))

    @ds.kernel
    def mixed():
        for i in x:
            loss[None] += (n[i] and x[i]) + (n[i] if x[i] > 3.5 else x[i] * x[i])

    with ds.Tape(loss):
        mixed()
    assert loss[None] == (0 + 9) + (4 + 2) + (0 + 25)
    np.testing.assert_array_equal(x.grad.to_numpy(), [6, 1, -10])

    @ds.kernel
    def wide(a: ds.i8, b: ds.u8, c: ds.i64, d: ds.f32) -> ds.types.vector(4, ds.f64):
        # -1 as a u8; 2**24 + 1 as an f32; booleans as numbers; a number as it is written
        return [a if b > 0 else b, c if b > 0 else d, (b > 0) if d > 0 else a, 2 if b > 0 else d]

    assert wide(-1, 7, 2**24 + 1, 1.5).to_list() == [255, 2**24, 1, 2]


def test_an_operand_that_is_not_taken_has_no_part_in_the_gradient(cpu):
    """1 / 0 is computed along where it is cheap, and 0 times infinity is no gradient."""
    ds.init(default_fp=ds.f64)
    x = ds.field(ds.f64, shape=3, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.from_numpy(np.array([0.0, 2.0, -4.0]))

    @ds.kernel
    def inverses():
        for i in x:
            v = x[i]
            loss[None] += (v != 0.0) and 1.0 / v

    with ds.Tape(loss):
        inverses()
    assert loss[None] == 0.25
    assert x.grad.to_numpy().tolist() == [0.0, -0.25, -0.0625]
