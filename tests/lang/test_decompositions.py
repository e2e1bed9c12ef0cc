"""ds.svd, ds.polar_decompose, ds.eig and ds.sym_eig: their values, in kernels and in Python.

What is expected follows from the definitions (the product is the matrix, the factors are orthogonal) and
from NumPy's LAPACK in f64.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("quick_code")

RNG = np.random.default_rng(7)


def rotations(n, count):
    q = np.linalg.qr(RNG.normal(size=(count, n, n)))[0]
    q[:, :, -1] *= np.sign(np.linalg.det(q))[:, None]
    return q


def with_values(n, *values):
    """Two matrices for each row of singular values: with a rotation each side, and a diagonal one."""
    s = np.array(values, float)[:, :n]
    turned = rotations(n, len(s)) * s[:, None, :] @ rotations(n, len(s))
    return np.concatenate([turned, s[:, None, :] * np.eye(n)])


def matrices(n):
    """Thousands of matrices: ordinary, badly scaled, of low rank, with equal singular values."""
    count = 1000
    normal = RNG.normal(size=(count, n, n))
    columns = normal * 10 ** RNG.uniform(-9, 0, (count, 1, n))
    rows = normal * 10 ** RNG.uniform(-9, 0, (count, n, 1))
    entries = normal * 10 ** RNG.uniform(-9, 0, (count, n, n))
    whole = RNG.integers(-2, 3, (count, n, n)).astype(float)
    near = rotations(n, count) * (1 + 10 ** RNG.uniform(-17, -1, (count, 1, n)))
    close = near @ rotations(n, count)
    scaled = 3.7 * rotations(n, count) * RNG.choice([-1, 1], (count, 1, 1))
    rank_1 = normal[:, :, :1] @ RNG.normal(size=(count, 1, n))
    parallel = np.eye(n)[0][:, None] * normal[:, :1, :]
    special = with_values(
        n,
        (1, 1, 1),
        (2, 1, 1),
        (2, 2, 1),
        (2, 1, 0),
        (1, 0, 0),
        (0, 0, 0),
        (-1, -1, -1),
        (2, 1, -1),
    )
    return np.concatenate(
        [
            normal,
            columns,
            rows,
            entries,
            whole,
            close,
            scaled,
            rank_1,
            parallel,
            special,
            [np.ones((n, n))],
        ]
    )


def run(ds, name, a, t, **shapes):
    """The results of ds.<name>(A) for many matrices in a kernel, as f64 arrays."""
    n = a.shape[-1]
    A = ds.Matrix.field(n, n, t, shape=len(a))
    A.from_numpy(a.astype(t.numpy))
    function = getattr(ds, name)
    make = [
        ds.Vector.field(shape, t, len(a))
        if isinstance(shape, int)
        else ds.Matrix.field(*shape, t, len(a))
        for shape in shapes.values()
    ]
    P, Q = make[:2]
    S = make[-1]

    @ds.kernel
    def three():
        for i in A:
            P[i], Q[i], S[i] = function(A[i])

    @ds.kernel
    def two():
        for i in A:
            P[i], Q[i] = function(A[i])

    (three if len(make) == 3 else two)()
    return [A.to_numpy().astype(float), *(f.to_numpy().astype(float) for f in make)]


def off(found, expected, size, t):
    """The largest distance in units of the last place of `size`, for each matrix."""
    distance = np.abs(found - expected).reshape(len(found), -1).max(1)
    return distance / np.maximum(size, np.finfo(t.numpy).tiny) / np.finfo(t.numpy).eps


def of_lapack(t):
    """NumPy's own error in these units, in f64: 50 for almost equal singular values."""
    return 100 if t.bits == 64 else 0


def is_orthogonal(q, t):
    return off(q.transpose(0, 2, 1) @ q, np.eye(q.shape[-1]), np.ones(len(q)), t).max() < 8


SIZES = pytest.mark.parametrize("n", [2, 3])
TYPES = pytest.mark.parametrize("name", ["f32", "f64"])
SCALES = pytest.mark.parametrize("scale", ["ordinary", "tiny", "huge"])


def scaled(a, scale, t):
    limits = np.finfo(t.numpy)
    size = np.abs(a).max((1, 2), keepdims=True)
    a = a / np.where(size > 0, size, 1)
    factors = {"ordinary": 1.0, "tiny": float(limits.tiny) * 1e4, "huge": float(limits.max) / 8}
    return a * factors[scale]


