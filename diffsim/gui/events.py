"""Events of keys, mouse and window, by Taichi's names, and the queue that they wait in."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Any


class EventType(enum.Enum):
    """What happened to the key of an event."""

    MOTION = "motion"
    PRESS = "press"
    RELEASE = "release"


SHIFT, ALT, CTRL = "Shift", "Alt", "Control"
EXIT, WHEEL, MOVE = "WMClose", "Wheel", "Motion"


class Event:
    """Something that happened in a window.

    Attributes:
        type: `GUI.PRESS`, `GUI.RELEASE` or `GUI.MOTION` (of the mouse and its wheel).
        key: a letter, or one of `GUI.ESCAPE`, `GUI.LMB`, `GUI.MOVE`, `GUI.EXIT`, ...; of a button on the
            canvas, its event's name.
        pos: where the mouse was: (x, y) between 0 and 1.
        delta: how far the wheel was turned: (x, y), 120 for each notch.
        modifier: which of "Shift", "Alt", "Control" were pressed.
    """

    def __init__(
        self,
        type: EventType | None = None,
        key: Any = None,
        pos: tuple[float, float] = (0.0, 0.0),
        delta: tuple[float, float] = (0, 0),
    ) -> None:
        self.type = type
        self.key = key
        self.pos = pos
        self.delta = delta
        self.modifier: list[str] = []

    def __repr__(self) -> str:
        return f"<{self.type.name if self.type else None} {self.key!r} at {self.pos}>"


class EventFilter:
    """What events a program asks for: types, keys, or pairs of both."""

    def __init__(self, *wanted: Any) -> None:
        self.filter = {tuple(w) if isinstance(w, list) else w for w in wanted}

    def match(self, event: Event) -> bool:
        """Return whether it is one of them."""
        return not self.filter.isdisjoint(((event.type, event.key), event.type, event.key))


class EventQueue:
    """The events that the program has not fetched yet, and what is pressed now.

    A program that asks for no events must not fill the memory: the oldest are dropped.
    """

    def __init__(self) -> None:
        self.waiting: deque[Event] = deque(maxlen=10_000)
        self.pressed: set[str] = set()
        self.cursor = (0.0, 0.0)

    def put(self, event: Event) -> None:
        """Append an event."""
        self.cursor = event.pos
        if event.type is EventType.PRESS:
            self.pressed.add(event.key)
        elif event.type is EventType.RELEASE:
            self.pressed.discard(event.key)
        event.modifier = [m for m in (SHIFT, ALT, CTRL) if m in self.pressed]
        self.waiting.append(event)

    def is_pressed(self, keys: Iterable[str]) -> bool:
        """Return whether one of the keys is pressed; left and right Shift are one."""
        return any(
            key in self.pressed or key.removesuffix("_L").removesuffix("_R") in self.pressed
            for key in keys
        )
