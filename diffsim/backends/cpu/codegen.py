"""The CPU backend: entry points of a kernel, its tasks spread over the pool's threads.

A kernel becomes one exported function `launch(ptr params)` and one internal function for each task. The
lanes of a parallel task are numbered 0..n along the flattened loop nest; a chunk is a range of these
numbers. Within a chunk the last axis runs as an inner loop of its own, so it vectorizes whatever the
number of axes. Each chunk writes its partial results, and `launch` combines them in the order of the
chunks: sums do not depend on which thread was faster.
"""

from __future__ import annotations

from diffsim.backends.cpu import (
    inlining,
    packed_copies,
    private_copies,
    rows,
    seams,
    shared_functions,
    trailing_task,
)
from diffsim.backends.cpu.chunks import alloc, count_chunks, pooled, whole
from diffsim.backends.cpu.scheduling import (
    are_shared,
    chunk_copies,
    combine_partials,
    functions_of,
    has_variants,
    jit_of,
    reach_of,
    simd_width,
    spread,
    unit_lanes,
)
from diffsim.backends.cpu.target import ARENA, CpuTarget
from diffsim.backends.llvm import long_blocks, safepoints, update_log
from diffsim.backends.llvm.lanes import (
    size,
    store_bounds,
)
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.backends.llvm.parameter_block import POOL, ParameterBlock
from diffsim.backends.llvm.safepoints import cost
from diffsim.backends.native.jit import MATH, Jit
from diffsim.backends.simd import lane_offsets, lookups
from diffsim.backends.simd.appends import AppendingLowering
from diffsim.backends.simd.simd import SimdLowering
from diffsim.backends.simd.simd_blocks import run_blocks
from diffsim.errors import InternalError
from diffsim.ir.nodes import Atomic, Block, Kernel, Load, Task
from diffsim.ir.schedules import Packed, Privatized
from diffsim.ir.simple_tasks import fills_tables
from diffsim.ir.traversal import statements

_ARGUMENTS = "ptr noalias nocapture %params, i64 %begin, i64 %end, i64 %chunk, i64 %worker"
_ATTRIBUTES = (
    # LLVM keeps what registers have no room for on a stack of 16 bytes' alignment, where vectors straddle
    # cache lines and are not forwarded to the loads that follow (docs/adr/0103).
    "attributes #0 = { nounwind alignstack=64 }",
    # A lane that clears a vector's four components calls memset otherwise, and LLVM vectorizes no calls.
    'attributes #1 = { nounwind alignstack=64 "no-builtin-memset" }',
)
_FEWEST_CHUNKS = 32  # of a task that another one trails; fewer would be too long for the caches

_MOST_TOGETHER = 16
"""Tasks that one function launches: fewer would hide from LLVM what neighbouring tasks have in common."""


class CpuCode:
    """LLVM text of a kernel, its parameter layout, what it can report, whether it needs the pool."""

    def __init__(self, text: str, module: Module, *, needs_pool: bool) -> None:
        self.text = text
        self.layout = module.layout
        self.checks = module.checks
        self.prints = module.prints
        self.needs_pool = needs_pool


def lower(
    kernel: Kernel, jit: Jit, *, fast_math: bool, deterministic: bool = False, threads: int = 0
) -> CpuCode:
    """Lower a scalar kernel to an LLVM module with the function `launch`; `threads`: see `CpuTarget`."""
    layout = ParameterBlock(kernel)
    target = CpuTarget(jit, threads)
    module = Module(kernel, layout, target, fast_math=fast_math, deterministic=deterministic)
    text: list[str] = []
    shared_functions.find_alike(module)
    written: dict[str, int] = {}
    for k, task in enumerate(kernel.tasks):
        # Tasks come before `launch`: lowering them finds out which of them return early on a stop
        # request (`module.counting`), and the calls in `launch` have to test for that.
        module.open_domain()
        lines = _task(module, k, task)
        text += shared_functions.unless_written(module, k, lines, written)
        if _follows(module, k):
            text.append(f"define internal void @behind{k - 1}({_ARGUMENTS}) #0 {{")
            text += trailing_task.chunk(module, k - 1)
    module.open_domain()
    launch = _launch(module)
    text = [*inlining.inline_first(text, launch), *launch]
    head = sorted(module.declared.values())
    # Refused here, where the kernel's line is known: the loader could name the missing symbol only.
    plain = [n for n in module.math if n not in MATH and n.removesuffix("f") not in MATH]
    if plain:
        raise InternalError(f"no such function: {plain[0]}", kernel.span)
    math = ""
    if module.math:
        math = jit.declare_math(sorted(module.math), vectors=not module.exact)
    pieces = [math, *head, *module.text, *text, *_ATTRIBUTES, *module.metadata()]
    needs_pool = any(name.startswith("@ds_") for name in module.declared)
    return CpuCode("\n".join(pieces) + "\n", module, needs_pool=needs_pool)


