"""A soft robot on four legs learns to walk, in 3-D, in a bounded memory.

    python examples/mpm_walker_3d.py --memory 200

The body and each leg are blocks of elastic particles; each leg is four muscles, driven by an open-loop
controller as in `mpm_walker.py`. All states of a walk and their gradients would take 3 GB. `ds.ad.checkpoint`
keeps as many as fit into the memory that it is given, and runs the steps between them again on the way back.
Robot, material and length of the walk are those of [1].

What one sees: at first the robot lies still. After 20 iterations it crawls: in a second its mean place comes
from 0.25 m to 0.51 m. An iteration runs its 512 steps 1,018 times in all, in 12 s of processor time on one
thread, and the states that are kept take 195 MB.

[1] Y. Hu et al., "DiffTaichi: Differentiable programming for physical simulation", ICLR 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import diffsim as ds

GRID = 64  # cells per side of the unit cube
DX, INV = 1 / GRID, float(GRID)  # [m], [1/m]
DT = 2e-3  # [s]
GRAVITY = 10.0  # [m/s²]
ELASTICITY = 10.0  # both of Lamé's constants; particles have volume and mass 1 [N/m²]
FRICTION = 1.5  # Coulomb's coefficient of the ground
WALL = 3  # cells at the sides in which nothing moves outwards
WAVES = 4  # phases, a quarter turn apart
OMEGA = 40.0  # angular frequency of the waves [rad/s]
STRENGTH = 5.0  # largest stress of a muscle [N/m²]
PER_CELL = 3  # particles along the side of a cell
EVERY, SHOWN = 8, 4000  # steps between two pictures of a film, particles in it at most


def robot(block: float) -> list[tuple[float, ...]]:
    """A trunk between two pairs of legs of four muscles: corner, size [m] and muscle, or -1 of each box.

    Args:
        block: width of a leg [m].
    """
    high, half, bottom, back = 0.7 * block, block / 2, 0.05, 0.3
    boxes = [(0.1 + i * block, bottom, back + block, block, high, block, -1) for i in range(3)]
    for leg, part in np.ndindex(4, 4):
        x = 0.1 + leg // 2 * 2 * block + part // 2 * half
        y, z = bottom + part % 2 * high / 2, back + leg % 2 * 2 * block
        boxes.append((x, y, z, half, high / 2, block, 4 * leg + part))
    return boxes


def filled(boxes: list[tuple[float, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Particles on a lattice in boxes: places, (n, 3) [m], and muscles, (n,)."""
    x, muscle = [], []
    for *box, owner in boxes:
        corner, size = np.reshape(box, (2, 3))
        counts = (size * INV * PER_CELL).astype(int)
        at = np.indices(counts).reshape(3, -1).T + 0.5
        x.append(corner + at * size / counts)
        muscle.append(np.full(len(at), owner, np.int32))
    return np.concatenate(x), np.concatenate(muscle)


