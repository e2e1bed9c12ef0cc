"""A rubber beam falls and swings by implicit steps, of which only the energy is written down.

Implicit Euler steps are minima of an energy: elastic (neo-Hookean, finite elements), weight and inertia. The
kernel `energy` is all the physics there is: forces are its gradient, and Newton's method solves with products
of its Hessian matrix, `ds.ad.hvp`, by conjugate gradients (CG). A whole Hessian, `ds.ad.hessian`, from time
to time makes CG quicker. A line search keeps all triangles from turning inside out.

    python examples/newton_cg.py --steps 150

One sees a beam, held at its left end, bend under its weight and swing back, in steps of 20 ms, which explicit
steps could not take (1.6 ms is their limit). `loss.png` shows the largest force that is left after each
iteration of the hardest step: near the end its digits double. With 30 x 6 squares (360 triangles) a step
takes 5 iterations, 45 products and 23 ms on one core; a product takes 0.2 ms, a gradient 0.07 ms.

Physics: Sifakis and Barbic, FEM simulation of 3D deformable solids (SIGGRAPH 2012 course); Martin et al.,
Example-based elastic materials (SIGGRAPH 2011), for steps as minima.
"""

from typing import NamedTuple

import numpy as np

import diffsim as ds

LENGTH, HEIGHT, DEPTH = 1.0, 0.2, 0.1  # of the beam [m]
DENSITY = 1000.0  # [kg/m³]
YOUNG, POISSON = 2e5, 0.4  # of rubber [Pa]
MU = YOUNG / (2 * (1 + POISSON))  # Lamé's parameters [Pa]
LAMBDA = YOUNG * POISSON / ((1 + POISSON) * (1 - 2 * POISSON))
GRAVITY = 9.81  # [m/s²]
DT = 0.02  # [s]
RENEW = 10  # steps with the same preconditioner
ENOUGH = 1e-8  # force that may be left on a point [N]
ROUNDING = 1e-11  # of the energy, whose parts cancel [J]


class Iteration(NamedTuple):
    """One iteration of Newton's method: what it found, and the products that its direction took."""

    energy: float  # [J]
    force: float  # the largest one on a point [N]
    products: int


class Beam:
    """A beam of triangles.

    Args:
        columns: squares along the beam.
        rows: squares across.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.start, self.corners = grid(columns, rows)
        n, count = len(self.start), len(self.corners)
        self.free = (self.start[:, :1] > 0).astype(float)  # 0 at the end that is held
        edges = self.start[self.corners[:, 1:]] - self.start[self.corners[:, :1]]
        areas = 0.5 * np.abs(np.linalg.det(edges))  # [m²]
        self.masses = np.zeros(n)  # [kg]
        np.add.at(self.masses, self.corners, (DENSITY * DEPTH / 3 * areas)[:, None])

        self.x = x = ds.Vector.field(2, ds.f64, shape=n, needs_grad=True)  # [m]
        self.coasting = coasting = ds.Vector.field(2, ds.f64, shape=n)  # where no force acts [m]
        self.total = total = ds.field(ds.f64, shape=(), needs_grad=True)  # [J]
        self.v = np.zeros((n, 2))  # [m/s]
        mass = ds.field(ds.f64, shape=n)
        corners = ds.Vector.field(3, ds.i32, shape=count)
        volume = ds.field(ds.f64, shape=count)  # [m³]
        flatten = ds.Matrix.field(2, 2, ds.f64, shape=count)  # edges at rest, inverted [1/m]
        x.from_numpy(self.start)
        mass.from_numpy(self.masses)
        corners.from_numpy(self.corners.astype(np.int32))
        volume.from_numpy(areas * DEPTH)
        flatten.from_numpy(np.linalg.inv(edges.transpose(0, 2, 1)))

        @ds.kernel
        def energy():
            for i in x:
                d = x[i] - coasting[i]
                total[None] += 0.5 * mass[i] / DT**2 * d.dot(d) + mass[i] * GRAVITY * x[i].y
            for t in corners:
                a, b, c = corners[t].x, corners[t].y, corners[t].z
                f = ds.Matrix.cols([x[b] - x[a], x[c] - x[a]]) @ flatten[t]
                log = ds.log(f.determinant())  # NaN where a triangle is inside out
                stretch = 0.5 * MU * ((f.transpose() @ f).trace() - 2.0)
                total[None] += volume[t] * (stretch - MU * log + 0.5 * LAMBDA * log**2)

        self.energy = energy
        self.steps = 0

    def energy_at(self, x: np.ndarray) -> float:
        """The energy with the points there, infinite where it has no value."""
        self.x.from_numpy(x)
        self.total[None] = 0.0
        self.energy()
        found = self.total[None]
        return found if np.isfinite(found) else np.inf

    def slope(self) -> np.ndarray:
        """The gradient of the energy by the points that are free: minus the force on them."""
        with ds.Tape(self.total):
            self.energy()
        return self.free * self.x.grad.to_numpy()

    def direction(self, slope: np.ndarray, accuracy: float) -> tuple[np.ndarray, int]:
        """Solve H d = -slope by CG, to a part `accuracy` of the slope; with the number of products.

        Where the energy curves downwards, what CG has found up to there is a way down.
        """
        d, r = np.zeros_like(slope), -slope
        z = p = self.nearly_solve(r)
        size, end = np.sum(r * z), accuracy * np.linalg.norm(r)
        for k in range(10 * slope.size):
            if np.linalg.norm(r) <= end:
                return d, k
            hp = self.free * ds.ad.hvp(self.energy, self.x, p, loss=self.total)
            curvature = np.sum(p * hp)
            if curvature <= 0:
                return (d if k else p), k + 1
            d = d + size / curvature * p
            r = r - size / curvature * hp
            z = self.nearly_solve(r)
            size, last = np.sum(r * z), size
            p = z + size / last * p
        return d, 10 * slope.size

    def nearly_solve(self, r: np.ndarray) -> np.ndarray:
        """Solve with the Hessian of some steps ago: it makes CG quicker (a preconditioner)."""
        return (self.inverse @ r.ravel()).reshape(r.shape)

    def invert(self) -> None:
        """Invert the Hessian, for `nearly_solve`."""
        held = np.repeat(self.free == 0, 2)
        matrix = ds.ad.hessian(self.energy, self.x, loss=self.total)
        matrix[held] = matrix[:, held] = 0.0
        matrix[held, held] = 1.0
        self.inverse = np.linalg.inv(matrix)

    def step(self) -> list[Iteration]:
        """Advance by one time step; what each iteration found."""
        before = self.x.to_numpy()
        self.coasting.from_numpy(before + DT * self.v)
        if self.steps % RENEW == 0:
            self.invert()
        self.steps += 1
        x, found = before, []
        for _ in range(50):
            slope, energy = self.slope(), self.total[None]
            force = np.abs(slope).max()
            if force < ENOUGH:
                break
            # The nearer the minimum, the more exact: that doubles the digits in each iteration.
            accuracy = min(0.1, force / found[0].force) if found else 0.1
            d, products = self.direction(slope, accuracy)
            found.append(Iteration(energy, force, products))
            x = self.search(x, d, energy, np.sum(slope * d))
            self.x.from_numpy(x)
        else:
            raise RuntimeError(f"a force of {force:.1e} N is left after 50 iterations")
        found.append(Iteration(energy, force, 0))
        self.v = (x - before) / DT
        return found

    def search(self, x: np.ndarray, d: np.ndarray, energy: float, slope: float) -> np.ndarray:
        """Go along a direction as far as the energy falls."""
        for t in 0.5 ** np.arange(30):
            there = self.energy_at(x + t * d)
            if there <= energy + 1e-4 * t * slope:
                return x + t * d
            # Where rounding hides whether it falls, its slope tells.
            if there <= energy + ROUNDING and abs(np.sum(self.slope() * d)) <= 0.9 * abs(slope):
                return x + t * d
        raise RuntimeError(f"the energy does not fall, at a slope of {slope:.1e} J")


def grid(columns: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The points of a beam [m], and the corners of its triangles, counter-clockwise."""
    points = [
        (i * LENGTH / columns, j * HEIGHT / rows)
        for i in range(columns + 1)
        for j in range(rows + 1)
    ]
    corners = []
    for i in range(columns):
        for j in range(rows):
            a, b = i * (rows + 1) + j, (i + 1) * (rows + 1) + j
            corners += [(a, b, b + 1), (a, b + 1, a + 1)]
    return np.array(points), np.array(corners)


