"""Teach a mass-spring robot to walk, by gradient descent through its own simulation.

    python examples/mass_spring.py [ROBOT.json] [--iterations N] [--steps N] [--out DIR] ...

The robot (`robot_file.py` describes the file; some are in `robots/`) is points joined by damped
springs. Some springs are muscles: a small neural network that runs inside the simulation scales
their rest lengths at every step. `ds.Tape` differentiates the whole walk, so its gradient says
how each weight of the network changes the distance walked; Adam follows that gradient. The walk
is recorded once: with other weights the tape is replayed.

Read the five kernels of `Simulation` first, then its `gradient`, then `train`. Time is the first
index of every field, so that no kernel overwrites what the backward pass still needs.
Ctrl-C ends the training early; the pictures are made all the same.
"""

import argparse
import math
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
from drawing import Walk, draw_animation, draw_loss, draw_strip, written_beside
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
PATIENCE = 20  # after so many iterations without a new best, training goes back to the best

Weights = dict[str, np.ndarray]


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
        self.start = np.zeros((steps + 1, n, 2), np.float32)
        self.start[0] = robot.points
        self.x.from_numpy(self.start)
        self.tape = ds.Tape(self.loss)
        self.recorded = False

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

    def prepare(self, values: Weights) -> None:
        """Set the weights and clear what a walk sums up; goes before the tape, never into it."""
        for name, field in self.weights.items():
            field.from_numpy(values[name].astype(np.float32))
        self.centre.from_numpy(self.start.mean(1))
        self.force.fill(0.0)

    def run(self) -> None:
        """Walk."""
        for t in range(self.steps):
            self.sense(t)
            self.contract(t)
            self.pull(t)
            self.move(t)
        self.measure()

    def gradient(self, values: Weights) -> tuple[float, Weights]:
        """Find the loss [m] with these weights, and its derivative by each."""
        self.prepare(values)
        if self.recorded:  # the same launches again, as native code
            self.tape.replay()
            self.tape.backward()
        else:
            with self.tape:
                self.run()
            self.recorded = True
        slopes = {name: field.grad.to_numpy() for name, field in self.weights.items()}
        return float(self.loss[None]), slopes

    def walk(self, values: Weights, title: str) -> Walk:
        """Walk without a tape, and keep the motion for the pictures."""
        self.prepare(values)
        self.run()
        return Walk(title, self.x.to_numpy(), self.activation.to_numpy(), DT)


def numbers(*shape: int) -> ds.Field:
    """Make a field of numbers that has a gradient."""
    return ds.field(ds.f32, shape=shape, needs_grad=True)


def vectors(*shape: int) -> ds.Field:
    """Make a field of 2-vectors that has a gradient."""
    return ds.Vector.field(2, ds.f32, shape=shape, needs_grad=True)


def random_weights(simulation: Simulation, seed: int) -> Weights:
    """Draw the first weights: the more inputs a layer has, the smaller; biases are 0."""
    random = np.random.default_rng(seed)
    shapes = {name: field.to_numpy().shape for name, field in simulation.weights.items()}
    inputs = dict.fromkeys(shapes, WAVES + 4 * simulation.n) | {"w_muscle": HIDDEN}
    spread = {name: 0 if name[0] == "b" else inputs[name] ** -0.5 for name in shapes}
    return {name: spread[name] * random.standard_normal(shapes[name]) for name in shapes}


def train(
    simulation: Simulation, weights: Weights, iterations: int, rate: float, stop: Event
) -> tuple[list[float], Weights]:
    """Descend by Adam (Kingma and Ba 2015).

    Walking is chaotic: one step too far, and the robot stumbles. So the first steps are short, and
    `PATIENCE` iterations after the best one, descent starts anew from there, half as fast.

    Args:
        simulation: gives the gradients.
        weights: where to start.
        iterations: how many at most.
        rate: how far Adam moves each weight at first, after `WARM_UP`.
        stop: ends the training when set.

    Returns:
        The loss of each iteration [m], and the best weights.
    """
    losses, lowest, best, since, age = [], math.inf, weights, 0, 0
    for done in range(1, iterations + 1):
        loss, slopes = simulation.gradient(weights)
        losses.append(loss)
        since += 1
        if loss < lowest:
            lowest, best, since = loss, weights, 0
        if lowest == math.inf:
            raise RobotError("the robot flew apart; make its springs softer or its points heavier")
        show_progress(done, iterations, loss, lowest)
        if stop.is_set():
            print(file=sys.stderr)
            break
        length = math.sqrt(sum(float((slope**2).sum()) for slope in slopes.values()))
        if since == PATIENCE or not math.isfinite(length):
            weights, rate, since, age = best, rate / 2, 0, 0
            continue
        if age == 0:
            mean, square = dict.fromkeys(weights, 0.0), dict.fromkeys(weights, 0.0)
        age += 1
        step = rate * min(1.0, age / WARM_UP)
        for name, slope in slopes.items():
            slope = slope * min(1.0, CLIP / (length + 1e-12))
            mean[name] = 0.9 * mean[name] + 0.1 * slope
            square[name] = 0.999 * square[name] + 0.001 * slope**2
            size = np.sqrt(square[name] / (1 - 0.999**age)) + 1e-8
            weights = weights | {name: weights[name] - step * mean[name] / (1 - 0.9**age) / size}
    return losses, best


