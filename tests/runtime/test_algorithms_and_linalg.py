"""`ds.algorithms` and `ds.linalg`: sorting, prefix sums, sparse matrices that kernels fill, and solvers."""

import warnings

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import (
    ArgumentError,
    AutodiffError,
    DiffsimError,
    FieldError,
    KernelTypeError,
    OptionError,
)
from tests.support.gradients import check, field, numbers

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


def test_sorting_keeps_values_and_gradients_together():
    keys, values, loss = field(5), field(5, n=2), field()
    x = field(5)

    @ds.kernel
    def put():
        for i in x:
            keys[i] = x[i] * x[i]
            values[i] = [x[i], 3.0 * i]

    @ds.kernel
    def use():
        for i in x:
            loss[None] += keys[i] * (i + 1) + values[i].x * values[i].y

    def program():
        put()
        ds.algorithms.parallel_sort(keys, values)
        use()

    x.from_numpy(np.array([3.0, -1.0, 2.0, -5.0, 4.0]))
    check(program, loss, x)
    program()
    np.testing.assert_array_equal(keys.to_numpy(), [1, 4, 9, 16, 25])
    np.testing.assert_array_equal(values.to_numpy()[:, 0], [-1, 2, 3, 4, -5])
    with pytest.raises(FieldError, match="one axis of one length"):
        ds.algorithms.parallel_sort(keys, field(4))
    with pytest.raises(ArgumentError, match="vectors have no order"):
        ds.algorithms.parallel_sort(values)


def test_prefix_sums():
    n = 3000  # of three blocks, the last one not full
    x = ds.field(ds.i32, shape=n)
    given = np.random.default_rng(0).integers(-9, 9, n).astype(np.int32)
    x.from_numpy(given)
    ds.algorithms.PrefixSumExecutor(n).run(x)
    np.testing.assert_array_equal(x.to_numpy(), np.cumsum(given))
    with pytest.raises(FieldError, match="sums fields of 4 numbers"):
        ds.algorithms.PrefixSumExecutor(4).run(x)


def test_a_prefix_sum_has_a_gradient():
    x, y, loss = field(3), field(3), field()

    @ds.kernel
    def put():
        for i in x:
            y[i] = x[i] * x[i]

    @ds.kernel
    def use():
        for i in x:
            loss[None] += y[i] * y[i]

    def program():
        put()
        ds.algorithms.PrefixSumExecutor(3).run(y)
        use()

    x.from_numpy(numbers(3, seed=1))
    check(program, loss, x)


@pytest.fixture
def poisson():
    """A one-dimensional Poisson matrix as a kernel fills it, and as an array."""
    pytest.importorskip("scipy")
    n = 5
    builder = ds.linalg.SparseMatrixBuilder(n, n, max_num_triplets=3 * n, dtype=ds.f64)

    @ds.kernel
    def fill(a: ds.types.sparse_matrix_builder(), scale: ds.f64):
        for i in range(n):
            a[i, i] += 2.5 * scale
            if i > 0:
                a[i - 1, i] -= scale
                a[i, i - 1] += -scale

    fill(builder, 2.0)
    dense = 2.0 * (2.5 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))
    return builder.build(), dense, builder, fill


def test_sparse_matrices(poisson):
    a, dense, builder, fill = poisson
    v = numbers(5, seed=2)
    np.testing.assert_allclose(a.to_scipy().toarray(), dense)
    np.testing.assert_allclose(a @ v, dense @ v)
    b = (a + a * 0.5 - a @ a).transpose()
    np.testing.assert_allclose(b.to_scipy().toarray(), (1.5 * dense - dense @ dense).T)
    assert (a[1, 0], a.shape, a.dtype) == (-2.0, (5, 5), ds.f64)
    b[0, 4] = 7.0
    assert b[0, 4] == 7.0
    x = ds.ndarray(ds.f64, shape=5)
    x.from_numpy(v)
    np.testing.assert_allclose((a @ x).to_numpy(), dense @ v)
    # `build` has forgotten the triplets; too many are refused where they are read.
    fill(builder, 1.0)
    fill(builder, 1.0)
    with pytest.raises(ArgumentError, match="26 triplets were added, and there is room for 15"):
        builder.build()
    for wrong in (lambda: a + 1.0, lambda: a @ 1.0, lambda: a + ds.linalg.SparseMatrix(4)):
        with pytest.raises(KernelTypeError):
            wrong()


