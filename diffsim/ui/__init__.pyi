"""Windows with canvases, scenes in space, and panels of widgets, under the names of Taichi's GGUI."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

ALT: str
BACKSPACE: str
CAPSLOCK: str
CTRL: str
class Camera:
    """A camera: `position`, `lookat` and `up` say where it is and how it is held.

    At first it is at the origin, looks along z with y up, in perspective with an angle of 45 degrees from the
    lower to the upper edge, from a distance of 0.1 to one of 1000.

    Attributes:
        curr_position, curr_lookat, curr_up: what was set last, as vectors.

    Example:
        camera = ds.ui.Camera()
        camera.position(0, 0, 3)
        camera.lookat(0, 0, 0)
        camera.up(0, 1, 0)
        camera.fov(90)
        camera.z_near(1)
        camera.z_far(9)
        window = ds.ui.Window("Camera", (64, 64), show_window=False)
        camera.track_user_inputs(window, hold_key=ds.ui.RMB)  # in each frame
        place = [1.5, 0, 0, 1] @ camera.get_view_matrix() @ camera.get_projection_matrix(1.0)
        print(place[:2] / place[3])  # prints: [0.5 0. ]

        camera.projection_mode(ds.ui.ProjectionMode.Orthogonal)
        camera.left(-2)
        camera.right(2)
        camera.top(-1)
        camera.bottom(1)
        place = [1.5, 0, 0, 1] @ camera.get_view_matrix() @ camera.get_projection_matrix(2.0)
        print(place[:2])  # prints: [0.75 0.  ]
    """
    def __init__(self) -> None: ...
    curr_position: Any
    curr_lookat: Any
    curr_up: Any
    def bottom(self, bottom: float) -> None:
        """Set the upper edge of what a parallel projection shows, 1 at first; the name is Taichi's."""
    def fov(self, fov: float) -> None:
        """Set the angle between the lower and the upper edge, of a perspective [degrees]."""
    def get_projection_matrix(self, aspect: float) -> np.ndarray:
        """Return the matrix P of the projection: (x, y, z, 1) @ V @ P, as Taichi's.

        Args:
            aspect: width / height of the canvas.
        """
    def get_view_matrix(self) -> np.ndarray:
        """Return the matrix V of the camera's coordinates: (x, y, z, 1) @ V, as Taichi's."""
    def left(self, left: float) -> None:
        """Set the left edge of what a parallel projection shows, -1 at first."""
    def lookat(self, x: float, y: float, z: float) -> None:
        """Set the place that is in the middle of the picture."""
    def position(self, x: float, y: float, z: float) -> None:
        """Set where the camera is."""
    def projection_mode(self, mode: int) -> None:
        """Set the projection: `ds.ui.ProjectionMode.Perspective` (0) or `.Orthogonal` (1)."""
    def right(self, right: float) -> None:
        """Set the right edge of what a parallel projection shows, 1 at first."""
    def top(self, top: float) -> None:
        """Set the lower edge of what a parallel projection shows, -1 at first; the name is Taichi's."""
    def track_user_inputs(self, window: Window, movement_speed: float = ..., yaw_speed: float = ..., pitch_speed: float = ..., hold_key: Any = ...) -> None:
        """Move the camera by keys, and turn it by the mouse; call it once in each frame.

        W and S go forward and back, A and D left and right, E and Q up and down.

        Args:
            window: the window that the keys are pressed in.
            movement_speed: way for a 60th of a second.
            yaw_speed: angle to the side when the mouse crosses the window [rad].
            pitch_speed: the same up and down.
            hold_key: the key or button that must be held to turn, such as `ds.ui.RMB`; if left out, none.
        """
    def up(self, x: float, y: float, z: float) -> None:
        """Set the direction that is up in the picture."""
    def z_far(self, z_far: float) -> None:
        """Set the distance up to which the camera sees, 1000 at first."""
    def z_near(self, z_near: float) -> None:
        """Set the distance from which on the camera sees, 0.1 at first."""
