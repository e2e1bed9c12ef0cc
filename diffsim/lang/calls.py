"""Calls, conversions, and what loops run over."""

from __future__ import annotations

import ast
import difflib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError
from diffsim.ir._row import Op
from diffsim.ir.nodes import Const, Value
from diffsim.ir.ops import TABLE, transpose
from diffsim.ir.types import ScalarType, TensorType, Type, bool_, i32, i64
from diffsim.lang import expressions, linalg, statements
from diffsim.lang.func import BoundFunc, Func
from diffsim.lang.matrix import Matrix, Vector
from diffsim.lang.scope import (
    DRAWS,
    RESULT,
    RETURN,
    Context,
    Frame,
    Intrinsic,
    describe,
)

_DEEPEST = 64


def close_to(name: str, known: list[str]) -> str | None:
    """The known name that is most like this one."""
    close = difflib.get_close_matches(name, known, 1)
    return close[0] if close else None


# ---- calls


def call(cx: Context, node: ast.Call) -> Any:
    function = expressions.expr(cx, node.func)
    if isinstance(function, Intrinsic) and function.lazy:
        return function.in_kernel(cx, node, node.args, {})
    args = _arguments(cx, node)
    kwargs = {}
    for k in node.keywords:
        if k.arg is None:
            raise cx.syntax(node, "** (unpacking of keywords) can not be used in a kernel")
        kwargs[k.arg] = expressions.expr(cx, k.value)
    cx.builder.span = cx.span(node)
    try:
        return _dispatch(cx, node, function, args, kwargs)
    except ValueError as problem:  # from formulas: shapes that do not fit
        if isinstance(problem, DiffsimError):
            raise
        raise cx.type_error(node, str(problem)) from None


def _arguments(cx: Context, node: ast.Call) -> list[Any]:
    args: list[Any] = []
    for a in node.args:
        if isinstance(a, ast.Starred):
            many = expressions.expr(cx, a.value)
            if isinstance(many, Value) and len(many.type.shape) == 1:
                many = linalg.elements(many)
            if not isinstance(many, (list, tuple, range)):
                raise cx.type_error(a, f"{describe(many)} can not be unpacked")
            args.extend(many)
        else:
            args.append(expressions.expr(cx, a))
    return args


