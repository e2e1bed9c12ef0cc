"""Numbers that Python reads from a field while a tape records, and what Python makes of them.

They are plain floats and arrays, and constants, but for one use: with a value that the tape follows, as in
`field[i] += value`, the gradient flows to the element too. Where such a constant would get into the recorded
program, as an element of a field with a gradient or as an argument, the gradient with respect to what it was
made of would be lost silently. So the numbers remember where they come from, through Python's and
NumPy's arithmetic, and that is refused. What other libraries make of them forgets it
(`ad/checks/lost_gradients.py`).
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import AutodiffError, Caller, Span
from diffsim.ir import ops
from diffsim.ir.op import Op, OpDispatch, Tracked
from diffsim.lang.host.provenance import source_of
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.fields.conversions import number_of
from diffsim.runtime.recorder import Recorder
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field


class Provenance:
    """The field that a number or vector was read from, and the recording in which it was.

    Attributes:
        field: has a gradient; None if it is gone.
        tape: the recorder when it was read; None if it is gone.
        record: in which of its recordings; `entry`: how many entries that had then.
        reader: who read it first.
    """

    __slots__ = ("_field", "_record", "_tape", "entry", "reader")

    @classmethod
    def of(cls, field: Field) -> Provenance:
        """Return the provenance of what is read from a field now."""
        # One for each field and recording: the reader is a look at the stack, which is too slow for each
        # element.
        source: Any = field.source
        tape = session.front
        assert tape is not None  # read_values are made while one records
        if source is None or source._tape() is not tape or source.record is not tape.record:
            field.source = source = cls(field, tape)
        return source

    def __init__(self, field: Field, tape: Recorder) -> None:
        self._field = weakref.ref(field)
        self._tape: Callable[[], Recorder | None] = weakref.ref(tape)
        self._record: Callable[[], object] = weakref.ref(tape.record)
        # How long the record is: only writes recorded later can depend on what is read.
        self.entry = tape.read_out(self)
        self.reader = Caller()

    def move_to(self, tape: Recorder | None) -> None:
        """Be of another recorder, which goes on with the recording; None: that is over."""
        self._tape = _of_nobody if tape is None else weakref.ref(tape)
        self._record = _of_nobody if tape is None else weakref.ref(tape.record)

    @property
    def field(self) -> Field | None:
        # All weak: a program may keep a list of losses for a plot, which must not keep tapes and their
        # records.
        return self._field()

    @property
    def tape(self) -> Recorder | None:
        return self._tape()

    @property
    def record(self) -> object:
        return self._record()

    @property
    def live(self) -> bool:
        """Whether the same tape still records, and code with a gradient of its own does not run.

        A field that is gone was not on the tape, and nobody can ask for its gradient.
        """
        tape = session.front
        return (
            tape is not None
            and tape.refuses_constants
            and tape is self.tape
            and self.field is not None
        )

    def mark(self, made: object) -> Any:
        """Give a number, array, vector or matrix this provenance."""
        if not self.live:
            return made
        # Functions such as `np.split` return several.
        if isinstance(made, (list, tuple)):
            marked = [self.mark(m) for m in made]
            return marked if isinstance(made, list) else tuple(marked)
        if isinstance(made, np.ndarray):
            if made.ndim:
                return self.mark_array(made)
            # A 0-D array is a number.
            made = made[()]
        # Integers and booleans have no derivative: answers to questions are free.
        if isinstance(made, (float, np.floating)):
            return TrackedFloat(float(made), self)
        if isinstance(made, Matrix) and made.entries.dtype.kind == "f":
            # A vector has room for the mark; it need not be another class.
            made.provenance = self
        return made

    def mark_array(self, made: np.ndarray) -> np.ndarray:
        """Give an array this provenance, whatever its shape."""
        # Complex numbers as well: `np.fft` of a field goes back to reals.
        if not self.live or made.dtype.kind not in "fc":
            return made
        # A view of the same memory: costs no copy.
        seen = made.view(TrackedArray)
        seen.provenance = self
        return seen

    def refuse(self, into: str, hint: str, what: str = "a number") -> None:
        """Raise AutodiffError if it would get into the recorded program as a constant."""
        field = self.field
        # Only while it matters: after the block the same number is a plain one.
        if self.live and field is not None:
            tape: Any = session.tape
            raise AutodiffError(
                f"{into} is given {what} that Python took from {field.name}; "
                + (
                    f"that is a constant, and the tangent of {field.name} would be lost silently"
                    if tape.tangents
                    else f"for the tape it is a constant, and a part of the gradient of {field.name} "
                    "would be missing"
                ),
                Span.of_caller(),
                hint=f"{hint}; if a constant is meant, say so: ds.stop_grad(value)",
            )


def _of_nobody() -> None:
    """Stand for a weak reference to something that is gone."""


class Followed:
    """Mixin of such numbers and arrays: results of NumPy's functions have the same provenance."""

    __slots__ = ()

    def __array_ufunc__(
        self, ufunc: object, method: str, *inputs: object, **options: object
    ) -> Any:
        # NumPy computes with plain arrays; calling the ufunc on marked ones would come back here.
        made = getattr(ufunc, method)(*_plain(inputs), **_plain(options))
        source = source_of(inputs)
        # The results are the user's own arrays.
        if isinstance(made, tuple) and "out" in options:
            return made
        return made if source is None else source.mark(made)

    def __array_function__(self, function: Any, types: object, args: Any, options: Any) -> Any:
        made = function(*_plain(args), **_plain(options))
        source = source_of((args, options))
        return made if source is None else source.mark(made)


