"""Elastic material in 3-D: how long the adjoint of a large kernel takes to compile, and to run.

Particles to grid and back with 27 nodes each, unrolled, and 3 x 3 matrices; neo-Hookean elasticity. Each
state is kept along a time axis. The loss is the mean of x_1 + v_2^2 / 2 + x_3 at the end [SI units].
"""

from time import perf_counter as now

import numpy as np
from harness import main

NG, T = 48, 8  # cells per side, steps
DX, INV, DT = 1 / NG, float(NG), 2e-4
VOLUME = MASS = (DX / 2) ** 3  # density 1
E, NU = 1000.0, 0.2  # Young's modulus, Poisson's ratio
MU, LA = E / (2 * (1 + NU)), E * NU / ((1 + NU) * (1 - 2 * NU))
GRAVITY, WALL = -9.8, 3
STRESS = -DT * VOLUME * 4 * INV * INV


def particles(b):
    n = b.size(1 << 15, 1 << 10)
    x = (np.random.default_rng(1).random((n, 3)) * 0.6 + 0.2).astype(np.float32)
    v = np.stack([1.5 * np.sin(6 * x[:, 1]), np.cos(5 * x[:, 0]) - 2, np.sin(4 * x[:, 0])], 1)
    return n, x, v.astype(np.float32)


def rollout(x, v):
    """The loss in NumPy and f64."""
    n = len(x)
    C, F = np.zeros((n, 3, 3)), np.broadcast_to(np.eye(3), (n, 3, 3))
    near = np.array(list(np.ndindex(3, 3, 3)))
    for _ in range(T):
        base = (x * INV - 0.5).astype(np.int64)
        f = x * INV - base
        w = np.stack([0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2], 1)
        weight = w[:, near[:, 0], 0] * w[:, near[:, 1], 1] * w[:, near[:, 2], 2]  # (n, 27)
        away = near - f[:, None]
        cell = np.ravel_multi_index(np.moveaxis(base[:, None] + near, 2, 0), (NG,) * 3)
        F = (np.eye(3) + DT * C) @ F
        log = np.log(np.linalg.det(F))[:, None, None]
        stress = MU * (F @ F.swapaxes(1, 2) - np.eye(3)) + LA * log * np.eye(3)
        affine = STRESS * stress + MASS * C
        momentum = MASS * v[:, None] + np.einsum("pij,pkj->pki", affine, away * DX)
        parts = np.stack([*np.moveaxis(momentum, 2, 0), np.full_like(weight, MASS)]) * weight
        sums = [np.bincount(cell.ravel(), part.ravel(), NG**3) for part in parts]
        u = np.stack(sums[:3], 1) / (sums[3] + 1e-10)[:, None]
        u[:, 1] += DT * GRAVITY
        for axis, k in enumerate(np.unravel_index(np.arange(NG**3), (NG,) * 3)):
            wall = (k < WALL) & (u[:, axis] < 0) | (k > NG - WALL) & (u[:, axis] > 0)
            u[wall, axis] = 0
        g = weight[..., None] * u[cell]
        v, C = g.sum(1), 4 * INV * np.einsum("pki,pkj->pij", g, away)
        x = x + DT * v
    return (x[:, 0] + 0.5 * v[:, 1] ** 2 + x[:, 2]).mean()


def directions(n):
    return 0.5 + np.random.default_rng(5).random((2, n, 3))


def reference(x, v):
    """The loss, and its derivatives along two directions from central differences."""
    x, v, h = x.astype(np.float64), v.astype(np.float64), 1e-6
    dx, dv = directions(len(x))
    x_high, x_low = rollout(x + h * dx, v), rollout(x - h * dx, v)
    v_high, v_low = rollout(x, v + h * dv), rollout(x, v - h * dv)
    along_x, along_v = (x_high - x_low) / (2 * h), (v_high - v_low) / (2 * h)
    return dict(loss=(x_high + x_low) / 2, along_x=along_x, along_v=along_v)


