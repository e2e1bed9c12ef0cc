"""Runs a kernel together with the sets of inputs that its floats depend on: 64 inputs at a time.

Beside each float memory there is one of 64-bit words. Bit k of a word says that the element depends on input
k, through rules that are not ZERO. Every float carries such a word; where ops combine floats, words are
combined by "or". The kernel's own results are unchanged, so branches and indices are those of the run.

A set has all inputs that a derivative comes from, and perhaps others: of a minimum all candidates, of a func
with a gradient of its own all arguments.

Assumes a prepared kernel. Promises scalar IR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.op import CUSTOM_LOWERING, TABLE, UNKNOWN, ZERO, Op, Zero
from diffsim.ir.traversal import outs, task_statements
from diffsim.ir.types import bool_, tensor, u64
from diffsim.passes.autodiff.custom_calls import Inliner
from diffsim.passes.transforms.scalarize import scalarize

# Only between the two steps of this pass: no row of the table, as no program has it.
_DEPENDS = Op(
    "depends",
    "F F -> F",
    "The first operand, which depends on the second one too.",
    ref=lambda a, b: a,
    lowering=CUSTOM_LOWERING,
    vjp=ZERO,
    continuation=UNKNOWN,
    sample=[(-1, 1), (-1, 1)],
    public=False,
)
_EMPTY = Const(u64, 0)


def has_sets(mem: Mem) -> bool:
    """Whether a memory is one whose elements depend on inputs: of floats, and no gradient."""
    return mem.dtype.scalar.is_float and not mem.is_grad


def set_memory(mem: Mem) -> Mem:
    """Return the memory of the sets of a field or array, passed to the kernel as an array."""
    # Of the same name: an index outside is outside both.
    return Mem(mem.name, tensor(u64, mem.dtype.shape), mem.rank, None, "array")


def is_known(kernel: Kernel) -> bool:
    """Whether all dependences go through what the kernel loads, stores and computes."""
    # A rule of the user's may add to the gradient of any element.
    inside = (s for t in kernel.tasks for s in task_statements(t, given=True))
    return not any(isinstance(s, CustomCall) and s.targets for s in inside)


def with_sets(kernel: Kernel, memories: Mapping[Mem, Mem]) -> Kernel:
    """Return the kernel that computes sets too.

    Args:
        kernel: a prepared kernel of which everything is known.
        memories: for its float fields and arrays, those of their sets.
    """
    marker = _CallMarker(kernel)
    inlined = kernel.replace(
        tasks=tuple(
            t.replace(bounds=marker.block(t.bounds), body=marker.block(t.body))
            for t in kernel.tasks
        )
    )
    scalar = scalarize(inlined, functions=None)
    sets = dict(memories)
    for m in scalar.mems:
        if m.kind == "temp" and has_sets(m):
            sets[m] = Mem(f"{m.name}.sets", tensor(u64, m.dtype.shape), m.rank, m.shape, "temp")
    emitter = _SetEmitter(kernel, sets)
    tasks = tuple(emitter.task(t) for t in scalar.tasks)
    return scalar.replace(tasks=tasks, mems=(*scalar.mems, *sets.values()))


class _CallMarker(Inliner):
    """Inlines calls; results of those with a gradient of their own depend on each argument."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.builder = Builder(kernel.span)

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, CustomCall) or not s.is_given:
            return super().stmt(s)
        b = self.builder
        b.span = s.span
        args = [a for a in self.values(s.args) if a.type.is_float]
        made = self.block(s.body)
        with b, b.block() as marks:
            sums = [b.named("sum", a) if a.type.shape else a for a in args]
            for out, v in zip(s.outs, made.yields, strict=True):
                marked = v
                for x in sums if v.type.is_float else ():
                    # Emitted as it is: a builder would fold it.
                    marked, old = Value(v.type, out.hint), marked
                    b.add(Let(marked, _DEPENDS, (old, b.cast(x, v.type.scalar)), s.span))
                self.env[out] = marked
        return [*made.stmts, *marks]


