"""Gradients that kernels ask for themselves, `ds.grad(f)(x)`, and their own derivatives."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers


@pytest.fixture(autouse=True)
def _f64(cpu, quick_code):
    ds.init(arch=ds.cpu, default_fp=ds.f64, debug=True)


def test_closed_forms_of_first_and_second_derivatives():
    x, first, loss = field(4), field(4), field()
    x.from_numpy(numbers(4, lo=0.1, hi=1.0))

    @ds.func
    def f(a):
        return ds.sin(a) * a**3

    @ds.kernel
    def run():
        for i in x:
            first[i] = ds.grad(f)(x[i])

    @ds.kernel
    def add():
        for i in x:
            loss[None] += first[i]

    with ds.Tape(loss):
        run()
        add()
    v = x.to_numpy()
    np.testing.assert_allclose(first.to_numpy(), np.cos(v) * v**3 + 3 * np.sin(v) * v**2)
    second = -np.sin(v) * v**3 + 6 * np.cos(v) * v**2 + 6 * np.sin(v) * v
    np.testing.assert_allclose(x.grad.to_numpy(), second, rtol=1e-13)


def test_derivatives_of_derivatives_of_derivatives():
    x, out, loss = field(3), field(3), field()
    x.from_numpy(numbers(3, lo=0.5, hi=1.5))

    @ds.func
    def f(a):
        return a**5

    @ds.func
    def df(a):
        return ds.grad(f)(a)

    @ds.func
    def ddf(a):
        return ds.grad(df)(a)

    @ds.kernel
    def run():
        for i in x:
            out[i] = ds.grad(ddf)(x[i])
            loss[None] += ds.grad(ddf)(x[i])

    with ds.Tape(loss):
        run()
    v = x.to_numpy()
    np.testing.assert_allclose(out.to_numpy(), 60 * v**2)
    np.testing.assert_allclose(x.grad.to_numpy(), 120 * v)


def test_forces_from_an_energy_in_a_differentiated_time_step():
    """Springs in two dimensions, stiffness and rest length from fields; two steps of symplectic Euler."""
    steps, n = 3, 3
    x, v = field((steps + 1, n), n=2), field((steps + 1, n), n=2)
    k, rest, loss = field(n), field(), field()
    x.from_numpy(numbers(steps + 1, n, 2))
    v.from_numpy(numbers(steps + 1, n, 2, seed=1))
    k.from_numpy(numbers(n, lo=1.0, hi=2.0))
    rest[None] = 0.3

    @ds.func
    def energy(p, q, i):
        return 0.5 * k[i] * ((p - q).norm() - rest[None]) ** 2

    @ds.kernel
    def step(t: ds.i32):
        for i in range(n):
            force = ds.Vector([0.0, 0.0])
            for j in ds.static(range(n)):
                if j != i:
                    force -= ds.grad(energy)(x[t, i], x[t, j], j)[0]
            v[t + 1, i] = v[t, i] + 0.1 * force
            x[t + 1, i] = x[t, i] + 0.1 * (v[t, i] + 0.1 * force)

    @ds.kernel
    def measure():
        for i in range(n):
            loss[None] += x[steps, i].norm_sqr()

    def program():
        for t in range(steps):
            step(t)
        measure()

    got = check(program, loss, k, rest, x, v)
    assert np.abs(got[0]).min() > 1e-6


def test_several_arguments_and_results_take_the_adjoints_of_the_results():
    a, v, s, loss = field(2, n=(2, 2)), field(2, n=2), field(2), field()
    for f in (a, v, s):
        f.from_numpy(numbers(*f.to_numpy().shape))
    out = field(2, n=2)

    @ds.func
    def both(m, w, n, scale=2.0):
        return scale * m @ w, w.dot(w) * m[0, 1], n

    @ds.kernel
    def run():
        for i in s:
            dm, dw, dscale = ds.grad(both)(a[i], v[i], 3, s[i], [1.0, s[i]], 2.0)
            out[i] = dw
            loss[None] += dm[0, 1] * dm[1, 0] + dw.x * dw.y + dscale**2
            again = ds.grad(both)(a[i], v[i], 3, s[i], v[i], s[i])
            loss[None] += again[1].norm_sqr()

    check(run, loss, a, v, s)
    run()
    m, w, c = (f.to_numpy() for f in (a, v, s))
    for i in range(2):
        p = np.array([1.0, c[i]])
        expected = c[i] * m[i].T @ p + 2.0 * 2 * w[i] * m[i][0, 1]
        np.testing.assert_allclose(out.to_numpy()[i], expected)


def test_one_value_for_two_parameters():
    """The parts belong to parameters, not to values."""
    x, loss = field(3), field()
    x.from_numpy(numbers(3))

    @ds.func
    def f(a, b):
        return a * a * b

    @ds.kernel
    def run():
        for i in x:
            p, q = ds.grad(f)(x[i], b=x[i])
            loss[None] += p + 10.0 * q

    with ds.Tape(loss):
        run()
    v = x.to_numpy()
    np.testing.assert_allclose(loss[None], (2 * v**2 + 10 * v**2).sum())
    np.testing.assert_allclose(x.grad.to_numpy(), 24 * v)


def test_constants_and_unused_arguments():
    x, loss = field(3), field()
    x.from_numpy(numbers(3))

    @ds.func
    def f(a, b, c, n):
        return a * b

    @ds.kernel
    def run():
        for i in x:
            p, q, r = ds.grad(f)(x[i], 3.0, x[i], 2)
            loss[None] += p * x[i] + q + r

    check(run, loss, x)
    v = x.to_numpy()
    np.testing.assert_allclose(x.grad.to_numpy(), 3.0 + 1.0 + 0 * v)


def test_branches_and_loops_in_the_function():
    """Loops that save what they carry are differentiated once more, exactly."""
    x, n, loss = field(5), ds.field(ds.i32, shape=5), field()
    x.from_numpy(numbers(5, lo=0.3, hi=0.9))
    n.from_numpy(np.arange(5, dtype=np.int32))

    @ds.func
    def f(a, turns):
        s = a
        for k in range(turns):
            if s > 0.5:
                s = s * s + 0.1 * a
            else:
                t = s
                while t < 0.6:
                    t += 0.2 * ds.sin(t) + 0.1
                s = t * a
        total = 0.0
        for k in range(2):
            for m in range(k + 1):
                total += s ** (k + 2) * a
        return total

    @ds.kernel
    def run():
        for i in x:
            loss[None] += ds.grad(f)(x[i], n[i]) * x[i]
            for k in range(2):
                loss[None] += ds.grad(f)(x[i] * (k + 1), k) ** 2

    check(run, loss, x)
    assert "scratch" in run.ir()


def test_in_a_loop_that_carries_and_in_branches():
    """Newton's method on a gradient, with the curvature from the gradient of the gradient."""
    x, loss = field(4), field()
    x.from_numpy(numbers(4, lo=0.5, hi=1.5))

    @ds.func
    def energy(a, c):
        return ds.exp(a) - c * a

    @ds.func
    def slope(a, c):
        return ds.grad(energy)(a, c)[0]

    @ds.kernel
    def run():
        for i in x:
            a = 0.0
            while abs(slope(a, x[i])) > 1e-13:
                da, _ = ds.grad(slope)(a, x[i])
                a -= slope(a, x[i]) / da
            if a > 0.0:
                loss[None] += a * a
            else:
                loss[None] += 2.0 * a

    with ds.Tape(loss):
        run()
    v = x.to_numpy()  # a = log c
    expected = np.where(v > 1, 2 * np.log(v) / v, 2 / v)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-9)


