"""Sparse Jacobians: which outputs depend on which inputs, coloured passes, and patterns that are given."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.jacobians.coloring import colours_of, pattern_of

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


def field(*shape, element=(), seed=0, dtype=ds.f64):
    if element:
        f = ds.Vector.field(*element, dtype, shape=shape, needs_grad=True)
    else:
        f = ds.field(dtype, shape=shape, needs_grad=True)
    numbers = np.random.default_rng(seed).uniform(0.5, 2, (*shape, *element))
    f.from_numpy(numbers.astype(dtype.numpy))
    return f


def both(function, ins, outs, most=0):
    """Return the matrices by a found pattern, tested against those by rows."""
    found = ds.ad.jacobian(function, ins, outs, sparsity="auto")
    dense = ds.ad.jacobian(function, ins, outs)
    for pair, matrix in dense.items():
        np.testing.assert_allclose(found[pair], matrix, rtol=1e-12, atol=1e-13)
    if most:
        assert found.passes <= most
    return found


# ---- colours and patterns, by themselves


def test_colours_tell_rows_apart_that_share_a_column():
    rng = np.random.default_rng(0)
    matrix = rng.random((60, 40)) < 0.06
    matrix[7] = False
    pattern = pattern_of(*matrix.nonzero(), matrix.shape)
    colours = colours_of(pattern)
    assert (colours < 0).tolist() == (~matrix.any(axis=1)).tolist()
    for k in range(colours.max() + 1):
        assert matrix[colours == k].sum(axis=0).max() == 1
    back = pattern.transposed().transposed()
    assert back.columns.tolist() == pattern.columns.tolist()
    # At most one more than the number of rows that a row shares columns with.
    meets = (matrix.astype(int) @ matrix.T.astype(int) > 0).sum(axis=1).max()
    assert colours.max() + 1 <= meets


@pytest.mark.parametrize(("height", "width"), [(1, 1), (30, 64), (65, 65), (70, 513), (300, 1000)])
def test_patterns_are_found_bit_by_bit(height, width):
    """The search by blocks against a matrix that is known; what runs answer is computed from it."""
    from diffsim.ad.jacobians.dependence import _refined

    rng = np.random.default_rng(height)
    matrix = rng.random((height, width)) < 2 / width
    near = np.arange(width) * height // width
    matrix[near, np.arange(width)] = True
    matrix[:, width // 2] = False  # an input without effect
    calls = []

    def run(words):
        calls.append(words)
        return np.array([np.bitwise_or.reduce(words[row], initial=0) for row in matrix], np.uint64)

    pattern = _refined(run, height, width, 10**6)
    found = np.zeros_like(matrix)
    found[pattern.rows, pattern.columns] = True
    assert (found == matrix).all()
    assert len(calls) <= 40
    if width > 64:
        assert _refined(run, height, width, 1) is None


# ---- stencils and batches


@pytest.mark.parametrize("n", [5, 13])
def test_a_nine_point_stencil(n):
    u, v = field(n, n), field(n, n)

    @ds.kernel
    def step():
        for i, j in v:
            s = ds.cast(0.0, ds.f64)
            for a in ds.static(range(-1, 2)):
                for b in ds.static(range(-1, 2)):
                    k, m = i + a, j + b
                    if 0 <= k < n and 0 <= m < n:
                        s += (1 + a + 2 * b) * u[k, m] ** 2
            v[i, j] = s

    J = ds.ad.jacobian(step, [u], [v], sparsity="auto")
    assert J.passes <= 16
    assert J.runs <= 4
    U = u.to_numpy()
    expected = np.zeros((n, n, n, n))
    for i, j, a, b in np.ndindex(n, n, 3, 3):
        k, m = i + a - 1, j + b - 1
        if 0 <= k < n and 0 <= m < n:
            expected[i, j, k, m] = 2 * (a + 2 * b - 2) * U[k, m]
    np.testing.assert_allclose(J[u, v].reshape(expected.shape), expected, rtol=1e-13, atol=0)


def test_stencils_in_one_and_three_dimensions_and_of_vectors():
    x, y = field(90), field(90)
    p, q = field(6, 5, 7), field(6, 5, 7)
    w, z = field(40, element=(3,)), field(40, element=(3,))

    @ds.kernel
    def line():
        for i in x:
            y[i] = ds.sin(x[i]) * x[(i + 1) % 90] - x[(i + 89) % 90]

    @ds.kernel
    def box():
        for i, j, k in p:
            q[i, j, k] = p[i, j, k] ** 3
            if i > 0:
                q[i, j, k] += p[i - 1, j, k]
            if j > 0:
                q[i, j, k] += p[i, j - 1, k] ** 2
            if k > 0:
                q[i, j, k] += p[i, j, k - 1]

    @ds.kernel
    def chain():
        for i in w:
            z[i] = w[i].cross(w[(i + 1) % 40]) * w[i].norm()

    both(line, [x], [y], most=6)
    both(box, [p], [q], most=12)
    both(chain, [w], [z], most=14)


def test_a_batch_takes_one_pass_for_each_output_of_an_environment():
    envs, m, n = 40, 4, 6
    A, x, y = field(m, n), field(envs, n), field(envs, m)

    @ds.kernel
    def apply():
        for e, k in y:
            s = ds.cast(0.0, ds.f64)
            for j in ds.static(range(n)):
                s += A[k, j] * x[e, j] ** 2
            y[e, k] = s

    J = both(apply, [x], [y])
    assert J.passes == m + 1
    X = x.to_numpy()
    for e in range(envs):
        block = J[x, y].reshape(envs, m, envs, n)[e, :, e]
        np.testing.assert_allclose(block, 2 * A.to_numpy() * X[e], rtol=1e-13)


def test_a_dense_matrix_costs_no_more_than_its_rows():
    x, y = field(200), field(5)

    @ds.kernel
    def mix():
        for i in x:
            for k in range(5):
                y[k] += x[i] ** (k + 1)

    J = both(mix, [x], [y])
    assert J.passes <= 6
    assert J.runs <= 5


# ---- whatever programs do


def test_control_flow_and_memory_of_kernels():
    n = 70
    x, y, z, low = field(n), field(n), field(n), field(3)
    at = ds.field(ds.i32, shape=n)
    at.from_numpy(np.random.default_rng(1).permutation(n).astype(np.int32))

    @ds.kernel
    def branches():
        for i in x:
            if x[i] > 1:
                y[i] = x[i] * x[at[i]]
            elif i % 3 == 0:
                y[i] = ds.floor(x[(i + 2) % n]) + ds.stop_grad(x[0])
            else:
                y[i] = ds.max(x[i], x[(i + 5) % n])

    @ds.kernel
    def loops():
        for i in x:
            a, b = x[i], ds.cast(1.0, ds.f64)
            for k in range(i % 4):
                a, b = b * x[(i + k) % n], a
            c = ds.cast(1.0, ds.f64)
            while c < 3:
                c += x[i] * x[i]
            z[i] = a * c + b

    @ds.kernel
    def sweep():
        ds.loop_config(serialize=True)
        for i in range(n):
            z[i] = z[i] * x[i]

    @ds.kernel
    def least():
        for i in y:
            ds.atomic_min(low[i % 3], y[i])

    low.fill(100.0)
    both(branches, [x], [y])
    both(loops, [x], [z])
    J = both(sweep, [x, z], [z])
    assert J.passes == 2  # one lane, and yet each output depends on its own inputs only
    both(least, [y], [low])

    def program():
        branches()
        loops()
        sweep()
        ds.copy(x, z)
        y[3] = 2.0
        ds.copy(y, z, dest_offset=10, src_offset=5, count=4)
        least()

    both(program, [x, z], [x, y, z, low])


def test_in_place_steps_spread():
    n = 200
    x, y = field(n), field(n)

    @ds.kernel
    def step():
        for i in x:
            y[i] = x[i] + 0.1 * ds.sin(x[(i + 1) % n])

    @ds.kernel
    def back():
        for i in x:
            x[i] = y[i] * (1 + 0.1 * ds.random())

    def program(steps):
        for _ in range(steps):
            step()
            back()

    for steps in (1, 4):
        J = both(lambda: program(steps), [x], [x])  # noqa: B023
        assert J.passes <= 2 * steps + 4
        assert (J[x, x] != 0).sum() == n * (steps + 1)
    rollout = both(lambda: ds.ad.checkpoint(lambda t: program(1), 3, state=[x, y]), [x], [x])
    assert rollout.passes <= 10


def test_matrices_and_decompositions():
    F = ds.Matrix.field(2, 2, ds.f64, shape=9, needs_grad=True)
    P = ds.Matrix.field(2, 2, ds.f64, shape=9, needs_grad=True)
    F.from_numpy(np.eye(2) + 0.2 * np.random.default_rng(2).random((9, 2, 2)))

    @ds.kernel
    def stress():
        for i in F:
            U, S, V = ds.svd(F[i])
            P[i] = 2.0 * (F[i] - U @ V.transpose()) @ F[i].transpose() * S.determinant()

    assert both(stress, [F], [P]).passes == 5


def test_gradients_that_are_given():
    """What a rule says, and not the body, decides: round has derivative 0, its rule says 1."""
    n = 80
    x, y, k = field(n), field(n), field(1)

    @ds.func
    def steps(a, b):
        return ds.round(a)

    @ds.func_grad(steps)
    def steps_adjoint(a, b, g):
        ds.adjoint[a] += g
        ds.adjoint[b] += 2 * g

    @ds.kernel
    def f():
        for i in x:
            y[i] = steps(x[i], x[(i + 1) % n])

    J = both(f, [x], [y], most=5)
    assert J[x, y][0, :3].tolist() == [1, 2, 0]

    @ds.func
    def scaled(a):
        return a * k[0]

    @ds.func_grad(scaled)
    def scaled_adjoint(a, g):
        ds.adjoint[a] += g * k[0]
        ds.adjoint[k][0] += g * a

    @ds.kernel
    def h():
        for i in x:
            y[i] = scaled(x[i])

    assert both(h, [x, k], [y]).passes == n  # a rule that names memory: row by row

    @ds.ad.grad_replaced
    def forward():
        with ds.ad.no_grad():
            y.from_numpy(x.to_numpy()[::-1].copy())

    @ds.ad.grad_for(forward)
    def backward():
        x.grad.from_numpy(x.grad.to_numpy() + y.grad.to_numpy()[::-1])
        y.grad.fill(0)

    J = both(forward, [x], [y])
    np.testing.assert_array_equal(J[x, y], np.eye(n)[::-1])


def test_values_that_go_through_python():
    n = 70
    x, y = field(n), field(n)

    @ds.kernel
    def mean() -> ds.f64:
        s = ds.cast(0.0, ds.f64)
        for i in x:
            s += x[i]
        return s

    @ds.kernel
    def shift():
        for i in x:
            y[i] += x[i]

    def program():
        y[3] = 2.0 * mean()
        shift()

    J = both(program, [x], [y])
    assert (J[x, y][3] == 2).sum() == n - 1


def test_numbers_of_f32():
    x, y = (field(100, dtype=ds.f32, seed=k) for k in range(2))

    @ds.kernel
    def f():
        for i in x:
            y[i] = ds.exp(x[i]) / x[(i + 1) % 100]

    J = ds.ad.jacobian(f, [x], [y], sparsity="auto")
    assert J.passes <= 5
    np.testing.assert_allclose(J[x, y], ds.ad.jacobian(f, [x], [y])[x, y], rtol=1e-6)


# ---- patterns that are given, parts, SciPy


def cubes(n=6):
    x, y, z = field(n), field(n), field(n)

    @ds.kernel
    def f():
        for i in x:
            y[i] = x[i] ** 3
            z[i] = x[0] * x[i]

    return x, y, z, f


def test_a_pattern_that_is_given():
    x, y, z, f = cubes()
    J = ds.ad.jacobian(f, [x], [y], sparsity=np.eye(6))
    assert J.passes == 2
    np.testing.assert_allclose(J[x, y], np.diag(3 * x.to_numpy() ** 2), rtol=1e-13)
    arrow = np.eye(6) + np.eye(6)[[0] * 6]
    J = ds.ad.jacobian(f, [x], [y, z], sparsity={(x, y): np.eye(6), (x, z): arrow})
    np.testing.assert_allclose(J[x, z], ds.ad.jacobian(f, [x], [z])[x, z], rtol=1e-13)
    for wrong in (np.eye(6)[::-1], np.zeros((6, 6)), np.eye(6) - np.eye(1, 36).reshape(6, 6)):
        with pytest.raises(
            ds.AutodiffError, match="the sparsity pattern lacks derivatives with re"
        ):
            ds.ad.jacobian(f, [x], [y], sparsity=wrong)
    for wrong in (np.eye(5), "dense", 3, {(y, x): np.eye(6)}, {"x": np.eye(6)}):
        with pytest.raises(ds.ArgumentError, match=r"pattern is a|not possible|no pair"):
            ds.ad.jacobian(f, [x], [y], sparsity=wrong)
    with pytest.raises(ds.ArgumentError, match="2 pairs of inputs and outputs, and one pattern"):
        ds.ad.jacobian(f, [x], [y, z], sparsity=np.eye(6))


def test_parts_of_a_sparse_jacobian():
    x, y, z, f = cubes()
    whole = ds.ad.jacobian(f, [x], [y, z])
    part = ds.ad.jacobian(f, [x], [y, z], sparsity="auto", max_outputs_per_var=2)
    for o in (y, z):
        np.testing.assert_allclose(part[x, o][:2], whole[x, o][:2], rtol=1e-13)
        assert np.isnan(part[x, o][2:]).all()
    one = ds.ad.jacobian(f, [x], [y, z], sparsity="auto", input_output_mask=[(0, 1)])
    assert list(one) == [(x, z)]
    np.testing.assert_allclose(one[x, z], whole[x, z], rtol=1e-13)


def test_matrices_of_scipy():
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is optional")
    x, y, z, f = cubes()
    J = ds.ad.jacobian(f, [x], [y, z], sparse=True)
    assert isinstance(J[x, y], sparse.csr_array)
    assert J[x, y].nnz == 6
    np.testing.assert_allclose(J[x, z].toarray(), ds.ad.jacobian(f, [x], [z])[x, z], rtol=1e-13)
    again = ds.ad.jacobian(f, [x], [y], sparse=True, sparsity=J[x, y])
    np.testing.assert_array_equal(again[x, y].toarray(), J[x, y].toarray())
    ds.ad.jacobian_plot(J, show_plot=False)


def test_without_scipy(monkeypatch):
    x, y, _, f = cubes()
    monkeypatch.setitem(__import__("sys").modules, "scipy.sparse", None)
    with pytest.raises(ds.MissingPackageError, match=r"not installed[\s\S]*diffsim-lang\[sparse\]"):
        ds.ad.jacobian(f, [x], [y], sparse=True)


def test_all_is_as_before():
    x, y, _, f = cubes()
    y.fill(3.0)
    x.grad.fill(4.0)
    ds.ad.jacobian(f, [x], [y], sparsity="auto")
    assert y.to_numpy().tolist() == [3.0] * 6
    assert x.grad.to_numpy().tolist() == [4.0] * 6
    with ds.Tape():
        f()
    np.testing.assert_allclose(y.to_numpy(), x.to_numpy() ** 3)
