"""The grammar of the IR, on one page.

Structured SSA. A `Value` is bound once; `For`, `While` and `If` are regions that take and yield values, so
a local that the user assigns in a loop is a carried value. Memory (`Mem`) is the only mutable state: fields,
arrays, temporaries that cross tasks, scratch for saves.

    Kernel  = name, args, mems, tasks, result
    Task    = axes, bounds: Block -> (lo, hi) of each axis, body: Block      (no axes: a serial task)
    Block   = statements, yields
    Stmt    = Let | Load | Store | Atomic | For | While | If | Alloca | Check | Print |
              CustomCall | Gradient | InlineLLVM
    Value   = local | Const | Arg | Dim | RngKey

The classes are plain slots classes: an adjoint makes thousands of them, and a frozen dataclass costs five
times as much. They are immutable by convention; passes build new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from diffsim.ir.arithmetic import Arithmetic
from diffsim.ir.layout import Mem as Mem  # noqa: PLC0414 - it is a node of the IR
from diffsim.ir.print_format import CheckKind
from diffsim.ir.types import ScalarType, Type, derivative_type

if TYPE_CHECKING:
    from diffsim.errors import Span
    from diffsim.ir import schedules
    from diffsim.ir.op import Op
    from diffsim.ir.print_format import Shown
    from diffsim.ir.schedules import Appends, FixedOrder, Neighbours, Packed, Privatized, Uniform
    from diffsim.ir.sparse import Place


class Value(Arithmetic):
    """A value of a scalar or tensor type; `hint` is the user's name for it, if there is one."""

    # No `__eq__`: values are keys of dicts and sets by identity, as SSA names are.
    __slots__ = ("hint", "type")

    def __init__(self, type: Type, hint: str = "") -> None:
        self.type = type
        self.hint = hint


Operand = Value | float | int


class Const(Value):
    """A number; of a tensor type: that number in every element."""

    # Two constants of one number are different objects; whoever means the number compares `value`.
    __slots__ = ("value",)

    def __init__(self, type: Type, value: float | int | bool) -> None:
        # Written out instead of `super().__init__`: constants are the most frequent values, and a call costs.
        self.type = type
        self.hint = ""
        self.value = value


class Arg(Value):
    """A scalar, vector or matrix argument of the kernel."""

    __slots__ = ("position",)

    def __init__(self, type: Type, hint: str, position: int) -> None:
        self.type = type
        self.hint = hint
        self.position = position


class Dim(Value):
    """A dimension of a memory whose shape is known only at launch."""

    __slots__ = ("axis", "mem")

    def __init__(self, type: Type, mem: Mem, axis: int) -> None:
        self.type = type
        # What the printer shows; the launch passes the extent beside the array's address.
        self.hint = f"{mem.name}.shape[{axis}]"
        self.mem = mem
        self.axis = axis


class RngKey(Value):
    """The launch's key for random numbers (u64); the adjoint of a launch gets the same one."""

    __slots__ = ()


# Bound by no statement, known before a launch starts, and equal in all lanes: the launch-wide values.
LEAVES = (Const, Arg, Dim, RngKey)


class Block:
    """Statements in order, and the values that the block yields to the node around it."""

    __slots__ = ("stmts", "yields")

    def __init__(self, stmts: Sequence[Stmt], yields: tuple[Value, ...] = ()) -> None:
        self.stmts = stmts
        self.yields = yields