def test_with_gradients_that_are_given():
    """ds.grad takes them; their second derivative is that of the formula given."""
    x, first, loss = field(3), field(3), field()
    x.from_numpy(numbers(3, lo=0.5, hi=1.0))

    @ds.func
    def inner(a):
        return a * a

    @ds.func_grad(inner)
    def adj_inner(a, g):
        ds.adjoint[a] += 7.0 * a**3 * g

    @ds.func
    def f(a):
        return inner(a) * a

    @ds.kernel
    def run():
        for i in x:
            first[i] = ds.grad(f)(x[i])
            loss[None] += ds.grad(f)(x[i])

    with ds.Tape(loss):
        run()
    v = x.to_numpy()
    # f' = 7 a^3 * a + a^2 by the rule; its derivative: 28 a^3 and, by the rule again, 7 a^3
    np.testing.assert_allclose(first.to_numpy(), 7 * v**4 + v**2)
    np.testing.assert_allclose(x.grad.to_numpy(), 28 * v**3 + 7 * v**3)


def test_in_a_gradient_that_is_given():
    x, loss = field(3), field()
    x.from_numpy(numbers(3, lo=0.5, hi=1.0))

    @ds.func
    def body(a, b):
        s = a
        for _ in range(3):
            s = s * s * b
        return s

    @ds.func
    def f(a, b):
        return body(a, b)

    @ds.func_grad(f)
    def adj_f(a, b, g):
        da, db = ds.grad(body)(a, b)
        ds.adjoint[a] += da * g
        ds.adjoint[b] += db * g

    @ds.kernel
    def run():
        for i in x:
            for _ in range(2):
                loss[None] += f(x[i], 1.0 + x[i])

    check(run, loss, x)


