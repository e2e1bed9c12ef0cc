"""Accesses that a lane makes together: neighbours in memory, read and written at once, on the CPU.

`passes/vectors/neighbours.py` finds loads, stores and additions whose addresses differ by constants. Where
the lanes' elements are anywhere, each lane accesses as many neighbours as fit into 128 bits at once, and
vectors of lanes are made of that, or taken apart, in registers (`registers.py`):

    lane 0:  load <2 x float>  q[i0, j0], q[i0, j0 + 1]           <W x float> of q[i, j]
    lane 1:  load <2 x float>  q[i1, j1], q[i1, j1 + 1]     ->    <W x float> of q[i, j + 1]
    ...

Where lanes are a few scalars apart, as the components of vectors are, all of them make one access to a span.
Lanes follow one another, so additions that meet are made one after the other; where all of a block meet, as
they do where indices are sorted, their sum is added once.

A last block of fewer lanes has its first ones: spans end with the last of these, idle lanes load what the
first one loads, and none behind the last one writes. Under any other mask no lane is asked whether it is
active: unless all are, each access is made as if it stood alone.

Lanes side by side that add to elements beside theirs, too, update each row once (*shifted additions*):

    g[%j] += %a                  g[j .. j + W] += %a + (%b of the next lane each)
    g[%j - 1] += %b      ->      g[j - 1]      += %b of the first lane

One after the other, the second update would load parts of two vectors that the first one has just stored,
which processors do not forward: it would wait until both are in the cache. What a vector lacks at its ends is
-0.0, which changes no number that it is added to. Each element is updated that some lane adds to, and no
other one: in a last block, which has its first lanes, where each place is beside the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import memory_type
from diffsim.backends.llvm.private_copy import PrivateCopy
from diffsim.backends.simd import lane_offsets, registers
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import Atomic, Load, Store
from diffsim.ir.schedules import Access, Neighbours
from diffsim.ir.types import ScalarType

MOST_LANES = 32
"""Of a vector whose lanes are written out one by one."""
WIDEST_STEP = 4
"""Scalars between lanes that are accessed with what lies between."""
_FARTHEST = 4
"""Scalars between the first and the last place: what lies between them is updated one by one."""


def may_join(body: SimdValues, group: Neighbours) -> bool:
    """Whether this function makes the accesses of a group together."""
    for s in group.accesses:
        if s in body.update_logs or (isinstance(s, Load) and s in body.packed):
            return False
        if isinstance(s, Atomic):
            copy = body.private_copies.get(s)
            plain = s.exclusive or body.single_threaded or copy is not None
            # All go to one copy, or none does.
            if not plain or copy is not _copy(body, group.accesses[0]):
                return False
            if copy is not None and copy.slots > 1:
                return False
    # In branches of a last block, each access stands alone.
    return body.fewer_lanes[0] in ("", body.mask)


def find_place(body: SimdValues, group: Neighbours) -> Index | None:
    """Emit where the lanes' elements of the first access are; None where they are a vector in memory."""
    s = group.accesses[0]
    at = body.index_of(s.mem, s.index, _copy(body, s))
    if not _makes_spans(at) and (body.lanes > MOST_LANES or (not at.vector and at.step in (0, 1))):
        return None
    return at


def are_near(at: Index) -> bool:
    """Whether the lanes' elements are side by side, or a few scalars apart."""
    return not at.vector and 1 <= at.step <= WIDEST_STEP


def _makes_spans(at: Index) -> bool:
    """Whether the lanes' elements are few scalars apart."""
    return at.step > 1 and are_near(at)


def _copy(body: SimdValues, s: Access) -> PrivateCopy | None:
    return body.private_copies.get(s) if isinstance(s, Atomic) else None


def offsets_of(body: SimdValues, group: Neighbours) -> list[int]:
    """Return how many scalars each access is behind the first; empty where that is not known."""
    s = group.accesses[0]
    terms = body.terms(s.mem, s.index, _copy(body, s))
    return group.offsets([int(n) if n.isdigit() else None for _, n in terms])


