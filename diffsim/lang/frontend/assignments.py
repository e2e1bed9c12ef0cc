"""Assignments: to locals, to elements and components, to several targets at once.

A local keeps the type of its first value. A value stored into memory is converted to the memory's type.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from diffsim.ir.nodes import Atomic, Block, Const, Mem, Store, Value
from diffsim.ir.traversal import statements
from diffsim.ir.types import Type, an
from diffsim.lang.frontend import (
    calls,
    iteration_spaces,
    partial_assignments,
    subscripts,
    tasks,
)
from diffsim.lang.frontend.context import TranslationContext, with_members
from diffsim.lang.frontend.expressions import expr, value
from diffsim.lang.frontend.functions import custom_derivatives, inlining, structs
from diffsim.lang.frontend.narrowing import keep_type, narrowed, refuse_fraction
from diffsim.lang.frontend.operators import arithmetic, folding
from diffsim.lang.frontend.subscripts import resolve_component
from diffsim.lang.frontend.values import (
    BoundPlace,
    Evaluated,
    KernelContainer,
    KernelLocal,
    Place,
    StructValue,
    StructVar,
)
from diffsim.lang.host.field_like import is_field
from diffsim.lang.host.inspection import is_ours
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe, sample
from diffsim.lang.types.matrix import Matrix


def assign(cx: TranslationContext, node: ast.Assign) -> None:
    """Translate `a = b = thing`."""
    # Evaluated once, then assigned from left to right, as in Python.
    thing = expr(cx, node.value)
    for target in node.targets:
        _begin_anew(cx, target)
        assign_to(cx, target, thing, node.value)


def annotated(cx: TranslationContext, node: ast.AnnAssign) -> None:
    """Translate `a: ds.f64 = thing`."""
    if node.value is None:
        raise cx.syntax(node, "a declaration without a value", "give it a value")
    # The annotation is an expression of the program, such as ds.f64 or a type alias.
    t = expr(cx, node.annotation)
    thing, what = expr(cx, node.value), ast.unparse(node.target)
    _begin_anew(cx, node.target)
    assign_to(cx, node.target, calls.convert(cx, thing, t, node, assigned=what))


def _begin_anew(cx: TranslationContext, target: ast.expr) -> None:
    """Drop the types of the names in a target whose branch or unrolled iteration has ended."""
    frame = cx.frame
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            _begin_anew(cx, part)
    elif isinstance(target, ast.Starred):
        _begin_anew(cx, target.value)
    elif isinstance(target, ast.Name) and target.id in frame.ended:
        frame.ended -= {target.id}
        # A local in memory is one for all tasks.
        if not isinstance(cx.env.get(target.id), (KernelLocal, KernelContainer)):
            for name in with_members(cx.env, [target.id]):
                cx.env.pop(name, None)


def assign_to(
    cx: TranslationContext, target: ast.expr, thing: Evaluated, source: ast.expr | None = None
) -> None:
    """Assign to a name, an element or component, or a tuple of targets.

    `source` is the expression of the assigned operand, for errors about it.
    """
    source = source or target
    if isinstance(target, ast.Name):
        bound = cx.env.get(target.id)
        if isinstance(bound, BoundPlace):
            _store(cx, subscripts.bound_place(bound), thing, source)
        else:
            assign_local(cx, target.id, thing, target)
        return
    if isinstance(target, (ast.Tuple, ast.List)):
        parts = thing
        if isinstance(thing, Value) and thing.type.shape:
            flat = parts = linalg.elements(thing)
            # Iterating over a matrix gives its rows, as in NumPy.
            for n in thing.type.shape[1:]:
                starts = range(0, len(flat), n)
                parts = [cx.builder.tensor_of(flat[k : k + n], (n,)) for k in starts]
        elif isinstance(thing, (Matrix, iteration_spaces.Static)) or (
            isinstance(thing, np.ndarray) and thing.ndim > 0
        ):
            parts = list(thing)
        if not isinstance(parts, (list, tuple)):
            raise cx.type_error(
                source, f"{describe(thing)} cannot be unpacked", "only lists and vectors can"
            )
        _unpack(cx, target, list(parts), source)
        return
    # Several functions look at the target to find out what it is; its indices may have effects.
    with cx.indices_once(target):
        _assign_part(cx, target, thing, source)


def _unpack(
    cx: TranslationContext, target: ast.Tuple | ast.List, parts: list[Any], source: ast.expr
) -> None:
    """Assign `a, b = parts`; of `a, *b = parts`, b is the list of those that no other name takes."""
    targets = target.elts
    # For `a, b = x, y` errors point to the element that is assigned, and not to all of them.
    is_written = isinstance(source, (ast.Tuple, ast.List)) and len(source.elts) == len(parts)
    given: list[ast.expr] = source.elts if is_written else [source] * len(parts)  # type: ignore[attr-defined]
    stars = [k for k, one in enumerate(targets) if isinstance(one, ast.Starred)]
    if len(parts) < len(targets) - len(stars) or (not stars and len(parts) > len(targets)):
        raise cx.type_error(
            target,
            f"{len(targets) - len(stars)} names for {len(parts)} values",
            "write as many names as values",
        )
    for k in stars:  # at most one: Python's parser refuses more
        end = k + 1 + len(parts) - len(targets)
        parts[k:end], given = [parts[k:end]], [*given[:k], source, *given[end:]]
    for one, part, at in zip(targets, parts, given, strict=True):
        name = one.value if isinstance(one, ast.Starred) else one
        # An underscore would otherwise keep the type of its first value.
        if not _is_discarded(cx, name):
            assign_to(cx, name, part, at)


def _is_discarded(cx: TranslationContext, target: ast.expr) -> bool:
    """Return whether the target is an underscore that nobody reads; such a name takes any type."""
    is_underscore = isinstance(target, ast.Name) and target.id == "_"
    return is_underscore and "_" not in cx.frame.source.reads


def _assign_part(
    cx: TranslationContext, target: ast.expr, thing: Evaluated, source: ast.expr
) -> None:
    """Assign to an element, or to several of a vector or matrix."""
    # From the most to the least specific: components of an element, an element, a part of a local.
    several = partial_assignments.component_places(cx, target)
    if several:
        places, shape = several
        things = partial_assignments.spread(cx, thing, shape, source)
        for (mem, index), one in zip(places, things, strict=True):
            cx.builder.store(mem, index, stored(cx, mem, index, one, source))
        return
    place = subscripts.resolve_place(cx, target)
    if place is not None:
        _store(cx, place, thing, source)
        return
    partial_assignments.assign(cx, target, thing, source)


def _store(
    cx: TranslationContext,
    place: structs.StructPlace | Place,
    thing: Evaluated,
    source: ast.expr,
) -> None:
    """Store into an element of a field."""
    if isinstance(place, structs.StructPlace):
        new = structs.of_type(cx, thing, place.type, "the value", source)
        structs.store(cx, place, new, source)
        return
    cx.builder.store(*place, stored(cx, *place, thing, source))


def assign_local(cx: TranslationContext, name: str, thing: Evaluated, target: ast.expr) -> None:
    """Assign to a local; "p.pos" is the name of a member of the local p."""
    env = cx.env
    old = env.get(name)
    thing = structs.as_value(cx, thing, target)
    # A struct is assigned member by member, each with its own type.
    if isinstance(thing, StructValue):
        structs.assign(cx, name, thing, target)
        return
    if isinstance(old, StructVar):
        raise cx.type_error(
            target,
            f"{name} is {describe(old)} and cannot become {describe(thing)}",
            f"name a member: {', '.join(f'{name}.{m}' for m in old.type.members)}",
        )
    # A member of a struct has a declared type; other locals take that of their first value.
    if "." in name and isinstance(old, (Value, KernelLocal)):
        want = old.mem.dtype if isinstance(old, KernelLocal) else old.type
        thing = cx.value(thing, target, name, want)
        if want.shape and not thing.type.shape:
            thing = cx.builder.broadcast(thing, want)
    # All lanes would write the same memory.
    if isinstance(old, (KernelLocal, KernelContainer)) and cx.in_task:
        raise tasks.race_error(cx, name, target)
    # A number in an assignment becomes a value with a type: it may be changed in a loop or branch later.
    if isinstance(thing, folding.Number):
        have = old.mem.dtype if isinstance(old, KernelLocal) else getattr(old, "type", None)
        thing = cx.value(
            thing, target, like=have if isinstance(old, (Value, KernelLocal)) else None
        )
    elif isinstance(thing, (list, tuple)) and (vector := _tensor_type(old)):
        thing = cx.value(thing, target, name, vector)
    # A copy: lists are values in kernels, as vectors are.
    elif isinstance(thing, list):
        thing = list(thing)
    elif isinstance(thing, Matrix):
        thing = cx.value(thing, target)
    if isinstance(thing, Value):
        if isinstance(old, KernelLocal):
            thing = keep_type(cx, thing, old.mem.dtype, name, target)
        elif isinstance(old, Value):
            thing = keep_type(cx, thing, old.type, name, target)
        # For readable IR. Constants are shared and have no name.
        if not thing.hint and not isinstance(thing, Const):
            thing.hint = name
    elif isinstance(old, Value):
        raise cx.type_error(
            target,
            f"{name} is {describe(old)} and cannot become {describe(thing)}",
            f"use another name for {describe(thing)}"
            + ("; a vector is ds.Vector([...])" if isinstance(thing, (list, tuple)) else ""),
        )
    # No code is emitted: in SSA an assignment is a new binding of the name.
    env[name] = thing


def _tensor_type(old: object) -> Type | None:
    """Return the type of a local that is a vector or matrix: a list that it is given is one, too."""
    t = old.mem.dtype if isinstance(old, KernelLocal) else getattr(old, "type", None)
    return t if isinstance(t, Type) and t.shape else None


def stored(
    cx: TranslationContext, mem: Mem, index: tuple[Value, ...], thing: Evaluated, node: SyntaxNode
) -> Value:
    """Convert an operand to the type of the memory it is stored into; report what that may lose."""
    # An index longer than the rank names a component of the element.
    want = mem.dtype.scalar if len(index) > mem.rank else mem.dtype
    have = cx.value(thing, node, "the value", want)
    if have.type.shape != want.shape:
        if have.type.shape:
            raise cx.type_error(
                node,
                f"an element of {mem.name} is {an(mem.dtype)}, this is {an(have.type)}",
                f"store one number, or {an(mem.dtype)}" if mem.dtype.shape else "store one number",
            )
        have = cx.builder.broadcast(have, want)
    refuse_fraction(
        cx,
        have,
        want.scalar,
        node,
        f"an element of {mem.name} is {an(mem.dtype)}, {an(have.type)} would lose its fraction",
        f"convert it: ds.cast(value, ds.{want.scalar})",
    )
    return narrowed(cx, have, want.scalar, mem.name)


def augmented(cx: TranslationContext, node: ast.AugAssign) -> None:
    """Translate `x[i] += v`: atomic on memory; on locals it is `a = a + v`."""
    if custom_derivatives.add_to_adjoint(cx, node):
        return
    with cx.indices_once(node.target):
        _augment(cx, node)


def _augment(cx: TranslationContext, node: ast.AugAssign) -> None:
    """Translate an augmented assignment whose indices are evaluated once."""
    target, kind = node.target, type(node.op)
    if _append(cx, node):
        return
    several = partial_assignments.component_places(cx, target)
    if several:
        places, shape = several
        with _values_before(cx, node, places) as olds:
            things = partial_assignments.spread(cx, expr(cx, node.value), shape, node.value)
        for one, old, thing in zip(places, olds, things, strict=True):
            _augment_place(cx, node, one, old, thing)
        return
    # An element of a field: atomic, since another lane may update it too. Where the lane owns the element,
    # a later pass makes a plain update of it (`passes/transforms/demote_atomics.py`).
    place = resolve_component(cx, target)
    if place is not None:
        with _values_before(cx, node, [place]) as (old,):
            thing = expr(cx, node.value)
        _augment_place(cx, node, place, old, thing)
        return
    name = structs.local_name(cx, target)
    if name is not None and isinstance(cx.env.get(name), KernelLocal) and cx.in_task:
        tasks.accumulate(cx, cx.env[name].mem, kind, value(cx, node.value), node)
        return
    old_thing = expr(cx, target)
    if is_field(old_thing):
        raise cx.type_error(
            target,
            f"{describe(old_thing)} as a whole cannot be changed",
            f"name an element: {sample(old_thing, ast.unparse(target))}",
        )
    # A local: no other lane sees it.
    thing = _added_as(cx, kind, old_thing, expr(cx, node.value), node)
    new = arithmetic.binary(cx, kind, old_thing, thing, node)
    assign_to(cx, target, new)


def _added_as(
    cx: TranslationContext,
    kind: type[ast.operator],
    old: Evaluated,
    thing: Evaluated,
    node: ast.AugAssign,
) -> Evaluated:
    """Convert a float that is added to a local of integers, as for elements of fields: `n += 0.5` adds 0."""
    is_number = isinstance(old, Value) or type(old) is int
    is_float = isinstance(thing, (float, Value, Matrix))
    if kind not in tasks.ATOMIC or not is_number or not is_float or cx.strict:
        return thing
    to = cx.value(old, node).type.scalar
    v = cx.value(thing, node.value)
    if not to.is_int or not v.type.is_float:
        return thing
    return narrowed(cx, v, to, ast.unparse(node.target))


def _append(cx: TranslationContext, node: ast.AugAssign) -> bool:
    """Translate `A[i, j] += v` of a sparse matrix under construction; False if the target is none."""
    target = node.target
    if not isinstance(target, ast.Subscript) or not isinstance(
        target.value, (ast.Name, ast.Attribute)
    ):
        return False
    name = structs.local_name(cx, target.value)
    owner = expr(cx, target.value) if name is None else cx.env[name]
    append = getattr(type(owner), "_diffsim_append", None) if is_ours(owner) else None
    if append is None:
        return False
    index = subscripts.index_list(cx, target)
    if len(index) != 2 or not isinstance(node.op, (ast.Add, ast.Sub)):
        raise cx.syntax(
            node,
            "elements of a sparse matrix are added to, by row and column",
            "write A[i, j] += v",
        )
    v = value(cx, node.value)
    call = ast.copy_location(ast.Call(target, [], []), node)
    given = [owner, *index, -v if isinstance(node.op, ast.Sub) else v]
    inlining.inline(cx, call, append, given, {})
    return True


@contextlib.contextmanager
def _values_before(
    cx: TranslationContext, node: ast.AugAssign, places: list[partial_assignments.Place]
) -> Iterator[list[Value | None]]:
    """Load what is at the places of `x[i] *= f()` before the right side is evaluated in the `with`.

    None for an atomic update, which reads memory later than Python would: the right side must not write
    there.
    """
    # No atomic update exists for * and the like: the element is loaded, changed and stored.
    if type(node.op) not in tasks.ATOMIC:
        yield [cx.builder.load(*place) for place in places]
        return
    before = len(cx.builder.stmts)
    yield [None] * len(places)
    # The order differs from Python's only if the right side itself writes to the element.
    for s in statements(Block(cx.builder.stmts[before:])):
        if isinstance(s, (Store, Atomic)) and any(_may_alias(place, s) for place in places):
            raise cx.syntax(
                node,
                f"{ast.unparse(node.value)} changes {s.mem.name}, which this adds to: Python reads "
                f"{ast.unparse(node.target)} before that, and this update after it",
                f"give the value a name first, v = {ast.unparse(node.value)}, and then write "
                f"{ast.unparse(node.target)} {_SIGNS.get(type(node.op), '+')}= v",
            )


_SIGNS = {ast.Sub: "-", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}


def _may_alias(place: partial_assignments.Place, s: Store | Atomic) -> bool:
    """Return whether a statement may write to a place: not if a constant index differs."""
    mem, index = place
    # Conservative: run-time indices may be equal.
    pairs = zip(index, s.index, strict=False)
    return mem is s.mem and not any(
        isinstance(a, Const) and isinstance(b, Const) and a.value != b.value for a, b in pairs
    )


def _augment_place(
    cx: TranslationContext,
    node: ast.AugAssign,
    place: partial_assignments.Place,
    old: Value | None,
    thing: Evaluated,
) -> None:
    """Update an element: atomically if the operator allows, else by load and store."""
    (mem, index), kind = place, type(node.op)
    if old is None:
        v = stored(cx, mem, index, thing, node.value)
        # Addition of the negative, so that reductions and adjoints have one rule for both.
        if kind is ast.Sub:
            v = -v
        elif kind in (ast.BitAnd, ast.BitOr, ast.BitXor) and not v.type.is_int:
            raise cx.type_error(
                node,
                f"bitwise operators need integers, an element of {mem.name} is {an(mem.dtype)}",
                f"declare {mem.name} with ds.i32",
            )
        cx.builder.atomic(tasks.ATOMIC[kind], mem, index, v)
        return
    new = arithmetic.binary(cx, kind, old, thing, node)
    cx.builder.store(mem, index, stored(cx, mem, index, new, node.value))
