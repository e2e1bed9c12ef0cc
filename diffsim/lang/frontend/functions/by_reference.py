"""`ds.template()` parameters that a func changes.

Elements of fields are passed by reference: the parameter is another name for the place in memory. Locals and
parts of them, which are values, are passed by value-result (copy-in, copy-out): at the end the new binding
of the parameter is assigned to the argument. The result is that of a call by reference, since arguments that
overlap are refused.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from diffsim.ir.nodes import Const, Value
from diffsim.lang.frontend import assignments, expressions, subscripts
from diffsim.lang.frontend.context import (
    ADJOINT,
    Frame,
    TranslationContext,
    load_struct,
    with_members,
)
from diffsim.lang.frontend.functions import structs
from diffsim.lang.frontend.values import (
    BoundPlace,
    ElementPlace,
    Environment,
    Evaluated,
    KernelLocal,
    StructVar,
    Undefined,
)
from diffsim.lang.host.annotations import Template
from diffsim.lang.host.func import BoundFunc, Func
from diffsim.lang.host.source import walk
from diffsim.lang.types import linalg


def changed(cx: TranslationContext, body: list[ast.stmt], frame: Frame | None = None) -> set[str]:
    """Return the names that statements bind or change, themselves or in funcs that they call by name.

    A loop carries these. `v[0] = `, `v.fill(0)` and `atomic_max(v, x)` change v. "p." is the receiver of a
    method call, which counts only if p is a struct. `frame` is the function that the statements are in (by
    default the one under translation).
    """
    frame = frame or cx.frame
    # By syntax, before the body is translated: a loop has to know the values
    # it carries when its body begins. A name too many costs a carried value
    # that is optimized away; one that is missing is found by `loop_body`.
    names: set[str] = set()
    for node in walk(body):
        if isinstance(node, ast.Call):
            names.update(_changed_by_call(cx, node, frame))
        elif not isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        elif isinstance(node, ast.Name):
            names.add(node.id)
        else:
            base: ast.AST = node
            while isinstance(base, (ast.Subscript, ast.Attribute)):
                if isinstance(base, ast.Subscript) and isinstance(base.slice, ast.Name):
                    names.add(ADJOINT + base.slice.id)  # ds.adjoint[x] += ...
                base = base.value
            if isinstance(base, ast.Name):
                names.add(base.id)
    return names - {"", "."}


def _changed_by_call(cx: TranslationContext, node: ast.Call, frame: Frame) -> Iterator[str]:
    """Yield the names that a call may change: the receiver, an atomic's target, arguments of a func."""
    called: str = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if isinstance(node.func, ast.Attribute):
        receiver: ast.expr = node.func.value
        while isinstance(receiver, ast.Attribute):
            receiver = receiver.value
        if isinstance(receiver, ast.Name):
            # The receiver may be any object; "p." is dropped by `with_members` unless p is a local struct.
            yield receiver.id if called == "fill" else f"{receiver.id}."
    if called.startswith("atomic_") and node.args and isinstance(node.args[0], ast.Name):
        yield node.args[0].id
    func, shift = _called(frame, node.func)
    if func is not None:
        passed = _passed(func, node, shift)
        for p, mark in parameters(cx, func).items():
            if p in passed:
                yield _root(passed[p]) + mark


def parameters(cx: TranslationContext, func: Func) -> dict[str, str]:
    """Return the `ds.template()` parameters that a func changes; "." if only where they are structs."""
    known = cx.reference_parameters.get(func)
    if known is None:
        # Ends the recursion for a func that calls itself, which is refused elsewhere.
        cx.reference_parameters[func] = {}
        mine = [p for p in _names(func) if _is_template(func, p)] if func.native is None else []
        names = changed(cx, func.source.node.body, Frame(func.source, None)) if mine else set()
        known = {p: mark for p in mine for mark in (".", "") if p + mark in names}
        cx.reference_parameters[func] = known
    return known