def together(body: SimdValues, group: Neighbours, at: Index, offsets: list[int]) -> None:
    """Emit the accesses of all lanes, none of which is idle."""
    _Together(body, group, at, offsets).lower()


def together_in_front(body: SimdValues, group: Neighbours, at: Index, offsets: list[int]) -> None:
    """Emit the accesses of the first lanes of a block, which are those at work, one or more."""
    _InFront(body, group, at, offsets).lower()


def where_all_work(
    body: SimdValues,
    kinds: list[str],
    together: Callable[[], list[str]],
    apart: Callable[[], list[str]],
) -> list[str]:
    """Emit one thing where all lanes are at work, another where not; return the results of either."""
    mask, word = body.mask, f"i{body.lanes}"
    bits = body.assign(f"bitcast {body.vector('i1')} {mask} to {word}")
    all_ = body.assign(f"icmp eq {word} {bits}, -1")
    labels = [body.new_label(w) for w in ("together", "apart", "end")]
    body.emit(f"br i1 {all_}, label %{labels[0]}, label %{labels[1]}")
    sides = []
    for label, emit in zip(labels, (together, apart), strict=False):
        body.start_block(label)
        # Indices that one side computes are unknown on the other.
        body.indices.append({})
        body.int64_names.append({})
        known = dict(body.lane_names)
        body.mask = "" if emit is together else mask
        made = emit()
        body.mask, body.lane_names = mask, known
        body.int64_names.pop()
        body.indices.pop()
        sides.append((body.label, made))
        body.jump(labels[2])
    body.start_block(labels[2])
    (a, xs), (b, ys) = sides
    return [
        body.assign(f"phi {kind} [ {x}, %{a} ], [ {y}, %{b} ]")
        for kind, x, y in zip(kinds, xs, ys, strict=True)
    ]


def may_be_idle(group: Neighbours, at: Index) -> bool:
    """Whether lanes that are idle may make the accesses, too, of elements that some lane has."""
    return isinstance(group.accesses[0], Load) and bool(at.vector)


def together_where_active(
    body: SimdValues, group: Neighbours, at: Index, offsets: list[int]
) -> None:
    """Emit the loads of all lanes, of which idle ones load the first elements of the memory.

    There are as many elements as the span of a group: code runs only where a lane is active, and that one
    accesses them.
    """
    if places := lane_offsets.find_places(body, group):
        _Together(body, group, at, offsets, by_scalars=False, places=places).lower()
        return
    first = group.accesses[0]
    t = first.mem.dtype.scalar
    base, own = body.pointers[first.mem], at.base
    away = str(-min(offsets))
    if own != base:
        ends = [body.assign(f"ptrtoint ptr {p} to i64") for p in (base, own)]
        apart = body.assign(f"sub i64 {ends[0]}, {ends[1]}")
        apart = body.assign(f"sdiv exact i64 {apart}, {t.bytes}")
        away = body.assign(f"add i64 {apart}, {away}")
    _Together(body, group, _at_work(body, at, away), offsets, by_scalars=False).lower()


def _at_work(body: SimdValues, at: Index, idle: str) -> Index:
    """Emit the places of lanes, those of idle ones being `idle` scalars behind the base."""
    kind = body.vector("i64")
    where, nothing = body.as_vector(Index("0", at.step, at.vector)), body.splat("i64", idle)
    where = body.assign(f"select {body.vector('i1')} {body.mask}, {kind} {where}, {kind} {nothing}")
    return Index(at.base, 0, where)