@ds.data_oriented
class Walker:
    """The robot and its controller. Every step overwrites the state.

    Args:
        steps: how many time steps a walk has.
        memory: for the states that are kept on a tape [bytes].
        block: width of a leg [m].
    """

    def __init__(self, steps: int, memory: int, block: float = 0.1) -> None:
        places, muscle = filled(robot(block))
        self.steps, self.memory = steps, memory
        self.n, self.muscles = n, m = len(muscle), int(muscle.max()) + 1
        self.x, self.v = field(n, size=3), field(n, size=3)  # [m], [m/s]
        self.C, self.F = field(n, size=(3, 3)), field(n, size=(3, 3))  # grad v [1/s], deformation
        self.momentum, self.mass = field(GRID, GRID, GRID, size=3), field(GRID, GRID, GRID)
        self.u = field(GRID, GRID, GRID, size=3)  # velocity of the nodes [m/s]
        self.actuation = field(steps, m)  # -1 to 1
        self.weights, self.bias = field(m, WAVES), field(m)
        self.loss = field()  # the mean place along the ground, negated [m]
        self.muscle, self.start = ds.field(ds.i32, shape=n), field(n, size=3)
        self.muscle.from_numpy(muscle)
        self.start.from_numpy(places)

    @ds.kernel
    def begin(self):
        for p in range(self.n):
            self.x[p], self.v[p] = self.start[p], ds.Vector([0.0, 0.0, 0.0])
            self.C[p], self.F[p] = ds.Matrix.zero(float, 3, 3), ds.Matrix.identity(float, 3)

    @ds.kernel
    def actuate(self):
        for t, m in self.actuation:
            drive = self.bias[m]
            for w in ds.static(range(WAVES)):
                drive += self.weights[m, w] * ds.sin(OMEGA * DT * t + 2 * math.pi / WAVES * w)
            self.actuation[t, m] = ds.tanh(drive)

    @ds.kernel
    def clear(self):
        for i, j, k in self.mass:
            self.momentum[i, j, k] = ds.Vector([0.0, 0.0, 0.0])
            self.mass[i, j, k] = 0.0

    @ds.func
    def near(self, p):
        """The first of the 27 nodes that a particle touches, its place in it, and quadratic weights."""
        base = ds.cast(self.x[p] * INV - 0.5, ds.i32)
        f = self.x[p] * INV - base
        return base, f, [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]

    @ds.kernel
    def to_grid(self, t: ds.i32):
        """Neo-Hookean elasticity, and what a muscle adds along its own sideways direction."""
        for p in range(self.n):
            base, f, w = self.near(p)
            F = self.F[p] + DT * self.C[p] @ self.F[p]
            pull = 0.0
            if self.muscle[p] >= 0:
                pull = STRENGTH * self.actuation[t, self.muscle[p]]
            side = F @ ds.Vector([0.0, 0.0, 1.0])
            stress = ELASTICITY * F @ F.transpose() + pull * side.outer_product(side)
            stress += ELASTICITY * (ds.log(F.determinant()) - 1.0) * ds.Matrix.identity(float, 3)
            affine = self.C[p] - 4.0 * DT * INV * INV * stress
            # Momentum per weight is linear in the node's place, so it is summed up axis by axis.
            first, slope = self.v[p] - DX * affine @ f, DX * affine
            for i, j in ds.static(ds.ndrange(3, 3)):
                weight, edge = w[i][0] * w[j][1], first + i * slope[:, 0] + j * slope[:, 1]
                for k in ds.static(range(3)):
                    node = base + ds.Vector([i, j, k])
                    self.momentum[node] += weight * w[k][2] * (edge + k * slope[:, 2])
                    self.mass[node] += weight * w[k][2]
            self.F[p] = F

    @ds.kernel
    def on_grid(self):
        """Momentum to velocity; gravity, walls that hold what meets them, ground with friction."""
        for i, j, k in self.mass:
            u = self.momentum[i, j, k] / (self.mass[i, j, k] + 1e-10)
            u[1] -= DT * GRAVITY
            if j < WALL and u[1] < 0.0:
                slip = ds.Vector([u[0], u[2]]).norm(1e-20)
                u = ds.max(1.0 + FRICTION * u[1] / slip, 0.0) * ds.Vector([u[0], 0.0, u[2]])
            for axis, place in ds.static(enumerate((i, j, k))):
                inwards = place < WALL and u[axis] < 0.0
                if inwards or (place > GRID - WALL and u[axis] > 0.0):
                    u = ds.Vector([0.0, 0.0, 0.0])
            self.u[i, j, k] = u

    @ds.kernel
    def to_particles(self):
        for p in range(self.n):
            base, f, w = self.near(p)
            v, B = ds.Vector([0.0, 0.0, 0.0]), ds.Matrix.zero(float, 3, 3)
            for i, j in ds.static(ds.ndrange(3, 3)):
                edge = base + ds.Vector([i, j, 0])
                u = [w[k][2] * self.u[edge + ds.Vector([0, 0, k])] for k in ds.static(range(3))]
                weight, total = w[i][0] * w[j][1], u[0] + u[1] + u[2]
                v += weight * total
                B[:, 0] += i * weight * total
                B[:, 1] += j * weight * total
                B[:, 2] += weight * (u[1] + 2.0 * u[2])
            C = 4.0 * INV * (B - v.outer_product(f))
            self.x[p], self.v[p], self.C[p] = self.x[p] + DT * v, v, C

    @ds.kernel
    def measure(self):
        for p in range(self.n):
            self.loss[None] -= self.x[p][0] / self.n

    def step(self, t: int) -> None:
        self.clear()
        self.to_grid(t)
        self.on_grid()
        self.to_particles()

    def walk(self) -> ds.Field:
        """Walk once."""
        self.begin()
        self.actuate()
        state = [self.x, self.v, self.C, self.F]
        self.stats = ds.ad.checkpoint(self.step, self.steps, state, memory=self.memory)
        self.measure()
        return self.loss

    def film(self) -> tuple[np.ndarray, np.ndarray]:
        """Walk; return places of some particles, (T, n, 3) [m], and how they are actuated, (T, n)."""
        self.begin()
        self.actuate()
        some = np.random.default_rng(0).permutation(self.n)[:SHOWN]
        x, muscle, actuation = [], self.muscle.to_numpy()[some], self.actuation.to_numpy()
        for t in range(self.steps):
            self.step(t)
            if t % EVERY == 0:
                x.append(self.x.to_numpy()[some])
        return np.stack(x), np.where(muscle < 0, 0.0, actuation[::EVERY, muscle])


