"""The CUDA backend: each task of a kernel becomes a GPU function, and so do bounds to be computed.

The tasks of a launch are GPU launches in a row, in the order of `CudaCode.entries`. Every entry
point has the signature `(ptr params, i64 lanes)` and reads the same parameter block, which lies in
GPU memory. A "bounds" entry leaves the bounds and the number of lanes of the task after it in the
block, so the host never waits to learn them. The threads of a "parallel" entry take lanes in
strides of the whole grid, so any grid will do; one that fills the GPU is best. Serial tasks run on
one thread.

A reduction keeps a partial result in each thread, combines those of a warp with shuffles, and
updates memory once a warp. Atomic updates come in no fixed order: sums of floats differ in their
last bits from launch to launch. Memory is addressed as global memory (address space 1), which has
faster loads, stores and atomics than addresses of any kind; the block is a kernel's own argument,
and LLVM finds out by itself that it is global too.

No address is baked into the text, and nothing here needs a GPU or a driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from diffsim.backends.lanes import (
    accumulate,
    bound,
    count,
    enter_lane,
    identity,
    point,
    size,
    store_bounds,
)
from diffsim.backends.layout import Layout
from diffsim.backends.llvm import Body, Copy
from diffsim.backends.module import Module
from diffsim.backends.ptx import to_ptx
from diffsim.errors import BackendError, Span
from diffsim.ir._row import Intrinsic, Libdevice, Libm
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Check,
    Kernel,
    Let,
    Mem,
    Scratch,
    Task,
    Value,
)
from diffsim.ir.types import ScalarType
from diffsim.ir.walk import statements

BLOCK_DIM = 256
_WARP = 32
_GLOBAL = "addrspace(1) "
# The intrinsics that LLVM has NVIDIA code for; most others would end the process.
_INTRINSICS = frozenset(
    "sqrt fabs floor ceil trunc rint round roundeven nearbyint minnum maxnum minimum maximum "
    "copysign fma smin smax umin umax".split()
)
_BITWISE = ("and", "or", "xor")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One GPU launch.

    Attributes:
        name: the function's name in the PTX.
        kind: "serial" and "bounds" run on one thread, "parallel" on as many as there are.
        task: number of the kernel's task that it runs, or computes the bounds of.
        lanes: number of lanes if it is a constant. None: hand over -1, and a parallel entry reads
            the number that the bounds entry before it left in the parameter block.
        block_dim: threads in a block; more are refused by the driver.
    """

    name: str
    kind: Literal["serial", "parallel", "bounds"]
    task: int
    lanes: int | None = None
    block_dim: int = BLOCK_DIM


class CudaLayout(Layout):
    """The parameter block, with the number of lanes of each task whose bounds are computed.

    Attributes:
        lanes: slot of the number of lanes of a parallel task.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.lanes: dict[int, int] = {}
        for k, task in enumerate(kernel.tasks):
            if task.axes and count(task) is None:
                self.lanes[k] = self.size
                self.size += 1


class CudaCode:
    """LLVM text of a kernel, its parameter layout, the checks it reports, its launches in order."""

    def __init__(
        self,
        text: str,
        layout: CudaLayout,
        checks: list[Check | Scratch],
        entries: list[EntryPoint],
    ) -> None:
        self.text = text
        self.layout = layout
        self.checks = checks
        self.entries = entries


class CudaTarget:
    """NVIDIA's answers to what the shared lowering asks."""

    column = "cuda"
    name = "cuda"

    def math(self, module: Module, how: Libm | Libdevice, t: ScalarType, args: str) -> str:
        """A call of libdevice."""
        assert isinstance(how, Libdevice), how
        symbol = f"@__nv_{how.name}{'f' if t.bits == 32 else ''}"
        types = ", ".join([t.llvm] * (args.count(",") + 1))
        module.declare(symbol, f"declare {t.llvm} {symbol}({types})")
        return f"call {module.flags} {t.llvm} {symbol}({args})"

    def scratch(self, body: Body, bytes_: str) -> tuple[str, str]:
        """An allocation on the device's heap, noted where a thread that gives up finds it."""
        assert isinstance(body, _Thread)
        module = body.module
        module.declare("@malloc", "declare noalias ptr @malloc(i64)")
        module.declare("@llvm.umax.i64", "declare i64 @llvm.umax.i64(i64, i64)")
        some = body.let(f"call i64 @llvm.umax.i64(i64 {bytes_}, i64 1)")
        generic = body.let(f"call ptr @malloc(i64 {some})")
        held = body.hold(generic)
        pointer = body.let(f"addrspacecast ptr {generic} to ptr addrspace(1)")
        return _GLOBAL + pointer, f"{generic} {held}"

    def release(self, body: Body, ticket: str) -> None:
        """Free it."""
        generic, held = ticket.split()
        body.module.declare("@free", "declare void @free(ptr)")
        body.put(f"call void @free(ptr {generic})")
        body.put(f"store ptr null, ptr {held}")


