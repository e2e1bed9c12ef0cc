"""Jacobians, comparisons with central differences, and pictures of tapes."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.session import session

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")


def fields(n, *shape, dtype=ds.f64):
    return [ds.field(dtype, shape=shape, needs_grad=True) for _ in range(n)]


def state(*fs):
    return [(f.to_numpy().copy(), f.grad.to_numpy().copy()) for f in fs]


def same(a, b):
    return all(
        np.array_equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def test_jacobian_against_the_closed_form():
    x, y = fields(2, 3)

    @ds.kernel
    def f():
        for i in x:
            y[i] = x[i] ** 2 * x[(i + 1) % 3]

    X = np.array([1.0, 2.0, 3.0])
    x.from_numpy(X)
    y.fill(5.0)
    x.grad.fill(7.0)
    before = state(x, y)
    J = ds.ad.jacobian(f, [x], [y])[x, y]
    expected = np.diag(2 * X * np.roll(X, -1)) + np.roll(np.diag(np.roll(X, 0) ** 2), 1, axis=1)
    np.testing.assert_allclose(J, expected, rtol=1e-14)
    np.testing.assert_allclose(ds.ad.jacobian_fd(f, [x], [y])[x, y], expected, rtol=1e-8, atol=1e-9)
    assert same(before, state(x, y))
    part = ds.ad.jacobian(f, x, y, max_outputs=1)[x, y]
    np.testing.assert_allclose(part[0], expected[0])
    assert np.isnan(part[1:]).all()
    part = ds.ad.jacobian_fd(f, x, y, max_inputs=2)[x, y]
    assert np.isnan(part[:, 2]).all()
    assert not np.isnan(part[:, :2]).any()


def test_programs_that_overwrite_add_and_draw():
    """In place, sums, random numbers, copies: all put back, all equal."""
    x, y = fields(2, 3)
    (total,) = fields(1)

    @ds.kernel
    def turn(k: ds.f64):
        for i in x:
            x[i] = ds.sin(x[i]) * k + 0.1 * ds.random()

    @ds.kernel
    def add():
        for i in x:
            total[None] += x[i] * y[i]

    def program():
        turn(1.5)
        ds.copy(y, x)
        turn(0.5)
        add()

    x.from_numpy(np.array([0.3, 0.8, -0.4]))
    y.from_numpy(np.array([1.0, 2.0, 3.0]))
    total[None] = 11.0
    before = state(x, y, total)
    assert ds.ad.gradcheck(program, [x, y], [x, y, total])
    assert same(before, state(x, y, total))
    J = ds.ad.jacobian(program, [x, y], [total])
    assert not J[y, total].any()


def test_a_wrong_gradient_is_found():
    x, y = fields(2, 2)

    @ds.kernel
    def f():
        for i in x:
            y[i] = x[i] ** 3

    @ds.ad.grad_replaced
    def forward():
        f()

    @ds.ad.grad_for(forward)
    def backward():
        x.grad.from_numpy(2 * y.grad.to_numpy())
        y.grad.fill(0)

    x.from_numpy(np.array([1.0, 2.0]))
    with pytest.raises(
        ds.AutodiffError, match=r"d y\[0\] / d x\[0\] is 2 by the tape and [23]\.?\d* by"
    ):
        ds.ad.gradcheck(forward, [x], [y])
    assert ds.ad.gradcheck(f, [x], [y])
    assert not ds.ad.gradcheck(forward, [x], [y], raise_exception=False)
    assert not ds.ad.gradcheck(forward, [x], [y], raise_exception=False, max_inputs=1)
    assert ds.ad.gradcheck(forward, [x], [y], rtol=5.0)


def test_f32_and_vectors(capsys):
    """The reference's example: vectors of several lengths in one kernel."""
    a = ds.ndarray(ds.f32, 2, needs_grad=True)
    b = ds.ndarray(ds.types.vector(3, ds.f32), 2, needs_grad=True)
    out1 = ds.ndarray(ds.types.vector(2, ds.f32), 2, needs_grad=True)
    out2 = ds.ndarray(ds.types.vector(4, ds.f32), 2, needs_grad=True)

    @ds.kernel
    def my_kernel(
        a: ds.types.ndarray(),
        b: ds.types.ndarray(),
        out1: ds.types.ndarray(),
        out2: ds.types.ndarray(),
    ):
        for tid in a:
            ai, bi = a[tid], b[tid]
            out1[tid] = ds.Vector([ai * bi.norm(), -ai * bi.dot(ds.Vector([0.1, 1.0, -0.1]))])
            out2[tid] = ds.Vector([ai, bi[0], bi[1], bi[2]]).normalized()

    a.from_numpy(np.array([2.0, -1.0], np.float32))
    b.from_numpy(np.array([[3.0, 1.0, 2.0], [-4.0, -1.0, 0.0]], np.float32))

    def run():
        my_kernel(a, b, out1, out2)

    assert ds.ad.gradcheck(run, [a, b], [out1, out2], show_summary=True)
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 5
    assert all(line.endswith("ok") for line in table[1:])
    jacs = ds.ad.jacobian(run, [a, b], [out1, out2])
    A, B = a.to_numpy(), b.to_numpy()
    assert jacs[a, out1].shape == (4, 2)
    np.testing.assert_allclose(jacs[a, out1][::2, :], np.diag(np.linalg.norm(B, axis=1)), rtol=1e-6)
    expected = -A[0] * np.array([0.1, 1.0, -0.1])
    np.testing.assert_allclose(jacs[b, out1][1, :3], expected, rtol=1e-6)
    assert not jacs[b, out1][1, 3:].any()


