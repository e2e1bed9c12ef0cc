"""Functions of Python that arrange sequences: their lengths are known at compile time, items need not be.

Python makes iterators of them, here they are lists.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from diffsim.ir.nodes import Value
from diffsim.lang.frontend import calls, expressions, iteration_spaces
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.values import Evaluated, holds_value

Handler = Callable[
    [TranslationContext, ast.Call, list[Evaluated], dict[str, Evaluated]], list[Evaluated]
]


def _lists(cx: TranslationContext, node: ast.Call, args: list[Evaluated]) -> list[list[Evaluated]]:
    """Return the items of each argument."""
    return [iteration_spaces.items_of(cx, a, node) for a in args]


def _arranged(
    function: Callable[..., Iterable[Any]],
    cx: TranslationContext,
    node: ast.Call,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> list[Evaluated]:
    """Let Python arrange items of sequences; numbers among the arguments stay as they are."""
    given = [a if type(a) is int else iteration_spaces.items_of(cx, a, node) for a in args]
    try:
        found = list(
            itertools.islice(function(*given, **kwargs), iteration_spaces.MOST_UNROLLED + 1)
        )
    except (TypeError, ValueError) as problem:
        raise cx.type_error(
            node,
            str(problem),
            "call it as in Python; lengths are known when the kernel is compiled",
        ) from None
    iteration_spaces.check_unrolled(cx, node, len(found))
    return found


def _map(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> list[Evaluated]:
    if len(args) < 2 or kwargs:
        raise cx.type_error(node, "map takes a function and lists", "write map(function, list)")
    rows = zip(*_lists(cx, node, args[1:]), strict=False)
    return [calls.call_evaluated(cx, node, args[0], list(row), {}) for row in rows]


def _filter(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> list[Evaluated]:
    if len(args) != 2 or kwargs:
        raise cx.type_error(
            node, "filter takes a function and a list", "write filter(function, list)"
        )
    made = []
    for item in _lists(cx, node, args[1:])[0]:
        kept = item if args[0] is None else calls.call_evaluated(cx, node, args[0], [item], {})
        test = expressions.truth(cx, kept, node)
        if isinstance(test, Value):
            raise cx.syntax(
                node,
                "the condition of filter must be known before the launch",
                "write a loop with an if",
            )
        if test:
            made.append(item)
    return made


def _reduce(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if not 2 <= len(args) <= 3 or kwargs:
        raise cx.type_error(
            node,
            "reduce takes a function, a list and a first value",
            "write reduce(function, list)",
        )
    items = [*args[2:], *_lists(cx, node, args[1:2])[0]]
    if not items:
        raise cx.type_error(node, "reduce of an empty list has no value", "give a first value")
    return functools.reduce(lambda a, b: calls.call_evaluated(cx, node, args[0], [a, b], {}), items)


def _sorted(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> list[Evaluated]:
    """Sort by keys that are known at compile time."""
    if len(args) != 1 or not kwargs.keys() <= {"key", "reverse"}:
        raise cx.type_error(node, "sorted takes a list, key= and reverse=", "write sorted(list)")
    items = _lists(cx, node, args)[0]
    function = kwargs.get("key")
    keys: list[Any] = [
        item if function is None else calls.call_evaluated(cx, node, function, [item], {})
        for item in items
    ]
    if any(map(holds_value, keys)):
        raise cx.type_error(
            node,
            "sorted needs keys that are known before the launch",
            "order two values with ds.min and ds.max; fields with ds.algorithms.parallel_sort",
        )
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=bool(kwargs.get("reverse")))
    return [items[k] for k in order]


_ARRANGING: tuple[Callable[..., Iterable[Any]], ...] = (
    zip, enumerate, reversed, list, tuple, itertools.product, itertools.combinations, itertools.permutations,
    itertools.combinations_with_replacement, itertools.chain, itertools.pairwise,
)  # fmt: skip

SEQUENCES: dict[Any, Callable[..., Any]] = {
    **{f: functools.partial(_arranged, f) for f in _ARRANGING if f is not tuple},
    map: _map,
    filter: _filter,
    sorted: _sorted,
}
"""Translations of functions whose results loops are unrolled over."""

BUILTINS: dict[Any, Callable[..., Any]] = {
    **SEQUENCES,
    tuple: lambda cx, node, args, kwargs: tuple(_arranged(tuple, cx, node, args, kwargs)),
    functools.reduce: _reduce,
}
