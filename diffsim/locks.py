"""Locks, and what becomes of them in the child of a fork.

A fork copies the memory of a process, but of its threads only the one that forks. A lock that another
thread holds would stay locked in the child for ever. So the locks of this module are reset in the child,
except those that the forking thread holds itself; and a fork waits for work that must not be copied
half done.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_PATIENCE = 20.0
"""How long a fork waits for another thread [s]."""

_known: weakref.WeakSet[Any] = weakref.WeakSet()
_awaited: list[Callable[[], Any]] = []
_held: list[Any] = []


def lock() -> Any:
    """Make a lock that is reset in the child of a fork."""
    return _noted(threading.Lock())


def rlock() -> Any:
    """Make a reentrant one."""
    return _noted(threading.RLock())


def _noted(made: Any) -> Any:
    """Register a lock."""
    _known.add(made)
    return made


class cached(functools.cached_property[Any]):  # noqa: N801
    """A cached property; before Python 3.12 it has a lock, which is registered."""

    def __init__(self, func: Callable[[Any], Any]) -> None:
        super().__init__(func)
        if hasattr(self, "lock"):
            _known.add(self.lock)


def finish_before_fork(find: Callable[[], Any]) -> None:
    """Let forks wait for the reentrant lock that `find` returns; the last one registered first."""
    _awaited.append(find)


def _before_fork() -> None:
    """Acquire the awaited locks, each for a limited time, so that no fork waits for ever."""
    held = []
    for find in reversed(_awaited):
        awaited = find()
        if awaited.acquire(timeout=_PATIENCE):
            held.append(awaited)
    _held.extend(reversed(held))


def _after_fork() -> None:
    """Release them, in the parent and in the child."""
    while _held:
        _held.pop(0).release()


def _in_child() -> None:
    """Reset every lock that the forking thread does not hold."""
    _after_fork()
    for known in list(_known):
        if not (hasattr(known, "_is_owned") and known._is_owned()):
            known._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
