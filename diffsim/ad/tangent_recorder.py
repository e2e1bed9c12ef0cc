"""The recorder of forward mode: what runs in its block computes tangents along with values.

A launch is replaced by one of the kernel with its tangents, before which fields that have no dual are lent
one. A write from Python sets the tangents of what it writes; values that kernels return carry theirs. Nothing
is recorded for later, but for what tells of tangents that Python may have lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.checks.lost_tangents import LostTangents
from diffsim.ad.enclosing_recorder import EnclosingRecorder
from diffsim.ad.record.arguments import IMMUTABLE, check_given
from diffsim.ad.record.elements import (
    Elements,
    Index,
    Run,
    dual_elements,
    numpy_index,
    read_elements,
    values_of,
    write_elements,
)
from diffsim.ad.reverse.inputs import Uses
from diffsim.errors import AutodiffError, Span, together
from diffsim.runtime.fields.adjoints import make_dual
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import FieldElement, Provenance
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.kernels.access_summary import Extent
from diffsim.runtime.kernels.derivative import Direction, Mode, missing_dual
from diffsim.runtime.recorder import FORWARD_MODE, Pull, Replacements
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.ir.nodes import Atomic, Store
    from diffsim.runtime.kernels.specialization import Specialization, WithTangents


class Recording:
    """The identity of one block: values followed in another one are constants in it."""


class TangentRecorder:
    """Computes the tangents of a block.

    Attributes:
        tangents: how many, as duals hold them.
        watch: what Python may have lost of them.
        direction: forward, or forward over reverse.
    """

    intercepts = follows_values = refuses_constants = True
    work = FORWARD_MODE

    def __init__(
        self,
        width: int,
        inputs: Sequence[Field],
        direction: Direction = Direction.FORWARD,
    ) -> None:
        self.tangents = width
        self.direction = direction
        self.record = Recording()
        self.watch = LostTangents()
        self._known: dict[Specialization, WithTangents] = {}
        self.replacements = Replacements(session.duals)
        self._cleared: set[Field] = set()
        # Of fields that have a tangent from the start: the launches that may use them, and what these use.
        self._uses = {f: Uses(f) for f in inputs}
        self._seeds: dict[Field, np.ndarray] = {}
        self._users: dict[Specialization, list[Extent]] = {}
        self._settled: dict[Specialization, list[Extent]] = {}
        self._pending: list[tuple[Specialization, tuple[Any, ...]]] = []

    # ---- launches

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> WithTangents:
        """Return the kernel with its tangents, to be launched in place of the kernel."""
        # The usual launch does not get here (`launch_function.py`).
        found = self._known.get(special)
        if found is None or session.duals != self.replacements.duals:
            found = self._find(special, args)
        for a in args:
            if a.__class__ not in IMMUTABLE:
                check_given(a)
        if special in self._users:
            self._pending.append((special, args))
        return found

    def _find(self, special: Specialization, args: tuple[Any, ...]) -> WithTangents:
        mode = Mode(
            self.direction,
            is_detached=special.mode.is_detached,
            is_in_place=self.direction is Direction.SECOND,
            width=self.tangents,
        )
        found = special.with_tangents(args, mode, lent=True)
        while found.leaks:
            self._lend(found.leaks, special, args)
            found = special.with_tangents(args, mode, lent=True)
        self._note_accesses(special, args)
        # Others may read the fields that were lent a dual, and arrays are other ones in the next launch.
        if session.duals != self.replacements.duals:
            self._known.clear()
            self.replacements.clear()
            self.replacements.duals = session.duals
        if not special.arguments.arrays:
            self._known[special] = found
            if special not in self._users:
                self.replacements[special] = found.launch
        return found

    def _lend(
        self, leaks: Sequence[Store | Atomic], special: Specialization, args: tuple[Any, ...]
    ) -> None:
        """Give duals to the fields that a launch stores tangents to; refuse other memory."""
        refused = []
        for s in leaks:
            thing = special.object_of(s.mem, args)
            if isinstance(thing, Field) and not thing.is_dual:
                make_dual(thing, self.tangents)
            elif isinstance(thing, Field):
                refused.append(missing_dual(s, "a dual has none itself"))
            else:
                refused.append(missing_dual(s, "an array of another library has no dual"))
        if refused:
            raise together(refused)

    def _note_accesses(self, special: Specialization, args: tuple[Any, ...]) -> None:
        accesses = special.accesses
        fields = [
            {f for a in some if isinstance(f := special.object_of(a.mem, args), Field)}
            for some in (accesses.reads, accesses.writes)
        ]
        self.watch.launched(*fields)
        if self._uses and not self._uses.keys().isdisjoint(fields[0] | fields[1]):
            both = (*accesses.reads, *accesses.writes)
            extents = [
                Extent(special.arguments, a)
                for a in both
                if special.object_of(a.mem, args) is not None
            ]
            if special.arguments.arrays or any(
                True for a in both for s in a.slices for _ in s.leaves
            ):
                self._users[special] = extents
            else:  # every launch uses the same elements
                self._pending.append((special, args))
                self._settled[special] = extents

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        """Nothing: the launch has computed the tangents."""

    def returned(self, result: tuple[Any, np.ndarray]) -> Recorded:
        value, tangents = result
        made = Recorded(value, self)
        made.tangent = tangents
        return made

    # ---- writes from Python

    def writing(self, field: Field, row: int | None) -> None:
        """Nothing: what is overwritten is not needed again."""

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.watch.wrote(field, value)
        uses = self._uses.get(field)
        if uses is None:
            self.clear_tangents(field, index)
            return
        # What nothing in the block has used before is an input, whose tangent is its seed (docs/adr/0027).
        self._bring_up_to_date()
        used = uses.used_of(index)
        if used is not False:
            self.clear_tangents(field, index if used is True else used)
        if used is not True and field in self._seeds:
            self._plant_again(field, index, used)

    def _plant_again(self, field: Field, index: Index, used: Any) -> None:
        """Set the seeds of inputs again, which a constant in between has cleared."""
        mask = np.zeros(field.shape, bool)
        mask[numpy_index(field, index)] = True
        places = dual_elements(field, mask & ~np.asarray(used), self.tangents)
        dual = field.duals[self.tangents]
        write_elements(dual, places, self._seeds[field][places])
        dual._touch()

    def clear_tangents(self, field: Field, index: Elements) -> None:
        """Set the tangents of some elements to 0: they hold constants now."""
        dual = field.duals.get(self.tangents)
        if dual is None or not dual.versions.dirty:
            return
        self._cleared.add(field)
        self._keep_seeds(field)
        if index is None:
            dual.clear()
        else:
            write_elements(dual, dual_elements(field, index, self.tangents), 0)
            dual._touch()

    def _keep_seeds(self, field: Field) -> None:
        """Keep the tangents of an input before Python first changes them."""
        # What kernels have changed by then was used, and is no input any more.
        if field in self._uses and field not in self._seeds:
            self._seeds[field] = np.array(values_of(field.duals[self.tangents]))

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        self._use(field, index)
        if not np.any(value.tangent):
            self.clear_tangents(field, index)
        elif (dual := make_dual(field, self.tangents)) is not None:
            self._keep_seeds(field)
            given = value.tangent.reshape(self.tangents, -1)
            shape = (-1,) if self.tangents == 1 else given.shape
            write_elements(dual, dual_elements(field, index, self.tangents), given.reshape(shape))
            dual._touch()

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        dual = source.duals.get(self.tangents)
        if dual is None or not dual.versions.dirty or not target.dtype.is_float:
            self._copied_constant(target, source, to, at)
            return
        if target.is_dual:
            raise AutodiffError(
                f"{target.name} is given the values of {source.name}, which have tangents themselves; duals "
                "have none",
                Span.of_caller(),
                hint="copy before the block of ds.ad.FwdMode",
            )
        self._use(target, to)
        self._use(source, at)
        self.watch.launched({source}, {target})
        made = make_dual(target, self.tangents)
        assert made is not None
        self._keep_seeds(target)
        if to is None and at is None:
            made.storage.copy_from(dual.storage)
        else:
            values = read_elements(dual, dual_elements(source, at, self.tangents))
            write_elements(made, dual_elements(target, to, self.tangents), values)
        made._touch()

    def _copied_constant(self, target: Field, source: Field, to: Index, at: Index) -> None:
        if not source.declares_dual and source not in self._cleared:
            # Of a field that has nothing to do with tangents, as if Python had written its values.
            self.wrote(target, to, source)
            return
        self._use(target, to)
        self._use(source, at)
        self.clear_tangents(target, to)

    def solved(self, out: Field, reads: Sequence[Field], tangents: np.ndarray | None) -> None:
        """Give a solution its tangents, a row for each (None: 0); it was computed of what `reads` held."""
        for f in (out, *reads):
            self.uses_all_of(f)
        self.watch.launched(set(reads), {out})
        if tangents is None or not tangents.any():
            self.clear_tangents(out, None)
            return
        dual = make_dual(out, self.tangents)
        assert dual is not None
        self._keep_seeds(out)
        k = len(out.shape)
        given = tangents.reshape(self.tangents, *values_of(out).shape)
        write_elements(dual, None, given[0] if self.tangents == 1 else np.moveaxis(given, 0, k))
        dual._touch()

    def uses_all_of(self, field: Field) -> None:
        """Note that something other than a launch may use all of a field."""
        self._use(field, None)

    def stopped(self, field: Field) -> None:
        self.clear_tangents(field, None)

    def lost(self, source: Provenance) -> None:
        """Nothing: what Python made of a field with a tangent is refused before it is written."""

    # ---- inputs

    def _use(self, field: Field, index: Index) -> None:
        if field in self._uses:
            part: Any = index if isinstance(index, Run) else tuple(enumerate(index or ()))
            self._uses[field].add(part)

    def _bring_up_to_date(self) -> None:
        for special, args in self._pending:
            for extent in self._users.get(special) or self._settled[special]:
                f = extent.object_of(args)
                if f in self._uses:
                    self._uses[f].add(extent.rows_of(args))
        self._pending.clear()

    # ---- values in Python

    def computed(
        self, made: Recorded, parts: Sequence[tuple[Recorded | FieldElement, Pull]]
    ) -> None:
        total = np.zeros((self.tangents, made.array.size))
        for operand, pull in parts:
            total += self._tangent_of(operand) @ _jacobian(operand, pull, made).T
        made.tangent = total.reshape(self.tangents, *made.array.shape)

    def _tangent_of(self, operand: Recorded | FieldElement) -> np.ndarray:
        """Return the tangents of a value, a row for each."""
        if isinstance(operand, Recorded):
            return np.reshape(operand.tangent, (self.tangents, -1))
        field = operand.field
        assert field is not None
        dual = field.duals[self.tangents]
        found = read_elements(dual, dual_elements(field, operand.index, self.tangents))
        return found.astype(np.float64).reshape(self.tangents, -1)

    # ---- what has no tangent

    def read_out(self, source: Provenance) -> int:
        field = source.field
        assert field is not None  # which is read now
        return self.watch.read_out(field)

    def declared_constant(self) -> None:
        self.watch.is_off = True

    def cut_short(self, what: str, span: Span | None) -> None:
        self.watch.cut_short(what, span)

    def written_elsewhere(self, f: Any, who: str, span: Span | None) -> None:
        """Note that another thread has written to a field meanwhile (`Witness`)."""
        self.watch.written_elsewhere(f, who, span)


def tangents_are_wanted() -> bool:
    """Return whether what runs now is to give tangents: in forward mode, for second derivatives too."""
    recorder: object = session.tape
    known = isinstance(recorder, (TangentRecorder, EnclosingRecorder))
    return known and bool(recorder.tangents)  # type: ignore[attr-defined]


def _jacobian(operand: Recorded | FieldElement, pull: Pull, made: Recorded) -> np.ndarray:
    """Return the derivative of an op in Python by one operand: a row for each component of the result."""
    shape = operand.array.shape if isinstance(operand, Recorded) else ()
    rows = []
    for k in range(made.array.size):
        # The rules of reverse mode, which map the derivative by the result to that by the operand.
        seed = np.zeros(made.array.shape)
        seed.reshape(-1)[k] = 1.0
        g = pull(seed)
        if g.shape != shape:
            g = g.sum() if not shape else np.broadcast_to(g, shape)
        rows.append(np.reshape(g, -1))
    return np.array(rows)
