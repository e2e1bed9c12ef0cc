"""Elastic material as moving-least-squares particles in 2-D: 64k particles, a 128 x 128 grid, 32 steps.

Every state is kept along a time axis, so that the loss can be differentiated with respect to the first
positions and velocities. Per step: particles to grid (9 atomic updates each), grid, grid to particles.
The loss is the mean of x_1 + v_2^2 / 2 at the end. Fixed-corotated elasticity [SI units, thickness 1].
"""

import numpy as np
from harness import bind, main

NG, T = 128, 32  # cells per side, steps
DX, INV, DT = 1 / NG, float(NG), 1e-4
VOLUME = MASS = (DX / 2) ** 2  # density 1
E, NU = 1000.0, 0.2  # Young's modulus, Poisson's ratio
MU, LA = E / (2 * (1 + NU)), E * NU / ((1 + NU) * (1 - 2 * NU))
GRAVITY, WALL = -9.8, 3
STRESS = -DT * VOLUME * 4 * INV * INV


def resize(cells, steps, dt, particles):
    """Another grid, and as many particles on the part of it where they start. Before kernels are made."""
    global NG, T, DX, INV, DT, VOLUME, MASS, STRESS
    NG, T, DX, INV, DT = cells, steps, 1 / cells, float(cells), dt
    VOLUME = MASS = 0.6**2 / particles
    STRESS = -DT * VOLUME * 4 * INV * INV


def scattered(n):
    return (np.random.default_rng(1).random((n, 2)) * 0.6 + 0.2).astype(np.float32)


def base_of(x):
    """The first of the three nodes in each direction that a particle adds to."""
    return (x * np.float32(INV) - np.float32(0.5)).astype(np.int32)


def by_cell(x):
    """Positions in the order of the particles' cells."""
    base = base_of(x)
    return x[np.argsort(base[:, 0] * NG + base[:, 1], kind="stable")]


def shares(x):
    """How many particles add to each node."""
    found = np.zeros((NG, NG))
    base = base_of(x)
    for i in range(3):
        for j in range(3):
            at = (base[:, 0] + i) * NG + base[:, 1] + j
            found += np.bincount(at, minlength=NG * NG).reshape(NG, NG)
    return found


def together(x, v):
    """What particles do that all start with one velocity v, away from the walls: they fall.

    Returns:
        Means of x_1, v_1 and v_2 at the end, and sums of the loss' derivatives by those at the start.
    """
    v_2 = v[1] + T * DT * GRAVITY
    x_1 = x[:, 0].mean(dtype=np.float64) + T * DT * v[0]
    return np.array([x_1, v[0], v_2]), np.array([1.0, T * DT, v_2])


def over_particles(function, x, v):
    """A function of all particles' x_1, v_1 and v_2, in f64: the sums in f32 of so many are inexact."""
    return np.array([function(a, dtype=np.float64) for a in (x[:, 0], v[:, 0], v[:, 1])])


def particles(b):
    n = b.size(1 << 16, 1 << 12)
    x = scattered(n)
    v = np.stack([1.5 * np.sin(6 * x[:, 1]), np.cos(5 * x[:, 0]) - 2], 1).astype(np.float32)
    return n, x, v


