"""Integers that overflow in debug mode, and atomic updates of vectors and products."""

import itertools
import operator
import warnings

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import KernelOverflowError, KernelSyntaxError
from tests.support.gradients import check, field, numbers

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


@pytest.mark.parametrize("t", [ds.i16, ds.i32, ds.i64], ids=str)
def test_overflow_is_noticed_in_debug_mode(t):
    ds.init(arch=ds.cpu, debug=True)
    n, signs = t.bits, {"+": operator.add, "-": operator.sub, "*": operator.mul}

    @ds.kernel
    def run(a: t, b: t, which: ds.i32) -> t:
        result = a
        if which == 0:
            result = a + b
        elif which == 1:
            result = a - b
        else:
            result = a * b
        return result

    least, most, root = -(2 ** (n - 1)), 2 ** (n - 1) - 1, int(2 ** ((n - 1) / 2))
    ends = [least, least + 1, -root, -1, 0, 1, 2, root, root + 1, most - 1, most]
    for a, b in itertools.product(ends, ends):
        for k, (sign, function) in enumerate(signs.items()):
            want = function(a, b)
            if least <= want <= most:
                assert run(a, b, k) == want
                continue
            with pytest.raises(KernelOverflowError) as caught:
                run(a, b, k)
            assert caught.value.message == f"{a} {sign} {b} in {t} overflows"


def test_what_can_not_overflow_is_not_checked():
    ds.init(arch=ds.cpu, debug=True)
    x = ds.field(ds.f32, shape=10)

    @ds.kernel
    def run(n: ds.u32) -> ds.u32:
        for i in range(9):
            x[i + 1] = i * 2 - 1
        return n * n  # wraps around, as it has no sign

    assert run(70000) == 70000**2 % 2**32
    assert "check" not in run.ir(after="frontend")


def test_largest_and_smallest_of_vectors():
    x, top, loss = field(5, n=2), field(n=2), field()

    @ds.kernel
    def find():
        for i in x:
            ds.atomic_max(top[None], x[i] * x[i])

    @ds.kernel
    def use():
        loss[None] += top[None].x * 3.0 + top[None].y

    def program():
        find()
        use()

    x.from_numpy(numbers(5, 2, seed=1))
    check(program, loss, x, reset=[top])
    np.testing.assert_allclose(top.to_numpy(), (x.to_numpy() ** 2).max(axis=0))


def test_products_run_in_order():
    p, out = field(grad=False), field(4, grad=False)

    @ds.kernel
    def run() -> ds.f64:
        s = 1.0
        for i in out:
            out[i] = ds.atomic_mul(p[None], i + 1.0)
            ds.atomic_mul(s, 2.0)
        return s

    p[None] = 3.0
    with pytest.warns(UserWarning, match="no memory has an atomic product"):
        assert run() == 16.0
    assert p[None] == 72.0
    np.testing.assert_array_equal(out.to_numpy(), [3, 3, 6, 18])

    @ds.func
    def multiply(a):
        ds.atomic_mul(p[None], a)

    @ds.kernel
    def hidden():
        for _ in range(3):
            multiply(2.0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KernelSyntaxError, match="is for loops that run in order"):
            hidden()
