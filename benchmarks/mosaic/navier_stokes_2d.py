"""Mosaic's task F2: flow in a square, by its initial velocity, or around a cylinder by its inflow.

Inputs: v0 (N, N, 1, 2), viscosity (1,), dt (1,), steps, domain_extent; for the cylinder obstacle (a dict of
center and radius, in sides of the square) and inflow_profile (N,). Outputs: result (N, N, 1, 2), drag (1,).
Gradients: v0, inflow_profile. With `scheme="lattice"` the cylinder's flow is that of `lattice_flow.py`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import periodic_flow
from lattice_flow import LatticeFlow, parts
from obstacle_flow import ObstacleFlow, cylinder
from periodic_flow import times, velocity


def apply(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The velocity after the last step, and the drag if there is an obstacle."""
    if inputs.get("obstacle") is None:
        return periodic_flow.apply(inputs)
    flow = prepared(inputs)
    flow.simulate(*times(inputs))
    result = flow.result.to_numpy().reshape(np.shape(inputs["v0"]))
    return {"result": result, "drag": np.array([flow.drag[None]])}


def vjp(inputs: Mapping[str, Any], cotangents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of sum(cotangents · outputs)."""
    if inputs.get("obstacle") is None:
        return periodic_flow.vjp(inputs, cotangents)
    flow, weights = prepared(inputs), {}
    if "drag" in cotangents:
        weights[flow.drag] = float(np.ravel(cotangents["drag"])[0])
    if "result" in cotangents:
        weights[flow.result] = np.reshape(cotangents["result"], velocity(inputs).shape)
    flow.gradient(weights, *times(inputs))
    v0 = flow.v0.grad.to_numpy().reshape(np.shape(inputs["v0"]))
    return {"v0": v0, "inflow_profile": flow.profile.grad.to_numpy()}


def drag_and_gradient(inputs: Mapping[str, Any]) -> tuple[float, np.ndarray]:
    """The drag and its gradient by the inflow, of one run."""
    flow = prepared(inputs)
    flow.gradient({flow.drag: np.ones(())}, *times(inputs))
    return float(flow.drag[None]), flow.profile.grad.to_numpy()


@cache
def flow_around(n: int, center: tuple[float, float], radius: float, length: float) -> ObstacleFlow:
    """The solver for a cylinder."""
    return ObstacleFlow(cylinder(n, center, radius), length)


@cache
def lattice_around(
    n: int, center: tuple[float, float], radius: float, length: float, steps: int
) -> LatticeFlow:
    """The same on a lattice, for a number of steps."""
    return LatticeFlow(cylinder(n, center, radius), length, steps)


def prepared(inputs: Mapping[str, Any]) -> ObstacleFlow | LatticeFlow:
    """The solver with initial velocity and inflow."""
    obstacle, length = inputs["obstacle"], float(inputs["domain_extent"])
    x, y = obstacle["center"]
    v0 = velocity(inputs)
    shape = len(v0), (float(x), float(y)), float(obstacle["radius"]), length
    if inputs.get("scheme") == "lattice":
        dt, _, steps = times(inputs)
        flow = lattice_around(*shape, steps * parts(dt, length / len(v0)))
    else:
        flow = flow_around(*shape)
    flow.v0.from_numpy(v0)
    flow.profile.from_numpy(np.asarray(inputs["inflow_profile"], float))
    return flow


def channel(n: int, steps: int) -> dict[str, Any]:
    """Mosaic's cylinder at a Reynolds number of 20, with an even inflow."""
    v0 = np.zeros((n, n, 1, 2))
    v0[..., 0] = 0.5
    return dict(
        v0=v0,
        viscosity=[0.0025],
        dt=[0.02],
        steps=steps,
        domain_extent=1.0,
        obstacle=dict(shape="cylinder", center=[0.5, 0.5], radius=0.05),
        inflow_profile=np.full(n, 0.5),
    )


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
