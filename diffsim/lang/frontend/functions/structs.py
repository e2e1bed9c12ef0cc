"""Structs inside kernels: as values, as places in fields, and the operations on them.

Local structs are replaced by scalars (scalar replacement of aggregates): the name `p` is bound to a
`StructVar`, and each member to a name of its own, "p.pos", which is no name of Python. Branches merge and
loops carry the members as they do any local. As an expression a struct is a `StructValue`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from diffsim.errors import KernelTypeError
from diffsim.ir.nodes import Mem, Value, zero
from diffsim.ir.types import ScalarType, TensorType, Type, an, f64, i32
from diffsim.lang.frontend import assignments, calls, subscripts
from diffsim.lang.frontend.context import TranslationContext, load_struct
from diffsim.lang.frontend.functions import inlining
from diffsim.lang.frontend.values import (
    BoundPlace,
    Environment,
    Evaluated,
    StructValue,
    StructVar,
    Undefined,
    parts_of,
)
from diffsim.lang.host.field_like import AnyField, StructFieldLike
from diffsim.lang.host.func import Func, UndecoratedFunc
from diffsim.lang.host.source import Source
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.flattening import is_wide
from diffsim.lang.types.structs import Struct, StructType, struct_type, types_of_tuple


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


class StructPlace(BoundPlace):
    """An element of a field of structs, or a struct inside one.

    Invariant: `fields` has the members of `type`, and `index` is an index into each of them.
    """

    def __init__(
        self, fields: Mapping[str, AnyField], type_: StructType, index: tuple[Value, ...]
    ) -> None:
        self.fields = fields
        self.type = type_
        self.index = index

    def member(
        self, cx: TranslationContext, name: str, node: ast.expr
    ) -> StructPlace | tuple[Mem, tuple[Value, ...]]:
        """Return the place of a member."""
        if name not in self.fields:
            raise _no_member(cx, self.type, name, node)
        found = self.fields[name]
        # A struct in a struct: its members are fields too, and the index is the same.
        if isinstance(found, StructFieldLike):
            return StructPlace(found._struct, found.type, self.index)
        return cx.use(found._mem), self.index

    def load(self, cx: TranslationContext, node: ast.expr) -> StructValue:
        """Load the struct."""
        members: dict[str, Any] = {}
        for name in self.fields:
            place = self.member(cx, name, node)
            if isinstance(place, StructPlace):
                members[name] = place.load(cx, node)
            else:
                members[name] = cx.builder.load(*place)
        return StructValue(self.type, members)


def _no_member(cx: TranslationContext, t: StructType, name: str, node: ast.expr) -> KernelTypeError:
    """Return the error for a member that a struct does not have."""
    return cx.type_error(node, f"a {t.__name__} has no member {name}", t.advice(name))


def of_type(
    cx: TranslationContext, thing: Evaluated, want: StructType, what: str, node: ast.expr
) -> StructValue:
    """Convert an operand to a struct of this type; refuse others."""
    thing = as_value(cx, thing, node)
    # Types are compared by identity: two structs with equal members may mean different things.
    if not isinstance(thing, StructValue) or thing.type is not want:
        raise cx.type_error(
            node,
            f"{what} is a {want.__name__}, not {describe(thing)}",
            f"make one: {want.__name__}(...)",
        )
    return thing


def as_typed(
    cx: TranslationContext, thing: Evaluated, t: Any, what: str, node: ast.expr
) -> Evaluated:
    """Convert an operand to an annotated type: of a number, vector, struct, or a tuple of these."""
    if isinstance(t, StructType):
        return of_type(cx, thing, t, what, node)
    types = types_of_tuple(t)
    if types is None:
        v = cx.value(thing, node, what, t if isinstance(t, (ScalarType, TensorType)) else None)
        shape = t.shape if isinstance(t, TensorType) else ()
        if v.type.shape != shape:
            raise cx.type_error(
                node, f"{what} is {describe(t)}, not {an(v.type)}", "give one of that shape"
            )
        return calls.convert(cx, v, t, node, assigned=what)
    if not isinstance(thing, (list, tuple)) or len(thing) != len(types):
        raise cx.type_error(
            node, f"{what} is {len(types)} values, not {describe(thing)}", "return as many values"
        )
    return tuple(as_typed(cx, one, u, what, node) for one, u in zip(thing, types, strict=True))


def as_row(cx: TranslationContext, thing: Evaluated) -> list[Value]:
    """Return the scalars of a struct or tuple as f64, as `ResultForm.read` expects them."""
    parts = parts_of(thing)
    if parts is not None:
        return [v for part in parts for v in as_row(cx, part)]
    assert isinstance(thing, Value)
    b = cx.builder
    made: list[Value] = []
    for v in linalg.elements(thing) if thing.type.shape else [thing]:
        if not is_wide(v.type):
            made.append(b.cast(b.cast(v, i32) if v.type.is_bool else v, f64))
            continue
        # The upper half with the sign, and the lower half without.
        made.append(b.cast(b.named("shr", v, b.const(32, v.type)), f64))
        made.append(b.cast(b.named("bit_and", v, b.const(0xFFFFFFFF, v.type)), f64))
    return made


def as_value(cx: TranslationContext, thing: Evaluated, node: ast.expr) -> Evaluated:
    """Convert a struct of Python to one of the kernel; return other operands as they are."""
    # Idempotent, so that callers need not know which kind of struct they have.
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


def zero_of(t: Type | StructType) -> Value | StructValue:
    """Return a zero of the type; of a struct type, zero in every member."""
    if isinstance(t, StructType):
        return StructValue(t, {name: zero_of(m) for name, m in t.members.items()})
    return zero(t)


def attribute(cx: TranslationContext, owner: StructValue, node: ast.Attribute) -> Evaluated:
    """Evaluate `p.pos` or `p.method` of a struct."""
    if node.attr in owner.members:
        return owner.members[node.attr]
    # Members first: `StructType` refuses a member with the name of a method.
    method = owner.type.methods.get(node.attr)
    if method is None:
        raise _no_member(cx, owner.type, node.attr, node)
    return StructMethod(method, owner, node.value)


def spread(env: Environment, name: str, value: StructValue) -> None:
    """Bind a name without a value to a struct, and its members to theirs."""
    # The environment of a new frame: there is no former binding whose type would have to be kept.
    env[name] = StructVar(value.type)
    for member, thing in value.members.items():
        if isinstance(thing, StructValue):
            spread(env, f"{name}.{member}", thing)
        else:
            env[f"{name}.{member}"] = thing


def local_name(cx: TranslationContext, node: ast.expr) -> str | None:
    """Return the name that `p`, `p.pos` or `p.body.pos` is bound to, for a local p; None for others."""
    if isinstance(node, ast.Name):
        # A name for a place in a field is no local.
        known = node.id in cx.env and not isinstance(cx.env[node.id], BoundPlace)
        return node.id if known else None
    if isinstance(node, ast.Attribute):
        owner = local_name(cx, node.value)
        # Only chains that begin with a local struct; everything
        # else is a place in a field or an expression.
        if owner is not None and isinstance(cx.env[owner], StructVar):
            key = f"{owner}.{node.attr}"
            if key not in cx.env:
                raise _no_member(cx, cx.env[owner].type, node.attr, node)
            return key
    return None


# ---- operations


def make(
    cx: TranslationContext,
    node: ast.expr,
    t: StructType,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> StructValue:
    """Translate `Particle(pos, mass=m)`."""
    # The rules for arguments are those of the type in Python; only the errors differ.
    given = t.bind(args, kwargs, lambda text, hint: cx.type_error(node, text, hint))
    members: dict[str, Any] = {}
    for name, want in t.members.items():
        # As in Python: members that are not given are 0.
        if name not in given:
            members[name] = zero_of(want)
        elif isinstance(want, StructType):
            members[name] = of_type(cx, given[name], want, f"{name} of {t.__name__}", node)
        else:
            members[name] = _fitting(cx, node, given[name], want, f"{name} of {t.__name__}")
    return StructValue(t, members)


def make_nameless(
    cx: TranslationContext, node: ast.expr, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> StructValue:
    """Translate `ds.Struct(pos=p, mass=1.0)`: a struct of a type without a name."""
    given = dict(args[0]) if len(args) == 1 and isinstance(args[0], dict) else {}
    if len(args) > bool(given) or not (given or kwargs):
        raise cx.type_error(node, "ds.Struct takes members by name", "write ds.Struct(mass=1.0)")
    members = {k: as_value(cx, thing, node) for k, thing in (given | kwargs).items()}
    members = {
        k: m if isinstance(m, StructValue) else cx.value(m, node, k) for k, m in members.items()
    }
    t = struct_type("struct", {k: m.type for k, m in members.items()})
    return StructValue(t, members)


def _fitting(
    cx: TranslationContext,
    node: ast.expr,
    thing: Evaluated,
    want: Type,
    what: str,
) -> Value:
    """Convert the value of a member to the member's type."""
    v = cx.value(thing, node, what, want)
    # One number fills all elements of a vector.
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
    cx: TranslationContext,
    place: StructPlace,
    new: StructValue,
    source: ast.expr,
    old: StructValue | None = None,
) -> None:
    """Store a struct member by member; those that are the values in `old`, which were loaded there, stay."""
    for name, thing in new.members.items():
        was = old and old.members[name]
        if thing is was:
            continue
        # Each member is a field of its own, with its own type and conversion.
        at = place.member(cx, name, source)
        if isinstance(at, StructPlace):
            store(cx, at, thing, source, was)
        else:
            cx.builder.store(*at, assignments.stored(cx, *at, thing, source))


