"""The columns of the op table; the rows themselves are in `ir/ops/table.py`.

A row is everything diffsim knows about an op: its types, its documentation, a NumPy reference, how
backends compute it, how it is differentiated, how it continues to complex numbers, and on which interval it
is tested. There is no second place: the public function, the interpreter, all backends, the reverse pass and
the generated tests read the row. Only the symbol of a mathematical function is left to the target, as it
depends on the target's libraries. `vjp` has no default, so an op without an answer to "what is its
derivative?" cannot be written: the answer is a rule for each argument, ZERO, or NotDifferentiable with the
reason the user will read. Nor has `continuation`, by which the complex step checks the rules.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.errors import KernelTypeError, Span, shown
from diffsim.ir import builder_stack
from diffsim.ir.nodes import Value
from diffsim.ir.types import ScalarType, Type, bool_, converted, of_width
from diffsim.parameters import placed, signature_of
from diffsim.public_names import PublicNames, with_example
from diffsim.tracebacks import UserError

# Filled by `op` while `ir/ops/table.py` is imported, in the order of its rows.
TABLE: dict[str, Op] = {}
WHOLE = ("ceil", "floor", "round", "trunc")
"""Ops that also take the type of their result: `ds.floor(x, ds.i32)`."""
_PARAMETERS = {"select": "cond, x1, x2", "pow": "base, exponent", "min": "*args", "max": "*args"}
_TAKES = {
    "F": "floats (in a kernel, integers become the default float)",
    "I": "integers",
    "N": "floats or integers",
    "B": "a truth value",
    "T": "numbers of any type",
}
_SIGNS = dict(
    pair.split()
    for pair in (
        "add +, sub -, neg -, mul *, div /, floordiv //, mod %, pow **, matmul @, lt <, le <=, gt >, "
        "ge >=, eq ==, ne !=, and and, or or, not not, bit_and &, bit_or |, bit_xor ^, bit_not ~, "
        "shl <<, shr >>"
    ).split(", ")
)


class Zero:
    """The derivative is zero wherever it exists: a rule of its own, so that no adjoint code is emitted."""

    def __repr__(self) -> str:
        return "ZERO"


ZERO = Zero()


@dataclass(frozen=True, slots=True)
class NotDifferentiable:
    """There is no derivative; asking for it is an error with this reason and a hint."""

    why: str
    hint: str


# Lowering: how backends compute an op on scalars.


@dataclass(frozen=True, slots=True)
class Instr:
    """An LLVM instruction for each kind of operand (None: there is none for that kind)."""

    f: str | None = None
    i: str | None = None
    u: str | None = None
    b: str | None = None

    def of(self, kind: str) -> str | None:
        if kind == "u":
            # Two's complement: most instructions are the same for both, and only those that differ
            # name `u`.
            return self.u or self.i
        return self.f if kind == "f" else self.i if kind == "i" else self.b


@dataclass(frozen=True, slots=True)
class LLVMIntrinsic:
    """`llvm.<name>.<type>`, for intrinsics that every target has; `i` and `u`: those for integers.

    Unlike `Instr`, u does not fall back to i: the signs of minima and maxima differ.
    """

    f: str | None = None
    i: str | None = None
    u: str | None = None

    def of(self, kind: str) -> str | None:
        return self.f if kind == "f" else self.u if kind == "u" else self.i if kind == "i" else None


@dataclass(frozen=True, slots=True)
class Math:
    """A mathematical function of floats: each target maps its name to a function of its libraries.

    `formula`, in terms of other rows, is for targets whose map does not have the name.
    """

    name: str
    formula: Callable[..., Value] | None = None


@dataclass(frozen=True, slots=True)
class Expand:
    """An expansion into other rows: a function of values that emits them."""

    formula: Callable[..., Value]


class CustomLowering:
    """Lowered by the op's name: the few ops whose text depends on more than the operand's kind."""

    def __repr__(self) -> str:
        return "CUSTOM_LOWERING"


CUSTOM_LOWERING = CustomLowering()


class Continuation:
    """How an op is computed of complex numbers, for the complex step; see `ANALYTIC` and the others."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


ANALYTIC = Continuation("ANALYTIC")
"""Its reference takes complex numbers, and is analytic."""
BY_REAL_PART = Continuation("BY_REAL_PART")
"""The result of the real parts, without an imaginary one: locally constant, or declared to be."""
UNKNOWN = Continuation("UNKNOWN")
"""There is no formula: the complex step is refused."""


Lowering = Instr | LLVMIntrinsic | Math | Expand | CustomLowering
Rule = Callable[..., Value | None] | Zero | NotDifferentiable
# A rule for ops of any number of operands: (k, g, args, y) -> contribution to argument k, or None.
Variadic = Callable[..., Value | None]
VectorJacobianProduct = tuple[Rule, ...] | Zero | NotDifferentiable | Variadic