class Canvas:
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
    def __init__(self, picture: Any, res: tuple[int, int]) -> None: ...
    def circles(self, centers: Any, radius: float | None = ..., color: Any = ..., per_vertex_color: Any = ..., per_vertex_radius: Any = ...) -> None:
        """Draw discs.

        Args:
            centers: a field or array of places, (n, 2).
            radius: of all of them, as a part of the window's height.
            color: of all of them.
            per_vertex_color: a colour for each.
            per_vertex_radius: a radius for each.
        """
    def contour(self, scalar_field: Any, cmap_name: str = ..., normalize: bool = ...) -> None:
        """Fill the canvas with the colours of a scalar field, stretched to its size.

        Args:
            scalar_field: of two axes; numbers from 0 to 1.
            cmap_name: a colormap of matplotlib.
            normalize: whether its least and largest number become 0 and 1.
        """
    def lines(self, vertices: Any, width: float, indices: Any = ..., color: Any = ..., per_vertex_color: Any = ...) -> None:
        """Draw segments.

        Args:
            vertices: a field or array of places, (n, 2).
            width: of the lines, as a part of the window's height.
            indices: two vertices of each segment, one after the other; if left out, the vertices in order.
            color: of all vertices.
            per_vertex_color: a colour for each vertex, mixed in between.
        """
    def scene(self, scene: Scene) -> None:
        """Draw a scene as its camera sees it, and empty it for the next frame."""
    def set_background_color(self, color: Any) -> None:
        """Set what frames begin with, this one and all later ones."""
    def set_image(self, img: Any) -> None:
        """Fill the canvas with an image, which is stretched to its size.

        Args:
            img: a field or array of shape (x, y), grey, or of 2 to 4 components or a last axis of as many:
                red, green, blue and alpha, which is ignored. The first axis goes to the right, the second
                up. Floats reach from 0 to 1, integers without sign to the largest of their type.
        """
    def triangles(self, vertices: Any, color: Any = ..., indices: Any = ..., per_vertex_color: Any = ...) -> None:
        """Fill triangles.

        Args:
            vertices: a field or array of places, (n, 2).
            color: of all vertices.
            indices: three vertices of each triangle, one after the other; if left out, the vertices in order.
            per_vertex_color: a colour for each vertex, mixed in between.
        """
    def vector_field(self, vector_field: Any, arrow_spacing: int = ..., scale: float = ..., width: float = ..., color: Any = ...) -> None:
        """Draw every fifth vector of a field as an arrow.

        Args:
            vector_field: of two axes, and vectors of two components.
            arrow_spacing: 5 draws every fifth.
            scale: length of the longest arrow, as a part of the canvas.
            width: of the lines, as a part of the window's height.
            color: of the arrows.
        """
