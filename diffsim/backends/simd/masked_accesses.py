"""Stores and loads of some lanes, neighbours in memory, where processors take long for them under a mask.

AVX-512 has masks. Before it there is an instruction for such a store, which takes AMD's processors twelve
cycles, as much as all else in a short lane. Most blocks of lanes need none:

- Where all lanes are at work, it is a plain store. That is asked when the block runs, as conditions are
  mostly the same for neighbours: cells of an obstacle, particles that are alive.
- Elements that a lane has loaded before a branch get back what they hold where the lane does not take it:

      if %c {                           %old = load <8 x float> y[%i]
        store y[%i], %v           ->    %new = select %c, %v, %old
      }                                 store <8 x float> y[%i], %new

That is legal since no lane changes what another one loads: `vectorize` has seen so before it lets lanes run
side by side. The element exists, as it was loaded, and nobody else may write it meanwhile: who does so while
a launch reads it would have a race without this, too.

Before AVX-512 there are loads of some lanes for numbers of 32 and 64 bits alone. Of others, flags and half
floats, LLVM loads one lane after the other, each behind a jump of its own. Where the elements of all lanes
exist, whichever of them are at work, they are loaded as one vector (`may_load_all`).

Elements that lie anywhere are gathered under the mask: idle lanes may have indices out of bounds. Where
lanes' places are a vector of 32 bits and a base that is the same for all, as those of a list's elements are
in each iteration (`first[k] + m`), AVX-512 has an instruction that takes just that. LLVM finds it only if
the vector is widened beside the load, and moves that out of the loop: then 16 lanes are two gathers, with
twice as much to add up for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import memory_type
from diffsim.ir.nodes import Const, Load, Value

if TYPE_CHECKING:
    from diffsim.backends.simd.simd_values import Index, SimdValues
    from diffsim.ir.nodes import Mem
    from diffsim.ir.schedules import Access

_GATHERED = 16, 32
"""Lanes and bits of numbers that an instruction gathers by places of 32 bits."""

Key = tuple[object, tuple[object, ...]]


class Loaded(NamedTuple):
    """Neighbours in memory that the lanes of a block have loaded.

    Attributes:
        place: the address of the first one.
        mask: which of them lanes at work have loaded; "": all.
        exchanged: whether each belongs to another lane than the one at its place (`exchanges.py`).
    """

    place: str
    mask: str
    exchanged: bool


def key_of(s: Access) -> Key:
    """Return what accesses of one element have in common."""
    index = tuple((i.type, i.value) if isinstance(i, Const) else i for i in s.index)
    return s.mem, index


def note(body: SimdValues, s: Access, place: str, mask: str, *, exchanged: bool = False) -> None:
    """Note that the lanes at work have loaded neighbours in memory."""
    body.loaded[-1].setdefault(key_of(s), Loaded(place, mask, exchanged))


def accessed_under(body: SimdValues, s: Access) -> str | None:
    """Emit which elements of a store lanes have loaded before; "": all of them, None: nothing is known.

    Lanes that exchange elements of one block have loaded all, though each only one of the two.
    """
    if body.jit.vector_bits >= 512:
        return None
    key = key_of(s)
    known = {k: x for scope in reversed(body.loaded) for k, x in scope.items()}
    own = known.get(key)
    if own is None or not own.mask:
        return own and own.mask
    mask, kind = own.mask, body.vector("i1")
    for (mem, _), other in known.items():
        if mem is s.mem and other.mask and other.exchanged != own.exchanged:
            same = body.assign(f"icmp eq ptr {own.place}, {other.place}")
            more = body.assign(f"select i1 {same}, {kind} {other.mask}, {kind} zeroinitializer")
            mask = body.assign(f"or {kind} {mask}, {more}")
    return mask


def store(body: SimdValues, mem: Mem, kind: str, v: str, place: str, accessed: str | None) -> None:
    """Emit a store of the lanes at work.

    Args:
        body: under a mask.
        mem: the memory.
        kind: the type of the vector in memory.
        v: the vector.
        place: the address of the first lane's element.
        accessed: a mask of lanes that alone may access their elements; None: of those at work alone.
    """
    if body.jit.vector_bits >= 512:
        _masked(body, mem, kind, v, place)
        return
    wider = body.mask if accessed is None else accessed
    if not wider:
        _blended(body, mem, kind, v, place)
        return
    word = f"i{body.lanes}"
    bits = body.assign(f"bitcast {body.vector('i1')} {wider} to {word}")
    all_ = body.assign(f"icmp eq {word} {bits}, -1")
    whole, part, after = (body.new_label(w) for w in ("whole", "part", "stored"))
    body.emit(f"br i1 {all_}, label %{whole}, label %{part}")
    body.start_block(whole)
    if wider == body.mask:
        body.emit(f"store {kind} {v}, ptr {place}, {_how(body, mem)}")
    else:
        _blended(body, mem, kind, v, place)
    body.jump(after)
    body.start_block(part)
    _masked(body, mem, kind, v, place)
    body.jump(after)
    body.start_block(after)


def _blended(body: SimdValues, mem: Mem, kind: str, v: str, place: str) -> None:
    how = _how(body, mem)
    old = body.assign(f"load volatile {kind}, ptr {place}, {how}")
    new = body.assign(f"select {body.vector('i1')} {body.mask}, {kind} {v}, {kind} {old}")
    body.emit(f"store {kind} {new}, ptr {place}, {how}")


def _masked(body: SimdValues, mem: Mem, kind: str, v: str, place: str) -> None:
    t, mask = mem.dtype.scalar, body.vector("i1")
    own = "i8" if t.is_bool else FunctionLowering.suffix(body, t)
    name = f"@llvm.masked.store.v{body.lanes}{own}.p0"
    body.module.declare(name, f"declare void {name}({kind}, ptr, i32, {mask})")
    where = f"ptr {place}, i32 {t.bytes}, {mask} {body.mask}"
    body.emit(f"call void {name}({kind} {v}, {where}){body.module.alias(mem)}")


def _how(body: SimdValues, mem: Mem) -> str:
    return f"align {mem.dtype.scalar.bytes}{body.module.alias(mem)}"


def may_load_all(body: SimdValues, s: Load) -> bool:
    """Whether neighbours in memory are to be loaded for idle lanes, too; their numbers are of no use."""
    mem = s.mem
    # In a serial task the iterations of a loop take the place of lanes (`appends.py`).
    if not body.task.axes:
        return False
    if mem.dtype.scalar.bits >= 32 or body.jit.vector_bits >= 512 or s in body.packed:
        return False
    if mem.kind != "field" or mem.shape is None or not mem.is_shaped or mem.place is not None:
        return False
    # A lane at work has the other indices, too, so these are inside.
    own = [(i, n) for i, n in zip(s.index, mem.shape, strict=False) if i in body.divergent]
    if len(s.index) != mem.rank or len(own) != 1:
        return False
    index, extent = own[0]
    shift, ends = _shift(body, index), _ends(body)
    return ends is not None and shift is not None and 0 <= ends[0] + shift <= extent - ends[1]


def _ends(body: SimdValues) -> tuple[int, int] | None:
    """Return the first lane along the last axis, and the number of lanes in whole blocks."""
    lo, hi = body.task.bounds.yields[-2:]
    if not isinstance(lo, Const) or not isinstance(hi, Const):
        return None
    first, end = int(lo.value), int(hi.value)
    return first, -((first - end) // body.lanes) * body.lanes


def _shift(body: SimdValues, i: Value) -> int | None:
    """Return what is added to the number of the lane along the last axis; None: it is another index."""
    lane = body.task.axes[-1]
    if i is lane:
        return 0
    let = body.made_by.get(i)
    if let is None or let.op.name not in ("add", "sub") or i.type.scalar.kind != "i":
        return None
    a, b = let.args
    if let.op.name == "sub":
        return -int(b.value) if a is lane and isinstance(b, Const) else None
    a, b = (a, b) if a is lane else (b, a)
    return int(b.value) if a is lane and isinstance(b, Const) else None


def gather(body: SimdValues, mem: Mem, at: Index) -> str:
    """Emit the loads of the active lanes; idle ones get 0."""
    t, mask = mem.dtype.scalar, body.vector("i1")
    kind = body.vector(memory_type(t))
    alias, active = body.module.alias(mem), f"{mask} {body.active_mask()}"
    as_they_are = at.narrow and not at.step and (body.lanes, t.bits) == _GATHERED
    if as_they_are and body.jit.vector_bits >= 512:
        name = f"@llvm.x86.avx512.mask.gather.dp{'s' if t.is_float else 'i'}.512"
        places = body.vector("i32")
        body.module.declare(name, f"declare {kind} {name}({kind}, ptr, {places}, {mask}, i32)")
        where = f"ptr {at.base}, {places} {at.narrow}, {active}, i32 {t.bytes}"
        return body.assign(f"call {kind} {name}({kind} zeroinitializer, {where}){alias}")
    mark = f"v{body.lanes}{'i8' if t.is_bool else FunctionLowering.suffix(body, t)}"
    pointers, many = body.pointers_of(mem, at), body.vector("ptr")
    name = f"@llvm.masked.gather.{mark}.v{body.lanes}p0"
    body.module.declare(name, f"declare {kind} {name}({many}, i32, {mask}, {kind})")
    where = f"{many} {pointers}, i32 {t.bytes}, {active}"
    return body.assign(f"call {kind} {name}({where}, {kind} zeroinitializer){alias}")
