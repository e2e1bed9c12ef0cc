"""The CPU backend: entry points of a kernel, its tasks spread over the pool's threads.

A kernel becomes one exported function `launch(ptr params)` and one internal function for each task. The
lanes of a parallel task are numbered 0..n along the flattened loop nest; a chunk is a range of these
numbers. Within a chunk the last axis runs as an inner loop of its own, so it vectorizes whatever the
number of axes. Each chunk writes its partial results, and `launch` combines them in the order of the
chunks: sums do not depend on which thread was faster.
"""

from __future__ import annotations

from diffsim.backends import behind, copies, parts, reports
from diffsim.backends.jit import VECTOR_MATH, Jit
from diffsim.backends.lanes import (
    accumulate,
    bound,
    enter_lane,
    identity,
    point,
    size,
    store_bounds,
)
from diffsim.backends.layout import POOL, THREADS, Layout
from diffsim.backends.llvm import Body
from diffsim.backends.module import Module
from diffsim.backends.wide import WideBody, lanes_at_once, run_blocks
from diffsim.errors import BackendError
from diffsim.ir._row import Libdevice, Libm
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    For,
    If,
    Kernel,
    Scratch,
    Task,
    Value,
    While,
)
from diffsim.ir.types import ScalarType, size_of
from diffsim.ir.walk import blocks, statements

_ARGUMENTS = "ptr noalias nocapture %params, i64 %begin, i64 %end, i64 %chunk, i64 %worker"
_CHUNK_WORK = 30_000  # estimated operations in the smallest chunk worth handing to another thread
_MOST_CHUNKS = 128
_FEWEST_CHUNKS = 32  # of a task with another one close behind it
_UNKNOWN_TURNS = 128  # of a serial loop: a guess that keeps heavy lanes in chunks of their own
_ARENA = {
    "@ds_arena_alloc": "declare noalias ptr @ds_arena_alloc(ptr, i64, i64)",
    "@ds_arena_mark": "declare i64 @ds_arena_mark(ptr, i64)",
    "@ds_arena_release": "declare void @ds_arena_release(ptr, i64, i64)",
}
_COPY_WORK = (
    2  # additions that a scalar of a thread's copy must save, to be worth its zeroing and adding
)
_SLICE_WORK = 100_000_000  # estimated operations after which Ctrl-C is to be noticed
_COPIES_ROOM = 1 << 24  # bytes of copies, where there are more than threads
_LONGEST_CHUNK = 1 << 20  # lanes; bounds the length of one partial sum


class CpuTarget:
    """The CPU's answers to what the shared lowering asks."""

    column = "llvm"
    name = "cpu"

    def __init__(self, jit: Jit) -> None:
        self.jit = jit

    def math(self, module: Module, how: Libm | Libdevice, t: ScalarType, args: str) -> str:
        name = how.name + ("f" if t.bits == 32 else "")
        module.math[name] = None
        return f"call {module.flags} {t.llvm} @{name}({args})"

    def vector_math(
        self, module: Module, how: Libm | Libdevice, t: ScalarType, lanes: int
    ) -> tuple[str, int]:
        """The widest form of a function for at most `lanes` lanes, as (symbol, lanes); "": none.

        Nor is there one where other code must get the same bits: it may run lanes alone.
        """
        name = how.name + ("f" if t.bits == 32 else "")
        module.math[name] = None
        if module.exact or how.name not in VECTOR_MATH:
            return "", 1
        forms = [("", 1), *(f for f in self.jit.vector_forms(name) if f[1] <= lanes)]
        return forms[-1]

    def in_parts(self, body: Body, block: Block) -> bool:
        return parts.lower(body, block)

    def scratch(self, body: Body, s: Scratch) -> str:
        for name, text in _ARENA.items():
            body.module.declare(name, text)
        count = body.scratch_count(s)
        width = s.mem.dtype.scalar.bytes * size_of(s.mem.dtype)
        bytes_ = body.let(f"mul i64 {count}, {width}")
        pool = body.slot_load(POOL, "ptr")
        mark = body.let(f"call i64 @ds_arena_mark(ptr {pool}, i64 %worker)")
        pointer = body.let(f"call ptr @ds_arena_alloc(ptr {pool}, i64 %worker, i64 {bytes_})")
        body.pointers[s.mem] = pointer
        missing = body.let(f"icmp eq ptr {pointer}, null")
        reports.check(body, s, body.let(f"xor i1 {missing}, true"), [bytes_], leave=True)
        return f"{pool} {mark}"

    def release(self, body: Body, ticket: str) -> None:
        pool, mark = ticket.split()
        body.put(f"call void @ds_arena_release(ptr {pool}, i64 %worker, i64 {mark})")


