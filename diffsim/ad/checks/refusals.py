"""All refusals of a program at once, as one error that is ordered by line.

What the rules forbid shows up in four places: kernels that have no adjoint, launches whose arguments or index
fields make it wrong, values that get into fields without gradient, and values that a launch needs and a later
one has overwritten. Where a gradient is refused for one of them, all four are searched, and what the first
step of a checkpointed rollout was refused for is said too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from diffsim.ad.checks.broken_chains import broken_chains
from diffsim.ad.checks.launch_conditions import wrong_launches
from diffsim.ad.record.entries import Launched
from diffsim.ad.record.recorded_writes import RefusedLaunches
from diffsim.errors import AutodiffError, GlobalDataAccessError, together
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.ad.record.record import Record
    from diffsim.runtime.kernels.specialization import Specialization

_LATER = "change it after the backward pass, or in the block of the tape"


def refuse_program(record: Record, *, saving: bool, ended_at: int) -> None:
    """Refuse a record that breaks rules, before any gradient changes.

    Args:
        record: the entries.
        saving: whether the tape saves what is overwritten.
        ended_at: the clock's reading at the end of its last block.

    Raises:
        AutodiffError: all that is refused.
    """
    refused = refusals(record)
    if refused:
        raise together([*refused, *_stale_reads(record, saving=saving, ended_at=ended_at)])
    for special in _specials_to_reverse(record):
        special.derivative.launch  # noqa: B018 - compiled now


def refusals(record: Record) -> list[AutodiffError]:
    """Return why the record has no gradient, but for values that were overwritten after their launch."""
    adjoints = (special.derivative.refusal for special in _specials_to_reverse(record))
    return [
        *broken_chains(record),
        *(refusal for refusal in adjoints if refusal is not None),
        *wrong_launches(record),
        *(refusal for entry in record.firsts() for refusal in entry.refusals()),
    ]


def with_others(
    error: BaseException, record: Record, *, saving: bool, ended_at: int
) -> BaseException:
    """Return the error of an adjoint that found a value overwritten, with all others like it."""
    if not isinstance(error, GlobalDataAccessError) or not any(
        isinstance(e, GlobalDataAccessError) and e.written_at is not None for e in error.parts
    ):
        return error
    found = list(_stale_reads(record, saving=saving, ended_at=ended_at))
    return together(found) if found else error


def _specials_to_reverse(record: Record) -> Iterable[Specialization]:
    """Return the kernels whose adjoints the backward pass runs."""
    # Each once: many entries, few kernels.
    found = dict.fromkeys(entry.special_to_reverse() for entry in record.firsts())
    return [special for special in found if special is not None]


def _stale_reads(record: Record, *, saving: bool, ended_at: int) -> Iterator[AutodiffError]:
    """Yield each value that an adjoint needs and that was overwritten after its launch."""
    refused = RefusedLaunches(record)
    # On the way back a tape that saves restores what was there, which is not known before.
    for entry in () if saving else record:
        if not isinstance(entry, Launched) or not entry.special.differentiable:
            continue
        derivative = entry.special.derivative
        if derivative.refusal is not None:
            continue
        now = refused.reading(derivative, entry.args, entry.now)
        checks = derivative.checks
        for stale in derivative.stale_reads(entry.args, now):
            if stale.written_at is None:  # nothing lifts it
                yield stale
                continue
            # Only writes in its block are seen by a tape.
            if stale.written_at > ended_at:
                yield stale.advising_to(_LATER)
                continue
            # Launches whose indices are others by now may be refused for these, too: nobody can ask them.
            asked = checks is None or checks.may_be_asked(entry.args, entry.now)
            yield stale.advising(switch=asked and not session.options.lifts_rules)
