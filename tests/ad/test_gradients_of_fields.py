"""Gradients of fields, types, singular points, chains, neighbours, against central differences."""

import math

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import central, check, field, numbers
from tests.support.source import make


@pytest.fixture(autouse=True)
def _f64(quick_code):
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


# ---- where fields lie, and how kernels see them


@pytest.mark.parametrize("layout", [ds.Layout.AOS, ds.Layout.SOA])
def test_struct_for(layout):
    a, b = field((3, 4), n=2, layout=layout), field((3, 4))
    c, loss = field((2, 3, 4), n=(2, 3), layout=layout), field()
    a.from_numpy(numbers(3, 4, 2))
    b.from_numpy(numbers(3, 4))
    c.from_numpy(numbers(2, 3, 4, 2, 3))

    @ds.kernel
    def two():
        for i, j in a:
            loss[None] += (a[i, j] * b[i, 3 - j]).norm_sqr() * (i + 1)

    @ds.kernel
    def three():
        for I in ds.grouped(c):
            loss[None] += (c[I] @ ds.Vector([1.0, b[I[1], I[2]], -1.0])).dot(a[I.y, I.z])

    def program():
        two()
        three()

    check(program, loss, a, b, c)


def test_layout_trees():
    x, y = ds.field(ds.f64), ds.Vector.field(2, ds.f64)
    z, loss = ds.field(ds.f64), ds.field(ds.f64)
    ds.root.dense(ds.j, 4).dense(ds.i, 3).place(x)  # axis 1 is the slow one
    ds.root.dense(ds.i, 3).dense(ds.j, 4).place(y, z)
    ds.root.place(loss)
    ds.root.lazy_grad()
    x.from_numpy(numbers(3, 4))
    y.from_numpy(numbers(3, 4, 2))

    @ds.kernel
    def f():
        for i, j in x:
            z[i, j] = ds.sin(x[i, j]) * y[i, j].x + x[2 - i, 3 - j] * y[i, j].y

    @ds.kernel
    def g():
        for i, j in z:
            loss[None] += z[i, j] ** 2 * (i + 2 * j)

    def program():
        f()
        g()

    check(program, loss, x, y)


def test_ndarrays():
    a, b = ds.ndarray(ds.f64, 5, needs_grad=True), ds.ndarray(ds.f64, (5, 5), needs_grad=True)
    c, loss = ds.ndarray(ds.f64, 5, needs_grad=True), field()
    a.from_numpy(numbers(5))
    b.from_numpy(numbers(5, 5))
    weights = numbers(5, seed=3)

    @ds.kernel
    def product(b: ds.types.ndarray(), a: ds.types.ndarray(), c: ds.types.ndarray()):
        for i, j in b:
            c[i] += b[i, j] * a[j] ** 2

    @ds.kernel
    def weigh(c: ds.types.ndarray(), w: ds.types.ndarray()):
        for i in range(c.shape[0]):
            loss[None] += c[i] * w[i] * a_len(c)

    @ds.func
    def a_len(c):
        return c.shape[0]

    def program():
        product(b, a, c)
        weigh(c, weights)

    check(program, loss, a, b, reset=[c])


