"""Reverse mode: from a kernel to its adjoint kernel, task by task, on tensors.

Each task becomes one that runs the same lanes: first the forward code again, as far as the adjoint needs
it, from what the fields hold; then the adjoint of each statement, last statement first:

    y = op(x, ...)         x.adj += rule(y.adj)           (the op's row)
    y = load m[i]          m.grad[i] += y.adj
    store m[i], v          v.adj += m.grad[i]; m.grad[i] = 0     (what was there before is forgotten)
    atomic_add m[i], v     v.adj += m.grad[i]
    atomic_max m[i], v     if v == m[i] { v.adj += m.grad[i]; m.grad[i] = 0 }       (by one exchange)
    if c { } else { }      the same branch's forward code and adjoint; the other is not touched
    for, while             the turns backwards; the values carried into each turn were saved on the way

An adjoint in a region adds to values of the enclosing blocks through results (If) or carried sums (For), so
the adjoint is in SSA like everything else. Forward code, saves and sums that nothing needs are emitted all
the same and dropped by `drop_dead`: a loop whose adjoint does not read the carried values (any linear sum)
saves nothing.

Before, `simplicity` and after, `access_rules` refuse what would not be right.
"""

from __future__ import annotations

from diffsim.errors import AutodiffError
from diffsim.ir._row import REFUSE, Zero
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Scratch,
    Stmt,
    Store,
    Task,
    Value,
    While,
    zero,
)
from diffsim.ir.types import i64
from diffsim.ir.walk import Copier, free_values, task_statements
from diffsim.passes.access_rules import check_access
from diffsim.passes.activity import Activity
from diffsim.passes.dead import drop_dead
from diffsim.passes.simplicity import check_simplicity

Adjoints = dict[Value, Value]


def reverse(
    kernel: Kernel, *, relaxed: bool = False, detached: bool = False, in_place: bool = False
) -> tuple[Kernel, frozenset[Mem]]:
    """The adjoint kernel, and the memories that it must find as they were before the launch.

    Args:
        kernel: a prepared kernel.
        relaxed: whether kernels outside of the kernel simplicity rule are differentiated.
        detached: whether what the kernel stores counts as constant: its adjoint only forgets what the
            elements it stored to had to do with anything before.
        in_place: whether memories can be put back to what they were; without it there are none that
            must be.

    Raises:
        KernelSimplicityError, GlobalDataAccessError, AutodiffError: with the user's line.
    """
    if not relaxed and not detached:
        check_simplicity(kernel)
    kernel = _keep_temps(kernel)
    work = _Reverser(kernel, Activity(kernel, frozenset() if detached else None))
    adjoint = drop_dead(work.kernel())
    _refuse_lost(adjoint)
    return adjoint, check_access(kernel, adjoint, work.activity, in_place=in_place)