def rollout(x, v):
    """The loss in NumPy and f64."""
    n = len(x)
    C, F = np.zeros((n, 2, 2)), np.broadcast_to(np.eye(2), (n, 2, 2))
    near = np.array([(i, j) for i in range(3) for j in range(3)])
    for _ in range(T):
        base = (x * INV - 0.5).astype(np.int64)
        f = x * INV - base
        w = np.stack([0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2], 1)
        weight = w[:, near[:, 0], 0] * w[:, near[:, 1], 1]  # (n, 9)
        away = near - f[:, None]
        cell = (base[:, None, 0] + near[:, 0]) * NG + base[:, None, 1] + near[:, 1]
        F = (np.eye(2) + DT * C) @ F
        a, s = F[:, 0, 0] + F[:, 1, 1], F[:, 1, 0] - F[:, 0, 1]
        R = np.stack([a, -s, s, a], 1).reshape(n, 2, 2) / np.hypot(a, s)[:, None, None]
        J = F[:, 0, 0] * F[:, 1, 1] - F[:, 0, 1] * F[:, 1, 0]
        stress = 2 * MU * (F - R) @ F.swapaxes(1, 2) + (LA * J * (J - 1))[:, None, None] * np.eye(2)
        affine = STRESS * stress + MASS * C
        momentum = MASS * v[:, None] + np.einsum("pij,pkj->pki", affine, away * DX)
        parts = np.stack([*np.moveaxis(momentum, 2, 0), np.full_like(weight, MASS)]) * weight
        sums = [np.bincount(cell.ravel(), part.ravel(), NG * NG) for part in parts]
        u = np.stack(sums[:2], 1) / (sums[2] + 1e-10)[:, None]
        u[:, 1] += DT * GRAVITY
        for axis, k in enumerate(np.divmod(np.arange(NG * NG), NG)):
            wall = (k < WALL) & (u[:, axis] < 0) | (k > NG - WALL) & (u[:, axis] > 0)
            u[wall, axis] = 0
        g = weight[..., None] * u[cell]
        v, C = g.sum(1), 4 * INV * np.einsum("pki,pkj->pij", g, away)
        x = x + DT * v
    return (x[:, 0] + 0.5 * v[:, 1] ** 2).mean()


def directions(n):
    return 0.5 + np.random.default_rng(5).random((2, n, 2))


def reference(x, v):
    """The loss, and its derivatives along two directions from central differences."""
    x, v, h = x.astype(np.float64), v.astype(np.float64), 1e-6
    dx, dv = directions(len(x))
    x_high, x_low = rollout(x + h * dx, v), rollout(x - h * dx, v)
    v_high, v_low = rollout(x, v + h * dv), rollout(x, v - h * dv)
    along_x, along_v = (x_high - x_low) / (2 * h), (v_high - v_low) / (2 * h)
    return dict(loss=(x_high + x_low) / 2, along_x=along_x, along_v=along_v)


def check(b, x, v, loss, gx=None, gv=None):
    exact, (dx, dv) = b.reference(lambda: reference(x, v)), directions(len(x))
    b.check("forward", loss, exact.loss)
    if gx is not None:
        found = [(gx.astype(np.float64) * dx).sum(), (gv.astype(np.float64) * dv).sum()]
        b.check("backward", np.divide(found, [exact.along_x, exact.along_v]), [1, 1])


