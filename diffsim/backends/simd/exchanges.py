"""Accesses at `i ^ j`, lanes in pairs: vectors whose lanes change places, on the CPU.

    a, b = y[i], y[i ^ j]       sorting networks, fast transforms, sums over all nodes of a hypercube

A block of W lanes begins at a multiple of W. So the bits of a uniform `j` from W on tell which W neighbours
its lanes access, and the lower ones which of these belongs to which lane:

    (base + lane) ^ j  =  (base ^ (j & -W))  +  (lane ^ (j & (W - 1)))

That is one vector access and one permutation, where lanes would make an access each. The permutation is its
own reverse, and no two lanes meet: it also stores and adds, and makes masks of elements from masks of lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from diffsim.backends.llvm.private_copy import PrivateCopy
from diffsim.backends.simd import masked_accesses
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import Atomic, Const, Load, Value
from diffsim.ir.schedules import Access
from diffsim.ir.types import ScalarType, i32, i64

_INSTRUCTIONS = {
    ("f", 32, 16): "avx512.permvar.sf.512",
    ("i", 32, 16): "avx512.permvar.si.512",
    ("f", 64, 8): "avx512.permvar.df.512",
    ("i", 64, 8): "avx512.permvar.di.512",
    ("f", 32, 8): "avx2.permps",
    ("i", 32, 8): "avx2.permd",
}
"""Permutations of one register, by the kind and the bits of its numbers and their count."""


class Exchange(NamedTuple):
    """The elements that a block's lanes access.

    `places` says which of the W at `at` belongs to which lane.
    """

    at: Index
    places: str


def _copy_of(body: SimdValues, s: Access) -> PrivateCopy | None:
    return body.private_copies.get(s) if isinstance(s, Atomic) else None


def is_one(body: SimdValues, s: Access) -> bool:
    """Whether the lanes of a block access W neighbours in another order."""
    if isinstance(s, Load) and (s in body.packed or s.out not in body.divergent):
        return False
    copy = _copy_of(body, s)
    if isinstance(s, Atomic):
        plain = s.exclusive or body.single_threaded or copy is not None
        if not plain or s in body.update_logs or (copy is not None and copy.slots > 1):
            return False
    return _instruction(body, s.mem.dtype.scalar) != "" and _term(body, s, copy) is not None


def are_all(body: SimdValues, accesses: Sequence[Access]) -> bool:
    """Whether each of a group of neighbours is an exchange."""
    return all(is_one(body, s) for s in accesses)


def find_place(body: SimdValues, s: Access) -> Exchange:
    """Emit where the elements of an exchange are."""
    copy, t = _copy_of(body, s), s.mem.dtype.scalar
    terms = body.terms(s.mem, s.index, copy)
    pair = _moved(body, terms)
    assert pair is not None
    moved, distance = pair
    j, first = body.index64(distance), body.index(body.task.axes[-1]).base
    high = body.assign(f"and i64 {j}, {-body.lanes}")
    base = Index(body.assign(f"xor i64 {first}, {high}"))
    for i, stride in terms:
        if i is not moved:
            base = body.plus(base, body.times(body.index(i), stride))
    pointer = copy.base if copy else body.pointers[s.mem]
    # The first of the elements may be one that no lane at work has: no promise about its address.
    pointer = body.assign(f"getelementptr {t.llvm}, ptr {pointer}, i64 {base.base}")
    low = body.assign(f"and i64 {j}, {body.lanes - 1}")
    word = f"i{t.bits}"
    if t.bits < 64:
        low = body.assign(f"trunc i64 {low} to {word}")
    places = body.assign(f"xor {body.vector(word)} {body.splat(word, low)}, {body.iota(word)}")
    return Exchange(Index(pointer, 1), places)


def load(body: SimdValues, s: Load) -> str:
    """Emit the load of all lanes."""
    found, t = find_place(body, s), s.mem.dtype.scalar
    with _elements_at_work(body, t, found):
        raw = body.load_lanes(s.mem, found.at)
        masked_accesses.note(body, s, found.at.base, body.mask, exchanged=True)
    return _permuted(body, t, raw, found.places)


def store(body: SimdValues, s: Access, v: str) -> None:
    """Emit the store of a vector, or its combination with what is there."""
    found, t = find_place(body, s), s.mem.dtype.scalar
    v = _permuted(body, t, v, found.places)
    accessed = masked_accesses.accessed_under(body, s)
    with _elements_at_work(body, t, found), body.vector_ops():
        if isinstance(s, Atomic):
            v = body.combine(s.op, t, body.load_lanes(s.mem, found.at), v)
        body.store_lanes(s.mem, found.at, v, accessed)


@contextmanager
def _elements_at_work(body: SimdValues, t: ScalarType, found: Exchange) -> Iterator[None]:
    """Make the mask that of elements, in place of that of lanes."""
    before = body.mask
    if before:
        body.mask = _mask_of_elements(body, t, found, before)
    yield
    body.mask = before


def _mask_of_elements(body: SimdValues, t: ScalarType, found: Exchange, lanes: str) -> str:
    """Emit the mask of elements that a mask of lanes stands for."""
    kind = body.vector(f"i{t.bits}")
    wide = body.assign(f"sext {body.vector('i1')} {lanes} to {kind}")
    wide = _permuted(body, i32 if t.bits == 32 else i64, wide, found.places)
    return body.assign(f"icmp slt {kind} {wide}, zeroinitializer")


def _permuted(body: SimdValues, t: ScalarType, v: str, places: str) -> str:
    """Emit the vector whose lane k is that lane of another which `places` tells."""
    name, kind = f"@llvm.x86.{_instruction(body, t)}", body.vector(t.llvm)
    order = body.vector(f"i{t.bits}")
    body.module.declare(name, f"declare {kind} {name}({kind}, {order})")
    return body.assign(f"call {kind} {name}({kind} {v}, {order} {places})")


def _instruction(body: SimdValues, t: ScalarType) -> str:
    fits = t.bits * body.lanes <= body.jit.vector_bits and not t.is_bool
    return _INSTRUCTIONS.get((t.kind.replace("u", "i"), t.bits, body.lanes), "") if fits else ""


def _term(body: SimdValues, s: Access, copy: PrivateCopy | None) -> tuple[Value, Value] | None:
    begin = body.task.bounds.yields[-2]
    if not isinstance(begin, Const) or int(begin.value) % body.lanes:
        return None  # blocks begin anywhere
    if s.mem.kind in ("temp", "scratch"):
        return None
    return _moved(body, body.terms(s.mem, s.index, copy))


def _moved(body: SimdValues, terms: list[tuple[Value, str]]) -> tuple[Value, Value] | None:
    """Return the one index that differs between lanes, and j, if it is `i ^ j` and tells neighbours apart."""
    own = [(i, stride) for i, stride in terms if i in body.divergent]
    let = body.made_by.get(own[0][0]) if len(own) == 1 and own[0][1] == "1" else None
    if let is None or let.op.name != "bit_xor" or let.out.type.scalar.kind != "i":
        return None
    lane, j = let.args
    if lane is not body.task.axes[-1]:
        lane, j = j, lane
    return (own[0][0], j) if lane is body.task.axes[-1] and j not in body.divergent else None