class _Reverser:
    def __init__(self, kernel: Kernel, activity: Activity) -> None:
        self.primal = kernel
        self.activity = activity
        self.active = self.activity.values
        self.builder = Builder(kernel.span)
        self.env: dict[Value, Value] = {}
        self.temp_grads: dict[Mem, Mem] = {
            m: Mem(f"{m.name}.adj", m.dtype, 0, (), "temp", is_grad=True)
            for m in kernel.mems
            if m in self.activity.temps
        }
        self.winners: dict[object, Mem] = {}
        self.finding = False
        self.saved: dict[Stmt, tuple[list[Mem], Value, Value]] = {}
        self.new_mems: dict[Mem, None] = dict.fromkeys(kernel.mems)
        for m in kernel.mems:
            if m.grad is not None:
                self.new_mems[m.grad] = None
        self.new_mems.update(dict.fromkeys(self.temp_grads.values()))
        self.seed: Arg | None = None
        """The gradient of what the kernel returns: one more argument of the adjoint."""
        if kernel.result is not None and kernel.result in self.activity.temps:
            self.seed = Arg(kernel.result.dtype, f"{kernel.result.name}.adj", len(kernel.args))

    def kernel(self) -> Kernel:
        k = self.primal
        with self.builder:
            tasks = [_replay(t) for t in k.tasks if _makes_temps(t)]
            if self.temp_grads:
                tasks.append(self._clear_temps())
            for t in reversed(k.tasks):
                tasks += self.task(t)
        args = k.args if self.seed is None else (*k.args, self.seed)
        return Kernel(f"{k.name}_grad", args, tuple(self.new_mems), tuple(tasks), k.span)

    def _clear_temps(self) -> Task:
        with self.builder.block() as stmts:
            for mem, grad in self.temp_grads.items():
                seeded = self.seed is not None and mem is self.primal.result
                self.builder.store(grad, (), self.seed if seeded else zero(grad.dtype))  # type: ignore[arg-type]
        return Task((), Block([]), Block(stmts), self.primal.span)

    def task(self, task: Task) -> list[Task]:
        self.winners = self._winners(task)
        before = self._find_winners(task) if self.winners else []
        bounds, axes = self._enter(task)
        with self.builder.block() as stmts:
            self.lane = self._lane(task, axes)
            self.forward(task.body, save=True)
            self.backward(task.body, {})
        return [*before, Task(axes, bounds, Block(stmts), task.span)]

    def _enter(self, task: Task) -> tuple[Block, tuple[Value, ...]]:
        """Bounds and axes of a task that runs the same lanes."""
        bounds = Copier().block(task.bounds)
        return bounds, self.fresh(task.axes)

    # ---- which lane wins an element that all lanes update

    def _winners(self, task: Task) -> dict[object, Mem]:
        """For each element that all lanes of the task may raise (or lower), the number of a lane."""
        if not task.axes:
            return {}
        return {
            _element(s): Mem(f"{s.mem.name}.winner", i64, 0, (), "temp")
            for s in task_statements(task)
            if isinstance(s, Atomic)
            and s.op in ("min", "max")
            and (s.mem in self.temp_grads or s.mem.grad is not None)
            and all(isinstance(i, LEAVES) for i in s.index)
        }

    def _find_winners(self, task: Task) -> list[Task]:
        """Tasks that find the first lane whose update reached the element."""
        b = self.builder
        self.new_mems.update(dict.fromkeys(self.winners.values()))
        with b.block() as init:
            for winner in self.winners.values():
                b.store(winner, (), Const(i64, 2**63 - 1))
        bounds, axes = self._enter(task)
        self.finding = True
        with b.block() as stmts:
            self.lane = self._lane(task, axes)
            self.forward(task.body)
        self.finding = False
        search = Task(axes, bounds, Block(stmts), task.span)
        return [Task((), Block([]), Block(init), task.span), search]

    def _lane(self, task: Task, axes: tuple[Value, ...]) -> Value:
        """The lane's number, counted along the flattened axes."""
        b = self.builder
        if not self.winners:
            return Const(i64, 0)
        lane = b.cast(axes[0], i64)
        if len(axes) > 1:
            ends = Copier().block(task.bounds)
            for s in ends.stmts:
                b.add(s)
            for k, axis in enumerate(axes[1:], 1):
                lo, hi = (b.cast(v, i64) for v in ends.yields[2 * k : 2 * k + 2])
                lane = lane * (hi - lo) + (b.cast(axis, i64) - lo)
        return lane

    def _propose(self, s: Atomic) -> None:
        """The lane proposes itself, if its update reached the element."""
        winner = self.winners.get(_element(s))
        if winner is not None:
            b = self.builder
            extreme = b.load(s.mem, self.values(s.index), origin=s.origin)
            with b.block() as stmts:
                b.atomic("min", winner, (), self.lane)
            reached = b.named("eq", self.value(s.value), extreme)
            b.add(If(reached, Block(stmts), Block([]), (), s.span))

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
            if isinstance(s, Let):
                args = self.values(s.args)
                (out,) = self.fresh((s.out,))
                b.add(Let(out, s.op, args, s.span))
            elif isinstance(s, Load):
                index = self.values(s.index)
                (out,) = self.fresh((s.out,))
                b.add(Load(out, s.mem, index, s.span, s.origin))
            elif isinstance(s, Atomic):
                if s.out is not None:
                    self._lose(s)
                if self.finding:
                    self._propose(s)
            elif isinstance(s, For):
                self._forward_for(s, save=save)
            elif isinstance(s, While):
                self._forward_while(s, save=save)
            elif isinstance(s, If):
                cond = self.value(s.cond)
                then, orelse = (self._forward_block(side) for side in (s.then, s.orelse))
                b.add(If(cond, then, orelse, self.fresh(s.outs), s.span))

    def _forward_block(self, block: Block) -> Block:
        with self.builder.block() as stmts:
            self.forward(block)
        return Block(stmts, self.values(block.yields))

    def _lose(self, s: Atomic) -> None:
        """The old value that an atomic returned can not be had again; see `_refuse_lost`."""
        assert s.out is not None
        lost = Mem(s.mem.name, s.out.type, 0, (), "lost")
        self.new_mems[lost] = None
        (out,) = self.fresh((s.out,))
        self.builder.add(Load(out, lost, (), s.span))

    def _forward_for(self, s: For, *, save: bool) -> None:
        b = self.builder
        lo, hi, inits = self.value(s.lo), self.value(s.hi), self.values(s.inits)
        rooms: list[Mem] = []
        if save:
            rooms = self._rooms(s, b.named("max", hi - lo, b.const(0, lo.type)))
            self.saved[s] = (rooms, lo, hi)
        (index,), params = self.fresh((s.index,)), self.fresh(s.params)
        with b.block() as stmts:
            if rooms:
                turn = (index - lo,)
                for room, p in zip(rooms, params, strict=True):
                    b.store(room, turn, p)
            self.forward(s.body)
            b.span = s.span
        body = Block(stmts, self.values(s.body.yields))
        b.add(For(index, lo, hi, params, inits, body, self.fresh(s.outs), s.span, s.reverse))

    def _forward_while(self, s: While, *, save: bool) -> None:
        """A while is run once to count its turns, and again, now counted, to save."""
        b = self.builder
        inits = self.values(s.inits)
        params, n = self.fresh(s.params), Value(i64, "turn")
        with b.block() as cond_stmts:
            self.forward(s.cond)
        cond = Block(cond_stmts, self.values(s.cond.yields))
        with b.block() as stmts:
            self.forward(s.body)
            b.span = s.span
            more = n + b.const(1, i64)
        body = Block(stmts, (*self.values(s.body.yields), more))
        outs, turns = self.fresh(s.outs), Value(i64, "turns")
        b.add(While((*params, n), (*inits, Const(i64, 0)), cond, body, (*outs, turns), s.span))
        if not save:
            return
        rooms = self._rooms(s, turns)
        nothing = Const(i64, 0)
        self.saved[s] = (rooms, nothing, turns)
        params, index = self.fresh(s.params), Value(i64, "turn")
        with b.block() as stmts:
            for room, p in zip(rooms, params, strict=True):
                b.store(room, (index,), p)
            self.forward(s.body)
        body = Block(stmts, self.values(s.body.yields))
        unused = tuple(Value(v.type) for v in s.outs)
        b.add(For(index, nothing, turns, params, inits, body, unused, s.span))
        self.env.update(zip(s.outs, outs, strict=True))

    def _rooms(self, s: For | While, count: Value) -> list[Mem]:
        """Scratch for the values a loop carries; unused ones are dropped later."""
        made = []
        for p in s.params:
            room = Mem(f"{p.hint or 'carried'}.saved", p.type, 1, None, "scratch")
            self.builder.add(Scratch(room, count, s.span))
            made.append(room)
        return made

    # ---- the adjoint

    def add(self, adj: Adjoints, v: Value, g: Value) -> None:
        """Add a contribution to the adjoint of a value of the primal."""
        if v not in self.active:
            return
        b = self.builder
        if g.type is not v.type:
            if not v.type.shape:
                g = b.named("sum", g)
            elif not g.type.shape:
                g = b.broadcast(g, v.type)
        have = adj.get(v)
        adj[v] = g if have is None else have + g

    def backward(self, block: Block, adj: Adjoints) -> None:
        """Emit the adjoint of a block whose forward code stands before it in the same block."""
        b = self.builder
        for s in reversed(block.stmts):
            b.span = s.span
            if isinstance(s, Let):
                self._let(s, adj)
            elif isinstance(s, Load):
                g = adj.pop(s.out, None)
                if g is not None:
                    b.atomic("add", self.grad(s.mem), self.values(s.index), g)
            elif isinstance(s, (Store, Atomic)):
                self._write(s, adj)
            elif isinstance(s, If):
                self._if(s, adj)
            elif isinstance(s, (For, While)):
                self._loop(s, adj)
            else:
                assert isinstance(s, (Check, Scratch))

    def grad(self, mem: Mem) -> Mem:
        found = self.temp_grads.get(mem) if mem.kind == "temp" else mem.grad
        assert found is not None
        return found

    def _let(self, s: Let, adj: Adjoints) -> None:
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
            if isinstance(rule, REFUSE):
                raise AutodiffError(f"{s.op.name} can not be differentiated: {rule.why}", s.span)
            made = rule(g, *args, y)
            if made is not None:
                self.add(adj, arg, made)

    def _write(self, s: Store | Atomic, adj: Adjoints) -> None:
        b = self.builder
        grad = self.temp_grads.get(s.mem) if s.mem.kind == "temp" else s.mem.grad
        if isinstance(s, Atomic) and s.out is not None and s.out in adj:
            raise AutodiffError(
                f"the old value of {s.mem.name} that this atomic returns can not be differentiated",
                s.span,
                hint="load the element in a launch of its own",
            )
        if grad is None:
            return
        index = self.values(s.index)
        if isinstance(s, Atomic):
            if s.op in ("min", "max"):
                self._route(s, grad, index, adj)
            elif s.value in self.active:
                self.add(adj, s.value, b.load(grad, index))
            return
        if s.value in self.active:
            self.add(adj, s.value, b.load(grad, index))
        b.store(grad, index, zero(s.value.type))

    def _route(self, s: Atomic, grad: Mem, index: tuple[Value, ...], adj: Adjoints) -> None:
        """The gradient of a minimum or maximum goes to one update that reached it.

        It is exchanged for 0, so where several reached it, one gets it and the others get 0; where none
        did, it stays for what the element was before. If all lanes update the same element, the first of
        them gets it.
        """
        b = self.builder
        nothing = zero(s.value.type)
        extreme = b.load(s.mem, index, origin=s.origin)
        won = b.named("eq", self.value(s.value), extreme)
        winner = self.winners.get(_element(s))
        if winner is not None:
            won = won & b.named("eq", self.lane, b.load(winner, ()))
        with b.block() as stmts:
            taken = b.atomic("xchg", grad, index, nothing, wants_old=True)
        assert taken is not None
        g = Value(s.value.type, f"{s.mem.name}.adj")
        b.add(If(won, Block(stmts, (taken,)), Block([], (nothing,)), (g,), s.span))
        self.add(adj, s.value, g)

    def _if(self, s: If, adj: Adjoints) -> None:
        b = self.builder
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
        outs = tuple(Value(v.type, f"{v.hint}.adj" if v.hint else "") for v in targets)
        b.span = s.span
        b.add(
            If(
                self.value(s.cond),
                Block(then, tuple(then_adj.get(v) or zero(v.type) for v in targets)),
                Block(orelse, tuple(else_adj.get(v) or zero(v.type) for v in targets)),
                outs,
                s.span,
            )
        )
        for v, g in zip(targets, outs, strict=True):
            self.add(adj, v, g)

    def _loop(self, s: For | While, adj: Adjoints) -> None:
        b = self.builder
        rooms, lo, hi = self.saved[s]
        carried = [k for k, p in enumerate(s.params) if p in self.active]
        outer = [v for v in free_values(s.body) if v in self.active and v not in s.params]
        starts: list[Value] = []
        for k in carried:
            out = s.outs[k]
            starts.append(adj.pop(out) if out in adj else zero(out.type))
        starts += [zero(v.type) for v in outer]
        names = [s.params[k] for k in carried] + outer
        params = tuple(Value(v.type, f"{v.hint}.adj" if v.hint else "") for v in names)
        index = Value(lo.type, s.index.hint if isinstance(s, For) else "turn")
        inner: Adjoints = {}
        with b.block() as stmts:
            if isinstance(s, For):
                self.env[s.index] = index
            turn = (index - lo,)
            for p, room in zip(s.params, rooms, strict=True):
                saved = b.load(room, turn)
                saved.hint = p.hint
                self.env[p] = saved
            self.forward(s.body, save=True)
            b.span = s.span
            for k, g in zip(carried, params, strict=False):
                self.add(inner, s.body.yields[k], g)
            sums = dict(zip(outer, params[len(carried) :], strict=True))
            self.backward(s.body, inner)
            b.span = s.span
            nexts = [inner.pop(p) if p in inner else zero(p.type) for p in names[: len(carried)]]
            for v in outer:
                extra = inner.pop(v, None)
                nexts.append(sums[v] if extra is None else sums[v] + extra)
        assert not inner, [v.hint for v in inner]
        outs = tuple(Value(p.type, p.hint) for p in params)
        backwards = not (isinstance(s, For) and s.reverse)
        body = Block(stmts, tuple(nexts))
        b.add(For(index, lo, hi, params, tuple(starts), body, outs, s.span, backwards))
        for k, g in zip(carried, outs, strict=False):
            self.add(adj, s.inits[k], g)
        for v, g in zip(outer, outs[len(carried) :], strict=True):
            self.add(adj, v, g)


