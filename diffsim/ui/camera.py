"""The camera of a scene: where it is, where it looks, and how it projects."""

from __future__ import annotations

import enum
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import shown
from diffsim.lang.host.signatures import checked_methods, need_number
from diffsim.lang.types.vector import Vector
from diffsim.tools.pictures.arrays import need_positive, refuse

if TYPE_CHECKING:
    from diffsim.ui.window import Window

_STEEPEST = 0.99 * math.pi / 2  # how far a camera may look up or down [rad]
_KEYS = {"w": (0, 1), "s": (0, -1), "a": (1, 1), "d": (1, -1), "e": (2, 1), "q": (2, -1)}
"""The keys that move a camera: along which direction (front, left, up), and its sign."""


class ProjectionMode(enum.IntEnum):
    """How a camera projects: in perspective, or in parallel.

    Example:
        print(ds.ui.ProjectionMode(1).name)  # prints: Orthogonal
    """

    Perspective = 0
    Orthogonal = 1


@dataclass(frozen=True)
class Lens:
    """The part of space that a camera shows on a canvas of some size.

    Attributes:
        axes: its directions to the right, up and back, in the rows.
        position: where it is.
        numbers: the projection, as `raster` takes it.
    """

    axes: np.ndarray
    position: np.ndarray
    numbers: np.ndarray

    @property
    def near(self) -> float:
        """The distance of the near plane."""
        return float(self.numbers[7])

    def seen(self, points: np.ndarray) -> np.ndarray:
        """Return places of the scene in the camera's coordinates, f32."""
        with np.errstate(all="ignore"):  # what is no number is not drawn
            # Not `@`, whose threads cost more than these few products.
            return np.einsum("nj,kj->nk", points - self.position, self.axes).astype(np.float32)

    def turned(self, directions: np.ndarray) -> np.ndarray:
        """Return directions of the scene in the camera's coordinates, f32."""
        with np.errstate(all="ignore"):
            return np.einsum("nj,kj->nk", directions, self.axes).astype(np.float32)

    def projected(self, seen: np.ndarray) -> np.ndarray:
        """Return for places in the camera's coordinates: x and y in pixels, the depth, 1 / distance."""
        perspective, fx, fy, cx, cy, a, b, _ = self.numbers
        distance = -seen[:, 2]
        with np.errstate(all="ignore"):
            # In parallel projection nothing is smaller far away.
            part = 1 / distance if perspective else np.ones_like(distance)
            x, y = cx + fx * seen[:, 0] * part, cy - fy * seen[:, 1] * part
            depth = a + b * (part if perspective else distance)
        return np.stack([x, y, depth, part], axis=1).astype(np.float32)


