"""Mosaic's task F3: flow in a periodic cube, by its initial velocity.

Inputs: v0 (N, N, N, 3), viscosity (1,), dt (1,), steps, domain_extent, and of our own `memory`, bytes for
states, if steps are to be run again instead of kept. Output: result (N, N, N, 3). Gradient: v0.
"""

import numpy as np
from periodic_flow import apply, vjp

__all__ = ["apply", "taylor_green", "vjp"]


def taylor_green(n: int) -> np.ndarray:
    """Mosaic's `tgv3d`: vortices that stretch and decay."""
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(n) / n] * 3, indexing="ij")
    u, v = np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z)
    return np.stack([u, v, 0 * u], -1)
