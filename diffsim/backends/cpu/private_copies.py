"""Privatization on the CPU: chunks add to private copies of a memory instead of using atomics.

A task's `privatized` memories are small beside the number of additions to them. Each chunk adds to a copy of
its own, all of which lie in one block behind the layout's `copies` slot, and `add_up` adds them to the
memory afterwards, in the order of the chunks.

Where lanes run together (`simd.py`) and all of them add to the same element at a time, as the adjoint of
what every lane reads does, adding the lanes up would cost more than all the rest. A copy then keeps a
vector for each scalar, of as many slots as a register has lanes: an addition is one load, one addition
and one store of it, and the slots are added up once, when the chunk is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from diffsim.backends.llvm import private_copy
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.ir.nodes import Block, Task
from diffsim.ir.schedules import Privatized

_ALONE = 4096  # scalars that one thread adds up in less time than waking others takes
_MOST_PARTS = 128


def _bytes(p: Privatized) -> int:
    # Whole cache lines, so that no two threads write to the same one (false sharing).
    return (p.scalars * p.mem.dtype.scalar.bytes + 63) // 64 * 64


class Chunk:
    """The copies of one chunk: those of all memories, then the vectors of the memories that have slots.

    Invariant: at the end of a chunk the copies hold the sums, and the slots are spent. So `add_up` reads
    the first part of a block only, whether or not there are slots.
    """

    def __init__(self, task: Task, lanes: int, register: int) -> None:
        self.private = task.privatized
        self.slots = [
            p.slots(min(lanes, register // p.mem.dtype.scalar.bits)) for p in task.privatized
        ]
        # Vectors behind the plain copies, which `add_up` then finds at the same offsets with or
        # without slots.
        self.plain = sum(map(_bytes, task.privatized))
        self.emits_vectors = sum(n * _bytes(p) for p, n in self._spread())
        self.bytes = self.plain + self.emits_vectors

    @property
    def has_slots(self) -> bool:
        return self.emits_vectors > 0

    @property
    def helps_one_thread(self) -> bool:
        """Whether additions to copies are faster than to the memory, also where no thread is in the way."""
        return self.has_slots or any(p.axis is not None for p in self.private)

    @property
    def scalars(self) -> int:
        """Return the number of scalars that are zeroed and added up: the cost of having copies."""
        return sum(n * p.scalars for p, n in zip(self.private, self.slots, strict=True))

    def places(self) -> Iterator[tuple[Privatized, int]]:
        """Yield the memories, and the offset of each one's copy in the chunk's block [byte]."""
        at = 0
        for p in self.private:
            yield p, at
            at += _bytes(p)

    def _spread(self) -> list[tuple[Privatized, int]]:
        return [(p, n) for p, n in zip(self.private, self.slots, strict=True) if n > 1]

    def begin(self, body: FunctionLowering, k: int) -> str:
        """Emit the start of a chunk: locate its copies and zero them; return their address."""
        base, _ = _block_of(body, k)
        # One copy per chunk, not per thread: which thread runs a chunk has no influence on the
        # sums.
        skip = body.assign(f"mul i64 %chunk, {self.bytes}")
        mine = body.assign(f"getelementptr i8, ptr {base}, i64 {skip}")
        body.module.declare("@llvm.memset", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        body.emit(
            f"call void @llvm.memset.p0.i64(ptr align 64 {mine}, i8 0, i64 {self.bytes}, i1 false)"
        )
        # From here on the task's atomics are plain additions to these addresses
        # (`FunctionLowering.private_copies`).
        at, behind = 0, self.plain
        for p, n in zip(self.private, self.slots, strict=True):
            # With slots the atomics go to the vectors; `end` then fills the plain copy from them.
            place = body.assign(f"getelementptr i8, ptr {mine}, i64 {behind if n > 1 else at}")
            body.private_copies.update(dict.fromkeys(p.atomics, private_copy.copy_at(p, place, n)))
            at += _bytes(p)
            behind += n * _bytes(p) if n > 1 else 0
        return mine

    def end(self, body: FunctionLowering, mine: str) -> None:
        """Emit the end of a chunk: add up the slots of each scalar into its plain copy."""
        at, behind = 0, self.plain
        for p, n in zip(self.private, self.slots, strict=True):
            if n > 1:
                copy = body.assign(f"getelementptr i8, ptr {mine}, i64 {at}")
                vectors = body.assign(f"getelementptr i8, ptr {mine}, i64 {behind}")
                _add_slots(body, p, n, copy, vectors)
                behind += n * _bytes(p)
            at += _bytes(p)


def _add_slots(body: FunctionLowering, p: Privatized, n: int, copy: str, vectors: str) -> None:
    scalar = p.mem.dtype.scalar
    t, kind = scalar.llvm, f"<{n} x {scalar.llvm}>"
    # -0.0 is the neutral element of IEEE 754 addition (0.0 + -0.0 is +0.0). Without `reassoc` LLVM
    # adds the lanes one after the other; the order of a sum over lanes is free.
    word, start, flags = ("fadd", f"{t} -0.0, ", "reassoc ") if scalar.is_float else ("add", "", "")
    name = f"@llvm.vector.reduce.{word}.v{n}{'f' if scalar.is_float else 'i'}{scalar.bits}"
    body.module.declare(name, f"declare {t} {name}({f'{t}, ' if scalar.is_float else ''}{kind})")

    def add(i: str) -> None:
        # Element i of the vectors is the vector of scalar i: slots of a scalar are adjacent.
        source = body.assign(f"getelementptr inbounds {kind}, ptr {vectors}, i64 {i}")
        target = body.assign(f"getelementptr inbounds {t}, ptr {copy}, i64 {i}")
        v = body.assign(f"load {kind}, ptr {source}")
        total = body.assign(f"call {flags}{t} {name}({start}{kind} {v})")
        body.emit(f"store {t} {total}, ptr {target}")

    body.count_up("0", str(p.scalars), add)


def add_up(
    body: FunctionLowering, chunk: Chunk, k: int, run: Callable[[str, str, str], None]
) -> None:
    """Emit the addition of all copies to their memories; `run` spreads a function over its range.

    Each scalar gets its copies in the order of the chunks, however the range is cut: the result depends on
    the number of copies, and not on threads.
    """
    copies, used = _block_of(body, k)
    for j, (p, at) in enumerate(chunk.places()):
        # A small memory is added up by the launching thread, inline.
        if p.scalars < _ALONE:
            block = body.assign(f"getelementptr i8, ptr {copies}, i64 {at}")
            _add_one(body, p, block, chunk.bytes, used)
        else:
            extent = private_copy.loops(p)[0][0]
            # Cut along the outermost loop of the memory: threads write to disjoint ranges of it.
            parts = max(1, min(_MOST_PARTS, extent, p.scalars // _ALONE))
            run(f"@sum{k}_{j}", str(extent), str(parts))


def sum_functions(module: Module, chunk: Chunk, k: int, arguments: str) -> list[str]:
    """Lower, for each memory too large for one thread, the function that adds a range of all copies."""
    text = []
    for j, (p, at) in enumerate(chunk.places()):
        if p.scalars < _ALONE:
            continue
        lines = [f"define internal void @sum{k}_{j}({arguments}) #0 {{", "entry:"]
        body = FunctionLowering(module, lines)
        # Leading indices are values of the launch, not of a lane: every function that needs them
        # evaluates them itself.
        prefixes = tuple(v for v, _ in p.prefix if v is not None)
        body.load_parameters([Block([], prefixes)], [p.mem])
        copies, used = _block_of(body, k)
        block = body.assign(f"getelementptr i8, ptr {copies}, i64 {at}")
        _add_one(body, p, block, chunk.bytes, used, ("%begin", "%end"))
        text += [*lines, "  ret void", "}"]
    return text


def keep_block(body: FunctionLowering, k: int, copies: str, used: str) -> None:
    """Store the address of a task's copies, and how many chunks have one, in the parameter block."""
    slot = body.module.layout.copies[k]
    body.store_task_slot(slot, "ptr", copies)
    body.store_task_slot(slot + 1, "i64", used)


