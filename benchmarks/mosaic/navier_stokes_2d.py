"""Mosaic's task F2: flow in a periodic square, by its initial velocity.

Inputs: v0 (N, N, 1, 2), viscosity (1,), dt (1,), steps, domain_extent. Output: result (N, N, 1, 2).
Gradient: v0.
"""

import numpy as np
from periodic_flow import apply, vjp

__all__ = ["apply", "taylor_green", "vjp", "vortices"]


def taylor_green(n: int) -> np.ndarray:
    """Mosaic's `tgv`: vortices that keep their shape and decay by exp(-2 ν t)."""
    x, y = np.meshgrid(*[2 * np.pi * np.arange(n) / n] * 2, indexing="ij")
    return np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)], -1)[:, :, None]


def vortices(n: int, seed: int = 42) -> np.ndarray:
    """Mosaic's `multimode`: random phases around wave number 2, at most 0.3 m/s (phases of our own)."""
    wave = np.fft.fftfreq(n, 1 / n)
    kx, ky = np.meshgrid(wave, wave, indexing="ij")
    envelope = np.exp(-0.5 * ((np.hypot(kx, ky) - 2) / 0.5) ** 2)
    phases = np.random.default_rng(seed).uniform(0, 2 * np.pi, (n, n))
    stream = envelope * np.exp(1j * phases)
    u = np.stack([np.fft.ifft2(1j * k * stream).real for k in (ky, -kx)], -1)
    return 0.3 * (u / np.linalg.norm(u, axis=-1).max())[:, :, None]
