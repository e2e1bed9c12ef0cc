"""Vectors in LLVM text: what `simd.py` writes statements with.

A divergent value (one that differs between lanes) is named by a vector, a uniform one by a scalar, which
`splat` broadcasts where a vector is needed. Each access to memory is classified by its `Index`: a strided
span of neighbours, one element for all lanes, or anything else (gathers and scatters).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from diffsim.backends.llvm.lanes import identity
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module, memory_type, number
from diffsim.backends.llvm.private_copy import PrivateCopy
from diffsim.backends.llvm.target import LibraryFunction
from diffsim.backends.native.jit import Jit
from diffsim.backends.simd import libm, masked_accesses
from diffsim.ir.nodes import LEAVES, Const, Load, Mem, Task, Value
from diffsim.ir.schedules import Access, Neighbours
from diffsim.ir.types import ScalarType, i32

if TYPE_CHECKING:
    from diffsim.backends.simd import lane_loops, lane_offsets


class Index:
    """An index of all lanes, in 64 bits: base + step * lane + vector.

    `step` is a compile-time constant: it decides which instructions an access becomes. A step known at run
    time only is folded into `vector`; "" stands for a zero vector. `narrow`: the vector of 32 bits that
    `vector` was widened from; "": it was not.
    """

    __slots__ = ("base", "narrow", "step", "vector")

    def __init__(self, base: str = "0", step: int = 0, vector: str = "", narrow: str = "") -> None:
        self.base = base
        self.step = step
        self.vector = vector
        self.narrow = narrow


class SimdValues(FunctionLowering):
    """A body with vectors of `lanes` lanes: names, indices, memory, functions; no statements yet.

    `jit`: the compiler it is written for, which knows the vector registers and functions.
    """

    may_be_cut = True
    """Whether long blocks may become functions of their own."""

    def __init__(self, module: Module, lines: list[str], task: Task, lanes: int, jit: Jit) -> None:
        super().__init__(module, lines)
        self.lanes = lanes
        self.jit = jit
        self.task = task
        self.divergent = task.simd or frozenset()
        self.packed: dict[Load, PrivateCopy] = {}
        """Loads from a copy of the memory, in another order."""
        self.groups: dict[Access, Neighbours] = {}
        """Accesses that each lane makes together with others."""
        self.places: dict[Neighbours, Index | None] = {}
        """Where the elements of such a group are, once its first access is reached; None: it is none here."""
        self.fewer_lanes = "", ""
        """In a last block of fewer lanes, which are its first ones: their mask and their number."""
        self.looks_up = False
        """Whether all such accesses are lookups in tables that registers hold (`lookups.py`)."""
        self.tables: dict[Mem, list[list[str]]] = {}
        """The registers of each."""
        self.wanted: set[Value] = set()
        """Integers that are loaded as scalars too (`lane_offsets.py`)."""
        self.lane_names: dict[Value, tuple[list[str], tuple[Load, str, int, int]]] = {}
        self.mask = ""
        self.kept: frozenset[Mem] = frozenset()
        """Scratch whose elements must stay as they are where a lane is not at work."""
        self.loaded: list[dict[masked_accesses.Key, masked_accesses.Loaded]] = [{}]
        """For each block around: the neighbours in memory that it has loaded."""
        self.on_stack: list[dict[tuple[Value, str], lane_offsets.Stored]] = [{}]
        """For each block around: the indices that it has stored, and under which mask."""
        self.scatters: list[list[lane_loops.Scatter]] = []
        """For each block around, the additions that wait to be made by one loop over lanes."""
        self.indices: list[dict[Value, Index]] = [{}]
        self.emits_vectors = False
        """Whether the statement being lowered is written with vectors."""
        self.preamble: list[str] = []
        self.preamble_at = 0
        # Broadcasts of constants and parameters, shared by the whole function: they dominate it.
        self.splats: dict[tuple[str, str], str] = {}
        # Spills are short-lived, so a few arrays serve a whole function; one each would grow the
        # stack with the length of the body.
        self.free_arrays: dict[str, list[str]] = {}
        """Arrays on the stack that are free, by type."""

    def new_function(self, lines: list[str]) -> SimdValues:
        """Return a lowering of another function for the same lanes, under the same mask."""
        made = type(self)(self.module, lines, self.task, self.lanes, self.jit)
        made.mask, made.kept = self.mask, self.kept
        made.packed = self.packed
        made.looks_up = self.looks_up
        return made

    # ---- values

    def open_preamble(self) -> None:
        """Reserve a place after the loads of parameters, for what dominates the whole body.

        Constants broadcast once for the function, and arrays on the stack: an alloca in a loop would grow the
        stack in each iteration.
        """
        self.preamble_at = len(self.lines)
        # One line now, so that the indices of later insertions into `lines` stay valid.
        self.lines.append("")

    def close_preamble(self) -> None:
        self.lines[self.preamble_at] = "\n".join(self.preamble)

    def vector(self, t: str) -> str:
        return f"<{self.lanes} x {t}>"

    @contextmanager
    def vector_ops(self) -> Iterator[None]:
        before, self.emits_vectors = self.emits_vectors, True
        yield
        self.emits_vectors = before

    def llvm_type(self, t: ScalarType) -> str:
        return self.vector(t.llvm) if self.emits_vectors else t.llvm

    def suffix(self, t: ScalarType) -> str:
        plain = super().suffix(t)
        return f"v{self.lanes}{plain}" if self.emits_vectors else plain

    def type_of(self, v: Value) -> str:
        t = v.type.scalar.llvm
        return self.vector(t) if v in self.divergent else t

    def name(self, v: Value) -> str:
        if v in self.divergent:
            # Most indices are used as addresses only, and never become a vector.
            return self.names.get(v) or self._lane_vector(v)
        plain = super().name(v)
        if not self.emits_vectors:
            return plain
        # Only leaves dominate the entry; another uniform value is broadcast where it is used.
        return self.splat(v.type.scalar.llvm, plain, hoist=isinstance(v, LEAVES))

    def name_for(self, like: Value, v: Value) -> str:
        if like not in self.divergent:
            return self.name(v)
        with self.vector_ops():
            return self.name(v)

    def splat(self, t: str, v: str, *, hoist: bool = False) -> str:
        """Broadcast a scalar to all lanes; `hoist`: it dominates the body, so once per function will do."""
        if not hoist:
            one = self.assign(f"insertelement {self.vector(t)} poison, {t} {v}, i64 0")
            return self.assign(self._spread(t, one))
        found = self.splats.get((t, v))
        if found is None:
            one, found = self.fresh(), self.fresh()
            self.preamble.append(f"  {one} = insertelement {self.vector(t)} poison, {t} {v}, i64 0")
            self.preamble.append(f"  {found} = {self._spread(t, one)}")
            self.splats[t, v] = found
        return found

    def _spread(self, t: str, one: str) -> str:
        kind = self.vector(t)
        return f"shufflevector {kind} {one}, {kind} poison, {self.vector('i32')} zeroinitializer"

    def iota(self, t: str) -> str:
        return "<" + ", ".join(f"{t} {k}" for k in range(self.lanes)) + ">"

    def active_mask(self) -> str:
        return self.mask or self.splat("i1", "true", hoist=True)

    def _lane_vector(self, v: Value) -> str:
        """Materialize the vector of a value that so far is an `Index` only.

        In the value's own width: two's complement addition is exact modulo 2^bits, so base and steps may be
        truncated first.
        """
        place = self.index(v)
        t = v.type.scalar.llvm
        if place.vector or t == "i64":
            full = self.as_vector(place)
            return (
                full
                if t == "i64"
                else self.assign(f"trunc {self.vector('i64')} {full} to {self.vector(t)}")
            )
        base = place.base
        if not base.lstrip("-").isdigit():
            base = self.assign(f"trunc i64 {base} to {t}")
        steps = "<" + ", ".join(f"{t} {k * place.step}" for k in range(self.lanes)) + ">"
        return self.assign(f"add {self.vector(t)} {self.splat(t, base)}, {steps}")

    # ---- indices

    def index64(self, v: Value) -> str:
        # A uniform index is a scalar also while a statement is lowered with vectors.
        before, self.emits_vectors = self.emits_vectors, False
        found = super().index64(v)
        self.emits_vectors = before
        return found

    def index(self, v: Value) -> Index:
        """Return the index of all lanes; its additions and multiplications are carried out in 64 bits.

        So `i + 1` keeps its step and stays a contiguous access, where the vector alone would need a gather.
        """
        if v not in self.divergent:
            return Index(self.index64(v))
        # Scoped like `int64_names`: an index emitted in a branch or loop does not dominate what
        # follows it.
        for scope in reversed(self.indices):
            if v in scope:
                return scope[v]
        made = self._index(v)
        self.indices[-1][v] = made
        return made

    def _index(self, v: Value) -> Index:
        t, let = v.type.scalar, self.made_by.get(v)
        if let is not None and t.kind == "i":
            if let.op.name in ("add", "sub"):
                a, b = (self.index(x) for x in let.args)
                # Linear forms are closed under addition, subtraction and uniform factors; anything
                # else falls through to a vector.
                return self.plus(a, b if let.op.name == "add" else self.times(b, "-1"))
            if let.op.name == "min":
                a, b = (self.index(x) for x in let.args)
                if not (a.step or a.vector or b.step or b.vector):
                    name = "@llvm.smin.i64"
                    self.module.declare(name, f"declare i64 {name}(i64, i64)")
                    return Index(self.assign(f"call i64 {name}(i64 {a.base}, i64 {b.base})"))
            if let.op.name == "mul":
                x, y = let.args
                # Only a uniform factor keeps the form base + step * lane; products of two divergent
                # values are vectors.
                if x not in self.divergent:
                    x, y = y, x
                if y not in self.divergent:
                    return self.times(self.index(x), self.index64(y))
        if let is not None and let.op.name == "cast":
            have = let.args[0].type.scalar
            # Widening of the same signedness does not change the number.
            if have.is_int and have.kind == t.kind and have.bits <= t.bits:
                return self.index(let.args[0])
        full, narrow = self.names[v], ""
        if t.bits < 64:
            narrow = full if t is i32 else ""
            # No definition to look into: the vector itself, widened.
            word = "sext" if t.kind == "i" else "zext"
            full = self.assign(f"{word} {self.vector(t.llvm)} {full} to {self.vector('i64')}")
        return Index(vector=full, narrow=narrow)

    def plus(self, a: Index, b: Index) -> Index:
        # Text is folded where it is free: LLVM would do it later, but for thousands of lines.
        if a.base == "0" or b.base == "0":
            base = b.base if a.base == "0" else a.base
        else:
            base = self.assign(f"add nsw i64 {a.base}, {b.base}")
        vector = a.vector or b.vector
        if a.vector and b.vector:
            vector = self.assign(f"add nsw {self.vector('i64')} {a.vector}, {b.vector}")
        narrow = "" if a.vector and b.vector else a.narrow or b.narrow
        return Index(base, a.step + b.step, vector, narrow)

    def times(self, a: Index, factor: str) -> Index:
        """Return an index times a scalar (a number or a register)."""
        if factor == "1":
            return a
        known = factor.lstrip("-").isdigit()
        if a.step and not known:
            # A factor known at run time only: the product has no constant step.
            a = Index(vector=self.as_vector(a))
        base, vector = a.base, a.vector
        if base != "0":
            base = self.assign(f"mul nsw i64 {base}, {factor}")
        if vector:
            many = self.splat("i64", factor, hoist=known)
            vector = self.assign(f"mul nsw {self.vector('i64')} {vector}, {many}")
        return Index(base, a.step * int(factor) if known else 0, vector)

    def as_vector(self, a: Index) -> str:
        """Emit an index as one vector."""
        full = a.vector
        if a.step:
            steps = "<" + ", ".join(f"i64 {k * a.step}" for k in range(self.lanes)) + ">"
            full = self.assign(f"add nsw {self.vector('i64')} {full}, {steps}") if full else steps
        if a.base != "0" or not full:
            base = self.splat("i64", a.base)
            full = self.assign(f"add nsw {self.vector('i64')} {full}, {base}") if full else base
        return full

    def index_of(self, mem: Mem, index: Sequence[Value], copy: PrivateCopy | None = None) -> Index:
        """Return the lanes' addresses: `base` becomes a pointer, step and vector count scalars."""
        # Temporaries are scalars in the parameter block, the same for all lanes.
        if mem.kind == "temp":
            return Index(self.address(mem, index))
        at = Index()
        # Sum of index times stride, in the same linear form: a unit stride survives along the last
        # axis, and a constant one elsewhere.
        for i, stride in self.terms(mem, index, copy):
            at = self.plus(at, self.times(self.index(i), stride))
        if mem.kind == "scratch":
            # Scratch is interleaved: element e of lane j lies at e * W + j, so an access with a
            # uniform index is contiguous.
            at = self.times(at, str(self.lanes))
            at.step += 1
        pointer = copy.base if copy else self.pointers[mem]
        if at.base != "0":
            t = memory_type(mem.dtype.scalar)
            # The first lane may be idle and have no element: no promise about its address.
            inside = "" if at.step or at.vector else "inbounds "
            pointer = self.assign(f"getelementptr {inside}{t}, ptr {pointer}, i64 {at.base}")
        return Index(pointer, at.step, at.vector, at.narrow)

    def pointers_of(self, mem: Mem, at: Index) -> str:
        offsets = self.as_vector(Index("0", at.step, at.vector))
        t = memory_type(mem.dtype.scalar)
        return self.assign(f"getelementptr {t}, ptr {at.base}, {self.vector('i64')} {offsets}")

    # ---- memory

    def load_lanes(self, mem: Mem, at: Index, *, may_load_all: bool = False) -> str:
        """Load a vector; `may_load_all`: idle lanes' elements exist, and loading them is cheaper."""
        t, alias = mem.dtype.scalar, self.module.alias(mem)
        m = memory_type(t)
        kind, mark = (
            self.vector(m),
            f"v{self.lanes}{'i8' if t.is_bool else FunctionLowering.suffix(self, t)}",
        )
        mask = self.vector("i1")
        if not at.step and not at.vector:
            # Code runs only if a lane is active, so the one address is valid.
            raw = self.splat(m, self.assign(f"load {m}, ptr {at.base}{alias}"))
        elif at.step == 1 and not at.vector:
            # Scratch has room for every lane, also idle ones: a plain access is safe there, and
            # cheaper.
            if mem.kind == "scratch" or not self.mask:
                # Aligned to a scalar only: a block begins wherever the box does.
                raw = self.assign(f"load {kind}, ptr {at.base}, align {t.bytes}{alias}")
            elif may_load_all:
                raw = self.assign(f"load {kind}, ptr {at.base}, align {t.bytes}{alias}")
                raw = self.assign(
                    f"select {mask} {self.mask}, {kind} {raw}, {kind} zeroinitializer"
                )
            else:
                name = f"@llvm.masked.load.{mark}.p0"
                self.module.declare(name, f"declare {kind} {name}(ptr, i32, {mask}, {kind})")
                raw = self.assign(
                    f"call {kind} {name}(ptr {at.base}, i32 {t.bytes}, {mask} {self.mask}, "
                    f"{kind} zeroinitializer){alias}"
                )
        else:
            raw = masked_accesses.gather(self, mem, at)
        # Booleans are bytes in memory and i1 in registers.
        return self.assign(f"trunc {kind} {raw} to {mask}") if t.is_bool else raw

    def store_lanes(self, mem: Mem, at: Index, v: str, accessed: str | None = None) -> None:
        """Store a vector; where lanes write to one element, the highest lane wins.

        This is how `llvm.masked.scatter` orders overlapping addresses (LLVM LangRef), and a serial loop.
        `accessed`: see `masked_accesses.store`.
        """
        t, alias = mem.dtype.scalar, self.module.alias(mem)
        m = memory_type(t)
        kind, mark = (
            self.vector(m),
            f"v{self.lanes}{'i8' if t.is_bool else FunctionLowering.suffix(self, t)}",
        )
        mask = self.vector("i1")
        if t.is_bool:
            v = self.assign(f"zext {mask} {v} to {kind}")
        if at.step == 1 and not at.vector:
            if mem in self.kept and self.mask:
                masked_accesses.store(self, mem, kind, v, at.base, "")
                return
            if mem.kind == "scratch" or not self.mask:
                self.emit(f"store {kind} {v}, ptr {at.base}, align {t.bytes}{alias}")
                return
            masked_accesses.store(self, mem, kind, v, at.base, accessed)
            return
        pointers, many = self.pointers_of(mem, at), self.vector("ptr")
        name = f"@llvm.masked.scatter.{mark}.v{self.lanes}p0"
        self.module.declare(name, f"declare void {name}({kind}, {many}, i32, {mask})")
        self.emit(
            f"call void {name}({kind} {v}, {many} {pointers}, i32 {t.bytes}, "
            f"{mask} {self.active_mask()}){alias}"
        )

    def spill(self, t: str, v: str) -> str:
        """Spill a vector to an array on the stack, to read single lanes; `free_array` reuses the array."""
        # Through memory, as extractelement with a run-time lane becomes the same store and load,
        # once for each lane.
        arrays = self.free_arrays.setdefault(t, [])
        if arrays:
            array = arrays.pop()
        else:
            array = self.fresh()
            self.preamble.append(f"  {array} = alloca [{self.lanes} x {t}], align 64")
        self.emit(f"store {self.vector(t)} {v}, ptr {array}, align 64")
        return array

    def free_array(self, t: str, array: str) -> None:
        self.free_arrays[t].append(array)

    def load_lane(self, array: str, t: str, lane: str) -> str:
        """Load one lane of a vector that was spilled."""
        at = self.assign(f"getelementptr {t}, ptr {array}, i64 {lane}")
        return self.assign(f"load {t}, ptr {at}")

    def each_lane(self, emit: Callable[[str], None], *, may_be_idle: bool = False) -> None:
        """Emit a loop over the active lanes, lowest first: count trailing zeros, then clear the lowest bit.

        The loop tests at its end, and cttz may treat 0 as poison: at least one lane is active, or
        `may_be_idle`, as in a branch that is cheap enough to run without a test.
        """
        word = f"i{self.lanes}"
        bits = "-1"
        if self.mask:
            # A mask as an integer, one bit per lane: idle lanes cost nothing.
            bits = self.assign(f"bitcast {self.vector('i1')} {self.mask} to {word}")
        cttz = f"@llvm.cttz.{word}"
        self.module.declare(cttz, f"declare {word} {cttz}({word}, i1)")
        before = self.label
        head, after = self.new_label("lane"), self.new_label("lanes")
        if self.mask and may_be_idle:
            none = self.assign(f"icmp eq {word} {bits}, 0")
            self.emit(f"br i1 {none}, label %{after}, label %{head}")
        else:
            self.jump(head)
        self.start_block(head)
        left, rest = self.fresh(), self.fresh()
        at = len(self.lines)
        first = self.assign(f"call {word} {cttz}({word} {left}, i1 true)")
        wider = "zext" if self.lanes < 64 else "bitcast"
        emit(self.assign(f"{wider} {word} {first} to i64"))
        below = self.assign(f"sub {word} {left}, 1")
        self.emit(f"{rest} = and {word} {left}, {below}")
        done = self.assign(f"icmp eq {word} {rest}, 0")
        self.lines.insert(
            at, f"  {left} = phi {word} [ {bits}, %{before} ], [ {rest}, %{self.label} ]"
        )
        self.emit(f"br i1 {done}, label %{after}, label %{head}")
        self.start_block(after)

    def sum_of_lanes(self, t: ScalarType, v: str) -> str:
        """Emit the sum over the active lanes."""
        return self.reduce("add", t, self.at_work(t, v))

    def at_work(self, t: ScalarType, v: str) -> str:
        """Emit a vector with 0 in place of the inactive lanes."""
        if not self.mask:
            return v
        kind = self.vector(t.llvm)
        nothing = self.splat(t.llvm, identity("add", t), hoist=True)
        return self.assign(f"select {self.vector('i1')} {self.mask}, {kind} {v}, {kind} {nothing}")

    def folded(self, t: ScalarType, v: Value, width: int, total: str) -> str:
        """Emit `total`, a vector of `width` lanes, plus the active lanes of a value, folded in halves.

        A tree: first sums of whole registers, then of halves down to `width`, where `total` is added.
        """
        # At most one register at a time, so that every addition is one instruction.
        most = max(width, min(self.lanes, self.jit.vector_bits // t.bits))
        sum_ = total if most == width else ""
        for first in range(0, self.lanes, most):
            sum_ = self.plus_lanes(t, sum_, v, first, most)
        while most > width:
            most //= 2
            low, high = (self.lanes_of(t, sum_, 2 * most, first, most) for first in (0, most))
            sum_ = self.sum_of_two(t, most, low, high)
            if most == width:
                sum_ = self.sum_of_two(t, most, total, sum_)
        return sum_

    def plus_lanes(self, t: ScalarType, total: str, v: Value, first: int, count: int) -> str:
        """Emit `total` ("": none) plus `count` lanes of a value, the active ones."""

        def part(name: str) -> str:
            return self.lanes_of(t, name, self.lanes, first, count)

        # Under a mask the factors of inactive lanes may be infinite, and 0 * inf would be NaN: only
        # the product can be masked.
        product = None if self.mask or not total else self.product(v)
        if product is None:
            with self.vector_ops():
                extra = part(self.at_work(t, self.name(v)))
            return self.sum_of_two(t, count, total, extra) if total else extra
        x, y = (part(factor) for factor in product)
        return self.multiply_add(t, count, x, y, total)

    def multiply_add(self, t: ScalarType, lanes: int, x: str, y: str, total: str) -> str:
        """Emit total + x * y, one instruction where the CPU has one."""
        kind, flags = f"<{lanes} x {t.llvm}>", self.module.flags
        name = f"@llvm.fmuladd.v{lanes}f{t.bits}"
        self.module.declare(name, f"declare {kind} {name}({kind}, {kind}, {kind})")
        return self.assign(f"call {flags} {kind} {name}({kind} {x}, {kind} {y}, {kind} {total})")

    def product(self, v: Value) -> tuple[str, str] | None:
        """Return the factors of a value, as vectors, if it is a product, twice one (2 x dx), or minus that.

        A sum then fuses with it even if other sums use it too. LLVM contracts only products with one use,
        and would multiply, negate and add one after the other.
        """
        minus, made_by = False, self.made_by
        let = made_by.get(v)
        while let is not None and let.op.name == "neg":
            minus, let = not minus, made_by.get(let.args[0])
        # Fusing rounds once instead of twice: allowed only where the module permits contraction.
        if let is None or not v.type.is_float or "contract" not in self.module.flags:
            return None
        twice = False
        if let.op.name == "add":
            let, other = (made_by.get(x) for x in let.args)
            twice = let is not None and other is not None and let.args == other.args
            if not twice or other.op.name != "mul":  # type: ignore[union-attr]
                return None
        if let is None or let.op.name != "mul":
            return None
        with self.vector_ops():
            x, y = (self.name(a) for a in let.args)
            t = v.type.scalar
            if twice:
                # 2 x dx = (x + x) dx exactly: doubling does not round.
                x = self.sum_of_two(t, self.lanes, x, x)
            if minus:
                x = self.assign(f"fneg {self.module.flags} {self.vector(t.llvm)} {x}")
        return x, y

    def sum_of_two(self, t: ScalarType, lanes: int, a: str, b: str) -> str:
        word = f"fadd {self.module.flags}" if t.is_float else "add"
        return self.assign(f"{word} <{lanes} x {t.llvm}> {a}, {b}")

    def lanes_of(self, t: ScalarType, v: str, lanes: int, first: int, count: int) -> str:
        """Extract `count` lanes of a vector from `first` on."""
        if count == lanes:
            return v
        kind, picks = f"<{lanes} x {t.llvm}>", ", ".join(f"i32 {first + k}" for k in range(count))
        return self.assign(f"shufflevector {kind} {v}, {kind} poison, <{count} x i32> <{picks}>")

    @contextmanager
    def restricted_to(self, first: int, count: int) -> Iterator[None]:
        """Restrict the mask to `count` lanes from `first` on within a block."""
        before = self.mask
        if count < self.lanes:
            bits = ", ".join(f"i1 {int(first <= k < first + count)}" for k in range(self.lanes))
            self.mask = (
                self.assign(f"and {self.vector('i1')} {before}, <{bits}>")
                if before
                else f"<{bits}>"
            )
        yield
        self.mask = before

    def reduce(self, op: str, t: ScalarType, v: str) -> str:
        """Emit the combination of all lanes of a vector."""
        kind, mark = self.vector(t.llvm), f"v{self.lanes}{FunctionLowering.suffix(self, t)}"
        if op == "add" and t.is_float:
            name = f"@llvm.vector.reduce.fadd.{mark}"
            self.module.declare(name, f"declare {t.llvm} {name}({t.llvm}, {kind})")
            # The neutral element of IEEE 754 addition; `reassoc` permits a tree instead of W - 1
            # dependent additions.
            zero = number(Const(t, -0.0))
            return self.assign(f"call reassoc {t.llvm} {name}({t.llvm} {zero}, {kind} {v})")
        # The names of reductions differ by kind: fmin, umin, smin.
        word = {"f": f"f{op}", "u": f"u{op}", "i": f"s{op}"}[t.kind] if op in ("min", "max") else op
        name = f"@llvm.vector.reduce.{word}.{mark}"
        self.module.declare(name, f"declare {t.llvm} {name}({kind})")
        return self.assign(f"call {t.llvm} {name}({kind} {v})")

    # ---- functions

    def call_function(self, function: LibraryFunction, t: ScalarType, args: list[str]) -> str:
        if not self.emits_vectors:
            return super().call_function(function, t, args)
        return libm.call_lanes(self, function, t, args)
