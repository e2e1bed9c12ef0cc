"""Drops of liquid fly through a hall of 32 m, on a grid of 4096 x 4096 points that is mostly not there.

    python examples/classics/sparse_mpm.py [--gui]

The method is that of `mpm88.py`. The grid is a sparse tree: blocks of 8 x 8 points become active where
particles write to them, the loop over the grid visits active points, and what was left behind is deactivated
now and then.
"""

import numpy as np

import diffsim as ds

N, BLOCK, DT = 4096, 8, 2e-4  # points along a side, of a block; time step [s]
DX, RHO, STIFFNESS, GRAVITY = 1 / 128, 1.0, 400.0, 9.8  # [m], [kg/m²], [N/m], [m/s²]
EVERY, FORGET = 100, 50  # steps a frame, steps after which blocks are deactivated
GROUND, VIEW = 8.0, (6.0, 3.0)  # where the floor is, and what is shown above it [m]


@ds.data_oriented
class Drops:
    """Particles in a large hall with a floor."""

    def __init__(self, places, speeds, area):
        self.volume, self.mass = area / len(places), RHO * area / len(places)  # [m²], [kg]
        self.x, self.v = (ds.Vector.field(2, float, shape=len(places)) for _ in range(2))
        self.C = ds.Matrix.field(2, 2, float, shape=len(places))  # gradient of v [1/s]
        self.J = ds.field(float, shape=len(places))  # volume, as a part of that at rest
        self.grid_v = ds.Vector.field(2, float)  # momentum first, then velocity
        self.grid_m = ds.field(float)
        self.blocks = ds.root.pointer(ds.ij, N // BLOCK)
        self.blocks.dense(ds.ij, BLOCK).place(self.grid_v, self.grid_m)
        self.active = ds.field(ds.i32, shape=(N // BLOCK, N // BLOCK))  # for pictures
        self.x.from_numpy(places)
        self.v.from_numpy(speeds)
        self.J.fill(1.0)

    @ds.func
    def weights(self, x):
        base = ds.cast(x / DX - 0.5, ds.i32)  # the lowest of the 3 x 3 points around
        f = x / DX - ds.cast(base, float)
        return base, f, [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2]

    @ds.kernel
    def move(self):
        for i, j in self.grid_m:
            self.grid_v[i, j], self.grid_m[i, j] = ds.Vector([0.0, 0.0]), 0.0
        for p in self.x:
            base, f, w = self.weights(self.x[p])
            stress = -4 * DT * STIFFNESS * self.volume * (self.J[p] - 1) / DX**2
            affine = self.mass * self.C[p] + stress * ds.math.eye(2)
            for i, j in ds.static(ds.ndrange(3, 3)):
                way, weight = (ds.Vector([i, j]) - f) * DX, w[i][0] * w[j][1]
                momentum = self.mass * self.v[p] + affine @ way
                self.grid_v[base + ds.Vector([i, j])] += weight * momentum
                self.grid_m[base + ds.Vector([i, j])] += weight * self.mass
        for i, j in self.grid_m:  # gravity and the floor
            if self.grid_m[i, j] > 0:
                v = self.grid_v[i, j] / self.grid_m[i, j] - ds.Vector([0.0, DT * GRAVITY])
                if j * DX < GROUND:
                    v = ds.max(v, 0.0) * ds.Vector([0.0, 1.0]) + 0.999 * v * ds.Vector([1.0, 0.0])
                self.grid_v[i, j] = v
        for p in self.x:
            base, f, w = self.weights(self.x[p])
            v, C = ds.Vector([0.0, 0.0]), ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in ds.static(ds.ndrange(3, 3)):
                near = w[i][0] * w[j][1] * self.grid_v[base + ds.Vector([i, j])]
                v += near
                C += 4 / DX * near.outer_product(ds.Vector([i, j]) - f)
            self.v[p], self.C[p] = v, C
            self.x[p] += DT * v
            self.J[p] = ds.min(self.J[p] * (1 + DT * C.trace()), 1.0)  # spray does not pull

    @ds.kernel
    def mark(self):
        for i, j in self.active:
            self.active[i, j] = 0
        for i, j in self.blocks:
            self.active[i, j] = 1

    def step(self, number=1):
        if number % FORGET == 0:
            self.blocks.deactivate_all()
        self.move()

    def blocks_in_use(self):
        self.mark()
        return np.argwhere(self.active.to_numpy())


def throw(rng, drops, particles):
    """Discs of 0.4 m, one behind the other in the air, and their speeds."""
    angle, radius = rng.uniform(0, 2 * np.pi, particles), 0.2 * rng.uniform(0, 1, particles) ** 0.5
    disc = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    middles = [(13.6 + 0.8 * k, GROUND + 0.8 + 0.7 * (k % 2)) for k in range(drops)]
    places = np.concatenate([disc + middle for middle in middles])
    speeds = np.repeat([(3.0 - 1.0 * k, 2.0) for k in range(drops)], particles, axis=0)
    return places, speeds


def main(argv=None):
    """Let some drops fly, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=8000, out="out/sparse_mpm")
    parser.add_argument("--particles", type=int, default=1500, help="of a drop (default 1500)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    places, speeds = throw(np.random.default_rng(args.seed), 7, args.particles)
    drops, film = Drops(places, speeds, 7 * np.pi * 0.2**2), []
    gui = ds.GUI("Sparse MPM", (1024, 512), background_color=0x112F41, show_gui=args.gui)
    origin = np.array([N * DX / 2 - VIEW[0] / 2, GROUND - 0.3])
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % EVERY == 0 and gui.running:
            low = (drops.blocks_in_use() * BLOCK * DX - origin) / VIEW
            gui.circles(low + 0.5 * BLOCK * DX / np.array(VIEW), radius=4.5, color=0x1D4258)
            film.append(drops.x.to_numpy())
            gui.circles((film[-1] - origin) / VIEW, radius=1.2, color=0x4FB9E6)
            gui.show(None if args.gui else args.out / "sparse_mpm.gif")
        drops.step(step)
    gui.close()
    blocks, used = len(drops.blocks_in_use()), drops.blocks.bytes_in_use / 2**20
    whole = N * N * 3 * 4 / 2**20
    print(f"{blocks} of {(N // BLOCK) ** 2} blocks are active: {used:.1f} of {whole:.0f} MiB")
    player = ds.tools.Player("Drops on a sparse grid")
    bounds = (tuple(origin), tuple(origin + VIEW))
    player.add_points(np.array(film), EVERY * DT, radius=0.01, bounds=bounds, label="liquid [m]")
    player.write(args.out / "sparse_mpm.html")


if __name__ == "__main__":
    main()
