"""Structs inside of kernels: as values and as places in fields.

A local struct is nothing but its members: the name `p` is bound to a `StructVar`, and each member to a name
of its own, "p.pos", which no name of Python can be. Branches merge and loops carry the members as they do
any local. As an expression it is a `StructValue`.
"""

from __future__ import annotations

import ast
from typing import Any

from diffsim.errors import KernelTypeError
from diffsim.ir.nodes import Mem, Value, zero
from diffsim.ir.types import Type
from diffsim.lang.frontend.context import StructValue, StructVar, TranslationContext
from diffsim.lang.host.func import Func
from diffsim.lang.host.inspection import is_struct_field
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.structs import Struct, StructType


class StructMethod:
    """A method of a struct, bound to the expression it was taken from."""

    def __init__(self, func: Func, owner: StructValue, node: ast.expr) -> None:
        self.func = func
        self.owner = owner
        self.node = node

    def in_words(self) -> str:
        return f"the method .{self.func.source.name}"

    @property
    def __name__(self) -> str:
        return f".{self.func.source.name}"


class StructPlace:
    """An element of a field of structs, or a struct inside of it."""

    def __init__(self, fields: dict[str, Any], type_: StructType, index: tuple[Value, ...]) -> None:
        self.fields = fields
        self.type = type_
        self.index = index

    def member(
        self, cx: TranslationContext, name: str, node: ast.expr
    ) -> StructPlace | tuple[Mem, tuple[Value, ...]]:
        """The place of a member."""
        if name not in self.fields:
            raise _no_member(cx, self.type, name, node)
        found = self.fields[name]
        if is_struct_field(found):
            return StructPlace(found._struct, found.type, self.index)
        return cx.use(found._mem), self.index

    def load(self, cx: TranslationContext, node: ast.expr) -> StructValue:
        """The struct that stands there."""
        members: dict[str, Any] = {}
        for name in self.fields:
            place = self.member(cx, name, node)
            if isinstance(place, StructPlace):
                members[name] = place.load(cx, node)
            else:
                members[name] = cx.builder.load(*place)
        return StructValue(self.type, members)


def _no_member(cx: TranslationContext, t: StructType, name: str, node: ast.expr) -> KernelTypeError:
    return cx.type_error(node, f"a {t.__name__} has no member {name}", t.advice(name))


def of_type(
    cx: TranslationContext, thing: Any, want: StructType, what: str, node: ast.expr
) -> StructValue:
    """The thing as a struct of that type."""
    thing = as_value(cx, thing, node)
    if not isinstance(thing, StructValue) or thing.type is not want:
        raise cx.type_error(
            node,
            f"{what} is a {want.__name__}, not {describe(thing)}",
            f"make one: {want.__name__}(...)",
        )
    return thing


def as_value(cx: TranslationContext, thing: Any, node: ast.expr) -> Any:
    """A struct of Python as one of the kernel; other things as they are."""
    if not isinstance(thing, Struct):
        return thing
    members: dict[str, Any] = {}
    for name, t in thing._type.members.items():
        one = thing._values[name]
        members[name] = (
            as_value(cx, one, node)
            if isinstance(t, StructType)
            else cx.builder.cast(cx.value(one, node, like=t), t.scalar)
        )
    return StructValue(thing._type, members)


def blank(t: Type | StructType) -> Any:
    """Zero in every member."""
    if isinstance(t, StructType):
        return StructValue(t, {name: blank(m) for name, m in t.members.items()})
    return zero(t)


def attribute(cx: TranslationContext, owner: StructValue, node: ast.Attribute) -> Any:
    """`p.pos`, `p.method`."""
    if node.attr in owner.members:
        return owner.members[node.attr]
    method = owner.type.methods.get(node.attr)
    if method is None:
        raise _no_member(cx, owner.type, node.attr, node)
    return StructMethod(method, owner, node.value)


def spread(env: dict[str, Any], name: str, value: StructValue) -> None:
    """Bind a name that had no value to a struct."""
    env[name] = StructVar(value.type)
    for member, thing in value.members.items():
        if isinstance(thing, StructValue):
            spread(env, f"{name}.{member}", thing)
        else:
            env[f"{name}.{member}"] = thing


def local_name(cx: TranslationContext, node: ast.expr) -> str | None:
    """The name that `p`, `p.pos` or `p.body.pos` is bound to, for a local p."""
    if isinstance(node, ast.Name):
        return node.id if node.id in cx.env else None
    if isinstance(node, ast.Attribute):
        owner = local_name(cx, node.value)
        if owner is not None and isinstance(cx.env[owner], StructVar):
            key = f"{owner}.{node.attr}"
            if key not in cx.env:
                raise _no_member(cx, cx.env[owner].type, node.attr, node)
            return key
    return None
