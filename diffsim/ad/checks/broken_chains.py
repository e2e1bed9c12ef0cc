"""Active values stored to fields without gradient, searched for before each backward pass.

Such a store ends the chain of derivatives. That is an error only if the value is used again later: a value
that is stored for output alone breaks nothing. So the search follows lost values through the record in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import AutodiffError, MissingGradientError, Span
from diffsim.ir.nodes import Atomic, Mem, Store
from diffsim.ir.traversal import task_statements
from diffsim.passes.autodiff.activity import Activity, missing_gradient, second_order
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.variable_names import name_in_launch

if TYPE_CHECKING:
    from diffsim.ad.record.entries import Copied, Launched, Wrote
    from diffsim.ad.record.record import Record
    from diffsim.runtime.kernels.specialization import Specialization

Loss = tuple[Any, Store | Atomic | Span | None, bool]
"""Where an active value was lost: the memory (referenced, so that its id is not reused), the statement, and
whether the value was a gradient."""


def check_chain(entries: Record) -> None:
    """Refuse a program in which an active value passes through a float field without gradient.

    Raises:
        MissingGradientError, AutodiffError: with the line where the value was lost.
    """
    # Nearly all programs end here: the search itself goes through every entry in order.
    if not any(entry.may_break_chain() for entry in entries.firsts()):
        return
    search = _Search()
    for entry in entries:
        entry.follow(search)


class _Search:
    """Goes through a record in order (`ChainSearch` of `ad/record/entry.py`).

    Attributes:
        broken: for each memory (`key`) that an active value was lost in, where that was.
    """

    def __init__(self) -> None:
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
                lost[key(objects[s.mem])] = objects[s.mem], s, second
        # What was lost before is looked up before this launch's own losses are added.
        where_broken = {m: self.find(f) for m, f in objects.items()}
        for mem, found in where_broken.items():
            # Within a kernel a value may be lost in one statement and used in a later one.
            if found is not None or mem in special.derivative.read_after_leak:
                _follow_value(special, mem, found or lost[key(objects[mem])], objects, lost)
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
            self.broken.setdefault(key(f), (f, s, False))

    def wrote(self, entry: Wrote) -> None:
        # A whole field set from Python holds constants again: the lost value is gone.
        if entry.index is None:
            self.broken.pop(key(entry.field), None)
        if entry.lost_at is not None:
            self.broken.setdefault(key(entry.field), (entry.field, entry.lost_at, False))

    def copied(self, entry: Copied) -> None:
        target, source = entry.target, entry.source
        where = self.broken.get(key(source))
        if where is None and source.is_grad:
            where = (source, entry.span, True)
        # Three cases: into a gradient the lost value must not get; a field without one passes it on, or
        # loses it newly; a copy of constants over the whole field ends it.
        if target.adjoint is not None:
            if where is not None:
                raise _error(where, f"a copy to {target.name}")
        elif target.dtype.is_float and not target.is_grad:
            if where is not None:
                self.broken[key(target)] = where
            elif source.adjoint is not None:
                self.broken[key(target)] = (target, entry.span, False)
            elif entry.to is None:
                self.broken.pop(key(target), None)

    def find(self, f: Any) -> Loss | None:
        """Return where an active value was lost in a memory, also through another view of it."""
        found = self.broken.get(key(f))
        if found is None and isinstance(f, np.ndarray):
            arrays = (w for w in self.broken.values() if isinstance(w[0], np.ndarray))
            found = next((w for w in arrays if np.may_share_memory(f, w[0])), None)
        return found


def _follow_value(
    special: Specialization, mem: Mem, where: Loss, objects: dict[Mem, Any], lost: dict[int, Loss]
) -> None:
    """Follow a value lost in `mem` through a kernel, and add the memories in which it is lost again.

    Raises:
        AutodiffError: it gets into a field with a gradient, or is returned.
    """
    # Activity analysis with the lost value's memory as the only source: whether it reaches anything
    # that has a gradient, or is merely stored for output.
    flow = Activity(special.ir, frozenset([mem]))
    for t in special.ir.tasks:
        for s in task_statements(t):
            if isinstance(s, (Store, Atomic)) and s.mem.grad is not None and s.value in flow.values:
                raise _error(where, special.kernel.source.name)
    if special.ir.result in flow.temps:
        raise _error(where, special.kernel.source.name)
    for leak in flow.leaks:
        f = objects[leak.mem]
        lost.setdefault(key(f), (f, leak, where[2]))


def key(f: Any) -> int:
    """Return the key of a memory: views of one NumPy array have the same."""
    if isinstance(f, DeviceArray):
        return -f.memory  # negative: not the id of any object
    while isinstance(f, np.ndarray) and isinstance(f.base, np.ndarray):
        f = f.base
    return id(f)


def _error(where: Loss, reader: str) -> AutodiffError:
    """Return the error for a lost value that is used by a kernel or copy."""
    thing, place, second = where
    if isinstance(place, (Store, Atomic)):
        name = name_in_launch(place.mem, thing)
        return second_order(place) if second else missing_gradient(place, reader, name)
    name = thing.name if isinstance(thing, Field) else "the array"
    if second:
        return AutodiffError(
            f"{reader} reads the gradient {name}, and diffsim differentiates once only",
            place,
            hint="copy it before the tape starts: then it is a constant",
        )
    return MissingGradientError(
        f"{name} has no gradient and stands between the inputs and the loss ({reader} reads it)",
        place,
        hint=f"declare {name} with needs_grad=True",
    )
