"""Vectors and matrices, in kernels and in Python, against NumPy."""

import math

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def returned(ds, function, shape, *arguments):
    """What a func of vectors and matrices gives in a kernel; shape () for a number."""
    compiled = ds.func(function)
    result = ds.f64
    if shape:
        result = (ds.types.vector if len(shape) == 1 else ds.types.matrix)(*shape, ds.f64)
    fields = []
    for a in arguments:
        a = np.asarray(a, float)
        make = [ds.field, ds.Vector.field, ds.Matrix.field][a.ndim]
        fields.append(make(*a.shape, dtype=ds.f64, shape=()))
        if a.ndim:
            fields[-1].from_numpy(a)
        else:
            fields[-1][None] = float(a)

    @ds.kernel
    def run() -> result:
        return compiled(*[f[None] for f in ds.static(fields)])

    found = run()
    return found.to_numpy() if shape else found


def both(ds, function, expected, *arguments, exact=False):
    """The function gives the expected numbers in a kernel and in Python."""
    expected = np.asarray(expected, float)
    in_kernel = returned(ds, function, expected.shape, *arguments)
    as_vectors = [ds.Matrix(a) if np.ndim(a) else a for a in arguments]
    in_python = np.asarray(function(*as_vectors))
    for found in (in_kernel, in_python):
        assert np.shape(found) == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0 if exact else 1e-12, atol=1e-13)


