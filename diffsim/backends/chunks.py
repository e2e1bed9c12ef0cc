"""Chunks of lanes on the CPU: how many there are, and jobs of the pool that work them off."""

from __future__ import annotations

from diffsim.backends.llvm import Body
from diffsim.ir.nodes import Block, Const, For, If, While
from diffsim.ir.walk import blocks

_CHUNK_WORK = 30_000  # estimated operations in the smallest chunk worth handing to another thread
_MOST_CHUNKS = 128
_UNKNOWN_TURNS = 128  # of a serial loop: a guess that keeps heavy lanes in chunks of their own
_SLICE_WORK = 100_000_000  # estimated operations after which Ctrl-C is to be noticed
_LONGEST_CHUNK = 1 << 20  # lanes; bounds the length of one partial sum


def slices(body: Body, lanes: str, work: int, least: str, most: str) -> str:
    """How many chunks add to copies: one for each thread, in a long loop more, for Ctrl-C to end it."""
    found = body.let(f"sdiv i64 {lanes}, {max(1, _SLICE_WORK // max(1, work))}")
    for choice, limit in (("smin", most), ("smax", least)):
        body.module.declare(f"@llvm.{choice}.i64", f"declare i64 @llvm.{choice}.i64(i64, i64)")
        found = body.let(f"call i64 @llvm.{choice}.i64(i64 {found}, i64 {limit})")
    return found


def alloc(body: Body, pool: str, bytes_: str) -> str:
    """Memory from the arena of the thread that launches."""
    return body.let(f"call ptr @ds_arena_alloc(ptr {pool}, i64 0, i64 {bytes_})")


def pooled(body: Body, function: str, job: tuple[str, str, str], released: str) -> None:
    """Run a function over the chunks; leave the launch if it was interrupted."""
    pool, lanes, chunks = job
    body.module.declare("@ds_parallel_for", "declare i64 @ds_parallel_for(ptr, ptr, ptr, i64, i64)")
    stopped = body.let(
        f"call i64 @ds_parallel_for(ptr {pool}, ptr {function}, ptr %params, i64 {lanes}, i64 {chunks})"
    )
    stop, go = body.new_label("stop"), body.new_label("go")
    body.put(f"br i1 {body.let(f'icmp ne i64 {stopped}, 0')}, label %{stop}, label %{go}")
    body.start(stop)
    if released:
        body.put(released)
    body.put("ret void")
    body.start(go)


def count_chunks(body: Body, lanes: str, work: int) -> str:
    """How many chunks: enough work in each, none too long, the same for any number of threads.

    So results do not depend on the number of threads: neither sums, nor the last bits of elements
    that a vectorized loop's remainder computes with scalar functions.
    """
    grain = max(1, _CHUNK_WORK // max(1, work))
    if lanes.isdigit():
        n = int(lanes)
        return str(max(min(n // grain, _MOST_CHUNKS), n // _LONGEST_CHUNK, 1))
    for name in ("smin", "smax"):
        body.module.declare(f"@llvm.{name}.i64", f"declare i64 @llvm.{name}.i64(i64, i64)")
    by_work = body.let(f"sdiv i64 {lanes}, {grain}")
    by_work = body.let(f"call i64 @llvm.smin.i64(i64 {by_work}, i64 {_MOST_CHUNKS})")
    by_length = body.let(f"sdiv i64 {lanes}, {_LONGEST_CHUNK}")
    most = body.let(f"call i64 @llvm.smax.i64(i64 {by_work}, i64 {by_length})")
    return body.let(f"call i64 @llvm.smax.i64(i64 {most}, i64 1)")


def cost(block: Block) -> int:
    """A rough number of operations of one lane."""
    total = 0
    for s in block.stmts:
        total += 1
        inner = sum(cost(b) for b in blocks(s))
        if isinstance(s, For):
            turns = _UNKNOWN_TURNS
            if isinstance(s.lo, Const) and isinstance(s.hi, Const):
                turns = max(0, int(s.hi.value) - int(s.lo.value))
            inner *= turns
        elif isinstance(s, While):
            inner *= _UNKNOWN_TURNS
        elif isinstance(s, If):
            inner = (inner + 1) // 2
        total += inner
    return total
