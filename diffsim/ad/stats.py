"""The size of a tape: `tape.stats()`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diffsim.ad.record.entry import fields_of
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.record.scope import Scope
from diffsim.ad.recorder import TapeRecorder
from diffsim.runtime.fields.adjoints import is_lent
from diffsim.runtime.observe.profiler import measured
from diffsim.runtime.observe.time_table import TimeTable


@dataclass(frozen=True, slots=True)
class TapeStats:
    """Size of a tape.

    Attributes:
        entries: what was recorded.
        saved: copies of overwritten values; `saved_bytes`: their size.
        adjoint_bytes: size of what was made for adjoints: gradients of fields that have none
            (`ds.init(rules="lifted")`), and states of fields between the loops of a kernel.
        held_bytes: what solves keep for their adjoints (matrices, factorisations, solutions), and
            checkpointed rollouts.
        kernels: with `ds.init(kernel_profiler=True)`, the times of each kernel, forward and in backward
            passes; `rows` has them one by one, `plot()` draws them.
    """

    entries: int
    saved: int
    saved_bytes: int
    adjoint_bytes: int = 0
    held_bytes: int = 0
    kernels: TimeTable = field(default_factory=TimeTable, repr=False, compare=False)


def stats_of(recorder: TapeRecorder, passes: Sequence[tuple[int, int]] = ()) -> TapeStats:
    """Count what a recorder has recorded; `passes`: readings of the clock around each backward pass."""
    record = recorder.recorded()
    saved = sum(isinstance(e, Saved) for e in record.firsts())
    scopes = sum(isinstance(e, Scope) for e in record.firsts())
    lent = [f for f in fields_of(record.firsts()) if is_lent(f)]
    return TapeStats(
        len(record) - saved - scopes,
        saved,
        recorder.saver.bytes,
        sum(f.storage.layout.nbytes for f in lent) + _version_bytes(recorder),
        sum(e.held_bytes for e in record.firsts() if isinstance(e, Replaced)),
        measured([(record.base, max(recorder.integrity.ended_at, record.base)), *passes]),
    )


def _version_bytes(recorder: TapeRecorder) -> int:
    """Return how much memory the adjoints have for states between the loops of their kernels."""
    if not recorder.saving:
        return 0
    specials = {entry.special_to_reverse() for entry in recorder.recorded().firsts()}
    return sum(s.derivative.version_bytes for s in specials if s is not None)