def test_fields_are_constants_for_it_and_not_for_the_tape():
    table, x, out, loss = field(3), field(3), field(3), field()
    table.from_numpy(numbers(3))
    x.from_numpy(numbers(3, seed=1))

    @ds.func
    def f(t, i, a):
        return t[i] ** 2 * a**3 * x[i]

    @ds.kernel
    def run():
        for i in x:
            out[i] = ds.grad(f)(table, i, x[i])
            loss[None] += ds.grad(f)(table, i, x[i])

    check(run, loss, table, x, reset=[out])
    run()
    t, v = table.to_numpy(), x.to_numpy()
    np.testing.assert_allclose(out.to_numpy(), 3 * t**2 * v**3)


def test_methods_and_kernel_level_code():
    @ds.data_oriented
    class Well:
        def __init__(self):
            self.depth = field()
            self.x = field()
            self.loss = field()

        @ds.func
        def energy(self, a):
            return self.depth[None] * a**4

        @ds.kernel
        def run(self):
            self.loss[None] += ds.grad(self.energy)(self.x[None]) ** 2

    well = Well()
    well.depth[None], well.x[None] = 0.7, 1.1
    check(well.run, well.loss, well.depth, well.x)


def test_f32_stays_f32():
    x, out = field(3, dtype=ds.f32), field(3, dtype=ds.f32)
    x.from_numpy(numbers(3).astype(np.float32))

    @ds.func
    def f(a):
        return a * a * 0.1

    @ds.kernel
    def run():
        for i in x:
            out[i] = ds.grad(f)(x[i])

    run()
    assert "f64" not in run.ir()
    np.testing.assert_allclose(out.to_numpy(), 0.2 * x.to_numpy(), rtol=1e-6)


def test_in_place_and_checkpoint():
    q, p, loss = field(2), field(2), field()
    start = numbers(2), numbers(2, seed=1)

    @ds.func
    def energy(a):
        return ds.cos(a) * a

    @ds.kernel
    def kick():
        for i in q:
            p[i] = p[i] - 0.1 * ds.grad(energy)(q[i])

    @ds.kernel
    def drift():
        for i in q:
            q[i] += 0.1 * p[i]

    @ds.kernel
    def measure():
        for i in q:
            loss[None] += q[i] ** 2

    def step(t):
        kick()
        drift()

    def run(way):
        q.from_numpy(start[0])
        p.from_numpy(start[1])
        with ds.Tape(loss, in_place="save"):
            way()
            measure()
        return q.grad.to_numpy(), p.grad.to_numpy()

    def plain():
        for t in range(7):
            step(t)

    one = run(plain)
    other = run(lambda: ds.ad.checkpoint(step, 7, state=[q, p], snapshots=2))
    np.testing.assert_allclose(one, other, rtol=1e-12)

    def by_hand(q0, p0):
        a, b = q0.astype(complex), p0.astype(complex)
        for _ in range(7):
            b = b - 0.1 * (np.cos(a) - a * np.sin(a))
            a = a + 0.1 * b
        return (a**2).sum()

    for k in range(2):  # complex steps: exact to rounding
        for which in range(2):
            moved = [s.astype(complex) for s in start]
            moved[which][k] += 1e-30j
            expected = by_hand(*moved).imag / 1e-30
            np.testing.assert_allclose(one[which][k], expected, rtol=1e-12)