def emit_ptx(kernel: Kernel, sm: int = 80, *, fast_math: bool = False) -> str:
    """A scalar kernel as PTX for one GPU generation.

    Args:
        kernel: on scalars, its ops those of the column "cuda".
        sm: compute capability, ten times the version: 80 for 8.0.
        fast_math: let LLVM approximate and reorder.

    Raises:
        BackendError: something in the kernel has no NVIDIA code.
        PtxError: a part of the CUDA toolkit is missing.
    """
    return to_ptx(lower(kernel, fast_math=fast_math).text, sm)


def lower(kernel: Kernel, *, fast_math: bool) -> CudaCode:
    """A scalar kernel as an LLVM module for NVIDIA GPUs."""
    layout = CudaLayout(kernel)
    module = Module(kernel, layout, CudaTarget(), fast_math=fast_math)
    name = _symbol(kernel.name)
    entries: list[EntryPoint] = []
    text: list[str] = []
    for k, task in enumerate(kernel.tasks):
        if not task.axes:
            entry = EntryPoint(f"{name}_task{k}", "serial", k, 1, 1)
            text += _serial(module, entry, task.body)
            entries.append(entry)
            continue
        lanes = count(task)
        if lanes is None:
            entry = EntryPoint(f"{name}_bounds{k}", "bounds", k, 1, 1)
            text += _bounds(module, entry, task, layout)
            entries.append(entry)
        entry = EntryPoint(f"{name}_task{k}", "parallel", k, lanes)
        text += _parallel(module, entry, task, layout)
        entries.append(entry)
    parts = [
        *(module.declared[symbol] for symbol in sorted(module.declared)),
        *text,
        f'attributes #0 = {{ nounwind "nvvm.maxntid"="{BLOCK_DIM}" }}',
        'attributes #1 = { nounwind "nvvm.maxntid"="1" }',
        *module.metadata(),
    ]
    whole = "\n".join(parts)
    return CudaCode(whole + "\n", layout, module.checks, entries)


def _symbol(name: str) -> str:
    """The kernel's name with what PTX does not allow in names replaced."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain[:1].isalpha() else f"k{plain}"


class _Thread(Body):
    """Lowers what one GPU thread runs.

    Operands that point to global memory carry their address space: `addrspace(1) %v7` is what
    follows the word `ptr` wherever the shared lowering writes one.
    """

    def __init__(self, module: Module, entry: EntryPoint, code: Sequence[Block]) -> None:
        attributes = 1 if entry.block_dim == 1 else 0
        head = f"define ptx_kernel void @{entry.name}(ptr noalias align 8 %params, i64 %lanes)"
        super().__init__(module, [f"{head} #{attributes} {{", "entry:"])
        found = [s for block in code for s in statements(block) if isinstance(s, Scratch)]
        self._held = [self.let("alloca ptr") for _ in found]
        self._holding = 0
        for place in self._held:
            self.put(f"store ptr null, ptr {place}")

    def enter(self, code: Iterable[Block], extra: Iterable[Mem] = ()) -> None:
        super().enter(code, extra)
        for mem, pointer in self.pointers.items():
            cast = self.let(f"addrspacecast ptr {pointer} to ptr addrspace(1)")
            self.pointers[mem] = _GLOBAL + cast

    def address(self, mem: Mem, index: Sequence[Value], copy: Copy | None = None) -> str:
        at = super().address(mem, index, copy)
        return at if mem.kind == "temp" or at.startswith(_GLOBAL) else _GLOBAL + at

    def hold(self, pointer: str) -> str:
        """Note scratch to be freed if the thread gives up; returns where it is noted."""
        place = self._held[self._holding]
        self._holding += 1
        self.put(f"store ptr {pointer}, ptr {place}")
        return place

    def give_up(self, label: str) -> None:
        """Write where `exit` goes: a thread that gets no scratch frees what it has and leaves."""
        if self._held:
            self.module.declare("@free", "declare void @free(ptr)")
            self.start("gives_up")
            for place in self._held:
                self.put(f"call void @free(ptr {self.let(f'load ptr, ptr {place}')})")
            self.jump(label)

    def special_register(self, name: str) -> str:
        """A 32-bit special register, such as the thread's number."""
        symbol = f"@llvm.nvvm.read.ptx.sreg.{name}"
        self.module.declare(symbol, f"declare i32 {symbol}()")
        return self.let(f"call i32 {symbol}()")

    def wide_register(self, name: str) -> str:
        """A special register in 64 bits."""
        return self.let(f"zext i32 {self.special_register(name)} to i64")

    def op(self, s: Let) -> str:
        how = s.op.cuda
        fatal = isinstance(how, Intrinsic) and any(
            word is not None and word not in _INTRINSICS for word in (how.f, how.i, how.u)
        )
        if how is None or isinstance(how, Libm) or fatal:
            raise BackendError(f"{s.op.name} is not there for CUDA", s.span)
        return super().op(s)


