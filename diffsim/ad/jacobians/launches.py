"""The launches of a tape, each as a function with inputs and outputs of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from diffsim.ad.jacobians.arguments import Mask, Subject, masked
from diffsim.ad.record.entries import Launched
from diffsim.ad.tape import Tape
from diffsim.errors import ArgumentError, Span, shown
from diffsim.runtime.fields.field import Field


def launches_of(tape: Any, what: str) -> list[tuple[int, Launched]]:
    """Return the launches of a tape, with their numbers."""
    if not isinstance(tape, Tape):
        raise ArgumentError(
            f"{what} takes a tape, not {shown(tape)}",
            Span.of_caller(),
            hint="record one: with ds.Tape() as tape: ...",
        )
    # Functions with gradients of their own are left out: their launches are no entries of the tape.
    return list(enumerate(e for e in tape.entries if isinstance(e, Launched)))


def subject_of(entry: Launched, mask: Mask) -> Subject | None:
    """Return one launch as something to check; None: it has no gradients."""
    # The plain kernel: on a saving tape the entry has its in-place variant.
    special, args = entry.special.origin, entry.args
    named: dict[Field, str] = {}
    groups = []
    for accesses in (special.accesses.reads, special.accesses.writes):
        fields = [(special.object_of(a.mem, args), a.mem.name) for a in accesses]
        found = dict(_with_gradient(fields))
        # In the kernel a parameter has its own name; a captured field has that of the field.
        named |= found
        groups.append(list(found))
    ins, outs = groups
    if not ins or not outs:
        return None
    names = {name: f for f, name in named.items()}
    pairs = masked(mask, ins, outs, names)
    return Subject(functools.partial(special.launch_again, *args), ins, outs, pairs, names)


def _with_gradient(things: Iterable[tuple[Any, str]]) -> Iterator[tuple[Field, str]]:
    return ((f, n) for f, n in things if isinstance(f, Field) and f.grad is not None)
