"""A pool from above: find the drops that fell into it from one photo of its tiled ground.

    python examples/water_renderer.py
    python examples/water_renderer.py --ground photo.png --iterations 400

In 200 iterations the mean square of seen − photo falls from 1.8e-3 to 2.2e-6. An iteration takes
0.05 s of one processor core.

Shallow water carries the waves [1]; a line of sight from above is bent at the surface by Snell's law, and
where sunlight from above is spread, the ground is darker. After 256 steps a photo is taken. The surface
that the waves started from, a cubic spline, is found from the photo and the ground without water.
DiffTaichi's renderer [2], of the same size, has no light and changes the waves to deceive a network.

[1] ∂²h/∂t² = g · depth · Δh, by central differences in space and time.
[2] Y. Hu et al., "DiffTaichi: Differentiable Programming for Physical Simulation", ICLR 2020.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import diffsim as ds

SIDE, DEPTH = 1.0, 0.2  # of the pool [m]
GRAVITY = 9.81  # [m/s²]
INDEX = 1.333  # of refraction, of water
COURANT = 1 / 3  # (speed of waves · time step / cell)², at most 1/2 for stability
DROPS = [(0.3, 0.35), (0.7, 0.6), (0.45, 0.75)]  # where they fell [m]
WIDTH, HEIGHT = 0.04, 0.02  # of the water that they piled up [m]
GAP = 8  # cells from one knot of the spline to the next
TILES = 8  # along a side
EVERY = 8  # steps from one picture of the film to the next


@ds.data_oriented
class Pool:
    """n by n cells of shallow water between walls; every step has its own heights."""

    def __init__(self, n: int, steps: int) -> None:
        def numbers(*shape: int) -> ds.Field:
            return ds.field(float, shape=shape, needs_grad=True)

        self.n, self.steps = n, steps
        self.cell = SIDE / n  # [m]
        self.dt = COURANT**0.5 * self.cell / math.sqrt(GRAVITY * DEPTH)  # [s]
        self.start = numbers(n // GAP + 4, n // GAP + 4)  # knots of the spline [m]
        self.height = numbers(steps + 1, n, n)  # [m]
        self.shift = ds.Vector.field(2, float, shape=(n, n), needs_grad=True)
        self.seen = ds.Vector.field(3, float, shape=(n, n), needs_grad=True)  # red, green, blue
        self.photo, self.ground = (ds.Vector.field(3, float, shape=(n, n)) for _ in range(2))
        self.loss = numbers()  # mean square of seen - photo

    @ds.func
    def pull(self, t, i, j):
        """The Laplacian, times the cell's area [m]: nothing flows through the walls."""
        h, total = self.height[t, i, j], 0.0
        if i > 0:
            total += self.height[t, i - 1, j] - h
        if i < self.n - 1:
            total += self.height[t, i + 1, j] - h
        if j > 0:
            total += self.height[t, i, j - 1] - h
        if j < self.n - 1:
            total += self.height[t, i, j + 1] - h
        return total

    @ds.func
    def shares(self, u):
        """Four weights of a cubic spline, at a place u from 0 to 1 between the middle ones."""
        a, b, c = (1 - u) ** 3, (3 * u - 6) * u**2 + 4, u**3
        return ds.Vector([a, b, 6 - a - b - c, c]) / 6

    @ds.kernel
    def drop(self):
        """From rest: the height of the step before mirrors that of the step after."""
        for i, j in self.shift:
            a, b = i // GAP, j // GAP
            x, y = self.shares(i / GAP - a), self.shares(j / GAP - b)
            total = 0.0
            for k, l in ds.static(ds.ndrange(4, 4)):
                total += x[k] * y[l] * self.start[a + k, b + l]
            self.height[0, i, j] = total
        for i, j in self.shift:
            self.height[1, i, j] = self.height[0, i, j] + 0.5 * COURANT * self.pull(0, i, j)

    @ds.kernel
    def step(self, t: ds.i32):
        for i, j in self.shift:
            drift = 2 * self.height[t, i, j] - self.height[t - 1, i, j]
            self.height[t + 1, i, j] = drift + COURANT * self.pull(t, i, j)

    @ds.kernel
    def refract(self, t: ds.i32):
        """Where a line of sight from straight above meets the ground, by Snell's law [m]."""
        for i, j in self.shift:
            last = self.n - 1
            x = self.height[t, ds.min(i + 1, last), j] - self.height[t, ds.max(i - 1, 0), j]
            y = self.height[t, i, ds.min(j + 1, last)] - self.height[t, i, ds.max(j - 1, 0)]
            normal = ds.Vector([-x, -y, 2 * self.cell]).normalized()
            turn = normal[2] / INDEX - ds.sqrt(1 - (1 - normal[2] ** 2) / INDEX**2)
            way = turn * normal - ds.Vector([0.0, 0.0, 1.0]) / INDEX
            deep = DEPTH + self.height[t, i, j]
            self.shift[i, j] = -deep / way[2] * ds.Vector([way[0], way[1]])

    @ds.func
    def look(self, at):
        """The ground's colour at a point, in cells: from the four cells around it."""
        at = ds.max(0.0, ds.min(at, self.n - 1.001))
        low = ds.floor(at)
        w = at - low
        i, j = ds.cast(low[0], ds.i32), ds.cast(low[1], ds.i32)
        left = (1 - w[1]) * self.ground[i, j] + w[1] * self.ground[i, j + 1]
        right = (1 - w[1]) * self.ground[i + 1, j] + w[1] * self.ground[i + 1, j + 1]
        return (1 - w[0]) * left + w[0] * right

    @ds.kernel
    def view(self):
        """The ground's colours; where sunlight from above is spread, the ground is darker."""
        for i, j in self.shift:
            last = self.n - 1
            x = self.shift[ds.min(i + 1, last), j][0] - self.shift[ds.max(i - 1, 0), j][0]
            y = self.shift[i, ds.min(j + 1, last)][1] - self.shift[i, ds.max(j - 1, 0)][1]
            light = ds.max(0.0, 1 - (x + y) / (2 * self.cell))
            self.seen[i, j] = light * self.look(ds.Vector([i, j]) + self.shift[i, j] / self.cell)

    @ds.kernel
    def compare(self):
        for i, j in self.seen:
            self.loss[None] += (self.seen[i, j] - self.photo[i, j]).norm_sqr() / (3 * self.n**2)

    def render(self) -> None:
        """From the start to what is seen after all steps."""
        self.drop()
        for t in range(1, self.steps):
            self.step(t)
        self.refract(self.steps)
        self.view()

    def program(self) -> ds.Field:
        """From the start to the loss."""
        self.render()
        self.compare()
        return self.loss

    def film(self) -> np.ndarray:
        """Return what is seen on the way, (T, n, n, 3)."""
        frames = []
        self.render()
        for t in range(0, self.steps + 1, EVERY):
            self.refract(t)
            self.view()
            frames.append(self.seen.to_numpy())
        return np.clip(frames, 0, 1)


