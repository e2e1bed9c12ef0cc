"""The commands of the adjoints of a record, last first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.checks.launch_conditions import fixed_launches
from diffsim.ad.record.elements import Index, write_elements
from diffsim.ad.record.entries import Cleared, Copied, Launched, Wrote
from diffsim.ad.record.overwrite_saves import PutAside, Saved
from diffsim.ad.record.record import Record
from diffsim.ad.record.recorded_writes import RecordedWrites
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.replay.commands import Place, Program, elements_of, note_writes
from diffsim.ad.replay.copies_in_place import CopiesInPlace
from diffsim.ad.replay.version_order import VersionOrder, apply_stamps
from diffsim.errors import Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import Extent, extents
from diffsim.runtime.memory.versions import Part, Versions

if TYPE_CHECKING:
    from diffsim.runtime.kernels.derivative import Derivative, LoadingDerivative
    from diffsim.runtime.kernels.specialization import Specialization


class AdjointCommands:
    """The adjoints of a record, last first (`ReverseProgram` of `ad/record/entry.py`).

    Attributes:
        valid: whether each of them finds what its launch saw, if nothing else writes.
        needed: the versions of the fields that they load.
        stored: those of the fields of which they load what the launch has stored.
        decided: versions of index fields that it was made for, and their last readings.
        asked: the launches to ask, before each run, whether their index fields allow an adjoint.
        zeros: the versions of gradients that the program takes for 0 before the first adjoint.
        left_out: the numbers of entries whose adjoints would add zeros for that reason.
    """

    def __init__(
        self,
        entries: Record,
        order: VersionOrder,
        saved: dict[Saved, Part],
        program: Program | None = None,
        needed: dict[Field, Versions] | None = None,
        may_be_set: Collection[Versions] = (),
    ) -> None:
        """Make the program.

        Args:
            entries: the record.
            order: of its reads and writes, which is used up.
            saved: the versions of what tapes with in_place="save" copy, when they do.
            program: which the commands are added to, to be saved; None: a new one.
            needed: which the fields that the adjoints load are added to.
            may_be_set: the versions of gradients that are not always 0 before the first adjoint.
        """
        self.program = Program() if program is None else program
        self._entries = entries
        self._order = order
        self._saved = saved
        self._needed: dict[Field, Versions] = {} if needed is None else needed
        self._is_to_save = program is not None
        self.put_back: list[tuple[Place, Place]] = []
        self.stored: dict[Versions, None] = {}
        self.zeros: dict[Versions, None] = {}
        self.left_out: set[int] = set()
        self._may_be_set = may_be_set
        # Whether it is known which gradients are 0: who runs a saved tape may start from any.
        self._knows_gradients = program is None
        self._stored: dict[Derivative, list[Extent]] = {}
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
        for self._position in range(len(entries) - 1, -1, -1):
            entry = entries[self._position]
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
        # What index fields have decided holds as long as they are as they are now.
        writes: RecordedWrites | None = self.__dict__.pop("_writes", None)
        decided = {} if writes is None else writes.indices.fields
        self._needed |= {f: f.versions for f in decided}
        self.decided = [(f.versions, f.versions.latest) for f in decided]
        self.needed = list(self._needed.values())
        self.stamps = order.stamps(self.start)
        self.readings = order.clock - self.start
        del self._order, self._reads, self._needed, self._saved, self._put_aside, self._final
        del self._entries, self._stored, self._may_be_set
        del self._copies

    @functools.cached_property
    def _writes(self) -> RecordedWrites:
        return RecordedWrites(self._entries, self._order.changed)

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
        is_as_it_was = True
        for extent in reads:
            box = extent.box(entry.args)
            if box is not None:
                self._needed[box[0]] = box[0].versions
                # The static form of the version check that each adjoint makes at its launch
                # (docs/adr/0004).
                is_as_it_was &= not order.changed(box, self._now)
        if not is_as_it_was:
            kept = self._writes.keep(special.derivative, entry.args, self._now)
            self.valid = self.valid and kept
        if self._adds_zeros(entry):
            self.left_out.add(self._position)
            return
        order.tick()
        for extent in writes:
            box = extent.box(entry.args)
            if box is not None:
                order.write(box, head)
        compiled = self._derivative_of(entry).executable
        self.program.launch(special, compiled, entry.args, entry.seed, self._copies)

    def _adds_zeros(self, entry: Launched) -> bool:
        """Return whether all gradients that an adjoint is linear in are 0; what tells is noted."""
        derivative = entry.special.derivative
        found = derivative.cotangents
        if found is None or derivative.returns_active or not self._knows_gradients:
            return False
        tested = []
        for mem in found:
            g = entry.special.object_of(mem, entry.args)
            if not isinstance(g, Field) or g in self._order.versions:
                return False
            if g.versions.dirty or g.versions in self._may_be_set:
                return False
            tested.append(g.versions)
        self.zeros |= dict.fromkeys(tested)
        return True

    def _derivative_of(self, entry: Launched) -> Derivative:
        """Return the derivative that loads what the launch has stored, if it is there; else the usual one."""
        computing: Derivative = entry.special.derivative
        loading: LoadingDerivative | None = None if self._is_to_save else computing.loading
        if loading is None:
            return computing
        extents_of = self._stored.get(loading)
        if extents_of is None:
            extents_of = self._stored[loading] = extents(entry.special, loading.stored)
        boxes = [box for e in extents_of if (box := e.box(entry.args)) is not None]
        is_there = all(self._order.is_of(box, self._now) for box in boxes)
        if len(boxes) < len(extents_of) or not is_there:
            return computing
        self._needed |= {f: f.versions for f, _ in boxes}
        self.stored |= {f.versions: None for f, _ in boxes}
        return loading

    def solve(self, entry: Replaced) -> None:
        """Run the adjoint of a solve, in Python."""
        assert entry.rerun is not None
        for box in entry.rerun.needed:
            self._needed[box[0]] = box[0].versions
            self.valid &= not self._order.changed(box, self._now)
        self._order.tick()
        for f in entry.fields():
            if f.adjoint is not None:
                self._order.write((f.adjoint, None), None)
        self._knows_gradients = False  # its kernels may add to others
        self.program.solve(functools.partial(self._in_python, entry.rerun.reverse), entry)

    def _in_python(self, step: Callable[[], Any]) -> None:
        note_writes(self.stamps)
        step()

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
            self.program.clear(elements_of(grad, None if index is None else tuple(index)))

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
