"""Expressions: one function for each kind of syntax node, which evaluates it to an `Evaluated`.

Numbers known at compile time stay Python numbers until they meet a run-time value: constants are folded in
double precision, and `0.1 * x` means f64's 0.1 where x is f64. Read `values.py` first.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError
from diffsim.ir.builder import Operand
from diffsim.ir.check_messages import DIVIDED_BY_0, NEGATIVE_POWER
from diffsim.ir.nodes import Check, Const, Dim, Mem, Value
from diffsim.ir.ops import matmul, transpose
from diffsim.ir.types import ScalarType, an, bool_, i64
from diffsim.lang.frontend import calls, iteration_spaces, short_circuit, subscripts
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.regions import if_region
from diffsim.lang.frontend.values import Evaluated, PythonObject
from diffsim.lang.host.field_like import FieldLike, is_field
from diffsim.lang.host.inspection import is_of_program
from diffsim.lang.host.observations import has_code
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import advice, describe, sample
from diffsim.lang.types.matrix import Matrix

Number = (bool, int, float, np.bool_, np.integer, np.floating)
# Objects whose operators are not the cause of an error, so that it is about the operation itself.
_PLAIN = (*Number, str, list, tuple, range, slice, np.ndarray, Matrix)


class ArrayRef(FieldLike):
    """An array argument inside of a kernel; its shape is known at run time only."""

    _mem: Mem
    shape: tuple[Dim, ...]
    dtype: ScalarType

    def __init__(self, mem: Mem, index_type: ScalarType) -> None:
        self._mem = mem
        # A run-time value per axis: one compiled kernel serves arrays of all sizes.
        self.shape = tuple(Dim(index_type, mem, k) for k in range(mem.rank))
        self.dtype = mem.dtype.scalar

    def in_words(self) -> str:
        """Name it in messages."""
        return f"the array {self._mem.name}"

    @property
    def grad(self) -> ArrayRef | None:
        grad = self._mem.grad
        return None if grad is None else ArrayRef(grad, self.shape[0].type.scalar)


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
        raise cx.syntax(node, f"{word} can not be used in a kernel", hint)
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


_LISTS = "use a list, a vector or a field; what is known before can be made outside of the kernel"
_YIELD = "store the values into a field"
_UNSUPPORTED: dict[type[ast.expr], tuple[str, str]] = {
    ast.Lambda: ("a lambda", "define a function with @ds.func"),
    ast.Dict: ("a dictionary", _LISTS),
    ast.DictComp: ("a dictionary comprehension", _LISTS),
    ast.Set: ("a set", _LISTS),
    ast.SetComp: ("a set comprehension", _LISTS),
    ast.GeneratorExp: ("a generator expression", "put it into brackets, [...], or write a loop"),
    ast.Await: ("await", "leave it out"),
    ast.Yield: ("yield", _YIELD),
    ast.YieldFrom: ("yield", _YIELD),
    ast.Starred: ("* (unpacking)", "name the elements one by one"),
    ast.JoinedStr: ("an f-string", "only print takes one; kernels compute with numbers"),
    ast.NamedExpr: (
        "an assignment inside of an expression (:=)",
        "write the assignment as a statement of its own",
    ),
}


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


def _constant(cx: TranslationContext, node: ast.Constant) -> Any:
    """Evaluate a literal."""
    # Texts are allowed: they are keys of dictionaries and arguments of print.
    if isinstance(node.value, (complex, bytes)) or node.value is Ellipsis:
        raise cx.syntax(
            node, f"{node.value!r} can not be used in a kernel", "kernels compute with real numbers"
        )
    return node.value


def _name(cx: TranslationContext, node: ast.Name) -> Evaluated:
    return cx.lookup(node)


def _sequence(cx: TranslationContext, node: ast.List | ast.Tuple) -> Evaluated:
    made = [expr(cx, e) for e in node.elts]
    return made if isinstance(node, ast.List) else tuple(made)


# ---- operators

_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv), ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod), ast.Pow: ("pow", operator.pow), ast.BitAnd: ("bit_and", operator.and_),
    ast.BitOr: ("bit_or", operator.or_), ast.BitXor: ("bit_xor", operator.xor),
    ast.LShift: ("shl", operator.lshift), ast.RShift: ("shr", operator.rshift),
    ast.MatMult: ("matmul", operator.matmul),
}  # fmt: skip


def _binary(cx: TranslationContext, node: ast.BinOp) -> Evaluated:
    return binary(cx, type(node.op), expr(cx, node.left), expr(cx, node.right), node)


def binary(
    cx: TranslationContext, kind: type[ast.operator], a: Evaluated, b: Evaluated, node: Any
) -> Evaluated:
    """Apply a binary operator to values or Python objects."""
    name, python = _BINARY[kind]
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
                "make the text outside of the kernel",
            )
    left, right = operands(cx, node, a, b)
    if kind is ast.Pow:  # these two need more than one op
        return _power(cx, left, right, node)
    if kind is ast.MatMult:
        return _matrix_product(cx, left, right, node)
    found = cx.builder.named(name, left, right)
    if cx.debug and kind in (ast.FloorDiv, ast.Mod) and found.type.is_int:
        _check_divisor(cx, right)
    return found


# Limits of what is computed while compiling: elements of a list, and bits of an integer. No type holds more
# than 64 bits, but intermediate results of constant expressions may be longer.
_MOST_ITEMS = 1 << 16
_MOST_BITS = 1 << 12


def _check_size(
    cx: TranslationContext, kind: type[ast.operator], a: Evaluated, b: Evaluated, node: Any
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
            cx.builder.add(Check(some, DIVIDED_BY_0, (), cx.builder.span))


def _repeated(cx: TranslationContext, node: Any, a: Evaluated, b: Evaluated) -> Any:
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


def operands(cx: TranslationContext, node: Any, *things: Evaluated) -> list[Operand]:
    """Convert the operands of an operator; literals take the precision of the floats among them."""
    # The widest float among the operands: in `0.1 * x` with x of f64, 0.1 is not rounded to f32 first.
    floats = (x.type for x in things if isinstance(x, Value) and x.type.is_float)
    like = max(floats, key=lambda t: t.scalar.bits, default=None)
    made: list[Any] = [  # NumPy's numbers among them: the builder takes them as Python's
        x if isinstance(x, Number) else cx.value(x, node, "an operand", like) for x in things
    ]
    return made


def fold(
    cx: TranslationContext,
    node: Any,
    function: Callable[..., Any],
    *args: Any,
    asked: bool = True,
    **kwargs: Any,
) -> PythonObject:
    """Compute an operation on objects known at compile time.

    With `asked`, the call is observed where code of the program decides the result, which may change then.
    """
    try:
        return cx.evaluate(node, function, *args, **kwargs) if asked else function(*args, **kwargs)
    except DiffsimError as problem:
        raise cx.type_error(node, problem.message, problem.hint) from None
    except Exception as problem:
        if is_of_program(problem) and any(map(has_code, args)):
            raise cx.program_error(node, problem) from None
        # The operand that can not be computed with is more helpful in the message than Python's own text.
        for a in args:
            if a is None or not isinstance(a, _PLAIN):
                message = f"{describe(a)} can not be used here"
                raise cx.type_error(node, message, advice(a)) from None
        raise cx.type_error(
            node,
            f"this can not be evaluated: {problem}",
            "it is computed before the launch, from constants; see what they are",
        ) from None


def _power(cx: TranslationContext, a: Operand, b: Operand, node: Any) -> Value:
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
        cx.builder.add(Check(possible, NEGATIVE_POWER, (b,), cx.span(node)))
    return cx.builder.named("int_pow", a, b)


def _negative_power(cx: TranslationContext, node: Any) -> Exception:
    return cx.type_error(
        node,
        "an integer to a negative power is no integer",
        hint="make the base a float: ds.cast(a, ds.f32)",
    )


def whole_power(cx: TranslationContext, a: Value, n: int, node: Any) -> Value:
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


def _matrix_product(cx: TranslationContext, a: Operand, b: Operand, node: Any) -> Value:
    """Translate `a @ b`."""
    left, right = _tensor_operand(cx, a, node), _tensor_operand(cx, b, node)
    if len(left.type.shape) == 1 and len(right.type.shape) == 2:  # a row vector: v A = A^T v
        return cx.builder.op(matmul, (cx.builder.op(transpose, (right,)), left))
    if len(left.type.shape) == 1:
        raise cx.type_error(
            node,
            f"@ multiplies matrices, and {an(left.type)} stands on its left",
            hint="of two vectors take a.dot(b), or a.outer_product(b)",
        )
    return cx.builder.op(matmul, (left, right))


def _tensor_operand(cx: TranslationContext, x: Operand, node: Any) -> Value:
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


def _unary(cx: TranslationContext, node: ast.UnaryOp) -> Evaluated:
    """Translate a unary operator."""
    x = expr(cx, node.operand)
    if isinstance(node.op, ast.Not):  # `not` asks for the truth, the other operators for the value
        known = truth(cx, x, node.operand)
        return cx.builder.named("not", known) if isinstance(known, Value) else not known
    # Folded, so that `-1` remains a literal, which adopts the type of its context.
    if isinstance(x, (*Number, Matrix)):
        return fold(cx, node, _UNARY[type(node.op)], x)
    x = cx.value(x, node, "the operand")
    if isinstance(node.op, ast.USub):
        return -x
    return x if isinstance(node.op, ast.UAdd) else cx.builder.named("bit_not", x)


_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("lt", operator.lt), ast.LtE: ("le", operator.le), ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge), ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne),
}  # fmt: skip


def _compare(cx: TranslationContext, node: ast.Compare) -> Evaluated:
    """Translate a comparison."""
    return _chain(cx, node, expr(cx, node.left), 0)


def _chain(cx: TranslationContext, node: ast.Compare, left: Any, k: int) -> Value | PythonObject:
    """Translate the comparisons of `a < b < c` from the k-th on, each evaluated only where it decides."""
    # Each operand is evaluated once, though it takes part in two comparisons.
    right = expr(cx, node.comparators[k])
    first = _compare_two(cx, type(node.ops[k]), left, right, node)
    # The op may have been folded by the builder.
    if isinstance(first, Const) and first.type is bool_:
        first = bool(first.value)
    if k + 1 == len(node.ops) or (not isinstance(first, Value) and not first):
        return first

    def rest() -> Value | PythonObject:
        return _chain(cx, node, right, k + 1)

    # An `and` is cheaper than a branch if evaluating the rest has no effect and can not fail.
    cheap = all(short_circuit.is_cheap(cx, later) for later in node.comparators[k + 1 :])
    if not isinstance(first, Value) or first.type.shape or cheap:
        return _both(cx, first, rest())
    never = cx.builder.const(False, bool_)
    return if_region(cx, first, lambda: _both(cx, Const(bool_, True), rest()), lambda: never, node)


def _compare_two(
    cx: TranslationContext, kind: type[ast.cmpop], a: Evaluated, b: Evaluated, node: Any
) -> Value | PythonObject:
    """Translate one comparison."""
    known = not isinstance(a, Value) and not isinstance(b, Value)
    if kind in (ast.Is, ast.IsNot, ast.In, ast.NotIn):
        if not known:
            raise cx.syntax(
                node,
                "`is` and `in` can not compare run-time values",
                "use == or !=, joined with `or` where there are several",
            )
        test = {
            ast.Is: operator.is_,
            ast.IsNot: operator.is_not,
            ast.In: _is_in,
            ast.NotIn: _is_not_in,
        }[kind]
        if kind in (ast.Is, ast.IsNot):
            # Another object with an equal value would change the answer.
            cx.observations.note_identity(a)
            cx.observations.note_identity(b)
            return test(a, b)
        return fold(cx, node, test, a, b)
    name, python = _COMPARE[kind]
    for x in (a, b):
        if is_field(x):
            raise cx.type_error(
                node,
                f"{describe(x)} as a whole can not be compared",
                f"name an element: {sample(x)}",
            )
    # Vectors are compared element by element, which gives a vector and no bool: that is an op.
    if known and not any(isinstance(x, (list, Matrix, np.ndarray)) for x in (a, b)):
        return fold(cx, node, python, a, b)
    return cx.builder.named(name, *operands(cx, node, a, b))


def _is_in(x: PythonObject, y: PythonObject) -> bool:
    """Return `x in y`; `operator.contains` takes them in the other order."""
    return x in y


def _is_not_in(x: PythonObject, y: PythonObject) -> bool:
    return x not in y


def _both(
    cx: TranslationContext, a: Value | PythonObject, b: Value | PythonObject
) -> Value | PythonObject:
    """Combine two comparisons by `and`."""
    for x, other in ((a, b), (b, a)):  # `False and x` is False, `True and x` is x: no op is needed
        if not isinstance(x, Value):
            return other if x else False
    return cx.builder.named("and", a, b)


def _attribute(cx: TranslationContext, node: ast.Attribute) -> Evaluated:
    return subscripts.attribute_node(cx, node)


def _subscript(cx: TranslationContext, node: ast.Subscript) -> Evaluated:
    return subscripts.subscript(cx, node)


def _slice(cx: TranslationContext, node: ast.Slice) -> Any:
    return subscripts.slice_node(cx, node)


# ---- attributes, elements, calls, comprehensions


def _call(cx: TranslationContext, node: ast.Call) -> Evaluated:
    return calls.call(cx, node)


def _list_comprehension(cx: TranslationContext, node: ast.ListComp) -> Any:
    """Unroll a list comprehension over things known at compile time."""
    if len(node.generators) != 1 or node.generators[0].is_async:
        raise cx.syntax(
            node,
            "a list comprehension in a kernel has one `for`",
            "put one into the other, or write loops",
        )
    (generator,) = node.generators
    items: PythonObject = expr(cx, generator.iter)
    # The length of a vector is known at compile time, its elements are not.
    if isinstance(items, Value) and len(items.type.shape) == 1:
        items = linalg.elements(items)
    if not hasattr(type(items), "__iter__") or is_field(items):
        raise cx.syntax(
            generator.iter,
            "a list comprehension runs over things known at compile time",
            "use range(n) with a constant n, or write a loop",
        )
    # A container or iterator of the program: its items are observed as one call of `list`.
    if not isinstance(items, (list, tuple, iteration_spaces.Static, iteration_spaces.NdRange)):
        items = fold(cx, generator.iter, list, items)
    made = []
    # As in Python, the target's names are local to the comprehension.
    names = [n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)]
    saved = {n: cx.env[n] for n in names if n in cx.env}
    for item in items:
        iteration_spaces.bind_target(cx, generator.target, item)
        tests = [condition(cx, t) for t in generator.ifs]
        if any(isinstance(t, Value) for t in tests):
            raise cx.syntax(
                node,
                "the condition of a list comprehension must be known before the launch",
                "write a loop",
            )
        if all(tests):
            made.append(expr(cx, node.elt))
    for name in names:
        cx.env.pop(name, None)
    cx.env.update(saved)
    return made


# Dispatch by the exact class of the node: the parser makes no instances of subclasses.
_EXPRESSIONS: dict[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: _constant, ast.Name: _name, ast.List: _sequence, ast.Tuple: _sequence, ast.BinOp: _binary,
    ast.UnaryOp: _unary, ast.Compare: _compare, ast.BoolOp: short_circuit.bool_op,
    ast.IfExp: short_circuit.if_expression, ast.Attribute: _attribute, ast.Subscript: _subscript,
    ast.Slice: _slice, ast.Call: _call, ast.ListComp: _list_comprehension,
}  # fmt: skip
