"""Loops of their own, and additions that may meet: these the lanes of a vector run one after the other.

**Loops.** In a task whose lanes run as vectors a loop may still make better vectors of its own iterations:
its elements are neighbours along the loop, and far apart between lanes (`passes/vectors/vectorize.py`
decides). The rows of a matrix in the adjoint of a product of matrices are an example. Such a loop is written
once, with scalars, in a loop over the active lanes; LLVM makes the vectors.

    %d: <W x float>                          spill %d
    for %k in 0..n {                ->       for each active lane {
      %t = mul %d, x[%i, %k]                   %d.lane = d[lane]
      add g[%i, %k], %t                        for %k in 0..n { ... }     (scalars; vectors along %k)
    }                                        }

A value that differs between lanes is read from the stack, an integer in its exact 64-bit form. What the loop
adds up goes back there.

**Additions** to elements that an index tells follow one another in a block, and are made together, at its end
or where something else needs their memory:

    if %touch {                              if any lane touches {
      add g[%j, 0], %a                         spill %a, %b, %c, %j
      add g[%j, 1], %b              ->         for each active lane {
      add r[%j], %c                              g[j, 0] += a;  g[j, 1] += b;  r[j] += c     (of the lane)
    }                                        } }

Of 16 candidates two or three touch, so that a processor mostly guesses wrong where such a loop ends: once
now, where each addition had a loop of its own. What is added to one element comes in the order of the lanes
as before; only where a lane adds to a memory by two indices, both come before those of the next lane.
"""

from __future__ import annotations

from typing import NamedTuple

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import memory_type
from diffsim.backends.simd import lane_offsets, neighbours
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import Atomic, Block, For, If, Let, Load, Stmt, Store, Value
from diffsim.ir.schedules import Neighbours
from diffsim.ir.traversal import blocks, free_values, statements


def lower(body: SimdValues, s: For) -> None:
    """Lower a loop for each active lane in turn."""
    arrays: list[tuple[str, str]] = []
    inside = [v for v in free_values(Block((s,))) if v in body.divergent]
    indices = {v: _spilled_index(body, v, arrays) for v in inside if v.type.is_int}
    others = {v: _spilled(body, v, arrays) for v in inside if not v.type.is_int}
    sums = {
        out: _result_array(body, out, arrays)
        for out, p, y in zip(s.outs, s.params, s.body.yields, strict=True)
        if y is not p and out in body.divergent
    }

    def one(lane: str) -> None:
        own = {v: _lane_index(body, at, lane) for v, at in indices.items()}
        alone = _scalar_lowering(body)
        alone.int64_names.append(own)
        for v in indices:
            if v.type.scalar.bits == 64:
                alone.names[v] = alone.int64_names[-1][v]
        for v, array in others.items():
            alone.names[v] = _load(alone, v, array, lane)
        alone.loop(s)
        for out, array in sums.items():
            at = alone.assign(f"getelementptr {out.type.scalar.llvm}, ptr {array}, i64 {lane}")
            alone.emit(f"store {out.type.scalar.llvm} {alone.names[out]}, ptr {at}")
        body.names.update((o, alone.names[o]) for o in s.outs if o not in body.divergent)
        body.count, body.label = alone.count, alone.label
        body.counts_work |= alone.counts_work

    body.each_lane(one)
    for out, array in sums.items():
        kind = body.vector(out.type.scalar.llvm)
        body.names[out] = body.assign(f"load {kind}, ptr {array}, align 64")
    for out, p, y, init in zip(s.outs, s.params, s.body.yields, s.inits, strict=True):
        if y is p and out in body.divergent:
            body.names[out] = body.name_for(out, init)
    for kind, array in arrays:
        body.free_array(kind, array)


def _scalar_lowering(body: SimdValues) -> FunctionLowering:
    """Return a lowering of one lane at this place of the function."""
    alone = FunctionLowering(body.module, body.lines)
    alone.count, alone.label = body.count, body.label
    alone.names = {v: name for v, name in body.names.items() if v not in body.divergent}
    alone.int64_names = list(body.int64_names)
    alone.made_by, alone.pointers, alone.strides = body.made_by, body.pointers, body.strides
    alone.exit_branch, alone.scope = body.exit_branch, body.scope
    alone.single_threaded, alone.has_safepoints = body.single_threaded, body.has_safepoints
    alone.private_copies, alone.update_logs = body.private_copies, body.update_logs
    return alone


def _spilled(body: SimdValues, v: Value, arrays: list[tuple[str, str]]) -> str:
    """Emit the vector of a value to the stack, booleans as bytes; return the array."""
    t = v.type.scalar
    kind, name = memory_type(t), body.name(v)
    if t.is_bool:
        name = body.assign(f"zext {body.vector('i1')} {name} to {body.vector(kind)}")
    array = body.spill(kind, name)
    arrays.append((kind, array))
    return array


def _spilled_index(body: SimdValues, v: Value, arrays: list[tuple[str, str]]) -> Index:
    """Return an integer's index, whose vector, if it has one, is an array on the stack."""
    at = body.index(v)
    if not at.vector:
        return at
    array = body.spill("i64", at.vector)
    arrays.append(("i64", array))
    return Index(at.base, at.step, array)


def _result_array(body: SimdValues, out: Value, arrays: list[tuple[str, str]]) -> str:
    """Emit an array of zeros, which idle lanes keep, for what each lane adds up."""
    kind = out.type.scalar.llvm
    array = body.spill(kind, "zeroinitializer")
    arrays.append((kind, array))
    return array


