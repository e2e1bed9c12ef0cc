"""A kernel that writes down which elements the lanes of a task access.

Whether two accesses meet may depend on what is known only at a launch: arguments, and numbers in fields that
indices are computed from. This kernel is the code of one task again, without its effects on fields and
without what no index needs. In place of each traced access it appends a note to the row of its lane. Its
first launch, with no room for notes, counts them; the second one, with the starts of the rows, writes them.

Where the condition of a branch cannot be computed again, lanes may be assumed to enter it:

    if i + 1 < n and y[i] > y[o]:       y is not as it was when the kernel read it
        y[i] = b

Such a trace notes all that the lanes accessed, and more. Where no two of its notes meet, nothing has met.
What else holds in a branch is kept (`i + 1 < n`), and nothing may be loaded in one that is only assumed: its
index might be out of bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    Dim,
    For,
    If,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Mem,
    Print,
    RngKey,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import Rewriter, blocks, outs, statements, task_statements, uses
from diffsim.ir.types import TensorType, bool_, i64
from diffsim.passes.analysis.affine import task_definitions
from diffsim.passes.analysis.counted_loops import implied
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.autodiff.custom_calls import Replayer, notes_of, replay, writes_temps
from diffsim.passes.transforms.dce import eliminate_dead_code


@dataclass(frozen=True, slots=True)
class IndexTrace:
    """Kernels that tell what the lanes of one task access, and the memories that they write.

    A note is (element * components + component), in row order, and below it `bits_of_site` bits for the site.

    Attributes:
        ir: writes the notes.
        bounds_ir: writes `bounds`: the first number of each axis of the task, and the one after the last.
        sites: the traced accesses.
        limits: the bounds of the axes in the kernel itself.
        written: as that of the task.
        cursor: for each lane, where its next note goes. limit: how many there is room for.
        notes: those for which there is room.
        assumed: whether lanes are assumed to have entered some branches.
    """

    ir: Kernel
    bounds_ir: Kernel
    sites: tuple[Access, ...]
    limits: tuple[Value, ...]
    written: tuple[int, ...]
    bounds: Mem
    cursor: Mem
    limit: Mem
    notes: Mem
    assumed: bool = False

    @property
    def own(self) -> frozenset[Mem]:
        """The memories that only the trace uses."""
        return frozenset((self.bounds, self.cursor, self.limit, self.notes))

    def leaves(self) -> dict[Value, None]:
        """Return the arguments and dimensions that it uses."""
        return {**used_leaves(self.ir), **used_leaves(self.bounds_ir)}

    def loaded(self) -> set[Mem]:
        """Return the fields and arrays that it loads from."""
        return {
            s.mem
            for t in (*self.ir.tasks, *self.bounds_ir.tasks)
            for s in task_statements(t)
            if isinstance(s, Load) and s.mem.kind in ("field", "array") and s.mem not in self.own
        }


def bits_of_site(sites: Collection[Access]) -> int:
    """Return how many bits of a note tell which of these accesses it is of."""
    return (len(sites) - 1).bit_length()


def index_trace(
    kernel: Kernel, number: int, sites: Sequence[Access], *, assume: bool = False
) -> IndexTrace | None:
    """Return the trace of accesses of task `number`; None if their indices cannot be computed again.

    They can if they depend on no random number, and on nothing that the kernel writes after it is read.

    Args:
        kernel: the kernel.
        number: which of its tasks.
        sites: the accesses.
        assume: whether lanes may be assumed to enter branches whose conditions cannot be computed again.
    """
    task = kernel.tasks[number]
    trace = _traced(kernel, number, _Tracer(kernel, task, sites))
    if trace is not None or not assume:
        return trace
    try:
        changed = _changed_values(task, _written_from(kernel, number))
    except _NotFollowed:
        return None
    work = _AssumingTracer(kernel, task, sites, _KnownConditions(task, changed))
    trace = _traced(kernel, number, work)
    if trace is None or any(
        isinstance(s, Load) and s.origin in work.assumed
        for t in trace.ir.tasks
        for s in task_statements(t)
    ):
        return None
    return replace(trace, assumed=True)


def _traced(kernel: Kernel, number: int, work: _Tracer) -> IndexTrace | None:
    """Return what a tracer makes of a task."""
    task = kernel.tasks[number]
    temps = [replay(t) for t in kernel.tasks[:number] if writes_temps(t)]
    traced = work.traced()
    # A custom gradient's own blocks, and the bounds of loops over lanes, are no part of a lane's code.
    if work.met != set(work.sites) or task.reductions:
        return None
    bounds = Mem("bounds", i64, 1, None, "array")
    mems = (*kernel.mems, bounds, work.cursor, work.limit, work.notes)

    def made(last: Task) -> Kernel:
        return eliminate_dead_code(
            Kernel(f"{kernel.name}_indices", kernel.args, mems, (*temps, last), kernel.span)
        )

    trace = IndexTrace(
        made(traced),
        made(_bounds_task(task, bounds)),
        tuple(work.sites),
        task.bounds.yields,
        task.written,
        bounds,
        work.cursor,
        work.limit,
        work.notes,
    )
    repeatable = all(_repeatable(k, kernel) for k in (trace.ir, trace.bounds_ir))
    return trace if repeatable else None


def _written_from(kernel: Kernel, number: int) -> set[Mem]:
    """Return what task `number` and later ones write."""
    return {
        s.mem
        for t in kernel.tasks[number:]
        for s in task_statements(t)
        if isinstance(s, (Store, Atomic))
    }


def used_leaves(kernel: Kernel) -> dict[Value, None]:
    """Return the arguments, dimensions and random keys that a kernel uses, in order of first use."""
    kinds = (Arg, Dim, RngKey)
    found: dict[Value, None] = {}
    for t in kernel.tasks:
        for s in task_statements(t):
            found.update(dict.fromkeys(v for v in uses(s) if isinstance(v, kinds)))
            for inner in blocks(s):
                found.update(dict.fromkeys(v for v in inner.yields if isinstance(v, kinds)))
        found.update(dict.fromkeys(v for v in t.bounds.yields if isinstance(v, kinds)))
    return found


def _repeatable(trace: Kernel, kernel: Kernel) -> bool:
    """Whether a trace of a kernel, run after it, computes the numbers that the kernel did."""
    if any(isinstance(v, RngKey) for v in used_leaves(trace)):
        return False
    task_of = {s: k for k, t in enumerate(kernel.tasks) for s in task_statements(t)}
    written = {s.mem: k for s, k in task_of.items() if isinstance(s, (Store, Atomic))}
    # A lane's own notes are as it left them.
    for call in task_of:
        noted = notes_of(call)
        if noted is not None:
            del written[noted[1]]
    for t in trace.tasks:
        for s in task_statements(t):
            # Text that the user wrote may do anything.
            if isinstance(s, InlineLLVM):
                return False
            if not isinstance(s, Load) or s.mem not in written:
                if isinstance(s, Load) and s.mem.kind == "lost":
                    return False
                continue
            # What later tasks write was another number when this one read it; what the lanes of the same
            # task write is in no order. (Scratch is a lane's own.)
            if s.mem.kind != "scratch" and written[s.mem] >= task_of.get(s.origin, -1):
                return False
    return True


def _bounds_task(task: Task, bounds: Mem) -> Task:
    """Return a serial task that stores the bounds of the axes."""
    copied = Rewriter().block(task.bounds)
    b = Builder(task.span)
    with b, b.block() as stmts:
        for s in copied.stmts:
            b.add(s)
        for k, v in enumerate(copied.yields):
            b.store(bounds, (Const(i64, k),), b.cast(v, i64))
    return Task((), Block([]), Block(stmts), task.span)


class _Tracer(Replayer):
    """Copies the code of a lane, with notes in place of accesses; `met`: the accesses that it came by."""

    def __init__(self, kernel: Kernel, task: Task, sites: Sequence[Access]) -> None:
        super().__init__()
        self.task = task
        self.sites = {s: k for k, s in enumerate(sites)}
        self.met: set[Access] = set()
        self.cursor, self.limit, self.notes = (
            Mem(name, i64, rank, None, "array")
            for name, rank in (("cursor", 1), ("limit", 0), ("notes", 1))
        )
        self.builder = Builder(kernel.span)

    def traced(self) -> Task:
        """Return the task with notes."""
        t = self.task
        bounds = Rewriter().block(t.bounds)
        axes = self.fresh_all(t.axes)
        b = self.builder
        with b, b.block() as stmts:
            self.lane = self._lane(axes)
            self.room = b.load(self.limit, ())
        body = self.block(t.body)
        return Task(axes, bounds, Block([*stmts, *body.stmts]), t.span)

    def _lane(self, axes: tuple[Value, ...]) -> Value:
        """Emit the lane's number, counted from 0 along the axes in row order."""
        b = self.builder
        number: Value = Const(i64, 0)
        limits = Rewriter().block(self.task.bounds) if axes else Block([])
        for s in limits.stmts:
            b.add(s)
        for k, axis in enumerate(axes):
            lo, hi = (b.cast(v, i64) for v in limits.yields[2 * k : 2 * k + 2])
            number = number * (hi - lo) + (b.cast(axis, i64) - lo)
        return number

    def stmt(self, s: Stmt) -> list[Stmt]:
        noted: list[Stmt] = []
        if isinstance(s, (Load, Store, Atomic)) and s in self.sites:
            self.met.add(s)
            b = self.builder
            b.span = s.span
            with b, b.block() as noted:
                self._note(s)
        return [*noted, *super().stmt(s)]

    def _note(self, s: Access) -> None:
        b = self.builder
        at = b.load(self.cursor, (self.lane,))
        b.store(self.cursor, (self.lane,), at + Const(i64, 1))
        scale = Const(i64, 1 << bits_of_site(self.sites))
        code = self._element(s) * scale + Const(i64, self.sites[s])
        # In a branch: an element that takes what there is no room for would be written by all lanes at once.
        with b.block() as stored:
            b.store(self.notes, (at,), code)
        b.add(If(b.named("lt", at, self.room), Block(stored), Block([]), (), s.span))

    def _element(self, s: Access) -> Value:
        """Emit the number of the element, or component of one, that an access touches."""
        b, mem = self.builder, s.mem
        index = self.values(s.index)
        sizes = [
            Const(i64, mem.shape[k]) if mem.shape is not None else Dim(i64, mem, k)
            for k in range(mem.rank)
        ]
        # An access to a whole element of several components counts as its first one.
        if isinstance(mem.dtype, TensorType):
            sizes += [Const(i64, n) for n in mem.dtype.shape]
            index = (*index, *[Const(i64, 0)] * (len(sizes) - len(index)))
        number: Value = Const(i64, 0)
        for i, n in zip(index, sizes, strict=True):
            number = number * n + b.cast(i, i64)
        return number


