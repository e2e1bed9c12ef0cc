"""Kernels that store conditions for their adjoints (`passes/kept/conditions.py`).

A tape that saves launches them in place of kernels that would have it copy what they overwrite.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from diffsim.ad.record.elements import Box
from diffsim.ad.record.overwrite_saves import Reach, nbytes
from diffsim.ir import nodes
from diffsim.ir.nodes import Arg, Load, Mem
from diffsim.ir.traversal import task_statements
from diffsim.ir.types import u8
from diffsim.passes.autodiff.reverse import Adjoint
from diffsim.passes.forms.args_from_fields import load_args_from_fields
from diffsim.passes.kept.conditions import Condition, Forms, find_conditions, with_conditions
from diffsim.runtime import compiler
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.derivative import Derivative, Direction
from diffsim.runtime.kernels.specialization import Specialization
from diffsim.runtime.locked_cached_property import locked_cached_property


class KeepingSpecialization(Specialization):
    """A kernel that stores conditions, in place of one whose adjoint would need what it overwrites.

    Args:
        whole: that kernel, for tapes that save.
        forms: what is launched, and what is differentiated.
        kept: the fields that conditions are stored to; each launch stores them anew, so a tape copies them
            behind it.
    """

    def __init__(self, whole: Specialization, forms: Forms, kept: tuple[Field, ...]) -> None:
        super().__init__(
            whole.kernel,
            (*whole.key, "conditions"),
            whole.translation,
            forms.launched,
            whole.arguments,
            whole.simplicity,
            mode=dataclasses.replace(whole.mode, is_in_place=True),
        )
        self.kept = kept
        self.forms = forms
        self.part_of = whole.part_of or (whole, 0)

    @locked_cached_property
    def derivative(self) -> Derivative:
        return _KeepingDerivative(self, self.mode)

    def with_arguments_from(self, fields: Mapping[Arg, Mem]) -> Specialization:
        launched, differentiated = (
            load_args_from_fields(form, fields).replace(args=form.args) for form in self.forms
        )
        assert self.part_of is not None
        made = KeepingSpecialization(self.part_of[0], Forms(launched, differentiated), self.kept)
        made.part_of = self.part_of
        made.loads_arguments = True
        return made


class _KeepingDerivative(Derivative):
    """The derivative of the form that loads its conditions."""

    specialization: KeepingSpecialization

    @property
    def primal(self) -> nodes.Kernel:
        return self.specialization.forms.differentiated

    def _made(self, *, strict: bool, in_place: bool) -> Adjoint:
        # The kernel as it stands has been found simple enough, and its derivative needs no versions.
        return compiler.differentiate(
            self.primal, strict=False, detached=False, in_place=True, new_version=None
        )


# ---- which kernels

_MOST = 16
"""Conditions of a kernel; with more of them a copy is as short."""


def keeping(special: Specialization, args: tuple[Any, ...]) -> KeepingSpecialization | None:
    """Return what a saving tape launches in place of a kernel; None: the kernel itself.

    Decided at the first launch that overwrites what its adjoint needs.
    """
    if KeepingSpecialization not in special.variants:
        own = Reach.of(special.in_place).own(args) if _may_keep(special) else {}
        if not own:
            return None
        special.variants[KeepingSpecialization] = _made(special, args, _size(own))
    found: KeepingSpecialization | None = special.variants[KeepingSpecialization]
    return found


def known_keeping(special: Specialization) -> KeepingSpecialization | None:
    """Return what was decided at an earlier launch."""
    found: KeepingSpecialization | None = special.variants.get(KeepingSpecialization)
    return found


def _may_keep(special: Specialization) -> bool:
    ir, mode = special.ir, special.mode
    usual = mode.direction is Direction.REVERSE and not mode.is_detached
    # Launches of one kernel for other arrays may run at the same time, in other threads.
    arrays = any(m.kind == "array" for m in ir.mems)
    plain = special.instrumentation is None and special.backend.name != "python"
    returns = ir.result is not None or special.translation.uses_random
    keeps = isinstance(special, KeepingSpecialization) or special.loads_arguments
    if not (special.differentiable and usual and plain) or arrays or returns or keeps:
        return False
    derivative = special.in_place.derivative
    return derivative.refusal is None and bool(derivative.restored)


def _made(
    special: Specialization, args: tuple[Any, ...], copied: int
) -> KeepingSpecialization | None:
    """Return the kernel with conditions stored, if they take at most half of the memory that they spare."""
    found = find_conditions(special.ir, special.in_place.derivative.restored)
    if not 0 < len(found) <= _MOST:
        return None
    made = _with(special, found)
    derivative = made.derivative
    # What only a launch can decide would be asked of the form that is not launched.
    if derivative.refusal is not None or derivative.checks is not None:
        return None
    loaded = {s.mem for t in derivative.ir.tasks for s in task_statements(t) if isinstance(s, Load)}
    used = [c for c, f in zip(found, made.kept, strict=True) if f._mem in loaded]
    made = made if len(used) == len(found) else _with(special, used)
    spared = copied - _size(Reach.of(made).own(args))
    return made if used and 2 * _size((f, None) for f in made.kept) <= spared else None


def _with(special: Specialization, conditions: list[Condition]) -> KeepingSpecialization:
    fields = tuple(_field(c) for c in conditions)
    memories: dict[Any, Mem] = {c.value: f._mem for c, f in zip(conditions, fields, strict=True)}
    return KeepingSpecialization(special, with_conditions(special.ir, memories), fields)


def _field(condition: Condition) -> Field:
    made = Field(u8, (), name=condition.value.hint or "a condition")
    made.place(condition.shape)
    return made


def _size(boxes: Iterable[Box]) -> int:
    return sum(map(nbytes, boxes))
