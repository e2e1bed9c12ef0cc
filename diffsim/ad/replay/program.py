"""Running a recorded tape again, forward and backward, without Python between the launches.

A `Replay` turns the entries of a tape into two programs: what was recorded, and its adjoints. A program is
one command list of the backend (`runtime/backend.py`), or several with a step in Python between them where
an entry has no native form. All checks that a launch makes are made once for the whole: captured values when
a replay starts; whether the adjoints find what their launches saw, from the recorded order of reads and
writes (`version_order.py`) and from what was written since the replay. Where they do not, the backward pass
is left to the tape's own, entry by entry, which raises the error.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim import locks
from diffsim.ad.checks.launch_conditions import fixed_launches
from diffsim.ad.record.elements import Index, write_elements
from diffsim.ad.record.entries import Cleared, Copied, Launched, Wrote
from diffsim.ad.record.extents import extents
from diffsim.ad.record.overwrite_saves import PutAside, Saved, own_saves
from diffsim.ad.record.record import Record
from diffsim.ad.replay.commands import Place, Program
from diffsim.ad.replay.copies_in_place import CopiesInPlace
from diffsim.ad.replay.version_order import VersionOrder, apply_stamps
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import Extent
from diffsim.runtime.kernels.launch_history import STRETCH
from diffsim.runtime.memory.storage import StridedSpan, snapshot_address
from diffsim.runtime.memory.versions import Part, Versions
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class Replay:
    """A record compiled to native programs: forward, and its adjoints.

    Args:
        entries: the record.
        generation: the session's when it was made.
        written: the fields that it wrote.

    Attributes:
        checked: whether the record was searched for broken chains and lost gradients.
        writes: whether Python writes to fields in it.

    Raises:
        AutodiffError: it holds something that can not be run again.
    """

    def __init__(self, entries: Record, generation: int, written: Iterable[Field]) -> None:
        self.generation = generation
        self.written = list(written)
        self.checked = False
        self._count = len(entries)
        self._use(entries)
        for entry in entries.firsts():
            # First launches stand for all launches of a kernel, as in every question that arguments do
            # not change.
            entry.check_replay()
        self.writes = any(isinstance(e, (Wrote, Copied)) for e in entries.firsts())
        self._lock = locks.rlock()
        self._base = self._end = 0
        self._interrupted = True  # until it has run for the first time
        self._forward: _ForwardProgram | None = None
        self._reverse: _BackwardProgram | None = None

    def _use(self, entries: Record) -> None:
        self.entries = entries
        self.specials = list(
            dict.fromkeys(e.special for e in entries.firsts() if isinstance(e, Launched))
        )

    @property
    def asks(self) -> bool:
        """Whether there may be launches to ask again whether their index fields allow an adjoint."""
        return self._reverse is None or self._reverse.asked is None or bool(self._reverse.asked)

    # ---- the record of a tape that records the same again

    def repeated(self, record: Record, start: int, end: int) -> None:
        """Note that Python has made the launches of the record, between these readings of the clock."""
        self.entries = record
        self._base, self._end, self._interrupted = start, end, False
        # Launches whose index fields decide are asked before the pass, with the readings of this block.
        if self._reverse is None or self._reverse.asked:
            self._date_entries()

    def weaken(self) -> bool:
        """Keep no kernels and fields alive; returns whether there is something to keep."""
        if self._reverse is None or self._reverse.asked is None:
            return False
        self._asked = [(weakref.ref(c.special), args) for c, args in self._reverse.asked]
        self._reverse.asked = []
        # The forward program is not worth its memory: the next recording launches from Python.
        self._forward, self.specials = None, []
        del self.entries
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
    ) -> _BackwardProgram:
        """Make both programs anew, to be saved, with the commands added to these; return the second.

        Args:
            forward: empty, as `backward`.
            backward: the adjoints' commands.
            needed: gets the fields that the adjoints load.

        Raises:
            AutodiffError: whether the adjoints are right depends on more than the record.
        """
        first = _ForwardProgram(self.entries, forward)
        last = _BackwardProgram(self.entries, first.order, first.saved, backward, needed)
        if not last.valid or last.asked:
            raise AutodiffError(
                "this tape can not be saved: whether its gradients are right is known only with each launch, "
                "since index fields decide which elements they are of"
                if last.valid or last.asked is None
                else "this tape can not be saved: it overwrites a value that its gradient needs",
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
                f"a tape can not be replayed while {session.tape.work.words}",
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
                self._forward = _ForwardProgram(self.entries)
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
                adjoint can not be made.
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
                forward = self._forward or _ForwardProgram(self.entries)
                self._forward = None  # its order is used up, also if this fails
                self._reverse = _BackwardProgram(self.entries, forward.order, forward.saved)
                forward.forget_order()
                self._forward = forward
            # Two questions: whether the program itself overwrites what its adjoints load (answered
            # once, from the order of reads and writes), and whether anything else has written since
            # this replay (asked each time, by field).
            changed = not self._reverse.valid or any(
                v.latest > self._end for v in self._reverse.needed
            )
            if changed or not native:
                # The tape's own pass checks each entry against its clock reading, which must be that of
                # this replay.
                self._date_entries()
                return False
            for checks, args in self._reverse.asked or ():
                checks.refuse(args)
            self._reverse.run()
            return True

    def _date_entries(self) -> None:
        """Set the clock readings of the entries to those of the last replay."""
        self.entries.date(self._base)


class _ForwardProgram:
    """A record as a program (`ForwardProgram` of `ad/record/entry.py`).

    Attributes:
        order: the versions that it leaves, until they are used up; `stamps`: the same for the real ones.
        readings: how many launches and writes there are.
        saved: the versions of what tapes with in_place="save" copy, when they do.
        notes: when each kernel was launched.
    """

    def __init__(self, entries: Record, program: Program | None = None) -> None:
        self.program = Program() if program is None else program
        self.order = VersionOrder()
        self.saved: dict[Saved, Part] = {}
        self._writes: dict[Specialization, tuple[list[Extent], Span]] = {}
        self._notes: dict[Any, _Notes] = {}
        self._notes_of: dict[Specialization, list[_Notes]] = {}
        self._entries, self._position = entries, 0
        self._saves = any(isinstance(e, Saved) for e in entries.firsts())
        for self._position, entry in enumerate(entries):
            entry.record(self)
        self.readings = self.order.clock
        self.stamps = self.order.stamps()
        self.notes = list(self._notes.values())
        del self._entries, self._writes, self._notes, self._notes_of

    def forget_order(self) -> None:
        """Drop what only the program of the adjoints is made from."""
        del self.order, self.saved

    def save(self, saved: Saved) -> None:
        """Copy what the next entry overwrites."""
        # The versions of this moment return when the reverse program copies the values back.
        self.saved[saved] = self.order.part(saved.box)
        there, copied = saved.places
        self.program.copy(copied, there, saved)

    def launch(self, entry: Launched) -> None:
        """Launch a kernel, after the copies for its own adjoint, which follow it on the record."""
        special = entry.special
        # They follow the launch on the record, for the way back, but must be copied before it
        # overwrites the box.
        for own in own_saves(self._entries, self._position) if self._saves else ():
            self.save(own)
        self.order.tick()
        # Which boxes a kernel writes is worked out once for each kernel, not for each launch of a
        # million.
        found = self._writes.get(special)
        if found is None:
            writes = extents(special, special.accesses.writes)
            found = self._writes[special] = writes, special.kernel.source.head()
        for extent in found[0]:
            box = extent.box(entry.args)
            if box is not None:
                self.order.write(box, found[1])
        self.program.launch(special, special.executable, entry.args, entry.seed)
        self._note(entry)

    def _note(self, entry: Launched) -> None:
        """Note a launch for `kernel.grad`."""
        special = entry.special
        # The launch had other arguments than those noted with it.
        if special.loads_arguments:
            return
        noted = self._notes_of.get(special)
        # The notes depend on the arguments only for kernels that draw random numbers.
        if noted is None or special.translation.uses_random:
            noted = self._notes_of[special] = [
                self._notes.setdefault((id(s), key), _Notes(s, key)) for s, key in _noted(entry)
            ]
        for note in noted:
            note.places.append(self.order.clock)
            note.seed = entry.seed

    def assign(self, entry: Wrote) -> None:
        """Write a constant from Python, or a copy that no gradient flows through."""
        self.order.tick()
        self.order.write((entry.field, entry.row), entry.writer)
        _write(self.program, entry)

    def copy(self, entry: Copied) -> None:
        """Copy a whole field."""
        self.order.tick()
        self.order.write((entry.target, None), entry.writer)
        self.program.copy_all(entry.target, entry.source)


class _Notes:
    """The launches of one kernel (with one tuple of arguments) in a record, for `kernel.grad`."""

    __slots__ = ("key", "places", "seed", "special")

    def __init__(self, special: Specialization, key: Any) -> None:
        self.special = special
        self.key = key
        self.places: deque[int] = deque(maxlen=STRETCH)
        self.seed = 0

    def apply(self, base: int) -> None:
        # As if the launches had been made one by one, so that `kernel.grad()` after a replay finds
        # them.
        launches = self.special.launches
        if self.key is None:
            launches.last = base + self.places[-1], self.seed
            return
        for at in self.places:
            launches.note(self.key, base + at)
        launches.seeds[self.key] = self.seed


def _noted(entry: Launched) -> Iterator[tuple[Specialization, Any]]:
    """Yield the keys of a launch in launch histories: a specialization, and arguments (None: any).

    Of kernels with arguments only those that draw random numbers need a note: for others an older one is
    as right, or what they load has changed since.
    """
    for special in entry.special.kernel.specializations.values():
        if special.translation is entry.special.translation and special.differentiable:
            yield special, None
            if not special.arguments.parameters:
                yield special, ()
            elif special.translation.uses_random:
                yield special, special.arguments.key(entry.args)


class _BackwardProgram:
    """The adjoints of a record, last first (`ReverseProgram` of `ad/record/entry.py`).

    Attributes:
        valid: whether each of them finds what its launch saw, if nothing else writes.
        needed: the versions of the fields that they load.
        asked: the launches to ask, before each run, whether their index fields allow an adjoint.
    """

    def __init__(
        self,
        entries: Record,
        order: VersionOrder,
        saved: dict[Saved, Part],
        program: Program | None = None,
        needed: dict[Field, Versions] | None = None,
    ) -> None:
        self.program = Program() if program is None else program
        self._order = order
        self._saved = saved
        self._needed: dict[Field, Versions] = {} if needed is None else needed
        self.put_back: list[tuple[Place, Place]] = []
        self._reads: dict[Specialization, tuple[list[Extent], list[Extent], Span]] = {}
        self._put_aside = PutAside()
        self._final: list[tuple[Saved, Place | None, Part]] = []
        self._copies = CopiesInPlace(entries)
        self.start = order.clock
        self.asked = fixed_launches(entries, order.changed, order.clock)
        self.valid = self.asked is not None
        # Going back through the entries, `_now` is the reading that each launch had in the forward
        # program.
        self._now = order.clock  # at the entry whose adjoint is being added
        for entry in reversed(entries):
            entry.reverse(self)
            # Saves and scopes have no reading of their own.
            self._now -= entry.ticks
        # At the end the final values return, in the opposite order, since boxes may overlap.
        for final, place, before in reversed(self._final):
            order.restore(final.box, before)
            if place is not None:
                there, aside = final.places
                self.program.copy(there, aside)
                self.put_back.append((place, self.program.last()))
        self.needed = list(self._needed.values())
        self.stamps = order.stamps(self.start)
        self.readings = order.clock - self.start
        del self._order, self._reads, self._needed, self._saved, self._put_aside, self._final
        del self._copies

    def restore(self, saved: Saved) -> None:
        """Restore overwritten values; those of the end of the forward run are put aside before."""
        there, copied = saved.places
        is_read_there = self._copies.takes(saved)
        if self._put_aside.add(saved.box):
            final, place = saved, None
            if not is_read_there:
                final = Saved(saved.box)
                _, aside = final.places
                self.program.copy(aside, there, final.data)
                place = self.program.last()
            self._final.append((final, place, self._order.part(saved.box)))
        self._order.restore(saved.box, self._saved[saved])
        if not is_read_there:
            self.program.copy(there, copied)

    def adjoint(self, entry: Launched) -> None:
        """Launch the adjoint of a kernel; it is `valid` only if it finds what the launch saw."""
        special, order = entry.special, self._order
        if not special.differentiable:
            return
        found = self._reads.get(special)
        if found is None:
            accesses, head = special.derivative.accesses, special.kernel.source.head()
            read, written = (extents(special, a) for a in (accesses.reads, accesses.writes))
            found = self._reads[special] = read, written, head
        reads, writes, head = found
        for extent in reads:
            box = extent.box(entry.args)
            if box is not None:
                self._needed[box[0]] = box[0].versions
                # The static form of the version check that each adjoint makes at its launch
                # (docs/adr/0004).
                self.valid &= not order.changed(box, self._now)
        order.tick()
        for extent in writes:
            box = extent.box(entry.args)
            if box is not None:
                order.write(box, head)
        compiled = special.derivative.executable
        self.program.launch(special, compiled, entry.args, entry.seed, self._copies)

    def clear(self, entry: Wrote) -> None:
        """Clear the gradient of elements that Python wrote to: their old values have no effect."""
        self._order.tick()
        grad = entry.field.adjoint
        if grad is not None and entry.cleared is not False:
            self._order.write((grad, None), None)
            self._clear(grad, entry.index, entry.cleared)

    def _clear(self, grad: Field, index: Index, cleared: Cleared) -> None:
        if isinstance(cleared, np.ndarray):  # some elements of many, which is rare: in Python
            self.program.parts.append(functools.partial(write_elements, grad, cleared, 0))
        else:
            self.program.clear(_elements(grad, None if index is None else tuple(index)))

    def copy_back(self, entry: Copied) -> None:
        """Move the gradient of a copy back to its source."""
        self._order.tick()
        target, source = entry.target.adjoint, entry.source.adjoint
        # A copy of a field to itself changes nothing, and its gradient stays.
        if target is None or target is source or entry.cleared is False:
            return
        self._order.write((target, None), None)
        if source is not None:
            self._order.write((source, None), None)
            self.program.add(source, target)
        self._clear(target, None, entry.cleared)

    def run(self) -> None:
        """Run the adjoints; in the end, or after a failure, restored values are the final ones again."""
        try:
            self.program.run()
        except BaseException:
            reached = self.program.reached
            for aside, back in self.put_back:
                # Put aside and not put back yet: done here, so that the program's state survives a
                # failed pass.
                if aside < reached and not back < reached:
                    self.program.run_one(back)
            raise
        finally:
            apply_stamps(self.stamps, self.readings)


def _elements(field: Field, index: tuple[int, ...] | None) -> StridedSpan:
    """Return the memory of an element of a field (None: of all)."""
    storage = field.storage
    if index is None:
        return storage.layout.part(storage.address)
    return storage.layout.element(storage.address, field._place(index))


def _write(program: Program, entry: Wrote) -> None:
    """Add a write from Python: of a constant, or of another field that no gradient flows to."""
    field, value = entry.field, entry.value
    if isinstance(value, Field):
        program.copy_all(field, value)
        return
    index = None if entry.index is None else tuple(entry.index)
    target = _elements(field, index)
    if not isinstance(value, np.ndarray) or value.ndim > 1:  # a snapshot of the whole field
        program.copy(target, target.packed(snapshot_address(value)), value)
    # Bytes, not numbers: -0.0 equals 0 and is not what clearing writes.
    elif not any(value.tobytes()):
        program.clear(target)
    elif index is None:
        # One element repeated over a field: a whole copy, as there is no native command for filling
        # with a value.
        filled = session.backend.new_storage(field.storage.layout)
        filled.fill(value)
        program.copy(target, filled.layout.part(filled.address), filled)
    else:
        held = field.storage.upload(value)
        program.copy(target, target.packed(snapshot_address(held)), held)
