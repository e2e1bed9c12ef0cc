"""One call of a function of fields that another library will differentiate.

A call is recorded on a tape of its own. Later calls overwrite the same fields, so it keeps what its adjoints
will load, and each backward pass puts that back for its time: values and versions, so that the checks of the
tape count as ever (docs/adr/0044). Fields and their gradients are afterwards as they were.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from diffsim.ad.record.elements import Box
from diffsim.ad.record.entries import all_written
from diffsim.ad.record.entry import fields_of
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.record.snapshot import StartSnapshot
from diffsim.ad.reverse.seeds import start_from
from diffsim.ad.tape import Tape
from diffsim.bridges.function import FieldFunction, Prepared, values_of
from diffsim.errors import AutodiffError, Caller, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

_computed: weakref.WeakKeyDictionary[Field, tuple[int, str]] = weakref.WeakKeyDictionary()
"""Fields that a recorded call has written last: their version, and the function."""


class _Kept:
    """A copy of a part of a field, which calls share as long as the part does not change."""

    __slots__ = ("__weakref__", "saved")

    def __init__(self, box: Box) -> None:
        self.saved = Saved(box)


_shared: weakref.WeakKeyDictionary[Field, dict[int | None, tuple[int, weakref.ref[_Kept]]]] = (
    weakref.WeakKeyDictionary()
)
"""The latest copies of parts that calls keep, with their versions."""


def _keep(box: Box) -> _Kept:
    """Return a copy of a part as it is now."""
    field, row = box
    # What others write to shared memory has no version.
    if field._exported:
        return _Kept(box)
    versions = field.versions
    now = versions.latest if row is None else max(versions.whole, versions.row(row))
    known = _shared.setdefault(field, {})
    version, ref = known.get(row, (-1, None))
    found = ref() if ref is not None and version == now else None
    if found is None:
        found = _Kept(box)
        known[row] = now, weakref.ref(found)
    return found


class RecordedCall:
    """A call, with what its backward pass needs.

    Attributes:
        name: of the function.
        inputs, outputs: its fields.
    """

    def __init__(
        self, function: FieldFunction, prepared: Prepared, start: StartSnapshot | None = None
    ) -> None:
        self.name = function.name
        self._caller = Caller()
        function.lend_adjoints(prepared)
        self.inputs = prepared.fields
        # What earlier calls computed and nobody has set since: derivatives with respect to it have no way
        # out of this call.
        carried = {f: who for f, (at, who) in _computed.items() if f.versions.latest == at}
        self._tape = tape = Tape(in_place="save")
        tape.keeps_inputs = False  # an input is what the field held before the call
        tape.recorder.key = None
        tape.recorder.snapshot = start
        self._generation = session.generation
        with tape:
            self.outputs = function.run(prepared)
        record = tape.entries
        used = {*fields_of(record.firsts()), *self.outputs}
        self._carried = {f: who for f, who in carried.items() if f in used}
        # Refused now, in the line of the call, and before another one relies on what it wrote.
        if record:
            tape._check_program()
        for f in all_written(record.firsts()):
            if f.dtype.is_float and not f.is_grad:
                _computed[f] = f.versions.latest, function.name
        self._now = session.clock
        own = {*prepared.fields, *self.outputs} if prepared.made else set()
        self._kept = [_keep(box) for box in self._needed() if box[0] not in own]

    def _needed(self) -> Iterator[Box]:
        """Yield what the adjoints load as it is now: the rest is on the tape."""
        record = self._tape.entries
        if any(isinstance(e, Replaced) for e in record.firsts()):
            # Functions in Python: what they read is not known.
            yield from ((f, None) for f in fields_of(record.firsts()))
            return
        for f, rows in self._tape.recorder.saver.needs.items():
            # Many rows are copied as one.
            if None in rows or 4 * len(rows) > len(f.versions.rows):
                if rows:
                    yield f, None
            else:
                yield from ((f, row) for row in rows)

    # ---- the backward pass

    def pull_back(
        self, seeds: Mapping[Field, np.ndarray], wanted: Iterable[Field]
    ) -> dict[Field, np.ndarray]:
        """Return gradients of inputs for given gradients of outputs (a vector-Jacobian product).

        Raises:
            AutodiffError: and its kind: there is none, or it would leave out what came before.
        """
        if self._generation != session.generation:
            raise AutodiffError(
                f"ds.init() or ds.reset() was called since this call of {self.name}, which ended its record",
                self._caller.span(),
                hint="call ds.init() before everything else",
            )
        wanted = list(wanted)
        with self._values_of_then(), self._gradients_aside():
            if self._tape.entries:
                self._tape.backward(grads=seeds)
            else:  # it launched nothing, and outputs are what they were
                for f, seed in seeds.items():
                    start_from(f, seed)
            self._check_carried()
            made = {}
            for f in wanted:
                assert f.adjoint is not None
                made[f] = values_of(f.adjoint)
            return made

    @contextlib.contextmanager
    def _values_of_then(self) -> Iterator[None]:
        """Let fields hold what they held after the call, for the time of the block."""
        now: list[Saved] = []
        try:
            for kept in self._kept:
                field, row = kept.saved.box
                if field._exported or field.versions.changed(row, self._now):
                    now.append(Saved((field, row)))
                    kept.saved.restore()
            yield
        finally:
            for saved in reversed(now):
                saved.restore()

    @contextlib.contextmanager
    def _gradients_aside(self) -> Iterator[None]:
        """Set all gradients of the record to 0 for the time of the block, and put them back after it."""
        ends = (f.adjoint for f in (*self.inputs, *self.outputs) if f.adjoint is not None)
        gradients = list(dict.fromkeys([*self._tape._adjoints(), *ends]))
        kept = [(g, Saved((g, None)), g.versions.cuts) for g in gradients if g.versions.dirty]
        for g in gradients:
            g.clear()
        try:
            yield
        finally:
            for g in gradients:
                g.clear()
            for g, saved, cuts in kept:
                saved.restore()
                g.versions.may_be_nonzero()
                g.versions.cuts = cuts

    def _check_carried(self) -> None:
        """Refuse derivatives with respect to state that an earlier call has left."""
        for f, who in self._carried.items():
            # Of inputs another library has the gradient; they were set for this call anyway.
            if f in self.inputs or f.adjoint is None or not f.adjoint.storage.may_be_nonzero():
                continue
            name = f._found_name or "x"
            raise AutodiffError(
                f"{self.name} depends on what {who} left in {f.name} in an earlier call, and this derivative "
                f"would get lost: {f.name} is not among the inputs",
                self._caller.span(),
                hint=f"make {name} an input and an output, and hand it from call to call; if it is a "
                f"constant here, set it before the call, or say so: {name}.mark_written()",
            )

    def fields(self) -> set[Field]:
        """Return all fields that it used."""
        return {*fields_of(self._tape.entries.firsts()), *self.outputs}

    def span(self) -> Span | None:
        """Return the line of the call."""
        return self._caller.span()
