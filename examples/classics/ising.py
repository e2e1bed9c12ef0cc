"""Magnets side by side, cold, at the critical point, and hot: the Ising model beside Onsager's solution.

    python examples/classics/ising.py [--cells 192] [--gui]

Spins on a square lattice point up or down, and neighbours like to agree: the energy is -1 for each pair that
does and 1 for one that does not. A spin is set up with the probability that its four neighbours and the
temperature give it (heat bath), all black squares of the chequerboard at once, then all white ones. At the
end the magnetisation is printed beside the exact one of an infinite lattice [1], below T = 2.269 with
m = (1 - sinh(2/T)⁻⁴)^(1/8), above it 0.

[1] L. Onsager, Phys. Rev. 65 (1944); C. N. Yang, Phys. Rev. 85 (1952).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

CRITICAL = 2 / np.log(1 + 2**0.5)  # temperature, in the energy of a pair
TEMPERATURES = (2.0, CRITICAL, 3.0)
EVERY = 4  # sweeps a frame


@ds.data_oriented
class Magnets:
    """Lattices of n by n spins, each with a temperature and periodic by itself; n is even."""

    def __init__(self, n: int, temperatures: Sequence[float]) -> None:
        self.n = n
        self.spin = ds.field(ds.i32, shape=(len(temperatures), n, n))
        self.beta = ds.field(float, shape=len(temperatures))
        self.beta.from_numpy(1 / np.array(temperatures))
        self.spin.fill(1)

    @ds.kernel
    def sweep(self, colour: ds.i32):
        for m, i, j in self.spin:
            if (i + j) % 2 == colour:
                s, n = self.spin, self.n
                across = s[m, (i + 1) % n, j] + s[m, (i - 1) % n, j]
                around = across + s[m, i, (j + 1) % n] + s[m, i, (j - 1) % n]
                up = 1 / (1 + ds.exp(-2 * self.beta[m] * around))
                self.spin[m, i, j] = ds.select(ds.random() < up, 1, -1)

    def step(self) -> None:
        """Set every spin once."""
        self.sweep(0)
        self.sweep(1)


def exact(temperature: float) -> float:
    """Onsager's magnetisation of an infinite lattice."""
    if temperature >= CRITICAL:
        return 0.0
    return (1 - np.sinh(2 / temperature) ** -4) ** 0.125


def main(argv: Sequence[Any] | None = None) -> None:
    """Let the spins flip, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=1200, out="out/ising")
    parser.add_argument("--cells", type=int, default=192, help="along a side, even (default 192)")
    args = parser.parse_args(argv)
    if args.cells < 2 or args.cells % 2:
        parser.error(f"--cells has to be even and at least 2, not {args.cells}: the squares of a "
                     "chequerboard would meet at its rim")  # fmt: skip
    ds.init(arch=args.arch, random_seed=args.seed)
    magnets, film, mean = Magnets(args.cells, TEMPERATURES), [], []
    gui = ds.GUI("Magnets", (3 * args.cells, args.cells), show_gui=args.gui)
    for step in ds.tools.progress(range(args.steps), "sweeps"):
        magnets.step()
        spins = magnets.spin.to_numpy()
        mean.append(spins.mean((1, 2)))
        if step % EVERY == 0 and gui.running:
            film.append(spins.reshape(-1, args.cells))
            gui.set_image(0.5 + 0.5 * film[-1])
            gui.show(None if args.gui else args.out / "ising.gif")
    gui.close()
    for t, m in zip(TEMPERATURES, np.mean(mean[len(mean) // 2 :], 0), strict=True):
        print(f"T = {t:.3f}: magnetisation {m:.3f}; of an infinite lattice {exact(t):.3f}")
    player = ds.tools.Player("Magnets: cold, at the critical point, hot")
    player.add_frames(np.array(film), 1 / 25, label="T = 2, 2.269, 3", cmap="gray", vmin=-1, vmax=1)
    player.write(args.out / "ising.html")


if __name__ == "__main__":
    main()
