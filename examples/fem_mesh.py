"""A plate from a mesh file is pulled: finite elements, of which only the energy is written down.

    python examples/fem_mesh.py [MESH] [--pull 1e6]

Any file with triangles in the x-y plane that meshio reads (Gmsh, VTK, Abaqus; lengths in metres) is taken
as a sheet of steel, 1 mm thick, held at its left end and pulled at its right end. Where it comes to rest its
energy is lowest: Newton's method with products of the Hessian finds that place. One sees the stress of von
Mises, largest beside the hole: 2.97 times the pull; for a small hole it is 3 times (Kirsch, 1898).

`meshes/plate.msh` is a plate of 0.2 x 0.1 m with a hole, made by a few lines of Python for this example.
Reading meshes needs the package meshio: pip install "diffsim-lang[mesh]".
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import diffsim as ds

MESH = Path(__file__).parent / "meshes" / "plate.msh"
YOUNG, POISSON = 210e9, 0.3  # of steel [Pa]
MU = YOUNG / (2 * (1 + POISSON))  # Lamé's parameters of thin sheets (plane stress) [Pa]
LAMBDA = YOUNG * POISSON / (1 - POISSON**2)
DEPTH = 1e-3  # of the sheet [m]


class MeshError(ValueError):
    """A mesh that cannot be used; the message says why."""


def check(points: np.ndarray, triangles: np.ndarray) -> None:
    """Raise a MeshError at the first thing that is wrong with a mesh."""
    if len(triangles) == 0:
        raise MeshError("there are no triangles; only these are taken")
    if points.ndim != 2 or points.shape[1] < 2 or not np.isfinite(points).all():
        raise MeshError(f"points have to be finite x and y, and not {points.shape}")
    if points.shape[1] == 3 and np.ptp(points[:, 2]) > 1e-9 * np.ptp(points[:, :2]):
        raise MeshError("the mesh has to lie in a plane z = const")
    if triangles.min() < 0 or triangles.max() >= len(points):
        raise MeshError(f"corners have to be numbers of points, 0 to {len(points) - 1}")
    a, b, c = points[triangles, :2].transpose(1, 2, 0)
    area = 0.5 * ((b - a)[0] * (c - a)[1] - (b - a)[1] * (c - a)[0])
    least = 1e-12 * np.abs(area).max()
    for bad, what in (
        (abs(area) <= least, "have no area: their corners lie on a line"),
        (area < 0, "are flipped: their corners go around clockwise; swap two corners of each"),
    ):
        if bad.any():
            names = np.flatnonzero(bad)
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise MeshError(f"triangles {', '.join(map(str, names[:5]))}{more} {what}")


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, 2) [m] and corners of triangles (m, 3) of a mesh file."""
    if not path.is_file():
        raise MeshError(f"{path} does not exist; a mesh to start from is {MESH}")
    try:
        import meshio
    except ModuleNotFoundError:
        raise MeshError(
            'meshes are read by the package meshio: pip install "diffsim-lang[mesh]"'
        ) from None
    try:
        mesh = meshio.read(path)
    except (Exception, SystemExit) as error:  # meshio ends the program where it knows no format
        raise MeshError(f"{path} cannot be read by meshio: {error}") from None
    cells = [block.data for block in mesh.cells if block.type == "triangle"]
    triangles = np.concatenate(cells) if cells else np.zeros((0, 3), int)
    try:
        check(mesh.points, triangles)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from None
    return mesh.points[:, :2], triangles


@ds.data_oriented
class Sheet:
    """A sheet in its plane; displacements are small.

    Args:
        points: (n, 2) [m].
        triangles: their corners, counterclockwise, (m, 3).
        held: points that do not move, (n,).
        force: on each point (n, 2) [N].
    """

    def __init__(
        self, points: np.ndarray, triangles: np.ndarray, held: np.ndarray, force: np.ndarray
    ) -> None:
        n, m = len(points), len(triangles)
        edges = (points[triangles[:, 1:]] - points[triangles[:, :1]]).transpose(0, 2, 1)
        self.u = ds.Vector.field(2, ds.f64, shape=n, needs_grad=True)  # displacement [scale]
        self.free = ds.field(ds.f64, shape=n)
        self.force = ds.Vector.field(2, ds.f64, shape=n)
        self.corner = ds.Vector.field(3, ds.i32, shape=m)
        self.area = ds.field(ds.f64, shape=m)  # [m²]
        self.flatten = ds.Matrix.field(2, 2, ds.f64, shape=m)  # [1/m]
        self.stress = ds.field(ds.f64, shape=m)  # of von Mises [Pa]
        self.total = ds.field(ds.f64, shape=(), needs_grad=True)  # energy [J], by SCALE
        self.free.from_numpy(1.0 - held)
        self.force.from_numpy(force)
        self.corner.from_numpy(triangles.astype(np.int32))
        self.area.from_numpy(np.linalg.det(edges) / 2)
        self.flatten.from_numpy(np.linalg.inv(edges))
        # u is counted in what the force would do to a strip, so that Newton's numbers are about 1.
        self.scale = float(np.abs(force).sum() / (YOUNG * DEPTH)) or 1.0  # [m]
        self.energy_scale = YOUNG * DEPTH * self.scale**2  # [J]

    @ds.func
    def strain(self, t):
        """The symmetric part of the displacement's gradient."""
        c = self.corner[t]
        a, b, d = self.u[c[0]], self.u[c[1]], self.u[c[2]]
        a, b, d = a * self.free[c[0]], b * self.free[c[1]], d * self.free[c[2]]
        g = self.scale * (ds.Matrix.cols([b - a, d - a]) @ self.flatten[t])
        return 0.5 * (g + g.transpose())

    @ds.kernel
    def energy(self):
        for t in self.corner:
            e = self.strain(t)
            density = MU * (e @ e).trace() + 0.5 * LAMBDA * e.trace() ** 2
            self.total[None] += DEPTH * self.area[t] * density / self.energy_scale
        for i in self.u:
            work = self.free[i] * self.scale * self.force[i].dot(self.u[i])
            self.total[None] -= work / self.energy_scale

    @ds.kernel
    def find_stress(self):
        for t in self.corner:
            e = self.strain(t)
            x = 2 * MU * e[0, 0] + LAMBDA * e.trace()
            y = 2 * MU * e[1, 1] + LAMBDA * e.trace()
            xy = 2 * MU * e[0, 1]
            self.stress[t] = ds.sqrt(x * x - x * y + y * y + 3 * xy * xy)

    def program(self) -> ds.Field:
        """From the displacement to the energy."""
        self.energy()
        return self.total

    def settle(self, iterations: int = 30) -> Any:
        """Find where the sheet is at rest."""
        found = ds.optim.minimize(self.u, self.program, "Newton-CG", iterations=iterations)
        self.find_stress()
        return found

    def displacement(self) -> np.ndarray:
        """Of all points, (n, 2) [m]."""
        return self.scale * self.u.to_numpy() * self.free.to_numpy()[:, None]


