"""Windows of `ds.ui`: where a canvas, a scene and panels come together, and what comes back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.gui import arguments as plane
from diffsim.gui.events import EXIT, Event, EventType
from diffsim.gui.film import checked_path
from diffsim.gui.frames import Frames
from diffsim.lang.host.signatures import checked_methods, need_bool
from diffsim.lang.host.unsupported import Explained
from diffsim.runtime.fields.field import Field
from diffsim.tools.pictures.arrays import refuse
from diffsim.ui.canvas import Canvas
from diffsim.ui.panels import Gui
from diffsim.ui.picture import Picture
from diffsim.ui.scene import Scene

_OF_SCREENS = 60  # frames a second with `vsync`


@checked_methods(
    "__init__ get_events get_event is_pressed get_canvas get_scene get_gui get_cursor_pos show "
    "get_window_shape save_image get_depth_buffer get_depth_buffer_as_numpy "
    "get_image_buffer_as_numpy destroy"
)
class Window(Explained):
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

    _words = "a window"
    _advice: Mapping[str, str] = {
        "write_image": "write window.save_image(filename)",
        "get_image_buffer": "write window.get_image_buffer_as_numpy()",
        "set_image": "write window.get_canvas().set_image(image)",
    }

    def __init__(
        self,
        name: str,
        res: int | tuple[int, int],
        vsync: bool = False,
        show_window: bool = True,
        fps_limit: float | None = 1000,
        pos: tuple[int, int] = (100, 100),
    ) -> None:
        need_bool(vsync, "vsync")
        need_bool(show_window, "show_window")
        self._res = plane.resolution(res)
        self._visible = bool(show_window)
        self._picture = Picture(self._res)
        self._canvas = Canvas(self._picture, self._res)
        self._scene = Scene()
        self._gui = Gui(self._picture, self._res)
        self._frames = Frames(
            str(name), self._res, visible=self._visible, repeats=False, hear=self._gui._hear
        )
        self._frames.limit = _OF_SCREENS if vsync else fps_limit
        self.event = Event(key="")

    @property
    def running(self) -> bool:
        """Whether the window is open; True without one, until it is set to False."""
        return self._frames.running

    @running.setter
    def running(self, value: bool) -> None:
        self._frames.running = value

    @property
    def fps_limit(self) -> float | None:
        """The most frames a second; None is no limit."""
        return self._frames.limit

    @fps_limit.setter
    def fps_limit(self, value: float | None) -> None:
        self._frames.limit = value

    def get_canvas(self) -> Canvas:
        """Return the canvas."""
        return self._canvas

    def get_scene(self) -> Scene:
        """Return the window's scene; `ds.ui.Scene()` makes another one."""
        return self._scene

    def get_gui(self) -> Gui:
        """Return what makes panels of widgets."""
        return self._gui

    @property
    def GUI(self) -> Gui:  # noqa: N802 - Taichi's name
        """The maker of panels of widgets, as `get_gui()` returns it."""
        return self._gui

    def get_window_shape(self) -> tuple[int, int]:
        """Return the width and the height, in pixels."""
        return self._res

    # ---- frames

    def show(self) -> None:
        """End the frame: show it, and let events come in."""
        self._frames.check_open()
        if self._picture.ended:
            self._picture.restart()
        self._frames.show(self._picture.drawn().pixels.bytes)
        self._frames.end()
        self._end_frame()

    def _end_frame(self) -> None:
        self._picture.end()
        self._gui._end_frame()

    def _read(self) -> Any:
        """Return what is drawn; without a window the frame ends."""
        surface = self._picture.drawn()
        if not self._visible and not self._picture.ended:
            self._end_frame()
        return surface

    def save_image(self, filename: str | os.PathLike[str]) -> None:
        """Write the frame to a picture, or append it to a film.

        Args:
            filename: a picture (.png, .jpg, .bmp, ...), or a film (.gif, .apng, and .mp4 where ffmpeg is),
                which is complete when the window is destroyed or the program ends.
        """
        path = checked_path(filename)
        self._frames.write(path, self._read().pixels.bytes)

    def get_image_buffer_as_numpy(self) -> np.ndarray:
        """Return the frame: (x, y, 4) of f32 from 0 to 1, of 256 levels."""
        return self._read().pixels.as_floats()

    def get_depth_buffer_as_numpy(self) -> np.ndarray:
        """Return the depths of the scene: (x, y) of f32, 1 at the camera's near plane, 0 at its far one."""
        return np.ascontiguousarray(self._read().depths[::-1].T)

    def get_depth_buffer(self, depth: Any) -> None:
        """Write the depths of the scene to a field or `ds.ndarray` of numbers, as large as the window."""
        if not isinstance(depth, Field) or depth.shape != self._res:
            raise refuse(
                f"depths go to a field of shape {self._res}, not {shown(depth)}",
                f"make it ds.field(ds.f32, shape={self._res})",
            )
        depth.from_numpy(self.get_depth_buffer_as_numpy())

    def destroy(self) -> None:
        """Close the window and finish films."""
        self._frames.close("window.destroy()")

    # ---- events

    def get_events(self, tag: Any = None) -> list[Event]:
        """Fetch the events since the last call, in their order.

        Args:
            tag: `ds.ui.PRESS` or `ds.ui.RELEASE`; all if left out. Others are kept.
        """
        return self._fetch(tag, 10**9)

    def get_event(self, tag: Any = None) -> bool:
        """Return whether there was such an event (as in `get_events`), which is then `window.event`."""
        found = self._fetch(tag, 1)
        if found:
            self.event = found[0]
        return bool(found)

    def _fetch(self, tag: Any, most: int) -> list[Event]:
        """Take the first events of a kind out of those that wait."""
        if tag is not None and not isinstance(tag, EventType):
            raise refuse(
                f"events are of ds.ui.PRESS or ds.ui.RELEASE, not {shown(tag)}",
                "for keys, compare event.key, or write window.is_pressed(key)",
            )
        self._frames.poll()
        waiting = self._frames.events.waiting
        found: list[Event] = []
        for _ in range(len(waiting)):
            event = waiting.popleft()
            if event.type is EventType.MOTION or event.key == EXIT:
                continue  # Taichi's windows report neither
            if len(found) < most and tag in (None, event.type):
                found.append(event)
            else:
                waiting.append(event)
        return found

    def is_pressed(self, *keys: str) -> bool:
        """Return whether one of the keys, or buttons of the mouse, is pressed now."""
        self._frames.events.check_keys(keys)
        self._frames.poll()
        return self._frames.events.is_pressed(keys)

    def get_cursor_pos(self) -> tuple[float, float]:
        """Return where the mouse is: (x, y) between 0 and 1."""
        return self._frames.events.cursor
