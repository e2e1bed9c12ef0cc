"""Facts about arbitrary objects, found without running code of the program such as `__getattr__`."""

from __future__ import annotations

import os
import types
from pathlib import Path

import numpy as np

_ARRAY_FUNCTION = type(np.sum)  # NumPy's functions that know of other kinds of arrays
# Classes of Python and NumPy whose `__name__` and `__module__` are plain attributes.
_NAMED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    np.ufunc,
    _ARRAY_FUNCTION,
)
# Code in these folders is not the program's. `os` is in the standard library's folder.
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARIES = (_PACKAGE, os.path.dirname(os.__file__), os.path.dirname(np.__file__))


def is_ours(thing: object) -> bool:
    """Return whether it is diffsim's own object, class or module, which programs do not change."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__.partition(".")[0] == "diffsim"
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__module__.partition(".")[0] == "diffsim"


def name_of(function: object) -> str:
    """Return the name of a function or class; of an object of the program, the name of its class."""
    known = isinstance(function, (type, *_NAMED)) or is_ours(function)
    return str(
        getattr(function, "__name__", type(function).__name__) if known else type(function).__name__
    )


def home_of(function: object) -> str:
    """Return the package that a function or class is from; "" if only its own code could tell."""
    if isinstance(function, (np.ufunc, _ARRAY_FUNCTION)):
        return "numpy"
    if isinstance(function, (type, *_NAMED)) or is_ours(function):
        return (getattr(function, "__module__", "") or "").partition(".")[0]
    return ""


def is_of_program(problem: Exception) -> bool:
    """Return whether code of the program raised it: a property, or a method such as `__bool__`."""
    trace = problem.__traceback__
    # The innermost frame is the one that raised.
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_LIBRARIES)


def is_file_of_program(file: str) -> bool:
    """Return whether a source file is the program's own, not of diffsim, Python or an installed library."""
    return not file.startswith((_PACKAGE, os.path.dirname(os.__file__))) and not any(
        f"{os.sep}{folder}{os.sep}" in file for folder in ("site-packages", "dist-packages")
    )