def show_progress(done: int, total: int, loss: float, lowest: float) -> None:
    """Draw the progress bar: over the last one in a terminal, else on ten lines in all."""
    terminal = sys.stderr.isatty()
    if not terminal and done % max(1, total // 10) and done != total:
        return
    bar = "#" * (30 * done // total)
    text = f"[{bar:.<30}] {done}/{total}  loss {loss:+.3f} m  best {lowest:+.3f} m"
    line_end = "\n" if not terminal or done == total else ""
    print(f"\r{text}" if terminal else text, end=line_end, file=sys.stderr, flush=True)


@contextmanager
def stopped_by_ctrl_c() -> Iterator[Event]:
    """Give an event that the first Ctrl-C sets; the second one interrupts as ever."""
    stop = Event()

    def ask(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        print("\nstopping after this iteration (Ctrl-C again: at once)", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def load_weights(path: Path, fresh: Weights) -> Weights:
    """Read weights that an earlier run wrote; they have to fit this robot's `fresh` ones."""
    try:
        with np.load(path, allow_pickle=False) as file:
            weights = {name: file[name] for name in fresh}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RobotError(f"{path}: no weights of this example can be read: {error}") from None
    for name, values in weights.items():
        if values.shape != fresh[name].shape:
            raise RobotError(
                f"{path}: {name} has the shape {values.shape}, this robot needs "
                f"{fresh[name].shape}; the weights are of another robot"
            )
    return weights


def check_folder(folder: Path) -> None:
    """Make the folder of the results now: after the training it would be late to learn that it can not be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RobotError(
            f"{folder}: the results can not be written there ({error.strerror or error}); "
            "name another folder with --out"
        ) from None


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("robot", nargs="?", type=Path, default=here / "robots" / "walker.json", help="robot file")
    add("--iterations", type=int, default=300, help="of training (default 300)")
    add("--steps", type=int, default=1024, help=f"of {DT} s (default 1024)")
    add("--learning-rate", type=float, default=0.007, help="default 0.007")
    add("--seed", type=int, default=0, help="of the first weights (default 0)")
    add("--out", type=Path, default=Path("out/mass_spring"), help="folder for the results")
    add("--resume", type=Path, metavar="WEIGHTS.npz", help="train these weights further")
    add("--quick", action="store_true", help="10 iterations of 256 steps, to see that it works")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.iterations, arguments.steps = 10, 256
    if arguments.iterations < 1 or arguments.steps < 1 or not 0 < arguments.learning_rate < 1:
        parser.error("--iterations and --steps start at 1, --learning-rate is between 0 and 1")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Train a robot, and say and draw what became of it."""
    arguments = read_arguments(argv)
    robot = load_robot(arguments.robot)
    check_folder(arguments.out)
    ds.init(arch=ds.cpu)
    simulation = Simulation(robot, arguments.steps)
    first = random_weights(simulation, arguments.seed)
    if arguments.resume:
        first = load_weights(arguments.resume, first)
    print(f"{robot.name}: {simulation.n} points, {simulation.m} springs, {simulation.k} muscles")
    begin = time.perf_counter()
    with stopped_by_ctrl_c() as stop:
        losses, best = train(simulation, first, arguments.iterations, arguments.learning_rate, stop)
    seconds = time.perf_counter() - begin

    walks = [simulation.walk(first, "before training"), simulation.walk(best, "after training")]
    before, after = (walk.distance(arguments.steps) for walk in walks)
    print(f"trained: {len(losses)} iterations in {seconds:.1f} s")
    print(f"loss: first {losses[0]:.4f} m, last {losses[-1]:.4f} m, best {-after:.4f} m")
    print(f"walked: before {before:.2f} m, after {after:.2f} m", end="")
    print(f" = {after / robot.length:.1f} body lengths in {arguments.steps * DT:.1f} s")

    with written_beside(arguments.out / "weights.npz") as path:
        np.savez(path, **best)
    draw_loss(arguments.out / "loss.png", losses)
    draw_strip(arguments.out / "walk.png", robot, walks)
    draw_animation(arguments.out / "walk.gif", robot, walks)


if __name__ == "__main__":
    try:
        main()
    except RobotError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
