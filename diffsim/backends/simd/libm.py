"""The mathematical functions of the CPU: libm's, and vector forms of them: libmvec's, and our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.backends.llvm.target import LibraryFunction, MathMap
from diffsim.backends.native import trigonometric
from diffsim.backends.native.jit import VECTOR_MATH, Jit
from diffsim.backends.native.vector_code import VectorCode
from diffsim.ir.op import Instr
from diffsim.ir.types import ScalarType

if TYPE_CHECKING:
    from diffsim.backends.simd.simd_values import SimdValues

FUNCTIONS: MathMap = {
    **{
        name: LibraryFunction(name)
        for name in (
            "pow exp exp2 log log2 sin cos tan asin acos atan atan2 sinh cosh tanh erf erfc lgamma"
        ).split()
    },
    # As an instruction it folds with constants; LLVM calls libm's fmod for it.
    "fmod": Instr(f="frem"),
}
"""The CPU's implementation of each mathematical function of the op table."""


_MOST_INLINED = 24


def call(jit: Jit, module: Module, function: LibraryFunction, t: ScalarType, args: str) -> str:
    """Return the call of a function on scalars, which LLVM may vectorize with its vector forms."""
    name = function.symbol(t)
    module.math[name] = None
    # In an exact module (see `Module.exact`) vector forms are not declared to LLVM either, so a
    # call in a loop would be scalarized: `Module.as_scalars` keeps such loops from its vectorizer.
    if module.exact or not jit.vector_forms(name):
        module.scalar_calls += 1
    return f"call {module.flags} {t.llvm} @{name}({args})"


def vector_form(
    jit: Jit, module: Module, function: LibraryFunction, t: ScalarType, lanes: int
) -> tuple[str, int]:
    """Return the widest form of a function for at most `lanes` lanes, as (symbol, lanes); "": none.

    There is none either where other code must get the same bits: that code may run lanes alone, and the
    vector forms round differently.
    """
    name = function.symbol(t)
    module.math[name] = None
    if module.exact or function.name not in VECTOR_MATH:
        return "", 1
    # Sorted by width. The widest that fits: parts of a wider form would compute lanes that do not
    # exist.
    forms = [("", 1), *(f for f in jit.vector_forms(name) if f[1] <= lanes)]
    symbol, width = forms[-1]
    if symbol and jit.has_fma and function.name in trigonometric.FUNCTIONS:
        symbol = _inlined(module, function.name, t, width, symbol)
    return symbol, width


def _inlined(module: Module, name: str, t: ScalarType, lanes: int, library: str) -> str:
    """Define a form that is written where it is called, in place of libmvec's; return its symbol.

    Of many in one module, the others are calls of the same code: each has a branch, and LLVM's time grows as
    the cube of these where they stand in branches of the program.
    """
    module.inlined_forms += 1
    many = module.inlined_forms > _MOST_INLINED
    symbol = f"vector_{name}_{t}_{lanes}{'_called' if many else ''}"
    if f"@{symbol}" not in module.declared:
        code = VectorCode(t.llvm, lanes)
        v, fma = code.type, code.fma_symbol
        module.declare(f"@{fma}", f"declare {v} @{fma}({v}, {v}, {v})")
        text = trigonometric.definition(symbol, name, t.llvm, lanes, library)
        if many:
            text = text.replace(" alwaysinline ", " noinline ", 1)
        module.declare(f"@{symbol}", text)
    return symbol


def call_lanes(body: SimdValues, function: LibraryFunction, t: ScalarType, args: list[str]) -> str:
    """Call a function of libmvec on parts of the vectors; without one, libm for each lane."""
    # The widest form may have fewer lanes than the vectors here, W being several registers.
    symbol, width = vector_form(body.jit, body.module, function, t, body.lanes)
    if not symbol:
        return _call_by_lane(body, function, t, args)
    kind, part = body.vector(t.llvm), f"<{width} x {t.llvm}>"
    parts = []
    for first in range(0, body.lanes, width):
        pieces = args
        if width < body.lanes:
            picks = ", ".join(f"i32 {first + k}" for k in range(width))
            pieces = [
                body.assign(f"shufflevector {kind} {a}, {kind} poison, <{width} x i32> <{picks}>")
                for a in args
            ]
        operands = ", ".join(f"{part} {p}" for p in pieces)
        parts.append(body.assign(f"call {body.module.flags} {part} @{symbol}({operands})"))
    # Concatenate pairwise: shufflevector takes two vectors of one length. W and the width are
    # powers of two.
    while len(parts) > 1:
        part, double = f"<{width} x {t.llvm}>", 2 * width
        picks = ", ".join(f"i32 {k}" for k in range(double))
        parts = [
            body.assign(f"shufflevector {part} {a}, {part} {b}, <{double} x i32> <{picks}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        width = double
    return parts[0]


def _call_by_lane(
    body: SimdValues, function: LibraryFunction, t: ScalarType, args: list[str]
) -> str:
    # The results overwrite the first operand's array, one lane after it was read.
    arrays = [body.spill(t.llvm, a) for a in args]

    def one(lane: str) -> None:
        result = FunctionLowering.call_function(
            body, function, t, [body.load_lane(r, t.llvm, lane) for r in arrays]
        )
        slot = body.assign(f"getelementptr {t.llvm}, ptr {arrays[0]}, i64 {lane}")
        body.emit(f"store {t.llvm} {result}, ptr {slot}")

    body.each_lane(one, may_be_idle=True)
    result = body.assign(f"load {body.vector(t.llvm)}, ptr {arrays[0]}, align 64")
    for array in arrays:
        body.free_array(t.llvm, array)
    return result
