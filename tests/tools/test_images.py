"""Images: which pixel is where, what numbers mean, what files hold, and what is refused."""

import numpy as np
import pytest
from PIL import Image

import diffsim as ds
from diffsim.tools import colormap, imread, imresize, imshow, imwrite

RNG = np.random.default_rng(0)


def test_axes_are_those_of_taichi(tmp_path):
    """The first axis goes to the right and the second one up, so (0, 0) is at the bottom left."""
    image = np.zeros((3, 2), np.uint8)
    image[2, 0] = 200  # at the right, below
    imwrite(image, tmp_path / "a.png")
    rows = np.asarray(Image.open(tmp_path / "a.png"))
    assert rows.tolist() == [[0, 0, 0], [0, 0, 200]]
    np.testing.assert_array_equal(imread(tmp_path / "a.png"), image[:, :, None])


@pytest.mark.parametrize("ending", ["png", "bmp", "tga", "tiff", "PNG"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_written_is_read(tmp_path, ending, channels):
    image = RNG.integers(0, 256, (5, 4, channels)).astype(np.uint8)
    path = tmp_path / f"a.{ending}"
    imwrite(image, path)
    np.testing.assert_array_equal(imread(path, channels), image)


def test_floats_are_rounded_to_the_nearest_byte(tmp_path):
    """An image that was read, as floats, is written as the same bytes again."""
    image = np.arange(256, dtype=np.uint8).reshape(16, 16)
    imwrite((image / 255).astype(np.float32), tmp_path / "a.png")
    np.testing.assert_array_equal(imread(tmp_path / "a.png")[:, :, 0], image)
    imwrite(np.array([[-1.0, 2.0, np.nan, np.inf]]), tmp_path / "b.png")
    assert imread(tmp_path / "b.png")[0, :, 0].tolist() == [0, 255, 0, 255]


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_whole_numbers_are_of_their_range(tmp_path, kind):
    most = np.iinfo(kind).max
    imwrite(np.array([[0, most // 2, most]], kind), tmp_path / "a.png")
    assert imread(tmp_path / "a.png")[0, :, 0].tolist() == [0, 127, 255]


def test_a_field_of_vectors_is_an_image(cpu, tmp_path):
    field = ds.Vector.field(3, ds.f32, shape=(4, 6))
    values = RNG.random((4, 6, 3)).astype(np.float32)
    field.from_numpy(values)
    imwrite(field, tmp_path / "new" / "a.png")  # the folder is made
    assert np.abs(imread(tmp_path / "new" / "a.png") / 255 - values).max() < 0.5 / 255 + 1e-6


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("LA", 2), ("P", 3), ("CMYK", 3), ("I;16", 1)]
)
def test_files_of_other_programs(tmp_path, mode, channels):
    path = tmp_path / ("a.tiff" if mode == "CMYK" else "a.png")
    if mode == "I;16":
        Image.fromarray(np.full((2, 3), 0x80FF, np.uint16)).save(path)
    else:
        grey = Image.new("RGB", (3, 2), (128, 128, 128))
        (grey.quantize() if mode == "P" else grey.convert(mode)).save(path)
    assert imread(path).shape == (3, 2, channels)
    assert imread(path, 4).shape == (3, 2, 4)
    assert imread(path)[0, 0, 0] in (127, 128, 255)  # one bit: white


def test_photographs_stand_upright(tmp_path):
    image = Image.new("L", (3, 2))
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    image.save(tmp_path / "a.png", exif=exif)
    assert imread(tmp_path / "a.png").shape == (2, 3, 1)


def test_resizing_takes_the_nearest_pixel():
    image = np.arange(8).reshape(4, 2)
    assert imresize(image, 2, 4).tolist() == [[0, 0, 1, 1], [4, 4, 5, 5]]
    assert imresize(image, 8).shape == (8, 8)


def test_colours_of_numbers():
    found = colormap(np.array([[0.0, 5.0], [10.0, np.nan]]), "gray")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[..., 0], [[0, 0.5], [1, 0.5]], atol=0.005)
    np.testing.assert_allclose(colormap([2.0, 9.0], "gray", 2, 4)[:, 0], [0, 1])
    assert colormap([3.0], "gray").shape == (1, 3)  # no range


def test_showing_without_a_display_writes_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    imshow(np.ones((4, 5)), "white")
    assert capsys.readouterr().out == "there is no display: wrote white.png\n"
    assert imread("white.png").shape[:2] == (4, 5)


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        (lambda: imwrite(np.zeros(3), "a.png"), "the shape (3,)", "(width, height)"),
        (lambda: imwrite(np.zeros((2, 2), int), "a.png"), "is of int64", "from 0 to 1"),
        (lambda: imwrite("cat", "a.png"), "an array of numbers, not 'cat'", "give a field"),
        (lambda: imwrite(np.zeros((2, 2)), "a.pgn"), "'a.pgn' names no format", ".png"),
        (lambda: imwrite(np.zeros((0, 2)), "a.png"), "is empty", "one pixel"),
        (lambda: imread("nowhere.png"), "nowhere.png cannot be read", "count from"),
        (lambda: imread(__file__), "is no image", "a PNG or a JPEG"),
        (lambda: imread("a.png", 7), "cannot have 7 channels", "0, 1, 2, 3 or 4"),
        (lambda: imresize(np.zeros((2, 2)), 0), "w=0", "1 or more"),
        (lambda: colormap([1.0], "virids"), "no colour map 'virids'", '"viridis"'),
        (lambda: colormap([1.0], vmin=2, vmax=1), "vmin=2 is above vmax=1", "exchange"),
        (lambda: ds.tools.imrad, "no attribute 'imrad'", "imread"),
    ],
)
def test_what_is_refused(wrong, message, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ds.DiffsimError) as caught:
        wrong()
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.span.file == __file__