def _element(s: Atomic) -> object:
    """What the element of an update is known by, if its index is made of leaves."""
    return s.mem, tuple(i.value if isinstance(i, Const) else i for i in s.index)


# ---- temporaries, and values that can not be had again


def _keep_temps(kernel: Kernel) -> Kernel:
    """The kernel with a new temporary wherever one that was read is written again.

    The adjoint makes all temporaries again before it starts, so each must keep its first value:

        for i in x: s += x[i]                     for i in x: s += x[i]
        for i in x: y[i] = s * x[i]        ->     for i in x: y[i] = s * x[i]
        for i in x: s += x[i] ** 2                s.1 = s
                                                  for i in x: s.1 += x[i] ** 2
    """
    work = _TempCopier()
    tasks: list[Task] = []
    for t in kernel.tasks:
        found = list(task_statements(t))
        written = dict.fromkeys(s.mem for s in found if isinstance(s, (Store, Atomic)))
        for m in [m for m in written if m in work.read]:
            old, new = work.mem(m), Mem(m.name, m.dtype, 0, (), "temp")
            v = Value(m.dtype, m.name)
            copy: list[Stmt] = [Load(v, old, (), t.span), Store(new, (), v, t.span)]
            tasks.append(Task((), Block([]), Block(copy), t.span))
            work.now[m] = new
            work.made.append(new)
            work.read.remove(m)
        work.read.update(s.mem for s in found if isinstance(s, Load) and s.mem.kind == "temp")
        tasks.append(work.task(t) if work.now else t)
    if not work.made:
        return kernel
    mems = (*kernel.mems, *work.made)
    result = None if kernel.result is None else work.mem(kernel.result)
    return Kernel(kernel.name, kernel.args, mems, tuple(tasks), kernel.span, result)


