"""What users of other frameworks ran into: each as a small program, with the right answer or a refusal.

At least one of Taichi 1.7, quadrants 1.3 and Warp 1.19 gives a wrong number here silently, unless said
otherwise.
"""

import math

import numpy as np
import pytest

import diffsim as ds


@pytest.fixture(autouse=True)
def doubles():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


def number(value=0.0, grad=True):
    made = ds.field(ds.f64, (), needs_grad=grad)
    made[None] = value
    return made


def slope(f, x, h=1e-6):
    return (f(x + h) - f(x - h)) / (2 * h)


@pytest.mark.parametrize("turns", [8, 31, 32, 33, 64, 1000])
def test_a_local_carried_through_a_loop_of_unknown_length(turns):
    """Wrong by 13 %, or the process dies at 32 turns."""
    x, loss, n = number(0.6), number(), ds.field(ds.i32, ())
    n[None] = turns

    @ds.kernel
    def run():
        for _ in range(1):
            y = x[None]
            for _ in range(n[None]):
                y = ds.sin(y) + 0.1 * y
            loss[None] = y

    with ds.Tape(loss):
        run()
    y, d = 0.6, 1.0
    for _ in range(turns):
        y, d = math.sin(y) + 0.1 * y, d * (math.cos(y) + 0.1)
    assert x.grad[None] == pytest.approx(d, rel=1e-10, abs=1e-300)


def test_a_loop_that_reads_what_it_wrote_the_turn_before():
    """1.0 in place of 1.58, unnoticed by checkers too."""
    f, loss = ds.field(ds.f64, 6, needs_grad=True), number()
    f[0] = 0.5

    @ds.kernel
    def run():
        ds.loop_config(serialize=True)
        for i in range(5):
            f[i + 1] = f[i] + 0.2 * ds.sin(f[i])
        loss[None] = f[5]

    with ds.Tape(loss):
        run()

    def value(x):
        for _ in range(5):
            x += 0.2 * math.sin(x)
        return x

    assert f.grad[0] == pytest.approx(slope(value, 0.5), rel=1e-8)


def rotate(how, validation=False):
    x, angle, loss = number(2.0), number(0.3), number()

    @ds.kernel
    def turn():
        x[None] = ds.cos(angle[None]) * x[None]

    @ds.kernel
    def end():
        loss[None] = x[None]

    with ds.Tape(loss, in_place=how, validation=validation):
        turn()
        end()
    return x.grad[None], angle.grad[None]


def test_an_update_in_place():
    with pytest.raises(ds.GlobalDataAccessError, match="x"):
        rotate("refuse")
    with pytest.raises(ds.GlobalDataAccessError):
        rotate("refuse", validation=True)
    assert rotate("save") == pytest.approx((math.cos(0.3), -2 * math.sin(0.3)))


def test_read_in_one_kernel_and_overwritten_in_the_next():
    """20 in place of 6."""
    x, y, loss = number(3.0), number(), number()

    @ds.kernel
    def square():
        y[None] = x[None] ** 2

    @ds.kernel
    def overwrite():
        x[None] = 10.0

    @ds.kernel
    def end():
        loss[None] = y[None]

    def run(how):
        x[None] = 3.0
        with ds.Tape(loss, in_place=how):
            square()
            overwrite()
            end()
        return x.grad[None]

    with pytest.raises(ds.GlobalDataAccessError, match="overwrite"):
        run("refuse")
    assert run("save") == pytest.approx(6.0)


@pytest.mark.parametrize("how", ["element", "fill", "numpy"])
def test_python_changes_a_value_before_the_backward_pass(how):
    x, loss = number(3.0), number()

    @ds.kernel
    def square():
        loss[None] = x[None] ** 2

    tape = ds.Tape()
    with tape:
        square()
    if how == "element":
        x[None] = 5.0
    elif how == "fill":
        x.fill(5.0)
    else:
        x.from_numpy(np.array(5.0))
    with pytest.raises(ds.GlobalDataAccessError, match="Python statement"):
        tape.backward(loss)


@pytest.mark.parametrize("kind", ["field", "ndarray"])
def test_a_field_without_gradient_in_the_chain(kind):
    """0 in place of 12."""
    x, loss = number(3.0), number()
    middle = number(grad=False) if kind == "field" else ds.ndarray(ds.f64, ())

    @ds.kernel
    def first(m: ds.types.ndarray()):
        m[None] = 2 * x[None]

    @ds.kernel
    def second(m: ds.types.ndarray()):
        loss[None] = m[None] * x[None]

    with pytest.raises(ds.MissingGradientError, match="gradient"):
        with ds.Tape(loss):
            first(middle)
            second(middle)


@pytest.mark.parametrize("way", ["while", "break", "continue"])
def test_loops_that_are_left_early(way):
    """Refused without a reason, or wrong 19 times over."""
    a, loss = number(7.0), number()

    @ds.kernel
    def newton():
        x = a[None]
        while abs(x * x - a[None]) > 1e-12:
            x = 0.5 * (x + a[None] / x)
        loss[None] = x

    @ds.kernel
    def leave():
        for _ in range(1):
            x = a[None]
            for _ in range(50):
                if abs(x * x - a[None]) < 1e-12:
                    break
                x = 0.5 * (x + a[None] / x)
            loss[None] = x

    @ds.kernel
    def skip():
        for _ in range(1):
            x = a[None]
            for k in range(50):
                if k % 2 == 0:
                    continue
                x = 0.5 * (x + a[None] / x)
            loss[None] = x

    with ds.Tape(loss):
        {"while": newton, "break": leave, "continue": skip}[way]()
    assert a.grad[None] == pytest.approx(0.5 / math.sqrt(7.0), rel=1e-9)


