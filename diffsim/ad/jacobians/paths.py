"""Which outputs of a recorded program can depend on which of its inputs, field by field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diffsim.ad.jacobians.arguments import Pairs
from diffsim.ad.record.entries import Computed, Stored
from diffsim.ad.record.entry import Entry, flat
from diffsim.ad.record.replaced import Replaced
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field


def check_paths(record: Sequence[Entry], pairs: Pairs) -> None:
    """Refuse inputs that lead to no output, and outputs that depend on no input.

    A pair without a path among others that have one is no mistake: its derivatives are 0.
    """
    # Values that go through Python, or through functions of the user's, have ways of their own.
    if any(isinstance(e, (Replaced, Stored, Computed)) for e in record):
        return
    reached = {i: reached_from(record, i) for i in dict.fromkeys(i for i, _ in pairs)}
    joined = [(i, o) for i, o in pairs if o in reached[i]]
    led = {i for i, _ in joined}
    given = {o for _, o in joined}
    for i, _ in pairs:
        if i not in led:
            outputs = ", ".join(o.name for k, o in pairs if k is i)
            raise AutodiffError(
                f"no launch of this function leads from {i.name} to {outputs}: there is nothing to "
                "differentiate",
                Span.of_caller(),
                hint=f"leave {i.name} out of the inputs, or launch the kernels that read it",
            )
    for _, o in pairs:
        if o not in given:
            raise AutodiffError(
                f"{o.name} depends on none of the inputs: there is nothing to differentiate",
                Span.of_caller(),
                hint=f"leave {o.name} out of the outputs, or launch the kernels that compute it",
            )


def reached_from(record: Iterable[Entry], source: Field) -> set[Field]:
    """Return the fields that a field may have an effect on."""
    # Whole fields, and no writes that end an effect: more than there are rather than fewer.
    reached = {source}
    for entry in flat(record):
        if not reached.isdisjoint(entry.reads()):
            reached.update(entry.writes())
    return reached
