"""The code of one GPU thread as LLVM text: the shared lowering with a GPU's address spaces and registers.

Operands that point to global or shared memory carry their address space: `addrspace(n) %v7` is what
follows the word `ptr` wherever the shared lowering writes one. Such addresses have faster loads, stores
and atomics than those of any kind. Loads of memories that an entry point does not write may go through
the read-only path of the caches, be moved and be merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from diffsim.backends.llvm.lowering import FunctionLowering, PrivateCopy
from diffsim.backends.llvm.module import Module
from diffsim.backends.llvm.target import implementation
from diffsim.backends.simt.parameter_block import WORK, SimtParameterBlock
from diffsim.backends.simt.scratch import ScratchAllocator
from diffsim.backends.simt.target import SimtTarget
from diffsim.errors import BackendError
from diffsim.ir.nodes import Alloca, Atomic, Block, Const, For, Let, Mem, Stmt, Store, Value
from diffsim.ir.op import LLVMIntrinsic
from diffsim.ir.traversal import blocks, statements
from diffsim.ir.types import ScalarType, f32, size_of

_MOST_UNROLLED = 32  # statements of loops that run several iterations at once


class Thread(FunctionLowering):
    """Lowers one entry point.

    Args:
        module: the kernel's.
        name: of the function.
        block_dim: the number of threads in a block.
        code: all that it runs.
        also_written: memories that it writes besides.

    Attributes:
        warp: the number of threads in a warp: fewer than the target has in a block that is smaller than one.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        block_dim: int,
        code: Sequence[Block],
        also_written: Iterable[Mem] = (),
    ) -> None:
        layout = module.layout
        target = module.target
        assert isinstance(layout, SimtParameterBlock)
        assert isinstance(target, SimtTarget)
        parameter = f"[{layout.fixed} x i64]" if layout.by_value else ""
        head = target.function_head(name, parameter, block_dim, flush="afn" in module.flags)
        super().__init__(module, [head, "entry:"])
        self.target = target
        self.layout = layout
        self.entry = name
        self.block_dim = block_dim
        self.warp = min(target.warp_size, block_dim)
        # Device scope: the host reads results after the launch, never during it, so system scope
        # would cost for nothing.
        self.scope = f' syncscope("{target.device_scope}")'
        # Of this entry point only: an earlier launch of the same kernel may have written the rest.
        self.written = set(also_written)
        for block in code:
            self.written |= {s.mem for s in statements(block) if isinstance(s, (Store, Atomic))}
        self._writes_arrays = any(m.kind == "array" for m in self.written)
        self.scratch: ScratchAllocator | None = None
        self.columns: dict[Mem, tuple[str, str]] = {}
        """Scratch in the arena: the address of this thread's first cell, and the bytes to its next one."""
        self._allocas: list[str] = []
        # Additions to consecutive components that wait to become one vector atomic. Invariant:
        # empty at the end of every block, and flushed by any statement that is not the next
        # addition.
        self._pending: list[Atomic] = []
        self.aggregated: frozenset[Atomic] = frozenset()
        """Atomics that warps fold first: `enter_warp` must be called for each lane."""
        self.in_global = f"addrspace({target.global_space}) "
        """The prefix of a pointer operand to device memory."""
        self._work = self.base(WORK)

    # ---- addresses

    def base(self, k: int, mem: Mem | None = None) -> str:
        """Load an address; fields are aligned to ALIGNMENT, so LLVM may merge loads of their scalars."""
        aligned = ", !align !2" if mem is not None and mem.kind == "field" else ""
        t = f"ptr {self.in_global}".rstrip()
        return self.in_global + self.assign(
            f"load {t}, ptr {self.slot_address(k)}, !invariant.load !1{aligned}"
        )

    def task_slot_address(self, k: int) -> str:
        return self.offset(self._work, k)

    def offset(self, base: str, k: int | str) -> str:
        return _space(base) + super().offset(base, k)

    def element(self, base: str, t: str, i: str) -> str:
        return _space(base) + super().element(base, t, i)

    def address(self, mem: Mem, index: Sequence[Value], copy: PrivateCopy | None = None) -> str:
        if mem in self.columns:
            return self._in_column(mem, index)
        at = super().address(mem, index, copy)
        if mem.kind == "temp":
            return at
        base = copy.base if copy else self.pointers[mem]
        return at if at == base else _space(base) + at

    def _in_column(self, mem: Mem, index: Sequence[Value]) -> str:
        """Emit the address of one scalar of scratch, successive ones being `stride` bytes apart."""
        base, stride = self.columns[mem]
        # Row-major over the index and the components, like a field of its own.
        cell = "0"
        for k, i in enumerate(index):
            scale = math.prod(mem.dtype.shape[k:])
            at = self.index64(i)
            if at.lstrip("-").isdigit():
                at = str(int(at) * scale)
            elif scale > 1:
                at = self.assign(f"mul nsw i64 {at}, {scale}")
            cell = at if cell == "0" else self.assign(f"add nsw i64 {cell}, {at}")
        far = self.assign(f"mul nsw i64 {cell}, {stride}")
        return self.in_global + self.assign(f"getelementptr inbounds i8, ptr {base}, i64 {far}")

    def load_metadata(self, mem: Mem) -> str:
        found = super().load_metadata(mem)
        # Not written by this entry point: !invariant.load selects ld.global.nc, the read-only data
        # path (PTX ISA), which is not coherent with stores of the same launch.
        constant = mem.kind != "scratch" and mem not in self.written
        if mem.kind == "array" and self._writes_arrays:
            constant = False
        return f"{found}, !invariant.load !1" if constant else found

    def alloca(self, t: str) -> str:
        """Allocate a variable at the function's entry, where LLVM promotes it to a register if it can."""
        name = self.fresh()
        self._allocas.append(f"  {name} = alloca {t}")
        return name

    # ---- special registers

    def thread_index(self) -> str:
        """Emit the thread's number in its block, as i32."""
        return self._register(self.target.thread_index)

    def block_index(self) -> str:
        """Emit the block's number, as i64."""
        return self.assign(f"zext i32 {self._register(self.target.block_index)} to i64")

    def block_count(self) -> str:
        """Emit the number of blocks, as i64."""
        return self.assign(f"zext i32 {self._register(self.target.block_count)} to i64")

    def _register(self, symbol: str) -> str:
        self.module.declare(symbol, f"declare i32 {symbol}()")
        return self.assign(f"call i32 {symbol}()")

    def shared_array(self, name: str, count: int, t: str) -> str:
        """Declare an array in the block's shared memory, uninitialized; return its address."""
        space = f"addrspace({self.target.shared_space})"
        text = f"@{name} = internal {space} global [{count} x {t}] undef, align 8"
        self.module.declare(f"@{name}", text)
        return f"{space} @{name}"

    def barrier(self) -> None:
        """Emit a barrier of the block; every thread must reach it."""
        self.target.barrier(self)

    def combine_integers(self, word: str, a: str, b: str) -> str:
        """Emit smax, umax or umin of two i64."""
        symbol = f"@llvm.{word}.i64"
        self.module.declare(symbol, f"declare i64 {symbol}(i64, i64)")
        return self.assign(f"call i64 {symbol}(i64 {a}, i64 {b})")

    def branch_if(self, condition: str, yes: str = "yes", no: str = "no") -> str:
        """Branch; continue where a condition holds, and return the label for where it does not."""
        there, elsewhere = self.new_label(yes), self.new_label(no)
        self.emit(f"br i1 {condition}, label %{there}, label %{elsewhere}")
        self.start_block(there)
        return elsewhere

    def strided(self, first: str, limit: str, stride: str, step: Callable[[str], None]) -> None:
        """Emit a loop over first, first + stride, ... below limit (i64); `step` emits one iteration."""
        before = self.label
        head, inside, after = (self.new_label(w) for w in ("loop", "step", "after"))
        i, following = self.fresh(), self.fresh()
        self.jump(head)
        self.start_block(head)
        place = len(self.lines)
        self.emit(
            f"br i1 {self.assign(f'icmp slt i64 {i}, {limit}')}, label %{inside}, label %{after}"
        )
        self.start_block(inside)
        step(i)
        self.emit(f"{following} = add nuw nsw i64 {i}, {stride}")
        phi = f"  {i} = phi i64 [ {first}, %{before} ], [ {following}, %{self.label} ]"
        self.lines.insert(place, phi)
        self.jump(head)
        self.start_block(after)

    def end(self) -> list[str]:
        """Finish the function; return its text, the variables at its entry."""
        self.emit("ret void")
        head, entry, *rest = self.lines
        return [head, entry, *self._allocas, *rest, "}"]

    # ---- scratch

    def allocate_scratch(self, s: Alloca) -> str:
        """Emit an allocation of scratch; return what `free_scratch` needs."""
        assert self.scratch is not None
        return self.scratch.allocate(s)

    def free_scratch(self, ticket: str) -> None:
        assert self.scratch is not None
        self.scratch.free(ticket)

    # ---- statements

    def op(self, s: Let) -> str:
        how = implementation(self.target.functions, s.op.lowering)
        # LLVM ends the whole process on an intrinsic that it has no code for.
        unknown = isinstance(how, LLVMIntrinsic) and any(
            word is not None and word not in self.target.intrinsics
            for word in (how.f, how.i, how.u)
        )
        if how is None or unknown:
            raise BackendError(
                f"{s.op.sign} does not exist on GPUs",
                s.span,
                hint="run the kernel on the CPU: ds.init(arch=ds.cpu)",
            )
        return super().op(s)

    def stmt(self, s: Stmt) -> None:
        width = self._vector_width(s)
        # Postponed additions must not move past other statements: one of them may read the element.
        if self._pending and not (width and _follows(self._pending, s)):
            self._add_pending()
        if width:
            assert isinstance(s, Atomic)
            self._pending.append(s)
            if len(self._pending) == width:
                self._add_pending()
        else:
            super().stmt(s)

    def loop_hint(self, s: For) -> str:
        """Unroll short innermost loops, so that the loads of several iterations are under way together."""
        inner = list(statements(s.body))
        if isinstance(s.lo, Const) and isinstance(s.hi, Const) and s.hi.value - s.lo.value <= 64:
            return ""  # LLVM knows better
        if len(inner) > _MOST_UNROLLED or any(blocks(t) or isinstance(t, Atomic) for t in inner):
            return ""
        number = self.module.new_nodes()
        self.module.loop_hints.append(f"!{number} = distinct !{{!{number}, !3}}")
        return f", !llvm.loop !{number}"

    def block(self, block: Block) -> None:
        self.int64_names.append(
            {}
        )  # indices of the additions flushed at its end do not dominate what follows
        super().block(block)
        self._add_pending()
        self.int64_names.pop()

    def _vector_width(self, s: Stmt) -> int:
        """Return the width of the vector atomic that an addition can be part of; 0 for none."""
        if not (
            self.target.vector_adds
            and isinstance(s, Atomic)
            and s.op == "add"
            and s.out is None
            and not (
                s.exclusive
                or self.single_threaded
                or s in self.private_copies
                or s in self.aggregated
            )
            and s.mem.kind == "field"
            and s.mem.dtype.scalar is f32
            and s.mem.component_stride == 1
            and all(isinstance(i, Const) for i in s.index[s.mem.rank :])
        ):
            return 0
        strides = [int(n) for n in self.element_strides(s.mem)]
        # A vector atomic must be aligned to its size (PTX ISA, red): strides and first component
        # are multiples of the width, and fields begin at ALIGNMENT.
        for width in (4, 2):
            if size_of(s.mem.dtype) >= width and all(n % width == 0 for n in strides):
                first = self._pending[0] if self._pending else s
                # The group must begin at a multiple of its width, and lie within the element.
                start = _component(first)
                if start % width == 0 and start + width <= size_of(s.mem.dtype):
                    return width
        return 0

    def _add_pending(self) -> None:
        """Emit the pending additions: with one instruction if they fill a vector."""
        found, self._pending = self._pending, []
        if len(found) not in (2, 4):
            for s in found:
                self.atomic(s)
            return
        at = self.address(found[0].mem, found[0].index)
        self.target.add_vector(self, at, [self.typed(s.value) for s in found])

    def atomic(self, s: Atomic) -> None:
        if s not in self.aggregated:
            self._one_atomic(s)
            return
        # The rest of the warp goes on at `after`; the first thread updates memory for all.
        v, after = self._fold(s)
        folded = Value(s.value.type)
        self.names[folded] = v
        one = Atomic(None, s.op, s.mem, s.index, folded, s.span)
        if s in self.private_copies:
            self.private_copies[one] = self.private_copies[s]
        self.int64_names.append({})
        self._one_atomic(one)
        self.int64_names.pop()
        self.jump(after)
        self.start_block(after)

    def _one_atomic(self, s: Atomic) -> None:
        if s not in self.private_copies:
            super().atomic(s)
            return
        at = self.address(s.mem, s.index, self.private_copies[s])
        self.shared_add(at, s.mem.dtype.scalar, self.name(s.value))

    # ---- warps

    def enter_warp(self, tid: str, lane: str, end: str, threads: str) -> None:
        """Emit the number of threads of the warp that have lanes now, always the first ones, and their mask.

        Args:
            tid: number of the thread in its block (i32).
            lane: its lane.
            end: where the lanes end.
            threads: how many threads take lanes, if not all do.
        """
        self._place = self.assign(f"and i32 {tid}, {self.target.warp_size - 1}")
        first = self.assign(f"sub nsw i64 {lane}, {self.assign(f'zext i32 {self._place} to i64')}")
        left = self.assign(f"sub nsw i64 {end}, {first}")
        if threads:
            left = self.combine_integers("umin", left, threads)
        some = self.assign(
            f"trunc i64 {self.combine_integers('umin', left, str(self.warp))} to i32"
        )
        self._active = some
        # `some` is at least 1, as this thread itself has a lane: a shift by the full width would be
        # poison.
        self._mask = self.assign(
            f"lshr i32 -1, {self.assign(f'sub i32 {self.target.warp_size}, {some}')}"
        )

    def _fold(self, s: Atomic) -> tuple[str, str]:
        """Emit a warp reduction of a value, and continue in the first thread only.

        Returns the result, and the label where all threads go on.
        """
        t, v = s.mem.dtype.scalar, self.name(s.value)
        # Halving distances: log2(warp) shuffles. Only the first thread's result is the
        # whole sum, and only it updates memory.
        distance = self.warp // 2
        while distance:
            other = self.shuffle_down(t, v, distance, self._mask)
            # A source beyond the active threads gives an undefined value, which the select drops.
            there = self.assign(f"add nuw nsw i32 {self._place}, {distance}")
            there = self.assign(f"icmp ult i32 {there}, {self._active}")
            both = self.combine(s.op, t, v, other)
            v = self.assign(f"select i1 {there}, {t.llvm} {both}, {t.llvm} {v}")
            distance //= 2
        return v, self.branch_if(self.assign(f"icmp eq i32 {self._place}, 0"))

    def shuffle_down(self, t: ScalarType, v: str, distance: int, mask: str) -> str:
        """Emit the value of the thread `distance` places higher, among those whose bit is set in `mask`.

        Shuffles move words of 32 bits: narrower values are extended, wider ones go in two halves.
        """

        def shuffle(word: str) -> str:
            return self.target.shuffle_down(self, word, distance, mask)

        bits = self.assign(f"bitcast {t.llvm} {v} to i{t.bits}") if t.is_float else v
        if t.bits < 32:
            word = shuffle(self.assign(f"zext i{t.bits} {bits} to i32"))
            got = self.assign(f"trunc i32 {word} to i{t.bits}")
        elif t.bits == 32:
            got = shuffle(bits)
        else:
            upper = self.assign(f"lshr i64 {bits}, 32")
            halves = [shuffle(self.assign(f"trunc i64 {half} to i32")) for half in (bits, upper)]
            low, high = (self.assign(f"zext i32 {half} to i64") for half in halves)
            got = self.assign(f"or i64 {self.assign(f'shl i64 {high}, 32')}, {low}")
        return self.assign(f"bitcast i{t.bits} {got} to {t.llvm}") if t.is_float else got

    def shared_add(self, at: str, t: ScalarType, v: str) -> None:
        """Emit an atomic addition to an element in the block's shared memory."""
        word = "fadd" if t.is_float else "add"
        scope = f'syncscope("{self.target.block_scope}")'
        self.emit(f"atomicrmw {word} ptr {at}, {t.llvm} {v} {scope} monotonic")


def _component(s: Atomic) -> int:
    """Return the number of the component that an addition updates."""
    k = 0
    for i, n in zip(s.index[s.mem.rank :], s.mem.dtype.shape, strict=True):
        assert isinstance(i, Const)
        k = k * n + int(i.value)
    return k


def _follows(before: list[Atomic], s: Stmt) -> bool:
    """Return whether an addition updates the component next to those before it, in the same element."""
    assert isinstance(s, Atomic)
    one, rank = before[0], s.mem.rank
    return (
        s.mem is one.mem
        and _component(s) == _component(before[-1]) + 1
        and all(
            a is b or (isinstance(a, Const) and isinstance(b, Const) and a.value == b.value)
            for a, b in zip(s.index[:rank], one.index[:rank], strict=True)
        )
    )


def _space(base: str) -> str:
    """Return the address space prefix of a pointer operand, with its trailing space."""
    return base[: base.rfind(" ") + 1]
