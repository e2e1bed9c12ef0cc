"""Conversions of vectors of floats to 32-bit integers by x86's own instructions.

What does not fit is the least or largest number of the type, and NaN is 0 (`backends/llvm/conversions.py`).
LLVM's plain conversion is poison there, so it takes seven instructions to keep such numbers away from it
and to put the ends in their place; and LLVM moves the last two of them behind what is computed from the
integer, where an index has 64 bits and takes two registers. x86's instructions are defined for all numbers:
they return the least integer for what does not fit and for NaN (Intel 64 and IA-32 Architectures Software
Developer's Manual, 2024, volume 1, table 4-1, "integer indefinite"). Only numbers above and NaN are left to
look for. LLVM's vectorizer knows no such calls, so this is for code that is written with vectors.
"""

from __future__ import annotations

from diffsim.backends.llvm.module import number
from diffsim.backends.simd import shuffles
from diffsim.backends.simd.simd_values import SimdValues
from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import ScalarType

_INSTRUCTIONS = {
    (32, 4): "sse2.cvttps2dq",
    (32, 8): "avx.cvtt.ps2dq.256",
    (32, 16): "avx512.mask.cvttps2dq.512",
    (64, 4): "avx.cvtt.pd2dq.256",
    (64, 8): "avx512.mask.cvttpd2dq.512",
}
"""By the bits of the float and the lanes of a register."""
_TRUNCATES = 4  # "current direction" of rounding, which a truncating conversion does not ask for


def saturate(body: SimdValues, x: Value, to: ScalarType) -> str:
    """Emit the conversion of all lanes; "" where these instructions have none for the types."""
    have = x.type.scalar
    width = min(body.lanes, body.jit.vector_bits // have.bits)
    known = (have.bits, width) in _INSTRUCTIONS and (to.kind, to.bits) == ("i", 32)
    # Vectors of 256 bits and more are x86's alone.
    if not known or body.jit.vector_bits < 256:
        return ""
    whole = body.name(x)
    parts = [
        _register(body, have, to, body.lanes_of(have, whole, body.lanes, first, width), width)
        for first in range(0, body.lanes, width)
    ]
    return shuffles.join(body, to, parts, width)


def _register(body: SimdValues, have: ScalarType, to: ScalarType, x: str, width: int) -> str:
    """Convert one register: the least number minus 1 is the largest one, and 0 takes the place of NaN.

    Not by selections among integers, which LLVM would move behind what is computed from them.
    """
    kind, out, test = (f"<{width} x {t}>" for t in (have.llvm, to.llvm, "i1"))
    # A power of two, which floats of every type hold.
    end = ", ".join([f"{have.llvm} {number(Const(have, float(to.limits[1] + 1)))}"] * width)
    above = body.assign(f"fcmp oge {kind} {x}, <{end}>")
    is_number = body.assign(f"fcmp ord {kind} {x}, zeroinitializer")
    safe = body.assign(f"select {test} {is_number}, {kind} {x}, {kind} zeroinitializer")
    name = f"@llvm.x86.{_INSTRUCTIONS[have.bits, width]}"
    types, args = kind, f"{kind} {safe}"
    if ".mask." in name:
        types += f", {out}, i{width}, i32"
        args += f", {out} zeroinitializer, i{width} -1, i32 {_TRUNCATES}"
    body.module.declare(name, f"declare {out} {name}({types})")
    made = body.assign(f"call {out} {name}({args})")
    less = body.assign(f"sext {test} {above} to {out}")
    return body.assign(f"add {out} {made}, {less}")