class Simulation:
    """Fields and kernels for the Taichi interface of the module `ds`."""

    def __init__(self, ds, n):
        vec, mat, grid = ds.Vector.field, ds.Matrix.field, (T, NG, NG)
        self.ds, self.n = ds, n
        self.x, self.v = (vec(2, ds.f32, shape=(T + 1, n), needs_grad=True) for _ in range(2))
        self.C, self.F = (mat(2, 2, ds.f32, shape=(T + 1, n), needs_grad=True) for _ in range(2))
        self.momentum = vec(2, ds.f32, shape=grid, needs_grad=True)
        self.mass = ds.field(ds.f32, shape=grid, needs_grad=True)
        self.u = vec(2, ds.f32, shape=grid, needs_grad=True)
        self.loss = ds.field(ds.f32, shape=(), needs_grad=True)
        self.kernels = [self.to_grid(), self.on_grid(), self.to_particles()]
        self.measure = self.mean()

    def to_grid(self):
        ds, n, x, v, C, F = self.ds, self.n, self.x, self.v, self.C, self.F
        momentum, mass = self.momentum, self.mass

        @ds.func
        def rotation(M):
            a = M[0, 0] + M[1, 1]
            b = M[1, 0] - M[0, 1]
            s = 1.0 / ds.sqrt(a * a + b * b)
            return ds.Matrix([[a * s, -b * s], [b * s, a * s]])

        @ds.func
        def stress(M):
            J = M.determinant()
            shear = 2 * MU * (M - rotation(M)) @ M.transpose()
            return shear + ds.Matrix.identity(ds.f32, 2) * (LA * J * (J - 1.0))

        @ds.kernel
        def particles_to_grid(t: ds.i32):
            for p in range(n):
                base = ds.cast(x[t, p] * INV - 0.5, ds.i32)
                f = x[t, p] * INV - ds.cast(base, ds.f32)
                w = [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]
                new = (ds.Matrix.identity(ds.f32, 2) + DT * C[t, p]) @ F[t, p]
                F[t + 1, p] = new
                affine = STRESS * stress(new) + MASS * C[t, p]
                for i, j in ds.static(ds.ndrange(3, 3)):
                    away = (ds.cast(ds.Vector([i, j]), ds.f32) - f) * DX
                    weight = w[i][0] * w[j][1]
                    part = weight * (MASS * v[t, p] + affine @ away)
                    momentum[t, base[0] + i, base[1] + j] += part
                    mass[t, base[0] + i, base[1] + j] += weight * MASS

        return particles_to_grid

    def on_grid(self):
        ds, momentum, mass, u = self.ds, self.momentum, self.mass, self.u

        @ds.kernel
        def grid(t: ds.i32):
            for i, j in ds.ndrange(NG, NG):
                new = momentum[t, i, j] / (mass[t, i, j] + 1e-10)
                new[1] += DT * GRAVITY
                if i < WALL and new[0] < 0.0:
                    new[0] = 0.0
                if i > NG - WALL and new[0] > 0.0:
                    new[0] = 0.0
                if j < WALL and new[1] < 0.0:
                    new[1] = 0.0
                if j > NG - WALL and new[1] > 0.0:
                    new[1] = 0.0
                u[t, i, j] = new

        return grid

    def to_particles(self):
        ds, n, x, v, C, u = self.ds, self.n, self.x, self.v, self.C, self.u

        @ds.kernel
        def grid_to_particles(t: ds.i32):
            for p in range(n):
                base = ds.cast(x[t, p] * INV - 0.5, ds.i32)
                f = x[t, p] * INV - ds.cast(base, ds.f32)
                w = [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]
                velocity = ds.Vector([0.0, 0.0])
                slope = ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
                for i, j in ds.static(ds.ndrange(3, 3)):
                    away = ds.cast(ds.Vector([i, j]), ds.f32) - f
                    part = w[i][0] * w[j][1] * u[t, base[0] + i, base[1] + j]
                    velocity += part
                    slope += 4 * INV * part.outer_product(away)
                v[t + 1, p] = velocity
                C[t + 1, p] = slope
                x[t + 1, p] = x[t, p] + DT * velocity

        return grid_to_particles

    def mean(self):
        ds, n, x, v, loss = self.ds, self.n, self.x, self.v, self.loss

        @ds.kernel
        def mean():
            for p in range(n):
                loss[None] += (x[T, p][0] + 0.5 * v[T, p][1] * v[T, p][1]) / n

        return mean

    def load(self, x, v):
        for field, value, of in ((self.x, x, (2,)), (self.v, v, (2,)), (self.F, np.eye(2), (2, 2))):
            states = np.zeros((T + 1, self.n, *of), np.float32)
            states[0] = value
            field.from_numpy(states)

    def simulate(self):
        for t in range(T):
            for kernel in self.kernels:
                kernel(t)
        self.measure()

    def clear(self):
        self.momentum.fill(0.0)
        self.mass.fill(0.0)
        self.loss[None] = 0.0
        self.ds.sync()

    def forward(self):
        self.simulate()
        self.ds.sync()

    def prepare(self):
        """A forward run for one gradient: earlier ones, which were timed, do not count."""
        self.clear()
        self.forward()
        self.clear_grad()

    def clear_grad(self):
        for field in (self.x, self.v, self.C, self.F, self.momentum, self.mass, self.u):
            field.grad.fill(0.0)
        self.loss.grad[None] = 1.0
        self.ds.sync()

    def backward(self):
        self.measure.grad()
        for t in reversed(range(T)):
            for kernel in reversed(self.kernels):
                kernel.grad(t)
        self.ds.sync()

    def tape(self):
        with self.ds.ad.Tape(self.loss):
            self.simulate()
        self.ds.sync()


def api(b):
    n, x, v = particles(b)
    s = Simulation(b.api(), n)
    s.load(x, v)
    b.time("forward", s.forward, before=s.clear, first="first forward, with compiling")
    b.time("backward", s.backward, before=s.prepare, first="first backward, with compiling")
    b.time("on a Tape, with gradient", s.tape, before=s.clear)
    check(b, x, v, s.loss[None], s.x.grad.to_numpy()[0], s.v.grad.to_numpy()[0])


