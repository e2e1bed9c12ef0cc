"""Chains of derivatives that break in a field without gradient, searched for before each backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.entries import Copied, Entry, Launched, Replaced, Wrote, flat
from diffsim.errors import AutodiffError, MissingGradientError, Span
from diffsim.ir.nodes import Atomic, Store
from diffsim.ir.traversal import task_statements
from diffsim.passes.autodiff.activity import Activity, missing_gradient, second_order
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.ad.record.record import Record
    from diffsim.runtime.kernels.specialization import Specialization

Broken = dict[int, tuple[Any, Store | Atomic | Span | None, bool]]
"""Memories that an active value was lost in: the object (kept, so that its id stays its own), where, and
whether the value was a gradient."""


def check_chain(entries: Record) -> None:
    """Refuse a program in which an active value passes through a float field without gradient.

    Raises:
        MissingGradientError, AutodiffError: with the line where the value was lost.
    """
    if not any(map(_may_break, entries.firsts())):
        return
    broken: Broken = {}
    for entry in entries:
        if isinstance(entry, Launched):
            activity = entry.special.derivative.activity
            if broken or activity.leaks or activity.second_leaks:
                follow(entry, broken)
        elif isinstance(entry, Copied):
            follow_copy(entry, broken)
        elif isinstance(entry, Wrote):
            if entry.index is None:
                broken.pop(key(entry.field), None)
            if entry.lost is not None:
                broken.setdefault(key(entry.field), (entry.field, entry.lost, False))
        elif isinstance(entry, Replaced):
            for e in flat([entry]):
                if isinstance(e, Launched) and e.inside is not None:
                    follow_inside(e, e.inside, broken)


def _may_break(entry: Entry) -> bool:
    if isinstance(entry, Launched):
        return bool(
            entry.special.derivative.activity.leaks
            or entry.special.derivative.activity.second_leaks
        )
    return isinstance(entry, (Copied, Replaced)) or (
        isinstance(entry, Wrote) and entry.lost is not None
    )


def follow(entry: Launched, broken: Broken) -> None:
    """One launch's part in the search for broken chains."""
    special, activity = entry.special, entry.special.derivative.activity
    if special.mode.is_detached:  # what it stores is a constant
        return
    objects = {m: special.object_of(m, entry.given) for m in special.ir.mems}
    lost = {key(objects[s.mem]): (objects[s.mem], s, True) for s in reversed(activity.second_leaks)}
    lost.update({key(objects[s.mem]): (objects[s.mem], s, False) for s in reversed(activity.leaks)})
    inside = special.derivative.read_after_leak
    where_broken = {m: find(f, broken) for m, f in objects.items()}
    tainted = [m for m, where in where_broken.items() if m in inside or where is not None]
    for mem in tainted:
        where = where_broken[mem] or lost[key(objects[mem])]
        flow = Activity(special.ir, frozenset([mem]))
        for t in special.ir.tasks:
            for s in task_statements(t):
                if (
                    isinstance(s, (Store, Atomic))
                    and s.mem.grad is not None
                    and s.value in flow.values
                ):
                    raise _broken(where, special.kernel.source.name)
        if special.ir.result in flow.temps:
            raise _broken(where, special.kernel.source.name)
        for leak in flow.leaks:
            f = objects[leak.mem]
            lost.setdefault(key(f), (f, leak, where[2]))
    for name, where in lost.items():
        broken.setdefault(name, where)


def follow_inside(entry: Launched, special: Specialization, broken: Broken) -> None:
    """A launch in a function with a gradient of its own: what it leaves in fields without gradient.

    The gradient written by hand can not be asked about them, for lack of a place to ask it in.
    """
    try:
        leaks = special.derivative.activity.leaks
    except AutodiffError:  # it uses gradients, and is not differentiated itself
        return
    for s in leaks:
        f = special.object_of(s.mem, entry.given)
        broken.setdefault(key(f), (f, s, False))


def follow_copy(entry: Copied, broken: Broken) -> None:
    """A copy's part in it."""
    target, source = entry.target, entry.source
    where = broken.get(key(source))
    if where is None and source.is_grad:
        where = (source, entry.span, True)
    if target.grad is not None:
        if where is not None:
            raise _broken(where, f"a copy to {target.name}")
    elif target.dtype.is_float and not target.is_grad:
        if where is not None:
            broken[key(target)] = where
        elif source.grad is not None:
            broken[key(target)] = (target, entry.span, False)
        elif entry.to is None:
            broken.pop(key(target), None)


def find(f: Any, broken: Broken) -> tuple[Any, Store | Atomic | Span | None, bool] | None:
    """Where an active value was lost in a memory, under whatever name."""
    found = broken.get(key(f))
    if found is None and isinstance(f, np.ndarray):
        arrays = (w for w in broken.values() if isinstance(w[0], np.ndarray))
        found = next((w for w in arrays if np.may_share_memory(f, w[0])), None)
    return found


def key(f: Any) -> int:
    """What a memory is known by: views of one NumPy array are one memory."""
    if isinstance(f, DeviceArray):
        return -f.memory  # no object's id
    while isinstance(f, np.ndarray) and isinstance(f.base, np.ndarray):
        f = f.base
    return id(f)


def _broken(where: tuple[Any, Store | Atomic | Span | None, bool], reader: str) -> AutodiffError:
    thing, place, second = where
    if isinstance(place, (Store, Atomic)):
        return second_order(place) if second else missing_gradient(place, reader)
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
