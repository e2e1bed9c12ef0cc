"""State that each Python thread has of its own, and sets that other threads may change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

# 2**48 launches for each of 2**15 threads before keys repeat; together they fill the 63 bits of a positive
# i64.
_STREAM = 48  # bits of a launch's random key below the number of the thread
_MOST_STREAMS = 1 << 15


class OfThread(threading.local):
    """The state of one thread.

    Attributes:
        launches: counts launches with random numbers; the counts of two threads have no number in common.
        recomputed_from: see `Session`.
        quiet: whether launches repeat earlier ones, whose output is not shown again.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        # The number of a thread that has ended is not given again until all others were: after 2**15 threads
        # streams repeat.
        self.launches = next(numbers) % _MOST_STREAMS << _STREAM
        self.recomputed_from: int | None = None
        self.quiet = False


def of_threads() -> OfThread:
    """Make the state of all threads anew; the calling thread is the first one."""
    return OfThread(itertools.count())


class CountedSet(WeakSet[Any]):
    """A set whose changes are counted, but for members that are collected.

    Attributes:
        changes: how many there were.
    """

    changes = 0

    def add(self, item: Any) -> None:
        super().add(item)
        self.changes += 1

    def discard(self, item: Any) -> None:
        super().discard(item)
        self.changes += 1


def members(kept: WeakSet[Any]) -> list[Any]:
    """Return the members of a set that other threads may add to at any time."""
    while True:
        # `list` of a WeakSet raises if the set grows meanwhile; the collector defers removals by itself.
        try:
            return list(kept)
        except RuntimeError:  # one did
            continue
