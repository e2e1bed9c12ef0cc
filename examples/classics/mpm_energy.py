"""Jelly discs collide: Lagrangian MPM, whose forces are the gradient of an energy, from the tape.

    python examples/classics/mpm_energy.py [--gui]

Particles are the corners of triangles, so their elastic energy is that of finite elements; the force on each
particle is minus its derivative. Grid and particles exchange momentum as in MPM, and so discs that never
heard of each other cannot pass through each other: no contact is written down anywhere.

C. Jiang et al., "The Affine Particle-In-Cell Method", SIGGRAPH 2015; Y. Hu et al., "A Moving Least Squares
Material Point Method", SIGGRAPH 2018.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

N, DT, EVERY = 96, 1e-4, 80  # cells along a side of 1 m; time step [s]; steps a frame
DX = 1 / N  # [m]
DENSITY, YOUNG, POISSON = 1.0, 150.0, 0.3  # [kg/m²], [N/m], 1
MU = YOUNG / (2 * (1 + POISSON))  # Lamé's parameters [N/m]
LAMBDA = YOUNG * POISSON / ((1 + POISSON) * (1 - 2 * POISSON))
GRAVITY = 4.0  # [m/s²]


@ds.data_oriented
class Jelly:
    """Particles that are corners of triangles.

    Args:
        x: where they are, (n, 2) [m].
        triangles: their corners, (m, 3).
        gravity: downwards [m/s²].
    """

    def __init__(self, x: np.ndarray, triangles: np.ndarray, gravity: float = GRAVITY) -> None:
        self.gravity = gravity
        edges = (x[triangles[:, 1:]] - x[triangles[:, :1]]).transpose(0, 2, 1)
        area, mass = np.abs(np.linalg.det(edges)) / 2, np.zeros(len(x))
        np.add.at(mass, triangles, DENSITY / 3 * area[:, None])
        self.x = ds.Vector.field(2, float, shape=len(x), needs_grad=True)
        self.v = ds.Vector.field(2, float, shape=len(x))
        self.C = ds.Matrix.field(2, 2, float, shape=len(x))  # gradient of the velocity [1/s]
        self.mass = ds.field(float, shape=len(x))
        self.corner = ds.Vector.field(3, ds.i32, shape=len(triangles))
        self.area = ds.field(float, shape=len(triangles))
        self.flatten = ds.Matrix.field(2, 2, float, shape=len(triangles))
        self.total = ds.field(float, shape=(), needs_grad=True)  # energy [J]
        self.grid_v = ds.Vector.field(2, float, shape=(N, N))  # momentum first, then velocity
        self.grid_m = ds.field(float, shape=(N, N))
        self.x.from_numpy(x)
        self.mass.from_numpy(mass)
        self.corner.from_numpy(triangles.astype(np.int32))
        self.area.from_numpy(area)
        self.flatten.from_numpy(np.linalg.inv(edges))

    @ds.kernel
    def energy(self):
        for t in self.corner:
            a, b, c = self.corner[t][0], self.corner[t][1], self.corner[t][2]
            f = ds.Matrix.cols([self.x[b] - self.x[a], self.x[c] - self.x[a]]) @ self.flatten[t]
            log = ds.log(f.determinant())
            stretch = 0.5 * MU * ((f.transpose() @ f).trace() - 2.0)
            self.total[None] += self.area[t] * (stretch - MU * log + 0.5 * LAMBDA * log**2)

    @ds.func
    def weights(self, x):
        """The lowest of the 3 x 3 points around, the way from it in cells, and the splines' weights."""
        base = ds.cast(x / DX - 0.5, ds.i32)
        f = x / DX - ds.cast(base, float)
        return base, f, [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2]

    @ds.kernel
    def to_grid(self):
        for i, j in self.grid_m:
            self.grid_v[i, j], self.grid_m[i, j] = ds.Vector([0.0, 0.0]), 0.0
        for p in self.x:
            base, f, w = self.weights(self.x[p])
            momentum = self.mass[p] * self.v[p] - DT * self.x.grad[p]  # the force is -dU/dx
            affine = self.mass[p] * self.C[p]
            for i, j in ds.static(ds.ndrange(3, 3)):
                way, weight = (ds.Vector([i, j]) - f) * DX, w[i][0] * w[j][1]
                self.grid_v[base + ds.Vector([i, j])] += weight * (momentum + affine @ way)
                self.grid_m[base + ds.Vector([i, j])] += weight * self.mass[p]

    @ds.kernel
    def to_particles(self):
        for i, j in self.grid_m:
            if self.grid_m[i, j] > 0:
                v = self.grid_v[i, j] / self.grid_m[i, j] - ds.Vector([0.0, DT * self.gravity])
                low, high = ds.Vector([i < 3, j < 3]), ds.Vector([i > N - 3, j > N - 3])
                self.grid_v[i, j] = ds.select(
                    low, ds.max(v, 0.0), ds.select(high, ds.min(v, 0.0), v)
                )
        for p in self.x:
            base, f, w = self.weights(self.x[p])
            v, C = ds.Vector([0.0, 0.0]), ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in ds.static(ds.ndrange(3, 3)):
                near = w[i][0] * w[j][1] * self.grid_v[base + ds.Vector([i, j])]
                v += near
                C += 4 / DX * near.outer_product(ds.Vector([i, j]) - f)
            self.v[p], self.C[p] = v, C
            self.x[p] += DT * v

    def step(self) -> None:
        """Go on by one time step."""
        with ds.Tape(self.total):
            self.energy()
        self.to_grid()
        self.to_particles()


