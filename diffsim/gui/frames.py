"""Where the frames of a canvas go: a window or another view, files, how many a second, and what comes back.

`ds.GUI` and `ds.ui.Window` draw frames in ways of their own, and hand them over here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from diffsim.errors import DiffsimError, Span
from diffsim.gui.events import EXIT, Event, EventQueue, EventType
from diffsim.gui.film import PICTURES, RATE, Film, new_film
from diffsim.gui.views import NoView, View
from diffsim.gui.window import open_view
from diffsim.lang.host.signatures import need_number
from diffsim.runtime.files import write_file
from diffsim.tools.pictures.arrays import refuse
from diffsim.tools.pictures.images import encoded

_DEFAULT_LIMIT = 60  # frames a second in a window
_SHOWS_AFTER_CLOSING = 5
_POLLING = 0.02  # between two looks for events in a loop without frames [s]
_BUTTONS = {"LMB", "MMB", "RMB"}
_REPEATING = 0.003  # between release and press of a key that is held [s]


class WindowClosed(DiffsimError, RuntimeError):
    """The window was closed, and the program goes on drawing."""


class Frames:
    """The frames of one canvas.

    Attributes:
        count: how many were shown.
        events: those that the program has not fetched yet.
        view: what shows them; None until it is opened.
        times: when the last frames were shown [s].
    """

    def __init__(
        self,
        name: str,
        res: tuple[int, int],
        *,
        visible: bool,
        fullscreen: bool = False,
        repeats: bool = True,
        hear: Callable[[Event], None],
    ) -> None:
        self.name, self.res = name, res
        self.count = 0
        self.events = EventQueue()
        self.view: View | None = None if visible else NoView()
        self.times: list[float] = []
        self._fullscreen = fullscreen
        self._hear = hear
        self._repeats = repeats
        self._released: dict[str, float] = {}  # when keys were released last [s]
        self._films: dict[Path, Film] = {}
        self._limit: float | None = None
        self._polled = 0.0  # when events came in last [s]
        self._closing = 0  # frames since the window was closed, and one more
        self._closed_by = ""  # the call by which the program has ended its frames

    def opened(self) -> View:
        """Return the view, opened if it is not yet."""
        if self.view is None:
            self.view = open_view(self.name, self.res, self._fullscreen, self._receive)
        return self.view

    def close(self, call: str) -> None:
        """Close the window and finish films; `call` is what the program has written."""
        for film in self._films.values():
            film.finish()
        self._films = {}
        if self.view is not None:
            self.view.close()
        self._closing = max(self._closing, 1)
        self._closed_by = call

    def show(self, pixels: np.ndarray) -> None:
        """Show a frame: (height, width, 4) of u8, row by row from the top."""
        self.opened().show(pixels)
        self._polled = time.perf_counter()

    def end(self) -> None:
        """Count the frame, and in a window wait for the next one's time."""
        if self.opened().has_events:
            self._wait_for_next_frame()
        self.count += 1

    def check_open(self) -> None:
        """Refuse to draw where nothing can be shown any more.

        Raises:
            WindowClosed: the program has closed it, or goes on after its user has.
        """
        if self._closed_by:
            raise WindowClosed(
                f"{self._closed_by} has ended the frames of {self.name!r}, and another one is shown",
                Span.of_caller(),
                hint=f"call {self._closed_by} after the last frame, or make another one",
            )
        if self._closing:
            self._closing += 1
        if self._closing > _SHOWS_AFTER_CLOSING + 1:
            raise WindowClosed(
                f"the window {self.name!r} was closed, and the program goes on drawing",
                Span.of_caller(),
                hint="write the loop with .running of the window: while gui.running: ...",
            )

    def write(self, path: Path, pixels: np.ndarray) -> None:
        """Write a frame, or append it to a film."""
        rows = pixels[:, :, :3]
        if path.suffix.lower() in PICTURES:
            write_file(path, encoded(rows, PICTURES[path.suffix.lower()]))
            return
        if path not in self._films:
            # Absolute: the program may change its folder before the film is complete.
            self._films[path] = new_film(path.absolute(), self._limit or RATE)
        self._films[path].add(rows)

    def _wait_for_next_frame(self) -> None:
        """Keep to the limit of frames a second, and show the rate in the title."""
        limit = _DEFAULT_LIMIT if self._limit is None else self._limit
        view = self.opened()
        if self.times and limit:
            while (rest := self.times[-1] + 1 / limit - time.perf_counter()) > 0:
                time.sleep(min(rest, 0.01))
                if rest > 0.01:  # a window must answer while it waits for long
                    view.pump()
        self.times = [*self.times[-29:], time.perf_counter()]
        if self.count % 10 == 9:
            rate = (len(self.times) - 1) / (self.times[-1] - self.times[0])
            view.title(f"{self.name} ({rate:.1f} frames/s)")

    @property
    def limit(self) -> float | None:
        """The most frames a second in a window; None: as many as can be drawn."""
        return None if self._limit == 0 else self._limit or _DEFAULT_LIMIT

    @limit.setter
    def limit(self, value: float | None) -> None:
        need_number(value, "fps_limit", "give frames a second, such as 30")
        if value is not None and not value > 0:
            raise refuse(f"a limit of {value} frames a second shows none", "None is no limit")
        self._limit = value or 0

    @property
    def running(self) -> bool:
        """Whether the window is open; True without one, until it is set to False."""
        self.poll()
        return not self._closing

    @running.setter
    def running(self, value: bool) -> None:
        self._closing = 0 if value else max(self._closing, 1)

    def _receive(self, event: Event) -> None:
        if event.key == EXIT:
            self._closing = max(self._closing, 1)
            event.pos = self.events.cursor
        if self._repeats or not self._is_repeat(event):
            self.events.put(event)
            self._hear(event)

    def _is_repeat(self, event: Event) -> bool:
        """Return whether a press comes of a key that is held, and take back its release if there was one.

        Some systems repeat a press, others a release and a press at the same time.
        """
        now, key, events = time.perf_counter(), event.key, self.events
        if event.type is EventType.RELEASE:
            self._released[key] = now
        if event.type is not EventType.PRESS or key in _BUTTONS:
            return False
        if key in events.pressed:
            return True
        if now - self._released.get(key, -1.0) > _REPEATING:
            return False
        for k in range(len(events.waiting) - 1, -1, -1):
            if (events.waiting[k].type, events.waiting[k].key) == (EventType.RELEASE, key):
                del events.waiting[k]
                events.pressed.add(key)
                return True
        return False

    def poll(self) -> None:
        """Let events come in, for programs that ask for them in a loop that shows no frames."""
        now = time.perf_counter()
        if self.view is not None and self.view.has_events and now - self._polled > _POLLING:
            self._polled = now
            self.view.pump()

    def wait_for_event(self, pixels: np.ndarray) -> None:
        """Show a frame until there is an event."""
        self.show(pixels)
        while not self.events.waiting:
            self.opened().pump()
            time.sleep(0.01)
