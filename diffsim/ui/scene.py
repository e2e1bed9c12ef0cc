"""A scene in space: what there is in it, its lights and its camera."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.lang.host.signatures import checked_methods, need_bool
from diffsim.lang.host.unsupported import Explained
from diffsim.tools.pictures.arrays import need_positive, refuse
from diffsim.ui import arguments, solids
from diffsim.ui.arguments import colors, radii, rgb, shapes, vectors
from diffsim.ui.camera import Camera
from diffsim.ui.drawing import Light, Lines, Mesh, Particles, Surface

Color = Sequence[float] | np.ndarray
GRAY = (0.5, 0.5, 0.5)


@checked_methods("set_camera ambient_light point_light particles mesh mesh_instance lines")
class Scene(Explained):
    """A scene: add its parts and lights in each frame, then `canvas.scene(scene)`.

    Places are in the units of the program; a part keeps the values that its fields have when it is added.
    Places that are no numbers are not drawn. The camera and the ambient light stay, everything else is for
    one frame.

    Example:
        window = ds.ui.Window("Space", (64, 64), show_window=False)
        canvas, scene, camera = window.get_canvas(), window.get_scene(), ds.ui.Camera()
        camera.position(0, 0, 4)
        camera.lookat(0, 0, 0)
        scene.set_camera(camera)
        scene.ambient_light((0.2, 0.2, 0.2))
        scene.point_light((0, 0, 4), (0.9, 0.9, 0.9))
        scene.particles([[0, 0, 0]], radius=0.5, color=(1, 0, 0))
        corners = np.array([[-1.0, -1, 0], [1, -1, 0], [0, 1, 0]])
        scene.mesh(corners, color=(0, 1, 0))
        scene.mesh_instance(corners, transforms=np.diag([0.5, 0.5, 0.5, 1])[None])
        scene.lines(corners, width=2, indices=[0, 1, 1, 2], color=(1, 1, 1))
        canvas.scene(scene)
        print(window.get_image_buffer_as_numpy()[32, 32])  # prints: [1. 0. 0. 1.]
    """

    _words = "a scene"

    def __init__(self) -> None:
        self._camera = Camera()
        self._ambient: np.ndarray = np.zeros(3, np.float32)
        self._lights: list[np.ndarray] = []
        self._parts: list[Particles | Mesh | Lines] = []

    def set_camera(self, camera: Camera) -> None:
        """Set the camera; it is asked where it is when the scene is drawn."""
        if not isinstance(camera, Camera):
            raise refuse(
                f"a camera is a ds.ui.Camera, not {shown(camera)}", "make one: ds.ui.Camera()"
            )
        self._camera = camera

    def ambient_light(self, color: Color) -> None:
        """Set the light that comes from everywhere, black at first."""
        self._ambient = rgb("color", color)

    def point_light(self, pos: Sequence[float] | np.ndarray, color: Color) -> None:
        """Add a light that shines from a place, as brightly far away as nearby."""
        place = arguments.vectors("pos", [pos], 3)[0]
        self._lights.append(np.concatenate([place, rgb("color", color)]))

    def particles(
        self,
        centers: Any,
        radius: float | None = None,
        color: Color = GRAY,
        per_vertex_color: Any = None,
        per_vertex_radius: Any = None,
        index_offset: int = 0,
        index_count: int | None = None,
    ) -> None:
        """Add spheres.

        Args:
            centers: a field or array of places, (n, 3).
            radius: of all of them, in the units of the scene.
            color: of all of them.
            per_vertex_color: a colour for each.
            per_vertex_radius: a radius for each.
            index_offset: the first sphere that is drawn.
            index_count: how many are drawn; all if left out.
        """
        places = vectors("centers", centers, 3)
        sizes = radii(radius, per_vertex_radius, len(places))
        painted = colors(color, per_vertex_color, len(places), "centers")
        chosen = arguments.part("index", index_offset, index_count, len(places))
        self._parts.append(
            Particles(
                places[chosen],
                sizes if per_vertex_radius is None else sizes[chosen],
                painted if per_vertex_color is None else painted[chosen],
            )
        )

    def mesh(
        self,
        vertices: Any,
        indices: Any = None,
        normals: Any = None,
        color: Color = GRAY,
        per_vertex_color: Any = None,
        two_sided: bool = False,
        vertex_offset: int = 0,
        vertex_count: int | None = None,
        index_offset: int = 0,
        index_count: int | None = None,
        show_wireframe: bool = False,
    ) -> None:
        """Add triangles.

        Args:
            vertices: a field or array of places, (n, 3).
            indices: three vertices of each triangle, one after the other; if left out, the vertices in order.
            normals: directions that surfaces face, one for each vertex; if left out, the mean of the
                triangles around it, which face to where their vertices are seen counterclockwise from.
            color: of all vertices.
            per_vertex_color: a colour for each vertex, mixed in between.
            two_sided: whether light falls on the back, too, which otherwise has the ambient light alone.
            vertex_offset: the first vertex that is drawn; with indices, what is added to them.
            vertex_count: how many vertices are drawn, without indices.
            index_offset: the first index that is used.
            index_count: how many indices are used.
            show_wireframe: draw the edges alone.
        """
        self._parts.append(
            _mesh(
                vertices, indices, normals, (color, per_vertex_color), (two_sided, show_wireframe),
                (vertex_offset, vertex_count), (index_offset, index_count), None,
            )
        )  # fmt: skip

    def mesh_instance(
        self,
        vertices: Any,
        indices: Any = None,
        normals: Any = None,
        color: Color = GRAY,
        per_vertex_color: Any = None,
        two_sided: bool = False,
        transforms: Any = None,
        instance_offset: int = 0,
        instance_count: int | None = None,
        vertex_offset: int = 0,
        vertex_count: int | None = None,
        index_offset: int = 0,
        index_count: int | None = None,
        show_wireframe: bool = False,
    ) -> None:
        """Add copies of a mesh; what is not said here is as in `mesh`.

        Args:
            vertices: places, (n, 3).
            indices: three vertices of each triangle.
            normals: directions that surfaces face.
            color: of all vertices.
            per_vertex_color: a colour for each vertex.
            two_sided: whether light falls on the back, too.
            transforms: a matrix of 4 x 4 for each copy, which multiplies places (x, y, z, 1); one copy
                as it is if left out.
            instance_offset: the first copy that is drawn.
            instance_count: how many copies are drawn.
            vertex_offset: the first vertex that is drawn.
            vertex_count: how many vertices are drawn.
            index_offset: the first index that is used.
            index_count: how many indices are used.
            show_wireframe: draw the edges alone.
        """
        moves = None
        if transforms is not None:
            moves = arguments.matrices(transforms)
            moves = moves[arguments.part("instance", instance_offset, instance_count, len(moves))]
        self._parts.append(
            _mesh(
                vertices, indices, normals, (color, per_vertex_color), (two_sided, show_wireframe),
                (vertex_offset, vertex_count), (index_offset, index_count), moves,
            )
        )  # fmt: skip

    def lines(
        self,
        vertices: Any,
        width: float,
        indices: Any = None,
        color: Color = GRAY,
        per_vertex_color: Any = None,
        vertex_offset: int = 0,
        vertex_count: int | None = None,
        index_offset: int = 0,
        index_count: int | None = None,
    ) -> None:
        """Add segments, on which no light falls.

        Args:
            vertices: a field or array of places, (n, 3).
            width: of the lines [pixels].
            indices: two vertices of each segment; if left out, the vertices in order.
            color: of all vertices.
            per_vertex_color: a colour for each vertex, mixed in between.
            vertex_offset: the first vertex that is drawn; with indices, what is added to them.
            vertex_count: how many vertices are drawn, without indices.
            index_offset: the first index that is used.
            index_count: how many indices are used.
        """
        need_positive(width, "width", "give the width of a line in pixels, such as 2")
        places = vectors("vertices", vertices, 3)
        painted = colors(color, per_vertex_color, len(places), "vertices")
        pairs = shapes(
            2, len(places), indices, (index_offset, index_count), (vertex_offset, vertex_count)
        )
        self._parts.append(Lines(places, painted, pairs, float(width)))

    def _take(self, res: tuple[int, int]) -> Callable[[Surface], None]:
        """Return what draws the scene as it is now, and empty it."""
        # Lines last: their edges are mixed with what is behind them.
        parts, self._parts = sorted(self._parts, key=lambda part: isinstance(part, Lines)), []
        lights, self._lights = self._lights, []
        lens = self._camera._lens(res)
        points = np.array(lights, np.float32).reshape(-1, 6)
        points[:, :3] = lens.seen(points[:, :3])
        light = Light(points[np.isfinite(points).all(axis=1)], self._ambient)

        def draw(surface: Surface) -> None:
            for part in parts:
                part.draw(surface, lens, light)

        return draw


def _mesh(
    vertices: Any,
    indices: Any,
    normals: Any,
    colored: tuple[Any, Any],
    looks: tuple[bool, bool],
    vertex: tuple[int, int | None],
    index: tuple[int, int | None],
    transforms: np.ndarray | None,
) -> Mesh:
    """Return a mesh, and copies of it if there are transforms."""
    need_bool(looks[0], "two_sided")
    need_bool(looks[1], "show_wireframe")
    places = vectors("vertices", vertices, 3)
    painted = colors(*colored, len(places), "vertices")
    faces = shapes(3, len(places), indices, index, vertex)
    if normals is None:
        # Of the whole mesh, so that a part of it looks as it does in the whole.
        whole = shapes(
            3, len(places), indices, (0, None), (0 if indices is None else vertex[0], None)
        )
        facing = solids.normals_of(places, whole)
    else:
        facing = vectors("normals", normals, 3)
        arguments.need_count("normals", len(facing), len(places), "vertices")
    if transforms is not None:
        faces = solids.repeated(faces, len(transforms), len(places))
        if len(painted) > 1:
            painted = np.tile(painted, (len(transforms), 1))
        places, facing = solids.instances(places, facing, transforms)
    return Mesh(places, facing, painted, faces, *looks)
