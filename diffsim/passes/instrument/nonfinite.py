"""Finds the operation that made a NaN or an infinity which a kernel stores.

Assumes a prepared kernel. There are two instrumentations. `flag_stores` sets a flag where a number that is
not finite is stored, and costs a comparison a store. `trace_origins` runs the lanes one after the other, and
says of the first such number which operation made it, of which operands, in which iteration:

    %y = sqrt %x                 %y.origin = select(bad(%y), select(%x.origin != 0, %x.origin, new), 0)
    store f[%i], %y        ->    if %y.origin != 0 and nothing was found yet: note it
                                 store f[%i], %y

An operation makes a NaN if none of its operands is one, and an infinity if all of its operands are finite:
what was loaded, or written as a constant, was made by nobody. Each float has a number beside it, its
*origin*: that of the note about its making, 0 where it is finite or was made by no operation. Origins take
the way of the values: through branches, carried by loops, beside the memory that only the kernel itself
knows. So an infinity that a `select` throws away, or that a minimum never takes, is no finding.
"""

from __future__ import annotations

from dataclasses import dataclass

from diffsim.errors import Span
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Const,
    For,
    If,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import Rewriter
from diffsim.ir.types import bool_, f64, i32, i64, tensor
from diffsim.passes.autodiff.custom_calls import inline_bodies
from diffsim.passes.transforms.scalarize import scalarize
from diffsim.passes.transforms.serialize import serialize

MOST_OPERANDS = 3
MOST_LOOPS = 8
_MOST_INDICES = 12
# The notes of a run: the origin that was found (0: none yet), the store, the number stored, its index; how
# many numbers were made, and a row for each: the operation, its result, its operands, the iterations around
# it.
ORIGIN, STORE, STORED, INDEX = 0, 1, 2, 3
_COUNT = INDEX + _MOST_INDICES
_HEAD = _COUNT + 1
_ROW = 2 + MOST_OPERANDS + MOST_LOOPS
_MOST_ROWS = 4096  # the last one is used again and again
SIZE = _HEAD + _ROW * _MOST_ROWS
_NO_ORIGIN = Const(i32, 0)
_FALSE = Const(bool_, False)


# ---- a flag


def flag_stores(kernel: Kernel, flag: Mem, *, nan_alone: bool) -> Kernel:
    """Return the kernel that sets a flag where it stores a number which is not finite.

    Args:
        kernel: a prepared kernel.
        flag: a single i32.
        nan_alone: whether infinities are left out.
    """
    kernel = inline_bodies(kernel)
    work = _Flagger(kernel, flag, nan_alone=nan_alone)
    tasks = tuple(t.replace(body=work.block(t.body)) for t in kernel.tasks)
    return kernel.replace(tasks=tasks, mems=(*kernel.mems, flag))


class _Flagger(Rewriter):
    """Puts a test before each store of a float to memory that the program sees."""

    def __init__(self, kernel: Kernel, flag: Mem, *, nan_alone: bool) -> None:
        super().__init__()
        self.builder = Builder(kernel.span)
        self.result = kernel.result
        self.flag = flag
        self.nan_alone = nan_alone
        self.loaded: set[Value] = set()

    # Statements are kept, not copied, so values keep their identity.
    def fresh(self, v: Value) -> Value:
        return v

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Load) and _is_seen(s.mem, None):
            self.loaded.add(s.out)
        if not isinstance(s, (Store, Atomic)):
            return [self.copy(s)]
        # What is stored as it was loaded was made by no operation of this kernel.
        given = isinstance(s.value, Const) or s.value in self.loaded
        if given or not _is_seen(s.mem, self.result) or not s.value.type.scalar.is_float:
            return [self.copy(s)]
        b = self.builder
        b.span = s.span
        with b, b.block() as made:
            bad = self._is_bad(s.value)
            with b.block() as then:
                # All lanes store the same, but at the same time: as an atomic that is no race.
                b.atomic("or", self.flag, (), Const(i32, 1))
            b.add(If(bad, Block(then), Block([]), (), s.span))
        return [*made, self.copy(s)]

    def _is_bad(self, v: Value) -> Value:
        b = self.builder
        bad: Value = _FALSE
        for x in _components(b, v):
            bad = b.named("or", bad, b.named("isnan", x))
            if not self.nan_alone:
                bad = b.named("or", bad, b.named("isinf", x))
        return bad


