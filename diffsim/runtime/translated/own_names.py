"""The meanings that diffsim's names had after its import: a program may put others in their place.

A translation asks no questions of diffsim's own modules and classes, so no description tells what a
program has put into them: nothing is kept from then on.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from diffsim.lang.types.matrix import Matrix
from diffsim.lang.types.vector import Vector
from diffsim.runtime.fields.field import Field

_MODULES = (
    "diffsim diffsim.math diffsim.types diffsim.lang.builtins.glsl diffsim.lang.builtins.quaternions"
).split()
# What Python itself adds to the names of a module or class: when annotations are asked for, at a warning.
_OF_PYTHON = ("__annotations__", "__annotations_cache__", "__warningregistry__")
_at_first: list[tuple[Mapping[str, Any], dict[str, Any]]] = []


def remember() -> None:
    """Note what the names mean; called once, when diffsim has been imported."""
    modules = [sys.modules[name] for name in _MODULES]
    classes = dict.fromkeys(c for kind in (Field, Matrix, Vector) for c in kind.__mro__[:-1])
    _at_first.extend((vars(home), dict(vars(home))) for home in (*modules, *classes))


def changed() -> bool:
    """Return whether a program has given one of them another meaning, or added a name."""
    return any(_differs(now, first) for now, first in _at_first)


def _differs(now: Mapping[str, Any], first: dict[str, Any]) -> bool:
    if not all(map(operator.is_, map(now.get, first), first.values())):
        return True
    # A submodule becomes an attribute where it is imported.
    return len(now) != len(first) and any(
        not (isinstance(x, ModuleType) and sys.modules.get(f"diffsim.{name}") is x)
        for name, x in now.items()
        if name not in first and name not in _OF_PYTHON
    )
