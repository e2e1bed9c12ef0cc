"""Parameters of functions that are objects: ops and intrinsics have signatures, as Python's functions do.

They are written as in a `def`: "cond, x1, x2", or "*args, dtype=None".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


@functools.cache
def signature_of(parameters: str) -> inspect.Signature:
    """Return the signature with these parameters."""
    return inspect.signature(eval(f"lambda {parameters}: None"))


def placed(
    parameters: str, args: Sequence[T], named: Mapping[str, T]
) -> tuple[list[T], dict[str, T]]:
    """Move arguments given by name to their places, as far as those before them are given.

    What stays named is a parameter that has no place, or a mistake, which the function itself reports.
    """
    found, left = list(args), dict(named)
    for parameter in list(signature_of(parameters).parameters.values())[len(found) :]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.name not in left:
            break
        found.append(left.pop(parameter.name))
    return found, left
