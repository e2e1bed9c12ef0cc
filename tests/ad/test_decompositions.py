"""Gradients and tangents through ds.svd, ds.polar_decompose, ds.sym_eig, ds.eig, and functions of matrices.

Expected are central differences in f64 and closed forms, above all where singular values or eigenvalues are
equal or almost equal, which is where a formula with 1 / (a^2 - b^2) fails.
"""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _f64(quick_code):
    global RNG
    RNG = np.random.default_rng(11)  # the same matrices for a test, whichever ran before it
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    yield
    ds.reset()


def rotation(n):
    q = np.linalg.qr(RNG.normal(size=(n, n)))[0]
    q[:, -1] *= np.sign(np.linalg.det(q))
    return q


def turned(n, *values):
    return rotation(n) @ np.diag(values[:n]) @ rotation(n)


def regular(n):
    """Matrices at which R, S and all smooth functions of singular values have a gradient."""
    yield np.eye(n)
    yield np.diag([1.0, 1.0, 2.0][-n:])
    yield 3.7 * rotation(n)
    for values in [
        (2, 1, 1),
        (2, 2, 1),
        (1, 1, 1),
        (3, 2, 0.5),
        (1e-6, 1e-6, 2e-6),
        (1e6, 1e6, 3e6),
    ]:
        yield turned(n, *values)
    for gap in [1e-3, 1e-6, 1e-9, 1e-12, 1e-15]:
        yield turned(n, 1 + gap, 1, 1 - gap / 3)
        yield turned(n, 2, 1 + gap, 1)
    for a in RNG.normal(size=(20, n, n)) + 2.5 * np.eye(n):
        if np.linalg.svd(a, compute_uv=False)[-1] > 0.5 and np.linalg.det(a) > 0:
            yield a


def reflected(n):
    """Regular matrices with det(A) < 0, and some of rank n - 1 or close to it."""
    yield turned(n, 2, -1, 1) if n == 2 else turned(n, 2, 1, -0.4)
    yield turned(n, 1, -1, 1) if n == 2 else turned(n, 1, 1, -0.5)
    yield from (a for a in RNG.normal(size=(30, n, n)) if np.linalg.det(a) < -0.3)


def differences(run, A, each, a, h=1e-5):
    """Central differences of each[i] with respect to A[i], steps in units of the size of A[i]."""
    gradient = np.zeros_like(a)
    steps = h * np.abs(a).max((1, 2))
    for k in np.ndindex(*a.shape[1:]):
        ends = []
        for sign in (1, -1):
            moved = a.copy()
            moved[(slice(None), *k)] += sign * steps
            A.from_numpy(moved)
            each.fill(0)
            run()
            ends.append(each.to_numpy())
        gradient[(slice(None), *k)] = (ends[0] - ends[1]) / (2 * steps)
    A.from_numpy(a)
    return gradient


def compare(function, matrices, rel=2e-8):
    """The gradient of a func (matrix, weights -> number) equals central differences at each matrix."""
    a = np.array(list(matrices))
    n = a.shape[-1]
    A, each, weights = field(len(a), n=(n, n)), field(len(a)), field(n=(n, n), grad=False)
    weights.from_numpy(np.random.default_rng(5).normal(size=(n, n)))
    A.from_numpy(a)

    @ds.kernel
    def run():
        for i in A:
            each[i] += function(A[i], weights[None])

    tape = ds.Tape()
    with tape:
        run()
    tape.backward(grads={each: 1.0})
    found, expected = A.grad.to_numpy(), differences(run, A, each, a)
    size = np.maximum(np.abs(expected).max((1, 2)), 1 / np.abs(a).max((1, 2)))
    wrong = np.abs(found - expected).max((1, 2)) / size
    assert wrong.max() < rel, (a[wrong.argmax()], found[wrong.argmax()], expected[wrong.argmax()])
    compare_tangents(run, A, each, expected, size * (rel + lost_by_turning(function, a)))
    return found


def compare_tangents(run, A, each, expected, tolerance):
    """The tangent of each[i] along a random direction of A[i] is that of the expected gradient."""
    direction = np.random.default_rng(6).normal(size=expected.shape)
    with ds.ad.FwdMode(loss=each, param=A, seed=direction):
        run()
    wrong = np.abs(each.dual.to_numpy() - (direction * expected).sum((1, 2))) / tolerance
    assert wrong.max() < 3, (A.to_numpy()[wrong.argmax()], wrong.max())


