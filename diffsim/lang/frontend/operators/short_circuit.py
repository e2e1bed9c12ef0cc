"""`and`, `or` and `a if c else b`: operands that are evaluated only if they are needed.

Each becomes an If, or a plain op where evaluating both sides is cheap and cannot fail.
"""

from __future__ import annotations

import ast
from typing import TypeGuard

from diffsim.ir.nodes import Value
from diffsim.ir.types import an, bool_
from diffsim.lang.frontend import expressions
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.regions import if_region
from diffsim.lang.frontend.values import Evaluated


def bool_op(cx: TranslationContext, node: ast.BoolOp) -> Evaluated:
    """Translate `a and b`, `a or b` to one of the operands, as in Python."""
    is_and = isinstance(node.op, ast.And)
    first, *others = node.values
    left = expressions.expr(cx, first)
    if isinstance(left, Value) and left.type.shape and left.type.is_bool:
        return _of_vectors(cx, node, left)
    test = expressions.truth(cx, left, first)
    rest = others[0]
    if len(others) > 1:
        rest = ast.copy_location(ast.BoolOp(op=node.op, values=others), others[0])
    # Known at compile time: the other operand is not even
    # translated, as in `field is not None and field[i] > 0`.
    if not isinstance(test, Value):
        return left if test != is_and else expressions.expr(cx, rest)
    found: list[Evaluated] = []
    # Two booleans: one op instead of a branch.
    if _is_bool(left) and is_cheap(cx, rest):
        found.append(expressions.expr(cx, rest))
        if _is_bool(found[0]):
            named = "and" if is_and else "or"
            return cx.builder.named(named, left, _as_bool(cx, found[0]))

    def other_operand() -> Evaluated:
        # Translated at most once: an expression that turned out not to be boolean is reused.
        if not found:
            found.append(expressions.expr(cx, rest))
        return _as_bool(cx, found[0]) if _is_bool(found[0]) else found[0]

    def left_operand() -> Evaluated:
        if not _is_bool(left):
            return left
        other = found[0] if found else None
        if is_and and isinstance(other, Value) and not other.type.shape:
            return cx.builder.const(0, other.type)  # False, as the number that it is in Python
        return cx.builder.const(not is_and, bool_)

    # For `and` the second operand decides where the first is true, for `or` where it is false.
    then, orelse = (other_operand, left_operand) if is_and else (left_operand, other_operand)
    return if_region(cx, test, then, orelse, node)


def _of_vectors(cx: TranslationContext, node: ast.BoolOp, left: Value) -> Value:
    """Translate `v < a and v > b` of vectors of truths: element by element, all operands evaluated."""
    for other in node.values[1:]:
        right = expressions.value(cx, other)
        if right.type is not left.type:
            raise cx.type_error(
                other,
                f"{an(left.type)} and {an(right.type)} cannot be joined",
                "compare vectors of one length on both sides",
            )
        left = cx.builder.named("and" if isinstance(node.op, ast.And) else "or", left, right)
    return left


def _is_bool(thing: Evaluated) -> TypeGuard[Value | bool]:
    return isinstance(thing, bool) or (isinstance(thing, Value) and thing.type is bool_)


def _as_bool(cx: TranslationContext, thing: Value | bool) -> Value:
    return thing if isinstance(thing, Value) else cx.builder.const(thing, bool_)


def truth_of(cx: TranslationContext, node: ast.BoolOp) -> Value | bool:
    """Translate `a and b`, `a or b` as a condition, of which only the truth is used."""
    is_and = isinstance(node.op, ast.And)
    left = expressions.condition(cx, node.values[0])
    for k, right_node in enumerate(node.values[1:], 1):
        if not isinstance(left, Value):
            if left != is_and:
                return left
            left = expressions.condition(cx, right_node)
            continue
        if is_cheap(cx, right_node):
            right = expressions.condition(cx, right_node)
            if not isinstance(right, Value):
                right = cx.builder.const(right, bool_)
            left = cx.builder.named("and" if is_and else "or", left, right)
            continue
        # This operand and all later ones are evaluated in the branch.
        rest = ast.BoolOp(op=node.op, values=node.values[k:])
        ast.copy_location(rest, right_node)
        rest_node = rest if len(rest.values) > 1 else right_node

        def evaluate(rest_node: ast.expr = rest_node) -> Evaluated:
            right = expressions.condition(cx, rest_node)
            return right if isinstance(right, Value) else cx.builder.const(right, bool_)

        def settled() -> Evaluated:
            return cx.builder.const(not is_and, bool_)

        then, orelse = (evaluate, settled) if is_and else (settled, evaluate)
        made: Value | bool = if_region(cx, left, then, orelse, node)
        return made
    return left


def is_cheap(cx: TranslationContext, node: ast.AST) -> bool:
    """Return whether an expression may be evaluated speculatively: it cannot fail and costs little."""
    # A subscript may be out of bounds, a call may have effects, and an assignment is one.
    dear: tuple[type[ast.AST], ...] = (ast.Subscript, ast.Call, ast.IfExp, ast.NamedExpr)
    if cx.debug:
        dear += (ast.FloorDiv, ast.Mod, ast.Pow)  # they are checked
    return not any(isinstance(n, dear) for n in ast.walk(node))


def if_expression(cx: TranslationContext, node: ast.IfExp) -> Evaluated:
    """Translate `a if c else b`."""
    test = expressions.condition(cx, node.test)
    if not isinstance(test, Value):
        return expressions.expr(cx, node.body if test else node.orelse)
    return if_region(
        cx,
        test,
        lambda: expressions.expr(cx, node.body),
        lambda: expressions.expr(cx, node.orelse),
        node,
    )
