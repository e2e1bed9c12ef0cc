"""Two galaxies meet: n bodies, each attracted by all others.

    python examples/classics/nbody.py [--bodies 1500] [--gui]

Discs of light stars turn around two heavy centres, which fly past each other; tides tear out bridges and
tails. Each step sums up the forces of all n² pairs, and leapfrog keeps the energy. Units are those in which
the constant of gravity and the mass of the first galaxy are 1.

The picture is that of Toomre and Toomre, "Galactic bridges and tails", 1972.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

DT, EVERY = 0.005, 10  # time step; steps a frame
SOFT = 0.03  # length below which the attraction stops to grow
SHARE = 0.05  # of a galaxy's mass that its stars have together


@ds.data_oriented
class Bodies:
    """Bodies in space, with masses, places and velocities (n,), (n, 3), (n, 3)."""

    def __init__(self, mass: np.ndarray, x: np.ndarray, v: np.ndarray, soft: float = SOFT) -> None:
        self.n, self.soft = len(mass), soft
        self.mass = ds.field(float, shape=self.n)
        self.x, self.v = (ds.Vector.field(3, float, shape=self.n) for _ in range(2))
        self.mass.from_numpy(mass)
        self.x.from_numpy(x)
        self.v.from_numpy(v)

    @ds.kernel
    def drift(self, time: float):
        for i in self.x:
            self.x[i] += time * self.v[i]

    @ds.kernel
    def kick(self, time: float):
        for i in self.x:
            pull = ds.Vector([0.0, 0.0, 0.0])
            for j in range(self.n):
                if j != i:
                    to = self.x[j] - self.x[i]
                    near = 1 / ds.sqrt(to.dot(to) + self.soft**2)
                    pull += self.mass[j] * near**3 * to
            self.v[i] += time * pull

    def step(self, dt: float = DT) -> None:
        """Go on by a time step: half of the way, the forces there, the other half."""
        self.drift(dt / 2)
        self.kick(dt)
        self.drift(dt / 2)


def galaxy(n: int, mass: float, size: float, tilt: float, rng: np.random.Generator) -> tuple:
    """A heavy centre and a disc of n - 1 stars that turn around it: masses, places, velocities."""
    radius = size * np.sqrt(rng.uniform(0.04, 1, n - 1))
    angle = rng.uniform(0, 2 * np.pi, n - 1)
    speed = np.sqrt(mass * (1 - SHARE)) * radius / (radius**2 + SOFT**2) ** 0.75
    zero = np.zeros(n - 1)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle), zero], 1)
    v = np.stack([-speed * np.sin(angle), speed * np.cos(angle), zero], 1)
    c, s = np.cos(tilt), np.sin(tilt)
    turn = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    masses = np.full(n, SHARE * mass / max(n - 1, 1))
    masses[0] = mass * (1 - SHARE)
    return masses, np.vstack([np.zeros(3), x @ turn.T]), np.vstack([np.zeros(3), v @ turn.T])


def encounter(n: int, seed: int) -> Bodies:
    """Two galaxies on a parabola around each other, seen from their centre of mass."""
    rng = np.random.default_rng(seed)
    first = n * 2 // 3
    a, b = galaxy(first, 1.0, 1.0, 0.3, rng), galaxy(n - first, 0.5, 0.7, -0.8, rng)
    # A parabola with the total mass M and nearest distance q: the speed is √(2M/r), r² · turning √(2Mq).
    total, nearest, apart = 1.5, 0.9, 4.0
    speed, across = np.sqrt(2 * total / apart), np.sqrt(2 * total * nearest) / apart
    way = np.array([-apart, 0, 0])
    velocity = np.array([np.sqrt(speed**2 - across**2), across, 0])
    x = np.vstack([a[1] - way / 3, b[1] + way * 2 / 3])
    v = np.vstack([a[2] - velocity / 3, b[2] + velocity * 2 / 3])
    return Bodies(np.concatenate([a[0], b[0]]), x, v)


def main(argv: Sequence[Any] | None = None) -> None:
    """Let the galaxies meet, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=1500, out="out/nbody")
    parser.add_argument("--bodies", type=int, default=1500, help="(default 1500)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    bodies, film = encounter(args.bodies, args.seed), []
    second = np.arange(args.bodies) >= args.bodies * 2 // 3
    gui = ds.GUI("Galaxies", 600, background_color=0x05060F, show_gui=args.gui)
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % EVERY == 0 and gui.running:
            film.append(bodies.x.to_numpy())
            palette = {"palette": [0xFFD08A, 0x8AC6FF], "palette_indices": second.astype(int)}
            gui.circles(film[-1][:, :2] / 8 + 0.5, radius=1.2, **palette)
            gui.show(None if args.gui else args.out / "nbody.gif")
        bodies.step()
    gui.close()
    player = ds.tools.Player("Two galaxies meet")
    colors = np.where(second, "tab:blue", "tab:orange").tolist()
    look = {"colors": colors, "radius": 0.02, "bounds": (-4, 4)}
    player.add_points(np.array(film), EVERY * DT, label="stars", **look)
    player.write(args.out / "nbody.html")


if __name__ == "__main__":
    main()
