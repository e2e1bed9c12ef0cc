"""`ds.ad.implicit_root`, `ds.ad.fixed_point`, matrices that kernels apply: against differences."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import central, check, field, numbers

N = 10
SOLVERS = {
    "lu": lambda w: ds.ad.implicit_root(w.residual, w.x, w.r, params=[w.p]),
    "gmres": lambda w: ds.ad.implicit_root(w.residual, unknown=w.x, output=w.r, method="gmres"),
    "bicgstab": lambda w: ds.ad.implicit_root(w.residual, w.x, w.r, method="bicgstab"),
    "by hand": lambda w: ds.ad.implicit_root(w.residual, w.x, w.r, solver=w.relax),
    "repeat": lambda w: ds.ad.fixed_point(w.step, w.x, w.y, params=[w.p]),
    "newton": lambda w: ds.ad.fixed_point(w.step, w.x, w.y, iteration="newton", method="lu"),
    "in place": lambda w: ds.ad.fixed_point(w.step_in_place, w.x),
}


class World:
    """x_i = 0.5 sin(x_i+1) p_i + 0.25 p_i as an equation, as a step, and solved by hand."""

    def __init__(self, **options):
        p, x, y, r = (field(N, **options) for _ in range(4))
        self.p, self.x, self.y, self.r = p, x, y, r
        self.loss, self.tape_options = field(), {}
        loss = self.loss

        @ds.kernel
        def residual():
            for i in x:
                r[i] += x[i] - 0.25 * p[i]
            for i in x:
                r[i] -= 0.5 * ds.sin(x[(i + 1) % N]) * p[i]

        @ds.kernel
        def step():
            for i in x:
                y[i] = 0.5 * ds.sin(x[(i + 1) % N]) * p[i] + 0.25 * p[i]

        @ds.kernel
        def back():
            for i in x:
                x[i] = y[i]

        @ds.kernel
        def measure():
            for i in x:
                loss[None] += (1 + 0.125 * i) * x[i] ** 2

        self.residual, self.step, self.measure, self.back = residual, step, measure, back

    def relax(self):
        for _ in range(40):
            self.step()
            self.back()

    def step_in_place(self):
        self.step()
        self.back()

    def begin(self, p=None):
        self.p.from_numpy(0.7 + 0.3 * numbers(N, seed=1) if p is None else p)
        self.x.fill(0.1)

    def gradient(self, solve, p=None, spoil=lambda: None):
        self.begin(p)
        with ds.Tape(self.loss, **self.tape_options):
            solve(self)
            self.measure()
            spoil()
        return self.loss[None], self.p.grad.to_numpy()


@pytest.fixture
def world(cpu, quick_code):
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    return World()


@pytest.fixture
def expected(world):
    """The gradient by differences, once for all: of a solve that takes NumPy alone."""

    def loss_of(p):
        x = np.zeros(N)
        for _ in range(200):
            x = 0.5 * np.sin(np.roll(x, -1)) * p + 0.25 * p
        return float(((1 + 0.125 * np.arange(N)) * x**2).sum())

    return central(loss_of, 0.7 + 0.3 * numbers(N, seed=1))


@pytest.mark.parametrize("solver", SOLVERS)
def test_all_ways_give_the_gradient(world, expected, solver):
    _, found = world.gradient(SOLVERS[solver])
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
    # Without a tape the same solution; and fields that a solver used are as before.
    x = world.x.to_numpy()
    world.begin()
    world.y.fill(5.0)
    SOLVERS[solver](world)
    np.testing.assert_allclose(world.x.to_numpy(), x, rtol=1e-12)
    if solver == "by hand":
        assert (world.y.to_numpy() == 5.0).all()


@pytest.mark.parametrize("solver", ["lu", "gmres", "repeat"])
def test_what_was_read_and_changes_afterwards(world, expected, solver):
    def spoil():
        with ds.ad.no_grad():
            world.p.fill(2.0)
            if world.tape_options:
                world.x.fill(3.0)

    with pytest.raises(ds.GlobalDataAccessError, match="needs p as it was") as raised:
        world.gradient(SOLVERS[solver], spoil=spoil)
    assert "p[i]" in str(raised.value)
    world.tape_options = {"in_place": "save"}
    _, found = world.gradient(SOLVERS[solver], spoil=spoil)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
    assert (world.p.to_numpy() == 2.0).all()


def test_results_of_the_function_are_those_of_its_last_run(world):
    """A field that the residual computes on the way is used after the solve, and so is the residual."""
    x, p, r, loss = world.x, world.p, world.r, world.loss
    energy = field()

    @ds.kernel
    def residual():
        for i in x:
            r[i] = x[i] + 0.1 * x[i] ** 3 - p[i]
            energy[None] += p[i] * x[i] ** 2

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += energy[None] ** 2 + 5.0 * r[i]

    def program():
        energy[None] = 0.0
        ds.ad.implicit_root(residual, x, r)
        measure()

    world.begin()
    check(program, loss, p, rel=1e-8)


def steps_of_a_rollout():
    """x' = x - dt (k x'^3 + x') solved in each step, in place; the old state is a field of its own."""
    k, x, old, r, loss = field(), field(3), field(3), field(3), field()

    @ds.kernel
    def remember():
        for i in x:
            old[i] = x[i]

    @ds.kernel
    def residual():
        for i in x:
            r[i] = x[i] - old[i] + 0.1 * (k[None] * x[i] ** 3 + x[i])

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    def step(t):
        remember()
        ds.ad.implicit_root(residual, x, r)

    return k, x, loss, step, measure


