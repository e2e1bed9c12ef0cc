"""Simulators as users of Taichi write them, unmodified under `ds.init(rules="lifted")`.

They overwrite their state, declare gradients for parameters and loss alone, and hold many loops in a kernel.
Each gradient is compared with central differences.
"""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, numbers


@pytest.fixture(autouse=True)
def lifted(cpu):
    ds.init(default_fp=ds.f64, rules="lifted")
    yield
    ds.init()


def scalar(**options):
    return ds.field(ds.f64, shape=(), **options)


def parameters(n=1, value=0.5):
    """The field that gradients are wanted of, and the loss."""
    p = ds.field(ds.f64, shape=n, needs_grad=True)
    p.from_numpy(value + 0.1 * numbers(n))
    return p, scalar(needs_grad=True)


def test_wave_with_a_func_that_checks_bounds():
    n = 6
    p, loss = parameters(2)
    u, v = ds.field(ds.f64, shape=(n, n)), ds.field(ds.f64, shape=(n, n))

    @ds.func
    def get(i, j):
        found = 0.0
        if 0 <= i < n and 0 <= j < n:
            found = u[i, j]
        return found

    @ds.kernel
    def start():
        for i, j in u:
            u[i, j] = p[1] * ds.exp(-((i - 2) ** 2 + (j - 3) ** 2))
            v[i, j] = 0.0

    @ds.kernel
    def step():
        for i, j in u:
            lap = get(i + 1, j) + get(i - 1, j) + get(i, j + 1) + get(i, j - 1) - 4 * u[i, j]
            v[i, j] += 0.1 * p[0] * lap
        for i, j in u:
            u[i, j] += 0.1 * v[i, j]

    @ds.kernel
    def measure():
        for i, j in u:
            loss[None] += u[i, j] ** 4

    def run():
        start()
        for _ in range(8):
            step()
        measure()

    check(run, loss, p)


def test_stable_fluids_in_one_kernel():
    n = 6
    p, loss = parameters(2)
    vel, new = ds.Vector.field(2, ds.f64, shape=(n, n)), ds.Vector.field(2, ds.f64, shape=(n, n))
    pressure, other, div = (ds.field(ds.f64, shape=(n, n)) for _ in range(3))
    smoke, moved = ds.field(ds.f64, shape=(n, n)), ds.field(ds.f64, shape=(n, n))

    @ds.func
    def sample(f: ds.template(), x, y):
        i, j = ds.floor(x, ds.i32), ds.floor(y, ds.i32)
        a, b = x - i, y - j
        i0, i1 = max(min(i, n - 1), 0), max(min(i + 1, n - 1), 0)
        j0, j1 = max(min(j, n - 1), 0), max(min(j + 1, n - 1), 0)
        return (1 - a) * ((1 - b) * f[i0, j0] + b * f[i0, j1]) + a * (
            (1 - b) * f[i1, j0] + b * f[i1, j1]
        )

    @ds.kernel
    def start():
        for i, j in smoke:
            smoke[i, j] = p[0] * ds.sin(0.7 * i + j)
            vel[i, j] = p[1] * ds.Vector([ds.cos(1.3 * j) + 0.1, ds.sin(0.9 * i)])
            pressure[i, j] = 0.0

    @ds.kernel
    def step(dt: ds.f64):
        for i, j in vel:
            back = ds.Vector([i, j]) - dt * vel[i, j]
            new[i, j] = sample(vel, back.x, back.y)
        for i, j in vel:
            vel[i, j] = new[i, j]
            vel[i, j].y += dt * smoke[i, j]
        for i, j in div:
            div[i, j] = 0.5 * (
                vel[min(i + 1, n - 1), j].x
                - vel[max(i - 1, 0), j].x
                + vel[i, min(j + 1, n - 1)].y
                - vel[i, max(j - 1, 0)].y
            )
        for _ in ds.static(range(2)):
            for i, j in pressure:
                other[i, j] = 0.25 * (
                    pressure[min(i + 1, n - 1), j]
                    + pressure[max(i - 1, 0), j]
                    + pressure[i, min(j + 1, n - 1)]
                    + pressure[i, max(j - 1, 0)]
                    - div[i, j]
                )
            for i, j in pressure:
                pressure[i, j] = other[i, j]
        for i, j in vel:
            vel[i, j] -= 0.5 * ds.Vector(
                [
                    pressure[min(i + 1, n - 1), j] - pressure[max(i - 1, 0), j],
                    pressure[i, min(j + 1, n - 1)] - pressure[i, max(j - 1, 0)],
                ]
            )
        for i, j in smoke:
            back = ds.Vector([i, j]) - dt * vel[i, j]
            moved[i, j] = sample(smoke, back.x, back.y)
        for i, j in smoke:
            smoke[i, j] = moved[i, j]

    @ds.kernel
    def measure():
        for i, j in smoke:
            loss[None] += (smoke[i, j] - 0.1 * i) ** 2

    def run():
        start()
        for _ in range(3):
            step(0.3)
        measure()

    check(run, loss, p)


