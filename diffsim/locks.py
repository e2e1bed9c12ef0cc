"""Locks that survive a fork.

A fork copies the memory of a process, but only the thread that calls it (POSIX `fork`). A lock that another
thread holds would stay locked in the child for ever. So the locks of this module are reset in the child,
except those that the forking thread holds itself; and a fork waits until work that must not be copied
half-done, such as a compilation by LLVM, has ended.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_LONGEST_WAIT = 20.0
"""Longest time that a fork waits for another thread [s]; after it the fork goes on, as it must not hang."""

# All locks made here. Weak, as some belong to objects that are collected before the process ends.
_known: weakref.WeakSet[Any] = weakref.WeakSet()
# Functions that return a lock to acquire before a fork; they are called at each fork.
_awaited: list[Callable[[], Any]] = []
# The locks that `_before_fork` acquired: to be released in parent and child alike.
_acquired: list[Any] = []


def lock() -> Any:
    """Make a lock that is reset in the child of a fork."""
    return _noted(threading.Lock())


def rlock() -> Any:
    """Make a reentrant lock that is reset in the child of a fork."""
    return _noted(threading.RLock())


def _noted(made: Any) -> Any:
    """Register a lock."""
    _known.add(made)
    return made


class cached(functools.cached_property[Any]):  # noqa: N801
    """A cached property whose lock is reset in the child of a fork; from Python 3.12 on it has none."""

    def __init__(self, func: Callable[[Any], Any]) -> None:
        super().__init__(func)
        if hasattr(self, "lock"):
            _known.add(self.lock)


def finish_before_fork(find: Callable[[], Any]) -> None:
    """Let forks wait for the reentrant lock that `find` returns; the last registered is acquired first."""
    _awaited.append(find)


def _before_fork() -> None:
    """Acquire the awaited locks, each for a limited time, so that no fork waits for ever."""
    acquired = []
    # One fixed order: two threads that fork at once would otherwise each hold what the other waits for.
    for find in reversed(_awaited):
        awaited = find()
        if awaited.acquire(timeout=_LONGEST_WAIT):
            acquired.append(awaited)
    # In the opposite order of acquisition.
    _acquired.extend(reversed(acquired))


def _after_fork() -> None:
    """Release the awaited locks, in the parent and in the child."""
    while _acquired:
        _acquired.pop(0).release()


def _in_child() -> None:
    """Reset every lock that the forking thread does not hold."""
    _after_fork()
    for known in list(_known):
        # What the forking thread holds it releases in the child too, once the
        # code around the fork ends. Only reentrant locks know their owner.
        if not (hasattr(known, "_is_owned") and known._is_owned()):
            known._at_fork_reinit()


# There is no fork on Windows.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
