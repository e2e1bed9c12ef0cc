"""`kernel.jvp`: one launch with its tangents, for every kind of kernel; against closed forms."""

import pickle
import sys

import numpy as np
import pytest

import diffsim as ds


@pytest.fixture
def line(cpu):
    """x with the dual 1, and y and s with duals."""
    x = ds.field(ds.f64, shape=4, needs_dual=True)
    y = ds.field(ds.f64, shape=4, needs_dual=True)
    s = ds.field(ds.f64, shape=(), needs_dual=True)
    x.from_numpy(np.array([1.0, 2.0, 3.0, 4.0]))
    x.dual.fill(1.0)
    return x, y, s


X = np.array([1.0, 2.0, 3.0, 4.0])


def test_loops_branches_and_updates(line):
    x, y, s = line

    @ds.kernel
    def powers(n: ds.i32):
        for i in range(4):
            p = ds.f64(1.0)
            k = 0
            while k < n:
                p *= x[i]
                k += 1
            y[i] = p if i % 2 == 0 else -p

    @ds.kernel
    def total():
        for i in range(4):
            s[None] += x[i] * x[i]

    @ds.kernel
    def less():
        for i in range(4):
            s[None] -= x[i]

    @ds.kernel
    def largest():
        for i in range(4):
            ds.atomic_max(s[None], 3.0 * x[i])

    powers.jvp(3)
    np.testing.assert_allclose(y.dual.to_numpy(), 3 * X**2 * [1, -1, 1, -1])
    np.testing.assert_allclose(y.to_numpy(), X**3 * [1, -1, 1, -1])
    total.jvp()
    assert s.dual[None] == 2 * X.sum()
    less.jvp()
    assert s.dual[None] == 2 * X.sum() - 4
    s[None] = 0.0
    largest.jvp()
    assert (s[None], s.dual[None]) == (12, 3)
    powers.jvp(0)  # a loop of no iterations
    assert not y.dual.to_numpy().any()


def test_duals_are_taken_as_they_are(line):
    """Nothing is cleared or seeded, launches add up, and a plain launch changes no dual."""
    x, y, _ = line

    @ds.kernel
    def add():
        for i in range(4):
            y[i] += x[i] * x[i]

    for k in range(1, 4):
        add.jvp()
        np.testing.assert_allclose(y.dual.to_numpy(), 2 * X * k)
    add()
    np.testing.assert_allclose(y.to_numpy(), 4 * X**2)
    np.testing.assert_allclose(y.dual.to_numpy(), 6 * X)


def test_old_values_and_places(line):
    x, y, s = line
    count = ds.field(ds.i32, shape=())

    @ds.kernel
    def prefix():
        for i in range(4):
            old = ds.atomic_add(s[None], x[i])
            y[i] = old * old

    @ds.kernel
    def compact():
        for i in range(4):
            if x[i] > 1.5:
                k = ds.atomic_add(count[None], 1)
                y[k] = x[i] ** 2

    prefix.jvp()
    # The sum before each, in the order of the lanes.
    np.testing.assert_allclose(y.dual.to_numpy(), 2 * np.array([0, 1, 3, 6]) * [0, 1, 2, 3])
    y.fill(0.0)
    y.dual.fill(0.0)
    compact.jvp()
    np.testing.assert_allclose(sorted(y.dual.to_numpy()), [0, 4, 6, 8])


def test_results(line):
    x, _, _ = line

    @ds.kernel
    def scalar(i: ds.i32) -> ds.f64:
        return x[i] ** 3

    @ds.kernel
    def vector() -> ds.types.vector(2, ds.f64):
        return ds.Vector([x[0] * x[1], x[1]])

    @ds.kernel
    def single() -> ds.f32:
        return ds.cast(x[2] * x[2], ds.f32)

    @ds.kernel
    def whole() -> ds.i32:
        x[0] = x[0] * 2.0
        return 3

    assert scalar.jvp(1) == (8, 12)
    value, tangent = vector.jvp()
    assert (list(value), list(tangent)) == ([2, 2], [3, 1])
    assert single.jvp() == (9, 6)
    assert whole.jvp() == (3, 0)
    assert x.dual[0] == 2


def test_arguments_of_all_kinds(line):
    x, y, _ = line
    a = ds.field(ds.f64, shape=(), needs_dual=True)
    a[None], a.dual[None] = 3.0, 1.0
    u = ds.ndarray(ds.f64, 4, needs_dual=True)
    v = ds.ndarray(ds.f64, 4, needs_dual=True)

    @ds.kernel
    def scale(f: ds.template(), by: ds.f64):
        for i in f:
            y[i] = by * f[i]

    @ds.kernel
    def square(p: ds.types.ndarray(), q: ds.types.ndarray()):
        for i in range(p.shape[0]):
            q[i] = p[i] * p[i]

    scale.jvp(x, 2.0)
    np.testing.assert_allclose(y.dual.to_numpy(), 2)
    scale.jvp(x, by=a)  # a field in place of a number
    np.testing.assert_allclose(y.dual.to_numpy(), 3 + X)
    u.from_numpy(X)
    u.dual.fill(0.5)
    square.jvp(u, v)
    np.testing.assert_allclose(v.dual.to_numpy(), X)
    square.jvp(X, v)  # an array of NumPy is constant
    assert not v.dual.to_numpy().any()
    with pytest.raises(ds.MissingGradientError, match=r"(?s)q is given a value.*q\[i\] = p\[i\]"):
        square.jvp(u, np.ones(4))
    with pytest.raises(ds.KernelTypeError, match="2 arguments"):
        square.jvp(u)


