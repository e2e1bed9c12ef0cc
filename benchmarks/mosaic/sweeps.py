"""Mosaic's sweeps over sizes, viscosities and horizons, spectra of Jacobians, and a lost initial state.

Each function returns rows for `run.py`. References are closed forms where there are any; for vortices in
three dimensions, which have none, a solver of its own that works on Fourier modes.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import navier_stokes_2d
import navier_stokes_3d
import numpy as np
from protocol import Row, Solver, difference_error, seconds
from scipy.optimize import minimize

SIDE = 2 * np.pi  # of a periodic box
PLANE = Solver(navier_stokes_2d.apply, navier_stokes_2d.vjp, "v0", "result")
CUBE = Solver(navier_stokes_3d.apply, navier_stokes_3d.vjp, "v0", "result")


def flow_inputs(v0: np.ndarray, viscosity: float, dt: float, steps: int) -> dict[str, object]:
    """Of a periodic flow."""
    return dict(v0=v0, viscosity=[viscosity], dt=[dt], steps=steps, domain_extent=SIDE)


def listed(names: Iterable[object], values: Iterable[float]) -> str:
    """Numbers, each with what it belongs to."""
    return ", ".join(f"{name}: {value:.1e}" for name, value in zip(names, values, strict=True))


def relative(found: np.ndarray, exact: np.ndarray) -> float:
    """The error of an array in the length of the exact one."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


# ---- the forward run against a reference


def decay_error(n: int, viscosity: float, dt: float, steps: int) -> float:
    """Of vortices in a plane, which decay by exp(-2 ν t) and keep their shape."""
    inputs = flow_inputs(navier_stokes_2d.taylor_green(n), viscosity, dt, steps)
    exact = inputs["v0"] * np.exp(-2 * viscosity * dt * steps)
    return relative(PLANE.apply(inputs)["result"], exact)


def divergence(v: np.ndarray) -> float:
    """Mosaic's: the root mean square, by central differences of second order."""
    axes, spacing = range(v.shape[-1]), SIDE / len(v)
    parts = [np.roll(v[..., k], -1, k) - np.roll(v[..., k], 1, k) for k in axes]
    return float(np.sqrt(np.mean((sum(parts) / (2 * spacing)) ** 2)))


def forward_2d(quick: bool) -> list[Row]:
    """Errors by size and by viscosity, and divergence."""
    sizes = (16, 32) if quick else (16, 32, 64, 128)
    viscosities = (1e-3, 5e-2) if quick else (1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2)
    by_size = [decay_error(n, 0.05, 0.01, 1) for n in sizes]
    n = 32 if quick else 64
    by_viscosity = [decay_error(n, nu, 0.05, 20) for nu in viscosities]
    end = PLANE.apply(flow_inputs(navier_stokes_2d.vortices(n), 0.01, 0.01, 20))["result"]
    return [
        ("error of one step, by N", "", listed(sizes, by_size)),
        (f"mean error of 20 steps over ν = 1e-4 … 5e-2, N = {n}", "6.2e-4", mean(by_viscosity)),
        ("divergence after 20 steps, random vortices", "", f"{divergence(end[:, :, 0]):.1e}"),
    ]


def mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1e}"


def spectral(v0: np.ndarray, viscosity: float, time: float, steps: int) -> np.ndarray:
    """Navier and Stokes on Fourier modes: Runge and Kutta's steps, two thirds of the modes."""
    n = len(v0)
    wave = np.fft.fftfreq(n, 1 / n)
    k = np.stack(np.meshgrid(wave, wave, wave, indexing="ij"))
    square = (k**2).sum(0)
    kept = (np.abs(k) < n / 3).all(0)
    axes = (1, 2, 3)

    def rate(modes: np.ndarray) -> np.ndarray:
        u = np.fft.ifftn(modes, axes=axes).real
        out = np.stack(
            [sum(1j * k[j] * np.fft.fftn(u[i] * u[j]) for j in range(3)) for i in range(3)]
        )
        out *= -1.0 * kept
        out -= k * (k * out).sum(0) / np.where(square, square, 1)
        return out - viscosity * square * modes

    modes, dt = np.fft.fftn(np.moveaxis(v0, -1, 0), axes=axes), time / steps
    for _ in range(steps):
        a = rate(modes)
        b = rate(modes + dt / 2 * a)
        c = rate(modes + dt / 2 * b)
        modes = modes + dt / 6 * (a + 2 * b + 2 * c + rate(modes + dt * c))
    return np.moveaxis(np.fft.ifftn(modes, axes=axes).real, 0, -1)


