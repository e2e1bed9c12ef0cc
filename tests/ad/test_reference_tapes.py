"""The examples of the reference pages on tapes and arrays, as they are printed there."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from tests.support.gradients import central, numbers
from tests.support.source import line_of

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")
N = 16


# ---- tape_api, array_differentiability


def array(values, grad=True):
    values = np.asarray(values, np.float64)
    a = ds.ndarray(ds.f64, values.shape, needs_grad=grad)
    a.from_numpy(values)
    return a


@ds.kernel
def compute1(a: ds.types.ndarray(), b: ds.types.ndarray()):
    for i in a:
        b[i] = a[i] * a[i]


@ds.kernel
def total(a: ds.types.ndarray(), loss: ds.types.ndarray()):
    for i in a:
        loss[0] += a[i]


def test_backward_of_arrays():
    a, b, loss = array([1, 2, 3]), array([0, 0, 0]), array([0])
    tape = ds.Tape()
    with tape:
        compute1(a, b)
        total(b, loss)
    tape.backward(loss)
    assert tape.gradients[a] is a.grad
    assert set(tape.gradients) == {a, b, loss}
    assert a.grad.to_numpy().tolist() == [2, 4, 6]

    tape.backward(grads={b: np.array([1.0, 10.0, 100.0])})
    assert a.grad.to_numpy().tolist() == [2 + 2, 4 + 40, 6 + 600]
    tape.zero()
    assert [g.to_numpy().any() for g in tape.gradients.values()] == [False] * 3
    seed = array([3, 2, 1], grad=False)
    tape.backward(grads={b: seed})
    assert a.grad.to_numpy().tolist() == [6, 8, 6]
    tape.zero()
    tape.backward(loss, grads={b: 1})  # both: the loss's flows into b too
    assert a.grad.to_numpy().tolist() == [4, 8, 12]

    tape.reset()
    assert not a.grad.to_numpy().any()
    assert (len(tape.entries), tape.gradients) == (0, {})


def test_jacobian_by_rows():
    n = 4
    x, y = array(numbers(n)), array(np.zeros(n))
    A = numbers(n, n, seed=1)
    matrix = array(A, grad=False)

    @ds.kernel
    def f(A: ds.types.ndarray(), x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i, j in A:
            y[i] += A[i, j] * ds.sin(x[j])

    tape = ds.Tape()
    with tape:
        f(matrix, x, y)
    rows = []
    for row in np.eye(n):
        tape.backward(grads={y: row})
        rows.append(x.grad.to_numpy())
        tape.zero()
    np.testing.assert_allclose(rows, A * np.cos(x.to_numpy()), rtol=1e-14)


def test_overwritten_between_kernels():
    """Array overwrite tracking, case A: elsewhere [-2, -4, -6]."""
    a, b = array([1, 2, 3]), array([0, 0, 0])
    c, loss = array([-1, -2, -3]), array([0])

    @ds.kernel
    def overwrite(z: ds.types.ndarray(), x: ds.types.ndarray()):
        for i in z:
            x[i] = z[i]

    tape = ds.Tape()
    with tape:
        compute1(a, b)
        overwrite(c, a)
        total(a, loss)
        total(b, loss)
    with pytest.raises(GlobalDataAccessError) as caught:
        tape.backward(loss)
    assert caught.value.span.line == line_of(compute1, "a[i] * a[i]")
    assert "the kernel overwrite" in str(caught.value) or "overwrite" in str(caught.value)


def test_overwritten_inside_of_a_kernel():
    """Array overwrite tracking, case B: elsewhere [2, 2, 2]."""
    a, b, loss = array([1, 2, 3]), array([0, 0, 0]), array([0])

    @ds.kernel
    def readwrite(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in a:
            b[i] = a[i] * a[i]
            a[i] = 1.0

    with pytest.raises(GlobalDataAccessError, match=r"a\[i\] = 1\.0"):
        with ds.Tape(loss):
            readwrite(a, b)
            total(b, loss)


@ds.kernel
def dynamic_loop_sum(x: ds.types.ndarray(), loss: ds.types.ndarray(), iters: ds.i32):
    s = 0.0
    ds.loop_config(serialize=True)
    for i in range(iters):
        s += x[i]
    loss[0] += s


@ds.kernel
def dynamic_loop_mult(x: ds.types.ndarray(), loss: ds.types.ndarray(), iters: ds.i32):
    prod = x[0] * 0.0 + 1.0
    ds.loop_config(serialize=True)
    for i in range(iters):
        prod *= x[i]
    loss[0] += prod


@ds.kernel
def weighted_mean(
    x: ds.types.ndarray(), weights: ds.types.ndarray(), loss: ds.types.ndarray(), iters: ds.i32
):
    s = x[0] * 0.0
    norm = x[0] * 0.0
    ds.loop_config(serialize=True)
    for i in range(iters):
        w = weights[i]
        norm += w
        s += x[i] * w
    loss[0] += s / norm


def test_dynamic_loops():
    ds.init(default_fp=ds.f64)  # that of the arrays
    for kernel, expected in (
        (dynamic_loop_sum, [1, 1, 1]),
        (dynamic_loop_mult, [4, 4, 4]),
    ):
        x, loss = array([2, 2, 2]), array([0])
        tape = ds.Tape()
        with tape:
            kernel(x, loss, 3)
        tape.backward(loss)
        assert x.grad.to_numpy().tolist() == expected

    x, loss, weights = array([1, 2, 4]), array([0]), array([0.5, 0.5, 0.5])
    tape = ds.Tape()
    with tape:
        weighted_mean(x, weights, loss, 3)
    tape.backward(loss)
    np.testing.assert_allclose(x.grad.to_numpy(), [1 / 3] * 3)
    mean = 7 / 3
    np.testing.assert_allclose(weights.grad.to_numpy(), (np.array([1, 2, 4]) - mean) / 1.5)


def test_arrays_of_vectors():
    x = ds.ndarray(ds.types.vector(3, ds.f64), 5, needs_grad=True)
    loss = array([0])
    X = numbers(5, 3)
    x.from_numpy(X)

    @ds.kernel
    def lengths(x: ds.types.ndarray(), loss: ds.types.ndarray()):
        for i in x:
            loss[0] += x[i].norm()

    tape = ds.Tape()
    with tape:
        lengths(x, loss)
    tape.backward(loss)
    np.testing.assert_allclose(
        x.grad.to_numpy(), X / np.linalg.norm(X, axis=1, keepdims=True), rtol=1e-13
    )


def test_backward_needs_a_start():
    a, b = array([1, 2]), array([0, 0], grad=False)
    tape = ds.Tape()
    with tape:
        pass
    with pytest.raises(ds.AutodiffError, match=r"tape\.backward\(loss\)"):
        tape.backward()
    with pytest.raises(ds.MissingGradientError):
        tape.backward(grads={b: 1.0})
    with pytest.raises(ds.FieldError):
        tape.backward(a)
    with tape:
        with pytest.raises(ds.AutodiffError, match="nested"):
            with ds.Tape():
                pass
        with pytest.raises(ds.AutodiffError, match="while a tape is recording"):
            tape.backward(grads={a: 1})


@ds.kernel
def double(x: ds.types.ndarray(), y: ds.types.ndarray()):
    for tid in x:
        y[tid] = x[tid] * 2.0


@pytest.mark.parametrize("way", ["copy", "clone", "assign"])
def test_copying_is_differentiable(way):
    """Printed there: [2. 2. 2.]."""
    x = array(np.arange(3))
    y, z = array(np.zeros(3)), array(np.zeros(3))
    tape = ds.Tape()
    with tape:
        double(x, y)
        if way == "copy":
            ds.copy(z, y)
        elif way == "clone":
            z = ds.clone(y, needs_grad=True)
        else:
            z.assign(y)
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.to_numpy().tolist() == [2, 2, 2]
    assert z.to_numpy().tolist() == [0, 2, 4]


def test_clone_and_detach():
    x, loss = array(np.arange(3)), array([0])
    tape = ds.Tape()
    with tape:
        y = ds.clone(x, needs_grad=False)
        total(y, loss)
    tape.backward(loss)
    assert (loss[0], x.grad.to_numpy().tolist()) == (3, [0, 0, 0])


def test_assign_of_what_is_no_array():
    z = array(np.zeros(3))
    z.assign([1, 2, 3])
    assert z.to_numpy().tolist() == [1, 2, 3]


def test_jacobians_of_several_environments():
    """Block-diagonal: one row of all environments' Jacobians in each backward pass."""
    envs, n, m = 3, 4, 2
    A = numbers(m, n, seed=2)
    x, y = array(numbers(envs * n)), array(np.zeros(envs * m))
    matrix = array(A, grad=False)

    @ds.kernel
    def f(A: ds.types.ndarray(), x: ds.types.ndarray(), y: ds.types.ndarray(), envs: ds.i32):
        for e, i, j in ds.ndrange(envs, 2, 4):
            y[e * 2 + i] += A[i, j] * x[e * 4 + j] ** 2

    tape = ds.Tape()
    with tape:
        f(matrix, x, y, envs)
    jacobians = np.empty((envs, m, n))
    for k in range(m):
        select = np.zeros(m)
        select[k] = 1
        tape.backward(grads={y: np.tile(select, envs)})
        jacobians[:, k, :] = tape.gradients[x].to_numpy().reshape(envs, n)
        tape.zero()
    X = x.to_numpy().reshape(envs, 1, n)
    np.testing.assert_allclose(jacobians, 2 * A * X, rtol=1e-14)
    whole = ds.ad.jacobian(lambda: f(matrix, x, y, envs), [x], [y])[x, y]
    blocks = whole.reshape(envs, m, envs, n)
    for e in range(envs):
        np.testing.assert_allclose(blocks[e, :, e], jacobians[e], rtol=1e-14)


