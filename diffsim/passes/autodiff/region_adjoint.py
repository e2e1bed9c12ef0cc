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

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from diffsim.errors import AutodiffError
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Atomic,
    Block,
    Check,
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
from diffsim.ir.traversal import free_values
from diffsim.ir.types import derivative_type
from diffsim.passes.analysis.affine import updated_element
from diffsim.passes.autodiff.custom_calls import AdjointCopier
from diffsim.passes.autodiff.forward_again import ForwardAgain, has_other_ways_in
from diffsim.passes.autodiff.loop_checkpoints import Run, downwards, index_hint
from diffsim.passes.autodiff.skipped_iterations import (
    CUTTING,
    Before,
    LastReplaced,
    followers,
    pay,
    skip_where_zero,
)
from diffsim.passes.kept.unread_branches import BranchReads

Adjoints = dict[Value, Value]


class Reverser(ForwardAgain):
    """Emits the adjoint of a region.

    Attributes:
        cut: adjoints that are 0 where their value was not selected (see `ops/formulas.py`).
        axes: of the task; `loops`: how many are around what is emitted.
        reads: what the blocks of the primal read.
    """

    def __init__(self, builder: Builder, active: set[Value], *, is_inner: bool = False) -> None:
        super().__init__(builder, active, is_inner=is_inner)
        builder.cut = self.cut = set[Value]()
        self.axes: tuple[Value, ...] = ()
        self.loops = 0
        self.reads = BranchReads()

    def grad(self, mem: Mem) -> Mem | None:
        """Return the memory of the gradient of what is stored in a memory."""
        return self.scratch_grads.get(mem) if mem.kind == "scratch" else mem.grad

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

    def backward(self, block: Block, adj: Adjoints, around: Before | None = None) -> None:
        """Emit the adjoint of a block whose forward code was emitted into the same block before.

        `around`: what comes before the branch that it is a side of.
        """
        b, done = self.builder, set[Stmt]()
        for k, s in reversed(tuple(enumerate(block.stmts))):
            b.span = s.span
            if s in done:
                continue
            if isinstance(s, Let):
                self._let(s, adj)
            elif isinstance(s, Load):
                self._load(s, adj)
            elif isinstance(s, (Store, Atomic)):
                self._write(s, adj)
            elif isinstance(s, If):
                self._if(s, adj, Before(block, k, done, (), around, {}))
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

    def _if(self, s: If, adj: Adjoints, before: Before) -> None:
        """Emit the adjoint of a branch, whose results are contributions to values from outside."""
        b = self.builder
        # The adjoint of a branch is a branch on the same condition: the one not taken contributes 0.
        incoming = [(k, adj.pop(out)) for k, out in enumerate(s.outs) if out in adj]
        sides: list[tuple[list[Stmt], Adjoints]] = []
        for side, other in ((s.then, s.orelse), (s.orelse, s.then)):
            inner: Adjoints = {}
            with b.block() as stmts:
                self.forward(self.reads.without_unread(side), save=True)
                b.span = s.span
                for k, g in incoming:
                    self.add(inner, side.yields[k], g)
                self.backward(side, inner, before.side(adj, self.reads.free(other)))
            sides.append((stmts, inner))
        self._followers(sides, adj, before)
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

    def _followers(
        self, sides: Sequence[tuple[list[Stmt], Adjoints]], adj: Adjoints, before: Before
    ) -> None:
        """Emit into the sides of a branch the adjoints of statements before it that are 0 elsewhere."""
        b = self.builder
        # Where the adjoint will be differentiated itself, it stays as it is written down.
        if b.is_inner:
            return
        for (stmts, inner), (_, other) in (sides, sides[::-1]):
            found = followers(before, inner, (adj, other), self.active)
            if not pay(
                [x for x, _ in found], in_loop=self.loops > 0, is_anywhere=self._is_anywhere
            ):
                continue
            with b.block() as more:
                for x, done in found:
                    b.span = x.span
                    done.add(x)
                    if isinstance(x, Let):
                        self._let(x, inner)
                    else:
                        self._load(x, inner)
            stmts += more

    def _is_anywhere(self, v: Value) -> bool:
        """Whether an index is loaded, or found by a branch or loop."""
        let = self.defs.get(v)
        if let is None:
            return not isinstance(v, LEAVES) and v not in self.axes
        return any(map(self._is_anywhere, let.args))

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
        # In the adjoint of an iteration, what comes of zeros would be zeros also for values that no adjoint
        # is collected of: those that `_last_replaced_back` leaves to the other iterations. Elsewhere a loop
        # that nothing flows into is reversed all the same: what it needs may be a reason to refuse a
        # tape, and all reasons are told at once.
        if not self.is_reversed(s):
            return
        if self.loops and not any(out in adj for out in s.outs) and not has_other_ways_in(s.body):
            return
        outer = [v for v in free_values(s.body) if v in self.active and v not in s.params]
        noted = self.replaced[s]
        for last in noted:
            self._last_replaced_back(s, last, outer, adj)
        # Adjoints of carried values are handed from an iteration to the one before it. Adjoints of values
        # from outside the loop are sums over all iterations, so they are carried as accumulators.
        skipped = {k for last in noted for k in last.positions}
        carried = [k for k, p in enumerate(s.params) if p in self.active and k not in skipped]
        if noted and not carried:
            return
        saved = self.saved[s]
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

    def _last_replaced_back(
        self, s: For | While, last: LastReplaced, outer: list[Value], adj: Adjoints
    ) -> None:
        """Emit the adjoint of the one iteration that values come from, if there was one."""
        if not any(s.outs[k] in adj for k in last.positions):
            return
        b, names = self.builder, [*(s.params[k] for k in last.positions), *outer]
        flowing = [adj.pop(s.outs[k], no_derivative(s.outs[k].type)) for k in last.positions]
        starts = (*flowing, *(no_derivative(v.type) for v in outer))

        def back() -> tuple[Value, ...]:
            with b.block() as stmts:
                nexts = self._iteration_back(s, last.iteration, last.starts, names, starts, None)
            outs = tuple(derivative_of(v, "adj") for v in names)
            b.add(If(last.happened, Block(stmts, nexts), Block([], starts), outs, s.span))
            return outs

        outs = skip_where_zero(b, s, flowing, self.cut, back)
        # Each of them is 0 on one side, which must survive an infinite factor.
        self.cut.update(outs)
        into = [*(s.inits[k] for k in last.positions), *outer]
        for v, g in zip(into, outs, strict=True):
            self.add(adj, v, g)

    @contextlib.contextmanager
    def _in_loop(self) -> Iterator[None]:
        self.loops += 1
        try:
            yield
        finally:
            self.loops -= 1

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
            begin, (nothing, size) = self._segment(s, q)
            runs_again = saved.is_long or q < count - b.const(1, q.type)
            again = b.named("select", runs_again, size, nothing)
            states = tuple(b.load(mark, (q,)) for mark in saved.marks)
            self._iterations(s, (nothing, again), states, saved, begin=begin)
            outs = self._iterations_back(s, (nothing, size), carried, outer, params, begin)
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
        begin: Value | None = None,
    ) -> tuple[Value, ...]:
        """Emit the adjoint of iterations whose starts are saved: of carried and of `outer` values.

        `begin`: the index where the bounds have 0.
        """
        b, saved = self.builder, self.saved[s]
        lo, hi = bounds
        names = [s.params[k] for k in carried] + outer
        params = tuple(derivative_of(v, "adj") for v in names)
        number = Value(lo.type, index_hint(s))
        with b.block() as stmts:
            place = saved.place(b, number, lo)
            index = number if begin is None else begin + number
            states = [saved.at_start(b, k, index, place) for k in range(len(s.params))]
            run = Run(
                place, saved.nested, is_sweep=False, around=s, root=s, functions=saved.functions
            )
            nexts = self._iteration_back(s, index, states, names, params, run)
        outs = tuple(Value(p.type, p.hint) for p in params)
        body = Block(stmts, nexts)
        b.add(For(number, lo, hi, params, starts, body, outs, s.span, not downwards(s)))
        return outs

    def _iteration_back(
        self,
        s: For | While,
        index: Value,
        states: Sequence[Value],
        names: Sequence[Value],
        flowing: Sequence[Value],
        run: Run | None,
    ) -> tuple[Value, ...]:
        """Emit the adjoint of one iteration.

        Args:
            s: the loop.
            index: the iteration.
            states: what it starts from.
            names: the carried values that adjoints flow into, and then values from outside.
            flowing: the adjoints of these, after the iteration; the results are those before it.
            run: what it is to loops in it that have saved with this one; None: they run again.
        """
        b = self.builder
        inner: Adjoints = {}
        if isinstance(s, For):
            self.env[s.index] = index
        for p, v in zip(s.params, states, strict=True):
            self.env[p] = v
            v.hint = p.hint
        given = dict(zip(names, flowing, strict=True))
        # Inner loops that have not saved for all iterations do so here, into scratch whose lifetime is this
        # block: memory for nested loops adds up instead of multiplying (docs/adr/0003).
        with self._in_run(run), self._in_loop():
            self.forward(s.body, save=True)
            b.span = s.span
            carried = [k for k, p in enumerate(s.params) if p in given]
            for k in carried:
                self.add(inner, s.body.yields[k], given[s.params[k]])
            self.backward(s.body, inner)
        b.span = s.span
        nexts = []
        for v in names:
            extra = inner.pop(v, None)
            if v in s.params:
                # A carried value that the body ignores ends its chain: its adjoint before is 0, not the
                # old one.
                nexts.append(no_derivative(v.type) if extra is None else extra)
            else:
                nexts.append(given[v] if extra is None else given[v] + extra)
        # A leftover would be a contribution lost without notice.
        assert not inner, [v.hint for v in inner]
        return tuple(nexts)
