"""Windows with canvases, scenes in space, and panels of widgets, under the names of Taichi's GGUI."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """A camera: `position`, `lookat` and `up` say where it is and how it is held."""
    def __init__(self) -> None: ...
    curr_position: Any
    curr_lookat: Any
    curr_up: Any
    def bottom(self, bottom: float) -> None:
        """Set the upper edge of what a parallel projection shows, 1 at first; the name is Taichi's."""
    def fov(self, fov: float) -> None:
        """Set the angle between the lower and the upper edge, of a perspective [degrees]."""
    def get_projection_matrix(self, aspect: float) -> np.ndarray:
        """Return the matrix P of the projection: (x, y, z, 1) @ V @ P, as Taichi's."""
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
        """Move the camera by keys, and turn it by the mouse; call it once in each frame."""
    def up(self, x: float, y: float, z: float) -> None:
        """Set the direction that is up in the picture."""
    def z_far(self, z_far: float) -> None:
        """Set the distance up to which the camera sees, 1000 at first."""
    def z_near(self, z_near: float) -> None:
        """Set the distance from which on the camera sees, 0.1 at first."""
class Canvas:
    """What a window shows; `window.get_canvas()` returns it."""
    def __init__(self, picture: Any, res: tuple[int, int]) -> None: ...
    def circles(self, centers: Any, radius: float | None = ..., color: Any = ..., per_vertex_color: Any = ..., per_vertex_radius: Any = ...) -> None:
        """Draw discs."""
    def contour(self, scalar_field: Any, cmap_name: str = ..., normalize: bool = ...) -> None:
        """Fill the canvas with the colours of a scalar field, stretched to its size."""
    def lines(self, vertices: Any, width: float, indices: Any = ..., color: Any = ..., per_vertex_color: Any = ...) -> None:
        """Draw segments."""
    def scene(self, scene: Scene) -> None:
        """Draw a scene as its camera sees it, and empty it for the next frame."""
    def set_background_color(self, color: Any) -> None:
        """Set what frames begin with, this one and all later ones."""
    def set_image(self, img: Any) -> None:
        """Fill the canvas with an image, which is stretched to its size."""
    def triangles(self, vertices: Any, color: Any = ..., indices: Any = ..., per_vertex_color: Any = ...) -> None:
        """Fill triangles."""
    def vector_field(self, vector_field: Any, arrow_spacing: int = ..., scale: float = ..., width: float = ..., color: Any = ...) -> None:
        """Draw every fifth vector of a field as an arrow."""
DOWN: str
ESCAPE: str
class Gui:
    """Panels of widgets; `window.get_gui()` returns it."""
    def __init__(self, picture: Any, res: tuple[int, int]) -> None: ...
    def begin(self, name: str, x: float, y: float, width: float, height: float) -> None:
        """Begin a panel; the widgets up to `end` are in it."""
    def button(self, text: str) -> bool:
        """Add a button, and return whether it was clicked."""
    def checkbox(self, text: str, old_value: bool) -> bool:
        """Add a box to be checked, and return whether it is."""
    def color_edit_3(self, text: str, old_value: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
        """Add three bars for red, green and blue, and return the colour."""
    def end(self) -> None:
        """End the panel."""
    def slider_float(self, text: str, old_value: float, minimum: float, maximum: float) -> float:
        """Add a slider, and return its value."""
    def slider_int(self, text: str, old_value: int, minimum: int, maximum: int) -> int:
        """Add a slider of whole numbers, and return its value."""
    def sub_window(self, name: str, x: float, y: float, width: float, height: float) -> Iterator[Gui]:
        """Describe a panel in a `with` block; the arguments are those of `begin`."""
    def text(self, text: str, color: Sequence[float] | np.ndarray | None = ...) -> None:
        """Add a line of text."""
LEFT: str
LMB: str
MMB: str
PRESS: Any
class ProjectionMode(IntEnum):
    Perspective = 0
    Orthogonal = 1
RELEASE: Any
RETURN: str
RIGHT: str
RMB: str
SHIFT: str
SPACE: str
class Scene:
    """A scene: add its parts and lights in each frame, then `canvas.scene(scene)`."""
    def __init__(self) -> None: ...
    def ambient_light(self, color: Any) -> None:
        """Set the light that comes from everywhere, black at first."""
    def lines(self, vertices: Any, width: float, indices: Any = ..., color: Any = ..., per_vertex_color: Any = ..., vertex_offset: int = ..., vertex_count: int | None = ..., index_offset: int = ..., index_count: int | None = ...) -> None:
        """Add segments, on which no light falls."""
    def mesh(self, vertices: Any, indices: Any = ..., normals: Any = ..., color: Any = ..., per_vertex_color: Any = ..., two_sided: bool = ..., vertex_offset: int = ..., vertex_count: int | None = ..., index_offset: int = ..., index_count: int | None = ..., show_wireframe: bool = ...) -> None:
        """Add triangles."""
    def mesh_instance(self, vertices: Any, indices: Any = ..., normals: Any = ..., color: Any = ..., per_vertex_color: Any = ..., two_sided: bool = ..., transforms: Any = ..., instance_offset: int = ..., instance_count: int | None = ..., vertex_offset: int = ..., vertex_count: int | None = ..., index_offset: int = ..., index_count: int | None = ..., show_wireframe: bool = ...) -> None:
        """Add copies of a mesh; what is not said here is as in `mesh`."""
    def particles(self, centers: Any, radius: float | None = ..., color: Any = ..., per_vertex_color: Any = ..., per_vertex_radius: Any = ..., index_offset: int = ..., index_count: int | None = ...) -> None:
        """Add spheres."""
    def point_light(self, pos: Sequence[float] | np.ndarray, color: Any) -> None:
        """Add a light that shines from a place, as brightly far away as nearby."""
    def set_camera(self, camera: Camera) -> None:
        """Set the camera; it is asked where it is when the scene is drawn."""
TAB: str
UP: str
class Window:
    """A window with a canvas in the plane, a scene in space, and panels of widgets."""
    def __init__(self, name: str, res: int | tuple[int, int], vsync: bool = ..., show_window: bool = ..., fps_limit: float | None = ..., pos: tuple[int, int] = ...) -> None: ...
    event: Any
    @property
    def GUI(self) -> Gui:
        """What makes panels of widgets, as `get_gui()` returns it."""
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
        """Fetch the events since the last call, in their order."""
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
        """Write the frame to a picture, or append it to a film."""
    def show(self) -> None:
        """End the frame: show it, and let events come in."""
def make_camera() -> Camera:
    """Return a new camera, as `Camera()` does."""

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
