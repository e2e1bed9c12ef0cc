"""Scratch of GPU threads: where loops save values for the backward pass.

A few values stay in the thread's local memory. The others lie in an arena that the host allocates, in cells
of 4 or 8 bytes: each thread has a column of cells, and those of neighbouring threads are adjacent, so that a
warp saves with coalesced memory transactions.

Where the trip counts of all loops follow from the inputs of the launch, every thread needs the same number of
cells: as many threads take lanes as fit into the arena. Otherwise the columns are stacks of the same
height, and a thread whose stack is full takes memory from the device's heap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.backends.llvm import diagnostics
from diffsim.backends.llvm.module import memory_type
from diffsim.ir.nodes import LEAVES, Alloca, Const, Let, Load, Mem, Task, Value
from diffsim.ir.traversal import statements
from diffsim.ir.types import size_of

if TYPE_CHECKING:
    from diffsim.backends.simt.thread import Thread

_MOST_LOCAL = (
    1024  # bytes of one thread: the driver sets them aside for every thread that can be resident
)


class ScratchAllocator:
    """The scratch of one task in one thread.

    Args:
        thread: where the text goes; it has entered the task's code.
        task: the task.
        number: the thread's number (i64).
        threads: the number of threads.

    Attributes:
        threads: the number of threads that can take lanes: those whose number is below it.
        is_fixed: whether all threads that take lanes have room for certain, and so run to the end together.
    """

    def __init__(self, thread: Thread, task: Task, number: str, threads: str) -> None:
        self.thread = thread
        self.number = number
        self.threads = threads
        body = task.body
        found = [s for s in statements(body) if isinstance(s, Alloca)]
        # Local memory is interleaved by the hardware, and cached: the best place for what fits.
        self.local = _small(found)
        kept = [s for s in found if s not in self.local]
        self.offsets: dict[Alloca, str] = {}
        self.heap_pointers: dict[Alloca, str] = {}
        self.is_fixed = True
        if not kept:
            return
        slot = thread.layout.arena_bytes
        assert slot is not None
        # One cell size for all scratch of the task: columns of mixed sizes would not be coalesced.
        self.cell = max(4, max(s.mem.dtype.scalar.bytes for s in kept))
        self.arena = thread.base(thread.layout.arena)
        arena_cells = thread.assign(f"udiv i64 {thread.load_slot(slot, 'i64')}, {self.cell}")
        made = {s.out: s for s in statements(body) if isinstance(s, (Let, Load))}
        # Counts that are uniform over the task and computable before its first lane: one size
        # fits all threads.
        hoistable = frozenset() if task.uniform is None else task.uniform.counts
        if all(isinstance(s.count, LEAVES) or s.count in hoistable for s in kept):
            self._share(kept, arena_cells, made)
        else:
            self.is_fixed = False
            self._stack(kept, arena_cells)

    def _share(self, kept: list[Alloca], arena_cells: str, made: dict[Value, Let | Load]) -> None:
        """Give each thread a column with the cells of all scratch, each allocation at a fixed offset."""
        thread = self.thread
        needed: dict[Value, None] = {}

        # 1. Emit the computation of all counts before the lanes, operands before users;
        # `uniform.counts` promises that it does not depend on a lane.
        def need(v: Value) -> None:
            s = made.get(v)
            if s is not None and v not in needed:
                for a in s.args if isinstance(s, Let) else s.index:
                    need(a)
                needed[v] = None

        for s in kept:
            need(s.count)
        for v in needed:
            thread.stmt(made[v])
        # 2. Offsets within a column, and the number of threads whose columns fit into the arena.
        cells = "0"
        for s in kept:
            self.offsets[s] = cells
            n = self._cells(s)
            cells = n if cells == "0" else thread.assign(f"add nsw i64 {cells}, {n}")
        # Not 0, which it is divided by below: loops may run no iteration.
        one = thread.combine_integers("umax", cells, "1")
        fit = thread.assign(f"udiv i64 {arena_cells}, {one}")
        fit = thread.combine_integers("umin", fit, self.threads)
        if self.threads != "1":
            # Whole warps if there are any: a column is then addressed by full transactions, and
            # shuffles find all threads of their warp.
            whole = thread.assign(f"and i64 {fit}, {-thread.warp}")
            some = thread.assign(f"icmp ne i64 {whole}, 0")
            fit = thread.assign(f"select i1 {some}, i64 {whole}, i64 {fit}")
        self.threads = fit
        bytes_ = thread.assign(f"mul nsw i64 {cells}, {self.cell}")
        diagnostics.lower_check(
            thread, kept[0], thread.assign(f"icmp ne i64 {fit}, 0"), [bytes_], exits=True
        )

    def _stack(self, kept: list[Alloca], arena_cells: str) -> None:
        thread = self.thread
        # Columns as stacks: one thread's depth is not known, so a full stack falls back to the
        # heap.
        self.height = thread.assign(f"udiv i64 {arena_cells}, {self.threads}")
        self.top = thread.alloca("i64")
        thread.emit(f"store i64 0, ptr {self.top}")
        for s in kept:
            self.heap_pointers[s] = thread.alloca("ptr")
            thread.emit(f"store ptr null, ptr {self.heap_pointers[s]}")

    def _cells(self, s: Alloca) -> str:
        # A loop that runs no iteration has a count of 0 or less.
        count = self.thread.index64(s.count)
        if not count.isdigit():
            count = self.thread.combine_integers("smax", count, "0")
        n = size_of(s.mem.dtype)
        return count if n == 1 else self.thread.assign(f"mul nsw i64 {count}, {n}")

    # ---- what the code asks for

    def allocate(self, s: Alloca) -> str:
        """Emit an allocation; return what `free` needs."""
        if s in self.local:
            t = memory_type(s.mem.dtype.scalar)
            self.thread.pointers[s.mem] = self.thread.alloca(f"[{_scalars(s)} x {t}]")
            return ""
        if s in self.offsets:
            self._place(s.mem, self.offsets[s])
            return ""
        return self._push(s)

    def _place(self, mem: Mem, first: str) -> None:
        """Bind a memory to this thread's column from a cell on: cell c of thread t is c * threads + t."""
        thread = self.thread
        row = thread.assign(f"mul nuw nsw i64 {first}, {self.threads}")
        cell = thread.assign(f"add nuw nsw i64 {row}, {self.number}")
        at = thread.element(self.arena, f"[{self.cell} x i8]", cell)
        thread.columns[mem] = at, thread.assign(f"mul nuw nsw i64 {self.threads}, {self.cell}")

    def _push(self, s: Alloca) -> str:
        thread, module = self.thread, self.thread.module
        cells = self._cells(s)
        old = thread.assign(f"load i64, ptr {self.top}")
        new = thread.assign(f"add nuw nsw i64 {old}, {cells}")
        after = thread.new_label("room")
        bytes_ = thread.assign(f"mul nsw i64 {cells}, {self.cell}")
        # Threads of a warp may take different sides here, which is why folding in warps is off
        # (`is_fixed`).
        otherwise = thread.branch_if(thread.assign(f"icmp ule i64 {new}, {self.height}"))
        self._place(s.mem, old)
        base, stride = thread.columns[s.mem]
        on_stack = thread.label
        thread.jump(after)
        thread.start_block(otherwise)
        alloc, pointer = thread.target.heap_alloc, f"ptr {thread.in_global}".rstrip()
        module.declare(alloc, f"declare noalias ptr {alloc}(i64)")
        # malloc(0) may return null, which would be taken for a lack of memory.
        some = thread.combine_integers("umax", bytes_, "1")
        generic = thread.assign(f"call ptr {alloc}(i64 {some})")
        cast = thread.assign(f"addrspacecast ptr {generic} to {pointer}")
        on_heap = thread.label
        thread.jump(after)
        thread.start_block(after)

        def phi(t: str, a: str, b: str) -> str:
            return thread.assign(f"phi {t} [ {a}, %{on_stack} ], [ {b}, %{on_heap} ]")

        place = phi(pointer, base.split()[-1], cast)
        # Memory of the heap is the thread's own and contiguous: its stride is one cell.
        step = phi("i64", stride, str(self.cell))
        heap_pointer = phi("ptr", "null", generic)
        top = phi("i64", new, old)
        thread.emit(f"store i64 {top}, ptr {self.top}")
        thread.emit(f"store ptr {heap_pointer}, ptr {self.heap_pointers[s]}")
        thread.columns[s.mem] = thread.in_global + place, step
        there = thread.assign(f"icmp ne {pointer} {place}, null")
        diagnostics.lower_check(thread, s, there, [bytes_], exits=True)
        return f"{old} {heap_pointer} {self.heap_pointers[s]}"

    def free(self, ticket: str) -> None:
        """Emit the release of an allocation."""
        if ticket:
            old, heap_pointer, note = ticket.split()
            self.thread.emit(f"store i64 {old}, ptr {self.top}")
            # Null where it came from the arena.
            self._free(heap_pointer)
            # Else `free_all` would free it once more.
            self.thread.emit(f"store ptr null, ptr {note}")

    def _free(self, heap_pointer: str) -> None:
        thread = self.thread
        free = thread.target.heap_free
        thread.module.declare(free, f"declare void {free}(ptr)")
        after = thread.branch_if(thread.assign(f"icmp ne ptr {heap_pointer}, null"))
        thread.emit(f"call void {free}(ptr {heap_pointer})")
        thread.jump(after)
        thread.start_block(after)

    def free_all(self, label: str, then: str) -> None:
        """Emit the block to which a thread without memory branches: it frees what it has.

        The device's heap outlives the launch, so memory that is not freed here would be lost for good.
        """
        self.thread.start_block(label)
        for note in self.heap_pointers.values():
            self._free(self.thread.assign(f"load ptr, ptr {note}"))
        self.thread.jump(then)


def _scalars(s: Alloca) -> int:
    assert isinstance(s.count, Const)
    return max(0, int(s.count.value)) * size_of(s.mem.dtype)


def _small(found: list[Alloca]) -> set[Alloca]:
    """Return the allocations that threads keep in local memory: constant and small in all."""
    small, bytes_left = set(), _MOST_LOCAL
    for s in found:
        if isinstance(s.count, Const):
            bytes_ = _scalars(s) * s.mem.dtype.scalar.bytes
            if bytes_ <= bytes_left:
                small.add(s)
                bytes_left -= bytes_
    return small