def _task(module: Module, k: int, task: Task) -> list[str]:
    """Lower a task to `task<k>` and the variants of it that need no atomics.

    `alone<k>` runs all lanes on one thread, `seamed<k>` a chunk of rows and its seams in the same way;
    `copies<k>` runs a chunk that adds to its private copies; `logged<k>` runs a chunk that logs its updates,
    which `merge<k>` then applies in the order of the lanes.
    """
    # Only what a launch may choose: each of them is a copy of the body, and as long to compile.
    called = functions_of(module, task)
    lines = [line for kind in called for line in _function(module, k, task, kind)]
    reach = reach_of(module, task) if "alone" in called else None
    if reach is not None:
        lines.append(f"define internal void @seamed{k}({_ARGUMENTS}) #0 {{")
        lines += seams.chunk(module, k, reach)
    if "copies" in called:
        lines += private_copies.sum_functions(module, chunk_copies(module, task), k, _ARGUMENTS)
    if task.order is not None and task.order.logged:
        lines += _function(module, k, task, "logged")
        for name, write in (("logs", update_log.chunk), ("merge", update_log.merge)):
            text = [f"define internal void @{name}{k}({_ARGUMENTS}) #0 {{", "entry:"]
            body = FunctionLowering(module, text)
            body.load_parameters([], update_log.mems_of(task) if name == "merge" else ())
            write(body, k, task)
            lines += [*text, "  ret void", "}"]
    return lines


def _attributes(task: Task) -> str:
    """The attributes of a task's function: one that only stores may become a call of memset."""
    computes = any(isinstance(s, (Load, Atomic)) for s in statements(task.body))
    return "#1" if computes else "#0"


def _function(module: Module, k: int, task: Task, kind: str) -> list[str]:
    lines = [f"define internal void @{kind}{k}({_ARGUMENTS}) {_attributes(task)} {{", "entry:"]
    width = simd_width(module, task)
    body = FunctionLowering(module, lines)
    if width > 1:
        body = SimdLowering(module, lines, task, width, jit_of(module))
    elif task.appends is not None:
        body = AppendingLowering(module, lines, task, jit_of(module))
    in_order = task.order is not None and task.order.serial
    # A task that must run in the order of its lanes is run by one thread at a time
    # (`@ds_serial_for`), so plain updates are as good as atomic ones.
    body.single_threaded, body.has_safepoints = kind == "alone" or in_order, True
    # The work counter is inserted here once it is known whether any loop counts; an alloca outside
    # the entry block would not be promoted to a register by LLVM (SROA, mem2reg).
    entry = len(lines)
    # The bounds too: a lane recovers its point from them. Those of tasks that share a function are in slots.
    bounds = () if k in module.sharing else task.bounds.yields
    body.load_parameters([task.body, Block([], bounds)])
    if isinstance(body, SimdLowering):
        packed_copies.find(body, k, task)
        body.groups = {s: group for group in task.neighbours for s in group.accesses}
        body.looks_up = width == lookups.LANES and lookups.only_lookups(task, jit_of(module))
        if not body.looks_up:
            body.wanted = lane_offsets.wanted_integers(body, task.neighbours)
    if isinstance(body, (SimdLowering, AppendingLowering)):
        body.open_preamble()
    # The number of copies is bounded, so a chunk with copies may be longer than any other
    # (`chunks.slices`): its lanes are counted even where each of them is short.
    long = kind == "copies" or safepoints.has_long(task.body)
    work = safepoints.own_cost(task.body) if long else 0
    chunk = chunk_copies(module, task)
    mine = chunk.begin(body, k) if kind == "copies" else ""
    if kind == "logged":
        update_log.find_logs(body, k, task)
    if isinstance(body, SimdLowering):
        _store_partials(body, k, task, run_blocks(body, k, task, work))
    elif task.axes:
        _store_partials(body, k, task, rows.emit_lanes(body, k, task, work))
    else:
        body.block(task.body)
    if mine:
        chunk.end(body, mine)
    if isinstance(body, (SimdLowering, AppendingLowering)):
        body.close_preamble()
    body.emit("ret void")
    long_blocks.close(body)
    if safepoints.finish(body, entry):
        module.counting.add(k)
    lines.append("}")
    return lines


