"""Simulations that only run forwards: what physics keeps, and closed forms."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import numbers


@pytest.fixture
def exact(example):
    """Import one of them, in f64."""

    def load(name):
        ds.init(arch=ds.cpu, default_fp=ds.f64)
        return example(name)

    return load


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("julia", ["--size", "16"]),
        ("ising", ["--cells", "8"]),
        ("nbody", ["--bodies", "9"]),
        ("falling_cloth", ["--points", "5"]),
    ],
)
def test_films(example, tmp_path, name, options):
    example(name).main(["--steps", "2", "--out", str(tmp_path), *options])
    assert (tmp_path / f"{name}.gif").stat().st_size > 50
    assert "<script>" in (tmp_path / f"{name}.html").read_text()


def test_mpm88_keeps_mass_and_momentum(exact):
    mpm = exact("mpm88")
    x = 0.4 + 0.2 * np.random.default_rng(1).random((50, 2))  # away from the walls
    liquid = mpm.Liquid(x, area=0.04)
    liquid.v.from_numpy(numbers(50, 2))
    liquid.C.from_numpy(numbers(50, 2, 2, seed=1))
    liquid.J.from_numpy(1 + 0.1 * numbers(50, seed=2))
    before = liquid.v.to_numpy().sum(0)
    liquid.step()
    assert liquid.grid_m.to_numpy().sum() == pytest.approx(0.04 * mpm.RHO, rel=1e-12)
    gained = liquid.v.to_numpy().sum(0) - before
    np.testing.assert_allclose(gained, [0, -50 * mpm.DT * mpm.GRAVITY], atol=1e-12)


def test_mpm88_falls_freely(exact):
    mpm = exact("mpm88")
    liquid = mpm.Liquid(0.4 + 0.2 * np.random.default_rng(1).random((50, 2)), area=0.04)
    for _ in range(5):
        liquid.step()
    np.testing.assert_allclose(liquid.v.to_numpy()[:, 1], -5 * mpm.DT * mpm.GRAVITY, rtol=1e-9)


def test_sparse_mpm_keeps_mass_and_momentum_in_few_blocks(exact):
    mpm = exact("sparse_mpm")
    x = 10 + 0.1 * np.random.default_rng(1).random((50, 2))
    drops = mpm.Drops(x, numbers(50, 2), area=0.01)
    drops.C.from_numpy(numbers(50, 2, 2, seed=1))
    drops.J.from_numpy(1 - 0.1 * abs(numbers(50, seed=2)))
    before = drops.v.to_numpy().sum(0)
    drops.step()
    gained = drops.v.to_numpy().sum(0) - before
    np.testing.assert_allclose(gained, [0, -50 * mpm.DT * mpm.GRAVITY], atol=1e-10)
    base = (x / mpm.DX - 0.5).astype(int)
    points = {(i + a, j + b) for i, j in base for a in range(3) for b in range(3)}
    blocks = {(i // mpm.BLOCK, j // mpm.BLOCK) for i, j in points}
    assert {(i, j) for i, j in drops.blocks_in_use()} == blocks
    assert sum(drops.grid_m[k] for k in points) == pytest.approx(0.01 * mpm.RHO, rel=1e-12)


def test_grains_find_all_neighbours(exact):
    grains = exact("grains")
    x = grains.heap(np.random.default_rng(2), 6, 6) * 0.9  # they overlap
    heap = grains.Grains(x)
    v = numbers(36, 2)
    heap.v.from_numpy(v)
    heap.step()
    gap, speed = x[:, None] - x, v[:, None] - v
    distance = np.linalg.norm(gap, axis=2) + np.eye(36)
    n, overlap = gap / distance[..., None], 2 * grains.RADIUS - distance
    size = grains.STIFFNESS * overlap - grains.DAMPING * (speed * n).sum(2)
    push = (np.where(overlap > 0, size, 0)[..., None] * n).sum(1)
    assert (overlap > 0).sum() > 30
    np.testing.assert_allclose(heap.push.to_numpy(), push - [0, grains.GRAVITY], atol=1e-5)


def test_mpm_energy_keeps_momentum_and_turn(exact):
    mpm = exact("mpm_energy")
    x, triangles = mpm.disc(0.5, 0.5, 0.1, rings=3)
    jelly = mpm.Jelly(x, triangles, gravity=0.0)
    middle = x - 0.5
    jelly.x.from_numpy(0.5 + middle @ [[1.2, 0.1], [0.0, 0.9]])
    jelly.v.from_numpy(np.stack([1 - middle[:, 1], middle[:, 0]], 1))
    mass = jelly.mass.to_numpy()
    area = np.pi * 0.1**2 * np.sin(np.pi / 9) / (np.pi / 9)  # of the 18 corners of its rim
    assert mass.sum() == pytest.approx(mpm.DENSITY * area, rel=1e-12)
    momentum = mass @ jelly.v.to_numpy()
    jelly.step()
    force, places = -jelly.x.grad.to_numpy(), 0.5 + middle @ [[1.2, 0.1], [0.0, 0.9]]
    assert abs(force).max() > 1e-3
    np.testing.assert_allclose(force.sum(0), 0, atol=1e-12)
    turn = places[:, 0] * force[:, 1] - places[:, 1] * force[:, 0]
    assert turn.sum() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(mass @ jelly.v.to_numpy(), momentum, atol=1e-12)


def test_fem_energy_has_the_stress_of_a_stretch(exact):
    # With F = diag(s, 1) the neo-Hookean stress is P = μ (F - F⁻ᵀ) + λ ln(s) F⁻ᵀ.
    fem = exact("fem_energy")
    rubber, s = fem.Rubber(4), 1.1
    x = rubber.x.to_numpy()
    rubber.x.from_numpy(x * [s, 1])
    with ds.Tape(rubber.total):
        rubber.energy()
    pull = rubber.x.grad.to_numpy()
    right = np.isclose(x[:, 0], fem.SIDE)
    stress = fem.MU * (s - 1 / s) + fem.LAMBDA * np.log(s) / s
    assert pull[right, 0].sum() == pytest.approx(stress * fem.SIDE, rel=1e-12)
    top = np.isclose(x[:, 1], fem.SIDE)
    assert pull[top, 1].sum() == pytest.approx(fem.LAMBDA * np.log(s) * fem.SIDE, rel=1e-12)
    inside = (x > 0.01).all(1) & (x < fem.SIDE - 0.01).all(1)
    np.testing.assert_allclose(pull[inside], 0, atol=1e-9)


def test_fem_energy_lies_on_the_floor(exact):
    fem = exact("fem_energy")
    rubber = fem.Rubber(2)
    rubber.x.from_numpy(rubber.x.to_numpy() + [0.8, 0.001])
    for _ in range(200):
        rubber.step()
    assert -1e-3 < rubber.x.to_numpy()[:, 1].min() < 1e-3


def test_wind_without_divergence(exact):
    fluids = exact("stable_fluids")
    n = 16
    fluid = fluids.Fluid(n)
    x, y = 2 * np.pi * np.mgrid[:n, :n] / n
    # The whirl of a stream function at the corners is free of divergence: it stays.
    stream = np.cos(x) * np.cos(y)
    whirl = np.stack([np.roll(stream, -1, 1) - stream, stream - np.roll(stream, -1, 0)], -1)
    fluid.wind.from_numpy(whirl)
    fluid.project()
    np.testing.assert_allclose(fluid.wind.to_numpy(), whirl, atol=1e-14)
    # Of a slope of cos x · cos y each of Jacobi's sweeps leaves the part cos(2π/n) over.
    slope = np.stack([stream - np.roll(stream, 1, 0), stream - np.roll(stream, 1, 1)], -1)
    fluid.wind.from_numpy(whirl + slope)
    fluid.pressure.fill(0)
    fluid.project()
    left = np.cos(2 * np.pi / n) ** fluids.SWEEPS
    np.testing.assert_allclose(fluid.wind.to_numpy(), whirl + left * slope, atol=1e-13)


def test_wind_carries_dye(exact):
    fluid = exact("stable_fluids").Fluid(8)
    fluid.wind.fill([2.0, -1.0])
    dye = numbers(8, 8)
    fluid.dye.from_numpy(dye)
    fluid.step()
    np.testing.assert_allclose(fluid.dye.to_numpy(), np.roll(dye, (2, -1), (0, 1)), atol=1e-12)
    np.testing.assert_allclose(fluid.wind.to_numpy(), np.full((8, 8, 2), [2.0, -1.0]), atol=1e-12)


def test_two_bodies_go_around_each_other(exact):
    # Masses 3/4 and 1/4, one apart: they turn once in 2π on circles around the centre of mass.
    nbody = exact("nbody")
    x = np.array([[0.25, 0, 0], [-0.75, 0, 0]])
    bodies = nbody.Bodies(
        np.array([0.75, 0.25]), x, x @ [[0, 1, 0], [-1, 0, 0], [0, 0, 0]], soft=0.0
    )
    errors = []
    for steps in (200, 400):
        bodies.x.from_numpy(x)
        bodies.v.from_numpy(x @ [[0, 1, 0], [-1, 0, 0], [0, 0, 0]])
        for _ in range(steps):
            bodies.step(2 * np.pi / steps)
        errors.append(abs(bodies.x.to_numpy() - x).max())
    assert errors[0] < 2 * np.pi * (2 * np.pi / 200) ** 2
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.02)  # leapfrog is of second order


def test_galaxies_keep_momentum(exact):
    bodies = exact("nbody").encounter(30, seed=0)
    mass = bodies.mass.to_numpy()
    assert mass.sum() == pytest.approx(1.5, rel=1e-12)
    before = mass @ bodies.v.to_numpy()
    for _ in range(5):
        bodies.step()
    np.testing.assert_allclose(mass @ bodies.v.to_numpy(), before, atol=1e-13)


def test_cloth_falls_freely_and_rests_on_the_ball(exact):
    falling = exact("falling_cloth")
    cloth = falling.Cloth(5, height=2.0)
    x = cloth.x.to_numpy()
    for _ in range(20):
        cloth.step()
    keep, dt = 1 - falling.AIR * cloth.dt, cloth.dt
    speed = 0.0
    for _ in range(20):
        speed = (speed - dt * falling.GRAVITY) * keep
    np.testing.assert_allclose(cloth.v.to_numpy(), np.full((5, 5, 3), [0, 0, speed]), atol=1e-9)
    np.testing.assert_allclose(cloth.x.to_numpy()[..., :2], x[..., :2], atol=1e-12)
    # Springs pull both ends alike: with no weight and no air the momentum stays.
    cloth = falling.Cloth(5, height=2.0, gravity=0.0)
    cloth.x.from_numpy(x + 0.05 * numbers(5, 5, 3))
    cloth.v.from_numpy(numbers(5, 5, 3, seed=1))
    cloth.accelerate()
    force = cloth.force.to_numpy()
    assert abs(force).max() > 1
    np.testing.assert_allclose(force.sum((0, 1)), 0, atol=1e-10)
    cloth = falling.Cloth(5, height=falling.RADIUS + 1e-3)
    for _ in range(300):
        cloth.step()
    assert np.linalg.norm(cloth.x.to_numpy(), axis=-1).min() > falling.RADIUS * (1 - 1e-12)
    middle = cloth.x.to_numpy()[2, 2]
    assert np.linalg.norm(middle) < falling.RADIUS + 0.02


def test_neighbours_of_water_are_all_found(exact):
    sph = exact("sph")
    x = np.random.default_rng(0).random((80, 2)) * (0.5, 0.5) + 0.2
    water = sph.Water(x, spacing=0.04, gravity=0.0)
    water.v.from_numpy(numbers(80, 2))
    water.sort()
    water.weigh()
    assert sorted(water.list.to_numpy()) == list(range(80))
    q = np.minimum(np.linalg.norm(x[:, None] - x, axis=-1) / water.reach, 1)
    spline = 7 / (np.pi * water.reach**2) * (1 - q) ** 4 * (1 + 4 * q)
    np.testing.assert_allclose(water.rho.to_numpy(), water.mass * spline.sum(1), rtol=1e-12)
    water.accelerate()
    push = water.push.to_numpy()
    assert abs(push).max() > 1
    np.testing.assert_allclose(push.sum(0), 0, atol=1e-12 * abs(push).sum())
    turn = x[:, 0] * push[:, 1] - x[:, 1] * push[:, 0]
    assert turn.sum() == pytest.approx(0, abs=1e-12 * abs(push).sum())


def test_the_spline_has_its_slope_and_its_integral(exact):
    water = exact("sph").Water(np.array([[0.5, 0.5]]), spacing=0.1)
    found = ds.field(float, shape=(400, 2))

    @ds.kernel
    def sample():
        for k in range(400):
            r = (k + 0.5) / 400 * water.reach
            found[k, 0] = water.weight(r)
            found[k, 1] = water.slope(ds.Vector([r, 0.0]), r)[0]

    sample()
    weight, slope = found.to_numpy().T
    dr = water.reach / 400
    r = (np.arange(400) + 0.5) * dr
    assert (weight * 2 * np.pi * r * dr).sum() == pytest.approx(1, rel=1e-4)
    np.testing.assert_allclose(
        slope[1:-1], (weight[2:] - weight[:-2]) / (2 * dr), atol=2e-4 * abs(slope).max()
    )


def test_flow_between_plates(exact):
    # A force along a channel: the profile is a parabola, F y (H - y) / 2ν. With τ = 1/2 + √3/4 the walls
    # lie exactly half-way between solid and fluid.
    lattice = exact("lattice_boltzmann")
    solid = np.zeros((2, 10), bool)
    solid[:, [0, -1]] = True
    viscosity, force = 3**0.5 / 12, 1e-5
    flow = lattice.Flow(solid, viscosity, force=force)
    for _ in range(600):
        flow.two_steps()
    y = np.arange(8) + 0.5
    expected = force * y * (8 - y) / (2 * viscosity)
    v = flow.v.to_numpy()[:, 1:-1]
    np.testing.assert_allclose(v[..., 0], [expected] * 2, rtol=1e-8)
    np.testing.assert_allclose(v[..., 1], 0, atol=1e-12)
    assert flow.density.to_numpy().sum() == pytest.approx(20, rel=1e-12)


def test_pillar_in_the_wind(exact):
    lattice = exact("lattice_boltzmann")
    flow = lattice.Flow(lattice.pillar(20), 0.05, wind=0.1)
    for _ in range(20):
        flow.two_steps()
    v = flow.v.to_numpy()
    np.testing.assert_allclose(v[0], np.full((20, 2), [0.1, 0]), rtol=1e-12)
    assert np.isfinite(v).all()
    assert v[15, 10, 0] < 0.05 < v[12, 4, 0]  # behind the pillar, and beside it


def test_magnets_beside_onsager(example):
    # Also the energy of a pair, from the same solution: -coth(2β)/2 · (1 + 2/π (2 tanh²(2β) - 1) K).
    ising = example("ising")
    ds.init(arch=ds.cpu, random_seed=3)
    magnets, means, pairs = ising.Magnets(64, (2.0, 3.5)), [], []
    for sweep in range(150):
        magnets.step()
        s = magnets.spin.to_numpy()
        if sweep >= 50:
            means.append(s.mean((1, 2)))
            pairs.append(-(s * np.roll(s, 1, 1)).mean((1, 2)))
    cold, hot = np.mean(means, 0)
    assert cold == pytest.approx(ising.exact(2.0), abs=0.015)  # 0.911
    assert hot == pytest.approx(0, abs=0.05)
    special = pytest.importorskip("scipy.special")
    for t, found in zip((2.0, 3.5), np.mean(pairs, 0), strict=True):
        b = 2 / t
        K = special.ellipk((2 * np.sinh(b) / np.cosh(b) ** 2) ** 2)
        energy = -0.5 / np.tanh(b) * (1 + 2 / np.pi * (2 * np.tanh(b) ** 2 - 1) * K)
        assert found == pytest.approx(energy, abs=0.01)


def test_magnets_need_an_even_lattice(example, capsys, tmp_path):
    with pytest.raises(SystemExit):
        example("ising").main(["--cells", "7", "--out", str(tmp_path)])
    assert "--cells has to be even and at least 2, not 7" in capsys.readouterr().err


def test_julia_set_of_0_is_a_disc(exact):
    # |z| is squared again and again, so it passes R after log2(log R / log |z|) squarings.
    module = exact("julia")
    julia = module.Julia(20)
    julia.paint(0.0, 0.0)
    x, y = 1.8 * ((np.mgrid[:40, :20] + 0.5) / 20 - np.array([1, 0.5])[:, None, None])
    r = np.hypot(x, y)
    count = julia.count.to_numpy()
    assert (count[r < 1] == module.MOST).all()
    outside = r > 1
    expected = np.log2(np.log(module.FAR) / np.log(r[outside]))
    np.testing.assert_allclose(count[outside], expected, atol=1e-9)