class _Together:
    """The accesses of one group, made at one place of a function."""

    def __init__(
        self,
        body: SimdValues,
        group: Neighbours,
        at: Index,
        offsets: list[int],
        *,
        by_scalars: bool = True,
        places: lane_offsets.Places | None = None,
    ) -> None:
        self.body = body
        self.places = places
        self.group = group
        self.at = at
        self.offsets = offsets
        self.first = group.accesses[0]
        # What lane_offsets knows of a lane is no valid place if the lane is idle.
        own = body.terms(self.first.mem, self.first.index, _copy(body, self.first))
        self.terms = own if by_scalars else []
        self.type = self.first.mem.dtype.scalar
        self.is_load = isinstance(self.first, Load)
        self.values = {} if self.is_load else self.values_of()
        self.found: dict[int, str] = {}
        """The vectors of lanes that were loaded, by offset."""

    def lower(self) -> None:
        spans = list(self.spans())
        for span in spans:
            self.access_span(span)
        done = {o for span in spans for o in span}
        # Each once: two additions to one element have one value, their sum.
        rest = [o for o in dict.fromkeys(self.offsets) if o not in done]
        if rest and self.may_meet():
            self.at_once_where_all_meet(rest)
        else:
            self.lane_by_lane(rest)
        for s, o in zip(self.group.accesses, self.offsets, strict=True):
            if isinstance(s, Load):
                self.body.names[s.out] = self.found[o]
                lane_offsets.load(self.body, s, self.at, o)

    def values_of(self) -> dict[int, str]:
        """Emit what is added to, or stored in, each element."""
        body = self.body
        values: dict[int, str] = {}
        with body.vector_ops():
            for s, o in zip(self.group.accesses, self.offsets, strict=True):
                assert not isinstance(s, Load)
                v = body.name(s.value)
                if o in values and isinstance(s, Atomic):
                    v = body.sum_of_two(self.type, body.lanes, values[o], v)
                values[o] = v
        return values

    # ---- lanes that are a few scalars apart

    def spans(self) -> Iterator[list[int]]:
        """Yield runs of offsets at which the elements of all lanes make one span of memory.

        What lies between may be loaded, but not stored.
        """
        step = self.at.step
        if not _makes_spans(self.at):
            return
        runs: list[list[int]] = []
        for o in sorted(set(self.offsets)):
            near = runs and o - runs[-1][0] < step
            if near and (self.is_load or o == runs[-1][-1] + 1):
                runs[-1].append(o)
            else:
                runs.append([o])
        yield from (run for run in runs if self.is_load or len(run) == step)

    def access_span(self, run: list[int]) -> None:
        """Emit one access for all lanes."""
        body, t, s, step = self.body, self.type, self.first, self.at.step
        length = step * (body.lanes - 1) + run[-1] - run[0] + 1
        kind = f"<{length} x {t.llvm}>"
        place, old = self.after(self.at.base, run[0]), ""
        if not isinstance(s, Store):
            old = self.load_span(kind, length, place)
        if self.is_load:
            for o in run:
                self.found[o] = registers.pick(
                    body, t, old, length, range(o - run[0], length, step)
                )
            return
        new = registers.interleave(body, t, [self.values[o] for o in run], step)
        if isinstance(s, Atomic):
            new = self.sum_of(kind, old, new)
        self.store_span(kind, length, new, place)

    def load_span(self, kind: str, length: int, place: str) -> str:
        return self.body.assign(f"load {kind}, ptr {place}, {self.how()}")

    def store_span(self, kind: str, length: int, v: str, place: str) -> None:
        self.body.emit(f"store {kind} {v}, ptr {place}, {self.how()}")

    # ---- lanes that are anywhere

    def may_meet(self) -> bool:
        """Whether to ask if all lanes add to one element: where a loaded integer tells each one's."""
        at, terms = self.at, self.terms
        return (
            isinstance(self.first, Atomic)
            and not at.step
            and bool(at.vector)
            and lane_offsets.are_loaded(self.body, [i for i, _ in terms])
        )

    def at_once_where_all_meet(self, offsets: list[int]) -> None:
        """Emit one addition of the sums of all lanes if they meet, as they do where indices are sorted.

        Else each lane's would wait for the one before.
        """
        body, at = self.body, self.at
        test, once, apart, after = (
            body.new_label(w) for w in ("ends_meet", "meet", "apart", "end")
        )
        ends = [
            lane_offsets.own_offset(body, self.terms, at.vector, k) for k in (0, body.lanes - 1)
        ]
        near = body.assign(f"icmp eq i64 {ends[0]}, {ends[1]}")
        body.emit(f"br i1 {near}, label %{test}, label %{apart}")
        body.start_block(test)
        kind, word = body.vector("i64"), f"i{body.lanes}"
        equal = body.assign(f"icmp eq {kind} {at.vector}, {body.splat('i64', ends[0])}")
        bits = body.assign(f"bitcast {body.vector('i1')} {equal} to {word}")
        all_ = body.assign(f"icmp eq {word} {bits}, -1")
        body.emit(f"br i1 {all_}, label %{once}, label %{apart}")
        for label, add in ((once, self.add_sums), (apart, self.lane_by_lane)):
            body.start_block(label)
            # Indices that one side computes are unknown on the other.
            body.indices.append({})
            body.int64_names.append({})
            known = dict(body.lane_names)
            # A product of an integer would have to be made again, too.
            if label == apart and all(stride == "1" for _, stride in self.terms):
                lane_offsets.load_again(body, [i for i, _ in self.terms])
            add(offsets)
            body.lane_names = known
            body.int64_names.pop()
            body.indices.pop()
            body.jump(after)
        body.start_block(after)

    def add_sums(self, offsets: list[int]) -> None:
        """Emit one addition for each neighbour of the first lane's element, of what all lanes add."""
        pointer = self.pointer(0)
        for o in offsets:
            total = self.body.reduce("add", self.type, self.values[o])
            self.body.update("add", self.first.mem, self.after(pointer, o), total)

    def lane_by_lane(self, offsets: list[int]) -> None:
        """Emit what each lane accesses by itself."""
        if not offsets:
            return
        body, t = self.body, self.type
        runs = self.group.pieces(offsets)
        if self.is_load and t.bits == 32:
            # Three take as many shuffles as four, more than two and one.
            runs = [r for run in runs for r in ([run[:2], run[2:]] if len(run) == 3 else [run])]
        given = [
            [""] * body.lanes
            if self.is_load
            else registers.by_lane(body, t, [self.values[o] for o in run])
            for run in runs
        ]
        found: list[list[str]] = [[] for _ in runs]
        for k in range(body.lanes):
            self.enter_lane(k)
            pointer = self.pointer(k)
            for run, own, made in zip(runs, given, found, strict=True):
                made.append(self.access(self.after(pointer, run[0]), len(run), own[k]))
        for run, made in zip(runs, found, strict=True):
            if self.is_load:
                vectors = registers.by_neighbour(body, t, made, len(run))
                self.found.update(zip(run, vectors, strict=True))

    def enter_lane(self, lane: int) -> None:
        """Begin what one lane accesses by itself."""

    def access(self, place: str, count: int, value: str) -> str:
        """Emit one lane's access of `count` neighbours; return what was loaded."""
        body, t, how = self.body, self.type, self.how()
        kind = t.llvm if count == 1 else f"<{count} x {t.llvm}>"
        if isinstance(self.first, Store):
            body.emit(f"store {kind} {value}, ptr {place}, {how}")
            return ""
        old = body.assign(f"load {kind}, ptr {place}, {how}")
        if isinstance(self.first, Atomic):
            body.emit(f"store {kind} {self.sum_of(kind, old, value)}, ptr {place}, {how}")
        return old

    def pointer(self, lane: int) -> str:
        """Emit the address of a lane's first access."""
        body, at, place = self.body, self.at, self.at.base
        if at.vector:
            if self.places:
                own = lane_offsets.load_place(body, self.places, lane)
            else:
                own = lane_offsets.own_offset(body, self.terms, at.vector, lane)
            place = body.assign(f"getelementptr {memory_type(self.type)}, ptr {place}, i64 {own}")
        return self.after(place, at.step * lane)

    # ---- text

    def how(self) -> str:
        return f"align {self.type.bytes}{self.body.module.alias(self.first.mem)}"

    def after(self, pointer: str, offset: int) -> str:
        """Emit the address some scalars behind another one."""
        if not offset:
            return pointer
        t = memory_type(self.type)
        return self.body.assign(f"getelementptr {t}, ptr {pointer}, i64 {offset}")

    def sum_of(self, kind: str, a: str, b: str) -> str:
        word = f"fadd {self.body.module.flags}" if self.type.is_float else "add"
        return self.body.assign(f"{word} {kind} {a}, {b}")


