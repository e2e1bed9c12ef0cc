"""Mosaic's task H: steady heat in a slab, by the conductivity of its elements.

Inputs: rho and source (n_cells,), target_temperature (n_nodes,), boundary_conditions, hex_mesh. Outputs:
thermal_compliance (), temperature (n_nodes,), identification_error (). Gradients: rho, source.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hex_elements import HexElements, box_mesh, face_loads, held_points, mesh_of, quadrature

_slabs: dict[bytes, HexElements] = {}  # by mesh and boundary conditions


def apply(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Temperature, compliance (heat flux times temperature on the surface), and squares of the miss."""
    slab = prepared(inputs)
    slab.solve()
    return {
        "thermal_compliance": np.array(slab.compliance[None]),
        "temperature": slab.everywhere(int(inputs["hex_mesh"]["n_points"])),
        "identification_error": np.array(slab.misfit[None]),
    }


def vjp(inputs: Mapping[str, Any], cotangents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of sum(cotangents · outputs)."""
    slab = prepared(inputs)
    fields = {
        "thermal_compliance": (slab.compliance, ...),
        "temperature": (slab.solution, slab.free),
        "identification_error": (slab.misfit, ...),
    }
    chosen = {fields[k][0]: np.asarray(v, float)[fields[k][1]] for k, v in cotangents.items()}
    slab.gradient(chosen)
    return {"rho": slab.density.grad.to_numpy(), "source": slab.source.grad.to_numpy()}


def prepared(inputs: Mapping[str, Any]) -> HexElements:
    """The solver for this mesh, with density, source and target."""
    slab = slab_of(inputs)
    cells = int(inputs["hex_mesh"]["n_faces"])
    slab.density.from_numpy(np.asarray(inputs["rho"], float)[:cells])
    source = np.asarray(inputs.get("source", np.zeros(cells)), float)
    slab.source.from_numpy(source[:cells])
    target = np.asarray(inputs.get("target_temperature", np.zeros(int(slab.free[-1]) + 1)), float)
    slab.target.from_numpy(target[slab.free])
    return slab


def slab_of(inputs: Mapping[str, Any]) -> HexElements:
    """The solver for this mesh and these boundary conditions, made once."""
    points, cells = mesh_of(inputs)
    loads = face_loads(inputs, points, cells, 1)[:, 0]
    held = held_points(inputs, len(points))
    key = b"".join(a.tobytes() for a in (points, cells, loads, held))
    if key not in _slabs:
        places = quadrature(points, cells)
        matrices = sum(np.einsum("cak,cbk,c->cab", s, s, w) for s, w in places)
        volumes = sum(w for _, w in places)
        shares = np.repeat(volumes[:, None] / 8, 8, axis=1)
        _slabs[key] = HexElements(cells, matrices, held, loads, shares)
    return _slabs[key]


def heated_slab(nx: int, ny: int, thickness: float = 1.0) -> dict[str, Any]:
    """Mosaic's slab of 2 x 1: cold at x = 0, a heat flux of 1 through x = 2."""
    mesh = box_mesh((nx, ny, 1), (2.0, 1.0, thickness))
    x = mesh["points"][:, 0]
    conditions = dict(
        dirichlet=dict(mask=(x < 1e-6).astype(np.int32), values=np.zeros((1, 1))),
        neumann=dict(mask=(x > 2 - 1e-6).astype(np.int32), values=np.array([[1 / thickness]])),
    )
    return dict(hex_mesh=mesh, boundary_conditions=conditions, source=np.zeros(nx * ny))


def two_gaussians(nx: int, ny: int) -> np.ndarray:
    """Mosaic's conductivity to be found: two round spots."""
    x, y = np.meshgrid((np.arange(nx) + 0.5) * 2 / nx, (np.arange(ny) + 0.5) / ny)
    spots = [np.exp(-((x - c) ** 2 + (y - 0.5) ** 2) / (2 * 0.15**2)) for c in (0.6, 1.4)]
    return np.clip(sum(spots), 0, 1).ravel()
