"""The pressure projection of a fluid: find how strongly four fans must blow for a given flow.

    python examples/projection.py [--cells 24]

The velocity lies on the faces of square cells, the pressure in their middles. The pressure makes the velocity
free of divergence: a linear system that kernels apply, solved by conjugate gradients as one entry of a tape.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import diffsim as ds

FANS = 4
WIDTH = 0.1  # of a fan, of the box of side 1 [m]
DT, DENSITY = 0.1, 1.0  # [s], [kg/m³]


class Fluid:
    """A box of n by n cells with open sides, at rest, in which fans blow for one step."""

    def __init__(self, n: int) -> None:
        def numbers(*shape):
            return ds.field(ds.f64, shape=shape, needs_grad=True)

        self.n, self.cell = n, 1 / n  # [m]
        self.power = numbers(FANS, 2)  # accelerations at the fans [m/s²]
        self.u, self.v = numbers(n + 1, n), numbers(n, n + 1)  # through the faces [m/s]
        self.free_u, self.free_v = numbers(n + 1, n), numbers(n, n + 1)
        self.pressure, self.sources, self.product = (numbers(n, n) for _ in range(3))
        self.loss = numbers()  # mean square miss at the faces [m²/s²]
        self.target_u = ds.field(ds.f64, shape=(n + 1, n))
        self.target_v = ds.field(ds.f64, shape=(n, n + 1))
        self._make_fans()
        self._make_pressure()
        loss, target_u, target_v = self.loss, self.target_u, self.target_v
        free_u, free_v = self.free_u, self.free_v

        @ds.kernel
        def compare():
            for i, j in free_u:
                loss[None] += (free_u[i, j] - target_u[i, j]) ** 2 / (n * n)
            for i, j in free_v:
                loss[None] += (free_v[i, j] - target_v[i, j]) ** 2 / (n * n)

        self.compare = compare

    def _make_fans(self) -> None:
        u, v, power, cell = self.u, self.v, self.power, self.cell

        @ds.func
        def wind(x, y, axis: ds.template()):
            """The force of the fans, which stand on a square, at a place."""
            total = 0.0
            for k in ds.static(range(FANS)):
                dx = x - (0.3 + 0.4 * (k % 2))
                dy = y - (0.3 + 0.4 * (k // 2))
                total += power[k, axis] * ds.exp(-(dx * dx + dy * dy) / WIDTH**2)
            return DT * total

        @ds.kernel
        def blow():
            for i, j in u:
                u[i, j] = wind(i * cell, (j + 0.5) * cell, 0)
            for i, j in v:
                v[i, j] = wind((i + 0.5) * cell, j * cell, 1)

        self.blow = blow

    def _make_pressure(self) -> None:
        n, cell, u, v = self.n, self.cell, self.u, self.v
        free_u, free_v, pressure = self.free_u, self.free_v, self.pressure
        sources, product = self.sources, self.product

        @ds.func
        def at(i, j):
            """The pressure, which is 0 outside the box."""
            p = 0.0
            if i >= 0 and i < n and j >= 0 and j < n:
                p = pressure[i, j]
            return p

        @ds.kernel
        def diverge():
            for i, j in sources:
                out = u[i + 1, j] - u[i, j] + v[i, j + 1] - v[i, j]
                sources[i, j] = -DENSITY * cell / DT * out

        @ds.kernel
        def laplace():
            for i, j in product:
                around = at(i - 1, j) + at(i + 1, j) + at(i, j - 1) + at(i, j + 1)
                product[i, j] = 4.0 * pressure[i, j] - around

        @ds.kernel
        def project():
            for i, j in free_u:
                free_u[i, j] = u[i, j] - DT / DENSITY / cell * (at(i, j) - at(i - 1, j))
            for i, j in free_v:
                free_v[i, j] = v[i, j] - DT / DENSITY / cell * (at(i, j) - at(i, j - 1))

        self.diverge, self.laplace, self.project = diverge, laplace, project

    def simulate(self) -> None:
        """Blow, and make the velocity free of divergence."""
        self.blow()
        self.diverge()
        ds.ad.linear_solve(
            self.laplace, self.sources, self.pressure, product=self.product, symmetric=True
        )
        self.project()

    def gradient(self, power: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its derivatives by the power of the fans."""
        self.power.from_numpy(power)
        with ds.Tape(self.loss):
            self.simulate()
            self.compare()
        return self.loss[None], self.power.grad.to_numpy()

    def aim_at(self, power: np.ndarray) -> None:
        """Take the flow that fans of this power make as the target."""
        self.power.from_numpy(power)
        self.simulate()
        self.target_u.copy_from(self.free_u)
        self.target_v.copy_from(self.free_v)

    def divergence(self) -> float:
        """The largest divergence that the projection has left, times the side of a cell [m/s]."""
        u, v = self.free_u.to_numpy(), self.free_v.to_numpy()
        return float(np.abs(np.diff(u, axis=0) + np.diff(v, axis=1)).max())

    def draw(self, path: Path) -> None:
        """Plot pressure and velocity."""
        import matplotlib.pyplot as plt

        u, v = self.free_u.to_numpy(), self.free_v.to_numpy()
        middle = (np.arange(self.n) + 0.5) / self.n
        figure, axis = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
        image = axis.imshow(
            self.pressure.to_numpy().T, origin="lower", extent=(0, 1, 0, 1), cmap="coolwarm"
        )
        figure.colorbar(image, label="pressure [Pa]")
        axis.streamplot(
            middle,
            middle,
            (u[1:] + u[:-1]).T / 2,
            (v[:, 1:] + v[:, :-1]).T / 2,
            color="k",
            linewidth=0.7,
        )
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="x [m]", ylabel="y [m]")
        ds.tools.save_figure(figure, path)


def main(argv: Sequence[Any] | None = None) -> list[float]:
    """Find the power of the fans from the flow that they have made: a swirl."""
    parser = ds.tools.ArgumentParser(__doc__, iterations=40, out="out/projection")
    parser.add_argument("--cells", type=int, default=24, help="along a side (default 24)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch, default_fp=ds.f64)
    fluid = Fluid(args.cells)
    fluid.aim_at(np.array([[8.0, -8.0], [8.0, 8.0], [-8.0, -8.0], [-8.0, 8.0]]))
    target = fluid.pressure.to_numpy()
    power, losses, film = np.zeros((FANS, 2)), [], []
    for i in range(args.iterations):
        loss, slope = fluid.gradient(power)
        losses.append(loss)
        film.append(fluid.pressure.to_numpy())
        if i % 10 == 0 or i == args.iterations - 1:
            print(
                f"iteration {i:3}  loss {loss:.3e} m²/s²  divergence {fluid.divergence():.1e} m/s"
            )
        power -= 3000.0 * slope
    fluid.draw(args.out / "projection.png")

    ds.tools.plot_loss(losses, args.out / "loss.png", label="mean square miss [m²/s²]")
    player = ds.tools.Player("Four fans find how they must blow", unit="iterations")
    look = {"cmap": "coolwarm", "vmin": target.min(), "vmax": target.max()}
    player.add_frames(film, 1, label="pressure [Pa]", **look)
    player.add_frames(target[None], 1, label="pressure of the target [Pa]", **look)
    player.add_loss(losses, label="mean square miss [m²/s²]")
    player.write(args.out / "projection.html")
    return losses


if __name__ == "__main__":
    main()