class _InFront(_Together):
    """The accesses of the first lanes of a block, which are those at work, one or more."""

    def __init__(self, body: SimdValues, group: Neighbours, at: Index, offsets: list[int]) -> None:
        super().__init__(body, group, at, offsets, by_scalars=False)
        _, self.count = body.fewer_lanes
        self.behind = ""
        """Where those lanes go that write nothing more."""

    # ---- lanes that are a few scalars apart

    def spans(self) -> Iterator[list[int]]:
        # Without AVX-512, a store of some elements takes AMD's processors longer than one for each lane.
        if self.is_load or self.body.jit.vector_bits >= 512:
            yield from super().spans()

    def load_span(self, kind: str, length: int, place: str) -> str:
        mask, ones = self.span_mask(length)
        name = f"@llvm.masked.load.{self.suffix(length)}.p0"
        self.body.module.declare(name, f"declare {kind} {name}(ptr, i32, {ones}, {kind})")
        # Zeros, no poison: what compares it would make the mask of a branch poison.
        others = f"{ones} {mask}, {kind} zeroinitializer"
        call = f"call {kind} {name}(ptr {place}, i32 {self.type.bytes}, {others})"
        return self.body.assign(call + self.body.module.alias(self.first.mem))

    def store_span(self, kind: str, length: int, v: str, place: str) -> None:
        mask, ones = self.span_mask(length)
        name = f"@llvm.masked.store.{self.suffix(length)}.p0"
        self.body.module.declare(name, f"declare void {name}({kind}, ptr, i32, {ones})")
        call = f"call void {name}({kind} {v}, ptr {place}, i32 {self.type.bytes}, {ones} {mask})"
        self.body.emit(call + self.body.module.alias(self.first.mem))

    def span_mask(self, length: int) -> tuple[str, str]:
        """Emit which elements of a span lie before the end of the last lane's; return its type, too."""
        body, step = self.body, self.at.step
        kind = f"<{length} x i64>"
        # The span of all lanes ends with the last element of the last one.
        idle = length - step * body.lanes
        end = body.assign(f"mul nsw i64 {self.count}, {step}")
        end = body.assign(f"add nsw i64 {end}, {idle}") if idle else end
        one = body.assign(f"insertelement {kind} poison, i64 {end}, i64 0")
        ends = body.assign(
            f"shufflevector {kind} {one}, {kind} poison, <{length} x i32> zeroinitializer"
        )
        places = ", ".join(f"i64 {k}" for k in range(length))
        return body.assign(f"icmp slt {kind} <{places}>, {ends}"), f"<{length} x i1>"

    def suffix(self, length: int) -> str:
        return f"v{length}{FunctionLowering.suffix(self.body, self.type)}"

    # ---- lanes that are anywhere

    def lane_by_lane(self, offsets: list[int]) -> None:
        body, at = self.body, self.at
        if not offsets:
            return
        if self.is_load:
            first = "0"
            if at.vector:
                kind = body.vector("i64")
                first = body.assign(f"extractelement {kind} {at.vector}, i64 0")
            self.at = _at_work(body, at, first)
            super().lane_by_lane(offsets)
            return
        self.behind = body.new_label("end")
        super().lane_by_lane(offsets)
        body.jump(self.behind)
        body.start_block(self.behind)

    def enter_lane(self, lane: int) -> None:
        # At least one lane is at work.
        if not self.is_load and lane:
            body, own = self.body, self.body.new_label("lane")
            more = body.assign(f"icmp sgt i64 {self.count}, {lane}")
            body.emit(f"br i1 {more}, label %{own}, label %{self.behind}")
            body.start_block(own)


