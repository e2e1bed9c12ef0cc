"""Going back to the start of a piece of program, to run it again with other values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.overwrite_saves import Saved
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class StartSnapshot:
    """What fields held before a piece of program wrote to them, and where its random numbers began."""

    def __init__(self) -> None:
        self.saved: dict[Field, Saved] = {}
        self.launches = session.launches

    def note(self, f: Any) -> None:
        """Keep what the field holds, unless it was kept before."""
        if isinstance(f, Field) and f not in self.saved:
            self.saved[f] = Saved((f, None))

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> None:
        """A launch is about to write."""
        for a in special.accesses.writes:
            self.note(special.object_of(a.mem, args))

    def values(self, f: Field) -> np.ndarray:
        """What the field held, as `to_numpy` gives it, in f64."""
        return self.saved[f].array().reshape(f.shape + f.element).astype(np.float64)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """From here on the fields hold what they held at the start; afterwards what they hold now."""
        now: list[Saved] = []
        launches, session.launches = session.launches, self.launches
        tape, session.tape = session.tape, None
        try:
            for saved in self.saved.values():
                now.append(Saved(saved.box))
                saved.restore()
            yield
        finally:
            session.tape, session.launches = tape, launches
            for saved in now:
                saved.restore()


def perturb(start: StartSnapshot, by: Mapping[Field, np.ndarray]) -> None:
    """Move fields away from where they were at the start."""
    for f, step in by.items():
        f.from_numpy((start.values(f) + step).astype(f.dtype.numpy))
