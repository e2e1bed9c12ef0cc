"""Gradients of intermediate fields, kept where it is clear which value they belong to."""

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")


def fields(n, *shape, dtype=ds.f64):
    return [ds.field(dtype, shape=shape, needs_grad=True) for _ in range(n)]


@pytest.fixture
def chain(cpu):
    """y = x**2, z = sin(y), L = sum of z."""
    x, y, z = fields(3, 4)
    (L,) = fields(1)

    @ds.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    @ds.kernel
    def sine():
        for i in y:
            z[i] = ds.sin(y[i])

    @ds.kernel
    def add():
        for i in z:
            L[None] += z[i]

    X = np.array([0.1, 0.4, 0.9, 1.3])
    x.from_numpy(X)

    def run():
        square()
        sine()
        add()

    return x, y, z, L, run, X


def test_all_of_them(chain):
    x, y, z, L, run, X = chain
    with ds.Tape(L, retain_grad=True):
        run()
    np.testing.assert_allclose(z.grad.to_numpy(), 1)
    np.testing.assert_allclose(y.grad.to_numpy(), np.cos(X**2), rtol=1e-15)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * X * np.cos(X**2), rtol=1e-15)
    with ds.Tape(L):  # an ordinary tape after it
        run()
    assert not y.grad.to_numpy().any()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * X * np.cos(X**2), rtol=1e-15)


@pytest.mark.parametrize("several", [False, True])
def test_one_of_them(chain, several):
    _x, y, z, L, run, X = chain
    with ds.Tape(L, retain_grad=[y] if several else y):
        run()
    np.testing.assert_allclose(y.grad.to_numpy(), np.cos(X**2), rtol=1e-15)
    assert not z.grad.to_numpy().any()


def test_backward_again_adds_up(chain):
    x, y, z, L, run, X = chain
    tape = ds.Tape(retain_grad=True)
    with tape:
        run()
    for k in (1, 2, 3):
        tape.backward(L)
        np.testing.assert_allclose(y.grad.to_numpy(), k * np.cos(X**2), rtol=1e-14)
        np.testing.assert_allclose(x.grad.to_numpy(), k * 2 * X * np.cos(X**2), rtol=1e-14)
    tape.zero()
    tape.backward(grads={z: [1.0, 0.0, 0.0, 2.0]})
    np.testing.assert_allclose(y.grad.to_numpy(), np.cos(X**2) * [1, 0, 0, 2], rtol=1e-14)


@pytest.mark.parametrize("dtype", [ds.f32, ds.f64])
def test_a_trajectory(dtype):
    """Rows of a time axis: the adjoint of every step, against the recursion written out."""
    n, (x,), (L,) = 20, fields(1, 21, dtype=dtype), fields(1, dtype=dtype)

    @ds.kernel
    def step(t: ds.i32):
        x[t + 1] = x[t] - 0.1 * ds.sin(x[t])

    @ds.kernel
    def end():
        L[None] = x[n] ** 2

    x[0] = 1.0
    with ds.Tape(L, retain_grad=True):
        for t in range(n):
            step(t)
        end()
    X = x.to_numpy()
    expected = np.zeros(n + 1)
    expected[n] = 2 * X[n]
    for t in reversed(range(n)):
        expected[t] = expected[t + 1] * (1 - 0.1 * np.cos(X[t]))
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-5 if dtype is ds.f32 else 1e-13)


def test_a_loop_in_a_kernel():
    """Steps inside one kernel: what is read later in the same launch counts too."""
    n, (x, a), (L,) = 6, fields(2, 7), fields(1)

    @ds.kernel
    def roll():
        ds.loop_config(serialize=True)
        for t in range(n):
            x[t + 1] = x[t] * a[t] + 0.5 * x[t] ** 2

    @ds.kernel
    def end():
        L[None] += x[n]

    x[0] = 0.7
    a.from_numpy(np.linspace(0.5, 1.1, n + 1))
    with ds.Tape(L, retain_grad=True):
        roll()
        end()
    X, A = x.to_numpy(), a.to_numpy()
    expected = np.ones(n + 1)
    for t in reversed(range(n)):
        expected[t] = expected[t + 1] * (A[t] + X[t])
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-14)


