"""Finite elements of eight nodes whose stiffness depends on a density (SIMP): heat and elasticity.

Linear problems K(ρ) x = f on the degrees of freedom that are not held at 0. The matrix of an element is that
of solid material times VOID + (1 − VOID) ρ^PENALTY, with ρ clipped to 0 ... 1. Kernels assemble the whole
matrix, and the solve is one entry of the tape.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import diffsim as ds

CORNERS = np.array(
    [[x, y, z] for z in (-1, 1) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))], float
)
FACES = np.array(
    [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [0, 3, 7, 4]]
)
VOID = 1e-3  # stiffness where there is nothing, in that of solid material
PENALTY = 3.0  # the exponent p


@ds.data_oriented
class HexElements:
    """A mesh with fixed supports and loads, for any density and source.

    Args:
        unknowns: of each element, its degrees of freedom.
        matrices: of each element of solid material.
        held: which degrees of freedom are 0.
        force: on all degrees of freedom, without sources.
        shares: of each element, what a source of 1 in it adds to the load of its unknowns.
    """

    def __init__(
        self,
        unknowns: np.ndarray,
        matrices: np.ndarray,
        held: np.ndarray,
        force: np.ndarray,
        shares: np.ndarray,
    ) -> None:
        self.free = np.flatnonzero(~held)
        number = np.full(len(held), -1)
        number[self.free] = np.arange(len(self.free))
        places = number[unknowns]
        cells = len(unknowns)

        def numbers(size: int | tuple[()]) -> ds.Field:
            return ds.field(ds.f64, shape=size, needs_grad=True)

        self.density, self.source = numbers(cells), numbers(cells)
        self.load, self.solution = numbers(len(self.free)), numbers(len(self.free))
        self.compliance, self.misfit = numbers(()), numbers(())
        self.force, self.target = constant(force[self.free]), constant(force[self.free] * 0)
        self._place_entries(places, matrices)
        self.values = numbers(len(self.columns))
        cell, corner = np.nonzero(places >= 0)
        self.share_cell, self.share_place = constant(cell), constant(places[cell, corner])
        self.share = constant(shares[cell, corner])

    def _place_entries(self, places: np.ndarray, matrices: np.ndarray) -> None:
        """Where each entry of an element's matrix goes among the entries of the whole one."""
        here, there = places[:, :, None], places[:, None, :]
        cell, a, b = np.nonzero((here >= 0) & (there >= 0))
        size = len(self.free)
        pairs = places[cell, a].astype(np.int64) * size + places[cell, b]
        found, slots = np.unique(pairs, return_inverse=True)
        self.columns = (found % size).astype(np.int32)
        self.starts = np.searchsorted(found // size, np.arange(size + 1)).astype(np.int32)
        self.entry_cell, self.entry_slot = constant(cell), constant(slots)
        self.entry = constant(matrices[cell, a, b])

    @ds.kernel
    def assemble(self):
        for s in self.values:
            self.values[s] = 0.0
        for k in self.entry:
            inside = ds.min(ds.max(self.density[self.entry_cell[k]], 0.0), 1.0)
            stiffness = VOID + (1.0 - VOID) * inside**PENALTY
            self.values[self.entry_slot[k]] += stiffness * self.entry[k]

    @ds.kernel
    def add_loads(self):
        for i in self.load:
            self.load[i] = self.force[i]
        for k in self.share:
            self.load[self.share_place[k]] += self.share[k] * self.source[self.share_cell[k]]

    @ds.kernel
    def measure(self):
        for i in self.solution:
            self.compliance[None] += self.force[i] * self.solution[i]
            self.misfit[None] += (self.solution[i] - self.target[i]) ** 2

    def solve(self) -> None:
        """From density and source to the solution, its compliance and its misfit from the target."""
        self.assemble()
        self.add_loads()
        matrix = (self.values, self.columns, self.starts)
        ds.ad.linear_solve(matrix, self.load, self.solution, symmetric=True)
        self.compliance.fill(0)
        self.misfit.fill(0)
        self.measure()

    def gradient(self, cotangents: Mapping[ds.Field, Any]) -> None:
        """Leave the gradient of the sum of cotangents · fields in density.grad and source.grad."""
        tape = ds.Tape()
        with tape:
            self.solve()
        self.density.grad.fill(0)
        self.source.grad.fill(0)
        tape.backward(grads=dict(cotangents))

    def everywhere(self, held: int) -> np.ndarray:
        """The solution on all degrees of freedom."""
        full = np.zeros(held)
        full[self.free] = self.solution.to_numpy()
        return full


def constant(values: np.ndarray) -> ds.Field:
    """A field of numbers that stay."""
    kind = ds.f64 if values.dtype.kind == "f" else ds.i32
    made = ds.field(kind, shape=values.shape)
    made.from_numpy(values.astype(np.float64 if kind is ds.f64 else np.int32))
    return made


def mesh_of(inputs: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Points and elements, without what pads the arrays."""
    mesh = inputs["hex_mesh"]
    points = np.asarray(mesh["points"], float)[: int(mesh["n_points"])]
    return points, np.asarray(mesh["faces"], np.int64)[: int(mesh["n_faces"])]


def held_points(inputs: Mapping[str, Any], count: int) -> np.ndarray:
    """Which points are held at 0."""
    given = inputs["boundary_conditions"]["dirichlet"]
    if given.get("values") is not None and np.any(given["values"]):
        raise ValueError("dirichlet.values: only 0 is known here")
    return np.asarray(given["mask"])[:count] > 0


def face_loads(
    inputs: Mapping[str, Any], points: np.ndarray, cells: np.ndarray, components: int
) -> np.ndarray:
    """The load of each point, of what acts on faces whose points are all in one group."""
    given = inputs["boundary_conditions"]["neumann"]
    groups = np.asarray(given["mask"])[: len(points)]
    faces = cells[:, FACES].reshape(-1, 4)
    marked = groups[faces]
    faces = faces[(marked[:, 0] > 0) & (marked == marked[:, :1]).all(1)]
    one, other = (points[faces[:, k + 2]] - points[faces[:, k]] for k in (0, 1))
    areas = np.linalg.norm(np.cross(one, other), axis=1) / 2  # by the diagonals
    density = np.asarray(given["values"], float)[groups[faces[:, 0]] - 1]
    loads = np.zeros((len(points), components))
    np.add.at(loads, faces, (density * areas[:, None] / 4)[:, None, :])
    return loads


def quadrature(points: np.ndarray, cells: np.ndarray) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    """The slopes of the shape functions, (cells, 8, 3), with weights (cells,), at eight places."""
    found = []
    for place in CORNERS / np.sqrt(3):
        factors = 1 + CORNERS * place
        slopes = (
            CORNERS
            / 8
            * np.stack([factors[:, (k + 1) % 3] * factors[:, (k + 2) % 3] for k in range(3)], 1)
        )
        jacobian = np.einsum("ak,caj->ckj", slopes, points[cells])
        found.append((slopes @ np.linalg.inv(jacobian).transpose(0, 2, 1), np.linalg.det(jacobian)))
    return found


def box_mesh(cells: tuple[int, int, int], sides: tuple[float, float, float]) -> dict[str, Any]:
    """Mosaic's mesh of a box: x innermost, then y, then z."""
    nx, ny, nz = cells
    axes = [np.linspace(0, side, n + 1) for side, n in zip(sides, cells, strict=True)]
    z, y, x = np.meshgrid(*axes[::-1], indexing="ij")
    points = np.stack([x.ravel(), y.ravel(), z.ravel()], -1)
    k, j, i = np.meshgrid(*[np.arange(n) for n in (nz, ny, nx)], indexing="ij")
    first = ((k * (ny + 1) + j) * (nx + 1) + i).ravel()
    up, over = nx + 1, (nx + 1) * (ny + 1)
    around = np.array([0, 1, up + 1, up])
    faces = first[:, None] + np.concatenate([around, around + over])
    return dict(points=points, faces=faces, n_points=len(points), n_faces=len(faces))