@SIZES
@TYPES
@SCALES
def test_svd(cpu, n, name, scale):
    t = getattr(cpu, name)
    a = scaled(matrices(n), scale, t)
    a, u, sigma, v = run(cpu, "svd", a, t, u=(n, n), sigma=(n, n), v=(n, n))
    s = np.einsum("kii->ki", sigma)
    expected = np.linalg.svd(a, compute_uv=False)
    size = expected[:, 0]
    few = 8 if scale != "tiny" else 1e5  # the results themselves are denormal numbers there
    assert (sigma == s[:, :, None] * np.eye(n)).all()
    assert off((u * s[:, None, :]) @ v.transpose(0, 2, 1), a, size, t).max() < few
    assert off(np.abs(s), expected, size, t).max() < few + of_lapack(t)
    assert is_orthogonal(u, t)
    assert is_orthogonal(v, t)
    assert (np.linalg.det(v) > 0).all()
    assert (s[:, :-1] >= 0).all()
    assert (np.diff(np.abs(s)) <= few * np.finfo(t.numpy).eps * size[:, None]).all()
    if n == 2:
        assert (s >= 0).all()
    else:
        assert (np.linalg.det(u) > 0).all()
    certain = np.abs(expected).min(1) > 1e-3 * size
    negative = (s[:, -1] < 0) if n == 3 else (np.linalg.det(u) < 0)
    assert (negative == (np.linalg.det(a / size[:, None, None].clip(1e-300)) < 0))[certain].all()


@SIZES
@TYPES
@SCALES
def test_polar_decomposition(cpu, n, name, scale):
    t = getattr(cpu, name)
    a = scaled(matrices(n), scale, t)
    a, r, s = run(cpu, "polar_decompose", a, t, r=(n, n), s=(n, n))
    size = np.linalg.norm(a, 2, axis=(1, 2))
    few = 10 if scale != "tiny" else 1e5
    assert off(r @ s, a, size, t).max() < few
    assert (s == s.transpose(0, 2, 1)).all()
    assert is_orthogonal(r, t)
    least = np.linalg.eigvalsh(s)[:, 0]
    certain = np.linalg.svd(a, compute_uv=False).min(1) > 1e-3 * size
    if n == 2:
        assert (least >= -few * np.finfo(t.numpy).eps * size).all()
        assert ((np.linalg.det(r) < 0) == (np.linalg.det(a / size.max()) < 0))[certain].all()
    else:
        assert (np.linalg.det(r) > 0).all()
        assert ((least < 0) == (np.linalg.det(a / size.max()) < 0))[certain].all()


@SIZES
@TYPES
@SCALES
def test_symmetric_eigenvalues(cpu, n, name, scale):
    t = getattr(cpu, name)
    a = matrices(n)
    a = scaled(a + a.transpose(0, 2, 1), scale, t)
    a, values, v = run(cpu, "sym_eig", a, t, values=n, v=(n, n))
    expected = np.linalg.eigvalsh(a)
    size = np.abs(expected).max(1)
    few = 8 if scale != "tiny" else 1e5
    expected = expected[:, ::-1] if n == 2 else expected
    assert off(values, expected, size, t).max() < few + of_lapack(t)
    assert off((v * values[:, None, :]) @ v.transpose(0, 2, 1), a, size, t).max() < few
    assert is_orthogonal(v, t)
    assert (np.linalg.det(v) > 0).all()


@TYPES
def test_eigenvalues(cpu, name):
    t = getattr(cpu, name)
    a, values, vectors = run(cpu, "eig", matrices(2), t, values=(2, 2), vectors=(4, 2))
    x = values[:, :, 0] + 1j * values[:, :, 1]
    v = vectors[:, ::2] + 1j * vectors[:, 1::2]
    size = np.linalg.norm(a, 2, axis=(1, 2))
    assert off((a @ v).view(float), (x[:, None, :] * v).view(float), size, t).max() < 12
    assert off(np.linalg.norm(v, axis=1), 1, np.ones(len(a)), t).max() < 4
    real = values[:, 0, 1] == 0
    assert (x[real, 0].real >= x[real, 1].real).all()
    assert (x[~real, 0] == x[~real, 1].conj()).all()
    assert (x[~real, 0].imag > 0).all()
    distinct = np.abs(x[:, 0] - x[:, 1]) > 0.1 * size
    expected = np.linalg.eigvals(a[distinct])
    apart = np.abs(np.sort_complex(expected) - np.sort_complex(x[distinct])).max(1)
    assert (apart / size[distinct]).max() < 100 * np.finfo(t.numpy).eps


