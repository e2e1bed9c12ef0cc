"""Sliders, labels and buttons, in a column at the upper right of the canvas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from diffsim.gui.canvas import Canvas
from diffsim.gui.events import Event, EventType

_WIDTH = 200  # of the column [pixels]
_HEIGHTS = {"slider": 40, "button": 40, "label": 20}
_PADDING = 10  # left and right of a slider's bar
_INK, _BAR, _KNOB = 0x111111, 0x333333, 0x555555
_PLAIN, _HOVERED = 0xCCCCCC, 0xAAAAAA


@dataclass(eq=False)
class Widget:
    """A widget, as `gui.slider` and `gui.label` return it.

    Attributes:
        kind: "slider", "label" or "button".
        value: the number that it shows, and that a slider sets.
        minimum, maximum: ends of a slider.
        step: what a slider's value is rounded to, counted from its minimum; None: any number.
        on_click: called when a button was clicked.
    """

    kind: str
    text: str
    left: int
    bottom: int
    value: float = 0.0
    minimum: float = 0.0
    maximum: float = 1.0
    step: float | None = None
    on_click: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def height(self) -> int:
        return _HEIGHTS[self.kind]

    def holds(self, x: float, y: float) -> bool:
        """Return whether a place, in pixels, lies on it."""
        return 0 <= x - self.left < _WIDTH and 0 <= y - self.bottom < self.height

    def drag(self, x: float) -> None:
        """Set the slider to a place on its bar."""
        part = min(max((x - self.left - _PADDING) / (_WIDTH - 2 * _PADDING), 0.0), 1.0)
        value = self.minimum + part * (self.maximum - self.minimum)
        if self.step:
            value = self.minimum + round((value - self.minimum) / self.step) * self.step
        self.value = min(value, self.maximum)

    def draw(self, canvas: Canvas, hovered: bool) -> None:
        left, bottom, height = self.left, self.bottom, self.height
        canvas.fill(left + 1, bottom + 1, _WIDTH - 2, height - 2, _HOVERED if hovered else _PLAIN)
        if self.kind == "button":
            canvas.text(self.text, left + 6, bottom + height - 6, 24, _INK)
            return
        canvas.text(f"{self.text}: {self.value:.6g}", left + 6, bottom + height - 2, 15, _INK)
        if self.kind == "slider":
            canvas.fill(left + _PADDING, bottom + _PADDING, _WIDTH - 2 * _PADDING, 3, _BAR)
            part = (self.value - self.minimum) / ((self.maximum - self.minimum) or 1)
            knob = round(left + _PADDING + min(max(part, 0), 1) * (_WIDTH - 2 * _PADDING))
            canvas.fill(knob - 4, bottom + _PADDING - 4, 9, 11, _KNOB)


class Widgets:
    """The widgets of one canvas."""

    def __init__(self, res: tuple[int, int]) -> None:
        self.res = res
        self.all: list[Widget] = []
        self._dragged: Widget | None = None

    def add(self, kind: str, text: str) -> Widget:
        """Add one below the others."""
        used = sum(w.height for w in self.all) + _HEIGHTS[kind]
        made = Widget(kind, text, self.res[0] - _WIDTH, self.res[1] - used)
        self.all.append(made)
        return made

    def hear(self, event: Event) -> None:
        """Let them react to the mouse."""
        x, y = event.pos[0] * self.res[0], event.pos[1] * self.res[1]
        if event.type is EventType.PRESS and event.key == "LMB":
            self._dragged = next((w for w in self.all if w.holds(x, y)), None)
        if self._dragged is None:
            return
        if self._dragged.kind == "slider":
            self._dragged.drag(x)
        if event.type is EventType.RELEASE and event.key == "LMB":
            dragged, self._dragged = self._dragged, None
            if dragged.kind == "button" and dragged.holds(x, y):
                dragged.on_click()

    def draw(self, canvas: Canvas, cursor: tuple[float, float]) -> None:
        x, y = cursor[0] * self.res[0], cursor[1] * self.res[1]
        for widget in self.all:
            widget.draw(canvas, widget.holds(x, y))