def warp_kernels(wp):
    Vectors, Matrices = wp.array(dtype=wp.vec2), wp.array(dtype=wp.mat22)
    Grid, Masses = wp.array2d(dtype=wp.vec2), wp.array2d(dtype=float)

    @wp.func
    def weights(f: float):
        return wp.vec3(
            0.5 * (1.5 - f) * (1.5 - f), 0.75 - (f - 1.0) * (f - 1.0), 0.5 * (f - 0.5) * (f - 0.5)
        )

    @wp.func
    def stress(M: wp.mat22):
        a = M[0, 0] + M[1, 1]
        b = M[1, 0] - M[0, 1]
        s = 1.0 / wp.sqrt(a * a + b * b)
        R = wp.mat22(a * s, -b * s, b * s, a * s)
        J = wp.determinant(M)
        volume = wp.identity(n=2, dtype=float) * (LA * J * (J - 1.0))
        return 2.0 * MU * (M - R) * wp.transpose(M) + volume

    @wp.kernel
    def to_grid(
        x: Vectors,
        v: Vectors,
        C: Matrices,
        F: Matrices,
        new_F: Matrices,
        momentum: Grid,
        mass: Masses,
    ):
        p = wp.tid()
        k = int(x[p][0] * INV - 0.5)
        l = int(x[p][1] * INV - 0.5)
        f = wp.vec2(x[p][0] * INV - float(k), x[p][1] * INV - float(l))
        w0 = weights(f[0])
        w1 = weights(f[1])
        M = (wp.identity(n=2, dtype=float) + DT * C[p]) * F[p]
        new_F[p] = M
        affine = STRESS * stress(M) + MASS * C[p]
        for i in range(3):
            for j in range(3):
                away = wp.vec2(float(i) - f[0], float(j) - f[1]) * DX
                weight = w0[i] * w1[j]
                wp.atomic_add(momentum, k + i, l + j, weight * (MASS * v[p] + affine * away))
                wp.atomic_add(mass, k + i, l + j, weight * MASS)

    @wp.kernel
    def on_grid(momentum: Grid, mass: Masses, u: Grid):
        i, j = wp.tid()
        m = momentum[i, j] / (mass[i, j] + 1e-10)
        a = m[0]
        c = m[1] + DT * GRAVITY
        if i < WALL and a < 0.0:
            a = 0.0
        if i > NG - WALL and a > 0.0:
            a = 0.0
        if j < WALL and c < 0.0:
            c = 0.0
        if j > NG - WALL and c > 0.0:
            c = 0.0
        u[i, j] = wp.vec2(a, c)

    @wp.kernel
    def to_particles(x: Vectors, u: Grid, new_x: Vectors, new_v: Vectors, new_C: Matrices):
        p = wp.tid()
        k = int(x[p][0] * INV - 0.5)
        l = int(x[p][1] * INV - 0.5)
        f = wp.vec2(x[p][0] * INV - float(k), x[p][1] * INV - float(l))
        w0 = weights(f[0])
        w1 = weights(f[1])
        velocity = wp.vec2(0.0, 0.0)
        slope = wp.mat22(0.0, 0.0, 0.0, 0.0)
        for i in range(3):
            for j in range(3):
                part = (w0[i] * w1[j]) * u[k + i, l + j]
                velocity += part
                slope += 4.0 * INV * wp.outer(part, wp.vec2(float(i) - f[0], float(j) - f[1]))
        new_v[p] = velocity
        new_C[p] = slope
        new_x[p] = x[p] + DT * velocity

    @wp.kernel
    def mean(x: Vectors, v: Vectors, loss: wp.array(dtype=float)):
        p = wp.tid()
        wp.atomic_add(loss, 0, (x[p][0] + 0.5 * v[p][1] * v[p][1]) / float(x.shape[0]))

    return to_grid, on_grid, to_particles, mean


