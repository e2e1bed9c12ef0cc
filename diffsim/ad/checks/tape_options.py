"""The options of a tape: refused before anything is recorded."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from diffsim.errors import MissingGradientError, OptionError, Span, shown
from diffsim.lang.host.signatures import is_one_of, need_bool
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField


def check_options(
    in_place: object, clear_gradients: object, *, validation: object, check_nan: object
) -> None:
    """Refuse options that a tape cannot have, alone or together."""
    if clear_gradients is True and in_place is None and validation is check_nan is False:
        return  # as nearly all tapes are made
    if in_place is not None and not is_one_of(in_place, "refuse", "save"):
        raise OptionError(
            f"in_place={shown(in_place)} is not possible",
            Span.of_caller(),
            hint='it is "refuse" or "save"',
        )
    need_bool(clear_gradients, "clear_gradients")
    need_bool(validation, "validation")
    if not isinstance(check_nan, (bool, np.bool_)) and not is_one_of(check_nan, "nan"):
        problem = f"check_nan={shown(check_nan)} is not possible"
        raise OptionError(problem, Span.of_caller(), hint='it is True, False or "nan" (NaN alone)')
    # Validation refuses every write to what was read; saving is for programs that do just that.
    if in_place == "save" and validation:
        raise OptionError(
            'validation=True refuses what in_place="save" allows',
            Span.of_caller(),
            hint="leave one of them out",
        )


def fields_to_compare(
    given: Any, loss: Field | None, retained: bool | Collection[Field], *, cleared: bool
) -> list[Field]:
    """Validate the argument `grad_check`: the fields whose gradients are compared with differences."""
    if given is None:
        return []
    where = Span.of_caller()
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    fields: list[Any] = []
    for f in listed:
        members = f.fields() if isinstance(f, StructField) else [f]
        fields += [m for m in members if m.grad is not None] if len(members) > 1 else members
    if any(not isinstance(f, Field) for f in fields):
        raise OptionError(
            f"grad_check is a list of fields, not {shown(given)}",
            where,
            hint="write grad_check=[x, y]",
        )
    for f in fields:
        if f.grad is None:
            raise MissingGradientError(
                f"{f.name} has no gradient to compare",
                where,
                hint="declare it with needs_grad=True",
            )
    if fields and (loss is None or not cleared):
        raise OptionError(
            "grad_check compares gradients that one block computes, and this tape has "
            + ("no loss" if loss is None else "clear_gradients=False"),
            where,
            hint="write ds.Tape(loss, grad_check=[x]); or call ds.ad.gradcheck for a function",
        )
    # What is retained is the gradient of the value stored last, and a difference moves the first.
    if retained is True or any(f in retained for f in fields if retained):
        raise OptionError(
            "grad_check compares gradients of values at the start of the block, and retain_grad keeps those "
            "of values stored in it",
            where,
            hint="leave one of them out for these fields",
        )
    return [f for f in dict.fromkeys(fields) if f is not loss]
