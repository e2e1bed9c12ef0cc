"""Blocks too long for one function: cut into parts, each a function of its own, on the CPU.

LLVM's register allocator, scheduler and coalescer take time that grows as the square of a block's length, and
passes that ask at each branch what the ones before say do, too. So a long block is outlined: calls of parts,
one after the other, are written in its place. A value defined in one part (or around the block) and used in
another goes through memory, a frame that the lane, or the lanes that run together, have from the arena. Such
values live for thousands of instructions and would be spilled in any case.

    store %i, frame + 0                    (live into the block)
    call @part0(%params, %worker, frame)   %x = fmul ...
    call @part1(%params, %worker, frame)   store %x, frame + 128
    call @part2(%params, %worker, frame)   ...
    %y = load frame + 192                  (live out of it)

An integer crosses parts as a 64-bit index: addresses come out the same as in one function. Read first:
`_Cut.lower`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from diffsim.backends.llvm import safepoints
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Atomic,
    Block,
    Check,
    Const,
    If,
    Load,
    Mem,
    Stmt,
    Store,
    Value,
)
from diffsim.ir.schedules import Access, Neighbours
from diffsim.ir.traversal import blocks, free_values, outs, statements, uses
from diffsim.ir.types import i64, u8

_LONGEST = 4_000
"""Statements of the longest block that is kept in one function."""
_MOST_NESTED = 6_000
"""The same, those in branches included."""
_PART = 1_000
"""Statements of a part: few enough for the quadratic passes, enough that the frame is small beside them."""
_SIDE = 8
"""Statements that the masks, the jump and the choices take for a side of a branch that lanes take apart."""
_REGISTERS = 4
"""Registers for each value, of the vectors whose statements in branches count as one each."""


def lower(body: FunctionLowering, block: Block) -> bool:
    """Lower a block in parts, if it is long; return whether it was.

    A failed check, and an allocation of scratch that fails, return from the enclosing function: from within a
    part they would end the part only. Blocks with either are not cut.
    """
    nested = sum(_length(body, s) for s in block.stmts)
    if len(block.stmts) <= _LONGEST and nested <= _MOST_NESTED:
        return False
    if any(isinstance(s, (Check, Alloca)) for s in statements(block)):
        return False
    if isinstance(body, SimdValues) and not body.may_be_cut:
        return False
    _Cut(body, block).lower()
    return True


class _Cut:
    """The parts of one block, and the values that are live across their borders."""

    def __init__(self, body: FunctionLowering, block: Block) -> None:
        self.body = body
        self.block = block
        self.parts = list(_parts(body, block))
        # A frame has a place per value, not per lane: lanes that run together share it, one vector
        # each.
        self.lanes = body.lanes if isinstance(body, SimdValues) else 1
        self.found = tuple(free_values(block))
        """The values live into the block, counted as defined in part -1."""
        self.made_in = dict.fromkeys(self.found, -1)
        self.last_use: dict[Value, int] = {}
        """The last part that uses a value, for the values that cross parts only."""
        self.places: dict[Value, int] = {}
        """Their offsets in the frame [byte]."""
        self.indices: dict[Value, Index] = {}
        """How divergent integers are stored: the base or the vector, each if there is one."""
        self.needs = [list(map(_needs, part)) for part in self.parts]
        # A value that is defined and used in one part only stays in registers: it has no last use
        # here.
        for k, part in enumerate(self.parts):
            for s, needs in zip(part, self.needs[k], strict=True):
                for v in needs:
                    if self.made_in[v] != k:
                        self.last_use[v] = k
                self.made_in.update(dict.fromkeys(outs(s), k))
        # A yielded value is used after the last part, so its place is never reused.
        for v in block.yields:
            if self.made_in.get(v, -1) >= 0:
                self.last_use[v] = len(self.parts)

    def lower(self) -> None:
        """Emit the parts as functions, and calls of them in place of the block."""
        body, module = self.body, self.body.module
        frame_mem = Mem("frame", u8, 1, None, "scratch")
        # `scratch` multiplies by the lanes that run together; the frame is one for all of them.
        count = Const(i64, -(-self.layout() // self.lanes))
        ticket = module.target.scratch(body, Alloca(frame_mem, count, self.block.stmts[0].span))
        frame = body.pointers[frame_mem]
        live_ins = self.live_ins()
        body.int64_names.append({})  # widened indices are valid in this block only, as in any other
        for v in self.found:
            if v in self.last_use:
                self.store_for_later(body, v, frame)
        for k, part in enumerate(self.parts):
            name = f"@part{module.parts}"
            module.parts += 1
            # noinline: inlining would rebuild the long function.
            params = ", ".join(["ptr %params", "i64 %worker", "ptr %frame", *live_ins])
            lines, counts = self.part(k, part)
            module.text += [f"define internal void {name}({params}) noinline #0 {{", "entry:"]
            module.text += [*lines, "}"]
            passed = ", ".join(["ptr %params", "i64 %worker", f"ptr {frame}", *live_ins])
            body.emit(f"call void {name}({passed})")
            # A part that returned early on a stop request has not stored its results.
            if counts:
                safepoints.return_if_stopped(body)
        for v in dict.fromkeys(self.block.yields):
            if self.made_in.get(v, -1) >= 0:
                self.reload(body, v, frame)
                body.names[v] = body.name(v)
        body.int64_names.pop()
        module.target.release(body, ticket)

    def live_ins(self) -> list[str]:
        """Return the registers that are passed to every part, as parameters of the same names."""
        body = self.body
        mems = {s.mem: None for s in statements(self.block) if isinstance(s, (Load, Store))}
        found = [body.pointers[m] for m in mems if m.kind == "scratch"]
        found += {c.base: None for c in body.private_copies.values()}
        found += dict.fromkeys(body.update_logs.values())
        # Pointers to scratch, copies and logs, and the active mask, do not change in the block:
        # they go as arguments, not by the frame.
        live_ins = [f"ptr {name}" for name in found]
        if isinstance(body, SimdValues):
            live_ins += [f"ptr {base}" for base in {c.base: None for c in body.packed.values()}]
        if isinstance(body, SimdValues) and body.mask:
            live_ins.append(f"{body.vector('i1')} {body.mask}")
        return live_ins

    def part(self, k: int, stmts: Sequence[Stmt]) -> tuple[list[str], bool]:
        """Lower part k; return its text, and whether it may return early on a stop request."""
        body, lines = self.body, list[str]()
        part = FunctionLowering(body.module, lines)
        if isinstance(body, SimdValues):
            part = body.new_function(lines)
        part.count = body.count  # no register of the part is named as one that it is called with
        part.single_threaded = body.single_threaded
        part.private_copies = body.private_copies
        part.update_logs = body.update_logs
        part.lengths = body.lengths
        part.has_safepoints = body.has_safepoints
        part.pointers.update((m, p) for m, p in body.pointers.items() if m.kind == "scratch")
        # Only the definitions of this part enter `made_by`: looking through a definition of another
        # part (index arithmetic, fused products) would name a register of that function.
        part.load_parameters([Block(stmts)])
        if isinstance(part, SimdValues):
            part.open_preamble()
            part.groups = self.groups_within(stmts)
        here: set[Value] = set()
        needs = dict(zip(stmts, self.needs[k], strict=True))
        for s in stmts:
            for v in chain.from_iterable(needs[x] for x in _made_with(part, s)):
                if v not in here and self.made_in[v] != k:
                    # At its first use in the part rather than at the entry, for short live ranges.
                    self.reload(part, v, "%frame")
                    here.add(v)
            part.stmt(s)
            for v in outs(s):
                if v in self.last_use:
                    self.store_for_later(part, v, "%frame")
        if isinstance(part, SimdValues):
            part.close_preamble()
        part.emit("ret void")
        return lines, safepoints.finish(part, 0)

    def groups_within(self, stmts: Sequence[Stmt]) -> dict[Access, Neighbours]:
        """Return the accesses that are made with others, where all of these are in one part."""
        body = self.body
        # Registers that hold tables are those of the function around the parts.
        if not isinstance(body, SimdValues) or body.looks_up:
            return {}
        found = set(statements(Block(stmts)))
        return {s: group for s, group in body.groups.items() if found.issuperset(group.accesses)}

    # ---- the frame

    def layout(self) -> int:
        """Assign each crossing value its place in the frame; return the frame's size [byte].

        A linear scan over the parts with a free list for each size, as in linear-scan register allocation
        (Poletto and Sarkar, 1999): without reuse the frame would grow with the length of the block.
        """
        size, free = 0, dict[int, list[int]]()
        last_uses: dict[int, list[Value]] = {}
        for v, last in self.last_use.items():
            last_uses.setdefault(last, []).append(v)
        done = 0
        for v, k in self.made_in.items():
            if v not in self.last_use:
                continue
            # Strictly earlier: within one part a value may be stored before another one is reloaded
            # for the last time.
            while done < k:
                for old in last_uses.get(done, ()):
                    free.setdefault(self.frame_bytes(old), []).append(self.places[old])
                done += 1
            wanted = self.frame_bytes(v)
            # Places are reused among values of one size: no fragmentation, and alignment is kept.
            if free.get(wanted):
                self.places[v] = free[wanted].pop()
            else:
                self.places[v] = size
                size += wanted
        return size

    def frame_bytes(self, v: Value) -> int:
        """Return the bytes of a value's place: a word, or whole cache lines for vectors."""
        t = v.type.scalar
        if not self.varies(v):
            return 8
        # Room for the base and the vector of an `Index`, whichever of them it has.
        bytes_ = 8 * (self.lanes + 1) if v.type.is_int else t.bytes * self.lanes
        return (bytes_ + 63) // 64 * 64

    def varies(self, v: Value) -> bool:
        return isinstance(self.body, SimdValues) and v in self.body.divergent

    def store_value(self, part: FunctionLowering, frame: str, place: int, t: str, v: str) -> None:
        at = part.assign(f"getelementptr i8, ptr {frame}, i64 {place}")
        part.emit(f"store {t} {v}, ptr {at}, align 8{part.module.alias('scratch')}")

    def load_value(self, part: FunctionLowering, frame: str, place: int, t: str) -> str:
        at = part.assign(f"getelementptr i8, ptr {frame}, i64 {place}")
        return part.assign(f"load {t}, ptr {at}, align 8{part.module.alias('scratch')}")

    def store_for_later(self, part: FunctionLowering, v: Value, frame: str) -> None:
        """Store a value into the frame."""
        place = self.places[v]
        if not v.type.is_int:
            self.store_value(part, frame, place, part.type_of(v), part.name(v))
        elif isinstance(part, SimdValues) and v in part.divergent:
            at = self.indices[v] = part.index(v)
            # A constant base needs no place: it is the same text in every part.
            if at.base.startswith("%"):
                self.store_value(part, frame, place, "i64", at.base)
            if at.vector:
                self.store_value(part, frame, place + 8, part.vector("i64"), at.vector)
        else:
            self.store_value(part, frame, place, "i64", part.index64(v))

    def reload(self, part: FunctionLowering, v: Value, frame: str) -> None:
        """Load a value that an earlier part (or the code around the block) stored."""
        place = self.places[v]
        if not v.type.is_int:
            part.names[v] = self.load_value(part, frame, place, part.type_of(v))
        elif isinstance(part, SimdValues) and v in part.divergent:
            at = self.indices[v]
            base = (
                self.load_value(part, frame, place, "i64") if at.base.startswith("%") else at.base
            )
            vector = (
                self.load_value(part, frame, place + 8, part.vector("i64")) if at.vector else ""
            )
            part.indices[-1][v] = Index(base, at.step, vector)
        else:
            # Both forms where they are the same: a 64-bit integer is its own index.
            part.int64_names[-1][v] = self.load_value(part, frame, place, "i64")
            if v.type.scalar.bits == 64:
                part.names[v] = part.int64_names[-1][v]