def test_vectors_matrices_and_arrays():
    v = ds.Vector.field(3, ds.f64, shape=2, needs_grad=True)
    M = ds.Matrix.field(2, 2, ds.f64, shape=2, needs_grad=True, layout=ds.Layout.SOA)
    a = ds.ndarray(ds.types.vector(2, ds.f64), 2, needs_grad=True)
    x, (L,) = fields(1, 2)[0], fields(1)

    @ds.kernel
    def spread(a: ds.types.ndarray()):
        for i in x:
            v[i] = ds.Vector([x[i], 2 * x[i], 3 * x[i]])
            M[i] = ds.Matrix([[x[i], 0.0], [0.0, x[i] ** 2]])
            a[i][0] = x[i]
            a[i].y = 5 * x[i]

    @ds.kernel
    def gather(a: ds.types.ndarray()):
        for i in x:
            L[None] += v[i].dot(v[i]) + 7 * M[i][1, 1] + a[i].x * a[i].y

    x.from_numpy(np.array([0.5, -1.5]))
    for _ in range(2):
        with ds.Tape(L, retain_grad=[v, M, a]):
            spread(a)
            gather(a)
        X = x.to_numpy()
        np.testing.assert_allclose(v.grad.to_numpy(), 2 * v.to_numpy())
        np.testing.assert_allclose(M.grad.to_numpy(), np.array([[[0, 0], [0, 7.0]]] * 2))
        np.testing.assert_allclose(a.grad.to_numpy(), np.stack([5 * X, X], -1))
        np.testing.assert_allclose(x.grad.to_numpy(), 28 * X + 14 * X + 10 * X)


def test_additions_after_a_store():
    """y = x; y += x: the gradient of y, and that of x is twice it."""
    x, y = fields(2, 3)
    (L,) = fields(1)

    @ds.kernel
    def run():
        for i in x:
            y[i] = x[i]

    @ds.kernel
    def more():
        for i in x:
            y[i] += x[i]

    @ds.kernel
    def use():
        for i in y:
            L[None] += y[i] ** 2

    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    with ds.Tape(L, retain_grad=True):
        y.fill(0)
        run()
        more()
        more()
        use()
    np.testing.assert_allclose(y.grad.to_numpy(), 6 * x.to_numpy())
    np.testing.assert_allclose(x.grad.to_numpy(), 18 * x.to_numpy())


@pytest.mark.parametrize("way", ["fill", "element", "copy", "kernel"])
def test_sums_that_are_set_to_0_before(way):
    """What was there before had no effect: no second value."""
    x, _zero = fields(2, 3)
    total, L = fields(2)
    zeros = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def add():
        for i in x:
            total[None] += x[i]

    @ds.kernel
    def clear():
        for i in x:
            total[None] = 0.0

    @ds.kernel
    def cube():
        L[None] = total[None] ** 3

    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    with ds.Tape(L, retain_grad=True):
        if way == "fill":
            total.fill(0)
        elif way == "element":
            total[None] = 0
        elif way == "copy":
            ds.copy(total, zeros)
        else:
            clear()
        add()
        cube()
    assert total.grad[None] == 3 * 36
    assert x.grad.to_numpy().tolist() == [108] * 3


def refused(run, L, wish=True, match="several values", **options):
    with pytest.raises(ds.AutodiffError, match=match) as caught:
        with ds.Tape(L, retain_grad=wish, **options):
            run()
    assert "retain_grad=[" in caught.value.hint
    return caught.value


def test_two_values_that_count_are_refused():
    x, y = fields(2, 3)
    (L,) = fields(1)

    @ds.kernel
    def first():
        for i in x:
            y[i] = x[i]

    @ds.kernel
    def second():
        for i in x:
            if i > 1:
                y[i] = 2 * x[i]

    @ds.kernel
    def use():
        for i in y:
            L[None] += y[i]

    def run():
        first()
        use()
        second()
        use()

    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    error = refused(run, L)
    assert "y[2]" in str(error)
    assert error.span is not None
    with ds.Tape(L, retain_grad=[x]):  # y is left out
        run()
    assert x.grad.to_numpy().tolist() == [2, 2, 3]


def test_in_place_is_refused():
    x, L = fields(1, 3)[0], fields(1)[0]

    @ds.kernel
    def double():
        for i in x:
            x[i] = 2 * x[i]

    @ds.kernel
    def use():
        for i in x:
            L[None] += x[i]

    def run():
        double()
        use()

    for program, how in ((run, {}), (run, {"in_place": "save"}), (lambda: [double(), run()], {})):
        said = str(refused(program, L, **how))
        assert any(f"x[{k}]" in said for k in range(3))  # the first lane to see it says so


def test_two_values_in_one_kernel():
    x, y, z, L = fields(4)

    @ds.kernel
    def run():
        y[None] = x[None]
        z[None] = 2 * y[None]
        y[None] = 3 * x[None]
        L[None] += y[None] + z[None]

    x[None] = 1.0
    refused(run, L)
    with ds.Tape(L, retain_grad=[z]):
        run()
    assert (x.grad[None], z.grad[None]) == (5, 1)


def test_overwritten_without_effect():
    """y is stored twice, and only one of the values is used: it is its gradient."""
    x, y, _z, L = fields(4)

    @ds.kernel
    def store(k: ds.f64):
        y[None] = k * x[None]

    @ds.kernel
    def use():
        L[None] += 3 * y[None]

    with ds.Tape(L, retain_grad=True):
        store(1.0)
        store(2.0)
        use()
    assert (y.grad[None], x.grad[None]) == (3, 6)


