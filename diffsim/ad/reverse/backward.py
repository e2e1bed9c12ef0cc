"""The backward pass over a record: the adjoints of its entries, last first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diffsim.ad.checks.broken_chains import check_chain
from diffsim.ad.checks.integrity import RecordIntegrity, check_kernels
from diffsim.ad.checks.lost_gradients import check_seeds
from diffsim.ad.checks.nan_search import NanWatch
from diffsim.ad.record.entries import Computed, Copied, Entry, Launched, Replaced, Wrote, fields_of
from diffsim.ad.record.overwrite_saves import Saved, copied
from diffsim.ad.record.record import Record
from diffsim.ad.reverse.retain_grad import GradientRetainer
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.cut_gradients import Cuts
from diffsim.runtime.memory.storage import StorageSnapshot
from diffsim.runtime.session import session

_AT_ZERO = "set the gradients to 0 before the pass, tape.zero(): then they need no copy"

Hook = Callable[[int, dict[Field, Field]], Any]
"""Called with the number of a launch and the gradients of what it read."""


def run_adjoints(
    entries: Sequence[Entry],
    gaps: RecordIntegrity,
    *,
    keeper: GradientRetainer | None = None,
    nan: NanWatch | None = None,
    hooks: Sequence[Hook] = (),
    put_back: bool = True,
) -> None:
    """Run the adjoints from the gradients as they are.

    Args:
        entries: the record.
        gaps: hears of saved values that were lost on the way.
        keeper: keeps gradients of what is stored into.
        nan: looks for NaN after each adjoint.
        hooks: called after the adjoint of each launch.
        put_back: whether values that were overwritten return to what they are now at the end.
    """
    final: list[Saved] = []
    step = sum(isinstance(e, (Launched, Replaced)) for e in entries) if hooks else 0
    plain = keeper is None and nan is None and not hooks
    try:
        for entry in reversed(entries):
            if isinstance(entry, Launched):
                step -= 1
                if plain:
                    entry.backward()
                else:
                    _run_adjoint(entry, keeper, nan)
                    _tell(hooks, step, entry)
            elif isinstance(entry, Saved):
                if put_back:
                    final.append(Saved(entry.box))
                    entry.put()
                else:
                    with gaps.if_cut_short(entry.box[0]):
                        entry.put()
            elif isinstance(entry, (Wrote, Copied, Computed)):
                if keeper is not None:
                    keeper.taken_by(entry)
                entry.backward()
            elif isinstance(entry, Replaced):
                step -= 1
                before = None if keeper is None else keeper.before(entry)
                with session.recomputing() if entry.by_user else contextlib.nullcontext():
                    entry.backward()
                if keeper is not None:
                    keeper.after(before)
                _tell(hooks, step, entry)
        if keeper is not None:
            keeper.finish()
    finally:
        gaps.put_back(final)


def sweep(record: Record, gaps: RecordIntegrity) -> None:
    """Run the adjoints from the gradients as they are: one part of a longer program.

    Values that were overwritten stay as they were at the start of that part.
    """
    gaps.check(record.firsts())
    check_kernels(record)
    check_chain(record)
    check_seeds(record)
    run_adjoints(record, gaps, put_back=False)


def _run_adjoint(entry: Launched, keeper: GradientRetainer | None, nan: NanWatch | None) -> None:
    special = entry.special
    if not special.differentiable:
        return
    derivative = special.derivative
    if keeper is not None:
        derivative = keeper.instead(derivative, entry.args)
    if nan is not None:
        nan.before(derivative.accesses.writes, special, entry.args)
    entry.backward(derivative)
    if nan is not None:
        nan.after(derivative.accesses.writes, entry, adjoint=True)


def _tell(hooks: Sequence[Hook], step: int, entry: Launched | Replaced) -> None:
    if hooks:
        grads = {f: f.grad for f in fields_of([entry]) if f.grad is not None}
        for hook in hooks:
            hook(step, grads)


def make_adjoints(entries: Iterable[Entry]) -> None:
    """Have all adjoints ready: one that can not be made is refused before any gradient is touched."""
    needed = {
        e.special
        for e in entries
        if isinstance(e, Launched) and (e.returned is None or e.special.accesses.writes)
    }
    for special in needed:
        if special.differentiable:
            special.derivative.launch  # noqa: B018 - compiled now


def forget_values(entries: Iterable[Entry]) -> None:
    """Gradients of values that the tape followed start from nothing."""
    for entry in entries:
        if isinstance(entry, Launched) and entry.returned is not None:
            entry.returned.take()
        elif isinstance(entry, Computed):
            entry.made.take()


class Zeroed:
    """The gradients of all that was written: set to 0, and what they were is added at the end."""

    def __init__(self, written: Iterable[Field]) -> None:
        self.before: list[tuple[Field, StorageSnapshot, Cuts]] = []
        for f in written:
            grad = f.grad
            if grad is not None and grad.versions.dirty:
                if grad.storage.may_be_nonzero():
                    was = copied((grad, None), _AT_ZERO)
                    self.before.append((grad, was, grad.versions.cuts))
                grad.clear()

    def add_back(self) -> None:
        """The pass has ended."""
        for grad, was, cuts in self.before:
            grad.storage.add(was)
            grad._touch()
            grad.versions.writer = None  # no statement of the user's
            grad.versions.cuts = cuts
