"""Calls and conversions.

A call is dispatched by the kind of its callee: an intrinsic, an op, a func, a type, a method or a function of
Python. Functions of Python run at compile time, on constants only.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError
from diffsim.ir.nodes import Const, Value
from diffsim.ir.op import WHOLE, Op
from diffsim.ir.ops import transpose
from diffsim.ir.types import ScalarType, TensorType, an, bool_
from diffsim.lang.frontend import expressions
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import (
    containers,
    custom_derivatives,
    inlining,
    parents,
    printing,
    python_calls,
    sparse_trees,
    structs,
)
from diffsim.lang.frontend.narrowing import narrowed
from diffsim.lang.frontend.operators import arithmetic, folding
from diffsim.lang.frontend.values import Evaluated, PythonObject
from diffsim.lang.host.annotations import as_of_now
from diffsim.lang.host.func import BoundFunc, Func, Given, PyFunc, RealFunc
from diffsim.lang.host.inspection import is_ours
from diffsim.lang.host.intrinsic import Intrinsic
from diffsim.lang.host.observations import ATTRIBUTE
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import advice, describe
from diffsim.lang.types.matrix import UNBOUND, Matrix
from diffsim.lang.types.structs import StructType
from diffsim.lang.types.vector import Vector
from diffsim.parameters import placed, signature_of
from diffsim.public_names import summary


def call(cx: TranslationContext, node: ast.Call) -> Evaluated:
    """Translate a call."""
    # The list x[i] of a dynamic is no element, so its syntax decides.
    if isinstance(node.func, ast.Attribute) and node.func.attr in sparse_trees.METHODS:
        done = sparse_trees.method(cx, node)
        if done is not None:
            return done[0]
    function = expressions.expr(cx, node.func)
    # An atomic update gets the syntax of its target: evaluating it would load the element.
    if isinstance(function, Intrinsic) and function.lazy:
        named = {k.arg: k.value for k in node.keywords if k.arg is not None}
        return function.in_kernel(cx, node, *placed(function.parameters, node.args, named))
    if function is print:
        printing.show(cx, node)
        return None
    if function is breakpoint:
        printing.stop(cx, node)
        return None
    if function is super:
        return parents.call(cx, node)
    args = arguments(cx, node)
    kwargs = {}
    for k in node.keywords:
        if k.arg is None:
            kwargs.update(_unpacked(cx, k.value))
        else:
            kwargs[k.arg] = expressions.expr(cx, k.value)
    cx.builder.span = cx.span(node)  # arguments have set the place to their own lines
    try:
        return call_evaluated(cx, node, function, args, kwargs)
    except ValueError as problem:  # from formulas: shapes that do not fit
        if isinstance(problem, DiffsimError):
            raise
        raise cx.type_error(
            node, str(problem), "give arguments of the types and shapes that this takes"
        ) from None


def arguments(cx: TranslationContext, node: ast.Call) -> list[Any]:
    """Evaluate the positional arguments of a call; `*` spreads lists and vectors."""
    args: list[Evaluated] = []  # from left to right, as in Python: arguments may have effects
    for a in node.args:
        if isinstance(a, ast.GeneratorExp):  # consumed by the call, as a list is
            args.append(containers.comprehension(cx, a))
        else:
            args.extend(containers.sequence(cx, [a]))
    return args


def _unpacked(cx: TranslationContext, node: ast.expr) -> dict[str, Evaluated]:
    """Evaluate `**options` in a call."""
    thing = expressions.expr(cx, node)
    if not isinstance(thing, dict) or not all(isinstance(k, str) for k in thing):
        raise cx.type_error(
            node,
            f"{describe(thing)} cannot be unpacked to keyword arguments",
            "only a dictionary can, whose keys are texts",
        )
    return dict(containers.items(cx, thing, node))


def call_evaluated(
    cx: TranslationContext,
    node: ast.Call,
    function: Any,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Translate a call of an evaluated function with evaluated arguments."""
    # Common kinds first. Objects are compared by class or identity, as `==` may be code of the program.
    function = as_of_now(function)
    if kwargs and isinstance(function, (Intrinsic, Op)):
        node, args, kwargs = _in_places(node, function, args, kwargs)
    if isinstance(function, (Intrinsic, Given, custom_derivatives.GradOf)):
        return function.in_kernel(cx, node, args, kwargs)
    # `ds.floor(x, ds.i32)`: ops whose results are whole numbers take the type of the result.
    if isinstance(function, Op):
        if kwargs:
            raise cx.type_error(node, *function.misnamed(next(iter(kwargs))))
        if function.name in WHOLE and len(args) == 2:
            return convert(cx, apply(cx, node, function, args[:1]), args[1], node)
        return apply(cx, node, function, args)
    if isinstance(function, TensorType):
        return _of_type(cx, node, function, args)
    if isinstance(function, ScalarType) or is_python_type(function):
        if len(args) != 1:
            raise cx.type_error(
                node, f"a conversion takes one value, not {len(args)}", "convert them one by one"
            )
        return convert(cx, args[0], function, node)
    # Classes of the front end, which define what a call of their objects means.
    handler = _CALLED.get(type(function))
    if handler is not None:
        return handler(cx, node, function, args, kwargs)
    # By the marker, as kernels are a class of the runtime, which the language cannot import.
    if is_ours(function) and getattr(function, "_diffsim_kernel", False):
        raise cx.syntax(
            node,
            f"{function.__name__} is a kernel, and a kernel cannot call a kernel",
            "make it a @ds.func, or launch both from Python one after the other",
        )
    if is_ours(function) and getattr(function, "_diffsim_struct", False):
        return structs.make_nameless(cx, node, args, kwargs)
    if function is Matrix or function is Vector:
        return _matrix(cx, node, args, kwargs, vector=function is Vector)
    # Builtins, and functions of matrices, that work on run-time values too; other functions of Python follow.
    mapped = python_calls.BUILTINS.get(function) if is_hashable(function) else None
    mapped = mapped or _of_matrices(function)
    if mapped is not None:
        return mapped(cx, node, args, kwargs)
    return python_calls.call(cx, node, function, args, kwargs)


