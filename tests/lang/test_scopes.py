"""A local keeps its type as long as the block of its first assignment; then its name takes any type.

What kernels compute is compared with what Python computes from the same text.
"""

import numpy as np
import pytest

import diffsim as ds


@pytest.fixture(autouse=True)
def _start():
    ds.init(arch=ds.cpu, default_fp=ds.f64)


def vectors_then_numbers(i, x):
    r = 0.0
    for k in ds.static(range(2)):
        d = ds.Vector([x, 2.0 * x])
        r += d[k]
    for k in ds.static(range(2)):
        d = x + k
        r += d
    return r


def whole_then_fraction(i, x):
    r = 0.0
    for k in ds.static((1, 2.5)):
        q = k
        r += q * x
    return r


def one_name_in_two_branches(i, x):
    r = 0.0
    if i > 1:
        d = 1
        r += d * x
    else:
        d = 0.5
        r += d * x
    d = ds.Vector([x, x])
    return r + d[0]


def a_loop_after_unrolled_ones(i, x):
    r = 0.0
    for k in ds.static(range(2)):
        d = ds.Vector([x, 2.0 * x])
        r += d[1]
    for k in range(i):
        d = x * k
        r += d
    return r


def a_while_after_a_branch(i, x):
    r = 0.0
    if ds.static(True):
        d = ds.Vector([x, 2.0 * x])
        r += d[1]
    n = 0
    while n < i:
        d = x * n
        r += d
        n += 1
    return r


def read_after_the_block(i, x):
    for k in ds.static(range(3)):
        last = k * x
    for k in ds.static(range(1)):
        count = 1
    for k in range(i):
        count += 1
    return last * count


def exchanged_on_the_way(i, x):
    for k in ds.static(range(2)):
        p, q = k, x
    p, q = q, x * x
    return p + q


def of_iterations_that_are_skipped(i, x):
    r = 0.0
    for k in ds.static(range(3)):
        if i == k:
            continue
        p = k + 0.5 if ds.static(k > 0) else 1
        r += p * x
    return r


KERNELS = [
    vectors_then_numbers,
    whole_then_fraction,
    one_name_in_two_branches,
    a_loop_after_unrolled_ones,
    a_while_after_a_branch,
    read_after_the_block,
    exchanged_on_the_way,
    of_iterations_that_are_skipped,
]


@pytest.mark.parametrize("function", KERNELS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("error")
def test_as_in_python(function):
    x, y = (ds.field(ds.f64, shape=4, needs_grad=True) for _ in range(2))
    called = ds.func(function)

    @ds.kernel
    def run():
        for i in x:
            y[i] = called(i, x[i])

    at = np.array([0.3, -1.2, 0.7, 2.0])
    x.from_numpy(at)
    tape = ds.Tape()
    with tape:
        run()
    tape.backward(grads={y: 1.0})
    values = [function(i, a) for i, a in enumerate(at)]
    np.testing.assert_allclose(y.to_numpy(), values, rtol=1e-14)
    slopes = [(function(i, a + 1e-6) - function(i, a - 1e-6)) / 2e-6 for i, a in enumerate(at)]
    np.testing.assert_allclose(x.grad.to_numpy(), slopes, rtol=1e-8, atol=1e-9)


def test_structs_and_numbers_of_one_name():
    pair = ds.types.struct(a=ds.f64, b=ds.i32)
    y = ds.field(ds.f64, shape=4)

    @ds.kernel
    def run():
        for i in y:
            if i > 1:
                p = pair(a=1.0, b=2)
                p.a += 1.5
                y[i] += p.a
            else:
                p = ds.Vector([0.5, 0.25])
                y[i] += p[1]
            for _ in ds.static(range(2)):
                p = 3
                y[i] += p
            p = pair(a=0.125, b=1)
            y[i] += p.a

    run()
    assert y.to_numpy().tolist() == [6.375, 6.375, 8.625, 8.625]


def test_read_behind_branches_of_two_types():
    @ds.kernel
    def run(n: ds.i32) -> ds.f64:
        if n > 1:
            p = 1
        else:
            p = 0.5
        return p

    with pytest.raises(ds.KernelTypeError, match="p is an i32 on one path and an f64"):
        run(2)


def test_a_loop_reads_what_it_would_replace():
    @ds.func
    def replaced(n):
        for _ in ds.static(range(2)):
            p = ds.Vector([1.0, 2.0])
        r = 0.0
        for k in range(n):
            r += p[0]
            p = 2.0
        return r

    @ds.kernel
    def run(n: ds.i32) -> ds.f64:
        return replaced(n)

    with pytest.raises(ds.KernelTypeError, match=r"p is a vector of 2 f64 and cannot become"):
        run(2)


def test_read_behind_a_loop_that_replaced_it():
    @ds.func
    def replaced(n):
        for _ in ds.static(range(2)):
            p = ds.Vector([1.0, 2.0])
        for k in range(n):
            p = 2.0 * k
        return p[0]

    @ds.kernel
    def run(n: ds.i32) -> ds.f64:
        return replaced(n)

    with pytest.raises(ds.KernelNameError, match="p is a vector of 2 f64 before this loop"):
        run(2)


def test_in_its_block_a_local_keeps_its_type():
    @ds.kernel
    def run(n: ds.i32) -> ds.f64:
        r = 0.0
        for _ in ds.static(range(2)):
            d = 1
            d = 2.5
            r += d
        return r

    with pytest.warns(ds.PrecisionLoss, match="2.5 becomes 2"):
        assert run(2) == 4.0


def test_a_name_of_a_loop_that_has_ended():
    y = ds.field(ds.f64, shape=4)

    @ds.kernel
    def run():
        for i in y:
            for k in range(2):
                for _ in ds.static(range(2)):
                    d = ds.Vector([1.0, 2.0])
                    y[i] += d[k]
            for a, b in ds.static([(0, 1.5), (1, 0.5)]):
                d = b
                y[i] += d * a

    run()
    assert y.to_numpy().tolist() == [6.5] * 4
