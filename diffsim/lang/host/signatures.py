"""Checks of arguments that users pass: errors with the user's line, and the name that was meant."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from diffsim.errors import ArgumentError, KernelTypeError, Span, shown
from diffsim.lang.host import peer_names
from diffsim.lang.host.unsupported import close_to
from diffsim.tracebacks import UserError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def checked(function: F) -> F:
    """Decorate a function that users call: a call that does not fit its parameters is reported at their line.

    Only a TypeError of the call itself is replaced, not one from inside the function.
    """

    # Signature and documentation remain those of the function, for `help` and editors.
    @functools.wraps(function)
    def call(*args: object, **named: object) -> Any:
        try:
            try:
                return function(*args, **named)
            except TypeError as problem:
                # A call that does not fit fails before the function has a frame of its own, so the traceback
                # ends here. This costs nothing while calls are right, unlike `signature.bind` for each call.
                trace = problem.__traceback__
                if isinstance(problem, UserError) or (trace and trace.tb_next):
                    raise  # from inside the function
                error = _misfit(function, args, named, str(problem))
            # Outside `except`, so that the TypeError is not shown as its context.
            raise error
        except UserError as shown_error:
            shown_error.leave_package()
            raise

    return cast(F, call)


CALL = checked(lambda: None).__code__
"""The code object that all functions made by `checked` share: searches for the caller skip its frames."""


def checked_methods(names: str = "") -> Callable[[C], C]:
    """Decorate a class whose methods users call.

    Args:
        names: which methods; if left out, `__init__` and all without an underscore.
    """

    def decorate(cls: C) -> C:
        for name in names.split() or [n for n in vars(cls) if _is_method(cls, n)]:
            method = vars(cls)[name]
            # Wrapping the function inside a staticmethod, which itself is an object and no function.
            plain = isinstance(method, staticmethod)
            made = checked(method.__func__ if plain else method)
            setattr(cls, name, staticmethod(made) if plain else made)
        return cls

    return decorate


def _is_method(cls: type, name: str) -> bool:
    public = name == "__init__" or not name.startswith("_")
    return public and isinstance(vars(cls)[name], (FunctionType, staticmethod))


def _misfit(
    function: Callable[..., Any],
    args: tuple[object, ...],
    named: Mapping[str, object],
    problem: str,
) -> KernelTypeError:
    """Return the error for a call of a function that does not fit."""
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")
    if "self" in signature.parameters and args:
        # Of the object's class, which may have the method from another one.
        name = f"{type(args[0]).__name__}.{function.__name__}".removesuffix(".__init__")
    return misfit(name, signature, args, named, problem)


def misfit(
    name: str,
    signature: inspect.Signature,
    args: tuple[object, ...],
    named: Mapping[str, object],
    problem: str,
) -> KernelTypeError:
    """Return the error for a call that does not fit what is called `name`."""
    # As the user sees the call.
    known = [p for p in signature.parameters.values() if p.name != "self" and p.name[0] != "_"]
    texts = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in known]
    hint = f"its parameters are {', '.join(texts)}" if texts else "call it without arguments"
    for given in named:
        if given not in signature.parameters:
            # 1. A keyword that does not exist, probably misspelled. 2. Anything else, in Python's words.
            close = close_to(given, [p.name for p in known])
            if close:
                hint = f"did you mean {close}=?"
            return KernelTypeError(
                f"{name} has no parameter {given}",
                Span.of_caller(),
                peer_names.KEYWORDS.get(given, hint),
            )
    try:
        signature.bind(*args, **named)
    except TypeError as why:
        problem = str(why)
    return KernelTypeError(f"this call does not fit {name}: {problem}", Span.of_caller(), hint)


def need_function(thing: object, what: str, hint: str) -> None:
    """Refuse objects that cannot be called."""
    if not callable(thing):
        raise ArgumentError(
            f"{what} is a function, and {shown(thing)} cannot be called", Span.of_caller(), hint
        )


def need_number(thing: Any, what: str, hint: str = "give a number, such as 1e-3") -> None:
    """Refuse objects that are not numbers; None means the default."""
    # bool is a subclass of int, but `eps=True` is a mistake. NaN fails the comparison below as well.
    right = isinstance(thing, (int, float, np.integer, np.floating)) and not isinstance(thing, bool)
    number = thing.item() if isinstance(thing, np.generic) else thing  # 1e300 is no f32
    if thing is not None and not (right and abs(number) < 1e300):
        raise ArgumentError(f"{what} is a number, not {shown(thing)}", Span.of_caller(), hint)


def need_whole(thing: object, what: str, hint: str = "give a whole number") -> None:
    """Refuse objects that are not integers; None means the default."""
    if thing is not None and (isinstance(thing, bool) or not isinstance(thing, (int, np.integer))):
        raise ArgumentError(f"{what} is a whole number, not {shown(thing)}", Span.of_caller(), hint)


def need_count(thing: Any, what: str, least: int, hint: str | None = None) -> None:
    """Refuse objects that are not integers from `least` on."""
    whole = isinstance(thing, (int, np.integer)) and not isinstance(thing, bool)
    if not (whole and thing >= least):
        raise ArgumentError(
            f"{what} is a whole number from {least} on, not {shown(thing)}",
            Span.of_caller(),
            hint or f"write {what}={least}, or a greater number",
        )


def need_bool(thing: object, what: str) -> None:
    """Refuse objects other than True and False."""
    if not isinstance(thing, (bool, np.bool_)):
        raise ArgumentError(
            f"{what} is True or False, not {shown(thing)}", Span.of_caller(), f"write {what}=True"
        )


def need_size(n: object) -> None:
    """Refuse sizes that a vector or matrix cannot have."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not 1 <= n < 2**16:
        raise ArgumentError(
            f"a vector or matrix has 1 or more elements along an axis, not {shown(n)}",
            Span.of_caller(),
            hint="write ds.Vector.zero(ds.f32, 3), ds.Matrix.identity(ds.f32, 3); larger things are fields",
        )


def is_one_of(thing: object, *choices: str) -> bool:
    """Return whether it is one of these texts; arrays, whose `==` is no bool, may be asked too."""
    return isinstance(thing, str) and thing in choices


def need_path(thing: object, what: str) -> None:
    """Refuse objects that cannot name a file."""
    if not isinstance(thing, (str, os.PathLike)) or not str(thing):
        raise ArgumentError(
            f"{what} is a text, not {shown(thing)}", Span.of_caller(), 'give a name: "out/result"'
        )
