"""`ds.ad.hvp` and `ds.ad.hessian`: against differences of gradients, symmetry, closed forms; refusals."""

import numpy as np
import pytest

import diffsim as ds
from tests.support import gradients

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture
def f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64)


def numbers(*shape):
    return gradients.numbers(*shape, lo=0.2, hi=1.2)


def field(values, element=()):
    """A field with a gradient that holds these values."""
    made = gradients.field(values.shape[: values.ndim - len(element)], n=(*element, None)[0])
    made.from_numpy(values)
    return made


def scalar():
    return ds.field(ds.f64, shape=(), needs_grad=True)


def gradient(fn, x, loss):
    with ds.Tape(loss, in_place="save"):
        fn()
    return x.grad.to_numpy()


def check(fn, x, loss, reset=lambda: None):
    """Compare the Hessian with differences of gradients, and a product with it; return it."""
    start = x.to_numpy()
    n, h = start.size, 1e-6

    def run():
        reset()
        fn()

    found = ds.ad.hessian(run, x, loss=loss)
    assert found.shape == (n, n)
    columns = []
    for unit in np.eye(n).reshape(n, *start.shape):
        ends = []
        for step in (h, -h):
            x.from_numpy(start + step * unit)
            ends.append(gradient(run, x, loss).ravel())
        columns.append((ends[0] - ends[1]) / (2 * h))
    x.from_numpy(start)
    size = np.abs(found).max()
    assert size > 1e-3  # there is something to see
    np.testing.assert_allclose(found, np.array(columns).T, rtol=1e-5, atol=1e-6 * size)
    np.testing.assert_allclose(found, found.T, rtol=1e-10, atol=1e-12 * size)
    v = np.random.default_rng(1).uniform(-1, 1, start.shape)
    product = ds.ad.hvp(run, x, v, loss=loss)
    np.testing.assert_allclose(product.ravel(), found @ v.ravel(), rtol=1e-10, atol=1e-12 * size)
    x.from_numpy(start)
    np.testing.assert_array_equal(x.grad.to_numpy(), gradient(run, x, loss))  # it comes for free
    x.from_numpy(start)
    return found


def test_closed_form(f64):
    x, loss = field(numbers(4)), scalar()

    @ds.kernel
    def energy():
        for i in range(3):
            loss[None] += (x[i + 1] - x[i]) ** 4 + ds.exp(x[i])

    found = ds.ad.hessian(energy, x, loss=loss)
    a = x.to_numpy()
    want = np.diag([*np.exp(a[:3]), 0.0])
    for i in range(3):
        want[i : i + 2, i : i + 2] += 12 * (a[i + 1] - a[i]) ** 2 * np.array([[1, -1], [-1, 1]])
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-14)


def test_a_chain_in_place(f64):
    """Each launch overwrites what the adjoints of earlier ones need, and its tangents."""
    x, y, loss = field(numbers(5)), field(np.zeros(5)), scalar()

    @ds.kernel
    def start():
        for i in x:
            y[i] = ds.sin(x[i]) * x[i]

    @ds.kernel
    def step(a: ds.f64):
        for i in x:
            y[i] = a * y[i] * y[i] + x[i] * y[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i] ** 2 * y[(i + 1) % 5]

    def run():
        start()
        for k in range(4):
            step(0.3 + 0.1 * k)
        total()

    check(run, x, loss)


def test_a_state_in_place_is_itself_the_input(f64):
    x, v, loss = field(numbers(4)), field(numbers(4)), scalar()
    at = x.to_numpy(), v.to_numpy()

    @ds.kernel
    def step():
        for i in x:
            v[i] -= 0.1 * ds.sin(x[i]) * x[(i + 1) % 4]
        for i in x:
            x[i] += 0.1 * v[i] * v[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i] ** 3 * v[i]

    def run():
        for _ in range(3):
            step()
        total()

    def found_at(a, b):
        x.from_numpy(a)
        v.from_numpy(b)
        return ds.ad.hessian(run, [x, v], loss=loss)

    h = found_at(*at)
    assert h.shape == (8, 8)
    np.testing.assert_allclose(h, h.T, rtol=1e-10, atol=1e-13)
    columns = []
    for unit in np.eye(8) * 1e-6:
        ends = []
        for s in (1, -1):
            x.from_numpy(at[0] + s * unit[:4])
            v.from_numpy(at[1] + s * unit[4:])
            with ds.Tape(loss, in_place="save"):
                run()
            ends.append(np.concatenate([x.grad.to_numpy(), v.grad.to_numpy()]))
        columns.append((ends[0] - ends[1]) / 2e-6)
    np.testing.assert_allclose(h, np.array(columns).T, rtol=1e-6, atol=1e-7)