class _SetEmitter:
    """Emits statements on sets beside those of one kernel, which stay as they are.

    Attributes:
        sets: the set of each float that depends on something.
        memories: for each float memory, that of its sets.
    """

    def __init__(self, kernel: Kernel, memories: dict[Mem, Mem]) -> None:
        self.builder = Builder(kernel.span)
        self.sets: dict[Value, Value] = {}
        self.memories = memories

    def task(self, t: Task) -> Task:
        assert not t.reductions
        return t.replace(body=self.block(t.body))

    # ---- sets

    def of(self, v: Value) -> Value:
        return self.sets.get(v, _EMPTY)

    def union(self, vs: Sequence[Value]) -> Value | None:
        """Emit the union of the sets of these values; None: they depend on nothing."""
        found = list(dict.fromkeys(self.sets[v] for v in vs if v in self.sets))
        if not found:
            return None
        made = found[0]
        for other in found[1:]:
            made = self.builder.named("bit_or", made, other)
        return made

    def bind(self, v: Value, made: Value | None) -> None:
        if made is not None and v.type.is_float:
            self.sets[v] = made

    # ---- statements

    def block(self, block: Block, more: Sequence[Value] = ()) -> Block:
        """Return a block with its sets, which yields those of `more` too."""
        b = self.builder
        with b, b.block() as stmts:
            for s in block.stmts:
                b.span = s.span
                self.stmt(s)
        return Block(stmts, (*block.yields, *(self.of(v) for v in more)))

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Let):
            self.let(s)
        elif isinstance(s, (Load, Store, Atomic)):
            self.access(s)
        elif isinstance(s, (For, While)):
            self.loop(s)
        elif isinstance(s, If):
            self.branch(s)
        elif isinstance(s, Alloca):
            self.builder.add(s)
            if has_sets(s.mem):
                self.memories[s.mem] = made = Mem(f"{s.mem.name}.sets", u64, 1, None, "scratch")
                self.builder.add(Alloca(made, s.count, s.span))
        else:
            self.builder.add(s)
            if isinstance(s, InlineLLVM):
                # Nothing is known of the text: every result may depend on every argument.
                found = self.union(s.args)
                for out in outs(s):
                    self.bind(out, found)

    def let(self, s: Let) -> None:
        if s.op is _DEPENDS:
            # The same number, bit by bit, under a name of its own.
            a = s.args[0]
            self.builder.add(Let(s.out, TABLE["select"], (Const(bool_, True), a, a), s.span))
            self.bind(s.out, self.union(s.args))
            return
        self.builder.add(s)
        if s.out.type.is_float:
            through = [a for k, a in enumerate(s.args) if not isinstance(s.op.rule(k), Zero)]
            self.bind(s.out, self.union(through))

    def access(self, s: Load | Store | Atomic) -> None:
        b = self.builder
        beside = self.memories.get(s.mem)
        if beside is None:
            b.add(s)
            return
        if isinstance(s, Load):
            self.bind(s.out, b.load(beside, s.index))
        elif isinstance(s, Store):
            b.store(beside, s.index, self.of(s.value))
        else:
            # What the element held is in the sum, and may be asked for.
            old = None if s.out is None else Value(u64)
            b.add(Atomic(old, "or", beside, s.index, self.of(s.value), s.span))
            if s.out is not None:
                self.bind(s.out, old)
        b.add(s)

    def branch(self, s: If) -> None:
        floats = [k for k, out in enumerate(s.outs) if out.type.is_float]
        then, orelse = (
            self.block(side, [side.yields[k] for k in floats]) for side in (s.then, s.orelse)
        )
        made = [Value(u64) for _ in floats]
        self.builder.add(s.replace(then=then, orelse=orelse, outs=(*s.outs, *made)))
        for k, v in zip(floats, made, strict=True):
            self.bind(s.outs[k], v)

    def loop(self, s: For | While) -> None:
        """Let a loop carry the sets of the floats that it carries."""
        floats = [k for k, p in enumerate(s.params) if p.type.is_float]
        inits = tuple(self.of(s.inits[k]) for k in floats)
        params = tuple(Value(u64) for _ in floats)
        last = tuple(Value(u64) for _ in floats)
        for k, v in zip(floats, params, strict=True):
            self.bind(s.params[k], v)
        changes: dict[str, Any] = {
            "inits": (*s.inits, *inits),
            "params": (*s.params, *params),
            "outs": (*s.outs, *last),
        }
        # The condition only yields a boolean, but it may load and write.
        if isinstance(s, While):
            changes["cond"] = self.block(s.cond)
        changes["body"] = self.block(s.body, [s.body.yields[k] for k in floats])
        self.builder.add(s.replace(**changes))
        for k, v in zip(floats, last, strict=True):
            self.bind(s.outs[k], v)
