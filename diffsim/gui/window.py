"""A window, made by any of matplotlib's backends that have one, and what it reports of keys and mouse."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.gui.events import EXIT, MOVE, WHEEL, Event, EventType, key_of
from diffsim.gui.views import NotebookView, PictureView, View

Receive = Callable[[Event], None]


def open_view(name: str, res: tuple[int, int], fullscreen: bool, receive: Receive) -> View:
    """Open what there is: a window, else a notebook, else a picture in a file."""
    try:
        # Loading it chooses the first backend that works here; without a display that is agg, which has no
        # window, whatever MPLBACKEND says.
        from matplotlib import pyplot

        backend = pyplot.get_backend().lower()
        if any(word in backend for word in ("inline", "nbagg", "ipympl", "widget")):
            return NotebookView()
        if backend in {"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"}:
            return PictureView(name)
        return FigureView(name, res, fullscreen, receive)
    except Exception as problem:  # each backend has errors of its own, for a missing display
        return PictureView(name, f" ({str(problem).splitlines()[0]})")


_BLACK = np.uint32(0xFF000000)
_BUTTONS = {1: "LMB", 2: "MMB", 3: "RMB"}


class FigureView:
    """A window with any of matplotlib's backends that has windows, or WebAgg in a browser.

    The figure holds no axes: its drawing is the copy of our pixels.
    """

    has_events = True

    def __init__(self, name: str, res: tuple[int, int], fullscreen: bool, receive: Receive) -> None:
        from matplotlib import pyplot
        from matplotlib._pylab_helpers import Gcf

        self.receive = receive
        self.pixels = np.zeros((res[1], res[0]), np.uint32)
        # x0, y0 and size of a pixel in the window.
        self.place = (0.0, 0.0, 1.0)
        self.closed = False
        # A hundredth more: the sizes in pixels are rounded down.
        inches = (res[0] + 0.01) / 100, (res[1] + 0.01) / 100
        with pyplot.rc_context({"toolbar": "None", "figure.dpi": 100}):
            figure: Any = pyplot.figure(figsize=inches, facecolor="black")
        figure.draw = self._draw
        self.canvas: Any = figure.canvas
        self.manager: Any = self.canvas.manager
        self._connect()
        self.web = "webagg" in type(self.canvas).__name__.lower()
        if self.web:
            self._serve()
        else:
            # The program's own plots must not go into this window.
            Gcf.figs.pop(self.manager.num, None)
            self.manager.show()
            self._fit(res)
        if fullscreen:
            self.manager.full_screen_toggle()
        self.title(name)

    def _fit(self, res: tuple[int, int]) -> None:
        """Give each of our pixels a whole number of the screen's, so that none is drawn twice as wide.

        Systems report ratios such as 1.04 or 1.5, by which the window was made larger.
        """
        self.canvas.flush_events()  # the ratio is known when the window is there
        figure, ratio = self.canvas.figure, self.canvas.device_pixel_ratio
        whole = max(round(ratio), 1)
        if ratio != whole:
            # The figure's dots per inch are those of the screen by now.
            figure.set_size_inches([(n * whole + 0.01) / figure.get_dpi() for n in res])

    def _connect(self) -> None:
        # Matplotlib's own keys: q would close the window, s ask for a file.
        with contextlib.suppress(AttributeError):
            self.canvas.mpl_disconnect(self.manager.key_press_handler_id)
        for what, handler in {
            "key_press_event": lambda e: self._key(EventType.PRESS, e),
            "key_release_event": lambda e: self._key(EventType.RELEASE, e),
            "button_press_event": lambda e: self._button(EventType.PRESS, e),
            "button_release_event": lambda e: self._button(EventType.RELEASE, e),
            "motion_notify_event": lambda e: self._send(EventType.MOTION, MOVE, e),
            "scroll_event": self._wheel,
            "close_event": self._on_close,
        }.items():
            self.canvas.mpl_connect(what, handler)

    # ---- frames

    def show(self, pixels: np.ndarray) -> None:
        if self.closed:
            return
        self.pixels[:] = pixels.view(np.uint32)[:, :, 0]
        if self.web:
            # A page asks for the frame when it has shown the one before, all of it: a page that opens later
            # has none which changes could be made to.
            self.canvas._force_full = True
            self.canvas.draw_idle()
        else:
            self.canvas.draw()
        self.pump()

    def _draw(self, renderer: Any) -> None:
        """Copy the pixels into the middle of the window, as large as they fit."""
        height, width = self.pixels.shape
        across, up = (int(n) for n in renderer.get_canvas_width_height())
        # HiDPI: the canvas is larger than its size in points says.
        across, up = getattr(renderer, "width", across), getattr(renderer, "height", up)
        across, up = int(across), int(up)
        scale = min(across / width, up / height)
        shown = self.pixels
        if scale != 1:
            rows = (np.arange(max(int(height * scale), 1)) / scale).astype(np.intp)
            columns = (np.arange(max(int(width * scale), 1)) / scale).astype(np.intp)
            shown = shown[rows.clip(max=height - 1)[:, None], columns.clip(max=width - 1)]
        height, width = shown.shape
        x0, y0 = (across - width) // 2, (up - height) // 2
        self.place = (float(x0), float(y0), scale)
        if shown.shape != (up, across):
            framed = np.full((up, across), _BLACK)
            framed[up - y0 - height : up - y0, x0 : x0 + width] = shown
            shown = framed
        context = renderer.new_gc()
        renderer.draw_image(context, 0, 0, shown.view(np.uint8).reshape(up, across, 4)[::-1])
        context.restore()

    def pump(self) -> None:
        if self.closed:
            return
        if self.web:
            self._serve_for(0.002)
        else:
            self.canvas.flush_events()

    def title(self, text: str) -> None:
        if not self.closed:
            self.manager.set_window_title(text)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if not self.web:
                self.manager.destroy()

    # ---- events

    def _position(self, event: Any) -> tuple[float, float]:
        x0, y0, scale = self.place
        height, width = self.pixels.shape
        return (event.x - x0) / (scale * width), (event.y - y0) / (scale * height)

    def _send(self, kind: EventType, key: str, event: Any, delta: Any = (0, 0)) -> None:
        self.receive(Event(kind, key, self._position(event), delta))

    def _key(self, kind: EventType, event: Any) -> None:
        key = key_of(event.key)
        if key is not None:
            self._send(kind, key, event)

    def _button(self, kind: EventType, event: Any) -> None:
        button = _BUTTONS.get(int(event.button))
        if button is not None:
            self._send(kind, button, event)

    def _wheel(self, event: Any) -> None:
        self._send(EventType.MOTION, WHEEL, event, (0, 120 * event.step))

    def _on_close(self, event: Any) -> None:
        if not self.closed:
            self.closed = True
            self.receive(Event(EventType.PRESS, EXIT))

    # ---- WebAgg

    def _serve(self) -> None:
        from matplotlib import rcParams
        from matplotlib.backends.backend_webagg import WebAggApplication

        WebAggApplication.initialize()
        for logger in ("asyncio", "tornado.application"):
            logging.getLogger(logger).addFilter(_is_worth_saying)
        # Set by `initialize`, and unknown to type checkers.
        server = vars(WebAggApplication)
        address = f"http://{server['address']}:{server['port']}/"
        print(f"diffsim: the window is at {address}", file=sys.stderr, flush=True)
        if rcParams["webagg.open_in_browser"]:
            import webbrowser

            webbrowser.open(address)

    def _serve_for(self, seconds: float) -> None:
        """Let the server answer; it shares the thread with the program, as windows do."""
        from tornado.ioloop import IOLoop

        loop = IOLoop.current()
        loop.call_later(seconds, loop.stop)
        loop.start()


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Drop what the server says where a page was closed while a frame was on its way to it."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "WebSocketClosedError"
