"""A charge between eight electrodes: a network learns the voltages that pull it along with a moving goal.

    python examples/electric.py
    python examples/electric.py --iterations 5000 --batch 64

After 2000 iterations the loss on 16 paths that it was not trained on has fallen from 0.99 to 0.083 m² s.
An iteration takes 0.001 s of one processor core with one path, and 0.03 s with sixteen.

The goal moves along two lines between three random corners, new ones in each iteration. The network sees
where charge and goal are and how they move, and sets the voltages anew in each step. The problem is
DiffTaichi's [1], which takes one path in an iteration (--batch 1).

[1] Y. Hu et al., "DiffTaichi: Differentiable Programming for Physical Simulation", ICLR 2020.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import diffsim as ds

DT = 0.03  # [s]
DRAG = 0.2  # of the air that the charge moves in [1/s]
FORCE = 1e-3  # of an electrode at full voltage on the charge, per mass [m³/s²]
CORE = 0.1  # nearer than this the force grows no more [m]
EDGE = 0.1  # from the electrodes to the sides of the unit square [m]
ELECTRODES = [(x, y) for x in (EDGE, 0.5, 1 - EDGE) for y in (EDGE, 0.5, 1 - EDGE)]
ELECTRODES.remove((0.5, 0.5))
COUNT = len(ELECTRODES)
SENSES, HIDDEN = 8, 64  # numbers that the network sees, and units of its layer
LINES = 2  # of which the way of a goal consists
EVERY = 4  # steps from one picture of the film to the next


@ds.data_oriented
class Charges:
    """A batch of charges, each after a goal of its own, over a number of steps."""

    def __init__(self, batch: int, steps: int, seed: int = 0) -> None:
        self.batch, self.steps = batch, steps
        self.corner = ds.Vector.field(2, float, shape=(LINES + 1, batch))  # of the goals' ways [m]
        self.place = ds.Vector.field(2, float, shape=COUNT)  # of the electrodes [m]
        self.place.from_numpy(np.array(ELECTRODES))
        self.x = ds.Vector.field(2, float, shape=(steps + 1, batch), needs_grad=True)  # [m]
        self.v = ds.Vector.field(2, float, shape=(steps + 1, batch), needs_grad=True)  # [m/s]
        self.hidden = numbers(steps, batch, HIDDEN)
        self.voltage = numbers(steps, batch, COUNT)  # from -1 to 1
        self.w1, self.b1 = numbers(SENSES, HIDDEN), numbers(HIDDEN)
        self.w2, self.b2 = numbers(HIDDEN, COUNT), numbers(COUNT)
        self.loss = numbers()  # ∫ (x - goal)² dt, mean over the batch [m² s]
        self.random = np.random.default_rng(seed)
        for w in (self.w1, self.w2):
            w.from_numpy(self.random.uniform(-0.15, 0.15, w.shape))
        self.choose_goals()

    def choose_goals(self) -> None:
        """Draw new corners."""
        self.corner.from_numpy(self.random.uniform(0.2, 0.8, (LINES + 1, self.batch, 2)))

    @ds.func
    def goal(self, t, b):
        """Where a goal is after t steps, and its way along the present line."""
        part = t * LINES / self.steps
        line = ds.min(ds.cast(part, ds.i32), LINES - 1)
        way = self.corner[line + 1, b] - self.corner[line, b]
        return self.corner[line, b] + (part - line) * way, way

    @ds.kernel
    def begin(self):
        for b in range(self.batch):
            self.x[0, b] = self.corner[0, b]
            self.v[0, b] = ds.Vector([0.0, 0.0])

    @ds.kernel
    def sense(self, t: ds.i32):
        """The network's first layer."""
        for b, k in ds.ndrange(self.batch, HIDDEN):
            seen = self.b1[k]
            goal, way = self.goal(t, b)
            for a in ds.static(range(2)):
                seen += (self.x[t, b][a] - 0.5) * self.w1[a, k]
                seen += self.v[t, b][a] * self.w1[2 + a, k]
                seen += (goal[a] - 0.5) * self.w1[4 + a, k]
                seen += way[a] * self.w1[6 + a, k]
            self.hidden[t, b, k] = ds.tanh(seen)

    @ds.kernel
    def decide(self, t: ds.i32):
        """The network's second layer."""
        for b, e in ds.ndrange(self.batch, COUNT):
            total = self.b2[e]
            for k in range(HIDDEN):
                total += self.hidden[t, b, k] * self.w2[k, e]
            self.voltage[t, b, e] = ds.tanh(total)

    @ds.kernel
    def move(self, t: ds.i32):
        for b in range(self.batch):
            force = ds.Vector([0.0, 0.0])
            for e in ds.static(range(COUNT)):
                away = self.x[t, b] - self.place[e]
                far = ds.max(away.norm(), CORE)
                force += FORCE * self.voltage[t, b, e] / far**3 * away
            v = self.v[t, b] * ds.exp(-DT * DRAG) + DT * force
            self.v[t + 1, b] = v
            self.x[t + 1, b] = self.x[t, b] + DT * v

    @ds.kernel
    def measure(self, t: ds.i32):
        for b in range(self.batch):
            miss = self.x[t, b] - self.goal(t, b)[0]
            self.loss[None] += DT * miss.norm_sqr() / self.batch

    def program(self) -> ds.Field:
        """From the first place to the loss."""
        self.begin()
        for t in range(self.steps):
            self.sense(t)
            self.decide(t)
            self.move(t)
            self.measure(t + 1)
        return self.loss

    def film(self) -> tuple[np.ndarray, np.ndarray]:
        """Run; return electrodes, goal and charge of the first path, (T, 10, 2) [m], and their colours."""
        self.program()
        x, corner = self.x.to_numpy()[:-1, :1], self.corner.to_numpy()[:, 0]
        at = np.arange(self.steps) * LINES / self.steps
        goal = np.stack([np.interp(at, range(LINES + 1), corner[:, a]) for a in range(2)], -1)
        still = np.broadcast_to(np.array(ELECTRODES), (self.steps, COUNT, 2))
        volts = self.voltage.to_numpy()[:, 0]
        marks = np.broadcast_to([0.0, 1.0], (self.steps, 2))
        film = np.concatenate([still, goal[:, None], x], 1), np.concatenate([volts, marks], 1)
        return film[0][::EVERY], film[1][::EVERY]


