"""Dictionaries, comprehensions and `in`: containers whose keys and lengths are known at compile time.

Their elements may be run-time values. A dictionary of the kernel is a `KernelDict`, one of the program is
observed key by key, so that a launch notices a key that is new.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinMethodType
from typing import Any

import numpy as np

from diffsim.errors import KernelNameError
from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import bool_
from diffsim.lang.frontend import expressions, iteration_spaces
from diffsim.lang.frontend.context import TranslationContext, with_members
from diffsim.lang.frontend.operators import composites, folding
from diffsim.lang.frontend.values import Evaluated, KernelDict, PythonObject, holds_value
from diffsim.lang.host.field_like import is_field
from diffsim.lang.host.observations import CALL, ITEM
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.host.unsupported import close_to
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix


def display(cx: TranslationContext, node: ast.Dict) -> KernelDict:
    """Evaluate `{"a": x, **others}`."""
    made = KernelDict()
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            made.update(_merged(cx, value))
        else:
            made[_key(cx, key)] = expressions.expr(cx, value)
    return made


def sequence(cx: TranslationContext, nodes: Sequence[ast.expr]) -> list[Any]:
    """Evaluate the elements of `[a, *others]` or of the arguments of a call, from left to right."""
    made: list[Any] = []
    for one in nodes:
        made += _spread(cx, one) if isinstance(one, ast.Starred) else [expressions.expr(cx, one)]
    return made


def _spread(cx: TranslationContext, node: ast.Starred) -> Sequence[Any]:
    """Evaluate what `*` spreads: lists and vectors."""
    many = expressions.expr(cx, node.value)
    # The number of elements is needed now; a vector's size is part of its type.
    if isinstance(many, Value) and len(many.type.shape) == 1:
        many = linalg.elements(many)
    if isinstance(many, np.ndarray) and many.ndim > 0:
        many = [*many]
    if not isinstance(many, (list, tuple, range, Matrix)):
        raise cx.type_error(
            node, f"{describe(many)} cannot be unpacked", "only lists and vectors can"
        )
    return list(many)


def _merged(cx: TranslationContext, node: ast.expr) -> KernelDict:
    """Evaluate the dictionary after `**` in a display or comprehension."""
    others = expressions.expr(cx, node)
    if not isinstance(others, dict):
        raise cx.type_error(
            node, f"{describe(others)} is no dictionary", "only dictionaries can follow **"
        )
    return KernelDict(items(cx, others, node))


def _key(cx: TranslationContext, node: ast.expr) -> Any:
    """Evaluate the key of a dictionary."""
    return known_key(cx, expressions.expr(cx, node), node)


def known_key(cx: TranslationContext, key: Evaluated, node: SyntaxNode) -> Any:
    """Return a key of a dictionary, which is known at compile time."""
    if isinstance(key, Const):
        key = key.value
    parts = key if isinstance(key, tuple) else (key,)
    if holds_value(key) or not all(type(k).__hash__ for k in parts):
        raise cx.type_error(
            node,
            f"the key of a dictionary is known when the kernel is compiled, this is {describe(key)}",
            "use a text or a constant number; values looked up at run time belong in a field",
        )
    return key


def keys(cx: TranslationContext, owner: dict[Any, Any], node: SyntaxNode) -> list[Any]:
    """Return the keys of a dictionary; a later launch notices if there are others."""
    found = list(owner)
    if not isinstance(owner, KernelDict):
        cx.observe(CALL, list, (owner,), found, node)
    return found


def items(cx: TranslationContext, owner: dict[Any, Any], node: SyntaxNode) -> list[tuple[Any, Any]]:
    """Return keys and values of a dictionary."""
    found = [(k, owner[k]) for k in keys(cx, owner, node)]
    if not isinstance(owner, KernelDict):
        for k, thing in found:
            cx.observe(ITEM, owner, k, thing, node)
    return found


def is_method(function: object) -> bool:
    """Return whether it is a method of a dictionary that reads it: `d.items`, `d.get`."""
    return (
        isinstance(function, BuiltinMethodType)
        and isinstance(function.__self__, dict)
        and function.__name__ in ("items", "keys", "values", "get")
    )


def method(
    cx: TranslationContext,
    node: ast.Call,
    function: Any,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Translate `d.items()`, `d.keys()`, `d.values()` and `d.get(key, other)`."""
    owner, name = function.__self__, function.__name__
    least, most = (1, 2) if name == "get" else (0, 0)
    if kwargs or not least <= len(args) <= most:
        raise cx.type_error(
            node,
            f".{name} cannot be called with {len(args) + len(kwargs)} arguments",
            "write d.get(key, other)" if name == "get" else f"write d.{name}()",
        )
    if name == "keys":
        return keys(cx, owner, node)
    found = items(cx, owner, node)
    if name == "items":
        return found
    if name == "values":
        return [thing for _, thing in found]
    key, *other = args
    key = known_key(cx, key, node)
    return next((thing for k, thing in found if k == key), other[0] if other else None)


# ---- comprehensions