def lost_by_turning(function, a):
    """What forward mode may lose, half of the digits: products of close vectors cancel their fast turn."""
    if function in (rotation_of_polar, both_of_polar, corotated_energy, logarithm):
        return 0.0
    values = np.linalg.svd(a, compute_uv=False)
    gaps = -np.diff(values, axis=1)
    equal = 4e-16 if function is eigenvalue_sums else 1.5e-8  # eigenvectors turn as in reverse mode
    closest = np.where(gaps < equal * values[:, :1], np.inf, gaps).min(1)
    return 50 * np.finfo(float).eps * values[:, 0] / closest


SIZES = pytest.mark.parametrize("n", [2, 3])


# ---- functions that do not depend on the choice of singular vectors


@ds.func
def log_and_two(x):
    return ds.log(x) + 2.0


@ds.func
def rotation_of_svd(A, C):
    U, _, V = ds.svd(A)
    return (C * (U @ V.transpose())).sum()


@ds.func
def stretch_of_svd(A, C):
    _, sigma, V = ds.svd(A)
    return (C * (V @ sigma @ V.transpose())).sum() / A.norm()


@ds.func
def rotation_of_polar(A, C):
    R, _ = ds.polar_decompose(A)
    return (C * R).sum()


@ds.func
def both_of_polar(A, C):
    R, S = ds.polar_decompose(A)
    return (C * (R @ C + S / A.norm())).sum()


@ds.func
def corotated_energy(A, C):
    """Energy density of corotated elasticity, with mu = lambda = 1."""
    R, S = ds.polar_decompose(A)
    J = A.determinant()
    return ((A - R).norm_sqr() + 0.5 * (J - 1) ** 2) / (1 + A.norm_sqr() ** 3) + 0 * S.trace()


@ds.func
def nuclear_norm(A, C):
    _, sigma, _ = ds.svd(A)
    return sigma.trace() / A.norm()


@ds.func
def hencky_energy(A, C):
    _, sigma, _ = ds.svd(A)
    total = 0.0
    for d in ds.static(range(A.n)):
        total += ds.log(sigma[d, d]) ** 2 + 0.3 * d * ds.log(sigma.trace())
    return total


@ds.func
def hencky_stress(A, C):
    U, sigma, V = ds.svd(A)
    return (C * (U @ ds.diagonal_map(log_and_two, sigma) @ V.transpose())).sum()


@ds.func
def stress_by_products(A, C):
    U, sigma, V = ds.svd(A / A.norm())
    return (C * (U @ (sigma @ sigma - 2.0 * sigma) @ V.transpose())).sum()


@ds.func
def logarithm(A, C):
    return (C * ds.sym_map(ds.log, A.transpose() @ A)).sum()


@ds.func
def eigenvalue_sums(A, C):
    values, V = ds.sym_eig(A.transpose() @ A)
    logs = ds.log(values)
    return (logs * logs).sum() + (C * (V @ V.transpose())).sum()


INVARIANT = [
    rotation_of_svd,
    stretch_of_svd,
    rotation_of_polar,
    both_of_polar,
    corotated_energy,
    nuclear_norm,
    hencky_energy,
    hencky_stress,
    stress_by_products,
    logarithm,
    eigenvalue_sums,
]


def name(function):
    return function.source.name


@SIZES
@pytest.mark.parametrize("function", INVARIANT, ids=name)
def test_at_equal_singular_values(function, n):
    compare(function, regular(n))


@SIZES
@pytest.mark.parametrize(
    "function", [rotation_of_svd, stretch_of_svd, both_of_polar, stress_by_products], ids=name
)
def test_reflections(function, n):
    compare(function, reflected(n), rel=1e-7)


@pytest.mark.parametrize(
    "function", [rotation_of_svd, stretch_of_svd, both_of_polar, stress_by_products], ids=name
)
def test_rank_2(function):
    singular = [
        turned(3, 2, 1, 0),
        turned(3, 1, 1, 0),
        np.diag([1.0, 2.0, 0.0]),
        turned(3, 1, 0.5, 1e-9),
    ]
    compare(function, singular, rel=1e-7)


