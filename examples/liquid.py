"""A drop of liquid over many thousands of steps: gradients in little memory, in two ways.

    python examples/liquid.py
    python examples/liquid.py --steps 100000 --memory 4

The drop is simulated by moving-least-squares particles [1] that overwrite their state in every step. How
does where it ends depend on the velocity it starts with? The backward pass needs the state of every step,
and to keep them all is out of the question. Both ways keep some of them and run the rest again:

    ds.ad.checkpoint      one call; it decides what to keep from the bytes that it may use
    ds.ad.grad_for        by hand: a function runs K steps, its gradient runs them again, with room for
                          K states, and then their adjoints, last first

It prints both gradients and the memory they took as Python counts it, and writes a film of the drop.

[1] Y. Hu et al., "A moving least squares material point method with displacement discontinuity and two-way
    rigid body coupling", ACM Transactions on Graphics 37(4), 2018.
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

import diffsim as ds

GRID = 24  # cells per side of the unit square
DX, INV = 1 / GRID, float(GRID)  # [m], [1/m]
DT = 4e-4  # [s]
STIFFNESS, GRAVITY = 20.0, 9.8  # [N/m], [m/s^2]
WALL = 3  # cells that the liquid does not enter
PARTS = 12  # particles per side of the drop
VOLUME = (0.35 / PARTS) ** 2  # [m^2] of a particle; the density is 1

f64 = ds.f64


@ds.func
def touched(x):
    """The first of the 3 x 3 cells that a particle touches, its place in it, and quadratic weights."""
    base = ds.cast(x * INV - 0.5, ds.i32)
    f = x * INV - ds.cast(base, f64)
    return base, f, [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]


@ds.func
def velocity_of_cell(i, j, momentum, mass):
    """Momentum to velocity; gravity, and walls that nothing goes through."""
    u = ds.Vector([0.0, 0.0], f64)
    if mass > 0:
        u = momentum / mass
        u[1] -= DT * GRAVITY
        if (i < WALL and u[0] < 0) or (i > GRID - WALL and u[0] > 0):
            u[0] = 0.0
        if (j < WALL and u[1] < 0) or (j > GRID - WALL and u[1] > 0):
            u[1] = 0.0
    return u


@ds.data_oriented
class Liquid:
    """The drop, with room for `rows` states; with one row it overwrites its state in every step."""

    def __init__(self, rows):
        n = PARTS * PARTS
        self.x = ds.Vector.field(2, f64, shape=(rows, n), needs_grad=True)  # [m]
        self.v = ds.Vector.field(2, f64, shape=(rows, n), needs_grad=True)  # [m/s]
        self.C = ds.Matrix.field(2, 2, f64, shape=(rows, n), needs_grad=True)  # [1/s]
        self.J = ds.field(f64, shape=(rows, n), needs_grad=True)  # volume / volume at the start
        self.momentum = ds.Vector.field(2, f64, shape=(rows, GRID, GRID), needs_grad=True)
        self.mass = ds.field(f64, shape=(rows, GRID, GRID), needs_grad=True)
        self.u = ds.Vector.field(2, f64, shape=(rows, GRID, GRID), needs_grad=True)
        self.push = ds.Vector.field(
            2, f64, shape=(), needs_grad=True
        )  # velocity at the start [m/s]
        self.loss = ds.field(f64, shape=(), needs_grad=True)  # [m]
        side = 0.3 + 0.35 * (np.arange(PARTS) + 0.5) / PARTS
        self.places = np.stack(np.meshgrid(side, side + 0.05, indexing="ij"), -1).reshape(n, 2)
        self.push[None] = [1.5, -0.5]

    @property
    def state(self):
        return [self.x, self.v, self.C, self.J]

    def reset(self):
        """The drop before the first step."""
        for f in self.state:
            f.fill(0)
        self.x.from_numpy(np.broadcast_to(self.places, (self.x.shape[0], *self.places.shape)))
        self.begin()

    @ds.kernel
    def begin(self):
        for p in range(PARTS * PARTS):
            self.v[0, p] = self.push[None]
            self.J[0, p] = 1.0

    @ds.kernel
    def clear(self, t: ds.i32):
        for i, j in ds.ndrange(GRID, GRID):
            self.momentum[t, i, j] = ds.Vector([0.0, 0.0], f64)
            self.mass[t, i, j] = 0.0

    @ds.kernel
    def to_grid(self, t: ds.i32):
        for p in range(PARTS * PARTS):
            base, f, w = touched(self.x[t, p])
            pressure = -DT * 4 * INV * INV * VOLUME * STIFFNESS * (self.J[t, p] - 1.0)
            affine = pressure * ds.Matrix([[1.0, 0.0], [0.0, 1.0]], f64) + VOLUME * self.C[t, p]
            for i, j in ds.static(ds.ndrange(3, 3)):
                away = (ds.Vector([i, j], f64) - f) * DX
                weight = w[i][0] * w[j][1]
                a, b = base[0] + i, base[1] + j
                self.momentum[t, a, b] += weight * (VOLUME * self.v[t, p] + affine @ away)
                self.mass[t, a, b] += weight * VOLUME

    @ds.kernel
    def on_grid(self, t: ds.i32):
        for i, j in ds.ndrange(GRID, GRID):
            self.u[t, i, j] = velocity_of_cell(i, j, self.momentum[t, i, j], self.mass[t, i, j])

    @ds.func
    def moved(self, t, p):
        """A particle's next state."""
        base, f, w = touched(self.x[t, p])
        v, C = ds.Vector([0.0, 0.0], f64), ds.Matrix([[0.0, 0.0], [0.0, 0.0]], f64)
        for i, j in ds.static(ds.ndrange(3, 3)):
            u = w[i][0] * w[j][1] * self.u[t, base[0] + i, base[1] + j]
            v += u
            C += 4 * INV * u.outer_product(ds.Vector([i, j], f64) - f)
        return self.x[t, p] + DT * v, v, C, self.J[t, p] * (1.0 + DT * C.trace())

    @ds.kernel
    def move(self):
        for p in range(PARTS * PARTS):
            self.x[0, p], self.v[0, p], self.C[0, p], self.J[0, p] = self.moved(0, p)

    @ds.kernel
    def move_to(self, t: ds.i32):
        for p in range(PARTS * PARTS):
            s = t + 1
            self.x[s, p], self.v[s, p], self.C[s, p], self.J[s, p] = self.moved(t, p)

    @ds.kernel
    def measure(self):
        """How far right the drop is at the end."""
        for p in range(PARTS * PARTS):
            self.loss[None] += self.x[0, p][0] / (PARTS * PARTS)


