"""`ds.ad.linear_solve`: solutions against NumPy, gradients against central differences and closed forms."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers

N = 5
ROWS = np.array([0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 2])
COLUMNS = np.array([0, 1, 0, 1, 2, 2, 3, 3, 4, 4, 0, 2])  # (2, 2) twice: they add up


def matrix(seed=0):
    return numbers(N, N, seed=seed) + 4 * np.eye(N)


def spd(seed=0):
    a = numbers(N, N, seed=seed)
    return a @ a.T + np.eye(N)


@pytest.fixture
def program(cpu, quick_code):
    """Fields p -> b -> x -> loss, and the launches around a solve."""
    p, b, x = field(N), field(N), field(N)
    loss = field()

    @ds.kernel
    def make():
        for i in p:
            b[i] = ds.sin(p[i]) + 0.3 * p[i]

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += (i + 1) * x[i] ** 2

    p.from_numpy(numbers(N, seed=3))
    return make, measure, p, b, x, loss


@pytest.mark.parametrize("method", [None, "lu", "bicgstab", "gmres"])
def test_a_constant_matrix(program, method):
    make, measure, p, b, x, loss = program
    a = matrix()

    def run():
        make()
        ds.ad.linear_solve(a, b, x, method=method)
        measure()

    check(run, loss, p, rel=1e-8)
    run()
    np.testing.assert_allclose(a @ x.to_numpy(), b.to_numpy(), rtol=1e-10)
    # The closed form: A^-T times the gradient of the loss by x.
    seed = 2 * np.arange(1, N + 1) * x.to_numpy()
    expected = np.linalg.solve(a.T, seed) * (np.cos(p.to_numpy()) + 0.3)
    np.testing.assert_allclose(p.grad.to_numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("method", ["cg", "gmres", "lu"])
@pytest.mark.parametrize("preconditioner", [None, "jacobi"])
def test_a_symmetric_matrix(program, method, preconditioner):
    make, measure, p, b, x, loss = program
    a = spd()

    def run():
        make()
        ds.ad.linear_solve(a, b, x, method=method, symmetric=True, preconditioner=preconditioner)
        measure()

    check(run, loss, p, rel=1e-8)


def test_a_preconditioner_that_is_a_function(program):
    make, measure, p, b, x, loss = program
    a = spd()

    def run():
        make()
        ds.ad.linear_solve(a, b, x, method="cg", preconditioner=lambda r: r / np.diag(a))
        measure()

    check(run, loss, p, rel=1e-8)


def entries(values):
    a = np.zeros((N, N))
    np.add.at(a, (ROWS, COLUMNS), values)
    return a


@pytest.mark.parametrize("method", ["gmres", "bicgstab"])
@pytest.mark.parametrize("form", ["coo", "csr", "dense"])
def test_entries_from_a_field(program, method, form):
    make, measure, p, b, x, loss = program
    values = field(N * N if form == "dense" else len(ROWS))
    start = numbers(len(ROWS), seed=8) + 3 * (ROWS == COLUMNS)
    if form == "dense":
        values.from_numpy(entries(start).reshape(-1))
        given = values
    elif form == "csr":
        order = np.lexsort((COLUMNS, ROWS))
        values.from_numpy(start[order])
        given = values, COLUMNS[order], np.searchsorted(np.sort(ROWS), np.arange(N + 1))
    else:
        values.from_numpy(start)
        given = values, (ROWS, COLUMNS)

    def run():
        make()
        ds.ad.linear_solve(given, b, x, method=method)
        measure()

    check(run, loss, p, values, rel=1e-8)
    run()
    np.testing.assert_allclose(
        x.to_numpy(), np.linalg.solve(entries(start), b.to_numpy()), rtol=1e-9
    )


def test_sparse_lu_of_scipy(program):
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy factorises sparse matrices")
    make, measure, p, b, x, loss = program
    values = field(len(ROWS))
    values.from_numpy(numbers(len(ROWS), seed=8) + 3 * (ROWS == COLUMNS))

    def run():
        make()
        ds.ad.linear_solve((values, (ROWS, COLUMNS)), b, x)
        measure()

    check(run, loss, p, values, rel=1e-8)
    constant = sparse.csr_array(entries(values.to_numpy()))

    def same():
        make()
        ds.ad.linear_solve(constant, b, x)
        measure()

    before = p.grad.to_numpy()
    np.testing.assert_allclose(check(same, loss, p, rel=1e-8)[0], before, rtol=1e-6)
    singular = sparse.csr_array(np.diag([1.0, 2.0, 0.0, 1.0, 1.0]))
    with pytest.raises(ds.SolveError, match="singular"):
        ds.ad.linear_solve(singular, b, x)


def test_the_solution_in_place_of_the_right_hand_side(program):
    make, _, p, b, _, loss = program
    a = matrix()

    @ds.kernel
    def measure():
        for i in b:
            loss[None] += (i + 1) * b[i] ** 2

    def run():
        make()
        ds.ad.linear_solve(a, b, b)
        ds.ad.linear_solve(a, b, b)  # twice on one tape
        measure()

    check(run, loss, p, rel=1e-8)


def test_vectors_in_f32(cpu):
    a = (numbers(6, 6) + 4 * np.eye(6)).astype(np.float32)
    b, x, loss = (field(3, n=2, dtype=ds.f32), field(3, n=2, dtype=ds.f32), field(dtype=ds.f32))

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i].dot(x[i])

    b.from_numpy(numbers(3, 2).astype(np.float32))
    for method in ("lu", "gmres"):
        with ds.Tape(loss):
            ds.ad.linear_solve(a, b, x, method=method)
            measure()
        found = np.linalg.solve(a.astype(float), b.to_numpy().reshape(-1).astype(float))
        np.testing.assert_allclose(x.to_numpy().reshape(-1), found, rtol=1e-5)
        expected = np.linalg.solve(a.T.astype(float), 2 * found)
        np.testing.assert_allclose(b.grad.to_numpy().reshape(-1), expected, rtol=1e-5)


def test_a_second_pass_and_other_seeds(program):
    make, _, p, b, x, _ = program
    a = matrix()
    tape = ds.Tape()
    with tape:
        make()
        ds.ad.linear_solve(a, b, x)
    jacobian = np.linalg.inv(a) * (np.cos(p.to_numpy()) + 0.3)
    for row in range(N):
        tape.backward(grads={x: np.eye(N)[row]})
        np.testing.assert_allclose(p.grad.to_numpy(), jacobian[row], rtol=1e-10, atol=1e-14)
        tape.zero()
    assert ds.ad.gradcheck(
        lambda: (make(), ds.ad.linear_solve(a, b, x)), [p], [x], show_summary=False
    )
    found = ds.ad.jacobian(lambda: (make(), ds.ad.linear_solve(a, b, x)), [p], [x], sparsity="auto")
    np.testing.assert_allclose(found[p, x], jacobian, rtol=1e-10, atol=1e-14)


def test_what_it_used_may_change_afterwards(program):
    """The adjoint has copies of the matrix and the solution."""
    make, measure, p, b, x, loss = program
    values = field((N, N))
    values.from_numpy(matrix())

    def run(spoil):
        with ds.Tape(loss):
            make()
            ds.ad.linear_solve(values, b, x)
            measure()
            if spoil:
                with ds.ad.no_grad():
                    values.fill(7.0)
                    b.fill(3.0)
        return p.grad.to_numpy()

    expected = run(False)
    np.testing.assert_array_equal(run(True), expected)


def lifted_steps():
    """Implicit Euler of a chain of masses, in place: (1 - dt^2 K(k)) v <- v + dt f(x)."""
    k, x, v = field(N), field(N), field(N, grad=False)
    values, loss = field((N, N)), field()

    @ds.kernel
    def assemble():
        for i, j in ds.ndrange(N, N):
            values[i, j] = 0.0
            if i == j:
                values[i, j] = 1.0 + 0.2 * k[i] * (1 + 0.1 * x[i] ** 2)
            if abs(i - j) == 1:
                values[i, j] = -0.05 * k[min(i, j)]

    @ds.kernel
    def push():
        for i in x:
            v[i] = v[i] - 0.1 * k[i] * ds.sin(x[i])

    @ds.kernel
    def move():
        for i in x:
            x[i] += 0.1 * v[i]

    def step(t):
        assemble()
        push()
        ds.ad.linear_solve(values, v, v, method="gmres")
        move()

    return k, x, v, loss, step


def test_state_that_is_overwritten_and_checkpoints(cpu, quick_code):
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules="lifted", cpu_max_num_threads=1)
    k, x, v, loss, step = lifted_steps()

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    def run(stiffness, how):
        k.from_numpy(stiffness)
        x.from_numpy(numbers(N, seed=5))
        v.fill(0.0)
        with ds.Tape(loss):
            if how is None:
                for t in range(6):
                    step(t)
            else:
                ds.ad.checkpoint(step, 6, state=[x, v], **how)
            measure()
        return loss[None], k.grad.to_numpy()

    start = 1 + numbers(N, seed=6) ** 2
    _, found = run(start, None)
    for i in range(N):
        h = 1e-5 * np.eye(N)[i]
        slope = (run(start + h, None)[0] - run(start - h, None)[0]) / 2e-5
        assert abs(found[i] - slope) <= 1e-8 * max(1, abs(slope))
    for how in (
        {"snapshots": 2},
        {"schedule": "equidistant"},
        {"schedule": "binomial", "snapshots": 2},
    ):
        np.testing.assert_allclose(run(start, how)[1], found, rtol=1e-12)


def test_a_rollout_refuses_what_it_read_and_was_changed(cpu, quick_code):
    """A right-hand side that is not in the state, and is changed after the rollout."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules="lifted")
    b, x, y, loss = field(N), field(N), field(N), field()
    a = matrix()

    @ds.kernel
    def add():
        for i in x:
            y[i] += x[i] ** 2

    @ds.kernel
    def measure():
        for i in y:
            loss[None] += y[i]

    def step(t):
        ds.ad.linear_solve(a, b, x)
        add()

    b.fill(1.0)
    with pytest.raises(ds.GlobalDataAccessError, match="b, and"), ds.Tape(loss, in_place="refuse"):
        ds.ad.checkpoint(step, 4, state=[y], snapshots=1)
        b.fill(2.0)
        measure()