@SIZES
def test_the_product_has_the_derivative_of_the_matrix(n):
    """U sigma V^T is A: its gradient is exact even where U and V have none, at 0 and at rank 1."""

    @ds.func
    def product(A, C):
        U, sigma, V = ds.svd(A)
        return (C * (U @ sigma @ V.transpose())).sum()

    matrices = [*regular(n), *reflected(n), np.zeros((n, n)), turned(n, 1, 0, 0), -np.eye(n)]
    A, C, loss = field(len(matrices), n=(n, n)), field(n=(n, n), grad=False), field()
    c = numbers(n, n)
    C.from_numpy(c)
    A.from_numpy(np.array(matrices))

    @ds.kernel
    def run():
        for i in A:
            loss[None] += product(A[i], C[None])

    with ds.Tape(loss):
        run()
    np.testing.assert_allclose(A.grad.to_numpy(), np.broadcast_to(c, A.shape + (n, n)), atol=2e-14)


def test_the_rotation_at_the_identity():
    """At A = I the derivative of R is the antisymmetric part: exactly (C - C^T) / 2."""
    c = numbers(3, 3)
    C, A, loss = field(n=(3, 3), grad=False), field(n=(3, 3)), field()
    C.from_numpy(c)
    A.from_numpy(np.eye(3))

    @ds.kernel
    def run():
        loss[None] = rotation_of_svd(A[None], C[None]) + rotation_of_polar(A[None], C[None])

    with ds.Tape(loss):
        run()
    np.testing.assert_allclose(A.grad.to_numpy(), c - c.T, atol=1e-15)


@SIZES
@pytest.mark.parametrize("t", ["f32", "f64"])
def test_no_precision_is_lost_next_to_equal_values(n, t):
    """R by the svd has the gradient of R in its own closed form, however close singular values are."""
    t = getattr(ds, t)
    count = 2000
    a = np.array([turned(n, *(1 + 10 ** RNG.uniform(-17, -1, 3))) for _ in range(count)])
    A, B = (field(count, n=(n, n), dtype=t) for _ in range(2))
    C, loss = field(count, n=(n, n), dtype=t, grad=False), field(dtype=t)
    for f, numbers_in in ((A, a), (B, a), (C, RNG.normal(size=a.shape))):
        f.from_numpy(numbers_in.astype(t.numpy))

    @ds.kernel
    def run():
        for i in A:
            loss[None] += rotation_of_svd(A[i], C[i]) + rotation_of_polar(B[i], C[i])

    with ds.Tape(loss):
        run()
    wrong = np.abs(A.grad.to_numpy() - B.grad.to_numpy()).max()
    assert wrong < 30 * np.finfo(t.numpy).eps


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_half_of_the_digits_at_least_in_forward_mode(t):
    """R by the svd has the tangent of R in its own closed form, to the root of eps, at any distance."""
    t = getattr(ds, t)
    a = np.array([turned(3, *(1 + 10 ** RNG.uniform(-17, -1, 3))) for _ in range(2000)])
    A, B, C = (ds.Matrix.field(3, 3, t, shape=len(a)) for _ in range(3))
    A.from_numpy(a.astype(t.numpy))

    @ds.kernel
    def run():
        for i in A:
            U, _, V = ds.svd(A[i])
            B[i] = U @ V.transpose()
            C[i] = ds.polar_decompose(A[i])[0]

    with ds.ad.FwdMode(param=A, seed=RNG.normal(size=a.shape)) as forward:
        run()
    wrong = np.abs(forward.tangents(B) - forward.tangents(C)).max()
    assert wrong < 30 * np.finfo(t.numpy).eps ** 0.5


def test_elements_of_the_diagonal_alone_are_right_apart_from_equal_values():
    """U f(sigma) V^T written by single elements: the error grows as values meet, eps / gap."""

    @ds.func
    def by_elements(A, C):
        U, sigma, V = ds.svd(A)
        F = ds.Matrix([[ds.log(sigma[0, 0]), 0.0], [0.0, ds.log(sigma[1, 1])]])
        return (C * (U @ F @ V.transpose())).sum()

    compare(by_elements, [turned(2, 1 + gap, 1) for gap in (1, 1e-2, 1e-4, 1e-6)])


