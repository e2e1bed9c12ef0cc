"""Where gradients of fields go: adjoints that tapes lend, and values from Python that would have none.

A field that is stored to on the way from the inputs to the loss needs memory for its gradient. Where the
program has not declared any, a tape makes it with `ds.init(rules="lifted")`, for itself: `x.grad` stays None,
as the sum in it leaves out the launches before the first such store. Kernels add to a lent adjoint and use it
up as they do with any other one (docs/adr/0029).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import MissingGradientError, Span
from diffsim.ir.op import Tracked
from diffsim.lang.host.provenance import source_of
from diffsim.runtime.fields.read_values import Provenance
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field

_borrowers: weakref.WeakSet[Field] = weakref.WeakSet()


def lend_adjoint(f: Field) -> bool:
    """Give a float field without gradient an adjoint; returns whether it is a new one."""
    if f.adjoint is not None or f.is_grad or not f.dtype.is_float:
        return False
    _borrowers.add(f)
    f.add_grad(declared=False)
    return True


def is_lent(f: Field) -> bool:
    """Return whether the field's gradient is one that the program did not declare."""
    return f.adjoint is not None and not f.declares_grad


def take_back() -> None:
    """Take all lent adjoints away: the next session may enforce the rules."""
    for f in members(_borrowers):
        if is_lent(f):
            f.adjoint = f._mem.grad = None
            session.with_grad.discard(f)
    _borrowers.clear()


session.at_reset.append(take_back)


# ---- values that Python writes


def followed_by_tape(f: Field, value: Tracked) -> Tracked | None:
    """Return a value that is written to a field, if a tape is to follow it there."""
    if not value.follows():
        return None
    if session.options.lifts_rules:
        lend_adjoint(f)
    if f.adjoint is None and f.dtype.is_float:  # the derivative would have nowhere to go
        raise MissingGradientError(
            f"{f.name} is given a value that depends on something with a gradient, and has none "
            "itself: the chain of derivatives would break here without a word",
            Span.of_caller(),
            hint=f"declare {f._found_name or 'it'} with needs_grad=True, or store a constant: value.value",
        ).advising()
    return value


def lost_source(f: Field, value: Any) -> Provenance | None:
    """Return the field with a gradient that Python made a value of; None: there is none.

    Numbers are refused where the field has one too. Of arrays the tape is told: the user may record how their
    gradient flows (`tape.record_func`).
    """
    source: Provenance | None = source_of(value)
    if source is None or not f.dtype.is_float or f.is_grad:
        return None
    if f.adjoint is not None and not isinstance(value, np.ndarray):
        source.refuse(f.name, "do this in a kernel (a copy: ds.copy)")
    return source