def comprehension(
    cx: TranslationContext, node: ast.ListComp | ast.DictComp | ast.GeneratorExp
) -> list[Any] | KernelDict:
    """Unroll a comprehension over things known at compile time."""
    made: list[Any] = []
    # As in Python, the targets' names are local to the comprehension.
    targets = [n for g in node.generators for n in ast.walk(g.target)]
    names = [n.id for n in targets if isinstance(n, ast.Name)]
    saved = {n: cx.env[n] for n in with_members(cx.env, names) if n in cx.env}

    def element() -> None:
        # Python 3.15 has `[*row for row in rows]` and `{**part for part in parts}`, which has no value.
        value: ast.expr | None = node.value if isinstance(node, ast.DictComp) else None
        if not isinstance(node, ast.DictComp):
            made.extend(sequence(cx, [node.elt]))
        elif value is None:
            made.extend(_merged(cx, node.key).items())
        else:
            made.append((_key(cx, node.key), expressions.expr(cx, value)))

    _generate(cx, node, 0, element)
    for name in with_members(cx.env, names):
        cx.env.pop(name, None)
    cx.env.update(saved)
    return KernelDict(made) if isinstance(node, ast.DictComp) else made


def _generate(
    cx: TranslationContext,
    node: ast.ListComp | ast.DictComp | ast.GeneratorExp,
    k: int,
    element: Callable[[], None],
) -> None:
    """Run the k-th `for` of a comprehension, and in it those after it."""
    if k == len(node.generators):
        element()
        return
    generator = node.generators[k]
    if generator.is_async:
        raise cx.syntax(node, "async cannot be used in a kernel", "leave it out")
    for item in _items(cx, generator.iter):
        iteration_spaces.bind_target(cx, generator.target, item)
        tests = [expressions.condition(cx, t) for t in generator.ifs]
        if any(isinstance(t, Value) for t in tests):
            raise cx.syntax(
                node,
                "the condition of a comprehension must be known before the launch",
                "write a loop",
            )
        if all(tests):
            _generate(cx, node, k + 1, element)


def _items(cx: TranslationContext, node: ast.expr) -> Iterable[Any]:
    """Evaluate what a `for` of a comprehension runs over."""
    things: PythonObject = expressions.expr(cx, node)
    # The length of a vector is known at compile time, its elements are not.
    if isinstance(things, Value) and len(things.type.shape) == 1:
        return linalg.elements(things)
    if isinstance(things, dict):
        return keys(cx, things, node)
    if not hasattr(type(things), "__iter__") or is_field(things):
        raise cx.syntax(
            node,
            "a comprehension runs over things known at compile time",
            "use range(n) with a constant n, or write a loop",
        )
    if isinstance(things, (list, tuple, iteration_spaces.Static, iteration_spaces.NdRange)):
        return things
    # A container or iterator of the program: its items are observed as one call of `list`.
    found: list[Any] = folding.fold(cx, node, list, things)
    return found


# ---- in


def contains(
    cx: TranslationContext, thing: Evaluated, container: Evaluated, node: SyntaxNode
) -> Value | bool:
    """Translate `thing in container` where a run-time value is among them: comparisons joined by `or`."""
    if isinstance(thing, Value) and thing.type.shape:
        raise cx.type_error(
            node, f"{describe(thing)} cannot be looked for", "compare elements, or a norm"
        )
    if isinstance(container, range) and isinstance(thing, Value):
        return _in_range(cx, thing, container, node)
    if isinstance(container, dict):
        container = keys(cx, container, node)
    if isinstance(container, Value) and len(container.type.shape) == 1:
        container = linalg.elements(container)
    elif isinstance(container, (Matrix, np.ndarray)):
        container = list(container)
    if not isinstance(container, (list, tuple, set, frozenset)):
        raise cx.type_error(
            node,
            f"`in` cannot look into {describe(container)}",
            "it looks into lists, tuples, sets, ranges and vectors; into a field by a loop",
        )
    if any(not isinstance(x, Value) and holds_value(x) for x in (thing, *container)):
        return composites.equals_any(cx, node, thing, list(container))
    # A text, or another object, is no number, and equals none.
    numbers = [x for x in container if isinstance(x, (Value, *folding.Number))]
    if not isinstance(thing, (Value, *folding.Number)):
        numbers = []
    found = [cx.builder.named("eq", *folding.operands(cx, node, thing, x)) for x in numbers]
    if not found:
        return False
    return functools.reduce(lambda a, b: cx.builder.named("or", a, b), found)


def _in_range(cx: TranslationContext, thing: Value, r: range, node: SyntaxNode) -> Value | bool:
    if not thing.type.is_int:
        raise cx.type_error(
            node, f"a range holds whole numbers, this is {describe(thing)}", "write a <= x < b"
        )
    if not r:
        return False
    least, most = min(r[0], r[-1]), max(r[0], r[-1])
    b = cx.builder
    found = b.named("and", b.named("ge", thing, least), b.named("le", thing, most))
    if abs(r.step) == 1:
        return found
    rest = b.named("mod", b.named("sub", thing, least), abs(r.step))
    return b.named("and", found, b.named("eq", rest, 0))


def negated(cx: TranslationContext, found: Value | bool) -> Value | bool:
    """Return the opposite of a truth."""
    if isinstance(found, Const) and found.type is bool_:
        found = bool(found.value)
    return cx.builder.named("not", found) if isinstance(found, Value) else not found


def item(owner: PythonObject, key: PythonObject) -> PythonObject:
    """Return `owner[key]`; report a missing key of a dictionary with the closest one."""
    try:
        return owner[key]
    except KeyError:
        close = (
            close_to(key, [k for k in owner if isinstance(k, str)])
            if key.__class__ is str
            else None
        )
        raise KernelNameError(
            f"{key!r} is not in the dictionary",
            None,
            hint=f"did you mean {close!r}?"
            if close
            else f"its keys are {', '.join(map(repr, owner))}",
        ) from None
