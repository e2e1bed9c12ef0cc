"""Puts the shapes of arrays in: a kernel for arrays of any shape becomes one for arrays of these.

    kernel scale(x: array f32[2d]) {                  kernel scale(x: array f32[64, 48]) {
      %n: i32 = sub $x.shape[0], 1            ->        parallel %i in 1..63 {
      parallel %i in 1..%n {

Assumes memories whose `shape` is known now, and was not when the kernel was translated. Promises: the same
statements in the same order, but for arithmetic of integers that has become constant.
"""

from __future__ import annotations

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Const, Dim, Kernel, Let, Stmt, Task, Value
from diffsim.ir.traversal import Rewriter, free_leaves


def insert_shapes(kernel: Kernel) -> Kernel:
    """Return the kernel with numbers in place of the dimensions of memories whose shape is known."""
    return kernel.replace(tasks=tuple(_task(t) for t in kernel.tasks))


def _task(task: Task) -> Task:
    known: dict[Value, Value] = {
        v: Const(v.type, v.mem.shape[v.axis])
        for block in (task.bounds, task.body)
        for v in free_leaves(block)
        if isinstance(v, Dim) and v.mem.shape is not None
    }
    if not known:
        return task
    work = _Numbers(known, task)
    axes = work.fresh_all(task.axes)
    return task.replace(axes=axes, bounds=work.block(task.bounds), body=work.block(task.body))


class _Numbers(Rewriter):
    def __init__(self, known: dict[Value, Value], task: Task) -> None:
        super().__init__(known)
        self._builder = Builder(task.span)

    def stmt(self, s: Stmt) -> list[Stmt]:
        # Floats are left to LLVM: what they are has nothing to do with what lanes access.
        if not isinstance(s, Let) or s.out.type.shape or s.out.type.is_float:
            return super().stmt(s)
        args = self.values(s.args)
        if not all(isinstance(a, Const) and not a.type.is_float for a in args):
            return super().stmt(s)
        self._builder.span = s.span
        with self._builder, self._builder.block() as made:
            found = self._builder.typed_op(s.op, args, s.out.type)
        if made:  # it has no value, such as a quotient by 0
            return super().stmt(s)
        self.env[s.out] = found
        return []
