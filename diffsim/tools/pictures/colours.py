"""Colours: names, 0xRRGGBB, arrays; and colour maps, which make colours of numbers."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.lang.host.signatures import checked, need_number
from diffsim.lang.host.unsupported import close_to
from diffsim.tools.pictures.arrays import as_array, refuse


@checked
def colormap(
    values: Any, cmap: str = "viridis", vmin: float | None = None, vmax: float | None = None
) -> np.ndarray:
    """Return the colours of numbers.

    Args:
        values: a field or array of any shape.
        cmap: a colour map of matplotlib: "viridis", "coolwarm" (for values of both signs), "gray", ...
        vmin: the number that has the first colour; the smallest one if left out.
        vmax: the number that has the last colour; the largest one if left out.

    Returns:
        An array of the shape of `values` and (3,), f32, from 0 to 1: red, green, blue. NaN is grey.

    Example:
        colours = ds.tools.colormap(np.array([0.0, 0.5, 1.0]), "gray")
        print(colours.shape, colours[0], colours[2])  # prints: (3, 3) [0. 0. 0.] [1. 1. 1.]
    """
    found = as_array(values, "values")
    low, high = limits(found, vmin, vmax)
    return table(cmap)[levels(found, low, high)].astype(np.float32) / np.float32(255)


def limits(values: np.ndarray, vmin: float | None, vmax: float | None) -> tuple[float, float]:
    """Return the numbers that have the first and the last colour."""
    need_number(vmin, "vmin")
    need_number(vmax, "vmax")
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    low = float(finite.min() if finite.size else 0.0) if vmin is None else float(vmin)
    high = float(finite.max() if finite.size else 1.0) if vmax is None else float(vmax)
    if low > high:
        raise refuse(f"vmin={low:g} is above vmax={high:g}", "exchange them")
    return low, high


def levels(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the place of each number in a table of colours: 0 to 254, and 255 for NaN; u8."""
    scaled = (values.astype(np.float64) - low) / ((high - low) or 1.0) * 254
    return np.where(np.isnan(scaled), 255, np.clip(scaled, 0, 254).round()).astype(np.uint8)


def table(cmap: str) -> np.ndarray:
    """Return 255 colours of a colour map, and grey for NaN: (256, 3), u8.

    Raises:
        ArgumentError: there is no such colour map.
    """
    maps = importlib.import_module("matplotlib").colormaps
    if not isinstance(cmap, str) or cmap not in maps:
        close = close_to(str(cmap), list(maps))
        raise refuse(
            f"there is no colour map {shown(cmap)}",
            f'did you mean "{close}"?' if close else 'take "viridis", "coolwarm" or "gray"',
        )
    colours = maps[cmap](np.linspace(0, 1, 255))[:, :3]
    return np.concatenate([np.round(255 * colours), [[128, 128, 128]]]).astype(np.uint8)


def colour_of(thing: Any) -> tuple[int, int, int]:
    """Return a colour given as 0xRRGGBB, "#rrggbb" or a name of matplotlib's, as three bytes.

    Raises:
        ArgumentError: it is no colour.
    """
    if isinstance(thing, (int, np.integer)) and 0 <= thing < 1 << 24:
        return int(thing) >> 16, int(thing) >> 8 & 255, int(thing) & 255
    try:
        rgb = importlib.import_module("matplotlib.colors").to_rgb(thing)
    except (ValueError, TypeError):
        raise refuse(
            f"{shown(thing)} is no colour", 'write 0x2166AC, "#2166ac" or a name such as "tab:blue"'
        ) from None
    red, green, blue = (round(255 * part) for part in rgb)
    return red, green, blue


@dataclass(frozen=True, slots=True)
class Scale:
    """The meaning of a panel's colours: a colour map (256, 3), and the numbers at its ends."""

    table: np.ndarray
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Shades:
    """Colours of points or lines: places in a table, (1 or T, n) u8; the table, (up to 256, 3) u8.

    Attributes:
        scale: what the colours mean, if they stand for numbers.
    """

    index: np.ndarray
    table: np.ndarray
    scale: Scale | None = None


def shades(
    given: Any, frames: int, count: int, scaling: tuple[str, float | None, float | None], what: str
) -> Shades:
    """Return the colours of points or lines.

    Args:
        given: one colour; a colour for each, as (count,) whole numbers 0xRRGGBB, texts, or (count, 3);
            numbers for each, (count,) or (frames, count) floats.
        frames: how many there are.
        count: of points or lines.
        scaling: the colour map for numbers, and the numbers at its ends.
        what: the name of the option, in messages.
    """
    is_list = isinstance(given, (list, tuple, np.ndarray)) or hasattr(given, "shape")
    if not is_list:
        return Shades(np.zeros((1, count), np.uint8), np.array([colour_of(given)], np.uint8))
    if isinstance(given, (list, tuple)) and any(isinstance(one, str) for one in given):
        given = [(red << 16) + (green << 8) + blue for red, green, blue in map(colour_of, given)]
    found = as_array(given, what)
    if found.dtype.kind == "f" and found.shape in ((count,), (frames, count)):
        low, high = limits(found, *scaling[1:])
        scale = Scale(table(scaling[0]), low, high)
        return Shades(np.atleast_2d(levels(found, low, high)), scale.table, scale)
    if found.dtype.kind in "iu" and found.shape == (count,):
        found = np.stack([found >> 16, found >> 8 & 255, found & 255], 1).astype(np.uint8)
    if found.shape != (count, 3):
        raise refuse(
            f"{what} has the shape {found.shape}, and there are {count} of them",
            f"give one colour, ({count},) numbers, ({count}, 3) colours, or numbers for each frame, "
            f"({frames}, {count})",
        )
    if found.dtype.kind == "f":
        found = np.round(255 * np.clip(np.nan_to_num(found), 0, 1)).astype(np.uint8)
    return _few(found.astype(np.uint8))


def _few(colours: np.ndarray) -> Shades:
    """Return colours by their places in a table; those of more than 256 are rounded."""
    if len(np.unique(colours, axis=0)) > 256:
        steps = np.array([255 / 5, 255 / 6, 255 / 5])  # 6 x 7 x 6 colours
        colours = np.round(np.round(colours / steps) * steps).astype(np.uint8)
    known, index = np.unique(colours, axis=0, return_inverse=True)
    return Shades(index.reshape(1, -1).astype(np.uint8), known)
