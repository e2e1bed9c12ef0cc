"""Tangents of linear solves, roots and fixed points: closed forms, differences, reverse mode."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import field, numbers

N = 5
ROWS = np.array([0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 2])
COLUMNS = np.array([0, 1, 0, 1, 2, 2, 3, 3, 4, 4, 0, 2])  # (2, 2) twice: they add up
SEEDS = numbers(3, 2, N, seed=8)


@pytest.fixture(autouse=True)
def _cpu(cpu, quick_code):
    """The CPU, with code that is made quickly."""


def differences(run, fields, directions, out, h=1e-5):
    """Central differences of a field after `run` along directions of others, extrapolated."""
    start = [f.to_numpy() for f in fields]

    def end(step):
        for f, a, d in zip(fields, start, directions, strict=True):
            f.from_numpy(a + step * d)
        run()
        return out.to_numpy()

    coarse, fine = ((end(s) - end(-s)) / (2 * s) for s in (8 * h, 4 * h))
    for f, a in zip(fields, start, strict=True):
        f.from_numpy(a)
    return (4 * fine - coarse) / 3


def agree(run, fields, out, seeds, rel=1e-8):
    """The tangents of `out` are its differences, for one seed and for several at once."""
    param = {f: [s.reshape(f.shape) for s in rows] for f, rows in zip(fields, seeds, strict=True)}
    count = len(seeds[0])
    expected = [differences(run, fields, [param[f][k] for f in fields], out) for k in range(count)]
    with ds.ad.FwdMode(loss=out, param=param) as forward:
        run()
    found = forward.tangents(out)
    np.testing.assert_allclose(found, expected, atol=rel * np.abs(expected).max())
    with ds.ad.FwdMode(loss=out, param={f: d[0] for f, d in param.items()}):
        run()
    np.testing.assert_allclose(out.dual.to_numpy(), expected[0], atol=rel * np.abs(expected).max())


@pytest.fixture
def program():
    """Fields p -> b -> x -> y, and the launches around a solve."""
    p, b, x, y = field(N), field(N), field(N), field(N)

    @ds.kernel
    def make():
        for i in p:
            b[i] = ds.sin(p[i]) + 0.3 * p[i]

    @ds.kernel
    def use():
        for i in x:
            y[i] = (i + 1) * x[i] ** 2 + p[i]

    p.from_numpy(numbers(N, seed=3))
    return make, use, p, b, x, y


@pytest.mark.parametrize("method", ["lu", "bicgstab"])
@pytest.mark.parametrize("form", ["dense", "places", "constant"])
def test_linear_systems(program, method, form):
    make, use, p, b, x, y = program
    values = field(N * N) if form == "dense" else field(len(ROWS))
    if form == "dense":
        values.from_numpy((numbers(N, N) + 4 * np.eye(N)).reshape(-1))
    else:
        values.from_numpy(numbers(len(ROWS), seed=1) + 4.0 * (ROWS == COLUMNS))
    dense = np.zeros((N, N))
    np.add.at(dense, (ROWS, COLUMNS), values.to_numpy()[: len(ROWS)])
    matrix = {"dense": values, "places": (values, (ROWS, COLUMNS)), "constant": dense}[form]
    if form == "places" and method == "lu":
        pytest.importorskip("scipy")

    def run():
        make()
        ds.ad.linear_solve(matrix, b, x, method=method)
        use()

    seeds = [[*SEEDS[:, 0]]]
    fields = [p]
    if form != "constant":
        fields.append(values)
        seeds.append([*numbers(3, *values.shape, seed=5)])
    agree(run, fields, y, seeds)


def test_the_solution_in_place_of_the_right_hand_side(program):
    """x = A^-1 A^-1 b: the closed form, and the tangent of what is overwritten."""
    make, _, p, b, *_ = program
    a = numbers(N, N) + 4 * np.eye(N)
    with ds.ad.FwdMode(loss=b, param=p, seed=SEEDS[0, 0]):
        make()
        ds.ad.linear_solve(a, b, b)
        ds.ad.linear_solve(a, b, b)
    db = (np.cos(p.to_numpy()) + 0.3) * SEEDS[0, 0]
    expected = np.linalg.solve(a, np.linalg.solve(a, db))
    np.testing.assert_allclose(b.dual.to_numpy(), expected, rtol=1e-10)


def test_constants(program):
    """What a solve overwrites has no tangent left where neither side has one, nor in no_grad."""
    make, use, p, b, x, y = program
    a = numbers(N, N) + 4 * np.eye(N)
    with ds.ad.FwdMode(loss=[x, y], param=[p, x], seed=[SEEDS[0, 0], SEEDS[0, 1]]):
        use()
        assert np.abs(y.dual.to_numpy()).min() > 0
        b.from_numpy(np.ones(N))
        ds.ad.linear_solve(a, b, x)
        assert not x.dual.to_numpy().any()
        make()
        with ds.ad.no_grad():
            ds.ad.linear_solve(a, b, x)
    assert not x.dual.to_numpy().any()


@pytest.fixture
def world():
    """A residual with a parameter p, its solution x, and what it leaves besides."""
    p, x, r, seen = field(N), field(N), field(N), field(N)

    @ds.kernel
    def residual():
        for i in x:
            left = x[(i + N - 1) % N]
            r[i] += x[i] ** 3 + 3.0 * x[i] - 0.3 * left - p[i] * p[(i + 1) % N]
            seen[i] = x[i] * p[i]

    p.from_numpy(numbers(N, seed=2) + 1.5)
    return p, x, r, seen, residual


@pytest.mark.parametrize("method", ["lu", "gmres"])
def test_roots(world, method):
    p, x, r, seen, residual = world
    y = field(N)

    @ds.kernel
    def use():
        for i in x:
            y[i] = x[i] * seen[i] + p[i]

    def run():
        x.fill(0.5)
        ds.ad.implicit_root(residual, x, r, method=method, tolerance=1e-13)
        use()

    agree(run, [p], y, [[*SEEDS[:, 0]]])
    # What the function leaves has its tangent, too, and the residual none.
    with ds.ad.FwdMode(loss=[seen, r], param=p, seed=SEEDS[0, 0]) as forward:
        run()
    dx, a = forward.tangents(x), p.to_numpy()
    np.testing.assert_allclose(seen.dual.to_numpy(), dx * a + x.to_numpy() * SEEDS[0, 0], rtol=1e-9)
    assert np.abs(r.dual.to_numpy()).max() < 1e-11
    # Forward and reverse mode are each other's transpose.
    tape, g = ds.Tape(), numbers(N, seed=9)
    with tape:
        run()
    tape.backward(grads={y: g})
    with ds.ad.FwdMode(loss=y, param=p, seed=SEEDS[0, 0]):
        run()
    np.testing.assert_allclose(y.dual.to_numpy() @ g, p.grad.to_numpy() @ SEEDS[0, 0], rtol=1e-9)


def test_roots_by_a_solver_of_the_users(world):
    p, x, r, _, residual = world

    @ds.kernel
    def newton():
        for i in x:
            x[i] -= r[i] / (3.0 * x[i] ** 2 + 3.0)

    def solver():
        for _ in range(60):
            r.fill(0)
            residual()
            newton()

    def run():
        x.fill(0.5)
        ds.ad.implicit_root(residual, x, r, solver=solver)

    agree(run, [p], x, [[*SEEDS[:, 0]]])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("iteration", ["repeat", "newton"])
def test_fixed_points(in_place, iteration):
    e, angle, made = field(N), field(N), field(N)
    target = angle if in_place else made

    @ds.kernel
    def kepler():
        for i in angle:
            target[i] = 1.0 + e[i] * ds.sin(angle[i])

    e.from_numpy(np.linspace(0.1, 0.6, N))

    def run():
        angle.fill(1.0)
        ds.ad.fixed_point(
            kepler, angle, None if in_place else made, iteration=iteration, tolerance=1e-14
        )

    with ds.ad.FwdMode(loss=angle, param=e, seed=[*SEEDS[:, 0]]) as forward:
        run()
    x, a = angle.to_numpy(), e.to_numpy()
    closed = np.sin(x) / (1 - a * np.cos(x)) * SEEDS[:, 0]
    np.testing.assert_allclose(forward.tangents(angle), closed, rtol=1e-10)


def test_a_matrix_that_kernels_apply():
    k, b, x, product = field(N), field(N), field(N), field(N)

    @ds.kernel
    def apply():
        for i in x:
            product[i] = (2.0 + k[i]) * x[i] - 0.5 * x[(i + 1) % N]

    k.from_numpy(numbers(N, seed=4) + 1.0)
    b.from_numpy(numbers(N, seed=5))

    def run():
        ds.ad.linear_solve(apply, b, x, product=product)

    agree(run, [k, b], x, [[*SEEDS[:, 0]], [*SEEDS[:, 1]]])


def test_a_solve_in_a_residual_and_in_steps(world):
    """Solves within solves, and state that is overwritten step by step."""
    p, x, _, _, _ = world
    r, inner, a = field(N), field(N), numbers(N, N) + 4 * np.eye(N)
    square = field(N)

    @ds.kernel
    def before():
        for i in x:
            square[i] = x[i] ** 3 + 3.0 * x[i]

    @ds.kernel
    def after():
        for i in x:
            r[i] = inner[i] - p[i]

    @ds.kernel
    def update():
        for i in x:
            p[i] = 0.5 * p[i] + x[i]

    def residual():
        before()
        ds.ad.linear_solve(a, square, inner)
        after()

    def run():
        x.fill(0.1)
        for _ in range(2):
            ds.ad.implicit_root(residual, x, r, tolerance=1e-13)
            update()

    start, seed = p.to_numpy(), SEEDS[0, 0]
    with ds.ad.FwdMode(loss=x, param=p, seed=seed):
        run()
    found = x.dual.to_numpy()
    p.from_numpy(start)

    expected = differences(run, [p], [seed], x)
    np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())


def test_jacobians(world):
    """The forward Jacobian of a program with a root, by tangents; the closed form is -J^-1 F_p."""
    p, x, r, _, residual = world

    def run():
        x.fill(0.5)
        ds.ad.implicit_root(residual, x, r, tolerance=1e-13)

    found = ds.ad.jacobian(run, [p], [x], mode="forward")[p, x]
    run()
    a, at = p.to_numpy(), x.to_numpy()
    matrix = np.diag(3 * at**2 + 3) - 0.3 * np.roll(np.eye(N), -1, 1)
    by_p = np.diag(np.roll(a, -1)) + np.diag(a) @ np.roll(np.eye(N), 1, 1)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, by_p), rtol=1e-9, atol=1e-12)


def test_vectors_in_f32():
    ds.init(arch=ds.cpu)
    x, r = (ds.Vector.field(2, ds.f32, shape=3, needs_grad=True) for _ in range(2))
    p = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def residual():
        for i in x:
            r[i] = x[i] * (1.0 + x[i].norm_sqr()) - p[None] * ds.Vector([1.0, 2.0])

    p[None] = 1.0
    with ds.ad.FwdMode(loss=x, param=p, seed=[1.0, -2.0]) as forward:
        ds.ad.implicit_root(residual, x, r)
    s = x.to_numpy().astype(float)[0]
    matrix = (1 + s @ s) * np.eye(2) + 2 * np.outer(s, s)
    expected = np.linalg.solve(matrix, [1.0, 2.0])
    found = forward.tangents(x)
    np.testing.assert_allclose(found[0], np.tile(expected, (3, 1)), rtol=1e-4)
    np.testing.assert_allclose(found[1], -2 * found[0], rtol=1e-4)


def test_what_is_refused(world):
    p, x, r, _, residual = world
    count = field(N)

    @ds.kernel
    def goes_on():
        for i in x:
            count[i] += 0.1 * p[i]
            r[i] = x[i] - count[i]

    with (
        ds.ad.FwdMode(loss=x, param=p, seed=SEEDS[0, 0]),
        pytest.raises(ds.AutodiffError, match="reads count before it writes to it"),
    ):
        ds.ad.implicit_root(goes_on, x, r)

    with (
        ds.ad.FwdMode(loss=x, param=p, seed=SEEDS[0, 0]),
        pytest.raises(ds.AutodiffError, match="does not read it"),
    ):
        ds.ad.implicit_root(residual, x, r, params=[p, count])
    loss = field()

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    def run():
        ds.ad.implicit_root(residual, x, r)
        measure()

    with pytest.raises(ds.AutodiffError, match="implicit_root has first derivatives only"):
        ds.ad.hvp(run, p, np.ones(N), loss=loss)