def test_of_a_func_with_a_gradient_or_a_replay_of_its_own():
    """The gradient given is taken, and differentiated again."""
    x, first, loss = field(3), field(3), field()
    x.from_numpy(numbers(3, lo=0.5, hi=1.0))

    @ds.func
    def f(a):
        return a * a

    @ds.func_grad(f)
    def adj_f(a, g):
        ds.adjoint[a] += 7.0 * a**3 * g

    @ds.func
    def h(a):
        return a**3

    @ds.func_replay(h)
    def replay_h(a):
        return a * a * a

    @ds.kernel
    def run():
        for i in x:
            first[i] = ds.grad(f)(x[i]) + ds.grad(h)(x[i])
            loss[None] += ds.grad(f)(x[i]) + ds.grad(h)(x[i])

    with ds.Tape(loss):
        run()
    v = x.to_numpy()
    np.testing.assert_allclose(first.to_numpy(), 7 * v**3 + 3 * v**2)
    np.testing.assert_allclose(x.grad.to_numpy(), 21 * v**2 + 6 * v)


def test_second_derivatives_through_a_gradient_that_calls_its_func():
    """That call cannot be differentiated by the same rule again: refused, not guessed."""
    x, loss = field(3), field()
    x.fill(1.0)

    @ds.func
    def f(a):
        return ds.exp(a)

    @ds.func_grad(f)
    def adj_f(a, g):
        ds.adjoint[a] += g * f(a)

    @ds.kernel
    def run():
        for i in x:
            loss[None] += ds.grad(f)(x[i])

    run()
    np.testing.assert_allclose(loss[None], 3 * np.e)
    with pytest.raises(ds.AutodiffError, match="the gradient of f calls f itself"):
        with ds.Tape(loss):
            run()


def test_second_derivatives_where_the_first_one_passes_through_zero():
    """The adjoint inside is exactly 0 there; a guard against 0 times infinity must not cut the chain."""
    x, c, loss = field(2), field(2), field()
    x.from_numpy(np.array([0.0, 0.5]))
    c.from_numpy(np.array([0.7, 1.3]))

    @ds.func
    def div(a, c):
        return (a / c) ** 2

    @ds.func
    def exp(a, c):
        return (ds.exp(a) - 1.0) ** 2 * c

    @ds.func
    def log(a, c):
        return ds.log(1.0 + a) ** 2 * c

    @ds.func
    def rsqrt(a, c):
        return (ds.rsqrt(1.0 + a) - 1.0) ** 2 * c

    @ds.func
    def tan(a, c):
        return ds.tan(a) ** 2 * c

    @ds.func
    def sinh(a, c):
        return ds.sinh(a) ** 2 * c

    @ds.func
    def cosh(a, c):
        return (ds.cosh(a + 0.5) - 1.1276259652063807) ** 2 * c

    @ds.func
    def root(a, c):
        return (ds.sqrt(1.0 + a) - 1.0) ** 2 * c

    @ds.func
    def power(a, c):
        return ((1.0 + a) ** c - 1.0) ** 2

    @ds.func
    def arcs(a, c):
        return (ds.asin(a) + ds.acos(a) * 2.0 - 3.141592653589793) ** 2 * c

    @ds.func
    def angle(a, c):
        return ds.atan2(a, c) ** 2 + ds.atan2(c, a + 0.1) * a

    @ds.func
    def norm(a, c):
        return (ds.Vector([a, c]).norm() - 0.7) ** 2

    @ds.func
    def rest(a, c):
        return ds.tanh(a) ** 2 * ds.cos(c) + max(a, c) ** 3 - min(a, c) * abs(c)

    @ds.kernel
    def run(f: ds.template()):
        for i in x:
            da, dc = ds.grad(f)(x[i], c[i])
            loss[None] += da * (1.0 + i) + 0.3 * dc

    for f in (div, exp, log, rsqrt, tan, sinh, cosh, root, power, arcs, angle, norm, rest):
        check(lambda f=f: run(f), loss, x, c)


