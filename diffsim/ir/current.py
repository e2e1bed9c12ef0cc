"""The builder that is at work, so that formulas over values can emit into it."""

from __future__ import annotations

from typing import Any

_stack: list[Any] = []


def push(builder: Any) -> None:
    _stack.append(builder)


def pop() -> None:
    _stack.pop()


def active() -> bool:
    """Whether a kernel is being built."""
    return bool(_stack)


def builder() -> Any:
    """The innermost builder."""
    return _stack[-1]


def emit(name: str, *args: Any) -> Any:
    """Emit the op of that name into the innermost builder and return its value."""
    return _stack[-1].named(name, *args)
