"""A dam breaks: smoothed particle hydrodynamics, with a grid to find the neighbours.

    python examples/classics/sph.py [--particles 2500] [--gui]

Density at a particle is a sum over all that are near, weighted by a spline; pressure grows with density
beyond that of water at rest, and pushes particles apart (weakly compressible SPH [1]). Near are those in the
same cell of a grid and in the eight around it: in each step particles are counted by cell, cells get their
places in one list, and particles write themselves there. Depth is 1 m, so that masses are in kg per metre.

[1] J. J. Monaghan, "Smoothed Particle Hydrodynamics", Annu. Rev. Astron. Astrophys. 30 (1992).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

WIDTH, HEIGHT = 2.0, 1.0  # of the box [m]
POOL = (0.6, 0.6)  # width and height of the water at first [m]
RHO, GRAVITY = 1000.0, 9.81  # [kg/m²], [m/s²]
SOUND = 25.0  # speed of sound [m/s]; where water is five times slower, its density changes by 4 %
SMOOTH = 0.08  # artificial viscosity
FPS = 50  # frames a second


@ds.data_oriented
class Water:
    """Particles in a box.

    Args:
        x: where they are at first, (n, 2) [m].
        spacing: from one to the next [m].
        gravity: downwards [m/s²].
    """

    def __init__(self, x: np.ndarray, spacing: float, gravity: float = GRAVITY) -> None:
        self.n, self.gravity = len(x), gravity
        self.spacing, self.reach = spacing, 2.6 * spacing  # what is farther away has no weight [m]
        self.mass = RHO * spacing**2  # [kg/m]
        self.dt = 0.15 * self.reach / SOUND  # [s]
        self.cells = int(WIDTH / self.reach) + 1, int(HEIGHT / self.reach) + 1
        vectors = (ds.Vector.field(2, float, shape=self.n) for _ in range(3))
        self.x, self.v, self.push = vectors  # [m], [m/s], [m/s²]
        self.rho = ds.field(float, shape=self.n)  # [kg/m²]
        count = self.cells[0] * self.cells[1]
        self.first = ds.field(
            ds.i32, shape=count + 1
        )  # place of a cell's first particle in the list
        self.taken = ds.field(ds.i32, shape=count)  # places of a cell that have been written
        self.list = ds.field(ds.i32, shape=self.n)
        self.x.from_numpy(x)

    @ds.func
    def cell(self, x):
        """Where a place is in the grid."""
        i = ds.min(ds.max(ds.cast(x[0] / self.reach, ds.i32), 0), self.cells[0] - 1)
        j = ds.min(ds.max(ds.cast(x[1] / self.reach, ds.i32), 0), self.cells[1] - 1)
        return i, j

    @ds.kernel
    def sort(self):
        """List the particles of each cell one after the other."""
        for c in self.taken:
            self.taken[c] = 0
        for p in self.x:
            i, j = self.cell(self.x[p])
            self.taken[i * self.cells[1] + j] += 1
        for _ in range(1):
            for c in range(self.cells[0] * self.cells[1]):
                self.first[c + 1] = self.first[c] + self.taken[c]
                self.taken[c] = 0
        for p in self.x:
            i, j = self.cell(self.x[p])
            c = i * self.cells[1] + j
            self.list[self.first[c] + ds.atomic_add(self.taken[c], 1)] = p

    @ds.func
    def weight(self, r):
        """Wendland's spline [1/m²]; its integral over the plane is 1."""
        q = ds.min(r / self.reach, 1.0)
        return 7 / (np.pi * self.reach**2) * (1 - q) ** 4 * (1 + 4 * q)

    @ds.func
    def slope(self, way, r):
        """The spline's gradient [1/m³]."""
        q = ds.min(r / self.reach, 1.0)
        return -140 / (np.pi * self.reach**4) * (1 - q) ** 3 * way

    @ds.kernel
    def weigh(self):
        for p in self.x:
            i, j = self.cell(self.x[p])
            rho = 0.0
            for a in range(ds.max(i - 1, 0), ds.min(i + 2, self.cells[0])):
                for b in range(ds.max(j - 1, 0), ds.min(j + 2, self.cells[1])):
                    c = a * self.cells[1] + b
                    for k in range(self.first[c], self.first[c + 1]):
                        rho += self.mass * self.weight((self.x[p] - self.x[self.list[k]]).norm())
            self.rho[p] = rho

    @ds.func
    def pressure(self, rho):
        """Water pushes, and does not pull [Pa m]."""
        return ds.max(SOUND**2 * (rho - RHO), 0.0)

    @ds.func
    def pair(self, p, q):
        """The acceleration of particle p by particle q: minus, by symmetry, that of q by p."""
        way, speed = self.x[p] - self.x[q], self.v[p] - self.v[q]
        r, closing = way.norm(), ds.min(speed.dot(way), 0.0)
        level = self.pressure(self.rho[p]) / self.rho[p] ** 2
        level += self.pressure(self.rho[q]) / self.rho[q] ** 2
        drag = -SMOOTH * SOUND * self.reach * closing / (r * r + 0.01 * self.reach**2)
        level += 2 * drag / (self.rho[p] + self.rho[q])
        return -self.mass * level * self.slope(way, r)

    @ds.kernel
    def accelerate(self):
        for p in self.x:
            i, j = self.cell(self.x[p])
            push = ds.Vector([0.0, -self.gravity])
            for a in range(ds.max(i - 1, 0), ds.min(i + 2, self.cells[0])):
                for b in range(ds.max(j - 1, 0), ds.min(j + 2, self.cells[1])):
                    c = a * self.cells[1] + b
                    for k in range(self.first[c], self.first[c + 1]):
                        if self.list[k] != p:
                            push += self.pair(p, self.list[k])
            self.push[p] = push

    @ds.func
    def wall(self, gap):
        """A wall pushes what comes nearer than half the spacing, as a spring [m/s²]."""
        return SOUND**2 / self.spacing * ds.max(0.5 - gap / self.spacing, 0.0)

    @ds.kernel
    def move(self):
        for p in self.x:
            x, size = self.x[p], ds.Vector([WIDTH, HEIGHT])
            for k in ds.static(range(2)):
                self.push[p][k] += self.wall(x[k]) - self.wall(size[k] - x[k])
            self.v[p] += self.dt * self.push[p]
            self.x[p] += self.dt * self.v[p]

    def step(self) -> None:
        """Go on by one time step."""
        self.sort()
        self.weigh()
        self.accelerate()
        self.move()


