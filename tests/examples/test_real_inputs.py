"""Examples with real inputs: closed forms, gradients against differences, one line for each wrong file."""

import importlib.util
import json

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, numbers


@pytest.fixture
def exact(example):
    """Import an example, in f64."""

    def load(name):
        ds.init(arch=ds.cpu, default_fp=ds.f64)
        return example(name)

    return load


def complaint(module, capsys, *arguments):
    """The last line of what an example says about its arguments."""
    with pytest.raises(SystemExit) as ended:
        module.main([str(a) for a in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# --- a tsunami


def test_tsunami_gradient(exact):
    tsunami = exact("tsunami")
    depth = 100 + 50 * numbers(6, 5)
    depth[2, 3] = depth[4, 1] = 0  # islands
    sea = tsunami.Sea(depth, (1e3, 2e3), [(1, 1), (4, 3)], steps=6, sponge=1)
    sea.source.from_numpy(numbers(6, 5, seed=1))
    sea.record.from_numpy(numbers(7, 2, seed=2))
    check(sea.program, sea.loss, sea.source)


def test_tsunami_swings_in_a_basin_and_keeps_its_water(exact):
    # In a closed basin of one depth a cosine swings in its own shape, by cos(k t') with the scheme's
    # frequency, sin(k/2) = dt c / dx sin(π/2n); v is half a step apart from the surface.
    tsunami = exact("tsunami")
    n, steps = 12, 9
    sea = tsunami.Sea(np.full((n, 3), 80.0), (500.0, 500.0), [(0, 0)], steps, sponge=0)
    mode = np.cos(np.pi * (np.arange(n) + 0.5) / n)[:, None] * np.ones(3)
    eta = sea.run(mode)
    k = 2 * np.arcsin(sea.dt * np.sqrt(tsunami.GRAVITY * 80) / 500 * np.sin(np.pi / 2 / n))
    expected = np.cos(k * (np.arange(steps + 1) + 0.5)) / np.cos(k / 2)
    np.testing.assert_allclose(eta, expected[:, None, None] * mode, atol=1e-12)
    depth = 80 + 20 * numbers(n, 3)
    depth[5, 1] = 0
    hump = np.where(depth > 0, numbers(n, 3, seed=1), 0)
    sea = tsunami.Sea(depth, (500.0, 400.0), [(0, 0)], steps, sponge=0)
    water = sea.run(hump).sum((1, 2))
    np.testing.assert_allclose(water, water[0], rtol=1e-12)


def test_tsunami_reads_depths(exact, tmp_path, capsys):
    tsunami = exact("tsunami")
    topo, lon, lat = tsunami.read(None)
    assert topo.shape == (lon.size, lat.size)
    depth = np.where(topo < 0, -topo, 0)
    for place in tsunami.GAUGES.values():
        i, j = tsunami.nearest_water(depth, lon, lat, place)
        assert np.hypot(lon[i] - place[0], lat[j] - place[1]) < 0.15
    file, out = tmp_path / "sea.npz", tmp_path / "out"
    bathymetry = ("--out", out, "--bathymetry", file)
    assert "sea.npz does not exist; name a file" in complaint(tsunami, capsys, *bathymetry)
    file.write_text("no arrays")
    assert "has to be an .npz file with the arrays topo" in complaint(tsunami, capsys, *bathymetry)
    good = {"topo": -np.ones((20, 21)), "longitude": np.arange(21.0), "latitude": np.arange(20.0)}
    for change, message in (
        ({"topo": -np.ones((21, 20))}, "topo is (21, 20); it has to be (latitudes, longitudes), which are"),
        ({"latitude": np.arange(20.0)[::-1]}, "longitude and latitude have to grow"),
        ({"topo": np.ones((20, 21))}, "there is no water"),
    ):  # fmt: skip
        np.savez(file, **(good | change))
        assert message in complaint(tsunami, capsys, *bathymetry)


def test_tsunami_is_found(example, tmp_path):
    tsunami = example("tsunami")
    losses = tsunami.main(["--steps", "40", "--iterations", "6", "--out", str(tmp_path)])
    assert losses[-1] < 0.6 * losses[0]
    assert (tmp_path / "sources.png").stat().st_size > 1000
    assert "<script>" in (tmp_path / "tsunami.html").read_text()


# --- a pendulum


def test_pendulum_gradient_and_small_swings(exact):
    module = exact("system_identification")
    pendulum = module.Pendulum(numbers(8), 0.1)
    pendulum.p.from_numpy(np.array([0.7, 0.2, 0.3, 0.4, -0.5]))
    check(pendulum.program, pendulum.loss, pendulum.p)
    # Small swings: a cos(w t) exp(-b t / 2) with w² = g / l - b² / 4, if it is let go of with -a b / 2.
    a, b = 1e-4, 0.3
    pendulum = module.Pendulum(np.zeros(100), 0.01)
    pendulum.p.from_numpy(np.array([0.7, b, 0.0, a, -a * b / 2]))
    t = 0.01 * np.arange(100)
    expected = a * np.cos(np.sqrt(module.GRAVITY / 0.7 - b**2 / 4) * t) * np.exp(-b * t / 2)
    np.testing.assert_allclose(pendulum.motion(), expected, atol=1e-6 * a)


def test_pendulum_of_another_integrator_is_found(example, tmp_path):
    integrate = pytest.importorskip("scipy.integrate")
    truth = np.array([0.5, 0.1, 0.2, 1.0, 0.5])

    def change(t, s):
        return s[1], -9.81 / truth[0] * np.sin(s[0]) - truth[1] * s[1] - truth[2] * s[1] * abs(s[1])

    time = 0.02 * np.arange(150)
    run = integrate.solve_ivp(change, (0, 3), truth[3:], "DOP853", time, rtol=1e-11, atol=1e-12)
    rows = "".join(f"{t:.2f},{a:.12f}\n" for t, a in zip(time, run.y[0], strict=True))
    (tmp_path / "motion.csv").write_text("# without noise\ntime,angle\n" + rows)
    found = example("system_identification").main(
        [str(tmp_path / "motion.csv"), "--out", str(tmp_path), "--iterations", "60"]
    )
    np.testing.assert_allclose(found, truth, rtol=0.01)
    assert (tmp_path / "fit.png").is_file()
    assert "<script>" in (tmp_path / "system_identification.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory; a file to start from is"),
        ("", 'the first row has to name a column "time", not []'),
        ("time,height\n0,1\n", "the first row has to name a column \"angle\", not ['time', 'height']"),
        ("# note\ntime,angle\n0,1\n0.1,fast\n", "line 4: time and angle have to be numbers, not ["),
        ("time,angle\n0,1\n0.1\n", "line 3: time and angle have to be numbers, not ['0.1']"),
        ("time,angle\n0,1\n0.1,nan\n", "line 3: time and angle have to be numbers"),
        ("time,angle\n0,1\n", "at least 10 rows are needed, not 1"),
        ("time,angle\n" + "".join(f"{t},0\n" for t in (*range(9), 20)), "times have to grow by"),
        ("time,angle\n" + "0,0\n" * 12, "times have to grow by the same step"),
    ],
)  # fmt: skip
def test_wrong_measurements(exact, tmp_path, capsys, text, message):
    file = tmp_path / "motion.csv"
    if text is not None:
        file.write_text(text)
    found = complaint(exact("system_identification"), capsys, file, "--out", tmp_path / "out")
    assert "motion.csv" in found
    assert message in found


