"""Overwrites the gradients of a failed backward pass with NaN.

Such a pass leaves sums that lack some of their terms, indistinguishable from gradients. So they are
overwritten when it fails; a pass that does not fail pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from diffsim.runtime.session import session
from diffsim.runtime.threads import members

ZERO = "x.grad.fill(0) sets one of them to 0."
_NOTE = "The gradients that this was to compute are NaN now."
# A user may press Ctrl-C repeatedly.
_MOST_TRIES = 3


def written_since(clock: int) -> list[Any]:
    """Return the gradients that were written after that reading of the clock."""
    # Only gradients that something has added to since: others still hold what they held.
    found = (f.adjoint for f in members(session.with_grad))
    return [g for g in found if g is not None and g.versions.latest > clock]


def poison(error: BaseException, gradients: Callable[[], Iterable[Any]], hint: str) -> None:
    """Set gradients to NaN, since `error` ended what was to compute them; the error says so.

    Another error meanwhile, such as a second Ctrl-C, does not keep it from doing so; where nothing can be
    written any more (a GPU that is lost), nothing can be read either.
    """
    # Without duplicates: fields are compared by identity.
    left = list(dict.fromkeys(_tried(gradients) or ()))
    if not left:
        return
    for gradient in left:
        # Each by itself: one that fails must not keep the others from being overwritten.
        _tried(gradient.spoil)
    # A nested backward pass may have added the note already.
    if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{_NOTE} {hint}")


def _tried(act: Callable[[], Any]) -> Any:
    """Call a function until it does not fail, and return its result."""
    for _ in range(_MOST_TRIES):
        try:
            return act()
        except BaseException:  # the first error is the one that is raised
            continue
    return None


def _report_late(error: BaseException, clock: int) -> None:
    """Set to NaN what was written after a failure that a GPU reports late, at this reading of the clock."""
    poison(error, lambda: written_since(clock), ZERO)


# Registered here, as the device belongs to a room below this one and cannot name fields.
session.on_device_failure = _report_late
