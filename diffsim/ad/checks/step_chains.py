"""The events in the steps of a rollout that float fields without gradient take part in.

Such fields end chains of derivatives (`broken_chains.py`): a value that a step leaves there may be
read by a later step, or after the rollout. Each step is a program of its own, with checks of its own, which
see none of that. So these events are noted, once for all steps that do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import Index
from diffsim.ad.record.entries import Copied, Launched, Wrote
from diffsim.ad.record.entry import Entry
from diffsim.errors import Span
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class StepChains:
    """The events of each step; steps with the same ones have one list.

    Attributes:
        steps: in order, but for those without such events.
    """

    def __init__(self) -> None:
        self.steps: list[list[Entry]] = []
        self._known: dict[tuple[Any, ...], list[Entry]] = {}
        self._events: list[Entry] = []
        self._key: list[Any] = []
        self._takes_part: dict[Specialization, bool] = {}

    def next_step(self) -> None:
        """End a step."""
        if self._events:
            self.steps.append(self._known.setdefault(tuple(self._key), self._events))
            self._events, self._key = [], []

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        """Note a launch."""
        takes_part = self._takes_part.get(special)
        if takes_part is None:
            takes_part = self._takes_part[special] = any(
                m.dtype.is_float and m.grad is None for m in special.ir.mems
            )
        if takes_part:
            parameters = special.arguments.parameters
            given = zip(parameters, args, strict=True)
            arrays = (id(a) for p, a in given if p.kind == "array")
            self._add((special, *arrays), Launched(special, args, args, now, seed))

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        """Note a write from Python, which ends what a field held before if it is one to all elements."""
        if index is None and field.adjoint is None and field.dtype.is_float:
            self._add((Wrote, id(field)), Wrote(field, index, value))

    def copied(self, target: Field, source: Field, to: Index, at: Index) -> None:
        """Note a copy."""
        if target.dtype.is_float and (target.adjoint is None or source.adjoint is None):
            made = Copied(target, source, Span.of_caller(), to, at)
            self._add((Copied, id(target), id(source), to is None), made)

    def _add(self, key: tuple[Any, ...], entry: Entry) -> None:
        # What an entry has is alive, so that no other object gets its identity.
        self._key.append(key)
        self._events.append(entry)
