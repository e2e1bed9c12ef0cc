"""Jacobians in forward and in reverse mode: the same matrices, the cheaper mode, and what either refuses."""

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")
N = 10


def field(n, element=0, seed=0, **options):
    if element:
        f = ds.Vector.field(element, ds.f64, shape=n, needs_grad=True, **options)
    else:
        f = ds.field(ds.f64, shape=n, needs_grad=True, **options)
    shape = (*f.shape, element) if element else f.shape
    f.from_numpy(np.random.default_rng(seed).uniform(0.5, 2, shape))
    return f


class Chain:
    """Masses on springs of one stiffness, a few steps in place."""

    def __init__(self, n=N):
        x, v, k = self.x, self.v, self.k = field(n, 2), field(n, 2, seed=1), field(())
        x.from_numpy(np.cumsum(x.to_numpy(), axis=0))

        @ds.kernel
        def push():
            for i in x:
                if i + 1 < n:
                    d = x[i + 1] - x[i]
                    force = k[None] * (d.norm() - 1.0) / d.norm() * d
                    v[i] += 0.1 * force
                    v[i + 1] -= 0.1 * force

        @ds.kernel
        def move():
            for i in x:
                v[i] *= 0.99
                x[i] += 0.1 * v[i]

        self.push, self.move = push, move

    def run(self, steps=2):
        for _ in range(steps):
            self.push()
            self.move()


