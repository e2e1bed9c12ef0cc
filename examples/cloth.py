"""A cloth that hangs from two corners, by implicit Euler steps: its energy is all the physics written down.

    python examples/cloth.py [--points 5] [--steps 10]

Each step finds where the forces of inertia and of the energy are in balance, ds.ad.implicit_root by Newton's
method. The forces are gradients of the energies, ds.grad, and the gradient of all steps solves one linear
system for each. We look for the wind that brings the free edge to a target.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

SIDE = 1.0  # of the cloth [m]
MASS = 0.2  # of the cloth [kg]
STIFFNESS = 400.0  # of a spring [N/m]
GRAVITY = 9.81  # [m/s²]
DRAG = 0.15  # of a point in the wind [N s/m]
DT = 0.04  # [s]


class Cloth:
    """A square of n by n points with springs along the threads and the diagonals.

    Args:
        n: points along a side.
        steps: time steps.
    """

    def __init__(self, n: int, steps: int) -> None:
        def points(*shape):
            return ds.Vector.field(3, ds.f64, shape=shape, needs_grad=True)

        self.n, self.steps = n, steps
        self.x = x = points(n * n)  # [m]
        self.before, self.v = before, v = points(n * n), points(n * n)  # [m], [m/s]
        self.force = force = points(n * n)  # [N]
        self.wind = wind = points()  # [m/s]
        self.target = target = ds.Vector.field(
            3, ds.f64, shape=()
        )  # of the middle of the free edge [m]
        self.loss = loss = ds.field(ds.f64, shape=(), needs_grad=True)  # [m²]
        mass, rest = MASS / n**2, SIDE / (n - 1)
        springs = [
            (i * n + j, (i + a) * n + j + b)
            for i in range(n)
            for j in range(n)
            for a, b in ((0, 1), (1, 0), (1, 1), (1, -1))
            if i + a < n and 0 <= j + b < n
        ]
        ends = ds.Vector.field(2, ds.i32, shape=len(springs))
        ends.from_numpy(np.array(springs, np.int32))
        self.ends = np.array(springs)

        @ds.func
        def spring(p, q, length):  # [J]
            return 0.5 * STIFFNESS * ((p - q).norm() - length) ** 2

        @ds.func
        def own(
            p, p0, v0, w
        ):  # inertia, weight and drag of a point: what an implicit step minimizes [J]
            moved = p - p0 - DT * v0
            drift = p - p0 - DT * w
            return (
                0.5 * mass / DT**2 * moved.dot(moved)
                + mass * GRAVITY * p.z
                + 0.5 * DRAG / n**2 / DT * drift.dot(drift)
            )

        @ds.kernel
        def balance():
            for k in ends:
                i, j = ends[k].x, ends[k].y
                straight = i % n == j % n or i // n == j // n
                length = rest if straight else rest * 2**0.5
                on_i, on_j, _ = ds.grad(spring)(x[i], x[j], length)
                force[i] += on_i
                force[j] += on_j
            for i in x:
                on_p, _, _, _ = ds.grad(own)(x[i], before[i], v[i], wind[None])
                force[i] += on_p
            for i in x:
                if i == 0 or i == n - 1:  # held
                    force[i] = x[i] - before[i]

        @ds.kernel
        def remember():
            for i in x:
                before[i] = x[i]

        @ds.kernel
        def measure_speed():
            for i in x:
                v[i] = (x[i] - before[i]) / DT

        @ds.kernel
        def compare():
            for i in range(1):
                miss = x[n * n - (n + 1) // 2] - target[None]
                loss[None] += miss.dot(miss)

        self.balance, self.remember = balance, remember
        self.measure_speed, self.compare = measure_speed, compare

    def simulate(self, film: list[np.ndarray] | None = None) -> None:
        """Let the cloth fall from a level position, in place; note where it is in `film`."""
        flat = np.zeros((self.n, self.n, 3))
        flat[..., 0], flat[..., 1] = np.mgrid[: self.n, : self.n] * SIDE / (self.n - 1)
        self.x.from_numpy(flat.reshape(-1, 3))
        self.v.fill(0.0)
        for _ in range(self.steps):
            if film is not None:
                film.append(self.x.to_numpy())
            self.remember()
            ds.ad.implicit_root(self.balance, unknown=self.x, output=self.force)
            self.measure_speed()
        if film is not None:
            film.append(self.x.to_numpy())

    def gradient(self, wind: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its derivatives by the wind."""
        self.wind.from_numpy(wind)
        with ds.Tape(self.loss):
            self.simulate()
            self.compare()
        return self.loss[None], self.wind.grad.to_numpy()

    def film(self, wind: np.ndarray) -> np.ndarray:
        """Where the points, and then the target, are at each step in this wind, (steps + 1, n² + 1, 3)."""
        places: list[np.ndarray] = []
        self.wind.from_numpy(wind)
        self.simulate(places)
        return np.array([np.vstack([x, self.target.to_numpy()]) for x in places])


def main(argv: Sequence[Any] | None = None) -> list[float]:
    """Find the wind that blows the middle of the free edge to a target."""
    parser = ds.tools.ArgumentParser(__doc__, steps=10, iterations=12, out="out/cloth")
    parser.add_argument("--points", type=int, default=5, help="along a side (default 5)")
    args = parser.parse_args(argv)
    points = args.points
    # State in place: the tape saves what is overwritten.
    ds.init(arch=args.arch, default_fp=ds.f64, rules="lifted")
    cloth = Cloth(points, args.steps)
    cloth.wind.from_numpy(np.array([1.0, 0.8, 0.5]))
    cloth.simulate()
    cloth.target.from_numpy(cloth.x.to_numpy()[points**2 - (points + 1) // 2])
    wind, losses = np.zeros(3), []
    before = cloth.film(wind)
    for i in range(args.iterations):
        loss, slope = cloth.gradient(wind)
        losses.append(loss)
        print(f"iteration {i:3}  loss {loss:.3e} m²  wind {np.round(wind, 3)} m/s")
        # A step to where the line along the slope would reach 0, or half-way for a parabola.
        wind -= 0.5 * loss / max(float(slope @ slope), 1e-30) * slope
    after = cloth.film(wind)

    ds.tools.plot_loss(losses, args.out / "loss.png", label="squared distance [m²]")
    colors = ["tab:blue"] * points**2 + ["tab:red"]
    colors[0] = colors[points - 1] = "tab:gray"  # held
    every = np.concatenate([before, after]).reshape(-1, 3)
    look: dict[str, Any] = {"lines": cloth.ends, "colors": colors, "radius": 0.015}
    look["bounds"] = every.min(0) - 0.05, every.max(0) + 0.05
    player = ds.tools.Player("A cloth, and the wind that brings it to the red point")
    for name, x in (("before", before), ("after", after)):
        ds.tools.animate(x, DT, args.out / f"{name}.gif", label=name, **look)
        player.add_points(x, DT, label=name, **look)
    player.add_loss(losses, label="squared distance [m²]")
    player.write(args.out / "cloth.html")
    return losses


if __name__ == "__main__":
    main()
