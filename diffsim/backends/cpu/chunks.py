"""Chunks of lanes on the CPU: how many there are, and jobs of the pool that work them off."""

from __future__ import annotations

from diffsim.backends.llvm import safepoints
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.parameter_block import STOP

_CHUNK_WORK = 30_000  # estimated operations in the smallest chunk worth handing to another thread
_MOST_CHUNKS = 128
_SLICE_WORK = 20_000_000  # estimated operations of the longest chunk: Ctrl-C is noticed after it
_LONGEST_CHUNK = 1 << 20  # lanes; bounds the length of one partial sum


def slices(body: FunctionLowering, lanes: str, work: int, least: str, most: str) -> str:
    """How many chunks add to copies: one for each thread, in a long loop more, for Ctrl-C to end it."""
    found = body.assign(f"sdiv i64 {lanes}, {max(1, _SLICE_WORK // max(1, work))}")
    for choice, limit in (("smin", most), ("smax", least)):
        body.module.declare(f"@llvm.{choice}.i64", f"declare i64 @llvm.{choice}.i64(i64, i64)")
        found = body.assign(f"call i64 @llvm.{choice}.i64(i64 {found}, i64 {limit})")
    return found


def alloc(body: FunctionLowering, pool: str, bytes_: str) -> str:
    """Memory from the arena of the thread that launches."""
    return body.assign(f"call ptr @ds_arena_alloc(ptr {pool}, i64 0, i64 {bytes_})")


def pooled(
    body: FunctionLowering,
    function: str,
    job: tuple[str, str, str],
    *,
    serial: bool = False,
    at_stop: str = "",
) -> None:
    """Run a function over the chunks; leave the launch if it was stopped.

    `serial`: on this thread alone, in their order. `at_stop`: what is to be done before leaving.
    """
    pool, lanes, chunks = job
    name = "@ds_serial_for" if serial else "@ds_parallel_for"
    body.module.declare(name, f"declare i64 {name}(ptr, ptr, ptr, i64, i64, ptr)")
    stopped = body.assign(
        f"call i64 {name}(ptr {pool}, ptr {function}, ptr %params, i64 {lanes}, "
        f"i64 {chunks}, ptr {body.slot_address(STOP)})"
    )
    stop, go = body.new_label("stop"), body.new_label("go")
    body.emit(f"br i1 {body.assign(f'icmp ne i64 {stopped}, 0')}, label %{stop}, label %{go}")
    body.start_block(stop)
    if at_stop:
        body.emit(at_stop)
    body.emit("ret void")  # what the arena holds is freed behind it
    body.start_block(go)


def whole(body: FunctionLowering, k: int, kind: str, lanes: str) -> None:
    """Run all lanes of a task on this thread; leave the launch if it was stopped."""
    body.emit(f"call void @{kind}{k}(ptr %params, i64 0, i64 {lanes}, i64 0, i64 0)")
    if k in body.module.counting:
        safepoints.return_if_stopped(body)


def count_chunks(body: FunctionLowering, lanes: str, work: int) -> str:
    """How many chunks: enough work in each, none too long, the same for any number of threads.

    So results do not depend on the number of threads: neither sums, nor the last bits of elements
    that a vectorized loop's remainder computes with scalar functions.
    """
    grain = max(1, _CHUNK_WORK // max(1, work))
    longest = max(1, min(_LONGEST_CHUNK, _SLICE_WORK // max(1, work)))
    if lanes.isdigit():
        n = int(lanes)
        return str(max(min(n // grain, _MOST_CHUNKS), n // longest, 1))
    for name in ("smin", "smax"):
        body.module.declare(f"@llvm.{name}.i64", f"declare i64 @llvm.{name}.i64(i64, i64)")
    by_work = body.assign(f"sdiv i64 {lanes}, {grain}")
    by_work = body.assign(f"call i64 @llvm.smin.i64(i64 {by_work}, i64 {_MOST_CHUNKS})")
    by_length = body.assign(f"sdiv i64 {lanes}, {longest}")
    most = body.assign(f"call i64 @llvm.smax.i64(i64 {by_work}, i64 {by_length})")
    return body.assign(f"call i64 @llvm.smax.i64(i64 {most}, i64 1)")
