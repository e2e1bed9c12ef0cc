"""Compiled-in arguments: their keys among specializations, and the objects a specialization depends on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import KernelTypeError, Span
from diffsim.lang.types.matrix import Matrix
from diffsim.lang.types.structs import Struct
from diffsim.runtime.fields.component_field import ComponentField
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField

_CONSTANTS = frozenset((int, bool, str, type(None)))
"""Classes whose objects are equal only if they are compiled in alike."""


def template_key(a: object, name: str) -> Any:
    """Return the key of a compiled-in argument: constants by value, other objects by identity."""
    try:
        return _key(a)
    except RecursionError:
        raise KernelTypeError(
            f"{name} is a list or dictionary that holds itself",
            Span.of_caller(),
            hint="take it apart, or give an object with attributes",
        ) from None


def _key(a: object) -> Any:
    if isinstance(a, Field):
        # Its number, not its address, which a later field may get.
        return a.number
    if isinstance(a, (bool, int, float, str)) or a is None:
        # The class is a part of the key: True, 1 and 1.0 are equal, and compile to different types. `repr`
        # also gives NaN a key that equals itself; `hex`, as `repr` of an int with more than 4300 digits
        # raises.
        return (type(a), hex(a) if type(a) is int else repr(a))  # -0.0 is not 0.0
    if isinstance(a, StructField):
        return tuple(f.number for f in a.fields())
    if isinstance(a, ComponentField):
        return ("component", a.base.number, *a.component)
    if isinstance(a, (list, tuple)):
        # Subclasses (named tuples) are types of their own to the frontend.
        return (type(a), *map(_key, a))
    if isinstance(a, dict):
        # In order, as a kernel may loop over the dictionary.
        return (dict, *((_key(k), _key(v)) for k, v in a.items()))
    if isinstance(a, (set, frozenset)):
        return (type(a), frozenset(map(_key, a)))
    if isinstance(a, range):
        # Ranges are equal if their elements are; the bounds may still differ.
        return a, a.stop
    if isinstance(a, (np.ndarray, np.generic)) and a.dtype.kind in "biuf":
        # By value: arrays are compiled in as constants, and change in place.
        return (type(a), a.dtype, a.shape, a.tobytes())
    if isinstance(a, Matrix):
        return (Matrix, a.typed, *_key(a.entries))
    if isinstance(a, Struct):
        return tuple(map(_key, a._as_constant()))
    return _Identity(a)


def constant_key(a: object) -> Any:
    """Return a key of a constant that is cheap to make, for the launch functions that a kernel knows.

    Raises:
        KeyError: it takes more than a look at its class.
    """
    if a.__class__ in _CONSTANTS:
        return a.__class__, a
    raise KeyError


def own(a: Any) -> Any:
    """Copy the dictionaries in a compiled-in argument, whose key is made of what is in them now."""
    if type(a) is dict:
        # The translation may ask for elements again at each launch; the program's dictionary may change after
        # the key was made.
        return {k: own(v) for k, v in a.items()}
    if type(a) in (list, tuple):
        made = [own(v) for v in a]
        if any(new is not old for new, old in zip(made, a, strict=True)):
            return type(a)(made)
    return a


def objects_in(a: object) -> list[Any]:
    """Return the fields and other objects whose identity is part of a compiled-in argument's key."""
    if isinstance(a, StructField):
        return a.fields()
    if isinstance(a, ComponentField):
        return [a.base]
    if isinstance(a, dict):
        a = list(a.values())
    if isinstance(a, (list, tuple)):
        return [o for e in a for o in objects_in(e)]
    if isinstance(a, (np.ndarray, Matrix, Struct, set, frozenset, range)):  # known by their values
        return []
    try:
        weakref.ref(a)
    # Numbers and texts have no weak references, and need none: their keys are their values.
    except TypeError:
        return []
    return [a]


class _Identity:
    """An object as a part of a key; no later one at the same address is taken for it."""

    __slots__ = ("number", "thing")

    def __init__(self, thing: object) -> None:
        self.number = id(thing)
        self.thing: Callable[[], Any]
        # The number alone would do if addresses were not given again; the weak reference tells whether the
        # object is still that one.
        try:
            self.thing = weakref.ref(thing)
        except TypeError:
            # Without weak references (an object with `__slots__`): the key keeps it alive, which is safe.
            self.thing = lambda: thing

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identity):
            return False
        # A dead object equals nothing, so that its specialization is never found again.
        mine = self.thing()
        return mine is not None and mine is other.thing()
