"""Teach a mass-spring robot to walk, by gradient descent through its own simulation.

    python examples/mass_spring.py [ROBOT.json] [--iterations N] [--steps N] [--out DIR] ...

The robot (`robot_file.py` describes the file; some are in `robots/`) is points joined by damped
springs. Some springs are muscles: a small neural network that runs inside the simulation scales
their rest lengths at every step. The gradient of the distance walked says how each weight of the
network changes it; Adam follows that gradient. The walk is recorded once, and replayed with other
weights: `ds.optim.train` proves from the text of `Simulation.walk` that this is right.

Read the six kernels of `Simulation` first, then `walk`, then `main`. Time is the first index of
every field, so that no kernel overwrites what the backward pass still needs. Ctrl-C ends the
training early, and the pictures are made all the same; --resume goes on where it ended.
"""

import math
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from drawing import Walk, draw_strip
from robot_file import Robot, RobotError, load_robot

import diffsim as ds

DT = 0.004  # time step [s]
GRAVITY = 9.81  # [m/s^2]
DRAG = 2.0  # how fast the air takes a free point's speed [1/s]
KEEP = math.exp(-DRAG * DT)  # share of the speed that a step leaves [1]
GROUND_STIFFNESS = 2000.0  # the ground's push at a point that sinks in [N/m]
GROUND_DAMPING = 0.2  # it pushes more against a falling, less against a rising point [s/m]
FRICTION = 0.8  # Coulomb's coefficient [1]
SLIP = 0.02  # below this speed friction fades, so that it has a derivative [m/s]

OMEGA = 2 * math.pi * 2.5  # angular frequency of the waves that give the beat [rad/s]
WAVES = 4  # of phases a quarter turn apart
HIDDEN = 32  # neurons
PER_METRE = 5.0  # makes positions about 1 for the network [1/m]
PER_SPEED = 0.1  # and velocities [s/m]

CLIP = 1.0  # a gradient longer than this is shortened to it
WARM_UP = 20  # iterations until Adam takes its full steps
EVERY = 8  # of films, a frame each so many steps
PATIENCE = 20  # after so many iterations without a new best, training goes back to the best


