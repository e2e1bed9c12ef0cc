"""Shadow memory: checks the global data access rules at run time, element by element.

Assumes a prepared kernel. Each watched memory has shadow memories of the same shape (`Shadow`), in which
every load notes that it read the element, and every write checks that none did. In a parallel loop that both
reads and writes a memory, writes also note which lane they were made by, and loads check that it was no
other one: such a loop has no defined order, and its adjoint none either.

A note is a number: the launch's `start` plus the number of the statement, so it tells the launch and the
line. Every access first notes and then checks, so that of two lanes that meet at least one sees the other.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Atomic, Check, Const, Kernel, Load, Mem, Stmt, Store, Task, Value
from diffsim.ir.traversal import Rewriter, task_statements
from diffsim.ir.types import TensorType, i64, tensor

OVERWRITTEN = "was read and is then overwritten: global data access rule 1"
REWRITTEN = "was written and is then set once more: global data access rule 2"
RACING = "is read in one iteration of a parallel loop and written in another"
_STRIDE = (
    1048573  # more than most loops have iterations, so that lanes of a nest have different numbers
)


@dataclass(frozen=True, slots=True)
class Shadow:
    """The shadow of a memory: notes of reads, notes of writes, and the lanes that made those."""

    read: Mem
    written: Mem
    lane: Mem

    @staticmethod
    def of(mem: Mem) -> Shadow:
        """Return shadows for a memory, passed to the kernel as arrays."""
        t = tensor(i64, mem.dtype.shape)
        read, written, lane = (Mem(mem.name, t, mem.rank, None, "array") for _ in range(3))
        return Shadow(read, written, lane)  # all of its name: an index outside is outside it


def instrument(
    kernel: Kernel,
    shadows: Mapping[Mem, Shadow],
    start: Mem,
    noted: Container[Load | Store | Atomic],
) -> tuple[Kernel, list[Load | Store | Atomic]]:
    """Return the kernel with notes and checks, and its watched statements: number k is a note of start + k.

    Args:
        kernel: a prepared kernel.
        shadows: for each watched memory, its shadow.
        start: a single i64, the number that the notes of this launch start from.
        noted: the loads that count as reads, and the writes of values with a derivative.
    """
    work = _Instrumenter(kernel, shadows, start, noted)
    tasks = tuple(work.task(t) for t in kernel.tasks)
    beside = [m for s in shadows.values() for m in (s.read, s.written, s.lane)]
    mems = (*kernel.mems, *beside, start)
    made = kernel.replace(mems=mems, tasks=tasks)
    return made, work.statements


class _Instrumenter(Rewriter):
    """Puts notes and checks before the accesses of one kernel.

    Attributes:
        statements: the watched ones so far; a note is the number of one.
        first: the number of statements before the present task.
        shared: the memories that the present task both reads and writes.
    """

    def __init__(
        self,
        kernel: Kernel,
        shadows: Mapping[Mem, Shadow],
        start: Mem,
        noted: Container[Load | Store | Atomic],
    ) -> None:
        super().__init__()
        self.builder = Builder(kernel.span)
        self.shadows = shadows
        self.start = start
        self.noted = noted
        self.statements: list[Load | Store | Atomic] = []
        self.first = 0
        self.shared: set[Mem] = set()
        self.axes: tuple[Value, ...] = ()

    # Statements are kept, not copied, so values keep their identity; only checks are put between them.
    def fresh(self, v: Value) -> Value:
        return v

    def task(self, t: Task) -> Task:
        self.axes, self.shared = (), set()
        bounds = self.block(t.bounds)
        # Notes up to here were made by earlier tasks of this launch.
        self.first = len(self.statements)
        self.axes = t.axes
        if t.axes:
            inside = list(task_statements(t))
            # Only where lanes both read and write can a lane see what another one wrote.
            self.shared = {s.mem for s in inside if isinstance(s, Load)} & {
                s.mem for s in inside if isinstance(s, (Store, Atomic))
            }
        return t.replace(bounds=bounds, body=self.block(t.body))

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, (Load, Store, Atomic)) and s.mem in self.shadows:
            self.builder.span = s.span
            with self.builder, self.builder.block() as made:
                if isinstance(s, Load):
                    self.load(s)
                else:
                    self.write(s)
            return [*made, s]
        return [self.copy(s)]

    def load(self, s: Load) -> None:
        """Emit the note of a read, and the check that no other lane wrote the element."""
        shadow = self.shadows[s.mem]
        # Integers and constants may be overwritten freely: no derivative needs their old values.
        if s not in self.noted:
            return
        self.note(shadow.read, s)
        if s.mem in self.shared:
            b = self.builder
            start = b.load(self.start, ())
            for written, lane in zip(
                self.parts(shadow.written, s.index), self.parts(shadow.lane, s.index), strict=True
            ):
                # Notes of earlier launches and tasks have smaller numbers: those writes were finished
                # before.
                now = b.named("gt", written, start + Const(i64, self.first))
                other = b.named("ne", lane, self.lane())
                both = b.named("and", now, other)
                self.check(b.named("not", both), s, RACING, written)

    def write(self, s: Store | Atomic) -> None:
        """Emit the note of a write, and the check that nothing has read the element."""
        shadow = self.shadows[s.mem]
        b = self.builder
        # 0 means that nothing has read the element since the tape began.
        for read in self.parts(shadow.read, s.index):
            self.check(b.named("eq", read, 0), s, OVERWRITTEN, read)
        active = s in self.noted
        if active and isinstance(s, Store):
            # Rule 2: what was written is added to from then on.
            for written in self.parts(shadow.written, s.index):
                self.check(b.named("eq", written, 0), s, REWRITTEN, written)
        if active or s.mem in self.shared:
            self.note(shadow.written, s)
        elif isinstance(s, Store):
            # A constant, which has no derivative: what is stored after it is a first value again.
            self.write_note(shadow.written, s.index, Const(i64, 0))
        if s.mem in self.shared:
            self.write_note(shadow.lane, s.index, self.lane())

    def note(self, mem: Mem, s: Load | Store | Atomic) -> int:
        """Note the statement in the element's shadow; return its number."""
        b = self.builder
        self.statements.append(s)
        number = len(self.statements)
        self.write_note(mem, s.index, b.load(self.start, ()) + Const(i64, number))
        return number

    def write_note(self, mem: Mem, index: tuple[Value, ...], value: Value) -> None:
        # An access to a whole tensor element notes all of its components.
        whole = isinstance(mem.dtype, TensorType) and len(index) == mem.rank
        b = self.builder
        b.store(mem, index, b.broadcast(value, mem.dtype) if whole else value)

    def parts(self, mem: Mem, index: tuple[Value, ...]) -> list[Value]:
        """Load the notes of the components of an element."""
        b = self.builder
        found = b.load(mem, index)
        if not isinstance(found.type, TensorType):
            return [found]
        return [b.named("extract", found, *at) for at in _places(found.type.shape)]

    def lane(self) -> Value:
        """Emit the number of the lane."""
        b = self.builder
        number: Value = Const(i64, 0)
        for axis in self.axes:
            # A polynomial in the axes: a number for each lane without knowing the extents of the loops.
            number = number * Const(i64, _STRIDE) + b.cast(axis, i64)
        return number

    def check(self, ok: Value, s: Load | Store | Atomic, what: str, note: Value) -> None:
        index = s.index[: s.mem.rank]
        shown = f"[{', '.join(['{}'] * len(index)) or 'None'}]"
        message = f"{s.mem.name}{shown} {what}"
        self.builder.add(Check(ok, message, (*index, note), s.span))


def _places(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    if len(shape) == 1:
        return [(k,) for k in range(shape[0])]
    return [(i, j) for i in range(shape[0]) for j in range(shape[1])]