def _dispatch(
    cx: Context, node: ast.Call, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    if isinstance(function, Intrinsic):
        return function.in_kernel(cx, node, args, kwargs)
    if isinstance(function, Op):
        _no_keywords(cx, node, kwargs, function.name)
        return apply(cx, node, function, args)
    if isinstance(function, (ScalarType, TensorType)) or function in (float, int, bool):
        if len(args) != 1 and not isinstance(function, TensorType):
            raise cx.type_error(node, f"a conversion takes one value, {len(args)} given")
        return convert(cx, args[0] if len(args) == 1 else args, function, node)
    if isinstance(function, expressions.Method):
        _no_keywords(cx, node, kwargs, function.name)
        return _method(cx, node, function, args)
    if isinstance(function, Func):
        return inline(cx, node, function, args, kwargs)
    if isinstance(function, BoundFunc):
        return inline(cx, node, function.func, [function.owner, *args], kwargs)
    if getattr(function, "_diffsim_kernel", False):
        raise cx.syntax(
            node,
            f"{function.__name__} is a kernel, and a kernel can not call a kernel",
            "make it a @ds.func, or launch both from Python one after the other",
        )
    if function is Matrix or function is Vector:
        return _matrix(cx, node, args, kwargs, vector=function is Vector)
    if function in (Matrix.rows, Matrix.cols):
        made = cx.stack(args[0], node)
        return made if function is Matrix.rows else cx.builder.op(transpose, (made,))
    if function is Matrix.diag:
        made = cx.value(Matrix.diag(args[0], 1.0), node)
        return made * cx.value(args[1], node)
    mapped = _BUILTINS.get(function) if _hashable(function) else None
    if mapped is not None:
        return mapped(cx, node, args, kwargs)
    return _python_call(cx, node, function, args, kwargs)


def _hashable(thing: Any) -> bool:
    return getattr(type(thing), "__hash__", None) is not None


def _no_keywords(cx: Context, node: ast.Call, kwargs: dict[str, Any], name: str) -> None:
    if kwargs:
        raise cx.type_error(node, f"{name} takes no keyword arguments")


def apply(cx: Context, node: Any, op: Op, args: list[Any]) -> Any:
    """An op of the table on values, numbers and lists."""
    if op.name in ("min", "max") and len(args) > 2:
        return functools.reduce(lambda a, b: apply(cx, node, op, [a, b]), args)
    if len(args) != len(op.operands) and op.typer is None:
        raise cx.type_error(
            node, f"ds.{op.name} takes {len(op.operands)} argument(s), {len(args)} given"
        )
    if all(isinstance(a, (bool, int, float)) for a in args) and op.name != "cast":
        result = op.ref(*args)
        return result.item() if isinstance(result, (np.generic, np.ndarray)) else result
    values = [a if isinstance(a, expressions.Number) else cx.value(a, node, "an argument") for a in args]
    return cx.builder.op(op, values)


def _method(cx: Context, node: ast.Call, method: expressions.Method, args: list[Any]) -> Any:
    if method.name == "cast":
        if len(args) != 1:
            raise cx.type_error(node, "cast takes the type")
        return convert(cx, method.owner, args[0], node)
    values = [a if isinstance(a, expressions.Number) else cx.value(a, node) for a in args]
    function = linalg.METHODS[method.name]
    try:
        return function(method.owner, *values)
    except TypeError as problem:
        if isinstance(problem, DiffsimError):
            raise
        raise cx.type_error(node, f"wrong number of arguments for .{method.name}()") from None


def convert(cx: Context, thing: Any, t: Any, node: Any) -> Any:
    """`ds.cast(thing, t)`: scalars and the elements of vectors and matrices."""
    if t in (float, int, bool):
        b = cx.builder
        t = {float: b.default_fp, int: b.default_ip, bool: bool_}[t]
    if isinstance(t, TensorType):
        v = cx.value(thing, node)
        if v.type.shape != t.shape:
            raise cx.type_error(node, f"a {v.type} can not become a {t}")
        return cx.builder.cast(v, t.scalar)
    if not isinstance(t, ScalarType):
        raise cx.type_error(
            node, f"{describe(t)} is not a type", hint="use ds.f32, ds.f64, ds.i32, ..."
        )
    if isinstance(thing, expressions.Number) and not isinstance(thing, Value):
        return cx.builder.cast(cx.builder.literal(thing), t) if not t.is_float else (
            cx.builder.const(thing, t)
        )
    v = cx.value(thing, node)
    if t.is_bool and not v.type.is_bool:
        return cx.builder.named("ne", v, 0)
    return cx.builder.cast(v, t)


def _matrix(
    cx: Context, node: ast.Call, args: list[Any], kwargs: dict[str, Any], *, vector: bool
) -> Value:
    dt = kwargs.pop("dt", args[1] if len(args) > 1 else None)
    if kwargs or not 1 <= len(args) <= 2:
        raise cx.type_error(node, "a vector or matrix is made of one list: ds.Vector([x, y])")
    made = cx.value(args[0], node, "the list of elements")
    if vector and len(made.type.shape) != 1:
        raise cx.type_error(node, "a vector has one axis", hint="for rows and columns use ds.Matrix")
    if not made.type.shape:
        raise cx.type_error(node, "a vector or matrix is made of a list: ds.Vector([x, y])")
    return made if dt is None else convert(cx, made, dt, node)


def inline(
    cx: Context, node: ast.Call, func: Func, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Translate a func in place of its call."""
    if cx.depth >= _DEEPEST:
        raise cx.syntax(
            node,
            f"{func.source.name} calls itself without end",
            "funcs are inlined, so recursion is not possible; write a loop",
        )
    frame = Frame(func.source, cx.span(node))
    frame.env = _bind(cx, node, func, args, kwargs)
    caller = cx.frame
    frame.env[DRAWS] = caller.env[DRAWS]
    cx.frame = frame
    cx.depth += 1
    span = cx.builder.span
    try:
        statements.block(cx, func.source.node.body)
        result = cx.env.get(RESULT)
        if result is not None and cx.env.get(RETURN) is not True:
            if not _always_returns(func.source.node.body):
                raise cx.syntax(
                    func.source.node,
                    f"{func.source.name} returns a value on some paths only",
                    "end it with a return that all other paths reach",
                )
        draws = cx.env[DRAWS]
    finally:
        cx.frame = caller
        cx.depth -= 1
        cx.builder.span = span
    caller.env[DRAWS] = draws
    return result


def _always_returns(body: list[ast.stmt]) -> bool:
    for s in body:
        if isinstance(s, ast.Return):
            return True
        if isinstance(s, ast.If) and _always_returns(s.body) and _always_returns(s.orelse):
            return True
    return False


def _bind(
    cx: Context, node: ast.Call, func: Func, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The parameters of a func bound to the call's arguments."""
    spec = func.source.node.args
    name = func.source.name
    if spec.vararg or spec.kwarg or spec.kwonlyargs:
        raise cx.syntax(node, f"{name} has *args, ** or keyword-only parameters, which funcs can not")
    params = [*spec.posonlyargs, *spec.args]
    if len(args) > len(params):
        raise cx.type_error(node, f"{name} takes {len(params)} argument(s), {len(args)} given")
    bound: dict[str, Any] = dict(zip((p.arg for p in params), args, strict=False))
    for k, v in kwargs.items():
        if k not in {p.arg for p in params}:
            raise cx.type_error(node, f"{name} has no parameter {k}")
        if k in bound:
            raise cx.type_error(node, f"{name} gets {k} twice")
        bound[k] = v
    defaults = func.source.function.__defaults__ or ()
    for p, default in zip(params[len(params) - len(defaults) :], defaults, strict=True):
        bound.setdefault(p.arg, default)
    annotations = func.source.function.__annotations__
    for p in params:
        if p.arg not in bound:
            raise cx.type_error(node, f"{name} needs a value for {p.arg}")
        t = annotations.get(p.arg)
        if isinstance(t, (ScalarType, TensorType)) or t in (float, int, bool):
            bound[p.arg] = convert(cx, bound[p.arg], t, node)
        elif isinstance(bound[p.arg], list):
            bound[p.arg] = list(bound[p.arg])
    return bound


# ---- Python's own functions


def _round(cx: Context, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1:
        raise cx.type_error(node, "round takes one value in a kernel")
    return apply(cx, node, TABLE["round"], args)


def _fold_builtin(name: str) -> Callable[..., Any]:
    def handler(cx: Context, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
        _no_keywords(cx, node, kwargs, name)
        if len(args) == 1 and name in ("min", "max"):
            args = linalg.elements(args[0]) if isinstance(args[0], Value) else list(args[0])
        if not args:
            raise cx.type_error(node, f"{name} of nothing")
        if all(isinstance(a, expressions.Number) for a in args):
            return {"min": min, "max": max, "abs": abs}[name](*args)
        if len(args) == 1 and name in ("min", "max"):
            return args[0]
        return apply(cx, node, TABLE[name], args)

    return handler


def _sum(cx: Context, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0]
    if isinstance(items, Value) and items.type.shape:
        return linalg.total(items)
    if not isinstance(items, (list, tuple)):
        raise cx.type_error(node, f"sum of {describe(items)}")
    start = args[1] if len(args) > 1 else 0
    add = functools.partial(expressions.binary, cx, ast.Add)
    return functools.reduce(lambda a, b: add(a, b, node), items, start)


def _pow(cx: Context, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2:
        raise cx.type_error(node, "pow takes a base and an exponent")
    return expressions.binary(cx, ast.Pow, args[0], args[1], node)


def _len(cx: Context, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and isinstance(args[0], Value) and args[0].type.shape:
        return args[0].type.shape[0]
    return _python_call(cx, node, len, args, kwargs)


def _print(cx: Context, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    raise cx.syntax(
        node,
        "print can not be used in a kernel yet",
        "store the value into a field and print that in Python",
    )


_BUILTINS: dict[Any, Callable[..., Any]] = {
    abs: _fold_builtin("abs"),
    min: _fold_builtin("min"),
    max: _fold_builtin("max"),
    round: _round,
    sum: _sum,
    pow: _pow,
    len: _len,
    print: _print,
}

_PURE = {range, tuple, list, zip, enumerate, isinstance, str, reversed, sorted, divmod, any, all, hasattr}


def _python_call(
    cx: Context, node: ast.Call, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """A call of Python's own: allowed where everything is known while compiling."""
    name = getattr(function, "__name__", type(function).__name__)
    module = (getattr(function, "__module__", "") or "").split(".")[0]
    if isinstance(function, np.ufunc):
        module = "numpy"
    home = getattr(function, "__qualname__", "").split(".")[0]
    at_run_time = any(isinstance(a, Value) for a in [*args, *kwargs.values()])
    if not callable(function):
        raise cx.type_error(node, f"{describe(function)} can not be called")
    if at_run_time and module in ("math", "numpy"):
        known = name in TABLE and TABLE[name].public
        raise cx.syntax(
            node,
            f"{module}.{name} can not be used on run-time values",
            f"use ds.{name}" if known else "write it with the functions of ds",
        )
    constructors = module == "diffsim" and home in ("Matrix", "Vector")
    if constructors or module in ("math", "numpy") or (_hashable(function) and function in _PURE):
        if at_run_time and function not in (zip, enumerate, list, tuple, reversed):
            raise cx.type_error(node, f"{name} needs values known while compiling")
        try:
            return function(*args, **kwargs)
        except DiffsimError:
            raise
        except Exception as problem:
            raise cx.type_error(node, f"{name} failed: {problem}") from None
    raise cx.syntax(
        node,
        f"{name} is a Python function, which can not be called in a kernel",
        f"decorate {name} with @ds.func if it is yours",
    )


# ---- what loops run over


class Space:
    """A box of indices, or items known while compiling (`static`)."""

    def __init__(
        self,
        axes: list[tuple[Value, Value]],
        *,
        kind: str = "tuple",
        static: Any = None,
        start: Value | None = None,
        step: int = 1,
    ) -> None:
        self.axes = axes
        self.kind = kind
        self.static = static
        self.start = start
        self.step = step

    def item(self, cx: Context, indices: list[Value]) -> Any:
        """What the loop's target is bound to in the turn with these indices."""
        if self.start is not None:
            return self.start + indices[0] * self.step
        if self.kind == "grouped":
            return cx.builder.tensor_of(indices, (len(indices),))
        return indices[0] if self.kind == "single" else tuple(indices)

    def hint(self, target: ast.expr, k: int) -> str:
        """The name of the k-th index in printed IR."""
        if isinstance(target, ast.Name):
            return target.id if len(self.axes) == 1 else f"{target.id}{k}"
        if isinstance(target, (ast.Tuple, ast.List)) and k < len(target.elts):
            one = target.elts[k]
            return one.id if isinstance(one, ast.Name) else ""
        return ""


class Grouped:
    """What `ds.grouped(...)` stands for while compiling."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class NdRange:
    """What `ds.ndrange(...)` stands for: bounds that may be run-time values."""

    def __init__(self, bounds: list[tuple[Any, Any]]) -> None:
        self.bounds = bounds

    def __iter__(self) -> Any:
        if not all(isinstance(x, int) for pair in self.bounds for x in pair):
            raise TypeError("bounds known while compiling are needed")
        lo = [a for a, _ in self.bounds]
        sizes = [max(0, b - a) for a, b in self.bounds]
        for index in np.ndindex(*sizes):
            yield tuple(i + a for i, a in zip(index, lo, strict=True))


def is_static(cx: Context, node: ast.expr) -> bool:
    """Whether a loop runs over things known while compiling, by its head."""
    if not isinstance(node, ast.Call):
        return isinstance(node, (ast.List, ast.Tuple))
    head = node.func
    if isinstance(head, ast.Name) and head.id in ("range", "zip", "enumerate"):
        return False
    if not isinstance(head, (ast.Name, ast.Attribute)):
        return False
    return getattr(expressions.expr(cx, head), "__name__", "") == "static"


def iteration_space(cx: Context, node: ast.expr) -> Space:
    """What a `for` runs over."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        return _range_space(cx, node)
    thing = expressions.expr(cx, node)
    kind = "tuple"
    if isinstance(thing, Static):
        return Space([], static=thing.items)
    if isinstance(thing, Grouped):
        kind, thing = "grouped", thing.inner
    if isinstance(thing, NdRange):
        axes = [_bounds(cx, node, lo, hi) for lo, hi in thing.bounds]
        kind = "single" if len(axes) == 1 and kind == "tuple" else kind
        return Space(axes, kind=kind)
    if hasattr(thing, "_mem"):
        mem = cx.use(thing._mem)
        if mem.rank == 0:
            raise cx.type_error(
                node, f"{mem.name} is 0-D, there is nothing to loop over", f"use {mem.name}[None]"
            )
        axes = [_bounds(cx, node, 0, n) for n in thing.shape]
        return Space(axes, kind="single" if mem.rank == 1 and kind == "tuple" else kind)
    if isinstance(thing, range):
        if thing.step == 1:
            return Space([_bounds(cx, node, thing.start, thing.stop)], kind="single")
        thing = list(thing)
    if isinstance(thing, (list, tuple, Matrix, zip, enumerate)) or (
        isinstance(thing, Value) and thing.type.shape
    ):
        raise cx.syntax(
            node, "a loop over a list or vector is unrolled", "say so: for e in ds.static(...)"
        )
    raise cx.type_error(
        node,
        f"a loop can not run over {describe(thing)}",
        hint="use range(n), ds.ndrange(n, m), a field, ds.grouped(field), or ds.static(...)",
    )


class Static:
    """What `ds.static(things)` stands for in a `for`."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, k: Any) -> Any:
        return self.items[k]


def _bounds(cx: Context, node: Any, lo: Any, hi: Any) -> tuple[Value, Value]:
    """Bounds as values of one integer type: i32, or i64 where that is not enough."""
    t: Type = i32
    for x in (lo, hi):
        if isinstance(x, Value):
            if not x.type.is_int or x.type.shape:
                raise cx.type_error(
                    node,
                    f"a bound of a loop is a whole number, not {x.type}",
                    hint="use ds.cast(n, ds.i32)",
                )
            if x.type.bits == 64 or x.type.name == "u32":  # type: ignore[union-attr]
                t = i64
        elif isinstance(x, bool) or not isinstance(x, (int, np.integer)):
            raise cx.type_error(node, f"a bound of a loop is a whole number, not {describe(x)}")
        elif not i32.holds(int(x)):
            t = i64
    made = [
        cx.builder.cast(x, t.scalar) if isinstance(x, Value) else Const(t, int(x)) for x in (lo, hi)
    ]
    return made[0], made[1]


def _range_space(cx: Context, node: ast.Call) -> Space:
    args = _arguments(cx, node)
    if node.keywords or not 1 <= len(args) <= 3:
        raise cx.type_error(node, "range takes one to three whole numbers")
    lo, hi = (0, args[0]) if len(args) == 1 else args[:2]
    step = args[2] if len(args) == 3 else 1
    if isinstance(step, Const):
        step = step.value
    if isinstance(step, Value) or not isinstance(step, int) or step == 0:
        raise cx.type_error(
            node, "the step of a range is a whole number known while compiling, and not 0"
        )
    first, last = _bounds(cx, node, lo, hi)
    if step == 1:
        return Space([(first, last)], kind="single")
    gap = last - first if step > 0 else first - last
    turns = cx.builder.named("max", cx.builder.named("floordiv", gap + (abs(step) - 1), abs(step)), 0)
    zero = cx.builder.const(0, first.type)
    return Space([(zero, turns)], kind="single", start=first, step=step)


def bind_target(cx: Context, target: ast.expr, item: Any) -> None:
    """Bind a loop's target to its item: names, nested tuples of names."""
    if isinstance(target, ast.Name):
        if isinstance(item, Value) and not item.hint and not isinstance(item, Const):
            item.hint = target.id
        cx.env[target.id] = item
        return
    if not isinstance(target, (ast.Tuple, ast.List)):
        raise cx.syntax(target, "the target of a loop is a name, or several")
    if isinstance(item, Value) and len(item.type.shape) == 1:
        item = linalg.elements(item)
    if not isinstance(item, (tuple, list)) or len(item) != len(target.elts):
        n = len(item) if isinstance(item, (tuple, list)) else 1
        raise cx.type_error(target, f"the loop gives {n} index(es), {len(target.elts)} name(s) are given")
    for one, part in zip(target.elts, item, strict=True):
        bind_target(cx, one, part)