def test_rollouts_with_lifted_rules(cpu, quick_code):
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules="lifted")
    k, x, loss, step, measure = steps_of_a_rollout()

    def run(value, how):
        k[None] = value
        x.from_numpy(np.array([1.0, 2.0, -1.5]))
        with ds.Tape(loss):
            if how is None:
                for t in range(6):
                    step(t)
            else:
                ds.ad.checkpoint(step, 6, state=[x], **how)
            measure()
        return loss[None], k.grad[None], x.to_numpy()

    _, found, end = run(0.8, None)
    slope = (run(0.8 + 1e-5, None)[0] - run(0.8 - 1e-5, None)[0]) / 2e-5
    assert abs(found - slope) <= 1e-8 * abs(slope)
    for how in (
        {"snapshots": 2},
        {"schedule": "equidistant"},
        {"schedule": "binomial", "snapshots": 2},
    ):
        _, again, same = run(0.8, how)
        assert abs(again - found) <= 1e-11 * abs(found)
        np.testing.assert_allclose(same, end, rtol=1e-12)


def test_vectors_in_f32_and_fields_with_lent_gradients(cpu, quick_code):
    ds.init(arch=ds.cpu, default_fp=ds.f32, rules="lifted")
    x, r, p = (ds.Vector.field(2, ds.f32, shape=3) for _ in range(3))
    scale, loss = field(dtype=ds.f32), field(dtype=ds.f32)

    @ds.kernel
    def make():
        for i in p:
            p[i] = scale[None] * ds.Vector([1.0, 2.0])

    @ds.kernel
    def residual():
        for i in x:
            r[i] = x[i] * (1.0 + x[i].dot(x[i])) - p[i]

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i].norm()

    scale[None] = 1.5
    x.fill(0.5)
    with ds.Tape(loss):
        make()
        ds.ad.implicit_root(residual, x, r)
        measure()
    # Along p: n + n^3 = s |(1, 2)|, for the norm n of each of three vectors.
    n = np.linalg.norm(x.to_numpy()[0].astype(float))
    assert abs(n + n**3 - 1.5 * 5**0.5) < 1e-5
    assert abs(scale.grad[None] - 3 * 5**0.5 / (1 + 3 * n**2)) < 1e-4