def numbers(*shape: int) -> ds.Field:
    """Make a field that has a gradient."""
    return ds.field(float, shape=shape, needs_grad=True)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train the network; return the loss on paths that it was not trained on, before and after."""
    parser = ds.tools.ArgumentParser(__doc__, steps=512, iterations=2000, out="out/electric")
    parser.add_argument("--batch", type=int, default=16, help="paths in an iteration")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    charges = Charges(args.batch, args.steps, args.seed)
    unseen = charges.corner.to_numpy()
    films, tests = {}, []

    def test(name: str) -> None:
        charges.corner.from_numpy(unseen)
        charges.loss[None] = 0
        films[name] = charges.film()
        tests.append(charges.loss[None])

    test("before")
    adam = ds.optim.Adam(
        [charges.w1, charges.b1, charges.w2, charges.b2],
        lr=lambda i: 3e-3 * (1 - i / args.iterations),
        clip_norm=1.0,
    )
    run = ds.optim.train(
        charges.program, adam, args.iterations, out=args.out, replay=True, state=[charges.corner],
        generators=[charges.random], callback=lambda _: charges.choose_goals(),
    )  # fmt: skip
    test("after")
    print(f"paths of the test: loss {tests[0]:.4f} before, {tests[1]:.4f} m² s after")
    show_results(args.out, films, run.losses)
    if args.gui:
        play(*films["after"])
    return tests


def show_results(out: Path, films: dict[str, tuple], losses: list[float]) -> None:
    """Write the loss, and films of one path: the goal is the small point, the charge the red one."""
    look = {"cmap": "coolwarm", "vmin": -1, "vmax": 1, "bounds": (0, 1)}
    look["radius"] = np.array([0.04] * COUNT + [0.012, 0.025])
    ds.tools.plot_loss(losses, out / "loss.png", label="loss [m² s]")
    player = ds.tools.Player("A network pulls a charge along with a goal")
    for name, (x, voltage) in films.items():
        ds.tools.animate(x, EVERY * DT, out / f"{name}.gif", colors=voltage, **look)
        player.add_points(x, EVERY * DT, label=name, colors=voltage, **look)
    player.add_loss(losses, label="loss [m² s]")
    player.write(out / "electric.html")


def play(film: np.ndarray, voltage: np.ndarray) -> None:
    """Play the path in a window."""
    gui = ds.GUI("Electric", (512, 512), background_color=0x3C733F)
    for x, volts in zip(film, voltage, strict=True):
        if not gui.running:
            break
        gui.circles(x[:COUNT], radius=15 * (1 + volts[:COUNT]), color=0xCCAA44)
        gui.circle(x[-2], color=0x3344CC, radius=6)
        gui.circle(x[-1], color=0xF20530, radius=12)
        gui.show()


if __name__ == "__main__":
    main()