class WarpSimulation:
    """Arrays and launches for Warp, on its current device."""

    def __init__(self, wp, n):
        def states(count, shape, dtype):
            return [wp.zeros(shape, dtype=dtype, requires_grad=True) for _ in range(count)]

        self.wp, self.n, self.kernels = wp, n, warp_kernels(wp)
        self.x, self.v = states(T + 1, n, wp.vec2), states(T + 1, n, wp.vec2)
        self.C, self.F = states(T + 1, n, wp.mat22), states(T + 1, n, wp.mat22)
        self.momentum, self.u = states(T, (NG, NG), wp.vec2), states(T, (NG, NG), wp.vec2)
        self.mass, self.loss = states(T, (NG, NG), float), states(1, 1, float)[0]

    def load(self, x, v):
        self.x[0].assign(x)
        self.v[0].assign(v)
        self.F[0].assign(np.tile(np.eye(2, dtype=np.float32), (self.n, 1, 1)))

    def clear(self):
        for array in (*self.momentum, *self.mass, self.loss):
            array.zero_()

    def steps(self):
        wp, n, x, v, C, F = self.wp, self.n, self.x, self.v, self.C, self.F
        to_grid, on_grid, to_particles, _ = self.kernels
        for t in range(T):
            grid, u = [self.momentum[t], self.mass[t]], self.u[t]
            new = [x[t + 1], v[t + 1], C[t + 1]]
            wp.launch(to_grid, dim=n, inputs=[x[t], v[t], C[t], F[t]], outputs=[F[t + 1], *grid])
            wp.launch(on_grid, dim=(NG, NG), inputs=grid, outputs=[u])
            wp.launch(to_particles, dim=n, inputs=[x[t], u], outputs=new)

    def measure(self):
        inputs = [self.x[T], self.v[T]]
        self.wp.launch(self.kernels[3], dim=self.n, inputs=inputs, outputs=[self.loss])


def warp(b):
    wp = b.warp()
    n, x, v = particles(b)
    s, tape = WarpSimulation(wp, n), wp.Tape()
    s.load(x, v)

    def forward():
        tape.reset()
        with tape:
            s.steps()
            s.measure()

    def backward():
        tape.backward(s.loss)

    def both():
        tape.zero()
        forward()
        backward()

    b.time("forward", forward, before=s.clear, first="first forward, with compiling")
    b.time("backward", backward, before=tape.zero, first="first backward, with compiling")
    b.time("on a Tape, with gradient", both, before=s.clear)
    check(b, x, v, s.loss.numpy()[0], s.x[0].grad.numpy(), s.v[0].grad.numpy())


