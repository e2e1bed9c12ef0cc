"""The interface of a target to the shared lowering: mathematical functions, and memory for scratch.

The op table names mathematical functions (`Math("sin")`); a `MathMap` gives what a target calls for
each of them. `backends/cpu/target.py` and `backends/cuda/target.py` have the maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from diffsim.ir.nodes import Alloca, Block, Value
from diffsim.ir.op import CustomLowering, Expand, Instr, LLVMIntrinsic, Lowering, Math
from diffsim.ir.types import ScalarType

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering
    from diffsim.backends.llvm.module import Module


@dataclass(frozen=True, slots=True)
class LibraryFunction:
    """A function of a library, by its name for f64; the name for f32 ends in `f`."""

    name: str

    def symbol(self, t: ScalarType) -> str:
        """Return the function's symbol for operands of a type."""
        return self.name + ("f" if t.bits == 32 else "")


MathMap = Mapping[str, Instr | LLVMIntrinsic | LibraryFunction]
"""From the names of mathematical functions in the op table to a target's implementations."""

Implementation = Instr | LLVMIntrinsic | LibraryFunction | Expand | CustomLowering


def implementation(functions: MathMap, how: Lowering) -> Implementation | None:
    """Return how a target with these functions implements a row; None: it has no such function.

    None must become an error with the user's line before LLVM runs, which for some targets ends the process
    on an intrinsic that it cannot select.
    """
    # Only `Math` depends on the target; all other lowerings mean the same everywhere.
    return functions.get(how.name) if isinstance(how, Math) else how


class Target(Protocol):
    """The interface between the shared lowering and a backend."""

    name: str
    """The user's name for it: "cpu", "cuda"."""
    functions: MathMap
    """Its implementations of the mathematical functions of the op table."""

    def call_function(
        self, module: Module, function: LibraryFunction, t: ScalarType, args: str
    ) -> str:
        """Return the call of a library function on scalars."""

    def to_integer(self, body: FunctionLowering, x: Value, to: ScalarType) -> str:
        """Emit the conversion of a float, which saturates (`conversions.py` has two ways)."""

    def in_parts(self, body: FunctionLowering, block: Block) -> bool:
        """Outline a block into functions, if it is too long for one; return whether it was."""

    def scratch(self, body: FunctionLowering, s: Alloca) -> str:
        """Emit an allocation of scratch and a check that it worked; return what `release` needs."""

    def release(self, body: FunctionLowering, ticket: str) -> None:
        """Emit the release of that scratch."""