@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_every_launch_of_a_tape(in_place):
    x, y, z = fields(3, 3)
    (L,) = fields(1)
    count = ds.field(ds.i32, shape=())

    @ds.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    @ds.kernel
    def sine(k: ds.f64):
        for i in y:
            z[i] = ds.sin(k * y[i])

    @ds.kernel
    def swap():
        for i in x:
            x[i] = x[i] * z[i]

    @ds.kernel
    def add():
        count[None] += 1
        for i in z:
            L[None] += z[i]

    x.from_numpy(np.array([0.1, 0.4, 0.9]))
    tape = ds.Tape(in_place=in_place)
    with tape:
        square()
        sine(2.0)
        if in_place == "save":
            swap()
        with ds.ad.no_grad():
            add()
    before = state(x, y, z, L)
    n = count[None]
    assert ds.ad.gradcheck_tape(tape)
    assert ds.ad.gradcheck_tape(tape, kernels=["sine"], max_inputs=1)
    assert ds.ad.gradcheck_tape(tape, skip_kernels=["sine", "swap"], rtol=1e-3)
    assert same(before, state(x, y, z, L))
    assert count[None] == n


def test_state_after_an_error():
    x, y = fields(2, 3)

    @ds.kernel
    def f():
        for i in x:
            y[i] = x[i]

    def program():
        f()
        raise RuntimeError("stop")

    x.fill(2.0)
    before = state(x, y)
    with pytest.raises(RuntimeError, match="stop"):
        ds.ad.gradcheck(program, [x], [y])
    assert same(before, state(x, y))
    with ds.Tape():  # none is left recording
        pass
    with pytest.raises(ds.ArgumentError, match="inputs is a list of fields"):
        ds.ad.gradcheck(f, [], [y])
    with pytest.raises(ds.FieldError, match="outputs is a list of fields"):
        ds.ad.gradcheck(f, [x], [ds.field(ds.f64, shape=3)])


# ---- gradients written by hand, checked


def replaced(factor, dtype=ds.f64, **options):
    """y = x**3 with a gradient that is `factor` times the true one; z = 0 on the way."""
    x, y, scratch = fields(3, 4, dtype=dtype)
    (L,) = fields(1, dtype=dtype)

    @ds.kernel
    def square():
        for i in x:
            scratch[i] = x[i] ** 2

    @ds.kernel
    def cube(k: ds.f32):
        for i in x:
            y[i] = scratch[i] * x[i] * k

    @ds.kernel
    def add():
        for i in y:
            L[None] += y[i] * (i + 1)

    @ds.ad.grad_replaced
    def forward(k):
        square()
        cube(k)

    @ds.ad.grad_for(forward, **options)
    def backward(k):
        g = factor * 3 * k * x.to_numpy() ** 2 * y.grad.to_numpy()
        x.grad.from_numpy(x.grad.to_numpy() + g)
        y.grad.fill(0)

    x.from_numpy(np.array([0.5, -1.0, 2.0, 3.0], dtype.numpy))
    return x, y, scratch, L, forward, backward, add