SOURCE = r"""
#include <math.h>
#include <string.h>
enum { NG = %(NG)d, WALL = %(WALL)d };
static const float DT = %(DT)r, DX = %(DX)r, INV = %(INV)r, MASS = %(MASS)r, MU = %(MU)r,
    LA = %(LA)r, GRAVITY = %(GRAVITY)r, STRESS = %(STRESS)r;
static void weights(float f, float *w) {
    w[0] = 0.5f * (1.5f - f) * (1.5f - f);
    w[1] = 0.75f - (f - 1) * (f - 1);
    w[2] = 0.5f * (f - 0.5f) * (f - 0.5f);
}
void to_grid(long n, const float *restrict x, const float *restrict v, const float *restrict C,
             const float *restrict F, float *restrict new_F, float *restrict grid) {
    memset(grid, 0, sizeof(float) * 3 * NG * NG);
    #pragma omp parallel for reduction(+ : grid[:3 * NG * NG])
    for (long p = 0; p < n; p++) {
        float X = x[2 * p] * INV, Y = x[2 * p + 1] * INV, w0[3], w1[3];
        int k = (int)(X - 0.5f), l = (int)(Y - 0.5f);
        float f = X - k, h = Y - l;
        weights(f, w0);
        weights(h, w1);
        const float *c = C + 4 * p, *o = F + 4 * p;
        float a = 1 + DT * c[0], b = DT * c[1], d = DT * c[2], e = 1 + DT * c[3];
        float A = a * o[0] + b * o[2], B = a * o[1] + b * o[3];
        float D = d * o[0] + e * o[2], G = d * o[1] + e * o[3];
        new_F[4 * p] = A; new_F[4 * p + 1] = B; new_F[4 * p + 2] = D; new_F[4 * p + 3] = G;
        float r = A + G, s = D - B, q = 1 / sqrtf(r * r + s * s), J = A * G - B * D;
        r *= q; s *= q;
        float volume = LA * J * (J - 1), shear = 2 * MU;
        float s00 = STRESS * (shear * ((A - r) * A + (B + s) * B) + volume) + MASS * c[0];
        float s01 = STRESS * shear * ((A - r) * D + (B + s) * G) + MASS * c[1];
        float s10 = STRESS * shear * ((D - s) * A + (G - r) * B) + MASS * c[2];
        float s11 = STRESS * (shear * ((D - s) * D + (G - r) * G) + volume) + MASS * c[3];
        for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) {
            float dx = (i - f) * DX, dy = (j - h) * DX, w = w0[i] * w1[j];
            float *g = grid + 3 * ((k + i) * NG + l + j);
            g[0] += w * (MASS * v[2 * p] + s00 * dx + s01 * dy);
            g[1] += w * (MASS * v[2 * p + 1] + s10 * dx + s11 * dy);
            g[2] += w * MASS;
        }
    }
}
void on_grid(const float *restrict grid, float *restrict u) {
    #pragma omp parallel for
    for (int i = 0; i < NG; i++) for (int j = 0; j < NG; j++) {
        const float *g = grid + 3 * (i * NG + j);
        float q = 1 / (g[2] + 1e-10f), a = g[0] * q, b = g[1] * q + DT * GRAVITY;
        if ((i < WALL && a < 0) || (i > NG - WALL && a > 0)) a = 0;
        if ((j < WALL && b < 0) || (j > NG - WALL && b > 0)) b = 0;
        u[2 * (i * NG + j)] = a; u[2 * (i * NG + j) + 1] = b;
    }
}
void to_particles(long n, const float *restrict x, const float *restrict u, float *restrict new_x,
                  float *restrict new_v, float *restrict new_C) {
    #pragma omp parallel for
    for (long p = 0; p < n; p++) {
        float X = x[2 * p] * INV, Y = x[2 * p + 1] * INV, w0[3], w1[3];
        int k = (int)(X - 0.5f), l = (int)(Y - 0.5f);
        float f = X - k, h = Y - l, a = 0, b = 0, c0 = 0, c1 = 0, c2 = 0, c3 = 0, q = 4 * INV;
        weights(f, w0);
        weights(h, w1);
        for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) {
            const float *g = u + 2 * ((k + i) * NG + l + j);
            float w = w0[i] * w1[j], dx = i - f, dy = j - h;
            a += w * g[0]; b += w * g[1];
            c0 += w * g[0] * dx; c1 += w * g[0] * dy; c2 += w * g[1] * dx; c3 += w * g[1] * dy;
        }
        new_v[2 * p] = a; new_v[2 * p + 1] = b;
        new_C[4 * p] = q * c0; new_C[4 * p + 1] = q * c1;
        new_C[4 * p + 2] = q * c2; new_C[4 * p + 3] = q * c3;
        new_x[2 * p] = x[2 * p] + DT * a; new_x[2 * p + 1] = x[2 * p + 1] + DT * b;
    }
}
// The adjoint by hand. An argument g_y is the derivative of the loss by y; those of inputs are written,
// but what the grid's nodes give to the positions, which to_grid_adjoint adds.
static float through_weights(float f, const float *g) {
    return g[0] * (f - 1.5f) - 2 * g[1] * (f - 1) + g[2] * (f - 0.5f);
}
void mean_adjoint(long n, const float *restrict v, float *restrict gx, float *restrict gv) {
    #pragma omp parallel for
    for (long p = 0; p < n; p++) {
        gx[2 * p] = 1.0f / n; gx[2 * p + 1] = 0;
        gv[2 * p] = 0; gv[2 * p + 1] = v[2 * p + 1] / n;
    }
}
void to_particles_adjoint(long n, const float *restrict x, const float *restrict u,
                          const float *restrict g_new_x, const float *restrict g_new_v,
                          const float *restrict g_new_C, float *restrict gx, float *restrict gu) {
    memset(gu, 0, sizeof(float) * 2 * NG * NG);
    #pragma omp parallel for reduction(+ : gu[:2 * NG * NG])
    for (long p = 0; p < n; p++) {
        float X = x[2 * p] * INV, Y = x[2 * p + 1] * INV, w0[3], w1[3];
        int k = (int)(X - 0.5f), l = (int)(Y - 0.5f);
        float f = X - k, h = Y - l, q = 4 * INV, gf = 0, gh = 0, g0[3] = {0}, g1[3] = {0};
        weights(f, w0);
        weights(h, w1);
        const float *c = g_new_C + 4 * p;
        float a = g_new_v[2 * p] + DT * g_new_x[2 * p];
        float b = g_new_v[2 * p + 1] + DT * g_new_x[2 * p + 1];
        float c0 = q * c[0], c1 = q * c[1], c2 = q * c[2], c3 = q * c[3];
        for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) {
            long at = 2 * ((k + i) * NG + l + j);
            float u0 = u[at], u1 = u[at + 1], w = w0[i] * w1[j], dx = i - f, dy = j - h;
            float p0 = a + c0 * dx + c1 * dy, p1 = b + c2 * dx + c3 * dy, gw = u0 * p0 + u1 * p1;
            gu[at] += w * p0; gu[at + 1] += w * p1;
            g0[i] += gw * w1[j]; g1[j] += gw * w0[i];
            gf -= w * (u0 * c0 + u1 * c2); gh -= w * (u0 * c1 + u1 * c3);
        }
        gx[2 * p] = g_new_x[2 * p] + INV * (gf + through_weights(f, g0));
        gx[2 * p + 1] = g_new_x[2 * p + 1] + INV * (gh + through_weights(h, g1));
    }
}
void on_grid_adjoint(const float *restrict grid, const float *restrict gu, float *restrict g_grid) {
    #pragma omp parallel for
    for (int i = 0; i < NG; i++) for (int j = 0; j < NG; j++) {
        const float *g = grid + 3 * (i * NG + j);
        float q = 1 / (g[2] + 1e-10f), a = g[0] * q, b = g[1] * q + DT * GRAVITY;
        float ga = gu[2 * (i * NG + j)], gb = gu[2 * (i * NG + j) + 1];
        if ((i < WALL && a < 0) || (i > NG - WALL && a > 0)) ga = 0;
        if ((j < WALL && b < 0) || (j > NG - WALL && b > 0)) gb = 0;
        float *out = g_grid + 3 * (i * NG + j);
        out[0] = ga * q; out[1] = gb * q; out[2] = -(ga * g[0] + gb * g[1]) * q * q;
    }
}
void to_grid_adjoint(long n, const float *restrict x, const float *restrict v,
                     const float *restrict C, const float *restrict F,
                     const float *restrict g_new_F, const float *restrict g_grid,
                     float *restrict gx, float *restrict gv, float *restrict gC,
                     float *restrict gF) {
    #pragma omp parallel for
    for (long p = 0; p < n; p++) {
        float X = x[2 * p] * INV, Y = x[2 * p + 1] * INV, w0[3], w1[3];
        int k = (int)(X - 0.5f), l = (int)(Y - 0.5f);
        float f = X - k, h = Y - l, gf = 0, gh = 0, g0[3] = {0}, g1[3] = {0};
        weights(f, w0);
        weights(h, w1);
        const float *c = C + 4 * p, *o = F + 4 * p, *t = g_new_F + 4 * p;
        float a = 1 + DT * c[0], b = DT * c[1], d = DT * c[2], e = 1 + DT * c[3];
        float A = a * o[0] + b * o[2], B = a * o[1] + b * o[3];
        float D = d * o[0] + e * o[2], G = d * o[1] + e * o[3];
        float r = A + G, s = D - B, q = 1 / sqrtf(r * r + s * s), J = A * G - B * D;
        r *= q; s *= q;
        float volume = LA * J * (J - 1), shear = 2 * MU;
        float P0 = A - r, P1 = B + s, P2 = D - s, P3 = G - r;
        float s00 = STRESS * (shear * (P0 * A + P1 * B) + volume) + MASS * c[0];
        float s01 = STRESS * shear * (P0 * D + P1 * G) + MASS * c[1];
        float s10 = STRESS * shear * (P2 * A + P3 * B) + MASS * c[2];
        float s11 = STRESS * (shear * (P2 * D + P3 * G) + volume) + MASS * c[3];
        float m0 = MASS * v[2 * p], m1 = MASS * v[2 * p + 1], v0 = 0, v1 = 0;
        float t00 = 0, t01 = 0, t10 = 0, t11 = 0;
        for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) {
            const float *g = g_grid + 3 * ((k + i) * NG + l + j);
            float dx = (i - f) * DX, dy = (j - h) * DX, w = w0[i] * w1[j];
            float gw = g[0] * (m0 + s00 * dx + s01 * dy) + g[1] * (m1 + s10 * dx + s11 * dy);
            float wa = w * g[0], wb = w * g[1];
            gw += g[2] * MASS;
            v0 += wa; v1 += wb;
            t00 += wa * dx; t01 += wa * dy; t10 += wb * dx; t11 += wb * dy;
            g0[i] += gw * w1[j]; g1[j] += gw * w0[i];
            gf -= wa * s00 + wb * s10; gh -= wa * s01 + wb * s11;
        }
        gv[2 * p] = MASS * v0; gv[2 * p + 1] = MASS * v1;
        gx[2 * p] += INV * (DX * gf + through_weights(f, g0));
        gx[2 * p + 1] += INV * (DX * gh + through_weights(h, g1));
        float z = STRESS * shear, h0 = z * t00, h1 = z * t01, h2 = z * t10, h3 = z * t11;
        float Q0 = h0 * A + h1 * D, Q1 = h0 * B + h1 * G, Q2 = h2 * A + h3 * D, Q3 = h2 * B + h3 * G;
        float gJ = LA * (2 * J - 1) * STRESS * (t00 + t11), gr = -(Q0 + Q3), gs = Q1 - Q2;
        float along = gr * r + gs * s;
        gr = q * (gr - r * along); gs = q * (gs - s * along);
        float M0 = t[0] + Q0 + h0 * P0 + h2 * P2 + gJ * G + gr;
        float M1 = t[1] + Q1 + h0 * P1 + h2 * P3 - gJ * D - gs;
        float M2 = t[2] + Q2 + h1 * P0 + h3 * P2 - gJ * B + gs;
        float M3 = t[3] + Q3 + h1 * P1 + h3 * P3 + gJ * A + gr;
        float *C_ = gC + 4 * p, *F_ = gF + 4 * p;
        C_[0] = DT * (M0 * o[0] + M1 * o[1]) + MASS * t00;
        C_[1] = DT * (M0 * o[2] + M1 * o[3]) + MASS * t01;
        C_[2] = DT * (M2 * o[0] + M3 * o[1]) + MASS * t10;
        C_[3] = DT * (M2 * o[2] + M3 * o[3]) + MASS * t11;
        F_[0] = a * M0 + d * M2; F_[1] = a * M1 + d * M3;
        F_[2] = b * M0 + e * M2; F_[3] = b * M1 + e * M3;
    }
}
"""