def _refuse_atomic(op: str, t: ScalarType, span: Span) -> None:
    if t.is_bool if op not in _BITWISE else t.is_float:
        raise BackendError(f"there is no atomic {op} of {t} for CUDA", span)


# ---- tasks on one thread


def _serial(module: Module, entry: EntryPoint, code: Block) -> list[str]:
    thread = _Thread(module, entry, [code])
    _only_first(thread)
    thread.enter([code])
    thread.exit = "br label %gives_up"
    thread.block(code)
    return _end(thread)


def _bounds(module: Module, entry: EntryPoint, task: Task, layout: CudaLayout) -> list[str]:
    thread = _Thread(module, entry, [task.bounds])
    _only_first(thread)
    thread.enter([task.bounds])
    lanes = store_bounds(thread, entry.task, task)
    thread.slot_store(layout.lanes[entry.task], "i64", lanes)
    return _end(thread)


def _only_first(thread: _Thread) -> None:
    """Leave unless this is the grid's first thread."""
    place = thread.let(
        f"or i32 {thread.special_register('tid.x')}, {thread.special_register('ctaid.x')}"
    )
    first = thread.let(f"icmp eq i32 {place}, 0")
    thread.put(f"br i1 {first}, label %first, label %leave")
    thread.start("first")


def _end(thread: _Thread) -> list[str]:
    thread.jump("leave")
    thread.give_up("leave")
    thread.start("leave")
    thread.put("ret void")
    thread.lines.append("}")
    return thread.lines


# ---- parallel tasks


