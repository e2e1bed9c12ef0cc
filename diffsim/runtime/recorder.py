"""The recorder protocol: the events that the runtime reports to a tape.

While a tape records in a thread, its *recorder* is `session.tape`. Launch functions
(`runtime/kernels/launch_function.py`), fields (`runtime/fields/field.py`) and values that a tape follows
(`runtime/fields/recorded.py`) report to it what the program does, one method call an event:

    before      launching, writing                        only to a recorder that `intercepts`
    after       launched (returned), wrote (lost), stored, copied, stopped, computed
    no entry    read_out, declared_constant, cut_short

The events of one launch are `launching`, the launch, `launched`, then `returned` if derivatives flow through
the result; those of one write from Python are `writing`, the write, then `wrote` (and `lost`), `stored` or
`copied`. If anything fails between the change of memory and the event after it, `cut_short` says so.

Implementations: `ad/recorder.py` (the recorder of a tape), `ad/custom_gradients.py` (inside functions with
a gradient of their own, and of code without gradients), `ad/rollout_recorders.py` (steps of a checkpointed
rollout), and two here for threads without a tape of their own.

A tape records what its own thread does. What another thread writes meanwhile to a field with a gradient is
reported to the tape as well (`Witness`), which then refuses a gradient that has to do with that field: its
record lacks the write. While no tape records, a launch reads one attribute (`Session.recorders`).

Specializations and fields belong to rooms above this one, so the protocol cannot name their classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from diffsim.errors import Span

AnySpecialization = Any  # runtime/kernels/specialization.Specialization
AnyField = Any  # runtime/fields/field.Field
AnyIndex = Any  # ad/record/elements.Index: an element, a run of elements, or None for all
Pull = Callable[[Any], Any]
"""The derivative of a result by one operand: maps the result's cotangent to the operand's."""


class Replacements(dict[AnySpecialization, Callable[..., Any]]):
    """Functions to call instead of launches of kernels, unannounced, for plain numbers as arguments.

    Attributes:
        duals: the count of who has a dual (`Session.duals`) for which they hold.
    """

    __slots__ = ("duals",)

    def __init__(self, duals: int) -> None:
        super().__init__()
        self.duals = duals


NO_REPLACEMENTS = Replacements(-1)


class Witness(Protocol):
    """Receives the writes of other threads than its own (`Session.add_witness`)."""

    def written_elsewhere(self, f: AnyField, who: str, span: Span | None) -> None:
        """Another thread has written to a field, or to an array."""

    def cut_short(self, what: str, span: Span | None) -> None:
        """Something in another thread did not run to its end after it began to write."""


@dataclass(frozen=True)
class Work:
    """The activity of a recorder, for messages about actions that it excludes.

    Attributes:
        words: a sentence.
        outside: where it can be done.
    """

    words: str
    outside: str


TAPE = Work("a tape is recording", "after the end of the with block")
FORWARD_MODE = Work("forward mode is on", "after the end of the with block")
SECOND_DERIVATIVES = Work(
    "second derivatives are computed", "outside the function that is differentiated twice"
)


class Recorder(Protocol):
    """Receives the events of a thread while a tape records there."""

    # ---- what the recorder wants; read at every event, so implementations use plain attributes

    @property
    def intercepts(self) -> bool:
        """Whether `launching` and `writing` are to be called.

        They cost time on every launch; only saving of overwritten values, validation, the search for NaN
        and snapshots need them.
        """

    @property
    def replacements(self) -> Replacements:
        """The launches of what `launching` has returned before, where it need not be asked again."""

    @property
    def follows_values(self) -> bool:
        """Whether numbers that kernels return, and arithmetic on them, are recorded.

        If so a number read from a field with a gradient remembers where it comes from, and turning a
        followed value into a plain float is refused.
        """

    @property
    def refuses_constants(self) -> bool:
        """Whether a constant made in Python of what has a gradient is refused where it enters the program.

        True where all gradients come from the record; False where the user gives the gradient, or where
        nothing is differentiated.
        """

    @property
    def tangents(self) -> int:
        """How many tangents are computed with the program (forward mode); 0: it is recorded (a tape)."""

    @property
    def work(self) -> Work:
        """Its activity, for messages."""

    @property
    def record(self) -> object:
        """The identity of the present recording: values followed in another one are constants in it."""

    # ---- before the fact

    def launching(
        self, special: AnySpecialization, args: tuple[Any, ...]
    ) -> AnySpecialization | None:
        """A launch function is about to launch a kernel that writes.

        Memory is unchanged: this is the last chance to copy what will be overwritten. May raise, which
        prevents the launch.

        Returns:
            A variant of the kernel to launch instead (it reports `launched` itself), or None.
        """

    def writing(self, field: AnyField, row: int | None) -> None:
        """A field is about to be written from Python, within a row of its time axis (None: anywhere)."""

    # ---- after the fact

    def launched(
        self, special: AnySpecialization, args: tuple[Any, ...], now: int, seed: int
    ) -> None:
        """A launch function has launched a kernel.

        `args` are the arguments as given: arrays and lists among them may change later, so a recorder
        copies what it keeps. `now` is the clock's reading at the launch, `seed` its random key or 0.
        """

    def returned(self, result: Any) -> Any:
        """The launch reported last returned an active value; gives what the caller receives in its place."""

    def wrote(self, field: AnyField, index: AnyIndex, value: Any) -> None:
        """Python has written a constant to elements of a field."""

    def lost(self, source: Any) -> None:
        """The constant written last was made in Python of a field with a gradient (a `Provenance`)."""

    def stored(self, field: AnyField, index: tuple[int, ...], value: Any) -> None:
        """Python has written a followed value (a `Recorded`) to an element."""

    def copied(
        self, target: AnyField, source: AnyField, to: AnyIndex = None, at: AnyIndex = None
    ) -> None:
        """Elements `at` of one field were copied to elements `to` of another."""

    def stopped(self, field: AnyField) -> None:
        """The program has declared that what a field holds is a constant (`ds.stop_grad(field)`)."""

    def computed(self, made: Any, parts: Sequence[tuple[Any, Pull]]) -> None:
        """A followed value was computed in Python from operands, each with its derivative."""

    # ---- what makes no entry

    def read_out(self, source: Any) -> int:
        """Python has read a field with a gradient, the first time in this recording (a `Provenance`).

        Returns:
            How many entries there are so far: writes behind them may depend on what was read.
        """

    def declared_constant(self) -> None:
        """The program has called `ds.stop_grad`: it knows which of its values are constants."""

    def cut_short(self, what: str, span: Span | None) -> None:
        """One or more launches began to write and failed; they have no entry, so the record has a gap."""


class Folded:
    """A recorder that launches, writes and reads alone meet: `Session.tape` gives what it becomes."""

    __slots__ = ()

    @property
    def unfolded(self) -> Recorder:
        """That recorder, which takes its place at the first access."""
        raise NotImplementedError(type(self))


class ForwardingRecorder:
    """A recorder that passes every event on to another one; a subclass overrides some of them."""

    replacements = NO_REPLACEMENTS

    def __init__(self, inner: Recorder) -> None:
        # Read at each launch: a plain attribute, fixed for the time of the recording.
        self.inner = inner
        self.intercepts = inner.intercepts
        self.tangents = inner.tangents

    @property
    def follows_values(self) -> bool:
        return self.inner.follows_values

    @property
    def refuses_constants(self) -> bool:
        return self.inner.refuses_constants

    @property
    def work(self) -> Work:
        return self.inner.work

    @property
    def record(self) -> object:
        return self.inner.record

    def launching(
        self, special: AnySpecialization, args: tuple[Any, ...]
    ) -> AnySpecialization | None:
        return self.inner.launching(special, args)

    def writing(self, field: AnyField, row: int | None) -> None:
        self.inner.writing(field, row)

    def launched(
        self, special: AnySpecialization, args: tuple[Any, ...], now: int, seed: int
    ) -> None:
        self.inner.launched(special, args, now, seed)

    def returned(self, result: Any) -> Any:
        return self.inner.returned(result)

    def wrote(self, field: AnyField, index: AnyIndex, value: Any) -> None:
        self.inner.wrote(field, index, value)

    def lost(self, source: Any) -> None:
        self.inner.lost(source)

    def stored(self, field: AnyField, index: tuple[int, ...], value: Any) -> None:
        self.inner.stored(field, index, value)

    def copied(
        self, target: AnyField, source: AnyField, to: AnyIndex = None, at: AnyIndex = None
    ) -> None:
        self.inner.copied(target, source, to, at)

    def stopped(self, field: AnyField) -> None:
        self.inner.stopped(field)

    def computed(self, made: Any, parts: Sequence[tuple[Any, Pull]]) -> None:
        self.inner.computed(made, parts)

    def read_out(self, source: Any) -> int:
        return self.inner.read_out(source)

    def declared_constant(self) -> None:
        self.inner.declared_constant()

    def cut_short(self, what: str, span: Span | None) -> None:
        self.inner.cut_short(what, span)


class NullRecorder:
    """A recorder that ignores all events; the base of those that note a few."""

    # Class attributes serve all instances: nothing intercepts, follows or refuses.
    intercepts = follows_values = refuses_constants = False
    tangents = 0
    replacements = NO_REPLACEMENTS
    work = TAPE
    record: object = None

    def launching(
        self, special: AnySpecialization, args: tuple[Any, ...]
    ) -> AnySpecialization | None:
        return None

    def writing(self, field: AnyField, row: int | None) -> None: ...

    def launched(
        self, special: AnySpecialization, args: tuple[Any, ...], now: int, seed: int
    ) -> None: ...

    def returned(self, result: Any) -> Any:
        return result

    def wrote(self, field: AnyField, index: AnyIndex, value: Any) -> None: ...

    def lost(self, source: Any) -> None: ...

    def stored(self, field: AnyField, index: tuple[int, ...], value: Any) -> None: ...

    def copied(
        self, target: AnyField, source: AnyField, to: AnyIndex = None, at: AnyIndex = None
    ) -> None: ...

    def stopped(self, field: AnyField) -> None: ...

    def computed(self, made: Any, parts: Sequence[tuple[Any, Pull]]) -> None: ...

    def read_out(self, source: Any) -> int:
        return 0

    def declared_constant(self) -> None: ...

    def cut_short(self, what: str, span: Span | None) -> None: ...


class NeighbourRecorder(ForwardingRecorder):
    """Reports a thread's writes to the tapes of other threads, then everything to its own recorder.

    Args:
        own: the thread's recorder; None: it has none.
        others: what hears of writes of other threads.
    """

    def __init__(self, own: Recorder | None, others: Sequence[Witness]) -> None:
        # A thread without a tape: its events concern the neighbours only.
        super().__init__(own or NullRecorder())
        self.others = others

    def _tell(self, f: AnyField, who: str, span: Span | None) -> None:
        for witness in self.others:
            witness.written_elsewhere(f, who, span)

    def launched(
        self, special: AnySpecialization, args: tuple[Any, ...], now: int, seed: int
    ) -> None:
        # What another tape may depend on is the memory written, not the launch.
        source = special.kernel.source
        for a in special.accesses.writes:
            # Before the own recorder, which may raise.
            self._tell(special.object_of(a.mem, args), source.name, source.head())
        self.inner.launched(special, args, now, seed)

    def wrote(self, field: AnyField, index: AnyIndex, value: Any) -> None:
        # The statement's line, as the writer of the error at the other tape.
        self._tell(field, "a Python statement", Span.of_caller())
        self.inner.wrote(field, index, value)

    def stored(self, field: AnyField, index: tuple[int, ...], value: Any) -> None:
        self._tell(field, "a Python statement", Span.of_caller())
        self.inner.stored(field, index, value)

    def copied(
        self, target: AnyField, source: AnyField, to: AnyIndex = None, at: AnyIndex = None
    ) -> None:
        self._tell(target, "a copy", Span.of_caller())
        self.inner.copied(target, source, to, at)

    def cut_short(self, what: str, span: Span | None) -> None:
        # Which memory was changed is not known any more, so all witnesses have to assume theirs.
        for witness in self.others:
            witness.cut_short(what, span)
        self.inner.cut_short(what, span)
