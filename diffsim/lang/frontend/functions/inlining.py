"""Inlining: each call of a func is translated in place, its parameters bound to the arguments."""

from __future__ import annotations

import ast
from typing import Any

from diffsim.ir.types import ScalarType, TensorType, an
from diffsim.lang.frontend import calls, statements
from diffsim.lang.frontend.context import (
    ADJOINT,
    DRAWS,
    RESULT,
    RETURN,
    AdjointTargets,
    Frame,
    TranslationContext,
)
from diffsim.lang.frontend.functions import (
    by_reference,
    custom_derivatives,
    inline_llvm,
    structs,
)
from diffsim.lang.frontend.values import Environment, Evaluated, KernelDict, StructValue
from diffsim.lang.host.func import Func, RealFunc
from diffsim.lang.host.observations import ATTRIBUTE, ITEM
from diffsim.lang.host.source import Source
from diffsim.lang.types.structs import StructType

# Nested calls. Python's own stack ends soon after, with a RecursionError that names no line.
_DEEPEST = 256


def inline(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
    env: Environment | None = None,
) -> Evaluated:
    """Translate a call of a func; `env` receives its bindings at the end."""
    if isinstance(func, RealFunc):
        return _typed(cx, node, func, args, kwargs)
    return _inline(cx, node, func, args, kwargs, env)


