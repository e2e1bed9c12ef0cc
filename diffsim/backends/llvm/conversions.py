"""Conversions of floats that take more than one instruction.

To integers: what does not fit is the least or largest number of the type, and NaN is 0. To a type of storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import ScalarType, bool_, u32

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


def store_float(body: FunctionLowering, x: Value, to: ScalarType) -> str:
    """Emit the conversion of a float to a type of storage, past the type that it is computed in.

    Rounded to nearest twice it could be one off. So it is rounded to odd first: towards 0, and the last bit
    is set if something was cut off (S. Boldo, G. Melquiond, Emulation of FMA and correctly rounded sums, IEEE
    Transactions on Computers 57, 2008). For processors without an instruction LLVM would call a function that
    no C library has.
    """
    wide, mid = x.type.scalar, to.arithmetic
    kind, half_way, test = (body.llvm_type(t) for t in (wide, mid, bool_))
    word = body.llvm_type(u32)
    near = body.assign(f"fptrunc {kind} {body.name(x)} to {half_way}")
    back = body.assign(f"fpext {half_way} {near} to {kind}")
    symbol = f"@llvm.fabs.{body.suffix(wide)}"
    body.module.declare(symbol, f"declare {kind} {symbol}({kind})")
    sizes = [body.assign(f"call {kind} {symbol}({kind} {v})") for v in (back, body.name(x))]
    # All false for NaN, which stays what it is.
    too_large = body.assign(f"fcmp ogt {kind} {sizes[0]}, {sizes[1]}")
    inexact = body.assign(f"fcmp one {kind} {back}, {body.name(x)}")
    bits = body.assign(f"bitcast {half_way} {near} to {word}")
    less = body.assign(f"sub {word} {bits}, {body.assign(f'zext {test} {too_large} to {word}')}")
    odd = body.assign(f"or {word} {less}, {body.assign(f'zext {test} {inexact} to {word}')}")
    made = body.assign(f"bitcast {word} {odd} to {half_way}")
    return body.assign(f"fptrunc {half_way} {made} to {body.llvm_type(to)}")