class CpuCode:
    """LLVM text of a kernel, its parameter layout, what it can report, whether it needs the pool."""

    def __init__(self, text: str, module: Module, *, needs_pool: bool) -> None:
        self.text = text
        self.layout = module.layout
        self.checks = module.checks
        self.prints = module.prints
        self.needs_pool = needs_pool


def lower(kernel: Kernel, jit: Jit, *, fast_math: bool) -> CpuCode:
    """A scalar kernel as an LLVM module with the function `launch`."""
    layout = Layout(kernel)
    module = Module(kernel, layout, CpuTarget(jit), fast_math=fast_math)
    text: list[str] = []
    for k, task in enumerate(kernel.tasks):
        text += _task(module, k, task)
        if _follows(module, k):
            text.append(f"define internal void @behind{k - 1}({_ARGUMENTS}) #0 {{")
            text += behind.chunk(module, k - 1)
    text += _launch(module)
    head = sorted(module.declared.values())
    plain = [
        n for n in module.math if n not in VECTOR_MATH and n.removesuffix("f") not in VECTOR_MATH
    ]
    if plain:
        raise BackendError(f"no such function: {plain[0]}", kernel.span)
    math = ""
    if module.math:
        math = jit.declare_math(sorted(module.math), vectors=not module.exact)
    pieces = [math, *head, *module.text, *text, "attributes #0 = { nounwind }", *module.metadata()]
    needs_pool = any(name.startswith("@ds_") for name in module.declared)
    return CpuCode("\n".join(pieces) + "\n", module, needs_pool=needs_pool)


def _task(module: Module, k: int, task: Task) -> list[str]:
    """The functions of a task: `task<k>`, and variants of it that need no atomics.

    `alone<k>` runs all lanes on one thread; `copies<k>` runs a chunk that adds to the thread's copies.
    """
    lines = _function(module, k, task, "task")
    if _variants(task):
        lines += _function(module, k, task, "alone")
    if task.private:
        lines += _function(module, k, task, "copies")
    return lines


def _variants(task: Task) -> bool:
    """Whether running on one thread makes a difference."""
    return bool(task.axes) and any(
        isinstance(s, Atomic) and not s.exclusive for s in statements(task.body)
    )


def _function(module: Module, k: int, task: Task, kind: str) -> list[str]:
    lines = [f"define internal void @{kind}{k}({_ARGUMENTS}) #0 {{", "entry:"]
    together, register = _together(module, task), _jit(module).vector_bits
    body = Body(module, lines)
    if together > 1:
        body = WideBody(module, lines, task, together, register)
    body.alone = kind == "alone"
    body.enter([task.body, Block([], task.bounds.yields)])
    if isinstance(body, WideBody):
        body.enter_wide()
    chunk = _chunk_copies(module, task)
    mine = chunk.enter(body, k) if kind == "copies" else ""
    if isinstance(body, WideBody):
        _store_partials(body, k, task, run_blocks(body, k, task))
    elif task.axes:
        _lanes(body, k, task)
    else:
        body.block(task.body)
    if mine:
        chunk.leave(body, mine)
    if isinstance(body, WideBody):
        body.finish()
    body.put("ret void")
    lines.append("}")
    return lines