def test_a_method_of_an_object(cpu):
    @ds.data_oriented
    class Spring:
        def __init__(self, stiffness):
            self.length = ds.field(ds.f64, shape=(), needs_dual=True)
            self.stiffness = stiffness

        @ds.kernel
        def energy(self) -> ds.f64:
            return 0.5 * self.stiffness * self.length[None] ** 2

    springs = [Spring(2.0), Spring(5.0)]
    for spring in springs:
        spring.length[None], spring.length.dual[None] = 3.0, 1.0
    assert [spring.energy.jvp() for spring in springs] == [(9, 6), (22.5, 15)]


def test_what_has_no_dual(cpu):
    x = ds.field(ds.f64, shape=(), needs_dual=True)
    y, n = ds.field(ds.f64, shape=()), ds.field(ds.i32, shape=())

    @ds.kernel
    def store():
        y[None] = x[None]

    @ds.kernel
    def plain():
        y[None] = 1.0

    @ds.kernel
    def whole():
        n[None] = ds.cast(x[None], ds.i32)

    with pytest.raises(
        ds.MissingGradientError, match=r"(?s)y is given.*y\[None\] = x\[.*needs_dual=True"
    ):
        store.jvp()
    with pytest.raises(
        ds.MissingGradientError, match="nothing that plain reads or writes has a dual"
    ):
        plain.jvp()
    whole.jvp()
    # What forward mode has lent is not the program's.
    with ds.ad.FwdMode(param=x):
        store()
    with pytest.raises(ds.MissingGradientError, match="y is given"):
        store.jvp()
    y.add_dual()
    x.dual.fill(1.0)
    store.jvp()
    assert y.dual[None] == 1


def test_a_constant_that_changed(cpu):
    x = ds.field(ds.f64, shape=(), needs_dual=True)
    scale = 2.0
    space = {"x": x, "f": ds.field(ds.f64, shape=(), needs_dual=True)}

    @ds.kernel
    def run():
        x[None] = scale * x[None]

    @ds.kernel
    def of_dictionary():
        space["f"][None] = x[None] * 3.0

    x[None], x.dual[None] = 1.0, 1.0
    run.jvp()
    assert x.dual[None] == 2
    scale = 3.0
    with pytest.raises(ds.KernelStateError, match=r"scale was 2\.0"):
        run.jvp()
    of_dictionary.jvp()
    space["f"] = ds.field(ds.f64, shape=(), needs_dual=True)
    of_dictionary.jvp()
    assert space["f"].dual[None] == 6


def test_random_numbers_are_constant(line):
    x, y, _ = line

    @ds.kernel
    def noise():
        for i in range(4):
            y[i] = x[i] * ds.random(ds.f64)

    noise.jvp()
    np.testing.assert_allclose(y.dual.to_numpy(), y.to_numpy() / X)


def test_given_gradients_are_refused(line):
    x, y, _ = line

    @ds.func
    def f(a):
        return a * a

    @ds.func_grad(f)
    def f_grad(a, g):
        ds.adjoint[a] += 2.0 * a * g

    @ds.kernel
    def run():
        for i in range(4):
            y[i] = f(x[i])

    with pytest.raises(
        ds.AutodiffError, match=r"(?s)f has a gradient of its own.*y\[i\] = f\(x\[i\]\)"
    ):
        run.jvp()


def test_with_checks(line):
    x, y, _ = line
    ds.init(debug=True)

    @ds.kernel
    def shift(k: ds.i32):
        for i in range(4):
            y[i] = x[i + k] ** 2

    shift.jvp(0)
    np.testing.assert_allclose(y.dual.to_numpy(), 2 * X)
    with pytest.raises(ds.AccessError, match=r"(?s)x\[i \+ k\]"):
        shift.jvp(1)


def test_gradients_by_hand_may_follow(cpu):
    """A launch with tangents is a launch, to which `kernel.grad` belongs."""
    x = ds.field(ds.f64, shape=(), needs_dual=True, needs_grad=True)
    y = ds.field(ds.f64, shape=(), needs_dual=True, needs_grad=True)

    @ds.kernel
    def square():
        y[None] = x[None] ** 2

    x[None], x.dual[None], y.grad[None] = 3.0, 1.0, 1.0
    square.jvp()
    square.grad()
    assert (y.dual[None], x.grad[None]) == (6, 6)


def test_shown_and_pickled(line):
    x, y, _ = line
    assert repr(module_kernel.jvp) == "<tangents of the kernel module_kernel>"
    assert pickle.loads(pickle.dumps(module_kernel.jvp)) is module_kernel.jvp

    @ds.kernel
    def double():
        for i in range(4):
            y[i] = 2.0 * x[i]

    assert "store y.dual[%i]" in str(double.jvp.ir())
    assert "y.dual" in str(double.jvp.ir(after="demote_atomics"))
    assert "define" in str(double.jvp.llvm())
    assert ".visible .entry" in str(double.jvp.ptx())


@ds.kernel
def module_kernel():
    pass


assert sys.modules[__name__].module_kernel is module_kernel
