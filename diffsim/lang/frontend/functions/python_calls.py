"""Calls of Python's own functions and of NumPy's.

A few builtins are translated (`min`, `sum`, `len`). Functions whose results depend on their arguments alone
are called at compile time, on constants. All others are refused, with what to write instead.
"""

from __future__ import annotations

import ast
import builtins
import functools
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from diffsim.ir.nodes import Value
from diffsim.ir.op import TABLE, WHOLE
from diffsim.ir.types import bool_
from diffsim.lang.frontend import calls, expressions, subscripts
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import by_reference, containers, inlining, sequences
from diffsim.lang.frontend.operators import arithmetic, composites, folding
from diffsim.lang.frontend.values import Evaluated, KernelDict, PythonObject, holds_value
from diffsim.lang.host.field_like import is_field
from diffsim.lang.host.func import Func
from diffsim.lang.host.inspection import home_of, is_file_of_program, name_of
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix


def _round(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if len(args) != 1:
        raise cx.type_error(
            node, "round takes one value in a kernel", "for decimals write round(a * 100) / 100"
        )
    return calls.apply(cx, node, TABLE["round"], args)


def _fold_builtin(name: str) -> Callable[..., Any]:
    def handler(
        cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
    ) -> Evaluated:
        calls.refuse_keywords(cx, node, kwargs, name)
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
                    f"{name} cannot be taken of {describe(only)} alone",
                    f"write {name}(a, b)",
                )
        if not args or (name == "abs" and len(args) > 1):
            raise cx.type_error(
                node,
                f"{name} cannot be called with {calls.count(len(args))}",
                f"write {_USAGE[name]}",
            )
        if len(args) == 1 and name != "abs":
            return args[0]
        if name != "abs" and any(map(composites.is_composite, args)):
            return _extreme_of_tuples(cx, node, name, args)
        if all(isinstance(a, folding.Number) for a in args):
            function: Callable[..., Any] = getattr(builtins, name)
            return function(*args)
        return calls.apply(cx, node, TABLE[name], args)

    return handler


def _extreme_of_tuples(
    cx: TranslationContext, node: ast.Call, name: str, args: list[Evaluated]
) -> Evaluated:
    """Return the least or greatest tuple: in Python they are ordered, where `ds.min` goes by elements."""
    if all(isinstance(a, tuple) for a in args):
        return composites.extreme(cx, node, name, args)
    # A tuple that a loop changes is a vector in it, and `min((d, i), best)` is hardly meant for vectors.
    raise cx.type_error(
        node,
        f"{name} orders tuples, and here {' and '.join(map(describe, args))} meet",
        f"write ds.{name}(a, b) to go element by element; keep parts that a loop carries in variables",
    )


