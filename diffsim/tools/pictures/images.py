"""Images as arrays: the first axis goes to the right, the second one up, as in Taichi and `ds.GUI`."""

from __future__ import annotations

import importlib
import io
import os
from typing import Any

import numpy as np

from diffsim.errors import FileError, Span, shown
from diffsim.lang.host.signatures import checked, need_whole
from diffsim.runtime.files import write_file
from diffsim.tools.pictures.arrays import as_array, path_of, refuse

_FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".bmp": "BMP",
    ".tga": "TGA",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".gif": "GIF",
}
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_CHANNELS = {mode: count for count, mode in _MODES.items()}


def pillow() -> Any:
    """Return the module that reads and writes images, which comes with matplotlib."""
    return importlib.import_module("PIL.Image")


def as_bytes(image: Any, what: str = "the image") -> np.ndarray:
    """Return an image as bytes: (width, height, channels), u8.

    Args:
        image: a field or array, (width, height) or (width, height, 1 to 4); floats are 0 to 1, whole numbers
            0 to the largest one of their type. NaN is black.
        what: its name in messages.
    """
    found = as_array(image, what)
    if found.ndim == 2:
        found = found[:, :, None]
    if found.ndim != 3 or not 1 <= found.shape[2] <= 4:
        raise refuse(
            f"{what} has the shape {np.shape(image)}",
            "an image is (width, height), or (width, height, 3) with colours",
        )
    if found.size == 0:
        raise refuse(f"{what} is empty: its shape is {found.shape}", "give at least one pixel")
    if found.dtype.kind == "b":
        return found.astype(np.uint8) * np.uint8(255)
    if found.dtype.kind == "f":
        clipped = np.clip(np.nan_to_num(found, nan=0.0), 0, 1)
        return np.round(clipped * 255).astype(np.uint8)
    if found.dtype.kind == "i":
        raise refuse(
            f"{what} is of {found.dtype}, which has no largest value that represents white",
            "give floats from 0 to 1, or whole numbers of u8, u16 or u32",
        )
    return (found >> (8 * (found.dtype.itemsize - 1))).astype(np.uint8)


def to_rows(pixels: np.ndarray) -> np.ndarray:
    """Return an image as files have it, from the top row to the bottom one: (height, width, channels)."""
    return np.ascontiguousarray(pixels.swapaxes(0, 1)[::-1])


def from_rows(rows: np.ndarray) -> np.ndarray:
    """Return the rows of a file as an image here: (width, height, channels)."""
    return np.ascontiguousarray(rows[::-1].swapaxes(0, 1))


@checked
def imread(filename: Any, channels: int = 0) -> np.ndarray:
    """Read an image from a file.

    Args:
        filename: PNG, JPEG, or what else Pillow can read.
        channels: 1 (grey), 2 (grey and opacity), 3 (RGB) or 4 (RGBA); 0: as the file has them.

    Returns:
        (width, height, channels), u8; the pixel (0, 0) is at the bottom left.

    Raises:
        FileError: there is no such file, or it is no image.

    Example:
        ds.tools.imwrite(np.eye(4), "eye.png")
        image = ds.tools.imread("eye.png")
        print(image.shape, image[0, 0], image[0, 1])  # prints: (4, 4, 1) [255] [0]
    """
    path = path_of(filename, "the image")
    need_whole(channels, "channels", "give 1, 3 or 4, or leave it out")
    if channels not in (0, *_MODES):
        raise refuse(f"an image cannot have {shown(channels)} channels", "give 0, 1, 2, 3 or 4")
    # Bytes first: whether there is such a file is one question, whether it is an image another.
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(
            f"{path} cannot be read: {error.strerror or error}",
            Span.of_caller(),
            f"name an image that is there; relative names count from {os.getcwd()}",
        ) from None
    try:
        with pillow().open(io.BytesIO(data)) as file:
            # Photographs of telephones lie on their side, and say so.
            image = importlib.import_module("PIL.ImageOps").exif_transpose(file)
            rows = _rows_of(image, channels)
    except Exception as error:  # Pillow raises errors of many classes for damaged files
        raise FileError(
            f"{path} is no image that can be read: {error}",
            Span.of_caller(),
            "give a PNG or a JPEG",
        ) from None
    return from_rows(rows)


