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


def lattice_drag(solid, v0, profile, steps):
    """The number of XLB's solver in NumPy: the mean of the second half of the steps."""
    n, viscosity, dt = len(solid), 0.0025, 0.02
    h, split = 1 / n, int(np.ceil(0.02 * n * np.sqrt(3) / 0.1))
    dt, steps = dt / split, steps * split
    c = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)])
    w = np.array([1, 4, 1, 4, 16, 4, 1, 4, 1]) / 36
    half_rate = 1 / (6 * viscosity * dt / h**2 + 1)

    def balance(rho, u):
        cu = np.einsum("qd,d...->q...", c, u)
        return (
            w.reshape(-1, *[1] * rho.ndim) * rho * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (u**2).sum(0))
        )

    f, still = balance(np.ones((n, n)), np.moveaxis(v0, -1, 0) * dt / h), w[:, None]
    inlet = balance(np.ones(n), np.stack([profile, 0 * profile]) * dt / h)
    links = [~solid & np.roll(solid, tuple(-a), (0, 1)) for a in c]
    drags = []
    for _ in range(steps):
        f = np.stack([np.roll(g, tuple(a), (0, 1)) for g, a in zip(f, c, strict=True)])
        rho = f.sum(0)
        e = balance(rho, np.einsum("qd,qij->dij", c, f) / rho)
        p = np.einsum("qa,qb,qij->abij", c, c, f - e)
        s = [(x * x - y * y) * (p[0, 0] - p[1, 1]) + x * y * p[0, 1] for x, y in c] * rho / 4
        r = f - e - s
        mix = (s * r / e).sum(0) / (1e-12 + (r * r / e).sum(0))
        f = f - half_rate * (2 * s + (1 / half_rate - (2 - 1 / half_rate) * mix) * r)
        f[:, solid], f[:, 0], f[:, :, [0, -1]] = still, inlet, still[:, :, None]
        met = sum(a[0] * g[at].sum() for a, g, at in zip(c, f, links, strict=True))
        drags.append(-2 * met * h**3 / dt**2)
    return np.mean(drags[steps - steps // 2 :])


def test_flow_on_a_lattice(task):
    flow = task("navier_stokes_2d")
    inputs = flow.channel(10, 2) | dict(scheme="lattice")
    inputs["v0"] = inputs["v0"] + 0.1 * np.random.default_rng(5).standard_normal((10, 10, 1, 2))
    inputs["obstacle"]["radius"] = 0.15
    solid = task("obstacle_flow").cylinder(10, (0.5, 0.5), 0.15)
    expected = lattice_drag(solid, inputs["v0"][:, :, 0], inputs["inflow_profile"], 2)
    assert flow.apply(inputs)["drag"][0] == pytest.approx(expected, rel=1e-11)
    # from balance, where the entropic rate has its kink, and from elsewhere
    check_vjp(flow, inputs, "inflow_profile", "drag", 1e-5)
    check_vjp(flow, inputs, "v0", "result", 1e-5)


def test_reference_of_flows_in_a_cube(task):
    flow, sweeps = task("navier_stokes_2d"), task("sweeps")
    v0 = np.zeros((8, 8, 8, 3))
    v0[..., :2] = flow.taylor_green(8)
    decayed = v0 * np.exp(-2 * 0.1)
    np.testing.assert_allclose(sweeps.spectral(v0, 0.1, 1.0, 10), decayed, atol=1e-7)
    np.testing.assert_allclose(sweeps.without_divergence(v0), v0, atol=1e-14)
    # turned about, so that other axes and components are asked
    turned = np.moveaxis(np.roll(v0, 1, -1), 2, 0)
    np.testing.assert_allclose(
        sweeps.spectral(turned, 0.1, 1.0, 10), turned * np.exp(-0.2), atol=1e-7
    )


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
