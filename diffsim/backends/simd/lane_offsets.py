"""Offsets of single lanes: scalars for the integers that the places of elements are computed from.

An index that was loaded is a vector, whose lanes would be taken out of it again, one by one, for the
addresses that `neighbours.py` needs. So such integers are loaded a second time, each lane's as a scalar; of
the two LLVM keeps what is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from diffsim.backends.llvm.module import memory_type
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
