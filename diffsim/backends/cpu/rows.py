"""The loops over the lanes of a task that run one after the other: rows, and the lanes of a row.

LLVM makes vectors of a row's lanes. Where rows are short, what it does at their ends takes as long as all the
rest: a chunk has whole rows then, whose length is a constant, and some begin with idle lanes so that vectors
are aligned (`passes/vectors/aligned_rows.py`).
"""

from __future__ import annotations

import math

from diffsim.backends.cpu import shared_functions
from diffsim.backends.cpu.chunks import has_branches, whole_row
from diffsim.backends.llvm import safepoints
from diffsim.backends.llvm.lanes import accumulate, bound, enter_lane, identity, point, sizes_of
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.ir.nodes import Block, Const, For, If, Task, Value
from diffsim.ir.schedules import AlignedRows
from diffsim.ir.simple_tasks import box_sizes, is_one_row
from diffsim.ir.traversal import blocks, statements

_LARGE, _LONG_BODY = 1000, 60  # how many times as large as a rim the box is; statements
_MOST_BRANCHES = 100
"""Branches in loops that LLVM writes out before its vectorizer looks at a lane.

What it asks of a sum that goes through all of them can take twice as long for each few branches more: 3 s for
126, minutes for 144.
"""


def emit_lanes(body: FunctionLowering, k: int, task: Task, work: int) -> list[str]:
    """Emit loops over lanes begin..end: rows (all axes but the last, flattened), and the last axis inside.

    `work` is counted in each lane. Where chunks have whole rows, begin..end are rows. Return the partial
    results after the loops.
    """
    lows = [bound(body, k, task, 2 * a) for a in range(len(task.axes))]
    if len(task.axes) == 1:
        return _inner(body, k, task, work, lows[0], ("%begin", "%end"), {}, None)
    if is_one_row(task) and k not in body.module.sharing:
        # The last axis counts all lanes, and the element [first, lane] is that of the lane's row.
        rows = dict(zip(task.axes[:-1], lows, strict=False))
        return _inner(body, k, task, work, lows[-1], ("%begin", "%end"), rows, None)
    sizes = sizes_of(body, k, task, lows)
    before = body.label
    head, inside, after = (body.new_label(w) for w in ("rows", "row", "end"))
    body.jump(head)
    body.start_block(head)
    flat = body.fresh()
    # Phis must come first in their block (LLVM LangRef), but their incoming values are known only
    # after the body: they are inserted here afterwards.
    at = len(body.lines)
    sums = [body.fresh() for _ in task.reductions]
    more = body.assign(f"icmp slt i64 {flat}, %end")
    body.emit(f"br i1 {more}, label %{inside}, label %{after}")
    body.start_block(inside)
    width = sizes[-1]
    row, count, ends = flat, "1", ("0", width)
    if not whole_row(task):
        row, count, ends = _part_of_row(body, flat, width)
    wide = point(body, task.axes[:-1], lows, sizes, row)
    nexts = _inner(body, k, task, work, lows[-1], ends, wide, sums)
    advanced = body.assign(f"add nsw i64 {flat}, {count}")
    latch = body.label
    # Of rows that are a single lane LLVM makes one loop.
    few = _gain_no_vectors(body.module, k, task)
    body.emit(f"br label %{head}{body.module.as_scalars(always=few)}")
    phis = [f"  {flat} = phi i64 [ %begin, %{before} ], [ {advanced}, %{latch} ]"]
    for name, new, (op, _, _), v in zip(
        sums, nexts, task.reductions, task.body.yields, strict=True
    ):
        t = v.type.scalar
        phis.append(
            f"  {name} = phi {t.llvm} [ {identity(op, t)}, %{before} ], [ {new}, %{latch} ]"
        )
    body.lines[at:at] = phis
    body.start_block(after)
    return sums


def _part_of_row(body: FunctionLowering, flat: str, width: str) -> tuple[str, str, tuple[str, str]]:
    """Emit the row of a lane, how many lanes the chunk has from it on in that row, and where these lie."""
    # The loop over rows advances by the lanes of one row (or what is left of it) per iteration: one
    # division per row instead of one per lane, and an inner loop with unit stride, which LLVM
    # vectorizes. `width` is not 0: a task without lanes is not launched (`_launch_parallel`).
    row = body.assign(f"udiv i64 {flat}, {width}")
    first = body.assign(f"urem i64 {flat}, {width}")
    left = body.assign(f"sub nsw i64 %end, {flat}")
    full = body.assign(f"sub nsw i64 {width}, {first}")
    body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    # A chunk may begin and end within a row.
    count = body.assign(f"call i64 @llvm.smin.i64(i64 {left}, i64 {full})")
    return row, count, (first, body.assign(f"add nsw i64 {first}, {count}"))