def places(cx: TranslationContext, node: ast.Call, func: Func, shift: int) -> dict[str, BoundPlace]:
    """Return the places in fields that a call passes for `ds.template()` parameters, by their names."""
    found: dict[str, BoundPlace] = {}
    for name, target in _passed(func, node, shift).items():
        if not _is_template(func, name) or (
            _root(target) in cx.env and not _names_place(cx, target)
        ):
            continue
        if not isinstance(target, (ast.Name, ast.Subscript, ast.Attribute)):
            continue
        # Evaluated once already, for the value of the argument; with an effect it must not be again.
        has_call = any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(target))
        place = None if has_call else subscripts.resolve_place(cx, target)
        if isinstance(place, BoundPlace):
            found[name] = place
        elif place is not None:
            found[name] = ElementPlace(place)
    return found


def _names_place(cx: TranslationContext, node: ast.expr) -> bool:
    return isinstance(cx.env.get(_root(node)), BoundPlace)


def assign(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    bound: Environment,
    after: Environment,
    shift: int,
) -> None:
    """Assign to the arguments of a call what the func has made of its parameters.

    Args:
        cx: the translation.
        node: the call.
        func: the func.
        bound: what its parameters were bound to.
        after: its bindings at its end.
        shift: how many parameters are bound before the first argument: one for `self`.
    """
    passed = _passed(func, node, shift)
    new: dict[str, Any] = {}
    for name in parameters(cx, func):
        if isinstance(bound[name], BoundPlace):  # the func itself has changed what is there
            continue
        thing = after.get(name)
        # The members are names of the func's environment, which is in force only while it is translated.
        if isinstance(thing, StructVar):
            env, cx.frame.env = cx.frame.env, after
            thing = load_struct(cx, thing, name)
            cx.frame.env = env
        if not _same(thing, bound[name]):
            new[name] = thing
    for name, thing in new.items():
        # All arguments are checked before any is assigned.
        target = passed.get(name, node)
        problem = f"{func.source.name} changes {name}, a ds.template() parameter"
        if _root(target) not in cx.env:
            raise cx.syntax(
                target,
                f"{problem}, and this is no local that can be changed",
                "pass a local, an element of a field, or a part of one",
            )
        if isinstance(thing, Undefined):
            raise cx.syntax(target, f"{problem}, which {thing.why}", "assign it on every path")
        if any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(target)):
            raise cx.syntax(target, f"{problem}, and this calls one", "give the index a name first")
        # With overlapping arguments, copying out would differ from
        # passing by reference: the last assignment would win.
        for other, e in passed.items():
            if other != name and _is_template(func, other) and not _is_disjoint(cx, target, e):
                raise cx.syntax(
                    target,
                    f"{problem}, and {_root(target)} is in another argument too",
                    f"give that one a name of its own first: other = {ast.unparse(e)}",
                )
        cx.changed_by_calls.add(_root(target))
    for name, thing in new.items():
        assignments.assign_to(cx, passed[name], thing)


def loop_body(
    cx: TranslationContext,
    node: ast.For | ast.While,
    carried: Iterable[str],
    block: Callable[[TranslationContext, list[ast.stmt]], None],
) -> None:
    """Translate a loop's body; refuse a change by a func that the loop does not carry."""
    # What `changed` could not see from the syntax (a func reached through a
    # list, say) is found here: a local that has another binding after the
    # body and is not carried would keep its old value in the next iteration.
    before = dict(cx.env)
    block(cx, node.body)
    known = with_members(before, carried)
    for name in sorted(cx.changed_by_calls):
        for n, thing in before.items():
            lost = n not in known and not _same(cx.env.get(n), thing)
            if (n == name or n.startswith(f"{name}.")) and lost:
                raise cx.syntax(
                    node,
                    f"{name} is changed in this loop, by a func that is not called by its name",
                    "call the func by its name, or have it return the new value",
                )