# ---- lanes side by side


def find_row(body: SimdValues, group: Neighbours) -> Index | None:
    """Emit where the lanes' elements of the first addition are; None: each addition stands alone."""
    first = group.accesses[0]
    assert isinstance(first, Atomic)
    # Under the mask of a branch, elements between those of two lanes may be nobody's.
    if body.mask != body.fewer_lanes[0] or not may_join(body, group):
        return None
    at = body.index_of(first.mem, first.index, body.private_copies.get(first))
    beside = at.step == 1 and not at.vector and offsets_of(body, group)
    return at if beside else None


def add_to_row(body: SimdValues, group: Neighbours, at: Index) -> None:
    """Emit all additions of a group."""
    first = group.accesses[0]
    assert isinstance(first, Atomic)
    t = first.mem.dtype.scalar
    values: dict[int, str] = {}
    with body.vector_ops():
        for s, o in zip(group.accesses, offsets_of(body, group), strict=True):
            assert isinstance(s, Atomic)
            v = body.name(s.value)
            values[o] = body.sum_of_two(t, body.lanes, values[o], v) if o in values else v
    for run in _runs(body, sorted(values)):
        _add_to_run(body, first, at, {o: values[o] for o in run})


def _runs(body: SimdValues, offsets: list[int]) -> list[list[int]]:
    """Return the places that are updated together."""
    farthest, gap = min(_FARTHEST, body.lanes - 1), 1 if body.mask else _FARTHEST
    runs = [[offsets[0]]]
    for before, o in pairwise(offsets):
        if o - before <= gap and o - runs[-1][0] <= farthest:
            runs[-1].append(o)
        else:
            runs.append([o])
    return runs


