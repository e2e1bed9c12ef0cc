"""Implicit conversions to a narrower type, with a warning about possible losses, once per line.

The criterion is type promotion: `i8 = i32` may lose something; `u32 = i32` does not count, since a sum of the
two is a u32. A range analysis of integers (constants, loop indices, `x & 255`) avoids false warnings.
With `debug=True` an integer that does not fit is an error where it is assigned.
"""

from __future__ import annotations

import itertools

from diffsim.ir.nodes import Check, Const, Value
from diffsim.ir.print_format import CheckKind
from diffsim.ir.types import ScalarType, Type, an, converted, promote
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.host.source import SyntaxNode

# The depth of expressions that the range analysis follows: each level may double its work.
_DEPTH = 6


class PrecisionLoss(UserWarning):
    """A value is stored into a narrower type."""


def narrowed(cx: TranslationContext, v: Value, to: ScalarType, name: str) -> Value:
    """Convert a value to the type of its destination, which is `name` in messages."""
    have = v.type.scalar
    if have is not to and not to.is_bool:
        if isinstance(v, Const):
            _constant(cx, v, to, name)
        # If the promoted type is that of the destination, every operation of the two has this type anyway.
        elif promote(have, to) is not to:
            _run_time(cx, v, to, name)
    return cx.builder.cast(v, to)


def refuse_fraction(
    cx: TranslationContext,
    v: Value,
    to: ScalarType,
    node: SyntaxNode,
    problem: str,
    hint: str,
) -> None:
    """Refuse a float for a boolean, and with `strict=True` for an integer; `narrowed` warns of others."""
    if v.type.is_float and (to.is_bool or (to.is_int and cx.strict)):
        raise cx.type_error(node, problem, hint)


def _constant(cx: TranslationContext, v: Const, to: ScalarType, name: str) -> None:
    """Warn of a constant that does not fit, or has a fraction."""
    if to.is_int and v.type.is_float:
        if v.value != converted(v.value, to):
            message = f"{name} holds {to}: {v.value} becomes {converted(v.value, to)}"
            _warn(cx, f"{message}; if that is meant: ds.cast({v.value}, ds.{to})")
    elif to.is_int and not to.holds(v.value):
        message = f"{name} holds {to}: {v.value} does not fit and becomes {converted(v.value, to)}"
        _warn(cx, f"{message}; if that is meant: ds.cast({v.value}, ds.{to})")


def _run_time(cx: TranslationContext, v: Value, to: ScalarType, name: str) -> None:
    """Warn of a run-time value that may not fit; check integers with `debug=True`."""
    have = v.type.scalar
    if to.is_float:
        _warn(cx, f"{name} holds {to}: storing {have} loses precision")
        return
    if have.is_float:
        _warn(
            cx,
            f"{name} holds {to}: the fraction of an {have} is dropped, and its derivative is 0; if that is "
            f"meant: ds.cast(value, ds.{to})",
        )
        return
    least, largest = _range(cx, v)
    if to.holds(least) and to.holds(largest):
        return
    meant = f"ds.cast(value, ds.{to})"
    _warn(
        cx,
        f"{name} holds {to}: an {have} that does not fit wraps around; if that is meant: {meant}",
    )
    if cx.debug:
        b = cx.builder
        # Fits if the value survives the conversion there and back ...
        for place in itertools.product(*map(range, v.type.shape)):
            one = b.named("extract", v, *place) if place else v
            fits = b.named("eq", b.cast(b.cast(one, to), have), one)
            # ... and keeps its sign: -1 as u32 and back is -1 again.
            if have.kind != to.kind:
                fits = b.named(
                    "and", fits, b.named("eq", b.named("lt", b.cast(one, to), 0), one < 0)
                )
            message = f"{name} holds {to}, and {{}} does not fit"
            b.add(Check(fits, message, (one,), b.span, kind=CheckKind.NARROWING))