def disc(x: float, y: float, radius: float, rings: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """A disc of triangles around (x, y): its points and their corners."""
    from matplotlib.tri import Triangulation

    places = [np.zeros((1, 2))]
    for k in range(1, rings + 1):
        angle = 2 * np.pi * (np.arange(6 * k) / (6 * k))
        places.append(radius * k / rings * np.stack([np.cos(angle), np.sin(angle)], 1))
    points = np.concatenate(places)
    return points + np.array([x, y]), Triangulation(*points.T).triangles


def scene() -> tuple[Jelly, np.ndarray, np.ndarray]:
    """Three discs that fall upon each other, the lines of their meshes, and which disc each point is of."""
    discs = [disc(0.3, 0.25, 0.13), disc(0.62, 0.4, 0.13), disc(0.4, 0.75, 0.16)]
    start = np.cumsum([0] + [len(x) for x, _ in discs])
    triangles = np.concatenate([t + s for (_, t), s in zip(discs, start[:-1], strict=True)])
    lines = np.unique(np.sort(triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), 1), axis=0)
    member = np.repeat(np.arange(3), np.diff(start))
    return Jelly(np.concatenate([x for x, _ in discs]), triangles), lines, member


def main(argv: Sequence[Any] | None = None) -> None:
    """Let the discs fall, in a window or into files."""
    args = ds.tools.ArgumentParser(__doc__, steps=20000, out="out/mpm_energy").parse_args(argv)
    ds.init(arch=args.arch)
    jelly, lines, member = scene()
    colors = np.array([0xED553B, 0x4FB99F, 0xF2B134])
    gui, film = ds.GUI("Jelly", 512, background_color=0x112F41, show_gui=args.gui), []
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % EVERY == 0 and gui.running:
            film.append(jelly.x.to_numpy())
            ends = film[-1][lines].transpose(1, 0, 2)
            gui.lines(*ends, radius=0.7, color=colors[member[lines[:, 0]]])
            gui.show(None if args.gui else args.out / "mpm_energy.gif")
        jelly.step()
    gui.close()
    player = ds.tools.Player("Jelly discs collide")
    hexes = [f"#{c:06x}" for c in colors[member]]
    look = {"lines": lines, "colors": hexes, "radius": 0.003, "bounds": (0, 1)}
    player.add_points(np.array(film), EVERY * DT, label="jelly [m]", **look)
    player.write(args.out / "mpm_energy.html")


if __name__ == "__main__":
    main()
