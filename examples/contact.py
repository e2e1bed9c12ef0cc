"""A ball bounces from the floor and hits another one: contacts as equations, with sharp and smooth gradients.

A contact gives an impulse p >= 0 where the gap does not open by itself, and none where it does: either p is 0
or the speed r(p) at which the gap opens beyond the restitution. On the central path p * r(p) = kappa the two
are smooth functions of all that is known. With kappa -> 0 the gradient is the sharp one; with more of it a
throw that misses the contact feels where it would be.

    python examples/contact.py [--count 9]

The picture has what the other ball gets, and its derivative, beside the closed form; on the page each point
is a throw, and an iteration is a frame: they move along that curve to the target.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import diffsim as ds

BALL, OTHER = 0.2, 0.3  # masses [kg]
RESTITUTION = 0.8
TARGET = 1.2  # of the other ball [m/s]
SHARP, SMOOTH = 1e-10, 1e-2  # kappa [kg m²/s²]


class Throws:
    """Many throws side by side, each with a speed of its own, upwards if it is positive.

    Args:
        count: how many.
        kappa: the product of impulse and excess speed [kg m²/s²].
    """

    def __init__(self, count: int, kappa: float) -> None:
        def numbers(*shape):
            return ds.field(ds.f64, shape=shape, needs_grad=True)

        self.speed, self.loss, self.final = numbers(count), numbers(), numbers(count)  # [m/s]
        self.kappa = product = ds.field(ds.f64, shape=())
        product[None] = kappa
        speed, loss, final = self.speed, self.loss, self.final
        self.floor, self.hit = numbers(count), numbers(count)  # impulses [N s]
        floor, hit = self.floor, self.hit
        self.residual = residual = numbers(count)
        bounced = numbers(count)  # the speed after the floor [m/s]

        @ds.kernel
        def on_floor():
            for i in floor:
                after = speed[i] + floor[i] / BALL
                residual[i] = floor[i] * (after + RESTITUTION * speed[i]) - product[None]

        @ds.kernel
        def rise():
            for i in bounced:
                bounced[i] = speed[i] + floor[i] / BALL

        @ds.kernel
        def between():
            for i in hit:
                opening = hit[i] / OTHER + hit[i] / BALL - bounced[i]
                residual[i] = hit[i] * (opening - RESTITUTION * bounced[i]) - product[None]

        @ds.kernel
        def compare():
            for i in hit:
                final[i] = hit[i] / OTHER
                loss[None] += (final[i] - TARGET) ** 2

        self.on_floor, self.rise, self.between, self.compare = on_floor, rise, between, compare

    def simulate(self) -> None:
        """Solve for both impulses, from above: of the two roots the positive one is meant."""
        self.floor.fill(10.0)
        self.hit.fill(10.0)
        ds.ad.implicit_root(self.on_floor, unknown=self.floor, output=self.residual)
        self.rise()
        ds.ad.implicit_root(self.between, unknown=self.hit, output=self.residual)

    def gradient(self, speeds: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss, the sum of squared misses [m²/s²], and its derivatives by the speeds."""
        self.speed.from_numpy(speeds)
        with ds.Tape(self.loss):
            self.simulate()
            self.compare()
        return self.loss[None], self.speed.grad.to_numpy()

    def slopes(self, speeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The final speeds of the other ball, and their derivatives by the speeds of the throws."""
        self.speed.from_numpy(speeds)
        tape = ds.Tape()
        with tape:
            self.simulate()
            self.compare()
        tape.backward(grads={self.final: 1.0})
        found = self.speed.grad.to_numpy()
        tape.zero()
        return self.final.to_numpy(), found


def sharp(speed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The closed form without smoothing: a bounce, then an exchange of momentum; and its derivative."""
    share = (1 + RESTITUTION) * BALL / (BALL + OTHER)
    down = speed < 0
    return share * np.where(down, -RESTITUTION, 1) * speed, share * np.where(
        down, -RESTITUTION, 1.0
    )


def draw(path: Path) -> None:
    """Plot what the other ball gets, and its derivative, sharp and smooth side by side."""
    import matplotlib.pyplot as plt

    speeds = np.linspace(-3, 3, 61)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for kappa, colour in ((SHARP, "#b2182b"), (SMOOTH, "#2166ac"), (10 * SMOOTH, "#92c5de")):
        final, slope = Throws(len(speeds), kappa).slopes(speeds)
        for axis, values in zip(axes, (final, slope), strict=True):
            axis.plot(speeds, values, color=colour, label=f"κ = {kappa:g}")
    for axis, values in zip(axes, sharp(speeds), strict=True):
        axis.plot(speeds, values, "k:", label="closed form, κ = 0")
        axis.set_xlabel("speed of the throw [m/s]")
        axis.legend(frameon=False)
    axes[0].set_ylabel("speed of the other ball [m/s]")
    axes[1].set_ylabel("derivative")
    ds.tools.save_figure(figure, path)


def main(argv: Sequence[Any] | None = None) -> list[float]:
    """Find throws that give the other ball its target speed, by way of the floor or without it."""
    parser = ds.tools.ArgumentParser(__doc__, iterations=40, out="out/contact")
    parser.add_argument("--count", type=int, default=9, help="throws side by side (default 9)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch, default_fp=ds.f64)
    throws = Throws(args.count, SMOOTH)
    speeds, losses, film = np.linspace(-2.5, 2.5, args.count), [], []
    for i in range(args.iterations):
        loss, slope = throws.gradient(speeds)
        losses.append(loss)
        film.append(np.stack([speeds, throws.final.to_numpy()], 1))
        if i % 10 == 0 or i == args.iterations - 1:
            print(
                f"iteration {i:3}  loss {loss:.2e} m²/s²  speeds {speeds.min():.2f} to {speeds.max():.2f} m/s"
            )
        speeds -= 0.5 * slope
    draw(args.out / "contact.png")
    ds.tools.plot_loss(losses, args.out / "loss.png", label="sum of squared misses [m²/s²]")
    player = ds.tools.Player("Throws that find the target speed, 1.2 m/s", unit="iterations")
    label = "speed of the other ball over that of the throw [m/s]"
    player.add_points(np.array(film), 1, label=label, radius=0.05, bounds=((-4, 0), (4, 2.5)))
    player.add_loss(losses, label="sum of squared misses [m²/s²]")
    player.write(args.out / "contact.html")
    return losses


if __name__ == "__main__":
    main()
