"""Snapshots of the start of a recorded piece of program, to run it again with other inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.overwrite_saves import Saved
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class StartSnapshot:
    """The values of fields before a piece of program first wrote to them, and its random number count."""

    def __init__(self) -> None:
        self.saved: dict[Field, Saved] = {}
        self.launches = session.launches

    def note(self, f: Any) -> None:
        """Copy a field, unless it was copied before."""
        # The first copy is from the start; later ones would be from the middle.
        if isinstance(f, Field) and f not in self.saved:
            self.saved[f] = Saved((f, None))

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> None:
        """Copy the fields that a launch is about to write to."""
        for a in special.accesses.writes:
            self.note(special.object_of(a.mem, args))

    def values(self, f: Field) -> np.ndarray:
        """Return the field's values at the start, as `to_numpy` does, in f64."""
        return self.saved[f].array().reshape(f.shape + f.element).astype(np.float64)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Restore the start for the time of the block, and the present values after it."""
        now: list[Saved] = []
        launches, session.launches = session.launches, self.launches
        # The repetition is an experiment and must leave no entries.
        tape, session.tape = session.tape, None
        try:
            for saved in self.saved.values():
                # Appended before the restore: if it fails, everything changed so far is in `now`.
                now.append(Saved(saved.box))
                saved.restore()
            yield
        finally:
            session.tape, session.launches = tape, launches
            for saved in now:
                saved.restore()


def perturb(start: StartSnapshot, by: Mapping[Field, np.ndarray]) -> None:
    """Set fields to their values at the start plus a step."""
    for f, step in by.items():
        f.from_numpy((start.values(f) + step).astype(f.dtype.numpy))


def run_perturbed(
    function: Callable[[], Any],
    start: StartSnapshot,
    by: Mapping[Field, np.ndarray],
    outs: Sequence[Field],
) -> list[np.ndarray]:
    """Return the outputs of the function for perturbed inputs, and restore all fields."""
    # Restores the fields, and the random number key: both ends of a step must draw the same numbers.
    with start.again():
        perturb(start, by)
        function()
        return [f.to_numpy(dtype=np.float64) for f in outs]
