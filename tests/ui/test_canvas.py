"""The canvas of `ds.ui` windows, pixel by pixel, against closed forms and NumPy; and where frames end."""

import numpy as np
import pytest

import diffsim as ds

RES = (64, 48)


@pytest.fixture
def window():
    return ds.ui.Window("test", RES, show_window=False)


def image(window):
    return window.get_image_buffer_as_numpy()[:, :, :3]


def centers(res=RES):
    """The centre of each pixel, in the unit square."""
    i, j = np.indices(res) + 0.5
    return i / res[0], j / res[1]


def test_circles_are_as_large_as_a_part_of_the_height(window):
    x, y = centers()
    window.get_canvas().circles([[0.3, 0.6], [0.8, 0.2]], radius=0.15, color=(1, 0.5, 0))
    distance = [np.hypot((x - a) * RES[0], (y - b) * RES[1]) for a, b in ((0.3, 0.6), (0.8, 0.2))]
    covered = sum(np.clip(0.15 * RES[1] + 0.5 - d, 0, 1) for d in distance)
    np.testing.assert_allclose(image(window)[:, :, 0], covered, atol=1.01 / 255)
    assert covered.sum() == pytest.approx(2 * np.pi * (0.15 * RES[1]) ** 2, rel=0.02)


def test_circles_have_colors_and_radii_of_their_own(window):
    places = [[0.25, 0.5], [0.5, 0.5], [0.75, 0.5]]
    radii = ds.field(ds.f32, shape=3)
    radii.from_numpy(np.array([0.1, 0.0, 0.05], np.float32))
    colors = np.eye(3)
    window.get_canvas().circles(places, 1.0, per_vertex_color=colors, per_vertex_radius=radii)
    found = image(window)
    assert [tuple(found[k, 24]) for k in (16, 32, 48)] == [(1, 0, 0), (0, 0, 0), (0, 0, 1)]
    assert found[:, :, 0].sum() == pytest.approx(4 * found[:, :, 2].sum(), rel=0.05)


def test_colors_are_mixed_between_corners(window):
    corners = np.array([[0.1, 0.1], [0.9, 0.2], [0.3, 0.95]])
    window.get_canvas().triangles(corners, per_vertex_color=np.eye(3))
    x, y = centers()
    parts = np.stack([x, y, np.ones(RES)], -1) @ np.linalg.inv(np.c_[corners, np.ones(3)])
    inside = (parts > 0.01).all(-1)
    found = image(window)
    np.testing.assert_allclose(found[inside], parts[inside], atol=1.01 / 255)
    assert not found[(parts < -0.01).any(-1)].any()


def test_triangles_of_a_square_leave_no_gap(window):
    square = ds.Vector.field(2, ds.f32, shape=4)
    square.from_numpy(np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32))
    faces = ds.Vector.field(3, ds.i32, shape=2)
    faces.from_numpy(np.array([[0, 1, 2], [2, 1, 3]], np.int32))
    window.get_canvas().triangles(square, color=(1, 1, 1), indices=faces)
    assert (image(window) == 1).all()


def test_lines_are_as_wide_as_a_part_of_the_height(window):
    ends = [[-1.0, 0.4], [2.0, 0.4]]
    window.get_canvas().lines(ends, width=0.1, per_vertex_color=[[0, 0, 0], [1, 1, 0]])
    found = image(window)
    across = found[:, :, 0].sum(1)
    expected = 0.1 * RES[1] * (centers()[0][:, 0] + 1) / 3
    np.testing.assert_allclose(across, expected, atol=0.03)
    np.testing.assert_array_equal(found[:, :, 0], found[:, :, 1])


@pytest.mark.parametrize("kind", ["u1", "f32", "vec2", "vec4"])
def test_images_are_stretched_to_the_canvas(window, kind):
    """Between the elements' centres linearly, as np.interp does along each axis."""
    rng = np.random.default_rng(0)
    small = rng.random({"vec2": (7, 5, 2), "vec4": (7, 5, 4)}.get(kind, (7, 5))).astype(np.float32)
    if kind == "u1":
        small = (small * 255).astype(np.uint8)
    window.get_canvas().set_image(small)
    wanted = np.atleast_3d(small).astype(float) / (255 if kind == "u1" else 1)
    for axis, size in enumerate(RES):
        have = wanted.shape[axis]
        at = (np.arange(size) + 0.5) * have / size - 0.5
        wanted = np.apply_along_axis(lambda a: np.interp(at, np.arange(have), a), axis, wanted)  # noqa: B023
    channels = {1: wanted[:, :, [0, 0, 0]], 4: wanted[:, :, :3]}.get(wanted.shape[2])
    if channels is None:
        channels = np.concatenate([wanted, 0 * wanted[:, :, :1]], -1)
    np.testing.assert_allclose(image(window), channels, atol=0.51 / 255)