def _jit(module: Module) -> Jit:
    assert isinstance(module.target, CpuTarget)
    return module.target.jit


def _together(module: Module, task: Task) -> int:
    """Lanes that run together."""
    if task not in module.together:
        module.together[task] = lanes_at_once(task, _jit(module)) if task.wide else 1
    return module.together[task]


def _chunk_copies(module: Module, task: Task) -> copies.Chunk:
    return copies.Chunk(task, _together(module, task), _jit(module).vector_bits)


def _lanes(body: Body, k: int, task: Task) -> None:
    """Loops over lanes begin..end: rows (all axes but the last, flattened), and the last axis inside."""
    lows = [bound(body, k, task, 2 * a) for a in range(len(task.axes))]
    if len(task.axes) == 1:
        total = _inner(body, task, lows[0], "%begin", "%end", {}, None)
        _store_partials(body, k, task, total)
        return
    sizes = [size(body, lo, bound(body, k, task, 2 * a + 1)) for a, lo in enumerate(lows)]
    before = body.label
    head, row, after = (body.new_label(w) for w in ("rows", "row", "end"))
    body.jump(head)
    body.start(head)
    flat = body.fresh()
    at = len(body.lines)
    sums = [body.fresh() for _ in task.reductions]
    more = body.let(f"icmp slt i64 {flat}, %end")
    body.put(f"br i1 {more}, label %{row}, label %{after}")
    body.start(row)
    width = sizes[-1]
    rest = body.let(f"udiv i64 {flat}, {width}")
    first = body.let(f"urem i64 {flat}, {width}")
    left = body.let(f"sub nsw i64 %end, {flat}")
    full = body.let(f"sub nsw i64 {width}, {first}")
    body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    count = body.let(f"call i64 @llvm.smin.i64(i64 {left}, i64 {full})")
    stop = body.let(f"add nsw i64 {first}, {count}")
    wide = point(body, task.axes[:-1], lows, sizes, rest)
    nexts = _inner(body, task, lows[-1], first, stop, wide, sums)
    advanced = body.let(f"add nsw i64 {flat}, {count}")
    latch = body.label
    body.jump(head)
    phis = [f"  {flat} = phi i64 [ %begin, %{before} ], [ {advanced}, %{latch} ]"]
    for name, new, (op, _, _), v in zip(
        sums, nexts, task.reductions, task.body.yields, strict=True
    ):
        t = v.type.scalar
        phis.append(
            f"  {name} = phi {t.llvm} [ {identity(op, t)}, %{before} ], [ {new}, %{latch} ]"
        )
    body.lines[at:at] = phis
    body.start(after)
    _store_partials(body, k, task, sums)


def _inner(
    body: Body,
    task: Task,
    low: str,
    first: str,
    stop: str,
    wide: dict[Value, str],
    sums: list[str] | None,
) -> list[str]:
    """The loop over the last axis, from first to stop, carrying the partial results."""
    values = task.body.yields
    starts = sums or [
        identity(op, v.type.scalar) for (op, _, _), v in zip(task.reductions, values, strict=True)
    ]
    before = body.label
    head, lane, after = (body.new_label(w) for w in ("lanes", "lane", "end"))
    body.jump(head)
    body.start(head)
    k = body.fresh()
    at = len(body.lines)
    carried = [body.fresh() for _ in values]
    more = body.let(f"icmp slt i64 {k}, {stop}")
    body.put(f"br i1 {more}, label %{lane}, label %{after}")
    body.start(lane)
    index = k if low == "0" else body.let(f"add nsw i64 {k}, {low}")
    enter_lane(body, task, {**wide, task.axes[-1]: index})
    body.block(task.body)
    nexts = [
        accumulate(body, op, v, c)
        for (op, _, _), v, c in zip(task.reductions, values, carried, strict=True)
    ]
    body.wide.pop()
    advanced = body.let(f"add nsw i64 {k}, 1")
    latch = body.label
    body.jump(head)
    phis = [f"  {k} = phi i64 [ {first}, %{before} ], [ {advanced}, %{latch} ]"]
    for c, s, n, v in zip(carried, starts, nexts, values, strict=True):
        phis.append(f"  {c} = phi {v.type.scalar.llvm} [ {s}, %{before} ], [ {n}, %{latch} ]")
    body.lines[at:at] = phis
    body.start(after)
    return carried


