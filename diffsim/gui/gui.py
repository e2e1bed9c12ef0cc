"""`ds.GUI`: a canvas to draw simulations on, with a window where there is a display.

Names, arguments and units are Taichi's. Here are the methods that users call; `canvas.py` draws,
`window.py` and `views.py` show, `events.py` and `widgets.py` hear, `film.py` writes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError, Span, shown
from diffsim.gui import arguments, events
from diffsim.gui.arguments import point, points, same_length
from diffsim.gui.canvas import Canvas
from diffsim.gui.contour import contour_colors
from diffsim.gui.events import EventQueue, EventType
from diffsim.gui.film import PICTURES, RATE, Film, checked_path, new_film
from diffsim.gui.views import NoView, View
from diffsim.gui.widgets import Widget, Widgets
from diffsim.gui.window import open_view
from diffsim.lang.host.signatures import checked_methods, need_number, need_whole
from diffsim.lang.host.unsupported import no_attribute
from diffsim.runtime.files import write_file
from diffsim.tools.pictures.arrays import as_array, need_positive, refuse
from diffsim.tools.pictures.images import encoded

_DEFAULT_LIMIT = 60  # frames a second in a window
_SHOWS_AFTER_CLOSING = 5
_POLLING = 0.02  # between two looks for events in a loop without frames [s]
Position = Sequence[float] | np.ndarray


class WindowClosed(DiffsimError, RuntimeError):
    """The window was closed, and the program goes on drawing."""


@checked_methods(
    "__init__ close clear set_image get_image contour circle circles triangle triangles line lines rect "
    "arrow arrows arrow_field point_field vector_field text show slider label button get_event "
    "get_key_event is_pressed"
)
class GUI:
    """A canvas in a window, a notebook, a browser or files.

    Positions are in the unit square: (0, 0) is the lower left corner, (1, 1) the upper right one. Radii and
    sizes are in pixels, colours 0xRRGGBB. Positions may be fields, arrays or lists. What is drawn later
    lies above; each `show` ends a frame and clears the canvas.

        gui = ds.GUI("Particles", res=512)
        while gui.running:
            step()
            gui.circles(x, radius=2, color=0xEEEEF0)
            gui.show()

    Without a display the same program writes its frames to a picture, and says where.

    Args:
        name: the title.
        res: pixels, as (width, height) or one number for both.
        background_color: what `show` clears the canvas with.
        show_gui: False: no window and nothing said; `show(file)` writes files.
        fullscreen: fill the screen.
        fast_gui: accepted as Taichi's; every canvas is drawn by compiled code.

    Attributes:
        name, res, background_color: as given.
        frame: how many frames were shown.
        event: what `get_event` has found last.
    """

    Event, EventFilter = events.Event, events.EventFilter
    WidgetValue = Widget
    WindowClosed = WindowClosed

    SHIFT, ALT, CTRL = events.SHIFT, events.ALT, events.CTRL
    ESCAPE, RETURN, TAB, BACKSPACE, SPACE = "Escape", "Return", "Tab", "BackSpace", " "
    UP, DOWN, LEFT, RIGHT, CAPSLOCK = "Up", "Down", "Left", "Right", "Caps_Lock"
    LMB, MMB, RMB = "LMB", "MMB", "RMB"
    EXIT, WHEEL, MOVE = events.EXIT, events.WHEEL, events.MOVE
    MOTION, PRESS, RELEASE = EventType.MOTION, EventType.PRESS, EventType.RELEASE

    def __init__(
        self,
        name: str = "diffsim",
        res: int | tuple[int, int] = 512,
        background_color: int = 0x0,
        show_gui: bool = True,
        fullscreen: bool = False,
        fast_gui: bool = False,
    ) -> None:
        self.name = str(name)
        self.res = _resolution(res)
        self.background_color = background_color
        self.fast_gui = fast_gui
        self.frame = 0
        self.event: events.Event | None = None
        self._fullscreen = fullscreen
        self._canvas = Canvas(self.res)
        self._widgets = Widgets(self.res)
        self._events = EventQueue()
        self._view: View | None = None if show_gui else NoView()
        self._films: dict[Path, Film] = {}
        self._limit: float | None = None
        self._times: list[float] = []  # of the last frames [s]
        self._polled = 0.0  # when events came in last [s]
        self._closing = 0  # frames since the window was closed, and one more
        self._finished = False  # whether the program has called `close`
        self.clear()

    def __getattr__(self, name: str) -> Any:
        hint = {
            "core": "the canvas is drawn by kernels of diffsim's own; gui.get_image() returns its pixels",
            "canvas": "draw by gui.circle, gui.line, gui.triangle, gui.text",
            "img": "gui.get_image() returns the pixels",
        }.get(name, "")
        raise no_attribute("a GUI", name, dir(type(self)), hint)

    def __enter__(self) -> GUI:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the window and finish films."""
        for film in self._films.values():
            film.finish()
        self._films = {}
        if self._view is not None:
            self._view.close()
        self._closing = max(self._closing, 1)
        self._finished = True

    # ---- drawing

    def clear(self, color: int | None = None) -> None:
        """Fill the canvas with a colour, that of the background if none is given."""
        chosen = self.background_color if color is None else color
        self._canvas.clear(int(arguments.colors(chosen, 1)[0]))

    def set_image(self, img: Any) -> None:
        """Fill the canvas with an image.

        Args:
            img: a field or array of shape (x, y), grey, or of 2 to 4 components or a last axis of as many:
                red, green, blue and alpha, which is ignored. The first axis goes to the right, the second
                up. Floats reach from 0 to 1, integers without sign to the largest of their type.
        """
        self._canvas.image(img)

    def get_image(self) -> np.ndarray:
        """Return what was drawn in this frame: (x, y, 4) of f32 from 0 to 1, of 256 levels."""
        turned = self._canvas.bytes[::-1].transpose(1, 0, 2)
        return np.ascontiguousarray(turned, np.float32) / np.float32(255)

    def contour(self, scalar_field: Any, normalize: bool = False) -> None:
        """Fill the canvas with the colours ("plasma") of a scalar field, stretched to its size.

        Args:
            scalar_field: of two axes; numbers from 0 to 1.
            normalize: whether its least and largest number become 0 and 1.
        """
        values = as_array(scalar_field, "scalar_field")
        self._canvas.image(contour_colors(values, self.res, normalize))

    def circle(self, pos: Position, color: int = 0xFFFFFF, radius: float = 1) -> None:
        """Draw a disc (`radius` in pixels)."""
        self._canvas.circles(point("pos", pos), radius, arguments.colors(color, 1))

    def circles(
        self,
        pos: Any,
        radius: Any = 1,
        color: Any = 0xFFFFFF,
        palette: Sequence[int] | None = None,
        palette_indices: Any = None,
    ) -> None:
        """Draw discs.

        Args:
            pos: centres, of shape (n, 2).
            radius: one, or one for each [pixels].
            color: one, or one for each.
            palette: colours, from which `palette_indices` chooses one for each disc.
            palette_indices: a field, array or list of n whole numbers.
        """
        centers = points("pos", pos)
        if palette is not None:
            chosen = arguments.palette_colors(palette, palette_indices, len(centers))
        else:
            chosen = arguments.colors(color, len(centers))
        self._canvas.circles(centers, radius, chosen)

    def triangle(self, a: Position, b: Position, c: Position, color: int = 0xFFFFFF) -> None:
        """Fill a triangle."""
        corners = [point("a", a), point("b", b), point("c", c)]
        self._canvas.triangles(corners, arguments.colors(color, 1))

    def triangles(self, a: Any, b: Any, c: Any, color: Any = 0xFFFFFF) -> None:
        """Fill triangles, whose corners are rows of `a`, `b` and `c`."""
        corners = {"a": points("a", a), "b": points("b", b), "c": points("c", c)}
        same_length(corners)
        chosen = arguments.colors(color, len(corners["a"]))
        self._canvas.triangles(list(corners.values()), chosen)

    def line(
        self, begin: Position, end: Position, radius: float = 1, color: int = 0xFFFFFF
    ) -> None:
        """Draw a segment (`radius`: half of its width in pixels, as in Taichi)."""
        ends = point("begin", begin), point("end", end)
        self._canvas.lines(*ends, radius, arguments.colors(color, 1))

    def lines(self, begin: Any, end: Any, radius: Any = 1, color: Any = 0xFFFFFF) -> None:
        """Draw segments from rows of `begin` to rows of `end`; radii and colours one, or one for each."""
        ends = {"begin": points("begin", begin), "end": points("end", end)}
        same_length(ends)
        chosen = arguments.colors(color, len(ends["begin"]))
        self._canvas.lines(ends["begin"], ends["end"], radius, chosen)

    def rect(
        self, topleft: Position, bottomright: Position, radius: float = 1, color: int = 0xFFFFFF
    ) -> None:
        """Draw the four sides of a rectangle."""
        (left, top), (right, bottom) = (
            point("topleft", topleft)[0],
            point("bottomright", bottomright)[0],
        )
        corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
        self.lines(corners, np.roll(corners, -1, axis=0), radius, color)

    def arrow(
        self,
        orig: Position,
        direction: Position,
        radius: float = 1,
        color: int = 0xFFFFFF,
        **kwargs: float,
    ) -> None:
        """Draw an arrow from `orig` to `orig + direction`; see `arrows`."""
        self.arrows(point("orig", orig), point("direction", direction), radius, color, **kwargs)

    def arrows(
        self,
        orig: Any,
        direction: Any,
        radius: Any = 1,
        color: Any = 0xFFFFFF,
        tip_scale: float = 0.2,
        angle: float = 45,
    ) -> None:
        """Draw arrows.

        Args:
            orig: where they begin, of shape (n, 2).
            direction: from there to their tips.
            radius: half of the lines' width [pixels].
            color: one, or one for each.
            tip_scale: length of the two short lines at a tip, as a part of the arrow's.
            angle: between these lines and the arrow [degrees].
        """
        begin, along = points("orig", orig), points("direction", direction)
        same_length({"orig": begin, "direction": along})
        end = begin + along
        self.lines(begin, end, radius, color)
        for side in (-1, 1):
            turned = math.radians(180 + side * angle)
            c, s = math.cos(turned), math.sin(turned)
            tip = along @ np.array([[c, s], [-s, c]], np.float32) * tip_scale
            self.lines(end, end + tip, radius, color)

    def point_field(self, radius: Any, color: Any = 0xFFFFFF, bound: float = 0.5) -> None:
        """Draw a disc for each element of an array of radii, spread over the canvas."""
        sizes = as_array(radius, "radius")
        if sizes.ndim != 2:
            raise refuse(f"radius has shape {sizes.shape}, not (x, y)", "one radius for each disc")
        self.circles(_lattice(sizes.shape, bound), sizes.ravel(), _flat(color))

    def arrow_field(
        self,
        direction: Any,
        radius: Any = 1,
        color: Any = 0xFFFFFF,
        bound: float = 0.5,
        **kwargs: float,
    ) -> None:
        """Draw an arrow for each vector of an array of shape (x, y, 2), spread over the canvas."""
        vectors = as_array(direction, "direction")
        if vectors.ndim != 3 or vectors.shape[2] != 2:
            raise refuse(
                f"direction has shape {vectors.shape}, not (x, y, 2)", "one vector for each arrow"
            )
        base = _lattice(vectors.shape[:2], bound)
        self.arrows(base, vectors.reshape(-1, 2), radius, _flat(color), **kwargs)

    def vector_field(
        self, vector_field: Any, arrow_spacing: int = 5, color: Any = 0xFFFFFF
    ) -> None:
        """Draw every fifth vector of a field as an arrow, the longest a tenth of the canvas."""
        vectors = as_array(vector_field, "vector_field")
        if vectors.ndim != 3 or vectors.shape[2] != 2:
            raise refuse(
                f"vector_field has shape {vectors.shape}, not (x, y, 2)",
                "pass a field of vectors with two components",
            )
        need_whole(arrow_spacing, "arrow_spacing", "5 draws every fifth vector")
        if arrow_spacing < 1:
            raise refuse(
                f"arrow_spacing starts at 1, and is {arrow_spacing}", "5 draws every fifth"
            )
        longest = float(np.linalg.norm(vectors, axis=-1).max(initial=0.0))
        shown = vectors[::arrow_spacing, ::arrow_spacing] * (0.1 / (longest + 1e-16))
        x, y = (np.arange(0, n, arrow_spacing) / n for n in vectors.shape[:2])
        base = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
        self.arrows(base, shown.reshape(-1, 2), 1, _flat(color))

    def text(
        self, content: str, pos: Position, font_size: float = 15, color: int = 0xFFFFFF
    ) -> None:
        """Write a text, of one line or more, below and to the right of `pos` (`font_size` in pixels)."""
        need_positive(font_size, "font_size", "give the height of a line in pixels, such as 15")
        x, y = point("pos", pos)[0] * self.res
        if np.isfinite((x, y)).all():
            self._canvas.text(
                str(content),
                float(x),
                float(y),
                float(font_size),
                int(arguments.colors(color, 1)[0]),
            )

    # ---- frames

    def show(self, file: str | os.PathLike[str] | None = None) -> None:
        """End the frame: show it, or write it, clear the canvas, and let events come in.

        Args:
            file: a picture (.png, .jpg, .bmp, ...), or a film (.gif, .apng, and .mp4 where ffmpeg is), to
                which each `show` of that name appends a frame; it is complete when the canvas is closed or
                the program ends.
        """
        self._check_open()
        view = self._opened()
        if not isinstance(view, NoView) or file is None:
            self._widgets.draw(self._canvas, self._events.cursor)
        if file is not None:
            self._write(checked_path(file))
        if file is None or view.has_events:
            view.show(self._canvas.bytes)
            self._polled = time.perf_counter()
        if view.has_events:
            self._wait_for_next_frame()
        self.frame += 1
        self.clear()

    def _opened(self) -> View:
        if self._view is None:
            self._view = open_view(self.name, self.res, self._fullscreen, self._receive)
        return self._view

    def _check_open(self) -> None:
        if self._finished:
            raise WindowClosed(
                f"gui.close() has ended the frames of {self.name!r}, and another one is shown",
                Span.of_caller(),
                hint="close after the last frame, or make another ds.GUI",
            )
        if self._closing:
            self._closing += 1
        if self._closing > _SHOWS_AFTER_CLOSING + 1:
            raise WindowClosed(
                f"the window {self.name!r} was closed, and the program goes on drawing",
                Span.of_caller(),
                hint="write the loop as while gui.running: ...",
            )

    def _write(self, path: Path) -> None:
        rows = self._canvas.bytes[:, :, :3]
        if path.suffix.lower() in PICTURES:
            write_file(path, encoded(rows, PICTURES[path.suffix.lower()]))
            return
        if path not in self._films:
            self._films[path] = new_film(path, self._limit or RATE)
        self._films[path].add(rows)

    def _wait_for_next_frame(self) -> None:
        """Keep to the limit of frames a second, and show the rate in the title."""
        limit = _DEFAULT_LIMIT if self._limit is None else self._limit
        view = self._opened()
        if self._times and limit:
            while (rest := self._times[-1] + 1 / limit - time.perf_counter()) > 0:
                time.sleep(min(rest, 0.01))
                if rest > 0.01:  # a window must answer while it waits for long
                    view.pump()
        self._times = [*self._times[-29:], time.perf_counter()]
        if self.frame % 10 == 9:
            rate = (len(self._times) - 1) / (self._times[-1] - self._times[0])
            view.title(f"{self.name} ({rate:.1f} frames/s)")

    @property
    def fps_limit(self) -> float | None:
        """The most frames a second in a window, 60 at first; None: as many as can be drawn."""
        return None if self._limit == 0 else self._limit or _DEFAULT_LIMIT

    @fps_limit.setter
    def fps_limit(self, value: float | None) -> None:
        need_number(value, "fps_limit", "give frames a second, such as 30")
        if value is not None and not value > 0:
            raise refuse(f"a limit of {value} frames a second shows none", "None is no limit")
        self._limit = value or 0

    @property
    def running(self) -> bool:
        """Whether the window is open; True without one, until it is set to False."""
        self._poll()
        return not self._closing

    @running.setter
    def running(self, value: bool) -> None:
        self._closing = 0 if value else max(self._closing, 1)

    # ---- widgets

    def slider(
        self, text: str, minimum: float, maximum: float, step: float | None = None
    ) -> Widget:
        """Add a slider; its `.value` is the number, which the program may set.

        Args:
            text: its title.
            minimum: the value at the left end, which it has at first.
            maximum: the value at the right end.
            step: what values are rounded to, counted from the minimum; if left out, any.
        """
        for number, what in ((minimum, "minimum"), (maximum, "maximum")):
            need_number(number, f"the {what} of the slider {text!r}", "give a number")
        if not minimum <= maximum:
            raise refuse(f"the slider {text!r} has no values", "give the minimum first")
        if step is not None:
            need_positive(step, f"the step of the slider {text!r}", "leave it out for any value")
        made = self._widgets.add("slider", text)
        made.minimum, made.maximum, made.value, made.step = minimum, maximum, minimum, step
        return made

    def label(self, text: str) -> Widget:
        """Add a label, which shows its title and its `.value`."""
        return self._widgets.add("label", text)

    def button(self, text: str, event_name: str | None = None) -> str:
        """Add a button; return the key of its events of type `GUI.PRESS`."""
        key = event_name or f"WidgetButton_{text}"
        self._events.names.add(key)
        made = self._widgets.add("button", text)
        made.on_click = lambda: self._events.put(
            events.Event(EventType.PRESS, key, self._events.cursor)
        )
        return key

    # ---- events

    def _receive(self, event: events.Event) -> None:
        if event.key == self.EXIT:
            self._closing = max(self._closing, 1)
            event.pos = self._events.cursor
        self._events.put(event)
        self._widgets.hear(event)

    def _poll(self) -> None:
        """Let events come in, for programs that ask for them in a loop that shows no frames."""
        now = time.perf_counter()
        if self._view is not None and self._view.has_events and now - self._polled > _POLLING:
            self._polled = now
            self._view.pump()

    def has_key_event(self) -> bool:
        """Return whether an event waits to be fetched."""
        self._poll()
        return bool(self._events.waiting)

    def get_events(self, *e_filter: Any) -> Iterator[events.Event]:
        """Fetch the events since the last call, in their order.

        Args:
            e_filter: what is asked for: types (`GUI.PRESS`), keys ("a", `GUI.ESCAPE`), pairs of both; all
                events if nothing is given. Events that do not match are dropped.
        """
        self._events.check_filter(e_filter)
        wanted = events.EventFilter(*e_filter) if e_filter else None
        while self.has_key_event():
            event = self._events.waiting.popleft()
            if wanted is None or wanted.match(event):
                yield event

    def get_event(self, *e_filter: Any) -> bool:
        """Return whether there was such an event (as in `get_events`), which is then `gui.event`."""
        for event in self.get_events(*e_filter):
            self.event = event
            return True
        return False

    def get_key_event(self) -> events.Event:
        """Wait for the next event and return it."""
        view = self._opened()
        if not view.has_events and not self.has_key_event():
            raise refuse(
                "there is no window, so no event will ever come",
                "ask with gui.get_event(...), which does not wait",
            )
        view.show(self._canvas.bytes)
        while not self.has_key_event():
            view.pump()
            time.sleep(0.01)
        return self._events.waiting.popleft()

    def is_pressed(self, *keys: str) -> bool:
        """Return whether one of the keys, or buttons of the mouse, is pressed now."""
        self._events.check_keys(keys)
        self._poll()
        return self._events.is_pressed(keys)

    def get_cursor_pos(self) -> tuple[float, float]:
        """Return where the mouse is: (x, y) between 0 and 1."""
        return self._events.cursor


def _resolution(res: Any) -> tuple[int, int]:
    sizes = np.ravel(res).tolist()
    sizes = sizes * 2 if len(sizes) == 1 else sizes
    if len(sizes) != 2 or not all(map(_is_size, sizes)):
        raise refuse(
            f"res is a whole number of pixels, or (width, height), not {shown(res)}",
            "write res=(512, 512)",
        )
    return int(sizes[0]), int(sizes[1])


def _is_size(n: Any) -> bool:
    """Return whether a canvas can have so many pixels; 512.0 is what a division may have given."""
    return isinstance(n, int | float) and not isinstance(n, bool) and 1 <= n < 32768 and n == int(n)


def _lattice(shape: tuple[int, ...], bound: float) -> np.ndarray:
    """Return evenly spread positions, (n, 2), in the order of an array's elements."""
    x, y = (np.linspace(bound / n, 1 - bound / n, n) for n in shape)
    return np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)


def _flat(color: Any) -> Any:
    return color.ravel() if isinstance(color, np.ndarray) else color
