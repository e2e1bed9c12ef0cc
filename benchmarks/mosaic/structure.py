"""Mosaic's task S: a cantilever beam of elastic material, by its density (SIMP).

Inputs: rho (n_cells,), boundary_conditions (surface tractions), hex_mesh. Output: compliance (), the work of
the load. Gradient: rho.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hex_elements import HexElements, box_mesh, face_loads, held_points, mesh_of, quadrature

YOUNG, POISSON = 70_000.0, 0.3  # [MPa], of solid material
_beams: dict[bytes, HexElements] = {}  # by mesh and boundary conditions


def apply(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The compliance."""
    beam = prepared(inputs)
    beam.solve()
    return {"compliance": np.array(beam.compliance[None])}


def vjp(inputs: Mapping[str, Any], cotangents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of cotangent · compliance."""
    beam = prepared(inputs)
    beam.gradient({beam.compliance: float(cotangents["compliance"])})
    return {"rho": beam.density.grad.to_numpy()}


def prepared(inputs: Mapping[str, Any]) -> HexElements:
    """The solver for this mesh, with the density."""
    points, cells = mesh_of(inputs)
    loads = face_loads(inputs, points, cells, 3).ravel()
    held = np.repeat(held_points(inputs, len(points)), 3)
    key = b"".join(a.tobytes() for a in (points, cells, loads, held))
    if key not in _beams:
        unknowns = (3 * cells[:, :, None] + np.arange(3)).reshape(len(cells), 24)
        matrices = sum(stiffness(slopes, weights) for slopes, weights in quadrature(points, cells))
        _beams[key] = HexElements(unknowns, matrices, held, loads, np.zeros(unknowns.shape))
    beam = _beams[key]
    beam.density.from_numpy(np.asarray(inputs["rho"], float)[: len(cells)])
    return beam


def stiffness(slopes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What one place of the quadrature adds to the matrices of elements, (cells, 24, 24)."""
    shear = YOUNG / (2 * (1 + POISSON))
    lame = YOUNG * POISSON / ((1 + POISSON) * (1 - 2 * POISSON))
    unit = np.eye(3)
    # of a displacement i of node a and j of node b: λ ∂i ∂j + μ (∂j ∂i + δij ∂k ∂k)
    parts = lame * np.einsum("cai,cbj->caibj", slopes, slopes)
    parts += shear * np.einsum("caj,cbi->caibj", slopes, slopes)
    parts += shear * np.einsum("cak,cbk,ij->caibj", slopes, slopes, unit)
    return (parts * weights[:, None, None, None, None]).reshape(-1, 24, 24)


def cantilever(nx: int, ny: int, nz: int, corner: bool) -> dict[str, Any]:
    """Mosaic's beam of 2 x 1 x 1, held at x = 0: pulled up at a corner of x = 2, or down on all of it."""
    mesh = box_mesh((nx, ny, nz), (2.0, 1.0, 1.0))
    x, y, z = mesh["points"].T
    loaded = x > 2 - 1e-6
    traction = -1.0
    if corner:
        loaded &= (y < 1 / ny + 1e-6) & (z < 1 / nz + 1e-6)
        traction = ny * nz
    conditions = dict(
        dirichlet=dict(mask=(x < 1e-6).astype(np.int32), values=None),
        neumann=dict(mask=loaded.astype(np.int32), values=np.array([[0, 0, traction]], float)),
    )
    return dict(hex_mesh=mesh, boundary_conditions=conditions)