def _block_of(body: FunctionLowering, k: int) -> tuple[str, str]:
    slot = body.module.layout.copies[k]
    return (
        body.load_task_slot(slot, "ptr", constant=False),
        body.load_task_slot(slot + 1, "i64", constant=False),
    )


def in_bounds(body: FunctionLowering, private: tuple[Privatized, ...]) -> Iterator[str]:
    """Yield conditions for the copied part to lie within the memory, which a launch must test.

    In the source an addition may be guarded, so that it never happens for an index that is out of bounds.
    Adding up the copies is not guarded, and would write out of bounds.
    """
    for p in private:
        assert p.mem.shape is not None
        for (base, shift), extent in zip(p.prefix, p.mem.shape, strict=False):
            if base is not None:
                # Unsigned, so that one comparison covers negative indices too.
                yield body.assign(
                    f"icmp ult i64 {private_copy.prefix_index(body, base, shift)}, {extent}"
                )


def _add_one(
    body: FunctionLowering,
    p: Privatized,
    block: str,
    total: int,
    chunks: str,
    part: tuple[str, str] | None = None,
) -> None:
    """Emit the sum of copies that are `total` bytes apart; `part`: this range of the outermost loop only."""
    t = p.mem.dtype.scalar.llvm
    first = private_copy.part_address(body, p)

    def chunk(c: str) -> None:
        offset = body.assign(f"mul i64 {c}, {total}")
        copy = body.assign(f"getelementptr i8, ptr {block}, i64 {offset}")

        # One loop nest over copy and memory in step, the copy being contiguous in the memory's
        # order.
        def run(loops: list[tuple[int, int, int]], source: str, target: str) -> None:
            if not loops:
                extra = body.assign(f"load {t}, ptr {source}{body.module.alias('scratch')}")
                body.update("add", p.mem, target, extra)
                return
            extent, here, there = loops[0]
            # Only the outermost loop is restricted to the range of this thread.
            limits = part if part and loops is every else ("0", str(extent))

            def iteration(i: str) -> None:
                places = []
                for base, stride in ((source, here), (target, there)):
                    at = i if stride == 1 else body.assign(f"mul nsw i64 {i}, {stride}")
                    places.append(body.assign(f"getelementptr inbounds {t}, ptr {base}, i64 {at}"))
                run(loops[1:], *places)

            body.count_up(*limits, iteration)

        every = private_copy.loops(p)
        run(every, copy, first)

    body.count_up("0", chunks, chunk)