def test_a_safe_root():
    """Elsewhere [0.5, 0.354, inf] without a gradient by hand; here the derivative at 0 is 0."""
    xs, ys = array([1.0, 2.0, 0.0]), array(np.zeros(3))

    @ds.func
    def safe_sqrt(x):
        return ds.sqrt(x)

    @ds.kernel
    def run_safe_sqrt(xs: ds.types.ndarray(), output: ds.types.ndarray()):
        for i in xs:
            output[i] = safe_sqrt(xs[i])

    tape = ds.Tape()
    with tape:
        run_safe_sqrt(xs, ys)
    tape.backward(grads={ys: np.ones(3)})
    np.testing.assert_allclose(ys.to_numpy(), [1, 1.4142135, 0], rtol=1e-6)
    np.testing.assert_allclose(xs.grad.to_numpy(), [0.5, 0.35355338, 0], rtol=1e-6)


def test_an_index_from_an_atomic():
    """Elsewhere [4, 0, 0, ...]: the adjoint does not know which turn got which index. Here: refused."""
    n = 8
    x, out = array(np.arange(1, n + 1)), array(np.zeros(n))
    counter, ids = ds.field(ds.i32, shape=()), ds.field(ds.i32, shape=n)

    @ds.kernel
    def test_add(input: ds.types.ndarray(), output: ds.types.ndarray()):
        for tid in input:
            idx = ds.atomic_add(counter[None], 1)
            output[idx] = ds.sqrt(input[idx])

    tape = ds.Tape()
    with tape:
        test_add(x, out)
    with pytest.raises(ds.AutodiffError) as caught:
        tape.backward(grads={out: np.ones(n)})
    assert caught.value.span.line in (
        line_of(test_add, "ds.atomic_add"),
        line_of(test_add, "output["),
    )

    @ds.kernel
    def draw():  # the indices, in a launch of their own
        for tid in ids:
            ids[tid] = ds.atomic_add(counter[None], 1)

    @ds.kernel
    def roots(input: ds.types.ndarray(), output: ds.types.ndarray()):
        for tid in ids:
            output[tid] = ds.sqrt(input[ids[tid]])

    counter.fill(0)
    tape = ds.Tape()
    with tape:
        draw()
        roots(x, out)
    assert sorted(ids.to_numpy()) == list(range(n))
    tape.backward(grads={out: np.ones(n)})
    np.testing.assert_allclose(x.grad.to_numpy(), 0.5 / np.sqrt(np.arange(1, n + 1)), rtol=1e-15)
    printed = [0.5, 0.35355338, 0.28867513, 0.25, 0.2236068, 0.20412414, 0.18898225, 0.17677669]
    np.testing.assert_allclose(x.grad.to_numpy(), printed, rtol=1e-7)


