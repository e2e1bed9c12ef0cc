"""The mathematical functions of the CPU: libm's, and vector forms of them: libmvec's, and our own."""

from __future__ import annotations

from diffsim.backends.llvm.module import Module
from diffsim.backends.llvm.target import LibraryFunction, MathMap
from diffsim.backends.native import trigonometric
from diffsim.backends.native.jit import VECTOR_MATH, Jit
from diffsim.backends.native.vector_code import VectorCode
from diffsim.ir.op import Instr
from diffsim.ir.types import ScalarType

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
    """Define a form that is written where it is called, in place of libmvec's; return its symbol."""
    symbol = f"vector_{name}_{t}_{lanes}"
    if f"@{symbol}" not in module.declared:
        code = VectorCode(t.llvm, lanes)
        v, fma = code.type, code.fma_symbol
        module.declare(f"@{fma}", f"declare {v} @{fma}({v}, {v}, {v})")
        text = trigonometric.definition(symbol, name, t.llvm, lanes, library)
        module.declare(f"@{symbol}", text)
    return symbol
