"""Offsets of single lanes: scalars for the integers that the places of elements are computed from.

An index that was loaded is a vector, whose lanes would be taken out of it again, one by one, for the
addresses that `neighbours.py` needs. So such integers are loaded a second time, each lane's as a scalar; of
the two LLVM keeps what is used.

Where a branch or a loop has left some of the lanes, one integer may tell their elements alone. Candidates
of a list are accessed several times, `x[j]`, `v[j]`, `radius[j]`, under one mask or one within another, and
each lane makes its own loads. What these have in common is `j`: it is stored on the stack once,
with 0 for idle lanes, and loads take it from there, one by one. Taken out of a vector of addresses, each of
them took three instructions, and did so again for each memory:

    %all = select <16 x i1> %mask, <16 x i32> %j, <16 x i32> zeroinitializer
    store <16 x i32> %all, ptr %array
    %j0 = load volatile i32, ptr %array         %j1 = load volatile i32, ptr %array + 1     ...
    %x0 = load <2 x float>, ptr %x + 2 %j0      %x1 = load <2 x float>, ptr %x + 2 %j1      ...

An idle lane loads an element that exists: code runs only where a lane is at work, and the axis along which
that one accesses `j` has an element 0. In a branch of the branch, lanes that do not take it hold the `j` they
had. So they may load from another memory whose axis is as long; else `j` is stored again, with 0 for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from diffsim.backends.llvm.module import memory_type
from diffsim.backends.llvm.private_copy import PrivateCopy
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import Atomic, Load, Mem, Store, Task, Value
from diffsim.ir.schedules import Neighbours
from diffsim.ir.traversal import statements


def wanted_integers(body: SimdValues, groups: tuple[Neighbours, ...]) -> set[Value]:
    """Return the loaded integers that the places of groups are computed from."""
    waiting = [i for g in groups if g.step is None for i in g.accesses[0].index]
    found: set[Value] = set()
    while waiting:
        v = waiting.pop()
        # A float that was rounded to an integer is taken out of no vector.
        if v in body.divergent and v not in found and v.type.is_int:
            found.add(v)
            let = body.made_by.get(v)
            waiting += let.args if let is not None else ()
    return {v for v in found if v not in body.made_by}


def load(body: SimdValues, s: Load, at: Index, offset: int = 0) -> None:
    """Emit a load for each lane, if the integer is wanted and no lane is idle."""
    if s.out not in body.wanted or body.mask or at.vector:
        return
    body.lane_names[s.out] = _loads(body, s, at.base, at.step, offset)


def load_again(body: SimdValues, index: Iterable[Value]) -> None:
    """Load the integers that an index is computed from once more, from memories that the task does not write.

    In a long body they would rather be stored on the stack until then. Behind an instruction that is none,
    LLVM does not know the address, or it would take the integers that it has.
    """
    for v in _integers(body, index):
        if v in body.lane_names and _stays(body, v):
            s, base, step, offset = body.lane_names[v][1]
            hidden = body.assign(f'call ptr asm "", "=r,0"(ptr {base})')
            body.lane_names[v] = _loads(body, s, hidden, step, offset)


def _stays(body: SimdValues, v: Value) -> bool:
    """Whether a loaded integer is the same when it is loaded again."""
    mem, written = body.lane_names[v][1][0].mem, _written(body.task)
    # Arrays of arguments may overlap.
    some_array = any(m.kind == "array" for m in written)
    return mem not in written and (mem.kind == "field" or (mem.kind == "array" and not some_array))


@lru_cache(maxsize=1)
def _written(task: Task) -> frozenset[Mem]:
    """Return what a task stores or adds to; many groups ask."""
    return frozenset(s.mem for s in statements(task.body) if isinstance(s, (Store, Atomic)))


def _loads(
    body: SimdValues, s: Load, base: str, step: int, offset: int
) -> tuple[list[str], tuple[Load, str, int, int]]:
    t = memory_type(s.mem.dtype.scalar)
    names = []
    for k in range(body.lanes):
        away = step * k + offset
        place = body.assign(f"getelementptr {t}, ptr {base}, i64 {away}") if away else base
        raw = body.assign(f"load {t}, ptr {place}{body.module.alias(s.mem)}")
        if s.out.type.scalar.bits < 64:
            word = "sext" if s.out.type.scalar.kind == "i" else "zext"
            raw = body.assign(f"{word} {t} {raw} to i64")
        names.append(raw)
    return names, (s, base, step, offset)


def are_loaded(body: SimdValues, index: Iterable[Value]) -> bool:
    """Whether integers that were loaded, and they alone, tell lanes' elements apart."""
    found = _integers(body, index)
    return bool(found) and all(v in body.lane_names for v in found)


def _integers(body: SimdValues, index: Iterable[Value]) -> list[Value]:
    """Return what the lanes' own integers in an index are computed from."""
    waiting, found = list(index), []
    while waiting:
        v = waiting.pop()
        let = body.made_by.get(v)
        if v in body.lane_names or (v in body.divergent and (let is None or not v.type.is_int)):
            found.append(v)
        elif v in body.divergent and let is not None:
            waiting += let.args
    return found


