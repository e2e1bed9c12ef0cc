"""A robot of rigid bodies learns to walk: springs as muscles, contacts with friction, times of impact.

    python examples/rigid_body.py --gui

The robot hangs together by springs and one joint. Its muscles, springs whose rest lengths a small neural
network sets at every step, carry the trunk on three feet. A corner that would enter the ground within a step
meets it at its time of impact; impulses stop it, and friction holds it as far as Coulomb's law allows.
Gradient descent through the whole walk finds the weights of the network. Robot, network and goal are those
of [1].

What one sees: at first the robot trembles where it stands. After 100 iterations it shuffles 0.29 m in
two seconds (distance from the goal 0.590 to 0.303 m; 0.21 to 0.28 m with --seed 1 to 3), at 0.01 s an
iteration on one core. Each body has one time of impact: with one for each corner, as in [1], gradients
through many contacts grew beyond 1e9.

[1] Y. Hu et al., "DiffTaichi: Differentiable programming for physical simulation", ICLR 2020.
[2] E. Catto, "Iterative dynamics with temporal coherence", Game Developers Conference 2005: sequential
    impulses, the projected Gauss-Seidel method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import diffsim as ds

DT = 1e-3  # [s]
GRAVITY = 9.8  # [m/s²]
GROUND = 0.1  # height of the ground [m]
FRICTION = 1.0  # Coulomb's coefficient
DRAG = math.exp(-10.0 * DT)  # share of the speed that a step leaves
PUSH_OUT = 0.1  # share of what has sunk in, or come apart in a joint, that a step takes back
HIDDEN, WAVES = 32, 10  # neurons, phases of the beat
OMEGA = 30.0  # angular frequency of the beat [rad/s]
SENSE = 0.05  # weight of what the network knows of the bodies [1/m], [s/m], [1/rad], [s/rad]
STRETCH = 0.05  # a muscle changes its rest length by at most this share
ROUNDS = 2  # of impulses at the corners of a body
GOAL = (0.9, 0.15)  # of the trunk [m]
EVERY = 16  # steps between two pictures of a film

# centre, half of width and height [m]; the density is 1 kg/m²
BODIES = [
    ((0.3, 0.25), (0.15, 0.03)),
    ((0.2, 0.15), (0.03, 0.02)),
    ((0.3, 0.15), (0.03, 0.02)),
    ((0.4, 0.15), (0.03, 0.02)),
    ((0.4, 0.3), (0.005, 0.03)),
]
# two bodies, where the spring holds them, from their centres [m], rest length [m] (0: a joint), [N/m]
SPRINGS = [
    (0, foot, (at, 0.0), (0.0, 0.0), 0.12, 15.0)
    for foot, at in ((1, -0.1), (1, -0.03), (2, -0.03), (2, 0.03), (3, 0.03), (3, 0.1))
] + [(0, 4, (0.1, 0.0), (0.0, -0.05), 0.0, 0.0)]


@ds.func
def cross(a, b):
    """The turning moment of b that acts at a."""
    return a[0] * b[1] - a[1] * b[0]


@ds.func
def turned(angle, r):
    """A vector of a body as it lies in the world."""
    c, s = ds.cos(angle), ds.sin(angle)
    return ds.Vector([c * r[0] - s * r[1], s * r[0] + c * r[1]])


@ds.func
def mobility(inverse_mass, inverse_inertia, r):
    """Change of a point's velocity by a unit impulse there, as a matrix [1/kg]."""
    up = ds.Vector([-r[1], r[0]])
    spin = inverse_inertia * up.outer_product(up)
    return ds.Matrix([[inverse_mass, 0.0], [0.0, inverse_mass]]) + spin


