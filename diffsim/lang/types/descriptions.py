"""How error messages name objects, and what they advise to write instead.

Classes of diffsim describe themselves by a method `in_words`; `describe` knows everything else.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.ir.nodes import Value
from diffsim.ir.op import Op
from diffsim.ir.types import ScalarType, TensorType, an
from diffsim.lang.host.field_like import is_field
from diffsim.lang.host.inspection import is_ours, name_of
from diffsim.lang.host.intrinsic import Intrinsic
from diffsim.lang.types.matrix import Matrix


def describe(thing: object) -> str:
    """Describe an object in the user's words, with its article."""
    # From the most to the least specific. Only exact knowledge
    # of a class is used: `repr` of an object may fail.
    if isinstance(thing, Value):
        return an(thing.type)
    # From the class, since `getattr` of the object may run code of the program.
    words = getattr(type(thing), "in_words", None)
    if words is not None:
        return str(words(thing))
    if thing is None or isinstance(thing, (str, bool)):
        return repr(thing)
    if isinstance(thing, (int, float, np.generic)):
        return f"the number {shown(thing)}"
    if isinstance(thing, (tuple, list, dict, set, range, slice)):
        return f"a {type(thing).__name__}"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if is_field(thing):
        return f"the field {thing._mem.name}"
    if isinstance(thing, (ScalarType, TensorType)):
        return f"the type {thing}"
    if isinstance(thing, Matrix):
        return f"the constant {thing}" if len(repr(thing)) < 40 else "a constant matrix"
    if isinstance(thing, np.ndarray):
        return f"a NumPy array of shape {thing.shape}"
    if isinstance(thing, types.ModuleType):
        return f"the module {thing.__name__}"
    if callable(thing):
        return f"the function {called(thing)}"
    return f"an object of class {type(thing).__name__}"


def called(function: object) -> str:
    """Return the name of a function as the user writes it."""
    # Ops are public under `ds.` with the name of their row.
    if isinstance(function, Op):
        return f"ds.{function.name}"
    name = name_of(function)
    return f"ds.{name}" if isinstance(function, Intrinsic) else str(name)


def sample(field: Any, name: str = "") -> str:
    """Write an element of a field with one index per axis: "x[i, j]"."""
    mem = field._mem
    return f"{name or mem.name}[{', '.join('ijklmnop'[: mem.rank]) or None}]"


def advice(thing: object) -> str:
    """Advise what to write in place of an object that is not a number."""
    if is_field(thing):
        return f"name an element: {sample(thing)}"
    number_hint = getattr(type(thing), "number_hint", None)
    if number_hint is not None:
        return str(number_hint(thing))
    if thing is None:
        return "give a number; a func without return gives None"
    # A function where a number is wanted: the parentheses were forgotten.
    named = callable(thing) or (is_ours(thing) and hasattr(thing, "__name__"))
    if named and not isinstance(thing, (type, ScalarType, TensorType, types.ModuleType)):
        return f"call it: {called(thing)}(...)"
    return "kernels compute with numbers, vectors and matrices"
