"""Packing: finds loads of far-apart elements that a copy with another order of axes puts side by side.

    for %i, %j in box {                      copy of w: w'[k, j] = w[j, k], made before the lanes start
      for %k in 0..64 {             ->
        %t = load w[%j, %k]                      %t = load w'[%k, %j]

Lanes along the last axis, here %j, run as vectors. What neighbours load of `w` is 64 scalars apart, a
gather, which costs as much as a load for each lane. Where each element is loaded many times and the memory
is small, a copy in which the lanes' axis comes last is made once for each launch (packing, as libraries for
products of matrices do); then neighbours load one vector.

Right where the task does not write the memory: the copy holds the numbers that the loads would have found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from diffsim.ir.layout import strides_of
from diffsim.ir.nodes import Atomic, Block, Const, For, Load, Mem, Task, Value, While
from diffsim.ir.schedules import Packed, Privatized, scalars_within
from diffsim.ir.traversal import blocks, statements
from diffsim.ir.types import size_of
from diffsim.passes.analysis.affine import affine_forms, runs_along_memory, task_definitions
from diffsim.passes.analysis.divergence import divergent_values, written_memories
from diffsim.passes.transforms.privatize import IndexPrefix, common_prefix

_MOST_SCALARS = 1 << 16  # of all copies: one thread makes them, and they should stay in its cache
_LEAST_REUSE = 8  # loads of an element that make up for copying it
_UNKNOWN_COUNT = 16
_MOST_SLOTS = 16
_MOST_REORDERED = (
    1 << 14
)  # scalars of a private copy: each chunk clears one, and should keep it near
_LEAST_ADDED = 64  # additions to each

Loops = tuple[For | While, ...]


def find_packed(task: Task) -> tuple[Packed, ...]:
    """Return the copies that a task whose lanes run as vectors should load from."""
    defs = task_definitions(task)
    groups: dict[tuple[Mem, int, IndexPrefix], list[Load]] = {}
    for s, loops in _loads(task.body, ()):
        axis = _axis_of_lanes(task, s)
        if axis is not None and _reuse(task, s, loops) >= _LEAST_REUSE:
            prefix = common_prefix([s], defs)[:axis]
            groups.setdefault((s.mem, axis, prefix), []).append(s)
    found: list[Packed] = []
    left = _MOST_SCALARS
    for (mem, axis, prefix), loads in groups.items():
        size = scalars_within(mem, len(prefix))
        if size <= left:
            left -= size
            found.append(Packed(mem, prefix, axis, frozenset(loads)))
    return tuple(found)


def reordered(task: Task) -> tuple[Privatized, ...]:
    """Return a task's private copies, in the order of the lanes where these add to elements far apart.

    The adjoint of a convolution adds to `w[%o, %c, %a, %b]` with lanes along %o.
    """
    found: list[Privatized] = []
    ends = task.bounds.yields
    lanes = math.prod(extent_of(lo, hi) for lo, hi in zip(ends[::2], ends[1::2], strict=True))
    forms = affine_forms(task)
    along = {
        x
        for s in statements(task.body)
        if isinstance(s, For) and runs_along_memory(s, forms)
        for x in s.body.stmts
    }
    for p in task.privatized:
        axes = {_divergent_axis(task, s) for s in p.atomics}
        axis = axes.pop()
        # Loops along memory are better vectors themselves.
        may = not axes and p.slots(_MOST_SLOTS) == 1 and along.isdisjoint(p.atomics)
        if may and axis is not None and axis >= len(p.prefix):
            near = strides_of(p.mem)[axis] == size_of(p.mem.dtype)
            pays = p.scalars <= _MOST_REORDERED and lanes * p.count >= _LEAST_ADDED * p.scalars
            if pays and not near:
                p = Privatized(p.mem, p.prefix, p.atomics, p.count, p.meeting, axis)
        found.append(p)
    return tuple(found)


def _loads(block: Block, loops: Loops) -> Iterator[tuple[Load, Loops]]:
    """Yield the loads of a block, and the loops around each."""
    for s in block.stmts:
        if isinstance(s, Load):
            yield s, loops
        inside = (*loops, s) if isinstance(s, (For, While)) else loops
        for b in blocks(s):
            yield from _loads(b, inside)


def _axis_of_lanes(task: Task, s: Load) -> int | None:
    """Return the axis of a memory along which neighbouring lanes load neighbours, if a copy may be made."""
    mem = s.mem
    if not mem.is_shaped or mem.place is not None:
        return None
    return None if mem in written_memories(task) else _divergent_axis(task, s)


def _divergent_axis(task: Task, s: Load | Atomic) -> int | None:
    """Return the axis of a memory along which neighbouring lanes access neighbours, and no other one."""
    lane = task.axes[-1]
    forms, divergent = affine_forms(task), divergent_values(task)
    along = [k for k, i in enumerate(s.index) if i in divergent]
    if len(along) != 1 or along[0] >= s.mem.rank:
        return None
    form = forms.form(s.index[along[0]])
    return along[0] if form is not None and form.get(lane) == 1 else None


def _reuse(task: Task, s: Load, loops: Loops) -> int:
    """Estimate how often each element is loaded: the iterations of all loops that its index ignores."""
    forms = affine_forms(task)
    follows: set[Value | None] = set()
    for i in s.index:
        form = forms.form(i)
        if form is None:
            return 1
        follows.update(form)
    bounds = task.bounds.yields
    count = 1
    for k, axis in enumerate(task.axes):
        if axis not in follows:
            count *= extent_of(bounds[2 * k], bounds[2 * k + 1])
    for loop in loops:
        if isinstance(loop, While):
            count *= _UNKNOWN_COUNT
        elif loop.index not in follows:
            count *= extent_of(loop.lo, loop.hi)
    return count


def extent_of(lo: Value, hi: Value) -> int:
    """Estimate the iterations from one bound to another."""
    if isinstance(lo, Const) and isinstance(hi, Const):
        return max(0, int(hi.value) - int(lo.value))
    return _UNKNOWN_COUNT