@ds.data_oriented
class Robot:
    """The robot and its network, for a number of time steps. Poses and velocities are (x, y, angle).

    Args:
        steps: how many time steps a walk has.
        bodies, springs: as `BODIES` and `SPRINGS`.
    """

    def __init__(self, steps: int, bodies: list = BODIES, springs: list = SPRINGS) -> None:
        n, m = len(bodies), len(springs)
        self.steps, self.n, self.m = steps, n, m
        self.pose, self.motion = field(steps + 1, n, size=3), field(steps + 1, n, size=3)
        self.kick = field(steps, n, size=3)  # impulses of the springs [N s], [N m s]
        self.hidden, self.muscle = field(steps, HIDDEN), field(steps, m)  # -1 to 1
        self.w_wave, self.w_muscle = field(HIDDEN, WAVES), field(m, HIDDEN)
        self.w_pose, self.w_motion = field(HIDDEN, n, size=3), field(HIDDEN, n, size=3)
        self.b_hidden, self.b_muscle = field(HIDDEN), field(m)
        self.weights = [self.w_wave, self.w_pose, self.w_motion, self.w_muscle]
        self.weights += [self.b_hidden, self.b_muscle]
        self.loss = field()  # distance from the goal [m]
        size = np.array([half for _, half in bodies])
        mass = 4 * size.prod(1)
        self.half, self.inverse_mass = constant(size), constant(1 / mass)  # [m], [1/kg]
        self.inverse_inertia = constant(3 / (mass * (size**2).sum(1)))  # 1 / inertia [1/(kg m²)]
        self.start = constant(np.array([(*centre, 0.0) for centre, _ in bodies]))
        a, b, *rest = (np.array(column) for column in zip(*springs, strict=True))
        self.ends = ds.Vector.field(2, ds.i32, shape=m)
        self.ends.from_numpy(np.stack([a, b], 1).astype(np.int32))
        self.hold_a, self.hold_b, self.rest, self.stiffness = map(constant, rest)

    @ds.kernel
    def begin(self):
        for i in range(self.n):
            self.pose[0, i], self.motion[0, i] = self.start[i], ds.Vector([0.0, 0.0, 0.0])
        for t, i in self.kick:
            self.kick[t, i] = ds.Vector([0.0, 0.0, 0.0])

    @ds.kernel
    def sense(self, t: ds.i32):
        """First layer: from waves, and from poses, seen from the trunk, and velocities."""
        for h in range(HIDDEN):
            drive = self.b_hidden[h]
            for w in ds.static(range(WAVES)):
                drive += self.w_wave[h, w] * ds.sin(OMEGA * DT * t + 2 * math.pi / WAVES * w)
            trunk = ds.Vector([self.pose[t, 0][0], self.pose[t, 0][1], 0.0])
            for i in ds.static(range(self.n)):
                drive += SENSE * self.w_pose[h, i].dot(self.pose[t, i] - trunk)
                drive += SENSE * self.w_motion[h, i].dot(self.motion[t, i])
            self.hidden[t, h] = ds.tanh(drive)

    @ds.kernel
    def contract(self, t: ds.i32):
        for s in range(self.m):
            drive = self.b_muscle[s]
            for h in ds.static(range(HIDDEN)):
                drive += self.w_muscle[s, h] * self.hidden[t, h]
            self.muscle[t, s] = ds.tanh(drive)

    @ds.func
    def held(self, t, i, hold):
        """Where a body is held: from its centre, place, velocity."""
        pose, motion = self.pose[t, i], self.motion[t, i]
        r = turned(pose[2], hold)
        place = ds.Vector([pose[0] + r[0], pose[1] + r[1]])
        return r, place, ds.Vector([motion[0] - motion[2] * r[1], motion[1] + motion[2] * r[0]])

    @ds.kernel
    def pull(self, t: ds.i32):
        """A spring pulls with its force; a joint stops the ends' relative motion and draws them together."""
        for s in range(self.m):
            a, b = self.ends[s][0], self.ends[s][1]
            r_a, x_a, v_a = self.held(t, a, self.hold_a[s])
            r_b, x_b, v_b = self.held(t, b, self.hold_b[s])
            apart = x_b - x_a
            length = apart.norm(1e-9)
            impulse = ds.Vector([0.0, 0.0])
            if self.rest[s] > 0.0:
                stretch = length - self.rest[s] * (1.0 + STRETCH * self.muscle[t, s])
                impulse = DT * self.stiffness[s] * stretch / length * apart
            else:
                yields = mobility(self.inverse_mass[a], self.inverse_inertia[a], r_a)
                yields += mobility(self.inverse_mass[b], self.inverse_inertia[b], r_b)
                impulse = yields.inverse() @ (v_b - v_a + PUSH_OUT / DT * apart)
            self.kick[t, a] += ds.Vector([impulse[0], impulse[1], cross(r_a, impulse)])
            self.kick[t, b] -= ds.Vector([impulse[0], impulse[1], cross(r_b, impulse)])

    @ds.kernel
    def move(self, t: ds.i32):
        """Semi-implicit Euler; then impulses of the ground, corner after corner, twice round [2]."""
        for i in range(self.n):
            pose, by_mass, by_inertia = (
                self.pose[t, i],
                self.inverse_mass[i],
                self.inverse_inertia[i],
            )
            inverse = ds.Vector([by_mass, by_mass, by_inertia])
            free = DRAG * self.motion[t, i] + inverse * self.kick[t, i]
            free[1] -= DT * GRAVITY
            now, impact = free, DT  # velocity, time of impact [s]
            push, hold = ds.Vector([0.0] * 4), ds.Vector([0.0] * 4)  # impulses [N s]
            for k in ds.static([0, 1, 2, 3] * ROUNDS):
                r = turned(pose[2], ds.Vector([k % 2 * 2 - 1, k // 2 * 2 - 1]) * self.half[i])
                height, fall = pose[1] + r[1] - GROUND, free[1] + free[2] * r[0]
                if height + DT * fall < 0.0:
                    impact = ds.min(impact, ds.select(height > 0.0, -height / fall, 0.0))
                    rise = ds.max(-PUSH_OUT / DT * height, 0.0) - now[1] - now[2] * r[0]
                    more = ds.max(rise / (by_mass + by_inertia * r[0] ** 2), -push[k])
                    push[k] += more
                    drag = hold[k] - (now[0] - now[2] * r[1]) / (by_mass + by_inertia * r[1] ** 2)
                    drag = ds.max(ds.min(drag, FRICTION * push[k]), -FRICTION * push[k])
                    impulse = ds.Vector([drag - hold[k], more])
                    hold[k] = drag
                    now += inverse * ds.Vector([impulse[0], impulse[1], cross(r, impulse)])
            self.motion[t + 1, i] = now
            self.pose[t + 1, i] = pose + impact * free + (DT - impact) * now

    @ds.kernel
    def measure(self):
        away = self.pose[self.steps, 0] - ds.Vector([GOAL[0], GOAL[1], 0.0])
        self.loss[None] = ds.Vector([away[0], away[1]]).norm()

    def walk(self) -> ds.Field:
        """Walk once."""
        self.begin()
        for t in range(self.steps):
            self.sense(t)
            self.contract(t)
            self.pull(t)
            self.move(t)
        self.measure()
        return self.loss

    def film(self) -> tuple[np.ndarray, np.ndarray]:
        """Walk; return corners of bodies and ends of springs, (T, 4 n + 2 m, 2) [m], and the muscles."""
        self.walk()
        pose = self.pose.to_numpy()[:-1:EVERY]
        signs = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
        corners = (self.half.to_numpy()[:, None] * signs).reshape(-1, 2)
        r = np.concatenate([corners, self.hold_a.to_numpy(), self.hold_b.to_numpy()])
        body = np.concatenate([np.repeat(np.arange(self.n), 4), *self.ends.to_numpy().T])
        c, s = np.cos(pose[:, body, 2]), np.sin(pose[:, body, 2])
        turned = np.stack([c * r[:, 0] - s * r[:, 1], s * r[:, 0] + c * r[:, 1]], -1)
        return pose[:, body, :2] + turned, self.muscle.to_numpy()[::EVERY]

    def lines(self) -> np.ndarray:
        """Return which points of a film are joined: sides of the bodies, then springs."""
        first, m = 4 * np.arange(self.n), self.m
        sides = [np.stack([first + k, first + (k + 1) % 4], 1) for k in range(4)]
        springs = 4 * self.n + np.stack([np.arange(m), m + np.arange(m)], 1)
        return np.concatenate([*sides, springs])


def field(*shape: int, size: int = 1) -> ds.Field:
    """Make a field of numbers or vectors that has a gradient."""
    options = {"shape": shape, "needs_grad": True}
    return ds.field(float, **options) if size == 1 else ds.Vector.field(size, float, **options)


def constant(values: np.ndarray) -> ds.Field:
    """Make a field of numbers or vectors without a gradient."""
    shape = {"shape": len(values)}
    made = (
        ds.field(float, **shape)
        if values.ndim == 1
        else ds.Vector.field(values.shape[1], float, **shape)
    )
    made.from_numpy(values)
    return made


def set_weights(robot: Robot, seed: int) -> None:
    """Draw the first weights: the more inputs and outputs a layer has, the smaller; biases are 0."""
    random = np.random.default_rng(seed)
    first, second = HIDDEN + WAVES + 6 * robot.n, HIDDEN + robot.m
    for weights, size in zip(
        robot.weights, (2 * first, 2 * first, 2 * first, second / 2), strict=False
    ):
        shape = weights.to_numpy().shape
        weights.from_numpy(random.standard_normal(shape) / size**0.5)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train the robot, and show it before and after."""
    parser = ds.tools.ArgumentParser(__doc__, steps=2048, iterations=100, out="out/rigid_body")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    robot = Robot(args.steps)
    set_weights(robot, args.seed)
    films = {"before": robot.film()}
    adam = ds.optim.Adam(robot.weights, lr=0.02)
    run = ds.optim.train(robot.walk, adam, args.iterations, out=args.out, patience=10, replay=True)
    films["after"] = robot.film()

    ds.tools.plot_loss(run.losses, args.out / "loss.png", label="distance from the goal [m]")
    look = {"bounds": ((0.1, GROUND - 0.005), (1.0, 0.4)), "lines": robot.lines(), "radius": 0.003}
    look |= {"cmap": "cool", "vmin": -1.0, "vmax": 1.0}
    player = ds.tools.Player("A robot of rigid bodies learns to walk")
    for name, (x, muscle) in films.items():
        shade = np.concatenate([np.zeros((len(x), 4 * robot.n)), muscle], 1)
        player.add_points(x, EVERY * DT, label=name, line_colors=shade, **look)
        ds.tools.animate(x, EVERY * DT, args.out / f"{name}.gif", line_colors=shade, **look)
    player.add_loss(run.losses, label="distance from the goal [m]")
    player.write(args.out / "rigid_body.html")
    if args.gui:
        show(films["after"][0], robot.lines())
    return run.losses


def show(film: np.ndarray, lines: np.ndarray) -> None:
    """Play the walk in a window."""
    gui = ds.GUI("Rigid bodies", 800, background_color=0xFFFFFF)
    for x in film:
        if not gui.running:
            break
        gui.line((0.0, GROUND), (1.0, GROUND), radius=2, color=0x8A7F70)
        gui.lines(x[lines[:, 0]], x[lines[:, 1]], radius=2, color=0x333366)
        gui.show()


if __name__ == "__main__":
    main()
