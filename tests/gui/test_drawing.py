"""What `ds.GUI` draws, pixel by pixel, against closed forms and NumPy."""

import numpy as np
import pytest

import diffsim as ds

RES = (64, 48)


@pytest.fixture
def gui():
    return ds.GUI("test", res=RES, show_gui=False)


def gray(gui):
    """The red channel, (x, y) from 0 to 1."""
    return gui.get_image()[:, :, 0]


def distances(x, y):
    """Distance of each pixel's centre from a place, [pixels]."""
    i, j = np.indices(RES) + 0.5
    return np.hypot(i - x * RES[0], j - y * RES[1])


def close(found, expected):
    """Equal up to the rounding to 256 levels."""
    np.testing.assert_allclose(found, expected, atol=0.51 / 255)


@pytest.mark.parametrize("radius", [0.7, 1, 2.5, 17, 100])
@pytest.mark.parametrize("place", [(0.5, 0.5), (0.31, 0.777), (0.0, 1.0), (1.1, 0.4)])
def test_a_circle_covers_each_pixel_by_its_distance(gui, place, radius):
    gui.circle(place, radius=radius)
    close(gray(gui), np.clip(radius - distances(*place), 0, 1))


@pytest.mark.parametrize("radius", [3, 8.25, 20])
def test_the_area_of_a_circle(gui, radius):
    """The sum of clip(r - d, 0, 1) over the plane is π (r² - r + 1/3)."""
    gui.circle((0.5, 0.5), radius=radius)
    area = np.pi * (radius**2 - radius + 1 / 3)
    assert gray(gui).sum() == pytest.approx(area, rel=0.01)


def test_a_color_fills_its_channels(gui):
    gui.circle((0.5, 0.5), color=0x123456, radius=5)
    assert tuple(gui.get_image()[32, 24]) == tuple(np.float32([0x12, 0x34, 0x56, 255]) / 255)
    assert tuple(gui.get_image()[0, 0]) == (0, 0, 0, 1)


def over(layers):
    """Mix (coverage, colour) in their order, as 8-bit channels do."""
    image = np.zeros((*RES, 3))
    for alpha, color in layers:
        new = np.array([color >> 16, color >> 8 & 255, color & 255])
        image = np.floor(image + alpha[:, :, None] * (new - image) + 0.5)
    return image / 255


@pytest.mark.parametrize("as_what", ["color", "palette"])
def test_later_circles_lie_over_earlier_ones(gui, as_what):
    rng = np.random.default_rng(1)
    pos, radius = rng.random((30, 2)), rng.random(30) * 12
    palette, which = rng.integers(0, 1 << 24, 5), rng.integers(0, 5, 30)
    if as_what == "color":
        gui.circles(pos, radius=radius, color=palette[which])
    else:
        gui.circles(pos, radius=radius, palette=palette.tolist(), palette_indices=which)
    layers = [
        (np.clip(r - distances(*p), 0, 1), int(palette[k]))
        for p, r, k in zip(pos, radius, which, strict=True)
    ]
    # f32 and f64 may round a level differently.
    np.testing.assert_allclose(gui.get_image()[:, :, :3], over(layers), atol=1.01 / 255 * 3)


def test_many_circles_in_bands_are_the_same_as_one_by_one(gui, monkeypatch):
    rng = np.random.default_rng(2)
    pos, color = rng.random((300, 2)), rng.integers(0, 1 << 24, 300)
    gui.circles(pos, radius=6, color=color)
    whole = gui.get_image()
    gui.clear()
    monkeypatch.setattr("diffsim.gui.canvas.bands", lambda few: 7)
    gui.circles(pos, radius=6, color=color)
    assert (gui.get_image() == whole).all()


def segment_distances(begin, end):
    i, j = np.indices(RES) + 0.5
    a, b = np.multiply(begin, RES), np.multiply(end, RES)
    along = b - a
    square = max(along @ along, 1e-20)
    t = np.clip(((i - a[0]) * along[0] + (j - a[1]) * along[1]) / square, 0, 1)
    return np.hypot(i - a[0] - t * along[0], j - a[1] - t * along[1])


@pytest.mark.parametrize("radius", [0.5, 1, 3.5])
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ((0.1, 0.2), (0.9, 0.7)),
        ((0.9, 0.1), (0.85, 0.9)),
        ((0.2, 0.5), (0.8, 0.5)),
        ((0.5, -3.0), (0.5, 0.5)),
        ((-1.0, 2.0), (2.0, -1.0)),
        ((0.5, 0.5), (0.5, 0.5)),
    ],
)
def test_a_line_covers_each_pixel_by_its_distance(gui, begin, end, radius):
    gui.line(begin, end, radius=radius)
    found, expected = gray(gui), np.clip(radius - segment_distances(begin, end), 0, 1)
    np.testing.assert_allclose(found, expected, atol=1.01 / 255)


