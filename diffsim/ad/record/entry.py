"""The interface of a tape's entries, and the data they are given.

An entry says once what it means: which fields it reads and writes, its adjoint (`backward`), its commands in
a replayed program (`record`, `reverse`), and its part in pictures and checks. Those who go through a record
(`ad/reverse/backward.py`, `ad/replay/program.py`, `ad/checks`, `dot.py`) call these methods in order and need
not know the kinds of entries. The protocols here are what they offer to entries in return.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from diffsim.ad.record.elements import Box, Elements, Index
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.ad.record.entries import Copied, Launched, Wrote
    from diffsim.ad.record.overwrite_saves import Saved
    from diffsim.ad.record.recorded_writes import RefusedLaunches
    from diffsim.ad.record.replaced import Replaced
    from diffsim.runtime.kernels.specialization import Specialization


class BackwardRun(Protocol):
    """A backward pass that runs entry by entry.

    Attributes:
        refused: launches adjoints that versions have refused, where the record allows them.
        observed: whether something looks at the adjoint of each launch: retained gradients, the search for
            NaN, hooks.
        tangents: how many tangents the gradients have (second derivatives); 0: none.
    """

    observed: bool
    tangents: int
    refused: RefusedLaunches

    def adjoint(self, entry: Launched) -> None:
        """Run the adjoint of a launch, observed."""

    def custom(self, entry: Replaced) -> None:
        """Run a function in place of adjoints."""

    def clearing(self, field: Field, index: Elements) -> None:
        """Note that the adjoint of a write is about to use and clear the gradient of these elements."""

    def restore(self, saved: Saved) -> None:
        """Go back to the values before they were overwritten."""


class ForwardProgram(Protocol):
    """A native program that runs a record again."""

    def launch(self, entry: Launched) -> None: ...

    def assign(self, entry: Wrote) -> None: ...

    def copy(self, entry: Copied) -> None: ...

    def save(self, saved: Saved) -> None: ...

    def solve(self, entry: Replaced) -> None: ...


class ReverseProgram(Protocol):
    """A native program of the adjoints of a record. Commands are added last entry first."""

    def adjoint(self, entry: Launched) -> None: ...

    def clear(self, entry: Wrote) -> None: ...

    def copy_back(self, entry: Copied) -> None: ...

    def restore(self, saved: Saved) -> None: ...

    def solve(self, entry: Replaced) -> None: ...


class Rerun(Protocol):
    """The interface between a replay and code that it runs in Python: an implicit solve.

    Attributes:
        needed: the parts of fields whose values its adjoint reads.
        kernels: those that it launches.
        held_bytes: the memory that its adjoint needs.
    """

    @property
    def needed(self) -> Iterable[Box]: ...

    @property
    def kernels(self) -> Iterable[Specialization]: ...

    @property
    def held_bytes(self) -> int: ...

    def rerun(self) -> None:
        """Run it with what the fields hold now, and keep what its adjoint needs."""

    def reverse(self) -> None:
        """Run its adjoint; that its inputs are as they were is known."""

    def date(self, now: int) -> None:
        """Set the reading of the clock when it was run."""


class Use(NamedTuple):
    """A field or array that a step reads or writes.

    Attributes:
        port: the parameter it was given for; "": none.
        row: the row of its time axis; None: any.
        stores: whether what was there is lost.
    """

    thing: Any
    port: str = ""
    row: int | None = None
    stores: bool = False


class Picture(Protocol):
    """A drawing of a record."""

    def step(
        self,
        name: str,
        reads: Iterable[Use],
        writes: Iterable[Use],
        arguments: tuple[str, ...] | None = None,
        kind: str = "other",
    ) -> None:
        """Draw a step; `arguments` and the kind "kernel" are those of a launch."""

    def begin_group(self, name: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """Draw what follows within a frame."""

    def end_group(self, *, keeps_empty: bool = False) -> None:
        """End the group begun last, if there is one."""


class ChainSearch(Protocol):
    """The search for values with derivatives that get into fields without gradient."""

    def launched(self, entry: Launched) -> None: ...

    def launched_inside(self, entry: Launched, special: Specialization) -> None: ...

    def copied(self, entry: Copied) -> None: ...

    def wrote(self, entry: Wrote) -> None: ...

    def ran(self, steps: Sequence[Sequence[Entry]]) -> None: ...


class Entry:
    """One step of a recorded program.

    Attributes:
        ticks: whether the clock moved on: not for what only the tape did.
        is_declared_constant: whether what it wrote is a constant because the user said so.

    No abstract base class: `isinstance` of those is many times slower, and records are long.
    """

    # Records may have a million entries, so they have no `__dict__`.
    __slots__ = ()
    ticks: ClassVar[bool] = True

    @property
    def is_declared_constant(self) -> bool:
        return False

    # ---- what it uses

    def reads(self) -> list[Field]:
        """Return the fields that it read, but for entries inside it."""
        return []

    def writes(self) -> list[Field]:
        """Return the fields that it wrote, but for entries inside it."""
        return []

    def fields(self) -> Iterable[Field]:
        """Return the fields whose gradients it uses, but for entries inside it."""
        return [*self.writes(), *self.reads()]

    def boxes(self) -> Iterator[Box]:
        """Yield the parts of fields that it read or wrote."""
        return ((f, None) for f in self.fields())

    def elements(self) -> Iterable[tuple[Field, Index]]:
        """Return the elements that Python read or wrote."""
        return [(f, None) for f in self.fields()]

    @property
    def may_be_input(self) -> bool:
        """Whether it wrote a plain constant, as inputs of the program are."""
        return False

    def constant_place(self) -> tuple[Field, Index] | None:
        """Return the elements with a gradient to which Python wrote a constant."""
        return None

    def overwrites(self) -> Iterable[Field]:
        """Return the fields that a launch stores every element of."""
        return ()

    def statement(self, field: Field) -> Span | None:
        """Return the statement that wrote to a field."""
        return None

    def sets_gradients(self) -> Iterator[tuple[Field, Span | None]]:
        """Yield the gradients that it wrote something other than 0 to, and where."""
        return iter(())

    @property
    def inside(self) -> Sequence[Entry]:
        """The entries of a function with a gradient of its own."""
        return ()

    # ---- the backward pass, entry by entry

    def special_to_reverse(self) -> Specialization | None:
        """Return the kernel whose adjoint the backward pass runs, if there is one."""
        return None

    def refusals(self) -> Sequence[AutodiffError]:
        """Return why what it stands for has no gradient, as far as that was found when it was recorded."""
        return ()

    def forget_gradient(self) -> None:
        """Drop the adjoint that a followed value has received in an earlier pass."""

    def backward(self, run: BackwardRun) -> None:
        """Run its adjoint."""
        raise NotImplementedError(type(self))

    # ---- the same as a native program

    def check_replay(self) -> None:
        """Raise AutodiffError if it cannot be run again without Python."""

    def record(self, program: ForwardProgram) -> None:
        """Add its commands to a program that runs the record again."""
        raise NotImplementedError(type(self))  # check_replay has refused it

    def reverse(self, program: ReverseProgram) -> None:
        """Add the commands of its adjoint."""
        raise NotImplementedError(type(self))

    # ---- pictures and checks

    def draw(self, picture: Picture) -> None:
        """Draw it."""

    def may_break_chain(self) -> bool:
        """Whether a value with derivatives may get into a field without gradient."""
        return False

    def follow(self, search: ChainSearch) -> None:
        """Take part in that search."""


def flat(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield all entries, with those inside functions that have a gradient of their own."""
    for entry in entries:
        yield entry
        if entry.inside:
            yield from flat(entry.inside)


def fields_of(entries: Iterable[Entry]) -> dict[Field, None]:
    """Return the fields that entries read or wrote."""
    return dict.fromkeys(f for entry in flat(entries) for f in entry.fields())


def used_by(entry: Entry) -> set[Field]:
    """Return the fields that an entry or those inside it read or wrote."""
    # A function with a gradient of its own uses what its inside does, whatever it declares.
    nested = (f for e in flat(entry.inside) for f in (*e.reads(), *e.writes()))
    return {*entry.fields(), *nested}
