"""The recorder of second derivatives: a tape of launches that compute tangents (docs/adr/0046).

Each launch is one of the kernel with its tangents, as in forward mode, and it is recorded, as on a tape. Its
adjoint computes the tangents of the gradients besides. Duals are saved and restored with what they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from diffsim.ad.record.elements import Index
from diffsim.ad.record.entries import Stopped
from diffsim.ad.record.entry import Entry
from diffsim.ad.record.task_launches import TaskLaunches
from diffsim.ad.recorder import TapeRecorder
from diffsim.ad.tangent_recorder import TangentRecorder
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import FieldElement, Provenance
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.kernels.derivative import Direction
from diffsim.runtime.recorder import SECOND_DERIVATIVES, Pull

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class SecondOrderRecorder(TapeRecorder):
    """Records a program together with its tangents.

    Attributes:
        forward: computes the tangents.
        tangents: how many.
    """

    work = SECOND_DERIVATIVES

    def __init__(self, width: int, inputs: Sequence[Field]) -> None:
        self.forward = TangentRecorder(width, inputs, Direction.SECOND)
        self.tangents = width
        self._seen: set[Specialization] = set()
        super().__init__(saving=True)

    def keep(self, *, saving: bool, lifting: bool) -> None:
        super().keep(saving=True, lifting=lifting)

    # ---- launches

    def launching(
        self, special: Specialization, args: tuple[Any, ...]
    ) -> Specialization | TaskLaunches | None:
        if self.lifting and special not in self._seen:
            self.lend(special, args)
        if special not in self._seen:
            self._seen.add(special)
            special.accesses.divide(args)
        split = TaskLaunches.of(special)
        if split.parts:
            return split
        found = self.forward.launching(special, args)
        if self.snapshot is not None:
            self.snapshot.launching(special, args)
        found.accesses.divide(args)
        self.save(found, args)
        return found

    def returned(self, result: tuple[Any, np.ndarray]) -> Recorded:
        made = super().returned(result[0])
        made.tangent = result[1]
        found: Recorded = made
        return found

    # ---- writes from Python

    def writing(self, field: Field, row: int | None) -> None:
        super().writing(field, row)
        self._save_dual(field, row)

    def _save_dual(self, field: Field, row: int | None) -> None:
        dual = field.duals.get(self.tangents)
        if dual is not None:
            mine, its = field.versions, dual.versions
            alike = (mine.axis, mine.block) == (its.axis, its.block)
            self.record.extend(self.saver.before_write(dual, row if alike else None))

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.forward.wrote(field, index, value)
        super().wrote(field, index, value)

    def wrote_constant(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        """As `wrote`, of what is declared constant: it is no input, whose seed would be its tangent."""
        self.forward.clear_tangents(field, index)
        super().wrote(field, index, value)

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        self.forward.copied(target, source, to, at)
        super().copied(target, source, to, at)

    def stopped(self, field: Field) -> None:
        self._save_dual(field, None)
        self.forward.stopped(field)
        self.recorded().append(Stopped(field, None, field))

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        _refuse_values(f"{field.name} is given a number that a kernel returned")

    def computed(
        self, made: Recorded, parts: Sequence[tuple[Recorded | FieldElement, Pull]]
    ) -> None:
        _refuse_values("Python computes with a number that a kernel returned")

    def append(self, entry: Entry) -> None:
        raise AutodiffError(
            "this has an adjoint of its own, and no second derivatives",
            Span.of_caller(),
            hint="do it in kernels, or in ds.ad.no_grad(), where what it computes is constant",
        )

    # ---- what makes no entry

    def read_out(self, source: Provenance) -> int:
        self.forward.read_out(source)
        return super().read_out(source)

    def declared_constant(self) -> None:
        self.forward.declared_constant()
        super().declared_constant()

    def cut_short(self, what: str, span: Span | None) -> None:
        self.forward.cut_short(what, span)
        super().cut_short(what, span)

    def written_elsewhere(self, f: Any, who: str, span: Span | None) -> None:
        self.forward.written_elsewhere(f, who, span)
        super().written_elsewhere(f, who, span)


def _refuse_values(what: str) -> NoReturn:
    raise AutodiffError(
        f"{what}, which has no second derivatives",
        Span.of_caller(),
        hint="let the kernel store its result into a 0-D field, and read that in kernels",
    )