def main(argv: list[str] | None = None) -> list[list[Iteration]]:
    """Let the beam fall."""
    parser = ds.tools.ArgumentParser(__doc__, steps=150, out="out/newton_cg", arch=ds.cpu)
    parser.add_argument("--columns", type=int, default=30, help="squares along the beam")
    parser.add_argument("--rows", type=int, default=6, help="squares across")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch, default_fp=ds.f64)
    beam = Beam(args.columns, args.rows)
    film, solves = [beam.start], []
    gui = ds.GUI("Newton-CG", res=(640, 640), background_color=0xFFFFFF) if args.gui else None
    for _ in ds.tools.progress(range(args.steps), "falling"):
        solves.append(beam.step())
        film.append(beam.x.to_numpy())
        if gui is not None:
            gui.circles(0.1 + 0.7 * film[-1] + [0, 0.6], radius=3, color=0x2166AC)
            gui.show()
    report(solves)
    draw(args.out, beam, np.array(film), max(solves, key=len))
    return solves


def report(solves: list[list[Iteration]]) -> None:
    """Say what the steps took."""
    iterations = [len(s) - 1 for s in solves]
    products = [sum(i.products for i in s) for s in solves]
    print(
        f"a step: {np.mean(iterations):.1f} iterations and {np.mean(products):.0f} products on average; "
        f"largest force left {max(s[-1].force for s in solves):.1e} N"
    )


def draw(folder, beam: Beam, film: np.ndarray, hardest: list[Iteration]) -> None:
    """Write the film, the page and the forces of the hardest step."""
    c = beam.corners
    lines = np.unique(np.sort(np.concatenate([c[:, :2], c[:, 1:], c[:, ::2]]), axis=1), axis=0)
    bounds = ((-0.1, -1.0), (1.2, 0.4))
    style = {"lines": lines, "radius": 0.006, "bounds": bounds, "colors": 0x2166AC}
    ds.tools.animate(film, DT, folder / "newton_cg.gif", **style)
    forces = [i.force for i in hardest]
    ds.tools.plot_loss(forces, folder / "loss.png", label="largest force left [N]")
    player = ds.tools.Player("A rubber beam of which only the energy is written down")
    player.add_points(film, DT, label="beam", **style)
    player.add_loss(forces, label="largest force left, hardest step [N]")
    player.write(folder / "newton_cg.html")


if __name__ == "__main__":
    main()
