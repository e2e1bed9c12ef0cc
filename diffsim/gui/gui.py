"""`ds.GUI`: a canvas to draw simulations on, with a window where there is a display.

Names, arguments and units are Taichi's. Here are the methods that users call; `canvas.py` draws,
`frames.py` shows and writes, `events.py` and `widgets.py` hear.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.gui import arguments, events
from diffsim.gui.arguments import contour_colors, point, points, resolution, same_length
from diffsim.gui.canvas import Canvas
from diffsim.gui.events import EventType
from diffsim.gui.film import checked_path
from diffsim.gui.frames import Frames, WindowClosed
from diffsim.gui.views import NoView
from diffsim.gui.widgets import Widget, Widgets
from diffsim.lang.host.signatures import checked_methods, need_number, need_whole
from diffsim.lang.host.unsupported import no_attribute
from diffsim.tools.pictures.arrays import as_array, need_positive, refuse

Position = Sequence[float] | np.ndarray


@checked_methods(
    "__init__ close clear set_image get_image contour circle circles triangle triangles line lines rect "
    "arrow arrows arrow_field point_field vector_field text show slider label button get_event "
    "get_key_event is_pressed has_key_event get_cursor_pos get_events"
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

    Example:
        gui = ds.GUI("Particles", res=64, background_color=0x112F41, show_gui=False)
        gui.circles([[0.5, 0.5], [0.25, 0.75]], radius=5, color=0xFF0000)
        print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        gui.show("particles.png")
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
        self.res = resolution(res)
        self.background_color = background_color
        self.fast_gui = fast_gui
        self.event: events.Event | None = None
        self._canvas = Canvas(self.res)
        self._widgets = Widgets(self.res)
        self._frames = Frames(
            self.name, self.res, visible=show_gui, fullscreen=fullscreen, hear=self._widgets.hear
        )
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
        """Close the window and finish films.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.show("film.gif")
            gui.close()
            print(gui.frame)  # prints: 1
        """
        self._frames.close("gui.close()")

    @property
    def frame(self) -> int:
        """How many frames were shown.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.show("frame.png")
            print(gui.frame)  # prints: 1
        """
        return self._frames.count

    @frame.setter
    def frame(self, value: int) -> None:
        self._frames.count = value

    # ---- drawing

    def clear(self, color: int | None = None) -> None:
        """Fill the canvas with a colour, that of the background if none is given.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.clear(0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
        chosen = self.background_color if color is None else color
        self._canvas.clear(int(arguments.colors(chosen, 1)[0]))

    def set_image(self, img: Any) -> None:
        """Fill the canvas with an image.

        Args:
            img: a field or array of shape (x, y), grey, or of 2 to 4 components or a last axis of as many:
                red, green, blue and alpha, which is ignored. The first axis goes to the right, the second
                up. Floats reach from 0 to 1, integers without sign to the largest of their type.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            image = ds.field(ds.f32, shape=(64, 64))
            image.fill(1.0)
            gui.set_image(image)
            print(gui.get_image()[32, 32, 0])  # prints: 1.0
        """
        self._canvas.image(img)

    def get_image(self) -> np.ndarray:
        """Return what was drawn in this frame: (x, y, 4) of f32 from 0 to 1, of 256 levels.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.get_image().shape, gui.get_image().dtype)  # prints: (64, 64, 4) float32
        """
        return self._canvas.as_floats()

    def contour(self, scalar_field: Any, normalize: bool = False) -> None:
        """Fill the canvas with the colours ("plasma") of a scalar field, stretched to its size.

        Args:
            scalar_field: of two axes; numbers from 0 to 1.
            normalize: whether its least and largest number become 0 and 1.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.contour(np.eye(8))
            print(gui.get_image()[0, 0, 0] > gui.get_image()[0, 63, 0])  # prints: True
        """
        values = as_array(scalar_field, "scalar_field")
        self._canvas.image(contour_colors(values, self.res, normalize))

    def circle(self, pos: Position, color: int = 0xFFFFFF, radius: float = 1) -> None:
        """Draw a disc (`radius` in pixels).

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.circle((0.5, 0.5), color=0xFF0000, radius=5)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
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

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            x = ds.Vector.field(2, ds.f32, shape=3)
            x.fill(0.5)
            gui.circles(x, radius=5, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
        centers = points("pos", pos)
        if palette is not None:
            chosen = arguments.palette_colors(palette, palette_indices, len(centers))
        else:
            chosen = arguments.colors(color, len(centers))
        self._canvas.circles(centers, radius, chosen)

    def triangle(self, a: Position, b: Position, c: Position, color: int = 0xFFFFFF) -> None:
        """Fill a triangle.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.triangle((0, 0), (1, 0), (0.5, 1), color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
        corners = [point("a", a), point("b", b), point("c", c)]
        self._canvas.triangles(corners, arguments.colors(color, 1))

    def triangles(self, a: Any, b: Any, c: Any, color: Any = 0xFFFFFF) -> None:
        """Fill triangles, whose corners are rows of `a`, `b` and `c`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            a, b, c = [[0, 0]], [[1, 0]], [[0.5, 1]]  # a triangle
            gui.triangles(a, b, c, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
        corners = {"a": points("a", a), "b": points("b", b), "c": points("c", c)}
        same_length(corners)
        chosen = arguments.colors(color, len(corners["a"]))
        self._canvas.triangles(list(corners.values()), chosen)

    def line(
        self, begin: Position, end: Position, radius: float = 1, color: int = 0xFFFFFF
    ) -> None:
        """Draw a segment (`radius`: half of its width in pixels, as in Taichi).

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.line((0, 0), (1, 1), radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
        ends = point("begin", begin), point("end", end)
        self._canvas.lines(*ends, radius, arguments.colors(color, 1))

    def lines(self, begin: Any, end: Any, radius: Any = 1, color: Any = 0xFFFFFF) -> None:
        """Draw segments from rows of `begin` to rows of `end`; radii and colours one, or one for each.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.lines([[0, 0], [0, 1]], [[1, 1], [1, 0]], radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
        ends = {"begin": points("begin", begin), "end": points("end", end)}
        same_length(ends)
        chosen = arguments.colors(color, len(ends["begin"]))
        self._canvas.lines(ends["begin"], ends["end"], radius, chosen)

    def rect(
        self, topleft: Position, bottomright: Position, radius: float = 1, color: int = 0xFFFFFF
    ) -> None:
        """Draw the four sides of a rectangle.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.rect((0.25, 0.75), (0.75, 0.25), radius=3, color=0xFF0000)
            print(gui.get_image()[16, 32, :3])  # prints: [1. 0. 0.]
        """
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
        """Draw an arrow from `orig` to `orig + direction`; see `arrows`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.arrow((0, 0), (1, 1), radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
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

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.arrows([[0, 0], [0, 1]], [[1, 1], [1, -1]], radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
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
        """Draw a disc for each element of an array of radii, spread over the canvas.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.point_field(np.full((3, 3), 5.0), color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
        need_number(bound, "bound")
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
        """Draw an arrow for each vector of an array of shape (x, y, 2), spread over the canvas.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.arrow_field(np.full((3, 3, 2), 0.2), radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
        need_number(bound, "bound")
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
        """Draw every fifth vector of a field as an arrow, the longest a tenth of the canvas.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.vector_field(np.ones((20, 20, 2)), color=0xFF0000)
            print(gui.get_image()[:, :, 0].max())  # prints: 1.0
        """
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
        """Write a text, of one line or more, below and to the right of `pos` (`font_size` in pixels).

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.text("t = 1 s", pos=(0.1, 0.9), color=0xFF0000)
            print(gui.get_image()[:, :, 0].max() > 0.5)  # prints: True
        """
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

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            for frame in range(3):
                gui.circle((0.5, 0.5), radius=5 * frame)
                gui.show("film.gif")
            gui.close()  # the film is complete
            print(gui.frame)  # prints: 3
        """
        self._frames.check_open()
        view = self._frames.opened()
        if not isinstance(view, NoView) or file is None:
            self._widgets.draw(self._canvas, self._frames.events.cursor)
        if file is not None:
            self._frames.write(checked_path(file), self._canvas.bytes)
        if file is None or view.has_events:
            self._frames.show(self._canvas.bytes)
        self._frames.end()
        self.clear()

    @property
    def fps_limit(self) -> float | None:
        """The most frames a second in a window, 60 at first; None: as many as can be drawn.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.fps_limit = 30
            print(gui.fps_limit)  # prints: 30
        """
        return self._frames.limit

    @fps_limit.setter
    def fps_limit(self, value: float | None) -> None:
        self._frames.limit = value

    @property
    def running(self) -> bool:
        """Whether the window is open; True without one, until it is set to False.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.running)  # prints: True
            gui.running = False
            print(gui.running)  # prints: False
        """
        return self._frames.running

    @running.setter
    def running(self, value: bool) -> None:
        self._frames.running = value

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

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            force = gui.slider("force [N]", 0, 10, step=0.5)
            force.value = 2.5
            print(force.value)  # prints: 2.5
        """
        for number, what in ((minimum, "minimum"), (maximum, "maximum")):
            if number is None:  # which `need_number` takes for a default
                raise refuse(f"the slider {shown(text)} has no {what}", "give a number")
            need_number(number, f"the {what} of the slider {shown(text)}", "give a number")
        if not minimum <= maximum:
            raise refuse(f"the slider {shown(text)} has no values", "give the minimum first")
        if step is not None:
            need_positive(
                step, f"the step of the slider {shown(text)}", "leave it out for any value"
            )
        made = self._widgets.add("slider", text)
        made.minimum, made.maximum, made.value, made.step = minimum, maximum, minimum, step
        return made

    def label(self, text: str) -> Widget:
        """Add a label, which shows its title and its `.value`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            loss = gui.label("loss")
            loss.value = 0.5
            print(loss.value)  # prints: 0.5
        """
        return self._widgets.add("label", text)

    def button(self, text: str, event_name: str | None = None) -> str:
        """Add a button; return the key of its events of type `GUI.PRESS`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.button("Start", event_name="start"))  # prints: start
        """
        if not isinstance(event_name, str | None):
            raise refuse(f"event_name is a text, not {shown(event_name)}", 'give a name: "start"')
        key = event_name or f"WidgetButton_{text}"
        self._frames.events.names.add(key)
        made = self._widgets.add("button", text)
        made.on_click = lambda: self._frames.events.put(
            events.Event(EventType.PRESS, key, self._frames.events.cursor)
        )
        return key

    # ---- events

    def has_key_event(self) -> bool:
        """Return whether an event waits to be fetched.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.has_key_event())  # prints: False
        """
        self._frames.poll()
        return bool(self._frames.events.waiting)

    def get_events(self, *e_filter: Any) -> Iterator[events.Event]:
        """Fetch the events since the last call, in their order.

        Args:
            e_filter: what is asked for: types (`GUI.PRESS`), keys ("a", `GUI.ESCAPE`), pairs of both; all
                events if nothing is given. Events that do not match are dropped.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print([event.key for event in gui.get_events(ds.GUI.PRESS)])  # prints: []
        """
        self._frames.events.check_filter(e_filter)
        wanted = events.EventFilter(*e_filter) if e_filter else None
        while self.has_key_event():
            event = self._frames.events.waiting.popleft()
            if wanted is None or wanted.match(event):
                yield event

    def get_event(self, *e_filter: Any) -> bool:
        """Return whether there was such an event (as in `get_events`), which is then `gui.event`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.get_event(ds.GUI.PRESS))  # prints: False
        """
        for event in self.get_events(*e_filter):
            self.event = event
            return True
        return False

    def get_key_event(self) -> events.Event:
        """Wait for the next event and return it.

        Example:
            gui = ds.GUI("Keys", res=64, show_gui=False)
            if gui.has_key_event():
                print(gui.get_key_event().key)
        """
        if not self._frames.opened().has_events and not self.has_key_event():
            raise refuse(
                "there is no window, so no event will ever come",
                "ask with gui.get_event(...), which does not wait",
            )
        self._frames.wait_for_event(self._canvas.bytes)
        return self._frames.events.waiting.popleft()

    def is_pressed(self, *keys: str) -> bool:
        """Return whether one of the keys, or buttons of the mouse, is pressed now.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.is_pressed("a", ds.GUI.LEFT))  # prints: False
        """
        self._frames.events.check_keys(keys)
        self._frames.poll()
        return self._frames.events.is_pressed(keys)

    def get_cursor_pos(self) -> tuple[float, float]:
        """Return where the mouse is: (x, y) between 0 and 1.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            x, y = gui.get_cursor_pos()
            print(0 <= x <= 1, 0 <= y <= 1)  # prints: True True
        """
        return self._frames.events.cursor


def _lattice(shape: tuple[int, ...], bound: float) -> np.ndarray:
    """Return evenly spread positions, (n, 2), in the order of an array's elements."""
    x, y = (np.linspace(bound / n, 1 - bound / n, n) for n in shape)
    return np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)


def _flat(color: Any) -> Any:
    return color.ravel() if isinstance(color, np.ndarray) else color
