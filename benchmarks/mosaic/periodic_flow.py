"""Incompressible flow in a periodic box, in two or three dimensions: the solver of both fluid tasks.

Velocity u and pressure are known in the same points. Derivatives are central differences of fourth order;
advection is half u·∇u and half ∇·(u u), which conserves energy; its time steps are Adams and Bashforth's of
second order (the first one Euler's), those of friction Euler's. Then the gradient of a pressure makes the
velocity free of divergence. The system for the pressure is solved by Fourier transforms with the wave numbers
of these differences, so that what they see of the divergence is 0 to rounding. It is its own adjoint.

Fields that neighbours are read from have two layers of copies around the box (`GHOSTS`).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

import diffsim as ds

GHOSTS = 2
FRICTION_LIMIT = 1.8  # of 2: what a step of Euler's may take of the fastest mode


@ds.data_oriented
class PeriodicFlow:
    """A box with n points along each of its sides.

    Attributes:
        v0, result: the velocity at first and at the end [m/s].
        u: the velocity, which steps overwrite; `carried`: what advection did to it in the step before [m/s²].
    """

    def __init__(self, dimensions: int, n: int, length: float) -> None:
        self.d, self.n, self.spacing = dimensions, n, length / n
        box, wide = (n,) * dimensions, (n + 2 * GHOSTS,) * dimensions

        def vectors(shape: tuple[int, ...]) -> ds.Field:
            return ds.Vector.field(dimensions, ds.f64, shape=shape, needs_grad=True)

        self.v0, self.result, self.carried = vectors(box), vectors(box), vectors(box)
        self.u, self.free = vectors(wide), vectors(wide)  # free: before the pressure acts
        self.divergence = ds.field(ds.f64, shape=box, needs_grad=True)  # [1/s]
        self.potential = ds.field(ds.f64, shape=box, needs_grad=True)  # dt p / ρ [m²/s]
        self.pressure = ds.field(ds.f64, shape=wide, needs_grad=True)  # the same, with ghosts
        self.modes = np.empty((*box[:-1], n // 2 + 1), complex)  # buffers of the transforms
        self.solved = np.empty(box)
        self.inverse = inverse_of_modes(dimensions, n, self.spacing)

    @ds.func
    def slope(self, values: ds.template(), p, axis: ds.template()):
        """The derivative along an axis."""
        e = p * 0
        e[axis] = 1
        close, far = values[p + e] - values[p - e], values[p + 2 * e] - values[p - 2 * e]
        return (8 * close - far) / (12 * self.spacing)

    @ds.func
    def curvature(self, p, axis: ds.template()):
        """The second derivative of the velocity along an axis."""
        e = p * 0
        e[axis] = 1
        close, far = self.u[p + e] + self.u[p - e], self.u[p + 2 * e] + self.u[p - 2 * e]
        return (16 * close - far - 30 * self.u[p]) / (12 * self.spacing**2)

    @ds.func
    def flow_out(self, p, axis: ds.template(), k: ds.template()):
        """Momentum that leaves along an axis, by neighbours k points away."""
        e = p * 0
        e[axis] = k
        here, up, down = self.u[p][axis], self.u[p + e], self.u[p - e]
        return (here + up[axis]) * up - (here + down[axis]) * down

    @ds.kernel
    def begin(self):
        for i in ds.grouped(self.v0):
            self.u[i + GHOSTS] = self.v0[i]
        for i in ds.grouped(self.carried):
            self.carried[i] = self.carried[i] * 0.0

    @ds.kernel
    def wrap(self, values: ds.template()):
        """Copy what the ghosts stand for."""
        for p in ds.grouped(values):
            q = (p - GHOSTS + self.n) % self.n + GHOSTS
            is_ghost = False
            for axis in ds.static(range(self.d)):
                if q[axis] != p[axis]:
                    is_ghost = True
            if is_ghost:
                values[p] = values[q]

    @ds.kernel
    def advance(self, dt: ds.f64, viscosity: ds.f64, now: ds.f64, before: ds.f64):
        for i in ds.grouped(self.carried):
            p = i + GHOSTS
            friction, out = self.u[p] * 0.0, self.u[p] * 0.0
            for axis in ds.static(range(self.d)):
                friction += self.curvature(p, axis)
                out += 8.0 * self.flow_out(p, axis, 1) - self.flow_out(p, axis, 2)
            rate = -out / (24 * self.spacing)
            change = viscosity * friction + now * rate - before * self.carried[i]
            self.free[p] = self.u[p] + dt * change
            self.carried[i] = rate

    @ds.kernel
    def diverge(self):
        for i in ds.grouped(self.divergence):
            total = 0.0
            for axis in ds.static(range(self.d)):
                total += self.slope(self.free, i + GHOSTS, axis)[axis]
            self.divergence[i] = total

    @ds.ad.grad_replaced
    def solve(self):
        self.potential.from_numpy(self.poisson(self.divergence.to_numpy()))

    @ds.ad.grad_for(solve)
    def solve_backward(self):
        sources = self.divergence.grad.to_numpy() + self.poisson(self.potential.grad.to_numpy())
        self.divergence.grad.from_numpy(sources)
        self.potential.grad.fill(0)  # the solve has overwritten what was there before

    def poisson(self, source: np.ndarray) -> np.ndarray:
        """The potential whose gradient has this divergence; the next call overwrites it."""
        axes = tuple(range(self.d))
        modes = np.fft.rfftn(source, axes=axes, out=self.modes)
        modes *= self.inverse
        return np.fft.irfftn(modes, s=source.shape, axes=axes, out=self.solved)

    @ds.kernel
    def spread(self):
        for i in ds.grouped(self.potential):
            self.pressure[i + GHOSTS] = self.potential[i]

    @ds.kernel
    def project(self):
        for i in ds.grouped(self.divergence):
            p = i + GHOSTS
            push = self.free[p] * 0.0
            for axis in ds.static(range(self.d)):
                push[axis] = self.slope(self.pressure, p, axis)
            self.u[p] = self.free[p] - push

    @ds.kernel
    def finish(self):
        for i in ds.grouped(self.result):
            self.result[i] = self.u[i + GHOSTS]

    def step(self, dt: float, viscosity: float, first: bool) -> None:
        """One time step."""
        self.advance(dt, viscosity, *((1.0, 0.0) if first else (1.5, 0.5)))
        self.wrap(self.free)
        self.diverge()
        self.solve()
        self.spread()
        self.wrap(self.pressure)
        self.project()
        self.wrap(self.u)

    def steps(self, dt: float, viscosity: float) -> int:
        """How many steps a time of dt takes, so that friction is stable."""
        fastest = 16 / 3 * self.d * viscosity * dt / self.spacing**2
        return max(1, int(np.ceil(fastest / FRICTION_LIMIT)))

    def simulate(self, dt: float, viscosity: float, steps: int, memory: int | None = None) -> None:
        """From v0 to result; with a budget of bytes for a tape, by checkpoints."""
        parts = self.steps(dt, viscosity)

        def step(t: int) -> None:
            self.step(dt / parts, viscosity, t == 0)

        def fresh_step(t: int) -> None:
            self.free.fill(0)  # all of it, so that checkpoints need not keep it
            self.pressure.fill(0)
            step(t)

        self.begin()
        self.wrap(self.u)
        if memory is None:
            for t in range(steps * parts):
                step(t)
        else:
            state = [self.u, self.carried]
            ds.ad.checkpoint(fresh_step, steps * parts, state=state, memory=memory)
        self.finish()

    def gradient(
        self, weights: np.ndarray, dt: float, viscosity: float, steps: int, memory: int | None
    ) -> np.ndarray:
        """The gradient of the sum of weights · result by v0."""
        tape = ds.Tape(in_place="save")
        with tape:
            self.simulate(dt, viscosity, steps, memory)
        self.v0.grad.fill(0)
        tape.backward(grads={self.result: weights})
        return self.v0.grad.to_numpy()


def inverse_of_modes(dimensions: int, n: int, spacing: float) -> np.ndarray:
    """1 over what the divergence of the gradient multiplies each Fourier mode by; 0 where that is 0."""

    def squares(modes: np.ndarray) -> np.ndarray:
        angle = 2 * np.pi * modes / n
        return ((8 * np.sin(angle) - np.sin(2 * angle)) / (6 * spacing)) ** 2

    sides = [squares(np.arange(n))] * (dimensions - 1) + [squares(np.arange(n // 2 + 1))]
    total = -sum(np.meshgrid(*sides, indexing="ij"))
    seen = np.abs(total) > 1e-9 / spacing**2
    return np.where(seen, 1 / np.where(seen, total, 1), 0)


flow = cache(PeriodicFlow)  # one for each size


def apply(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The velocity after the last step."""
    box = box_of(inputs)
    box.v0.from_numpy(velocity(inputs))
    box.simulate(*times(inputs))
    return {"result": box.result.to_numpy().reshape(np.shape(inputs["v0"]))}


def vjp(inputs: Mapping[str, Any], cotangents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of sum(cotangents · outputs)."""
    box = box_of(inputs)
    box.v0.from_numpy(velocity(inputs))
    weights = np.reshape(cotangents["result"], velocity(inputs).shape)
    gradient = box.gradient(weights, *times(inputs), inputs.get("memory"))
    return {"v0": gradient.reshape(np.shape(inputs["v0"]))}


def box_of(inputs: Mapping[str, Any]) -> PeriodicFlow:
    """The solver for this size."""
    shape = np.shape(inputs["v0"])
    return flow(shape[-1], shape[0], float(inputs.get("domain_extent", 2 * np.pi)))


def velocity(inputs: Mapping[str, Any]) -> np.ndarray:
    """v0 without the axis of length 1 that flows in a plane have."""
    v0 = np.asarray(inputs["v0"], float)
    return v0.reshape(*v0.shape[: v0.shape[-1]], v0.shape[-1])


def times(inputs: Mapping[str, Any]) -> tuple[float, float, int]:
    """Time step, viscosity and number of steps."""
    step, viscosity = (float(np.ravel(inputs[name])[0]) for name in ("dt", "viscosity"))
    return step, viscosity, int(inputs["steps"])
