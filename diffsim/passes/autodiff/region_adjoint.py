"""The adjoint of a region: its forward code again, then the adjoint of each statement, last one first.

    y = op(x, ...)         x.adj += rule(y.adj)           (the op's row)
    y = load m[i]          m.grad[i] += y.adj
    store m[i], v          v.adj += m.grad[i]; m.grad[i] = 0     (the old element has no effect)
    atomic_add m[i], v     v.adj += m.grad[i]
    atomic_max m[i], v     if v == m[i] { v.adj += m.grad[i]; m.grad[i] = 0 }       (by one exchange)
    if c { } else { }      the forward code and the adjoint of the branch taken
    for, while             the iterations backwards; what each of them starts from was saved on the way
    y = custom f(x, ...)   the user's rule (`custom_calls.py`)

An adjoint in a region adds to values of the enclosing blocks through results (If) or carried sums (For), so
the adjoint is in SSA form. Forward code, saves and sums are emitted whether needed or not, and removed as
dead code: a loop whose adjoint does not read the carried values (any linear sum) saves nothing.

`reverse.py` uses it for the adjoints of kernels, `inner_gradients.py` for `ds.grad` within a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from diffsim.errors import AutodiffError
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Check,
    Const,
    CustomCall,
    For,
    If,
    InlineLLVM,
    Let,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Value,
    While,
    derivative_of,
    no_derivative,
    zero,
)
from diffsim.ir.op import NotDifferentiable, Zero
from diffsim.ir.traversal import Rewriter, free_values
from diffsim.ir.types import derivative_type, i64
from diffsim.passes.analysis.affine import Definitions, updated_element
from diffsim.passes.autodiff.custom_calls import AdjointCopier, bind
from diffsim.passes.autodiff.loop_checkpoints import SavedLoopValue, counted, downwards, index_hint
from diffsim.passes.autodiff.skipped_loops import CUTTING, skip_where_zero

Adjoints = dict[Value, Value]


class Reverser:
    """Emits the adjoint of a region.

    Args:
        builder: where the statements go.
        active: the values that derivatives flow through.
        is_inner: whether the adjoint may be differentiated again: given calls stay, memory gets no gradient.

    Attributes:
        env: for each value of the region, its latest copy: forward code may be emitted several times.
        new_mems: memories that the adjoint needs besides.
        winners: for each element that all lanes may raise or lower, memory for the number of the lane whose
            update won; `finding`: whether this sweep determines it; `lane`: the number of this lane.
        split: the segment length of loops that are saved in segments; `loop_of`: whose saves a scratch holds.
        logged: for loads whose element has changed since, the log that has the value, and where.
        scratch: copies of the region's own scratch; `scratch_grads`: the adjoints of what they hold.
        cut: adjoints that are 0 where their value was not selected (see `ops/formulas.py`).
    """

    def __init__(self, builder: Builder, active: set[Value], *, is_inner: bool = False) -> None:
        self.builder = builder
        self.active = active
        self.is_inner = builder.is_inner = is_inner
        builder.cut = self.cut = set[Value]()
        self.env: dict[Value, Value] = {}
        self.split: dict[Stmt, int] = {}
        self.saved: dict[Stmt, SavedLoopValue] = {}
        self.loop_of: dict[Mem, For | While] = {}
        self.new_mems: dict[Mem, None] = {}
        self.winners: dict[object, Mem] = {}
        self.defs: Definitions = {}
        self.finding = False
        self.lane: Value = Const(i64, 0)
        self.logged: dict[Load | Atomic, tuple[Mem, Value]] = {}
        self.scratch: dict[Mem, Mem] = {}
        self.scratch_grads: dict[Mem, Mem] = {}

    def grad(self, mem: Mem) -> Mem | None:
        """Return the memory of the gradient of what is stored in a memory."""
        return self.scratch_grads.get(mem) if mem.kind == "scratch" else mem.grad

    # ---- the forward code again

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
                args = self.values(s.args)
                (out,) = self.fresh((s.out,))
                b.add(Let(out, s.op, args, s.span))
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
                self._forward_custom(s, save=save)

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
        if save:
            # `hi < lo` is a loop without iterations; scratch of a negative size must not be allocated.
            trips = b.named("max", hi - lo, b.const(0, lo.type))
            outs = self._save(s, (lo, hi), trips, inits)
        else:
            outs = self._iterations(s, (lo, hi), inits)
        self.env.update(zip(s.outs, outs, strict=True))

    def _forward_while(self, s: While, *, save: bool) -> None:
        """Emit a while loop that counts its iterations, and then the counted loop, which saves."""
        b = self.builder
        inits = self.values(s.inits)
        params, n = self.fresh(s.params), Value(i64, "iteration")
        with b.block() as cond_stmts:
            self.forward(s.cond)
        cond = Block(cond_stmts, self.values(s.cond.yields))
        with b.block() as stmts:
            self.forward(s.body)
            b.span = s.span
            more = n + b.const(1, i64)
        body = Block(stmts, (*self.values(s.body.yields), more))
        outs, trips = self.fresh(s.outs), Value(i64, "trips")
        b.add(While((*params, n), (*inits, Const(i64, 0)), cond, body, (*outs, trips), s.span))
        # Once counted, a while loop is a for loop over its iteration number.
        if save:
            self._save(s, (Const(i64, 0), trips), trips, inits)

    def _iterations(
        self,
        s: For | While,
        bounds: tuple[Value, Value],
        inits: tuple[Value, ...],
        arrays: Sequence[Mem] = (),
    ) -> tuple[Value, ...]:
        """Emit some iterations of a loop; `arrays`: where they save what they start from."""
        b = self.builder
        lo, hi = bounds
        index, params = Value(lo.type, index_hint(s)), self.fresh(s.params)
        if isinstance(s, For):
            self.env[s.index] = index
        with b.block() as stmts:
            if arrays:
                iteration = (index - lo,)
                for array, p in zip(arrays, params, strict=True):
                    b.store(array, iteration, p)
            self.forward(s.body)
            b.span = s.span
        body = Block(stmts, self.values(s.body.yields))
        outs = tuple(Value(v.type, v.hint) for v in s.outs)
        b.add(For(index, lo, hi, params, inits, body, outs, s.span, downwards(s)))
        return outs

    def _save(
        self, s: For | While, bounds: tuple[Value, Value], trips: Value, inits: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Emit a loop that saves the states its iterations (or those of its last segment) start from."""
        b = self.builder
        length = self.split.get(s)
        if length is None:
            arrays = self._alloc(s, trips)
            self.saved[s] = SavedLoopValue(bounds, arrays, counter=counted(s, inits))
            return self._iterations(s, bounds, inits, arrays)
        # Two-level checkpointing (Griewank and Walther, Evaluating Derivatives, ch. 12): segments + length
        # states instead of one for each iteration, and each iteration runs once more.
        one, longest = b.const(1, trips.type), b.const(length, trips.type)
        # At least one segment, so that the last one exists (and is empty) for a loop without iterations.
        count = b.named(
            "max", b.named("int_div", trips + b.const(length - 1, trips.type), longest), one
        )
        arrays, marks = self._alloc(s, b.named("min", trips, longest)), self._alloc(s, count)
        last = count - one
        self.saved[s] = SavedLoopValue(bounds, arrays, marks, count, counted(s, inits))
        q, states = Value(trips.type, "segment"), tuple(Value(p.type, p.hint) for p in s.params)
        with b.block() as stmts:
            for mark, v in zip(marks, states, strict=True):
                b.store(mark, (q,), v)
            ends = self._iterations(s, self._segment(s, q), states)
        outs = tuple(Value(v.type, v.hint) for v in s.outs)
        b.add(For(q, b.const(0, q.type), last, states, inits, Block(stmts, ends), outs, s.span))
        return self._iterations(s, self._segment(s, last), outs, arrays)

    def _segment(self, s: For | While, q: Value) -> tuple[Value, Value]:
        """Emit the first iteration of the q-th segment of a loop, and the end of it."""
        b = self.builder
        lo, hi = self.saved[s].bounds
        length = b.const(self.split[s], q.type)
        if downwards(s):
            end = hi - q * length
            return end - b.named("min", length, end - lo), end
        begin = lo + q * length
        return begin, begin + b.named("min", length, hi - begin)

    def _alloc(self, s: For | While, count: Value) -> list[Mem]:
        """Allocate scratch for the values a loop carries; what is unused is removed as dead code."""
        made = []
        for p in s.params:
            array = Mem(f"{p.hint or 'carried'}.saved", p.type, 1, None, "scratch")
            self.builder.add(Alloca(array, count, s.span))
            self.loop_of[array] = s
            made.append(array)
        return made

    # ---- the adjoint

    def add(self, adj: Adjoints, v: Value, g: Value) -> None:
        """Add a contribution to the adjoint of a value of the primal."""
        if v not in self.active:
            return
        b, is_cut = self.builder, g in self.cut
        if g.type.shape != v.type.shape:
            # The adjoint of broadcasting is the sum over the components, and that of the sum is broadcasting.
            if not v.type.shape:
                g = b.named("sum", g)
            elif not g.type.shape:
                g = b.broadcast(g, derivative_type(v.type))
        have = adj.get(v)
        if have is not None:
            is_cut, g = is_cut and have in self.cut, have + g
        adj[v] = g
        if is_cut:
            self.cut.add(g)

    def backward(self, block: Block, adj: Adjoints) -> None:
        """Emit the adjoint of a block whose forward code was emitted into the same block before."""
        b = self.builder
        for s in reversed(block.stmts):
            b.span = s.span
            if isinstance(s, Let):
                self._let(s, adj)
            elif isinstance(s, Load):
                self._load(s, adj)
            elif isinstance(s, (Store, Atomic)):
                self._write(s, adj)
            elif isinstance(s, If):
                self._if(s, adj)
            elif isinstance(s, (For, While)):
                self._loop(s, adj)
            elif isinstance(s, CustomCall):
                self._custom(s, adj)
            elif isinstance(s, InlineLLVM):
                if any(out in adj for out in s.outs):
                    raise AutodiffError(
                        f"{s.name} is LLVM text that no adjoint is given for",
                        s.span,
                        hint="give ds.func_native adj_text, or @ds.func_grad (which can be "
                        "differentiated again)",
                    )
            else:
                assert isinstance(s, (Check, Print, Alloca))

    def _load(self, s: Load, adj: Adjoints) -> None:
        """Emit the adjoint of a load: scatter-add to the gradient of the element."""
        g, b = adj.pop(s.out, None), self.builder
        if g is None:
            return
        grad, index = self.grad(s.mem), self.values(s.index)
        assert grad is not None
        if s.mem.kind == "scratch":
            b.store(grad, index, b.load(grad, index) + g)
        else:
            b.atomic("add", grad, index, g)

    def _let(self, s: Let, adj: Adjoints) -> None:
        """Emit the vector-Jacobian product of an op: its row's rule for each active argument."""
        # SSA: all uses of the value come later in the program, so its adjoint is complete here.
        g = adj.pop(s.out, None)
        if g is None:
            return
        args, y = self.values(s.args), self.value(s.out)
        for k, arg in enumerate(s.args):
            if arg not in self.active:
                continue
            rule = s.op.rule(k)
            if isinstance(rule, Zero):
                continue
            if isinstance(rule, NotDifferentiable):
                raise AutodiffError(rule.why, s.span, hint=rule.hint)
            made = rule(g, *args, y)
            if made is not None:
                # Rules are linear in g, so a 0 that stands for "not selected" stays one through every further
                # rule.
                if g in self.cut or s.op in CUTTING:
                    self.cut.add(made)
                self.add(adj, arg, made)

    def _write(self, s: Store | Atomic, adj: Adjoints) -> None:
        """Emit the adjoint of a store or an atomic update: the value gathers the gradient of the element."""
        b = self.builder
        grad = self.grad(s.mem)
        if isinstance(s, Atomic) and s.out is not None and s.out in adj:
            raise AutodiffError(
                f"the old value of {s.mem.name} that this atomic returns cannot be differentiated",
                s.span,
                hint="load the element in a launch of its own",
            )
        if grad is None:
            return
        index = self.values(s.index)
        if isinstance(s, Atomic):
            if s.op in ("min", "max"):
                self._min_max(s, grad, index, adj)
            # An addition leaves the old value in place with derivative 1, so the element's gradient stays.
            elif s.value in self.active:
                self.add(adj, s.value, b.load(grad, index))
            return
        if s.value in self.active:
            self.add(adj, s.value, b.load(grad, index))
        # Also where the stored value is a constant: the element's old value no longer has any effect.
        b.store(grad, index, no_derivative(s.value.type))

    def _min_max(self, s: Atomic, grad: Mem, index: tuple[Value, ...], adj: Adjoints) -> None:
        """Emit the adjoint of a minimum or maximum: its gradient goes to one update that reached it.

        It is exchanged for 0, so where several reached it, one gets it and the others get 0; where none
        did, it stays for what the element was before. If all lanes update the same element, the first of
        them gets it.
        """
        b = self.builder
        nothing = no_derivative(s.value.type)
        extreme = b.load(s.mem, index, origin=s.origin)
        # Comparing bits is exact: `access_rules` refuses elements that changed after the update, and values
        # that depend on the order of a float sum.
        won = b.named("eq", self.value(s.value), extreme)
        winner = self.winners.get(updated_element(s, self.defs))
        if winner is not None:
            won = won & b.named("eq", self.lane, b.load(winner, ()))
        with b.block() as stmts:
            # The exchange hands the gradient out once even if several updates tie: a valid subgradient.
            taken = b.atomic("xchg", grad, index, nothing, wants_old=True)
        assert taken is not None
        g = Value(nothing.type, f"{s.mem.name}.adj")
        b.add(If(won, Block(stmts, (taken,)), Block([], (nothing,)), (g,), s.span))
        self.add(adj, s.value, g)

    def _if(self, s: If, adj: Adjoints) -> None:
        """Emit the adjoint of a branch, whose results are contributions to values from outside."""
        b = self.builder
        # The adjoint of a branch is a branch on the same condition: the one not taken contributes 0.
        incoming = [(k, adj.pop(out)) for k, out in enumerate(s.outs) if out in adj]
        sides: list[tuple[list[Stmt], Adjoints]] = []
        for side in (s.then, s.orelse):
            inner: Adjoints = {}
            with b.block() as stmts:
                self.forward(side, save=True)
                b.span = s.span
                for k, g in incoming:
                    self.add(inner, side.yields[k], g)
                self.backward(side, inner)
            sides.append((stmts, inner))
        (then, then_adj), (orelse, else_adj) = sides
        targets = [*then_adj, *(v for v in else_adj if v not in then_adj)]
        outs = tuple(derivative_of(v, "adj") for v in targets)
        b.span = s.span
        b.add(
            If(
                self.value(s.cond),
                Block(then, tuple(then_adj.get(v) or no_derivative(v.type) for v in targets)),
                Block(orelse, tuple(else_adj.get(v) or no_derivative(v.type) for v in targets)),
                outs,
                s.span,
            )
        )
        for v, g in zip(targets, outs, strict=True):
            # The side that does not use the value yields a literal 0, which must survive an infinite factor.
            if any(v not in side or side[v] in self.cut for side in (then_adj, else_adj)):
                self.cut.add(g)
            self.add(adj, v, g)

    def _custom(self, s: CustomCall, adj: Adjoints) -> None:
        """Emit the user's rule for a call, or the adjoint of its body if there is none."""
        incoming = [adj.pop(out, None) for out in s.outs]
        if s.adjoint is None:
            for y, g in zip(s.body.yields, incoming, strict=True):
                if g is not None:
                    if s.refusal:
                        raise AutodiffError(
                            s.refusal,
                            s.span,
                            hint=f"write out in the gradient what {s.name} computes, instead of calling it",
                        )
                    self.add(adj, y, g)
            if not s.refusal:
                self.backward(s.body, adj)
            return
        if all(g is None for g in incoming):
            return
        for seed, g in zip(s.seeds, incoming, strict=True):
            self.env[seed] = zero(seed.type) if g is None else g
        made = AdjointCopier(self.env, is_inner=self.is_inner).block(s.adjoint)
        for stmt in made.stmts:
            self.builder.add(stmt)
        for arg, g in zip(s.args, made.yields, strict=True):
            self.add(adj, arg, g)

    def _loop(self, s: For | While, adj: Adjoints) -> None:
        """Emit the adjoint of a loop: its iterations backwards, from the states that `_save` has kept."""
        saved = self.saved[s]
        # Adjoints of carried values are handed from an iteration to the one before it. Adjoints of values
        # from outside the loop are sums over all iterations, so they are carried as accumulators.
        carried = [k for k, p in enumerate(s.params) if p in self.active]
        outer = [v for v in free_values(s.body) if v in self.active and v not in s.params]
        ends = [s.outs[k] for k in carried]
        starts = [adj.pop(out, no_derivative(out.type)) for out in ends]
        starts += [no_derivative(v.type) for v in outer]
        if saved.count is None:
            back = partial(self._iterations_back, s, saved.bounds, carried, outer, tuple(starts))
        else:
            back = partial(self._segments_back, s, saved.count, carried, outer, tuple(starts))
        outs = skip_where_zero(self.builder, s, starts, self.cut, back)
        for k, g in zip(carried, outs, strict=False):
            self.add(adj, s.inits[k], g)
        for v, g in zip(outer, outs[len(carried) :], strict=True):
            self.add(adj, v, g)

    def _segments_back(
        self,
        s: For | While,
        count: Value,
        carried: list[int],
        outer: list[Value],
        starts: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        """Emit the adjoints of the segments, last one first; the others are run again before, to save."""
        b, saved = self.builder, self.saved[s]
        q = Value(count.type, "segment")
        params = tuple(Value(v.type, v.hint) for v in starts)
        with b.block() as stmts:
            begin, end = self._segment(s, q)
            again = b.named("select", q < count - b.const(1, q.type), end, begin)
            states = tuple(b.load(mark, (q,)) for mark in saved.marks)
            self._iterations(s, (begin, again), states, saved.arrays)
            outs = self._iterations_back(s, (begin, end), carried, outer, params)
        results = tuple(Value(p.type, p.hint) for p in params)
        body, first = Block(stmts, outs), b.const(0, q.type)
        b.add(For(q, first, count, params, starts, body, results, s.span, reverse=True))
        return results

    def _iterations_back(
        self,
        s: For | While,
        bounds: tuple[Value, Value],
        carried: list[int],
        outer: list[Value],
        starts: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        """Emit the adjoint of iterations whose starts are saved: of carried and of `outer` values."""
        b = self.builder
        lo, hi = bounds
        names = [s.params[k] for k in carried] + outer
        params = tuple(derivative_of(v, "adj") for v in names)
        index = Value(lo.type, index_hint(s))
        inner: Adjoints = {}
        with b.block() as stmts:
            if isinstance(s, For):
                self.env[s.index] = index
            for k, p in enumerate(s.params):
                self.env[p] = saved = self.saved[s].at_start(b, k, index, lo)
                saved.hint = p.hint
            # Inner loops save here, once for each outer iteration, into scratch whose lifetime is this block:
            # memory for nested loops adds up instead of multiplying (docs/adr/0003).
            self.forward(s.body, save=True)
            b.span = s.span
            for k, g in zip(carried, params, strict=False):
                self.add(inner, s.body.yields[k], g)
            sums = dict(zip(outer, params[len(carried) :], strict=True))
            self.backward(s.body, inner)
            b.span = s.span
            # A carried value that the body ignores ends its chain: its adjoint before is 0, not the old one.
            nexts = [inner.pop(p, no_derivative(p.type)) for p in names[: len(carried)]]
            for v in outer:
                extra = inner.pop(v, None)
                nexts.append(sums[v] if extra is None else sums[v] + extra)
        # A leftover would be a contribution lost without notice.
        assert not inner, [v.hint for v in inner]
        outs = tuple(Value(p.type, p.hint) for p in params)
        body = Block(stmts, tuple(nexts))
        b.add(For(index, lo, hi, params, starts, body, outs, s.span, not downwards(s)))
        return outs
