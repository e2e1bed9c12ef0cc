"""The CUDA context of a program that uses pycuda, where that package is installed.

pycuda has a stack of contexts for each thread; its arrays, streams and modules belong to the context that
was on top of it. So a context that the program has made is adopted. Where there is none yet, pycuda retains
the device's primary context, and what the program makes later (`import pycuda.autoprimaryctx`) is in it too.
That one is never pushed on pycuda's stack: pycuda does not see what other libraries make current, and aborts
where a thread, or Python, ends with a context on the stack.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple


class Context(NamedTuple):
    """A context that pycuda knows.

    Attributes:
        handle: the driver's.
        maker: who made it, in words.
        kept: pycuda's object.
    """

    handle: int
    maker: str
    kept: Any


@functools.cache
def find() -> Any | None:
    """Return the module `pycuda.driver`; None where it is not installed, or does not fit this driver."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("pycuda.driver")
    except (
        Exception
    ):  # its parts are built for one version of CUDA, and fail in many ways with others
        return None


def version() -> str:
    """Return pycuda's version."""
    return str(importlib.import_module("pycuda").VERSION_TEXT)


def open_context(pycuda: Any, device: int, device_of: Callable[[int], int]) -> Context:
    """Return the context on top of pycuda's stack, if it is one of this device; else the primary one.

    Args:
        pycuda: the module `pycuda.driver`.
        device: number of the GPU.
        device_of: the number of the GPU that the context of a handle is on.
    """
    pycuda.init()
    # A context of another device is of no use: its memory and modules are out of reach.
    made = pycuda.Context.get_current()
    if made is not None and device_of(made.handle) == device:
        return Context(made.handle, f"pycuda {version()}, in the program's context", _forever(made))
    kept = pycuda.Device(device).retain_primary_context()
    return Context(kept.handle, f"pycuda {version()}", _forever(kept))


def _forever(context: Any) -> Any:
    """Keep an object of pycuda alive: its destructor calls the driver, which fails while the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(context))
    return context
