"""The operators of values: each emits its op into the block under construction.

So derivative rules and expansions are written as ordinary formulas, `g * cos(x)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.ir import builder_stack

if TYPE_CHECKING:
    from diffsim.ir.nodes import Operand, Value


class Arithmetic:
    """Python's operators, for `Value`."""

    __slots__ = ()

    def __add__(self, other: Operand) -> Value:
        return builder_stack.emit("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return builder_stack.emit("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return builder_stack.emit("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return builder_stack.emit("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return builder_stack.emit("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return builder_stack.emit("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return builder_stack.emit("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return builder_stack.emit("div", other, self)

    def __neg__(self) -> Value:
        return builder_stack.emit("neg", self)

    def __lt__(self, other: Operand) -> Value:
        return builder_stack.emit("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return builder_stack.emit("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return builder_stack.emit("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return builder_stack.emit("ge", self, other)

    def __or__(self, other: Operand) -> Value:
        return builder_stack.emit("or", self, other)

    def __and__(self, other: Operand) -> Value:
        return builder_stack.emit("and", self, other)