def _components(b: Builder, v: Value) -> list[Value]:
    dims = v.type.shape
    if not dims:
        return [v]
    if len(dims) == 1:
        return [b.named("extract", v, k) for k in range(dims[0])]
    return [b.named("extract", v, i, j) for i in range(dims[0]) for j in range(dims[1])]


def _is_seen(mem: Mem, result: Mem | None) -> bool:
    """Whether the program sees what is in a memory: not temporaries and saved values of loops."""
    return mem.kind in ("field", "array") or mem is result


# ---- where it came from


@dataclass(frozen=True, slots=True)
class Origin:
    """A statement that can make a number which is not finite.

    Attributes:
        name: its op, or "load".
        operands: what it computes with; of a load: the index.
        loops: the names of the loops around it, outermost first.
        mem: of a load, the memory.
    """

    name: str
    operands: tuple[Value, ...]
    loops: tuple[str, ...]
    span: Span
    mem: Mem | None = None


@dataclass(frozen=True, slots=True)
class Traced:
    """A kernel that notes what makes the first number which is not finite.

    Attributes:
        kernel: it runs on one thread.
        notes: its array of notes, SIZE of f64.
        origins: by their numbers, from 1.
        stores: the same.
    """

    kernel: Kernel
    notes: Mem
    origins: list[Origin]
    stores: list[Store | Atomic]

    def row(self, number: int) -> slice:
        """Return the places of a row."""
        first = _HEAD + _ROW * (number - 1)
        return slice(first, first + _ROW)


def trace_origins(kernel: Kernel, *, nan_alone: bool, loads: bool) -> Traced:
    """Return the kernel that notes where the first NaN or infinity which it stores comes from.

    Args:
        kernel: a prepared kernel, or an adjoint.
        nan_alone: whether infinities are left out.
        loads: whether a NaN that was loaded has an origin: the load.
    """
    # Scalars, as one component may be NaN while another one is not; ops stay those of the program.
    plain = scalarize(serialize(inline_bodies(kernel)), functions=None)
    work = _Tracer(plain, nan_alone=nan_alone, loads=loads)
    tasks = tuple(work.task(t) for t in plain.tasks)
    temps = [m for m in work.temps.values() if m.kind == "temp"]  # an Alloca declares scratch
    mems = (*plain.mems, *temps, work.notes)
    made = plain.replace(tasks=tasks, mems=mems)
    return Traced(made, work.notes, work.origins, work.stores)


