"""Quaternions and transformations of `ds.math`, `ds.solve`, noise, and operators as functions."""

import math

import numpy as np
import pytest

import diffsim as ds
from diffsim import math as tm
from diffsim.errors import KernelTypeError
from tests.support.gradients import check, field, numbers

pytestmark = pytest.mark.usefixtures("cpu64", "quick_code")


@pytest.fixture
def cpu64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64)


def rodrigues(axis, angle):
    """The matrix of a rotation by the right hand rule."""
    x, y, z = axis
    k = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * k + (1 - math.cos(angle)) * k @ k


def test_rotations_are_those_of_matrices():
    random = np.random.default_rng(1)
    for _ in range(20):
        axes = [a / np.linalg.norm(a) for a in random.standard_normal((2, 3))]
        angles = random.uniform(0.1, 3.0, 2)
        matrices = [rodrigues(a, t) for a, t in zip(axes, angles, strict=True)]
        p, q = (tm.quat_from_axis_angle(ds.Vector(a), t) for a, t in zip(axes, angles, strict=True))
        v = random.standard_normal(3)
        close = np.testing.assert_allclose
        close(tm.quat_to_matrix(p).to_numpy(), matrices[0], atol=1e-12)
        close(tm.quat_rotate(p, ds.Vector(v)).to_numpy(), matrices[0] @ v, atol=1e-12)
        close(tm.quat_rotate_inv(p, ds.Vector(v)).to_numpy(), matrices[0].T @ v, atol=1e-12)
        close(
            tm.quat_to_matrix(tm.quat_mul(p, q)).to_numpy(), matrices[0] @ matrices[1], atol=1e-12
        )
        # The quaternion of a matrix, up to its sign.
        found = tm.quat_from_matrix(ds.Matrix(matrices[0])).to_numpy()
        close(found * np.sign(found @ p.to_numpy()), p.to_numpy(), atol=1e-12)
        close(tm.quat_angle(p), angles[0])
        close(tm.quat_axis(-p).to_numpy(), axes[0], atol=1e-12)
        # At half of the way the square of the rest is what is left.
        half = tm.quat_mul(tm.quat_inverse(p), tm.quat_slerp(p, q, 0.5))
        whole = tm.quat_to_matrix(tm.quat_mul(half, half)).to_numpy()
        close(whole, matrices[0].T @ matrices[1], atol=1e-12)
        t = tm.transform(ds.Vector(v), p)
        w = random.standard_normal(3)
        close(tm.transform_point(t, ds.Vector(w)).to_numpy(), matrices[0] @ w + v, atol=1e-12)
        there = tm.transform_multiply(tm.transform_inverse(t), t).to_numpy()
        close(there * np.sign(there[6]), tm.transform_identity().to_numpy(), atol=1e-12)
    by_hand = [rodrigues(e, a) for e, a in zip(np.eye(3), (0.1, 0.2, 0.3), strict=True)]
    want = by_hand[2] @ by_hand[1] @ by_hand[0]
    np.testing.assert_allclose(tm.quat_to_matrix(tm.quat_rpy(0.1, 0.2, 0.3)).to_numpy(), want)
    with pytest.raises(KernelTypeError, match="a quaternion is a vector of 4 elements"):
        tm.quat_rotate(ds.Vector([1.0, 0.0, 0.0]), ds.Vector([1.0, 0.0, 0.0]))