# --- a sheet from a mesh


def squares(n, m):
    """Two triangles for each of n by m squares with sides of 1 cm: points, corners."""
    points = np.mgrid[: n + 1, : m + 1].reshape(2, -1).T * 0.01
    number = np.arange((n + 1) * (m + 1)).reshape(n + 1, m + 1)
    a, b = number[:-1, :-1].ravel(), number[1:, :-1].ravel()
    c, d = number[:-1, 1:].ravel(), number[1:, 1:].ravel()
    return points, np.concatenate([np.stack([a, b, c], 1), np.stack([d, c, b], 1)])


def test_sheet_of_one_stress(exact):
    # Pulled at both ends it has the pull as its stress everywhere, and gets longer by pull / Young.
    mesh = exact("fem_mesh")
    points, triangles = squares(4, 3)
    right = mesh.pulled(points, triangles, 1e6)
    held = np.zeros(len(points))
    held[np.argmin(points.sum(1))] = 1  # a corner: no shift; turning is not excited
    force = right.force.to_numpy()
    force[:, 0] -= force[::-1, 0]
    sheet = mesh.Sheet(points, triangles, held, force)
    sheet.settle()
    np.testing.assert_allclose(sheet.stress.to_numpy(), 1e6, rtol=1e-4)
    u = sheet.displacement()
    assert u[:, 0].max() == pytest.approx(1e6 / mesh.YOUNG * 0.04, rel=1e-3)
    # At rest the energy is minus half of the work.
    work = (u * force).sum()
    assert sheet.total[None] * sheet.energy_scale == pytest.approx(-0.5 * work, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({1: None, 3: None}, "triangles 1, 3 are flipped"),
        ({0: [0, 0, 1]}, "triangles 0 have no area"),
        ({0: [0, 1, 99]}, "corners have to be numbers of points, 0 to 19"),
    ],
)
def test_wrong_meshes(exact, change, message):
    mesh = exact("fem_mesh")
    points, triangles = squares(4, 3)
    for k, corners in change.items():
        triangles[k] = triangles[k, ::-1] if corners is None else corners
    if message is None:
        return mesh.check(points, triangles)
    with pytest.raises(mesh.MeshError, match=message):
        mesh.check(points, triangles)


