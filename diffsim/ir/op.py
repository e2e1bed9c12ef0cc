"""What a row of the op table is made of; the rows themselves are in `ir/ops/table.py`.

A row is everything diffsim knows about an op: its types, its documentation, a NumPy reference, how
backends compute it, how it is differentiated, and on which interval it is tested. There is no second
place: the public function, the interpreter, all backends, the reverse pass and the generated tests
read the row. Only what a mathematical function is called on a target is left to the target, as it
depends on the target's libraries. `vjp` has no default, so an op without an answer to "what is its
derivative?" can not be written: the answer is a rule for each argument, ZERO, or NotDifferentiable with the
reason the user will read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.errors import KernelTypeError, Span, shown
from diffsim.ir import builder_stack
from diffsim.ir.nodes import Value
from diffsim.ir.types import ScalarType, Type, converted

TABLE: dict[str, Op] = {}
WHOLE = ("ceil", "floor", "round", "trunc")
"""Ops that take the type of their result as well: `ds.floor(x, ds.i32)`."""
_SIGNS = dict(
    pair.split()
    for pair in (
        "add +, sub -, neg -, mul *, div /, floordiv //, mod %, pow **, matmul @, lt <, le <=, gt >, "
        "ge >=, eq ==, ne !=, and and, or or, not not, bit_and &, bit_or |, bit_xor ^, bit_not ~, "
        "shl <<, shr >>"
    ).split(", ")
)


class Zero:
    """The derivative is zero wherever it exists."""

    def __repr__(self) -> str:
        return "ZERO"


ZERO = Zero()


@dataclass(frozen=True, slots=True)
class NotDifferentiable:
    """There is no derivative; asking for it is an error with this reason, and advice what to do."""

    why: str
    hint: str


# How backends compute an op on scalars.


@dataclass(frozen=True, slots=True)
class Instr:
    """An LLVM instruction for each kind of operand (None: there is none for that kind)."""

    f: str | None = None
    i: str | None = None
    u: str | None = None
    b: str | None = None

    def of(self, kind: str) -> str | None:
        if kind == "u":
            return self.u or self.i
        return self.f if kind == "f" else self.i if kind == "i" else self.b


@dataclass(frozen=True, slots=True)
class LLVMIntrinsic:
    """`llvm.<name>.<type>`, for intrinsics that every target has; `i` and `u` name those for integers."""

    f: str | None = None
    i: str | None = None
    u: str | None = None

    def of(self, kind: str) -> str | None:
        return self.f if kind == "f" else self.u if kind == "u" else self.i if kind == "i" else None


@dataclass(frozen=True, slots=True)
class Math:
    """A mathematical function of floats: each target maps its name to what it calls.

    `formula`, of other rows, is for the targets whose map does not have the name.
    """

    name: str
    formula: Callable[..., Value] | None = None


@dataclass(frozen=True, slots=True)
class Expand:
    """Written in terms of other rows: a function of values that emits them."""

    formula: Callable[..., Value]


class CustomLowering:
    """Lowered by the op's name: the few ops whose text depends on more than the operand's kind."""

    def __repr__(self) -> str:
        return "CUSTOM_LOWERING"


CUSTOM_LOWERING = CustomLowering()


Lowering = Instr | LLVMIntrinsic | Math | Expand | CustomLowering
Rule = Callable[..., Value | None] | Zero | NotDifferentiable
# A rule for ops of any number of operands: (k, g, args, y) -> contribution to argument k, or None.
Variadic = Callable[..., Value | None]
VectorJacobianProduct = tuple[Rule, ...] | Zero | NotDifferentiable | Variadic


class OpDispatch:
    """A thing that Python holds, of which an op makes something itself: a vector, a number on a tape."""

    __slots__ = ()

    def apply(self, op: Op, args: Sequence[Any]) -> Any:
        """The result of an op of which this is one operand."""
        raise NotImplementedError

    def converted(self, to: ScalarType) -> Any:
        """Its numbers in another type."""
        raise NotImplementedError


class Tracked(OpDispatch):
    """A number that Python holds and something else follows."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The plain number, vector or matrix."""
        raise NotImplementedError

    def follows(self) -> bool:
        """Whether what is done with it now is followed."""
        raise NotImplementedError


