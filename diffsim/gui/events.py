"""Events of keys, mouse and window, by Taichi's names, and the queue that they wait in."""

from __future__ import annotations

import enum
import functools
import re
from collections import deque
from collections.abc import Iterable
from typing import Any

from diffsim.errors import shown
from diffsim.lang.host.unsupported import Explained, close_to
from diffsim.tools.pictures.arrays import refuse


class EventType(enum.Enum):
    """The kind of an event: press, release or motion of a key."""

    MOTION = "motion"
    PRESS = "press"
    RELEASE = "release"


SHIFT, ALT, CTRL = "Shift", "Alt", "Control"
EXIT, WHEEL, MOVE = "WMClose", "Wheel", "Motion"
_KEYS = {
    "escape": "Escape", "enter": "Return", "tab": "Tab", "backspace": "BackSpace", " ": " ", "space": " ",
    "up": "Up", "down": "Down", "left": "Left", "right": "Right", "caps_lock": "Caps_Lock",
    "shift": "Shift", "alt": "Alt", "control": "Control", "ctrl": "Control", "delete": "Delete",
    "insert": "Insert", "home": "Home", "end": "End", "pageup": "Prior", "pagedown": "Next",
    "-": "minus", "=": "equal", ".": "period", ",": "comma", "/": "slash", "[": "bracketleft",
    "]": "bracketright", ";": "semicolon", "'": "apostrophe", "`": "grave", "\\": "backslash",
}  # fmt: skip
"""Matplotlib's names of keys and Taichi's, which are those of X11."""
_WITH_SHIFT = dict(
    zip(
        "exclam at numbersign dollar percent asciicircum ampersand asterisk parenleft parenright "
        "underscore plus braceleft braceright bar colon quotedbl less greater question "
        'asciitilde ! @ # $ % ^ & * ( ) _ + { } | : " < > ? ~'.split(),
        2 * "1234567890-=[]\\;',./`",
        strict=True,
    )
)
"""Keys are named as without Shift, or one that is released after Shift would stay pressed."""


def key_of(name: str | None) -> str | None:
    """Return Taichi's name of a key: "ctrl+A" is the key "a"."""
    if not name:
        return None
    # A "+" alone is the key plus.
    plain = name if len(name) == 1 else name.rpartition("+")[2] or "+"
    plain = _WITH_SHIFT.get(plain, plain)
    if plain in _KEYS:
        return _KEYS[plain]
    # Letters as without Shift; F1 to F12. Other names are X11's already.
    return plain.lower() if len(plain) == 1 else re.sub(r"^f(?=\d+$)", "F", plain)


_OTHERS = "Super Meta Hyper Menu Pause Print Num_Lock Scroll_Lock LMB MMB RMB".split()
_NAMES = {*_KEYS.values(), *_OTHERS, EXIT, WHEEL, MOVE}
_FAMILIES = re.compile(r"F\d{1,2}|(KP|XF86|ISO|dead)_?\w+|WidgetButton_.*", re.DOTALL)
"""Keys of some keyboards, and buttons on the canvas that were given no name."""


@functools.cache
def unknown_key(name: str) -> str | None:
    """Return what to write for a name that no key has; None: there is such a key."""
    plain = key_of(name)
    if len(name) == 1:
        return None if plain == name else f'write "{plain}": keys are named as without Shift'
    if _side(name) in _NAMES or _FAMILIES.fullmatch(name):
        return None
    small = name.lower()
    plain = key_of(small)
    close = plain if plain != small else close_to(name, sorted(_NAMES))
    return (
        f'did you mean "{close}"?'
        if close
        else 'keys are letters, digits and names such as "Escape"'
    )


def _side(key: str) -> str:
    """Return the name of a key without its side: left and right Shift are one."""
    return key.removesuffix("_L").removesuffix("_R")


class Event(Explained):
    """Something that happened in a window.

    Attributes:
        type: `GUI.PRESS`, `GUI.RELEASE` or `GUI.MOTION` (of the mouse and its wheel).
        key: a letter, or one of `GUI.ESCAPE`, `GUI.LMB`, `GUI.MOVE`, `GUI.EXIT`, ...; of a button on the
            canvas, its event's name.
        pos: where the mouse was: (x, y) between 0 and 1.
        delta: how far the wheel was turned: (x, y), 120 for each notch.
        modifier: which of "Shift", "Alt", "Control" were pressed.
    """

    _words = "an event"

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
    """The events a program asks for: types, keys, or pairs of both."""

    def __init__(self, *wanted: Any) -> None:
        self.filter = {tuple(w) if isinstance(w, list) else w for w in wanted}

    def match(self, event: Event) -> bool:
        """Return whether it is one of them."""
        return not self.filter.isdisjoint(((event.type, event.key), event.type, event.key))


class EventQueue:
    """The events that the program has not fetched yet, and what is pressed now.

    A program that asks for no events must not fill the memory: the oldest are dropped.

    Attributes:
        names: of the events of buttons on the canvas.
    """

    def __init__(self) -> None:
        self.waiting: deque[Event] = deque(maxlen=10_000)
        self.pressed: set[str] = set()
        self.names: set[str] = set()
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
        """Return whether one of the keys is pressed."""
        return any(key in self.pressed or _side(key) in self.pressed for key in keys)

    def check_filter(self, wanted: Iterable[Any]) -> None:
        """Refuse types and keys of which there will never be an event."""
        for one in wanted:
            parts = one if isinstance(one, (tuple, list)) and len(one) == 2 else (None, one)
            if parts[0] is None and isinstance(one, EventType):
                continue
            if not isinstance(parts[0], (EventType, type(None))):
                raise refuse(
                    f"an event is of a type such as GUI.PRESS, not {shown(parts[0])}",
                    'write get_event((gui.PRESS, "a"))',
                )
            self.check_keys(parts[1:])

    def check_keys(self, keys: Iterable[Any]) -> None:
        """Refuse keys that nobody can press."""
        for key in keys:
            if not isinstance(key, str):
                raise refuse(f"a key is a text, not {shown(key)}", 'write "a", or gui.ESCAPE')
            if key not in self.names and (hint := unknown_key(key)):
                raise refuse(f"there is no key {key!r}", hint)