def test_lines_have_radii_and_colors_of_their_own(gui):
    begin, end = np.array([[0, 0.25], [0, 0.75]]), np.array([[1, 0.25], [1, 0.75]])
    gui.lines(begin, end, radius=np.array([1.5, 4]), color=np.array([0xFF0000, 0x00FF00]))
    image = gui.get_image()
    np.testing.assert_allclose(image[32, :, :2].sum(axis=0), [2, 7], atol=0.01)
    assert image[32, :24, 1].sum() == 0


def test_a_triangle_holds_the_pixels_whose_centers_are_inside(gui):
    a, b, c = np.array([[0.1, 0.2], [0.9, 0.3], [0.4, 0.95]])
    gui.triangle(a, b, c, color=0xFFFFFF)
    i, j = np.indices(RES) + 0.5

    def side(p, q):
        (px, py), (qx, qy) = p * RES, q * RES
        return (qx - px) * (j - py) - (qy - py) * (i - px)

    inside = (side(a, b) > 0) & (side(b, c) > 0) & (side(c, a) > 0)
    assert (gray(gui) == inside).all()
    whole = gray(gui)
    gui.clear()
    gui.triangles(np.array([a, a]), np.array([c, c]), np.array([b, b]))  # turned the other way
    assert (gray(gui) == whole).all()


def test_triangles_of_a_mesh_leave_no_gaps(gui):
    """Two triangles of a square that fills the canvas."""
    corner = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], float)
    gui.triangles(corner[[0, 0]], corner[[1, 2]], corner[[2, 3]])
    assert (gray(gui) == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_places_that_are_none_draw_nothing(gui, bad):
    for place in ([bad, 0.5], [0.5, bad]):
        gui.circle(place, radius=3)
        gui.triangle(place, (0.5, 0.5), (bad, bad))
        gui.text("x", place)
    gui.line((np.nan, 0.5), (0.5, 0.5))
    assert gray(gui).sum() == 0
    gui.circle((0.5, 0.5), radius=np.inf)
    assert (gray(gui) == 1).all()


def test_nothing_is_drawn_of_empty_lists(gui):
    gui.circles([])
    gui.lines(np.zeros((0, 2)), [], radius=np.zeros(0), color=np.zeros(0, int))
    gui.triangles([], [], [])
    assert gray(gui).sum() == 0


# ---- images


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.float32, np.float64])
@pytest.mark.parametrize("channels", [(), (1,), (2,), (3,), (4,)])
def test_an_image_is_shown_as_it_is(gui, dtype, channels):
    values = np.random.default_rng(3).random((*RES, *channels))
    image = values.astype(dtype)
    if np.dtype(dtype).kind == "u":
        image = (values * np.iinfo(dtype).max).astype(dtype)
        values = image / np.iinfo(dtype).max
    gui.set_image(image)
    values = values.reshape(*RES, -1)
    expected = np.zeros((*RES, 3))
    if values.shape[2] == 1:
        expected[:] = values
    else:
        expected[:, :, : values.shape[2]] = values[:, :, :3]
    close(gui.get_image()[:, :, :3], expected)


def test_every_level_of_an_8_bit_image_is_kept():
    gui = ds.GUI(res=(256, 2), show_gui=False)
    image = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 2, axis=1)
    gui.set_image(image)
    assert (np.round(gui.get_image()[:, :, 1] * 255) == image).all()


def test_numbers_beyond_the_range_are_its_ends(gui):
    image = np.zeros(RES)
    image[:4, 0] = -3.0, 7.0, np.nan, np.inf
    gui.set_image(image)
    assert gray(gui)[:4, 0].tolist() == [0, 1, 0, 1]


def test_fields_are_shown(cpu, gui):
    values = np.random.default_rng(4).random((*RES, 3), np.float32)
    image = ds.Vector.field(3, ds.f32, shape=RES)
    image.from_numpy(values)
    gui.set_image(image)
    close(gui.get_image()[:, :, :3], values)
    x = ds.Vector.field(2, ds.f32, shape=1)
    x[0] = 0.5, 0.5
    gui.clear()
    gui.circles(x, radius=4)
    assert gray(gui)[32, 24] == 1


