"""Where frames are shown without a window: nowhere, in a notebook, or in a picture that is written anew.

The canvas is drawn by `raster` in each of them; a view only shows pixels and reports events.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any, Protocol

import numpy as np

from diffsim.runtime.files import write_file
from diffsim.tools.pictures.images import encoded


class View(Protocol):
    """A place that shows frames.

    Attributes:
        has_events: whether it reports keys and the mouse, and can be closed.
    """

    has_events: bool

    def show(self, pixels: np.ndarray) -> None:
        """Show a frame: (height, width, 4) of u8, row by row from the top."""

    def pump(self) -> None:
        """Let events come in."""

    def title(self, text: str) -> None:
        """Set the title."""

    def close(self) -> None:
        """Close it."""


def picture_of(pixels: np.ndarray) -> bytes:
    """Return a frame as a file, made quickly."""
    return encoded(pixels[:, :, :3], "PNG", compress_level=1)


class NoView:
    """Shows nothing: `show_gui=False`."""

    has_events = False

    def show(self, pixels: np.ndarray) -> None: ...

    def pump(self) -> None: ...

    def title(self, text: str) -> None: ...

    def close(self) -> None: ...


class PictureView(NoView):
    """A picture beside the program, written anew at most once a second; said once."""

    def __init__(self, name: str, reason: str = "") -> None:
        self.path = os.path.abspath(re.sub(r"[^\w.-]+", "_", name).strip("_.") + ".png")
        self.written = 0.0  # when it was last written [s]; 0: never
        self.last: np.ndarray | None = None
        self.reason = reason

    def show(self, pixels: np.ndarray) -> None:
        now = time.monotonic()
        if self.written and now - self.written < 1:
            self.last = pixels.copy()
            return
        if not self.written:
            print(
                f"diffsim: no window can be opened here{self.reason}, so frames go to {self.path}, anew "
                'every second. gui.show("film.gif"), of a ds.ui.Window save_image("film.gif"), makes a film; '
                "MPLBACKEND=WebAgg, with the package tornado, shows them in a browser.",
                file=sys.stderr,
            )
        self.last = None
        self.written = now
        write_file(self.path, picture_of(pixels))

    def close(self) -> None:
        if self.last is not None:
            write_file(self.path, picture_of(self.last))
            self.last = None


class NotebookView(NoView):
    """A picture in the output of a notebook's cell, at most 20 times a second."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.shown = 0.0

    def show(self, pixels: np.ndarray) -> None:
        from IPython.display import Image, display

        now = time.monotonic()
        if now - self.shown < 0.05:
            return
        self.shown = now
        picture = Image(data=picture_of(pixels), format="png")
        if self.handle is None:
            self.handle = display(picture, display_id=True)
        else:
            self.handle.update(picture)
