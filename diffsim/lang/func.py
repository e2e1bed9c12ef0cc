"""`@ds.func`, and `@ds.data_oriented`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from diffsim.errors import DiffsimError, Span
from diffsim.lang.source import Source

C = TypeVar("C", bound=type)


class Func:
    """A function for use inside of kernels; each call is translated in place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.source = Source(function, "func")
        functools.update_wrapper(self, function)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else BoundFunc(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise DiffsimError(
            f"{self.source.name} is a ds.func: it can be called inside of kernels and funcs only",
            Span.of_caller(),
            hint="call it from a @ds.kernel",
        )


class BoundFunc:
    """A func taken from an object: `self` is that object."""

    def in_words(self) -> str:
        return f"the func {self.func.source.name}"

    def __init__(self, func: Func, owner: Any) -> None:
        self.func = func
        self.owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)


def func(function: Callable[..., Any]) -> Func:
    """Decorate a function so that kernels (and other funcs) can call it.

    Arguments are passed by value; fields, functions and other Python objects as they are. A func may
    return one value or a tuple, from anywhere in its body.
    """
    return Func(function)


def data_oriented(cls: C) -> C:
    """Decorate a class whose methods are kernels or funcs, so that `self.x` works inside of them.

    The marker changes nothing in the class; numbers and fields reached through `self` are compiled in.
    """
    cls._diffsim_data_oriented = True  # type: ignore[attr-defined]
    return cls
