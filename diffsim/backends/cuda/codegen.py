"""The CUDA backend: the tasks of a kernel become GPU functions.

The tasks of a launch are GPU launches in a row, in the order of `CudaCode.entries`. Every entry
point takes the parameter block by value, so that a launch copies nothing and the block lies in the
GPU's constant memory. What the tasks of a launch write for each other is in a work area, whose
address the block holds. The threads of a "parallel" entry take lanes in strides of the whole grid,
so any grid will do; one that fills the GPU is best. What runs on one thread and stands in a row is
one entry.

The threads find out the bounds of their loop themselves where that is one small computation of
values that the task does not write. Otherwise the entry before leaves the bounds and the number of
lanes in the work area, so the host never waits to learn them.

Sums are folded in registers, with shuffles and in shared memory; a block updates memory once
(`backends/simt/block_reduce.py`). Atomic updates come in no fixed order: sums of floats differ in their
last bits from launch to launch. With `deterministic=True` they do not: blocks leave their partial results,
which another entry adds in order, and a task with other updates whose order matters (sums of floats with an
index that several lanes have, atomics whose old value is used) runs its lanes in order on one thread, which
is right and slow.

Arithmetic is IEEE's, divisions and square roots too; a multiplication and an addition may become
one instruction. With `fast_math` f32 divisions and roots are approximations and subnormal f32
numbers are 0.

No address is baked into the text, and nothing here needs a GPU or a driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from diffsim.backends.cuda.ptx import to_ptx
from diffsim.backends.llvm.lanes import bound, count, identity, size, store_bounds
from diffsim.backends.llvm.module import Module
from diffsim.backends.simt.block_reduce import (
    Part,
    block_totals,
    close_copies,
    lead_values,
    open_copies,
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
from diffsim.backends.simt.scratch import ScratchAllocator
from diffsim.backends.simt.thread import ALIGNMENT, ARENA, WORK, CudaLayout, CudaTarget, Thread
from diffsim.backends.simt.warp_aggregation import folded_atomics
from diffsim.errors import BackendError, Span
from diffsim.ir.nodes import Alloca, Atomic, Block, Kernel, Let, Load, Mem, Store, Task, Value
from diffsim.ir.traversal import statements
from diffsim.ir.types import ScalarType

__all__ = [
    "ALIGNMENT",
    "ARENA",
    "BLOCK_DIM",
    "WORK",
    "CudaCode",
    "CudaLayout",
    "EntryPoint",
    "emit_ptx",
    "lower",
]

BLOCK_DIM = 256
_BITWISE = ("and", "or", "xor")
_MOST_BLOCKS = 1024  # that leave partial results in order
_MOST_BOUND_STATEMENTS = 32  # that each thread computes by itself
_MOST_JOINED = 8  # tasks of one launch
_UNROLL = 4


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One GPU launch of a function whose parameter is the block (or, `not layout.by_value`, its address).

    A "parallel" entry is right with any number of blocks. Where `fills` is set, as many as the GPU runs
    at the same time are best (fewer for few lanes), because each of them leaves something to be added up
    or has memory of its own. Otherwise the best is one for each `block_dim * per_thread` lanes.

    Attributes:
        name: the function's name in the PTX.
        kind: "serial" runs on one thread, "combine" on one block, "parallel" on as many as there are.
        task: number of the (first) task of the kernel that it runs.
        lanes: number of lanes if it is a constant; None: the threads find out. Of several tasks: the
            number of threads that they take.
        block_dim: threads in a block: exactly so many.
        per_thread: lanes that a thread runs at the same time.
        blocks: the most blocks there may be; None: any number.
        fills: whether a grid that fills the GPU once is best.
    """

    name: str
    kind: Literal["serial", "parallel", "combine"]
    task: int
    lanes: int | None = None
    block_dim: int = BLOCK_DIM
    per_thread: int = 1
    blocks: int | None = None
    fills: bool = False


class CudaCode:
    """LLVM text of a kernel, its parameter layout, what it can report, its launches in order.

    Attributes:
        heap: whether threads may take memory from the device's heap (`cuCtxSetLimit` sizes it).
        ordered: tasks that run on one thread for the sake of `deterministic=True`.
    """

    def __init__(
        self,
        text: str,
        layout: CudaLayout,
        module: Module,
        entries: list[EntryPoint],
        *,
        heap: bool,
        ordered: list[Span],
    ) -> None:
        self.text = text
        self.layout = layout
        self.checks = module.checks
        self.prints = module.prints
        self.entries = entries
        self.heap = heap
        self.ordered = ordered


