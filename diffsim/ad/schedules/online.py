"""Which states to hold while nobody knows how many steps there will be.

The number of states is fixed, and after each step those that are held are where an adjoint of the steps so
far would want them, more or less (Q. Wang, P. Moin, G. Iaccarino, "Minimal repetition dynamic checkpointing
algorithm for unsteady adjoint calculation", SIAM J. Sci. Comput. 31(4), 2009). Each state has a level. A new
one takes the place of an older one of a lower level than some state after it; where there is none, the last
state moves on to the present step, one level higher. So with s states no step before the last one that is
held is run more than r times again, as long as there are at most (s + r)! / (s! r!) steps.
"""

from __future__ import annotations

from math import inf


class OnlineStates:
    """The steps whose states are held, as the rollout goes on.

    Attributes:
        stride: states are considered before each so manieth step.
    """

    def __init__(self, most: int, stride: int = 1) -> None:
        """Begin before step 0, whose state stays; `most` counts it."""
        self.stride = stride
        self._most = most
        self._steps: list[int] = [0]
        self._levels: list[float] = [inf]

    def wants(self, step: int) -> bool:
        """Return whether the state before a step is to be held, in its turn: each step is asked for once."""
        return step > 0 and step % self.stride == 0 and self._most > 1

    def replace(self, step: int) -> int | None:
        """Note that the state before a step is held; return the step whose state it takes the place of."""
        steps, levels = self._steps, self._levels
        dropped, level = None, 0.0
        if len(steps) == self._most:
            k = self._dispensable()
            if k is None:
                k, level = len(steps) - 1, levels[-1] + 1
            dropped = steps.pop(k)
            levels.pop(k)
        steps.append(step)
        levels.append(level)
        return dropped

    def _dispensable(self) -> int | None:
        """Return the last state that is followed by one of a higher level."""
        highest = -inf
        for k in range(len(self._steps) - 1, 0, -1):
            if self._levels[k] < highest:
                return k
            highest = max(highest, self._levels[k])
        return None
