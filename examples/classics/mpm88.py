"""Liquid falls into a box: the material point method in 88 lines.

    python examples/classics/mpm88.py [--gui]

The method is MLS-MPM: Hu et al., "A Moving Least Squares Material Point Method ...", SIGGRAPH 2018.
What the particles know goes to a grid, which does nothing but apply gravity and walls, and comes back.
"""

import numpy as np

import diffsim as ds

N, DT, EVERY = 128, 2e-4, 40  # cells along a side; time step [s]; steps a frame
DX, RHO, STIFFNESS, GRAVITY = 1 / N, 1.0, 400.0, 9.8  # [m], [kg/m²], [N/m], [m/s²]


@ds.data_oriented
class Liquid:
    """Particles in a square box with a side of 1 m."""

    def __init__(self, places, area):
        self.volume, self.mass = area / len(places), RHO * area / len(places)  # [m²], [kg]
        self.x, self.v = (ds.Vector.field(2, float, shape=len(places)) for _ in range(2))
        self.C = ds.Matrix.field(2, 2, float, shape=len(places))  # gradient of v [1/s]
        self.J = ds.field(float, shape=len(places))  # volume, as a part of that at rest
        self.grid_v = ds.Vector.field(2, float, shape=(N, N))  # momentum first, then velocity
        self.grid_m = ds.field(float, shape=(N, N))
        self.x.from_numpy(places)
        self.J.fill(1.0)

    @ds.func
    def weights(self, x):
        base = ds.cast(x / DX - 0.5, ds.i32)  # the lowest of the 3 x 3 points around
        f = x / DX - ds.cast(base, float)
        return base, f, [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2]

    @ds.kernel
    def step(self):
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
        for i, j in self.grid_m:  # gravity and walls
            if self.grid_m[i, j] > 0:
                v = self.grid_v[i, j] / self.grid_m[i, j] - ds.Vector([0.0, DT * GRAVITY])
                low, high = ds.Vector([i < 3, j < 3]), ds.Vector([i > N - 3, j > N - 3])
                v = ds.select(low, ds.max(v, 0.0), v)
                self.grid_v[i, j] = ds.select(high, ds.min(v, 0.0), v)
        for p in self.x:
            base, f, w = self.weights(self.x[p])
            v, C = ds.Vector([0.0, 0.0]), ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in ds.static(ds.ndrange(3, 3)):
                near = w[i][0] * w[j][1] * self.grid_v[base + ds.Vector([i, j])]
                v += near
                C += 4 / DX * near.outer_product(ds.Vector([i, j]) - f)
            self.v[p], self.C[p] = v, C
            self.x[p] += DT * v
            self.J[p] *= 1 + DT * C.trace()


def main(argv=None):
    """Let two blocks fall, in a window or into files."""
    args = ds.tools.ArgumentParser(__doc__, steps=12000, out="out/mpm88").parse_args(argv)
    ds.init(arch=args.arch)
    places = np.random.default_rng(args.seed).uniform(0, 0.4, (8192, 2))
    liquid, film = Liquid(places + np.repeat([(0.05, 0.15), (0.5, 0.5)], 4096, axis=0), 0.32), []
    gui = ds.GUI("MPM in 88 lines", 512, background_color=0x112F41, show_gui=args.gui)
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % EVERY == 0 and gui.running:
            gui.circles(liquid.x, radius=1.5, color=0x4FB9E6)
            gui.show(None if args.gui else args.out / "mpm88.gif")
            film.append(liquid.x.to_numpy())
        liquid.step()
    gui.close()
    player = ds.tools.Player("MPM in 88 lines")
    player.add_points(np.array(film), EVERY * DT, radius=0.003, bounds=(0, 1), label="liquid [m]")
    player.write(args.out / "mpm88.html")


if __name__ == "__main__":
    main()
