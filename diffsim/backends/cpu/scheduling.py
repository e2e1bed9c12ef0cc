"""A parallel task spread over the pool's threads: which of its functions runs, and on how many chunks.

The choice is made by emitted code, at the launch: only then are the number of lanes and of threads known. The
variants, in the order in which they are tried (`_Spread.run`): one chunk on this thread, chunks with seams,
private copies, then logs of updates or the task itself with atomics. With `deterministic=True` no choice
depends on threads, as variants are compiled differently and may round differently.
"""

from __future__ import annotations

import math

from diffsim.backends.cpu import private_copies, seams
from diffsim.backends.cpu.chunks import (
    alloc,
    chunks_of,
    is_little,
    pooled,
    slices,
    whole,
    whole_row,
)
from diffsim.backends.cpu.target import ARENA, CpuTarget
from diffsim.backends.llvm import safepoints, update_log
from diffsim.backends.llvm.lanes import bound, identity, size
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.backends.llvm.parameter_block import POOL, THREADS
from diffsim.backends.llvm.safepoints import cost
from diffsim.backends.native.jit import Jit
from diffsim.backends.simd.simd_width import choose_simd_width
from diffsim.ir.nodes import Atomic, Let, Store, Task, Value
from diffsim.ir.op import Math
from diffsim.ir.simple_tasks import box_sizes
from diffsim.ir.traversal import iterations, statements

_COPY_WORK = 1  # additions that a scalar of a thread's copy must save, to be worth its zeroing
_ATOMIC_WORK = 30  # operations that an atomic update takes longer than a plain one
_COPIES_BYTES = 1 << 24  # bytes of copies, where there are more than threads
_FIXED_WORK = 2  # the same, where the number of copies does not follow that of threads
_FIXED_COPIES = 32
_FEWEST_COPIES = 4  # more threads than this could not help: updates are rather logged
_MOST_COPIED = 1 << 28  # bytes of all threads' copies
_LOGS = {
    "@ds_log_mark": "declare i64 @ds_log_mark(ptr)",
    "@ds_log_release": "declare void @ds_log_release(ptr, i64)",
}


def has_variants(task: Task) -> bool:
    """Return whether the task has atomics that one thread alone would not need."""
    in_order = task.order is not None and task.order.serial
    return (
        bool(task.axes)
        and not in_order
        and any(isinstance(s, Atomic) and not s.exclusive for s in statements(task.body))
    )


def jit_of(module: Module) -> Jit:
    """Return the compiler that a module for the CPU is written for."""
    assert isinstance(module.target, CpuTarget)
    return module.target.jit


def simd_width(module: Module, task: Task) -> int:
    """Return how many lanes run together as a vector; 1 for a scalar task.

    Memoized, as the estimate walks the body and every variant of the task asks for it.
    """
    if task not in module.simd_widths:
        module.simd_widths[task] = choose_simd_width(task, jit_of(module)) if task.simd else 1
    return module.simd_widths[task]


def unit_lanes(module: Module, task: Task) -> int:
    """Return how many neighbours along the last axis chunks are not cut between: a unit of lanes.

    Blocks of lanes that run together as vectors, or whole rows.
    """
    return simd_width(module, task) if task.simd else max(1, whole_row(task))


def are_shared(module: Module, task: Task) -> bool:
    """Return whether the number of chunks is that for any number of threads: False only if there is one.

    Not where it decides on a result: what chunks add up apart, and functions, which a row that is cut has as
    scalars at its ends.
    """
    if threads_of(module) != 1 or module.deterministic or task.order is not None:
        return True
    if task.reductions or (task.privatized and chunk_copies(module, task).helps_one_thread):
        return True
    return unit_lanes(module, task) == 1 and any(
        isinstance(s, Let) and isinstance(s.op.lowering, Math) for s in statements(task.body)
    )


def chunk_copies(module: Module, task: Task) -> private_copies.Chunk:
    """Describe the private copies that each chunk of a task may have."""
    return private_copies.Chunk(task, simd_width(module, task), jit_of(module).vector_bits)


