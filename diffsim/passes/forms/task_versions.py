"""Kernels whose adjoint needs a memory in several states: one version of it for each task that writes it.

The adjoint of a kernel finds each memory in one state: that before the launch, or that after it. A kernel
such as

    for i in g: g[i] = 0                  for i in g: g.1[i] = 0
    for p in x: g[c[p]] += f(x[p])   ->   g.2 = g.1;  for p in x: g.2[c[p]] += f(x[p])
    for i in g: g[i] = sin(g[i])          for i in g: g.3[i] = sin(g.2[i])
                                          g = g.3

needs `g` as it is between the tasks. The kernel on the right (static single assignment of whole memories, one
definition for each task) computes the same and overwrites nothing that it reads. Only its adjoint is ever
run: that first computes the versions again, from the state before the launch, as it does with temporaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from diffsim.errors import Span
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    CustomCall,
    Kernel,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
    zero,
)
from diffsim.ir.traversal import Rewriter, statements, task_statements
from diffsim.ir.types import i32, i64
from diffsim.passes.analysis.access_order import Section, sections_of
from diffsim.passes.analysis.regions import Region, Row, must_write


class NewVersion(Protocol):
    """Allocates memories like one: of the same type and shape, with a gradient if it has one."""

    def __call__(self, mem: Mem, number: int, *, with_grad: bool = True) -> Mem:
        """Return memory `number` of those with a gradient, or of those without."""


@dataclass(frozen=True)
class Versioned:
    """A kernel with versions in place of memories.

    Attributes:
        kernel: computes the same.
        versions: the memories made for it, which live for one launch of its adjoint.
        before: for each version the memory that its task starts from.
    """

    kernel: Kernel
    versions: frozenset[Mem] = frozenset()
    before: Mapping[Mem, Mem] = field(default_factory=dict)


def can_have_versions(mem: Mem) -> bool:
    """Return whether the runtime can allocate another memory like it before the launch."""
    # Arrays are arguments: their shape is known at the launch only.
    return mem.kind == "field" and mem.shape is not None and mem.level is None and mem.place is None


def targets_of_calls(kernel: Kernel) -> set[Mem]:
    """Return the memories to whose gradients a gradient given by the user adds."""
    found = (s for t in kernel.tasks for s in task_statements(t, given=True))
    return {m for s in found if isinstance(s, CustomCall) for m in s.targets}


def with_versions(kernel: Kernel, mems: Iterable[Mem], new_version: NewVersion) -> Versioned:
    """Return the kernel with a version of each of these memories for each task that writes it."""
    work = _Renamer(kernel, new_version)
    chosen = list(mems)
    sections = sections_of(kernel)
    # What a task certainly overwrites whole needs no copy, and so no state from before the launch; but only
    # if that comes first: an update or a store to some elements before it leaves the old state in others.
    firsts = [_first_writes(t) for t in kernel.tasks]
    whole = {
        (a.mem, a.task)
        for a in must_write(kernel)
        if not a.region and firsts[a.task].get(a.mem) is a.stmt
    }
    tasks: list[Task] = []
    for number, task in enumerate(kernel.tasks):
        # Bounds first: they are evaluated before the body, and write nothing.
        body = sections[2 * number + 1]
        written = [m for m in chosen if m in body.writes]
        for m in written:
            old = work.start(m, body)
            if (m, number) not in whole:
                tasks.append(copy_task(old, work.written[m], task.span))
        tasks.append(work.task(task))
        work.finish(written)
    # What the kernel leaves is the last version.
    for m in chosen:
        tasks.append(copy_task(work.now[m], m, kernel.span))
    made = tuple(work.before)
    with_grads = (*made, *(m.grad for m in made if m.grad is not None))
    renamed = kernel.replace(mems=(*kernel.mems, *made), tasks=tuple(tasks))
    return Versioned(renamed, frozenset(with_grads), work.before)


def _first_writes(task: Task) -> dict[Mem, Stmt]:
    """Return the statement of a task's body that writes each memory first, or holds the one that does."""
    found: dict[Mem, Stmt] = {}
    for s in task.body.stmts:
        for x in statements(Block([s])):
            if isinstance(x, (Store, Atomic)):
                found.setdefault(x.mem, s)
    return found