@pytest.mark.parametrize("kind", ["same", "other"])
def test_an_array_passed_twice(kind):
    """a[i] and b[i + 1] of one array: their additions meet in one gradient."""
    n = 64
    a = ds.ndarray(ds.f64, n, needs_grad=True)
    b = a if kind == "same" else ds.ndarray(ds.f64, n, needs_grad=True)
    a.from_numpy(numbers(n))
    b.from_numpy(numbers(n))
    y = field(n)

    @ds.kernel
    def f(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in range(n - 1):
            y[i] = a[i] * b[i + 1]

    tape = ds.Tape()
    with tape:
        f(a, b)
    tape.backward(grads={y: 1})
    x = numbers(n)
    left, right = np.append(x[1:], 0), np.append(0, x[:-1])
    if kind == "same":
        np.testing.assert_array_equal(a.grad.to_numpy(), left + right)
    else:
        np.testing.assert_array_equal(a.grad.to_numpy(), left)
        np.testing.assert_array_equal(b.grad.to_numpy(), right)


@ds.data_oriented
class Springs:
    def __init__(self, n, stiffness):
        self.x, self.loss = field(n), field()
        self.stiffness = stiffness

    @ds.func
    def energy(self, i, j):
        return 0.5 * self.stiffness * (self.x[i] - self.x[j]) ** 2

    @ds.kernel
    def total(self, rest: ds.f64):
        for i in range(self.x.shape[0] - 1):
            self.loss[None] += self.energy(i, i + 1) - rest * self.x[i]


def test_classes():
    for n, stiffness in ((4, 2.0), (6, 3.0)):
        s = Springs(n, stiffness)
        X = numbers(n)
        s.x.from_numpy(X)
        with ds.Tape(s.loss):
            s.total(0.25)
        pull = np.diff(X) * stiffness
        expected = np.append(0, pull) - np.append(pull, 0) - 0.25 * (np.arange(n) < n - 1)
        np.testing.assert_allclose(s.x.grad.to_numpy(), expected, rtol=1e-13)


def test_templates():
    x, y, loss = field(4), field(4), field()
    x.from_numpy(numbers(4))

    @ds.kernel
    def f(a: ds.template(), b: ds.template(), power: ds.template()):
        for i in a:
            b[i] = a[i] ** power + x[3 - i]  # x is captured too

    @ds.kernel
    def total(a: ds.template()):
        for i in a:
            loss[None] += a[i] ** 2

    def program():
        f(x, y, 3)
        total(y)

    check(program, loss, x)

    def on_itself():
        f(y, x, 2)

    with pytest.raises(ds.GlobalDataAccessError):  # writes x[i], reads x[3 - i]
        with ds.Tape(loss):
            on_itself()


def test_vector_arguments():
    x, loss = field(4, n=2), field()
    x.from_numpy(numbers(4, 2))

    @ds.kernel
    def f(v: ds.types.vector(2, ds.f64), A: ds.types.matrix(2, 2, ds.f64), s: ds.f64):
        for i in x:
            loss[None] += s * v.dot(A @ x[i])

    v, A = ds.Vector([1.0, 2.0]), np.array([[1.0, 2.0], [3.0, 4.0]])
    tape = ds.Tape()
    with tape:
        f(v, A, 2.0)
        f([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], 1.0)
    v[0] = 100.0
    A[:] = 0  # the adjoint uses what was passed
    tape.backward(loss)
    assert x.grad.to_numpy().tolist() == [[2 * 7 + 1, 2 * 10]] * 4


@pytest.mark.parametrize(
    "name", ["now", "seed", "n", "tape", "session", "special", "call", "v2", "_now"]
)
def test_names_of_arguments(name):
    """Names that the launch function might use itself."""
    x, loss = field(3), field()
    x.fill(1)
    source = (
        f"@ds.kernel\ndef f({name}: ds.i32, w: ds.f64):\n"
        f"    for i in x:\n        loss[None] += x[i] * w * {name} + 0 * ds.random()\n"
    )
    space = {"ds": ds, "x": x, "loss": loss}
    make(source, space)
    with ds.Tape(loss):
        space["f"](3, 2.0)
        space["f"](5, 1.0)
    assert loss[None] == 33
    assert x.grad.to_numpy().tolist() == [11, 11, 11]
    x.grad.fill(0)
    space["f"].grad(3, 2.0)
    space["f"].grad(**{name: 5, "w": 1.0})
    assert x.grad.to_numpy().tolist() == [11, 11, 11]


# ---- types


def test_mixed_precision_and_casts():
    x, y = field(5), field(5, dtype=ds.f32)
    z, loss = field(5), field()
    X = numbers(5, lo=0.5, hi=3.5)
    x.from_numpy(X)
    y.from_numpy(numbers(5).astype(np.float32))

    @ds.kernel
    def f():
        for i in x:
            k = ds.cast(x[i], ds.i32)  # cuts
            z[i] = ds.cast(y[i], ds.f64) * x[i] + k * x[i] + x[i] * y[i] + i / 2
            loss[None] += z[i] ** 2 + ds.cast(k, ds.f64) + (x[i] // 0.7)

    with ds.Tape(loss):
        f()
    Y = y.to_numpy().astype(np.float64)
    k = np.trunc(X)
    Z = 2 * Y * X + k * X + np.arange(5) / 2
    np.testing.assert_allclose(z.to_numpy(), Z, rtol=1e-14)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * Z * (2 * Y + k), rtol=1e-13)
    assert y.grad.dtype is ds.f32
    np.testing.assert_allclose(y.grad.to_numpy(), 2 * Z * 2 * X, rtol=1e-6)


def test_integer_fields_as_indices_and_weights():
    x, loss = field(5), field()
    pick = field(5, grad=False, dtype=ds.i64)
    weight = field(5, grad=False, dtype=ds.u8)
    pick.from_numpy(np.array([4, 4, 0, 1, 2]))
    weight.from_numpy(np.array([0, 1, 2, 3, 255], np.uint8))
    x.from_numpy(numbers(5))

    @ds.kernel
    def f():
        for i in x:
            loss[None] += x[pick[pick[i]]] ** 2 * weight[i]

    check(f, loss, x)


# ---- singular points


SINGULAR = {
    "norm": ("v.norm()", [0, 0], [0, 0]),
    "norm squared": ("v.norm() ** 2", [0, 0], [0, 0]),
    "norm with eps": ("v.norm(1e-6)", [0, 0], [0, 0]),
    "normalized with eps": ("v.normalized(1e-3).x", [0, 0], [1e3, 0]),
    "sqrt": ("ds.sqrt(v.x)", [0, 0], [0, 0]),
    "sqrt squared": ("ds.sqrt(v.x) ** 2", [0, 0], [0, 0]),
    "pow 0.5": ("v.x**0.5", [0, 0], [0, 0]),
    "pow 1.5": ("v.x**1.5", [0, 0], [0, 0]),
    "0 ** 0": ("v.x**v.y", [0, 0], [0, 0]),
    "0 ** 1": ("v.x**v.y", [0, 1], [1, 0]),
    "whole power": ("v.x**3 + v.y**1", [0, 0], [0, 1]),
    "negative to a power": ("ds.pow(v.x, v.y)", [-2, 2], [-4, 0]),
    "acos at 1": ("ds.acos(v.x)", [1, 0], [0, 0]),
    "acos at -1": ("ds.acos(v.x)", [-1, 0], [0, 0]),
    "asin at 1": ("ds.asin(v.x)", [1, 0], [0, 0]),
    "atan2": ("ds.atan2(v.x, v.y)", [0, 0], [0, 0]),
    "atan2 behind": ("ds.atan2(v.x, v.y)", [0, -2], [-0.5, 0]),
    "abs": ("abs(v.x)", [0, 0], [0, 0]),
    "max of equals": ("ds.max(v.x, v.y)", [2, 2], [1, 0]),
    "min of equals": ("ds.min(v.x, v.y)", [2, 2], [1, 0]),
    "abs times": ("abs(v.x) * v.y", [0, 3], [0, 0]),
    "norm to a power": ("v.norm() ** 1.5", [0, 0], [0, 0]),
    "root of squares": ("ds.sqrt(v.x * v.x + v.y * v.y)", [0, 0], [0, 0]),
    "asin at -1": ("ds.asin(v.x)", [-1, 0], [0, 0]),
    "angle between equals": ("ds.acos(v.x / ds.sqrt(v.x * v.x))", [2, 0], [0, 0]),
    "atan2 ahead": ("ds.atan2(v.x, v.y)", [0, 2], [0.5, 0]),
    "x / |x|": ("v.x / abs(v.x)", [-3, 0], [0, 0]),
    "x / |x| by select": ("ds.select(v.x != 0, v.x / abs(v.x), v.y)", [0, 0], [0, 1]),
    "normalized by select": ("ds.select(v.norm() > 0, v.normalized().x, v.y)", [0, 0], [0, 1]),
    "normalized in a branch": ("v.normalized().x if v.norm() > 0 else v.y", [0, 0], [0, 1]),
    "rsqrt by select": ("ds.select(v.x > 0, ds.rsqrt(v.x), v.y)", [0, 3], [0, 1]),
    "log by select": ("ds.select(v.x > 0, ds.log(v.x), v.y)", [0, 3], [0, 1]),
    "power by select": ("ds.select(v.x > 0, v.x**-0.5, v.y)", [-2, 3], [0, 1]),
    "large power by select": ("ds.select(v.x < 1e3, 2.0**v.x, v.y)", [1e4, 3], [0, 1]),
    "max with 0": ("ds.max(v.x, 0.0) + ds.max(0.0, v.y)", [0, 0], [1, 0]),
    "min with 0": ("ds.min(v.x, 0.0) + ds.min(0.0, v.y)", [0, 0], [1, 0]),
    "max of three": ("ds.max(v.y, v.x, 2.0)", [2, 2], [0, 1]),
    "an infinite factor by select": ("ds.select(v.x > 0, v.y * v.y / v.x, v.y)", [0, 3], [0, 1]),
    "a factor by select": ("ds.select(v.x > 0, (1 / v.x) * v.y, v.y)", [0, 3], [0, 1]),
    "an infinite factor in a branch": ("in_a_branch(1 / v.x, v)", [0, 3], [0, 2]),
    "an overflow by min": ("ds.min(ds.exp(v.x) * ds.exp(v.x) * v.y, 5.0)", [1e3, 3], [0, 0]),
    "an overflow squared by max": ("ds.max(-(ds.exp(v.x) ** 2) * v.y, -5.0)", [1e3, 3], [0, 0]),
    "an infinite matrix by select": (
        "ds.select(v.x > 0, (ds.Matrix([[1 / v.x, v.y], [v.y, 1.0]]) @ v).y, v.y)",
        [0, 3],
        [0, 1],
    ),
    "tan of infinity": ("ds.select(v.x > 0, ds.sin(v.y / v.x) * v.y, v.y)", [0, 3], [0, 1]),
    "not a number by select": ("ds.select(v.x > 0, ds.tanh(v.x / v.x) * v.y, v.y)", [0, 3], [0, 1]),
    "guarded 1/x": ("v.y if v.x == 0 else 1 / v.x", [0, 3], [0, 1]),
}


@ds.func
def in_a_branch(factor, v):
    product = factor * v.y
    result = 2 * v.y
    if v.x > 0:
        result += product
    return result


@pytest.mark.parametrize("name", SINGULAR)
def test_singular_points(name):
    text, at, expected = SINGULAR[name]
    v, loss = field(n=2), field()
    space = {"ds": ds, "v": v, "loss": loss, "in_a_branch": in_a_branch}
    make(
        f"@ds.func\ndef g(v):\n    return {text}\n\n"
        "@ds.kernel\ndef f():\n    for i in range(1):\n        loss[None] += g(v[None])\n",
        space,
    )
    v.from_numpy(np.array(at, float))
    with ds.Tape(loss):
        space["f"]()
    np.testing.assert_allclose(v.grad.to_numpy(), expected, rtol=1e-12)


# ---- random numbers


def test_random_numbers_are_drawn_again():
    x, w, loss = field(50), field(50, grad=False), field()
    x.fill(2)

    @ds.kernel
    def f(t: ds.i32):
        for i in x:
            r = ds.random() + t
            for k in range(i % 3):
                if ds.random() > 0.5:
                    r *= ds.randn()
            w[i] = r
            loss[None] += x[i] ** 2 * r

    @ds.kernel
    def copy_out(keep: ds.types.ndarray()):
        for i in w:
            keep[i] = w[i]

    seen = []
    with ds.Tape(loss):
        for t in range(2):
            f(t)
            seen.append(w.to_numpy())
    assert len(np.unique(np.concatenate(seen))) == 100
    np.testing.assert_allclose(x.grad.to_numpy(), 4 * sum(seen), rtol=1e-12)


def test_random_numbers_by_kernel_grad():
    x, y = field(20), field((3, 20))
    x.fill(1)

    @ds.kernel
    def f(t: ds.i32):
        for i in x:
            y[t, i] = x[i] * ds.random()

    for t in range(3):
        f(t)
    for t in (2, 0, 1):
        x.grad.fill(0)
        y.grad.fill(1)
        f.grad(t)
        assert x.grad.to_numpy().tolist() == y.to_numpy()[t].tolist()


# ---- chains of launches


def test_time_steps():
    n, steps = 5, 12
    x, v, k, loss = field((steps + 1, n)), field((steps + 1, n)), field(), field()
    k[None] = 1.7
    x.from_numpy(numbers(steps + 1, n))

    @ds.kernel
    def step(t: ds.i32):
        for i in range(n):
            force = -k[None] * ds.sin(x[t, i]) + x[t, (i + 1) % n] * 0.3
            v[t + 1, i] = v[t, i] + 0.1 * force
            x[t + 1, i] = x[t, i] + 0.1 * v[t + 1, i]

    @ds.kernel
    def measure(t: ds.i32):
        for i in range(n):
            loss[None] += x[t, i] ** 2

    def program():
        for t in range(steps):
            step(t)
        measure(steps)

    start = x.to_numpy()

    def reference(x0, stiff):
        x, v = x0.copy(), np.zeros(n)
        for _ in range(steps):
            v = v + 0.1 * (-stiff * np.sin(x) + np.roll(x, -1) * 0.3)
            x = x + 0.1 * v
        return (x**2).sum()

    with ds.Tape(loss):
        program()
    assert loss[None] == pytest.approx(reference(start[0], 1.7), rel=1e-13)
    np.testing.assert_allclose(
        x.grad.to_numpy()[0], central(lambda a: reference(a, 1.7), start[0]), rtol=1e-8
    )
    assert not x.grad.to_numpy()[1:-1].any()  # overwritten: no effect of what stood there
    slope = central(lambda a: reference(start[0], a[0]), np.array([1.7]))
    assert k.grad[None] == pytest.approx(slope[0], rel=1e-6)


def test_time_steps_of_arrays():
    n, steps = 4, 6
    x = ds.ndarray(ds.f64, (steps + 1, n), needs_grad=True)
    loss = field()
    x.from_numpy(numbers(steps + 1, n))

    @ds.kernel
    def step(x: ds.types.ndarray(), t: ds.i32):
        for i in range(n):
            x[t + 1, i] = ds.sin(x[t, i]) * 1.2 + x[0, i]

    @ds.kernel
    def measure(x: ds.types.ndarray()):
        for i in range(n):
            loss[None] += x[steps, i] ** 2

    start = x.to_numpy()[0]
    with ds.Tape(loss):
        for t in range(steps):
            step(x, t)
        measure(x)
    value, slope = start.copy(), np.ones(n)
    for _ in range(steps):
        slope = 1.2 * np.cos(value) * slope + 1
        value = 1.2 * np.sin(value) + start
    np.testing.assert_allclose(x.grad.to_numpy()[0], 2 * value * slope, rtol=1e-12)


def test_chain_of_one_element():
    """x <- f(x), 30 times in rows of one field, against the product of the slopes."""
    steps = 30
    x, loss = field(steps + 1), field()
    x[0] = 0.4

    @ds.kernel
    def step(t: ds.i32):
        x[t + 1] = ds.cos(x[t]) + 0.1 * x[t]

    @ds.kernel
    def end():
        loss[None] += x[steps]

    with ds.Tape(loss):
        for t in range(steps):
            step(t)
        end()
    value, slope = 0.4, 1.0
    for _ in range(steps):
        slope *= -math.sin(value) + 0.1
        value = math.cos(value) + 0.1 * value
    assert loss[None] == pytest.approx(value, rel=1e-14)
    assert x.grad[0] == pytest.approx(slope, rel=1e-12)


def test_two_backward_passes_add_up():
    """Also the gradient of an input that shares its field with what is computed from it."""
    x, a, b = field(3), field(), field()
    x.from_numpy(np.array([2.0, 0.0, 0.0]))

    @ds.kernel
    def step(t: ds.i32):
        x[t + 1] = x[t] * 3

    @ds.kernel
    def ends():
        a[None] = x[2] ** 2
        b[None] += x[1]

    tape = ds.Tape()
    with tape:
        step(0)
        step(1)
        ends()
    tape.backward(a)
    assert x.grad.to_numpy().tolist() == [2 * 18 * 9, 0, 0]
    tape.backward(b)
    assert x.grad.to_numpy().tolist() == [2 * 18 * 9 + 3, 0, 0]
    tape.zero()
    tape.backward(b)
    assert x.grad.to_numpy().tolist() == [3, 0, 0]


def test_gradients_are_kept_if_asked():
    x, loss = field(), field()
    x[None] = 3

    @ds.kernel
    def f():
        loss[None] += x[None] ** 2

    for clear, expected in ((True, 6), (False, 12), (False, 18), (True, 6)):
        with ds.Tape(loss, clear_gradients=clear):
            f()
        assert x.grad[None] == expected


# ---- neighbours: the adjoint of a gather, which the compiler turns into a gather again


def slopes(f, x, at, h=1e-4):
    """Central differences of some elements."""
    made = []
    for i in at:
        step = np.zeros_like(x)
        step[i] = h
        made.append((f(x + step) - f(x - step)) / (2 * h))
    return np.array(made)


def test_stencils():
    n = 24
    x, c, y, loss = field((n, n)), field((n, n)), field((n, n)), field()
    X, C = numbers(n, n), numbers(n, n, seed=1)
    x.from_numpy(X)
    c.from_numpy(C)

    @ds.kernel
    def f():
        for i, j in ds.ndrange((2, n - 2), (1, n - 3)):
            a = c[i, j] * (x[i - 2, j] + x[i + 2, j] - x[i, j + 3] * x[i, j - 1])
            y[i, j] = a + c[i - 1, j + 1] * x[i + 1, j + 1] ** 2

    @ds.kernel
    def periodic():
        for i, j in x:
            y[i, j] += x[(i + 1) % n, j] * x[i, (j - 1) % n] - 4 * x[i, j] ** 2 + x[n - 1 - i, j]

    @ds.kernel
    def guarded():
        for i, j in x:
            if i > 0:
                y[i, j] += x[i - 1, j]
            if i < n - 1 and j > 0:
                y[i, j] += x[i + 1, j - 1] * c[i, j]

    @ds.kernel
    def total():
        for i, j in y:
            loss[None] += y[i, j] ** 2 * (i + 1)

    def reference(X, C):
        Y = np.roll(X, -1, 0) * np.roll(X, 1, 1) - 4 * X**2 + X[::-1]
        at = np.ix_(range(2, n - 2), range(1, n - 3))
        i, j = at
        Y[at] += C[i, j] * (X[i - 2, j] + X[i + 2, j] - X[i, j + 3] * X[i, j - 1])
        Y[at] += C[i - 1, j + 1] * X[i + 1, j + 1] ** 2
        Y[1:] += X[:-1]
        Y[:-1, 1:] += X[1:, :-1] * C[:-1, 1:]
        return (Y**2 * (np.arange(n) + 1)[:, None]).sum()

    with ds.Tape(loss):
        f()
        periodic()
        guarded()
        total()
    assert loss[None] == pytest.approx(reference(X, C), rel=1e-12)
    ends = [0, 1, 2, 3, 11, n - 4, n - 3, n - 2, n - 1]
    at = [(i, j) for i in ends for j in ends[::2]] + [(i, j) for i in ends[::2] for j in ends]
    for field_, f in ((x, lambda a: reference(a, C)), (c, lambda a: reference(X, a))):
        start = X if field_ is x else C
        found = np.array([field_.grad.to_numpy()[i] for i in at])
        np.testing.assert_allclose(found, slopes(f, start, at), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("ends", [(1, 19), (3, 5), (4, 5), (5, 5), (6, 3)])
def test_stencils_with_bounds_at_run_time(ends):
    n = 20
    x, y = field(n), field(n)
    X, weights = numbers(n), numbers(n, seed=1)
    x.from_numpy(X)

    @ds.kernel
    def f(lo: ds.i32, hi: ds.i32):
        for i in range(lo, hi):
            y[i] = x[i - 1] * 2 + x[i + 1] * 3 + x[i] ** 2

    tape = ds.Tape()
    with tape:
        f(*ends)
    tape.backward(grads={y: weights})
    expected = np.zeros(n)
    for i in range(*ends):
        expected[i - 1] += 2 * weights[i]
        expected[i + 1] += 3 * weights[i]
        expected[i] += 2 * X[i] * weights[i]
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-14)
    untouched = [i for i in range(n) if i not in range(*ends)]
    assert y.grad.to_numpy()[untouched].tolist() == weights[untouched].tolist()


def test_many_lanes():
    """Enough of them for several threads: sums, scattered additions and locals of the kernel."""
    n, m = 40_000, 400
    x, y, loss = field(n), field(m), field()
    cell = field(n, grad=False, dtype=ds.i32)
    X = numbers(n)
    where = np.random.default_rng(0).integers(0, m, n)
    x.from_numpy(X)
    cell.from_numpy(where.astype(np.int32))

    @ds.kernel
    def f():
        s = 0.0
        for i in x:
            s += x[i]
        for i in x:
            y[cell[i]] += x[i] * s
        for i in y:
            loss[None] += y[i] ** 2

    with ds.Tape(loss):
        f()
    total = X.sum()
    cells = np.bincount(where, X, m)
    slope = 2 * cells * total
    expected = slope[where] * total + (slope * cells).sum()
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-11, atol=1e-9)


def test_ranges_with_steps():
    x, y, loss = field(12), field(12), field()
    x.from_numpy(numbers(12))

    @ds.kernel
    def f():
        for i in range(1, 12, 3):
            a = x[i]
            for j in range(10, i, -2):
                a = a * x[j] + 0.2
            y[i] = a

    @ds.kernel
    def total():
        for i in y:
            loss[None] += y[i] * (i + 1)

    def program():
        f()
        total()

    check(program, loss, x)
