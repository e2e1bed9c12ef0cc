"""Loops whose adjoint is left out where nothing flows back into them.

    best = min(best, far)       the adjoint of `far` is 0 where another one was smaller,
                                so the loop that computed it runs backwards only where it was the smallest

A `select`, `min`, `max` or branch sets the adjoint of what it did not take to exactly 0. All that the loop's
adjoint would add is then 0, since it is linear. (Where the adjoint will be differentiated itself, the
derivative of that 0 may not be 0: nothing is left out there.)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from diffsim.ir import ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Alloca, Block, Const, For, If, Let, Load, Value, While, zero
from diffsim.ir.traversal import statements

CUTTING = (ops.select, ops.minimum, ops.maximum)
"""Ops that ignore one of their arguments, whose adjoint is 0 even times inf (IEEE 754: NaN)."""
_PURE = (Alloca, For, If, Let, Load, While)
"""Statements that write nothing: their adjoint is 0 where the adjoints of what they compute are."""


def skip_where_zero(
    b: Builder,
    loop: For | While,
    flowing: Sequence[Value],
    cut: set[Value],
    back: Callable[[], tuple[Value, ...]],
) -> tuple[Value, ...]:
    """Emit what `back` emits, the adjoint of a loop; if it may be left out, under a test of what flows in.

    `cut`: adjoints that are 0 where their value was not taken; the results become such.
    """
    met = [g for g in flowing if not isinstance(g, Const)]
    if b.is_inner or not _may_skip(loop, met, cut):
        return back()
    b.span = loop.span
    wanted = b.named("ne", met[0], zero(met[0].type))
    for g in met[1:]:
        wanted = b.named("or", wanted, b.named("ne", g, zero(g.type)))
    with b.block() as stmts:
        found = back()
    outs = tuple(Value(v.type, v.hint) for v in found)
    b.add(
        If(
            wanted,
            Block(stmts, found),
            Block([], tuple(zero(v.type) for v in found)),
            outs,
            loop.span,
        )
    )
    cut.update(outs)
    return outs


def _may_skip(loop: For | While, met: Sequence[Value], cut: Container[Value]) -> bool:
    """Whether the adjoint of a loop does nothing where those that flow into it are 0, as they may be."""
    return (
        bool(met)
        and all(g in cut and not g.type.shape for g in met)
        and all(isinstance(s, _PURE) for s in statements(loop.body))
    )