def test_code_without_gradients_and_plain_calls(program):
    make, measure, p, b, x, loss = program
    a = matrix()
    make()
    ds.ad.linear_solve(a, b, x)
    np.testing.assert_allclose(a @ x.to_numpy(), b.to_numpy(), rtol=1e-12)
    with ds.Tape(loss):
        make()
        with ds.ad.no_grad():
            ds.ad.linear_solve(a, b, x)
        measure()
    assert not p.grad.to_numpy().any()


def test_a_function_with_a_gradient_of_its_own(program):
    make, measure, p, b, x, loss = program
    a = matrix()

    @ds.ad.grad_replaced
    def solve():
        ds.ad.linear_solve(a, b, x)

    @ds.ad.grad_for(solve, check=True)
    def adjoint():
        b.grad.from_numpy(b.grad.to_numpy() + np.linalg.solve(a.T, x.grad.to_numpy()))
        x.grad.fill(0)

    def run():
        make()
        solve()
        measure()

    check(run, loss, p, rel=1e-8)


# ---- refusals


def test_wrong_matrices(program):
    _, _, _, b, x, _ = program
    b.fill(1.0)
    wrong = [
        (np.ones((N, N)), {}, ds.SolveError, "singular"),
        (np.ones((N, 3)), {}, ds.ArgumentError, "shape"),
        (np.diag([1.0, 1, 1, 1, -1]), {"method": "cg"}, ds.SolveError, "positive definite"),
        (matrix(), {"method": "cg"}, ds.SolveError, "not symmetric"),
        (matrix(), {"symmetric": True}, ds.SolveError, "not symmetric"),
        (np.full((N, N), np.nan), {}, ds.SolveError, "NaN"),
        (matrix(), {"method": "jacobi"}, ds.ArgumentError, "method"),
        (matrix(), {"tolerance": -1.0}, ds.ArgumentError, "tolerance"),
        (matrix(), {"method": "gmres", "max_iterations": 1}, ds.SolveError, "1 iterations"),
        ((np.ones(3), ([0, 1, 2], [0, 1, N])), {}, ds.ArgumentError, "column 5"),
        ((np.ones(2), ([0, 1, 2], [0, 1, 2])), {}, ds.ArgumentError, "2 numbers"),
        ("matrix", {}, ds.ArgumentError, "a matrix is not"),
    ]
    before = x.to_numpy()
    for a, options, error, words in wrong:
        with pytest.raises(error, match=words) as raised:
            ds.ad.linear_solve(a, b, x, **options)
        assert "ds.ad.linear_solve(a, b, x, **options)" in str(raised.value)
        np.testing.assert_array_equal(x.to_numpy(), before)
    tiny = np.diag([1e-20, 1e20, 1, 1, 1.0])  # small units, and not singular
    ds.ad.linear_solve(tiny, b, x)
    np.testing.assert_allclose(x.to_numpy(), 1 / np.diag(tiny))


def test_wrong_fields(program):
    make, _, _, b, x, loss = program
    a = matrix()
    other = ds.field(ds.f64, shape=N)
    with pytest.raises(ds.FieldError, match="3"):
        ds.ad.linear_solve(a, field(3), x)
    with pytest.raises(ds.FieldError, match="i32"):
        ds.ad.linear_solve(a, ds.field(ds.i32, shape=N), x)
    with pytest.raises(ds.FieldError, match="a field"):
        ds.ad.linear_solve(a, np.ones(N), x)
    with pytest.raises(ds.MissingGradientError, match="no gradient"), ds.Tape(loss):
        make()
        ds.ad.linear_solve(a, b, other)
    with pytest.raises(ds.AutodiffError, match="field"), ds.Tape(loss):
        ds.ad.linear_solve(a * b.to_numpy()[0], b, x)
    seeded = ds.ad.FwdMode(loss, {b: np.ones(N)})
    with pytest.raises(ds.AutodiffError, match="field"), seeded:
        ds.ad.linear_solve(a * b.to_numpy()[0], b, x)