def test_an_image_of_the_same_size_is_copied(window):
    given = np.random.default_rng(1).random((*RES, 3)).astype(np.float32)
    window.get_canvas().set_image(given)
    kept = given.copy()
    given[:] = 0
    np.testing.assert_allclose(image(window), kept, atol=0.51 / 255)


def test_what_is_drawn_later_lies_above_and_the_background_below_all(window):
    canvas = window.get_canvas()
    canvas.circles([[0.5, 0.5]], radius=0.3, color=(1, 0, 0))
    canvas.circles([[0.5, 0.5]], radius=0.1, color=(0, 1, 0))
    canvas.set_background_color((0, 0, 1))
    found = image(window)
    assert [tuple(found[k, 24]) for k in (0, 22, 32)] == [(0, 0, 1), (1, 0, 0), (0, 1, 0)]


def test_contours_and_arrows(window):
    canvas = window.get_canvas()
    canvas.contour(np.array([[0.0, 0.0], [4.0, 4.0]]), cmap_name="gray", normalize=True)
    np.testing.assert_allclose(image(window)[:, 5, 0], np.linspace(0, 1, 64), atol=1 / 255)
    canvas.set_background_color((1, 1, 1))
    field = np.zeros((11, 11, 2))
    field[..., 0] = 3.0
    canvas.vector_field(field, arrow_spacing=5, scale=0.2, width=0.02)
    dark = (1 - image(window)[:, :, 0]).sum(1)
    # Arrows begin at 0, 0.5 and 1 along both axes, and are 0.2 long; of the outer ones half is seen.
    np.testing.assert_allclose(dark[[2, 5, 34, 39]], 2 * 0.02 * RES[1], atol=0.05)
    assert not dark[16:31].any()
    assert dark[43] > 1.5 * dark[39]  # tips are wider


def test_a_frame_ends_where_it_is_read_without_a_window(window):
    canvas = window.get_canvas()
    canvas.circles([[0.2, 0.5]], radius=0.1, color=(1, 1, 1))
    one = image(window)
    assert (image(window) == one).all()  # until something is drawn
    canvas.circles([[0.8, 0.5]], radius=0.1, color=(1, 1, 1))
    two = image(window)
    assert one[12, 24, 0] == two[51, 24, 0] == 1
    assert not (one * two).any()
    window.show()
    assert not image(window).any()  # an empty frame was shown


def test_frames_are_written_to_pictures_and_films(window, tmp_path):
    from PIL import Image

    canvas = window.get_canvas()
    for k in range(3):
        canvas.circles([[0.5, 0.5]], radius=0.1 * (k + 1), color=(1, 1, 0))
        window.save_image(str(tmp_path / "last.png"))
        window.save_image(tmp_path / "film.gif")
    expected = window.get_image_buffer_as_numpy()
    window.destroy()
    found = np.asarray(Image.open(tmp_path / "last.png"), np.float32)
    np.testing.assert_array_equal(found[::-1].transpose(1, 0, 2) / 255, expected[:, :, :3])
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 3
    with pytest.raises(ds.DiffsimError, match=r"window.destroy\(\) has ended the frames"):
        window.show()


WRONG = {
    r"centers has shape \(4,\), and a place has 2 numbers": lambda c: c.circles(
        np.zeros(4), radius=1
    ),
    "radius is a number, not None": lambda c: c.circles(np.zeros((4, 2))),
    "an image has shape": lambda c: c.set_image(np.zeros(4)),
    "and no elements": lambda c: c.set_image(np.zeros((0, 4))),
    "color is a colour of three numbers": lambda c: c.set_background_color("red"),
    "matplotlib has no colours 'plasm'": lambda c: c.contour(np.zeros((4, 4)), "plasm"),
    "arrow_spacing starts at 1": lambda c: c.vector_field(np.zeros((4, 4, 2)), 0),
    "vector_field has shape": lambda c: c.vector_field(np.zeros((4, 4))),
    "a scene is a ds.ui.Scene": lambda c: c.scene(None),
    "a canvas has no .circle": lambda c: c.circle,
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_drawn_is_refused(window, message):
    with pytest.raises((ds.ArgumentError, AttributeError), match=message):
        WRONG[message](window.get_canvas())
