"""Mosaic's protocol on our solvers, without containers: errors of gradients, times, optima.

    python benchmarks/mosaic/run.py --quick              # small sizes: does everything work?
    python benchmarks/mosaic/run.py --only heat --write  # one task; keeps its rows in results.md

Mosaic (pasteurlabs/mosaic on GitHub, arXiv 2606.27895) gives the physics, sizes, inputs and outputs. Random
initial states and directions are of NumPy's generator, not of JAX's. Numbers are f64, Mosaic's f32.
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import heat as heat_task
import navier_stokes_2d
import navier_stokes_3d
import numpy as np
import structure as structure_task
import sweeps
from protocol import Inputs, Row, Solver, adam, difference_error, seconds
from scipy.optimize import minimize
from sweeps import flow_inputs

import diffsim as ds
from diffsim.runtime.files import write_text

HERE = Path(__file__).parent
COLUMNS = "| task | what | best published | diffsim |\n|---|---|---|---|\n"


def error_row(
    solver: Solver, inputs: Inputs, published: str, steps: Sequence[float], directions: int
) -> Row:
    """The error of the gradient."""
    error, cosine = difference_error(solver, inputs, steps, directions)
    assert cosine > 0.999999, cosine
    return "gradient against differences", published, f"{error:.1e}"


def time_rows(solver: Solver, inputs: Inputs, size: str, published: Sequence[str]) -> list[Row]:
    """Seconds of the outputs, and of Mosaic's gradient, which runs `apply` and `vjp`."""
    calls = {"apply": solver.apply, "apply and VJP": solver.gradient}
    rows = []
    for (name, call), best in zip(calls.items(), published, strict=True):
        clock, processor = seconds(partial(call, inputs))
        ours = f"{clock:.3g} s, {processor:.3g} s of the processor"
        rows.append((f"{name}, {size}", best, ours))
    return rows


def fluid_2d(quick: bool) -> list[Row]:
    """F2, the periodic part."""
    solver = Solver(navier_stokes_2d.apply, navier_stokes_2d.vjp, "v0", "result")
    n, steps = (32, 5) if quick else (256, 100)
    small = flow_inputs(navier_stokes_2d.vortices(16), 0.001, 0.05, 20)
    large = flow_inputs(navier_stokes_2d.vortices(n), 0.01, 0.01, steps)
    return [
        error_row(solver, small, "7.1e-6", [1.0, 1e-1, 1e-2, 1e-3], 4 if quick else 20),
        *time_rows(solver, large, f"N = {n}, {steps} steps", ("0.113 s", "2.01 s")),
    ]


def fluid_3d(quick: bool) -> list[Row]:
    """F3."""
    solver = Solver(navier_stokes_3d.apply, navier_stokes_3d.vjp, "v0", "result")
    n, steps = (16, 5) if quick else (64, 50)
    small = flow_inputs(navier_stokes_3d.taylor_green(16), 0.001, 0.05, 10)
    large = flow_inputs(navier_stokes_3d.taylor_green(n), 0.01, 0.01, steps)
    return [
        error_row(solver, small, "4.5e-6", [1.0, 1e-1, 1e-2, 1e-3], 3 if quick else 10),
        *time_rows(solver, large, f"N = {n}, {steps} steps", ("1.19 s", "4.48 s")),
    ]


def random_density(cells: int) -> np.ndarray:
    """Mosaic's `random`: around 0.5."""
    noise = np.random.default_rng(0).standard_normal(cells).astype(np.float32)
    return np.clip(0.5 + 0.3 * noise, 0.05, 0.95).astype(float)


