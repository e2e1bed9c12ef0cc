"""A wind behind a pillar sheds whirls: the lattice Boltzmann method.

    python examples/classics/lattice_boltzmann.py [--height 100] [--gui]

In every cell there are nine amounts of fluid, one at rest and one on its way to each of eight neighbours.
They move on, and then collide: they come a part of the way to the balance for their density and velocity.
Where they meet something solid they fly back. That is all; slow flow obeys the equations of Navier and Stokes
with the viscosity (τ - 1/2)/3 [1]. One sees Kármán's street, as vorticity: red turns to the left, blue to the
right. Lengths are in cells, times in steps.

[1] S. Succi, "The Lattice Boltzmann Equation", 2001; the balance is that of Bhatnagar, Gross and Krook.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

WIND = 0.1  # on the left [cells a step]
REYNOLDS = 150.0  # wind · width of the pillar / viscosity
EVERY = 60  # steps a frame
WAYS = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
BACK = [0, 3, 4, 1, 2, 7, 8, 5, 6]  # the opposite of each way
WEIGHTS = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4


@ds.data_oriented
class Flow:
    """A fluid among cells that are solid.

    Args:
        solid: (width, height), where there is no fluid.
        viscosity: [cells² a step].
        wind: velocity that blows in on the left and out on the right; None if these sides are joined.
        force: to the right, on each unit of mass.
    """

    def __init__(
        self, solid: np.ndarray, viscosity: float, wind: float | None = None, force: float = 0.0
    ) -> None:
        self.size = solid.shape
        self.rate = 1 / (3 * viscosity + 0.5)  # 1/τ
        self.wind, self.force = wind, force
        self.f, self.new = (ds.field(float, shape=(9, *solid.shape)) for _ in range(2))
        self.density = ds.field(float, shape=solid.shape)
        self.v = ds.Vector.field(2, float, shape=solid.shape)
        self.solid = ds.field(ds.i32, shape=solid.shape)
        self.solid.from_numpy(solid.astype(np.int32))
        self.begin(wind or 0.0)

    @ds.func
    def balance(self, k, density, v):
        """The amount on way k in balance."""
        along = WAYS[k][0] * v[0] + WAYS[k][1] * v[1]
        return WEIGHTS[k] * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * v.dot(v))

    @ds.kernel
    def begin(self, speed: float):
        for i, j in self.solid:
            self.v[i, j] = ds.Vector([speed * (1 - self.solid[i, j]), 0.0])
            self.density[i, j] = 1.0
            for k in ds.static(range(9)):
                self.f[k, i, j] = self.balance(k, 1.0, self.v[i, j])

    @ds.kernel
    def move_and_collide(self, f: ds.template(), new: ds.template()):
        for i, j in self.solid:
            if self.solid[i, j] == 0:
                w, h = self.size[0], self.size[1]
                density, momentum = 0.0, ds.Vector([0.0, 0.0])
                got = ds.Vector([0.0] * 9)
                for k in ds.static(range(9)):
                    a, b = (i - WAYS[k][0]) % w, (j - WAYS[k][1]) % h
                    got[k] = ds.select(self.solid[a, b] == 1, f[BACK[k], i, j], f[k, a, b])
                    density += got[k]
                    momentum += got[k] * ds.Vector(WAYS[k])
                v = (momentum + ds.Vector([0.5 * density * self.force, 0.0])) / density
                if ds.static(self.wind is not None):
                    if i == 0:
                        density, v = self.density[1, j], ds.Vector([self.wind, 0.0])
                    if i == w - 1:
                        density, v = 1.0, self.v[w - 2, j]
                self.density[i, j], self.v[i, j] = density, v
                for k in ds.static(range(9)):
                    rest = self.balance(k, density, v)
                    push = (WAYS[k][0] - v[0]) + 3 * (WAYS[k][0] * v[0] + WAYS[k][1] * v[1]) * WAYS[
                        k
                    ][0]
                    push *= 3 * (1 - 0.5 * self.rate) * WEIGHTS[k] * density * self.force
                    new[k, i, j] = got[k] + self.rate * (rest - got[k]) + push
                    if ds.static(self.wind is not None) and (i == 0 or i == w - 1):
                        new[k, i, j] = rest

    def two_steps(self) -> None:
        """Go on by two time steps."""
        self.move_and_collide(self.f, self.new)
        self.move_and_collide(self.new, self.f)

    def vorticity(self) -> np.ndarray:
        """How much the fluid turns to the left, 0 where it is solid."""
        v = self.v.to_numpy()
        turn = np.gradient(v[..., 1], axis=0) - np.gradient(v[..., 0], axis=1)
        return np.where(self.solid.to_numpy() == 1, 0, turn)


def pillar(height: int) -> np.ndarray:
    """A pillar that leans, so that the street begins soon; above joins below."""
    x, y = np.mgrid[: 3 * height, :height]
    along, across = x - 0.6 * height, y - 0.5 * height
    return (along + 0.5 * across) ** 2 + across**2 < (0.1 * height) ** 2


def main(argv: Sequence[Any] | None = None) -> None:
    """Let the wind blow, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=12000, out="out/lattice_boltzmann")
    parser.add_argument(
        "--height", type=int, default=100, help="of the picture [cells] (default 100)"
    )
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    flow, film = Flow(pillar(args.height), WIND * 0.2 * args.height / REYNOLDS, WIND), []
    most = 1.5 * WIND / (0.1 * args.height)  # vorticity that is painted full
    gui = ds.GUI("Lattice Boltzmann", flow.size, show_gui=args.gui)
    for step in ds.tools.progress(range(0, args.steps, 2), "steps"):
        if step % EVERY == 0 and gui.running:
            film.append(flow.vorticity())
            picture = ds.tools.colormap(film[-1], "seismic", -most, most)
            picture[flow.solid.to_numpy() == 1] = 0.3
            gui.set_image(picture)
            gui.show(None if args.gui else args.out / "lattice_boltzmann.gif")
        flow.two_steps()
    gui.close()
    player = ds.tools.Player("Whirls behind a pillar")
    look = {"cmap": "seismic", "vmin": -most, "vmax": most}
    player.add_frames(np.array(film), 1 / 30, label="vorticity [1/step]", **look)
    player.write(args.out / "lattice_boltzmann.html")


if __name__ == "__main__":
    main()
