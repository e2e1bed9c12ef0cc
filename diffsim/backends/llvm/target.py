"""What the shared lowering asks of a target: its mathematical functions, and memory for scratch.

The op table names mathematical functions (`Math("sin")`); here is what maps such a name to what a target
calls. `backends/cpu/target.py` and `backends/cuda/target.py` have the maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from diffsim.ir.nodes import Alloca, Block
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
        """The function's name for operands of a type."""
        return self.name + ("f" if t.bits == 32 else "")


MathMap = Mapping[str, Instr | LLVMIntrinsic | LibraryFunction]
"""From the names of mathematical functions in the op table to what a target calls."""

Implementation = Instr | LLVMIntrinsic | LibraryFunction | Expand | CustomLowering


def implementation(functions: MathMap, how: Lowering) -> Implementation | None:
    """Return what a target with these functions does for a row; None: it has no such function."""
    return functions.get(how.name) if isinstance(how, Math) else how


class Target(Protocol):
    """What the lowering asks of a backend."""

    name: str
    """What the user calls it: "cpu", "cuda"."""
    functions: MathMap
    """What it calls for the mathematical functions of the op table."""

    def call_function(
        self, module: Module, function: LibraryFunction, t: ScalarType, args: str
    ) -> str:
        """Return the call of a library function on scalars."""

    def in_parts(self, body: FunctionLowering, block: Block) -> bool:
        """Lower a block as calls of functions, if it is too long for one; return whether it was."""

    def scratch(self, body: FunctionLowering, s: Alloca) -> str:
        """Emit an allocation of scratch and a check that it worked; return what `release` needs."""

    def release(self, body: FunctionLowering, ticket: str) -> None:
        """Emit the end of that scratch's life."""
