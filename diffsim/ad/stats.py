"""What a tape holds: `tape.stats()`."""

from __future__ import annotations

from dataclasses import dataclass

from diffsim.ad.record.entry import fields_of
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.scope import Scope
from diffsim.ad.recorder import TapeRecorder
from diffsim.runtime.fields.adjoints import is_lent


@dataclass(frozen=True, slots=True)
class TapeStats:
    """Size of a tape.

    Attributes:
        entries: what was recorded.
        saved: copies of overwritten values; `saved_bytes`: their size.
        adjoint_bytes: size of what was made for adjoints: gradients of fields that have none
            (`ds.init(rules="lifted")`), and states of fields between the loops of a kernel.
    """

    entries: int
    saved: int
    saved_bytes: int
    adjoint_bytes: int = 0


def stats_of(recorder: TapeRecorder) -> TapeStats:
    """Count what a recorder has recorded."""
    record = recorder.recorded()
    saved = sum(isinstance(e, Saved) for e in record.firsts())
    scopes = sum(isinstance(e, Scope) for e in record.firsts())
    lent = [f for f in fields_of(record.firsts()) if is_lent(f)]
    return TapeStats(
        len(record) - saved - scopes,
        saved,
        recorder.saver.bytes,
        sum(f.storage.layout.nbytes for f in lent) + _version_bytes(recorder),
    )


def _version_bytes(recorder: TapeRecorder) -> int:
    """Return how much memory the adjoints have for states between the loops of their kernels."""
    if not recorder.saving:
        return 0
    specials = {entry.special_to_reverse() for entry in recorder.recorded().firsts()}
    return sum(s.derivative.version_bytes for s in specials if s is not None)