# ---- branches that are assumed to be entered


class _NotFollowed(Exception):
    """A task has statements whose values are not followed here."""


def _changed_values(task: Task, written: Collection[Mem]) -> set[Value]:
    """Return the values of a task's lanes that depend on what some memories held.

    Raises:
        _NotFollowed: which values these are cannot be told.
    """
    found: set[Value] = set()
    _follow(task.body, written, found)
    return found


def _follow(block: Block, written: Collection[Mem], found: set[Value]) -> None:
    for s in block.stmts:
        if isinstance(s, Let):
            found.update((s.out,) if not found.isdisjoint(s.args) else ())
        elif isinstance(s, Load):
            found.update((s.out,) if s.mem in written or not found.isdisjoint(s.index) else ())
        elif isinstance(s, Atomic):
            found.update(outs(s))
        elif isinstance(s, If):
            _follow(s.then, written, found)
            _follow(s.orelse, written, found)
            for out, a, b in zip(s.outs, s.then.yields, s.orelse.yields, strict=True):
                found.update((out,) if not found.isdisjoint((s.cond, a, b)) else ())
        elif isinstance(s, For):
            _follow_loop(s, written, found)
        elif not isinstance(s, (Store, Check, Print)) or _is_scratch(s):
            raise _NotFollowed


