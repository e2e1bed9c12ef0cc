"""SIMD code: the lanes of a task run W at a time, as vectors, on the CPU.

LLVM vectorizes a loop over lanes only if there is no loop inside it (or one it can unroll). A task with
loops inside is therefore written with vectors from the start, if `passes/vectors/vectorize.py` has
marked it: each value that differs between lanes is one `<W x float>`, each that does not stays a scalar,
and the loops are outside the vectors (outer-loop vectorization):

    for %i in 0..n {                        for block in 0..ceil(n / W) {
      for %k in 0..64 {            ->         for %k in 0..64 {
        %x.1 = mul %x, %x                       %x.1 = fmul <W x float> %x, %x

How it is done (`SimdLowering`, a `FunctionLowering` that knows which values are divergent):

- An index is a scalar, plus a step times the lane, plus a vector (`Index`). Step 1 is a vector load or
  store, step 0 a scalar one, everything else gathers and scatters.
- `mask` is the active mask: the lanes that the last block of a row has, within those the ones that took a
  branch, within those the ones whose loop still runs. Code is only run where at least one lane is active; it
  computes in all lanes, and loads, stores and adds in the active ones.
- Saved values of loops (scratch) are W wide and contiguous. They need no mask but in reversed loops that save
  again, where a lane that waits for others would lose what it has saved.
- Functions of libmvec, and exp's own vector form, are called for as many lanes as they take at once. All
  lanes, also those of an incomplete block, go through the same code: no element depends on where a chunk
  begins.
- Additions of all lanes to one element are added up first; other updates that may meet are made one lane
  after the other.

The lanes of a task are numbered in blocks: a chunk is a range of blocks, and a block is up to W neighbours
along the last axis. `simd_width.py` chooses W, `simd_blocks.py` writes the loop over blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from diffsim.backends.llvm import long_blocks, safepoints, update_log
from diffsim.backends.llvm.loops import Limit, Strips, compare_no_accesses, strip_end
from diffsim.backends.llvm.module import memory_type
from diffsim.backends.simd import (
    exchanges,
    lane_loops,
    lane_offsets,
    lookups,
    masked_accesses,
    neighbours,
    prefetch,
)
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    For,
    If,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Value,
    While,
)
from diffsim.ir.schedules import Access, Neighbours
from diffsim.ir.traversal import statements
from diffsim.ir.types import i64, u32, u64

_CHEAP = 12  # operations of a branch that are rather computed for nothing than jumped over


class SimdLowering(SimdValues):
    """Lowers the body of a task for W lanes at once."""

    slices: Mapping[Neighbours, list[Stmt]] = MappingProxyType({})
    """Groups whose elements are prefetched, and what computes their places (`prefetch.py`)."""
    later = ""
    """The first lane of the block that prefetches are for."""
    streams: frozenset[Access] = frozenset()
    """Accesses whose next lines are prefetched where lanes are side by side."""

    # ---- statements

    def block(self, block: Block) -> None:
        # Index forms of a block are valid in that block.
        self.indices.append({})
        self.loaded.append({})
        self.on_stack.append({})
        self.scatters.append([])
        self.cuts |= long_blocks.cuts(block.stmts)
        super().block(block)
        lane_loops.add_deferred(self)
        self.scatters.pop()
        lane_offsets.leave(self)
        self.loaded.pop()
        self.indices.pop()

    def stmt(self, s: Stmt) -> None:
        if s in self.cuts:
            long_blocks.cut(self)
        if lane_loops.must_add_before(self, s):
            lane_loops.add_deferred(self)
        if not (isinstance(s, (Load, Store, Atomic)) and self.with_neighbours(s)):
            self.alone(s)

    def with_neighbours(self, s: Access) -> bool:
        """Lower an access with its group of neighbours; return whether it was, or will be."""
        group = self.groups.get(s)
        if group is None:
            return False
        if self.looks_up and group.step is None:
            if s is group.accesses[0]:
                lookups.look_up(self, group)
            return True
        if group.step == 1:
            if s is group.accesses[0]:
                self.places[group] = neighbours.find_row(self, group)
            at = self.places[group]
            if at is not None and s is group.accesses[-1]:
                neighbours.add_to_row(self, group, at)
            return at is not None
        if s is group.accesses[0]:
            joins = neighbours.may_join(self, group) and not exchanges.are_all(self, group.accesses)
            self.places[group] = neighbours.find_place(self, group) if joins else None
        at = self.places[group]
        if at is not None and s is group.accesses[0 if isinstance(s, Load) else -1]:
            self.group(group, at)
        return at is not None

    def group(self, group: Neighbours, at: Index) -> None:
        """Lower a group: its accesses together if all lanes are active, one after the other if not."""
        offsets = neighbours.offsets_of(self, group)
        if not offsets:
            self.apart(group)
        elif not self.mask:
            neighbours.together(self, group, at, offsets)
            prefetch.emit(self, group)
            prefetch.emit_stream(self, group.accesses[0], at, offsets)
        elif self.mask == self.fewer_lanes[0]:
            neighbours.together_in_front(self, group, at, offsets)
        elif neighbours.may_be_idle(group, at):
            neighbours.together_where_active(self, group, at, offsets)
        elif not lane_loops.defer_group(self, group, at, offsets):
            self.together_or_apart(group, at, offsets)

    def apart(self, group: Neighbours) -> None:
        for s in group.accesses:
            self.alone(s)

    def together_or_apart(self, group: Neighbours, at: Index, offsets: list[int]) -> None:
        loads = [s for s in group.accesses if isinstance(s, Load)]

        def together() -> list[str]:
            neighbours.together(self, group, at, offsets)
            return [self.names[s.out] for s in loads]

        def apart() -> list[str]:
            self.apart(group)
            return [self.names[s.out] for s in loads]

        kinds = [self.type_of(s.out) for s in loads]
        found = neighbours.where_all_work(self, kinds, together, apart)
        self.names.update(zip((s.out for s in loads), found, strict=True))

    def alone(self, s: Stmt) -> None:
        """Lower a statement as one that is in no group."""
        if isinstance(s, Load):
            self.load(s)
        elif isinstance(s, Store) and exchanges.is_one(self, s):
            with self.vector_ops():
                value = self.name(s.value)
            exchanges.store(self, s, value)
        elif isinstance(s, Store):
            at = self.index_of(s.mem, s.index)
            prefetch.emit_stream(self, s, at)
            # All active lanes store the same value to the same place: once will do.
            if not at.step and not at.vector and s.value not in self.divergent:
                self.store(s.mem, at.base, self.name(s.value))
            else:
                with self.vector_ops():
                    accessed = masked_accesses.accessed_under(self, s)
                    self.store_lanes(s.mem, at, self.name(s.value), accessed)
        elif isinstance(s, For) and s in self.task.by_lane:
            lane_loops.lower(self, s)
        elif isinstance(s, For) and (s.lo in self.divergent or s.hi in self.divergent):
            self.divergent_for(s)
        elif isinstance(s, While) and s.cond.yields[0] in self.divergent:
            self.divergent_while(s)
        elif isinstance(s, If) and s.cond in self.divergent:
            self.masked_if(s)
        else:
            super().stmt(s)

    def op(self, s: Let) -> str:
        if s.out not in self.divergent:
            return super().op(s)
        with self.vector_ops():
            # Sums of adjoints: one fused operation also where the product has other uses (see
            # `product`).
            product = self.product(s.args[1]) if s.op.name == "accumulate" else None
            if product is not None:
                t, total = s.out.type.scalar, self.name(s.args[0])
                return self.multiply_add(t, self.lanes, *product, total)
            return super().op(s)

    def load(self, s: Load) -> None:
        if exchanges.is_one(self, s):
            self.names[s.out] = exchanges.load(self, s)
            return
        at = self.index_of(s.mem, s.index, self.packed.get(s))
        prefetch.emit_stream(self, s, at)
        t = s.mem.dtype.scalar
        if s.out in self.divergent:
            may_load_all = masked_accesses.may_load_all(self, s)
            self.names[s.out] = self.load_lanes(s.mem, at, may_load_all=may_load_all)
            if at.step == 1 and not at.vector and s not in self.packed:
                masked_accesses.note(self, s, at.base, self.mask)
            lane_offsets.load(self, s, at)
            return
        raw = self.assign(f"load {memory_type(t)}, ptr {at.base}{self.module.alias(s.mem)}")
        self.names[s.out] = self.assign(f"trunc i8 {raw} to i1") if t.is_bool else raw

    def atomic(self, s: Atomic) -> None:
        if exchanges.is_one(self, s):
            with self.vector_ops():
                value = self.name(s.value)
            exchanges.store(self, s, value)
            return
        copy = self.private_copies.get(s)
        at = self.index_of(s.mem, s.index, copy)
        prefetch.emit_stream(self, s, at)
        if copy and copy.slots > 1:
            self.add_to_slots(s, at, copy.slots)
            return
        same, apart = not at.step and not at.vector, at.step and not at.vector
        t = s.mem.dtype.scalar
        # No other thread updates the same element; lanes of this vector may still meet.
        plain = s.exclusive or self.single_threaded or copy is not None
        with self.vector_ops():
            v = self.name(s.value)
        if s in self.update_logs:
            self.log_lanes(s, at, v)
        # Lanes update distinct elements (a constant step other than 0, or so the analysis has
        # shown): load, combine, store for all of them at once.
        elif plain and (apart or (s.exclusive and not same)):
            with self.vector_ops():
                old = self.load_lanes(s.mem, at)
                accessed = masked_accesses.accessed_under(self, s)
                self.store_lanes(s.mem, at, self.combine(s.op, t, old, v), accessed)
        # One element for all lanes: one update with the sum of the active ones.
        elif same and s.op == "add":
            self.update_once(s, at.base, self.sum_of_lanes(t, v), plain=plain)
        elif not lane_loops.defer(self, lane_loops.Scatter((s,), at, [0], None, plain)):
            values = self.spill(t.llvm, v)
            where = "" if same else self.spill("ptr", self.pointers_of(s.mem, at))

            def one(lane: str) -> None:
                value = self.load_lane(values, t.llvm, lane)
                pointer = self.load_lane(where, "ptr", lane) if where else at.base
                self.update_once(s, pointer, value, plain=plain)

            self.each_lane(one)
            self.free_array(t.llvm, values)
            if where:
                self.free_array("ptr", where)

    def log_lanes(self, s: Atomic, at: Index, v: str) -> None:
        """Log what each lane adds, in the order of the lanes, or once the sum for one element."""
        t = s.mem.dtype.scalar
        same = not at.step and not at.vector
        if same and s.op == "add":
            update_log.log_update(self, s, at.base, self.sum_of_lanes(t, v))
            return
        values = self.spill(t.llvm, v)
        where = "" if same else self.spill("ptr", self.pointers_of(s.mem, at))

        def one(lane: str) -> None:
            value = self.load_lane(values, t.llvm, lane)
            update_log.log_update(
                self, s, self.load_lane(where, "ptr", lane) if where else at.base, value
            )

        self.each_lane(one)
        self.free_array(t.llvm, values)
        if where:
            self.free_array("ptr", where)

    def add_to_slots(self, s: Atomic, at: Index, slots: int) -> None:
        """Add each lane to its slot of a copy: lane k to slot k modulo `slots`."""
        t = s.mem.dtype.scalar
        if not at.step and not at.vector:
            kind = f"<{slots} x {t.llvm}>"
            how = f"align {slots * t.bytes}{self.module.alias(s.mem)}"
            old = self.assign(f"load {kind}, ptr {at.base}, {how}")
            self.emit(f"store {kind} {self.folded(t, s.value, slots, old)}, ptr {at.base}, {how}")
            return
        # Different slots are different addresses, so within `slots` lanes none meet, whatever their
        # indices are.
        own = ", ".join(f"i64 {k % slots}" for k in range(self.lanes))
        at = self.plus(at, Index(vector=f"<{own}>"))
        with self.vector_ops():
            v = self.name(s.value)
            for first in range(0, self.lanes, slots):  # lanes of two parts may meet in a slot
                with self.restricted_to(first, slots):
                    old = self.load_lanes(s.mem, at)
                    self.store_lanes(s.mem, at, self.combine("add", t, old, v))

    def update_once(self, s: Atomic, at: str, v: str, *, plain: bool) -> None:
        if plain:
            self.update(s.op, s.mem, at, v)
        else:
            self.update_atomically(s, at, v)

    # ---- regions that lanes run differently

    def both(self, a: str, b: str) -> str:
        return self.assign(f"and {self.vector('i1')} {a}, {b}") if a else b

    def any_lane(self, mask: str) -> str:
        name = f"@llvm.vector.reduce.or.v{self.lanes}i1"
        self.module.declare(name, f"declare i1 {name}({self.vector('i1')})")
        return self.assign(f"call i1 {name}({self.vector('i1')} {mask})")

    def choose(self, mask: str, like: Value, a: str, b: str) -> str:
        kind = self.vector(like.type.scalar.llvm)
        return self.assign(f"select {self.vector('i1')} {mask}, {kind} {a}, {kind} {b}")

    def masked_if(self, s: If) -> None:
        """Lower a divergent branch: each side under its mask if any lane takes it, then a select."""
        outer, cond = self.mask, self.name(s.cond)
        results = []
        for side, block in enumerate((s.then, s.orelse)):
            taken = cond
            if side:
                every = self.splat("i1", "true", hoist=True)
                taken = self.assign(f"xor {self.vector('i1')} {cond}, {every}")
            self.mask = self.both(outer, taken)
            some = self.test_before(s, block)
            if some:
                results.append(self._side(s, block, some))
            else:
                self.block(block)
                results.append(
                    [self.name_for(o, v) for o, v in zip(s.outs, block.yields, strict=True)]
                )
            self.mask = outer
        for out, a, b in zip(s.outs, *results, strict=True):
            self.names[out] = self.choose(cond, out, a, b)

    def test_before(self, s: If, block: Block) -> str:
        """Emit whether a lane takes a branch; "": it runs without a test."""
        return "" if is_cheap(block) else self.any_lane(self.mask)

    def _side(self, s: If, block: Block, some: str) -> list[str]:
        before = self.label
        side, after = self.new_label("side"), self.new_label("end")
        self.emit(f"br i1 {some}, label %{side}, label %{after}")
        self.start_block(side)
        self.block(block)
        names = [self.name_for(o, v) for o, v in zip(s.outs, block.yields, strict=True)]
        last = self.label
        self.jump(after)
        self.start_block(after)
        return [
            self.assign(f"phi {self.type_of(o)} [ zeroinitializer, %{before} ], [ {n}, %{last} ]")
            for o, n in zip(s.outs, names, strict=True)
        ]

    def divergent_for(self, s: For) -> None:
        """Lower a loop with divergent bounds: it runs until the last lane has finished.

        Lane j is active for its first `trips[j]` iterations; a finished lane keeps its carried values by a
        select, as the loop goes on computing in all lanes. In a reversed loop that ends at the same index
        everywhere, lanes with fewer iterations wait for the others first: all are at one index then, so what
        they saved there is one vector.
        """
        outer, kept = self.mask, self.kept
        if s.reverse:
            self.kept = kept | _saved_in(s.body)
        lo, hi = self.index(s.lo), self.index(s.hi)
        counter, trips, most = self._trips(s, lo, hi)
        stop = most
        inits = ["0", *(self.name_for(p, v) for p, v in zip(s.params, s.inits, strict=True))]
        length = safepoints.strip(s) if self.has_safepoints else 0
        strips = Strips(self, ["i64", *map(self.type_of, s.params)], inits) if length else None
        if strips:
            inits = strips.first
            stop = strip_end(self, inits[0], most, length)
        before = self.label
        head, body, after = (self.new_label(w) for w in ("for", "do", "done"))
        self.jump(head)
        self.start_block(head)
        k, more, latch = self.fresh(), self.fresh(), self.new_label("latch")
        self.emit(f"{k} = phi i64 [ {inits[0]}, %{before} ], [ {more}, %{latch} ]")
        at = len(self.lines)
        params = [self.bind(p) for p in s.params]
        inside = self.assign(f"icmp slt i64 {k}, {stop}")
        self.emit(f"br i1 {inside}, label %{body}, label %{after}")
        self.start_block(body)
        # A reversed loop still counts up; only the index is mirrored, from the last end or from each lane's.
        together = s.reverse and not lo.step and not lo.vector
        distance = k
        if together:
            distance = self.assign(f"sub nsw i64 {self.assign(f'sub nsw i64 {most}, 1')}, {k}")
        number = distance
        if counter != "i64":
            number = self.assign(f"trunc i64 {distance} to {counter}")
        iteration = self.splat(counter, number)
        goes_on = self.assign(f"icmp ult {self.vector(counter)} {iteration}, {trips}")
        self.mask = self.both(outer, goes_on)
        if s.reverse and not together:
            place = self.plus(hi, Index(self.assign(f"sub nsw i64 -1, {k}")))
        else:
            place = self.plus(lo, Index(distance))
        self.indices.append({s.index: place})
        self.block(s.body)
        nexts = [
            self.choose(self.mask, p, self.name_for(p, v), name)
            for p, v, name in zip(s.params, s.body.yields, params, strict=True)
        ]
        self.indices.pop()
        if self.has_safepoints and not strips:
            safepoints.count(self, safepoints.iteration_cost(s))
        self.end_loop(at)
        self.jump(latch)
        self.start_block(latch)
        self.emit(f"{more} = add nsw i64 {k}, 1")
        self.jump(head)
        self._phis(at, s, params, (inits[1:], before), (nexts, latch))
        self.start_block(after)
        if strips:
            made = self.assign(f"sub nsw i64 {k}, {inits[0]}")
            safepoints.spend(self, made, safepoints.iteration_cost(s))
            strips.finish(self.assign(f"icmp slt i64 {k}, {most}"), [k, *params])
        self.mask, self.kept = outer, kept

    def end_loop(self, at: int) -> None:
        compare_no_accesses(self, at, in_block=True)

    def _trips(self, s: For, lo: Index, hi: Index) -> tuple[str, str, str]:
        """Emit how often each lane runs a loop, and the most of these; return the type of the former first.

        As many numbers of 32 bits, without a sign, as an index of 32 bits takes: half as much to compare in
        each iteration.
        """
        t = u32 if s.index.type.scalar.bits == 32 else u64
        kind, wide = self.vector(t.llvm), self.vector("i64")
        last, first = self.as_vector(hi), self.as_vector(lo)
        name = f"@llvm.smax.v{self.lanes}i64"
        self.module.declare(name, f"declare {wide} {name}({wide}, {wide})")
        trips = self.assign(f"sub nsw {wide} {last}, {first}")
        trips = self.assign(f"call {wide} {name}({wide} {trips}, {wide} zeroinitializer)")
        if t is u32:
            trips = self.assign(f"trunc {wide} {trips} to {kind}")
        if self.mask:
            # Bounds of an inactive lane may be anything, and would run the loop far too long.
            chosen = f"{kind} {trips}, {kind} zeroinitializer"
            trips = self.assign(f"select {self.vector('i1')} {self.mask}, {chosen}")
        most = self.reduce("max", t, trips)
        return t.llvm, trips, self.assign(f"zext i32 {most} to i64") if t is u32 else most

    def divergent_while(self, s: While) -> None:
        outer = self.mask
        # The active mask is itself carried: a lane whose condition was false once stays inactive, even if
        # memory that the condition reads changes later.
        inits = [self.name_for(p, v) for p, v in zip(s.params, s.inits, strict=True)]
        firsts = [self.active_mask(), *inits]
        length = safepoints.strip(s) if self.has_safepoints else 0
        types = [self.vector("i1"), *map(self.type_of, s.params)]
        # What counts iterations is the same number in all lanes that are still active: an index with it is
        # that of neighbours, or of one element.
        counters = [k for k, p in enumerate(s.params) if self._counts(s, k, p)]
        if counters:
            firsts, types = [*firsts, "0"], [*types, "i64"]
        strips = Strips(self, types, firsts) if length else None
        firsts = strips.first if strips else firsts
        limit = Limit(self, firsts, length, None) if length else None
        before = self.label
        head, body, after = (self.new_label(w) for w in ("while", "do", "done"))
        self.jump(head)
        self.start_block(head)
        running = self.fresh()
        at = len(self.lines)
        params = [self.bind(p) for p in s.params]
        made, more = self.fresh(), self.fresh()
        places = [self.plus(self.index(s.inits[k]), Index(made)) for k in counters]
        self.indices.append(dict(zip((s.params[k] for k in counters), places, strict=True)))
        self.mask = running
        self.block(s.cond)
        self.mask = go_on = self.both(running, self.name(s.cond.yields[0]))
        some = self.any_lane(go_on)
        inside = limit.inside(some, params) if limit else some
        self.emit(f"br i1 {inside}, label %{body}, label %{after}")
        self.start_block(body)
        self.block(s.body)
        nexts = [
            self.choose(go_on, p, self.name_for(p, v), name)
            for p, v, name in zip(s.params, s.body.yields, params, strict=True)
        ]
        self.indices.pop()
        if counters:
            self.emit(f"{more} = add nsw i64 {made}, 1")
        if limit:
            limit.count()
        elif self.has_safepoints:
            safepoints.count(self, safepoints.iteration_cost(s))
        self.end_loop(at)
        latch = self.label
        self.jump(head)
        if counters:
            phi = f"phi i64 [ {firsts[-1]}, %{before} ], [ {more}, %{latch} ]"
            self.lines.insert(at, f"  {made} = {phi}")
        self._phis(at, s, params, (firsts[1 : 1 + len(params)], before), (nexts, latch))
        self.lines.insert(
            at,
            f"  {running} = phi {self.vector('i1')} [ {firsts[0]}, %{before} ], [ {go_on}, %{latch} ]",
        )
        if limit:
            limit.finish(at, before, latch)
        self.start_block(after)
        if limit and strips:
            safepoints.spend(self, limit.iterations(params), safepoints.iteration_cost(s))
            strips.finish(some, [running, *params, *([made] if counters else [])])
        self.mask = outer

    def _counts(self, s: While, k: int, p: Value) -> bool:
        """Whether a value that a loop carries is the number of its iteration plus a uniform number."""
        return (
            p in self.divergent
            and p.type.is_int
            and not p.type.shape
            and s.inits[k] not in self.divergent
            and any(
                isinstance(x, Let)
                and x.out is s.body.yields[k]
                and safepoints.is_step(x, p, up=True)
                for x in s.body.stmts
            )
        )

    def _phis(
        self,
        at: int,
        s: For | While,
        params: list[str],
        first: tuple[list[str], str],
        then: tuple[list[str], str],
    ) -> None:
        self.lines[at:at] = [
            f"  {p} = phi {self.type_of(v)} [ {i}, %{first[1]} ], [ {n}, %{then[1]} ]"
            for p, v, i, n in zip(params, s.params, first[0], then[0], strict=True)
        ]
        self.names.update(zip(s.outs, params, strict=True))

    # ---- scratch

    def scratch_count(self, s: Alloca) -> str:
        """Emit the elements of scratch for all lanes: W times the most of any active lane."""
        count = self.index(s.count)
        if s.count not in self.divergent:
            most = count.base
        else:
            full, kind = self.as_vector(count), self.vector("i64")
            if self.mask:
                nothing = self.splat("i64", "0", hoist=True)
                full = self.assign(
                    f"select {self.vector('i1')} {self.mask}, {kind} {full}, {kind} {nothing}"
                )
            most = self.reduce("max", i64, full)
        return self.assign(f"mul nsw i64 {most}, {self.lanes}")


def _saved_in(body: Block) -> set[Mem]:
    """Return the scratch that iterations of a loop store to, and that was allocated before it."""
    found = list(statements(body))
    own = {s.mem for s in found if isinstance(s, Alloca)}
    stores = {s.mem for s in found if isinstance(s, Store) and s.mem.kind == "scratch"}
    return stores - own


def is_cheap(block: Block) -> bool:
    """Return whether a branch may rather run for no lane than be jumped over: a few ops, no side effects."""
    return len(block.stmts) <= _CHEAP and all(isinstance(s, Let) for s in block.stmts)