def test_rows_of_a_time_axis(f64):
    x, k, loss = field(np.zeros((6, 3))), field(numbers(3)), scalar()

    @ds.kernel
    def step(t: ds.i32):
        for i in range(3):
            x[t + 1, i] = x[t, i] + 0.2 * ds.sin(k[i] * x[t, i] + 1.0)

    @ds.kernel
    def total():
        for i in range(3):
            loss[None] += x[5, i] * x[5, (i + 1) % 3]

    def run():
        for t in range(5):
            step(t)
        total()

    check(run, k, loss)


def test_vectors_loops_branches_and_extremes(f64):
    x, loss = field(numbers(4, 2), element=(2,)), scalar()
    y, top = field(np.zeros(4)), scalar()

    @ds.kernel
    def work():
        for i in x:
            w = x[i]
            for _ in range(3):
                w = w + 0.1 * ds.Vector([w.y * w.x, ds.sin(w.x)])
            if w.x > w.y:
                w = w * w.norm()
            y[i] = w.dot(x[i]) * w.normalized().x

    @ds.kernel
    def largest():
        for i in y:
            ds.atomic_max(top[None], y[i])

    @ds.kernel
    def total():
        for i in y:
            loss[None] += y[i] * top[None]

    def run():
        top[None] = -100.0
        work()
        largest()
        total()

    check(run, x, loss)


def test_loops_within_loops(f64):
    """Saved values of a reversed loop have tangents."""
    x, loss = field(numbers(3)), scalar()

    @ds.kernel
    def work():
        for i in x:
            a = x[i]
            k = 0
            while a < 2.0 and k < 30:
                for j in range(k % 3):
                    a = a * (1.0 + 0.05 * x[j])
                a += 0.1 * x[i]
                k += 1
            loss[None] += a * a

    check(work, x, loss)


def test_copies_fills_and_writes_from_python(f64):
    x, y, z = field(numbers(4)), field(np.zeros(4)), field(np.zeros(4))
    loss = scalar()

    @ds.kernel
    def square():
        for i in y:
            z[i] = 2.0 * z[i] * y[i] * y[i] + 0.3

    @ds.kernel
    def total():
        for i in y:
            loss[None] += z[i] * z[(i + 1) % 4]

    def run():
        z.fill(0.5)
        y.copy_from(x)
        square()
        y[1] = 0.25
        square()
        ds.copy(y, z, dest_offset=0, src_offset=1, count=3)
        square()
        y.copy_from(z)
        y[0] = 2.0
        square()
        total()

    check(run, x, loss)


def test_several_vectors_share_a_run(f64):
    x, y, loss = field(numbers(3)), field(numbers(3)), scalar()

    @ds.kernel
    def energy():
        for i in x:
            loss[None] += ds.exp(x[i] * y[i]) * x[(i + 1) % 3]

    h = ds.ad.hessian(energy, [x, y], loss=loss)
    for count in (1, 3, 6):
        v = np.random.default_rng(count).uniform(-1, 1, (count, 6))
        by_x, by_y = ds.ad.hvp(energy, [x, y], [v[:, :3], v[:, 3:]], loss=loss)
        np.testing.assert_allclose(np.hstack([by_x, by_y]), v @ h, rtol=1e-10)


def test_what_a_kernel_returns_is_a_loss(f64):
    x = field(numbers(3))

    @ds.kernel
    def energy() -> ds.f64:
        s = 0.0
        for i in range(3):
            s += x[i] ** 3
        return s

    found = ds.ad.hessian(energy, x)
    np.testing.assert_allclose(found, np.diag(6 * x.to_numpy()), rtol=1e-12)
    product = ds.ad.hvp(lambda: energy(), x, np.ones((2, 3)))
    np.testing.assert_allclose(product, np.tile(6 * x.to_numpy(), (2, 1)), rtol=1e-12)


def test_arrays_as_arguments(f64):
    x, loss = ds.ndarray(ds.f64, 4, needs_grad=True), scalar()
    y, z = (ds.ndarray(ds.f64, 4, needs_grad=True) for _ in range(2))
    x.from_numpy(numbers(4))

    @ds.kernel
    def cube(a: ds.types.ndarray(), b: ds.types.ndarray(), weight: ds.types.ndarray()):
        for i in a:
            b[i] = a[i] ** 3 * weight[i] + b[i] * b[i]

    @ds.kernel
    def total(b: ds.types.ndarray()):
        for i in b:
            loss[None] += b[i] * b[(i + 1) % 4]

    weight = numbers(4)

    def run():
        y.fill(0.5)
        z.fill(0.1)
        cube(x, y, weight)
        cube(y, z, weight)
        cube(x, y, weight)
        cube(z, y, weight)
        total(y)

    for _ in range(2):  # a second launch, of the same variant
        check(run, x, loss)


