"""Active values stored to fields without gradient, searched for before each backward pass.

Such a store ends the chain of derivatives. That is an error only if the value is used again later: a value
that is stored for output alone breaks nothing. So the search follows lost values through the record in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffsim.errors import AutodiffError, MissingGradientError, Span, together
from diffsim.ir.nodes import Atomic, Load, Mem, Store
from diffsim.ir.traversal import task_statements
from diffsim.passes.autodiff.activity import Activity, missing_gradient, second_order
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.packed_arrays import given_of
from diffsim.runtime.session import session
from diffsim.runtime.variable_names import name_in_launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diffsim.ad.record.entries import Copied, Launched, Wrote
    from diffsim.ad.record.entry import Entry
    from diffsim.ad.record.record import Record
    from diffsim.runtime.kernels.specialization import Specialization


class Loss(NamedTuple):
    """Where an active value was lost.

    Attributes:
        memory: what it was stored to (referenced, so that its id is not reused).
        place: the statement.
        second: whether the value was a gradient.
        by_python: whether Python computed it.
        in_function: whether a function with a gradient of its own stored it.
        may_race: whether other lanes read elements of the memory: with a gradient, that could be refused.
    """

    memory: Any
    place: Store | Atomic | Span | None
    second: bool
    by_python: bool = False
    in_function: bool = False
    may_race: bool = False


def check_chain(entries: Record) -> None:
    """Refuse a program in which an active value passes through a float field without gradient.

    Raises:
        MissingGradientError, AutodiffError: with the lines where values were lost.
    """
    if found := broken_chains(entries):
        raise together(found)


def broken_chains(entries: Record) -> list[AutodiffError]:
    """Return an error for each place where an active value that is used later was lost."""
    # Nearly all programs end here: the search itself goes through every entry in order.
    if not any(entry.may_break_chain() for entry in entries.firsts()):
        return []
    search = _Search()
    for entry in entries:
        entry.follow(search)
    return search.errors


class _Search:
    """Goes through a record in order (`ChainSearch` of `ad/record/entry.py`).

    Attributes:
        broken: for each memory (`key`) that an active value was lost in, where that was.
        errors: the uses of such values.
    """

    def __init__(self) -> None:
        self.errors: list[AutodiffError] = []
        self.broken: dict[int, Loss] = {}

    def launched(self, entry: Launched) -> None:
        special, activity = entry.special, entry.special.derivative.activity
        # Without a lost value so far and without a new one, a launch can neither lose nor use any.
        if not (self.broken or activity.leaks or activity.second_leaks):
            return
        if special.mode.is_detached:  # it stores constants only
            return
        objects = {m: special.object_of(m, entry.given) for m in special.ir.mems}
        lost: dict[int, Loss] = {}
        for leaks, second in ((activity.second_leaks, True), (activity.leaks, False)):
            # Reversed, so that the first statement is the one that stays in the dictionary, for the
            # message.
            for s in reversed(leaks):
                racing = _may_race(special, s)
                lost[key(objects[s.mem])] = Loss(objects[s.mem], s, second, may_race=racing)
        # What was lost before is looked up before this launch's own losses are added.
        where_broken = {m: self.find(f) for m, f in objects.items()}
        for mem, found in where_broken.items():
            # Within a kernel a value may be lost in one statement and used in a later one.
            if found is not None or mem in special.derivative.read_after_leak:
                where = found or lost[key(objects[mem])]
                self.errors += _follow_value(special, mem, where, objects, lost)
        for name, where in lost.items():
            self.broken.setdefault(name, where)

    def launched_inside(self, entry: Launched, special: Specialization) -> None:
        """Note what a launch in a function with a gradient of its own stores to fields without gradient.

        The gradient given by the user cannot account for those: they have no gradient to read it from.
        """
        try:
            leaks = list(special.derivative.unreachable_stores(entry.given))
        except AutodiffError:  # it reads gradients, so it is not differentiated itself
            return
        for s in leaks:
            f = special.object_of(s.mem, entry.given)
            self.broken.setdefault(key(f), Loss(f, s, False, in_function=True))

    def wrote(self, entry: Wrote) -> None:
        # A whole field set from Python holds constants again: the lost value is gone.
        if entry.index is None:
            self.broken.pop(key(entry.field), None)
        if entry.lost_at is not None:
            lost = Loss(entry.field, entry.lost_at, False, by_python=True)
            self.broken.setdefault(key(entry.field), lost)

    def copied(self, entry: Copied) -> None:
        target, source = entry.target, entry.source
        where = self.broken.get(key(source))
        if where is None and source.is_grad:
            where = Loss(source, entry.span, True)
        # Three cases: into a gradient the lost value must not get; a field without one passes it on, or
        # loses it newly; a copy of constants over the whole field ends it.
        if target.adjoint is not None:
            if where is not None:
                self.errors.append(_error(where, f"a copy to {target.name}"))
        elif target.dtype.is_float and not target.is_grad:
            if where is not None:
                self.broken[key(target)] = where
            elif source.adjoint is not None:
                self.broken[key(target)] = Loss(target, entry.span, False)
            elif entry.to is None:
                self.broken.pop(key(target), None)

    def ran(self, steps: Sequence[Sequence[Entry]]) -> None:
        """Follow values through the steps of a rollout, nearly all of which are one object."""
        settled: set[tuple[int, frozenset[int]]] = set()
        for step in steps:
            before = frozenset(self.broken)
            if (id(step), before) in settled:
                continue
            for entry in step:
                entry.follow(self)
            if self.broken.keys() == before:
                settled.add((id(step), before))

    def find(self, f: Any) -> Loss | None:
        """Return where an active value was lost in a memory, also through another view of it."""
        found = self.broken.get(key(f))
        if found is None and isinstance(f, np.ndarray):
            arrays = (w for w in self.broken.values() if isinstance(w[0], np.ndarray))
            # Compares bounds, which errs on the safe side.
            mine = given_of(f)
            found = next((w for w in arrays if np.may_share_memory(mine, given_of(w[0]))), None)
        return found


def _may_race(special: Specialization, store: Store | Atomic) -> bool:
    """Return whether the parallel loop around a store loads other elements of the same memory."""
    for task in special.ir.tasks:
        inside = list(task_statements(task)) if task.axes else []
        # By their lines: the statement may be that of the kernel before it was made ready for its adjoint.
        stores = [s for s in inside if isinstance(s, type(store)) and s.span == store.span]
        loads = [s for s in inside if isinstance(s, Load) and s.mem.name == store.mem.name]
        if any(load.index != s.index for s in stores for load in loads):
            return True
    return False


def _follow_value(
    special: Specialization, mem: Mem, where: Loss, objects: dict[Mem, Any], lost: dict[int, Loss]
) -> list[AutodiffError]:
    """Follow a value lost in `mem` through a kernel, and add the memories in which it is lost again.

    Returns:
        An error if it gets into a field with a gradient, or is returned.
    """
    # Activity analysis with the lost value's memory as the only source: whether it reaches anything
    # that has a gradient, or is merely stored for output.
    flow = Activity(special.ir, frozenset([mem]))
    for t in special.ir.tasks:
        for s in task_statements(t):
            if isinstance(s, (Store, Atomic)) and s.mem.grad is not None and s.value in flow.values:
                return [_error(where, special.kernel.source.name)]
    if special.ir.result in flow.temps:
        return [_error(where, special.kernel.source.name)]
    for leak in flow.leaks:
        f = objects[leak.mem]
        lost.setdefault(key(f), Loss(f, leak, where.second))
    return []


def key(f: Any) -> int:
    """Return the key of a memory: views of one NumPy array have the same."""
    if isinstance(f, DeviceArray):
        return -f.memory  # negative: not the id of any object
    f = given_of(f)
    while isinstance(f, np.ndarray) and isinstance(f.base, np.ndarray):
        f = f.base
    return id(f)


def _error(where: Loss, reader: str) -> AutodiffError:
    """Return the error for a lost value that is used by a kernel or copy."""
    thing, place, second, *_ = where
    if isinstance(place, (Store, Atomic)):
        name = name_in_launch(place.mem, thing)
        if second:
            return second_order(place)
        return _with_switch(missing_gradient(place, reader, name), where)
    name = thing.name if isinstance(thing, Field) else "the array"
    if second:
        return AutodiffError(
            f"{reader} reads the gradient {name}, and a tape differentiates once",
            place,
            hint="copy it before the tape starts: then it is a constant",
        )
    error = MissingGradientError(
        f"{name} has no gradient and is between the inputs and the loss ({reader} reads it)",
        place,
        # Python's own arithmetic has no gradient, whatever the field has.
        hint="compute it in a kernel"
        if where.by_python
        else f"declare {name} with needs_grad=True",
    )
    return _with_switch(error, where)


def _with_switch(error: MissingGradientError, where: Loss) -> AutodiffError:
    """Return the error with the advice to lift the rule, where that is known to give the gradient."""
    # A tape can lend a field a gradient, unless Python made the value; with it a race would be refused.
    may_lend = isinstance(where.memory, Field) and not (where.by_python or where.in_function)
    may_lend = may_lend and not where.may_race
    return error.advising() if may_lend and not session.options.lifts_rules else error