def _rows_of(image: Any, channels: int) -> np.ndarray:
    """Return the rows of an opened image with this many channels; 0: its own."""
    if image.mode.startswith("I;16") or image.mode == "I":  # 16 bits
        grey = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        image = pillow().fromarray(grey)
    own = _CHANNELS.get(image.mode)
    if own is None:  # a palette, CMYK, single bits
        has_alpha = "transparency" in image.info or image.mode in ("PA", "La", "RGBa")
        own = 1 if image.mode == "1" else 4 if has_alpha else 3
    rows = np.asarray(image.convert(_MODES[channels or own]))
    return rows.reshape(*rows.shape[:2], -1)


@checked
def imwrite(img: Any, filename: Any) -> None:
    """Write an image to a file: PNG, JPEG, WebP, BMP, TGA, TIFF or GIF, as its ending says.

    Args:
        img: a field or array, (width, height) or (width, height, 1 to 4). Floats are 0 to 1, whole numbers 0
            to the largest one of their type.
        filename: where; the folder is made if it is missing.

    Raises:
        ArgumentError: another shape or type; an ending that names no format; it cannot be written there.

    Example:
        image = ds.field(ds.f32, shape=(4, 4))
        image[0, 0] = 1.0
        ds.tools.imwrite(image, "image.png")
        print(ds.tools.imread("image.png").max())  # prints: 255
    """
    path = path_of(filename, "the image", _FORMATS)
    write_file(path, encoded(to_rows(as_bytes(img, "img")), _FORMATS[path.suffix.lower()]))


def encoded(rows: np.ndarray, form: str, **options: Any) -> bytes:
    """Return rows of pixels as a file of this format."""
    if form in ("JPEG", "BMP") and rows.shape[2] in (2, 4):  # these have no opacity
        rows = rows[:, :, : rows.shape[2] - 1]
    file = io.BytesIO()
    image = pillow().fromarray(rows[:, :, 0] if rows.shape[2] == 1 else rows)
    image.save(file, format=form, **({"quality": 95} if form == "JPEG" else {}) | options)
    return file.getvalue()


@checked
def imresize(img: Any, w: int, h: int | None = None) -> np.ndarray:
    """Return an image in another size: each pixel is the one of `img` at the same place.

    Args:
        img: a field or array, (width, height) or (width, height, channels).
        w: the new width.
        h: the new height; as `w` if left out.

    Example:
        print(ds.tools.imresize(np.eye(4), 8).shape)  # prints: (8, 8)
    """
    found = as_array(img, "img")
    for size, name in ((w, "w"), (w if h is None else h, "h")):
        need_whole(size, name, "give a number of pixels")
        if size < 1:
            raise refuse(f"an image cannot have {name}={size} pixels", "give 1 or more")
    if found.ndim not in (2, 3) or found.size == 0:
        raise refuse(
            f"img has the shape {found.shape}", "an image is (width, height) or (width, height, 3)"
        )
    across, up = (
        np.arange(size) * old // size
        for size, old in zip((w, w if h is None else h), found.shape[:2], strict=True)
    )
    return found[across][:, up]


@checked
def imshow(img: Any, title: str = "imshow") -> None:
    """Show an image: below the cell of a notebook, or in a window; without a display it goes to a file.

    Args:
        img: as for `imwrite`.
        title: of the window.

    Example:
        image = np.random.default_rng(0).random((64, 64))
        ds.tools.imshow(image, "noise")
    """
    rows = to_rows(as_bytes(img, "img"))
    if shell := _notebook():
        shell.display(pillow().fromarray(rows[:, :, 0] if rows.shape[2] == 1 else rows))
        return
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    if mpl.get_backend().lower() == "agg":
        name = f"{title.replace(os.sep, '_')}.png"
        write_file(path_of(name, "the image"), encoded(rows, "PNG"))
        print(f"there is no display: wrote {name}")
        return
    figure = plt.figure(title, figsize=(rows.shape[1] / 100, rows.shape[0] / 100), dpi=100)
    figure.figimage(rows[:, :, 0] if rows.shape[2] == 1 else rows, cmap="gray")
    plt.show()


def _notebook() -> Any:
    """Return the module that shows things in a notebook, or None outside one."""
    try:
        from IPython import display, get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return display if shell is not None and hasattr(shell, "kernel") else None