def _sum(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if not 1 <= len(args) <= 2 or kwargs:
        raise cx.type_error(
            node, f"sum cannot be called with {calls.count(len(args))}", "write sum(list)"
        )
    # Elements as Python numbers, which adopt the precision of the other operands.
    items = args[0].entries.ravel().tolist() if isinstance(args[0], Matrix) else args[0]
    if isinstance(items, Value) and items.type.shape:
        return linalg.total(items)
    if not isinstance(items, (list, tuple)):
        raise cx.type_error(
            node,
            f"{describe(items)} cannot be summed by sum",
            "it sums lists and vectors; a field is summed in a loop: s += x[i]",
        )
    # By additions from left to right, as Python does it, whatever the types of the items.
    start = args[1] if len(args) > 1 else 0
    add = functools.partial(arithmetic.binary, cx, ast.Add)
    return functools.reduce(lambda a, b: add(a, b, node), items, start)


def _pow(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if len(args) != 2:
        raise cx.type_error(node, "pow takes a base and an exponent", "write pow(a, b), or a ** b")
    return arithmetic.binary(cx, ast.Pow, args[0], args[1], node)


def _len(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if len(args) == 1 and isinstance(args[0], Value) and args[0].type.shape:
        return args[0].type.shape[0]
    if len(args) == 1 and isinstance(args[0], (list, tuple, str, range, Matrix, np.ndarray)):
        return len(args[0])
    if len(args) == 1 and isinstance(args[0], dict):
        return len(containers.keys(cx, args[0], node))
    thing = args[0] if args else None
    of = describe(thing) if args else "nothing"
    hint = "only lists and vectors have one"
    if is_field(thing):
        hint = f"write {thing._mem.name}.shape[0]"
    raise cx.type_error(node, f"len of {of} is not defined", hint)


def _logical(name: str) -> Callable[..., Any]:
    """Make the handler of `any` or `all`."""
    row = "or" if name == "any" else "and"

    def handler(
        cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
    ) -> Evaluated:
        if len(args) != 1 or kwargs:
            raise cx.type_error(
                node,
                f"{name} cannot be called with {calls.count(len(args))}",
                f"write {name}(v > 0)",
            )
        items = args[0]
        if isinstance(items, Value) and items.type.shape:
            items = linalg.elements(items)
        if not isinstance(items, (list, tuple)) or not holds_value(items):
            return call(cx, node, getattr(builtins, name), args, kwargs)
        truths = [expressions.truth(cx, item, node) for item in items]
        bools = [t if isinstance(t, Value) else cx.builder.const(t, bool_) for t in truths]
        return functools.reduce(lambda a, b: cx.builder.named(row, a, b), bools)

    return handler


def _getattr(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if len(args) != 2 or kwargs or not isinstance(args[1], str):
        raise cx.type_error(
            node, "getattr takes an object and a text", 'write getattr(object, "name")'
        )
    attribute = ast.Attribute(node.args[0] if node.args else node, args[1], ast.Load())
    return subscripts.attribute(cx, args[0], ast.copy_location(attribute, node))


def _dict(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if not args:
        return KernelDict(kwargs)
    others = args[0]
    if len(args) > 1 or not isinstance(others, (dict, list, tuple, zip)):
        raise cx.type_error(
            node, "dict takes a dictionary, or pairs, and names", "write dict(a=1.0), or {'a': 1.0}"
        )
    if isinstance(others, dict):
        return KernelDict({**dict(containers.items(cx, others, node)), **kwargs})
    made = folding.fold(cx, node, dict, others)
    return KernelDict({**made, **kwargs})


def _isinstance(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    """A run-time value is of the class that Python has for such values."""
    if len(args) == 2 and isinstance(args[0], Value):
        t = args[0].type
        if t.shape:
            args = [Matrix(np.zeros(t.shape)), args[1]]
        else:
            args = [False if t.is_bool else 0.0 if t.is_float else 0, args[1]]
    elif len(args) == 2 and isinstance(args[0], (list, tuple, dict)) and holds_value(args[0]):
        args = [type(args[0])(), args[1]]
    return call(cx, node, isinstance, args, kwargs)


_USAGE = {"min": "min(a, b)", "max": "max(a, b)", "abs": "abs(a)"}

BUILTINS: dict[Any, Callable[..., Any]] = {
    abs: _fold_builtin("abs"),
    min: _fold_builtin("min"),
    max: _fold_builtin("max"),
    round: _round,
    sum: _sum,
    pow: _pow,
    len: _len,
    any: _logical("any"),
    all: _logical("all"),
    dict: _dict,
    isinstance: _isinstance,
    getattr: _getattr,
    **sequences.BUILTINS,
}

_NUMPY = {  # what to write instead of functions of NumPy whose names are not those of ops
    "array": "ds.Vector([...]) or ds.Matrix([...])", "asarray": "ds.Vector([...]) or ds.Matrix([...])",
    "arccos": "ds.acos", "arcsin": "ds.asin", "arctan": "ds.atan", "arctan2": "ds.atan2",
    "clip": "ds.math.clamp", "cross": "v.cross(w)", "det": "A.determinant()",
    "dot": "v.dot(w), or A @ B for matrices", "eigh": "ds.sym_eig", "inv": "A.inverse()", "matmul": "A @ B",
    "maximum": "ds.max", "minimum": "ds.min", "norm": "v.norm()", "outer": "v.outer_product(w)",
    "power": "**", "sum": "v.sum()", "svd": "ds.svd", "trace": "A.trace()", "where": "ds.select",
}  # fmt: skip

_OPS = {  # the ops of functions of `math` and NumPy that have another name
    "fabs": "abs", "absolute": "abs", "arccos": "acos", "arcsin": "asin", "arctan": "atan",
    "arctan2": "atan2",
    "maximum": "max", "minimum": "min", "where": "select", "power": "pow",
}  # fmt: skip


# Functions of NumPy whose results differ between calls, or depend on files: they are no constants.
_NOT_PURE = frozenset("default_rng empty empty_like fromfile genfromtxt load loadtxt".split())

# Functions of Python whose results depend on their arguments alone: observing these is enough.
_PURE = {
    range,
    isinstance,
    str,
    divmod,
    any,
    all,
    hasattr,
}


def call(
    cx: TranslationContext,
    node: ast.Call,
    function: Any,
    args: list[Evaluated],
    kwargs: dict[str, PythonObject],
) -> Evaluated:
    """Call a function of Python at compile time; refuse functions that kernels cannot call."""
    name = name_of(function)
    # By its package, without running code of the program: `function.__module__` may be a property.
    module = home_of(function)
    home = function.__qualname__.split(".")[0] if isinstance(function, FunctionType) else ""
    if containers.is_method(function):
        return containers.method(cx, node, function, args, kwargs)
    # 1. Specific reasons to refuse. 2. Functions that run at compile time. 3. Advice on all others.
    at_run_time = any(holds_value(a) for a in [*args, *kwargs.values()])
    if not callable(function):
        number = isinstance(function, folding.Number)
        hint = "multiply with *" if number else "write brackets to name an element: [...]"
        raise cx.type_error(node, f"{describe(function)} cannot be called", hint)
    if at_run_time and module in ("math", "numpy"):
        return _of_module(cx, node, module, name, args, kwargs)
    makers = ("vector", "matrix")  # of ds.types
    constructors = module == "diffsim" and (home in ("Matrix", "Vector") or name in makers)
    if module == "numpy" and name in _NOT_PURE:
        raise cx.syntax(
            node,
            f"{ast.unparse(node.func)} gives something else each time, and a kernel is compiled once",
            f"call {name} in Python, outside the kernel; random numbers in it: ds.random()",
        )
    if (
        constructors
        or module in ("math", "numpy")
        or (calls.is_hashable(function) and function in _PURE)
    ):
        if at_run_time:
            raise cx.type_error(
                node,
                f"{name} needs values that are known before the launch",
                "write a loop, or use constants, shapes of fields and ds.template() arguments",
            )
        if not isinstance(function, np.ufunc):  # a ufunc returns as many elements as it gets
            _check_sizes(cx, node, name, [*args, *kwargs.values()])
        return folding.fold(cx, node, function, *args, **kwargs)
    inlined = None if cx.strict else _as_func(function)
    if inlined is not None:
        owner = [function.__self__] if isinstance(function, MethodType) else []
        return _inline(cx, node, inlined, [*owner, *args], kwargs)
    method = _call_method(function)
    if method is not None:
        return calls.call_evaluated(cx, node, method, [function, *args], kwargs)
    raise _refusal(cx, node, function)


def _refusal(cx: TranslationContext, node: ast.Call, function: Any) -> Exception:
    """Return the error for a function or class that kernels cannot call."""
    name, module = name_of(function), home_of(function)
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
    elif any(
        isinstance(f, Func) for c in getattr(function, "__mro__", ()) for f in vars(c).values()
    ):
        hint = f"decorate {name} with @ds.dataclass if it is a struct, or make the object in Python"
    else:
        hint = f"call {name} in Python, outside the kernel"
    return cx.syntax(node, f"{name} is a {what}, which cannot be called in a kernel", hint)


def _of_module(
    cx: TranslationContext,
    node: ast.Call,
    module: str,
    name: str,
    args: list[Evaluated],
    kwargs: dict[str, PythonObject],
) -> Evaluated:
    """Translate a function of `math` or NumPy of run-time values to the op that computes the same."""
    # `np.max(v)` is the largest element, `np.round` has decimals, `math.log` a base.
    other = module == "numpy" and name in ("max", "min", "round")
    op = None if other or kwargs else TABLE.get(_OPS.get(name, name))
    if op is not None and op.public and len(args) == len(op.operands):
        made = calls.apply(cx, node, op, args)
        # A whole number, as `math.floor` returns.
        whole = module == "math" and op.name in WHOLE
        return calls.convert(cx, made, int, node) if whole else made
    instead = f"ds.{name}" if name in TABLE and TABLE[name].public else _NUMPY.get(name)
    raise cx.syntax(
        node,
        f"{ast.unparse(node.func)} cannot be used on run-time values",
        f"use {instead}" if instead else "write it with the functions of ds",
    )


def _call_method(function: object) -> object | None:
    """Return `__call__` of an object's class, if the program has written it; None for all else."""
    if isinstance(function, (type, FunctionType, MethodType, BuiltinFunctionType)):
        return None
    method: object = type(function).__call__
    return method if isinstance(method, Func) or _as_func(method) is not None else None


_funcs: WeakKeyDictionary[FunctionType, Func] = WeakKeyDictionary()


def _as_func(function: object) -> Func | None:
    """Return a plain function or method of the program as if `@ds.func` decorated it; None for others."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(plain, FunctionType):
        return None
    # Others' decorators (`functools.wraps`) do more than the function that they wrap.
    if hasattr(plain, "__wrapped__") or not is_file_of_program(plain.__code__.co_filename):
        return None
    if plain not in _funcs:
        _funcs[plain] = Func(plain)
    return _funcs[plain]


def _inline(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Translate a call of a function that is not decorated."""
    # Loops and branches look for locals that calls change, and see decorated funcs only.
    for name in by_reference.parameters(cx, func):
        raise cx.syntax(
            node,
            f"{func.source.name} changes its parameter {name}, and is a Python function",
            f"decorate {func.source.name} with @ds.func",
        )
    return inlining.inline(cx, node, func, args, kwargs)


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
                "compute it in Python, outside the kernel, or in the kernel, in a loop",
            )


# By exact class: `len` of an object of the program is code of the program.
_SIZED = frozenset((list, tuple, range, str, bytes, set, frozenset, dict, np.ndarray))
_MOST_ELEMENTS, _LONGEST_FACTORIAL = 1 << 20, 1 << 12
_OF_NUMBERS = frozenset(
    "float32 float64 int32 int64 uint32 uint64 str array floor ceil gcd lcm".split()
)
