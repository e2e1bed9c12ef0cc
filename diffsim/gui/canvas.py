"""The image that is drawn into: pixels, and the shapes that `raster` draws, by names and units of users."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.gui import arguments, raster
from diffsim.gui.text import text_mask
from diffsim.runtime.session import session

_FEW = 2000
"""So many shapes are drawn in less time than it takes to wake threads."""


class Canvas:
    """An image of `res` pixels.

    Positions are in the unit square, (0, 0) being the lower left corner; radii and sizes are in pixels.

    Attributes:
        pixels: (height, width) of u32, row by row from the top: red, green, blue, alpha in memory.
    """

    def __init__(self, res: tuple[int, int]) -> None:
        self.res = res
        self.pixels = np.empty(res[::-1], np.uint32)
        self.clear(0)

    @property
    def bytes(self) -> np.ndarray:
        """The pixels as an array of shape (height, width, 4), in the same memory."""
        return self.pixels.view(np.uint8).reshape(*self.pixels.shape, 4)

    def as_floats(self) -> np.ndarray:
        """Return what was drawn: (x, y, 4) of f32 from 0 to 1, of 256 levels."""
        turned = self.bytes[::-1].transpose(1, 0, 2)
        return np.ascontiguousarray(turned, np.float32) / np.float32(255)

    def clear(self, color: int) -> None:
        self.pixels[:] = _pixel_of(color)

    def image(self, value: object) -> None:
        made, scale = arguments.image(value, self.res)
        (raster.gray if made.ndim == 2 else raster.colored)(self.pixels, made, scale)

    def circles(self, centers: np.ndarray, radius: object, color: np.ndarray) -> None:
        self._draw(raster.circles, [centers], radius, color)

    def lines(self, begin: np.ndarray, end: np.ndarray, radius: object, color: np.ndarray) -> None:
        self._draw(raster.lines, [begin, end], radius, color)

    def triangles(self, corners: list[np.ndarray], color: np.ndarray) -> None:
        few = len(corners[0]) < _FEW
        raster.triangles(self.pixels, bands(few), *corners, color, 2 * (len(color) > 1))

    def _draw(
        self, kernel: Any, points: list[np.ndarray], radius: object, color: np.ndarray
    ) -> None:
        count = len(points[0])
        radii = arguments.radii(radius, count)
        each = (len(radii) > 1) + 2 * (len(color) > 1)
        if count:
            kernel(self.pixels, bands(count < _FEW), *points, radii, color, each)

    def text(
        self, content: str, x: float, y: float, size: float, color: int, room: int | None = None
    ) -> None:
        """Write a text to the right of and below a place, given in pixels from the lower left corner.

        Args:
            content: the text, of one line or more.
            x: the left end.
            y: the upper end.
            size: height of a line [pixels].
            color: 0xRRGGBB.
            room: how many pixels there are for it to the right; if left out, all.
        """
        mask = text_mask(content, size)[:, :room]
        width, height = self.res
        left, top = round(x), round(height - y)
        # The part of the mask that lies in the image.
        rows = slice(max(top, 0), min(top + mask.shape[0], height))
        columns = slice(max(left, 0), min(left + mask.shape[1], width))
        if rows.start >= rows.stop or columns.start >= columns.stop:
            return
        alpha = mask[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
        alpha = alpha[:, :, None].astype(np.float32) / 255
        under = self.bytes[rows, columns]
        over = np.array([_pixel_of(color)], np.uint32).view(np.uint8)
        under[:] = under + alpha * (over - under.astype(np.float32)) + 0.5

    def fill(
        self, left: int, bottom: int, width: int, height: int, color: int, opacity: float = 1.0
    ) -> None:
        """Fill a rectangle, given in pixels from the lower left corner."""
        top = self.res[1] - bottom - height
        place = (
            slice(max(top, 0), max(top + height, 0)),
            slice(max(left, 0), max(left + width, 0)),
        )
        if opacity == 1.0:
            self.pixels[place] = _pixel_of(color)
            return
        under = self.bytes[place]
        over = np.array([_pixel_of(color)], np.uint32).view(np.uint8)
        under[:] = under + np.float32(opacity) * (over - under.astype(np.float32)) + 0.5


def _pixel_of(color: int) -> np.uint32:
    return np.uint32(255 << 24 | (color & 255) << 16 | color & 0xFF00 | color >> 16 & 255)


def bands(few: bool) -> int:
    """Return how many bands of rows are drawn at the same time."""
    return 1 if few else session.threads
