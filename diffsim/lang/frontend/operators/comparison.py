"""Comparisons, and chains of them such as `0 <= i < n`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import bool_
from diffsim.lang.frontend import expressions
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import containers
from diffsim.lang.frontend.operators import composites, short_circuit
from diffsim.lang.frontend.operators.folding import fold, operands
from diffsim.lang.frontend.regions import if_region
from diffsim.lang.frontend.values import Evaluated, PythonObject, holds_value
from diffsim.lang.host.field_like import is_field
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types.descriptions import describe, sample
from diffsim.lang.types.matrix import Matrix

_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("lt", operator.lt), ast.LtE: ("le", operator.le), ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge), ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne),
}  # fmt: skip


def compare(cx: TranslationContext, node: ast.Compare) -> Evaluated:
    """Translate a comparison."""
    return _chain(cx, node, expressions.expr(cx, node.left), 0)


def _chain(cx: TranslationContext, node: ast.Compare, left: object, k: int) -> Value | PythonObject:
    """Translate the comparisons of `a < b < c` from the k-th on, each evaluated only where it decides."""
    # Each operand is evaluated once, though it takes part in two comparisons.
    written = node.comparators[k]
    # `x in {1, 2}`: a set can be written nowhere else.
    if isinstance(written, ast.Set) and isinstance(node.ops[k], (ast.In, ast.NotIn)):
        right: Any = tuple(containers.sequence(cx, written.elts))
    else:
        right = expressions.expr(cx, written)
    first = _compare_two(cx, type(node.ops[k]), left, right, node)
    # The op may have been folded by the builder.
    if isinstance(first, Const) and first.type is bool_:
        first = bool(first.value)
    if k + 1 == len(node.ops) or (not isinstance(first, Value) and not first):
        return first

    def rest() -> Value | PythonObject:
        return _chain(cx, node, right, k + 1)

    # An `and` is cheaper than a branch if evaluating the rest has no effect and cannot fail.
    cheap = all(short_circuit.is_cheap(cx, later) for later in node.comparators[k + 1 :])
    if not isinstance(first, Value) or first.type.shape or cheap:
        return _both(cx, first, rest())
    never = cx.builder.const(False, bool_)
    return if_region(cx, first, lambda: _both(cx, Const(bool_, True), rest()), lambda: never, node)


def _compare_two(
    cx: TranslationContext, kind: type[ast.cmpop], a: Evaluated, b: Evaluated, node: SyntaxNode
) -> Value | PythonObject:
    """Translate one comparison."""
    known = not isinstance(a, Value) and not isinstance(b, Value)
    if kind in (ast.In, ast.NotIn) and (not known or holds_value(a) or holds_value(b)):
        found = containers.contains(cx, a, b, node)
        return found if kind is ast.In else containers.negated(cx, found)
    if kind in (ast.Is, ast.IsNot, ast.In, ast.NotIn):
        if not known and (a is None or b is None):  # a number, or a vector, is not None
            return kind is ast.IsNot
        # A struct or tuple of run-time values is a value, too: there is no object to be the same.
        several = a is not None and b is not None and (holds_value(a) or holds_value(b))
        if not known or (several and kind in (ast.Is, ast.IsNot)):
            raise cx.syntax(node, "`is` cannot compare run-time values", "use == or !=")
        test = {
            ast.Is: operator.is_,
            ast.IsNot: operator.is_not,
            ast.In: _is_in,
            ast.NotIn: _is_not_in,
        }[kind]
        if kind in (ast.Is, ast.IsNot):
            # Another object with an equal value would change the answer.
            cx.observations.note_identity(a)
            cx.observations.note_identity(b)
            return test(a, b)
        return fold(cx, node, test, a, b)
    name, python = _COMPARE[kind]
    for x in (a, b):
        if is_field(x):
            raise cx.type_error(
                node,
                f"{describe(x)} as a whole cannot be compared",
                f"name an element: {sample(x)}",
            )
    if known and (composites.is_composite(a) or composites.is_composite(b)):
        return composites.compare(cx, node, kind, a, b)
    # Vectors are compared element by element, which gives a vector and no bool: that is an op.
    if known and not any(isinstance(x, (list, Matrix, np.ndarray)) for x in (a, b)):
        return fold(cx, node, python, a, b)
    return cx.builder.named(name, *operands(cx, node, a, b))


def _is_in(x: PythonObject, y: PythonObject) -> bool:
    """Return `x in y`; `operator.contains` takes them in the other order."""
    return x in y


def _is_not_in(x: PythonObject, y: PythonObject) -> bool:
    return x not in y


def _both(
    cx: TranslationContext, a: Value | PythonObject, b: Value | PythonObject
) -> Value | PythonObject:
    """Combine two comparisons by `and`."""
    for x, other in ((a, b), (b, a)):  # `False and x` is False, `True and x` is x: no op is needed
        if not isinstance(x, Value):
            return other if x else False
    return cx.builder.named("and", a, b)
