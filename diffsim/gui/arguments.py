"""Arguments of drawing methods, as arrays: positions, radii, colours, images."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.lang.host.field_like import is_field
from diffsim.lang.types.descriptions import describe
from diffsim.tools.pictures.arrays import as_array, refuse

COLOR_HINT = "write it 0xRRGGBB, or ds.rgb_to_hex((red, green, blue)) of numbers between 0 and 1"


def points(name: str, value: object) -> np.ndarray:
    """Return positions as an array of shape (n, 2)."""
    made = as_array(value, name)
    if made.shape == (0,):  # an empty list: nothing is drawn
        made = made.reshape(0, 2)
    if made.ndim == 3 and made.shape[2] == 1:  # vectors of one column, as Taichi's fields gave them
        made = made[:, :, 0]
    if made.ndim != 2 or made.shape[1] != 2:
        hint = "each row is one position (x, y), between 0 and 1"
        if made.ndim == 2 and made.shape[1] == 3:
            taken = f"{name}.to_numpy()" if is_field(value) else name
            hint = f"points of space are drawn in a plane: {taken}[:, :2] takes the first two coordinates"
        elif made.shape == (2,):
            hint = f"one position alone is drawn by the method without an s, or write [{name}]"
        raise refuse(f"{name} has shape {made.shape}, and positions have shape (n, 2)", hint)
    return np.ascontiguousarray(made, np.float32)


def point(name: str, value: object) -> np.ndarray:
    """Return one position as an array of shape (1, 2)."""
    made = as_array(value, name).ravel()
    if made.shape != (2,):
        raise refuse(
            f"{name} is one position (x, y), not {describe(value)}",
            "for several positions there is the method with an s: circles, lines, triangles, arrows",
        )
    return made.astype(np.float32)[None]


def same_length(arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays of points that do not belong together."""
    lengths = {name: len(a) for name, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{n} of {name}" for name, n in lengths.items())
        raise refuse(f"there are {each}", "give each of them one row for each shape")


def radii(value: object, count: int) -> np.ndarray:
    """Return one radius, or one for each shape, in pixels."""
    if isinstance(value, numbers.Real):
        made = np.array([value], np.float32)
    else:
        made = _each("radius", as_array(value, "radius"), count).astype(np.float32)
    # As for positions, what is no number is not drawn; a radius below 0 is a mistake in a formula.
    if (made < 0).any():
        raise refuse(
            f"a radius is a number of pixels from 0 on, and one is {made[made < 0][0]:g}",
            "nothing of radius 0 is seen",
        )
    return made


def colors(value: object, count: int) -> np.ndarray:
    """Return one colour, or one for each shape."""
    if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        raise refuse(f"a colour is a whole number, not {shown(value)}", COLOR_HINT)
    if isinstance(value, numbers.Integral):
        return np.array([int(value) & 0xFFFFFFFF], np.uint32)
    if value is None or isinstance(value, str):
        raise refuse(f"a colour is a number, not {shown(value)}", COLOR_HINT)
    made = as_array(value, "color")
    if made.shape in ((3,), (4,)) and made.shape != (count,):
        raise refuse(f"a colour is one number, not {shown(value)}", COLOR_HINT)
    if made.dtype.kind == "f":
        raise refuse("color has numbers that are no whole numbers", COLOR_HINT)
    return _each("color", made, count).astype(np.uint32)


def _each(name: str, made: np.ndarray, count: int) -> np.ndarray:
    if made.ndim == 2 and made.shape[1] == 1:
        made = made[:, 0]
    if made.shape != (count,):
        raise refuse(
            f"{name} has shape {made.shape}, and {count} shape{'s' * (count != 1)} shall be drawn",
            f"give one number for all of them, or an array of shape ({count},)",
        )
    return np.ascontiguousarray(made)


def palette_colors(palette: object, indices: object, count: int) -> np.ndarray:
    """Return the colour of each shape, chosen by its index from a palette."""
    if indices is None:
        raise refuse(
            "palette is given, and no palette_indices",
            "say which colour of the palette each one has",
        )
    chosen = colors(palette, len(as_array(palette, "palette")))
    made = as_array(indices, "palette_indices")
    if made.dtype.kind not in "iub":
        raise refuse(
            "palette_indices has numbers that are no whole numbers", "convert it: .astype(np.int32)"
        )
    made = _each("palette_indices", made, count).astype(np.int64)
    if count and not 0 <= made.min() <= made.max() < len(chosen):
        worst = made.min() if made.min() < 0 else made.max()
        raise refuse(
            f"palette_indices has {worst}, and the palette has {len(chosen)} colours",
            f"indices are 0 to {len(chosen) - 1}",
        )
    return chosen[made]


def image(value: object, res: tuple[int, int] | None = None) -> tuple[np.ndarray, float]:
    """Return an image of shape (x, y) or (x, y, channels), and what its numbers are to be multiplied by.

    Integers without sign reach from 0 to the largest of their type, floats from 0 to 1.

    Args:
        value: a field or array.
        res: the size that it must have; None: any.
    """
    made = as_array(value, "the image")
    kind = made.dtype.kind
    if kind == "i":
        raise refuse(
            f"an image of {made.dtype} may be meant from 0 to 1, or from 0 to 255",
            "convert it: .astype(np.float32) for 0 to 1, .astype(np.uint8) for 0 to 255",
        )
    if made.ndim == 3 and made.shape[2] == 1:
        made = made[:, :, 0]
    if made.ndim not in (2, 3) or (made.ndim == 3 and made.shape[2] not in (2, 3, 4)):
        raise refuse(
            f"an image has shape (x, y), or (x, y, 3) with colours, not {made.shape}",
            "one number is grey; two to four are red, green, blue and alpha",
        )
    if res is not None and made.shape[:2] != res:
        raise refuse(
            f"the image is {made.shape[0]} x {made.shape[1]}, and the canvas {res[0]} x {res[1]} pixels",
            f'make the canvas as large: ds.GUI("...", res={made.shape[:2]})'
            if min(made.shape) > 1
            else "the first axis is x, to the right, the second y, up",
        )
    scale = 255.0 / np.iinfo(made.dtype).max if kind == "u" else 255.0
    # The kernels are compiled for the two usual types; others are converted.
    wanted = np.uint8 if made.dtype == np.uint8 else np.float32
    return np.ascontiguousarray(made, wanted), scale


def contour_colors(
    values: np.ndarray, res: tuple[int, int], normalize: bool, colormap: str = "plasma"
) -> np.ndarray:
    """Return the colours (x, y, 4) of numbers from 0 to 1, interpolated to `res` where sizes differ."""
    from matplotlib import colormaps

    if colormap not in colormaps:
        raise refuse(
            f"matplotlib has no colours {shown(colormap)}",
            'write "plasma", or another of its colormaps',
        )

    if values.ndim != 2 or 0 in values.shape:
        raise refuse(
            f"a contour is drawn of numbers of shape (x, y), not {values.shape}",
            "of vectors, pass their lengths",
        )
    stretched = values.astype(np.float64)
    for axis, pixels in enumerate(res):
        stretched = _stretch(stretched, axis, pixels)
    if normalize:
        low, high = np.nanmin(stretched), np.nanmax(stretched)
        stretched = (stretched - low) / ((high - low) or 1)
    return colormaps[colormap](stretched, bytes=True)


def _stretch(values: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Interpolate linearly along one axis."""
    have = values.shape[axis]
    if have == size:
        return values
    at = np.linspace(0, have - 1, size)
    low = at.astype(int)
    part = np.expand_dims(at - low, 1 - axis)
    lower = np.take(values, low, axis)
    upper = np.take(values, np.minimum(low + 1, have - 1), axis)
    return lower + part * (upper - lower)


def resolution(res: Any) -> tuple[int, int]:
    """Return a size in pixels, as (width, height)."""
    sizes = np.ravel(res).tolist()
    sizes = sizes * 2 if len(sizes) == 1 else sizes
    if len(sizes) != 2 or not all(map(_is_size, sizes)):
        raise refuse(
            f"res is a whole number of pixels, or (width, height), not {shown(res)}",
            "write res=(512, 512)",
        )
    return int(sizes[0]), int(sizes[1])


def _is_size(n: object) -> bool:
    """Return whether a canvas can have so many pixels; 512.0 is what a division may have given."""
    return isinstance(n, int | float) and not isinstance(n, bool) and 1 <= n < 32768 and n == int(n)
