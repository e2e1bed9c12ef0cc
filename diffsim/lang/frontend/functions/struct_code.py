"""Structs inside of kernels: what makes, stores, assigns and calls them."""

from __future__ import annotations

import ast
from typing import Any

from diffsim.ir.nodes import Value
from diffsim.ir.types import Type, an
from diffsim.lang.frontend import assignments, calls, subscripts
from diffsim.lang.frontend.context import StructValue, StructVar, TranslationContext, Undefined
from diffsim.lang.frontend.functions import inlining, struct_values
from diffsim.lang.host.source import Source
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.structs import StructType


def make(
    cx: TranslationContext,
    node: ast.expr,
    t: StructType,
    args: list[Any],
    kwargs: dict[str, Any],
) -> StructValue:
    """`Particle(pos, mass=m)` in a kernel."""
    given = t.bind(args, kwargs, lambda text, hint: cx.type_error(node, text, hint))
    members: dict[str, Any] = {}
    for name, want in t.members.items():
        if name not in given:
            members[name] = struct_values.blank(want)
        elif isinstance(want, StructType):
            members[name] = struct_values.of_type(
                cx, given[name], want, f"{name} of {t.__name__}", node
            )
        else:
            members[name] = _fitting(cx, node, given[name], want, f"{name} of {t.__name__}")
    return StructValue(t, members)


def _fitting(
    cx: TranslationContext,
    node: ast.expr,
    thing: Any,
    want: Type,
    what: str,
) -> Value:
    v = cx.value(thing, node, what, want)
    if want.shape and not v.type.shape:
        v = cx.builder.broadcast(v, want)
    if v.type.shape != want.shape or (v.type.is_float and not want.is_float):
        raise cx.type_error(
            node,
            f"{what} is {an(want)}, not {an(v.type)}",
            "convert it with ds.cast" if v.type.shape == want.shape else "give one of that shape",
        )
    return calls.convert(cx, v, want, node, assigned=what)


def store(
    cx: TranslationContext, place: struct_values.StructPlace, new: StructValue, source: ast.expr
) -> None:
    """Store a struct member by member."""
    for name, thing in new.members.items():
        at = place.member(cx, name, source)
        if isinstance(at, struct_values.StructPlace):
            store(cx, at, thing, source)
        else:
            cx.builder.store(*at, assignments.stored(cx, *at, thing, source))


def assign(cx: TranslationContext, name: str, new: StructValue, target: ast.expr) -> None:
    """Bind a local to a struct, member by member."""
    old = cx.env.get(name)
    if old is not None and old != StructVar(new.type) and not isinstance(old, Undefined):
        raise cx.type_error(
            target,
            f"{name} is {describe(old)} and can not become {describe(new)}",
            f"use another name for {describe(new)}",
        )
    cx.env[name] = StructVar(new.type)
    for member, thing in new.members.items():
        assignments.assign_local(cx, f"{name}.{member}", thing, target)


def call_method(
    cx: TranslationContext,
    node: ast.Call,
    method: struct_values.StructMethod,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    """`p.method(...)`: what it assigns to members of `self` is assigned to those of p."""
    func = method.func
    if not assigns_self(func.source):
        return inlining.inline(cx, node, func, [method.owner, *args], kwargs)
    owner = method.node
    if any(isinstance(n, ast.Call) for n in ast.walk(owner)):
        raise cx.syntax(
            owner,
            f"{func.source.name} changes the struct it is called on, which comes from a call here",
            "give the index or the struct a name first",
        )
    env: dict[str, Any] = {}
    result = inlining.inline(cx, node, func, [method.owner, *args], kwargs, env)
    me = func.source.node.args.args[0].arg
    var = env[me]
    frame_env, cx.frame.env = cx.frame.env, env
    changed = var.load(cx, me)
    cx.frame.env = frame_env
    if struct_values.local_name(cx, owner) is None and subscripts.any_place(cx, owner) is None:
        raise cx.type_error(
            owner,
            f"{func.source.name} changes the struct it is called on, and this one can not be changed",
            "copy it to a local first",
        )
    assignments.assign_to(cx, owner, changed)
    return result


def assigns_self(source: Source) -> bool:
    """Whether a method changes the struct it is called on."""
    name = source.node.args.args[0].arg if source.node.args.args else ""
    for node in ast.walk(source.node):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            base: ast.expr = node
            while isinstance(base, (ast.Attribute, ast.Subscript)):
                base = base.value
            if isinstance(base, ast.Name) and base.id == name:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            base = node.func.value
            if isinstance(base, ast.Name) and base.id == name:
                return True  # another method, which may
    return False
