"""Powers whose exponent is known at run time, and unpacking with a star: as Python and NumPy have them."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(default_fp=ds.f64)


TYPES = [ds.i8, ds.i32, ds.i64, ds.u8, ds.u32, ds.u64]


@pytest.mark.parametrize("t", TYPES, ids=str)
def test_integer_powers(t):
    """Those that do not fit wrap around, as products do."""
    least = 0 if str(t).startswith("u") else -9
    pairs = np.array([(a, n) for a in range(least, 10) for n in range(13)])
    a, n, found = (ds.field(t, shape=len(pairs)) for _ in range(3))
    a.from_numpy(pairs[:, 0].astype(t.numpy))
    n.from_numpy(pairs[:, 1].astype(t.numpy))

    @ds.kernel
    def run():
        for i in found:
            found[i] = a[i] ** n[i]

    run()
    expected = np.power(a.to_numpy(), n.to_numpy())
    assert found.to_numpy().dtype == expected.dtype
    np.testing.assert_array_equal(found.to_numpy(), expected)


def test_an_integer_to_any_integer():
    """Large exponents, negative ones, types that meet, and constants on either side."""

    @ds.kernel
    def power(a: ds.i32, n: ds.i32) -> ds.i32:
        return a**n

    @ds.kernel
    def mixed(a: ds.i32, n: ds.i64) -> ds.i64:
        return a**n + 2**n

    @ds.kernel
    def in_place(a: ds.i32, n: ds.i32) -> ds.i32:
        k = a
        k **= n
        return k

    for a in (-3, -2, -1, 0, 1, 2, 3, 65537):
        for n in (0, 1, 31, 32, 33, 2**30 + 1, 2**31 - 1):
            wanted = (pow(a, n, 2**32) + 2**31) % 2**32 - 2**31
            assert power(a, n) == in_place(a, n) == wanted
        for n in (-1, -2, -(2**31)):
            assert power(a, n) == (int(float(a) ** n) if abs(a) == 1 else 0)
    assert mixed(3, 21) == 3**21 + 2**21


def test_a_negative_power_is_found_by_debug():
    ds.init(default_fp=ds.f64, debug=True)

    @ds.kernel
    def power(a: ds.i32, n: ds.i32) -> ds.i32:
        return a**n

    assert power(3, 4) == 81
    with pytest.raises(
        ds.KernelArithmeticError, match=r"to the power -2 is no integer[\s\S]*return a\*\*n"
    ):
        power(3, -2)


EXPONENTS = [-3, -1, 0, 1, 2, 5]


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_float_to_an_integer_of_run_time(p):
    """Negative bases too: the exponent is whole."""
    x, loss = field(6), field()
    n = ds.field(ds.i32, shape=6)
    n.fill(p)
    start = numbers(6, lo=0.5, hi=2.0) * [1, -1, 1, -1, 1, -1]
    x.from_numpy(start)

    @ds.kernel
    def run():
        for i in x:
            loss[None] += (i + 1) * x[i] ** n[i]

    loss[None] = 0.0
    run()
    np.testing.assert_allclose(loss[None], np.sum(np.arange(1, 7) * start ** float(p)), rtol=1e-13)
    check(run, loss, x)


def test_a_float_at_0_to_an_integer_of_run_time():
    x, y = field(4), field(4)
    n = ds.field(ds.i32, shape=4)
    n.from_numpy(np.array([0, 1, 2, 3], np.int32))

    @ds.kernel
    def run():
        for i in x:
            y[i] = x[i] ** n[i]

    tape = ds.Tape()
    with tape:
        run()
    tape.backward(grads={y: 1.0})
    assert y.to_numpy().tolist() == [1, 0, 0, 0]
    assert x.grad.to_numpy().tolist() == [0, 1, 0, 0]


@ds.func
def sum_of(a, b, c):
    return a + 2 * b + 4 * c


def test_a_star_takes_the_rest():
    x, loss = field(3), field()
    x.from_numpy(numbers(3))

    def run():
        a, *b = [x[0], x[1], x[2]]
        *c, d = (x[0], 2 * x[1])
        e, *f, g = [x[2], x[1]]
        h, *(i, j) = [1.0, x[0], x[1]]
        loss[None] += a * b[0] + b[1] * c[0] + d * e + g + len(f) + h * i - j
        (k, *m), n = [[x[0], x[2], x[1]], 3.0]
        loss[None] += sum_of(*m, k) * n + sum_of(*b, *c)

    def by_python(at):
        a, *b = at
        *c, d = (at[0], 2 * at[1])
        e, *f, g = [at[2], at[1]]
        h, *(i, j) = [1.0, at[0], at[1]]
        first = a * b[0] + b[1] * c[0] + d * e + g + len(f) + h * i - j
        (k, *m), n = [[at[0], at[2], at[1]], 3.0]
        add = lambda a, b, c: a + 2 * b + 4 * c  # noqa: E731
        return first + add(*m, k) * n + add(*b, *c)

    kernel = ds.kernel(run)
    kernel()
    np.testing.assert_allclose(loss[None], by_python(x.to_numpy()), rtol=1e-14)
    check(kernel, loss, x)


def test_a_star_takes_elements_of_vectors_and_rows_of_matrices():
    v, loss = field(n=4), field()
    v[None] = [1.0, 2.0, 3.0, 4.0]

    @ds.kernel
    def run():
        a, *b = v[None]
        first, *rows = ds.Matrix([[a, b[0]], [b[1], b[2]], [1.0, a * a]])
        for k in ds.static(range(2)):
            loss[None] += rows[k].dot(first) * b[k]

    run()
    rows = np.array([[1, 2], [3, 4], [1, 1]])
    assert loss[None] == sum(rows[k + 1] @ rows[0] * (k + 2) for k in range(2))
    check(run, loss, v)


def test_a_gradient_beside_its_field_in_a_layout():
    x, y = ds.field(ds.f64, needs_grad=True), ds.Vector.field(2, ds.f64, needs_grad=True)
    ds.root.dense(ds.i, 4).place(x, x.grad, y, y.grad)
    assert x.grad.shape == y.grad.shape == (4,)
    loss = field()

    @ds.kernel
    def run():
        for i in x:
            loss[None] += x[i] * y[i].x

    x.from_numpy(numbers(4))
    y.from_numpy(numbers(4, 2))
    check(run, loss, x, y)


def test_a_negative_power_that_does_not_count_is_no_error():
    ds.init(debug=True)

    @ds.kernel
    def decided(a: ds.i32, n: ds.i32) -> ds.i32:
        r = 0
        if n >= 0 and a**n > 2:
            r = 1
        return r

    assert [decided(3, -1), decided(3, 2)] == [0, 1]


def test_the_advice_on_a_negative_power():
    ds.init(debug=True)

    @ds.kernel
    def power(a: ds.i32, n: ds.i32) -> ds.i32:
        return a**n

    with pytest.raises(
        ds.KernelArithmeticError, match=r"to the power -1 is no integer(?s:.*)base a float"
    ):
        power(3, -1)


def test_arrays_of_numpy_are_unpacked():
    """As constants: by assignment, row by row, and by a star."""
    n, table = np.array([2, 3]), np.array([[1.0, 2.0], [3.0, 4.0]])

    @ds.kernel
    def run() -> ds.f64:
        total = ds.f64(0)
        a, b = n
        for I in ds.grouped(ds.ndrange(*n)):
            total += I.x * 10 + I.y + a * 100
        first, last = table
        total += first[1] + last[0] + b
        return total

    assert run() == sum(10 * i + j + 200 for i in range(2) for j in range(3)) + 2 + 3 + 3
