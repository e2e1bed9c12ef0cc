"""Serial loops that append, with vectors of their iterations (`passes/vectors/appends.py` finds them).

    for %m in %lo..%hi carry (%n) {         for k in lo..hi step W {
      ...                                     unless n + W - 1 < 64: the rest as it was
      %near = lt %n, 64                       near = true
      if %keep {                      ->      mask = keep, of the iterations before hi
        store list[%p, %n], %q                store compress(q, mask) at list[p, n], as many as the mask has
        %n.1 = add %n, 1                      n += popcount(mask)
      ...

The lanes of the task are scalars as always. Counters are on the stack while a loop runs, in 64 bits; LLVM
makes registers of them. Lists are short, so vectors are no wider than 8 iterations.

**Stream compaction.** AVX-512 has instructions for it. AVX2 moves 8 parts of 32 bits anywhere, so a table
tells for each mask where each part comes from. Its store of some elements takes AMD's processors 13 cycles,
so there are four stores, of 8, 4, 2 and 1 parts, for the bits of how many are kept; those that are not to be
made go to the stack. The table puts the parts where these expect them:

    5 = 4 + 1 kept:   a b c d . . e .     store a b c d at p, e at p + 4
"""

from __future__ import annotations

from diffsim.backends.llvm import loops, safepoints
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module, memory_type
from diffsim.backends.native.jit import Jit
from diffsim.backends.simd.simd import SimdLowering, is_cheap
from diffsim.backends.simd.simd_blocks import first_lanes
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import Block, Const, For, If, Let, Mem, Stmt, Store, Task, Value
from diffsim.ir.schedules import Appends
from diffsim.ir.traversal import outs, statements
from diffsim.ir.types import ScalarType, i64

_MOST = 8  # iterations at once
_PARTS = 8
_KIND = f"<{_PARTS} x i32>"
_PLACES = {8: 0, 4: 0, 2: 4, 1: 6}
"""Where the table puts the parts that are stored at once, by their number."""


class AppendingLowering(FunctionLowering):
    """Lowers a task of scalar lanes some of whose loops append."""

    def __init__(self, module: Module, lines: list[str], task: Task, jit: Jit) -> None:
        super().__init__(module, lines)
        assert task.appends is not None
        self.appends = task.appends
        width = _width(self.appends, jit)
        self.vectors = _Iterations(module, lines, task, self.appends, width, jit)

    def open_preamble(self) -> None:
        self.vectors.open_preamble()

    def close_preamble(self) -> None:
        self.vectors.close_preamble()

    def loop(self, s: For) -> None:
        if s in self.appends.loops:
            _lower(self, s)
        else:
            super().loop(s)


class _Iterations(SimdLowering):
    """Lowers iterations of such a loop as lanes."""

    may_be_cut = False  # counters are on the stack of this function

    def __init__(
        self,
        module: Module,
        lines: list[str],
        task: Task,
        appends: Appends,
        lanes: int,
        jit: Jit,
    ) -> None:
        # The groups of these loops, and no schedule of the task's own lanes.
        own = task.replace(simd=appends.divergent, by_lane=frozenset())
        super().__init__(module, lines, own, lanes, jit)
        self.appends = appends
        self.groups = {s: group for group in appends.neighbours for s in group.accesses}
        self.slots: dict[Value, str] = {}
        """Where the counters are."""
        self.asked: dict[Value, str] = {}
        """For conditions that a branch has found: whether a lane has taken that branch."""

    def enter(self, body: FunctionLowering) -> None:
        """Continue where the scalar code is."""
        self.count, self.label = body.count, body.label
        self.names, self.int64_names = dict(body.names), list(body.int64_names)
        self.made_by, self.pointers, self.strides = body.made_by, body.pointers, body.strides
        self.exit_branch, self.scope = body.exit_branch, body.scope
        self.indices = [{}]
        self.lane_names.clear()
        self.asked.clear()

    def leave(self, body: FunctionLowering) -> None:
        """Let the scalar code continue here; it knows no value of the iterations."""
        body.count, body.label = self.count, self.label
        body.counts_work |= self.counts_work

    def block(self, block: Block) -> None:
        steps = [s for s in block.stmts if isinstance(s, Let) and s in self.appends.steps]
        if not steps:
            super().block(block)
            return
        known = {p: self.begin_site(p) for p in (self.appends.steps[s] for s in steps)}
        self.int64_names.append(known)
        for p, n in known.items():
            t = p.type.scalar
            self.names[p] = n if t is i64 else self.assign(f"trunc i64 {n} to {t.llvm}")
        super().block(block)
        self.int64_names.pop()

    def begin_site(self, p: Value) -> str:
        """Emit the count of what the active iterations append; return the counter before."""
        more = count_active(self)
        before = self.assign(f"load i64, ptr {self.slots[p]}")
        self.emit(f"store i64 {self.assign(f'add nsw i64 {before}, {more}')}, ptr {self.slots[p]}")
        return before

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Let) and s in self.appends.steps:
            return
        if isinstance(s, Let) and s in self.appends.tests:
            below = _is_below(s, self.appends.tests[s])
            self.names[s.out] = "true" if below else "false"
        elif isinstance(s, Store) and s in self.appends.stores:
            self.append(s)
        elif isinstance(s, If) and any(v in self.appends.counter_of for v in s.outs):
            super().stmt(self.without_counters(s))
        else:
            super().stmt(s)

    def without_counters(self, s: If) -> If:
        kept = [k for k, v in enumerate(s.outs) if v not in self.appends.counter_of]
        return s.replace(
            outs=tuple([s.outs[k] for k in kept]),
            then=Block(s.then.stmts, tuple([s.then.yields[k] for k in kept])),
            orelse=Block(s.orelse.stmts, tuple([s.orelse.yields[k] for k in kept])),
        )

    def append(self, s: Store) -> None:
        """Store what the active iterations keep, side by side along the counter's axis."""
        k = self.appends.stores[s]
        at = self.index_of(s.mem, s.index)
        stride = self.terms(s.mem, s.index, None)[k][1]
        along = self.times(Index("0", 1), stride)
        with self.vector_ops():
            v = self.name(s.value)
        store_kept(self, s.mem, Index(at.base, along.step, along.vector), v)

    def test_before(self, s: If, block: Block) -> str:
        rest = [x for x in block.stmts if not (isinstance(x, Store) and x in self.appends.stores)]
        if is_cheap(Block(rest)):
            # A wrong guess costs more than storing nothing. But where no lane has taken the branch that found
            # the condition, none takes this one: LLVM makes one jump of both.
            return self.asked.get(s.cond, "") if block is s.then else ""
        some = super().test_before(s, block)
        if block is s.then:
            nothing = zip(s.outs, s.orelse.yields, strict=True)
            self.asked |= {out: some for out, v in nothing if isinstance(v, Const) and not v.value}
        return some