class _Renamer(Rewriter):
    """Copies tasks with loads and writes renamed to versions.

    Attributes:
        now: the version that each memory has before the task (itself, if no task has written it yet).
        written: the new version of each memory that the task writes.
        before: all versions, and which one each follows.
    """

    def __init__(self, kernel: Kernel, new_version: NewVersion) -> None:
        super().__init__()
        self.now: dict[Mem, Mem] = {m: m for m in kernel.mems}
        self.before: dict[Mem, Mem] = {}
        self._new_version = new_version
        self.written: dict[Mem, Mem] = {}
        self._count: dict[Mem, int] = {}
        self._after: set[Stmt] = set()

    def start(self, mem: Mem, body: Section) -> Mem:
        """Give a memory that the task writes a new version, and return the old one."""
        number = self._count[mem] = self._count.get(mem, 0) + 1
        new = self.written[mem] = self._new_version(mem, number)
        self.before[new] = self.now[mem]
        for load in body.loads.get(mem, ()):
            # A load that precedes all writes of its element reads what was there before the task; another
            # one, what its own iteration has written. The access rules refuse what is in between.
            if not all(body.before(load, group.first) for group in body.overlapping(load)):
                self._after.add(load.stmt)
        return self.now[mem]

    def finish(self, mems: Iterable[Mem]) -> None:
        """End a task that writes these memories."""
        for m in mems:
            self.now[m] = self.written.pop(m)
        self._after.clear()

    def mem(self, m: Mem) -> Mem:
        return self.written.get(m) or super().mem(m)

    def copy(self, s: Stmt) -> Stmt:
        if isinstance(s, Load) and s.mem in self.now and s not in self._after:
            index = self.values(s.index)
            return Load(self.fresh(s.out), self.now[s.mem], index, s.span, s.origin)
        return super().copy(s)

    def task(self, task: Task) -> Task:
        bounds, axes = self.block(task.bounds), self.fresh_all(task.axes)
        return task.replace(axes=axes, bounds=bounds, body=self.block(task.body))


def clear(mem: Mem, span: Span) -> Task:
    """Return a task that sets all elements to 0."""
    return _for_each_element(mem, span, lambda axes: [Store(mem, axes, zero(mem.dtype), span)])


def copy_task(old: Mem, new: Mem, span: Span, rows: Region = frozenset()) -> Task:
    """Return a task that copies all elements, or those within some rows."""
    v = Value(old.dtype, old.name)
    return _for_each_element(
        old, span, lambda axes: [Load(v, old, axes, span), Store(new, axes, v, span)], rows
    )


def _for_each_element(
    mem: Mem,
    span: Span,
    body: Callable[[tuple[Value, ...]], list[Stmt]],
    rows: Region = frozenset(),
) -> Task:
    assert mem.shape is not None
    # The type of indices elsewhere: 32 bits unless there are more elements than they count.
    integer = i64 if max(mem.shape, default=0) >= 2**31 else i32
    fixed = {r.axis: r for r in rows}
    axes = {k: Value(integer, "i") for k in range(len(mem.shape)) if k not in fixed}
    sizes = [mem.shape[k] for k in axes]
    b = Builder(span)
    with b.block() as index_code:
        index = tuple(axes.get(k) or _row_index(b, fixed[k]) for k in range(len(mem.shape)))
    ends: list[Value] = [Const(integer, end) for n in sizes for end in (0, n)]
    loops = tuple(axes.values())
    with b.block() as limits:
        if fixed and not loops:
            loops, ends = (Value(integer, "i"),), [Const(integer, 0), Const(integer, 1)]
        # A launch that accesses no element of a row may be given the number of one that does not exist.
        for k, r in fixed.items():
            row = _row_index(b, r)
            exists = b.named("and", b.named("ge", row, 0), b.named("lt", row, mem.shape[k]))
            ends[1] = b.named("select", exists, ends[1], Const(integer, 0))
    return Task(loops, Block(limits, tuple(ends)), Block([*index_code, *body(index)]), span)


def _row_index(b: Builder, row: Row) -> Value:
    if row.argument is None:
        return Const(i32, row.shift)
    return b.named("add", row.argument, b.const(row.shift, row.argument.type))
