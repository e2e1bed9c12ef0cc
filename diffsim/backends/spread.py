"""A parallel task spread over the pool's threads: which of its functions runs, and on how many chunks."""

from __future__ import annotations

from diffsim.backends import copies
from diffsim.backends.chunks import alloc, pooled, slices, whole
from diffsim.backends.cpu_target import ARENA, CpuTarget
from diffsim.backends.jit import Jit
from diffsim.backends.lanes import identity
from diffsim.backends.layout import POOL, THREADS
from diffsim.backends.llvm import Body
from diffsim.backends.looks import cost
from diffsim.backends.module import Module
from diffsim.backends.wide import lanes_at_once
from diffsim.ir.nodes import Atomic, Task
from diffsim.ir.walk import statements

_COPY_WORK = 1  # additions that a scalar of a thread's copy must save, to be worth its zeroing
_COPIES_ROOM = 1 << 24  # bytes of copies, where there are more than threads
_MOST_COPIED = 1 << 28  # bytes of all threads' copies


def has_variants(task: Task) -> bool:
    """Whether running on one thread makes a difference."""
    return bool(task.axes) and any(
        isinstance(s, Atomic) and not s.exclusive for s in statements(task.body)
    )


def jit_of(module: Module) -> Jit:
    """The compiler that a module for the CPU is written for."""
    assert isinstance(module.target, CpuTarget)
    return module.target.jit


def lanes_together(module: Module, task: Task) -> int:
    """Lanes that run together."""
    if task not in module.together:
        module.together[task] = lanes_at_once(task, jit_of(module)) if task.wide else 1
    return module.together[task]


def chunk_copies(module: Module, task: Task) -> copies.Chunk:
    """The copies that each chunk of a task may have."""
    return copies.Chunk(task, lanes_together(module, task), jit_of(module).vector_bits)


def spread(body: Body, k: int, task: Task, lanes: str, chunks: str) -> None:
    """Run the chunks on the pool, or all lanes on this thread if there is one chunk."""
    _Spread(body, k, task, lanes, chunks).run()


class _Spread:
    """Where a launch chooses how to run one task, and what all the ways have in common."""

    def __init__(self, body: Body, k: int, task: Task, lanes: str, chunks: str) -> None:
        self.body = body
        self.k = k
        self.task = task
        self.lanes = lanes
        self.chunks = chunks
        self.module = body.module
        self.pool = body.slot_load(POOL, "ptr")
        self.work = lanes_together(self.module, task) * cost(task.body)
        self.partials = self.released = ""
        self.done = body.new_label("done")
        self.arrivals: list[tuple[str, str]] = []
        """How many chunks ran, on which way to the end."""

    def run(self) -> None:
        body, task, n = self.body, self.task, len(self.task.reductions)
        if n or task.private:
            for name, text in ARENA.items():
                self.module.declare(name, text)
            mark = body.let(f"call i64 @ds_arena_mark(ptr {self.pool}, i64 0)")
            self.released = f"call void @ds_arena_release(ptr {self.pool}, i64 0, i64 {mark})"
        if n:
            bytes_ = body.let(f"mul i64 {self.chunks}, {8 * n}")
            self.partials = alloc(body, self.pool, bytes_)
            body.shared_store(self.module.layout.partials[self.k], "ptr", self.partials)
        self.as_one_chunk()
        if task.private:
            self.with_copies()
        self.with_atomics()
        body.start(self.done)
        if n:
            sources = ", ".join(f"[ {used}, %{label} ]" for used, label in self.arrivals)
            combine_partials(body, task, self.partials, body.let(f"phi i64 {sources}"))
        if self.released:
            body.put(self.released)

    def arrive(self, used: str) -> None:
        self.arrivals.append((used, self.body.label))
        self.body.jump(self.done)

    def fork(self, condition: str) -> str:
        """Go on where the condition holds; returns the label for where it does not."""
        body = self.body
        yes, no = body.new_label("yes"), body.new_label("no")
        body.put(f"br i1 {condition}, label %{yes}, label %{no}")
        body.start(yes)
        return no

    def pooled(self, function: str, lanes: str, chunks: str) -> None:
        pooled(self.body, function, (self.pool, lanes, chunks))

    def as_one_chunk(self) -> None:
        body, k = self.body, self.k
        otherwise = self.fork(body.let(f"icmp eq i64 {self.chunks}, 1"))
        kind = "alone" if has_variants(self.task) else "task"
        whole(body, k, kind, self.lanes)
        self.arrive("1")
        body.start(otherwise)

    def with_copies(self) -> None:
        """Each thread adds to copies, if there is enough to add."""
        body, task, module = self.body, self.task, self.module
        chunk = chunk_copies(module, task)
        threads = body.slot_load(THREADS, "i64")
        least = body.let(f"call i64 @llvm.smin.i64(i64 {self.chunks}, i64 {threads})")
        room = body.let(f"mul i64 {least}, {_COPY_WORK * chunk.scalars}")
        worth = body.let(f"icmp sgt i64 {self.additions()}, {room}")
        little = body.let(f"icmp sle i64 {least}, {_MOST_COPIED // chunk.bytes}")
        worth = body.let(f"and i1 {worth}, {little}")
        if not chunk.has_slots:  # else it pays on one thread, too
            several = body.let(f"icmp sgt i64 {threads}, 1")
            worth = body.let(f"and i1 {worth}, {several}")
        for there in copies.are_there(body, task.private):
            worth = body.let(f"and i1 {worth}, {there}")
        otherwise = self.fork(worth)
        self.add_in_copies(chunk, least)
        body.start(otherwise)

    def additions(self) -> str:
        """How many there are to what there may be copies of, by the estimate of `passes/private.py`."""
        count = lanes_together(self.module, self.task) * sum(p.count for p in self.task.private)
        return self.body.let(f"mul i64 {self.lanes}, {count}")

    def add_in_copies(self, chunk: copies.Chunk, least: str) -> None:
        """At least so many chunks, each with its copies."""
        body, k = self.body, self.k
        room = _COPIES_ROOM // chunk.bytes
        most = body.let(f"call i64 @llvm.smin.i64(i64 {self.chunks}, i64 {room})")
        used = slices(body, self.lanes, self.work, least, most)
        block = alloc(body, self.pool, body.let(f"mul i64 {used}, {chunk.bytes}"))
        copies.keep_block(body, k, block, used)
        self.pooled(f"@copies{k}", self.lanes, used)
        copies.add_up(body, chunk, k, self.pooled)
        self.arrive(used)

    def with_atomics(self) -> None:
        body, k = self.body, self.k
        function = f"@task{k}"
        if has_variants(self.task):
            threads = body.slot_load(THREADS, "i64")
            one_thread = body.let(f"icmp eq i64 {threads}, 1")
            function = body.let(f"select i1 {one_thread}, ptr @alone{k}, ptr @task{k}")
        self.pooled(function, self.lanes, self.chunks)
        self.arrive(self.chunks)


def combine_partials(body: Body, task: Task, partials: str, chunks: str) -> None:
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