@pytest.mark.parametrize("dtype", [ds.f32, ds.f64])
def test_a_right_gradient_passes(dtype):
    x, y, _scratch, L, forward, _, add = replaced(1.0, dtype, check=True)
    for _ in range(2):
        with ds.Tape(L):
            forward(2.0)
            add()
        X = x.to_numpy()
        np.testing.assert_allclose(x.grad.to_numpy(), 6 * X**2 * np.arange(1, 5), rtol=1e-6)
        np.testing.assert_allclose(y.to_numpy(), 2 * X**3, rtol=1e-6)


@pytest.mark.parametrize("dtype", [ds.f32, ds.f64])
@pytest.mark.parametrize("factor", [0.5, -1.0, 1.05, 0.0])
def test_a_wrong_gradient_is_refused(factor, dtype):
    x, y, _scratch, L, forward, backward, add = replaced(factor, dtype, check=True)
    with pytest.raises(ds.AutodiffError, match="the gradient of forward is wrong") as caught:
        with ds.Tape(L):
            forward(2.0)
            add()
    text = str(caught.value)
    assert "central differences say" in text
    code = backward.__code__
    assert (caught.value.span.file, caught.value.span.line) == (__file__, code.co_firstlineno)
    np.testing.assert_allclose(y.to_numpy(), 2 * x.to_numpy() ** 3, rtol=1e-6)  # put back


def test_it_is_checked_once_and_only_if_asked():
    *_, L, forward, _b, add = replaced(0.5)
    with ds.Tape(L):
        forward(1.0)
        add()
    _x, _y, _scratch, L, forward, _, add = replaced(1.0, check=True)
    runs = []
    body = forward.function
    forward.function = lambda k: (runs.append(k), body(k))[1]
    clock = []
    for _ in range(3):
        before = session.clock
        with ds.Tape(L):
            forward(1.0)
            add()
        clock.append(session.clock - before)
    assert runs == [1.0] * 3  # its Python code is not run again
    assert clock[0] >= clock[1] + 4  # but its two launches are, twice
    assert clock[1] == clock[2]


def test_the_check_waits_for_a_gradient():
    """A tape in which nothing flows into the function tells nothing about it."""
    _x, _y, _scratch, L, forward, _, add = replaced(0.5, check=True)
    with ds.Tape(L):
        forward(1.0)
    with pytest.raises(ds.AutodiffError, match="is wrong"):
        with ds.Tape(L):
            forward(1.0)
            add()


def test_checked_in_place():
    """The function overwrites its input, twice on one tape; the inputs are changed before the check."""
    (x,), L = fields(1, 3), fields(1)[0]

    @ds.kernel
    def shrink():
        for i in x:
            x[i] = ds.sin(x[i])

    @ds.kernel
    def add():
        for i in x:
            L[None] += x[i] * (i + 1)

    def make(right):
        olds = []

        @ds.ad.grad_replaced
        def forward():
            olds.append(x.to_numpy())
            shrink()

        @ds.ad.grad_for(forward, check=True)
        def backward():
            old = olds.pop()
            x.grad.from_numpy(x.grad.to_numpy() * (np.cos(old) if right else np.sin(old)))

        return forward

    X = np.array([0.3, 0.9, 1.4])
    for right in (True, False):
        forward = make(right)
        x.from_numpy(X)

        def run(forward=forward):
            with ds.Tape(L, in_place="save"):
                forward()
                forward()
                add()

        if right:
            run()
            g = np.cos(np.sin(X)) * np.cos(X) * np.arange(1, 4)
            np.testing.assert_allclose(x.grad.to_numpy(), g, rtol=1e-14)
            np.testing.assert_allclose(x.to_numpy(), np.sin(np.sin(X)), rtol=1e-14)
        else:
            with pytest.raises(ds.AutodiffError, match="is wrong"):
                run()