def _plain(thing: object) -> Any:
    """Return the same numbers and arrays without provenance."""
    if isinstance(thing, TrackedArray):
        return thing.view(np.ndarray)
    # Exact float: arithmetic on it takes Python's fast path.
    if isinstance(thing, TrackedFloat):
        return float(thing)
    if isinstance(thing, dict):
        return {key: _plain(value) for key, value in thing.items()}
    # Exact classes: a named tuple cannot be made from a list of its elements.
    if thing.__class__ in (list, tuple):
        return type(thing)(map(_plain, thing))
    return thing


class TrackedArray(Followed, np.ndarray):
    """An array of such numbers. In another process, or as `np.array(a)`, it is a plain one: a constant."""

    provenance: Provenance | None

    def __array_finalize__(self, origin: object) -> None:
        # Called by NumPy for each view and slice: they keep the mark without any work.
        self.provenance = getattr(origin, "provenance", None)

    def __getitem__(self, key: Any) -> Any:
        made = super().__getitem__(key)
        # Scalars taken from an array are no views of it.
        return self._marked(made) if isinstance(made, np.floating) else made

    def item(self, *args: Any) -> Any:
        return self._marked(super().item(*args))

    def dot(self, other: Any, out: Any = None) -> Any:
        # Methods of ndarray that do not go through the two protocols.
        return np.dot(self, other, out=out)

    def trace(self, *args: Any, **options: Any) -> Any:
        return np.trace(self, *args, **options)

    def _marked(self, made: object) -> object:
        return made if self.provenance is None else self.provenance.mark(made)

    def __reduce__(self) -> Any:
        # Other processes have no tape.
        return self.view(np.ndarray).__reduce__()

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __str__(self) -> str:
        return str(self.view(np.ndarray))


class TrackedFloat(Followed, float, Tracked):
    """A number made in Python of an element of a field with a gradient, while a tape records.

    Elsewhere, in another process or made by `type(x)(1.0)`, it is a plain float.
    """

    __slots__ = ("provenance",)
    __array_priority__ = 50  # NumPy's numbers ask here first
    provenance: Provenance

    def __new__(cls, number: float, provenance: Provenance | None = None) -> Any:
        # `float` subclasses are made anew by some libraries with `type(x)(value)`.
        if provenance is None:
            return float(number)
        made = super().__new__(cls, number)
        made.provenance = provenance
        return made

    # Immutable.
    def __copy__(self) -> TrackedFloat:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TrackedFloat:
        return self

    def __reduce__(self) -> Any:
        return (float, (float(self),))

    @property
    def value(self) -> float:
        return float(self)

    def follows(self) -> bool:
        """Return False: it is a constant."""
        return False

    def apply(self, op: Op, args: Sequence[object]) -> Any:
        """Evaluate an op of which this is one operand."""
        # An operand that dispatches itself (a `Recorded`, a value of a kernel) decides.
        for a in args:
            if isinstance(a, OpDispatch) and not isinstance(a, TrackedFloat):
                return a.apply(op, args)
        plain = [float(a) if isinstance(a, TrackedFloat) else a for a in args]
        made = op(*plain)
        source = source_of(args)
        # `ds.stop_grad` is the way to say that a constant is meant.
        return made if op is ops.stop_grad or source is None else source.mark(made)


def _forward(compute: Callable[[Any, Any], Any]) -> Callable[[TrackedFloat, Any], Any]:
    def method(self: TrackedFloat, other: object) -> Any:
        # `Recorded` has the reflected operator, which records.
        if isinstance(other, Tracked) and not isinstance(other, TrackedFloat):
            return NotImplemented
        return self.provenance.mark(compute(float(self), other))

    return method


def _backward(compute: Callable[[Any, Any], Any]) -> Callable[[TrackedFloat, Any], Any]:
    def method(self: TrackedFloat, other: object) -> Any:
        return self.provenance.mark(compute(other, float(self)))

    return method


def _alone(compute: Callable[[Any], Any]) -> Callable[[TrackedFloat], Any]:
    return lambda self: self.provenance.mark(compute(float(self)))


# Generated, as the methods differ in the operator only.
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(TrackedFloat, f"__{_name}__", _forward(getattr(operator, _name)))
    setattr(TrackedFloat, f"__r{_name}__", _backward(getattr(operator, _name)))
for _name in ("neg", "pos", "abs"):
    setattr(TrackedFloat, f"__{_name}__", _alone(getattr(operator, _name)))


class FieldElement(TrackedFloat):
    """A number read from an element of a field, with that element.

    Attributes:
        field, index: the element.
        tape: what recorded.
        since: the clock's reading then.
    """

    __slots__ = ("index", "since")
    index: tuple[int, ...]
    since: int

    @classmethod
    def of(cls, field: Field, index: tuple[int, ...]) -> FieldElement:
        """Read an element of a field of scalars."""
        # `float.__new__`, as `__new__` of the class would need the provenance first.
        made = float.__new__(cls, field._flat[number_of(field, index)])
        made.provenance = Provenance.of(field)
        # With the index and the clock a later `+=` can tell that the element is still what was read.
        made.index, made.since = index, session.clock
        return made

    @property
    def field(self) -> Field | None:
        return self.provenance.field

    @property
    def tape(self) -> Any:
        return self.provenance.tape