def test_both_modes_agree():
    c = Chain()
    ins, outs = [c.x, c.v, c.k], [c.x, c.v]
    forward = ds.ad.jacobian(c.run, ins, outs, mode="forward")
    reverse = ds.ad.jacobian(c.run, ins, outs, mode="reverse")
    assert (forward.mode, reverse.mode) == ("forward", "reverse")
    assert forward.passes == 3 + 3 + 1  # 20 components of x, 20 of v, 1 of k; 8 in a run
    assert reverse.passes == 40
    fd = ds.ad.jacobian_fd(c.run, ins, outs)
    for pair, matrix in reverse.items():
        np.testing.assert_allclose(forward[pair], matrix, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(fd[pair], matrix, atol=1e-8)


def test_the_cheaper_mode_is_taken():
    few, many = field(2), field(N)

    @ds.kernel
    def spread():
        for i in many:
            many[i] = few[0] ** i * few[1]

    @ds.kernel
    def gather():
        for i in many:
            few[i % 2] += many[i] ** 2

    a, b = few.to_numpy()
    i = np.arange(N)
    J = ds.ad.jacobian(spread, [few], [many])
    assert (J.mode, J.passes) == ("forward", 1)
    expected = np.stack([i * a ** np.maximum(i - 1, 0) * b, a**i], axis=1)
    np.testing.assert_allclose(J[few, many], expected, rtol=1e-13)
    J = ds.ad.jacobian(gather, [many], [few])
    assert (J.mode, J.passes) == ("reverse", 2)
    expected = np.where((i % 2)[None] == np.arange(2)[:, None], 2 * many.to_numpy(), 0)
    np.testing.assert_allclose(J[many, few], expected, rtol=1e-14)
    part = ds.ad.jacobian(spread, [few], [many], max_outputs_per_var=3)
    assert part.mode == "forward"
    assert np.isnan(part[few, many][3:]).all()
    np.testing.assert_allclose(part[few, many][1], [b, a], rtol=1e-14)


def test_a_parameter_of_all_outputs_costs_one_column():
    """Rows that all share a column cannot share a pass; in forward mode columns can."""
    c = Chain(40)
    ins, outs = [c.x, c.v, c.k], [c.x, c.v]
    dense = ds.ad.jacobian(c.run, ins, outs, mode="reverse")
    found = ds.ad.jacobian(c.run, ins, outs, sparsity="auto")
    assert found.mode == "forward"
    assert found.passes <= 6
    for pair, matrix in dense.items():
        np.testing.assert_allclose(found[pair], matrix, rtol=1e-12, atol=1e-14)


def test_patterns_in_forward_mode():
    x, y = field(N), field(N)

    @ds.kernel
    def f():
        for i in x:
            y[i] = x[i] * x[(i + 1) % N]

    right = np.eye(N) + np.roll(np.eye(N), 1, axis=1)
    dense = ds.ad.jacobian(f, [x], [y], mode="reverse")
    for pattern in (right, "auto"):
        J = ds.ad.jacobian(f, [x], [y], mode="forward", sparsity=pattern)
        np.testing.assert_allclose(J[x, y], dense[x, y], rtol=1e-14)
        assert J.passes == 1  # two colours and the test
    part = ds.ad.jacobian(f, [x], [y], mode="forward", sparsity=right, max_outputs=4)
    np.testing.assert_allclose(part[x, y][:4], dense[x, y][:4], rtol=1e-14)
    assert np.isnan(part[x, y][4:]).all()
    with pytest.raises(ds.AutodiffError, match=r"lacks derivatives of y\[0\]"):
        ds.ad.jacobian(f, [x], [y], mode="forward", sparsity=np.eye(N))


def test_what_one_mode_refuses_the_other_does():
    x, y = field(2), field(N)

    @ds.func
    def cube(a):
        return a**3

    @ds.func_grad(cube)
    def cube_adjoint(a, g):
        ds.adjoint[a] += 7 * g

    @ds.kernel
    def given():
        for i in y:
            y[i] = cube(x[i % 2])

    J = ds.ad.jacobian(given, [x], [y])
    assert J.mode == "reverse"
    assert set(J[x, y].ravel()) == {0, 7}
    with pytest.raises(ds.AutodiffError, match="cube"):
        ds.ad.jacobian(given, [x], [y], mode="forward")

    @ds.kernel(simplicity="strict")
    def carried():
        for i in x:
            a = x[i]
            for k in range(3):
                a = a * x[i]
                y[k] += a

    with pytest.raises(ds.KernelSimplicityError):
        ds.ad.jacobian(carried, [y, x], [x, y], mode="reverse", input_output_mask=[(1, 1)])
    J = ds.ad.jacobian(carried, [x], [y], max_outputs=1)
    assert J.mode == "forward"
    np.testing.assert_allclose(J[x, y][0], 2 * x.to_numpy(), rtol=1e-14)

    @ds.ad.grad_replaced
    def nowhere():
        given()

    with pytest.raises(ds.AutodiffError, match="nowhere"):
        ds.ad.jacobian(nowhere, [x], [y])
    with pytest.raises(ds.OptionError, match="mode='backward' is not possible"):
        ds.ad.jacobian(given, [x], [y], mode="backward")


def test_all_is_as_before():
    x, y = field(2, needs_dual=True), field(N)

    @ds.kernel
    def f():
        for i in y:
            y[i] = x[i % 2] ** 2 * ds.random()

    x.dual.fill(5.0)
    x.grad.fill(6.0)
    before = y.to_numpy()
    first, second = (ds.ad.jacobian(f, [x], [y], mode=m)[x, y] for m in ("forward", "reverse"))
    np.testing.assert_allclose(first, second, rtol=1e-14)  # the same random numbers
    assert x.dual.to_numpy().tolist() == [5.0, 5.0]
    assert x.grad.to_numpy().tolist() == [6.0, 6.0]
    assert y.to_numpy().tolist() == before.tolist()
    with pytest.raises(ds.FieldError, match="dual"):
        y.dual


def test_numbers_and_parts_of_f32():
    a = ds.field(ds.f32, shape=(), needs_grad=True)
    y = ds.Matrix.field(2, 2, ds.f32, shape=3, needs_grad=True)
    a[None] = 0.5

    @ds.kernel
    def turn():
        for i in y:
            c, s = ds.cos(a[None] * i), ds.sin(a[None] * i)
            y[i] = ds.Matrix([[c, -s], [s, c]])

    J = ds.ad.jacobian(turn, [a], [y])
    assert J.mode == "forward"
    t, i = 0.5 * np.arange(3), np.arange(3)
    expected = np.stack([-i * np.sin(t), -i * np.cos(t), i * np.cos(t), -i * np.sin(t)], axis=1)
    np.testing.assert_allclose(J[a, y].reshape(3, 4), expected, rtol=1e-6, atol=1e-7)


def test_runs_of_forward_mode_leave_nothing_for_the_next():
    """Duals of as many tangents are the same memory in each run."""
    x, m, h = field(4), field(12), field(4)

    @ds.kernel
    def f():
        for i in h:
            h[i] += x[3]
            m[i] = 2 * m[i]

    J = ds.ad.jacobian(f, [x, m, h], [h, m], mode="forward")
    np.testing.assert_array_equal(J[x, h], np.eye(4)[[3] * 4])
    assert not J[m, h].any()
    np.testing.assert_array_equal(J[h, h], np.eye(4))
    np.testing.assert_array_equal(J[m, m], np.diag(np.where(np.arange(12) < 4, 2.0, 1.0)))


def test_what_python_sets_in_the_function_is_a_constant():
    x, y = field(3), field(3)

    @ds.kernel
    def f():
        for i in x:
            y[i] = x[i] ** 2

    def program():
        x[1] = 5.0
        f()

    X = x.to_numpy()
    for mode in ("forward", "reverse"):
        J = ds.ad.jacobian(program, [x], [y], mode=mode)[x, y]
        np.testing.assert_array_equal(J, np.diag([2 * X[0], 0, 2 * X[2]]))


# ---- fields without gradients, and differences by colours


@pytest.fixture
def chain(cpu, quick_code):
    """A chain of n numbers through a field between, none with a gradient, and its Jacobian in closed form."""
    n = 40
    x, t, y = (ds.field(ds.f64, shape=n, name=name) for name in "xty")

    @ds.kernel
    def products():
        for i in x:
            t[i] = x[i] * x[(i + 1) % n]

    @ds.kernel
    def squares():
        for i in x:
            y[i] = t[i] ** 2 + x[i]

    def run():
        products()
        squares()

    a = np.linspace(1, 2, n)
    x.from_numpy(a)
    b = np.roll(a, -1)
    closed = np.diag(2 * a * b**2 + 1) + np.diag(2 * a**2 * b) @ np.roll(np.eye(n), 1, 1)
    return run, x, y, closed


@pytest.mark.parametrize("options", [{"mode": "forward"}, {}, {"sparsity": "auto"}])
def test_forward_mode_needs_no_gradients(chain, options):
    run, x, y, closed = chain
    found = ds.ad.jacobian(run, [x], [y], **options)
    assert found.mode == "forward"
    np.testing.assert_allclose(found[x, y], closed, rtol=1e-13)
    assert x.grad is None
    assert y.grad is None
    with pytest.raises(ds.FieldError, match="in forward mode"):
        ds.ad.jacobian(run, [x], [y], mode="reverse")


def test_large_fields_have_fewer_tangents_in_a_run(chain, monkeypatch):
    """Where fields and 8 tangents do not fit in a cache, runs compute 4."""
    run, x, y, closed = chain
    small = ds.ad.jacobian(run, [x], [y], mode="forward")
    # x, t and y have 40 numbers each.
    monkeypatch.setattr("diffsim.ad.jacobians.program._FITS", 3 * 40 * 8 - 1)
    large = ds.ad.jacobian(run, [x], [y], mode="forward")
    assert (small.passes, large.passes) == (5, 10)
    np.testing.assert_allclose(large[x, y], closed, rtol=1e-13)


def test_some_fields_with_gradients(chain):
    """One that ends on the way to the output would break reverse mode's chain, and no tangent."""
    run, x, y, _ = chain
    n = x.shape[0]
    z = ds.field(ds.f64, shape=n, needs_grad=True)

    @ds.kernel
    def add():
        for i in z:
            x[i] += z[i] ** 2

    def program():
        add()
        run()

    z.from_numpy(np.linspace(0.5, 1, n))
    found = ds.ad.jacobian(program, [z, x], [y], mode="forward")
    expected = ds.ad.jacobian_fd(program, [z, x], [y])
    for i in (z, x):
        np.testing.assert_allclose(found[i, y], expected[i, y], atol=1e-8)


@pytest.mark.parametrize("most", [None, 7])
def test_differences_by_colours(chain, most):
    """Two runs for each of a few colours and for a test, whatever the number of inputs."""
    run, x, y, closed = chain
    for pattern in ("auto", closed != 0):
        found = ds.ad.jacobian_fd(run, [x], [y], sparsity=pattern, max_inputs_per_var=most)
        assert found.runs <= 10
        # Elsewhere than in the pattern derivatives are 0, in columns left out they are not known.
        left_out = np.arange(40)[None] >= (40 if most is None else most)
        known = ~(left_out & (closed != 0))
        np.testing.assert_allclose(found[x, y][known], closed[known], atol=1e-9)
        assert np.isnan(found[x, y][~known]).all()


def test_differences_by_a_wrong_pattern_are_refused(chain):
    run, x, y, _ = chain
    with pytest.raises(ds.AutodiffError, match=r"lacks derivatives of y\["):
        ds.ad.jacobian_fd(run, [x], [y], sparsity=np.eye(40))
    with pytest.raises(ds.OptionError, match="sparsity='all' is not possible"):
        ds.ad.jacobian_fd(run, [x], [y], sparsity="all")
