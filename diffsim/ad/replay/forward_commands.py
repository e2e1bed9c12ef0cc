"""The commands that run a record again, and what they leave: versions, notes of launches."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.entries import Copied, Launched, Wrote
from diffsim.ad.record.overwrite_saves import Saved, own_saves
from diffsim.ad.record.record import Record
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.replay.commands import Program, elements_of, note_writes
from diffsim.ad.replay.version_order import VersionOrder
from diffsim.errors import Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import Extent, extents
from diffsim.runtime.kernels.launch_history import STRETCH
from diffsim.runtime.memory.storage import snapshot_address
from diffsim.runtime.memory.versions import Part
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class ForwardCommands:
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
        """Launch a kernel, and make the copies for its own adjoint, which follow it on the record."""
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
        for kept in own_saves(self._entries, self._position, behind=True) if special.kept else ():
            self.save(kept)
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

    def solve(self, entry: Replaced) -> None:
        """Solve once more, in Python."""
        assert entry.rerun is not None
        self.order.tick()
        for f in entry.writes():
            self.order.write((f, None), entry.span)
        self.program.solve(functools.partial(self._in_python, entry.rerun.rerun), entry)

    def _in_python(self, step: Callable[[], Any]) -> None:
        note_writes(self.stamps)
        step()

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


def _write(program: Program, entry: Wrote) -> None:
    """Add a write from Python: of a constant, or of another field that no gradient flows to."""
    field, value = entry.field, entry.value
    if isinstance(value, Field):
        program.copy_all(field, value)
        return
    index = None if entry.index is None else tuple(entry.index)
    target = elements_of(field, index)
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
