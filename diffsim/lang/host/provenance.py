"""The origin of numbers and vectors that Python has read from fields while a tape records.

A value read from a field carries a `Provenance` (`runtime/fields/read_values.py`). Computing with it in
Python would lose its gradient, so whoever consumes such a value asks here first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.ir.op import OpDispatch
from diffsim.lang.host.field_like import is_any_field
from diffsim.lang.host.observations import is_compiled_by_value


def holds_field(thing: object) -> bool:
    """Return whether an object is a field or a list with fields in it, which NumPy would read unrecorded."""
    if isinstance(thing, (list, tuple)):
        return any(t.__class__ not in _BARE and holds_field(t) for t in thing)
    return is_any_field(thing)


# Exact classes that cannot carry an origin: tested first, as almost all operands are of these.
_BARE = frozenset((float, int, bool, str, np.ndarray))


def source_of(thing: object) -> Any:
    """Return the origin of an object, or of one in a list, on the recording tape; None if it has none."""
    if thing.__class__ in _BARE:
        return None
    try:
        return _source_of(thing)
    except RecursionError:  # a list that contains itself: refused where numbers are wanted
        return None


def _source_of(thing: object) -> object:
    if isinstance(thing, (float, OpDispatch, np.ndarray)):
        # `live`: once its tape has ended, a number is a constant like any other.
        found = getattr(thing, "provenance", None)
        return found if found is not None and found.live else None
    if isinstance(thing, dict):
        thing = list(thing.values())
    elif is_compiled_by_value(thing):  # a struct: its members
        thing = thing._as_constant()
    if isinstance(thing, (list, tuple, set, frozenset)):
        for t in thing:
            if t.__class__ not in _BARE and (found := _source_of(t)) is not None:
                return found
    return None


def marked(made: object, *origins: object) -> Any:
    """Return the result, marked with the origin of the first operand that has one."""
    for origin in origins:
        # One origin is enough: it serves to refuse the number, with a line, not to differentiate it.
        if origin.__class__ not in _BARE and (source := source_of(origin)) is not None:
            return source.mark(made)
    return made