class Node:
    """The base of what `replace` copies: a statement, a task, a kernel. Its parameters are its attributes."""

    __slots__ = ()

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these attributes changed, so that no other one is lost by accident."""
        # Slots of the class itself: the names of a node's parameters and of its attributes are the same by
        # construction, so that no pass needs to list them.
        cls = type(self)
        names: tuple[str, ...] = cls.__slots__
        return cls(**{name: getattr(self, name) for name in names} | changes)


class Let(Node):
    """`out = op(args)`."""

    __slots__ = ("args", "op", "out", "span")

    def __init__(self, out: Value, op: Op, args: tuple[Value, ...], span: Span) -> None:
        self.out = out
        self.op = op
        self.args = args
        self.span = span


class Load(Node):
    """`out = mem[index]`. An index longer than the memory's rank reaches into the element's components.

    `origin` is the statement of the user's program that this one is a copy of (in an adjoint). If that is an
    atomic, the load asks for the element as the kernel left it.
    """

    __slots__ = ("index", "mem", "origin", "out", "span")

    def __init__(
        self,
        out: Value,
        mem: Mem,
        index: tuple[Value, ...],
        span: Span,
        origin: Load | Atomic | None = None,
    ) -> None:
        self.out = out
        self.mem = mem
        self.index = index
        self.span = span
        # A statement of the primal is its own origin; copies of copies keep the first.
        self.origin = origin or self


class Store(Node):
    """`mem[index] = value`."""

    __slots__ = ("index", "mem", "span", "value")

    def __init__(self, mem: Mem, index: tuple[Value, ...], value: Value, span: Span) -> None:
        self.mem = mem
        self.index = index
        self.value = value
        self.span = span


class Atomic(Node):
    """`out = mem[index]; mem[index] = op(mem[index], value)`, indivisible.

    `op` is "add", "min", "max", "and", "or", "xor", or "xchg" (the value takes the element's place; made by
    adjoints only). `exclusive` means that no other lane touches the
    element during the task, so a plain read-modify-write will do.
    """

    __slots__ = ("exclusive", "index", "mem", "op", "origin", "out", "span", "value")

    def __init__(
        self,
        out: Value | None,
        op: str,
        mem: Mem,
        index: tuple[Value, ...],
        value: Value,
        span: Span,
        # A claim of `demote_atomics` about the whole task; a pass that changes which elements lanes access
        # must run before it.
        exclusive: bool = False,
        origin: Atomic | None = None,
    ) -> None:
        self.out = out
        self.op = op
        self.mem = mem
        self.index = index
        self.value = value
        self.span = span
        self.exclusive = exclusive
        self.origin = origin or self


class For(Node):
    """Serial loop over `index` in lo..hi (downwards from hi - 1 if `reverse`), carrying values.

    `params` hold the carried values inside the body (first iteration: `inits`); the body yields their
    next values; `outs` are the last ones.
    """

    __slots__ = ("body", "hi", "index", "inits", "lo", "outs", "params", "reverse", "span")

    def __init__(
        self,
        index: Value,
        lo: Value,
        hi: Value,
        params: tuple[Value, ...],
        inits: tuple[Value, ...],
        body: Block,
        outs: tuple[Value, ...],
        span: Span,
        reverse: bool = False,
    ) -> None:
        self.index = index
        self.lo = lo
        self.hi = hi
        self.params = params
        self.inits = inits
        self.body = body
        self.outs = outs
        self.span = span
        # A flag instead of bounds turned around: the adjoint of a loop has the loop's own index values, so
        # indices computed from them stay affine with the same coefficients.
        self.reverse = reverse


class While(Node):
    """`while cond(params): params = body(params)`; `cond` is a block that yields one boolean."""

    __slots__ = ("body", "cond", "inits", "outs", "params", "span")

    def __init__(
        self,
        params: tuple[Value, ...],
        inits: tuple[Value, ...],
        cond: Block,
        body: Block,
        outs: tuple[Value, ...],
        span: Span,
    ) -> None:
        self.params = params
        self.inits = inits
        self.cond = cond
        self.body = body
        self.outs = outs
        self.span = span


class If(Node):
    """`outs = then() if cond else orelse()`; only the branch taken is evaluated."""

    # Not `select`: an access in the branch not taken may be out of bounds, and a call may have effects.
    __slots__ = ("cond", "orelse", "outs", "span", "then")

    def __init__(
        self, cond: Value, then: Block, orelse: Block, outs: tuple[Value, ...], span: Span
    ) -> None:
        self.cond = cond
        self.then = then
        self.orelse = orelse
        self.outs = outs
        self.span = span


class Alloca(Node):
    """Memory for `count` elements of `mem`, until the end of the block."""

    __slots__ = ("count", "mem", "span")

    def __init__(self, mem: Mem, count: Value, span: Span) -> None:
        self.mem = mem
        self.count = count
        self.span = span


class Check(Node):
    """Unless `cond`, report `message` with the values and this line.

    `pieces`: a text with places for the values, in place of the message.
    """

    __slots__ = ("cond", "kind", "message", "pieces", "span", "values")

    def __init__(
        self,
        cond: Value,
        message: str,
        values: tuple[Value, ...],
        span: Span,
        pieces: tuple[str | Shown, ...] = (),
        kind: CheckKind = CheckKind.INDEX,
    ) -> None:
        self.cond = cond
        self.kind = kind
        self.message = message
        self.values = values
        self.span = span
        self.pieces = pieces


class Print(Node):
    """Show a line to the user: `pieces`, with `values` in their places. Lines are sorted by `order`."""

    __slots__ = ("order", "pieces", "span", "values")

    def __init__(
        self,
        order: tuple[Value, ...],
        pieces: tuple[str | Shown, ...],
        values: tuple[Value, ...],
        span: Span,
    ) -> None:
        self.order = order
        self.pieces = pieces
        self.values = values
        self.span = span


class CustomCall(Node):
    """`outs = body()`: a call whose derivative, or whose replay in an adjoint, is given by the user.

    Runs as its body, which replaces it on the way to a backend. `adjoint` binds `seeds`, the adjoints of
    `outs`, sees `outs` themselves, and yields the adjoint of each of `args`; what it adds to memory are
    gradients, those of `targets`. If it `is_linear` in `seeds`, its transpose is the tangent. Without it the
    body is differentiated, unless `refusal` says why not. `replay` yields `outs` where an adjoint needs them.
    """

    __slots__ = (
        "adjoint",
        "args",
        "body",
        "is_linear",
        "name",
        "outs",
        "refusal",
        "replay",
        "seeds",
        "span",
        "targets",
    )

    def __init__(
        self,
        outs: tuple[Value, ...],
        args: tuple[Value, ...],
        body: Block,
        span: Span,
        *,
        name: str,
        seeds: tuple[Value, ...] = (),
        adjoint: Block | None = None,
        targets: tuple[Mem, ...] = (),
        # Blocks over the same values (docs/adr/0011): passes keep them true as they copy statements.
        replay: Block | None = None,
        refusal: str = "",
        is_linear: bool = False,
    ) -> None:
        self.outs = outs
        self.args = args
        self.body = body
        self.span = span
        self.name = name
        self.seeds = seeds
        self.adjoint = adjoint
        self.targets = targets
        self.replay = replay
        self.refusal = refusal
        self.is_linear = is_linear

    @property
    def is_given(self) -> bool:
        """Whether derivatives do not go through the body."""
        return self.adjoint is not None or bool(self.refusal)


class Gradient(Node):
    """`outs`: the adjoints of `args`, given `seeds`, those of what `body(params)` yields.

    The frontend writes what a kernel asks for; `expand_gradients` puts the code in its place before any
    other pass sees it.
    """

    __slots__ = ("args", "body", "name", "outs", "params", "seeds", "span")

    def __init__(
        self,
        outs: tuple[Value, ...],
        params: tuple[Value, ...],
        args: tuple[Value, ...],
        body: Block,
        seeds: tuple[Value, ...],
        span: Span,
        name: str,
    ) -> None:
        self.outs = outs
        self.params = params
        self.args = args
        self.body = body
        self.seeds = seeds
        self.span = span
        self.name = name


class InlineLLVM(Node):
    """`outs = name(args)`, scalars all, computed by LLVM text that the user wrote.

    `text` holds for each backend ("cpu", "cuda") the body of a function whose parameters are called
    `names`; it may start with declarations. Several `outs` are returned as a struct.
    """

    __slots__ = ("args", "name", "names", "outs", "span", "text")

    def __init__(
        self,
        outs: tuple[Value, ...],
        name: str,
        names: tuple[str, ...],
        args: tuple[Value, ...],
        text: dict[str, str],
        span: Span,
    ) -> None:
        self.outs = outs
        self.name = name
        self.names = names
        self.args = args
        self.text = text
        self.span = span


Stmt = (
    Let | Load | Store | Atomic | For | While | If | Alloca | Check | Print | CustomCall | Gradient |
    InlineLLVM
)  # fmt: skip


class _Analyzed(Node):
    """A node that keeps the results of analyses (`passes/analysis/once.py`) in `memo`; a new one has none."""

    # Not among a subclass's own `__slots__`, so `Node.replace` does not copy it.
    __slots__ = ("memo",)


class Task(_Analyzed):
    """One parallel loop nest (each point of the box `axes` is a lane), or serial code without axes.

    Attributes:
        bounds: evaluated once, before the lanes start; yields lo and hi of each axis.
        body: yields one value for each of `reductions`.
        reductions: what all lanes combine: (op, mem, index), the index made of leaves alone.
        privatized: memories that threads may add up in copies.
        simd: if neighbours along the last axis shall run as vectors: the values that may differ.
        by_lane: loops that the lanes of a vector run one after the other nevertheless, since their own
            iterations make better vectors.
        packed: copies of memories, in another order, that lanes load from.
        neighbours: accesses that a lane of a vector makes together.
        aligned: of rows without loops: idle lanes at both ends, so that vectors are aligned in memory.
        appends: serial loops of scalar lanes whose iterations run as vectors, and append what they keep.
        block_dim: the number of threads in a GPU's blocks, if the user gave one.
        lag: if lanes need not wait for all of the task before: how far along the first axis they must.
        reach: if updates are shared by near lanes alone: how far apart along the first axis these can be.
        order: how lanes give the same bits in every run, if that is asked for and needs something.
        independent: whether the user says that no two lanes access one element, unless both add to it.
        active: the place in a sparse tree that the axes are the elements of. Lanes of inactive elements have
            no effect, by a condition around the body; those that the task itself activates need not run.
        concurrent: whether it may run at the same time as the tasks before it, back to the last one
            that may not (that one included).
        uniform: what all lanes agree on, where a backend needs to know.
        written: for each index that the program has, its axis; () if they are in one order.
    """

    __slots__ = (
        "active",
        "aligned",
        "appends",
        "axes",
        "block_dim",
        "body",
        "bounds",
        "by_lane",
        "concurrent",
        "independent",
        "lag",
        "neighbours",
        "order",
        "packed",
        "privatized",
        "reach",
        "reductions",
        "simd",
        "span",
        "uniform",
        "written",
    )

    def __init__(
        self,
        axes: tuple[Value, ...],
        bounds: Block,
        body: Block,
        span: Span,
        reductions: tuple[tuple[str, Mem, tuple[Value, ...]], ...] = (),
        privatized: tuple[Privatized, ...] = (),
        simd: frozenset[Value] | None = None,
        block_dim: int | None = None,
        lag: int | None = None,
        order: FixedOrder | None = None,
        concurrent: bool = False,
        uniform: Uniform | None = None,
        independent: bool = False,
        active: Place | None = None,
        by_lane: frozenset[Stmt] = frozenset(),
        packed: tuple[Packed, ...] = (),
        neighbours: tuple[Neighbours, ...] = (),
        appends: Appends | None = None,
        written: tuple[int, ...] = (),
        reach: int | None = None,
        aligned: schedules.AlignedRows | None = None,
    ) -> None:
        self.aligned = aligned
        self.written = written
        self.reach = reach
        self.by_lane = by_lane
        self.packed = packed
        self.neighbours = neighbours
        self.appends = appends
        self.independent = independent
        self.active = active
        self.axes = axes
        self.bounds = bounds
        self.body = body
        self.span = span
        self.reductions = reductions
        self.privatized = privatized
        self.simd = simd
        self.block_dim = block_dim
        self.lag = lag
        self.order = order
        self.concurrent = concurrent
        self.uniform = uniform
        self.memo: dict[object, Any] = {}

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these attributes changed; analyses of the same code still hold."""
        changed = super().replace(**changes)
        # What passes write onto a task (its schedule) changes no answer of an analysis of its code.
        if changes.keys().isdisjoint(("axes", "bounds", "body", "reductions")):
            changed.memo = self.memo
        return changed


