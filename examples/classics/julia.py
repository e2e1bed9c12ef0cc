"""A Julia set that changes its shape: how long z² + c stays near, for every point of a plane.

    python examples/classics/julia.py [--size 320] [--gui]

Each pixel is a complex number z. The colour says how many squarings it takes until |z| exceeds a bound; black
points stay. From frame to frame c goes around a circle just outside the main heart of the Mandelbrot set.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

MOST = 120  # squarings
FAR = 20.0  # beyond this |z| a point is gone


@ds.data_oriented
class Julia:
    """A picture of 2 n by n points with real parts from -1.8 to 1.8."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.count = ds.field(float, shape=(2 * n, n))  # squarings, made smooth by log log |z|

    @ds.kernel
    def paint(self, x: float, y: float):
        for i, j in self.count:
            z = 1.8 * ds.Vector([(i + 0.5) / self.n - 1, (j + 0.5) / self.n - 0.5])
            k = 0
            while k < MOST and z.dot(z) < FAR**2:
                z = ds.Vector([z[0] * z[0] - z[1] * z[1] + x, 2 * z[0] * z[1] + y])
                k += 1
            self.count[i, j] = float(MOST)
            if z.dot(z) >= FAR**2:
                self.count[i, j] = k - ds.log2(ds.log(z.norm()) / ds.log(FAR))


def constant(turn: float) -> complex:
    """The constant c after a part of the way around the heart."""
    on_circle = np.exp(2j * np.pi * turn)
    return 1.03 * (on_circle / 2 - on_circle**2 / 4)


def main(argv: Sequence[Any] | None = None) -> None:
    """Paint all frames, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=240, out="out/julia")
    parser.add_argument("--size", type=int, default=320, help="height in pixels (default 320)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    julia, film = Julia(args.size), []
    gui = ds.GUI("Julia set", (2 * args.size, args.size), show_gui=args.gui)
    for step in ds.tools.progress(range(args.steps), "frames"):
        if not gui.running:
            break
        c = constant(0.05 + 0.9 * step / args.steps)
        julia.paint(c.real, c.imag)
        film.append(1 - np.sqrt(julia.count.to_numpy().clip(0) / MOST))
        gui.set_image(ds.tools.colormap(film[-1], "twilight_shifted", 0, 1))
        gui.show(None if args.gui else args.out / "julia.gif")
    gui.close()
    player = ds.tools.Player("A Julia set changes its shape")
    player.add_frames(
        np.array(film), 1 / 24, label="z² + c", cmap="twilight_shifted", vmin=0, vmax=1
    )
    player.write(args.out / "julia.html")


if __name__ == "__main__":
    main()
