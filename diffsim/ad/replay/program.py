"""Running a recorded tape again, forward and backward, without Python between the launches.

A `Replay` turns the entries of a tape into two programs: what was recorded, and its adjoints. A program is
one command list of the backend (`runtime/backend.py`), or several with a step in Python between them where
an entry has no native form. All checks that a launch makes are made once for the whole: captured values when
a replay starts; whether the adjoints find what their launches saw, from the recorded order of reads and
writes (`version_order.py`) and from what was written since the replay. Where they do not, the backward pass
is left to the tape's own, entry by entry, which raises the error. `forward_commands.py` and
`adjoint_commands.py` make the programs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from diffsim import locks
from diffsim.ad.record.entries import Launched, all_written
from diffsim.ad.record.record import Record
from diffsim.ad.repeat.repetition import Repetition
from diffsim.ad.replay.adjoint_commands import AdjointCommands
from diffsim.ad.replay.commands import Program
from diffsim.ad.replay.forward_commands import ForwardCommands
from diffsim.ad.replay.version_order import apply_stamps
from diffsim.errors import AutodiffError, Span
from diffsim.passes.sparse.activation import levels_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.launch_function import note_activity
from diffsim.runtime.memory.versions import Versions
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.launch_checks import LaunchChecks
    from diffsim.runtime.kernels.specialization import Specialization


class Replay:
    """A record compiled to native programs: forward, and its adjoints.

    Args:
        entries: the record.
        generation: the session's when it was made.
        written: the fields that it wrote.

    Attributes:
        zeros: the versions of the gradients that the program of the adjoints takes for 0.
        left_out: the numbers of the entries whose adjoints it therefore lacks.

    Raises:
        AutodiffError: it holds something that cannot be run again.
    """

    def __init__(self, entries: Record, generation: int, written: Iterable[Field]) -> None:
        self.generation = generation
        self.written = list(written)
        self._count = len(entries)
        self._use(entries)
        for entry in entries.firsts():
            # First launches stand for all launches of a kernel, as in every question that arguments do
            # not change.
            entry.check_replay()
        levels = dict.fromkeys(level for s in self.specials for level in levels_of(s.ir))
        # Objects of their own: they keep no field alive.
        self._active: list[Versions] = [level.mask.handle().versions for level in levels]
        self._lock = locks.rlock()
        self._base = self._end = 0
        self._interrupted = True  # until it has run for the first time
        self._weak: list[weakref.ref[Field]] = []
        self._forward: ForwardCommands | None = None
        self._reverse: AdjointCommands | None = None
        self.zeros: list[Versions] = []
        self.left_out: set[int] = set()
        self._may_be_set: dict[Versions, None] = {}  # of which that was wrong once
        # The index fields, when all launches had been asked; None: they are to be asked.
        self._answered: list[tuple[Versions, int]] | None = None

    def _use(self, entries: Record) -> None:
        self.entries = entries
        self._specials: list[Specialization] | None = None

    @property
    def specials(self) -> list[Specialization]:
        """The kernels of the record, each once."""
        # Of a pass nobody asks for them.
        if self._specials is None:
            launched = (e.special for e in self.entries.firsts() if isinstance(e, Launched))
            self._specials = list(dict.fromkeys(launched))
        return self._specials

    @property
    def asks(self) -> bool:
        """Whether there may be launches to ask again whether their index fields allow an adjoint."""
        reverse = self._reverse
        if reverse is None or reverse.asked is None:
            return True
        return bool(reverse.asked) and not _are_as_at(self._answered)

    # ---- the record of a tape that records the same again

    @classmethod
    def of_repetition(cls, repetition: Repetition, record: Record, generation: int) -> Replay:
        """Return the programs of a record that was repeated, made if there are none yet."""
        past = repetition.past
        replay = past.replay
        if not isinstance(replay, Replay):
            replay = past.replay = cls(record, generation, all_written(record.firsts()))
        replay.repeated(record, repetition.start, repetition.clock)
        return replay

    def repeated(self, record: Record, start: int, end: int) -> None:
        """Note that Python has made the launches of the record, between these readings of the clock."""
        self.entries = record
        self._base, self._end, self._interrupted = start, end, False
        # Launches whose index fields decide are asked before the pass, with the readings of this block.
        if self._reverse is None or self._reverse.asked:
            self._date_entries()

    def argument_places(self) -> list[tuple[Any, int, Any]] | None:
        """Return where the arguments of the adjoints are, if they are in one stream; last launch first."""
        parts = [] if self._reverse is None else self._reverse.program.parts
        find = getattr(parts[0], "argument_places", None) if len(parts) == 1 else None
        return None if find is None else find()

    def weaken(self) -> bool:
        """Keep no kernels and fields alive; returns whether there is something to keep."""
        if self._reverse is None or self._reverse.asked is None:
            return False
        self._asked = [(weakref.ref(c.special), args) for c, args in self._reverse.asked]
        self._reverse.asked = []
        # The forward program is not worth its memory: the next recording launches from Python.
        self._forward = self._specials = None
        del self.entries
        if not self._weak:
            self._weak = [weakref.ref(f) for f in self.written]
        self.written = []
        return True

    def strengthen(self, record: Record) -> bool:
        """Undo `weaken`; returns whether all fields are still there."""
        self._use(record)
        self.written = [f for ref in self._weak if (f := ref()) is not None]
        asked = [
            (s.derivative.checks, args) for ref, args in self._asked if (s := ref()) is not None
        ]
        assert self._reverse is not None
        self._reverse.asked = [(checks, args) for checks, args in asked if checks is not None]
        whole = len(self.written) == len(self._weak)
        return whole and len(self._reverse.asked) == len(self._asked)

    def programs(
        self, forward: Program, backward: Program, needed: dict[Field, Versions]
    ) -> AdjointCommands:
        """Make both programs anew, to be saved, with the commands added to these; return the second.

        Args:
            forward: empty, as `backward`.
            backward: the adjoints' commands.
            needed: gets the fields that the adjoints load.

        Raises:
            AutodiffError: whether the adjoints are right depends on more than the record.
        """
        if self._active:
            sparse = next(s for s in self.specials if levels_of(s.ir))
            mem = next(m for m in sparse.ir.mems if m.place is not None)
            raise AutodiffError(
                f"this tape cannot be saved: it launches {sparse.name}, whose field {mem.name} is in a "
                "sparse tree",
                Span.of_caller(),
                hint="keep it in this process",
            )
        first = ForwardCommands(self.entries, forward)
        last = AdjointCommands(self.entries, first.order, first.saved, backward, needed)
        if not last.valid or last.asked or last.decided:
            raise AutodiffError(
                "this tape cannot be saved: whether its gradients are right is known only with each launch, "
                "since index fields decide which elements they are of"
                if last.valid or last.asked is None
                else "this tape cannot be saved: it overwrites a value that its gradient needs",
                Span.of_caller(),
                hint='record it with ds.Tape(..., in_place="save"), or keep it in this process',
            )
        return last

    # ---- forward

    @property
    def complete(self) -> bool:
        """Whether it still covers the whole record."""
        return len(self.entries) == self._count

    def check(self) -> None:
        """Check that the record can be run in the present state of the session.

        Raises:
            AutodiffError: a tape records; `ds.init` was called, or a field made anew.
            KernelStateError: a number that was compiled in has changed.
        """
        if session.tape is not None:
            raise AutodiffError(
                f"a tape cannot be replayed while {session.tape.work.words}",
                Span.of_caller(),
                hint=f"call replay {session.tape.work.outside}",
            )
        # `ds.init` frees the memory that the commands refer to by address.
        if self.generation != session.generation:
            raise AutodiffError(
                "ds.init() or ds.reset() was called since this tape was recorded",
                Span.of_caller(),
                hint="record it again: with tape: ...",
            )
        for special in self.specials:
            name, owner = special.kernel.source.name, special.kernel.owner
            # Weak, since a tape must not keep the user's objects alive; but its kernels may refer to
            # their fields.
            if owner is not None and owner() is None:
                raise AutodiffError(
                    f"the object that {name} is a method of is gone, and this tape launched it",
                    special.kernel.source.head(),
                    hint="keep the object as long as its tapes",
                )
            new = special.kernel.source.replaced_by()
            if new is not None:
                raise AutodiffError(
                    f"{name} was defined anew, with another text, since this tape was recorded, and a replay "
                    f"would run the old one\n  the new {name}:\n{new.head().text()}\n  recorded here:",
                    special.kernel.source.head(),
                    hint="record it again: with tape: ...",
                )
            # Globals are compiled in: a launch would compile anew, a replay would run the old code.
            if special.is_stale or special.captures_changed():
                raise AutodiffError(
                    f"{name} uses another field (or function) now than when this tape was recorded",
                    special.kernel.source.head(),
                    hint="record it again: with tape: ...",
                )

    def forward(self) -> None:
        """Run the record, stamp the versions of what it wrote, note its launches for `kernel.grad`."""
        with self._lock:
            if self._forward is None:
                self._forward = ForwardCommands(self.entries)
                if self._reverse is not None:
                    self._forward.forget_order()
            # Until the end is reached, fields hold a mixture of two runs, and no backward pass may
            # start from it.
            self._interrupted = True
            try:
                self._forward.program.run()
            finally:
                # Also after a failure: what was written was written, and other tapes must see that it
                # has changed.
                self._base = apply_stamps(self._forward.stamps, self._forward.readings)
                self._end = session.clock
            for special in self.specials:
                note_activity(special)
            for note in self._forward.notes:
                note.apply(self._base)
            self._interrupted = False

    # ---- backward

    def backward(self, *, native: bool = True) -> bool:
        """Run the adjoints of the last replay, from the gradients as they are.

        Args:
            native: False if each of them is observed: they are left to the tape.

        Returns:
            Whether it did. If not (a value that an adjoint needs may have changed), the entries are ready
            for the tape to do it, which raises the error.

        Raises:
            AutodiffError: the last replay did not run to its end; something was recorded since; an
                adjoint cannot be made.
        """
        with self._lock:
            if not self.complete:
                raise AutodiffError(
                    "this tape has recorded something more since its last replay",
                    Span.of_caller(),
                    hint="record it anew: with tape: ...",
                )
            if self._interrupted:
                raise AutodiffError(
                    "the last replay of this tape did not run to its end",
                    Span.of_caller(),
                    hint="call tape.replay() again first",
                )
            # Compiled at the first backward pass; a replay for its values alone needs no adjoints.
            if self._reverse is None:
                self._reverse = self._adjoints()
            for v in self.zeros:
                if v.dirty:
                    self._reverse = self._adjoints()
                    break
            # Two questions: whether the program itself overwrites what its adjoints load (answered
            # once, from the order of reads and writes), and whether anything else has written since
            # this replay (asked each time, by field).
            if not native or self._has_changed(self._reverse):
                # The tape's own pass checks each entry against its clock reading, which must be that of
                # this replay.
                self._date_entries()
                return False
            if self._reverse.asked and not _are_as_at(self._answered):
                self._answered = None
                for checks, args in self._reverse.asked:
                    checks.refuse(args)
                self._answered = self._index_fields(self._reverse.asked)
            self._reverse.run()
            return True

    def _adjoints(self) -> AdjointCommands:
        """Make the program of the adjoints, for gradients as they are and as an earlier one took them."""
        self._may_be_set |= {v: None for v in self.zeros if v.dirty}
        forward = self._forward
        if forward is None or self._reverse is not None:  # whose order is used up
            forward = ForwardCommands(self.entries)
        self._forward = self._reverse = self._answered = None  # also if this fails
        order, saved = forward.order, forward.saved
        made = AdjointCommands(self.entries, order, saved, may_be_set=self._may_be_set)
        self.zeros, self.left_out = list(made.zeros), made.left_out
        forward.forget_order()
        self._forward = forward
        return made

    @staticmethod
    def _index_fields(
        asked: list[tuple[LaunchChecks, tuple[Any, ...]]],
    ) -> list[tuple[Versions, int]] | None:
        """Return the versions, and their last readings, of what launches are asked for; None: unknown."""
        found: dict[Versions, int] = {}
        for checks, args in asked:
            for a in checks.reads:
                box = checks.special.box(a, args)
                if box is None:
                    return None
                found[box[0].versions] = box[0].versions.latest
        return list(found.items())

    def _has_changed(self, reverse: AdjointCommands) -> bool:
        """Return whether something that an adjoint needs may be other than in the last replay."""
        if not reverse.valid:
            return True
        # Loops: short passes ask in each turn, and a generator takes longer than they do.
        for v in reverse.needed:
            if v.latest > self._end:
                return True
        if reverse.decided and not _are_as_at(reverse.decided):
            return True
        for v in reverse.stored:
            if not v.is_complete:
                return True
        # Which cells of sparse trees are active must not change in the middle either.
        for v in self._active:  # noqa: SIM110
            if v.latest > self._base:
                return True
        return False

    def _date_entries(self) -> None:
        """Set the clock readings of the entries to those of the last replay."""
        self.entries.date(self._base)


def _are_as_at(known: list[tuple[Versions, int]] | None) -> bool:
    """Return whether fields are as they were at these last readings; None: not known."""
    # Restored values have the readings of earlier ones.
    return known is not None and all(
        v.latest == latest and v.is_complete and not v.restored for v, latest in known
    )