def test_saxpy():
    n, a = 128, 2.0
    x, y = array(np.arange(n)), array(np.ones(n))
    out = array(np.arange(n))

    @ds.kernel
    def saxpy(a: ds.f64, x: ds.types.ndarray(), y: ds.types.ndarray(), out: ds.types.ndarray()):
        for tid in x:
            out[tid] = a * x[tid] + y[tid]

    tape = ds.Tape()
    with tape:
        saxpy(a, x, y, out)
    tape.backward(grads={out: np.ones(n)})
    assert x.grad.to_numpy().tolist() == [2] * n
    assert y.grad.to_numpy().tolist() == [1] * n


def test_a_square_in_a_func():
    x, y = array(np.arange(5)), array(np.zeros(5))

    @ds.func
    def square(v):
        return v * v

    @ds.kernel
    def square_kernel(input: ds.types.ndarray(), output: ds.types.ndarray()):
        for i in input:
            output[i] = square(input[i])

    tape = ds.Tape()
    with tape:
        square_kernel(x, y)
    tape.backward(grads={y: np.ones(5)})
    assert x.grad.to_numpy().tolist() == [0, 2, 4, 6, 8]


def test_a_tape_is_checked_launch_by_launch():
    a, b = array([2.0, -1.0]), array([3.0, 1.0])
    out1, c, out2 = (array(np.zeros(2)) for _ in range(3))

    @ds.kernel
    def my_kernel_1(
        a: ds.types.ndarray(),
        b: ds.types.ndarray(),
        out1: ds.types.ndarray(),
        c: ds.types.ndarray(),
    ):
        for i in a:
            out1[i] = ds.sin(a[i]) * b[i]
            c[i] = a[i] ** 2 + b[i]

    @ds.kernel
    def my_kernel_2(c: ds.types.ndarray(), out2: ds.types.ndarray()):
        for i in c:
            out2[i] = ds.exp(-c[i])

    tape = ds.Tape()
    with tape:
        my_kernel_1(a, b, out1, c)
        my_kernel_2(c, out2)
    assert ds.ad.gradcheck_tape(tape, raise_exception=False, show_summary=True)


