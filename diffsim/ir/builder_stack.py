"""The stack of active builders, so that formulas over values can emit into it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffsim.ir.nodes import Value


class _Builders(threading.local):
    """The stack of each Python thread: several may compile, or compute with `ds.sin`, at the same time."""

    def __init__(self) -> None:
        self.stack: list[Any] = []


_at_work = _Builders()


# A stack, since building nests: lowering a formula opens a builder within the frontend's.
def push(builder: Any) -> None:
    """Make a builder the innermost one."""
    _at_work.stack.append(builder)


def pop() -> None:
    """Return to the builder before."""
    _at_work.stack.pop()


def active() -> bool:
    """Whether a kernel is being built."""
    return bool(_at_work.stack)


def builder() -> Any:
    """Return the innermost builder."""
    return _at_work.stack[-1]


def emit(name: str, *args: Any) -> Value:
    """Emit the op of that name into the innermost builder and return its value."""
    made: Value = _at_work.stack[-1].named(name, *args)
    return made