def _store_partials(body: Body, k: int, task: Task, sums: list[str]) -> None:
    if not sums:
        return
    base = body.shared_load(body.module.layout.partials[k], "ptr", constant=False)
    row = body.let(f"mul nsw i64 %chunk, {len(sums)}")
    for j, (s, v) in enumerate(zip(sums, task.body.yields, strict=True)):
        at = body.let(f"add nsw i64 {row}, {j}")
        place = body.let(f"getelementptr i64, ptr {base}, i64 {at}")
        body.put(f"store {v.type.scalar.llvm} {s}, ptr {place}{body.module.alias('scratch')}")


# ---- launch


def _launch(module: Module) -> list[str]:
    lines = ["define void @launch(ptr noalias nocapture %params) #0 {", "entry:"]
    body = Body(module, lines)
    kernel = module.kernel
    code = [t.bounds for t in kernel.tasks]
    code += [
        Block([], tuple(i for _, _, index in t.reductions for i in index)) for t in kernel.tasks
    ]
    leads = [tuple(v for v, _ in p.lead if v is not None) for t in kernel.tasks for p in t.private]
    code += [Block([], lead) for lead in leads]
    mems = [m for t in kernel.tasks for _, m, _ in t.reductions]
    body.enter(code, [*mems, *(p.mem for t in kernel.tasks for p in t.private)])
    for k, task in enumerate(kernel.tasks):
        if _follows(module, k):
            continue  # launched with the task before it
        if _follows(module, k + 1):
            _launch_two(body, k, task, kernel.tasks[k + 1])
        elif task.axes:
            _launch_parallel(body, k, task)
        else:
            body.put(f"call void @task{k}(ptr %params, i64 0, i64 1, i64 0, i64 0)")
    body.put("ret void")
    lines.append("}")
    return lines


def _launch_parallel(body: Body, k: int, task: Task) -> None:
    module = body.module
    together = _together(module, task)
    lanes = store_bounds(body, k, task, together)
    some, after = body.new_label("some"), body.new_label("next")
    body.put(f"br i1 {body.let(f'icmp sgt i64 {lanes}, 0')}, label %{some}, label %{after}")
    body.start(some)
    body.wide.append({})
    chunks = _chunks(body, lanes, together * cost(task.body))
    n = len(task.reductions)
    if chunks == "1":
        partials = ""
        if n:
            partials = body.let(f"alloca [{n} x i64]")
            body.shared_store(module.layout.partials[k], "ptr", partials)
        kind = "alone" if _variants(task) else "task"
        body.put(f"call void @{kind}{k}(ptr %params, i64 0, i64 {lanes}, i64 0, i64 0)")
        if n:
            _combine_partials(body, task, partials, chunks)
    else:
        _spread(body, k, task, lanes, chunks)
    body.wide.pop()
    body.jump(after)
    body.start(after)


def _follows(module: Module, k: int) -> bool:
    """Whether task k may run close behind the one before it."""
    if not 0 < k < len(module.kernel.tasks) or module.kernel.tasks[k].behind is None:
        return False
    pair = module.kernel.tasks[k - 1 : k + 1]
    return len({len(t.axes) for t in pair}) == 1 and not any(
        t.wide or t.private or t.reductions or _variants(t) for t in pair
    )