def _store_partials(body: FunctionLowering, k: int, task: Task, sums: list[str]) -> None:
    if not sums:
        return
    base = body.load_task_slot(body.module.layout.partials[k], "ptr", constant=False)
    # One row of words per chunk, written by that chunk alone: no atomics, and the later fold reads
    # the rows in the order of the chunks, whichever thread ran them.
    row = body.assign(f"mul nsw i64 %chunk, {len(sums)}")
    for j, (s, v) in enumerate(zip(sums, task.body.yields, strict=True)):
        at = body.assign(f"add nsw i64 {row}, {j}")
        place = body.assign(f"getelementptr i64, ptr {base}, i64 {at}")
        body.emit(f"store {v.type.scalar.llvm} {s}, ptr {place}{body.module.alias('scratch')}")


# ---- launch


def _launch(module: Module) -> list[str]:
    tasks = range(len(module.kernel.tasks))
    # A task with another one behind it stays beside that.
    heads = [k for k in tasks if not _follows(module, k)]
    groups = [heads[n : n + _MOST_TOGETHER] for n in range(0, len(heads), _MOST_TOGETHER)]
    lines = ["define void @launch(ptr noalias nocapture %params) #1 {", "entry:"]
    body = FunctionLowering(module, lines)
    text: list[str] = []
    if len(groups) > 1:
        for n, group in enumerate(groups):
            text += _part(module, n, group)
            _call_part(body, n)
    else:
        _launch_tasks(body, heads)
    body.emit("ret void")
    return [*text, *lines, "}"]


def _part(module: Module, n: int, tasks: list[int]) -> list[str]:
    """Write a function that launches some of the tasks; it returns whether the launch was stopped.

    Functions that are called once are inlined, and LLVM's loop passes take time as the square of the loops of
    a function: two thirds of all for a kernel of 64 short stencils.
    """
    lines: list[str] = []
    body = FunctionLowering(module, lines)
    _launch_tasks(body, tasks)
    lines = ["  ret i1 true" if line == "  ret void" else line for line in lines]
    head = f"define internal i1 @launch_part{n}(ptr noalias nocapture %params) noinline #1 {{"
    return [head, "entry:", *lines, "  ret i1 false", "}"]


def _call_part(body: FunctionLowering, n: int) -> None:
    stopped = body.assign(f"call i1 @launch_part{n}(ptr %params)")
    stop, go = body.new_label("stop"), body.new_label("go")
    body.emit(f"br i1 {stopped}, label %{stop}, label %{go}")
    body.start_block(stop)
    body.emit("ret void")
    body.start_block(go)


def _launch_tasks(body: FunctionLowering, heads: list[int]) -> None:
    module = body.module
    tasks = module.kernel.tasks
    mine = [k for h in heads for k in (h, h + 1) if k == h or _follows(module, k)]
    # All that the function itself evaluates: bounds, the elements that reductions update, and the
    # leading indices of copied memories. They are loaded once, at the entry, where they
    # dominate all uses.
    code = [tasks[k].bounds for k in mine]
    code += [
        Block([], tuple(i for _, _, index in tasks[k].reductions for i in index)) for k in mine
    ]
    copies: list[Packed | Privatized] = [p for k in mine for p in tasks[k].privatized]
    copies += [p for k in mine for p in tasks[k].packed]
    code += [Block([], tuple(v for v, _ in p.prefix if v is not None)) for p in copies]
    mems = [m for k in mine for _, m, _ in tasks[k].reductions]
    body.load_parameters(code, [*mems, *(p.mem for p in copies)])
    for k in heads:
        if _follows(module, k + 1):
            _launch_two(body, k, tasks[k], tasks[k + 1])
        elif fills_tables(tasks[k]):
            _launch_once(body, k, tasks[k])
        elif tasks[k].axes:
            _launch_parallel(body, k, tasks[k])
        else:
            whole(body, k, "task", "1")


def _launch_once(body: FunctionLowering, k: int, task: Task) -> None:
    """Launch a task unless a launch before has run it to its end."""
    done = f"@done{k}"
    body.module.declare(done, f"{done} = internal global i8 0")
    # Two threads that both run it store the same numbers.
    known = body.assign(f"load atomic i8, ptr {done} acquire, align 1")
    first, after = body.new_label("first"), body.new_label("known")
    is_first = body.assign(f"icmp eq i8 {known}, 0")
    body.emit(f"br i1 {is_first}, label %{first}, label %{after}")
    body.start_block(first)
    body.int64_names.append({})
    _launch_parallel(body, k, task)
    # Not where the launch was stopped: that returns before.
    body.emit(f"store atomic i8 1, ptr {done} release, align 1")
    body.int64_names.pop()
    body.jump(after)
    body.start_block(after)


