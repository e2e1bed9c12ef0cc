"""Solvers for Mosaic's tasks: gradients against central differences, outputs against closed forms."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "mosaic"


@pytest.fixture
def task(monkeypatch, cpu, quick_code):
    """Import a module of benchmarks/mosaic by its name, all of them anew in each test."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for path in FOLDER.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    cpu.init(arch=cpu.cpu, default_fp=cpu.f64)
    yield importlib.import_module
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def check_vjp(module, inputs, control, output, size=1e-4):
    """The VJP for random cotangents against a central difference in a random direction."""
    random = np.random.default_rng(1)
    weights = random.standard_normal(np.shape(module.apply(inputs)[output]))
    way = random.standard_normal(np.shape(inputs[control]))

    def total(sign):
        moved = np.asarray(inputs[control]) + sign * size * way
        return np.sum(weights * module.apply({**inputs, control: moved})[output])

    gradient = module.vjp(inputs, {output: weights})[control]
    assert gradient.shape == np.shape(inputs[control])
    difference = (total(1) - total(-1)) / (2 * size)
    assert np.sum(gradient * way) == pytest.approx(difference, rel=1e-7)
    return gradient


def flow_inputs(v0, steps):
    return dict(v0=v0, viscosity=[0.01], dt=[0.05], steps=steps, domain_extent=2 * np.pi)


def test_flow_in_a_plane(task):
    flow = task("navier_stokes_2d")
    check_vjp(flow, flow_inputs(flow.vortices(8), 3), "v0", "result")
    inputs = flow_inputs(flow.taylor_green(12), 5)
    decayed = inputs["v0"] * np.exp(-2 * 0.01 * 0.05 * 5)
    # Euler's steps for friction and differences of fourth order, of few points
    np.testing.assert_allclose(flow.apply(inputs)["result"], decayed, atol=2e-5)


def test_flow_around_a_cylinder(task):
    flow = task("navier_stokes_2d")
    inputs = flow.channel(10, 3)
    inputs["v0"] = inputs["v0"] + 0.1 * np.random.default_rng(5).standard_normal((10, 10, 1, 2))
    inputs["obstacle"]["radius"] = 0.15
    check_vjp(flow, inputs, "inflow_profile", "drag")
    check_vjp(flow, inputs, "v0", "result")
    solver = flow.prepared(inputs)
    solver.simulate(*flow.times(inputs))
    u, v = solver.u.to_numpy(), solver.v.to_numpy()
    np.testing.assert_array_equal(u[0], inputs["inflow_profile"])
    assert not u[5, 5]  # the cylinder and the walls are closed
    assert not v[:, [0, -1]].any()
    np.testing.assert_allclose(np.roll(u, -1, 0) - u + np.diff(v, axis=1), 0, atol=1e-14)


def test_flow_in_a_cube(task):
    flow = task("navier_stokes_3d")
    v0 = flow.taylor_green(6) + 0.1 * np.random.default_rng(2).standard_normal((6, 6, 6, 3))
    inputs = flow_inputs(v0, 6)
    gradient = check_vjp(flow, inputs, "v0", "result")
    weights = {"result": np.random.default_rng(1).standard_normal(v0.shape)}
    kept = flow.vjp({**inputs, "memory": 200_000}, weights)["v0"]  # less than six states
    np.testing.assert_array_equal(kept, gradient)


def test_friction_takes_more_steps_where_one_would_not_be_stable(task):
    flow = task("navier_stokes_2d")
    inputs = flow_inputs(flow.taylor_green(12), 8) | dict(viscosity=[2.0])
    decayed = inputs["v0"] * np.exp(-2 * 2.0 * 0.05 * 8)
    np.testing.assert_allclose(flow.apply(inputs)["result"], decayed, atol=0.02)


def test_heat_through_a_slab(task):
    heat = task("heat")
    slab = heat.heated_slab(4, 2) | dict(rho=np.ones(8))
    found = heat.apply(slab)
    # a flux of 1 through a conductivity of 1: the temperature is x
    np.testing.assert_allclose(found["temperature"], slab["hex_mesh"]["points"][:, 0], atol=1e-13)
    assert found["thermal_compliance"] == pytest.approx(2.0, rel=1e-13)
    random = np.random.default_rng(3)
    slab |= dict(rho=random.uniform(0.3, 0.9, 8), source=random.random(8))
    slab["target_temperature"] = random.random(30)
    for control in ("rho", "source"):
        check_vjp(heat, slab, control, "temperature", 1e-5)
        check_vjp(heat, slab, control, "identification_error", 1e-5)
    assert check_vjp(heat, slab, "rho", "thermal_compliance", 1e-5).any()


def test_heat_is_held_at_zero_only(task):
    heat = task("heat")
    slab = heat.heated_slab(2, 1) | dict(rho=np.ones(2))
    slab["boundary_conditions"]["dirichlet"]["values"] = np.ones((1, 1))
    with pytest.raises(ValueError, match="only 0 is known"):
        heat.apply(slab)


def test_elastic_beam(task):
    structure = task("structure")
    beam = structure.cantilever(2, 1, 1, corner=True)
    points, cells = structure.mesh_of(beam)
    matrices = sum(structure.stiffness(s, w) for s, w in structure.quadrature(points, cells))
    random = np.random.default_rng(4)
    slope = random.standard_normal((3, 3))
    moved = (
        points[cells[0]] @ slope.T
    ).ravel()  # a uniform strain: λ tr² + 2 μ ε:ε, times the volume
    strain, shear = (slope + slope.T) / 2, 70_000 / 2.6
    energy = 0.3 * 70_000 / (1.3 * 0.4) * np.trace(strain) ** 2 + 2 * shear * (strain**2).sum()
    assert moved @ matrices[0] @ moved == pytest.approx(energy, rel=1e-12)
    beam["rho"] = random.uniform(0.3, 0.9, 2)
    check_vjp(structure, beam, "rho", "compliance", 1e-5)
