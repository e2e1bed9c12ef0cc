"""The load log: what the loads of a task found, for elements that have no one state where they are needed.

The adjoint of a sweep over neighbours

    for k in range(m):
        for i in range(1, n):
            x[i] = sin(x[i - 1])

needs x as each statement saw it. So it first runs the task again, on a private copy of x, and writes what the
loads find to a log; on the way back the loads are read from there (`forms/load_positions.py` says where).
How long the log is it finds out before: from the bounds of loops, or by one more run that only counts. The
log is scratch of the lane. See docs/adr/0036.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from diffsim.ir.nodes import Atomic, Block, CustomCall, Kernel, Load, Mem, Stmt, Store, Task, Value
from diffsim.ir.traversal import blocks, statements, task_statements
from diffsim.ir.types import Type
from diffsim.passes.analysis.affine import definitions
from diffsim.passes.analysis.regions import region_of
from diffsim.passes.autodiff.custom_calls import Replayer
from diffsim.passes.forms.load_positions import Access, Numbered, number_loads
from diffsim.passes.forms.task_versions import NewVersion, copy_task
from diffsim.passes.transforms.dce import eliminate_dead_code

_ACCESS = (Load, Store, Atomic)
_MOST_REGIONS = 4
"""Rows of a memory that are copied one by one."""


@dataclass(frozen=True)
class TaskLog:
    """Memory that the adjoint of a task needs to log its loads.

    Attributes:
        copies: the tasks that fill the private copies, to be run before.
        counting: code of a lane that yields the size of each log.
        logging: code of a lane that fills them.
        logs: the memory of each log, in the order of the sizes.
        places: for each logged load, where it is logged.
        mems: the memories whose loads are logged.
    """

    copies: tuple[Task, ...]
    counting: Block
    logging: Block
    logs: tuple[Mem, ...]
    places: dict[Access, tuple[Mem, Value]]
    mems: frozenset[Mem]


@dataclass(frozen=True)
class Logged:
    """A kernel that computes the same, with the positions of what is logged.

    Attributes:
        kernel: it; before each task of `logs` it copies what that one changes.
        logs: for each task that has one, its log.
        copies: the private memories.
    """

    kernel: Kernel
    logs: dict[Task, TaskLog] = field(default_factory=dict)
    copies: frozenset[Mem] = frozenset()

    @property
    def copying(self) -> set[Task]:
        """The tasks that only fill private copies."""
        return {t for log in self.logs.values() for t in log.copies}

    def live(self, task: Task) -> frozenset[Mem]:
        """Return the memories that a task changes after it has read them."""
        return self.logs[task].mems if task in self.logs else frozenset()


def log_loads(
    kernel: Kernel, wanted: set[Access], before: Mapping[Mem, Mem], new_copy: NewVersion
) -> Logged:
    """Return the kernel with logs of loads.

    Args:
        kernel: a kernel, perhaps with versions.
        wanted: the user's loads (and atomics, for what they return) whose copies are logged in tasks that
            write their memory.
        before: for each version of a memory the one that the task which makes it starts from.
        new_copy: allocates memories.
    """
    tasks: list[Task] = []
    logs: dict[Task, TaskLog] = {}
    made: dict[Mem, None] = {}
    for task in kernel.tasks:
        written = {s.mem for s in task_statements(task) if isinstance(s, (Store, Atomic))}
        inside = (s for s in _outside_of_calls(task.body) if isinstance(s, (Load, Atomic)))
        loads = [s for s in inside if s.mem in written and s.origin in wanted]
        if loads:
            work = _LogMaker(kernel, task, loads, new_copy)
            log = work.log(before)
            tasks += log.copies
            task = work.numbered.task
            logs[task] = log
            made |= dict.fromkeys(work.made)
        tasks.append(task)
    if not logs:
        return Logged(kernel)
    mems = (*kernel.mems, *made)
    return Logged(kernel.replace(tasks=tuple(tasks), mems=mems), logs, frozenset(made))


def _outside_of_calls(block: Block) -> Iterator[Stmt]:
    """Yield the statements of a block but those in calls with rules of their own."""
    # Such a call is one statement to the log: what its blocks load has no position there.
    for s in block.stmts:
        yield s
        for inner in () if isinstance(s, CustomCall) else blocks(s):
            yield from _outside_of_calls(inner)


class _LogMaker:
    """Makes the log of one task.

    Attributes:
        numbered: the task with the positions of the logged loads.
        made: the private copies, and which memory each is one of.
    """

    def __init__(
        self, kernel: Kernel, task: Task, loads: list[Access], new_copy: NewVersion
    ) -> None:
        self.kernel = kernel
        self.task = task
        self.numbered = number_loads(task, loads)
        self.made: dict[Mem, Mem] = {}
        self._mems = dict.fromkeys(s.mem for s in loads)
        self._new_copy = new_copy

    def log(self, before: Mapping[Mem, Mem]) -> TaskLog:
        """Return the log; `before` as for `log_loads`."""
        numbered = self.numbered
        logs = {t: Mem("log", t, 1, None, "scratch") for t in numbered.totals}
        counting = self._counting()
        logging = _Rerun(numbered, self._copies(0), logs).body()
        copies = [
            task
            for copy, m in self.made.items()
            for task in self._copying(before.get(m, m), m, copy)
        ]
        places = {s: (logs[s.out.type], at) for s, at in numbered.positions.items() if s.out}
        return TaskLog(
            tuple(copies), counting, logging, tuple(logs.values()), places, frozenset(self._mems)
        )

    def _counting(self) -> Block:
        """Return the code that counts."""
        # It seldom needs a copy: where numbers in a memory that the task changes end its loops.
        stand_ins = {m: Mem(m.name, m.dtype, m.rank, m.shape) for m in self._mems}
        code = self._pruned(_Rerun(self.numbered, stand_ins), frozenset(stand_ins.values()))
        if not any(isinstance(s, Load) and s.mem in stand_ins.values() for s in statements(code)):
            return code
        copies = self._copies(1)
        return self._pruned(_Rerun(self.numbered, copies), frozenset(copies.values()))

    def _pruned(self, run: _Rerun, internal: frozenset[Mem]) -> Block:
        task = Task(run.numbered.task.axes, Block([]), run.body(), run.numbered.task.span)
        alone = self.kernel.replace(tasks=(task,), result=None)
        return eliminate_dead_code(alone, internal).tasks[0].body

    def _copies(self, number: int) -> dict[Mem, Mem]:
        found = {m: self._new_copy(m, number, with_grad=False) for m in self._mems}
        self.made |= {copy: m for m, copy in found.items()}
        return found

    def _copying(self, source: Mem, mem: Mem, copy: Mem) -> list[Task]:
        """Return the tasks that copy what the task accesses of a memory, row by row."""
        task, defs = self.task, definitions(self.kernel)
        inside = (s for s in statements(task.body) if isinstance(s, _ACCESS))
        found = {region_of(s, defs): None for s in inside if s.mem is mem}
        # A region with fewer rows to stay within contains one with more.
        largest = [r for r in found if not any(q < r for q in found)]
        if len(largest) > _MOST_REGIONS:
            largest = [frozenset()]
        return [copy_task(source, copy, task.span, rows) for rows in largest]


class _Rerun(Replayer):
    """Copies the body of a task, to run on private copies of memories instead.

    Args:
        numbered: the task, and the positions of its loads.
        private: the copies.
        logs: where to store what the loads find; None: the body yields how much that is.
    """

    def __init__(
        self, numbered: Numbered, private: dict[Mem, Mem], logs: dict[Type, Mem] | None = None
    ) -> None:
        super().__init__()
        self.numbered = numbered
        self.private = private
        self.versions = self.live = frozenset(private)
        self.logs = logs

    def body(self) -> Block:
        """Return the copy; the axes of the task are its own."""
        made = self.block(self.numbered.task.body)
        totals = () if self.logs is not None else self.values(tuple(self.numbered.totals.values()))
        return Block(made.stmts, totals)

    def mem(self, m: Mem) -> Mem:
        return self.private.get(m) or super().mem(m)

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, (Store, Atomic)) and s.mem.kind == "temp":
            # The adjoint has computed temporaries again already.
            return self._write(s)
        made = super().stmt(s)
        return [*made, *self._note(s)] if isinstance(s, Load) else made

    def _note(self, s: Access) -> list[Stmt]:
        """Return the statement that logs what an access has found, if that is asked for."""
        position = self.numbered.positions.get(s)
        if self.logs is None or position is None or s.out is None:
            return []
        log, place = self.logs[s.out.type], (self.value(position),)
        return [Store(log, place, self.value(s.out), s.span)]

    def _write(self, s: Store | Atomic) -> list[Stmt]:
        # Statements in order return the same numbers again; lanes need not.
        if isinstance(s, Atomic) and s.mem in self.versions and not self.numbered.task.axes:
            return [self.copy(s), *self._note(s)]
        return super()._write(s)