@pytest.mark.parametrize("kind", ["LLT", "LDLT", "LU"])
def test_direct_solvers(poisson, kind):
    a, dense, *_ = poisson
    b = numbers(5, seed=3)
    solver = ds.linalg.SparseSolver(dtype=ds.f64, solver_type=kind)
    solver.analyze_pattern(a)
    solver.factorize(a)
    assert solver.info()
    np.testing.assert_allclose(solver.solve(b), np.linalg.solve(dense, b))
    solver.factorize(a * -1.0)
    assert solver.info() == (kind != "LLT")  # not positive definite
    a[0, 4] = 1.0
    if kind == "LU":
        solver.compute(a)
        dense[0, 4] = 1.0
        np.testing.assert_allclose(solver.solve(b), np.linalg.solve(dense, b))
    else:
        with pytest.raises(ArgumentError, match="is for symmetric matrices"):
            solver.compute(a)


def test_conjugate_gradients(poisson):
    a, dense, *_ = poisson
    b = numbers(5, seed=4)
    x, good = ds.linalg.SparseCG(a, b, max_iter=50, atol=1e-10).solve()
    assert good
    np.testing.assert_allclose(x, np.linalg.solve(dense, b), atol=1e-9)
    assert not ds.linalg.SparseCG(a, b, max_iter=1, atol=1e-10).solve()[1]


def test_solvers_of_operators():
    n = 6
    x, b = field((n, n), grad=False), field((n, n), grad=False)

    @ds.kernel
    def apply(v: ds.template(), out: ds.template()):
        for i, j in v:
            left = v[i - 1, j] if i > 0 else 0.0
            right = v[i + 1, j] if i < n - 1 else 0.0
            out[i, j] = 3.0 * v[i, j] - left - right

    b.from_numpy(numbers(n, n, seed=5))
    dense = 3.0 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    want = np.linalg.solve(dense, b.to_numpy())
    for solve in (ds.linalg.MatrixFreeCG, ds.linalg.MatrixFreeBICGSTAB):
        x.fill(0.0)
        assert solve(ds.linalg.LinearOperator(apply), b, x, tol=1e-10, maxiter=200)
        np.testing.assert_allclose(x.to_numpy(), want, atol=1e-9)
    assert not ds.linalg.MatrixFreeCG(ds.linalg.LinearOperator(apply), b, x, tol=0.0, maxiter=1)


def test_a_tape_refuses_what_it_would_take_for_constant():
    loss = field()
    b, x = field(3), field(3)
    with pytest.raises(AutodiffError, match="has no gradient"), ds.Tape(loss):
        ds.linalg.MatrixFreeCG(ds.linalg.LinearOperator(lambda v, out: None), b, x)


def test_gradients_are_cleared_and_warnings_follow_the_level():
    x = field(3)
    x.grad.fill(2.0)
    ds.ad.clear_all_gradients()
    assert x.grad.to_numpy().tolist() == [0, 0, 0]

    def narrow(level):
        ds.init(arch=ds.cpu, log_level=level, check_out_of_bound=True, print_full_traceback=False)
        y = ds.field(ds.i32, shape=2)

        @ds.kernel
        def store(v: ds.f64):
            y[0] = v

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            store(1.0)
        return [w.category for w in found]

    assert narrow(ds.INFO) == [ds.PrecisionLoss]
    assert narrow(ds.ERROR) == []
    assert ds.is_logging_effective(ds.ERROR)
    assert not ds.is_logging_effective(ds.WARN)
    ds.set_logging_level(ds.INFO)
    assert narrow("info") == [ds.PrecisionLoss]
    with pytest.raises(DiffsimError, match="there is no level"):
        ds.set_logging_level("loud")
    with pytest.raises(OptionError, match="default unsigned"):
        ds.init(arch=ds.cpu, default_up=ds.u64)
    ds.init(arch=ds.cpu, default_ip=ds.i64, default_up=ds.u64)
    ds.profiler.clear_scoped_profiler_info()


def test_a_sparse_matrix_is_built_of_triplets(cpu):
    pytest.importorskip("scipy", reason="SciPy is not installed")
    matrix = ds.linalg.SparseMatrix(2, 3)
    triplets = ds.Vector.ndarray(3, ds.f32, 3)
    triplets.from_numpy(np.array([[0, 2, 1.5], [1, 0, 2.0], [0, 2, 1.0]]))
    matrix.build_from_ndarray(triplets)
    np.testing.assert_array_equal(matrix.to_scipy().todense(), [[0, 0, 2.5], [2, 0, 0]])
    for wrong in ([0, 3, 1.0], [0, 0.5, 1.0], [-1, 0, 1.0], [0, 0], [np.nan, 0, 1.0]):
        with pytest.raises(ds.ArgumentError, match="not made of triplets"):
            matrix.build_from_ndarray(np.array(wrong))
