"""Comparisons of structs, tuples and dictionaries that hold run-time values, as wholes.

They mean what they mean in Python: two structs, tuples or dictionaries are equal if their parts are, and
tuples are ordered by the first part in which they differ. Lists are vectors where they are compared, element
by element, but as parts of a tuple they are compared as it is.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import bool_
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import structs
from diffsim.lang.frontend.operators import folding
from diffsim.lang.frontend.values import Evaluated, KernelDict, StructValue, holds_value
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix

Truth = Value | bool


def is_composite(thing: Evaluated) -> bool:
    """Whether it is a struct, tuple or dictionary with a run-time value in it."""
    return isinstance(thing, (StructValue, tuple, KernelDict)) and holds_value(thing)


def compare(
    cx: TranslationContext, node: SyntaxNode, kind: type[ast.cmpop], a: Evaluated, b: Evaluated
) -> Truth:
    """Translate a comparison of which one side, or both, is a composite."""
    if kind is ast.Eq:
        return equal(cx, node, a, b)
    if kind is ast.NotEq:
        return _not(cx, equal(cx, node, a, b))
    if kind in (ast.Gt, ast.GtE):
        a, b = b, a
    return _precedes(cx, node, a, b, or_equal=kind in (ast.LtE, ast.GtE))


def equal(cx: TranslationContext, node: SyntaxNode, a: Evaluated, b: Evaluated) -> Truth:
    """Return whether two operands are equal as wholes: in all of their parts."""
    a, b = (structs.as_value(cx, x, node) for x in (a, b))  # type: ignore[arg-type]
    pairs: Any = ()
    if isinstance(a, StructValue) or isinstance(b, StructValue):
        # As in Python, structs of different types are different, even with equal members.
        if not (isinstance(a, StructValue) and isinstance(b, StructValue) and a.type is b.type):
            return False
        pairs = zip(a.members.values(), b.members.values(), strict=True)
    elif isinstance(a, KernelDict) and isinstance(b, KernelDict):
        if a.keys() != b.keys():
            return False
        pairs = [(a[k], b[k]) for k in a]
    elif not (holds_value(a) or holds_value(b)):
        return bool(folding.fold(cx, node, operator.eq, a, b))
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if type(a) is not type(b) or len(a) != len(b):
            return False
        pairs = zip(a, b, strict=True)
    elif isinstance(a, dict) or isinstance(b, dict):
        raise _no_comparison(cx, node, a, b)
    else:
        return _equal_numbers(cx, node, a, b)
    found: Truth = True
    for x, y in pairs:
        found = _joined(cx, "and", found, equal(cx, node, x, y))
    return found


def equals_any(
    cx: TranslationContext, node: SyntaxNode, thing: Evaluated, others: Sequence[Evaluated]
) -> Truth:
    """Return whether a thing equals one of others, as wholes."""
    found: Truth = False
    for other in others:
        found = _joined(cx, "or", found, equal(cx, node, thing, other))
    return found


def extreme(cx: TranslationContext, node: SyntaxNode, name: str, things: Sequence[Any]) -> Any:
    """Translate Python's `min` and `max` of tuples: the first one that no other one is before, or after."""
    best = things[0]
    for other in things[1:]:
        first, second = (other, best) if name == "min" else (best, other)
        better = _precedes(cx, node, first, second, or_equal=False)
        if isinstance(better, Value):
            best = _selected(cx, node, better, other, best)
        elif better:
            best = other
    return best


def _selected(
    cx: TranslationContext, node: SyntaxNode, better: Value, one: Evaluated, other: Evaluated
) -> Any:
    """Return one of two tuples, part by part."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(_selected(cx, node, better, x, y) for x, y in zip(one, other, strict=True))
    return cx.builder.named("select", better, *folding.operands(cx, node, one, other))


def _precedes(
    cx: TranslationContext, node: SyntaxNode, a: Evaluated, b: Evaluated, *, or_equal: bool
) -> Truth:
    """Return whether a is less than b; of tuples, the first parts that differ decide."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        # What is left when all parts of the shorter one are equal.
        found: Truth = len(a) <= len(b) if or_equal else len(a) < len(b)
        for x, y in reversed(list(zip(a, b, strict=False))):
            same = _joined(cx, "and", equal(cx, node, x, y), found)
            found = _joined(cx, "or", _precedes(cx, node, x, y, or_equal=False), same)
        return found
    if not _is_number(a) or not _is_number(b):
        raise _no_comparison(cx, node, a, b)
    if not isinstance(a, Value) and not isinstance(b, Value):
        return bool(folding.fold(cx, node, operator.le if or_equal else operator.lt, a, b))
    return _known(cx.builder.named("le" if or_equal else "lt", *folding.operands(cx, node, a, b)))


def _equal_numbers(cx: TranslationContext, node: SyntaxNode, a: Evaluated, b: Evaluated) -> Truth:
    """Return whether two parts are equal of which one is a run-time value."""
    numbers = (Value, *folding.Number, Matrix, np.ndarray, list)
    # A text, or another object, is no number, and equals none.
    if not (isinstance(a, numbers) and isinstance(b, numbers)):
        return False
    a, b = folding.operands(cx, node, a, b)
    shapes = [x.type.shape if isinstance(x, Value) else () for x in (a, b)]
    if shapes[0] != shapes[1]:
        return False
    same = cx.builder.named("eq", a, b)
    return _known(linalg.every(same) if shapes[0] else same)


def _is_number(thing: Evaluated) -> bool:
    if isinstance(thing, Value):
        return not thing.type.shape
    return isinstance(thing, folding.Number)


def _joined(cx: TranslationContext, name: str, a: Truth, b: Truth) -> Truth:
    """Join two truths by `and` or `or`; one that is known decides, or is left out."""
    for x, other in ((a, b), (b, a)):
        if not isinstance(x, Value):
            return other if x == (name == "and") else x
    return cx.builder.named(name, a, b)


def _not(cx: TranslationContext, found: Truth) -> Truth:
    return cx.builder.named("not", found) if isinstance(found, Value) else not found


def _known(found: Value) -> Truth:
    """Return a truth that the builder has computed as one of Python."""
    return bool(found.value) if isinstance(found, Const) and found.type is bool_ else found


def _no_comparison(
    cx: TranslationContext, node: SyntaxNode, a: Evaluated, b: Evaluated
) -> Exception:
    return cx.type_error(
        node, f"{describe(a)} and {describe(b)} cannot be compared", "compare parts of them"
    )
