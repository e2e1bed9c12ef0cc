"""Numbers that a tape follows: what a kernel returns while a tape records, and arithmetic on it in Python.

A `Recorded` number knows its tape. An op on it computes the value at once and notes on the tape which
numbers went in; the backward pass evaluates the derivative rules of the op's row. Storing it into a field
and giving it to a kernel are noted as well. Where a number would leave the tape unseen, as a plain float,
that is an error.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.errors import AutodiffError, GlobalDataAccessError, KernelTypeError, Span, shown
from diffsim.ir import ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Const, Let, Value
from diffsim.ir.op import NotDifferentiable, Op, Tracked, Zero
from diffsim.ir.types import Type, f64, i64, tensor
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import FieldElement, TrackedFloat
from diffsim.runtime.recorder import NullRecorder, Recorder
from diffsim.runtime.session import session
from diffsim.tracebacks import entries

_OVER = NullRecorder()
"""The recorder of numbers whose recording is over."""
_OVER.record = object()


@entries(
    but="__init__ __copy__ __deepcopy__ __reduce__ follows belongs_to move_to receive take in_field apply"
)
class Recorded(Tracked, metaclass=PublicNames):
    """A number, vector or matrix on a tape: made by a kernel that returned it, or computed from such ones.

    `+ - * / **`, `abs`, comparisons and functions such as `ds.sin` take it, `field[i] = r` stores it, and
    a kernel takes it as an argument: all of this is differentiated. `r.value` is the plain number (or
    `ds.Vector`, `ds.Matrix`): a constant. When the tape has ended it is a number like any other.

    Attributes:
        array: the value.
        tape: its recorder; `record`: in which of its recordings.
        grad: in the backward pass, the gradient that has come in so far; None: nothing yet.
        tangent: in forward mode, its tangents, one for each seed.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 3.0

        @ds.kernel
        def square() -> ds.f32:
            return x[None] ** 2

        with ds.Tape() as tape:
            a = square()
            b = ds.sin(a) / a
        tape.backward(b)
        print(isinstance(a, ds.ad.Recorded), a.value)  # prints: True 9.0
    """

    _public = "grad value"

    __slots__ = ("array", "grad", "record", "tangent", "tape")
    # None tells NumPy to leave the operator to this class (NEP 13): `array * r` must be recorded as one op.
    __array_ufunc__ = None
    # Equal by value and mutable in its gradient.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: object, tape: Recorder) -> None:
        entries = value.entries if isinstance(value, Matrix) else value
        # f64 whatever the kernel returns, as Python's own arithmetic is.
        self.array = np.asarray(entries, np.float64)
        self.tape = tape
        self.record = tape.record
        self.grad: np.ndarray | None = None
        self.tangent: Any = None

    @property
    def value(self) -> Any:
        """The plain number, vector or matrix: a constant for the tape."""
        return Matrix(self.array.copy(), f64) if self.array.shape else float(self.array)

    def __copy__(self) -> Recorded:
        return self  # the tape follows this very object

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorded:
        return self

    def __reduce__(self) -> Any:
        """Pickle as a plain number: another process has no tape."""
        return copy.copy, (self.value,)

    def follows(self) -> bool:
        """Return whether what is done with it now is recorded.

        Raises:
            AutodiffError: another tape is recording.
        """
        tape = session.tape
        # Outside a tape, and in one that has ended, it is a number like any other.
        if tape is None or not tape.follows_values:
            return False
        # Silently treating it as a constant would lose its gradient.
        if not self.belongs_to(tape):
            raise AutodiffError(
                "this value belongs to another tape, another step of a checkpointed rollout, or a function "
                "with a gradient of its own: no gradient flows from there to here",
                Span.of_caller(),
                hint="keep it in a field, or take its number as a constant: value.value",
            )
        return True

    def belongs_to(self, tape: Recorder) -> bool:
        """Return whether it is part of what the recorder has recorded so far."""
        return tape.record is self.record

    def move_to(self, tape: Recorder | None) -> None:
        """Be of another recorder, which goes on with the recording; None: that is over."""
        self.tape = tape or _OVER
        self.record = self.tape.record

    def receive(self, g: np.ndarray) -> None:
        """Add a gradient: its sum over the elements where a number was broadcast."""
        if g.shape != self.array.shape:
            # The adjoint of broadcasting is a sum over the axes that were added.
            g = g.sum() if not self.array.shape else np.broadcast_to(g, self.array.shape)
        # Several uses add up; not in place, as `g` may belong to somebody else.
        self.grad = g if self.grad is None else self.grad + g

    def pop_grad(self) -> np.ndarray | None:
        """Return the gradient that came in, and forget it."""
        g, self.grad = self.grad, None
        return g

    def in_field(self, t: Type, name: str) -> Field | None:
        """Return a 0-D field that holds it, for an argument of that type; None where it does not fit."""
        # The launch refuses what does not fit, with the parameter's name.
        if self.array.shape != t.shape:
            return None
        made = Field(t.scalar, t.shape, name=name, kind="argument")
        if not self.tape.tangents:
            made.add_grad()
        made.place(())
        # Recorded as a store, whose adjoint reads the field's gradient back into this value. In forward mode
        # it gives the field a dual.
        made[None] = self
        return made

    # ---- ops

    def apply(self, op: Op, args: Sequence[object]) -> Any:
        """Evaluate an op of which this is one operand, and record it."""
        if op is ops.stop_grad:
            return self.value
        # Ops with a type rule of their own (for other things than floats), and those that answer a question.
        if op.infer_type is not None or op.result == "b":
            raise KernelTypeError(
                f"{op.sign} cannot be computed of a value on a tape",
                Span.of_caller(),
                hint="do it in a kernel, or take the plain number: value.value",
            )
        follows = sum(a.follows() for a in args if isinstance(a, Recorded)) > 0  # asks each of them
        # 1. Compute the value by the op's reference implementation.
        arrays = [_array(a) for a in args]
        # Infinity and NaN are what kernels give as well, without warnings.
        with np.errstate(all="ignore"):
            found = np.asarray(op.ref(*arrays), np.float64)
        made = Recorded(found, self.tape)
        # Outside a tape the result is a plain number.
        if not follows:
            return made.value
        # 2. Record it with the derivative by each active operand.
        parts = [(a, _Pull(op, k, arrays, found)) for k, a in enumerate(args) if _is_active(a)]
        # Now, in the line of the op, rather than in the backward pass.
        for _, pull in parts:
            pull.check()
        self.tape.computed(made, [part for part in parts if not part[1].is_zero])
        return made

    def __add__(self, other: object) -> Any:
        return self._binary(ops.add, self, other)

    def __radd__(self, other: object) -> Any:
        return self._binary(ops.add, other, self)

    def __sub__(self, other: object) -> Any:
        return self._binary(ops.sub, self, other)

    def __rsub__(self, other: object) -> Any:
        return self._binary(ops.sub, other, self)

    def __mul__(self, other: object) -> Any:
        return self._binary(ops.mul, self, other)

    def __rmul__(self, other: object) -> Any:
        return self._binary(ops.mul, other, self)

    def __truediv__(self, other: object) -> Any:
        return self._binary(ops.div, self, other)

    def __rtruediv__(self, other: object) -> Any:
        return self._binary(ops.div, other, self)

    def __pow__(self, other: object) -> Any:
        return self._binary(ops.power, self, other)

    def __rpow__(self, other: object) -> Any:
        return self._binary(ops.power, other, self)

    def __neg__(self) -> Any:
        return self.apply(ops.neg, (self,))

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self.apply(ops.abs, (self,))

    def _binary(self, op: Op, a: object, b: object) -> object:
        other = b if a is self else a
        # Python then asks the other operand, or raises its own TypeError.
        if not isinstance(other, (Recorded, Matrix, int, float, np.generic)):
            return NotImplemented
        return self.apply(op, (a, b))

    def __getitem__(self, index: Any) -> Any:
        try:
            part = self.array[index]
        except (IndexError, TypeError):
            raise KernelTypeError(
                f"a value of shape {self.array.shape} has no element {shown(index)}",
                Span.of_caller(),
                hint="give an index for each axis, from 0 to its size - 1",
            ) from None
        made = Recorded(part, self.tape)
        if not self.follows():
            return made.value
        self.tape.computed(made, [(self, _Scatter(index, self.array.shape))])
        return made

    def __len__(self) -> int:
        return len(self.array)

    # ---- as a constant

    def __float__(self) -> float:
        # `math.sin(r)` comes here as well: the result would be a constant.
        if session.tape is not None and session.tape.follows_values:
            raise AutodiffError(
                "a value that a kernel returned was turned into a plain float, which is a constant: the "
                f"{'tangent' if session.tape.tangents else 'gradient'} would be lost silently",
                Span.of_caller(),
                hint="write value.value if a constant is meant; functions are ds.sin(value), ...; anything "
                "else goes into a kernel",
            )
        if self.array.shape:
            raise KernelTypeError(
                f"{self!r} is not a number",
                Span.of_caller(),
                hint="take an element of it: value[0]",
            )
        return float(self.array)

    def __bool__(self) -> bool:
        # Control flow by a value is piecewise constant, so that the branch taken has the right gradient.
        return bool(self.array)

    def __eq__(self, other: object) -> Any:
        return self.value == _plain(other)

    def __lt__(self, other: object) -> Any:
        return self.value < _plain(other)

    def __le__(self, other: object) -> Any:
        return self.value <= _plain(other)

    def __gt__(self, other: object) -> Any:
        return self.value > _plain(other)

    def __ge__(self, other: object) -> Any:
        return self.value >= _plain(other)

    def __repr__(self) -> str:
        return repr(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


class _Pull:
    """The derivative rule of one operand of an op, at the values it had."""

    def __init__(self, op: Op, k: int, args: list[np.ndarray], result: np.ndarray) -> None:
        self.op = op
        self.k = k
        self.args = args
        self.result = result
        # A rule that is zero everywhere needs no entry.
        self.is_zero = isinstance(op.rule(k), Zero)
        # The user's line, for an error in the backward pass.
        self.span = Span.of_caller()

    def check(self) -> None:
        """Raise AutodiffError if there is no such derivative."""
        rule = self.op.rule(self.k)
        if isinstance(rule, NotDifferentiable):
            raise AutodiffError(
                f"{self.op.sign} cannot be differentiated: {rule.why}", self.span, hint=rule.hint
            )

    def __call__(self, g: np.ndarray) -> np.ndarray:
        """Return the cotangent of the operand, given that of the result."""
        # The rule is the one that autodiff uses for kernels: it is emitted as IR and interpreted with NumPy,
        # so there is no second set of derivatives to be wrong.
        arrays = [g, *self.args, self.result]
        names = [Value(tensor(f64, a.shape)) for a in arrays]
        builder = Builder(self.span or Span("", 0), f64, i64)
        # The cotangent may be 0 where later code did not select the value; 0 * inf would be NaN, so products
        # with it are guarded (`ops/formulas.py`).
        builder.cut = names[:1]  # who knows what other code makes of it
        with builder:
            made: Any = self.op.rule(self.k)(*names)  # type: ignore[operator]
        # A rule without a result: the derivative is zero.
        if made is None:
            return np.zeros(())
        known: dict[Value, Any] = dict(zip(names, arrays, strict=True))

        def value(v: Value) -> Any:
            return v.value if isinstance(v, Const) else known[v]

        with np.errstate(all="ignore"):
            for s in builder.stmts:
                assert isinstance(s, Let)
                known[s.out] = s.op.ref(*map(value, s.args))
        return np.asarray(value(made), np.float64)


class _Scatter:
    """The adjoint of indexing: a scatter of the cotangent."""

    def __init__(self, index: Any, shape: tuple[int, ...]) -> None:
        self.index = index
        self.shape = shape

    def __call__(self, g: np.ndarray) -> np.ndarray:
        # The gradient of x[index] by x: g at the index, 0 elsewhere.
        made = np.zeros(self.shape)
        made[self.index] = g
        return made


def _is_active(a: object) -> bool:
    """Return whether a gradient flows to an operand; check that an element read from a field is fresh."""
    if isinstance(a, Recorded):
        return True
    # In a tape a number that was just read stands for its field's element: the gradient flows there.
    if isinstance(a, FieldElement) and a.tape is session.tape and (field := a.field) is not None:
        # The adjoint would be added to an element that no longer holds what was used.
        if field.versions.latest > a.since:
            raise GlobalDataAccessError(
                f"an element of {field.name} was read in Python, the field was changed, and then the "
                "number was used together with a value on the tape",
                Span.of_caller(),
                hint="use it before the field changes, or do it in a kernel",
            )
        return True
    if isinstance(a, TrackedFloat):
        a.provenance.refuse(
            "arithmetic with a value on the tape", "compute with the value first, or in a kernel"
        )
    # Vectors do not stand for their element, as numbers do (`FieldElement`).
    if isinstance(a, Matrix) and a.owner is not None and session.tape is not None:
        raise AutodiffError(
            f"an element of {_owner_name(a)} that is read in Python is a constant, and would be one here too",
            Span.of_caller(),
            hint="give the value to a kernel that does this; if a constant is meant, say so: "
            "ds.stop_grad(value)",
        )
    if isinstance(a, Matrix) and a.provenance is not None:
        a.provenance.refuse(
            "arithmetic with a value on the tape", "give the value to a kernel that does this"
        )
    return False


def _array(a: object) -> np.ndarray:
    if isinstance(a, Recorded):
        return a.array
    if not isinstance(a, (Matrix, int, float, np.generic, np.ndarray)):
        raise KernelTypeError(
            f"a value on a tape and {describe(a)} do not go together",
            Span.of_caller(),
            hint="numbers, vectors, matrices and NumPy arrays do",
        )
    return np.asarray(a.entries if isinstance(a, Matrix) else a, np.float64)


def _plain(a: object) -> Any:
    return a.value if isinstance(a, Recorded) else a


def _owner_name(vector: Matrix) -> str:
    """Return the name of the field that a vector was read from."""
    field = vector.owner()
    return "a field" if field is None else field.name
