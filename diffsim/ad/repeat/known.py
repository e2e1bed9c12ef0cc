"""Results of the checks before a backward pass, which need not be computed again.

They have found nothing wrong. Most of them depend on the entries of the record and their order, and on which
fields have gradients: they hold for each further pass, for replays, and for recordings that repeat this one.
Everything that depends on the contents of memory is checked before each pass or by each adjoint
(docs/adr/0062).
"""

from __future__ import annotations

from typing import Any

from diffsim.ad.record.entries import Launched, Stored, Wrote, all_written
from diffsim.ad.record.entry import Entry
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.record import Record
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.versions import Versions
from diffsim.runtime.session import session


class Known:
    """Known facts about a record.

    Attributes:
        asks: whether index fields decide, at each pass, whether the adjoints are right.
        changes: the count of changes of gradients (`Session.with_grad`) as of which it holds.
        by_arguments: whether what was found depends on the values of arguments.
        gradients: the versions of the gradients of what the program wrote.
        follows: whether there may be numbers of Python's that the tape follows.
        writes: whether Python writes to fields in it.
    """

    __slots__ = (
        "_count",
        "_more",
        "_reached",
        "asks",
        "by_arguments",
        "changes",
        "follows",
        "gradients",
        "writes",
    )

    def __init__(self, record: Record) -> None:
        firsts = list(record.firsts())
        reversed_ = {e.special_to_reverse() for e in firsts}
        checks = [special.derivative.checks for special in reversed_ if special is not None]
        self.asks = any(c is not None and c.reads for c in checks)
        # Copies of what launches overwrite are no events of the program.
        self.writes = not all(isinstance(e, (Launched, Saved)) for e in firsts)
        # Which elements launches use before Python writes to them decides which of them are inputs.
        some = any(c is not None for c in checks)
        self.by_arguments = some or (self.writes and any(map(_takes_whole_numbers, firsts)))
        self.follows = not all(map(_is_plain, firsts))
        computes = not all(map(_is_memory, firsts))
        # Objects of their own: they keep no field alive.
        adjoints = (f.adjoint for f in all_written(firsts))
        self.gradients: list[Versions] = [g.versions for g in adjoints if g is not None]
        self._reached: set[int] = set()
        self._more = computes
        self._count = len(record)
        self.changes = session.with_grad.changes

    def holds(self, record: Record) -> bool:
        """Return whether the record has no more entries, and fields and kernels are such as they were."""
        return self.changes == session.with_grad.changes and self._count == len(record)

    def suffices(self, record: Record, loss: Field) -> bool:
        """Return whether a pass from this loss needs no further check, but `asks`."""
        return loss.number in self._reached and self.suffices_for_others(record)

    def suffices_for_others(self, record: Record) -> bool:
        """Return the same of any loss that the record is known to lead to."""
        if self.changes != session.with_grad.changes or self._count != len(record):
            return False
        return not (self._more or record.may_use_reads)

    def leads_to(self, loss: Any) -> bool:
        """Return whether it is known that the record leads to this loss."""
        return isinstance(loss, Field) and loss.number in self._reached

    def note_loss(self, loss: Any) -> None:
        """Note that the record leads to this loss."""
        if isinstance(loss, Field):
            self._reached.add(loss.number)

    def has_leftovers(self) -> bool:
        """Return whether the gradient of something that the program wrote may be other than 0."""
        for versions in self.gradients:  # noqa: SIM110 - twice as fast as `any`
            if versions.dirty:
                return True
        return False


def _takes_whole_numbers(entry: Entry) -> bool:
    """Return whether arguments may decide which elements a launch uses: floats are no indices."""
    if not isinstance(entry, Launched):
        return False
    parameters = entry.special.arguments.parameters
    return any(p.kind == "value" and not (p.type and p.type.is_float) for p in parameters)


def _is_plain(entry: Entry) -> bool:
    if isinstance(entry, Launched):
        return entry.returned is None and entry.undetached is None
    return isinstance(entry, (Wrote, Saved))


def _is_memory(entry: Entry) -> bool:
    """Return whether the gradient flows through memory alone, if not from what a kernel has returned."""
    if isinstance(entry, Launched):
        return entry.undetached is None
    return isinstance(entry, (Wrote, Saved)) and not isinstance(entry, Stored)