def _same(a: Evaluated, b: Evaluated) -> bool:
    """Return whether nothing was assigned in between."""
    members, others = getattr(a, "members", None), getattr(b, "members", None)
    if isinstance(members, dict) and isinstance(others, dict):
        return all(_same(members[m], others[m]) for m in members)
    return a is b or (isinstance(a, StructVar) and a == b)


def _names(func: Func) -> list[str]:
    spec = func.source.node.args
    return [p.arg for p in (*spec.posonlyargs, *spec.args)]


def _is_template(func: Func, name: str) -> bool:
    """Return whether a parameter is annotated `ds.template()`."""
    return isinstance(func.source.annotations().get(name), Template)


def _passed(func: Func, node: ast.Call, shift: int) -> dict[str, ast.expr]:
    """Return the expression passed for each parameter, as far as the syntax tells."""
    plain = itertools.takewhile(lambda e: not isinstance(e, ast.Starred), node.args)
    found = dict(zip(_names(func)[shift:], plain, strict=False))
    return found | {k.arg: k.value for k in node.keywords if k.arg is not None}


def _root(node: ast.expr) -> str:
    """Return the name that `u`, `u.x`, `m[0, 1]` or `p.pos[k]` starts with; "" for other expressions."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_disjoint(cx: TranslationContext, target: ast.expr, other: ast.expr) -> bool:
    """Return whether assigning to the target leaves unchanged what the other expression means."""
    names = [n.id for n in ast.walk(other) if isinstance(n, ast.Name)]
    if _root(target) not in names or not _root(other):
        return True  # an expression that is no place was evaluated before
    if names.count(_root(target)) > 1 or _root(other) != _root(target):
        return False  # it stands in an index
    for a, b in zip(_steps(target), _steps(other), strict=False):
        if isinstance(a, ast.Attribute) and isinstance(b, ast.Attribute) and a.attr != b.attr:
            x, y = ({linalg.COMPONENTS.get(c, c) for c in s.attr} for s in (a, b))
            return not x & y or not set(a.attr + b.attr) <= set(linalg.COMPONENTS)
        if isinstance(a, ast.Subscript) and isinstance(b, ast.Subscript):
            at, to = (_known(expressions.expr(cx, step.slice)) for step in (a, b))
            if any(
                x is not None and y is not None and x != y for x, y in zip(at, to, strict=False)
            ):
                return True
    return False


def _known(index: object) -> list[Any]:
    """Return the integers of an index, with None for those known at run time only."""
    parts = index if isinstance(index, tuple) else (index,)
    return [k.value if isinstance(k, Const) else k if isinstance(k, int) else None for k in parts]


def _steps(node: ast.expr) -> list[ast.expr]:
    """Return the chain of attributes and subscripts: `m[0]` and `m[0].x` for `m[0].x`."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return [*_steps(node.value), node]
    return []


def _called(frame: Frame, node: ast.expr) -> tuple[Func | None, int]:
    """Return the func that a chain of names means, and how many of its parameters are bound already."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None, 0
    # Without `TranslationContext.resolve`: this is only a guess
    # from the syntax, and must not record observations or raise.
    found = frame.env.get(node.id)
    if found is None and node.id not in frame.locals:
        cell = frame.cells.get(node.id)
        found = frame.globals.get(node.id) if cell is None else getattr(cell, "cell_contents", None)
    for name in reversed(path):
        if isinstance(found, (StructVar, structs.StructPlace)):
            method = found.type.methods.get(name)
            return (method, 1) if len(path) == 1 and method is not None else (None, 0)
        if isinstance(found, (Value, KernelLocal, Undefined)):
            return None, 0
        try:
            found = getattr(found, name, None)
        except Exception:  # of code of the program: it is reported where the call is translated
            return None, 0
    if isinstance(found, BoundFunc):
        return found.func, 1
    return (found, 0) if isinstance(found, Func) else (None, 0)
