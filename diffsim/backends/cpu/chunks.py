"""Chunks of lanes on the CPU: how many there are, and the jobs of the pool that run them.

Read `count_chunks` first: everything else assumes that the number of chunks depends on the work alone.
"""

from __future__ import annotations

from diffsim.backends.llvm import safepoints
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.parameter_block import STOP
from diffsim.backends.llvm.safepoints import cost
from diffsim.ir.nodes import Atomic, If, Let, Load, Store, Task
from diffsim.ir.op import Math
from diffsim.ir.simple_tasks import is_one_row, short_row
from diffsim.ir.traversal import statements

_CHUNK_WORK = 30_000  # estimated operations in the smallest chunk worth handing to another thread
_FEW_LANES = 4  # of a row: what is written out is short
_ROW_WORK = 30_000  # operations of the longest row that chunks are not cut in
_QUICK_WORK = (
    250_000  # operations that several threads have to share, where LLVM makes vectors of lanes
)
_MOST_CHUNKS = 128
_SLICE_WORK = 20_000_000  # estimated operations of the longest chunk: Ctrl-C is noticed after it
_LONGEST_CHUNK = 1 << 20  # lanes; bounds the length of one partial sum


def whole_row(task: Task) -> int:
    """Return the length of a task's rows, if chunks have whole ones; 0: a chunk may begin and end in a row.

    LLVM makes better code of short rows whose length it knows, but for branches, which it would write out
    lane by lane where `aligned_rows.py` has found no vectors, and for sums, whose additions follow one
    another: 32 of them take LLVM two seconds. Of rows with more work threads would have too few to share.
    Rows that are one have no ends.
    """
    length = 0 if task.simd or task.appends or task.reductions else short_row(task)
    if task.aligned is None and length > _FEW_LANES and has_branches(task):
        return 0
    return length if length * cost(task.body) <= _ROW_WORK and not is_one_row(task) else 0


def has_branches(task: Task) -> bool:
    """Return whether a task's lanes have branches."""
    return any(isinstance(s, If) for s in statements(task.body))


def slices(body: FunctionLowering, lanes: str, work: int, least: str, most: str) -> str:
    """Emit the number of chunks that add to copies: one for each thread, more in a long loop for Ctrl-C."""
    found = body.assign(f"sdiv i64 {lanes}, {max(1, _SLICE_WORK // max(1, work))}")
    # The upper limit first: `least` wins where the two contradict, as each thread needs a chunk.
    for choice, limit in (("smin", most), ("smax", least)):
        body.module.declare(f"@llvm.{choice}.i64", f"declare i64 @llvm.{choice}.i64(i64, i64)")
        found = body.assign(f"call i64 @llvm.{choice}.i64(i64 {found}, i64 {limit})")
    return found


def alloc(body: FunctionLowering, pool: str, bytes_: str) -> str:
    """Allocate from the arena of the launching thread (worker 0)."""
    return body.assign(f"call ptr @ds_arena_alloc(ptr {pool}, i64 0, i64 {bytes_})")


def pooled(
    body: FunctionLowering,
    function: str,
    job: tuple[str, str, str],
    *,
    serial: bool = False,
    little: str = "",
    at_stop: str = "",
) -> None:
    """Run a function over the chunks; return from the launch if it was stopped.

    `serial`: on this thread alone, in the order of the chunks; `little`: a condition for that. `at_stop`:
    emitted before that return.
    """
    pool, lanes, chunks = job
    alone, shared = "@ds_serial_for", "@ds_parallel_for"
    runner = alone if serial else shared
    for name in (alone, shared) if little else (runner,):
        body.module.declare(name, f"declare i64 {name}(ptr, ptr, ptr, i64, i64, ptr)")
    if little:
        runner = body.assign(f"select i1 {little}, ptr {alone}, ptr {shared}")
    stopped = body.assign(
        f"call i64 {runner}(ptr {pool}, ptr {function}, ptr %params, i64 {lanes}, "
        f"i64 {chunks}, ptr {body.slot_address(STOP)})"
    )
    stop, go = body.new_label("stop"), body.new_label("go")
    body.emit(f"br i1 {body.assign(f'icmp ne i64 {stopped}, 0')}, label %{stop}, label %{go}")
    body.start_block(stop)
    if at_stop:
        body.emit(at_stop)
    body.emit("ret void")  # what the arena holds is freed behind it
    body.start_block(go)


