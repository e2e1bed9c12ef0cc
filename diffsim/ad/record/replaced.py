"""An entry that stands for code with an adjoint of another kind: of the user's, a rollout, a solve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diffsim.ad.record.elements import Index
from diffsim.ad.record.entries import Launched
from diffsim.ad.record.entry import (
    BackwardRun,
    ChainSearch,
    Entry,
    ForwardProgram,
    Picture,
    Rerun,
    ReverseProgram,
    Use,
    flat,
)
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field


class Replaced(Entry):
    """A function called in place of adjoints: those of `inside`, or of a rollout (`refused`), or none.

    It uses the gradients of `arrays`, and those of `written`, which it also wrote. `span` is the line of
    the program that made it; `by_user` says whether the user wrote the function, `name` what it stands for,
    `is_opaque` whether its dependences are known by fields alone. `rerun` does it once more in a replay
    (None: a replay is refused), `held` is the memory that a rollout keeps for its adjoint, and `steps` what
    its steps do to float fields without gradient.
    """

    __slots__ = (
        "_inside",
        "arrays",
        "by_user",
        "function",
        "held",
        "is_opaque",
        "name",
        "refused",
        "rerun",
        "span",
        "steps",
        "written",
    )

    def __init__(
        self,
        function: Callable[[], Any],
        inside: Sequence[Entry],
        arrays: tuple[Field, ...] = (),
        written: tuple[Field, ...] = (),
        *,
        name: str,
        by_user: bool = True,
        refused: Sequence[AutodiffError] = (),
        is_opaque: bool | None = None,
        rerun: Rerun | None = None,
        held: int = 0,
        steps: Sequence[Sequence[Entry]] = (),
    ) -> None:
        self.steps = steps
        self.name = name
        self.rerun = rerun
        self.held = held
        self.is_opaque = by_user if is_opaque is None else is_opaque
        self.by_user = by_user
        self.refused = refused
        self.function = function
        self._inside = inside
        self.arrays = arrays
        self.written = written
        self.span = Span.of_caller()

    @property
    def held_bytes(self) -> int:
        """The memory that its adjoint needs: a factorisation, the states of a rollout."""
        return self.held if self.rerun is None else self.rerun.held_bytes

    @property
    def inside(self) -> Sequence[Entry]:
        return self._inside

    def writes(self) -> list[Field]:
        return list(self.written)

    def fields(self) -> Iterable[Field]:
        return [f for f in (*self.arrays, *self.written) if isinstance(f, Field)]

    def elements(self) -> Iterable[tuple[Field, Index]]:
        found = dict.fromkeys(f for entry in flat([self]) for f in entry.fields())
        return [(f, None) for f in found]

    def refusals(self) -> Sequence[AutodiffError]:
        return self.refused

    def backward(self, run: BackwardRun) -> None:
        """Call the function."""
        run.custom(self)

    def check_replay(self) -> None:
        if self.rerun is None:
            raise AutodiffError(
                "this tape cannot be replayed: it holds a function with a gradient of its own or a "
                "checkpointed rollout",
                self.span,
                hint="record it anew each time: with tape: ...",
            )

    def record(self, program: ForwardProgram) -> None:
        program.solve(self)

    def reverse(self, program: ReverseProgram) -> None:
        program.solve(self)

    def draw(self, picture: Picture) -> None:
        # A function with a gradient of its own uses what its inside does.
        inside = list(flat(self._inside))
        read = dict.fromkeys(f for e in inside for f in e.reads())
        written = dict.fromkeys(f for e in inside for f in e.writes())
        read.update(dict.fromkeys(f for f in self.arrays if isinstance(f, Field)))
        written.update(dict.fromkeys(self.written))
        picture.step(self.name, map(Use, read), map(Use, written))

    def may_break_chain(self) -> bool:
        return True

    def follow(self, search: ChainSearch) -> None:
        # Only launches: what Python writes inside is a constant in any case.
        for e in flat(self.inside):
            if isinstance(e, Launched) and e.undetached is not None:
                search.launched_inside(e, e.undetached)
        if self.steps:
            search.ran(self.steps)