def _follow_loop(s: For, written: Collection[Mem], found: set[Value]) -> None:
    if not found.isdisjoint((s.lo, s.hi)):
        raise _NotFollowed
    before = -1
    while before != len(found):
        before = len(found)
        for param, init, again in zip(s.params, s.inits, s.body.yields, strict=True):
            found.update((param,) if not found.isdisjoint((init, again)) else ())
        _follow(s.body, written, found)
    found.update(out for out, param in zip(s.outs, s.params, strict=True) if param in found)


def _is_scratch(s: Stmt) -> bool:
    return isinstance(s, Store) and s.mem.kind == "scratch"


class _KnownConditions:
    """Conditions that are known of branches, while the statements of a task are copied."""

    def __init__(self, task: Task, changed: set[Value]) -> None:
        self.changed = changed
        self._closed: set[Value] = set()
        self._definitions = task_definitions(task)
        self._chosen = {
            v: (s, k)
            for s in statements(task.body)
            if isinstance(s, If)
            for k, v in enumerate(s.outs)
        }

    def leave(self, block: Block) -> None:
        """Note that the values of a block are out of scope."""
        self._closed.update(v for s in block.stmts for v in outs(s))

    def of(self, s: If, *, holds: bool) -> list[tuple[Value, bool]]:
        """Return conditions that can be computed again, and hold on one side of a branch."""
        found = implied(s.cond, self._definitions, self._chosen, holds=holds)
        return [(v, t) for v, t in found if v not in self.changed and v not in self._closed]