def _add_to_run(body: SimdValues, first: Atomic, at: Index, values: dict[int, str]) -> None:
    """Emit the additions to places near each other, `values` by offset from the first to the last."""
    mem, t = first.mem, first.mem.dtype.scalar
    lowest, last = min(values), max(values)
    total = values[last]
    if lowest != last:
        nothing = body.splat(t.llvm, "-0.0" if t.is_float else "0", hoist=True)
        if body.mask:
            values = {o: _of_active(body, t, v, nothing) for o, v in values.items()}
        total = values[last]
        for o in range(last - 1, lowest - 1, -1):
            if o in values:
                ahead = _shifted(body, t, values[o], nothing, last - o)
                total = body.sum_of_two(t, body.lanes, total, ahead)
    for place in range(lowest, last):
        lanes = [(o, place - o) for o in values if o <= place]
        part = _sum(body, t, [_lane(body, t, values[o], lane) for o, lane in lanes])
        body.update("add", mem, _behind(body, t, at, place), part)
    with body.vector_ops():
        there = Index(_behind(body, t, at, last), 1)
        old = body.load_lanes(mem, there)
        body.store_lanes(mem, there, body.combine("add", t, old, total))


def _of_active(body: SimdValues, t: ScalarType, v: str, nothing: str) -> str:
    kind = body.vector(t.llvm)
    return body.assign(f"select {body.vector('i1')} {body.mask}, {kind} {v}, {kind} {nothing}")


def _shifted(body: SimdValues, t: ScalarType, v: str, nothing: str, by: int) -> str:
    """Emit a vector whose lane k is lane k + `by` of another one."""
    kind, picks = body.vector(t.llvm), ", ".join(f"i32 {k + by}" for k in range(body.lanes))
    mask = f"<{body.lanes} x i32> <{picks}>"
    return body.assign(f"shufflevector {kind} {v}, {kind} {nothing}, {mask}")


def _lane(body: SimdValues, t: ScalarType, v: str, lane: int) -> str:
    return body.assign(f"extractelement {body.vector(t.llvm)} {v}, i64 {lane}")


def _sum(body: SimdValues, t: ScalarType, parts: list[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = body.combine("add", t, total, part)
    return total


def _behind(body: SimdValues, t: ScalarType, at: Index, offset: int) -> str:
    if not offset:
        return at.base
    return body.assign(f"getelementptr {memory_type(t)}, ptr {at.base}, i64 {offset}")
