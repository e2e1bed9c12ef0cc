"""Expressions: one function for each kind of syntax node, which evaluates it to an `Evaluated`.

Numbers known at compile time stay Python numbers until they meet a run-time value: constants are folded in
double precision, and `0.1 * x` means f64's 0.1 where x is f64. Read `values.py` first.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError
from diffsim.ir.nodes import Const, Dim, Mem, Value
from diffsim.ir.types import ScalarType, an, bool_
from diffsim.lang.frontend import assignments, calls, subscripts
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import containers
from diffsim.lang.frontend.operators import arithmetic, comparison, short_circuit, slicing
from diffsim.lang.frontend.operators.folding import fold
from diffsim.lang.frontend.values import Evaluated, holds_value
from diffsim.lang.host.field_like import FieldLike, is_field
from diffsim.lang.host.inspection import is_of_program
from diffsim.lang.types.descriptions import describe, sample
from diffsim.lang.types.matrix import Matrix


class ArrayRef(FieldLike):
    """An array argument inside a kernel; its shape is known at run time only.

    Attributes:
        clamp: whether an index outside it means the nearest one inside.
    """

    _mem: Mem
    shape: tuple[Dim, ...]
    dtype: ScalarType

    def __init__(
        self,
        mem: Mem,
        index_type: ScalarType,
        *,
        clamp: bool = False,
        shape: tuple[Dim, ...] | None = None,
    ) -> None:
        self._mem = mem
        self.clamp = clamp
        self._index_type = index_type
        # A run-time value per axis: one compiled kernel serves arrays of all sizes. Arrays of one shape
        # have the same values, so that all passes know that these are equal.
        self.shape = shape or tuple(Dim(index_type, mem, k) for k in range(mem.rank))
        self.dtype = mem.dtype.scalar

    def again(self, *, clamp: bool) -> ArrayRef:
        """Return the same array as another parameter sees it."""
        return ArrayRef(self._mem, self._index_type, clamp=clamp, shape=self.shape)

    def in_words(self) -> str:
        """Name it in messages."""
        return f"the array {self._mem.name}"

    @property
    def needs_dual(self) -> bool:
        return False

    @property
    def grad(self) -> ArrayRef | None:
        grad = self._mem.grad
        if grad is None:
            return None
        return ArrayRef(grad, self._index_type, clamp=self.clamp, shape=self.shape)


class Method:
    """A method of a vector or matrix value, bound to it."""

    def __init__(self, name: str, owner: Evaluated) -> None:
        self.name = name
        self.owner = owner

    def in_words(self) -> str:
        return f"the method .{self.name}"

    @property
    def __name__(self) -> str:
        return f".{self.name}"


def expr(cx: TranslationContext, node: ast.expr) -> Evaluated:
    """Evaluate an expression to a value or a Python object."""
    handler = _EXPRESSIONS.get(type(node))
    if handler is None:
        word, hint = _UNSUPPORTED.get(type(node), ("this", "write it with numbers and vectors"))
        raise cx.syntax(node, f"{word} cannot be used in a kernel", hint)
    return _at(cx, node, handler)


def _at(
    cx: TranslationContext, node: ast.expr, handler: Callable[[TranslationContext, Any], Any]
) -> Any:
    """Evaluate an expression by its handler, with emitted statements placed at the expression's line."""
    outer = cx.builder.span
    cx.builder.span = cx.span(node)
    try:
        return handler(cx, node)
    except DiffsimError:
        raise
    except Exception as problem:
        # A property or operator of the program's own class failed: that is no fault of diffsim's.
        if is_of_program(problem):
            raise cx.program_error(node, problem) from None
        raise
    finally:
        cx.builder.span = outer


_LISTS = (
    "use a list, a vector or a field; values known before the launch can be made outside the kernel"
)
_YIELD = "store the values into a field"
_UNSUPPORTED: dict[type[ast.expr], tuple[str, str]] = {
    ast.Lambda: ("a lambda", "define a function with @ds.func"),
    ast.Set: ("a set", _LISTS),
    ast.SetComp: ("a set comprehension", _LISTS),
    ast.GeneratorExp: (
        "a generator expression",
        "put it into brackets, [...]; sum, any, all, min and max take it as it is",
    ),
    ast.Await: ("await", "leave it out"),
    ast.Yield: ("yield", _YIELD),
    ast.YieldFrom: ("yield", _YIELD),
    ast.Starred: ("* (unpacking)", "name the elements one by one"),
}
if sys.version_info >= (3, 14):
    _UNSUPPORTED[ast.TemplateStr] = ("a template string", "print takes an f-string")


def value(cx: TranslationContext, node: ast.expr, what: str = "this") -> Value:
    """Evaluate an expression that must be a run-time number, vector or matrix."""
    return cx.value(expr(cx, node), node, what)


def condition(cx: TranslationContext, node: ast.expr) -> Value | bool:
    """Evaluate a condition: a bool if it is known at compile time, else a boolean value."""
    # `a and b` as a value is one of the operands, which need one type; as a condition it need not.
    if isinstance(node, ast.BoolOp):
        found: Value | bool = _at(cx, node, short_circuit.truth_of)
        return found
    return truth(cx, expr(cx, node), node)