def test_eigenvectors_of_matrices_that_have_too_few(cpu):
    values, v = cpu.eig([[2.0, 3.0], [0.0, 2.0]])
    assert values.to_numpy().tolist() == [[2, 0], [2, 0]]
    assert np.abs(v.to_numpy()[::2]).tolist() == [[1, 1], [0, 0]]
    _, v = cpu.eig([[2.0, 0.0], [0.0, 2.0]])
    assert v.to_numpy()[::2].tolist() == [[1, 0], [0, 1]]


def test_exact_where_nothing_is_to_be_done(cpu):
    for n in (2, 3):
        u, sigma, v = cpu.svd(2.5 * np.eye(n))
        for found, expected in ((u, np.eye(n)), (sigma, 2.5 * np.eye(n)), (v, np.eye(n))):
            assert (found.to_numpy() == expected).all()
        values, _ = cpu.sym_eig(np.diag([1e-30, 0.3, 7.0][:n]))
        assert sorted(values.to_numpy()) == [1e-30, 0.3, 7.0][:n]


@SIZES
def test_python_does_what_kernels_do(cpu, n):
    a = matrices(n)[::97]
    sigma = run(cpu, "svd", a, cpu.f64, u=(n, n), sigma=(n, n), v=(n, n))[2]
    for k, one in enumerate(a):
        found = cpu.svd(cpu.Matrix(one))
        product = found[0] @ found[1] @ found[2].transpose()
        np.testing.assert_allclose(product.to_numpy(), one, atol=1e-14)
        np.testing.assert_allclose(np.diag(found[1]), np.diag(sigma[k]), atol=1e-14)
    r, s = cpu.polar_decompose(a[0].tolist())
    np.testing.assert_allclose((r @ s).to_numpy(), a[0], atol=1e-14)
    values, v = cpu.sym_eig(cpu.Matrix((a[0] + a[0].T).tolist()))
    np.testing.assert_allclose(
        (a[0] + a[0].T) @ v.to_numpy(), v.to_numpy() * values.to_numpy(), atol=1e-13
    )


def test_the_type_asked_for(cpu):
    @cpu.kernel
    def wide(x: cpu.f32) -> cpu.types.matrix(2, 2, cpu.f64):
        A = cpu.Matrix([[x, 2.0], [3.0, 4.0]])
        U, sigma, V = cpu.svd(A, cpu.f64)
        return U @ sigma @ V.transpose()

    np.testing.assert_allclose(wide(1.0).to_numpy(), [[1, 2], [3, 4]], atol=1e-14)


@SIZES
def test_functions_of_matrices(cpu, n):
    a = RNG.normal(size=(20, n, n))
    a = a.transpose(0, 2, 1) @ a + 0.1 * np.eye(n)
    A, root, log = (cpu.Matrix.field(n, n, cpu.f64, len(a)) for _ in range(3))
    A.from_numpy(a)

    @cpu.kernel
    def evaluate():
        for i in A:
            root[i] = cpu.sym_map(cpu.sqrt, A[i])
            U, sigma, V = cpu.svd(A[i])
            log[i] = U @ cpu.diagonal_map(cpu.log, sigma) @ V.transpose()

    evaluate()
    found = root.to_numpy()
    np.testing.assert_allclose(found @ found, a, atol=1e-13)
    values, v = np.linalg.eigh(a)
    np.testing.assert_allclose(
        log.to_numpy(), (v * np.log(values)[:, None, :]) @ v.transpose(0, 2, 1), atol=1e-12
    )


@SIZES
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_stays_one(cpu, n, bad):
    """A NaN is not hidden behind the identity."""
    a = np.tile(np.eye(n), (n * n, 1, 1))
    a.reshape(n * n, -1)[np.arange(n * n), np.arange(n * n)] = bad
    _, u, sigma, v = run(cpu, "svd", a, cpu.f64, u=(n, n), sigma=(n, n), v=(n, n))
    assert np.isnan(np.einsum("kii->k", sigma)).all()
    assert np.isnan(u @ v).any((1, 2)).all()
    _, r, s = run(cpu, "polar_decompose", a, cpu.f64, r=(n, n), s=(n, n))
    assert np.isnan(r).any((1, 2)).all()
    assert np.isnan(s).any((1, 2)).all()
    _, values, _ = run(cpu, "sym_eig", a, cpu.f64, values=n, v=(n, n))
    assert np.isnan(values).any(1).all()