def test_gradients_of_rotations():
    x, loss = field(8), field()

    @ds.kernel
    def run():
        for _ in range(1):
            p = tm.vec4(x[0], x[1], x[2], x[3]).normalized()
            q = tm.vec4(x[4], x[5], x[6], x[7]).normalized()
            v = tm.quat_rotate(tm.quat_slerp(p, q, x[0]), tm.vec3(1.0, x[4], 2.0))
            # At two equal rotations the way has no angle, but it has a derivative.
            still = tm.quat_slerp(p, tm.quat_mul(p, tm.quat_identity()), 0.25)
            t = tm.transform_multiply(tm.transform(v, p), tm.transform_inverse(tm.transform(v, q)))
            m = tm.quat_to_matrix(p) @ tm.quat_to_matrix(q)
            loss[None] += v.x * x[1] + still.dot(q) + tm.transform_point(t, v).y
            loss[None] += tm.quat_from_matrix(m).dot(q) + tm.quat_axis(p).x * tm.quat_angle(q)
            loss[None] += tm.noise(v) + tm.noise(v.xy) + tm.noise(x[2])

    x.from_numpy(numbers(8, seed=2))
    check(run, loss, x, rel=1e-5)
    tangents = []
    for seed in np.eye(8):
        loss.fill(0)
        with ds.ad.FwdMode(loss=loss, param=x, seed=seed.tolist()):
            run()
        tangents.append(loss.dual[None])
    np.testing.assert_allclose(tangents, x.grad.to_numpy(), rtol=1e-9)
    assert "entry" in run.ptx()
    # Where nothing turns, the adjoint of the way is that of its series.
    q, d = field(4), 1e-6
    start = np.array([0.0, 0.0, 0.0, 1.0])

    @ds.kernel
    def still():
        for _ in range(1):
            s = tm.quat_slerp(tm.quat_identity(), tm.vec4(q[0], q[1], q[2], q[3]), 0.25)
            loss[None] += s.x + 2.0 * s.y

    q.from_numpy(start)
    with ds.Tape(loss):
        still()
    away = tm.quat_slerp(tm.quat_identity(), ds.Vector([d, 0.0, 0.0, 1.0]), 0.25)
    np.testing.assert_allclose(q.grad.to_numpy()[:3], [away[0] / d, 2 * away[0] / d, 0], rtol=1e-6)


def test_solve():
    a, b, loss = field(n=(3, 3)), field(n=3), field()

    @ds.kernel
    def run():
        for _ in range(1):
            x = ds.solve(a[None], b[None])
            y = ds.solve(a[None], ds.Matrix.identity(ds.f64, 3))
            loss[None] += x.norm_sqr() + y.trace() + x[0]

    # The pivot is 0 at first: rows have to change places.
    a[None] = [[0.0, 1.0, 2.0], [3.0, 0.5, -1.0], [1.0, 4.0, 1.0]]
    b[None] = [1.0, -2.0, 0.5]
    check(run, loss, a, b)
    for n in range(1, 7):
        m, v = numbers(n, n, seed=n), numbers(n, seed=n)
        np.testing.assert_allclose(ds.solve(m, v).to_numpy(), np.linalg.solve(m, v), rtol=1e-8)
    with pytest.raises(KernelTypeError, match="needs 2 rows on the right"):
        ds.solve(np.eye(2), np.ones(3))


def test_operators_as_functions():
    @ds.kernel
    def run(a: ds.i32, b: ds.i32) -> ds.types.vector(8, ds.i32):
        v = ds.Vector([a, b])
        both = ds.logical_and(v > 1, v < 5)
        return [
            ds.raw_div(a, b),
            ds.bit_shl(a, 2),
            ds.bit_sar(a, 1),
            ds.logical_and(a, b > 1, True),
            ds.logical_or(a > 100, b == 0),
            ds.logical_not(a),
            both[0],
            both[1],
        ]

    for a, b in ((-7, 2), (7, -2), (2, 0), (0, 4)):
        quotient = int(a / b) if b else 0
        want = [quotient, a << 2, a >> 1, a != 0 and b > 1, a > 100 or b == 0, a == 0]
        want += [1 < a < 5, 1 < b < 5]
        assert run(a, b).to_list() == want
    assert ds.raw_div(7.0, 2.0) == 3.5
    assert (ds.raw_div(-7, 2), ds.logical_not(2), ds.logical_or(0, 0)) == (-3, False, False)