def truth(cx: TranslationContext, thing: Evaluated, node: ast.expr) -> Value | bool:
    """Return the truth of an operand: a bool if it is known at compile time, else a boolean value."""
    if isinstance(thing, Value):
        if thing.type.shape:
            raise cx.type_error(
                node,
                f"{an(thing.type)} is neither true nor false",
                hint="compare an element or the norm with a number, or ask (a < b).all() or .any()",
            )
        if thing.type is not bool_:
            # As in Python, a number is true if it is not 0; NaN is.
            thing = cx.builder.named("ne", thing, 0)
        return bool(thing.value) if isinstance(thing, Const) else thing
    if is_field(thing):
        raise cx.type_error(
            node,
            f"{describe(thing)} is neither true nor false",
            f"name an element: {sample(thing)}",
        )
    if isinstance(thing, (Matrix, np.ndarray)):
        raise cx.type_error(
            node, f"{describe(thing)} is neither true nor false", "compare an element with a number"
        )
    return bool(fold(cx, node, bool, thing))


# ---- names and constants


def _constant(cx: TranslationContext, node: ast.Constant) -> Evaluated:
    """Evaluate a literal."""
    # Texts are allowed: they are keys of dictionaries and arguments of print.
    if isinstance(node.value, (complex, bytes)) or node.value is Ellipsis:
        raise cx.syntax(
            node, f"{node.value!r} cannot be used in a kernel", "kernels compute with real numbers"
        )
    return node.value


def _name(cx: TranslationContext, node: ast.Name) -> Evaluated:
    return cx.lookup(node)


def _sequence(cx: TranslationContext, node: ast.List | ast.Tuple) -> Evaluated:
    made = containers.sequence(cx, node.elts)
    return made if isinstance(node, ast.List) else tuple(made)


def _text(cx: TranslationContext, node: ast.JoinedStr) -> str:
    """Evaluate an f-string of what is known at compile time, such as the key of a dictionary."""
    return "".join([_text_part(cx, part) for part in node.values])


def _text_part(cx: TranslationContext, node: ast.expr) -> str:
    if not isinstance(node, ast.FormattedValue):
        assert isinstance(node, ast.Constant)
        return str(node.value)
    thing = expr(cx, node.value)
    if isinstance(thing, Const):
        thing = thing.value
    if holds_value(thing):
        raise cx.syntax(
            node,
            "an f-string of run-time values cannot be used in a kernel",
            "only print and assert take one; kernels compute with numbers",
        )
    spec = "" if node.format_spec is None else expr(cx, node.format_spec)
    if node.conversion >= 0:  # the code of the letter in f"{x!r}"
        convert: dict[int, Callable[..., Any]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}
        thing = fold(cx, node, convert[node.conversion], thing)
    made: str = fold(cx, node, format, thing, spec)
    return made


# ---- operators


def _binary(cx: TranslationContext, node: ast.BinOp) -> Evaluated:
    return arithmetic.binary(cx, type(node.op), expr(cx, node.left), expr(cx, node.right), node)


def _unary(cx: TranslationContext, node: ast.UnaryOp) -> Evaluated:
    x = expr(cx, node.operand)
    if not isinstance(node.op, ast.Not):
        return arithmetic.unary(cx, type(node.op), x, node)
    # Of a vector of truths element by element, as the comparison that made it.
    if isinstance(x, Value) and x.type.shape and x.type.is_bool:
        return cx.builder.named("not", x)
    # `not` asks for the truth, the other operators for the value.
    known = truth(cx, x, node.operand)
    return cx.builder.named("not", known) if isinstance(known, Value) else not known


def _compare(cx: TranslationContext, node: ast.Compare) -> Evaluated:
    return comparison.compare(cx, node)


def _bool_op(cx: TranslationContext, node: ast.BoolOp) -> Evaluated:
    return short_circuit.bool_op(cx, node)


def _if_expression(cx: TranslationContext, node: ast.IfExp) -> Evaluated:
    return short_circuit.if_expression(cx, node)


def _attribute(cx: TranslationContext, node: ast.Attribute) -> Evaluated:
    return subscripts.attribute_node(cx, node)


def _subscript(cx: TranslationContext, node: ast.Subscript) -> Evaluated:
    return subscripts.subscript(cx, node)


def _slice(cx: TranslationContext, node: ast.Slice) -> Evaluated:
    return slicing.slice_node(cx, node)


# ---- attributes, elements, calls, comprehensions


def _call(cx: TranslationContext, node: ast.Call) -> Evaluated:
    return calls.call(cx, node)


def _comprehension(cx: TranslationContext, node: ast.ListComp | ast.DictComp) -> Evaluated:
    return containers.comprehension(cx, node)


def _dictionary(cx: TranslationContext, node: ast.Dict) -> Evaluated:
    return containers.display(cx, node)


def _named(cx: TranslationContext, node: ast.NamedExpr) -> Evaluated:
    """Translate `(name := value)`: an assignment, whose value is that of the name after it."""
    assignments.assign_to(cx, node.target, expr(cx, node.value), node.value)
    name = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
    return cx.lookup(name)


# Dispatch by the exact class of the node: the parser makes no instances of subclasses.
_EXPRESSIONS: dict[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: _constant, ast.Name: _name, ast.List: _sequence, ast.Tuple: _sequence, ast.BinOp: _binary,
    ast.UnaryOp: _unary, ast.Compare: _compare, ast.BoolOp: _bool_op,
    ast.IfExp: _if_expression, ast.Attribute: _attribute, ast.Subscript: _subscript,
    ast.Slice: _slice, ast.Call: _call, ast.ListComp: _comprehension, ast.DictComp: _comprehension,
    ast.Dict: _dictionary, ast.NamedExpr: _named, ast.JoinedStr: _text,
}  # fmt: skip
