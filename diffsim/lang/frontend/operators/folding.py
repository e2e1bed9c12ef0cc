"""Operations on what is known at compile time, and the operands of those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError
from diffsim.ir.builder import Operand
from diffsim.ir.nodes import Value
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.values import Evaluated, PythonObject
from diffsim.lang.host.inspection import is_of_program
from diffsim.lang.host.observations import has_code
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types.descriptions import advice, describe
from diffsim.lang.types.matrix import Matrix

Number = (bool, int, float, np.bool_, np.integer, np.floating)
# Objects whose operators are not the cause of an error, so that it is about the operation itself.
_PLAIN = (*Number, str, list, tuple, range, slice, np.ndarray, Matrix)


def fold(
    cx: TranslationContext,
    node: SyntaxNode,
    function: Callable[..., Any],
    *args: object,
    asked: bool = True,
    **kwargs: object,
) -> PythonObject:
    """Compute an operation on objects known at compile time.

    With `asked`, the call is observed where code of the program decides the result, which may change then.
    """
    try:
        return cx.evaluate(node, function, *args, **kwargs) if asked else function(*args, **kwargs)
    except DiffsimError as problem:
        raise cx.type_error(node, problem.message, problem.hint) from None
    except Exception as problem:
        if is_of_program(problem) and any(map(has_code, args)):
            raise cx.program_error(node, problem) from None
        # The operand that cannot be computed with is more helpful in the message than Python's own text.
        for a in args:
            if a is None or not isinstance(a, _PLAIN):
                message = f"{describe(a)} cannot be used here"
                raise cx.type_error(node, message, advice(a)) from None
        raise cx.type_error(
            node,
            f"this cannot be evaluated: {problem}",
            "it is computed before the launch, from constants; see what they are",
        ) from None


def operands(cx: TranslationContext, node: SyntaxNode, *things: Evaluated) -> list[Operand]:
    """Convert the operands of an operator; literals take the precision of the floats among them."""
    # The widest float among the operands: in `0.1 * x` with x of f64, 0.1 is not rounded to f32 first.
    floats = (x.type for x in things if isinstance(x, Value) and x.type.is_float)
    like = max(floats, key=lambda t: t.scalar.bits, default=None)
    made: list[Any] = [  # NumPy's numbers among them: the builder takes them as Python's
        x if isinstance(x, Number) else cx.value(x, node, "an operand", like) for x in things
    ]
    return made
