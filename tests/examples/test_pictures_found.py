"""Waves, smoke, charges, two renderers: losses fall, gradients agree with differences, closed forms."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, numbers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch, cpu, quick_code):
    def load(name):
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.delitem(sys.modules, name, raising=False)
        ds.init(arch=ds.cpu, default_fp=ds.f64)
        return importlib.import_module(name)

    return load


def run(module, folder, *arguments):
    """Run an example at a small size; the losses that it returns."""
    losses = module.main([*map(str, arguments), "--out", folder])
    name = module.__name__
    assert (folder / "loss.png").stat().st_size > 1000
    assert "<script>" in (folder / f"{name}.html").read_text()
    assert list(folder.glob("*.gif"))
    return losses


def test_wave(example, tmp_path):
    wave = example("wave")
    membrane = wave.Membrane(6, 5)
    membrane.start.from_numpy(numbers(6, 6))
    membrane.target.from_numpy(numbers(6, 6, seed=1))
    check(membrane.program, membrane.loss, membrane.start)
    # A mode of the membrane swings in its own shape: from rest, the t-th height is cos(t·w) of the first.
    mode = np.sin(np.pi * np.arange(1, 7) / 7)
    membrane.start.from_numpy(np.outer(mode, mode))
    membrane.program()
    turn = np.arccos(1 - 2 * wave.COURANT * (1 - np.cos(np.pi / 7)))
    expected = np.cos(5 * turn) * np.outer(mode, mode)
    np.testing.assert_allclose(membrane.height.to_numpy()[5], expected, rtol=1e-12)
    losses = run(wave, tmp_path, "--cells", 24, "--steps", 12, "--iterations", 12)
    assert losses[-1] < 0.5 * losses[0]


def test_wave_takes_a_picture(example, tmp_path):
    wave = example("wave")
    image = np.zeros((4, 4, 3), np.uint8)
    image[3] = 255  # on the right
    ds.tools.imwrite(image, tmp_path / "image.png")
    found = wave.picture(tmp_path / "image.png", 8)
    np.testing.assert_array_equal(found, np.repeat([0, 1], [6, 2])[:, None] * np.ones(8))
    drawn = wave.picture(None, 64)
    assert drawn.shape == (64, 64)
    assert 0.1 < drawn.mean() < 0.4


def test_smoke(example, tmp_path):
    smoke = example("smoke")
    fluid = smoke.Smoke(6, 3)
    fluid.start.from_numpy(numbers(6, 6, 2))
    fluid.target.from_numpy(numbers(6, 6, seed=1))
    check(fluid.program, fluid.loss, fluid.start)
    # The same wind everywhere carries the smoke as it is: here one cell to the left, two up in a step.
    fluid.start.from_numpy(np.broadcast_to([-1.0, 2.0], (6, 6, 2)))
    fluid.program()
    filled = fluid.smoke.to_numpy()
    np.testing.assert_allclose(filled[3], np.roll(filled[0], (-3, 6), (0, 1)), atol=1e-12)
    losses = run(smoke, tmp_path, "--cells", 16, "--steps", 20, "--iterations", 12)
    assert losses[-1] < 0.7 * losses[0]


def test_electric(example, tmp_path):
    electric = example("electric")
    charges = electric.Charges(2, 4)
    weights = [charges.w1, charges.b1, charges.w2, charges.b2]
    check(charges.program, charges.loss, *weights)
    # Without voltage the charges stay where they are, and the goals walk away from them.
    for w in weights:
        w.fill(0)
    charges.loss[None] = 0
    charges.program()
    corner = charges.corner.to_numpy()
    goal = (corner[0] + corner[1]) / 2, corner[1], (corner[1] + corner[2]) / 2, corner[2]
    expected = electric.DT * np.sum((np.array(goal) - corner[0]) ** 2) / 2
    assert charges.loss[None] == pytest.approx(expected, rel=1e-12)
    small = ("--steps", 32, "--iterations", 40, "--batch", 2)
    before, after = run(electric, tmp_path, *small)
    assert after < before


def test_volume_renderer(example, tmp_path):
    renderer = example("volume_renderer")
    scanner = renderer.Scanner(4, 5, 20)
    scanner.root.from_numpy(numbers(4, 4, 4))
    scanner.target.from_numpy(numbers(renderer.VIEWS, 5, 5, seed=1))
    check(scanner.program, scanner.loss, scanner.root)
    # Density 1 everywhere: the picture is how long the ray is in the box, up to one stride.
    scanner = renderer.Scanner(4, 5, 2000)
    scanner.root.fill(1)
    scanner.clear()
    scanner.render(0, 0.0)
    x, y = 0.4 * (np.mgrid[:5, :5] - 2)
    inside = np.minimum(1.5, 0.5 / np.maximum(np.maximum(abs(x), abs(y)), 1e-9)) - 0.5
    length = np.maximum(0, inside) * np.sqrt(1 + x**2 + y**2)
    np.testing.assert_allclose(scanner.image.to_numpy()[0], length, atol=1.01e-3)
    losses = run(renderer, tmp_path, "--cells", 8, "--size", 16, "--steps", 40, "--iterations", 20)
    assert losses[-1] < 0.3 * losses[0]


def test_water_renderer(example, tmp_path):
    renderer = example("water_renderer")
    pool = renderer.Pool(16, 4)
    # Between cells this is what the sampling takes it for, so that there are no kinks in the loss.
    place = np.arange(16.0)
    pool.ground.from_numpy(np.multiply.outer(np.outer(place, 16 + place), [1.0, 2.0, 0.5]))
    pool.photo.from_numpy(100 * numbers(16, 16, 3))
    pool.start.from_numpy(0.002 * numbers(6, 6))
    check(pool.program, pool.loss, pool.start)
    pool.ground.from_numpy(renderer.tiles(16))
    # Water at one level moves nothing sideways, and lets through all light.
    pool.start.fill(0.01)
    pool.render()
    np.testing.assert_allclose(pool.height.to_numpy(), 0.01, rtol=1e-12)
    seen, ground = pool.seen.to_numpy(), pool.ground.to_numpy()
    np.testing.assert_allclose(seen[:-1, :-1], ground[:-1, :-1], atol=1e-12)
    losses = run(renderer, tmp_path, "--cells", 32, "--steps", 16, "--iterations", 15)
    assert losses[-1] < 0.5 * losses[0]


def test_snell(example):
    # A surface that slopes by a along x bends the line of sight by a - asin(sin(a) / n) from the vertical.
    renderer = example("water_renderer")
    pool, slope = renderer.Pool(16, 1), 0.1
    height = np.zeros((2, 16, 16))
    height[1] = slope * pool.cell * np.arange(16)[:, None]
    pool.height.from_numpy(height)
    pool.refract(1)
    a = np.arctan(slope)
    angle = a - np.arcsin(np.sin(a) / renderer.INDEX)
    deep = renderer.DEPTH + height[1, 8, 8]
    np.testing.assert_allclose(pool.shift.to_numpy()[8, 8], [deep * np.tan(angle), 0], atol=1e-12)