def _inner(
    body: FunctionLowering,
    number: int,
    task: Task,
    work: int,
    low: str,
    ends: tuple[str, str],
    wide: dict[Value, str],
    sums: list[str] | None,
) -> list[str]:
    """Emit the loop over the last axis within `ends`; return the partial results after it."""
    first, stop = ends
    values, lanes, aligned = task.body.yields, task.body, task.aligned
    if aligned is not None and not whole_row(task):
        aligned = None
    if aligned is not None:
        lanes = _once(body, task, aligned, wide)
        stop, low = str(aligned.lanes), _before(body, low, aligned.lead)
    starts = sums or [
        identity(op, v.type.scalar) for (op, _, _), v in zip(task.reductions, values, strict=True)
    ]
    before = body.label
    head, lane, after = (body.new_label(w) for w in ("lanes", "lane", "end"))
    body.jump(head)
    body.start_block(head)
    k = body.fresh()
    at = len(body.lines)
    carried = [body.fresh() for _ in values]
    more = body.assign(f"icmp slt i64 {k}, {stop}")
    body.emit(f"br i1 {more}, label %{lane}, label %{after}")
    body.start_block(lane)
    index = k if low == "0" else body.assign(f"add nsw i64 {k}, {low}")
    enter_lane(body, task, {**wide, task.axes[-1]: index})
    behind = "" if aligned is None else _skip_idle(body, task, aligned, k)
    # Calls that the body adds to this count have no vector form; the loop is then kept scalar.
    calls = body.module.scalar_calls
    body.block(lanes)
    nexts = [
        accumulate(body, op, v, c)
        for (op, _, _), v, c in zip(task.reductions, values, carried, strict=True)
    ]
    body.int64_names.pop()
    if behind:
        body.jump(behind)
        body.start_block(behind)
    if work:
        safepoints.count(body, work)
    advanced = body.assign(f"add nsw i64 {k}, 1")
    latch = body.label
    few = _gain_no_vectors(body.module, number, task)
    slow = _written_out_branches(task.body) > _MOST_BRANCHES
    hint = body.module.as_scalars(calls, slow=slow, always=few)
    if not hint and aligned is not None and has_branches(task):
        hint = body.module.as_vectors_first()
    body.emit(f"br label %{head}{hint}")
    phis = [f"  {k} = phi i64 [ {first}, %{before} ], [ {advanced}, %{latch} ]"]
    for c, s, n, v in zip(carried, starts, nexts, values, strict=True):
        phis.append(f"  {c} = phi {v.type.scalar.llvm} [ {s}, %{before} ], [ {n}, %{latch} ]")
    body.lines[at:at] = phis
    body.start_block(after)
    if aligned is not None:
        body.int64_names.pop()
    return carried


def _before(body: FunctionLowering, low: str, lead: int) -> str:
    """Emit the first idle lane; tasks that share a function may begin at different lanes."""
    known = low.lstrip("-").isdigit()
    return str(int(low) - lead) if known else body.assign(f"sub nsw i64 {low}, {lead}")


def _once(
    body: FunctionLowering, task: Task, aligned: AlignedRows, wide: dict[Value, str]
) -> Block:
    """Emit what is the same for all lanes of a row, in a scope that the caller pops; return what is left.

    LLVM cannot hoist a load out of a condition; but there is no row without lanes.
    """
    body.int64_names.append(dict(wide))
    for axis in task.axes[:-1]:
        if axis.type.scalar.bits == 64:
            body.names[axis] = wide[axis]
    body.block(Block([s for s in task.body.stmts if s in aligned.once]))
    return Block([s for s in task.body.stmts if s not in aligned.once])


def _skip_idle(body: FunctionLowering, task: Task, aligned: AlignedRows, k: str) -> str:
    """Emit a branch around the body for lanes at the ends of a row; return the label behind: "" if none."""
    if aligned.lanes == whole_row(task):
        return ""
    own, behind = body.new_label("own"), body.new_label("idle")
    after_lead = body.assign(f"sub i64 {k}, {aligned.lead}") if aligned.lead else k
    is_lane = body.assign(f"icmp ult i64 {after_lead}, {whole_row(task)}")
    body.emit(f"br i1 {is_lane}, label %{own}, label %{behind}")
    body.start_block(own)
    return behind


def _gain_no_vectors(module: Module, k: int, task: Task) -> bool:
    """Return whether none of the tasks that a function is for gains by LLVM's loop vectorizer."""
    tasks = module.kernel.tasks
    alike = [tasks[other] for other in module.sharing.get(k, ())] or [task]
    return all(_gains_no_vectors(t, module.most_lanes) for t in alike)


def _gains_no_vectors(task: Task, most: int) -> bool:
    """Return whether a task is not worth the time that LLVM's loop vectorizer takes for it.

    Rows shorter than a vector are never run by its code. And the rims of a large box are a small part of a
    launch, but each of them as much code as the box (docs/adr/0056); `most`: lanes of the largest.
    """
    sizes = box_sizes(task)
    if sizes is None:
        return False
    if is_one_row(task):
        sizes = [math.prod(sizes)]
    if sizes[-1] <= shared_functions.SHORTEST_ROW:
        return True
    is_small = math.prod(sizes) * _LARGE <= most
    return is_small and sum(1 for _ in statements(task.body)) >= _LONG_BODY


def _written_out_branches(block: Block) -> int:
    """Return the branches in loops of constant length, each as often as these are run."""
    found = 0
    for s in block.stmts:
        if isinstance(s, For) and isinstance(s.lo, Const) and isinstance(s.hi, Const):
            inside = sum(isinstance(x, If) for x in statements(s.body))
            found += max(0, int(s.hi.value) - int(s.lo.value)) * max(
                inside, _written_out_branches(s.body)
            )
        else:
            found += sum(_written_out_branches(b) for b in blocks(s))
    return found
