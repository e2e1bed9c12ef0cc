"""Calls and conversions.

A call is dispatched by the kind of its callee: an intrinsic, an op, a func, a type, a method or a function of
Python. Functions of Python run at compile time, on constants only.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError
from diffsim.ir.nodes import Const, Value
from diffsim.ir.op import TABLE, WHOLE, Op
from diffsim.ir.ops import transpose
from diffsim.ir.types import ScalarType, TensorType, an, bool_
from diffsim.lang.frontend import expressions
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import custom_derivatives, inlining, printing, structs
from diffsim.lang.frontend.narrowing import narrowed
from diffsim.lang.frontend.values import Evaluated, PythonObject, StructValue
from diffsim.lang.host.annotations import as_of_now
from diffsim.lang.host.field_like import is_field
from diffsim.lang.host.func import BoundFunc, Func, Given
from diffsim.lang.host.inspection import home_of, is_ours, name_of
from diffsim.lang.host.intrinsic import Intrinsic
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import advice, describe
from diffsim.lang.types.matrix import Matrix
from diffsim.lang.types.structs import StructType
from diffsim.lang.types.vector import Vector

# ---- calls


def call(cx: TranslationContext, node: ast.Call) -> Any:
    """Translate a call."""
    function = expressions.expr(cx, node.func)
    # An atomic update gets the syntax of its target: evaluating it would load the element.
    if isinstance(function, Intrinsic) and function.lazy:
        return function.in_kernel(cx, node, node.args, {})
    if function is print:
        printing.show(cx, node)
        return None
    args = arguments(cx, node)
    kwargs = {}
    for k in node.keywords:
        if k.arg is None:
            raise cx.syntax(
                k.value,
                "** (unpacking of keywords) can not be used in a kernel",
                "name each of them",
            )
        kwargs[k.arg] = expressions.expr(cx, k.value)
    cx.builder.span = cx.span(node)  # arguments have set the place to their own lines
    try:
        return _dispatch(cx, node, function, args, kwargs)
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
        if isinstance(a, ast.Starred):
            many = expressions.expr(cx, a.value)
            # The number of arguments is needed now; a vector's size is part of its type.
            if isinstance(many, Value) and len(many.type.shape) == 1:
                many = linalg.elements(many)
            if not isinstance(many, (list, tuple, range, Matrix)):
                raise cx.type_error(
                    a, f"{describe(many)} can not be unpacked", "only lists and vectors can"
                )
            args.extend(many)
        else:
            args.append(expressions.expr(cx, a))
    return args


def _dispatch(
    cx: TranslationContext,
    node: ast.Call,
    function: Any,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Any:
    """Translate a call of an evaluated function with evaluated arguments."""
    # Common kinds first. Objects are compared by class or identity, as `==` may be code of the program.
    function = as_of_now(function)
    if isinstance(function, (Intrinsic, Given, custom_derivatives.GradOf)):
        return function.in_kernel(cx, node, args, kwargs)
    # `ds.floor(x, ds.i32)`: ops whose results are whole numbers take the type of the result.
    if isinstance(function, Op) and function.name in WHOLE and (kwargs or len(args) == 2):
        t = kwargs.pop("dtype", None) or args.pop()
        _no_keywords(cx, node, kwargs, f"ds.{function.name}")
        return convert(cx, apply(cx, node, function, args), t, node)
    if isinstance(function, Op):
        _no_keywords(cx, node, kwargs, f"ds.{function.name}")
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
    # By the marker, as kernels are a class of the runtime, which the language can not import.
    if is_ours(function) and getattr(function, "_diffsim_kernel", False):
        raise cx.syntax(
            node,
            f"{function.__name__} is a kernel, and a kernel can not call a kernel",
            "make it a @ds.func, or launch both from Python one after the other",
        )
    if function is Matrix or function is Vector:
        return _matrix(cx, node, args, kwargs, vector=function is Vector)
    if function in (Matrix.rows, Matrix.cols):
        if len(args) != 1 or not isinstance(args[0], (list, tuple)):
            raise cx.type_error(
                node, "a matrix is made of one list of vectors", "write ds.Matrix.rows([a, b])"
            )
        made = cx.tensor_of_rows(args[0], node)
        return made if function is Matrix.rows else cx.builder.op(transpose, (made,))
    if function is Matrix.diag:
        if len(args) != 2 or type(args[0]) is not int or args[0] < 1:
            raise cx.type_error(
                node, "Matrix.diag takes a constant size and a value", "write ds.Matrix.diag(3, a)"
            )
        made = cx.value(expressions.fold(cx, node, Matrix.diag, args[0], 1.0), node)
        return made * cx.value(args[1], node)
    # Builtins that work on run-time values too; other functions of Python follow last.
    mapped = _BUILTINS.get(function) if _hashable(function) else None
    if mapped is not None:
        return mapped(cx, node, args, kwargs)
    return _python_call(cx, node, function, args, kwargs)


def _func(
    cx: TranslationContext,
    node: ast.Call,
    function: Func,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Any:
    """Inline a func."""
    return inlining.inline(cx, node, function, args, kwargs)


def _bound_func(
    cx: TranslationContext,
    node: ast.Call,
    function: BoundFunc,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Any:
    """Inline a func taken from an object, which is its first argument."""
    return inlining.inline(cx, node, function.func, [function.owner, *args], kwargs)


def _hashable(thing: Evaluated) -> bool:
    """Return whether an object can be a key of a table; arrays and lists can not."""
    return getattr(type(thing), "__hash__", None) is not None


def is_python_type(t: Any) -> bool:
    """Return whether it is `float`, `int` or `bool`."""
    return any(t is python for python in (float, int, bool))


def _no_keywords(cx: TranslationContext, node: ast.Call, kwargs: dict[str, Any], name: str) -> None:
    """Refuse keyword arguments."""
    if kwargs:
        raise cx.type_error(
            node, f"{name} takes no keyword arguments", f"leave {next(iter(kwargs))}= out"
        )


def count(n: int) -> str:
    """Write a number of arguments: `1 argument`, `2 arguments`."""
    return f"{n} argument{'s' * (n != 1)}"


def apply(cx: TranslationContext, node: Any, op: Op, args: list[Evaluated]) -> Any:
    """Apply an op of the table; numbers alone are folded."""
    if op.name == "pow" and len(args) == 2 and all(isinstance(a, int) and a >= 0 for a in args):
        return expressions.binary(cx, ast.Pow, args[0], args[1], node)
    if op.name in ("min", "max") and len(args) > 2:
        return functools.reduce(lambda a, b: apply(cx, node, op, [a, b]), args)
    # Ops with a type rule of their own take varying numbers of operands.
    if len(args) != len(op.operands) and op.infer_type is None:
        raise cx.type_error(
            node,
            f"ds.{op.name} takes {count(len(op.operands))}, {len(args)} given",
            f"{op.name}: {op.__doc__}",
        )
    # Folded by the op's reference implementation, in double precision.
    if all(isinstance(a, (bool, int, float)) for a in args) and op.name != "cast":
        # 1 / 0 is inf in a kernel at run time too, without a warning.
        with np.errstate(all="ignore"):
            result = expressions.fold(cx, node, op.ref, *args)
        return result.item() if isinstance(result, (np.generic, np.ndarray)) else result
    values = expressions.operands(cx, node, *args)
    return cx.builder.op(op, values)


def _method(
    cx: TranslationContext,
    node: ast.Call,
    method: expressions.Method,
    args: list[Evaluated],
    kwargs: dict[str, PythonObject],
) -> Any:
    """Translate a call of a method of a vector or matrix."""
    if method.name == "cast":
        if len(args) != 1 or kwargs:
            raise cx.type_error(node, "cast takes the type", "write v.cast(ds.f32)")
        return convert(cx, method.owner, args[0], node)
    function = linalg.METHODS[method.name]
    known = not any(isinstance(a, Value) for a in (*args, *kwargs.values()))
    # A constant remains a constant, without a type of its own.
    if isinstance(method.owner, Matrix) and known:
        return expressions.fold(cx, node, getattr(method.owner, method.name), *args, **kwargs)
    # The same formula as in Python, over values: its ops are emitted one by one.
    owner = cx.value(method.owner, node)
    values = [a if isinstance(a, expressions.Number) else cx.value(a, node) for a in args]
    try:
        return function(owner, *values, **kwargs)
    except ValueError as problem:
        if isinstance(problem, DiffsimError):
            raise
        hint = f".{method.name}: {(function.__doc__ or '').rstrip('.')}"
        raise cx.type_error(node, str(problem), hint) from None
    except TypeError as problem:
        if isinstance(problem, DiffsimError):
            raise
        wants = list(inspect.signature(function).parameters.values())[1:]  # without the receiver
        raise cx.type_error(
            node,
            f".{method.name} can not be called with {count(len(args))}"
            + "".join(f" and {k}=" for k in kwargs),
            f"write .{method.name}({', '.join(str(p).split(':')[0] for p in wants)})",
        ) from None


def convert(cx: TranslationContext, thing: Evaluated, t: Any, node: Any, assigned: str = "") -> Any:
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
                node, f"{an(v.type)} can not become {an(t)}", "a conversion keeps the shape"
            )
        return narrowed(cx, v, t.scalar, assigned) if assigned else cx.builder.cast(v, t.scalar)
    if not isinstance(t, ScalarType):
        raise cx.type_error(
            node, f"{describe(t)} is not a type", hint="use ds.f32, ds.f64, ds.i32, ..."
        )
    if isinstance(thing, str):  # float("inf")
        thing = expressions.fold(cx, node, float, thing)
    # A literal converted explicitly is a constant of that type, and adopts no other precision.
    if isinstance(thing, expressions.Number) and not assigned:
        return Const(t, expressions.fold(cx, node, t, thing))
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
            f"{an(t)} can not be made of {len(flat)} numbers",
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
    BoundFunc: _bound_func,
    expressions.Method: _method,
    StructType: structs.make,
    structs.StructMethod: structs.call_method,
}


# ---- Python's own functions


def _round(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Any:
    if len(args) != 1:
        raise cx.type_error(
            node, "round takes one value in a kernel", "for decimals write round(a * 100) / 100"
        )
    return apply(cx, node, TABLE["round"], args)


def _fold_builtin(name: str) -> Callable[..., Any]:
    def handler(
        cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
    ) -> Any:
        _no_keywords(cx, node, kwargs, name)
        # `max(v)` is the largest element, `max(a, b)` the larger value; `abs(v)` works element by element.
        if len(args) == 1 and name != "abs":
            (only,) = args
            if isinstance(only, Value) and only.type.shape:
                args = linalg.elements(only)
            elif isinstance(only, (list, tuple)):
                args = list(only)
            elif isinstance(only, Matrix):
                args = only.entries.ravel().tolist()
            else:
                raise cx.type_error(
                    node,
                    f"{name} can not be taken of {describe(only)} alone",
                    f"write {name}(a, b)",
                )
        if not args or (name == "abs" and len(args) > 1):
            raise cx.type_error(
                node, f"{name} can not be called with {count(len(args))}", f"write {_USAGE[name]}"
            )
        if len(args) == 1 and name != "abs":
            return args[0]
        if all(isinstance(a, expressions.Number) for a in args):
            function: Callable[..., Any] = getattr(builtins, name)
            return function(*args)
        return apply(cx, node, TABLE[name], args)

    return handler


def _sum(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Any:
    if not 1 <= len(args) <= 2 or kwargs:
        raise cx.type_error(
            node, f"sum can not be called with {count(len(args))}", "write sum(list)"
        )
    # Elements as Python numbers, which adopt the precision of the other operands.
    items = args[0].entries.ravel().tolist() if isinstance(args[0], Matrix) else args[0]
    if isinstance(items, Value) and items.type.shape:
        return linalg.total(items)
    if not isinstance(items, (list, tuple)):
        raise cx.type_error(
            node,
            f"{describe(items)} can not be summed by sum",
            "it sums lists and vectors; a field is summed in a loop: s += x[i]",
        )
    # By additions from left to right, as Python does it, whatever the types of the items.
    start = args[1] if len(args) > 1 else 0
    add = functools.partial(expressions.binary, cx, ast.Add)
    return functools.reduce(lambda a, b: add(a, b, node), items, start)


def _pow(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Any:
    if len(args) != 2:
        raise cx.type_error(node, "pow takes a base and an exponent", "write pow(a, b), or a ** b")
    return expressions.binary(cx, ast.Pow, args[0], args[1], node)


def _len(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Any:
    if len(args) == 1 and isinstance(args[0], Value) and args[0].type.shape:
        return args[0].type.shape[0]
    if len(args) == 1 and isinstance(args[0], (list, tuple, str, range, Matrix, np.ndarray)):
        return len(args[0])
    thing = args[0] if args else None
    of = describe(thing) if args else "nothing"
    hint = "only lists and vectors have one"
    if is_field(thing):
        hint = f"write {thing._mem.name}.shape[0]"
    raise cx.type_error(node, f"len of {of} is not defined", hint)


_USAGE = {"min": "min(a, b)", "max": "max(a, b)", "abs": "abs(a)"}

_BUILTINS: dict[Any, Callable[..., Any]] = {
    abs: _fold_builtin("abs"),
    min: _fold_builtin("min"),
    max: _fold_builtin("max"),
    round: _round,
    sum: _sum,
    pow: _pow,
    len: _len,
}

_NUMPY = {  # what to write instead of functions of NumPy whose names are not those of ops
    "array": "ds.Vector([...]) or ds.Matrix([...])", "asarray": "ds.Vector([...]) or ds.Matrix([...])",
    "arccos": "ds.acos", "arcsin": "ds.asin", "arctan": "ds.atan", "arctan2": "ds.atan2",
    "clip": "ds.math.clamp", "cross": "v.cross(w)", "det": "A.determinant()",
    "dot": "v.dot(w), or A @ B for matrices", "eigh": "ds.sym_eig", "inv": "A.inverse()", "matmul": "A @ B",
    "maximum": "ds.max", "minimum": "ds.min", "norm": "v.norm()", "outer": "v.outer_product(w)",
    "power": "**", "sum": "v.sum()", "svd": "ds.svd", "trace": "A.trace()", "where": "ds.select",
}  # fmt: skip

# Functions of NumPy whose results differ between calls, or depend on files: they are no constants.
_NOT_PURE = frozenset("default_rng empty empty_like fromfile genfromtxt load loadtxt".split())

# Functions of Python whose results depend on their arguments alone: observing these is enough.
_PURE = {
    range,
    tuple,
    list,
    zip,
    enumerate,
    isinstance,
    str,
    reversed,
    sorted,
    divmod,
    any,
    all,
    hasattr,
}


def _python_call(
    cx: TranslationContext,
    node: ast.Call,
    function: Any,
    args: list[Evaluated],
    kwargs: dict[str, PythonObject],
) -> Any:
    """Call a function of Python at compile time; refuse functions that kernels can not call."""
    name = name_of(function)
    # By its package, without running code of the program: `function.__module__` may be a property.
    module = home_of(function)
    home = function.__qualname__.split(".")[0] if isinstance(function, FunctionType) else ""
    # 1. Specific reasons to refuse. 2. Functions that run at compile time. 3. Advice on all others.
    at_run_time = any(_holds_value(a) for a in [*args, *kwargs.values()])
    if not callable(function):
        number = isinstance(function, expressions.Number)
        hint = "multiply with *" if number else "write brackets to name an element: [...]"
        raise cx.type_error(node, f"{describe(function)} can not be called", hint)
    if at_run_time and module in ("math", "numpy"):
        same = f"ds.{name}" if name in TABLE and TABLE[name].public else None
        instead = same or _NUMPY.get(name)
        raise cx.syntax(
            node,
            f"{ast.unparse(node.func)} can not be used on run-time values",
            f"use {instead}" if instead else "write it with the functions of ds",
        )
    constructors = module == "diffsim" and home in ("Matrix", "Vector")
    if module == "numpy" and name in _NOT_PURE:
        raise cx.syntax(
            node,
            f"{ast.unparse(node.func)} gives something else each time, and a kernel is compiled once",
            f"call {name} in Python, outside of the kernel; random numbers in it: ds.random()",
        )
    if constructors or module in ("math", "numpy") or (_hashable(function) and function in _PURE):
        # These only arrange their arguments, and work on run-time values as well.
        if at_run_time and function not in (zip, enumerate, list, tuple, reversed):
            raise cx.type_error(
                node,
                f"{name} needs values that are known before the launch",
                "write a loop, or use constants, shapes of fields and ds.template() arguments",
            )
        if not isinstance(function, np.ufunc):  # a ufunc returns as many elements as it gets
            _check_sizes(cx, node, name, [*args, *kwargs.values()])
        return expressions.fold(cx, node, function, *args, **kwargs)
    # Functions that the user could decorate; those of other libraries are to be called in Python.
    mine = isinstance(function, FunctionType) and module not in sys.stdlib_module_names
    what = "class" if isinstance(function, type) else "Python function"
    if isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, list):
        hint = "a list has a fixed length here: begin with ds.Vector([0.0] * n), or use a field"
    elif name == "<lambda>":
        what, name = "lambda", ast.unparse(node.func)
        hint = f"write def {name}(...) and decorate it with @ds.func"
    elif isinstance(getattr(function, "__wrapped__", None), Func):
        hint = f"a decorator above the @ds.func of {name} (beartype, say) made that of it: leave it out"
    elif mine and module != "diffsim":
        hint = f"decorate {name} with @ds.func"
    elif function is super:
        hint = "write what both methods do as a @ds.func outside of the classes"
    elif any(
        isinstance(f, Func) for c in getattr(function, "__mro__", ()) for f in vars(c).values()
    ):
        hint = f"decorate {name} with @ds.dataclass if it is a struct, or make the object in Python"
    else:
        hint = f"call {name} in Python, outside of the kernel"
    raise cx.syntax(node, f"{name} is a {what}, which can not be called in a kernel", hint)


def _check_sizes(
    cx: TranslationContext, node: ast.Call, name: str, args: list[PythonObject]
) -> None:
    """Refuse calls that take long or much memory while compiling: `np.ones(10**9)`, `list(range(10**9))`."""
    # Lazy or constant in time: they make nothing of the size of their arguments.
    if name in ("range", "zip", "enumerate", "isinstance", "hasattr", "divmod", "reversed"):
        return
    most = _LONGEST_FACTORIAL if name in ("factorial", "comb", "perm") else _MOST_ELEMENTS
    for a in args:
        sizes = a if isinstance(a, (list, tuple)) else [a]
        product = 1
        # An argument may be a shape: the product of its numbers is what would be allocated.
        for n in sizes:
            product *= abs(n) if isinstance(n, int) and n else 1
        long = type(a) in _SIZED and len(a) > most
        if long or (product > most and name not in _OF_NUMBERS):
            raise cx.type_error(
                node,
                f"{name} of this would be large, and it is computed while the kernel is compiled",
                "compute it in Python, outside of the kernel, or in the kernel, in a loop",
            )


# By exact class: `len` of an object of the program is code of the program.
_SIZED = frozenset((list, tuple, range, str, bytes, set, frozenset, dict, np.ndarray))
_MOST_ELEMENTS, _LONGEST_FACTORIAL = 1 << 20, 1 << 12
_OF_NUMBERS = frozenset(
    "float32 float64 int32 int64 uint32 uint64 str array floor ceil gcd lcm".split()
)


def _holds_value(thing: Evaluated) -> bool:
    """Return whether a run-time value is among the operand's parts."""
    if isinstance(thing, StructValue):
        return True
    if isinstance(thing, (list, tuple)):
        return any(_holds_value(t) for t in thing)
    return isinstance(thing, Value)
