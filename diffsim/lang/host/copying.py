"""How `copy`, `deepcopy` and `pickle` (and so `multiprocessing`) treat diffsim's objects.

Vectors, matrices and structs are values, and copied. Kernels, funcs and struct types are found by their name
in a module, as functions and classes are. Fields are copied with what they hold (`runtime/fields/copies.py`).
What is known by identity alone, such as a tape, is refused.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from diffsim.errors import ArgumentError, DiffsimError, Span


class Named:
    """Base of objects that are their own copy, and pickled by name."""

    # One definition, one object: observations compare funcs by identity.
    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> Any:
        module, name = self.__module__, self.__qualname__  # type: ignore[attr-defined]
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        # Pickle would find another object under the name when it
        # loads: an error now is better than a wrong one then.
        if found is not self:
            raise DiffsimError(
                f"{name} cannot be pickled (nor sent to another process): that is done by name, and "
                f"{module}.{name} is something else or not there",
                Span.of_caller(),
                hint="define it at the top of a module, under the name that its def or class line gives",
            )
        return name


class Bound:
    """Base of methods taken from an object: copied with the object, as Python's methods are."""

    __slots__ = ()
    owner: Any
    __name__: str

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return getattr(copy.deepcopy(self.owner, memo), self.__name__)

    def __reduce__(self) -> Any:
        # As Python pickles bound methods: the owner, and the name to read from it.
        return getattr, (self.owner, self.__name__)


def refuse(what: str, because: str, hint: str) -> ArgumentError:
    """Return the error for an object that has no copies."""
    return ArgumentError(
        f"{what} cannot be copied by copy or deepcopy, nor pickled: {because}",
        Span.of_caller(),
        hint,
    )
