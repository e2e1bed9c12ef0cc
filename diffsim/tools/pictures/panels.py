"""The contents of films and pages: `Frames` of pixels, moving `Points` with lines, a `Curve` of losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.tools.pictures.arrays import as_array, need_positive, refuse, stacked
from diffsim.tools.pictures.colours import Scale, Shades, levels, limits, shades, table
from diffsim.tools.pictures.images import as_bytes

POINT, LINE = 0x3A86C8, 0x9AA0A6
"""Colours of points and lines that are given none."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Images that follow each other; colours are made of them only when they are shown.

    Attributes:
        source: (T, width, height) numbers, or (T, width, height, 3 or 4) colours.
        dt: time from one to the next [s].
        scale: what the colours mean, if they stand for numbers.
    """

    source: np.ndarray
    dt: float
    label: str
    scale: Scale | None

    def frame(self, k: int) -> np.ndarray:
        """Return an image: (width, height, 3), u8."""
        if self.scale is None:
            return as_bytes(self.source[k], "a frame")[:, :, :3]
        return self.scale.table[levels(self.source[k], self.scale.low, self.scale.high)]


@dataclass(frozen=True, slots=True)
class Points:
    """Points that move.

    Attributes:
        positions: (T, n, 2 or 3), f32.
        dt: time from one frame to the next [s].
        lines: pairs of points, (m, 2).
        radius: of each point, in the unit of the positions, (n,).
        bounds: the corners of what is seen, (2, 2 or 3).
        up: the axis that is upright in pictures of three dimensions.
    """

    positions: np.ndarray
    dt: float
    label: str
    shades: Shades
    lines: np.ndarray
    line_shades: Shades
    radius: np.ndarray
    bounds: np.ndarray
    up: int


@dataclass(frozen=True, slots=True)
class Curve:
    """A loss by iteration."""

    losses: np.ndarray
    label: str


def make_frames(
    array: Any, dt: Any, label: str, cmap: str, vmin: float | None, vmax: float | None
) -> Frames:
    """Return frames of (T, width, height) numbers or (T, width, height, 3) colours."""
    dt = need_positive(dt, "dt", "give the time from one frame to the next [s]")
    found = stacked(array, "array")
    if found.ndim not in (3, 4) or (found.ndim == 4 and found.shape[3] not in (1, 3, 4)):
        raise refuse(
            f"the frames have the shape {found.shape}",
            "frames are (T, width, height) numbers or (T, width, height, 3) colours",
        )
    if found.ndim == 4 and found.shape[3] >= 3:
        as_bytes(found[0], "a frame")  # refuses types that say nothing about colours
        return Frames(found, dt, str(label), None)
    values = found.reshape(found.shape[:3])
    low, high = limits(values, vmin, vmax)
    return Frames(values, dt, str(label), Scale(table(cmap), low, high))


def make_points(
    positions: Any,
    dt: Any,
    label: str,
    *,
    colors: Any,
    lines: Any,
    line_colors: Any,
    radius: Any,
    bounds: Any,
    up: str,
    scaling: tuple[str, float | None, float | None],
) -> Points:
    """Return points with all that is left out chosen; `Player.add_points` describes the options."""
    dt = need_positive(dt, "dt", "give the time from one frame to the next [s]")
    found = stacked(positions, "positions").astype(np.float32)
    if found.ndim != 3 or found.shape[2] not in (2, 3):
        raise refuse(
            f"the positions have the shape {found.shape}",
            "positions are (T, n, 2) or (T, n, 3): T frames of n points",
        )
    frames, count, dimensions = found.shape
    pairs = _pairs(lines, count)
    if up not in ("y", "z"):
        raise refuse(f"up cannot be {shown(up)}", 'write up="y" or up="z"')
    corners = _corners(bounds, found)
    return Points(
        found,
        dt,
        str(label),
        shades(POINT if colors is None else colors, frames, count, scaling, "colors"),
        pairs,
        shades(
            LINE if line_colors is None else line_colors, frames, len(pairs), scaling, "line_colors"
        ),
        _radii(radius, corners, count),
        corners,
        1 if dimensions == 2 else "xyz".index(up),
    )


def _pairs(lines: Any, count: int) -> np.ndarray:
    """Return pairs of points that lines join, (m, 2)."""
    if lines is None:
        return np.zeros((0, 2), np.int32)
    pairs = as_array(lines, "lines")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise refuse(
            f"lines has the shape {pairs.shape} and the type {pairs.dtype}",
            "lines are (m, 2) whole numbers: the two points of each line",
        )
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < count:
        raise refuse(
            f"a line ends at point {pairs.min() if pairs.min() < 0 else pairs.max()}, and there are "
            f"{count} points",
            f"points are numbered from 0 to {count - 1}",
        )
    return pairs.astype(np.int32)


def _corners(bounds: Any, positions: np.ndarray) -> np.ndarray:
    """Return the corners of what is seen, (2, d)."""
    dimensions = positions.shape[2]
    if bounds is None:
        finite = positions[np.isfinite(positions).all(2)]
        if not len(finite):
            raise refuse(
                "none of the positions is a number", "look for the first NaN: check_nan=True"
            )
        low, high = finite.min(0), finite.max(0)
        margin = 0.05 * max(float((high - low).max()), 1e-6)
        return np.stack([low - margin, high + margin])
    try:
        low, high = (np.broadcast_to(np.float32(end), dimensions) for end in bounds)
    except (TypeError, ValueError):
        raise refuse(
            f"bounds cannot be {shown(bounds)}",
            "give the lower and the upper corner: bounds=(0, 1), or bounds=((0, 0), (2, 1))",
        ) from None
    if not (low < high).all():
        raise refuse(f"bounds={shown(bounds)} has no inside", "the lower corner comes first")
    return np.stack([low, high])


def _radii(radius: Any, corners: np.ndarray, count: int) -> np.ndarray:
    """Return the radius of each point, (n,)."""
    extent = float((corners[1] - corners[0]).max())
    if radius is None:
        return np.full(count, extent * np.clip(0.35 / count**0.5, 0.002, 0.012), np.float32)
    found = as_array(radius, "radius").astype(np.float32)
    if found.shape not in ((), (count,)) or not (found >= 0).all():
        raise refuse(
            f"radius cannot be {shown(radius)}",
            f"give one number, in the unit of the positions, or one for each of the {count} points",
        )
    return np.broadcast_to(found, count)


def make_curve(losses: Any, label: str) -> Curve:
    """Return a curve of (iterations,) numbers."""
    found = as_array(losses, "losses").astype(np.float64)
    if found.ndim != 1 or not found.size:
        raise refuse(
            f"the losses have the shape {found.shape}", "give one number for each iteration"
        )
    return Curve(found, str(label))


def spans_decades(losses: np.ndarray) -> bool:
    """Return whether a curve is read better with a logarithmic axis."""
    finite = losses[np.isfinite(losses)]
    return bool(finite.size and finite.min() > 0 and finite.max() > 50 * finite.min())