def field(*shape: int, size: int | tuple[int, int] = 1) -> ds.Field:
    """Make a field of numbers, vectors or matrices that has a gradient."""
    options = {"shape": shape, "needs_grad": True}
    if isinstance(size, tuple):
        return ds.Matrix.field(*size, float, **options)
    return ds.field(float, **options) if size == 1 else ds.Vector.field(size, float, **options)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train the robot, and show it before and after."""
    parser = ds.tools.ArgumentParser(__doc__, steps=512, iterations=20, out="out/mpm_walker_3d")
    parser.add_argument("--memory", type=float, default=200.0, help="for states [MB] (default 200)")
    parser.add_argument("--block", type=float, default=0.1, help="width of a leg [m] (default 0.1)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    walker = Walker(args.steps, int(1e6 * args.memory), args.block)
    random = np.random.default_rng(args.seed)
    walker.weights.from_numpy(0.01 * random.standard_normal((walker.muscles, WAVES)))
    films = {"before": walker.film()}
    adam = ds.optim.Adam([walker.weights, walker.bias], lr=0.1)
    run = ds.optim.train(walker.walk, adam, args.iterations, out=args.out)
    films["after"] = walker.film()
    print(f"{walker.n} particles; {walker.stats}")

    ds.tools.plot_loss(run.losses, args.out / "loss.png", label="loss = −mean place [m]")
    look = {"bounds": ((0.05, 0.04, 0.25), (0.75, 0.2, 0.65)), "up": "y"}
    look |= {"cmap": "cool", "vmin": -1.0, "vmax": 1.0}
    player = ds.tools.Player("A soft robot on four legs learns to walk")
    for name, (x, actuation) in films.items():
        player.add_points(x, EVERY * DT, label=name, colors=actuation, **look)
        ds.tools.animate(x, EVERY * DT, args.out / f"{name}.gif", colors=actuation, **look)
    player.add_loss(run.losses, label="loss = −mean place [m]")
    player.write(args.out / "mpm_walker_3d.html")
    if args.gui:
        show(films["after"][0])
    return run.losses


def show(film: np.ndarray) -> None:
    """Play the walk in a window, seen from the side."""
    gui = ds.GUI("MPM walker", 800, background_color=0xFFFFFF)
    for x in film:
        if not gui.running:
            break
        gui.circles(x[:, :2], radius=2, color=0x333366)
        gui.show()


if __name__ == "__main__":
    main()
