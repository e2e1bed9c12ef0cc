"""Cached properties that are computed once, whichever threads of Python access them."""

from __future__ import annotations

import gc
import sys
from typing import Any

from diffsim import locks

# One lock for all: making a value compiles kernels, which needs values of others, so that one lock for each
# would deadlock between threads.
_lock = locks.rlock()
locks.finish_before_fork(lambda: _lock)
_DEEPEST = 20_000
"""Python's recursion limit meanwhile: a chain of 800 `elif`s is as deep in the syntax tree."""


class _Making:
    """The lock of translation and compilation. A fork waits for it, as LLVM must be at rest.

    Meanwhile Python looks for no garbage: IR has no cycles that are worth it, and of its many objects nearly
    all are still in use. It was up to a tenth of a first call, more in a program with many objects.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.limit = 0
        self.collects = False

    def __enter__(self) -> None:
        _lock.acquire()
        self.depth += 1
        # Of the outermost only; the limit is global to the interpreter.
        if self.depth == 1:
            self.limit = sys.getrecursionlimit()
            # A larger limit of the user's stays.
            sys.setrecursionlimit(max(self.limit, _DEEPEST))
            self.collects = gc.isenabled()
            gc.disable()

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        # Restored even if the translation raised.
        if self.depth == 0:
            sys.setrecursionlimit(self.limit)
            if self.collects:
                gc.enable()
        _lock.release()


making = _Making()


class locked_cached_property(locks.cached):  # noqa: N801
    """A cached property whose value is computed once; `cached_property` has no lock from Python 3.12 on.

    With two values, machine code in use could belong to the discarded one, and be freed.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        with making:
            # The lock is taken at the first access only: the value then is in the instance's `__dict__`,
            # which shadows this non-data descriptor.
            return super().__get__(instance, owner)