@checked_methods(
    "position lookat up projection_mode fov left right top bottom z_near z_far get_view_matrix "
    "get_projection_matrix track_user_inputs"
)
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

    def __init__(self) -> None:
        self.curr_position: Any = Vector([0.0, 0.0, 0.0])
        self.curr_lookat: Any = Vector([0.0, 0.0, 1.0])
        self.curr_up: Any = Vector([0.0, 1.0, 0.0])
        self._mode = ProjectionMode.Perspective
        self._fov = 45.0
        # Edges of what a parallel projection shows.
        self._left, self._right, self._low, self._high = -1.0, 1.0, -1.0, 1.0
        self._near, self._far = 0.1, 1000.0
        self._time: float | None = None  # of the last `track_user_inputs` [s]
        self._mouse: tuple[float, float] | None = None

    def position(self, x: float, y: float, z: float) -> None:
        """Set where the camera is."""
        self.curr_position = _place("position", x, y, z)

    def lookat(self, x: float, y: float, z: float) -> None:
        """Set the place that is in the middle of the picture."""
        self.curr_lookat = _place("lookat", x, y, z)

    def up(self, x: float, y: float, z: float) -> None:
        """Set the direction that is up in the picture."""
        self.curr_up = _place("up", x, y, z)

    def projection_mode(self, mode: int) -> None:
        """Set the projection: `ds.ui.ProjectionMode.Perspective` (0) or `.Orthogonal` (1)."""
        try:
            self._mode = ProjectionMode(mode)
        except ValueError:
            raise refuse(
                f"a projection is 0 or 1, not {shown(mode)}",
                "write ds.ui.ProjectionMode.Perspective or ds.ui.ProjectionMode.Orthogonal",
            ) from None

    def fov(self, fov: float) -> None:
        """Set the angle between the lower and the upper edge, of a perspective [degrees]."""
        need_number(fov, "fov", "give an angle in degrees, such as 45")
        if not 0 < fov < 180:
            raise refuse(
                f"an angle of {fov:g} degrees sees nothing", "angles are between 0 and 180"
            )
        self._fov = float(fov)

    def left(self, left: float) -> None:
        """Set the left edge of what a parallel projection shows, -1 at first."""
        need_number(left, "left")
        self._left = float(left)

    def right(self, right: float) -> None:
        """Set the right edge of what a parallel projection shows, 1 at first."""
        need_number(right, "right")
        self._right = float(right)

    def top(self, top: float) -> None:
        """Set the lower edge of what a parallel projection shows, -1 at first; the name is Taichi's."""
        need_number(top, "top")
        self._low = float(top)

    def bottom(self, bottom: float) -> None:
        """Set the upper edge of what a parallel projection shows, 1 at first; the name is Taichi's."""
        need_number(bottom, "bottom")
        self._high = float(bottom)

    def z_near(self, z_near: float) -> None:
        """Set the distance from which on the camera sees, 0.1 at first."""
        self._near = need_positive(z_near, "z_near", "give a distance, such as 0.1")

    def z_far(self, z_far: float) -> None:
        """Set the distance up to which the camera sees, 1000 at first."""
        self._far = need_positive(z_far, "z_far", "give a distance, such as 1000")

    def get_view_matrix(self) -> np.ndarray:
        """Return the matrix V of the camera's coordinates: (x, y, z, 1) @ V, as Taichi's."""
        axes = self._axes()
        made = np.eye(4, dtype=np.float32)
        made[:3, :3] = axes.T
        made[3, :3] = -(axes @ np.array(self.curr_position, np.float64))
        return made

    def get_projection_matrix(self, aspect: float) -> np.ndarray:
        """Return the matrix P of the projection: (x, y, z, 1) @ V @ P, as Taichi's.

        Args:
            aspect: width / height of the canvas.
        """
        need_positive(aspect, "aspect", "give width / height")
        across, up, x, y = self._scales(aspect)
        a, b = self._depths()
        made = np.diag([across, up, 0.0, 0.0])
        if self._mode == ProjectionMode.Perspective:
            made[2, 2:], made[3, 2] = (-a, -1.0), b
        else:
            made[2, 2], made[3] = -b, (x, y, a, 1.0)
        return made.astype(np.float32)

    def _scales(self, aspect: float) -> tuple[float, float, float, float]:
        """Return how (x, y) of a plane at distance 1 becomes (-1, -1) to (1, 1): factors and additions."""
        if self._mode == ProjectionMode.Perspective:
            up = 1 / math.tan(math.radians(self._fov) / 2)
            return up / aspect, up, 0.0, 0.0
        wide, high = self._right - self._left, self._high - self._low
        if not wide or not high:
            raise refuse(
                "the camera's edges leave no picture",
                "set left and right, and top and bottom, apart",
            )
        x, y = -(self._right + self._left) / wide, -(self._high + self._low) / high
        return 2 / wide, 2 / high, x, y

    def _depths(self) -> tuple[float, float]:
        """Return a and b: a point at distance d has the depth a + b / d, or a + b * d in parallel."""
        near, far = self._near, self._far
        if not near < far:
            raise refuse(
                f"the camera sees nothing: z_near is {near:g}, and z_far {far:g}",
                "set z_far beyond z_near",
            )
        if self._mode == ProjectionMode.Perspective:
            return -near / (far - near), near * far / (far - near)
        return far / (far - near), -1 / (far - near)

    def _axes(self) -> np.ndarray:
        """Return the directions to the right, up and back, in rows."""
        back = np.array(self.curr_position - self.curr_lookat, np.float64)
        up = np.array(self.curr_up, np.float64)
        if not np.linalg.norm(back) > 0:
            raise refuse(
                "the camera looks at the place where it is",
                "set camera.position and camera.lookat apart",
            )
        back /= np.linalg.norm(back)
        right = np.cross(up, back)
        if not np.linalg.norm(right) > 1e-6 * np.linalg.norm(up):
            raise refuse(
                "the camera's up is the direction in which it looks",
                "set another one: camera.up(0, 0, 1) where it looks along y",
            )
        right /= np.linalg.norm(right)
        return np.stack([right, np.cross(back, right), back])

    def _lens(self, res: tuple[int, int]) -> Lens:
        """Return what it sees on a canvas of this size."""
        width, height = res
        across, up, x, y = self._scales(width / height)
        # The pixel in the middle: pixels' centres have whole numbers.
        column, row = width / 2 * (1 + x) - 0.5, height / 2 * (1 - y) - 0.5
        perspective = float(self._mode == ProjectionMode.Perspective)
        numbers = [perspective, width / 2 * across, height / 2 * up, column, row]
        made = np.array([*numbers, *self._depths(), self._near], np.float32)
        return Lens(self._axes(), np.array(self.curr_position, np.float64), made)

    def track_user_inputs(
        self,
        window: Window,
        movement_speed: float = 1.0,
        yaw_speed: float = 2.0,
        pitch_speed: float = 2.0,
        hold_key: Any = None,
    ) -> None:
        """Move the camera by keys, and turn it by the mouse; call it once in each frame.

        W and S go forward and back, A and D left and right, E and Q up and down.

        Args:
            window: the window that the keys are pressed in.
            movement_speed: way for a 60th of a second.
            yaw_speed: angle to the side when the mouse crosses the window [rad].
            pitch_speed: the same up and down.
            hold_key: the key or button that must be held to turn, such as `ds.ui.RMB`; if left out, none.
        """
        now = time.perf_counter()
        frames = 60 * (now - self._time) if self._time is not None else 0.0
        self._time = now
        front = -self._axes()[2]
        up = np.array(self.curr_up, np.float64)
        directions = (front, np.cross(up, front), up)
        place = np.array(self.curr_position, np.float64)
        for key, (which, sign) in _KEYS.items():
            if window.is_pressed(key):
                place = place + sign * movement_speed * frames * directions[which]
        mouse = window.get_cursor_pos()
        if self._mouse is not None and (hold_key is None or window.is_pressed(hold_key)):
            dx, dy = mouse[0] - self._mouse[0], mouse[1] - self._mouse[1]
            front = _turned(front, -dx * yaw_speed, dy * pitch_speed)
        self._mouse = mouse
        self.position(*place)
        self.lookat(*(place + front))


def _turned(front: np.ndarray, yaw: float, pitch: float) -> np.ndarray:
    """Return a direction turned to the side and up, never quite straight up or down."""
    rise = math.asin(max(-1.0, min(1.0, front[1]))) + pitch
    rise = max(-_STEEPEST, min(_STEEPEST, rise))
    side = math.atan2(front[0], front[2]) + yaw
    return np.array(
        [math.sin(side) * math.cos(rise), math.sin(rise), math.cos(side) * math.cos(rise)]
    )


def _place(name: str, x: Any, y: Any, z: Any) -> Any:
    """Return three numbers as a vector."""
    for one in (x, y, z):
        need_number(one, f"each coordinate of {name}", f"write camera.{name}(0.0, 1.0, 2.0)")
    return Vector([float(x), float(y), float(z)])


def make_camera() -> Camera:
    """Return a new camera, as `Camera()` does.

    Example:
        print(ds.ui.make_camera().curr_lookat)  # prints: [0.0, 0.0, 1.0]
    """
    return Camera()
