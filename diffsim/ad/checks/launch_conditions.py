"""Launches whose adjoint would be wrong for their arguments, or for what index fields held.

An adjoint asks for itself before it runs (`runtime/kernels/launch_checks.py`). Asked here before the backward
pass begins, a refusal leaves all gradients as they were, and every launch on the record can be heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from diffsim.ad.record.elements import Box
from diffsim.ad.record.entries import Launched
from diffsim.ad.record.record import Record
from diffsim.ad.record.task_launches import saved_as
from diffsim.errors import AutodiffError, GlobalDataAccessError
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.launch_checks import LaunchChecks
    from diffsim.runtime.kernels.specialization import Specialization


def wrong_launches(record: Record) -> Iterator[AutodiffError]:
    """Yield for each condition that a kernel's adjoint has the error of the first launch that fails it.

    A launch whose index fields have changed since is left to the backward pass, in which they may return to
    what they were.
    """
    firsts = (e for e in record.firsts() if isinstance(e, Launched))
    for special in dict.fromkeys(e.special for e in firsts if e.special.differentiable):
        derivative = special.derivative
        if derivative.refusal is None:
            asked = [derivative.checks]
        else:  # what would be asked if no rule refused it
            asked = [part.derivative.checks_if_lifted for part in saved_as(special)]
        for checks in asked:
            if checks is not None:
                yield from _first_failures(record, special, checks)


def _first_failures(
    record: Record, special: Specialization, checks: LaunchChecks
) -> Iterator[AutodiffError]:
    """Yield the errors of the first launches that fail the conditions of a kernel."""
    known: set[int] = set()
    for entry in _suspects(record, special, checks):
        # What is wrong in one launch may be so in a thousand others, and another thing in the last one only.
        if len(known) == len(checks.conditions):
            return
        if checks.may_be_asked(entry.args, entry.now):
            for number, error in checks.failures(entry.args, known):
                known.add(number)
                yield _with_advice(error, special, entry.args)


def _with_advice(
    error: GlobalDataAccessError, special: Specialization, args: tuple[Any, ...]
) -> AutodiffError:
    """Return the error with the advice to lift the rule, where a tape that saves has the gradient."""
    if not error.narrower:
        return error
    for derivative in (part.derivative for part in saved_as(special)):
        if derivative.refusal is not None or (derivative.checks and derivative.checks.fail(args)):
            return error
    return error.advising(switch=not session.options.lifts_rules)


def _suspects(record: Record, special: Specialization, checks: LaunchChecks) -> Iterator[Launched]:
    """Yield the launches of a kernel for which the tests of arguments alone do not hold."""
    places, rows = record.launches_of(special)
    for k in sorted(places[failed] for failed in checks.failing(rows)):
        entry = record[k]
        assert isinstance(entry, Launched)
        yield entry


def fixed_launches(
    record: Record, changed: Callable[[Box, int], bool], now: int
) -> list[tuple[LaunchChecks, tuple[Any, ...]]] | None:
    """Return the launches to ask before each pass of a replayed record.

    None if an index field does not stay as it is: a native program cannot stop to ask where it has its old
    values back.

    Args:
        record: the record.
        changed: whether a part of a field was written after a reading of the record's clock.
        now: the reading at the end of the record.
    """
    found: list[tuple[LaunchChecks, tuple[Any, ...]]] = []
    launched = (e.special for e in record.firsts() if isinstance(e, Launched))
    checked = {s for s in launched if s.differentiable and s.derivative.checks is not None}
    # Nearly all kernels have no conditions.
    for entry in reversed(record) if checked else ():
        if isinstance(entry, Launched) and entry.special in checked:
            checks = entry.special.derivative.checks
            assert checks is not None
            boxes = [entry.special.box(a, entry.args) for a in checks.reads]
            if any(b is not None and changed(b, now) for b in boxes):
                return None
            if boxes:
                found.append((checks, entry.args))
        now -= entry.ticks
    return found
