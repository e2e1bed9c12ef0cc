"""What each thread of Python has of its own, and what tapes hear of the other threads.

A tape records what its own thread does. What another thread writes meanwhile to a field with a gradient is
told to the tape as well, which gives no gradient then if it has to do with that field: the record would lack
the write. A launch looks at one attribute for all this (`Session.recorders`) while no tape records.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

from diffsim.errors import Span

_STREAM = 48  # bits of a launch's random key below the number of the thread
_MOST_STREAMS = 1 << 15


class OfThread(threading.local):
    """What is different in each thread.

    Attributes:
        launches: counts launches with random numbers; the counts of two threads have no number in common.
        recomputed_from: see `Session`.
        quiet: whether launches do what was done before, and what they print is not shown again.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self.launches = next(numbers) % _MOST_STREAMS << _STREAM
        self.recomputed_from: int | None = None
        self.quiet = False


def of_threads() -> OfThread:
    """The same, new; the thread that calls this is the first one."""
    return OfThread(itertools.count())


def members(kept: WeakSet[Any]) -> list[Any]:
    """What is in a set that other threads may add to at any time."""
    while True:
        try:
            return list(kept)
        except RuntimeError:  # one did
            continue


class Silent:
    """Hears what a thread does that has no tape."""

    records = in_place = exact = False
    plain = True
    trace = None

    @staticmethod
    def returned(result: Any) -> Any:
        return result

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _ignore


def _ignore(*_: Any) -> None:
    pass


class Neighbour:
    """Hears what a thread does while others record: tells them, and then the thread's own tape.

    Args:
        own: that tape, or one that ignores everything.
        others: the tapes of other threads.
    """

    def __init__(self, own: Any, others: Sequence[Any]) -> None:
        self.own = own
        self.others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def _tell(self, f: Any, who: str, span: Span | None) -> None:
        for tape in self.others:
            tape.written_elsewhere(f, who, span)

    def launched(self, special: Any, args: tuple[Any, ...], now: int, seed: int) -> None:
        source = special.kernel.source
        for a in special.written:
            self._tell(special.object_of(a.mem, args), source.name, source.head())
        self.own.launched(special, args, now, seed)

    def wrote(self, field: Any, index: Any, value: Any) -> None:
        self._tell(field, "a Python statement", Span.of_caller())
        self.own.wrote(field, index, value)

    def stored(self, field: Any, index: Any, value: Any) -> None:
        self._tell(field, "a Python statement", Span.of_caller())
        self.own.stored(field, index, value)

    def copied(self, target: Any, source: Any, to: Any = None, at: Any = None) -> None:
        self._tell(target, "a copy", Span.of_caller())
        self.own.copied(target, source, to, at)

    def cut_short(self, what: str, span: Span | None) -> None:
        for tape in (*self.others, self.own):
            tape.cut_short(what, span)
