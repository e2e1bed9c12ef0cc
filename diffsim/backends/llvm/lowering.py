"""Scalar IR to LLVM text: the one lowering that the CPU and NVIDIA GPUs share.

`FunctionLowering` lowers one function: structured regions become basic blocks with phis; text is appended
to one list, because LLVM's parser reads it faster than any builder makes it. What the functions of a kernel
share, and what differs between targets, is in `module.py`; `backends/cpu/codegen.py` and
`backends/cuda/codegen.py` write the entry points.

Addresses are computed in 64 bits from the start: an index `i + 1` of type i32 becomes a 64-bit addition,
so nothing overflows on large fields, and LLVM sees affine addresses it can vectorize. Every field and
array has an alias scope of its own, since no two of them overlap where one is written.

Read first: `stmt`, then `op`, `address` and `block`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from diffsim.backends.llvm import atomics, conversions, diagnostics, loops, update_log, user_llvm
from diffsim.backends.llvm.module import Module, memory_type, number
from diffsim.backends.llvm.private_copy import PrivateCopy
from diffsim.backends.llvm.target import LibraryFunction, implementation
from diffsim.errors import BackendError, InternalError
from diffsim.ir.layout import block_spacing, packed_strides, strides_of
from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    Dim,
    For,
    If,
    InlineLLVM,
    Let,
    Load,
    Mem,
    Print,
    RngKey,
    Stmt,
    Store,
    Value,
    While,
    zero,
)
from diffsim.ir.op import Instr, LLVMIntrinsic
from diffsim.ir.traversal import blocks, uses
from diffsim.ir.types import ScalarType, size_of


class FunctionLowering:
    """Lowers blocks into one function.

    `names` holds the register of a value in its own type, `int64_names` its form as a 64-bit index; the
    latter is a stack of scopes, as an index computed in a branch or a loop does not dominate what follows.
    """

    def __init__(self, module: Module, lines: list[str]) -> None:
        self.module = module
        self.lines = lines
        self.names: dict[Value, str] = {}
        self.made_by: dict[Value, Let] = {}
        self.pointers: dict[Mem, str] = {}
        self.int64_names: list[dict[Value, str]] = [{}]
        self.strides: dict[Mem, list[str]] = {}
        self.count = 0
        self.label = "entry"
        self.exit_branch = "ret void"
        self.scope = ""
        """Synchronization scope of atomics, as LLVM text; "": all threads of the system."""
        self.has_safepoints = False
        """Whether long loops have safepoints (`safepoints.py`)."""
        self.counts_work = False
        """Whether a safepoint was emitted."""
        self.cuts: set[Stmt] = set()
        """Statements before which a long block is cut (`long_blocks.py`)."""
        self.has_cuts = False
        """Whether a block was cut."""
        self.single_threaded = False
        """Whether no other thread runs lanes of this task: atomics are plain updates."""
        self.private_copies: dict[Atomic, PrivateCopy] = {}
        """Atomics that go to a private copy."""
        self.update_logs: dict[Stmt, str] = {}
        """Updates that are logged, to be applied later, and the chunk's logs of their memory."""
        self.lengths: dict[Stmt, int] = {}
        """The statements in branches, as far as a long block has counted them (`outline.py`)."""

    # ---- text

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def new_label(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def emit(self, text: str) -> None:
        self.lines.append("  " + text)

    def assign(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    # ---- values

    def slot_address(self, k: int) -> str:
        """Emit the address of a slot of the parameter block."""
        return self.offset("%params", k)

    def task_slot_address(self, k: int) -> str:
        """Emit the address of a slot that the tasks of a launch write."""
        return self.slot_address(k)

    def load_slot(self, k: int, t: str) -> str:
        """Load an input of the launch, which no code writes: LLVM may hoist and merge the load."""
        return self.assign(f"load {t}, ptr {self.slot_address(k)}, !invariant.load !1")

    def load_task_slot(self, k: int, t: str, *, constant: bool = True) -> str:
        """Load a slot that a task has written (`constant`: an earlier task, so it is invariant here)."""
        extra = ", !invariant.load !1" if constant else self.module.alias("block")
        return self.assign(f"load {t}, ptr {self.task_slot_address(k)}{extra}")

    def store_task_slot(self, k: int, t: str, v: str) -> None:
        self.emit(f"store {t} {v}, ptr {self.task_slot_address(k)}{self.module.alias('block')}")

    def offset(self, base: str, k: int | str) -> str:
        """Emit the address of word k after a base."""
        return self.assign(f"getelementptr i64, ptr {base}, i64 {k}")

    def element(self, base: str, t: str, i: str) -> str:
        """Emit the address of scalar i after a base."""
        return self.assign(f"getelementptr inbounds {t}, ptr {base}, i64 {i}")

    def base(self, k: int, mem: Mem | None = None) -> str:
        """Load an address from a slot: that of a memory, or of a buffer of the launch."""
        return self.load_slot(k, "ptr")

    def load_parameters(self, code: Iterable[Block], extra: Iterable[Mem] = ()) -> None:
        """Load the pointers, dimensions and arguments that a function uses, at its entry.

        There they dominate every use; loading them where they are used first would need a dominance analysis.
        """
        mems: dict[Mem, None] = dict.fromkeys(extra)
        leaves: dict[Value, None] = {}
        for block in code:
            self._collect(block, mems, leaves)
        layout = self.module.layout
        for mem in mems:
            if mem in layout.pointers:
                self.pointers[mem] = self.base(layout.pointers[mem], mem)
                if mem.shape is None:  # an argument's; strides of fields are constants
                    self.strides[mem] = self._array_strides(mem)
            elif mem.kind == "table":
                self.pointers[mem] = self.module.table(mem)
        for leaf in leaves:
            self._leaf(leaf)

    def _collect(self, block: Block, mems: dict[Mem, None], leaves: dict[Value, None]) -> None:
        stack: list[Block] = [block]
        while stack:
            b = stack.pop()
            for v in b.yields:
                if isinstance(v, LEAVES):
                    leaves[v] = None
            for s in b.stmts:
                if isinstance(s, (Load, Store, Atomic)):
                    mems[s.mem] = None
                if isinstance(s, Let):
                    self.made_by[s.out] = s
                for v in uses(s):
                    if isinstance(v, LEAVES):
                        leaves[v] = None
                stack.extend(blocks(s))

    def _leaf(self, v: Value) -> None:
        layout = self.module.layout
        if isinstance(v, Arg):
            t = v.type.scalar
            raw = self.load_slot(layout.args[v], memory_type(t))
            self.names[v] = self.assign(f"trunc i8 {raw} to i1") if t.is_bool else raw
        elif isinstance(v, Dim):
            raw = self.load_slot(layout.dims[v.mem] + v.axis, "i64")
            # Dimensions are handed over in 64 bits and are i32 values in kernels.
            narrow = v.type.scalar.bits < 64
            self.names[v] = (
                self.assign(f"trunc i64 {raw} to {v.type.scalar.llvm}") if narrow else raw
            )
        elif isinstance(v, RngKey):
            self.names[v] = self.load_slot(2, "i64")

    def _array_strides(self, mem: Mem) -> list[str]:
        # One stride for all arrays of one shape.
        known = self.module.layout.dims
        first, element = known[mem.like if mem.like in known else mem], size_of(mem.dtype)
        dims = [self.load_slot(first + k, "i64") for k in range(mem.rank)]
        if not mem.in_blocks:
            return self._c_strides(dims, element)
        strides = self._c_strides(["", *dims[:-1]], element)  # what follows is `block_stride`
        page, apart = block_spacing(mem.dtype.scalar.bytes)
        pages = self.assign(f"add nsw i64 {strides[0]}, {page - 1}")
        spaced = self.assign(f"add nsw i64 {self.assign(f'and i64 {pages}, {-page}')}, {apart}")
        short = self.assign(f"icmp slt i64 {strides[0]}, {page}")
        return [*strides[1:], self.assign(f"select i1 {short}, i64 {strides[0]}, i64 {spaced}")]

    def _c_strides(self, dims: Sequence[str], element: int) -> list[str]:
        strides = [str(element)]
        for d in reversed(dims[1:]):
            strides.append(self.assign(f"mul nsw i64 {strides[-1]}, {d}"))
        return strides[::-1] if dims else []

    def name(self, v: Value) -> str:
        if isinstance(v, Const):
            return number(v)
        found = self.names.get(v)
        if found is None:
            # Axes and loop indices exist as 64-bit registers only; narrow ones are truncated where
            # they are used.
            wide = self.find_int64(v)
            assert wide is not None, f"{v.hint or v.type} has no name"
            found = self.assign(f"trunc i64 {wide} to {v.type.scalar.llvm}")
        return found

    def llvm_type(self, t: ScalarType) -> str:
        """Return the type of a scalar's register (a vector type in `simd_values.py`)."""
        return t.llvm

    def suffix(self, t: ScalarType) -> str:
        """Return the type suffix in the name of an overloaded intrinsic."""
        return f"f{t.bits}" if t.is_float else t.llvm

    def typed(self, v: Value) -> str:
        return f"{self.llvm_type(v.type.scalar)} {self.name(v)}"

    def type_of(self, v: Value) -> str:
        """Return the type of the register that holds a value."""
        return v.type.scalar.llvm

    def name_for(self, like: Value, v: Value) -> str:
        """Return the name of a value that becomes `like` (a parameter or result), in its form."""
        return self.name(v)

    def bind(self, v: Value) -> str:
        self.count += 1
        name = self.names[v] = f"%v{self.count}"
        return name

    def find_int64(self, v: Value) -> str | None:
        for scope in reversed(self.int64_names):
            if v in scope:
                return scope[v]
        return None

    def index64(self, v: Value) -> str:
        """Emit an index as i64, its additions and multiplications carried out in 64 bits.

        For indices only: where an i32 sum would wrap around, this is the exact index.
        """
        if isinstance(v, Const):
            return str(int(v.value))
        t = v.type.scalar
        found = self.find_int64(v)
        if found is not None:
            return found
        let = self.made_by.get(v)
        if t.bits == 64:
            return self.name(v)
        if let is not None and t.kind == "i" and let.op.name in ("add", "sub", "mul"):
            a, b = (self.index64(x) for x in let.args)
            made = self.assign(f"{let.op.name} nsw i64 {a}, {b}")
        elif (
            let is not None
            and let.op.name == "cast"
            and let.args[0].type.is_int
            and let.args[0].type.scalar.kind == t.kind
            and let.args[0].type.scalar.bits <= t.bits
        ):
            made = self.index64(let.args[0])
        else:
            word = "sext" if t.kind == "i" else "zext"
            made = self.assign(f"{word} {t.llvm} {self.name(v)} to i64")
        # In the innermost scope: the register was emitted here.
        self.int64_names[-1][v] = made
        return made

    def address(self, mem: Mem, index: Sequence[Value], copy: PrivateCopy | None = None) -> str:
        """Emit the address of one scalar, in the memory or in a private copy."""
        scalar = memory_type(mem.dtype.scalar)
        # Temporaries are slots of the parameter block, addressed by constants.
        if mem.kind == "temp":
            k = self._component(mem, index)
            return self.task_slot_address(self.module.layout.temps[mem] + k)
        # Constant parts of the offset are folded and added last, so that neighbours share all but
        # the displacement of an addressing mode.
        constant, terms = 0, []
        for i, stride in self.terms(mem, index, copy):
            at = self.index64(i)
            if isinstance(i, Const) and stride.isdigit():
                constant += int(at) * int(stride)
            else:
                terms.append(at if stride == "1" else self.assign(f"mul nsw i64 {at}, {stride}"))
        total = terms[0] if terms else str(constant)
        for term in terms[1:]:
            total = self.assign(f"add nsw i64 {total}, {term}")
        if terms and constant:
            total = self.assign(f"add nsw i64 {total}, {constant}")
        base = copy.base if copy else self.pointers[mem]
        if total == "0":
            return base
        return self.assign(f"getelementptr inbounds {scalar}, ptr {base}, i64 {total}")

    def terms(
        self, mem: Mem, index: Sequence[Value], copy: PrivateCopy | None
    ) -> list[tuple[Value, str]]:
        """Return each index that the address depends on, with its stride in scalars."""
        strides = copy.strides if copy else self.element_strides(mem)
        component = copy.component if copy else mem.component_stride
        skip = copy.prefix_length if copy else 0
        found = list(zip(index[skip : mem.rank], strides, strict=True))
        inner = packed_strides(mem.dtype.shape, component)
        found += [(i, str(n)) for i, n in zip(index[mem.rank :], inner, strict=False)]
        return found

    def element_strides(self, mem: Mem) -> list[str]:
        found = self.strides.get(mem)
        if found is None:
            found = self.strides[mem] = [str(s) for s in strides_of(mem)]
        return found

    def _component(self, mem: Mem, index: Sequence[Value]) -> int:
        k = 0
        for i, n in zip(index, mem.dtype.shape, strict=True):
            if not isinstance(i, Const):
                raise InternalError("a temporary is indexed with a run-time value", None)
            k = k * n + int(i.value)
        return k

    # ---- statements

    def block(self, block: Block) -> None:
        """Lower the statements of a block; scratch allocated in it is released at its end."""
        if self.module.target.in_parts(self, block):
            return
        tickets = []
        self.int64_names.append({})
        for s in block.stmts:
            if isinstance(s, Alloca):
                tickets.append(self.module.target.scratch(self, s))
            else:
                self.stmt(s)
        # Last in, first out, as the arena is a stack.
        for ticket in reversed(tickets):
            self.module.target.release(self, ticket)
        self.int64_names.pop()

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Let):
            self.names[s.out] = self.op(s)
        elif isinstance(s, Load):
            t = s.mem.dtype.scalar
            at = self.address(s.mem, s.index)
            raw = self.assign(f"load {memory_type(t)}, ptr {at}{self.load_metadata(s.mem)}")
            self.names[s.out] = self.assign(f"trunc i8 {raw} to i1") if t.is_bool else raw
        elif isinstance(s, Store):
            at, v = self.address(s.mem, s.index), self.name(s.value)
            # Under `deterministic=True` a store that may meet another one is ordered like an
            # update.
            if s in self.update_logs:
                update_log.log_update(self, s, at, v)
            else:
                self.store(s.mem, at, v)
        elif isinstance(s, Atomic):
            self.atomic(s)
        elif isinstance(s, For):
            self.loop(s)
        elif isinstance(s, While):
            self.while_loop(s)
        elif isinstance(s, If):
            self.lower_if(s)
        elif isinstance(s, InlineLLVM):
            user_llvm.call(self, s)
        elif isinstance(s, Print):
            diagnostics.lower_print(self, s)
        else:
            assert isinstance(s, Check)
            word = diagnostics.bits if s.pieces else FunctionLowering.index_or_bits
            diagnostics.lower_check(self, s, self.name(s.cond), [word(self, v) for v in s.values])

    def load_metadata(self, mem: Mem) -> str:
        return self.module.alias(mem)

    def store(self, mem: Mem, at: str, v: str) -> None:
        t = mem.dtype.scalar
        if t.is_bool:
            v = self.assign(f"zext i1 {v} to i8")
        self.emit(f"store {memory_type(t)} {v}, ptr {at}{self.module.alias(mem)}")

    def index_or_bits(self, v: Value) -> str:
        return self.index64(v) if v.type.is_int else "0"

    def op(self, s: Let) -> str:
        op, args, t = s.op, s.args, s.out.type.scalar
        how = implementation(self.module.target.functions, op.lowering)
        # The last operand, as the first of a select or the result of a comparison has another type.
        kind_type = args[-1].type.scalar
        kind, out = self.llvm_type(kind_type), self.llvm_type(t)
        if isinstance(how, Instr):
            word = how.of(kind_type.kind)
            if word is not None:
                flags = f" {self.module.flags}" if word[0] == "f" else ""
                operands = ", ".join(self.name(a) for a in args)
                # A comparison has its flags between opcode and predicate, and its operands have
                # another type than its result.
                head, _, predicate = word.partition(" ")
                if head in ("fcmp", "icmp"):
                    # contract has no meaning for comparisons.
                    fast = " " + self.module.flags.replace("contract", "").strip()
                    flags = fast.rstrip() if head == "fcmp" else ""
                    return self.assign(f"{head}{flags} {predicate} {kind} {operands}")
                return self.assign(f"{word}{flags} {kind} {operands}")
        elif isinstance(how, LLVMIntrinsic):
            word = how.of(kind_type.kind)
            if word is not None:
                symbol = f"@llvm.{word}.{self.suffix(t)}"
                types = ", ".join(out for _ in args)
                self.module.declare(symbol, f"declare {out} {symbol}({types})")
                flags = f"{self.module.flags} " if t.is_float else ""
                operands = ", ".join(self.typed(a) for a in args)
                return self.assign(f"call {flags}{out} {symbol}({operands})")
        elif isinstance(how, LibraryFunction):
            return self.call_function(how, t, [self.name(a) for a in args])
        elif op.name == "cast":
            return self.cast(args[0], t)
        elif op.name in ("float_bits", "float_of_bits"):
            return self.assign(f"bitcast {self.typed(args[0])} to {out}")
        elif op.name == "neg":
            if t.is_float:
                return self.assign(f"fneg {self.module.flags} {self.typed(args[0])}")
            # Integers have no negation instruction.
            nothing = self.name(zero(t))
            return self.assign(f"sub {out} {nothing}, {self.name(args[0])}")
        elif op.name == "select":
            return self.assign("select " + ", ".join(self.typed(a) for a in args))
        raise BackendError(
            f"{op.sign} of {kind_type} does not exist on this backend",
            s.span,
            hint="convert the operands to another type: ds.cast(x, ds.f32)",
        )

    def stored(self, x: Value, to: ScalarType) -> str:
        """Emit a value in the type of the memory that it goes to."""
        return self.name(x) if x.type.scalar is to else self.cast(x, to)

    def cast(self, x: Value, to: ScalarType) -> str:
        have = x.type.scalar
        out = self.llvm_type(to)
        if have.is_float and to.is_float:
            if to.for_storage and have is not to.arithmetic:
                return conversions.store_float(self, x, to)
            word = "fpext" if to.bits > have.bits else "fptrunc"
        elif have.is_float:
            return self.module.target.to_integer(self, x, to)
        elif to.is_float:
            word = "sitofp" if have.kind == "i" else "uitofp"
        elif to.bits == have.bits:
            return self.name(x)
        elif to.bits < have.bits:
            word = "trunc"
        else:
            # The 64-bit form of an axis is the value itself. That of a sum may have been computed
            # without wrapping around, and is not what a cast of the i32 gives.
            if to.bits == 64 and (wide := self.find_int64(x)) is not None and self.is_axis(x):
                return wide
            word = "sext" if have.kind == "i" else "zext"
        return self.assign(f"{word} {self.typed(x)} to {out}")

    def call_function(self, function: LibraryFunction, t: ScalarType, args: list[str]) -> str:
        operands = ", ".join(f"{t.llvm} {a}" for a in args)
        return self.assign(self.module.target.call_function(self.module, function, t, operands))

    def is_axis(self, v: Value) -> bool:
        """Return whether a value is an axis or loop index, whose 64-bit form is exact."""
        return v not in self.names and v not in self.made_by

    # ---- atomics

    def atomic(self, s: Atomic) -> None:
        t = s.mem.dtype.scalar
        # Bitwise operations are for integers and booleans, all others for numbers.
        if t.is_float if s.op in ("and", "or", "xor") else t.is_bool:
            raise BackendError(
                f"there is no atomic {s.op} of {t}",
                s.span,
                hint="use a field of i32, which has all atomic updates",
            )
        copy = self.private_copies.get(s)
        at = self.address(s.mem, s.index, copy)
        v = self.name(s.value)
        if s in self.update_logs:
            update_log.log_update(self, s, at, v)
            return
        # Nobody else updates the element meanwhile: a load, an operation and a store, which LLVM
        # vectorizes.
        if copy or s.exclusive or self.single_threaded:
            old = self.update(s.op, s.mem, at, v)
            if s.out is not None:
                self.names[s.out] = old
            return
        self.update_atomically(s, at, v)

    def update_atomically(self, s: Atomic, at: str, v: str) -> None:
        atomics.update_atomically(self, s, at, v)

    def update(self, op: str, mem: Mem, at: str, v: str) -> str:
        """Emit mem = op(mem, v), not atomically; return the old value."""
        t = mem.dtype.scalar
        old = self.assign(f"load {memory_type(t)}, ptr {at}{self.module.alias(mem)}")
        if t.is_bool:
            old = self.assign(f"trunc i8 {old} to i1")
        self.store(mem, at, self.combine(op, t, old, v))
        return old

    def combine(self, op: str, t: ScalarType, a: str, b: str) -> str:
        if op == "xchg":
            return b
        out = self.llvm_type(t)
        if op in ("add", "and", "or", "xor"):
            word = f"fadd {self.module.flags}" if t.is_float else op
            return self.assign(f"{word} {out} {a}, {b}")
        word = {"f": f"{op}num", "i": f"s{op}", "u": f"u{op}"}[t.kind]
        symbol = f"@llvm.{word}.{self.suffix(t)}"
        self.module.declare(symbol, f"declare {out} {symbol}({out}, {out})")
        return self.assign(f"call {out} {symbol}({out} {a}, {out} {b})")

    # ---- regions

    def count_up(self, first: str, limit: str, step: Callable[[str], None]) -> None:
        """Emit a loop over first..limit, in 64 bits; `step` emits one iteration."""
        before = self.label
        head, inside, after = (self.new_label(w) for w in ("sum", "add", "summed"))
        self.jump(head)
        self.start_block(head)
        i, following = self.fresh(), self.fresh()
        place = len(self.lines)
        self.emit(
            f"br i1 {self.assign(f'icmp slt i64 {i}, {limit}')}, label %{inside}, label %{after}"
        )
        self.start_block(inside)
        step(i)
        self.emit(f"{following} = add nuw nsw i64 {i}, 1")
        phi = f"  {i} = phi i64 [ {first}, %{before} ], [ {following}, %{self.label} ]"
        self.lines.insert(place, phi)
        self.jump(head)
        self.start_block(after)

    def loop(self, s: For) -> None:
        loops.lower_for(self, s)

    def loop_hint(self, s: For) -> str:
        """Return metadata for the back edge of a loop."""
        return ""

    def end_loop(self, at: int) -> None:
        """Emit what the body of a loop ends with, whose lines begin at `at`."""

    def while_loop(self, s: While) -> None:
        loops.lower_while(self, s)

    def lower_if(self, s: If) -> None:
        then, orelse, after = (self.new_label(w) for w in ("then", "else", "end"))
        self.emit(f"br i1 {self.name(s.cond)}, label %{then}, label %{orelse}")
        sides = []
        for label, block in ((then, s.then), (orelse, s.orelse)):
            self.start_block(label)
            self.block(block)
            names = [self.name_for(out, v) for out, v in zip(s.outs, block.yields, strict=True)]
            # The label at the end of the side: nested regions may have begun new blocks.
            sides.append((self.label, names))
            self.jump(after)
        self.start_block(after)
        (a, xs), (b, ys) = sides
        for out, x, y in zip(s.outs, xs, ys, strict=True):
            self.emit(f"{self.bind(out)} = phi {self.type_of(out)} [ {x}, %{a} ], [ {y}, %{b} ]")

    def scratch_count(self, s: Alloca) -> str:
        """Emit the number of elements to allocate."""
        return self.index64(s.count)
