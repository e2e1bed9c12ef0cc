"""The recorder of a block, as code inside it sees it that has recorders of its own.

Functions with a gradient of their own, checkpointed rollouts and implicit solves put recorders of theirs in
the place of the tape's, and report to it as an `EnclosingRecorder`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from diffsim.ad.checks.access_validation import Validator
from diffsim.ad.checks.nan_search import NanSearch
from diffsim.ad.record.elements import Box
from diffsim.ad.record.entry import Entry, Rerun
from diffsim.ad.record.record import Record
from diffsim.ad.record.step_trace import StepTrace
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.recorder import NO_REPLACEMENTS
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class EnclosingRecorder(ABC):
    """A recorder whose record will be differentiated, as code inside its block sees it.

    Functions with a gradient of their own and checkpointed rollouts become one entry there. Under any other
    recorder they run as plain code: it records a trace, or what no gradient flows through.

    Attributes:
        lifting: whether fields without gradient that it needs are lent one (`ds.init(rules="lifted")`).
        trace: what condenses all events, if the record is of a step that is run again.
        validator, nan: the checks of the tape, which code inside takes part in.
    """

    intercepts: bool
    tangents = 0
    replacements = NO_REPLACEMENTS
    lifting = False
    trace: StepTrace | None = None
    validator: Validator | None
    nan: NanSearch | None

    @abstractmethod
    def writing(self, field: Field, row: int | None) -> None:
        """As in `Recorder`."""

    @abstractmethod
    def cut_short(self, what: str, span: Span | None) -> None:
        """As in `Recorder`."""

    def lend(self, special: Specialization, args: tuple[Any, ...]) -> None:  # noqa: B027 - not all lend
        """Lend adjoints to the fields without gradient that a launch stores derivatives to.

        Raises:
            Outdated: there were such fields; the kernel is to be compiled anew.
        """

    @abstractmethod
    def save_before(self, special: Specialization, args: tuple[Any, ...]) -> None:
        """Copy what a launch inside, which gets no adjoint of its own here, is about to overwrite."""

    @abstractmethod
    def will_need(self, boxes: Iterable[Box]) -> None:
        """Note what the backward function of a rollout will read: it is saved before it is overwritten."""

    @abstractmethod
    def append(self, entry: Entry) -> None:
        """Append an entry that no event of the runtime stands for."""

    @abstractmethod
    def replaced(self, name: str, backward: Callable[[], Any], inside: Record) -> None:
        """Note a run of a function with a gradient of its own, and the record of its inside."""

    @abstractmethod
    def rolled_out(self, rollout: RolloutSummary) -> None:
        """Note a checkpointed rollout."""


class RolloutSummary:
    """The report of a checkpointed rollout, or an implicit solve, to the recorder around it.

    Attributes:
        name: what it is.
        is_opaque: whether dependences in it are not found by running it with index sets.
        backward: its adjoint; `again`: runs all of it once more.
        read, written: the fields that it used.
        alive: what its kernels need to stay alive.
        held_bytes: the memory of what it holds until its backward pass.
        refused: why its first step has no gradient.
        rerun: runs it in a replay; None: replays are refused.
        steps: what its steps do to float fields without gradient.
    """

    def __init__(
        self,
        backward: Callable[[], Any],
        again: Callable[[], Any],
        read: Iterable[Field],
        written: Iterable[Field],
        alive: dict[Specialization, list[Any]],
        held_bytes: int,
        refused: Sequence[AutodiffError] = (),
        *,
        name: str = "checkpointed rollout",
        is_opaque: bool = False,
        rerun: Rerun | None = None,
        steps: Sequence[Sequence[Entry]] = (),
    ) -> None:
        self.refused = refused
        self.steps = steps
        self.rerun = rerun
        self.name = name
        self.is_opaque = is_opaque
        self.held_bytes = held_bytes
        self.backward = backward
        self.again = again
        self.read = tuple(read)
        self.written = tuple(written)
        self.alive = alive


def enclosing_recorder() -> EnclosingRecorder | None:
    """Return the recorder of this thread, if what runs now will be differentiated in reverse mode alone.

    Where tangents are computed with it, rollouts run as they stand.
    """
    recorder: object = session.tape
    return recorder if isinstance(recorder, EnclosingRecorder) and not recorder.tangents else None
