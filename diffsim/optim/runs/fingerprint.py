"""The parts of a program, as text: a checkpoint is compared with it before a training goes on.

Functions, kernels and numbers are found by the names that the program's code reads, as far as that is
possible without running it. Comments, the numbers of lines and the values of fields are no part of it.
"""

from __future__ import annotations

import contextlib
import dis
import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from diffsim.lang.host.func import BoundFunc, Func
from diffsim.lang.host.inspection import is_file_of_program, is_ours
from diffsim.runtime.kernels.kernel import BoundKernel, Kernel

_NUMBERS = (bool, int, float, str, bytes, type(None))
_CODE = "code "
_CALLED = (type, FunctionType, MethodType)


def fingerprint(program: Any) -> dict[str, str]:
    """Return the parts of a program by name: numbers as they are, functions as a digest of their code."""
    parts = _Parts()
    parts.add("the program", program)
    # The code of a function differs from one version of Python to the next.
    return {"Python": f"{sys.version_info[0]}.{sys.version_info[1]}", **parts.found}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return in words what has changed from one program to the other."""
    if before.get("Python") != now.get("Python"):
        return []
    words = []
    for name in dict.fromkeys([*before, *now]):
        was, current = before.get(name), now.get(name)
        if was == current:
            continue
        if was is None or current is None:
            words.append(f"{name} is {'new' if was is None else 'gone'}")
        elif was.startswith(_CODE) or current.startswith(_CODE):
            words.append(f"{name} has other code")
        else:
            words.append(f"{name} was {was} and is {current}")
    return words


class _Parts:
    """The parts of one program, as they are found."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._seen: set[int] = set()

    def add(self, name: str, thing: Any, owner: Any = None) -> None:
        """Add what has this name, and what it reads by name; `owner`: the object that it was found in."""
        if _is_number(thing):
            self.found[name] = repr(thing)
            return
        if isinstance(thing, partial):
            for k, argument in enumerate([*thing.args, *thing.keywords.values()]):
                self.add(f"argument {k} of {name}", argument)
            thing = thing.func
        function, owner = _function_of(thing, owner)
        if function is None or not is_file_of_program(function.__code__.co_filename):
            return
        if id(function) not in self._seen:
            self._seen.add(id(function))
            self.found[function.__qualname__] = _CODE + _digest(function.__code__)
            for key, value, place in _read(function, owner):
                self.add(key, value, place)


def _is_number(thing: Any) -> bool:
    parts = thing if isinstance(thing, tuple) else (thing,)
    return all(isinstance(part, _NUMBERS) for part in parts)


def _function_of(thing: Any, owner: Any) -> tuple[FunctionType | None, Any]:
    """Return the Python function behind something that is called, and its `self`."""
    if isinstance(thing, (BoundKernel, BoundFunc)):
        thing, owner = thing.kernel if isinstance(thing, BoundKernel) else thing.func, thing.owner
    if isinstance(thing, (Kernel, Func)):
        return thing.source.function, owner
    if isinstance(thing, MethodType):
        thing, owner = thing.__func__, thing.__self__
    elif not isinstance(thing, (FunctionType, type)) and not is_ours(thing):
        thing, owner = vars(type(thing)).get("__call__"), thing
    return (thing, owner) if isinstance(thing, FunctionType) else (None, None)


def _read(function: FunctionType, owner: Any) -> Iterator[tuple[str, Any, Any]]:
    """Return what a function reads by name, and where that was found.

    What it sets itself is left out: counters change.
    """
    known = {**function.__globals__, **_variables_around(function)}
    read, stored = _names(function.__code__)
    owners = [owner, *(known[name] for name in sorted(read) if name in known)]
    for name in sorted(read - stored):
        if name in known:
            yield name, known[name], None
        for one in owners:
            if one is not None and not is_ours(one) and not isinstance(one, _CALLED):
                yield from ((name, found, one) for found in _kept(one, name))


def _variables_around(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not set yet
            found[name] = cell.cell_contents
    return found


def _kept(owner: Any, name: str) -> list[Any]:
    """Return what an object or its classes have by that name, without running code of the program."""
    spaces = [owner, *type(owner).__mro__] if hasattr(owner, "__dict__") else type(owner).__mro__
    return [vars(space)[name] for space in spaces if name in vars(space)][:1]


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names of variables from outside and of attributes that code reads, and that it sets."""
    read: set[str] = set()
    stored: set[str] = set()
    for step in dis.get_instructions(code):
        if isinstance(step.argval, str) and step.opname.startswith(("STORE_", "DELETE_")):
            stored.add(step.argval)
        elif isinstance(step.argval, str) and step.opname.startswith("LOAD_"):
            read.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _names(inner)
            read, stored = read | more[0], stored | more[1]
    return read, stored


def _digest(code: CodeType) -> str:
    """Return a digest of what code does, without its place in the file."""
    constants = [_digest(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    parts = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