def test_cloth():
    n = 4
    p, loss = parameters(2, value=3.0)
    x, v = ds.Vector.field(3, ds.f64, shape=(n, n)), ds.Vector.field(3, ds.f64, shape=(n, n))
    links = [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, 1), (1, -1)]
    dt, rest = 0.02, 0.3

    @ds.kernel
    def start():
        for i, j in x:
            x[i, j] = [0.3 * i, 0.5 + 0.01 * i * j, 0.3 * j]
            v[i, j] = [0.0, 0.0, 0.0]

    @ds.kernel
    def substep():
        for I in ds.grouped(x):
            v[I] += ds.Vector([0.0, -9.8, 0.0]) * dt
        for I in ds.grouped(x):
            force = ds.Vector([0.0, 0.0, 0.0])
            for link in ds.static(links):
                J = I + ds.Vector(link)
                if 0 <= J[0] < n and 0 <= J[1] < n:
                    d = x[I] - x[J]
                    length = d.norm()
                    force += -p[0] * 10.0 * d.normalized() * (length / rest - 1)
            v[I] += force * dt
        for I in ds.grouped(x):
            v[I] *= ds.exp(-0.1 * p[1] * dt)
            to = x[I] - ds.Vector([0.45, 0.0, 0.45])
            if to.norm() <= 0.4:
                normal = to.normalized()
                v[I] -= ds.min(v[I].dot(normal), 0.0) * normal
            x[I] += dt * v[I]

    @ds.kernel
    def measure():
        for I in ds.grouped(x):
            loss[None] += x[I].y ** 2

    def run():
        start()
        for _ in range(12):
            substep()
        measure()

    check(run, loss, p)