def _parallel(module: Module, entry: EntryPoint, task: Task, layout: CudaLayout) -> list[str]:
    """Each thread runs the lanes begin, begin + stride, ... below the total."""
    k = entry.task
    for op, mem, _ in task.reductions:
        _refuse_atomic(op, mem.dtype.scalar, task.span)
    thread = _Thread(module, entry, [task.body])
    sums = _new_sums(thread, task)
    indices = tuple(i for _, _, index in task.reductions for i in index)
    thread.enter([task.body, Block([], indices)], [m for _, m, _ in task.reductions])
    tid = thread.special_register("tid.x")
    threads, block = thread.wide_register("ntid.x"), thread.wide_register("ctaid.x")
    earlier = thread.let(f"mul nuw nsw i64 {block}, {threads}")
    begin = thread.let(f"add nuw nsw i64 {earlier}, {thread.let(f'zext i32 {tid} to i64')}")
    stride = thread.let(f"mul nuw nsw i64 {thread.wide_register('nctaid.x')}, {threads}")
    total = "%lanes"
    if k in layout.lanes:
        stored = thread.slot_load(layout.lanes[k], "i64")
        unknown = thread.let("icmp slt i64 %lanes, 0")
        total = thread.let(f"select i1 {unknown}, i64 {stored}, i64 %lanes")
    axes = range(len(task.axes))
    lows = [bound(thread, k, task, 2 * a) for a in axes]
    sizes = [
        "" if a == 0 else size(thread, lows[a], bound(thread, k, task, 2 * a + 1)) for a in axes
    ]
    before, lane, following = thread.label, thread.fresh(), thread.fresh()
    thread.jump("turn")
    thread.start("turn")
    thread.put(f"{lane} = phi i64 [ {begin}, %{before} ], [ {following}, %next ]")
    more = thread.let(f"icmp slt i64 {lane}, {total}")
    thread.put(f"br i1 {more}, label %lane, label %done")
    thread.start("lane")
    enter_lane(thread, task, point(thread, task.axes, lows, sizes, lane))
    thread.exit = "br label %gives_up"
    thread.block(task.body)
    for place, (op, _, _), v in zip(sums, task.reductions, task.body.yields, strict=True):
        t = v.type.scalar.llvm
        carried = thread.let(f"load {t}, ptr {place}")
        thread.put(f"store {t} {accumulate(thread, op, v, carried)}, ptr {place}")
    thread.wide.pop()
    thread.jump("next")
    thread.start("next")
    thread.put(f"{following} = add nuw nsw i64 {lane}, {stride}")
    thread.jump("turn")
    thread.give_up("done")
    thread.start("done")
    if sums:
        leader = thread.let(f"icmp eq i32 {thread.let(f'and i32 {tid}, {_WARP - 1}')}, 0")
        # A warp's first thread has its first lane: warps without lanes leave memory alone.
        works = thread.let(f"icmp slt i64 {begin}, {total}")
        updates = thread.let(f"and i1 {leader}, {works}")
        _combine_sums(thread, task, sums, updates)
    thread.put("ret void")
    thread.lines.append("}")
    return thread.lines


def _new_sums(thread: _Thread, task: Task) -> list[str]:
    """Places for the partial results. LLVM makes registers of them, whichever way a lane ends."""
    sums = []
    for (op, _, _), v in zip(task.reductions, task.body.yields, strict=True):
        t = v.type.scalar
        sums.append(thread.let(f"alloca {t.llvm}"))
        thread.put(f"store {t.llvm} {identity(op, t)}, ptr {sums[-1]}")
    return sums


def _combine_sums(thread: _Thread, task: Task, sums: list[str], updates: str) -> None:
    """Fold the partial results of a warp in its first thread, which updates memory."""
    totals = []
    for place, (op, _, _), v in zip(sums, task.reductions, task.body.yields, strict=True):
        t = v.type.scalar
        mine = thread.let(f"load {t.llvm}, ptr {place}")
        distance = _WARP // 2
        while distance:
            mine = thread.combine(op, t, mine, _from_above(thread, t, mine, distance))
            distance //= 2
        totals.append(mine)
    thread.put(f"br i1 {updates}, label %update, label %leave")
    thread.start("update")
    for mine, (op, mem, index), v in zip(totals, task.reductions, task.body.yields, strict=True):
        total = Value(v.type)
        thread.names[total] = mine
        thread.atomic(Atomic(None, op, mem, index, total, task.span))
    thread.jump("leave")
    thread.start("leave")


def _from_above(thread: _Thread, t: ScalarType, v: str, distance: int) -> str:
    """The value of the thread that many places higher in the warp."""
    symbol = "@llvm.nvvm.shfl.sync.down.i32"
    thread.module.declare(symbol, f"declare i32 {symbol}(i32, i32, i32, i32)")

    def shuffle(word: str) -> str:
        return thread.let(f"call i32 {symbol}(i32 -1, i32 {word}, i32 {distance}, i32 {_WARP - 1})")

    bits = thread.let(f"bitcast {t.llvm} {v} to i{t.bits}") if t.is_float else v
    if t.bits < 32:
        word = shuffle(thread.let(f"zext i{t.bits} {bits} to i32"))
        return thread.let(f"trunc i32 {word} to i{t.bits}")
    if t.bits == 32:
        got = shuffle(bits)
    else:
        upper = thread.let(f"lshr i64 {bits}, 32")
        halves = [shuffle(thread.let(f"trunc i64 {half} to i32")) for half in (bits, upper)]
        low, high = (thread.let(f"zext i32 {half} to i64") for half in halves)
        got = thread.let(f"or i64 {thread.let(f'shl i64 {high}, 32')}, {low}")
    return thread.let(f"bitcast i{t.bits} {got} to {t.llvm}") if t.is_float else got
