"""Prefetches: a block of lanes asks for the elements that a later block accesses anywhere in a large field.

    c = which[k]                      c = which[k]
    x = points[c]               ->    x = points[c];           prefetch points[which[k + 32]]
    points.grad[c] += ...             points.grad[c] += ...;   prefetch points.grad[which[k + 32]]

Lanes whose elements an index tells wait for memory. The processor looks ahead by some hundred instructions,
which is less than a block; prefetches have the time of some blocks. They change no value and cannot fault,
so the address may be anything. What it is computed from is loaded, and such a load must not fault:

- it is a statement of the task's own block, so every lane makes it, whatever the data are;
- nothing that the task writes is loaded, so the lane itself will load the same from the same place;
- the later block is a whole one of the same row, hence lanes of the task (its box, if not its chunk), or
  else this block itself;
- there is no check in the task, as with `debug=True`, that could end the launch before such a lane runs.

Indices of indices are left alone: their loads would wait themselves.

Such lanes also ask for lines of what they access side by side, as the indices are themselves, some blocks
before they need them: that takes no load. Between accesses from anywhere the processor does not fetch these
lines in time, and nothing else of a block can begin before its indices are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from diffsim.backends.llvm.module import memory_type
from diffsim.backends.simd import lane_offsets, neighbours
from diffsim.backends.simd.simd_values import Index
from diffsim.ir.nodes import LEAVES, Atomic, Check, Let, Load, Mem, Stmt, Store, Task, Value
from diffsim.ir.schedules import Access, Neighbours
from diffsim.ir.traversal import statements, uses
from diffsim.ir.types import size_of

if TYPE_CHECKING:
    from diffsim.backends.simd.simd import SimdLowering

_AHEAD = 32  # lanes, 0.1 µs or more: what memory takes
_STREAM_AHEAD = 128  # lanes: before the indices of those _AHEAD are read
_FEWEST_BYTES = 1 << 19  # of a field that does not stay in a core's cache beside others
_LONGEST = 24  # statements that are computed twice
_MOST = 32  # prefetches of a group in a block: more fill the queue of misses, and loads wait behind them
_LINE = 64  # bytes
_NEAR = 4096  # bytes between lanes whose lines the processor fetches unasked
_PREFETCH = "@llvm.prefetch.p0"


def open_block(body: SimdLowering, first: str, extent: str, low: str) -> None:
    """Choose the block that prefetches are for, in one that has all lanes.

    Args:
        body: the function.
        first: the first lane in its row, of `extent`.
        extent: lanes in a row.
        low: the index of a row's first lane.
    """
    body.later = ""
    body.slices, body.streams = {}, frozenset()
    if any(isinstance(s, Check) for s in statements(body.task.body)):
        return
    body.streams = _streams(body.task)
    body.slices = _slices(body.task) if body.lanes <= _MOST else {}
    if not body.slices:
        return
    later = body.assign(f"add nsw i64 {first}, {max(_AHEAD, body.lanes)}")
    end = body.assign(f"add nsw i64 {later}, {body.lanes}")
    inside = body.assign(f"icmp sle i64 {end}, {extent}")
    later = body.assign(f"select i1 {inside}, i64 {later}, i64 {first}")
    body.later = later if low == "0" else body.assign(f"add nsw i64 {later}, {low}")


def _slices(task: Task) -> dict[Neighbours, list[Stmt]]:
    """Return the groups worth a prefetch, with the statements that compute their places."""
    written = {s.mem for s in statements(task.body) if isinstance(s, (Store, Atomic))}
    own = set(task.body.stmts)
    found = {}
    for group in task.neighbours:
        first = group.accesses[0]
        if group.step is None and first in own and _is_large(task, first.mem, first.index):
            slice_ = _slice(task, first.index, written)
            if slice_ and len(slice_) <= _LONGEST:
                found[group] = slice_
    return found


def _streams(task: Task) -> frozenset[Access]:
    """Return the accesses of whose memory lines are asked for early, where lanes are side by side.

    Those of lanes that access large memories anywhere, too: the first one to each element. How large an array
    is may be known to the launch alone.
    """
    firsts = [g.accesses[0] for g in task.neighbours if g.step is None]
    if not any(s.mem.shape is None or _is_large(task, s.mem, s.index) for s in firsts):
        return frozenset()
    found: dict[object, Access] = {}
    for s in task.body.stmts:
        if isinstance(s, (Load, Store, Atomic)) and s.mem.kind in ("field", "array"):
            found.setdefault((s.mem, s.index), s)
    return frozenset(found.values())


def _is_large(task: Task, mem: Mem, index: tuple[Value, ...]) -> bool:
    """Whether the part of a field that lanes choose from does not stay in a core's cache."""
    if mem.shape is None or not mem.is_shaped:
        return False
    assert task.simd is not None
    count = size_of(mem.dtype) * mem.dtype.scalar.bytes
    # An index that all lanes share, as a time step, chooses a part of the field.
    for n, i in zip(mem.shape, index, strict=False):
        count *= n if i in task.simd else 1
    return count >= _FEWEST_BYTES