def test_overwritten_and_saved():
    """Array overwrite tracking, both cases, with a tape that keeps what is overwritten: [2, 4, 6]."""
    a, b, c = array([1, 2, 3]), array([0, 0, 0]), array([-1, -2, -3])
    loss = array([0])

    @ds.kernel
    def overwrite(z: ds.types.ndarray(), x: ds.types.ndarray()):
        for i in z:
            x[i] = z[i]

    @ds.kernel
    def readwrite(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in a:
            b[i] = a[i] * a[i]
            a[i] = 1.0

    with ds.Tape(loss, in_place="save"):
        compute1(a, b)
        overwrite(c, a)
        total(b, loss)
    assert a.grad.to_numpy().tolist() == [2, 4, 6]
    a.from_numpy(np.array([1.0, 2.0, 3.0]))
    with ds.Tape(loss, in_place="save"):
        readwrite(a, b)
        total(b, loss)
    assert a.grad.to_numpy().tolist() == [2, 4, 6]


def test_forces_of_two_steps():
    """Array overwrite tracking, the first example: one array of forces for two steps."""
    pos, vel = ([array(numbers(4, seed=k)) for k in range(s, s + 3)] for s in (0, 3))
    force, loss = array(np.zeros(4)), array([0])

    @ds.kernel
    def compute_forces(p: ds.types.ndarray(), v: ds.types.ndarray(), f: ds.types.ndarray()):
        for i in p:
            f[i] = -ds.sin(p[i]) - 0.1 * v[i] * v[i]

    @ds.kernel
    def simulate(
        p: ds.types.ndarray(),
        v: ds.types.ndarray(),
        f: ds.types.ndarray(),
        p2: ds.types.ndarray(),
        v2: ds.types.ndarray(),
    ):
        for i in p:
            v2[i] = v[i] + 0.1 * f[i] * f[i]
            p2[i] = p[i] + 0.1 * v2[i]

    def run():
        for k in range(2):
            compute_forces(pos[k], vel[k], force)
            simulate(pos[k], vel[k], force, pos[k + 1], vel[k + 1])
        total(pos[2], loss)

    with pytest.raises(GlobalDataAccessError, match="compute_forces"):
        with ds.Tape(loss):
            run()
    with pytest.raises(GlobalDataAccessError, match=r"f\[0\] was read and is then overwritten"):
        with ds.Tape(loss, validation=True):
            run()

    with ds.Tape(loss, in_place="save"):
        run()
    found = pos[0].grad.to_numpy()

    def value(P):
        p, v = P, vel[0].to_numpy()
        for _ in range(2):
            f = -np.sin(p) - 0.1 * v * v
            v = v + 0.1 * f * f
            p = p + 0.1 * v
        return p.sum()

    np.testing.assert_allclose(found, central(value, pos[0].to_numpy()), rtol=1e-8)


def test_a_picture_of_a_tape():
    a, c = array([2.0], grad=False), array([4.0], grad=False)
    b, e, result = array([3.0]), array([5.0]), array([0.0])

    @ds.kernel
    def add(a: ds.types.ndarray(), b: ds.types.ndarray(), c: ds.types.ndarray()):
        for tid in a:
            c[tid] = a[tid] + b[tid]

    tape = ds.Tape()
    with tape:
        add(b, e, a)
        tape.record_scope_begin("Custom Scope")
        add(a, b, c)
        tape.record_scope_end()
        add(c, a, result)
    text = tape.visualize(array_labels={a: "a", b: "b", c: "c", e: "e", result: "result"})
    assert text.count("shape=box") == 3
    assert 'label="Custom Scope"' in text
    with pytest.raises(
        ds.MissingGradientError
    ):  # what the picture is to help with is an error here
        tape.backward(grads={result: 1.0})