def test_arithmetic_works_element_by_element(cpu):
    for shape in [(3,), (2, 3)]:
        a, b = RNG.uniform(1, 2, (2, *shape))
        both(cpu, lambda_add, a + b, a, b)
        both(cpu, lambda_mixed, 2 * a - b / a + 1 / b - (-a) + b * 0.5, a, b)
        both(cpu, lambda_floor, (10 * a) // b + (10 * a) % b, a, b)
        both(cpu, lambda_power, a**2 + b**3, a, b)
        both(cpu, lambda_scalar, 3.5 * a + 1.25 - a / 3.5, a, 3.5)


def lambda_add(a, b):
    return a + b


def lambda_mixed(a, b):
    return 2 * a - b / a + 1 / b - (-a) + b * 0.5


def lambda_floor(a, b):
    return (10 * a) // b + (10 * a) % b


def lambda_power(a, b):
    return a**2 + b**3


def lambda_scalar(a, s):
    return s * a + 1.25 - a / s


def test_sums_norms_and_products(cpu):
    a, b = RNG.normal(size=(2, 4))

    def measures(a, b):
        return a.dot(b) + 10 * a.norm() + 100 * a.norm_sqr() + 1000 * a.norm(0.5)

    exact = a @ b + 10 * np.linalg.norm(a) + 100 * a @ a + 1000 * np.sqrt(a @ a + 0.5)
    both(cpu, measures, exact, a, b)

    def extremes(a, b):
        return a.sum() + 10 * a.max() + 100 * b.min()

    both(cpu, extremes, a.sum() + 10 * a.max() + 100 * b.min(), a, b)

    def inverses(a):
        return a.norm_inv() + a.norm_inv(1.0) + a.norm_sqr(2.0)

    n = a @ a
    both(cpu, inverses, n**-0.5 + (n + 1) ** -0.5 + n + 2, a)

    def unit(a):
        return a.normalized() + a.normalized(0.25)

    both(cpu, unit, a / np.sqrt(n) + a / (np.sqrt(n) + 0.25), a)


def test_measures_of_matrices(cpu):
    A, B = RNG.normal(size=(2, 3, 2))

    def measures(A, B):
        return A.norm_sqr() + 10 * A.sum() + 100 * B.max() + 1000 * A.dot(B) + A.min()

    exact = (A**2).sum() + 10 * A.sum() + 100 * B.max() + 1000 * (A * B).sum() + A.min()
    both(cpu, measures, exact, A, B)


def test_cross_and_outer_products(cpu):
    a, b = RNG.normal(size=(2, 3))

    def cross(a, b):
        return a.cross(b)

    def outer(a, b):
        return a.outer_product(b)

    both(cpu, cross, np.cross(a, b), a, b)
    both(cpu, cross, a[0] * b[1] - a[1] * b[0], a[:2], b[:2])
    both(cpu, outer, np.outer(a, b), a, b)
    both(cpu, outer, np.outer(a, b[:2]), a, b[:2])


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_determinant_inverse_trace(cpu, n):
    A = RNG.normal(size=(n, n)) + 2 * np.eye(n)

    def determinant(A):
        return A.determinant()

    def inverse(A):
        return A.inverse()

    def trace(A):
        return A.trace()

    both(cpu, determinant, np.linalg.det(A), A)
    both(cpu, inverse, np.linalg.inv(A), A)
    both(cpu, trace, np.trace(A), A)


def test_matrix_products(cpu):
    A, B = RNG.normal(size=(2, 3)), RNG.normal(size=(3, 4))
    v = RNG.normal(size=3)

    def product(A, B):
        return A @ B

    def transposed(A):
        return A.transpose() @ A

    both(cpu, product, A @ B, A, B)
    both(cpu, product, A @ v, A, v)
    both(cpu, transposed, A.T @ A, A)


def test_vector_times_matrix_in_a_kernel(cpu):
    A, v = RNG.normal(size=(3, 2)), RNG.normal(size=3)

    def product(v, A):
        return v @ A

    np.testing.assert_allclose(returned(cpu, product, (2,), v, A), v @ A, 1e-12)


def test_elementary_functions_of_vectors(cpu):
    a = RNG.uniform(0.1, 0.9, 3)
    ds = cpu

    def many(a):
        return ds.sin(a) + ds.exp(a) * ds.sqrt(a) + ds.max(a, 0.5) + abs(-a) + ds.atan2(a, 1.0 - a)

    exact = np.sin(a) + np.exp(a) * np.sqrt(a) + np.maximum(a, 0.5) + a + np.arctan2(a, 1 - a)
    np.testing.assert_allclose(returned(ds, many, (3,), a), exact, 1e-12)


# ---- elements


def test_components_by_name_and_number(cpu):
    v = np.array([1.0, 20.0, 300.0, 4000.0])

    def named(v):
        return v.x - v.y + v.z - v.w

    def numbered(v):
        return v[0] - v[1] + v[2] - v[3]

    both(cpu, named, 1 - 20 + 300 - 4000, v)
    both(cpu, numbered, 1 - 20 + 300 - 4000, v)


def test_elements_and_rows_of_a_matrix(cpu):
    A = RNG.normal(size=(3, 2))

    def elements(A):
        return A[0, 1] + 10 * A[2, 0] + 100 * A[1][1] + A[2].sum()

    both(cpu, elements, A[0, 1] + 10 * A[2, 0] + 100 * A[1, 1] + A[2].sum(), A)


def test_run_time_indices(cpu):
    ds = cpu
    v, A = RNG.normal(size=5), RNG.normal(size=(3, 2))
    x = ds.Vector.field(5, ds.f64, shape=2)
    y = ds.Matrix.field(3, 2, ds.f64, shape=2)
    x.from_numpy(np.stack([v, 2 * v]))
    y.from_numpy(np.stack([A, 3 * A]))
    out = ds.field(ds.f64, shape=6)

    @ds.kernel
    def run(i: ds.i32, j: ds.i32):
        a, B = x[0], y[0]
        a[i] = a[i] + 1.0
        B[i, j] *= 10.0
        out[0] = a[i] + 100 * a[j + 2]
        out[1] = B[i, j] + B[i + 1, 0]
        out[2] = x[1][i]
        out[3] = y[1][i, j]
        row = B[i]
        out[4] = row[j]
        x[1][i + 1] = 7.0
        y[1][j, i] += 5.0
        table = [10, 20, 30]
        out[5] = table[i]

    run(1, 0)
    a, B = v.copy(), A.copy()
    a[1] += 1
    B[1, 0] *= 10
    expected = [a[1] + 100 * a[2], B[1, 0] + B[2, 0], 2 * v[1], 3 * A[1, 0], B[1, 0], 20]
    np.testing.assert_allclose(out.to_numpy(), expected, 1e-12)
    assert x[1][2] == 7.0
    assert y[1][0, 1] == pytest.approx(3 * A[0, 1] + 5)
    assert (x.to_numpy()[0] == v).all()


def test_components_of_locals_are_assigned(cpu):
    def assign(v):
        v[0] = 10.0
        v.y += 5.0
        v.z, v[3] = v[3], v.z
        w = v
        w.x = 0.0
        return v * 1000 + w

    expected = 1000 * np.array([10, 7, 4, 3.0]) + np.array([0, 7, 4, 3.0])
    np.testing.assert_allclose(returned(cpu, assign, (4,), [1, 2, 3, 4.0]), expected, 1e-12)


def test_arguments_of_funcs_are_passed_by_value(cpu):
    ds = cpu

    @ds.func
    def spoil(v):
        v[0] = 99.0
        return v[0]

    def run(v):
        s = spoil(v)
        return v * 2 + s

    np.testing.assert_allclose(returned(ds, run, (2,), [1.0, 2.0]), [101, 103])


def test_elements_of_matrices_are_assigned_in_loops_and_branches(cpu):
    def fill(A):
        for i in range(3):
            for j in range(3):
                if i > j:
                    A[i, j] = 10.0 * i + j
                elif i == j:
                    A[i, j] = -A[i, j]
        return A

    A = RNG.normal(size=(3, 3))
    expected = A.copy()
    for i in range(3):
        expected[i, i] *= -1
        for j in range(i):
            expected[i, j] = 10 * i + j
    np.testing.assert_allclose(returned(cpu, fill, (3, 3), A), expected, 1e-12)


def test_rows_of_local_matrices_are_assigned(cpu):
    ds = cpu

    def swap(A):
        B = A
        for j in ds.static(range(2)):
            B[0, j], B[1, j] = A[1, j], A[0, j]
        return B

    A = RNG.normal(size=(2, 2))
    np.testing.assert_allclose(returned(ds, swap, (2, 2), A), A[::-1], 1e-12)


def test_atomics_on_components_of_fields(cpu):
    ds = cpu
    x = ds.Vector.field(3, ds.i32, shape=2)
    A = ds.Matrix.field(2, 2, ds.f64, shape=())

    @ds.kernel
    def run(n: ds.i32):
        for i in range(n):
            x[i % 2][i % 3] += i
            x[0].x -= 1
            A[None][0, 1] += 0.5
            A[None][i % 2, 0] -= 1.0
            ds.atomic_max(x[1][2], i)

    run(100)
    expected = np.zeros((2, 3), int)
    for i in range(100):
        expected[i % 2, i % 3] += i
    expected[0, 0] -= 100
    found = x.to_numpy()
    assert (found[:, :2] == expected[:, :2]).all()
    assert found[0, 2] == expected[0, 2]
    assert A[None].to_list() == [[-50, 50], [-50, 0]]


def test_atomics_on_whole_vectors(cpu):
    ds = cpu
    x = ds.Vector.field(3, ds.f64, shape=())

    @ds.kernel
    def run(n: ds.i32):
        for i in range(n):
            x[None] += [1.0, i, 0.5]
            x[None] -= 0.25

    run(1000)
    assert x[None].to_list() == [750, 999 * 500 - 250, 250]


# ---- constructors


def test_constructors_in_kernels(cpu):
    ds = cpu
    out = ds.field(ds.f64, shape=9)

    @ds.kernel
    def run(a: ds.f64):
        v, w = ds.Vector([a, 2.0]), ds.Vector([3, a * 4])
        R, C = ds.Matrix.rows([v, w]), ds.Matrix.cols([v, w])
        M = ds.Matrix([v, w])
        N = ds.Matrix([[a, 1.0], [2.0, 3.0]])
        out[0] = (R - M).norm() + (C - R.transpose()).norm()
        out[1] = N[0, 0] + 10 * N[1, 0] + 100 * R[0, 1]
        out[2] = (ds.Matrix.identity(ds.f64, 2) * a + ds.Matrix.zero(ds.f64, 2, 2)).trace()
        out[3] = ds.Vector.zero(ds.f64, 3).sum() + ds.Vector.one(ds.f64, 3).sum()
        out[4] = ds.Matrix.one(ds.f64, 2, 3).sum()
        out[5] = ds.Vector.unit(3, 1).dot(ds.Vector([a, 20.0, 300.0]))
        out[6] = ds.Matrix.diag(3, a).sum()
        out[7] = ds.Matrix.diag(2, 1.5).determinant()
        out[8] = M.n + 10 * M.m + 100 * v.n + 1000 * len(v) + 10000 * M.shape[1]

    run(5.0)
    assert out.to_numpy().tolist() == [0, 25 + 200, 10, 3, 6, 20, 15, 2.25, 22222 - 0 - 10 + 10]


def test_constructors_in_python(cpu):
    ds = cpu
    assert ds.Vector([1, 2]).to_list() == [1, 2]
    assert ds.Matrix.rows([ds.Vector([1, 2]), [3, 4]]).to_list() == [[1, 2], [3, 4]]
    assert ds.Matrix.cols([[1, 2], [3, 4]]).to_list() == [[1, 3], [2, 4]]
    assert ds.Matrix([ds.Vector([1, 2]), ds.Vector([3, 4])]).to_list() == [[1, 2], [3, 4]]
    assert ds.Matrix.identity(ds.f32, 2).to_list() == [[1, 0], [0, 1]]
    assert ds.Matrix.zero(ds.i32, 2, 1).to_list() == [[0], [0]]
    assert ds.Matrix.one(ds.f64, 2).to_list() == [1, 1]
    assert ds.Vector.unit(3, 2).to_list() == [0, 0, 1]
    assert repr(ds.Vector.unit(3, 2, float).to_list()[2]) == "1.0"
    assert ds.Matrix.diag(2, 3.0).to_list() == [[3, 0], [0, 3]]
    assert ds.Matrix([[1, 2], [3, 4]], ds.f64).to_numpy().dtype == np.float64
    assert ds.Vector([0.1], ds.f32)[0] == float(np.float32(0.1))


def test_python_vectors_are_sequences_and_arrays(cpu):
    ds = cpu
    v, A = ds.Vector([1.0, 2.0, 3.0]), ds.Matrix([[1, 2], [3, 4], [5, 6]])
    assert list(v) == [1.0, 2.0, 3.0]
    assert (len(v), len(A), A.n, A.m, A.shape, v.m) == (3, 3, 3, 2, (3, 2), 1)
    assert A[1].to_list() == [3, 4]
    assert (A[2, 1], v.z) == (6, 3.0)
    v[1] = 9.0
    A[0, 0] = -1
    assert (v.y, A[0].to_list()) == (9.0, [-1, 2])
    assert (np.asarray(A) == [[-1, 2], [3, 4], [5, 6]]).all()
    assert (np.array([1.0, 1.0, 1.0]) + v).to_list() == [2.0, 10.0, 4.0]
    assert (v == ds.Vector([1.0, 9.0, 4.0])).to_list() == [True, True, False]
    assert ([1, 1, 1] - v).to_list() == [0.0, -8.0, -2.0]
    with pytest.raises(AttributeError):
        v.w
    with pytest.raises(ds.KernelTypeError):
        v + ds.Vector([1.0, 2.0])


def test_a_list_becomes_a_vector_where_a_value_is_needed(cpu):
    ds = cpu
    x = ds.Vector.field(2, ds.f64, shape=4)

    @ds.kernel
    def run(a: ds.f64):
        x[0] = [a, 2]
        x[1] = x[0] + [10, 20]
        x[2] = [a, a] * x[0]
        x[3] = a

    run(3.0)
    assert x.to_numpy().tolist() == [[3, 2], [13, 22], [9, 6], [3, 3]]


def test_lists_of_vectors_with_static_indices(cpu):
    ds = cpu
    x = ds.Vector.field(2, ds.f64, shape=3)

    @ds.func
    def weights(fx):
        return [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]

    @ds.kernel
    def run(a: ds.f64):
        w = weights(ds.Vector([a, 1 - a]))
        for k in ds.static(range(3)):
            x[k] = w[k]

    run(0.3)
    fx = np.array([0.3, 0.7])
    expected = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
    np.testing.assert_allclose(x.to_numpy(), expected, 1e-12)


def test_lists_of_vectors_with_run_time_indices(cpu):
    ds = cpu
    x = ds.Vector.field(2, ds.f64, shape=3)

    @ds.kernel
    def run(a: ds.f64):
        w = [ds.Vector([a, 0.0]), ds.Vector([0.0, a]), ds.Vector([a, a])]
        for i in range(3):
            x[i] = w[i]

    run(2.0)
    assert x.to_numpy().tolist() == [[2, 0], [0, 2], [2, 2]]


def test_static_loops_over_vectors(cpu):
    ds = cpu

    @ds.kernel
    def run(a: ds.f64) -> ds.f64:
        v = ds.Vector([a, 2 * a, 3 * a])
        s = ds.f64(0.0)
        for e in ds.static(v):
            s = 10 * s + e
        p, q, r = v
        return s + p * q * r

    assert run(1.0) == 123 + 6


def test_vectors_of_several_types(cpu):
    ds = cpu

    @ds.kernel
    def run(a: ds.f64, n: ds.i32) -> ds.types.vector(3, ds.f64):
        mixed = ds.Vector([a, n, 1])
        whole = ds.Vector([n, 2, 3]) // 2
        return mixed + whole + ds.Vector([n, n, n], ds.f64) / 4 + mixed.cast(ds.i32)

    expected = np.array([0.5, 3, 1]) + [1, 1, 1] + np.full(3, 0.75) + [0, 3, 1]
    assert run(0.5, 3).to_list() == expected.tolist()


def test_constant_vectors_from_python(cpu):
    ds = cpu
    gravity = ds.Vector([0.0, -9.8])
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    corner = [1.0, 2.0]

    @ds.kernel
    def run(dt: ds.f64) -> ds.types.vector(2, ds.f64):
        return turn @ (gravity * dt) + corner

    np.testing.assert_allclose(run(0.5).to_numpy(), turn @ [0, -4.9] + [1, 2], 1e-14)


def test_comparisons_of_vectors(cpu):
    ds = cpu

    @ds.kernel
    def count(a: ds.f64) -> ds.i32:
        v = ds.Vector([a, 2.0, 3.0])
        inside = (v > 1.0) & (v < 3.0)
        return ds.cast(inside, ds.i32).sum()

    assert count(2.5) == 2
    assert count(0.5) == 1


def test_vectors_are_carried_through_loops_and_branches(cpu):
    def spiral(v):
        for k in range(7):
            if v[0] > 0:
                v = v * 0.5 + [0.0, 1.0]
            else:
                v[0] = 3.0 - v.y
        return v

    v = np.array([1.0, 2.0])
    expected = v.copy()
    for k in range(7):
        if expected[0] > 0:
            expected = expected * 0.5 + [0, 1]
        else:
            expected[0] = 3 - expected[1]
    np.testing.assert_allclose(returned(cpu, spiral, (2,), v), expected, 1e-12)


def test_elements_of_fields_are_read_as_copies_in_python(cpu):
    ds = cpu
    x = ds.Vector.field(2, ds.f32, shape=3)
    v = x[1]
    x[1] = [5.0, 6.0]
    assert v.to_list() == [0.0, 0.0]
    x[0] = x[1] * 2 + 1
    assert x[0].to_list() == [11.0, 13.0]
    x[2] = 4.0
    assert x[2].to_list() == [4.0, 4.0]


def test_f32_vectors_compute_in_f32(cpu):
    ds = cpu
    a = np.array([0.1, 0.7, 0.3], np.float32)

    @ds.kernel
    def run(v: ds.types.vector(3, ds.f32)) -> ds.f32:
        return v.norm_sqr()

    products = a * a
    assert run(a) == (products[0] + products[1]) + products[2]


def test_numbers_in_vectors_take_the_precision_of_what_they_meet(cpu):
    ds = cpu
    x = ds.Vector.field(2, ds.f64, shape=9)
    outside = ds.Vector([0.1, 0.2])
    as_list, as_array = [0.1, 0.2], np.array([0.1, 0.2])

    @ds.func
    def scaled(v, factor):
        return v * factor

    @ds.kernel
    def run(one: ds.f64):
        ones = ds.Vector([one, one])
        x[0] = ones * [0.1, 0.2]
        x[1] = one * ds.Vector([0.1, 0.2])
        x[2] = outside * one
        x[3] = ones * as_list
        x[4] = as_array * ones
        x[5] = scaled(ds.Vector([0.1, 0.2]), one)
        x[6] = ds.max(ones * 0, [0.1, 0.2])
        x[7] = ds.Matrix([[0.1, 0.0], [0.0, 0.2]]) @ ones
        x[8] = ds.Vector([0.1, 0.2])

    run(1.0)
    assert x.to_numpy().tolist() == [[0.1, 0.2]] * 9


def test_vectors_of_numbers_are_local_values(cpu):
    ds = cpu
    out = ds.field(ds.f64, shape=6)

    @ds.func
    def change(v):
        for i in range(3):
            v[i % 2] += 1.5
        return v.sum()

    @ds.kernel
    def run(a: ds.i32):
        v = ds.Vector([0.5, 0.25])
        v[0] += 1.0
        ds.loop_config(serialize=True)
        for i in range(a):
            v = v + [1.0, 2.0]
        out[0] = v[0] + 100 * v[1]
        out[1] = change(ds.Vector([1.0, 2.0]))
        p, q = ds.Vector([3.0, 4.0])
        out[2] = p + 10 * q
        table = ds.Vector([5, 6, 7])
        out[3] = table[a] + ds.Vector([8, 9, 10])[a]
        out[4] = sum(ds.Vector([1, 2])) + max(ds.Vector([1, 2])) + ds.Vector([3.0, 4.0]).norm()
        out[5] = ds.Matrix([[1, 2], [3, 4]]).determinant()

    run(2)
    assert out.to_numpy().tolist() == [1.5 + 2 + 425, 3 + 4.5, 43, 17, 10, -2]


def test_branches_choose_among_constant_vectors(cpu):
    ds = cpu
    left, right = ds.Vector([1.0, 2.0]), ds.Vector([3.0, 4.0])
    up, down = np.array([1.0, 2.0]), np.array([3.0, 4.0])

    @ds.func
    def pick(n):
        if n > 0:
            return left
        return right

    @ds.kernel
    def run(n: ds.i32) -> ds.types.matrix(3, 2, ds.f32):
        return [left if n > 0 else right, up if n > 0 else down, pick(n)]

    assert run(1).to_list() == [[1, 2]] * 3
    assert run(-1).to_list() == [[3, 4]] * 3


def test_vectors_have_no_truth_in_python(cpu):
    with pytest.raises(cpu.KernelTypeError, match="neither true nor false"):
        bool(cpu.Vector([1, 2]) == cpu.Vector([3, 4]))


def test_functions_of_vectors_in_python(cpu):
    """Element by element, as in kernels."""
    v = cpu.Vector([0.0, 4.0])
    assert cpu.sqrt(v).to_list() == [0.0, 2.0]
    assert cpu.max(v, 1.0).to_list() == cpu.max(1.0, v).to_list() == [1.0, 4.0]
    assert cpu.atan2(v, v).to_list() == [0.0, math.atan2(4.0, 4.0)]
    assert cpu.abs(cpu.Matrix([[-1.0, 2.0], [3.0, -4.0]])).to_list() == [[1.0, 2.0], [3.0, 4.0]]


def test_elements_by_the_names_of_colours_and_textures(cpu):
    ds = cpu
    v = ds.Vector([1.0, 2.0, 3.0, 4.0])
    assert [v.r, v.g, v.b, v.a] == [v.s, v.t, v.p, v.q] == [1, 2, 3, 4]
    assert v.bgr.to_list() == [3, 2, 1]
    with pytest.raises(AttributeError):
        v.xg  # of two families

    @ds.kernel
    def run() -> ds.types.vector(4, ds.f32):
        w = ds.Vector([1.0, 2.0, 3.0, 4.0])
        w.rgb = w.bgr + w.stp
        w.a += w.q
        return w

    assert run().to_list() == [4, 4, 4, 8]


def test_zero_and_one_of_the_type_of_a_value(cpu):
    ds = cpu
    assert ds.zero(3.5) == 0.0
    assert ds.one(ds.Vector([2.0, 3.0])).to_list() == [1, 1]

    @ds.kernel
    def run(a: ds.u8, m: ds.types.matrix(2, 2, ds.f64)) -> ds.types.matrix(2, 2, ds.f64):
        return (ds.zero(a) - ds.one(a)) * ds.one(m) + ds.zero(m)  # 0 - 1 of u8 is 255

    assert run(7, [[1, 2], [3, 4]]).to_list() == [[255, 255], [255, 255]]


def test_other_names_of_types(cpu):
    for name in ("int", "uint", "float"):
        for bits in (8, 16, 32, 64):
            if name != "float" or bits >= 32:
                t = getattr(cpu, f"{name}{bits}")
                assert t is getattr(cpu, f"{name[0]}{bits}")
                assert np.dtype(f"{name}{bits}").itemsize == t.bytes


def test_static_values_are_unpacked(cpu):
    ds = cpu
    n, m = 3, 4

    @ds.kernel
    def run() -> ds.i32:
        a, b = ds.static(n, 2 * m)
        return 100 * a + b

    assert run() == 308


def test_filling_fields_in_kernels(cpu):
    """With a value of the kernel's, also of vectors; in a loop it is one itself, and it has a gradient."""
    ds = cpu
    ds.init(default_fp=ds.f64)
    x = ds.field(ds.f64, shape=(2, 3), needs_grad=True)
    a, y, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
    v = ds.Vector.field(2, ds.f64, shape=4)
    a[None] = 1.5

    @ds.kernel
    def run():
        x.fill(a[None] ** 2)
        y.fill(2 * a[None])
        v.fill(3)
        for i in range(1):
            v.fill(ds.Vector([1.0, 2.0]))

    @ds.kernel
    def add_up():
        for i, j in x:
            loss[None] += (i + j) * x[i, j]
        loss[None] += y[None]

    with ds.Tape(loss):
        run()
        add_up()
    assert (x.to_numpy() == 2.25).all()
    assert y[None] == 3.0
    assert v.to_numpy().tolist() == [[1, 2]] * 4
    assert a.grad[None] == 9 * 2 * 1.5 + 2


def test_unit_vectors_are_steps_between_elements_and_lists_are_vectors_for_those_that_are_one(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=(3, 4))
    x.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    out = ds.Vector.field(3, ds.f32, shape=2)

    @ds.kernel
    def run(a: ds.f32):
        for I in ds.grouped(ds.ndrange((1, 2), (2, 3))):
            v = ds.Vector([a, a, a])
            out[0] = v
            v = [x[I + ds.Vector.unit(2, 1)], x[I - ds.Vector.unit(2, 0)], 7]
            out[1] = v

    run(2.5)
    assert out.to_numpy().tolist() == [[2.5, 2.5, 2.5], [7, 2, 7]]