def _slice(task: Task, index: tuple[Value, ...], written: set[Mem]) -> list[Stmt]:
    """Return what computes an index, in order; empty if not all of it may be computed earlier."""
    made = {s.out: s for s in task.body.stmts if isinstance(s, (Let, Load))}
    joined = {s: g.accesses for g in task.neighbours for s in g.accesses}
    wanted: set[Stmt] = set()
    loads: list[Load] = []
    waiting = list(index)
    while waiting:
        v = waiting.pop()
        if isinstance(v, LEAVES) or v in task.axes:
            continue
        s = made.get(v)
        if s is None:
            return []
        if s in wanted:
            continue
        wanted.add(s)
        if isinstance(s, Load):
            if s.mem in written or s.mem.kind == "scratch":
                return []
            loads.append(s)
            # What is loaded with it.
            waiting += [x.out for x in joined.get(s, ()) if isinstance(x, Load)]
        waiting += uses(s)
    if any(_depends_on_loads(s, made) for s in loads):
        return []
    return [s for s in task.body.stmts if s in wanted] if loads else []


def _depends_on_loads(s: Load, made: dict[Value, Let | Load]) -> bool:
    """Whether a load's place is known only when another load is done, for which this one would wait."""
    waiting, seen = list(s.index), set(s.index)
    while waiting:
        by = made.get(waiting.pop())
        if isinstance(by, Load):
            return True
        new = [v for v in uses(by) if v not in seen] if by else []
        seen.update(new)
        waiting += new
    return False


def emit(body: SimdLowering, group: Neighbours) -> None:
    """Emit the prefetches of a group that this block has just accessed, unless lanes' elements are near."""
    slice_ = body.slices.get(group)
    if not body.later or slice_ is None or body.lanes * len(_lines(body, group)) > _MOST:
        return
    with _in_later_block(body, slice_):
        own = _offsets(body, group, (0, body.lanes - 1))
        if not own:
            return
        kind = group.accesses[0].mem.dtype.scalar
        apart = body.assign(f"sub i64 {own[1]}, {own[0]}")
        apart = body.assign(f"add i64 {apart}, {_NEAR // kind.bytes}")
        far = body.assign(f"icmp ugt i64 {apart}, {2 * _NEAR // kind.bytes}")
    ahead, after = body.new_label("ahead"), body.new_label("end")
    body.emit(f"br i1 {far}, label %{ahead}, label %{after}")
    body.start_block(ahead)
    with _in_later_block(body, slice_):
        _prefetch(body, group)
    body.jump(after)
    body.start_block(after)


@contextmanager
def _in_later_block(body: SimdLowering, slice_: list[Stmt]) -> Iterator[None]:
    """Give the values of a slice the names that they have in the later block."""
    known = body.names, body.lane_names, body.places, body.indices, body.later, body.streams
    body.names, body.lane_names, body.places = dict(known[0]), dict(known[1]), dict(known[2])
    body.indices, body.later = [{body.task.axes[-1]: Index(body.later, 1)}], ""
    body.streams = frozenset()
    body.int64_names.append({})
    for s in slice_:
        body.stmt(s)
    yield
    body.int64_names.pop()
    body.names, body.lane_names, body.places, body.indices, body.later, body.streams = known


def _place(body: SimdLowering, group: Neighbours) -> tuple[Index, list[tuple[Value, str]]]:
    s = group.accesses[0]
    copy = body.private_copies.get(s) if isinstance(s, Atomic) else None
    return body.index_of(s.mem, s.index, copy), body.terms(s.mem, s.index, copy)


def _offsets(body: SimdLowering, group: Neighbours, lanes: Iterable[int]) -> list[str]:
    """Emit how many scalars behind a common address some lanes' elements are; empty: a fixed step apart."""
    at, terms = _place(body, group)
    if not at.vector or at.step:
        return []
    return [lane_offsets.own_offset(body, terms, at.vector, k) for k in lanes]


def _prefetch(body: SimdLowering, group: Neighbours) -> None:
    """Emit about one prefetch for each cache line that a lane's accesses are in."""
    s, base = group.accesses[0], _place(body, group)[0].base
    for own in _offsets(body, group, range(body.lanes)):
        for o in _lines(body, group):
            _ask_for(body, s, base, body.assign(f"add nsw i64 {own}, {o}") if o else own)


def _ask_for(body: SimdLowering, s: Access, base: str, offset: str) -> None:
    """Emit one prefetch for an access, some scalars behind an address."""
    t, write = memory_type(s.mem.dtype.scalar), int(not isinstance(s, Load))
    body.module.declare(_PREFETCH, f"declare void {_PREFETCH}(ptr, i32, i32, i32)")
    place = body.assign(f"getelementptr {t}, ptr {base}, i64 {offset}")
    body.emit(f"call void {_PREFETCH}(ptr {place}, i32 {write}, i32 3, i32 1)")


def emit_stream(body: SimdLowering, s: Access, at: Index, offsets: Iterable[int] = (0,)) -> None:
    """Emit prefetches of what later lanes access side by side, at some offsets from `at`."""
    if body.mask or s not in body.streams or not neighbours.are_near(at):
        return
    line = _LINE // s.mem.dtype.scalar.bytes
    last = at.step * (body.lanes - 1) + max(offsets)
    for o in range(min(offsets), last + 1, line):
        _ask_for(body, s, at.base, str(at.step * _STREAM_AHEAD + o))


def _lines(body: SimdLowering, group: Neighbours) -> list[int]:
    """Return offsets in a group of which each other one is less than half a cache line away."""
    line = _LINE // group.accesses[0].mem.dtype.scalar.bytes
    found: list[int] = []
    for o in sorted(set(neighbours.offsets_of(body, group))):
        if not found or o - found[-1] >= line // 2:
            found.append(o)
    return found
