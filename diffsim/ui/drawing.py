"""Draws the parts of a scene into pixels: arrays of users become the arguments of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diffsim.gui.canvas import Canvas as Pixels
from diffsim.gui.canvas import bands
from diffsim.ui import raster, solids
from diffsim.ui.camera import Lens

_FEW = 300
"""So many shapes are drawn in less time than it takes to wake threads."""


class Surface:
    """The pixels that are drawn into.

    Attributes:
        pixels: the image.
        depths: (height, width) of f32, from 1 at the camera's near plane to 0 at the far one.
    """

    def __init__(self, res: tuple[int, int]) -> None:
        self.pixels = Pixels(res)
        self.depths = np.zeros(res[::-1], np.float32)

    def clear(self, color: int) -> None:
        """Begin a frame."""
        self.pixels.clear(color)
        self.depths[:] = 0


@dataclass(frozen=True)
class Light:
    """The lights of a scene, in the camera's coordinates.

    Attributes:
        points: of each point light the place and the colour, (n, 6).
        ambient: a colour.
    """

    points: np.ndarray
    ambient: np.ndarray


PLAIN = Light(np.zeros((0, 6), np.float32), np.ones(3, np.float32))
"""Light in which everything has its own colour."""


@dataclass(frozen=True)
class Particles:
    """Spheres: `each` as `raster` has it."""

    centers: np.ndarray
    radius: np.ndarray
    colors: np.ndarray

    def draw(self, surface: Surface, lens: Lens, light: Light) -> None:
        """Draw them, the nearest first, so that fewer pixels are computed for nothing."""
        seen = lens.seen(self.centers)
        boxes, shown = _boxes(seen, self.radius, lens, surface.depths.shape)
        chosen = np.flatnonzero(shown)
        chosen = chosen[np.argsort(-seen[chosen, 2])]
        radius = self.radius if len(self.radius) == 1 else self.radius[chosen]
        colors = self.colors if len(self.colors) == 1 else self.colors[chosen]
        if len(chosen):
            raster.spheres(
                surface.pixels.pixels,
                surface.depths,
                bands(len(chosen) < _FEW),
                seen[chosen],
                radius,
                colors,
                (len(radius) > 1) + 2 * (len(colors) > 1),
                boxes[chosen],
                lens.numbers,
                light.points,
                light.ambient,
            )


def _boxes(
    seen: np.ndarray, radius: np.ndarray, lens: Lens, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return first and last column and row of each sphere, and which ones are in the picture."""
    perspective, fx, fy, cx, cy, _, _, near = lens.numbers
    height, width = shape
    with np.errstate(all="ignore"):  # what is no number is not drawn
        distance = -seen[:, 2]
        x0, x1 = _reach(seen[:, 0], distance, radius, perspective)
        y0, y1 = _reach(seen[:, 1], distance, radius, perspective)
        left, right = np.floor(cx + fx * x0), np.ceil(cx + fx * x1) + 1
        top, bottom = np.floor(cy - fy * y1), np.ceil(cy - fy * y0) + 1
        # A parallel projection may be mirrored.
        left, right = np.minimum(left, right - 1), np.maximum(left, right - 1) + 1
        top, bottom = np.minimum(top, bottom - 1), np.maximum(top, bottom - 1) + 1
        made = np.stack([left, right, top, bottom], axis=1)
        shown = (distance + radius > near) & (radius > 0) & np.isfinite(seen).all(axis=1)
    boxes = np.clip(np.nan_to_num(made), 0, [width, width, height, height]).astype(np.int32)
    return boxes, shown & (boxes[:, 0] < boxes[:, 1]) & (boxes[:, 2] < boxes[:, 3])


def _reach(
    middle: np.ndarray, distance: np.ndarray, radius: np.ndarray, perspective: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return where spheres begin and end along x or y, at distance 1 (anywhere in parallel)."""
    if not perspective:
        return middle - radius, middle + radius
    # The tangents from the camera. One that is in or beside the sphere may see it everywhere.
    square = distance * distance - radius * radius
    root = np.sqrt(np.maximum(middle * middle + square, 0))
    free = (square > 0) & (distance > 0)
    low = np.where(free, (middle * distance - radius * root) / square, -np.inf)
    return low, np.where(free, (middle * distance + radius * root) / square, np.inf)


@dataclass(frozen=True)
class Mesh:
    """Triangles: places and normals of vertices, their colours, three vertices of each triangle."""

    places: np.ndarray
    normals: np.ndarray
    colors: np.ndarray
    faces: np.ndarray
    two_sided: bool
    wires: bool

    def draw(self, surface: Surface, lens: Lens, light: Light) -> None:
        """Draw them."""
        colors = np.broadcast_to(self.colors, self.places.shape)
        rows = np.concatenate(
            [lens.seen(self.places), lens.turned(self.normals), colors], axis=1, dtype=np.float32
        )
        rows, faces = solids.cut_faces(rows, self.faces, lens.near)
        screen = lens.projected(rows)
        fill(surface, screen, rows, faces, light, two_sided=self.two_sided, wires=self.wires)


def fill(
    surface: Surface,
    screen: np.ndarray,
    rows: np.ndarray,
    faces: np.ndarray,
    light: Light,
    *,
    two_sided: bool = False,
    wires: bool = False,
    tested: bool = True,
) -> None:
    """Fill triangles on the screen."""
    if len(faces):
        raster.triangles(
            surface.pixels.pixels,
            surface.depths,
            bands(len(faces) < _FEW),
            screen,
            rows,
            faces,
            light.points,
            light.ambient,
            int(two_sided),
            int(wires),
            int(tested),
        )


@dataclass(frozen=True)
class Lines:
    """Segments: places and colours of vertices, two vertices of each segment, the width in pixels."""

    places: np.ndarray
    colors: np.ndarray
    pairs: np.ndarray
    width: float

    def draw(self, surface: Surface, lens: Lens, light: Light) -> None:
        """Draw them; lines have no side that light could fall on."""
        colors = np.broadcast_to(self.colors, self.places.shape)
        rows = np.concatenate([lens.seen(self.places), colors], axis=1, dtype=np.float32)
        rows, pairs = solids.cut_segments(rows, self.pairs, lens.near)
        stroke(surface, lens.projected(rows), rows[:, 3:], pairs, self.width)


def stroke(
    surface: Surface,
    screen: np.ndarray,
    colors: np.ndarray,
    pairs: np.ndarray,
    width: float,
    *,
    tested: bool = True,
) -> None:
    """Draw segments on the screen."""
    if len(pairs):
        raster.segments(
            surface.pixels.pixels,
            surface.depths,
            bands(len(pairs) < _FEW),
            screen,
            np.ascontiguousarray(colors),
            pairs,
            width / 2,
            int(tested),
        )