def pulled(points: np.ndarray, triangles: np.ndarray, pull: float) -> Sheet:
    """A sheet that is held at its left end and pulled at its right end with a stress [Pa]."""
    x, near = points[:, 0], 1e-6 * np.ptp(points[:, 0])
    held, right = x < x.min() + near, x > x.max() - near
    order = np.flatnonzero(right)[np.argsort(points[right, 1])]
    length = np.diff(points[order, 1])
    if len(length) == 0:
        raise MeshError(
            "the right end has to be an edge, so that it can be pulled: it is one point"
        )
    force = np.zeros_like(points, dtype=float)
    for ends in (order[:-1], order[1:]):
        np.add.at(force[:, 0], ends, 0.5 * pull * DEPTH * length)
    return Sheet(points, triangles, held, force)


def main(argv: Sequence[Any] | None = None) -> None:
    """Pull the sheet, and show what becomes of it."""
    parser = ds.tools.ArgumentParser(__doc__, iterations=30, out="out/fem_mesh")
    parser.add_argument("mesh", nargs="?", type=Path, default=MESH, help="file of triangles")
    parser.add_argument("--pull", type=float, default=1e6, help="stress at the right end [Pa]")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch, default_fp=ds.f64)
    try:
        points, triangles = read(args.mesh)
        sheet = pulled(points, triangles, args.pull)
    except MeshError as error:
        parser.error(str(error))
    found = sheet.settle(args.iterations)
    stress, u = sheet.stress.to_numpy(), sheet.displacement()
    print(
        f"{len(triangles)} triangles, {found.evaluations} evaluations; at most {np.abs(u).max():.3g} m"
    )
    print(f"stress at most {stress.max() / abs(args.pull):.2f} times that at the end")
    show_results(args, points, triangles, u, stress, found.losses)


def show_results(
    args: Any,
    points: np.ndarray,
    triangles: np.ndarray,
    u: np.ndarray,
    stress: np.ndarray,
    losses: list,
) -> None:
    """Draw the stress on the pulled sheet, much exaggerated, and let it move on a page."""
    import matplotlib.pyplot as plt

    larger = 0.05 * np.ptp(points[:, 0]) / max(np.abs(u).max(), 1e-300)
    figure, axis = plt.subplots(figsize=(9, 4.5), layout="constrained")
    axis.triplot(*points.T, triangles, color="0.8", lw=0.5)
    image = axis.tripcolor(*(points + larger * u).T, triangles, stress / 1e6, cmap="inferno")
    figure.colorbar(image, label="stress of von Mises [MPa]")
    axis.set(aspect="equal", xlabel="x [m]", ylabel="y [m]", title=f"displacement × {larger:.0f}")
    ds.tools.save_figure(figure, args.out / "fem_mesh.png")
    ds.tools.plot_loss(losses, args.out / "loss.png", label="energy, scaled")
    lines = np.unique(np.sort(triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), 1), axis=0)
    part = 0.5 - 0.5 * np.cos(np.linspace(0, 2 * np.pi, 60, endpoint=False))[:, None, None]
    film, size = points + part * larger * u, np.ptp(points[:, 0])
    player = ds.tools.Player("A plate is pulled")
    bounds = points.min(0) - 0.05 * size, points.max(0) + 0.1 * size
    look = {"lines": lines, "radius": 0.002 * size, "bounds": bounds}
    player.add_points(film, 1 / 30, label=f"displacement × {larger:.0f} [m]", **look)
    player.write(args.out / "fem_mesh.html")
    if args.gui:
        gui = ds.GUI("A plate is pulled", 600, background_color=0xFFFFFF)
        for x in film:
            if not gui.running:
                break
            ends = ((x - bounds[0]) / np.max(bounds[1] - bounds[0]))[lines]
            gui.lines(ends[:, 0], ends[:, 1], radius=0.7, color=0x224488)
            gui.show()


if __name__ == "__main__":
    main()