def test_a_second_pass_and_gradcheck(world):
    world.begin()
    x = world.x.to_numpy()
    tape = ds.Tape()
    with tape:
        SOLVERS["lu"](world)
    rows = []
    for k in (0, 3):
        tape.backward(grads={world.x: np.eye(N)[k]})
        rows.append(world.p.grad.to_numpy())
        tape.zero()
    world.x.from_numpy(x)
    program = lambda: SOLVERS["lu"](world)  # noqa: E731
    jacobian = ds.ad.jacobian_fd(program, [world.p], [world.x])[world.p, world.x]
    np.testing.assert_allclose(rows, jacobian[[0, 3]], rtol=1e-6, atol=1e-8)
    assert ds.ad.gradcheck(program, [world.p], [world.x], directions=2, show_summary=False)


def test_a_root_in_the_step_of_a_fixed_point(world):
    p, x, r, loss = world.p, world.x, world.r, world.loss
    z, q = field(N), field(N)

    @ds.kernel
    def cubic():
        for i in x:
            r[i] = x[i] + 0.1 * x[i] ** 3 - z[i]

    @ds.kernel
    def turn():
        for i in x:
            q[i] = 0.3 * ds.cos(x[i]) * p[i]

    @ds.kernel
    def measure():
        for i in z:
            loss[None] += z[i] ** 2

    def step(begins):
        if begins:
            x.fill(0.1)
        ds.ad.implicit_root(cubic, x, r)
        turn()

    def program(begins=True):
        z.fill(0.2)
        ds.ad.fixed_point(lambda: step(begins), z, q)
        measure()

    world.begin()
    check(program, loss, p, rel=1e-8)
    # Newton's method would begin at what an earlier step has found.
    with pytest.raises(ds.AutodiffError, match="reads x before it writes"), ds.Tape(loss):
        program(begins=False)


# ---- solves with functions


@pytest.mark.parametrize("method", [None, "cg", "gmres", "bicgstab", "lu"])
def test_a_matrix_that_kernels_apply(cpu, quick_code, method):
    k, b, x, y, loss = field(N), field(N), field(N), field(N), field()

    @ds.kernel
    def apply():
        for i in x:
            y[i] += x[i]
        for i in range(N - 1):
            f = k[i] ** 2 * (x[i + 1] - x[i])
            y[i] -= f
            y[i + 1] += f

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += (i + 1) * x[i] ** 2

    def program():
        symmetric = method != "bicgstab"
        ds.ad.linear_solve(apply, b, x, product=y, method=method, symmetric=symmetric)
        measure()

    k.from_numpy(1 + numbers(N))
    b.from_numpy(numbers(N, seed=2))
    check(program, loss, k, b, rel=1e-8)
    program()
    np.testing.assert_allclose(y.to_numpy(), b.to_numpy(), rtol=1e-9, atol=1e-11)


# ---- refusals


def test_equations_without_a_solution(world):
    x, r, p = world.x, world.r, world.p

    @ds.kernel
    def parabola():
        for i in x:
            r[i] = x[i] ** 2 + p[i]

    @ds.kernel
    def flat():
        for i in x:
            r[i] = 0.0 * x[i] + p[i]

    @ds.kernel
    def grow():
        for i in x:
            world.y[i] = 2.0 * x[i] + p[i]

    @ds.kernel
    def logarithm():
        for i in x:
            r[i] = ds.log(x[i] - 1.0) * p[i]

    wrong = [
        (lambda: ds.ad.implicit_root(parabola, x, r, max_iterations=20), "did not converge"),
        (lambda: ds.ad.implicit_root(flat, x, r), "singular"),
        (lambda: ds.ad.implicit_root(logarithm, x, r), "NaN"),
        (lambda: ds.ad.fixed_point(grow, x, world.y, max_iterations=30), "did not converge"),
        (lambda: ds.ad.implicit_root(world.residual, x, r, solver=world.step), "is no solution"),
        (lambda: ds.ad.linear_solve(world.residual, p, x, product=r), "not linear"),
    ]
    for solve, words in wrong:
        world.begin()
        before = x.to_numpy(), r.to_numpy(), world.y.to_numpy()
        with pytest.raises(ds.SolveError, match=words) as raised:
            solve()
        assert "test_implicit.py" in str(raised.value)
        for f, values in zip((x, r, world.y), before, strict=True):
            np.testing.assert_array_equal(f.to_numpy(), values)