@ds.data_oriented
class Simulation:
    """A robot of n points and m springs, k of them muscles, on the ground for some time steps.

    Args:
        robot: from `load_robot`.
        steps: how many time steps a walk has.
    """

    def __init__(self, robot: Robot, steps: int) -> None:
        """Make all fields; those on the way from the weights to the loss have a gradient."""
        self.n, self.m, self.k = len(robot.points), len(robot.ends), robot.muscle_count
        self.mass, self.steps = robot.mass, steps
        n, k = self.n, self.k

        self.x = vectors(steps + 1, n)  # position [m]
        self.v = vectors(steps + 1, n)  # velocity [m/s]
        self.centre = vectors(steps + 1)  # mean position [m]
        self.force = vectors(steps, n)  # of the springs on each point [N]
        self.hidden = numbers(steps, HIDDEN)  # first layer's output
        self.activation = numbers(steps, k)  # of each muscle, -1 (short) to 1 (long)
        self.loss = numbers()  # [m]

        self.w_wave = numbers(HIDDEN, WAVES)
        self.w_position, self.w_velocity = vectors(HIDDEN, n), vectors(HIDDEN, n)
        self.w_muscle = numbers(k, HIDDEN)
        self.b_hidden, self.b_muscle = numbers(HIDDEN), numbers(k)
        names = ("w_wave", "w_position", "w_velocity", "w_muscle", "b_hidden", "b_muscle")
        self.weights = {name: getattr(self, name) for name in names}

        # The robot itself; `Robot` says what each is.
        self.ends = ds.Vector.field(2, ds.i32, shape=self.m)
        self.muscle = ds.field(ds.i32, shape=self.m)
        self.rest = ds.field(ds.f32, shape=self.m)
        self.stiffness = ds.field(ds.f32, shape=self.m)
        self.damping = ds.field(ds.f32, shape=self.m)
        self.amplitude = ds.field(ds.f32, shape=self.m)
        for name in ("ends", "muscle", "rest", "stiffness", "damping", "amplitude"):
            getattr(self, name).from_numpy(getattr(robot, name))
        self.start = ds.Vector.field(2, ds.f32, shape=n)
        self.start.from_numpy(robot.points.astype(np.float32))

    @ds.kernel
    def begin(self):
        """At rest, as the robot's file has it."""
        for i in range(self.n):
            self.x[0, i] = self.start[i]
            self.centre[0] += self.start[i] / self.n

    @ds.kernel
    def sense(self, t: ds.i32):
        """First layer: from waves, positions about the centre and velocities."""
        for h in range(HIDDEN):
            drive = self.b_hidden[h]
            for w in ds.static(range(WAVES)):
                drive += self.w_wave[h, w] * ds.sin(OMEGA * DT * t + 2 * math.pi / WAVES * w)
            for i in ds.static(range(self.n)):
                place = PER_METRE * (self.x[t, i] - self.centre[t])
                drive += self.w_position[h, i].dot(place)
                drive += self.w_velocity[h, i].dot(PER_SPEED * self.v[t, i])
            self.hidden[t, h] = ds.tanh(drive)

    @ds.kernel
    def contract(self, t: ds.i32):
        """Second layer: one output a muscle."""
        for j in range(self.k):
            drive = self.b_muscle[j]
            for h in ds.static(range(HIDDEN)):
                drive += self.w_muscle[j, h] * self.hidden[t, h]
            self.activation[t, j] = ds.tanh(drive)

    @ds.kernel
    def pull(self, t: ds.i32):
        """Each spring pulls its two points together, or pushes them apart."""
        for s in range(self.m):
            a, b = self.ends[s][0], self.ends[s][1]
            apart = self.x[t, b] - self.x[t, a]
            length = apart.norm(1e-9)
            along = apart / length
            scale = 1.0 + self.amplitude[s] * self.activation[t, self.muscle[s]]
            stretching = (self.v[t, b] - self.v[t, a]).dot(along)
            stretch = length - scale * self.rest[s]
            tension = self.stiffness[s] * stretch + self.damping[s] * stretching
            self.force[t, a] += tension * along
            self.force[t, b] += -tension * along

    @ds.kernel
    def move(self, t: ds.i32):
        """Semi-implicit Euler: the new velocity first, and with it the new position."""
        for i in range(self.n):
            free = KEEP * self.v[t, i] + DT / self.mass * self.force[t, i]
            fall = free[1] - DT * GRAVITY
            sunk = ds.max(0.0, -self.x[t, i][1])
            push = GROUND_STIFFNESS * sunk * ds.max(0.0, 1.0 - GROUND_DAMPING * fall)
            push *= DT / self.mass  # now the change of velocity [m/s]
            # Implicit in the slip: friction can stop a point, but never turn it round.
            slip = free[0] / (1.0 + FRICTION * push / ds.sqrt(free[0] * free[0] + SLIP * SLIP))
            new = ds.Vector([slip, fall + push])
            self.v[t + 1, i] = new
            self.x[t + 1, i] = self.x[t, i] + DT * new
            self.centre[t + 1] += (self.x[t, i] + DT * new) / self.n

    @ds.kernel
    def measure(self):
        """The loss is the distance that the centre walked, negated."""
        self.loss[None] = self.centre[0][0] - self.centre[self.steps][0]

    def walk(self) -> ds.Field:
        """Walk, and return the loss."""
        self.centre.fill(0)
        self.force.fill(0)
        self.begin()
        for t in range(self.steps):
            self.sense(t)
            self.contract(t)
            self.pull(t)
            self.move(t)
        self.measure()
        return self.loss

    def shown(self, title: str) -> Walk:
        """Walk with the present weights, and keep the motion for the pictures."""
        self.walk()
        return Walk(title, self.x.to_numpy(), self.activation.to_numpy(), DT)


def numbers(*shape: int) -> ds.Field:
    """Make a field of numbers that has a gradient."""
    return ds.field(ds.f32, shape=shape, needs_grad=True)


def vectors(*shape: int) -> ds.Field:
    """Make a field of 2-vectors that has a gradient."""
    return ds.Vector.field(2, ds.f32, shape=shape, needs_grad=True)


def set_random_weights(simulation: Simulation, seed: int) -> None:
    """Draw the first weights: the more inputs a layer has, the smaller; biases are 0."""
    random = np.random.default_rng(seed)
    for name, field in simulation.weights.items():
        inputs = HIDDEN if name == "w_muscle" else WAVES + 4 * simulation.n
        spread = 0 if name[0] == "b" else inputs**-0.5
        drawn = random.standard_normal(field.shape + field.element)
        field.from_numpy((spread * drawn).astype(np.float32))


