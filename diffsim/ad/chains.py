"""Chains of derivatives that a tape must refuse: an active value passes through a float without gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.ad.entries import Copied, Entry, Launched, Wrote
from diffsim.errors import AutodiffError, MissingGradientError, Span
from diffsim.ir.nodes import Atomic, Store
from diffsim.ir.walk import task_statements
from diffsim.passes.activity import Activity, missing_gradient, second_order
from diffsim.runtime.field import Field
from diffsim.runtime.foreign import DeviceArray

_Broken = dict[int, tuple[Any, Store | Atomic | Span | None, bool]]
"""Memories that an active value was lost in: the object (kept, so that its id stays its own), where, and
whether the value was a gradient."""


def check_chain(entries: list[Entry]) -> None:
    """Refuse a program in which an active value passes through a float field without gradient."""
    broken: _Broken = {}
    for entry in entries:
        if isinstance(entry, Launched):
            activity = entry.special.activity
            if broken or activity.leaks or activity.second_leaks:
                _follow(entry, broken)
        elif isinstance(entry, Copied):
            _follow_copy(entry, broken)
        elif isinstance(entry, Wrote) and entry.index is None:
            broken.pop(_key(entry.field), None)


def _follow(entry: Launched, broken: _Broken) -> None:
    """One launch's part in the search for broken chains."""
    special, activity = entry.special, entry.special.activity
    objects = {m: special.object_of(m, entry.given) for m in special.ir.mems}
    lost = {
        _key(objects[s.mem]): (objects[s.mem], s, True) for s in reversed(activity.second_leaks)
    }
    lost.update(
        {_key(objects[s.mem]): (objects[s.mem], s, False) for s in reversed(activity.leaks)}
    )
    inside = special.read_after_leak
    tainted = [m for m, f in objects.items() if m in inside or _key(f) in broken]
    for mem in tainted:
        key = _key(objects[mem])
        where = broken.get(key) or lost[key]
        flow = Activity(special.ir, frozenset([mem]))
        for t in special.ir.tasks:
            for s in task_statements(t):
                if (
                    isinstance(s, (Store, Atomic))
                    and s.mem.grad is not None
                    and s.value in flow.values
                ):
                    raise _broken(where, special.kernel.source.name)
        if special.ir.result in flow.temps and not special.is_detached:
            raise _broken(where, special.kernel.source.name)
        for leak in flow.leaks:
            f = objects[leak.mem]
            lost.setdefault(_key(f), (f, leak, where[2]))
    for key, where in lost.items():
        broken.setdefault(key, where)


def _follow_copy(entry: Copied, broken: _Broken) -> None:
    """A copy's part in it."""
    target, source = entry.target, entry.source
    where = broken.get(_key(source))
    if where is None and source.is_grad:
        where = (source, entry.span, True)
    if target.grad is not None:
        if where is not None:
            raise _broken(where, f"a copy to {target.name}")
        broken.pop(_key(target), None)
    elif target.dtype.is_float and not target.is_grad:
        if where is not None:
            broken[_key(target)] = where
        elif source.grad is not None:
            broken[_key(target)] = (target, entry.span, False)
        else:
            broken.pop(_key(target), None)


def _key(f: Any) -> int:
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
