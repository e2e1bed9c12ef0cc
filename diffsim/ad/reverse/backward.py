"""The backward pass over a record: the adjoints of its entries, last first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diffsim.ad.checks.broken_chains import check_chain
from diffsim.ad.checks.integrity import RecordIntegrity, check_kernels
from diffsim.ad.checks.lost_gradients import check_seeds
from diffsim.ad.checks.nan_search import NanSearch
from diffsim.ad.record.elements import Elements
from diffsim.ad.record.entries import Launched
from diffsim.ad.record.entry import Entry, fields_of
from diffsim.ad.record.overwrite_saves import PutAside, Saved, copied
from diffsim.ad.record.record import Record
from diffsim.ad.record.recorded_writes import RefusedLaunches
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.reverse.retain_grad import GradientRetainer
from diffsim.errors import GlobalDataAccessError
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.cut_gradients import Cuts
from diffsim.runtime.memory.storage import StorageSnapshot
from diffsim.runtime.session import session

_AT_ZERO = "set the gradients to 0 before the pass, tape.zero(): then they need no copy"

Hook = Callable[[int, dict[Field, Field]], Any]
"""Called with the number of a launch, and the fields it uses with their gradients."""


def run_adjoints(
    entries: Sequence[Entry],
    integrity: RecordIntegrity,
    *,
    retainer: GradientRetainer | None = None,
    nan: NanSearch | None = None,
    hooks: Sequence[Hook] = (),
    restores: bool = True,
    tangents: int = 0,
) -> None:
    """Run the adjoints from the gradients as they are.

    Args:
        entries: the record.
        integrity: hears of saved values that were lost on the way.
        retainer: keeps gradients of what is stored into.
        nan: looks for NaN after each adjoint.
        hooks: called after the adjoint of each launch.
        restores: whether values that were overwritten return to what they are now at the end.
        tangents: how many tangents the gradients have.
    """
    observed = retainer is not None or nan is not None or bool(hooks)
    if isinstance(entries, Record) and entries.is_plain and not observed:
        run_rows(entries)
        return
    run = _EntryRun(entries, integrity, retainer, nan, hooks, restores=restores)
    run.tangents = tangents
    try:
        # The chain rule in reverse: when an entry's adjoint runs, those of all later uses of its
        # results have run.
        if isinstance(entries, Record) and not run.observed:
            run_rows(entries, run)
        else:
            for entry in reversed(entries):
                entry.backward(run)
        if retainer is not None:
            retainer.finish()
    finally:
        # Also after a failure: the pass has changed gradients only, as far as the program can tell.
        integrity.restore_final(run.final)


def run_rows(record: Record, run: _EntryRun | None = None, *, left: int | None = None) -> None:
    """Run the adjoints along the columns of a record: no object is made for a plain launch.

    Args:
        record: the record.
        run: of the entries; None: there are none.
        left: how many entries are left, the first ones; None: all.
    """
    *columns, specials = record.columns()
    if left is not None:
        columns = [column[:left] for column in columns]
    refused = None if run is None else run.refused
    for number, thing, now in zip(*map(reversed, columns), strict=True):
        if number >= 0:
            special, single = specials[number]
            if special.differentiable:
                derivative, args = special.derivative, (thing,) if single else thing
                if refused is not None and refused.were_some:
                    # The next ones are likely to be refused, too.
                    now = refused.reading(derivative, args, now)
                try:
                    derivative.launch(args, now, 0)
                except GlobalDataAccessError as error:
                    refused = refused or RefusedLaunches(record)
                    refused.launch(error, derivative, args, now, 0)
        else:
            assert run is not None
            thing.backward(run)


def run_unobserved(record: Record, integrity: RecordIntegrity) -> None:
    """Run the adjoints of launches and plain writes, at which nothing looks: no object is made for it."""
    kernels, things, times, specials = record.columns()
    k = len(things)
    try:
        while k:
            k -= 1
            number = kernels[k]
            if number < 0:
                things[k].backward(_NOBODY)
                continue
            special, single = specials[number]
            if special.differentiable:
                args = (things[k],) if single else things[k]
                special.derivative.launch(args, times[k], 0)
    except GlobalDataAccessError:  # raised before anything has changed: the record may allow it
        run = None
        if not record.is_plain:
            run = _EntryRun(record, integrity, None, None, (), restores=True)
        run_rows(record, run, left=k + 1)


class _Nobody:
    """A backward pass that nobody observes; an adjoint that is refused ends it."""

    observed = False
    tangents = 0

    @property
    def refused(self) -> _Nobody:
        return self

    def launch(self, error: GlobalDataAccessError, *_: object) -> None:
        raise error

    def clearing(self, field: Field, index: Elements) -> None: ...


_NOBODY: Any = _Nobody()


class _EntryRun:
    """A backward pass that runs entry by entry (`BackwardRun` of `ad/record/entry.py`).

    Attributes:
        final: what was there when the pass began, of all that it restored older values of, in that order.
        tangents: how many tangents the gradients have; 0: none.
    """

    tangents = 0

    def __init__(
        self,
        entries: Sequence[Entry],
        integrity: RecordIntegrity,
        retainer: GradientRetainer | None,
        nan: NanSearch | None,
        hooks: Sequence[Hook],
        *,
        restores: bool,
    ) -> None:
        self.integrity = integrity
        self.retainer = retainer
        self.nan = nan
        self.hooks = hooks
        self.restores = restores
        self.observed = retainer is not None or nan is not None or bool(hooks)
        self.final: list[Saved] = []
        self.refused = RefusedLaunches(entries)
        self._put_aside = PutAside()
        # number of the step whose adjoint has run; counting costs a pass over the record, so only for hooks
        self._step = sum(isinstance(e, (Launched, Replaced)) for e in entries) if hooks else 0

    def adjoint(self, entry: Launched) -> None:
        special, nan = entry.special, self.nan
        if special.differentiable:
            derivative = special.derivative
            if self.retainer is not None:
                # The variant keeps what the adjoint clears; for most launches it is the derivative
                # itself.
                derivative = self.retainer.instead(derivative, entry.args)
            if nan is not None:
                nan.before(derivative, entry.args)
            entry.backward(self, derivative)
            if nan is not None:
                nan.after(entry, derivative)
        self._call_hooks(entry)

    def custom(self, entry: Replaced) -> None:
        before = None if self.retainer is None else self.retainer.before(entry)
        # What the user's function recomputes counts as what the launches saw.
        with session.recomputing() if entry.by_user else contextlib.nullcontext():
            entry.function()
        if self.retainer is not None:
            self.retainer.after(before)
        self._call_hooks(entry)

    def clearing(self, field: Field, index: Elements) -> None:
        if self.retainer is not None:
            self.retainer.clearing(field, index)

    def restore(self, saved: Saved) -> None:
        if self.restores:
            # Duals of second derivatives are no results: nobody reads them afterwards.
            keeps = not (self.tangents and saved.box[0].is_dual)
            if keeps and self._put_aside.add(saved.box):
                self.final.append(Saved(saved.box))
            saved.restore()
        else:
            with self.integrity.if_cut_short(saved.box[0]):
                saved.restore()

    def _call_hooks(self, entry: Entry) -> None:
        # Counts down, as the pass goes backwards; the numbers are those of the forward order.
        self._step -= 1
        if self.hooks:
            grads = {f: f.grad for f in fields_of([entry]) if f.grad is not None}
            for hook in self.hooks:
                hook(self._step, grads)


def sweep(record: Record, integrity: RecordIntegrity) -> None:
    """Run the adjoints from the gradients as they are: one part of a longer program.

    Values that were overwritten stay as they were at the start of that part.
    """
    # The same checks as for a whole tape: a step that is run again is a program of its own.
    integrity.check(record.firsts())
    check_kernels(record)
    check_chain(record)
    check_seeds(record)
    run_adjoints(record, integrity, restores=False)


def forget_values(entries: Iterable[Entry]) -> None:
    """Clear the gradients of followed values, which an earlier pass that failed may have left."""
    for entry in entries:
        entry.forget_gradient()


class ClearedGradients:
    """Clears the gradients of everything the program wrote, and adds their old values at the end.

    The adjoint of a store uses and clears the gradient of the element: a value left by an earlier pass would
    be propagated a second time.
    """

    def __init__(self, written: Iterable[Field]) -> None:
        self.before: list[tuple[Field, StorageSnapshot, Cuts]] = []
        for f in written:
            grad = f.adjoint
            # `dirty` answers for most fields without reading memory: their gradients were never written
            # since the last clear.
            if grad is not None and grad.versions.dirty:
                # Only what is not 0 anyway needs a copy, which costs as much memory as the field.
                if grad.storage.may_be_nonzero():
                    was = copied((grad, None), _AT_ZERO)
                    self.before.append((grad, was, grad.versions.cuts))
                grad.clear()

    def restore(self) -> None:
        """Add the old values after the pass."""
        for grad, was, cuts in self.before:
            grad.storage.add(was)
            grad._touch()
            grad.versions.disowned(cuts)