def _width(appends: Appends, jit: Jit) -> int:
    """Return how many iterations run at once."""
    bits = max([32, *(s.mem.dtype.scalar.bits for s in appends.stores)])
    for s in (x for loop in appends.loops for x in statements(loop.body)):
        for v in outs(s):
            if v in appends.divergent and v.type.scalar.is_float:
                bits = max(bits, v.type.scalar.bits)
    return min(_MOST, jit.vector_bits // bits)


def _is_below(s: Let, p: Value) -> bool:
    """Whether a test asks if a counter is below its bound, and not if it is above."""
    return s.op.name in (("lt", "le") if s.args[0] is p else ("gt", "ge"))


def _lower(body: AppendingLowering, s: For) -> None:
    """Emit a loop over vectors of iterations, and for what is near a bound the loop as it was."""
    vectors, appends = body.vectors, body.appends
    lo, hi = body.index64(s.lo), body.index64(s.hi)
    for p, init in zip(s.params, s.inits, strict=True):
        slot = vectors.slots[p] = body.fresh()
        vectors.preamble.append(f"  {slot} = alloca i64")
        body.emit(f"store i64 {body.index64(init)}, ptr {slot}")
    tests = [x for x in statements(s.body) if isinstance(x, Let) and x in appends.tests]
    limits = [(appends.tests[x], *_limit(body, x, appends.tests[x])) for x in tests]
    length = safepoints.strip(s) if body.has_safepoints and safepoints.is_long(s) else 0
    strips = loops.Strips(body, ["i64"], [lo]) if length else None
    first, stop = lo, hi
    if strips:
        first = strips.first[0]
        stop = loops.strip_end(body, first, hi, length)
    before = body.label
    head, inside, done, after = (body.new_label(w) for w in ("vectors", "do", "done", "after"))
    body.jump(head)
    body.start_block(head)
    k, following = body.fresh(), body.fresh()
    at = len(body.lines)
    more = body.assign(f"icmp slt i64 {k}, {stop}")
    body.emit(f"br i1 {more}, label %{inside}, label %{done}")
    body.start_block(inside)
    alone = body.new_label("alone") if limits else ""
    for p, word, limit in dict.fromkeys(limits):
        _leave_near(body, vectors.slots[p], word, limit, alone)
    _iterations(body, s, k, stop)
    body.emit(f"{following} = add nsw i64 {k}, {vectors.lanes}")
    latch = body.label
    body.jump(head)
    body.lines.insert(at, f"  {k} = phi i64 [ {first}, %{before} ], [ {following}, %{latch} ]")
    body.start_block(done)
    if strips:
        made = body.assign(f"sub nsw i64 {k}, {first}")
        safepoints.spend(body, made, safepoints.iteration_cost(s))
        strips.finish(body.assign(f"icmp slt i64 {k}, {hi}"), [k])
    body.jump(after)
    if limits:
        body.start_block(alone)
        _one_by_one(body, s, k)
        body.jump(after)
    body.start_block(after)
    for out, p in zip(s.outs, s.params, strict=True):
        t = out.type.scalar
        n = body.assign(f"load i64, ptr {vectors.slots[p]}")
        body.names[out] = n if t.bits == 64 else body.assign(f"trunc i64 {n} to {t.llvm}")


def _limit(body: FunctionLowering, s: Let, p: Value) -> tuple[str, str]:
    """Return how a counter, as it may be in the last iteration of a vector, compares with its bound."""
    bound = s.args[1] if s.args[0] is p else s.args[0]
    # Also where the test is whether the counter is above: no iteration of the vector finds that it is.
    strict = s.op.name in ("lt", "ge") if s.args[0] is p else s.op.name in ("gt", "le")
    return ("slt" if strict else "sle"), body.index64(bound)


def _leave_near(body: AppendingLowering, slot: str, word: str, limit: str, alone: str) -> None:
    """Emit a jump to the loop as it was, unless all iterations of a vector are below a bound."""
    last = body.assign(f"load i64, ptr {slot}")
    last = body.assign(f"add nsw i64 {last}, {body.vectors.lanes - 1}")
    go_on = body.new_label("below")
    body.emit(
        f"br i1 {body.assign(f'icmp {word} i64 {last}, {limit}')}, label %{go_on}, label %{alone}"
    )
    body.start_block(go_on)


def _iterations(body: AppendingLowering, s: For, k: str, stop: str) -> None:
    """Emit a vector of iterations from k on, those before the end active."""
    vectors = body.vectors
    vectors.enter(body)
    vectors.mask = first_lanes(vectors, vectors.assign(f"sub nsw i64 {stop}, {k}"))
    vectors.indices.append({s.index: Index(k, 1)})
    vectors.block(s.body)
    vectors.mask = ""
    vectors.leave(body)


def _one_by_one(body: AppendingLowering, s: For, k: str) -> None:
    """Emit the rest of the loop from k on as it was."""
    slots = body.vectors.slots
    lo, inits = Value(i64), tuple([Value(p.type) for p in s.params])
    body.names[lo] = k
    for init, p in zip(inits, s.params, strict=True):
        n = body.assign(f"load i64, ptr {slots[p]}")
        t = p.type.scalar
        body.names[init] = n if t.bits == 64 else body.assign(f"trunc i64 {n} to {t.llvm}")
    # Bounds and index may be narrower than what counts; only their 64-bit form is used.
    results = tuple([Value(p.type) for p in s.params])
    loops.lower_for(body, s.replace(lo=lo, inits=inits, outs=results))
    for out, p in zip(results, s.params, strict=True):
        body.emit(f"store i64 {body.index64(out)}, ptr {slots[p]}")


def store_kept(body: SimdValues, mem: Mem, at: Index, v: str) -> None:
    """Store what the active lanes have of a vector as if they were the first ones."""
    beside = at.step == 1 and not at.vector
    if body.jit.vector_bits < 512:
        if beside:
            _store_parts(body, mem, at, _moved(body, mem.dtype.scalar, v, _PLACES))
        else:
            _store_by_lane(body, mem, at, _moved(body, mem.dtype.scalar, v, {}))
        return
    kind, mask = body.vector(memory_type(mem.dtype.scalar)), body.vector("i1")
    suffix = FunctionLowering.suffix(body, mem.dtype.scalar)
    name = f"@llvm.experimental.vector.compress.v{body.lanes}{suffix}"
    body.module.declare(name, f"declare {kind} {name}({kind}, {mask}, {kind})")
    kept = body.assign(f"call {kind} {name}({kind} {v}, {mask} {body.mask}, {kind} poison)")
    before, body.mask = body.mask, first_lanes(body, count_active(body), or_none=True)
    body.store_lanes(mem, at, kept)
    body.mask = before


def _moved(body: SimdValues, t: ScalarType, v: str, places: dict[int, int]) -> str:
    """Emit the parts of the active lanes, of which a lane of 64 bits has two, where the table puts them."""
    kind, n = body.vector(t.llvm), body.lanes
    room = _PARTS * 32 // t.bits
    if n < room:
        picks = ", ".join(f"i32 {min(k, n - 1)}" for k in range(room))
        v = body.assign(f"shufflevector {kind} {v}, {kind} poison, <{room} x i32> <{picks}>")
        kind = f"<{room} x {t.llvm}>"
    row = body.assign(f"zext i{n} {bits_of(body)} to i64")
    table = _table(body, t.bits // 32, places)
    row = body.assign(f"getelementptr <{_PARTS} x i8>, ptr {table}, i64 {row}")
    few = body.assign(f"load <{_PARTS} x i8>, ptr {row}, align {_PARTS}")
    which = body.assign(f"zext <{_PARTS} x i8> {few} to {_KIND}")
    name = "@llvm.x86.avx2.permd"
    body.module.declare(name, f"declare {_KIND} {name}({_KIND}, {_KIND})")
    whole = body.assign(f"bitcast {kind} {v} to {_KIND}")
    return body.assign(f"call {_KIND} {name}({_KIND} {whole}, {_KIND} {which})")


def _table(body: SimdValues, width: int, places: dict[int, int]) -> str:
    """Return the table for elements of some parts: for each mask where each part comes from.

    `places`: where those that are stored at once come to lie; empty: all at the front.
    """
    rows = []
    for mask in range(1 << (_PARTS // width)):
        picked = [k for k in range(_PARTS) if mask >> (k // width) & 1]
        row = picked + [0] * (_PARTS - len(picked))
        done = 0
        for size, place in places.items():
            if len(picked) & size:
                row[place : place + size] = picked[done : done + size]
                done += size
        rows.append(f"<{_PARTS} x i8> <{', '.join(f'i8 {k}' for k in row)}>")
    kind = f"[{len(rows)} x <{_PARTS} x i8>]"
    name = f"@ds_picked_{width}" if places else f"@ds_front_{width}"
    text = f"{name} = private unnamed_addr constant {kind} [{', '.join(rows)}], align 64"
    body.module.declare(name, text)
    return name


def _nowhere(body: SimdValues) -> str:
    """Return a place on the stack for what is not to be stored."""
    slot, hidden = body.fresh(), body.fresh()
    body.preamble.append(f"  {slot} = alloca {_KIND}")
    # LLVM would make branches if it knew that nobody ever reads it.
    body.preamble.append(f'  {hidden} = call ptr asm "", "=r,0"(ptr {slot})')
    return hidden


def _store_parts(body: SimdValues, mem: Mem, at: Index, v: str) -> None:
    width, nowhere = mem.dtype.scalar.bits // 32, _nowhere(body)
    count = count_active(body)
    if width > 1:
        count = body.assign(f"mul nuw nsw i64 {count}, {width}")
    for size in [s for s in _PLACES if width <= s <= width * body.lanes]:
        asked = body.assign(f"and i64 {count}, {size}")
        made = body.assign(f"icmp ne i64 {asked}, 0")
        before = body.assign(f"and i64 {count}, {-2 * size}")
        own = body.assign(f"getelementptr i32, ptr {at.base}, i64 {before}")
        where = body.assign(f"select i1 {made}, ptr {own}, ptr {nowhere}")
        picks = ", ".join(f"i32 {_PLACES[size] + k}" for k in range(size))
        kind = f"<{size} x i32>"
        part = body.assign(f"shufflevector {_KIND} {v}, {_KIND} poison, {kind} <{picks}>")
        # No alias scope: it may be the stack.
        body.emit(f"store {kind} {part}, ptr {where}, align {mem.dtype.scalar.bytes}")


def _store_by_lane(body: SimdValues, mem: Mem, at: Index, v: str) -> None:
    """Store the first lanes one by one, as many as are active, the others on the stack.

    LLVM would make a branch of each lane, which no processor can guess.
    """
    t, pointers, nowhere = mem.dtype.scalar, body.pointers_of(mem, at), _nowhere(body)
    kind = f"<{_PARTS * 32 // t.bits} x {t.llvm}>"
    whole, count = body.assign(f"bitcast {_KIND} {v} to {kind}"), count_active(body)
    for k in range(body.lanes):
        own = body.assign(f"extractelement {body.vector('ptr')} {pointers}, i64 {k}")
        active = body.assign(f"icmp ugt i64 {count}, {k}")
        where = body.assign(f"select i1 {active}, ptr {own}, ptr {nowhere}")
        x = body.assign(f"extractelement {kind} {whole}, i64 {k}")
        body.emit(f"store {t.llvm} {x}, ptr {where}, align {t.bytes}")


def count_active(body: SimdValues) -> str:
    """Emit the number of active lanes, in 64 bits."""
    word = f"i{body.lanes}"
    body.module.declare(f"@llvm.ctpop.{word}", f"declare {word} @llvm.ctpop.{word}({word})")
    few = body.assign(f"call {word} @llvm.ctpop.{word}({word} {bits_of(body)})")
    return body.assign(f"zext {word} {few} to i64")


def bits_of(body: SimdValues) -> str:
    """Emit the mask as a word of one bit for each lane."""
    return body.assign(f"bitcast {body.vector('i1')} {body.mask} to i{body.lanes}")
