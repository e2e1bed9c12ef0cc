"""Gravity without a formula for the force: the tape finds it from the energy.

    python examples/gravity.py [--bodies 16] [--steps 4000]

The potential energy is all the physics: U = -sum of 1 / distance over all pairs, with G = m = 1. The force is
-dU/dx, and leapfrog steps keep the energy: 4,000 of them to 3 parts in 100,000.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import diffsim as ds

DT = 0.0005  # time step, in units in which the constant of gravity and every mass are 1
SOFT = 1e-2  # added to each squared distance, so that near misses stay gentle
EVERY, TRAIL = 20, 25  # steps between recorded positions; positions in a trail


def simulate(bodies: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Let a turning ring of bodies go; positions (samples, bodies, 2) and energies (samples,)."""
    x = ds.Vector.field(2, ds.f32, shape=bodies, needs_grad=True)  # position
    v = ds.Vector.field(2, ds.f32, shape=bodies)  # velocity, half a step before x
    U = ds.field(ds.f32, shape=(), needs_grad=True)  # potential energy

    @ds.kernel
    def attract():
        for i, j in ds.ndrange(bodies, bodies):
            if i < j:
                r = x[i] - x[j]
                U[None] += -1 / r.norm(SOFT)

    @ds.kernel
    def advance():
        for i in x:
            v[i] += -DT * x.grad[i]  # the force is -dU/dx
            x[i] += DT * v[i]

    random = np.random.default_rng(3)
    angle = 2 * np.pi * (np.arange(bodies) + random.uniform(-0.2, 0.2, bodies)) / bodies
    outward = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    radius = random.uniform(0.5, 1.0, (bodies, 1)).astype(np.float32)
    x.from_numpy(radius * outward)
    v.from_numpy(np.sqrt(0.4 * bodies / radius) * outward[:, ::-1] * np.float32([-1, 1]))

    positions, energies = [], []
    for step in range(steps + 1):
        with ds.Tape(loss=U):
            attract()
        if step % EVERY == 0:
            now = v.to_numpy() - DT / 2 * x.grad.to_numpy()
            positions.append(x.to_numpy())
            energies.append(U[None] + 0.5 * (now**2).sum())
        advance()
    return np.array(positions), np.array(energies)


def with_trails(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add to each body where it was: places (samples, TRAIL * bodies, 2), and the lines between them."""
    samples, bodies = x.shape[:2]
    back = np.maximum(np.arange(samples)[:, None] - np.arange(TRAIL), 0)
    places = x[back].reshape(samples, -1, 2)
    number = np.arange(TRAIL * bodies).reshape(TRAIL, bodies)
    return places, np.stack([number[:-1].ravel(), number[1:].ravel()], 1)


def main(argv: Sequence[Any] | None = None) -> None:
    """Simulate, say how well energy is kept, and draw the orbits."""
    parser = ds.tools.ArgumentParser(__doc__, steps=4000, out="out/gravity")
    parser.add_argument("--bodies", type=int, default=16, help="8 to 64 look best (default 16)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    x, energy = simulate(args.bodies, args.steps)
    drift = np.abs(energy / energy[0] - 1).max()
    print(f"energy: first {energy[0]:.4f}, last {energy[-1]:.4f}, drift at most {drift:.0e} of it")

    places, lines = with_trails(x)
    size = 1.05 * np.abs(x).max()
    hue = np.tile(np.arange(args.bodies) / args.bodies, TRAIL - 1)
    look: dict[str, Any] = {"lines": lines, "line_colors": ds.tools.colormap(hue, "hsv", 0, 1)}
    look["radius"] = np.where(np.arange(places.shape[1]) < args.bodies, 0.015 * size, 0)
    look |= {"colors": 0x222222, "bounds": (-size, size)}
    label = f"{args.bodies} bodies, force = −dU/dx"
    ds.tools.animate(places, EVERY * DT, args.out / "gravity.gif", label=label, **look)
    player = ds.tools.Player("Gravity from an energy")
    player.add_points(places, EVERY * DT, label=label, **(look | {"colors": "tab:gray"}))
    player.write(args.out / "gravity.html")
    if args.gui:
        show(x / (2 * size) + 0.5)


def show(x: np.ndarray) -> None:
    """Play the orbits in a window."""
    gui = ds.GUI("Gravity", (600, 600), background_color=0xFFFFFF)
    for places in x:
        if not gui.running:
            break
        gui.circles(places, radius=5, color=0x222222)
        gui.show()


if __name__ == "__main__":
    main()
