"""Gravity without a formula for the force: the tape finds it from the energy."""

import argparse
from pathlib import Path

import numpy as np
from drawing import new_figure, save_animation, save_picture

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


def main() -> None:
    """Simulate, say how well energy is kept, and draw the orbits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bodies", type=int, default=16, help="8 to 64 look best (default 16)")
    parser.add_argument("--steps", type=int, default=4000, help=f"of {DT} (default 4000)")
    parser.add_argument("--out", type=Path, default=Path("out/gravity"), help="for the pictures")
    arguments = parser.parse_args()
    ds.init(arch=ds.cpu)
    x, energy = simulate(arguments.bodies, arguments.steps)
    drift = np.abs(energy / energy[0] - 1).max()
    print(f"energy: first {energy[0]:.4f}, last {energy[-1]:.4f}, drift at most {drift:.0e} of it")
    figure, span = new_figure(5, 5), 1.05 * np.abs(x).max() * np.array([-1, 1])
    axes = figure.add_subplot(aspect="equal", xlim=span, ylim=span, xlabel="x", ylabel="y")
    axes.set_title(f"{arguments.bodies} bodies, force = −dU/dx")
    trails = [axes.plot([], [], lw=1.5, alpha=0.8)[0] for _ in range(arguments.bodies)]
    (dots,) = axes.plot([], [], "ko", ms=4)

    def pose(step: int, length: int = TRAIL) -> list:
        for i, trail in enumerate(trails):
            trail.set_data(*x[max(0, step - length) : step + 1, i].T)
        dots.set_data(*x[step].T)
        return [*trails, dots]

    save_animation(arguments.out / "gravity.gif", figure, pose, list(range(len(x))), 0.04)
    pose(len(x) - 1, length=len(x))
    save_picture(arguments.out / "gravity.png", figure)


if __name__ == "__main__":
    main()