class Simulation:
    """Fields and kernels for the Taichi interface of the module `ds`."""

    def __init__(self, ds, n):
        vec, mat, grid = ds.Vector.field, ds.Matrix.field, (T, NG, NG, NG)
        self.ds, self.n = ds, n
        self.x, self.v = (vec(3, ds.f32, shape=(T + 1, n), needs_grad=True) for _ in range(2))
        self.C, self.F = (mat(3, 3, ds.f32, shape=(T + 1, n), needs_grad=True) for _ in range(2))
        self.momentum = vec(3, ds.f32, shape=grid, needs_grad=True)
        self.mass = ds.field(ds.f32, shape=grid, needs_grad=True)
        self.u = vec(3, ds.f32, shape=grid, needs_grad=True)
        self.loss = ds.field(ds.f32, shape=(), needs_grad=True)
        self.kernels = {
            "to grid": self.to_grid(),
            "on grid": self.on_grid(),
            "to particles": self.to_particles(),
        }
        self.measure = self.mean()

    def to_grid(self):
        ds, n, x, v, C, F = self.ds, self.n, self.x, self.v, self.C, self.F
        momentum, mass = self.momentum, self.mass

        @ds.kernel
        def particles_to_grid(t: ds.i32):
            for p in range(n):
                base = ds.cast(x[t, p] * INV - 0.5, ds.i32)
                f = x[t, p] * INV - ds.cast(base, ds.f32)
                w = [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]
                one = ds.Matrix.identity(ds.f32, 3)
                new = (one + DT * C[t, p]) @ F[t, p]
                F[t + 1, p] = new
                volume = LA * ds.log(new.determinant())
                stress = MU * (new @ new.transpose() - one) + one * volume
                affine = STRESS * stress + MASS * C[t, p]
                for i, j, k in ds.static(ds.ndrange(3, 3, 3)):
                    away = (ds.cast(ds.Vector([i, j, k]), ds.f32) - f) * DX
                    weight = w[i][0] * w[j][1] * w[k][2]
                    part = weight * (MASS * v[t, p] + affine @ away)
                    momentum[t, base[0] + i, base[1] + j, base[2] + k] += part
                    mass[t, base[0] + i, base[1] + j, base[2] + k] += weight * MASS

        return particles_to_grid

    def on_grid(self):
        ds, momentum, mass, u = self.ds, self.momentum, self.mass, self.u

        @ds.kernel
        def grid(t: ds.i32):
            for i, j, k in ds.ndrange(NG, NG, NG):
                new = momentum[t, i, j, k] / (mass[t, i, j, k] + 1e-10)
                new[1] += DT * GRAVITY
                cell = [i, j, k]
                for axis in ds.static(range(3)):
                    if cell[axis] < WALL and new[axis] < 0.0:
                        new[axis] = 0.0
                    if cell[axis] > NG - WALL and new[axis] > 0.0:
                        new[axis] = 0.0
                u[t, i, j, k] = new

        return grid

    def to_particles(self):
        ds, n, x, v, C, u = self.ds, self.n, self.x, self.v, self.C, self.u

        @ds.kernel
        def grid_to_particles(t: ds.i32):
            for p in range(n):
                base = ds.cast(x[t, p] * INV - 0.5, ds.i32)
                f = x[t, p] * INV - ds.cast(base, ds.f32)
                w = [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]
                velocity = ds.Vector.zero(ds.f32, 3)
                slope = ds.Matrix.zero(ds.f32, 3, 3)
                for i, j, k in ds.static(ds.ndrange(3, 3, 3)):
                    away = ds.cast(ds.Vector([i, j, k]), ds.f32) - f
                    weight = w[i][0] * w[j][1] * w[k][2]
                    part = weight * u[t, base[0] + i, base[1] + j, base[2] + k]
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
                loss[None] += (x[T, p][0] + 0.5 * v[T, p][1] * v[T, p][1] + x[T, p][2]) / n

        return mean

    def load(self, x, v):
        for field, value in ((self.x, x), (self.v, v), (self.F, np.eye(3))):
            states = np.zeros(field.to_numpy().shape, np.float32)
            states[0] = value
            field.from_numpy(states)

    def clear(self):
        self.momentum.fill(0.0)
        self.mass.fill(0.0)
        self.loss[None] = 0.0
        self.ds.sync()

    def forward(self):
        for t in range(T):
            for kernel in self.kernels.values():
                kernel(t)
        self.measure()
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
            for kernel in reversed(self.kernels.values()):
                kernel.grad(t)
        self.ds.sync()


def api(b):
    """The first calls of each kernel and of each adjoint hold little but the compiling."""
    n, x, v = particles(b)
    ds = b.api()
    s = Simulation(ds, n)
    s.load(x, v)
    s.clear()
    for way in ("forward", "adjoint"):
        for name, kernel in s.kernels.items():
            start = now()
            (kernel if way == "forward" else kernel.grad)(0)
            ds.sync()
            b.emit(f"first call: {name}, {way}", [now() - start], "s")
    b.time("forward", s.forward, before=s.clear)
    b.time("backward", s.backward, before=s.prepare)
    exact, (dx, dv) = b.reference(lambda: reference(x, v)), directions(n)
    b.check("forward", s.loss[None], exact.loss)
    found = [(s.x.grad.to_numpy()[0].astype(float) * dx).sum()]
    found.append((s.v.grad.to_numpy()[0].astype(float) * dv).sum())
    b.check("backward", np.divide(found, [exact.along_x, exact.along_v]), [1, 1])


if __name__ == "__main__":
    main(api=api)
