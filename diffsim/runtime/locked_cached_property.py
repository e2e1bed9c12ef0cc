"""What is made when it is first asked for, once, whichever thread of Python asks."""

from __future__ import annotations

import sys
from typing import Any

from diffsim import locks

# One lock for all: making a value compiles kernels, which needs values of others, so that one lock for each
# would deadlock between threads.
_lock = locks.rlock()
locks.finish_before_fork(lambda: _lock)
_DEEPEST = 20_000
"""Python's limit of nested calls meanwhile: a chain of 800 `elif`s is nested as deep."""


class _Making:
    """Held while kernels are translated and compiled. A fork waits: LLVM can not be copied half way."""

    def __init__(self) -> None:
        self.depth = 0
        self.limit = 0

    def __enter__(self) -> None:
        _lock.acquire()
        self.depth += 1
        # Of the outermost only; the limit is global to the interpreter.
        if self.depth == 1:
            self.limit = sys.getrecursionlimit()
            # A larger limit of the user's stays.
            sys.setrecursionlimit(max(self.limit, _DEEPEST))

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        # Restored even if the translation raised.
        if self.depth == 0:
            sys.setrecursionlimit(self.limit)
        _lock.release()


making = _Making()


class locked_cached_property(locks.cached):  # noqa: N801
    """A cached property of which no second value is ever made, as `cached_property` may do from 3.12 on.

    Code in use could otherwise be that of a value which was thrown away, and be freed.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        with making:
            # The lock is taken at the first access only: the value then is in the instance's `__dict__`,
            # which shadows this non-data descriptor.
            return super().__get__(instance, owner)