def test_rules_that_are_lifted(cpu):
    """No field but the loss declares a gradient; a kernel whose tasks are launched one by one."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules="lifted")
    x, y = (ds.field(ds.f64, shape=4) for _ in range(2))
    loss = ds.field(ds.f64, shape=())
    x.from_numpy(numbers(4))

    @ds.kernel
    def work():
        s = 0.0
        for i in x:
            s += x[i] * x[i]
        for i in x:
            y[i] = s * x[i]
        for i in x:
            y[i] = y[i] * y[i] + x[i]
        for i in range(4):
            loss[None] += y[i] * y[(i + 1) % 4]

    h = ds.ad.hessian(work, x, loss=loss)
    a = x.to_numpy()

    def energy(a):
        y = (a @ a * a) ** 2 + a
        return np.sum(y * np.roll(y, -1))

    eye = np.eye(4) * 1e-4
    four = [
        [
            sum(p * q * energy(a + p * u + q * v) for p in (1, -1) for q in (1, -1)) / 4e-8
            for v in eye
        ]
        for u in eye
    ]
    np.testing.assert_allclose(h, four, rtol=1e-5, atol=1e-5 * np.abs(h).max())
    np.testing.assert_allclose(h, h.T, rtol=1e-10)
    assert x.grad is None


def test_checkpointed_rollouts_run_as_they_stand(f64):
    x, y, loss = field(numbers(3)), field(np.zeros(3)), scalar()

    @ds.kernel
    def step():
        for i in x:
            y[i] = y[i] + 0.1 * ds.sin(x[i] * y[i] + 1.0)

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i] * y[(i + 1) % 3]

    def run():
        y.fill(1.0)
        ds.ad.checkpoint(lambda t: step(), 7, state=[y], snapshots=2)
        total()

    check(run, x, loss)


def test_constants_on_purpose(f64):
    x, y, z, loss = field(numbers(3)), field(np.zeros(3)), field(np.zeros(3)), scalar()

    @ds.kernel
    def square(k: ds.f64):
        for i in x:
            y[i] = k * x[i] * x[i]

    @ds.kernel
    def other():
        for i in x:
            z[i] = x[i] * y[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i] * x[i] + z[i] * x[i]

    def run():
        square(2.0)
        other()
        with ds.ad.no_grad():
            square(1.0)  # y holds constants from here on
        ds.stop_grad(z)
        total()

    np.testing.assert_array_equal(ds.ad.hessian(run, x, loss=loss), np.zeros((3, 3)))

    def less():
        square(2.0)
        other()  # 2 x^3
        with ds.ad.no_grad():
            square(1.0)
        total()

    np.testing.assert_allclose(
        ds.ad.hessian(less, x, loss=loss), np.diag(24 * x.to_numpy() ** 2), rtol=1e-12
    )


def test_what_python_declares_constant_is_no_input(f64):
    """A write in `no_grad` to a field that has a vector, before anything has used it."""
    x, y, loss = field(numbers(3)), field(np.zeros(3)), scalar()

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i] ** 3

    def run(*, last):
        with ds.ad.no_grad():
            x.fill(0.5)
        if last:
            x.fill(0.5)  # the last of several writes says what x is
        y.copy_from(x)
        total()

    for last in (False, True):
        product = ds.ad.hvp(lambda last=last: run(last=last), x, np.ones(3), loss=loss)
        np.testing.assert_array_equal(product, 3.0 * last)
        np.testing.assert_array_equal(x.grad.to_numpy(), 0.75 * last)


def test_random_numbers_are_those_of_the_launch(f64):
    x, loss = field(numbers(3)), scalar()

    @ds.kernel
    def energy():
        for i in x:
            loss[None] += ds.random(ds.f64) * x[i] ** 2

    h = ds.ad.hessian(energy, x, loss=loss)
    # Each run of the function draws numbers of its own, but for those of one Hessian.
    value = loss[None]
    assert 0.5 * np.diag(h) @ x.to_numpy() ** 2 == pytest.approx(value, rel=1e-12)
    assert len(set(np.diag(h))) == 3


def test_single_precision_and_no_dependence(cpu):
    ds.init(arch=ds.cpu)
    x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    x.from_numpy(np.array([1, 2, 3], np.float32))

    @ds.kernel
    def energy():
        for i in x:
            loss[None] += x[i] ** 3

    by_x, by_y = ds.ad.hvp(energy, [x, y], [np.ones(3), np.ones(3)], loss=loss)
    assert by_x.dtype == np.float32
    np.testing.assert_allclose(by_x, [6, 12, 18], rtol=1e-6)
    np.testing.assert_array_equal(by_y, 0)


# ---- refusals


def refused(kind, fn, *args, **options):
    with pytest.raises(kind) as caught:
        ds.ad.hvp(fn, *args, **options)
    return caught.value


def test_given_gradients_have_no_tangent(f64):
    x, y, loss = field(numbers(3)), field(np.zeros(3)), scalar()

    @ds.func
    def soft(a):
        return ds.sqrt(a * a)

    @ds.func_grad(soft)
    def soft_grad(a, g):
        ds.adjoint[a] += g

    @ds.kernel
    def energy():
        for i in x:
            loss[None] += soft(x[i])

    error = refused(ds.AutodiffError, energy, x, np.ones(3), loss=loss)
    assert "soft has a gradient of its own" in error.message
    assert "soft(x[i])" in str(error)

    @ds.kernel
    def copy():
        for i in x:
            y[i] = x[i]

    @ds.ad.grad_replaced
    def replaced():
        copy()

    @ds.ad.grad_for(replaced)
    def backward():
        copy.grad()

    error = refused(ds.AutodiffError, replaced, x, np.ones(3), loss=loss)
    assert "replaced has a gradient of its own" in error.message
    assert "replaced" in str(error)


def test_solves_have_no_tangent(f64):
    x, b, loss = field(np.zeros(2)), field(numbers(2)), scalar()

    @ds.kernel
    def energy():
        for i in x:
            loss[None] += x[i] ** 2

    def run():
        ds.ad.linear_solve(np.array([[2.0, 1.0], [1.0, 3.0]]), b, out=x)
        energy()

    error = refused(ds.AutodiffError, run, b, np.ones(2), loss=loss)
    assert "linear_solve" in error.message


def test_values_in_python_are_refused(f64):
    x, y, loss = field(numbers(3)), scalar(), scalar()

    @ds.kernel
    def first() -> ds.f64:
        return x[0] * x[0]

    @ds.kernel
    def energy(a: ds.f64):
        loss[None] += a * x[1]

    def stores():
        y[None] = first()

    for fn, says in (
        (stores, "is given a number that a kernel returned"),
        (lambda: energy(first()), "is given a number that a kernel returned"),
        (lambda: first() * 2.0, "Python computes with a number that a kernel returned"),
        (lambda: energy(float(y.to_numpy()) + x[0]), "a number that Python took from x"),
    ):
        error = refused(ds.AutodiffError, fn, x, np.ones(3), loss=loss)
        assert says in error.message
    # Nothing is left recording.
    energy(2.0)


def test_what_does_not_fit(f64):
    x, loss = field(numbers(3)), scalar()
    plain, whole = ds.field(ds.f64, shape=3), ds.field(ds.i32, shape=3)

    @ds.kernel
    def energy():
        for i in x:
            loss[None] += x[i] ** 2

    ones = np.ones(3)
    error = refused(ds.ArgumentError, energy, x, np.ones(2), loss=loss)
    assert "the vector of" in error.message
    for args in (
        ([x], ones[:2]),
        ([x, x], [ones, ones]),
        ([], []),
        (whole, ones),
        (3, ones),
        (x, None),
    ):
        refused(ds.ArgumentError, energy, *args, loss=loss)
    refused(ds.MissingGradientError, energy, plain, ones, loss=loss)
    assert "returns nothing" in refused(ds.ArgumentError, energy, x, ones).message
    refused(ds.ArgumentError, lambda: x, x, ones)
    with ds.Tape(loss):
        energy()
        error = refused(ds.AutodiffError, energy, x, ones, loss=loss)
    assert "a tape is recording already" in error.message
    with ds.ad.FwdMode(loss=loss, param=x, seed=ones):
        error = refused(ds.AutodiffError, energy, x, ones, loss=loss)
        energy()
    assert "forward mode is on already" in error.message

    def nested():
        energy()
        with ds.Tape(loss):
            energy()

    error = refused(ds.AutodiffError, nested, x, ones, loss=loss)
    assert "already" in error.message
    np.testing.assert_allclose(ds.ad.hvp(energy, x, ones, loss=loss), 2.0)


def test_state_that_is_needed_twice_is_restored_after_the_run(f64):
    """The run ends with the values that the function left, as a run without derivatives."""
    x, y, loss = field(numbers(3)), field(np.ones(3)), scalar()

    @ds.kernel
    def step():
        for i in x:
            y[i] = y[i] * y[i] * x[i] + 0.5

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i] ** 2

    def run():
        for _ in range(3):
            step()
        total()

    run()
    want, energy = y.to_numpy(), loss[None]
    for derive in (
        lambda: ds.ad.hvp(run, x, np.ones(3), loss=loss),
        lambda: ds.ad.hessian(run, x, loss=loss),
    ):
        y.fill(1.0)
        derive()
        np.testing.assert_array_equal(y.to_numpy(), want)
        assert loss[None] == energy
