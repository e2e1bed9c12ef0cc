"""The functions that a GPU launches: lanes of one task or several, bounds, ordered sums of blocks.

`launches.py` decides which tasks are one launch; read it first.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.backends.llvm.lanes import bound, count, identity, size, store_bounds
from diffsim.backends.llvm.module import Module
from diffsim.backends.simt.block_reduce import (
    Part,
    block_totals,
    close_copies,
    open_copies,
    prefix_values,
    shared_copies,
)
from diffsim.backends.simt.distribution import (
    Lanes,
    is_tiled,
    lanes_per_thread,
    rows,
    run_row,
    run_tile,
)
from diffsim.backends.simt.entry_point import EntryPoint
from diffsim.backends.simt.scratch import ScratchAllocator
from diffsim.backends.simt.thread import Thread
from diffsim.backends.simt.warp_aggregation import folded_atomics
from diffsim.errors import BackendError, Span
from diffsim.ir.nodes import Atomic, Block, Task, Value
from diffsim.ir.types import ScalarType

MOST_BLOCKS = 1024
"""The most blocks of a grid whose partial results are added up in order."""
_BITWISE = ("and", "or", "xor")


def _refuse_atomic(op: str, t: ScalarType, span: Span) -> None:
    if t.is_bool if op not in _BITWISE else t.is_float:
        raise BackendError(
            f"there is no atomic {op} of {t} on GPUs",
            span,
            hint="use a field of i32, which GPUs have all atomic updates of",
        )


# ---- tasks on one thread


def serial_entry(module: Module, entry: EntryPoint, numbers: Sequence[int]) -> list[str]:
    """Write an entry of one thread: serial tasks, and the bounds of a parallel task after them."""
    tasks = [(k, module.kernel.tasks[k]) for k in numbers]
    code = [task.bounds if task.axes else task.body for _, task in tasks]
    thread = Thread(module, entry.name, 1, code)
    thread.load_parameters(code)
    for k, task in tasks:
        if task.axes:
            lanes = store_bounds(thread, k, task)
            thread.store_task_slot(thread.layout.lanes[k], "i64", lanes)
            continue
        away, after = thread.new_label("gives_up"), thread.new_label("next")
        # A failed allocation ends this task only; what it holds is freed on the way.
        thread.exit_branch = f"br label %{away}"
        thread.scratch = ScratchAllocator(thread, task, "0", "1")
        thread.block(task.body)
        thread.jump(after)
        thread.scratch.free_all(away, after)
        thread.start_block(after)
    return thread.end()


# ---- parallel tasks


def parallel_entry(module: Module, entry: EntryPoint, task: Task) -> list[str]:
    """Write an entry of one task: blocks take rows of lanes, `per_thread` for each thread, in grid strides.

    Grid strides make any grid right: the host chooses its size for speed only.
    """
    for op, mem, _ in task.reductions:
        _refuse_atomic(op, mem.dtype.scalar, task.span)
    # On one thread, for a fixed order: no atomics, no copies in shared memory.
    alone = entry.kind == "serial"
    copied = [] if alone else shared_copies(task, entry.lanes, entry.block_dim)
    # All that the entry evaluates: the lane, its bounds, the targets of reductions, the parts that
    # copies are of.
    indices = tuple(i for _, _, index in task.reductions for i in index)
    code = [task.body, task.bounds, Block([], (*indices, *prefix_values(copied)))]
    targets = [mem for _, mem, _ in task.reductions]
    thread = Thread(module, entry.name, entry.block_dim, code, targets)
    thread.single_threaded = alone
    sums = _new_sums(thread, task)
    thread.load_parameters(code, targets)
    # Lanes are numbered in 64 bits, threads of a block in 32.
    tid = thread.thread_index()
    tid64, block = thread.assign(f"zext i32 {tid} to i64"), thread.block_index()
    row = entry.block_dim * entry.per_thread
    # Block b has rows b, b + blocks, b + 2 blocks, ...
    begin = thread.assign(f"mul nuw nsw i64 {block}, {row}")
    stride = thread.assign(f"mul nuw nsw i64 {thread.block_count()}, {row}")
    lows, sizes, total = _box(thread, entry, task)
    # The copies must be zero, and a barrier passed, before any lane adds to them.
    if copied:
        open_copies(thread, copied, tid64)
    lanes = Lanes(thread, task, entry.lanes, lows, sizes, sums)
    lanes.tid, lanes.total = tid, total
    # 1. The lanes. Several side by side have no scratch, checks or warp shuffles, which would need
    # one lane at a time.
    if entry.per_thread > 1:
        thread.strided(
            begin, total, stride, lambda at: run_row(lanes, entry.per_thread, at, tid64, total)
        )
        thread.jump("done")
    else:
        thread.exit_branch = "br label %gives_up"
        first = thread.assign(f"add nuw nsw i64 {begin}, {tid64}")
        scratch = thread.scratch = ScratchAllocator(thread, task, first, stride)
        # The arena has room for fewer threads than the grid has: the others take no lanes (first =
        # total), and those that do stride over all lanes.
        if scratch.threads != stride:
            has_lanes = thread.assign(f"icmp ult i64 {first}, {scratch.threads}")
            first = thread.assign(f"select i1 {has_lanes}, i64 {first}, i64 {total}")
        # Shuffles need all active threads of a warp at the same place: impossible if one of them
        # may give up for lack of memory.
        if not alone and scratch.is_fixed:
            thread.aggregated = folded_atomics(task)
        lanes.threads = "" if scratch.threads == stride else scratch.threads
        # One lane at a time: the column of scratch is used again by each.
        thread.strided(first, total, scratch.threads, lanes.run)
        thread.jump("done")
        # Reached by threads without room only; the others jump over it.
        scratch.free_all("gives_up", "done")
    thread.start_block("done")
    if copied:
        close_copies(thread, copied, tid64)
    # 2. The block's partial results. All threads get here, also those that gave up: the reduction
    # has barriers.
    if sums:
        parts = _loaded(thread, task, sums)
        totals = block_totals(thread, tid, parts, "exit")
        # Deterministic: stored for `combine_entry`. Otherwise one atomic update per block.
        if entry.task in thread.layout.partials:
            _store_partials(thread, entry.task, tid, block, parts, totals)
        else:
            # A block's first thread has its first lane: blocks without lanes leave memory alone.
            works = thread.assign(f"icmp slt i64 {begin}, {total}")
            one = thread.assign(f"icmp eq i32 {tid}, 0")
            _update(thread, task, totals, thread.assign(f"and i1 {one}, {works}"))
        thread.jump("exit")
        thread.start_block("exit")
    return thread.end()


def joined_entry(module: Module, entry: EntryPoint, tasks: Sequence[Task]) -> list[str]:
    """Write an entry of independent tasks: each block takes rows of lanes of one of them at a time."""
    code = [block for task in tasks for block in (task.body, task.bounds)]
    thread = Thread(module, entry.name, entry.block_dim, code)
    thread.load_parameters(code)
    tid64 = thread.assign(f"zext i32 {thread.thread_index()} to i64")
    block, blocks = thread.block_index(), thread.block_count()
    assert entry.lanes is not None

    def row(number: str) -> None:
        end, done = 0, thread.new_label("row")
        for k, task in enumerate(tasks):
            first, end = end, end + rows([task], entry.block_dim) // entry.block_dim
            otherwise = ""
            # The row number is uniform in a block, so this branch diverges in no warp.
            if task is not tasks[-1]:
                otherwise = thread.branch_if(thread.assign(f"icmp slt i64 {number}, {end}"))
            # Each task is lowered in a branch of its own.
            thread.int64_names.append({})
            own = EntryPoint(entry.name, "parallel", entry.task + k, count(task))
            lows, sizes, total = _box(thread, own, task)
            lanes = Lanes(thread, task, count(task), lows, sizes, [])
            per_thread = lanes_per_thread(task)
            # Rows are numbered through all tasks: this is the row within its own.
            place = thread.assign(f"sub nsw i64 {number}, {first}")
            if is_tiled(task, entry.block_dim):
                run_tile(lanes, place, tid64)
            else:
                at = thread.assign(f"mul nuw nsw i64 {place}, {entry.block_dim * per_thread}")
                run_row(lanes, per_thread, at, tid64, total)
            thread.int64_names.pop()
            thread.jump(done)
            if otherwise:
                thread.start_block(otherwise)
        thread.start_block(done)

    thread.strided(block, str(entry.lanes // entry.block_dim), blocks, row)
    return thread.end()


def _box(thread: Thread, entry: EntryPoint, task: Task) -> tuple[list[str], list[str], str]:
    """Return the lower bounds and sizes of the axes, and the number of lanes."""
    k, layout, axes = entry.task, thread.layout, range(len(task.axes))
    if k in layout.lanes:
        pairs = [bound(thread, k, task, j) for j in range(2 * len(axes))]
    else:
        for s in task.bounds.stmts:
            thread.stmt(s)
        pairs = [thread.index64(v) for v in task.bounds.yields]
    lows = pairs[::2]
    sizes = [size(thread, lows[a], pairs[2 * a + 1]) for a in axes]
    if entry.lanes is not None:
        return lows, sizes, str(entry.lanes)
    if k in layout.lanes:
        return lows, sizes, thread.load_task_slot(layout.lanes[k], "i64")
    total = "1"
    for n in sizes:
        # An empty axis may have a negative extent; the product of two would be positive.
        some = n if n.isdigit() else thread.combine_integers("smax", n, "0")
        total = some if total == "1" else thread.assign(f"mul nsw i64 {total}, {some}")
    return lows, sizes, total


def _new_sums(thread: Thread, task: Task) -> list[str]:
    """Allocate places for the partial results; LLVM promotes them to registers.

    Phis would need to know every exit of a lane (checks, missing scratch).
    """
    sums = []
    for (op, _, _), v in zip(task.reductions, task.body.yields, strict=True):
        t = v.type.scalar
        sums.append(thread.alloca(t.llvm))
        thread.emit(f"store {t.llvm} {identity(op, t)}, ptr {sums[-1]}")
    return sums


def _loaded(thread: Thread, task: Task, sums: list[str]) -> list[Part]:
    """Load the partial results of the thread."""
    parts = []
    for place, (op, _, _), v in zip(sums, task.reductions, task.body.yields, strict=True):
        t = v.type.scalar
        parts.append((op, t, thread.assign(f"load {t.llvm}, ptr {place}")))
    return parts


def _update(thread: Thread, task: Task, totals: list[str], condition: str) -> None:
    """Emit the update of memory with the results of a block, in its first thread."""
    after = thread.branch_if(condition)
    for total, (op, mem, index), v in zip(totals, task.reductions, task.body.yields, strict=True):
        result, value = Value(v.type), Value(mem.dtype.scalar)
        thread.names[result] = total
        thread.names[value] = thread.stored(result, mem.dtype.scalar)
        thread.atomic(Atomic(None, op, mem, index, value, task.span))
    thread.jump(after)
    thread.start_block(after)


# ---- sums in order


def _store_partials(
    thread: Thread, k: int, tid: str, block: str, parts: Sequence[Part], totals: list[str]
) -> None:
    """Store the results of a block, and the number of blocks, for the entry that adds them up."""
    layout = thread.layout
    after = thread.branch_if(thread.assign(f"icmp eq i32 {tid}, 0"))
    for j, ((_, t, _), total) in enumerate(zip(parts, totals, strict=True)):
        # One array per reduction: threads of the combining block read neighbouring words.
        row = thread.task_slot_address(layout.partials[k] + j * MOST_BLOCKS)
        at = thread.offset(row, block)
        thread.emit(f"store {t.llvm} {total}, ptr {at}{thread.module.alias('block')}")
    thread.store_task_slot(layout.blocks[k], "i64", thread.block_count())
    thread.jump(after)
    thread.start_block(after)


def combine_entry(module: Module, entry: EntryPoint, task: Task) -> list[str]:
    """Write the entry that reduces the blocks' results in a fixed order and updates memory.

    Thread t takes results t, t + block_dim, ...: the order depends on the number of blocks alone.
    """
    k = entry.task
    targets = [mem for _, mem, _ in task.reductions]
    code = [Block([], tuple(i for _, _, index in task.reductions for i in index))]
    thread = Thread(module, entry.name, entry.block_dim, code, targets)
    layout = thread.layout
    sums = _new_sums(thread, task)
    thread.load_parameters(code, targets)
    tid = thread.thread_index()
    tid64 = thread.assign(f"zext i32 {tid} to i64")
    blocks = thread.load_task_slot(layout.blocks[k], "i64")

    def add_partials(number: str) -> None:
        for j, (place, (op, _, _), v) in enumerate(
            zip(sums, task.reductions, task.body.yields, strict=True)
        ):
            t = v.type.scalar
            at = thread.offset(
                thread.task_slot_address(layout.partials[k] + j * MOST_BLOCKS), number
            )
            more = thread.assign(f"load {t.llvm}, ptr {at}{thread.module.alias('block')}")
            have = thread.assign(f"load {t.llvm}, ptr {place}")
            thread.emit(f"store {t.llvm} {thread.combine(op, t, have, more)}, ptr {place}")

    thread.strided(tid64, blocks, str(entry.block_dim), add_partials)
    totals = block_totals(thread, tid, _loaded(thread, task, sums), "exit")
    # One thread of the only block: plain updates.
    thread.single_threaded = True
    _update(thread, task, totals, thread.assign(f"icmp eq i32 {tid}, 0"))
    thread.jump("exit")
    thread.start_block("exit")
    return thread.end()