def _load(alone: FunctionLowering, v: Value, array: str, lane: str) -> str:
    kind = memory_type(v.type.scalar)
    at = alone.assign(f"getelementptr {kind}, ptr {array}, i64 {lane}")
    raw = alone.assign(f"load {kind}, ptr {at}")
    return alone.assign(f"trunc i8 {raw} to i1") if v.type.scalar.is_bool else raw


def _lane_index(body: SimdValues, at: Index, lane: str) -> str:
    """Emit a lane's own integer in 64 bits."""
    total = at.base
    if at.step:
        steps = lane if at.step == 1 else body.assign(f"mul nsw i64 {lane}, {at.step}")
        total = steps if total == "0" else body.assign(f"add nsw i64 {total}, {steps}")
    if at.vector:
        part = body.load_lane(at.vector, "i64", lane)
        total = part if total == "0" else body.assign(f"add nsw i64 {total}, {part}")
    return total


# ---- additions


class Scatter(NamedTuple):
    """Additions of each lane that wait for others.

    Attributes:
        accesses: the additions.
        at: where the first one's elements are.
        offsets: how many scalars each is behind the first.
        group: the neighbours that they are; None: a single addition.
        plain: whether no other thread adds to the same elements at the same time.
    """

    accesses: tuple[Atomic, ...]
    at: Index
    offsets: list[int]
    group: Neighbours | None
    plain: bool


def defer(body: SimdValues, scatter: Scatter) -> bool:
    """Note additions, which `add_deferred` makes; return whether they may wait."""
    if not body.scatters or not scatter.at.vector or not all(map(_may_wait, scatter.accesses)):
        return False
    body.scatters[-1].append(scatter)
    return True


def defer_group(body: SimdValues, group: Neighbours, at: Index, offsets: list[int]) -> bool:
    """Note the additions of a group, to which no other thread adds; return whether they may wait."""
    adds = tuple(s for s in group.accesses if isinstance(s, Atomic))
    return adds == group.accesses and defer(body, Scatter(adds, at, offsets, group, True))


def _may_wait(s: Atomic) -> bool:
    # What no other lane reaches needs no loop over lanes.
    return s.op == "add" and s.out is None and not s.exclusive and s.mem.kind in ("field", "array")


def must_add_before(body: SimdValues, s: Stmt) -> bool:
    """Whether the additions that wait must be made before a statement."""
    if not body.scatters or not body.scatters[-1]:
        return False
    waiting = {x.mem for scatter in body.scatters[-1] for x in scatter.accesses}
    if isinstance(s, (Load, Store)):
        return s.mem in waiting
    if isinstance(s, Atomic):
        return s.mem in waiting and not _may_wait(s)
    if isinstance(s, If):
        return not all(isinstance(x, (Let, If)) for b in blocks(s) for x in statements(b))
    return not isinstance(s, Let)


def add_deferred(body: SimdValues) -> None:
    """Emit the additions that wait: of all lanes at once where all are at work, in one loop where not."""
    found = body.scatters[-1]
    body.scatters[-1] = []
    groups = [x for x in found if x.group]
    single = [x for x in found if not x.group]
    if not groups:
        _lane_by_lane(body, single)
        return

    def together() -> list[str]:
        for x in groups:
            assert x.group
            neighbours.together(body, x.group, x.at, x.offsets)
        _lane_by_lane(body, single)
        return []

    def apart() -> list[str]:
        _lane_by_lane(body, found)
        return []

    neighbours.where_all_work(body, [], together, apart)


def _lane_by_lane(body: SimdValues, found: list[Scatter]) -> None:
    """Emit one loop over the lanes at work, in which each makes all of its additions."""
    if not found:
        return
    body.on_stack.append({})
    values = [(s, _spilled_term(body, s)) for x in found for s in x.accesses]
    places = [_places(body, x) for x in found]

    def one(lane: str) -> None:
        arrays, own = iter(values), dict[lane_offsets.Places, str]()
        for x, where in zip(found, places, strict=True):
            if where not in own:
                own[where] = _own_place(body, where, lane)
            t = memory_type(x.accesses[0].mem.dtype.scalar)
            first = body.assign(f"getelementptr {t}, ptr {x.at.base}, i64 {own[where]}")
            for s, behind in zip(x.accesses, x.offsets, strict=True):
                at = first
                if behind:
                    at = body.assign(f"getelementptr {t}, ptr {first}, i64 {behind}")
                value = body.load_lane(next(arrays)[1], s.mem.dtype.scalar.llvm, lane)
                if x.plain:
                    body.update(s.op, s.mem, at, value)
                else:
                    body.update_atomically(s, at, value)

    body.each_lane(one)
    for s, array in values:
        body.free_array(s.mem.dtype.scalar.llvm, array)
    for array in {where.array for where in places if not where.stride}:
        body.free_array("i64", array)
    lane_offsets.leave(body)


def _spilled_term(body: SimdValues, s: Atomic) -> str:
    with body.vector_ops():
        return body.spill(s.mem.dtype.scalar.llvm, body.name(s.value))


def _places(body: SimdValues, x: Scatter) -> lane_offsets.Places:
    """Emit what tells the lanes' elements: an integer, which loads may have stored, or their places."""
    s = x.accesses[0]
    found = lane_offsets.find_own_places(body, s, body.private_copies.get(s))
    if found:
        return found
    return lane_offsets.Places(
        body.spill("i64", body.as_vector(Index("0", x.at.step, x.at.vector))), ""
    )


def _own_place(body: SimdValues, where: lane_offsets.Places, lane: str) -> str:
    if where.stride:
        return lane_offsets.load_place(body, where, lane)
    return body.load_lane(where.array, "i64", lane)
