"""A network of PyTorch learns to balance poles on carts, through a simulator in diffsim.

Each time step is a call of the simulator, and one node of PyTorch's graph: the policy sees the state, the
carts are pushed, and the gradient of the whole run goes back through all steps. Needs PyTorch:
pip install "diffsim-lang[torch]".

    python examples/learned_controller.py
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diffsim as ds

GRAVITY = 9.81  # [m/s²]
CART, POLE = 1.0, 0.1  # masses [kg]
HALF = 0.5  # of the pole's length [m]
DT = 0.02  # [s]
PUSH = 15.0  # the strongest one [N]
CARTS = 32  # simulated side by side
RATE = 0.02  # of Adam

state_type = ds.types.vector(4, ds.f64)  # place [m], speed [m/s], angle [rad], its rate [rad/s]


@ds.func
def rates(s: state_type, force: ds.f64) -> state_type:
    """The derivative of the state by time (Florian 2007, without friction)."""
    sin, cos = ds.sin(s[2]), ds.cos(s[2])
    total = CART + POLE
    drive = (force + POLE * HALF * s[3] ** 2 * sin) / total
    turn = (GRAVITY * sin - cos * drive) / (HALF * (4.0 / 3.0 - POLE * cos**2 / total))
    return state_type([s[1], drive - POLE * HALF * turn * cos / total, s[3], turn])


@ds.kernel
def advance(
    before: ds.types.ndarray(dtype=state_type),
    force: ds.types.ndarray(),
    after: ds.types.ndarray(dtype=state_type),
):
    """Move all carts by one time step, with the midpoint rule."""
    for i in before:
        middle = before[i] + 0.5 * DT * rates(before[i], force[i])
        after[i] = before[i] + DT * rates(middle, force[i])


@ds.torch.wrap(inputs=[state_type, ds.f64])
def simulate(before: ds.Field, force: ds.Field) -> ds.Field:
    """One time step of all carts: their states, and the forces on them [N]."""
    after = ds.ndarray(state_type, before.shape, needs_grad=True)
    advance(before, force, after)
    return after


def run(policy: torch.nn.Module, start: torch.Tensor, steps: int) -> torch.Tensor:
    """The states of all carts at all times, (steps + 1, carts, 4)."""
    states = [start]
    for _ in range(steps):
        force = PUSH * torch.tanh(policy(states[-1]).squeeze(1))
        states.append(simulate(states[-1], force))
    return torch.stack(states)


def train(iterations: int, steps: int) -> tuple[list[float], list[torch.Tensor]]:
    """Return the losses, and the runs of the first and the last policy."""
    torch.set_num_threads(1)  # the matrices are small
    torch.manual_seed(0)
    policy = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    policy = policy.double()
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE)
    start = 0.3 * (2 * torch.rand(CARTS, 4, dtype=torch.float64) - 1)
    losses, shown = [], []
    for i in range(iterations):
        states = run(policy, start, steps)
        # Upright, in the middle, at rest.
        loss = (states**2 * torch.tensor([0.3, 0.05, 1.0, 0.05])).sum(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if i in (0, iterations - 1):
            shown.append(states.detach())
        if i % 10 == 0 or i == iterations - 1:
            print(f"iteration {i:3}  loss {losses[-1]:8.4f}", flush=True)
    return losses, shown


def draw(losses: list[float], shown: list[torch.Tensor], file: Path) -> None:
    """Draw the loss, and the angles of all poles with the first and the last policy."""
    from matplotlib import pyplot

    figure, (left, *others) = pyplot.subplots(1, 3, figsize=(10, 3), layout="constrained")
    left.semilogy(losses)
    left.set(title="loss", xlabel="iteration")
    for axes, states, title in zip(others, shown, ("before", "after"), strict=False):
        seconds = DT * torch.arange(len(states))
        axes.plot(seconds, states[:, :, 2].rad2deg(), color="#3060a0", alpha=0.4)
        axes.set(title=f"angles {title} [°]", xlabel="time [s]")
    ds.tools.save_figure(figure, file)


def places(states: torch.Tensor) -> np.ndarray:
    """Where the cart and the tip of its pole are, for eight carts, one above the other, (T, 16, 2) [m]."""
    x, angle = states[:, :8, 0].numpy(), states[:, :8, 2].numpy()
    rail = np.broadcast_to(1.5 * np.arange(8), x.shape)
    tip = np.stack([x + 2 * HALF * np.sin(angle), rail + 2 * HALF * np.cos(angle)], 2)
    return np.concatenate([np.stack([x, rail], 2), tip], 1)


def main(argv: Sequence[Any] | None = None) -> None:
    """Train, and draw what was learned."""
    parser = ds.tools.ArgumentParser(
        __doc__, steps=100, iterations=60, out="out/learned_controller"
    )
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    losses, shown = train(args.iterations, args.steps)
    draw(losses, shown, args.out / "learned_controller.png")
    player = ds.tools.Player("Poles on carts, balanced by a network")
    look = {"lines": [(k, k + 8) for k in range(8)], "radius": np.repeat([0.12, 0.04], 8)}
    for states, name in zip(shown, ("before", "after"), strict=False):
        player.add_points(places(states), DT, label=name, bounds=((-3, -1), (3, 12)), **look)
    player.add_loss(losses)
    player.write(args.out / "learned_controller.html")


if __name__ == "__main__":
    main()
