"""Loads arguments from fields: `step(dt)` with a 0-D field dt in place of a number.

    kernel step($dt: f64) {                       kernel step(dt: field f64[]) {
      parallel %i in 0..n {                         parallel %i in 0..n {
        %t: f64 = mul %v, $dt          ->             %dt: f64 = load dt[]
                                                      %t: f64 = mul %v, %dt

After this pass it is memory like any other: it has a gradient, and its versions are checked.
"""

from __future__ import annotations

from collections.abc import Mapping

from diffsim.ir.nodes import Arg, Block, Kernel, Load, Mem, Stmt, Task, Value
from diffsim.ir.traversal import Rewriter, free_leaves


def load_args_from_fields(kernel: Kernel, given: Mapping[Arg, Mem]) -> Kernel:
    """Return the kernel with these arguments loaded from memories of rank 0."""
    if not given:
        return kernel
    args = tuple(a for a in kernel.args if a not in given)
    mems = (*kernel.mems, *dict.fromkeys(given.values()))
    tasks = tuple(_task(t, given) for t in kernel.tasks)
    return kernel.replace(args=args, mems=mems, tasks=tasks)


def _task(task: Task, given: Mapping[Arg, Mem]) -> Task:
    work = Rewriter()
    bounds = _block(task.bounds, given, work)
    axes = work.fresh_all(task.axes)
    return task.replace(axes=axes, bounds=bounds, body=_block(task.body, given, work))


def _block(block: Block, given: Mapping[Arg, Mem], work: Rewriter) -> Block:
    """Return a copy of a block that loads the arguments it uses first."""
    used = free_leaves(block)
    loads: list[Stmt] = []
    for arg, mem in given.items():
        # Only where it is used, and once for each block: bounds are computed before the lanes start, in
        # another scope than the body.
        if arg in used:
            value = Value(arg.type, arg.hint)
            loads.append(Load(value, mem, (), block.stmts[0].span))
            work.env[arg] = value
    copy = work.block(block)
    return Block([*loads, *copy.stmts], copy.yields)