def _typed(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Translate a call of a func with types, and convert its result."""
    name = func.source.name
    if func.source in cx.running:
        raise cx.syntax(
            node,
            f"{name} calls itself",
            "each call is translated in place, so a func cannot call itself; write a loop",
        )
    result = _inline(cx, node, func, args, kwargs, None)
    t = func.source.annotations().get("return")
    if (t is None) != (result is None):
        gives = "returns a value" if t is None else "returns nothing"
        raise cx.syntax(
            func.source.node,
            f"{name} {gives}, and its def {'lacks the type' if t is None else 'gives a type'}",
            f"write def {name}(...) -> ds.f32:" if t is None else "add a return",
        )
    return None if t is None else structs.as_typed(cx, result, t, f"the result of {name}", node)


def _inline(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
    env: Environment | None,
) -> Evaluated:
    # The IR has no calls, so a func that calls itself would be inlined
    # without end, unless a condition known at compile time ends it.
    if len(cx.running) >= _DEEPEST:
        name = func.source.name
        if func.source in cx.running:
            raise cx.syntax(
                node,
                f"{name} calls itself without end",
                "each call is translated in place, so a func cannot call itself; write a loop",
            )
        raise cx.syntax(
            node,
            f"{name} is called by a chain of more than {_DEEPEST} funcs",
            "each call is translated in place; make fewer funcs of them, or a loop",
        )
    bound = bind(cx, node, func, args, kwargs)
    # A call with a derivative of its own remains a statement; all others dissolve into the caller's code.
    if func.gradient is not None or func.replay is not None:
        # Its CustomCall computes results from arguments: a
        # changed argument would be a result without an adjoint.
        _refuse_stars(cx, node, func)
        what = next(iter(by_reference.parameters(cx, func)), None if env is None else "its struct")
        if what is not None:
            raise cx.syntax(
                node,
                f"{func.source.name} changes {what}, so it can have no gradient or replay of its own",
                "return what it changes",
            )
        return custom_derivatives.call(cx, node, func, bound)
    changed = by_reference.parameters(cx, func)
    if not changed:
        return body(cx, node, func, bound, after=env)
    # Passing by reference, by copying in and out.
    after: Environment = {} if env is None else env
    # Structs of Python are constants; a copy of the kernel's can be changed.
    bound |= {name: structs.as_value(cx, bound[name], node) for name in changed}
    bound |= by_reference.places(cx, node, func, len(args) - len(node.args))
    result = body(cx, node, func, bound, after=after)
    by_reference.assign(cx, node, func, bound, after, len(args) - len(node.args))
    return result


def _refuse_stars(cx: TranslationContext, node: ast.Call, func: Func) -> None:
    """Refuse `*args` of a func with a gradient of its own, which has an adjoint for each parameter."""
    spec = func.source.node.args
    if spec.vararg or spec.kwarg or spec.kwonlyargs:
        raise cx.syntax(
            node,
            f"{func.source.name} has parameters with * or after one, and a gradient or replay of its own",
            "name each parameter",
        )


def body(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    bound: Environment,
    *,
    after: Environment | None = None,
) -> Evaluated:
    """Translate the func's own body, not its replay or gradient."""
    if func.native is not None:
        return inline_llvm.call(cx, func, bound)
    return run(cx, node, func.source, bound, after=after)


def run(
    cx: TranslationContext,
    node: ast.Call,
    source: Source,
    env: Environment,
    *,
    targets: AdjointTargets | None = None,
    after: Environment | None = None,
) -> Any:
    """Translate a function's statements with its parameters bound; return its result.

    Args:
        cx: the translation.
        node: the call.
        source: the function.
        env: what its parameters are bound to.
        targets: what it may add to, if it is the gradient of a func.
        after: receives its bindings at its end.
    """
    # A frame of its own, with names of its own: inlining never captures a caller's local.
    frame = Frame(source, cx.span(node), targets)
    # Only the parameters are visible: a func does not see the locals of its caller.
    for name, thing in env.items():
        thing = structs.as_value(cx, thing, node)
        if isinstance(thing, StructValue):
            structs.spread(frame.env, name, thing)
        else:
            frame.env[name] = thing
    caller = cx.frame
    # The number of random draws belongs to the lane, and continues through calls.
    frame.env[DRAWS] = caller.env[DRAWS]
    cx.frame = frame
    cx.running.append(source)
    span = cx.builder.span
    try:
        statements.block(cx, source.node.body)
        # All returns were merged into RESULT.
        result = cx.env.get(RESULT)
        if result is not None:
            check_returns(cx, source)
        if targets is not None:
            targets.sums = {k: cx.env[ADJOINT + k] for k in targets.types}
        draws = cx.env[DRAWS]
        if after is not None:
            after.update(cx.env)
    finally:
        cx.frame = caller
        cx.running.pop()
        cx.builder.span = span
    # Not in `finally`: after an error the translation ends.
    caller.env[DRAWS] = draws
    return result


def check_returns(cx: TranslationContext, source: Source) -> None:
    """Refuse a function that returns a value on some paths and nothing on others."""
    # The merged RESULT of a path without a return would be a 0 that nobody wrote.
    bare = source.bare_return
    if bare or (cx.env.get(RETURN) is not True and not _always_returns(source.node.body)):
        raise cx.syntax(
            bare or source.node,
            f"{source.name} returns a value on some paths only",
            "give the value here too"
            if bare
            else "end it with a return that all other paths reach",
        )


def _always_returns(body: list[ast.stmt]) -> bool:
    """Return whether every path through these statements ends with a return."""
    for s in body:
        if isinstance(s, ast.Return):
            return True
        if isinstance(s, ast.If):
            # By the text, since the branch that was not taken is not translated: one side is enough.
            known = isinstance(s.test, ast.Call) and ast.unparse(s.test.func).endswith("static")
            sides = [_always_returns(s.body), _always_returns(s.orelse)]
            if all(sides) or (known and any(sides)):
                return True
        if isinstance(s, ast.While):
            # `while True:` without break ends by a return only.
            endless = isinstance(s.test, ast.Constant) and s.test.value
            if endless and statements.find(s.body, ast.Break) is None:
                return True
    return False


def bind(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> dict[str, Any]:
    """Bind the parameters of a func to the arguments of a call."""
    spec = func.source.node.args
    name = func.source.name
    params = [*spec.posonlyargs, *spec.args]
    names = {p.arg for p in (*params, *spec.kwonlyargs)}
    if len(args) > len(params) and not spec.vararg:
        raise cx.type_error(
            node, f"{name} takes {calls.count(len(params))}, {len(args)} given", _head(func)
        )
    # 1. Arguments by position, then by name, then defaults, as in Python (Language Reference, 6.3.4).
    bound: Environment = dict(zip((p.arg for p in params), args, strict=False))
    others = KernelDict()
    for k, v in kwargs.items():
        if k not in names and not spec.kwarg:
            raise cx.type_error(node, f"{name} has no parameter {k}", _head(func))
        if k in bound:
            raise cx.type_error(node, f"{name} gets {k} twice", _head(func))
        (bound if k in names else others)[k] = v
    _bind_defaults(cx, node, func, bound)
    # As in Python `*args` is a tuple, and `**options` a dictionary of what no other parameter takes.
    if spec.vararg:
        bound[spec.vararg.arg] = tuple(args[len(params) :])
    if spec.kwarg:
        bound[spec.kwarg.arg] = others
    params += spec.kwonlyargs
    # 2. Conversions to the annotated types.
    annotations = func.source.annotations()
    for p in params:
        if p.arg not in bound:
            raise cx.type_error(node, f"{name} needs a value for {p.arg}", _head(func))
        t = annotations.get(p.arg)
        if isinstance(t, StructType):
            what = f"{p.arg} of {name}"
            bound[p.arg] = structs.of_type(cx, bound[p.arg], t, what, node)
        elif isinstance(t, (ScalarType, TensorType)) or calls.is_python_type(t):
            bound[p.arg] = _parameter(cx, node, func, p.arg, bound[p.arg], t)
        # Arguments are passed by value: what the func assigns to `v[0]` does not change the caller's list.
        elif isinstance(given := bound[p.arg], list):
            bound[p.arg] = list(given)
    return bound


def _bind_defaults(cx: TranslationContext, node: ast.Call, func: Func, bound: Environment) -> None:
    """Bind the parameters that a call leaves out to their defaults."""
    spec, function = func.source.node.args, func.source.function
    params = [*spec.posonlyargs, *spec.args]
    given = function.__defaults__ or ()
    defaults = dict(zip((p.arg for p in params[len(params) - len(given) :]), given, strict=True))
    missing = (defaults | (function.__kwdefaults__ or {})).keys() - bound.keys()
    what = f"a default of {func.source.name}"
    if missing & defaults.keys():
        cx.observe(ATTRIBUTE, function, "__defaults__", given, what, at=node)
    for p, default in defaults.items():
        bound.setdefault(p, default)
    keywords = function.__kwdefaults__ or {}
    for p in sorted(missing & keywords.keys()):
        cx.observe(ITEM, keywords, p, keywords[p], what, at=node)
        bound[p] = keywords[p]


def _parameter(
    cx: TranslationContext, node: ast.Call, func: Func, name: str, given: object, t: Any
) -> Evaluated:
    """Convert an argument to the annotated type of its parameter; refuse what would lose something."""
    v = cx.value(given, node, f"the argument {name}")
    shape = t.shape if isinstance(t, TensorType) else ()
    # A float for an integer parameter loses its fraction, and its derivative.
    to_int = t is int or (isinstance(t, (ScalarType, TensorType)) and t.is_int)
    if v.type.shape != shape or (cx.strict and to_int and v.type.is_float):
        want = an(t) if isinstance(t, (ScalarType, TensorType)) else f"of type {t.__name__}"
        raise cx.type_error(
            node, f"{name} of {func.source.name} is {want}, not {an(v.type)}", _head(func)
        )
    return calls.convert(cx, given, t, node, assigned=f"{name} of {func.source.name}")


def _head(func: Func) -> str:
    """Write the func's definition, for hints."""
    return f"its definition is def {func.source.name}({ast.unparse(func.source.node.args)})"
