"""Flow around an obstacle between two walls by the lattice Boltzmann method, with the drag of Mosaic's XLB.

Populations on nine velocities stream and relax (KBC: stress at the rate that the viscosity asks for, the rest
at the rate of most entropy [1]). The box is periodic; populations are at rest in the obstacle and in the rows
at both walls, and in equilibrium with the given profile at x = 0. So that the flow is slow beside sound, each
of Mosaic's time steps is many of the lattice.

XLB's solver in Mosaic counts twice each population that meets the obstacle, as if it were thrown back. Here,
as there, the obstacle takes it and gives back one at rest, so that XLB's number is twice the force; its sign
is that of the force on the fluid. `drag` is XLB's number, `force` the momentum that the obstacle takes.

[1] I. V. Karlin, F. Bösch, S. S. Chikatamarla, "Gibbs' principle for the lattice-kinetic theory of fluid
    dynamics", Phys. Rev. E 90, 031302, 2014.
"""

import math

import numpy as np

import diffsim as ds

VELOCITIES = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
WEIGHTS = (4 / 9,) + (1 / 9,) * 4 + (1 / 36,) * 4
MACH = 0.1  # of a velocity of 1 m/s
TINY = 1e-12  # in place of 0 below the line: rates are smooth around balance (XLB: 1e-32)


def parts(dt: float, spacing: float) -> int:
    """How many steps of the lattice a time of dt takes."""
    return max(1, math.ceil(dt / spacing * math.sqrt(3) / MACH))