def test_a_function_with_its_own_gradient():
    x, y, L = fields(3)

    @ds.kernel
    def double():
        y[None] = 2 * x[None]

    @ds.kernel
    def use():
        L[None] += y[None] ** 2

    @ds.ad.grad_replaced
    def forward():
        double()

    @ds.ad.grad_for(forward)
    def backward():
        double.grad()

    x[None] = 3.0
    with ds.Tape(L, retain_grad=True):
        forward()
        use()
    assert (y.grad[None], x.grad[None]) == (12, 24)
    refused(lambda: [forward(), use(), forward(), use()], L, in_place="save")


def test_checkpointed_steps():
    q, L, total = fields(3)

    @ds.kernel
    def damp():
        q[None] = 0.5 * q[None]

    @ds.kernel
    def use():
        total[None] = q[None]
        L[None] += 2 * total[None]

    q[None] = 1.0

    def run():
        ds.ad.checkpoint(lambda t: damp(), 4, state=[q])
        use()

    refused(run, L)
    with ds.Tape(L, retain_grad=total):
        run()
    assert (q.grad[None], total.grad[None]) == (2 * 0.5**4, 2)


def test_stop_grad_is_no_second_value():
    x, y, L = fields(3)

    @ds.kernel
    def double():
        y[None] = 2 * x[None]

    @ds.kernel
    def use():
        L[None] += y[None]

    with ds.Tape(L, retain_grad=True):
        double()
        use()
        ds.stop_grad(y)
        use()
    assert (y.grad[None], x.grad[None]) == (1, 2)


@pytest.mark.parametrize("threads", [1, 4])
def test_many_turns_store_one_constant(threads):
    ds.init(cpu_max_num_threads=threads)
    n = 20000
    (x,), total, L = fields(1, n), *fields(2)

    @ds.kernel
    def clear():
        for i in x:
            total[None] = 0.0

    @ds.kernel
    def add():
        for i in x:
            total[None] += x[i]

    @ds.kernel
    def end():
        L[None] = 2 * total[None]

    for _ in range(5):
        with ds.Tape(L, retain_grad=True):
            clear()
            add()
            end()
        assert total.grad[None] == 2


def test_what_can_not_be_kept():
    (x,), L = fields(1, 3), fields(1)[0]
    with pytest.raises(ds.MissingGradientError, match="no gradient to keep"):
        ds.Tape(L, retain_grad=[ds.field(ds.f64, shape=3)])
    with pytest.raises(ds.OptionError, match="retain_grad cannot be"):
        ds.Tape(L, retain_grad="y")
    with pytest.raises(ds.OptionError, match="retain_grad cannot be"):
        ds.Tape(L, retain_grad=[x, 3])


def test_what_a_maximum_hands_on_is_not_kept(cpu):
    """It would be 0 silently."""
    x, y = (ds.field(ds.f64, shape=3, needs_grad=True) for _ in range(2))
    top, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(2))

    @ds.kernel
    def double():
        for i in x:
            y[i] = 2 * x[i]

    @ds.kernel
    def largest():
        for i in y:
            ds.atomic_max(top[None], y[i])

    @ds.kernel
    def end():
        loss[None] = top[None] ** 2

    def run(wish):
        x.from_numpy(np.array([1.0, 3.0, 2.0]))
        top[None] = -1.0
        with ds.Tape(loss, retain_grad=wish):
            double()
            largest()
            end()

    with pytest.raises(ds.AutodiffError, match="the gradient of top cannot be kept") as caught:
        run(True)
    assert "ds.atomic_max(top[None], y[i])" in str(caught.value)
    run([y])
    assert y.grad.to_numpy().tolist() == [0, 12, 0]
    assert x.grad.to_numpy().tolist() == [0, 24, 0]


def test_a_store_after_an_addition(cpu):
    """The gradient of the value stored last is kept; that of the first is 0."""
    x, loss = ds.field(ds.f64, shape=3, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def twice():
        for i in x:
            x[i] += 0.5
        for i in x:
            x[i] = 0.25

    @ds.kernel
    def end():
        for i in x:
            loss[None] += (i + 1.0) * x[i]

    with ds.Tape(loss, retain_grad=[x]):
        twice()
        end()
    assert x.grad.to_numpy().tolist() == [1, 2, 3]


def test_a_maximum_of_what_was_stored(cpu):
    x, y = (ds.field(ds.f64, shape=3, needs_grad=True) for _ in range(2))

    @ds.kernel
    def largest():
        for i in x:
            y[i] = 0.5
        for i in x:
            ds.atomic_max(y[i], x[i])

    with ds.Tape(retain_grad=[y]) as tape:
        largest()
    with pytest.raises(ds.AutodiffError, match="the gradient of y cannot be kept: ds"):
        tape.backward(grads={y: 1.0})