def is_little(body: FunctionLowering, task: Task, lanes: str, work: int) -> str:
    """Emit whether a task is done before another thread would have joined and fetched its rows; "": never.

    Lanes without loops and functions run as vectors, some twenty times as fast as scalars.
    """
    for s in statements(task.body):
        if not isinstance(s, (Let, Load, Store, Atomic)) or (
            isinstance(s, Let) and isinstance(s.op.lowering, Math)
        ):
            return ""
    return body.assign(f"icmp slt i64 {lanes}, {_QUICK_WORK // max(1, work)}")


def whole(body: FunctionLowering, k: int, kind: str, lanes: str) -> None:
    """Run all lanes of a task on this thread; return from the launch if it was stopped."""
    f = body.module.same_as.get(k, k)
    body.emit(f"call void @{kind}{f}(ptr %params, i64 0, i64 {lanes}, i64 0, i64 0)")
    # Only functions with a safepoint can return early; the others need no test.
    if k in body.module.counting:
        safepoints.return_if_stopped(body)


def _limits(work: int, unit: int, has_safepoints: bool) -> tuple[int, int]:
    """Return the units of the shortest chunk worth having, and of the longest."""
    work, longest = max(1, work * unit), max(1, _LONGEST_CHUNK // unit)
    grain = max(1, _CHUNK_WORK // work)
    if not has_safepoints:
        longest = max(1, min(longest, _SLICE_WORK // work))
    return grain, longest


def chunks_of(
    lanes: int, work: int, unit: int, *, has_safepoints: bool = False, shared: bool = True
) -> int:
    """Return the number of chunks of so many units; see `count_chunks`."""
    grain, longest = _limits(work, unit, has_safepoints)
    return max(min(lanes // grain, _MOST_CHUNKS) if shared else 1, lanes // longest, 1)


def count_chunks(
    body: FunctionLowering,
    lanes: str,
    work: int,
    unit: int,
    *,
    has_safepoints: bool = False,
    shared: bool = True,
) -> str:
    """Emit the number of chunks: enough work in each, none too long, the same for any number of threads.

    `lanes` are counted in units of so many lanes, each of which is `work`. A chunk whose lanes have
    safepoints may take long: Ctrl-C is noticed inside it. Those that no thread will share (`scheduling.py`)
    are as few as that allows.

    So neither the order of sums depends on the number of threads, nor which elements a vectorized loop's
    remainder computes with scalar functions. Which products LLVM fuses with sums may: with one thread it
    sees more constants.
    """
    grain, longest = _limits(work, unit, has_safepoints)
    # With constant bounds the count is folded here: one chunk then needs no pool at all, and the
    # text shows it. Both branches compute the same number.
    if lanes.isdigit():
        known = int(lanes)
        return str(chunks_of(known, work, unit, has_safepoints=has_safepoints, shared=shared))
    for name in ("smin", "smax"):
        body.module.declare(f"@llvm.{name}.i64", f"declare i64 @llvm.{name}.i64(i64, i64)")
    by_work = "1"
    if shared:
        by_work = body.assign(f"sdiv i64 {lanes}, {grain}")
        by_work = body.assign(f"call i64 @llvm.smin.i64(i64 {by_work}, i64 {_MOST_CHUNKS})")
    by_length = body.assign(f"sdiv i64 {lanes}, {longest}")
    # _MOST_CHUNKS bounds the overhead of drawing chunks; a very long loop exceeds it, since a chunk
    # is also what Ctrl-C waits for and what one partial sum adds up.
    most = body.assign(f"call i64 @llvm.smax.i64(i64 {by_work}, i64 {by_length})")
    return body.assign(f"call i64 @llvm.smax.i64(i64 {most}, i64 1)")
