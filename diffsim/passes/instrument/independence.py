"""Checks the word of `ds.loop_config(independent=True)` at run time, element by element.

Assumes a prepared kernel. Loops that claim to be independent run in the order of their iterations. Beside
each field that they write there are notes of the first iteration that read an element, of the first that
added to it and of the last that stored into it. An access to what another iteration has stored is reported,
and so is a store into what another one has read or added to. Arrays given as arguments are not looked at:
how large they are is known at the launch only.

A note is a number: that of the task's run, in the upper bits, plus that of the iteration. So notes of earlier
runs are smaller than all of this one, and are never cleared.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Check,
    Const,
    Kernel,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import Rewriter, task_statements
from diffsim.ir.types import i64
from diffsim.passes.transforms.serialize import serialize_task

CLAIMED = "though ds.loop_config(independent=True) says that they do not meet"
_BOTH = "iterations {other} and {mine} of this parallel loop both write {element}"
_READS = "iteration {mine} of this parallel loop reads {element}, and iteration {other} writes it"
_IS_READ = "iteration {other} of this parallel loop reads {element}, and iteration {mine} writes it"
_RUN = 1 << 40
"""More than the iterations of a loop; 2^23 runs fit into a note."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes beside a field: fields of the same shape, an axis of components last of all."""

    read: Mem
    added: Mem
    stored: Mem


def watched_fields(kernel: Kernel) -> list[Mem]:
    """Return the fields that loops which claim to be independent write."""
    written = (
        s.mem
        for t in kernel.tasks
        if t.independent
        for s in task_statements(t)
        if isinstance(s, (Store, Atomic))
    )
    return list(dict.fromkeys(m for m in written if m.kind == "field" and not m.is_grad))


def check_independence(kernel: Kernel, notes: Mapping[Mem, Notes], run: Mem) -> Kernel:
    """Return the kernel with notes and checks in the loops that claim to be independent.

    Args:
        kernel: a prepared kernel.
        notes: those of its `watched_fields`.
        run: a single i64: the number of the last run of such a loop, times the size of a run.
    """
    tasks: list[Task] = []
    for t in kernel.tasks:
        if t.independent:
            work = _Watcher(t, notes, run)
            tasks += [work.begin(), serialize_task(work.watched())]
        else:
            tasks.append(t)
    beside = [m for n in notes.values() for m in (n.read, n.added, n.stored)]
    return kernel.replace(tasks=tuple(tasks), mems=(*kernel.mems, *beside, run))


class _Watcher(Rewriter):
    """Puts notes and checks before the accesses of one task."""

    def __init__(self, task: Task, notes: Mapping[Mem, Notes], run: Mem) -> None:
        super().__init__()
        self.builder = Builder(task.span)
        self.of = task
        self.notes = notes
        self.run = run

    # Statements are kept, not copied, so values keep their identity.
    def fresh(self, v: Value) -> Value:
        return v

    def begin(self) -> Task:
        """Return the task that gives this run of the loop a number."""
        b = self.builder
        with b, b.block() as stmts:
            b.store(self.run, (), b.load(self.run, ()) + Const(i64, _RUN))
        return Task((), Block([]), Block(stmts), self.of.span)

    def watched(self) -> Task:
        """Return the task with notes and checks."""
        b, t = self.builder, self.of
        with b, b.block() as head:
            self.base = b.load(self.run, ())
            self.limits = self._limits()
            self.me = self.base + self._lane() + Const(i64, 1)
        return t.replace(body=Block([*head, *self.block(t.body).stmts], t.body.yields))

    def _limits(self) -> list[tuple[Value, Value]]:
        """Emit the first iteration and the number of iterations of each axis."""
        b = self.builder
        # Evaluated again for each iteration: values of the bounds are not seen in the body.
        again = Rewriter().block(self.of.bounds)
        for s in again.stmts:
            b.add(s)
        ends = [b.cast(v, i64) for v in again.yields]
        return [(lo, hi - lo) for lo, hi in zip(ends[::2], ends[1::2], strict=True)]

    def _lane(self) -> Value:
        number: Value = Const(i64, 0)
        for axis, (lo, size) in zip(self.of.axes, self.limits, strict=True):
            number = number * size + (self.builder.cast(axis, i64) - lo)
        return number

    def _iteration(self, note: Value) -> tuple[Value, ...]:
        """Emit the indices of the iteration that a note is of."""
        b = self.builder
        rest = note - self.base - Const(i64, 1)
        found: list[Value] = []
        for lo, size in reversed(self.limits):
            found.insert(0, lo + b.named("mod", rest, size))
            rest = b.named("floordiv", rest, size)
        return tuple(found)

    def _as_written(self, indices: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return the indices of an iteration in the order that the program has them in."""
        written = self.of.written
        return tuple(indices[k] for k in written) if len(written) == len(indices) else indices

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, (Load, Store, Atomic)) or s.mem not in self.notes:
            return [s] if isinstance(s, (Load, Store, Atomic)) else [self.copy(s)]
        self.builder.span = s.span
        with self.builder, self.builder.block() as made:
            self._access(s, self.notes[s.mem])
        return [*made, s]

    def _access(self, s: Load | Store | Atomic, beside: Notes) -> None:
        for at in self._places(s):
            if isinstance(s, Load):
                self._check(s, beside.stored, at, _READS)
                self._check(s, beside.added, at, _READS)
                self._note(beside.read, at, first=True)
                continue
            self._check(s, beside.read, at, _IS_READ)
            # Two writes to what has no gradient are the program's own affair.
            if s.mem.grad is not None:
                self._check(s, beside.stored, at, _BOTH)
            if isinstance(s, Atomic):
                self._note(beside.added, at, first=True)
                continue
            if s.mem.grad is not None:
                self._check(s, beside.added, at, _BOTH)
            self._note(beside.stored, at, first=False)

    def _places(self, s: Load | Store | Atomic) -> list[tuple[Value, ...]]:
        """Return the indices of the components that an access touches."""
        shape = s.mem.dtype.shape
        if len(s.index) > s.mem.rank:
            return [s.index]
        every = itertools.product(*map(range, shape))
        return [(*s.index, *(Const(i64, k) for k in at)) for at in every]

    def _note(self, mem: Mem, at: tuple[Value, ...], *, first: bool) -> None:
        b = self.builder
        note = self.me
        if first:
            # Lanes run in order: if any other one comes into question, the first one does.
            there = b.load(mem, at)
            note = b.named("select", b.named("gt", there, self.base), there, note)
        b.store(mem, at, note)

    def _check(self, s: Load | Store | Atomic, mem: Mem, at: tuple[Value, ...], text: str) -> None:
        b = self.builder
        there = b.load(mem, at)
        meets = b.named("and", b.named("gt", there, self.base), b.named("ne", there, self.me))
        index = s.index[: s.mem.rank]
        values = {
            "{mine}": self._as_written(self.of.axes),
            "{other}": self._as_written(self._iteration(there)),
            "{element}": index,
        }
        lanes = "{}" if len(self.of.axes) == 1 else f"({', '.join(['{}'] * len(self.of.axes))})"
        shown: tuple[Value, ...] = ()
        # In the order in which the text has them.
        for name in sorted(values, key=text.index):
            shown += values[name]
        text = text.replace("{mine}", lanes).replace("{other}", lanes)
        element = f"{s.mem.name}[{', '.join(['{}'] * len(index)) or 'None'}]"
        text = text.replace("{element}", element)
        self.builder.add(Check(b.named("not", meets), f"{text}, {CLAIMED}", shown, s.span))
