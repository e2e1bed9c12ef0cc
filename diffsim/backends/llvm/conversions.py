"""Floats to integers: what does not fit is the least or largest number of the type, and NaN is 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import ScalarType, bool_

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering


def saturate(body: FunctionLowering, x: Value, to: ScalarType) -> str:
    """Emit one call of LLVM's conversion, for targets that have an instruction for it."""
    have, out = x.type.scalar, body.llvm_type(to)
    symbol = (
        f"@llvm.fpto{'s' if to.kind == 'i' else 'u'}i.sat.{body.suffix(to)}.{body.suffix(have)}"
    )
    body.module.declare(symbol, f"declare {out} {symbol}({body.llvm_type(have)})")
    return body.assign(f"call {out} {symbol}({body.typed(x)})")


def saturate_by_tests(body: FunctionLowering, x: Value, to: ScalarType) -> str:
    """Emit the same by comparisons, which LLVM vectorizes: its own conversion it takes apart, lane by lane.

    The plain conversion is poison for what does not fit (LangRef), so it gets 0 in its place.
    """
    have = x.type.scalar
    kind, out, test = (body.llvm_type(t) for t in (have, to, bool_))
    least, largest = to.limits
    # Powers of two, or 0, which floats of every type hold; of the largest integers they hold none.
    low, high = (body.name(Const(have, float(n))) for n in (least, largest + 1))
    name, nothing = body.name(x), body.name(Const(have, 0.0))
    above = body.assign(f"fcmp oge {kind} {name}, {high}")
    below = body.assign(f"fcmp ole {kind} {name}, {low}")
    over = body.assign(f"fcmp ogt {kind} {name}, {low}")
    under = body.assign(f"fcmp olt {kind} {name}, {high}")
    inside = body.assign(f"and {test} {over}, {under}")
    safe = body.assign(f"select {test} {inside}, {kind} {name}, {kind} {nothing}")
    made = body.assign(f"fpto{'s' if to.kind == 'i' else 'u'}i {kind} {safe} to {out}")
    for beyond, limit in ((above, largest), (below, least)):
        end = body.name(Const(to, limit))
        made = body.assign(f"select {test} {beyond}, {out} {end}, {out} {made}")
    return made