def own_offset(body: SimdValues, terms: list[tuple[Value, str]], whole: str, lane: int) -> str:
    """Emit a lane's own part of a sum of indices times strides, of which `whole` is the vector."""
    parts = [(_part(body, i, lane), stride) for i, stride in terms] if body.lane_names else []
    if not any(known for (_, known), _ in parts):
        return body.assign(f"extractelement {body.vector('i64')} {whole}, i64 {lane}")
    total = "0"
    for (part, _), stride in parts:
        total = _sum(body, total, _product(body, part, stride))
    return total


def _part(body: SimdValues, v: Value, lane: int) -> tuple[str, bool]:
    """Emit a lane's own part of an index, as `SimdValues.index` splits it; say if a scalar was known."""
    if v in body.lane_names:
        return body.lane_names[v][0][lane], True
    if v not in body.divergent or not (whole := body.index(v).vector):
        return "0", False
    let = body.made_by.get(v)
    if let is not None and let.op.name in ("add", "sub"):
        (a, known), (b, known_too) = (_part(body, arg, lane) for arg in let.args)
        if known or known_too:
            return _sum(body, a, b if let.op.name == "add" else _product(body, b, "-1")), True
    if let is not None and let.op.name == "mul":
        x, factor = let.args if let.args[1] not in body.divergent else let.args[::-1]
        part, known = _part(body, x, lane)
        if known and factor not in body.divergent and not body.index(x).step:
            return _product(body, part, body.index64(factor)), True
    return body.assign(f"extractelement {body.vector('i64')} {whole}, i64 {lane}"), False


def _sum(body: SimdValues, a: str, b: str) -> str:
    if "0" in (a, b):
        return b if a == "0" else a
    return body.assign(f"add nsw i64 {a}, {b}")


def _product(body: SimdValues, a: str, factor: str) -> str:
    return a if a == "0" or factor == "1" else body.assign(f"mul nsw i64 {a}, {factor}")


# ---- integers on the stack

_LEAST_LANES = 8
"""Lanes of a vector that rather goes through memory than is taken apart in registers."""
_ANY = 1 << 32
"""A bound of all integers."""
_ELSEWHERE = ("add", "sub", "mul", "min", "cast")
"""Operations that are computed in 64 bits for an index."""


class Stored(NamedTuple):
    """An integer of all lanes on the stack.

    Attributes:
        array: where it is.
        below: what it is less than in all lanes, idle ones included.
    """

    array: str
    below: int


class Places(NamedTuple):
    """Where lanes' elements are: an integer on the stack times a stride."""

    array: str
    stride: str


def find_places(body: SimdValues, group: Neighbours) -> Places | None:
    """Emit the integer that tells the lanes' elements of a group of loads, if one does."""
    mem, index = group.accesses[0].mem, group.accesses[0].index
    if body.lanes < _LEAST_LANES or mem.kind != "field" or mem.place or not mem.shape:
        return None
    terms = [(k, n) for k, (v, n) in enumerate(body.terms(mem, index, None)) if v in body.divergent]
    if len(terms) != 1:
        return None
    axis, stride = terms[0]
    v = index[axis]
    if axis >= mem.rank or not _is_one_vector(body, v):
        return None
    if any(s.index[axis] is not v for s in group.accesses):
        return None
    return Places(_stored(body, v, mem.shape[axis]), stride)


def find_own_places(body: SimdValues, s: Atomic, copy: PrivateCopy | None) -> Places | None:
    """Emit the integer that tells the lanes' elements of an addition, if one does."""
    if body.lanes < _LEAST_LANES:
        return None
    terms = [(v, n) for v, n in body.terms(s.mem, s.index, copy) if v in body.divergent]
    if len(terms) != 1 or not _is_one_vector(body, terms[0][0]):
        return None
    return Places(_stored(body, terms[0][0], _ANY), terms[0][1])


def _is_one_vector(body: SimdValues, v: Value) -> bool:
    """Whether an index is a vector that was loaded or computed, and no sum of what an address is made of."""
    let = body.made_by.get(v)
    return (
        v.type.scalar.bits == 32
        and v in body.names
        and (let is None or let.op.name not in _ELSEWHERE)
    )


def _stored(body: SimdValues, v: Value, extent: int) -> str:
    """Emit the store of an index of an axis; return where it is."""
    for scope in reversed(body.on_stack):
        for (known, mask), at in scope.items():
            if known is v and (mask == body.mask or at.below <= extent):
                return at.array
    kind, ones, all_ = body.vector("i32"), body.vector("i1"), body.names[v]
    if body.mask:
        all_ = body.assign(f"select {ones} {body.mask}, {kind} {all_}, {kind} zeroinitializer")
    array = body.spill("i32", all_)
    body.on_stack[-1][v, body.mask] = Stored(array, extent)
    return array


def load_place(body: SimdValues, places: Places, lane: int | str) -> str:
    """Emit how many scalars behind the base a lane's element is."""
    # Of another load LLVM would make what takes the lane out of the vector.
    at = body.assign(f"getelementptr i32, ptr {places.array}, i64 {lane}")
    narrow = body.assign(f"load volatile i32, ptr {at}")
    wide = body.assign(f"sext i32 {narrow} to i64")
    if places.stride == "1":
        return wide
    return body.assign(f"mul nsw i64 {wide}, {places.stride}")


def leave(body: SimdValues) -> None:
    """Forget what a block has stored."""
    for at in body.on_stack.pop().values():
        body.free_array("i32", at.array)
