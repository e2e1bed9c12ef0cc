"""Forward code of a region again, without its effects, with what its loops save for the adjoint.

A loop that is reversed saves the carried values that each iteration starts from, or notes what
`skipped_iterations.py` asks for. A while loop is counted, as that tells how much it saves. It saves meanwhile
if its number of iterations has a bound (`most_iterations`), and else as far as one segment goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Const,
    CustomCall,
    For,
    If,
    InlineLLVM,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Value,
    While,
    zero,
)
from diffsim.ir.op import Math
from diffsim.ir.traversal import Rewriter, bound_in, statements
from diffsim.ir.types import Type, bool_, derivative_type, i64
from diffsim.passes.analysis.affine import Definitions, updated_element
from diffsim.passes.analysis.counted_loops import most_iterations
from diffsim.passes.autodiff.custom_calls import bind
from diffsim.passes.autodiff.loop_checkpoints import (
    Checkpoints,
    Computed,
    NestedSaves,
    Run,
    SavedLoopValue,
    Swept,
    counted,
    downwards,
    index_hint,
)
from diffsim.passes.autodiff.skipped_iterations import (
    LastReplaced,
    Noting,
    Replacing,
    replaced_values,
)
from diffsim.passes.kept.stored_values import Recomputed


class ForwardAgain:
    """Emits the forward code of a region again, and what its loops save.

    Args:
        builder: where the statements go.
        active: the values that derivatives flow through.
        is_inner: whether the adjoint may be differentiated again: given calls stay, memory gets no gradient.

    Attributes:
        env: for each value of the region, its latest copy: forward code may be emitted several times.
        new_mems: memories that the adjoint needs besides.
        winners: for each element that all lanes may raise or lower, memory for the number of the lane whose
            update won; `finding`: whether this sweep determines it; `lane`: the number of this lane.
        saved: what loops have kept for their adjoint; `replaced`: what is known of the last iteration that
            replaced a value (`skipped_iterations.py`).
        checkpoints: how loops save; `loop_of`: whose saves a scratch holds.
        many_lanes: whether no scratch is allocated before it is known how much a lane needs.
        swept: loops within others, by the values that the forward sweeps of these bind in them.
        computed: functions in iterations of loops that save, by the values of their copies.
        run: the iteration that is being emitted.
        recomputed: what was computed again that the region has stored.
        logged: for loads whose element has changed since, the log that has the value, and where.
        scratch: copies of the region's own scratch; `scratch_grads`: the adjoints of what they hold.
    """

    def __init__(self, builder: Builder, active: set[Value], *, is_inner: bool = False) -> None:
        self.builder = builder
        self.active = active
        self.is_inner = builder.is_inner = is_inner
        self.env: dict[Value, Value] = {}
        self.checkpoints = Checkpoints({}, {}, {})
        self.many_lanes = False
        self.saved: dict[Stmt, SavedLoopValue] = {}
        self._reversed: dict[Stmt, bool] = {}
        self.replaced: dict[Stmt, list[LastReplaced]] = {}
        self.loop_of: dict[Mem, For | While] = {}
        self.swept: dict[Value, Swept] = {}
        self.computed: dict[Value, Computed] = {}
        self.run: Run | None = None
        self.new_mems: dict[Mem, None] = {}
        self.winners: dict[object, Mem] = {}
        self.defs: Definitions = {}
        self.finding = False
        self.lane: Value = Const(i64, 0)
        self.logged: dict[Load | Atomic, tuple[Mem, Value]] = {}
        self.recomputed: list[Recomputed] = []
        self.scratch: dict[Mem, Mem] = {}
        self.scratch_grads: dict[Mem, Mem] = {}

    def value(self, v: Value) -> Value:
        return self.env.get(v, v)

    def values(self, vs: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(self.env.get(v, v) for v in vs)

    def fresh(self, vs: tuple[Value, ...]) -> tuple[Value, ...]:
        made = tuple(Value(v.type, v.hint) for v in vs)
        self.env.update(zip(vs, made, strict=True))
        return made

    def forward(self, block: Block, *, save: bool = False) -> None:
        """Emit the block's statements again, without their effects on memory.

        `save`: whether the loops among them save what they carry, for `backward` in the same block.
        """
        b = self.builder
        for s in block.stmts:
            b.span = s.span
            # Checks and prints have no case here: the primal launch has already made them.
            if isinstance(s, Let):
                is_function = isinstance(s.op.lowering, Math) and self._is_root(block)
                if not (is_function and self._load_function(s)):
                    args = self.values(s.args)
                    (out,) = self.fresh((s.out,))
                    b.add(Let(out, s.op, args, s.span))
                    if is_function:
                        self._keep_function(s, out)
            elif isinstance(s, Load):
                self._forward_load(s)
            elif isinstance(s, InlineLLVM):
                args = self.values(s.args)
                b.add(InlineLLVM(self.fresh(s.outs), s.name, s.names, args, s.text, s.span))
            elif isinstance(s, Alloca):
                self._copy_alloca(s, save=save)
            elif isinstance(s, Store):
                # Stores to fields are not repeated, the primal made them; scratch is gone by now.
                if s.mem.kind == "scratch":
                    b.store(self.scratch[s.mem], self.values(s.index), self.value(s.value))
                else:
                    made = self.value(s.value), s, self.values(s.index)
                    self.recomputed.append(Recomputed(*made))
            elif isinstance(s, Atomic):
                self._forward_atomic(s)
            elif isinstance(s, For):
                self._forward_for(s, save=save)
            elif isinstance(s, While):
                self._forward_while(s, save=save)
            elif isinstance(s, If):
                cond = self.value(s.cond)
                # Loops in branches save nothing: `_if` emits the branch anew, with its adjoint.
                then, orelse = (self._forward_block(side) for side in (s.then, s.orelse))
                b.add(If(cond, then, orelse, self.fresh(s.outs), s.span))
            elif isinstance(s, CustomCall):
                # Loops in calls save by themselves.
                with self._in_run(None):
                    self._forward_custom(s, save=save)

    def _is_root(self, block: Block) -> bool:
        """Whether a block is the body of a loop that saves, and this one of its iterations there or back."""
        run = self.run
        return run is not None and run.around is run.root and block is run.root.body

    def _load_function(self, s: Let) -> bool:
        """Emit a load of what the forward sweep has computed in this iteration; return whether it has."""
        run = self.run
        if run is None or run.is_sweep or s not in run.functions:
            return False
        self.env[s.out] = self.builder.load(run.functions[s], (run.number,))
        return True

    def _keep_function(self, s: Let, out: Value) -> None:
        run = self.run
        assert run is not None
        self.computed[out] = Computed(run.root, s, run.is_sweep)
        if run.is_sweep and s in run.functions:
            self.builder.store(run.functions[s], (run.number,), out)

    def _forward_load(self, s: Load) -> None:
        mem, index = self.scratch.get(s.mem, s.mem), self.values(s.index)
        (out,) = self.fresh((s.out,))
        # `origin` names the primal's load: `check_access` asks which loads the adjoint repeats.
        self.builder.add(self._from_log(s, out) or Load(out, mem, index, s.span, s.origin))

    def _forward_atomic(self, s: Atomic) -> None:
        if s.out is not None:
            (out,) = self.fresh((s.out,))
            # It is lost after the launch; see `reverse._lost_values`.
            lost = Mem(s.mem.name, out.type, 0, (), "lost")
            self.new_mems[lost] = None
            self.builder.add(self._from_log(s, out) or Load(out, lost, (), s.span, s.origin))
        self._propose(s)

    def _from_log(self, s: Load | Atomic, out: Value) -> Load | None:
        if (found := self.logged.get(s)) is None:
            return None
        return Load(out, found[0], (self.value(found[1]),), s.span)

    def _forward_block(self, block: Block) -> Block:
        with self.builder.block() as stmts:
            self.forward(block)
        return Block(stmts, self.values(block.yields))

    def _copy_alloca(self, s: Alloca, *, save: bool) -> None:
        """Emit scratch of the region itself, which holds the saved values of a gradient's loop."""
        b, count = self.builder, self.value(s.count)
        self.scratch[s.mem] = Mem(s.mem.name, s.mem.dtype, 1, None, "scratch")
        b.add(Alloca(self.scratch[s.mem], count, s.span))
        if save:
            grad = Mem(f"{s.mem.name}.adj", derivative_type(s.mem.dtype), 1, None, "scratch")
            self.scratch_grads[s.mem] = grad
            b.add(Alloca(grad, count, s.span))
            k = Value(count.type, "k")
            with b.block() as stmts:
                b.store(grad, (k,), zero(grad.dtype))
            first = b.const(0, count.type)
            b.add(For(k, first, count, (), (), Block(stmts), (), s.span))

    def _forward_custom(self, s: CustomCall, *, save: bool) -> None:
        """Emit the replay, or the body; the body too where `backward` goes through it."""
        if self.is_inner or (self.builder.is_inner and s.is_linear):
            self.builder.add(Rewriter(self.env).custom(s))
            # It stays, to be differentiated further; `backward` goes through a copy of its body.
            if save and not s.is_given:
                kept = self.values(s.outs)
                self.forward(s.body, save=True)
                self.env.update(zip(s.outs, kept, strict=True))
            return
        if s.replay is None or (save and not s.is_given):
            self.forward(s.body, save=save and not s.is_given)
        found = s.replay or s.body
        if s.replay is not None:
            self.forward(s.replay)
        bind(self.env, s, self.values(found.yields))

    def _propose(self, s: Atomic) -> None:
        """Emit the lane's proposal of itself as winner, made if its update reached the element."""
        winner = self.winners.get(updated_element(s, self.defs))
        if self.finding and winner is not None:
            b = self.builder
            extreme = b.load(s.mem, self.values(s.index), origin=s.origin)
            with b.block() as stmts:
                b.atomic("min", winner, (), self.lane)
            reached = b.named("eq", self.value(s.value), extreme)
            b.add(If(reached, Block(stmts), Block([]), (), s.span))

    def _forward_for(self, s: For, *, save: bool) -> None:
        b = self.builder
        lo, hi, inits = self.value(s.lo), self.value(s.hi), self.values(s.inits)
        if self._is_nested(s):
            self._run_nested(s, (lo, hi), inits)
            return
        save = save and self.is_reversed(s)
        groups = self._replaced_in(s) if save else []
        noted = {k for g in groups for k in g.positions}
        if save and (
            not groups or any(p in self.active for k, p in enumerate(s.params) if k not in noted)
        ):
            # `hi < lo` is a loop without iterations; scratch of a negative size must not be allocated.
            trips = b.named("max", hi - lo, b.const(0, lo.type))
            outs = self._save(s, (lo, hi), trips, inits, groups)
        else:
            outs = self._iterations(s, (lo, hi), inits, groups=groups)
        self.env.update(zip(s.outs, outs, strict=True))

    def is_reversed(self, s: For | While) -> bool:
        """Whether adjoints may flow into a loop; none flow into a search among given numbers."""
        if s not in self._reversed:
            inside = Block([s])
            flows = not self.active.isdisjoint(bound_in(inside))
            self._reversed[s] = flows or has_other_ways_in(inside)
        return self._reversed[s]

    def _is_nested(self, s: For | While) -> bool:
        """Whether a loop saves for all iterations of those around it."""
        return self.run is not None and s in self.run.nested

    def _run_nested(
        self, s: For | While, bounds: tuple[Value, Value], inits: tuple[Value, ...]
    ) -> None:
        """Emit a loop that saves for all iterations of those around it, or what it has saved for this one.

        `bounds`: for a while loop, names for those of the counted one.
        """
        b, run = self.builder, self.run
        assert run is not None
        groups = self._replaced_in(s) if isinstance(s, For) else []
        first = b.cast(run.number, i64) * b.const(most_iterations(s) or 0, i64)
        arrays, results = run.nested[s]
        saved = SavedLoopValue(bounds, arrays, run.nested, counted(s, inits), first)
        if run.is_sweep:
            if isinstance(s, While):
                outs = self._counting(s, inits, bounds[1], saved)
                known: tuple[Value, ...] = bounds[1:]
            else:
                outs = self._iterations(s, bounds, inits, saved, groups)
                known = tuple(v for last in self.replaced[s] for v in last.values)
            for mem, v in zip(results, (*outs, *known), strict=True):
                b.store(mem, (run.number,), v)
        else:
            found = tuple(b.load(mem, (run.number,)) for mem in results)
            outs, known = found[: len(s.outs)], found[len(s.outs) :]
            if isinstance(s, While):
                saved.bounds = bounds[0], known[0]
            self.saved[s], self.replaced[s] = saved, LastReplaced.several(groups, known)
        self.env.update(zip(s.outs, outs, strict=True))

    def _replaced_in(self, s: For) -> list[Replacing]:
        # Loops in segments are run in pieces, so nothing could be noted of all their iterations.
        return [] if s in self.checkpoints.split else replaced_values(s, self.active)

    def _forward_while(self, s: While, *, save: bool) -> None:
        """Emit a while loop that counts its iterations; it saves, or else the counted loop after it."""
        inits, trips = self.values(s.inits), Value(i64, "trips")
        # Once counted, a while loop is a for loop over its iteration number.
        bounds = (Const(i64, 0), trips)
        if self._is_nested(s):
            self._run_nested(s, bounds, inits)
            return
        save = save and self.is_reversed(s)
        length = self.checkpoints.split.get(s)
        if save and length is not None and not self.many_lanes:
            outs = self._save_at_once(s, bounds, inits, length)
            self.env.update(zip(s.outs, outs, strict=True))
            return
        most = most_iterations(s) if save and length is None else None
        saved = None if most is None else self._room(s, Const(i64, most), bounds, inits)
        outs = self._counting(s, inits, trips, saved)
        if saved is not None:
            self.replaced[s] = []
        elif save:
            outs = self._save(s, bounds, trips, inits)
        self.env.update(zip(s.outs, outs, strict=True))

    def _save_at_once(
        self, s: While, bounds: tuple[Value, Value], inits: tuple[Value, ...], length: int
    ) -> tuple[Value, ...]:
        """Emit a while loop that counts its iterations, and saves those of one segment.

        Where there are more, it is run again to save what each segment starts from.
        """
        b, trips, room = self.builder, bounds[1], Const(i64, length)
        # One place more, for what the iterations behind the segment would save.
        saved = self._room(s, Const(i64, length + 1), bounds, inits)
        self.replaced[s] = []
        outs = self._counting(s, inits, trips, saved, room)
        saved.is_long = b.named("gt", trips, room)
        saved.count = self._segments(trips, length)
        saved.marks = self._alloc(s, saved.count)
        more = b.named("select", saved.is_long, saved.count, Const(i64, 0))
        q, states = Value(i64, "segment"), tuple(Value(p.type, p.hint) for p in s.params)
        with b.block() as stmts:
            for mark, v in zip(saved.marks, states, strict=True):
                b.store(mark, (q,), v)
            begin, (nothing, size) = self._segment(s, q)
            ends = self._iterations(s, (nothing, size), states, begin=begin)
        unused = tuple(Value(v.type, v.hint) for v in s.outs)
        b.add(For(q, Const(i64, 0), more, states, inits, Block(stmts, ends), unused, s.span))
        return outs

    def _counting(
        self,
        s: While,
        inits: tuple[Value, ...],
        trips: Value,
        saved: SavedLoopValue | None,
        room: Value | None = None,
    ) -> tuple[Value, ...]:
        """Emit a while loop that counts its iterations as `trips`, and saves if there is room.

        `room`: for so many of them; the others save behind these.
        """
        b = self.builder
        params, n = self.fresh(s.params), Value(i64, "iteration")
        with b.block() as cond_stmts, self._in_run(None):
            self.forward(s.cond)
        cond = Block(cond_stmts, self.values(s.cond.yields))
        with b.block() as stmts:
            place = n if room is None else b.named("min", n, room)
            with self._in_run(self._start(s, saved, (place, Const(i64, 0)), params)):
                self.forward(s.body)
            b.span = s.span
            more = n + b.const(1, i64)
        body = Block(stmts, (*self.values(s.body.yields), more))
        outs = tuple(Value(v.type, v.hint) for v in s.outs)
        b.add(While((*params, n), (*inits, Const(i64, 0)), cond, body, (*outs, trips), s.span))
        return outs

    def _iterations(
        self,
        s: For | While,
        bounds: tuple[Value, Value],
        inits: tuple[Value, ...],
        saved: SavedLoopValue | None = None,
        groups: Sequence[Replacing] = (),
        begin: Value | None = None,
    ) -> tuple[Value, ...]:
        """Emit some iterations of a loop.

        Args:
            s: the loop.
            bounds: the first iteration and the end.
            inits: what they start from.
            saved: where each saves what it starts from.
            groups: values of which is noted which iteration replaced them last.
            begin: the index where the bounds have 0.
        """
        b = self.builder
        lo, hi = bounds
        index, params = Value(lo.type, index_hint(s)), self.fresh(s.params)
        with b.block() as stmts:
            if isinstance(s, For):
                self.env[s.index] = index if begin is None else begin + index
            with self._in_run(self._start(s, saved, (index, lo), params)):
                self.forward(s.body)
            b.span = s.span
            noting = [Noting(b, g, index, params, (lo, *inits)) for g in groups]
            nexts = [v for n in noting for v in n.yields(self.env, stmts)]
        body = Block(stmts, (*self.values(s.body.yields), *nexts))
        params += tuple(p for n in noting for p in n.params)
        inits += tuple(v for n in noting for v in n.inits)
        outs = tuple(Value(v.type, v.hint) for v in (*s.outs, *nexts))
        b.add(For(index, lo, hi, params, inits, body, outs, s.span, downwards(s)))
        self.replaced[s] = LastReplaced.several(groups, outs[len(s.outs) :])
        return outs[: len(s.outs)]

    def _start(
        self,
        s: For | While,
        saved: SavedLoopValue | None,
        index: tuple[Value, Value],
        params: tuple[Value, ...],
    ) -> Run | None:
        """Emit what an iteration saves of what it starts from; return what it is to the loops in it.

        `index`: its index, and that of the first one.
        """
        b, outer = self.builder, self.run
        if outer is not None and outer.is_sweep:
            swept = Swept(s, outer.around, outer.root)
            self.swept.update(dict.fromkeys((index[0], *params), swept))
        if saved is not None:
            place = saved.place(b, *index)
            for array, p in zip(saved.arrays, params, strict=True):
                b.store(array, (place,), p)
            root = s if saved.first is None or outer is None else outer.root
            known = saved.functions
            return Run(place, saved.nested, is_sweep=True, around=s, root=root, functions=known)
        # Loops further in are in the sweep of the root, too, though their number of runs is not known.
        return outer and outer._replace(nested={}, around=s)

    @contextlib.contextmanager
    def _in_run(self, run: Run | None) -> Iterator[None]:
        """Emit what is inside the `with` as part of such an iteration."""
        before, self.run = self.run, run
        try:
            yield
        finally:
            self.run = before

    def _save(
        self,
        s: For | While,
        bounds: tuple[Value, Value],
        trips: Value,
        inits: tuple[Value, ...],
        groups: Sequence[Replacing] = (),
    ) -> tuple[Value, ...]:
        """Emit a loop that saves the states its iterations (or those of its last segment) start from."""
        b = self.builder
        length = self.checkpoints.split.get(s)
        if length is None:
            return self._iterations(s, bounds, inits, self._room(s, trips, bounds, inits), groups)
        # Two-level checkpointing (Griewank and Walther, Evaluating Derivatives, ch. 12): segments + length
        # states instead of one for each iteration, and each iteration runs once more.
        longest, count = b.const(length, trips.type), self._segments(trips, length)
        saved = self._room(s, b.named("min", trips, longest), bounds, inits)
        saved.count, saved.marks = count, self._alloc(s, count)
        last = count - b.const(1, trips.type)
        q, states = Value(trips.type, "segment"), tuple(Value(p.type, p.hint) for p in s.params)
        with b.block() as stmts:
            for mark, v in zip(saved.marks, states, strict=True):
                b.store(mark, (q,), v)
            begin, bounds = self._segment(s, q)
            ends = self._iterations(s, bounds, states, begin=begin)
        outs = tuple(Value(v.type, v.hint) for v in s.outs)
        b.add(For(q, b.const(0, q.type), last, states, inits, Block(stmts, ends), outs, s.span))
        begin, bounds = self._segment(s, last)
        return self._iterations(s, bounds, outs, saved, begin=begin)

    def _segments(self, trips: Value, length: int) -> Value:
        """Emit how many segments iterations have: at least one, which is empty for a loop without any."""
        b = self.builder
        more = trips + b.const(length - 1, trips.type)
        found = b.named("int_div", more, b.const(length, trips.type))
        return b.named("max", found, b.const(1, trips.type))

    def _segment(self, s: For | While, q: Value) -> tuple[Value, tuple[Value, Value]]:
        """Emit the least index of the q-th segment of a loop; return it, and the segment's bounds from 0 on.

        Counted so, all lanes are at one place in what they save.
        """
        b = self.builder
        lo, hi = self.saved[s].bounds
        length, nothing = b.const(self.checkpoints.split[s], q.type), b.const(0, q.type)
        if downwards(s):
            end = hi - q * length
            size = b.named("min", length, end - lo)
            return end - size, (nothing, size)
        begin = lo + q * length
        return begin, (nothing, b.named("min", length, hi - begin))

    def _room(
        self,
        s: For | While,
        count: Value,
        bounds: tuple[Value, Value],
        inits: tuple[Value, ...],
    ) -> SavedLoopValue:
        """Allocate scratch for what a loop saves of that many iterations."""
        nested: dict[Stmt, NestedSaves] = {}
        arrays = self._alloc(s, count)
        self._alloc_nested(s.body, count, nested)
        self.saved[s] = saved = SavedLoopValue(bounds, arrays, nested, counted(s, inits))
        saved.functions = {
            let: self._scratch(f"{let.out.hint or let.op.name}.saved", let.out.type, count, s)
            for let in self.checkpoints.functions.get(s, ())
        }
        return saved

    def _alloc(self, s: For | While, count: Value) -> list[Mem]:
        """Allocate scratch for the values a loop carries; what is unused is removed as dead code."""
        return [self._scratch(f"{p.hint or 'carried'}.saved", p.type, count, s) for p in s.params]

    def _alloc_nested(self, block: Block, count: Value, nested: dict[Stmt, NestedSaves]) -> None:
        """Allocate scratch for the loops in a block that is run so many times, and for those in them."""
        b = self.builder
        for s in block.stmts:
            if isinstance(s, If):
                self._alloc_nested(s.then, count, nested)
                self._alloc_nested(s.orelse, count, nested)
            elif isinstance(s, (For, While)) and s in self.checkpoints.nested:
                all_ = b.cast(count, i64) * b.const(most_iterations(s) or 0, i64)
                known = [(f"{v.hint or 'result'}.saved", v.type) for v in s.outs]
                if isinstance(s, While):
                    known.append(("trips.saved", i64))
                else:
                    for _ in self._replaced_in(s):
                        known += [("replaced.saved", bool_), ("last.saved", s.index.type)]
                        known += [(f"{p.hint}.last.saved", p.type) for p in s.params]
                results = [self._scratch(name, t, count, s) for name, t in known]
                nested[s] = NestedSaves(self._alloc(s, all_), results)
                self._alloc_nested(s.body, all_, nested)

    def _scratch(self, name: str, t: Type, count: Value, s: For | While) -> Mem:
        made = Mem(name, t, 1, None, "scratch")
        self.builder.add(Alloca(made, count, s.span))
        self.loop_of[made] = s
        return made


def has_other_ways_in(block: Block) -> bool:
    """Whether adjoints may flow into a block by other ways than its results."""
    kinds = (Store, Atomic, CustomCall, InlineLLVM)
    return any(isinstance(s, kinds) for s in statements(block))