def emit_ptx(
    kernel: Kernel,
    sm: int = 80,
    *,
    fast_math: bool = False,
    deterministic: bool = False,
    block_dim: int = BLOCK_DIM,
) -> str:
    """A scalar kernel as PTX for one GPU generation.

    Args:
        kernel: on scalars, its ops those of the column "cuda".
        sm: compute capability, ten times the version: 80 for 8.0.
        fast_math: let LLVM approximate and reorder.
        deterministic: give equal bits in every run.
        block_dim: threads in a block of the tasks that do not say.

    Raises:
        BackendError: something in the kernel has no NVIDIA code.
        PtxError: a part of the CUDA toolkit is missing.
    """
    code = lower(
        kernel, sm=sm, fast_math=fast_math, deterministic=deterministic, block_dim=block_dim
    )
    return to_ptx(code.text, sm)


def lower(
    kernel: Kernel,
    *,
    fast_math: bool,
    deterministic: bool = False,
    sm: int = 0,
    block_dim: int = BLOCK_DIM,
) -> CudaCode:
    """A scalar kernel as an LLVM module for NVIDIA GPUs.

    Args:
        kernel: on scalars, its ops those of the column "cuda".
        fast_math: let LLVM approximate and reorder; subnormal f32 numbers are 0.
        deterministic: give equal bits in every run with the same grids.
        sm: the least compute capability that the code is for, ten times the version; 0: any. From 90
            on, additions to f32 vectors are made with one instruction for two or four components.
        block_dim: threads in a block of the tasks that do not say: a multiple of 32 up to 1024, or a power
            of two.

    Raises:
        BackendError: something in the kernel has no NVIDIA code.
    """
    layout = CudaLayout(kernel)
    target = CudaTarget(sm)
    module = Module(kernel, layout, target, fast_math=fast_math)
    launches = _Launches(module, layout, block_dim, deterministic=deterministic)
    launches.write(kernel.tasks)
    parts = [
        *(module.declared[symbol] for symbol in sorted(module.declared)),
        *launches.text,
        *module.metadata(),
        f"!2 = !{{i64 {ALIGNMENT}}}",
        *target.hints,
        f'!3 = !{{!"llvm.loop.unroll.count", i32 {_UNROLL}}}',
    ]
    if fast_math:
        n = 10 + 3 * len(module.scopes)
        parts += [
            f"!llvm.module.flags = !{{!{n}}}",
            f'!{n} = !{{i32 4, !"nvvm-reflect-ftz", i32 1}}',
        ]
    heap = "@malloc" in module.declared
    whole = "\n".join(parts) + "\n"
    return CudaCode(whole, layout, module, launches.entries, heap=heap, ordered=launches.ordered)


