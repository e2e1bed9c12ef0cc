"""Adjoints for fields without gradient that a launch stores derivatives to (`ds.init(rules="lifted")`)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from diffsim.errors import AutodiffError
from diffsim.runtime.fields.adjoints import lend_adjoint
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


def lend_adjoints(special: Specialization, args: tuple[Any, ...]) -> bool:
    """Give adjoints to the fields without gradient that a launch stores derivatives to, if there are any."""
    if not special.differentiable or special.mode.is_detached:
        return False
    try:
        leaks = special.derivative.activity.leaks
    except AutodiffError:  # a gradient of a gradient: refused where the gradient is asked for
        return False
    found = [special.object_of(s.mem, args) for s in leaks]
    # All of them at once: each time the kernels are compiled anew.
    lent = [f for f in found if isinstance(f, Field) and lend_adjoint(f)]
    return bool(lent)


def fix_activity(special: Specialization) -> None:
    """Determine what is active in a launch now: fields that are lent adjoints later hold constants yet."""
    # What the analysis refuses is refused where the gradient is asked for.
    with contextlib.suppress(AutodiffError):
        if special.differentiable:
            special.derivative.refusal  # noqa: B018 - made now, as the next line's
        special.derivative.activity  # noqa: B018