class _Tracer(Rewriter):
    """Computes origins beside floats, and notes the first that is stored."""

    def __init__(self, kernel: Kernel, *, nan_alone: bool, loads: bool) -> None:
        super().__init__()
        self.builder = Builder(kernel.span)
        self.result = kernel.result
        self.nan_alone = nan_alone
        self.loads = loads
        self.notes = Mem("notes", f64, 1, None, "array")
        self.origins: list[Origin] = []
        self.stores: list[Store | Atomic] = []
        self.loops: list[Value] = []
        self.temps: dict[Mem, Mem] = {}
        """The origins of what temporaries and saved values of loops hold."""
        self._origin: dict[Value, Value] = {}
        self._nan: dict[Value, Value] = {}
        self._infinite: dict[Value, Value] = {}

    def fresh(self, v: Value) -> Value:
        return v

    def task(self, t: Task) -> Task:
        return t.replace(body=self.block(t.body))

    def block(self, b: Block) -> Block:
        out: list[Stmt] = []
        for s in b.stmts:
            self.builder.span = s.span
            with self.builder, self.builder.block() as made:
                self.trace(s)
            out += made
        return Block(out, b.yields)

    # ---- statements

    def trace(self, s: Stmt) -> None:
        """Emit a statement, and the origins of what it binds."""
        b = self.builder
        if isinstance(s, For):
            b.add(self.loop(s))
        elif isinstance(s, While):
            b.add(self.while_loop(s))
        elif isinstance(s, If):
            b.add(self.branch(s))
        elif isinstance(s, Alloca):
            b.add(s)
            b.add(Alloca(self.beside(s.mem), s.count, s.span))
        elif isinstance(s, Store):
            self.stored(s, s.value, self.origin(s.value))
            b.add(s)
        elif isinstance(s, Atomic):
            self.update(s)
        elif not isinstance(s, Print):  # it has been printed
            b.add(s)
            if isinstance(s, Load):
                self.loaded(s)
            elif isinstance(s, Let) and s.op.name == "select" and s.out.type.is_float:
                self.seen(s.out, self.select(s.args[0], *map(self.origin, s.args[1:])))
            elif isinstance(s, Let):
                self.made(s.out, s.op.name, s.args)
            elif isinstance(s, InlineLLVM):
                for out in s.outs:
                    self.made(out, s.name, s.args)

    def loaded(self, s: Load) -> None:
        if not s.out.type.is_float:
            return
        if s.mem.kind in ("temp", "scratch"):
            self.seen(s.out, self.builder.load(self.beside(s.mem), s.index))
            return
        if not self.loads:
            return
        self.seen(s.out, _NO_ORIGIN)
        self.note(self.is_nan(s.out), Origin("load", s.index, self.names(), s.span, s.mem), s.out)

    def made(self, out: Value, name: str, args: tuple[Value, ...]) -> None:
        """Emit the origin of an op's result."""
        if not out.type.is_float:
            return
        b, floats = self.builder, [a for a in args if a.type.is_float]
        nan, infinite = self.is_nan(out), self.is_infinite(out)
        of_nan = self.any(map(self.is_nan, floats))
        fresh = b.named("and", nan, b.named("not", of_nan))
        if not self.nan_alone:
            finite = b.named("not", b.named("or", of_nan, self.any(map(self.is_infinite, floats))))
            fresh = b.named("or", fresh, b.named("and", infinite, finite))
        earlier: Value = _NO_ORIGIN
        for a in floats:
            earlier = self.select(self.exists(earlier), earlier, self.origin(a))
        bad = nan if self.nan_alone else b.named("or", nan, infinite)
        self._origin[out] = self.select(bad, earlier, _NO_ORIGIN)
        fresh = b.named("and", fresh, b.named("not", self.exists(earlier)))
        self.note(fresh, Origin(name, args, self.names(), b.span), out)

    def update(self, s: Atomic) -> None:
        """Emit an atomic update, whose result may be a number that neither operand was."""
        b = self.builder
        if not s.value.type.is_float:
            b.add(s)
            return
        old = s.out or Value(s.value.type)
        b.add(s.replace(out=old, origin=None))
        hidden = s.mem.kind in ("temp", "scratch")
        self.seen(old, b.load(self.beside(s.mem), s.index) if hidden else _NO_ORIGIN)
        if s.op == "xchg":
            self.stored(s, s.value, self.origin(s.value))
            return
        new = b.named(s.op, old, s.value)
        if new is not s.value:
            self.made(new, s.op, (old, s.value))
        self.stored(s, new, self.origin(new))

    def stored(self, s: Store | Atomic, value: Value, origin: Value) -> None:
        """Emit the note of what was found, if it is the first."""
        b = self.builder
        if not value.type.is_float:
            return
        if s.mem.kind in ("temp", "scratch"):
            b.store(self.beside(s.mem), s.index, origin)
        if not _is_seen(s.mem, self.result) or isinstance(origin, Const):
            return
        self.stores.append(s)
        found = [b.cast(origin, f64), Const(f64, float(len(self.stores))), b.cast(value, f64)]
        with b.block() as then:
            self.write(Const(i64, 0), (*found, *s.index[:_MOST_INDICES]))
        cond = b.named("and", self.exists(origin), self.is_searching())
        b.add(If(cond, Block(then), Block([]), (), s.span))

    # ---- blocks

    def loop(self, s: For) -> For:
        inits = (*s.inits, *self.origins_of(s.inits))
        params = (*s.params, *self.carried(s.params))
        self.loops.append(s.index)
        body = self.yielding(s.body, s.params)
        self.loops.pop()
        outs = (*s.outs, *self.carried(s.outs))
        return s.replace(inits=inits, params=params, body=body, outs=outs)

    def while_loop(self, s: While) -> While:
        inits = (*s.inits, *self.origins_of(s.inits))
        params = (*s.params, *self.carried(s.params))
        cond, body = self.block(s.cond), self.yielding(s.body, s.params)
        outs = (*s.outs, *self.carried(s.outs))
        return s.replace(inits=inits, params=params, cond=cond, body=body, outs=outs)

    def branch(self, s: If) -> If:
        then, orelse = self.yielding(s.then), self.yielding(s.orelse)
        return s.replace(then=then, orelse=orelse, outs=(*s.outs, *self.carried(s.outs)))

    def yielding(self, b: Block, params: tuple[Value, ...] = ()) -> Block:
        """Return a block that yields the origins of its floats, too."""
        made = self.block(b)
        return Block(made.stmts, (*made.yields, *self.origins_of(made.yields)))

    def origins_of(self, vs: tuple[Value, ...]) -> list[Value]:
        return [self.origin(v) for v in vs if v.type.is_float]

    def carried(self, vs: tuple[Value, ...]) -> list[Value]:
        """Return new values for the origins of these."""
        made = []
        for v in vs:
            if v.type.is_float:
                self._origin[v] = Value(i32)
                made.append(self._origin[v])
        return made

    # ---- values

    def origin(self, v: Value) -> Value:
        return self._origin.get(v, _NO_ORIGIN)

    def seen(self, v: Value, origin: Value) -> None:
        self._origin[v] = origin

    def is_nan(self, v: Value) -> Value:
        return self.builder.named("isnan", v)

    def is_infinite(self, v: Value) -> Value:
        return self.builder.named("isinf", v)

    def any(self, conditions: object) -> Value:
        found: Value = _FALSE
        for c in conditions:  # type: ignore[attr-defined]
            found = self.builder.named("or", found, c)
        return found

    def exists(self, origin: Value) -> Value:
        return self.builder.named("ne", origin, 0)

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        return self.builder.named("select", cond, a, b)

    def beside(self, mem: Mem) -> Mem:
        """Return the memory of the origins of what a temporary or scratch memory holds."""
        made = self.temps.get(mem)
        if made is None:
            t = tensor(i32, mem.dtype.shape)
            made = self.temps[mem] = Mem(f"{mem.name}.origin", t, mem.rank, mem.shape, mem.kind)
        return made

    # ---- notes

    def names(self) -> tuple[str, ...]:
        return tuple(v.hint for v in self.loops[:MOST_LOOPS])

    def note(self, cond: Value, origin: Origin, out: Value) -> None:
        """Emit the note of a value that was made just now, if the condition holds, and its origin."""
        if isinstance(cond, Const) and not cond.value:
            return
        b = self.builder
        self.origins.append(origin)
        operands = list(origin.operands[:MOST_OPERANDS])
        operands += [Const(f64, 0.0)] * (MOST_OPERANDS - len(operands))
        number, noted = Const(f64, float(len(self.origins))), Value(i32)
        with b.block() as then:
            row = b.cast(b.load(self.notes, (Const(i64, _COUNT),)), i32) + Const(i32, 1)
            row = b.named("min", row, _MOST_ROWS)
            self.write(Const(i64, _COUNT), (row,))
            first = b.cast((row - 1) * _ROW + _HEAD, i64)
            self.write(first, (number, out, *operands, *self.loops[:MOST_LOOPS]))
        cond = b.named("and", cond, self.is_searching())
        b.add(If(cond, Block(then, (row,)), Block([], (_NO_ORIGIN,)), (noted,), b.span))
        self._origin[out] = self.select(self.exists(noted), noted, self.origin(out))

    def is_searching(self) -> Value:
        """Emit whether nothing was found yet."""
        return self.builder.named("eq", self.builder.load(self.notes, (Const(i64, ORIGIN),)), 0.0)

    def write(self, at: Value, values: tuple[Value, ...]) -> None:
        """Emit notes, from a place on."""
        b = self.builder
        for k, v in enumerate(values):
            number = b.named("select", v, 1.0, 0.0) if v.type.is_bool else v
            b.store(self.notes, (at + k,), b.cast(number, f64))