class _Launches:
    """Writes the entry points of a kernel, one for each launch, in order.

    Attributes:
        text: the entry points' functions.
        ordered: the loops whose lanes run in order, on one thread.
        waiting: the tasks that the next launch of one thread runs.
    """

    def __init__(
        self, module: Module, layout: CudaLayout, block_dim: int, *, deterministic: bool
    ) -> None:
        self.name = _symbol(module.kernel.name)
        self.module = module
        self.layout = layout
        self.block_dim = block_dim
        self.deterministic = deterministic
        self.entries: list[EntryPoint] = []
        self.text: list[str] = []
        self.ordered: list[Span] = []
        self.waiting: list[int] = []

    def write(self, tasks: Sequence[Task]) -> None:
        k = 0
        while k < len(tasks):
            group = self._group(tasks[k : k + _MOST_JOINED])
            if not group[0].axes:
                self.waiting.append(k)
            elif len(group) > 1 or is_tiled(group[0], self._dim(group[0])):
                self._together(k, group)
            else:
                self._alone(k, group[0])
            k += len(group)
        self._flush()

    def _dim(self, task: Task) -> int:
        return task.block_dim or self.block_dim

    def _group(self, tasks: Sequence[Task]) -> list[Task]:
        """The first of these tasks, and those after it that belong to the same launch."""
        group = [tasks[0]]
        for other in tasks[1:] if tasks[0].axes else ():
            if self._dim(other) != self._dim(tasks[0]) or not other.concurrent:
                break
            group.append(other)
        return group

    def _add(self, entry: EntryPoint, text: list[str]) -> None:
        self.entries.append(entry)
        self.text += text

    def _flush(self) -> None:
        if self.waiting:
            first = self.waiting[0]
            entry = EntryPoint(f"{self.name}_serial{first}", "serial", first, 1, 1, blocks=1)
            self._add(entry, _serial(self.module, entry, self.waiting))
            self.waiting = []

    def _together(self, k: int, group: list[Task]) -> None:
        self._flush()
        dim = self._dim(group[0])
        entry = EntryPoint(f"{self.name}_task{k}", "parallel", k, rows(group, dim), dim)
        self._add(entry, _several(self.module, entry, group))

    def _alone(self, k: int, task: Task) -> None:
        layout, lanes, dim = self.layout, count(task), self._dim(task)
        if lanes is None and not _threads_find_bounds(task):
            layout.lanes[k] = layout.reserve(1)
            self.waiting.append(k)
        self._flush()
        called = f"{self.name}_task{k}"
        if self.deterministic and _order_matters(task):
            self.ordered.append(task.span)
            entry = EntryPoint(called, "serial", k, lanes, 1, blocks=1)
        else:
            in_order = self.deterministic and bool(task.reductions)
            if in_order:
                layout.blocks[k] = layout.reserve(1)
                layout.partials[k] = layout.reserve(_MOST_BLOCKS * len(task.reductions))
            together, blocks = lanes_per_thread(task), _MOST_BLOCKS if in_order else None
            fills = _fills(task, lanes, dim)
            entry = EntryPoint(called, "parallel", k, lanes, dim, together, blocks, fills)
        self._add(entry, _parallel(self.module, entry, task))
        if k in layout.partials:
            entry = EntryPoint(
                f"{self.name}_combine{k}", "combine", k, None, self.block_dim, blocks=1
            )
            self._add(entry, _combine(self.module, entry, task))