def assign(cx: TranslationContext, name: str, new: StructValue, target: ast.expr) -> None:
    """Bind a local to a struct, member by member."""
    # A struct of another type has other members, whose names would remain bound.
    old = cx.env.get(name)
    if old is not None and old != StructVar(new.type) and not isinstance(old, Undefined):
        raise cx.type_error(
            target,
            f"{name} is {describe(old)} and cannot become {describe(new)}",
            f"use another name for {describe(new)}",
        )
    cx.env[name] = StructVar(new.type)
    for member, thing in new.members.items():
        assignments.assign_local(cx, f"{name}.{member}", thing, target)


def call_method(
    cx: TranslationContext,
    node: ast.Call,
    method: StructMethod,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Translate `p.method(...)`; what the method assigns to members of `self` is assigned to those of p.

    The method is inlined on a copy of p, which is then assigned back: p may be an element of a field. Of that
    only members that the method changes are written.
    """
    func = method.func
    if cx.strict and isinstance(func, UndecoratedFunc):
        raise cx.syntax(
            node,
            f"{func.source.name} is a Python function, which cannot be called in a kernel",
            f"decorate {func.source.name} with @ds.func",
        )
    # The usual case: nothing to assign back, so any expression can be the receiver.
    if not assigns_self(func.source):
        return inlining.inline(cx, node, func, [method.owner, *args], kwargs)
    owner = method.node
    if any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(owner)):
        raise cx.syntax(
            owner,
            f"{func.source.name} changes the struct it is called on, which comes from a call here",
            "give the index or the struct a name first",
        )
    # Copy-in, copy-out, as for `ds.template()` parameters.
    env: Environment = {}
    result = inlining.inline(cx, node, func, [method.owner, *args], kwargs, env)
    # The receiver's parameter, whatever its name is: by convention `self`.
    receiver = func.source.node.args.args[0].arg
    var = env[receiver]
    assert isinstance(var, StructVar)
    # Members are bound in the method's environment, which is in force only while they are loaded.
    frame_env, cx.frame.env = cx.frame.env, env
    changed = load_struct(cx, var, receiver)
    cx.frame.env = frame_env
    if local_name(cx, owner) is not None:
        assignments.assign_to(cx, owner, changed)
        return result
    with cx.indices_once(owner):
        place = subscripts.resolve_place(cx, owner)
        # A struct that is an intermediate result: the change would be lost.
        if not isinstance(place, StructPlace):
            raise cx.type_error(
                owner,
                f"{func.source.name} changes the struct it is called on, and this one cannot be changed",
                "copy it to a local first",
            )
        # Members that the method leaves alone may be read by other lanes meanwhile.
        store(cx, place, changed, owner, method.owner)
    return result


def assigns_self(source: Source) -> bool:
    """Return whether a method may change the struct it is called on.

    A call of another method counts, as that may.
    """
    name = source.node.args.args[0].arg if source.node.args.args else ""
    # By syntax, and conservatively: a method that is taken to change its struct costs only a copy.
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