def functions_of(module: Module, task: Task) -> tuple[str, ...]:
    """Return the functions of a task that its launch chooses from, besides those of logs.

    `task` has atomics; `alone` runs on one thread, also where several with atomics would take longer;
    `copies` adds to private copies. Where the number of lanes is constant, and as far as the number of
    threads is known, what would never be chosen is left out. Those left are right on any number of threads.
    """
    if not has_variants(task):
        return ("task",)
    copies = ("copies",) * bool(task.privatized)
    if module.deterministic or task.order is not None:
        return ("task", "alone", *copies)
    lanes, threads = _constant_lanes(module, task), threads_of(module)
    unit, polls = unit_lanes(module, task), safepoints.has_long(task.body)
    chunks = None
    if lanes is not None:
        shared = are_shared(module, task)
        chunks = chunks_of(lanes, cost(task.body), unit, has_safepoints=polls, shared=shared)
    seamed = _seams_pay(module, task, lanes, chunks)
    if chunks == 1 or seamed:
        return ("alone",)
    pay = _copies_pay(module, task, lanes, chunks) if copies else False
    if pay:
        return ("copies",) if seamed is False else ("alone", "copies")
    others = ("task", "alone") if not threads or (chunks is None and threads > 1) else ("task",)
    others = ("alone",) if 0 < threads <= most_threads_without_atomics(task) else others
    return others if pay is False else (*others, "copies")


