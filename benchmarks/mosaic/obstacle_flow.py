"""Flow around an obstacle between two walls, driven by a velocity profile that is given at x = 0.

Velocities lie on the faces of n by n square cells (a MAC grid), pressures in their middles. The box is
periodic in x, walls at both ends of y hold the fluid, and faces of solid cells are closed. Advection in
central differences takes Adams and Bashforth's steps of second order, friction Euler's. The matrix for the
pressure does not change and is factorised once; it is symmetric, so its solve is its own adjoint.
"""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.linalg import splu

import diffsim as ds


@ds.data_oriented
class ObstacleFlow:
    """A box whose cells are solid where `solid` says so.

    Attributes:
        profile: the velocity along x at x = 0 [m/s].
        v0, result: velocities in the middles of cells, at first and at the end [m/s].
        drag: the force on the obstacle along x over density and depth [m³/s²], mean of the second half.
    """

    def __init__(self, solid: np.ndarray, length: float) -> None:
        n = len(solid)
        self.n, self.h = n, length / n

        def numbers(*shape: int) -> ds.Field:
            return ds.field(ds.f64, shape=shape, needs_grad=True)

        self.profile, self.drag = numbers(n), numbers()
        self.v0 = ds.Vector.field(2, ds.f64, shape=(n, n), needs_grad=True)
        self.result = ds.Vector.field(2, ds.f64, shape=(n, n), needs_grad=True)
        self.u, self.free_u, self.carried_u = (numbers(n, n) for _ in range(3))
        self.v, self.free_v, self.carried_v = (numbers(n, n + 1) for _ in range(3))
        self.sources, self.potential = numbers(n, n), numbers(n, n)  # potential: dt p / ρ [m²/s]
        open_u = ~solid & ~np.roll(solid, 1, 0)
        open_u[0] = False  # there the velocity is given
        open_v = np.zeros((n, n + 1), bool)
        open_v[:, 1:-1] = ~solid[:, 1:] & ~solid[:, :-1]
        self.open_u, self.open_v = (
            ds.field(ds.i32, shape=(n, n)),
            ds.field(ds.i32, shape=(n, n + 1)),
        )
        self.open_u.from_numpy(open_u.astype(np.int32))
        self.open_v.from_numpy(open_v.astype(np.int32))
        # 1 where the obstacle begins to the right of a cell, -1 where it ends to the left
        side = (~solid & np.roll(solid, -1, 0)).astype(float) - (~solid & np.roll(solid, 1, 0))
        self.side = ds.field(ds.f64, shape=(n, n))
        self.side.from_numpy(side)
        self.factors = splu(pressure_matrix(open_u, open_v, solid))

    @ds.func
    def u_at(self, i, j):
        """The velocity along x, with copies beyond the walls that make it 0 there."""
        k = ds.min(ds.max(j, 0), self.n - 1)
        return ds.select(k == j, 1.0, -1.0) * self.u[(i + self.n) % self.n, k]

    @ds.func
    def v_at(self, i, j):
        """The velocity along y, with copies beyond the inlet that make it 0 there."""
        k = ds.min(ds.max(i, 0), self.n - 1)
        return ds.select(k == i, 1.0, -1.0) * self.v[k, j]

    @ds.kernel
    def begin(self):
        for i, j in self.u:
            k = (i + self.n - 1) % self.n
            self.carried_u[i, j] = 0.0
            self.u[i, j] = 0.0
            if self.open_u[i, j] == 1:
                self.u[i, j] = 0.5 * (self.v0[k, j][0] + self.v0[i, j][0])
            if i == 0:
                self.u[i, j] = self.profile[j]
        for i, j in self.v:
            self.carried_v[i, j] = 0.0
            self.v[i, j] = 0.0
            if self.open_v[i, j] == 1:
                self.v[i, j] = 0.5 * (self.v0[i, j - 1][1] + self.v0[i, j][1])

    @ds.kernel
    def advance_u(self, dt: ds.f64, viscosity: ds.f64, now: ds.f64, before: ds.f64):
        for i, j in self.u:
            here, up, down = self.u[i, j], self.u_at(i, j + 1), self.u_at(i, j - 1)
            left, right = self.u_at(i - 1, j), self.u_at(i + 1, j)
            rise = 0.5 * (self.v_at(i - 1, j + 1) + self.v_at(i, j + 1))
            fall = 0.5 * (self.v_at(i - 1, j) + self.v_at(i, j))
            out = (0.25 * ((here + right) ** 2 - (left + here) ** 2)) / self.h
            out += 0.5 * (rise * (here + up) - fall * (down + here)) / self.h
            friction = viscosity * (left + right + up + down - 4 * here) / self.h**2
            self.free_u[i, j] = here
            if self.open_u[i, j] == 1:
                self.free_u[i, j] += dt * (friction - now * out + before * self.carried_u[i, j])
            self.carried_u[i, j] = out

    @ds.kernel
    def advance_v(self, dt: ds.f64, viscosity: ds.f64, now: ds.f64, before: ds.f64):
        for i, j in self.v:
            out, change = 0.0 * dt, 0.0 * dt
            if self.open_v[i, j] == 1:
                here, up, down = self.v[i, j], self.v[i, j + 1], self.v[i, j - 1]
                left, right = self.v_at(i - 1, j), self.v_at(i + 1, j)
                ahead = 0.5 * (self.u_at(i + 1, j - 1) + self.u_at(i + 1, j))
                back = 0.5 * (self.u_at(i, j - 1) + self.u_at(i, j))
                out = (0.25 * ((here + up) ** 2 - (down + here) ** 2)) / self.h
                out += 0.5 * (ahead * (here + right) - back * (left + here)) / self.h
                friction = viscosity * (left + right + up + down - 4 * here) / self.h**2
                change = dt * (friction - now * out + before * self.carried_v[i, j])
            self.free_v[i, j] = self.v[i, j] + change
            self.carried_v[i, j] = out

    @ds.kernel
    def diverge(self):
        for i, j in self.sources:
            along = self.free_u[(i + 1) % self.n, j] - self.free_u[i, j]
            self.sources[i, j] = -self.h * (along + self.free_v[i, j + 1] - self.free_v[i, j])

    @ds.ad.grad_replaced
    def solve(self):
        self.potential.from_numpy(self.poisson(self.sources.to_numpy()))

    @ds.ad.grad_for(solve)
    def solve_backward(self):
        sources = self.sources.grad.to_numpy() + self.poisson(self.potential.grad.to_numpy())
        self.sources.grad.from_numpy(sources)
        self.potential.grad.fill(0)  # the solve has overwritten what was there before

    def poisson(self, sources: np.ndarray) -> np.ndarray:
        """The potential whose gradient makes the velocity free of divergence."""
        return self.factors.solve(sources.ravel()).reshape(sources.shape)

    @ds.kernel
    def project(self):
        for i, j in self.u:
            self.u[i, j] = self.free_u[i, j]
            if self.open_u[i, j] == 1:
                self.u[i, j] -= (self.potential[i, j] - self.potential[i - 1, j]) / self.h
        for i, j in self.v:
            self.v[i, j] = self.free_v[i, j]
            if self.open_v[i, j] == 1:
                self.v[i, j] -= (self.potential[i, j] - self.potential[i, j - 1]) / self.h

    @ds.kernel
    def push(self, dt: ds.f64, viscosity: ds.f64, share: ds.f64):
        """Mosaic's sum over the cells before and behind the obstacle: pressure, less friction."""
        for i, j in self.side:
            middle = 0.5 * (self.u[i, j] + self.u[(i + 1) % self.n, j])
            force = self.potential[i, j] / dt * self.h - viscosity * middle
            self.drag[None] += share * self.side[i, j] * force

    @ds.kernel
    def finish(self):
        for i, j in self.result:
            x = 0.5 * (self.u[i, j] + self.u[(i + 1) % self.n, j])
            self.result[i, j] = ds.Vector([x, 0.5 * (self.v[i, j] + self.v[i, j + 1])])

    def simulate(self, dt: float, viscosity: float, steps: int) -> None:
        """From v0 and the profile to result and drag."""
        tail = max(1, steps // 2)
        self.drag.fill(0)
        self.begin()
        for t in range(steps):
            weights = (1.0, 0.0) if t == 0 else (1.5, 0.5)
            self.advance_u(dt, viscosity, *weights)
            self.advance_v(dt, viscosity, *weights)
            self.diverge()
            self.solve()
            self.project()
            if t >= steps - tail:
                self.push(dt, viscosity, 1 / tail)
        self.finish()

    def gradient(
        self, weights: dict[ds.Field, np.ndarray], dt: float, viscosity: float, steps: int
    ) -> None:
        """Leave the gradient of the sum of weights · outputs in v0.grad and profile.grad."""
        tape = ds.Tape(in_place="save")
        with tape:
            self.simulate(dt, viscosity, steps)
        self.v0.grad.fill(0)
        self.profile.grad.fill(0)
        tape.backward(grads=weights)


def cylinder(n: int, center: tuple[float, float], radius: float) -> np.ndarray:
    """Which cells are solid: Mosaic's, with center and radius in sides of the box."""
    i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    return (i - center[0] * n) ** 2 + (j - center[1] * n) ** 2 < (radius * n) ** 2


def pressure_matrix(open_u: np.ndarray, open_v: np.ndarray, solid: np.ndarray) -> coo_array:
    """The differences through open faces, added up in each cell; the first cell's pressure is 0."""
    n = len(solid)
    cell = np.arange(n * n).reshape(n, n)
    i, j = np.nonzero(open_u)
    k, l = np.nonzero(open_v)
    one = np.concatenate([cell[i, j], cell[k, l]])
    other = np.concatenate([cell[i - 1, j], cell[k, l - 1]])
    fixed = np.concatenate([cell[solid], [0]])
    rows = np.concatenate([one, other, one, other, fixed])
    columns = np.concatenate([one, other, other, one, fixed])
    entries = np.concatenate([np.ones(2 * len(one)), -np.ones(2 * len(one)), np.ones(len(fixed))])
    return coo_array((entries, (rows, columns)), shape=(n * n, n * n)).tocsc()
