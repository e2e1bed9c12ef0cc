"""The options of a tape: refused before anything is recorded."""

from __future__ import annotations

import numpy as np

from diffsim.errors import OptionError, Span, shown
from diffsim.lang.host.signatures import is_one_of, need_bool


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
