"""A soft robot of elastic particles learns to walk to the right, in 2-D.

    python examples/mpm_walker.py --gui

The body is an elastic block on two legs. Each leg is two strips that can stretch upwards and pull together; a
strip's actuation is tanh of a sum of waves, the same in every walk: an open-loop controller. Gradient descent
finds the weights of the waves. The material is simulated by moving-least-squares particles [1], as in the
robot of [2]: sizes, material and training are those.

What one sees: at first the robot stands still. After 60 iterations it gallops: in a second its mean place
comes from 0.25 m to 0.53 m (with the plain gradient descent of [2]: to 0.39 m in 100 iterations), at 0.7 s an
iteration on one core.

[1] Y. Hu et al., "A moving least squares material point method with displacement discontinuity and two-way
    rigid body coupling", ACM Transactions on Graphics 37(4), 2018.
[2] Y. Hu et al., "DiffTaichi: Differentiable programming for physical simulation", ICLR 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import diffsim as ds

GRID = 128  # cells per side of the unit square
DX, INV = 1 / GRID, float(GRID)  # [m], [1/m]
DT = 1e-3  # [s]
GRAVITY = 3.8  # [m/s²]
ELASTICITY = 10.0  # both of Lamé's constants; particles have volume and mass 1 [N/m]
FRICTION = 0.5  # Coulomb's coefficient of the ground
WALL = 3  # cells at the sides in which nothing moves outwards
WAVES = 4  # phases, a quarter turn apart
OMEGA = 20.0  # angular frequency of the waves [rad/s]
STRENGTH = 4.0  # largest stress of a muscle [N/m]
EVERY = 8  # steps between two pictures of a film

# left, bottom, width, height [m], and the number of the muscle, or -1
ROBOT = [(0.10, 0.13, 0.30, 0.10, -1)] + [
    (0.10 + left, 0.03, 0.05, 0.10, muscle) for muscle, left in enumerate((0.0, 0.05, 0.20, 0.25))
]


def filled(boxes: list, per_cell: int) -> tuple[np.ndarray, np.ndarray]:
    """Particles on a lattice in boxes: places, (n, 2) [m], and muscles, (n,)."""
    x, muscle = [], []
    for left, bottom, width, height, owner in boxes:
        columns, rows = int(width * INV) * per_cell, int(height * INV) * per_cell
        i, j = np.mgrid[:columns, :rows].reshape(2, -1) + 0.5
        x.append(np.stack([left + i / columns * width, bottom + j / rows * height], 1))
        muscle.append(np.full(len(i), owner, np.int32))
    return np.concatenate(x), np.concatenate(muscle)


@ds.data_oriented
class Walker:
    """The robot and its controller. Every step overwrites the state; tapes save what they need of it.

    Args:
        steps: how many time steps a walk has.
        boxes: what the robot is made of.
        per_cell: particles along the side of a cell.
    """

    def __init__(self, steps: int, boxes: list = ROBOT, per_cell: int = 2) -> None:
        places, muscle = filled(boxes, per_cell)
        self.steps, self.n, self.muscles = steps, len(muscle), int(muscle.max()) + 1
        n, m = self.n, self.muscles
        self.x, self.v = field(n, size=2), field(n, size=2)  # [m], [m/s]
        self.C, self.F = field(n, size=(2, 2)), field(n, size=(2, 2))  # grad v [1/s], deformation
        self.momentum, self.mass = field(GRID, GRID, size=2), field(GRID, GRID)
        self.u = field(GRID, GRID, size=2)  # velocity of the nodes [m/s]
        self.actuation = field(steps, m)  # -1 to 1
        self.weights, self.bias = field(m, WAVES), field(m)
        self.loss = field()  # the mean place along the ground, negated [m]
        self.muscle, self.start = ds.field(ds.i32, shape=n), field(n, size=2)
        self.muscle.from_numpy(muscle)
        self.start.from_numpy(places)

    @ds.kernel
    def begin(self):
        for p in range(self.n):
            self.x[p] = self.start[p]
            self.v[p] = ds.Vector([0.0, 0.0])
            self.C[p] = ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
            self.F[p] = ds.Matrix([[1.0, 0.0], [0.0, 1.0]])

    @ds.kernel
    def actuate(self):
        for t, m in self.actuation:
            drive = self.bias[m]
            for w in ds.static(range(WAVES)):
                drive += self.weights[m, w] * ds.sin(OMEGA * DT * t + 2 * math.pi / WAVES * w)
            self.actuation[t, m] = ds.tanh(drive)

    @ds.kernel
    def clear(self):
        for i, j in self.mass:
            self.momentum[i, j] = ds.Vector([0.0, 0.0])
            self.mass[i, j] = 0.0

    @ds.func
    def near(self, p):
        """The first of the 3 x 3 nodes that a particle touches, its place in it, and quadratic weights."""
        base = ds.cast(self.x[p] * INV - 0.5, ds.i32)
        f = self.x[p] * INV - base
        return base, f, [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]

    @ds.kernel
    def to_grid(self, t: ds.i32):
        """Fixed-corotated elasticity, and what a muscle adds along its own upward direction."""
        for p in range(self.n):
            base, f, w = self.near(p)
            F = self.F[p] + DT * self.C[p] @ self.F[p]
            J = F.determinant()
            R, _ = ds.polar_decompose(F)
            pull = 0.0
            if self.muscle[p] >= 0:
                pull = STRENGTH * self.actuation[t, self.muscle[p]]
            up = F @ ds.Vector([0.0, 1.0])
            stress = 2.0 * ELASTICITY * (F - R) @ F.transpose() + pull * up.outer_product(up)
            stress += ELASTICITY * J * (J - 1.0) * ds.Matrix([[1.0, 0.0], [0.0, 1.0]])
            affine = self.C[p] - 4.0 * DT * INV * INV * stress
            for i, j in ds.static(ds.ndrange(3, 3)):
                weight = w[i][0] * w[j][1]
                away = (ds.Vector([i, j]) - f) * DX
                self.momentum[base[0] + i, base[1] + j] += weight * (self.v[p] + affine @ away)
                self.mass[base[0] + i, base[1] + j] += weight
            self.F[p] = F

    @ds.kernel
    def on_grid(self):
        """Momentum to velocity; gravity, walls that hold what meets them, ground with friction."""
        for i, j in self.mass:
            u = self.momentum[i, j] / (self.mass[i, j] + 1e-10)
            u[1] -= DT * GRAVITY
            if (i < WALL and u[0] < 0.0) or (i > GRID - WALL and u[0] > 0.0):
                u = ds.Vector([0.0, 0.0])
            if j < WALL and u[1] < 0.0:
                slip = abs(u[0]) + FRICTION * u[1]
                u = ds.Vector([ds.sign(u[0]) * ds.max(slip, 0.0), 0.0])
            if j > GRID - WALL and u[1] > 0.0:
                u = ds.Vector([0.0, 0.0])
            self.u[i, j] = u

    @ds.kernel
    def to_particles(self):
        for p in range(self.n):
            base, f, w = self.near(p)
            v, C = ds.Vector([0.0, 0.0]), ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in ds.static(ds.ndrange(3, 3)):
                u = w[i][0] * w[j][1] * self.u[base[0] + i, base[1] + j]
                v += u
                C += 4.0 * INV * u.outer_product(ds.Vector([i, j]) - f)
            self.x[p], self.v[p], self.C[p] = self.x[p] + DT * v, v, C

    @ds.kernel
    def measure(self):
        for p in range(self.n):
            self.loss[None] -= self.x[p][0] / self.n

    def walk(self, watch: Callable[[int], None] | None = None) -> ds.Field:
        """Walk once. `watch(t)` is called after each step."""
        self.begin()
        self.actuate()
        for t in range(self.steps):
            self.clear()
            self.to_grid(t)
            self.on_grid()
            self.to_particles()
            if watch:
                watch(t)
        self.measure()
        return self.loss

    def film(self) -> tuple[np.ndarray, np.ndarray]:
        """Walk; return places of the particles, (T, n, 2) [m], and how they are actuated, (T, n)."""
        seen = range(0, self.steps, EVERY)
        x = []
        self.walk(lambda t: x.append(self.x.to_numpy()) if t in seen else None)
        muscle, actuation = self.muscle.to_numpy(), self.actuation.to_numpy()[seen]
        return np.stack(x), np.where(muscle < 0, 0.0, actuation[:, muscle])


def field(*shape: int, size: int | tuple[int, int] = 1) -> ds.Field:
    """Make a field of numbers, vectors or matrices that has a gradient."""
    options = {"shape": shape, "needs_grad": True}
    if isinstance(size, tuple):
        return ds.Matrix.field(*size, float, **options)
    return ds.field(float, **options) if size == 1 else ds.Vector.field(size, float, **options)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train the robot, and show it before and after."""
    parser = ds.tools.ArgumentParser(__doc__, steps=1024, iterations=60, out="out/mpm_walker")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch, rules="lifted")
    walker = Walker(args.steps)
    random = np.random.default_rng(args.seed)
    walker.weights.from_numpy(0.01 * random.standard_normal((walker.muscles, WAVES)))
    films = {"before": walker.film()}
    adam = ds.optim.Adam([walker.weights, walker.bias], lr=0.1)
    run = ds.optim.train(walker.walk, adam, args.iterations, out=args.out, replay=True)
    films["after"] = walker.film()

    ds.tools.plot_loss(run.losses, args.out / "loss.png", label="loss = −mean place [m]")
    look = {"bounds": ((0.0, 0.0), (1.0, 0.4)), "cmap": "cool", "vmin": -1.0, "vmax": 1.0}
    player = ds.tools.Player("A robot of elastic particles learns to walk")
    for name, (x, actuation) in films.items():
        player.add_points(x, EVERY * DT, label=name, colors=actuation, **look)
        ds.tools.animate(x, EVERY * DT, args.out / f"{name}.gif", colors=actuation, **look)
    player.add_loss(run.losses, label="loss = −mean place [m]")
    player.write(args.out / "mpm_walker.html")
    if args.gui:
        show(films["after"][0])
    return run.losses


def show(film: np.ndarray) -> None:
    """Play the walk in a window."""
    gui = ds.GUI("MPM walker", 800, background_color=0xFFFFFF)
    for x in film:
        if not gui.running:
            break
        gui.circles(x, radius=2, color=0x333366)
        gui.line((0.0, WALL * DX), (1.0, WALL * DX), color=0x8A7F70)
        gui.show()


if __name__ == "__main__":
    main()