def test_the_largest_of_many():
    """1 to every input."""
    x, top = ds.field(ds.f64, 5, needs_grad=True), number(-9.0)
    x.from_numpy(np.array([-3.0, -1.0, -2.0, -7.0, -5.0]))

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[None], x[i])

    tape = ds.Tape()
    with tape:
        largest()
    assert top[None] == -1.0
    tape.backward(top)
    assert x.grad.to_numpy().tolist() == [0, 1, 0, 0, 0]


def test_a_product_into_what_was_stored_before():
    x, y, loss = number(3.0), number(), number()

    @ds.kernel
    def run():
        y[None] = 2 * x[None]
        y[None] *= x[None]
        loss[None] = y[None]

    try:
        with ds.Tape(loss, in_place="save"):
            run()
    except ds.AutodiffError:
        return  # refused is right, too
    assert x.grad[None] == pytest.approx(12.0)


@pytest.mark.parametrize("function", ["norm", "sqrt", "pow", "branch", "acos", "normalized"])
def test_where_there_is_no_derivative(function):
    """NaN from contact code at rest, and from branches that were not taken."""
    v, x = ds.Vector.field(2, ds.f64, (), needs_grad=True), number()
    loss = number()

    @ds.kernel
    def run():
        if ds.static(function == "norm"):
            loss[None] = v[None].norm() ** 2
        elif ds.static(function == "normalized"):
            loss[None] = v[None].normalized(1e-9).dot(v[None])
        elif ds.static(function == "sqrt"):
            loss[None] = ds.sqrt(x[None]) ** 2
        elif ds.static(function == "pow"):
            loss[None] = x[None] ** 1.5
        elif ds.static(function == "acos"):
            loss[None] = 0.0 * ds.acos(1.0 + x[None])
        else:
            y = 1.0
            if x[None] > 0:
                y = 1.0 / x[None]
            loss[None] = y

    with ds.Tape(loss):
        run()
    assert (v.grad.to_numpy() == 0).all()
    assert x.grad[None] == 0


def test_statements_beside_loops():
    """Refused: users rearranged kernels by trial."""
    x, x0, y = ds.field(ds.f64, 4, needs_grad=True), number(3.0), number()
    x.fill(2.0)

    @ds.kernel
    def run():
        y[None] += x0[None] ** 2
        for i in x:
            y[None] += x[i] ** 3

    with ds.Tape(y):
        run()
    assert x0.grad[None] == 6.0
    assert x.grad.to_numpy().tolist() == [12.0] * 4


def test_a_kernel_that_returns_a_value():
    """0."""
    x, loss = number(3.0), number()

    @ds.kernel
    def square() -> ds.f64:
        return x[None] ** 2

    with ds.Tape(loss):
        loss[None] = 2.0 * square()
    assert x.grad[None] == 12.0


def test_gradients_of_arguments_and_of_any_output_again_and_again():
    x, dt = ds.field(ds.f64, 3, needs_grad=True), number(0.5)
    y = ds.field(ds.f64, 3, needs_grad=True)
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def step(h: ds.f64):
        for i in x:
            y[i] = x[i] * h * h

    tape = ds.Tape()
    with tape:
        step(dt)
    for _ in range(2):
        tape.zero()
        tape.backward(grads={y: np.array([1.0, 0.0, 2.0])})
        assert x.grad.to_numpy().tolist() == [0.25, 0.0, 0.5]
        assert dt.grad[None] == 7.0


def test_polar_decomposition_of_the_identity():
    """Wrong by a half."""
    F = ds.Matrix.field(3, 3, ds.f64, (), needs_grad=True)
    W = ds.Matrix.field(3, 3, ds.f64, ())
    loss = number()
    F.from_numpy(np.eye(3))
    w = np.random.default_rng(2).normal(size=(3, 3))
    W.from_numpy(w)

    @ds.kernel
    def run():
        U, _sigma, V = ds.svd(F[None])
        R = U @ V.transpose()
        for i, j in ds.static(ds.ndrange(3, 3)):
            loss[None] += W[None][i, j] * R[i, j]

    with ds.Tape(loss):
        run()
    np.testing.assert_allclose(F.grad.to_numpy(), (w - w.T) / 2, atol=1e-12)


@pytest.mark.parametrize("kind", ["field", "ndarray", "struct", "object"])
def test_the_same_gradient_whatever_holds_the_numbers(kind):
    loss = number()

    @ds.func
    def value(v):
        return ds.sin(v) * v

    if kind == "ndarray":
        x = ds.ndarray(ds.f64, 3, needs_grad=True)

        @ds.kernel
        def total(a: ds.types.ndarray()):
            for i in a:
                loss[None] += value(a[i])

        def run():
            total(x)

    elif kind == "struct":
        bodies = ds.Struct.field({"x": ds.f64, "m": ds.i32}, shape=3, needs_grad=True)
        x = bodies.x

        @ds.kernel
        def run():
            for i in bodies:
                loss[None] += value(bodies[i].x)

    elif kind == "object":

        @ds.data_oriented
        class World:
            def __init__(self):
                self.x = ds.field(ds.f64, 3, needs_grad=True)

            @ds.kernel
            def total(self):
                for i in self.x:
                    loss[None] += value(self.x[i])

        world = World()
        x, run = world.x, world.total
    else:
        x = ds.field(ds.f64, 3, needs_grad=True)

        @ds.kernel
        def run():
            for i in x:
                loss[None] += value(x[i])

    at = np.array([0.3, -1.2, 2.0])
    x.from_numpy(at)
    with ds.Tape(loss):
        run()
    np.testing.assert_allclose(x.grad.to_numpy(), np.cos(at) * at + np.sin(at), rtol=1e-14)
