"""Seeds of a backward pass: losses, and gradients given by the user."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from diffsim.backends.native.pool import closed
from diffsim.errors import AutodiffError, FieldError, MissingGradientError, Span, shown
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.fields.adjoints import lend_adjoint
from diffsim.runtime.fields.conversions import array_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.memory.storage import HOST, HostStorage
from diffsim.runtime.recorder import Recorder
from diffsim.runtime.session import session
from diffsim.tracebacks import IS_OWN


class _Checked:
    """The losses that were checked, by their numbers, as of a count of changes of gradients."""

    # One tuple, replaced as a whole, as other threads ask at any time.
    known: tuple[int, frozenset[int]] = -1, frozenset()


def check_loss(loss: Any) -> None:
    """Refuse an object that cannot be the loss of a tape."""
    # Each turn of a loop asks; whether it has a gradient is all that can change.
    changes, numbers = _Checked.known
    if changes != session.with_grad.changes:
        numbers = frozenset()
    elif loss.__class__ is Field and loss.number in numbers:
        return
    _check_loss(loss)
    if changes != session.with_grad.changes:  # it may have been lent one
        numbers = frozenset()
    _Checked.known = session.with_grad.changes, numbers | {loss.number}


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Field):
        hint = "loss = ds.field(ds.f32, shape=(), needs_grad=True)"
        if isinstance(loss, (int, float, np.generic)):
            hint = f"give the field, not the number in it: {hint}"
        raise FieldError(
            f"the loss is a field of one element, not {describe(loss)}",
            Span.of_caller(),
            hint=hint,
        )
    # A gradient is defined for a scalar function; shape (1,) is one as well.
    if loss.element or loss.shape.count(1) < len(loss.shape):
        raise FieldError(
            f"{loss.name} has shape {loss.shape + loss.element}, and a loss is a single number",
            Span.of_caller(),
            hint="for several outputs use tape.backward(grads={field: seed})",
        )
    _need_floats(loss, "the loss")
    if session.lifts_rules:
        lend_adjoint(loss)
    if loss.adjoint is None:
        raise MissingGradientError(
            f"{loss.name} has no gradient, and is the loss of a tape",
            Span.of_caller(),
            hint="declare it with needs_grad=True",
        ).advising(switch=loss.dtype.is_float)


def _need_floats(f: Field, what: str) -> None:
    """Refuse a field of whole numbers where a derivative is to start."""
    if not f.dtype.is_float:
        raise MissingGradientError(
            f"{f.name} holds whole numbers ({f.dtype}), which have no derivative, and is {what}",
            Span.of_caller(),
            hint="start from a field of floats that is computed without rounding",
        )


def check_value(loss: Any, tape: Recorder) -> None:
    """Refuse a loss that is not a followed number of this tape."""
    if not isinstance(loss, Recorded):
        check_loss(loss)
    if not loss.belongs_to(tape) or loss.array.shape:
        raise AutodiffError(
            "the loss is a value of another tape"
            if not loss.belongs_to(tape)
            else f"the loss has shape {loss.array.shape}, and a loss is a single number",
            Span.of_caller(),
            hint="start from a number that was returned, or computed, on this tape",
        )


def starting_gradients(
    loss: Field | Recorded | None, grads: Mapping[Field, Any] | None, tape: Recorder
) -> dict[Field, Any]:
    """Return the seeds of fields that a pass starts from, the loss among them."""
    # Copied before the pass clears gradients, one of which may be the seed itself.
    seeds = {} if grads is None else {f: of_its_own(seed) for f, seed in grads.items()}
    if loss is None and not seeds:
        raise AutodiffError(
            "a backward pass starts from a loss or from gradients",
            Span.of_caller(),
            hint="write tape.backward(loss) or tape.backward(grads={y: seed})",
        )
    if isinstance(loss, Field):
        check_loss(loss)
        seeds[loss] = 1
    elif loss is not None:
        check_value(loss, tape)
    return seeds


def of_its_own(seed: Any) -> Any:
    """Copy a seed that is a gradient field: the pass would change it, as with `grads={y: y.grad}`."""
    # Other fields and arrays are not written by the pass.
    if not isinstance(seed, Field) or not seed.is_grad:
        return seed
    made = Field(seed.dtype, seed.element, name=seed.name, soa=seed.soa)
    made.place(seed.shape)
    made.copy_from(seed)
    return made


def start_from(f: Any, seed: Any) -> None:
    """Set the gradient of a field to its seed."""
    if isinstance(f, Field):
        _need_floats(f, "given a gradient to start from")
    if not isinstance(f, Field) or f.adjoint is None:
        name = f.name if isinstance(f, Field) else shown(f)
        raise MissingGradientError(
            f"{name} cannot be given a gradient to start from: it has none",
            Span.of_caller(),
            hint="declare it with needs_grad=True",
        )
    # Field to field stays on the device.
    if isinstance(seed, Field):
        f.adjoint.copy_from(seed)
    # A number or one element for the whole field, as in `fill`.
    elif (made := array_of(seed)).ndim == 0 or (f.element and made.shape == f.element):
        f.adjoint.fill(seed)
    else:
        f.adjoint.from_numpy(seed)


def statement(depth: int) -> Any:
    """Return the user's statement, as writers of fields are noted: that many calls further out, or more."""
    frame: Any = sys._getframe(depth + 1)
    while IS_OWN[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def set_number(f: Field, number: int, writer: Any) -> None:
    """Set all elements, as `fill` does in that statement."""
    # Nobody to tell, and nothing to convert: a tape begins and ends with this.
    if session.recorders or f.tree is not None:
        f.fill(number)
        return
    storage: Any = f._storage
    host = storage.__class__ is HostStorage and session._device is HOST
    if host and storage.is_number and not closed[0]:
        storage.flat[0] = number
    else:
        f.storage.fill(number)
    session.clock = now = session.clock + 1
    v = f.versions  # as `Versions.filled`, without a call
    v.latest = v.whole = now
    v.writer, v.cuts, v.dirty = writer, None, number != 0 or f._exported