class _TempCopier(Copier):
    """Copies tasks; `now` holds the temporaries that stand for earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.now: dict[Mem, Mem] = {}
        self.made: list[Mem] = []
        self.read: set[Mem] = set()

    def mem(self, m: Mem) -> Mem:
        return self.now.get(m, m)

    def task(self, t: Task) -> Task:
        bounds, axes = self.block(t.bounds), self.fresh_all(t.axes)
        return Task(axes, bounds, self.block(t.body), t.span)


def _makes_temps(task: Task) -> bool:
    return any(
        isinstance(s, (Store, Atomic)) and s.mem.kind == "temp" for s in task_statements(task)
    )


def _replay(task: Task) -> Task:
    """The task with its effects on fields taken out: it makes the temporaries again."""
    work = _Replayer()
    axes = work.fresh_all(task.axes)
    bounds = work.block(task.bounds)
    return Task(axes, bounds, work.block(task.body), task.span)


class _Replayer(Copier):
    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Check):
            return []
        if isinstance(s, (Store, Atomic)) and s.mem.kind not in ("temp", "scratch"):
            if isinstance(s, Atomic) and s.out is not None:
                lost = Mem(s.mem.name, s.out.type, 0, (), "lost")
                return [Load(self.fresh(s.out), lost, (), s.span)]
            return []
        return [self.copy(s)]


def _refuse_lost(adjoint: Kernel) -> None:
    for t in adjoint.tasks:
        for s in task_statements(t):
            if isinstance(s, Load) and s.mem.kind == "lost":
                raise AutodiffError(
                    f"the gradient needs the old value of {s.mem.name} that this atomic returned, which "
                    "is not there any more",
                    s.span,
                    hint="store it into a field of its own, and read it there in a later launch",
                )
