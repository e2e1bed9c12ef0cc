"""`print` in kernels: a line of text known at compile time, with places for run-time values.

The launch writes the values into a buffer, and Python formats the line when it has ended (docs/adr/0015).
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Mapping
from typing import Any

import numpy as np

from diffsim.ir.nodes import Print, Value
from diffsim.ir.print_format import Shown
from diffsim.ir.types import ScalarType, TensorType, size_of
from diffsim.lang.frontend import calls, expressions
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.values import Evaluated, KernelDict, StructValue
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix

_KNOWN = (str, bool, int, float, np.generic, Matrix, ScalarType, TensorType, type(None))


def show(cx: TranslationContext, node: ast.Call) -> None:
    """Translate a call of `print`."""
    line = _Line(cx)
    separator, end = _texts(cx, node, {"sep": " ", "end": "\n"})
    first = True
    for a in node.args:
        # Unpacked like the arguments of any call.
        several = (
            calls.arguments(cx, ast.Call(node.func, [a], [])) if isinstance(a, ast.Starred) else [a]
        )
        for thing in several:
            if not first:
                line.text(separator)
            first = False
            if thing is a:
                line.add(a)
            else:
                line.operand(a.value, thing)  # type: ignore[attr-defined]
    line.text(end)
    # Lanes run in any order; their positions restore the order of the loop when lines are shown.
    cx.builder.add(Print(cx.lane_position(), tuple(line.pieces), tuple(line.values), cx.span(node)))


def stop(cx: TranslationContext, node: ast.Call) -> None:
    """Translate a call of `breakpoint`: a line without pieces, where `backends/stepping.py` stops."""
    if node.args or node.keywords:
        raise cx.syntax(node, "breakpoint takes no arguments in a kernel", "write breakpoint()")
    if cx.stops:
        cx.builder.add(Print(cx.lane_position(), (), (), cx.span(node)))
    else:
        message = (
            "breakpoint() does nothing in compiled kernels: it stops with ds.init(arch=ds.python)"
        )
        cx.warn_once(message, UserWarning, cx.span(node))


def _texts(cx: TranslationContext, node: ast.Call, known: dict[str, str]) -> list[str]:
    """Evaluate the keyword arguments sep and end."""
    for k in node.keywords:
        if k.arg not in known:
            raise cx.syntax(
                k.value,
                f"print takes no {k.arg}= in a kernel" if k.arg else "** cannot be used here",
                "it takes sep= and end=; its output goes to sys.stdout when the launch has ended",
            )
        thing = expressions.expr(cx, k.value)
        # None means the default, as for Python's print.
        if thing is not None and not isinstance(thing, str):
            raise cx.type_error(k.value, f"{k.arg} is {describe(thing)}", "give it a text")
        if thing is not None:
            known[k.arg] = thing
    return list(known.values())


def message(cx: TranslationContext, node: ast.expr) -> tuple[tuple[Any, ...], tuple[Value, ...]]:
    """Evaluate a text with values in it, as for `print`: its pieces, and the values."""
    line = _Line(cx)
    line.add(node)
    return tuple(line.pieces), tuple(line.values)


_PERCENT = re.compile(r"%(?:%|([-+ #0]*\d*(?:\.\d+)?)([diouxXeEfFgGs]))")


class _Line:
    """The line under construction.

    Invariant: `values` are the run-time values of the `Shown` places among `pieces`, in order.
    """

    def __init__(self, cx: TranslationContext) -> None:
        self.cx = cx
        self.pieces: list[str | Shown] = []
        self.values: list[Value] = []

    def text(self, text: str) -> None:
        """Append a text."""
        # Adjacent texts are joined, so that a line has few pieces.
        if self.pieces and isinstance(self.pieces[-1], str):
            self.pieces[-1] += text
        elif text:
            self.pieces.append(text)

    def add(self, node: ast.expr) -> None:
        """Append an expression: an f-string, `"{}".format(x)`, `"%d" % n`, or an operand."""
        # A text is no expression of the language: its parts are appended to the line one by one.
        if isinstance(node, ast.JoinedStr):
            self.formatted(node)
        elif isinstance(node, ast.Call) and _is_text(
            getattr(node.func, "value", None), node, "format"
        ):
            self.format_call(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
            self.percent(node)
        else:
            self.operand(node, expressions.expr(self.cx, node))

    def format_call(self, node: ast.Call) -> None:
        """Append `"{} {:.2f} {name}".format(a, b, name=c)`."""
        assert isinstance(node.func, ast.Attribute)
        assert isinstance(node.func.value, ast.Constant)
        template = str(node.func.value.value)
        named = {k.arg: k.value for k in node.keywords}
        count = 0
        for literal, field, spec, _ in string.Formatter().parse(template):
            self.text(literal)
            if field is None:
                continue
            key = field or str(count)
            count += not field
            found = (
                node.args[int(key)]
                if key.isdecimal() and int(key) < len(node.args)
                else named.get(key)
            )
            if found is None or "{" in (spec or ""):
                raise self.cx.syntax(
                    node,
                    f"the place {{{field}}} of this text has no value",
                    "number or name the places, or write an f-string",
                )
            self.operand(found, expressions.expr(self.cx, found), spec or "")

    def percent(self, node: ast.BinOp) -> None:
        """Append `"%d of %.2f" % (n, x)`."""
        assert isinstance(node.left, ast.Constant)
        text = str(node.left.value)
        given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        places = [m for m in _PERCENT.finditer(text) if m.group(2)]
        if len(places) != len(given):
            raise self.cx.syntax(
                node,
                f"this text has {len(places)} places, and {len(given)} values are given",
                "give one value for each place, or write an f-string",
            )
        at, left = 0, iter(given)
        for m in _PERCENT.finditer(text):
            self.text(text[at : m.start()])
            at = m.end()
            if not m.group(2):
                self.text("%")
                continue
            one = next(left)
            kind = {"i": "d", "u": "d", "s": ""}.get(m.group(2), m.group(2))
            self.operand(one, expressions.expr(self.cx, one), m.group(1).replace("-", "<") + kind)
        self.text(text[at:])

    def formatted(self, node: ast.JoinedStr) -> None:
        """Append an f-string."""
        for part in node.values:
            if isinstance(part, ast.Constant):
                self.text(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue)
            thing = expressions.expr(self.cx, part.value)
            # `!r` and `!a` make a difference for texts only; numbers are shown in one way.
            if part.conversion in (ord("r"), ord("a")) and isinstance(thing, str):
                thing = repr(thing) if part.conversion == ord("r") else ascii(thing)
            self.operand(part.value, thing, self.spec(part))

    def spec(self, part: ast.FormattedValue) -> str:
        """Evaluate a format specification, which must be known at compile time."""
        if part.format_spec is None:
            return ""
        # A specification may contain places itself: f"{x:.{digits}f}".
        inner = _Line(self.cx)
        assert isinstance(part.format_spec, ast.JoinedStr)
        inner.formatted(part.format_spec)
        if inner.values:
            raise self.cx.syntax(
                part.value,
                "the format of this depends on a run-time value",
                "write it as text, or with numbers that are known when the kernel is compiled",
            )
        return "".join(map(str, inner.pieces))

    def operand(self, node: ast.expr, thing: Evaluated, spec: str = "") -> None:
        """Append an operand, structs and lists part by part."""
        # Known while compiling: the format is that of its numbers.
        if isinstance(thing, Matrix) and spec:
            thing = list(thing)
        if isinstance(thing, Value):
            shown = Shown(thing.type, spec)
            try:
                # Tries the format with sample values now, as an error
                # after the launch could not be related to a line.
                shown.text([1] * size_of(thing.type))
            except ValueError as problem:
                raise self.cx.type_error(
                    node,
                    f"{describe(thing)} cannot be written with the format {spec!r}: {problem}",
                    "floats take formats such as .3f or .2e, whole numbers such as d or x",
                ) from None
            self.pieces.append(shown)
            self.values.append(thing)
        elif isinstance(thing, StructValue):
            members = {f"{name}=": part for name, part in thing.members.items()}
            self.parts(node, members, spec, thing.type.__name__ + "(", ")")
        elif isinstance(thing, (list, tuple)):
            # As Python writes containers.
            closing = ",)" if isinstance(thing, tuple) and len(thing) == 1 else ")"
            around = ("(", closing) if isinstance(thing, tuple) else ("[", "]")
            self.parts(node, dict(enumerate(thing)), spec, *around)
        elif isinstance(thing, KernelDict):
            self.parts(node, {f"{k!r}: ": part for k, part in thing.items()}, spec, "{", "}")
        elif isinstance(thing, _KNOWN):
            # A width or precision of 10000 or more is a mistake, and
            # a text of that length would be made while compiling.
            if any(len(digits) > 4 for digits in re.findall(r"\d+", spec)):
                raise self.cx.type_error(
                    node, f"the format {spec!r} makes a line that is too long", "make it narrower"
                )
            try:
                self.text(format(thing, spec) if spec else str(thing))
            except (ValueError, TypeError) as problem:
                raise self.cx.type_error(
                    node,
                    f"{describe(thing)} cannot be written with the format {spec!r}: {problem}",
                    "take a format that Python has for it, or leave the format out",
                ) from None
        else:
            raise self.cx.type_error(
                node,
                f"{describe(thing)} cannot be printed in a kernel",
                "print its elements, or numbers, vectors, structs and texts",
            )

    def parts(
        self, node: ast.expr, parts: Mapping[Any, object], spec: str, start: str, end: str
    ) -> None:
        """Append parts between brackets, each after its key if that is a text."""
        self.text(start)
        for k, (key, thing) in enumerate(parts.items()):
            self.text((", " if k else "") + (key if isinstance(key, str) else ""))
            self.operand(node, thing, spec)
        self.text(end)


def _is_text(node: ast.AST | None, call: ast.Call | None = None, name: str = "") -> bool:
    """Return whether it is a text that is written out, the owner of this method of a call if one is named."""
    named = call is None or getattr(call.func, "attr", "") == name
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and named
