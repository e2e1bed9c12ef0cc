"""A soft robot learns to walk while liquid is poured over it: two materials on one grid, in 3-D.

    python examples/liquid_walker.py --memory 200

Elastic and liquid particles meet on the grid, so that neither has to know of the other. The robot's muscles
are driven as in `mpm_walker_3d.py`. Liquid resists only a change of its volume: its deformation is kept as a
multiple of the identity. Sizes, materials and the length of the walk are those of [1].

What one sees: the liquid splashes over the robot, spreads and flows away to the right. The robot stays behind
at first; after 15 iterations it follows by 5 cm (mean place after a second: 0.222 to 0.275 m). An iteration
takes 11 s of processor time on one thread.

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
LIQUID, DENSE = -2, 4.0  # marks liquid particles; their mass
POOL = (0.2, 0.2, 0.4, 0.2, 0.05, 0.2)  # corner and size of the liquid at the start [m]
PER_CELL = 3  # particles along the side of a cell
SHADE = -1.5  # of liquid in films, below all actuations
EVERY, SHOWN = 8, 4000  # steps between two pictures of a film, particles in it at most


def scene(block: float) -> list[tuple[float, ...]]:
    """Liquid over a trunk between two pairs of legs: corner, size [m] and muscle, -1 or LIQUID of each box.

    Args:
        block: width of a leg [m].
    """
    high, half, bottom, back = 0.7 * block, block / 2, 0.05, 0.3
    boxes = [(0.1 + i * block, bottom, back + block, block, high, block, -1) for i in range(3)]
    for leg, part in np.ndindex(4, 4):
        x = 0.1 + leg // 2 * 2 * block + part // 2 * half
        y, z = bottom + part % 2 * high / 2, back + leg % 2 * 2 * block
        boxes.append((x, y, z, half, high / 2, block, 4 * leg + part))
    return [*boxes, (*POOL, LIQUID)]


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

    def __init__(self, steps: int, memory: int, block: float = 0.08) -> None:
        places, muscle = filled(scene(block))
        self.steps, self.memory, self.solid = steps, memory, int((muscle != LIQUID).sum())
        self.n, self.muscles = n, m = len(muscle), int(muscle.max()) + 1
        self.x, self.v = field(n, size=3), field(n, size=3)  # [m], [m/s]
        self.C, self.F = field(n, size=(3, 3)), field(n, size=(3, 3))  # grad v [1/s], deformation
        self.momentum, self.mass = field(GRID, GRID, GRID, size=3), field(GRID, GRID, GRID)
        self.u = field(GRID, GRID, GRID, size=3)  # velocity of the nodes [m/s]
        self.actuation = field(steps, m)  # -1 to 1
        self.weights, self.bias = field(m, WAVES), field(m)
        self.loss = field()  # mean place of the robot along the ground, negated [m]
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

    @ds.func
    def elastic(self, F, pull):
        """Neo-Hookean stress, and what a muscle adds along its own sideways direction [N/m²]."""
        side = F @ ds.Vector([0.0, 0.0, 1.0])
        spread = ELASTICITY * (ds.log(F.determinant()) - 1.0) * ds.Matrix.identity(float, 3)
        return ELASTICITY * F @ F.transpose() + spread + pull * side.outer_product(side)

    @ds.kernel
    def to_grid(self, t: ds.i32):
        for p in range(self.n):
            base, f, w = self.near(p)
            F = self.F[p] + DT * self.C[p] @ self.F[p]
            stress, mass = ds.Matrix.zero(float, 3, 3), 1.0
            if self.muscle[p] == LIQUID:
                J, mass = F.determinant(), DENSE
                F = ds.pow(J, 1 / 3) * ds.Matrix.identity(float, 3)
                stress = ELASTICITY * (J - 1.0) * ds.Matrix.identity(float, 3)
            else:
                pull = 0.0
                if self.muscle[p] >= 0:
                    pull = STRENGTH * self.actuation[t, self.muscle[p]]
                stress = self.elastic(F, pull)
            affine = mass * self.C[p] - 4.0 * DT * INV * INV * stress
            # Momentum per weight is linear in the node's place, so it is summed up axis by axis.
            first, slope = mass * self.v[p] - DX * affine @ f, DX * affine
            for i, j in ds.static(ds.ndrange(3, 3)):
                weight, edge = w[i][0] * w[j][1], first + i * slope[:, 0] + j * slope[:, 1]
                for k in ds.static(range(3)):
                    node = base + ds.Vector([i, j, k])
                    self.momentum[node] += weight * w[k][2] * (edge + k * slope[:, 2])
                    self.mass[node] += weight * w[k][2] * mass
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
            if self.muscle[p] != LIQUID:
                self.loss[None] -= self.x[p][0] / self.solid

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
        shown = np.where(muscle < 0, 0.0, actuation[::EVERY, muscle])
        return np.stack(x), np.where(muscle == LIQUID, SHADE, shown)


def field(*shape: int, size: int | tuple[int, int] = 1) -> ds.Field:
    """Make a field of numbers, vectors or matrices that has a gradient."""
    options = {"shape": shape, "needs_grad": True}
    if isinstance(size, tuple):
        return ds.Matrix.field(*size, float, **options)
    return ds.field(float, **options) if size == 1 else ds.Vector.field(size, float, **options)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train the robot, and show it before and after."""
    parser = ds.tools.ArgumentParser(__doc__, steps=512, iterations=15, out="out/liquid_walker")
    parser.add_argument("--memory", type=float, default=200.0, help="for states [MB] (default 200)")
    parser.add_argument(
        "--block", type=float, default=0.08, help="width of a leg [m] (default 0.08)"
    )
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
    look = {"bounds": ((0.05, 0.04, 0.15), (0.75, 0.3, 0.75)), "up": "y"}
    look |= {"cmap": "cool", "vmin": SHADE, "vmax": 1.0}
    player = ds.tools.Player("A soft robot under liquid learns to walk")
    for name, (x, actuation) in films.items():
        film = {"label": f"{name}; actuation (liquid: {SHADE})", "colors": actuation, **look}
        player.add_points(x, EVERY * DT, **film)
        ds.tools.animate(x, EVERY * DT, args.out / f"{name}.gif", **film)
    player.add_loss(run.losses, label="loss = −mean place [m]")
    player.write(args.out / "liquid_walker.html")
    if args.gui:
        show(films["after"][0])
    return run.losses


def show(film: np.ndarray) -> None:
    """Play the walk in a window, seen from the side."""
    gui = ds.GUI("Liquid and walker", 800, background_color=0xFFFFFF)
    for x in film:
        if not gui.running:
            break
        gui.circles(x[:, :2], radius=2, color=0x333366)
        gui.show()


if __name__ == "__main__":
    main()