def test_stress_from_an_energy_density():
    """Compressible neo-Hookean solid: P = dpsi/dF = mu (F - F^-T) + lambda log(J) F^-T; then dP/dF."""
    F, out, loss = field(2, n=(3, 3)), field(2, n=(3, 3)), field()
    mu, lam = field(), field()
    F.from_numpy(np.eye(3) + 0.3 * numbers(2, 3, 3))
    mu[None], lam[None] = 0.8, 1.3

    @ds.func
    def psi(f):
        j = ds.log(f.determinant())
        return mu[None] / 2 * ((f.transpose() @ f).trace() - 3 - 2 * j) + lam[None] / 2 * j * j

    @ds.kernel
    def run(scale: ds.f64, a: ds.types.ndarray()):
        for i in F:
            p = ds.grad(psi)(F[i])
            out[i] = p
            loss[None] += scale * (p @ F[i]).norm_sqr() * a[i]

    weights = ds.ndarray(ds.f64, shape=2, needs_grad=True)
    weights.from_numpy(np.array([0.7, -0.4]))
    check(lambda: run(0.5, weights), loss, F, mu, lam, reset=[out])
    run(0.5, weights)
    for f, p in zip(F.to_numpy(), out.to_numpy(), strict=True):
        inverse = np.linalg.inv(f).T
        j = np.log(np.linalg.det(f))
        np.testing.assert_allclose(p, 0.8 * (f - inverse) + 1.3 * j * inverse, rtol=1e-12)


def test_arguments_of_the_kernel_and_arrays():
    a, loss = ds.ndarray(ds.f64, shape=3, needs_grad=True), field()
    a.from_numpy(numbers(3))

    @ds.func
    def f(values, i, t):
        return ds.sin(t * values[i]) * t

    @ds.kernel
    def run(values: ds.types.ndarray(), t: ds.f64):
        for i in range(3):
            loss[None] += ds.grad(f)(values, i, t)

    with ds.Tape(loss):
        run(a, 0.7)
    v, t = a.to_numpy(), 0.7
    np.testing.assert_allclose(loss[None], (v * np.cos(t * v) * t + np.sin(t * v)).sum())
    expected = 2 * np.cos(t * v) * t - v * t * t * np.sin(t * v)
    np.testing.assert_allclose(a.grad.to_numpy(), expected)


def test_adjoints_in_f32():
    x, out = field(3, dtype=ds.f32), field(3, dtype=ds.f32)
    x.from_numpy(numbers(3).astype(np.float32))

    @ds.func
    def f(a):
        return ds.Vector([a * a, 3.0 * a])

    @ds.kernel
    def run():
        for i in x:
            out[i] = ds.grad(f)(x[i], [0.5, 2])

    run()
    assert "f64" not in run.ir()
    np.testing.assert_allclose(out.to_numpy(), x.to_numpy() + 6.0, rtol=1e-6)


def test_what_it_reads_must_still_be_there():
    x, y, c, loss = field(3), field(3), field(3, grad=False), field()
    x.from_numpy(numbers(3))

    @ds.func
    def f(a, i):
        return c[i] * a * a

    @ds.kernel
    def run():
        for i in x:
            y[i] = ds.grad(f)(x[i], i)

    @ds.kernel
    def both():
        for i in x:
            y[i] = ds.grad(f)(x[i], i)
            c[i] = 5.0

    @ds.kernel
    def change():
        for i in c:
            c[i] = 5.0

    @ds.kernel
    def add():
        for i in y:
            loss[None] += y[i]

    for program in ([both, add], [run, add, change]):
        c.fill(2.0)
        with pytest.raises(ds.GlobalDataAccessError, match="needs c as it was"):
            with ds.Tape(loss):
                for k in program:
                    k()
        c.fill(2.0)
        with ds.Tape(loss, in_place="save"):
            for k in program:
                k()
        np.testing.assert_allclose(x.grad.to_numpy(), 4.0)
