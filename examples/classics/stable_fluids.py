"""Two winds side by side roll up into whirls: stable fluids, which never blow up whatever the time step is.

    python examples/classics/stable_fluids.py [--cells 256] [--gui]

Dye moves with the wind, one way inside a band and the other way outside it; a ripple of 1 % grows into
whirls (Kelvin and Helmholtz). In the window, stir with the left mouse button. Each step carries wind and dye
along the wind (semi-Lagrangian), and takes the gradient of a pressure away, so that no fluid is made: what
flows out of each cell flows in [1]. The wind lives on the sides of the cells; the box has no walls, what
leaves on the right enters on the left.

[1] J. Stam, "Stable Fluids", SIGGRAPH 1999.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

SWEEPS = 60  # of Jacobi's method, from the pressure of the step before
SPEED = 0.6  # of both winds at first [cells a step]
EVERY = 8  # steps a frame


@ds.data_oriented
class Fluid:
    """n by n cells; lengths are in cells, times in steps.

    Component 0 of the wind is on the left side of a cell, component 1 on its lower side.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.wind, self.carried = (ds.Vector.field(2, float, shape=(n, n)) for _ in range(2))
        self.dye, self.moved = (ds.field(float, shape=(n, n)) for _ in range(2))
        self.pressure, self.swept = (ds.field(float, shape=(n, n)) for _ in range(2))

    @ds.func
    def between(self, values: ds.template(), place):
        """The value at a place between four elements."""
        low = ds.floor(place)
        w, n = place - low, self.n
        i, j = ds.cast(low[0], ds.i32) % n, ds.cast(low[1], ds.i32) % n
        k, l = (i + 1) % n, (j + 1) % n
        left = (1 - w[1]) * values[i, j] + w[1] * values[i, l]
        return (1 - w[0]) * left + w[0] * ((1 - w[1]) * values[k, j] + w[1] * values[k, l])

    @ds.func
    def wind_at(self, place):
        """The wind at a place, where cell (i, j) reaches from (i, j) to (i + 1, j + 1)."""
        x = self.between(self.wind, place - ds.Vector([0.0, 0.5]))
        y = self.between(self.wind, place - ds.Vector([0.5, 0.0]))
        return ds.Vector([x[0], y[1]])

    @ds.func
    def origin(self, place):
        """Where what is here was a step ago, by the wind half-way."""
        return place - self.wind_at(place - 0.5 * self.wind_at(place))

    @ds.kernel
    def carry(self):
        for i, j in self.dye:
            corner = ds.Vector([float(i), float(j)])
            left = self.wind_at(self.origin(corner + ds.Vector([0.0, 0.5])))
            low = self.wind_at(self.origin(corner + ds.Vector([0.5, 0.0])))
            self.carried[i, j] = ds.Vector([left[0], low[1]])
            self.moved[i, j] = self.between(self.dye, self.origin(corner + 0.5) - 0.5)
        for i, j in self.dye:
            self.wind[i, j], self.dye[i, j] = self.carried[i, j], self.moved[i, j]

    @ds.func
    def gain(self, i, j):
        """The flow into a cell."""
        w, n = self.wind, self.n
        return w[i, j][0] - w[(i + 1) % n, j][0] + w[i, j][1] - w[i, (j + 1) % n][1]

    @ds.kernel
    def sweep(self, p: ds.template(), to: ds.template()):
        for i, j in p:
            n = self.n
            around = p[(i - 1) % n, j] + p[(i + 1) % n, j] + p[i, (j - 1) % n] + p[i, (j + 1) % n]
            to[i, j] = 0.25 * (around + self.gain(i, j))

    @ds.kernel
    def push(self):
        for i, j in self.wind:
            p, n = self.pressure, self.n
            slope = ds.Vector([p[i, j] - p[(i - 1) % n, j], p[i, j] - p[i, (j - 1) % n]])
            self.wind[i, j] -= slope

    def project(self) -> None:
        """Make the wind nearly free of divergence."""
        for _ in range(SWEEPS // 2):
            self.sweep(self.pressure, self.swept)
            self.sweep(self.swept, self.pressure)
        self.push()

    def step(self) -> None:
        """Go on by one time step."""
        self.carry()
        self.project()

    @ds.kernel
    def stir(self, x: float, y: float, dx: float, dy: float):
        for i, j in self.wind:
            away = (i - self.n * x) ** 2 + (j - self.n * y) ** 2
            self.wind[i, j] += self.n * ds.Vector([dx, dy]) * ds.exp(-away / 50.0)

    def two_winds(self) -> None:
        """Start with a band of dyed wind and a ripple."""
        x, y = (np.mgrid[: self.n, : self.n] + 0.5) / self.n
        inside = 0.5 * (np.tanh((y - 0.3) * 40) - np.tanh((y - 0.7) * 40))
        ripple = 0.01 * (np.sin(4 * np.pi * x) + np.sin(6 * np.pi * x + 1))
        self.wind.from_numpy(SPEED * np.stack([2 * inside - 1, ripple], -1))
        self.dye.from_numpy(inside)


def main(argv: Sequence[Any] | None = None) -> None:
    """Let the winds blow, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=1600, out="out/stable_fluids")
    parser.add_argument("--cells", type=int, default=256, help="along a side (default 256)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    fluid, film = Fluid(args.cells), []
    fluid.two_winds()
    gui = ds.GUI("Stable fluids", args.cells, show_gui=args.gui)
    last = gui.get_cursor_pos()
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % EVERY == 0 and gui.running:
            film.append(fluid.dye.to_numpy())
            gui.set_image(ds.tools.colormap(film[-1], "magma", 0, 1))
            gui.show(None if args.gui else args.out / "stable_fluids.gif")
            now = gui.get_cursor_pos()
            if gui.is_pressed(ds.GUI.LMB):
                fluid.stir(*now, now[0] - last[0], now[1] - last[1])
            last = now
        fluid.step()
    gui.close()
    player = ds.tools.Player("Two winds roll up into whirls")
    player.add_frames(np.array(film), EVERY / 60, label="dye", cmap="magma", vmin=0, vmax=1)
    player.write(args.out / "stable_fluids.html")


if __name__ == "__main__":
    main()
