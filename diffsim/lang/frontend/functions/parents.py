"""`super()` in methods: funcs of the classes that a class inherits from."""

from __future__ import annotations

import ast
from types import FunctionType, MethodType
from typing import Any

from diffsim.errors import KernelNameError
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.values import StructVar
from diffsim.lang.host.observations import ITEM
from diffsim.lang.types.descriptions import describe


class Parents:
    """The value of `super()`: the classes after one in the order of an object's classes."""

    def __init__(self, owner: Any, after: type) -> None:
        self.owner = owner
        order = type(owner).__mro__
        self.classes = order[order.index(after) + 1 :]

    def in_words(self) -> str:
        return "super()"


def call(cx: TranslationContext, node: ast.Call) -> Parents:
    """Translate `super()` in a method of an object."""
    if node.args or node.keywords:
        raise cx.syntax(node, "super takes no arguments in a kernel", "write super()")
    spec = cx.frame.source.node.args
    first = next(iter((*spec.posonlyargs, *spec.args)), None)
    owner = None if first is None else cx.env.get(first.arg)
    cell = cx.frame.cells.get("__class__")
    after = None if cell is None else cell.cell_contents
    if (
        isinstance(owner, StructVar)
        or not isinstance(after, type)
        or after not in type(owner).__mro__
    ):
        raise cx.syntax(
            node,
            "super() is there in methods of objects of a class with @ds.data_oriented",
            "write what both methods do as a @ds.func outside the classes",
        )
    return Parents(owner, after)


def attribute(cx: TranslationContext, parents: Parents, node: ast.Attribute) -> Any:
    """Evaluate `super().name`."""
    for cls in parents.classes:
        if node.attr not in vars(cls):
            continue
        found = vars(cls)[node.attr]
        # Of the class, as the object's own attributes do not count here.
        cx.observe(ITEM, vars(cls), node.attr, found, node)
        if isinstance(found, FunctionType):
            return MethodType(found, parents.owner)
        get = getattr(type(found), "__get__", None)
        return found if get is None else get(found, parents.owner, type(parents.owner))
    raise KernelNameError(
        f"no class above has {node.attr}",
        cx.span(node),
        hint=f"look at the classes that {describe(parents.owner)} is made of",
    )
