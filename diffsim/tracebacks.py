"""Tracebacks of diffsim's own errors hold the user's frames only.

An error passes through dozens of the package's frames, of which a user has nothing: its text already names
the line at fault. A function that users call therefore catches it once more on its way out, and calls
`leave_package`, before a bare `raise`. A bare `raise` takes the traceback that the exception has and adds no
entry for its own frame, so that what the user sees begins and ends with the user's lines: in terminals,
in `logging`, in pytest and in debuggers alike, without a replaced `sys.excepthook`. The `try` costs nothing
until something is raised.

Functions that are called often write the `try` themselves; all others are decorated with `entry` (or with
`lang.host.signatures.checked`, which does the same). `ds.init(traceback="full")` or DIFFSIM_TRACEBACK=full
keeps all frames.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import traceback
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Any, ClassVar, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OWN_FILES: tuple[str, ...] = (
    _PACKAGE,
    "<diffsim ",
    contextlib.__file__,
    copy.__file__,
    functools.__file__,
)
"""Prefixes of files whose frames are not the user's: the package, launch functions (made at run time), and
modules of the standard library that call diffsim for the user (`with`, `copy`, decorators)."""
_EXAMPLES = os.path.join(_PACKAGE, "examples") + os.sep
"""Where an installed package has the examples, which are users' programs."""


class _OwnFiles(dict[str, bool]):
    """Whether a file is one of these, by name: asked at each write from Python, so each is compared once."""

    def __missing__(self, file: str) -> bool:
        self[file] = own = file.startswith(_OWN_FILES) and not file.startswith(_EXAMPLES)
        return own


IS_OWN = _OwnFiles()


def add_own(folder: str) -> None:
    """Count the files of a library that calls diffsim for the user among those that are not the user's."""
    global _OWN_FILES
    prefix = os.path.abspath(folder) + os.sep
    if prefix not in _OWN_FILES:
        _OWN_FILES += (prefix,)
        IS_OWN.clear()


class Shown:
    """The part of tracebacks shown in this process: the option `traceback` of `ds.init`."""

    full: ClassVar[bool] = False


class UserError(Exception):
    """Base of the errors whose traceback holds the user's frames only."""

    in_full: ClassVar[bool] = False
    """Whether errors of this class always keep all frames, as those of diffsim's own faults do."""

    def leave_package(self) -> None:
        """Remove diffsim's frames from the traceback; those of the user's functions that it called stay."""
        if not (Shown.full or self.in_full):
            self.__traceback__ = _of_user(self.__traceback__)

    def _render_traceback_(self) -> list[str]:
        """Format the error for IPython and notebooks: without their own frames, which come first."""
        shown = self.__traceback__ if Shown.full else _of_user(_in_cell(self.__traceback__))
        text = "".join(traceback.format_exception(type(self), self, shown))
        return text.rstrip().split("\n")


def entry(function: F) -> F:
    """Decorate a function that users call, so that errors leave it without diffsim's frames."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except UserError as error:
            error.leave_package()
            raise

    return cast(F, call)


def entries(names: str = "", *, but: str = "") -> Callable[[C], C]:
    """Decorate a class, methods of which are entries.

    Args:
        names: the methods; if left out, all special ones and all without an underscore.
        but: names of methods that are none, as they write the `try` themselves.
    """

    def decorate(cls: C) -> C:
        excluded = but.split()
        for name in names.split() or [n for n in vars(cls) if _is_public(n)]:
            method = vars(cls)[name]
            plain = isinstance(method, staticmethod)
            function = method.__func__ if plain else method
            wrapped = hasattr(function, "__wrapped__")  # by `checked`
            if isinstance(function, FunctionType) and not wrapped and name not in excluded:
                made = entry(function)
                setattr(cls, name, staticmethod(made) if plain else made)
        return cls

    return decorate


def _is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """Link the entries of a traceback that are the user's to each other; return the first."""
    kept = []
    while trace is not None:
        if not IS_OWN[trace.tb_frame.f_code.co_filename]:
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for one in reversed(kept):
        one.tb_next, following = following, one
    return following


def _in_cell(trace: TracebackType | None) -> TracebackType | None:
    """Skip the frames of IPython that run a cell, and those of the program that started it."""
    found = trace
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        if name.split(".", maxsplit=1)[0] in ("IPython", "ipykernel") and trace.tb_next is not None:
            found = trace.tb_next
        trace = trace.tb_next
    return found
