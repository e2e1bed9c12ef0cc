"""Lookups in small tables, which registers hold: 64 lanes at once, without a load for each lane.

    w = slope[int(x[i] * 255)]         256 numbers: a material, a map of colours, bins, an equation of state

An instruction of AVX-512 VBMI looks up 64 bytes in a table of 128 bytes, two registers. So a table of 32-bit
numbers becomes four tables of bytes: one of the least significant bytes, and so on. The indices are bytes,
too, as there are at most 256. Shuffles make numbers of the four bytes that are found:

    tables       t0 = bits 0 to 7 of each number, ..., t3 = bits 24 to 31: four registers each for 256
    indices      64 bytes, of four registers of integers
    found        t0[index], ..., t3[index]: two lookups each, and a choice by the upper bit of the index

Right where no lane of the task writes to the table, which is loaded where the task's function begins. An
index out of bounds finds a wrong element, as a load would, but never leaves the table: so idle lanes look up
whatever they have, and need no mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffsim.backends.native.jit import Jit
from diffsim.backends.simd import registers
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.layout import Mem, packed_strides, strides_of
from diffsim.ir.nodes import Atomic, Const, For, If, Load, Store, Task, While
from diffsim.ir.schedules import Neighbours
from diffsim.ir.traversal import statements
from diffsim.ir.types import i32, size_of

LANES = 64
"""Lanes that one instruction looks up."""
_LARGEST = 256
"""Numbers in a table: a byte is the index."""
_FEWEST_LANES = 1024
"""Of a task: it takes as long as some 200 lanes to load a table."""
_FOR_EACH = 16
"""Statements of a lane for each lookup: 64 lanes take four registers for each value, more than there are."""
_LEAST_SIZE = 8
_AT_ONCE = 64
"""Numbers of a table that become one register of bytes."""
_SHIFTS = (0, 8, 16, 24)
_BYTES = "<64 x i8>"


def only_lookups(task: Task, jit: Jit) -> bool:
    """Whether lanes access elements anywhere in small tables alone, in code without loops and branches."""
    anywhere = [g.accesses[0] for g in task.neighbours if g.step is None]
    if not jit.looks_up_bytes or not anywhere or task.packed or not _has_many_lanes(task):
        return False
    found = list(statements(task.body))
    if len(found) > _FOR_EACH * sum(len(g.accesses) for g in task.neighbours if g.step is None):
        return False
    written = {s.mem for s in found if isinstance(s, (Store, Atomic))}
    return not any(isinstance(s, (For, If, While)) for s in found) and all(
        isinstance(s, Load) and s.mem not in written and _is_small(s.mem) for s in anywhere
    )


def _has_many_lanes(task: Task) -> bool:
    """Whether a task has many lanes, as far as is known."""
    ends = task.bounds.yields
    extents = [
        int(hi.value) - int(lo.value)
        for lo, hi in zip(ends[::2], ends[1::2], strict=True)
        if isinstance(lo, Const) and isinstance(hi, Const)
    ]
    return len(extents) < len(task.axes) or math.prod(extents) >= _FEWEST_LANES


def _is_small(mem: Mem) -> bool:
    """Whether a memory is a table of 32-bit numbers without gaps that registers have room for."""
    if mem.shape is None or not mem.is_shaped or mem.place is not None:
        return False
    packed = strides_of(mem) == packed_strides(mem.shape, size_of(mem.dtype))
    fits = mem.dtype.scalar.bits == 32 and _LEAST_SIZE <= _size(mem) <= _LARGEST
    return packed and mem.component_stride == 1 and fits


def _size(mem: Mem) -> int:
    """Return the scalars of a field."""
    assert mem.shape is not None
    return math.prod(mem.shape) * size_of(mem.dtype)


def look_up(body: SimdValues, group: Neighbours) -> None:
    """Emit all loads of a group, for all lanes."""
    first = group.accesses[0]
    mem = first.mem
    at = Index()
    for i, stride in body.terms(mem, first.index, None):
        at = body.plus(at, body.times(body.index(i), stride))
    # In bounds it fits, so that wrapping around is right for what is added up to it. So it is for a place out
    # of bounds whose neighbour is not: `select(k > 0, t[k - 1], t[k])` looks up both.
    places = body.assign(f"trunc {body.vector('i64')} {body.as_vector(at)} to {body.vector('i32')}")
    bytes_ = "<" + ", ".join(["i32 255"] * LANES) + ">"
    places = body.assign(f"and {body.vector('i32')} {places}, {bytes_}")
    indices = _bytes_of(body, places)
    strides = [*strides_of(mem), *packed_strides(mem.dtype.shape, mem.component_stride)]
    found: dict[int, str] = {}
    for s, o in zip(group.accesses, group.offsets(strides), strict=True):
        if o not in found:
            found[o] = _found(body, mem, _moved(body, indices, o))
        assert isinstance(s, Load)
        body.names[s.out] = found[o]


# ---- the table


def _table(body: SimdValues, mem: Mem) -> list[list[str]]:
    """Return the four tables of bytes, in one, two or four registers each."""
    if mem not in body.tables:
        size = _size(mem)
        count = 1 if size <= _AT_ONCE else 2 if size <= 2 * _AT_ONCE else 4
        parts = [_part(body, mem, k * _AT_ONCE, size) for k in range(count)]
        body.tables[mem] = [[_plane(body, part, shift) for part in parts] for shift in _SHIFTS]
    return body.tables[mem]


def _part(body: SimdValues, mem: Mem, first: int, size: int) -> str:
    """Emit 64 numbers of a table from `first` on; 0 where it has none."""
    kind, count = f"<{_AT_ONCE} x i32>", min(_AT_ONCE, size - first)
    if count <= 0:
        return "zeroinitializer"
    place = _first(body, f"getelementptr i32, ptr {body.pointers[mem]}, i64 {first}")
    alias = body.module.alias(mem)
    if count == _AT_ONCE:
        return _first(body, f"load {kind}, ptr {place}, align 4{alias}")
    name = f"@llvm.masked.load.v{_AT_ONCE}i32.p0"
    mask = ", ".join(f"i1 {int(k < count)}" for k in range(_AT_ONCE))
    test = f"<{_AT_ONCE} x i1>"
    body.module.declare(name, f"declare {kind} {name}(ptr, i32, {test}, {kind})")
    args = f"ptr {place}, i32 4, {test} <{mask}>, {kind} zeroinitializer"
    return _first(body, f"call {kind} {name}({args}){alias}")


def _plane(body: SimdValues, part: str, shift: int) -> str:
    """Emit eight bits of each number."""
    kind = f"<{_AT_ONCE} x i32>"
    shifts = "<" + ", ".join([f"i32 {shift}"] * _AT_ONCE) + ">"
    low = _first(body, f"lshr {kind} {part}, {shifts}")
    return _first(body, f"trunc {kind} {low} to {_BYTES}")


def _first(body: SimdValues, text: str) -> str:
    """Emit an instruction where the function begins."""
    name = body.fresh()
    body.preamble.append(f"  {name} = {text}")
    return name


# ---- the lookups


def _bytes_of(body: SimdValues, places: str) -> str:
    """Emit the bytes of 64 integers from 0 to 255, in the order in which `_numbers` wants them."""
    a, b, c, d = (body.lanes_of(i32, places, LANES, k, 16) for k in range(0, LANES, 16))
    halves = [_packed(body, "packusdw", "<16 x i32>", "<32 x i16>", *p) for p in ((a, b), (c, d))]
    return _packed(body, "packuswb", "<32 x i16>", _BYTES, *halves)


def _packed(body: SimdValues, word: str, kind: str, out: str, a: str, b: str) -> str:
    """Emit two registers as one of shorter integers: a part of `a` and one of `b` in each 128 bits."""
    name = f"@llvm.x86.avx512.{word}.512"
    body.module.declare(name, f"declare {out} {name}({kind}, {kind})")
    return body.assign(f"call {out} {name}({kind} {a}, {kind} {b})")


def _moved(body: SimdValues, indices: str, offset: int) -> str:
    """Emit the indices plus a number, modulo 256."""
    if not offset:
        return indices
    away = "<" + ", ".join([f"i8 {(offset + 128) % 256 - 128}"] * LANES) + ">"
    return body.assign(f"add {_BYTES} {indices}, {away}")


def _found(body: SimdValues, mem: Mem, indices: str) -> str:
    """Emit the elements at some indices as the vector of all lanes."""
    planes = [_bytes_found(body, table, indices) for table in _table(body, mem)]
    t = mem.dtype.scalar
    return registers.join(body, t, _numbers(body, planes, t.llvm), 16)


def _bytes_found(body: SimdValues, table: Sequence[str], indices: str) -> str:
    """Emit the bytes of one table."""
    if len(table) == 1:
        name = "@llvm.x86.avx512.permvar.qi.512"
        body.module.declare(name, f"declare {_BYTES} {name}({_BYTES}, {_BYTES})")
        return body.assign(f"call {_BYTES} {name}({_BYTES} {table[0]}, {_BYTES} {indices})")
    name = "@llvm.x86.avx512.vpermi2var.qi.512"
    body.module.declare(name, f"declare {_BYTES} {name}({_BYTES}, {_BYTES}, {_BYTES})")
    low, *high = (
        body.assign(f"call {_BYTES} {name}({_BYTES} {a}, {_BYTES} {indices}, {_BYTES} {b})")
        for a, b in zip(table[::2], table[1::2], strict=True)
    )
    if not high:
        return low
    test = f"<{LANES} x i1>"
    second = body.assign(f"icmp slt {_BYTES} {indices}, zeroinitializer")
    return body.assign(f"select {test} {second}, {_BYTES} {high[0]}, {_BYTES} {low}")


def _numbers(body: SimdValues, planes: Sequence[str], t: str) -> list[str]:
    """Emit the four registers of numbers whose bytes four registers have."""
    pairs = [planes[:2], planes[2:]]
    low, high = ([_woven(body, "i8", LANES, p, half) for half in (0, 1)] for p in pairs)
    whole = [
        _woven(body, "i16", 32, p, half) for p in zip(low, high, strict=True) for half in (0, 1)
    ]
    return [body.assign(f"bitcast <32 x i16> {v} to <16 x {t}>") for v in whole]


def _woven(body: SimdValues, t: str, count: int, pair: Sequence[str], half: int) -> str:
    """Emit integers of two registers in turns, of the lower or upper half of each 128 bits, as wider ones."""
    kind, per = f"<{count} x {t}>", count // 4
    picks = ", ".join(
        f"i32 {side * count + lane * per + half * per // 2 + k}"
        for lane in range(4)
        for k in range(per // 2)
        for side in (0, 1)
    )
    made = body.assign(
        f"shufflevector {kind} {pair[0]}, {kind} {pair[1]}, <{count} x i32> <{picks}>"
    )
    return body.assign(f"bitcast {kind} {made} to <32 x i16>") if t == "i8" else made
