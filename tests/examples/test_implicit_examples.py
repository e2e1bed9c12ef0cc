"""Examples of implicit solves: losses fall, gradients agree with differences and closed forms; pictures."""

import numpy as np
from PIL import Image

from tests.support.gradients import central


def agrees(problem, start, h=1e-5):
    """The gradient of a problem is that of differences."""
    _, found = problem.gradient(start)
    expected = central(lambda at: problem.gradient(at)[0], start, h)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max())


def test_contact(example, tmp_path):
    contact = example("contact")
    losses = contact.main(["--iterations", 6, "--count", 3, "--out", tmp_path])
    assert losses[-1] < 0.1 * losses[0]
    with Image.open(tmp_path / "contact.png") as image:
        assert min(image.size) > 100
    assert "iterations" in (tmp_path / "contact.html").read_text("utf-8")
    speeds = np.array([-2.0, -0.3, 0.1, 1.5])
    agrees(contact.Throws(4, contact.SMOOTH), speeds)
    # A bounce and an exchange of momentum, against the closed form.
    found = contact.Throws(4, contact.SHARP).slopes(speeds)
    for one, expected in zip(found, contact.sharp(speeds), strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-6)


def test_projection(example, tmp_path):
    projection = example("projection")
    losses = projection.main(["--iterations", 4, "--cells", 8, "--out", tmp_path])
    assert losses[-1] < 0.1 * losses[0]
    assert {"projection.png", "projection.html", "loss.png"} <= {p.name for p in tmp_path.iterdir()}
    fluid = projection.Fluid(6)
    fluid.aim_at(np.ones((4, 2)))
    agrees(fluid, np.arange(8.0).reshape(4, 2) - 3)
    assert fluid.divergence() < 1e-11


def test_cloth(example, tmp_path):
    cloth = example("cloth")
    losses = cloth.main(["--iterations", 3, "--steps", 2, "--points", 3, "--out", tmp_path])
    assert losses[-1] < losses[0]
    assert {"before.gif", "after.gif", "cloth.html"} <= {p.name for p in tmp_path.iterdir()}
    agrees(cloth.Cloth(3, 2), np.array([1.0, 0.5, -0.5]))