def train(simulation: Simulation, options: Namespace) -> ds.optim.Run:
    """Descend by Adam.

    Walking is chaotic: one step too far, and the robot stumbles. So the first steps are short, and
    `PATIENCE` iterations after the best one, descent starts anew from there, half as fast.
    """
    rate = ds.optim.warm_up(options.learning_rate, WARM_UP)
    opt = ds.optim.Adam(simulation.weights, rate, clip_norm=CLIP)
    try:
        return ds.optim.train(
            simulation.walk,
            opt,
            options.iterations,
            out=options.out,
            resume=options.resume,
            patience=PATIENCE,
        )
    except ds.AutodiffError as error:
        advice = "the robot flew apart; make its springs softer or its points heavier"
        raise RobotError(f"{advice}\n{error}") from None


def read_arguments(argv: Sequence[str] | None) -> Namespace:
    """Read the command line."""
    walker = Path(__file__).parent / "robots" / "walker.json"
    parser = ds.tools.ArgumentParser(__doc__, steps=1024, iterations=300, out="out/mass_spring")
    add = parser.add_argument
    add("robot", nargs="?", type=Path, default=walker, help="robot file")
    add("--learning-rate", type=float, default=0.007, help="default %(default)s")
    add("--resume", action="store_true", help="go on from the checkpoint in the folder --out")
    add("--quick", action="store_true", help="10 iterations of 256 steps, to see that it works")
    options = parser.parse_args(argv)
    if options.quick:
        options.iterations, options.steps = 10, 256
    if not 0 < options.learning_rate < 1:
        parser.error("--learning-rate is between 0 and 1")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Train a robot, and say and draw what became of it."""
    options = read_arguments(argv)
    robot = load_robot(options.robot)
    ds.init(arch=options.arch)
    simulation = Simulation(robot, options.steps)
    print(f"{robot.name}: {simulation.n} points, {simulation.m} springs, {simulation.k} muscles")
    set_random_weights(simulation, options.seed)
    first = simulation.shown("before training")
    begin = time.perf_counter()
    run = train(simulation, options)
    seconds = time.perf_counter() - begin

    walks = [first, simulation.shown("after training")]
    before, after = (walk.distance(options.steps) for walk in walks)
    print(f"trained: {run.iteration} iterations in {seconds:.1f} s")
    print(f"loss: first {run.losses[0]:.4f} m, last {run.loss:.4f} m, best {-after:.4f} m")
    print(f"walked: before {before:.2f} m, after {after:.2f} m", end="")
    print(f" = {after / robot.length:.1f} body lengths in {options.steps * DT:.1f} s")

    ds.save(options.out / "weights.npz", **simulation.weights)
    label = "loss = −distance walked [m]"
    ds.tools.plot_loss(run.losses, options.out / "loss.png", label)
    player = ds.tools.Player(f"The {robot.name} learns to walk")
    every = np.concatenate([walk.x.reshape(-1, 2) for walk in walks])
    look = {
        "lines": robot.ends,
        "radius": 0.01,
        "bounds": (every.min(0) - 0.03, every.max(0) + 0.03),
    }
    look |= {"cmap": "coolwarm_r", "vmin": -1.0, "vmax": 1.0}  # red is short, blue is long
    for walk, name in zip(walks, ("before.gif", "walk.gif"), strict=True):
        x, muscles = walk.x[:-1:EVERY], walk.activation[::EVERY, robot.muscle]
        film = {"label": walk.title, "line_colors": muscles * (robot.amplitude > 0), **look}
        player.add_points(x, EVERY * DT, **film)
        ds.tools.animate(x, EVERY * DT, options.out / name, **film)
    player.add_loss(run.losses, label)
    player.write(options.out / "walk.html")
    draw_strip(options.out / "walk.png", robot, walks)
    for name in ("weights.npz", "loss.png", "before.gif", "walk.gif", "walk.html", "walk.png"):
        print(f"wrote {options.out / name}")


if __name__ == "__main__":
    try:
        main()
    except (RobotError, ds.ArgumentError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
