"""The builder that is at work, so that formulas over values can emit into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffsim.ir.nodes import Value

_stack: list[Any] = []


def push(builder: Any) -> None:
    """Make a builder the innermost one."""
    _stack.append(builder)


def pop() -> None:
    """Go back to the builder before."""
    _stack.pop()


def active() -> bool:
    """Whether a kernel is being built."""
    return bool(_stack)


def builder() -> Any:
    """The innermost builder."""
    return _stack[-1]


def emit(name: str, *args: Any) -> Value:
    """Emit the op of that name into the innermost builder and return its value."""
    made: Value = _stack[-1].named(name, *args)
    return made