class OpDispatch:
    """An operand in Python that defines ops on itself: a vector, a number on a tape."""

    __slots__ = ()

    def apply(self, op: Op, args: Sequence[Any]) -> Any:
        """Return the result of an op of which this is one operand."""
        raise NotImplementedError

    def converted(self, to: ScalarType) -> Any:
        """Return its numbers in another type."""
        raise NotImplementedError


class Tracked(OpDispatch):
    """A number in Python whose operations something else, such as a tape, records."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """Return the plain number, vector or matrix."""
        raise NotImplementedError

    def follows(self) -> bool:
        """Return whether operations on it are recorded now."""
        raise NotImplementedError


class Op(metaclass=PublicNames):
    """One row. Called with IR values it emits the op; called with numbers or arrays it evaluates `ref`.

    Rows are singletons: passes compare ops by identity or name, and a pickled row is looked up again.

    Attributes:
        name: the op's name in the IR and, for public ops, in `ds`.
        signature: "N N -> N": a letter for each operand; equal letters become one type by promotion.
            F float, I integer, N number, B boolean, J integer or boolean, T anything; a result `b`
            is boolean, `i` and `f` an integer and a float as wide as the operand. Ops with a `infer_type`
            work on tensors as wholes, and their letters only name the kind of each operand (V tensor,
            S scalar).
        doc: one sentence, with units where there are any.
        example: of a public op: a call and its result, for its documentation.
        ref: NumPy reference.
        lowering: how backends compute it on scalars.
        vjp: for each argument a function (g, *args, y) -> contribution, ZERO, or
            NotDifferentiable(why, hint).
        continuation: how it is computed of complex numbers: ANALYTIC, BY_REAL_PART, UNKNOWN, or a function
            of them, of whose results only the imaginary parts count.
        sample: for each argument the interval that tests draw from.
        linear: how an op on whole tensors is linear in its floats, for forward mode: "together" (`build`),
            "each" of them while the others stay (`matmul`). Elementwise ops need no answer: their rules
            are read both ways.
        infer_type: for ops on tensors as wholes: (argument types) -> result type; elementwise ops have none.
        moves: whether it only moves numbers, and works on types of storage too; all others compute, in
            `ScalarType.arithmetic`.
        public: whether it is a name of `ds`.
    """

    _public = "name"

    def __init__(
        self,
        name: str,
        signature: str,
        doc: str,
        *,
        example: tuple[str, object] = ("", ""),
        ref: Callable[..., Any],
        lowering: Lowering,
        vjp: VectorJacobianProduct,
        continuation: Continuation | Callable[..., Any],
        sample: list[tuple[float, float]],
        infer_type: Callable[..., Type] | None = None,
        linear: str = "",
        moves: bool = False,
        public: bool = True,
    ) -> None:
        self.name = name
        self.signature = signature
        self.doc = doc
        self.ref = ref
        self.lowering = lowering
        self.vjp = vjp
        self.continuation = continuation
        self.sample = sample
        self.infer_type = infer_type
        self.linear = linear
        self.moves = moves
        self.public = public
        # Split once; type inference reads `operands` and `result` for each op that is emitted.
        left, _, right = signature.partition("->")
        self.operands = tuple(left.split())
        self.result = right.strip()
        if public:
            # Shown by `help(ds.sin)` and in the generated documentation.
            self.__doc__ = self._described(*example)

    def _described(self, call: str, result: object) -> str:
        """Return the documentation: what it is, what it takes, an example."""
        takes = " and ".join(_TAKES[letter] for letter in dict.fromkeys(self.operands))
        text = f"{self.doc}\n\nTakes {takes}; vectors, matrices and arrays element by element."
        return with_example(text, call and f"print({call})  # prints: {result}")

    def __repr__(self) -> str:
        return f"<op {self.name}: {self.signature}>"

    def __reduce__(self) -> Any:
        return _row_of, (self.name,)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.parameters)

    @property
    def parameters(self) -> str:
        """The parameters as in a `def`, under Taichi's names."""
        if self.name in WHOLE:
            return "x, dtype=None"
        by_count = ("", "x", "x1, x2", "x1, x2, x3")
        return _PARAMETERS.get(self.name) or by_count[len(self.operands)]

    def misnamed(self, name: str) -> tuple[str, str]:
        """Return message and hint for a keyword argument without a parameter."""
        if name == "dtype":
            return (
                f"{self.sign} takes no dtype",
                f"convert the result: ds.cast({self.sign}(...), ds.i32)",
            )
        hint = f"its parameters are {self.parameters}"
        if name in self.__signature__.parameters:
            return f"{self.sign} cannot be called with this and {name}=", hint
        return f"{self.sign} has no parameter {name}", hint

    @property
    def sign(self) -> str:
        """Return the op as the user writes it: "+", "ds.sin"."""
        return _SIGNS.get(self.name, f"ds.{self.name}")

    def result_type(self, types: Mapping[str, ScalarType]) -> ScalarType:
        """Return the scalar type of the result of an elementwise op, given that of each letter."""
        if self.result in types:
            return types[self.result]
        if self.result == "b":
            return bool_
        return of_width(self.result, types[self.operands[0]].bits)

    def formula(self, functions: Container[str]) -> Callable[..., Value] | None:
        """Return the formula for a target with only these functions; None: it needs or has none."""
        how = self.lowering
        if isinstance(how, Math) and how.name in functions:
            return None
        return how.formula if isinstance(how, (Math, Expand)) else None

    def rule(self, k: int) -> Rule:
        """Return the derivative rule of argument k, called as rule(g, *args, y)."""
        vjp = self.vjp
        if isinstance(vjp, tuple):
            return vjp[k]
        if isinstance(vjp, (Zero, NotDifferentiable)):
            return vjp
        # One rule for all operands, called in the form of the others.
        return lambda g, *args: vjp(k, g, args[:-1], args[-1])

    def __call__(self, *args: Any, **named: Any) -> Any:
        try:
            if named:
                args = self._in_places(args, named)
            return self._evaluate(args)
        except UserError as error:
            error.leave_package()
            raise

    def _in_places(self, args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        found, left = placed(self.parameters, args, named)
        if left:
            message, hint = self.misnamed(next(iter(left)))
            raise KernelTypeError(message, Span.of_caller(), hint)
        return tuple(found)

    def _evaluate(self, args: Sequence[Any]) -> Any:
        if self.name in WHOLE and len(args) == 2:
            x, dtype = args
            return self._evaluate((x,)) if dtype is None else self._whole(x, dtype)
        # The order matters: while a kernel is built, values are emitted; then operands with ops of
        # their own, such as tracked numbers; plain numbers last.
        if builder_stack.active() and any(isinstance(a, Value) for a in args):
            return builder_stack.builder().op(self, args)
        for a in args:
            if isinstance(a, OpDispatch):
                return a.apply(self, args)
        # Python's min and max take any number of operands; a row has two.
        if self.name in ("min", "max") and len(args) > 2:
            return functools.reduce(self, args)
        try:
            # `ref` of a NumPy ufunc would take a surplus operand for its output array.
            if self.infer_type is None and len(args) != len(self.operands):
                raise TypeError
            # Infinities and NaN come silently, as they do in a kernel.
            with np.errstate(all="ignore"):
                return _plain(self.ref(*args), args)
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            # NumPy's own message would speak of arrays and ufuncs; this one names the op and the
            # user's line.
            given = ", ".join(map(shown, args))
            raise KernelTypeError(
                f"{self.sign} cannot be computed of ({given})",
                Span.of_caller(),
                hint=f"it takes {len(self.operands)} number{'s' * (len(self.operands) != 1)} "
                "(or arrays); vectors have methods: v.norm(), v.dot(w), ...",
            ) from None

    def _whole(self, x: Any, t: Any) -> Any:
        """Evaluate `ds.floor(x, ds.i32)`: the function's result in another type."""
        if not isinstance(t, ScalarType):
            raise KernelTypeError(
                f"{self.sign} cannot be computed of {shown(x)} as {shown(t)}",
                Span.of_caller(),
                hint="it takes a number, and the type of its result: ds.i32, ...",
            )
        result = self(x)
        # The derivative of rounding is 0: there is nothing for a tape to record.
        if isinstance(result, Tracked):
            result = result.value
        if isinstance(result, OpDispatch):
            return result.converted(t)
        # As a cast in a kernel does it: floats out of range saturate.
        made = converted(result, t)
        return made if isinstance(result, np.ndarray) else made.item()


def _plain(found: Any, args: Sequence[Any]) -> Any:
    """Return NumPy's result as a Python number, where no NumPy array or number was given."""
    if isinstance(found, (np.generic, np.ndarray)) and not any(hasattr(a, "dtype") for a in args):
        return found.item() if found.ndim == 0 else found
    return found


def _row_of(name: str) -> Op:
    """Return the op of that name (for unpickling)."""
    return TABLE[name]


def op(name: str, signature: str, doc: str, **columns: Any) -> Op:
    """Add a row to the table; return it."""
    assert name not in TABLE, name
    TABLE[name] = Op(name, signature, doc, **columns)
    return TABLE[name]