def _all_of(b: Builder, conditions: list[tuple[Value, bool]]) -> Value:
    """Emit whether conditions are as they are said to be."""
    total: Value = Const(bool_, True)
    for k, (v, truth) in enumerate(conditions):
        one = v if truth else b.named("not", v)
        total = b.named("and", total, one) if k else one
    return total


class _AssumingTracer(_Tracer):
    """Lets lanes enter branches whose conditions cannot be computed again; `assumed`: the loads in those."""

    def __init__(
        self, kernel: Kernel, task: Task, sites: Sequence[Access], known: _KnownConditions
    ) -> None:
        super().__init__(kernel, task, sites)
        self.known = known
        self.assumed: set[Stmt] = set()

    def block(self, b: Block) -> Block:
        made = super().block(b)
        self.known.leave(b)
        return made

    def stmt(self, s: Stmt) -> list[Stmt]:
        return (
            self._enter(s)
            if isinstance(s, If) and s.cond in self.known.changed
            else super().stmt(s)
        )

    def _enter(self, s: If) -> list[Stmt]:
        """Return both sides of a branch, under what is known of each."""
        b = self.builder
        with b, b.block() as made:
            for side, holds in ((s.then, True), (s.orelse, False)):
                self.assumed.update(x.origin for x in statements(side) if isinstance(x, Load))
                known = [(self.value(v), truth) for v, truth in self.known.of(s, holds=holds)]
                entered = self.block(side)
                b.add(If(_all_of(b, known), Block(entered.stmts), Block([]), (), s.span))
            for v in s.outs:
                # Whatever needs a value of the branch cannot be computed again.
                lost = Mem("branch", v.type, 0, (), "lost")
                b.add(Load(self.fresh(v), lost, (), s.span))
        return made
