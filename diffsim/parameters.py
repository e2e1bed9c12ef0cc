"""Parameters of functions, and of ops and intrinsics, which are objects with signatures as functions have.

Those of objects are written as in a `def`: "cond, x1, x2", or "*args, dtype=None".
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

if sys.version_info >= (3, 14):
    import annotationlib

T = TypeVar("T")


@functools.cache
def signature_of(parameters: str) -> inspect.Signature:
    """Return the signature with these parameters."""
    return inspect.signature(eval(f"lambda {parameters}: None"))


def signature_of_function(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a program's function, whose annotations may name what is not defined.

    From Python 3.14 on such names are evaluated when they are asked for: those imported for type checkers
    alone never are.
    """
    if sys.version_info >= (3, 14):
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    else:  # which mypy leaves out where it is not taken
        return inspect.signature(function)


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