def forward_3d(quick: bool) -> list[Row]:
    """Errors by viscosity and by size, after 50 steps."""
    viscosities, sizes, steps = (0.001, 0.01, 0.05), (8, 16) if quick else (8, 16, 32), 50
    fine, every = 16 if quick else 32, {n: (16 if quick else 32) // n for n in sizes}

    def error(n: int, viscosity: float) -> float:
        inputs = flow_inputs(navier_stokes_3d.taylor_green(n), viscosity, 0.01, steps)
        start = navier_stokes_3d.taylor_green(fine)
        exact = spectral(start, viscosity, 0.01 * steps, 25)[(slice(None, None, every[n]),) * 3]
        return relative(CUBE.apply(inputs)["result"], exact)

    by_viscosity = [error(16, nu) for nu in viscosities]
    return [
        ("error of 50 steps by ν, N = 16", "", listed(viscosities, by_viscosity)),
        ("error of 50 steps by N, ν = 0.01", "", listed(sizes, [error(n, 0.01) for n in sizes])),
    ]


# ---- gradients


def horizon_2d(quick: bool) -> list[Row]:
    """The error of the gradient, by the number of steps and by viscosity."""
    rows, steps = [], (5, 10) if quick else (5, 10, 20, 40, 80, 160, 320)
    start = navier_stokes_2d.vortices(16)
    sizes = (1e-1, 1e-2, 1e-3, 1e-4)
    found = [difference_error(PLANE, flow_inputs(start, 1e-3, 0.05, t), sizes, 8) for t in steps]
    rows.append(("gradient against differences, by steps", "", listed(steps, first(found))))
    viscosities, steps = (0.05, 0.01, 0.005, 0.001), 10 if quick else 200
    inputs = [flow_inputs(start, nu, 0.05, steps) for nu in viscosities]
    found = [difference_error(PLANE, one, sizes, 4 if quick else 15) for one in inputs]
    what = f"gradient of {steps} steps against differences, by ν"
    return [*rows, (what, "", listed(viscosities, first(found)))]


def first(pairs: Iterable[tuple[float, float]]) -> list[float]:
    return [pair[0] for pair in pairs]


def jacobian(solver: Solver, inputs: dict[str, object]) -> np.ndarray:
    """All derivatives of the output, a row for each of its numbers."""
    size = np.size(inputs[solver.control])
    rows = np.empty((size, size))
    for i in range(size):
        weights = np.zeros(size)
        weights[i] = 1
        shaped = weights.reshape(np.shape(inputs[solver.control]))
        rows[i] = solver.vjp(inputs, {solver.output: shaped})[solver.control].ravel()
    return rows


def spectrum(solver: Solver, inputs: dict[str, object]) -> str:
    """Largest and smallest singular value of the Jacobian, and Mosaic's effective rank."""
    s = np.linalg.svd(jacobian(solver, inputs), compute_uv=False)
    rank = s.sum() ** 2 / (s**2).sum()
    return f"{s[0]:.3g} … {s[-1]:.2g}, rank {rank:.0f} of {len(s)}"


def spectra(quick: bool) -> list[Row]:
    """Of Jacobians with N = 8."""
    cases = [(0.001, 10), (0.001, 20), (0.001, 40), (0.01, 10)][: 1 if quick else 4]
    plane, cube = navier_stokes_2d.vortices(8), navier_stokes_3d.taylor_green(4 if quick else 8)
    rows = []
    for nu, steps in cases:
        what = f"singular values, {steps} steps, ν = {nu}"
        rows.append((f"2-D: {what}", "", spectrum(PLANE, flow_inputs(plane, nu, 0.05, steps))))
        rows.append((f"3-D: {what}", "", spectrum(CUBE, flow_inputs(cube, nu, 0.05, steps))))
    return rows


def horizon_3d(quick: bool, memory: int = 64 * 2**20) -> list[Row]:
    """F3: gradients of ever longer runs, in a stated number of bytes."""
    lengths = (40, 80) if quick else (40, 80, 160, 320, 640, 1280, 2560, 5120, 10240)
    times, norms = [], []
    for steps in lengths:
        inputs = flow_inputs(navier_stokes_3d.taylor_green(20), 0.001, 0.05, steps)
        found: list[np.ndarray] = []
        run = partial(_append, found, partial(CUBE.gradient, {**inputs, "memory": memory}))
        times.append(seconds(run, trials=1, warm=steps < 100)[1])
        norms.append(float(np.linalg.norm(found[-1])))
        assert np.isfinite(norms[-1])
    where = f"N = 20, states in {memory >> 20} MiB"
    of = ", ".join(f"{n}: {t:.3g}" for n, t in zip(lengths, times, strict=True))
    return [
        (f"gradient by steps, {where}: seconds of the processor", "", of),
        (f"gradient by steps, {where}: its length", "", listed(lengths, norms)),
    ]


def _append(found: list[np.ndarray], make: Callable[[], np.ndarray]) -> None:
    found.append(make())


# ---- the initial state, found from the last one


def random_flow(n: int, seed: int) -> np.ndarray:
    """Mosaic's `rand_div_free`: the curl of random modes around wave number 2, at most 1 m/s."""
    random = np.random.default_rng(seed)
    wave = np.fft.fftfreq(n, 1 / n)
    k = np.stack(np.meshgrid(wave, wave, wave, indexing="ij"), -1)
    envelope = np.exp(-0.5 * (np.linalg.norm(k, axis=-1) - 2) ** 2)
    modes = random.standard_normal((n, n, n, 3)) + 1j * random.standard_normal((n, n, n, 3))
    curl = 1j * np.cross(k, modes * envelope[..., None])
    u = np.fft.ifftn(curl, axes=(0, 1, 2)).real
    return without_divergence(u / np.linalg.norm(u, axis=-1).max())


def without_divergence(u: np.ndarray) -> np.ndarray:
    """Mosaic's projection: modes without their part along the wave vector."""
    n, axes = len(u), (0, 1, 2)
    wave = np.fft.fftfreq(n, 1 / n)
    k = np.stack(np.meshgrid(wave, wave, wave, indexing="ij"), -1)
    square = (k**2).sum(-1, keepdims=True)
    modes = np.fft.fftn(u, axes=axes)
    modes -= k * (k * modes).sum(-1, keepdims=True) / np.where(square, square, 1)
    return np.fft.ifftn(modes, axes=axes).real


def recovery(quick: bool) -> list[Row]:
    """From zeros by L-BFGS with gradients without divergence; the mean of three flows."""
    n, steps, iterations = (8, 10, 5) if quick else (16, 100, 100)
    errors = [recovered(random_flow(n, seed), steps, iterations) for seed in range(3)]
    what = f"error of the initial state after {iterations} iterations, N = {n}, {steps} steps"
    return [(what, "1.6e-3", f"{np.mean(errors):.1e}")]


def recovered(truth: np.ndarray, steps: int, iterations: int) -> float:
    """The error of an initial state that is found from the last one."""
    inputs = flow_inputs(truth, 0.01, 0.02, steps)
    target = CUBE.apply(inputs)["result"]

    def miss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        given = {**inputs, "v0": flat.reshape(truth.shape)}
        off = CUBE.apply(given)["result"] - target
        gradient = CUBE.vjp(given, {"result": 2 * off / off.size})["v0"]
        return float(np.mean(off**2)), without_divergence(gradient).ravel()

    precise = dict(maxiter=iterations, maxfun=4 * iterations, ftol=0, gtol=0)
    found = minimize(miss, 0 * truth.ravel(), jac=True, method="L-BFGS-B", options=precise)
    return relative(found.x.reshape(truth.shape), truth)