def with_checkpoint(memory, progress):
    """In one row, and one call: a function of the number of steps."""
    drop = Liquid(1)

    def step(t):
        drop.clear(0)
        drop.to_grid(0)
        drop.on_grid(0)
        drop.move()

    def run(steps):
        with ds.Tape(drop.loss):
            drop.reset()
            run.stats = ds.ad.checkpoint(
                step, steps, drop.state, memory=memory, progress=progress and steps > 99
            )
            drop.measure()
        return drop.loss[None], drop.push.grad[None]

    return run


def by_hand(length):
    """`length` steps at a time, in as many rows: a function of the number of steps."""
    drop = Liquid(length + 1)
    kept = {}

    def forward():
        for t in range(length):
            drop.clear(t)
            drop.to_grid(t)
            drop.on_grid(t)
            drop.move_to(t)

    @ds.kernel
    def back():
        for p in range(PARTS * PARTS):
            drop.x[0, p], drop.v[0, p] = drop.x[length, p], drop.v[length, p]
            drop.C[0, p], drop.J[0, p] = drop.C[length, p], drop.J[length, p]

    @ds.ad.grad_replaced
    def segment(s):
        kept[s] = [f.to_numpy()[0].copy() for f in drop.state]
        forward()
        back()

    @ds.ad.grad_for(segment)
    def segment_grad(s):
        for f, values in zip(drop.state, kept.pop(s), strict=True):
            states, slopes = f.to_numpy(), f.grad.to_numpy()
            states[0] = values
            f.from_numpy(states)
            slopes[length], slopes[:length] = slopes[0], 0  # of the end, from the segments after it
            f.grad.from_numpy(slopes)
        for f in (drop.u, drop.momentum, drop.mass):
            f.grad.fill(0)
        forward()
        for t in reversed(range(length)):
            drop.move_to.grad(t)
            drop.on_grid.grad(t)
            drop.to_grid.grad(t)
            drop.clear.grad(t)

    def run(steps):
        with ds.Tape(drop.loss):
            drop.reset()
            for s in range(steps // length):
                segment(s)
            drop.measure()
        return drop.loss[None], drop.push.grad[None]

    return run


def measured(run, steps, length):
    """The result of `run`, its time [s], and the most memory it took [bytes]."""
    run(length)  # compile
    tracemalloc.start()
    start = time.perf_counter()
    found = run(steps)
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, seconds, peak


def film(steps):
    """The drop at up to 200 times, (T, n, 2) [m], and the time between them [s]."""
    drop, stride = Liquid(1), -(-steps // 200)
    drop.reset()
    places = [drop.x.to_numpy()[0]]
    for _ in range(0, steps, stride):
        for _ in range(stride):
            drop.clear(0)
            drop.to_grid(0)
            drop.on_grid(0)
            drop.move()
        places.append(drop.x.to_numpy()[0])
    return np.array(places), stride * DT


def main(argv=None):
    """Both ways side by side."""
    parser = ds.tools.ArgumentParser(__doc__, steps=2000, out="out/liquid")
    parser.add_argument("--memory", type=float, default=1.0, help="for ds.ad.checkpoint [MB]")
    parser.add_argument("--progress", action="store_true", help="show a bar")
    args = parser.parse_args(argv)
    length = max(1, round(args.steps**0.5))
    steps = args.steps // length * length
    ds.init(arch=args.arch, default_fp=f64)
    memory = int(args.memory * 1e6)
    print(f"{'':18}{'end [m]':>10} {'gradient [s]':>26} {'memory [MB]':>12} {'time [s]':>9}")
    one = with_checkpoint(memory, args.progress)
    for name, run in (("ds.ad.checkpoint", one), ("ds.ad.grad_for", by_hand(length))):
        (end, slope), seconds, peak = measured(run, steps, length)
        shown = "  ".join(f"{g:12.9f}" for g in slope)
        print(f"{name:18}{end:10.6f} {shown} {peak / 1e6:12.2f} {seconds:9.1f}")
    stats = one.stats
    print(f"{steps} steps, budget {memory / 1e6:.2f} MB: {stats}")
    print(f"all states together would take {steps * stats.snapshot_bytes / 1e6:.1f} MB")

    x, dt = film(min(steps, 5000))
    wall = (WALL - 1) * DX  # the innermost nodes that let nothing through
    look = {"colors": x[0, :, 1], "radius": 0.01, "bounds": (wall, 1 - wall)}
    ds.tools.animate(
        x, dt, args.out / "liquid.gif", label="coloured by height at the start [m]", **look
    )
    player = ds.tools.Player("A drop of liquid")
    player.add_points(x, dt, label="coloured by height at the start [m]", **look)
    player.write(args.out / "liquid.html")


if __name__ == "__main__":
    main()
