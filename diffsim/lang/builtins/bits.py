"""Functions of bits: `ds.bit_cast`, and of integers `ds.bit_shr`, `ds.math.popcnt`, `ds.math.clz`.

Formulas: H. S. Warren, Hacker's Delight, 2nd edition, sections 5-1 (ones) and 5-3 (leading zeros). In Python
a plain integer has the 32 bits of the default type, an element of an array those of its type.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import AutodiffError, KernelTypeError, Span, shown
from diffsim.ir import builder_stack
from diffsim.ir.builder_stack import emit
from diffsim.ir.nodes import Const, Value
from diffsim.ir.op import TABLE, NotDifferentiable, Tracked
from diffsim.ir.types import ScalarType, an, from_numpy, u8, u16, u32, u64
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.values import Evaluated
from diffsim.lang.host.annotations import as_of_now, scalar_type
from diffsim.lang.host.hooks import runtime
from diffsim.lang.host.intrinsic import Intrinsic
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix

_UNSIGNED = {t.bits: t for t in (u8, u16, u32, u64)}


def _bits(x: Value) -> tuple[Value, ScalarType]:
    """Return the bits of an integer as an unsigned one of its width, and that type."""
    t = _UNSIGNED[x.type.scalar.bits]
    return builder_stack.builder().cast(x, t), t


def _pattern(part: int, t: ScalarType, width: int) -> Const:
    """Return the constant in which a pattern of so many bits repeats."""
    return Const(t, sum(part << k for k in range(0, t.bits, width)))


def _right(x: Value, n: int, t: ScalarType) -> Value:
    return emit("int_shr", x, Const(t, n))


def count_ones(x: Value) -> Value:
    """Emit the number of ones, by sums of groups of 1, 2, 4, ... bits; LLVM knows the pattern."""
    v, t = _bits(x)
    v = emit("sub", v, emit("bit_and", _right(v, 1, t), _pattern(0b01, t, 2)))
    pairs = _pattern(0b0011, t, 4)
    v = emit("add", emit("bit_and", v, pairs), emit("bit_and", _right(v, 2, t), pairs))
    v = emit("bit_and", emit("add", v, _right(v, 4, t)), _pattern(0x0F, t, 8))
    # The product has the sum of all bytes in its highest one.
    v = _right(emit("mul", v, _pattern(1, t, 8)), t.bits - 8, t)
    return builder_stack.builder().cast(v, x.type.scalar)


def leading_zeros(x: Value) -> Value:
    """Emit the number of zeros above the highest one: that one is copied into all bits below it."""
    v, t = _bits(x)
    n = 1
    while n < t.bits:
        v = emit("bit_or", v, _right(v, n, t))
        n *= 2
    ones = count_ones(v)
    return builder_stack.builder().cast(emit("sub", Const(t, t.bits), ones), x.type.scalar)


def shift_right_logical(x: Value, n: Value) -> Value:
    """Emit x >> n of the bits as an unsigned number; 0 where all are shifted out."""
    v, t = _bits(x)
    amount, _ = _bits(n)
    shifted = emit("shr", v, builder_stack.builder().cast(amount, t))
    return builder_stack.builder().cast(shifted, x.type.scalar)


def _ones_in_python(x: np.ndarray) -> np.ndarray:
    return np.bitwise_count(_unsigned(x))


def _zeros_in_python(x: np.ndarray) -> np.ndarray:
    width = 8 * x.dtype.itemsize
    zeros = np.frompyfunc(lambda b: width - int(b).bit_length(), 1, 1)
    return np.asarray(zeros(_unsigned(x)))


def _shift_in_python(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    # In Python's integers, which have no width that a shift could exceed.
    shift = np.frompyfunc(lambda b, k: int(b) >> int(k) if k >= 0 else 0, 2, 1)
    return np.asarray(shift(_unsigned(x), n))


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def _of_bits(
    name: str,
    doc: str,
    formula: Callable[..., Value],
    in_numpy: Callable[..., np.ndarray],
    parameters: tuple[str, ...],
    module: str = "ds.math",
    *,
    example: str,
) -> Intrinsic:
    """Make an intrinsic of integers."""
    call = f"{module}.{name}({', '.join(parameters)})"

    def in_kernel(
        cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
    ) -> Evaluated:
        if kwargs or len(args) != len(parameters):
            raise cx.type_error(node, f"{module}.{name} takes {len(parameters)}", f"write {call}")
        values = [cx.value(a, node) for a in args]
        for v in values:
            if not v.type.is_int:
                raise cx.type_error(
                    node,
                    f"{module}.{name} takes whole numbers, this is {describe(v)}",
                    f"write {call}",
                )
        return formula(*values)

    def in_python(*args: Any) -> Any:
        try:
            given = [a.entries if isinstance(a, Matrix) else np.asarray(a) for a in args]
        except ValueError:  # rows of different lengths
            given = []
        fits = all(
            a.dtype.kind in "iu" and (not a.ndim or isinstance(x, (Matrix, np.ndarray)))
            for x, a in zip(args, given, strict=False)
        )
        if len(given) != len(parameters) or not fits:
            raise KernelTypeError(
                f"{module}.{name} takes whole numbers, not {', '.join(map(shown, args))}",
                Span.of_caller(),
                hint=f"write {call}",
            )
        # Numbers without a type have the default one.
        typed = [
            a if isinstance(x, (np.ndarray, np.generic)) else a.astype(np.int32)
            for x, a in zip(args, given, strict=True)
        ]
        made = in_numpy(*typed).astype(typed[0].dtype)
        if isinstance(args[0], Matrix):
            return Matrix(made.tolist())
        return made[()] if isinstance(args[0], (np.ndarray, np.generic)) else int(made)

    return Intrinsic(name, doc, in_kernel, in_python, ", ".join(parameters), example=example)


popcnt = _of_bits(
    "popcnt",
    "The number of bits of x that are 1.",
    count_ones,
    _ones_in_python,
    ("x",),
    example="print(ds.math.popcnt(7))  # prints: 3",
)
clz = _of_bits(
    "clz",
    "The number of zero bits above the highest 1 of x; the width of its type for 0.",
    leading_zeros,
    _zeros_in_python,
    ("x",),
    example="print(ds.math.clz(1))  # prints: 31",
)
bit_shr = _of_bits(
    "bit_shr",
    "x1 shifted right by x2 bits, with zeros moved in whatever its sign; 0 where all are shifted out.",
    shift_right_logical,
    _shift_in_python,
    ("x1", "x2"),
    module="ds",
    example="print(ds.bit_shr(-1, 28))  # prints: 15",
)


def _bit_cast(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    to = as_of_now(args[1]) if len(args) == 2 else None
    if kwargs or not isinstance(to, ScalarType):
        raise cx.type_error(
            node, "ds.bit_cast takes a value and a type", "write ds.bit_cast(x, ds.i32)"
        )
    v = cx.value(args[0], node)
    problem = _no_bit_cast(v.type.scalar, to)
    if problem:
        raise cx.type_error(node, problem, _AS_WIDE)
    b = cx.builder
    if v.type.is_float:
        v = b.named("float_bits", v)
    # Integers of one width keep their bits when they are converted.
    return b.cast(b.named("float_of_bits", v) if to.is_float else v, to)


_AS_WIDE = "take a type as wide: ds.i32 for an f32, ds.i64 for an f64"


def _no_bit_cast(have: ScalarType, to: ScalarType) -> str:
    """Return why the bits of one type are none of the other; empty: they are."""
    if not have.is_bool and not to.is_bool and have.bits == to.bits:
        return ""
    return f"ds.bit_cast keeps all bits, and {an(have)} has {have.bits}, {an(to)} {to.bits}"


def _bit_cast_in_python(obj: Any, dtype: Any) -> Any:
    to = scalar_type(as_of_now(dtype))
    if isinstance(obj, Tracked):
        # A number that a tape follows, or that was read out of a field on one.
        rule = TABLE["float_bits"].vjp
        assert isinstance(rule, NotDifferentiable)
        raise AutodiffError(rule.why, Span.of_caller(), hint=rule.hint)
    given = obj.entries if isinstance(obj, Matrix) else np.asarray(obj)
    typed = isinstance(obj, (np.ndarray, np.generic)) or getattr(obj, "typed", False)
    if not typed and given.dtype.kind in "biuf":
        # Numbers without a type have the default one.
        default = runtime().default_fp() if given.dtype.kind == "f" else runtime().default_ip()
        given = given.astype(default.numpy)
    have = from_numpy(given.dtype)
    no_number = have is None or (given.ndim and not isinstance(obj, (Matrix, np.ndarray)))
    problem = shown(obj) + " is no number" if no_number or have is None else _no_bit_cast(have, to)
    if problem:
        raise KernelTypeError(problem, Span.of_caller(), hint=_AS_WIDE)
    made = np.ascontiguousarray(given).view(to.numpy).reshape(given.shape)
    if isinstance(obj, Matrix):
        return Matrix(made, to)
    return made[()] if typed else made.item()


bit_cast = Intrinsic(
    "bit_cast",
    "The value in another type of the same width with the same bits: `ds.bit_cast(1.0, ds.i32)` is "
    "0x3f800000. A gradient by a float whose bits are taken is refused.",
    _bit_cast,
    _bit_cast_in_python,
    "obj, dtype",
    example="""
        print(hex(ds.bit_cast(1.0, ds.i32)))  # prints: 0x3f800000
    """,
)
