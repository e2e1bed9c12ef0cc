"""Rubber falls on a pin: finite elements whose forces are the gradient of their energy, from the tape.

    python examples/classics/fem_energy.py [--squares 24] [--gui]

The kernel `energy` is all that is written down about the material (neo-Hookean, triangles): the force on
each point is minus the energy's derivative by its place. Explicit steps, as short as sound takes through a
triangle. `examples/newton_cg.py` takes long implicit steps for the same energy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

SIDE = 0.4  # of the block [m]
DENSITY = 1000.0  # [kg/m²]
YOUNG, POISSON = 6e4, 0.35  # in the plane [Pa m]
MU = YOUNG / (2 * (1 + POISSON))  # Lamé's parameters [Pa m]
LAMBDA = YOUNG * POISSON / ((1 + POISSON) * (1 - 2 * POISSON))
GRAVITY = 9.81  # [m/s²]
PIN, RADIUS = (0.5, 0.25), 0.15  # a round one: middle and radius [m]
AIR = 2.0  # share of the velocity that is lost in a second
FPS = 100  # frames a second; life is shown in slow motion


@ds.data_oriented
class Rubber:
    """A square block of triangles, n squares along a side."""

    def __init__(self, n: int) -> None:
        x = np.mgrid[: n + 1, : n + 1].reshape(2, -1).T * SIDE / n
        number = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
        a, b, c, d = (
            part.ravel()
            for part in (number[:-1, :-1], number[1:, :-1], number[:-1, 1:], number[1:, 1:])
        )
        self.triangles = np.concatenate([np.stack([a, b, c], 1), np.stack([d, c, b], 1)])
        edges = (x[self.triangles[:, 1:]] - x[self.triangles[:, :1]]).transpose(0, 2, 1)
        self.area = SIDE**2 / n**2 / 2  # of a triangle [m²]
        mass = np.zeros(len(x))  # [kg]
        np.add.at(mass, self.triangles, DENSITY * self.area / 3)
        self.dt = float(0.15 * SIDE / n / np.sqrt((LAMBDA + 2 * MU) / DENSITY))  # [s]
        self.x = ds.Vector.field(2, float, shape=len(x), needs_grad=True)  # [m]
        self.v = ds.Vector.field(2, float, shape=len(x))  # [m/s]
        self.mass = ds.field(float, shape=len(x))
        self.corner = ds.Vector.field(3, ds.i32, shape=len(self.triangles))
        self.flatten = ds.Matrix.field(2, 2, float, shape=len(self.triangles))  # [1/m]
        self.total = ds.field(float, shape=(), needs_grad=True)  # energy [J]
        self.x.from_numpy(x)
        self.mass.from_numpy(mass)
        self.corner.from_numpy(self.triangles.astype(np.int32))
        self.flatten.from_numpy(np.linalg.inv(edges))

    @ds.kernel
    def energy(self):
        for t in self.corner:
            a, b, c = self.corner[t][0], self.corner[t][1], self.corner[t][2]
            f = ds.Matrix.cols([self.x[b] - self.x[a], self.x[c] - self.x[a]]) @ self.flatten[t]
            log = ds.log(f.determinant())
            stretch = 0.5 * MU * ((f.transpose() @ f).trace() - 2.0)
            self.total[None] += self.area * (stretch - MU * log + 0.5 * LAMBDA * log**2)

    @ds.kernel
    def move(self):
        for i in self.x:
            v = self.v[i] - self.dt / self.mass[i] * self.x.grad[i]  # the force is -dU/dx
            v = (v - ds.Vector([0.0, self.dt * GRAVITY])) * (1 - AIR * self.dt)
            out = self.x[i] - ds.Vector(PIN)
            if out.norm() < RADIUS and v.dot(out) < 0:
                v = ds.Vector([0.0, 0.0])  # what touches the pin sticks to it
            if self.x[i][1] < 0 and v[1] < 0:  # the floor
                v = ds.Vector([0.0, 0.0])
            self.v[i] = v
            self.x[i] += self.dt * v

    def step(self) -> None:
        """Go on by one time step."""
        with ds.Tape(self.total):
            self.energy()
        self.move()


def main(argv: Sequence[Any] | None = None) -> None:
    """Let the block fall, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=16000, out="out/fem_energy")
    parser.add_argument("--squares", type=int, default=24, help="along a side (default 24)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    rubber, film = Rubber(args.squares), []
    rubber.x.from_numpy(rubber.x.to_numpy() + np.float32([0.32, 0.42]))
    every = max(1, round(1 / FPS / rubber.dt))
    lines = rubber.triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
    lines = np.unique(np.sort(lines, 1), axis=0)
    gui = ds.GUI("Rubber", 512, background_color=0xFFFFFF, show_gui=args.gui)
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % every == 0 and gui.running:
            film.append(rubber.x.to_numpy())
            gui.circle(PIN, radius=512 * RADIUS, color=0x666666)
            gui.lines(*film[-1][lines].transpose(1, 0, 2), radius=0.7, color=0xC0392B)
            gui.show(None if args.gui else args.out / "fem_energy.gif")
        rubber.step()
    gui.close()
    player = ds.tools.Player("Rubber falls on a pin")
    look = {"lines": lines, "colors": "tab:red", "radius": 0.003, "bounds": (0, 1)}
    player.add_points(np.array(film), every * rubber.dt, label="rubber [m]", **look)
    player.write(args.out / "fem_energy.html")


if __name__ == "__main__":
    main()
