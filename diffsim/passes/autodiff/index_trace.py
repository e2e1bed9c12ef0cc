"""A kernel that writes down which elements the lanes of a task access.

Whether two accesses meet may depend on what is known only at a launch: arguments, and numbers in fields that
indices are computed from. This kernel is the code of one task again, without its effects on fields and
without what no index needs. In place of each traced access it appends a note to the row of its lane. Its
first launch, with no room for notes, counts them; the second one, with the starts of the rows, writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Arg,
    Atomic,
    Block,
    Const,
    Dim,
    If,
    InlineLLVM,
    Kernel,
    Load,
    Mem,
    RngKey,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import Rewriter, blocks, task_statements, uses
from diffsim.ir.types import TensorType, i64
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.autodiff.custom_calls import notes_of
from diffsim.passes.autodiff.forward_again import Replayer, replay, writes_temps
from diffsim.passes.transforms.dce import eliminate_dead_code


@dataclass(frozen=True, slots=True)
class IndexTrace:
    """Kernels that tell what the lanes of one task access, and the memories that they write.

    A note is (element * components + component) * sites + site, elements and components in row order.

    Attributes:
        ir: writes the notes.
        bounds_ir: writes `bounds`: the first number of each axis of the task, and the one after the last.
        sites: the traced accesses.
        limits: the bounds of the axes in the kernel itself.
        written: as that of the task.
        cursor: for each lane, where its next note goes. limit: how many there is room for.
        notes: those for which there is room.
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


def index_trace(kernel: Kernel, number: int, sites: Sequence[Access]) -> IndexTrace | None:
    """Return the trace of accesses of task `number`; None if their indices cannot be computed again.

    They can if they depend on no random number, and on nothing that the kernel writes after it is read.
    """
    task = kernel.tasks[number]
    bounds, cursor, limit, notes = (
        Mem(name, i64, rank, None, "array")
        for name, rank in (("bounds", 1), ("cursor", 1), ("limit", 0), ("notes", 1))
    )
    work = _Tracer(kernel, task, sites, (cursor, limit, notes))
    temps = [replay(t) for t in kernel.tasks[:number] if writes_temps(t)]
    traced = work.traced()
    # A custom gradient's own blocks, and the bounds of loops over lanes, are no part of a lane's code.
    if work.met != set(sites) or task.reductions:
        return None
    mems = (*kernel.mems, bounds, cursor, limit, notes)

    def made(last: Task) -> Kernel:
        return eliminate_dead_code(
            Kernel(f"{kernel.name}_indices", kernel.args, mems, (*temps, last), kernel.span)
        )

    trace = IndexTrace(
        made(traced),
        made(_bounds_task(task, bounds)),
        tuple(sites),
        task.bounds.yields,
        task.written,
        bounds,
        cursor,
        limit,
        notes,
    )
    repeatable = all(_repeatable(k, kernel) for k in (trace.ir, trace.bounds_ir))
    return trace if repeatable else None


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

    def __init__(
        self, kernel: Kernel, task: Task, sites: Sequence[Access], mems: tuple[Mem, Mem, Mem]
    ) -> None:
        super().__init__()
        self.task = task
        self.sites = {s: k for k, s in enumerate(sites)}
        self.met: set[Access] = set()
        self.cursor, self.limit, self.notes = mems
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
        code = self._element(s) * Const(i64, len(self.sites)) + Const(i64, self.sites[s])
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