DOWN: str
ESCAPE: str
class Gui:
    """Panels of widgets; `window.get_gui()` returns it.

    A widget is known by its text, within its panel; what follows `##` in it is not shown. Panels are moved
    by their titles, and folded by the triangle there.

    Example:
        window = ds.ui.Window("Panels", (300, 200), show_window=False)
        gui = window.get_gui()
        speed, steps, paused, color = 1.5, 3, True, (1.0, 0.5, 0.0)
        with gui.sub_window("Options", 0.05, 0.05, 0.6, 0.6) as panel:
            speed = panel.slider_float("speed", speed, 0, 10)
            steps = panel.slider_int("steps", steps, 1, 10)
            paused = panel.checkbox("paused", paused)
            color = panel.color_edit_3("colour", color)
            if panel.button("restart"):
                speed = 1.0
        gui.begin("Figures", 0.7, 0.05, 0.25, 0.2)  # the same without `with`
        gui.text("t = 0.5")
        gui.end()
        window.save_image("panels.png")
        print(speed, steps, paused, color)  # prints: 1.5 3 True (1.0, 0.5, 0.0)
    """
    def __init__(self, picture: Any, res: tuple[int, int]) -> None: ...
    def begin(self, name: str, x: float, y: float, width: float, height: float) -> None:
        """Begin a panel; the widgets up to `end` are in it.

        Args:
            name: its title.
            x: its left edge, as a part of the window's width.
            y: its upper edge, as a part of the window's height.
            width: as a part of the window's width.
            height: as a part of the window's height; a panel is as high as its widgets need.
        """
    def button(self, text: str) -> bool:
        """Add a button, and return whether it was clicked."""
    def checkbox(self, text: str, old_value: bool) -> bool:
        """Add a box to be checked, and return whether it is.

        Args:
            text: what stands beside it.
            old_value: whether it was checked until now.
        """
    def color_edit_3(self, text: str, old_value: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
        """Add three bars for red, green and blue, and return the colour.

        Args:
            text: what stands beside them.
            old_value: the colour until now, three numbers between 0 and 1.
        """
    def end(self) -> None:
        """End the panel."""
    def slider_float(self, text: str, old_value: float, minimum: float, maximum: float) -> float:
        """Add a slider, and return its value.

        Args:
            text: what stands beside it.
            old_value: the value until now.
            minimum: the value at the left end.
            maximum: the value at the right end.
        """
    def slider_int(self, text: str, old_value: int, minimum: int, maximum: int) -> int:
        """Add a slider of whole numbers, and return its value.

        Args:
            text: what stands beside it.
            old_value: the value until now.
            minimum: the value at the left end.
            maximum: the value at the right end.
        """
    def sub_window(self, name: str, x: float, y: float, width: float, height: float) -> AbstractContextManager[Gui]:
        """Describe a panel in a `with` block; the arguments are those of `begin`."""
    def text(self, text: str, color: Sequence[float] | np.ndarray | None = ...) -> None:
        """Add a line of text."""
LEFT: str
LMB: str
MMB: str
PRESS: Any
class ProjectionMode(IntEnum):
    """How a camera projects: in perspective, or in parallel.

    Example:
        print(ds.ui.ProjectionMode(1).name)  # prints: Orthogonal
    """
    Perspective = 0
    Orthogonal = 1
RELEASE: Any
RETURN: str
RIGHT: str
RMB: str
SHIFT: str
SPACE: str
class Scene:
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
    def __init__(self) -> None: ...
    def ambient_light(self, color: Any) -> None:
        """Set the light that comes from everywhere, black at first."""
    def lines(self, vertices: Any, width: float, indices: Any = ..., color: Any = ..., per_vertex_color: Any = ..., vertex_offset: int = ..., vertex_count: int | None = ..., index_offset: int = ..., index_count: int | None = ...) -> None:
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
    def mesh(self, vertices: Any, indices: Any = ..., normals: Any = ..., color: Any = ..., per_vertex_color: Any = ..., two_sided: bool = ..., vertex_offset: int = ..., vertex_count: int | None = ..., index_offset: int = ..., index_count: int | None = ..., show_wireframe: bool = ...) -> None:
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
    def mesh_instance(self, vertices: Any, indices: Any = ..., normals: Any = ..., color: Any = ..., per_vertex_color: Any = ..., two_sided: bool = ..., transforms: Any = ..., instance_offset: int = ..., instance_count: int | None = ..., vertex_offset: int = ..., vertex_count: int | None = ..., index_offset: int = ..., index_count: int | None = ..., show_wireframe: bool = ...) -> None:
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
    def particles(self, centers: Any, radius: float | None = ..., color: Any = ..., per_vertex_color: Any = ..., per_vertex_radius: Any = ..., index_offset: int = ..., index_count: int | None = ...) -> None:
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
    def point_light(self, pos: Sequence[float] | np.ndarray, color: Any) -> None:
        """Add a light that shines from a place, as brightly far away as nearby."""
    def set_camera(self, camera: Camera) -> None:
        """Set the camera; it is asked where it is when the scene is drawn."""
TAB: str
UP: str
class Window:
    """A window with a canvas in the plane, a scene in space, and panels of widgets.

    Frames are drawn by compiled code on the CPU. Without a display they go to a picture beside the program,
    and in a notebook to the output of the cell, as those of `ds.GUI`.

    Args:
        name: the title.
        res: pixels, as (width, height).
        vsync: at most as many frames as screens have, 60 a second.
        show_window: False: no window; `save_image` and `get_image_buffer_as_numpy` end a frame.
        fps_limit: the most frames a second; None is no limit.
        pos: accepted as Taichi's; windows open where the system puts them.

    Attributes:
        event: what `get_event` has found last.

    Example:
        window = ds.ui.Window("Disc", (64, 64), show_window=False)  # left out: a window
        canvas, scene, gui = window.get_canvas(), window.get_scene(), window.get_gui()
        window.fps_limit = 30
        for frame in range(3):  # with a window: while window.running:
            if window.get_event(ds.ui.PRESS) and window.event.key == ds.ui.ESCAPE:
                window.running = False
            if window.is_pressed(ds.ui.LMB, "a"):
                print(window.get_cursor_pos(), window.get_events())
            canvas.circles([[0.5, 0.5]], radius=0.4, color=(1, 1, 1))
            window.GUI.text("a disc")
            window.show()
        canvas.circles([[0.5, 0.5]], radius=0.4, color=(1, 1, 1))
        window.save_image("disc.png")
        print(window.get_image_buffer_as_numpy()[32, 32])  # prints: [1. 1. 1. 1.]
        print(window.get_depth_buffer_as_numpy().shape)  # prints: (64, 64)
        depth = ds.field(ds.f32, shape=window.get_window_shape())
        window.get_depth_buffer(depth)
        window.destroy()
    """
    def __init__(self, name: str, res: int | tuple[int, int], vsync: bool = ..., show_window: bool = ..., fps_limit: float | None = ..., pos: tuple[int, int] = ...) -> None: ...
    event: Any
    @property
    def GUI(self) -> Gui:
        """The maker of panels of widgets, as `get_gui()` returns it."""
    def destroy(self) -> None:
        """Close the window and finish films."""
    @property
    def fps_limit(self) -> float | None:
        """The most frames a second; None is no limit."""
    @fps_limit.setter
    def fps_limit(self, value: Any) -> None: ...
    def get_canvas(self) -> Canvas:
        """Return the canvas."""
    def get_cursor_pos(self) -> tuple[float, float]:
        """Return where the mouse is: (x, y) between 0 and 1."""
    def get_depth_buffer(self, depth: Any) -> None:
        """Write the depths of the scene to a field or `ds.ndarray` of numbers, as large as the window."""
    def get_depth_buffer_as_numpy(self) -> np.ndarray:
        """Return the depths of the scene: (x, y) of f32, 1 at the camera's near plane, 0 at its far one."""
    def get_event(self, tag: Any = ...) -> bool:
        """Return whether there was such an event (as in `get_events`), which is then `window.event`."""
    def get_events(self, tag: Any = ...) -> list[Any]:
        """Fetch the events since the last call, in their order.

        Args:
            tag: `ds.ui.PRESS` or `ds.ui.RELEASE`; all if left out. Others are kept.
        """
    def get_gui(self) -> Gui:
        """Return what makes panels of widgets."""
    def get_image_buffer_as_numpy(self) -> np.ndarray:
        """Return the frame: (x, y, 4) of f32 from 0 to 1, of 256 levels."""
    def get_scene(self) -> Scene:
        """Return the window's scene; `ds.ui.Scene()` makes another one."""
    def get_window_shape(self) -> tuple[int, int]:
        """Return the width and the height, in pixels."""
    def is_pressed(self, *keys: str) -> bool:
        """Return whether one of the keys, or buttons of the mouse, is pressed now."""
    @property
    def running(self) -> bool:
        """Whether the window is open; True without one, until it is set to False."""
    @running.setter
    def running(self, value: Any) -> None: ...
    def save_image(self, filename: str | PathLike[str]) -> None:
        """Write the frame to a picture, or append it to a film.

        Args:
            filename: a picture (.png, .jpg, .bmp, ...), or a film (.gif, .apng, and .mp4 where ffmpeg is),
                which is complete when the window is destroyed or the program ends.
        """
    def show(self) -> None:
        """End the frame: show it, and let events come in."""
def make_camera() -> Camera:
    """Return a new camera, as `Camera()` does.

    Example:
        print(ds.ui.make_camera().curr_lookat)  # prints: [0.0, 0.0, 1.0]
    """

__all__ = [
    "ALT",
    "BACKSPACE",
    "CAPSLOCK",
    "CTRL",
    "DOWN",
    "ESCAPE",
    "LEFT",
    "LMB",
    "MMB",
    "PRESS",
    "RELEASE",
    "RETURN",
    "RIGHT",
    "RMB",
    "SHIFT",
    "SPACE",
    "TAB",
    "UP",
    "Camera",
    "Canvas",
    "Gui",
    "ProjectionMode",
    "Scene",
    "Window",
    "make_camera",
]
