"""Arithmetic: the binary and unary operators of Python on numbers, vectors, matrices and lists."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.ir.builder import Operand
from diffsim.ir.nodes import Check, Const, Value
from diffsim.ir.ops import matmul, transpose
from diffsim.ir.print_format import CheckKind
from diffsim.ir.types import ScalarType, an, i32, i64
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.narrowing import bounds_of
from diffsim.lang.frontend.operators.folding import Number, fold, operands
from diffsim.lang.frontend.values import Evaluated, PythonObject
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix

_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv), ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod), ast.Pow: ("pow", operator.pow), ast.BitAnd: ("bit_and", operator.and_),
    ast.BitOr: ("bit_or", operator.or_), ast.BitXor: ("bit_xor", operator.xor),
    ast.LShift: ("shl", operator.lshift), ast.RShift: ("shr", operator.rshift),
    ast.MatMult: ("matmul", operator.matmul),
}  # fmt: skip


def binary(
    cx: TranslationContext, kind: type[ast.operator], a: Evaluated, b: Evaluated, node: SyntaxNode
) -> Evaluated:
    """Apply a binary operator to values or Python objects."""
    python = _BINARY[kind][1]
    # 1. Lists: `[0] * 3` repeats, `[1] + [2]` joins, as in
    # Python. 2. Constants are folded. 3. Anything else is an op.
    if kind is ast.Mult and isinstance(a, (list, tuple)) != isinstance(b, (list, tuple)):
        repeated = _repeated(cx, node, a, b)
        if repeated is not None:
            return repeated
    if not isinstance(a, Value) and not isinstance(b, Value):
        # Folded by Python and NumPy, in double precision, before any type is chosen.
        if isinstance(a, (*Number, Matrix)) and isinstance(b, (*Number, Matrix)):
            _check_size(cx, kind, a, b, node)
            return fold(cx, node, python, a, b)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and kind is ast.Add:
            return python(a, b)
        if isinstance(a, str) or isinstance(b, str):
            raise cx.type_error(
                node,
                "strings have no arithmetic in a kernel",
                "make the text outside the kernel",
            )
    left, right = operands(cx, node, a, b)
    if kind is ast.Pow:  # these two need more than one op
        return _power(cx, left, right, node)
    if kind is ast.MatMult:
        return _matrix_product(cx, left, right, node)
    name, left, right = _as_arithmetic(cx, kind, left, right)
    found = cx.builder.named(name, left, right)
    if cx.debug and kind in (ast.FloorDiv, ast.Mod) and found.type.is_int:
        _check_divisor(cx, right)
    if cx.debug and kind in _OVERFLOWING and found.type.scalar.kind == "i":
        _check_overflow(cx, kind, left, right, found)
    return found


# Limits of what is computed while compiling: elements of a list, and bits of an integer. No type holds more
# than 64 bits, but intermediate results of constant expressions may be longer.
_MOST_ITEMS = 1 << 16
_MOST_BITS = 1 << 12


def _check_size(
    cx: TranslationContext, kind: type[ast.operator], a: Evaluated, b: Evaluated, node: SyntaxNode
) -> None:
    """Refuse integers of arbitrarily many digits before Python computes them: `9**9**9`."""
    # Only these three operators make numbers much longer than their operands.
    if not isinstance(a, int) or not isinstance(b, int) or b <= 0:
        return
    bits = 0
    if kind is ast.Pow and abs(a) > 1:
        bits = abs(a).bit_length() * b
    elif kind is ast.LShift:
        bits = abs(a).bit_length() + b
    elif kind is ast.Mult:
        bits = abs(a).bit_length() + b.bit_length()
    if bits > _MOST_BITS:
        raise cx.type_error(
            node,
            f"a whole number of about {bits} bits does not fit into 64",
            "make the first number a float: 10.0 ** 30",
        )


def _check_divisor(cx: TranslationContext, divisor: Any) -> None:
    """Emit a check that no component is 0 (`debug=True`).

    A check is a statement, so it stays where the program has the division, whatever becomes of the op.
    """
    if not isinstance(divisor, Value):
        divisor = cx.builder.const(divisor, i64)
    for place in itertools.product(*map(range, divisor.type.shape)):
        one = cx.builder.named("extract", divisor, *place) if place else divisor
        # A constant other than 0 needs no check at run time.
        if not isinstance(one, Const) or one.value == 0:
            some = cx.builder.named("ne", one, 0)
            message, span = "an integer is divided by 0", cx.builder.span
            cx.builder.add(Check(some, message, (), span, kind=CheckKind.DIVISION))


def _as_arithmetic(
    cx: TranslationContext, kind: type[ast.operator], a: Operand, b: Operand
) -> tuple[str, Operand, Operand]:
    """Return the op for an operator on bits, with its operands; one of arithmetic where there is one.

        i & 127    i % 128, also where i is negative
        i >> 3     i // 8

    So passes that follow indices have one form to look for. Backends make bits of it again. `i << 3` stays:
    it may lose bits, where products of indices are taken for exact.
    """
    if kind is ast.BitAnd:
        for x, mask in ((a, b), (b, a)):
            n = _literal(mask)
            t = _index_type(x)
            if t is not None and n > 0 and not n & (n + 1) and t.holds(n + 1):
                return "mod", x, cx.builder.const(n + 1, t)
    elif kind is ast.RShift:
        n = _literal(b)
        t = _index_type(a)
        if t is not None and 0 <= n < t.bits and t.holds(1 << n):
            return "floordiv", a, cx.builder.const(1 << n, t)
    return _BINARY[kind][0], a, b


def _literal(x: Operand) -> int:
    """Return a number that is written as an i32; -1: it is none."""
    is_one = isinstance(x, (int, np.integer)) and not isinstance(x, bool) and i32.holds(int(x))
    return int(x) if is_one else -1  # type: ignore[arg-type]


def _index_type(x: Operand) -> ScalarType | None:
    """Return the type in which an integer meets one that is written as an i32."""
    if not isinstance(x, Value) or not x.type.is_int:
        return None
    return x.type.scalar if x.type.scalar.bits >= i32.bits else i32


_OVERFLOWING = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def _check_overflow(
    cx: TranslationContext, kind: type[ast.operator], left: Any, right: Any, found: Value
) -> None:
    """Emit a check that integers with a sign do not wrap around (`debug=True`); others are meant to."""
    b, t = cx.builder, found.type.scalar
    sides = [b.cast(x, t) if isinstance(x, Value) else b.const(x, t) for x in (left, right)]
    for place in itertools.product(*map(range, found.type.shape)):
        x, y = (b.named("extract", v, *place) if v.type.shape and place else v for v in sides)
        if t.holds(min(ends := _ends(kind, bounds_of(cx, x), bounds_of(cx, y)))) and t.holds(
            max(ends)
        ):
            continue
        one = b.named("extract", found, *place) if place else found
        fits = _fits(cx, kind, x, y, one)
        message = f"{{}} {_OVERFLOWING[kind]} {{}} in {t} overflows"
        b.add(Check(fits, message, (x, y), b.span, kind=CheckKind.OVERFLOW))


def _ends(kind: type[ast.operator], x: tuple[int, int], y: tuple[int, int]) -> list[int]:
    """Return the results at the ends of two intervals; the extremes are among them."""
    function = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}[kind]
    return [function(a, c) for a in x for c in y]


def _fits(
    cx: TranslationContext, kind: type[ast.operator], x: Value, y: Value, found: Value
) -> Value:
    """Emit whether the result of integers is that of numbers without end."""
    b, name = cx.builder, {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}[kind]
    if found.type.scalar.bits < 64:
        whole = b.named(name, b.cast(x, i64), b.cast(y, i64))
        return b.named("eq", b.cast(found, i64), whole)
    # Of 64 bits (H. S. Warren, Hacker's Delight, 2-13): a sum overflows where its sign is that of no operand.
    if kind is ast.Mult:
        back = b.named("eq", b.named("truncdiv", found, x), y)
        least = b.named("eq", y, i64.limits[0])
        wrapped = b.named("and", b.named("eq", x, -1), least)
        whole = b.named("and", back, b.named("not", wrapped))
        return b.named("or", b.named("eq", x, 0), whole)
    other = b.named("bit_xor", y if kind is ast.Add else found, found if kind is ast.Add else x)
    both = b.named("bit_and", b.named("bit_xor", x, found if kind is ast.Add else y), other)
    return b.named("ge", both, 0)


def _repeated(cx: TranslationContext, node: SyntaxNode, a: Evaluated, b: Evaluated) -> Evaluated:
    """Evaluate `[0.0] * 3` as Python does; return None if the number is no integer."""
    things: PythonObject
    things, times = (a, b) if isinstance(a, (list, tuple)) else (b, a)
    times = times.value if isinstance(times, Const) else times
    # The length of a list is known at compile time.
    if isinstance(times, Value) and times.type.is_int and not times.type.shape:
        raise cx.type_error(
            node,
            "a list times an integer repeats its elements, and this integer is known at run time only",
            "to multiply each element make it a vector: ds.Vector([...]) * n",
        )
    if isinstance(times, (int, np.integer)) and not isinstance(times, bool):
        if len(things) * int(times) > _MOST_ITEMS:
            raise cx.type_error(
                node,
                f"a list of {len(things) * int(times)} elements is too long for a kernel",
                "keep so many numbers in a field",
            )
        return fold(cx, node, operator.mul, things, int(times))
    return None


def _power(cx: TranslationContext, a: Operand, b: Operand, node: SyntaxNode) -> Value:
    """Translate `a ** b`: by multiplications for small constant exponents, else by an op."""
    # The derivative of exp(b * log(a)) is NaN at a = 0 and for a < 0; that of a product is right
    # everywhere. Up to 64 these are at most 10 multiplications, cheaper than `pow`.
    whole = isinstance(b, int) or (isinstance(b, float) and b.is_integer() and abs(b) <= 16)
    if not isinstance(b, Value) and whole and abs(int(b)) <= 64 and isinstance(a, Value):
        if isinstance(b, float) and not a.type.is_float:  # `i ** 2.0` is a float in Python
            a = cx.builder.cast(a, cx.builder.default_fp)
        return whole_power(cx, a, int(b), node)
    # Integers have an op of their own: through floats, large powers would be rounded.
    both_int = all(x.type.is_int if isinstance(x, Value) else isinstance(x, int) for x in (a, b))
    if not both_int:
        return cx.builder.named("pow", a, b)
    # Python makes a float of it, which would change the type of the expression.
    if isinstance(b, int) and b < 0:
        raise _negative_power(cx, node)
    if cx.debug and isinstance(b, Value) and b.type.scalar.kind != "u":
        possible = cx.builder.named("ge", b, 0)
        message, span = "an integer to the power {} is no integer", cx.span(node)
        cx.builder.add(Check(possible, message, (b,), span, kind=CheckKind.NEGATIVE_POWER))
    return cx.builder.named("int_pow", a, b)


def _negative_power(cx: TranslationContext, node: SyntaxNode) -> Exception:
    return cx.type_error(
        node,
        "an integer to a negative power is no integer",
        hint="make the base a float: ds.cast(a, ds.f32)",
    )


def whole_power(cx: TranslationContext, a: Value, n: int, node: SyntaxNode) -> Value:
    """Translate `a ** n` by repeated squaring, from the lowest bit of n on (D. E. Knuth, TAOCP 2, 4.6.3)."""
    if n < 0:
        if not a.type.is_float:
            raise _negative_power(cx, node)
        return 1.0 / whole_power(cx, a, -n, node)
    made: Value | None = None
    square = a
    while n:
        if n & 1:
            made = square if made is None else made * square
        n >>= 1
        if n:
            square = square * square
    one = cx.builder.const(1, a.type)
    return one if made is None else made


def _matrix_product(cx: TranslationContext, a: Operand, b: Operand, node: SyntaxNode) -> Value:
    """Translate `a @ b`."""
    left, right = _tensor_operand(cx, a, node), _tensor_operand(cx, b, node)
    if len(left.type.shape) == 1 and len(right.type.shape) == 2:  # a row vector: v A = A^T v
        return cx.builder.op(matmul, (cx.builder.op(transpose, (right,)), left))
    if len(left.type.shape) == 1:
        raise cx.type_error(
            node,
            f"@ multiplies matrices, and {an(left.type)} is on its left",
            hint="of two vectors take a.dot(b), or a.outer_product(b)",
        )
    return cx.builder.op(matmul, (left, right))


def _tensor_operand(cx: TranslationContext, x: Operand, node: SyntaxNode) -> Value:
    """Return an operand of `@`; refuse numbers."""
    if not isinstance(x, Value) or not x.type.shape:
        raise cx.type_error(
            node, f"@ multiplies matrices, and {describe(x)} is none", "multiply numbers with *"
        )
    return x


_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def unary(
    cx: TranslationContext, kind: type[ast.unaryop], x: Evaluated, node: ast.UnaryOp
) -> Evaluated:
    """Apply a unary operator other than `not`."""
    # Folded, so that `-1` remains a literal, which adopts the type of its context.
    if isinstance(x, (*Number, Matrix)):
        return fold(cx, node, _UNARY[kind], x)
    x = cx.value(x, node, "the operand")
    if kind is ast.USub:
        return -x
    return x if kind is ast.UAdd else cx.builder.named("bit_not", x)
