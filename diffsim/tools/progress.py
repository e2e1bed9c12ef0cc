"""`progress`: how far a loop is, on standard error: over the last line in a terminal, else on ten lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar

from diffsim.lang.host.signatures import checked, need_whole
from diffsim.tools.pictures.arrays import refuse

T = TypeVar("T")
_WIDTH = 24  # of the bar
_EVERY = 0.1  # between two drawings in a terminal [s]
_LINES = 10  # in all, where there is no terminal


class Progress(Generic[T]):
    """A loop that shows how far it is; made by `ds.tools.progress`."""

    def __init__(self, things: Iterable[T], label: str, total: int | None) -> None:
        self._things = things
        self._label = label
        self._total = total
        self._notes = ""
        self._stream = sys.stderr
        self._in_place = self._stream.isatty()
        self._begin = self._shown = time.monotonic()
        self._done = 0

    def __iter__(self) -> Iterator[T]:
        self._begin = time.monotonic()
        try:
            for thing in self._things:
                yield thing
                self._done += 1
                self._step()
        finally:
            self._end()

    def note(self, **values: Any) -> None:
        """Show values beside the bar: `bar.note(loss=loss[None])`; floats with four digits."""
        self._notes = "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
        )

    def _step(self) -> None:
        now = time.monotonic()
        if self._in_place:
            if now - self._shown > _EVERY or self._done == self._total:
                self._shown = now
                self._stream.write(f"\r{self._text(now)}\x1b[K")
                self._stream.flush()
        elif self._total and (self._done * _LINES // self._total) > (
            (self._done - 1) * _LINES // self._total
        ):
            print(self._text(now), file=self._stream, flush=True)

    def _text(self, now: float) -> str:
        seconds = now - self._begin
        parts = [self._label]
        if self._total:
            filled = _WIDTH * self._done // self._total
            left = seconds * (self._total - self._done) / max(self._done, 1)
            parts += [f"[{'#' * filled:.<{_WIDTH}}] {self._done}/{self._total}", self._notes]
            parts.append(f"{_time(left)} left" if left else _time(seconds))
        else:
            parts += [str(self._done), self._notes, _time(seconds)]
        return "  ".join(filter(None, parts))

    def _end(self) -> None:
        if self._in_place and self._done:
            self._stream.write(f"\r{self._text(time.monotonic())}\x1b[K\n")
            self._stream.flush()


def _time(seconds: float) -> str:
    """Write a time as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


@checked
def progress(things: Iterable[T] | int, label: str = "", total: int | None = None) -> Progress[T]:
    """Loop over things, and show how far the loop is.

        for i in (bar := ds.tools.progress(range(100), "training")):
            bar.note(loss=step())

    Args:
        things: what to loop over; a number n is `range(n)`.
        label: what to write before the bar.
        total: how many there are, for things that do not know it.
    """
    if isinstance(things, int):
        things = range(things)  # type: ignore[assignment]
    if not isinstance(things, Iterable):
        raise refuse(f"{things!r} can not be looped over", "give a range, a list or a number")
    need_whole(total, "total")
    if total is None and isinstance(things, Sized):
        total = len(things)
    return Progress(things, label, total)