def _warn(cx: TranslationContext, message: str) -> None:
    cx.warn_once(message, PrecisionLoss, cx.builder.span)


def note_merged_range(cx: TranslationContext, out: Value, a: Value, b: Value) -> None:
    """Record the range of a merged integer: the interval hull of both."""
    if out.type.is_int:
        (least, largest), (low, high) = _range(cx, a), _range(cx, b)
        cx.builder.ranges[out] = min(least, low), max(largest, high)


def bounds_of(cx: TranslationContext, v: Value) -> tuple[int, int]:
    """Return bounds of an integer."""
    return _range(cx, v)


def _range(cx: TranslationContext, v: Value, depth: int = _DEPTH) -> tuple[int, int]:
    """Return bounds of an integer, by interval arithmetic (R. E. Moore, Interval Analysis, 1966)."""
    t = v.type.scalar
    if isinstance(v, Const):
        return int(v.value), int(v.value)
    # Loop indices and merged values.
    known = cx.builder.ranges.get(v)
    if known is not None:
        return known
    whole = t.limits if t.is_int else (0, 1)
    let = cx.builder.made_by(v) if depth else None
    if let is None or not all(a.type.is_int or a.type.is_bool for a in let.args):
        return whole
    name = let.op.name
    parts = [_range(cx, a, depth - 1) for a in let.args]
    found = None
    if name in ("select", "min", "max"):
        (a, b), (c, d) = parts[-2:]
        found = {
            "select": (min(a, c), max(b, d)),
            "min": (min(a, c), min(b, d)),
            "max": (max(a, c), max(b, d)),
        }[name]
    elif name == "cast":
        found = parts[0]
    # `x & m` clears bits of m: with m >= 0 it is between 0 and m, whatever the sign of x.
    elif name == "bit_and" and any(a >= 0 for a, _ in parts):
        found = 0, min(b for a, b in parts if a >= 0)
    # As in Python, the remainder has the sign of the divisor.
    elif name == "mod" and parts[1][0] > 0:
        found = 0, parts[1][1] - 1
    # By a positive constant: monotonic, so the ends of the interval go to the ends.
    elif name in ("floordiv", "shr") and parts[1][0] == parts[1][1] > 0:
        n = parts[1][0]
        found = tuple(x >> n if name == "shr" else x // n for x in parts[0])  # type: ignore[assignment]
    elif name in ("add", "sub", "mul"):
        (a, b), (c, d) = parts
        ends = {"add": (a + c, b + d), "sub": (a - d, b - c)}.get(name)
        # A product is bilinear, so its extremes are at corners of the box.
        products = a * c, a * d, b * c, b * d
        found = ends or (min(products), max(products))
    # Where the result may not fit it wraps around: then nothing is known but its type.
    if found is None or not (t.holds(found[0]) and t.holds(found[1])):
        return whole
    return found


def keep_type(cx: TranslationContext, v: Value, t: Type, name: str, node: SyntaxNode) -> Value:
    """Convert the new value of a variable to the type that the variable has.

    A local keeps the type of its first value: a loop could not carry it otherwise.
    """
    if v.type is t:
        return v
    if v.type.shape != t.shape:
        raise cx.type_error(
            node,
            f"{name} is {an(t)} and cannot become {an(v.type)}",
            hint=f"use another name for {an(v.type)}",
        )
    problem = f"{name} is {an(t)} and cannot become {an(v.type)}"
    convert = f"ds.cast(..., ds.{t.scalar})"
    if t.is_bool and not v.type.is_bool:
        raise cx.type_error(node, problem, f"convert it: {convert}")
    hint = f"convert it: {convert}"
    if name.isidentifier() and t.is_int:
        hint = f"start it as a float ({name} = 0.0), or convert the new value: {convert}"
    refuse_fraction(cx, v, t.scalar, node, problem, hint)
    return narrowed(cx, v, t.scalar, name)
