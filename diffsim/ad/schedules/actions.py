"""A rollout's schedule as an iterator of actions, and what is held while it runs.

`forward` and `backward` decide from what is held now (`Holdings`), step by step: whoever performs the actions
may hold less than was asked for, or find that tapes are larger than the first was, and the schedule goes on
from there. Read `mixed.py` first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from diffsim.ad.schedules.mixed import best_split, leaf_lengths, planned

Kind = Literal["run", "hold", "store", "restore", "drop", "tape", "reverse"]


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a schedule.

    Attributes:
        kind: what is done:
            run      steps `step` .. `end` - 1 are run, and leave nothing but the state after them
            hold     the state before the step is copied
            store    the state before the step is written to the disk
            restore  the held state before the step becomes the present one
            drop     it is held no longer
            tape     the step is run on a tape, which is held
            reverse  the adjoint of the step is run from its tape, which is dropped
        step: the number of a step.
        end: for "run" the step after the last one; for "tape" the step after the stretch it belongs to.
    """

    kind: Kind
    step: int
    end: int = 0

    def __str__(self) -> str:
        steps = f"{self.step}..{self.end - 1}" if self.kind == "run" else f"{self.step}"
        return f"{self.kind} {steps}"


class Holdings:
    """States and tapes in limited memory, by the step that they belong to.

    The state before step 0 stays to the end, for another backward pass.

    Attributes:
        state_bytes, tape_bytes: what a state takes in memory, and the tape of a step.
        holds_tapes: whether tapes are held besides the one at work.
        spacing: how many steps there are from one state on the disk to the next; 0: no disk.
        states, tapes: what is held, with its bytes.
        used: the bytes of all of it.
    """

    def __init__(
        self,
        state_bytes: int,
        tape_bytes: int,
        *,
        states: int | None = None,
        memory: int | None = None,
        holds_tapes: bool = True,
        spacing: int = 0,
    ) -> None:
        """Begin with nothing.

        Args:
            state_bytes: what a state takes.
            tape_bytes: what the tape of a step takes.
            holds_tapes: as the attribute.
            spacing: as the attribute.
            states: there is memory for so many states, beside the tape at work.
            memory: or there are so many bytes, with it.
        """
        self.state_bytes = max(1, state_bytes)
        self.tape_bytes = max(1, tape_bytes)
        self.holds_tapes = holds_tapes
        self.spacing = spacing
        self.memory = memory
        self._slots = (states or 0) * self.state_bytes
        self.states: dict[int, tuple[Any, int]] = {}
        self.tapes: dict[int, tuple[Any, int]] = {}
        self.used = 0

    @property
    def room(self) -> int:
        """Bytes for what is held besides the tape at work."""
        return self._slots if self.memory is None else self.memory - self.tape_bytes

    def add_state(self, step: int, item: Any, size: int) -> None:
        self.states[step] = item, size
        self.used += size

    def add_tape(self, step: int, item: Any, size: int) -> None:
        self.tapes[step] = item, size
        self.used += size

    def drop_state(self, step: int) -> Any:
        item, size = self.states.pop(step)
        self.used -= size
        return item

    def drop_tape(self, step: int) -> Any:
        item, size = self.tapes.pop(step)
        self.used -= size
        return item

    def follow(self, actions: Iterator[Action]) -> Iterator[Action]:
        """Hold and drop what actions say, without anything being computed, and pass them on."""
        for a in actions:
            yield a
            match a.kind:
                case "hold":
                    self.add_state(a.step, None, self.state_bytes)
                case "store":
                    self.add_state(a.step, None, 0)
                case "tape":
                    self.add_tape(a.step, None, self.tape_bytes)
                case "drop":
                    self.drop_state(a.step)
                case "reverse":
                    self.drop_tape(a.step)

    def make_room(self, most: int) -> None:
        """Drop what is needed first, until the rest takes at most so many bytes; it is computed again."""
        while self.used > most and (self.tapes or len(self.states) > 1):
            last = max([*self.tapes, *self.states])
            if last in self.tapes:
                self.drop_tape(last)
            else:
                self.drop_state(last)

    def restart(self) -> None:
        """Drop everything but the state before step 0."""
        for step in [*self.states]:
            if step:
                self.drop_state(step)
        for step in [*self.tapes]:
            self.drop_tape(step)

    def lengths(self, step: int) -> list[int]:
        """Return how long a leaf may be that begins with a step, by the number of states held beside it."""
        own = self.states[step][1] if step in self.states else 0
        free = max(own, self.room - self.used + own)
        tape = self.tape_bytes if self.holds_tapes else free + 1
        found = leaf_lengths(free, self.state_bytes, tape)
        if step == 0:
            # The state before step 0 is held beside the leaf that begins with it.
            found[0] = 1 + max(0, free - own) // tape
        return found

    def planned(self, n: int) -> float:
        """Return how many steps are run, forward and backward, to reverse n of them from the state held."""
        if self.spacing:
            # Every step twice, but for the last stretch, whose tapes are those of the forward run.
            return 2 * n - ((n - 1) % self.spacing + 1)
        return n + planned(n, self.lengths(0))

    def planned_from_states(self, n: int) -> float:
        """Return the same for steps that were run without tapes, from the states that are held."""
        ends = [*sorted(self.states)[1:], n]
        runs: float = n
        used = 0
        for lo, hi in zip(sorted(self.states), ends, strict=True):
            # Those after it have been dropped by then.
            used += self.states[lo][1]
            later, self.used = self.used, used
            runs += hi - lo + planned(hi - lo, self.lengths(lo))
            self.used = later
        return runs


def forward(lo: int, hi: int, held: Holdings) -> Iterator[Action]:
    """Run steps lo .. hi - 1 from the present state, and hold what their reversal begins with."""
    while held.spacing and hi - lo > held.spacing:
        if lo not in held.states:
            yield Action("store", lo)
        yield Action("run", lo, lo + held.spacing)
        lo += held.spacing
    while steps := best_split(hi - lo, lengths := held.lengths(lo)):
        # Without room, where tapes have grown, it is reached from an earlier state again.
        if lo not in held.states and len(lengths) > 1:
            yield Action("hold", lo)
        yield Action("run", lo, lo + steps)
        lo += steps
    if lo and lo in held.states:
        yield Action("drop", lo)
    for t in range(lo, hi):
        # It is held already where a tape after it was too large.
        yield Action("run", t, t + 1) if t in held.tapes else Action("tape", t, hi)


def backward(n: int, held: Holdings) -> Iterator[Action]:
    """Reverse steps 0 .. n - 1 from what is held."""
    hi = n
    while hi:
        if hi - 1 in held.tapes:
            hi -= 1
            yield Action("reverse", hi)
        else:
            lo = max(held.states)
            yield Action("restore", lo)
            yield from forward(lo, hi, held)
