"""The canvas of a window: shapes in the plane, images, and scenes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.gui import arguments as plane
from diffsim.lang.host.signatures import checked_methods, need_number, need_whole
from diffsim.lang.host.unsupported import Explained
from diffsim.tools.pictures.arrays import as_array, need_positive, refuse
from diffsim.ui import raster
from diffsim.ui.arguments import colors, packed, radii, rgb, shapes, vectors
from diffsim.ui.drawing import PLAIN, Surface, fill, stroke
from diffsim.ui.picture import Picture
from diffsim.ui.scene import GRAY, Scene

Color = Sequence[float] | np.ndarray


@checked_methods(
    "set_background_color set_image contour circles triangles lines vector_field scene"
)
class Canvas(Explained):
    """The contents of a window; `window.get_canvas()` returns it.

    Places are in the unit square: (0, 0) is the lower left corner, (1, 1) the upper right one. Radii and
    widths of lines are parts of the window's height, colours red, green and blue between 0 and 1. What is
    drawn later lies above; each frame begins empty.

    Example:
        window = ds.ui.Window("Plane", (64, 64), show_window=False)
        canvas = window.get_canvas()
        canvas.set_background_color((0.2, 0.2, 0.2))
        canvas.circles([[0.5, 0.5]], radius=0.3, color=(1, 0, 0))
        canvas.triangles([[0, 0], [0.5, 0], [0, 0.5]], color=(0, 1, 0))
        canvas.lines([[0.2, 0.9], [0.8, 0.9]], width=0.05, color=(0, 0, 1))
        image = window.get_image_buffer_as_numpy()
        print(image[32, 32], image[63, 0, :3])  # prints: [1. 0. 0. 1.] [0.2 0.2 0.2]

        canvas.set_image(np.ones((8, 4), np.float32))  # stretched
        canvas.contour(np.zeros((4, 4)), "gray")
        canvas.vector_field(np.ones((10, 10, 2)), color=(1, 1, 1))
        canvas.scene(window.get_scene())
        print(window.get_image_buffer_as_numpy().shape)  # prints: (64, 64, 4)
    """

    _words = "a canvas"

    def __init__(self, picture: Picture, res: tuple[int, int]) -> None:
        self._picture, self._res = picture, res

    def set_background_color(self, color: Color) -> None:
        """Set what frames begin with, this one and all later ones."""
        if self._picture.ended:
            self._picture.restart()
        self._picture.background = int(packed(rgb("color", color)[None])[0])

    def set_image(self, img: Any) -> None:
        """Fill the canvas with an image, which is stretched to its size.

        Args:
            img: a field or array of shape (x, y), grey, or of 2 to 4 components or a last axis of as many:
                red, green, blue and alpha, which is ignored. The first axis goes to the right, the second
                up. Floats reach from 0 to 1, integers without sign to the largest of their type.
        """
        made, scale = plane.image(img)
        if not made.size:
            raise refuse(
                f"the image has shape {made.shape}, and no elements", "give one that has some"
            )
        if isinstance(img, np.ndarray):
            made = made.copy()  # the program may change it before the frame is drawn

        def draw(surface: Surface) -> None:
            if made.shape[:2] == self._res:
                surface.pixels.image(made)
            else:
                raster.stretched(surface.pixels.pixels, made.reshape(*made.shape[:2], -1), scale)

        self._picture.add(draw)

    def contour(
        self, scalar_field: Any, cmap_name: str = "plasma", normalize: bool = False
    ) -> None:
        """Fill the canvas with the colours of a scalar field, stretched to its size.

        Args:
            scalar_field: of two axes; numbers from 0 to 1.
            cmap_name: a colormap of matplotlib.
            normalize: whether its least and largest number become 0 and 1.
        """
        values = as_array(scalar_field, "scalar_field")
        self.set_image(plane.contour_colors(values, self._res, normalize, cmap_name))

    def circles(
        self,
        centers: Any,
        radius: float | None = None,
        color: Color = GRAY,
        per_vertex_color: Any = None,
        per_vertex_radius: Any = None,
    ) -> None:
        """Draw discs.

        Args:
            centers: a field or array of places, (n, 2).
            radius: of all of them, as a part of the window's height.
            color: of all of them.
            per_vertex_color: a colour for each.
            per_vertex_radius: a radius for each.
        """
        places = vectors("centers", centers, 2)
        sizes = radii(radius, per_vertex_radius, len(places))
        # Edges fade over one pixel, half of it outside; nothing of radius 0 is seen.
        sizes = np.where(sizes > 0, sizes * self._res[1] + np.float32(0.5), 0)
        each = float(sizes[0]) if len(sizes) == 1 else sizes
        painted = packed(colors(color, per_vertex_color, len(places), "centers"))
        self._picture.add(lambda surface: surface.pixels.circles(places, each, painted))

    def triangles(
        self, vertices: Any, color: Color = GRAY, indices: Any = None, per_vertex_color: Any = None
    ) -> None:
        """Fill triangles.

        Args:
            vertices: a field or array of places, (n, 2).
            color: of all vertices.
            indices: three vertices of each triangle, one after the other; if left out, the vertices in order.
            per_vertex_color: a colour for each vertex, mixed in between.
        """
        places = vectors("vertices", vertices, 2)
        painted = colors(color, per_vertex_color, len(places), "vertices")
        faces = shapes(3, len(places), indices, (0, None), (0, None))
        screen = self._screen(places)
        rows = np.zeros((len(places), 9), np.float32)
        rows[:, 6:] = painted
        self._picture.add(lambda surface: fill(surface, screen, rows, faces, PLAIN, tested=False))

    def lines(
        self,
        vertices: Any,
        width: float,
        indices: Any = None,
        color: Color = GRAY,
        per_vertex_color: Any = None,
    ) -> None:
        """Draw segments.

        Args:
            vertices: a field or array of places, (n, 2).
            width: of the lines, as a part of the window's height.
            indices: two vertices of each segment, one after the other; if left out, the vertices in order.
            color: of all vertices.
            per_vertex_color: a colour for each vertex, mixed in between.
        """
        need_positive(width, "width", "give a part of the window's height, such as 0.01")
        places = vectors("vertices", vertices, 2)
        painted = np.broadcast_to(
            colors(color, per_vertex_color, len(places), "vertices"), (len(places), 3)
        )
        pairs = shapes(2, len(places), indices, (0, None), (0, None))
        screen, thick = self._screen(places), width * self._res[1]
        self._picture.add(
            lambda surface: stroke(surface, screen, painted, pairs, thick, tested=False)
        )

    def _screen(self, places: np.ndarray) -> np.ndarray:
        """Return the pixels of places in the plane: x, y, no depth, and no perspective."""
        made = np.zeros((len(places), 4), np.float32)
        made[:, 0] = places[:, 0] * self._res[0] - 0.5
        made[:, 1] = (1 - places[:, 1]) * self._res[1] - 0.5
        made[:, 3] = 1
        return made

    def vector_field(
        self,
        vector_field: Any,
        arrow_spacing: int = 5,
        scale: float = 0.1,
        width: float = 0.002,
        color: Color = (0, 0, 0),
    ) -> None:
        """Draw every fifth vector of a field as an arrow.

        Args:
            vector_field: of two axes, and vectors of two components.
            arrow_spacing: 5 draws every fifth.
            scale: length of the longest arrow, as a part of the canvas.
            width: of the lines, as a part of the window's height.
            color: of the arrows.
        """
        need_number(scale, "scale")
        need_whole(arrow_spacing, "arrow_spacing", "5 draws every fifth vector")
        if arrow_spacing < 1:
            raise refuse(
                f"arrow_spacing starts at 1, and is {arrow_spacing}", "5 draws every fifth"
            )
        self.lines(_arrows(vector_field, arrow_spacing, scale), width, color=color)

    def scene(self, scene: Scene) -> None:
        """Draw a scene as its camera sees it, and empty it for the next frame."""
        if not isinstance(scene, Scene):
            raise refuse(f"a scene is a ds.ui.Scene, not {shown(scene)}", "use window.get_scene()")
        self._picture.add(scene._take(self._res))


def _arrows(vector_field: Any, spacing: int, scale: float) -> np.ndarray:
    """Return the ends of the three segments of each arrow, one below the other."""
    given = as_array(vector_field, "vector_field")
    if given.ndim != 3 or given.shape[2] != 2:
        raise refuse(
            f"vector_field has shape {given.shape}, not (x, y, 2)",
            "pass a field of vectors with two components",
        )
    longest = float(np.linalg.norm(given, axis=-1).max(initial=0.0)) or 1.0
    along = given[::spacing, ::spacing].reshape(-1, 2) * (scale / longest)
    x, y = (np.arange(0, n, spacing) / max(n - 1, 1) for n in given.shape[:2])
    begin = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    end = begin + along
    ends = [begin, end]
    for turned in (np.pi * 5 / 6, -np.pi * 5 / 6):
        c, s = np.cos(turned), np.sin(turned)
        ends += [end, end + along @ np.array([[c, s], [-s, c]]) * 0.2]
    return np.stack(ends, axis=1).reshape(-1, 2)