class Op:
    """One row. Called with values it emits the op, called with numbers or arrays it evaluates `ref`.

    Attributes:
        name: the op's name in the IR and, for public ops, in `ds`.
        signature: "N N -> N": a letter for each operand; equal letters become one type by promotion.
            F float, I integer, N number, B boolean, J integer or boolean, T anything; a result `b`
            is boolean. Ops with a `infer_type` work on tensors as wholes, and their letters only say what
            stands where (V tensor, S scalar).
        doc: one sentence, with units where there are any.
        ref: NumPy reference.
        lowering: how backends compute it on scalars.
        vjp: for each argument a function (g, *args, y) -> contribution, ZERO, or
            NotDifferentiable(why, hint).
        sample: for each argument the interval that tests draw from.
        infer_type: for ops on tensors as wholes: (argument types) -> result type; elementwise ops have none.
        public: whether it is a name of `ds`.
    """

    def __init__(
        self,
        name: str,
        signature: str,
        doc: str,
        *,
        ref: Callable[..., Any],
        lowering: Lowering,
        vjp: VectorJacobianProduct,
        sample: list[tuple[float, float]],
        infer_type: Callable[..., Type] | None = None,
        public: bool = True,
    ) -> None:
        self.name = name
        self.signature = signature
        self.__doc__ = doc
        self.ref = ref
        self.lowering = lowering
        self.vjp = vjp
        self.sample = sample
        self.infer_type = infer_type
        self.public = public
        left, _, right = signature.partition("->")
        self.operands = tuple(left.split())
        self.result = right.strip()

    def __repr__(self) -> str:
        return f"<op {self.name}: {self.signature}>"

    def __reduce__(self) -> Any:
        return _row_of, (self.name,)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def sign(self) -> str:
        """The op as the user writes it: "+", "ds.sin"."""
        return _SIGNS.get(self.name, f"ds.{self.name}")

    def formula(self, functions: Container[str]) -> Callable[..., Value] | None:
        """The formula a target computes it with, if it has only these mathematical functions; None: none."""
        how = self.lowering
        if isinstance(how, Math) and how.name in functions:
            return None
        return how.formula if isinstance(how, (Math, Expand)) else None

    def rule(self, k: int) -> Rule:
        """The derivative rule of argument k, called as rule(g, *args, y)."""
        vjp = self.vjp
        if isinstance(vjp, tuple):
            return vjp[k]
        if isinstance(vjp, (Zero, NotDifferentiable)):
            return vjp
        return lambda g, *args: vjp(k, g, args[:-1], args[-1])

    def __call__(self, *args: Any, dtype: Any = None) -> Any:
        if self.name in WHOLE and len(args) == 2:
            *args, dtype = args  # type: ignore[assignment]
        if dtype is not None:
            return self._whole(args, dtype)
        if builder_stack.active() and any(isinstance(a, Value) for a in args):
            return builder_stack.builder().op(self, args)
        for a in args:
            if isinstance(a, OpDispatch):
                return a.apply(self, args)
        if self.name in ("min", "max") and len(args) > 2:
            return functools.reduce(self, args)
        try:
            if self.infer_type is None and len(args) != len(self.operands):
                raise TypeError
            with np.errstate(all="ignore"):
                return _plain(self.ref(*args), args)
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            given = ", ".join(map(shown, args))
            raise KernelTypeError(
                f"{self.sign} can not be computed of ({given})",
                Span.of_caller(),
                hint=f"it takes {len(self.operands)} number{'s' * (len(self.operands) != 1)} "
                "(or arrays); vectors have methods: v.norm(), v.dot(w), ...",
            ) from None

    def _whole(self, args: Sequence[Any], t: Any) -> Any:
        """`ds.floor(x, ds.i32)`: what the function gives, in another type."""
        if self.name not in WHOLE or not isinstance(t, ScalarType):
            raise KernelTypeError(
                f"{self.sign} can not be computed of {shown(args[0])} as {shown(t)}"
                if self.name in WHOLE and args
                else f"{self.sign} takes no dtype",
                Span.of_caller(),
                hint="it takes a number, and the type of its result: ds.i32, ..."
                if self.name in WHOLE
                else f"convert the result: ds.cast({self.sign}(...), ds.i32)",
            )
        result = self(*args)
        if isinstance(result, Tracked):
            result = result.value
        if isinstance(result, OpDispatch):
            return result.converted(t)
        made = converted(result, t)
        return made if isinstance(result, np.ndarray) else made.item()


def _plain(found: Any, args: Sequence[Any]) -> Any:
    """NumPy's answer as Python's number, where no array or number of NumPy was given."""
    if isinstance(found, (np.generic, np.ndarray)) and not any(hasattr(a, "dtype") for a in args):
        return found.item() if found.ndim == 0 else found
    return found


def _row_of(name: str) -> Op:
    """The op of that name."""
    return TABLE[name]


def op(name: str, signature: str, doc: str, **columns: Any) -> Op:
    """Add a row to the table."""
    assert name not in TABLE, name
    TABLE[name] = Op(name, signature, doc, **columns)
    return TABLE[name]
