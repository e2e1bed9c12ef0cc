"""The name that a program has for an object: of the variable, attribute or list element bound to it.

Nothing is noted when fields are made or assigned, which therefore costs nothing: the frames of the running
program are searched where a message needs a name.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType, FunctionType, ModuleType

from diffsim.ir.nodes import Mem
from diffsim.lang.host.field_like import is_field, is_struct_field
from diffsim.tracebacks import IS_OWN

_MOST_FRAMES = 50
_MOST_ELEMENTS = 100  # of a list or dictionary that is searched
_MOST_PARTS = 10_000  # of all variables of a namespace: some milliseconds
_OWN_REFERENCES = 3  # to a frame's dictionary: the frame's, a variable's and an argument's
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_NO_NAMES = re.compile(r"__\w*|_+|_[oid]h|_i*\d*|Out|In")
"""Variables of Python's own, and those in which notebooks keep what cells showed."""


def name_of(thing: object) -> str:
    """Return the name that the innermost function of the program has for an object; "" if there is none."""
    for frame in _frames():
        for space in (_locals_of(frame), frame.f_globals):
            if found := _variable(thing, space) or _part(thing, space):
                return found
    return ""


def lasting_name_of(thing: object) -> str:
    """Return the name that the object has longest: of a global variable, if there is one."""
    frames = list(_frames())
    # The outermost function that knows it comes first: those further in have it as an argument.
    spaces = [_globals_of(frames), *(_locals_of(frame) for frame in reversed(frames))]
    names = (search(thing, space) for search in (_variable, _part) for space in spaces)
    return next(filter(None, names), "")


def name_in_launch(mem: Mem, thing: object) -> str:
    """Return the program's name for a memory of a kernel, which in a launch is that of an object.

    A field has it in the kernel's IR already; an array argument has the parameter's there.
    """
    if mem.kind != "array" or not is_field(thing):
        return mem.name
    return getattr(thing, "given_name", "") or name_of(thing) or mem.name


def _frames() -> Iterator[FrameType]:
    """Return the frames of the program, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        if not _is_of_libraries(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _is_of_libraries(file: str) -> bool:
    """Return whether a file is not the program's: diffsim's, of the standard library, or installed."""
    return IS_OWN[file] or file.startswith(_STANDARD_LIBRARY) or "site-packages" in file


def _locals_of(frame: FrameType) -> dict[str, object]:
    """Return the local variables of a function that runs."""
    snapshot = frame.f_locals
    found = dict(snapshot)
    # Before Python 3.13 the frame keeps this dictionary, and what is in it stays alive after `del x`. It is
    # emptied if nobody else has it (a program that called `locals()`), nor a debugger reads it back.
    if (
        sys.version_info < (3, 13)
        and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        and sys.getrefcount(snapshot) <= _OWN_REFERENCES
        and sys.gettrace() is None
    ):
        snapshot.clear()
    return found


def _globals_of(frames: list[FrameType]) -> dict[str, object]:
    """Return the global variables of the program's modules, those of the innermost function last."""
    return {k: v for frame in frames for k, v in list(frame.f_globals.items())}


def _variables(space: dict[str, object]) -> list[tuple[str, object]]:
    """Return the variables of a namespace that a program has named."""
    # A copy, as another thread may assign.
    return [
        (k, v) for k, v in list(space.items()) if k.isidentifier() and not _NO_NAMES.fullmatch(k)
    ]


def _variable(thing: object, space: dict[str, object]) -> str:
    """Return the name of a variable that is an object."""
    return next((name for name, value in _variables(space) if value is thing), "")


def _part(thing: object, space: dict[str, object]) -> str:
    """Return how the object is reached from a variable: `self.x`, `xs[2]`, `state["x"]`, `x.grad`."""
    parts = (
        (name + suffix, part) for name, value in _variables(space) for suffix, part in _parts(value)
    )
    return next((path for path, part in islice(parts, _MOST_PARTS) if part is thing), "")


def _parts(holder: object, *, outer: bool = True) -> Iterator[tuple[str, object]]:
    """Return the attributes or elements of an object, each with how a program writes it."""
    if is_field(holder) or is_struct_field(holder):
        yield from _parts_of_field(holder)
        return
    for suffix, part in _members(holder):
        yield suffix, part
        if is_field(part) or is_struct_field(part):
            inside = _parts_of_field(part)
        elif outer and part.__class__ in (list, tuple, dict):  # `self.layers[2]`
            inside = _parts(part, outer=False)
        else:
            continue
        for inner, one in inside:
            yield suffix + inner, one


def _parts_of_field(field: object) -> Iterator[tuple[str, object]]:
    """Return the gradient and duals of a field, and the members of a field of structs."""
    if is_struct_field(field):
        for name, member in field._struct.items():
            yield f".{name}", member
            for inner, one in _parts_of_field(member):
                yield f".{name}{inner}", one
        return
    if getattr(field, "adjoint", None) is not None:
        yield ".grad", field.adjoint  # type: ignore[attr-defined]
    for dual in getattr(field, "duals", {}).values():
        yield ".dual", dual


def _members(holder: object) -> Iterator[tuple[str, object]]:
    # Exact classes, and the dictionary of attributes itself: nothing of the program's runs.
    if holder.__class__ in (list, tuple):
        for k, part in enumerate(holder[:_MOST_ELEMENTS]):
            yield f"[{k}]", part
    elif holder.__class__ is dict:
        for key, part in list(holder.items())[:_MOST_ELEMENTS]:
            if key.__class__ in (str, int):
                yield f"[{key!r}]", part
    elif not isinstance(holder, type) and not _is_of_library(holder):
        try:
            attributes = object.__getattribute__(holder, "__dict__")
        except Exception:  # a class without one, or of the program's own making
            return
        if attributes.__class__ is dict:
            for name, part in list(attributes.items()):
                yield f".{name}", part


def _is_of_library(holder: object) -> bool:
    """Return whether an object is a function, a module or one of diffsim's: nothing that a program fills."""
    kind = type(holder)
    return (
        kind in (FunctionType, ModuleType)
        or str(getattr(kind, "__module__", "")).split(".")[0] == "diffsim"
    )