def _launch_two(body: Body, k: int, first: Task, second: Task) -> None:
    """A task, and close behind it the next one: where there are enough rows for enough chunks."""
    module = body.module
    assert second.behind is not None
    lanes = store_bounds(body, k, first)
    store_bounds(body, k + 1, second)
    body.wide.append({})
    for s in first.bounds.stmts:
        body.stmt(s)
    rows = size(body, *(body.index64(v) for v in first.bounds.yields[:2]))
    chunks = _chunks(body, lanes, cost(first.body) + cost(second.body))
    body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    most = body.let(f"sdiv i64 {rows}, {behind.rows_of_chunk(second.behind)}")
    chunks = body.let(f"call i64 @llvm.smin.i64(i64 {chunks}, i64 {most})")
    enough = body.let(f"icmp sge i64 {chunks}, {_FEWEST_CHUNKS}")
    there = body.let(f"icmp sgt i64 {lanes}, 0")
    both, apart, after = (body.new_label(w) for w in ("both", "apart", "next"))
    body.put(f"br i1 {body.let(f'and i1 {enough}, {there}')}, label %{both}, label %{apart}")
    body.start(both)
    for name, text in _ARENA.items():
        module.declare(name, text)
    pool = body.slot_load(POOL, "ptr")
    mark = body.let(f"call i64 @ds_arena_mark(ptr {pool}, i64 0)")
    bytes_ = body.let(f"mul i64 {chunks}, 4")
    words = _alloc(body, pool, bytes_)
    module.declare("@llvm.memset", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    body.put(f"call void @llvm.memset.p0.i64(ptr align 4 {words}, i8 0, i64 {bytes_}, i1 false)")
    body.put(f"store i32 {body.let(f'trunc i64 {chunks} to i32')}, ptr {words}")
    body.shared_store(module.layout.borders[k + 1], "ptr", words)
    released = f"call void @ds_arena_release(ptr {pool}, i64 0, i64 {mark})"
    _pooled(body, f"@behind{k}", (pool, lanes, chunks), released)
    body.put(released)
    body.jump(after)
    body.wide.pop()
    body.start(apart)
    _launch_parallel(body, k, first)
    _launch_parallel(body, k + 1, second)
    body.jump(after)
    body.start(after)


def _spread(body: Body, k: int, task: Task, lanes: str, chunks: str) -> None:
    """Run the chunks on the pool, or all lanes on this thread if there is one chunk."""
    module, n = body.module, len(task.reductions)
    pool = body.slot_load(POOL, "ptr")
    partials = mark = released = ""
    if n or task.private:
        for name, text in _ARENA.items():
            module.declare(name, text)
        mark = body.let(f"call i64 @ds_arena_mark(ptr {pool}, i64 0)")
        released = f"call void @ds_arena_release(ptr {pool}, i64 0, i64 {mark})"
    if n:
        partials = _alloc(body, pool, body.let(f"mul i64 {chunks}, {8 * n}"))
        body.shared_store(module.layout.partials[k], "ptr", partials)
    done = body.new_label("done")
    arrivals: list[tuple[str, str]] = []  # how many chunks ran, on which way here

    def arrive(used: str) -> None:
        arrivals.append((used, body.label))
        body.jump(done)

    def fork(condition: str) -> str:
        """Go on where the condition holds; returns the label for where it does not."""
        yes, no = body.new_label("yes"), body.new_label("no")
        body.put(f"br i1 {condition}, label %{yes}, label %{no}")
        body.start(yes)
        return no

    otherwise = fork(body.let(f"icmp eq i64 {chunks}, 1"))
    kind = "alone" if _variants(task) else "task"
    body.put(f"call void @{kind}{k}(ptr %params, i64 0, i64 {lanes}, i64 0, i64 0)")
    arrive("1")
    body.start(otherwise)
    if task.private:
        threads = body.slot_load(THREADS, "i64")
        fewer = body.let(f"call i64 @llvm.smin.i64(i64 {chunks}, i64 {threads})")
        count = _together(module, task) * sum(p.count for p in task.private)
        additions = body.let(f"mul i64 {lanes}, {count}")
        chunk = _chunk_copies(module, task)
        room = body.let(f"mul i64 {fewer}, {_COPY_WORK * chunk.scalars}")
        worth = body.let(f"icmp sgt i64 {additions}, {room}")
        if not chunk.has_slots:  # else it pays on one thread, too
            several = body.let(f"icmp sgt i64 {threads}, 1")
            worth = body.let(f"and i1 {worth}, {several}")
        otherwise = fork(worth)
        work = _together(module, task) * cost(task.body)
        most = body.let(f"call i64 @llvm.smin.i64(i64 {chunks}, i64 {_COPIES_ROOM // chunk.bytes})")
        fewer = _slices(body, lanes, work, fewer, most)
        block = _alloc(body, pool, body.let(f"mul i64 {fewer}, {chunk.bytes}"))
        body.shared_store(module.layout.copies[k], "ptr", block)
        _pooled(body, f"@copies{k}", (pool, lanes, fewer), released)
        copies.add_up(body, chunk, block, fewer)
        arrive(fewer)
        body.start(otherwise)
    function = f"@task{k}"
    if _variants(task):
        threads = body.slot_load(THREADS, "i64")
        one_thread = body.let(f"icmp eq i64 {threads}, 1")
        function = body.let(f"select i1 {one_thread}, ptr @alone{k}, ptr @task{k}")
    _pooled(body, function, (pool, lanes, chunks), released)
    arrive(chunks)
    body.start(done)
    if n:
        sources = ", ".join(f"[ {used}, %{label} ]" for used, label in arrivals)
        _combine_partials(body, task, partials, body.let(f"phi i64 {sources}"))
    if released:
        body.put(released)


def _slices(body: Body, lanes: str, work: int, least: str, most: str) -> str:
    """How many chunks add to copies: one for each thread, in a long loop more, for Ctrl-C to end it."""
    found = body.let(f"sdiv i64 {lanes}, {max(1, _SLICE_WORK // max(1, work))}")
    for choice, limit in (("smin", most), ("smax", least)):
        body.module.declare(f"@llvm.{choice}.i64", f"declare i64 @llvm.{choice}.i64(i64, i64)")
        found = body.let(f"call i64 @llvm.{choice}.i64(i64 {found}, i64 {limit})")
    return found


def _alloc(body: Body, pool: str, bytes_: str) -> str:
    return body.let(f"call ptr @ds_arena_alloc(ptr {pool}, i64 0, i64 {bytes_})")


def _pooled(body: Body, function: str, job: tuple[str, str, str], released: str) -> None:
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


def _chunks(body: Body, lanes: str, work: int) -> str:
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


def _combine_partials(body: Body, task: Task, partials: str, chunks: str) -> None:
    """Fold the chunks' partial results, in order, and update the memory once."""
    before = body.label
    head, step, after = (body.new_label(w) for w in ("fold", "step", "folded"))
    body.jump(head)
    body.start(head)
    c = body.fresh()
    at = len(body.lines)
    carried = [body.fresh() for _ in task.reductions]
    more = body.let(f"icmp slt i64 {c}, {chunks}")
    body.put(f"br i1 {more}, label %{step}, label %{after}")
    body.start(step)
    row = body.let(f"mul nsw i64 {c}, {len(task.reductions)}")
    phis = []
    for j, ((op, _, _), v) in enumerate(zip(task.reductions, task.body.yields, strict=True)):
        t = v.type.scalar
        place = body.let(
            f"getelementptr i64, ptr {partials}, i64 {body.let(f'add i64 {row}, {j}')}"
        )
        part = body.let(f"load {t.llvm}, ptr {place}{body.module.alias('scratch')}")
        new = body.combine(op, t, carried[j], part)
        phis.append(
            f"  {carried[j]} = phi {t.llvm} [ {identity(op, t)}, %{before} ], [ {new}, %{step} ]"
        )
    advanced = body.let(f"add nsw i64 {c}, 1")
    body.jump(head)
    phis.append(f"  {c} = phi i64 [ 0, %{before} ], [ {advanced}, %{step} ]")
    body.lines[at:at] = phis
    body.start(after)
    for (op, mem, index), result in zip(task.reductions, carried, strict=True):
        body.update(op, mem, body.address(mem, index), result)