def pool(particles: int) -> tuple[np.ndarray, float]:
    """Water at rest on the left: places, and the spacing."""
    spacing = (POOL[0] * POOL[1] / particles) ** 0.5
    columns, rows = (round(side / spacing) for side in POOL)
    return (np.mgrid[:columns, :rows].reshape(2, -1).T + 0.5) * spacing, spacing


def main(argv: Sequence[Any] | None = None) -> None:
    """Let the dam break, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=8000, out="out/sph")
    parser.add_argument("--particles", type=int, default=2500, help="about (default 2500)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    water, film, speeds = Water(*pool(args.particles)), [], []
    every = max(1, round(1 / FPS / water.dt))
    gui = ds.GUI("A dam breaks", (800, 400), background_color=0x0B1B2B, show_gui=args.gui)
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % every == 0 and gui.running:
            film.append(water.x.to_numpy())
            speeds = np.linalg.norm(water.v.to_numpy(), axis=1)
            hue = (ds.tools.colormap(speeds, "Blues_r", -4, 4) * 255).astype(int) @ [
                1 << 16,
                1 << 8,
                1,
            ]
            gui.circles(film[-1] / (WIDTH, HEIGHT), radius=220 * water.spacing, color=hue)
            gui.show(None if args.gui else args.out / "sph.gif")
        water.step()
    gui.close()
    player = ds.tools.Player("A dam breaks")
    look = {"radius": 0.5 * water.spacing, "bounds": ((0, 0), (WIDTH, HEIGHT))}
    player.add_points(np.array(film), every * water.dt, label="water [m]", **look)
    player.write(args.out / "sph.html")


if __name__ == "__main__":
    main()
