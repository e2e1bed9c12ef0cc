"""Reductions of a GPU's thread blocks: in registers, then with shuffles in a warp, then in shared memory.

Memory is updated once per block, or once for each element of a memory that the lanes of a block add to in a
copy of its own in shared memory (`Task.privatized`).
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.backends.llvm import private_copy
from diffsim.backends.llvm.lanes import identity
from diffsim.backends.simt.thread import Thread
from diffsim.ir.nodes import Task, Value
from diffsim.ir.schedules import Privatized
from diffsim.ir.types import ScalarType

_MOST_SHARED = (
    16 << 10
)  # bytes of copies in a block: more would keep blocks from running side by side
_MANY_BLOCKS = 1024  # what a large grid has, for the question whether copies are worth it
_COPY_WORK = 2  # additions that an element of a copy must save

Part = tuple[str, ScalarType, str]
"""The operation, the type of its operands, and a thread's partial result."""


def block_totals(thread: Thread, tid: str, parts: Sequence[Part], exit_label: str) -> list[str]:
    """Emit the reduction of the threads' partial results; the totals are valid in the block's first thread.

    A fixed tree, so equal inputs give equal bits. Threads outside the first warp branch to the label
    `exit_label`.
    """
    if thread.block_dim == 1:
        thread.jump("total")
        thread.start_block("total")
        return [v for _, _, v in parts]
    values = [_fold(thread, op, t, v, thread.warp) for op, t, v in parts]
    warps = thread.block_dim // thread.warp
    if warps > 1:
        # Words of 8 bytes whatever the types are: one array serves all partial results.
        shared = thread.shared_array(f"{thread.entry}_sums", warps * len(parts), "i64")
        place = thread.assign(f"and i32 {tid}, {thread.warp - 1}")
        shift = thread.warp.bit_length() - 1
        warp = thread.assign(f"zext i32 {thread.assign(f'lshr i32 {tid}, {shift}')} to i64")
        converged = thread.branch_if(thread.assign(f"icmp eq i32 {place}, 0"))
        for k, ((_, t, _), v) in enumerate(zip(parts, values, strict=True)):
            at = thread.assign(f"add nuw nsw i64 {warp}, {k * warps}")
            thread.emit(f"store {t.llvm} {v}, ptr {thread.offset(shared, at)}")
        thread.jump(converged)
        thread.start_block(converged)
        # Before the first warp reads what the other warps have stored.
        thread.barrier()
    first = thread.assign(f"icmp ult i32 {tid}, {thread.target.warp_size}")
    thread.emit(f"br i1 {first}, label %total, label %{exit_label}")
    thread.start_block("total")
    if warps > 1:
        # All threads of the first warp take part in the next shuffles, also those without a warp of
        # their own: they load a valid word and use the identity instead.
        mine = thread.assign(f"call i32 {_umin(thread)}(i32 {tid}, i32 {warps - 1})")
        wide = thread.assign(f"zext i32 {mine} to i64")
        there = thread.assign(f"icmp ult i32 {tid}, {warps}")
        for k, (op, t, _) in enumerate(parts):
            at = thread.assign(f"add nuw nsw i64 {wide}, {k * warps}")
            v = thread.assign(f"load {t.llvm}, ptr {thread.offset(shared, at)}")
            v = thread.assign(f"select i1 {there}, {t.llvm} {v}, {t.llvm} {identity(op, t)}")
            values[k] = _fold(thread, op, t, v, warps)
    return values


def _umin(thread: Thread) -> str:
    symbol = "@llvm.umin.i32"
    thread.module.declare(symbol, f"declare i32 {symbol}(i32, i32)")
    return symbol


def _fold(thread: Thread, op: str, t: ScalarType, v: str, width: int) -> str:
    """Emit the reduction over the first `width` threads of a warp, into its first thread.

    Threads beyond them, up to the next power of two, must hold the identity.
    """
    everyone = str((1 << thread.warp) - 1 if thread.warp < 32 else -1)  # as i32
    distance = 1 << (width - 1).bit_length() >> 1
    while distance:
        v = thread.combine(op, t, v, thread.shuffle_down(t, v, distance, everyone))
        distance //= 2
    return v


# ---- copies of small memories


def shared_copies(task: Task, lanes: int | None, block_dim: int) -> list[Privatized]:
    """Return the memories that blocks add to in shared memory: small ones, with many additions.

    Args:
        task: a parallel task.
        lanes: their number if it is a constant.
        block_dim: threads in a block.
    """
    found, bytes_left = [], _MOST_SHARED
    # Smallest first: the most memories for the shared memory that a block may have.
    for p in sorted(task.privatized, key=lambda p: p.scalars):
        n, width = p.scalars, p.mem.dtype.scalar.bytes
        enough = True
        if lanes is not None:
            blocks = min(_MANY_BLOCKS, -(-lanes // block_dim))
            enough = lanes * p.count >= _COPY_WORK * n * blocks
        # Shared memory has atomics for words of 4 and 8 bytes; copies must be contiguous, as one
        # index runs over copy and memory.
        if width >= 4 and n * width <= bytes_left and enough and private_copy.contiguous(p):
            found.append(p)
            bytes_left -= n * width
    return found


def open_copies(thread: Thread, chosen: list[Privatized], tid64: str) -> None:
    """Emit zeroing of the copies before the lanes, by all threads of the block."""
    for k, p in enumerate(chosen):
        t = p.mem.dtype.scalar
        copy = _copy(thread, k, p)
        zero = "0.0" if t.is_float else "0"

        def clear(i: str, copy: str = copy, t: ScalarType = t, zero: str = zero) -> None:
            thread.emit(f"store {t.llvm} {zero}, ptr {thread.element(copy, t.llvm, i)}")

        thread.strided(tid64, str(p.scalars), str(thread.block_dim), clear)
        thread.private_copies.update(dict.fromkeys(p.atomics, private_copy.copy_at(p, copy)))
    thread.barrier()


def close_copies(thread: Thread, chosen: list[Privatized], tid64: str) -> None:
    """Emit the addition of the copies to the memories, after the lanes."""
    thread.barrier()
    for k, p in enumerate(chosen):
        t = p.mem.dtype.scalar
        copy = _copy(thread, k, p)
        first = private_copy.part_address(thread, p)
        kind = thread.module.alias(p.mem)

        def add(
            i: str, copy: str = copy, t: ScalarType = t, first: str = first, kind: str = kind
        ) -> None:
            v = thread.assign(f"load {t.llvm}, ptr {thread.element(copy, t.llvm, i)}")
            test = "fcmp une" if t.is_float else "icmp ne"
            nothing = "0.0" if t.is_float else "0"
            # A block often touches only part of a copy: a shared load and a compare are far cheaper
            # than a global atomic. `une` is true for NaN, which must not be lost.
            after = thread.branch_if(thread.assign(f"{test} {t.llvm} {v}, {nothing}"))
            word = "fadd" if t.is_float else "add"
            at = thread.element(first, t.llvm, i)
            thread.emit(f"atomicrmw {word} ptr {at}, {t.llvm} {v}{thread.scope} monotonic{kind}")
            thread.jump(after)
            thread.start_block(after)

        thread.strided(tid64, str(p.scalars), str(thread.block_dim), add)


def prefix_values(chosen: list[Privatized]) -> tuple[Value, ...]:
    """Return the leading indices of the copied parts."""
    return tuple(v for p in chosen for v, _ in p.prefix if v is not None)


def _copy(thread: Thread, k: int, p: Privatized) -> str:
    return thread.shared_array(f"{thread.entry}_copy{k}", p.scalars, p.mem.dtype.scalar.llvm)
