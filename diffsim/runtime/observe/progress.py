"""How far a long work is, on standard error: over the last line in a terminal, else on ten lines."""

from __future__ import annotations

import sys
import time
from typing import Any

_WIDTH = 24  # of the bar
_EVERY = 0.1  # between two drawings in a terminal [s]
_LINES = 10  # in all, where there is no terminal


class ProgressBar:
    """A line that says how far a work is; by `tqdm` where there is one and somebody watches.

    Args:
        total: how many steps there are; None: that is not known.
        done: how many of them are done already.
        label: what to write before the bar.
        shown: whether anything is shown at all.
    """

    def __init__(
        self, total: int | None, done: int = 0, *, label: str = "", shown: bool = True
    ) -> None:
        self.total = total
        self._done = self._start = done
        self._label, self._notes = label, ""
        self._shown = shown
        self._stream = sys.stderr
        self._in_place = self._stream.isatty()
        self._begin = time.monotonic()
        self._drawn = 0.0  # when it was drawn last; 0: never
        self._bar: Any = _tqdm(total, done, label) if shown else None

    def update(self, done: int, notes: str = "") -> None:
        """Show that so many steps are done, and what became of the last one."""
        before, self._done, self._notes = self._done, done, notes
        if self._bar is not None:
            self._bar.set_postfix_str(notes, refresh=False)
            self._bar.update(done - before)
        elif self._shown and self._in_place:
            if time.monotonic() - self._drawn > _EVERY:
                self._draw()
        elif (
            self._shown
            and self.total
            and done * _LINES // self.total > before * _LINES // self.total
        ):
            print(self._text(), file=self._stream, flush=True)

    def close(self) -> None:
        """Draw the last step, and end the line."""
        if self._bar is not None:
            self._bar.close()
        elif self._shown and self._in_place and self._done > self._start:
            self._draw("\n")

    def _draw(self, end: str = "") -> None:
        self._drawn = time.monotonic()
        self._stream.write(f"\r{self._text()}\x1b[K{end}")
        self._stream.flush()

    def _text(self) -> str:
        seconds = time.monotonic() - self._begin
        if not self.total:
            parts = [self._label, str(self._done), self._notes, time_in_words(seconds)]
            return "  ".join(filter(None, parts))
        bar = "#" * (_WIDTH * self._done // self.total)
        left = seconds * (self.total - self._done) / max(self._done - self._start, 1)
        rest = f"{time_in_words(left)} left" if left else time_in_words(seconds)
        parts = [self._label, f"[{bar:.<{_WIDTH}}] {self._done}/{self.total}", self._notes, rest]
        return "  ".join(filter(None, parts))


def _tqdm(total: int | None, done: int, label: str) -> Any:
    """Return a bar of tqdm; None: there is none, or nobody watches and ten lines are enough."""
    notebook = hasattr(sys.modules.get("IPython"), "get_ipython") and "ipykernel" in sys.modules
    if not notebook and not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, initial=done, desc=label or None, file=sys.stderr, dynamic_ncols=True)


def time_in_words(seconds: float) -> str:
    """Write a time as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"
