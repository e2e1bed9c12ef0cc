"""Gradient descent: from the heights of a thrown ball, find how strong gravity is.

    python examples/minimize.py

A parabola is fitted to 50 noisy heights. The page shows it move towards them, an iteration a frame.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

RATE = 0.6  # step of the descent
COUNT = 50  # measurements


def main(argv: Sequence[Any] | None = None) -> None:
    """Fit height = p0 + p1 t + p2 t² [m] to noisy measurements; then gravity is -2 p2."""
    args = ds.tools.ArgumentParser(__doc__, iterations=100, out="out/minimize").parse_args(argv)
    ds.init(arch=args.arch)
    time, height = ds.field(ds.f32, shape=COUNT), ds.field(ds.f32, shape=COUNT)  # [s], [m]
    p = ds.field(ds.f32, shape=3, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)  # mean square error [m²]

    @ds.kernel
    def compare():
        for i in time:
            error = p[0] + p[1] * time[i] + p[2] * time[i] ** 2 - height[i]
            loss[None] += error**2 / COUNT

    @ds.kernel
    def descend():
        for i in p:
            p[i] += -RATE * p.grad[i]

    t = np.linspace(-1, 1, COUNT)  # 0 is the middle of the throw
    noise = np.random.default_rng(args.seed).normal(0, 0.02, COUNT)
    measured = 6 + 2 * t - 9.81 / 2 * t**2 + noise
    time.from_numpy(t.astype(np.float32))
    height.from_numpy(measured.astype(np.float32))
    losses, fits = [], []
    for i in range(args.iterations):
        with ds.Tape(loss):
            compare()
        losses.append(loss[None])
        fits.append(np.polyval(p.to_numpy()[::-1], t))
        if i % 10 == 0 or i == args.iterations - 1:
            print(f"iteration {i:3}  loss {loss[None]:9.5f} m²  gravity {abs(2 * p[2]):.3f} m/s²")
        descend()

    ds.tools.plot_loss(losses, args.out / "loss.png", label="mean square error [m²]")
    dots, curve = (
        np.stack([np.broadcast_to(t, (len(fits), COUNT)), y], 2)
        for y in (np.broadcast_to(measured, (len(fits), COUNT)), fits)
    )
    player = ds.tools.Player("A parabola through noisy heights", unit="iterations")
    player.add_points(
        np.concatenate([dots, curve], 1),
        1,
        label="height [m] over time [s]",
        lines=[(k, k + 1) for k in range(COUNT, 2 * COUNT - 1)],
        line_colors="tab:red",
        radius=np.repeat([0.05, 0], COUNT),
    )
    player.add_loss(losses, label="mean square error [m²]")
    player.write(args.out / "minimize.html")


if __name__ == "__main__":
    main()
