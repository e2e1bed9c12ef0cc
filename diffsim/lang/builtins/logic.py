"""Operators as functions, under Taichi's names: `ds.logical_and(a, b)`, `ds.raw_div(a, b)`, `ds.solve`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.ir.nodes import Value
from diffsim.ir.op import TABLE
from diffsim.lang.builtins.glsl import formula
from diffsim.lang.frontend import calls
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.host.intrinsic import Intrinsic
from diffsim.lang.types import linalg
from diffsim.lang.types.matrix import Matrix


def _of_ds(function: Callable[..., Any]) -> Intrinsic:
    return formula(function, "")


def _truth(a: Any) -> Any:
    """Return whether a number is not 0, element by element."""
    if isinstance(a, Value):
        return a if a.type.scalar.is_bool else TABLE["ne"](a, 0)
    return np.asarray(a) != 0


@_of_ds
def logical_and(*operands: Any) -> Any:
    """Whether all are true, element by element; all of them are evaluated.

    Example:
        print(ds.logical_and(True, 2 > 1, 0))  # prints: False
    """
    return functools.reduce(TABLE["and"], map(_truth, operands))


@_of_ds
def logical_or(*operands: Any) -> Any:
    """Whether any is true, element by element; all of them are evaluated.

    Example:
        print(ds.logical_or(False, 2 > 1))  # prints: True
    """
    return functools.reduce(TABLE["or"], map(_truth, operands))


@_of_ds
def logical_not(a: Any) -> Any:
    """Whether it is false, element by element.

    Example:
        print(ds.logical_not(0))  # prints: True
    """
    return TABLE["not"](_truth(a))


@_of_ds
def raw_div(x1: Any, x2: Any) -> Any:
    """The quotient as C has it: of integers rounded towards 0, and 0 where x2 is 0; of floats x1 / x2.

    Example:
        print(ds.raw_div(-7, 2), -7 // 2)  # prints: -3 -4
    """
    return TABLE["truncdiv"](x1, x2) if _are_integers(x1, x2) else x1 / x2


@_of_ds
def bit_shl(a: Any, n: Any) -> Any:
    """The bits of a shifted left by n: a << n.

    Example:
        print(ds.bit_shl(3, 4))  # prints: 48
    """
    return TABLE["shl"](a, n)


@_of_ds
def bit_sar(a: Any, n: Any) -> Any:
    """The bits of a shifted right by n, with the sign moved in: a >> n.

    Example:
        print(ds.bit_sar(-8, 1))  # prints: -4
    """
    return TABLE["shr"](a, n)


def _are_integers(*operands: Any) -> bool:
    return all(
        a.type.is_int if isinstance(a, Value) else np.asarray(a).dtype.kind in "iu"
        for a in operands
    )


solve = formula(linalg.solve, "", mixed=True)
_solve_in_kernel, _solve_in_python = solve.in_kernel, solve.in_python


def _in_kernel(
    cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Emit a solve, of operands converted to `dt` where it is given."""
    dt = kwargs.pop("dt", None)
    if dt is None and len(args) == 3:
        dt = args.pop()
    if dt is not None:
        args = [calls.convert(cx, cx.value(a, node), dt, node) for a in args]
        kwargs = {k: calls.convert(cx, cx.value(a, node), dt, node) for k, a in kwargs.items()}
    return _solve_in_kernel(cx, node, args, kwargs)


def _in_python(*args: Any, **kwargs: Any) -> Any:
    """Solve, with `dt` as third argument or by name."""
    dt = kwargs.pop("dt", args[2] if len(args) == 3 else None)
    cast = (lambda a: a) if dt is None else (lambda a: Matrix(a, dt))
    return _solve_in_python(
        *map(cast, args[:2]), *args[3:], **{k: cast(a) for k, a in kwargs.items()}
    )


# The formula has no parameter for a type, which is no operand.
solve.in_kernel, solve.in_python, solve.parameters = _in_kernel, _in_python, "A, b, dt=None"