def most_threads_without_atomics(task: Task) -> int:
    """Return up to how many threads one of them alone, without atomics, is as fast as all with them."""
    plain = max(1, cost(task.body))
    return max(1, cost(task.body, _ATOMIC_WORK) // plain)


def reach_of(module: Module, task: Task) -> int | None:
    """Return how many units of chunks lanes reach, rows or blocks of lanes; None: no seams are possible."""
    if task.reach is None or module.deterministic or task.order is not None:
        return None
    if threads_of(module) == 1:
        return None
    return seams.reach(task.reach, simd_width(module, task), len(task.axes))


def _seams_pay(module: Module, task: Task, lanes: int | None, chunks: int | None) -> bool | None:
    """Return whether chunks with seams pay in each launch, or in none; None if the launch must see."""
    reach, threads, sizes = reach_of(module, task), threads_of(module), box_sizes(task)
    if reach is None:
        return False
    if lanes is None or chunks is None or sizes is None or not threads:
        return None
    units = sizes[0] if len(sizes) > 1 else lanes
    most = min(chunks, units // seams.units_of_chunk(reach))
    return most > 1 and most * most_threads_without_atomics(task) >= threads


def threads_of(module: Module) -> int:
    """Return the number of threads that a module for the CPU will run on; 0 if it is unknown."""
    assert isinstance(module.target, CpuTarget)
    return module.target.threads


def _constant_lanes(module: Module, task: Task) -> int | None:
    """Return the number of lanes, blocks of them where they run as vectors, if the bounds are constants."""
    sizes = box_sizes(task)
    if sizes is None:
        return None
    *rows, row = sizes
    return math.prod(rows) * -(-row // unit_lanes(module, task))


def _copies_pay(module: Module, task: Task, lanes: int | None, chunks: int | None) -> bool | None:
    """Return whether private copies pay in each launch, or in none; None if the launch must see."""
    chunk, threads = chunk_copies(module, task), threads_of(module)
    if threads == 1 and not chunk.helps_one_thread:
        return False
    if lanes is None or chunks is None:
        return None
    additions = lanes * unit_lanes(module, task) * sum(p.count for p in task.privatized)
    fewest = 1 if chunk.helps_one_thread else 2
    least, most = (min(chunks, threads),) * 2 if threads else (fewest, chunks)
    if additions <= least * _COPY_WORK * chunk.scalars or least * chunk.bytes > _MOST_COPIED:
        return False
    pays = additions > most * _COPY_WORK * chunk.scalars and most * chunk.bytes <= _MOST_COPIED
    return True if pays else None


def spread(body: FunctionLowering, k: int, task: Task, lanes: str, chunks: str) -> None:
    """Run the chunks on the pool, or all lanes on this thread if there is one chunk."""
    _Spread(body, k, task, lanes, chunks).run()


class _Spread:
    """The code by which a launch chooses how to run one task.

    Each variant is tried behind a condition; the ones that run join at `done`, where a phi says how many
    chunks there were, and so how many partial results are valid.
    """

    def __init__(self, body: FunctionLowering, k: int, task: Task, lanes: str, chunks: str) -> None:
        self.body = body
        self.k = k
        self.task = task
        self.lanes = lanes
        self.chunks = chunks
        self.module = body.module
        self.pool = body.load_slot(POOL, "ptr")
        self.work = unit_lanes(self.module, task) * cost(task.body)
        self.functions = functions_of(self.module, task)
        self.partials = self.released = ""
        self.free_logs = ""
        self.most = ""
        """The number of chunks if updates are logged; "" where they are not."""
        self.done = body.new_label("done")
        self.arrivals: list[tuple[str, str]] = []
        """The incoming values of that phi: number of chunks, label of the predecessor."""

    def run(self) -> None:
        body, task, n = self.body, self.task, len(self.task.reductions)
        reach = reach_of(self.module, task) if "alone" in self.functions else None
        if n or task.privatized or task.order is not None or reach is not None:
            for name, text in ARENA.items():
                self.module.declare(name, text)
            # All variants allocate from the arena of worker 0 like from a stack; one release at
            # `done` frees whatever the chosen one took.
            mark = body.assign(f"call i64 @ds_arena_mark(ptr {self.pool}, i64 0)")
            self.released = f"call void @ds_arena_release(ptr {self.pool}, i64 0, i64 {mark})"
        if task.order is not None and task.order.logged:
            self.prepare_logs(task.order.logged)
        if n:
            # Enough for the variant with most chunks: logging cuts the lanes finer than the others
            # do.
            parts = 1 if reach is None else 2  # of a chunk: itself and a seam
            bytes_ = body.assign(f"mul i64 {self.most or self.chunks}, {8 * n * parts}")
            self.partials = alloc(body, self.pool, bytes_)
            body.store_task_slot(self.module.layout.partials[self.k], "ptr", self.partials)
        # Registers of one variant dominate neither the next one nor what follows `done`: each forgets its
        # widened indices when it arrives. This scope is that of the last one.
        body.int64_names.append({})
        # The order matters: each variant emits the fall-through of the one before it.
        if not self.chunks.isdigit():  # more than one, if it is known
            self.as_one_chunk()
        if reach is not None:
            self.with_seams(reach)
        if self.functions == ("copies",):
            self.add_in_copies(
                chunk_copies(self.module, task), self.one_for_each_thread(), tests=True
            )
        else:
            if task.privatized and "copies" in self.functions:
                self.with_copies()
            if self.most:
                self.with_logs()
            else:
                self.as_it_is()
        body.start_block(self.done)
        if n:
            sources = ", ".join(f"[ {used}, %{label} ]" for used, label in self.arrivals)
            combine_partials(body, task, self.partials, body.assign(f"phi i64 {sources}"))
        if self.released:
            body.emit(self.released)

    def arrive(self, used: str) -> None:
        self.arrivals.append((used, self.body.label))
        self.body.int64_names.pop()
        self.body.jump(self.done)

    def fork(self, condition: str) -> str:
        """Branch; continue where the condition holds, and return the label for where it does not."""
        body = self.body
        yes, no = body.new_label("yes"), body.new_label("no")
        body.emit(f"br i1 {condition}, label %{yes}, label %{no}")
        body.start_block(yes)
        body.int64_names.append({})
        return no

    def pooled(self, function: str, lanes: str, chunks: str) -> None:
        pooled(self.body, function, (self.pool, lanes, chunks), at_stop=self.free_logs)

    def as_one_chunk(self) -> None:
        body, k = self.body, self.k
        otherwise = self.fork(body.assign(f"icmp eq i64 {self.chunks}, 1"))
        kind = "alone" if has_variants(self.task) else "task"
        whole(body, k, kind, self.lanes)
        self.arrive("1")
        body.start_block(otherwise)

    def with_seams(self, reach: int) -> None:
        """Emit the variant with seams at the borders of chunks, behind the condition that this pays."""
        body, k = self.body, self.k
        units = self.lanes
        if len(self.task.axes) > 1:
            units = size(body, *(bound(body, k, self.task, j) for j in range(2)))
        threads = body.load_slot(THREADS, "i64")
        body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
        fit = body.assign(f"sdiv i64 {units}, {seams.units_of_chunk(reach)}")
        chunks = body.assign(f"call i64 @llvm.smin.i64(i64 {self.chunks}, i64 {fit})")
        # One thread takes all lanes at once, and many threads with atomics are faster than a few chunks.
        several = body.assign(f"icmp sgt i64 {threads}, 1")
        there = body.assign(f"icmp sgt i64 {chunks}, 1")
        most = body.assign(f"mul i64 {chunks}, {most_threads_without_atomics(self.task)}")
        enough = body.assign(f"icmp sge i64 {most}, {threads}")
        worth = body.assign(f"and i1 {body.assign(f'and i1 {several}, {there}')}, {enough}")
        otherwise = self.fork(worth)
        words = alloc(body, self.pool, seams.bytes_of(body, chunks))
        seams.begin(body, words, chunks, body.assign(f"sdiv i64 {self.lanes}, {units}"))
        body.store_task_slot(self.module.layout.borders[k], "ptr", words)
        self.pooled(f"@seamed{k}", units, chunks)
        used = body.assign(f"shl i64 {chunks}, 1") if reach else chunks
        self.arrive(body.assign(f"sub i64 {used}, 1") if reach else chunks)
        body.start_block(otherwise)

    def prepare_logs(self, logged: frozenset[Atomic | Store]) -> None:
        """Emit a number of chunks such that none logs too much, estimated from the trip counts."""
        body = self.body
        for name, text in _LOGS.items():
            self.module.declare(name, text)
        mark = body.assign(f"call i64 @ds_log_mark(ptr {self.pool})")
        self.free_logs = f"call void @ds_log_release(ptr {self.pool}, i64 {mark})"
        times = iterations(self.task.body)
        bytes_ = sum(times[s] * update_log.record_bytes(s.mem) for s in logged)
        all_ = body.assign(f"mul i64 {self.lanes}, {bytes_ * unit_lanes(self.module, self.task)}")
        wanted = body.assign(f"udiv i64 {all_}, {update_log.CHUNK_BYTES}")
        for choice in ("smin", "smax"):
            name = f"@llvm.{choice}.i64"
            self.module.declare(name, f"declare i64 {name}(i64, i64)")
        # At most one chunk per lane, and never fewer than the work asks for.
        wanted = body.assign(f"call i64 @llvm.smin.i64(i64 {wanted}, i64 {self.lanes})")
        self.most = body.assign(f"call i64 @llvm.smax.i64(i64 {wanted}, i64 {self.chunks})")

    def with_logs(self) -> None:
        """Run rounds of chunks that log their updates, applied at the end of each round."""
        body, k = self.body, self.k
        size = update_log.state_bytes(self.task)
        slot = self.module.layout.logs[k]
        states = alloc(body, self.pool, str(update_log.CHUNKS * size))
        body.store_task_slot(slot + update_log.STATES, "ptr", states)
        body.store_task_slot(slot + update_log.LANES, "i64", self.lanes)
        body.store_task_slot(slot + update_log.ALL, "i64", self.most)
        # The states must be zero at the start of each round: a log without blocks is one of null
        # pointers.
        self.module.declare("@llvm.memset", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")

        def one(iteration: str) -> None:
            first = body.assign(f"mul nsw i64 {iteration}, {update_log.CHUNKS}")
            left = body.assign(f"sub nsw i64 {self.most}, {first}")
            used = body.assign(f"call i64 @llvm.smin.i64(i64 {left}, i64 {update_log.CHUNKS})")
            body.store_task_slot(slot + update_log.FIRST, "i64", first)
            body.store_task_slot(slot + update_log.USED, "i64", used)
            bytes_ = body.assign(f"mul nsw i64 {used}, {size}")
            body.emit(
                f"call void @llvm.memset.p0.i64(ptr align 64 {states}, i8 0, i64 {bytes_}, i1 false)"
            )
            self.pooled(f"@logs{k}", used, used)
            # One chunk per bin: a bin is merged by a single thread, so no element is updated by
            # two.
            self.pooled(f"@merge{k}", str(update_log.BINS), str(update_log.BINS))
            body.emit(self.free_logs)

        more = body.assign(f"add nsw i64 {self.most}, {update_log.CHUNKS - 1}")
        body.count_up("0", body.assign(f"sdiv i64 {more}, {update_log.CHUNKS}"), one)
        self.arrive(self.most)

    def with_copies(self) -> None:
        """Emit the variant in which each thread adds to a copy, behind the condition that this pays.

        In a deterministic module the number of copies follows from the work, not from that of threads.
        """
        body, task, module = self.body, self.task, self.module
        chunk = chunk_copies(module, task)
        if module.deterministic:
            self.with_fixed_copies(chunk)
            return
        threads = body.load_slot(THREADS, "i64")
        least = self.one_for_each_thread()
        # Measured: copies pay from about one addition per scalar of them on (docs/adr/0008).
        break_even = body.assign(f"mul i64 {least}, {_COPY_WORK * chunk.scalars}")
        worth = body.assign(f"icmp sgt i64 {self.additions()}, {break_even}")
        # No more than _MOST_COPIED bytes in all: the arena would take that memory and keep it.
        little = body.assign(f"icmp sle i64 {least}, {_MOST_COPIED // chunk.bytes}")
        worth = body.assign(f"and i1 {worth}, {little}")
        if not chunk.helps_one_thread:  # else it pays on one thread, too
            several = body.assign(f"icmp sgt i64 {threads}, 1")
            worth = body.assign(f"and i1 {worth}, {several}")
        self.with_copies_if(worth, chunk, least)

    def one_for_each_thread(self) -> str:
        """Emit the number of chunks, but no more than threads."""
        body = self.body
        threads = body.load_slot(THREADS, "i64")
        body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
        return body.assign(f"call i64 @llvm.smin.i64(i64 {self.chunks}, i64 {threads})")

    def with_fixed_copies(self, chunk: private_copies.Chunk) -> None:
        body, task = self.body, self.task
        # The variant with copies does not log: an update that is ordered by its log and not privatized
        # would be atomic there, in whatever order threads come.
        private = {s for p in task.privatized for s in p.atomics}
        if task.order is not None and not task.order.logged <= private:
            return
        enough = body.assign(f"udiv i64 {self.additions()}, {_FIXED_WORK * chunk.scalars}")
        most = min(_FIXED_COPIES, _MOST_COPIED // chunk.bytes)
        used = body.assign(f"call i64 @llvm.smin.i64(i64 {enough}, i64 {most})")
        used = body.assign(f"call i64 @llvm.smin.i64(i64 {used}, i64 {self.chunks})")
        # Under the limit of the copies fewer threads than _FEWEST_COPIES could take part, where
        # logs let all of them; but a loop of few chunks has no more to offer.
        fewest = body.assign(f"call i64 @llvm.smin.i64(i64 {self.chunks}, i64 {_FEWEST_COPIES})")
        worth = body.assign(f"icmp sge i64 {used}, {fewest}")
        self.with_copies_if(worth, chunk, used)

    def with_copies_if(self, worth: str, chunk: private_copies.Chunk, used: str) -> None:
        """Emit the variant with copies behind `worth`, and behind the copied part lying within its memory."""
        body = self.body
        for there in private_copies.in_bounds(body, self.task.privatized):
            worth = body.assign(f"and i1 {worth}, {there}")
        otherwise = self.fork(worth)
        self.add_in_copies(chunk, used)
        body.start_block(otherwise)

    def additions(self) -> str:
        """Emit the number of additions to copies, by the estimate of `passes/transforms/privatize.py`."""
        count = unit_lanes(self.module, self.task) * sum(p.count for p in self.task.privatized)
        return self.body.assign(f"mul i64 {self.lanes}, {count}")

    def add_in_copies(
        self, chunk: private_copies.Chunk, least: str, *, tests: bool = False
    ) -> None:
        """Run at least `least` chunks, each with private copies, and add the copies up.

        `tests`: whether the copied part may lie outside its memory; no lane has added to it then.
        """
        body, k = self.body, self.k
        fit = _COPIES_BYTES // chunk.bytes
        most = body.assign(f"call i64 @llvm.smin.i64(i64 {self.chunks}, i64 {fit})")
        used = slices(body, self.lanes, self.work, least, most)
        block = alloc(body, self.pool, body.assign(f"mul i64 {used}, {chunk.bytes}"))
        private_copies.keep_block(body, k, block, used)
        self.pooled(f"@copies{k}", self.lanes, used)
        outside = ""
        for there in private_copies.in_bounds(body, self.task.privatized) if tests else ():
            inside, outside = body.new_label("inside"), outside or body.new_label("outside")
            body.emit(f"br i1 {there}, label %{inside}, label %{outside}")
            body.start_block(inside)
        private_copies.add_up(body, chunk, k, self.pooled)
        if outside:
            body.jump(outside)
            body.start_block(outside)
        self.arrive(used)

    def as_it_is(self) -> None:
        """Run the task's own function, with atomics where several threads run it."""
        body, k, order = self.body, self.k, self.task.order
        serial = order is not None and order.serial
        function = f"@task{self.module.same_as.get(k, k)}"
        if "task" not in self.functions:
            # Without atomics: on this thread, whatever the number of threads.
            function, serial = f"@alone{k}", True
        elif "alone" in self.functions and not self.module.deterministic:
            threads = body.load_slot(THREADS, "i64")
            # Not in a deterministic module, where the number of threads may decide nothing.
            few = most_threads_without_atomics(self.task)
            together = self.fork(body.assign(f"icmp sle i64 {threads}, {few}"))
            pooled(body, f"@alone{k}", (self.pool, self.lanes, self.chunks), serial=True)
            self.arrive(self.chunks)
            body.start_block(together)
        job = self.pool, self.lanes, self.chunks
        little = ""
        if not serial and not self.task.simd and not has_variants(self.task):
            little = is_little(body, self.task, self.lanes, self.work)
        pooled(body, function, job, serial=serial, little=little)
        self.arrive(self.chunks)


def combine_partials(body: FunctionLowering, task: Task, partials: str, chunks: str) -> None:
    """Emit the fold of the chunks' partial results, and one update of each target.

    A left fold in the order of the chunks. Float addition is not associative, so the order must not depend
    on which thread was faster.
    """
    before = body.label
    head, step, after = (body.new_label(w) for w in ("fold", "step", "folded"))
    body.jump(head)
    body.start_block(head)
    c = body.fresh()
    at = len(body.lines)
    carried = [body.fresh() for _ in task.reductions]
    more = body.assign(f"icmp slt i64 {c}, {chunks}")
    body.emit(f"br i1 {more}, label %{step}, label %{after}")
    body.start_block(step)
    row = body.assign(f"mul nsw i64 {c}, {len(task.reductions)}")
    phis = []
    for j, ((op, _, _), v) in enumerate(zip(task.reductions, task.body.yields, strict=True)):
        t = v.type.scalar
        place = body.assign(
            f"getelementptr i64, ptr {partials}, i64 {body.assign(f'add i64 {row}, {j}')}"
        )
        part = body.assign(f"load {t.llvm}, ptr {place}{body.module.alias('scratch')}")
        new = body.combine(op, t, carried[j], part)
        phis.append(
            f"  {carried[j]} = phi {t.llvm} [ {identity(op, t)}, %{before} ], [ {new}, %{step} ]"
        )
    advanced = body.assign(f"add nsw i64 {c}, 1")
    body.jump(head)
    phis.append(f"  {c} = phi i64 [ 0, %{before} ], [ {advanced}, %{step} ]")
    body.lines[at:at] = phis
    body.start_block(after)
    # Not atomic: the launching thread alone runs here, after all chunks.
    for (op, mem, index), v, result in zip(task.reductions, task.body.yields, carried, strict=True):
        total = Value(v.type)
        body.names[total] = result
        stored = body.stored(total, mem.dtype.scalar)
        body.update(op, mem, body.address(mem, index), stored)
