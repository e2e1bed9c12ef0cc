"""Long blocks without loops and branches, cut into several for LLVM's code generator.

Instruction selection, scheduling and register allocation take time as the square of a block's length. LLVM
merges blocks that follow each other, unless the first one may end otherwise: here by inline assembly that
may jump to another label, as far as LLVM knows, and has no instructions.

    callbr void asm sideeffect "", "!i"() to label %cut7 [label %never]
    cut7:

Values stay in registers, and passes that look at whole functions see what they saw. A product and a sum in
different blocks are not contracted, so cuts follow from the statements alone: all forms of a task (whole
blocks of lanes and the last one, with atomics and without) compute the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.ir.nodes import Stmt
from diffsim.ir.traversal import blocks

_LONG = 2_000
"""Statements of the shortest stretch that is cut: LLVM is quick with shorter ones."""
_STRETCH = 120
"""Statements between cuts."""
_NEVER = "never"


def cuts(stmts: Sequence[Stmt]) -> set[Stmt]:
    """Return the statements of a block before which a new block should begin."""
    found: set[Stmt] = set()
    begin = 0
    for end in range(len(stmts) + 1):
        # Loops and branches begin new blocks by themselves.
        if end == len(stmts) or blocks(stmts[end]):
            if end - begin >= _LONG:
                found.update(stmts[begin + _STRETCH : end - _STRETCH // 2 : _STRETCH])
            begin = end + 1
    return found


def cut(body: FunctionLowering) -> None:
    """Begin a new block. The function has to be closed by `close`."""
    label = body.new_label("cut")
    jump = 'callbr void asm sideeffect "", "!i"() nounwind memory(none)'
    body.emit(f"{jump} to label %{label} [label %{_NEVER}]")
    body.start_block(label)
    body.has_cuts = True


def close(body: FunctionLowering) -> None:
    """Emit the block that cuts name, which nothing reaches; after the last block of a function."""
    if body.has_cuts:
        body.start_block(_NEVER)
        body.emit("ret void")