def test_drawing_leaves_no_trace_on_a_tape(cpu, gui):
    x = ds.field(ds.f32, shape=(), needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def square():
        loss[None] += x[None] ** 2

    x[None] = 3.0
    with ds.Tape(loss) as tape:
        square()
        gui.circles(np.full((10, 2), 0.3))
        gui.show()
    assert x.grad[None] == 6.0
    assert "circles" not in str(tape.stats())


def test_the_canvas_survives_a_reset(gui):
    gui.circle((0.5, 0.5), radius=4)
    ds.init(arch=ds.cpu)
    gui.circle((0.5, 0.5), radius=9)
    ds.reset()
    assert gray(gui)[32, 24 + 7] == 1


def test_a_contour_runs_through_the_colormap(gui):
    from matplotlib import colormaps

    values = np.linspace(2, 4, RES[0])[:, None] * np.ones(RES[1])
    gui.contour(values, normalize=True)
    expected = colormaps["plasma"](np.linspace(0, 1, RES[0]), bytes=True)[:, :3] / 255
    close(gui.get_image()[:, 0, :3], expected)
    gui.contour(np.array([[0.0, 0.0], [1.0, 1.0]]))  # stretched, along x alone
    close(gui.get_image()[:, 7, :3], expected)


# ---- composed shapes


def pixels_of(gui, draw):
    gui.clear()
    draw()
    return gui.get_image()


def test_a_rectangle_is_four_lines(gui):
    corners = [(0.2, 0.8), (0.7, 0.8), (0.7, 0.3), (0.2, 0.3)]

    def four():
        for k in range(4):
            gui.line(corners[k], corners[(k + 1) % 4], radius=2, color=0x00FF00)

    one = pixels_of(gui, lambda: gui.rect(corners[0], corners[2], radius=2, color=0x00FF00))
    assert (one == pixels_of(gui, four)).all()


def test_an_arrow_has_a_tip_of_two_lines(gui):
    def lines():
        gui.line((0.2, 0.5), (0.8, 0.5))
        gui.line((0.8, 0.5), (0.8 - 0.12 * np.sqrt(0.5), 0.5 + 0.12 * np.sqrt(0.5)))
        gui.line((0.8, 0.5), (0.8 - 0.12 * np.sqrt(0.5), 0.5 - 0.12 * np.sqrt(0.5)))

    one = pixels_of(gui, lambda: gui.arrow((0.2, 0.5), (0.6, 0)))
    np.testing.assert_allclose(one, pixels_of(gui, lines), atol=2.5 / 255)


def test_fields_of_points_and_arrows_are_spread_evenly(gui):
    radius = np.array([[2.0, 5.0], [0.0, 3.0]])
    points = pixels_of(gui, lambda: gui.point_field(radius))[:, :, 0]
    # Bound 0.5: the centres of four quarters. The first axis is x.
    centres = points[16, 12], points[16, 36], points[48, 12], points[48, 36]
    assert centres == (1, 1, 0, 1)
    assert points[16 + 3, 36] == 1
    arrows = pixels_of(gui, lambda: gui.arrow_field(np.full((1, 1, 2), 0.25)))
    one = pixels_of(gui, lambda: gui.arrow((0.5, 0.5), (0.25, 0.25)))
    assert (arrows == one).all()


def test_the_longest_of_a_vector_field_is_a_tenth_of_the_canvas(gui):
    vectors = np.zeros((10, 10, 2))
    vectors[5, 5] = 3.0, 4.0
    drawn = pixels_of(gui, lambda: gui.vector_field(vectors, arrow_spacing=5))
    one = pixels_of(gui, lambda: gui.arrow((0.5, 0.5), (0.06, 0.08)))
    still = np.array([(0, 0), (0, 0.5), (0.5, 0)])
    points = pixels_of(gui, lambda: gui.arrows(still, 0 * still))
    np.testing.assert_allclose(drawn, np.maximum(one, points), atol=2.5 / 255)


def test_text_lies_below_and_to_the_right(gui):
    gui.text("Hg", (0.25, 0.75), font_size=16, color=0xFF0000)
    image = gui.get_image()
    x, y = np.nonzero(image[:, :, 0] > 0.5)
    assert image[:, :, 1].sum() == 0
    assert 16 <= x.min() < 20
    assert 36 - 16 * 1.2 <= y.min() < y.max() <= 36
    assert 8 < x.max() - x.min() < 24
    gui.clear()
    gui.text("a\nb", (0.0, 1.0), font_size=16)
    rows = gray(gui).max(axis=0) > 0.5
    assert rows[-19:].any()
    assert rows[-38:-20].any()


def test_text_is_cut_at_the_edges(gui):
    for place in ((-0.1, 0.5), (0.95, 0.5), (0.5, 0.02), (0.5, 1.1), (5, 5)):
        gui.text("Text", place, font_size=30)
    assert 0 < gray(gui).sum() < RES[0] * RES[1]


# ---- colours


def test_colors_are_converted_both_ways():
    assert ds.rgb_to_hex((0.4, 0.8, 1.0)) == 0x66CCFF
    assert ds.hex_to_rgb(0x66CCFF) == (0.4, 0.8, 1.0)
    made = ds.rgb_to_hex((np.array([0, 1.0]), np.array([0.5, 2.0]), np.array([-1, 0.0])))
    assert made.tolist() == [0x007F00, 0xFFFF00]
    assert all(ds.rgb_to_hex(ds.hex_to_rgb(c)) == c for c in range(0, 1 << 24, 65793))