def test_meshes_in_no_plane_and_without_triangles(exact, capsys, tmp_path):
    mesh = exact("fem_mesh")
    points, triangles = squares(2, 2)
    high = np.column_stack([points, points[:, 0]])
    with pytest.raises(mesh.MeshError, match="has to lie in a plane z = const"):
        mesh.check(high, triangles)
    with pytest.raises(mesh.MeshError, match="there are no triangles"):
        mesh.check(points, triangles[:0])
    found = complaint(mesh, capsys, tmp_path / "no.msh", "--out", tmp_path)
    assert "no.msh does not exist; a mesh to start from is" in found


def test_mesh_files(exact, tmp_path, capsys):
    mesh = exact("fem_mesh")
    if importlib.util.find_spec("meshio") is None:
        assert 'pip install "diffsim-lang[mesh]"' in complaint(mesh, capsys, "--out", tmp_path)
        pytest.skip("meshio is not installed")
    points, triangles = mesh.read(mesh.MESH)
    assert len(points) > 500
    assert (triangles.max() < len(points)).all()
    (tmp_path / "odd.msh").write_text("no mesh")
    assert "cannot be read by meshio" in complaint(
        mesh, capsys, tmp_path / "odd.msh", "--out", tmp_path
    )


# --- a lens

BALL = {
    "focal_length": 100, "aperture": 1e-4, "angles": [0], "film": 100,
    "surfaces": [{"radius": 50, "next": 10, "index": 1.5}, {"radius": -80, "next": 0, "index": 1}],
}  # fmt: skip


def test_lens_has_the_focus_of_the_lensmaker(exact):
    # Rays near the axis meet f (1 - (n - 1) d / (n R1)) behind the last surface.
    lens = exact("lens").Lens(BALL, 2)
    x = lens.lines()
    power = 0.5 * (1 / 50 + 1 / 80 - 0.5 * 10 / (1.5 * 50 * 80))
    back = (1 - 0.5 * 10 / (1.5 * 50)) / power
    height, end = x[2, 0, 1], x[3, 0, 1]
    focus = height[0] + height[1] * (end[0] - height[0]) / (height[1] - end[1])
    assert focus - 10 == pytest.approx(back, rel=1e-6)


def test_lens_bends_light_as_snell_says(exact):
    # One ray, at a height of half the radius: exact angles by hand.
    glass = {**BALL, "aperture": 100.0, "surfaces": [
        {"radius": 50, "next": 0, "index": 1.5}, {"radius": 1e12, "next": 0, "index": 1},
    ]}  # fmt: skip
    x = exact("lens").Lens(glass, 2).lines()[:, 0, 1]
    assert x[1] == pytest.approx([50 - 50 * np.cos(np.pi / 6), 25], rel=1e-12)
    turned = np.pi / 6 - np.arcsin(np.sin(np.pi / 6) / 1.5)
    way = x[2] - x[1]
    assert np.arctan2(way[1], way[0]) % np.pi == pytest.approx(np.pi - turned, rel=1e-9)


def test_lens_gradient_and_design(exact, tmp_path):
    module = exact("lens")
    lens = module.Lens(module.read(module.LENS), 3)
    check(lens.program, lens.loss, lens.curve, lens.film)
    losses = module.main(["--out", str(tmp_path), "--rays", "5", "--iterations", "15"])
    assert losses[-1] < 0.01 * losses[0]
    assert (tmp_path / "lens.png").is_file()
    assert "<script>" in (tmp_path / "lens.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"film": -1}, '"film" has to be a positive number [mm]'),
        ({"colour": 1}, '"colour" has to be one of focal_length, aperture'),
        ({"angles": []}, '"angles" has to be a list of numbers from 0 to 60'),
        ({"surfaces": [{"radius": 50}]}, '"surfaces[0]" has to be an object with'),
        (
            {"surfaces": [{"radius": 0, "next": 0, "index": 1}]},
            '"surfaces[0].radius" has to be a number',
        ),
        (
            {"surfaces": [{"radius": 9, "next": 0, "index": 1.5}]},
            '"surfaces[0].index" has to be 1: the film',
        ),
        (None, "No such file or directory; a lens to start from is"),
    ],
)
def test_wrong_lenses(exact, tmp_path, capsys, change, message):
    file = tmp_path / "lens.json"
    if change is not None:
        file.write_text(json.dumps(BALL | change))
    found = complaint(exact("lens"), capsys, file, "--out", tmp_path / "out")
    assert "lens.json: " in found
    assert message in found