def test_fem99():
    n = 3
    p, loss = parameters(2, value=4.0)
    dt = 0.01
    nv, nf = (n + 1) ** 2, 2 * n * n
    pos, vel, force = (ds.Vector.field(2, ds.f64, shape=nv) for _ in range(3))
    f2v = ds.Vector.field(3, ds.i32, shape=nf)
    B = ds.Matrix.field(2, 2, ds.f64, shape=nf)
    U = scalar()
    quads = [(i * (n + 1) + j, n + 1) for i in range(n) for j in range(n)]
    f2v.from_numpy(
        np.array([t for a, m in quads for t in ((a, a + 1, a + m), (a + m + 1, a + m, a + 1))])
    )
    grid = np.stack(np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij"), -1) * 0.25

    @ds.kernel
    def rest():
        for i in range(nf):
            a, b, c = pos[f2v[i][0]], pos[f2v[i][1]], pos[f2v[i][2]]
            B[i] = ds.Matrix.cols([a - c, b - c]).inverse()

    @ds.kernel
    def substep():
        for i in range(nv):
            force[i] = ds.Vector([0.0, 0.0])
        U[None] = 0.0
        for i in range(nf):
            ia, ib, ic = f2v[i][0], f2v[i][1], f2v[i][2]
            F = ds.Matrix.cols([pos[ia] - pos[ic], pos[ib] - pos[ic]]) @ B[i]
            J = F.determinant()
            FinvT = F.inverse().transpose()
            P = p[0] * (F - FinvT) + p[1] * ds.log(J) * FinvT
            H = -0.03 * P @ B[i].transpose()
            h0, h1 = ds.Vector([H[0, 0], H[1, 0]]), ds.Vector([H[0, 1], H[1, 1]])
            force[ia] += h0
            force[ib] += h1
            force[ic] += -h0 - h1
            U[None] += J
        for i in range(nv):
            vel[i] += dt * (force[i] * 10.0 + ds.Vector([0.0, -2.0]))
            vel[i] *= ds.exp(-dt * 0.5)
            if pos[i].y < 0.01 and vel[i].y < 0:
                vel[i].y = 0.0
            pos[i] += dt * vel[i]

    @ds.kernel
    def measure():
        for i in range(nv):
            loss[None] += pos[i].norm_sqr()

    def run():
        pos.from_numpy(grid.reshape(-1, 2))
        vel.from_numpy(0.1 * numbers(nv, 2))
        rest()
        for _ in range(10):
            substep()
        measure()

    check(run, loss, p)


def test_mpm88_in_place():
    n, m = 5, 8
    p, loss = parameters(2)
    dx, dt = 1 / m, 1e-2
    x, v, C, J = (
        ds.Vector.field(2, ds.f64, shape=n),
        ds.Vector.field(2, ds.f64, shape=n),
        ds.Matrix.field(2, 2, ds.f64, shape=n),
        ds.field(ds.f64, shape=n),
    )
    grid_v, grid_m = ds.Vector.field(2, ds.f64, shape=(m, m)), ds.field(ds.f64, shape=(m, m))

    @ds.kernel
    def substep():
        for i, j in grid_m:
            grid_v[i, j] = [0, 0]
            grid_m[i, j] = 0
        for q in x:
            Xp = x[q] / dx
            base = int(Xp - 0.5)
            fx = Xp - base
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            stress = -dt * 4 * p[0] * (J[q] - 1) / dx**2
            affine = ds.Matrix([[stress, 0], [0, stress]]) + 0.01 * C[q]
            for i, j in ds.static(ds.ndrange(3, 3)):
                offset = ds.Vector([i, j])
                dpos = (offset - fx) * dx
                weight = w[i].x * w[j].y
                grid_v[base + offset] += weight * (0.01 * v[q] + affine @ dpos)
                grid_m[base + offset] += weight * 0.01
        for i, j in grid_m:
            if grid_m[i, j] > 0:
                grid_v[i, j] /= grid_m[i, j]
            grid_v[i, j].y -= dt * 9.8
            if i < 2 and grid_v[i, j].x < 0:
                grid_v[i, j].x = 0
            if j < 2 and grid_v[i, j].y < 0:
                grid_v[i, j].y = 0
        for q in x:
            Xp = x[q] / dx
            base = int(Xp - 0.5)
            fx = Xp - base
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_v = ds.Vector.zero(ds.f64, 2)
            new_C = ds.Matrix.zero(ds.f64, 2, 2)
            for i, j in ds.static(ds.ndrange(3, 3)):
                offset = ds.Vector([i, j])
                dpos = (offset - fx) * dx
                weight = w[i].x * w[j].y
                g_v = grid_v[base + offset]
                new_v += weight * g_v
                new_C += 4 * weight * g_v.outer_product(dpos) / dx**2
            v[q] = new_v
            x[q] += dt * v[q]
            J[q] *= 1 + dt * new_C.trace()
            C[q] = new_C

    @ds.kernel
    def start():
        for q in x:
            x[q] = ds.Vector([0.42 + 0.031 * q, 0.45 + 0.017 * q * q % 0.1])
            v[q] = ds.Vector([p[1], -1.0])
            J[q] = 1.0
            C[q] = ds.Matrix.zero(ds.f64, 2, 2)

    @ds.kernel
    def measure():
        for q in x:
            loss[None] += x[q].norm_sqr()

    def run():
        start()
        for _ in range(3):
            substep()
        measure()

    check(run, loss, p, rel=1e-5)


def test_rigid_contact():
    n = 3
    p, loss = parameters(2)
    x, v = (ds.Vector.field(2, ds.f64, shape=n) for _ in range(2))
    a, w = (ds.field(ds.f64, shape=n) for _ in range(2))

    @ds.kernel
    def step():
        for i in range(n):
            v[i].y -= 0.02 * 9.8
        for i in range(n):
            force, torque = ds.Vector([0.0, 0.0]), 0.0
            for k in range(4):
                corner = 0.1 * ds.Vector([ds.cos(a[i] + 1.57 * k), ds.sin(a[i] + 1.57 * k)])
                depth = -(x[i] + corner).y
                if depth > 0:
                    speed = v[i] + w[i] * ds.Vector([-corner.y, corner.x])
                    push = ds.max(0.0, 40.0 * depth - p[0] * speed.y)
                    slide = -p[1] * push * ds.tanh(speed.x)
                    force += ds.Vector([slide, push])
                    torque += corner.x * push - corner.y * slide
            v[i] += 0.02 * force
            w[i] += 0.5 * torque
        for i in range(n):
            x[i] += 0.02 * v[i]
            a[i] += 0.02 * w[i]

    @ds.kernel
    def measure():
        for i in range(n):
            loss[None] += x[i].norm_sqr() + a[i] ** 2

    def run():
        x.from_numpy(np.array([[0.0, 0.12], [0.5, 0.15], [1.0, 0.2]]))
        v.from_numpy(np.array([[1.0, -0.5], [0.5, -1.0], [0.3, 0.0]]))
        a.from_numpy(np.array([0.3, 0.7, 0.1]))
        w.fill(0.0)
        for _ in range(15):
            step()
        measure()

    check(run, loss, p)


def test_state_that_a_loop_of_an_iteration_changes():
    p, loss = parameters(3)
    x = ds.field(ds.f64, shape=3)

    @ds.kernel
    def step():
        for i in x:
            for _ in range(4):
                if x[i] > 0.1:
                    x[i] = ds.sin(x[i]) * p[i]
        for i in x:
            loss[None] += x[i] ** 2

    def run():
        x.from_numpy(np.array([0.9, 0.5, 0.7]))
        step()

    check(run, loss, p)


def test_leapfrog_n_body():
    n = 4
    p, loss = parameters(n, value=1.0)
    pos, vel, acc = (ds.Vector.field(3, ds.f64, shape=n) for _ in range(3))

    @ds.kernel
    def forces():
        for i in range(n):
            acc[i] = ds.Vector([0.0, 0.0, 0.0])
            for j in range(n):
                if i != j:
                    d = pos[j] - pos[i]
                    acc[i] += p[j] * d / (d.norm_sqr() + 0.1) ** 1.5

    @ds.kernel
    def kick(dt: ds.f64):
        for i in range(n):
            vel[i] += dt * acc[i]

    @ds.kernel
    def drift(dt: ds.f64):
        for i in range(n):
            pos[i] += dt * vel[i]

    @ds.kernel
    def measure():
        for i in range(n):
            loss[None] += pos[i].norm_sqr()

    def run():
        pos.from_numpy(numbers(n, 3))
        vel.from_numpy(0.3 * numbers(n, 3, seed=1))
        forces()
        for _ in range(8):
            kick(0.05)
            drift(0.1)
            forces()
            kick(0.05)
        measure()

    check(run, loss, p)


def test_ray_march():
    p, loss = parameters(3)
    image = ds.field(ds.f64, shape=(4, 4))

    @ds.func
    def distance(q):
        return (q - ds.Vector([p[1], 0.0, 2.0])).norm() - p[0]

    @ds.kernel
    def render():
        for i, j in image:
            d = ds.Vector([(i - 1.5) * 0.2 + 0.05, (j - 1.5) * 0.2, 1.0]).normalized()
            t = 0.0
            hit = False
            for _ in range(60):
                q = t * d
                s = distance(q)
                if s < 1e-12:
                    hit = True
                    break
                if t > 6.0:
                    break
                t += s
            if hit:
                q = t * d
                normal = (q - ds.Vector([p[1], 0.0, 2.0])).normalized()
                image[i, j] = ds.max(normal.dot(ds.Vector([0.3, 0.5 * p[2], -0.8])), 0.0) + t
            else:
                image[i, j] = 0.0

    @ds.kernel
    def measure():
        for i, j in image:
            loss[None] += (image[i, j] - 0.5) ** 2

    def run():
        render()
        measure()

    check(run, loss, p, rel=1e-5)


def test_shallow_water():
    n = 8
    p, loss = parameters(2)
    h, u, flux_h, flux_u = (ds.field(ds.f64, shape=n) for _ in range(4))

    @ds.kernel
    def start():
        for i in h:
            h[i] = 1.0 + p[0] * ds.exp(-0.5 * (i - 3.3) ** 2)
            u[i] = 0.0

    @ds.kernel
    def step(dt: ds.f64):
        for i in h:
            r = (i + 1) % n
            speed = ds.sqrt(9.8 * ds.max(h[i], h[r])) + ds.abs(u[i] + u[r]) * 0.5
            flux_h[i] = 0.5 * (h[i] * u[i] + h[r] * u[r]) - 0.5 * speed * (h[r] - h[i])
            flux_u[i] = 0.5 * (
                u[i] ** 2 / 2 + 9.8 * h[i] + u[r] ** 2 / 2 + 9.8 * h[r]
            ) - 0.5 * speed * (u[r] - u[i])
        for i in h:
            left = (i - 1 + n) % n
            h[i] -= dt * (flux_h[i] - flux_h[left])
            u[i] -= dt * (flux_u[i] - flux_u[left])
            u[i] *= 1.0 - dt * p[1]

    @ds.kernel
    def measure():
        for i in h:
            loss[None] += h[i] ** 3 + u[i] ** 2

    def run():
        start()
        for _ in range(6):
            step(0.05)
        measure()

    check(run, loss, p)


def test_particle_in_cell_with_dataclasses():
    n, m = 6, 8
    p, loss = parameters(2)

    @ds.dataclass
    class Particle:
        x: ds.f64
        v: ds.f64

        @ds.func
        def cell(self):
            return ds.floor(self.x, ds.i32)

    particles = Particle.field(shape=n)
    rho, phi, E = (ds.field(ds.f64, shape=m) for _ in range(3))

    @ds.kernel
    def start():
        for i in particles:
            particles[i] = Particle(x=0.6 + 1.1 * i + 0.1 * p[0] * ds.sin(i * 1.0), v=p[1])

    @ds.kernel
    def step(dt: ds.f64):
        rho.fill(0.0)
        for i in particles:
            c = particles[i].cell()
            f = particles[i].x - c
            rho[c % m] += 1 - f
            rho[(c + 1) % m] += f
        for i in range(m):
            phi[i] = 0.0
            for k in range(m):
                phi[i] -= 0.5 * ds.abs(i - k) * (rho[k] - n / m)
        for i in range(m):
            E[i] = 0.5 * (phi[(i - 1 + m) % m] - phi[(i + 1) % m])
        for i in particles:
            c = particles[i].cell()
            f = particles[i].x - c
            particles[i].v += dt * ((1 - f) * E[c % m] + f * E[(c + 1) % m])
            particles[i].x += dt * particles[i].v
            if particles[i].x >= m:
                particles[i].x -= m
            if particles[i].x < 0:
                particles[i].x += m

    @ds.kernel
    def measure():
        for i in particles:
            loss[None] += particles[i].v ** 2 + 0.1 * particles[i].x ** 2

    def run():
        start()
        for _ in range(5):
            step(0.1)
        measure()

    check(run, loss, p, rel=1e-5)


def test_red_black_pressure():
    n = 6
    p, loss = parameters(2)
    q, b = ds.field(ds.f64, shape=(n, n)), ds.field(ds.f64, shape=(n, n))

    @ds.kernel
    def start():
        for i, j in b:
            b[i, j] = p[0] * ds.sin(1.0 * i) * ds.cos(2.0 * j)
            q[i, j] = 0.0

    @ds.kernel
    def relax(color: ds.i32):
        for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
            if (i + j) % 2 == color:
                new = 0.25 * (q[i + 1, j] + q[i - 1, j] + q[i, j + 1] + q[i, j - 1] - b[i, j])
                q[i, j] += p[1] * (new - q[i, j]) * (1 + 0.1 * q[i, j])

    @ds.kernel
    def measure():
        for i, j in q:
            loss[None] += q[i, j] ** 2

    def run():
        start()
        for _ in range(4):
            relax(0)
            relax(1)
        measure()

    check(run, loss, p)


def test_cart_pole_with_a_network():
    hidden, steps = 4, 10
    w1, w2 = (
        ds.field(ds.f64, shape=(hidden, 4), needs_grad=True),
        ds.field(ds.f64, shape=hidden, needs_grad=True),
    )
    w1.from_numpy(numbers(hidden, 4))
    w2.from_numpy(numbers(hidden))
    loss = scalar(needs_grad=True)
    state, out, act = ds.field(ds.f64, shape=4), scalar(), ds.field(ds.f64, shape=hidden)

    @ds.kernel
    def control():
        for i in act:
            act[i] = 0.0
        for i, j in w1:
            act[i] += w1[i, j] * state[j]
        for i in act:
            act[i] = ds.tanh(act[i])
        out[None] = 0.0
        for i in act:
            out[None] += w2[i] * act[i]

    @ds.kernel
    def move():
        x, dx, th, dth = state[0], state[1], state[2], state[3]
        c, s = ds.cos(th), ds.sin(th)
        t = (5.0 * out[None] + 0.05 * dth**2 * s) / 1.1
        dd = (9.8 * s - c * t) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        state[0] = x + 0.05 * dx
        state[1] = dx + 0.05 * (t - 0.05 * dd * c / 1.1)
        state[2] = th + 0.05 * dth
        state[3] = dth + 0.05 * dd

    @ds.kernel
    def score():
        loss[None] += state[2] ** 2 + 0.1 * state[0] ** 2

    def run():
        state.from_numpy(np.array([0.0, 0.1, 0.2, -0.1]))
        for _ in range(steps):
            control()
            move()
            score()

    check(run, loss, w1, w2)


def test_sph_with_a_counting_sort():
    n, m = 8, 4
    p, loss = parameters(2)
    x, v = ds.field(ds.f64, shape=n), ds.field(ds.f64, shape=n)
    count, first, order = (ds.field(ds.i32, shape=k) for k in (m, m + 1, n))
    density = ds.field(ds.f64, shape=n)

    @ds.kernel
    def sort():
        for c in count:
            count[c] = 0
        for i in x:
            count[ds.max(ds.min(ds.floor(x[i], ds.i32), m - 1), 0)] += 1
        first[0] = 0
        ds.loop_config(serialize=True)
        for c in range(m):
            first[c + 1] = first[c] + count[c]
            count[c] = 0
        ds.loop_config(serialize=True)
        for i in range(n):
            c = ds.max(ds.min(ds.floor(x[i], ds.i32), m - 1), 0)
            order[first[c] + ds.atomic_add(count[c], 1)] = i

    @ds.kernel
    def densities():
        for i in x:
            density[i] = 0.0
            c = ds.max(ds.min(ds.floor(x[i], ds.i32), m - 1), 0)
            for d in range(ds.max(c - 1, 0), ds.min(c + 2, m)):
                for k in range(first[d], first[d + 1]):
                    r = x[i] - x[order[k]]
                    density[i] += ds.max(0.0, 1.0 - r * r) ** 3

    @ds.kernel
    def move():
        for i in x:
            force = 0.0
            for j in range(n):
                r = x[i] - x[j]
                force += p[0] * (density[i] + density[j]) * r * ds.max(0.0, 1.0 - r * r) ** 2
            v[i] += 0.02 * (force - p[1] * v[i])
        for i in x:
            x[i] += 0.02 * v[i]

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2 + v[i] ** 2

    def run():
        x.from_numpy(0.25 + 0.45 * np.arange(n) + 0.05 * numbers(n))
        v.fill(0.1)
        for _ in range(4):
            sort()
            densities()
            move()
        measure()

    check(run, loss, p)


def test_topology_optimisation():
    n = 4
    p = ds.field(ds.f64, shape=n, needs_grad=True)
    p.from_numpy(0.5 + 0.1 * numbers(n))
    loss = scalar(needs_grad=True)
    K, r, d, Kd, u = (ds.field(ds.f64, shape=(n, n) if k == 0 else n) for k in range(5))
    rr, alpha, old = scalar(), scalar(), scalar()

    @ds.kernel
    def assemble():
        for i, j in K:
            K[i, j] = 0.0
        for e in p:
            k = 0.1 + p[e] ** 3
            K[e, e] += k
            if e + 1 < n:
                K[e + 1, e + 1] += k
                K[e, e + 1] -= k
                K[e + 1, e] -= k
        for i in u:
            u[i] = 0.0
            r[i] = 1.0 + 0.1 * i
            d[i] = r[i]

    @ds.kernel
    def iterate():
        for i in Kd:
            Kd[i] = 0.0
            for j in range(n):
                Kd[i] += K[i, j] * d[j]
        rr[None] = 0.0
        alpha[None] = 0.0
        for i in r:
            rr[None] += r[i] * r[i]
            alpha[None] += d[i] * Kd[i]
        for i in u:
            u[i] += rr[None] / alpha[None] * d[i]
            r[i] -= rr[None] / alpha[None] * Kd[i]
        old[None] = rr[None]
        rr[None] = 0.0
        for i in r:
            rr[None] += r[i] * r[i]
        for i in d:
            d[i] = r[i] + rr[None] / old[None] * d[i]

    @ds.kernel
    def compliance():
        for i in u:
            loss[None] += (1.0 + 0.1 * i) * u[i]

    def run():
        assemble()
        for _ in range(n - 1):
            iterate()
        compliance()

    check(run, loss, p)