@ds.func
def plain_energy(A):
    R, _ = ds.polar_decompose(A)
    return (A - R).norm_sqr()


@SIZES
def test_second_derivatives_of_the_polar_decomposition(n):
    """The stress is a gradient in the kernel, and differentiated once more: also at rest."""

    @ds.func
    def stress(A, C):
        return (C * ds.grad(plain_energy)(A)).sum()

    compare(
        stress, [a for a in (*regular(n), *reflected(n)) if 0.1 < np.linalg.norm(a) < 100], rel=1e-6
    )


@SIZES
def test_hessian_of_a_corotated_energy(n):
    """Forward over reverse mode: <v, H v> and H v as differences of the gradient have them, at rest too."""
    a = np.array([a for a in regular(n) if 0.1 < np.linalg.norm(a) < 100])
    A, C, loss = field(len(a), n=(n, n)), field(n=(n, n), grad=False), field()
    v = RNG.normal(size=a.shape)

    @ds.kernel
    def run():
        for i in A:
            loss[None] += both_of_polar(A[i], C[None]) ** 2 + plain_energy(A[i])

    def gradient(step):
        A.from_numpy(a + step * v)
        loss.fill(0)
        with ds.Tape(loss):
            run()
        return A.grad.to_numpy()

    C.from_numpy(numbers(n, n))
    expected = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    A.from_numpy(a)
    found = ds.ad.hvp(run, A, v, loss=loss)
    np.testing.assert_allclose(found, expected, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["svd", "sym_eig"])
def test_second_derivatives_by_singular_vectors_are_refused(name):
    A, loss = field(2, n=(3, 3)), field()

    @ds.func
    def by_svd(F):
        return ds.svd(F)[1].trace()

    @ds.func
    def by_eigenvalues(F):
        return ds.sym_eig(F)[0].norm()

    energy = by_svd if name == "svd" else by_eigenvalues

    @ds.kernel
    def run():
        for i in A:
            loss[None] += ds.grad(energy)(A[i])[0, 1]

    run()
    with pytest.raises(ds.AutodiffError, match="singular values are equal") as error:
        run.grad()
    assert f"ds.{name}(F)" in str(error.value)

    @ds.kernel
    def plain():
        for i in A:
            loss[None] += energy(A[i])

    with pytest.raises(ds.AutodiffError, match="singular values are equal") as error:
        ds.ad.hvp(plain, A, np.ones((2, 3, 3)), loss=loss)
    assert f"ds.{name}(F)" in str(error.value)


# ---- functions that do: right where values are distinct


@ds.func
def any_of_svd(A, C):
    U, sigma, V = ds.svd(A)
    return (C * (U + 0.3 * V + sigma * U / A.norm())).sum() + sigma[0, 0] / A.norm() * V[1, 0]


@ds.func
def any_of_sym_eig(A, C):
    values, V = ds.sym_eig(A)
    return (C * V).sum() + values[0] * V[0, 1] * values[1] / A.norm_sqr() + V[1, 1] * C[0, 0] ** 2


def distinct(n):
    for values in [
        (3, 2, 1),
        (1, 0.1, 0.01),
        (2, 1, -0.5),
        (3e-8, 2e-8, 1e-8),
        (3e200, 2e200, 1e200),
    ]:
        if values[0] < 1e100:
            yield turned(n, *values)
    yield np.diag([3.0, 2.0, 1.0][:n])


@SIZES
def test_singular_vectors(n):
    compare(any_of_svd, distinct(n), rel=1e-6)


@SIZES
def test_eigenvectors(n):
    compare(any_of_sym_eig, distinct(n), rel=1e-6)