def c(b):
    """Forward, and the adjoint by hand; each thread adds to a grid of its own, and those are added up."""
    library = b.c(SOURCE % globals())
    n, hx, hv = particles(b)
    x, v, gx, gv = np.zeros((4, T + 1, n, 2), np.float32)
    C, F, gC, gF = np.zeros((4, T + 1, n, 2, 2), np.float32)
    grid, g_grid = np.zeros((2, T, NG, NG, 3), np.float32)
    u, gu = np.zeros((2, T, NG, NG, 2), np.float32)
    x[0], v[0], F[0] = hx, hv, np.eye(2)
    steps, back = [], [bind(library.mean_adjoint, n, v[T], gx[T], gv[T])]
    for t in range(T):
        steps.append(bind(library.to_grid, n, x[t], v[t], C[t], F[t], F[t + 1], grid[t]))
        steps.append(bind(library.on_grid, grid[t], u[t]))
        steps.append(bind(library.to_particles, n, x[t], u[t], x[t + 1], v[t + 1], C[t + 1]))
    for t in reversed(range(T)):
        later = (gx[t + 1], gv[t + 1], gC[t + 1])
        states, found = (x[t], v[t], C[t], F[t]), (gx[t], gv[t], gC[t], gF[t])
        back.append(bind(library.to_particles_adjoint, n, x[t], u[t], *later, gx[t], gu[t]))
        back.append(bind(library.on_grid_adjoint, grid[t], gu[t], g_grid[t]))
        back.append(bind(library.to_grid_adjoint, n, *states, gF[t + 1], g_grid[t], *found))

    def forward():
        for call in steps:
            call()

    def backward():
        for call in back:
            call()

    def both():
        forward()
        backward()

    b.time("forward", forward)
    b.time("backward", backward)
    b.time("on a Tape, with gradient", both)
    check(b, hx, hv, (x[T, :, 0] + 0.5 * v[T, :, 1] ** 2).mean(), gx[0], gv[0])


if __name__ == "__main__":
    main(api=api, c=c, warp=warp)