def _launch_parallel(body: FunctionLowering, k: int, task: Task) -> None:
    module = body.module
    unit = unit_lanes(module, task)
    lanes = store_bounds(body, k, task, unit)
    # Nothing at all is done for an empty loop: no division by its size, no reduction over no lanes.
    some, after = body.new_label("some"), body.new_label("next")
    body.emit(f"br i1 {body.assign(f'icmp sgt i64 {lanes}, 0')}, label %{some}, label %{after}")
    body.start_block(some)
    # Registers of this branch do not dominate what follows `after`, so the widened names must be
    # forgotten there.
    body.int64_names.append({})
    polls = safepoints.has_long(task.body)
    shared = are_shared(module, task)
    chunks = count_chunks(body, lanes, cost(task.body), unit, has_safepoints=polls, shared=shared)
    n = len(task.reductions)
    release = packed_copies.make(body, k, task)
    if chunks == "1":
        partials = ""
        if n:
            # One row of partial results fits on the stack; the arena is for several chunks.
            partials = body.assign(f"alloca [{n} x i64]")
            body.store_task_slot(module.layout.partials[k], "ptr", partials)
        # A constant trip count too small to share: decided when compiling, no pool needed.
        kind = "alone" if has_variants(task) else "task"
        whole(body, k, kind, lanes)
        if n:
            combine_partials(body, task, partials, chunks)
    else:
        spread(body, k, task, lanes, chunks)
    if release:
        body.emit(release)
    body.int64_names.pop()
    body.jump(after)
    body.start_block(after)


def _follows(module: Module, k: int) -> bool:
    """Return whether the chunks of task k may trail those of the task before it."""
    if not 0 < k < len(module.kernel.tasks) or module.kernel.tasks[k].lag is None:
        return False
    # Fusing is for plain tasks: variants, reductions and logs would each need their own fused form,
    # and rows correspond only between boxes of equal rank.
    pair = module.kernel.tasks[k - 1 : k + 1]
    if trailing_task.is_small(*pair):
        return False
    return len({len(t.axes) for t in pair}) == 1 and not any(
        t.simd or t.privatized or t.reductions or t.order or has_variants(t) for t in pair
    )


def _launch_two(body: FunctionLowering, k: int, first: Task, second: Task) -> None:
    """Launch a task with the next one trailing it, where lanes and rows are enough for chunks."""
    module = body.module
    assert second.lag is not None
    unit = unit_lanes(module, first)
    lanes = store_bounds(body, k, first, unit)
    store_bounds(body, k + 1, second, unit_lanes(module, second))
    body.int64_names.append({})
    for s in first.bounds.stmts:
        body.stmt(s)
    # Rows limit the chunks: one with fewer than `rows_of_chunk` rows could lie near two borders,
    # whose counters would then not say who is the last reader of a row.
    extent = size(body, *(body.index64(v) for v in first.bounds.yields[:2]))
    chunks = count_chunks(body, lanes, cost(first.body) + cost(second.body), unit)
    body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    most = body.assign(f"sdiv i64 {extent}, {trailing_task.rows_of_chunk(second.lag)}")
    chunks = body.assign(f"call i64 @llvm.smin.i64(i64 {chunks}, i64 {most})")
    enough = body.assign(f"icmp sge i64 {chunks}, {_FEWEST_CHUNKS}")
    least = max(1, trailing_task.fewest_lanes(second) // unit)
    there = body.assign(f"icmp sge i64 {lanes}, {least}")
    both, apart, after = (body.new_label(w) for w in ("both", "apart", "next"))
    body.emit(f"br i1 {body.assign(f'and i1 {enough}, {there}')}, label %{both}, label %{apart}")
    body.start_block(both)
    for name, text in ARENA.items():
        module.declare(name, text)
    pool = body.load_slot(POOL, "ptr")
    mark = body.assign(f"call i64 @ds_arena_mark(ptr {pool}, i64 0)")
    bytes_ = body.assign(f"mul i64 {chunks}, 4")
    # One 32-bit word per border, all 0. Border 0 does not exist, so its word holds the number of
    # chunks.
    words = alloc(body, pool, bytes_)
    module.declare("@llvm.memset", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    body.emit(f"call void @llvm.memset.p0.i64(ptr align 4 {words}, i8 0, i64 {bytes_}, i1 false)")
    body.emit(f"store i32 {body.assign(f'trunc i64 {chunks} to i32')}, ptr {words}")
    body.store_task_slot(module.layout.borders[k + 1], "ptr", words)
    pooled(body, f"@behind{k}", (pool, lanes, chunks))
    body.emit(f"call void @ds_arena_release(ptr {pool}, i64 0, i64 {mark})")
    body.jump(after)
    body.int64_names.pop()
    # Too few rows or lanes, or none: the tasks one after the other, which is always right.
    body.start_block(apart)
    _launch_parallel(body, k, first)
    _launch_parallel(body, k + 1, second)
    body.jump(after)
    body.start_block(after)
