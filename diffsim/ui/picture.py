"""One frame of a window: what is to be drawn, and the pixels where it is drawn."""

from __future__ import annotations

from collections.abc import Callable

from diffsim.ui.drawing import Surface

Draw = Callable[[Surface], None]


class Picture:
    """A frame, which is drawn when it is shown or read.

    Then all is known that the program wants: a background that is set last still lies below, and widgets
    lie above what is drawn after them.

    Attributes:
        background: the colour, 0xRRGGBB.
    """

    def __init__(self, res: tuple[int, int]) -> None:
        self.background = 0
        self._surface = Surface(res)
        self._below: list[Draw] = []
        self._above: list[Draw] = []
        self._begun = False  # whether the pixels are those of this frame
        self._over = False  # whether the next addition begins another one

    def add(self, draw: Draw, above: bool = False) -> None:
        """Let something be drawn in this frame, or begin the next one with it."""
        if self._over:
            self.restart()
        (self._above if above else self._below).append(draw)

    def restart(self) -> None:
        """Begin an empty frame."""
        self._below, self._above = [], []
        self._begun = self._over = False

    def drawn(self) -> Surface:
        """Return the pixels, with all that was added."""
        if not self._begun:
            self._surface.clear(self.background)
            self._begun = True
        for draw in self._below + self._above:
            draw(self._surface)
        self._below, self._above = [], []
        return self._surface

    def end(self) -> None:
        """End the frame: it can be read until the next addition."""
        self._over = True

    @property
    def ended(self) -> bool:
        """Whether nothing was added since its end."""
        return self._over
