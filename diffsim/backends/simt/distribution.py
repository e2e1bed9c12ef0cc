"""Lanes of a GPU thread: one after the other, several side by side, and of several tasks in one launch.

Consecutive independent tasks, such as the interior and the boundaries of a stencil's adjoint, are one
launch, in which each block has a task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffsim.backends.llvm.lanes import accumulate, count, enter_lane, point
from diffsim.backends.simt.thread import Thread
from diffsim.ir.nodes import Const, Load, Store, Task, Value
from diffsim.ir.simple_tasks import (
    MOST_LOADS,
    MOST_PARTS,
    box_sizes,
    count_loads,
    is_plain,
    is_straight,
)

_LINE = 32  # f32 numbers in a line of memory
_NARROWEST = 32  # threads in a block with tiles: they reach over a whole line of memory
_FEW_LOADS = 8  # of a lane; eight such lanes have room in the registers of a thread
_LONG_ROW = 512  # lanes, and at least two blocks: rows that are worth tiles
_NARROW = 1 << 31  # lanes; fewer are numbered in 32 bits, in which divisions are fast


def run_row(lanes: Lanes, per_thread: int, at: str, tid64: str, total: str) -> None:
    """Emit a block's lanes from `at` on: side by side, or one by one in an incomplete row.

    A thread's lanes are a block apart, so that neighbouring threads always access neighbouring elements
    (coalesced accesses).
    """
    thread = lanes.thread
    dim = thread.block_dim
    # Thread t of the block has lane at + t: neighbouring threads, neighbouring lanes.
    first = thread.assign(f"add nuw nsw i64 {at}, {tid64}")
    # The loop around rows runs in step for the whole block; a thread beyond the last lane has
    # nothing to do in the last row.
    if per_thread == 1:
        after = thread.branch_if(thread.assign(f"icmp slt i64 {first}, {total}"))
        lanes.run(first)
        thread.jump(after)
        thread.start_block(after)
        return
    end = thread.assign(f"add nuw nsw i64 {at}, {dim * per_thread}")
    after = thread.new_label("row")
    # Uniform in a block: `end` and `total` are the same for all of its threads.
    otherwise = thread.branch_if(thread.assign(f"icmp sle i64 {end}, {total}"))
    steps = range(0, dim * per_thread, dim)
    lanes.run_interleaved([thread.assign(f"add nuw nsw i64 {first}, {step}") for step in steps])
    thread.jump(after)
    thread.start_block(otherwise)
    thread.strided(first, total, str(dim), lanes.run)
    thread.jump(after)
    thread.start_block(after)


def is_tiled(task: Task, block_dim: int) -> bool:
    """Return whether a thread runs a column of lanes, the columns beginning at cache lines.

    For short straight-line lanes in a box of known size with long rows. Loads of neighbours then hit
    registers or the L1 cache; and no line is written by two warps, as it would be in a box inside a field.
    """
    return (
        block_dim >= _NARROWEST
        and is_plain(task)
        and len(task.axes) > 1
        and lanes_per_thread(task) > 1
        and _sizes(task)[-1] >= max(_LONG_ROW, 2 * block_dim)
        and _sizes(task)[-2] >= tile_height(task)
        and (_loads_neighbours(task) or _left_of(task) > 0 or _sizes(task)[-1] % _LINE > 0)
    )


def tile_height(task: Task) -> int:
    """Return the lanes in a thread's column: the more, the fewer elements are loaded by two threads.

    In columns of four, a five-point stencil gets each element from the L2 cache 6/4 times, and took 1.2 times
    as long as what it has to move; in columns of eight it gets each 10/8 times.
    """
    return 8 if count_loads(task.body.stmts) <= _FEW_LOADS else 4


def _loads_neighbours(task: Task) -> bool:
    """Return whether a lane loads elements other than those it stores."""
    stored = {(s.mem, s.index) for s in task.body.stmts if isinstance(s, Store)}
    loads = (s for s in task.body.stmts if isinstance(s, Load))
    return any((s.mem, s.index) not in stored for s in loads)


def _sizes(task: Task) -> list[int]:
    sizes = box_sizes(task)
    assert sizes is not None
    return sizes


def _left_of(task: Task) -> int:
    """Return the columns between the start of a cache line and the box."""
    low = task.bounds.yields[-2]
    return int(low.value) % _LINE if isinstance(low, Const) else 0


def run_tile(lanes: Lanes, number: str, tid64: str) -> None:
    """Emit a block's lanes of one tile: each thread has a column of `tile_height` lanes.

    Columns are counted from the start of a cache line, so those left of the box have no lanes.
    """
    thread, axes, lows = lanes.thread, lanes.task.axes, lanes.lows
    tall = tile_height(lanes.task)
    height, width = _sizes(lanes.task)[-2:]
    skipped = _left_of(lanes.task)
    # Tiles are numbered along the rows first, so that blocks running at the same time share the
    # lines between tiles.
    across, down = -(-(skipped + width) // thread.block_dim), -(-height // tall)
    # A field in device memory has fewer than 2^32 tiles, and GPUs divide several times faster in
    # 32 bits.
    short = thread.assign(f"trunc i64 {number} to i32")
    rest = thread.assign(f"udiv i32 {short}, {across}")
    wide = [
        thread.assign(f"zext i32 {v} to i64")
        for v in (
            thread.assign(f"urem i32 {short}, {across}"),
            thread.assign(f"urem i32 {rest}, {down}"),
            thread.assign(f"udiv i32 {rest}, {down}"),
        )
    ]
    left = thread.assign(f"mul nuw nsw i64 {wide[0]}, {thread.block_dim}")
    column = thread.assign(f"add nuw nsw i64 {left}, {tid64}")
    top = thread.assign(f"mul nuw nsw i64 {wide[1]}, {tall}")
    bottom = thread.assign(f"add nuw nsw i64 {top}, {tall}")
    # Boxes of more than two axes are stacks of planes, each tiled by itself.
    outer = point(thread, axes[:-2], lows[:-2], lanes.sizes[:-2], wide[2])
    if skipped:
        column = thread.assign(f"sub nsw i64 {column}, {skipped}")
    outer[axes[-1]] = thread.assign(f"add nsw i64 {column}, {lows[-1]}")

    def place(row: str) -> dict[Value, str]:
        return {**outer, axes[-2]: thread.assign(f"add nsw i64 {row}, {lows[-2]}")}

    # Unsigned: a column left of the box is negative, and so larger than any width.
    after = thread.branch_if(thread.assign(f"icmp ult i64 {column}, {width}"))
    # The last tiles of a column may be cut: row by row then.
    otherwise = thread.branch_if(thread.assign(f"icmp sle i64 {bottom}, {height}"))
    rows = [thread.assign(f"add nuw nsw i64 {top}, {k}") for k in range(tall)]
    lanes.run_interleaved([place(row) for row in rows])
    thread.jump(after)
    thread.start_block(otherwise)
    thread.strided(top, str(height), "1", lambda row: lanes.run(place(row)))
    thread.jump(after)
    thread.start_block(after)


class Lanes:
    """Lowers what one lane does, or several lanes of a thread at the same time."""

    def __init__(
        self,
        thread: Thread,
        task: Task,
        count: int | None,
        lows: list[str],
        sizes: list[str],
        sums: list[str],
    ) -> None:
        self.thread = thread
        self.task = task
        # With one axis there is nothing to divide.
        self.is_narrow = count is not None and count < _NARROW and len(task.axes) > 1
        self.lows, self.sizes, self.sums = lows, sizes, sums
        self.tid = self.total = self.threads = ""

    def _enter(self, number: str | dict[Value, str]) -> None:
        if isinstance(number, dict):
            enter_lane(self.thread, self.task, number)
            return
        axes, lows, sizes = self.task.axes, self.lows, self.sizes
        at = point(self.thread, axes, lows, sizes, number, narrow=self.is_narrow)
        enter_lane(self.thread, self.task, at)

    def _accumulate(self) -> None:
        thread, task = self.thread, self.task
        for place, (op, _, _), v in zip(self.sums, task.reductions, task.body.yields, strict=True):
            t = v.type.scalar.llvm
            # A variable in memory, promoted to a register by LLVM (see `_new_sums`).
            carried = thread.assign(f"load {t}, ptr {place}")
            thread.emit(f"store {t} {accumulate(thread, op, v, carried)}, ptr {place}")

    def run(self, number: str | dict[Value, str]) -> None:
        """Emit one lane, given its number or the values of its axes."""
        thread = self.thread
        if thread.aggregated:
            assert isinstance(number, str)
            # Before the lane itself: shuffles in its body need the mask of the threads that have a
            # lane now.
            thread.enter_warp(self.tid, number, self.total, self.threads)
        self._enter(number)
        self.thread.block(self.task.body)
        self._accumulate()
        self.thread.int64_names.pop()

    def run_interleaved(self, numbers: Sequence[str | dict[Value, str]]) -> None:
        """Emit several lanes, statement by statement for all of them, so that their loads overlap.

        Sound as lanes are concurrent in any case: each has its own names, and its statements keep order.
        """
        thread = self.thread
        names, wide = thread.names, thread.int64_names
        # Names of what all lanes share (bounds, parameters) stay visible to each.
        own = []
        for number in numbers:
            # Copies: what one lane computes must not be found under the same value by the next one.
            thread.names, thread.int64_names = dict(names), list(wide)
            self._enter(number)
            own.append((thread.names, thread.int64_names))
        for s in self.task.body.stmts:
            for thread.names, thread.int64_names in own:
                thread.stmt(s)
        for thread.names, thread.int64_names in own:
            self._accumulate()
        thread.names, thread.int64_names = names, wide


def lanes_per_thread(task: Task) -> int:
    """Return how many lanes a thread runs at the same time: several if they are short straight-line code."""
    stmts = task.body.stmts
    if not is_straight(stmts) or len(stmts) > MOST_PARTS:
        return 1
    loads = count_loads(stmts)
    # Enough loads in flight to hide the latency of memory, few enough values for the registers of a
    # thread.
    return 8 if loads == 1 else 4 if loads <= 4 else 2 if loads <= MOST_LOADS else 1


# ---- tasks in one launch


def rows(tasks: Sequence[Task], block_dim: int) -> int:
    """Return the threads for all rows of lanes of tasks with constant numbers of lanes."""
    found = 0
    for task in tasks:
        lanes = count(task)
        # Only tasks with constant bounds are joined (`Task.concurrent`).
        assert lanes is not None
        if is_tiled(task, block_dim):
            *outer, height, width = _sizes(task)
            across = -(-(_left_of(task) + width) // block_dim)
            found += math.prod(outer) * -(-height // tile_height(task)) * across
        else:
            found += -(-lanes // (block_dim * lanes_per_thread(task)))
    return found * block_dim
