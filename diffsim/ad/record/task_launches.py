"""Kernels that a saving tape launches task by task (`passes/autodiff/split_tasks.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diffsim.errors import KernelSimplicityError
from diffsim.ir.nodes import Mem
from diffsim.passes.autodiff.split_tasks import split_tasks, temporaries
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.specialization import Specialization


class TaskLaunches:
    """The tasks of a kernel as kernels of their own, launched in order.

    Attributes:
        parts: these kernels; none: the kernel is launched as a whole.
    """

    def __init__(self, whole: Specialization) -> None:
        self._fields: list[Field] = []  # kernels keep none alive
        self.parts: Sequence[Specialization] = ()
        if whole.may_be_split and not (_has_adjoint(whole) or _is_refused_for_its_shape(whole)):
            parts = self._split(whole)
            # Where that does not help either, the whole kernel's refusal says more.
            if all(map(_has_adjoint, parts)):
                self.parts = parts

    @classmethod
    def of(cls, whole: Specialization) -> TaskLaunches:
        """Return how a kernel is launched on a saving tape."""
        found: TaskLaunches | None = whole.variants.get(cls)
        if found is None:
            found = whole.variants[cls] = cls(whole)
        return found

    def launch(self, *args: Any) -> None:
        """Launch the kernel: each part is reported to the tape by itself."""
        # The first part checks what the kernel captured, and where that has changed nothing was launched.
        self.parts[0].launch(*args)
        try:
            for part in self.parts[1:]:
                part.launch_again(*args)
        except BaseException:  # an interrupt may come between two parts, of which none reports it
            self.parts[0].cut_short()
            raise

    def _split(self, whole: Specialization) -> list[Specialization]:
        fields = {m: self._field(m, whole) for m in temporaries(whole.ir)}
        return [whole.part(k, ir) for k, ir in enumerate(split_tasks(whole.ir, fields))]

    def _field(self, temporary: Mem, whole: Specialization) -> Mem:
        """Return the memory of a field that takes the place of a temporary."""
        t = temporary.dtype
        made = Field(t.scalar, t.shape, name=temporary.name)
        if temporary in whole.derivative.activity.temps:
            made.add_grad(declared=False)
        made.place(())
        self._fields.append(made)
        return made._mem


def saved_as(special: Specialization) -> Sequence[Specialization]:
    """Return what a saving tape records a launch of a kernel as: it, or its tasks one by one."""
    return TaskLaunches.of(special).parts or (special.in_place,)


def _has_adjoint(special: Specialization) -> bool:
    """Whether its gradient is one that a saving tape can give."""
    if not special.differentiable:
        return True
    derivative = special.in_place.derivative
    # One that not every launch can be given is for kernels that cannot be split.
    return derivative.refusal is None and derivative.is_for_every_launch


def _is_refused_for_its_shape(special: Specialization) -> bool:
    """Whether it promises to be simple and is not, though each of its tasks may be."""
    refusal = special.in_place.derivative.refusal
    return refusal is not None and any(isinstance(e, KernelSimplicityError) for e in refusal.parts)