def test_a_singular_adjoint_is_refused(world):
    """x^2 = p at p = 0: Newton's method gets there, and the derivative is infinite."""
    x, r, loss = field(), field(), world.loss

    @ds.kernel
    def square():
        r[None] = x[None] ** 2 - world.p[0]

    @ds.kernel
    def measure():
        loss[None] += x[None]

    world.p.fill(0.0)
    x[None] = 0.0
    with pytest.raises(ds.SolveError, match="singular"), ds.Tape(loss):
        ds.ad.implicit_root(square, x, r)
        measure()


def test_wrong_arguments(world):
    x, r, residual = world.x, world.r, world.residual
    plain, whole = ds.field(ds.f64, shape=N), ds.field(ds.i32, shape=N)

    @ds.kernel
    def changes():
        for i in x:
            x[i] += 1.0
            r[i] = x[i]

    @ds.kernel
    def ignores():
        for i in x:
            r[i] = world.p[i]

    other = field(N)
    wrong = [
        (lambda: ds.ad.implicit_root(residual, x, x), ds.ArgumentError, "same field"),
        (lambda: ds.ad.implicit_root(residual, x, plain), ds.ArgumentError, "has none"),
        (lambda: ds.ad.implicit_root(residual, whole, r), ds.ArgumentError, "i32"),
        (lambda: ds.ad.implicit_root(residual, x, field(3)), ds.ArgumentError, "10 numbers"),
        (lambda: ds.ad.implicit_root(3, x, r), ds.ArgumentError, "cannot be called"),
        (lambda: ds.ad.implicit_root(changes, x, r), ds.AutodiffError, "changes x|is no solution"),
        (lambda: ds.ad.implicit_root(ignores, x, r), ds.AutodiffError, "leads from x"),
        (lambda: ds.ad.implicit_root(residual, x, r, params=[other]), ds.AutodiffError, "not read"),
        (
            lambda: ds.ad.fixed_point(world.step, x, world.y, iteration="once"),
            ds.ArgumentError,
            "repeat",
        ),
        (lambda: ds.ad.linear_solve(residual, world.p, x), ds.ArgumentError, "product"),
        (lambda: ds.ad.linear_solve(residual, x, x, product=r), ds.ArgumentError, "three fields"),
    ]
    for solve, error, words in wrong:
        with pytest.raises((error, ds.SolveError), match=words), ds.Tape(world.loss):
            world.begin()
            solve()
            world.measure()


def test_a_function_that_python_variables_changed_is_refused(cpu):
    """The adjoint runs the residual again, when a loop's counter has moved on."""
    x, r, p, loss = (field() for _ in range(4))

    @ds.kernel
    def residual(t: ds.f64):
        r[None] += x[None] - t * p[None]

    @ds.kernel
    def add():
        loss[None] += x[None]

    def run(function):
        p[None] = 2.0
        with ds.Tape(loss):
            for counter[0] in range(1, 4):
                ds.ad.implicit_root(function(counter[0]), unknown=x, output=r)
                add()
        return p.grad[None]

    counter = [0]
    assert run(lambda t: lambda: residual(float(t))) == 6.0  # x = t p
    assert run(lambda _: lambda t=counter[0]: residual(float(t))) == 6.0
    with pytest.raises(ds.AutodiffError, match="with other arguments, than when") as caught:
        run(lambda _: lambda: residual(float(counter[0])))
    assert "t=t" in str(caught.value)
