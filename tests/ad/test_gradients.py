"""Gradients of values, branches, atomics and loops against central differences in f64 and closed forms."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


# ---- values


def test_scalars():
    x, y, loss = field(7), field(7), field()
    x.from_numpy(numbers(7, lo=0.2, hi=1.0))
    y.from_numpy(numbers(7, seed=1, lo=0.2, hi=1.0))

    @ds.kernel
    def f():
        for i in x:
            a = ds.sin(x[i]) * ds.exp(-y[i]) + ds.sqrt(x[i] / y[i])
            b = ds.atan2(x[i], y[i]) ** 3 - ds.log(x[i]) * ds.tanh(y[i])
            c = ds.max(a, b) + ds.min(a, 2 * b) + abs(a - b) + (a % 0.3) + x[i] ** y[i]
            loss[None] += a * b + c + ds.floor(a) + ds.acos(x[i] * 0.5) - ds.asin(y[i] * 0.5)

    check(f, loss, x, y)


def test_vectors_and_matrices():
    v, w, A, loss = field(3, n=3), field(3, n=3), field(3, n=(3, 3)), field()
    v.from_numpy(numbers(3, 3))
    w.from_numpy(numbers(3, 3, seed=1))
    A.from_numpy(numbers(3, 3, 3) + 2 * np.eye(3))

    @ds.kernel
    def f():
        for i in v:
            a, b, F = v[i], w[i], A[i]
            E = 0.5 * (F.transpose() @ F - ds.Matrix.identity(ds.f64, 3))
            loss[None] += a.cross(b).dot(F @ a) + (a * b).sum() + a.norm() * b.normalized().x
            loss[None] += (
                ds.log(F.determinant()) + (F.inverse() @ b).norm_sqr() + E.trace() * E[0, 1]
            )
            loss[None] += a.outer_product(b)[1, 2] + a.max() - b.min() + (a / (b.norm() + 1)).y

    check(f, loss, v, w, A)


def test_components():
    v, A, loss = field(4, n=3), field(4, n=(2, 2)), field()
    out, outA = field(4, n=3), field(4, n=(2, 2))
    v.from_numpy(numbers(4, 3))
    A.from_numpy(numbers(4, 2, 2))

    @ds.kernel
    def f():
        for i in v:
            out[i][0] = v[i].x * v[i][1]
            out[i][1] = v[i].z ** 2
            out[i][1] += v[i].x  # a component twice
            out[i].z -= A[i][0, 1] * v[i][i % 3]  # a run-time component
            outA[i][1, 0] = A[i][0, 0] * A[i][1, 1]
            ds.atomic_add(outA[i][0, i % 2], v[i][2] * A[i][i % 2, 0])

    @ds.kernel
    def g():
        for i in out:
            loss[None] += out[i].norm_sqr() + outA[i].norm_sqr() * (i + 1)

    def program():
        f()
        g()

    check(program, loss, v, A, reset=[out, outA])


def test_local_vectors():
    v, loss = field(5, n=3), field()
    v.from_numpy(numbers(5, 3))

    @ds.kernel
    def f():
        for i in v:
            a = ds.Vector([0.0, 0.0, 0.0])
            M = ds.Matrix.zero(ds.f64, 3, 3)
            for k in range(3):
                a[k] = v[i][2 - k] * (k + 1)
                for j in range(3):
                    M[k, j] = a[k] * v[i][j]
            for k in range(7):
                a[k % 3] += a[(k + 1) % 3] ** 2 * 0.1
                a = ds.Vector([a.y, a.z, a.x])
                M[k % 3, (k * k) % 3] *= a[0]
            loss[None] += a.norm_sqr() + M.norm_sqr()

    check(f, loss, v)


@ds.func
def square(x):
    return x * x


@ds.func
def clamp(x, lo, hi):
    if x < lo:
        return lo
    if x > hi:
        return hi
    return x * ds.cos(x)


@ds.func
def both(v):
    return square(v.x) + clamp(v.y, -0.5, 0.5), v.norm()


@ds.func
def newton(c):
    """The root of x**3 + x = c; the exit is a return inside a while."""
    x = c
    while True:
        step = (x * x * x + x - c) / (3 * x * x + 1)
        x -= step
        if abs(step) < 1e-12:
            return x


def test_funcs():
    v, loss = field(6, n=2), field()
    v.from_numpy(numbers(6, 2))

    @ds.kernel
    def f():
        for i in v:
            a, b = both(v[i])
            loss[None] += clamp(square(a) - b, -0.1, 5.0) + square(square(v[i].y))

    check(f, loss, v)


def test_root_by_newton():
    x, loss = field(5), field()
    x.from_numpy(np.linspace(-2, 2, 5))

    @ds.kernel
    def f():
        for i in x:
            loss[None] += newton(x[i]) * (i + 1)

    with ds.Tape(loss):
        f()
    # x**3 + x = c has one real root
    roots = [min(np.roots([1, 0, 1, -c]), key=lambda r: abs(r.imag)).real for c in x.to_numpy()]
    expected = (np.arange(5) + 1) / (3 * np.square(roots) + 1)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-9)


# ---- branches


def test_the_branch_not_taken_is_not_evaluated():
    x, y, loss = field(4), field(4), field()
    x.from_numpy(np.array([-1.0, 0.0, 2.0, 4.0]))

    @ds.kernel
    def f():
        for i in x:
            if x[i] > 0:
                y[i] = 1 / x[i]
            z = 1 / x[i] if x[i] > 0 else 0.0
            w = x[i]
            if not (x[i] > 0):
                w = 0.0
            else:
                w = ds.log(x[i])
            loss[None] += y[i] + z + w

    with ds.Tape(loss):
        f()
    assert x.grad.to_numpy().tolist() == [0, 0, -2 / 4 + 1 / 2, -2 / 16 + 1 / 4]


def test_branches():
    x, y, loss = field(8), field(8), field()
    x.from_numpy(np.linspace(-1.1, 1.3, 8))
    y.from_numpy(numbers(8))

    @ds.kernel
    def f():
        for i in x:
            a, c = x[i], 1.0
            if a > 0:
                if y[i] > 0:
                    a = ds.sin(a) * y[i]
                else:
                    c = a * a  # an active and a constant result
            elif i % 2 == 0 and y[i] > -0.5:
                a *= -3
                loss[None] += a * y[i]
            b = a if y[i] > 0.1 or x[i] < 0 else c * 2
            loss[None] += a * b + c + ds.select(x[i] > 0.2, a * c, y[i])

    check(f, loss, x, y)


# ---- atomics and locals of the kernel


def test_scatter_and_gather():
    x, y, loss = field(9), field(4), field()
    index = field(9, grad=False, dtype=ds.i32)
    index.from_numpy(np.array([3, 0, 0, 1, 3, 3, 2, 0, 1], np.int32))
    x.from_numpy(numbers(9))

    @ds.kernel
    def scatter():
        for i in x:
            y[index[i]] += x[i] ** 2
            ds.atomic_sub(y[(index[i] + 1) % 4], x[8 - i])

    @ds.kernel
    def gather():
        for i in x:
            loss[None] += y[index[8 - i]] ** 2 * x[index[i]]

    def program():
        scatter()
        gather()

    check(program, loss, x, reset=[y])


def test_locals_of_the_kernel():
    x, y, loss = field(6), field(6), field()
    x.from_numpy(numbers(6))

    @ds.kernel
    def f():
        s = 0.0
        v = ds.Vector([0.0, 1.0])
        for i in x:
            s += x[i] ** 2
            v += ds.Vector([x[i], -x[i] * i])
        for i in x:
            y[i] = x[i] * s + v.x
        for i in x:  # added to after it was read
            s -= ds.sin(x[i])
        t = s * v.y
        for i in x:
            y[i] += t * x[i]
        t *= t
        s += t
        for i in x:
            loss[None] += y[i] * s + t

    check(f, loss, x)


def test_locals_of_the_kernel_in_turn():
    """s means something else at each of its readers."""
    x, y, loss = field(3), field(3, n=3), field()
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def f():
        s = 0.0
        for i in x:
            s += x[i]
        for i in x:
            y[i][0] = s * x[i]
        for i in x:
            s += x[i] ** 2
        for i in x:
            y[i][1] = s * x[i]
        for i in x:
            s += x[i] ** 3
        for i in x:
            y[i][2] = s * x[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i].sum()

    with ds.Tape(loss):
        f()
        total()
    X = x.to_numpy()
    s1, s2, s3 = (np.sum(X**k) for k in (1, 2, 3))
    # loss = s1 * (s1 + (s1 + s2) + (s1 + s2 + s3))
    expected = (3 * s1 + 2 * s2 + s3) + s1 * (3 + 2 * 2 * X + 3 * X**2)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-14)


# ---- loops


def test_static_loops():
    x, loss = field(5, n=3), field()
    x.from_numpy(numbers(5, 3))

    @ds.kernel
    def f():
        for i in x:
            p = 1.0
            for k in ds.static(range(3)):
                p *= x[i][k] + k
                for j in ds.static(ds.ndrange(2)):
                    if ds.static(k > 0):
                        p += x[i][j] * k
            loss[None] += p

    check(f, loss, x)


def test_serial_loops():
    x, y, loss = field(4), field((4, 5)), field()
    x.from_numpy(numbers(4))
    y.from_numpy(numbers(4, 5))

    @ds.kernel
    def f(n: ds.i32):
        for i in x:
            a, b = x[i], 0.5
            for j in range(n):
                a = ds.sin(a * 1.3) + b
                for k in range(j, 5):
                    b += y[i, k] * a * 0.1
                if j % 2 == 0:
                    for k in range(2):
                        a -= y[i, j] * b
            for j, k in ds.ndrange(2, (1, 3)):
                b *= 1 + y[j, k] * a
            loss[None] += a * b

    check(lambda: f(5), loss, x, y)
    check(lambda: f(1), loss, x, y)


def test_a_serial_kernel():
    x, y, loss = field(6), field(7), field()
    x.from_numpy(numbers(6))

    @ds.kernel
    def f():
        a = x[0]
        ds.loop_config(serialize=True)
        for i in range(6):
            y[i + 1] = y[i] * 0.5 + x[i]  # linear: nothing is needed again
            a = a * x[i] + y[i + 1]
        k = 0
        while k < 3:
            a += ds.sin(a) * x[k]
            k += 1
        loss[None] += a + y[6] ** 2

    check(f, loss, x, reset=[y])


def test_while_break_continue():
    x, loss = field(9), field()
    x.from_numpy(np.linspace(-2.05, 2.11, 9))

    @ds.kernel
    def f(n: ds.i32):
        for i in x:
            v, k = x[i], 0
            while True:
                if k >= n:
                    break
                k += 1
                if v > 1.5:
                    v = v * 0.5
                    continue
                for q in range(k):
                    v = ds.sin(v) * 1.3 + x[i] * 0.1
                    if v < -1.2:
                        break
                v += 0.3
            w = 1.0
            for j in range(20):
                if w > 3 + v:
                    break
                if j % 3 == 1:
                    continue
                w += v * v * 0.2
            while w > 1 and v < 5:
                w *= 0.7
                v += w
            loss[None] += v * v * (i + 1) + w

    check(lambda: f(7), loss, x)


def test_conditions_that_write():
    x, y, loss = field(6), field(6), field()
    x.from_numpy(numbers(6, lo=0.2, hi=1.4))

    @ds.func
    def noted(i, v):
        y[i] += 0.3 * v * v * x[i]
        return v

    @ds.kernel
    def f():
        for i in x:
            s = x[i]
            while noted(i, s) < 3.0 and noted(5 - i, 2.0 * s) < 5.0:
                k = 0
                while noted(i, s * s) < 2.0 and k < 2:
                    k += 1
                    s += 0.3 * x[i] * s
                s += 0.1 + (0.2 if noted(i, s) > 1.0 else x[i])
                if noted(i, s * x[i]) > 4.0:
                    continue
                s *= 1.01
            y[i] += s

    @ds.kernel
    def end():
        for i in y:
            loss[None] += y[i] ** 2

    check(lambda: (f(), end()), loss, x, reset=[y])


def test_conditions_that_change_what_was_read_are_refused():
    x, y, loss = field(3), field(3), field()

    @ds.func
    def more(i):
        y[i] += x[i]
        return y[i]

    @ds.kernel
    def f():
        for i in x:
            while more(i) < 3.0:
                loss[None] += y[i] ** 2

    with pytest.raises(ds.errors.GlobalDataAccessError, match="as it was read"):
        f.grad()


def test_early_return_from_a_loop():
    x, loss = field(6), field()
    x.from_numpy(numbers(6, lo=0.1, hi=3.0))

    @ds.func
    def walk(v, n):
        for k in range(n):
            v = v * 1.4 - 0.1
            if v > 2:
                return v * k
        return -v

    @ds.kernel
    def f():
        for i in x:
            loss[None] += walk(x[i], i + 1) * walk(x[5 - i], 3)

    check(f, loss, x)


def test_carried_vectors_and_integers():
    x, loss = field(5, n=2), field()
    table = field(7)
    table.from_numpy(numbers(7))
    x.from_numpy(numbers(5, 2))

    @ds.kernel
    def f():
        for i in x:
            p, R, k = x[i], ds.Matrix([[1.0, 0.0], [0.0, 1.0]]), i
            for j in range(6):
                c, s = ds.cos(p.x), ds.sin(p.y)
                R = R @ ds.Matrix([[c, -s], [s, c]])
                p = R @ p + table[k]
                p[j % 2] *= table[(k + j) % 7]
                k = (3 * k + 1) % 7 if p.x > 0 else (k + 2) % 7
            loss[None] += p.dot(ds.Vector([1.0, 2.0])) + R.trace()

    check(f, loss, x, table, h=1e-6)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 1000, 100_000])
def test_trip_counts(n):
    """x <- x + 0.7 / n * cos(x): the derivative is a product over the turns."""
    x, y, loss = field(3), field(3), field()
    start = np.array([0.3, 1.0, -2.0])
    x.from_numpy(start)

    @ds.kernel
    def by_for(n: ds.i32, h: ds.f64):
        for i in x:
            v = x[i]
            for k in range(n):
                v = v + h * ds.cos(v)
            y[i] = v

    @ds.kernel
    def by_while(n: ds.i32, h: ds.f64):
        for i in x:
            v = x[i]
            k = 0
            while k < n:
                v = v + h * ds.cos(v)
                k += 1
            y[i] = v

    h = 0.7 / max(n, 1)
    v, slope = start.copy(), np.ones(3)
    for _ in range(n):
        slope = slope * (1 - h * np.sin(v))
        v = v + h * np.cos(v)
    for kernel in (by_for, by_while):
        tape = ds.Tape()
        with tape:
            kernel(n, h)
        tape.zero()
        tape.backward(grads={y: 1})
        np.testing.assert_allclose(y.to_numpy(), v, rtol=1e-11)
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-10)


def test_trip_counts_that_differ_between_lanes():
    x, count, loss = field(6), field(6, grad=False, dtype=ds.i32), field()
    count.from_numpy(np.array([0, 1, 40, 0, 3, -2], np.int32))
    x.from_numpy(numbers(6))

    @ds.kernel
    def f():
        for i in x:
            v = x[i]
            for k in range(count[i]):
                v = ds.sin(v) + 0.5
            p = 1.0
            for k in range(count[i], 3):
                p *= v + k
            loss[None] += p

    check(f, loss, x)