def tiles(n: int) -> np.ndarray:
    """A tiled ground, (n, n, 3), from 0 to 1."""
    place = np.arange(n) * TILES / n
    shades = np.random.default_rng(3).uniform(0.35, 0.95, (TILES, TILES, 1))
    ground = (shades * [0.55, 0.85, 1.0])[place.astype(int)][:, place.astype(int)]
    gap = abs(place % 1 - 0.5) > 0.44
    ground[gap], ground[:, gap] = 0.25, 0.25
    return ground


def piles(n: int) -> np.ndarray:
    """The water that the drops piled up, at the knots of the spline [m]."""
    knot = (np.arange(n // GAP + 4) - 1) * GAP * SIDE / n
    far = [(knot[:, None] - a) ** 2 + (knot - b) ** 2 for a, b in DROPS]
    return HEIGHT * np.exp(-np.array(far) / WIDTH**2).sum(0)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Take the photo, find the drops, and show both."""
    parser = ds.tools.ArgumentParser(__doc__, steps=256, iterations=200, out="out/water_renderer")
    parser.add_argument("--ground", type=Path, help="picture on the ground, instead of tiles")
    parser.add_argument("--cells", type=int, default=256, help="along a side")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    pool, n = Pool(args.cells, args.steps), args.cells
    ground = tiles(n)
    if args.ground is not None:
        ground = ds.tools.imresize(ds.tools.imread(args.ground), n, n)[..., :3] / 255
    pool.ground.from_numpy(ground)
    pool.start.from_numpy(piles(n))
    films = {"the pool": pool.film()}
    surfaces = [pool.height.to_numpy()[0]]
    pool.photo.copy_from(pool.seen)
    pool.start.fill(0)
    adam = ds.optim.Adam([pool.start], lr=lambda i: 1e-3 / (1 + i / 50))
    run = ds.optim.train(pool.program, adam, args.iterations, out=args.out, replay=True)
    films["found from its last picture"] = pool.film()
    surfaces.append(pool.height.to_numpy()[0])
    show_results(args.out, pool, films, surfaces, run.losses)
    if args.gui:
        play(films["found from its last picture"])
    return run.losses


def show_results(out: Path, pool: Pool, films: dict, surfaces: list, losses: list[float]) -> None:
    """Write the loss, photo and found photo, drops and found drops, and films."""
    ds.tools.plot_loss(losses, out / "loss.png", label="mean square of seen − photo")
    photos = [film[-1] for film in films.values()]
    ds.tools.imwrite(np.concatenate([pool.ground.to_numpy(), *photos]), out / "photos.png")
    look = {"cmap": "viridis", "vmin": -HEIGHT / 3, "vmax": HEIGHT}
    ds.tools.imwrite(ds.tools.colormap(np.concatenate(surfaces), **look), out / "drops.png")
    player = ds.tools.Player("Drops in a pool, found from one photo")
    for k, (name, film) in enumerate(films.items()):
        ds.tools.animate(film, EVERY * pool.dt, out / f"{('pool', 'found')[k]}.gif", label=name)
        player.add_frames(film, EVERY * pool.dt, label=name)
    player.add_loss(losses, label="mean square of seen − photo")
    player.write(out / "water_renderer.html")


def play(film: np.ndarray) -> None:
    """Play the film in a window."""
    gui = ds.GUI("Pool", film.shape[1:3])
    for image in film:
        if not gui.running:
            break
        gui.set_image(image)
        gui.show()


if __name__ == "__main__":
    main()
