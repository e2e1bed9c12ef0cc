"""Panels of widgets over the picture: `window.get_gui()`.

A program describes its widgets anew in each frame, and gets their values back at once. What the mouse did
arrives between two frames, so a frame answers what happened in the frame before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffsim.gui.canvas import Canvas as Pixels
from diffsim.gui.events import Event, EventType
from diffsim.gui.text import text_mask
from diffsim.lang.host.signatures import checked_methods, need_number
from diffsim.lang.host.unsupported import Explained
from diffsim.tools.pictures.arrays import refuse
from diffsim.ui.arguments import packed, rgb
from diffsim.ui.drawing import Surface
from diffsim.ui.picture import Picture

_TITLE, _ROW, _GAP, _EDGE, _FONT = 19, 19, 4, 8, 13  # [pixels]
_BARS = 0.65  # the part of a panel's width that a slider has
_KNOB = 14
_BACK, _HEAD, _BOX, _OVER, _HELD, _INK = 0x0F0F0F, 0x294A7A, 0x1D2F49, 0x2B4D7A, 0x4296FA, 0xFFFFFF

Box = tuple[int, int, int, int]
"""A rectangle: left, top, width, height, in pixels from the upper left corner."""


@dataclass
class _Panel:
    """A panel: where it is, how far down its widgets reach, and whether it is only a title."""

    name: str
    left: int
    top: int
    width: int
    height: int
    down: int = 0
    folded: bool = False

    @property
    def box(self) -> Box:
        return self.left, self.top, self.width, _TITLE if self.folded else self.height


@dataclass
class _Mouse:
    """The left button in one frame: where it went down and up, if it did, and where the mouse is."""

    at: tuple[float, float] = (-1.0, -1.0)
    pressed: tuple[float, float] | None = None
    released: tuple[float, float] | None = None


@dataclass
class _Strokes:
    """The parts of one panel, in the order in which they are drawn."""

    fills: list[Any] = field(default_factory=list)

    def fill(self, box: Box, color: int, opacity: float = 1.0) -> None:
        self.fills.append(lambda pixels: _fill(pixels, box, color, opacity))

    def text(self, content: str, left: float, top: float, color: int, room: int) -> None:
        if room > 0:
            self.fills.append(
                lambda pixels: pixels.text(
                    content, left, pixels.res[1] - top, _FONT, color, room=room
                )
            )


def _fill(pixels: Pixels, box: Box, color: int, opacity: float) -> None:
    left, top, width, height = box
    pixels.fill(left, pixels.res[1] - top - height, width, height, color, opacity)


@checked_methods("sub_window begin end text checkbox slider_int slider_float color_edit_3 button")
class Gui(Explained):
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

    _words = "a gui"

    def __init__(self, picture: Picture, res: tuple[int, int]) -> None:
        self._picture, self._res = picture, res
        self._panels: dict[str, _Panel] = {}
        self._order: list[str] = []  # of the panels in this frame
        self._shown: list[str] = []  # in the frame before
        self._panel: _Panel | None = None
        self._strokes = _Strokes()
        self._mouse, self._next = _Mouse(), _Mouse()
        self._held: tuple[str, str] | None = (
            None  # panel and text of the widget that the mouse holds
        )
        self._grip = (0.0, 0.0)  # where a panel is held, from its corner

    # ---- frames and events

    def _hear(self, event: Event) -> None:
        """Take what the mouse does, for the next frame."""
        place = event.pos[0] * self._res[0], (1 - event.pos[1]) * self._res[1]
        self._next.at = place
        if event.key == "LMB" and event.type is EventType.PRESS:
            self._next.pressed, self._next.released = place, None
        elif event.key == "LMB" and event.type is EventType.RELEASE:
            self._next.released = place

    def _end_frame(self) -> None:
        """Begin the next frame, with what the mouse has done."""
        if self._panel is not None:
            self.end()
        if self._mouse.released is not None:
            self._held = None
        self._mouse, self._next = self._next, _Mouse(self._next.at)
        self._shown, self._order = self._order, []

    # ---- panels

    @contextmanager
    def sub_window(
        self, name: str, x: float, y: float, width: float, height: float
    ) -> Iterator[Gui]:
        """Describe a panel in a `with` block; the arguments are those of `begin`."""
        self.begin(name, x, y, width, height)
        try:
            yield self
        finally:
            self.end()

    def begin(self, name: str, x: float, y: float, width: float, height: float) -> None:
        """Begin a panel; the widgets up to `end` are in it.

        Args:
            name: its title.
            x: its left edge, as a part of the window's width.
            y: its upper edge, as a part of the window's height.
            width: as a part of the window's width.
            height: as a part of the window's height; a panel is as high as its widgets need.
        """
        for what, one in (("x", x), ("y", y), ("width", width), ("height", height)):
            need_number(one, what, "give a part of the window, between 0 and 1")
        if self._panel is not None:
            raise refuse(
                f"the panel {self._panel.name!r} has no end, and {name!r} begins",
                "write gui.end() after each gui.begin(...), or with gui.sub_window(...) as panel:",
            )
        if name not in self._panels:
            across, down = self._res
            places = round(x * across), round(y * down), round(width * across), round(height * down)
            self._panels[name] = _Panel(str(name), *places)
        panel = self._panel = self._panels[name]
        if name not in self._order:
            self._order.append(name)
        self._move(panel)
        panel.down = _TITLE + _GAP
        self._strokes = _Strokes()
        self._frame(panel)

    def _move(self, panel: _Panel) -> None:
        """Let the title move and fold the panel."""
        title = panel.left, panel.top, panel.width, _TITLE
        if self._pressed_in(panel, title) and self._mouse.pressed is not None:
            self._held = panel.name, ""
            x, y = self._mouse.pressed
            self._grip = x - panel.left, y - panel.top
            if self._grip[0] < _TITLE:
                panel.folded = not panel.folded
        if self._held == (panel.name, ""):
            x, y = self._mouse.released or self._mouse.at
            panel.left, panel.top = round(x - self._grip[0]), round(y - self._grip[1])

    def _frame(self, panel: _Panel) -> None:
        """Draw the background and the title."""
        left, top, width, height = panel.box
        self._strokes.fill((left, top, width, height), _BACK, 0.94)
        self._strokes.fill((left, top, width, _TITLE), _HEAD)
        mark = "\u25b6" if panel.folded else "\u25bc"
        self._strokes.text(mark, left + 5, top + 3, _INK, _TITLE)
        self._strokes.text(panel.name, left + 22, top + 3, _INK, width - 22)

    def end(self) -> None:
        """End the panel."""
        if self._panel is None:
            raise refuse("no panel was begun", "write gui.begin(...) before gui.end()")
        panel, self._panel = self._panel, None
        if not panel.folded:  # as high as its widgets from the next frame on
            panel.height = max(panel.height, panel.down + _EDGE - _GAP)
        fills = self._strokes.fills

        def draw(surface: Surface) -> None:
            for one in fills:
                one(surface.pixels)

        self._picture.add(draw, above=True)

    def _row(self, height: int = _ROW) -> tuple[_Panel, int, int] | None:
        """Return the panel and the corner of the next row; None where the panel is folded."""
        if self._panel is None:  # as Taichi's: a widget without a panel gets one
            self.begin("Debug", 0.05, 0.05, 0.4, 0.2)
            assert self._panel is not None
        panel = self._panel
        if panel.folded:
            return None
        top = panel.top + panel.down
        panel.down += height + _GAP
        return panel, panel.left + _EDGE, top

    # ---- the mouse

    def _pressed_in(self, panel: _Panel, box: Box) -> bool:
        """Return whether the button went down here, and not on a panel above."""
        place = self._mouse.pressed
        if place is None or not _holds(box, place):
            return False
        for name in reversed(self._shown):
            if _holds(self._panels[name].box, place):
                return name == panel.name
        return True

    def _drag(self, panel: _Panel, text: str, box: Box) -> float | None:
        """Return where the mouse holds a bar, from 0 at the left end to 1; None if it does not."""
        if self._pressed_in(panel, box):
            self._held = panel.name, text
        if self._held != (panel.name, text):
            return None
        x, _ = self._mouse.released or self._mouse.at
        left, _, width, _ = box
        return min(max((x - left - _KNOB / 2) / max(width - _KNOB, 1), 0.0), 1.0)

    def _clicked(self, panel: _Panel, text: str, box: Box) -> bool:
        """Return whether the button went down and up here."""
        if self._pressed_in(panel, box):
            self._held = panel.name, text
        up = self._mouse.released
        return self._held == (panel.name, text) and up is not None and _holds(box, up)

    def _shade(self, panel: _Panel, text: str, box: Box) -> int:
        """Return the colour of a widget, by what the mouse does."""
        return _OVER if self._held == (panel.name, text) or _holds(box, self._mouse.at) else _BOX

    # ---- widgets

    def text(self, text: str, color: Sequence[float] | np.ndarray | None = None) -> None:
        """Add a line of text."""
        ink = _INK if color is None else int(packed(rgb("color", color)[None])[0])
        lines = str(text).split("\n")
        row = self._row(_FONT * len(lines))
        if row is not None:
            panel, left, top = row
            for k, line in enumerate(lines):
                self._strokes.text(line, left, top + k * _FONT, ink, _room(panel, left))

    def checkbox(self, text: str, old_value: bool) -> bool:
        """Add a box to be checked, and return whether it is.

        Args:
            text: what stands beside it.
            old_value: whether it was checked until now.
        """
        row = self._row()
        value = bool(old_value)
        if row is None:
            return value
        panel, left, top = row
        wide = _ROW + _GAP + text_mask(_label(text), _FONT).shape[1]
        value ^= self._clicked(panel, text, (left, top, wide, _ROW))
        box = left, top, _ROW, _ROW
        self._strokes.fill(box, self._shade(panel, text, box))
        if value:
            self._strokes.fill((left + 5, top + 5, _ROW - 10, _ROW - 10), _HELD)
        self._beside(panel, text, left + _ROW, top)
        return value

    def slider_int(self, text: str, old_value: int, minimum: int, maximum: int) -> int:
        """Add a slider of whole numbers, and return its value.

        Args:
            text: what stands beside it.
            old_value: the value until now.
            minimum: the value at the left end.
            maximum: the value at the right end.
        """
        value = self._slider(text, old_value, minimum, maximum, "{:.0f}")
        return old_value if value is None else round(value)

    def slider_float(self, text: str, old_value: float, minimum: float, maximum: float) -> float:
        """Add a slider, and return its value.

        Args:
            text: what stands beside it.
            old_value: the value until now.
            minimum: the value at the left end.
            maximum: the value at the right end.
        """
        value = self._slider(text, old_value, minimum, maximum, "{:.3f}")
        return old_value if value is None else value

    def _slider(
        self, text: str, old: float, minimum: float, maximum: float, form: str
    ) -> float | None:
        """Draw a slider, and return the value that it was dragged to; None if it was not."""
        for what, one in (("old_value", old), ("minimum", minimum), ("maximum", maximum)):
            need_number(one, f"{what} of the slider {text!r}", "give a number")
        row = self._row()
        if row is None:
            return None
        panel, left, top = row
        box = left, top, round(_BARS * panel.width), _ROW
        part = self._drag(panel, text, box)
        found = None if part is None else minimum + part * (maximum - minimum)
        value = old if found is None else found
        self._bar(panel, text, box, (value - minimum) / ((maximum - minimum) or 1))
        self._middle(form.format(value), box)
        self._beside(panel, text, left + box[2], top)
        return found

    def _bar(self, panel: _Panel, text: str, box: Box, part: float) -> None:
        """Draw a bar and its knob."""
        left, top, width, height = box
        self._strokes.fill(box, self._shade(panel, text, box))
        at = round(left + min(max(part, 0.0), 1.0) * max(width - _KNOB, 0))
        self._strokes.fill((at + 2, top + 2, _KNOB - 4, height - 4), _HELD)

    def color_edit_3(
        self, text: str, old_value: Sequence[float] | np.ndarray
    ) -> tuple[float, float, float]:
        """Add three bars for red, green and blue, and return the colour.

        Args:
            text: what stands beside them.
            old_value: the colour until now, three numbers between 0 and 1.
        """
        value = [float(one) for one in rgb(f"the colour {text!r}", old_value)]
        row = self._row()
        if row is None:
            return value[0], value[1], value[2]
        panel, left, top = row
        wide = (round(_BARS * panel.width) - _ROW) // 3 - _GAP
        for k, name in enumerate("RGB"):
            box = left + k * (wide + _GAP), top, wide, _ROW
            part = self._drag(panel, f"{text} {name}", box)
            if part is not None:
                value[k] = round(part * 255) / 255
            self._bar(panel, f"{text} {name}", box, value[k])
            self._middle(f"{name}:{value[k] * 255:.0f}", box)
        at = left + 3 * (wide + _GAP)
        self._strokes.fill((at, top, _ROW, _ROW), int(packed(np.array([value]))[0]))
        self._beside(panel, text, at + _ROW, top)
        return value[0], value[1], value[2]

    def button(self, text: str) -> bool:
        """Add a button, and return whether it was clicked."""
        row = self._row()
        if row is None:
            return False
        panel, left, top = row
        box = left, top, text_mask(_label(text), _FONT).shape[1] + 2 * _GAP, _ROW
        clicked = self._clicked(panel, text, box)
        over = self._held == (panel.name, text)
        self._strokes.fill(box, _HELD if over else _HEAD)
        self._strokes.text(_label(text), left + _GAP, top + 3, _INK, box[2])
        return clicked

    def _beside(self, panel: _Panel, text: str, left: int, top: int) -> None:
        """Write what a widget is to the right of it."""
        self._strokes.text(_label(text), left + _GAP, top + 3, _INK, _room(panel, left + _GAP))

    def _middle(self, text: str, box: Box) -> None:
        """Write a value in the middle of a bar."""
        left, top, width, _ = box
        at = max((width - text_mask(text, _FONT).shape[1]) // 2, 2)
        self._strokes.text(text, left + at, top + 3, _INK, width - at)


def _label(text: str) -> str:
    """Return what of a widget's text is shown: all before `##`, which tells apart widgets of one label."""
    return str(text).partition("##")[0]


def _holds(box: Box, place: tuple[float, float]) -> bool:
    left, top, width, height = box
    return 0 <= place[0] - left < width and 0 <= place[1] - top < height


def _room(panel: _Panel, left: int) -> int:
    """Return how many pixels there are up to the panel's right edge."""
    return panel.left + panel.width - left - 2