def heat(quick: bool) -> list[Row]:
    """H: the gradient, times of larger meshes, and conductivities found from temperatures."""
    solver = Solver(heat_task.apply, heat_task.vjp, "rho", "thermal_compliance")
    nx = 16 if quick else 64
    small = heat_task.heated_slab(8, 4) | dict(rho=random_density(32))
    large = heat_task.heated_slab(nx, nx // 2, 2 / nx) | dict(rho=np.full(nx * nx // 2, 0.5))
    return [
        error_row(solver, small, "1.8e-5", [1e-1, 1e-2, 1e-3, 1e-4], 6),
        *time_rows(solver, large, f"{nx} x {nx // 2} x 1 elements", ("", "")),
        *conductivity(20 if quick else 200),
    ]


def conductivity(iterations: int) -> list[Row]:
    """Find two spots of good conductor from the temperature, by L-BFGS-B."""
    slab, truth = heat_task.heated_slab(16, 8), heat_task.two_gaussians(16, 8)
    target = heat_task.apply({**slab, "rho": truth})["temperature"]
    slab["target_temperature"] = target

    def miss(rho: np.ndarray) -> tuple[float, np.ndarray]:
        inputs = {**slab, "rho": rho}
        error = float(heat_task.apply(inputs)["identification_error"])
        gradient = heat_task.vjp(inputs, {"identification_error": np.ones(())})["rho"]
        return error, gradient

    start = np.full(len(truth), 0.5)
    limits = [(1e-3, 1.0)] * len(truth)
    precise = dict(maxiter=iterations, ftol=0, gtol=1e-12)
    found = minimize(miss, start, jac=True, method="L-BFGS-B", bounds=limits, options=precise)
    what = f"conductivity: squares of the miss, at first → after {found.nit} iterations"
    return [(what, "", f"{miss(start)[0]:.3g} → {found.fun:.2g}")]


def structure(quick: bool) -> list[Row]:
    """S: the gradient, times with N = 16, and the stiffest beam of half the material."""
    solver = Solver(structure_task.apply, structure_task.vjp, "rho", "compliance")
    small = structure_task.cantilever(8, 2, 4, corner=True) | dict(rho=random_density(64))
    large = structure_task.cantilever(16, 2, 8, corner=False) | dict(rho=np.full(256, 0.5))
    return [
        error_row(solver, small, "2.1e-5", [1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4], 6),
        *time_rows(solver, large, "N = 16", ("0.013 s", "0.034 s")),
        *stiffest_beam(5 if quick else 2500),
    ]


def stiffest_beam(iterations: int) -> list[Row]:
    """Mosaic's optimisation by Adam, with a penalty for the volume."""
    beam = structure_task.cantilever(16, 2, 8, corner=True)

    def loss(rho: np.ndarray) -> tuple[float, np.ndarray]:
        inputs = {**beam, "rho": rho}
        value = float(structure_task.apply(inputs)["compliance"])
        gradient = structure_task.vjp(inputs, {"compliance": np.ones(())})["rho"]
        excess = rho.mean() - 0.5
        return value + 50 * excess**2, gradient + 100 * excess / len(rho)

    start = np.full(256, 0.5)
    rho, losses = adam(loss, start, 0.05, iterations, 100, (1e-3, 1.0))
    before, after = (structure_task.apply({**beam, "rho": r})["compliance"] for r in (start, rho))
    what = f"SIMP: compliance at first → after {len(losses)} iterations"
    return [(what, "1.00e-3", f"{before:.4g} → {after:.4g}, volume {rho.mean():.3f}")]


def drag(quick: bool) -> list[Row]:
    """F2 with the cylinder: the gradient, and the inflow of least drag."""
    solver = Solver(navier_stokes_2d.apply, navier_stokes_2d.vjp, "inflow_profile", "drag")
    inputs = navier_stokes_2d.channel(32, 10 if quick else 200)
    return [
        error_row(solver, inputs, "", [1e-2, 1e-3, 1e-4], 3 if quick else 10),
        *time_rows(solver, inputs, f"N = 32, {inputs['steps']} steps", ("", "")),
        *least_drag(inputs, "", 3 if quick else 250),
    ]


def lattice(quick: bool) -> list[Row]:
    """The same with XLB's method and its number for the drag: the best of those that are published."""
    solver = Solver(navier_stokes_2d.apply, navier_stokes_2d.vjp, "inflow_profile", "drag")
    inputs = navier_stokes_2d.channel(32, 2 if quick else 200) | dict(scheme="lattice")
    return [
        error_row(solver, inputs, "", [1e-3, 1e-4, 1e-5], 3 if quick else 10),
        *time_rows(solver, inputs, f"N = 32, {inputs['steps']} steps", ("", "")),
        *least_drag(inputs, "−4.78e-2", 3 if quick else 250),
    ]


def least_drag(inputs: Inputs, published: str, iterations: int) -> list[Row]:
    """Mosaic's optimisation by Adam, with a penalty for the mean inflow, and the same by L-BFGS-B."""

    def loss(profile: np.ndarray) -> tuple[float, np.ndarray]:
        given = {**inputs, "inflow_profile": profile}
        found, gradient = navier_stokes_2d.drag_and_gradient(given)
        excess = profile.mean() - 0.5
        slope = np.sign(found) * gradient + 100 * excess / len(profile)
        return abs(found) + 50 * excess**2, slope

    def row(how: str, published: str, profile: np.ndarray) -> Row:
        profiles = (inputs["inflow_profile"], profile)
        before, after = (
            navier_stokes_2d.apply({**inputs, "inflow_profile": p})["drag"][0] for p in profiles
        )
        what = f"drag at first → after {how}"
        return what, published, f"{before:.2e} → {after:.2e}, mean inflow {profile.mean():.4f}"

    start = inputs["inflow_profile"]
    profile, losses = adam(loss, start, 5e-4, iterations, 50, (0.0, 1.5))
    limits, few = [(0.0, 1.5)] * len(start), dict(maxiter=max(1, iterations // 5))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options=few)
    return [
        row(f"{len(losses)} iterations of Adam", published, profile),
        row(f"{found.nit} iterations of L-BFGS-B", "", found.x),
    ]


TASKS = {
    "heat": heat,
    "structure": structure,
    "fluid_2d": fluid_2d,
    "forward_2d": sweeps.forward_2d,
    "horizon_2d": sweeps.horizon_2d,
    "drag": drag,
    "lattice": lattice,
    "fluid_3d": fluid_3d,
    "forward_3d": sweeps.forward_3d,
    "recovery": sweeps.recovery,
    "spectra": sweeps.spectra,
    "horizon": sweeps.horizon_3d,
}


def table(rows: dict[str, list[Row]]) -> str:
    """All rows as Markdown."""
    lines = [f"| {name} | " + " | ".join(row) + " |" for name in rows for row in rows[name]]
    return COLUMNS + "\n".join(lines) + "\n"


def keep(rows: dict[str, list[Row]]) -> None:
    """Put rows in the place of those of the same tasks in results.md."""
    kept = HERE / "results.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    merged = {name: rows.get(name, before.get(name)) for name in TASKS}
    merged = {name: found for name, found in merged.items() if found}
    write_text(kept, json.dumps(merged, indent=1, ensure_ascii=False) + "\n")
    write_text(HERE / "results.md", (HERE / "about.md").read_text() + table(merged))


def main(argv: Sequence[str] | None = None) -> dict[str, list[Row]]:
    """Run the tasks that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(TASKS), help="tasks, with commas")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--write", action="store_true", help="keep the rows in results.md")
    args = parser.parse_args(argv)
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    rows = {name: TASKS[name](args.quick) for name in args.only.split(",")}
    print(table(rows))
    if args.write:
        keep(rows)
    return rows


if __name__ == "__main__":
    main()
