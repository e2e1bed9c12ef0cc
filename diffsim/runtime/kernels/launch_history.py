"""When one compiled kernel was launched: which launch a call of `kernel.grad` belongs to.

The first call of `kernel.grad(...)` after a launch belongs to the last launch with these arguments. A second
one may mean the same launch, with other gradients of its outputs, or the launch before it, on the way back
through a program. Nothing tells these apart, so it is run only where both have the same adjoint: where
nothing that the adjoint loads has changed since the earlier launch (docs/adr/0019).
"""

from __future__ import annotations

import bisect
from array import array
from typing import Any

STRETCH = 32
"""A row of readings is checked for its length each time that it has grown by so many (a power of 2)."""
# Launches remembered over all combinations of arguments, but at least `STRETCH` for each: half a MiB of
# readings.
_MOST = 1 << 16


def new_row(*readings: int) -> array[int]:
    """Make a compact row of clock readings."""
    # 8 bytes for each launch; a list would hold a pointer and an integer object.
    return array("q", readings)


class LaunchHistory:
    """The launches of one compiled kernel.

    Attributes:
        last: the clock's reading and the random numbers' key of the last one; None if there was none.
        times: for each combination of arguments the clock's readings, oldest first, of launches that no
            gradient was asked for yet, and of those after the last such call.
        seeds: the random numbers' key of the last launch with given arguments, if the kernel draws any.
        forgot: whether combinations of arguments were forgotten.
    """

    def __init__(self) -> None:
        self.last: tuple[int, int] | None = None
        self.times: dict[Any, array[int]] = {}
        self.seeds: dict[Any, int] = {}
        self.forgot = False
        # For each combination: the last launch when `kernel.grad` was last called, and the calls since that
        # launch.
        self._asked: dict[Any, tuple[int, int]] = {}

    def note(self, key: object, now: int) -> None:
        """Add a launch whose arguments have this key."""
        times = self.times.setdefault(key, new_row())
        times.append(now)
        self.shorten(times)

    def forget(self) -> None:
        """Drop all launches, as there are too many combinations of arguments."""
        for kept in (self.times, self.seeds, self._asked):
            kept.clear()
        self.forgot = True

    def shorten(self, times: array[int]) -> None:
        """Drop readings in the middle of a row that has grown too long.

        A launch in the middle then counts as one that was earlier: more may have changed since, never less.
        """
        # Amortized by `STRETCH`: callers test the length once for so many launches.
        most = max(STRETCH, _MOST // len(self.times))
        # The oldest one stays, and the newer half: calls of `kernel.grad` begin at the end. A call that goes
        # back into the gap gets an earlier reading, against which more counts as changed.
        if len(times) > most:
            del times[1 : len(times) - most // 2]

    def asked(self, key: object) -> tuple[int, int]:
        """Find the earliest launch that a call of `kernel.grad` made now may belong to.

        Returns:
            The reading, and how many calls there are since the last launch, this one included.
        """
        times = self.times[key]
        last, count = self._asked.get(key, (0, 0))
        # Each earlier call took one launch off the end of the row, as a stack.
        if count and last != times[-1]:  # launched since: the launches asked for are done with
            # All calls up to here are settled: what they stood for can not be asked for again.
            done = bisect.bisect_right(times, last)
            del times[max(done - count, 0) : done]
            del self._asked[key]
            count = 0
        # At the front the row ends: further calls mean the first launch again.
        return times[max(len(times) - count - 1, 0)], count + 1

    def answered(self, key: object, count: int) -> None:
        """Record that this call, the `count`th since the last launch, was run."""
        self._asked[key] = self.times[key][-1], count
