"""Aligned rows: short rows of lanes begin with idle ones, so that vectors of lanes are aligned in memory.

    parallel %i in 1..63, %j in 1..63 { ... x[%i, %j] ... }

LLVM makes vectors of 16 neighbours of %j = 1, 17, 33, ...: each load and each store touches two cache lines,
and 14 lanes of a row are left over. Vectors from %j = 0 on have an idle lane at both ends of the row, and all
that is accessed at %j itself is aligned. Processors take half the time for that while it is in their caches.

For lanes without loops, whose accesses are neighbours in memory: LLVM makes masks of the condition under
which they run, and constants of these where the row is short enough to be written out.

What is left of a row that is no multiple of a vector would be narrower vectors and scalars, with a jump for
each branch and a call for each function. So rows with functions have idle lanes at their end even where
nothing is aligned, and rows with branches are vectors before they are written out (`backends/cpu/rows.py`).
"""

from __future__ import annotations

from collections import Counter

from diffsim.ir.layout import strides_of
from diffsim.ir.nodes import Atomic, Const, If, Let, Load, Mem, Stmt, Store, Task, Value
from diffsim.ir.op import Math
from diffsim.ir.schedules import AlignedRows
from diffsim.ir.simple_tasks import is_one_row, short_row
from diffsim.ir.traversal import blocks, slow_parts, statements
from diffsim.passes.analysis.affine import AffineForms, affine_forms

_VECTOR = 64  # bytes
_LEAST_LANES = 16
_MOST_CODE = 400  # operations on vectors in a row that is written out
_A_CALL = 24  # operations that a function counts as
_BY_LANE = frozenset(("mod", "floordiv", "div", "pow"))
"""Operations that idle lanes must not run, where they are integers': LLVM takes lane after lane then."""


def with_aligned_rows(task: Task) -> Task:
    """Return the task with `aligned` set, if its lanes gain by it."""
    length = short_row(task)
    if length < _LEAST_LANES or task.reductions or task.order or task.privatized or task.appends:
        return task
    if is_one_row(task):  # which has no ends
        return task
    lo = task.bounds.yields[-2]
    assert isinstance(lo, Const)
    first, end = int(lo.value), int(lo.value) + length
    found = _Accesses(task)
    width = found.width
    if not width or -(-(end - first) // width) * found.operations > _MOST_CODE:
        return task
    shift = found.shift()
    if shift is None and not (found.functions and (end - first) % width):
        return task
    lead = 0 if shift is None else (first + shift) % width
    lanes = -(-(lead + end - first) // width) * width
    if lanes == end - first and not found.branches:
        return task
    return task.replace(aligned=AlignedRows(lead, lanes, frozenset(found.once)))


def _is_function(s: Stmt) -> bool:
    return isinstance(s, Let) and isinstance(s.op.lowering, Math)


class _Accesses:
    """The accesses of a lane, by where vectors of lanes are aligned.

    Attributes:
        width: lanes of a vector; 0: the task has no rows to align.
        once: statements that are the same for all lanes of a row.
        branches: whether a lane has some.
        functions: whether a lane computes some.
        operations: of a lane.
    """

    def __init__(self, task: Task) -> None:
        self.lane = task.axes[-1]
        self.forms: AffineForms = affine_forms(task)
        self.once: set[Stmt] = set()
        self.shifts: Counter[int | None] = Counter()
        """How many accesses are at lane + shift, modulo the width; None: not the same in all rows."""
        self.differing: set[Value] = {self.lane}
        found = list(statements(task.body))
        self.branches = any(isinstance(s, If) for s in found)
        self.functions = any(map(_is_function, found))
        self.operations = sum(_A_CALL if _is_function(s) else 1 for s in found)
        self.written = {s.mem for s in found if isinstance(s, (Store, Atomic))}
        accesses = [s for s in found if isinstance(s, (Load, Store, Atomic))]
        sizes = {s.mem.dtype.scalar.bytes for s in accesses}
        self.width = _VECTOR // sizes.pop() if sizes in ({4}, {8}) else 0
        if not all(map(self.may_idle, task.body.stmts)):
            self.width = 0

    def may_idle(self, s: Stmt, *, in_branch: bool = False) -> bool:
        """Note a statement; return whether vectors of it, some lanes of which are idle, cost no more."""
        if isinstance(s, If):
            self.differing.update(s.outs)
            inside = [x for b in blocks(s) for x in b.stmts]
            # A condition that is the same in a row spares what takes long: LLVM makes two loops of it.
            if s.cond not in self.differing and any(map(slow_parts, inside)):
                return False
            return all(self.may_idle(x, in_branch=True) for x in inside)
        if isinstance(s, Let):
            if not in_branch and self.differing.isdisjoint(s.args):
                self.once.add(s)
                return True
            self.differing.add(s.out)
            return not (s.op.name in _BY_LANE and s.out.type.is_int)
        if isinstance(s, Atomic):
            return s.exclusive and s.out is None and self.is_near(s.mem, s.index, 2)
        if isinstance(s, Load):
            if not in_branch and s.mem not in self.written and self.differing.isdisjoint(s.index):
                self.once.add(s)
                return True
            self.differing.add(s.out)
            return self.is_near(s.mem, s.index, 1)
        return isinstance(s, Store) and self.is_near(s.mem, s.index, 1)

    def is_near(self, mem: Mem, index: tuple[Value, ...], count: int) -> bool:
        """Note accesses of an element; return whether neighbours along the row are neighbours in memory."""
        if not self.width or not mem.is_shaped or mem.place is not None:
            return False
        if len(index) != mem.rank or mem.dtype.shape:
            return False
        step, shift, same = 0, 0, True
        for i, stride in zip(index, strides_of(mem), strict=True):
            form = self.forms.form(i)
            if form is None:
                if i in self.differing:
                    return False
                form = {i: 1}
            step += form.get(self.lane, 0) * stride
            for v, n in form.items():
                if v is None:
                    shift += n * stride
                elif v is not self.lane and n * stride % self.width:
                    same = False
        self.shifts[shift % self.width if same else None] += count
        return step == 1

    def shift(self) -> int | None:
        """Return where most accesses are aligned, if that is worth it."""
        total = sum(self.shifts.values())
        known = [(n, shift) for shift, n in self.shifts.items() if shift is not None]
        if not known:
            return None
        most, shift = max(known)
        return shift if 2 * most >= total else None