class Kernel(_Analyzed):
    """A kernel: arguments, memories, tasks, result; `incoming`: the gradients that an adjoint passes on."""

    __slots__ = ("args", "incoming", "mems", "name", "result", "span", "tasks")

    def __init__(
        self,
        name: str,
        args: tuple[Arg, ...],
        mems: tuple[Mem, ...],
        tasks: tuple[Task, ...],
        span: Span,
        result: Mem | None = None,
        incoming: frozenset[Mem] = frozenset(),
    ) -> None:
        self.incoming = incoming
        self.name = name
        self.args = args
        self.mems = mems
        self.tasks = tasks
        self.span = span
        self.result = result
        self.memo: dict[object, Any] = {}


def zero(t: Type) -> Const:
    """Return the constant 0 of a type."""
    s: ScalarType = t.scalar
    return Const(t, 0.0 if s.kind == "f" else False if s.kind == "b" else 0)


def no_derivative(t: Type) -> Const:
    """Return 0 as the derivative of, or with respect to, a value of a type."""
    return zero(derivative_type(t))


def derivative_of(v: Value, what: str) -> Value:
    """Return a new value for the adjoint ("adj") or tangent ("dual") of one."""
    return Value(derivative_type(v.type), f"{v.hint}.{what}" if v.hint else "")