def test_methods_are_checked():
    class Model:
        def __init__(self):
            self.x, self.y = fields(2, 2)
            (self.L,) = fields(1)
            x, y, L = self.x, self.y, self.L

            @ds.kernel
            def double():
                for i in x:
                    y[i] = 2 * x[i]
                    L[None] += 0.0

            @ds.kernel
            def add():
                for i in x:
                    L[None] += y[i]

            self.double, self.add = double, add

        @ds.ad.grad_replaced
        def forward(self):
            self.double()

        @ds.ad.grad_for(forward, check=True)
        def backward(self):
            self.x.grad.fill(3.0)

    m = Model()
    with pytest.raises(ds.AutodiffError, match="is wrong"):
        with ds.Tape(m.L):
            m.forward()
            m.add()


def test_what_is_done_again_for_the_check():
    """Writes and copies from Python, functions inside it, checkpoints, random numbers."""
    x, y, z, q = fields(4, 3)
    (L,) = fields(1)

    @ds.kernel
    def draw():
        for i in x:
            y[i] += x[i] * ds.random()

    @ds.kernel
    def decay():
        for i in q:
            q[i] = 0.5 * q[i]

    @ds.kernel
    def add():
        for i in z:
            L[None] += z[i]

    factors = []

    @ds.ad.grad_replaced
    def inner():
        draw()

    @ds.ad.grad_for(inner)
    def inner_backward():
        raise AssertionError("the outer function has a gradient of its own")

    @ds.ad.grad_replaced
    def forward():
        y.fill(0)
        inner()
        y[1] = 4.0
        factors.append(y.to_numpy() / x.to_numpy())
        ds.copy(q, y)
        ds.ad.checkpoint(lambda t: decay(), 3, state=[q])
        ds.copy(z, q, count=2)

    def make(scale):
        forward.backward = None
        forward.checked = True

        @ds.ad.grad_for(forward, check=True)
        def backward():
            g = z.grad.to_numpy() * factors.pop() / 8 * [1, 0, 0]
            x.grad.from_numpy(x.grad.to_numpy() + scale * g)
            for f in (y, q):
                f.grad.fill(0)
            z.grad.from_numpy(z.grad.to_numpy() * [0, 0, 1])

    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    for scale in (1.0, 1.01):
        make(scale)
        z.fill(1.0)
        if scale == 1:
            with ds.Tape(L):
                forward()
                add()
            assert x.grad[0] == y[0] / 8
            assert z.to_numpy().tolist() == [y[0] / 8, 0.5, 1.0]
        else:
            with pytest.raises(ds.AutodiffError, match="gradient of forward is wrong"):
                with ds.Tape(L):
                    forward()
                    add()


# ---- pictures


def test_a_picture():
    a, b, c, e, result = (ds.ndarray(ds.f32, 1, needs_grad=k not in (0, 2)) for k in range(5))

    @ds.kernel
    def add(a: ds.types.ndarray(), b: ds.types.ndarray(), c: ds.types.ndarray()):
        for tid in a:
            c[tid] = a[tid] + b[tid]

    tape = ds.Tape()
    with tape:
        add(b, e, a)
        tape.record_scope_begin("Adder")
        add(a, b, c)
        tape.record_scope_end()
        add(c, a, result)
        b[0] = 1.0
        ds.copy(result, e)
    text = tape.visualize(array_labels={a: "a", b: "b", c: "c", e: "e", result: 'the "result"'})
    assert text.startswith("digraph tape {")
    assert text.count("shape=box") == 5
    assert text.count("palegreen") == 3
    assert text.count("lightgray") == 2
    assert 'label="Adder"' in text
    assert r"the \"result\"" in text
    assert text.count("{") == text.count("}")


def test_a_picture_in_a_file(tmp_path):
    tape = ds.Tape()
    with tape:
        ds.field(ds.f32, shape=()).fill(1)
    assert tape.visualize(tmp_path / "tape.dot") == (tmp_path / "tape.dot").read_text()