def _of_matrices(function: Any) -> Callable[..., Any] | None:
    """Return what translates a constructor or an unbound method of `ds.Matrix`; None for other functions."""
    if function in (Matrix.rows, Matrix.cols):
        return functools.partial(_of_vectors, columns=function is Matrix.cols)
    if function is Matrix.diag:
        return _diagonal
    name = UNBOUND.get(function) if is_hashable(function) else None
    return None if name is None else functools.partial(_unbound, name)


def _of_vectors(
    cx: TranslationContext,
    node: ast.Call,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
    *,
    columns: bool,
) -> Value:
    """Translate `ds.Matrix.rows([a, b])` and `ds.Matrix.cols([a, b])`."""
    if kwargs or len(args) != 1 or not isinstance(args[0], (list, tuple)):
        raise cx.type_error(
            node, "a matrix is made of one list of vectors", "write ds.Matrix.rows([a, b])"
        )
    made = cx.tensor_of_rows(args[0], node)
    return cx.builder.op(transpose, (made,)) if columns else made


def _diagonal(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Value:
    """Translate `ds.Matrix.diag(dim=3, val=a)`."""
    given = dict(zip(("dim", "val"), args, strict=False)) | kwargs
    size = given.get("dim")
    if given.keys() != {"dim", "val"} or len(args) > 2 or type(size) is not int or size < 1:
        raise cx.type_error(
            node, "Matrix.diag takes a constant size and a value", "write ds.Matrix.diag(3, a)"
        )
    made = cx.value(folding.fold(cx, node, Matrix.diag, size, 1.0), node)
    return made * cx.value(given["val"], node)


def _unbound(
    name: str,
    cx: TranslationContext,
    node: ast.Call,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Translate `ds.Vector.normalized(v, eps)`, a method with its owner as the first argument."""
    owner = args[0] if args else None
    if not isinstance(owner, Matrix):
        owner = cx.value(owner, node, "the first argument")
        if not owner.type.shape:
            raise cx.type_error(
                node,
                f".{name} takes a vector or matrix first, not {an(owner.type)}",
                f"write v.{name}()",
            )
    return _method(cx, node, expressions.Method(name, owner), args[1:], kwargs)


def _in_places(
    node: ast.Call, function: Intrinsic | Op, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> tuple[ast.Call, list[Evaluated], dict[str, Evaluated]]:
    """Move keyword arguments to the places of their parameters, with their syntax."""
    args, left = placed(function.parameters, args, kwargs)
    named = {k.arg: k.value for k in node.keywords}
    # Handlers show arguments by their syntax; unpacked ones (`*args`, `**options`) have none of their own.
    order = signature_of(function.parameters).parameters
    moved = [named[name] for name in order if name in named and name not in left]
    rest = [k for k in node.keywords if k.arg is None or k.arg in left]
    return ast.copy_location(ast.Call(node.func, [*node.args, *moved], rest), node), args, left


def _func(
    cx: TranslationContext,
    node: ast.Call,
    function: Func,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Inline a func."""
    return inlining.inline(cx, node, function, args, kwargs)


def _bound_func(
    cx: TranslationContext,
    node: ast.Call,
    function: BoundFunc,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Inline a func taken from an object, which is its first argument."""
    return inlining.inline(cx, node, function.func, [function.owner, *args], kwargs)


def _partial(
    cx: TranslationContext,
    node: ast.Call,
    function: functools.partial[Any],
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Call the function of a `functools.partial`."""
    # What it gives may be in lists, which can change.
    for name in ("args", "keywords"):
        cx.observe(ATTRIBUTE, function, name, getattr(function, name), node)
    args, kwargs = [*function.args, *args], {**function.keywords, **kwargs}
    return call_evaluated(cx, node, function.func, args, kwargs)


def is_hashable(thing: Evaluated) -> bool:
    """Return whether an object can be a key of a table; arrays and lists cannot."""
    return getattr(type(thing), "__hash__", None) is not None


def is_python_type(t: object) -> bool:
    """Return whether it is `float`, `int` or `bool`."""
    return any(t is python for python in (float, int, bool))


def refuse_keywords(
    cx: TranslationContext, node: ast.Call, kwargs: Mapping[str, object], name: str
) -> None:
    """Refuse keyword arguments."""
    if kwargs:
        raise cx.type_error(
            node, f"{name} takes no keyword arguments", f"leave {next(iter(kwargs))}= out"
        )


def count(n: int) -> str:
    """Write a number of arguments: `1 argument`, `2 arguments`."""
    return f"{n} argument{'s' * (n != 1)}"


def apply(cx: TranslationContext, node: SyntaxNode, op: Op, args: list[Evaluated]) -> Evaluated:
    """Apply an op of the table; numbers alone are folded."""
    if op.name == "pow" and len(args) == 2 and all(isinstance(a, int) and a >= 0 for a in args):
        return arithmetic.binary(cx, ast.Pow, args[0], args[1], node)
    if op.name in ("min", "max") and len(args) > 2:
        return functools.reduce(lambda a, b: apply(cx, node, op, [a, b]), args)
    # Ops with a type rule of their own take varying numbers of operands.
    if len(args) != len(op.operands) and op.infer_type is None:
        raise cx.type_error(
            node,
            f"ds.{op.name} takes {count(len(op.operands))}, {len(args)} given",
            f"{op.name}: {op.doc}",
        )
    # Folded by the op's reference implementation, in double precision.
    if all(isinstance(a, (bool, int, float)) for a in args) and op.name != "cast":
        # 1 / 0 is inf in a kernel at run time too, without a warning.
        with np.errstate(all="ignore"):
            result = folding.fold(cx, node, op.ref, *args)
        return result.item() if isinstance(result, (np.generic, np.ndarray)) else result
    values = folding.operands(cx, node, *args)
    return cx.builder.op(op, values)


def _method(
    cx: TranslationContext,
    node: ast.Call,
    method: expressions.Method,
    args: list[Evaluated],
    kwargs: dict[str, PythonObject],
) -> Evaluated:
    """Translate a call of a method of a vector or matrix."""
    if method.name == "cast":
        if len(args) != 1 or kwargs:
            raise cx.type_error(node, "cast takes the type", "write v.cast(ds.f32)")
        return convert(cx, method.owner, args[0], node)
    function = linalg.METHODS[method.name]
    known = not any(isinstance(a, Value) for a in (*args, *kwargs.values()))
    # A constant remains a constant, without a type of its own.
    if isinstance(method.owner, Matrix) and known:
        return folding.fold(cx, node, getattr(method.owner, method.name), *args, **kwargs)
    # The same formula as in Python, over values: its ops are emitted one by one.
    owner = cx.value(method.owner, node)
    values = [a if isinstance(a, folding.Number) else cx.value(a, node) for a in args]
    try:
        return function(owner, *values, **kwargs)
    except ValueError as problem:
        if isinstance(problem, DiffsimError):
            raise
        hint = f".{method.name}: {summary(function.__doc__).rstrip('.')}"
        raise cx.type_error(node, str(problem), hint) from None
    except TypeError as problem:
        if isinstance(problem, DiffsimError):
            raise
        wants = list(inspect.signature(function).parameters.values())[1:]  # without the receiver
        raise cx.type_error(
            node,
            f".{method.name} cannot be called with {count(len(args))}"
            + "".join(f" and {k}=" for k in kwargs),
            f"write .{method.name}({', '.join(str(p).split(':')[0] for p in wants)})",
        ) from None


def convert(
    cx: TranslationContext, thing: Evaluated, t: Any, node: SyntaxNode, assigned: str = ""
) -> Any:
    """Convert an operand to a type, element by element: `ds.cast(thing, t)`.

    `assigned` names the destination of an implicit conversion: what it may lose is warned about.
    """
    t = as_of_now(t)
    if is_python_type(t):  # `float` and `int` mean the default types of the session
        b = cx.builder
        t = {float: b.default_fp, int: b.default_ip, bool: bool_}[t]
    if isinstance(t, TensorType):
        v = cx.value(thing, node)
        if v.type.shape != t.shape:
            raise cx.type_error(
                node, f"{an(v.type)} cannot become {an(t)}", "a conversion keeps the shape"
            )
        return narrowed(cx, v, t.scalar, assigned) if assigned else cx.builder.cast(v, t.scalar)
    if not isinstance(t, ScalarType):
        raise cx.type_error(
            node, f"{describe(t)} is not a type", hint="use ds.f32, ds.f64, ds.i32, ..."
        )
    if isinstance(thing, str):  # float("inf")
        thing = folding.fold(cx, node, float, thing)
    # A literal converted explicitly is a constant of that type, and adopts no other precision.
    if isinstance(thing, folding.Number) and not assigned:
        return Const(t, folding.fold(cx, node, t, thing))
    # A literal gets the destination's precision at once; rounding it twice could differ in the last place.
    v = cx.value(thing, node, like=t)
    if t.is_bool and not v.type.is_bool:  # bool(0.5) is True: not a truncation to an integer
        return cx.builder.named("ne", v, 0)
    return narrowed(cx, v, t, assigned) if assigned else cx.builder.cast(v, t)


def _of_type(cx: TranslationContext, node: ast.Call, t: TensorType, args: list[Evaluated]) -> Value:
    """Translate a call of a vector or matrix type: `vec3(x, y, z)`, `vec3(0)`, `mat2([a, b], [c, d])`."""
    flat: list[Any] = []
    for a in args:
        if isinstance(a, (list, tuple, Matrix, np.ndarray)):
            a = cx.value(a, node, like=t.scalar)
        # Vectors among the arguments are concatenated, as in GLSL: vec4(v.xy, 0, 1).
        flat += linalg.elements(a) if isinstance(a, Value) and a.type.shape else [a]
    if len(flat) == 1:  # one number for all elements
        flat *= t.size
    if len(flat) != t.size:
        raise cx.type_error(
            node,
            f"{an(t)} cannot be made of {len(flat)} numbers",
            f"give {t.size} numbers, vectors of so many together, or one number for all",
        )
    for a in flat:
        if not isinstance(a, (Value, bool, int, float, np.generic)):
            raise cx.type_error(node, f"an element is {describe(a)}, not a number", advice(a))
    return cx.builder.cast(cx.builder.tensor_of(flat, t.shape, t), t.scalar)


def _matrix(
    cx: TranslationContext,
    node: ast.Call,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
    *,
    vector: bool,
) -> Any:
    """Translate `ds.Vector([...])` and `ds.Matrix([...])`."""
    dt = kwargs.pop("dt", args[1] if len(args) > 1 else None)  # also by name, as Taichi has it
    if kwargs or not 1 <= len(args) <= 2:
        raise cx.type_error(
            node, "a vector or matrix is made of one list", "write ds.Vector([x, y])"
        )
    made = cx.value(args[0], node.args[0] if node.args else node, "the list of elements")
    if not made.type.shape:
        raise cx.type_error(
            node, "a vector or matrix is made of one list", "write ds.Vector([x, y])"
        )
    if vector and len(made.type.shape) != 1:
        raise cx.type_error(
            node, "a vector has one axis", hint="for rows and columns use ds.Matrix"
        )
    # Literals alone remain a constant, which adopts the precision of its context.
    if dt is None and is_literal(args[0]):
        return Matrix(args[0])
    return made if dt is None else convert(cx, made, dt, node)


def is_literal(thing: Evaluated) -> bool:
    """Return whether it is a number or a list of numbers without a type of their own."""
    if isinstance(thing, (list, tuple)):
        return all(map(is_literal, thing))
    return type(thing) in (bool, int, float)


_CALLED: dict[type, Callable[..., Any]] = {
    Func: _func,
    PyFunc: _func,
    RealFunc: _func,
    BoundFunc: _bound_func,
    expressions.Method: _method,
    StructType: structs.make,
    structs.StructMethod: structs.call_method,
    functools.partial: _partial,
}