def _made_with(part: FunctionLowering, s: Stmt) -> Sequence[Stmt]:
    """Return the accesses that are made together with a statement, itself among them."""
    if not isinstance(part, SimdValues) or not isinstance(s, (Load, Store, Atomic)):
        return (s,)
    group = part.groups.get(s)
    return group.accesses if group else (s,)


def _parts(body: FunctionLowering, block: Block) -> Iterator[Sequence[Stmt]]:
    """Yield the statements of a block in parts."""
    begin, length = 0, 0.0
    for k, s in enumerate(block.stmts):
        own = _length(body, s)
        if length + own > _PART and k > begin:
            yield block.stmts[begin:k]
            begin, length = k, 0
        length += own
    yield block.stmts[begin:]


def _length(body: FunctionLowering, s: Stmt) -> float:
    """Return how many statements one counts as: itself, and what is in it, if it is a branch.

    What loops hold does not count: their bodies are cut by themselves.
    """
    inside = _inside(body, s)
    if isinstance(body, SimdValues):
        return 1 + inside * min(1, 32 * body.lanes / body.jit.vector_bits / _REGISTERS)
    return 1 + inside


def _inside(body: FunctionLowering, s: Stmt) -> int:
    """Return the statements of both sides of a branch, and what it takes that lanes take them apart."""
    if not isinstance(s, If):
        return 0
    if s not in body.lengths:  # branches within branches would count the innermost once for each
        length = sum(1 + _inside(body, x) for side in blocks(s) for x in side.stmts)
        apart = isinstance(body, SimdValues) and s.cond in body.divergent
        body.lengths[s] = length + 2 * _SIDE if apart else length
    return body.lengths[s]


def _needs(s: Stmt) -> Iterable[Value]:
    """Return the values that a statement reads, nested blocks included, without constants and arguments."""
    if blocks(s):
        return free_values(Block((s,)))
    return [v for v in uses(s) if not isinstance(v, LEAVES)]