@ds.func
def real_and_complex(A, C):
    values, vectors = ds.eig(A)
    total = 0.0
    for i, j in ds.static(ds.ndrange(2, 2)):
        total += C[i, j] * values[i, j]
    for k in ds.static(range(4)):
        total += C[k // 2, k % 2] * (vectors[k, 0] + 2.0 * vectors[k, 1]) ** 2
    return total


def test_eig():
    apart = [
        [[0, 1], [-1, 0]],
        [[1, 2], [-3, 0.5]],
        [[2, 1], [0.5, 1]],
        [[1, 0], [0, 3]],
        [[3, 1], [0, 1]],
    ]
    compare(real_and_complex, np.array(apart, float), rel=1e-7)


def test_eig_where_eigenvalues_meet():
    """The mean of the two is differentiable; the derivative of the root between them is taken as 0."""
    A, loss = field(4, n=(2, 2)), field()
    a = np.array([[[2, 0], [0, 2]], [[2, 1], [0, 2]], [[2, 0], [1, 2]], [[0, 0], [0, 0]]], float)
    A.from_numpy(a)

    @ds.kernel
    def run():
        for i in A:
            values, vectors = ds.eig(A[i])
            loss[None] += values[0, 0] + 0 * vectors[0, 0]

    with ds.Tape(loss):
        run()
    np.testing.assert_allclose(A.grad.to_numpy(), np.broadcast_to(np.eye(2) / 2, (4, 2, 2)))


# ---- never NaN


@SIZES
@pytest.mark.parametrize("t", ["f32", "f64"])
def test_never_nan(n, t):
    """Any adjoint of any result gives a finite gradient, at every kind of matrix."""
    t = getattr(ds, t)
    limits = np.finfo(t.numpy)
    special = [np.zeros((n, n)), np.eye(n), -np.eye(n), np.ones((n, n)), np.eye(n)[::-1]]
    special += [turned(n, 1, 0, 0), turned(n, 1, 1, 0), turned(n, 1, -1, 1), turned(n, 1, 1, -1)]
    special += [np.outer(np.eye(n)[0], np.arange(1.0, n + 1)), np.diag([1.0, -1.0, 0.0][:n])]
    special += list(RNG.normal(size=(500, n, n)))
    special += list(RNG.integers(-1, 2, size=(500, n, n)).astype(float))
    sizes = [
        1.0,
        1e-12,
        1e12,
        float(limits.tiny) * 4,
        float(limits.max) / 64,
        float(limits.tiny) / 64,
    ]
    a = np.concatenate([np.array(special) * size for size in sizes])
    A, loss = field(len(a), n=(n, n), dtype=t), field(dtype=t)
    C = field(n=(n, n), dtype=t, grad=False)
    A.from_numpy(a.astype(t.numpy))
    C.from_numpy(RNG.normal(size=(n, n)).astype(t.numpy))

    @ds.kernel
    def of_svd():
        for i in A:
            U, sigma, V = ds.svd(A[i])
            loss[None] += (C[None] * (U + V)).sum() + ds.max(sigma[0, 0], 0.0) * 1e-3

    @ds.kernel
    def of_polar():
        for i in A:
            R, S = ds.polar_decompose(A[i])
            loss[None] += (C[None] * R).sum() + S[0, 1] * 1e-3

    @ds.kernel
    def of_sym_eig():
        for i in A:
            values, V = ds.sym_eig(A[i])
            loss[None] += (C[None] * V).sum() + values[0] * 1e-3

    @ds.kernel
    def of_eig():
        for i in A:
            values, vectors = ds.eig(A[i])
            loss[None] += vectors[0, 0] + vectors[3, 1] + values[0, 1] * 1e-3

    for kernel in (of_svd, of_polar, of_sym_eig, *([of_eig] if n == 2 else [])):
        kernel()
        A.grad.fill(0)
        loss.grad.fill(1)
        kernel.grad()
        finite = np.isfinite(A.grad.to_numpy()).all((1, 2))
        assert finite.all(), (kernel.__name__, a[~finite][:3], (~finite).sum())
        seed = RNG.normal(size=a.shape) * 1e-3
        if kernel is of_eig:
            seed[-len(special) :] = (
                0  # the scale of a matrix of subnormal numbers has no reciprocal
            )
        with ds.ad.FwdMode(loss=loss, param=A, seed=seed):
            kernel()
        assert np.isfinite(loss.dual[None]), kernel.__name__


# ---- where a decomposition may stand


def test_inside_of_loops_and_branches():
    A, loss = field(4, n=(3, 3)), field()
    A.from_numpy(np.array(list(regular(3))[:4]))

    @ds.kernel
    def run():
        for i in A:
            F = A[i]
            for k in range(3):
                R, S = ds.polar_decompose(F)
                if k < 2:
                    F = 0.5 * (F + R) + 0.1 * k * S
                else:
                    U, sigma, V = ds.svd(F)
                    F = U @ ds.diagonal_map(ds.sqrt, sigma) @ V.transpose()
            loss[None] += F.norm_sqr() + F[0, 1]

    check(run, loss, A, rel=1e-7)
    seeds = RNG.normal(size=(3, *A.shape, 3, 3))
    with ds.ad.FwdMode(loss=loss, param=A, seed=seeds) as forward:
        run()
    expected = (seeds * A.grad.to_numpy()).sum((1, 2, 3))
    np.testing.assert_allclose(forward.tangents(loss), expected, rtol=1e-12)


def test_the_strict_rule_allows_it():
    """A decomposition is no loop: the kernel simplicity rule has nothing against it."""
    A, loss = field(2, n=(2, 2)), field()
    A.from_numpy(numbers(2, 2, 2) + 2 * np.eye(2))

    @ds.kernel(simplicity="strict")
    def run():
        for i in A:
            for _ in range(2):
                loss[None] += ds.svd(A[i])[1].trace()

    check(run, loss, A)


def test_time_steps_that_overwrite_their_state():
    F, loss = field(3, n=(2, 2)), field()
    start = np.array(list(regular(2))[:3])

    @ds.kernel
    def step():
        for i in F:
            U, sigma, V = ds.svd(F[i])
            F[i] = 0.9 * F[i] + 0.1 * U @ (sigma @ sigma) @ V.transpose()

    @ds.kernel
    def measure():
        for i in F:
            loss[None] += F[i][0, 1] + F[i].norm_sqr()

    def program(a, tape=None):
        F.from_numpy(a)
        loss.fill(0)
        with tape or ds.ad.no_grad():
            for _ in range(4):
                step()
            measure()
        return loss[None]

    program(start, ds.Tape(loss, in_place="save"))
    found, expected, h = F.grad.to_numpy(), np.zeros_like(start), 1e-6
    for k in np.ndindex(*start.shape):
        moved = np.zeros_like(start)
        moved[k] = h
        expected[k] = (program(start + moved) - program(start - moved)) / (2 * h)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


def test_classes_arrays_and_single_precision():
    @ds.data_oriented
    class Material:
        def __init__(self):
            self.mu = 2.0

        @ds.func
        def stress(self, x):
            return self.mu * (x - 1.0 / x)

        @ds.kernel
        def energy(self, F: ds.types.ndarray(), out: ds.types.ndarray()):
            for i in F:
                U, sigma, V = ds.svd(F[i])
                P = U @ ds.diagonal_map(self.stress, sigma) @ V.transpose()
                out[0] += P[0, 1] + 2.0 * P[1, 2] + P[0, 0]

    material, a = Material(), np.array([np.eye(3), turned(3, 2, 1, 1), turned(3, 1.5, 1.2, 0.8)])
    results = []
    for t in (ds.f64, ds.f32):
        F = ds.Matrix.ndarray(3, 3, t, shape=3, needs_grad=True)
        out = ds.ndarray(t, shape=1, needs_grad=True)
        F.from_numpy(a.astype(t.numpy))
        material.energy(F, out)
        out.grad.fill(1)
        material.energy.grad(F, out)
        results.append(F.grad.to_numpy())
    np.testing.assert_allclose(results[0], results[1], atol=2e-4)
    A, each = field(3, n=(3, 3)), field(1)
    A.from_numpy(a)

    @ds.kernel
    def one(k: ds.i32):
        U, sigma, V = ds.svd(A[k])
        P = U @ ds.diagonal_map(material.stress, sigma) @ V.transpose()
        each[0] = P[0, 1] + 2.0 * P[1, 2] + P[0, 0]

    for k in range(3):
        A.grad.fill(0)
        each.grad.fill(1)
        one(k)
        one.grad(k)
        np.testing.assert_allclose(A.grad.to_numpy()[k], results[0][k], atol=1e-12)


def test_the_adjoint_does_not_go_through_the_rotations():
    """Rotations are made once in the adjoint's own forward code, and nothing is saved of them."""
    A, loss = field(2, n=(3, 3)), field()

    @ds.kernel
    def run():
        for i in A:
            loss[None] += ds.polar_decompose(A[i])[0][0, 1]

    def roots(kernel):
        return kernel.ir(after="dce").count(" sqrt ")

    assert "scratch" not in run.grad.ir(after="dce")
    assert roots(run.grad) == roots(run)