@ds.data_oriented
class LatticeFlow:
    """A box whose cells are solid where `solid` says so.

    Args:
        solid: which cells are the obstacle.
        length: of the box [m].
        steps: of the lattice; all populations of all of them are kept.

    Attributes:
        profile: the velocity along x at x = 0 [m/s].
        v0, result: velocities at first and at the end [m/s].
        drag: XLB's number, mean of the second half [m³/s²]; `force`: what the obstacle takes.
    """

    def __init__(self, solid: np.ndarray, length: float, steps: int) -> None:
        n = len(solid)
        self.n, self.spacing, self.total = n, length / n, steps
        self.profile, self.drag, self.force = numbers(n), numbers(), numbers()
        self.v0 = ds.Vector.field(2, ds.f64, shape=(n, n), needs_grad=True)
        self.result = ds.Vector.field(2, ds.f64, shape=(n, n), needs_grad=True)
        self.f = numbers(steps + 1, 9, n, n)
        self.at_rest = ds.field(ds.i32, shape=(n, n))
        walls = np.zeros((n, n), bool)
        walls[:, [0, -1]] = True
        self.at_rest.from_numpy((solid | walls).astype(np.int32))
        found = [
            (q, *cell)
            for q, c in enumerate(VELOCITIES)
            for cell in np.argwhere(~solid & np.roll(solid, (-c[0], -c[1]), (0, 1)))
            if c[0]
        ]
        self.links = ds.Vector.field(3, ds.i32, shape=len(found))
        self.links.from_numpy(np.array(found, np.int32))

    @ds.func
    def equilibrium(self, q: ds.template(), rho, u):
        """What a population is in balance."""
        along = VELOCITIES[q][0] * u[0] + VELOCITIES[q][1] * u[1]
        return rho * WEIGHTS[q] * (1.0 + 3.0 * along + 4.5 * along**2 - 1.5 * u.dot(u))

    @ds.func
    def moments(self, f):
        """Density, and velocity in cells a step."""
        rho, u = 0.0, ds.Vector([0.0, 0.0], ds.f64)
        for q in ds.static(range(9)):
            rho += f[q]
            u += f[q] * ds.Vector(VELOCITIES[q])
        return rho, u / rho

    @ds.func
    def collide(self, f, relaxation):
        """Populations after a collision; relaxation is half the rate of the stress.

        The rate of the rest is a ratio of squares of what is off balance. Without TINY it depends on the
        direction alone in which a population leaves balance, so there would be no derivative at balance.
        """
        rho, u = self.moments(f)
        balance = ds.Vector([self.equilibrium(q, rho, u) for q in ds.static(range(9))])
        off, normal, shear = f - balance, 0.0, 0.0
        for q in ds.static(range(9)):
            normal += (VELOCITIES[q][0] ** 2 - VELOCITIES[q][1] ** 2) * off[q]
            shear += VELOCITIES[q][0] * VELOCITIES[q][1] * off[q]
        stress = off * 0.0
        for q in ds.static(range(9)):
            x, y = ds.static(VELOCITIES[q])
            stress[q] = 0.25 * rho * ((x * x - y * y) * normal + x * y * shear)
        rest = off - stress
        mixed, square = (stress * rest / balance).sum(), (rest * rest / balance).sum()
        rate = 1 / relaxation - (2.0 - 1 / relaxation) * mixed / (TINY + square)
        return f - relaxation * (2.0 * stress + rate * rest)

    @ds.kernel
    def begin(self, scale: ds.f64):
        for i, j in self.v0:
            for q in ds.static(range(9)):
                self.f[0, q, i, j] = self.equilibrium(q, 1.0, scale * self.v0[i, j])

    @ds.kernel
    def step(self, t: ds.i32, scale: ds.f64, relaxation: ds.f64):
        for i, j in self.at_rest:
            if self.at_rest[i, j] == 1:
                for q in ds.static(range(9)):
                    self.f[t + 1, q, i, j] = WEIGHTS[q]
            elif i == 0:
                u = ds.Vector([scale * self.profile[j], 0.0])
                for q in ds.static(range(9)):
                    self.f[t + 1, q, i, j] = self.equilibrium(q, 1.0, u)
            else:
                f = self.streamed(t, i, j)
                after = self.collide(f, relaxation)
                for q in ds.static(range(9)):
                    self.f[t + 1, q, i, j] = after[q]

    @ds.func
    def streamed(self, t, i, j):
        """The populations that have come to a cell."""
        f = ds.Vector.zero(ds.f64, 9)
        for q in ds.static(range(9)):
            x, y = ds.static(VELOCITIES[q])
            f[q] = self.f[t, q, (i - x + self.n) % self.n, (j - y + self.n) % self.n]
        return f

    @ds.kernel
    def measure(self, first: ds.i32, unit: ds.f64):
        """Momentum along x of the populations that go into the obstacle."""
        for t, k in ds.ndrange((first + 1, self.total + 1), self.links.shape[0]):
            q, i, j = self.links[k][0], self.links[k][1], self.links[k][2]
            x = ds.select((q == 1) | (q == 5) | (q == 8), 1.0, -1.0)
            taken = x * unit * self.f[t, q, i, j] / (self.total - first)
            self.drag[None] -= 2.0 * taken
            self.force[None] += taken

    @ds.kernel
    def finish(self, scale: ds.f64):
        for i, j in self.result:
            f = ds.Vector([self.f[self.total, q, i, j] for q in ds.static(range(9))])
            _, u = self.moments(f)
            self.result[i, j] = u / scale

    def simulate(self, dt: float, viscosity: float, steps: int) -> None:
        """From v0 and the profile to result, drag and force."""
        dt /= parts(dt, self.spacing)
        scale = dt / self.spacing
        relaxation = 1 / (6 * viscosity * dt / self.spacing**2 + 1)
        self.drag.fill(0)
        self.force.fill(0)
        self.begin(scale)
        for t in range(self.total):
            self.step(t, scale, relaxation)
        # What is at rest gives back as much from the right as from the left, so `force` needs no more.
        self.measure(self.total - max(1, self.total // 2), self.spacing**3 / dt**2)
        self.finish(scale)

    def gradient(
        self, weights: dict[ds.Field, np.ndarray], dt: float, viscosity: float, steps: int
    ) -> None:
        """Leave the gradient of the sum of weights · outputs in v0.grad and profile.grad."""
        tape = ds.Tape()
        with tape:
            self.simulate(dt, viscosity, steps)
        self.v0.grad.fill(0)
        self.profile.grad.fill(0)
        tape.backward(grads=weights)


def numbers(*shape: int) -> ds.Field:
    """A field of numbers with a gradient."""
    return ds.field(ds.f64, shape=shape, needs_grad=True)