def _symbol(name: str) -> str:
    """The kernel's name with what PTX does not allow in names replaced."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain[:1].isalpha() else f"k{plain}"


def _refuse_atomic(op: str, t: ScalarType, span: Span) -> None:
    if t.is_bool if op not in _BITWISE else t.is_float:
        raise BackendError(
            f"there is no atomic {op} of {t} on GPUs",
            span,
            hint="use a field of i32, which GPUs have all atomic updates of",
        )


def _order_matters(task: Task) -> bool:
    """Whether results depend on which of the lanes updates an element first."""
    return any(
        isinstance(s, Atomic)
        and not s.exclusive
        and (s.out is not None or (s.op == "add" and s.mem.dtype.scalar.is_float))
        for s in statements(task.body)
    )


def _fills(task: Task, lanes: int | None, block_dim: int) -> bool:
    """Whether blocks leave something to be added up, or threads have memory of their own."""
    return (
        bool(task.reductions)
        or any(isinstance(s, Alloca) for s in statements(task.body))
        or bool(shared_copies(task, lanes, block_dim))
    )


def _written(task: Task) -> set[Mem]:
    written = {s.mem for s in statements(task.body) if isinstance(s, (Store, Atomic))}
    return written | {mem for _, mem, _ in task.reductions}


def _threads_find_bounds(task: Task) -> bool:
    """Whether every thread may compute the bounds: little work, on values that stay as they are."""
    if len(task.bounds.stmts) > _MOST_BOUND_STATEMENTS:
        return False
    written = _written(task)
    if any(mem.kind == "array" for mem in written):
        written |= {s.mem for s in statements(task.bounds) if isinstance(s, Load)}
    return all(
        isinstance(s, Let) or (isinstance(s, Load) and s.mem not in written)
        for s in task.bounds.stmts
    )


# ---- tasks on one thread


def _serial(module: Module, entry: EntryPoint, numbers: Sequence[int]) -> list[str]:
    """Serial tasks, and the bounds of a parallel task after them."""
    tasks = [(k, module.kernel.tasks[k]) for k in numbers]
    code = [task.bounds if task.axes else task.body for _, task in tasks]
    thread = Thread(module, entry.name, 1, code)
    thread.enter(code)
    for k, task in tasks:
        if task.axes:
            lanes = store_bounds(thread, k, task)
            thread.shared_store(thread.layout.lanes[k], "i64", lanes)
            continue
        away, after = thread.new_label("gives_up"), thread.new_label("next")
        thread.exit = f"br label %{away}"
        thread.rooms = ScratchAllocator(thread, task, "0", "1")
        thread.block(task.body)
        thread.jump(after)
        thread.rooms.give_up(away, after)
        thread.start(after)
    return thread.end()


# ---- parallel tasks


def _parallel(module: Module, entry: EntryPoint, task: Task) -> list[str]:
    """The threads of a block take a row of lanes, `per_thread` each, and go on a whole grid further."""
    for op, mem, _ in task.reductions:
        _refuse_atomic(op, mem.dtype.scalar, task.span)
    alone = entry.kind == "serial"
    copied = [] if alone else shared_copies(task, entry.lanes, entry.block_dim)
    indices = tuple(i for _, _, index in task.reductions for i in index)
    code = [task.body, task.bounds, Block([], (*indices, *lead_values(copied)))]
    targets = [mem for _, mem, _ in task.reductions]
    thread = Thread(module, entry.name, entry.block_dim, code, targets)
    thread.alone = alone
    sums = _new_sums(thread, task)
    thread.enter(code, targets)
    tid = thread.special_register("tid.x")
    me, block = thread.let(f"zext i32 {tid} to i64"), thread.wide_register("ctaid.x")
    row = entry.block_dim * entry.per_thread
    begin = thread.let(f"mul nuw nsw i64 {block}, {row}")
    stride = thread.let(f"mul nuw nsw i64 {thread.wide_register('nctaid.x')}, {row}")
    lows, sizes, total = _box(thread, entry, task)
    if copied:
        open_copies(thread, copied, me)
    lanes = Lanes(thread, task, entry.lanes, lows, sizes, sums)
    lanes.tid, lanes.total = tid, total
    if entry.per_thread > 1:
        thread.strided(
            begin, total, stride, lambda at: run_row(lanes, entry.per_thread, at, me, total)
        )
        thread.jump("done")
    else:
        thread.exit = "br label %gives_up"
        first = thread.let(f"add nuw nsw i64 {begin}, {me}")
        rooms = thread.rooms = ScratchAllocator(thread, task, first, stride)
        if rooms.threads != stride:
            takes = thread.let(f"icmp ult i64 {first}, {rooms.threads}")
            first = thread.let(f"select i1 {takes}, i64 {first}, i64 {total}")
        if not alone and rooms.is_fixed:
            thread.uniform = folded_atomics(task)
        lanes.threads = "" if rooms.threads == stride else rooms.threads
        thread.strided(first, total, rooms.threads, lanes.run)
        thread.jump("done")
        rooms.give_up("gives_up", "done")
    thread.start("done")
    if copied:
        close_copies(thread, copied, me)
    if sums:
        parts = _loaded(thread, task, sums)
        totals = block_totals(thread, tid, parts, "leave")
        if entry.task in thread.layout.partials:
            _leave_partials(thread, entry.task, tid, block, parts, totals)
        else:
            # A block's first thread has its first lane: blocks without lanes leave memory alone.
            works = thread.let(f"icmp slt i64 {begin}, {total}")
            one = thread.let(f"icmp eq i32 {tid}, 0")
            _update(thread, task, totals, thread.let(f"and i1 {one}, {works}"))
        thread.jump("leave")
        thread.start("leave")
    return thread.end()


def _several(module: Module, entry: EntryPoint, tasks: Sequence[Task]) -> list[str]:
    """Tasks that can run at the same time: each block has a row of lanes of one of them."""
    code = [block for task in tasks for block in (task.body, task.bounds)]
    thread = Thread(module, entry.name, entry.block_dim, code)
    thread.enter(code)
    me = thread.let(f"zext i32 {thread.special_register('tid.x')} to i64")
    block, blocks = (thread.wide_register(name) for name in ("ctaid.x", "nctaid.x"))
    assert entry.lanes is not None

    def row(number: str) -> None:
        end, done = 0, thread.new_label("row")
        for k, task in enumerate(tasks):
            first, end = end, end + rows([task], entry.block_dim) // entry.block_dim
            otherwise = ""
            if task is not tasks[-1]:
                otherwise = thread.fork(thread.let(f"icmp slt i64 {number}, {end}"))
            thread.int64_names.append({})
            own = EntryPoint(entry.name, "parallel", entry.task + k, count(task))
            lows, sizes, total = _box(thread, own, task)
            lanes = Lanes(thread, task, count(task), lows, sizes, [])
            per_thread = lanes_per_thread(task)
            place = thread.let(f"sub nsw i64 {number}, {first}")
            if is_tiled(task, entry.block_dim):
                run_tile(lanes, place, me)
            else:
                at = thread.let(f"mul nuw nsw i64 {place}, {entry.block_dim * per_thread}")
                run_row(lanes, per_thread, at, me, total)
            thread.int64_names.pop()
            thread.jump(done)
            if otherwise:
                thread.start(otherwise)
        thread.start(done)

    thread.strided(block, str(entry.lanes // entry.block_dim), blocks, row)
    return thread.end()


def _box(thread: Thread, entry: EntryPoint, task: Task) -> tuple[list[str], list[str], str]:
    """The lower bounds and sizes of the axes, and the number of lanes."""
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
        return lows, sizes, thread.shared_load(layout.lanes[k], "i64")
    total = "1"
    for n in sizes:
        some = n if n.isdigit() else thread.combine_integers("smax", n, "0")
        total = some if total == "1" else thread.let(f"mul nsw i64 {total}, {some}")
    return lows, sizes, total


def _new_sums(thread: Thread, task: Task) -> list[str]:
    """Places for the partial results. LLVM makes registers of them, whichever way a lane ends."""
    sums = []
    for (op, _, _), v in zip(task.reductions, task.body.yields, strict=True):
        t = v.type.scalar
        sums.append(thread.alloca(t.llvm))
        thread.put(f"store {t.llvm} {identity(op, t)}, ptr {sums[-1]}")
    return sums


def _loaded(thread: Thread, task: Task, sums: list[str]) -> list[Part]:
    """The partial results of the thread."""
    parts = []
    for place, (op, _, _), v in zip(sums, task.reductions, task.body.yields, strict=True):
        t = v.type.scalar
        parts.append((op, t, thread.let(f"load {t.llvm}, ptr {place}")))
    return parts


def _update(thread: Thread, task: Task, totals: list[str], condition: str) -> None:
    """Update memory with the results of a block, in its first thread."""
    after = thread.fork(condition)
    for total, (op, mem, index), v in zip(totals, task.reductions, task.body.yields, strict=True):
        value = Value(v.type)
        thread.names[value] = total
        thread.atomic(Atomic(None, op, mem, index, value, task.span))
    thread.jump(after)
    thread.start(after)


# ---- sums in order


def _leave_partials(
    thread: Thread, k: int, tid: str, block: str, parts: Sequence[Part], totals: list[str]
) -> None:
    """Note the results of a block, and how many blocks there are."""
    layout = thread.layout
    after = thread.fork(thread.let(f"icmp eq i32 {tid}, 0"))
    for j, ((_, t, _), total) in enumerate(zip(parts, totals, strict=True)):
        row = thread.shared_slot(layout.partials[k] + j * _MOST_BLOCKS)
        at = thread.offset(row, block)
        thread.put(f"store {t.llvm} {total}, ptr {at}{thread.module.alias('block')}")
    thread.shared_store(layout.blocks[k], "i64", thread.wide_register("nctaid.x"))
    thread.jump(after)
    thread.start(after)


def _combine(module: Module, entry: EntryPoint, task: Task) -> list[str]:
    """Fold what the blocks left, always in the same order, and update memory."""
    k = entry.task
    targets = [mem for _, mem, _ in task.reductions]
    code = [Block([], tuple(i for _, _, index in task.reductions for i in index))]
    thread = Thread(module, entry.name, entry.block_dim, code, targets)
    layout = thread.layout
    sums = _new_sums(thread, task)
    thread.enter(code, targets)
    tid = thread.special_register("tid.x")
    me = thread.let(f"zext i32 {tid} to i64")
    blocks = thread.shared_load(layout.blocks[k], "i64")

    def take(number: str) -> None:
        for j, (place, (op, _, _), v) in enumerate(
            zip(sums, task.reductions, task.body.yields, strict=True)
        ):
            t = v.type.scalar
            at = thread.offset(thread.shared_slot(layout.partials[k] + j * _MOST_BLOCKS), number)
            more = thread.let(f"load {t.llvm}, ptr {at}{thread.module.alias('block')}")
            have = thread.let(f"load {t.llvm}, ptr {place}")
            thread.put(f"store {t.llvm} {thread.combine(op, t, have, more)}, ptr {place}")

    thread.strided(me, blocks, str(entry.block_dim), take)
    totals = block_totals(thread, tid, _loaded(thread, task, sums), "leave")
    thread.alone = True
    _update(thread, task, totals, thread.let(f"icmp eq i32 {tid}, 0"))
    thread.jump("leave")
    thread.start("leave")
    return thread.end()
